/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How kernels count (tally.h). Waits are timed only once a first look has failed, phases by one thread of one block; nothing is waited for, and no value
 * stays in a register between two phases. `tally`: the device address of the counts; 0: nothing is counted.
 */
#ifndef EPF_KERNELS_WHY_EPF_TALLY_CUH
#define EPF_KERNELS_WHY_EPF_TALLY_CUH

#include "kernels/epf_arch.cuh"
#include "kernels/why/tally.h"

EPF_DEV_FN struct tally_call *tally_call_of(uint64_t tally, uint32_t call)
{
	return (struct tally_call *)(uintptr_t)tally + call;
}

EPF_DEV_FN struct tally_peer *tally_peer_of(uint64_t tally, uint32_t ranks, uint32_t call,
					    uint32_t rank)
{
	return (struct tally_peer *)(uintptr_t)(tally + EPF_WHY_CALLS * sizeof(struct tally_call)) +
	       (uint64_t)call * ranks + rank;
}

/* When the phase began that is under way: in shared memory of the block whose thread counts. */
EPF_DEV_FN uint64_t *tally_mark(void)
{
	EPF_DEV_SHARED uint64_t mark;

	return &mark;
}

/* Begins a call, or a part of one; one thread. calls: 1, or 0 for a part. */
EPF_DEV_FN void tally_begin(uint64_t tally, uint32_t call, uint32_t calls)
{
	if (!tally)
		return;
	*tally_mark() = epf_timer();
	if (calls)
		(void)epf_add_gpu(&tally_call_of(tally, call)->calls, calls);
}

/* Ends a phase, and begins the next one; one thread: the one that began, or another one behind a barrier. */
EPF_DEV_FN void tally_phase(uint64_t tally, uint32_t call, uint32_t phase)
{
	uint64_t now;

	if (!tally)
		return;
	now = epf_timer();
	(void)epf_add_gpu(&tally_call_of(tally, call)->ticks[phase], now - *tally_mark());
	*tally_mark() = now;
}

/* Counts a wait for a rank. */
EPF_DEV_COLD void tally_waited(struct tally_peer *p, uint32_t reason, uint64_t ticks, uint32_t khz)
{
	struct tally_wait *w = &p->wait[reason];

	(void)epf_add_gpu(&w->ticks, ticks);
	epf_max_gpu(&w->most, ticks);
	if (ticks > khz / (1000000u / EPF_WHY_LEAST_NS))
		(void)epf_add_gpu(&w->times, 1);
}

#endif
