/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why high-throughput calls are slow: a rank that is late, one with twice the tokens, one that receives more, and a link that stalls are each found by the
 * reports of the kernels in plain C, ranks being threads of this process. Nothing here depends on how fast the machine is: who has to be waited for goes
 * on when the other ranks have reported that they wait.
 */
#include "fabric/base/clock.h"
#include "fabric/client/handle.h"
#include "kernels/epf_ht.h"
#include "kernels/ht/ht.h"
#include "kernels/ll/ll.h"
#include "tests/unit/kernels/why_kit.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	TOKENS = 192,
	TOPK = 1,
	LOCAL = 2,
	HIDDEN = 64,
	FIRST_SIGNAL = 3 + 8 * WHY_RANKS /* a multiple of WHY_RANKS */
};

enum step { OPEN, PLAN, DISPATCH, COMBINE };

struct rank {
	struct rig *rig;
	uint32_t rank;
	struct epf_ht *ht;
	uint8_t *control, *window, *plan;
	int32_t links[WHY_RANKS * TOKENS * WHY_RANKS];
	int64_t idx[TOKENS * TOPK];
	uint8_t in_rank[TOKENS * WHY_RANKS];
	int32_t per_rank[WHY_RANKS], per_node[1], per_expert[WHY_RANKS * LOCAL];
	int32_t place[TOKENS * WHY_RANKS], matrix[WHY_RANKS * WHY_RANKS];
	int64_t host[EPF_HT_HOST_WORDS + LOCAL];
	uint16_t x[TOKENS][HIDDEN] __attribute__((aligned(16)));
	uint16_t rows[WHY_RANKS * TOKENS][HIDDEN] __attribute__((aligned(16)));
	int64_t index[WHY_RANKS * TOKENS * TOPK];
	uint16_t sums[TOKENS][HIDDEN] __attribute__((aligned(16)));
	int err;
	char why[512];
};

struct rig {
	struct ll_kit *kit;
	uint32_t nodes[WHY_RANKS]; /* of each rank */
	uint32_t tokens[WHY_RANKS];
	uint64_t window_bytes;
	enum step step;
	uint32_t
		late; /* this rank begins a step when all others wait for it, and have for held_ns */
	uint64_t begun_ns, held_ns;
	uint32_t cut; /* its link is cut until another rank waits for its rows */
	struct rank rank[WHY_RANKS];
};

static struct epf_wakeup *wakeup_of(struct rig *g, uint32_t rank)
{
	return ll_kit_ep(g->kit, rank)->wakeup;
}

/* Has a kernel of `rank` reported that it waits for `peer`, as it does after a millisecond? */
static bool waits_for(struct rig *g, uint32_t rank, uint32_t peer)
{
	const struct epf_wakeup *w = wakeup_of(g, rank);
	uint32_t what = EPF_LOAD_ACQUIRE(&w->kernel_condition);
	uint32_t index = EPF_LOAD_RELAXED(&w->kernel_index);

	return (what == EPF_WAKE_ON_STORE && index == peer) ||
	       (what == EPF_WAKE_ON_SIGNAL && index % WHY_RANKS == peer);
}

static void until_it_waits(struct rig *g, uint32_t rank, uint32_t peer)
{
	const struct timespec pause = { 0, 200000 };

	while (!waits_for(g, rank, peer))
		nanosleep(&pause, NULL);
}

static int do_open(struct rank *me)
{
	struct rig *g = me->rig;
	void *control[WHY_RANKS], *window[WHY_RANKS];
	struct epf_ht_options o = { .size = sizeof(o),
				    .control = me->control,
				    .peers = control,
				    .timeout_ns = 3600000000000,
				    .first_signal = FIRST_SIGNAL };
	int err;

	for (uint32_t r = 0; r < WHY_RANKS; r++) {
		int mate = g->nodes[r] == g->nodes[me->rank];

		control[r] = mate ? g->rank[r].control : NULL;
		window[r] = mate ? g->rank[r].window : NULL;
	}
	err = epf_ht_open(ll_kit_ll(g->kit, me->rank), &o, &me->ht);
	return err ? err : epf_ht_set_window(me->ht, me->window, g->window_bytes, window);
}

static int do_plan(struct rank *me)
{
	struct epf_ht_routing r = { .size = sizeof(r),
				    .tokens = me->rig->tokens[me->rank],
				    .topk = TOPK,
				    .experts = WHY_RANKS * LOCAL,
				    .topk_idx = me->idx,
				    .in_rank = me->in_rank,
				    .per_rank = me->per_rank,
				    .per_node = me->per_node,
				    .per_expert = me->per_expert,
				    .place = me->place,
				    .matrix = me->matrix,
				    .plan = me->plan,
				    .host = me->host };
	struct epf_ht_row row = { HIDDEN * 2, 0, TOPK };
	int err = epf_ht_layout(me->ht, &r, NULL);

	if (!err)
		err = epf_ht_notify(me->ht, &r, NULL);
	if (!err)
		err = epf_ht_wait_counts(me->ht, me->host);
	return err ? err : epf_ht_reserve(me->ht, &row, (uint32_t)me->host[3]);
}

static int do_dispatch(struct rank *me)
{
	struct epf_ht_dispatch d = { .size = sizeof(d),
				     .row = { HIDDEN * 2, 0, TOPK },
				     .tokens = me->rig->tokens[me->rank],
				     .local = LOCAL,
				     .received = (uint32_t)me->host[1],
				     .room = (uint32_t)me->host[2],
				     .across = (uint32_t)me->host[3],
				     .forwarded = (uint32_t)me->host[4],
				     .place = me->place,
				     .matrix = me->matrix,
				     .plan = me->plan,
				     .links = me->links,
				     .x = me->x,
				     .topk_idx = me->idx,
				     .out = me->rows,
				     .out_index = me->index };
	int err = epf_ht_dispatch(me->ht, &d, NULL);

	return err ? err : epf_ht_check(me->ht);
}

static int do_combine(struct rank *me)
{
	struct epf_ht_combine c = { .size = sizeof(c),
				    .row_bytes = HIDDEN * 2,
				    .tokens = me->rig->tokens[me->rank],
				    .received = (uint32_t)me->host[1],
				    .room = (uint32_t)me->host[2],
				    .across = (uint32_t)me->host[3],
				    .forwarded = (uint32_t)me->host[4],
				    .place = me->place,
				    .matrix = me->matrix,
				    .plan = me->plan,
				    .links = me->links,
				    .x = me->rows,
				    .out = me->sums };
	int err = epf_ht_combine(me->ht, &c, NULL);

	return err ? err : epf_ht_check(me->ht);
}

/* The others wait: lets more time pass than since the calls began. */
static void hold(struct rig *g)
{
	uint64_t start = epf_now_ns();

	g->held_ns = 2 * (start - g->begun_ns);
	while (epf_now_ns() - start < g->held_ns)
		usleep(1000);
}

static void *run_rank(void *arg)
{
	static int (*const steps[])(struct rank *) = { do_open, do_plan, do_dispatch, do_combine };
	struct rank *me = arg;
	struct rig *g = me->rig;

	for (uint32_t r = 0; r < WHY_RANKS && g->late == me->rank; r++)
		if (r != me->rank)
			until_it_waits(g, r, g->late);
	if (g->late == me->rank)
		hold(g);
	me->err = steps[g->step](me);
	if (me->err)
		snprintf(me->why, sizeof(me->why), "%s", epf_ll_error());
	return NULL;
}

static void all_ranks(struct rig *g, enum step step)
{
	pthread_t threads[WHY_RANKS];

	g->step = step;
	if (g->cut != WHY_NOBODY)
		why_set_link(ll_kit_ep(g->kit, g->cut), false);
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &g->rank[r]), 0);
	if (g->cut != WHY_NOBODY) {
		until_it_waits(g, (g->cut + 1) % WHY_RANKS, g->cut);
		hold(g);
		why_set_link(ll_kit_ep(g->kit, g->cut), true);
	}
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		pthread_join(threads[r], NULL);
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		if (g->rank[r].err)
			fail_msg("rank %u: %d, %s", r, g->rank[r].err, g->rank[r].why);
}

/* several: each rank is a node. */
static struct rig *open_rig(bool several)
{
	struct ll_kit_options o = { .ranks = WHY_RANKS,
				    .direct = several ? LL_KIT_NONE : LL_KIT_ALL,
				    .bytes = 1u << 20,
				    .timeout_ns = 3600000000000 };
	struct epf_ht_row row = { .bytes = HIDDEN * 2, .topk = TOPK };
	struct rig *g = aligned_alloc(16, (sizeof(*g) + 15) / 16 * 16);

	assert_non_null(g);
	memset(g, 0, sizeof(*g));
	g->late = g->cut = WHY_NOBODY;
	g->kit = ll_kit_open(&o);
	g->window_bytes = (epf_ht_window_bytes(&row, WHY_RANKS * TOKENS) + 127) / 128 * 128;
	for (uint32_t r = 0; r < WHY_RANKS; r++) {
		size_t control = (epf_ht_control_bytes(WHY_RANKS) + 127) / 128 * 128;

		g->rank[r].rig = g;
		g->rank[r].rank = r;
		g->nodes[r] = several ? r : 0;
		g->tokens[r] = TOKENS / 2;
		g->rank[r].control = aligned_alloc(128, control);
		g->rank[r].window = aligned_alloc(128, g->window_bytes);
		memset(g->rank[r].control, 0, control);
		for (uint32_t t = 0; t < TOKENS; t++)
			g->rank[r].idx[t] = t % (WHY_RANKS * LOCAL);
	}
	all_ranks(g, OPEN);
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		g->rank[r].plan = aligned_alloc(
			16, (epf_ht_plan_bytes(g->rank[r].ht, TOKENS) + 15) / 16 * 16);
	return g;
}

static void close_rig(struct rig *g)
{
	for (uint32_t r = 0; r < WHY_RANKS; r++) {
		epf_ht_close(g->rank[r].ht);
		free(g->rank[r].control);
		free(g->rank[r].window);
		free(g->rank[r].plan);
	}
	ll_kit_close(g->kit);
	free(g);
}

static void batch(struct rig *g)
{
	for (enum step s = PLAN; s <= COMBINE; s++)
		all_ranks(g, s);
}

/*
 * A rank that begins late is named, by each of the others alone and by all, with the call in which it was. It is late by more than everything that happened before, so
 * whoever else was late by accident counts less.
 */
static void late_rank(void **state)
{
	static const unsigned call[] = { [PLAN] = EPF_WHY_HT_NOTIFY,
					 [DISPATCH] = EPF_WHY_HT_DISPATCH,
					 [COMBINE] = EPF_WHY_HT_COMBINE };

	(void)state;
	for (enum step last = PLAN; last <= COMBINE; last++) {
		struct rig *g = open_rig(false);
		struct epf_why_report *reports[WHY_RANKS];
		struct epf_why_cause c;

		g->begun_ns = epf_now_ns();
		for (enum step s = PLAN; s <= last; s++) {
			g->late = s == last ? 1 : WHY_NOBODY;
			all_ranks(g, s);
		}
		why_read_all(g->kit, reports);
		for (uint32_t r = 0; r < WHY_RANKS; r++) {
			const struct epf_why_wait *w =
				&why_peer(reports[r], call[last], 1)->wait[EPF_WHY_LATE];

			if (r == 1)
				continue;
			assert_true(w->ns >= g->held_ns);
			assert_int_equal(w->times, 1);
			assert_true(w->most_ns == w->ns);
			assert_true(reports[r]->call[call[last]].ns[EPF_WHY_WAIT] >= w->ns);
			assert_int_equal(reports[r]->call[call[last]].calls, 1);
			c = why_first(&reports[r], 1, EPF_WHY_IS_LATE, WHY_NOBODY);
			assert_int_equal(c.rank, 1);
			assert_int_equal(c.call, call[last]);
			assert_true(c.ns >= w->ns && c.most_ns >= w->ns);
		}
		c = why_first(reports, WHY_RANKS, EPF_WHY_IS_LATE, WHY_NOBODY);
		assert_int_equal(c.rank, 1);
		assert_true(c.times >= 2);
		why_free_all(reports);
		close_rig(g);
	}
}

/* A rank with twice the tokens is named with how many rows it has, by one rank alone. */
static void twice_the_tokens(void **state)
{
	struct rig *g = open_rig(false);
	struct epf_why_report *reports[WHY_RANKS];
	struct epf_why_cause c[2 * WHY_RANKS];
	int found = 0;

	(void)state;
	g->tokens[2] = 2 * g->tokens[0];
	batch(g);
	batch(g);
	why_read_all(g->kit, reports);
	for (uint32_t i = 0; i < WHY_RANKS; i++) {
		const struct epf_why_report *const one[] = { reports[i] };
		uint32_t n = epf_why_explain(one, 1, c, 2 * WHY_RANKS);

		assert_int_equal(why_peer(reports[i], EPF_WHY_HT_DISPATCH, 2)->rows_from,
				 2 * why_peer(reports[i], EPF_WHY_HT_DISPATCH, 0)->rows_from);
		for (uint32_t k = 0; k < n; k++) {
			found += c[k].kind == EPF_WHY_IS_LOAD;
			if (c[k].kind == EPF_WHY_IS_LOAD) {
				assert_int_equal(c[k].rank, 2);
				assert_true(c[k].sent > 1.99 && c[k].sent < 2.01);
				assert_true(c[k].received > 0.99 && c[k].received < 1.01);
			}
		}
	}
	assert_int_equal(found, WHY_RANKS);
	why_free_all(reports);
	close_rig(g);
}

/* All tokens go to the experts of one rank: it receives more. */
static void one_rank_receives_more(void **state)
{
	struct rig *g = open_rig(false);
	struct epf_why_report *reports[WHY_RANKS];
	struct epf_why_cause c;

	(void)state;
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		for (uint32_t t = 0; t < TOKENS; t++)
			g->rank[r].idx[t] = t % 4 == 0   ? 0
					    : t % 4 == 1 ? 2 * LOCAL
							 : LOCAL + t % 4 - 2;
	batch(g);
	why_read_all(g->kit, reports);
	c = why_first(&reports[0], 1, EPF_WHY_IS_LOAD, WHY_NOBODY);
	assert_int_equal(c.rank, 1);
	assert_true(c.received > 1.99 && c.received < 2.01);
	for (uint32_t i = 0; i < WHY_RANKS; i++)
		assert_int_equal(why_peer(reports[i], EPF_WHY_HT_DISPATCH, 1)->rows_to,
				 2 * why_peer(reports[i], EPF_WHY_HT_DISPATCH, 0)->rows_to);
	why_free_all(reports);
	close_rig(g);
}

/* Rows of a rank that has begun come over a link that stalls: the link is named, not the rank. */
static void slow_link(void **state)
{
	struct rig *g = open_rig(true);
	struct epf_why_report *reports[WHY_RANKS];
	const struct epf_why_peer *p;
	struct epf_why_cause c;

	(void)state;
	g->begun_ns = epf_now_ns();
	all_ranks(g, PLAN);
	g->cut = 2;
	all_ranks(g, DISPATCH);
	g->cut = WHY_NOBODY;
	all_ranks(g, COMBINE);
	why_read_all(g->kit, reports);
	p = why_peer(reports[0], EPF_WHY_HT_DISPATCH, 2);
	assert_true(p->wait[EPF_WHY_SLOW].ns >= g->held_ns);
	assert_int_equal(p->wait[EPF_WHY_EITHER].ns, 0);
	assert_true(reports[0]->call[EPF_WHY_HT_DISPATCH].ns[EPF_WHY_MOVE] >= g->held_ns);
	c = why_first(&reports[0], 1, EPF_WHY_IS_LINK, 2);
	assert_true(c.ns >= g->held_ns);
	why_free_all(reports);
	close_rig(g);
}

/* Calls that rank 0 says it made of a kind. */
static uint64_t calls_of(struct rig *g, unsigned call)
{
	struct epf_why_report *r = why_report(ll_kit_ll(g->kit, 0), WHY_RANKS);
	uint64_t n = r->call[call].calls;

	free(r);
	return n;
}

/*
 * As on a GPU, where counting takes time: a few first calls are counted one by one, then a sample stands for the others, calls and rows alike. A rank that is
 * late is counted once in each call, of the sample or not.
 */
static void a_sample_stands_for_the_rest(void **state)
{
	enum { FIRST = 64, MORE = 192, EVERY = 4, NEAR = 12 };

	struct rig *g = open_rig(false);
	struct epf_why_report *before, *after;
	const struct epf_why_peer *was, *is;
	uint64_t calls = 0;
	unsigned late[2] = { 0, 0 }; /* calls: not of the sample, of it */

	(void)state;
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		g->rank[r].ht->tally_every = EVERY;
	all_ranks(g, PLAN);
	for (int i = 0; i < FIRST; i++)
		all_ranks(g, DISPATCH);
	assert_int_equal(calls_of(g, EPF_WHY_HT_DISPATCH), FIRST);
	for (int i = 0; i < MORE; i++)
		all_ranks(g, DISPATCH);
	before = why_report(ll_kit_ll(g->kit, 0), WHY_RANKS);
	calls = before->call[EPF_WHY_HT_DISPATCH].calls;
	assert_true(calls >= FIRST + MORE - NEAR && calls <= FIRST + MORE + NEAR);
	assert_int_equal((calls - FIRST) % EVERY, 0);
	was = why_peer(before, EPF_WHY_HT_DISPATCH, 1);
	assert_int_equal(was->rows_to, calls * (uint64_t)g->rank[0].matrix[2 * WHY_RANKS + 1]);
	assert_true(was->rows_from > 0 && was->rows_from % calls == 0);
	free(before);
	while (!late[0] || !late[1]) {
		before = why_report(ll_kit_ll(g->kit, 0), WHY_RANKS);
		g->begun_ns = epf_now_ns();
		g->late = 1;
		all_ranks(g, DISPATCH);
		after = why_report(ll_kit_ll(g->kit, 0), WHY_RANKS);
		was = why_peer(before, EPF_WHY_HT_DISPATCH, 1);
		is = why_peer(after, EPF_WHY_HT_DISPATCH, 1);
		assert_int_equal(is->wait[EPF_WHY_LATE].times, was->wait[EPF_WHY_LATE].times + 1);
		assert_true(is->wait[EPF_WHY_LATE].ns >= was->wait[EPF_WHY_LATE].ns + g->held_ns);
		calls = after->call[EPF_WHY_HT_DISPATCH].calls -
			before->call[EPF_WHY_HT_DISPATCH].calls;
		assert_true(calls == 0 || calls == EVERY);
		late[calls == EVERY]++;
		free(before);
		free(after);
	}
	close_rig(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_rank),        cmocka_unit_test(a_sample_stands_for_the_rest),
		cmocka_unit_test(twice_the_tokens), cmocka_unit_test(one_rank_receives_more),
		cmocka_unit_test(slow_link),
	};

	why_wait_for_links();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
