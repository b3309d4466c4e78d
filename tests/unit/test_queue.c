/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue between threads of one trust domain (rte_ring in our own memory): order, full, empty, refusal of bad sizes,
 * and many producers at once, whose items must all arrive, each producer's in order.
 */
#include "queues/epf_queue.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { PRODUCERS = 4, ITEMS = 30000 };

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

struct producer {
	struct epf_queue *q;
	uint64_t id;
};

static void *produce(void *arg)
{
	const struct producer *p = arg;

	for (uint64_t n = 0; n < ITEMS; n++) {
		payload[p->id][n] = ~n * (p->id + 1);
		while (!epf_queue_push(p->q, (struct epf_queue_item){ p->id, n }))
			sched_yield();
	}
	return NULL;
}

static void many_producers(void **state)
{
	struct producer p[PRODUCERS];
	pthread_t threads[PRODUCERS];
	uint64_t next[PRODUCERS] = { 0 }, wrong = 0;
	struct epf_queue *q;

	assert_int_equal(epf_queue_create(64, &q), 0);
	for (uint64_t i = 0; i < PRODUCERS; i++) {
		p[i] = (struct producer){ q, i };
		assert_int_equal(pthread_create(&threads[i], NULL, produce, &p[i]), 0);
	}
	for (uint64_t n = 0; n < (uint64_t)PRODUCERS * ITEMS;) {
		struct epf_queue_item item;

		if (!epf_queue_pop(q, &item)) {
			sched_yield();
			continue;
		}
		n++;
		if (item.a >= PRODUCERS || item.b != next[item.a]++ ||
		    payload[item.a][item.b % ITEMS] != ~item.b * (item.a + 1))
			wrong++;
	}
	for (int i = 0; i < PRODUCERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(wrong, 0);
	assert_true(epf_queue_is_empty(q));
	for (int i = 0; i < PRODUCERS; i++)
		assert_int_equal(next[i], ITEMS);
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
