/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ep-bench xfer transfers: as NumPy has it, of epf_p2p_alloc(), or of a GPU. */
#ifndef EPF_BENCH_XFER_MEMORY_H
#define EPF_BENCH_XFER_MEMORY_H

#include "fabric/p2p/epf_p2p.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_copy_ops;

struct xfer_memory {
	uint8_t *at;   /* what is registered */
	uint8_t *host; /* where its bytes are seen and set: `at`, or a copy of a GPU's memory */
	uint64_t bytes;
	int device; /* EPF_P2P_HOST, or the GPU's number */
	const struct epf_copy_ops *gpu;
	bool is_mapped;
};

/* Memory as NumPy has it: where it is large, of huge pages. free() it; NULL: there is none. */
void *xfer_as_numpy(uint64_t bytes);

/*
 * Makes memory of m->bytes on m->device; mapped: by epf_p2p_alloc(), which the endpoint frees. backend: of the GPU's driver. 0, or -errno after a complaint.
 */
int xfer_memory_make(struct xfer_memory *m, struct epf_p2p *ep, bool mapped, const char *backend);
/* Behind the close of the endpoint. */
void xfer_memory_free(struct xfer_memory *m);

/* What was set in m->host becomes what is in the memory, and the other way round. 0, or -errno after a complaint. */
int xfer_memory_set(const struct xfer_memory *m);
int xfer_memory_see(const struct xfer_memory *m);

#endif
