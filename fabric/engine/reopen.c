/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Step 5 of a recovery (recover.c): reopens a lane whose work has moved and puts it back into use. Both ends do:
 *
 *   open      a new queue pair, its token sent to the peer; tried again later if the port is down or it cannot be made
 *   connect   to the peer's new one, and notify the peer
 *   prove     a first write on it must complete: a connected queue pair may still lead nowhere
 *   fail back   the streams that were on it before return
 *
 * A stream may change lanes only when nothing of it is under way: a put on the old lane could come behind its signal on the new one. So
 * such streams are put on a lane that is never up (limbo), where their commands defer, until the other lanes have completed what they
 * held; that is about one round trip.
 *
 * Runs on the core's thread between two steps, without log, allocation or system call: the NIC does what
 * opening and connecting need of those elsewhere (nic/nic.h: lane_reopen), and is asked until it is done. One lane a step is begun, so that
 * other traffic continues in between.
 */
#include "fabric/base/clock.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/recovery.h"

#include <errno.h>

enum { EASE = 20 };

/* Interval for polling a NIC's progress. */
#define ASK_AGAIN_NS UINT64_C(1000000)

void epf_outage_begin(struct epf_core *core, const struct epf_lane *lane)
{
	core->recovering++;
	core->outages[lane->link].lanes++;
}

void epf_outage_moved(struct epf_core *core, const struct epf_lane *lane,
		      struct epf_lane_recovery *r)
{
	struct epf_outage *outage = &core->outages[lane->link];
	uint64_t pause = core->now(core->now_arg) - r->failed_ns;

	if (!outage->is_moved)
		EPF_COUNT(core, FAILOVERS, 1);
	outage->is_moved = 1;
	if (r->is_moved) /* it has failed again before it was of use: nothing was waiting */
		return;
	r->is_moved = 1;
	EPF_PROBE3(lane_moved, lane->id, core->nodes[lane->node].rank, pause);
	epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_LANE_MOVED, 0, lane->id,
			core->nodes[lane->node].rank, lane->index, pause);
	epf_stat_set(core->stats, EPF_STAT_CORE_FAILOVER_NS, pause);
	if (pause > epf_stat_get(core->stats, EPF_STAT_CORE_FAILOVER_MAX_NS))
		epf_stat_set(core->stats, EPF_STAT_CORE_FAILOVER_MAX_NS, pause);
}

void epf_outage_end(struct epf_core *core, const struct epf_lane *lane, int is_up)
{
	struct epf_outage *outage = &core->outages[lane->link];

	core->recovering--;
	if (--outage->lanes)
		return;
	outage->is_moved = 0;
	if (is_up)
		EPF_COUNT(core, RECOVERIES, 1);
}

void epf_recover_forget(struct epf_core *core, struct epf_node *node)
{
	for (unsigned i = 0; node->recovery && i < node->n_lanes; i++) {
		struct epf_lane_recovery *r = &node->recovery->lanes[i];

		if (r->phase != EPF_REC_NONE)
			epf_outage_end(core, &core->lanes[node->first_lane + i], 0);
		r->phase = EPF_REC_NONE;
		/* Nobody hears what was to be said: a node that has left is still looked after. */
		r->answer = r->tell_opened = 0;
	}
	if (node->recovery)
		node->recovery->homing = 0;
}

/*
 * This attempt, begun at `begun`, has failed. An attempt that took long (the kernel asks a network that does not answer) has stalled the core, so
 * the next one comes after many times that.
 */
static void again_later(struct epf_core *core, struct epf_lane_recovery *r, uint64_t begun)
{
	uint64_t now = core->now(core->now_arg), wait = EASE * (now - begun);

	r->backoff_ns = epf_more_backoff(r->backoff_ns);
	r->retry_ns = now + (wait > r->backoff_ns ? wait : r->backoff_ns);
}

void epf_relist(struct epf_core *core, struct epf_lane *lane)
{
	uint32_t at = lane->waiting_head;

	lane->waiting_head = lane->waiting_tail = EPF_NONE;
	while (at != EPF_NONE) {
		struct epf_stream *s = &core->streams[at];

		at = s->next_waiting;
		s->waiting = 0;
		stream_wait(core, s);
	}
}

static struct epf_lane *limbo(struct epf_core *core)
{
	return &core->lanes[core->n_lanes];
}

static void note_heads(struct epf_core *core, struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++)
		node->recovery->home_heads[i] = core->lanes[node->first_lane + i].head;
	node->recovery->is_late = 0;
}

/* Begins to fail back the streams of a recovered lane. */
static void begin_homing(struct epf_core *core, struct epf_node *node, const struct epf_lane *lane)
{
	unsigned moved = 0;

	for (uint32_t h = 0; h < node->n_handles; h++) {
		struct epf_stream *s = &core->streams[node->handles[h]];

		if (s->kind == EPF_STREAM_CONTROL || s->home != lane->id || s->lane == lane->id)
			continue;
		s->lane = limbo(core)->id;
		moved++;
	}
	if (!moved)
		return;
	for (unsigned i = 0; i < node->n_lanes; i++)
		epf_relist(core, &core->lanes[node->first_lane + i]);
	node->recovery->homing = 1;
	note_heads(core, node);
}

/* Returns 1 if the lanes have completed what they held when the streams began to fail back, and what was replayed since. */
static int all_passed(struct epf_core *core, struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++) {
		unsigned phase = node->recovery->lanes[i].phase;

		if (phase != EPF_REC_NONE && phase <= EPF_REC_REPLAY)
			return 0;
	}
	if (node->recovery->is_late)
		note_heads(core, node);
	for (unsigned i = 0; i < node->n_lanes; i++) {
		const struct epf_lane *lane = &core->lanes[node->first_lane + i];

		if ((int32_t)(lane->tail - node->recovery->home_heads[i]) < 0)
			return 0;
	}
	return 1;
}

unsigned epf_home_step(struct epf_core *core, struct epf_node *node)
{
	struct epf_lane *other = epf_other_lane(core, node);
	unsigned moved = 0;

	if (!other || !all_passed(core, node)) {
		core->recover_poll = 1;
		return 0;
	}
	for (uint32_t h = 0; h < node->n_handles; h++) {
		struct epf_stream *s = &core->streams[node->handles[h]];

		if (s->lane != limbo(core)->id)
			continue;
		s->lane = core->lanes[s->home].state == EPF_LANE_UP ? s->home : other->id;
		moved++;
	}
	epf_relist(core, limbo(core));
	node->recovery->homing = 0;
	return moved;
}

/* Puts the lane back into use. */
static void take_into_use(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			  struct epf_lane_recovery *r)
{
	lane->state = EPF_LANE_UP;
	r->phase = EPF_REC_NONE;
	r->backoff_ns = 0;
	/*
	 * Each lane gets its control stream back, or the loss of the lane that took it over would leave none to send
	 * on. It holds counted messages only, so it may change lanes at any time.
	 */
	if (node->n_handles > lane->index)
		core->streams[node->handles[lane->index]].lane = lane->id;
	epf_outage_end(core, lane, 1);
	EPF_PROBE2(lane_up, lane->id, core->nodes[lane->node].rank);
	epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_LANE_UP, 0, lane->id,
			core->nodes[lane->node].rank, lane->index, 0);
	epf_grant_mark(core, lane);
	begin_homing(core, node, lane);
}

/* Returns 1 while the NIC is still working. */
static int is_under_way(struct epf_lane_recovery *r, int rc, uint64_t now)
{
	if (rc != -EAGAIN)
		return 0;
	r->retry_ns = now + ASK_AGAIN_NS;
	return 1;
}

static void open_again(struct epf_core *core, struct epf_lane *lane, struct epf_lane_recovery *r,
		       uint64_t now)
{
	int rc;

	if (core->links_untold >> lane->link & 1) {
		again_later(core, r, now);
		return;
	}
	rc = core->ops->lane_reopen(core->nic, lane->id, core->limits.lane_depth, &r->token);
	if (is_under_way(r, rc, now))
		return;
	/* While the port is down, send nothing: the peer's attempt would fail. */
	core->is_opening = rc != -ENETDOWN;
	if (rc) {
		again_later(core, r, now);
		return;
	}
	r->phase = EPF_REC_OPENING;
	r->tell_open = 1;
}

static void connect_again(struct epf_core *core, const struct epf_node *node,
			  const struct epf_lane *lane, struct epf_lane_recovery *r, uint64_t now)
{
	int rc = epf_core_reconnect_lane(core, node, lane, r->peer_token);

	if (is_under_way(r, rc, now))
		return;
	core->is_opening = 1;
	if (rc) {
		again_later(core, r, now);
		return;
	}
	r->phase = EPF_REC_CONNECTED;
	r->tell_opened = 1;
}

void epf_reopen_step(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		     struct epf_lane_recovery *r, uint64_t now)
{
	unsigned is_due = now >= r->retry_ns && !core->is_opening;

	if (r->phase == EPF_REC_CLOSED && is_due)
		open_again(core, lane, r, now);
	else if (r->phase == EPF_REC_OPENING && r->peer_open && !r->tell_open && is_due)
		connect_again(core, node, lane, r, now);
	if (r->phase == EPF_REC_CONNECTED && r->peer_opened && !r->tell_opened) {
		/* Events continue from the count that the peer has seen, and so do its grants. */
		lane->events = r->peer_arrived;
		lane->granted = r->peer_arrived + node->receives;
		if (epf_probe_post(core, lane))
			r->phase = EPF_REC_PROVING;
		else /* it has failed already, which the NIC will report, or has no room */
			core->recover_poll = 1;
	}
	if (r->phase == EPF_REC_PROVING && lane->tail == lane->head)
		take_into_use(core, node, lane, r);
	if ((r->phase == EPF_REC_CLOSED || (r->phase == EPF_REC_OPENING && r->peer_open)) &&
	    r->retry_ns < core->reopen_ns)
		core->reopen_ns = r->retry_ns;
}

void epf_reopen_later(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		      uint64_t peer_token)
{
	struct epf_lane_recovery *r = &epf_recovery_of(core, node)->lanes[lane->index];
	uint64_t now = core->now(core->now_arg);

	lane->state = EPF_LANE_OPENING;
	r->phase = EPF_REC_OPENING;
	r->peer_open = 1;
	r->token = lane->token;
	r->peer_token = peer_token;
	r->peer_arrived = core->limits.start_count;
	r->since_ns = now;
	r->is_moved = 1;
	again_later(core, r, now);
	epf_outage_begin(core, lane);
	core->cold_work = 1;
}
