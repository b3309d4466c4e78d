/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links of the emulated NIC on a virtual clock: what travels on a cut link waits, goes on exactly once when it comes up in time,
 * and fails at the sender when it does not, whichever end was cut; other links are not disturbed. EPF_SEED=n runs the random
 * cuts with that seed only.
 */
#include "tests/unit/nic/nic_rig.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

static const struct nic_kind *kind;

static void tune_links(struct epf_emu_opts *opts)
{
	opts->links = 2;
}

static void tune_late(struct epf_emu_opts *opts)
{
	opts->links = 2;
	opts->delay_ns = 2 * MS;
}

/* Lane 0 of both ends is connected, and lane 1, which travels on the other link. */
static struct rig *two_lanes(void (*tune)(struct epf_emu_opts *))
{
	struct rig *rig = rig_open(kind, tune);

	rig_lanes(rig, 1, 1);
	rig_run(rig, 10 * MS);
	return rig;
}

static void set_link(struct epf_nic *nic, unsigned link, int up)
{
	assert_int_equal(nic->ops->set_link(nic, link, up), 0);
}

static uint32_t links_up(const struct epf_nic *nic)
{
	struct epf_nic_counters counters;

	nic->ops->counters(nic, &counters);
	return counters.link_up;
}

static int post_imm(struct rig *rig, uint16_t lane, uint32_t id, uint32_t len)
{
	struct epf_wr wr = rig_write(rig, id, 0, (uint64_t)lane * 8192, len);

	wr.op = EPF_WR_WRITE_IMM;
	wr.imm = id;
	return rig->a.nic->ops->post(rig->a.nic, lane, &wr, 1);
}

static unsigned count(const struct rig_end *end, int op, uint16_t lane, int status)
{
	unsigned n = 0;

	for (unsigned i = 0; i < end->n; i++)
		n += end->log[i].op == op && end->log[i].lane == lane &&
		     (status < 0 || end->log[i].status == status);
	return n;
}

/* One of two links is cut, at one end: its lane waits and then fails, the other one never notices. */
static void test_cut_one(void **state)
{
	for (unsigned variant = 0; variant < 4; variant++) {
		struct rig *rig = two_lanes(tune_links);
		struct epf_nic *nic = variant & 1 ? rig->b.nic : rig->a.nic;
		uint16_t cut = (uint16_t)(variant >> 1), other = !cut;

		rig->b.nic->ops->post_receives(rig->b.nic, 100);
		assert_int_equal(links_up(nic), 2);
		set_link(nic, cut, 0);
		assert_int_equal(links_up(nic), 1);
		assert_int_equal(post_imm(rig, cut, 1, 3000), 1);
		assert_int_equal(post_imm(rig, other, 2, 3000), 1);
		rig_run(rig, 100 * MS);
		assert_int_equal(count(&rig->a, EPF_WC_SENT, other, EPF_S_OK), 1);
		assert_int_equal(count(&rig->b, EPF_WC_RECV_IMM, other, -1), 1);
		assert_int_equal(count(&rig->a, EPF_WC_SENT, cut, -1), 0);
		assert_int_equal(count(&rig->b, EPF_WC_RECV_IMM, cut, -1), 0);
		rig_run(rig, rig->opts->retry_timeout_ns);
		assert_int_equal(count(&rig->a, EPF_WC_SENT, cut, EPF_S_RETRY_EXCEEDED), 1);
		assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, cut), EPF_LANE_ERROR);
		assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, other), EPF_LANE_READY);
		assert_int_equal(post_imm(rig, other, 3, 3000), 1);
		rig_run(rig, MS);
		assert_int_equal(count(&rig->b, EPF_WC_RECV_IMM, other, -1), 2);
		assert_int_equal(count(&rig->b, EPF_WC_RECV_IMM, cut, -1), 0);
		rig_close(rig);
	}
}

static void tune_fast(struct epf_emu_opts *opts)
{
	tune_links(opts);
	opts->link_timeout_ns = 20 * MS;
}

/* A NIC that knows its link fails what travels on it early, whether it was posted before the cut or after; the other link's retries stay long. */
static void test_cut_fails_early(void **state)
{
	for (unsigned variant = 0; variant < 2; variant++) {
		struct rig *rig = two_lanes(tune_fast);

		rig->b.nic->ops->post_receives(rig->b.nic, 100);
		if (variant) { /* silence of the other end is no cut of ours */
			set_link(rig->b.nic, 0, 0);
			assert_int_equal(post_imm(rig, 0, 1, 3000), 1);
			rig_run(rig, 100 * MS);
			assert_int_equal(count(&rig->a, EPF_WC_SENT, 0, -1), 0);
			set_link(rig->a.nic, 0, 0);
		} else {
			set_link(rig->a.nic, 0, 0);
			assert_int_equal(post_imm(rig, 0, 1, 3000), 1);
		}
		assert_int_equal(post_imm(rig, 1, 2, 3000), 1);
		rig_run(rig, 15 * MS);
		assert_int_equal(count(&rig->a, EPF_WC_SENT, 0, -1), 0);
		rig_run(rig, 10 * MS);
		assert_int_equal(count(&rig->a, EPF_WC_SENT, 0, EPF_S_RETRY_EXCEEDED), 1);
		assert_int_equal(count(&rig->a, EPF_WC_SENT, 1, EPF_S_OK), 1);
		rig_close(rig);
	}
}

/* Each end knows the lane by its own number: crossed lanes travel on another link at each end. */
static void test_each_end(void **state)
{
	for (unsigned variant = 0; variant < 4; variant++) {
		struct rig *rig = rig_open(kind, tune_links);
		struct epf_nic *nic = variant & 1 ? rig->b.nic : rig->a.nic;
		unsigned link = variant >> 1;
		int stops = variant & 1 ? link == 1 : link == 0;

		rig_lanes(rig, 2, 3);
		rig_run(rig, MS);
		rig->b.nic->ops->post_receives(rig->b.nic, 1);
		set_link(nic, link, 0);
		assert_int_equal(post_imm(rig, 2, 1, 10), 1);
		rig_run(rig, 100 * MS);
		assert_int_equal(count(&rig->b, EPF_WC_RECV_IMM, 3, -1), !stops);
		assert_int_equal(count(&rig->a, EPF_WC_SENT, 2, EPF_S_OK), !stops);
		set_link(nic, link, 1);
		rig_run(rig, MS);
		assert_int_equal(count(&rig->b, EPF_WC_RECV_IMM, 3, -1), 1);
		assert_int_equal(count(&rig->a, EPF_WC_SENT, 2, EPF_S_OK), 1);
		rig_close(rig);
	}
}

/* What the target has taken but not landed waits too: held back by a delay, or for a receive. */
static void test_under_way(void **state)
{
	for (int late = 0; late < 2; late++) {
		struct rig *rig = two_lanes(late ? tune_late : tune_links);

		if (late)
			rig->b.nic->ops->post_receives(rig->b.nic, 40);
		for (uint32_t i = 0; i < 20; i++) {
			assert_int_equal(post_imm(rig, 0, i, 16), 1);
			assert_int_equal(post_imm(rig, 1, i, 16), 1);
		}
		rig_reap(&rig->b);
		rig_reap(&rig->b);
		rig_clear(rig);
		set_link(rig->b.nic, 1, 0);
		if (!late)
			rig->b.nic->ops->post_receives(rig->b.nic, 40);
		rig_run(rig, 50 * MS);
		assert_true(count(&rig->b, EPF_WC_RECV_IMM, 0, -1) > 0);
		assert_int_equal(count(&rig->b, EPF_WC_RECV_IMM, 1, -1), 0);
		set_link(rig->b.nic, 1, 1);
		rig_run(rig, 50 * MS);
		assert_true(count(&rig->b, EPF_WC_RECV_IMM, 1, -1) > 0);
		assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK) + 0u,
				 rig_count(&rig->a, EPF_WC_SENT, -1));
		assert_int_equal(rig->a.nic->ops->lane_drained(rig->a.nic, 1), 0);
		rig->a.nic->ops->lane_fence(rig->a.nic, 1);
		assert_int_equal(rig->a.nic->ops->lane_drained(rig->a.nic, 1), 1);
		rig_close(rig);
	}
}

/* Answers do not get through either: the sender learns of the landing when its own end is up again. */
static void test_answers(void **state)
{
	struct rig *rig = two_lanes(tune_links);

	rig->b.nic->ops->post_receives(rig->b.nic, 1);
	assert_int_equal(post_imm(rig, 1, 7, 100), 1);
	set_link(rig->a.nic, 1, 0);
	rig_run(rig, MS);
	assert_int_equal(rig->b.n, 1);
	assert_int_equal(rig->a.n, 0);
	set_link(rig->a.nic, 1, 1);
	rig_run(rig, MS);
	assert_int_equal(count(&rig->a, EPF_WC_SENT, 1, EPF_S_OK), 1);
	rig_close(rig);
}

static void tune_twice(struct epf_emu_opts *opts)
{
	opts->links = 2;
	opts->duplicate = 1;
}

/* A second arrival event does not get through a cut link either. */
static void test_duplicates(void **state)
{
	struct rig *rig;

	if (kind->ordered)
		skip();
	rig = two_lanes(tune_twice);
	rig->b.nic->ops->post_receives(rig->b.nic, 200);
	for (uint16_t cut = 0; cut < 2; cut++) {
		rig_clear(rig);
		for (uint32_t i = 0; i < 20; i++)
			assert_int_equal(post_imm(rig, 1, i, 0), 1);
		while (count(&rig->b, EPF_WC_RECV_IMM, 1, -1) < 20) {
			rig_reap(&rig->b);
			rig->now_ns += 1000;
		}
		set_link(rig->b.nic, 1, !cut);
		rig_run(rig, 5 * MS);
		assert_in_range(count(&rig->b, EPF_WC_RECV_IMM, 1, -1), cut ? 20 : 40,
				cut ? 35 : 40);
	}
	rig_close(rig);
}

/* Lanes of a cut link are fenced, destroyed and made again: no packet is lost. */
static void test_destroy_cut(void **state)
{
	for (int end = 0; end < 2; end++) {
		struct rig *rig = two_lanes(tune_links);
		struct epf_nic *nic = end ? rig->b.nic : rig->a.nic;

		for (uint32_t round = 0; round < 6; round++) {
			assert_int_equal(post_imm(rig, 0, round, 9000), 1); /* no receive */
			rig_reap(&rig->b);
			set_link(nic, 0, 0);
			assert_int_equal(post_imm(rig, 0, round, 9000), 1);
			rig_run(rig, MS);
			rig->a.nic->ops->lane_fence(rig->a.nic, 0);
			rig->b.nic->ops->lane_fence(rig->b.nic, 0);
			rig_run(rig, MS);
			assert_int_equal(rig->a.nic->ops->lane_drained(rig->a.nic, 0), 1);
			rig_reconnect(rig);
			set_link(nic, 0, 1);
			rig_clear(rig);
		}
		rig_expect_whole(rig);
		rig_close(rig);
	}
}

static void test_range(void **state)
{
	struct rig *rig = rig_open(kind, NULL);
	struct epf_emu_opts opts = *rig->opts;
	struct epf_nic_caps caps;
	struct epf_nic *nic = NULL;

	rig->a.nic->ops->describe(rig->a.nic, &caps);
	assert_int_equal(caps.links, 1);
	assert_int_equal(rig->a.nic->ops->set_link(rig->a.nic, 1, 0), -EINVAL);
	assert_non_null(strstr(epf_last_error(), "emu-links is 1"));
	assert_int_equal(links_up(rig->a.nic), 1);
	opts.links = 0;
	assert_int_equal(kind->open(&opts, 0, NULL, NULL, &nic), -EINVAL);
	opts.links = 9;
	assert_int_equal(kind->open(&opts, 0, NULL, NULL, &nic), -EINVAL);
	assert_null(nic);
	rig_close(rig);
	rig = rig_open(kind, tune_links);
	rig->a.nic->ops->describe(rig->a.nic, &caps);
	assert_int_equal(caps.links, 2);
	assert_int_equal(rig->a.nic->ops->set_link(rig->a.nic, 2, 0), -EINVAL);
	rig_close(rig);
}

/* Random cuts of random links at random ends, always shorter than the timeout: everything arrives exactly once. */
enum { LANES = 4, EACH = 150 };

static uint64_t running;

static void tune_random(struct epf_emu_opts *opts)
{
	opts->links = 1 + (uint32_t)(running % 4);
	opts->delay_ns = running & 4 ? 20000 : 0;
	opts->drop = running & 8 ? 0.05 : 0;
	opts->reorder = running & 16 ? 0.2 : 0;
	opts->seed = running;
}

static void check_once(const struct rig *rig)
{
	unsigned char got[LANES][EACH] = { { 0 } };
	uint32_t next[LANES] = { 0 };

	for (unsigned i = 0; i < rig->b.n; i++) {
		const struct epf_wc *wc = &rig->b.log[i];

		assert_int_equal(wc->op, EPF_WC_RECV_IMM);
		assert_true(wc->lane < LANES && wc->imm < EACH);
		assert_int_equal(got[wc->lane][wc->imm]++, 0);
		if (kind->ordered)
			assert_int_equal(wc->imm, next[wc->lane]++);
	}
	assert_int_equal(rig->b.n, LANES * EACH);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK),
			 rig_count(&rig->a, EPF_WC_SENT, -1));
}

static void random_cuts(uint64_t seed)
{
	uint64_t random = seed * 2 + 1;
	uint32_t sent[LANES] = { 0 }, all = 0, cuts = 0;
	struct rig *rig;

	running = seed;
	rig = rig_open(kind, tune_random);
	for (uint16_t lane = 1; lane < LANES; lane++)
		rig_lanes(rig, lane, lane);
	while (all < LANES * EACH) {
		uint64_t r = rig_random(&random);
		uint16_t lane = (uint16_t)(r % LANES);
		struct epf_nic *nic = r >> 8 & 1 ? rig->a.nic : rig->b.nic;

		if (sent[lane] < EACH && post_imm(rig, lane, sent[lane], r >> 16 & 2047) == 1) {
			sent[lane]++;
			all++;
			rig->b.nic->ops->post_receives(rig->b.nic, 1);
		}
		if ((r >> 32 & 7) == 0) {
			int up = r >> 40 & 1;

			set_link(nic, (unsigned)(r >> 48) % rig->opts->links, up);
			cuts += !up;
		}
		rig_run(rig, r >> 50 & 16383);
		if ((r >> 36 & 15) == 0 || all == LANES * EACH)
			for (unsigned link = 0; link < rig->opts->links; link++) {
				set_link(rig->a.nic, link, 1);
				set_link(rig->b.nic, link, 1);
			}
	}
	rig_run(rig, 50 * MS);
	assert_true(cuts > 5);
	check_once(rig);
	rig_close(rig);
	running = 0;
}

static void test_random_cuts(void **state)
{
	const char *one = getenv("EPF_SEED");
	uint64_t first = one ? strtoull(one, NULL, 0) : 1;

	for (uint64_t seed = first; seed <= (one ? first : 96); seed++)
		random_cuts(seed);
}

static int print_seed(void **state)
{
	if (running)
		printf("# replay with EPF_SEED=%" PRIu64 "\n", running);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cut_one),
		cmocka_unit_test(test_cut_fails_early),
		cmocka_unit_test(test_each_end),
		cmocka_unit_test(test_under_way),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_duplicates),
		cmocka_unit_test(test_destroy_cut),
		cmocka_unit_test(test_range),
		cmocka_unit_test_teardown(test_random_cuts, print_seed),
	};
	size_t count_kinds;
	int failed = 0;

	kind = nic_rig_kinds(&count_kinds);
	for (int i = 0; i < 2; i++, kind++)
		failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
	return failed != 0;
}
