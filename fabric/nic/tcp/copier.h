/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier of a TCP NIC: a thread that moves bytes between GPU memory and pinned memory, because the CPU cannot, and the thread of an engine core must not call a driver. The
 * NIC pushes jobs, which are over in the order in which they were pushed; their numbers count from 1. The thread is made with the first region of GPU memory.
 *
 * One thread uses a copier: the core's, or whoever sets the NIC up. Labels: T1 jobs, T2 how many are over and what failed.
 */
#ifndef EPF_FABRIC_NIC_TCP_COPIER_H
#define EPF_FABRIC_NIC_TCP_COPIER_H

#include "fabric/gpu/copy.h"
#include "queues/epf_wakeup.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_tcp_copier;

enum { EPF_TCP_JOBS = 4096 }; /* under way of one NIC */

/* Pinned memory, and the fate of the copies that belong to it. */
struct epf_tcp_pinned {
	uint8_t *base; /* stays NULL if it cannot be made */
	uint64_t bytes;
	uint64_t failed; /* number of the first of its jobs that failed, 0: none [T2] */
};

/* An end of a copy: an offset in GPU memory, or (mem is NULL) an address of host memory. */
struct epf_tcp_spot {
	struct epf_copy_mem *mem;
	uint64_t at;
};

enum epf_tcp_job_kind {
	EPF_TCP_JOB_COPY = 1,
	EPF_TCP_JOB_ADD, /* adds `bytes` to the 8-byte word at dst */
	EPF_TCP_JOB_PIN, /* makes memory of `bytes` for `pinned`, in place of what it had, which no job under way uses */
	EPF_TCP_JOB_UNPIN,  /* frees it, and `pinned` */
	EPF_TCP_JOB_FORGET, /* ends a use of dst.mem, which no later job names */
};

struct epf_tcp_job {
	struct epf_tcp_spot dst, src;
	uint64_t bytes;
	struct epf_tcp_pinned *pinned; /* notes a failure */
	uint8_t kind;
};

/* wakeup: of the core, woken when jobs are over while it sleeps. Slow. Return: 0 and *out, or -errno with epf_last_error() set. */
int epf_tcp_copier_open(const struct epf_copy_ops *ops, struct epf_wakeup *wakeup,
			struct epf_tcp_copier **out);
/* Carries out what was pushed and ends the thread, unless jobs do not end within some seconds: then all is kept. Accepts NULL. Slow. */
void epf_tcp_copier_close(struct epf_tcp_copier *c);
const struct epf_copy_ops *epf_tcp_copier_ops(const struct epf_tcp_copier *c);

/* So many more jobs find room. */
uint32_t epf_tcp_copier_room(const struct epf_tcp_copier *c);
/* Pushes a job, for which there is room; returns its number [T1]. */
uint64_t epf_tcp_copier_push(struct epf_tcp_copier *c, const struct epf_tcp_job *job);
/* Wakes the thread if it sleeps: after jobs were pushed. A system call then. */
void epf_tcp_copier_kick(struct epf_tcp_copier *c);
/* All jobs up to this number are over [T2]. */
uint64_t epf_tcp_copier_done(const struct epf_tcp_copier *c);
/* Waits until all jobs are over; false: they do not end within some seconds, or did not before. Slow. */
bool epf_tcp_copier_quiesce(struct epf_tcp_copier *c);

#endif
