/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput in plain C: rows grouped by expert. Numbers of entries, where groups lie, dispatches whose rows are copied to their groups, along their routing
 * too, or of guessed sizes, within a node and between nodes, the sums on the way back, also beside a combine, and what is refused.
 */
#include "kernels/ll/ll.h"
#include "tests/ref/ref.h"
#include "tests/unit/kernels/ht_kit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* What is in front of the first dispatch of a routing. where: of its groups, filled in. */
static int prepare(struct rank *me, struct epf_ht_groups *where)
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

/* The first dispatch of a routing. */
static int group(struct rank *me)
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
				 .matrix = me->matrix,
				 .slots = g->slots,
				 .x = g->out,
				 .weights = g->weights,
				 .out = g->back,
				 .out_weights = g->back_weights };

	assert_int_equal(epf_ht_fold(me->ht, &f, NULL), 0);
	for (uint32_t row = 0; row < (uint32_t)me->matrix[(b->ranks - 1) * b->ranks + me->rank];
	     row++) {
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
	memset(g->back, 0xa5, sizeof(g->back));
	f.rows /= 2; /* what lies behind is not written */
	assert_int_equal(epf_ht_fold(me->ht, &f, NULL), 0);
	for (uint32_t i = f.rows * b->hidden; i < sizeof(g->back) / sizeof(*g->back); i++)
		assert_int_equal(g->back[i], 0xa5a5);
	f.rows = received_of(me);
	f.grouped = 0; /* no entry has a row */
	assert_int_equal(epf_ht_fold(me->ht, &f, NULL), 0);
	for (int32_t i = 0; i < me->matrix[(b->ranks - 1) * b->ranks + me->rank] * (int32_t)b->topk;
	     i++)
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

/* ---- a spread that is launched before the counts are known ---- */

/* By how much each is longer than is needed: windows, at all ranks; this rank's slots, and its outputs. */
static const struct guess {
	int room, rows, grouped;
} guesses[] = {
	{ 0, 0, 0 }, { 3, 5, 70 }, { -1, 0, 0 }, { 0, -1, 0 }, { 0, 0, -1 }, { -1, -1, -1 },
};

static const struct guess *guess;

/* Does what does not fit leave everything as it is? */
static void check_untouched(const struct groups *g)
{
	for (size_t i = 0; i < sizeof(g->slots); i++)
		assert_int_equal(((const uint8_t *)g->slots)[i], 0xa5);
	for (size_t i = 0; i < sizeof(g->out); i++)
		assert_int_equal(((const uint8_t *)g->out)[i], 0xa5);
}

static int group_guessed(struct rank *me)
{
	struct groups *g = &of_rank[me->rank];
	struct epf_ht_groups where;
	struct epf_ht_dispatch d;
	struct epf_ht_spread s;
	int err;

	me->guess = me->guess_room = me->spare = (uint32_t)((int)room_of(me) + guess->room);
	err = prepare(me, &where);
	d = dispatch_of(me, EPF_HT_NUMBERED);
	s = spread_of(me, &d);
	d.flags |= EPF_HT_IF_IT_FITS;
	d.room = s.room = me->guess;
	s.flags |= EPF_HT_IF_IT_FITS;
	s.rows += (uint32_t)guess->rows;
	s.grouped += (uint32_t)guess->grouped;
	if (!err)
		err = epf_ht_dispatch(me->ht, &d, NULL);
	if (!err)
		err = epf_ht_groups(me->ht, &where, NULL);
	if (!err)
		err = epf_ht_spread(me->ht, &s, NULL);
	if (guess->room < 0 || guess->rows < 0 || guess->grouped < 0) {
		check_untouched(g);
		d.flags &= ~EPF_HT_IF_IT_FITS;
		if (guess->room < 0) {
			d.room = room_of(me);
			err = err ? err : epf_ht_dispatch(me->ht, &d, NULL);
		}
		s = spread_of(me, &d);
		err = err ? err : epf_ht_spread(me->ht, &s, NULL);
	}
	me->guess = me->guess_room = me->spare = 0;
	return err ? err : epf_ht_check(me->ht);
}

static void groups_of_a_guessed_size(void **state)
{
	struct rig *g = open_rig(3, 0);
	uint64_t seed = 900;

	for (unsigned i = 0; i < sizeof(guesses) / sizeof(guesses[0]); i++) {
		struct batch *b = NULL;
		uint32_t least = 0;

		/* With rows at every rank, whose number the ranks know. */
		while (!least) {
			free(b);
			b = make_batch(3, seed++);
			b->worst = 0;
			set_batch(g, b);
			all_right(g, plan);
			least = UINT32_MAX;
			for (uint32_t r = 0; r < 3; r++)
				least = received_of(&g->rank[r]) < least ? received_of(&g->rank[r])
									 : least;
		}
		guess = &guesses[i];
		all_right(g, group_guessed);
		for (uint32_t r = 0; r < 3; r++)
			check_groups(&g->rank[r]);
		free(b);
	}
	close_rig(g);
}

/* ---- a combine beside the fold that makes its rows ---- */

enum { LATE_US = 2000 };

struct late {
	struct epf_ht *ht;
	const struct epf_ht_fold *fold;
	int err;
};

/* The combine most likely waits for it by then; if not, it has nothing to wait for. */
static void *fold_late(void *arg)
{
	struct late *l = arg;

	(void)usleep(LATE_US);
	l->err = epf_ht_fold(l->ht, l->fold, NULL);
	return NULL;
}

static int collect_beside(struct rank *me)
{
	const struct batch *b = me->batch;
	struct groups *g = &of_rank[me->rank];
	uint64_t folded[EPF_HT_FOLD_PARTS] = { 0 };
	struct epf_ht_fold f = { .size = sizeof(f),
				 .row_bytes = b->hidden * 2,
				 .topk = b->topk,
				 .rows = received_of(me),
				 .grouped = grouped_of(b, me->rank),
				 .room = room_of(me),
				 .matrix = me->matrix,
				 .slots = g->slots,
				 .x = g->out,
				 .weights = g->weights,
				 .folded = folded,
				 .out = g->back,
				 .out_weights = g->back_weights };
	struct epf_ht_combine c = { .size = sizeof(c),
				    .row_bytes = b->hidden * 2,
				    .topk = b->topk,
				    .tokens = b->tokens[me->rank],
				    .received = received_of(me),
				    .room = room_of(me),
				    .place = me->place,
				    .matrix = me->matrix,
				    .plan = me->plan,
				    .x = g->back,
				    .weights = g->back_weights,
				    .folded = folded,
				    .out = me->sums,
				    .out_weights = me->sum_weights };
	struct late l = { me->ht, &f, 0 };
	pthread_t thread;
	int err;

	memset(g->back, 0xa5, sizeof(g->back));
	memset(g->back_weights, 0xa5, sizeof(g->back_weights));
	memset(me->sums, 0xa5, sizeof(me->sums));
	if (pthread_create(&thread, NULL, fold_late, &l))
		return -EAGAIN;
	err = epf_ht_combine(me->ht, &c, NULL);
	(void)pthread_join(thread, NULL);
	return err ? err : l.err ? l.err : epf_ht_check(me->ht);
}

/* Each expert changes its rows in its own way. */
static void run_experts(struct rank *me)
{
	const struct batch *b = me->batch;
	struct groups *g = &of_rank[me->rank];
	uint32_t slot = 0;

	for (uint32_t e = 0; e < b->local; e++)
		for (; slot < (uint32_t)g->ends[e]; slot++)
			expert(g->out + slot * b->hidden, b->hidden, me->rank * b->local + e);
}

/* A token's sum is over ranks, each rank's rounded, in it over entries. */
static void check_collected(const struct rank *me)
{
	const struct batch *b = me->batch;

	for (uint32_t t = 0; t < b->tokens[me->rank]; t++) {
		float sum[HIDDEN] = { 0 };

		for (uint32_t r = 0; r < b->ranks; r++) {
			float part[HIDDEN] = { 0 };

			for (uint32_t k = 0; k < b->topk; k++) {
				int64_t e = b->idx[me->rank][t][k];
				uint16_t row[HIDDEN];

				if (e < 0 || e / b->local != r)
					continue;
				memcpy(row, b->x[me->rank][t], b->hidden * 2);
				expert(row, b->hidden, (uint32_t)e);
				for (uint32_t h = 0; h < b->hidden; h++)
					part[h] += ref_bf16_decode(row[h]);
			}
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

static void sums_are_made_while_rows_return(void **state)
{
	for (uint32_t ranks = 1; ranks <= 4; ranks++) {
		struct rig *g = open_rig(ranks, 0);

		for (uint64_t seed = 0; seed < (all_of_them() ? 100 : 8); seed++) {
			struct batch *b = make_batch(ranks, 3000 * ranks + seed);

			set_batch(g, b);
			for (uint32_t r = 0; r < ranks; r++)
				g->rank[r].ht->part_rows =
					1 + (uint32_t)seed; /* parts of any number */
			all_right(g, group);
			for (uint32_t r = 0; r < ranks; r++)
				run_experts(&g->rank[r]);
			all_right(g, collect_beside);
			for (uint32_t r = 0; r < ranks; r++)
				check_collected(&g->rank[r]);
			free(b);
		}
		close_rig(g);
	}
}

static int refuse_beside(struct rank *me)
{
	return collect_beside(me) == -EINVAL && strstr(epf_ll_error(), "folded with 2 nodes")
		       ? 0
		       : -EPROTO;
}

static void folds_beside_are_refused_between_nodes(void **state)
{
	static const struct topology two = { 2, { 0, 1 } };
	struct rig *g = open_on(&two, 0, ORDERED);
	struct batch *b = make_batch(2, 4);

	set_batch(g, b);
	all_right(g, group);
	all_right(g, refuse_beside);
	free(b);
	close_rig(g);
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
	f.weights = NULL;
	refused(epf_ht_fold(ht, &f, NULL), -EINVAL, "matrix is missing");
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
		cmocka_unit_test(groups_of_a_guessed_size),
		cmocka_unit_test(sums_are_made_while_rows_return),
		cmocka_unit_test(folds_beside_are_refused_between_nodes),
		cmocka_unit_test(entries_are_numbered),
		cmocka_unit_test(bad_numbers_and_groups_are_refused),
		cmocka_unit_test(bad_spreads_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
