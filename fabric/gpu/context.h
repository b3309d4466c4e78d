/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU context: rings, signals, leases, abort words and the status record of a rank, brought where its kernels can use them
 * (queues/epf_gpu.h). Made from plain shared memory, so tests make one without an engine; client/gpu_open.c makes one from a struct epf. Slow path,
 * one thread at a time, but epf_gpu_context_abort() any thread, and epf_gpu_context_lose() one separate thread. It must not be called while a kernel uses what it frees.
 */
#ifndef EPF_FABRIC_GPU_CONTEXT_H
#define EPF_FABRIC_GPU_CONTEXT_H

#include "fabric/gpu/gpu.h"
#include "queues/epf_gpu.h"
#include "queues/epf_ring.h"
#include "queues/epf_signal.h"
#include "queues/epf_wakeup.h"

struct epf_gpu_context;

/* A ring that goes to the GPU: nobody else pushes into it from now on. */
struct epf_gpu_ring_from {
	struct epf_ring_shm
		*shm;    /* page-aligned mapping of epf_ring_bytes(log2), rounded up to pages */
	uint64_t head;   /* slots written so far */
	uint64_t pushed; /* commands written so far */
};

struct epf_gpu_parts {
	const struct epf_gpu_ring_from *rings; /* n_shared shared ones, then n_private */
	uint32_t n_shared;                     /* 1 .. EPF_GPU_SHARED_MAX */
	uint32_t n_private;                    /* 0 .. EPF_GPU_PRIVATE_MAX */
	struct epf_signal *signals;            /* page-aligned; NULL: none */
	struct epf_wakeup *
		wakeup; /* behind the signals, in the same mapping; NULL: long waits are not reported */
	uint64_t
		device_signals; /* where kernels find them in memory of the device; 0: `signals` are pinned */
	uint32_t n_signals;
	uint32_t rank;
	uint32_t world;
	uint64_t timeout_ns;
};

/* Where a ring stands after the kernels that used it have ended. */
struct epf_gpu_ring_at {
	uint64_t head;
	uint64_t pushed;
	bool leased; /* a kernel ended without closing it: what it pushed is unknown */
	bool broken;
};

/* Pins the memory and fills the device's part. dev stays the caller's and must outlive the context; so must the memory. */
int epf_gpu_context_create(struct epf_gpu_dev *dev, const struct epf_gpu_parts *parts,
			   struct epf_gpu_context **out);
void epf_gpu_context_destroy(struct epf_gpu_context *c);

/* The device address of struct epf_gpu_ctx. */
uint64_t epf_gpu_context_addr(const struct epf_gpu_context *c);

/* The first failure of a kernel since the last call, which it clears: 1 and *out, else 0. */
int epf_gpu_context_failure(struct epf_gpu_context *c, struct epf_gpu_status *out);

/* Ends all waits of kernels, now and from now on (value: not 0), or lets them go on again (0). Any thread. */
void epf_gpu_context_abort(struct epf_gpu_context *c, int64_t value);

/*
 * Says which ranks are gone, lost or closed: a bit for each of parts.world ranks. Waits of kernels for one of them end, now and until it is said to be back.
 * lost: how many of them are lost. stop: waits for signals and for words of memory, which name no rank, end too.
 */
void epf_gpu_context_lose(struct epf_gpu_context *c, const uint32_t *gone, uint32_t lost,
			  bool stop);

/* Where ring i stands. Only while no kernel uses the context. */
int epf_gpu_context_ring(struct epf_gpu_context *c, uint32_t i, struct epf_gpu_ring_at *out);

#endif
