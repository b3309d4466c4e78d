/* SPDX-License-Identifier: Apache-2.0 */
/* The batches of ht_kit.h and their reference. */
#include "tests/ref/ref.h"
#include "tests/unit/kernels/ht_kit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t any(uint64_t *seed, uint32_t n)
{
	return (uint32_t)(ll_kit_random(seed) % n);
}

/* BF16 numbers of both signs, so different in size that the order of additions shows. */
static uint16_t bf16(uint64_t *seed)
{
	return (uint16_t)(0x3600 + any(seed, 0x1000) + (any(seed, 2) << 15));
}

struct batch *make_batch(uint32_t ranks, uint64_t seed)
{
	struct batch *b = calloc(1, sizeof(*b));

	assert_non_null(b);
	b->ranks = ranks;
	b->hidden = 8 * (1 + any(&seed, HIDDEN / 8));
	b->topk = 1 + any(&seed, TOPK);
	b->local = 1 + any(&seed, LOCAL);
	b->scales = any(&seed, SCALES + 1);
	b->align = 1 + 15 * any(&seed, 2);
	b->worst = any(&seed, 3) == 0 ? ranks * TOKENS : 0;
	b->biases = any(&seed, 3);
	b->without_layout = any(&seed, 2) == 0;
	b->by_column = any(&seed, 2) == 0;
	b->numbered = any(&seed, 2) == 0;
	for (uint32_t r = 0; r < ranks; r++) {
		b->tokens[r] = any(&seed, 4) ? any(&seed, TOKENS + 1) : 0;
		for (uint32_t t = 0; t < b->tokens[r]; t++) {
			for (uint32_t k = 0; k < b->topk; k++) {
				b->idx[r][t][k] =
					any(&seed, 5) ? (int64_t)any(&seed, ranks * b->local) : -1;
				b->weight[r][t][k] = 0.25f * (float)(1 + any(&seed, 64));
			}
			for (uint32_t h = 0; h < b->hidden; h++) {
				b->x[r][t][h] = bf16(&seed);
				b->bias[r][0][t][h] = bf16(&seed);
				b->bias[r][1][t][h] = bf16(&seed);
			}
			for (uint32_t s = 0; s < b->scales; s++)
				b->scale[r][s][t] = (float)any(&seed, 1000);
		}
	}
	return b;
}

/* Whether token t of rank r goes to rank d. */
static int goes(const struct batch *b, uint32_t r, uint32_t t, uint32_t d)
{
	for (uint32_t k = 0; k < b->topk; k++)
		if (b->idx[r][t][k] >= 0 && b->idx[r][t][k] / b->local == d)
			return 1;
	return 0;
}

uint32_t rows_between(const struct batch *b, uint32_t r, uint32_t d)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t < b->tokens[r]; t++)
		n += (uint32_t)goes(b, r, t, d);
	return n;
}

static struct epf_ht_routing routing_of(struct rank *me)
{
	const struct batch *b = me->batch;
	/* The batch's arrays have room for more; dense copies are made by the steps. */
	struct epf_ht_routing r = { .size = sizeof(r),
				    .tokens = b->tokens[me->rank],
				    .topk = b->topk,
				    .experts = b->ranks * b->local,
				    .align = b->align,
				    .in_rank = me->in_rank,
				    .per_rank = me->per_rank,
				    .per_expert = me->per_expert,
				    .place = me->place,
				    .matrix = me->matrix,
				    .plan = me->plan };

	return r;
}

static int skips_layout(const struct rank *me)
{
	return me->batch->without_layout && epf_ht_nodes(me->ht) == 1;
}

int plan(struct rank *me)
{
	const struct batch *b = me->batch;
	int64_t idx[TOKENS * TOPK];
	struct epf_ht_routing r = routing_of(me);
	int err;

	for (uint32_t t = 0; t < r.tokens; t++)
		memcpy(idx + t * b->topk, b->idx[me->rank][t], b->topk * sizeof(*idx));
	memset(me->in_rank, 0xa5, sizeof(me->in_rank));
	memset(me->place, 0xa5, sizeof(me->place));
	memset(me->host, 0, sizeof(me->host));
	memset(me->plan, 0xa5, epf_ht_plan_bytes(me->ht, r.tokens));
	r.topk_idx = idx;
	r.per_node = me->per_node;
	if (skips_layout(me)) {
		r.per_expert = NULL;
		r.flags = EPF_HT_NO_LAYOUT;
	} else {
		err = epf_ht_layout(me->ht, &r, NULL);
		if (err)
			return err;
		me->per_rank[0] += me->laid_more;
		r.topk_idx = NULL;
	}
	r.host = b->worst || me->never_waits ? NULL : me->host;
	r.received = me->guess;
	r.room = me->guess_room;
	r.spare = me->spare;
	if (me->with_dispatch)
		r.flags |= EPF_HT_WITH_DISPATCH;
	err = epf_ht_notify(me->ht, &r, NULL);
	return err || !r.host || me->with_dispatch ? err : epf_ht_wait_counts(me->ht, me->host);
}

uint32_t received_of(const struct rank *me)
{
	return me->batch->worst ? me->batch->worst : (uint32_t)me->host[1];
}

uint32_t room_of(const struct rank *me)
{
	return me->batch->worst ? me->batch->worst : (uint32_t)me->host[2];
}

static uint32_t across_of(const struct rank *me)
{
	return me->batch->worst ? me->batch->worst : (uint32_t)me->host[3];
}

static uint32_t forwarded_of(const struct rank *me)
{
	return me->batch->worst ? me->batch->worst : (uint32_t)me->host[4];
}

int move(struct rank *me)
{
	const struct batch *b = me->batch;
	uint32_t n = b->tokens[me->rank];
	struct epf_ht_dispatch d = { .size = sizeof(d),
				     .row = { b->hidden * 2, b->scales, b->topk },
				     .tokens = n,
				     .local = b->local,
				     .received = received_of(me),
				     .room = room_of(me),
				     .across = across_of(me),
				     .forwarded = forwarded_of(me),
				     .place = me->place,
				     .matrix = me->matrix,
				     .plan = me->plan,
				     .links = me->links,
				     .scales = b->scale[me->rank],
				     .scale_stride = { 1, TOKENS },
				     .out = me->rows,
				     .out_scales = me->beside->scales,
				     .out_stride = { b->by_column ? 1 : b->scales,
						     b->by_column ? RANKS * TOKENS : 1 },
				     .first_number = number_of(me->rank, 0),
				     .flags = b->numbered ? EPF_HT_NUMBERED : 0,
				     .out_numbers = b->numbered ? me->beside->numbers : NULL,
				     .out_index = me->beside->index,
				     .out_weights = me->beside->weights };
	uint16_t(*x)[HIDDEN];
	int64_t idx[TOKENS * TOPK];
	float weight[TOKENS * TOPK];
	struct epf_ht_row row = { d.row.bytes, b->scales + (b->numbered ? 1u : 0u), b->topk };
	int err = epf_ht_reserve(me->ht, &row, d.across);

	if (err)
		return err;
	if (me->guess) {
		d.received = me->guess;
		d.room = me->guess_room;
		d.flags |= EPF_HT_IF_IT_FITS;
	}
	x = aligned_alloc(16, sizeof(uint16_t[TOKENS][HIDDEN]));
	for (uint32_t t = 0; t < n; t++) {
		memcpy((uint16_t *)x + t * b->hidden, b->x[me->rank][t], b->hidden * 2);
		memcpy(idx + t * b->topk, b->idx[me->rank][t], b->topk * sizeof(*idx));
		memcpy(weight + t * b->topk, b->weight[me->rank][t], b->topk * sizeof(*weight));
	}
	memset(me->rows, 0xa5, sizeof(me->rows));
	if (me->out) {
		memset(me->out, 0xa5, sizeof(me->rows));
		d.out = me->out;
	}
	memset(me->beside, 0xa5, sizeof(*me->beside));
	d.x = x;
	d.topk_idx = idx;
	d.weights = weight;
	err = epf_ht_dispatch(me->ht, &d, NULL);
	if (!err && me->with_dispatch)
		err = epf_ht_wait_counts(me->ht, me->host);
	free(x);
	if (me->out)
		memcpy(me->rows, me->out, sizeof(me->rows));
	return err ? err : epf_ht_check(me->ht);
}

/* What rank r makes of a row, in place. */
void expert(uint16_t *row, uint32_t hidden, uint32_t r)
{
	for (uint32_t h = 0; h < hidden; h++)
		row[h] = ref_bf16_encode(ref_bf16_decode(row[h]) * (1.0f + 0.125f * (float)r));
}

int collect(struct rank *me)
{
	const struct batch *b = me->batch;
	uint32_t n = b->tokens[me->rank], received = received_of(me);
	uint32_t given = (uint32_t)me->matrix[(b->ranks - 1) * b->ranks + me->rank];
	uint16_t *bias[2] = { NULL, NULL };
	struct epf_ht_combine c = { .size = sizeof(c),
				    .row_bytes = b->hidden * 2,
				    .topk = b->topk,
				    .tokens = n,
				    .received = received,
				    .room = room_of(me),
				    .across = across_of(me),
				    .forwarded = forwarded_of(me),
				    .place = me->place,
				    .matrix = me->matrix,
				    .plan = me->plan,
				    .links = me->links,
				    .x = me->y,
				    .weights = me->beside->weights,
				    .out = me->sums,
				    .out_weights = me->sum_weights };
	int err;

	memcpy(me->y, me->rows, sizeof(me->y));
	for (uint32_t i = 0; i < given; i++)
		expert((uint16_t *)me->y + i * b->hidden, b->hidden, me->rank);
	for (uint32_t i = 0; i < b->biases; i++) {
		bias[i] = aligned_alloc(16, sizeof(uint16_t[TOKENS][HIDDEN]));
		for (uint32_t t = 0; t < n; t++)
			memcpy(bias[i] + t * b->hidden, b->bias[me->rank][i][t], b->hidden * 2);
		c.bias[i] = bias[i];
	}
	memset(me->sums, 0xa5, sizeof(me->sums));
	err = epf_ht_combine(me->ht, &c, NULL);
	free(bias[0]);
	free(bias[1]);
	return err ? err : epf_ht_check(me->ht);
}

void check_rows(const struct rank *me)
{
	const struct batch *b = me->batch;
	uint32_t i = 0;

	for (uint32_t r = 0; r < b->ranks; r++)
		for (uint32_t t = 0; t < b->tokens[r]; t++) {
			if (!goes(b, r, t, me->rank))
				continue;
			assert_memory_equal((const uint16_t *)me->rows + i * b->hidden, b->x[r][t],
					    b->hidden * 2);
			for (uint32_t s = 0; s < b->scales; s++)
				assert_true(((const float *)me->beside
						     ->scales)[b->by_column ? s * RANKS * TOKENS + i
									    : i * b->scales + s] ==
					    b->scale[r][s][t]);
			assert_int_equal(me->beside->numbers[i],
					 b->numbered ? number_of(r, t) : 0xa5a5a5a5);
			for (uint32_t k = 0; k < b->topk; k++) {
				int64_t e = b->idx[r][t][k];
				int here = e >= 0 && e / b->local == me->rank;

				assert_int_equal(me->beside->index[i * b->topk + k],
						 here ? e % b->local : -1);
				assert_true(me->beside->weights[i * b->topk + k] ==
					    (here ? b->weight[r][t][k] : 0.0f));
			}
			i++;
		}
	assert_int_equal(me->matrix[(b->ranks - 1) * b->ranks + me->rank], i);
	if (!b->worst)
		assert_int_equal(me->host[1], i);
	for (uint32_t k = i * b->topk; k < b->worst * b->topk; k++)
		assert_int_equal(me->beside->index[k], -1);
	/* Nothing is written behind what was asked for. */
	if (i < RANKS * TOKENS)
		assert_int_equal(me->beside->numbers[i], 0xa5a5a5a5);
	if (received_of(me) < RANKS * TOKENS)
		assert_int_equal(((const uint16_t *)me->rows)[received_of(me) * b->hidden], 0xa5a5);
}

/* On one node: the most rows that any rank receives, or adds for others. */
static uint32_t most_rows(const struct batch *b)
{
	uint32_t most = 0;

	for (uint32_t r = 0; r < b->ranks; r++) {
		uint32_t got = 0, sent = 0;

		for (uint32_t d = 0; d < b->ranks; d++) {
			got += rows_between(b, d, r);
			sent += d == r ? 0 : rows_between(b, r, d);
		}
		most = got > most ? got : most;
		most = sent > most ? sent : most;
	}
	return most;
}

static void check_counts(const struct rank *me)
{
	const struct batch *b = me->batch;
	int64_t entries[LOCAL] = { 0 };

	for (uint32_t d = 0; d < b->ranks; d++) {
		if (!skips_layout(me))
			assert_int_equal(me->per_rank[d], rows_between(b, me->rank, d));
		for (uint32_t t = 0; t < b->tokens[me->rank]; t++)
			assert_int_equal(me->in_rank[t * b->ranks + d], goes(b, me->rank, t, d));
	}
	if (!b->worst && epf_ht_nodes(me->ht) == 1)
		assert_int_equal(me->host[2], most_rows(b));
	for (uint32_t r = 0; r < b->ranks; r++)
		for (uint32_t t = 0; t < b->tokens[r]; t++)
			for (uint32_t k = 0; k < b->topk; k++)
				if (b->idx[r][t][k] >= 0 && b->idx[r][t][k] / b->local == me->rank)
					entries[b->idx[r][t][k] % b->local]++;
	for (uint32_t e = 0; e < b->local && !b->worst; e++)
		assert_int_equal(me->host[EPF_HT_HOST_WORDS + e],
				 (entries[e] + b->align - 1) / b->align * b->align);
}

/* Adds what the ranks of a node make of a token, ascending. Returns whether there are any. */
static int add_node(const struct rank *me, uint32_t t, uint32_t node, float *sum)
{
	const struct batch *b = me->batch;
	int any = 0;

	for (uint32_t d = 0; d < b->ranks; d++) {
		uint16_t row[HIDDEN];

		if (me->rig->on->node[d] != node || !goes(b, me->rank, t, d))
			continue;
		memcpy(row, b->x[me->rank][t], b->hidden * 2);
		expert(row, b->hidden, d);
		for (uint32_t h = 0; h < b->hidden; h++)
			sum[h] += ref_bf16_decode(row[h]);
		any = 1;
	}
	return any;
}

void check_sum_of_weights(const struct rank *me, uint32_t token)
{
	const struct batch *b = me->batch;

	for (uint32_t k = 0; k < b->topk; k++)
		assert_true(
			me->sum_weights[token * b->topk + k] ==
			(b->idx[me->rank][token][k] >= 0 ? b->weight[me->rank][token][k] : 0.0f));
}

void check_sums(const struct rank *me)
{
	const struct batch *b = me->batch;
	uint32_t nodes = epf_ht_nodes(me->ht);

	for (uint32_t t = 0; t < b->tokens[me->rank]; t++) {
		float sum[HIDDEN] = { 0 };

		for (uint32_t i = 0; i < b->biases; i++)
			for (uint32_t h = 0; h < b->hidden; h++)
				sum[h] += ref_bf16_decode(b->bias[me->rank][i][t][h]);
		for (uint32_t n = 0; n < nodes; n++) {
			float part[HIDDEN] = { 0 };

			if (nodes == 1)
				(void)add_node(me, t, n, sum);
			else if (add_node(me, t, n, part))
				for (uint32_t h = 0; h < b->hidden; h++)
					sum[h] += ref_bf16_decode(ref_bf16_encode(part[h]));
		}
		for (uint32_t h = 0; h < b->hidden; h++)
			assert_int_equal(me->sums[t * b->hidden + h], ref_bf16_encode(sum[h]));
		check_sum_of_weights(me, t);
	}
}

void set_batch(struct rig *g, const struct batch *b)
{
	for (uint32_t r = 0; r < g->ranks; r++)
		g->rank[r].batch = b;
}

/* A batch through all calls; the dispatch twice, as with a cached handle. */
void run_batch(struct rig *g, uint64_t seed)
{
	struct batch *b = make_batch(g->ranks, seed);

	set_batch(g, b);
	all_right(g, plan);
	for (int i = 0; i < 2; i++) {
		all_right(g, move);
		for (uint32_t r = 0; r < g->ranks; r++)
			check_rows(&g->rank[r]);
	}
	all_right(g, collect);
	for (uint32_t r = 0; r < g->ranks; r++) {
		check_counts(&g->rank[r]);
		check_sums(&g->rank[r]);
	}
	free(b);
}
