/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance suite of epf_nic_ops, part 2: wrong keys, missing receives, errors, fences, epochs, link
 * down, silent peers. Runs over the kinds of nic_rig_kinds() that carry arrivals.
 */
#include "tests/unit/nic/nic_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
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

/*
 * Cases that look into the middle of a transfer, which a device ends by itself. test_verbs_device.c and test_efa_lane.c have
 * what can be said of devices there.
 */
static void needs_steps(void)
{
	if (kind->device)
		skip();
}

static void needs_receives(void)
{
	if (kind->unsolicited)
		skip();
}

/* A device that reports nothing of an error is asked again, a few times, and it is said. */
enum { SILENT_MAX = 8 };

static int ask_again(struct rig *rig, unsigned *silent)
{
	if (!rig_silent(rig) || (*silent)++ == SILENT_MAX)
		return 0;
	print_message("%s: nothing was reported of an error: tried again\n", kind->name);
	rig_reconnect(rig);
	return 1;
}

/* What the target refuses without a word: nothing happens there, and nothing is heard of it here. */
static void expect_silence(struct rig *rig, const struct epf_wr *wr)
{
	rig_clear(rig);
	memset(rig->b.mem, 0x55, RIG_BYTES);
	rig_post(rig, wr);
	rig_run(rig, MS);
	for (unsigned i = 0; i < RIG_BYTES; i++)
		assert_int_equal(rig->b.mem[i], 0x55);
	assert_int_equal(rig->a.n + rig->b.n, 0);
	rig_reconnect(rig);
}

/* Posts wr, expects this outcome and the lane in error, b untouched, and connects again. */
static void expect_failure(struct rig *rig, const struct epf_wr *wr, int want)
{
	unsigned silent = 0;
	int status = -1;

	if (want == EPF_S_REMOTE_ACCESS && kind->refusal == NIC_REFUSAL_SILENT) {
		expect_silence(rig, wr);
		return;
	}
	if (want == EPF_S_REMOTE_ACCESS && kind->refusal == NIC_REFUSAL_LOST)
		want = EPF_S_RETRY_EXCEEDED;
	do {
		rig_clear(rig);
		memset(rig->b.mem, 0x55, RIG_BYTES);
		rig_post(rig, wr);
		rig_run_until(rig, MS, &rig->a.n, 1);
	} while (ask_again(rig, &silent));
	assert_true(rig_sent(rig, &rig->a, wr->id, &status));
	assert_int_equal(status, want);
	assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
	assert_int_equal(rig->a.nic->ops->post(rig->a.nic, 0, wr, 1), -ENOTCONN);
	for (unsigned i = 0; i < RIG_BYTES; i++)
		assert_int_equal(rig->b.mem[i], 0x55);
	assert_int_equal(rig->b.n, 0);
	rig_reconnect(rig);
}

static void test_remote_access(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *b = rig->b.nic;
	struct epf_wr good = rig_write(rig, 3, 0, 0, 6000), wr;
	struct epf_nic_mr mr, read_only;

	wr = good;
	wr.rkey ^= 1u << 20;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	wr = good;
	wr.rkey = 0;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	wr = good;
	wr.raddr = rig->b.mr.raddr + RIG_BYTES - 5999;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	wr = good;
	wr.raddr = rig->b.mr.raddr - 1;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	wr = good;
	wr.raddr = UINT64_MAX - 10;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	assert_int_equal(
		b->ops->region_register(b, rig->b.mem, 8192, EPF_MR_REMOTE_READ, &read_only), 0);
	wr = good;
	wr.rkey = read_only.rkey;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	assert_int_equal(b->ops->region_register(b, rig->b.mem, 8192, EPF_MR_REMOTE_WRITE, &mr), 0);
	wr = good;
	wr.rkey = mr.rkey;
	wr.op = EPF_WR_READ;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	b->ops->region_deregister(b, &mr);
	wr.op = EPF_WR_WRITE;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	b->ops->region_deregister(b, &read_only);
	/* A key of a place that is used again is a new key. */
	assert_int_equal(b->ops->region_register(b, rig->b.mem, 8192, EPF_MR_REMOTE_WRITE, &mr), 0);
	assert_int_not_equal(mr.rkey, wr.rkey);
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
}

static void test_local(void **state)
{
	struct rig *rig = *state;
	struct epf_wr good = rig_write(rig, 3, 0, 0, 3000), wr;
	struct epf_nic_caps caps;

	rig->a.nic->ops->describe(rig->a.nic, &caps);
	wr = good;
	wr.lkey = 0x12345678;
	expect_failure(rig, &wr, EPF_S_LOCAL);
	wr = good;
	wr.laddr += RIG_BYTES - 2999;
	expect_failure(rig, &wr, EPF_S_LOCAL);
	wr = good;
	wr.op = 0;
	expect_failure(rig, &wr, EPF_S_LOCAL);
	wr.op = 77;
	expect_failure(rig, &wr, EPF_S_LOCAL);
	wr = good;
	wr.op = EPF_WR_SEND;
	rig_message(rig, &wr);
	wr.len = EPF_NIC_MSG_BYTES + 1;
	expect_failure(rig, &wr, EPF_S_LOCAL);
	wr = good;
	wr.len = caps.max_msg_bytes + 1;
	expect_failure(rig, &wr, EPF_S_LOCAL);
	wr = good;
	wr.op = EPF_WR_READ;
	wr.flags = EPF_WR_INLINE;
	expect_failure(rig, &wr, EPF_S_LOCAL);
	if (kind->real || kind->instant)
		return;
	/* The region goes while the bytes of a READ are on their way. */
	rig_clear(rig);
	wr.flags = 0;
	memset(rig->a.mem, 0x66, RIG_BYTES);
	rig_post(rig, &wr);
	rig->a.nic->ops->region_deregister(rig->a.nic, &rig->a.mr);
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_LOCAL), 1);
	for (unsigned i = 0; i < RIG_BYTES; i++)
		assert_int_equal(rig->a.mem[i], 0x66);
}

/* Posts ten writes of which the fifth has a wrong key, and counts what is reported of them. */
static void flush_once(struct rig *rig, int local, unsigned *ok, unsigned *bad, unsigned *flushed)
{
	struct epf_wr wr[10];
	unsigned silent = 0;

	do {
		rig_clear(rig);
		memset(rig->b.mem, 0, RIG_BYTES);
		for (uint32_t i = 0; i < 10; i++) {
			rig_fill(rig->a.mem + i * 64, 64, i);
			wr[i] = rig_write(rig, i, i * 64, i * 64, 64);
		}
		if (local)
			wr[4].lkey = 1;
		else
			wr[4].rkey = 1;
		assert_in_range(rig->a.nic->ops->post(rig->a.nic, 0, wr, 10), 5, 10);
		rig_run(rig, MS);
		for (int i = 0; i < 10 && rig_silent(rig); i++)
			rig_run(rig, MS);
	} while (ask_again(rig, &silent));
	for (uint32_t i = 0; i < 10; i++) {
		int status = -1;

		if (!rig_sent(rig, &rig->a, i, &status))
			continue; /* not taken any more */
		*ok += status == EPF_S_OK;
		*bad += status == EPF_S_LOCAL || status == EPF_S_REMOTE_ACCESS ||
			(kind->refusal == NIC_REFUSAL_LOST && status == EPF_S_RETRY_EXCEEDED);
		*flushed += status == EPF_S_FLUSHED;
		if (status == EPF_S_OK)
			assert_true(rig_matches(rig->b.mem + i * 64, 64, i));
		if (!kind->ordered)
			continue;
		if (i < 4)
			assert_int_equal(status, EPF_S_OK);
		if (i > 4) {
			assert_int_equal(status, EPF_S_FLUSHED);
			assert_int_equal(rig->b.mem[i * 64 + 1] | rig->b.mem[i * 64], 0);
		}
	}
	rig_reconnect(rig);
}

/* An error in the middle: on an ordered lane all before it are done, all after it flushed. */
static void test_flush_after_error(void **state)
{
	unsigned ok = 0, bad = 0, flushed = 0;

	int first = kind->refusal == NIC_REFUSAL_SILENT;

	for (int local = first; local < 2; local++)
		flush_once(*state, local, &ok, &bad, &flushed);
	assert_int_equal(bad, 2 - first);
	assert_true(!kind->ordered || (ok == 8 && flushed >= 5));
}

static void test_rnr(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 2100);
	struct epf_nic_counters counters;
	int status;

	needs_receives();
	rig_fill(rig->a.mem, 2100, 1);
	wr.op = EPF_WR_WRITE_IMM;
	rig_post(rig, &wr);
	wr.id = 2;
	wr.op = EPF_WR_SEND;
	rig_message(rig, &wr);
	wr.len = 16;
	rig_post(rig, &wr);
	rig_run(rig, 10 * MS);
	assert_int_equal(rig->b.n, 0);
	assert_int_equal(rig->a.n, 0);
	rig->b.nic->ops->counters(rig->b.nic, &counters);
	/* A device counts them for all its users, if at all. */
	assert_true(kind->device || (counters.rnr_events >= 1 && counters.rnr_events <= 2));
	for (unsigned i = 1; i <= 2; i++) {
		rig->b.nic->ops->post_receives(rig->b.nic, 1);
		rig_run_until(rig, MS, &rig->b.n, i);
		assert_int_equal(rig->b.n, i);
	}
	rig_run(rig, MS);
	assert_true(rig_matches(rig->b.mem, 2100, 1));
	for (uint32_t id = 1; id <= 2; id++) {
		assert_true(rig_sent(rig, &rig->a, id, &status));
		assert_int_equal(status, EPF_S_OK);
	}
	assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_READY);
}

/* Two lanes wait and one receive comes: each wait is counted once. */
static void test_rnr_two(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);
	struct epf_nic_counters counters;

	if (kind->real)
		skip();
	needs_receives();
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

static void test_rnr_exceeded(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);
	int status;

	needs_receives();
	wr.op = EPF_WR_WRITE_IMM;
	rig_post(rig, &wr);
	wr.id = 2;
	rig_post(rig, &wr);
	rig_run_until(rig, rig->opts.rnr_timeout_ns + MS, &rig->a.n, 2);
	assert_int_equal(rig->b.n, 0);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	if (kind->ordered || !kind->device)
		assert_int_equal(status, EPF_S_RNR_EXCEEDED);
	assert_true(rig_sent(rig, &rig->a, 2, &status));
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_RNR_EXCEEDED), 1);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_FLUSHED), 1);
	assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
	/* What was refused does not come back with a receive. */
	rig_reconnect(rig);
	rig->b.nic->ops->post_receives(rig->b.nic, 4);
	rig_run(rig, MS);
	assert_int_equal(rig->b.n, 0);
}

static void test_fence_target(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);

	needs_steps();
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

	needs_steps();
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

	needs_steps();
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

	needs_steps();
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
		rig_run(rig, rig->opts.retry_timeout_ns / 16 * 17);
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

	needs_steps();
	rig_post(rig, &wr);
	wr.id = 2;
	rig_post(rig, &wr);
	/* One that is not even run gets longer. */
	rig->now_ns += rig->opts.retry_timeout_ns;
	assert_int_equal(rig_reap(&rig->a), 0);
	rig->now_ns += rig->opts.stall_timeout_ns - rig->opts.retry_timeout_ns - 1;
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
		CASE(test_remote_access), CASE(test_local),        CASE(test_flush_after_error),
		CASE(test_rnr),           CASE(test_rnr_two),      CASE(test_rnr_exceeded),
		CASE(test_fence_target),  CASE(test_fence_sender), CASE(test_epochs),
		CASE(test_no_leak),       CASE(test_link),         CASE(test_silent_peer),
	};
	size_t count;
	int failed = 0;

	kind = nic_rig_kinds(&count);
	for (; count; count--, kind++)
		if (kind->carries)
			failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
	return failed != 0;
}
