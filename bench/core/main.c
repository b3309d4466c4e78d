/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench core: how many commands one engine core takes, checks, stages, reaps and publishes a
 * second, with a NIC that completes everything at once and a producer on the other CPU. Random
 * valid commands over 64 peers and 8 regions; 1 in 1,000 is bad and must be refused and counted.
 * Beside it, in the same run, a bare rte_ring. The engine itself is fabric/'s; this file only
 * steps it.
 */
#include "bench/common/bench.h"
#include "bench/common/compare.h"
#include "bench/common/json.h"
#include "bench/common/pair.h"
#include "bench/common/rte.h"
#include "bench/core/cmds.h"
#include "bench/core/recorder.h"
#include "bench/core/service.h"
#include "bench/core/top.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/bench_core.h"
#include "queues/epf_ring.h"
#include "queues/epf_stats.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUNS_MAX   BENCH_ROUNDS_MAX
#define RTE_BURST  32u
#define RING_SLOTS 4096u
#define LANE_DEPTH 64u /* entries of the lane to each peer */
#define RINGS_MAX  1024u
#define PUSH_BURST 32u /* into one of several rings, then the next */

enum {
	O_NIC = 256,
	O_RUNS,
	O_MS,
	O_BATCH,
	O_RINGS,
	O_JSON,
	O_SERVICE,
	O_PROGRAM,
	O_RECORDER,
	O_TOP,
	O_TOP_PROGRAM
};

struct opts {
	const char *nic;
	uint64_t runs;
	uint64_t ms;
	uint64_t batch;
	uint64_t rings;
	bool json;
	bool service;
	bool recorder;
	bool top;
	const char *top_program;
	const char *fabric_program;
};

static const struct argp_option options[] = {
	{ "nic", O_NIC, "NAME", 0, "kind of NIC; only null measures the core alone (null)", 0 },
	{ "runs", O_RUNS, "N", 0, "runs, the median counts (5)", 0 },
	{ "duration-ms", O_MS, "MS", 0, "length of a run (1000)", 0 },
	{ "batch", O_BATCH, "N", 0, "commands the core takes at most in a step (128)", 0 },
	{ "rings", O_RINGS, "N", 0, "rings, filled round-robin, as many warps of a GPU would (1)",
	  0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object, see bench/README.md", 0 },
	{ "recorder", O_RECORDER, NULL, 0,
	  "instead: the same core with and without its flight recorder, in alternating slices", 0 },
	{ "beside-top", O_TOP, NULL, 0,
	  "instead: the same core beside an ep-top that reads it ten times a second, and beside none, in alternating slices of 250 ms: CPU time per command",
	  0 },
	{ "top-program", O_TOP_PROGRAM, "PATH", 0,
	  "ep-top of --beside-top (the one beside ep-bench)", 0 },
	{ "service", O_SERVICE, NULL, 0,
	  "instead: one rank whose thread pushes puts through libepf, engine in this process and in an ep-fabric daemon, alternating: commands retired a second, and time from a push until it is seen retired",
	  0 },
	{ "fabric-program", O_PROGRAM, "PATH", 0,
	  "ep-fabric of --service (the one beside ep-bench)", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	static const char *const nics[] = { "null", NULL };
	struct opts *o = state->input;

	switch (key) {
	case O_NIC:
		return bench_word("--nic", arg, nics) < 0 ? EINVAL : 0;
	case O_RUNS:
		return bench_uint("--runs", arg, 1, RUNS_MAX, &o->runs) ? EINVAL : 0;
	case O_MS:
		return bench_uint("--duration-ms", arg, 10, 60000, &o->ms) ? EINVAL : 0;
	case O_BATCH:
		return bench_uint("--batch", arg, 1, 256, &o->batch) ? EINVAL : 0;
	case O_RINGS:
		return bench_uint("--rings", arg, 1, RINGS_MAX, &o->rings) ? EINVAL : 0;
	case O_JSON:
		o->json = true;
		return 0;
	case O_RECORDER:
		o->recorder = true;
		return 0;
	case O_TOP:
		o->top = true;
		return 0;
	case O_TOP_PROGRAM:
		o->top_program = arg;
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

struct producer {
	struct epf_ring_producer *rings;
	uint32_t n_rings;
	const struct epf_cmd *table;
	const struct core_tally *sums; /* [CORE_TABLE + 1] sums of the table's first commands */
	struct core_tally sent;
};

struct core_run {
	double per_second;
	double cycles[7]; /* per command, in the order of stage_name */
	double busy_cycles;
	uint64_t commands;
	uint64_t doorbells;
	uint64_t refused;
	int wrong;
	struct core_paired_run paired; /* --recorder, --beside-top: instead of the above */
};

static const struct {
	const char *name;
	uint32_t stat;
} stages[7] = {
	{ "take", EPF_STAT_CORE_DEQUEUE_TSC },    { "check", EPF_STAT_CORE_CHECK_TSC },
	{ "stage", EPF_STAT_CORE_STAGE_TSC },     { "flush", EPF_STAT_CORE_FLUSH_TSC },
	{ "reap", EPF_STAT_CORE_REAP_TSC },       { "arrive", EPF_STAT_CORE_ARRIVE_TSC },
	{ "publish", EPF_STAT_CORE_PUBLISH_TSC },
};

/* The table was pushed so many times, and its first i commands once more. */
static void note_sent(struct producer *p, uint64_t laps, uint64_t i)
{
	const struct core_tally *all = &p->sums[CORE_TABLE];

	p->sent.commands = laps * all->commands + p->sums[i].commands;
	p->sent.bad = laps * all->bad + p->sums[i].bad;
	p->sent.bytes = laps * all->bytes + p->sums[i].bytes;
	p->sent.gets = laps * all->gets + p->sums[i].gets;
}

static void produce(struct bench_pair *pair, void *arg)
{
	struct producer *p = arg;
	uint64_t laps = 0;
	uint32_t i = 0, ring = 0, burst = 0;

	while (!bench_pair_stopped(pair)) {
		int pushed = epf_ring_push(&p->rings[ring], p->table[i]);

		if (!pushed || ++burst == PUSH_BURST) {
			ring = ring + 1 == p->n_rings ? 0 : ring + 1;
			burst = 0;
		}
		if (!pushed) {
			if (!ring)
				bench_pair_wait(pair);
			continue;
		}
		if (++i == CORE_TABLE) {
			i = 0;
			laps++;
		}
	}
	note_sent(p, laps, i);
}

static uint64_t stat(struct epf_bench_core *bc, uint32_t s)
{
	return epf_bench_core_counter(bc, s);
}

/* Steps the core for so long; then the counters' rates. */
static void step_for(struct epf_bench_core *bc, struct bench_pair *pair, double seconds,
		     struct core_run *out)
{
	struct epf_core *core = epf_bench_core_of(bc);
	uint64_t first[7];
	uint64_t commands;
	uint64_t busy;
	uint64_t start;
	uint64_t now;

	for (int i = 0; i < 20000; i++) /* caches, branch predictors, the producer's start */
		(void)epf_core_step(core);
	for (int s = 0; s < 7; s++)
		first[s] = stat(bc, stages[s].stat);
	busy = stat(bc, EPF_STAT_CORE_BUSY_TSC);
	commands = stat(bc, EPF_STAT_CORE_CMDS_DEQUEUED);
	start = epf_now_ns();
	do {
		for (int i = 0; i < 2000; i++)
			if (!epf_core_step(core) && pair->crowded)
				bench_pair_wait(pair);
		now = epf_now_ns();
		/* On a busy machine the producer may not have run yet: there is no ratio of nothing. */
	} while ((double)(now - start) < seconds * 1e9 ||
		 stat(bc, EPF_STAT_CORE_CMDS_DEQUEUED) == commands);
	commands = stat(bc, EPF_STAT_CORE_CMDS_DEQUEUED) - commands;
	out->per_second = (double)commands / ((double)(now - start) / 1e9);
	for (int s = 0; s < 7; s++)
		out->cycles[s] = (double)(stat(bc, stages[s].stat) - first[s]) /
				 (double)(commands ? commands : 1);
	out->busy_cycles = (double)(stat(bc, EPF_STAT_CORE_BUSY_TSC) - busy) /
			   (double)(commands ? commands : 1);
}

static uint64_t done(const struct producer *p, uint64_t *failed)
{
	uint64_t retired = 0;

	*failed = 0;
	for (uint32_t i = 0; i < p->n_rings; i++) {
		retired += p->rings[i].shm->done.retired;
		*failed += p->rings[i].shm->done.failed;
	}
	return retired;
}

/* After the producer stopped: everything pushed is retired, and the sums agree. */
static void settle(struct epf_bench_core *bc, const struct producer *p, struct core_run *out)
{
	struct epf_core *core = epf_bench_core_of(bc);
	uint64_t end = epf_now_ns() + 5000000000ull;
	uint64_t bytes, failed;

	while (done(p, &failed) < p->sent.commands && epf_now_ns() < end)
		(void)epf_core_step(core);
	(void)epf_core_step(core);
	bytes = stat(bc, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE) +
		stat(bc, EPF_STAT_CORE_PUT_BYTES_SAME_NODE);
	out->commands = stat(bc, EPF_STAT_CORE_CMDS_DEQUEUED);
	out->doorbells = stat(bc, EPF_STAT_CORE_DOORBELLS);
	out->refused = stat(bc, EPF_STAT_CORE_CMDS_REFUSED);
	out->wrong = done(p, &failed) != p->sent.commands;
	out->wrong += out->commands != p->sent.commands;
	out->wrong += out->refused != p->sent.bad || failed != p->sent.bad;
	out->wrong += bytes != p->sent.bytes;
	out->wrong += stat(bc, EPF_STAT_CORE_GET_BYTES) != p->sent.gets;
}

/* One thread does all: pushes and steps, alternately with and without the recorder or ep-top. Returns 0 or -errno after a complaint. */
static int run_in_turn(const struct opts *o, struct epf_bench_core *bc, const char *dir,
		       struct producer *p, struct core_run *out)
{
	uint64_t n = 0;
	int err = 0;

	if (o->top)
		err = bench_core_top_step(bc, p->table, CORE_TABLE, dir, o->top_program,
					  (double)o->ms / 1e3, &out->paired, &n);
	else
		n = bench_core_recorder_step(bc, p->table, CORE_TABLE, (double)o->ms / 1e3,
					     &out->paired);
	note_sent(p, n / CORE_TABLE, n % CORE_TABLE);
	settle(bc, p, out);
	return err;
}

static int run_once(const struct opts *o, const struct epf_cmd *table,
		    const struct core_tally *sums, struct core_run *out)
{
	char dir[BENCH_CORE_TOP_DIR] = "";
	struct epf_bench_core_options co = { .nic = "null",
					     .peers = CORE_PEERS,
					     .regions = CORE_REGIONS,
					     .region_bytes = CORE_REGION_BYTES,
					     .signals = CORE_SIGNALS,
					     .ring_slots = RING_SLOTS,
					     .rings = (uint32_t)o->rings,
					     .lane_depth = LANE_DEPTH,
					     .batch = (uint32_t)o->batch,
					     .stats_dir = o->top ? dir : NULL };
	struct producer p = { .table = table, .sums = sums, .n_rings = co.rings };
	struct epf_bench_core *bc = NULL;
	struct bench_pair pair;
	int err = o->top ? bench_private_dir(dir, sizeof(dir)) : 0;

	p.rings = calloc(co.rings, sizeof(*p.rings));
	if (!p.rings || err) {
		free(p.rings);
		return err ? err : -ENOMEM;
	}
	err = epf_bench_core_create(&co, &bc);
	if (err) {
		bench_complain("%s", epf_last_error());
		goto out;
	}
	for (uint32_t i = 0; i < co.rings; i++)
		epf_ring_producer_init(&p.rings[i], epf_bench_core_ring(bc, i), 0);
	if (o->recorder || o->top) {
		err = run_in_turn(o, bc, dir, &p, out);
		goto out;
	}
	err = bench_pair_start(&pair, produce, &p);
	if (!err) {
		step_for(bc, &pair, (double)o->ms / 1e3, out);
		bench_pair_stop(&pair);
		settle(bc, &p, out);
	} else {
		bench_complain("a thread cannot be started: %s", strerror(-err));
	}
out:
	epf_bench_core_destroy(bc);
	if (o->top)
		(void)rmdir(dir);
	free(p.rings);
	return err;
}

static int by_rate(const void *a, const void *b)
{
	double x = ((const struct core_run *)a)->per_second;
	double y = ((const struct core_run *)b)->per_second;

	return (x > y) - (x < y);
}

static void print_table(const struct opts *o, const struct core_run *r, double rte, int wrong)
{
	printf("# ep-bench core: null NIC, %u peers, %u regions, 1 of %u commands bad, batch %llu, %llu rings of %u slots\n",
	       CORE_PEERS, CORE_REGIONS, CORE_BAD_EVERY, (unsigned long long)o->batch,
	       (unsigned long long)o->rings, RING_SLOTS);
	printf("# median of %llu runs of %llu ms on %u CPUs, time-stamp counter %.3f GHz\n",
	       (unsigned long long)o->runs, (unsigned long long)o->ms, bench_cpus(),
	       (double)epf_tsc_hz() / 1e9);
	printf("engine_commands_per_second               %.0f\n", r->per_second);
	printf("baseline_rte_ring_elements_per_second    %.0f\n", rte);
	printf("ratio                                    %.4f (1/%.1f)\n", r->per_second / rte,
	       rte / r->per_second);
	for (int s = 0; s < 7; s++)
		printf("cycles_per_command_%-22s%.2f\n", stages[s].name, r->cycles[s]);
	printf("cycles_per_command_%-22s%.2f\n", "busy", r->busy_cycles);
	printf("# commands %llu, refused %llu, doorbells %llu in the median run\n",
	       (unsigned long long)r->commands, (unsigned long long)r->refused,
	       (unsigned long long)r->doorbells);
	printf("# wrong: %d\n", wrong);
}

static void print_json(const struct opts *o, const struct core_run *r, double rte, int wrong)
{
	json_t *cycles = json_object();
	json_t *j;

	for (int s = 0; s < 7; s++)
		json_object_set_new(cycles, stages[s].name, json_real(r->cycles[s]));
	json_object_set_new(cycles, "busy", json_real(r->busy_cycles));
	j = json_pack(
		"{s:s, s:s, s:f, s:f, s:f, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}",
		"bench", "core", "nic", "null", "engine_commands_per_second", r->per_second,
		"baseline_rte_ring_elements_per_second", rte, "ratio", r->per_second / rte,
		"cycles_per_command", cycles, "tsc_hz", (json_int_t)epf_tsc_hz(), "commands",
		(json_int_t)r->commands, "commands_refused", (json_int_t)r->refused, "doorbells",
		(json_int_t)r->doorbells, "batch", (json_int_t)o->batch, "rings",
		(json_int_t)o->rings, "peers", (json_int_t)CORE_PEERS, "runs", (json_int_t)o->runs,
		"duration_ms", (json_int_t)o->ms, "cpus", (json_int_t)bench_cpus(), "wrong", wrong);
	bench_print_json(j);
}

static int measure(const struct opts *o, struct core_run *run, double *rte, int *wrong)
{
	struct epf_cmd *table = NULL;
	struct core_tally *sums = NULL;
	struct bench_transfer t;
	int err = core_table_make(&table, &sums);

	for (uint64_t i = 0; i < o->runs && !err; i++) {
		err = run_once(o, table, sums, &run[i]);
		/* The yardstick alternates with the engine, so that both see the same machine. */
		if (!err && (o->recorder || o->top)) {
			*wrong += run[i].wrong;
			continue;
		}
		if (!err)
			err = bench_rte_transfer(RING_SLOTS, RTE_BURST, (double)o->ms / 1e3, &t);
		rte[i] = t.per_second;
		*wrong += run[i].wrong + !t.same;
	}
	free(table);
	free(sums);
	return err;
}

int bench_core(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Commands a second of one engine core on a NIC that completes at once.",
	};
	struct opts o = { .nic = "null", .runs = 5, .ms = 1000, .batch = 128, .rings = 1 };
	struct core_run run[RUNS_MAX] = { 0 };
	double rte[RUNS_MAX] = { 0 };
	int wrong = 0;

	if (argp_parse(&argp, argc, argv, 0, NULL, &o))
		return BENCH_USAGE;
	if (o.recorder + o.top + o.service > 1 || (o.top_program && !o.top)) {
		bench_complain(o.top_program && !o.top
				       ? "--top-program is given, needs --beside-top"
				       : "--recorder, --beside-top and --service are three things");
		return BENCH_USAGE;
	}
	if (o.fabric_program && !o.service) {
		bench_complain("--fabric-program is given, needs --service");
		return BENCH_USAGE;
	}
	if (o.service)
		return bench_core_service(
			&(struct core_service_opts){ .rounds = o.runs,
						     .ms = o.ms,
						     .batch = o.batch,
						     .fabric_program = o.fabric_program,
						     .json = o.json });
	if (measure(&o, run, rte, &wrong))
		return BENCH_WRONG;
	if (o.top || o.recorder) {
		struct core_paired_run pairs[RUNS_MAX];

		for (uint64_t i = 0; i < o.runs; i++)
			pairs[i] = run[i].paired;
		return bench_core_paired_report(pairs, o.runs, o.top, wrong, o.json);
	}
	qsort(run, o.runs, sizeof(run[0]), by_rate);
	if (o.json)
		print_json(&o, &run[o.runs / 2], bench_median(rte, o.runs), wrong);
	else
		print_table(&o, &run[o.runs / 2], bench_median(rte, o.runs), wrong);
	return wrong ? BENCH_WRONG : BENCH_OK;
}
