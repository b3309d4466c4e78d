/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proxy channel: every request that is served and what becomes of it, every refusal, words that come in any order, laps.
 * Images come from shim_kit.h.
 */
#include "tools/shim/channel.h"

#include "tests/unit/tools/shim/shim_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define BASE (UINT64_C(0x7f0000000000))
#define HEAP (UINT64_C(1) << 30)

static const struct epf_wr_space space = {
	.heap_base = BASE, .heap_bytes = HEAP, .pes = 4, .region = 3
};

struct bench {
	struct epf_channel channel;
	uint64_t *words;
	uint64_t issued; /* bytes */
};

static void start(struct bench *b)
{
	b->words = calloc(1, EPF_CHANNEL_BYTES);
	assert_non_null(b->words);
	b->channel = (struct epf_channel){ .words = b->words };
	b->issued = 0;
}

static void stop(struct bench *b)
{
	free(b->words);
}

/* Word i of a request at `issued`, with its lap. */
static void put_word(struct bench *b, unsigned i, uint64_t word)
{
	uint64_t at = b->issued + 8 * i;

	b->words[at % EPF_CHANNEL_BYTES / 8] = word | ((at / EPF_CHANNEL_BYTES) % 2 == 0);
}

static void put(struct bench *b, const uint64_t *w, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		put_word(b, i, w[i]);
	b->issued += 8 * n;
}

/* NVSHMEM 3.5's fence of queues: a word for each of them follows, and the next request after those. */
static void test_queue_fence(void **state)
{
	struct epf_channel_req r;
	struct bench b;
	uint64_t w[8];

	start(&b);
	for (uint64_t queues = 1; queues <= 5; queues++) {
		w[0] = queues << 32 | 106 << 16;
		for (uint64_t i = 1; i <= queues; i++)
			w[i] = (i + 1) << 32 | 106 << 16 | 1 << 8;
		put(&b, w, (unsigned)queues + 1);
		put(&b, w, kit_channel_amo(w, 7, 8, 2, 0x123458, queues, 8));
		assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
		assert_int_equal(r.kind, EPF_CHANNEL_FENCE);
		assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
		assert_true(r.kind == EPF_CHANNEL_SET && r.value == queues);
	}
	w[0] = UINT64_C(6) << 32 | 106 << 16;
	put(&b, w, 7);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 0);
	assert_int_equal(b.channel.refusal, EPF_CHANNEL_LENGTH);
	stop(&b);
}

static void test_served(void **state)
{
	struct epf_channel_req r;
	struct epf_op op;
	struct bench b;
	uint64_t w[6];

	start(&b);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 0);
	put(&b, w, kit_channel_amo(w, 7, 8, 2, 0x123458, 0x1122334455667788, 8));
	put(&b, w, kit_channel_amo(w, 107, 9, 1, 16, 5, 8)); /* with a queue */
	put(&b, w, kit_channel_amo(w, 7, 10, 3, 24, UINT64_MAX, 8));
	w[0] = 6 << 16;
	put(&b, w, 1);
	put(&b, w, kit_channel_value(w, 2, 1, 3, 0xaabbccddeeff1122, 2));
	put(&b, w, kit_channel_value(w, 102, 1, 4, 0x99, 1));
	put(&b, w, kit_channel_put(w, 1, 1, 999, BASE + 0x1234567, 77777));
	put(&b, w, kit_channel_put(w, 101, 0, 0, BASE, HEAP));

	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
	epf_channel_op(&r, &space, &op);
	assert_true(op.op == EPF_OP_PUT_INLINE && op.rank == 2 && op.remote_offset == 0x123458 &&
		    op.value == 0x1122334455667788 && op.length == 8 && op.remote_region == 3);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
	assert_true(r.kind == EPF_CHANNEL_SET && r.pe == 1 && r.value == 5);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
	epf_channel_op(&r, &space, &op);
	assert_true(op.op == EPF_OP_ADD && op.rank == 3 && op.length == 8 &&
		    op.value == UINT64_MAX && op.remote_offset == 24);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
	assert_int_equal(r.kind, EPF_CHANNEL_FENCE);
	epf_channel_op(&r, &space, &op);
	assert_int_equal(op.op, EPF_OP_NOP);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
	assert_true(r.kind == EPF_CHANNEL_SET && r.bytes == 2 && r.value == 0x1122);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
	assert_true(r.bytes == 1 && r.value == 0x99);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
	epf_channel_op(&r, &space, &op);
	assert_true(op.op == EPF_OP_PUT && op.rank == 1 && op.local_offset == 0x1234567 &&
		    op.remote_offset == 999 && op.length == 77777 && op.local_region == 3);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
	assert_true(r.kind == EPF_CHANNEL_PUT && r.bytes == HEAP);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 0);
	assert_int_equal(b.channel.processed, b.issued);
	assert_int_equal(b.channel.refusal, 0);
	stop(&b);
}

/* Words in any order: nothing before the last one. Enough of them that the ring wraps twice, within requests too. */
static void test_any_order(void **state)
{
	uint64_t seed = 99;
	struct bench b;

	start(&b);
	while (b.issued < 5 * (uint64_t)EPF_CHANNEL_BYTES / 2) {
		unsigned n, left, i;
		struct epf_channel_req r;
		uint64_t w[6];

		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		n = kit_channel_amo(w, seed >> 63 ? 107 : 7, 9, (uint32_t)(seed >> 50) % 4,
				    (seed >> 20) % (HEAP - 8), seed, 8);
		left = (1u << n) - 1;
		for (i = (unsigned)(seed >> 33) % n; left;
		     i = (i + 1 + (unsigned)(seed >> 40) % 3) % n) {
			if (!(left & 1u << i)) {
				i = (unsigned)__builtin_ctz(left);
			}
			if (epf_channel_take(&b.channel, &space, &r) != 0)
				fail_msg("taken before its last word, at %llu",
					 (unsigned long long)b.issued);
			put_word(&b, i, w[i]);
			left &= ~(1u << i);
		}
		b.issued += 8 * n;
		assert_int_equal(epf_channel_take(&b.channel, &space, &r), 1);
		assert_true(r.value == seed && r.remote_offset == (seed >> 20) % (HEAP - 8));
	}
	assert_true(b.channel.early > 1000);
	stop(&b);
}

static void refused(uint32_t refusal, const uint64_t *w, unsigned n)
{
	struct epf_channel_req r = { .kind = 99 };
	struct bench b;

	start(&b);
	put(&b, w, n);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 0);
	assert_int_equal(b.channel.refusal, refusal);
	assert_int_equal(r.kind, 99);
	assert_int_equal(b.channel.processed, 0);
	assert_int_equal(epf_channel_take(&b.channel, &space, &r), 0);
	assert_true(strlen(epf_channel_refusal_text(refusal)) > 20);
	stop(&b);
}

static void test_refusals(void **state)
{
	uint64_t w[6];
	unsigned n;

	n = kit_channel_amo(w, 7, 9, 1, 16, 5, 8);
	w[2] |= 0x10;
	refused(EPF_CHANNEL_FLAG, w, n);
	n = kit_channel_amo(w, 7, 9, 1, 16, 5, 8);
	w[0] |= 0x10;
	refused(EPF_CHANNEL_FLAG, w, n);
	for (unsigned op = 0; op < 256; op++) {
		unsigned base = op > 100 ? op - 100 : op;

		w[0] = (uint64_t)op << 16 | 1 << 8;
		if (base != 1 && base != 2 && base != 6 && base != 7)
			refused(EPF_CHANNEL_OPERATION, w, 1);
	}
	for (unsigned amo = 0; amo < 256; amo++)
		if (amo != 3 && amo != 4 && (amo < 8 || amo > 10))
			refused(EPF_CHANNEL_OPERATION, w, kit_channel_amo(w, 7, amo, 1, 16, 5, 8));
	n = kit_channel_amo(w, 7, 9, 1, 16, 5, 8);
	w[0] += 1 << 8;
	refused(EPF_CHANNEL_GROUP, w, n);
	refused(EPF_CHANNEL_PEER, w, kit_channel_amo(w, 7, 9, 4, 16, 5, 8));
	refused(EPF_CHANNEL_PEER, w, kit_channel_put(w, 1, 65535, 16, BASE, 8));
	refused(EPF_CHANNEL_LENGTH, w, kit_channel_amo(w, 7, 9, 1, 16, 5, 2));
	refused(EPF_CHANNEL_LENGTH, w, kit_channel_amo(w, 7, 10, 1, 16, 5, 4));
	refused(EPF_CHANNEL_LENGTH, w, kit_channel_value(w, 2, 1, 16, 5, 3));
	refused(EPF_CHANNEL_LENGTH, w, kit_channel_put(w, 1, 1, 16, BASE, 0));
	refused(EPF_CHANNEL_LENGTH, w, kit_channel_put(w, 1, 1, 16, BASE, (UINT64_C(1) << 31) + 1));
	refused(EPF_CHANNEL_REMOTE, w, kit_channel_amo(w, 7, 9, 1, HEAP - 7, 5, 8));
	refused(EPF_CHANNEL_REMOTE, w, kit_channel_amo(w, 7, 10, 1, 12, 5, 8));
	refused(EPF_CHANNEL_REMOTE, w, kit_channel_put(w, 1, 1, HEAP, BASE, 1));
	refused(EPF_CHANNEL_LOCAL, w, kit_channel_put(w, 1, 1, 0, BASE - 1, 1));
	refused(EPF_CHANNEL_LOCAL, w, kit_channel_put(w, 1, 1, 0, BASE + 1, HEAP));
	assert_non_null(epf_channel_refusal_text(EPF_CHANNEL_REFUSALS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_served),
		cmocka_unit_test(test_queue_fence),
		cmocka_unit_test(test_any_order),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
