/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scheduler: one thread that steps several engine cores alternately, each one job on one NIC. Used by the service daemon;
 * an embedded rank has one core and runs it by epf_core_run (engine.h). Slow-path interface: any thread.
 *
 * add, remove and used are called by one thread at a time (the control thread).
 * Fairness between jobs is in time of the thread, which is what they share (fair.h): turns of quantum * weight, and a job that had nothing
 * to do may be a few turns behind and is then served first. A job that only receives pays too, because landing costs time.
 */
#ifndef EPF_FABRIC_ENGINE_SCHEDULER_H
#define EPF_FABRIC_ENGINE_SCHEDULER_H

#include "fabric/engine/engine.h"

enum { EPF_SCHEDULER_JOBS_MAX = 60 }; /* two wakeups each, and futex_waitv(2) takes 128 */

struct epf_scheduler;

struct epf_scheduler_options {
	const char *name;    /* of the thread, at most 15 bytes */
	const uint32_t *cpu; /* CPUs it may run on */
	size_t n_cpus;       /* 0: not pinned */
	enum epf_idle
		idle; /* sleep: pauses instead while a core stays awake (epf_core_stay_awake) */
	uint64_t idle_after_ns; /* quiet time before it sleeps */
	uint64_t
		quantum_ns; /* turn of a job of weight 1; 0: no fairness, a job keeps its turn while it has work */
	uint64_t (*now)(void *arg);
	void *now_arg;
};

/* Starts the thread. -ENOMEM, or the system's error. */
int epf_scheduler_create(const struct epf_scheduler_options *opts, struct epf_scheduler **out);
/* Stops the thread; every core must have been removed. Accepts NULL. */
void epf_scheduler_destroy(struct epf_scheduler *scheduler);

/*
 * Hands a core to the scheduler: from the return on only epf_core_call() reaches it. client: the wakeup that this job's clients ring
 * after a push, in memory they may scribble on (it can only make their own job's wake-up late or early); NULL: none.
 * weight 1..255. beat: NULL, or called about twice a second on the scheduler's thread. -ENOSPC past EPF_SCHEDULER_JOBS_MAX.
 */
int epf_scheduler_add(struct epf_scheduler *scheduler, struct epf_core *core, unsigned weight,
		      struct epf_wakeup *client, void (*beat)(void *arg), void *beat_arg);
/* Removes a core: after the return the scheduler's thread no longer touches it. */
void epf_scheduler_remove(struct epf_scheduler *scheduler, struct epf_core *core);

/* Time of the thread that each job used, ns since it was added; -ENOENT for a core the scheduler does not have. */
int epf_scheduler_used(struct epf_scheduler *scheduler, const struct epf_core *core, uint64_t *ns);

#endif
