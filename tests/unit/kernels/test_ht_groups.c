/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput in plain C: rows grouped by expert. Numbers of entries, where groups lie, dispatches whose rows are copied to their groups, along their routing
 * too, within a node and between nodes, the sums on the way back, and what is refused.
 */
#include "kernels/ll/ll.h"
#include "tests/ref/ref.h"
#include "tests/unit/kernels/ht_kit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = RANKS * TOKENS * TOPK + LOCAL * 16, EXPERTS = RANKS * LOCAL };

/* What a rank has of its groups. */
static struct groups {
	uint16_t x[TOKENS * HIDDEN] __attribute__((aligned(16)));
	int64_t idx[TOKENS * TOPK];
	float weight[TOKENS * TOPK];
	int32_t numbers[TOKENS * TOPK], work[EPF_HT_NUMBER_PARTS * EXPERTS];
	int32_t starts[EXPERTS], counts[LOCAL], ends[LOCAL], aligned[LOCAL];
	int32_t slots[RANKS * TOKENS * TOPK];
	uint32_t source[RANKS * TOKENS];
	uint16_t out[MOST * HIDDEN] __attribute__((aligned(16)));
	uint32_t scales[MOST * SCALES];
	float weights[MOST];
	uint16_t back[RANKS * TOKENS * HIDDEN] __attribute__((aligned(16)));
	float back_weights[RANKS * TOKENS * TOPK];
} of_rank[RANKS];

/* Grouped rows of a rank. */
static uint32_t grouped_of(const struct batch *b, uint32_t rank)
{
	uint32_t rows = 0;

	for (uint32_t e = 0; e < b->local; e++) {
		uint32_t n = 0;

		for (uint32_t r = 0; r < b->ranks; r++)
			for (uint32_t i = 0; i < b->tokens[r] * b->topk; i++)
				n += b->idx[r][i / b->topk][i % b->topk] == rank * b->local + e;
		rows += (n + b->align - 1) / b->align * b->align;
	}
	return b->worst ? MOST : rows;
}

static struct epf_ht_dispatch dispatch_of(struct rank *me, uint32_t flags)
{
	const struct batch *b = me->batch;
	struct groups *g = &of_rank[me->rank];
	uint32_t worst = b->worst;
	struct epf_ht_dispatch d = { .size = sizeof(d),
				     .row = { b->hidden * 2, b->scales, b->topk },
				     .tokens = b->tokens[me->rank],
				     .local = b->local,
				     .room = room_of(me),
				     .across = worst ? worst : (uint32_t)me->host[3],
				     .forwarded = worst ? worst : (uint32_t)me->host[4],
				     .flags = EPF_HT_GROUPED | flags,
				     .first_number = number_of(me->rank, 0),
				     .place = me->place,
				     .matrix = me->matrix,
				     .plan = me->plan,
				     .links = me->links,
				     .x = g->x,
				     .scales = b->scale[me->rank],
				     .scale_stride = { 1, TOKENS },
				     .topk_idx = g->idx,
				     .weights = g->weight,
				     .numbers = flags & EPF_HT_NUMBERED ? g->numbers : NULL };

	return d;
}

static struct epf_ht_spread spread_of(struct rank *me, const struct epf_ht_dispatch *d)
{
	const struct batch *b = me->batch;
	struct groups *g = &of_rank[me->rank];
	struct epf_ht_spread s = { .size = sizeof(s),
				   .row = d->row,
				   .local = d->local,
				   .room = d->room,
				   .tokens = d->tokens,
				   .rows = received_of(me),
				   .grouped = grouped_of(b, me->rank),
				   .blocks = 3,
				   .flags = b->biases ? EPF_HT_ZERO : 0,
				   .first_number = d->first_number,
				   .place = d->place,
				   .matrix = d->matrix,
				   .x = d->x,
				   .scales = d->scales,
				   .scale_stride = { d->scale_stride[0], d->scale_stride[1] },
				   .topk_idx = d->topk_idx,
				   .weights = d->weights,
				   .numbers = d->numbers,
				   .starts = d->numbers ? g->starts : NULL,
				   .ends = g->ends,
				   .aligned = g->aligned,
				   .slots = g->slots,
				   .out = g->out,
				   .out_scales = g->scales,
				   .out_stride = { b->by_column ? 1 : b->scales,
						   b->by_column ? MOST : 1 },
				   .out_numbers = g->source,
				   .out_weights = g->weights };

	return s;
}

static void poison(struct groups *g)
{
	memset(g->out, 0xa5, sizeof(g->out));
	memset(g->scales, 0xa5, sizeof(g->scales));
	memset(g->weights, 0xa5, sizeof(g->weights));
}

/* The first dispatch of a routing. */
static int group(struct rank *me)
{
	const struct batch *b = me->batch;
	struct groups *g = &of_rank[me->rank];
	struct epf_ht_number n = { .size = sizeof(n),
				   .tokens = b->tokens[me->rank],
				   .topk = b->topk,
				   .experts = b->ranks * b->local,
				   .topk_idx = g->idx,
				   .work = g->work,
				   .numbers = g->numbers };
	struct epf_ht_groups where = { .size = sizeof(where),
				       .experts = b->local,
				       .align = b->align,
				       .starts = g->starts,
				       .counts = g->counts,
				       .ends = g->ends,
				       .aligned = g->aligned };
	struct epf_ht_row row = { b->hidden * 2, b->scales + 1 + b->topk, b->topk };
	struct epf_ht_dispatch d;
	struct epf_ht_spread s;
	int err;

	memset(g, 0xa5, sizeof(*g));
	for (uint32_t t = 0; t < n.tokens; t++) {
		memcpy(g->x + t * b->hidden, b->x[me->rank][t], b->hidden * 2);
		memcpy(g->idx + t * b->topk, b->idx[me->rank][t], b->topk * sizeof(*g->idx));
		memcpy(g->weight + t * b->topk, b->weight[me->rank][t],
		       b->topk * sizeof(*g->weight));
	}
	err = epf_ht_number(me->ht, &n, NULL);
	if (!err)
		err = plan(me);
	d = dispatch_of(me, EPF_HT_NUMBERED);
	if (!err)
		err = epf_ht_reserve(me->ht, &row, d.across);
	if (!err)
		err = epf_ht_dispatch(me->ht, &d, NULL);
	if (!err)
		err = epf_ht_groups(me->ht, &where, NULL);
	s = spread_of(me, &d);
	if (!err)
		err = epf_ht_spread(me->ht, &s, NULL);
	return err ? err : epf_ht_check(me->ht);
}

/* Another one of the same routing. */
static int group_again(struct rank *me)
{
	struct epf_ht_dispatch d = dispatch_of(me, 0);
	struct epf_ht_spread s = spread_of(me, &d);
	int err = epf_ht_dispatch(me->ht, &d, NULL);

	poison(&of_rank[me->rank]);
	if (!err)
		err = epf_ht_spread(me->ht, &s, NULL);
	return err ? err : epf_ht_check(me->ht);
}

static uint32_t scale_at(const struct batch *b, const struct groups *g, uint32_t row, uint32_t w)
{
	return g->scales[b->by_column ? w * MOST + row : row * b->scales + w];
}

/* A grouped row is that of a token, or, from r = RANKS on, of none. */
static void check_row(const struct batch *b, const struct groups *g, uint32_t slot, uint32_t r,
		      uint32_t t, uint32_t k)
{
	uint32_t none = b->biases ? 0 : 0xa5a5a5a5, weight = 0;

	if (r < RANKS)
		memcpy(&weight, &b->weight[r][t][k], 4);
	assert_memory_equal(&g->weights[slot], &weight, 4);
	for (uint32_t h = 0; h < b->hidden; h++)
		assert_int_equal(g->out[slot * b->hidden + h],
				 r < RANKS ? b->x[r][t][h] : (uint16_t)none);
	for (uint32_t w = 0; w < b->scales; w++) {
		uint32_t want = none;

		if (r < RANKS)
			memcpy(&want, &b->scale[r][w][t], 4);
		assert_int_equal(scale_at(b, g, slot, w), want);
	}
}

static void check_groups(const struct rank *me)
{
	const struct batch *b = me->batch;
	const struct groups *g = &of_rank[me->rank];
	uint32_t slot = 0, grouped = grouped_of(b, me->rank), row = 0;

	for (uint32_t e = 0; e < b->local; e++) {
		uint32_t begin = slot;

		row = 0;
		for (uint32_t r = 0; r < b->ranks; r++)
			for (uint32_t t = 0; t < b->tokens[r]; t++) {
				int there = 0;

				for (uint32_t k = 0; k < b->topk; k++) {
					int64_t at =
						b->idx[r][t][k] - (int64_t)(me->rank * b->local);

					there |= at >= 0 && at < b->local;
					if (at != e)
						continue;
					assert_int_equal(g->slots[row * b->topk + k], slot);
					check_row(b, g, slot++, r, t, k);
				}
				if (there)
					assert_int_equal(g->source[row], number_of(r, t));
				row += (uint32_t)there;
			}
		assert_int_equal(g->counts[e], slot - begin);
		assert_int_equal(g->ends[e], slot);
		while (slot % b->align)
			check_row(b, g, slot++, RANKS, 0, 0);
		assert_int_equal(g->aligned[e], slot);
	}
	while (slot < grouped)
		check_row(b, g, slot++, RANKS, 0, 0);
	for (row *= b->topk; row < received_of(me) * b->topk; row++)
		assert_int_equal(g->slots[row], -1);
}

/* Back: the sum of each row's entries. */
static void check_fold(struct rank *me)
{
	const struct batch *b = me->batch;
	struct groups *g = &of_rank[me->rank];
	struct epf_ht_fold f = { .size = sizeof(f),
				 .row_bytes = b->hidden * 2,
				 .topk = b->topk,
				 .rows = received_of(me),
				 .grouped = grouped_of(b, me->rank),
				 .slots = g->slots,
				 .x = g->out,
				 .weights = g->weights,
				 .out = g->back,
				 .out_weights = g->back_weights };

	assert_int_equal(epf_ht_fold(me->ht, &f, NULL), 0);
	for (uint32_t row = 0; row < f.rows; row++) {
		float sum[HIDDEN] = { 0 };
		uint32_t n = 0;

		for (uint32_t k = 0; k < b->topk; k++) {
			int32_t slot = g->slots[row * b->topk + k];

			assert_true(g->back_weights[row * b->topk + k] ==
				    (slot < 0 ? 0.0f : g->weights[slot]));
			n += slot >= 0;
			for (uint32_t h = 0; slot >= 0 && h < b->hidden; h++)
				sum[h] += ref_bf16_decode(g->out[(uint32_t)slot * b->hidden + h]);
		}
		for (uint32_t h = 0; n && h < b->hidden; h++)
			assert_int_equal(g->back[row * b->hidden + h], ref_bf16_encode(sum[h]));
	}
	f.grouped = 0; /* no entry has a row */
	assert_int_equal(epf_ht_fold(me->ht, &f, NULL), 0);
	for (uint32_t i = 0; i < f.rows * b->topk; i++)
		assert_true(g->back_weights[i] == 0.0f);
}

static const struct ht_state *state_of(const struct rank *me)
{
	return me->ht->words;
}

static void run_groups(struct rig *g, uint64_t seed)
{
	struct batch *b = make_batch(g->ranks, seed);

	set_batch(g, b);
	all_right(g, group);
	for (uint32_t r = 0; r < g->ranks; r++)
		check_groups(&g->rank[r]);
	/* Others may come in between. */
	if (!b->worst) {
		all_right(g, move);
		for (uint32_t r = 0; r < g->ranks; r++)
			check_rows(&g->rank[r]);
	}
	all_right(g, group_again);
	for (uint32_t r = 0; r < g->ranks; r++)
		assert_int_equal(state_of(&g->rank[r])->grouped, state_of(&g->rank[r])->ended);
	for (uint32_t r = 0; r < g->ranks; r++) {
		check_groups(&g->rank[r]);
		check_fold(&g->rank[r]);
	}
	free(b);
}

static void rows_come_to_their_groups(void **state)
{
	for (uint32_t ranks = 1; ranks <= 4; ranks++) {
		struct rig *g = open_rig(ranks, 0);

		for (uint64_t seed = 0; seed < (all_of_them() ? 200 : 12); seed++)
			run_groups(g, 1000 * ranks + seed);
		close_rig(g);
	}
}

static void rows_come_to_their_groups_between_nodes(void **state)
{
	for (uint32_t i = 0; i < SEVERAL; i++) {
		struct rig *g = open_on(&several[i], 0, i % 2 ? REORDERS : ORDERED);

		for (uint64_t seed = 0; seed < (all_of_them() ? 50 : 4); seed++)
			run_groups(g, 2000 * i + seed);
		close_rig(g);
	}
}

enum { NUMBERED = 300, BEHIND = 200, MANY = EPF_HT_LOCAL_MAX + 900 };

/* Entries are numbered by expert, in their order; those of no expert are left as they are. Also with more experts than are counted at a time. */
static void entries_are_numbered(void **state)
{
	static int64_t
		idx[NUMBERED * TOPK + BEHIND]; /* what lies behind are entries, too, of expert 0 */
	static int32_t numbers[NUMBERED * TOPK + BEHIND], next[MANY];
	static int32_t work[EPF_HT_NUMBER_PARTS * EPF_HT_LOCAL_MAX];
	struct rig *g = open_rig(1, 0);
	struct epf_ht *ht = g->rank[0].ht;
	struct epf_ht_number n = { .size = sizeof(n),
				   .tokens = NUMBERED,
				   .topk = TOPK,
				   .topk_idx = idx,
				   .work = work,
				   .numbers = numbers };
	uint64_t seed = 7;

	for (uint32_t experts = 1; experts <= MANY; experts = experts < 100 ? experts * 7 : MANY) {
		n.experts = experts;
		memset(numbers, 0xa5, sizeof(numbers));
		memset(work, 0xa5, sizeof(work));
		memset(next, 0, sizeof(next));
		for (uint32_t i = 0; i < NUMBERED * TOPK; i++) {
			uint32_t e = any(&seed, experts + 2);

			/* Also one below 0, the first behind the last one, and one far above. */
			idx[i] = e < experts    ? e
				 : e == experts ? -1
				 : i % 2        ? experts
						: INT64_C(1) << 32;
			/* Few of them, so that they are met again. */
			if (experts == MANY && e < experts)
				idx[i] = (int64_t)(e % 5 * (MANY - 1) / 4);
		}
		assert_int_equal(epf_ht_number(ht, &n, NULL), 0);
		for (uint32_t i = 0; i < NUMBERED * TOPK; i++)
			assert_int_equal(numbers[i], idx[i] >= 0 && idx[i] < experts
							     ? next[idx[i]]++
							     : (int32_t)0xa5a5a5a5);
		for (uint32_t i = NUMBERED * TOPK; i < NUMBERED * TOPK + BEHIND; i++)
			assert_int_equal(numbers[i], (int32_t)0xa5a5a5a5);
		if (experts == MANY)
			break;
	}
	close_rig(g);
}

static void refused(int got, int want, const char *text)
{
	assert_int_equal(got, want);
	if (!strstr(epf_ll_error(), text))
		fail_msg("%s, without: %s", epf_ll_error(), text);
}

static void bad_numbers_and_groups_are_refused(void **state)
{
	struct rig *g = open_rig(1, 0);
	struct epf_ht *ht = g->rank[0].ht;
	struct epf_ht_number n = { .tokens = 1, .topk = 1 };
	struct epf_ht_groups w = { .experts = 1 };
	struct epf_ht_fold f = { .row_bytes = 32, .topk = 1, .rows = 1, .grouped = 1 };
	int32_t slot = 0;

	refused(epf_ht_number(ht, &n, NULL), -EINVAL, "size of numbers");
	n.size = sizeof(n);
	refused(epf_ht_number(ht, &n, NULL), -EINVAL, "are needed");
	n.topk = EPF_HT_TOPK_MAX + 1;
	refused(epf_ht_number(ht, &n, NULL), -EINVAL, "at most 32");
	n.topk = 2;
	n.tokens = UINT32_C(1) << 30;
	refused(epf_ht_number(ht, &n, NULL), -EINVAL, "more than 2^31 entries");
	refused(epf_ht_groups(ht, &w, NULL), -EINVAL, "size of groups");
	w.size = sizeof(w);
	refused(epf_ht_groups(ht, &w, NULL), -EINVAL, "are needed");
	w.experts = 0;
	refused(epf_ht_groups(ht, &w, NULL), -EINVAL, "1 to 4096 are possible");
	w.experts = EPF_HT_LOCAL_MAX + 1;
	refused(epf_ht_groups(ht, &w, NULL), -EINVAL, "1 to 4096 are possible");
	refused(epf_ht_fold(ht, &f, NULL), -EINVAL, "size of a fold");
	f.size = sizeof(f);
	refused(epf_ht_fold(ht, &f, NULL), -EINVAL, "slots are missing");
	f.slots = &slot;
	refused(epf_ht_fold(ht, &f, NULL), -EINVAL, "x is (nil)");
	f.x = of_rank[0].x;
	f.out = (void *)8;
	refused(epf_ht_fold(ht, &f, NULL), -EINVAL, "out is 0x8");
	f.out = of_rank[0].back;
	f.weights = of_rank[0].weights;
	refused(epf_ht_fold(ht, &f, NULL), -EINVAL, "out_weights are missing");
	f.row_bytes = 20;
	refused(epf_ht_fold(ht, &f, NULL), -EINVAL, "a row has 20 bytes");
	close_rig(g);
}

static void bad_spreads_are_refused(void **state)
{
	struct rig *g = open_rig(1, 0);
	struct batch *b = make_batch(1, 3);
	struct rank *me = &g->rank[0];
	struct epf_ht_dispatch d;
	struct epf_ht_spread good, s;

	b->worst = 0;
	b->scales = SCALES;
	b->tokens[0] = TOKENS;
	set_batch(g, b);
	all_right(g, group);
	d = dispatch_of(me, EPF_HT_NUMBERED);
	good = spread_of(me, &d);
#define REFUSED(change, text)                              \
 do {                                                      \
  s = good;                                                \
  change;                                                  \
  refused(epf_ht_spread(me->ht, &s, NULL), -EINVAL, text); \
 } while (0)
	REFUSED(s.size = 8, "size of a spread");
	REFUSED(s.row.bytes = 20, "a row has 20 bytes");
	REFUSED(s.row.topk = EPF_HT_TOPK_MAX + 1, "at most 32");
	REFUSED(s.local = 0, "1 to 4096");
	REFUSED(s.ends = NULL, "ends and aligned are needed");
	REFUSED(s.slots = NULL, "slots are missing");
	REFUSED(s.place = NULL, "place and topk_idx are needed");
	REFUSED(s.numbers = NULL, "numbers are missing");
	REFUSED(s.x = (void *)8, "x is 0x8");
	REFUSED(s.out = NULL, "out is (nil)");
	REFUSED(s.scales = NULL, "and scales are missing");
	REFUSED(s.out_scales = NULL, "out_scales are missing");
	REFUSED(s.weights = NULL, "and weights are missing");
	d.numbers = NULL;
	refused(epf_ht_dispatch(me->ht, &d, NULL), -EINVAL, "numbers are missing");
	d.row.topk = 0;
	refused(epf_ht_dispatch(me->ht, &d, NULL), -EINVAL, "rows that have no entries");
	/* A window is needed even on a node of one rank. */
	d = dispatch_of(me, EPF_HT_NUMBERED);
	d.room = 1 << 20;
	refused(epf_ht_dispatch(me->ht, &d, NULL), -E2BIG, "need a window of");
	/* What is in the window must not be overwritten. */
	d = dispatch_of(me, EPF_HT_NUMBERED);
	assert_int_equal(epf_ht_dispatch(me->ht, &d, NULL), 0);
	refused(epf_ht_dispatch(me->ht, &d, NULL), -EINVAL, "epf_ht_spread() first");
	assert_int_equal(epf_ht_spread(me->ht, &good, NULL), 0);
	assert_int_equal(epf_ht_dispatch(me->ht, &d, NULL), 0);
	assert_int_equal(epf_ht_spread(me->ht, &good, NULL), 0);
	check_groups(me);
	free(b);
	close_rig(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_come_to_their_groups),
		cmocka_unit_test(rows_come_to_their_groups_between_nodes),
		cmocka_unit_test(entries_are_numbered),
		cmocka_unit_test(bad_numbers_and_groups_are_refused),
		cmocka_unit_test(bad_spreads_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
