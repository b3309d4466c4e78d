/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory of endpoints, between two processes of one machine. A GPU has a lane: two queues of copies (fabric/gpu/copy.h), one of the copy
 * engines for large blocks and one of a kernel for many small ones. A chunk is submitted and stays under way as a flight, which keeps the
 * transfer and the export in use until its copies have ended; whoever polls ends it. gpu.c opens and maps, gpu_run.c copies.
 */
#ifndef EPF_FABRIC_P2P_GPU_H
#define EPF_FABRIC_P2P_GPU_H

#include "fabric/gpu/copy.h"
#include "fabric/p2p/p2p_priv.h"

enum {
	GPU_SMALL = 64 * 1024, /* blocks shorter than that on average go to the kernel */
	GPU_FLIGHTS = EPF_COPY_FLIGHTS,
};

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
	bool is_broken;  /* a copy has not ended in time: it may still write here */
};

struct gpu_lane {
	struct gpu_lane *next;
	const struct epf_copy_ops *ops;
	int device;
	uint32_t taken;       /* places for flights that are in use or about to be; atomic */
	pthread_mutex_t lock; /* of what follows */
	struct gpu_queue engines, kernels;
	struct epf_copy_span spans[EPF_COPY_BATCH];
	struct gpu_stage stage;
};

/* An import's memory as copies by one GPU find it. */
struct gpu_map {
	struct gpu_map *next;
	int device;
	uint64_t addr;
};

/* gpu.c */
/*
 * Finds out whose memory a range is: *out is a GPU's number with *handle, its name for other processes, or NULL where it has none; or
 * EPF_P2P_HOST. device: what the caller says of it.
 */
int epf_p2p_gpu_find(struct epf_p2p *ep, void *addr, uint64_t bytes, int device, int *out,
		     struct epf_copy_handle **handle);
void epf_p2p_gpu_forget(struct epf_p2p *ep, struct region *r);
/* Puts the name of a region's memory into an answer. Returns a descriptor that goes with it, the region's; -1: none. */
int epf_p2p_gpu_answer(const struct region *r, const struct export_key *key,
		       struct msg_imported *a);
/* Takes it from an answer. file: its descriptor, which is duplicated. */
int epf_p2p_gpu_take(struct import *i, const struct msg_imported *a, int file);
void epf_p2p_gpu_release(struct import *i);
/* Finds the lane and the addresses of a vector with GPU memory on either side. */
int epf_p2p_gpu_reach(struct epf_p2p_xfer *x, struct vector *v);
/* Frees the lanes. No flight is left, and no thread uses the endpoint any more. */
void epf_p2p_gpu_close(struct epf_p2p *ep);

/* gpu_run.c */
/* Reserves a place for a flight, which epf_p2p_gpu_copy() uses up. */
bool epf_p2p_gpu_reserve(struct gpu_lane *l);
void epf_p2p_gpu_unreserve(struct gpu_lane *l);
/* Submits a chunk. Returns P2P_LATER (its flight ends the caller's visit of the transfer), or -errno. */
int epf_p2p_gpu_copy(struct epf_p2p_xfer *x, const struct vector *v, const struct epf_p2p_block *b,
		     uint32_t n, uint64_t skip, uint64_t bytes, uint32_t *inuse);
/* Copies between the GPU and the lane's stage and waits. Writes: before the stage is read; reads: after it was filled. stage.lock held. */
int epf_p2p_gpu_stage(struct epf_p2p_xfer *x, const struct vector *v, const struct epf_p2p_block *b,
		      uint32_t n, uint64_t skip, uint64_t bytes);
/* Takes flights whose copies have ended, up to GPU_FLIGHTS, and their places. Returns how many, with the status of all; the caller ends them. */
unsigned epf_p2p_gpu_over(struct gpu_lane *l, struct gpu_flight *out, int *status);
bool epf_p2p_gpu_is_busy(struct epf_p2p *ep);

#endif
