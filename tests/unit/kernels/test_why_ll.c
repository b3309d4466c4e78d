/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why low-latency calls are slow: late ranks, one with twice the tokens, and a link that stalls, by the reports of the kernels in plain C. One rank alone
 * knows only which ranks it waited for; all ranks together tell a late rank from a slow link. Order is forced as in test_why_ht.c.
 */
#include "fabric/base/clock.h"
#include "tests/unit/kernels/why_kit.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MANY_TURNS = 200 };

/* Who is held up in the first low-latency call, and how. */
struct ll_hold {
	struct ll_kit *kit;
	uint32_t
		late; /* begins when the others have looked for it in vain many times, and then some time later */
	uint32_t later; /* begins some time after rank `late` has begun, too, to look for it */
	uint32_t cut;   /* its link is cut until all look in vain */
	unsigned calls[WHY_RANKS];
	uint64_t begun_ns, held_ns;
};

/*
 * Waits until all ranks but two have looked in vain many times, and then longer than everything has taken so far. Twice many times: behind the first ones all
 * have sent, so behind the next ones nobody looks for any but these two.
 */
static void until_all_look(struct ll_hold *h, uint32_t but, uint32_t nor)
{
	uint64_t start, held;

	for (uint32_t i = 0; i < 2 * WHY_RANKS; i++) {
		uint32_t r = i % WHY_RANKS;
		uint64_t from = i < WHY_RANKS ? 0 : ll_kit_turns(h->kit, r);

		while (r != but && r != nor && ll_kit_turns(h->kit, r) < from + MANY_TURNS)
			usleep(200);
	}
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
		until_all_look(h, rank, WHY_NOBODY);
}

static struct ll_kit *open_ll(struct ll_hold *h, enum ll_kit_direct direct)
{
	struct ll_kit_options o = { .ranks = WHY_RANKS,
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
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		for (unsigned k = EPF_WHY_LL_COMBINE_SEND; k < EPF_WHY_CALLS; k++) {
			memset(&reports[r]->call[k], 0, sizeof(reports[r]->call[k]));
			memset(&reports[r]->peer[k * WHY_RANKS], 0,
			       WHY_RANKS * sizeof(reports[r]->peer[0]));
		}
}

/* One rank alone knows who was missing; all together, that it was late. */
static void ll_late_rank(void **state)
{
	struct ll_hold h = { .late = 1, .later = WHY_NOBODY, .cut = WHY_NOBODY };
	struct ll_kit *kit = open_ll(&h, LL_KIT_ALL);
	struct ll_kit_case c = why_ll_case();
	struct epf_why_report *reports[WHY_RANKS];

	(void)state;
	ll_kit_run(kit, &c, 1);
	why_read_all(kit, reports);
	for (uint32_t r = 0; r < WHY_RANKS; r += 2) {
		const struct epf_why_peer *p = why_peer(reports[r], EPF_WHY_LL_DISPATCH_RECV, 1);

		assert_true(p->wait[EPF_WHY_EITHER].ns >= h.held_ns);
		assert_int_equal(p->wait[EPF_WHY_EITHER].times, 1);
		assert_true(reports[r]->call[EPF_WHY_LL_DISPATCH_RECV].ns[EPF_WHY_WAIT] >=
			    h.held_ns);
		assert_true(why_first(&reports[r], 1, EPF_WHY_IS_UNKNOWN, 1).ns >= h.held_ns);
	}
	forget_combines(reports);
	assert_true(why_first(reports, WHY_RANKS, EPF_WHY_IS_LATE, 1).ns >= 2 * h.held_ns);
	why_free_all(reports);
	ll_kit_close(kit);
}

/* Two late ranks, one after the other: what rank 0 waited for both is what it waited in all, nothing is counted twice. */
static void ll_two_late_ranks(void **state)
{
	struct ll_hold h = { .late = 1, .later = 2, .cut = WHY_NOBODY };
	struct ll_kit *kit = open_ll(&h, LL_KIT_ALL);
	struct ll_kit_case c = why_ll_case();
	struct epf_why_report *r;
	uint64_t first, second;

	(void)state;
	ll_kit_run(kit, &c, 1);
	r = why_report(ll_kit_ll(kit, 0), WHY_RANKS);
	first = why_peer(r, EPF_WHY_LL_DISPATCH_RECV, 1)->wait[EPF_WHY_EITHER].ns;
	second = why_peer(r, EPF_WHY_LL_DISPATCH_RECV, 2)->wait[EPF_WHY_EITHER].ns;
	assert_true(first >= h.held_ns && second > 0);
	assert_true(first + second <= r->call[EPF_WHY_LL_DISPATCH_RECV].ns[EPF_WHY_WAIT]);
	free(r);
	ll_kit_close(kit);
}

static void ll_twice_the_tokens(void **state)
{
	struct ll_hold h = { .late = WHY_NOBODY, .later = WHY_NOBODY, .cut = WHY_NOBODY };
	struct ll_kit *kit = open_ll(&h, LL_KIT_ALL);
	struct ll_kit_case c = why_ll_case();
	struct epf_why_report *reports[WHY_RANKS];
	struct epf_why_cause cause;
	uint64_t rows = 0;

	(void)state;
	c.tokens[2] = 64;
	ll_kit_run(kit, &c, 1);
	why_read_all(kit, reports);
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		rows += why_peer(reports[r], EPF_WHY_LL_DISPATCH_RECV, 2)->rows_from;
	assert_int_equal(rows, 64 * 2);
	cause = why_first(reports, WHY_RANKS, EPF_WHY_IS_LOAD, 2);
	assert_true(cause.sent > 1.99 && cause.sent < 2.01);
	why_free_all(reports);
	ll_kit_close(kit);
}

static void *restore_link(void *arg)
{
	struct ll_hold *h = arg;

	until_all_look(h, WHY_NOBODY, WHY_NOBODY);
	why_set_link(ll_kit_ep(h->kit, h->cut), true);
	return NULL;
}

/* A rank whose link stalls waits itself: all ranks together know that it was not late. */
static void ll_slow_link(void **state)
{
	struct ll_hold h = { .late = WHY_NOBODY, .later = WHY_NOBODY, .cut = 2 };
	struct ll_kit *kit = open_ll(&h, LL_KIT_NONE);
	struct ll_kit_case c = why_ll_case();
	struct epf_why_report *reports[WHY_RANKS];
	pthread_t thread;

	(void)state;
	why_set_link(ll_kit_ep(kit, 2), false);
	assert_int_equal(pthread_create(&thread, NULL, restore_link, &h), 0);
	ll_kit_run(kit, &c, 1);
	pthread_join(thread, NULL);
	why_read_all(kit, reports);
	forget_combines(reports);
	assert_true(why_first(reports, WHY_RANKS, EPF_WHY_IS_LINK, 2).ns >= 2 * h.held_ns);
	why_free_all(reports);
	ll_kit_close(kit);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ll_late_rank),
		cmocka_unit_test(ll_two_late_ranks),
		cmocka_unit_test(ll_twice_the_tokens),
		cmocka_unit_test(ll_slow_link),
	};

	why_wait_for_links();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
