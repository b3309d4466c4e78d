/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring benchmark's kernels: what `ep-bench ring --gpu` and tests/gpu launch. Only the public device API, so they are examples too. As
 * plain C (bench/ring/gpu_fake.c) they run on CPU threads, which is how the whole benchmark is tested without a GPU.
 */
#ifndef EPF_KERNELS_BENCH_RING_BENCH_CUH
#define EPF_KERNELS_BENCH_RING_BENCH_CUH

#include "kernels/bench/ring.h"
#include "kernels/epf_device.cuh"

#if defined(__CUDACC__) || defined(__HIP__)
EPF_DEV_FN uint32_t ring_bench_warp(void)
{
	uint32_t width = epf_lanes_count(epf_lanes_where(1));
# if defined(__CUDACC__)
	uint32_t threads = blockDim.x;
# else
	uint32_t threads = (uint32_t)__builtin_amdgcn_workgroup_size_x();
# endif

	return epf_block_number() * ((threads + width - 1u) / width) +
	       epf_thread_in_block() / width;
}
#else
# define ring_bench_warp() epf_block_number()
#endif

EPF_DEV_FN void ring_bench_open(const struct ring_bench_args *a, struct epf_dev *d)
{
	const struct epf_gpu_ctx *ctx = (const struct epf_gpu_ctx *)a->ctx;

	if (a->shared)
		epf_dev_open_shared(d, ctx);
	else
		epf_warp_open(d, ctx);
}

/* The commands of one turn of a warp: `lanes` of them, lane 0 first. */
EPF_DEV_FN int ring_bench_turn(const struct ring_bench_args *a, struct epf_dev *d, uint32_t warp,
			       uint64_t turn)
{
	uint32_t lane = epf_lane();
	uint64_t seq = turn * a->lanes + lane;
	uint64_t offset = (seq % 1024u) * a->bytes;

	if (a->kind == RING_BENCH_RAW)
		return epf_warp_push(d, ring_bench_cmd(warp, seq), lane < a->lanes);
	return epf_warp_put(d, lane < a->lanes, 0, 0, offset, 0, offset, ring_bench_bytes(a, seq),
			    0);
}

/* Each warp pushes count turns, then (puts) waits until its last one is retired, then reports. */
EPF_DEV_FN void ring_bench_push(const struct ring_bench_args *a)
{
	struct ring_bench_result *results = (struct ring_bench_result *)a->results;
	uint32_t warp = ring_bench_warp();
	uint64_t start_ns = epf_timer();
	uint64_t start = epf_cycles();
	uint64_t next = start;
	uint64_t inside = 0;
	uint64_t turn;
	struct epf_dev d;
	int rc = 0;

	ring_bench_open(a, &d);
	for (turn = 0; turn < a->count && !rc; turn++) {
		uint64_t t;

		if (a->pace) {
			while (epf_cycles() < next)
				;
			next += a->pace;
		}
		t = epf_cycles();
		rc = ring_bench_turn(a, &d, warp, turn);
		inside += epf_cycles() - t;
	}
	if (a->kind == RING_BENCH_PUT && !rc)
		rc = epf_warp_wait(&d, epf_dev_ticket(&d));
	if (epf_lane() == 0) {
		results[warp].rc = rc;
		results[warp].pushed = turn * a->lanes;
		results[warp].cycles = epf_cycles() - start;
		results[warp].inside = inside;
		results[warp].ns = epf_timer() - start_ns;
		results[warp].shared = (uint64_t)epf_dev_is_shared(&d);
	}
	if (!a->shared)
		epf_warp_close(&d);
}

/* Payload of command `i` of a batch, in GPU memory. */
EPF_DEV_FN void ring_bench_payload(const struct ring_bench_args *a, uint64_t turn, uint32_t i)
{
	if (a->fence)
		((volatile uint64_t *)a->payload)[(turn * a->batch + i) % 8192u * 4u] = turn;
}

/* One thread: `batch` commands (behind one fence, if any), then a wait until all are retired; how long, `count` times. */
EPF_DEV_FN void ring_bench_round(const struct ring_bench_args *a)
{
	struct ring_bench_result *result = (struct ring_bench_result *)a->results;
	uint64_t *samples = (uint64_t *)a->samples;
	uint64_t start_ns = epf_timer();
	uint64_t start = epf_cycles();
	uint64_t inside = 0;
	struct epf_dev d;
	int rc = 0;

	if (ring_bench_warp() != 0 || epf_lane() != 0)
		return;
	if (a->shared)
		epf_dev_open_shared(&d, (const struct epf_gpu_ctx *)a->ctx);
	else
		epf_dev_open(&d, (const struct epf_gpu_ctx *)a->ctx);
	for (uint64_t turn = 0; turn < a->count && !rc; turn++) {
		uint64_t t = epf_cycles();

		for (uint32_t i = 0; i < a->batch; i++)
			ring_bench_payload(a, turn, i);
		if (a->fence == 1u)
			epf_dev_fence();
		for (uint32_t i = 0; i < a->batch && !rc; i++)
			rc = epf_dev_put(&d, 0, 0, i * 64u, 0, 65536u + i * 64u, a->bytes, 0);
		inside += epf_cycles() - t;
		if (!rc)
			rc = epf_dev_wait(&d, epf_dev_ticket(&d));
		samples[turn] = epf_cycles() - t;
	}
	epf_dev_close(&d);
	result->rc = rc;
	result->pushed = a->count * a->batch;
	result->cycles = epf_cycles() - start;
	result->inside = inside;
	result->ns = epf_timer() - start_ns;
	result->shared = (uint64_t)epf_dev_is_shared(&d);
}

/* The bare round trip: one 16-byte store to a host word, the CPU answers in another, one thread waits. Nothing else in between. */
EPF_DEV_FN void ring_bench_flag(const struct ring_bench_args *a)
{
	struct ring_bench_result *result = (struct ring_bench_result *)a->results;
	const struct epf_gpu_ctx *ctx = (const struct epf_gpu_ctx *)a->ctx;
	uint64_t *samples = (uint64_t *)a->samples;
	uint64_t start_ns = epf_timer();
	uint64_t start = epf_cycles();
	int rc = 0;

	if (ring_bench_warp() != 0 || epf_lane() != 0)
		return;
	for (uint64_t turn = 1; turn <= a->count && !rc; turn++) {
		struct epf_dev_clock clock = { 0, 0, 0 };
		uint64_t t = epf_cycles();
		struct epf_cmd c = { turn, turn };

		ring_bench_payload(a, turn, 0);
		if (a->fence == 1u)
			epf_fence_sys();
		epf_st_slot((struct epf_cmd *)a->flag, c);
		while (!rc && epf_ld_relaxed_sys((const uint64_t *)a->ack) != turn)
			rc = epf_dev_tick(ctx, &clock, epf_dev_abort(ctx));
		samples[turn - 1u] = epf_cycles() - t;
	}
	result->rc = rc;
	result->cycles = epf_cycles() - start;
	result->ns = epf_timer() - start_ns;
}

/*
 * Keeps NVLink (or whatever leads to the peer) busy with writes until stopped, or until its time is up. Only the first warp looks at the host's
 * word: many that did would slow each other down and write little. peer_bytes is a power of two. halt[1] counts the bytes.
 */
EPF_DEV_FN void ring_bench_busy(const struct ring_bench_args *a)
{
	struct epf_cmd *to = (struct epf_cmd *)a->peer;
	uint64_t *halt = (uint64_t *)a->halt;
	uint64_t mask = a->peer_bytes / sizeof(*to) - 1u;
	uint64_t end = epf_timer() + a->limit_ns;
	uint64_t lanes = epf_lanes_count(epf_lanes_where(1));
	uint64_t warp = ring_bench_warp();
	uint64_t at = warp * lanes * 64u + epf_lane();
	uint64_t bytes = 0;

	while (epf_timer() < end && !epf_ld_relaxed_gpu(halt)) {
		if (warp == 0) {
			if (epf_ld_relaxed_sys((const uint64_t *)a->stop))
				epf_st_relaxed_gpu(halt, 1);
			continue;
		}
		for (uint32_t i = 0; i < 256u; i++) {
			struct epf_cmd c = { at, i };

			epf_st_slot(&to[at & mask], c); /* 16 bytes a lane, side by side */
			at += lanes * 1009u;
		}
		bytes += 256u * sizeof(*to);
	}
	(void)epf_add_gpu(&halt[1], bytes);
}

/* A warp that waits for what will not come: a full ring, or a signal that nobody raises. Ends by the deadline, or by an abort. */
EPF_DEV_FN void ring_bench_hang(const struct ring_bench_args *a)
{
	struct ring_bench_result *results = (struct ring_bench_result *)a->results;
	const struct epf_gpu_ctx *ctx = (const struct epf_gpu_ctx *)a->ctx;
	uint32_t warp = ring_bench_warp(); /* all lanes count: not inside a branch */
	uint64_t start_ns = epf_timer();
	int rc = epf_warp_wait_signal(ctx, warp % ctx->n_signals, UINT64_C(1) << 40);

	if (epf_lane() == 0) {
		results[warp].rc = rc;
		results[warp].pushed = 0;
		results[warp].inside = 0;
		results[warp].shared = 0;
		results[warp].ns = epf_timer() - start_ns;
	}
}

#endif
