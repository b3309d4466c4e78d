/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench ring --gpu: commands from kernels straight to threads of this process, without an engine: every one checked, or added up; at full
 * speed, and at a pace. Called by gpu_main.c.
 */
#include "bench/common/bench.h"
#include "bench/ring/gpu_rig.h"
#include "fabric/base/clock.h"

#include <stdio.h>
#include <string.h>

enum { PACE_CYCLES = 1980, CEILING_RUNS = 51, CEILING_AHEAD = 32, SUM_SHARED_LOG2 = 13 };

static void raw_as(struct ring_gpu_rig *r, bool sum, bool shared, uint32_t grid, uint32_t block,
		   uint32_t lanes, uint32_t cores, uint64_t commands, uint64_t pace)
{
	struct ring_gpu_request q = ring_gpu_request(r, RING_GPU_PUSH, shared, grid, block);
	uint32_t warps = grid * ((block + r->warp - 1) / r->warp);
	struct ring_gpu_taken t;
	struct ring_gpu_reply a = { 0 };
	char name[96];
	int rc;

	q.sum = sum;
	if (sum)
		q.shared_log2 = SUM_SHARED_LOG2;
	q.args.kind = RING_BENCH_RAW;
	q.args.lanes = lanes < r->warp ? lanes : r->warp;
	q.args.pace = pace;
	q.args.count = commands / warps / q.args.lanes + 1;
	q.n_private = shared ? 0 : warps < RING_GPU_PRIVATE ? warps : RING_GPU_PRIVATE;
	/* At a pace each ring is nearly empty, its core looks at the very line that is written, and more rings are better. */
	q.n_shared = !shared ? 1 : pace && cores > 1 ? RING_GPU_SHARED : cores;
	snprintf(name, sizeof(name), "%s %s%s, %u warps x %u lanes, %u core%s", sum ? "sum" : "raw",
		 shared ? "shared" : "private", pace ? ", paced" : "", warps, q.args.lanes, cores,
		 cores == 1 ? "" : "s");
	rc = ring_gpu_take(r->s, r->child, &q, cores, warps, q.args.count * q.args.lanes,
			   RING_GPU_PATIENCE_S * UINT64_C(1000000000), &t, &a);
	if (rc || a.rc || a.code) {
		ring_gpu_bad(r, name, a.text[0] ? a.text : strerror(-rc));
		return;
	}
	r->commands += t.commands;
	r->wrong += t.wrong + t.missing;
	ring_gpu_row(r, name, t.per_second / 1e6, "M/s",
		     "%llu commands, %llu wrong, %llu missing; %.0f cycles in a push%s",
		     (unsigned long long)t.commands, (unsigned long long)t.wrong,
		     (unsigned long long)t.missing, a.inside_cycles,
		     a.on_shared && !shared ? "; SOME ON THE SHARED RING" : "");
}

static void raw(struct ring_gpu_rig *r, bool shared, uint32_t grid, uint32_t block, uint32_t lanes,
		uint32_t cores, uint64_t commands, uint64_t pace)
{
	raw_as(r, false, shared, grid, block, lanes, cores, commands, pace);
}

/* The same with consumers that add up and look no further: the rate of the rings themselves. */
static void sums(struct ring_gpu_rig *r)
{
	uint32_t w = r->wide, all = r->warp;
	uint64_t n = r->o->commands / 10;

	for (int shared = 0; shared < 2; shared++)
		for (uint32_t cores = 1; cores <= r->o->cores; cores *= 2)
			raw_as(r, true, shared, w, all, all, cores, n * cores, 0);
}

static void raw_all(struct ring_gpu_rig *r)
{
	uint32_t w = r->wide, all = r->warp;
	uint64_t n = r->o->commands / 10;

	for (int shared = 0; shared < 2; shared++) {
		raw(r, shared, 1, all, all, 1, n / 4, 0);
		raw(r, shared, w / 16 ? w / 16 : 1, all, all, 1, n, 0);
		raw(r, shared, w, all, 1, 1, n, 0);
		raw(r, shared, w, all, all, 1, 2 * n, 0);
		if (r->warp > 1)
			raw(r, shared, w, 8 * all, 1, 1, n / 2, 0);
	}
	for (int shared = 0; shared < 2 && r->o->cores > 1; shared++)
		raw(r, shared, w, all, all, (uint32_t)r->o->cores, n, 0);
}

/* One warp, one lane, time to spare between pushes: what a push costs the thread that makes it. */
static void cost(struct ring_gpu_rig *r)
{
	raw(r, false, 1, r->warp, 1, 1, 50000, 2000);
	raw(r, true, 1, r->warp, 1, 1, 50000, 2000);
}

/* One push a warp a microsecond, as expert-parallel kernels do. */
static void paced(struct ring_gpu_rig *r)
{
	for (int shared = 0; shared < 2; shared++)
		raw(r, shared, r->wide, r->warp, 1, (uint32_t)r->o->cores, r->o->commands / 200 + 1,
		    PACE_CYCLES);
}

/* Slots that a pass of ceiling() fills of shared ring i: blocks take the rings round-robin. */
static uint32_t filled(const struct ring_gpu_rig *r, const struct ring_gpu_request *q, uint32_t i)
{
	return (r->wide + RING_GPU_SHARED - 1 - i) / RING_GPU_SHARED * r->warp *
	       (uint32_t)q->args.count;
}

/* Reads all of them once, as fast as they come; how long it took. */
static double read_all(const struct ring_gpu_rig *r, const struct ring_gpu_request *q,
		       uint64_t *sum)
{
	uint64_t start = epf_now_ns();

	for (uint32_t i = 0; i < RING_GPU_SHARED; i++) {
		const struct epf_cmd *slot = epf_ring_slots(ring_gpu_ring(r->s, i));
		uint32_t n = filled(r, q, i);

		for (uint32_t k = 0; k < n; k++) {
			struct epf_cmd c = epf_slot_load(&slot[k]);

			__builtin_prefetch(&slot[k + CEILING_AHEAD]);
			*sum += c.lo + c.hi;
		}
	}
	return (double)(epf_now_ns() - start);
}

/*
 * What one core can read at all of commands that a GPU has just written: shared rings are filled once, nobody takes, the kernel ends, and
 * this thread reads the slots. No ring can give one core more.
 */
static void ceiling(struct ring_gpu_rig *r)
{
	struct ring_gpu_request q = ring_gpu_request(r, RING_GPU_PUSH, true, r->wide, r->warp);
	uint32_t per_ring = (r->wide + RING_GPU_SHARED - 1) / RING_GPU_SHARED * r->warp;
	struct ring_gpu_reply a = { 0 };
	double ns[CEILING_RUNS];
	uint64_t sum = 0, slots = 0;

	q.n_shared = RING_GPU_SHARED;
	q.shared_log2 = (uint32_t)__builtin_ctz(RING_GPU_SLOTS_MANY);
	q.args.kind = RING_BENCH_RAW;
	q.args.lanes = r->warp;
	q.args.count = RING_GPU_SLOTS_MANY / per_ring;
	bench_pin(ring_gpu_cpu(1));
	for (int i = 0; i < CEILING_RUNS; i++) {
		ring_gpu_format(r->s, &q);
		if (ring_gpu_ask_wait(r, "ceiling", &q, &a))
			return;
		ns[i] = read_all(r, &q, &sum);
	}
	for (uint32_t i = 0; i < RING_GPU_SHARED; i++)
		slots += filled(r, &q, i);
	ring_gpu_row(r, "ceiling: one core reads what the GPU has written",
		     (double)slots / bench_median(ns, CEILING_RUNS) * 1e3, "M/s",
		     "median of %d passes over %llu slots; sum %llx", CEILING_RUNS,
		     (unsigned long long)slots, (unsigned long long)sum);
}

void ring_gpu_raw_parts(struct ring_gpu_rig *r)
{
	const char *parts = r->o->parts;

	if (strchr(parts, 'c'))
		cost(r);
	if (strchr(parts, 'v'))
		raw_all(r);
	if (strchr(parts, 'p') && r->o->cores > 1)
		paced(r);
	if (strchr(parts, 't'))
		sums(r);
	if (strchr(parts, 'x'))
		ceiling(r);
}
