/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dequeue and check: whose turn it is, copying its commands out of the ring, refusing bad ones. Inline parts of step_hot.c.
 */
#ifndef EPF_FABRIC_ENGINE_DEQUEUE_HOT_H
#define EPF_FABRIC_ENGINE_DEQUEUE_HOT_H

#include "fabric/engine/check_hot.h"
#include "fabric/engine/fail.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/policy_hot.h"

/* Bytes that a ring of weight 1 may dequeue per step; one transfer may overdraw it. */
#define DRR_QUANTUM (1 << 20)

/* Commands on their way through dequeue, check and stage. */
struct batch {
	unsigned n;
	uint32_t first_seq;
	struct epf_op ops[EPF_MAX_BATCH];
};

/* Returns how many commands of the ring may be dequeued now. */
static inline unsigned dequeue_budget(const struct epf_core *core,
				      const struct epf_ring_state *ring)
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

/* Returns the bytes that each step adds to the ring's budget. */
static inline int64_t step_quantum(const struct epf_core *core, const struct epf_ring_state *ring)
{
	return (int64_t)(DRR_QUANTUM >> core->nic->pace) * ring->weight;
}

/* Out of line: keeps the dequeue loop small. */
static __attribute__((noinline, unused)) void unpack_other(struct epf_cmd slot, struct epf_op *op)
{
	epf_op_unpack_narrow(slot, op);
}

/*
 * Copies commands out of the ring, each slot loaded once, and releases the slots. A FLUSH ends the batch; while one is under way the next one
 * waits in the ring. [A1, R2]
 */
EPF_INLINE void dequeue(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
			struct batch *b)
{
	struct epf_ring_consumer *c = &ring->consumer;
	int64_t quantum = step_quantum(core, ring);
	/* Each step adds a quantum, also those in which the ring was empty. */
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
	ring_dequeued(core, ring, tail, ring->seq + n, deficit);
}

/* Checks the batch (check_hot.h); refused commands fail here and become EPF_OP_COUNT, which nobody stages. */
EPF_INLINE void check(struct epf_core *core, struct epf_ring_state *ring, struct batch *b)
{
	const struct epf_rank_state *rank = &core->ranks[ring->rank];

	for (unsigned i = 0; i < b->n; i++) {
		struct epf_op *op = &b->ops[i];
		unsigned reason = epf_cmd_check(rank, core->peers, core->world, op);

		if (EPF_UNLIKELY(reason)) {
			epf_refuse_cold(core, ring, b->first_seq + i, op->rank, reason);
			op->op = EPF_OP_COUNT;
		}
	}
}

/* Records commands that were dequeued: flight recorder, probe, counter. */
EPF_INLINE void note_dequeued(struct epf_core *core, const struct epf_ring_state *ring, unsigned n,
			      uint32_t first_seq, uint64_t began)
{
	epf_flight_note(core->flight, began, EPF_FLIGHT_DEQUEUE, 0, ring->id, n, 0, first_seq);
	EPF_PROBE3(dequeue, ring->id, n, first_seq);
	EPF_COUNT(core, CMDS_DEQUEUED, n);
}

/* A round over the rings: all have one turn, unless policy ends it. The next step's begins behind the last ring. */
struct round {
	uint32_t at, left;
};

/* Returns the next ring with commands that may be dequeued, and how many; NULL: the round is over. */
EPF_INLINE struct epf_ring_state *next_ring(struct epf_core *core, struct round *round,
					    unsigned handled, unsigned *budget)
{
	uint32_t n = core->n_rings, at = round->at, left = round->left;

	for (; left; left--, at = at + 1 < n ? at + 1 : 0) {
		struct epf_ring_state *ring;

		if (ring_is_empty(&core->polls[at])) { /* the loop counts one of them */
			uint32_t to_end = n - at < left ? n - at : left;
			uint32_t more = count_empty(&core->polls[at + 1], to_end - 1);

			at += more;
			left -= more;
			continue;
		}
		ring = core->rings[at];
		if (EPF_UNLIKELY(!ring->live))
			continue;
		if (round_is_over(core, handled))
			break;
		prefetch_ring(core, at + 1);
		*budget = dequeue_budget(core, ring);
		if (EPF_UNLIKELY(!*budget))
			continue;
		round->at = at + 1 < n ? at + 1 : 0;
		round->left = left - 1;
		return ring;
	}
	if (!left) /* all had their turn: another ring is first in the next step */
		at = at + 1 < n ? at + 1 : 0;
	core->next_ring = at;
	return NULL;
}

#endif
