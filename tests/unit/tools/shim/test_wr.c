/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work requests: every shape and what becomes of it, every reason for a refusal, doorbells that overtake their requests word by word in any
 * order, rings that wrap, completion words. Images come from shim_kit.h.
 */
#include "tools/shim/wr.h"

#include "tests/unit/tools/shim/shim_kit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SLOTS = 8, RING = 0x123456, HEAP = 1 << 20 };

#define BASE (UINT64_C(0x7f0000000000))

static const struct epf_wr_space space = {
	.heap_base = BASE, .heap_bytes = HEAP, .pes = 4, .region = 3
};

struct bench {
	struct epf_wr_ring ring;
	_Alignas(64) uint32_t slots[SLOTS][EPF_WR_WORDS];
	_Alignas(64) uint8_t cqe[EPF_WR_CQE_BYTES];
	uint64_t wakeup;
	uint64_t produced;
};

static void start(struct bench *b, uint64_t from)
{
	memset(b, 0, sizeof(*b));
	assert_int_equal(epf_wr_ring_init(&b->ring, b->slots, SLOTS, &b->wakeup, b->cqe, RING, 77),
			 0);
	/* Rings begin at 0; a test of the wrap begins where it likes. */
	b->ring.dequeued = b->ring.rung = b->produced = from;
	for (unsigned i = 0; i < SLOTS; i++)
		epf_wr_poison(&b->ring, from + i);
	b->wakeup = kit_wakeup(from, RING);
}

static void wake_client(struct bench *b, unsigned more)
{
	b->produced += more;
	b->wakeup = kit_wakeup(b->produced, RING);
}

static void write_slot(struct bench *b, uint64_t index, const uint8_t wr[64])
{
	memcpy(b->slots[index % SLOTS], wr, 64);
}

static void test_shapes(void **state)
{
	struct bench b;
	struct epf_op op;
	struct epf_wr w;
	uint8_t wr[64];

	start(&b, 0);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
	kit_put(wr, 0, RING, 2, 4096, BASE + 8192, 7168);
	write_slot(&b, 0, wr);
	kit_inline(wr, 1, RING, 1, 12, 0xdeadbeef);
	write_slot(&b, 1, wr);
	kit_add(wr, 2, RING, 3, 20, (uint32_t)-129);
	write_slot(&b, 2, wr);
	kit_add(wr, 3, RING, 3, 24, 5);
	write_slot(&b, 3, wr);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0); /* not rung yet */
	wake_client(&b, 4);

	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 1);
	assert_int_equal(w.kind, EPF_WR_PUT);
	epf_wr_op(&w, &space, &op);
	assert_int_equal(op.op, EPF_OP_PUT);
	assert_true(op.rank == 2 && op.local_offset == 8192 && op.remote_offset == 4096 &&
		    op.length == 7168 && op.local_region == 3 && op.remote_region == 3 &&
		    op.value == 0);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 1);
	epf_wr_op(&w, &space, &op);
	assert_int_equal(op.op, EPF_OP_PUT_INLINE);
	assert_true(op.rank == 1 && op.remote_offset == 12 && op.length == 4 &&
		    op.value == 0xdeadbeef);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 1);
	epf_wr_op(&w, &space, &op); /* the upper half of the word at 16 */
	assert_int_equal(op.op, EPF_OP_ADD);
	assert_true(op.rank == 3 && op.remote_offset == 16 && op.length == 8);
	assert_true(op.value == (uint64_t)(uint32_t)-129 << 32);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 1);
	epf_wr_op(&w, &space, &op);
	assert_true(op.remote_offset == 24 && op.value == 5);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
	assert_int_equal(b.ring.refusal, 0);
	assert_int_equal(b.ring.early, 0);
}

static uint64_t next_random(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

static void random_request(uint64_t *x, uint64_t index, uint8_t wr[64])
{
	uint64_t r = next_random(x);
	uint32_t pe = (uint32_t)(r >> 40) % 4;
	uint64_t remote = r % (HEAP / 2) & ~UINT64_C(3);

	if (r >> 60 < 6)
		kit_put(wr, index, RING, pe, remote, BASE + (remote ^ 64),
			4 + (uint32_t)(r >> 20) % 4096);
	else if (r >> 60 < 11)
		kit_inline(wr, index, RING, pe, remote, (uint32_t)next_random(x));
	else
		kit_add(wr, index, RING, pe, remote, (uint32_t)next_random(x));
}

/* The wakeup first, then the words one by one in any order: nothing is dequeued before the last, and then what was written. */
static void test_overtaking(void **state)
{
	uint64_t x = 0x1234567;
	struct bench b;

	start(&b, 65530); /* the index wraps on the way */
	for (unsigned round = 0; round < 5000; round++) {
		uint32_t image[EPF_WR_WORDS];
		struct epf_wr got = { 0 }, want;
		unsigned need, left;
		uint8_t wr[64];

		random_request(&x, b.produced, wr);
		memcpy(image, wr, 64);
		need = left = kit_words(wr);
		wake_client(&b, 1);
		while (left) {
			unsigned i = (unsigned)(next_random(&x) % EPF_WR_WORDS);

			if (!(left & 1u << i))
				continue;
			assert_int_equal(epf_wr_take(&b.ring, &space, &got), 0);
			assert_int_equal(b.ring.refusal, 0);
			b.slots[(b.produced - 1) % SLOTS][i] = image[i];
			left &= ~(1u << i);
		}
		assert_int_equal(epf_wr_take(&b.ring, &space, &got), 1);
		want = got;
		assert_int_equal(got.pe, wr[27]);
		assert_int_equal(want.bytes, need == 0x0fff ? (uint32_t)wr[32] << 24 |
								      (uint32_t)wr[33] << 16 |
								      (uint32_t)wr[34] << 8 | wr[35]
							    : 4u);
		if (need == 0x03ff)
			assert_int_equal(got.value, image[9]);
		if (need == 0xf3ff)
			assert_int_equal(got.value, __builtin_bswap32(image[8]));
	}
	assert_int_equal(b.ring.early, 5000);
}

/* A value that happens to equal the slot's changing poison: late, but dequeued. */
static void test_unlucky_value(void **state)
{
	for (unsigned which = 0; which < 2; which++) {
		uint32_t looks = 0;
		struct epf_wr w;
		struct bench b;
		uint8_t wr[64];

		start(&b, 0);
		if (which == 0) {
			kit_inline(wr, 0, RING, 1, 12, b.slots[0][9]);
		} else {
			kit_add(wr, 0, RING, 1, 12, 0);
			memcpy(wr + 32, &b.slots[0][8], 4);
		}
		write_slot(&b, 0, wr);
		wake_client(&b, 1);
		while (epf_wr_take(&b.ring, &space, &w) == 0 && looks <= EPF_WR_LOOKS)
			looks++;
		assert_in_range(looks, 1000, EPF_WR_LOOKS);
		assert_int_equal(b.ring.refusal, 0);
		assert_int_equal(b.ring.dequeued, 1);
	}
}

struct bad {
	uint32_t refusal;
	unsigned byte; /* of a request of `kind` */
	uint8_t value;
	char kind; /* put, inline, add */
};

/* Each refusal at least once, by one byte. */
static const struct bad bads[] = {
	{ EPF_WR_OPCODE, 3, 0x0a, 'p' },  { EPF_WR_OPCODE, 3, 0x09, 'i' },
	{ EPF_WR_OPCODE, 3, 0x10, 'p' },  { EPF_WR_INDEX, 2, 8, 'p' },
	{ EPF_WR_INDEX, 1, 1, 'a' },      { EPF_WR_RING, 6, 0x57, 'p' },
	{ EPF_WR_RING, 4, 0, 'i' },       { EPF_WR_SHAPE, 7, 4, 'p' },
	{ EPF_WR_SHAPE, 7, 3, 'a' },      { EPF_WR_SHAPE, 0, 8, 'p' },
	{ EPF_WR_SHAPE, 0, 0, 'a' },      { EPF_WR_SHAPE, 11, 0, 'p' },
	{ EPF_WR_SHAPE, 8, 1, 'p' },      { EPF_WR_SHAPE, 15, 1, 'i' },
	{ EPF_WR_SHAPE, 31, 1, 'p' },     { EPF_WR_SHAPE, 39, 1, 'a' },
	{ EPF_WR_SHAPE, 51, 8, 'a' },     { EPF_WR_PEER, 27, 4, 'p' },
	{ EPF_WR_PEER, 24, 0, 'i' },      { EPF_WR_PEER, 26, 0xaf, 'a' },
	{ EPF_WR_REMOTE, 20, 1, 'p' },    { EPF_WR_REMOTE, 17, 0x3f, 'i' },
	{ EPF_WR_REMOTE, 16, 0x80, 'a' }, { EPF_WR_LOCAL_KEY, 39, 0, 'p' },
	{ EPF_WR_LOCAL_KEY, 55, 0, 'a' }, { EPF_WR_LOCAL_KEY, 63, 4, 'a' },
	{ EPF_WR_LOCAL, 44, 1, 'p' },     { EPF_WR_LOCAL, 40, 0x40, 'p' },
	{ EPF_WR_ALIGN, 23, 1, 'p' },     { EPF_WR_ALIGN, 23, 2, 'a' },
	{ EPF_WR_ALIGN, 47, 3, 'p' },     { EPF_WR_LENGTH, 34, 0, 'p' },
	{ EPF_WR_LENGTH, 32, 0x90, 'p' },
};

static void test_refusals(void **state)
{
	unsigned seen = 1u << EPF_WR_OK | 1u << EPF_WR_DOORBELL_RING | 1u << EPF_WR_DOORBELL_INDEX;

	for (size_t i = 0; i < sizeof(bads) / sizeof(bads[0]); i++) {
		struct epf_wr w = { .kind = 99 };
		struct bench b;
		uint8_t wr[64];

		start(&b, 0);
		if (bads[i].kind == 'p')
			kit_put(wr, 0, RING, 1, 4096, BASE + 8192, 256);
		else if (bads[i].kind == 'i')
			kit_inline(wr, 0, RING, 1, 4096, 9);
		else
			kit_add(wr, 0, RING, 1, 4096, 9);
		wr[bads[i].byte] = bads[i].value;
		write_slot(&b, 0, wr);
		wake_client(&b, 1);
		assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
		if (b.ring.refusal != bads[i].refusal)
			fail_msg("row %zu: refusal %u, not %u", i, b.ring.refusal, bads[i].refusal);
		assert_int_equal(w.kind, 99);
		assert_int_equal(b.ring.dequeued, 0);
		/* Given up for good, also when a good one follows. */
		kit_put(wr, 0, RING, 1, 4096, BASE + 8192, 256);
		write_slot(&b, 0, wr);
		assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
		assert_true(strlen(epf_wr_refusal_text(b.ring.refusal)) > 20);
		seen |= 1u << bads[i].refusal;
	}
	assert_int_equal(seen, (1u << EPF_WR_REFUSALS) - 1);
	assert_non_null(epf_wr_refusal_text(EPF_WR_REFUSALS));
}

static void test_edges(void **state)
{
	static const struct {
		uint64_t remote, local;
		uint32_t bytes, refusal;
	} rows[] = {
		{ HEAP - 4, 0, 4, 0 },
		{ HEAP - 4, 0, 5, EPF_WR_REMOTE },
		{ HEAP, 0, 4, EPF_WR_REMOTE },
		{ 0, HEAP - 4, 4, 0 },
		{ 0, HEAP - 4, 8, EPF_WR_LOCAL },
		{ 0, HEAP, 4, EPF_WR_LOCAL },
		{ 0, 0, HEAP, 0 },
		{ 0, 0, HEAP + 4, EPF_WR_LOCAL },
		{ UINT64_MAX - 3, 0, 4, EPF_WR_REMOTE },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct epf_wr w;
		struct bench b;
		uint8_t wr[64];

		start(&b, 0);
		kit_put(wr, 0, RING, 1, rows[i].remote, BASE + rows[i].local, rows[i].bytes);
		write_slot(&b, 0, wr);
		wake_client(&b, 1);
		assert_int_equal(epf_wr_take(&b.ring, &space, &w), rows[i].refusal == 0);
		assert_int_equal(b.ring.refusal, rows[i].refusal);
	}
}

static void test_wakeups(void **state)
{
	struct epf_wr w;
	struct bench b;

	start(&b, 0);
	b.wakeup = kit_wakeup(1, RING + 1);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
	assert_int_equal(b.ring.refusal, EPF_WR_DOORBELL_RING);
	start(&b, 0);
	b.wakeup = kit_wakeup(SLOTS + 1, RING);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
	assert_int_equal(b.ring.refusal, EPF_WR_DOORBELL_INDEX);
	start(&b, 5);
	b.wakeup = kit_wakeup(4, RING); /* an older one lands last: it means nothing */
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
	assert_int_equal(b.ring.refusal, EPF_WR_OK);
	assert_int_equal(b.ring.rung, 5);
	b.wakeup = kit_wakeup((uint64_t)5 - SLOTS, RING);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
	assert_int_equal(b.ring.refusal, EPF_WR_OK);
	b.wakeup = kit_wakeup((uint64_t)5 - SLOTS - 1, RING);
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
	assert_int_equal(b.ring.refusal, EPF_WR_DOORBELL_INDEX);
	start(&b, 0);
	b.wakeup = kit_wakeup(1, RING) | 1;
	assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
	assert_int_equal(b.ring.refusal, EPF_WR_DOORBELL_INDEX);
}

/* A full ring, dequeued, reused many times over: a slot of the lap before is never taken for one of this lap. */
static void test_laps(void **state)
{
	struct epf_wr w;
	struct bench b;
	uint8_t wr[64];

	start(&b, 65536 - 3 * SLOTS);
	for (unsigned lap = 0; lap < 20; lap++) {
		for (unsigned i = 0; i < SLOTS; i++) {
			kit_put(wr, b.produced + i, RING, 1, 64 * i, BASE + 64 * lap, 64);
			write_slot(&b, b.produced + i, wr);
		}
		wake_client(&b, SLOTS);
		for (unsigned i = 0; i < SLOTS; i++) {
			assert_int_equal(epf_wr_take(&b.ring, &space, &w), 1);
			assert_true(w.remote_offset == 64 * i && w.local_offset == 64 * lap);
		}
		/* A wakeup with nothing written: the slots hold poison, not last lap's requests. */
		b.wakeup = kit_wakeup(b.produced + 1, RING);
		assert_int_equal(epf_wr_take(&b.ring, &space, &w), 0);
		assert_int_equal(b.ring.refusal, 0);
		b.ring.rung = b.ring.dequeued;
		b.wakeup = kit_wakeup(b.produced, RING);
	}
}

static void test_completion(void **state)
{
	struct bench b;

	start(&b, 0);
	assert_true(b.cqe[60] == 0xff && b.cqe[61] == 0xff); /* index -1: none is done */
	epf_wr_complete(&b.ring, 1);
	assert_true(b.cqe[60] == 0 && b.cqe[61] == 0);
	epf_wr_complete(&b.ring, 0x10302);
	assert_true(b.cqe[60] == 3 && b.cqe[61] == 1);
	assert_true(b.cqe[59] == 0xff && b.cqe[62] == 0xff);
}

static void test_init_limits(void **state)
{
	static _Alignas(64) uint32_t slots[SLOTS][EPF_WR_WORDS];
	static _Alignas(64) uint8_t cqe[EPF_WR_CQE_BYTES];
	struct epf_wr_ring r = { .number = 42 };
	uint64_t wakeup = 7;

	assert_int_equal(epf_wr_ring_init(&r, slots, 6, &wakeup, cqe, 1, 1), -EINVAL);
	assert_int_equal(epf_wr_ring_init(&r, slots, 2, &wakeup, cqe, 1, 1), -EINVAL);
	assert_int_equal(epf_wr_ring_init(&r, slots, 65536, &wakeup, cqe, 1, 1), -EINVAL);
	assert_int_equal(epf_wr_ring_init(&r, slots, SLOTS, &wakeup, cqe, 1 << 24, 1), -EINVAL);
	assert_true(r.number == 42 && wakeup == 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes),        cmocka_unit_test(test_overtaking),
		cmocka_unit_test(test_unlucky_value), cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_edges),         cmocka_unit_test(test_wakeups),
		cmocka_unit_test(test_laps),          cmocka_unit_test(test_completion),
		cmocka_unit_test(test_init_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
