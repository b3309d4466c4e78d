/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of embedded ranks. If a rank is killed, every survivor gets an error with its number within a bounded time, masks it and goes on
 * with the others. A rank stopped for less than the timeout is not noticed. Two jobs of one user on one machine do not interfere: each
 * sees its own bytes and signals only, their files have different names and are gone afterwards, nothing appears in /dev/shm, a rank at
 * the wrong job's rendezvous is refused, and one job survives the death of the other. A rank that is alone reports which rank it waits for,
 * and where; also as a client of a daemon.
 */
#include "fabric/base/clock.h"
#include "fabric/nic/nic.h"
#include "tests/proc/svc_job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

enum { VICTIM = 2, BEFORE = 200, AFTER = 200, RANKS = 2, ROUNDS = 300 };

enum { W_KILLED_NS = 1, W_LAST_ROUND = 2, W_DONE = 3 }; /* of the page */

static char dir[] = "/tmp/epf-test-jobs-XXXXXX", stats_dir[64]; /* a killed rank leaves a file */

static const char *const defaults[] = { stats_dir, NULL };
static const char *const short_timeouts[] = { stats_dir, "peer-timeout=1s", "emu-retry-timeout=1s",
					      NULL };
static const char *const long_timeouts[] = { stats_dir, "peer-timeout=5s", "emu-retry-timeout=5s",
					     NULL };
static const char *const unordered[] = { stats_dir,
					 "peer-timeout=1s",
					 "emu-retry-timeout=1s",
					 "emu-order=unordered",
					 "emu-delay=20us",
					 "emu-reorder=0.05",
					 "emu-duplicate=0.05",
					 "emu-drop=0.02",
					 NULL };

/* Over libfabric, where a lost connection, or no progress for so long, ends a lane. */
static const char *const ofi[] = { stats_dir,        "nic=ofi",         "ofi-provider=tcp",
				   "ofi-timeout=1s", "peer-timeout=1s", NULL };

/* How a rank is killed in a_killed_rank_is_named*. */
static const struct {
	const char *name;
	const char *const *settings;
} kills[] = { { "killed", short_timeouts },
	      { "killed-unordered", unordered },
	      { "killed-ofi", ofi } };

static struct job job[2];

static void start(struct job *j, const char *name, uint32_t world, const char *const *settings,
		  void (*body)(struct job_rank *r))
{
	struct job_plan plan = { .name = name,
				 .world = world,
				 .tag = 1 + (uint64_t)(j - job),
				 .settings = settings,
				 .body = body,
				 .flush_every = UINT32_MAX };

	assert_int_equal(job_fork(j, &plan), 0);
}

static int stop(void **state)
{
	job_end(&job[0]);
	job_end(&job[1]);
	return 0;
}

/* After the error: checks the state and a command to the lost rank, then plays without it. */
static void go_on(struct job_rank *r)
{
	struct epf_ring_failure failure;
	uint64_t *last = &r->page->words[W_LAST_ROUND];
	struct epf_ring *ring;

	JOB_CHECK(r, epf_peer_state(r->ep, VICTIM) == -ECONNRESET);
	JOB_CHECK(r, epf_peer_mask(r->ep, VICTIM) == 0);
	r->masked[VICTIM] = true;
	JOB_CHECK(r, epf_wait_retired(r->ring, epf_ring_pushed(r->ring), job_wait_ns()) == 0);
	JOB_CHECK(r, epf_ring_open(r->ep, NULL, &ring) == 0);
	JOB_CHECK(r, epf_put_signal(ring, VICTIM, 0, 0, 0, 0, 64, 0, 1, 0) == 0);
	JOB_CHECK(r, epf_wait_retired(ring, 1, job_wait_ns()) == 0);
	JOB_CHECK(r, epf_ring_error(ring, &failure) == 1);
	JOB_CHECK(r, failure.rank == VICTIM && failure.status == EPF_S_PEER_DOWN);
	/* Survivors are in the same round or one apart; rank 0 chooses the last one. */
	if (r->me == 0)
		job_set(last, r->round + AFTER);
	JOB_CHECK(r, job_await(last, 1, job_ms(JOB_WAIT_MS)) == 0);
	while (r->round < job_get(last))
		JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
	for (uint32_t p = 0; p < VICTIM; p++)
		if (p != r->me)
			JOB_CHECK(r, epf_peer_state(r->ep, p) != -ECONNRESET);
}

static void survive(struct job_rank *r)
{
	job_rank_enter(r);
	job_rank_told(r, job_rank_until_error(r));
	JOB_CHECK(r, r->report->rc == -ECONNRESET);
	JOB_CHECK(r, strstr(r->report->text, "rank 2") != NULL);
	JOB_CHECK(r, job_get(&r->page->words[W_KILLED_NS]) != 0);
	go_on(r);
	job_rank_leave(r);
}

static void kill_one(void **state)
{
	uintptr_t kind = (uintptr_t)*state;
	const char *name = kills[kind].name;
	uint64_t worst = 0, killed;

	start(&job[0], name, 3, kills[kind].settings, survive);
	assert_int_equal(job_reach(&job[0], BEFORE, job_ms(JOB_WAIT_MS)), 0);
	killed = epf_now_ns();
	job_set(&job[0].page->words[W_KILLED_NS], killed);
	job_kill(&job[0], VICTIM);
	assert_int_equal(job_wait(&job[0], 0, job_ms(JOB_WAIT_MS)), 0);
	for (uint32_t i = 0; i < VICTIM; i++) {
		uint64_t notified = job[0].page->rank[i].notified_ns - killed;

		worst = notified > worst ? notified : worst;
	}
	printf("# %s: notified after %.0f ms\n", name, (double)worst / 1e6);
}

static void a_short_stop_is_no_error(void **state)
{
	start(&job[0], "stopped", 3, long_timeouts, job_play);
	assert_int_equal(job_reach(&job[0], BEFORE / 4, job_ms(JOB_WAIT_MS)), 0);
	for (int i = 0; i < 3; i++) {
		kill(job[0].pid[i], SIGSTOP);
		usleep(400 * 1000);
		kill(job[0].pid[i], SIGCONT);
		usleep(10 * 1000);
	}
	assert_int_equal(job_more(&job[0], AFTER), 0);
	assert_int_equal(job_finish(&job[0]), 0);
}

static void play_rounds(struct job_rank *r)
{
	job_rank_enter(r);
	snprintf(r->report->text, sizeof(r->report->text), "%s", epf_stats_file(r->ep));
	while (r->round < ROUNDS)
		JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	/* One signal per round and peer, and none from elsewhere. */
	for (uint32_t s = 0; s < epf_signal_count(r->ep); s++)
		JOB_CHECK(r,
			  epf_signal_value(r->ep, s) == (s < r->world && s != r->me ? ROUNDS : 0));
	job_count(&r->page->words[W_DONE]);
	JOB_CHECK(r, job_await(&r->page->end, 1, job_ms(JOB_WAIT_MS)) == 0);
	job_rank_leave(r);
}

/* A rank of job b at job a's rendezvous. */
static void intrude(struct job *a)
{
	struct epf_boot_opts o = { .size = sizeof(o),
				   .rank = 0,
				   .world = RANKS,
				   .rendezvous = a->page->rendezvous,
				   .job = "b",
				   .timeout_ns = job_wait_ns() };
	struct epf_boot *boot;

	assert_int_equal(job_await(&a->page->open, 1, job_ms(JOB_WAIT_MS)), 0);
	assert_true(epf_boot_tcp_open(&o, &boot) < 0);
	assert_non_null(strstr(epf_last_error(), "job"));
	printf("# refused: %s\n", epf_last_error());
}

/* Returns how many mappings of files in /dev/shm a process has. */
static unsigned maps_shm(pid_t pid)
{
	char path[64], line[512];
	unsigned n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "r");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "/dev/shm/") != NULL;
	fclose(f);
	return n;
}

static void two_jobs_do_not_meet(void **state)
{
	unsigned files = proc_files(dir, ".stats", NULL, 0);

	start(&job[0], "a", RANKS, defaults, play_rounds);
	start(&job[1], "b", RANKS, defaults, play_rounds);
	intrude(&job[0]);
	for (int j = 0; j < 2; j++)
		assert_int_equal(job_await(&job[j].page->words[W_DONE], RANKS, job_ms(JOB_WAIT_MS)),
				 0);
	/* All four are done and still running: they have four files, and none in /dev/shm. */
	assert_int_equal(proc_files(dir, ".stats", NULL, 0), files + 2 * RANKS);
	for (unsigned i = 0; i < 2 * RANKS; i++)
		for (unsigned k = 0; k < i; k++)
			assert_string_not_equal(job[i / RANKS].page->rank[i % RANKS].text,
						job[k / RANKS].page->rank[k % RANKS].text);
	for (unsigned i = 0; i < 2 * RANKS; i++)
		assert_int_equal(maps_shm(job[i / RANKS].pid[i % RANKS]), 0);
	for (int j = 0; j < 2; j++)
		assert_int_equal(job_finish(&job[j]), 0);
	assert_int_equal(proc_files(dir, ".stats", NULL, 0), files);
}

static void one_job_dies_the_other_lives(void **state)
{
	start(&job[0], "a", RANKS, short_timeouts, play_rounds);
	start(&job[1], "b", RANKS, short_timeouts, play_rounds);
	assert_int_equal(job_reach(&job[0], 10, job_ms(JOB_WAIT_MS)), 0);
	for (uint32_t i = 0; i < RANKS; i++)
		job_kill(&job[0], i);
	assert_int_equal(job_await(&job[1].page->words[W_DONE], RANKS, job_ms(JOB_WAIT_MS)), 0);
	assert_int_equal(job_finish(&job[1]), 0);
}

/* Reserves a loopback port while the socket is open; the port refuses connections until a rank listens. */
static int reserve_port(char *where, size_t size)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	snprintf(where, size, "127.0.0.1:%u", ntohs(at.sin_port));
	return fd;
}

/* Started with three environment variables, as in the README; stderr goes to a file. */
static void be_alone(struct job_rank *r)
{
	struct epf_options o;
	char rank[8], log[96];

	snprintf(rank, sizeof(rank), "%u", r->me);
	snprintf(log, sizeof(log), "%s/log", dir);
	setenv("EPF_WORLD_SIZE", "2", 1);
	setenv("EPF_RANK", rank, 1);
	setenv("EPF_RENDEZVOUS", r->plan->arg, 1);
	unsetenv("EPF_LOG");
	JOB_CHECK(r, freopen(log, "w", stderr) != NULL);
	epf_options_init(&o);
	o.settings = r->plan->client[r->me];
	if (epf_open(&o, &r->ep) == 0)
		(void)epf_join(r->ep, NULL);
	JOB_CHECK(r, false);
}

/* A lone rank must write the words and its address. */
static void expect_notice(uint32_t rank, const char *const *settings, const char *words)
{
	uint64_t deadline = epf_now_ns() + job_wait_ns();
	char where[64], log[96], text[4096] = "";
	struct job_plan plan = { .name = "alone",
				 .world = 2,
				 .local = 1u << rank,
				 .rendezvous = where,
				 .body = be_alone,
				 .arg = where };
	int held = reserve_port(where, sizeof(where));

	plan.client[rank] = settings;
	snprintf(log, sizeof(log), "%s/log", dir);
	assert_int_equal(job_fork(&job[0], &plan), 0);
	while (!(strstr(text, words) && strstr(text, where)) && epf_now_ns() < deadline) {
		FILE *f = fopen(log, "r");

		text[f ? fread(text, 1, sizeof(text) - 1, f) : 0] = 0;
		if (f)
			fclose(f);
		usleep(10000);
	}
	job_end(&job[0]);
	close(held);
	unlink(log);
	if (!strstr(text, words) || !strstr(text, where))
		fail_msg("rank %u did not write \"%s\" and \"%s\": \"%s\"", rank, words, where,
			 text);
	printf("# %s", text);
}

static void a_lone_rank_reports(void **state)
{
	struct daemons d;

	assert_int_equal(daemons_start(&d, 1, NULL), 0);
	for (unsigned service = 0; service < 2; service++) {
		const char *const *settings = service ? daemons_client(&d, 0) : defaults;

		expect_notice(0, settings, "waiting for rank 1 of 2");
		expect_notice(1, settings, "rank 1 of 2: waiting for the rendezvous at ");
	}
	assert_int_equal(daemons_stop(&d), 0);
}

static int make_dir(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(stats_dir, sizeof(stats_dir), "stats-dir=%s", dir);
	return 0;
}

static int remove_dir(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		JOB_CASE(a_killed_rank_is_named, kill_one, NULL, NULL, stop),
		JOB_CASE(a_killed_rank_is_named_unordered, kill_one, 1, NULL, stop),
#ifdef EPF_WITH_OFI
		JOB_CASE(a_killed_rank_is_named_ofi, kill_one, 2, NULL, stop),
#endif
		cmocka_unit_test_teardown(a_short_stop_is_no_error, stop),
		cmocka_unit_test_teardown(two_jobs_do_not_meet, stop),
		cmocka_unit_test_teardown(one_job_dies_the_other_lives, stop),
		cmocka_unit_test_teardown(a_lone_rank_reports, stop),
	};

	return cmocka_run_group_tests_name("jobs", tests, make_dir, remove_dir);
}
