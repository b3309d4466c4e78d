/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane has failed. Both ends do the same, each for its own sending direction:
 *
 *   1. fence the lane here (queue pair to error), tell the peer on another lane, take in what the NIC still has;
 *   2. when drained here, say so; when the peer has said so too, nothing on the old lane can take effect any more;
 *   3. ask the peer, stream by stream, which counts have arrived, and complete those entries;
 *   4. replay the others on another lane with their old counts: exactly once;
 *   5. bind the streams to that lane, open a new queue pair in place of the dead one.
 *
 * Without step 2 a late packet of the old lane could overwrite a buffer that was replayed, signalled and reused. On
 * an ordered lane what has arrived is a prefix: an entry without an event counts as arrived when a later one has,
 * and is replayed otherwise, which is safe because nothing after it has been seen.
 *
 * Runs on the core's thread, without log or allocation. Only step 5 makes system calls: lane_create and lane_connect are the
 * NIC's slow path, and a lane fails rarely. Past peer-timeout the node is DOWN.
 */
#include "fabric/recover.h"

#include "fabric/base/err.h"
#include "fabric/engine.h"
#include "fabric/retire_hot.h"
#include "fabric/stage_hot.h"

static struct epf_lane *other_lane(struct epf_core *core, const struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++)
		if (core->lanes[node->first_lane + i].state == EPF_LANE_UP)
			return &core->lanes[node->first_lane + i];
	return NULL;
}

/*
 * A lane of the node has failed: what other recoveries have said may be lost with it until it is replayed, and its
 * replay may wait for just that. So they say again what the peer may not have heard; saying it twice does no harm.
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
		r->tell_open |= r->phase >= EPF_REC_OPENING;
		r->tell_opened |= r->phase == EPF_REC_CONNECTED;
		r->asked = 0;
	}
}

void epf_lane_error_cold(struct epf_core *core, struct epf_lane *lane, unsigned status)
{
	struct epf_node *node = &core->nodes[lane->node];
	struct epf_lane_recovery *r;

	if (lane->state != EPF_LANE_UP && lane->state != EPF_LANE_OPENING)
		return;
	EPF_COUNT(core, LANE_ERRORS, 1);
	lane->state = EPF_LANE_FENCED;
	core->ops->lane_fence(core->nic, lane->id);
	if (!node->recovery || !other_lane(core, node) || node->state != EPF_NODE_UP) {
		epf_node_down(core, node, status == EPF_S_FLUSHED ? EPF_S_RETRY_EXCEEDED : status);
		return;
	}
	say_again(core, node);
	r = &node->recovery->lanes[lane->index];
	core->recovering += r->phase == EPF_REC_NONE;
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
					 .since_ns = core->now(core->now_arg) };
	if (EPF_HOOKED(
		    EPF_HOOK_NO_FENCE)) { /* late packets of the old lane go on landing at the peer */
		r->tell_fence = r->tell_fenced = 0;
		r->phase = EPF_REC_ASKING;
	}
	core->cold_work = 1;
}

/* The stream and count of an entry that has an event. */
static struct epf_stream *entry_stream(struct epf_core *core, const struct epf_node *node,
				       const struct epf_wr *wr, const struct epf_msg *msg,
				       uint32_t *count)
{
	struct epf_stream *s;
	uint32_t handle;

	if (wr->op == EPF_WR_SEND) {
		*count = msg->count;
		return &core->streams[node->handles[msg->handle]];
	}
	handle = wr->imm >> 16 & 0x1fffu;
	if (wr->imm >> 29 == EPF_IMM_NOTIFY)
		handle = node->notify_streams[handle];
	s = &core->streams[node->handles[handle]];
	*count = s->count - (uint16_t)(s->count - wr->imm);
	return s;
}

/* 1: the event with this count has arrived; 0: not; -1: not known yet (asked). */
static int has_arrived(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		       struct epf_lane_recovery *r, const struct epf_stream *s, uint32_t count)
{
	struct epf_msg m = { .kind = EPF_MSG_STREAM_QUERY,
			     .c = s->handle,
			     .d = count,
			     .signal = lane->index,
			     .rank = r->questions + 1 };
	uint32_t at = count - r->known_from;

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

/* Entries whose effect at the peer is known. Not reads: that the peer has served one does not bring its bytes here. */
static void mark_done(struct epf_lane *lane, uint32_t from, uint32_t to)
{
	for (; from != to; from++)
		if (lane->wrs[from & lane->mask].op != EPF_WR_READ)
			lane->wrs[from & lane->mask].core |= EPF_WRC_DONE;
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
		s = entry_stream(core, node, wr, &lane->msgs[r->cursor & lane->mask], &count);
		arrived = has_arrived(core, node, lane, r, s, count);
		if (arrived < 0)
			return 0;
		if (arrived)
			mark_done(lane, core->ordered ? lane->tail : r->cursor, r->cursor + 1);
		else if (core->ordered)
			break;
	}
	r->phase = EPF_REC_REPLAY;
	return 1;
}

/* Copies an entry to another lane, payload slot included. */
static void move_entry(struct epf_core *core, struct epf_lane *from, struct epf_wr *wr,
		       struct epf_lane *to)
{
	struct epf_msg *old = &from->msgs[from->tail & from->mask], *slot;
	struct epf_wr *copy = lane_entry(core, to, &slot);
	uint32_t id = copy->id;

	*slot = *old;
	*copy = *wr;
	copy->id = id;
	if (wr->flags & EPF_WR_INLINE)
		copy->laddr = (uint64_t)(uintptr_t)slot + (wr->laddr - (uint64_t)(uintptr_t)old);
	if (wr->core & EPF_WRC_EVENT)
		to->events++;
	EPF_COUNT(core, REPLAYS, 1);
}

/* The streams of a dead lane go on over another one; those with parked commands wait there. */
static void rebind(struct epf_core *core, struct epf_node *node, struct epf_lane *from,
		   struct epf_lane *to)
{
	for (uint32_t h = 0; h < node->n_handles; h++) {
		struct epf_stream *s = &core->streams[node->handles[h]];

		if (s->lane != from->id)
			continue;
		s->lane = to->id;
		s->waiting = 0;
		if (s->parked_head != EPF_NONE || s->signals_head != EPF_NONE)
			stream_wait(core, s);
	}
	from->waiting_head = from->waiting_tail = EPF_NONE;
	if (node->draining)
		epf_drain_snapshot(core, node);
}

/*
 * The lane that takes over: chosen once, because on an ordered NIC a put and the signal behind it must not be parted. If
 * it fails meanwhile, what was moved to it moves on, and the rest follows behind; NULL until that is so.
 */
static struct epf_lane *takes_over(struct epf_core *core, struct epf_node *node,
				   struct epf_lane_recovery *r)
{
	struct epf_lane *other;

	for (unsigned i = 0; i < EPF_MAX_LANES_PER_NODE && r->to; i++) {
		struct epf_lane *to = &core->lanes[node->first_lane + r->to - 1];

		if (to->state == EPF_LANE_UP)
			return to;
		if (to->state == EPF_LANE_FENCED)
			return NULL;
		r->to = node->recovery->lanes[to->index].to;
	}
	other = other_lane(core, node);
	r->to = other ? (uint8_t)(other->index + 1) : 0;
	return other;
}

/* Step 4. Returns 1 when the lane is empty and its streams are bound elsewhere. */
static int replay(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		  struct epf_lane_recovery *r)
{
	struct epf_lane *to = takes_over(core, node, r);

	while (to && lane->tail != lane->head) {
		struct epf_wr *wr = &lane->wrs[lane->tail & lane->mask];
		unsigned kind = (unsigned)(wr->core >> 60);

		if ((wr->core & EPF_WRC_DONE) || kind == EPF_WRK_GRANT) {
			epf_reclaim(core, lane, wr);
		} else {
			if (to->head - to->tail > to->mask ||
			    ((wr->core & EPF_WRC_EVENT) && !lane_has_event_credit(core, to)))
				return 0;
			move_entry(core, lane, wr, to);
		}
		lane->tail++;
	}
	if (!to)
		return 0;
	lane->posted = lane->head;
	rebind(core, node, lane, to);
	r->phase = EPF_REC_OPENING;
	lane->state = EPF_LANE_OPENING;
	core->ops->lane_destroy(core->nic, lane->id);
	if (core->ops->lane_create(core->nic, lane->id, core->limits.lane_depth, &r->token)) {
		lane->state = EPF_LANE_DOWN; /* the node goes on with the lanes it has */
		r->phase = EPF_REC_NONE;
		core->recovering--;
		return 0;
	}
	r->tell_open = 1;
	return 1;
}

/* Step 5: connect to the peer's new queue pair, and use the lane once the peer has connected too. */
static void reopen(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		   struct epf_lane_recovery *r)
{
	if (r->phase == EPF_REC_OPENING && r->peer_open && !r->tell_open) {
		if (core->ops->lane_connect(core->nic, lane->id, node->nic_addr, node->nic_addr_len,
					    r->peer_token)) {
			lane->state = EPF_LANE_DOWN;
			r->phase = EPF_REC_NONE;
			core->recovering--;
			return;
		}
		r->phase = EPF_REC_CONNECTED;
		r->tell_opened = 1;
	}
	if (r->phase == EPF_REC_CONNECTED && r->peer_opened && !r->tell_opened) {
		/* Events are counted on from what the peer has seen; its grants are counted the same way. */
		lane->events = r->peer_arrived;
		lane->granted = r->peer_arrived + node->receives;
		lane->state = EPF_LANE_UP;
		/*
		 * Each lane its control stream again, or the loss of the one that took it over would leave none to talk
		 * on. It holds nothing but counted messages, so it may change lanes at any time.
		 */
		core->streams[node->handles[lane->index]].lane = lane->id;
		r->phase = EPF_REC_NONE;
		core->recovering--;
		epf_grant_mark(core, lane);
	}
}

/* Sends what this recovery has to say, as far as there is room. */
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
	const struct epf_rx_stream *rx = epf_rx(core, node, r->answer_handle);
	struct epf_msg m = { .kind = EPF_MSG_STREAM_STATE,
			     .c = r->answer_handle,
			     .d = r->answer_from,
			     .signal = index };
	uint64_t bits[4] = { 0, 0, 0, 0 };

	for (uint32_t i = 0; i < 256; i++) {
		uint32_t count = r->answer_from + i, ahead = count - rx->base,
			 at = count & core->rx_mask;
		uint64_t in = (int32_t)ahead < 0 ||
			      (ahead <= core->rx_mask && (rx->bits[at >> 6] >> (at & 63) & 1));

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
			  struct epf_lane_recovery *r)
{
	unsigned phase = r->phase, handled = talk(core, node, lane, r);
	uint32_t tail = lane->tail;

	if (r->phase == EPF_REC_FENCING && r->peer_fenced && !r->tell_fenced && !r->tell_fence &&
	    core->ops->lane_drained(core->nic, lane->id)) {
		r->cursor = lane->tail;
		r->phase = EPF_REC_ASKING;
	}
	if (r->phase == EPF_REC_ASKING)
		ask(core, node, lane, r);
	if (r->phase == EPF_REC_REPLAY)
		replay(core, node, lane, r);
	if (r->phase >= EPF_REC_OPENING)
		reopen(core, node, lane, r);
	return handled + (lane->tail - tail) + (r->phase != phase);
}

/*
 * Time in which this core was not run does not count against its peers: how much of it lies behind the last step. Between two steps of a
 * core that recovers there is otherwise nothing.
 */
static uint64_t rested_ns(const struct epf_core *core, uint64_t now)
{
	uint64_t before = core->recover_seen_ns;

	return before && now - before > core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT
		       ? now - before
		       : 0;
}

unsigned epf_recover_step(struct epf_core *core, uint64_t now)
{
	uint64_t rested = rested_ns(core, now);
	unsigned handled = 0;

	for (uint32_t n = 0; core->limits.lanes_per_node > 1 && n < core->n_nodes; n++) {
		struct epf_node *node = &core->nodes[n];

		for (unsigned i = 0; i < node->n_lanes && node->state == EPF_NODE_UP; i++) {
			struct epf_lane_recovery *r = &node->recovery->lanes[i];

			if (r->answer)
				handled += answer_query(core, node, i, r);
			if (r->phase == EPF_REC_NONE) {
				if (r->tell_opened)
					handled += talk(core, node,
							&core->lanes[node->first_lane + i], r);
				continue;
			}
			/* A lane may have failed behind the rest. */
			r->since_ns = rested < now - r->since_ns ? r->since_ns + rested : now;
			handled += lane_step(core, node, &core->lanes[node->first_lane + i], r);
			if (r->phase != EPF_REC_NONE &&
			    now - r->since_ns > core->limits.peer_timeout_ns)
				epf_node_down(core, node, EPF_S_RETRY_EXCEEDED);
		}
	}
	core->recover_seen_ns = core->recovering ? now : 0;
	return handled;
}

void epf_recover_message(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			 const struct epf_msg *m)
{
	unsigned about_stream = m->kind == EPF_MSG_STREAM_QUERY || m->kind == EPF_MSG_STREAM_STATE;
	uint32_t index = about_stream ? m->signal : m->c;
	struct epf_lane_recovery *r;

	(void)lane;
	if (index >= node->n_lanes || !node->recovery)
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
