/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput in plain C: where rows go (mapped outputs, too little room), and what is refused.
 */
#include "kernels/ll/ll.h"
#include "tests/unit/kernels/ht_kit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum { SEGMENT = sizeof(((struct rank *)0)->rows) + sizeof(struct beside) + 4096 };

/* Gives each rank memory of the pool for its outputs: all of them, or rows alone. */
static void use_segments(struct rig *g, int all)
{
	for (uint32_t r = 0; r < g->ranks; r++) {
		struct rank *me = &g->rank[r];

		me->segment = epf_ht_pool_alloc(SEGMENT, 0, NULL);
		assert_non_null(me->segment);
		me->out = (void *)(me->segment + 16 * (r + 1));
		if (all)
			me->beside = (void *)(me->segment + sizeof(me->rows) + 16 * (r + RANKS));
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

/* Mapping is for all CPUs of a node together: it waits for a call for which all of them wait. */
static void one_never_waits(struct rig *g)
{
	for (uint32_t never = 0; never < g->ranks; never++) {
		g->rank[never].never_waits = 1;
		all_right(g, plan);
		g->rank[never].never_waits = 0;
		for (uint32_t r = 0; r < g->ranks; r++)
			assert_int_equal(g->rank[r].host[5], 0);
	}
}

/*
 * Rows of others arrive in the window until a rank's outputs are mapped, and in the outputs from then on; so does what travels with them, but for scales by
 * column.
 */
static void rows_go_straight_to_mapped_outputs(void **state)
{
	static const struct topology on[] = { { 3, { 0, 0, 0 } }, { 5, { 0, 1, 0, 1, 1 } } };

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(on) / sizeof(on[0]); i++) {
		struct rig *g = open_on(&on[i / 2], 0, ORDERED);
		int all = i % 2;
		struct ht_segment found;

		use_segments(g, all);
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
				int nothing = all && !(b->scales && b->by_column);
				uint64_t rows = nothing ? g->window_bytes
							: (uint64_t)room_of(me) * b->hidden * 2;

				check_rows(me);
				assert_int_equal(me->host[5], 0);
				assert_int_equal(only(me->window, rows, 0xa5), mapped);
			}
			if (!mapped) {
				one_never_waits(g);
				all_right(g, plan);
				for (uint32_t r = 0; r < g->ranks; r++)
					assert_int_equal(g->rank[r].host[5], EPF_HT_GROWN);
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

/* Counts say of which call they are in 32 bits. */
static void calls_wrap_around(void **state)
{
	struct rig *g = open_rig(3, 0);
	uint64_t flags = (uint64_t)HT_FLAGS * 3 * HT_LINE;

	(void)state;
	for (uint32_t r = 0; r < 3; r++) {
		uint64_t *word = (void *)(g->rank[r].control + flags);

		((struct ht_state *)g->rank[r].ht->words)->counted = UINT32_MAX - 3u;
		for (uint64_t i = 0; i < (epf_ht_control_bytes(3) - flags) / 8; i++)
			word[i] = (uint64_t)(UINT32_MAX - 5u) << 32;
	}
	for (uint64_t seed = 1; seed < 6; seed++)
		run_batch(g, seed);
	for (uint32_t r = 0; r < 3; r++)
		assert_true(((struct ht_state *)g->rank[r].ht->words)->counted > UINT32_MAX);
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
	use_segments(g, 1);
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
		memset(g->rank[0].segment, 0x5a, SEGMENT);
		all_ranks(g, call);
		assert_int_equal(g->rank[1].err, -ETIMEDOUT);
		assert_non_null(strstr(g->rank[1].why, "rank 0"));
		assert_true(only(g->rank[0].window, g->window_bytes, 0x5a));
		assert_true(only(g->rank[0].segment, SEGMENT, 0x5a));
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
	r.tokens = 1;
	refused(epf_ht_notify(ht, &r, NULL), -EINVAL, "in_rank is");
	r.in_rank = (void *)64;
	refused(epf_ht_notify(ht, &r, NULL), -EINVAL, "per_expert is");
	r.flags = EPF_HT_NO_LAYOUT;
	refused(epf_ht_notify(ht, &r, NULL), -EINVAL, "topk_idx is");
	r.topk_idx = (void *)64;
	refused(epf_ht_notify(ht, &r, NULL), -EINVAL, "place is");
	r.topk_idx = NULL;
	r.in_rank = NULL;
	r.flags = 0;
	r.tokens = 0;
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
	d.tokens = 0;
	d.received = 1;
	d.out = (void *)64;
	d.flags = EPF_HT_NUMBERED;
	d.out_numbers = (void *)2;
	refused(epf_ht_dispatch(ht, &d, NULL), -EINVAL, "out_numbers is 0x2");
	d.out_numbers = (void *)64;
	d.out_scales = (void *)64;
	d.row.scale_words = 1u << 16;
	d.received = 1u << 15;
	d.room = 0;
	refused(epf_ht_dispatch(ht, &d, NULL), -EINVAL, "32768 rows with 65537 scales each");
	for (int i = 0; i < 2; i++) {
		d.out_stride[i] = (uint64_t)UINT32_MAX + 1u;
		refused(epf_ht_dispatch(ht, &d, NULL), -EINVAL, "at most 2^32 - 1");
		d.out_stride[i] = UINT32_MAX;
		refused(epf_ht_dispatch(ht, &d, NULL), -EINVAL, "scales each");
	}
	d.received = d.row.scale_words = 0;
	d.flags = 0;
	c.row_bytes = 8;
	refused(epf_ht_combine(ht, &c, NULL), -EINVAL, "a row has 8 bytes");
	c.row_bytes = 32;
	c.room = 1 << 20;
	refused(epf_ht_combine(ht, &c, NULL), -E2BIG, "need a window of");
	/* Two pieces a row on a CPU. */
	c.room = 0;
	c.row_bytes = 240;
	c.received = INT32_MAX / g->ranks / 2;
	refused(epf_ht_combine(ht, &c, NULL), -EINVAL, "x is ");
	c.received++;
	refused(epf_ht_combine(ht, &c, NULL), -EINVAL, "give fewer rows");
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
		cmocka_unit_test(rows_go_straight_to_mapped_outputs),
		cmocka_unit_test(segments_are_asked_for_first),
		cmocka_unit_test(calls_wrap_around),
		cmocka_unit_test(a_rank_that_comes_too_late_writes_nothing),
		cmocka_unit_test(too_few_rows_are_reported),
		cmocka_unit_test(too_few_rows_between_nodes_are_reported),
		cmocka_unit_test(an_expert_that_does_not_exist_is_none),
		cmocka_unit_test(bad_arguments_are_refused),
		cmocka_unit_test(nodes_must_be_groups_of_ranks_that_reach_each_other),
		cmocka_unit_test(ranks_that_share_a_gpu_leave_room),
	};

	cmocka_set_test_filter(getenv("HT_TEST"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
