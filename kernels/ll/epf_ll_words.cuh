/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a dispatch is told to ranks that are reached by plain stores, and how all blocks of a RECV half learn of it.
 *
 * Each pair of ranks has a line of LL_WORDS words for each set. A dispatch is told when all of them hold its number. With few tokens the blocks that send
 * write their share of the words each, behind a fence of their own, and nobody counts blocks in between; with many the last block writes them all.
 *
 * Where no commands are used every block looks at the words itself. Who judges that a rank is late is block 0 alone, and all blocks must agree: before it
 * does, it says that it is about to (LL_CLOSING), lets all loads that are under way end, and looks again. A block that has seen all words asks for that
 * mark afterwards; if there is none, block 0 is going to see them, too.
 */
#ifndef EPF_KERNELS_LL_WORDS_CUH
#define EPF_KERNELS_LL_WORDS_CUH

#include "kernels/ll/epf_ll_half.cuh"

#define LL_CLOSING (UINT64_C(1) << 63)

/* What the words of a dispatch hold, as the calls of its half before it count. */
EPF_DEV_FN uint32_t ll_word(uint64_t calls)
{
	return (uint32_t)(calls / 2u) + 1u;
}

/* This rank's words in the memory of a rank, or in its own those of a rank. */
EPF_DEV_FN uint32_t *ll_words(const struct ll_job *j, uint64_t memory, uint32_t set, uint32_t from)
{
	return LL_AT(uint32_t, memory + ll_flag_at(j, LL_DISPATCH, set, from));
}

/* ---- sending ---- */

/*
 * Writes words first, first + step, ... of all ranks that are reached by plain stores; a warp, behind a barrier of its block: each lane releases what the
 * block has written.
 */
EPF_DEV_FN void ll_tell_words(const struct ll_job *j, uint64_t calls, uint32_t first, uint32_t step)
{
	uint32_t set = (uint32_t)(calls & 1u), each = (LL_WORDS - first + step - 1u) / step;

	for (uint32_t i = 0; i < each * j->ranks; i += LL_LANES) {
		uint32_t at = i + epf_lane();
		struct ll_peer *p = ll_peer_of(j, at / each < j->ranks ? at / each : j->rank);
		uint64_t to = at / each < j->ranks && !p->masked ? p->direct : 0;

		/* Behind what is read above, so that both take their time together. */
		if (i == 0)
			epf_fence_sys();
		if (to)
			epf_st32_relaxed_sys(ll_words(j, to, set, j->rank) + first +
						     at % each * step,
					     ll_word(calls));
	}
}

/*
 * Ends a SEND half whose blocks tell each by itself. The count of blocks only guards the number of calls, which all threads have read in front of the barrier;
 * it is under way while the fence waits.
 */
EPF_DEV_FN void ll_tell_each(const struct ll_job *j, uint64_t calls)
{
	uint64_t *done = &ll_state_of(j)->done[LL_DISPATCH][LL_SENDING];
	uint64_t before = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		before = epf_add_gpu(done, 1);
	if (epf_thread_in_block() < LL_LANES)
		ll_tell_words(j, calls, epf_block_number(), j->tellers);
	if (epf_thread_in_block() != 0 || before != (uint64_t)j->tellers - 1u)
		return;
	epf_st_relaxed_gpu(done, 0);
	ll_count_call(j, LL_DISPATCH, LL_SENDING, calls);
}

/* ---- receiving ---- */

enum ll_look {
	LL_NOT_YET = 0,
	LL_HERE = 1,
	LL_LATER = 2, /* of a later call */
};

/* Is everything here that a rank sends in this dispatch? A warp; behind LL_HERE its lanes together see what that rank has written. */
EPF_DEV_FN enum ll_look ll_look(const struct ll_job *j, uint64_t calls, uint32_t rank)
{
	const uint32_t *words = ll_words(j, j->base, (uint32_t)(calls & 1u), rank);
	int behind = 0, ahead = 0;

	for (uint32_t i = epf_lane(); i < LL_WORDS; i += LL_LANES) {
		int32_t off = (int32_t)(epf_ld32_acquire_sys(&words[i]) - ll_word(calls));

		behind |= off < 0;
		ahead |= off > 0;
	}
	if (epf_lanes_where(ahead))
		return LL_LATER;
	return epf_lanes_where(behind) ? LL_NOT_YET : LL_HERE;
}

/* Waits for one rank that is reached by plain stores; a warp of block 0. Sets *closed if the other blocks were told to wait for the judgement. */
EPF_DEV_FN enum ll_look ll_await_words(const struct ll_job *j, uint64_t calls, uint32_t rank,
				       struct ll_clock *clock, int *closed)
{
	uint64_t *go = &ll_state_of(j)->go[LL_DISPATCH];
	enum ll_look look = LL_NOT_YET;
	uint64_t until;
	int rc = 0;

	while (!rc) {
		look = ll_look(j, calls, rank);
		if (look != LL_NOT_YET)
			break;
		rc = epf_warp_result(epf_lane() == 0 ? ll_clock_tick(j, clock) : 0);
	}
	if (look == LL_HERE)
		return look;
	*closed = 1;
	epf_st_relaxed_gpu(go, LL_CLOSING | (calls + 1u) << 1);
	epf_fence_gpu();
	until = epf_timer() +
		ll_ctx(j)->timer_khz; /* a millisecond: far above the time of any load */
	while (epf_timer() < until)
		epf_pause();
	look = ll_look(j, calls, rank);
	if (look == LL_NOT_YET && epf_lane() == 0)
		ll_mask_late(j, rank, LL_BAD_LATE, rc, ll_signal(j, LL_DISPATCH, calls & 1u, rank),
			     ll_word(calls), ll_word(calls) - 1u);
	if (look == LL_LATER && epf_lane() == 0)
		ll_mask_late(j, rank, LL_BAD_STEP, EPF_GPU_LIMIT,
			     ll_signal(j, LL_DISPATCH, calls & 1u, rank), ll_word(calls),
			     ll_word(calls) + 1u);
	return look;
}

/* Waits for one rank; a warp of block 0. 1: what it sends is here. */
EPF_DEV_FN int ll_judge_rank(const struct ll_job *j, uint64_t calls, uint32_t rank,
			     struct ll_clock *clock, int *closed)
{
	struct ll_peer *p = ll_peer_of(j, rank);
	int here = 0;

	if (!p->direct)
		return epf_warp_result(epf_lane() == 0 ? (int)ll_wait_rank(j, LL_DISPATCH,
									   (uint32_t)(calls & 1u),
									   rank, clock)
						       : 0);
	if (!ll_masked(j, rank)) {
		here = ll_await_words(j, calls, rank, clock, closed) == LL_HERE;
		if (epf_lane() == 0)
			ll_add_wait(j, rank, clock);
	}
	if (epf_lane() == 0)
		p->live[LL_DISPATCH] = (uint32_t)here;
	return here;
}

/*
 * Did a rank count other rows, in the dispatch before this one, than came? Looked at now because all blocks of that one are through; one thread. What it
 * counted for an expert was left as it is: behind the rows that came nothing was written.
 */
EPF_DEV_FN void ll_check_owed(const struct ll_job *j, uint64_t calls, uint32_t rank)
{
	struct ll_peer *p = ll_peer_of(j, rank);
	uint64_t *owed = &p->owed[(calls + 1u) & 1u];
	uint64_t rows = epf_ld_relaxed_gpu(owed);

	if (!rows)
		return;
	epf_st_relaxed_gpu(owed, 0);
	epf_st32_relaxed_gpu(&p->late, LL_BAD_OWED);
	ll_complain(j, LL_BAD_OWED, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, 0, rows);
}

/* Block 0: waits for all ranks, a warp each, and tells the other blocks where they do not look for themselves or cannot. */
EPF_DEV_FN int ll_judge(const struct ll_job *j, uint64_t calls)
{
	struct ll_clock clock = ll_clock_start();
	EPF_DEV_SHARED int missing, closed;
	int close = 0;

	if (epf_thread_in_block() == 0)
		missing = closed = 0;
	epf_block_barrier();
	for (uint32_t r = epf_thread_in_block() / LL_LANES; r < j->ranks;
	     r += j->threads / LL_LANES) {
		if (!ll_judge_rank(j, calls, r, &clock, &close) && epf_lane() == 0)
			missing = 1;
		if (close && epf_lane() == 0)
			closed = 1;
		if (epf_lane() == 0)
			ll_check_owed(j, calls, r);
	}
	epf_block_barrier();
	if (epf_thread_in_block() == 0 && (j->commands || missing || closed))
		epf_st_release_gpu(&ll_state_of(j)->go[LL_DISPATCH],
				   (calls + 1u) << 1 | (uint64_t)missing);
	return epf_block_result(missing);
}

/* 1: block 0 has judged this call. */
EPF_DEV_FN int ll_is_judged(uint64_t go, uint64_t calls)
{
	return go >> 1 == calls + 1u;
}

/* The other blocks. */
EPF_DEV_FN int ll_follow(const struct ll_job *j, uint64_t calls)
{
	const uint64_t *go = &ll_state_of(j)->go[LL_DISPATCH];
	uint32_t polls = 0;
	uint64_t said = 0;

	for (uint32_t r = epf_thread_in_block() / LL_LANES; r < j->ranks && !j->commands;
	     r += j->threads / LL_LANES)
		while (ll_masked(j, r) || ll_look(j, calls, r) != LL_HERE) {
			if (++polls % 8u == 0 && ll_is_judged(epf_ld_relaxed_gpu(go), calls))
				break;
			epf_relax();
		}
	epf_block_barrier();
	if (epf_thread_in_block() == 0) {
		said = epf_ld_acquire_gpu(go);
		while (!ll_is_judged(said, calls) &&
		       (j->commands || ll_is_judged(said & ~LL_CLOSING, calls))) {
			epf_pause();
			said = epf_ld_acquire_gpu(go);
		}
		said = ll_is_judged(said, calls) ? said & 1u : 0;
	}
	return epf_block_result((int)said);
}

/* ll_wait_all() of a dispatch. */
EPF_DEV_FN int ll_wait_dispatch(const struct ll_job *j, uint64_t calls)
{
	return epf_block_number() == 0 ? ll_judge(j, calls) : ll_follow(j, calls);
}

/*
 * Counts the blocks of a RECV half that have read what the number of calls guards: 1 in the thread that has to count the call. Where commands are sent
 * ll_received() does it at the end.
 */
EPF_DEV_FN int ll_arrive(const struct ll_job *j)
{
	uint64_t *done = &ll_state_of(j)->done[LL_DISPATCH][LL_RECEIVING];

	return !j->commands && epf_thread_in_block() == 0 &&
	       epf_add_gpu(done, 1) == (uint64_t)j->blocks - 1u;
}

EPF_DEV_FN void ll_arrived(const struct ll_job *j, uint64_t calls, int last)
{
	if (j->commands)
		ll_received(j, LL_DISPATCH, calls);
	if (!last)
		return;
	epf_st_relaxed_gpu(&ll_state_of(j)->done[LL_DISPATCH][LL_RECEIVING], 0);
	ll_count_call(j, LL_DISPATCH, LL_RECEIVING, calls);
}

#endif
