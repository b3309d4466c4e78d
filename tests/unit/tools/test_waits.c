/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of waits (tools/waits/waits.h) on statistics files of its own making: what follows from what, what is the cause, what comes first;
 * rank by rank the same whoever's file says it. Writers that die, begin again, and files that are cut, damaged or of nobody.
 */
#include "tests/unit/queues/stats_kit.h"
#include "tools/waits/waits.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define SECOND UINT64_C(1000000000)

static struct epf_stats *files[4];
static uint64_t now_ns;

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

/* An instance with one job of 8 ranks, alive just now. id 0: it has not joined. */
static struct epf_stats *instance_of(unsigned at, const char *name, const char *job, uint64_t id)
{
	const struct epf_stats_label labels[] = { { NULL, 1 }, { job, 0 } };
	struct epf_stats_opts o = { .size = sizeof(o), .dir = dir, .instance = name };
	struct epf_stats_block *b;

	o.blocks[EPF_STATS_JOB] = o.blocks[EPF_STATS_NIC] = 1;
	o.blocks[EPF_STATS_RANK] = o.blocks[EPF_STATS_RING] = 8;
	o.blocks[EPF_STATS_LANE] = o.blocks[EPF_STATS_PEER] = 8;
	assert_int_equal(epf_stats_create(&o, &files[at], why, sizeof(why)), 0);
	assert_int_equal(epf_stats_add_block(files[at], EPF_STATS_JOB, labels, 2, &b), 0);
	now_ns = clock_ns();
	epf_stats_beat(files[at], now_ns);
	if (id)
		epf_stat_set(b, EPF_STAT_JOB_ID, id);
	epf_stat_set(b, EPF_STAT_JOB_WORLD, 8);
	epf_stat_set(b, EPF_STAT_JOB_LOOK_NS, now_ns);
	epf_stat_set(b, EPF_STAT_JOB_WAITS, 5);
	epf_stat_set(b, EPF_STAT_JOB_WAITS_HIDDEN, 2);
	return files[at];
}

static struct epf_stats *instance(unsigned at, const char *name)
{
	return instance_of(at, name, "j", 99);
}

static void nic(struct epf_stats *st, uint64_t links, uint64_t up)
{
	const struct epf_stats_label labels[] = { { "emu", 0 }, { NULL, 1 }, { NULL, 1 } };
	struct epf_stats_block *b;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_NIC, labels, 3, &b), 0);
	epf_stat_set(b, EPF_STAT_NIC_LINKS, links);
	epf_stat_set(b, EPF_STAT_NIC_LINKS_UP, up);
}

/* A rank that waits for a signal of `from` for so many seconds; from UINT32_MAX: of nobody known; age 0: it does not wait. */
static struct epf_stats_block *rank(struct epf_stats *st, uint32_t number, uint32_t from,
				    double age, uint64_t pid)
{
	const struct epf_stats_label labels[] = { { NULL, 1 }, { NULL, number } };
	struct epf_stats_block *b;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_RANK, labels, 2, &b), 0);
	epf_stat_state(b, EPF_STAT_RANK_STATE, EPF_STATS_PEER_UP, 1);
	epf_stat_set(b, EPF_STAT_RANK_PID, pid);
	epf_stat_set(b, EPF_STAT_RANK_ACTIVE_NS, now_ns - SECOND);
	epf_stat_state(b, EPF_STAT_RANK_WAIT, age > 0 ? EPF_STATS_WAIT_SIGNAL : EPF_STATS_WAIT_NONE,
		       now_ns - (uint64_t)(age * (double)SECOND));
	epf_stat_set(b, EPF_STAT_RANK_WAIT_NUMBER, 10 + number);
	epf_stat_set(b, EPF_STAT_RANK_WAIT_VALUE, 4);
	epf_stat_set(b, EPF_STAT_RANK_WAIT_LEAST, 5);
	if (from != UINT32_MAX)
		epf_stat_set(b, EPF_STAT_RANK_WAIT_RANK, from);
	return b;
}

static struct epf_stats_block *ring(struct epf_stats *st, uint32_t of, uint32_t to, unsigned reason,
				    double age)
{
	const struct epf_stats_label labels[] = {
		{ NULL, 1 }, { NULL, 0 }, EPF_STATS_NO_LABEL, { NULL, of }
	};
	struct epf_stats_block *b;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_RING, labels, 4, &b), 0);
	epf_stat_state(b, EPF_STAT_RING_WAIT, reason, now_ns - (uint64_t)(age * (double)SECOND));
	epf_stat_set(b, EPF_STAT_RING_WAIT_RANK, to);
	epf_stat_set(b, EPF_STAT_RING_WAIT_STREAM, 3);
	epf_stat_set(b, EPF_STAT_RING_DEFERRED, 7);
	epf_stat_set(b, EPF_STAT_RING_OCCUPANCY, 256);
	epf_stat_set(b, EPF_STAT_RING_SLOTS, 256);
	return b;
}

static struct waits *graph(void)
{
	struct waits *w = waits_new();

	assert_non_null(w);
	assert_true(waits_add_dir(w, dir) >= 0);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	return w;
}

/* The entry at a place of the order. */
static const struct waits_entry *nth(const struct waits *w, uint32_t place)
{
	assert_true(place < w->n_entries);
	return &w->entry[w->order[place]];
}

static const struct waits_entry *entry(const struct waits *w, enum waits_who who, uint32_t of)
{
	for (uint32_t i = 0; i < w->n_entries; i++)
		if (w->entry[i].who == who && w->entry[i].rank == of)
			return &w->entry[i];
	fail_msg("no entry of rank %u", of);
	return NULL;
}

static const struct waits_entry *cause_of(const struct waits *w, const struct waits_entry *e)
{
	while (e->follows != WAITS_NONE)
		e = &w->entry[e->follows];
	return e;
}

static void end_all(void)
{
	for (unsigned i = 0; i < 4; i++) {
		epf_stats_destroy(files[i], 0);
		files[i] = NULL;
	}
}

static const char *text(const struct waits *w, const struct waits_entry *e)
{
	static char line[512];

	return waits_sentence(w, e, line, sizeof(line));
}

static void nothing_waits(void **state)
{
	struct epf_stats *st = instance(0, "a");
	struct waits *w;

	rank(st, 0, 1, 0, 0);
	rank(st, 1, 0, 0.3, 0); /* too short to speak of */
	w = graph();
	assert_int_equal(w->n_jobs, 1);
	assert_int_equal(w->n_ranks, 2);
	assert_int_equal(w->n_entries, 0);
	assert_int_equal(w->job[0].hidden, 2);
	waits_free(w);
	end_all();
}

/* Stores over NVLink have no signal: the sentence names the rank whose kernels are awaited, and what keeps that rank follows as for a signal. */
static void a_kernel_waits_for_kernels_of_a_rank(void **state)
{
	struct epf_stats *st = instance(0, "a");
	struct epf_stats_block *b = rank(st, 0, 1, 2, 0);
	struct waits *w;

	rank(st, 1, 0, 0, 0);
	epf_stat_set(b, EPF_STAT_RANK_WAIT_NUMBER, EPF_STATS_NO_SIGNAL);
	epf_stat_set(b, EPF_STAT_RANK_WAIT_KERNEL, 1);
	w = graph();
	assert_non_null(strstr(
		text(w, entry(w, WAITS_RANK, 0)),
		"a kernel of rank 0 waits for kernels of rank 1 for 2.0 s: they have made 4 steps, it wants 5"));
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 0))->reason, WAITS_R_BUSY);
	waits_free(w);
	end_all();
}

static void lane(struct epf_stats *st, uint32_t number, uint32_t peer, unsigned path, double age)
{
	const struct epf_stats_label labels[] = {
		{ NULL, 1 }, { NULL, number }, { NULL, peer }, { "tcp", 0 }
	};
	struct epf_stats_block *b;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_LANE, labels, 4, &b), 0);
	epf_stat_state(b, EPF_STAT_LANE_WAIT, age > 0 ? EPF_STATS_WAIT_SENT : EPF_STATS_WAIT_NONE,
		       now_ns - (uint64_t)(age * (double)SECOND));
	if (path)
		epf_stat_state(b, EPF_STAT_LANE_PATH, path, now_ns);
	epf_stat_set(b, EPF_STAT_LANE_RETRANSMITS, 17);
	epf_stat_set(b, EPF_STAT_LANE_UNSENT_BYTES, 4711);
	epf_stat_set(b, EPF_STAT_LANE_RTT_US, 2500);
}

/*
 * Ranks of other hosts, two of each node, from 2 on: what waits for one of node 4 follows from what the NIC knows of the connections there, whatever it is; what waits for one of node
 * 2, whose connections are fine, or of node 6, of which nothing is known, does not.
 */
static void a_bad_connection_is_a_cause(void **state)
{
	static const struct {
		unsigned path;
		const char *word, *text;
	} cases[] = {
		{ EPF_STATS_PATH_LOSSY, "packets-lost",
		  "17 segments were sent again, round trip 2.5 ms" },
		{ EPF_STATS_PATH_FULL, "peer-buffer-full",
		  "its receive buffer is full and 4711 bytes wait here" },
		{ EPF_STATS_PATH_SILENT, "host-silent", "the host of rank 4 acknowledges nothing" },
		{ EPF_STATS_PATH_NO_ANSWER, "no-answer",
		  "does not answer connections: a firewall drops them" },
		{ EPF_STATS_PATH_REFUSED, "refused", "refuses connections: its process has ended" },
		{ EPF_STATS_PATH_NO_ROUTE, "no-route", "no way to the host of rank 4" },
		{ EPF_STATS_PATH_UNCONNECTED, "not-connected",
		  "the node of rank 4 is not connected" },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct epf_stats *st = instance(0, "a");
		struct waits *w;

		rank(st, 0, 5, 2, 0);
		rank(st, 1, 3, 2, 0);
		rank(st, 7, 6, 2, 0);
		ring(st, 0, 4, EPF_STATS_WAIT_SENT, 3);
		lane(st, 0, 2, EPF_STATS_PATH_FINE, 0);
		lane(st, 1, 4, EPF_STATS_PATH_FINE, 0);
		lane(st, 2, 4, cases[i].path, 1);
		lane(st, 3, 6, 0, 0);
		w = graph();
		assert_int_equal(nth(w, 0)->who, WAITS_FACT);
		assert_string_equal(waits_reason_word(nth(w, 0)->reason), cases[i].word);
		assert_int_equal(nth(w, 0)->rank, 4);
		assert_int_equal(nth(w, 0)->consequences, 3); /* rank, ring, lane */
		assert_non_null(strstr(text(w, nth(w, 0)), cases[i].text));
		assert_ptr_equal(cause_of(w, entry(w, WAITS_RANK, 0)), nth(w, 0));
		assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 1))->reason, WAITS_R_UNSEEN);
		waits_free(w);
		end_all();
	}
}

/* 0 waits for 1, 1 for 2 of the other instance, whose process is stopped: that is the cause of both. */
static void a_chain_ends_at_a_stopped_process(void **state)
{
	struct epf_stats *a = instance(0, "a"), *b = instance(1, "b");
	pid_t pid = fork();
	struct waits *w;
	int status;

	if (pid == 0)
		for (;;)
			pause();
	kill(pid, SIGSTOP);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	rank(a, 0, 1, 3, 0);
	rank(a, 1, 2, 4, 0);
	rank(b, 2, UINT32_MAX, 0, (uint64_t)pid);
	w = graph();
	assert_int_equal(w->n_jobs, 1); /* the same run of the job */
	assert_int_equal(w->job[0].ranks, 3);
	assert_int_equal(w->n_entries, 3);
	assert_int_equal(nth(w, 0)->reason, WAITS_R_STOPPED);
	assert_int_equal(nth(w, 0)->rank, 2);
	assert_true(nth(w, 0)->is_cause);
	assert_int_equal(nth(w, 0)->consequences, 2);
	assert_int_equal(nth(w, 0)->age_ns, 4 * SECOND);
	assert_ptr_equal(cause_of(w, entry(w, WAITS_RANK, 0)), nth(w, 0));
	assert_int_equal(w->entry[entry(w, WAITS_RANK, 0)->follows].rank, 1);
	assert_string_equal(text(w, entry(w, WAITS_RANK, 1)),
			    "rank 1 waits for signal 11 of rank 2 for 4.0 s: it is 4, wanted 5");
	assert_non_null(strstr(text(w, nth(w, 0)), "rank 2 (process "));
	assert_non_null(strstr(text(w, nth(w, 0)), "instance b) is stopped"));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	/* And when it has ended it is that. */
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(nth(w, 0)->reason, WAITS_R_ENDED);
	waits_free(w);
	end_all();
}

static void a_busy_rank_and_one_that_is_elsewhere(void **state)
{
	struct epf_stats *st = instance(0, "a");
	struct waits *w;

	rank(st, 0, 1, 2, 0);
	rank(st, 1, UINT32_MAX, 0, (uint64_t)getpid());
	rank(st, 2, 7, 1, 0);
	w = graph();
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 0))->reason, WAITS_R_BUSY);
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 0))->rank, 1);
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 2))->reason, WAITS_R_UNSEEN);
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 2))->rank, 7);
	waits_free(w);
	end_all();
}

static void ranks_that_wait_for_each_other(void **state)
{
	struct epf_stats *st = instance(0, "a");
	struct waits *w;

	rank(st, 0, 1, 2, 0);
	rank(st, 1, 2, 2, 0);
	rank(st, 2, 0, 2, 0);
	rank(st, 3, 2, 2, 0); /* waits for one of them */
	w = graph();
	assert_int_equal(nth(w, 0)->reason, WAITS_R_CYCLE);
	assert_int_equal(nth(w, 0)->consequences, 4);
	for (uint32_t r = 0; r < 4; r++)
		assert_ptr_equal(cause_of(w, entry(w, WAITS_RANK, r)), nth(w, 0));
	waits_free(w);
	end_all();
}

/* 2 waits for 0, whose ring is stalled towards 3: for a link of instance b, or for nothing that is seen. */
static void a_signal_behind_a_ring(bool down)
{
	struct epf_stats *a = instance(0, "a"), *b = instance(1, "b");
	struct waits *w;

	nic(a, 1, 1);
	nic(b, 2, down ? 1 : 2);
	rank(a, 0, UINT32_MAX, 0, 0);
	rank(b, 2, 0, 2, 0);
	rank(b, 3, 0, 0, 0);
	ring(a, 0, 3, EPF_STATS_WAIT_CREDIT, 3);
	w = graph();
	assert_int_equal(w->entry[entry(w, WAITS_RANK, 2)->follows].who, WAITS_RING);
	if (down) {
		assert_int_equal(nth(w, 0)->reason, WAITS_R_LINK_DOWN);
		assert_int_equal(nth(w, 0)->consequences, 2);
		assert_string_equal(text(w, nth(w, 0)), "1 of 2 links of instance b are down");
	} else {
		assert_int_equal(nth(w, 0)->who, WAITS_RING);
		assert_true(nth(w, 0)->is_cause);
		assert_string_equal(
			text(w, nth(w, 0)),
			"ring 0 of rank 0 is stalled for 3.0 s: no credit to send to rank 3, "
			"stream 3; 7 commands deferred; 256 of 256 slots full");
	}
	waits_free(w);
	end_all();
}

static void rings_and_links(void **state)
{
	a_signal_behind_a_ring(true);
	a_signal_behind_a_ring(false);
}

static void an_engine_without_a_sign_of_life(void **state)
{
	struct epf_stats *a = instance(0, "a"), *b = instance(1, "b");
	struct waits *w;

	rank(a, 0, 2, 9, 0);
	rank(b, 2, UINT32_MAX, 0, 0);
	epf_stats_beat(b, now_ns - 2 * EPF_STATS_STALE_NS);
	w = graph();
	assert_int_equal(nth(w, 0)->reason, WAITS_R_ENGINE_STALE);
	assert_int_equal(nth(w, 0)->consequences, 1);
	waits_free(w);
	end_all();
}

/* Leaves a file behind as a killed process does: rank 5 of this job waits for rank 6. */
static void die_with(const char *name, const char *job_name, uint64_t id)
{
	pid_t pid = fork();

	if (pid == 0) {
		rank(instance_of(3, name, job_name, id), 5, 6, 2, 0);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	now_ns = clock_ns();
}

static void forget_dead(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s.stats", dir, name);
	assert_int_equal(unlink(path), 0);
}

/* Jobs have no names or the same ones: ranks of one number do not meet, and what is stalled in one job says nothing of another. */
static void unnamed_jobs_are_apart(void **state)
{
	struct epf_stats *a = instance_of(0, "a", "-", 7), *b = instance_of(1, "b", "-", 8);
	struct epf_stats *c = instance_of(2, "c", "-", 0);
	struct waits *w;

	rank(a, 0, 1, 3, 0);
	rank(b, 1, UINT32_MAX, 0, 0);
	rank(c, 1, UINT32_MAX, 0, 0);
	w = graph();
	assert_int_equal(w->n_jobs, 3);
	for (uint32_t j = 0; j < 3; j++)
		assert_int_equal(w->job[j].ranks, 1);
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 0))->reason, WAITS_R_UNSEEN);
	assert_int_equal(w->job[0].entries, 1);
	assert_int_equal(w->job[1].entries + w->job[2].entries, 0);
	waits_free(w);
	end_all();
}

/* Two instances that have not joined are no job, and neither are the same ranks of another file. */
static void engines_without_a_number_are_alone(void **state)
{
	struct epf_stats *a = instance_of(0, "a", "train", 0);
	struct epf_stats *b = instance_of(1, "b", "train", 0);
	struct waits *w;

	rank(a, 0, 1, 0, 0);
	rank(b, 1, 0, 0, 0);
	w = graph();
	assert_int_equal(w->n_jobs, 2);
	waits_free(w);
	end_all();
}

/* Of a job that has ended nothing is said unless somebody asks, whatever it was called. */
static void the_dead_are_left_out(void **state)
{
	struct waits *w;
	char line[80];

	die_with("dead", "-", 7);
	die_with("old", "-", 0);
	w = graph();
	assert_int_equal(w->n_left_out, 2);
	assert_int_equal(w->n_jobs + w->n_ranks + w->n_entries, 0);
	assert_string_equal(waits_nobody(w->n_left_out, line, sizeof(line)),
			    "no instance is alive, 2 have exited: see --dead");
	assert_string_equal(waits_nobody(1, line, sizeof(line)),
			    "no instance is alive, 1 has exited: see --dead");
	rank(instance_of(0, "a", "-", 8), 5, 6, 2, 0);
	assert_true(waits_add_dir(w, dir) >= 0);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->n_left_out, 2);
	assert_int_equal(w->n_jobs, 1);
	assert_int_equal(w->n_ranks, 1);
	assert_int_equal(w->job[0].entries, 1);
	w->with_dead = true;
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->n_left_out, 0);
	assert_int_equal(w->n_jobs, 3);
	waits_free(w);
	end_all();
	forget_dead("dead");
	forget_dead("old");
}

/* A rank that was killed is why another one of its job waits; that is all that is said of it. */
static void who_waits_for_the_dead_is_told(void **state)
{
	struct epf_stats *a;
	struct waits *w;

	die_with("dead", "-", 7);
	a = instance_of(0, "a", "-", 7);
	rank(a, 0, 1, 0, 0);
	w = graph();
	assert_int_equal(w->job[0].ranks, 1);
	assert_int_equal(w->n_entries, 0); /* nobody waits for it */
	assert_int_equal(w->job[0].causes, 0);
	rank(a, 1, 5, 2, 0);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->n_jobs, 1);
	assert_int_equal(w->n_left_out, 1);
	assert_int_equal(w->n_entries, 2);
	assert_int_equal(nth(w, 0)->reason, WAITS_R_ENGINE_ENDED);
	assert_int_equal(nth(w, 0)->consequences, 1);
	assert_non_null(strstr(text(w, nth(w, 0)), "the engine dead (process "));
	waits_free(w);
	/* It rejoined elsewhere: it is not waited for in vain. */
	rank(a, 5, UINT32_MAX, 0, (uint64_t)getpid());
	w = graph();
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 1))->reason, WAITS_R_BUSY);
	w->with_dead = true;
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->job[0].ranks, 3);
	waits_free(w);
	end_all();
	forget_dead("dead");
}

static void last_words_of_the_dead(void **state)
{
	struct waits *w;

	die_with("dead", "j", 99);
	w = waits_new();
	w->with_dead = true;
	assert_int_equal(waits_add_dir(w, dir), 1);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(entry(w, WAITS_RANK, 5)->reason, EPF_STATS_WAIT_SIGNAL);
	assert_int_equal(entry(w, WAITS_FACT, WAITS_NONE)->reason, WAITS_R_ENGINE_ENDED);
	/* Begun again under the same name: the same model reads the new one. */
	rank(instance(0, "dead"), 0, 1, 2, 0);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(entry(w, WAITS_RANK, 0)->peer, 1);
	assert_int_equal(w->n_ranks, 1);
	end_all();
	/* It ends: there is nothing, and that is no failure. */
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->n_ranks, 0);
	assert_null(w->instance[0].reader);
	waits_free(w);
}

/* Every file that a broken one can be: an instance with a reason, and the others are read. */
static void broken_files(void **state)
{
	static const char *const names[] = { "cut", "noise", "empty" };
	struct epf_stats *st = instance(0, "a");
	uint8_t *bytes = malloc(1 << 20);
	char path[128];
	struct waits *w;
	ssize_t n;
	int fd;

	rank(st, 0, 1, 2, 0);
	fd = open(epf_stats_path(st), O_RDONLY);
	n = read(fd, bytes, 1 << 20);
	close(fd);
	assert_true(n > 4096);
	for (unsigned i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s.stats", dir, names[i]);
		fd = open(path, O_WRONLY | O_CREAT, 0600);
		memset(bytes, i == 1 ? 0x5a : bytes[0], i == 1 ? 4096 : 1);
		assert_true(write(fd, bytes, i == 2 ? 0 : i == 1 ? 4096 : (size_t)n / 2) >= 0);
		close(fd);
	}
	w = graph();
	assert_int_equal(w->n_instances, 4);
	assert_int_equal(w->n_ranks, 1);
	for (uint32_t i = 0; i < w->n_instances; i++)
		assert_int_equal(w->instance[i].reader == NULL, w->instance[i].error[0] != 0);
	waits_free(w);
	for (unsigned i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s.stats", dir, names[i]);
		unlink(path);
	}
	free(bytes);
	end_all();
}

/* A writer that lies: ranks, times and reasons of any value. Nothing is believed beyond what it says. */
static void any_numbers(void **state)
{
	struct epf_stats *st = instance(0, "a");
	char line[512];
	struct waits *w;

	for (uint32_t i = 0; i < 8; i++) {
		struct epf_stats_block *b = rank(st, i % 2, UINT32_MAX - 1, 2, UINT64_MAX - i);

		epf_stat_state(b, EPF_STAT_RANK_WAIT, i + 6, i & 1 ? 0 : UINT64_MAX);
		epf_stat_set(b, EPF_STAT_RANK_WAIT_RANK, i & 2 ? UINT64_MAX : i);
		epf_stat_set(b, EPF_STAT_RANK_ACTIVE_NS, UINT64_MAX);
		b = ring(st, i, UINT32_MAX - i, 15, 2);
		epf_stat_set(b, EPF_STAT_RING_SLOTS, UINT64_MAX);
	}
	w = graph();
	assert_true(w->n_entries > 0);
	for (uint32_t i = 0; i < w->n_entries; i++) {
		assert_true(strlen(waits_sentence(w, &w->entry[i], line, sizeof(line))) > 0);
		assert_true(strlen(waits_sentence(w, &w->entry[i], line, 8)) == 7);
	}
	waits_free(w);
	end_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_DIR(nothing_waits),
		IN_DIR(a_kernel_waits_for_kernels_of_a_rank),
		IN_DIR(a_chain_ends_at_a_stopped_process),
		IN_DIR(a_busy_rank_and_one_that_is_elsewhere),
		IN_DIR(a_bad_connection_is_a_cause),
		IN_DIR(ranks_that_wait_for_each_other),
		IN_DIR(rings_and_links),
		IN_DIR(an_engine_without_a_sign_of_life),
		IN_DIR(unnamed_jobs_are_apart),
		IN_DIR(engines_without_a_number_are_alone),
		IN_DIR(the_dead_are_left_out),
		IN_DIR(who_waits_for_the_dead_is_told),
		IN_DIR(last_words_of_the_dead),
		IN_DIR(broken_files),
		IN_DIR(any_numbers),
	};

	return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}
