/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of what a NIC refuses: bounds, rights, keys: see check.h. */
#include "tools/prove/check.h"
#include "tools/prove/failing.h"
#include "tools/prove/rig.h"

#define MS 1000000ull

enum { LEN = 6000 };

/* What the target refuses without a word: nothing happens there, and nothing is heard of it here. */
static void expect_silence(struct rig *rig, const struct epf_wr *wr)
{
	rig_clear(rig);
	rig_set(&rig->b, 0, RIG_BYTES, 0x55);
	rig_post(rig, wr);
	rig_run(rig, MS);
	REQUIRE(rig_all(&rig->b, 0, RIG_BYTES, 0x55));
	REQUIRE_EQ(rig->a.n + rig->b.n, 0);
	rig_reconnect(rig);
}

/* Posts wr, expects this outcome and the lane in error, b untouched, and connects again. */
static void expect_failure(struct rig *rig, const struct epf_wr *wr, int want)
{
	unsigned silent = 0;
	int status = -1;

	if (want == EPF_S_REMOTE_ACCESS && rig->kind->refusal == NIC_REFUSAL_SILENT) {
		expect_silence(rig, wr);
		return;
	}
	if (want == EPF_S_REMOTE_ACCESS && rig->kind->refusal == NIC_REFUSAL_LOST)
		want = EPF_S_RETRY_EXCEEDED;
	do {
		rig_clear(rig);
		rig_set(&rig->b, 0, RIG_BYTES, 0x55);
		rig_post(rig, wr);
		rig_run_until(rig, MS, &rig->a.n, 1);
	} while (ask_again(rig, &silent));
	REQUIRE(rig_sent(rig, &rig->a, wr->id, &status));
	REQUIRE_EQ(status, want);
	REQUIRE_EQ(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
	REQUIRE(rig->a.nic->ops->post(rig->a.nic, 0, wr, 1) < 0);
	REQUIRE(rig_all(&rig->b, 0, RIG_BYTES, 0x55));
	REQUIRE_EQ(rig->b.n, 0);
	rig_reconnect(rig);
}

static void bounds(struct rig *rig)
{
	struct epf_wr wr = rig_write(rig, 3, 0, RIG_BYTES - LEN, LEN);
	int status;

	/* The last valid place, then the first that is not. */
	rig_post(rig, &wr);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE(rig_sent(rig, &rig->a, 3, &status));
	REQUIRE_EQ(status, EPF_S_OK);
	wr.raddr++;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	wr.raddr = rig->b.mr.raddr - 1;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	wr.raddr = UINT64_MAX - 10;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
}

static void rights(struct rig *rig)
{
	struct epf_nic *b = rig->b.nic;
	struct epf_wr wr = rig_write(rig, 3, 0, 0, LEN);
	struct epf_nic_mr mr;

	REQUIRE_EQ(b->ops->region_register(b, rig_at(&rig->b, 0), 8192, EPF_MR_REMOTE_READ, &mr),
		   0);
	wr.raddr = mr.raddr;
	wr.rkey = mr.rkey;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	b->ops->region_deregister(b, &mr);
	REQUIRE_EQ(b->ops->region_register(b, rig_at(&rig->b, 0), 8192, EPF_MR_REMOTE_WRITE, &mr),
		   0);
	wr.raddr = mr.raddr;
	wr.rkey = mr.rkey;
	wr.op = EPF_WR_READ;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	b->ops->region_deregister(b, &mr);
}

static void keys(struct rig *rig)
{
	struct epf_nic *b = rig->b.nic;
	struct epf_wr wr = rig_write(rig, 3, 0, 0, LEN);
	struct epf_nic_mr mr;

	wr.rkey ^= 1u << 20;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	wr.rkey = 0;
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	REQUIRE_EQ(b->ops->region_register(b, rig_at(&rig->b, 0), 8192, EPF_MR_REMOTE_WRITE, &mr),
		   0);
	wr.raddr = mr.raddr;
	wr.rkey = mr.rkey;
	b->ops->region_deregister(b, &mr);
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
	/* A key of a place that is used again is a new key. */
	REQUIRE_EQ(b->ops->region_register(b, rig_at(&rig->b, 0), 8192, EPF_MR_REMOTE_WRITE, &mr),
		   0);
	REQUIRE_NE(mr.rkey, wr.rkey);
	expect_failure(rig, &wr, EPF_S_REMOTE_ACCESS);
}

static void own_side(struct rig *rig)
{
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
	if (rig->kind->real || rig->kind->instant)
		return;
	/* The region goes while the bytes of a READ are on their way. */
	rig_clear(rig);
	wr.flags = 0;
	rig_set(&rig->a, 0, RIG_BYTES, 0x66);
	rig_post(rig, &wr);
	rig->a.nic->ops->region_deregister(rig->a.nic, &rig->a.mr);
	rig_run(rig, MS);
	REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_LOCAL), 1);
	REQUIRE(rig_all(&rig->a, 0, RIG_BYTES, 0x66));
}

const struct check checks_refusals[] = {
	{ "bounds",
	  "The target refuses writes beyond a region, writes nothing, and the sender is told.",
	  "A faulty rank can overwrite memory of others: use nic=tcp.", CHECK_ARRIVALS, bounds },
	{ "rights", "The target refuses reads and writes that a region does not permit.",
	  "A faulty rank can reach memory that it may not: use nic=tcp.", CHECK_ARRIVALS, rights },
	{ "keys", "Wrong keys and keys of withdrawn regions are refused.",
	  "Peers can write into memory that was given back: use nic=tcp.", CHECK_ARRIVALS, keys },
	{ "own-side", "Work requests with a wrong local key, range or length fail at the sender.",
	  "EPF cannot rely on the NIC to check its own requests: use nic=tcp.", CHECK_ARRIVALS,
	  own_side },
	{ 0 },
};
