/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of waits (tools/waits/waits.h) on statistics files of its own making: what follows from what, what is the cause, what comes first;
 * rank by rank the same whoever's file says it.
 */
#include "tests/unit/tools/waits_kit.h"

#include <signal.h>
#include <sys/wait.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_DIR(nothing_waits),
		IN_DIR(a_kernel_waits_for_kernels_of_a_rank),
		IN_DIR(a_bad_connection_is_a_cause),
		IN_DIR(a_chain_ends_at_a_stopped_process),
		IN_DIR(a_busy_rank_and_one_that_is_elsewhere),
		IN_DIR(ranks_that_wait_for_each_other),
		IN_DIR(rings_and_links),
		IN_DIR(an_engine_without_a_sign_of_life),
	};

	return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}
