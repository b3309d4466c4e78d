/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned memory of connections, for the copier's thread only: it stays pinned until the copier closes, because unpinning waits for running kernels. */
#ifndef EPF_FABRIC_NIC_TCP_PINNED_H
#define EPF_FABRIC_NIC_TCP_PINNED_H

#include "fabric/gpu/copy.h"

#include <stdint.h>

/* Pinned memory, and the first failure of its copies. */
struct epf_tcp_pinned {
	uint8_t *base; /* NULL if it could not be allocated */
	uint64_t bytes;
	uint64_t failed; /* number of its first job that failed, 0: none [T2] */
};

/* Pinned memory that nobody uses; it begins with this. */
struct epf_tcp_spare {
	struct epf_tcp_spare *next;
	uint64_t bytes;
};

struct epf_tcp_spares {
	const struct epf_copy_ops *ops;
	struct epf_tcp_spare *first;
};

/* Gives `p` other memory of so many bytes: spare, else new. Returns 0, or -ENOMEM after a line in the log. */
int epf_tcp_pin(struct epf_tcp_spares *spares, struct epf_tcp_pinned *p, uint64_t bytes);
/* Takes its memory, if any, back. */
void epf_tcp_pinned_release(struct epf_tcp_spares *spares, struct epf_tcp_pinned *p);
/* Unpins and unmaps what is spare. */
void epf_tcp_spares_drop(struct epf_tcp_spares *spares);

#endif
