/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rounds of ep-bench moe for the ranks of one process: one in a rank process, all of them with
 * --local. Phase by phase over all ranks, so that one thread can drive many. Must not print.
 */
#include "bench/common/bench.h"
#include "bench/moe/moe.h"

#include "fabric/base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Below this much receive memory in a process, all of it is poisoned. */
#define POISON_ALL_BYTES (256ull << 20)

enum { C_REMOTE, C_SAME, C_COMMANDS, C_DOORBELLS, C_COUNT };

static const char *const counter_name[C_COUNT] = {
	[C_REMOTE] = "put_bytes_remote_node",
	[C_SAME] = "put_bytes_same_node",
	[C_COMMANDS] = "cmds_dequeued",
	[C_DOORBELLS] = "doorbells",
};

int moe_job_open(struct moe_job *job)
{
	const struct moe_opts *o = job->opts;
	size_t elements = o->tokens * o->hidden + 1;
	uint64_t inbox = 0;

	for (uint32_t i = 0; i < job->ranks; i++) {
		struct moe_rank *r = &job->rank[i];
		struct epf_moe_config cfg = moe_config(o, r->rank, job->data.node_of);
		char why[EPF_MOE_WHY_BYTES] = "out of memory";
		int err = epf_moe_open(r->ep, &cfg, &r->moe, why);

		if (err) {
			bench_complain("%s", why);
			return err;
		}
		r->x = calloc(elements, sizeof(*r->x));
		r->out = calloc(elements, sizeof(*r->out));
		if (!r->x || !r->out) {
			bench_complain("no memory for %llu tokens of %llu channels",
				       (unsigned long long)o->tokens,
				       (unsigned long long)o->hidden);
			return -ENOMEM;
		}
		inbox += epf_moe_layout(r->moe)->inbox_bytes;
	}
	job->poison_all = inbox <= POISON_ALL_BYTES;
	return 0;
}

void moe_job_close(struct moe_job *job)
{
	for (uint32_t i = 0; i < job->ranks; i++) {
		epf_moe_close(job->rank[i].moe);
		free(job->rank[i].x);
		free(job->rank[i].out);
	}
}

static uint64_t counter(const struct moe_rank *r, const char *name)
{
	uint64_t v = 0;

	(void)epf_counter(r->ep, name, &v); /* -ENOENT: an engine without it counts 0 */
	return v;
}

static void counters_start(struct moe_job *job)
{
	for (uint32_t i = 0; i < job->ranks; i++)
		job->rank[i].own_bytes = epf_moe_own_bytes(job->rank[i].moe);
	for (uint32_t i = 0; i < job->ranks; i++)
		for (int c = 0; c < C_COUNT && !job->rank[i].counted; c++)
			job->rank[i].counter[c] = counter(&job->rank[i], counter_name[c]);
}

static void counters_end(struct moe_job *job, struct moe_phase *ph)
{
	uint64_t *sum[C_COUNT] = { &ph->bytes_remote_node, &ph->bytes_same_node, &ph->commands,
				   &ph->doorbells };

	/* Rows that a rank keeps cross no engine, but stay on their node as others do. */
	for (uint32_t i = 0; i < job->ranks; i++)
		ph->bytes_same_node += epf_moe_own_bytes(job->rank[i].moe) - job->rank[i].own_bytes;
	for (uint32_t i = 0; i < job->ranks; i++)
		for (int c = 0; c < C_COUNT && !job->rank[i].counted; c++)
			*sum[c] +=
				counter(&job->rank[i], counter_name[c]) - job->rank[i].counter[c];
}

static int dispatch_send(struct moe_job *job, struct moe_rank *r)
{
	struct epf_moe_tokens in = { .x = r->x,
				     .expert = job->data.idx[r->rank],
				     .weight = job->data.weight[r->rank],
				     .tokens = (uint32_t)job->data.tokens[r->rank] };

	return epf_moe_dispatch_send(r->moe, &in);
}

static int dispatch_forward(struct moe_job *job, struct moe_rank *r)
{
	return epf_moe_dispatch_forward(r->moe);
}

static int dispatch_recv(struct moe_job *job, struct moe_rank *r)
{
	return epf_moe_dispatch_recv(r->moe);
}

static int combine_send(struct moe_job *job, struct moe_rank *r)
{
	return epf_moe_combine_send(r->moe);
}

static int combine_reduce(struct moe_job *job, struct moe_rank *r)
{
	return epf_moe_combine_reduce(r->moe);
}

static int combine_recv(struct moe_job *job, struct moe_rank *r)
{
	return epf_moe_combine_recv(r->moe, r->out);
}

static int drain(struct moe_job *job, struct moe_rank *r)
{
	return epf_moe_drain(r->moe);
}

typedef int (*step_fn)(struct moe_job *job, struct moe_rank *r);

static const step_fn steps[MOE_PHASES][3] = {
	[MOE_DISPATCH] = { dispatch_send, dispatch_forward, dispatch_recv },
	[MOE_COMBINE] = { combine_send, combine_reduce, combine_recv },
};

static int each(struct moe_job *job, step_fn step)
{
	for (uint32_t i = 0; i < job->ranks; i++) {
		int err = step(job, &job->rank[i]);

		if (err) {
			bench_complain("%s", epf_moe_error(job->rank[i].moe));
			return err;
		}
	}
	return 0;
}

static int barrier(struct moe_job *job)
{
	int err = job->barrier ? job->barrier(job) : 0;

	if (err)
		bench_complain("barrier: %s", epf_last_error());
	return err;
}

static uint64_t cpu_ns(clockid_t clock)
{
	struct timespec t;

	if (clock_gettime(clock, &t))
		return 0;
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Dispatch or combine: timed, counted, and drained before anybody goes on. */
static int run_phase(struct moe_job *job, unsigned phase, struct moe_phase *ph)
{
	uint64_t start, own, all;
	int err = barrier(job);

	if (err)
		return err;
	counters_start(job);
	/* Nobody may send before all have read their counters. */
	err = barrier(job);
	start = epf_now_ns();
	own = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
	all = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
	for (int s = 0; s < 3 && !err; s++)
		err = each(job, steps[phase][s]);
	ph->ns = epf_now_ns() - start;
	ph->kernel_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - own;
	if (!err)
		err = each(job, drain);
	ph->cpu_ns = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - all;
	if (!err)
		err = barrier(job);
	if (!err)
		counters_end(job, ph);
	return err;
}

static void expect(struct moe_job *job, struct moe_phase ph[MOE_PHASES])
{
	const struct ref_job *ref = &job->data.job;
	size_t bytes[MOE_PHASES] = { job->data.row_bytes, 2 * job->opts->hidden };

	for (uint32_t i = 0; i < job->ranks; i++)
		for (int p = 0; p < MOE_PHASES; p++)
			ph[p].expected_remote_node +=
				job->opts->mode == EPF_MOE_HT
					? ref_ht_internode_bytes(ref, (int)job->rank[i].rank, -1,
								 bytes[p])
					: ref_ll_internode_bytes(ref, (int)job->rank[i].rank, -1,
								 bytes[p]);
}

static int prepare(struct moe_job *job, uint32_t n, struct moe_phase ph[MOE_PHASES])
{
	size_t h = job->opts->hidden;
	int err = moe_data_round(&job->data, n);

	if (err)
		return err;
	expect(job, ph);
	job->poison = (uint8_t)(0x91 + 0x35 * n);
	for (uint32_t i = 0; i < job->ranks; i++) {
		struct moe_rank *r = &job->rank[i];

		for (int t = 0; t < job->data.tokens[r->rank]; t++)
			memcpy(r->x + (size_t)t * h, moe_data_x(&job->data, r->rank, (uint32_t)t),
			       h * sizeof(*r->x));
		memset(r->out, job->poison, job->opts->tokens * h * sizeof(*r->out));
		moe_check_input(job, r, &ph[MOE_DISPATCH]);
		moe_poison(job, r);
	}
	return 0;
}

static int run_round(struct moe_job *job, uint32_t n)
{
	struct moe_phase *ph = job->result.phase[n];
	int err = prepare(job, n, ph);

	if (!err)
		err = run_phase(job, MOE_DISPATCH, &ph[MOE_DISPATCH]);
	if (err)
		return err;
	if (job->progress)
		job->progress(job, n, MOE_DISPATCH);
	for (uint32_t i = 0; i < job->ranks; i++) {
		moe_check_dispatch(job, &job->rank[i], &ph[MOE_DISPATCH]);
		moe_compute(job, &job->rank[i]);
	}
	err = run_phase(job, MOE_COMBINE, &ph[MOE_COMBINE]);
	if (err)
		return err;
	if (job->progress)
		job->progress(job, n, MOE_COMBINE);
	for (uint32_t i = 0; i < job->ranks; i++) {
		moe_check_combine(job, &job->rank[i], &ph[MOE_COMBINE]);
		moe_check_poison(job, &job->rank[i], &ph[MOE_COMBINE]);
	}
	return 0;
}

static void finish(struct moe_job *job)
{
	struct moe_result *res = &job->result;
	uint64_t held = bench_held_bytes();

	res->peak_bytes = held > res->peak_bytes ? held : res->peak_bytes;
	for (uint32_t i = 0; i < job->ranks; i++) {
		const struct moe_rank *r = &job->rank[i];
		uint64_t per_peer = epf_bytes_per_peer(r->ep);

		for (int f = 0; f < MOE_FAULT_COUNT && !r->counted; f++) {
			uint64_t v;

			if (epf_counter(r->ep, moe_fault_name[f], &v))
				continue;
			moe_fault_add(&res->fault[f], f, v);
		}
		if (per_peer > res->bytes_per_peer)
			res->bytes_per_peer = per_peer;
	}
}

int moe_job_run(struct moe_job *job)
{
	for (uint32_t n = 0; n < job->opts->rounds; n++) {
		int err = run_round(job, n);

		if (err)
			return err;
	}
	finish(job);
	return 0;
}
