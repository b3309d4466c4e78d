/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands, flushes and waits from a CUDA or HIP kernel. One source for both, in the common subset of C and C++; included by users'
 * kernels. The host side is epf_gpu_open() in fabric/epf.h, whose context a kernel takes as its argument. A whole program:
 * kernels/examples/ring_put.cu.
 *
 *     __global__ void send(const struct epf_gpu_ctx *ctx, uint32_t peer)
 *     {
 *         struct epf_dev d;
 *         ... every thread writes its part of the payload into a registered region ...
 *         epf_block_fence();                                  // payload of the whole block before the command
 *         if (threadIdx.x == 0) {
 *             epf_dev_open(&d, ctx);                          // a private ring if one is free, else a shared one
 *             epf_dev_put_signal(&d, peer, 0, 0, 0, 0, BYTES, SIGNAL, 1, 0);
 *             epf_dev_flush(&d, 0);
 *             epf_dev_close(&d);
 *         }
 *     }
 *
 * struct epf_dev is one producer's access to one ring, kept in registers. Three forms of each call:
 *  - epf_dev_*: one thread that opened d by epf_dev_open().
 *  - epf_warp_*: all lanes of one warp, converged, with the d that epf_warp_open() gave each of them. Every lane brings its own
 *    command and says by `active` whether it has one; the commands are stored side by side, in lane order.
 *  - epf_block_*: all threads of a block; a block barrier, then thread 0 acts with its d, then a barrier. All get the result.
 *
 * Order and visibility. A command is one relaxed 16-byte store of system scope: fast, and it orders NOTHING before it. What a put is to
 * send must be made visible first, by epf_dev_fence() in the thread that wrote it (epf_warp_fence(), epf_block_fence(): for what the
 * whole warp or block wrote). One fence covers everything before it, so pay it once for a batch of commands. Data that was
 * written before the kernel began needs no fence. Commands of one ring are taken in the order of their pushes; what that
 * means for data and signals at the peer is the contract at the top of fabric/epf.h.
 *
 * Results: 0, or a negative enum epf_gpu_code. The first failure of any thread is also recorded, and epf_gpu_check() makes a sentence of it. No wait
 * is endless: each ends at the context's deadline (gpu-timeout), or soon after epf_abort() on the host. Nobody waits for a private ring.
 */
#ifndef EPF_KERNELS_DEVICE_CUH
#define EPF_KERNELS_DEVICE_CUH

#include "kernels/epf_arch.cuh"
#include "queues/epf_gpu.h"
#include "queues/epf_ring.h"
#include "queues/epf_signal.h"

#define EPF_DEV_CHECK_EVERY 64u /* polls between two looks at the clock and the abort word */

/* One producer's access to one ring. Members are for the calls below only. */
struct epf_dev {
	const struct epf_gpu_ctx *ctx;
	struct epf_gpu_ring *ring;
	struct epf_cmd *slots;
	uint8_t *shm;
	uint64_t head;   /* private: slots written */
	uint64_t pushed; /* commands: the ticket of this producer's last one */
	uint64_t taken;  /* last value seen of the core's word */
	uint32_t log2;
	uint32_t shared; /* 1: a shared ring */
	uint32_t index;  /* private: which */
	uint32_t pad;
};

/* ---- inside: words, failures, waits ---- */

EPF_DEV_FN const uint64_t *epf_dev_word(const uint8_t *shm, size_t offset)
{
	return (const uint64_t *)(const void *)(shm + offset);
}

/* Records the first failure of the context; returns the code. */
EPF_DEV_COLD int epf_dev_fail(const struct epf_gpu_ctx *ctx, int code, uint32_t what,
			      uint32_t number, uint64_t want, uint64_t seen)
{
	struct epf_gpu_status *s = (struct epf_gpu_status *)ctx->status;

	if (epf_exchange32_gpu((uint32_t *)ctx->failed, 1u))
		return code;
	s->what = what;
	s->number = number;
	s->block = epf_block_number();
	s->thread = epf_thread_in_block();
	s->want = want;
	s->seen = seen;
	epf_st32_release_sys((uint32_t *)&s->code, (uint32_t)code);
	return code;
}

/* A wait's clock: 0 while it may go on. Looks at the time and at one abort word (in a line of its own) every so many polls. */
struct epf_dev_clock {
	uint64_t start;
	uint32_t polls;
};

EPF_DEV_FN int epf_dev_tick(const struct epf_gpu_ctx *ctx, struct epf_dev_clock *c,
			    const uint64_t *abort)
{
	epf_relax();
	if (++c->polls % EPF_DEV_CHECK_EVERY)
		return 0;
	if (c->polls == EPF_DEV_CHECK_EVERY)
		c->start = epf_timer();
	if (epf_ld_relaxed_sys(abort))
		return EPF_GPU_ABORTED;
	return epf_timer() - c->start > ctx->deadline_ticks ? EPF_GPU_TIMEOUT : 0;
}

/* This multiprocessor's abort word. */
EPF_DEV_FN const uint64_t *epf_dev_abort(const struct epf_gpu_ctx *ctx)
{
	return (const uint64_t *)(ctx->aborts +
				  (uint64_t)(epf_processor() % EPF_GPU_ABORT_LINES) * EPF_GPU_LINE);
}

/* Waits until the core has taken slot `last` - size of a private ring: its holder is the only one that polls this word. [A2] */
EPF_DEV_COLD uint64_t epf_dev_private_room(const struct epf_gpu_ctx *ctx,
					   const struct epf_gpu_ring *ring, uint64_t last, int *rc)
{
	const uint8_t *shm = (const uint8_t *)ring->shm;
	const uint64_t *word = epf_dev_word(shm, offsetof(struct epf_ring_shm, taken));
	const uint64_t *abort = epf_dev_word(shm, offsetof(struct epf_ring_shm, abort));
	struct epf_dev_clock clock = { 0, 0 };
	uint64_t size = (uint64_t)1 << ring->log2;
	uint64_t taken;

	for (;;) {
		taken = epf_ld_acquire_sys(word);
		if (last - taken < size)
			return taken;
		*rc = epf_dev_tick(ctx, &clock, abort);
		if (*rc) {
			(void)epf_dev_fail(ctx, *rc, EPF_GPU_ROOM, ring->id, last + 1u - size,
					   taken);
			return taken;
		}
	}
}

/*
 * Reads the core's word for everybody who waits for the same ring, if nobody else does so now. Returns 1 if it did. [A2, A3; G3]
 */
EPF_DEV_FN int epf_dev_refresh(const uint64_t *word, uint64_t *copy, uint32_t *busy)
{
	if (epf_ld32_relaxed_gpu(busy) || epf_exchange32_gpu(busy, 1u))
		return 0;
	/* The copy only grows while busy is held: one writer at a time. */
	epf_st_release_gpu(copy, epf_ld_acquire_sys(word));
	epf_st32_release_gpu(busy, 0u);
	return 1;
}

/* Waits until the copy of one of the core's words in a shared ring has reached `want`. [G4] */
EPF_DEV_COLD uint64_t epf_dev_shared_wait(const struct epf_gpu_ctx *ctx, struct epf_gpu_ring *ring,
					  uint32_t what, uint64_t want, int *rc)
{
	const uint8_t *shm = (const uint8_t *)ring->shm;
	const uint64_t *abort = epf_dev_abort(ctx);
	int room = what == EPF_GPU_ROOM;
	const uint64_t *word =
		epf_dev_word(shm, room ? offsetof(struct epf_ring_shm, taken)
				       : offsetof(struct epf_ring_shm, done) +
						  offsetof(struct epf_done, retired));
	uint64_t *copy = room ? &ring->taken : &ring->retired;
	uint32_t *busy = room ? &ring->refreshing_taken : &ring->refreshing_retired;
	struct epf_dev_clock clock = { 0, 0 };
	uint64_t seen;

	for (;;) {
		seen = epf_ld_acquire_gpu(copy);
		if ((int64_t)(seen - want) >= 0)
			return seen;
		*rc = (int)(int32_t)epf_ld32_relaxed_gpu((const uint32_t *)&ring->broken);
		if (!*rc)
			*rc = epf_dev_tick(ctx, &clock, abort);
		if (*rc) {
			(void)epf_dev_fail(ctx, *rc, what, ring->id, want, seen);
			return seen;
		}
		if (!epf_dev_refresh(word, copy, busy))
			epf_pause();
	}
}

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

	if (EPF_LIKELY((int64_t)(last - d->taken) < (int64_t)size))
		return 0;
	d->taken = epf_dev_shared_wait(d->ctx, d->ring, EPF_GPU_ROOM, last + 1u - size, &rc);
	if (rc)
		epf_dev_break(d->ring);
	return rc;
}

/* Commands of lanes `m` into the shared ring, side by side in lane order: one atomic add for all of them. */
EPF_DEV_FN int epf_dev_push_shared(struct epf_dev *d, struct epf_cmd c, epf_lanes m)
{
	uint32_t leader = epf_lanes_first(m);
	uint32_t n = epf_lanes_count(m);
	uint64_t at = 0;
	int rc = 0;

	if (epf_lane() == leader) {
		at = epf_add_gpu(&d->ring->head, n);
		rc = epf_dev_shared_room(d, at + n - 1u);
	}
	rc = (int)epf_lanes_get(m, (uint64_t)(uint32_t)rc, leader);
	at = epf_lanes_get(m, at, leader);
	if (rc)
		return rc;
	at += epf_lanes_before(m);
	epf_dev_store(d->slots, d->log2, at, c);
	d->pushed = at + 1u - d->ring->wides;
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
	d->pushed = epf_ld_relaxed_gpu(&d->ring->pushed);
	d->taken = epf_ld_acquire_gpu(&d->ring->taken);
}

/**
 * epf_dev_open() - access to a ring for one thread: a private one if one is free, else a shared one (epf_dev_is_shared() tells).
 *
 * Costs about two accesses to GPU memory. Not ordered with anything. Close it before the kernel ends: a private ring that is
 * not closed stays taken, and what it had pushed is unknown to the next holder.
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
	epf_st_relaxed_gpu(&d->ring->taken, d->taken);
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
	if (EPF_UNLIKELY(d->head - d->taken >= (uint64_t)1 << d->log2)) {
		int rc = 0;

		d->taken = epf_dev_private_room(d->ctx, d->ring, d->head, &rc);
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
	if (EPF_UNLIKELY(d->head + n - d->taken > (uint64_t)1 << d->log2)) {
		epf_lanes all = epf_lanes_where(1);
		uint64_t taken = 0;
		int rc = 0;

		if (epf_lane() == epf_lanes_first(all))
			taken = epf_dev_private_room(d->ctx, d->ring, d->head + n - 1u, &rc);
		rc = (int)epf_lanes_get(all, (uint64_t)(uint32_t)rc, epf_lanes_first(all));
		d->taken = epf_lanes_get(all, taken, epf_lanes_first(all));
		if (rc)
			return rc;
	}
	if (active)
		epf_dev_store(d->slots, d->log2, d->head + epf_lanes_before(m), c);
	d->head += n;
	d->pushed += n;
	return 0;
}

/* The two slots of a wide command, in a private ring: where `taken` stands now. By values, so that d can stay in registers. */
EPF_DEV_COLD uint64_t epf_dev_wide(const struct epf_gpu_ctx *ctx, const struct epf_gpu_ring *ring,
				   const struct epf_op *op, uint64_t head, uint64_t taken, int *rc)
{
	struct epf_cmd *slots = (struct epf_cmd *)ring->slots;
	struct epf_cmd c[2];

	if (!epf_op_fits_wide(op)) {
		*rc = epf_dev_fail(ctx, EPF_GPU_LIMIT, EPF_GPU_COMMAND, op->op, op->length,
				   op->remote_offset);
		return taken;
	}
	if (head + 2u - taken > (uint64_t)1 << ring->log2) {
		taken = epf_dev_private_room(ctx, ring, head + 1u, rc);
		if (*rc)
			return taken;
	}
	epf_op_pack_wide(op, c);
	epf_dev_store(slots, ring->log2, head, c[0]);
	epf_dev_store(slots, ring->log2, head + 1u, c[1]);
	return taken;
}

/* Narrow where it can be said so: that is always one comparison chain that the compiler folds for constant arguments. */
EPF_DEV_FN int epf_dev_push_op(struct epf_dev *d, const struct epf_op *op)
{
	struct epf_op wide;
	int rc = 0;

	if (EPF_LIKELY(epf_op_is_narrow(op)))
		return epf_dev_push(d, epf_op_pack_narrow(op));
	if (d->shared)
		return epf_dev_fail(d->ctx, EPF_GPU_LIMIT, EPF_GPU_COMMAND, op->op, op->length,
				    op->remote_offset);
	wide = *op; /* a copy of its own: op itself never needs an address */
	d->taken = epf_dev_wide(d->ctx, d->ring, &wide, d->head, d->taken, &rc);
	if (rc)
		return rc;
	d->head += 2u;
	d->pushed++;
	return 0;
}

EPF_DEV_FN int epf_warp_push_op(struct epf_dev *d, const struct epf_op *op, int active)
{
	if (EPF_UNLIKELY(epf_lanes_where(active && !epf_op_is_narrow(op)) != 0))
		return epf_dev_fail(d->ctx, EPF_GPU_LIMIT, EPF_GPU_COMMAND, op->op, op->length,
				    op->remote_offset);
	return epf_warp_push(d, epf_op_pack_narrow(op), active);
}

EPF_DEV_FN struct epf_op epf_dev_transfer(unsigned op, uint32_t rank, uint32_t local_region,
					  uint64_t local_offset, uint32_t remote_region,
					  uint64_t remote_offset, uint64_t bytes, unsigned flags)
{
	struct epf_op o;

	o.local_offset = local_offset;
	o.remote_offset = remote_offset;
	o.value = 0;
	/* What no form can say becomes 0 bytes, which no form can say either. */
	o.length = bytes <= EPF_WIDE_LENGTH ? (uint32_t)bytes : 0u;
	o.rank = rank;
	o.signal = 0;
	o.add = 1;
	o.count = 0;
	o.local_region = (uint16_t)local_region;
	o.remote_region = (uint16_t)remote_region;
	o.op = (uint8_t)(local_region < EPF_WIDE_REGIONS && remote_region < EPF_WIDE_REGIONS
				 ? op
				 : EPF_OP_COUNT);
	o.flags = (uint8_t)flags;
	o.reserved = 0;
	o.slots = 1;
	return o;
}

/* ---- commands: thread forms; what they mean is said in fabric/epf.h ---- */

/* epf_dev_put() - local memory to remote memory. The source may be reused when the command is retired (epf_dev_wait). */
EPF_DEV_FN int epf_dev_put(struct epf_dev *d, uint32_t rank, uint32_t local_region,
			   uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
			   uint64_t bytes, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_PUT, rank, local_region, local_offset,
					   remote_region, remote_offset, bytes, flags & EPF_F_BULK);

	return epf_dev_push_op(d, &o);
}

/* epf_dev_put_group() - a put that counts towards group `signal` at `rank` (epf_dev_signal_counted). */
EPF_DEV_FN int epf_dev_put_group(struct epf_dev *d, uint32_t rank, uint32_t local_region,
				 uint64_t local_offset, uint32_t remote_region,
				 uint64_t remote_offset, uint64_t bytes, uint32_t signal,
				 unsigned flags)
{
	struct epf_op o =
		epf_dev_transfer(EPF_OP_PUT, rank, local_region, local_offset, remote_region,
				 remote_offset, bytes, (flags & EPF_F_BULK) | EPF_F_COUNTED);

	o.signal = signal;
	return epf_dev_push_op(d, &o);
}

/* epf_dev_put_signal() - put, then add `add` to the peer's signal; with EPF_F_FENCE after everything earlier of the stream. */
EPF_DEV_FN int epf_dev_put_signal(struct epf_dev *d, uint32_t rank, uint32_t local_region,
				  uint64_t local_offset, uint32_t remote_region,
				  uint64_t remote_offset, uint64_t bytes, uint32_t signal,
				  uint32_t add, unsigned flags)
{
	struct epf_op o =
		epf_dev_transfer(EPF_OP_PUT_SIGNAL, rank, local_region, local_offset, remote_region,
				 remote_offset, bytes, flags & (EPF_F_FENCE | EPF_F_BULK));

	o.signal = signal;
	o.add = add;
	return epf_dev_push_op(d, &o);
}

/* epf_dev_signal() - adds to a signal of `rank` after everything earlier of the stream. */
EPF_DEV_FN int epf_dev_signal(struct epf_dev *d, uint32_t rank, uint32_t signal, uint64_t value,
			      unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_SIGNAL, rank, 0, 0, 0, 0, 0, flags & EPF_F_BULK);

	o.signal = signal;
	o.value = value;
	return epf_dev_push_op(d, &o);
}

/* epf_dev_signal_counted() - adds to a signal once `count` more puts of its group from this rank are there. */
EPF_DEV_FN int epf_dev_signal_counted(struct epf_dev *d, uint32_t rank, uint32_t signal,
				      uint64_t value, uint32_t count, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_SIGNAL, rank, 0, 0, 0, 0, 0,
					   (flags & EPF_F_BULK) | EPF_F_COUNTED);

	o.signal = signal;
	o.value = value;
	o.count = count;
	return epf_dev_push_op(d, &o);
}

/* epf_dev_get() - remote memory to local memory; retired when the local memory is written. Read it after epf_dev_wait. */
EPF_DEV_FN int epf_dev_get(struct epf_dev *d, uint32_t rank, uint32_t local_region,
			   uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
			   uint64_t bytes, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_GET, rank, local_region, local_offset,
					   remote_region, remote_offset, bytes, flags & EPF_F_BULK);

	return epf_dev_push_op(d, &o);
}

/* epf_dev_flush_post() - pushes a FLUSH; its ticket is retired when everything earlier of the ring is visible at its target. */
EPF_DEV_FN int epf_dev_flush_post(struct epf_dev *d, unsigned flags)
{
	return epf_dev_push(d, epf_cmd_flush(flags & EPF_F_ALL));
}

/* ---- waiting ---- */

/* epf_dev_ticket() - of the last command that this thread, or in warp forms this warp, pushed. */
EPF_DEV_FN uint64_t epf_dev_ticket(const struct epf_dev *d)
{
	return d->pushed;
}

/**
 * epf_dev_test() - 1 if the command of that ticket is retired, else 0. Waits for nothing.
 *
 * Acquire: what a get brought is there. Reads the host once (1.3 us); in a shared ring a copy in GPU memory while others read the host.
 */
EPF_DEV_FN int epf_dev_test(struct epf_dev *d, uint64_t ticket)
{
	const uint64_t *word = epf_dev_word(d->shm, offsetof(struct epf_ring_shm, done) +
							    offsetof(struct epf_done, retired));

	if (!d->shared)
		return (int64_t)(epf_ld_acquire_sys(word) - ticket) >= 0;
	if ((int64_t)(epf_ld_acquire_gpu(&d->ring->retired) - ticket) >= 0)
		return 1;
	return epf_dev_refresh(word, &d->ring->retired, &d->ring->refreshing_retired) &&
	       (int64_t)(epf_ld_acquire_gpu(&d->ring->retired) - ticket) >= 0;
}

/* Waits until a ring has retired that many commands. By values, so that d can stay in registers. [A3] */
EPF_DEV_COLD int epf_dev_wait_retired(const struct epf_gpu_ctx *ctx, struct epf_gpu_ring *ring,
				      uint32_t shared, uint64_t ticket)
{
	const uint8_t *shm = (const uint8_t *)ring->shm;
	const uint64_t *word = epf_dev_word(shm, offsetof(struct epf_ring_shm, done) +
							 offsetof(struct epf_done, retired));
	const uint64_t *abort = epf_dev_word(shm, offsetof(struct epf_ring_shm, abort));
	struct epf_dev_clock clock = { 0, 0 };
	uint64_t seen;
	int rc = 0;

	if (shared) {
		(void)epf_dev_shared_wait(ctx, ring, EPF_GPU_RETIRED, ticket, &rc);
		return rc;
	}
	for (;;) {
		seen = epf_ld_acquire_sys(word);
		if ((int64_t)(seen - ticket) >= 0)
			return 0;
		rc = epf_dev_tick(ctx, &clock, abort);
		if (rc)
			return epf_dev_fail(ctx, rc, EPF_GPU_RETIRED, ring->id, ticket, seen);
	}
}

/* epf_dev_wait() - waits until the command of that ticket is retired, whether done or failed (epf_dev_flush tells). Acquire. */
EPF_DEV_FN int epf_dev_wait(struct epf_dev *d, uint64_t ticket)
{
	return epf_dev_wait_retired(d->ctx, d->ring, d->shared, ticket);
}

/**
 * epf_dev_flush() - pushes a FLUSH and waits for it: everything earlier of the ring (EPF_F_ALL: of the rank) is visible at its target.
 *
 * EPF_GPU_FAILED when a command of the ring has failed since its last flush; the error record of the ring says which.
 */
EPF_DEV_FN int epf_dev_flush(struct epf_dev *d, unsigned flags)
{
	const uint64_t *word = epf_dev_word(d->shm, offsetof(struct epf_ring_shm, done) +
							    offsetof(struct epf_done, failed));
	int rc = epf_dev_flush_post(d, flags);
	uint64_t failed;

	if (!rc)
		rc = epf_dev_wait(d, epf_dev_ticket(d));
	if (rc)
		return rc;
	failed = epf_ld_acquire_sys(word);
	if (EPF_LIKELY(failed == epf_ld_relaxed_gpu(&d->ring->failed)))
		return 0;
	epf_st_relaxed_gpu(&d->ring->failed, failed);
	return epf_dev_fail(d->ctx, EPF_GPU_FAILED, EPF_GPU_RETIRED, d->ring->id, d->pushed,
			    failed);
}

EPF_DEV_FN const uint64_t *epf_dev_signal_word(const struct epf_gpu_ctx *ctx, uint32_t signal)
{
	return (const uint64_t *)(ctx->signals + (uint64_t)signal * ctx->signal_stride);
}

/* epf_dev_signal_value() - a signal of this rank. Acquire: data it covers is visible to this thread. The number must exist. [A4] */
EPF_DEV_FN uint64_t epf_dev_signal_value(const struct epf_gpu_ctx *ctx, uint32_t signal)
{
	return epf_ld_acquire_sys(epf_dev_signal_word(ctx, signal));
}

/**
 * epf_dev_wait_signal() - waits until a signal of this rank is at least `at_least` (modulo 2^64).
 *
 * Acquire: data that it covers is visible to this thread, and behind a barrier to its block. One thread should wait for a signal and pass
 * the news on (epf_block_wait_signal): multiprocessors that poll one word of host memory slow each other down. [A4]
 */
EPF_DEV_COLD int epf_dev_wait_signal(const struct epf_gpu_ctx *ctx, uint32_t signal,
				     uint64_t at_least)
{
	const uint64_t *word = epf_dev_signal_word(ctx, signal);
	const uint64_t *abort = epf_dev_abort(ctx);
	struct epf_dev_clock clock = { 0, 0 };
	uint64_t seen;
	int rc;

	if (signal >= ctx->n_signals)
		return epf_dev_fail(ctx, EPF_GPU_SIGNAL, EPF_GPU_WAIT, signal, at_least, 0);
	for (;;) {
		seen = epf_ld_acquire_sys(word);
		if ((int64_t)(seen - at_least) >= 0)
			return 0;
		rc = epf_dev_tick(ctx, &clock, abort);
		if (rc)
			return epf_dev_fail(ctx, rc, EPF_GPU_WAIT, signal, at_least, seen);
	}
}

#include "kernels/epf_device_group.cuh"

#endif
