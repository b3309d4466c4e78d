/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FLUSH sends a message on every stream of the ring that was posted to since the last one; the peer's core
 * acknowledges it by the stream's word once everything before it is in. Must never block, allocate, lock, log or
 * make a system call.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/retire_hot.h"

void epf_flush_begin(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq, unsigned all)
{
	ring->flush_phase = EPF_FLUSH_WAITING_TURN;
	ring->flush_seq = seq;
	ring->flush_all = all != 0;
	ring->flush_failed = EPF_NONE;
	core->flushing++;
	EPF_PROBE2(flush_begin, ring->id, seq);
	epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_FLUSH, 0, ring->id, 0, 0, seq);
}

/* A flush of all rings begins: each other ring is to be dequeued up to what it can hold now. */
static void cover_begin(struct epf_core *core, const struct epf_ring_state *ring)
{
	for (uint32_t i = 0; i < core->n_rings; i++) {
		struct epf_ring_state *other = core->rings[i];

		other->covered = other == ring || !other->live || other->rank != ring->rank;
		other->cover = other->consumer.tail + other->consumer.mask + 1;
	}
}

/*
 * No whole command waits in the ring, or only a second flush, which has to wait for the first, or the window is full
 * behind a flush, which has to wait for its turn.
 */
static int nothing_to_take(const struct epf_ring_state *ring)
{
	const struct epf_ring_consumer *c = &ring->consumer;
	struct epf_cmd slot;

	if (ring->flush_phase != EPF_FLUSH_NONE && ring->seq - ring->retired > ring->pend_mask)
		return 1;
	if (!epf_ring_peek(c, c->tail, &slot))
		return 1;
	if (epf_cmd_op(slot) == EPF_OP_FLUSH)
		return ring->flush_phase != EPF_FLUSH_NONE;
	return epf_cmd_op(slot) == EPF_OP_WIDE && !epf_ring_peek(c, c->tail + 1, &slot);
}

/*
 * What was pushed before the flush has been dequeued: there was nothing to take since, or the consumer has passed all that
 * the ring could hold then.
 */
static int covering_is_over(struct epf_core *core)
{
	int over = 1;

	for (uint32_t i = 0; i < core->n_rings; i++) {
		struct epf_ring_state *other = core->rings[i];

		if (!other->covered)
			other->covered = !other->live ||
					 (int64_t)(other->consumer.tail - other->cover) >= 0 ||
					 nothing_to_take(other);
		over &= other->covered;
	}
	return over;
}

static void mark(struct epf_core *core, struct epf_deferred *p)
{
	p->covered = 1;
	core->ranks[core->rings[p->ring]->rank].covered++;
}

/* Returns 1 if a deferred command is before the flush. Everything that other rings have deferred now counts as before it. */
static int is_before(const struct epf_ring_state *ring, const struct epf_deferred *p)
{
	return p->ring == ring->id ? (int32_t)(p->seq - ring->flush_seq) < 0 : ring->flush_all;
}

/* Returns the puts of a group that are posted or deferred and that no signal sent has counted. */
static uint64_t puts_of(const struct epf_core *core, const struct epf_group *g)
{
	uint64_t n = g->spare;

	for (uint32_t at = core->streams[g->stream].deferred_head; at != EPF_NONE;
	     at = core->deferred[at].next)
		n += core->deferred[at].op.signal == g->signal;
	return n;
}

/*
 * Marks the counted signals that are before the flush. Of other rings not those that still lack puts: those puts are not before the flush, so
 * neither is the signal.
 */
static void mark_signals(struct epf_core *core, const struct epf_ring_state *ring)
{
	for (uint32_t i = 0; i < core->n_groups; i++) {
		const struct epf_group *g = &core->groups[i];
		uint64_t counted = 0, puts;

		if (g->signals_head == EPF_NONE || core->streams[g->stream].rank != ring->rank)
			continue;
		puts = puts_of(core, g);
		for (uint32_t at = g->signals_head; at != EPF_NONE; at = core->deferred[at].next) {
			struct epf_deferred *p = &core->deferred[at];

			counted += p->op.count;
			if (is_before(ring, p) && (p->ring == ring->id || puts >= counted))
				mark(core, p);
		}
	}
}

/* Marks what is deferred and before the flush. */
static void mark_deferred(struct epf_core *core, const struct epf_ring_state *ring)
{
	for (uint32_t i = 0; i < core->n_streams; i++) {
		const struct epf_stream *s = &core->streams[i];

		if (s->rank != ring->rank || s->kind == EPF_STREAM_CONTROL)
			continue;
		for (uint32_t at = s->deferred_head; at != EPF_NONE; at = core->deferred[at].next)
			if (is_before(ring, &core->deferred[at]))
				mark(core, &core->deferred[at]);
	}
	mark_signals(core, ring);
}

/*
 * Moves a flush on until all commands before it are staged. Returns 1 if they are. Rings continue meanwhile: a flush may
 * cover more than it must.
 */
static int is_staged(struct epf_core *core, struct epf_ring_state *ring)
{
	struct epf_rank_state *rank = &core->ranks[ring->rank];

	if (ring->flush_phase == EPF_FLUSH_WAITING_TURN && !rank->flushing) {
		rank->flushing = 1;
		cover_begin(core, ring);
		ring->flush_phase = EPF_FLUSH_COVERING;
	}
	if (ring->flush_phase == EPF_FLUSH_COVERING &&
	    (!ring->flush_all || covering_is_over(core))) {
		mark_deferred(core, ring);
		ring->flush_phase = EPF_FLUSH_DRAINING;
	}
	return ring->flush_phase == EPF_FLUSH_DRAINING && !rank->covered;
}

/* Moves a dirty list onto the flush list. */
static void gather(struct epf_core *core, struct epf_ring_state *ring, uint32_t *dirty)
{
	while (*dirty != EPF_NONE) {
		uint32_t index = *dirty;
		struct epf_stream *s = &core->streams[index];

		*dirty = s->next_dirty;
		s->dirty = 0;
		s->next_flush = ring->flush_list;
		ring->flush_list = index;
	}
}

static void gather_all(struct epf_core *core, struct epf_ring_state *ring)
{
	ring->flush_list = EPF_NONE;
	gather(core, ring, &ring->dirty);
	gather(core, ring, &core->ranks[ring->rank].dirty_groups);
	for (uint32_t i = 0; ring->flush_all && i < core->n_rings; i++)
		if (core->rings[i]->live && core->rings[i]->rank == ring->rank)
			gather(core, ring, &core->rings[i]->dirty);
	ring->flush_sent = ring->flush_list;
}

/*
 * Returns an acknowledgement word of the node that no flush waits for, EPF_NONE while there is none. One whose flush was given up may be
 * written late: until then it stays taken. The word is 0 before the flush can arrive anywhere.
 */
static uint32_t free_ack(const struct epf_core *core, struct epf_node *node)
{
	uint64_t all = core->n_acks < 64 ? (UINT64_C(1) << core->n_acks) - 1 : UINT64_MAX;
	uint64_t left = node->acks_left;
	uint32_t word;

	if (!(~node->acks_busy & all)) {
		for (; left; left &= left - 1) {
			word = (uint32_t)__builtin_ctzll(left);
			if (EPF_LOAD_ACQUIRE(&node->ctl->acks[word]) == 0)
				continue;
			node->acks_left &= ~(UINT64_C(1) << word);
			node->acks_busy &= ~(UINT64_C(1) << word);
		}
		if (!(~node->acks_busy & all))
			return EPF_NONE;
	}
	word = (uint32_t)__builtin_ctzll(~node->acks_busy & all);
	EPF_STORE_RELAXED(&node->ctl->acks[word], 0);
	return word;
}

static unsigned send_flushes(struct epf_core *core, struct epf_ring_state *ring)
{
	unsigned handled = 0;

	while (ring->flush_sent != EPF_NONE) {
		struct epf_stream *s = &core->streams[ring->flush_sent];
		struct epf_node *node = &core->nodes[s->node];
		struct epf_msg m = { .kind = EPF_MSG_FLUSH };
		uint32_t count = s->count;

		s->ack = EPF_NO_ACK;
		if (core->ranks[s->rank].usable[s->peer]) {
			m.d = free_ack(core, node);
			if (m.d == EPF_NONE ||
			    !epf_stage_message(core, s, &m, epf_wr_core(EPF_WRK_QUIET, 0, 0, 0)))
				return handled;
			s->flush_count = count;
			s->ack = (uint8_t)m.d;
			node->acks_busy |= UINT64_C(1) << m.d;
		} else {
			/* Nothing was sent, so an older acknowledgement must not count for this flush. */
			ring->flush_failed = s->peer;
		}
		ring->flush_sent = s->next_flush;
		handled++;
	}
	ring->flush_phase = EPF_FLUSH_WAITING;
	return handled + 1;
}

/*
 * Removes acknowledged streams from the list, as far as it was sent. A stream to a lost peer is removed too and fails the flush, unless the peer
 * acknowledged before it was lost. [A5]
 */
static unsigned await_acks(struct epf_core *core, struct epf_ring_state *ring)
{
	uint32_t *link = &ring->flush_list;
	unsigned handled = 0;

	while (*link != ring->flush_sent) {
		struct epf_stream *s = &core->streams[*link];
		struct epf_node *node = &core->nodes[s->node];
		uint64_t bit = UINT64_C(1) << (s->ack & 63);

		if (s->ack == EPF_NO_ACK) {
			ring->flush_failed = s->peer;
		} else if (EPF_LOAD_ACQUIRE(&node->ctl->acks[s->ack]) ==
			   epf_ack_word(s->handle, s->flush_count)) {
			node->acks_busy &= ~bit;
		} else if (core->ranks[s->rank].usable[s->peer]) {
			link = &s->next_flush;
			continue;
		} else {
			ring->flush_failed = s->peer;
			node->acks_left |= bit;
		}
		*link = s->next_flush;
		handled++;
	}
	if (ring->flush_list != EPF_NONE)
		return handled;
	ring->flush_phase = EPF_FLUSH_NONE;
	core->ranks[ring->rank].flushing = 0;
	core->flushing--;
	EPF_PROBE3(flush_end, ring->id, ring->flush_seq, ring->flush_failed);
	epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_FLUSHED, 0, ring->id,
			ring->flush_failed, 0, ring->flush_seq);
	if (ring->flush_failed != EPF_NONE)
		epf_fail_cold(core, ring, ring->flush_seq, ring->flush_failed, EPF_S_PEER_DOWN,
			      EPF_R_PEER_DOWN);
	else
		epf_retire(ring, ring->flush_seq);
	return handled + 1;
}

EPF_HOT unsigned epf_flush_step(struct epf_core *core)
{
	unsigned handled = 0;

	for (uint32_t i = 0; i < core->n_rings; i++) {
		struct epf_ring_state *ring = core->rings[i];

		if (ring->flush_phase == EPF_FLUSH_NONE)
			continue;
		if (ring->flush_phase < EPF_FLUSH_SENDING && is_staged(core, ring)) {
			gather_all(core, ring);
			ring->flush_phase = EPF_FLUSH_SENDING;
		}
		if (ring->flush_phase == EPF_FLUSH_SENDING)
			handled += send_flushes(core, ring);
		/* Also while there are more to send: words get free. */
		if (ring->flush_phase >= EPF_FLUSH_SENDING)
			handled += await_acks(core, ring);
	}
	return handled;
}
