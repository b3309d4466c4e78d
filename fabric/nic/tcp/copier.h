/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier of a TCP NIC: a thread that copies between GPU memory and pinned memory, because the CPU cannot, and an engine core's thread must not call a driver. The NIC pushes
 * jobs, numbered from 1, which complete in that order. The thread starts with the first region of GPU memory.
 *
 * Kernels may wait for a copy, and some driver calls block until running kernels end (loading code, unpinning memory). So queues are opened when a region is registered, and pinned memory is
 * reused and stays pinned until the copier closes.
 *
 * Only one thread uses a copier: the core's, or the one that sets the NIC up. Labels: T1 jobs, T2 how many are complete and what failed.
 */
#ifndef EPF_FABRIC_NIC_TCP_COPIER_H
#define EPF_FABRIC_NIC_TCP_COPIER_H

#include "fabric/gpu/copy.h"
#include "fabric/nic/tcp/pinned.h"
#include "queues/epf_wakeup.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_tcp_copier;

enum { EPF_TCP_JOBS = 4096 }; /* most jobs of a copier that are under way */

/* An end of a copy: an offset in GPU memory, or (mem is NULL) an address of host memory. */
struct epf_tcp_spot {
	struct epf_copy_mem *mem;
	uint64_t at;
};

enum epf_tcp_job_kind {
	EPF_TCP_JOB_COPY = 1,
	EPF_TCP_JOB_ADD, /* adds `bytes` to the 8-byte word at dst */
	EPF_TCP_JOB_PIN, /* gives `pinned` other memory of `bytes`; no job under way uses the old one */
	EPF_TCP_JOB_UNPIN, /* takes it back, and frees `pinned` */
	EPF_TCP_JOB_PREPARE, /* maps dst.mem, opens what copies to and from it need, and ends one use of it */
	EPF_TCP_JOB_FORGET, /* releases dst.mem, which no later job names */
};

struct epf_tcp_job {
	struct epf_tcp_spot dst, src;
	uint64_t bytes;
	struct epf_tcp_pinned *pinned; /* notes a failure */
	uint8_t kind;
};

/* wakeup: the core's, woken when jobs complete while it sleeps. Returns 0 with *out, or -errno with epf_last_error() set. Slow. */
int epf_tcp_copier_open(const struct epf_copy_ops *ops, struct epf_wakeup *wakeup,
			struct epf_tcp_copier **out);
/* Completes all jobs and ends the thread. If they do not complete within 5 s, the copier and their memory are kept. Accepts NULL. Slow. */
void epf_tcp_copier_close(struct epf_tcp_copier *c);
const struct epf_copy_ops *epf_tcp_copier_ops(const struct epf_tcp_copier *c);

/* Returns how many more jobs fit. */
uint32_t epf_tcp_copier_room(const struct epf_tcp_copier *c);
/* Pushes a job, which must fit; returns its number [T1]. */
uint64_t epf_tcp_copier_push(struct epf_tcp_copier *c, const struct epf_tcp_job *job);
/* Wakes the thread if it sleeps, which takes a system call: after pushing jobs. */
void epf_tcp_copier_kick(struct epf_tcp_copier *c);
/* Returns the number of the last completed job [T2]. */
uint64_t epf_tcp_copier_done(const struct epf_tcp_copier *c);
/* Logs EPF-472 once when copies have stalled for a second. Called now and then by any thread but the copier's. Slow. */
void epf_tcp_copier_watch(struct epf_tcp_copier *c);
/* Waits until all jobs are complete. Returns false after 5 s, or at once if an earlier call gave up and they still are not. Slow. */
bool epf_tcp_copier_quiesce(struct epf_tcp_copier *c);

#endif
