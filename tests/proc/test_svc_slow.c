/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Busy machines, and daemons that die while their ranks wait elsewhere. Daemons are stopped repeatedly for longer than
 * emu-retry-timeout: no rank is lost, no lane fails, every byte is right. Ranks that leave while the other node's daemon is stopped
 * count as left, not lost. Ranks in epf_barrier, or between the rounds of a join, are notified at once that their daemon is dead.
 */
#include "fabric/base/clock.h"
#include "tests/proc/svc_job.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { WORLD = 4, STOPS = 12, STOP_MS = 250 };

enum { W_WAITING = 1, W_GO = 2, W_LEFT = 3 }; /* of the page; word 0 is job_play's */

static const char *const settings[] = { "emu-retry-timeout=150ms", "peer-timeout=4s",
					"service-grace=100ms", NULL };

static struct daemons daemons;
static struct job job;

static void start(const char *name, void (*body)(struct job_rank *r))
{
	struct job_plan plan = { .name = name,
				 .world = WORLD,
				 .tag = 5,
				 .daemons = &daemons,
				 .body = body,
				 .alarm_s = 300 };

	assert_int_equal(daemons_start(&daemons, 2, settings), 0);
	assert_int_equal(job_fork(&job, &plan), 0);
}

static int stop(void **state)
{
	for (unsigned i = 0; i < daemons.n; i++)
		if (daemons.pid[i])
			kill(daemons.pid[i], SIGCONT);
	job_end(&job);
	return daemons_stop(&daemons);
}

/* Stops daemon n and waits until it has stopped. */
static void stop_daemon(unsigned n)
{
	int status;

	assert_int_equal(kill(daemons.pid[n], SIGSTOP), 0);
	assert_int_equal(waitpid(daemons.pid[n], &status, WUNTRACED), daemons.pid[n]);
	assert_true(WIFSTOPPED(status));
}

/* Stops each daemon and both at once, at random moments of the traffic. */
static void slow_daemons_lose_nobody(void **state)
{
	uint64_t seed = job_seed(epf_now_ns() % 1000000), random = seed, errors = 0;

	start("slow", job_play);
	assert_int_equal(job_reach(&job, 5, job_ms(JOB_WAIT_MS)), 0);
	for (unsigned i = 0; i < STOPS; i++) {
		unsigned who = 1 + i % 3;

		usleep(1000 * (useconds_t)(job_random(&random) % 40));
		for (unsigned n = 0; n < 2; n++)
			if (who >> n & 1)
				stop_daemon(n);
		usleep(STOP_MS * 1000);
		for (unsigned n = 0; n < 2; n++)
			if (who >> n & 1)
				assert_int_equal(kill(daemons.pid[n], SIGCONT), 0);
		assert_int_equal(job_more(&job, 3), 0);
	}
	assert_int_equal(job_finish(&job), 0);
	for (unsigned i = 0; i < WORLD; i += 2)
		errors += job.page->rank[i].counter[JOB_LANE_ERRORS];
	printf("# slow: EPF_SEED=%llu: daemons stopped %d times for %d ms, retry timeout 150 ms: %llu rounds, 0 wrong, %llu lane errors\n",
	       (unsigned long long)seed, STOPS, STOP_MS,
	       (unsigned long long)job_get(&job.page->rank[0].rounds), (unsigned long long)errors);
	assert_int_equal(errors, 0);
}

/* Ranks 0 and 1 leave while daemon 1 is stopped; 2 and 3 check their state. */
static void leave_or_look(struct job_rank *r)
{
	uint64_t deadline;
	int state;

	job_rank_enter(r);
	JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	job_count(&r->page->words[W_WAITING]);
	JOB_CHECK(r, job_await(&r->page->words[W_GO], 1, job_ms(JOB_WAIT_MS)) == 0);
	if (r->me < 2) {
		epf_close(r->ep);
		job_count(&r->page->words[W_LEFT]);
		return;
	}
	deadline = epf_now_ns() + job_wait_ns();
	for (uint32_t peer = 0; peer < 2; peer++) {
		while ((state = epf_peer_state(r->ep, peer)) == 1 && epf_now_ns() < deadline)
			usleep(1000);
		JOB_CHECK(r, state == -EPIPE);
	}
	/* The other node's engine closes now; that is no loss either. */
	JOB_CHECK(r, job_await(&r->page->words[W_GO], 2, job_ms(JOB_WAIT_MS)) == 0);
	for (uint32_t peer = 0; peer < 2; peer++)
		JOB_CHECK(r, epf_peer_state(r->ep, peer) == -EPIPE);
	epf_close(r->ep);
}

static void who_leaves_is_not_lost(void **state)
{
	start("leave", leave_or_look);
	assert_int_equal(job_await(&job.page->words[W_WAITING], WORLD, job_ms(JOB_WAIT_MS)), 0);
	stop_daemon(1);
	job_set(&job.page->words[W_GO], 1);
	assert_int_equal(job_await(&job.page->words[W_LEFT], 2, job_ms(JOB_WAIT_MS)), 0);
	usleep(600 * 1000);
	assert_int_equal(kill(daemons.pid[1], SIGCONT), 0);
	usleep(400 * 1000);
	job_set(&job.page->words[W_GO], 2);
	assert_int_equal(job_wait(&job, 0, job_ms(JOB_WAIT_MS)), 0);
}

/* Loses its daemon while it waits in a barrier that the others never enter. */
static void wait_in_barrier(struct job_rank *r)
{
	int rc;

	job_rank_enter(r);
	job_count(&r->page->words[W_WAITING]);
	if (r->me >= 2) {
		JOB_CHECK(r, job_await(&r->page->words[W_GO], 1, job_ms(JOB_WAIT_MS)) == 0);
		return;
	}
	rc = epf_barrier(r->ep);
	job_rank_told(r, rc);
	JOB_CHECK(r, rc == -ECONNRESET && strstr(epf_last_error(), "ep-fabric daemon node0"));
	/* The rendezvous is closed for this rank, with the reason. */
	JOB_CHECK(r, epf_barrier(r->ep) == -ECONNRESET);
	JOB_CHECK(r, strstr(epf_last_error(), "ep-fabric daemon node0"));
}

/* The same in the middle of a join: ranks 2 and 3 take part in its first round only. */
static void wait_in_join(struct job_rank *r)
{
	static const uint8_t random[16] = { 7 };
	struct epf_blob *all;
	int rc;

	JOB_CHECK(r, job_rank_open(r) == 0);
	if (r->me >= 2) {
		JOB_CHECK(r, epf_boot_allgather(r->boot, random, sizeof(random), &all) == 0);
		job_count(&r->page->words[W_WAITING]);
		JOB_CHECK(r, job_await(&r->page->words[W_GO], 1, job_ms(JOB_WAIT_MS)) == 0);
		return;
	}
	job_count(&r->page->words[W_WAITING]);
	rc = job_rank_join(r);
	job_rank_told(r, rc);
	JOB_CHECK(r, rc == -ECONNRESET && strstr(epf_last_error(), "ep-fabric daemon node0"));
}

static const struct place {
	const char *name;
	void (*body)(struct job_rank *r);
} places[] = { { "barrier", wait_in_barrier }, { "join", wait_in_join } };

static void notified_at_once(void **state)
{
	const struct place *place = *state;

	uint64_t killed, worst = 0;

	start(place->name, place->body);
	assert_int_equal(job_await(&job.page->words[W_WAITING], WORLD, job_ms(JOB_WAIT_MS)), 0);
	usleep(300 * 1000); /* now they wait */
	killed = epf_now_ns();
	daemons_kill(&daemons, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(job_await(&job.page->rank[i].notified_ns, 1, job_ms(JOB_WAIT_MS)),
				 0);
		if (job.page->rank[i].notified_ns - killed > worst)
			worst = job.page->rank[i].notified_ns - killed;
	}
	job_set(&job.page->words[W_GO], 1);
	assert_int_equal(job_wait(&job, 0, job_ms(JOB_WAIT_MS)), 0);
	printf("# %s: notified after %.0f ms at most: %s\n", place->name, (double)worst / 1e6,
	       job.page->rank[0].text);
}

#define TEST(fn) cmocka_unit_test_teardown(fn, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(slow_daemons_lose_nobody),
		TEST(who_leaves_is_not_lost),
		JOB_CASE(a_barrier_is_notified, notified_at_once, &places[0], NULL, stop),
		JOB_CASE(a_join_is_notified, notified_at_once, &places[1], NULL, stop),
	};

	return cmocka_run_group_tests_name("slow", tests, NULL, NULL);
}
