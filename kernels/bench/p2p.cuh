/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of `ep-bench p2p --gpu`: transfers of GPU memory that kernels ask for, one by one or as fast as they can. Only the public
 * device API. As plain C (bench/ring/gpu_fake.c) they run on CPU threads, which is how they are tested without a GPU.
 */
#ifndef EPF_KERNELS_BENCH_P2P_BENCH_CUH
#define EPF_KERNELS_BENCH_P2P_BENCH_CUH

#include "kernels/bench/p2p.h"
#include "kernels/bench/ring.cuh"

/* Waits for what the peer's n-th transfer brings beside its bytes; nothing where it brings nothing. */
EPF_DEV_FN int p2p_bench_await(const struct p2p_bench_args *a, uint64_t n)
{
	const struct epf_gpu_ctx *ctx = (const struct epf_gpu_ctx *)a->ctx;

	if (a->op == P2P_BENCH_PUT_SIGNAL)
		return epf_dev_wait_signal(ctx, 0, a->seen + n);
	if (a->op == P2P_BENCH_PUT_ADD)
		return epf_dev_wait_word(ctx, (const uint64_t *)a->word, a->seen + n);
	return 0;
}

/* One thread: transfers one after the other. A put_signal (or put_add) is one way of a ping-pong, with the fence that payload just written needs. */
EPF_DEV_FN void p2p_bench_trips(const struct p2p_bench_args *a)
{
	const struct epf_gpu_ctx *ctx = (const struct epf_gpu_ctx *)a->ctx;
	struct p2p_bench_result *result = (struct p2p_bench_result *)a->result;
	uint64_t *samples = (uint64_t *)a->samples;
	uint64_t start_ns = epf_timer();
	uint64_t start = epf_cycles();
	struct epf_dev d;
	int rc = 0;

	if (ring_bench_warp() != 0 || epf_lane() != 0)
		return;
	epf_dev_open(&d, ctx);
	for (uint64_t i = 0; i < a->count && !rc; i++) {
		uint64_t t = epf_cycles();

		if (!a->first)
			rc = p2p_bench_await(a, i + 1);
		epf_dev_fence();
		if (rc)
			break;
		if (a->op == P2P_BENCH_GET)
			rc = epf_dev_get(&d, a->peer, a->region, a->to, a->region, a->from,
					 a->bytes, 0);
		else if (a->op != P2P_BENCH_PUT_SIGNAL)
			rc = epf_dev_put(&d, a->peer, a->region, a->from, a->region, a->to,
					 a->bytes, 0);
		else
			rc = epf_dev_put_signal(&d, a->peer, a->region, a->from, a->region, a->to,
						a->bytes, 0, 1, 0);
		if (!rc && a->op == P2P_BENCH_PUT_ADD)
			rc = epf_dev_add(&d, a->peer, a->region, a->word_at, 1, 0);
		if (!rc && a->op == P2P_BENCH_GET)
			rc = epf_dev_wait(&d, epf_dev_ticket(&d));
		else if (!rc && a->op == P2P_BENCH_PUT)
			rc = epf_dev_flush(&d, 0);
		else if (!rc && a->first)
			rc = p2p_bench_await(a, i + 1);
		samples[i] = epf_cycles() - t;
	}
	if (!rc)
		rc = epf_dev_flush(&d, 0);
	epf_dev_close(&d);
	result->rc = rc;
	result->cycles = epf_cycles() - start;
	result->ns = epf_timer() - start_ns;
}

/* One transfer of a stream, number i, in the form of a thread. */
EPF_DEV_FN int p2p_bench_one(const struct p2p_bench_args *a, struct epf_dev *d, uint64_t i)
{
	uint64_t at = i % a->places * a->stride;

	if (a->op == P2P_BENCH_GET)
		return epf_dev_get(d, a->peer, a->region, a->to + at, a->region, a->from + at,
				   a->bytes, 0);
	if (a->op == P2P_BENCH_PUT)
		return epf_dev_put(d, a->peer, a->region, a->from + at, a->region, a->to + at,
				   a->bytes, 0);
	return epf_dev_put_signal(d, a->peer, a->region, a->from + at, a->region, a->to + at,
				  a->bytes, 0, 1, 0);
}

/* A transfer of each lane that has one, from number `turn` on, in the form of a warp. */
EPF_DEV_FN int p2p_bench_turn(const struct p2p_bench_args *a, struct epf_dev *d, uint64_t turn)
{
	uint64_t i = turn + epf_lane(), at = i % a->places * a->stride;
	int active = epf_lane() < a->lanes && i < a->count;

	if (a->op == P2P_BENCH_GET)
		return epf_warp_get(d, active, a->peer, a->region, a->to + at, a->region,
				    a->from + at, a->bytes, 0);
	if (a->op == P2P_BENCH_PUT)
		return epf_warp_put(d, active, a->peer, a->region, a->from + at, a->region,
				    a->to + at, a->bytes, 0);
	return epf_warp_put_signal(d, active, a->peer, a->region, a->from + at, a->region,
				   a->to + at, a->bytes, 0, 1, 0);
}

/*
 * Every warp: its share of the transfers, `lanes` at a time, then a flush of its ring: all is where it belongs when the kernel ends. One
 * lane a warp takes the forms of a thread, which know wide commands.
 */
EPF_DEV_FN void p2p_bench_stream(const struct p2p_bench_args *a)
{
	const struct epf_gpu_ctx *ctx = (const struct epf_gpu_ctx *)a->ctx;
	struct p2p_bench_result *result = (struct p2p_bench_result *)a->result;
	uint64_t step = (uint64_t)a->warps * a->lanes;
	uint64_t turn = (uint64_t)ring_bench_warp() * a->lanes;
	struct epf_dev d;
	int rc = 0;

	if (ring_bench_warp() >= a->warps || (a->lanes == 1u && epf_lane() != 0))
		return;
	if (a->lanes == 1u) {
		epf_dev_open(&d, ctx);
		for (; turn < a->count && !rc; turn += step)
			rc = p2p_bench_one(a, &d, turn);
		if (!rc)
			rc = epf_dev_flush(&d, 0);
		epf_dev_close(&d);
	} else {
		epf_warp_open(&d, ctx);
		for (; turn < a->count && !rc; turn += step)
			rc = p2p_bench_turn(a, &d, turn);
		if (!rc)
			rc = epf_warp_flush(&d, 0);
		epf_warp_close(&d);
	}
	if (rc && epf_lane() == 0)
		result->rc = rc;
}

#endif
