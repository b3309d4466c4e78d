/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host kernels by hand, four ranks in this process: sums worked out on paper, rounds that
 * overlap, input and rows and counts that must be refused, and the layout.
 */
#include "bench/common/world.h"
#include "kernels/host/moe.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, TOKENS = 6, HIDDEN = 128, TOPK = 3, EXPERTS = 8 };

struct rig {
	struct bench_world w;
	struct epf_moe *moe[RANKS];
	uint32_t node_of[RANKS];
	uint16_t x[TOKENS * HIDDEN];
	int64_t expert[TOKENS * TOPK];
	float weight[TOKENS * TOPK];
	uint16_t out[TOKENS * HIDDEN];
};

static struct epf_moe_config rig_config(const struct rig *g, enum epf_moe_mode mode, uint32_t rank)
{
	struct epf_moe_config c = { .mode = mode,
				    .tokens_max = TOKENS,
				    .hidden = HIDDEN,
				    .topk = TOPK,
				    .experts = EXPERTS,
				    .ranks = RANKS,
				    .rank = rank,
				    .node_of = g->node_of };

	return c;
}

static struct rig *rig_open(enum epf_moe_mode mode, uint32_t nodes)
{
	struct rig *g = calloc(1, sizeof(*g));
	char why[EPF_MOE_WHY_BYTES];

	assert_non_null(g);
	bench_nodes(RANKS, nodes, g->node_of);
	assert_int_equal(bench_world_open(&g->w, RANKS, g->node_of, NULL), 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		struct epf_moe_config c = rig_config(g, mode, r);

		assert_int_equal(epf_moe_open(g->w.ep[r], &c, &g->moe[r], why), 0);
	}
	assert_int_equal(bench_world_join(&g->w), 0);
	return g;
}

static void rig_close(struct rig *g)
{
	for (uint32_t r = 0; r < RANKS; r++)
		epf_moe_close(g->moe[r]);
	bench_world_close(&g->w);
	free(g);
}

/* Token t of every rank goes to experts t, t + 3 and t + 5 (mod 8); its channels say who, when and which. */
static int send(struct rig *g, uint32_t rank, uint32_t round)
{
	struct epf_moe_tokens in = {
		.x = g->x, .expert = g->expert, .weight = g->weight, .tokens = TOKENS
	};

	for (int t = 0; t < TOKENS; t++) {
		g->expert[t * TOPK] = t % EXPERTS;
		g->expert[t * TOPK + 1] = (t + 3) % EXPERTS;
		g->expert[t * TOPK + 2] = (t + 5) % EXPERTS;
		for (int c = 0; c < HIDDEN; c++)
			g->x[t * HIDDEN + c] =
				(uint16_t)(0x4000 + rank * 64 + round * 8 + (uint32_t)t);
	}
	return epf_moe_dispatch_send(g->moe[rank], &in);
}

/* Every row a rank holds is of that round. */
static void expect_round(const struct rig *g, uint32_t rank, uint32_t round)
{
	const struct epf_moe *m = g->moe[rank];
	uint32_t rows = 0;

	for (uint32_t b = 0; b < epf_moe_layout(m)->blocks; b++)
		for (uint32_t i = 0; i < epf_moe_block_rows(m, b); i++, rows++) {
			const struct epf_moe_head *head = epf_moe_row(m, b, i);
			const uint16_t *x = epf_moe_row_payload(m, head);

			assert_int_equal(head->round, round);
			for (int c = 0; c < HIDDEN; c++)
				assert_int_equal(x[c], 0x4000 + head->source * 64 + round * 8 +
							       head->token);
		}
	assert_true(rows > 0);
}

/*
 * Rounds of dispatch without combine, where half of the ranks are a round ahead: what the others
 * still read must stay whole.
 */
static void overlap(enum epf_moe_mode mode)
{
	struct rig *g = rig_open(mode, 2);

	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(send(g, r, 0), 0);
	for (uint32_t round = 0; round < 6; round++) {
		for (uint32_t r = 0; r < RANKS; r++)
			assert_int_equal(epf_moe_dispatch_forward(g->moe[r]), 0);
		for (uint32_t r = 0; r < RANKS; r++)
			assert_int_equal(epf_moe_dispatch_recv(g->moe[r]), 0);
		for (uint32_t r = round % 2; r < RANKS; r += 2) {
			expect_round(g, r, round);
			assert_int_equal(send(g, r, round + 1), 0);
		}
		for (int i = 0; i < 2000; i++)
			(void)bench_world_progress(&g->w);
		for (uint32_t r = 1 - round % 2; r < RANKS; r += 2) {
			expect_round(g, r, round);
			assert_int_equal(send(g, r, round + 1), 0);
		}
	}
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(epf_moe_drain(g->moe[r]), 0);
	rig_close(g);
}

static void test_overlapping_rounds(void **state)
{
	overlap(EPF_MOE_LL);
	overlap(EPF_MOE_HT);
}

/* ---- sums by hand ---- */

static uint16_t bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16); /* only for values that BF16 holds */
}

static int each_rank(struct rig *g, int (*step)(struct epf_moe *m))
{
	int err = 0;

	for (uint32_t r = 0; r < RANKS && !err; r++)
		err = step(g->moe[r]);
	return err;
}

/*
 * Every token chooses experts 4, 0 and 2 in this order, which ranks 2, 0 and 1 hold. Rank r's row is
 * value[r] in every channel, weights are 1: what does combine make of it?
 */
static void sum_by_hand(enum epf_moe_mode mode, uint32_t nodes, const float value[3], float want)
{
	static const int64_t choice[TOPK] = { 4, 0, 2 };
	struct rig *g = rig_open(mode, nodes);
	struct epf_moe_tokens in = {
		.x = g->x, .expert = g->expert, .weight = g->weight, .tokens = TOKENS
	};

	for (int i = 0; i < TOKENS * TOPK; i++) {
		g->expert[i] = choice[i % TOPK];
		g->weight[i] = 1;
	}
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(epf_moe_dispatch_send(g->moe[r], &in), 0);
	assert_int_equal(each_rank(g, epf_moe_dispatch_forward), 0);
	assert_int_equal(each_rank(g, epf_moe_dispatch_recv), 0);
	for (uint32_t r = 0; r < 3; r++)
		for (uint32_t b = 0; b < epf_moe_layout(g->moe[r])->blocks; b++)
			for (uint32_t i = 0; i < epf_moe_block_rows(g->moe[r], b); i++)
				for (int c = 0; c < HIDDEN; c++)
					epf_moe_out(g->moe[r], b, i)[c] = bf16(value[r]);
	assert_int_equal(each_rank(g, epf_moe_combine_send), 0);
	assert_int_equal(each_rank(g, epf_moe_combine_reduce), 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_int_equal(epf_moe_combine_recv(g->moe[r], g->out), 0);
		for (int i = 0; i < TOKENS * HIDDEN; i++)
			assert_int_equal(g->out[i], bf16(want));
	}
	rig_close(g);
}

static void test_sums_by_hand(void **state)
{
	/* 1 + 2^24 is 2^24 in FP32, so 1 survives only where 2^24 and -2^24 meet first. */
	static const float by_rank[3] = { 1, 0x1p24f, -0x1p24f };
	static const float by_k[3] = { 0x1p24f, -0x1p24f, 1 };
	/* 1 + 2^-8 is half way in BF16 and becomes 1; unrounded, a second 2^-8 would give 1 + 2^-7. */
	static const float halves[3] = { 1, 0x1p-8f, 0x1p-8f };

	sum_by_hand(EPF_MOE_LL, 2, by_k, 0);
	sum_by_hand(EPF_MOE_LL, 2, by_rank, 1);
	sum_by_hand(EPF_MOE_LL, 2, halves, 1.0078125f);
	sum_by_hand(EPF_MOE_HT, 1, by_rank, 0);
	sum_by_hand(EPF_MOE_HT, 4, by_rank, 0);
	sum_by_hand(EPF_MOE_HT, 1, by_k, 1);
	sum_by_hand(EPF_MOE_HT, 4, by_k, 1);
	sum_by_hand(EPF_MOE_HT, 1, halves, 1.0078125f);
	sum_by_hand(EPF_MOE_HT, 2, halves, 1);
}

/* ---- refusals ---- */

static void test_bad_tokens_are_refused(void **state)
{
	struct rig *g = rig_open(EPF_MOE_HT, 2);
	struct epf_moe_tokens in = {
		.x = g->x, .expert = g->expert, .weight = g->weight, .tokens = 1
	};

	g->expert[0] = EXPERTS;
	assert_int_equal(epf_moe_dispatch_send(g->moe[0], &in), -EINVAL);
	assert_non_null(strstr(epf_moe_error(g->moe[0]), "expert 8"));
	g->expert[0] = -2;
	assert_int_equal(epf_moe_dispatch_send(g->moe[0], &in), -EINVAL);
	g->expert[0] = g->expert[1] = 5;
	assert_int_equal(epf_moe_dispatch_send(g->moe[0], &in), -EINVAL);
	assert_non_null(strstr(epf_moe_error(g->moe[0]), "twice"));
	in.tokens = TOKENS + 1;
	assert_int_equal(epf_moe_dispatch_send(g->moe[0], &in), -E2BIG);
	rig_close(g);
}

/* A row whose head lies is refused before anything is sent by it. */
static void test_bad_rows_are_refused(void **state)
{
	struct rig *g = rig_open(EPF_MOE_LL, 2);
	struct epf_moe_head *head = NULL;

	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(send(g, r, 0), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(epf_moe_dispatch_recv(g->moe[r]), 0);
	for (uint32_t b = 0; b < epf_moe_layout(g->moe[0])->blocks && !head; b++)
		if (epf_moe_block_rows(g->moe[0], b))
			head = (struct epf_moe_head *)(uintptr_t)epf_moe_row(g->moe[0], b, 0);
	assert_non_null(head);
	head->token = TOKENS;
	assert_int_equal(epf_moe_combine_send(g->moe[0]), -EBADMSG);
	head->token = 0;
	head->source = 3;
	assert_int_equal(epf_moe_combine_send(g->moe[0]), -EBADMSG);
	head->source = 0;
	((int32_t *)(void *)(head + 1))[0] = EXPERTS;
	assert_int_equal(epf_moe_combine_send(g->moe[0]), -EBADMSG);
	rig_close(g);
}

/* A signal that announces more rows than fit is refused. */
static void test_bad_counts_are_refused(void **state)
{
	struct rig *g = rig_open(EPF_MOE_HT, 2);
	struct epf_ring *ring;

	assert_int_equal(epf_ring_open(g->w.ep[1], NULL, &ring), 0);
	assert_int_equal(
		epf_signal_send(ring, 0, epf_moe_layout(g->moe[0])->sig_recv, TOKENS + 2, 0), 0);
	assert_int_equal(epf_flush(ring, 0, 0), 0);
	assert_int_equal(epf_moe_dispatch_recv(g->moe[0]), -EBADMSG);
	assert_non_null(strstr(epf_moe_error(g->moe[0]), "announces"));
	epf_ring_close(ring);
	rig_close(g);
}

/* ---- the plan ---- */

static void test_plan_is_the_same_on_all_ranks(void **state)
{
	uint32_t node_of[7] = { 0, 1, 0, 2, 2, 1, 0 };
	struct epf_moe_config c = { .mode = EPF_MOE_HT,
				    .tokens_max = 9,
				    .hidden = 256,
				    .topk = 5,
				    .experts = 21,
				    .ranks = 7,
				    .node_of = node_of };
	struct epf_moe_layout first;

	assert_int_equal(epf_moe_plan(&c, &first, NULL), 0);
	assert_int_equal(first.nodes, 3);
	assert_int_equal(first.node_size_max, 3);
	assert_int_equal(first.payload_bytes, 512);
	assert_int_equal(first.head_bytes, 64); /* 16 + 5 * 8, rounded up */
	assert_int_equal(first.row_bytes, 576);
	for (c.rank = 1; c.rank < 7; c.rank++) {
		struct epf_moe_layout l;

		assert_int_equal(epf_moe_plan(&c, &l, NULL), 0);
		assert_memory_equal(&l, &first, sizeof(l));
	}
}

static void expect_refused(struct epf_moe_config c, const char *word)
{
	char why[EPF_MOE_WHY_BYTES] = "";
	struct epf_moe_layout l = { .nodes = 77 };

	assert_true(epf_moe_plan(&c, &l, why) < 0);
	assert_non_null(strstr(why, word));
	assert_int_equal(l.nodes, 77);
}

static void test_plan_names_what_is_wrong(void **state)
{
	uint32_t node_of[4] = { 0, 0, 1, 1 };
	uint32_t gap[4] = { 0, 0, 2, 1 };
	struct epf_moe_config ok = { .mode = EPF_MOE_LL,
				     .tokens_max = 4,
				     .hidden = 128,
				     .topk = 2,
				     .experts = 8,
				     .ranks = 4,
				     .node_of = node_of };
	struct epf_moe_config c;

	c = ok, c.hidden = 130, expect_refused(c, "hidden");
	c = ok, c.hidden = 0, expect_refused(c, "hidden");
	c = ok, c.topk = 17, expect_refused(c, "topk");
	c = ok, c.topk = 0, expect_refused(c, "topk");
	c = ok, c.experts = 9, expect_refused(c, "experts");
	c = ok, c.ranks = 0, expect_refused(c, "ranks");
	c = ok, c.rank = 4, expect_refused(c, "rank");
	c = ok, c.tokens_max = EPF_MOE_TOKENS_MAX + 1, expect_refused(c, "tokens");
	c = ok, c.node_of = gap, expect_refused(c, "node");
	c = ok, c.hidden = EPF_MOE_HIDDEN_MAX, c.tokens_max = EPF_MOE_TOKENS_MAX, c.experts = 65536;
	expect_refused(c, "receive area");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plan_is_the_same_on_all_ranks),
		cmocka_unit_test(test_plan_names_what_is_wrong),
		cmocka_unit_test(test_bad_tokens_are_refused),
		cmocka_unit_test(test_bad_rows_are_refused),
		cmocka_unit_test(test_bad_counts_are_refused),
		cmocka_unit_test(test_sums_by_hand),
		cmocka_unit_test(test_overlapping_rounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
