/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash functions of the tables of groups and notify handles, and the look-up of a group. Used by the hot files that look something up, and by grow.c, which
 * makes the tables larger.
 */
#ifndef EPF_FABRIC_ENGINE_HASH_HOT_H
#define EPF_FABRIC_ENGINE_HASH_HOT_H

#include "fabric/engine/core.h"

/*
 * Returns a chain. Folds by 16 bits: the signals of a kernel differ by multiples of the number of ranks, and with 15 bits a look-up passed 4.3 entries on
 * average in a job of 16 ranks and 8.6 with 28; now 1.7 and 1.2 (tests/unit/engine/test_hash.c).
 */
EPF_INLINE uint32_t hash_chain(const struct epf_core *core, uint32_t hash)
{
	return (hash ^ hash >> 16) & core->group_mask;
}

/* Returns the chain of the group of (local rank, peer, signal). */
EPF_INLINE uint32_t group_hash(const struct epf_core *core, uint32_t local, uint32_t peer,
			       uint32_t signal)
{
	return hash_chain(core, peer * 0x9e3779b1u ^ signal * 0x85ebca6bu ^ local * 0xc2b2ae35u);
}

EPF_INLINE int group_is_of(const struct epf_core *core, const struct epf_group *g,
			   const struct epf_ring_state *ring, const struct epf_op *op)
{
	const struct epf_stream *s = &core->streams[g->stream];

	return g->signal == op->signal && s->peer == op->rank && s->rank == ring->rank;
}

/* Returns the group of (rank, peer, signal), NULL if it was never used. */
EPF_INLINE struct epf_group *group_find(const struct epf_core *core,
					const struct epf_ring_state *ring, const struct epf_op *op)
{
	uint32_t index = core->group_table[group_hash(core, ring->rank, op->rank, op->signal)];

	while (index != EPF_NONE) {
		struct epf_group *g = &core->groups[index];

		if (group_is_of(core, g, ring, op))
			return g;
		index = g->next_hash;
	}
	return NULL;
}

/*
 * The same for a command from the ring. Kernels push the rows of a peer one after the other, so most commands are of the group of the one before, which is looked at
 * first.
 */
EPF_INLINE struct epf_group *group_next(const struct epf_core *core, struct epf_ring_state *ring,
					const struct epf_op *op)
{
	struct epf_group *g = &core->groups[ring->group];

	if (EPF_LIKELY(ring->group < core->n_groups) && group_is_of(core, g, ring, op))
		return g;
	g = group_find(core, ring, op);
	if (g)
		ring->group = (uint32_t)(g - core->groups);
	return g;
}

/* Returns the chain of the notify handle of (stream, signal, add). */
EPF_INLINE uint32_t notify_hash(const struct epf_core *core, uint32_t stream, uint32_t signal,
				uint32_t add)
{
	return hash_chain(core, stream * 0x9e3779b1u ^ signal * 0x85ebca6bu ^ add * 0xc2b2ae35u);
}

#endif
