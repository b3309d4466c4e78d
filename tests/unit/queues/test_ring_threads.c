/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command ring between two threads, under ThreadSanitizer too: each command names a place in plain memory that its
 * producer wrote before (R1/A1) and writes again once the slot has come back (R2/A2); the consumer fails some of them
 * and writes error record and completion counter (R3/A3). A broken pair shows as a data race or as a wrong sum.
 */
#include "queues/epf_ring.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { COMMANDS = 200000, LOG2 = 5, SLOTS = 1 << LOG2, FAIL_EACH = 1000, LIMIT_S = 60 };

/* With one CPU that others want too each lap of the ring is two turns of its scheduler: after this time so many are enough. */
enum { ENOUGH_S = 8, ENOUGH = 5 * FAIL_EACH };

struct shared {
	struct epf_ring_shm *shm;
	uint64_t start;
	uint64_t total;          /* commands of this run: COMMANDS until the producer says fewer */
	uint64_t payload[SLOTS]; /* plain memory: one word per slot, guarded by the ring alone */
	uint64_t brought
		[2 *
		 SLOTS]; /* plain memory: what a GET would bring, guarded by the completion counter alone */
	uint64_t sum, dequeued; /* the consumer's, read after its end */
	uint64_t late; /* completion counters without the record or the bytes they promise */
	bool looks; /* the producer reads completion counters: these order so much that a broken `dequeued` would not show */
	bool failed;
};

static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static bool later(const struct timespec *begin, long seconds)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec - begin->tv_sec > seconds;
}

/* When a side last got on, and how far it was. */
struct progress {
	struct timespec since;
	uint64_t n;
};

/* True when it is stalled for LIMIT_S; asked only when there is nothing to do. */
static bool stuck(struct progress *p, uint64_t n)
{
	if (n == p->n)
		return later(&p->since, LIMIT_S);
	p->n = n;
	clock_gettime(CLOCK_MONOTONIC, &p->since);
	return false;
}

/* One command: every third is wide. What it stands for is in the payload of its first slot. */
static int push(struct epf_ring_producer *p, struct shared *s, uint64_t n)
{
	struct epf_cmd wide[2] = { { (uint64_t)EPF_OP_WIDE << 1, n << 1 }, { n << 1, ~n << 1 } };
	struct epf_cmd narrow = { (uint64_t)EPF_OP_PUT << 1 | n << 4, n << 1 };
	unsigned slots = n % 3 == 0 ? 2 : 1;

	if (epf_ring_room(p, slots) < slots)
		return 0;
	s->payload[p->head % SLOTS] = mix(n);
	return slots == 2 ? epf_ring_push_wide(p, wide) : epf_ring_push(p, narrow);
}

/* What the completion counters say must be complete: a failure among the retired ones is in the record. */
static void look_at_done(const struct epf_ring_producer *p, struct shared *s)
{
	const struct epf_done *done = &p->shm->done;
	uint64_t retired = epf_ring_retired(p) - s->start; /* A3 */

	if (retired && s->brought[(retired - 1) % (2 * SLOTS)] != mix(~(retired - 1)))
		s->late++;
	if (retired < FAIL_EACH)
		return;
	if (EPF_LOAD_RELAXED(&done->failed) < retired / FAIL_EACH ||
	    done->error_index != s->start + FAIL_EACH || done->error_rank != 77 ||
	    done->error_status != 6 || done->error_reason != 302)
		s->late++;
}

static void *produce(void *arg)
{
	struct shared *s = arg;
	struct epf_ring_producer p;
	struct timespec begin;
	struct progress last;
	uint64_t n = 0;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	last = (struct progress){ .since = begin };
	epf_ring_producer_init(&p, s->shm, s->start);
	while (n < COMMANDS) {
		if (s->looks)
			look_at_done(&p, s);
		if (push(&p, s, n)) {
			n++;
			continue;
		}
		if (n >= ENOUGH && later(&begin, ENOUGH_S))
			break;
		if (stuck(&last, n)) {
			__atomic_store_n(&s->failed, true, __ATOMIC_RELAXED);
			break;
		}
		sched_yield();
	}
	__atomic_store_n(&s->total, n, __ATOMIC_RELEASE);
	return NULL;
}

static void retire(struct shared *s, uint64_t n)
{
	struct epf_done *done = &s->shm->done;

	s->brought[n % (2 * SLOTS)] =
		mix(~n); /* not read again before the producer has pushed 64 more */
	if ((n + 1) % FAIL_EACH == 0) {
		if (n + 1 == FAIL_EACH) {
			done->error_rank = 77;
			done->error_status = 6;
			done->error_reason = 302;
			EPF_STORE_RELEASE(&done->error_index, s->start + n + 1);
		}
		EPF_STORE_RELEASE(&done->failed, (n + 1) / FAIL_EACH);
	}
	EPF_STORE_RELEASE(&done->retired, s->start + n + 1); /* R3 */
}

/* Takes one command; 0: none, -1: it is not the one that must come. */
static int take(struct epf_ring_consumer *c, struct shared *s, uint64_t n)
{
	struct epf_cmd a, b = { 0, 0 };
	bool wide;

	if (!epf_ring_peek(c, c->tail, &a))
		return 0;
	wide = epf_cmd_op(a) == EPF_OP_WIDE;
	if (wide && !epf_ring_peek(c, c->tail + 1, &b))
		return 0;
	if (wide != (n % 3 == 0) || a.hi >> 1 != n ||
	    (wide && (b.lo >> 1 != n || b.hi >> 1 != (~n & UINT64_MAX >> 1))))
		return -1;
	s->sum += s->payload[c->tail % SLOTS];
	c->tail += wide ? 2 : 1;
	return 1;
}

static void *consume(void *arg)
{
	struct shared *s = arg;
	struct epf_ring_consumer c;
	struct progress last = { .n = 0 };
	uint64_t n = 0;

	clock_gettime(CLOCK_MONOTONIC, &last.since);
	epf_ring_consumer_init(&c, s->shm, LOG2, s->start);
	while (n < __atomic_load_n(&s->total, __ATOMIC_ACQUIRE)) {
		int rc = take(&c, s, n);

		if (rc < 0 || (rc == 0 && stuck(&last, n))) {
			__atomic_store_n(&s->failed, true, __ATOMIC_RELAXED);
			break;
		}
		if (rc == 0) {
			epf_ring_release(&c);
			sched_yield();
			continue;
		}
		retire(s, n++);
		if (n % 7 == 0)
			epf_ring_release(&c);
	}
	s->dequeued = n;
	return NULL;
}

static void run(uint64_t start, bool looks)
{
	static struct shared s;
	pthread_t producer, consumer;
	uint64_t want = 0;

	memset(&s, 0, sizeof(s));
	s.start = start;
	s.total = COMMANDS;
	s.looks = looks;
	s.shm = aligned_alloc(128, epf_ring_bytes(LOG2));
	assert_non_null(s.shm);
	memset(s.shm, 0, epf_ring_bytes(LOG2));
	epf_ring_format(s.shm, LOG2, 0, 0);
	epf_ring_reset(s.shm, start);
	assert_int_equal(pthread_create(&consumer, NULL, consume, &s), 0);
	assert_int_equal(pthread_create(&producer, NULL, produce, &s), 0);
	pthread_join(producer, NULL);
	pthread_join(consumer, NULL);
	for (uint64_t n = 0; n < s.total; n++)
		want += mix(n);
	assert_false(s.failed);
	assert_true(s.total >= ENOUGH);
	assert_int_equal(s.dequeued, s.total);
	assert_int_equal(s.sum, want);
	assert_int_equal(s.late, 0);
	assert_int_equal(s.shm->done.retired, start + s.total);
	assert_int_equal(s.shm->done.failed, s.total / FAIL_EACH);
	free(s.shm);
}

static void commands_and_payload_arrive(void **state)
{
	run(0, false);
}

static void done_words_keep_their_promise(void **state)
{
	run(0, true);
}

static void counters_may_wrap_meanwhile(void **state)
{
	run(0 - (uint64_t)ENOUGH / 2, false);
	run(0 - (uint64_t)ENOUGH / 2, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(commands_and_payload_arrive),
		cmocka_unit_test(done_words_keep_their_promise),
		cmocka_unit_test(counters_may_wrap_meanwhile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
