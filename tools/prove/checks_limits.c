/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of what a NIC says of itself, of its limits, and of lanes and regions: see check.h. */
#include "queues/epf_wakeup.h"
#include "tools/prove/check.h"
#include "tools/prove/rig.h"

#include <errno.h>
#include <unistd.h>

#define MS 1000000ull

static void capabilities(struct rig *rig)
{
	struct epf_nic_counters counters;
	struct epf_nic_caps caps;

	rig->a.nic->ops->describe(rig->a.nic, &caps);
	REQUIRE(caps.name);
	REQUIRE_EQ(caps.ordered, rig->kind->ordered);
	REQUIRE_EQ(caps.carries_events, rig->kind->carries);
	REQUIRE(caps.max_lanes >= 300);
	REQUIRE(caps.lane_depth >= RIG_DEPTH);
	REQUIRE(caps.max_msg_bytes >= 4096);
	REQUIRE(caps.receives > 0);
	REQUIRE_IN(caps.links, 1, 64);
	REQUIRE(rig->a.nic->ops->set_link(rig->a.nic, caps.links, 0) < 0);
	rig->a.nic->ops->counters(rig->a.nic, &counters);
	REQUIRE_EQ(counters.link_up, caps.links);
}

/* A watch over peers that live reports nothing and harms nothing. */
static void watch(struct rig *rig)
{
	struct epf_wr wr = rig_write(rig, 3, 0, 0, 100);
	int status;

	for (int i = 0; i < 3; i++) {
		rig->a.nic->ops->watch(rig->a.nic);
		rig->b.nic->ops->watch(rig->b.nic);
		rig_run(rig, MS);
	}
	REQUIRE_EQ(rig->a.n + rig->b.n, 0);
	rig_post(rig, &wr);
	rig->a.nic->ops->watch(rig->a.nic);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE(rig_sent(rig, &rig->a, 3, &status));
	REQUIRE_EQ(status, EPF_S_OK);
	REQUIRE_EQ(rig->a.n, 1);
}

/* A sleeper is woken by an arrival, without anybody looking at its completions. */
static void wakeup(struct rig *rig)
{
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	struct epf_wakeup *wakeup = b->ops->wakeup(b);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);
	uint32_t rung;

	if (rig->b.far)
		rig_not_tried("the sleeper is on another host: run it on one host");
	if (!wakeup || rig->kind->next_event || rig->kind->gpu)
		rig_not_tried("this NIC wakes nobody");
	wr.op = EPF_WR_WRITE_IMM;
	for (unsigned round = 0; round < 5; round++) {
		rig_clear(rig);
		rig_receives(&rig->b, 1);
		rung = wakeup->rung;
		epf_wakeup_arm(wakeup);
		if (b->ops->arm(b))
			rig_not_tried("this NIC asks its sleepers to look by themselves");
		rig_reap(&rig->b);
		rig_post(rig, &wr);
		for (unsigned i = 0; i < 50000 && EPF_LOAD_ACQUIRE(&wakeup->rung) == rung; i++) {
			a->ops->wake_peers(a);
			rig_reap(&rig->a);
			if (rig->kind->real)
				usleep(100);
		}
		REQUIRE(EPF_LOAD_ACQUIRE(&wakeup->rung) != rung);
		rig_run_until(rig, MS, &rig->b.n, 1);
		REQUIRE_EQ(rig->b.n, 1);
		rig_run(rig, MS);
	}
}

/*
 * A lane may be posted to before the other end is connected: the work waits for it. Where nothing is connected, a write lands
 * and what it says waits (test_efa_lane.c).
 */
static void connect_late(struct rig *rig)
{
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	unsigned char addr_a[EPF_NIC_ADDR_BYTES], addr_b[EPF_NIC_ADDR_BYTES];
	int na = a->ops->address(a, addr_a, sizeof(addr_a));
	int nb = b->ops->address(b, addr_b, sizeof(addr_b));
	struct epf_wr wr = rig_write(rig, 4, 0, 0, 3000);
	struct epf_nic_caps caps;
	uint64_t ta, tb;
	uint16_t lane;

	a->ops->describe(a, &caps);
	lane = (uint16_t)(caps.keys > 1 ? caps.keys : 5);
	rig_put(&rig->a, 0, 3000, 2);
	rig_set(&rig->b, 0, 3000, 0);
	REQUIRE_EQ(a->ops->lane_create(a, lane, 16, &ta), 0);
	REQUIRE_EQ(b->ops->lane_create(b, lane, 16, &tb), 0);
	REQUIRE_EQ(a->ops->post(a, lane, &wr, 1), -ENOTCONN);
	REQUIRE_EQ(a->ops->lane_connect(a, lane, addr_b, (size_t)nb, tb), 0);
	REQUIRE_EQ(a->ops->post(a, lane, &wr, 1), 1);
	rig_run(rig, MS);
	if (!rig->kind->eager) {
		REQUIRE_EQ(rig->a.n, 0);
		REQUIRE(rig_all(&rig->b, 0, 3000, 0));
	}
	REQUIRE_EQ(b->ops->lane_connect(b, lane, addr_a, (size_t)na, ta), 0);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	REQUIRE(rig_has(&rig->b, 0, 3000, 2));
}

static void arguments(struct rig *rig)
{
	struct epf_nic *a = rig->a.nic;
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct epf_nic_caps caps;
	struct epf_nic_mr mr;
	uint64_t token = 99;
	uint16_t lane, other;
	size_t damaged;
	int n = a->ops->address(a, addr, sizeof(addr));

	a->ops->describe(a, &caps);
	/* Of the first device, where there are several. */
	lane = (uint16_t)(caps.keys > 1 ? caps.keys : 1);
	other = (uint16_t)(2 * lane);
	/* A list of addresses is damaged as a whole, for there another part of it means another device. */
	damaged = caps.keys > 1 ? 0 : (size_t)n / 4;
	REQUIRE(a->ops->address(a, addr, 3) < 0);
	REQUIRE(a->ops->lane_create(a, (uint16_t)caps.max_lanes, 8, &token) < 0);
	REQUIRE(a->ops->lane_create(a, 0, 8, &token) < 0);
	REQUIRE(a->ops->lane_create(a, lane, 0, &token) < 0);
	REQUIRE(a->ops->lane_create(a, lane, caps.lane_depth + 1, &token) < 0);
	REQUIRE_EQ(token, 99); /* outputs only on success */
	REQUIRE_EQ(a->ops->lane_create(a, lane, 8, &token), 0);
	REQUIRE(a->ops->lane_connect(a, other, addr, (size_t)n, token) < 0);
	REQUIRE(a->ops->lane_connect(a, lane, addr, (size_t)n - 1, token) < 0);
	REQUIRE(a->ops->lane_connect(a, lane, addr, (size_t)n, 0) < 0);
	REQUIRE(a->ops->lane_connect(a, lane, addr, (size_t)n, (uint64_t)1 << 20) < 0);
	addr[damaged] ^= 1;
	REQUIRE(a->ops->lane_connect(a, lane, addr, (size_t)n, token) < 0);
	addr[damaged] ^= 1;
	REQUIRE_EQ(a->ops->lane_connect(a, lane, addr, (size_t)n, token), 0);
	REQUIRE(a->ops->lane_connect(a, lane, addr, (size_t)n, token) < 0);
	a->ops->lane_destroy(a, 7); /* never created: nothing happens */
	a->ops->lane_fence(a, 7);
	REQUIRE(a->ops->region_register(a, NULL, 8, 0, &mr) < 0);
	REQUIRE(a->ops->region_register(a, addr, 0, 0, &mr) < 0);
	REQUIRE(a->ops->region_register(a, addr, UINT64_MAX, 0, &mr) < 0);
	REQUIRE(a->ops->region_register(a, addr, 8, 0x80, &mr) < 0);
	a->ops->close(NULL);
}

static void outstanding(struct rig *rig)
{
	struct epf_nic *a = rig->a.nic;
	struct epf_wr wr[200];
	unsigned posted = 0;
	int status;

	for (uint32_t i = 0; i < 200; i++)
		wr[i] = rig_write(rig, i, 0, i * 8, 8);
	for (int round = 0; posted < 200 && round < 10000; round++) {
		int n = a->ops->post(a, 0, wr + posted, 200 - posted);

		REQUIRE_IN(n, 0, RIG_DEPTH);
		REQUIRE(round || n == RIG_DEPTH);
		posted += (unsigned)n;
		rig_run(rig, 1000);
	}
	REQUIRE_EQ(posted, 200);
	rig_finish(rig);
	REQUIRE(rig_sent(rig, &rig->a, 199, &status));
	REQUIRE_EQ(status, EPF_S_OK);
	REQUIRE_EQ(a->ops->post(a, 0, wr, 0), 0);
}

/* Long messages until the NIC's own queue is full: fewer are taken, and all go through in the end. */
static void long_messages(struct rig *rig)
{
	struct epf_nic *a = rig->a.nic;
	uint32_t posted = 0;
	int status;

	rig_put(&rig->a, 0, RIG_BYTES, 0);
	for (unsigned round = 0; posted < 100 && round < 10000; round++) {
		struct epf_wr wr = rig_write(rig, posted, (uint64_t)posted * 1000,
					     (uint64_t)posted * 1000, 16000);
		int n = a->ops->post(a, 0, &wr, 1);

		REQUIRE_IN(n, 0, 1);
		posted += (uint32_t)n;
		if (n == 0)
			rig_run(rig, 1000);
	}
	REQUIRE_EQ(posted, 100);
	rig_finish(rig);
	for (uint32_t i = 0; i < 100; i++) {
		REQUIRE(rig_sent(rig, &rig->a, i, &status));
		REQUIRE_EQ(status, EPF_S_OK);
	}
	rig_needs_arrivals(rig);
	REQUIRE(rig_has(&rig->b, 0, 99 * 1000 + 16000, 0));
}

/* The longest write that the NIC and the memory here allow. */
static void message_size(struct rig *rig)
{
	struct epf_nic_caps caps;
	struct epf_wr wr;
	uint32_t len;
	int status;

	rig->a.nic->ops->describe(rig->a.nic, &caps);
	len = caps.max_msg_bytes < RIG_BYTES ? caps.max_msg_bytes : RIG_BYTES;
	wr = rig_write(rig, 6, 0, 0, len);
	rig_put(&rig->a, 0, len, 77);
	rig_post(rig, &wr);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE(rig_sent(rig, &rig->a, 6, &status));
	REQUIRE_EQ(status, EPF_S_OK);
	rig_needs_arrivals(rig);
	REQUIRE(rig_has(&rig->b, 0, len, 77));
}

/* Full lanes together exceed what a completion queue holds, and nobody looks at it meanwhile: the NIC takes fewer, and loses none. */
static void completion_queue(struct rig *rig)
{
	enum { LANES = 16 };

	struct epf_nic *a = rig->a.nic;
	unsigned posted = 0, sent;
	struct epf_nic_caps caps;
	struct epf_wr wr;

	a->ops->describe(a, &caps);
	for (uint16_t lane = 1; lane < LANES; lane++)
		rig_lanes(rig, lane, lane);
	for (uint32_t i = 0; i < RIG_DEPTH; i++)
		for (uint16_t lane = 0; lane < LANES; lane++) {
			int n;

			wr = rig_write(rig, i, 0, lane * 8u, 8);
			if (caps.keys > 1) {
				wr.lkey = rig->a.mr.keys[lane % caps.keys].lkey;
				wr.rkey = rig->b.mr.keys[lane % caps.keys].rkey;
			}
			n = a->ops->post(a, lane, &wr, 1);
			REQUIRE_IN(n, 0, 1);
			posted += (unsigned)n;
		}
	REQUIRE(posted >= RIG_DEPTH);
	usleep(rig->kind->real ? 100000 : 0); /* the device goes on alone */
	rig_finish(rig);
	REQUIRE_EQ(rig_outstanding(&rig->a), 0);
	sent = rig_count(&rig->a, EPF_WC_SENT, -1);
	REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), sent);
	REQUIRE(rig->kind->ordered || sent == posted);
	REQUIRE(sent && sent <= posted);
}

/* Many regions: the table grows, keys stay apart. */
static void regions(struct rig *rig)
{
	static const int refusals[] = {
		[NIC_REFUSAL_NAMED] = EPF_S_REMOTE_ACCESS, [NIC_REFUSAL_LOST] = EPF_S_RETRY_EXCEEDED
	};
	struct epf_nic *b = rig->b.nic;
	struct epf_nic_mr mr[300];

	for (unsigned i = 0; i < rig->lanes; i++)
		REQUIRE_EQ(b->ops->region_register(b, rig_at(&rig->b, i * 64), 64,
						   EPF_MR_REMOTE_WRITE, &mr[i]),
			   0);
	/* Each refusal there costs a connection. */
	for (unsigned i = 0; i < rig->lanes; i += rig->kind->refusal == NIC_REFUSAL_LOST ? 49 : 7) {
		struct epf_wr wr = rig_write(rig, i, i, i * 64, 64);

		rig_clear(rig);
		rig_put(&rig->a, i, 64, i);
		wr.raddr = mr[i].raddr;
		wr.rkey = mr[i].rkey;
		rig_post(rig, &wr);
		rig_run_until(rig, MS, &rig->a.n, 1);
		REQUIRE(rig_has(&rig->b, i * 64, 64, i));
		/* Where regions are addressed from 0, that place exists in the other one too. */
		if (mr[i].raddr == mr[(i + 1) % rig->lanes].raddr)
			wr.raddr += 64;
		wr.rkey = mr[(i + 1) % rig->lanes].rkey;
		if (rig->kind->refusal == NIC_REFUSAL_SILENT)
			continue;
		rig_clear(rig);
		rig_post(rig, &wr);
		rig_run_until(rig, MS, &rig->a.n, 1);
		REQUIRE(rig->a.n);
		REQUIRE_EQ(rig->a.log[rig->a.n - 1].status, refusals[rig->kind->refusal]);
		rig_reconnect(rig);
	}
	for (unsigned i = 0; i < rig->lanes; i++)
		b->ops->region_deregister(b, &mr[i]);
}

const struct check checks_limits[] = {
	{ "capabilities", "The NIC offers what a job needs, and says so of itself.",
	  "EPF cannot use this NIC: use nic=tcp.", 0, capabilities },
	{ "watch", "Looking after peers that live disturbs nobody.",
	  "EPF takes peers for dead that live: use nic=tcp.", 0, watch },
	{ "wakeup", "An arrival wakes a sleeping engine.",
	  "Idle engines react late: set idle=spin, or use nic=tcp.", CHECK_ARRIVALS, wakeup },
	{ "connect-late", "Work that is posted before the other end is connected waits for it.",
	  "Jobs may fail while they start: use nic=tcp.", CHECK_ARRIVALS | CHECK_PATIENT,
	  connect_late },
	{ "arguments", "Wrong arguments are refused, and harm nothing.",
	  "EPF cannot rely on the NIC's errors: use nic=tcp.", 0, arguments },
	{ "outstanding", "A lane holds 128 work requests, and refuses more until some complete.",
	  "EPF overruns the NIC's queues: set lane-depth lower, or use nic=tcp.", 0, outstanding },
	{ "long-messages", "Many long writes in flight all arrive whole.",
	  "EPF cannot keep several transfers in flight: use nic=tcp.", 0, long_messages },
	{ "message-size", "A write of the longest size arrives whole.",
	  "EPF cannot send long transfers: use nic=tcp.", 0, message_size },
	{ "completion-queue", "More outstanding work than completion entries loses no completion.",
	  "EPF loses completions under load: set verbs-completions higher, or use nic=tcp.",
	  CHECK_FEW, completion_queue },
	{ "regions", "Many regions are registered, and each key opens its own region only.",
	  "EPF cannot keep the memory of ranks apart: use nic=tcp.", CHECK_ARRIVALS, regions },
	{ 0 },
};
