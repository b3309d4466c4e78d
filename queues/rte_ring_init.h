/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DPDK's ring as the header it is: the only functions of librte_ring that a ring in caller-owned memory needs, so that no program links DPDK's
 * environment (EAL, telemetry, libfdt, libbsd) for them. Private to queue.c and to the benchmark that compares with a bare rte_ring.
 * Source: DPDK programmer's guide, "Ring Library"; the fields are those that rte_ring_core.h documents.
 */
#ifndef EPF_QUEUES_RTE_RING_INIT_H
#define EPF_QUEUES_RTE_RING_INIT_H

#include <rte_ring.h>
#include <rte_ring_elem.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Elements begin right behind the header, heads and tails have separate cache lines: what the inline functions rely on. */
_Static_assert(sizeof(struct rte_ring) % RTE_CACHE_LINE_SIZE == 0, "elements are aligned");
_Static_assert(offsetof(struct rte_ring, cons) - offsetof(struct rte_ring, prod) >=
		       2 * RTE_CACHE_LINE_SIZE,
	       "producers and consumers share no cache line, nor its neighbour");
_Static_assert(sizeof(((struct rte_ring *)0)->prod.sync_type) == sizeof(int) &&
		       RTE_RING_SYNC_MT == 0 && RTE_RING_SYNC_ST == 1,
	       "rte_ring_init() would set sync_type in the same way");

/**
 * epf_rte_ring_new() - an empty ring with one consumer in malloced memory, to be freed by free().
 * @slots: a power of two, at least 2; one slot stays unused.
 * @element: bytes of an element, a multiple of 4.
 * @one_producer: threads do not push at the same time.
 *
 * Returns NULL without memory. The caller checks slots.
 */
static inline struct rte_ring *epf_rte_ring_new(unsigned slots, unsigned element, bool one_producer)
{
	size_t bytes = sizeof(struct rte_ring) + (size_t)slots * element;
	size_t align = 2 * RTE_CACHE_LINE_SIZE;
	struct rte_ring *r = aligned_alloc(align, (bytes + align - 1) / align * align);

	if (!r)
		return NULL;
	memset(r, 0, sizeof(*r)); /* heads and tails at 0 */
	r->flags = RING_F_SC_DEQ | (one_producer ? RING_F_SP_ENQ : 0);
	r->prod.sync_type = one_producer ? RTE_RING_SYNC_ST : RTE_RING_SYNC_MT;
	r->cons.sync_type = RTE_RING_SYNC_ST;
	r->size = slots;
	r->mask = r->capacity = slots - 1;
	return r;
}

#endif
