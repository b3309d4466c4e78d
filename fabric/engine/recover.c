/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovers a failed lane. Both ends do the same, each for its sending direction:
 *
 *   1. fence the lane here (queue pair to error), notify the peer on another lane, reap what the NIC still holds;
 *   2. report when drained here; once the peer has reported it, too, nothing on the old lane can take effect;
 *   3. ask the peer, stream by stream, which counts have arrived, and complete those entries;
 *   4. replay the others on another lane with their old counts: exactly once;
 *   5. bind the streams to that lane, open a new queue pair in place of the dead one (reopen.c).
 *
 * Without step 2 a late packet of the old lane could overwrite a buffer that was replayed, signalled and reused. On
 * an ordered lane what has arrived is a prefix: an entry without an event counts as arrived when a later one has,
 * and is replayed otherwise, which is safe because nothing after it has been seen.
 *
 * Runs on the core's thread, without log or allocation, and makes system calls only where the NIC's fence does. When a lane's
 * work has not moved to another lane after peer-timeout, the node is DOWN.
 */
#include "fabric/engine/data_path.h"
#include "fabric/engine/recovery.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/retire_hot.h"

/*
 * A failed lane may hold messages of other recoveries until its replay, and that replay may wait for them. So the other
 * recoveries repeat what the peer may lack; receiving it twice is harmless.
 */
static void say_again(struct epf_core *core, struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++) {
		struct epf_lane_recovery *r = &node->recovery->lanes[i];

		if (r->phase == EPF_REC_NONE) {
			r->tell_opened = r->generation != 0 &&
					 core->lanes[node->first_lane + i].state == EPF_LANE_UP;
			continue;
		}
		r->tell_fence |= !r->peer_fenced;
		r->tell_fenced |= !r->peer_open;
		r->tell_open |= r->phase == EPF_REC_OPENING || r->phase == EPF_REC_CONNECTED;
		r->tell_opened |= r->phase >= EPF_REC_CONNECTED;
		r->asked = 0;
	}
}

/*
 * No lane is left. Another node is then lost. This node itself is not, or its ranks would be blamed for a cable: its lanes
 * stay as they are, and it is given up only after peer-timeout.
 */
static void last_lane(struct epf_core *core, struct epf_node *node, unsigned status)
{
	if (node != &core->nodes[core->self] || core->n_nodes == 1) {
		epf_node_down(core, node, status);
	} else if (!core->self_lost_ns) {
		core->self_lost_ns = core->now(core->now_arg) + core->limits.peer_timeout_ns;
		core->cold_work = 1;
	}
}

void epf_lane_error_cold(struct epf_core *core, struct epf_lane *lane, unsigned status)
{
	struct epf_node *node = &core->nodes[lane->node];
	struct epf_lane_recovery *r;

	if (lane->state != EPF_LANE_UP && lane->state != EPF_LANE_OPENING)
		return;
	EPF_COUNT(core, LANE_ERRORS, 1);
	lane->errors++;
	EPF_PROBE3(lane_failed, lane->id, node->rank, status);
	epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_LANE_ERROR, status, lane->id,
			node->rank, lane->index, 0);
	lane->state = EPF_LANE_FENCED;
	core->ops->lane_fence(core->nic, lane->id);
	if (!epf_recovery_of(core, node) || !epf_other_lane(core, node) ||
	    !epf_node_recovers(node)) {
		last_lane(core, node, status == EPF_S_FLUSHED ? EPF_S_RETRY_EXCEEDED : status);
		return;
	}
	say_again(core, node);
	node->recovery->is_late = 1;
	r = &node->recovery->lanes[lane->index];
	if (r->phase == EPF_REC_NONE)
		epf_outage_begin(core, lane);
	*r = (struct epf_lane_recovery){ .generation = r->generation + 1,
					 .phase = EPF_REC_FENCING,
					 .tell_fence = 1,
					 .tell_fenced = 1,
					 .answer = r->answer,
					 .answer_handle = r->answer_handle,
					 .answer_from = r->answer_from,
					 .questions = r->questions,
					 .answered = r->answered,
					 .cursor = lane->tail,
					 .is_moved = r->phase != EPF_REC_NONE && r->is_moved,
					 .backoff_ns = r->phase >= EPF_REC_CONNECTED
							       ? epf_more_backoff(r->backoff_ns)
							       : r->backoff_ns,
					 .since_ns = core->now(core->now_arg) };
	if (EPF_HOOKED(
		    EPF_HOOK_NO_FENCE)) { /* late packets of the old lane go on landing at the peer */
		r->tell_fence = r->tell_fenced = 0;
		r->phase = EPF_REC_ASKING;
	}
	r->failed_ns = r->since_ns;
	core->cold_work = 1;
}

/* Returns the stream of an entry that has an event, and its count. */
static struct epf_stream *entry_stream(struct epf_core *core, const struct epf_node *node,
				       const struct epf_wr *wr, uint32_t *count)
{
	struct epf_stream *s;
	uint32_t handle;

	if (wr->op == EPF_WR_SEND) {
		*count = entry_message(wr)->count;
		return &core->streams[node->handles[entry_message(wr)->handle]];
	}
	handle = wr->imm >> 16 & 0x1fffu;
	if (wr->imm >> 29 == EPF_IMM_NOTIFY)
		handle = node->notify_streams[handle];
	s = &core->streams[node->handles[handle]];
	*count = s->count - (uint16_t)(s->count - wr->imm);
	return s;
}

/* Returns 1 if the event with this count has arrived, 0 if not, -1 if the peer has been asked. */
static int has_arrived(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		       struct epf_lane_recovery *r, const struct epf_stream *s, uint32_t count)
{
	struct epf_msg m = { .kind = EPF_MSG_STREAM_QUERY,
			     .c = s->handle,
			     .d = count,
			     .signal = lane->index,
			     .rank = r->questions + 1 };
	uint32_t at = count - r->known_from;

	if (EPF_HOOKED(EPF_HOOK_REPLAY_ALL) || EPF_HOOKED(EPF_HOOK_REPLAY_KEEP))
		return 0;
	if (r->known && r->known_handle == s->handle && at < 256)
		return r->bits[at >> 6] >> (at & 63) & 1;
	if (!r->asked && epf_control_send(core, node, &m)) {
		r->questions++;
		r->asked = 1;
		r->known = 0;
		r->known_handle = s->handle;
		r->known_from = count;
	}
	return -1;
}

/* Marks entries whose effect at the peer is known. Not reads: that the peer served one does not bring its bytes here. */
static void mark_done(struct epf_core *core, struct epf_lane *lane, uint32_t from, uint32_t to)
{
	for (; from != to; from++) {
		struct epf_wr *wr = &lane->wrs[from & lane->mask];

		if (wr->op == EPF_WR_READ || (wr->core & EPF_WRC_DONE))
			continue;
		wr->core |= EPF_WRC_DONE;
		EPF_COUNT(core, REPLAYS_SPARED, 1);
	}
}

/* Step 3. Returns 1 when every entry has been looked at. */
static int ask(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
	       struct epf_lane_recovery *r)
{
	for (; r->cursor != lane->head; r->cursor++) {
		struct epf_wr *wr = &lane->wrs[r->cursor & lane->mask];
		const struct epf_stream *s;
		uint32_t count;
		int arrived;

		if (!(wr->core & EPF_WRC_EVENT) || (wr->core & EPF_WRC_DONE))
			continue;
		if ((int32_t)(r->cursor - lane->posted) >= 0)
			break; /* never given to the NIC, nor what follows */
		s = entry_stream(core, node, wr, &count);
		arrived = has_arrived(core, node, lane, r, s, count);
		if (arrived < 0)
			return 0;
		if (arrived)
			mark_done(core, lane, core->ordered ? lane->tail : r->cursor,
				  r->cursor + 1);
		else if (core->ordered)
			break;
	}
	r->phase = EPF_REC_REPLAY;
	return 1;
}

/* Sends the messages of this recovery, as far as there is room. */
static unsigned talk(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		     struct epf_lane_recovery *r)
{
	struct epf_msg m = { .c = lane->index, .signal = r->generation };
	unsigned handled = 0;

	m.kind = EPF_MSG_LANE_FENCE;
	if (r->tell_fence && epf_control_send(core, node, &m)) {
		r->tell_fence = 0;
		handled++;
	}
	m.kind = EPF_MSG_LANE_FENCED;
	if (r->tell_fenced && !r->tell_fence && core->ops->lane_drained(core->nic, lane->id) &&
	    epf_control_send(core, node, &m)) {
		r->tell_fenced = 0;
		handled++;
	}
	m.kind = EPF_MSG_LANE_OPEN;
	m.value = r->token;
	m.d = lane->arrived;
	if (r->tell_open && epf_control_send(core, node, &m)) {
		lane->given = lane->arrived + core->limits.lane_receives;
		r->tell_open = 0;
		handled++;
	}
	m.kind = EPF_MSG_LANE_OPENED;
	if (r->tell_opened && epf_control_send(core, node, &m)) {
		r->tell_opened = 0;
		handled++;
	}
	return handled;
}

static unsigned answer_query(struct epf_core *core, struct epf_node *node, unsigned index,
			     struct epf_lane_recovery *r)
{
	/* Of a stream that was never heard of nothing has arrived. */
	const struct epf_rx_stream none = { .base = core->limits.start_count };
	const struct epf_rx_stream *rx =
		r->answer_handle < node->n_rx ? &node->rx[r->answer_handle] : &none;
	struct epf_msg m = { .kind = EPF_MSG_STREAM_STATE,
			     .c = r->answer_handle,
			     .d = r->answer_from,
			     .signal = index };
	uint64_t bits[4] = { 0, 0, 0, 0 };

	for (uint32_t i = 0; i < 256; i++) {
		uint32_t count = r->answer_from + i, ahead = count - rx->base,
			 at = count & core->rx_mask;
		uint64_t in = (int32_t)ahead < 0 || (rx->bits && ahead <= core->rx_mask &&
						     (rx->bits[at >> 6] >> (at & 63) & 1));

		bits[i >> 6] |= in << (i & 63);
	}
	m.value = bits[0];
	m.a = bits[1];
	m.b = bits[2];
	m.e = bits[3];
	if (!epf_control_send(core, node, &m))
		return 0;
	r->answer = 0;
	return 1;
}

static unsigned lane_step(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			  struct epf_lane_recovery *r, uint64_t now)
{
	unsigned phase = r->phase, handled = talk(core, node, lane, r);
	uint32_t tail = lane->tail;
	int is_needed = node->state == EPF_NODE_UP; /* not of a node that has left */

	if (r->phase == EPF_REC_FENCING && r->peer_fenced && !r->tell_fenced && !r->tell_fence &&
	    core->ops->lane_drained(core->nic, lane->id)) {
		r->cursor = lane->tail;
		r->phase = EPF_REC_ASKING;
	}
	if (r->phase == EPF_REC_ASKING)
		ask(core, node, lane, r);
	if (r->phase == EPF_REC_REPLAY && epf_replay(core, node, lane, r)) {
		epf_outage_moved(core, lane, r);
		r->phase = EPF_REC_CLOSED;
		lane->state = EPF_LANE_OPENING;
		r->retry_ns = now + r->backoff_ns;
	}
	if (r->phase >= EPF_REC_CLOSED && is_needed)
		epf_reopen_step(core, node, lane, r, now);
	/* A deadline applies until its work goes on elsewhere; reopening has time. */
	if (r->phase != EPF_REC_NONE && r->phase <= EPF_REC_REPLAY &&
	    now - r->since_ns > core->limits.peer_timeout_ns)
		epf_node_down(core, node, EPF_S_RETRY_EXCEEDED);
	core->recover_poll |=
		(r->phase != EPF_REC_NONE && r->phase <= EPF_REC_REPLAY) || r->tell_fenced ||
		(is_needed && (r->phase == EPF_REC_PROVING || r->tell_open || r->tell_opened));
	return handled + (lane->tail - tail) + (r->phase != phase);
}

/*
 * Returns for how long this core was not stepped: that time does not count against its peers. While a recovery polls, steps otherwise follow each
 * other without a pause.
 */
static uint64_t rested_ns(const struct epf_core *core, uint64_t now)
{
	uint64_t before = core->recover_seen_ns;

	return before && now - before > core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT
		       ? now - before
		       : 0;
}

static unsigned node_step(struct epf_core *core, struct epf_node *node, uint64_t now,
			  uint64_t rested)
{
	unsigned handled = 0;

	for (unsigned i = 0; i < node->n_lanes && epf_node_recovers(node); i++) {
		struct epf_lane_recovery *r = &node->recovery->lanes[i];

		if (r->answer)
			handled += answer_query(core, node, i, r);
		if (r->phase != EPF_REC_NONE) {
			/* A lane may have failed behind the rest. */
			r->since_ns = rested < now - r->since_ns ? r->since_ns + rested : now;
			handled +=
				lane_step(core, node, &core->lanes[node->first_lane + i], r, now);
		} else if (r->tell_opened) {
			handled += talk(core, node, &core->lanes[node->first_lane + i], r);
		}
		core->recover_poll |= r->answer || r->tell_opened;
	}
	if (node->recovery->homing && epf_node_recovers(node))
		handled += epf_home_step(core, node);
	return handled;
}

unsigned epf_recover_step(struct epf_core *core, uint64_t now)
{
	uint64_t rested = rested_ns(core, now);
	unsigned handled = 0;

	core->recover_poll = 0;
	core->is_opening = 0;
	core->reopen_ns = UINT64_MAX;
	if (core->self_lost_ns && now >= core->self_lost_ns) {
		core->self_lost_ns = 0;
		epf_node_down(core, &core->nodes[core->self], EPF_S_LINK_DOWN);
	} else if (core->self_lost_ns) {
		core->reopen_ns = core->self_lost_ns;
	}
	for (uint32_t n = 0; core->limits.lanes_per_node > 1 && n < core->n_nodes; n++)
		if (epf_node_recovers(&core->nodes[n]) && core->nodes[n].recovery)
			handled += node_step(core, &core->nodes[n], now, rested);
	core->cold_work |= core->recover_poll != 0;
	core->recover_seen_ns = core->recover_poll ? now : 0;
	return handled;
}

void epf_recover_message(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			 const struct epf_msg *m)
{
	unsigned about_stream = m->kind == EPF_MSG_STREAM_QUERY || m->kind == EPF_MSG_STREAM_STATE;
	uint32_t index = about_stream ? m->signal : m->c;
	struct epf_lane_recovery *r;

	(void)lane;
	if (index >= node->n_lanes || !epf_recovery_of(core, node))
		goto refuse;
	r = &node->recovery->lanes[index];
	core->cold_work = 1;
	if (!about_stream) {
		/* The peer has seen a failure that we have not: it is ours too. */
		if (m->signal == r->generation + 1)
			epf_lane_error_cold(core, &core->lanes[node->first_lane + index],
					    EPF_S_FLUSHED);
		if (m->signal != r->generation)
			return; /* of an earlier failure, overtaken on another lane */
	}
	switch (m->kind) {
	case EPF_MSG_LANE_FENCE:
		break;
	case EPF_MSG_LANE_FENCED:
		r->peer_fenced = 1;
		break;
	case EPF_MSG_STREAM_QUERY:
		if (m->c >= node->rx_streams)
			goto refuse;
		/* One asked twice may come behind the next one, which must not be forgotten for it. */
		if ((int32_t)(m->rank - r->answered) <= 0)
			return;
		r->answered = m->rank;
		r->answer = 1;
		r->answer_handle = (uint16_t)m->c;
		r->answer_from = m->d;
		break;
	case EPF_MSG_STREAM_STATE:
		if (!r->asked || m->c != r->known_handle || m->d != r->known_from)
			return; /* the answer to a question that was asked twice */
		r->asked = 0;
		r->known = 1;
		r->bits[0] = m->value;
		r->bits[1] = m->a;
		r->bits[2] = m->b;
		r->bits[3] = m->e;
		break;
	case EPF_MSG_LANE_OPEN:
		r->peer_open = 1;
		r->peer_token = m->value;
		r->peer_arrived = m->d;
		break;
	case EPF_MSG_LANE_OPENED:
		r->peer_opened = 1;
		break;
	default:
		goto refuse;
	}
	return;
refuse:
	EPF_COUNT(core, ARRIVALS_REFUSED, 1);
}
