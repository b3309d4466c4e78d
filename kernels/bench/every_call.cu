/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of the device API once, so that compilers make code for all of it: tests/gpu/compile.sh compiles this for each
 * architecture. It is never launched.
 */
#include "kernels/epf_device.cuh"

#if defined(__HIP__)
# define KERNEL extern "C" __attribute__((global)) void
#else
# define KERNEL extern "C" __global__ void
#endif

KERNEL every_thread_call(const struct epf_gpu_ctx *ctx, uint64_t n, int *out)
{
	struct epf_dev d;
	int rc = 0;

	epf_dev_open(&d, ctx);
	epf_dev_fence();
	rc |= epf_dev_put(&d, (uint32_t)n, 0, n, 0, n, n, 0);
	rc |= epf_dev_put_group(&d, (uint32_t)n, 0, n, 0, n, n, 1, 0);
	rc |= epf_dev_put_signal(&d, (uint32_t)n, 0, n, 0, n, n, 1, 1, EPF_F_FENCE);
	rc |= epf_dev_signal(&d, (uint32_t)n, 1, n, 0);
	rc |= epf_dev_signal_counted(&d, (uint32_t)n, 1, n, 2, 0);
	rc |= epf_dev_get(&d, (uint32_t)n, 0, n, 0, n, n, 0);
	rc |= epf_dev_test(&d, epf_dev_ticket(&d));
	rc |= epf_dev_wait(&d, epf_dev_ticket(&d));
	rc |= epf_dev_flush(&d, EPF_F_ALL);
	rc |= epf_dev_add(&d, (uint32_t)n, 0, n, n, 0);
	rc |= epf_dev_wait_word(ctx, (const uint64_t *)n, n);
	rc |= epf_dev_wait_signal(ctx, 1, n) | (int)epf_dev_signal_value(ctx, 1);
	epf_dev_close(&d);
	epf_dev_open_shared(&d, ctx);
	rc |= epf_dev_push(&d, epf_cmd_flush(0)) | epf_dev_is_shared(&d);
	*out = rc;
}

KERNEL every_warp_call(const struct epf_gpu_ctx *ctx, uint64_t n, int *out)
{
	uint32_t lane = epf_lane();
	int active = lane % 2u == 0;
	struct epf_dev d;
	int rc = 0;

	epf_warp_open(&d, ctx);
	epf_warp_fence();
	rc |= epf_warp_put(&d, active, lane, 0, n, 0, n, n, 0);
	rc |= epf_warp_put_group(&d, active, lane, 0, n, 0, n, n, 1, 0);
	rc |= epf_warp_put_signal(&d, active, lane, 0, n, 0, n, n, 1, 1, 0);
	rc |= epf_warp_signal(&d, active, lane, 1, n, 0);
	rc |= epf_warp_get(&d, active, lane, 0, n, 0, n, n, 0);
	rc |= epf_warp_wait(&d, epf_dev_ticket(&d));
	rc |= epf_warp_flush(&d, 0);
	rc |= epf_warp_wait_signal(ctx, 1, n);
	epf_warp_close(&d);
	out[lane] = rc;
}

KERNEL every_block_call(const struct epf_gpu_ctx *ctx, uint64_t n, int *out)
{
	struct epf_dev d;
	int rc = 0;

	epf_block_open(&d, ctx);
	epf_block_fence();
	rc |= epf_block_put(&d, 1, 0, n, 0, n, n, 0);
	rc |= epf_block_put_signal(&d, 1, 0, n, 0, n, n, 1, 1, 0);
	rc |= epf_block_signal(&d, 1, 1, n, 0);
	rc |= epf_block_get(&d, 1, 0, n, 0, n, n, 0);
	rc |= epf_block_flush(&d, 0);
	rc |= epf_block_wait_word(ctx, (const uint64_t *)n, n);
	rc |= epf_block_wait_signal(ctx, 1, n);
	epf_block_close(&d);
	out[epf_thread_in_block()] = rc;
}
