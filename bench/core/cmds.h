/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands that ep-bench core pushes: random valid ones over 64 peers and 8 regions, 1 in 1,000 bad, made beforehand, with the
 * sums that the engine must have counted. Called by main.c. It must never be part of what is timed.
 */
#ifndef EPF_BENCH_CORE_CMDS_H
#define EPF_BENCH_CORE_CMDS_H

#include "queues/epf_cmd.h"

#include <stdint.h>

#define CORE_PEERS        64u
#define CORE_REGIONS      8u
#define CORE_REGION_BYTES (UINT64_C(1) << 30)
#define CORE_SIGNALS      64u    /* per peer: a few experts, two buffers, a round or two */
#define CORE_TABLE        64000u /* commands made beforehand: pushed again and again */
#define CORE_BAD_EVERY    1000u

/* What the producer pushed, to be compared with what the engine counted. */
struct core_tally {
	uint64_t commands;
	uint64_t bad;
	uint64_t bytes; /* payload of good puts */
	uint64_t gets;  /* payload of good gets */
};

/*
 * Makes CORE_TABLE commands and the sums of the first 0 .. CORE_TABLE of them, for the caller to free, also after an error. They are always the same. Returns 0 or -ENOMEM.
 */
int core_table_make(struct epf_cmd **table, struct core_tally **sums);

#endif
