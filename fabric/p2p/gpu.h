/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory of endpoints, between two processes of one machine. Each GPU has a lane with two queues of copies (fabric/gpu/copy.h): copy
 * engines for large blocks, a kernel for many small ones. A submitted chunk is a flight, which keeps the transfer and the export in use until
 * its copies are complete; the first thread that polls then ends it. gpu.c opens and maps, gpu_run.c copies.
 */
#ifndef EPF_FABRIC_P2P_GPU_H
#define EPF_FABRIC_P2P_GPU_H

#include "fabric/gpu/copy.h"
#include "fabric/p2p/p2p_priv.h"

enum {
	/* Chunks with at least GPU_MANY blocks, shorter than this on average, go to the kernel. Measured: 64 and 256 KiB, 1 and 1,000 blocks (bench/RESULTS.md). */
	GPU_SMALL = 128 * 1024,
	GPU_MANY = 8, /* between those two; not measured */
	GPU_FLIGHTS = EPF_COPY_FLIGHTS,
};

_Static_assert((int)P2P_GPU_BLOCKS <= (int)EPF_COPY_BATCH, "a chunk is one submit");

struct gpu_flight {
	struct epf_p2p_xfer *x;
	uint32_t *inuse; /* of the export [W2] */
	uint64_t bytes, value;
};

struct gpu_queue {
	struct epf_copy_queue *q; /* NULL: the driver has none of this kind */
	uint64_t last;            /* value of the newest submit */
	struct gpu_flight flights[GPU_FLIGHTS];
	unsigned first, count;
};

/* Memory that the GPU and process_vm_writev(2) both reach, for peers' memory that cannot be mapped. */
struct gpu_stage {
	pthread_mutex_t lock;
	struct epf_copy_queue *q;
	uint64_t last;
	uint8_t *memory; /* P2P_CHUNK bytes; NULL: not needed yet */
	bool is_broken; /* a submit failed: some of its copies may be under way, and nothing reports their end */
};

struct gpu_lane {
	struct gpu_lane *next;
	const struct epf_copy_ops *ops;
	int device;
	uint32_t taken;       /* places for flights, in use or reserved; atomic */
	pthread_mutex_t lock; /* of what follows */
	struct gpu_queue engines, kernels;
	struct epf_copy_span spans[EPF_COPY_BATCH];
	struct gpu_stage stage;
};

/* An import's memory, mapped for copies by one GPU. */
struct gpu_map {
	struct gpu_map *next;
	int device;
	uint64_t addr;
};

/* gpu.c */
/*
 * Finds the holder of a range. device: the user's claim, or EPF_P2P_AUTO. *out: a GPU's number, or EPF_P2P_HOST. *handle: the name of GPU
 * memory for other processes, or NULL if it cannot be shared; the caller owns it. Returns 0 or -errno with epf_last_error() set.
 */
int epf_p2p_gpu_find(struct epf_p2p *ep, void *addr, uint64_t bytes, int device, int *out,
		     struct epf_copy_handle **handle);
void epf_p2p_gpu_forget(struct epf_p2p *ep, struct region *r);
/* Puts the name of a region's memory into an answer. Returns the region's descriptor to pass with it, or -1 for none. */
int epf_p2p_gpu_answer(const struct region *r, const struct export_key *key,
		       struct msg_imported *a);
/* Takes the name from an answer. file: its descriptor, which is duplicated. */
int epf_p2p_gpu_take(struct import *i, const struct msg_imported *a, int file);
void epf_p2p_gpu_release(struct import *i);
/* Finds the lane and the addresses of a vector with GPU memory on either side. */
int epf_p2p_gpu_reach(struct epf_p2p_xfer *x, struct vector *v);
/* Frees the lanes, once epf_p2p_gpu_is_quiet(). */
void epf_p2p_gpu_close(struct epf_p2p *ep);

/* gpu_run.c */
/* Reserves the place for a flight that epf_p2p_gpu_copy() needs. Returns false if all are taken. */
bool epf_p2p_gpu_reserve(struct gpu_lane *l);
void epf_p2p_gpu_unreserve(struct gpu_lane *l);
/* Submits a chunk. Returns P2P_LATER (the end of its flight ends the caller's visit of the transfer), or -errno. */
int epf_p2p_gpu_copy(struct epf_p2p_xfer *x, const struct vector *v, const struct epf_p2p_block *b,
		     uint32_t n, uint64_t skip, uint64_t bytes, uint32_t *inuse);
/*
 * Waits for the stage's newest copy: one that missed its transfer's deadline still uses the memory. Returns 0, -EIO, or -ETIMEDOUT at the
 * deadline of x. stage.lock held.
 */
int epf_p2p_gpu_await_stage(struct epf_p2p_xfer *x, struct gpu_lane *l);
/* Copies between the GPU and the lane's stage and waits: for writes before the stage is read, for reads after it was filled. stage.lock held. */
int epf_p2p_gpu_stage(struct epf_p2p_xfer *x, const struct vector *v, const struct epf_p2p_block *b,
		      uint32_t n, uint64_t skip, uint64_t bytes);
/* Takes up to GPU_FLIGHTS flights whose copies are complete, and frees their places. Returns how many, with one status for all; the caller ends them. */
unsigned epf_p2p_gpu_over(struct gpu_lane *l, struct gpu_flight *out, int *status);
bool epf_p2p_gpu_is_busy(struct epf_p2p *ep);
/* Returns true if no copy is under way, of a flight or of a stage. No other thread uses the endpoint any more. */
bool epf_p2p_gpu_is_quiet(struct epf_p2p *ep);

#endif
