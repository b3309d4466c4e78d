/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A crew: one thread that steps several engine cores in turn, each core one job on one NIC. Used by the service daemon;
 * an embedded rank has one core and runs it by epf_core_run (engine.h). Slow-path interface: any thread.
 *
 * add, remove and used are called by one thread at a time (the control thread).
 * Fairness between jobs is in time of the thread, which is what they share (crew_fair.h): turns of quantum * weight, and a job that had nothing
 * to do may be a few turns behind and is then served first. A job that only receives pays too, because landing costs time.
 */
#ifndef EPF_FABRIC_CREW_H
#define EPF_FABRIC_CREW_H

#include "fabric/engine.h"

enum { EPF_CREW_JOBS_MAX = 60 }; /* two bells each, and futex_waitv(2) takes 128 */

struct epf_crew;

struct epf_crew_options {
	const char *name;    /* of the thread, at most 15 bytes */
	const uint32_t *cpu; /* CPUs it may run on */
	size_t n_cpus;       /* 0: not pinned */
	enum epf_idle idle;
	uint64_t idle_after_ns; /* quiet time before it sleeps */
	uint64_t
		quantum_ns; /* turn of a job of weight 1; 0: no fairness, a job keeps its turn while it has work */
	uint64_t (*now)(void *arg);
	void *now_arg;
};

/* Starts the thread. -ENOMEM, or the system's error. */
int epf_crew_create(const struct epf_crew_options *opts, struct epf_crew **out);
/* Ends the thread; every core must have been removed. Accepts NULL. */
void epf_crew_destroy(struct epf_crew *crew);

/*
 * Hands a core to the crew: from the return on only epf_core_call() reaches it. client: the bell that this job's clients ring
 * after a push, in memory they may scribble on (it can only make their own job's wake-up late or early); NULL: none.
 * weight 1..255. beat: NULL, or called about twice a second on the crew's thread. -ENOSPC past EPF_CREW_JOBS_MAX.
 */
int epf_crew_add(struct epf_crew *crew, struct epf_core *core, unsigned weight,
		 struct epf_bell *client, void (*beat)(void *arg), void *beat_arg);
/* Takes it back: when this returns the crew's thread does not touch it any more. */
void epf_crew_remove(struct epf_crew *crew, struct epf_core *core);

/* Time of the thread that each job used, ns since it was added; -ENOENT for a core the crew does not have. */
int epf_crew_used(struct epf_crew *crew, const struct epf_core *core, uint64_t *ns);

#endif
