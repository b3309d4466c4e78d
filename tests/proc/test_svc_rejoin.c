/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank comes back: it is killed, the others mask it and go on; a new process takes its place with epf_rejoin; the others see it up
 * again, one epoch on, unmask it and exchange checked bytes with it. Repeated for ranks of both nodes. Processes that may not rejoin are
 * refused: the rank is still alive, or the world size is wrong.
 */
#include "fabric/base/clock.h"
#include "tests/proc/svc_job.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { WORLD = 4, TIMES = 6, TIMES_LONG = 60, AGREE = 8 };

/*
 * Words: the current victim plus 1; the turn's number; how many ranks have met the returned rank, and how many went on without it, over
 * all turns; turn << 32 | the round up to which all go on without it; how many are ready to close.
 */
enum { W_VICTIM = 1, W_TURN = 2, W_MET = 3, W_GONE_ON = 4, W_UNTIL = 5, W_READY = 6 };

static const char *const daemon_settings[] = { "service-grace=5s", NULL };
static struct daemons daemons;
static struct job job;

/* Survivors are in the same round or one apart: the first one chooses the round up to which all go on. */
static uint64_t agree_until(struct job_rank *r, uint64_t turn)
{
	uint64_t *word = &r->page->words[W_UNTIL], seen = job_get(word);

	while (seen >> 32 < turn)
		if (__atomic_compare_exchange_n(word, &seen, turn << 32 | (r->round + 20), false,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			break;
	return job_get(word) & UINT32_MAX;
}

/* A survivor masks the victim, plays without it, waits until it is back, and meets it. */
static void go_on(struct job_rank *r, uint32_t victim, uint64_t turn)
{
	uint32_t epoch = epf_peer_epoch(r->ep, victim);
	struct epf_ring_failure failure;
	uint64_t deadline, until;
	int rc;

	JOB_CHECK(r, epf_peer_state(r->ep, victim) == -ECONNRESET);
	JOB_CHECK(r, epf_peer_mask(r->ep, victim) == 0);
	r->masked[victim] = true;
	/* Commands to the victim have failed, and so does the first flush that covers them. */
	rc = epf_flush(r->ring, EPF_ALL_RINGS, job_wait_ns());
	JOB_CHECK(r, rc == 0 || rc == -EIO);
	epf_ring_error(r->ring, &failure);
	until = agree_until(r, turn);
	while (r->round < until)
		JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
	job_count(&r->page->words[W_GONE_ON]);
	deadline = epf_now_ns() + job_wait_ns();
	while (epf_peer_state(r->ep, victim) != 1) {
		JOB_CHECK(r, epf_now_ns() < deadline);
		usleep(500);
	}
	JOB_CHECK(r, epf_peer_epoch(r->ep, victim) == epoch + 1);
	JOB_CHECK(r, epf_peer_unmask(r->ep, victim) == 0);
	job_rank_renew(r, victim);
	job_count(&r->page->words[W_MET]);
	JOB_CHECK(r, job_await(&r->page->words[W_MET], turn * WORLD, job_ms(JOB_WAIT_MS)) == 0);
}

static void play(struct job_rank *r, uint64_t turn)
{
	int rc;

	for (;;) {
		uint64_t last = job_get(&r->page->words[0]);

		if (r->me == 0 && !last && job_get(&r->page->end))
			job_set(&r->page->words[0], r->round + AGREE);
		if (last && r->round >= last)
			break;
		rc = job_rank_round(r, job_wait_ns());
		if (rc == 0)
			continue;
		JOB_CHECK(r,
			  rc == -ECONNRESET || rc == -EIO); /* -EIO: a flush with failed commands */
		job_rank_told(r, rc);
		JOB_CHECK(r, job_get(&r->page->words[W_TURN]) == turn + 1);
		turn++;
		go_on(r, (uint32_t)job_get(&r->page->words[W_VICTIM]) - 1, turn);
	}
	JOB_CHECK(r, job_rank_guard(r) == 0);
	job_set(&r->report->step, JOB_CLOSE);
	/* A returned rank has no rendezvous for a barrier. */
	job_count(&r->page->words[W_READY]);
	JOB_CHECK(r, job_await(&r->page->words[W_READY], WORLD, job_ms(JOB_WAIT_MS)) == 0);
	job_rank_leave(r);
}

static void first_life(struct job_rank *r)
{
	job_rank_enter(r);
	play(r, 0);
}

static int open_again(struct job_rank *r, const char *world, const char *patience)
{
	char job_name[64], rank[16];
	const char *settings[10] = { "signals=64", patience, job_name, rank, world };
	struct epf_options o;

	snprintf(job_name, sizeof(job_name), "job=%s", r->plan->name);
	snprintf(rank, sizeof(rank), "rank=%u", r->me);
	for (unsigned i = 0; r->plan->client[r->me][i] && i < 3; i++)
		settings[5 + i] = r->plan->client[r->me][i];
	epf_options_init(&o);
	o.settings = settings;
	return epf_open(&o, &r->ep);
}

static void second_life(struct job_rank *r)
{
	uint64_t turn = job_get(&r->page->words[W_TURN]);

	memset(r->report, 0, sizeof(*r->report));
	JOB_CHECK(r, open_again(r, "world-size=4", "bootstrap-timeout=10s") == 0);
	JOB_CHECK(r, job_rank_register(r) == 0);
	job_set(&r->report->step, JOB_JOIN);
	JOB_CHECK(r, epf_rejoin(r->ep) == 0);
	for (uint32_t p = 0; p < r->world; p++)
		JOB_CHECK(r, epf_signal_value(r->ep, p) == 0);
	/* When all have met, the others have reset their exchange with it; their round numbers go on. */
	job_count(&r->page->words[W_MET]);
	JOB_CHECK(r, job_await(&r->page->words[W_MET], turn * WORLD, job_ms(JOB_WAIT_MS)) == 0);
	r->round = job_get(&r->page->words[W_UNTIL]) & UINT32_MAX;
	play(r, turn);
}

/* Claims a rank that is not lost, or another world size: is refused, and the job does not notice. */
static void impostor(struct job_rank *r)
{
	JOB_CHECK(r, open_again(r, r->plan->arg, "bootstrap-timeout=500ms") == 0);
	JOB_CHECK(r, job_rank_register(r) == 0);
	JOB_CHECK(r, epf_rejoin(r->ep) < 0);
	JOB_CHECK(r, epf_last_error()[0]);
	printf("# rejoin: refused: %s\n", epf_last_error());
	epf_close(r->ep);
}

static void refused(const char *world)
{
	struct job other = job; /* the same page and names; the impostor's pid is not kept */
	struct job_plan plan = job.plan;
	int status = -1;
	pid_t pid;

	plan.arg = (void *)(uintptr_t)world;
	other.plan = plan;
	pid = job_fork_rank(&other, 3, impostor);
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void kill_and_return(unsigned victim, unsigned turn)
{
	uint64_t killed;

	assert_int_equal(job_more(&job, 30), 0);
	job_set(&job.page->words[W_VICTIM], victim + 1);
	job_set(&job.page->words[W_TURN], turn);
	killed = epf_now_ns();
	job_kill(&job, victim);
	assert_int_equal(job_await(&job.page->words[W_GONE_ON], (uint64_t)turn * (WORLD - 1),
				   job_ms(JOB_WAIT_MS)),
			 0);
	assert_true(job_fork_rank(&job, victim, second_life) > 0);
	assert_int_equal(
		job_await(&job.page->words[W_MET], (uint64_t)turn * WORLD, job_ms(JOB_WAIT_MS)), 0);
	printf("# rejoin: rank %u back after %.0f ms\n", victim,
	       (double)(epf_now_ns() - killed) / 1e6);
}

static void ranks_come_back(void **state)
{
	static const unsigned victims[] = { 1, 3, 0, 2, 3, 1 };
	unsigned times = job_long() ? TIMES_LONG : TIMES;

	assert_int_equal(job_reach(&job, 20, job_ms(JOB_WAIT_MS)), 0);
	refused("world-size=4"); /* rank 3 lives */
	for (unsigned i = 0; i < times; i++) {
		kill_and_return(victims[i % 6], i + 1);
		if (i == 0)
			refused("world-size=5");
	}
	assert_int_equal(job_more(&job, 50), 0);
	assert_int_equal(job_finish(&job), 0);
	printf("# rejoin: %u ranks came back, %llu rounds, 0 wrong\n", times,
	       (unsigned long long)job_get(&job.page->rank[0].rounds));
}

static int begin(void **state)
{
	struct job_plan plan = { .name = "rejoin",
				 .world = WORLD,
				 .tag = 5,
				 .body = first_life,
				 .daemons = &daemons,
				 .alarm_s = 300 };

	if (daemons_start(&daemons, 2, daemon_settings))
		return -1;
	return job_fork(&job, &plan);
}

static int finish(void **state)
{
	job_end(&job);
	return daemons_stop(&daemons);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(ranks_come_back) };

	return cmocka_run_group_tests_name("ranks that come back", tests, begin, finish);
}
