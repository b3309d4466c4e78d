/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's sleeping mode: the cost of two idle engines, and how soon they wake. Figures are printed (lines with #); the test asserts
 * only that engines sleep, stay asleep, and are woken by a wakeup for each piece of work. Pauses between measurements let the engines
 * fall asleep.
 */
#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/client/epf.h"
#include "fabric/client/handle.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	RANKS = 2,
	WAKES = 200,
	WAITS = 5, /* enough to learn the smallest number of spins */
	CLOCK_READS_MAX = 3000,
	PAUSE_NS = 2 * 1000 * 1000,
	IDLE_S = 2,
	BYTES = 4096,
	MOST_SLEEPS_PER_S = 1000
};

#define WAKE_LIMIT_NS UINT64_C(60000000000)

struct fixture {
	struct epf_boot_group *group;
	struct epf_boot *boot[RANKS];
	struct epf *ep[RANKS];
	struct epf_ring *ring[RANKS];
};

static struct fixture f;

static int set_up(void **state)
{
	static const char *const settings[] = { "progress=thread", "core-idle=sleep", "signals=16",
						NULL };

	assert_return_code(epf_boot_local_create(RANKS, &f.group), 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		struct epf_options o;
		uint32_t region;
		void *mem;

		epf_options_init(&o);
		o.settings = settings;
		assert_return_code(epf_boot_local_open(f.group, r, &f.boot[r]), 0);
		assert_return_code(epf_open(&o, &f.ep[r]), 0);
		assert_return_code(epf_memory_alloc(f.ep[r], BYTES, &mem), 0);
		assert_return_code(
			epf_region_register(f.ep[r], mem, BYTES, EPF_REMOTE_WRITE, &region), 0);
		assert_return_code(epf_ring_open(f.ep[r], NULL, &f.ring[r]), 0);
		assert_return_code(epf_join_post(f.ep[r], f.boot[r]), 0);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		epf_join_finish(f.ep[r]);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_return_code(epf_join_finish(f.ep[r]), 0);
	return 0;
}

static int tear_down(void **state)
{
	for (uint32_t r = 0; r < RANKS; r++)
		epf_close(f.ep[r]);
	for (uint32_t r = 0; r < RANKS; r++)
		epf_boot_close(f.boot[r]);
	epf_boot_local_destroy(f.group);
	return 0;
}

static void nap(uint64_t ns)
{
	struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000u),
			       .tv_nsec = (long)(ns % 1000000000u) };

	nanosleep(&ts, NULL);
}

static uint64_t cpu_ns(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return ((uint64_t)u.ru_utime.tv_sec + (uint64_t)u.ru_stime.tv_sec) * 1000000000u +
	       ((uint64_t)u.ru_utime.tv_usec + (uint64_t)u.ru_stime.tv_usec) * 1000u;
}

static uint64_t counter(uint32_t rank, const char *name)
{
	uint64_t value;

	assert_return_code(epf_counter(f.ep[rank], name, &value), 0);
	return value;
}

static void idle_engines_use_little(void **state)
{
	uint64_t cpu, wall, sleeps;
	double percent;

	nap(100 * 1000 * 1000); /* they fall asleep after the join */
	sleeps = counter(0, "sleeps");
	cpu = cpu_ns();
	wall = epf_now_ns();
	nap(IDLE_S * 1000000000ull);
	cpu = cpu_ns() - cpu;
	wall = epf_now_ns() - wall;
	sleeps = counter(0, "sleeps") - sleeps;
	percent = 100.0 * (double)cpu / (double)wall / RANKS;
	printf("# idle_cpu_percent %.3f\n", percent);
	printf("# idle_sleeps_per_second %.1f\n", (double)sleeps * 1e9 / (double)wall);
	assert_true(sleeps > 0);
	/* No needless wakeups. */
	assert_true((double)sleeps < (double)wall / 1e9 * MOST_SLEEPS_PER_S);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void report(const char *name, uint64_t *ns)
{
	qsort(ns, WAKES, sizeof(*ns), compare);
	printf("# %s %.1f\n", name, (double)ns[WAKES / 2] / 1000.0);
}

/* A NOP, which needs one engine: from the push to its retirement. */
static void push(unsigned i, uint64_t start)
{
	uint64_t pushed = epf_ring_pushed(f.ring[0]) + 1;

	(void)i;
	assert_return_code(epf_ring_push_raw(f.ring[0], 0, 0), 0);
	while (epf_ring_done(f.ring[0]) != pushed)
		assert_true(epf_now_ns() - start < WAKE_LIMIT_NS);
}

/* Two sleeping engines: from the put_signal to the signal at the peer. */
static void put_signal(unsigned i, uint64_t start)
{
	assert_return_code(epf_put_signal(f.ring[0], 1, 0, 0, 0, 0, 64, 3, 1, 0), 0);
	while (epf_signal_value(f.ep[1], 3) != i + 1)
		assert_true(epf_now_ns() - start < WAKE_LIMIT_NS);
}

/* The caller sleeps as well. */
static void put_signal_and_wait(unsigned i, uint64_t start)
{
	(void)start;
	assert_return_code(epf_put_signal(f.ring[0], 1, 0, 0, 0, 0, 64, 4, 1, 0), 0);
	assert_return_code(epf_signal_wait(f.ep[1], 4, i + 1, WAKE_LIMIT_NS), 0);
}

static void work_wakes_sleepers(void **state)
{
	static const struct {
		const char *name;
		void (*fn)(unsigned i, uint64_t start);
	} kinds[] = { { "wake_us", push },
		      { "wake_put_signal_us", put_signal },
		      { "wake_waiter_us", put_signal_and_wait } };

	uint64_t ns[WAKES];

	for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		for (unsigned i = 0; i < WAKES; i++) {
			uint64_t start;

			nap(PAUSE_NS);
			start = epf_now_ns();
			kinds[k].fn(i, start);
			ns[i] = epf_now_ns() - start;
		}
		report(kinds[k].name, ns);
	}
	assert_true(counter(0, "wakeups") > 0);
}

static uint64_t thread_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A clock that stops until the wait has learnt from its spins, which it does before its first sleep; then the deadline has passed. */
struct stopped_clock {
	const struct epf *ep;
	uint32_t had;
	uint32_t reads;
};

static uint64_t stopped_now(void *arg)
{
	struct stopped_clock *c = arg;

	return c->ep->spins != c->had || ++c->reads > CLOCK_READS_MAX ? WAKE_LIMIT_NS : 0;
}

/*
 * A rank for which spinning never helps learns to spin less: an engine may need the CPU. The number of spins is judged; the time is only
 * printed, because a sleep on a virtual machine may cost more than all spinning.
 */
static void unsuccessful_waits_spin_less(void **state)
{
	uint64_t ns[WAITS];

	for (uint32_t r = 0; r < RANKS; r++) { /* each rank learns separately */
		struct epf *ep = f.ep[r];
		uint64_t (*now)(void *arg) = ep->now;
		void *now_arg = ep->now_arg;
		uint32_t first = 0;

		for (unsigned i = 0; i < WAITS; i++) {
			struct stopped_clock clock = { .ep = ep, .had = ep->spins };
			uint64_t start = thread_ns();

			ep->now = stopped_now;
			ep->now_arg = &clock;
			assert_int_equal(epf_signal_wait(ep, 9, 1, 1000000), -ETIMEDOUT);
			ep->now = now;
			ep->now_arg = now_arg;
			ns[i] = thread_ns() - start;
			if (i == 0)
				first = ep->spins;
		}
		assert_int_not_equal(first, 0);
		assert_true(ep->spins * 4 < first);
		printf("# first_wait_cpu_us %.1f, last one %.1f\n", (double)ns[0] / 1e3,
		       (double)ns[WAITS - 1] / 1e3);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unsuccessful_waits_spin_less), /* before other waits */
		cmocka_unit_test(idle_engines_use_little),
		cmocka_unit_test(work_wakes_sleepers),
	};

	return cmocka_run_group_tests_name("idle", tests, set_up, tear_down);
}
