/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fails commands: writes the ring's error record and retires them. Called by the hot files and between steps, on the core's
 * thread; allocates nothing and makes no system call.
 */
#include "fabric/engine/fail.h"

#include "fabric/engine/check_hot.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/retire_hot.h"

#include "fabric/base/err.h"

/* Records the first failure of a ring in full and counts them all. [R3: before done.retired moves] */
static void record_failure(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq,
			   uint32_t rank, unsigned status, unsigned reason)
{
	struct epf_done *done = ring->done;

	if (ring->failed++ == 0) {
		done->error_rank = rank;
		done->error_status = (uint16_t)status;
		done->error_reason = (uint16_t)reason;
		EPF_STORE_RELEASE(&done->error_index,
				  ring->retired64 + (seq - ring->published) + 1);
	}
	EPF_STORE_RELEASE(&done->failed, ring->failed);
	EPF_COUNT(core, CMDS_FAILED, 1);
	if (status == EPF_S_REFUSED)
		EPF_COUNT(core, CMDS_REFUSED, 1);
}

void epf_fail_cold(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq, uint32_t rank,
		   unsigned status, unsigned reason)
{
	record_failure(core, ring, seq, rank, status, reason);
	epf_retire(ring, seq);
}

void epf_refuse_cold(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq,
		     uint32_t rank, unsigned reason)
{
	uint64_t *counter = &core->refusals[(reason - EPF_CMD_REASON_FIRST) % EPF_CMD_REASONS];

	EPF_PROBE4(refuse, ring->id, seq, rank, reason);
	EPF_STORE_RELAXED(counter, *counter + 1);
	/* Losing a rank revokes its regions: report the loss. */
	if (reason == EPF_R_CMD_REVOKED && rank < core->world && !core->peers[rank].up)
		epf_fail_cold(core, ring, seq, rank, EPF_S_PEER_DOWN, EPF_R_PEER_DOWN);
	else
		epf_fail_cold(core, ring, seq, rank,
			      reason == EPF_R_CMD_REVOKED ? EPF_S_REVOKED : EPF_S_REFUSED, reason);
}

/* By the tables as they are now: a returning peer may have fewer or smaller regions, or other rights, than when the command was deferred. */
int epf_recheck_cold(struct epf_core *core, struct epf_deferred *p)
{
	struct epf_ring_state *ring = core->rings[p->ring];

	if (!epf_cmd_check(&core->ranks[ring->rank], core->peers, core->world, &p->op))
		return 0;
	epf_fail_cold(core, ring, p->seq, p->op.rank, EPF_S_REVOKED, EPF_R_CMD_REVOKED);
	return 1;
}

/* Fails and frees every deferred command of a list. */
static void fail_deferred(struct epf_core *core, uint32_t *head, unsigned status, unsigned reason)
{
	while (*head != EPF_NONE) {
		uint32_t index = *head;
		struct epf_deferred *p = &core->deferred[index];
		struct epf_ring_state *ring = core->rings[p->ring];

		*head = p->next;
		epf_fail_cold(core, ring, p->seq, p->op.rank, status, reason);
		deferred_free(core, index);
	}
}

/* Fails the counted signals that the groups of a stream hold. */
static void fail_signals(struct epf_core *core, struct epf_stream *s, unsigned status)
{
	for (uint32_t i = 0; i < core->n_groups && s->held; i++) {
		struct epf_group *g = &core->groups[i];

		if (&core->streams[g->stream] != s)
			continue;
		fail_deferred(core, &g->signals_head, status, EPF_R_PEER_DOWN);
		g->next_ready = EPF_NONE;
	}
	s->ready = EPF_NONE;
	s->held = 0;
}

void epf_fail_stream_cold(struct epf_core *core, struct epf_stream *s, unsigned status)
{
	fail_deferred(core, &s->deferred_head, status, EPF_R_PEER_DOWN);
	fail_signals(core, s, status);
	s->deferred_count = 0;
	stream_unblock(core, s);
}

void epf_fail_streams_cold(struct epf_core *core, uint32_t peer, uint32_t local)
{
	for (uint32_t i = 0; i < core->n_streams; i++) {
		struct epf_stream *s = &core->streams[i];

		if (s->kind != EPF_STREAM_CONTROL && (peer == EPF_NONE || s->peer == peer) &&
		    (local == EPF_NONE || s->rank == local))
			epf_fail_stream_cold(core, s, EPF_S_PEER_DOWN);
	}
}

void epf_fail_entry_cold(struct epf_core *core, struct epf_lane *lane, struct epf_wr *wr,
			 unsigned status, unsigned reason)
{
	if (wr->core >> 60 == EPF_WRK_DATA) {
		struct epf_ring_state *ring = core->rings[wr->core >> 32 & 0xffffu];
		uint32_t seq = (uint32_t)wr->core;

		/* One failure per command, whatever the number of its work requests. */
		if (ring->pend[seq & ring->pend_mask] == 1)
			record_failure(core, ring, seq, core->nodes[lane->node].rank, status,
				       reason);
	}
	epf_reclaim(core, lane, wr);
}

void epf_fail_lane_cold(struct epf_core *core, struct epf_lane *lane, unsigned status)
{
	core->ops->lane_fence(core->nic, lane->id);
	lane->state = EPF_LANE_DOWN;
	while (lane->tail != lane->head)
		epf_fail_entry_cold(core, lane, &lane->wrs[lane->tail++ & lane->mask], status,
				    EPF_R_PEER_DOWN);
	lane->posted = lane->head;
}
