/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds wait reasons (watch.h): reads the core's rings, streams and lanes and names the reason and the peer. Only stalled objects
 * get here, so it may search; the work of one round is bounded. It must never change what it reads.
 */
#include "fabric/engine/watch_priv.h"

#include "fabric/engine/lane_hot.h"

/* What a kernel of the rank reports that it waits for. */
static bool kernel_condition(const struct epf_wakeup *wakeup, struct condition *condition)
{
	uint32_t what = EPF_LOAD_ACQUIRE(&wakeup->kernel_condition); /* B4 */

	if (what == EPF_WAKE_ON_ANY)
		return false;
	condition->kernel = 1;
	condition->what = what;
	condition->index = EPF_LOAD_RELAXED(&wakeup->kernel_index);
	condition->least = EPF_LOAD_RELAXED(&wakeup->kernel_least);
	condition->seen = EPF_LOAD_RELAXED(&wakeup->kernel_seen);
	return true;
}

bool watch_rank_condition(const struct epf_rank_state *rank, struct condition *condition)
{
	const struct epf_wakeup *wakeup = rank->wakeup;

	if (!wakeup)
		return false;
	if (!EPF_LOAD_RELAXED(&wakeup->waiters))
		return kernel_condition(wakeup, condition);
	condition->kernel = 0;
	condition->what = EPF_LOAD_RELAXED(&wakeup->condition);
	condition->index = EPF_LOAD_RELAXED(&wakeup->condition_index);
	condition->least = EPF_LOAD_RELAXED(&wakeup->condition_least);
	return true;
}

struct wait watch_rank_wait(const struct epf_core *core, const struct epf_rank_state *rank,
			    const struct condition *condition, uint64_t *value)
{
	struct wait none = { EPF_STATS_WAIT_NONE, EPF_NONE, EPF_NONE, EPF_NONE }, out = none;

	if (condition->what == EPF_WAKE_ON_SIGNAL && condition->index < rank->n_signals) {
		uint64_t from = EPF_LOAD_RELAXED(&rank->signals[condition->index].from);

		*value = epf_signal_read(&rank->signals[condition->index]);
		out.reason = EPF_STATS_WAIT_SIGNAL;
		out.rank = from && from <= core->world ? (uint32_t)from - 1 : EPF_NONE;
		if (rank->signal_region != EPF_NONE) /* in GPU memory */
			*value = condition->seen;
		return (int64_t)(*value - condition->least) >= 0 ? none : out;
	}
	if (condition->what == EPF_WAKE_ON_STORE && condition->kernel) {
		/* The engine cannot read what it waits for; the kernel withdraws the report when the wait is over. */
		*value = condition->seen;
		out.reason = EPF_STATS_WAIT_SIGNAL;
		out.rank = condition->index < core->world ? condition->index : EPF_NONE;
		return out;
	}
	for (uint32_t i = 0; condition->what == EPF_WAKE_ON_RETIRED && i < core->n_rings; i++) {
		const struct epf_ring_state *ring = core->rings[i];

		if (!ring->live || core->ranks[ring->rank].rank != rank->rank ||
		    EPF_LOAD_RELAXED(&ring->consumer.shm->ring_id) != condition->index)
			continue;
		*value = ring->retired64;
		out.reason = EPF_STATS_WAIT_RING;
		return (int64_t)(*value - condition->least) >= 0 ? none : out;
	}
	return none;
}

uint32_t watch_occupancy(const struct epf_ring_state *ring)
{
	const struct epf_ring_consumer *c = &ring->consumer;
	uint32_t low = 1, high = c->mask + 1; /* so many are full; so many are not */
	struct epf_cmd slot;

	if (!epf_ring_peek(c, c->tail, &slot))
		return 0;
	if (epf_ring_peek(c, c->tail + c->mask, &slot))
		return high;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (epf_ring_peek(c, c->tail + middle - 1, &slot))
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Returns why a lane stalls, from the state of lane and node; NONE if both are well. */
static unsigned path_wait(const struct epf_core *core, const struct epf_lane *lane)
{
	const struct epf_node *node = &core->nodes[lane->node];

	if (lane->state != EPF_LANE_UP || !core->ops->link_ready(core->nic, lane->id))
		return EPF_STATS_WAIT_LINK;
	if (node->silent_ticks >= WATCH_SILENT_TICKS)
		return EPF_STATS_WAIT_SILENT;
	return EPF_STATS_WAIT_NONE;
}

unsigned watch_stream_wait(const struct epf_core *core, const struct epf_stream *s)
{
	const struct epf_lane *lane = &core->lanes[s->lane];
	unsigned reason;

	if (s->deferred_head == EPF_NONE && s->held && !s->waiting)
		return EPF_STATS_WAIT_PUTS;
	reason = path_wait(core, lane);
	if (reason != EPF_STATS_WAIT_NONE)
		return reason;
	return lane_has_room(lane, s->deferred_head != EPF_NONE &&
					   (core->deferred[s->deferred_head].op.flags & EPF_F_BULK))
		       ? EPF_STATS_WAIT_CREDIT
		       : EPF_STATS_WAIT_QUEUE;
}

unsigned watch_lane_wait(const struct epf_core *core, const struct epf_lane *lane)
{
	unsigned reason = path_wait(core, lane);

	if (reason != EPF_STATS_WAIT_NONE)
		return reason;
	if (lane->waiting_head == EPF_NONE)
		return EPF_STATS_WAIT_SENT;
	return lane_has_room(lane, 0) ? EPF_STATS_WAIT_CREDIT : EPF_STATS_WAIT_QUEUE;
}

uint32_t watch_head(const struct epf_core *core, const struct epf_stream *s)
{
	if (s->deferred_head != EPF_NONE || !s->held)
		return s->deferred_head;
	for (uint32_t i = 0; i < core->n_groups; i++)
		if (&core->streams[core->groups[i].stream] == s &&
		    core->groups[i].signals_head != EPF_NONE)
			return core->groups[i].signals_head;
	return EPF_NONE;
}

/* Returns the waiting stream with the oldest command of the ring at its head, or NULL. */
static const struct epf_stream *deferred_stream(const struct epf_core *core,
						const struct epf_ring_state *ring)
{
	const struct epf_stream *best = NULL;
	uint32_t least = UINT32_MAX;

	for (uint32_t i = 0; i < core->n_wait; i++) {
		const struct epf_lane *lane = &core->lanes[core->wait_lanes[i]];
		uint32_t at = lane->waiting_head;

		for (; at != EPF_NONE; at = core->streams[at].next_waiting) {
			const struct epf_stream *s = &core->streams[at];
			uint32_t head = watch_head(core, s);

			while (head != EPF_NONE && core->deferred[head].ring != ring->id)
				head = core->deferred[head].next;
			if (head == EPF_NONE || core->deferred[head].seq - ring->retired >= least)
				continue;
			least = core->deferred[head].seq - ring->retired;
			best = s;
		}
	}
	return best;
}

/* A group with a counted signal of the ring that lacks puts. */
static const struct epf_stream *group_without_puts(const struct epf_core *core,
						   const struct epf_ring_state *ring)
{
	for (uint32_t i = 0; i < core->n_groups; i++) {
		const struct epf_group *g = &core->groups[i];

		if (g->signals_head != EPF_NONE && core->deferred[g->signals_head].ring == ring->id)
			return &core->streams[g->stream];
	}
	return NULL;
}

/* Returns the stream of an entry that has an event, or NULL. */
static const struct epf_stream *entry_stream(const struct epf_core *core,
					     const struct epf_lane *lane, uint32_t at)
{
	const struct epf_node *node = &core->nodes[lane->node];
	const struct epf_wr *wr = &lane->wrs[at & lane->mask];
	uint32_t handle = wr->imm >> 16 & 0x1fffu;

	if (wr->op == EPF_WR_SEND)
		handle = entry_message(wr)->handle;
	else if (wr->op != EPF_WR_WRITE_IMM)
		return NULL;
	else if (wr->imm >> 29 == EPF_IMM_NOTIFY)
		handle = handle < node->n_notifies ? node->notify_streams[handle] : EPF_NONE;
	return handle < node->n_handles ? &core->streams[node->handles[handle]] : NULL;
}

/* Returns the rank whose region an entry without an event writes or reads; EPF_NONE if the region was withdrawn meanwhile. */
static uint32_t entry_rank(const struct epf_core *core, const struct epf_lane *lane,
			   const struct epf_wr *wr)
{
	for (uint32_t r = 0; r < core->world; r++) {
		const struct epf_peer *peer = &core->peers[r];

		for (uint32_t i = 0; peer->node == lane->node && i < peer->n_regions; i++) {
			const struct epf_region_remote *region = &peer->regions[i];

			if (region->rkeys[lane->index] == wr->rkey &&
			    wr->raddr - region->raddr < region->bytes)
				return r;
		}
	}
	return EPF_NONE;
}

/* Locates the oldest command of the ring: its lane and destination. */
static bool find_entry(const struct epf_core *core, const struct epf_ring_state *ring,
		       struct wait *out)
{
	for (uint32_t l = 0; l < core->n_lanes; l++) {
		const struct epf_lane *lane = &core->lanes[l];

		for (uint32_t at = lane->tail; at != lane->head; at++) {
			uint64_t word = lane->wrs[at & lane->mask].core;
			const struct epf_stream *s;

			if (word >> 60 != EPF_WRK_DATA || (word >> 32 & 0xffffu) != ring->id ||
			    (uint32_t)word != ring->retired)
				continue;
			s = entry_stream(core, lane, at);
			out->lane = l;
			out->rank =
				s ? s->peer : entry_rank(core, lane, &lane->wrs[at & lane->mask]);
			if (!s && out->rank != EPF_NONE && ring->streams[out->rank] != EPF_NONE)
				s = &core->streams[ring->streams[out->rank]];
			out->stream = s ? s->handle : EPF_NONE;
			return true;
		}
	}
	return false;
}

static struct wait of_stream(const struct epf_core *core, const struct epf_stream *s,
			     unsigned reason)
{
	return (struct wait){ reason, s->peer, s->handle,
			      s->lane < core->n_lanes ? s->lane : EPF_NONE };
}

struct wait watch_ring_wait(struct epf_core *core, const struct epf_ring_state *ring,
			    struct ring_track *t, uint32_t occupancy)
{
	struct wait none = { EPF_STATS_WAIT_NONE, EPF_NONE, EPF_NONE, EPF_NONE };
	const struct epf_stream *s = NULL;

	if (ring->deferred || ring->blocked != EPF_NONE)
		s = ring->blocked != EPF_NONE ? &core->streams[ring->blocked]
					      : deferred_stream(core, ring);
	if (s)
		return of_stream(core, s, watch_stream_wait(core, s));
	if (ring->flush_phase >= EPF_FLUSH_SENDING && ring->flush_list != EPF_NONE &&
	    ring->flush_seq == ring->retired) {
		unsigned reason;

		s = &core->streams[ring->flush_list];
		reason = path_wait(core, &core->lanes[s->lane]);
		return of_stream(core, s,
				 reason != EPF_STATS_WAIT_NONE ? reason : EPF_STATS_WAIT_ACK);
	}
	if (ring->retired != ring->seq) {
		if (t->found.reason == EPF_STATS_WAIT_NONE && core->watch->searches) {
			core->watch->searches--;
			if (find_entry(core, ring, &t->found)) {
				t->found.reason = EPF_STATS_WAIT_SENT;
			} else if (ring->deferred && (s = group_without_puts(core, ring))) {
				t->found = of_stream(core, s, EPF_STATS_WAIT_PUTS);
			}
		}
		if (t->found.reason == EPF_STATS_WAIT_SENT) {
			none = t->found;
			none.reason = path_wait(core, &core->lanes[t->found.lane]);
			return none.reason != EPF_STATS_WAIT_NONE ? none : t->found;
		}
		if (t->found.reason != EPF_STATS_WAIT_NONE)
			return t->found;
		none.reason = EPF_STATS_WAIT_SENT; /* its target is not known yet */
		return none;
	}
	none.reason = occupancy > ring->consumer.mask ? EPF_STATS_WAIT_FULL : EPF_STATS_WAIT_TAKEN;
	return none;
}

/* Returns true if the followed gap is still the same. */
static bool gap_stands(const struct epf_core *core, const struct gap *g)
{
	const struct epf_rx_stream *rx = &core->nodes[g->node].rx[g->handle];

	return rx->ahead && rx->base == g->base;
}

void watch_gaps(struct epf_core *core, uint64_t now_ns)
{
	struct epf_watch *w = core->watch;

	if (w->gap.since_ns && gap_stands(core, &w->gap))
		return;
	w->gap.since_ns = 0;
	for (unsigned i = 0; i < WATCH_GAP_STREAMS && core->n_nodes; i++) {
		const struct epf_node *node;
		const struct epf_rx_stream *rx;

		if (w->gap_node >= core->n_nodes)
			w->gap_node = 0;
		node = &core->nodes[w->gap_node];
		if (w->gap_handle >= node->n_rx) {
			w->gap_handle = 0;
			w->gap_node++;
			continue;
		}
		rx = &node->rx[w->gap_handle];
		if (rx->ahead) {
			w->gap = (struct gap){ w->gap_node, w->gap_handle, rx->base, now_ns };
			return;
		}
		w->gap_handle++;
	}
}
