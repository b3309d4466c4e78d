/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's stay in the shim, between the program's NVSHMEM start and end: the fabric, the heap, rings and structures in memory that kernels
 * reach, teams. Called by host.c, one thread at a time under its lock. job.c meets the others and starts; job_memory.c lays memory out.
 */
#ifndef EPF_TOOLS_SHIM_JOB_H
#define EPF_TOOLS_SHIM_JOB_H

#include "bootstrap/boot.h"
#include "fabric/base/conf.h"
#include "fabric/client/epf.h"
#include "fabric/gpu/gpu.h"
#include "tools/shim/nvstate.h"
#include "tools/shim/serve.h"

enum {
	EPF_JOB_PIECES = 256,         /* allocations of a heap */
	EPF_JOB_OWN_BYTES = 36 << 20, /* of the heap: synchronisation words of teams */
	EPF_JOB_MAX_ALIGNMENT = 32 << 20,
};

/* A part of the heap that the program holds. */
struct epf_job_piece {
	uint64_t at, bytes;
};

/* How a block for kernels is divided; offsets in bytes. The first five in pinned host memory, the rest in the device's. */
struct epf_job_layout {
	uint64_t slots, wakeups, cqes, channel, words, pinned_bytes;
	uint64_t rcs, cqs, cons_idx, device_words, p2p, remote, teams, team_at, maps, more_rkeys,
		device_bytes;
	uint32_t n_rings, depth;
};

struct epf_job {
	struct epf_conf conf;
	struct epf *ep;
	struct epf_boot *boot;
	const struct epf_gpu_ops *ops;
	struct epf_gpu_dev *dev;
	struct epf_nv_job nv;
	struct epf_job_layout at;
	void *heap; /* host address; NULL: the heap is the device's */
	struct epf_gpu_mem heap_mem;
	uint64_t heap_dev, heap_bytes;
	bool is_heap_pinned;
	uint8_t *pinned; /* mapped memory, and what kernels call it */
	uint64_t pinned_dev;
	struct epf_gpu_mem device;
	struct epf_gpu_mem *peers; /* imported heaps, by rank; addr 0: none */
	uint32_t peers_mapped;
	struct epf_wr_ring *rings;
	struct epf_serve *serve;
	struct epf_job_piece pieces[EPF_JOB_PIECES];
	uint32_t n_pieces;
	bool is_team[EPF_NV_TEAMS];
};

/* What a program starts with. secret: 32 bytes. */
struct epf_job_start {
	int rank, world;
	const char *rendezvous; /* "address:port" */
	const uint8_t *secret;
	bool is_root; /* this process made the rendezvous' address */
	struct epf_nv_version version;
	void (*device_states)(void **host_state,
			      void **ibgda_state); /* addresses in constant memory; NULL: none */
};

/* Collective: meets the other ranks and makes everything that kernels need. 0 or -errno, with nothing left behind. */
int epf_job_start(const struct epf_job_start *how, struct epf_job **out);
/* Collective: waits for what is on its way, then for the others, and frees everything. NULL is fine. */
void epf_job_end(struct epf_job *job);

/* Everything asked of the fabric before is visible at its target; then waits for every rank. */
int epf_job_barrier(struct epf_job *job);

/* Collective: bytes of the heap, the same place at every rank. NULL and epf_last_error() when there is no room. */
void *epf_job_align(struct epf_job *job, uint64_t alignment, uint64_t bytes);
void epf_job_free(struct epf_job *job, void *addr);

/* Collective over the world: makes team start, start + stride, ... *index: its number, -1 at ranks that are no member. */
int epf_job_team(struct epf_job *job, int start, int stride, int size, int *index);
void epf_job_team_end(struct epf_job *job, int index);

/* job_memory.c: heap, pinned and device memory, everything kernels read; and the end of it. */
int epf_job_memory(struct epf_job *job);
int epf_job_tell(struct epf_job *job, void (*device_states)(void **, void **));
void epf_job_memory_end(struct epf_job *job);
/* Writes a team's structure, map and address, and resets its synchronisation words. index < EPF_NV_TEAMS. */
int epf_job_write_team(struct epf_job *job, int index, int start, int stride, int size);

#endif
