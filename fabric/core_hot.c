/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of an engine core: the file to read first. Run to completion, each part with a budget:
 *
 *   take -> check -> stage (admit, or park) -> words -> flush (post) -> reap -> arrive -> publish
 *
 * Called in a loop by idle.c, by epf_progress() and by simulations. Must never block, allocate, lock, log or make a
 * system call (tests/check_hot.py, tests/proc/test_seccomp.c).
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/check_hot.h"
#include "fabric/core.h"
#include "fabric/retire_hot.h"
#include "fabric/stage_hot.h"

/* Bytes a ring of weight 1 may take per step; one transfer may overdraw it. */
#define DRR_QUANTUM (1 << 20)

enum {
	COMMAND_COST = 64, /* what a command without payload counts */
	PREFETCH_SLOTS = 16,
	PREFETCH_TARGETS = 6,
	PREFETCH_ENTRIES = 3,
};

/* A batch on its way through take, check and stage. */
struct batch {
	unsigned n;
	uint32_t first_seq;
	struct epf_op ops[EPF_MAX_BATCH];
};

/* How many commands of the ring may be taken now. */
static unsigned take_budget(struct epf_core *core, struct epf_ring_state *ring)
{
	uint32_t window = ring->pend_mask + 1 - (ring->seq - ring->retired);
	uint32_t pool = core->limits.max_parked - core->n_parked;
	uint32_t n = core->limits.batch;

	if (EPF_UNLIKELY(ring->blocked != EPF_NONE))
		return 0;
	if (n > window)
		n = window;
	if (n > pool)
		n = pool;
	return n;
}

/*
 * Copies commands out of the ring, each slot loaded once; a FLUSH ends the batch, and while one is under way the next one
 * waits in the ring. Gives the slots back. [A1, R2]
 */
static void take(struct epf_core *core, struct epf_ring_state *ring, unsigned budget, unsigned pace,
		 struct batch *b)
{
	struct epf_ring_consumer *c = &ring->consumer;
	int64_t quantum = (int64_t)(DRR_QUANTUM >> pace) * ring->weight;
	/* Each step brings a quantum, also those in which the ring was empty and nobody came here. */
	int64_t deficit = ring->deficit + quantum * (core->steps - ring->last_step);
	unsigned n = 0;

	ring->last_step = core->steps;
	ring->deficit = deficit > quantum ? quantum : deficit;
	b->first_seq = ring->seq;
	while (n < budget && ring->deficit > 0) {
		struct epf_op *op = &b->ops[n];
		struct epf_cmd slot, second;

		if (!epf_ring_peek(c, c->tail, &slot))
			break;
		if (EPF_LIKELY(epf_cmd_op(slot) != EPF_OP_WIDE)) {
			__builtin_prefetch(&c->slots[(c->tail + PREFETCH_SLOTS) & c->mask]);
			epf_op_unpack_narrow(slot, op);
			if (EPF_UNLIKELY(op->op == EPF_OP_FLUSH &&
					 ring->flush_phase != EPF_FLUSH_NONE))
				break;
		} else {
			if (!epf_ring_peek(c, c->tail + 1, &second))
				break; /* the second half is on its way */
			epf_op_unpack_wide(slot, second, op);
		}
		ring->pend[(ring->seq + n) & ring->pend_mask] = 1;
		c->tail += op->slots;
		ring->deficit -= (int64_t)op->length + COMMAND_COST;
		n++;
		if (EPF_UNLIKELY(op->op == EPF_OP_FLUSH))
			break;
	}
	b->n = n;
	ring->seq += n;
	epf_ring_release(c);
}

/* Checks the batch; refused commands are failed here and become NOPs. */
static void check(struct epf_core *core, struct epf_ring_state *ring, struct batch *b)
{
	const struct epf_rank_state *rank = &core->ranks[ring->rank];

	for (unsigned i = 0; i < b->n; i++) {
		struct epf_op *op = &b->ops[i];
		unsigned reason = epf_cmd_check(rank, core->peers, core->world, op);

		if (EPF_UNLIKELY(reason)) {
			epf_refuse_cold(core, ring, b->first_seq + i, op->rank, reason);
			op->op = EPF_OP_COUNT; /* already retired */
		}
	}
}

/*
 * Brings the stream and the next lane entry of a command near: with many peers each command touches other lines, and
 * the batch gives the time to fetch them.
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

static void stage_batch(struct epf_core *core, struct epf_ring_state *ring, const struct batch *b)
{
	for (unsigned i = 0; i < b->n; i++) {
		const struct epf_op *op = &b->ops[i];
		uint32_t seq = b->first_seq + i;

		if (i + PREFETCH_TARGETS < b->n)
			prefetch_target(core, ring, op + PREFETCH_TARGETS);
		if (EPF_LIKELY(op->op != EPF_OP_FLUSH && op->op != EPF_OP_NOP &&
			       op->op != EPF_OP_COUNT))
			epf_stage_command(core, ring, op, seq);
		else if (op->op == EPF_OP_FLUSH)
			epf_flush_begin(core, ring, seq, op->flags & EPF_F_ALL);
		else if (op->op == EPF_OP_NOP)
			epf_retire(ring, seq);
	}
}

static unsigned take_rings(struct epf_core *core)
{
	unsigned handled = 0;
	uint32_t i, n = core->n_rings;
	struct batch b;

	for (i = 0; i < n; i++) {
		uint32_t at =
			core->next_ring + i < n ? core->next_ring + i : core->next_ring + i - n;
		const struct epf_ring_poll *poll = &core->polls[at];
		struct epf_ring_state *ring;
		uint64_t t0, t1, t2;
		unsigned budget;

		/* Most rings are empty: one look at the next slot, take() looks again with the order it needs. */
		if ((EPF_LOAD_RELAXED(&poll->slot->lo) ^ poll->parity) & 1u)
			continue;
		ring = core->rings[at];
		if (EPF_UNLIKELY(!ring->live))
			continue;
		budget = take_budget(core, ring);
		if (EPF_UNLIKELY(!budget))
			continue;
		t0 = epf_tsc();
		take(core, ring, budget, core->nic->pace, &b);
		if (!b.n)
			continue;
		epf_ring_poll_next(core, ring);
		t1 = epf_tsc();
		check(core, ring, &b);
		t2 = epf_tsc();
		stage_batch(core, ring, &b);
		EPF_COUNT(core, CMDS_TAKEN, b.n);
		EPF_COUNT(core, TAKE_TSC, t1 - t0);
		EPF_COUNT(core, CHECK_TSC, t2 - t1);
		EPF_COUNT(core, STAGE_TSC, epf_tsc() - t2);
		handled += b.n;
	}
	if (++core->next_ring >= n)
		core->next_ring = 0;
	return handled;
}

/* Hands staged entries to the NIC: at most two posts a lane (the ring of entries may wrap), one doorbell each. */
static unsigned flush_lanes(struct epf_core *core)
{
	uint32_t n = core->n_dirty, kept = 0;
	unsigned handled = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct epf_lane *lane = &core->lanes[core->dirty_lanes[i]];

		while (lane->posted != lane->head && lane->state == EPF_LANE_UP) {
			uint32_t at = lane->posted & lane->mask;
			uint32_t count = lane->head - lane->posted;
			int rc;

			if (count > lane->mask + 1 - at)
				count = lane->mask + 1 - at;
			rc = core->ops->post(core->nic, lane->id, &lane->wrs[at], count);
			if (EPF_UNLIKELY(rc <= 0)) {
				if (rc < 0)
					epf_lane_error_cold(core, lane, EPF_S_RETRY_EXCEEDED);
				break;
			}
			lane->posted += (uint32_t)rc;
			handled += (unsigned)rc;
			EPF_COUNT(core, DOORBELLS, 1);
		}
		if (lane->posted != lane->head && lane->state == EPF_LANE_UP)
			core->dirty_lanes[kept++] = lane->id;
		else
			lane->dirty = 0;
	}
	core->n_dirty = kept;
	EPF_COUNT(core, WRS_POSTED, handled);
	return handled;
}

/* Takes completions and arrivals. */
static unsigned reap(struct epf_core *core)
{
	unsigned receives = 0, first = 0;
	uint64_t t0, t1;
	int i, n;

	if (EPF_LIKELY(!core->hold)) {
		n = core->ops->reap(core->nic, core->wcs, core->limits.reap_batch);
	} else {
		if (!epf_hold_over_cold(core))
			return 0;
		first = core->held_at;
		n = (int)core->held_n;
	}
	if (n <= (int)first)
		return 0;
	t0 = epf_tsc();
	for (i = (int)first; i < n; i++) {
		const struct epf_wc *wc = &core->wcs[i];

		if (i + PREFETCH_ENTRIES < n) {
			const struct epf_lane *ahead = &core->lanes[wc[PREFETCH_ENTRIES].lane];

			__builtin_prefetch(&ahead->wrs[ahead->tail & ahead->mask]);
		}
		if (EPF_LIKELY(wc->op == EPF_WC_SENT)) {
			if (EPF_LIKELY(wc->status == EPF_S_OK))
				epf_complete(core, &core->lanes[wc->lane], wc->id);
			else
				epf_lane_error_cold(core, &core->lanes[wc->lane], wc->status);
		} else if (EPF_UNLIKELY(wc->op == EPF_WC_LANE_DOWN)) {
			epf_lane_error_cold(core, &core->lanes[wc->lane], wc->status);
		} else {
			epf_arrive(core, wc);
			receives++;
			if (EPF_UNLIKELY(core->hold)) {
				core->held_at = (uint32_t)i + 1;
				core->held_n = (uint32_t)n;
				n = i + 1;
			}
		}
	}
	t1 = epf_tsc();
	if (receives) {
		core->ops->post_receives(core->nic, receives);
		EPF_COUNT(core, ARRIVALS, receives);
		EPF_COUNT(core, ARRIVE_TSC, t1 - t0);
	} else {
		EPF_COUNT(core, REAP_TSC, t1 - t0);
	}
	EPF_COUNT(core, COMPLETIONS, (unsigned)n - first - receives);
	return (unsigned)n - first;
}

/* Tells producers what has been retired: one release store per ring that moved. [R3] */
static void publish(struct epf_core *core)
{
	if (EPF_UNLIKELY(core->gpu_reads)) { /* what a get brought may lie in GPU memory */
		core->gpu_reads = 0;
		epf_gpu_visible(core);
	}
	for (uint32_t w = 0; w * 64 < core->n_rings; w++) {
		uint64_t moved = core->retired[w];

		core->retired[w] = 0;
		for (; moved; moved &= moved - 1) {
			struct epf_ring_state *ring =
				core->rings[w * 64 + (uint32_t)__builtin_ctzll(moved)];

			if (!ring->live)
				continue;
			ring->retired64 += ring->retired - ring->published;
			ring->published = ring->retired;
			EPF_STORE_RELEASE(&ring->done->retired, ring->retired64);
			core->ranks[ring->rank].news |= EPF_NEWS_WORDS;
			core->wakes = 1;
		}
	}
}

EPF_HOT unsigned epf_core_step(struct epf_core *core)
{
	uint64_t t0 = epf_tsc(), t1, t2;
	unsigned handled = take_rings(core);

	if (EPF_UNLIKELY(core->n_wait))
		handled += epf_stage_waiting(core);
	if (EPF_UNLIKELY(core->flushing))
		handled += epf_flush_step(core);
	if (core->words_dirty)
		handled += epf_words_step(core);
	t1 = epf_tsc();
	if (core->n_dirty) {
		handled += flush_lanes(core);
		EPF_COUNT(core, FLUSH_TSC, epf_tsc() - t1);
	}
	handled += reap(core);
	t2 = epf_tsc();
	publish(core);
	if (EPF_UNLIKELY((++core->steps & 63) == 0 || core->cold_work))
		handled += epf_core_tick_cold(core);
	t1 = epf_tsc();
	EPF_COUNT(core, PUBLISH_TSC, t1 - t2);
	if (handled) {
		EPF_COUNT(core, STEPS_BUSY, 1);
		EPF_COUNT(core, BUSY_TSC, t1 - t0);
	} else {
		EPF_COUNT(core, STEPS_IDLE, 1);
	}
	return handled;
}
