/* SPDX-License-Identifier: Apache-2.0 */
/* See ht_groups_kit.h. */
#include "tests/unit/kernels/ht_groups_kit.h"

#include <string.h>

struct groups of_rank[RANKS];

uint32_t grouped_of(const struct batch *b, uint32_t rank)
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

struct epf_ht_dispatch dispatch_of(struct rank *me, uint32_t flags)
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

struct epf_ht_spread spread_of(struct rank *me, const struct epf_ht_dispatch *d)
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

int prepare(struct rank *me, struct epf_ht_groups *where)
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
	int err;

	memset(g, 0xa5, sizeof(*g));
	*where = (struct epf_ht_groups){ .size = sizeof(*where),
					 .experts = b->local,
					 .align = b->align,
					 .starts = g->starts,
					 .counts = g->counts,
					 .ends = g->ends,
					 .aligned = g->aligned };
	for (uint32_t t = 0; t < n.tokens; t++) {
		memcpy(g->x + t * b->hidden, b->x[me->rank][t], b->hidden * 2);
		memcpy(g->idx + t * b->topk, b->idx[me->rank][t], b->topk * sizeof(*g->idx));
		memcpy(g->weight + t * b->topk, b->weight[me->rank][t],
		       b->topk * sizeof(*g->weight));
	}
	err = epf_ht_number(me->ht, &n, NULL);
	return err ? err : plan(me);
}

/* By several blocks, which share the rows out; on a CPU there is one. */
static int spread_by_blocks(struct epf_ht *ht, const struct epf_ht_spread *s)
{
	uint32_t blocks = ht->blocks;
	int err;

	ht->blocks = 5;
	err = epf_ht_spread(ht, s, NULL);
	ht->blocks = blocks;
	return err;
}

int group(struct rank *me)
{
	const struct batch *b = me->batch;
	struct epf_ht_row row = { b->hidden * 2, b->scales + 1 + b->topk, b->topk };
	struct epf_ht_groups where;
	struct epf_ht_dispatch d;
	struct epf_ht_spread s;
	int err = prepare(me, &where);

	d = dispatch_of(me, EPF_HT_NUMBERED);
	if (!err)
		err = epf_ht_reserve(me->ht, &row, d.across);
	if (!err)
		err = epf_ht_dispatch(me->ht, &d, NULL);
	if (!err)
		err = epf_ht_groups(me->ht, &where, NULL);
	s = spread_of(me, &d);
	if (!err)
		err = spread_by_blocks(me->ht, &s);
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

void check_groups(const struct rank *me)
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
