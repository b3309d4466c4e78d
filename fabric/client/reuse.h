/* SPDX-License-Identifier: Apache-2.0 */
/* For endpoints (fabric/p2p), whose two ends agree on what a number names; programs of a job keep numbers as long as they like. */
#ifndef EPF_FABRIC_CLIENT_REUSE_H
#define EPF_FABRIC_CLIENT_REUSE_H

#include <stdint.h>

struct epf;

/*
 * Of a withdrawn region of a rank. rank: this one: its number may be given out again, once epf_region_withdraw() has returned 0 and every other rank has
 * forgotten it; another rank: forgets it, so that the next exchange may bring another region of that number. In both cases the caller answers for it that its own
 * commands that name the region are retired. -ENOENT: not withdrawn, or not yet; -EOPNOTSUPP: the engine is a daemon's. Threads: any, but not
 * during an exchange.
 */
int epf_region_reuse(struct epf *ep, uint32_t rank, uint32_t region);

#endif
