/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench empty: what the fabric costs above verbs. The whole path of a put (ring, check, stage, post, poll, retire) and a bare
 * post loop, each over a libibverbs whose post and poll do nothing (empty/), alternating in one run: nanoseconds a write, and what the
 * fabric adds. The program starts itself again with that library in the search path.
 */
#include "bench/common/bench.h"
#include "bench/common/compare.h"
#include "bench/common/json.h"
#include "bench/common/pair.h"
#include "bench/verbs/rawverbs.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/bench_core.h"
#include "queues/epf_ring.h"
#include "queues/epf_stats.h"

#include <argp.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK       "EP_BENCH_EMPTY"
#define DEVICE     "empty0"
#define REGION     (UINT64_C(1) << 20)
#define RING_SLOTS 4096u

enum { O_RUNS = 256, O_MS, O_GATE, O_PROVIDER, O_JSON };

enum {
	BARE,
	ONE,
	TWO,
	FIGURES
}; /* ns a write: the loop; the fabric, pushed by the engine's thread, or from another CPU */

struct opts {
	uint64_t size, list, depth, runs, ms, gate;
	const char *provider;
	bool json;
};

struct api {
	const char *name;
	int lists;
	double ns[FIGURES][BENCH_ROUNDS_MAX];
	double added[FIGURES][BENCH_ROUNDS_MAX];
	double cycles[5]; /* a command, of the last run of ONE */
};

static const struct argp_option options[] = {
	{ "size", 's', "BYTES", 0, "bytes of a write (16)", 0 },
	{ "post_list", 'l', "N", 0, "writes of one post (16)", 0 },
	{ "tx-depth", 't', "N", 0, "writes outstanding (64)", 0 },
	{ "runs", O_RUNS, "N", 0, "runs, medians count (5)", 0 },
	{ "duration-ms", O_MS, "MS", 0, "length of a run of each (200)", 0 },
	{ "gate", O_GATE, "NS", 0, "fail where the fabric adds more, pushed by the engine's thread",
	  0 },
	{ "provider", O_PROVIDER, "DIR", 0,
	  "where the empty libibverbs.so.1 is (empty beside ep-bench in the build directory)", 0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object, see bench/README.md", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct opts *o = state->input;

	switch (key) {
	case 's':
		return bench_uint("-s", arg, 16, 65536, &o->size) ? EINVAL : 0;
	case 'l':
		return bench_uint("-l", arg, 1, 64, &o->list) ? EINVAL : 0;
	case 't':
		return bench_uint("-t", arg, 16, 1024, &o->depth) ? EINVAL : 0;
	case O_RUNS:
		return bench_uint("--runs", arg, 1, BENCH_ROUNDS_MAX, &o->runs) ? EINVAL : 0;
	case O_MS:
		return bench_uint("--duration-ms", arg, 10, 60000, &o->ms) ? EINVAL : 0;
	case O_GATE:
		return bench_uint("--gate", arg, 1, 1000000, &o->gate) ? EINVAL : 0;
	case O_PROVIDER:
		o->provider = arg;
		return 0;
	case O_JSON:
		o->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Starts this program again, where libibverbs.so.1 is the empty one. Returns only when that cannot be. */
static int start_again(const struct opts *o, char **argv)
{
	char self[PATH_MAX], dir[PATH_MAX + 16], file[PATH_MAX + 40], path[2 * PATH_MAX];
	const char *old = getenv("LD_LIBRARY_PATH");
	char **words;
	int n = 0;

	while (argv[n])
		n++;
	words = calloc((size_t)n + 2, sizeof(*words));
	if (!words || !realpath("/proc/self/exe", self)) {
		free(words);
		bench_complain("this program's own path is not known");
		return BENCH_WRONG;
	}
	snprintf(file, sizeof(file), "%s", self);
	snprintf(dir, sizeof(dir), "%s/empty", dirname(file));
	snprintf(file, sizeof(file), "%.*s/libibverbs.so.1", PATH_MAX,
		 o->provider ? o->provider : dir);
	if (access(file, R_OK)) {
		bench_complain("%s: %s: build it (ninja), or say where it is by --provider", file,
			       strerror(errno));
		free(words);
		return BENCH_WRONG;
	}
	snprintf(path, sizeof(path), "%s%s%s", o->provider ? o->provider : dir,
		 old && *old ? ":" : "", old ? old : "");
	setenv("LD_LIBRARY_PATH", path, 1);
	setenv(MARK, "1", 1);
	words[0] = self;
	memcpy(words + 1, argv, (size_t)n * sizeof(*argv));
	execv(self, words);
	bench_complain("%s: %s", self, strerror(errno));
	free(words);
	return BENCH_WRONG;
}

static int bare(const struct opts *o, int lists, double *ns)
{
	static uint8_t memory[65536];
	struct rawverbs_opts raw;
	struct rawverbs_address self;
	struct rawverbs_result res;
	struct rawverbs *r = NULL;
	int rc;

	rawverbs_defaults(&raw);
	snprintf(raw.device, sizeof(raw.device), "%s", DEVICE);
	raw.list = o->list;
	raw.depth = o->depth;
	raw.lists = lists != 0;
	rc = rawverbs_open(&raw, memory, sizeof(memory), &r);
	if (rc)
		return rc;
	rawverbs_address(r, &self);
	rc = rawverbs_connect(r, &self);
	if (!rc && !(rc = rawverbs_write(r, 0, 0, o->size, 20000, 0, &res)))
		rc = rawverbs_write(r, 0, 0, o->size, 0, (double)o->ms / 1e3, &res);
	if (rc)
		bench_complain("%s", rawverbs_error(r));
	else
		*ns = res.cpu_seconds / (double)res.writes * 1e9;
	rawverbs_close(r);
	return rc;
}

/* The put of every write: the same one, as in the loop. */
static struct epf_cmd put_of(const struct opts *o)
{
	return epf_cmd_transfer(EPF_OP_PUT, 0, 1, 0, 1, 0, 0, 0, 0, (uint32_t)o->size);
}

static uint64_t stat(struct epf_bench_core *bc, uint32_t s)
{
	return epf_bench_core_counter(bc, s);
}

static const uint32_t stage_stat[5] = { EPF_STAT_CORE_DEQUEUE_TSC, EPF_STAT_CORE_CHECK_TSC,
					EPF_STAT_CORE_STAGE_TSC, EPF_STAT_CORE_FLUSH_TSC,
					EPF_STAT_CORE_REAP_TSC };
static const char *const stage_name[5] = { "take", "check", "stage", "post", "reap" };

struct fabric {
	const struct opts *o;
	struct epf_bench_core *bc;
	struct epf_core *core;
	struct epf_ring_producer ring;
	uint64_t pushed;
};

/* Pushes a list and steps, so often. */
static void push_and_step(struct fabric *f, unsigned rounds)
{
	struct epf_cmd put = put_of(f->o);

	for (unsigned i = 0; i < rounds; i++) {
		for (uint64_t k = 0; k < f->o->list; k++)
			f->pushed += (uint64_t)epf_ring_push(&f->ring, put);
		(void)epf_core_step(f->core);
	}
}

static void one_thread(struct fabric *f, struct api *api, double *ns)
{
	uint64_t start, cpu, now, first, n, before[5];

	push_and_step(f, 2000);
	for (int i = 0; i < 5; i++)
		before[i] = stat(f->bc, stage_stat[i]);
	first = stat(f->bc, EPF_STAT_CORE_CMDS_DEQUEUED);
	start = epf_now_ns();
	cpu = bench_thread_ns();
	do {
		push_and_step(f, 1000);
		now = epf_now_ns();
	} while (now - start < f->o->ms * 1000000u);
	n = stat(f->bc, EPF_STAT_CORE_CMDS_DEQUEUED) - first;
	*ns = (double)(bench_thread_ns() - cpu) / (double)n;
	for (int i = 0; i < 5; i++)
		api->cycles[i] = (double)(stat(f->bc, stage_stat[i]) - before[i]) / (double)n;
}

static void produce(struct bench_pair *pair, void *arg)
{
	struct fabric *f = arg;
	struct epf_cmd put = put_of(f->o);

	while (!bench_pair_stopped(pair)) {
		if (epf_ring_push(&f->ring, put))
			f->pushed++;
		else
			bench_pair_wait(pair);
	}
}

static int two_threads(struct fabric *f, double *ns)
{
	struct bench_pair pair;
	uint64_t start, now, first;
	int rc = bench_pair_start(&pair, produce, f);

	if (rc) {
		bench_complain("a thread cannot be started: %s", strerror(-rc));
		return rc;
	}
	for (int i = 0; i < 20000; i++)
		(void)epf_core_step(f->core);
	first = stat(f->bc, EPF_STAT_CORE_CMDS_DEQUEUED);
	start = epf_now_ns();
	do {
		for (int i = 0; i < 1000; i++)
			if (!epf_core_step(f->core) && pair.crowded)
				bench_pair_wait(&pair);
		now = epf_now_ns();
		/* On a busy machine the producer may not have run yet. */
	} while (now - start < f->o->ms * 1000000u ||
		 stat(f->bc, EPF_STAT_CORE_CMDS_DEQUEUED) == first);
	*ns = (double)(now - start) / (double)(stat(f->bc, EPF_STAT_CORE_CMDS_DEQUEUED) - first);
	bench_pair_stop(&pair);
	return 0;
}

/* What was pushed is posted and retired, no more and no less. */
static int settle(struct fabric *f)
{
	const struct epf_ring_shm *shm = epf_bench_core_ring(f->bc, 0);
	uint64_t end = epf_now_ns() + 5000000000ull;

	while (shm->done.retired < f->pushed && epf_now_ns() < end)
		(void)epf_core_step(f->core);
	if (shm->done.retired == f->pushed && shm->done.failed == 0 &&
	    stat(f->bc, EPF_STAT_CORE_WRS_POSTED) >= f->pushed)
		return 0;
	bench_complain(
		"%llu puts were pushed, %llu retired, %llu failed, %llu work requests posted",
		(unsigned long long)f->pushed, (unsigned long long)shm->done.retired,
		(unsigned long long)shm->done.failed,
		(unsigned long long)stat(f->bc, EPF_STAT_CORE_WRS_POSTED));
	return -EIO;
}

static int fabric(const struct opts *o, struct api *api, int figure, double *ns)
{
	struct epf_bench_core_options co = { .nic = "verbs",
					     .peers = 2,
					     .regions = 1,
					     .region_bytes = REGION,
					     .signals = 1,
					     .ring_slots = RING_SLOTS,
					     .batch = (uint32_t)o->list,
					     .lane_depth = (uint32_t)o->depth,
					     .lists = api->lists };
	struct fabric f = { .o = o };
	int rc = epf_bench_core_create(&co, &f.bc);

	if (rc) {
		bench_complain("%s", epf_last_error());
		return rc;
	}
	f.core = epf_bench_core_of(f.bc);
	epf_ring_producer_init(&f.ring, epf_bench_core_ring(f.bc, 0), 0);
	if (figure == ONE)
		one_thread(&f, api, ns);
	else
		rc = two_threads(&f, ns);
	if (!rc)
		rc = settle(&f);
	epf_bench_core_destroy(f.bc);
	return rc;
}

static int measure(const struct opts *o, struct api *api, uint64_t run)
{
	int rc = bare(o, api->lists, &api->ns[BARE][run]);

	for (int f = ONE; f < FIGURES && !rc; f++) {
		rc = fabric(o, api, f, &api->ns[f][run]);
		api->added[f][run] = api->ns[f][run] - api->ns[BARE][run];
	}
	return rc;
}

static json_t *print_api(const struct opts *o, struct api *api, int *above)
{
	double ns[FIGURES], added[FIGURES];

	for (int f = 0; f < FIGURES; f++) {
		ns[f] = bench_median(api->ns[f], o->runs);
		added[f] = bench_median(api->added[f], o->runs);
	}
	if (o->gate && added[ONE] > (double)o->gate) {
		bench_complain("%s: the fabric adds %.1f ns a write, more than --gate %llu",
			       api->name, added[ONE], (unsigned long long)o->gate);
		(*above)++;
	}
	if (o->json)
		return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "post", api->name, "bare_ns",
				 ns[BARE], "fabric_ns", ns[ONE], "added_ns", added[ONE],
				 "fabric_two_cpus_ns", ns[TWO], "added_two_cpus_ns", added[TWO]);
	printf(" %-15s %8.2f %17.2f %9.2f %17.2f %9.2f\n", api->name, ns[BARE], ns[ONE], added[ONE],
	       ns[TWO], added[TWO]);
	printf("#   cycles a write, one thread:");
	for (int i = 0; i < 5; i++)
		printf(" %s %.1f", stage_name[i], api->cycles[i]);
	printf("\n");
	return NULL;
}

static int print(const struct opts *o, struct api *api, unsigned n)
{
	json_t *list = o->json ? json_array() : NULL;
	int above = 0;

	if (!o->json) {
		printf("# ep-bench empty: puts of %llu bytes over an RDMA provider whose post and poll do nothing\n",
		       (unsigned long long)o->size);
		printf("# lists of %llu, %llu outstanding, a completion a list; medians of %llu runs of %llu ms on %u CPUs; nanoseconds of CPU time a write, of two CPUs: of time\n",
		       (unsigned long long)o->list, (unsigned long long)o->depth,
		       (unsigned long long)o->runs, (unsigned long long)o->ms, bench_cpus());
		printf("#%-15s %8s %17s %9s %17s %9s\n", "post", "bare", "fabric, 1 thread",
		       "added", "fabric, 2 CPUs", "added");
	}
	for (unsigned i = 0; i < n; i++) {
		json_t *row = print_api(o, &api[i], &above);

		if (list)
			json_array_append_new(list, row);
	}
	if (list) {
		json_t *j =
			json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:i}", "bench", "empty",
				  "bytes", (json_int_t)o->size, "post_list", (json_int_t)o->list,
				  "tx_depth", (json_int_t)o->depth, "runs", (json_int_t)o->runs,
				  "duration_ms", (json_int_t)o->ms, "posts", list, "wrong", 0);

		bench_print_json(j);
	} else {
		printf("# wrong: 0\n");
	}
	return above;
}

int bench_empty(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Nanoseconds that the fabric adds to a write of a bare post loop, on a provider that does nothing.",
	};
	struct opts o = { .size = 16, .list = 16, .depth = 64, .runs = 5, .ms = 200 };
	static struct api api[2] = { { .name = "ibv_wr_*" },
				     { .name = "ibv_post_send", .lists = 1 } };
	int rc = 0;

	if (argp_parse(&argp, argc, argv, 0, NULL, &o))
		return BENCH_USAGE;
	if (o.list > o.depth) {
		bench_complain("-l is %llu, must not be above -t, which is %llu",
			       (unsigned long long)o.list, (unsigned long long)o.depth);
		return BENCH_USAGE;
	}
	if (!getenv(MARK))
		return start_again(&o, argv);
	bench_pin(0);
	for (uint64_t run = 0; run < o.runs && !rc; run++)
		for (int a = 0; a < 2 && !rc; a++)
			rc = measure(&o, &api[a], run);
	if (rc)
		return BENCH_WRONG;
	return print(&o, api, 2) ? BENCH_WRONG : BENCH_OK;
}
