/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the data path without faults: see check.h. */
#include "fabric/base/clock.h"
#include "tools/prove/check.h"
#include "tools/prove/rig.h"

#include <string.h>
#include <unistd.h>

#define MS 1000000ull

static void writes(struct rig *rig)
{
	static const uint32_t sizes[] = { 1, 8, 63, 1023, 1024, 1025, 7168, 32768 };
	int status;

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct epf_wr wr = rig_write(rig, i, 100, 200, sizes[i]);

		rig_clear(rig);
		rig_set(&rig->b, 0, RIG_BYTES, 0xee);
		rig_put(&rig->a, 100, sizes[i], i);
		rig_post(rig, &wr);
		rig_run_until(rig, MS, &rig->a.n, 1);
		REQUIRE(rig_sent(rig, &rig->a, i, &status));
		REQUIRE_EQ(status, EPF_S_OK);
		REQUIRE_EQ(rig->b.n, 0);
		if (!rig->kind->carries)
			continue;
		REQUIRE(rig_has(&rig->b, 200, sizes[i], i));
		REQUIRE(rig_all(&rig->b, 0, 200, 0xee));
		REQUIRE(rig_all(&rig->b, 200 + sizes[i], RIG_BYTES - 200 - sizes[i], 0xee));
	}
	rig_needs_arrivals(rig);
}

static void reads(struct rig *rig)
{
	static const uint32_t sizes[] = { 1, 1024, 9000 };
	int status;

	for (unsigned i = 0; i < 3; i++) {
		struct epf_wr wr = rig_write(rig, i, 300, 77, sizes[i]);

		rig_clear(rig);
		rig_set(&rig->a, 0, RIG_BYTES, 0x11);
		rig_put(&rig->b, 77, sizes[i], i);
		wr.op = EPF_WR_READ;
		rig_post(rig, &wr);
		rig_run_until(rig, MS, &rig->a.n, 1);
		REQUIRE(rig_sent(rig, &rig->a, i, &status));
		REQUIRE_EQ(status, EPF_S_OK);
		REQUIRE_EQ(rig->b.n, 0);
		REQUIRE(rig_has(&rig->a, 300, sizes[i], i));
		REQUIRE(rig_all(&rig->a, 0, 300, 0x11));
		REQUIRE(rig_all(&rig->a, 300 + sizes[i], RIG_BYTES - 300 - sizes[i], 0x11));
	}
}

/* Payload on the stack, which is gone as soon as post() returns, up to the longest that the engine gives. */
static void inline_data(struct rig *rig)
{
	static const uint32_t sizes[] = { 1, 8, 64, EPF_NIC_MSG_BYTES };

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		unsigned char local[EPF_NIC_MSG_BYTES]; /* not registered */
		struct epf_wr wr = rig_write(rig, i, 0, 0, sizes[i]);

		rig_clear(rig);
		rig_set(&rig->b, 0, 2 * EPF_NIC_MSG_BYTES, 0);
		rig_fill(local, sizes[i], i + 3);
		wr.laddr = (uint64_t)(uintptr_t)local;
		wr.lkey = 0;
		wr.flags = EPF_WR_INLINE;
		rig_post(rig, &wr);
		memset(local, 0, sizeof(local));
		rig_run_until(rig, MS, &rig->a.n, 1);
		REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
		REQUIRE(rig_has(&rig->b, 0, sizes[i], i + 3));
		REQUIRE(rig_all(&rig->b, sizes[i], EPF_NIC_MSG_BYTES, 0));
	}
}

/* All bits clear, each bit alone, all set, and one with a pattern. */
enum { IMMS = 35 };

static uint32_t imm_of(unsigned i)
{
	return i == 0 ? 0 : i <= 32 ? 1u << (i - 1) : i == 33 ? UINT32_MAX : 0xdeadbeef;
}

static void immediates(struct rig *rig)
{
	unsigned char seen[IMMS] = { 0 };

	rig_receives(&rig->b, IMMS);
	for (unsigned i = 0; i < IMMS; i++) {
		struct epf_wr wr = rig_write(rig, i, 0, 0, i % 3 ? 8 : 0);

		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = imm_of(i);
		rig_post(rig, &wr);
	}
	rig_run_until(rig, MS, &rig->b.n, IMMS);
	REQUIRE_EQ(rig->b.n, IMMS);
	for (unsigned n = 0; n < IMMS; n++) {
		const struct epf_wc *wc = &rig->b.log[n];
		unsigned i = 0;

		REQUIRE_EQ(wc->op, EPF_WC_RECV_IMM);
		REQUIRE_EQ(wc->status, EPF_S_OK);
		REQUIRE_EQ(wc->lane, 0);
		while (i < IMMS && imm_of(i) != wc->imm)
			i++;
		REQUIRE(i < IMMS);
		REQUIRE_EQ(seen[i], 0);
		seen[i] = 1;
	}
}

static void lengths(struct rig *rig)
{
	static const uint32_t sizes[] = { 0, 1, 8, 5000, 32768 };
	struct epf_nic_counters before, after;

	rig_receives(&rig->b, 5);
	rig->b.nic->ops->counters(rig->b.nic, &before);
	for (uint32_t i = 0; i < 5; i++) {
		struct epf_wr wr = rig_write(rig, i, 0, 0, sizes[i]);

		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		rig_post(rig, &wr);
	}
	rig_run_until(rig, MS, &rig->b.n, 5);
	REQUIRE_EQ(rig->b.n, 5);
	for (unsigned n = 0; n < 5; n++) {
		const struct epf_wc *wc = &rig->b.log[n];

		REQUIRE(wc->imm < 5);
		if (!rig->kind->lengthless || wc->len)
			REQUIRE_EQ(wc->len, sizes[wc->imm]);
	}
	rig->b.nic->ops->counters(rig->b.nic, &after);
	REQUIRE_EQ(after.messages_rx - before.messages_rx, 5);
	if (!rig->kind->lengthless)
		REQUIRE_EQ(after.bytes_rx - before.bytes_rx, 37777);
	REQUIRE_EQ(after.rnr_events, before.rnr_events);
}

static void messages(struct rig *rig)
{
	static const uint32_t sizes[] = { 0, 1, 64, EPF_NIC_MSG_BYTES };

	for (unsigned i = 0; i < 4; i++) {
		struct epf_wr wr = rig_write(rig, i, 64, 0, sizes[i]);

		rig_clear(rig);
		rig_receives(&rig->b, 1);
		rig_put(&rig->a, 64, EPF_NIC_MSG_BYTES, i + 9);
		rig_message(rig, &wr);
		wr.raddr = wr.rkey = 0;
		rig_post(rig, &wr);
		rig_run_until(rig, MS, &rig->b.n, 1);
		REQUIRE_EQ(rig->b.n, 1);
		REQUIRE_EQ(rig->b.log[0].op, EPF_WC_RECV);
		REQUIRE_EQ(rig->b.log[0].len, sizes[i]);
		REQUIRE(rig_matches(rig->b.msg[0], sizes[i], i + 9));
		REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	}
}

/* More messages than one reap can hold: none is lost, all valid in the reap that gave them. */
static void many_messages(struct rig *rig)
{
	unsigned char seen[100] = { 0 };

	rig_receives(&rig->b, 100);
	for (uint32_t i = 0; i < 100; i++) {
		struct epf_wr wr = rig_write(rig, i, 0, 0, 4);

		wr.op = EPF_WR_SEND;
		wr.flags = EPF_WR_INLINE;
		wr.laddr = (uint64_t)(uintptr_t)&i;
		rig_post(rig, &wr);
	}
	rig_run_until(rig, MS, &rig->b.n, 100);
	REQUIRE_EQ(rig->b.n, 100);
	for (unsigned k = 0; k < 100; k++) {
		uint32_t value;

		memcpy(&value, rig->b.msg[k], 4);
		REQUIRE_EQ(rig->b.log[k].op, EPF_WC_RECV);
		REQUIRE_EQ(rig->b.log[k].len, 4);
		REQUIRE(value < 100);
		REQUIRE(!rig->kind->ordered || value == k);
		REQUIRE_EQ(seen[value], 0);
		seen[value] = 1;
	}
}

/* One turn of both ends without looking for quiet: for what has to be seen at the moment at which it happens. */
static void turn(struct rig *rig, struct rig_end *first, struct rig_end *second)
{
	if (rig_reap(first))
		return;
	rig_reap(second);
	if (rig->kind->real)
		usleep(20);
	else
		rig->now_ns += 1000;
}

enum { PIECE = 16384, PLACE = 2048, TURNS = 200000 };

/* When an immediate is reported, the bytes of its write are there, and, where there is order, those of the writes before it. */
static void data_first(struct rig *rig)
{
	for (unsigned round = 0; round < 16; round++) {
		struct epf_wr wr = rig_write(rig, 1, 0, 0, PIECE);

		rig_clear(rig);
		rig_set(&rig->b, 0, 4 * PIECE, 0);
		rig_put(&rig->a, 0, 4 * PIECE, round + 1);
		rig_receives(&rig->b, 1);
		rig_post(rig, &wr);
		wr = rig_write(rig, 2, 2 * PIECE, 2 * PIECE, PIECE);
		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = round;
		rig_post(rig, &wr);
		for (unsigned i = 0; i < TURNS && !rig->b.n; i++)
			turn(rig, &rig->b, &rig->a);
		REQUIRE_EQ(rig->b.n, 1);
		REQUIRE(rig_has(&rig->b, 2 * PIECE, PIECE, round + 1 + 2 * PIECE));
		if (rig->kind->ordered)
			REQUIRE(rig_has(&rig->b, 0, PIECE, round + 1));
		rig_run(rig, MS);
	}
}

/* When a write is reported as sent, its bytes have landed: nothing of this host or the other has to run any more. */
static void sent_is_landed(struct rig *rig)
{
	for (unsigned round = 0; round < 16; round++) {
		struct epf_wr wr = rig_write(rig, round, 0, 0, PIECE);
		uint64_t since;
		int status;

		rig_clear(rig);
		rig_set(&rig->b, 0, PIECE, 0);
		rig_put(&rig->a, 0, PIECE, round + 1);
		rig_post(rig, &wr);
		for (unsigned i = 0; i < TURNS && !rig->a.n; i++)
			turn(rig, &rig->a, &rig->b);
		REQUIRE(rig_sent(rig, &rig->a, round, &status));
		REQUIRE_EQ(status, EPF_S_OK);
		/* What the target's bus still carries may take a moment. */
		since = epf_now_ns();
		while (!rig_has(&rig->b, 0, PIECE, round + 1))
			REQUIRE(rig->kind->real && epf_now_ns() - since < MS);
	}
}

/* Immediates of writes of several sizes: all arrive once, and in order where the NIC has order. */
static void order(struct rig *rig)
{
	unsigned char seen[100] = { 0 };

	rig_receives(&rig->b, 100);
	for (uint32_t i = 0; i < 100; i++) {
		struct epf_wr wr = rig_write(rig, i, i * 8, 0, i % 7 ? 8 : 2048);

		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		rig_post(rig, &wr);
		if (i % 10 == 0)
			rig_reap(&rig->b);
	}
	rig_run_until(rig, MS, &rig->b.n, 100);
	REQUIRE_EQ(rig_count(&rig->b, EPF_WC_RECV_IMM, EPF_S_OK), 100);
	for (unsigned i = 0; i < 100; i++) {
		REQUIRE(rig->b.log[i].imm < 100);
		REQUIRE_EQ(seen[rig->b.log[i].imm], 0);
		seen[rig->b.log[i].imm] = 1;
		if (rig->kind->ordered)
			REQUIRE_EQ(rig->b.log[i].imm, i);
	}
}

/* The last of many writes to one place stays, where the NIC has order. */
static void last_stays(struct rig *rig)
{
	if (!rig->kind->ordered)
		rig_not_tried("the NIC promises no order, and the engine uses none");
	rig_put(&rig->a, 0, RIG_BYTES, 1);
	for (uint32_t i = 0; i < 100; i++) {
		struct epf_wr wr = rig_write(rig, i, (uint64_t)i * 1024, 0, i % 7 ? 64 : 1024);

		rig_post(rig, &wr);
	}
	rig_finish(rig);
	REQUIRE_EQ(rig_outstanding(&rig->a), 0);
	REQUIRE(rig_has(&rig->b, 0, 64, 1 + 99 * 1024));
}

/* Each work request is reported exactly once as what it was; success of an ordered lane stands for all before it. */
static void completions(struct rig *rig)
{
	unsigned char seen[100] = { 0 };
	uint32_t next = 0;

	rig_set(&rig->b, 0, 100 * PLACE, 0);
	rig_put(&rig->a, 0, 100 * PLACE, 1);
	for (uint32_t i = 0; i < 100; i++) {
		struct epf_wr wr = rig_write(rig, i, i * PLACE, i * PLACE, i % 7 ? 8 : PLACE);

		rig_post(rig, &wr);
	}
	rig_finish(rig);
	for (unsigned n = 0; n < rig->a.n; n++) {
		const struct epf_wc *wc = &rig->a.log[n];

		REQUIRE_EQ(wc->op, EPF_WC_SENT);
		REQUIRE_EQ(wc->status, EPF_S_OK);
		REQUIRE_EQ(wc->lane, 0);
		REQUIRE(wc->id < 100 && !seen[wc->id]);
		REQUIRE(!rig->kind->ordered || wc->id >= next);
		seen[wc->id] = 1;
		next = wc->id + 1;
	}
	for (uint32_t i = 0; i < 100; i++) {
		int status;

		REQUIRE(rig_sent(rig, &rig->a, i, &status));
		if (rig->kind->carries)
			REQUIRE(rig_has(&rig->b, i * PLACE, 8, 1 + i * PLACE));
	}
}

static void both_ways(struct rig *rig)
{
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 2000);

	rig_put(&rig->a, 0, 2000, 1);
	rig_put(&rig->b, 4000, 2000, 2);
	rig_post(rig, &wr);
	wr.laddr = rig->b.base + 4000;
	wr.lkey = rig->b.mr.lkey;
	wr.raddr = rig->a.mr.raddr + 4000;
	wr.rkey = rig->a.mr.rkey;
	REQUIRE_EQ(rig->b.nic->ops->post(rig->b.nic, 0, &wr, 1), 1);
	rig_run_until(rig, MS, &rig->b.n, 1);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	REQUIRE_EQ(rig_count(&rig->b, EPF_WC_SENT, EPF_S_OK), 1);
	REQUIRE(rig_has(&rig->b, 0, 2000, 1));
	REQUIRE(rig_has(&rig->a, 4000, 2000, 2));
}

static void loopback(struct rig *rig)
{
	struct epf_nic *a = rig->a.nic;
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct epf_wr wr = rig_write(rig, 5, 0, 0, 1500);
	struct epf_nic_caps caps;
	uint64_t t1, t2;
	int n = a->ops->address(a, addr, sizeof(addr));
	uint16_t la, lb;

	REQUIRE(n > 0);
	a->ops->describe(a, &caps);
	/* Both on one device of several: what keys a lane uses goes by its number. */
	la = (uint16_t)(caps.keys > 1 ? caps.keys : 1);
	lb = (uint16_t)(2 * la);
	REQUIRE_EQ(a->ops->lane_create(a, la, 16, &t1), 0);
	REQUIRE_EQ(a->ops->lane_create(a, lb, 16, &t2), 0);
	REQUIRE_EQ(a->ops->lane_connect(a, la, addr, (size_t)n, t2), 0);
	REQUIRE_EQ(a->ops->lane_connect(a, lb, addr, (size_t)n, t1), 0);
	rig_put(&rig->a, 0, 1500, 4);
	wr.raddr = rig->a.mr.raddr + 3000;
	wr.rkey = rig->a.mr.rkey;
	REQUIRE_EQ(a->ops->post(a, la, &wr, 1), 1);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	REQUIRE_EQ(rig->a.log[0].lane, la);
	rig_needs_arrivals(rig);
	REQUIRE(rig_has(&rig->a, 3000, 1500, 4));
}

static void many_lanes(struct rig *rig)
{
	struct epf_nic_caps caps;
	unsigned n = rig->lanes;

	rig->a.nic->ops->describe(rig->a.nic, &caps);
	for (uint16_t i = 1; i < n; i++)
		rig_lanes(rig, i, caps.keys > 1 ? i : (uint16_t)(n - i));
	rig_receives(&rig->b, n);
	for (uint32_t i = 0; i < n; i++) {
		struct epf_wr wr = rig_write(rig, 0, i * 8, i * 8, 8);

		if (caps.keys > 1) {
			wr.lkey = rig->a.mr.keys[i % caps.keys].lkey;
			wr.rkey = rig->b.mr.keys[i % caps.keys].rkey;
		}
		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		rig_put(&rig->a, i * 8, 8, i);
		/* A NIC's own queue may be smaller than this: make room now and then. */
		while (rig->a.nic->ops->post(rig->a.nic, (uint16_t)i, &wr, 1) == 0)
			rig_run(rig, 1000);
	}
	rig_finish(rig);
	REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), n);
	rig_needs_arrivals(rig);
	rig_run_until(rig, MS, &rig->b.n, n);
	REQUIRE_EQ(rig_count(&rig->b, EPF_WC_RECV_IMM, EPF_S_OK), n);
	for (unsigned i = 0; i < n; i++) {
		uint32_t imm = rig->b.log[i].imm;

		REQUIRE_EQ(rig->b.log[i].lane, !imm || caps.keys > 1 ? imm : n - imm);
		REQUIRE(rig_has(&rig->b, i * 8, 8, i));
	}
}

const struct check checks_data[] = {
	{ "writes", "Writes land whole, and change nothing beside them.",
	  "Tokens arrive damaged: use nic=tcp.", 0, writes },
	{ "reads", "Reads bring the bytes, and change nothing beside them.",
	  "EPF cannot read from peers: use nic=tcp.", CHECK_ARRIVALS, reads },
	{ "inline", "Inline payload is copied when it is posted, up to 128 bytes.",
	  "EPF cannot send control words: set verbs-inline=0, or use nic=tcp.", CHECK_ARRIVALS,
	  inline_data },
	{ "immediates", "Immediates of every value arrive, each once.",
	  "EPF loses or confuses notifications: set ofi-remote-data=no for ofi, or use nic=tcp.",
	  CHECK_ARRIVALS, immediates },
	{ "lengths", "An arrival reports its number of bytes, and counters count it.",
	  "Statistics of received bytes are wrong; data is not affected.", CHECK_ARRIVALS,
	  lengths },
	{ "messages", "Messages of 0 to 128 bytes arrive whole, with their length.",
	  "EPF cannot send control messages: use nic=tcp.", CHECK_ARRIVALS, messages },
	{ "many-messages", "More messages than one poll returns all arrive once.",
	  "EPF loses control messages: use nic=tcp.", CHECK_ARRIVALS, many_messages },
	{ "data-before-immediate",
	  "The bytes of a write are in memory when its immediate is reported.",
	  "Receivers may read tokens before they are there: use nic=tcp.", CHECK_ARRIVALS,
	  data_first },
	{ "sent-means-landed", "A completed write has landed in the target's memory.",
	  "EPF reuses buffers and reports completion too early: use nic=tcp.", CHECK_ARRIVALS,
	  sent_is_landed },
	{ "order",
	  "Notifications arrive once each, and in order if the NIC says that it is ordered.",
	  "EPF applies notifications in the wrong order: set verbs-order=unordered, or use nic=tcp.",
	  CHECK_ARRIVALS, order },
	{ "order-of-writes",
	  "Of several writes to one place the last one stays, if the NIC says that it is ordered.",
	  "EPF leaves old bytes in place of new ones: set verbs-order=unordered, or use nic=tcp.",
	  CHECK_ARRIVALS, last_stays },
	{ "completions", "Each work request completes once, with its status.",
	  "EPF loses track of its buffers: use nic=tcp.", 0, completions },
	{ "both-ways", "Both ends of a lane write at the same time.",
	  "EPF cannot use one lane for both directions: use nic=tcp.", CHECK_ARRIVALS, both_ways },
	{ "loopback", "A NIC reaches itself.",
	  "Ranks of one node cannot reach each other over this NIC: run one rank a node, or use nic=emu on one node.",
	  0, loopback },
	{ "lanes", "Many lanes work next to each other, and arrivals name their lane.",
	  "EPF cannot open the lanes of a larger job: set lanes-per-peer=1, or use nic=tcp.", 0,
	  many_lanes },
	{ 0 },
};
