/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns checked commands into work requests on a lane: admission (credits), staging, deferring. Called by
 * step_hot.c. A command without credit is deferred with its stream and holds no credit, so a slow
 * peer never blocks the others. Must never block, allocate, lock, log or make a system call.
 */
#include "fabric/engine/admit_hot.h"
#include "fabric/engine/hash_hot.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/policy_hot.h"
#include "fabric/engine/retire_hot.h"

/*
 * Returns why the lane of a stream has just refused an entry. Asked afterwards, so that admitted entries pay nothing for it; credit that came
 * meanwhile is still the reason.
 */
static unsigned stall_of(const struct epf_core *core, const struct epf_stream *s, unsigned bulk)
{
	const struct epf_lane *lane = &core->lanes[s->lane];

	if (lane->state != EPF_LANE_UP)
		return EPF_STALL_LANE;
	return lane_has_room(lane, bulk) ? EPF_STALL_CREDIT : EPF_STALL_QUEUE;
}

/* The same for a command; the message behind its data is not limited to the share of bulk traffic. */
static unsigned stall_of_command(const struct epf_core *core, const struct epf_stream *s,
				 const struct epf_op *op, uint32_t done)
{
	return stall_of(core, s, (op->flags & EPF_F_BULK) && done < op->length);
}

EPF_INLINE void count_bytes(struct epf_core *core, const struct epf_peer *peer, unsigned op,
			    uint32_t bytes)
{
	if (op == EPF_OP_GET)
		EPF_COUNT(core, GET_BYTES, bytes);
	else if (peer->place == core->my_place)
		EPF_COUNT(core, PUT_BYTES_SAME_NODE, bytes);
	else
		EPF_COUNT(core, PUT_BYTES_REMOTE_NODE, bytes);
}

/*
 * Stages one piece of a put or get. `last`: the command owes nothing after it. notify: the handle of the signal that rides
 * in its immediate, or EPF_NONE. what: the operation; a constant where the caller knows it, and most of this then folds away.
 */
EPF_INLINE void data_entry(struct epf_core *core, struct epf_stream *s, struct epf_lane *lane,
			   const struct epf_ring_state *ring, struct epf_rank_state *rank,
			   const struct epf_op *op, unsigned what, uint32_t seq, uint32_t done,
			   uint32_t bytes, unsigned last, uint32_t notify)
{
	const struct epf_peer *peer = &core->peers[op->rank];
	const struct epf_region_remote *remote = &peer->regions[op->remote_region];
	struct epf_wr *wr = lane_entry(core, lane);

	wr->raddr = remote->raddr + op->remote_offset + done;
	wr->rkey = remote->rkeys[lane->index];
	wr->len = bytes;
	wr->imm = 0;
	wr->core = epf_wr_core(EPF_WRK_DATA, ring->id, seq, 0);
	if (EPF_UNLIKELY(what == EPF_OP_PUT_INLINE)) {
		/* The value stays in the message slot until completion: a replay needs it. */
		struct epf_msg *slot = lane_slot(lane);

		slot->value = op->value;
		wr->laddr = (uint64_t)(uintptr_t)&slot->value;
		wr->lkey = 0;
		wr->flags = EPF_WR_INLINE | EPF_WR_SLOT;
	} else {
		const struct epf_region_local *local = &rank->regions[op->local_region];

		wr->laddr = local->addr + op->local_offset + done;
		wr->lkey = local->mr.keys[lane->index].lkey;
		wr->flags = 0;
	}
	if (EPF_UNLIKELY(what == EPF_OP_GET)) {
		wr->op = EPF_WR_READ;
	} else if (notify != EPF_NONE) {
		wr->op = EPF_WR_WRITE_IMM;
		wr->imm = epf_imm(EPF_IMM_NOTIFY, notify, s->count++);
		s->signals++;
		wr->core |= EPF_WRC_EVENT;
		lane->events++;
	} else if (core->counts_puts) {
		wr->op = EPF_WR_WRITE_IMM;
		wr->imm = epf_imm(EPF_IMM_STREAM, s->handle, s->count++);
		wr->core |= EPF_WRC_EVENT;
		lane->events++;
	} else {
		wr->op = EPF_WR_WRITE;
	}
	if (!last)
		ring->pend[seq & ring->pend_mask]++;
	s->sent += (what == EPF_OP_GET ? 0 : bytes) + (last ? EPF_SENT_COMMAND : 0);
	core->load[lane->link].bytes += bytes;
	core->load[lane->link].messages++;
	rank->inflight_bytes += bytes;
	rank->inflight_messages++;
	count_bytes(core, peer, what, bytes);
}

static void group_is_ready(struct epf_core *core, struct epf_stream *s, struct epf_group *g)
{
	uint32_t index = (uint32_t)(g - core->groups);

	if (g->next_ready != EPF_NONE)
		return;
	g->next_ready = s->ready == EPF_NONE ? index : s->ready;
	s->ready = index;
}

/*
 * Sends the counted signals of a group whose puts have been posted, in order. Stops at one that lacks puts (it needs no
 * waiting list: the next put of the group comes here) or credit (the stream then waits for its lane).
 */
static void group_signals(struct epf_core *core, struct epf_group *g)
{
	struct epf_stream *s = &core->streams[g->stream];

	while (g->signals_head != EPF_NONE) {
		struct epf_deferred *p = &core->deferred[g->signals_head];
		struct epf_msg m = { .kind = EPF_MSG_SIGNAL,
				     .rank = p->op.rank,
				     .signal = p->op.signal,
				     .value = p->op.value,
				     .c = core->ranks[s->rank].rank + 1 };
		uint32_t index = g->signals_head;

		if (g->spare < p->op.count && !EPF_HOOKED(EPF_HOOK_IGNORE_COVER))
			return;
		if (!epf_stage_message(core, s, &m,
				       epf_wr_core(EPF_WRK_DATA, p->ring, p->seq, 0))) {
			if (!p->stalled)
				core->peers[s->peer].stalls[stall_of(core, s, 0)]++;
			p->stalled = 1;
			group_is_ready(core, s, g);
			stream_wait(core, s);
			return;
		}
		g->spare -= p->op.count;
		stream_mark_dirty(core, s, stream_index(core, s));
		g->signals_head = p->next;
		s->held--;
		deferred_free(core, index);
	}
}

/* Sends what the groups of a stream hold only for lack of credit. */
static void ready_signals(struct epf_core *core, struct epf_stream *s)
{
	while (s->ready != EPF_NONE) {
		uint32_t index = s->ready;
		struct epf_group *g = &core->groups[index];

		s->ready = g->next_ready == index ? EPF_NONE : g->next_ready;
		g->next_ready = EPF_NONE;
		group_signals(core, g);
		if (g->next_ready != EPF_NONE)
			return;
	}
}

static int stage_signal(struct epf_core *core, struct epf_stream *s, struct epf_ring_state *ring,
			const struct epf_op *op, uint32_t seq)
{
	struct epf_msg m = { .kind = EPF_MSG_SIGNAL,
			     .rank = op->rank,
			     .signal = op->signal,
			     .value = op->value,
			     .c = core->ranks[s->rank].rank + 1 };

	if (op->op == EPF_OP_PUT_SIGNAL) {
		m.value = op->add;
	} else if (op->op == EPF_OP_ADD) {
		m.kind = EPF_MSG_ADD;
		m.signal = op->remote_region;
		m.a = op->remote_offset;
	}
	return epf_stage_message(core, s, &m, epf_wr_core(EPF_WRK_DATA, ring->id, seq, 0));
}

/*
 * Stages as much of a command as credit allows; *done counts the bytes staged so far. Returns 1 when nothing of it is
 * left, 0 when the rest has to wait. g: its group; NULL: none.
 */
static int stage(struct epf_core *core, struct epf_stream *s, struct epf_group *g,
		 struct epf_ring_state *ring, const struct epf_op *op, uint32_t seq, uint32_t *done)
{
	struct epf_lane *lane = &core->lanes[s->lane];
	struct epf_rank_state *rank = &core->ranks[ring->rank];
	unsigned bulk = op->flags & EPF_F_BULK;
	unsigned event = core->counts_puts && op->op != EPF_OP_GET;
	unsigned signal = op->op == EPF_OP_PUT_SIGNAL;
	uint32_t notify = EPF_NONE, most = core->caps.max_msg_bytes;

	/* A request is not cut by the NIC: a long one would be one long step. */
	if (EPF_UNLIKELY(core->nic->pace) && most > (uint32_t)EPF_PACE_BYTES >> core->nic->pace)
		most = (uint32_t)EPF_PACE_BYTES >> core->nic->pace;

	if (op->op == EPF_OP_SIGNAL || op->op == EPF_OP_ADD) {
		if (!stage_signal(core, s, ring, op, seq))
			return 0;
		stream_mark_dirty(core, s, stream_index(core, s));
		return 1;
	}
	while (*done < op->length) {
		uint32_t bytes = op->length - *done;
		unsigned last;

		if (EPF_UNLIKELY(bytes > most))
			bytes = most;
		last = *done + bytes == op->length;
		/* Its own data only: on an unordered NIC that is one piece, or the message has to cover them. */
		if (signal && last && !(op->flags & EPF_F_FENCE) && (core->ordered || *done == 0))
			notify = epf_notify_handle(core, s, op->signal, op->add);
		if (!admit(core, rank, lane, bulk, event || notify != EPF_NONE, bytes))
			return 0;
		signal = signal && notify == EPF_NONE;
		data_entry(core, s, lane, ring, rank, op, op->op, seq, *done, bytes,
			   last && !signal, notify);
		stream_mark_dirty(core, s, stream_index(core, s));
		*done += bytes;
	}
	if (signal && !stage_signal(core, s, ring, op, seq))
		return 0;
	if (g) {
		g->spare += g->spare != UINT32_MAX;
		group_signals(core, g);
	}
	return 1;
}

static struct epf_deferred *deferred_alloc(struct epf_core *core, struct epf_ring_state *ring,
					   const struct epf_op *op, uint32_t seq, uint32_t done,
					   uint32_t *index)
{
	struct epf_deferred *p = &core->deferred[core->deferred_unused];

	*index = core->deferred_unused;
	core->deferred_unused = p->next;
	core->n_deferred++;
	p->op = *op;
	p->next = EPF_NONE;
	p->seq = seq;
	p->done = done;
	p->ring = ring->id;
	p->covered = 0;
	p->stalled = 0;
	ring->deferred++;
	return p;
}

/* Defers a command with its stream. The pool has room: dequeue_budget() has seen to that. */
static void defer(struct epf_core *core, struct epf_stream *s, struct epf_ring_state *ring,
		  const struct epf_op *op, uint32_t seq, uint32_t done)
{
	uint32_t index;

	deferred_alloc(core, ring, op, seq, done, &index);
	if (s->deferred_head == EPF_NONE) {
		s->deferred_head = index;
		s->stall = (uint8_t)stall_of_command(core, s, op, done);
	} else {
		core->deferred[s->deferred_tail].next = index;
	}
	s->deferred_tail = index;
	core->peers[s->peer].stalls[s->stall]++; /* behind others: counted for their reason */
	s->deferred_count++;
	stream_wait(core, s);
	EPF_PROBE4(defer, ring->id, seq, s->peer, s->lane);
	EPF_COUNT(core, CMDS_DEFERRED, 1);
	if (s->deferred_count == 1)
		epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_DEFER, 0, s->handle, s->peer,
				s->lane, seq);
	if (EPF_UNLIKELY(s->deferred_count >= stream_defer_limit(core, s))) {
		ring->blocked = stream_index(core, s);
		s->blocks = 1;
		EPF_PROBE3(block, ring->id, s->peer, s->lane);
		epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_BLOCK, 0, ring->id, s->peer,
				s->handle, seq);
	}
}

/* A counted signal waits with its group until its puts are posted, and does not block them. */
static void stage_counted(struct epf_core *core, struct epf_group *g, struct epf_ring_state *ring,
			  const struct epf_op *op, uint32_t seq)
{
	uint32_t index;

	deferred_alloc(core, ring, op, seq, 0, &index);
	if (g->signals_head == EPF_NONE)
		g->signals_head = index;
	else
		core->deferred[g->signals_tail].next = index;
	g->signals_tail = index;
	core->streams[g->stream].held++;
	group_signals(core, g);
}

uint32_t epf_stage_stream(const struct epf_core *core, const struct epf_ring_state *ring,
			  const struct epf_op *op)
{
	const struct epf_group *g;

	if (!(op->flags & EPF_F_COUNTED))
		return ring->streams[op->rank];
	g = group_find(core, ring, op);
	return g ? g->stream : EPF_NONE;
}

static __attribute__((noinline)) void stage_command(struct epf_core *core,
						    struct epf_ring_state *ring,
						    const struct epf_op *op, uint32_t seq)
{
	unsigned grouped =
		(op->op == EPF_OP_PUT || op->op == EPF_OP_SIGNAL) && (op->flags & EPF_F_COUNTED);
	struct epf_group *g = NULL;
	struct epf_stream *s;
	uint32_t index, done = 0;

	if (EPF_UNLIKELY(!core->ranks[ring->rank].usable[op->rank])) {
		epf_fail_cold(core, ring, seq, op->rank, EPF_S_PEER_DOWN, EPF_R_PEER_DOWN);
		return;
	}
	if (grouped) {
		g = group_next(core, ring, op);
		if (EPF_UNLIKELY(!g))
			g = epf_group_open_cold(core, ring, op->rank, op->signal);
		index = g ? g->stream : EPF_NONE;
	} else {
		index = ring->streams[op->rank];
		if (EPF_UNLIKELY(index == EPF_NONE))
			index = epf_stream_open_cold(core, EPF_STREAM_RING, ring, op->rank);
	}
	if (EPF_UNLIKELY(index == EPF_NONE)) {
		epf_fail_cold(core, ring, seq, op->rank, EPF_S_REFUSED, EPF_R_STREAM_LIMIT);
		return;
	}
	s = &core->streams[index];
	if (EPF_UNLIKELY(grouped && op->op == EPF_OP_SIGNAL)) {
		stage_counted(core, g, ring, op, seq);
		return;
	}
	if (EPF_UNLIKELY(s->deferred_head != EPF_NONE) || !stage(core, s, g, ring, op, seq, &done))
		defer(core, s, ring, op, seq, done);
}

/*
 * Stages a put in one piece that raises no event, on an open stream with nothing deferred: the most frequent command, so without the general
 * checks. Returns 0, with nothing done, for any other.
 */
EPF_INLINE int stage_put(struct epf_core *core, struct epf_ring_state *ring,
			 struct epf_rank_state *rank, const struct epf_op *op, uint32_t seq)
{
	struct epf_stream *s;
	struct epf_lane *lane;
	uint32_t index;

	if (EPF_UNLIKELY(op->op != EPF_OP_PUT) ||
	    EPF_UNLIKELY((op->flags & EPF_F_COUNTED) | core->counts_puts) ||
	    EPF_UNLIKELY(op->length - 1 >= core->caps.max_msg_bytes) ||
	    EPF_UNLIKELY(!rank->usable[op->rank]))
		return 0;
	index = ring->streams[op->rank];
	if (EPF_UNLIKELY(index == EPF_NONE))
		return 0;
	s = &core->streams[index];
	if (EPF_UNLIKELY(s->deferred_head != EPF_NONE))
		return 0;
	lane = &core->lanes[s->lane];
	if (!admit(core, rank, lane, op->flags & EPF_F_BULK, 0, op->length)) {
		defer(core, s, ring, op, seq, 0);
		return 1;
	}
	data_entry(core, s, lane, ring, rank, op, EPF_OP_PUT, seq, 0, op->length, 1, EPF_NONE);
	stream_mark_dirty(core, s, index);
	return 1;
}

/*
 * Prefetches the next lane entry of a command: with many peers each command touches other lines, and the batch gives
 * the time to fetch them.
 */
static void prefetch_target(const struct epf_core *core, const struct epf_ring_state *ring,
			    const struct epf_op *op)
{
	uint32_t index = op->rank < core->world ? ring->streams[op->rank] : EPF_NONE;
	const struct epf_lane *lane;

	if (index == EPF_NONE)
		return;
	lane = &core->lanes[core->streams[index].lane];
	__builtin_prefetch(&lane->wrs[lane->head & lane->mask], 1);
}

EPF_HOT void epf_stage_batch(struct epf_core *core, struct epf_ring_state *ring,
			     const struct epf_op *ops, unsigned n, uint32_t first_seq)
{
	struct epf_rank_state *rank = &core->ranks[ring->rank];

	for (unsigned i = 0; i < n; i++) {
		const struct epf_op *op = &ops[i];
		uint32_t seq = first_seq + i;

		if (i + PREFETCH_TARGETS < n)
			prefetch_target(core, ring, op + PREFETCH_TARGETS);
		if (EPF_LIKELY(stage_put(core, ring, rank, op, seq)))
			continue;
		if (op->op == EPF_OP_FLUSH)
			epf_flush_begin(core, ring, seq, op->flags & EPF_F_ALL);
		else if (op->op == EPF_OP_NOP)
			epf_retire(ring, seq);
		else if (op->op != EPF_OP_COUNT)
			stage_command(core, ring, op, seq);
	}
}

/* Stages a stream's deferred commands as far as there is credit. Returns 1 if none is left. */
static int resume(struct epf_core *core, struct epf_stream *s)
{
	/* First: behind deferred commands, which may be of other groups, they could wait forever. */
	ready_signals(core, s);
	while (s->deferred_head != EPF_NONE) {
		uint32_t index = s->deferred_head;
		struct epf_deferred *p = &core->deferred[index];
		struct epf_ring_state *ring = core->rings[p->ring];
		struct epf_group *g =
			s->kind == EPF_STREAM_GROUP ? group_find(core, ring, &p->op) : NULL;

		if (!(EPF_UNLIKELY(core->recheck) && epf_recheck_cold(core, p)) &&
		    !stage(core, s, g, ring, &p->op, p->seq, &p->done)) {
			s->stall = (uint8_t)stall_of_command(core, s, &p->op, p->done);
			return 0;
		}
		EPF_PROBE4(resume, p->ring, p->seq, s->peer, s->lane);
		if (EPF_UNLIKELY(core->sample.state == EPF_SAMPLE_DEFERRED &&
				 core->sample.deferred == index))
			sample_staged(core, &core->lanes[s->lane]);
		s->deferred_head = p->next;
		s->deferred_count--;
		if (EPF_UNLIKELY(s->blocks) && s->deferred_count <= stream_defer_limit(core, s) / 2)
			stream_unblock(core, s);
		deferred_free(core, index);
	}
	return 1;
}

/* Gives each waiting stream of a lane one turn, as long as the lane has room. */
static unsigned lane_resume(struct epf_core *core, struct epf_lane *lane)
{
	uint32_t last = lane->waiting_tail, head = lane->head;

	while (lane->waiting_head != EPF_NONE) {
		uint32_t index = lane->waiting_head;
		struct epf_stream *s = &core->streams[index];

		lane->waiting_head = s->next_waiting;
		s->waiting = 0;
		if (!resume(core, s))
			stream_wait(core, s);
		if (index == last || !lane_make_room(core, lane, 0))
			break;
	}
	return lane->head - head;
}

EPF_HOT unsigned epf_stage_waiting(struct epf_core *core)
{
	uint32_t n = core->n_wait, kept = 0, i;
	unsigned handled = 0;

	for (i = 0; i < n; i++) {
		struct epf_lane *lane = &core->lanes[core->wait_lanes[i]];

		if (lane->state == EPF_LANE_UP)
			handled += lane_resume(core, lane);
		if (lane->waiting_head == EPF_NONE)
			lane->in_wait_list = 0;
		else
			core->wait_lanes[kept++] = lane->id;
	}
	/* Lanes that were added meanwhile follow the old ones. */
	while (i < core->n_wait)
		core->wait_lanes[kept++] = core->wait_lanes[i++];
	core->n_wait = kept;
	return handled;
}
