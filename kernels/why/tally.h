/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels count about their calls, in memory of their device: one line a kind of call, then one for each kind and rank. Sums in ticks of the
 * device's timer, which only grow. Included as C, CUDA and HIP, by kernels only; what it means: kernels/epf_why.h.
 */
#ifndef EPF_KERNELS_WHY_TALLY_H
#define EPF_KERNELS_WHY_TALLY_H

#include "kernels/epf_why.h"
#include "queues/epf_cmd.h"

#define TALLY_ALL 64u /* so many calls are counted before a sample is */

struct tally_call {
	uint64_t calls;
	uint64_t ticks[EPF_WHY_PHASES];
	uint64_t reserved[12];
};

struct tally_wait {
	uint64_t ticks;
	uint64_t times;
	uint64_t most;
};

struct tally_peer {
	struct tally_wait wait[EPF_WHY_REASONS];
	uint64_t rows_to;
	uint64_t rows_from;
	uint64_t reserved[5];
};

EPF_STATIC_ASSERT(sizeof(struct tally_call) == 128, "a kind of call has its own line");
EPF_STATIC_ASSERT(sizeof(struct tally_peer) == 128, "a rank has its own line");

EPF_CMD_FN uint64_t tally_bytes(uint32_t ranks)
{
	return EPF_WHY_CALLS *
	       (sizeof(struct tally_call) + (uint64_t)ranks * sizeof(struct tally_peer));
}

#endif
