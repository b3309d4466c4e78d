/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine of the host kernels with all ranks in this process: many shapes against the
 * reference (by the checks of ep-bench moe, which are themselves tested here: a flipped bit must be
 * seen), rounds that overlap, and input that must be refused.
 */
#include "bench/bench.h"
#include "bench/moe.h"
#include "bench/world.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORDS_MAX 48

/* Splits a line of options into argv; o must stay where it is, its settings point into it. */
static void options(char *line, struct moe_opts *o)
{
	char *argv[WORDS_MAX] = { "moe", "--local" };
	int argc = 2;

	for (char *w = strtok(line, " "); w && argc < WORDS_MAX - 1; w = strtok(NULL, " "))
		argv[argc++] = w;
	assert_int_equal(moe_opts_parse(argc, argv, o), 0);
}

/* Runs a shape; how much of it was wrong. */
static uint64_t run(const char *text, moe_progress progress, void *arg, struct moe_result *res)
{
	char line[512];
	char note[256] = "";
	struct moe_opts o;
	uint64_t wrong = 0;
	int err;

	snprintf(line, sizeof(line), "%s", text);
	options(line, &o);
	memset(res, 0, sizeof(*res));
	err = moe_local_run(&o, progress, arg, res);
	if (err)
		fail_msg("ep-bench moe --local %s: error %d", text, err);
	for (int p = 0; p < MOE_PHASES; p++)
		wrong += moe_phase_wrong(&o, res, p, note, sizeof(note));
	if (wrong && !progress)
		print_message("ep-bench moe --local %s: %s%s\n", text, res->first_wrong, note);
	return wrong;
}

static void each_shape(const char *const *shapes, const char *more)
{
	static const char *const modes[] = { "ll", "ht" };
	struct moe_result res;

	for (int i = 0; shapes[i]; i++)
		for (int m = 0; m < 2; m++) {
			char text[512];

			snprintf(text, sizeof(text), "--mode %s %s %s", modes[m], shapes[i], more);
			assert_int_equal(run(text, NULL, NULL, &res), 0);
		}
}

static const char *const shapes[] = {
	"--ranks 1 --nodes 1 --experts 4 --topk 2 --tokens 5 --hidden 128",
	"--ranks 2 --nodes 1 --experts 4 --topk 4 --tokens 7 --hidden 256",
	"--ranks 2 --nodes 2 --experts 2 --topk 1 --tokens 3 --hidden 128 --dispatch bf16",
	"--ranks 8 --nodes 2 --experts 32 --topk 8 --tokens 16 --hidden 384 --rounds 4",
	"--ranks 8 --nodes 2 --experts 64 --topk 8 --tokens 9 --hidden 128 --routing deepseek",
	"--ranks 12 --nodes 2 --experts 12 --topk 12 --tokens 5 --hidden 128",
	"--ranks 5 --nodes 2 --experts 20 --topk 6 --tokens 11 --hidden 128 --rounds 3",
	"--ranks 7 --nodes 3 --experts 14 --topk 5 --tokens 8 --hidden 256 --dispatch bf16",
	"--ranks 7 --nodes 5 --experts 28 --topk 16 --tokens 6 --hidden 128 --rounds 3",
	"--ranks 6 --nodes 6 --experts 12 --topk 3 --tokens 13 --hidden 128",
	"--ranks 8 --nodes 2 --experts 32 --topk 8 --tokens 0 --hidden 128",
	"--ranks 8 --nodes 3 --experts 32 --topk 4 --tokens 10 --hidden 128 --routing one-expert",
	"--ranks 9 --nodes 2 --experts 36 --topk 4 --tokens 10 --hidden 128 --routing empty-ranks",
	"--ranks 8 --nodes 2 --experts 32 --topk 6 --tokens 10 --hidden 128 --routing zipf",
	"--ranks 6 --nodes 2 --experts 12 --topk 4 --tokens 10 --hidden 128 --unselected 0.4",
	"--ranks 4 --nodes 2 --experts 8 --topk 8 --tokens 4 --hidden 128 --unselected 1",
	NULL,
};

static void test_shapes_ordered(void **state)
{
	(void)state;
	each_shape(shapes, "--seed 3");
}

static void test_shapes_unordered(void **state)
{
	(void)state;
	each_shape(
		shapes,
		"--seed 5 --order unordered --reorder 0.3 --duplicate 0.1 --drop 0.05 --delay-us 50");
}

/* Rows that come late must hold their signal back: many small rounds with long delays. */
static void test_late_rows(void **state)
{
	struct moe_result res;

	(void)state;
	for (int seed = 0; seed < 12; seed++)
		for (int m = 0; m < 2; m++) {
			char text[256];

			snprintf(
				text, sizeof(text),
				"--ranks 4 --nodes 2 --experts 4 --topk 3 --tokens 12 --hidden 128 --seed %d --mode %s "
				"--order unordered --reorder 0.5 --drop 0.1 --delay-us 300",
				seed, m ? "ht" : "ll");
			assert_int_equal(run(text, NULL, NULL, &res), 0);
			assert_true(res.fault[MOE_F_signals_waited].count > 0);
		}
}

static void test_every_topk(void **state)
{
	struct moe_result res;

	(void)state;
	for (int k = 1; k <= 16; k++)
		for (int m = 0; m < 2; m++) {
			char text[256];

			snprintf(
				text, sizeof(text),
				"--ranks 4 --nodes 2 --experts 16 --topk %d --tokens 5 --hidden 128 --rounds 1 --mode %s",
				k, m ? "ht" : "ll");
			assert_int_equal(run(text, NULL, NULL, &res), 0);
			assert_true(res.received_rows > 0);
		}
}

/* ---- the checks can fail ---- */

enum damage { PAYLOAD, HEAD, BEHIND, RESULT };

/* Damages one bit or byte of what a rank got, after the phase where it is looked at. */
static void damage(void *arg, struct moe_job *job, uint32_t round, unsigned phase)
{
	enum damage what = *(const enum damage *)arg;
	struct moe_rank *r = &job->rank[1];
	uint32_t blocks = epf_moe_layout(r->moe)->blocks;
	uint8_t *row = NULL;
	uint32_t n = 0;

	if (round != 1)
		return;
	if (phase == MOE_COMBINE) {
		if (what == RESULT)
			r->out[job->opts->hidden - 1] ^= 1;
		return;
	}
	for (uint32_t b = 0; b < blocks && !row; b++) {
		n = epf_moe_block_rows(r->moe, b);
		if (n)
			row = (uint8_t *)(uintptr_t)epf_moe_row(r->moe, b, n - 1);
	}
	assert_non_null(row);
	if (what == PAYLOAD)
		row[epf_moe_layout(r->moe)->head_bytes + 77] ^= 4;
	else if (what == HEAD)
		((struct epf_moe_head *)(void *)row)->token ^= 1;
	else if (what == BEHIND)
		row[epf_moe_layout(r->moe)->row_bytes] ^= 1;
}

static void test_checks_see_damage(void **state)
{
	static const enum damage kinds[] = { PAYLOAD, HEAD, BEHIND, RESULT };

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		enum damage what = kinds[i];
		struct moe_result res;
		const char *text =
			"--mode ht --ranks 4 --nodes 2 --experts 8 --topk 3 --tokens 16 --hidden 128";

		assert_true(run(text, damage, &what, &res) > 0);
		assert_true(res.first_wrong[0] != 0);
	}
}

/* ---- rounds that overlap, refusals: the kernels by hand ---- */

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
	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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
		cmocka_unit_test(test_every_topk),
		cmocka_unit_test(test_shapes_ordered),
		cmocka_unit_test(test_shapes_unordered),
		cmocka_unit_test(test_late_rows),
		cmocka_unit_test(test_checks_see_damage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
