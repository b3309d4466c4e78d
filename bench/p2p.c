/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench p2p: latency and bandwidth of put, put_signal and get between two rank processes, with
 * the letters and the table of perftest where they mean the same. This file: options, parent,
 * output.
 */
#include "bench/p2p.h"

#include "bench/bench.h"
#include "bench/compare.h"
#include "bench/spawn.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { O_OP = 256, O_TEST, O_SAME_NODE, O_JSON, O_SET, O_TIMEOUT, O_SERVICE, O_ROUNDS, O_PROGRAM };

const char *const p2p_op_name[] = { "put", "put_signal", "get", NULL };
static const char *const test_name[] = { "lat", "bw", NULL };

static const struct argp_option options[] = {
	{ "op", O_OP, "WORD", 0, "put, put_signal or get (put_signal)", 0 },
	{ "test", O_TEST, "lat|bw", 0, "latency or bandwidth (lat)", 0 },
	{ "size", 's', "BYTES", 0, "bytes of a transfer (8)", 0 },
	{ "iters", 'n', "N", 0, "transfers of a size (1000, fewer above 64 KiB with -a)", 0 },
	{ "all", 'a', NULL, 0, "all sizes 2, 4, ... 8388608", 0 },
	{ "bidirectional", 'b', NULL, 0, "both ranks send at once (bw only)", 0 },
	{ "duration", 'D', "S", 0, "seconds for a size, instead of a number of transfers", 0 },
	{ "same-node", O_SAME_NODE, NULL, 0, "both ranks on one node (two nodes)", 0 },
	{ "timeout-s", O_TIMEOUT, "S", 0, "deadline of the whole run (300)", 0 },
	{ "set", O_SET, "[NODE:]NAME=VALUE", 0,
	  "any option of the fabric, of all nodes or one; may be repeated", 0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object, see bench/README.md", 0 },
	{ "service", O_SERVICE, NULL, 0,
	  "engines in the ranks' processes and in ep-fabric daemons (one a node) in turn: both tests unless --test names one, of 8 bytes (lat) and 64 KiB (bw) unless -s or -a is given",
	  0 },
	{ "rounds", O_ROUNDS, "N", 0, "rounds of --service, medians count (5)", 0 },
	{ "fabric-program", O_PROGRAM, "PATH", 0,
	  "ep-fabric of --service (the one beside ep-bench)", 0 },
	{ 0 },
};

static int parse_set(char *arg, struct p2p_opts *o)
{
	if (bench_setting_check(arg))
		return EINVAL;
	if (o->settings == P2P_SETTINGS_MAX - 1) {
		bench_complain("--set is given more than %d times", P2P_SETTINGS_MAX - 1);
		return EINVAL;
	}
	o->setting[o->settings++] = arg;
	return 0;
}

static int parse_flag(int key, char *arg, struct p2p_opts *o)
{
	switch (key) {
	case 'a':
		o->all = true;
		return 0;
	case 'b':
		o->both = true;
		return 0;
	case O_SAME_NODE:
		o->same_node = true;
		return 0;
	case O_JSON:
		o->json = true;
		return 0;
	case O_SERVICE:
		o->service = true;
		return 0;
	case O_PROGRAM:
		o->fabric_program = arg;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct p2p_opts *o = state->input;
	int i;

	switch (key) {
	case O_OP:
		i = bench_word("--op", arg, p2p_op_name);
		o->op = i < 0 ? P2P_PUT : (enum p2p_op)i;
		return i < 0 ? EINVAL : 0;
	case O_TEST:
		i = bench_word("--test", arg, test_name);
		o->test_given = true;
		o->test = i < 0 ? P2P_LAT : (enum p2p_test)i;
		return i < 0 ? EINVAL : 0;
	case 's':
		o->size_given = true;
		return bench_uint("-s", arg, 1, P2P_SIZE_MAX, &o->size) ? EINVAL : 0;
	case 'n':
		return bench_uint("-n", arg, 5, 100000000, &o->iterations) ? EINVAL : 0;
	case 'D':
		return bench_uint("-D", arg, 1, 3600, &o->duration_s) ? EINVAL : 0;
	case O_TIMEOUT:
		return bench_uint("--timeout-s", arg, 1, 86400, &o->timeout_s) ? EINVAL : 0;
	case O_ROUNDS:
		return bench_uint("--rounds", arg, 1, BENCH_ROUNDS_MAX, &o->rounds) ? EINVAL : 0;
	case O_SET:
		return parse_set(arg, o);
	case ARGP_KEY_ARG:
		bench_complain("%s is not an option; see ep-bench p2p --help", arg);
		return EINVAL;
	default:
		return parse_flag(key, arg, o);
	}
}

int p2p_opts_parse(int argc, char **argv, struct p2p_opts *o)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Latency and bandwidth between two rank processes.",
	};

	memset(o, 0, sizeof(*o));
	o->op = P2P_PUT_SIGNAL;
	o->size = 8;
	o->timeout_s = 300;
	o->rounds = 5;
	if (argp_parse(&argp, argc, argv, 0, NULL, o) ||
	    bench_settings_check(o->setting, o->same_node ? 1 : 2))
		return BENCH_USAGE;
	if (o->both && o->test == P2P_LAT && !o->service) {
		bench_complain("-b is given, must not be with --test lat");
		return BENCH_USAGE;
	}
	if (o->duration_s && o->iterations) {
		bench_complain("-D is given, must not be together with -n");
		return BENCH_USAGE;
	}
	if (o->fabric_program && !o->service) {
		bench_complain("--fabric-program is given, needs --service");
		return BENCH_USAGE;
	}
	return 0;
}

unsigned p2p_sizes(const struct p2p_opts *o, uint64_t sizes[32])
{
	unsigned n = 0;

	if (!o->all)
		sizes[n++] = o->size;
	for (uint64_t s = 2; o->all && s <= P2P_SIZE_MAX; s *= 2)
		sizes[n++] = s;
	return n;
}

struct parent {
	const struct p2p_opts *o;
	json_t *rows;
	uint64_t wrong;
};

static void head(const struct p2p_opts *o)
{
	printf("---------------------------------------------------------------------------------------\n");
	printf("                    ep-bench %s %s Test, %s\n", p2p_op_name[o->op],
	       o->test == P2P_LAT ? "Latency"
	       : o->both          ? "Bidirectional BW"
				  : "BW",
	       o->same_node ? "one node" : "two nodes");
	printf("---------------------------------------------------------------------------------------\n");
	if (o->test == P2P_LAT)
		printf(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%% percentile[usec]   99.9%% percentile[usec]\n");
	else
		printf(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n");
}

static void print_row(const struct p2p_opts *o, const struct p2p_row *r)
{
	if (o->test == P2P_LAT)
		printf(" %-7" PRIu64 " %-10" PRIu64
		       "     %-7.2f        %-7.2f      %-7.2f          %-7.2f        %-7.2f         %-7.2f                %-7.2f\n",
		       r->bytes, r->iterations, r->min_us, r->max_us, r->typical_us, r->average_us,
		       r->stdev_us, r->p99_us, r->p999_us);
	else
		printf(" %-7" PRIu64 "    %-10" PRIu64
		       "       %-7.2f            %-7.2f\t\t     %-7.6f\n",
		       r->bytes, r->iterations, r->peak_mb_s, r->average_mb_s, r->rate_mpps);
	fflush(stdout);
}

static void keep_row(struct parent *p, const struct p2p_row *r)
{
	const double mb = 1048576.0;

	if (p->o->test == P2P_LAT)
		json_array_append_new(
			p->rows,
			json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "bytes",
				  (json_int_t)r->bytes, "iterations", (json_int_t)r->iterations,
				  "min_us", r->min_us, "max_us", r->max_us, "typical_us",
				  r->typical_us, "average_us", r->average_us, "stdev_us",
				  r->stdev_us, "p99_us", r->p99_us, "p999_us", r->p999_us));
	else
		json_array_append_new(
			p->rows,
			json_pack("{s:I, s:I, s:f, s:f, s:f}", "bytes", (json_int_t)r->bytes,
				  "iterations", (json_int_t)r->iterations, "peak_bytes_per_second",
				  r->peak_mb_s * mb, "average_bytes_per_second",
				  r->average_mb_s * mb, "messages_per_second", r->rate_mpps * 1e6));
}

static void on_message(void *arg, uint32_t rank, const struct bench_message *m, const void *bytes)
{
	struct parent *p = arg;
	struct p2p_row r;

	if (m->bytes != sizeof(r))
		return;
	memcpy(&r, bytes, sizeof(r));
	p->wrong += r.wrong;
	if (rank != 0 || r.bytes == 0) /* the last one of each rank carries only `wrong` */
		return;
	if (p->o->json)
		keep_row(p, &r);
	else
		print_row(p->o, &r);
}

int bench_p2p(int argc, char **argv)
{
	struct p2p_opts o;
	struct parent p = { .o = &o };
	struct bench_spawn s = { .ranks = 2,
				 .command = "p2p-rank",
				 .argc = argc,
				 .argv = argv,
				 .message = on_message,
				 .arg = &p };
	int err;

	if (p2p_opts_parse(argc, argv, &o))
		return BENCH_USAGE;
	if (o.service)
		return bench_p2p_service(&o, argc, argv);
	s.timeout_ns = o.timeout_s * 1000000000ull;
	p.rows = json_array();
	if (!o.json)
		head(&o);
	err = bench_spawn_run(&s);
	if (!err && o.json) {
		json_t *j = json_pack("{s:s, s:s, s:s, s:b, s:b, s:O, s:I}", "bench", "p2p", "op",
				      p2p_op_name[o.op], "test", test_name[o.test], "bidirectional",
				      (int)o.both, "same_node", (int)o.same_node, "sizes", p.rows,
				      "wrong", (json_int_t)p.wrong);

		json_dumpf(j, stdout, JSON_INDENT(2));
		printf("\n");
		json_decref(j);
	} else if (!err) {
		printf("---------------------------------------------------------------------------------------\n");
		printf("# wrong: %" PRIu64 "\n", p.wrong);
	}
	json_decref(p.rows);
	return err || p.wrong ? BENCH_WRONG : BENCH_OK;
}
