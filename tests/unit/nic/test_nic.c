/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance suite of epf_nic_ops, part 1: the data path without faults. Runs every case over every kind
 * of NIC in nic_rig_kinds(); cases that need arrivals are skipped for kinds that carry none. Part 2 is
 * test_nic_fail.c (failures and fences), part 3 test_nic_limits.c (set-up and limits).
 */
#include "tests/unit/nic/nic_rig.h"

#include "queues/epf_wakeup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void needs_arrivals(void)
{
	if (!kind->carries)
		skip();
}

/* Cases that look into the middle of a transfer, which a device ends by itself. */
static void needs_steps(void)
{
	if (kind->device)
		skip();
}

/* Cases that count reaps, which the copies of GPU memory take more of. */
static void needs_host_memory(void)
{
	if (kind->gpu)
		skip();
}

static void test_write(void **state)
{
	static const uint32_t sizes[] = { 1, 8, 63, 1023, 1024, 1025, 7168, 32768 };
	struct rig *rig = *state;
	int status;

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct epf_wr wr = rig_write(rig, i, 100, 200, sizes[i]);

		rig_clear(rig);
		memset(rig->b.mem, 0xee, RIG_BYTES);
		rig_fill(rig->a.mem + 100, sizes[i], i);
		rig_post(rig, &wr);
		rig_run(rig, MS);
		assert_true(rig_sent(rig, &rig->a, i, &status));
		assert_int_equal(status, EPF_S_OK);
		assert_int_equal(rig->b.n, 0);
		if (!kind->carries)
			continue;
		assert_true(rig_matches(rig->b.mem + 200, sizes[i], i));
		assert_int_equal(rig->b.mem[199], 0xee);
		assert_int_equal(rig->b.mem[200 + sizes[i]], 0xee);
	}
}

static void test_imm(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 7, 0, 0, 5000);
	struct epf_nic_counters before, after;

	needs_arrivals();
	rig->b.nic->ops->post_receives(rig->b.nic, 2);
	rig->b.nic->ops->counters(rig->b.nic, &before);
	rig_fill(rig->a.mem, 5000, 1);
	wr.op = EPF_WR_WRITE_IMM;
	wr.imm = 0xdeadbeef;
	rig_post(rig, &wr);
	wr.len = 0;
	wr.imm = 5;
	wr.id = 8;
	rig_post(rig, &wr);
	rig_run(rig, MS);
	assert_int_equal(rig->b.n, 2);
	for (unsigned i = 0; i < 2; i++) {
		const struct epf_wc *wc = &rig->b.log[i];

		assert_int_equal(wc->op, EPF_WC_RECV_IMM);
		assert_int_equal(wc->lane, 0);
		assert_int_equal(wc->status, EPF_S_OK);
		assert_true((wc->imm == 0xdeadbeef && (wc->len == 5000 || kind->lengthless)) ||
			    (wc->imm == 5 && wc->len == 0));
	}
	assert_int_not_equal(rig->b.log[0].imm, rig->b.log[1].imm);
	assert_true(rig_matches(rig->b.mem, 5000, 1));
	rig->b.nic->ops->counters(rig->b.nic, &after);
	assert_int_equal(after.messages_rx - before.messages_rx, 2);
	if (!kind->lengthless)
		assert_int_equal(after.bytes_rx - before.bytes_rx, 5000);
	assert_int_equal(after.rnr_events, before.rnr_events);
}

static void test_send(void **state)
{
	static const uint32_t sizes[] = { 0, 1, 64, EPF_NIC_MSG_BYTES };
	struct rig *rig = *state;

	needs_arrivals();
	for (unsigned i = 0; i < 4; i++) {
		struct epf_wr wr = rig_write(rig, i, 64, 0, sizes[i]);

		rig_clear(rig);
		rig->b.nic->ops->post_receives(rig->b.nic, 1);
		wr.op = EPF_WR_SEND;
		rig_message(rig, &wr);
		wr.raddr = wr.rkey = 0;
		rig_fill(rig->a.mem + 64, sizes[i], i + 9);
		rig_post(rig, &wr);
		rig_run(rig, MS);
		assert_int_equal(rig->b.n, 1);
		assert_int_equal(rig->b.log[0].op, EPF_WC_RECV);
		assert_int_equal(rig->b.log[0].len, sizes[i]);
		assert_true(rig_matches(rig->b.msg[0], sizes[i], i + 9));
		assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	}
}

/* More messages than one reap can hold: none is lost, all valid in the reap that gave them. */
static void test_send_many(void **state)
{
	struct rig *rig = *state;
	struct epf_wc wc[512];
	unsigned seen = 0;

	needs_arrivals();
	rig->b.nic->ops->post_receives(rig->b.nic, 100);
	for (uint32_t i = 0; i < 100; i++) {
		struct epf_wr wr = rig_write(rig, i, 0, 0, 4);

		wr.op = EPF_WR_SEND;
		rig_message(rig, &wr);
		wr.flags = EPF_WR_INLINE;
		wr.laddr = (uint64_t)(uintptr_t)&i;
		rig_post(rig, &wr);
	}
	for (int round = 0; round < (kind->real ? 20000 : 50) && seen < 100; round++) {
		int n = rig->b.nic->ops->reap(rig->b.nic, wc, 512);

		if (kind->real) {
			usleep(100);
			rig_reap(&rig->a); /* the sender's end of a socket moves on by it */
		}
		rig->now_ns += 1000;

		for (int k = 0; k < n; k++) {
			uint32_t value;

			memcpy(&value, wc[k].msg, 4);
			assert_int_equal(wc[k].len, 4);
			assert_true(value < 100);
			assert_true(!kind->ordered || value == seen);
			seen++;
		}
	}
	assert_int_equal(seen, 100);
}

static void test_read(void **state)
{
	static const uint32_t sizes[] = { 1, 1024, 9000 };
	struct rig *rig = *state;
	int status;

	needs_arrivals();
	for (unsigned i = 0; i < 3; i++) {
		struct epf_wr wr = rig_write(rig, i, 300, 77, sizes[i]);

		rig_clear(rig);
		memset(rig->a.mem, 0x11, RIG_BYTES);
		rig_fill(rig->b.mem + 77, sizes[i], i);
		wr.op = EPF_WR_READ;
		rig_post(rig, &wr);
		rig_run(rig, MS);
		assert_true(rig_sent(rig, &rig->a, i, &status));
		assert_int_equal(status, EPF_S_OK);
		assert_int_equal(rig->b.n, 0);
		assert_true(rig_matches(rig->a.mem + 300, sizes[i], i));
		assert_int_equal(rig->a.mem[299], 0x11);
		assert_int_equal(rig->a.mem[300 + sizes[i]], 0x11);
	}
}

static void test_inline(void **state)
{
	struct rig *rig = *state;
	unsigned char local[64]; /* not registered */
	struct epf_wr wr = rig_write(rig, 1, 0, 0, sizeof(local));

	needs_arrivals();
	rig_fill(local, sizeof(local), 3);
	wr.laddr = (uint64_t)(uintptr_t)local;
	wr.lkey = 0;
	wr.flags = EPF_WR_INLINE;
	rig_post(rig, &wr);
	memset(local, 0, sizeof(local));
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	assert_true(rig_matches(rig->b.mem, sizeof(local), 3));
}

static void test_sent_after_write(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);

	needs_steps();
	needs_arrivals();
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

/* Both directions, several lanes' worth of immediates: all arrive once; in order where the NIC has order. */
static void test_order(void **state)
{
	struct rig *rig = *state;
	unsigned char seen[100] = { 0 };
	uint32_t next_sent = 0;

	needs_arrivals();
	rig->b.nic->ops->post_receives(rig->b.nic, 100);
	for (uint32_t i = 0; i < 100; i++) {
		struct epf_wr wr = rig_write(rig, i, i * 8, 0, i % 7 ? 8 : 2048);

		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		rig_post(rig, &wr);
		if (i % 10 == 0)
			rig_reap(&rig->b);
	}
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->b, EPF_WC_RECV_IMM, EPF_S_OK), 100);
	for (unsigned i = 0; i < 100; i++) {
		assert_true(rig->b.log[i].imm < 100);
		assert_false(seen[rig->b.log[i].imm]++);
		if (kind->ordered)
			assert_int_equal(rig->b.log[i].imm, i);
	}
	for (unsigned i = 0; i < rig->a.n; i++) {
		assert_true(!kind->ordered || rig->a.log[i].id >= next_sent);
		next_sent = rig->a.log[i].id + 1;
	}
	for (uint32_t i = 0; i < 100; i++) {
		int status = -1;

		assert_true(rig_sent(rig, &rig->a, i, &status));
		assert_int_equal(status, EPF_S_OK);
	}
}

static void test_depth(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic;
	struct epf_wr wr[200];
	unsigned posted = 0;
	int status;

	for (uint32_t i = 0; i < 200; i++)
		wr[i] = rig_write(rig, i, 0, i * 8, 8);
	for (int round = 0; posted < 200; round++) {
		int n = a->ops->post(a, 0, wr + posted, 200 - posted);

		assert_true(n >= 0 && n <= 128);
		assert_true(round || n == 128);
		posted += (unsigned)n;
		rig_run(rig, 1000);
	}
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 199, &status));
	assert_int_equal(status, EPF_S_OK);
	assert_int_equal(a->ops->post(a, 0, wr, 0), 0);
}

/* Long messages until the NIC's own queue is full: fewer are taken, and all go through in the end. */
static void test_pool(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic;
	uint32_t posted = 0;
	int status;

	rig_fill(rig->a.mem, RIG_BYTES, 0);
	while (posted < 100) {
		struct epf_wr wr = rig_write(rig, posted, posted * 1000, posted * 1000, 16000);
		int n = a->ops->post(a, 0, &wr, 1);

		assert_true(n == 0 || n == 1);
		posted += (uint32_t)n;
		if (n == 0)
			rig_run(rig, 1000);
	}
	rig_run(rig, MS);
	for (uint32_t i = 0; i < 100; i++) {
		assert_true(rig_sent(rig, &rig->a, i, &status));
		assert_int_equal(status, EPF_S_OK);
	}
	if (kind->carries)
		assert_true(rig_matches(rig->b.mem, 99 * 1000 + 16000, 0));
}

static void test_both_ways(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 2000);

	needs_arrivals();
	rig_fill(rig->a.mem, 2000, 1);
	rig_fill(rig->b.mem + 4000, 2000, 2);
	rig_post(rig, &wr);
	wr.laddr = rig->b.base + 4000;
	wr.lkey = rig->b.mr.lkey;
	wr.raddr = rig->a.mr.raddr + 4000;
	wr.rkey = rig->a.mr.rkey;
	assert_int_equal(rig->b.nic->ops->post(rig->b.nic, 0, &wr, 1), 1);
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	assert_int_equal(rig_count(&rig->b, EPF_WC_SENT, EPF_S_OK), 1);
	assert_true(rig_matches(rig->b.mem, 2000, 1));
	assert_true(rig_matches(rig->a.mem + 4000, 2000, 2));
}

static void test_loopback(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic;
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct epf_wr wr = rig_write(rig, 5, 0, 0, 1500);
	uint64_t t1, t2;
	int n = a->ops->address(a, addr, sizeof(addr));

	assert_int_equal(a->ops->lane_create(a, 1, 16, &t1), 0);
	assert_int_equal(a->ops->lane_create(a, 2, 16, &t2), 0);
	assert_int_equal(a->ops->lane_connect(a, 1, addr, (size_t)n, t2), 0);
	assert_int_equal(a->ops->lane_connect(a, 2, addr, (size_t)n, t1), 0);
	rig_fill(rig->a.mem, 1500, 4);
	wr.raddr = rig->a.mr.raddr + 3000;
	wr.rkey = rig->a.mr.rkey;
	assert_int_equal(a->ops->post(a, 1, &wr, 1), 1);
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	assert_int_equal(rig->a.log[0].lane, 1);
	if (kind->carries)
		assert_true(rig_matches(rig->a.mem + 3000, 1500, 4));
}

static void test_many_lanes(void **state)
{
	struct rig *rig = *state;

	for (uint16_t i = 1; i < 300; i++)
		rig_lanes(rig, i, (uint16_t)(300 - i));
	rig->b.nic->ops->post_receives(rig->b.nic, 300);
	for (uint32_t i = 0; i < 300; i++) {
		struct epf_wr wr = rig_write(rig, 0, i * 8, i * 8, 8);

		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		rig_fill(rig->a.mem + i * 8, 8, i);
		/* The pool is smaller than 300 packets: make room now and then. */
		while (rig->a.nic->ops->post(rig->a.nic, (uint16_t)i, &wr, 1) == 0)
			rig_run(rig, 1000);
	}
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 300);
	if (!kind->carries)
		return;
	assert_int_equal(rig_count(&rig->b, EPF_WC_RECV_IMM, EPF_S_OK), 300);
	for (unsigned i = 0; i < 300; i++) {
		uint32_t imm = rig->b.log[i].imm;

		assert_int_equal(rig->b.log[i].lane, imm ? 300 - imm : 0);
		assert_true(rig_matches(rig->b.mem + i * 8, 8, i));
	}
}

static void test_next_event(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 8);
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;

	needs_steps();
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

	needs_steps();
	needs_arrivals();
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

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_write),
		CASE(test_imm),
		CASE(test_send),
		CASE(test_send_many),
		CASE(test_read),
		CASE(test_inline),
		CASE(test_sent_after_write),
		CASE(test_order),
		CASE(test_depth),
		CASE(test_pool),
		CASE(test_both_ways),
		CASE(test_loopback),
		CASE(test_many_lanes),
		CASE(test_next_event),
		CASE(test_wakeup),
	};
	size_t count;
	int failed = 0;

	kind = nic_rig_kinds(&count);
	for (; count; count--, kind++)
		failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
	return failed != 0;
}
