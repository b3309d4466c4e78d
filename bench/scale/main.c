/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench scale: jobs of 8 to 2,048 ranks on a simulated network, with the engine's own cores; options and output. It judges what arrives,
 * never times. docs/reference/scale.md says what the model holds and what it leaves out.
 */
#include "bench/scale/scale.h"

#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
	O_RANKS = 256,
	O_PER_NODE,
	O_ENGINES,
	O_MODE,
	O_TOKENS,
	O_HIDDEN,
	O_ROUNDS,
	O_GBITS,
	O_DELAY,
	O_LINKS,
	O_LANES,
	O_COMMAND,
	O_ARRIVAL,
	O_STEP,
	O_DOORBELL,
	O_LOSS,
	O_REORDER,
	O_SEED,
	O_SET,
	O_FAULT,
	O_CLASS,
	O_WEIGHT,
	O_JSON
};

enum { SETTINGS = 32, PHASES = 64, WARM_UP = 10, TENANT_ROUNDS = 200, TENANT_ROUNDS_MAX = 10000 };

enum { LL, HT, TENANTS, REAL }; /* of modes */

struct opts {
	struct scale_options s;
	const char *settings[SETTINGS + 1];
	unsigned n_settings;
	uint64_t ranks, per_node, engines, tokens, hidden, rounds, gbits, delay, links, lanes, seed;
	uint64_t command, arrival, step, doorbell, loss, reorder, weight;
	int mode, fault;
	bool json, class;
};

static const char *const modes[] = { "ll", "ht", "tenants", "real", NULL };
static const char *const faults[] = { "none", "nic", "node", "both", NULL };

static const struct argp_option options[] = {
	{ "ranks", O_RANKS, "R", 0, "ranks of the job (64)", 0 },
	{ "per-node", O_PER_NODE, "N", 0, "ranks of a node (8)", 0 },
	{ "engines", O_ENGINES, "N", 0,
	  "engines of a node: 1, a daemon's with all ports; or as many as ranks, each with one port (1)",
	  0 },
	{ "mode", O_MODE, "ll|ht|tenants|real", 0,
	  "low latency, high throughput, a decode job alone and beside 1, 3 and 7 bulk jobs on the same nodes, or low latency of 8 to R ranks, real engines' times beside the model's (ll)",
	  0 },
	{ "tokens", O_TOKENS, "T", 0, "tokens of a rank (ll: 128, ht: 4096, real: 32)", 0 },
	{ "hidden", O_HIDDEN, "H", 0, "channels of a token (7168; real: 128)", 0 },
	{ "rounds", O_ROUNDS, "N", 0,
	  "calls of dispatch and of combine (1; real: 10); tenants: rounds of the decode job (200)",
	  0 },
	{ "gbits", O_GBITS, "G", 0, "rate of a port, Gbit/s (400)", 0 },
	{ "delay-ns", O_DELAY, "NS", 0, "time on the way (1500)", 0 },
	{ "ports", O_LINKS, "N", 0, "ports of a node (8)", 0 },
	{ "lanes", O_LANES, "N", 0, "lanes of an engine to each node, a multiple of ports (8)", 0 },
	{ "command-ps", O_COMMAND, "PS", 0,
	  "time of an engine for a command, picoseconds: as ep-bench core --nic null says for the machine (60000)",
	  0 },
	{ "arrival-ps", O_ARRIVAL, "PS", 0, "and for an arrival (60000)", 0 },
	{ "step-ns", O_STEP, "NS", 0, "and for a step (100)", 0 },
	{ "doorbell-ps", O_DOORBELL, "PS", 0, "and for each lane that a step posts to (0)", 0 },
	{ "loss-ppm", O_LOSS, "P", 0, "packets of a million that are sent again (0)", 0 },
	{ "reorder-ppm", O_REORDER, "P", 0,
	  "messages of a million that come late, on a NIC without order (an ordered NIC)", 0 },
	{ "fault", O_FAULT, "none|nic|node|both", 0,
	  "in the middle of the last dispatch a port fails, a node dies (none)", 0 },
	{ "class", O_CLASS, NULL, 0, "tenants: the decode job has a traffic class that goes first",
	  0 },
	{ "weight", O_WEIGHT, "W", 0,
	  "tenants: weight of the decode job; that of a bulk job is 1 (1)", 0 },
	{ "seed", O_SEED, "N", 0, "of routing and network (1)", 0 },
	{ "set", O_SET, "NAME=VALUE", 0, "any option of the fabric; may be repeated", 0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct opts *o = state->input;

	switch (key) {
	case O_RANKS:
		return bench_uint("--ranks", arg, 2, 4096, &o->ranks) ? EINVAL : 0;
	case O_PER_NODE:
		return bench_uint("--per-node", arg, 1, 64, &o->per_node) ? EINVAL : 0;
	case O_ENGINES:
		return bench_uint("--engines", arg, 1, 64, &o->engines) ? EINVAL : 0;
	case O_MODE:
		o->mode = bench_word("--mode", arg, modes);
		return o->mode < 0 ? EINVAL : 0;
	case O_TOKENS:
		return bench_uint("--tokens", arg, 1, 8192, &o->tokens) ? EINVAL : 0;
	case O_HIDDEN:
		return bench_uint("--hidden", arg, 128, 16384, &o->hidden) ? EINVAL : 0;
	case O_ROUNDS:
		return bench_uint("--rounds", arg, 1, TENANT_ROUNDS_MAX, &o->rounds) ? EINVAL : 0;
	case O_GBITS:
		return bench_uint("--gbits", arg, 1, 10000, &o->gbits) ? EINVAL : 0;
	case O_DELAY:
		return bench_uint("--delay-ns", arg, 1, 1000000000, &o->delay) ? EINVAL : 0;
	case O_LINKS:
		return bench_uint("--ports", arg, 1, 8, &o->links) ? EINVAL : 0;
	case O_LANES:
		return bench_uint("--lanes", arg, 1, 8, &o->lanes) ? EINVAL : 0;
	case O_COMMAND:
		return bench_uint("--command-ps", arg, 0, 1000000000, &o->command) ? EINVAL : 0;
	case O_ARRIVAL:
		return bench_uint("--arrival-ps", arg, 0, 1000000000, &o->arrival) ? EINVAL : 0;
	case O_STEP:
		return bench_uint("--step-ns", arg, 1, 1000000, &o->step) ? EINVAL : 0;
	case O_DOORBELL:
		return bench_uint("--doorbell-ps", arg, 0, 1000000000, &o->doorbell) ? EINVAL : 0;
	case O_LOSS:
		return bench_uint("--loss-ppm", arg, 0, 100000, &o->loss) ? EINVAL : 0;
	case O_REORDER:
		return bench_uint("--reorder-ppm", arg, 1, 1000000, &o->reorder) ? EINVAL : 0;
	case O_FAULT:
		o->fault = bench_word("--fault", arg, faults);
		return o->fault < 0 ? EINVAL : 0;
	case O_CLASS:
		o->class = true;
		return 0;
	case O_WEIGHT:
		return bench_uint("--weight", arg, 1, 255, &o->weight) ? EINVAL : 0;
	case O_SEED:
		return bench_uint("--seed", arg, 0, UINT32_MAX, &o->seed) ? EINVAL : 0;
	case O_SET:
		if (o->n_settings == SETTINGS) {
			bench_complain("--set may be given %u times", SETTINGS);
			return EINVAL;
		}
		o->settings[o->n_settings++] = arg;
		return 0;
	case O_JSON:
		o->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* What depends on the mode, wherever that stands on the command line. */
static int check_mode(struct opts *o)
{
	uint64_t least = o->mode == TENANTS ? WARM_UP + 1 : 1;
	uint64_t most = o->mode == TENANTS ? TENANT_ROUNDS_MAX : PHASES / 2;

	if (!o->rounds)
		o->rounds = o->mode == TENANTS ? TENANT_ROUNDS : o->mode == REAL ? 10 : 1;
	if (!o->hidden)
		o->hidden = o->mode == REAL ? 128 : 7168;
	if (o->rounds < least || o->rounds > most) {
		bench_complain("--rounds must be %u to %u with --mode %s", (unsigned)least,
			       (unsigned)most, modes[o->mode]);
		return BENCH_USAGE;
	}
	if (o->mode != TENANTS && (o->class || o->weight)) {
		bench_complain("--class and --weight belong to --mode tenants");
		return BENCH_USAGE;
	}
	if (o->mode >= TENANTS && (o->json || o->fault)) {
		bench_complain("--mode %s has no --json and no --fault", modes[o->mode]);
		return BENCH_USAGE;
	}
	return 0;
}

static int finish_opts(struct opts *o)
{
	if (check_mode(o))
		return BENCH_USAGE;
	if (o->per_node > o->ranks)
		o->per_node = o->ranks;
	if (o->engines != 1 && o->engines != o->per_node) {
		bench_complain("--engines must be 1 or what --per-node is");
		return BENCH_USAGE;
	}
	if (o->engines > 1 && o->fault) {
		bench_complain(
			"--fault needs --engines 1: a port that fails has to have others beside it");
		return BENCH_USAGE;
	}
	if (o->mode == REAL) { /* an engine for each rank, of one port */
		o->per_node = o->links = 1;
		o->lanes = 2;
	}
	if (!o->links)
		o->links = o->engines > 1 ? 1 : o->per_node < 8 ? o->per_node : 8;
	if (!o->lanes)
		o->lanes = o->links;
	if (!o->tokens)
		o->tokens = o->mode == HT ? 4096 : o->mode == REAL ? 32 : 128;
	if (o->ranks % o->per_node ||
	    (o->ranks < SCALE_EXPERTS ? SCALE_EXPERTS % o->ranks : o->ranks % SCALE_EXPERTS)) {
		bench_complain(
			"--ranks must be a multiple of --per-node, and a divisor or a multiple of %u",
			SCALE_EXPERTS);
		return BENCH_USAGE;
	}
	if (o->lanes % o->links || o->per_node / o->engines % o->links) {
		bench_complain("--lanes and --per-node must be multiples of --ports");
		return BENCH_USAGE;
	}
	o->s = scale_defaults();
	o->s.ranks = (uint32_t)o->ranks;
	o->s.per_node = (uint32_t)(o->per_node / o->engines);
	o->s.near = (uint32_t)o->per_node;
	o->s.weight[0] = (uint32_t)o->weight;
	o->s.hidden = (uint32_t)o->hidden;
	o->s.tokens = o->s.tokens_max = (uint32_t)o->tokens;
	o->s.step_ns = (double)o->step;
	o->s.command_ns = (double)o->command / 1e3;
	o->s.arrival_ns = (double)o->arrival / 1e3;
	o->s.doorbell_ns = (double)o->doorbell / 1e3;
	o->s.settings = o->settings;
	o->s.seed = o->s.net.seed = o->seed;
	o->s.net.links = (uint32_t)o->links;
	o->s.net.lanes = (uint32_t)o->lanes;
	o->s.net.bytes_per_ns = (double)o->gbits / 8;
	o->s.net.delay_ns = (uint32_t)o->delay;
	o->s.net.segment = o->mode == TENANTS ? 4096 : o->mode == HT ? 65536 : 16384;
	o->s.net.unordered = o->reorder > 0;
	o->s.net.loss = (double)o->loss / 1e6;
	o->s.net.reorder = (double)o->reorder / 1e6;
	o->s.net.first_jobs = o->class;
	return 0;
}

struct phase {
	const char *name;
	struct scale_result r;
	double real_s;
};

struct report {
	const struct opts *o;
	struct scale *s;
	struct phase phase[PHASES];
	unsigned phases;
	struct scale_memory joined, used;
	double join_s;
};

static void on_fault(struct scale *s, uint32_t what)
{
	if (what == 0)
		sim_net_port(s->net, 0, s->o.net.links - 1, 0);
	else
		scale_kill_node(s, s->n_nodes - 1);
}

static int run_phase(struct report *rep, const char *name, int last_dispatch)
{
	struct phase *p = &rep->phase[rep->phases];
	uint64_t begun = epf_now_ns();
	int rc;

	if (last_dispatch && rep->o->fault & 1)
		scale_fault_at(rep->s, 20000, 0);
	if (last_dispatch && rep->o->fault & 2)
		scale_fault_at(rep->s, 30000, 1);
	rc = scale_run(rep->s);
	p->name = name;
	p->real_s = (double)(epf_now_ns() - begun) / 1e9;
	scale_result(rep->s, 0, &p->r);
	rep->phases++;
	if (rc)
		bench_complain("%s: %s", name, rep->s->why);
	return rc;
}

static int begin(const struct report *rep, void *program, uint32_t round, int combine)
{
	return rep->o->mode ? scale_ht_begin(program, round, combine)
			    : scale_ll_begin(program, round, combine);
}

static uint64_t missing(const struct report *rep, const void *program)
{
	return rep->o->mode ? scale_ht_missing(program) : scale_ll_missing(program);
}

static int run_calls(struct report *rep)
{
	void *program =
		rep->o->mode ? (void *)scale_ht_open(rep->s, 0) : (void *)scale_ll_open(rep->s, 0);
	uint64_t left;
	int rc = program ? 0 : -ENOMEM;

	for (uint32_t round = 0; round < rep->o->rounds && !rc; round++)
		for (int combine = 0; combine < 2 && !rc; combine++) {
			begin(rep, program, round, combine);
			rc = run_phase(rep, combine ? "combine" : "dispatch",
				       !combine && round + 1 == rep->o->rounds);
			left = rc ? 0 : missing(rep, program);
			if (left)
				rc = scale_wrong(rep->s, "%llu rows are missing",
						 (unsigned long long)left);
		}
	if (rep->o->mode)
		scale_ht_close(program);
	else
		scale_ll_close(program);
	return rc;
}

static void print_text(const struct report *rep)
{
	const struct scale *s = rep->s;
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	printf("# ep-bench scale: %u ranks on %u nodes, %llu engines each, %s, %u tokens of %u channels, top-%d; ports of %llu Gbit/s, %llu ns; engine %.1f ns a command\n",
	       s->o.ranks, s->o.ranks / s->o.near, (unsigned long long)rep->o->engines,
	       modes[rep->o->mode], s->o.tokens, s->o.hidden, SCALE_TOPK,
	       (unsigned long long)rep->o->gbits, (unsigned long long)rep->o->delay,
	       s->o.command_ns);
	printf("# joined in %.3f s: worlds %.3f, descriptions %.3f (%.1f MB), connected %.3f\n",
	       rep->join_s, (double)s->join_ns[0] / 1e9, (double)s->join_ns[1] / 1e9,
	       (double)s->description_bytes / 1e6, (double)s->join_ns[2] / 1e9);
	printf("#%8s %10s %10s %10s %10s %10s %10s %9s %9s %12s  %s\n", "phase", "time_us",
	       "median_us", "p99_us", "wire_us", "cpu_us", "queued_us", "commands", "messages",
	       "bytes", "slowest percent: sender, out, way, in, receiver");
	for (unsigned i = 0; i < rep->phases; i++) {
		const struct scale_result *r = &rep->phase[i].r;

		printf("%9s %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f %9.0f %9.0f %12.0f  %u %u %u %u %u\n",
		       rep->phase[i].name, r->time_us, r->median_us, r->p99_us, r->wire_us,
		       r->cpu_us, r->queued_us, r->commands, r->messages, r->bytes, r->slow_sender,
		       r->slow_out, r->slow_way, r->slow_in, r->slow_receiver);
	}
	printf("# queue pairs of a node %llu; engine %.2f MiB joined, %.2f MiB used, %.2f MiB at most; %llu bytes for a pair of ranks\n",
	       (unsigned long long)(rep->used.queue_pairs * rep->o->engines),
	       (double)rep->joined.engine_bytes / 1048576, (double)rep->used.engine_bytes / 1048576,
	       (double)rep->used.engine_most / 1048576,
	       (unsigned long long)rep->used.peer_pair_bytes);
	printf("# simulation: %llu steps, peak memory %ld MiB\n", (unsigned long long)s->steps,
	       usage.ru_maxrss / 1024);
	printf("# wrong: %llu%s%s\n", (unsigned long long)s->wrong, s->wrong ? ": " : "", s->why);
}

static json_t *phase_json(const struct phase *p)
{
	const struct scale_result *r = &p->r;

	return json_pack(
		"{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:[i,i,i,i,i], s:I, s:f}",
		"phase", p->name, "time_us", r->time_us, "median_us", r->median_us, "p99_us",
		r->p99_us, "wire_us", r->wire_us, "cpu_us", r->cpu_us, "queued_us", r->queued_us,
		"commands", r->commands, "messages", r->messages, "bytes", r->bytes,
		"slowest_sender_out_way_in_receiver", (int)r->slow_sender, (int)r->slow_out,
		(int)r->slow_way, (int)r->slow_in, (int)r->slow_receiver, "ranks",
		(json_int_t)r->ranks, "real_s", p->real_s);
}

static void print_json(const struct report *rep)
{
	const struct scale *s = rep->s;
	json_t *phases = json_array();
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	for (unsigned i = 0; i < rep->phases; i++)
		json_array_append_new(phases, phase_json(&rep->phase[i]));
	bench_print_json(json_pack(
		"{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:o, s:I, s:I}",
		"bench", "scale", "mode", modes[rep->o->mode], "ranks", (json_int_t)s->o.ranks,
		"nodes", (json_int_t)(s->o.ranks / s->o.near), "engines_per_node",
		(json_int_t)rep->o->engines, "tokens", (json_int_t)s->o.tokens, "hidden",
		(json_int_t)s->o.hidden, "gbits", (double)rep->o->gbits, "command_ns",
		s->o.command_ns, "queue_pairs_per_node",
		(json_int_t)(rep->used.queue_pairs * rep->o->engines), "engine_bytes_joined",
		(json_int_t)rep->joined.engine_bytes, "engine_bytes",
		(json_int_t)rep->used.engine_bytes, "engine_bytes_most",
		(json_int_t)rep->used.engine_most, "signal_bytes_per_rank",
		(json_int_t)rep->used.signal_bytes, "ll_bytes_per_rank",
		(json_int_t)rep->used.ll_bytes, "join_world_s", (double)s->join_ns[0] / 1e9,
		"join_describe_s", (double)s->join_ns[1] / 1e9, "join_connect_s",
		(double)s->join_ns[2] / 1e9, "description_bytes", (json_int_t)s->description_bytes,
		"phases", phases, "peak_memory_bytes", (json_int_t)usage.ru_maxrss * 1024, "wrong",
		(json_int_t)s->wrong));
}

/* A decode job alone and beside others; rows of a round as in a decode step of 16 tokens. */
static int run_tenants(struct opts *o)
{
	static const uint32_t jobs[] = { 1, 2, 4, 8 };
	struct scale_tenants_options to = { .rounds = (uint32_t)o->rounds,
					    .rows = 4,
					    .warm_up = WARM_UP,
					    .bulk_bytes = 256 << 10,
					    .pause_ns = 50000 };
	struct scale_tenants_result r;
	double alone = 0;

	printf("# ep-bench scale: decode of %llu ranks on %llu nodes, %u rounds of %u rows to each rank of another node, beside bulk jobs of as many ranks\n",
	       (unsigned long long)o->ranks, (unsigned long long)(o->ranks / o->per_node),
	       to.rounds, to.rows);
	printf("#%9s %10s %10s %10s %14s %12s %10s %10s %12s\n", "bulk_jobs", "median_us", "p99_us",
	       "most_us", "p99_to_alone", "bulk_GB/s", "thread", "bulk_each", "bulk_step_us");
	for (unsigned i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
		double sum = 0;

		o->s.jobs = jobs[i];
		if (scale_tenants(&o->s, &to, &r)) {
			bench_complain("%s", r.why);
			return BENCH_WRONG;
		}
		alone = i ? alone : r.p99_us;
		for (uint32_t j = 1; j < jobs[i]; j++)
			sum += r.bulk_gbytes[j];
		printf("%10u %10.1f %10.1f %10.1f %14.3f %12.1f %10.3f %10.3f %12.1f\n",
		       jobs[i] - 1, r.median_us, r.p99_us, r.most_us, r.p99_us / alone, sum,
		       r.share[0], r.share[1], r.step_us[1]);
	}
	printf("# wrong: 0\n");
	return BENCH_OK;
}

/* Engines on the software NIC beside the model. */
static int run_real(struct opts *o)
{
	printf("# ep-bench scale: low latency, %u tokens of %u channels, %llu rounds; what an engine works in a call: by the model, of one alone on the null NIC, and of all on the software NIC, stepped by one thread\n",
	       o->s.tokens, o->s.hidden, (unsigned long long)o->rounds);
	if (scale_real(&o->s, (uint32_t)o->ranks, (uint32_t)o->rounds)) {
		bench_complain("%s", epf_last_error());
		return BENCH_WRONG;
	}
	printf("# wrong: 0\n");
	return BENCH_OK;
}

int bench_scale(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Dispatch and combine of thousands of ranks: the engine's own cores on a simulated network and a virtual clock.",
	};
	struct opts o = { .ranks = 64,
			  .per_node = 8,
			  .engines = 1,
			  .gbits = 400,
			  .delay = 1500,
			  .command = 60000,
			  .arrival = 60000,
			  .step = 100,
			  .seed = 1 };
	struct report rep = { .o = &o };
	uint64_t begun = epf_now_ns();
	int rc;

	if (argp_parse(&argp, argc, argv, 0, NULL, &o) || finish_opts(&o))
		return BENCH_USAGE;
	if (o.mode == TENANTS)
		return run_tenants(&o);
	if (o.mode == REAL)
		return run_real(&o);
	rep.s = scale_open(&o.s);
	if (!rep.s) {
		bench_complain("%s", epf_last_error());
		return BENCH_WRONG;
	}
	rep.s->fault = on_fault;
	rep.join_s = (double)(epf_now_ns() - begun) / 1e9;
	scale_memory(rep.s, &rep.joined);
	rc = run_calls(&rep);
	scale_memory(rep.s, &rep.used);
	if (o.json)
		print_json(&rep);
	else
		print_text(&rep);
	rc = rc || rep.s->wrong ? BENCH_WRONG : BENCH_OK;
	scale_close(rep.s);
	return rc;
}
