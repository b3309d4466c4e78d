/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole job inside one test process, driven by one thread: R ranks, each with its own engine on the emulated NIC, joined
 * by the in-process bootstrap. Used by unit and property tests.
 */
#ifndef EPF_TESTS_JOB_H
#define EPF_TESTS_JOB_H

#include "bootstrap/boot.h"
#include "fabric/client/epf.h"
#include "fabric/client/handle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct job {
	uint32_t ranks;
	struct epf **ep;
	struct epf_boot **boot;
	struct epf_boot_group *group;
	uint64_t clock_ns; /* virtual */
	uint64_t tick_ns;  /* added per round of steps; 0: real time */
};

static inline uint64_t job_now(void *arg)
{
	return ((struct job *)arg)->clock_ns;
}

/* One round: every engine makes a step. When all are idle, a virtual clock jumps to the next event. */
static inline int job_step(void *arg)
{
	struct job *job = arg;
	unsigned handled = 0;
	uint64_t next = UINT64_MAX;

	for (uint32_t r = 0; r < job->ranks; r++) {
		struct epf_core *core = job->ep[r]->core;

		handled += epf_core_step(core);
		core->wakes = 0;
		if (job->tick_ns && !handled) {
			uint64_t e = core->ops->next_event(core->nic);

			next = e < next ? e : next;
			next = core->next_tick_ns < next ? core->next_tick_ns : next;
		}
	}
	if (job->tick_ns) {
		job->clock_ns += job->tick_ns;
		if (!handled && next != UINT64_MAX && next > job->clock_ns)
			job->clock_ns = next;
	}
	return (int)handled;
}

/* settings: NULL-terminated "name=value" list for every rank; nodes: ranks are split into this many blocks. */
static inline int job_open(struct job *job, uint32_t ranks, uint32_t nodes,
			   const char *const *settings, uint64_t tick_ns,
			   void (*setup)(struct job *job, uint32_t rank))
{
	int rc = epf_boot_local_create(ranks, &job->group);

	job->ranks = ranks;
	job->clock_ns = 1000000;
	job->tick_ns = tick_ns;
	job->ep = calloc(ranks, sizeof(*job->ep));
	job->boot = calloc(ranks, sizeof(*job->boot));
	for (uint32_t r = 0; r < ranks && !rc; r++) {
		const char *all[64] = { "progress=caller", NULL };
		struct epf_options o;
		char node[32];
		int n = 1;

		snprintf(node, sizeof(node), "node=n%u", (unsigned)((uint64_t)r * nodes / ranks));
		all[n++] = node;
		for (const char *const *s = settings; s && *s && n < 63; s++)
			all[n++] = *s;
		all[n] = NULL;
		epf_options_init(&o);
		o.settings = all;
		o.progress = job_step;
		o.progress_arg = job;
		if (tick_ns) {
			o.now = job_now;
			o.now_arg = job;
		}
		rc = epf_boot_local_open(job->group, r, &job->boot[r]);
		if (!rc)
			rc = epf_open(&o, &job->ep[r]);
		if (!rc && setup)
			setup(job, r);
		if (!rc)
			rc = epf_join_post(job->ep[r], job->boot[r]);
	}
	for (int round = 0; round < 2 && !rc; round++)
		for (uint32_t r = 0; r < ranks && (!rc || rc == -EAGAIN); r++)
			rc = epf_join_finish(job->ep[r]);
	for (uint32_t r = 0; r < ranks && (!rc || rc == -EAGAIN); r++)
		rc = epf_join_finish(job->ep[r]);
	if (rc)
		fprintf(stderr, "job: %s\n", epf_last_error());
	return rc;
}

static inline void job_close(struct job *job)
{
	for (uint32_t r = 0; r < job->ranks; r++)
		epf_close(job->ep[r]);
	for (uint32_t r = 0; r < job->ranks; r++)
		epf_boot_close(job->boot[r]);
	epf_boot_local_destroy(job->group);
	free(job->ep);
	free(job->boot);
}

#endif
