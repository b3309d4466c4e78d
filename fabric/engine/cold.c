/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rare branches of the core's own thread: a command fails, a stream is opened, a node is lost, the timer fires.
 * Called by the hot files and between steps. They allocate nothing; what needs memory took it when the world was set. No
 * system call either.
 */
#define EPF_LOG_COMP "core"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/core.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/losses.h"
#include "fabric/engine/recover.h"
#include "fabric/engine/retire_hot.h"
#include "fabric/engine/stage_hot.h"

#include <errno.h>

/* A beat takes a tick of the peer, its step, the way: so many ticks of ours beyond the limit. */
enum { SILENT_TICKS_MORE = 2 };

/* Until the first tick: time between two checks for peers that may be told that this engine sends heartbeats. */
#define YOUNG_TICK_NS UINT64_C(10000000)

/* Writes the ring's error record: the first failure in full, the number of all. [R3: before done.retired moves] */
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
	/* A rank that is lost takes its regions with it: that it is lost is the first cause. */
	if (reason == EPF_R_CMD_REVOKED && rank < core->world && !core->peers[rank].up)
		epf_fail_cold(core, ring, seq, rank, EPF_S_PEER_DOWN, EPF_R_PEER_DOWN);
	else
		epf_fail_cold(core, ring, seq, rank,
			      reason == EPF_R_CMD_REVOKED ? EPF_S_REVOKED : EPF_S_REFUSED, reason);
}

/*
 * The lane a new stream belongs on: those on its rank's own links (0: all) in turn; and the one that carries it: another one where that is
 * down.
 */
static uint16_t choose_lane(struct epf_core *core, struct epf_node *node, unsigned links,
			    uint16_t *lane)
{
	uint16_t home = node->first_lane + (node->next_lane++ % node->n_lanes);
	const struct epf_lane *other;

	for (unsigned i = 1; links && i < node->n_lanes; i++) {
		if (links >> core->lanes[home].link & 1)
			break;
		home = node->first_lane + (node->next_lane++ % node->n_lanes);
	}
	*lane = home;
	if (core->lanes[home].state == EPF_LANE_UP)
		return home;
	other = epf_other_lane(core, node);
	if (other)
		*lane = other->id;
	return home;
}

uint32_t epf_stream_open_cold(struct epf_core *core, unsigned kind, struct epf_ring_state *ring,
			      uint32_t rank, uint32_t signal, uint32_t hash)
{
	struct epf_node *node;
	struct epf_stream *s;
	uint32_t index;

	/* A control stream is opened before ranks are known: its `rank` is the node's number. */
	node = &core->nodes[kind == EPF_STREAM_CONTROL ? rank : core->peers[rank].node];
	if (node->n_handles >= node->max_handles || core->n_streams >= core->max_streams)
		return EPF_NONE;
	index = core->n_streams++;
	s = &core->streams[index];
	s->count = core->limits.start_count;
	s->peer = kind == EPF_STREAM_CONTROL ? node->rank : rank;
	s->ring = ring ? ring->id : 0;
	s->rank = ring ? ring->rank : 0;
	s->node = (uint16_t)(node - core->nodes);
	s->home = choose_lane(core, node, ring ? core->ranks[ring->rank].links : 0, &s->lane);
	s->handle = node->n_handles;
	s->kind = (uint8_t)kind;
	s->deferred_head = s->deferred_tail = EPF_NONE;
	s->signals_head = s->signals_tail = EPF_NONE;
	s->signal = signal;
	node->handles[node->n_handles++] = index;
	if (kind == EPF_STREAM_RING) {
		ring->streams[rank] = index;
	} else if (kind == EPF_STREAM_GROUP) {
		s->next_hash = core->group_table[hash];
		core->group_table[hash] = index;
	}
	return index;
}

int epf_recheck_cold(struct epf_core *core, struct epf_deferred *p)
{
	struct epf_ring_state *ring = core->rings[p->ring];
	const struct epf_region_remote *remote =
		&core->peers[p->op.rank].regions[p->op.remote_region];
	const struct epf_region_local *local = &core->ranks[ring->rank].regions[p->op.local_region];
	unsigned has_local =
		p->op.op == EPF_OP_PUT || p->op.op == EPF_OP_PUT_SIGNAL || p->op.op == EPF_OP_GET;
	unsigned has_remote = has_local || p->op.op == EPF_OP_PUT_INLINE || p->op.op == EPF_OP_ADD;

	if ((!has_remote || remote->state == EPF_REGION_LIVE) &&
	    (!has_local || local->state == EPF_REGION_LIVE))
		return 0;
	epf_fail_cold(core, ring, p->seq, p->op.rank, EPF_S_REVOKED, EPF_R_CMD_REVOKED);
	return 1;
}

/* Fails every deferred command of a list and gives the places back. */
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

static void fail_stream(struct epf_core *core, struct epf_stream *s, unsigned status)
{
	fail_deferred(core, &s->deferred_head, status, EPF_R_PEER_DOWN);
	fail_deferred(core, &s->signals_head, status, EPF_R_PEER_DOWN);
	s->deferred_count = 0;
	stream_unblock(core, s);
}

void epf_fail_streams_cold(struct epf_core *core, uint32_t peer, uint32_t local)
{
	for (uint32_t i = 0; i < core->n_streams; i++) {
		struct epf_stream *s = &core->streams[i];

		if (s->kind != EPF_STREAM_CONTROL && (peer == EPF_NONE || s->peer == peer) &&
		    (local == EPF_NONE || s->rank == local))
			fail_stream(core, s, EPF_S_PEER_DOWN);
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

/* Ends what a dead lane had under way: commands fail, words and messages are forgotten. */
static void fail_lane(struct epf_core *core, struct epf_lane *lane, unsigned status)
{
	core->ops->lane_fence(core->nic, lane->id);
	lane->state = EPF_LANE_DOWN;
	while (lane->tail != lane->head)
		epf_fail_entry_cold(core, lane, &lane->wrs[lane->tail++ & lane->mask], status,
				    EPF_R_PEER_DOWN);
	lane->posted = lane->head;
}

/* Whose fault it is that a node cannot be reached: this node's own ports, or something behind them. */
static unsigned why_down(const struct epf_core *core, unsigned status)
{
	struct epf_nic_counters nic;

	core->ops->counters(core->nic, &nic);
	return status == EPF_S_LINK_DOWN || (core->caps.carries_events && !nic.link_up)
		       ? EPF_R_LINK_LOST
		       : EPF_R_NODE_LOST;
}

void epf_node_down(struct epf_core *core, struct epf_node *node, unsigned status)
{
	unsigned cause = why_down(core, status);

	if (node->state == EPF_NODE_DOWN)
		return;
	/* Who has said goodbye is not lost, but what is still under way to it ends all the same. */
	if (node->state != EPF_NODE_LEFT)
		EPF_STORE_RELAXED(&node->state, EPF_NODE_DOWN);
	EPF_PROBE3(node_down, node->rank, status, cause);
	epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_NODE_DOWN, status, node->rank, cause, 0,
			0);
	epf_recover_forget(core, node);
	for (uint32_t r = 0; r < core->world; r++)
		if (&core->nodes[core->peers[r].node] == node)
			epf_peer_changed(core, r,
					 node->state == EPF_NODE_DOWN ? EPF_PEER_DOWN
								      : EPF_PEER_LEFT,
					 node->state == EPF_NODE_DOWN ? cause : 0,
					 core->peers_page->peers[r].epoch);
	for (unsigned i = 0; i < node->n_lanes; i++)
		if (core->lanes[node->first_lane + i].state != EPF_LANE_DOWN)
			fail_lane(core, &core->lanes[node->first_lane + i], status);
	for (uint32_t h = 0; h < node->n_handles; h++)
		fail_stream(core, &core->streams[node->handles[h]], status);
	core->cold_work = 1; /* withdrawals and news do not wait for it any more */
}

/* 1: the peer's engine has been silent for too long. Counted in our own ticks, so time in which we stalled ourselves does not count. */
static int is_silent(struct epf_core *core, struct epf_node *node)
{
	uint64_t sum = 0, limit;

	for (unsigned l = 0; l < node->n_lanes; l++)
		sum += EPF_LOAD_RELAXED(&node->ctl->grants[l]) >> 33;
	if (node->heard || sum != node->beats_seen || !sum) {
		node->beats_seen = sum;
		node->silent_ticks = 0;
		return 0;
	}
	limit = core->limits.peer_silence_ns /
		(core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT);
	return ++node->silent_ticks > limit + SILENT_TICKS_MORE && core->limits.peer_silence_ns;
}

/*
 * A silent node is asked for a sign of life: a plain write of the grant word, whose completion (or failure) tells. It
 * costs the peer nothing and needs no receive. But a NIC answers also for a process that hangs; so the word carries the beat
 * of this engine, written once a tick on one lane at least, and who has begun to beat must go on.
 */
static void heartbeat(struct epf_core *core)
{
	core->beats += core->limits.beats;
	for (uint32_t i = 0; i < core->n_nodes; i++) {
		struct epf_node *node = &core->nodes[i];
		unsigned asked = 0;

		if (node->state == EPF_NODE_UP && is_silent(core, node))
			epf_node_down(core, node, EPF_S_RETRY_EXCEEDED);
		epf_silence_show(core, node);
		for (unsigned l = 0; l < node->n_lanes && node->state == EPF_NODE_UP; l++)
			if (core->lanes[node->first_lane + l].state == EPF_LANE_UP &&
			    (!node->heard || (core->beats && !asked++)))
				epf_grant_mark(core, &core->lanes[node->first_lane + l]);
		node->heard = 0;
	}
	core->young = 0;
}

/*
 * Of a peer that stops before its first tick, which may be more than a second after the join, nobody could tell that it is silent. So until then
 * every node learns that this engine sends heartbeats as soon as something of it has arrived: then it is connected and may be written to.
 */
static void promise_beats(struct epf_core *core)
{
	unsigned left = 0;

	core->beats += !core->beats;
	for (uint32_t i = 0; i < core->n_nodes; i++) {
		struct epf_node *node = &core->nodes[i];

		if (i == core->self || node->promised || node->state != EPF_NODE_UP)
			continue;
		left += !node->heard;
		for (unsigned l = 0; l < node->n_lanes && node->heard && !node->promised; l++)
			if (core->lanes[node->first_lane + l].state == EPF_LANE_UP) {
				epf_grant_mark(core, &core->lanes[node->first_lane + l]);
				node->promised = 1;
			}
	}
	core->young = left != 0;
}

static int has_other_lane(const struct epf_core *core, const struct epf_lane *lane)
{
	const struct epf_node *node = &core->nodes[lane->node];

	for (unsigned i = 0; i < node->n_lanes; i++)
		if (i != lane->index && core->lanes[node->first_lane + i].state == EPF_LANE_UP)
			return 1;
	return 0;
}

/*
 * Ticks for which a lane may stall. To the own node there is no network that could be waited for. To another one the device has
 * time limits of its own, and an engine that has stopped is peer-silence's to notice: what lasts longer than both is a device that reports
 * nothing. 0: forever.
 */
static uint64_t patience(const struct epf_core *core, const struct epf_lane *lane)
{
	const struct epf_core_limits *l = &core->limits;

	if (lane->node == core->self)
		return has_other_lane(core, lane) ? EPF_TICKS_PER_TIMEOUT : 0;
	/* Who has promised no beats may have stopped for good, which is not held against it. */
	if (!l->peer_silence_ns || !core->nodes[lane->node].beats_seen)
		return 0;
	return EPF_TICKS_PER_TIMEOUT +
	       l->peer_silence_ns / (l->peer_timeout_ns / EPF_TICKS_PER_TIMEOUT + 1);
}

/*
 * A device may forget a lane: it reports neither completions nor an error, and where other lanes of the node go on, nobody would
 * miss it. Soft-RoCE of Linux 6.1 does so (docs/reference/transports.md). Another post may remind the device. If that does not help either, the lane fails.
 */
static void look_after(struct epf_core *core, struct epf_lane *lane)
{
	uint64_t most;

	if (lane->state != EPF_LANE_UP || lane->tail == lane->posted ||
	    lane->tail != lane->seen_tail) {
		lane->seen_tail = lane->tail;
		lane->still = 0;
		return;
	}
	if (lane->still < UINT16_MAX)
		lane->still++;
	most = patience(core, lane);
	if (most && lane->still > most)
		epf_lane_error_cold(core, lane, EPF_S_RETRY_EXCEEDED);
	else if (core->ordered)
		epf_nudge(core, lane);
}

unsigned epf_core_tick_cold(struct epf_core *core)
{
	uint64_t now = core->now(core->now_arg);
	unsigned handled = 0;

	if (core->cold_work || now >= core->reopen_ns)
		handled =
			epf_recover_step(core, now) + epf_ranks_step(core) + epf_revoke_step(core);
	if (core->young && core->caps.carries_events)
		promise_beats(core);
	if (now >= core->next_beat_ns) {
		core->next_beat_ns = now + core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT;
		if (core->caps.carries_events && core->n_nodes > 1)
			heartbeat(core);
		for (uint32_t i = 0; core->caps.carries_events && i < core->n_lanes; i++)
			look_after(core, &core->lanes[i]);
	}
	core->next_tick_ns =
		core->reopen_ns < core->next_beat_ns ? core->reopen_ns : core->next_beat_ns;
	if (core->young && now + YOUNG_TICK_NS < core->next_tick_ns)
		core->next_tick_ns = now + YOUNG_TICK_NS;
	return handled;
}

void epf_gpu_add_cold(struct epf_core *core, uint32_t local, const struct epf_region_local *region,
		      uint64_t offset, uint64_t value)
{
	int rc = core->ops->add(core->nic, &region->mr, offset, value);

	if (rc && rc != -EAGAIN) {
		EPF_COUNT(core, ARRIVALS_REFUSED, 1);
		return;
	}
	core->adding = 1;
	core->ranks[local].adding_to = region;
	core->ranks[local].adding_round = core->adding_round;
	if (!rc)
		return;
	if (!core->hold)
		epf_hold_cold(core);
	core->hold_adds[core->hold_retry++] = (struct epf_gpu_add){ region->mr, offset, value };
}

void epf_hold_cold(struct epf_core *core)
{
	core->hold = 1;
	core->hold_tsc = epf_tsc();
}

/* No additions are under way any more. */
static void adding_ends(struct epf_core *core)
{
	core->adding = 0;
	core->adding_round++;
}

/*
 * May an addition to memory of rank `to` go behind those under way? number: of the region, of a signal: the one that signals lie in. It may when
 * those for its rank, if any, are in the same region. What apply() would refuse may be anything.
 */
static int goes_behind(const struct epf_core *core, uint32_t to, unsigned kind, uint32_t number)
{
	const struct epf_region_local *region;
	const struct epf_rank_state *rank;

	if (to >= core->world || core->peers[to].local == EPF_NONE)
		return 0;
	rank = &core->ranks[core->peers[to].local];
	if (kind == EPF_MSG_SIGNAL)
		number = rank->signal_region;
	if (number >= rank->n_regions || !rank->regions[number].device)
		return 0;
	region = &rank->regions[number];
	return rank->adding_round != core->adding_round || rank->adding_to == region;
}

/* Is this an addition that those under way for its rank, if any, come before anyway? */
static int adds_behind(const struct epf_core *core, const struct epf_wc *wc)
{
	const struct epf_node *node = &core->nodes[core->lanes[wc->lane].node];
	uint32_t handle = wc->imm >> 16 & 0x1fffu;
	struct epf_msg m;

	if (wc->op == EPF_WC_RECV_IMM)
		return wc->imm >> 29 == EPF_IMM_NOTIFY && handle < node->rx_streams &&
		       node->notify_in[handle].defined &&
		       goes_behind(core, node->notify_in[handle].rank, EPF_MSG_SIGNAL, 0);
	if (wc->op != EPF_WC_RECV || wc->len != sizeof(m))
		return 0;
	__builtin_memcpy(&m, wc->msg, sizeof(m));
	return (m.kind == EPF_MSG_ADD || m.kind == EPF_MSG_SIGNAL) &&
	       goes_behind(core, m.rank, m.kind, m.signal);
}

/* May it not take effect now? */
static int stops(struct epf_core *core, const struct epf_wc *wc)
{
	if (core->hold)
		return 1;
	if (!core->adding || adds_behind(core, wc))
		return 0;
	if (!core->ops->add_pending(core->nic)) {
		adding_ends(core);
		return 0;
	}
	epf_hold_cold(core);
	return 1;
}

int epf_adding_stops_cold(struct epf_core *core, const struct epf_wc *wc)
{
	struct epf_queued_arrival *d;

	if (!stops(core, wc))
		return 0;
	d = &core->queued_arrivals[(core->first_queued_arrival + core->n_queued_arrivals++) %
				   EPF_MAX_QUEUED_ARRIVALS];
	d->wc = *wc;
	if (wc->op == EPF_WC_RECV) {
		__builtin_memcpy(d->msg, wc->msg,
				 wc->len < sizeof(d->msg) ? wc->len : sizeof(d->msg));
		d->wc.msg = d->msg;
	}
	return 1;
}

/* Lets what was queued take effect, up to the next that has to wait. */
static void undefer(struct epf_core *core)
{
	while (core->n_queued_arrivals &&
	       !stops(core, &core->queued_arrivals[core->first_queued_arrival].wc)) {
		const struct epf_wc *wc = &core->queued_arrivals[core->first_queued_arrival].wc;

		core->first_queued_arrival =
			(core->first_queued_arrival + 1) % EPF_MAX_QUEUED_ARRIVALS;
		core->n_queued_arrivals--;
		EPF_PROBE3(arrive, wc->lane, wc->op, wc->len);
		epf_arrive(core, wc);
	}
}

/* Hands the NIC the additions that it had no room for; 1: it has them all. */
static int retry_adds(struct epf_core *core)
{
	while (core->hold_retry) {
		const struct epf_gpu_add *add = &core->hold_adds[0];
		int rc = core->ops->add(core->nic, &add->mr, add->offset, add->value);

		if (rc == -EAGAIN) {
			(void)core->ops->add_pending(core->nic); /* lets the NIC make room */
			return 0;
		}
		if (rc)
			EPF_COUNT(core, ARRIVALS_REFUSED, 1);
		core->hold_retry--;
		core->hold_adds[0] = core->hold_adds[EPF_HOLD_ADDS - 1];
	}
	return 1;
}

int epf_hold_over_cold(struct epf_core *core)
{
	if (!retry_adds(core))
		return 0;
	if (core->ops->add_pending(core->nic))
		return 0;
	core->hold = 0;
	adding_ends(core);
	epf_hist_add(epf_stat_hist(core->stats, EPF_STAT_CORE_HOLD_NS),
		     epf_tsc_to_ns(epf_tsc() - core->hold_tsc));
	if (core->hold_resume)
		epf_arrive_resume(core); /* which may meet the next addition */
	undefer(core);
	return !core->hold;
}
