/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of errors, fences, missing receives, lost peers and links, and of what works again afterwards: see check.h. */
#include "fabric/base/clock.h"
#include "tools/prove/check.h"
#include "tools/prove/failing.h"
#include "tools/prove/rig.h"

#include <string.h>
#include <unistd.h>

#define MS 1000000ull

enum { SILENT_MAX = 8, WRITES = 100, BYTES = 2000 };

int ask_again(struct rig *rig, unsigned *silent)
{
	if (!rig_silent(rig) || (*silent)++ == SILENT_MAX)
		return 0;
	if (rig_verdicts.note)
		rig_verdicts.note("nothing was reported of an error: tried again");
	rig_reconnect(rig);
	return 1;
}

/* Posts ten writes of which the fifth has a wrong key, and counts what is reported of them. */
static void flush_once(struct rig *rig, int local, unsigned *ok, unsigned *bad, unsigned *flushed)
{
	const struct nic_kind *kind = rig->kind;
	struct epf_wr wr[10];
	unsigned silent = 0;

	do {
		rig_clear(rig);
		rig_set(&rig->b, 0, RIG_BYTES, 0);
		for (uint32_t i = 0; i < 10; i++) {
			rig_put(&rig->a, i * 64, 64, i);
			wr[i] = rig_write(rig, i, i * 64, i * 64, 64);
		}
		if (local)
			wr[4].lkey = 1;
		else
			wr[4].rkey = 1;
		REQUIRE_IN(rig->a.nic->ops->post(rig->a.nic, 0, wr, 10), 5, 10);
		rig_finish(rig);
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
			REQUIRE(rig_has(&rig->b, i * 64, 64, i));
		if (!kind->ordered)
			continue;
		if (i < 4)
			REQUIRE_EQ(status, EPF_S_OK);
		if (i > 4) {
			REQUIRE_EQ(status, EPF_S_FLUSHED);
			REQUIRE(rig_all(&rig->b, i * 64, 2, 0));
		}
	}
	rig_reconnect(rig);
}

/* An error in the middle: on an ordered lane all before it are done, all after it flushed. */
static void flush_after_error(struct rig *rig)
{
	unsigned ok = 0, bad = 0, flushed = 0;
	int first = rig->kind->refusal == NIC_REFUSAL_SILENT;

	for (int local = first; local < 2; local++)
		flush_once(rig, local, &ok, &bad, &flushed);
	REQUIRE_EQ(bad, 2 - first);
	REQUIRE(!rig->kind->ordered || (ok == 8 && flushed >= 5));
}

/* The failure of one lane leaves the others as they are. */
static void isolation(struct rig *rig)
{
	struct epf_wr wr = rig_write(rig, 9, 0, 0, 64);
	struct epf_nic_caps caps;
	uint16_t lane;
	int status;

	rig->a.nic->ops->describe(rig->a.nic, &caps);
	lane = (uint16_t)(caps.keys > 1 ? caps.keys : 1);
	rig_lanes(rig, lane, lane);
	rig->a.nic->ops->lane_fence(rig->a.nic, 0);
	rig->b.nic->ops->lane_fence(rig->b.nic, 0);
	rig_run(rig, MS);
	rig_clear(rig);
	rig_put(&rig->a, 0, 64, 9);
	REQUIRE_EQ(rig->a.nic->ops->post(rig->a.nic, lane, &wr, 1), 1);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE_EQ(rig->a.n, 1);
	REQUIRE_EQ(rig->a.log[0].lane, lane);
	REQUIRE_EQ(rig->a.log[0].status, EPF_S_OK);
	REQUIRE(rig_has(&rig->b, 0, 64, 9));
	rig_reconnect(rig);
	rig_clear(rig);
	wr = rig_write(rig, 10, 0, 4096, 64);
	rig_post(rig, &wr);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE(rig_sent(rig, &rig->a, 10, &status));
	REQUIRE_EQ(status, EPF_S_OK);
	REQUIRE(rig_has(&rig->b, 4096, 64, 9));
}

static void needs_receives(const struct rig *rig)
{
	if (rig->kind->unsolicited)
		rig_not_tried("arrivals need no receives with this NIC");
}

static void missing_receives(struct rig *rig)
{
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 2100);
	struct epf_nic_counters counters;
	int status;

	needs_receives(rig);
	rig_put(&rig->a, 0, 2100, 1);
	wr.op = EPF_WR_WRITE_IMM;
	rig_post(rig, &wr);
	wr.id = 2;
	rig_message(rig, &wr);
	wr.len = 16;
	rig_post(rig, &wr);
	rig_run(rig, 10 * MS);
	REQUIRE_EQ(rig->b.n, 0);
	REQUIRE_EQ(rig->a.n, 0);
	rig->b.nic->ops->counters(rig->b.nic, &counters);
	/* A device counts them for all its users, if at all. */
	REQUIRE(rig->kind->device || (counters.rnr_events >= 1 && counters.rnr_events <= 2));
	for (unsigned i = 1; i <= 2; i++) {
		rig->b.nic->ops->post_receives(rig->b.nic, 1);
		rig_run_until(rig, MS, &rig->b.n, i);
		REQUIRE_EQ(rig->b.n, i);
	}
	rig_run(rig, MS);
	REQUIRE(rig_has(&rig->b, 0, 2100, 1));
	for (uint32_t id = 1; id <= 2; id++) {
		REQUIRE(rig_sent(rig, &rig->a, id, &status));
		REQUIRE_EQ(status, EPF_S_OK);
	}
	REQUIRE_EQ(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_READY);
}

static void no_receives(struct rig *rig)
{
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);
	int status;

	needs_receives(rig);
	if (!rig->rnr_timeout_ns)
		rig_not_tried("this NIC waits without end for a receive: lower verbs-rnr-retries");
	wr.op = EPF_WR_WRITE_IMM;
	rig_post(rig, &wr);
	wr.id = 2;
	rig_post(rig, &wr);
	rig_run_until(rig, rig->rnr_timeout_ns + MS, &rig->a.n, 2);
	REQUIRE_EQ(rig->b.n, 0);
	REQUIRE(rig_sent(rig, &rig->a, 1, &status));
	if (rig->kind->ordered || !rig->kind->device)
		REQUIRE_EQ(status, EPF_S_RNR_EXCEEDED);
	REQUIRE(rig_sent(rig, &rig->a, 2, &status));
	REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_RNR_EXCEEDED), 1);
	REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, EPF_S_FLUSHED), 1);
	REQUIRE_EQ(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
	/* What was refused does not come back with a receive. */
	rig_reconnect(rig);
	rig->b.nic->ops->post_receives(rig->b.nic, 4);
	rig_run(rig, MS);
	REQUIRE_EQ(rig->b.n, 0);
}

/* WRITES writes with immediate i, each to a separate place; fewer where a NIC's own queue is smaller. */
static void post_stream(struct rig *rig)
{
	uint32_t i = 0;
	int n = 1;

	rig_put(&rig->a, 0, (size_t)WRITES * BYTES, 1);
	for (; i < WRITES && n == 1; i += n == 1) {
		struct epf_wr wr = rig_write(rig, i, i * BYTES, i * BYTES, BYTES);

		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		n = rig->a.nic->ops->post(rig->a.nic, 0, &wr, 1);
	}
	REQUIRE(i >= WRITES / 4);
}

static void reap_until(struct rig *rig, unsigned arrivals)
{
	for (unsigned i = 0; i < 20000 && rig_count(&rig->b, EPF_WC_RECV_IMM, -1) < arrivals; i++) {
		if (rig_reap(&rig->b))
			continue;
		rig_reap(&rig->a); /* the sender's end of a socket moves on by it */
		if (rig->kind->real)
			usleep(50);
		else
			rig->now_ns += 1000;
	}
}

static void drain(struct rig *rig, struct rig_end *end)
{
	uint64_t deadline = epf_now_ns() + 20000 * MS;

	while (!end->nic->ops->lane_drained(end->nic, 0)) {
		if (epf_now_ns() > deadline)
			rig_broken(__FILE__, __LINE__, "a fenced lane does not drain");
		rig_reap(&rig->a);
		rig_reap(&rig->b);
		if (rig->kind->real)
			usleep(100);
		else
			rig->now_ns += 100000;
	}
}

/* A copy of b's memory, which may be on another host. */
static unsigned char stream[2][WRITES * BYTES];

/* Each arrival's bytes are there; where there is order, arrivals are 0, 1, 2 ... Returns how many. Leaves b's memory in stream[copy]. */
static uint32_t arrivals(struct rig *rig, int copy)
{
	uint32_t n = 0;

	rig_get(&rig->b, 0, stream[copy], sizeof(stream[copy]));
	for (unsigned i = 0; i < rig->b.n; i++) {
		uint32_t imm = rig->b.log[i].imm;

		if (rig->b.log[i].op != EPF_WC_RECV_IMM)
			continue;
		REQUIRE(imm < WRITES);
		REQUIRE(!rig->kind->ordered || imm == n);
		REQUIRE(rig_matches(stream[copy] + (size_t)imm * BYTES, BYTES,
				    1 + (uint64_t)imm * BYTES));
		n++;
	}
	return n;
}

/* The target fences at some point of a stream: when it is drained nothing lands any more, and the sender hears of its end. */
static void fence_at_target(struct rig *rig)
{
	if (rig->kind->eager)
		rig_not_tried(
			"writes of this NIC belong to no connection: a region that is withdrawn stops them (keys)");
	for (unsigned round = 0; round < 4; round++) {
		uint32_t n;

		rig_clear(rig);
		rig_set(&rig->b, 0, RIG_BYTES, 0);
		rig_receives(&rig->b, WRITES);
		post_stream(rig);
		reap_until(rig, round * 8);
		rig->b.nic->ops->lane_fence(rig->b.nic, 0);
		REQUIRE_EQ(rig->b.nic->ops->lane_link(rig->b.nic, 0), EPF_LANE_ERROR);
		drain(rig, &rig->b);
		n = arrivals(rig, 0);
		rig_run(rig, rig->lost_ns); /* until the sender has given up */
		REQUIRE_EQ(arrivals(rig, 1), n);
		REQUIRE(memcmp(stream[0], stream[1], sizeof(stream[0])) == 0);
		/* What was reported as landed has landed. */
		REQUIRE(!rig->kind->ordered || rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK) <= n);
		REQUIRE(rig_count(&rig->a, EPF_WC_SENT, -1) >
				rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK) ||
			n == WRITES);
		rig_reconnect(rig);
	}
}

static void fence_at_sender(struct rig *rig)
{
	for (unsigned round = 0; round < 4; round++) {
		uint32_t ok = 0, other = 0, posted;

		rig_clear(rig);
		rig_set(&rig->b, 0, RIG_BYTES, 0);
		rig_receives(&rig->b, WRITES);
		post_stream(rig);
		posted = rig->kind->real ? rig_outstanding(&rig->a) : WRITES;
		reap_until(rig, rig->kind->real ? round * 8 : 0);
		rig->a.nic->ops->lane_fence(rig->a.nic, 0);
		REQUIRE_EQ(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
		drain(rig, &rig->a);
		for (uint32_t i = 0; i < posted; i++) {
			int status = -1;

			if (!rig_sent(rig, &rig->a, i, &status))
				REQUIRE(!rig->kind->real);
			else if (status == EPF_S_OK)
				ok++;
			else
				other++;
		}
		REQUIRE(!rig->kind->real || ok + other == posted);
		REQUIRE_EQ(rig_count(&rig->a, EPF_WC_LANE_DOWN, -1), 0);
		rig_run(rig, 50 * MS);
		REQUIRE(ok <= arrivals(rig, 0));
		rig_reconnect(rig);
	}
}

/* Lanes destroyed under traffic and made again: what is new works, and nothing of the old shows on it. */
static void made_again(struct rig *rig)
{
	int status;

	for (unsigned round = 0; round < 10; round++) {
		struct epf_wr wr = rig_write(rig, 1000 + round, 0, 0, 64);

		rig_receives(&rig->b, WRITES);
		post_stream(rig);
		for (unsigned i = 0; i < round; i++)
			rig_reap(&rig->b);
		rig_clear(rig);
		rig_reconnect(rig);
		if (rig->kind->eager) {
			/* What belongs to no connection still arrives. */
			rig_run(rig, MS);
			rig->b.n = 0;
		}
		rig_set(&rig->b, 0, 64, 0);
		rig_put(&rig->a, 0, 64, round);
		rig_post(rig, &wr);
		rig_run_until(rig, MS, &rig->a.n, 1);
		REQUIRE(rig_sent(rig, &rig->a, 1000 + round, &status));
		REQUIRE_EQ(status, EPF_S_OK);
		REQUIRE_EQ(rig_count(&rig->a, EPF_WC_SENT, -1), 1);
		REQUIRE(rig->kind->eager || rig->b.n == 0);
		REQUIRE(rig_has(&rig->b, 0, 64, round));
	}
}

static void lost_peer(struct rig *rig)
{
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);
	int status;

	if (rig->kind->eager)
		rig_not_tried("writes of this NIC belong to no connection");
	rig->b.nic->ops->lane_destroy(rig->b.nic, 0);
	/* It may have heard already, and take nothing. */
	if (rig->a.nic->ops->post(rig->a.nic, 0, &wr, 1) == 1) {
		for (unsigned i = 0; i < 3 && !rig->a.n; i++)
			rig_run(rig, rig->lost_ns);
		REQUIRE(rig_sent(rig, &rig->a, 1, &status));
		REQUIRE_NE(status, EPF_S_OK);
	}
	REQUIRE_EQ(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
	rig_reconnect(rig);
	wr = rig_write(rig, 2, 0, 64, 64);
	rig_clear(rig);
	rig_put(&rig->a, 0, 64, 3);
	rig_post(rig, &wr);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE(rig_sent(rig, &rig->a, 2, &status));
	REQUIRE_EQ(status, EPF_S_OK);
	REQUIRE(rig_has(&rig->b, 64, 64, 3));
}

static void link_cut(struct rig *rig)
{
	struct epf_nic *a = rig->a.nic;
	struct epf_nic_counters counters;
	struct epf_nic_caps caps;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);
	int status;

	a->ops->describe(a, &caps);
	if (a->ops->set_link(a, 0, 0))
		rig_not_tried(
			"this NIC cannot cut a link for its own lanes alone; others may use the port");
	a->ops->counters(a, &counters);
	REQUIRE_EQ(counters.link_up, caps.links - 1);
	rig_set(&rig->b, 0, 3000, 0);
	rig_put(&rig->a, 0, 3000, 6);
	rig_post(rig, &wr);
	rig_run(rig, 100 * MS);
	REQUIRE_EQ(rig->a.n, 0);
	REQUIRE(rig_all(&rig->b, 0, 3000, 0));
	REQUIRE_EQ(a->ops->set_link(a, 0, 1), 0);
	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE(rig_sent(rig, &rig->a, 1, &status));
	REQUIRE_EQ(status, EPF_S_OK);
	REQUIRE(rig_has(&rig->b, 0, 3000, 6));
}

const struct check checks_failures[] = {
	{ "flush-after-error",
	  "After an error all that was posted before it is done, and all after it is flushed.",
	  "EPF cannot tell what to send again after an error: use nic=tcp.", CHECK_ARRIVALS,
	  flush_after_error },
	{ "isolation",
	  "A failed lane leaves other lanes as they are, and works again once it is made anew.",
	  "One failure ends the whole job: use nic=tcp.", CHECK_ARRIVALS, isolation },
	{ "missing-receives", "Arrivals without a posted receive wait for one.",
	  "EPF loses notifications under load: use nic=tcp.", CHECK_ARRIVALS | CHECK_PATIENT,
	  missing_receives },
	{ "no-receives",
	  "A sender whose peer posts no receives is told in time, and what was refused never arrives.",
	  "EPF waits without end for a peer that hangs: use nic=tcp.", CHECK_ARRIVALS,
	  no_receives },
	{ "fence-at-target", "Nothing lands through a lane after its target fenced and drained it.",
	  "Late writes can damage memory after a failure: use nic=tcp.", CHECK_ARRIVALS,
	  fence_at_target },
	{ "fence-at-sender",
	  "A fenced lane gives back every work request, and says of none that it has landed when it has not.",
	  "EPF cannot replay after a failure: use nic=tcp.", CHECK_ARRIVALS, fence_at_sender },
	{ "made-again", "Nothing of a destroyed lane shows on the one that takes its place.",
	  "EPF cannot recover lanes: use nic=tcp.", CHECK_ARRIVALS, made_again },
	{ "lost-peer", "Work for a peer that is gone fails, and a new lane works.",
	  "EPF does not notice dead peers: use nic=tcp.", CHECK_ARRIVALS, lost_peer },
	{ "link-cut", "What is under way while a link is cut waits and arrives when it is back.",
	  "A short interruption of a link ends the job: use nic=tcp.", CHECK_ARRIVALS, link_cut },
	{ 0 },
};
