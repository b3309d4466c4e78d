/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of epf_device.cuh, which users include: access to a ring (leases of private ones, reservations in shared ones), payload fences, and
 * pushing packed commands, narrow and wide. What commands there are is epf_device_cmd.cuh's.
 */
#ifndef EPF_KERNELS_DEVICE_RING_CUH
#define EPF_KERNELS_DEVICE_RING_CUH

#include "kernels/epf_device_wait.cuh"

/* One producer's access to one ring. Members are for the calls below only. */
struct epf_dev {
	const struct epf_gpu_ctx *ctx;
	struct epf_gpu_ring *ring;
	struct epf_cmd *slots;
	uint8_t *shm;
	uint64_t head;     /* private: slots written */
	uint64_t pushed;   /* commands: the ticket of this producer's last one */
	uint64_t dequeued; /* last value seen of the core's word */
	uint32_t log2;
	uint32_t shared; /* 1: a shared ring */
	uint32_t index;  /* private: which */
	uint32_t pad;
};

/* ---- inside: room and slots ---- */

/* A slot was reserved and will never be written: the ring ends here, for all its producers. */
EPF_DEV_FN void epf_dev_break(struct epf_gpu_ring *ring)
{
	epf_st32_release_gpu((uint32_t *)&ring->broken, (uint32_t)EPF_GPU_BROKEN);
}

EPF_DEV_FN void epf_dev_store(struct epf_cmd *slots, uint32_t log2, uint64_t index,
			      struct epf_cmd c)
{
	epf_st_slot(&slots[index & (((uint64_t)1 << log2) - 1u)],
		    epf_cmd_with_parity(c, epf_cmd_parity(index, log2)));
}

/* Room for slots up to `last` of a shared ring; the group's first lane calls it. */
EPF_DEV_FN int epf_dev_shared_room(struct epf_dev *d, uint64_t last)
{
	uint64_t size = (uint64_t)1 << d->log2;
	int rc = 0;

	if (EPF_LIKELY((int64_t)(last - d->dequeued) < (int64_t)size))
		return 0;
	d->dequeued = epf_dev_shared_wait(d->ctx, d->ring, EPF_GPU_ROOM, last + 1u - size, &rc);
	if (rc)
		epf_dev_break(d->ring);
	return rc;
}

/* What a reservation in a shared ring got: see `head` in epf_gpu.h. */
struct epf_dev_place {
	uint64_t at;     /* first slot */
	uint64_t pushed; /* commands in front of it */
};

/*
 * Reserves slots of a shared ring for narrow and wide commands: one atomic add. The two loads before it only say which lap of the packed
 * counters this is; what they bring may be old. 0, or the failure of the wait for room.
 */
EPF_DEV_FN int epf_dev_reserve(struct epf_dev *d, uint32_t narrow, uint32_t wide,
			       struct epf_dev_place *p)
{
	struct epf_gpu_ring *ring = d->ring;
	uint64_t near = epf_ld_relaxed_gpu(&ring->dequeued);
	uint64_t wides = epf_ld_relaxed_gpu(&ring->pushed);
	uint32_t slots = narrow + 2u * wide;
	uint64_t head = epf_add_gpu(&ring->head, slots + wide * EPF_GPU_HEAD_WIDE);

	if (wide)
		(void)epf_add_gpu(&ring->pushed, wide);
	p->at = epf_gpu_head_slots(head, near);
	p->pushed = p->at - ring->wides - epf_gpu_head_wides(head, p->at, wides);
	return epf_dev_shared_room(d, p->at + slots - 1u);
}

/* Commands of lanes `m` into the shared ring, side by side in lane order: one atomic add for all of them. */
EPF_DEV_FN int epf_dev_push_shared(struct epf_dev *d, struct epf_cmd c, epf_lanes m)
{
	uint32_t leader = epf_lanes_first(m);
	struct epf_dev_place p = { 0, 0 };
	uint32_t before;
	int rc = 0;

	if (epf_lane() == leader)
		rc = epf_dev_reserve(d, epf_lanes_count(m), 0, &p);
	rc = (int)epf_lanes_get(m, (uint64_t)(uint32_t)rc, leader);
	p.at = epf_lanes_get(m, p.at, leader);
	p.pushed = epf_lanes_get(m, p.pushed, leader);
	if (rc)
		return rc;
	before = epf_lanes_before(m);
	epf_dev_store(d->slots, d->log2, p.at + before, c);
	d->pushed = p.pushed + before + 1u;
	return 0;
}

/* ---- opening and closing ---- */

/* Takes the lease of a private ring: its index, or n_private when none is free. Waits for nobody. [G2] */
EPF_DEV_FN uint32_t epf_dev_lease(const struct epf_gpu_ctx *ctx)
{
	struct epf_gpu_leases *words = (struct epf_gpu_leases *)ctx->leases;
	uint32_t first = ctx->lease_words ? epf_processor() % ctx->lease_words : 0;

	for (uint32_t i = 0; i < ctx->lease_words; i++) {
		uint32_t w = (first + i) % ctx->lease_words;
		uint64_t free = epf_ld_relaxed_gpu(&words[w].free);

		while (free) {
			uint64_t bit = free & (~free + 1u);
			uint32_t n = 0;

			free = epf_and_gpu(&words[w].free, ~bit);
			if (!(free & bit))
				continue; /* somebody was faster: `free` is what there is now */
			epf_fence_gpu();
			while (bit >>= 1)
				n++;
			return w * 64u + n;
		}
	}
	return ctx->n_private;
}

/* Private ring `index`, or for n_private a shared one: the same for all threads of a block. */
EPF_DEV_FN void epf_dev_attach(struct epf_dev *d, const struct epf_gpu_ctx *ctx, uint32_t index)
{
	struct epf_gpu_ring *rings = (struct epf_gpu_ring *)ctx->rings;

	d->ctx = ctx;
	d->index = index;
	d->shared = index == ctx->n_private;
	d->ring = d->shared ? rings + epf_block_number() % ctx->n_shared
			    : rings + ctx->n_shared + index;
	d->slots = (struct epf_cmd *)d->ring->slots;
	d->shm = (uint8_t *)d->ring->shm;
	d->log2 = d->ring->log2;
	d->pad = 0;
	/* Written by earlier holders, of this kernel too: not through a cache of this multiprocessor. */
	d->head = epf_ld_relaxed_gpu(&d->ring->head);
	/* Nothing pushed yet: a ticket that is retired. */
	d->pushed = epf_ld_relaxed_gpu(d->shared ? &d->ring->retired : &d->ring->pushed);
	d->dequeued = epf_ld_acquire_gpu(&d->ring->dequeued);
}

/**
 * epf_dev_open() - access to a ring for one thread: a private one if one is free, else a shared one (see epf_dev_is_shared()).
 *
 * Costs about two accesses to GPU memory. Not ordered with anything. Close it before the kernel ends: a private ring that is
 * not closed stays dequeued, and what it had pushed is unknown to the next holder.
 */
EPF_DEV_FN void epf_dev_open(struct epf_dev *d, const struct epf_gpu_ctx *ctx)
{
	epf_dev_attach(d, ctx, epf_dev_lease(ctx));
}

/* epf_dev_open_shared() - the same, always a shared ring. Needs no close. */
EPF_DEV_FN void epf_dev_open_shared(struct epf_dev *d, const struct epf_gpu_ctx *ctx)
{
	epf_dev_attach(d, ctx, ctx->n_private);
}

/* epf_warp_open() - one ring for a whole warp; all lanes call it, and each gets d. */
EPF_DEV_FN void epf_warp_open(struct epf_dev *d, const struct epf_gpu_ctx *ctx)
{
	epf_lanes all = epf_lanes_where(1);
	uint32_t leader = epf_lanes_first(all);
	uint64_t index = 0;

	if (epf_lane() == leader)
		index = epf_dev_lease(ctx);
	epf_dev_attach(d, ctx, (uint32_t)epf_lanes_get(all, index, leader));
}

EPF_DEV_FN int epf_dev_is_shared(const struct epf_dev *d)
{
	return (int)d->shared;
}

/* epf_dev_close() - gives the ring back. What was pushed goes on; nothing is waited for. [G1] */
EPF_DEV_FN void epf_dev_close(struct epf_dev *d)
{
	struct epf_gpu_leases *words = (struct epf_gpu_leases *)d->ctx->leases;

	if (d->shared)
		return;
	epf_st_relaxed_gpu(&d->ring->head, d->head);
	epf_st_relaxed_gpu(&d->ring->pushed, d->pushed);
	epf_st_relaxed_gpu(&d->ring->dequeued, d->dequeued);
	epf_fence_gpu();
	(void)epf_or_gpu(&words[d->index / 64u].free, (uint64_t)1 << (d->index % 64u));
}

EPF_DEV_FN void epf_warp_close(struct epf_dev *d)
{
	epf_warp_barrier();
	if (epf_lane() == 0)
		epf_dev_close(d);
}

/* ---- fences ---- */

/**
 * epf_dev_fence() - what this thread has written, and what it has seen written (by a barrier, an acquire), is visible to NICs, CPUs and
 * other GPUs before any command this thread pushes afterwards.
 *
 * 0.6 us on an idle H200, several while the GPU's NVLink is busy: once a batch.
 */
EPF_DEV_FN void epf_dev_fence(void)
{
	epf_fence_sys();
}

/* The same for what all lanes wrote; commands of any lane come after it. */
EPF_DEV_FN void epf_warp_fence(void)
{
	epf_warp_barrier();
	if (epf_lane() == 0)
		epf_fence_sys();
	epf_warp_barrier();
}

/* The same for what all threads of the block wrote; commands of any of them come after it. */
EPF_DEV_FN void epf_block_fence(void)
{
	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		epf_fence_sys();
	epf_block_barrier();
}

/* ---- pushing ---- */

/**
 * epf_dev_push() - pushes one packed narrow command (queues/epf_cmd.h, parity 0). Relaxed: see the top of this file.
 *
 * Waits only while the ring is full. On failure nothing was pushed.
 */
EPF_DEV_FN int epf_dev_push(struct epf_dev *d, struct epf_cmd c)
{
	if (d->shared)
		return epf_dev_push_shared(d, c, epf_lanes_active());
	if (EPF_UNLIKELY(d->head - d->dequeued >= (uint64_t)1 << d->log2)) {
		int rc = 0;

		d->dequeued = epf_dev_private_room(d->ctx, d->ring, d->head, &rc);
		if (rc)
			return rc;
	}
	epf_dev_store(d->slots, d->log2, d->head, c);
	d->head++;
	d->pushed++;
	return 0;
}

/**
 * epf_warp_push() - the commands of all lanes whose `active` is not 0, side by side in lane order. All lanes call it, converged.
 *
 * Relaxed. Result and ticket (of the last of them) are the same in every lane; on failure nothing was pushed.
 */
EPF_DEV_FN int epf_warp_push(struct epf_dev *d, struct epf_cmd c, int active)
{
	epf_lanes m = epf_lanes_where(active);
	uint32_t n = epf_lanes_count(m);

	if (!n)
		return 0;
	if (d->shared) {
		/* Lanes without a command take result and ticket from those that have one. */
		epf_lanes all = epf_lanes_where(1);
		uint32_t last = epf_lanes_last(m);
		int rc = active ? epf_dev_push_shared(d, c, m) : 0;

		d->pushed = epf_lanes_get(all, d->pushed, last);
		return (int)epf_lanes_get(all, (uint64_t)(uint32_t)rc, last);
	}
	if (EPF_UNLIKELY(d->head + n - d->dequeued > (uint64_t)1 << d->log2)) {
		epf_lanes all = epf_lanes_where(1);
		uint64_t dequeued = 0;
		int rc = 0;

		if (epf_lane() == epf_lanes_first(all))
			dequeued = epf_dev_private_room(d->ctx, d->ring, d->head + n - 1u, &rc);
		rc = (int)epf_lanes_get(all, (uint64_t)(uint32_t)rc, epf_lanes_first(all));
		d->dequeued = epf_lanes_get(all, dequeued, epf_lanes_first(all));
		if (rc)
			return rc;
	}
	if (active)
		epf_dev_store(d->slots, d->log2, d->head + epf_lanes_before(m), c);
	d->head += n;
	d->pushed += n;
	return 0;
}

/* One thread's wide command, in its private ring or a shared one. */
EPF_DEV_COLD int epf_dev_push_wide(struct epf_dev *d, const struct epf_op *op)
{
	struct epf_dev_place p = { d->head, d->pushed };
	struct epf_cmd c[2];
	int rc = 0;

	if (!epf_op_fits_wide(op))
		return epf_dev_fail(d->ctx, EPF_GPU_LIMIT, EPF_GPU_COMMAND, op->op, op->length,
				    op->remote_offset);
	if (d->shared)
		rc = epf_dev_reserve(d, 0, 1, &p);
	else if (d->head + 2u - d->dequeued > (uint64_t)1 << d->log2)
		d->dequeued = epf_dev_private_room(d->ctx, d->ring, d->head + 1u, &rc);
	if (rc)
		return rc;
	epf_op_pack_wide(op, c);
	epf_dev_store(d->slots, d->log2, p.at, c[0]);
	epf_dev_store(d->slots, d->log2, p.at + 1u, c[1]);
	d->head = p.at + 2u; /* private; who pushes into a shared ring never looks at it */
	d->pushed = p.pushed + 1u;
	return 0;
}

/* Commands of a warp of which some are wide: side by side in lane order, as epf_warp_push() does it. */
EPF_DEV_COLD int epf_warp_push_wide(struct epf_dev *d, const struct epf_op *op, int active)
{
	int is_wide = active && !epf_op_is_narrow(op);
	epf_lanes all = epf_lanes_where(1), m = epf_lanes_where(active);
	epf_lanes w = epf_lanes_where(is_wide);
	uint32_t first = epf_lanes_first(all);
	uint32_t n = epf_lanes_count(m), slots = n + epf_lanes_count(w);
	struct epf_dev_place p = { d->head, d->pushed };
	uint64_t dequeued = d->dequeued, size = (uint64_t)1 << d->log2;
	struct epf_cmd c[2];
	int rc = 0;

	/* A wave of 64 wide commands needs a ring of 128 slots. */
	if (epf_lanes_where(is_wide && !epf_op_fits_wide(op)) != 0 || slots > size)
		return epf_dev_fail(d->ctx, EPF_GPU_LIMIT, EPF_GPU_COMMAND, op->op, op->length,
				    op->remote_offset);
	if (epf_lane() == first && d->shared)
		rc = epf_dev_reserve(d, n - epf_lanes_count(w), epf_lanes_count(w), &p);
	else if (epf_lane() == first && d->head + slots - d->dequeued > size)
		dequeued = epf_dev_private_room(d->ctx, d->ring, d->head + slots - 1u, &rc);
	rc = (int)epf_lanes_get(all, (uint64_t)(uint32_t)rc, first);
	p.at = epf_lanes_get(all, p.at, first);
	p.pushed = epf_lanes_get(all, p.pushed, first);
	if (!d->shared)
		d->dequeued = epf_lanes_get(all, dequeued, first);
	if (rc)
		return rc;
	if (active) {
		uint64_t at = p.at + epf_lanes_before(m) + epf_lanes_before(w);

		if (is_wide)
			epf_op_pack_wide(op, c);
		else
			c[0] = epf_op_pack_narrow(op);
		epf_dev_store(d->slots, d->log2, at, c[0]);
		if (is_wide)
			epf_dev_store(d->slots, d->log2, at + 1u, c[1]);
	}
	d->head = p.at + slots;
	d->pushed = p.pushed + n;
	return 0;
}

/* What pushing changes, and no more: the compiler keeps the rest of d where it is. */
EPF_DEV_FN void epf_dev_moved(struct epf_dev *d, const struct epf_dev *after)
{
	d->head = after->head;
	d->pushed = after->pushed;
	d->dequeued = after->dequeued;
}

/* Narrow where the command fits: that is always one comparison chain that the compiler folds for constant arguments. */
EPF_DEV_FN int epf_dev_push_op(struct epf_dev *d, const struct epf_op *op)
{
	struct epf_dev copy; /* copies, so that d and op can stay in registers */
	struct epf_op wide;
	int rc;

	if (EPF_LIKELY(epf_op_is_narrow(op)))
		return epf_dev_push(d, epf_op_pack_narrow(op));
	copy = *d;
	wide = *op;
	rc = epf_dev_push_wide(&copy, &wide);
	epf_dev_moved(d, &copy);
	return rc;
}

EPF_DEV_FN int epf_warp_push_op(struct epf_dev *d, const struct epf_op *op, int active)
{
	struct epf_dev copy;
	struct epf_op wide;
	int rc;

	if (EPF_LIKELY(epf_lanes_where(active && !epf_op_is_narrow(op)) == 0))
		return epf_warp_push(d, epf_op_pack_narrow(op), active);
	copy = *d;
	wide = *op;
	rc = epf_warp_push_wide(&copy, &wide, active);
	epf_dev_moved(d, &copy);
	return rc;
}

#endif
