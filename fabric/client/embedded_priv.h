/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the embedded back-end: embedded.c (what backend.h asks for), embedded_memory.c (regions, rings, who may touch the core),
 * embedded_start.c (how the engine is made). Nobody else includes this.
 */
#ifndef EPF_FABRIC_CLIENT_EMBEDDED_H
#define EPF_FABRIC_CLIENT_EMBEDDED_H

#include "fabric/client/handle.h"

/* Opens statistics and NIC, makes the core, the signals and the wakeup of ep. What was made before a failure is freed by close. */
int epf_embedded_open(struct epf *ep);

/* Gives the statistics the number of this run of the job, the same at all its ranks: a digest of what rank 0 says of itself at the join. */
void epf_embedded_identify(struct epf *ep, const struct epf_blob *rank0);

/* The job is connected: notes what waits need of the peers page, and starts the
 * thread that runs the core (with progress=thread). Returns when requests reach it. Sets ep->kick. */
int epf_embedded_start(struct epf *ep);

/* has_notified and engine_pid of backend.h. The engine ends with this process, so what peers are to know must be on its way before. */
bool epf_embedded_has_notified(struct epf *ep);
uint32_t epf_embedded_engine_pid(const struct epf *ep);

enum { LOCAL = 0 }; /* the only rank of this engine */

/* ---- embedded_memory.c ---- */
/* Excludes other threads from a core that no dedicated thread runs. Threads that only step it make way. */
void epf_engine_lock(struct epf *ep);
/* The same for one that only steps it: returns false at once if another thread has the core or waits for it. */
bool epf_engine_try(struct epf *ep);
void epf_engine_unlock(struct epf *ep);
/* Runs fn between two steps of the core, on this thread or on the core's; returns what it returned. */
int epf_engine_call(struct epf *ep, int (*fn)(struct epf_core *core, void *arg), void *arg);

int epf_embedded_region_register(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
				 uint32_t *region);
int epf_embedded_region_register_gpu(struct epf *ep, struct epf_copy_mem *mem, unsigned access,
				     uint32_t *region);
int epf_embedded_region_withdraw(struct epf *ep, uint32_t region);
int epf_embedded_region_withdrawn(struct epf *ep, uint32_t region, uint32_t *missing);
int epf_embedded_region_reuse(struct epf *ep, uint32_t rank, uint32_t region);
int epf_embedded_ring_open(struct epf *ep, struct epf_ring *ring, unsigned log2, unsigned weight,
			   uint64_t start);
void epf_embedded_ring_close(struct epf_ring *ring);

#endif
