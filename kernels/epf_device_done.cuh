/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of epf_device.cuh, which users include: when commands are retired, flushes, and the signals of this rank. Thread forms.
 */
#ifndef EPF_KERNELS_DEVICE_DONE_CUH
#define EPF_KERNELS_DEVICE_DONE_CUH

#include "kernels/epf_device_cmd.cuh"
#include "queues/epf_signal.h"

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
	uint64_t seen;

	if (!d->shared)
		return (int64_t)(epf_ld_acquire_sys(word) - ticket) >= 0;
	seen = epf_ld_acquire_gpu(&d->ring->retired);
	if ((int64_t)(seen - ticket) >= 0)
		return 1;
	return epf_dev_refresh(word, &d->ring->retired, &d->ring->refreshing_retired, &seen) &&
	       (int64_t)(seen - ticket) >= 0;
}

/* Waits until a ring has retired that many commands. By values, so that d can stay in registers. [A3] */
EPF_DEV_COLD int epf_dev_wait_retired(const struct epf_gpu_ctx *ctx, struct epf_gpu_ring *ring,
				      uint32_t shared, uint64_t ticket)
{
	const uint8_t *shm = (const uint8_t *)ring->shm;
	const uint64_t *word = epf_dev_word(shm, offsetof(struct epf_ring_shm, done) +
							 offsetof(struct epf_done, retired));
	const uint64_t *abort = epf_dev_word(shm, offsetof(struct epf_ring_shm, abort));
	struct epf_dev_clock clock = { 0, 0, 0 };
	uint64_t seen;
	int rc = 0;

	if (shared) {
		(void)epf_dev_shared_wait(ctx, ring, EPF_GPU_RETIRED, ticket, &rc);
		return rc;
	}
	for (;;) {
		seen = epf_ld_acquire_sys(word);
		if ((int64_t)(seen - ticket) >= 0)
			break;
		rc = epf_dev_tick(ctx, &clock, abort);
		if (rc) {
			(void)epf_dev_fail(ctx, rc, EPF_GPU_RETIRED, ring->id, ticket, seen);
			break;
		}
		epf_dev_lasts(ctx, &clock, EPF_WAKE_ON_RETIRED, ring->id, ticket, seen);
	}
	epf_dev_report_end(ctx, &clock);
	return rc;
}

/* epf_dev_wait() - waits until the command of that ticket is retired, whether done or failed (epf_dev_flush reports which). Acquire. */
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

/* Waits until *word is at least `at_least` (modulo 2^64). Acquire. `what` and number are for the host's sentence. */
EPF_DEV_COLD int epf_dev_wait_at(const struct epf_gpu_ctx *ctx, const uint64_t *word, uint32_t what,
				 uint32_t number, uint64_t at_least)
{
	struct epf_dev_clock clock = { 0, 0, 0 };
	uint64_t seen;
	int rc = 0;

	while ((int64_t)((seen = epf_ld_acquire_sys(word)) - at_least) < 0 && !rc) {
		rc = epf_dev_tick_peers(ctx, &clock);
		if (what == EPF_GPU_WAIT)
			epf_dev_lasts(ctx, &clock, EPF_WAKE_ON_SIGNAL, number, at_least, seen);
	}
	epf_dev_report_end(ctx, &clock);
	if ((int64_t)(seen - at_least) >= 0)
		return 0;
	return epf_dev_fail(ctx, rc, what, number, at_least, seen);
}

/**
 * epf_dev_wait_signal() - waits until a signal of this rank is at least `at_least` (modulo 2^64).
 *
 * Acquire: data that it covers is visible to this thread, and behind a barrier to its block. One thread should wait for a signal and pass
 * the value on (epf_block_wait_signal): multiprocessors that poll one word of host memory slow each other down. [A4]
 */
EPF_DEV_FN int epf_dev_wait_signal(const struct epf_gpu_ctx *ctx, uint32_t signal,
				   uint64_t at_least)
{
	if (signal >= ctx->n_signals)
		return epf_dev_fail(ctx, EPF_GPU_SIGNAL, EPF_GPU_WAIT, signal, at_least, 0);
	return epf_dev_wait_at(ctx, epf_dev_signal_word(ctx, signal), EPF_GPU_WAIT, signal,
			       at_least);
}

/**
 * epf_dev_wait_word() - the same for a signal in GPU memory: an aligned 8-byte word of a region of this rank, to which peers add with
 * epf_dev_add() or epf_add(). The NIC makes the additions, after the data they cover.
 *
 * Acquire, as above. Any number of threads may poll it: it lies in the GPU's own memory. A signal of the rank (in host memory) arrives sooner
 * where the CPU applies it; this is for kernels that many threads of which wait, and for words that kernels change too. [A4]
 */
EPF_DEV_FN int epf_dev_wait_word(const struct epf_gpu_ctx *ctx, const uint64_t *word,
				 uint64_t at_least)
{
	return epf_dev_wait_at(ctx, word, EPF_GPU_WORD, 0, at_least);
}

#endif
