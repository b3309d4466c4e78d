/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of an engine core: the file to read first. Run to completion, each part with a budget:
 *
 *   take -> check -> stage (admit, or defer) -> words -> flush (post) -> reap -> arrive -> publish
 *
 * Plain puts at the head of a ring go from there to the lane in one pass, put_hot.c, with the same rules.
 *
 * Called in a loop by loop.c, by epf_progress() and by simulations. Must never block, allocate, lock, log or make a
 * system call (tests/check_hot.py, tests/proc/test_seccomp.c).
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/check_hot.h"
#include "fabric/engine/core.h"
#include "fabric/engine/follow_hot.h"
#include "fabric/engine/retire_hot.h"
#include "fabric/engine/stage_hot.h"

/* Bytes a ring of weight 1 may take per step; one transfer may overdraw it. */
#define DRR_QUANTUM (1 << 20)

enum {
	/*
	 * One step of so many is timed and counts for all of them: reading the clock costs as much as staging a command. Coprime to the other
	 * rhythms of a step, so that none of them is always or never in it.
	 */
	TIMED_STEP = 127,
	LONG_STEP = 32,     /* handled: timed for the recorder, whose clock costs it little */
	REAP_COMMANDS = 16, /* taken one by one, so many go out before the NIC is looked at */
	PREFETCH_SLOTS = 16,
	PREFETCH_ENTRIES = 3,
	STEP_COMMANDS = 256, /* a step takes so many even into lanes that are full */
	LONG_RUN = 8,        /* plain puts in a row */
	MIXED_TURNS = 31, /* of a ring in which no long ones are looked for, when there were none */
	BETWEEN_RUNS = 2, /* commands of any kind between two of them */
	STEP_LANES = 64,  /* lanes looked at to tell whether they are */
};

/* A batch on its way through take, check and stage. */
struct batch {
	unsigned n;
	uint32_t first_seq;
	struct epf_op ops[EPF_MAX_BATCH];
};

/* How many commands of the ring may be dequeued now. */
static unsigned take_budget(struct epf_core *core, struct epf_ring_state *ring)
{
	uint32_t window = ring->pend_mask + 1 - (ring->seq - ring->retired);
	uint32_t pool = core->limits.max_deferred - core->n_deferred;
	uint32_t n = core->limits.batch;

	if (EPF_UNLIKELY(ring->blocked != EPF_NONE))
		return 0;
	if (n > window)
		n = window;
	if (n > pool)
		n = pool;
	return n;
}

/* Bytes that each step brings to the ring. */
static int64_t step_quantum(const struct epf_core *core, const struct epf_ring_state *ring)
{
	return (int64_t)(DRR_QUANTUM >> core->nic->pace) * ring->weight;
}

/* Apart from the loop of takes, which it would fill with the fields of rarer commands. */
static __attribute__((noinline)) void unpack_other(struct epf_cmd slot, struct epf_op *op)
{
	epf_op_unpack_narrow(slot, op);
}

/*
 * Copies commands out of the ring, each slot loaded once; a FLUSH ends the batch, and while one is under way the next one
 * waits in the ring. Gives the slots back. [A1, R2]
 */
EPF_INLINE void take(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
		     struct batch *b)
{
	struct epf_ring_consumer *c = &ring->consumer;
	int64_t quantum = step_quantum(core, ring);
	/* Each step brings a quantum, also those in which the ring was empty and nobody came here. */
	int64_t deficit = ring->deficit + quantum * (core->steps - ring->last_step);
	uint64_t tail = c->tail;
	unsigned n = 0;

	deficit = deficit > quantum ? quantum : deficit;
	while (n < budget && deficit > 0) {
		struct epf_op *op = &b->ops[n];
		struct epf_cmd slot, second;

		if (!epf_ring_peek(c, tail, &slot))
			break;
		if (EPF_LIKELY(epf_op_is_put(epf_cmd_op(slot)))) {
			__builtin_prefetch(&c->slots[(tail + PREFETCH_SLOTS) & c->mask]);
			epf_op_unpack_transfer(slot, op);
			tail++;
		} else if (epf_cmd_op(slot) != EPF_OP_WIDE) {
			__builtin_prefetch(&c->slots[(tail + PREFETCH_SLOTS) & c->mask]);
			unpack_other(slot, op);
			if (EPF_UNLIKELY(op->op == EPF_OP_FLUSH &&
					 ring->flush_phase != EPF_FLUSH_NONE))
				break;
			tail++;
		} else {
			if (!epf_ring_peek(c, tail + 1, &second))
				break; /* the second half is on its way */
			epf_op_unpack_wide(slot, second, op);
			tail += op->slots;
		}
		ring->pend[(ring->seq + n) & ring->pend_mask] = 1;
		deficit -= (int64_t)op->length + EPF_COMMAND_COST;
		n++;
		if (EPF_UNLIKELY(op->op == EPF_OP_FLUSH))
			break;
	}
	b->n = n;
	b->first_seq = ring->seq;
	ring->seq += n;
	ring->last_step = core->steps;
	ring->deficit = deficit;
	c->tail = tail;
	epf_ring_release(c);
}

/* Checks the batch; refused commands are failed here and become NOPs. */
EPF_INLINE void check(struct epf_core *core, struct epf_ring_state *ring, struct batch *b)
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

/* 1: nothing is at the ring's next place. A relaxed look; take() looks again with the order it needs. */
static unsigned is_empty(const struct epf_ring_poll *poll)
{
	return (unsigned)(EPF_LOAD_RELAXED(&poll->slot->lo) ^ poll->parity) & 1u;
}

/*
 * How many rings from `poll` on are empty, up to `most`. Most rings are, and as long as a round over them lasts, a command waits: so four at a
 * time, without a branch between their loads.
 */
static uint32_t count_empty(const struct epf_ring_poll *poll, uint32_t most)
{
	uint32_t n = 0;

	while (n + 4 <= most && (is_empty(poll + n) & is_empty(poll + n + 1) &
				 is_empty(poll + n + 2) & is_empty(poll + n + 3)))
		n += 4;
	while (n < most && is_empty(poll + n))
		n++;
	return n;
}

/* Have the lanes that this step uses less room than a batch needs? */
static unsigned lanes_full(const struct epf_core *core)
{
	uint32_t first = core->n_dirty > STEP_LANES ? core->n_dirty - STEP_LANES : 0;
	uint32_t room = 0;

	for (uint32_t i = first; i < core->n_dirty && room < core->limits.batch; i++) {
		const struct epf_lane *lane = &core->lanes[core->dirty_lanes[i]];
		uint32_t used = lane->head - lane->tail;

		room += used < lane->limit ? lane->limit - used : 0;
	}
	return core->n_dirty && room < core->limits.batch;
}

/* The clock in a step that is timed. */
static inline uint64_t clock_if(unsigned timed)
{
	return EPF_UNLIKELY(timed) ? epf_tsc() : 0;
}

/* Tells the recorder, probes and counters of commands that were dequeued. */
EPF_INLINE void note_taken(struct epf_core *core, const struct epf_ring_state *ring, unsigned n,
			   uint32_t first_seq, uint64_t began)
{
	epf_flight_note(core->flight, began, EPF_FLIGHT_DEQUEUE, 0, ring->id, n, 0, first_seq);
	EPF_PROBE3(dequeue, ring->id, n, first_seq);
	EPF_COUNT(core, CMDS_DEQUEUED, n);
}

/* Plain puts at the head of a ring, as far as they go: dequeued, checked and staged in one. Returns how many. */
EPF_INLINE unsigned take_run(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
			     unsigned timed, unsigned follow, struct epf_put_run *run)
{
	uint64_t t0 = clock_if(timed | follow);
	unsigned n = epf_put_run(core, ring, budget, step_quantum(core, ring), run);

	if (!n)
		return 0;
	epf_ring_poll_next(core, ring);
	if (EPF_UNLIKELY(timed))
		EPF_COUNT(core, STAGE_TSC, TIMED_STEP * (epf_tsc() - t0));
	if (EPF_UNLIKELY(follow) && core->sample.state == EPF_SAMPLE_NONE &&
	    run->lane != EPF_NONE) {
		core->sample.tsc = t0;
		sample_staged(core, &core->lanes[run->lane]);
	}
	return n;
}

/* Commands of any kind, in three passes. Returns how many. */
EPF_INLINE unsigned take_batch(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
			       unsigned timed, unsigned follow)
{
	uint64_t t0 = clock_if(timed | follow), t1, t2;
	struct batch b;

	take(core, ring, budget, &b);
	if (!b.n)
		return 0;
	epf_ring_poll_next(core, ring);
	t1 = clock_if(timed);
	check(core, ring, &b);
	t2 = clock_if(timed);
	epf_stage_batch(core, ring, b.ops, b.n, b.first_seq);
	if (EPF_UNLIKELY(timed)) {
		EPF_COUNT(core, DEQUEUE_TSC, TIMED_STEP * (t1 - t0));
		EPF_COUNT(core, CHECK_TSC, TIMED_STEP * (t2 - t1));
		EPF_COUNT(core, STAGE_TSC, TIMED_STEP * (epf_tsc() - t2));
	}
	if (EPF_UNLIKELY(follow))
		sample_begin(core, ring, b.ops, b.n, t0);
	return b.n;
}

/* The turn of a ring: runs of plain puts, and what stands between them. Returns how many commands were dequeued. */
EPF_INLINE unsigned take_ring(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
			      unsigned timed, unsigned follow, uint64_t began)
{
	uint32_t first_seq = ring->seq;
	unsigned dequeued = 0, n;

	do {
		unsigned run = 0, most = budget - dequeued;
		struct epf_put_run row;

		if (ring->mixed) {
			ring->mixed--;
		} else {
			run = take_run(core, ring, most, timed, follow, &row);
			most -= run;
			dequeued += run;
			if (!most || row.empty || row.full == EPF_PUT_LEAVE)
				break;
			/* Behind a run there mostly is another one. If not, or at the second turn without one, none are looked for in the next turns. */
			if (!row.full && run < LONG_RUN && (dequeued != run || ring->missed)) {
				ring->mixed = MIXED_TURNS;
			} else {
				ring->missed = run == 0;
				if (most > BETWEEN_RUNS)
					most = BETWEEN_RUNS;
			}
		}
		n = take_batch(core, ring, most, timed, follow);
		dequeued += n;
	} while (n == BETWEEN_RUNS && !ring->mixed && dequeued < budget);
	if (dequeued)
		note_taken(core, ring, dequeued, first_seq, began);
	return dequeued;
}

/*
 * One round over the rings, or less: when lanes are full, what other rings hold would only be set aside, and come back through memory that
 * has left the caches. The next step goes on behind the last ring. @began: the step's clock, which takes are recorded with.
 */
EPF_INLINE unsigned take_rings(struct epf_core *core, unsigned timed, uint64_t began)
{
	unsigned handled = 0;
	uint32_t n = core->n_rings, at = core->next_ring, left;

	for (left = n; left; left--, at = at + 1 < n ? at + 1 : 0) {
		struct epf_ring_state *ring;
		unsigned budget, follow;

		if (is_empty(&core->polls[at])) { /* the loop counts one of them */
			uint32_t to_end = n - at < left ? n - at : left;
			uint32_t more = count_empty(&core->polls[at + 1], to_end - 1);

			at += more;
			left -= more;
			continue;
		}
		ring = core->rings[at];
		if (EPF_UNLIKELY(!ring->live))
			continue;
		if (EPF_UNLIKELY(handled >= STEP_COMMANDS) && lanes_full(core))
			break;
		if (at + 1 <
		    n) /* a GPU may have written it: it comes while this ring has its turn */
			__builtin_prefetch(core->polls[at + 1].slot);
		budget = take_budget(core, ring);
		if (EPF_UNLIKELY(!budget))
			continue;
		follow = began >= core->seen.next_tsc;
		if (EPF_UNLIKELY(follow))
			seen_begin(core, ring, epf_tsc());
		handled += take_ring(core, ring, budget, timed, follow, began);
		if (EPF_UNLIKELY(core->seen.ring == ring->id + 1u))
			seen_look(core, ring);
	}
	if (!left) /* all had their turn: another one is first now */
		at = at + 1 < n ? at + 1 : 0;
	core->next_ring = at;
	return handled;
}

/* Hands staged entries to the NIC: at most two posts a lane (the ring of entries may wrap), one doorbell each. */
EPF_INLINE unsigned flush_lanes(struct epf_core *core)
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
			EPF_PROBE3(post, lane->id, rc, lane->posted);
			lane->posted += (uint32_t)rc;
			handled += (unsigned)rc;
			EPF_COUNT(core, DOORBELLS, 1);
			if ((uint32_t)rc <
			    count) /* no room, or paced: the rest is the next step's */
				break;
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

/* While arrivals are queued: how many the next reap may bring, at most `most`. */
static unsigned queued_room(const struct epf_core *core, unsigned most)
{
	unsigned room = EPF_MAX_QUEUED_ARRIVALS - core->n_queued_arrivals;

	return room < most ? room : most;
}

/* Takes completions and arrivals. */
EPF_INLINE unsigned reap(struct epf_core *core, unsigned timed)
{
	unsigned receives = 0, first = 0, most = core->limits.reap_batch;
	unsigned late = core->n_queued_arrivals; /* arrivals that were queued and take effect now */
	uint64_t t0, t1;
	int i, n;

	if (EPF_UNLIKELY(core->hold) && !epf_hold_over_cold(core)) {
		most = core->held_n ? 0 : queued_room(core, most);
		if (!most)
			return 0;
	}
	late -= core->n_queued_arrivals;
	if (EPF_LIKELY(!core->held_n)) {
		n = core->ops->reap(core->nic, core->wcs, most);
	} else {
		first = core->held_at;
		n = (int)core->held_n;
		core->held_n = 0;
	}
	if (n <= (int)first)
		return late;
	t0 = clock_if(timed);
	for (i = (int)first; i < n; i++) {
		const struct epf_wc *wc = &core->wcs[i];

		if (i + PREFETCH_ENTRIES < n) {
			const struct epf_lane *ahead = &core->lanes[wc[PREFETCH_ENTRIES].lane];

			__builtin_prefetch(&ahead->wrs[ahead->tail & ahead->mask]);
		}
		if (EPF_LIKELY(wc->op == EPF_WC_SENT && wc->status == EPF_S_OK)) {
			EPF_PROBE3(complete, wc->lane, wc->id, wc->status);
			epf_complete(core, &core->lanes[wc->lane], wc->id);
		} else if (EPF_UNLIKELY(wc->op == EPF_WC_SENT || wc->op == EPF_WC_LANE_DOWN)) {
			if (EPF_UNLIKELY(core->hold)) { /* not before what came before it */
				core->held_at = (uint32_t)i;
				core->held_n = (uint32_t)n;
				n = i;
				break;
			}
			if (wc->op == EPF_WC_SENT)
				EPF_PROBE3(complete, wc->lane, wc->id, wc->status);
			epf_lane_error_cold(core, &core->lanes[wc->lane], wc->status);
		} else {
			receives++;
			if (EPF_UNLIKELY(core->adding) && epf_adding_stops_cold(core, wc))
				continue;
			EPF_PROBE3(arrive, wc->lane, wc->op, wc->len);
			epf_arrive(core, wc);
		}
	}
	t1 = clock_if(timed);
	if (receives) {
		core->received = receives;
		core->ops->post_receives(core->nic, receives);
		EPF_COUNT(core, ARRIVALS, receives);
	}
	if (EPF_UNLIKELY(timed) && receives)
		EPF_COUNT(core, ARRIVE_TSC, TIMED_STEP * (t1 - t0));
	else if (EPF_UNLIKELY(timed))
		EPF_COUNT(core, REAP_TSC, TIMED_STEP * (t1 - t0));
	EPF_COUNT(core, COMPLETIONS, (unsigned)n - first - receives);
	return (unsigned)n - first + late;
}

/* Tells producers what has been retired: one release store per ring that moved. Returns how many did. [R3] */
EPF_INLINE unsigned publish(struct epf_core *core)
{
	unsigned rings = 0;

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
			EPF_PROBE3(retire, ring->id, ring->retired - ring->published,
				   ring->retired64);
			ring->published = ring->retired;
			EPF_STORE_RELEASE(&ring->done->retired, ring->retired64);
			core->ranks[ring->rank].notify |= EPF_NOTIFY_WORDS;
			core->wakes = 1;
			rings++;
		}
	}
	return rings;
}

/*
 * May this step leave the NIC alone? Where commands come one at a time, two polls and the words of one completion cost as much as the
 * command: so a few go out first, as long as the rings have more and nothing waits for what the NIC would say.
 */
static unsigned reaps_later(struct epf_core *core, unsigned dequeued)
{
	core->unreaped += dequeued;
	if (dequeued && core->unreaped < REAP_COMMANDS &&
	    !(core->n_wait | core->flushing | core->n_dirty | core->hold | core->cold_work))
		return 1;
	core->unreaped = 0;
	return 0;
}

/* Takes what the NIC has and tells who waits for it. t0: when the step began. Returns how much there was. */
EPF_INLINE unsigned reap_and_publish(struct epf_core *core, unsigned timed, unsigned handled,
				     uint64_t t0)
{
	unsigned reaped = reap(core, timed);
	uint64_t t2 = clock_if(timed);

	/* What the engine says by itself, signs of life, would push out what mattered: it is not recorded. */
	if ((publish(core) | core->received) != 0) {
		unsigned clocked = timed | (handled + reaped >= LONG_STEP);

		epf_flight_note(core->flight, t0, EPF_FLIGHT_STEP, 0, 0, handled + reaped,
				core->received, clocked ? epf_tsc() - t0 : 0);
		core->received = 0;
	}
	if (EPF_UNLIKELY(timed))
		EPF_COUNT(core, PUBLISH_TSC, TIMED_STEP * (epf_tsc() - t2));
	return reaped;
}

/* timed: a constant, so that a step that is not timed asks nothing about it. */
EPF_INLINE unsigned step(struct epf_core *core, const unsigned timed)
{
	unsigned dequeued, handled;
	uint64_t t0, t1;

	/* The recorder's clock: steps that leave the NIC alone go by that of the first. */
	if (timed | !core->unreaped)
		core->began = epf_tsc();
	t0 = core->began;
	handled = 0;
	/* Before the rings: what they hold of the same streams comes behind, and may follow in the same post. */
	if (EPF_UNLIKELY(core->n_wait))
		handled += epf_stage_waiting(core);
	dequeued = take_rings(core, timed, t0);
	handled += dequeued;

	if (EPF_UNLIKELY(core->flushing))
		handled += epf_flush_step(core);
	if (core->words_dirty)
		handled += epf_words_step(core);
	t1 = clock_if(timed);
	if (core->n_dirty) {
		handled += flush_lanes(core);
		if (EPF_UNLIKELY(timed))
			EPF_COUNT(core, FLUSH_TSC, TIMED_STEP * (epf_tsc() - t1));
	}
	if (EPF_UNLIKELY(core->sample.state >= EPF_SAMPLE_STAGED))
		sample_step(core);
	if (!reaps_later(core, dequeued))
		handled += reap_and_publish(core, timed, handled, t0);
	if (EPF_UNLIKELY((++core->steps & 63) == 0 || core->cold_work))
		handled += epf_core_tick_cold(core);
	if (EPF_UNLIKELY(timed) && handled) {
		t1 = epf_tsc();
		EPF_COUNT(core, BUSY_TSC, TIMED_STEP * (t1 - t0));
		epf_hist_add(epf_stat_hist(core->stats, EPF_STAT_CORE_STEP_NS),
			     since_ns(core, t0, t1));
	}
	if (handled)
		EPF_COUNT(core, STEPS_BUSY, 1);
	else
		EPF_COUNT(core, STEPS_IDLE, 1);
	return handled;
}

static __attribute__((noinline)) unsigned timed_step(struct epf_core *core)
{
	core->timed_step += TIMED_STEP;
	return step(core, 1);
}

EPF_HOT unsigned epf_core_step(struct epf_core *core)
{
	return EPF_UNLIKELY(core->steps == core->timed_step) ? timed_step(core) : step(core, 0);
}
