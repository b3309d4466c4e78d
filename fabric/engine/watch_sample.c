/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples a rank, ring, lane or peer for the watch (watch.h): whether it progresses and, if not, what it waits for. watch_round.c
 * calls these on the core's thread between two steps. They must not change the core, except for counts that they collect
 * and reset.
 */
#include "fabric/engine/watch_priv.h"

#include "fabric/base/clock.h"
#include "fabric/engine/grow.h"
#include "fabric/engine/recovery.h"

#include <stdlib.h>

enum { GAP_AFTER_NS = 300 * 1000 * 1000, LABELS_MOST = 4 };

bool watch_is_still(struct track *t, uint64_t a, uint64_t b, uint64_t c, uint64_t now_ns)
{
	if (t->since_ns && t->a == a && t->b == b && t->c == c)
		return true;
	t->a = a;
	t->b = b;
	t->c = c;
	t->since_ns = now_ns;
	return false;
}

void watch_gauge(struct epf_stats_block *block, uint32_t stat, uint32_t value)
{
	if (value == EPF_NONE)
		epf_stat_forget(block, stat);
	else
		epf_stat_set(block, stat, value);
}

void watch_enter(struct epf_core *core, struct epf_stats_block *block, uint32_t stat, uint8_t *last,
		 unsigned reason, uint64_t since_ns, uint32_t id, uint32_t rank)
{
	struct epf_watch *w = core->watch;

	if (reason != EPF_STATS_WAIT_NONE) {
		w->waits++;
		w->waits_hidden += block == NULL;
		if (*last != reason)
			epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_WAIT, reason, id, rank,
					stat >> 16, since_ns);
	}
	*last = (uint8_t)reason;
	if (block)
		epf_stat_state(block, stat, reason, since_ns);
}

void watch_state(struct epf_stats_block *block, uint32_t stat, uint32_t state, uint64_t now_ns)
{
	uint64_t old = epf_stat_get(block, stat);

	if (old == 0 || old >> EPF_STATS_STATE_SHIFT != state)
		epf_stat_state(block, stat, state, now_ns);
}

static unsigned peer_state(const struct epf_core *core, uint32_t rank)
{
	switch (core->peers_page->peers[rank].state) {
	case EPF_PEER_UP:
		return EPF_STATS_PEER_UP;
	case EPF_PEER_DOWN:
		return EPF_STATS_PEER_DOWN;
	case EPF_PEER_LEFT:
		return EPF_STATS_PEER_LEFT;
	default:
		return EPF_STATS_PEER_CONNECTING;
	}
}

void watch_look_rank(struct epf_core *core, uint32_t i, uint64_t now)
{
	const struct epf_rank_state *rank = &core->ranks[i];
	struct epf_watch *w = core->watch;
	struct rank_track *t = &w->rank[i];
	struct epf_stats_label labels[] = { { NULL, w->cfg.number }, { NULL, rank->rank } };
	struct wait wait = { EPF_STATS_WAIT_NONE, EPF_NONE, EPF_NONE, EPF_NONE };
	struct epf_stats_block *block;
	uint64_t pushed = 0, value = 0;
	bool still;

	/* Between two sleeps the rank polls by itself; its wait condition persists. */
	if (watch_rank_condition(rank, &t->condition))
		t->missed = 0;
	else if (t->missed < WATCH_MISSES)
		t->missed++;
	if (t->missed < WATCH_MISSES)
		wait = watch_rank_wait(core, rank, &t->condition, &value);
	for (uint32_t r = 0; r < core->n_rings; r++)
		if (core->rings[r]->live && core->rings[r]->rank == i)
			pushed +=
				core->rings[r]->consumer.tail + (w->ring[r] ? w->ring[r]->t.c : 0);
	still = watch_is_still(&t->t, (uint64_t)wait.reason << 32 | t->condition.index, value,
			       t->condition.least, now);
	if (pushed != t->pushed || !still || !t->active_ns)
		t->active_ns = now;
	t->pushed = pushed;
	if (!still)
		wait.reason = EPF_STATS_WAIT_NONE;
	if (wait.reason == EPF_STATS_WAIT_SIGNAL && now - t->t.since_ns > w->signal_wait_ns)
		w->signal_wait_ns = now - t->t.since_ns;
	block = watch_shelf_get(w->cfg.stats, &w->ranks, i, wait.reason != EPF_STATS_WAIT_NONE,
				labels, 2);
	watch_enter(core, block, EPF_STAT_RANK_WAIT, &t->t.wait, wait.reason, t->t.since_ns,
		    rank->rank, wait.rank);
	if (!block)
		return;
	watch_state(block, EPF_STAT_RANK_STATE, peer_state(core, rank->rank), now);
	watch_gauge(block, EPF_STAT_RANK_PID, rank->pid ? rank->pid : EPF_NONE);
	epf_stat_set(block, EPF_STAT_RANK_ACTIVE_NS, t->active_ns);
	epf_stat_set(block, EPF_STAT_RANK_WAIT_NUMBER,
		     t->condition.what == EPF_WAKE_ON_STORE ? EPF_STATS_NO_SIGNAL
							    : t->condition.index);
	epf_stat_set(block, EPF_STAT_RANK_WAIT_VALUE, value);
	epf_stat_set(block, EPF_STAT_RANK_WAIT_LEAST, t->condition.least);
	epf_stat_set(block, EPF_STAT_RANK_WAIT_KERNEL, t->condition.kernel);
	watch_gauge(block, EPF_STAT_RANK_WAIT_RANK, wait.rank);
}

static void show_ring(const struct epf_ring_state *ring, struct epf_stats_block *b,
		      const struct wait *wait, uint32_t occupancy)
{
	epf_stat_forget(b,
			EPF_STAT_RING_CMDS_PUSHED_SEEN); /* only slots are visible, not commands */
	epf_stat_set(b, EPF_STAT_RING_CMDS_DEQUEUED,
		     ring->retired64 + (ring->seq - ring->published));
	epf_stat_set(b, EPF_STAT_RING_CMDS_RETIRED, ring->retired64);
	epf_stat_set(b, EPF_STAT_RING_CMDS_FAILED, ring->failed);
	epf_stat_set(b, EPF_STAT_RING_OCCUPANCY, occupancy);
	epf_stat_set(b, EPF_STAT_RING_SLOTS, (uint64_t)ring->consumer.mask + 1);
	epf_stat_set(b, EPF_STAT_RING_DEFERRED, ring->deferred);
	watch_gauge(b, EPF_STAT_RING_WAIT_RANK, wait->rank);
	watch_gauge(b, EPF_STAT_RING_WAIT_STREAM, wait->stream);
	watch_gauge(b, EPF_STAT_RING_WAIT_LANE, wait->lane);
}

void watch_look_ring(struct epf_core *core, uint32_t i, uint64_t now)
{
	const struct epf_ring_state *ring = core->rings[i];
	struct epf_watch *w = core->watch;
	struct wait wait = { EPF_STATS_WAIT_NONE, EPF_NONE, EPF_NONE, EPF_NONE };
	struct epf_stats_block *block;
	struct ring_track *t = w->ring[i];
	uint32_t occupancy;

	if (!ring->live) {
		if (w->rings.slot[i] != EPF_NONE)
			watch_shelf_drop(w->cfg.stats, &w->rings, w->rings.slot[i]);
		return;
	}
	if (!t) /* once per ring; without memory the ring is not watched */
		t = w->ring[i] = calloc(1, sizeof(*t));
	if (!t)
		return;
	occupancy = watch_occupancy(ring);
	if (!watch_is_still(&t->t, ring->retired, ring->seq, occupancy, now))
		t->found = wait;
	else if (occupancy || ring->retired != ring->seq)
		wait = watch_ring_wait(core, ring, t, occupancy);
	{
		const struct epf_stats_label labels[LABELS_MOST] = {
			{ NULL, w->cfg.number },
			{ NULL, EPF_LOAD_RELAXED(&ring->consumer.shm->ring_id) },
			EPF_STATS_NO_LABEL,
			{ NULL, core->ranks[ring->rank].rank },
		};

		block = watch_shelf_get(w->cfg.stats, &w->rings, i,
					wait.reason != EPF_STATS_WAIT_NONE, labels, 4);
	}
	watch_enter(core, block, EPF_STAT_RING_WAIT, &t->t.wait, wait.reason, t->t.since_ns, i,
		    wait.rank);
	if (block) {
		show_ring(ring, block, &wait, occupancy);
		/* A push needs two free slots: one free slot counts as full. */
		if (occupancy >= ring->consumer.mask && !t->is_full)
			epf_stat_add(block, EPF_STAT_RING_RING_FULL_SEEN, 1);
	}
	t->is_full = occupancy >= ring->consumer.mask;
}

static unsigned lane_state(const struct epf_lane *lane)
{
	static const uint8_t states[] = { [EPF_LANE_DOWN] = EPF_STATS_LANE_DOWN,
					  [EPF_LANE_UP] = EPF_STATS_LANE_UP,
					  [EPF_LANE_FENCED] = EPF_STATS_LANE_FAILED,
					  [EPF_LANE_OPENING] = EPF_STATS_LANE_CONNECTING };

	return lane->state < sizeof(states) ? states[lane->state] : EPF_STATS_LANE_FAILED;
}

static void show_path(const struct epf_core *core, const struct epf_lane *lane,
		      struct epf_stats_block *b, uint64_t now)
{
	struct epf_nic_path path;

	if (!core->ops->lane_path(core->nic, lane->id, &path))
		return;
	watch_state(b, EPF_STAT_LANE_PATH, path.state, now);
	epf_stat_set(b, EPF_STAT_LANE_RETRANSMITS, path.retransmits);
	watch_gauge(b, EPF_STAT_LANE_RTT_US, path.rtt_us ? path.rtt_us : EPF_NONE);
	watch_gauge(b, EPF_STAT_LANE_CWND_BYTES, path.rtt_us ? path.cwnd_bytes : EPF_NONE);
	watch_gauge(b, EPF_STAT_LANE_UNSENT_BYTES, path.rtt_us ? path.unsent_bytes : EPF_NONE);
}

static void show_lane(const struct epf_core *core, const struct epf_lane *lane,
		      const struct lane_track *t, struct epf_stats_block *b, uint64_t now)
{
	const struct epf_node *node = &core->nodes[lane->node];

	watch_state(b, EPF_STAT_LANE_STATE, lane_state(lane), now);
	epf_stat_set(b, EPF_STAT_LANE_WRS_POSTED, t->posted);
	epf_stat_set(b, EPF_STAT_LANE_COMPLETIONS, t->completed);
	epf_stat_set(b, EPF_STAT_LANE_IN_FLIGHT, lane->head - lane->tail);
	epf_stat_set(b, EPF_STAT_LANE_CREDITS_AVAILABLE,
		     (int32_t)(lane->granted - lane->events) > 0 ? lane->granted - lane->events
								 : 0);
	if (node->recovery)
		epf_stat_set(b, EPF_STAT_LANE_EPOCH, node->recovery->lanes[lane->index].generation);
	epf_stat_set(b, EPF_STAT_LANE_BYTES_POSTED, t->bytes);
	epf_stat_set(b, EPF_STAT_LANE_ERRORS, lane->errors);
	epf_stat_set(b, EPF_STAT_LANE_REPLAYS, lane->replays);
	epf_stat_forget(b, EPF_STAT_LANE_RECEIVES_GRANTED); /* no 64-bit count exists */
	show_path(core, lane, b, now);
}

void watch_look_lane(struct epf_core *core, uint32_t i, uint64_t now)
{
	const struct epf_lane *lane = &core->lanes[i];
	const struct epf_node *node = &core->nodes[lane->node];
	struct epf_watch *w = core->watch;
	struct lane_track *t = &w->lane[i];
	struct epf_stats_label labels[] = {
		{ NULL, w->cfg.number }, { NULL, i }, { NULL, node->rank }, { core->caps.name, 0 }
	};
	unsigned reason = EPF_STATS_WAIT_NONE;
	struct epf_stats_block *block;

	t->posted += lane->posted - t->last_posted;
	t->completed += lane->tail - t->last_tail;
	t->last_posted = lane->posted;
	t->last_tail = lane->tail;
	if (watch_is_still(&t->t, lane->tail, lane->state, 0, now) &&
	    (lane->tail != lane->head || lane->waiting_head != EPF_NONE) &&
	    node->state != EPF_NODE_LEFT)
		reason = watch_lane_wait(core, lane);
	else if (lane->tail == lane->head)
		t->t.since_ns = now; /* idle: the wait begins with the next posting */
	block = watch_shelf_get(w->cfg.stats, &w->lanes, i, reason != EPF_STATS_WAIT_NONE, labels,
				4);
	watch_enter(core, block, EPF_STAT_LANE_WAIT, &t->t.wait, reason, t->t.since_ns, i,
		    node->rank);
	if (block)
		show_lane(core, lane, t, block, now);
}

/* The track of a peer, made when there is something to keep. NULL if there is no memory for it. */
static struct peer_track *watch_peer(struct epf_core *core, uint32_t rank)
{
	struct epf_watch *w = core->watch;

	if (!w->peer[rank])
		w->peer[rank] = epf_grow_take(core, sizeof(struct peer_track));
	return w->peer[rank];
}

/* Nothing was exchanged with it and nothing waited for it. */
static bool is_unused(const struct epf_peer *peer)
{
	uint32_t all = peer->signals_applied;

	for (unsigned i = 0; i < EPF_STALLS; i++)
		all |= peer->stalls[i];
	return !all;
}

/* Links the tracks of all peers with deferred commands. Returns the first rank, or EPF_NONE. */
static uint32_t list_deferred(struct epf_core *core)
{
	struct epf_watch *w = core->watch;
	uint32_t first = EPF_NONE;

	for (uint32_t i = 0; i < core->n_wait; i++) {
		uint32_t at = core->lanes[core->wait_lanes[i]].waiting_head;

		for (; at != EPF_NONE; at = core->streams[at].next_waiting) {
			const struct epf_stream *s = &core->streams[at];
			struct peer_track *t = watch_peer(core, s->peer);
			uint32_t head = watch_head(core, s);

			if (head == EPF_NONE || s->kind == EPF_STREAM_CONTROL || !t)
				continue;
			if (t->look != w->look) {
				if (t->look != w->look - 1) { /* it is new here */
					t->last = 0;
					t->since_ns = 0;
				}
				t->look = w->look;
				t->current = t->deferred = 0;
				t->stream = at;
				t->next = first;
				first = s->peer;
			}
			t->deferred += s->deferred_count;
			t->current = t->current * 31u + core->deferred[head].seq * 7u +
				     core->deferred[head].done + 1;
		}
	}
	return first;
}

static struct epf_stats_block *peer_block(struct epf_core *core, uint32_t rank, bool waits)
{
	struct epf_watch *w = core->watch;
	struct epf_stats_label labels[] = { { NULL, w->cfg.number }, { NULL, rank } };

	return watch_shelf_get(w->cfg.stats, &w->peers, rank, waits, labels, 2);
}

static void show_peer(struct epf_core *core, uint32_t rank, struct epf_stats_block *b, uint64_t now)
{
	const struct epf_node *node = &core->nodes[core->peers[rank].node];
	static const struct peer_track none;
	const struct peer_track *t = core->watch->peer[rank] ? core->watch->peer[rank] : &none;

	watch_state(b, EPF_STAT_PEER_STATE, peer_state(core, rank), now);
	epf_stat_set(b, EPF_STAT_PEER_SILENT_NS,
		     node->silent_ticks * (core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT));
	epf_stat_set(b, EPF_STAT_PEER_CMDS, t->cmds);
	epf_stat_set(b, EPF_STAT_PEER_BYTES_SENT, t->bytes_sent);
	epf_stat_set(b, EPF_STAT_PEER_SIGNALS_SENT, t->signals_sent);
	epf_stat_set(b, EPF_STAT_PEER_SIGNALS_APPLIED, t->signals_applied);
	epf_stat_set(b, EPF_STAT_PEER_STALLS_NO_CREDIT, t->stalls[EPF_STALL_CREDIT]);
	epf_stat_set(b, EPF_STAT_PEER_STALLS_QUEUE_FULL, t->stalls[EPF_STALL_QUEUE]);
	epf_stat_set(b, EPF_STAT_PEER_STALLS_LANE_DOWN, t->stalls[EPF_STALL_LANE]);
}

/* Samples a peer with deferred commands, or with a gap in a stream (gap not NULL). */
static void look_peer(struct epf_core *core, uint32_t rank, const struct gap *gap, uint64_t now)
{
	struct epf_watch *w = core->watch;
	struct peer_track *t = w->peer[rank];
	const struct epf_stream *s = &core->streams[t->stream]; /* not of a gap */
	unsigned reason = EPF_STATS_WAIT_NONE;
	uint64_t since = gap ? gap->since_ns : t->since_ns;
	struct epf_stats_block *block;
	uint8_t last = EPF_STATS_WAIT_NONE;

	if (gap)
		reason = EPF_STATS_WAIT_GAP;
	else if (t->since_ns && t->last == t->current)
		reason = watch_stream_wait(core, s);
	else
		since = t->since_ns = now;
	t->last = gap ? t->last : t->current;
	block = peer_block(core, rank, reason != EPF_STATS_WAIT_NONE);
	if (block)
		last = (uint8_t)(epf_stat_get(block, EPF_STAT_PEER_WAIT) >> EPF_STATS_STATE_SHIFT);
	watch_enter(core, block, EPF_STAT_PEER_WAIT, &last, reason, since, rank, EPF_NONE);
	if (!block)
		return;
	show_peer(core, rank, block, now);
	epf_stat_set(block, EPF_STAT_PEER_DEFERRED, gap ? 0 : t->deferred);
	epf_stat_set(block, EPF_STAT_PEER_WAIT_STREAM, gap ? gap->handle : s->handle);
	watch_gauge(block, EPF_STAT_PEER_WAIT_LANE,
		    !gap && s->lane < core->n_lanes ? s->lane : EPF_NONE);
}

void watch_take_counts(struct epf_core *core)
{
	struct epf_watch *w = core->watch;

	for (uint32_t i = 0; i < core->n_streams; i++) {
		struct epf_stream *s = &core->streams[i];
		uint64_t bytes = s->sent % EPF_SENT_COMMAND;
		struct peer_track *t;

		if ((!s->sent && !s->signals) || s->peer >= core->world)
			continue;
		t = watch_peer(core, s->peer);
		if (!t)
			continue;
		t->cmds += s->sent / EPF_SENT_COMMAND;
		t->bytes_sent += bytes;
		t->signals_sent += s->signals;
		if (s->lane < core->n_lanes)
			w->lane[s->lane].bytes += bytes;
		s->sent = 0;
		s->signals = 0;
	}
	for (uint32_t r = 0; r < core->world; r++) {
		const struct epf_peer *peer = &core->peers[r];
		struct peer_track *t = w->peer[r];

		if (!t && is_unused(peer))
			continue;
		t = watch_peer(core, r);
		if (!t)
			continue;
		t->signals_applied += peer->signals_applied - t->last_applied;
		t->last_applied = peer->signals_applied;
		for (unsigned i = 0; i < EPF_STALLS; i++) {
			t->stalls[i] += peer->stalls[i] - t->last_stalls[i];
			t->last_stalls[i] = peer->stalls[i];
		}
	}
}

void watch_look_peers(struct epf_core *core, uint64_t now)
{
	struct epf_watch *w = core->watch;
	struct peer_track *t;
	uint32_t at = list_deferred(core);

	if (w->signal_wait_ns >= GAP_AFTER_NS || w->gap.since_ns)
		watch_gaps(core, now);
	for (; at != EPF_NONE; at = w->peer[at]->next)
		look_peer(core, at, NULL, now);
	if (w->gap.since_ns && w->gap.since_ns != now) {
		at = core->nodes[w->gap.node].rank;
		t = watch_peer(core, at);
		if (t && t->look != w->look)
			look_peer(core, at, &w->gap, now);
		if (t)
			t->look = w->look;
	}
	/* Add the other peers while there is room; refresh those that have a block. */
	for (uint32_t r = 0; w->peers.shown < w->peers.most && r < core->world; r++)
		(void)peer_block(core, r, false);
	for (uint32_t i = 0; i < w->peers.room; i++) {
		uint32_t rank = w->peers.owner[i];

		if (rank == EPF_NONE || (w->peer[rank] && w->peer[rank]->look == w->look))
			continue;
		w->peers.waits[i] = 0;
		show_peer(core, rank, w->peers.block[i], now);
		epf_stat_state(w->peers.block[i], EPF_STAT_PEER_WAIT, EPF_STATS_WAIT_NONE, now);
		epf_stat_set(w->peers.block[i], EPF_STAT_PEER_DEFERRED, 0);
		epf_stat_forget(w->peers.block[i], EPF_STAT_PEER_WAIT_STREAM);
		epf_stat_forget(w->peers.block[i], EPF_STAT_PEER_WAIT_LANE);
	}
}
