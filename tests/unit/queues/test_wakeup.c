/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wakeup (B1/B2): two threads send each other to sleep and wake each other, without a pause that would hide a lost
 * wake-up. A wake-up is lost when who has brought work is done with it, the sleeper is still armed, and nobody has rung: told from the order of
 * words, not from time. All orders of the two sides' steps, one by one. Then several threads on one wakeup.
 */
#include "queues/epf_wakeup.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#define SECOND UINT64_C(1000000000)

#define PLAY_NS  (3 * SECOND / 2)
#define SLEEP_NS (2 * SECOND) /* then the sleeper looks whether its wake-up was lost */
#define FOREVER  (3600 * SECOND)

enum { LEAST = 100 }; /* balls and crossings, however slow the machine is */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* One end: a wakeup to sleep on and a count of the work that has come. */
struct end {
	struct epf_wakeup wakeup;
	uint64_t work;
	uint64_t given; /* so much of it has been brought and, if need be, rung for */
	uint64_t reserved[14];
	uint64_t sleeps;
	bool lost;
};

struct table {
	struct end ends[2];
	uint64_t deadline_ns;
	bool given_up;
	/* Plain memory of whoever has the ball. */
	uint64_t payload;
	bool last;
};

static uint64_t work(const struct end *e)
{
	return EPF_LOAD_ACQUIRE(&e->work);
}

/* Waits until there is more work than `seen`; 0 when a wake-up was lost, here or at the other end. */
static int await_work(struct table *t, struct end *e, uint64_t seen)
{
	while (work(e) == seen) {
		if (EPF_LOAD_RELAXED(&t->given_up))
			return 0;
		epf_wakeup_arm(&e->wakeup);
		if (work(e) == seen) {
			e->sleeps++;
			epf_wakeup_sleep(&e->wakeup, SLEEP_NS);
			/* It may lag behind `seen`, while who gave that is still ringing. */
			if (EPF_LOAD_ACQUIRE(&e->given) > seen &&
			    EPF_LOAD_RELAXED(&e->wakeup.sleeping)) {
				e->lost = true;
				EPF_STORE_RELAXED(&t->given_up, true);
				return 0;
			}
		}
		epf_wakeup_disarm(&e->wakeup);
	}
	return 1;
}

static void give(struct end *to)
{
	EPF_STORE_RELEASE(&to->work, EPF_LOAD_RELAXED(&to->work) + 1);
	if (epf_wakeup_is_needed(&to->wakeup))
		epf_wakeup_wake(&to->wakeup);
	EPF_STORE_RELEASE(&to->given, EPF_LOAD_RELAXED(&to->given) + 1);
}

/* Serves until the time is over; the ball says which is the last. */
static void *serve(void *arg)
{
	struct table *t = arg;
	bool last;

	for (uint64_t n = 0;; n++) {
		t->payload++;
		t->last = last = now_ns() > t->deadline_ns && n > LEAST;
		give(&t->ends[1]);
		if (!await_work(t, &t->ends[0], n) || last)
			return NULL;
	}
}

static void *answer(void *arg)
{
	struct table *t = arg;
	bool last;

	for (uint64_t n = 0;; n++) {
		if (!await_work(t, &t->ends[1], n))
			return NULL;
		t->payload++;
		last = t->last;
		give(&t->ends[0]);
		if (last)
			return NULL;
	}
}

static void no_wakeup_is_lost(void **state)
{
	static struct table t;
	pthread_t threads[2];

	t.deadline_ns = now_ns() + PLAY_NS;
	assert_int_equal(pthread_create(&threads[0], NULL, serve, &t), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, answer, &t), 0);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	printf("# %llu balls, %llu sleeps, rung %u times\n", (unsigned long long)t.payload,
	       (unsigned long long)(t.ends[0].sleeps + t.ends[1].sleeps),
	       t.ends[0].wakeup.rung + t.ends[1].wakeup.rung);
	assert_false(t.ends[0].lost || t.ends[1].lost);
	assert_int_equal(t.payload, t.ends[0].work + t.ends[1].work);
	assert_int_equal(t.ends[0].work, t.ends[1].work);
	assert_true(t.ends[0].sleeps + t.ends[1].sleeps > 0);
	assert_true(t.ends[0].wakeup.rung + t.ends[1].wakeup.rung > 0);
}

/*
 * The crossing itself, many times at the same instant: a sleeper arms and looks, a producer publishes and looks. Both
 * may see the other; never neither.
 */
struct crossing {
	struct epf_wakeup wakeup;
	uint64_t published;
	uint64_t reserved[15];
	uint64_t arrived; /* at the barrier, in all */
	uint64_t deadline_ns;
	uint64_t rounds, neither, both;
	bool saw_work, must_ring, last;
};

/* Spins until both threads have come `n` times. */
static void meet(struct crossing *c, uint64_t n)
{
	unsigned spins = 0;

	__atomic_fetch_add(&c->arrived, 1, __ATOMIC_ACQ_REL);
	while (EPF_LOAD_ACQUIRE(&c->arrived) < 2 * n)
		if (++spins % 4096 == 0)
			sched_yield();
}

/* Who comes last to a barrier leaves it first: delays of all lengths bring the two together. */
static void wait_a_little(uint64_t n)
{
	for (volatile uint64_t i = 0; i < n; i++)
		;
}

/* Gives this thread the n-th processor it may use, where there are two: only then can the two really meet. */
static void take_cpu(int n)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof(all), &all) || CPU_COUNT(&all) < 2)
		return;
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET((size_t)cpu, &all) && n-- == 0)
			CPU_SET((size_t)cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static void *publish(void *arg)
{
	struct crossing *c = arg;

	take_cpu(1);
	for (uint64_t n = 1;; n++) {
		meet(c, 2 * n - 1);
		if (c->last)
			return NULL;
		wait_a_little(n % 97);
		EPF_STORE_RELEASE(&c->published, n);
		c->must_ring = epf_wakeup_is_needed(&c->wakeup);
		meet(c, 2 * n);
	}
}

static void *arm(void *arg)
{
	struct crossing *c = arg;

	take_cpu(0);
	for (uint64_t n = 1;; n++) {
		epf_wakeup_disarm(&c->wakeup);
		c->last = now_ns() > c->deadline_ns && n > LEAST;
		meet(c, 2 * n - 1);
		if (c->last)
			return NULL;
		wait_a_little(n % 101);
		epf_wakeup_arm(&c->wakeup);
		c->saw_work = EPF_LOAD_ACQUIRE(&c->published) == n;
		meet(c, 2 * n);
		c->rounds++;
		c->neither += !c->saw_work && !c->must_ring;
		c->both += c->saw_work && c->must_ring;
	}
}

static void one_of_two_sees_the_other(void **state)
{
	static struct crossing c;
	pthread_t threads[2];

	c.deadline_ns = now_ns() + SECOND / 2;
	assert_int_equal(pthread_create(&threads[0], NULL, arm, &c), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, publish, &c), 0);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	printf("# %llu crossings, %llu saw each other\n", (unsigned long long)c.rounds,
	       (unsigned long long)c.both);
	assert_true(c.rounds >= LEAST);
	assert_int_equal(c.neither, 0);
}

/*
 * The crossing in every order of its steps: the sleeper arms (A) and looks (L), the producer publishes (P) and looks (R). What a CPU may do beyond
 * these orders is what B1 and B2 forbid.
 */
static void in_every_order_one_sees_the_other(void **state)
{
	static const char *const orders[] = { "ALPR", "APLR", "APRL", "PALR", "PARL", "PRAL" };

	for (unsigned i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		struct epf_wakeup wakeup = { 0 };
		bool saw_work = false, must_ring = false;
		uint64_t published = 0;

		for (const char *step = orders[i]; *step; step++) {
			if (*step == 'A')
				epf_wakeup_arm(&wakeup);
			else if (*step == 'L')
				saw_work = EPF_LOAD_ACQUIRE(&published) != 0;
			else if (*step == 'P')
				EPF_STORE_RELEASE(&published, UINT64_C(1));
			else
				must_ring = epf_wakeup_is_needed(&wakeup);
		}
		if (!saw_work && !must_ring)
			fail_msg("in the order %s the sleeper sleeps on", orders[i]);
		if (must_ring) /* then the ring ends the sleep */
			epf_wakeup_wake(&wakeup);
		if (!saw_work)
			epf_wakeup_sleep(&wakeup, FOREVER);
	}
}

static void only_a_sleeper_is_rung(void **state)
{
	struct epf_wakeup wakeup = { 0 };

	assert_false(epf_wakeup_is_needed(&wakeup));
	epf_wakeup_wake(&wakeup);
	assert_int_equal(wakeup.rung, 0);
	epf_wakeup_arm(&wakeup);
	assert_true(epf_wakeup_is_needed(&wakeup));
	epf_wakeup_wake(&wakeup);
	assert_int_equal(wakeup.rung, 1);
	assert_false(epf_wakeup_is_needed(&wakeup)); /* the next producer saves the call */
	epf_wakeup_arm(&wakeup);
	epf_wakeup_disarm(&wakeup);
	assert_false(epf_wakeup_is_needed(&wakeup));
}

static void sleep_ends(void **state)
{
	struct epf_wakeup wakeup = { 0 };
	uint64_t begin;

	epf_wakeup_sleep(&wakeup, FOREVER); /* not armed: at once */
	epf_wakeup_arm(&wakeup);
	epf_wakeup_wake(&wakeup);
	epf_wakeup_sleep(&wakeup, FOREVER); /* rung before: at once */
	epf_wakeup_arm(&wakeup);
	epf_wakeup_sleep(&wakeup, 0);
	begin = now_ns();
	epf_wakeup_sleep(&wakeup, SECOND / 50);
	assert_true(now_ns() - begin >= SECOND / 50);
}

/* Threads that share a wakeup, step by step. */
static void nobody_disarms_another(void **state)
{
	struct epf_wakeup wakeup = { 0 };
	uint32_t a = epf_wakeup_join(&wakeup, EPF_WAKE_ON_SIGNAL, 1, 10), b, c;

	assert_int_equal(wakeup.condition, EPF_WAKE_ON_SIGNAL);
	b = epf_wakeup_join(&wakeup, EPF_WAKE_ON_RETIRED, 2, 20);
	assert_int_not_equal(a, b);
	/* Two conditions do not fit: anything rings, and the first one's words stay whole. */
	assert_int_equal(wakeup.condition, EPF_WAKE_ON_ANY);
	assert_int_equal(wakeup.condition_index, 1);
	assert_int_equal(wakeup.condition_least, 10);
	epf_wakeup_leave(&wakeup, b); /* the last one that armed goes first */
	assert_true(epf_wakeup_is_needed(&wakeup));
	b = epf_wakeup_join(&wakeup, EPF_WAKE_ON_ANY, 0, 0);
	epf_wakeup_leave(&wakeup, a);
	assert_true(epf_wakeup_is_needed(&wakeup));
	/* The ring for b is hidden by c's arming: b must not sleep through it. */
	epf_wakeup_wake(&wakeup);
	c = epf_wakeup_join(&wakeup, EPF_WAKE_ON_ANY, 0, 0);
	epf_wakeup_sleep_joined(&wakeup, b, FOREVER);
	epf_wakeup_leave(&wakeup, b);
	assert_true(epf_wakeup_is_needed(&wakeup));
	epf_wakeup_leave(&wakeup, c);
	assert_false(epf_wakeup_is_needed(&wakeup));
	assert_int_equal(wakeup.waiters, 0);
	a = epf_wakeup_join(&wakeup, EPF_WAKE_ON_SIGNAL, 3, 30);
	assert_int_equal(wakeup.condition_index, 3);
	epf_wakeup_leave(&wakeup, a);
}

enum { SLEEPERS = 4, GIFTS = 5000 };

/* One wakeup; each sleeper takes its own gifts, and the giver goes on when all have. */
struct dormitory {
	struct epf_wakeup wakeup;

	struct sleeper {
		struct dormitory *in;
		uint64_t given, taken, sleeps;
		bool lost;
	} sleeper[SLEEPERS];
};

static void *take_gifts(void *arg)
{
	struct sleeper *s = arg;

	for (uint64_t n = 0; n < GIFTS; n++) {
		while (EPF_LOAD_ACQUIRE(&s->given) == n && !s->lost) {
			uint32_t ticket = epf_wakeup_join(&s->in->wakeup, EPF_WAKE_ON_ANY, 0, 0);
			uint64_t begin = now_ns();

			if (EPF_LOAD_ACQUIRE(&s->given) == n) {
				s->sleeps++;
				epf_wakeup_sleep_joined(&s->in->wakeup, ticket, 60 * SECOND);
				s->lost = now_ns() - begin >= 60 * SECOND;
			}
			epf_wakeup_leave(&s->in->wakeup, ticket);
		}
		EPF_STORE_RELEASE(&s->taken, n + 1);
	}
	return NULL;
}

static void all_sleepers_wake(void **state)
{
	static struct dormitory d;
	pthread_t threads[SLEEPERS];
	uint64_t sleeps = 0;

	for (int i = 0; i < SLEEPERS; i++) {
		d.sleeper[i].in = &d;
		assert_int_equal(pthread_create(&threads[i], NULL, take_gifts, &d.sleeper[i]), 0);
	}
	for (uint64_t n = 0; n < GIFTS; n++) {
		for (int i = 0; i < SLEEPERS; i++) {
			EPF_STORE_RELEASE(&d.sleeper[i].given, n + 1);
			if (epf_wakeup_is_needed(&d.wakeup))
				epf_wakeup_wake(&d.wakeup);
		}
		for (int i = 0; i < SLEEPERS; i++)
			while (EPF_LOAD_ACQUIRE(&d.sleeper[i].taken) <= n)
				sched_yield();
	}
	for (int i = 0; i < SLEEPERS; i++) {
		pthread_join(threads[i], NULL);
		assert_false(d.sleeper[i].lost);
		sleeps += d.sleeper[i].sleeps;
	}
	printf("# %d sleepers, %llu sleeps, rung %u times\n", SLEEPERS, (unsigned long long)sleeps,
	       d.wakeup.rung);
	assert_int_equal(d.wakeup.waiters, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_a_sleeper_is_rung),
		cmocka_unit_test(sleep_ends),
		cmocka_unit_test(one_of_two_sees_the_other),
		cmocka_unit_test(no_wakeup_is_lost),
		cmocka_unit_test(nobody_disarms_another),
		cmocka_unit_test(all_sleepers_wake),
		cmocka_unit_test(in_every_order_one_sees_the_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
