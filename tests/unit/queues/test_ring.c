/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command ring against a plain queue as its model: seeded pushes, takes and late releases, narrow and wide, full and
 * empty, over the wrap of the ring's index and of its 64-bit counters. One thread; test_ring_threads.c has two.
 * EPF_SEED=<n> replays one seed.
 */
#include "queues/epf_ring.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Four sizes of a ring, three times each. */
enum { STEPS = 1000, MAX_LOG2 = 7, SEEDS = 12, SEEDS_LONG = 100 };

static uint64_t first_seed = 1, seeds = SEEDS, rng;

static uint64_t next_random(void) /* splitmix64 */
{
	uint64_t z = rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static struct epf_ring_shm *make_ring(unsigned log2, uint64_t start)
{
	struct epf_ring_shm *shm = aligned_alloc(128, epf_ring_bytes(log2));

	assert_non_null(shm);
	memset(shm, 0, epf_ring_bytes(log2));
	epf_ring_format(shm, log2, 3, 5);
	if (start)
		epf_ring_reset(shm, start);
	return shm;
}

static void header_says_what_it_is(void **state)
{
	struct epf_ring_shm *shm = make_ring(6, 0);

	assert_memory_equal(&shm->magic, "EEPFRNG1", 8);
	assert_int_equal(shm->version, EPF_RING_VERSION);
	assert_int_equal(shm->log2_slots, 6);
	assert_int_equal(shm->ring_id, 3);
	assert_int_equal(shm->rank, 5);
	assert_int_equal(epf_ring_bytes(6), 512 + 64 * 16);
	assert_ptr_equal(epf_ring_slots(shm), (char *)shm + 512);
	assert_int_equal((uintptr_t)epf_ring_slots(shm) % EPF_CMD_BYTES, 0);
	free(shm);
}

/* The model: what was pushed and not dequeued, in order; slots that the producer may believe free. */
struct model {
	struct epf_cmd queue[1 << MAX_LOG2];
	unsigned head, n;   /* slots in the queue */
	unsigned not_given; /* slots dequeued and not released */
	unsigned size;
};

static void model_push(struct model *m, struct epf_cmd c)
{
	m->queue[(m->head + m->n++) % m->size] = c;
}

static struct epf_cmd model_pop(struct model *m)
{
	struct epf_cmd c = m->queue[m->head];

	m->head = (m->head + 1) % m->size;
	m->n--;
	m->not_given++;
	return c;
}

static struct epf_cmd without_parity(struct epf_cmd c)
{
	c.lo &= ~EPF_CMD_PARITY_BITS;
	c.hi &= ~EPF_CMD_PARITY_BITS;
	return c;
}

/* A slot's content with the given operation and parity bits clear: every other bit random. */
static struct epf_cmd random_slot(unsigned op)
{
	struct epf_cmd c = { next_random(), next_random() };

	c = without_parity(c);
	c.lo = (c.lo & ~UINT64_C(0xe)) | (uint64_t)op << 1;
	return c;
}

static void push_one(struct epf_ring_producer *p, struct model *m, bool wide)
{
	struct epf_cmd c[2] = { random_slot(wide ? EPF_OP_WIDE : EPF_OP_PUT),
				random_slot((unsigned)(next_random() % 8)) };
	unsigned slots = wide ? 2 : 1;
	bool fits = m->n + m->not_given + slots <= m->size;
	uint64_t head = p->head, pushed = p->pushed;

	assert_int_equal(wide ? epf_ring_push_wide(p, c) : epf_ring_push(p, c[0]), fits);
	assert_int_equal(p->head, head + (fits ? slots : 0));
	assert_int_equal(p->pushed, pushed + fits);
	for (unsigned i = 0; i < slots && fits; i++)
		model_push(m, c[i]);
}

/* Takes one command as a core does; true if there was one. */
static bool take_one(struct epf_ring_consumer *c, struct model *m)
{
	struct epf_cmd slot, want;
	unsigned slots;

	if (!epf_ring_peek(c, c->tail, &slot)) {
		assert_int_equal(m->n, 0);
		return false;
	}
	assert_true(m->n > 0);
	slots = epf_cmd_op(slot) == EPF_OP_WIDE ? 2 : 1;
	for (unsigned i = 0; i < slots; i++) {
		assert_true(epf_ring_peek(c, c->tail + i, &slot));
		slot = without_parity(slot);
		want = model_pop(m);
		assert_memory_equal(&slot, &want, sizeof(slot));
	}
	c->tail += slots;
	return true;
}

static void run_model(unsigned log2, uint64_t start)
{
	struct epf_ring_shm *shm = make_ring(log2, start);
	static struct model m;
	struct epf_ring_producer p;
	struct epf_ring_consumer c;

	memset(&m, 0, sizeof(m));
	m.size = 1u << log2;
	epf_ring_producer_init(&p, shm, start);
	epf_ring_consumer_init(&c, shm, log2, start);
	for (int i = 0; i < STEPS; i++) {
		unsigned n = (unsigned)(next_random() % (m.size + 4));

		switch (next_random() % 4) {
		case 0: /* a burst until it is full, or short of it */
		case 1:
			while (n--)
				push_one(&p, &m, next_random() % 3 == 0);
			break;
		case 2: /* dequeued, but not released yet */
			while (n-- && take_one(&c, &m))
				;
			break;
		default:
			epf_ring_release(&c);
			m.not_given = 0;
			assert_int_equal(shm->dequeued, c.tail);
		}
		assert_int_equal(p.head - c.tail, m.n);
	}
	while (take_one(&c, &m))
		;
	free(shm);
}

static void ring_is_a_queue(void **state)
{
	for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++) {
		unsigned log2 = EPF_RING_LOG2_MIN + (unsigned)(seed % (MAX_LOG2 - 3));
		uint64_t size = UINT64_C(1) << log2;
		/* Counters begin at 0, around the first laps, and short of the wrap of 32 and 64 bits. */
		const uint64_t starts[] = {
			0,        size - 1,     size,       3 * size - 2,   (1ull << 32) - 7,
			0 - size, 0 - size - 1, UINT64_MAX, UINT64_MAX - 40
		};

		rng = seed;
		for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
			run_model(log2, starts[i]);
	}
}

/* A wide command whose halves lie in the last and the first slot, both parities; and one that waits for room. */
static void wide_crosses_the_end(void **state)
{
	const uint64_t starts[] = { 15, 31, UINT64_MAX };

	for (unsigned i = 0; i < 3; i++) {
		struct epf_ring_shm *shm = make_ring(4, starts[i]);
		struct epf_cmd wide[2] = { random_slot(EPF_OP_WIDE), random_slot(0) }, got;
		struct epf_ring_producer p;
		struct epf_ring_consumer c;

		epf_ring_producer_init(&p, shm, starts[i]);
		epf_ring_consumer_init(&c, shm, 4, starts[i]);
		assert_int_equal(epf_ring_push_wide(&p, wide), 1);
		assert_int_equal(epf_ring_peek(&c, c.tail, &got), 1);
		got = without_parity(got);
		assert_memory_equal(&got, &wide[0], sizeof(got));
		assert_int_equal(epf_ring_peek(&c, c.tail + 1, &got), 1);
		got = without_parity(got);
		assert_memory_equal(&got, &wide[1], sizeof(got));
		/* The two halves lie at the two ends, in laps of different parity. */
		assert_int_not_equal(epf_ring_slots(shm)[15].lo & 1, epf_ring_slots(shm)[0].lo & 1);
		for (int n = 2; n < 15; n++)
			assert_int_equal(epf_ring_push(&p, random_slot(EPF_OP_PUT)), 1);
		assert_int_equal(epf_ring_push_wide(&p, wide), 0); /* one slot is left */
		assert_int_equal(epf_ring_push(&p, wide[1]), 1);
		assert_int_equal(epf_ring_push(&p, wide[1]), 0);
		c.tail += 2;
		assert_int_equal(epf_ring_push(&p, wide[1]), 0); /* dequeued, but not said */
		epf_ring_release(&c);
		assert_int_equal(epf_ring_push_wide(&p, wide), 1);
		free(shm);
	}
}

/* Half a slot is never a command, in no lap, whichever half came first. */
static void torn_slot_is_not_taken(void **state)
{
	const uint64_t starts[] = { 0, 16, 32, 5, 21, UINT64_MAX - 3 };

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
		for (int half = 0; half < 2; half++) {
			struct epf_ring_shm *shm = make_ring(4, starts[i]);
			struct epf_cmd *slot = &epf_ring_slots(shm)[starts[i] & 15], got;
			struct epf_cmd c = epf_cmd_with_parity(random_slot(EPF_OP_PUT),
							       epf_cmd_parity(starts[i], 4));
			struct epf_ring_consumer consumer;

			epf_ring_consumer_init(&consumer, shm, 4, starts[i]);
			assert_int_equal(epf_ring_peek(&consumer, starts[i], &got), 0);
			*(half ? &slot->hi : &slot->lo) = half ? c.hi : c.lo;
			assert_int_equal(epf_ring_peek(&consumer, starts[i], &got), 0);
			*(half ? &slot->lo : &slot->hi) = half ? c.lo : c.hi;
			assert_int_equal(epf_ring_peek(&consumer, starts[i], &got), 1);
			assert_memory_equal(&got, &c, sizeof(got));
			/* One lap on the same bits are old. */
			assert_int_equal(epf_ring_peek(&consumer, starts[i] + 16, &got), 0);
			free(shm);
		}
}

/* The producer asks for `dequeued` only when it seems to need it: a line of the consumer's that it leaves alone. */
static void room_is_cached(void **state)
{
	struct epf_ring_shm *shm = make_ring(4, 0);
	struct epf_ring_producer p;

	epf_ring_producer_init(&p, shm, 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(epf_ring_push(&p, random_slot(EPF_OP_PUT)), 1);
	shm->dequeued = 8;
	assert_int_equal(epf_ring_room(&p, 8), 8); /* enough by what it knows */
	assert_int_equal(p.dequeued, 0);
	assert_int_equal(epf_ring_room(&p, 9), 16);
	assert_int_equal(p.dequeued, 8);
	free(shm);
}

/* Nothing to publish costs no store: the line stays where the producer has it. */
static void release_of_nothing_stores_nothing(void **state)
{
	struct epf_ring_shm *shm = make_ring(4, 7);
	struct epf_ring_consumer c;

	epf_ring_consumer_init(&c, shm, 4, 7);
	shm->dequeued = 99;
	epf_ring_release(&c);
	assert_int_equal(shm->dequeued, 99);
	c.tail++;
	epf_ring_release(&c);
	assert_int_equal(shm->dequeued, 8);
	shm->dequeued = 99;
	epf_ring_release(&c); /* said before */
	assert_int_equal(shm->dequeued, 99);
	free(shm);
}

static void done_words_start_with_the_ring(void **state)
{
	struct epf_ring_shm *shm = make_ring(4, 1000);
	struct epf_ring_producer p;

	epf_ring_producer_init(&p, shm, 1000);
	assert_int_equal(epf_ring_retired(&p), 1000);
	assert_int_equal(p.pushed, 1000);
	assert_int_equal(epf_ring_push(&p, random_slot(EPF_OP_PUT)), 1);
	assert_int_equal(p.pushed, 1001);
	EPF_STORE_RELEASE(&shm->done.retired, 1001);
	assert_int_equal(epf_ring_retired(&p), p.pushed);
	free(shm);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_says_what_it_is),
		cmocka_unit_test(ring_is_a_queue),
		cmocka_unit_test(wide_crosses_the_end),
		cmocka_unit_test(torn_slot_is_not_taken),
		cmocka_unit_test(room_is_cached),
		cmocka_unit_test(release_of_nothing_stores_nothing),
		cmocka_unit_test(done_words_start_with_the_ring),
	};

	if (getenv("EPF_TEST_LONG"))
		seeds = SEEDS_LONG;
	if (getenv("EPF_SEED")) {
		first_seed = strtoull(getenv("EPF_SEED"), NULL, 0);
		seeds = 1;
	}
	printf("# seeds %" PRIu64 " to %" PRIu64 "; EPF_SEED=n runs one\n", first_seed,
	       first_seed + seeds - 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
