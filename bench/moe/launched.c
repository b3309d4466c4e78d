/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench moe --launched: one rank of a job whose ranks a launcher started, on one host or on several. The ranks give each other their results over the
 * rendezvous, and rank 0 reports. Called by main.c. Must write to stdout on rank 0 only.
 */
#include "bench/common/bench.h"
#include "bench/moe/moe.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct launched {
	moe_progress progress;
	void *arg;
	struct epf_boot *boot;
	struct moe_result *sum;
	uint32_t rounds;
};

static void say_progress(struct moe_job *job, uint32_t round, unsigned phase)
{
	const struct launched *l = job->arg;

	if (!job->rank[0].rank)
		l->progress(l->arg, job, round, phase);
}

static void add_result(void *arg, const void *bytes)
{
	struct launched *l = arg;
	struct moe_result one;

	memcpy(&one, bytes, sizeof(one));
	moe_result_add(l->sum, &one, l->rounds);
}

static int gather_results(struct moe_job *job)
{
	struct launched *l = job->arg;

	return bench_launched_gather(l->boot, &job->result, sizeof(job->result), add_result, l);
}

int moe_launched_run(struct moe_opts *o, moe_progress progress, void *arg)
{
	struct launched l = { .progress = progress,
			      .arg = arg,
			      .boot = o->place.boot,
			      .rounds = (uint32_t)o->rounds };
	struct moe_rank r = { .rank = o->place.rank };
	struct moe_job job = { .opts = o,
			       .rank = &r,
			       .ranks = 1,
			       .barrier = moe_process_barrier,
			       .progress = say_progress,
			       .arg = &l };
	uint64_t start_ns = epf_now_ns();
	int err = -ENOMEM;

	l.sum = calloc(1, sizeof(*l.sum));
	if (l.sum && !moe_data_init(&job.data, o))
		err = moe_rank_run(&job, l.boot, gather_results);
	if (err)
		err = BENCH_WRONG;
	else if (!r.rank)
		err = moe_report(o, l.sum, (double)(epf_now_ns() - start_ns) / 1e9);
	moe_data_free(&job.data);
	free(l.sum);
	return err;
}
