/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between two daemons are cut and restored: one of two, 40 times (20 under a sanitizer), at random times and ends, while four ranks exchange checked
 * bytes. Nothing is wrong or missing, work is replayed, duplicates are dropped. If both links are cut, every rank gets an error that
 * names a rank of the other node, long before peer-timeout. Once they are restored, all ranks call epf_reconnect and the job goes on.
 */
#include "fabric/base/clock.h"
#include "tests/proc/svc_job.h"
#include "tests/proc/svc_raw.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/*
 * One link is cut TURN times, then everything recovers and the other link's turn begins. A lane whose link is cut at this end fails after
 * CUT_MS. Without heartbeats from the other end it fails after RETRY_MS, which must exceed the time for which a busy machine may not run
 * a daemon, or the good link fails too. Cuts last up to three times CUT_MS.
 */
enum { WORLD = 4, CUTS = 40, CUTS_LONG = 2000, TURN = 10, CUT_MS = 20, RETRY_MS = 1000 };

enum { W_CUT_NS = 1, W_ALL_TOLD = 2, W_RESTORED = 3, W_TRIED = 4 };

#ifdef __SANITIZE_ADDRESS__
enum { FEW = 1 };
#else
enum { FEW = 0 };
#endif

static char retry[40];

#define COMMON                                                                \
 "emu-links=2", "lanes-per-peer=2", "service-grace=100ms", "peer-timeout=4s", \
	 "emu-link-timeout=20ms", retry

static const char *const ordered[] = { COMMON, NULL };
/* Links are found to be cut by themselves: peer-timeout, the last value given, ends after the test gives up. */
static const char *const patient[] = { COMMON, "peer-timeout=1h", NULL };
static const char *const unordered[] = { COMMON,
					 "emu-order=unordered",
					 "emu-delay=20us",
					 "emu-reorder=0.02",
					 "emu-duplicate=0.02",
					 "emu-drop=0.01",
					 NULL };

static const struct form {
	const char *cut, *back; /* names of the jobs */
	const char *const *settings;
	bool duplicates; /* must occur */
} forms[] = { { "link-ordered", "link-back", ordered, false },
	      { "link-unordered", "link-back-unordered", unordered, true } };

static struct daemons daemons;
static struct job job;
static uint64_t random_state;

/* Where both links are cut every error waits for it: under a sanitizer it is twice as long, where limits are five times as long. */
static void set_retry(bool both)
{
	snprintf(retry, sizeof(retry), "emu-retry-timeout=%ums",
		 job_ms(both && FEW ? RETRY_MS * 2 / 5 : RETRY_MS));
}

static void start(const char *name, const char *const *settings, void (*body)(struct job_rank *r),
		  void *arg)
{
	struct job_plan plan = { .name = name,
				 .world = WORLD,
				 .tag = random_state & 0xff,
				 .body = body,
				 .arg = arg,
				 .daemons = &daemons,
				 .alarm_s = job_long() ? 3000 : 300 };

	set_retry(body != job_play);
	assert_int_equal(daemons_start(&daemons, 2, settings), 0);
	assert_int_equal(job_fork(&job, &plan), 0);
	assert_int_equal(job_reach(&job, 20, job_ms(JOB_WAIT_MS)), 0);
}

static int stop(void **state)
{
	bool failed = false;

	for (unsigned i = 0; i < WORLD && job.page; i++)
		failed |= job_get(&job.page->rank[i].failed) != 0;
	if (failed)
		daemons_print_logs(&daemons);
	job_end(&job);
	return daemons_stop(&daemons);
}

static void wait_random(unsigned least_ms, unsigned most_ms)
{
	usleep(1000 * (least_ms + (useconds_t)(job_random(&random_state) % (most_ms - least_ms))));
}

static void wait_cut(void)
{
	wait_random(0, CUT_MS * 3);
}

static uint64_t sum_of(unsigned counter)
{
	/* Ranks 0 and 2: one of each node. */
	return job.page->rank[0].counter[counter] + job.page->rank[2].counter[counter];
}

static void set_both(unsigned end, const char *name, bool up)
{
	for (unsigned link = 0; link < 2; link++)
		assert_int_equal(raw_link(daemons_socket(&daemons, end), name, link, up), 1);
}

static unsigned times(void)
{
	return job_long() ? CUTS_LONG : FEW || job_ms(1) > 1 ? CUTS / 2 : CUTS;
}

static void cut_and_restore(void **state)
{
	const struct form *form = *state;
	const char *name = form->cut;
	unsigned cuts = times() / (form->duplicates ? 1 : 2);
	uint64_t begun = epf_now_ns();

	start(name, form->settings, job_play, NULL);
	for (unsigned i = 0; i < cuts; i++) {
		unsigned end = (unsigned)(job_random(&random_state) & 1), link = i / TURN & 1;

		/* Recover: with no lane left, the node would rightly be lost. */
		if (i % TURN == 0) {
			usleep(job_ms(500) * 1000);
			assert_int_equal(job_more(&job, 50), 0);
		}
		assert_int_equal(raw_link(daemons_socket(&daemons, end), name, link, false), 1);
		wait_cut();
		assert_int_equal(raw_link(daemons_socket(&daemons, end), name, link, true), 1);
		wait_random(0, 20);
	}
	assert_int_equal(job_more(&job, 50), 0);
	assert_int_equal(job_finish(&job), 0);
	printf("# %s: a link cut %u times in %.1f s, %llu rounds, 0 wrong, %llu lane errors, %llu replays, %llu duplicates dropped\n",
	       name, cuts, (double)(epf_now_ns() - begun) / 1e9,
	       (unsigned long long)job_get(&job.page->rank[0].rounds),
	       (unsigned long long)sum_of(JOB_LANE_ERRORS), (unsigned long long)sum_of(JOB_REPLAYS),
	       (unsigned long long)sum_of(JOB_DUPLICATES));
	assert_true(sum_of(JOB_LANE_ERRORS) > 0);
	assert_true(sum_of(JOB_REPLAYS) > 0);
	assert_true(!form->duplicates || sum_of(JOB_DUPLICATES) > 0);
	assert_int_equal(sum_of(JOB_ARRIVALS_REFUSED), 0);
}

/*
 * After some rounds sends to its counterpart on the other node until that fails. Each rank has something under way at any time: a node that only
 * waits for the other one learns of a cut by heartbeats alone, and `patient` has none.
 */
static void until_error(struct job_rank *r)
{
	int rc = 0;

	job_rank_enter(r);
	while (job_get(&r->report->rounds) < 20)
		JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
	while (!rc) {
		rc = epf_put(r->ring, (r->me + 2) % WORLD, 0, 0, 0, 0, 64, 0);
		if (!rc)
			rc = epf_flush(r->ring, 0, job_wait_ns());
	}
	job_rank_told(r, rc);
	JOB_CHECK(r, job_await(&r->page->words[W_ALL_TOLD], 1, job_ms(JOB_WAIT_MS)) == 0);
	job_rank_leave(r);
}

static void both_links(void **state)
{
	uint64_t worst = 0, cut;

	start("link-both", patient, until_error, NULL);
	cut = epf_now_ns();
	set_both(0, "link-both", false);
	for (unsigned i = 0; i < WORLD; i++) {
		struct job_report *rep = &job.page->rank[i];
		char want[2][16];
		uint64_t notified;

		assert_int_equal(job_await(&rep->notified_ns, 1, job_ms(JOB_WAIT_MS)), 0);
		notified = rep->notified_ns - cut;
		worst = notified > worst ? notified : worst;
		for (unsigned k = 0; k < 2; k++)
			snprintf(want[k], sizeof(want[k]), "rank %u", (1 - i / 2) * 2 + k);
		if (!strstr(rep->text, want[0]) && !strstr(rep->text, want[1]))
			print_error("rank %u got %lld: %s\n", i, (long long)rep->rc, rep->text);
		assert_true(rep->rc == -ECONNRESET ||
			    rep->rc == -EIO); /* from a flush: commands failed */
		assert_true(strstr(rep->text, want[0]) || strstr(rep->text, want[1]));
	}
	job_set(&job.page->words[W_ALL_TOLD], 1);
	assert_int_equal(job_wait(&job, 0, job_ms(JOB_WAIT_MS)), 0);
	printf("# link-both: both links cut: every rank notified after %.0f ms at most: %s\n",
	       (double)worst / 1e6, job.page->rank[0].text);
}

/* After some rounds ranks 0 and 2 send to each other until a call fails and leave at once; the others wait for them at a barrier. */
static void until_left(struct job_rank *r)
{
	int rc = 0;

	job_rank_enter(r);
	while (job_get(&r->report->rounds) < 20)
		JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
	while (!rc && r->me % 2 == 0) {
		rc = epf_put(r->ring, 2 - r->me, 0, 0, 0, 0, 64, 0);
		if (!rc)
			rc = epf_flush(r->ring, 0, job_wait_ns());
	}
	if (!rc)
		rc = epf_barrier(r->ep);
	job_rank_told(r, rc);
	job_rank_leave(r);
}

/* A rank that waits for ranks that left because they lost each other gets that loss as its error, not that they left. */
static void both_links_at_a_barrier(void **state)
{
	start("link-barrier", ordered, until_left, NULL);
	set_both(0, "link-barrier", false);
	assert_int_equal(job_wait(&job, 0, job_ms(JOB_WAIT_MS)), 0);
	for (unsigned i = 1; i < WORLD; i += 2) {
		struct job_report *rep = &job.page->rank[i];

		printf("# link-barrier: rank %u: %s\n", i, rep->text);
		assert_int_equal(rep->rc, -ECONNRESET);
		assert_non_null(
			strstr(rep->text, i / 2 ? "on node 0 is lost" : "on node 1 is lost"));
	}
}

/* Flushes what is left of the broken round; then all ranks begin it again. */
static void restart_round(struct job_rank *r)
{
	struct epf_ring_failure f;
	int rc = epf_flush(r->ring, EPF_ALL_RINGS, job_wait_ns());

	JOB_CHECK(r, rc == 0 || rc == -EIO);
	(void)epf_ring_error(r->ring, &f);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	for (uint32_t p = 0; p < r->world; p++)
		job_rank_renew(r, p);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
}

/* Gets the error, then reconnects: in odd cycles first without success, while the links are down. Peers of the other node are one epoch on. */
static void come_back(struct job_rank *r, uint64_t cycle)
{
	int rc = job_rank_until_error(r);

	JOB_CHECK(r, rc == -ECONNRESET || rc == -EIO);
	job_rank_told(r, rc);
	if (cycle & 1) {
		JOB_CHECK(r, epf_reconnect(r->ep) == -ENETUNREACH);
		JOB_CHECK(r, epf_peer_state(r->ep, (r->me + 2) % WORLD) == -ECONNRESET);
	}
	job_count(&r->page->words[W_TRIED]);
	JOB_CHECK(r, job_await(&r->page->words[W_RESTORED], cycle, job_ms(JOB_WAIT_MS)) == 0);
	JOB_CHECK(r, epf_reconnect(r->ep) == 0);
	for (uint32_t p = 0; p < WORLD; p++) {
		JOB_CHECK(r, epf_peer_state(r->ep, p) == 1);
		JOB_CHECK(r, epf_peer_epoch(r->ep, p) == (p / 2 == r->me / 2 ? 0 : cycle));
	}
	restart_round(r);
}

static void until_reconnected(struct job_rank *r)
{
	uint64_t cycles = (uint64_t)(uintptr_t)r->plan->arg;

	job_rank_enter(r);
	for (uint64_t cycle = 1; cycle <= cycles; cycle++)
		come_back(r, cycle);
	for (uint64_t i = 0; i < 200; i++)
		JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
	JOB_CHECK(r, job_rank_guard(r) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	job_rank_leave(r);
}

static void both_links_come_back(void **state)
{
	const struct form *form = *state;
	const char *name = form->back;
	uint64_t cycles = job_long() ? 20 : 2, begun = epf_now_ns();

	start(name, form->settings, until_reconnected, (void *)(uintptr_t)cycles);
	for (uint64_t cycle = 1; cycle <= cycles; cycle++) {
		assert_int_equal(job_more(&job, 20), 0);
		set_both(cycle & 1, name, false);
		assert_int_equal(
			job_await(&job.page->words[W_TRIED], cycle * WORLD, job_ms(JOB_WAIT_MS)),
			0);
		set_both(cycle & 1, name, true);
		job_set(&job.page->words[W_RESTORED], cycle);
	}
	assert_int_equal(job_wait(&job, 0, job_ms(JOB_WAIT_MS)), 0);
	printf("# %s: both links cut and restored %llu times in %.1f s, the job went on, %llu rounds, 0 wrong\n",
	       name, (unsigned long long)cycles, (double)(epf_now_ns() - begun) / 1e9,
	       (unsigned long long)job_get(&job.page->rank[0].rounds));
}

static int begin(void **state)
{
	uint64_t seed = job_seed(epf_now_ns() ^ (uint64_t)getpid() << 40);

	random_state = seed;
	printf("# link: EPF_SEED=%llu\n", (unsigned long long)seed);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		JOB_CASE(one_link_ordered, cut_and_restore, &forms[0], NULL, stop),
		JOB_CASE(one_link_unordered, cut_and_restore, &forms[1], NULL, stop),
		cmocka_unit_test_teardown(both_links, stop),
		cmocka_unit_test_teardown(both_links_at_a_barrier, stop),
		JOB_CASE(reconnect_ordered, both_links_come_back, &forms[0], NULL, stop),
		JOB_CASE(reconnect_unordered, both_links_come_back, &forms[1], NULL, stop),
	};

	return cmocka_run_group_tests_name("links between daemons", tests, begin, NULL);
}
