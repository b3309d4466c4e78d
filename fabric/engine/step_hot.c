/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of an engine core on one screen: the file to read first. A step runs to completion, each part with a budget:
 *
 *   dequeue      copies commands out of the rings and releases the slots       dequeue_hot.h
 *   check        holds each against the tables; refused ones end here          check_hot.h
 *   stage        turns them into entries of lanes; without credit: defers      stage_hot.c
 *   acknowledge  stages control words that changed, moves flushes on           words_hot.c, flush_hot.c
 *   post         hands staged entries to the NIC, one doorbell a lane          post_hot.h
 *   reap         takes completions: credit returns, commands retire            reap_hot.h, retire_hot.h
 *   arrive       counts arrivals; messages take effect when all is there       arrive_hot.c
 *   publish      reports to producers what has been retired                        publish_hot.h
 *
 * Runs of plain puts take a fast path through the first three verbs (put_hot.c). What only tunes a step, when to look where, is in policy_hot.h; the
 * clocks of the statistics are in sample_hot.h; rare work is the control plane's (struct epf_control_ops).
 *
 * Called in a loop by loop.c and scheduler.c, by epf_progress() and by simulations. Must never block, allocate, lock, log or make a
 * system call (tests/check_hot.py, tests/proc/test_seccomp.c).
 */
#include "fabric/engine/data_path.h"
#include "fabric/engine/dequeue_hot.h"
#include "fabric/engine/policy_hot.h"
#include "fabric/engine/post_hot.h"
#include "fabric/engine/publish_hot.h"
#include "fabric/engine/reap_hot.h"
#include "fabric/engine/sample_hot.h"

/* Plain puts at the head of a ring, as many as there are: dequeue, check and stage in one pass. Returns how many. */
EPF_INLINE unsigned serve_run(struct epf_core *core, struct epf_ring_state *ring, unsigned most,
			      const unsigned timed, unsigned follow, struct epf_put_run *run)
{
	uint64_t began = clock_if(timed | follow);
	unsigned n = epf_put_run(core, ring, most, step_quantum(core, ring), run);

	if (!n)
		return 0;
	epf_ring_poll_next(core, ring);
	time_stage(core, timed, EPF_STAT_CORE_STAGE_TSC, began);
	if (EPF_UNLIKELY(follow))
		sample_run(core, run, began);
	return n;
}

/* Commands of any kind, in three passes. Returns how many. */
EPF_INLINE unsigned serve_batch(struct epf_core *core, struct epf_ring_state *ring, unsigned most,
				const unsigned timed, unsigned follow)
{
	uint64_t began = clock_if(timed | follow), t;
	struct batch b;

	dequeue(core, ring, most, &b);
	if (!b.n)
		return 0;
	epf_ring_poll_next(core, ring);
	t = time_stage(core, timed, EPF_STAT_CORE_DEQUEUE_TSC, began);
	check(core, ring, &b);
	t = time_stage(core, timed, EPF_STAT_CORE_CHECK_TSC, t);
	epf_stage_batch(core, ring, b.ops, b.n, b.first_seq);
	time_stage(core, timed, EPF_STAT_CORE_STAGE_TSC, t);
	if (EPF_UNLIKELY(follow))
		sample_begin(core, ring, b.ops, b.n, began);
	return b.n;
}

/* A ring's turn: runs of plain puts, and what stands between them. Returns how many commands were dequeued. */
EPF_INLINE unsigned serve_ring(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
			       const unsigned timed, uint64_t began)
{
	unsigned follow = seen_is_due(core, ring, began);
	uint32_t first_seq = ring->seq;
	unsigned dequeued = 0, n;

	do {
		unsigned most = budget - dequeued;
		struct epf_put_run run;

		if (looks_for_run(ring)) {
			n = serve_run(core, ring, most, timed, follow, &run);
			dequeued += n;
			most = most_after_run(ring, &run, n, dequeued, most - n);
			if (!most)
				break;
		}
		n = serve_batch(core, ring, most, timed, follow);
		dequeued += n;
	} while (looks_again(ring, n) && dequeued < budget);
	if (dequeued)
		note_dequeued(core, ring, dequeued, first_seq, began);
	if (EPF_UNLIKELY(core->seen.ring == ring->id + 1u))
		seen_look(core, ring);
	return dequeued;
}

EPF_INLINE unsigned serve_rings(struct epf_core *core, const unsigned timed, uint64_t began)
{
	struct round round = { core->next_ring, core->n_rings };
	struct epf_ring_state *ring;
	unsigned budget, dequeued = 0;

	while ((ring = next_ring(core, &round, dequeued, &budget)))
		dequeued += serve_ring(core, ring, budget, timed, began);
	return dequeued;
}

/* timed: a constant, so that a step that is not timed does not test it. Returns how much was done; 0: idle. */
EPF_INLINE unsigned step(struct epf_core *core, const unsigned timed)
{
	uint64_t began = step_begins(core, timed), t;
	unsigned dequeued, handled = 0;

	/* Before the rings: what they hold of the same streams may then follow in the same post. */
	if (EPF_UNLIKELY(core->n_wait))
		handled += epf_stage_waiting(core);
	dequeued = serve_rings(core, timed, began); /* dequeue, check, stage */
	handled += dequeued;
	if (EPF_UNLIKELY(core->flushing)) /* acknowledge */
		handled += epf_flush_step(core);
	if (core->words_dirty)
		handled += epf_words_step(core);
	t = clock_if(timed);
	if (core->n_dirty) {
		handled += post(core);
		time_stage(core, timed, EPF_STAT_CORE_FLUSH_TSC, t);
	}
	if (EPF_UNLIKELY(core->sample.state >= EPF_SAMPLE_STAGED))
		sample_step(core);
	if (!reaps_later(core, dequeued)) {
		handled += reap(core, timed); /* and arrive */
		t = clock_if(timed);
		if ((publish(core) | core->received) != 0)
			note_step(core, began, handled, timed);
		time_stage(core, timed, EPF_STAT_CORE_PUBLISH_TSC, t);
	}
	if (EPF_UNLIKELY((++core->steps & 63) == 0 || core->cold_work))
		handled += core->control->tick(core);
	step_ends(core, timed, began, handled);
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
