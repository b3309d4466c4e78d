/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier of the emulated NIC: one thread a process that moves bytes to and from GPU memory for all NICs of the process, because
 * the CPU cannot (and a step of an engine core must not call a driver). Each NIC has two rings with it: jobs out, outcomes back.
 * Whoever reads memory of another process maps it here; nobody ever writes another process's memory.
 *
 * Order: jobs are submitted in the order of their ring, gathered in batches; copies of one batch never overlap in their destination, so
 * of two jobs to the same bytes the later one wins. Labels: C1 jobs, C2 outcomes, C3 the region table of a segment, C4 the device's
 * completion word, C5 the state of imported memory.
 */
#ifndef EPF_FABRIC_EMU_COPIER_H
#define EPF_FABRIC_EMU_COPIER_H

#include "fabric/emu_gpu.h"
#include "queues/epf_bell.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_emu_seg;

enum { EPF_EMU_COPIES = 4096 }; /* jobs under way of one NIC; a power of two */

enum epf_emu_job_op { EPF_EMU_JOB_COPY = 1, EPF_EMU_JOB_ADD = 2 };

/* A copy, or the addition of `src` to a word. */
struct epf_emu_job {
	uint64_t dst; /* in dst_mem: offset; else a host address */
	uint64_t
		src; /* src_key: an address in the peer's region; else a host address (in the wire segment of peer); ADD: the addend */
	struct epf_copy_mem *dst_mem;
	struct epf_emu_seg *peer; /* stays mapped until the job is back */
	uint32_t src_key;
	uint32_t bytes;
	uint32_t slot; /* comes back */
	uint32_t op;   /* enum epf_emu_job_op */
};

struct epf_emu_outcome {
	uint32_t slot;
	uint32_t status; /* enum epf_status */
};

/* A NIC's side of the copier. One producer and one consumer a ring; there are never more jobs than slots, so neither can overflow. */
struct epf_emu_copier {
	struct epf_emu_job *jobs;
	struct epf_emu_outcome *outcomes;
	uint32_t jobs_out;    /* written by the NIC [C1, release] */
	uint32_t outcomes_in; /* the NIC's own */
	uint32_t pad0[24];
	uint32_t jobs_in;      /* the copier's own */
	uint32_t outcomes_out; /* written by the copier [C2, release] */
	uint32_t pad1[30];
	struct epf_bell *nic_bell; /* rung for outcomes when the core sleeps */
	const struct epf_copy_ops *ops;
	int kernel; /* copies by a kernel */
	struct epf_emu_copier *next;
};

/* Joins the copier, making the thread if it is the first. The driver is loaded by the thread, with the first region or job. Slow. */
int epf_emu_copier_open(const struct epf_copy_ops *ops, int kernel, struct epf_bell *nic_bell,
			struct epf_emu_copier **out);
/* Leaves it; no job may be under way. Accepts NULL. Slow. */
void epf_emu_copier_close(struct epf_emu_copier *copier);

/* A region of a NIC of this process, found by its segment's nonce and its key: how NICs of one process read each other. Slow. */
int epf_emu_copier_own(uint64_t nonce, uint32_t key, struct epf_copy_mem *mem);
/* It is no more. Every region is disowned before its copier is closed. */
void epf_emu_copier_disown(uint64_t nonce, uint32_t key);
/* Forgets what is mapped of a segment that is about to be unmapped. No job on it may be under way. Slow. */
void epf_emu_copier_forget(const struct epf_emu_seg *seg);

/*
 * emu_import.c: where memory is. For the copier's thread only, but add_own and remove_own. Return 0 or -errno with a reason.
 * own: a region of this process. peer: [addr, addr + bytes) of the region `key` of a segment, mapped here for copies by *device (in; -1: the
 * one that holds it; out: that one) if it is not yet. host: the
 * packets of a segment are made quick to copy from, once. drop: forgets a segment; NULL: everything, of all segments.
 */
int epf_emu_import_own(struct epf_copy_mem *mem);
int epf_emu_import_peer(const struct epf_copy_ops *ops, struct epf_emu_seg *seg, uint32_t key,
			uint64_t addr, uint64_t bytes, uint64_t *out, int *device);
void epf_emu_import_host(const struct epf_copy_ops *ops, struct epf_emu_seg *seg);
void epf_emu_import_drop(const struct epf_emu_seg *seg);
/* Unmaps what its owner has withdrawn meanwhile. */
void epf_emu_import_sweep(void);
/* Maps regions of this process that have come, and unmaps those that have gone. */
void epf_emu_import_owns(void);
/* Any thread, with the copier's lock held: no driver is called. */
int epf_emu_import_add_own(uint64_t nonce, uint32_t key, struct epf_copy_mem *mem);
void epf_emu_import_remove_own(uint64_t nonce, uint32_t key);
/* The copier's lock, for emu_import.c. */
void epf_emu_copier_lock(void);
void epf_emu_copier_unlock(void);

/* 1: the copier sleeps and must be rung for the jobs pushed last. No system call. */
bool epf_emu_copier_sleeps(void);
void epf_emu_copier_ring(void);

/* Hot: pushes a job [C1]; the caller has a free slot, so there is room. */
static inline void epf_emu_copier_push(struct epf_emu_copier *c, const struct epf_emu_job *job)
{
	c->jobs[c->jobs_out & (EPF_EMU_COPIES - 1)] = *job;
	__atomic_store_n(&c->jobs_out, c->jobs_out + 1, __ATOMIC_RELEASE); /* C1 */
}

/* Hot: takes one outcome [C2]; false: there is none. */
static inline bool epf_emu_copier_pop(struct epf_emu_copier *c, struct epf_emu_outcome *out)
{
	if (__atomic_load_n(&c->outcomes_out, __ATOMIC_ACQUIRE) == c->outcomes_in) /* C2 */
		return false;
	*out = c->outcomes[c->outcomes_in++ & (EPF_EMU_COPIES - 1)];
	return true;
}

#endif
