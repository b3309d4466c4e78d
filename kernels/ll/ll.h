/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of libepf-ll on the host: the object, and what differs between a CPU and a GPU. Included by kernels/ll/ll_*.c only.
 */
#ifndef EPF_KERNELS_LL_LL_H
#define EPF_KERNELS_LL_LL_H

#include "fabric/client/epf.h"
#include "kernels/epf_ll.h"
#include "kernels/ll/job.h"

#include <stdbool.h>

/* Kernels, as entry points of a device. */
enum ll_kernel {
	LL_K_DISPATCH,
	LL_K_COMBINE,
	LL_K_COMBINE_SUMS,
	LL_K_MASK_SET,
	LL_K_MASK_GET,
	LL_K_RESET,
	LL_KERNELS,
};

struct ll_device;
struct tally;

struct epf_ll {
	struct epf *ep;
	const struct ll_device *dev;
	struct epf_ll_options opts;
	uint32_t rank;
	uint32_t ranks;
	struct epf_gpu *gpu;
	struct epf_ring *ring; /* the host's: flushes */
	void *memory;          /* communication memory */
	void *words;           /* struct ll_state, then struct ll_peer [ranks]: device memory */
	uint32_t region;
	uint64_t combines;   /* SEND halves launched: which memory the next one sends from */
	uint32_t threads;    /* of a block */
	uint32_t blocks;     /* of a launch */
	uint32_t sharing;    /* ranks whose kernels run on this GPU, this one included */
	bool commands;       /* some rank is reached over the command path */
	bool side_by_side;   /* blocks run at the same time: both halves can be one launch */
	struct ll_gpu *more; /* a GPU's own */
	struct tally *tally; /* what kernels count; NULL: nothing */
};

/* What differs between devices. Functions return 0 or -errno with the text set; memory as the device addresses it. */
struct ll_device {
	const char *backend; /* of epf_gpu_open(); NULL: configured */
	/* Kernels to the device; sets threads and blocks. After ll->gpu was opened. */
	int (*open)(struct epf_ll *ll);
	void (*close)(struct epf_ll *ll);
	int (*alloc)(struct epf_ll *ll, uint64_t bytes, void **addr);
	void (*free)(struct epf_ll *ll, void *addr);
	int (*expose)(struct epf_ll *ll, void *addr, uint64_t bytes, uint32_t *region);
	int (*copy)(struct epf_ll *ll, void *dst, const void *src, uint64_t bytes);
	int (*launch)(struct epf_ll *ll, enum ll_kernel kernel, const struct ll_job *job,
		      void *stream);
	/* Waits until the stream has run everything. */
	int (*sync)(struct epf_ll *ll, void *stream);
};

/* Digest of the kernels' sources (kernels/build_id.py). The formats that kernels share across ranks carry no version, so all ranks must run the same kernels. */
extern const uint64_t ll_build_id;

/* What every rank sends to all others. A bit for each rank that it can store to follows. */
struct ll_hello {
	uint64_t build_id; /* alike on all ranks, as are bytes, region and first_signal */
	uint64_t bytes;
	uint32_t region;
	uint32_t first_signal;
	uint64_t identity; /* of its GPU; 0: none */
	char host[72];     /* for messages; room for HOST_NAME_MAX */
};

extern const struct ll_device ll_cpu;
extern const struct ll_device ll_gpu;

/*
 * A turn of a wait on a CPU while the engine has no work: yields, and after a thousand turns in a row sleeps for 50 us, so that a rank that waits for
 * a late one leaves it the CPU. *turns: the caller sets it to 0 when it begins and whenever the engine had work. Returns true if it slept.
 */
bool ll_cpu_rest(uint32_t *turns);

/* Sets the text of epf_ll_error() and returns err. */
int ll_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same for a failed call of epf.h: what was being done, then its last error. */
int ll_fail_fabric(int err, const char *doing);

/* Where things lie; 0, or -EINVAL with the text set. topk does not count: there is room for the most. */
int ll_layout_make(const struct epf_ll_shape *shape, uint32_t ranks, struct ll_layout *out);

/*
 * Blocks of a launch on a GPU that `sharing` ranks use. Kernels of different ranks wait for each other, so all of their blocks must be resident at
 * once, and copies between ranks of one GPU are kernels of the driver that need room beside them: the ranks take half of the multiprocessors together.
 */
uint32_t ll_blocks_for(uint32_t multiprocessors, uint32_t sharing);

/* Device address of what kernels count; 0: nothing. */
uint64_t ll_tally_at(const struct epf_ll *ll);

/* Of how many halves one is counted: a power of two. */
uint32_t ll_tally_every(const struct epf_ll *ll);

/* Makes what kernels count into, and shows it to readers, where the setting call-stats says so. What cannot be shown is logged. 0 or -errno. */
int ll_tally_open(struct epf_ll *ll);
void ll_tally_close(struct epf_ll *ll);

/* A job with everything that does not depend on the call. */
struct ll_job ll_job_begin(const struct epf_ll *ll);

#endif
