/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of ep-bench p2p, read by the parent and again by each rank, and the settings of the fabric behind them. Called by main.c,
 * rank.c and host.c. It must never start anything.
 */
#include "bench/p2p/p2p.h"

#include "bench/common/bench.h"
#include "bench/common/compare.h"
#include "bench/common/meet.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	O_OP = 256,
	O_TEST,
	O_SAME_NODE,
	O_JSON,
	O_SET,
	O_TIMEOUT,
	O_SERVICE,
	O_ROUNDS,
	O_PROGRAM,
	O_NIC,
	O_AGAINST,
	O_OLD,
	O_SLICES,
	O_ENGINE,
	O_GATE,
	O_SERVER,
	O_GPU,
	O_GPU_BACKEND,
	O_GPU_COPY,
	O_WARPS,
	O_SIGNALS,
	O_STAGES,
	O_PRETEND,
};

const char *const p2p_op_name[] = { "put", "put_signal", "get", "put_add", NULL };
const char *const p2p_test_name[] = { "lat", "bw", NULL };

static const struct argp_option options[] = {
	{ "op", O_OP, "WORD", 0,
	  "put, put_signal or get (put_signal); with --gpu put_add too: the signal is a word of GPU memory (lat only)",
	  0 },
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
	  "engines in the ranks' processes and in ep-fabric daemons (one a node), alternating: both tests unless --test names one, of 8 bytes (lat) and 64 KiB (bw) unless -s or -a is given",
	  0 },
	{ "rounds", O_ROUNDS, "N", 0, "rounds of --service and --against, medians count (5)", 0 },
	{ "fabric-program", O_PROGRAM, "PATH", 0,
	  "ep-fabric of --service (the one beside ep-bench)", 0 },
	{ "server", O_SERVER, NULL, 0,
	  "of two hosts: wait for `ep-bench p2p HOST` of the other, and take the test from there",
	  0 },
	{ "port", 'p', "PORT", 0, "of two hosts: TCP port to meet at (18515)", 0 },
	{ "nic", O_NIC, "NAME", 0, "kind of NIC: short for --set nic=NAME", 0 },
	{ "ib-dev", 'd', "DEV[,DEV]", 0,
	  "RDMA device, of both ranks or of each: short for --set 0:nic-device=DEV --set 1:nic-device=DEV",
	  0 },
	{ "against", O_AGAINST, "rawverbs", 0,
	  "rate of plain puts (--op put --test bw) and of a bare verbs post loop in the same processes, alternating; 16, 256, 1024, 4096 and 7168 bytes unless -s is given; fabric/bare ratios, medians of --rounds pairs",
	  1 },
	{ "slices", O_SLICES, "N", 0,
	  "of --against: alternations in a pair, their median counts (5)", 1 },
	{ "post_list", 'l', "N", 0, "of --against: writes of one post (16)", 1 },
	{ "tx-depth", 't', "N", 0, "of --against: writes outstanding (64)", 1 },
	{ "gid-index", 'x', "INDEX", 0, "of --against: GID of both", 1 },
	{ "use_old_post_send", O_OLD, NULL, 0, "of --against: ibv_post_send lists in both", 1 },
	{ "engine", O_ENGINE, "caller|thread", 0,
	  "of --against: who runs rank 0's engine: its only thread, as the loop has one (caller), or a second one",
	  1 },
	{ "gate", O_GATE, "PERCENT", 0, "of --against: fail where the ratio is below (no gate)",
	  1 },
	{ "gpu", O_GPU, NULL, 0,
	  "between the memories of GPUs (rank R: GPU R modulo their number), asked for by their kernels; exit 77 without a GPU",
	  2 },
	{ "gpu-backend", O_GPU_BACKEND, "NAME", 0,
	  "of --gpu: auto, cuda, hip, or fake (no GPU; its figures mean nothing) (auto)", 2 },
	{ "gpu-copy", O_GPU_COPY, "engine|kernel", 0,
	  "of --gpu: who copies for the software NIC (engine); with --test bw what bare copies of the same kind reach is printed too",
	  2 },
	{ "signals", O_SIGNALS, "WORD", 0,
	  "of --gpu: host or gpu: where both ranks' signals lie (host)", 2 },
	{ "warps", O_WARPS, "N", 0, "of --gpu: warps that push at once, of bw (64)", 2 },
	{ "stages", O_STAGES, NULL, 0,
	  "of --gpu --test bw: what the sending core, the receiving one and the copier's thread spend, by stage",
	  2 },
	{ "pretend", O_PRETEND, "COPY_NS[,SUBMIT_NS]", 0,
	  "of --gpu-backend fake: nothing is copied (and no byte compared), but a copy takes COPY_NS of the device, and a batch SUBMIT_NS of the copier's thread: what the CPUs' part costs, without a GPU",
	  2 },
	{ 0 },
};

static int setting_make(struct p2p_opts *o, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Writes a setting into o->made and before those of --set. Returns 0, or -EINVAL after a complaint. */
static int setting_make(struct p2p_opts *o, const char *fmt, ...)
{
	const size_t room = sizeof(o->made[0]);
	char *text = o->made[o->made_used];
	va_list ap;
	int n;

	if (o->made_used == sizeof(o->made) / room || o->settings == P2P_SETTINGS_MAX) {
		bench_complain("more than %d settings", P2P_SETTINGS_MAX);
		return -EINVAL;
	}
	va_start(ap, fmt);
	n = vsnprintf(text, room, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= room) {
		bench_complain("%.40s... is too long", text);
		return -EINVAL;
	}
	memmove(&o->setting[o->made_used + 1], &o->setting[o->made_used],
		(o->settings - o->made_used) * sizeof(o->setting[0]));
	o->setting[o->made_used++] = text;
	o->settings++;
	return 0;
}

/* DEV or DEV,DEV; arg is what the ranks get too, and stays as it is. */
static int parse_devices(const char *arg, struct p2p_opts *o)
{
	const char *comma = strchrnul(arg, ',');
	const char *second = *comma ? comma + 1 : arg;
	size_t first_len = (size_t)(comma - arg), second_len = strlen(second);

	if (!*comma)
		second_len = first_len;
	if (!first_len || !second_len || first_len >= RAWVERBS_DEVICE_MAX ||
	    second_len >= RAWVERBS_DEVICE_MAX || strchr(second, ',')) {
		bench_complain("-d is %s, must be DEV or DEV,DEV of at most %d letters each", arg,
			       RAWVERBS_DEVICE_MAX - 1);
		return EINVAL;
	}
	snprintf(o->device[0], sizeof(o->device[0]), "%.*s", (int)first_len, arg);
	snprintf(o->device[1], sizeof(o->device[1]), "%s", second);
	return 0;
}

static int parse_against(int key, char *arg, struct p2p_opts *o)
{
	static const char *const what[] = { "rawverbs", NULL };
	static const char *const engine[] = { "caller", "thread", NULL };
	int i;

	switch (key) {
	case O_AGAINST:
		o->against = true;
		return bench_word("--against", arg, what) < 0 ? EINVAL : 0;
	case 'd':
		return parse_devices(arg, o);
	case 'l':
		return bench_uint("-l", arg, 1, 64, &o->raw.list) ? EINVAL : 0;
	case 't':
		return bench_uint("-t", arg, 4, 8192, &o->raw.depth) ? EINVAL : 0;
	case 'x':
		return bench_uint("-x", arg, 0, 255, &o->raw.gid_index) ? EINVAL : 0;
	case O_SLICES:
		return bench_uint("--slices", arg, 1, 99, &o->slices) ? EINVAL : 0;
	case O_GATE:
		return bench_uint("--gate", arg, 1, 100, &o->gate) ? EINVAL : 0;
	case O_OLD:
		o->raw.lists = true;
		return 0;
	case O_ENGINE:
		i = bench_word("--engine", arg, engine);
		o->threaded = i == 1;
		return i < 0 ? EINVAL : 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* COPY_NS or COPY_NS,SUBMIT_NS. */
static int parse_pretend(const char *arg, struct p2p_opts *o)
{
	bool digits = strspn(arg, "0123456789,") == strlen(arg);
	int end = 0;

	o->pretend = true;
	if (digits && sscanf(arg, "%7" SCNu64 "%n", &o->copy_ns, &end) == 1 && !arg[end])
		return 0;
	if (digits &&
	    sscanf(arg, "%7" SCNu64 ",%7" SCNu64 "%n", &o->copy_ns, &o->submit_ns, &end) == 2 &&
	    !arg[end])
		return 0;
	bench_complain("--pretend is %s, must be COPY_NS or COPY_NS,SUBMIT_NS", arg);
	return EINVAL;
}

static int parse_gpu(int key, char *arg, struct p2p_opts *o)
{
	static const char *const backend[] = { "auto", "cuda", "hip", "fake", NULL };
	static const char *const copy[] = { "engine", "kernel", NULL };
	static const char *const signals[] = { "host", "gpu", NULL };
	int i;

	switch (key) {
	case O_GPU:
		o->gpu = true;
		return 0;
	case O_GPU_BACKEND:
		i = bench_word("--gpu-backend", arg, backend);
		o->gpu_backend = i < 0 ? "" : backend[i];
		return i < 0 ? EINVAL : 0;
	case O_GPU_COPY:
		i = bench_word("--gpu-copy", arg, copy);
		o->gpu_kernel = i == 1;
		return i < 0 ? EINVAL : 0;
	case O_SIGNALS:
		i = bench_word("--signals", arg, signals);
		o->gpu_signals = i == 1;
		return i < 0 ? EINVAL : 0;
	case O_WARPS:
		return bench_uint("--warps", arg, 1, 1024, &o->warps) ? EINVAL : 0;
	case O_STAGES:
		o->stages = true;
		return 0;
	case O_PRETEND:
		return parse_pretend(arg, o);
	default:
		return parse_against(key, arg, o);
	}
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
	case O_NIC:
		o->nic = arg;
		return 0;
	case O_SERVER:
		o->server = true;
		return 0;
	case 'p':
		return bench_uint("-p", arg, 1, 65535, &o->tcp_port) ? EINVAL : 0;
	default:
		return parse_gpu(key, arg, o);
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
		i = bench_word("--test", arg, p2p_test_name);
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
		return bench_setting_add(o->setting, &o->settings, P2P_SETTINGS_MAX / 2, arg)
			       ? EINVAL
			       : 0;
	case ARGP_KEY_ARG:
		if (o->host) {
			bench_complain("%s is one host too many; see ep-bench p2p --help", arg);
			return EINVAL;
		}
		o->host = arg;
		return 0;
	default:
		return parse_flag(key, arg, o);
	}
}

/* What --against implies and excludes. */
static int check_against(struct p2p_opts *o)
{
	if (o->service || o->all || o->both || o->same_node || o->duration_s || o->op == P2P_GET ||
	    (o->test_given && o->test == P2P_LAT)) {
		bench_complain(
			"--against is given, must not be with --service, -a, -b, -D, --same-node, --op get or --test lat");
		return -EINVAL;
	}
	if (o->size > P2P_AGAINST_MAX) {
		bench_complain("-s is %" PRIu64 ", must be at most %u with --against", o->size,
			       P2P_AGAINST_MAX);
		return -EINVAL;
	}
	o->op = P2P_PUT;
	o->test = P2P_BW;
	return rawverbs_check(&o->raw);
}

/* What two hosts exclude: the other end is not ours to start. */
static int check_hosts(const struct p2p_opts *o)
{
	if (o->host && o->server) {
		bench_complain(
			"--server is given, must not be with a HOST: one of the two waits for the other");
		return -EINVAL;
	}
	if (o->service || o->same_node || o->json) {
		bench_complain("%s is given, must not be with %s",
			       o->service     ? "--service"
			       : o->same_node ? "--same-node"
					      : "--json",
			       o->host ? "a HOST" : "--server");
		return -EINVAL;
	}
	return 0;
}

/* What --gpu excludes, and what put_add needs. */
static int check_gpu(const struct p2p_opts *o)
{
	/* The fake GPU's memory is touched by copies alone. */
	if (o->op == P2P_PUT_ADD &&
	    (!o->gpu || o->test == P2P_BW || strcmp(o->gpu_backend, "fake") == 0 ||
	     (o->service && !o->test_given))) {
		bench_complain("--op is put_add, needs --gpu on a GPU, and --test lat");
		return -EINVAL;
	}
	if (o->gpu_signals && !o->gpu) {
		bench_complain("--signals gpu needs --gpu");
		return -EINVAL;
	}
	if (o->stages && (!o->gpu || o->test != P2P_BW)) {
		bench_complain("--stages needs --gpu --test bw");
		return -EINVAL;
	}
	if (o->pretend && (!o->gpu || strcmp(o->gpu_backend, "fake") != 0)) {
		bench_complain("--pretend needs --gpu --gpu-backend fake");
		return -EINVAL;
	}
	if (o->against || o->duration_s || o->same_node) {
		bench_complain("--gpu is given, must not be with --against, -D or --same-node");
		return -EINVAL;
	}
	return 0;
}

/* The CPU of that rank's engine with --gpu, on machines with P2P_GPU_CPUS or more; -1: any. */
static int gpu_cpu(uint32_t rank)
{
	return bench_cpus() < P2P_GPU_CPUS ? -1 : bench_cpu_number(rank * (bench_cpus() / 2));
}

/*
 * The settings of --gpu: a core that kernels need not wake, and of a stream as much under way as copies in batches of hundreds
 * need.
 */
static int gpu_settings(struct p2p_opts *o)
{
	static const char *const deep[] = { "lane-depth=4096",
					    "window=8192",
					    "lane-receives=8192",
					    "rank-inflight-bytes=256MiB",
					    "nic-inflight-bytes=256MiB",
					    "rank-inflight-messages=16384",
					    "nic-inflight-messages=16384" };
	int rc = setting_make(o, "gpu-backend=%s", o->gpu_backend);

	if (!rc)
		rc = setting_make(o, "core-idle=pause");
	if (!rc)
		rc = setting_make(o, "progress=thread"); /* whatever the environment says */
	if (!rc)
		rc = setting_make(o, "emu-gpu-copy=%s", o->gpu_kernel ? "kernel" : "engine");
	for (uint32_t i = 0; i < 2 && !rc && gpu_cpu(i) >= 0; i++)
		rc = setting_make(o, "%u:cpu=%d", i, gpu_cpu(i));
	for (unsigned i = 0; i < sizeof(deep) / sizeof(deep[0]) && !rc; i++)
		rc = setting_make(o, "%s", deep[i]);
	return rc;
}

/*
 * --service: each engine on a separate CPU, in both places. Two engines begin on one CPU when the kernel likes, and are distinguished after 5 to
 * 50 ms in the ranks and later in daemons: what would be compared is that (bench/README.md).
 */
static int service_settings(struct p2p_opts *o)
{
	int rc = 0;

	for (uint32_t i = 0; i < 2 && !rc && bench_cpus() > 1 && !o->same_node; i++)
		rc = setting_make(o, "%u:cpu=%d", i, bench_cpu_number(i));
	return rc;
}

/* The settings behind --nic, -d and the letters of --against. Those of --set come after them and win. */
int p2p_settings(struct p2p_opts *o)
{
	const struct rawverbs_opts *raw = &o->raw;
	int rc = 0;

	if (o->nic)
		rc = setting_make(o, "nic=%s", o->nic);
	if (!rc && o->way[0])
		rc = setting_make(o, "rendezvous=%s", o->way);
	for (int i = 0; i < 2 && *o->device[i] && !rc; i++)
		if (!i || !o->same_node)
			rc = setting_make(o, "%d:nic-device==%s", i, o->device[i]);
	if (!rc && o->gpu)
		rc = gpu_settings(o);
	if (!rc && o->service && !o->gpu)
		rc = service_settings(o);
	if (!o->against)
		return rc;
	/* A second thread polls as long as the loop does, or the sleeps of the slow ones are what is measured. */
	if (!rc)
		rc = setting_make(o, o->threaded ? "0:core-idle-after=5ms" : "0:progress=caller");
	/* As much in flight and as long lists as the loop has. The lane keeps entries for control writes beside. */
	if (!rc)
		rc = setting_make(o, "core-batch=%" PRIu64, raw->list);
	if (!rc)
		rc = setting_make(o, "verbs-signal-interval=%" PRIu64, raw->list);
	if (!rc)
		rc = setting_make(o, "lane-depth=%" PRIu64, 2 * raw->depth);
	if (!rc)
		rc = setting_make(o, "nic-inflight-messages=%" PRIu64, raw->depth);
	if (!rc && raw->lists)
		rc = setting_make(o, "verbs-post=lists");
	if (!rc && raw->gid_index != UINT64_MAX)
		rc = setting_make(o, "gid-index=%" PRIu64, raw->gid_index);
	return rc;
}

/* Settings with which this benchmark would wait for what never comes. */
static int check_settings(const struct p2p_opts *o)
{
	if (o->gpu &&
	    bench_settings_refuse(
		    o->setting, "progress=caller",
		    "must be progress=thread with --gpu: while a kernel pushes, no caller runs the engine"))
		return -EINVAL;
	if (o->nic && !strcmp(o->nic, "null")) {
		bench_complain("--nic is null, must be another: null moves nothing");
		return -EINVAL;
	}
	return bench_settings_refuse(o->setting, "nic=null", "must be another: null moves nothing");
}

int p2p_opts_parse(int argc, char **argv, struct p2p_opts *o)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "[HOST]",
		.doc = "Latency and bandwidth between two rank processes: both started here, or with --server on one host and "
		       "HOST on the other; beyond loopback both then need EPF_SECRET or EPF_SECRET_FILE.",
	};

	memset(o, 0, sizeof(*o));
	o->op = P2P_PUT_SIGNAL;
	o->size = 8;
	o->timeout_s = 300;
	o->rounds = 5;
	o->slices = 5;
	o->tcp_port = BENCH_MEET_PORT;
	o->gpu_backend = "auto";
	o->warps = 64;
	rawverbs_defaults(&o->raw);
	o->raw.list = 16;
	o->raw.depth = 64;
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
	if (o->against && check_against(o))
		return BENCH_USAGE;
	if ((o->gpu || o->gpu_signals || o->stages || o->pretend || o->op == P2P_PUT_ADD) &&
	    check_gpu(o))
		return BENCH_USAGE;
	if ((o->host || o->server) && check_hosts(o))
		return BENCH_USAGE;
	if (check_settings(o))
		return BENCH_USAGE;
	return !o->server && !o->host && p2p_settings(o) ? BENCH_USAGE : 0;
}

unsigned p2p_sizes(const struct p2p_opts *o, uint64_t sizes[32])
{
	static const uint64_t against[] = { 16, 256, 1024, 4096, 7168 };
	unsigned n = 0;

	if (o->against && !o->size_given) {
		memcpy(sizes, against, sizeof(against));
		return sizeof(against) / sizeof(against[0]);
	}
	if (!o->all)
		sizes[n++] = o->size;
	for (uint64_t s = 2; o->all && s <= P2P_SIZE_MAX; s *= 2)
		sizes[n++] = s;
	return n;
}
