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

/*
 * Is this number one of the sample? One of each mask + 1 numbers is, a power of two, at a place as if by chance: programs repeat their calls, and every n-th
 * would always be of the same layers of a model.
 */
EPF_DEV_FN int tally_is_sampled(uint32_t mask, uint64_t number)
{
	uint32_t n = (uint32_t)number & ~mask;

	n *= 2654435761u;
	n = (n ^ n >> 15) * 2246822519u;
	return ((n >> 16 ^ (uint32_t)number) & mask) == 0;
}

/* For how many calls a call stands: 1 while there are few; then, in the sample, for mask + 1; 0: it is not counted. */
EPF_DEV_FN uint32_t tally_weight(uint32_t mask, uint64_t number)
{
	return number < TALLY_ALL ? 1u : tally_is_sampled(mask, number) ? mask + 1u : 0u;
}

/* What is counted at the moment: in shared memory of the block whose thread counts. */
struct tally_now {
	uint64_t mark;   /* when the phase began that is under way */
	uint32_t weight; /* of the call */
};

EPF_DEV_FN struct tally_now *tally_now(void)
{
	EPF_DEV_SHARED struct tally_now now;

	return &now;
}

/* Begins a call, or a part of one; one thread. calls: 1, or 0 for a part. weight: of tally_weight(). */
EPF_DEV_FN void tally_begin(uint64_t tally, uint32_t call, uint32_t calls, uint32_t weight)
{
	if (!tally)
		return;
	tally_now()->weight = weight;
	if (!weight)
		return;
	tally_now()->mark = epf_timer();
	if (calls)
		(void)epf_add_gpu(&tally_call_of(tally, call)->calls, weight);
}

/* Ends a phase, and begins the next one; one thread: the one that began, or another one behind a barrier. */
EPF_DEV_FN void tally_phase(uint64_t tally, uint32_t call, uint32_t phase)
{
	uint64_t now;

	if (!tally || !tally_now()->weight)
		return;
	now = epf_timer();
	(void)epf_add_gpu(&tally_call_of(tally, call)->ticks[phase],
			  (now - tally_now()->mark) * tally_now()->weight);
	tally_now()->mark = now;
}

/* Counts a wait for a rank, which stands for `weight` waits. */
EPF_DEV_COLD void tally_waited(struct tally_peer *p, uint32_t reason, uint64_t ticks, uint32_t khz,
			       uint32_t weight)
{
	struct tally_wait *w = &p->wait[reason];

	(void)epf_add_gpu(&w->ticks, ticks * weight);
	epf_max_gpu(&w->most, ticks);
	if (ticks > khz / (1000000u / EPF_WHY_LEAST_NS))
		(void)epf_add_gpu(&w->times, weight);
}

#endif
