/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of epf_device.cuh, which users include: how kernels fail, and how they wait for a word of the core: with a deadline, an abort word, and
 * without polling storms. Knows rings as epf_gpu.h describes them and nothing of who pushes.
 */
#ifndef EPF_KERNELS_DEVICE_WAIT_CUH
#define EPF_KERNELS_DEVICE_WAIT_CUH

#include "kernels/epf_arch.cuh"
#include "queues/epf_gpu.h"
#include "queues/epf_ring.h"
#include "queues/epf_wakeup.h"

#define EPF_DEV_CHECK_EVERY 64u /* polls between two looks at the clock and the abort word */

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

/* A wait's clock: 0 while it may go on. Looks at the time and at one abort word (in a separate line) every so many polls. */
struct epf_dev_clock {
	uint64_t start;
	uint32_t polls;
	uint32_t reported; /* 1: the host knows of this wait */
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

/*
 * Reports a wait that lasts longer than a millisecond to the host, once, unless another one is reported already: ep-fabric why and ep-top
 * name it. condition: enum epf_wakeup_condition. Out of line: keeps the polling loops small. epf_dev_report_end() withdraws it.
 */
EPF_DEV_COLD void epf_dev_report(const struct epf_gpu_ctx *ctx, struct epf_dev_clock *c,
				 uint32_t condition, uint32_t index, uint64_t least, uint64_t seen)
{
	struct epf_wakeup *wakeup = (struct epf_wakeup *)ctx->wakeup;
	uint32_t *busy = (uint32_t *)ctx->failed + 1;

	if (!wakeup || epf_timer() - c->start < ctx->timer_khz || epf_ld32_relaxed_gpu(busy) ||
	    epf_exchange32_gpu(busy, 1u))
		return;
	c->reported = 1;
	/* Atomic, each word by itself: the engine may be reading what the wait before left here. */
	epf_st32_relaxed_sys(&wakeup->kernel_index, index);
	epf_st_relaxed_sys(&wakeup->kernel_least, least);
	epf_st_relaxed_sys(&wakeup->kernel_seen, seen);
	epf_st32_release_sys(&wakeup->kernel_condition, condition); /* B3 */
}

/* A poll of a wait that goes on. */
EPF_DEV_FN void epf_dev_lasts(const struct epf_gpu_ctx *ctx, struct epf_dev_clock *c,
			      uint32_t condition, uint32_t index, uint64_t least, uint64_t seen)
{
	if (EPF_UNLIKELY(c->polls % EPF_DEV_CHECK_EVERY == 0 && !c->reported))
		epf_dev_report(ctx, c, condition, index, least, seen);
}

/* The wait is over. */
EPF_DEV_FN void epf_dev_report_end(const struct epf_gpu_ctx *ctx, const struct epf_dev_clock *c)
{
	if (EPF_LIKELY(!c->reported))
		return;
	epf_st32_release_sys(&((struct epf_wakeup *)ctx->wakeup)->kernel_condition, 0u);
	epf_st32_relaxed_gpu((uint32_t *)ctx->failed + 1, 0u);
}

/* This multiprocessor's abort word. */
EPF_DEV_FN const uint64_t *epf_dev_abort(const struct epf_gpu_ctx *ctx)
{
	return (const uint64_t *)(ctx->aborts +
				  (uint64_t)(epf_processor() % EPF_GPU_ABORT_LINES) * EPF_GPU_LINE);
}

/* How many ranks of the job are lost. */
EPF_DEV_FN uint64_t epf_dev_losses(const struct epf_gpu_ctx *ctx)
{
	return epf_ld_relaxed_sys(epf_dev_abort(ctx) +
				  offsetof(struct epf_gpu_abort, lost) / sizeof(uint64_t));
}

EPF_DEV_COLD int epf_dev_bit_of(const struct epf_gpu_ctx *ctx, uint32_t rank)
{
	return (int)(epf_ld32_acquire_sys((const uint32_t *)ctx->gone + rank / 32u) >> rank % 32u &
		     1u);
}

/*
 * 1 if this rank is lost or has closed, 0 if not. A wait that ends because of it looks at its word once more: what the rank did before it was gone
 * counts.
 */
EPF_DEV_FN int epf_dev_is_gone(const struct epf_gpu_ctx *ctx, uint32_t rank)
{
	return epf_ld_relaxed_sys(epf_dev_abort(ctx) +
				  offsetof(struct epf_gpu_abort, gone) / sizeof(uint64_t)) &&
	       epf_dev_bit_of(ctx, rank);
}

/* epf_dev_tick() of a wait for peers that names none: it also ends as waits of the CPU do, when one that is not masked is lost. */
EPF_DEV_FN int epf_dev_tick_peers(const struct epf_gpu_ctx *ctx, struct epf_dev_clock *c)
{
	const uint64_t *line = epf_dev_abort(ctx);
	int rc = epf_dev_tick(ctx, c, line);

	if (rc || c->polls % EPF_DEV_CHECK_EVERY)
		return rc;
	return epf_ld_relaxed_sys(line + offsetof(struct epf_gpu_abort, stop) / sizeof(uint64_t))
		       ? EPF_GPU_LOST
		       : 0;
}

/* Waits until the core has dequeued slot `last` - size of a private ring: its holder is the only one that polls this word. [A2] */
EPF_DEV_COLD uint64_t epf_dev_private_room(const struct epf_gpu_ctx *ctx,
					   const struct epf_gpu_ring *ring, uint64_t last, int *rc)
{
	const uint8_t *shm = (const uint8_t *)ring->shm;
	const uint64_t *word = epf_dev_word(shm, offsetof(struct epf_ring_shm, dequeued));
	const uint64_t *abort = epf_dev_word(shm, offsetof(struct epf_ring_shm, abort));
	struct epf_dev_clock clock = { 0, 0, 0 };
	uint64_t size = (uint64_t)1 << ring->log2;
	uint64_t dequeued;

	for (;;) {
		dequeued = epf_ld_acquire_sys(word);
		if (last - dequeued < size)
			return dequeued;
		*rc = epf_dev_tick(ctx, &clock, abort);
		if (*rc) {
			(void)epf_dev_fail(ctx, *rc, EPF_GPU_ROOM, ring->id, last + 1u - size,
					   dequeued);
			return dequeued;
		}
	}
}

/*
 * Reads the core's word for everybody who waits for the same ring, if nobody else does so now. Returns 1 if it did, with the value. Two
 * who read one after the other may have their copies land in either order: an older one only makes those who look ask again. [A2, A3; G3]
 */
EPF_DEV_FN int epf_dev_refresh(const uint64_t *word, uint64_t *copy, uint32_t *busy, uint64_t *seen)
{
	if (epf_ld32_relaxed_gpu(busy) || epf_exchange32_gpu(busy, 1u))
		return 0;
	*seen = epf_ld_acquire_sys(word);
	epf_st_release_gpu(copy, *seen);
	epf_st32_relaxed_gpu(busy, 0u);
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
		epf_dev_word(shm, room ? offsetof(struct epf_ring_shm, dequeued)
				       : offsetof(struct epf_ring_shm, done) +
						  offsetof(struct epf_done, retired));
	uint64_t *copy = room ? &ring->dequeued : &ring->retired;
	uint32_t *busy = room ? &ring->refreshing_taken : &ring->refreshing_retired;
	struct epf_dev_clock clock = { 0, 0, 0 };
	uint64_t seen;

	for (;;) {
		seen = epf_ld_acquire_gpu(copy);
		if ((int64_t)(seen - want) >= 0)
			break;
		*rc = (int)(int32_t)epf_ld32_relaxed_gpu((const uint32_t *)&ring->broken);
		if (!*rc)
			*rc = epf_dev_tick(ctx, &clock, abort);
		if (*rc) {
			(void)epf_dev_fail(ctx, *rc, what, ring->id, want, seen);
			break;
		}
		if (!room)
			epf_dev_lasts(ctx, &clock, EPF_WAKE_ON_RETIRED, ring->id, want, seen);
		if (!epf_dev_refresh(word, copy, busy, &seen))
			epf_pause();
		else if ((int64_t)(seen - want) >= 0)
			break;
	}
	epf_dev_report_end(ctx, &clock);
	return seen;
}

#endif
