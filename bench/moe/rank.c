/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of ep-bench moe as a separate process, and ep-bench moe-rank, which the parent starts and which reports through
 * its pipe. launched.c runs the same rank for a launcher.
 */
#include "bench/common/bench.h"
#include "bench/common/daemons.h"
#include "bench/common/spawn.h"
#include "bench/moe/moe.h"

#include "bootstrap/boot.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int moe_process_barrier(struct moe_job *job)
{
	return epf_barrier(job->rank[0].ep);
}

static void tell_progress(struct moe_job *job, uint32_t round, unsigned phase)
{
	bench_child_send(BENCH_MSG_PROGRESS, round, phase, NULL, 0);
}

static int open_fabric(const struct moe_opts *o, uint32_t node, struct epf **out)
{
	struct epf_options opts;
	const char *list[MOE_SETTINGS_MAX + 3];
	char service_text[BENCH_DAEMONS_DIR + 32];
	char node_text[32];
	uint32_t n;
	int err;

	snprintf(node_text, sizeof(node_text), "node=%u", node);
	n = bench_settings_of(o->setting, node, list);
	if (!o->launched) /* there, nodes are hosts */
		list[n++] = node_text;
	if (!bench_daemons_setting(node, service_text, sizeof(service_text)))
		list[n++] = service_text;
	list[n] = NULL;
	epf_options_init(&opts);
	opts.settings = list;
	err = epf_open(&opts, out);
	if (err)
		bench_complain("%s", epf_last_error());
	return err;
}

/*
 * The nodes of the fabric must be those the reference counts with. With a daemon the engine, and so its counters, are
 * shared by the ranks of a node: the lowest one counts for all.
 */
static int check_nodes(struct moe_job *job, struct moe_rank *r)
{
	bool service = !strncmp(epf_mode(r->ep), "service", 7);
	const uint32_t *node_of = job->data.node_of;

	for (uint32_t i = 0; i < job->opts->ranks; i++)
		if (epf_node_of(r->ep, i) != node_of[i]) {
			bench_complain("rank %u is on node %u of the fabric, must be on %u", i,
				       epf_node_of(r->ep, i), node_of[i]);
			return -EINVAL;
		}
	r->counted = service && r->rank > 0 && node_of[r->rank - 1] == node_of[r->rank];
	return 0;
}

/* Memory of the node's daemon, once for each. */
static uint64_t daemon_bytes(const struct moe_job *job, const struct moe_rank *r)
{
	return r->counted ? 0 : bench_daemons_held(job->data.node_of[r->rank]);
}

int moe_rank_run(struct moe_job *job, struct epf_boot *boot, int (*done)(struct moe_job *job))
{
	struct moe_rank *r = &job->rank[0];
	int err = open_fabric(job->opts, job->data.node_of[r->rank], &r->ep);

	if (!err)
		err = moe_job_open(job);
	if (!err)
		err = bench_check(epf_join(r->ep, boot));
	if (!err)
		err = check_nodes(job, r);
	if (!err)
		err = moe_job_run(job);
	job->result.peak_bytes += daemon_bytes(job, r);
	if (!err)
		err = bench_check(epf_barrier(r->ep)); /* nobody leaves while others still work */
	if (!err)
		err = done(job);
	moe_job_close(job);
	epf_close(r->ep);
	return err;
}

static int send_result(struct moe_job *job)
{
	bench_child_send(BENCH_MSG_RESULT, 0, 0, &job->result, sizeof(job->result));
	return 0;
}

int bench_moe_rank(int argc, char **argv)
{
	struct moe_opts o;
	struct moe_rank r = { 0 };
	struct moe_job job = { .opts = &o,
			       .rank = &r,
			       .ranks = 1,
			       .barrier = moe_process_barrier,
			       .progress = tell_progress };
	struct epf_boot *boot = NULL;
	uint32_t ranks;
	int err;

	if (moe_opts_parse(argc, argv, &o))
		return BENCH_USAGE;
	err = bench_child_start(&r.rank, &ranks, bench_rank_limit_ns(o.timeout_s), &boot);
	if (err)
		return BENCH_WRONG;
	if (ranks != o.ranks || r.rank >= ranks) {
		bench_complain("EPF_RANK %u of EPF_WORLD_SIZE %u does not fit --ranks", r.rank,
			       ranks);
		err = BENCH_USAGE;
	} else if (moe_data_init(&job.data, &o) || moe_rank_run(&job, boot, send_result)) {
		err = BENCH_WRONG;
	}
	epf_boot_close(boot);
	moe_data_free(&job.data);
	return err;
}
