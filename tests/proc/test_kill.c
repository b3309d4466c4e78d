/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real rank processes, one of which dies or is stalled. A killed rank: every survivor gets its number within a
 * bounded time, masks it and goes on with the others. A rank stopped for less than the timeout: nobody notices.
 */
#include "tests/proc/ranks.h"

#include "fabric/nic/nic.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { VICTIM = 2, BEFORE = 200, AFTER = 200 };

#define NOTIFIED_WITHIN_NS UINT64_C(10000000000)
#define WAIT_NS            UINT64_C(20000000000)

static const char *const short_timeouts[] = { "peer-timeout=1s", "emu-retry-timeout=1s", NULL };
static const char *const long_timeouts[] = { "peer-timeout=5s", "emu-retry-timeout=5s", NULL };
static const char *const unordered[] = { "peer-timeout=1s",     "emu-retry-timeout=1s",
					 "emu-order=unordered", "emu-delay=20us",
					 "emu-reorder=0.05",    "emu-duplicate=0.05",
					 "emu-drop=0.02",       NULL };

/* What a rank sees after the error: the state, commands to the lost one, then life without it. */
static void go_on(struct rank *r)
{
	struct epf_ring_failure failure;
	struct epf_ring *ring;
	uint64_t last;

	RANK_CHECK(r, epf_peer_state(r->ep, VICTIM) == -ECONNRESET);
	RANK_CHECK(r, epf_peer_mask(r->ep, VICTIM) == 0);
	r->masked[VICTIM] = true;
	RANK_CHECK(r, epf_wait_retired(r->ring, epf_ring_pushed(r->ring), WAIT_NS) == 0);
	RANK_CHECK(r, epf_ring_open(r->ep, NULL, &ring) == 0);
	RANK_CHECK(r, epf_put_signal(ring, VICTIM, 0, 0, 0, 0, 64, 0, 1, 0) == 0);
	RANK_CHECK(r, epf_wait_retired(ring, 1, WAIT_NS) == 0);
	RANK_CHECK(r, epf_ring_error(ring, &failure) == 1);
	RANK_CHECK(r, failure.rank == VICTIM && failure.status == EPF_S_PEER_DOWN);
	/* The survivors are in the same round or in two that follow each other; rank 0 says which is the last. */
	if (r->me == 0)
		__atomic_store_n(&r->page->last_round, r->round + AFTER, __ATOMIC_RELEASE);
	while ((last = __atomic_load_n(&r->page->last_round, __ATOMIC_ACQUIRE)) == 0)
		usleep(1000);
	while (r->round < last)
		RANK_CHECK(r, rank_round(r, WAIT_NS) == 0);
	for (uint32_t p = 0; p < r->world; p++)
		if (p != r->me && p != VICTIM)
			RANK_CHECK(r, epf_peer_state(r->ep, p) != -ECONNRESET);
}

static void survive(struct rank *r)
{
	int rc;

	while ((rc = rank_round(r, WAIT_NS)) == 0)
		RANK_CHECK(r, r->round < 1000000);
	r->page->lost_ns[r->me] = epf_now_ns();
	RANK_CHECK(r, rc == -ECONNRESET);
	RANK_CHECK(r, strstr(epf_last_error(), "rank 2") != NULL);
	RANK_CHECK(r, __atomic_load_n(&r->page->killed_ns, __ATOMIC_ACQUIRE) != 0);
	go_on(r);
}

static void kill_one(const char *name, const char *const *settings)
{
	uint64_t worst = 0;
	struct ranks job;

	assert_int_equal(ranks_start(&job, name, 3, 1, settings, survive), 0);
	assert_int_equal(ranks_reach(&job, BEFORE), 0);
	__atomic_store_n(&job.page->killed_ns, epf_now_ns(), __ATOMIC_RELEASE);
	kill(job.pid[VICTIM], SIGKILL);
	assert_int_equal(ranks_wait(&job, VICTIM), 0);
	for (uint32_t i = 0; i < VICTIM; i++) {
		uint64_t notified = job.page->lost_ns[i] - job.page->killed_ns;

		assert_true(notified < NOTIFIED_WITHIN_NS);
		worst = notified > worst ? notified : worst;
	}
	printf("# %s: told after %.0f ms\n", name, (double)worst / 1e6);
	ranks_end(&job);
}

static void a_killed_rank_is_named(void **state)
{
	(void)state;
	kill_one("killed", short_timeouts);
}

static void a_killed_rank_is_named_unordered(void **state)
{
	(void)state;
	kill_one("killed-unordered", unordered);
}

static void play(struct rank *r)
{
	while (r->round < BEFORE + AFTER)
		RANK_CHECK(r, rank_round(r, WAIT_NS) == 0);
	for (uint32_t p = 0; p < r->world; p++)
		if (p != r->me)
			RANK_CHECK(r, epf_peer_state(r->ep, p) != -ECONNRESET);
	RANK_CHECK(r, epf_barrier(r->ep) == 0);
}

static void a_short_stop_is_no_error(void **state)
{
	struct ranks job;

	(void)state;
	assert_int_equal(ranks_start(&job, "stopped", 3, 1, long_timeouts, play), 0);
	assert_int_equal(ranks_reach(&job, BEFORE / 4), 0);
	for (int i = 0; i < 3; i++) {
		kill(job.pid[i], SIGSTOP);
		usleep(400 * 1000);
		kill(job.pid[i], SIGCONT);
		usleep(10 * 1000);
	}
	assert_int_equal(ranks_wait(&job, -1), 0);
	ranks_end(&job);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_killed_rank_is_named),
		cmocka_unit_test(a_killed_rank_is_named_unordered),
		cmocka_unit_test(a_short_stop_is_no_error),
	};

	return cmocka_run_group_tests_name("kill", tests, ranks_dir_make, ranks_dir_remove);
}
