/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput in plain C: rows grouped by expert. Numbers of entries, where groups lie, dispatches whose rows are copied to their groups, along their routing
 * too, or of guessed sizes, within a node and between nodes, and what is refused.
 */
#include "kernels/ll/ll.h"
#include "tests/unit/kernels/ht_groups_kit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void poison(struct groups *g)
{
	memset(g->out, 0xa5, sizeof(g->out));
	memset(g->scales, 0xa5, sizeof(g->scales));
	memset(g->weights, 0xa5, sizeof(g->weights));
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
	for (uint32_t r = 0; r < g->ranks; r++)
		check_groups(&g->rank[r]);
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
		cmocka_unit_test(entries_are_numbered),
		cmocka_unit_test(bad_numbers_and_groups_are_refused),
		cmocka_unit_test(bad_spreads_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
