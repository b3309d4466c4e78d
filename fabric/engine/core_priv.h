/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to create.c, rings.c, regions.c, device_region.c and core_world.c.
 */
#ifndef EPF_FABRIC_ENGINE_CORE_PRIV_H
#define EPF_FABRIC_ENGINE_CORE_PRIV_H

#include "fabric/base/err.h"
#include "fabric/engine/engine.h"

static inline int no_memory(const char *what)
{
	return epf_fail(EPF_R_NO_MEMORY, "engine: no memory for %s", what);
}

/* Chains a pool's free list through member `next`. */
#define POOL_CHAIN(pool, n)               \
 for (uint32_t at_ = 0; at_ < (n); at_++) \
 (pool)[at_].next = at_ + 1 < (n) ? at_ + 1 : EPF_NONE

/* Registers memory at addr, or GPU memory, with the NIC, with keys for every lane index. */
int epf_core_register(struct epf_core *core, void *addr, struct epf_copy_mem *gpu, uint64_t bytes,
		      unsigned access, struct epf_nic_mr *mr);
/* The number that the next region of a rank gets: the lowest that is free. -ENOSPC: all are in use. */
int epf_core_next_region(const struct epf_rank_state *r, uint32_t *region);
/* That number was given out: its region's state is not FREE any more. */
void epf_core_took_region(struct epf_rank_state *r, uint32_t region);
/* Frees a ring; NULL is allowed. */
void epf_ring_free(struct epf_ring_state *ring);
/* Frees everything that epf_core_set_world() and later calls allocated. */
void epf_core_forget_peers(struct epf_core *core);

#endif
