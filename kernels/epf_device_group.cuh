/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of epf_device.cuh, which users include: the warp and block forms. They add nothing but the cooperation of
 * lanes or threads: the same commands, the same order, the same results.
 */
#ifndef EPF_KERNELS_DEVICE_GROUP_CUH
#define EPF_KERNELS_DEVICE_GROUP_CUH

#include "kernels/epf_device_done.cuh"

/* ---- warp forms: all lanes, converged; each lane's own arguments ---- */

EPF_DEV_FN int epf_warp_put(struct epf_dev *d, int active, uint32_t rank, uint32_t local_region,
			    uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
			    uint64_t bytes, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_PUT, rank, local_region, local_offset,
					   remote_region, remote_offset, bytes, flags & EPF_F_BULK);

	return epf_warp_push_op(d, &o, active);
}

EPF_DEV_FN int epf_warp_put_group(struct epf_dev *d, int active, uint32_t rank,
				  uint32_t local_region, uint64_t local_offset,
				  uint32_t remote_region, uint64_t remote_offset, uint64_t bytes,
				  uint32_t signal, unsigned flags)
{
	struct epf_op o =
		epf_dev_transfer(EPF_OP_PUT, rank, local_region, local_offset, remote_region,
				 remote_offset, bytes, (flags & EPF_F_BULK) | EPF_F_COUNTED);

	o.signal = signal;
	return epf_warp_push_op(d, &o, active);
}

EPF_DEV_FN int epf_warp_put_signal(struct epf_dev *d, int active, uint32_t rank,
				   uint32_t local_region, uint64_t local_offset,
				   uint32_t remote_region, uint64_t remote_offset, uint64_t bytes,
				   uint32_t signal, uint32_t add, unsigned flags)
{
	struct epf_op o =
		epf_dev_transfer(EPF_OP_PUT_SIGNAL, rank, local_region, local_offset, remote_region,
				 remote_offset, bytes, flags & (EPF_F_FENCE | EPF_F_BULK));

	o.signal = signal;
	o.add = add;
	return epf_warp_push_op(d, &o, active);
}

EPF_DEV_FN int epf_warp_signal(struct epf_dev *d, int active, uint32_t rank, uint32_t signal,
			       uint64_t value, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_SIGNAL, rank, 0, 0, 0, 0, 0, flags & EPF_F_BULK);

	o.signal = signal;
	o.value = value;
	return epf_warp_push_op(d, &o, active);
}

EPF_DEV_FN int epf_warp_get(struct epf_dev *d, int active, uint32_t rank, uint32_t local_region,
			    uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
			    uint64_t bytes, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_GET, rank, local_region, local_offset,
					   remote_region, remote_offset, bytes, flags & EPF_F_BULK);

	return epf_warp_push_op(d, &o, active);
}

/* What lane 0 got, in every lane; behind it every lane sees what lane 0 acquired. */
EPF_DEV_FN int epf_warp_result(int rc)
{
	epf_lanes all = epf_lanes_where(1);

	rc = (int)epf_lanes_get(all, (uint64_t)(uint32_t)rc, epf_lanes_first(all));
	epf_warp_barrier();
	return rc;
}

/* Flushes the warp's ring: one FLUSH behind everything any lane has pushed. */
EPF_DEV_FN int epf_warp_flush(struct epf_dev *d, unsigned flags)
{
	int rc = epf_warp_push(d, epf_cmd_flush(flags & EPF_F_ALL), epf_lane() == 0);
	uint64_t failed;

	if (rc)
		return rc;
	if (epf_lane() == 0) {
		rc = epf_dev_wait(d, d->pushed);
		failed = epf_ld_acquire_sys(
			epf_dev_word(d->shm, offsetof(struct epf_ring_shm, done) +
						     offsetof(struct epf_done, failed)));
		if (!rc && failed != epf_ld_relaxed_gpu(&d->ring->failed)) {
			epf_st_relaxed_gpu(&d->ring->failed, failed);
			rc = epf_dev_fail(d->ctx, EPF_GPU_FAILED, EPF_GPU_RETIRED, d->ring->id,
					  d->pushed, failed);
		}
	}
	return epf_warp_result(rc);
}

/* Waits until the command of that ticket is retired: lane 0's counts. epf_dev_ticket() is the same in all lanes of a warp form. */
EPF_DEV_FN int epf_warp_wait(struct epf_dev *d, uint64_t ticket)
{
	int rc = 0;

	if (epf_lane() == 0)
		rc = epf_dev_wait(d, ticket);
	return epf_warp_result(rc);
}

EPF_DEV_FN int epf_warp_wait_signal(const struct epf_gpu_ctx *ctx, uint32_t signal,
				    uint64_t at_least)
{
	int rc = 0;

	if (epf_lane() == 0)
		rc = epf_dev_wait_signal(ctx, signal, at_least);
	return epf_warp_result(rc);
}

/* ---- block forms: all threads; thread 0's d is used, the others' is not looked at ---- */

/* What thread 0 got, in every thread; behind it every thread sees what thread 0 acquired. */
EPF_DEV_FN int epf_block_result(int rc)
{
	EPF_DEV_SHARED int result;

	if (epf_thread_in_block() == 0)
		result = rc;
	epf_block_barrier();
	rc = result;
	epf_block_barrier(); /* before the next call writes it */
	return rc;
}

/* One ring for the block. */
EPF_DEV_FN void epf_block_open(struct epf_dev *d, const struct epf_gpu_ctx *ctx)
{
	if (epf_thread_in_block() == 0)
		epf_dev_open(d, ctx);
	epf_block_barrier();
}

EPF_DEV_FN void epf_block_close(struct epf_dev *d)
{
	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		epf_dev_close(d);
}

/*
 * epf_block_put() - the payload that the whole block wrote, as one put: barrier, fence, command. The only calls that fence by themselves
 * are this one and epf_block_put_signal().
 */
EPF_DEV_FN int epf_block_put(struct epf_dev *d, uint32_t rank, uint32_t local_region,
			     uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
			     uint64_t bytes, unsigned flags)
{
	int rc = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0) {
		epf_dev_fence();
		rc = epf_dev_put(d, rank, local_region, local_offset, remote_region, remote_offset,
				 bytes, flags);
	}
	return epf_block_result(rc);
}

EPF_DEV_FN int epf_block_put_signal(struct epf_dev *d, uint32_t rank, uint32_t local_region,
				    uint64_t local_offset, uint32_t remote_region,
				    uint64_t remote_offset, uint64_t bytes, uint32_t signal,
				    uint32_t add, unsigned flags)
{
	int rc = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0) {
		epf_dev_fence();
		rc = epf_dev_put_signal(d, rank, local_region, local_offset, remote_region,
					remote_offset, bytes, signal, add, flags);
	}
	return epf_block_result(rc);
}

EPF_DEV_FN int epf_block_signal(struct epf_dev *d, uint32_t rank, uint32_t signal, uint64_t value,
				unsigned flags)
{
	int rc = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		rc = epf_dev_signal(d, rank, signal, value, flags);
	return epf_block_result(rc);
}

EPF_DEV_FN int epf_block_get(struct epf_dev *d, uint32_t rank, uint32_t local_region,
			     uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
			     uint64_t bytes, unsigned flags)
{
	int rc = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		rc = epf_dev_get(d, rank, local_region, local_offset, remote_region, remote_offset,
				 bytes, flags);
	return epf_block_result(rc);
}

EPF_DEV_FN int epf_block_flush(struct epf_dev *d, unsigned flags)
{
	int rc = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		rc = epf_dev_flush(d, flags);
	return epf_block_result(rc);
}

EPF_DEV_FN int epf_block_wait_signal(const struct epf_gpu_ctx *ctx, uint32_t signal,
				     uint64_t at_least)
{
	int rc = 0;

	if (epf_thread_in_block() == 0)
		rc = epf_dev_wait_signal(ctx, signal, at_least);
	return epf_block_result(rc);
}

EPF_DEV_FN int epf_block_wait_word(const struct epf_gpu_ctx *ctx, const uint64_t *word,
				   uint64_t at_least)
{
	int rc = 0;

	if (epf_thread_in_block() == 0)
		rc = epf_dev_wait_word(ctx, word, at_least);
	return epf_block_result(rc);
}

#endif
