/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bell (B1/B2): two threads send each other to sleep and wake each other, without a pause that would hide a lost
 * wake-up. A wake-up is lost when a sleep ends by its timeout although there is work and nobody has rung.
 */
#include "queues/epf_bell.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define SECOND UINT64_C(1000000000)

enum { ROUNDS = 100000 };

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* One end: a bell to sleep on and a count of the work that has come. */
struct end {
	struct epf_bell bell;
	uint64_t work;
	uint64_t reserved[15];
	uint64_t sleeps;
	bool lost;
};

struct table {
	struct end ends[2];
	uint64_t deadline_ns;
	uint64_t payload; /* plain memory that the one who has the ball writes */
};

struct player {
	struct table *table;
	int me;
};

static uint64_t work(const struct end *e)
{
	return EPF_LOAD_ACQUIRE(&e->work);
}

/* Waits until there is more work than `seen`; 0 when the time is over or a wake-up was lost. */
static int await_work(struct table *t, struct end *e, uint64_t seen)
{
	while (work(e) == seen) {
		uint64_t begin;

		epf_bell_arm(&e->bell);
		begin = now_ns();
		if (work(e) == seen) {
			e->sleeps++;
			epf_bell_sleep(&e->bell, 2 * SECOND);
			if (now_ns() - begin >= 2 * SECOND - SECOND / 10 && work(e) != seen &&
			    EPF_LOAD_RELAXED(&e->bell.sleeping)) {
				e->lost = true;
				return 0;
			}
		}
		epf_bell_disarm(&e->bell);
		if (now_ns() > t->deadline_ns + 4 * SECOND)
			return 0;
	}
	return 1;
}

static void give(struct end *to)
{
	EPF_STORE_RELEASE(&to->work, to->work + 1);
	if (epf_bell_must_ring(&to->bell))
		epf_bell_ring(&to->bell);
}

static void *play(void *arg)
{
	struct player *p = arg;
	struct end *mine = &p->table->ends[p->me], *other = &p->table->ends[!p->me];
	uint64_t n;

	for (n = 0; n < ROUNDS; n++) {
		if (p->me == 1 && !await_work(p->table, mine, n))
			break;
		p->table->payload++;
		give(other);
		if (p->me == 0 && !await_work(p->table, mine, n))
			break;
		/* Rounds enough, or time over: the one who serves says so by its last ball. */
		if (p->me == 0 && now_ns() > p->table->deadline_ns && n < ROUNDS - 2)
			n = ROUNDS - 2 - (ROUNDS - 2 - n);
	}
	return NULL;
}

static void no_wakeup_is_lost(void **state)
{
	static struct table t;
	struct player players[2] = { { &t, 0 }, { &t, 1 } };
	pthread_t threads[2];

	t.deadline_ns = now_ns() + 2 * SECOND;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, play, &players[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	(void)state;
}
