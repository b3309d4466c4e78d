/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Primitives of lanes and streams: statistics, lane entries, credits, dirty lists. Inline; shared by the data path and the control plane.
 */
#ifndef EPF_FABRIC_ENGINE_LANE_HOT_H
#define EPF_FABRIC_ENGINE_LANE_HOT_H

#include "fabric/engine/core.h"
#include "fabric/engine/grow.h"

#define EPF_COUNT(core, NAME, n) epf_stat_add((core)->stats, EPF_STAT_CORE_##NAME, (n))

#ifdef EPF_TEST_HOOKS
/* Breaks the engine on purpose, one at a time (tests/prop): the suite checks that each gives wrong bytes. */
enum epf_hook {
	EPF_HOOK_NONE = 0,
	EPF_HOOK_SIGNAL_ON_ARRIVAL = 1, /* a signal, or an addition, is applied when it arrives */
	EPF_HOOK_KEEP_DUPLICATES = 2,   /* a second arrival counts again */
	EPF_HOOK_IGNORE_COVER = 3,      /* a counted signal does not wait for its puts */
	EPF_HOOK_COUNT_ONLY = 4,        /* the bitmap is replaced by a bare counter */
	EPF_HOOK_NO_FENCE = 5,          /* replay without fencing the old lane */
	EPF_HOOK_REPLAY_ALL = 6,        /* replay without asking what has arrived: duplicates */
	EPF_HOOK_REPLAY_KEEP = 7,       /* and a second arrival counts again */
};

extern int epf_hook;
# define EPF_HOOKED(h) EPF_UNLIKELY(epf_hook == (h))
#else
# define EPF_HOOKED(h) 0
#endif

/* Returns 1 if there is credit for an event; reads the peer's grant word again only when credit seems to be used up. [A5] */
EPF_INLINE int lane_has_event_credit(struct epf_core *core, struct epf_lane *lane)
{
	if (EPF_UNLIKELY((int32_t)(lane->granted - lane->events) <= 0)) {
		uint64_t word = EPF_LOAD_ACQUIRE(&core->nodes[lane->node].ctl->grants[lane->index]);

		if (word != 0 && (int32_t)((uint32_t)word - lane->granted) > 0)
			lane->granted = (uint32_t)word;
		return (int32_t)(lane->granted - lane->events) > 0;
	}
	return 1;
}

/* Returns 1 if there is room for one more data entry. Bulk traffic leaves a quarter of the lane to latency traffic. */
EPF_INLINE int lane_has_room(const struct epf_lane *lane, unsigned bulk)
{
	uint32_t used = lane->head - lane->tail;

	if (EPF_UNLIKELY(bulk))
		return used < lane->limit - (lane->limit >> 2);
	return used < lane->limit;
}

EPF_INLINE void lane_mark_dirty(struct epf_core *core, struct epf_lane *lane)
{
	if (!lane->dirty) {
		lane->dirty = 1;
		core->dirty_lanes[core->n_dirty++] = lane->id;
	}
}

/* The same, for an entry that is about to be staged: the lane grows while it may. */
EPF_INLINE int lane_make_room(struct epf_core *core, struct epf_lane *lane, unsigned bulk)
{
	while (EPF_UNLIKELY(!lane_has_room(lane, bulk)))
		if (!epf_lane_grow_cold(core, lane))
			return 0;
	return 1;
}

/* Returns 1 if there is an entry, be it one kept back for control writes. */
EPF_INLINE int lane_make_entry(struct epf_core *core, struct epf_lane *lane)
{
	return EPF_LIKELY(lane->head - lane->tail <= lane->mask) || epf_lane_grow_cold(core, lane);
}

/* Returns 1 if there is a payload slot. */
EPF_INLINE int lane_make_slot(struct epf_core *core, struct epf_lane *lane)
{
	return EPF_LIKELY(lane->slot_head - lane->slot_tail < lane->n_slots) ||
	       epf_slots_grow_cold(core, lane);
}

/* Returns the next entry of a lane; the caller has checked that there is room. */
EPF_INLINE struct epf_wr *lane_entry(struct epf_core *core, struct epf_lane *lane)
{
	struct epf_wr *wr = &lane->wrs[lane->head & lane->mask];

	wr->id = lane->head++;
	lane_mark_dirty(core, lane);
	return wr;
}

/* Returns the payload slot of an entry that has EPF_WR_SLOT; the caller has checked that there is one. */
EPF_INLINE struct epf_msg *lane_slot(struct epf_lane *lane)
{
	return &lane->msgs[lane->slot_head++ & (lane->n_slots - 1)];
}

/* Returns the message of an EPF_WR_SEND. */
EPF_INLINE const struct epf_msg *entry_message(const struct epf_wr *wr)
{
	return (const struct epf_msg *)(uintptr_t)wr->laddr;
}

/* Gives a window back that has nothing ahead. */
EPF_INLINE void window_give(struct epf_core *core, struct epf_rx_stream *rx)
{
	if (!rx->bits)
		return;
	*(void **)(void *)rx->bits = core->grow.windows;
	core->grow.windows = rx->bits;
	rx->bits = NULL;
}

/* Marks a stream that a later flush must wait for. */
EPF_INLINE void stream_mark_dirty(struct epf_core *core, struct epf_stream *s, uint32_t index)
{
	uint32_t *head;

	if (EPF_LIKELY(s->dirty))
		return;
	s->dirty = 1;
	head = s->kind == EPF_STREAM_GROUP ? &core->ranks[s->rank].dirty_groups
					   : &core->rings[s->ring]->dirty;
	s->next_dirty = *head;
	*head = index;
}

EPF_INLINE uint32_t stream_index(const struct epf_core *core, const struct epf_stream *s)
{
	return (uint32_t)(s - core->streams);
}

/* Returns how many commands of a stream may be deferred before rings wait. Each of its groups brings its own share: a slow peer blocks rings late. */
EPF_INLINE uint32_t stream_defer_limit(const struct epf_core *core, const struct epf_stream *s)
{
	return core->limits.defer_limit * (s->groups ? s->groups : 1u);
}

/* The command that is sampled has its last entry in this lane. */
EPF_INLINE void sample_staged(struct epf_core *core, const struct epf_lane *lane)
{
	core->sample.state = EPF_SAMPLE_STAGED;
	core->sample.lane = lane->id;
	core->sample.head = lane->head;
}

/* Frees a deferred command that was staged or failed. */
EPF_INLINE void deferred_free(struct epf_core *core, uint32_t index)
{
	struct epf_deferred *p = &core->deferred[index];
	struct epf_ring_state *ring = core->rings[p->ring];

	ring->deferred--;
	if (EPF_UNLIKELY(p->covered))
		core->ranks[ring->rank].covered--;
	if (EPF_UNLIKELY(core->sample.state == EPF_SAMPLE_DEFERRED &&
			 core->sample.deferred == index))
		core->sample.state = EPF_SAMPLE_NONE; /* it failed */
	p->next = core->deferred_unused;
	core->deferred_unused = index;
	core->n_deferred--;
}

/* The stream's deferral queue has room again: unblocks every ring that waits for it (a group may block several). */
EPF_INLINE void stream_unblock(struct epf_core *core, struct epf_stream *s)
{
	uint32_t index = stream_index(core, s);

	s->blocks = 0;
	for (uint32_t i = 0; i < core->n_rings; i++)
		if (core->rings[i]->blocked == index)
			core->rings[i]->blocked = EPF_NONE;
}

/* Puts a stream on its lane's list of those that wait for credit. */
EPF_INLINE void stream_wait(struct epf_core *core, struct epf_stream *s)
{
	struct epf_lane *lane = &core->lanes[s->lane];
	uint32_t index = stream_index(core, s);

	if (s->waiting)
		return;
	s->waiting = 1;
	s->next_waiting = EPF_NONE;
	if (lane->waiting_head == EPF_NONE)
		lane->waiting_head = index;
	else
		core->streams[lane->waiting_tail].next_waiting = index;
	lane->waiting_tail = index;
	if (!lane->in_wait_list) {
		lane->in_wait_list = 1;
		core->wait_lanes[core->n_wait++] = lane->id;
	}
}

/* Commands up to `tail` were dequeued: the next one is number seq, and the turn has left so many bytes. Releases the slots. [R2] */
EPF_INLINE void ring_dequeued(struct epf_core *core, struct epf_ring_state *ring, uint64_t tail,
			      uint32_t seq, int64_t deficit)
{
	ring->seq = seq;
	ring->last_step = core->steps;
	ring->deficit = deficit;
	ring->consumer.tail = tail;
	epf_ring_release(&ring->consumer);
}

#endif
