/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of ep-bench moe: one table for argp, one function that says no. Called by the parent and,
 * with the same words, by each rank process. Nothing else in moe reads argv.
 */
#include "bench/common/bench.h"
#include "bench/common/daemons.h"
#include "bench/common/world.h"
#include "bench/moe/moe.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	O_RANKS = 256,
	O_NODES,
	O_TOKENS,
	O_HIDDEN,
	O_TOPK,
	O_EXPERTS,
	O_DISPATCH,
	O_MODE,
	O_ORDER,
	O_SEED,
	O_DELAY,
	O_REORDER,
	O_DUPLICATE,
	O_DROP,
	O_UNSELECTED,
	O_ROUTING,
	O_ROUNDS,
	O_TIMEOUT,
	O_JSON,
	O_SET,
	O_NIC,
	O_LOCAL,
	O_SERVICE,
	O_BOTH,
	O_LAUNCHED,
	O_PROGRAM,
	O_QUIET,
	O_GPU,
};

static const struct argp_option options[] = {
	{ "gpu", O_GPU, 0, 0,
	  "on the GPUs of this machine, by deep_ep.Buffer, with separate options", 0 },
	{ "ranks", O_RANKS, "R", 0, "ranks of the job (8)", 0 },
	{ "nodes", O_NODES, "N", 0, "nodes they are split into, as evenly as can be (2)", 0 },
	{ "tokens", O_TOKENS, "T", 0, "tokens of each rank (128)", 0 },
	{ "hidden", O_HIDDEN, "H", 0, "channels of a token, a multiple of 128 (7168)", 0 },
	{ "topk", O_TOPK, "K", 0, "experts a token chooses, 1 to 16 (8)", 0 },
	{ "experts", O_EXPERTS, "E", 0, "experts of the job, a multiple of R (256)", 0 },
	{ "dispatch", O_DISPATCH, "fp8|bf16", 0, "format of dispatched rows (fp8)", 0 },
	{ "mode", O_MODE, "ll|ht", 0, "low latency or high throughput (ll)", 0 },
	{ "order", O_ORDER, "ordered|unordered", 0, "delivery of the software NIC (ordered)", 0 },
	{ "seed", O_SEED, "S", 0, "seed of tokens, routing and the software NIC (1)", 0 },
	{ "delay-us", O_DELAY, "US", 0, "longest random delay of a packet (0)", 0 },
	{ "reorder", O_REORDER, "P", 0,
	  "probability that a packet is held back; needs --order unordered", 0 },
	{ "duplicate", O_DUPLICATE, "P", 0, "probability that an arrival is reported twice", 0 },
	{ "drop", O_DROP, "P", 0, "probability that a packet is lost and sent again", 0 },
	{ "unselected", O_UNSELECTED, "P", 0,
	  "probability that an entry of the top-k becomes -1 (0)", 0 },
	{ "routing", O_ROUTING, "WORD", 0,
	  "uniform, zipf, one-expert, empty-ranks or deepseek (deepseek when the shape allows it, else uniform)",
	  0 },
	{ "rounds", O_ROUNDS, "N", 0,
	  "dispatch and combine so often; times are of the later ones (2)", 0 },
	{ "timeout-s", O_TIMEOUT, "S", 0, "deadline of the whole run (300)", 0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object, see bench/README.md", 0 },
	{ "nic", O_NIC, "NAME", 0, "kind of NIC: short for --set nic=NAME", 0 },
	{ "set", O_SET, "[NODE:]NAME=VALUE", 0,
	  "any option of the fabric, of all nodes or one, see ep-fabric config; may be repeated",
	  0 },
	{ "local", O_LOCAL, NULL, 0, "all ranks inside this process, driven by one thread", 0 },
	{ "service", O_SERVICE, NULL, 0,
	  "ranks use ep-fabric daemons, one a node, which are started and ended here", 0 },
	{ "both", O_BOTH, NULL, 0,
	  "the job twice, embedded and then with daemons, both in one table", 0 },
	{ "launched", O_LAUNCHED, NULL, 0,
	  "this process is one rank of a job started by ep-fabric launch, torchrun, srun or mpirun, which say how many ranks and nodes there are; rank 0 reports",
	  0 },
	{ "fabric-program", O_PROGRAM, "PATH", 0,
	  "ep-fabric of the daemons (the one beside ep-bench)", 0 },
	{ "quiet", O_QUIET, NULL, 0, "no progress lines", 0 },
	{ 0 },
};

const char *moe_routing_name(enum moe_routing r)
{
	static const char *const name[] = { "auto",       "uniform",     "zipf",
					    "one-expert", "empty-ranks", "deepseek" };

	return name[r];
}

static int word(const char *option, const char *arg, const char *const *words, int *out)
{
	int i = bench_word(option, arg, words);

	*out = i;
	return i < 0 ? i : 0;
}

static int parse_word(int key, char *arg, struct moe_opts *o)
{
	static const char *const formats[] = { "fp8", "bf16", NULL };
	static const char *const modes[] = { "ll", "ht", NULL };
	static const char *const orders[] = { "ordered", "unordered", NULL };
	static const char *const routings[] = { "uniform",     "zipf",     "one-expert",
						"empty-ranks", "deepseek", NULL };
	int i = 0;
	int err;

	switch (key) {
	case O_DISPATCH:
		err = word("--dispatch", arg, formats, &i);
		o->fp8 = i == 0;
		return err;
	case O_MODE:
		err = word("--mode", arg, modes, &i);
		o->mode = i == 1 ? EPF_MOE_HT : EPF_MOE_LL;
		return err;
	case O_ORDER:
		err = word("--order", arg, orders, &i);
		o->unordered = i == 1;
		return err;
	default:
		err = word("--routing", arg, routings, &i);
		o->routing = (enum moe_routing)(i + MOE_UNIFORM);
		return err;
	}
}

static int parse_number(int key, char *arg, struct moe_opts *o)
{
	switch (key) {
	case O_RANKS:
		return bench_uint("--ranks", arg, 1, EPF_MOE_RANKS_MAX, &o->ranks);
	case O_NODES:
		return bench_uint("--nodes", arg, 1, EPF_MOE_RANKS_MAX, &o->nodes);
	case O_TOKENS:
		return bench_uint("--tokens", arg, 0, EPF_MOE_TOKENS_MAX, &o->tokens);
	case O_HIDDEN:
		return bench_uint("--hidden", arg, 128, EPF_MOE_HIDDEN_MAX, &o->hidden);
	case O_TOPK:
		return bench_uint("--topk", arg, 1, EPF_MOE_TOPK_MAX, &o->topk);
	case O_EXPERTS:
		return bench_uint("--experts", arg, 1, EPF_MOE_EXPERTS_MAX, &o->experts);
	case O_SEED:
		return bench_uint("--seed", arg, 0, INT64_MAX, &o->seed);
	case O_DELAY:
		return bench_uint("--delay-us", arg, 0, 10000000, &o->delay_us);
	case O_ROUNDS:
		return bench_uint("--rounds", arg, 1, MOE_ROUNDS_MAX, &o->rounds);
	case O_TIMEOUT:
		return bench_uint("--timeout-s", arg, 1, 86400, &o->timeout_s);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int parse_flag(int key, char *arg, struct moe_opts *o)
{
	switch (key) {
	case O_JSON:
		o->json = true;
		return 0;
	case O_LOCAL:
		o->local = true;
		return 0;
	case O_SERVICE:
		o->service = true;
		return 0;
	case O_BOTH:
		o->both = true;
		return 0;
	case O_LAUNCHED:
		o->launched = true;
		return 0;
	case O_PROGRAM:
		o->fabric_program = arg;
		return 0;
	default:
		o->quiet = true;
		return 0;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct moe_opts *o = state->input;

	switch (key) {
	case O_DISPATCH:
	case O_MODE:
	case O_ORDER:
	case O_ROUTING:
		return parse_word(key, arg, o) ? EINVAL : 0;
	case O_REORDER:
		return bench_probability("--reorder", arg, &o->reorder) ? EINVAL : 0;
	case O_DUPLICATE:
		return bench_probability("--duplicate", arg, &o->duplicate) ? EINVAL : 0;
	case O_DROP:
		return bench_probability("--drop", arg, &o->drop) ? EINVAL : 0;
	case O_UNSELECTED:
		return bench_probability("--unselected", arg, &o->unselected) ? EINVAL : 0;
	case O_NIC:
		snprintf(o->nic, sizeof(o->nic), "nic=%s", arg);
		arg = o->nic;
		__attribute__((fallthrough));
	case O_SET:
		return bench_setting_add(o->setting, &o->settings, MOE_SETTINGS_MAX - 8, arg)
			       ? EINVAL
			       : 0;
	case O_JSON:
	case O_LOCAL:
	case O_SERVICE:
	case O_BOTH:
	case O_LAUNCHED:
	case O_PROGRAM:
	case O_QUIET:
		return parse_flag(key, arg, o);
	case ARGP_KEY_ARG:
		bench_complain("%s is not an option; see ep-bench moe --help", arg);
		return EINVAL;
	default: {
		int err = parse_number(key, arg, o);

		return err == ARGP_ERR_UNKNOWN ? ARGP_ERR_UNKNOWN : err ? EINVAL : 0;
	}
	}
}

static bool allows_groups(const struct moe_opts *o)
{
	struct epf_gate gate = { .experts = (uint32_t)o->experts,
				 .topk = (uint32_t)o->topk,
				 .groups = 8,
				 .topk_groups = 4,
				 .routed_scale = 2.5f };

	return epf_gate_is_grouped(&gate);
}

/* Reports once where the engines run. */
static int check_place(const struct moe_opts *o)
{
	if (o->local + o->service + o->both + o->launched > 1) {
		bench_complain("--%s is given, must not be together with --%s",
			       o->local     ? "local"
			       : o->service ? "service"
					    : "both",
			       o->launched ? "launched"
			       : o->both   ? "both"
					   : "service");
		return -EINVAL;
	}
	if (o->launched && (o->ranks || o->nodes)) {
		bench_complain(
			"--%s is given, must not be together with --launched: the launcher says how many",
			o->ranks ? "ranks" : "nodes");
		return -EINVAL;
	}
	if (o->fabric_program && !o->service && !o->both) {
		bench_complain("--fabric-program is given, needs --service or --both");
		return -EINVAL;
	}
	if ((o->service || o->both) && o->nodes > BENCH_DAEMONS_MAX) {
		bench_complain("--nodes is %llu, must be at most %u with --service or --both",
			       (unsigned long long)o->nodes, BENCH_DAEMONS_MAX);
		return -EINVAL;
	}
	return 0;
}

/* Ranks and nodes: what was given, or what the launcher has made. */
static int set_size(struct moe_opts *o)
{
	if (o->launched) {
		int err = bench_launched_meet(bench_rank_limit_ns(o->timeout_s), &o->place);

		o->ranks = o->place.ranks;
		o->nodes = o->place.nodes;
		return err;
	}
	o->ranks = o->ranks ? o->ranks : 8;
	o->nodes = o->nodes ? o->nodes : 2;
	return 0;
}

/* What no single option's range can say. */
static int check_together(struct moe_opts *o)
{
	if (o->nodes > o->ranks) {
		bench_complain("--nodes is %llu, must be from 1 to --ranks (%llu)",
			       (unsigned long long)o->nodes, (unsigned long long)o->ranks);
		return -EINVAL;
	}
	if (o->hidden % 128) {
		bench_complain("--hidden is %llu, must be a multiple of 128 from 128 to %u",
			       (unsigned long long)o->hidden, EPF_MOE_HIDDEN_MAX);
		return -EINVAL;
	}
	if (o->experts % o->ranks) {
		bench_complain(
			"--experts is %llu, must be a multiple of --ranks (%llu) from %llu to %u",
			(unsigned long long)o->experts, (unsigned long long)o->ranks,
			(unsigned long long)o->ranks, EPF_MOE_EXPERTS_MAX);
		return -EINVAL;
	}
	if (o->topk > o->experts) {
		bench_complain(
			"--topk is %llu, must be from 1 to 16 and not above --experts (%llu)",
			(unsigned long long)o->topk, (unsigned long long)o->experts);
		return -EINVAL;
	}
	if (o->reorder > 0 && !o->unordered) {
		bench_complain("--reorder is %g, must be 0 with --order ordered", o->reorder);
		return -EINVAL;
	}
	if (o->duplicate > 0 && !o->unordered) {
		bench_complain("--duplicate is %g, must be 0 with --order ordered", o->duplicate);
		return -EINVAL;
	}
	if (o->routing == MOE_DEEPSEEK && !allows_groups(o)) {
		bench_complain(
			"--routing is deepseek, must be another with --experts %llu --topk %llu (8 equal groups, top-k from 4 of them)",
			(unsigned long long)o->experts, (unsigned long long)o->topk);
		return -EINVAL;
	}
	if (o->routing == MOE_AUTO)
		o->routing = allows_groups(o) ? MOE_DEEPSEEK : MOE_UNIFORM;
	return 0;
}

/* Checks what the layout says and asks for as many signals as it needs. */
static int check_layout(struct moe_opts *o)
{
	uint32_t *node_of = calloc(o->ranks, sizeof(*node_of));
	char why[EPF_MOE_WHY_BYTES] = "out of memory";
	struct epf_moe_config cfg;
	struct epf_moe_layout lay = { 0 };
	int err = -ENOMEM;

	if (node_of) {
		bench_nodes((uint32_t)o->ranks, (uint32_t)o->nodes, node_of);
		cfg = moe_config(o, 0, node_of);
		err = epf_moe_plan(&cfg, &lay, why);
	}
	free(node_of);
	if (err) {
		bench_complain("%s", why);
		return err;
	}
	if (lay.signals > 65536) {
		bench_complain(
			"--experts %llu with --ranks %llu needs %u signals of each rank, must be at most 65536",
			(unsigned long long)o->experts, (unsigned long long)o->ranks, lay.signals);
		return -EINVAL;
	}
	snprintf(o->text[7], sizeof(o->text[7]), "signals=%u",
		 lay.signals > 4096 ? lay.signals : 4096u);
	return 0;
}

static void make_settings(struct moe_opts *o)
{
	char(*t)[64] = o->text;

	snprintf(t[0], sizeof(t[0]), "emu-order=%s", o->unordered ? "unordered" : "ordered");
	snprintf(t[1], sizeof(t[1]), "emu-seed=%llu", (unsigned long long)o->seed);
	snprintf(t[2], sizeof(t[2]), "emu-delay=%lluus", (unsigned long long)o->delay_us);
	snprintf(t[3], sizeof(t[3]), "emu-reorder=%.9f", o->reorder);
	snprintf(t[4], sizeof(t[4]), "emu-duplicate=%.9f", o->duplicate);
	snprintf(t[5], sizeof(t[5]), "emu-drop=%.9f", o->drop);
	snprintf(t[6], sizeof(t[6]), "wait-timeout=%llums",
		 (unsigned long long)(bench_rank_limit_ns(o->timeout_s) / 1000000u));
	/* The user's --set come later in the list and win. */
	memmove(o->setting + 8, o->setting, o->settings * sizeof(o->setting[0]));
	for (int i = 0; i < 8; i++)
		o->setting[i] = t[i];
	o->settings += 8;
	o->setting[o->settings] = NULL;
}

struct epf_moe_config moe_config(const struct moe_opts *o, uint32_t rank, const uint32_t *node_of)
{
	struct epf_moe_config c = { .mode = o->mode,
				    .fp8 = o->fp8,
				    .tokens_max = (uint32_t)o->tokens,
				    .hidden = (uint32_t)o->hidden,
				    .topk = (uint32_t)o->topk,
				    .experts = (uint32_t)o->experts,
				    .ranks = (uint32_t)o->ranks,
				    .rank = rank,
				    .node_of = node_of };

	return c;
}

int moe_opts_parse(int argc, char **argv, struct moe_opts *o)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Dispatch and combine of a Mixture-of-Experts layer on CPU ranks, checked bit for bit.",
	};

	memset(o, 0, sizeof(*o));
	o->tokens = 128;
	o->hidden = 7168;
	o->topk = 8;
	o->experts = 256;
	o->fp8 = true;
	o->seed = 1;
	o->rounds = 2;
	o->timeout_s = 300;
	if (argp_parse(&argp, argc, argv, 0, NULL, o) || check_place(o) || set_size(o) ||
	    check_together(o) || check_layout(o) || bench_settings_check(o->setting, o->nodes))
		return BENCH_USAGE;
	make_settings(o);
	return 0;
}
