/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuning of the data path. Without any of this commands would still end right, only later: it decides where a step looks, how often, and how much it
 * does at once. Each heuristic has a name, a reason and its gain. Times and rates are in bench/RESULTS.md and docs/design.md (decisions t and aa);
 * instructions are those of a command inside epf_core_step(), with and without the heuristic, counted by callgrind on the null NIC with 63 peers
 * (by a program that is not in this repository). Percentages: ep-bench core, one ring, 7 pairs of builds on 16 idle
 * CPUs; single pairs scatter by a quarter, so that is their order and not more. Inline parts of step_hot.c, put_hot.c, stage_hot.c and retire_hot.h.
 */
#ifndef EPF_FABRIC_ENGINE_POLICY_HOT_H
#define EPF_FABRIC_ENGINE_POLICY_HOT_H

#include "fabric/base/clock.h"
#include "fabric/engine/core.h"
#include "fabric/engine/plain_hot.h"

enum {
	/*
	 * One step in so many reads the clock and counts for all of them: a reading costs as much as staging a command. Coprime to the other
	 * periods of a step, so that the sample is not biased. Gain: 5 %.
	 */
	TIMED_STEP = 127,
	LONG_STEP = 32, /* the recorder times steps of so many commands: the clock costs little */
	FOLLOW_NS = 20000, /* time between two batches of which one command is followed */
};

/* How far ahead the next cache lines are fetched. */
enum {
	PREFETCH_SLOTS = 16, /* slots of the ring. Gain: 5 % */
	PREFETCH_FIRST = 4,  /* slots in a line */
	PREFETCH_TARGETS =
		6, /* commands of a batch: with many peers each touches other lines. Gain with one peer: 1 % */
	PREFETCH_ENTRIES = 3, /* completions. Gain: 3 % */
};

/* Fetches the first slots of a run. */
EPF_INLINE void prefetch_slots(const struct epf_ring_consumer *c, uint64_t tail)
{
	for (unsigned i = PREFETCH_FIRST; i < PREFETCH_SLOTS; i += PREFETCH_FIRST)
		__builtin_prefetch(&c->slots[(tail + i) & c->mask]);
}

/* Returns the clock, or 0 in a step that is not timed. */
static inline uint64_t clock_if(unsigned timed)
{
	return EPF_UNLIKELY(timed) ? epf_tsc() : 0;
}

/* Returns 1 if the ring's next slot is empty. Relaxed: dequeue() reads the slot again with the order it needs. */
static inline unsigned ring_is_empty(const struct epf_ring_poll *poll)
{
	return (unsigned)(EPF_LOAD_RELAXED(&poll->slot->lo) ^ poll->parity) & 1u;
}

/*
 * Returns how many rings from `poll` on are empty, up to `most`, four at a time without a branch between their loads. Most rings are
 * empty, and a command waits as long as a round over them lasts. Gain: an idle step over 133 rings takes 106 ns, 317 one at a time.
 */
static inline uint32_t count_empty(const struct epf_ring_poll *poll, uint32_t most)
{
	uint32_t n = 0;

	while (n + 4 <= most && (ring_is_empty(poll + n) & ring_is_empty(poll + n + 1) &
				 ring_is_empty(poll + n + 2) & ring_is_empty(poll + n + 3)))
		n += 4;
	while (n < most && ring_is_empty(poll + n))
		n++;
	return n;
}

/* Fetches the next ring's slot, which a GPU may have written, during this ring's turn. Gain: 10 %. */
static inline void prefetch_ring(const struct epf_core *core, uint32_t next)
{
	if (next < core->n_rings)
		__builtin_prefetch(core->polls[next].slot);
}

enum {
	STEP_COMMANDS = 256, /* a step dequeues so many even into full lanes */
	STEP_LANES = 64,     /* lanes looked at to tell whether they are full */
};

/* Returns 1 if the dirty lanes cannot absorb another batch. */
static inline unsigned lanes_full(const struct epf_core *core)
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

/*
 * Ends the round over the rings when lanes are full: what the other rings hold would only be deferred, and be read again through memory that has left
 * the caches. Gain: 29 to 32 million commands a second from a GPU instead of 24 to 25; 61 % of them were deferred before.
 */
static inline unsigned round_is_over(const struct epf_core *core, unsigned handled)
{
	return EPF_UNLIKELY(handled >= STEP_COMMANDS) && lanes_full(core);
}

enum {
	LONG_RUN = 8,     /* plain puts in a row */
	MIXED_TURNS = 31, /* turns of a ring without long runs in which none is looked for */
	BETWEEN_RUNS = 2, /* commands of any kind between two looks */
};

/*
 * A run of plain puts goes from ring to lane in one pass (put_hot.c), so most turns of a ring begin by looking for one. Gain: 79 to 84 million
 * puts a second from a GPU into one core, 29 to 32 without; on CPUs 34 cycles a put, 72 without (null NIC, 16 a step). Instructions: 248 and 408 for
 * 16 puts a step to one peer, 580 and 609 if each goes to another peer.
 *
 * In a ring of mixed commands each look fails: after two that found no long run, none is made for MIXED_TURNS turns. Instructions, commands one
 * at a time: signals 1,048 and 1,198, a mix of commands 942 and 984; in batches of 128 no difference.
 */
static inline unsigned looks_for_run(struct epf_ring_state *ring)
{
	if (!ring->mixed)
		return 1;
	ring->mixed--;
	return 0;
}

/*
 * After a look that found `n` puts, the turn's `dequeued` commands so far included: returns how many commands of any kind, of `most`, come before
 * the next look; 0: the turn is over.
 */
static inline unsigned most_after_run(struct epf_ring_state *ring, const struct epf_put_run *run,
				      unsigned n, unsigned dequeued, unsigned most)
{
	if (!most || run->empty || run->full == EPF_PUT_LEAVE)
		return 0;
	/* Another run usually follows one. */
	if (!run->full && n < LONG_RUN && (dequeued != n || ring->missed)) {
		ring->mixed = MIXED_TURNS;
		return most;
	}
	ring->missed = n == 0;
	return most > BETWEEN_RUNS ? BETWEEN_RUNS : most;
}

/* Returns 1 if the turn goes on with another look for a run, after a batch of n commands. */
static inline unsigned looks_again(const struct epf_ring_state *ring, unsigned n)
{
	return n == BETWEEN_RUNS && !ring->mixed;
}

enum { REAP_COMMANDS = 16 }; /* commands that go out before the NIC is looked at */

/*
 * Backs off the NIC where commands come one at a time: two polls and the control data of one completion cost as much as a command, so a few
 * commands go out first, as long as the rings have more and nothing waits for what the NIC would report. Instructions: 908 and 1,056 for puts one at a
 * time; no difference in batches.
 */
static inline unsigned reaps_later(struct epf_core *core, unsigned dequeued)
{
	core->unreaped += dequeued;
	if (dequeued && core->unreaped < REAP_COMMANDS &&
	    !(core->n_wait | core->flushing | core->n_dirty | core->cold_work) &&
	    core->adds != EPF_ADDS_HOLD)
		return 1;
	core->unreaped = 0;
	return 0;
}

enum {
	LEAVE_DEFERRED =
		4, /* commands of a stream that are deferred, for who asks why it waits, before the rest is left in the ring */
	LOOK_AHEAD = 64, /* slots looked at in one turn for commands that differ */
};

/* Returns the slot up to which commands of a ring are compared: as many as would be deferred. */
static inline uint64_t alike_end(const struct epf_core *core, const struct epf_ring_state *ring)
{
	const struct epf_ring_consumer *c = &ring->consumer;
	uint64_t most = core->limits.defer_limit;

	return c->tail + (most > c->mask + 1 ? c->mask + 1 : most);
}

/*
 * Returns 1 if all commands that can be seen in the ring, as many as would be deferred, are plain puts with this key. Each slot is looked at once,
 * some a turn; until all have been, the answer is yes.
 */
static inline int ring_is_alike(const struct epf_core *core, struct epf_ring_state *ring,
				uint64_t key)
{
	const struct epf_ring_consumer *c = &ring->consumer;
	uint64_t end = alike_end(core, ring), at = c->tail;

	if (ring->alike_key == key && ring->alike > at && ring->alike <= end)
		at = ring->alike;
	if (end > at + LOOK_AHEAD)
		end = at + LOOK_AHEAD;
	for (; at < end; at++) {
		struct epf_cmd slot;

		if (!epf_ring_peek(c, at, &slot))
			break;
		if (!plain_is_put(slot) || plain_has_more(slot) || plain_key(slot) != key)
			return 0;
	}
	ring->alike_key = key;
	ring->alike = at;
	return 1;
}

/*
 * The first put of a ring's turn cannot be staged. Returns EPF_PUT_LEAVE if it stays in the ring: others of its stream are deferred, and deferring
 * these too would let no command pass. 0 or EPF_PUT_CREDIT: it is deferred. Gain: 25 to 30 ns a put where copies between GPUs are the limit;
 * bandwidth of 7 KiB puts 0.57 of the bare copy kernel's before, 0.73 with it.
 */
static __attribute__((noinline, unused)) uint32_t
leaves_put(const struct epf_core *core, struct epf_ring_state *ring, struct epf_cmd c)
{
	uint32_t to = plain_rank(c);
	uint32_t index = to < core->world ? ring->streams[to] : EPF_NONE;

	if (index == EPF_NONE || core->streams[index].deferred_head == EPF_NONE ||
	    !core->ranks[ring->rank].usable[to] || !ring_is_alike(core, ring, plain_key(c)))
		return 0;
	if (core->streams[index].deferred_count < LEAVE_DEFERRED)
		return EPF_PUT_CREDIT;
	ring->left = 1;
	return EPF_PUT_LEAVE;
}

enum { RECLAIM_RUN = 4 };

/*
 * Returns 1 if a completion that covers n + 1 entries is worth looking for runs of plain puts among them, which are counted once for all.
 * Instructions: 248 and 279 for 16 puts a step to one peer.
 */
static inline unsigned reclaims_runs(uint32_t n)
{
	return EPF_UNLIKELY(n >= RECLAIM_RUN) != 0;
}

#endif
