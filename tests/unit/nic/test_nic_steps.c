/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be said only of a NIC that moves as part of a reap, on a virtual clock: the middle of transfers, exact times, the pool. Runs over the
 * software NICs of nic_rig_kinds(), beside the checks that hold for every NIC (tools/prove/check.h), which test_nic*.c run.
 */
#include "tests/unit/nic/nic_rig.h"

#include "queues/epf_wakeup.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

static const struct nic_kind *kind;

static int setup(void **state)
{
	*state = rig_open(kind, NULL);
	return 0;
}

static int teardown(void **state)
{
	rig_close(*state);
	return 0;
}

/* Cases that count reaps, which the copies of GPU memory take more of. */
static void needs_host_memory(void)
{
	if (kind->gpu)
		skip();
}

static void test_sent_after_write(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);

	rig_fill(rig->a.mem, 3000, 8);
	rig->b.nic->ops->post_receives(rig->b.nic, 1);
	wr.op = EPF_WR_WRITE_IMM;
	rig_post(rig, &wr);
	for (int i = 0; i < 10; i++)
		assert_int_equal(rig_reap(&rig->a), 0);
	while (rig_reap(&rig->b) == 0)
		assert_int_equal(rig_reap(&rig->a), 0);
	assert_true(rig_matches(rig->b.mem, 3000, 8));
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
}

static void test_next_event(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 8);
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;

	needs_host_memory();
	rig_run(rig, MS);
	assert_true(a->ops->next_event(a) == UINT64_MAX);
	assert_true(b->ops->next_event(b) == UINT64_MAX);
	rig_post(rig, &wr);
	if (kind->carries) {
		assert_true(b->ops->next_event(b) <= rig->now_ns);
		assert_true(a->ops->next_event(a) > rig->now_ns);
		assert_true(a->ops->next_event(a) != UINT64_MAX);
		rig_reap(&rig->b);
	}
	assert_true(a->ops->next_event(a) <= rig->now_ns);
	rig_reap(&rig->a);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
}

static void test_wakeup(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 8);
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	struct epf_wakeup *wakeup = b->ops->wakeup(b);
	uint32_t rung;

	needs_host_memory();
	assert_non_null(wakeup);
	rung = wakeup->rung;
	rig_post(rig, &wr);
	assert_int_equal(a->ops->wake_pending(a), 0);
	epf_wakeup_arm(wakeup);
	rig_post(rig, &wr);
	assert_int_equal(a->ops->wake_pending(a), 1);
	a->ops->wake_peers(a);
	assert_int_equal(a->ops->wake_pending(a), 0);
	assert_int_equal(wakeup->rung, rung + 1);
	assert_int_equal(wakeup->sleeping, 0);
	epf_wakeup_sleep(wakeup, 1000000000); /* returns at once: not armed any more */
	/* Completions ring the sender. */
	epf_wakeup_arm(a->ops->wakeup(a));
	rig_reap(&rig->b);
	assert_int_equal(b->ops->wake_pending(b), 1);
	b->ops->wake_peers(b);
	assert_int_equal(a->ops->wakeup(a)->sleeping, 0);
}

/* Two lanes wait and one receive comes: each wait is counted once. */
static void test_rnr_two(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);
	struct epf_nic_counters counters;

	rig_lanes(rig, 1, 1);
	wr.op = EPF_WR_WRITE_IMM;
	rig_post(rig, &wr);
	assert_int_equal(rig->a.nic->ops->post(rig->a.nic, 1, &wr, 1), 1);
	for (unsigned i = 1; i <= 2; i++) {
		rig_run(rig, MS);
		rig->b.nic->ops->post_receives(rig->b.nic, 1);
		rig_run(rig, MS);
		assert_int_equal(rig->b.n, i);
	}
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 2);
	rig->b.nic->ops->counters(rig->b.nic, &counters);
	assert_true(kind->device || counters.rnr_events == 2);
}

static void test_fence_target(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);

	rig_fill(rig->a.mem, 5000, 1);
	b->ops->post_receives(b, 8);
	wr.op = EPF_WR_WRITE_IMM;
	rig_post(rig, &wr);
	wr.id = 2;
	rig_post(rig, &wr);
	b->ops->lane_fence(b, 0);
	assert_int_equal(b->ops->lane_link(b, 0), EPF_LANE_ERROR);
	assert_int_equal(b->ops->lane_drained(b, 0), 1);
	rig_run(rig, MS);
	assert_int_equal(rig->b.n, 0);
	for (unsigned i = 0; i < 5000; i++)
		assert_int_equal(rig->b.mem[i], 0);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_FLUSHED), 2);
	assert_int_equal(a->ops->lane_link(a, 0), EPF_LANE_ERROR);
	assert_int_equal(a->ops->lane_drained(a, 0), 1);
}

static void test_fence_sender(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);
	struct epf_wr back = wr;

	rig->b.nic->ops->post_receives(rig->b.nic, 8);
	rig->a.nic->ops->post_receives(rig->a.nic, 8);
	wr.op = EPF_WR_WRITE_IMM;
	rig_post(rig, &wr);
	wr.id = 2;
	rig_post(rig, &wr);
	/* And something on its way to a: it must not land after the fence. */
	back.laddr = rig->b.base;
	back.lkey = rig->b.mr.lkey;
	back.raddr = rig->a.mr.raddr;
	back.rkey = rig->a.mr.rkey;
	back.op = EPF_WR_WRITE_IMM;
	rig_fill(rig->b.mem, 5000, 9);
	assert_int_equal(rig->b.nic->ops->post(rig->b.nic, 0, &back, 1), 1);
	/* And bytes that a itself asked for. */
	wr.id = 3;
	wr.op = EPF_WR_READ;
	wr.laddr += 10000;
	rig_post(rig, &wr);
	a->ops->lane_fence(a, 0);
	a->ops->lane_fence(a, 0); /* twice is once */
	assert_int_equal(a->ops->post(a, 0, &wr, 1), -ENOTCONN);
	assert_int_equal(a->ops->lane_drained(a, 0), 0);
	while (!a->ops->lane_drained(a, 0))
		assert_true(rig_reap(&rig->a));
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_FLUSHED), 3);
	assert_int_equal(rig->a.n, 3);
	rig_run(rig, MS);
	assert_int_equal(rig->a.n, 3);
	assert_false(rig_matches(rig->a.mem, 5000, 9));
	assert_false(rig_matches(rig->a.mem + 10000, 5000, 9));
	assert_int_equal(rig_count(&rig->b, EPF_WC_SENT, EPF_S_FLUSHED), 1);
}

/* Nothing of an old epoch reaches a lane that was destroyed and created again. */
static void test_epochs(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *b = rig->b.nic;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);
	int status;

	rig_fill(rig->a.mem, 5000, 1);
	b->ops->post_receives(b, 20);
	for (int round = 0; round < 20; round++) {
		rig_clear(rig);
		wr.op = EPF_WR_WRITE_IMM;
		wr.id = 1;
		rig_post(rig, &wr);
		if (round & 1)
			b->ops->lane_fence(b, 0);
		rig_reconnect(rig);
		rig_run(rig, MS);
		assert_int_equal(rig->a.n + rig->b.n, 0);
		assert_int_equal(rig->b.mem[7], 0);
		/* The new lane works, and completions of the old one do not show. */
		wr.op = EPF_WR_WRITE;
		wr.id = 2;
		rig_clear(rig);
		rig_post(rig, &wr);
		rig_run(rig, MS);
		assert_int_equal(rig->a.n, 1);
		assert_true(rig_sent(rig, &rig->a, 2, &status));
		assert_int_equal(status, EPF_S_OK);
		assert_true(rig_matches(rig->b.mem, 5000, 1));
		memset(rig->b.mem, 0, 5000);
	}
}

/* Destroying lanes with traffic in flight loses no packets of the pool. */
static void test_no_leak(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;

	for (uint32_t round = 0; round < 60; round++) {
		for (uint32_t i = 0; i < 12; i++) {
			struct epf_wr wr = rig_write(rig, i, 0, 0, 9000);

			rig_post(rig, &wr);
			if (i == round % 16)
				rig_reap(&rig->b);
		}
		if (round % 3 == 1) {
			a->ops->lane_fence(a, 0);
			rig_reap(&rig->a);
		}
		if (round % 3 == 2) {
			b->ops->lane_destroy(b, 0);
			a->ops->lane_destroy(a, 0);
			rig_lanes(rig, 0, 0);
		} else {
			rig_reconnect(rig);
		}
		rig_reap(&rig->a);
		rig_clear(rig);
	}
	rig_expect_whole(rig);
}

static void test_link(void **state)
{
	struct rig *rig = *state;
	struct epf_nic_counters counters;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);
	int status;

	rig_fill(rig->a.mem, 3000, 6);
	rig_run(rig, MS);
	for (int end = 0; end < 2; end++) {
		struct epf_nic *nic = end ? rig->b.nic : rig->a.nic;

		rig_clear(rig);
		memset(rig->b.mem, 0, 3000);
		assert_int_equal(nic->ops->set_link(nic, 0, 0), 0);
		nic->ops->counters(nic, &counters);
		assert_int_equal(counters.link_up, 0);
		rig_post(rig, &wr);
		rig_run(rig, 100 * MS);
		assert_int_equal(rig->a.n, 0);
		assert_int_equal(rig->b.mem[5], 0);
		assert_int_equal(nic->ops->set_link(nic, 0, 1), 0);
		rig_run(rig, MS);
		assert_true(rig_sent(rig, &rig->a, 1, &status));
		assert_int_equal(status, EPF_S_OK);
		assert_true(rig_matches(rig->b.mem, 3000, 6));
	}
	for (int end = 0; end < 2; end++) {
		struct epf_nic *nic = end ? rig->b.nic : rig->a.nic;

		rig_clear(rig);
		nic->ops->set_link(nic, 0, 0);
		rig_post(rig, &wr);
		/* A little more: the peer is looked at first, whether it is run at all. */
		rig_run(rig, rig->opts->retry_timeout_ns / 16 * 17);
		assert_true(rig_sent(rig, &rig->a, 1, &status));
		assert_int_equal(status, EPF_S_RETRY_EXCEEDED);
		assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
		nic->ops->set_link(nic, 0, 1);
		rig_reconnect(rig);
		rig_run(rig, MS);
	}
}

/* A peer that never looks at its mail. */
static void test_silent_peer(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);
	int status;

	rig_post(rig, &wr);
	wr.id = 2;
	rig_post(rig, &wr);
	/* One that is not even run gets longer. */
	rig->now_ns += rig->opts->retry_timeout_ns;
	assert_int_equal(rig_reap(&rig->a), 0);
	rig->now_ns += rig->opts->stall_timeout_ns - rig->opts->retry_timeout_ns - 1;
	assert_int_equal(rig_reap(&rig->a), 0);
	rig->now_ns += 1;
	assert_int_equal(rig_reap(&rig->a), 2);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_RETRY_EXCEEDED);
	assert_true(rig_sent(rig, &rig->a, 2, &status));
	assert_int_equal(status, EPF_S_FLUSHED);
	/* It wakes up: what comes back is taken quietly. */
	rig_clear(rig);
	rig_run(rig, MS);
	assert_int_equal(rig->a.n, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_sent_after_write), CASE(test_next_event),   CASE(test_wakeup),
		CASE(test_rnr_two),          CASE(test_fence_target), CASE(test_fence_sender),
		CASE(test_epochs),           CASE(test_no_leak),      CASE(test_link),
		CASE(test_silent_peer),
	};
	size_t count;
	int failed = 0;

	kind = nic_rig_kinds(&count);
	for (; count; count--, kind++)
		if (kind->carries && !kind->device)
			failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
	return failed != 0;
}
