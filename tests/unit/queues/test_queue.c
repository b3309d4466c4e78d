/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue between threads of one trust domain (rte_ring in our own memory): order, full, empty, refusal of bad sizes,
 * and many producers at once, whose items must all arrive, each producer's in order.
 */
#include "queues/epf_base.h"
#include "queues/epf_queue.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

enum { PRODUCERS = 4, ITEMS = 30000, ITEMS_LEAST = 500 };

#define PATIENCE_NS UINT64_C(5000000000)

static void sizes_are_checked(void **state)
{
	struct epf_queue *const before = (struct epf_queue *)(void *)state, *q = before;

	assert_int_equal(epf_queue_create(0, &q), -EINVAL);
	assert_int_equal(epf_queue_create(1, &q), -EINVAL);
	assert_int_equal(epf_queue_create(7, &q), -EINVAL);
	assert_int_equal(epf_queue_create(1u << 31, &q), -EINVAL);
	assert_ptr_equal(q, before); /* written on success only */
	epf_queue_destroy(NULL);
}

static void first_in_first_out(void **state)
{
	struct epf_queue *q;
	struct epf_queue_item item = { 1, 2 };
	uint64_t in = 0, out = 0;

	assert_int_equal(epf_queue_create(8, &q), 0);
	assert_true(epf_queue_is_empty(q));
	assert_int_equal(epf_queue_pop(q, &item), 0);
	assert_int_equal(item.a, 1); /* untouched */
	for (int round = 0; round < 1000; round++) {
		while (epf_queue_push(q, (struct epf_queue_item){ in, ~in }))
			in++;
		assert_int_equal(in - out, 7); /* one slot stays unused */
		assert_false(epf_queue_is_empty(q));
		for (int i = 0; i < 1 + round % 7; i++) {
			assert_int_equal(epf_queue_pop(q, &item), 1);
			assert_int_equal(item.a, out);
			assert_int_equal(item.b, ~out++);
		}
	}
	epf_queue_destroy(q);
}

static uint64_t payload[PRODUCERS][ITEMS]; /* plain memory, guarded by the queue alone */

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

struct producer {
	struct epf_queue *q;
	uint64_t id;
	uint64_t sent;
	const uint32_t *enough;
	uint32_t *done;
};

static void *produce(void *arg)
{
	struct producer *p = arg;

	while (p->sent < ITEMS && (p->sent < ITEMS_LEAST || !EPF_LOAD_RELAXED(p->enough))) {
		payload[p->id][p->sent] = ~p->sent * (p->id + 1);
		while (!epf_queue_push(p->q, (struct epf_queue_item){ p->id, p->sent }))
			sched_yield();
		p->sent++;
	}
	__atomic_fetch_add(p->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

/*
 * Where there are fewer CPUs than producers these may fall into step, each waiting in its push for one that does not run: every item then costs a
 * slice of the scheduler. So after PATIENCE_NS fewer items will do.
 */
static void many_producers(void **state)
{
	uint64_t next[PRODUCERS] = { 0 }, wrong = 0, begun = now_ns();
	uint32_t enough = 0, done = 0, all;
	struct producer p[PRODUCERS];
	pthread_t threads[PRODUCERS];
	struct epf_queue *q;

	assert_int_equal(epf_queue_create(64, &q), 0);
	for (uint64_t i = 0; i < PRODUCERS; i++) {
		p[i] = (struct producer){ .q = q, .id = i, .enough = &enough, .done = &done };
		assert_int_equal(pthread_create(&threads[i], NULL, produce, &p[i]), 0);
	}
	do {
		struct epf_queue_item item;

		all = __atomic_load_n(&done, __ATOMIC_ACQUIRE) == PRODUCERS;
		if (now_ns() - begun > PATIENCE_NS)
			EPF_STORE_RELAXED(&enough, 1u);
		for (; epf_queue_pop(q, &item); all = 0)
			if (item.a >= PRODUCERS || item.b != next[item.a]++ ||
			    payload[item.a][item.b % ITEMS] != ~item.b * (item.a + 1))
				wrong++;
		sched_yield();
	} while (!all);
	for (int i = 0; i < PRODUCERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(wrong, 0);
	assert_true(epf_queue_is_empty(q));
	for (int i = 0; i < PRODUCERS; i++) {
		assert_int_equal(next[i], p[i].sent);
		assert_true(p[i].sent >= ITEMS_LEAST);
	}
	epf_queue_destroy(q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_are_checked),
		cmocka_unit_test(first_in_first_out),
		cmocka_unit_test(many_producers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
