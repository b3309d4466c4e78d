/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why calls are slow: a rank that is late, one with twice the tokens, and a link that stalls are each found by the reports of the kernels in plain C, ranks
 * being threads of this process. Nothing here depends on how fast the machine is: who has to be waited for goes on when the other ranks have
 * reported that they wait. And the conclusions from made-up reports.
 */
#include "fabric/base/clock.h"
#include "fabric/client/handle.h"
#include "fabric/engine/engine.h"
#include "kernels/epf_ht.h"
#include "kernels/epf_why.h"
#include "kernels/ll/ll.h"
#include "queues/epf_stats_read.h"
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
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	RANKS = 3,
	TOKENS = 192,
	TOPK = 1,
	LOCAL = 2,
	HIDDEN = 64,
	NOBODY = RANKS,
	FIRST_SIGNAL = 3 + 8 * RANKS /* a multiple of RANKS */
};

enum step { OPEN, PLAN, DISPATCH, COMBINE };

struct rank {
	struct rig *rig;
	uint32_t rank;
	struct epf_ht *ht;
	uint8_t *control, *window, *plan;
	int32_t links[RANKS * TOKENS * RANKS];
	int64_t idx[TOKENS * TOPK];
	uint8_t in_rank[TOKENS * RANKS];
	int32_t per_rank[RANKS], per_node[1], per_expert[RANKS * LOCAL];
	int32_t place[TOKENS * RANKS], matrix[RANKS * RANKS];
	int64_t host[EPF_HT_HOST_WORDS + LOCAL];
	uint16_t x[TOKENS][HIDDEN] __attribute__((aligned(16)));
	uint16_t rows[RANKS * TOKENS][HIDDEN] __attribute__((aligned(16)));
	int64_t index[RANKS * TOKENS * TOPK];
	uint16_t sums[TOKENS][HIDDEN] __attribute__((aligned(16)));
	int err;
	char why[512];
};

struct rig {
	struct ll_kit *kit;
	uint32_t nodes[RANKS]; /* of each rank */
	uint32_t tokens[RANKS];
	uint64_t window_bytes;
	enum step step;
	uint32_t
		late; /* this rank begins a step when all others wait for it, and have for held_ns */
	uint64_t begun_ns, held_ns;
	uint32_t cut; /* its link is cut until another rank waits for its rows */
	struct rank rank[RANKS];
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
	       (what == EPF_WAKE_ON_SIGNAL && index % RANKS == peer);
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
	void *control[RANKS], *window[RANKS];
	struct epf_ht_options o = { .size = sizeof(o),
				    .control = me->control,
				    .peers = control,
				    .timeout_ns = 3600000000000,
				    .first_signal = FIRST_SIGNAL };
	int err;

	for (uint32_t r = 0; r < RANKS; r++) {
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
				    .experts = RANKS * LOCAL,
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

	for (uint32_t r = 0; r < RANKS && g->late == me->rank; r++)
		if (r != me->rank)
			until_it_waits(g, r, g->late);
	if (g->late == me->rank)
		hold(g);
	me->err = steps[g->step](me);
	if (me->err)
		snprintf(me->why, sizeof(me->why), "%s", epf_ll_error());
	return NULL;
}

struct link {
	struct epf *ep;
	bool up;
};

static int turn_link(struct epf_core *core, void *arg)
{
	struct link *link = arg;

	(void)core;
	return link->ep->ops->set_link(link->ep->nic, 0, link->up);
}

/* Cuts or restores the link of a rank's NIC, on the thread of its engine. */
static void set_link_of(struct epf *ep, bool up)
{
	struct link link = { ep, up };

	assert_int_equal(epf_core_call(ep->core, turn_link, &link), 0);
}

static void all_ranks(struct rig *g, enum step step)
{
	pthread_t threads[RANKS];

	g->step = step;
	if (g->cut != NOBODY)
		set_link_of(ll_kit_ep(g->kit, g->cut), false);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &g->rank[r]), 0);
	if (g->cut != NOBODY) {
		until_it_waits(g, (g->cut + 1) % RANKS, g->cut);
		hold(g);
		set_link_of(ll_kit_ep(g->kit, g->cut), true);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(threads[r], NULL);
	for (uint32_t r = 0; r < RANKS; r++)
		if (g->rank[r].err)
			fail_msg("rank %u: %d, %s", r, g->rank[r].err, g->rank[r].why);
}

/* several: each rank is a node. */
static struct rig *open_rig(bool several)
{
	struct ll_kit_options o = { .ranks = RANKS,
				    .direct = several ? LL_KIT_NONE : LL_KIT_ALL,
				    .bytes = 1u << 20,
				    .timeout_ns = 3600000000000 };
	struct epf_ht_row row = { .bytes = HIDDEN * 2, .topk = TOPK };
	struct rig *g = aligned_alloc(16, (sizeof(*g) + 15) / 16 * 16);

	assert_non_null(g);
	memset(g, 0, sizeof(*g));
	g->late = g->cut = NOBODY;
	g->kit = ll_kit_open(&o);
	g->window_bytes = (epf_ht_window_bytes(&row, RANKS * TOKENS) + 127) / 128 * 128;
	for (uint32_t r = 0; r < RANKS; r++) {
		size_t control = (epf_ht_control_bytes(RANKS) + 127) / 128 * 128;

		g->rank[r].rig = g;
		g->rank[r].rank = r;
		g->nodes[r] = several ? r : 0;
		g->tokens[r] = TOKENS / 2;
		g->rank[r].control = aligned_alloc(128, control);
		g->rank[r].window = aligned_alloc(128, g->window_bytes);
		memset(g->rank[r].control, 0, control);
		for (uint32_t t = 0; t < TOKENS; t++)
			g->rank[r].idx[t] = t % (RANKS * LOCAL);
	}
	all_ranks(g, OPEN);
	for (uint32_t r = 0; r < RANKS; r++)
		g->rank[r].plan = aligned_alloc(
			16, (epf_ht_plan_bytes(g->rank[r].ht, TOKENS) + 15) / 16 * 16);
	return g;
}

static void close_rig(struct rig *g)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		epf_ht_close(g->rank[r].ht);
		free(g->rank[r].control);
		free(g->rank[r].window);
		free(g->rank[r].plan);
	}
	ll_kit_close(g->kit);
	free(g);
}

static struct epf_why_report *report_of(struct epf_ll *ll, uint32_t ranks)
{
	struct epf_why_report *r = malloc(epf_why_report_bytes(ranks));

	assert_non_null(r);
	assert_int_equal(epf_why_read(ll, r), 0);
	return r;
}

/* Reports of all ranks. */
static void read_all(struct ll_kit *kit, struct epf_why_report *out[RANKS])
{
	for (uint32_t r = 0; r < RANKS; r++)
		out[r] = report_of(ll_kit_ll(kit, r), RANKS);
}

static void free_all(struct epf_why_report *reports[RANKS])
{
	for (uint32_t r = 0; r < RANKS; r++)
		free(reports[r]);
}

static const struct epf_why_peer *peer_in(const struct epf_why_report *r, unsigned call,
					  uint32_t peer)
{
	return &r->peer[call * RANKS + peer];
}

static void batch(struct rig *g)
{
	for (enum step s = PLAN; s <= COMBINE; s++)
		all_ranks(g, s);
}

/* The first cause of a kind in the reports, of one rank or of any (NOBODY); there must be one. */
static struct epf_why_cause first_of(struct epf_why_report *const *reports, uint32_t n,
				     uint32_t kind, uint32_t rank)
{
	const struct epf_why_report *const *given = (const struct epf_why_report *const *)reports;
	struct epf_why_cause c[2 * RANKS] = { 0 };
	uint32_t found = epf_why_explain(given, n, c, 2 * RANKS), i = 0;
	char text[4096];

	assert_true(epf_why_text(given, n, text, sizeof(text)) < sizeof(text));
	printf("%s", text);
	while (i < found && (c[i].kind != kind || (rank != NOBODY && c[i].rank != rank)))
		i++;
	assert_true(i < found);
	return c[i];
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
		struct epf_why_report *reports[RANKS];
		struct epf_why_cause c;

		g->begun_ns = epf_now_ns();
		for (enum step s = PLAN; s <= last; s++) {
			g->late = s == last ? 1 : NOBODY;
			all_ranks(g, s);
		}
		read_all(g->kit, reports);
		for (uint32_t r = 0; r < RANKS; r++) {
			const struct epf_why_wait *w =
				&peer_in(reports[r], call[last], 1)->wait[EPF_WHY_LATE];

			if (r == 1)
				continue;
			assert_true(w->ns >= g->held_ns);
			assert_int_equal(w->times, 1);
			assert_true(w->most_ns == w->ns);
			assert_true(reports[r]->call[call[last]].ns[EPF_WHY_WAIT] >= w->ns);
			assert_int_equal(reports[r]->call[call[last]].calls, 1);
			c = first_of(&reports[r], 1, EPF_WHY_IS_LATE, NOBODY);
			assert_int_equal(c.rank, 1);
			assert_int_equal(c.call, call[last]);
			assert_true(c.ns >= w->ns && c.most_ns >= w->ns);
		}
		c = first_of(reports, RANKS, EPF_WHY_IS_LATE, NOBODY);
		assert_int_equal(c.rank, 1);
		assert_true(c.times >= 2);
		free_all(reports);
		close_rig(g);
	}
}

/* A rank with twice the tokens is named with how many rows it has, by one rank alone. */
static void twice_the_tokens(void **state)
{
	struct rig *g = open_rig(false);
	struct epf_why_report *reports[RANKS];
	struct epf_why_cause c[2 * RANKS];
	int found = 0;

	(void)state;
	g->tokens[2] = 2 * g->tokens[0];
	batch(g);
	batch(g);
	read_all(g->kit, reports);
	for (uint32_t i = 0; i < RANKS; i++) {
		const struct epf_why_report *const one[] = { reports[i] };
		uint32_t n = epf_why_explain(one, 1, c, 2 * RANKS);

		assert_int_equal(peer_in(reports[i], EPF_WHY_HT_DISPATCH, 2)->rows_from,
				 2 * peer_in(reports[i], EPF_WHY_HT_DISPATCH, 0)->rows_from);
		for (uint32_t k = 0; k < n; k++) {
			found += c[k].kind == EPF_WHY_IS_LOAD;
			if (c[k].kind == EPF_WHY_IS_LOAD) {
				assert_int_equal(c[k].rank, 2);
				assert_true(c[k].sent > 1.99 && c[k].sent < 2.01);
				assert_true(c[k].received > 0.99 && c[k].received < 1.01);
			}
		}
	}
	assert_int_equal(found, RANKS);
	free_all(reports);
	close_rig(g);
}

/* All tokens go to the experts of one rank: it receives more. */
static void one_rank_receives_more(void **state)
{
	struct rig *g = open_rig(false);
	struct epf_why_report *reports[RANKS];
	struct epf_why_cause c;

	(void)state;
	for (uint32_t r = 0; r < RANKS; r++)
		for (uint32_t t = 0; t < TOKENS; t++)
			g->rank[r].idx[t] = t % 4 == 0   ? 0
					    : t % 4 == 1 ? 2 * LOCAL
							 : LOCAL + t % 4 - 2;
	batch(g);
	read_all(g->kit, reports);
	c = first_of(&reports[0], 1, EPF_WHY_IS_LOAD, NOBODY);
	assert_int_equal(c.rank, 1);
	assert_true(c.received > 1.99 && c.received < 2.01);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(peer_in(reports[i], EPF_WHY_HT_DISPATCH, 1)->rows_to,
				 2 * peer_in(reports[i], EPF_WHY_HT_DISPATCH, 0)->rows_to);
	free_all(reports);
	close_rig(g);
}

/* Rows of a rank that has begun come over a link that stalls: the link is named, not the rank. */
static void slow_link(void **state)
{
	struct rig *g = open_rig(true);
	struct epf_why_report *reports[RANKS];
	const struct epf_why_peer *p;
	struct epf_why_cause c;

	(void)state;
	g->begun_ns = epf_now_ns();
	all_ranks(g, PLAN);
	g->cut = 2;
	all_ranks(g, DISPATCH);
	g->cut = NOBODY;
	all_ranks(g, COMBINE);
	read_all(g->kit, reports);
	p = peer_in(reports[0], EPF_WHY_HT_DISPATCH, 2);
	assert_true(p->wait[EPF_WHY_SLOW].ns >= g->held_ns);
	assert_int_equal(p->wait[EPF_WHY_EITHER].ns, 0);
	assert_true(reports[0]->call[EPF_WHY_HT_DISPATCH].ns[EPF_WHY_MOVE] >= g->held_ns);
	c = first_of(&reports[0], 1, EPF_WHY_IS_LINK, 2);
	assert_true(c.ns >= g->held_ns);
	free_all(reports);
	close_rig(g);
}

/* ---- low latency ---- */

enum { MANY_TURNS = 200 };

/* Who is held up in the first low-latency call, and how. */
struct ll_hold {
	struct ll_kit *kit;
	uint32_t
		late; /* begins when the others have looked for it in vain many times, and then some time later */
	uint32_t later; /* begins some time after rank `late` has begun, too, to look for it */
	uint32_t cut;   /* its link is cut until all look in vain */
	unsigned calls[RANKS];
	uint64_t begun_ns, held_ns;
};

/* Waits until all ranks but two have looked in vain many times, and then longer than everything has taken so far. */
static void until_all_look(struct ll_hold *h, uint32_t but, uint32_t nor)
{
	uint64_t start, held;

	for (uint32_t r = 0; r < RANKS; r++)
		while (r != but && r != nor && ll_kit_turns(h->kit, r) < MANY_TURNS)
			usleep(200);
	start = epf_now_ns();
	held = 2 * (start - h->begun_ns);
	while (epf_now_ns() - start < held)
		usleep(1000);
	if (but != h->later)
		h->held_ns = held;
}

static void hold_late_rank(void *arg, uint32_t rank)
{
	struct ll_hold *h = arg;

	if (h->calls[rank]++)
		return;
	if (rank == h->late)
		until_all_look(h, rank, h->later);
	else if (rank == h->later)
		until_all_look(h, rank, NOBODY);
}

static struct ll_kit_case ll_case(void)
{
	struct ll_kit_case c = { .experts = RANKS * 4, .topk = 2, .hidden = 128, .tokens_max = 64 };

	for (uint32_t r = 0; r < RANKS; r++)
		c.tokens[r] = 32;
	return c;
}

static struct ll_kit *open_ll(struct ll_hold *h, enum ll_kit_direct direct)
{
	struct ll_kit_options o = { .ranks = RANKS,
				    .direct = direct,
				    .bytes = 8u << 20,
				    .timeout_ns = 3600000000000,
				    .before = hold_late_rank,
				    .before_arg = h };

	h->kit = ll_kit_open(&o);
	h->begun_ns = epf_now_ns();
	return h->kit;
}

/* Leaves only the dispatch in reports: nobody was held up in the combine, but on a busy machine ranks wait there all the same. */
static void forget_combines(struct epf_why_report *const *reports)
{
	for (uint32_t r = 0; r < RANKS; r++)
		for (unsigned k = EPF_WHY_LL_COMBINE_SEND; k < EPF_WHY_CALLS; k++) {
			memset(&reports[r]->call[k], 0, sizeof(reports[r]->call[k]));
			memset(&reports[r]->peer[k * RANKS], 0,
			       RANKS * sizeof(reports[r]->peer[0]));
		}
}

/* One rank alone knows who was missing; all together, that it was late. */
static void ll_late_rank(void **state)
{
	struct ll_hold h = { .late = 1, .later = NOBODY, .cut = NOBODY };
	struct ll_kit *kit = open_ll(&h, LL_KIT_ALL);
	struct ll_kit_case c = ll_case();
	struct epf_why_report *reports[RANKS];

	(void)state;
	ll_kit_run(kit, &c, 1);
	read_all(kit, reports);
	for (uint32_t r = 0; r < RANKS; r += 2) {
		const struct epf_why_peer *p = peer_in(reports[r], EPF_WHY_LL_DISPATCH_RECV, 1);

		assert_true(p->wait[EPF_WHY_EITHER].ns >= h.held_ns);
		assert_int_equal(p->wait[EPF_WHY_EITHER].times, 1);
		assert_true(reports[r]->call[EPF_WHY_LL_DISPATCH_RECV].ns[EPF_WHY_WAIT] >=
			    h.held_ns);
		assert_true(first_of(&reports[r], 1, EPF_WHY_IS_UNKNOWN, 1).ns >= h.held_ns);
	}
	forget_combines(reports);
	assert_true(first_of(reports, RANKS, EPF_WHY_IS_LATE, 1).ns >= 2 * h.held_ns);
	free_all(reports);
	ll_kit_close(kit);
}

/* Two late ranks, one after the other: what rank 0 waited for both is what it waited in all, nothing is counted twice. */
static void ll_two_late_ranks(void **state)
{
	struct ll_hold h = { .late = 1, .later = 2, .cut = NOBODY };
	struct ll_kit *kit = open_ll(&h, LL_KIT_ALL);
	struct ll_kit_case c = ll_case();
	struct epf_why_report *r;
	uint64_t first, second;

	(void)state;
	ll_kit_run(kit, &c, 1);
	r = report_of(ll_kit_ll(kit, 0), RANKS);
	first = peer_in(r, EPF_WHY_LL_DISPATCH_RECV, 1)->wait[EPF_WHY_EITHER].ns;
	second = peer_in(r, EPF_WHY_LL_DISPATCH_RECV, 2)->wait[EPF_WHY_EITHER].ns;
	assert_true(first >= h.held_ns && second > 0);
	assert_true(first + second <= r->call[EPF_WHY_LL_DISPATCH_RECV].ns[EPF_WHY_WAIT]);
	free(r);
	ll_kit_close(kit);
}

static void ll_twice_the_tokens(void **state)
{
	struct ll_hold h = { .late = NOBODY, .later = NOBODY, .cut = NOBODY };
	struct ll_kit *kit = open_ll(&h, LL_KIT_ALL);
	struct ll_kit_case c = ll_case();
	struct epf_why_report *reports[RANKS];
	struct epf_why_cause cause;
	uint64_t rows = 0;

	(void)state;
	c.tokens[2] = 64;
	ll_kit_run(kit, &c, 1);
	read_all(kit, reports);
	for (uint32_t r = 0; r < RANKS; r++)
		rows += peer_in(reports[r], EPF_WHY_LL_DISPATCH_RECV, 2)->rows_from;
	assert_int_equal(rows, 64 * 2);
	cause = first_of(reports, RANKS, EPF_WHY_IS_LOAD, 2);
	assert_true(cause.sent > 1.99 && cause.sent < 2.01);
	free_all(reports);
	ll_kit_close(kit);
}

static void *restore_link(void *arg)
{
	struct ll_hold *h = arg;

	until_all_look(h, NOBODY, NOBODY);
	set_link_of(ll_kit_ep(h->kit, h->cut), true);
	return NULL;
}

/* A rank whose link stalls waits itself: all ranks together know that it was not late. */
static void ll_slow_link(void **state)
{
	struct ll_hold h = { .late = NOBODY, .later = NOBODY, .cut = 2 };
	struct ll_kit *kit = open_ll(&h, LL_KIT_NONE);
	struct ll_kit_case c = ll_case();
	struct epf_why_report *reports[RANKS];
	pthread_t thread;

	(void)state;
	set_link_of(ll_kit_ep(kit, 2), false);
	assert_int_equal(pthread_create(&thread, NULL, restore_link, &h), 0);
	ll_kit_run(kit, &c, 1);
	pthread_join(thread, NULL);
	read_all(kit, reports);
	forget_combines(reports);
	assert_true(first_of(reports, RANKS, EPF_WHY_IS_LINK, 2).ns >= 2 * h.held_ns);
	free_all(reports);
	ll_kit_close(kit);
}

/* ---- reports ---- */

/* What one rank's calls gave is forgotten by epf_why_since(). */
static void difference(void **state)
{
	struct ll_hold h = { .late = NOBODY, .later = NOBODY, .cut = NOBODY };
	struct ll_kit *kit = open_ll(&h, LL_KIT_ALL);
	struct ll_kit_case c = ll_case();
	struct epf_why_report *before, *after;

	(void)state;
	ll_kit_run(kit, &c, 1);
	before = report_of(ll_kit_ll(kit, 0), RANKS);
	ll_kit_run(kit, &c, 1);
	after = report_of(ll_kit_ll(kit, 0), RANKS);
	for (unsigned k = EPF_WHY_LL_DISPATCH_SEND; k < EPF_WHY_CALLS; k++) {
		assert_int_equal(before->call[k].calls, 1);
		assert_int_equal(after->call[k].calls, 2);
	}
	epf_why_since(after, before);
	for (unsigned k = EPF_WHY_LL_DISPATCH_SEND; k < EPF_WHY_CALLS; k++)
		assert_int_equal(after->call[k].calls, 1);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(peer_in(after, EPF_WHY_LL_DISPATCH_RECV, r)->rows_from,
				 peer_in(before, EPF_WHY_LL_DISPATCH_RECV, r)->rows_from);
	free(before);
	free(after);
	ll_kit_close(kit);
}

/* The setting call-stats turns it off: nothing is counted, and the error says why. */
static void turned_off(void **state)
{
	struct ll_hold h = { .late = NOBODY, .later = NOBODY, .cut = NOBODY };
	struct epf_why_report *r = malloc(epf_why_report_bytes(RANKS));
	struct ll_kit_case c = ll_case();
	struct ll_kit *kit;

	(void)state;
	setenv("EPF_CALL_STATS", "no", 1);
	kit = open_ll(&h, LL_KIT_ALL);
	unsetenv("EPF_CALL_STATS");
	ll_kit_run(kit, &c, 1);
	assert_int_equal(epf_why_read(ll_kit_ll(kit, 0), r), -ENODATA);
	assert_non_null(strstr(epf_ll_error(), "EPF_CALL_STATS"));
	free(r);
	ll_kit_close(kit);
}

/* Nothing stands out, and no report, give no cause; ranks of different jobs are not mixed; a short buffer gets the length of the whole text. */
static void no_cause(void **state)
{
	struct epf_why_report *a = calloc(1, epf_why_report_bytes(2));
	struct epf_why_report *b = calloc(1, epf_why_report_bytes(3));
	const struct epf_why_report *const both[] = { a, b };
	struct epf_why_cause c[4];
	char text[512], start[8];
	size_t whole;

	(void)state;
	a->ranks = 2;
	b->ranks = 3;
	a->call[EPF_WHY_HT_DISPATCH] =
		(struct epf_why_calls){ 10, { 10000000, 80000000, 10000000 } };
	a->peer[EPF_WHY_HT_DISPATCH * 2 + 1].wait[EPF_WHY_LATE] =
		(struct epf_why_wait){ 4900000, 10, 1000000 }; /* 4.9 percent */
	assert_int_equal(epf_why_explain(both, 0, c, 4), 0);
	assert_int_equal(epf_why_explain(both, 1, c, 4), 0);
	a->peer[EPF_WHY_HT_DISPATCH * 2 + 1].wait[EPF_WHY_LATE].ns = 5100000;
	assert_int_equal(epf_why_explain(both, 1, c, 4), 1);
	assert_int_equal(c[0].rank, 1);
	assert_int_equal(epf_why_explain(both, 2, c, 4), 0);
	whole = epf_why_text(both, 1, text, sizeof(text));
	assert_int_equal(whole, strlen(text));
	assert_non_null(strstr(text, "rank 1 begins its calls late"));
	assert_non_null(strstr(text, "10 % waiting for ranks, 80 % moving rows, 10 % copying"));
	assert_int_equal(epf_why_text(both, 1, start, sizeof(start)), whole);
	assert_int_equal(strlen(start), sizeof(start) - 1);
	free(a);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_rank),
		cmocka_unit_test(twice_the_tokens),
		cmocka_unit_test(one_rank_receives_more),
		cmocka_unit_test(slow_link),
		cmocka_unit_test(ll_late_rank),
		cmocka_unit_test(ll_two_late_ranks),
		cmocka_unit_test(ll_twice_the_tokens),
		cmocka_unit_test(ll_slow_link),
		cmocka_unit_test(difference),
		cmocka_unit_test(turned_off),
		cmocka_unit_test(no_cause),
	};

	/* A link that is cut for long on a busy machine stays in use: nobody fails over. */
	setenv("EPF_EMU_RETRY_TIMEOUT", "3600s", 1);
	setenv("EPF_EMU_STALL_TIMEOUT", "3600s", 1);
	setenv("EPF_PEER_TIMEOUT", "3600s", 1);
	setenv("EPF_PEER_SILENCE", "0s", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
