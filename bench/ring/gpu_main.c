/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench ring --gpu: what a GPU's kernels and one CPU core do with the command ring. Every command of the raw tests is checked by this
 * process, which never loads a driver's library; the GPU belongs to a child (gpu_child.c). Prints one table, or JSON; the exit code says
 * whether everything was right, never whether it was fast.
 */
#include "bench/ring/gpu_rig.h"

#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "fabric/base/clock.h"
#include "queues/epf_gpu.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RATE_RUNS = 5, WARM_UP_MS = 3000 };

/* ---- round trips ---- */

static void *echo_main(void *arg)
{
	bench_pin(ring_gpu_cpu(1));
	ring_gpu_echo(arg);
	return NULL;
}

static double flag(struct ring_gpu_rig *r, const char *name, uint32_t fence)
{
	struct ring_gpu_request q = ring_gpu_request(r, RING_GPU_FLAG, true, 1, r->warp);
	struct ring_gpu_reply a = { 0 };
	char p99[32];
	pthread_t thread;
	int rc;

	q.args.count = r->o->trips;
	q.args.fence = fence;
	memset(r->s->words, 0, RING_GPU_PAGE);
	ring_gpu_format(r->s, &q);
	EPF_STORE_RELEASE(&r->s->stop_takers, 0);
	if (pthread_create(&thread, NULL, echo_main, r->s)) {
		ring_gpu_bad(r, name, "no thread");
		return 0;
	}
	rc = ring_gpu_ask_wait(r, name, &q, &a);
	EPF_STORE_RELEASE(&r->s->stop_takers, 1);
	pthread_join(thread, NULL);
	if (rc)
		return 0;
	if (a.code)
		ring_gpu_bad(r, name, a.text);
	else
		ring_gpu_row(r, name, a.median_ns, "ns", "p99 %s", bench_figure(a.p99_ns, p99));
	return a.median_ns;
}

static double trip(struct ring_gpu_rig *r, const char *name, bool shared, uint32_t batch,
		   uint32_t fence)
{
	struct ring_gpu_request q = ring_gpu_request(r, RING_GPU_ROUND, shared, 1, r->warp);
	struct ring_gpu_reply a = { 0 };
	char p99[32];

	q.n_private = r->wide;
	q.args.count = r->o->trips / (batch > 1 ? 4 : 1);
	q.args.batch = batch;
	q.args.fence = fence;
	if (ring_gpu_ask_wait(r, name, &q, &a))
		return 0;
	if (a.code || a.engine.refused || a.engine.dequeued != a.pushed)
		ring_gpu_bad(r, name,
			     a.text[0] ? a.text : "the engine's counts are not what was pushed");
	else if (r->flag_ns > 0 && batch == 1)
		ring_gpu_row(r, name, a.median_ns, "ns",
			     "p99 %s, issue %.0f, %.2f of the bare flag",
			     bench_figure(a.p99_ns, p99), a.issue_ns, a.median_ns / r->flag_ns);
	else
		ring_gpu_row(r, name, a.median_ns, "ns", "p99 %s, issue %.0f, %.0f a command",
			     bench_figure(a.p99_ns, p99), a.issue_ns, a.issue_ns / batch);
	return a.median_ns;
}

static void trips(struct ring_gpu_rig *r, const char *when)
{
	char name[96];

#define NAME(text) (snprintf(name, sizeof(name), "%s, %s", text, when), name)
	r->flag_ns = flag(r, NAME("round trip, bare flag"), 0);
	(void)flag(r, NAME("round trip, bare flag, payload + fence"), 1);
	(void)trip(r, NAME("round trip, private ring, engine"), false, 1, 0);
	(void)trip(r, NAME("round trip, shared ring, engine"), true, 1, 0);
	(void)trip(r, NAME("round trip, payload + fence, 1 a batch"), false, 1, 1);
	(void)trip(r, NAME("round trip, payload, no fence, 32 a batch"), false, 32, 2);
	(void)trip(r, NAME("round trip, payload + fence, 32 a batch"), false, 32, 1);
#undef NAME
}

static int busy(struct ring_gpu_rig *r, bool on)
{
	struct ring_gpu_request q = ring_gpu_request(r, RING_GPU_BUSY, true, 1, r->warp);
	struct ring_gpu_reply a = { 0 };

	q.on = on;
	q.args.limit_ns = UINT64_C(60000000000);
	if (ring_gpu_ask_wait(r, "NVLink traffic", &q, &a))
		return -1;
	if (!on)
		ring_gpu_row(r, "NVLink traffic meanwhile, 24 blocks", (double)a.pushed / 1e9,
			     "GB/s", "written to the other GPU");
	return 0;
}

/* ---- the whole path ---- */

/* Bytes that all puts of a request have. */
static uint64_t bytes_of(const struct ring_gpu_request *q)
{
	uint64_t puts = q->args.count * q->args.lanes;
	uint64_t longer = q->args.wide ? (puts + q->args.wide - 1) / q->args.wide : 0;

	return q->grid * (puts * q->args.bytes + longer);
}

/* wide: every so many puts are wide commands; 0: none. The median of several runs counts. */
static void rate(struct ring_gpu_rig *r, bool shared, uint32_t grid, uint32_t lanes, uint32_t wide,
		 uint64_t commands)
{
	struct ring_gpu_request q = ring_gpu_request(r, RING_GPU_RATE, shared, grid, r->warp);
	double rates[RATE_RUNS];
	uint64_t dequeued = 0;
	char name[96];

	q.n_private = r->wide;
	q.args.kind = RING_BENCH_PUT;
	q.args.lanes = lanes < r->warp ? lanes : r->warp;
	q.args.count = commands / grid / q.args.lanes + 1;
	q.args.wide = wide;
	snprintf(name, sizeof(name), "engine, %s%s, %u warps x %u lanes, 1 core",
		 shared ? "shared" : "private", wide ? ", 1 of 3 wide" : "", grid, q.args.lanes);
	for (int i = 0; i < RATE_RUNS; i++) {
		struct ring_gpu_reply a = { 0 };

		if (ring_gpu_ask_wait(r, name, &q, &a))
			return;
		if (a.code || a.engine.refused || a.engine.dequeued != a.pushed ||
		    a.engine.bytes != bytes_of(&q)) {
			ring_gpu_bad(r, name,
				     a.text[0] ? a.text
					       : "the engine's counts are not what was pushed");
			return;
		}
		rates[i] = (double)a.engine.dequeued / ((double)a.wall_ns / 1e9) / 1e6;
		dequeued += a.engine.dequeued;
	}
	(void)bench_median(rates, RATE_RUNS); /* sorts */
	ring_gpu_row(r, name, rates[RATE_RUNS / 2], "M/s",
		     "median of %d, %.1f to %.1f; %llu commands, all retired", RATE_RUNS, rates[0],
		     rates[RATE_RUNS - 1], (unsigned long long)dequeued);
}

/* Load that nobody measures: clocks rise, and the host of a virtual machine moves its busy CPUs apart, within a second or two. */
static void warm_up(struct ring_gpu_rig *r)
{
	struct ring_gpu_request q = ring_gpu_request(r, RING_GPU_RATE, false, r->wide, r->warp);
	uint64_t end = epf_now_ns() + WARM_UP_MS * UINT64_C(1000000);
	struct ring_gpu_reply a = { 0 };

	q.args.kind = RING_BENCH_PUT;
	q.args.lanes = r->warp;
	q.args.count = r->o->commands / 100 / r->wide / r->warp + 1;
	while (epf_now_ns() < end && !ring_gpu_ask_wait(r, "warm-up", &q, &a))
		;
}

static void rates(struct ring_gpu_rig *r)
{
	uint64_t n = r->o->commands / 20 / RATE_RUNS;

	warm_up(r);

	for (int shared = 0; shared < 2; shared++) {
		rate(r, shared, 8 < r->wide ? 8 : r->wide, r->warp, 0, n);
		rate(r, shared, r->wide, r->warp, 0, n);
		rate(r, shared, r->wide, 1, 0, n);
		rate(r, shared, r->wide, r->warp, 3, n / 4);
	}
}

/* ---- what goes wrong must end ---- */

static void expect(struct ring_gpu_rig *r, const char *name, const struct ring_gpu_request *q,
		   int code, int lowest, double least_s, double most_s)
{
	struct ring_gpu_reply a = { 0 };
	double s;

	ring_gpu_format(r->s, q);
	if (ring_gpu_ask_wait(r, name, q, &a))
		return;
	s = (double)a.wall_ns / 1e9;
	if (a.code > code || a.code < lowest || s < least_s || s > most_s || !a.text[0]) {
		char why[RING_GPU_TEXT + 64];

		snprintf(why, sizeof(why), "code %d after %.3f s: %s", a.code, s, a.text);
		ring_gpu_bad(r, name, why);
		return;
	}
	ring_gpu_row(r, name, s, "s", "%s", a.text);
}

static void ends(struct ring_gpu_rig *r)
{
	struct ring_gpu_request q = ring_gpu_request(r, RING_GPU_PUSH, false, r->wide, r->warp);

	q.timeout_ns = UINT64_C(1000000000);
	q.args.kind = RING_BENCH_RAW;
	q.args.lanes = r->warp;
	q.args.count = 1000000;
	expect(r, "nobody takes, private rings: deadline 1 s", &q, EPF_GPU_TIMEOUT, EPF_GPU_TIMEOUT,
	       0.9, 5);
	q.n_private = 0;
	q.args.shared = 1;
	/* Who comes behind the first that gave up finds the ring broken. */
	expect(r, "nobody takes, shared ring: deadline 1 s", &q, EPF_GPU_TIMEOUT, EPF_GPU_BROKEN,
	       0.9, 5);
	q = ring_gpu_request(r, RING_GPU_HANG, true, r->wide, r->warp);
	q.timeout_ns = UINT64_C(1000000000);
	expect(r, "a signal that nobody raises: deadline 1 s", &q, EPF_GPU_TIMEOUT, EPF_GPU_TIMEOUT,
	       0.9, 5);
	q.timeout_ns = UINT64_C(30000000000);
	q.abort_after_ns = 300000000;
	expect(r, "the host aborts after 0.3 s", &q, EPF_GPU_ABORTED, EPF_GPU_ABORTED, 0.2, 5);
}

/* ---- the run ---- */

static int start(struct ring_gpu_rig *r)
{
	struct ring_gpu_request q = { .op = RING_GPU_OPEN };
	struct ring_gpu_reply a = { 0 };

	memset(&r->s->request, 0, sizeof(r->s->request));
	r->child = ring_gpu_fork(r->s, r->o->backend, (int)r->o->device, r->o->settings);
	if (r->child < 0) {
		bench_complain("cannot fork: %s", strerror(-r->child));
		return -1;
	}
	ring_gpu_ask(r->s, &q);
	for (int i = 0; i < RING_GPU_PATIENCE_S * 1000; i++) {
		struct timespec nap = { 0, 1000000 };
		int rc = ring_gpu_answer(r->s, r->child, &a);

		if (rc)
			break;
		nanosleep(&nap, NULL);
	}
	if (a.rc || !a.warp) {
		bench_complain("%s", a.text[0] ? a.text : "the process with the GPU has ended");
		return -1;
	}
	r->warp = a.warp;
	r->devices = a.devices;
	r->wide = r->warp == 1 ? 8 : a.multiprocessors;
	if (!r->o->json)
		printf("# ep-bench ring --gpu: %s; %u device%s, %u CPUs\n", a.text, a.devices,
		       a.devices == 1 ? "" : "s", bench_cpus());
	return 0;
}

/*
 * 1 when this process has loaded a GPU driver's library: then the test would prove less than it says. A tool that puts itself into every
 * process (compute-sanitizer) brings one.
 */
static int has_driver(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	bool tool = false;
	int found = 0;

	while (f && fgets(line, sizeof(line), f)) {
		found |= strstr(line, "libcuda") || strstr(line, "libamdhip");
		tool |= strstr(line, "anitizer") != NULL;
	}
	if (f)
		fclose(f);
	return found && !tool;
}

static void run_parts(struct ring_gpu_rig *r)
{
	const char *parts = r->o->parts;

	ring_gpu_raw_parts(r);
	if (strchr(parts, 'r'))
		trips(r, "idle");
	if (strchr(parts, 'b') && r->devices > 1 && r->warp > 1 && !busy(r, true)) {
		trips(r, "NVLink busy");
		rate(r, false, r->wide, 1, 0, r->o->commands / 50 / RATE_RUNS);
		(void)busy(r, false);
	}
	if (strchr(parts, 'e'))
		rates(r);
	if (strchr(parts, 'd'))
		ends(r);
}

int bench_ring_gpu(const struct ring_gpu_opts *o)
{
	struct ring_gpu_rig r = { .o = o, .rows = json_array() };
	struct ring_gpu_request quit = { .op = RING_GPU_QUIT };
	int status;

	(void)bench_cpus();
	r.s = ring_gpu_map();
	if (!r.s || !r.rows) {
		bench_complain("no memory for the rings");
		return BENCH_WRONG;
	}
	if (start(&r))
		return r.child > 0 ? BENCH_NO_GPU : BENCH_WRONG;
	run_parts(&r);
	ring_gpu_ask(r.s, &quit);
	waitpid(r.child, &status, 0);
	if (has_driver())
		ring_gpu_bad(&r, "consumer", "this process has a GPU driver loaded");
	if (o->json) {
		json_t *j = json_pack("{s:s, s:o, s:I, s:I}", "bench", "ring-gpu", "rows", r.rows,
				      "commands_checked", (json_int_t)r.commands, "wrong",
				      (json_int_t)r.wrong);

		bench_print_json(j);
	} else {
		printf("# commands checked: %llu\n# wrong: %llu\n", (unsigned long long)r.commands,
		       (unsigned long long)r.wrong);
		json_decref(r.rows);
	}
	munmap(r.s, r.s->bytes);
	return r.wrong ? BENCH_WRONG : BENCH_OK;
}
