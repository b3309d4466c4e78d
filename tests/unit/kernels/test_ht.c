/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput in plain C: ranks as threads of this process, on one node or several, dispatch and combine of random shapes against a reference,
 * byte for byte, with poisoned outputs and windows; limits, late and dead ranks, bad arguments.
 */
#include "kernels/ht/ht.h"
#include "kernels/ll/ll.h"
#include "tests/ref/ref.h"
#include "tests/unit/kernels/ll_kit.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = LL_KIT_RANKS, TOKENS = 40, TOPK = 6, LOCAL = 5, HIDDEN = 64, SCALES = 3 };

/* One batch of all ranks. */
struct batch {
	uint32_t ranks, hidden, topk, local, scales, align, worst;
	uint32_t tokens[RANKS];
	uint16_t x[RANKS][TOKENS][HIDDEN];
	float scale[RANKS][SCALES][TOKENS]; /* column-major */
	int64_t idx[RANKS][TOKENS][TOPK];
	float weight[RANKS][TOKENS][TOPK];
	uint16_t bias[RANKS][2][TOKENS][HIDDEN];
	uint32_t biases;
};

/* One rank: its object, its memory, and what its calls gave. */
struct rank {
	struct rig *rig;
	uint32_t rank;
	const struct batch *batch;
	const struct batch *const *rounds; /* of rounds_follow_at_once */
	struct epf_ht *ht;
	uint8_t *control, *window, *plan;
	int32_t *links;
	uint8_t in_rank[TOKENS * RANKS];
	int32_t per_rank[RANKS], per_node[(RANKS + 7) / 8], per_expert[RANKS * LOCAL];
	int32_t place[TOKENS * RANKS], matrix[RANKS * RANKS];
	int64_t host[EPF_HT_HOST_WORDS + LOCAL];
	uint16_t rows[RANKS * TOKENS][HIDDEN] __attribute__((aligned(16)));
	float row_scales[RANKS * TOKENS][SCALES];
	int64_t index[RANKS * TOKENS * TOPK];
	float weights[RANKS * TOKENS * TOPK];
	uint8_t *
		segment; /* memory of the pool that outputs lie in, at `out`; NULL: they are `rows` */
	uint16_t *out;
	uint16_t y[RANKS * TOKENS][HIDDEN] __attribute__((aligned(16)));
	uint16_t sums[TOKENS * HIDDEN] __attribute__((aligned(16)));
	float sum_weights[TOKENS * TOPK];
	int absent;
	int err;
	char why[512];
};

/* Which rank is of which node; numbered by their lowest ranks, as the library does. */
struct topology {
	uint32_t ranks;
	uint32_t node[RANKS];
};

struct rig {
	struct ll_kit *kit;
	const struct topology *on;
	uint32_t ranks;
	uint64_t window_bytes;
	uint64_t timeout_ns;
	struct rank rank[RANKS];
	int (*step)(struct rank *me);
};

static void *run_rank(void *arg)
{
	struct rank *me = arg;

	me->err = me->rig->step(me);
	if (me->err)
		snprintf(me->why, sizeof(me->why), "%s", epf_ll_error());
	return NULL;
}

/* Runs one step on all ranks that are not absent, a thread each. */
static void all_ranks(struct rig *g, int (*step)(struct rank *me))
{
	pthread_t threads[RANKS];

	g->step = step;
	for (uint32_t r = 0; r < g->ranks; r++)
		if (!g->rank[r].absent)
			assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &g->rank[r]),
					 0);
	for (uint32_t r = 0; r < g->ranks; r++)
		if (!g->rank[r].absent)
			pthread_join(threads[r], NULL);
}

static void all_right(struct rig *g, int (*step)(struct rank *me))
{
	int failed = 0;

	all_ranks(g, step);
	for (uint32_t r = 0; r < g->ranks; r++)
		if (g->rank[r].err && !g->rank[r].absent) {
			printf("# rank %u: %d, %s\n", r, g->rank[r].err, g->rank[r].why);
			failed = 1;
		}
	assert_false(failed);
}

static int set_window(struct rank *me)
{
	struct rig *g = me->rig;
	void *window[RANKS];

	for (uint32_t r = 0; r < g->ranks; r++)
		window[r] = g->on->node[r] == g->on->node[me->rank] ? g->rank[r].window : NULL;
	return epf_ht_set_window(me->ht, me->window, g->window_bytes, window);
}

static int open_rank(struct rank *me)
{
	struct rig *g = me->rig;
	void *control[RANKS];
	struct epf_ht_options o = { .size = sizeof(o),
				    .control = me->control,
				    .peers = control,
				    .timeout_ns = g->timeout_ns,
				    .first_signal = 3 + 8 * RANKS };
	int err;

	for (uint32_t r = 0; r < g->ranks; r++) {
		int mate = g->on->node[r] == g->on->node[me->rank];

		control[r] = mate ? g->rank[r].control : NULL;
	}
	err = epf_ht_open(ll_kit_ll(g->kit, me->rank), &o, &me->ht);
	if (!err) {
		me->ht->put_bytes = 256; /* several puts a slice */
		me->ht->part_rows = 8;   /* several parts */
	}
	return err ? err : set_window(me);
}

enum nic { ORDERED, REORDERS, LATE /* and reorders; packets come up to 20 ms apart */ };

static struct rig *open_on(const struct topology *on, uint64_t timeout_ns, enum nic nic)
{
	uint32_t ranks = on->ranks;
	struct ll_kit_options o = { .ranks = ranks,
				    .direct = LL_KIT_ALL,
				    .unordered = nic != ORDERED,
				    .late = nic == LATE,
				    .bytes = 1u << 20,
				    .timeout_ns = timeout_ns };
	struct epf_ht_row row = { .bytes = HIDDEN * 2, .scale_words = SCALES, .topk = TOPK };
	struct rig *g = aligned_alloc(16, (sizeof(*g) + 15) / 16 * 16);

	assert_non_null(g);
	memset(g, 0, sizeof(*g));
	g->ranks = ranks;
	g->on = on;
	g->timeout_ns = timeout_ns;
	g->kit = ll_kit_open(&o);
	g->window_bytes = epf_ht_window_bytes(&row, ranks * TOKENS);
	for (uint32_t r = 0; r < ranks; r++) {
		size_t control = (epf_ht_control_bytes(ranks) + 127) / 128 * 128;

		g->rank[r].rig = g;
		g->rank[r].rank = r;
		g->rank[r].control = aligned_alloc(128, control);
		g->rank[r].window = aligned_alloc(128, g->window_bytes);
		assert_non_null(g->rank[r].control);
		assert_non_null(g->rank[r].window);
		memset(g->rank[r].control, 0, control);
		memset(g->rank[r].window, 0xa5, g->window_bytes);
	}
	all_right(g, open_rank);
	for (uint32_t r = 0; r < ranks; r++) {
		g->rank[r].plan = aligned_alloc(
			16, (epf_ht_plan_bytes(g->rank[r].ht, TOKENS) + 15) / 16 * 16);
		g->rank[r].links =
			malloc(sizeof(int32_t[RANKS * TOKENS]) * epf_ht_node_max(g->rank[r].ht));
	}
	return g;
}

static struct rig *open_rig(uint32_t ranks, uint64_t timeout_ns)
{
	static const struct topology one[RANKS + 1] = { { 0 }, { 1 }, { 2 }, { 3 }, { 4 } };

	assert_true(one[ranks].ranks == ranks);
	return open_on(&one[ranks], timeout_ns, ORDERED);
}

static void close_rig(struct rig *g)
{
	for (uint32_t r = 0; r < g->ranks; r++) {
		epf_ht_close(g->rank[r].ht);
		free(g->rank[r].control);
		free(g->rank[r].window);
		free(g->rank[r].plan);
		free(g->rank[r].links);
	}
	ll_kit_close(g->kit);
	free(g);
}

static uint32_t any(uint64_t *seed, uint32_t n)
{
	return (uint32_t)(ll_kit_random(seed) % n);
}

/* BF16 numbers of both signs, so different in size that the order of additions shows. */
static uint16_t bf16(uint64_t *seed)
{
	return (uint16_t)(0x3600 + any(seed, 0x1000) + (any(seed, 2) << 15));
}

static struct batch *make_batch(uint32_t ranks, uint64_t seed)
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

static uint32_t rows_between(const struct batch *b, uint32_t r, uint32_t d)
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

static int plan(struct rank *me)
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
	err = epf_ht_layout(me->ht, &r, NULL);
	if (err)
		return err;
	r.host = b->worst ? NULL : me->host;
	err = epf_ht_notify(me->ht, &r, NULL);
	return err || b->worst ? err : epf_ht_wait_counts(me->ht, me->host);
}

static uint32_t received_of(const struct rank *me)
{
	return me->batch->worst ? me->batch->worst : (uint32_t)me->host[1];
}

static uint32_t room_of(const struct rank *me)
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

static int move(struct rank *me)
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
				     .out_scales = me->row_scales,
				     .out_index = me->index,
				     .out_weights = me->weights };
	uint16_t(*x)[HIDDEN] = aligned_alloc(16, sizeof(uint16_t[TOKENS][HIDDEN]));
	int64_t idx[TOKENS * TOPK];
	float weight[TOKENS * TOPK];
	int err = epf_ht_reserve(me->ht, &d.row, d.across);

	if (err) {
		free(x);
		return err;
	}
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
	memset(me->row_scales, 0xa5, sizeof(me->row_scales));
	memset(me->index, 0xa5, sizeof(me->index));
	memset(me->weights, 0xa5, sizeof(me->weights));
	d.x = x;
	d.topk_idx = idx;
	d.weights = weight;
	err = epf_ht_dispatch(me->ht, &d, NULL);
	free(x);
	if (me->out)
		memcpy(me->rows, me->out, sizeof(me->rows));
	return err ? err : epf_ht_check(me->ht);
}

/* What rank r makes of a row, in place. */
static void expert(uint16_t *row, uint32_t hidden, uint32_t r)
{
	for (uint32_t h = 0; h < hidden; h++)
		row[h] = ref_bf16_encode(ref_bf16_decode(row[h]) * (1.0f + 0.125f * (float)r));
}

static int collect(struct rank *me)
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
				    .weights = me->weights,
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

static void check_rows(const struct rank *me)
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
				assert_true(((const float *)me->row_scales)[i * b->scales + s] ==
					    b->scale[r][s][t]);
			for (uint32_t k = 0; k < b->topk; k++) {
				int64_t e = b->idx[r][t][k];
				int here = e >= 0 && e / b->local == me->rank;

				assert_int_equal(me->index[i * b->topk + k],
						 here ? e % b->local : -1);
				assert_true(me->weights[i * b->topk + k] ==
					    (here ? b->weight[r][t][k] : 0.0f));
			}
			i++;
		}
	assert_int_equal(me->matrix[(b->ranks - 1) * b->ranks + me->rank], i);
	if (!b->worst)
		assert_int_equal(me->host[1], i);
	for (uint32_t k = i * b->topk; k < b->worst * b->topk; k++)
		assert_int_equal(me->index[k], -1);
	/* Nothing is written behind what was asked for. */
	if (received_of(me) < RANKS * TOKENS)
		assert_int_equal(((const uint16_t *)me->rows)[received_of(me) * b->hidden], 0xa5a5);
}

static void check_counts(const struct rank *me)
{
	const struct batch *b = me->batch;
	int64_t entries[LOCAL] = { 0 };

	for (uint32_t d = 0; d < b->ranks; d++) {
		assert_int_equal(me->per_rank[d], rows_between(b, me->rank, d));
		for (uint32_t t = 0; t < b->tokens[me->rank]; t++)
			assert_int_equal(me->in_rank[t * b->ranks + d], goes(b, me->rank, t, d));
	}
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

static void check_sums(const struct rank *me)
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
		for (uint32_t k = 0; k < b->topk; k++)
			assert_true(
				me->sum_weights[t * b->topk + k] ==
				(b->idx[me->rank][t][k] >= 0 ? b->weight[me->rank][t][k] : 0.0f));
	}
}

static void set_batch(struct rig *g, const struct batch *b)
{
	for (uint32_t r = 0; r < g->ranks; r++)
		g->rank[r].batch = b;
}

/* A batch through all calls; the dispatch twice, as with a cached handle. */
static void run_batch(struct rig *g, uint64_t seed)
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

/* In the long form all batches and rounds. */
static bool all(void)
{
	return getenv("EPF_TEST_LONG") != NULL;
}

static void random_batches(void **state)
{
	for (uint32_t ranks = 1; ranks <= 4; ranks++) {
		struct rig *g = open_rig(ranks, 0);

		for (uint64_t i = 0; i < 40; i++)
			run_batch(g, 1000 * ranks + i);
		close_rig(g);
	}
}

/* Nodes of any sizes; ranks of a node need not be neighbours. */
static const struct topology several[] = {
	{ 2, { 0, 1 } },          { 3, { 0, 1, 1 } },          { 4, { 0, 0, 1, 1 } },
	{ 5, { 0, 1, 0, 1, 0 } }, { 6, { 0, 0, 0, 0, 1, 2 } }, { 9, { 0, 0, 0, 1, 2, 2, 3, 4, 4 } },
};

enum { SEVERAL = sizeof(several) / sizeof(several[0]) };

static void batches_between_nodes(void **state)
{
	for (unsigned i = 0; i < SEVERAL; i++) {
		struct rig *g = open_on(&several[i], 0, ORDERED);

		uint32_t nodes = 0;

		for (uint32_t r = 0; r < several[i].ranks; r++)
			nodes = several[i].node[r] >= nodes ? several[i].node[r] + 1 : nodes;
		assert_int_equal(epf_ht_nodes(g->rank[0].ht), nodes);
		for (uint64_t k = 0; k < (all() ? 15 : 5); k++) {
			run_batch(g, 7000 + 100 * i + k);
			if (k % 4 == 0)
				all_right(g, set_window);
		}
		close_rig(g);
	}
}

static void batches_over_a_nic_that_reorders_and_loses(void **state)
{
	for (unsigned i = 0; i < SEVERAL; i++) {
		struct rig *g = open_on(&several[i], 0, i % 2 ? REORDERS : LATE);

		for (uint64_t k = 0; k < (all() ? 5 : 2); k++)
			run_batch(g, 8000 + 100 * i + k);
		close_rig(g);
	}
}

enum { ROUNDS = 25, ROUNDS_LONG = 100 };

static int rounds(struct rank *me)
{
	int err = 0, n = all() ? ROUNDS_LONG : ROUNDS;

	for (int i = 0; i < n && !err; i++) {
		/* Counts that no rows follow, and at once others. */
		me->batch = me->rounds[n - 1 - i];
		err = plan(me);
		me->batch = me->rounds[i];
		if (!err)
			err = plan(me);
		if (!err)
			err = move(me);
		if (err)
			break;
		check_rows(me);
		err = collect(me);
		check_sums(me);
	}
	return err;
}

/* Nothing but the calls orders the ranks: memory is not written before its rank has read what the call before brought. */
static void run_rounds(struct rig *g)
{
	struct batch *b[ROUNDS_LONG];

	for (int i = 0; i < ROUNDS_LONG; i++)
		b[i] = make_batch(g->ranks, 9000 + (uint64_t)i);
	for (uint32_t r = 0; r < g->ranks; r++)
		g->rank[r].rounds = (const struct batch *const *)b;
	all_right(g, rounds);
	for (int i = 0; i < ROUNDS_LONG; i++)
		free(b[i]);
	close_rig(g);
}

static void rounds_follow_at_once(void **state)
{
	run_rounds(open_rig(4, 0));
}

static void rounds_between_nodes_follow_at_once(void **state)
{
	run_rounds(open_on(&several[3], 0, ORDERED));
	run_rounds(open_on(&several[3], 0, REORDERS));
}

/* For calls that cannot succeed; the others have the default, which no machine is too slow for. */
#define SHORT_NS UINT64_C(1000000000)

static void set_timeout(struct rig *g, uint64_t timeout_ns)
{
	for (uint32_t r = 0; r < g->ranks; r++)
		g->rank[r].ht->opts.timeout_ns = timeout_ns;
}

/* A rank that makes no call is named, and with what it owes; afterwards calls go on. */
static void late_ranks_are_named(void **state)
{
	static const struct topology node = { 3, { 0, 0, 0 } };

	static const struct {
		const struct topology *on;
		int (*step)(struct rank *me);
		const char *owes; /* to rank 0 */
	} cases[] = { { &node, plan, "did not send its counts" },
		      { &node, move, "did not send its rows" },
		      { &several[1], plan, "did not send its counts" },
		      { &several[1], move, "did not send its rows" } };

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rig *g = open_on(cases[i].on, 0, ORDERED);
		struct batch *b = make_batch(3, 7);

		b->worst = 0;
		set_batch(g, b);
		if (cases[i].step != plan) {
			all_right(g, plan);
			all_right(g, move);
		}
		g->rank[1].absent = 1;
		set_timeout(g, SHORT_NS);
		all_ranks(g, cases[i].step);
		for (uint32_t r = 0; r < 3; r += 2) {
			assert_int_equal(g->rank[r].err, -ETIMEDOUT);
			assert_non_null(strstr(g->rank[r].why, "rank 1 did not"));
			if (r == 0 && !strstr(g->rank[r].why, cases[i].owes))
				fail_msg("%s, without: %s", g->rank[r].why, cases[i].owes);
			assert_int_equal(epf_ht_check(g->rank[r].ht), 0);
		}
		free(b);
		close_rig(g);
	}
}

/* A rank that still has to read what came is sent nothing more, although those that send give up waiting for it. */
static void memory_that_is_not_read_is_not_written(void **state)
{
	struct rig *g = open_on(&several[0], 0, ORDERED);
	struct batch *b = NULL, *other = malloc(sizeof(*other));

	for (uint64_t seed = 0; !b || !rows_between(b, 1, 0); seed++) {
		free(b);
		b = make_batch(2, seed);
	}
	b->worst = 0;
	*other = *b;
	for (uint32_t r = 0; r < 2; r++)
		for (uint32_t t = 0; t < b->tokens[r]; t++)
			other->x[r][t][0] ^= 1;
	set_batch(g, b);
	all_right(g, plan);
	all_right(g, move);
	g->rank[0].absent = 1;
	set_timeout(g, SHORT_NS);
	all_ranks(g, move);
	set_batch(g, other);
	all_ranks(g, move);
	assert_int_equal(g->rank[1].err, -ETIMEDOUT);
	set_timeout(g, 0);
	g->rank[0].absent = 0;
	g->rank[1].absent = 1;
	g->rank[0].batch = b;
	all_right(g, move);
	check_rows(&g->rank[0]);
	free(b);
	free(other);
	close_rig(g);
}

/* A rank of another node that has closed is named; the deadline is longer than the test. */
static void a_dead_rank_of_another_node_is_named(void **state)
{
	struct rig *g = open_on(&several[0], UINT64_C(3600000000000), ORDERED);
	struct batch *b = make_batch(2, 7);

	b->worst = 0;
	set_batch(g, b);
	all_right(g, plan);
	all_right(g, move);
	g->rank[1].absent = 1;
	epf_ht_close(g->rank[1].ht);
	g->rank[1].ht = NULL;
	ll_kit_kill(g->kit, 1);
	all_ranks(g, move);
	assert_true(g->rank[0].err < 0);
	if (!strstr(g->rank[0].why, "rank 1 did not send its rows") ||
	    !strstr(g->rank[0].why, "has closed"))
		fail_msg("%s", g->rank[0].why);
	free(b);
	close_rig(g);
}

static int move_into_less(struct rank *me)
{
	int64_t received = me->host[1];
	int err;

	me->host[1] = received ? received - 1 : 0;
	err = move(me);
	me->host[1] = received;
	return received ? err : -ENOSPC;
}

/* Rows that do not fit are left out and reported; nothing is written behind the outputs. */
static void too_few_rows(struct rig *g)
{
	struct batch *b = make_batch(2, 11);

	b->worst = 0;
	set_batch(g, b);
	all_right(g, plan);
	all_ranks(g, move_into_less);
	for (uint32_t r = 0; r < 2; r++) {
		struct rank *me = &g->rank[r];

		assert_int_equal(me->err, -ENOSPC);
		if (me->host[1])
			assert_non_null(strstr(me->why, "raise num_worst_tokens"));
		if (me->host[1])
			assert_int_equal(
				((const uint16_t *)me->rows)[(me->host[1] - 1) * b->hidden],
				0xa5a5);
	}
	free(b);
	close_rig(g);
}

/* Gives each rank memory of the pool for its outputs. */
static void use_segments(struct rig *g)
{
	for (uint32_t r = 0; r < g->ranks; r++) {
		struct rank *me = &g->rank[r];

		me->segment = epf_ht_pool_alloc(sizeof(me->rows) + 4096, 0, NULL);
		assert_non_null(me->segment);
		me->out = (void *)(me->segment + 16 * (r + 1));
	}
}

/* Maps one segment of each rank that has asked for one. */
static int map_segments(struct rank *me)
{
	struct rig *g = me->rig;
	void *peers[RANKS] = { NULL }, *base = NULL;
	uint64_t bytes = 0;

	for (uint32_t r = 0; r < g->ranks; r++)
		if (g->on->node[r] == g->on->node[me->rank] && received_of(&g->rank[r]))
			peers[r] = g->rank[r].segment;
	(void)epf_ht_wanted(me->ht, 0, &base, &bytes);
	return epf_ht_map(me->ht, base, bytes, peers);
}

static void give_back_segments(struct rig *g)
{
	for (uint32_t r = 0; r < g->ranks; r++)
		epf_ht_pool_free(g->rank[r].segment, 0, 0, NULL);
}

static int only(const uint8_t *at, uint64_t bytes, uint8_t value)
{
	for (uint64_t i = 0; i < bytes; i++)
		if (at[i] != value)
			return 0;
	return 1;
}

/* Rows of others arrive in the window until a rank's outputs are mapped, and in the outputs from then on. */
static void rows_go_straight_to_mapped_outputs(void **state)
{
	static const struct topology on[] = { { 3, { 0, 0, 0 } }, { 5, { 0, 1, 0, 1, 1 } } };

	(void)state;
	for (size_t i = 0; i < sizeof(on) / sizeof(on[0]); i++) {
		struct rig *g = open_on(&on[i], 0, ORDERED);
		struct ht_segment found;

		use_segments(g);
		for (uint64_t seed = 1; seed < 6; seed++) {
			struct batch *b = make_batch(g->ranks, 100 * i + seed);
			int mapped = seed > 1;

			b->worst = 0;
			for (uint32_t r = 0; r < g->ranks; r++) {
				b->tokens[r] = b->tokens[r] ? b->tokens[r] : 1;
				b->idx[r][0][0] = (int64_t)((r + 1) % g->ranks) * b->local;
				memset(g->rank[r].window, 0xa5, g->window_bytes);
			}
			set_batch(g, b);
			all_right(g, plan);
			all_right(g, move);
			for (uint32_t r = 0; r < g->ranks; r++) {
				struct rank *me = &g->rank[r];
				uint64_t rows = (uint64_t)room_of(me) * b->hidden * 2;

				check_rows(me);
				assert_int_equal(me->host[5], 0);
				assert_int_equal(only(me->window, rows, 0xa5), mapped);
			}
			if (!mapped) {
				all_right(g, plan);
				for (uint32_t r = 0; r < g->ranks; r++)
					assert_int_not_equal(g->rank[r].host[5], 0);
				all_right(g, map_segments);
			}
			free(b);
		}
		/* Others map it: it stays until they have closed. */
		give_back_segments(g);
		assert_true(ht_pool_find(g->rank[1].out, &found));
		assert_ptr_equal(found.base, g->rank[1].segment);
		epf_ht_close(g->rank[1].ht);
		g->rank[1].ht = NULL;
		assert_false(ht_pool_find(g->rank[1].out, &found));
		close_rig(g);
	}
}

/* A segment is mapped in the order in which it was asked for, and their number is limited. */
static void segments_are_asked_for_first(void **state)
{
	struct rig *g = open_rig(2, 0);
	struct epf_ht *ht = g->rank[0].ht;
	void *peers[2] = { NULL, NULL }, *base = NULL, *one, *two;
	uint64_t bytes = 0;

	(void)state;
	one = epf_ht_pool_alloc(1, 0, NULL);
	two = epf_ht_pool_alloc(1, 0, NULL);
	epf_ht_want(ht, &bytes); /* not of the pool */
	assert_int_equal(epf_ht_wanted(ht, 0, &base, &bytes), 0);
	epf_ht_want(ht, one);
	epf_ht_want(ht, (uint8_t *)one + 100);
	epf_ht_want(ht, two);
	assert_int_equal(epf_ht_wanted(ht, 1, &base, &bytes), 2);
	assert_ptr_equal(base, two);
	assert_int_equal(epf_ht_map(ht, two, bytes, peers), -EINVAL);
	assert_int_equal(epf_ht_map(ht, one, bytes, peers), 0);
	for (uint32_t i = 1; i < EPF_HT_SEGMENTS_MAX; i++)
		assert_int_equal(epf_ht_map(ht, NULL, 0, peers), 0);
	assert_int_equal(epf_ht_map(ht, two, bytes, peers), -ENOSPC);
	assert_non_null(strstr(epf_ll_error(), "256 segments"));
	epf_ht_pool_free(one, 0, 0, NULL);
	epf_ht_pool_free(two, 0, 0, NULL);
	close_rig(g);
}

/* Memory of a rank that waits no longer may serve something else: a rank that comes too late writes nothing there, and learns it. */
static void a_rank_that_comes_too_late_writes_nothing(void **state)
{
	struct rig *g = open_rig(2, 0);
	struct batch *b = make_batch(2, 5);

	(void)state;
	b->worst = 0;
	for (uint32_t r = 0; r < 2; r++) {
		b->tokens[r] = TOKENS;
		for (uint32_t t = 0; t < TOKENS; t++)
			b->idx[r][t][0] = (int64_t)(t % 2) * b->local;
	}
	use_segments(g);
	set_batch(g, b);
	all_right(g, plan);
	all_right(g, move);
	all_right(g, plan);
	all_right(g, map_segments);
	for (int step = 0; step < 2; step++) { /* a dispatch, then a combine */
		int (*call)(struct rank * me) = step ? collect : move;

		set_timeout(g, SHORT_NS);
		g->rank[1].absent = 1;
		all_ranks(g, call);
		assert_int_equal(g->rank[0].err, -ETIMEDOUT);
		g->rank[1].absent = 0;
		g->rank[0].absent = 1;
		memset(g->rank[0].window, 0x5a, g->window_bytes);
		memset(g->rank[0].segment, 0x5a, sizeof(g->rank[0].rows));
		all_ranks(g, call);
		assert_int_equal(g->rank[1].err, -ETIMEDOUT);
		assert_non_null(strstr(g->rank[1].why, "rank 0"));
		assert_true(only(g->rank[0].window, g->window_bytes, 0x5a));
		assert_true(only(g->rank[0].segment, sizeof(g->rank[0].rows), 0x5a));
		g->rank[0].absent = 0;
		/* Ranks that make the same calls again go on. */
		set_timeout(g, 0);
		all_right(g, move);
		check_rows(&g->rank[0]);
		check_rows(&g->rank[1]);
	}
	all_right(g, collect);
	check_sums(&g->rank[0]);
	check_sums(&g->rank[1]);
	give_back_segments(g);
	close_rig(g);
	free(b);
}

static void too_few_rows_are_reported(void **state)
{
	too_few_rows(open_rig(2, 0));
	too_few_rows(open_on(&several[0], 0, ORDERED));
}

static int move_across_less(struct rank *me)
{
	int64_t across = me->host[3];
	int err;

	me->host[3] = across - 1;
	err = move(me);
	me->host[3] = across;
	return err;
}

/* Rows that do not fit between nodes stay where they are, at all ranks, which all report it. */
static void too_few_rows_between_nodes_are_reported(void **state)
{
	struct rig *g = open_on(&several[2], 0, ORDERED);
	struct batch *b = make_batch(4, 12);

	b->worst = 0;
	set_batch(g, b);
	all_right(g, plan);
	assert_true(g->rank[0].host[3] > 0);
	all_ranks(g, move_across_less);
	for (uint32_t r = 0; r < 4; r++) {
		assert_int_equal(g->rank[r].err, -ENOSPC);
		assert_non_null(strstr(g->rank[r].why, "raise num_worst_tokens"));
	}
	free(b);
	/* And calls go on. */
	run_batch(g, 13);
	close_rig(g);
}

static void an_expert_that_does_not_exist_is_none(void **state)
{
	struct rig *g = open_rig(1, 0);
	struct batch *b = make_batch(1, 5);

	b->worst = 0;
	b->tokens[0] = 2;
	b->idx[0][0][0] = b->local + 3;
	set_batch(g, b);
	all_right(g, plan);
	assert_int_equal(epf_ht_check(g->rank[0].ht), -EINVAL);
	assert_non_null(strstr(epf_ll_error(), "expert that does not exist"));
	assert_int_equal(epf_ht_check(g->rank[0].ht), 0);
	free(b);
	close_rig(g);
}

static void refused(int got, int want, const char *text)
{
	assert_int_equal(got, want);
	if (!strstr(epf_ll_error(), text))
		fail_msg("%s, without: %s", epf_ll_error(), text);
}

static void bad_arguments_are_refused(void **state)
{
	struct rig *g = open_rig(2, 0);
	struct epf_ht *ht = g->rank[0].ht;
	struct epf_ht_options o = { .size = sizeof(o) };
	struct epf_ht_routing r = { .size = sizeof(r), .experts = 4, .topk = 1 };
	struct epf_ht_dispatch d = { .size = sizeof(d), .row = { 32, 0, 0 }, .matrix = (void *)64 };
	struct epf_ht_combine c = { .size = sizeof(c), .row_bytes = 32, .matrix = (void *)64 };
	struct epf_ht *none;
	void *peers[2] = { NULL, NULL };

	refused(epf_ht_open(ll_kit_ll(g->kit, 0), &o, &none), -EINVAL, "control memory");
	o.control = g->rank[0].control;
	o.peers = peers;
	refused(epf_ht_set_window(ht, NULL, 0, peers), -EINVAL, "window at");
	refused(epf_ht_set_window(ht, g->rank[0].window, 4096, peers), -EINVAL,
		"rank 0 cannot store to the window of rank 1");
	refused(epf_ht_layout(ht, &r, NULL), -EINVAL, "per_expert is");
	r.experts = 5;
	refused(epf_ht_notify(ht, &r, NULL), -EINVAL, "a multiple of the ranks");
	r.experts = 2 * (EPF_HT_LOCAL_MAX + 1);
	refused(epf_ht_notify(ht, &r, NULL), -EINVAL, "at most 4096 a rank");
	r.experts = 4;
	r.topk = EPF_HT_TOPK_MAX + 1;
	refused(epf_ht_layout(ht, &r, NULL), -EINVAL, "at most 32");
	r.size = 1;
	refused(epf_ht_layout(ht, &r, NULL), -EINVAL, "size of a routing");
	d.row.bytes = 24;
	refused(epf_ht_dispatch(ht, &d, NULL), -EINVAL, "a row has 24 bytes");
	d.row.bytes = 32;
	d.room = 1 << 20;
	refused(epf_ht_dispatch(ht, &d, NULL), -E2BIG, "need a window of");
	d.room = 1;
	d.tokens = 1;
	d.x = (void *)8;
	refused(epf_ht_dispatch(ht, &d, NULL), -EINVAL, "x is 0x8");
	c.row_bytes = 8;
	refused(epf_ht_combine(ht, &c, NULL), -EINVAL, "a row has 8 bytes");
	c.row_bytes = 32;
	c.room = 1 << 20;
	refused(epf_ht_combine(ht, &c, NULL), -E2BIG, "need a window of");
	close_rig(g);
}

enum { GROUPED = TOKENS * TOPK + 7, WORDS = 3 };

/* Entries of rows are copied to grouped rows in a random order, with column-major scales and weights, and are added back, exactly those. */
static void grouped_rows_are_copies_and_come_back_as_sums(void **state)
{
	static uint16_t x[TOKENS][HIDDEN] __attribute__((aligned(16))),
		out[GROUPED][HIDDEN] __attribute__((aligned(16))),
		back[TOKENS][HIDDEN] __attribute__((aligned(16)));
	static int32_t slots[TOKENS][TOPK];
	static uint32_t scales[TOKENS][WORDS + 1], out_scales[WORDS][GROUPED];
	static float weights[TOKENS][TOPK], out_weights[GROUPED], back_weights[TOKENS][TOPK];
	struct rig *g = open_rig(1, 0);
	struct epf_ht_group c = { .size = sizeof(c),
				  .row_bytes = sizeof(x[0]),
				  .scale_words = WORDS,
				  .topk = TOPK,
				  .rows = TOKENS,
				  .grouped = GROUPED,
				  .blocks = 3,
				  .slots = slots[0],
				  .x = x,
				  .scales = scales,
				  .scale_stride = { WORDS + 1, 1 },
				  .out_stride = { 1, GROUPED },
				  .weights = weights[0],
				  .out = out,
				  .out_scales = out_scales,
				  .out_weights = out_weights };
	uint32_t owner[GROUPED] = { 0 }, next = 0;

	for (uint32_t r = 0; r < TOKENS; r++) {
		for (uint32_t k = 0; k < TOPK; k++) {
			slots[r][k] = (r + k) % 3 ? (int32_t)(next++ * 37u % GROUPED) : -1;
			weights[r][k] = (float)(r * TOPK + k + 1);
			if (slots[r][k] >= 0)
				owner[slots[r][k]] = 1 + r;
		}
		for (uint32_t h = 0; h < HIDDEN; h++)
			x[r][h] = ref_bf16_encode((float)(r * HIDDEN + h) / 16.0f);
		for (uint32_t w = 0; w <= WORDS; w++)
			scales[r][w] = r * 8u + w;
	}
	slots[1][2] = GROUPED; /* out of bounds: none */
	memset(out, 0xa5, sizeof(out));
	memset(out_scales, 0xa5, sizeof(out_scales));
	assert_int_equal(epf_ht_spread(g->rank[0].ht, &c, NULL), 0);
	for (uint32_t i = 0; i < GROUPED; i++) {
		uint32_t from = owner[i] - 1;

		for (uint32_t h = 0; h < HIDDEN; h++)
			assert_int_equal(out[i][h], owner[i] ? x[from][h] : 0xa5a5);
		for (uint32_t w = 0; w < WORDS; w++)
			assert_int_equal(out_scales[w][i], owner[i] ? scales[from][w] : 0xa5a5a5a5);
	}
	c.x = out;
	c.out = back;
	c.weights = out_weights;
	c.out_weights = back_weights[0];
	assert_int_equal(epf_ht_fold(g->rank[0].ht, &c, NULL), 0);
	for (uint32_t r = 0; r < TOKENS; r++) {
		float sum[HIDDEN] = { 0 };

		for (uint32_t k = 0; k < TOPK; k++) {
			int is_there = slots[r][k] >= 0 && slots[r][k] < GROUPED;

			assert_true(back_weights[r][k] == (is_there ? weights[r][k] : 0.0f));
			for (uint32_t h = 0; is_there && h < HIDDEN; h++)
				sum[h] += ref_bf16_decode(x[r][h]);
		}
		for (uint32_t h = 0; h < HIDDEN; h++)
			assert_int_equal(back[r][h], ref_bf16_encode(sum[h]));
	}
	c.grouped = 0; /* no entry has a row */
	assert_int_equal(epf_ht_fold(g->rank[0].ht, &c, NULL), 0);
	for (uint32_t i = 0; i < TOKENS * TOPK; i++)
		assert_true(back_weights[i / TOPK][i % TOPK] == 0.0f);
	c.grouped = GROUPED;
	c.size = 8;
	refused(epf_ht_fold(g->rank[0].ht, &c, NULL), -EINVAL, "size of a group");
	c.size = sizeof(c);
	c.topk = EPF_HT_TOPK_MAX + 1;
	refused(epf_ht_spread(g->rank[0].ht, &c, NULL), -EINVAL, "at most 32");
	c.topk = TOPK;
	c.row_bytes = 20;
	refused(epf_ht_spread(g->rank[0].ht, &c, NULL), -EINVAL, "a row has 20 bytes");
	c.row_bytes = 32;
	c.x = (void *)8;
	refused(epf_ht_spread(g->rank[0].ht, &c, NULL), -EINVAL, "multiples of 16");
	c.x = NULL;
	refused(epf_ht_spread(g->rank[0].ht, &c, NULL), -EINVAL, "multiples of 16");
	c.x = x;
	c.out_weights = NULL;
	refused(epf_ht_fold(g->rank[0].ht, &c, NULL), -EINVAL, "out_weights are missing");
	c.out_scales = NULL;
	refused(epf_ht_spread(g->rank[0].ht, &c, NULL), -EINVAL, "scales and out_scales");
	c.slots = NULL;
	refused(epf_ht_spread(g->rank[0].ht, &c, NULL), -EINVAL, "slots are missing");
	close_rig(g);
}

static int open_with_uneven_reach(struct rank *me)
{
	void *control[RANKS] = { NULL };
	struct epf_ht_options o = { .size = sizeof(o), .control = me->control, .peers = control };
	struct epf_ht *none;

	/* Rank 0 reaches rank 1, or ranks 0 and 1, and 1 and 2, reach each other. */
	for (uint32_t r = 0; r < me->rig->ranks; r++)
		if (r != me->rank && (me->rig->ranks == 2 ? me->rank == 0 : r + me->rank != 2))
			control[r] = me->rig->rank[r].control;
	return epf_ht_open(ll_kit_ll(me->rig->kit, me->rank), &o, &none);
}

static void nodes_must_be_groups_of_ranks_that_reach_each_other(void **state)
{
	static const char *const texts[] = {
		[2] = "and not the other way round", [3] = "the same other ranks"
	};

	for (uint32_t ranks = 2; ranks <= 3; ranks++) {
		struct rig *g = open_rig(ranks, 0);

		all_ranks(g, open_with_uneven_reach);
		for (uint32_t r = 0; r < ranks; r++) {
			assert_int_equal(g->rank[r].err, -EINVAL);
			assert_non_null(strstr(g->rank[r].why, texts[ranks]));
		}
		close_rig(g);
	}
}

/* Ranks that share a GPU take half of it together, so that all their blocks are resident at once; one alone takes all of it. */
static void ranks_that_share_a_gpu_leave_room(void **state)
{
	assert_int_equal(ll_blocks_for(132, 1), 132);
	assert_int_equal(ll_blocks_for(132, 2), 33);
	assert_int_equal(ll_blocks_for(58, 2), 14);
	assert_int_equal(ll_blocks_for(4, 16), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_batches),
		cmocka_unit_test(batches_between_nodes),
		cmocka_unit_test(batches_over_a_nic_that_reorders_and_loses),
		cmocka_unit_test(rounds_follow_at_once),
		cmocka_unit_test(rounds_between_nodes_follow_at_once),
		cmocka_unit_test(late_ranks_are_named),
		cmocka_unit_test(rows_go_straight_to_mapped_outputs),
		cmocka_unit_test(segments_are_asked_for_first),
		cmocka_unit_test(a_rank_that_comes_too_late_writes_nothing),
		cmocka_unit_test(memory_that_is_not_read_is_not_written),
		cmocka_unit_test(a_dead_rank_of_another_node_is_named),
		cmocka_unit_test(too_few_rows_are_reported),
		cmocka_unit_test(too_few_rows_between_nodes_are_reported),
		cmocka_unit_test(an_expert_that_does_not_exist_is_none),
		cmocka_unit_test(bad_arguments_are_refused),
		cmocka_unit_test(grouped_rows_are_copies_and_come_back_as_sums),
		cmocka_unit_test(nodes_must_be_groups_of_ranks_that_reach_each_other),
		cmocka_unit_test(ranks_that_share_a_gpu_leave_room),
	};

	cmocka_set_test_filter(getenv("HT_TEST"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
