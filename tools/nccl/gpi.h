/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels' requests without NCCL's proxy (GIN type 4, abi_gpi.h): they write them into queues of ours in pinned host memory, and NCCL's progress thread, which
 * does nothing else then, makes one or two commands of each in a ring of the group. Counters and signals are words of the same memory, so the engine adds to
 * signals on every NIC, and no GPU takes part.
 */
#ifndef EPF_TOOLS_NCCL_GPI_H
#define EPF_TOOLS_NCCL_GPI_H

#include "fabric/gpu/gpu.h"
#include "tools/nccl/abi_gpi.h"
#include "tools/nccl/gin.h"

enum {
	EPF_GPI_SLOTS = 1024,        /* of a queue, unless NCCL asks for another number */
	EPF_GPI_SLOTS_MAX = 1 << 16, /* of a queue */
	EPF_GPI_COUNTERS_MAX =
		INT16_MAX, /* of a context, with one for each rank: kernels keep the number in 16 bits with a sign */
	EPF_GPI_SIGNALS_MAX = UINT16_MAX, /* of a context */
};

/* One that is under way: its counter grows once the ring has retired `ticket` commands. */
struct epf_gpi_pending {
	uint64_t ticket;
	uint32_t counter;
	uint32_t reserved;
};

/* One of NCCL's contexts. */
struct epf_gpi_queue {
	struct epf_ring *ring;
	const struct epf_gpi_entry *entries;
	uint32_t log2_slots;
	uint32_t n_counters; /* the program's and the ranks' */
	uint32_t n_signals;
	uint64_t taken; /* requests */
	uint64_t *taken_word;
	uint8_t *counters;
	uint8_t *signals;
	uint64_t signals_at;             /* offset in the region, at every rank */
	uint64_t first, last;            /* of pending: taken and put so far */
	struct epf_gpi_pending *pending; /* [slots] */
};

/* What createContext makes. */
struct epf_gpi {
	struct epf_group *group;
	struct epf_gin_context *rings;
	struct epf_group_mr *words; /* counters and signals: peers add to the latter */
	struct epf_gpu_dev *dev;
	void *map; /* queues, then words; pinned */
	uint64_t map_bytes;
	struct epf_gpu_mem channels; /* struct epf_gpi_channel and its words, for each context */
	bool failed;                 /* said once */
	struct epf_nccl_device_handle device;
	unsigned n;
	struct epf_gpi_queue queue[]; /* [n] */
};

/* What NCCL says about the contexts that it wants. */
struct epf_gpi_wanted {
	int contexts;
	int kernels;           /* version of their device code */
	int signals, counters; /* of each */
	int slots;             /* of each queue; 0: EPF_GPI_SLOTS */
};

/* Collective over the group, with the GPU current in this thread. */
int epf_gpi_open(struct epf_group *group, const struct epf_gpi_wanted *wanted,
		 struct epf_gpi **out);
/* When no kernel uses it any more and no thread polls it. */
void epf_gpi_close(struct epf_gpi *gpi);

/*
 * Takes the requests that have come, and counts what is over. Returns how many of both there were, or -errno with epf_last_error(), once: counters say
 * afterwards that operations have failed, so that no kernel waits for one. One thread at a time. No lock, no allocation; waits for nothing.
 */
int epf_gpi_poll(struct epf_gpi *gpi);

/* Whether something has failed, or a rank of the group is lost. Any thread. */
bool epf_gpi_has_failed(const struct epf_gpi *gpi);

#endif
