/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds and rights of the messages between engines about withdrawals, returning and lost ranks, recovery and leaving, each with the last valid
 * and the first invalid value; and what a withdrawal waits for. A peer engine runs on another machine and may be broken or hostile: what it may
 * not do is counted as refused and changes nothing.
 */
#include "tests/unit/engine/arrivals_kit.h"

#include "fabric/base/err.h"
#include "fabric/engine/losses.h"
#include "fabric/engine/recovery.h"

#include <malloc.h>

static void withdrawals_at_their_edges(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_REVOKE, .rank = 2 };
	struct null_rig rig;

	open_rig(&rig);
	m.signal = EPF_MAX_REGIONS; /* behind the last that can be */
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, REGIONS);
	m.signal = REGIONS - 1;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].regions[REGIONS - 1].state, EPF_REGION_REVOKED);
	assert_int_equal(rig.core->peers[2].regions[REGIONS - 1].bytes, 0);
	m.rank = 0; /* our own: not that node's to withdraw */
	m.signal = 0;
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[0].regions[0].bytes, NULL_BYTES);
	m.rank = NULL_WORLD;
	assert_true(send(&rig, m));
	rig.core->world = 3; /* rank 3 is behind the last, and looks like one of that node */
	m.rank = 3;
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[3].regions[0].bytes, NULL_BYTES);
	rig.core->world = NULL_WORLD;
	null_rig_close(&rig);
}

/* This engine is a node of the job, too, and answers itself. */
static void acknowledge_own(struct null_rig *rig, uint32_t rank, uint32_t region)
{
	struct epf_msg m = {
		.kind = EPF_MSG_REVOKED, .rank = rank, .signal = region, .handle = HANDLE
	};
	struct epf_wc wc = { .op = EPF_WC_RECV, .lane = 0, .len = sizeof(m), .msg = &m };

	m.count = rig->core->nodes[0].rx[HANDLE].base;
	epf_arrive(rig->core, &wc);
}

/* A peer answers for its own withdrawal only: for another region or rank nothing is over. */
static void answers_are_for_what_was_asked(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_REVOKED, .rank = 0, .signal = 2 };
	struct null_rig rig;
	uint32_t missing;

	open_rig(&rig);
	assert_int_equal(epf_core_revoke_begin(rig.core, 0, 1), 0);
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	acknowledge_own(&rig, 0, 1);
	send(&rig, m);
	m.rank = 1;
	m.signal = 1;
	send(&rig, m);
	assert_int_equal(epf_core_revoke_done(rig.core, 0, 1, &missing), 0);
	assert_int_equal(missing, 2); /* the first rank of the peer engine */
	m.rank = 0;
	send(&rig, m);
	assert_int_equal(epf_core_revoke_done(rig.core, 0, 1, &missing), 1);
	null_rig_close(&rig);
}

static void push_put(struct null_rig *rig, uint32_t region, uint32_t to_region)
{
	const struct epf_op op = { .op = EPF_OP_PUT,
				   .rank = 2,
				   .local_region = (uint16_t)region,
				   .remote_region = (uint16_t)to_region,
				   .length = 16,
				   .add = 1 };

	epf_ring_push(&rig->rank[0].ring, epf_op_pack_narrow(&op));
	for (unsigned i = 0; i < 4; i++)
		epf_core_step(rig->core);
}

/* A region stays registered while commands read from it, wherever their numbers stand, although every peer has answered. */
static void a_source_is_withdrawn_when_it_is_read(void **state)
{
	static const uint64_t starts[] = { 0, UINT64_C(0) - 1, (UINT64_C(1) << 32) - 1 };

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct epf_msg m = { .kind = EPF_MSG_REVOKED, .rank = 0, .signal = 1 };
		struct null_rig rig;
		uint32_t missing;

		memset(&rig, 0, sizeof(rig));
		rig.ring_start = starts[i];
		null_rig_open(&rig, false);
		null_rig_hold(&rig, true);
		push_put(&rig, 1, 0);
		assert_int_equal(epf_core_revoke_begin(rig.core, 0, 1), 0);
		for (unsigned n = 0; n < 8; n++)
			epf_core_step(rig.core);
		acknowledge_own(&rig, 0, 1);
		send(&rig, m);
		assert_int_equal(epf_core_revoke_done(rig.core, 0, 1, &missing), 0);
		assert_int_equal(missing, EPF_NONE);
		null_rig_hold(&rig, false);
		for (unsigned n = 0; n < 4; n++)
			epf_core_step(rig.core);
		assert_int_equal(epf_core_revoke_done(rig.core, 0, 1, &missing), 1);
		null_rig_close(&rig);
	}
}

static unsigned answers(const struct null_rig *rig)
{
	unsigned n = 0;

	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++)
		for (uint32_t at = 0; at <= rig->core->lanes[l].mask; at++)
			n += rig->core->lanes[l].wrs[at].op == EPF_WR_SEND &&
			     entry_message(&rig->core->lanes[l].wrs[at])->kind == EPF_MSG_REVOKED;
	return n;
}

/* A peer may withdraw what it never published: it gets its answer, and an exchange that began before does not bring the region back. */
static void a_region_nobody_knows_is_withdrawn(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_REVOKE, .rank = 2, .signal = REGIONS };
	struct epf_region_remote published[REGIONS + 3];
	struct epf_peer_info info = {
		.n_regions = REGIONS + 3, .regions = published, .keys = 1, .n_signals = SIGNALS
	};
	struct null_rig rig;

	mallopt(M_PERTURB, 0x5a); /* what is not known and not set looks valid */
	open_rig(&rig);
	info.node = rig.core->peers[2].node;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, REGIONS + 1);
	m.signal = REGIONS + 2;
	assert_false(send(&rig, m));
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	assert_int_equal(answers(&rig), 2);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 2].state, EPF_REGION_WITHDRAWN);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 1].state, EPF_REGION_FREE);
	push_put(&rig, 0, REGIONS + 1);
	assert_int_equal(rig.rank[0].shm->done.error_status, EPF_S_REFUSED);
	assert_int_equal(rig.rank[0].shm->done.error_reason, EPF_R_CMD_REMOTE_REGION);
	for (unsigned i = 0; i < REGIONS + 3; i++)
		published[i] = (struct epf_region_remote){ .bytes = 64,
							   .state = EPF_REGION_LIVE,
							   .access = EPF_MR_REMOTE_WRITE };
	assert_int_equal(epf_core_set_peer(rig.core, 2, &info), 0);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 1].state, EPF_REGION_LIVE);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 2].state, EPF_REGION_WITHDRAWN);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 2].bytes, 0);
	null_rig_close(&rig);
	mallopt(M_PERTURB, 0);
}

/* A peer's withdrawal is answered when nothing of ours is on its way there any more; what still waits fails. */
static void a_target_is_left_before_the_answer(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_REVOKE, .rank = 2, .signal = 3 };
	struct null_rig rig;

	open_rig(&rig);
	push_put(&rig, 0, 0);
	null_rig_hold(&rig, true);
	push_put(&rig, 0, 3);
	assert_null(null_rig_inspect(&rig));
	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++)
		rig.core->lanes[l].state = EPF_LANE_FENCED;
	push_put(&rig, 0, 3);
	assert_int_equal(rig.core->n_deferred, 1);
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->recheck, 1);
	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++)
		rig.core->lanes[l].state = EPF_LANE_UP;
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	assert_null(null_rig_inspect(&rig));
	assert_int_equal(rig.core->n_deferred, 0);
	assert_int_equal(rig.rank[0].shm->done.failed, 1);
	assert_int_equal(rig.rank[0].shm->done.error_status, EPF_S_REVOKED);
	assert_int_equal(answers(&rig), 0);
	null_rig_hold(&rig, false);
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	assert_int_equal(answers(&rig), 1);
	/* What is deferred from now on was checked by the tables of now. */
	assert_int_equal(rig.core->recheck, 0);
	null_rig_close(&rig);
}

static struct epf_msg region_of(uint32_t rank, uint32_t region, uint64_t regions)
{
	return (struct epf_msg){ .kind = EPF_MSG_REGION,
				 .rank = rank,
				 .signal = region,
				 .value = 1, /* epoch */
				 .a = 4096,
				 .b = 64,
				 .c = 9,
				 .d = EPF_MR_REMOTE_WRITE,
				 .e = regions };
}

/* A returning rank: where its regions may lie, how many they may be, and which rights there are. */
static void returning_ranks_at_their_edges(void **state)
{
	struct null_rig rig;
	struct epf_msg m;

	open_rig(&rig);
	assert_true(send(&rig, region_of(0, 0, 1))); /* ours */
	assert_true(send(&rig, region_of(NULL_WORLD, 0, 1)));
	rig.core->world = 3;
	assert_true(send(&rig, region_of(3, 0, 1)));
	rig.core->world = NULL_WORLD;
	assert_true(send(&rig, region_of(2, 1, 1)));
	assert_true(send(&rig, region_of(2, 0, EPF_MAX_REGIONS + 1)));
	m = region_of(2, 0, 1);
	m.b = EPF_WIDE_REGION_BYTES + 1;
	m.a = 0;
	assert_true(send(&rig, m));
	m.b = EPF_WIDE_REGION_BYTES;
	m.a = UINT64_MAX - EPF_WIDE_REGION_BYTES + 1;
	assert_true(send(&rig, m));
	m = region_of(2, 0, 1);
	m.d = EPF_MR_SIGNALS;
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[2].regions[0].raddr, null_rig_raddr(2, 0));
	m = region_of(2, EPF_MAX_REGIONS - 1, EPF_MAX_REGIONS);
	m.b = EPF_WIDE_REGION_BYTES;
	m.a = UINT64_MAX - EPF_WIDE_REGION_BYTES;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, EPF_MAX_REGIONS);
	assert_int_equal(rig.core->peers[2].regions[EPF_MAX_REGIONS - 1].raddr, m.a);
	assert_int_equal(rig.core->peers[2].regions[EPF_MAX_REGIONS - 1].bytes, m.b);
	/* The same number was announced: another one is another description. */
	m = region_of(2, 5, 6);
	m.value = 2;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, 6);
	m = region_of(2, 6, 7); /* with that epoch there are six */
	m.value = 2;
	assert_true(send(&rig, m));
	null_rig_close(&rig);
}

static void returning_ranks_have_limits(void **state)
{
	struct epf_msg m = {
		.kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_UP, .c = 1, .value = 1
	};
	struct null_rig rig;

	open_rig(&rig);
	m.a = EPF_WIDE_SIGNALS + 1;
	assert_true(send(&rig, m));
	m.a = EPF_WIDE_SIGNALS;
	m.value = EPF_MAX_REGIONS + 1;
	assert_true(send(&rig, m));
	m.value = EPF_MAX_REGIONS;
	m.signal = 99;
	assert_true(send(&rig, m));
	m.signal = EPF_PEER_UP;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_signals, EPF_WIDE_SIGNALS);
	assert_int_equal(rig.core->peers[2].n_regions, EPF_MAX_REGIONS);
	/* Keys: that node has one, so there are no messages about more. */
	m = (struct epf_msg){ .kind = EPF_MSG_KEYS, .rank = 2, .c = 1, .d = EPF_MAX_REGIONS };
	assert_true(send(&rig, m));
	peer_node(&rig)->keys = 2;
	m.d = 8;
	m.c = 2;
	m.signal = 8;
	assert_true(send(&rig, m));
	m.d = EPF_MAX_REGIONS + 1;
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, EPF_MAX_REGIONS);
	m.d = 8;
	m.signal = 7;
	m.value = 77;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].regions[7].rkeys[1], 77);
	/* Seven regions, after eight were announced. */
	m.signal = 8;
	m.d = 9;
	assert_true(send(&rig, m));
	null_rig_close(&rig);
}

/*
 * Commands that wait for a lane hold what was true when they were checked. A peer engine that describes its rank anew meanwhile, with fewer or
 * smaller regions, must not lead them out of its tables.
 */
static void what_waits_is_checked_again(void **state)
{
	static const struct epf_op ops[] = {
		{ .op = EPF_OP_PUT, .rank = 2, .remote_region = REGIONS - 1, .length = 16 },
		{ .op = EPF_OP_PUT, .rank = 2, .remote_offset = 64, .length = 16 },
		{ .op = EPF_OP_GET, .rank = 2, .length = 16 }, /* the right to read is gone */
		{ .op = EPF_OP_PUT, .rank = 2, .length = 64 },
		{ .op = EPF_OP_PUT, .rank = 3, .remote_region = REGIONS - 1, .length = 16 },
	};

	enum { OPS = sizeof(ops) / sizeof(ops[0]) };

	struct null_rig rig;
	struct null_rank *r = &rig.rank[0];

	open_rig(&rig);
	for (uint32_t rank = 2; rank < 4; rank++) {
		const struct epf_op put = { .op = EPF_OP_PUT, .rank = rank, .length = 16 };

		epf_ring_push(&r->ring, epf_op_pack_narrow(&put));
		epf_core_step(rig.core);
	}
	for (uint32_t i = 0; i < NULL_LANES; i++)
		rig.core->lanes[NULL_LANES + i].state = EPF_LANE_FENCED;
	for (unsigned i = 0; i < OPS; i++)
		epf_ring_push(&r->ring, epf_op_pack_narrow(&ops[i]));
	epf_core_step(rig.core);
	assert_int_equal(rig.core->n_deferred, OPS);
	assert_null(null_rig_inspect(&rig));
	assert_false(send(&rig, region_of(2, 0, 1)));
	for (uint32_t i = 0; i < NULL_LANES; i++)
		rig.core->lanes[NULL_LANES + i].state = EPF_LANE_UP;
	for (unsigned i = 0; i < 8; i++) {
		const char *wrong;

		epf_core_step(rig.core);
		wrong = null_rig_inspect(&rig);
		if (wrong)
			fail_msg("%s", wrong);
	}
	assert_int_equal(rig.core->n_deferred, 0);
	assert_int_equal(r->shm->done.retired, 2 + OPS);
	assert_int_equal(r->shm->done.failed, 3);
	assert_int_equal(r->shm->done.error_status, EPF_S_REVOKED);
	null_rig_close(&rig);
}

/* A rank is UP only when all that was announced about it has come; each of the messages counts. */
static void a_rank_returns_when_it_is_complete(void **state)
{
	struct epf_msg up = {
		.kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_UP, .c = 1, .value = 2, .a = 4
	};
	struct epf_msg down = { .kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_DOWN };
	struct null_rig rig;

	open_rig(&rig);
	assert_false(send(&rig, down));
	assert_int_equal(rig.core->peers[2].up, 0);
	assert_int_equal(rig.core->ranks[0].usable[2], 0);
	assert_false(send(&rig, up));
	assert_false(send(&rig, region_of(2, 0, 2)));
	assert_int_equal(rig.core->peers[2].up, 0);
	assert_false(send(&rig, region_of(2, 1, 2)));
	assert_int_equal(rig.core->peers[2].up, 1);
	assert_int_equal(rig.core->ranks[0].usable[2], 1);
	assert_int_equal(rig.core->ranks[0].usable[3], 1);
	/* What is older than that is overtaken, not refused. */
	down.c = 0;
	assert_false(send(&rig, down));
	assert_int_equal(rig.core->peers[2].up, 1);
	null_rig_close(&rig);
}

/* All that announces rank 2 with its two regions; the last one as well if it is to be complete. */
static void announce(struct null_rig *rig, uint32_t epoch, bool complete)
{
	struct epf_msg up = { .kind = EPF_MSG_RANK,
			      .rank = 2,
			      .signal = EPF_PEER_UP,
			      .c = epoch,
			      .value = 2,
			      .a = 4 };

	assert_false(send(rig, up));
	for (uint32_t i = 0; i < (complete ? 2u : 1u); i++) {
		struct epf_msg m = region_of(2, i, 2);

		m.value = epoch;
		assert_false(send(rig, m));
	}
}

/* A rank that came back is lost again, or its node leaves, before all has arrived that announces it: what comes later does not make it UP. */
static void a_loss_overtakes_a_return(void **state)
{
	struct epf_msg down = { .kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_DOWN };
	struct epf_msg bye = { .kind = EPF_MSG_BYE };
	const struct epf_peer_word *w;
	struct null_rig rig;

	open_rig(&rig);
	w = &rig.core->peers_page->peers[2];
	assert_false(send(&rig, down));
	announce(&rig, 1, false);
	down.c = 1;
	assert_false(send(&rig, down));
	assert_int_equal(w->epoch, 1);
	assert_false(send(&rig, region_of(2, 1, 2)));
	assert_int_equal(w->state, EPF_PEER_DOWN);
	assert_int_equal(rig.core->ranks[0].usable[2], 0);
	/* The next time it is complete. */
	announce(&rig, 2, true);
	assert_int_equal(w->state, EPF_PEER_UP);
	down.c = 2;
	assert_false(send(&rig, down));
	assert_false(send(&rig, bye));
	announce(&rig, 3, true);
	assert_int_equal(w->state, EPF_PEER_DOWN);
	null_rig_close(&rig);
}

static uint32_t root_of(const struct null_rig *rig, uint32_t rank)
{
	return epf_peers_details(rig->core->peers_page, NULL_WORLD)[rank].root;
}

static uint32_t root_cause_of(const struct null_rig *rig, uint32_t rank)
{
	return epf_peers_details(rig->core->peers_page, NULL_WORLD)[rank].root_cause;
}

/* Why a rank was lost: the last rank of the job may be named, the one behind it not, nor the rank itself. */
static void causes_at_their_edges(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_LOST, .rank = 2, .c = EPF_NONE };
	struct null_rig rig;

	open_rig(&rig);
	m.b = NULL_WORLD;
	m.e = UINT16_MAX;
	assert_false(send(&rig, m));
	assert_int_equal(root_of(&rig, 2), NULL_WORLD);
	assert_int_equal(root_cause_of(&rig, 2), UINT16_MAX);
	m.e = UINT16_MAX + 1;
	assert_false(send(&rig, m));
	assert_int_equal(root_cause_of(&rig, 2), 0);
	m.b = NULL_WORLD + 1;
	assert_false(send(&rig, m));
	assert_int_equal(root_of(&rig, 2), 0);
	m.b = 2 + 1;
	assert_false(send(&rig, m));
	assert_int_equal(root_of(&rig, 2), 0);
	m.rank = 1; /* ours */
	assert_true(send(&rig, m));
	m.rank = NULL_WORLD;
	assert_true(send(&rig, m));
	rig.core->world = 3;
	m.rank = 3;
	m.b = 1;
	assert_true(send(&rig, m));
	rig.core->world = NULL_WORLD;
	null_rig_close(&rig);
}

/* Messages of recovery: lanes, streams and questions. */
static void recovery_at_its_edges(void **state)
{
	struct epf_msg fence = { .kind = EPF_MSG_LANE_FENCE, .signal = 1 };
	struct epf_msg query = { .kind = EPF_MSG_STREAM_QUERY, .rank = 1 };
	struct null_rig rig;
	struct epf_lane_recovery *r;

	open_rig(&rig);
	assert_non_null(peer_node(&rig)->recovery);
	r = peer_node(&rig)->recovery->lanes;
	fence.c = NULL_LANES;
	assert_true(send(&rig, fence));
	peer_node(&rig)->n_lanes = 1; /* lane 1 is behind the last now */
	fence.c = 1;
	assert_true(send(&rig, fence));
	query.signal = 1;
	assert_true(send(&rig, query));
	assert_int_equal(r[1].answer, 0);
	assert_int_equal(rig.core->lanes[NULL_LANES + 1].state, EPF_LANE_UP);
	peer_node(&rig)->n_lanes = NULL_LANES;
	limit_streams(peer_node(&rig), NULL_STREAMS - 1);
	query.c = NULL_STREAMS - 1;
	assert_true(send(&rig, query));
	assert_int_equal(r[1].answer, 0);
	query.c = NULL_STREAMS - 2;
	assert_false(send(&rig, query));
	assert_int_equal(r[1].answer, 1);
	assert_int_equal(r[1].answer_handle, NULL_STREAMS - 2);
	for (unsigned i = 0; i < 4; i++)
		epf_core_step(rig.core);
	assert_int_equal(r[1].answer, 0); /* answered */
	assert_false(send(&rig, query));  /* twice, or overtaken: not again */
	query.rank = 0;
	assert_false(send(&rig, query));
	assert_int_equal(r[1].answer, 0);
	query.rank = 2;
	assert_false(send(&rig, query));
	assert_int_equal(r[1].answer, 1);
	fence.kind = 99;
	fence.signal = 0;
	assert_true(send(&rig, fence));
	fence.kind = EPF_MSG_LANE_FENCE;
	fence.signal = 2; /* two failures ahead of us: neither ours nor the next */
	assert_false(send(&rig, fence));
	assert_int_equal(rig.core->lanes[NULL_LANES + 1].state, EPF_LANE_UP);
	fence.signal = 1;
	assert_false(send(&rig, fence));
	assert_int_equal(rig.core->lanes[NULL_LANES + 1].state, EPF_LANE_FENCED);
	assert_int_equal(r[1].generation, 1);
	/* Only what was asked is answered, and only once. */
	query = (struct epf_msg){ .kind = EPF_MSG_STREAM_STATE, .signal = 1, .value = 1 };
	assert_false(send(&rig, query));
	assert_int_equal(r[1].known, 0);
	null_rig_close(&rig);
}

/* A goodbye takes the node's own ranks from us, and no others. */
static void a_goodbye_is_the_senders(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_BYE };
	struct null_rig rig;

	open_rig(&rig);
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].up, 0);
	assert_int_equal(rig.core->peers[3].up, 0);
	assert_int_equal(rig.core->peers[0].up, 1);
	assert_int_equal(rig.core->peers[1].up, 1);
	null_rig_close(&rig);
}

/* On a NIC that reorders, the goodbye of a node may come before the news that one of its ranks was lost: that rank is lost all the same, the others left. */
static void a_goodbye_overtakes_a_loss(void **state)
{
	struct epf_msg bye = { .kind = EPF_MSG_BYE };
	struct epf_msg lost = {
		.kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_DOWN, .d = EPF_R_RANK_DIED
	};
	struct epf_msg left = { .kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_LEFT };
	const struct epf_peers_shm *page;
	struct null_rig rig;

	open_rig(&rig);
	page = rig.core->peers_page;
	assert_false(send(&rig, bye));
	assert_int_equal(page->peers[2].state, EPF_PEER_LEFT);
	assert_int_equal(page->lost, 0);
	assert_false(send(&rig, lost));
	assert_int_equal(page->peers[2].state, EPF_PEER_DOWN);
	assert_int_equal(page->peers[2].cause, EPF_R_RANK_DIED);
	assert_int_equal(page->peers[3].state, EPF_PEER_LEFT);
	assert_int_equal(page->lost, 1);
	/* And stays so. */
	assert_false(send(&rig, left));
	assert_int_equal(page->peers[2].state, EPF_PEER_DOWN);
	null_rig_close(&rig);
	/* A rank that has left in order is not lost with its node. */
	open_rig(&rig);
	assert_false(send(&rig, left));
	epf_node_down(rig.core, peer_node(&rig), EPF_S_PEER_DOWN);
	assert_int_equal(rig.core->peers_page->peers[2].state, EPF_PEER_LEFT);
	assert_int_equal(rig.core->peers_page->peers[3].state, EPF_PEER_DOWN);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(withdrawals_at_their_edges),
		cmocka_unit_test(answers_are_for_what_was_asked),
		cmocka_unit_test(a_source_is_withdrawn_when_it_is_read),
		cmocka_unit_test(a_region_nobody_knows_is_withdrawn),
		cmocka_unit_test(a_target_is_left_before_the_answer),
		cmocka_unit_test(returning_ranks_at_their_edges),
		cmocka_unit_test(returning_ranks_have_limits),
		cmocka_unit_test(what_waits_is_checked_again),
		cmocka_unit_test(a_rank_returns_when_it_is_complete),
		cmocka_unit_test(a_loss_overtakes_a_return),
		cmocka_unit_test(causes_at_their_edges),
		cmocka_unit_test(recovery_at_its_edges),
		cmocka_unit_test(a_goodbye_is_the_senders),
		cmocka_unit_test(a_goodbye_overtakes_a_loss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
