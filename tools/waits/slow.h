/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why calls are slow, out of the statistics files that the kernels' library writes (classes call and wait): reports of the ranks of each job that are seen here, as
 * kernels/epf_why.h explains them. For `ep-fabric why` and ep-top, which only print. Never trusts a number of a file.
 */
#ifndef EPF_TOOLS_WAITS_SLOW_H
#define EPF_TOOLS_WAITS_SLOW_H

#include "kernels/epf_why.h"
#include "tools/waits/waits.h"

/* Ranks of one job that make calls. */
struct slow_job {
	char name[EPF_STATS_JOB_BYTES];
	uint64_t id;
	uint32_t world;
	uint32_t n;                      /* reports */
	struct epf_why_report **reports; /* one a rank */
};

struct slow {
	struct slow_job *job;
	uint32_t n_jobs;
};

/* Reads what waits_refresh() has read last; instances that are left out there are left out here. Returns NULL without memory. */
struct slow *slow_read(const struct waits *w);
void slow_free(struct slow *s);

#endif
