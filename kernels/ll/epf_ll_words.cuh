/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How what a half sends is announced to ranks reached by plain stores, and how all blocks learn of it.
 *
 * Each pair of ranks has LL_WORDS words for each kind and set. A call is announced when all of them hold its number. The blocks that send write their share
 * of the words each, behind a fence of their own, so that nobody counts blocks in between; where commands are sent, the last block writes them all.
 *
 * Where no commands are used every block looks at the words itself. Who judges that a rank is late is block 0 alone, and all blocks must agree: before it
 * does, it says that it is about to (LL_CLOSING), lets all loads that are under way end, and looks again. A block looks at that mark whenever it looks at
 * words. Both loads are under way together, and block 0 goes on looking for longer than any load takes: so a block that sees all words and no mark sees
 * what block 0 is going to see, too.
 */
#ifndef EPF_KERNELS_LL_WORDS_CUH
#define EPF_KERNELS_LL_WORDS_CUH

#include "kernels/ll/epf_ll_half.cuh"

#define LL_CLOSING    (UINT64_C(1) << 63)
#define LL_LAST_LOOKS 4096u /* more than a millisecond: no load takes so long */
#define LL_LOOK       8u    /* words that a lane reads at once */
#define LL_AHEAD_MOST \
 255u /* nobody is more than a call ahead of who waits for him: further off means long ago */

/* Written one by one, read eight at a time. */
typedef uint16_t ll_word_t __attribute__((may_alias));

/* What the words of a call hold, as the calls of its half before it count. */
EPF_DEV_FN uint16_t ll_word(uint64_t calls)
{
	return (uint16_t)(calls / 2u + 1u);
}

/* Four of them. */
EPF_DEV_FN uint64_t ll_words_whole(uint64_t calls)
{
	return ll_word(calls) * UINT64_C(0x0001000100010001);
}

/* This rank's words in the memory of a rank, or in its own those of a rank. */
EPF_DEV_FN uint64_t ll_words(const struct ll_job *j, uint64_t memory, uint32_t kind, uint32_t set,
			     uint32_t from)
{
	return memory + ll_flag_at(j, kind, set, from);
}

/* ---- sending ---- */

/* Which words: of so many ranks, from rank `rank` on, and of each so many units, from unit `unit` on. A unit is one word, or with `whole` four. */
struct ll_telling {
	uint32_t rank;
	uint32_t ranks;
	uint32_t unit;
	uint32_t units;
	int whole;
};

/* Writes words of ranks that are reached by plain stores; a warp, behind a barrier of its block: each lane releases what the block has written. */
EPF_DEV_FN void ll_tell_words(const struct ll_job *j, uint32_t kind, uint64_t calls,
			      struct ll_telling t)
{
	uint32_t set = (uint32_t)(calls & 1u);

	LL_ROLLED
	for (uint32_t i = 0; i < t.units * t.ranks; i += LL_LANES) {
		uint32_t at = i + epf_lane(), rank = t.rank + at / t.units;
		uint32_t unit = t.unit + at % t.units, is = at < t.units * t.ranks;
		struct ll_peer *p = ll_peer_of(j, is ? rank : j->rank);
		uint64_t to = is && !p->masked ? p->direct : 0;

		/* Behind what is read above, so that both take their time together. */
		if (i == 0)
			epf_fence_sys();
		if (!to)
			continue;
		to = ll_words(j, to, kind, set, j->rank);
		if (t.whole)
			epf_st_relaxed_sys(LL_AT(uint64_t, to) + unit, ll_words_whole(calls));
		else
			epf_st16_relaxed_sys(LL_AT(ll_word_t, to) + unit, ll_word(calls));
	}
}

/* All words of so many ranks, from this one on. */
EPF_DEV_FN void ll_tell_all(const struct ll_job *j, uint32_t kind, uint64_t calls, uint32_t rank,
			    uint32_t ranks)
{
	ll_tell_words(j, kind, calls, (struct ll_telling){ rank, ranks, 0, LL_WORDS / 4u, 1 });
}

/*
 * Ends a SEND half that sends no commands; all threads of all blocks. The count of blocks only guards the number of calls, which all threads have read in
 * front of the barrier; it is under way while the fence waits.
 */
EPF_DEV_FN void ll_tell_each(const struct ll_job *j, uint32_t kind, uint64_t calls)
{
	uint64_t *done = &ll_state_of(j)->done[kind][LL_SENDING];
	uint32_t first = LL_WORDS * epf_block_number() / j->blocks;
	uint32_t words = LL_WORDS * (epf_block_number() + 1u) / j->blocks - first;
	uint64_t before = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		before = epf_add_gpu(done, 1);
	if (epf_thread_in_block() < LL_LANES)
		ll_tell_words(j, kind, calls, (struct ll_telling){ 0, j->ranks, first, words, 0 });
	if (epf_thread_in_block() != 0 || before != (uint64_t)j->blocks - 1u)
		return;
	epf_st_relaxed_gpu(done, 0);
	ll_count_call(j, kind, LL_SENDING, calls);
}

/* ---- receiving ---- */

enum ll_look {
	LL_NOT_YET = 0,
	LL_HERE = 1,
	LL_LATER = 2, /* of a later call */
};

/* Is everything here that a rank sends in this call? A warp; behind LL_HERE its lanes together see what that rank has written. */
EPF_DEV_FN enum ll_look ll_look(const struct ll_job *j, uint32_t kind, uint64_t calls,
				uint32_t rank)
{
	const uint64_t *words =
		LL_AT(const uint64_t, ll_words(j, j->base, kind, (uint32_t)(calls & 1u), rank));
	uint64_t all = ll_words_whole(calls);
	int behind = 0, ahead = 0;

	for (uint32_t i = epf_lane(); i < LL_WORDS / LL_LOOK; i += LL_LANES) {
		uint64_t v[2];

		epf_ld2_acquire_sys(words + i * 2u, v);
		LL_ROLLED
		for (uint32_t b = 0; b < LL_LOOK && (v[0] != all || v[1] != all); b++) {
			uint16_t word = (uint16_t)(v[b / 4u] >> (b % 4u * 16u));
			uint16_t off = (uint16_t)(word - ll_word(calls));

			ahead |= off && off <= LL_AHEAD_MOST;
			behind |= off > LL_AHEAD_MOST;
		}
	}
	if (epf_lanes_where(ahead))
		return LL_LATER;
	return epf_lanes_where(behind) ? LL_NOT_YET : LL_HERE;
}

/* 1: block 0 has judged this call. */
EPF_DEV_FN int ll_is_judged(uint64_t go, uint64_t calls)
{
	return go >> 1 == calls + 1u;
}

/*
 * Waits for one rank that is reached by plain stores; a warp of block 0. look: what it saw first. Sets *closed if the other blocks must wait for the
 * judgement.
 */
EPF_DEV_COLD enum ll_look ll_await_words(const struct ll_job *j, uint32_t kind, uint64_t calls,
					 uint32_t rank, enum ll_look look, struct ll_clock *clock,
					 int *closed)
{
	uint32_t number = ll_signal(j, kind, (uint32_t)(calls & 1u), rank);
	int rc = 0;

	while (look == LL_NOT_YET && !rc) {
		rc = epf_warp_result(epf_lane() == 0 ? ll_clock_tick(j, clock, rank) : 0);
		look = ll_look(j, kind, calls, rank);
	}
	if (look == LL_HERE)
		return look;
	*closed = 1;
	epf_st_relaxed_gpu(&ll_state_of(j)->go[kind], LL_CLOSING | (calls + 1u) << 1);
	epf_fence_gpu();
	for (uint32_t i = 0; i < LL_LAST_LOOKS && look == LL_NOT_YET; i++)
		look = ll_look(j, kind, calls, rank);
	if (look == LL_NOT_YET && epf_lane() == 0)
		ll_mask_late(j, rank, ll_bad_of(rc), rc, number, calls / 2u + 1u, calls / 2u);
	if (look == LL_LATER && epf_lane() == 0)
		ll_mask_late(j, rank, LL_BAD_STEP, EPF_GPU_LIMIT, number, calls / 2u + 1u,
			     calls / 2u + 2u);
	return look;
}

/* Waits for one rank; a warp of block 0. 1: what it sends is here. What it reads first travels together with the words. */
EPF_DEV_FN int ll_judge_rank(const struct ll_job *j, uint32_t kind, uint64_t calls, uint32_t rank,
			     struct ll_clock *clock, int *closed)
{
	struct ll_peer *p = ll_peer_of(j, rank);
	int masked = ll_masked(j, rank), here = 0;
	enum ll_look look;

	if (j->commands && !p->direct)
		return epf_warp_result(
			epf_lane() == 0
				? (int)ll_wait_rank(j, kind, (uint32_t)(calls & 1u), rank, clock)
				: 0);
	look = ll_look(j, kind, calls, rank);
	if (!masked) {
		here = ll_await_words(j, kind, calls, rank, look, clock, closed) == LL_HERE;
		if (epf_lane() == 0)
			ll_add_wait(j, kind, rank, clock);
	}
	if (epf_lane() == 0)
		p->live[kind] = (uint32_t)here;
	return here;
}

/* Rows that a rank counted in the dispatch before this one, less those that came: all blocks of that one are through. */
EPF_DEV_FN uint64_t *ll_owed(const struct ll_job *j, uint64_t calls, uint32_t rank)
{
	return &ll_peer_of(j, rank)->owed[(calls + 1u) & 1u];
}

/*
 * A rank counted other rows than it sent. What it counted for an expert was left as it is: where rows did not come nothing was written. One
 * thread.
 */
EPF_DEV_COLD void ll_tell_owed(const struct ll_job *j, uint64_t calls, uint32_t rank, uint64_t rows)
{
	epf_st_relaxed_gpu(ll_owed(j, calls, rank), 0);
	epf_st32_relaxed_gpu(&ll_peer_of(j, rank)->late, LL_BAD_OWED);
	ll_complain(j, LL_BAD_OWED, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, 0, rows);
}

/* Block 0: waits for all ranks, a warp each, and releases the other blocks where they do not look themselves or cannot. */
EPF_DEV_FN int ll_judge(const struct ll_job *j, uint32_t kind, uint64_t calls)
{
	struct ll_clock clock = ll_clock_start();
	EPF_DEV_SHARED int missing, closed;
	int close = 0;

	if (epf_thread_in_block() == 0)
		missing = closed = 0;
	epf_block_barrier();
	for (uint32_t r = epf_thread_in_block() / LL_LANES; r < j->ranks;
	     r += j->threads / LL_LANES) {
		uint64_t owed = kind == LL_DISPATCH ? epf_ld_relaxed_gpu(ll_owed(j, calls, r)) : 0;

		if (!ll_takes_part(j, kind, r))
			continue;
		if (!ll_judge_rank(j, kind, calls, r, &clock, &close) && epf_lane() == 0)
			missing = 1;
		if (close && epf_lane() == 0)
			closed = 1;
		if (owed && epf_lane() == 0)
			ll_tell_owed(j, calls, r, owed);
	}
	epf_block_barrier();
	if (epf_thread_in_block() == 0 && (j->commands || missing || closed))
		epf_st_release_gpu(&ll_state_of(j)->go[kind],
				   (calls + 1u) << 1 | (uint64_t)missing);
	return missing;
}

/*
 * Looks for the words of one rank; a warp of another block. 1: they are here; 0: block 0 has to be asked. Words of a later call count as here: then ranks
 * are out of step, block 0 says so, and nobody must wait for what will not arrive.
 */
EPF_DEV_FN int ll_see(const struct ll_job *j, uint32_t kind, uint64_t calls, uint32_t rank)
{
	const uint64_t *go = &ll_state_of(j)->go[kind];
	int masked = ll_masked(j, rank);

	for (;;) {
		uint64_t said = epf_ld_relaxed_gpu(go);
		enum ll_look look = ll_look(j, kind, calls, rank);

		if (masked || ll_is_judged(said & ~LL_CLOSING, calls))
			return 0;
		if (look != LL_NOT_YET)
			return 1;
		epf_relax();
	}
}

/* The other blocks. */
EPF_DEV_FN int ll_follow(const struct ll_job *j, uint32_t kind, uint64_t calls)
{
	const uint64_t *go = &ll_state_of(j)->go[kind];
	EPF_DEV_SHARED int ask;
	uint64_t said = 0;

	if (epf_thread_in_block() == 0)
		ask = (int)j->commands;
	epf_block_barrier();
	for (uint32_t r = epf_thread_in_block() / LL_LANES; r < j->ranks && !j->commands;
	     r += j->threads / LL_LANES)
		if (ll_takes_part(j, kind, r) && !ll_see(j, kind, calls, r) && epf_lane() == 0)
			ask = 1;
	epf_block_barrier();
	if (!ask)
		return 0;
	if (epf_thread_in_block() == 0) {
		said = epf_ld_acquire_gpu(go);
		while (!ll_is_judged(said, calls)) {
			epf_pause();
			said = epf_ld_acquire_gpu(go);
		}
	}
	return epf_block_result((int)(said & 1u));
}

/*
 * Waits until what every rank sends to this one in call number `calls` of a kind is here, or the rank is masked. All threads of all blocks call it; behind
 * it they see what has come. Returns 0: of all ranks; 1: ll_peer.live says of which, see ll_is_live().
 */
EPF_DEV_FN int ll_wait(const struct ll_job *j, uint32_t kind, uint64_t calls)
{
	return epf_block_number() == 0 ? ll_judge(j, kind, calls) : ll_follow(j, kind, calls);
}

/*
 * Counts the blocks of a RECV half that have read what the number of calls guards: 1 in the thread that has to count the call. Where commands are sent
 * ll_received() does it at the end.
 */
EPF_DEV_FN int ll_arrive(const struct ll_job *j, uint32_t kind)
{
	uint64_t *done = &ll_state_of(j)->done[kind][LL_RECEIVING];

	return !j->commands && epf_thread_in_block() == 0 &&
	       epf_add_gpu(done, 1) == (uint64_t)j->blocks - 1u;
}

EPF_DEV_FN void ll_arrived(const struct ll_job *j, uint32_t kind, uint64_t calls, int last)
{
	if (j->commands)
		ll_received(j, kind, calls);
	if (!last)
		return;
	epf_st_relaxed_gpu(&ll_state_of(j)->done[kind][LL_RECEIVING], 0);
	ll_count_call(j, kind, LL_RECEIVING, calls);
}

#endif
