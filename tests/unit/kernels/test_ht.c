/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput in plain C: dispatch and combine of random shapes, on one node and on several, round after round; late and dead ranks.
 */
#include "tests/unit/kernels/ht_kit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void random_batches(void **state)
{
	for (uint32_t ranks = 1; ranks <= 4; ranks++) {
		struct rig *g = open_rig(ranks, 0);

		for (uint64_t i = 0; i < 40; i++)
			run_batch(g, 1000 * ranks + i);
		close_rig(g);
	}
}

static uint32_t fewest(const struct rig *g)
{
	int64_t n = g->rank[0].host[1];

	for (uint32_t r = 1; r < g->ranks; r++)
		n = g->rank[r].host[1] < n ? g->rank[r].host[1] : n;
	return (uint32_t)n;
}

/* A batch of which each rank receives at least 8 rows, so that an eighth of them is one. Its counts are exchanged. */
static struct batch *batch_for_all(struct rig *g, uint64_t *seed)
{
	for (;;) {
		struct batch *b = make_batch(g->ranks, (*seed)++);

		b->worst = 0;
		set_batch(g, b);
		all_right(g, plan);
		if (fewest(g) >= 8)
			return b;
		free(b);
	}
}

enum { SPARE = 20, EIGHTH = 1000, NONE = 2000 };

/* All ranks guess right; one has outputs that are so much longer than what it receives. Rooms are so much larger than is needed, the other ranks' and its. */
static const struct guess {
	int longer;
	uint32_t spare;
	int others_room, room;
	int64_t flags; /* of the notify */
} guesses[] = {
	{ 0, 0, 0, 0, EPF_HT_FITS },
	{ -1, 0, 0, 0, 0 },
	{ EIGHTH, 0, 0, 0, EPF_HT_FITS },
	{ EIGHTH + 1, 0, 0, 0, 0 },
	{ SPARE, SPARE, 0, 0, EPF_HT_FITS },
	{ SPARE, SPARE - 1, 0, 0, 0 },
	{ NONE, SPARE, 0, 0, 0 },
	{ 0, 0, -1, -1, 0 },
	{ 0, 0, 2, 2, EPF_HT_FITS },
	{ 0, 0, 1, 2, 0 },
	{ 0, 0, 2, 1, 0 },
};

static void guess_sizes(struct rig *g, const struct guess *c, uint32_t odd)
{
	uint32_t most = (uint32_t)g->rank[0].host[2];

	for (uint32_t r = 0; r < 3; r++) {
		struct rank *me = &g->rank[r];
		int rows = (int)me->host[1], is_odd = r == odd;
		int more = !is_odd || c->longer == NONE ? 0
			   : c->longer >= EIGHTH        ? rows / 8 + c->longer - EIGHTH
							: c->longer;

		me->guess = is_odd && c->longer == NONE ? 0 : (uint32_t)(rows + more);
		me->spare = c->spare;
		me->guess_room = most + (uint32_t)(is_odd ? c->room : c->others_room);
	}
}

/* The exchange of counts and the dispatch, which may be one. A rank without outputs launches none. */
static int guess_and_move(struct rank *me)
{
	int err = plan(me);

	return err || !me->guess ? err : move(me);
}

enum exchange { BEFORE, WITH, SOME_WITH };

/*
 * A dispatch with outputs of a guessed size moves rows if they are long enough at every rank and nowhere too long, and all said the same room, which is
 * enough; else nothing, at any rank. It may exchange the counts itself; if only some do, nothing moves.
 */
static void guessed_outputs(enum exchange exchange)
{
	struct rig *g = open_rig(3, 0);
	uint64_t seed = 500;

	for (unsigned i = 0; i < 3 * sizeof(guesses) / sizeof(guesses[0]); i++) {
		const struct guess *c = &guesses[i / 3];
		int64_t flags = exchange == SOME_WITH ? 0 : c->flags;
		struct batch *b = batch_for_all(g, &seed);
		int64_t entries[3][LOCAL];

		for (uint32_t r = 0; r < 3; r++)
			memcpy(entries[r], g->rank[r].host + EPF_HT_HOST_WORDS,
			       b->local * sizeof(entries[r][0]));
		guess_sizes(g, c, i % 3);
		for (uint32_t r = 0; r < 3; r++)
			g->rank[r].with_dispatch =
				exchange == WITH || (exchange == SOME_WITH && r != i % 3);
		g->rank[i % 3].with_dispatch &= c->longer != NONE;
		all_right(g, guess_and_move);
		for (uint32_t r = 0; r < 3; r++) {
			struct rank *me = &g->rank[r];

			assert_int_equal(me->host[5], flags);
			assert_memory_equal(me->host + EPF_HT_HOST_WORDS, entries[r],
					    b->local * sizeof(entries[r][0]));
			for (size_t k = 0; !flags && me->guess && k < sizeof(me->rows); k++)
				assert_int_equal(((uint8_t *)me->rows)[k], 0xa5);
			me->guess = 0;
			me->with_dispatch = 0;
		}
		if (!flags)
			all_right(g, move);
		all_right(g, collect);
		for (uint32_t r = 0; r < 3; r++) {
			check_rows(&g->rank[r]);
			check_sums(&g->rank[r]);
		}
		free(b);
	}
	close_rig(g);
}

static void outputs_of_a_guessed_size(void **state)
{
	(void)state;
	guessed_outputs(BEFORE);
}

static void guessed_dispatches_exchange_counts(void **state)
{
	(void)state;
	guessed_outputs(WITH);
}

static void ranks_that_do_not_agree_who_exchanges_counts(void **state)
{
	(void)state;
	guessed_outputs(SOME_WITH);
}

/* More ranks than a dispatch exchanges counts for: the notify does it all the same. */
static void counts_of_many_ranks_travel_before(void **state)
{
	struct rig *g = open_rig(6, 0);
	uint64_t seed = 900;
	struct batch *b = batch_for_all(g, &seed);

	(void)state;
	for (uint32_t r = 0; r < 6; r++) {
		g->rank[r].guess = (uint32_t)g->rank[r].host[1];
		g->rank[r].guess_room = (uint32_t)g->rank[r].host[2];
		g->rank[r].with_dispatch = 1;
	}
	all_right(g, plan);
	for (uint32_t r = 0; r < 6; r++)
		assert_int_equal(epf_ht_wait_counts(g->rank[r].ht, g->rank[r].host), 0);
	all_right(g, move);
	for (uint32_t r = 0; r < 6; r++)
		check_rows(&g->rank[r]);
	free(b);
	close_rig(g);
}

/* A dispatch that is not the one which counts were left to; notifies that can leave them to none. */
static void counts_are_left_to_one_dispatch(void **state)
{
	struct rig *g = open_rig(1, 0), *two = open_on(&several[0], 0, ORDERED);
	uint64_t seed = 950;
	struct batch *b = batch_for_all(g, &seed);
	struct rank *me = &g->rank[0];
	struct epf_ht_dispatch refused = { .size = 1 };

	(void)state;
	me->guess = me->guess_room = (uint32_t)me->host[1];
	me->with_dispatch = 1;
	assert_int_equal(plan(me), 0);
	me->guess++;
	assert_int_equal(move(me), -EINVAL);
	assert_non_null(
		strstr(epf_ll_error(), "leaves the exchange of counts to the next dispatch"));
	me->guess--;
	assert_int_equal(plan(me), 0);
	assert_int_equal(epf_ht_dispatch(me->ht, &refused, NULL), -EINVAL);
	assert_int_equal(me->ht->due.blocks, 0);
	assert_int_equal(plan(me), 0);
	assert_int_equal(move(me), 0);
	check_rows(me);
	me->guess = 0;
	assert_int_equal(plan(me), -EINVAL);
	assert_non_null(strstr(epf_ll_error(), "outputs of 0 rows"));
	two->rank[0].batch = make_batch(2, 7);
	two->rank[0].guess = 1;
	two->rank[0].with_dispatch = 1;
	assert_int_equal(plan(&two->rank[0]), -EINVAL);
	assert_non_null(strstr(epf_ll_error(), "with 2 nodes"));
	free((void *)(uintptr_t)two->rank[0].batch);
	free(b);
	close_rig(g);
	close_rig(two);
}

/* A layout whose parts contradict each other is reported by its rank; the others get no more rows than it announced. */
static void layouts_that_contradict_themselves(void **state)
{
	(void)state;
	for (int more = -1; more <= 1; more += 2) {
		struct rig *g = open_rig(3, 0);
		uint64_t seed = 970;
		int32_t sent = 0;
		struct batch *b = batch_for_all(g, &seed);

		while (b->without_layout) {
			free(b);
			b = batch_for_all(g, &seed);
		}
		g->rank[1].laid_more = more;
		all_ranks(g, plan);
		assert_int_equal(g->rank[0].err, 0);
		assert_int_equal(g->rank[2].err, 0);
		all_ranks(g, move);
		assert_int_equal(g->rank[0].err, 0);
		assert_int_equal(g->rank[2].err, 0);
		assert_int_equal(g->rank[1].err, -EINVAL);
		assert_non_null(strstr(g->rank[1].why, "in_rank (is_token_in_rank) do not agree"));
		for (uint32_t t = 0; t < b->tokens[1]; t++)
			sent += g->rank[1].place[t * 3] >= 0;
		assert_true(sent <= g->rank[1].per_rank[0]);
		free(b);
		close_rig(g);
	}
}

/* Outputs of more rows than can be said are too long, whatever the bits say that are left of their number. */
static void outputs_too_long_to_say(void **state)
{
	struct rig *g = open_rig(3, 0);
	uint64_t seed = 700;
	struct batch *b = batch_for_all(g, &seed);

	(void)state;
	for (uint32_t r = 0; r < 3; r++) {
		g->rank[r].guess = (uint32_t)g->rank[r].host[1] | (r == 1 ? 1u << 30 : 0);
		g->rank[r].guess_room = (uint32_t)g->rank[r].host[2];
	}
	all_right(g, plan);
	for (uint32_t r = 0; r < 3; r++)
		assert_int_equal(g->rank[r].host[5], 0);
	free(b);
	close_rig(g);
}

static void batches_between_nodes(void **state)
{
	for (unsigned i = 0; i < SEVERAL; i++) {
		struct rig *g = open_on(&several[i], 0, ORDERED);

		uint32_t nodes = 0;

		for (uint32_t r = 0; r < several[i].ranks; r++)
			nodes = several[i].node[r] >= nodes ? several[i].node[r] + 1 : nodes;
		assert_int_equal(epf_ht_nodes(g->rank[0].ht), nodes);
		for (uint64_t k = 0; k < (all_of_them() ? 15 : 5); k++) {
			run_batch(g, 7000 + 100 * i + k);
			if (k % 4 == 0)
				all_right(g, set_window);
		}
		/* Rows that cross need memory that all ranks agree on first. */
		if (nodes > 1) {
			struct epf_ht_dispatch d = { .size = sizeof(d),
						     .row = { 16, 0, 0 },
						     .flags = EPF_HT_IF_IT_FITS };

			assert_int_equal(epf_ht_dispatch(g->rank[0].ht, &d, NULL), -EINVAL);
			assert_non_null(strstr(epf_ll_error(), "it is for one"));
		}
		close_rig(g);
	}
}

static void batches_over_a_nic_that_reorders_and_loses(void **state)
{
	for (unsigned i = 0; i < SEVERAL; i++) {
		struct rig *g = open_on(&several[i], 0, i % 2 ? REORDERS : LATE);

		for (uint64_t k = 0; k < (all_of_them() ? 5 : 2); k++)
			run_batch(g, 8000 + 100 * i + k);
		close_rig(g);
	}
}

enum { ROUNDS = 25, ROUNDS_LONG = 100 };

static int rounds(struct rank *me)
{
	int err = 0, n = all_of_them() ? ROUNDS_LONG : ROUNDS;

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

/* Where a rank tells another that it waits no longer. */
static const uint64_t *ht_gone(const struct rig *g, uint32_t from, uint32_t to)
{
	return (const void *)(g->rank[to].control +
			      (uint64_t)(HT_GONE * g->ranks + from) * HT_LINE);
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
		      { &node, guess_and_move, "did not send its counts" },
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
		for (uint32_t r = 0; r < 3 && cases[i].step == guess_and_move; r++) {
			g->rank[r].guess = (uint32_t)g->rank[r].host[1];
			g->rank[r].guess_room = (uint32_t)g->rank[r].host[2];
			g->rank[r].with_dispatch = 1;
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
		/* Nor may the rank that was not late write any more: it may have seen all counts. */
		if (cases[i].step == guess_and_move)
			assert_int_not_equal(*ht_gone(g, 0, 2), 0);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_batches),
		cmocka_unit_test(outputs_of_a_guessed_size),
		cmocka_unit_test(guessed_dispatches_exchange_counts),
		cmocka_unit_test(ranks_that_do_not_agree_who_exchanges_counts),
		cmocka_unit_test(counts_of_many_ranks_travel_before),
		cmocka_unit_test(counts_are_left_to_one_dispatch),
		cmocka_unit_test(layouts_that_contradict_themselves),
		cmocka_unit_test(outputs_too_long_to_say),
		cmocka_unit_test(batches_between_nodes),
		cmocka_unit_test(batches_over_a_nic_that_reorders_and_loses),
		cmocka_unit_test(rounds_follow_at_once),
		cmocka_unit_test(rounds_between_nodes_follow_at_once),
		cmocka_unit_test(late_ranks_are_named),
		cmocka_unit_test(memory_that_is_not_read_is_not_written),
		cmocka_unit_test(a_dead_rank_of_another_node_is_named),
	};

	cmocka_set_test_filter(getenv("HT_TEST"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
