/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench moe --local: all ranks inside this process, driven by the calling thread, phase by
 * phase. Called by the parent and by the unit test. Same data, same checks as with processes.
 */
#include "bench/common/bench.h"
#include "bench/common/world.h"
#include "bench/moe/moe.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>

struct local {
	moe_progress progress;
	void *arg;
};

static void tell(struct moe_job *job, uint32_t round, unsigned phase)
{
	const struct local *l = job->arg;

	if (l->progress)
		l->progress(l->arg, job, round, phase);
}

static int open_and_run(struct moe_job *job, struct bench_world *w)
{
	const struct moe_opts *o = job->opts;
	int err =
		bench_check(bench_world_open(w, (uint32_t)o->ranks, job->data.node_of, o->setting));

	if (err)
		return err;
	job->ranks = w->ranks;
	for (uint32_t r = 0; r < w->ranks; r++) {
		job->rank[r].rank = r;
		job->rank[r].ep = w->ep[r];
	}
	err = moe_job_open(job);
	if (!err)
		err = bench_check(bench_world_join(w));
	return err ? err : moe_job_run(job);
}

int moe_local_run(const struct moe_opts *o, moe_progress progress, void *arg,
		  struct moe_result *out)
{
	struct local l = { .progress = progress, .arg = arg };
	struct moe_job job = { .opts = o, .arg = &l, .progress = tell };
	struct bench_world w = { 0 };
	int err = moe_data_init(&job.data, o);

	job.rank = calloc(o->ranks, sizeof(*job.rank));
	if (!err && !job.rank)
		err = -ENOMEM;
	if (!err)
		err = open_and_run(&job, &w);
	if (!err)
		moe_result_add(out, &job.result, (uint32_t)o->rounds);
	moe_job_close(&job);
	bench_world_close(&w);
	moe_data_free(&job.data);
	free(job.rank);
	return err;
}
