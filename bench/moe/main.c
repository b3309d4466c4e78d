/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench moe: the parent. Runs the ranks as processes (or here, with --local), collects what
 * they found, reports. Must not touch the data path.
 */
#include "bench/common/bench.h"
#include "bench/common/daemons.h"
#include "bench/common/spawn.h"
#include "bench/common/world.h"
#include "bench/moe/moe.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_S 1000000000ull

struct parent {
	const struct moe_opts *o;
	uint64_t start_ns;
	struct moe_result sum;
	uint32_t arrived[MOE_ROUNDS_MAX][MOE_PHASES];
};

static void say(const struct parent *p, uint32_t round, uint32_t phase)
{
	if (!p->o->quiet)
		fprintf(stderr, "ep-bench moe: %6.1f s: %s of round %u of %" PRIu64 " done\n",
			(double)(epf_now_ns() - p->start_ns) / 1e9,
			phase == MOE_DISPATCH ? "dispatch" : "combine", round + 1, p->o->rounds);
}

static void on_message(void *arg, uint32_t rank, const struct bench_message *head,
		       const void *bytes)
{
	struct parent *p = arg;

	if (head->kind == BENCH_MSG_RESULT && head->bytes == sizeof(struct moe_result)) {
		struct moe_result one;

		memcpy(&one, bytes, sizeof(one));
		moe_result_add(&p->sum, &one, (uint32_t)p->o->rounds);
	} else if (head->kind == BENCH_MSG_PROGRESS && head->a < MOE_ROUNDS_MAX &&
		   head->b < MOE_PHASES) {
		if (++p->arrived[head->a][head->b] == p->o->ranks)
			say(p, head->a, head->b);
	}
}

/* With daemons, one a node gets the same settings as the ranks, who take from them what is theirs. */
static int run_processes(struct parent *p, int argc, char **argv)
{
	struct bench_spawn s = { .ranks = (uint32_t)p->o->ranks,
				 .command = "moe-rank",
				 .argc = argc,
				 .argv = argv,
				 .timeout_ns = p->o->timeout_s * NS_PER_S,
				 .message = on_message,
				 .arg = p };
	struct bench_daemons_options d = { .nodes = (uint32_t)p->o->nodes,
					   .program = p->o->fabric_program,
					   .settings = p->o->setting };

	return p->o->service ? bench_daemons_run(&d, &s) : bench_spawn_run(&s);
}

/* Of the ranks of this process: with --launched, those of others may be a little behind. */
static void own_progress(void *arg, struct moe_job *job, uint32_t round, unsigned phase)
{
	say(arg, round, phase);
}

/*
 * What the run will touch at most, so that a machine that is too small hears of it before it
 * swaps: rows and sums of every rank as if each token went to min(topk, ranks) of them.
 */
static uint64_t memory_needed(const struct moe_opts *o, const struct epf_moe_layout *l)
{
	uint64_t spread = o->topk < o->ranks ? o->topk : o->ranks;
	uint64_t to_ranks = o->routing == MOE_DEEPSEEK && o->ranks <= 8 && spread > 4 ? 4 : spread;
	uint64_t nodes = to_ranks < o->nodes ? to_ranks : o->nodes;
	uint64_t own = l->row_bytes + 2 * (uint64_t)l->out_row_bytes; /* staged, input, result */
	uint64_t moved;

	if (o->mode == EPF_MOE_HT) /* received twice (two sets), output, added at the forwarder */
		moved = to_ranks * (2 * l->row_bytes + 2 * l->out_row_bytes) +
			(nodes - 1) * (2 * l->row_bytes + 2 * l->out_row_bytes);
	else
		moved = o->topk * (2 * l->row_bytes + 2 * l->out_row_bytes);
	return o->ranks * (o->tokens * (own + moved) + (48u << 20));
}

static int check_memory(const struct moe_opts *o)
{
	uint32_t *node_of = calloc(o->ranks, sizeof(*node_of));
	struct epf_moe_layout lay = { 0 };
	struct epf_moe_config cfg;
	uint64_t need;
	uint64_t have = bench_memory_available();

	if (!node_of)
		return -ENOMEM;
	bench_nodes((uint32_t)o->ranks, (uint32_t)o->nodes, node_of);
	cfg = moe_config(o, 0, node_of);
	(void)epf_moe_plan(&cfg, &lay, NULL); /* accepted when the options were read */
	free(node_of);
	need = memory_needed(o, &lay);
	if (!have || need <= have)
		return 0;
	bench_complain(
		"--tokens is %" PRIu64
		": the run needs about %.1f GiB and %.1f GiB can be had; with --tokens %" PRIu64
		" it fits",
		o->tokens, (double)need / (1u << 30), (double)have / (1u << 30),
		(uint64_t)((double)o->tokens * (double)have / (double)need * 0.95));
	return -ENOMEM;
}

static void say_start(const struct moe_opts *o)
{
	if (!o->quiet)
		fprintf(stderr,
			"ep-bench moe: %" PRIu64 " ranks %s on %" PRIu64 " nodes%s, routing %s\n",
			o->ranks,
			o->local      ? "in one process"
			: o->launched ? "of a launcher"
				      : "as processes",
			o->nodes, o->service ? " with a daemon each" : "",
			moe_routing_name(o->routing));
}

/* Embedded first, then the same through daemons. */
static int run_both(struct moe_opts *o, int argc, char **argv)
{
	struct moe_result *result = calloc(2, sizeof(*result));
	struct parent *p = calloc(1, sizeof(*p));
	double seconds[2];
	int err = result && p ? 0 : -ENOMEM;

	(void)unsetenv("EPF_SERVICE"); /* or the first would be no other than the second */
	for (int i = 0; i < 2 && !err; i++) {
		*p = (struct parent){ .o = o, .start_ns = epf_now_ns() };
		o->service = i == 1;
		say_start(o);
		err = run_processes(p, argc, argv);
		result[i] = p->sum;
		seconds[i] = (double)(epf_now_ns() - p->start_ns) / 1e9;
	}
	err = err ? BENCH_WRONG : moe_report_both(o, result, seconds);
	free(result);
	free(p);
	return err;
}

static int run_launched(struct moe_opts *o, struct parent *p)
{
	int err;

	if (!o->place.rank)
		say_start(o);
	err = moe_launched_run(o, own_progress, p);
	epf_boot_close(o->place.boot);
	return err;
}

int bench_moe(int argc, char **argv)
{
	struct moe_opts o;
	struct parent p = { .o = &o, .start_ns = epf_now_ns() };
	int err;

	if (moe_wants_gpu(argc, argv))
		return moe_gpu_run(argc, argv);
	if (moe_opts_parse(argc, argv, &o) || (!o.launched && check_memory(&o))) {
		epf_boot_close(o.place.boot);
		return BENCH_USAGE;
	}
	if (o.launched)
		return run_launched(&o, &p);
	if (o.both)
		return run_both(&o, argc, argv);
	say_start(&o);
	err = o.local ? moe_local_run(&o, own_progress, &p, &p.sum) : run_processes(&p, argc, argv);
	if (err)
		return BENCH_WRONG;
	return moe_report(&o, &p.sum, (double)(epf_now_ns() - p.start_ns) / 1e9);
}
