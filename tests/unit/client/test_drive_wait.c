/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits step the engine while its thread sleeps (fabric/client/drive.c): every end of a wait gives the engine back, little pushes step it too where CPUs
 * are few, and who waits for its own withdrawal does not wait for itself. Two ranks in one process, each with an engine thread.
 */
#include "bootstrap/boot.h"
#include "fabric/client/handle.h"
#include "fabric/engine/owner.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { RANKS = 2, BYTES = 1 << 20, TURNS = 2000, NEVER = 5 };

static struct rank {
	struct epf *ep;
	struct epf_boot *boot;
	struct epf_ring *ring;
	uint32_t me;
	uint64_t turns; /* played */
	int rc;
} t[RANKS];

static void *join(void *arg)
{
	struct rank *r = arg;

	r->rc = epf_join(r->ep, r->boot);
	if (!r->rc)
		r->rc = epf_ring_open(r->ep, NULL, &r->ring);
	return NULL;
}

static void *leave(void *arg)
{
	struct rank *r = arg;

	epf_close(r->ep);
	epf_boot_close(r->boot);
	return NULL;
}

static void both(void *(*what)(void *arg))
{
	pthread_t thread[RANKS];

	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(pthread_create(&thread[r], NULL, what, &t[r]), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(thread[r], NULL);
}

static struct epf_boot_group *group;

/* crowded: as if there were fewer CPUs than threads, or enough. */
static void begin(bool is_crowded)
{
	assert_int_equal(epf_boot_local_create(RANKS, &group), 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		uint32_t region;
		void *mem;

		t[r] = (struct rank){ .me = r };
		assert_int_equal(epf_open(NULL, &t[r].ep), 0);
		assert_int_equal(epf_memory_alloc(t[r].ep, BYTES, &mem), 0);
		assert_int_equal(
			epf_region_register(t[r].ep, mem, BYTES, EPF_REMOTE_WRITE, &region), 0);
		assert_int_equal(epf_boot_local_open(group, r, &t[r].boot), 0);
	}
	both(join);
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_int_equal(t[r].rc, 0);
		t[r].ep->is_crowded = is_crowded;
	}
}

static void end(void)
{
	both(leave);
	epf_boot_local_destroy(group);
}

static uint64_t drives(uint32_t rank)
{
	uint64_t n;

	assert_int_equal(epf_counter(t[rank].ep, "drives", &n), 0);
	return n;
}

static uint32_t owner(uint32_t rank)
{
	return EPF_LOAD_RELAXED(&t[rank].ep->core->owner);
}

static bool is_given_back(uint32_t rank)
{
	return owner(rank) == EPF_OWNER_NOBODY || owner(rank) == EPF_OWNER_THREAD;
}

static void until_asleep(uint32_t rank)
{
	while (owner(rank) != EPF_OWNER_NOBODY)
		sched_yield();
}

static void *play(void *arg)
{
	struct rank *r = arg;

	uint64_t last = r->turns + TURNS;

	for (uint64_t i = r->turns + 1; i <= last && !r->rc; i++) {
		if (r->me == 0)
			r->rc = epf_put_signal(r->ring, 1, 0, 0, 0, 0, 8, 0, 1, 0);
		if (!r->rc)
			r->rc = epf_signal_wait(r->ep, 0, i, 0);
		if (r->me == 1 && !r->rc)
			r->rc = epf_put_signal(r->ring, 0, 0, 0, 0, 0, 8, 0, 1, 0);
	}
	r->turns = last;
	if (!r->rc)
		r->rc = epf_flush(r->ring, 0, 0);
	return NULL;
}

static void two_that_wait_step_their_engines(void **state)
{
	begin(true);
	do { /* on a busy machine the engines may be awake whenever somebody waits */
		until_asleep(0);
		until_asleep(1);
		both(play);
		for (uint32_t r = 0; r < RANKS; r++) {
			assert_int_equal(t[r].rc, 0);
			assert_true(is_given_back(r));
		}
	} while (!drives(0) || !drives(1));
	end();
}

/* As above with CPUs enough: engines sleep only when they are idle for long, and pushes wake them. */
static void with_cpus_enough_pushes_wake(void **state)
{
	begin(false);
	both(play);
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_int_equal(t[r].rc, 0);
		assert_int_equal(t[r].ep->pushes, 0);
	}
	end();
}

static void a_wait_that_times_out_gives_the_engine_back(void **state)
{
	uint64_t before;

	begin(true);
	before = drives(0);
	while (drives(0) == before) { /* the engine may be awake at first */
		assert_int_equal(epf_signal_wait(t[0].ep, NEVER, 1, 2 * 1000 * 1000), -ETIMEDOUT);
		assert_true(is_given_back(0));
	}
	end();
}

static void *wait_for_ever(void *arg)
{
	struct rank *r = arg;

	r->rc = epf_signal_wait(r->ep, NEVER, 1, 0);
	return NULL;
}

static void an_aborted_wait_gives_the_engine_back(void **state)
{
	pthread_t thread;
	uint64_t before;

	begin(true);
	before = EPF_LOAD_RELAXED(&t[0].ep->pushes);
	assert_int_equal(before, 0);
	assert_int_equal(pthread_create(&thread, NULL, wait_for_ever, &t[0]), 0);
	while (!EPF_LOAD_RELAXED(&t[0].ep->pushes)) /* it has the engine */
		sched_yield();
	epf_abort(t[0].ep);
	pthread_join(thread, NULL);
	assert_int_equal(t[0].rc, -ECANCELED);
	assert_true(is_given_back(0));
	end();
}

/* Its condition calls the engine, which the waiting thread itself has. */
static void a_withdrawal_is_waited_for(void **state)
{
	begin(true);
	assert_int_equal(epf_region_withdraw(t[0].ep, 0, 0), 0);
	assert_true(is_given_back(0));
	end();
}

/* Small ones step a sleeping engine, a few between two waits; a large one wakes it. */
static void pushes_step_a_sleeping_engine(void **state)
{
	struct epf *ep;
	uint64_t before;

	begin(true);
	ep = t[0].ep;
	before = drives(0);
	do { /* its thread may wake at any time: again until it sleeps through */
		EPF_STORE_RELAXED(&ep->pushes, 1u);
		until_asleep(0);
		assert_int_equal(epf_put(t[0].ring, 1, 0, 0, 0, 0, 8, 0), 0);
	} while (drives(0) == before);
	assert_int_equal(EPF_LOAD_RELAXED(&ep->pushes), 0);
	assert_true(is_given_back(0));
	EPF_STORE_RELAXED(&ep->pushes, 1u);
	for (int i = 0; i < 20; i++) {
		until_asleep(0);
		assert_int_equal(epf_put(t[0].ring, 1, 0, 0, 0, 0, BYTES, 0), 0);
	}
	assert_int_equal(EPF_LOAD_RELAXED(&ep->pushes), 1);
	assert_int_equal(epf_flush(t[0].ring, 0, 0), 0);
	end();
}

static void polling_steps_a_sleeping_engine(void **state)
{
	uint64_t before;

	begin(true);
	before = drives(0);
	while (drives(0) == before) {
		until_asleep(0);
		assert_true(epf_progress(t[0].ep) >= 0);
		assert_true(is_given_back(0));
	}
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_that_wait_step_their_engines),
		cmocka_unit_test(with_cpus_enough_pushes_wake),
		cmocka_unit_test(a_wait_that_times_out_gives_the_engine_back),
		cmocka_unit_test(an_aborted_wait_gives_the_engine_back),
		cmocka_unit_test(a_withdrawal_is_waited_for),
		cmocka_unit_test(pushes_step_a_sleeping_engine),
		cmocka_unit_test(polling_steps_a_sleeping_engine),
	};

	return cmocka_run_group_tests_name("drive_wait", tests, NULL, NULL);
}
