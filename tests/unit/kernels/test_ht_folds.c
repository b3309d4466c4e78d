/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput in plain C: sums of rows grouped by expert on the way back, alone and beside the combine that returns them. */
#include "tests/ref/ref.h"
#include "tests/unit/kernels/ht_groups_kit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
	uint32_t blocks = me->ht->blocks;

	me->ht->blocks = 3; /* which share the rows out; a CPU has one */
	assert_int_equal(epf_ht_fold(me->ht, &f, NULL), 0);
	me->ht->blocks = blocks;
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

static void run_folds(struct rig *g, uint64_t seed)
{
	struct batch *b = make_batch(g->ranks, seed);

	set_batch(g, b);
	all_right(g, group);
	for (uint32_t r = 0; r < g->ranks; r++)
		check_fold(&g->rank[r]);
	free(b);
}

static void entries_are_added(void **state)
{
	for (uint32_t ranks = 1; ranks <= 4; ranks++) {
		struct rig *g = open_rig(ranks, 0);

		for (uint64_t seed = 0; seed < (all_of_them() ? 200 : 12); seed++)
			run_folds(g, 1000 * ranks + seed);
		close_rig(g);
	}
}

static void entries_are_added_between_nodes(void **state)
{
	for (uint32_t i = 0; i < SEVERAL; i++) {
		struct rig *g = open_on(&several[i], 0, ORDERED);

		run_folds(g, 2000 * i);
		close_rig(g);
	}
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
		check_sum_of_weights(me, t);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_are_added),
		cmocka_unit_test(entries_are_added_between_nodes),
		cmocka_unit_test(sums_are_made_while_rows_return),
		cmocka_unit_test(folds_beside_are_refused_between_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
