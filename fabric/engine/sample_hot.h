/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clocks of the statistics: the parts of a step that is timed (TIMED_STEP), and single commands that are followed now and then: from being
 * seen in a ring until dequeued, from then until the NIC has it, and until it is done. Inline parts of step_hot.c; a command that is not followed
 * costs a compare.
 */
#ifndef EPF_FABRIC_ENGINE_SAMPLE_HOT_H
#define EPF_FABRIC_ENGINE_SAMPLE_HOT_H

#include "fabric/base/clock.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/policy_hot.h"

/* In a step that is timed: adds the time since `from` to a counter, for all steps until the next timed one. Returns the clock, else 0. */
EPF_INLINE uint64_t time_stage(struct epf_core *core, const unsigned timed, uint32_t stat,
			       uint64_t from)
{
	uint64_t now;

	if (EPF_LIKELY(!timed))
		return 0;
	now = epf_tsc();
	epf_stat_add(core->stats, stat, TIMED_STEP * (now - from));
	return now;
}

/* A command that goes to a lane by itself. A counted signal is set aside with its group, and stands in nobody's way. */
static inline int is_followed(const struct epf_op *op)
{
	return op->op != EPF_OP_FLUSH && op->op != EPF_OP_NOP && op->op != EPF_OP_COUNT &&
	       !(op->op == EPF_OP_SIGNAL && (op->flags & EPF_F_COUNTED));
}

/* Begins to follow the last such command of a batch of n, unless one is followed already. @began: when the batch was dequeued. */
static __attribute__((noinline, unused)) void sample_begin(struct epf_core *core,
							   const struct epf_ring_state *ring,
							   const struct epf_op *ops, unsigned n,
							   uint64_t began)
{
	const struct epf_stream *s;
	uint32_t index;

	if (core->sample.state != EPF_SAMPLE_NONE)
		return;
	while (n && !is_followed(&ops[n - 1]))
		n--;
	index = n ? epf_stage_stream(core, ring, &ops[n - 1]) : EPF_NONE;
	if (index == EPF_NONE)
		return;
	s = &core->streams[index];
	core->sample.tsc = began;
	if (s->deferred_head == EPF_NONE) {
		sample_staged(core, &core->lanes[s->lane]);
	} else {
		core->sample.state = EPF_SAMPLE_DEFERRED;
		core->sample.deferred = s->deferred_tail;
	}
}

/* Time since @began, a reading of the time-stamp counter. */
static inline uint64_t since_ns(const struct epf_core *core, uint64_t began, uint64_t now)
{
	return (uint64_t)((unsigned __int128)(now - began) * core->tick_ns >> 32);
}

/*
 * The command that is followed is staged, or posted: has a NIC got it, is it done? `reached` is how far its lane is posted, or done; `next` the state that
 * follows.
 */
static inline void sample_look(struct epf_core *core, uint32_t reached, uint32_t row, uint8_t next)
{
	const struct epf_lane *lane = &core->lanes[core->sample.lane];
	uint64_t now;

	if (lane->state == EPF_LANE_UP && (int32_t)(reached - core->sample.head) < 0)
		return;
	if (lane->state != EPF_LANE_UP) { /* nobody knows where its work is now */
		core->sample.state = EPF_SAMPLE_NONE;
		return;
	}
	now = epf_tsc();
	epf_hist_add(epf_stat_hist(core->stats, row), since_ns(core, core->sample.tsc, now));
	core->sample.state = next;
	core->sample.tsc = now;
}

static __attribute__((noinline, unused)) void sample_step(struct epf_core *core)
{
	const struct epf_lane *lane = &core->lanes[core->sample.lane];

	if (core->sample.state == EPF_SAMPLE_STAGED)
		sample_look(core, lane->posted, EPF_STAT_CORE_QUEUE_DELAY_NS, EPF_SAMPLE_POSTED);
	else
		sample_look(core, lane->tail, EPF_STAT_CORE_NIC_NS, EPF_SAMPLE_NONE);
}

static inline int slot_is_full(const struct epf_ring_consumer *c, uint64_t index)
{
	return (int)(~(EPF_LOAD_RELAXED(&c->slots[index & c->mask].lo) ^
		       epf_cmd_parity(index, c->log2)) &
		     1u);
}

/* Begins to follow the last put of a run, unless a command is followed already. began: when the run was dequeued. */
static inline void sample_run(struct epf_core *core, const struct epf_put_run *run, uint64_t began)
{
	if (core->sample.state != EPF_SAMPLE_NONE || run->lane == EPF_NONE)
		return;
	core->sample.tsc = began;
	sample_staged(core, &core->lanes[run->lane]);
}

/*
 * One batch in FOLLOW_NS is looked at. Watches the newest command of its ring, which is not empty; found in few looks, each at memory that a GPU
 * writes.
 */
static __attribute__((noinline, unused)) void
seen_begin(struct epf_core *core, const struct epf_ring_state *ring, uint64_t now)
{
	const struct epf_ring_consumer *c = &ring->consumer;
	uint64_t at = c->tail, stride = 1;

	core->seen.next_tsc = now + (((uint64_t)FOLLOW_NS << 32) / core->tick_ns);
	if (core->seen.ring)
		return;
	for (; stride <= c->mask >> 1 && at - c->tail + stride <= c->mask &&
	       slot_is_full(c, at + stride);
	     stride <<= 1)
		at += stride;
	for (; stride; stride >>= 1)
		if (at - c->tail + stride <= c->mask && slot_is_full(c, at + stride))
			at += stride;
	core->seen.ring = ring->id + 1u;
	core->seen.tail = at + 1;
	core->seen.tsc = now;
}

/* Commands were dequeued from the watched ring. */
static inline void seen_look(struct epf_core *core, const struct epf_ring_state *ring)
{
	if ((int64_t)(ring->consumer.tail - core->seen.tail) < 0)
		return;
	epf_hist_add(epf_stat_hist(core->stats, EPF_STAT_CORE_RING_WAIT_NS),
		     since_ns(core, core->seen.tsc, epf_tsc()));
	core->seen.ring = 0;
}

/* Returns 1 if a command of this ring's turn is to be followed. began: the step's clock. */
EPF_INLINE unsigned seen_is_due(struct epf_core *core, const struct epf_ring_state *ring,
				uint64_t began)
{
	unsigned due = began >= core->seen.next_tsc;

	if (EPF_UNLIKELY(due))
		seen_begin(core, ring, epf_tsc());
	return due;
}

/* Returns the step's clock, which the recorder shows: steps that leave the NIC alone keep that of the first. */
EPF_INLINE uint64_t step_begins(struct epf_core *core, const unsigned timed)
{
	if (timed | !core->unreaped)
		core->began = epf_tsc();
	return core->began;
}

/* Counts a step. */
EPF_INLINE void step_ends(struct epf_core *core, const unsigned timed, uint64_t began,
			  unsigned handled)
{
	if (EPF_UNLIKELY(timed) && handled) {
		uint64_t now = time_stage(core, timed, EPF_STAT_CORE_BUSY_TSC, began);

		epf_hist_add(epf_stat_hist(core->stats, EPF_STAT_CORE_STEP_NS),
			     since_ns(core, began, now));
	}
	if (handled)
		EPF_COUNT(core, STEPS_BUSY, 1);
	else
		EPF_COUNT(core, STEPS_IDLE, 1);
}

#endif
