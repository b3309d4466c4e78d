/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame of every low-latency kernel: how a half begins, how its blocks learn what has come, how the last block ends it, and how masks
 * change. Knows nothing of rows.
 *
 * A half of a call is one kernel. Its blocks share work by warps (ll_warp(), ll_warps()). Which set of buffers it uses is the number of halves
 * of its kind that have run, modulo 2: read by all blocks at the start, moved on by the last one at the end.
 *
 * Block 0 judges whether a rank is late. How the others learn of what has come: epf_ll_words.cuh.
 */
#ifndef EPF_KERNELS_LL_HALF_CUH
#define EPF_KERNELS_LL_HALF_CUH

#include "kernels/epf_ll.h"
#include "kernels/ll/epf_ll_num.cuh"
#include "kernels/ll/job.h"
#include "kernels/why/epf_tally.cuh"

#define LL_AT(type, addr) ((type *)(uintptr_t)(addr))

EPF_DEV_FN const struct epf_gpu_ctx *ll_ctx(const struct ll_job *j)
{
	return LL_AT(const struct epf_gpu_ctx, j->ctx);
}

EPF_DEV_FN struct ll_state *ll_state_of(const struct ll_job *j)
{
	return LL_AT(struct ll_state, j->state);
}

EPF_DEV_FN struct ll_peer *ll_peer_of(const struct ll_job *j, uint32_t rank)
{
	return LL_AT(struct ll_peer, j->peers) + rank;
}

/* This warp's number in the grid: neighbours are in different blocks, so that little work is spread over all of them. */
EPF_DEV_FN uint32_t ll_warp(const struct ll_job *j)
{
	return epf_thread_in_block() / LL_LANES * j->blocks + epf_block_number();
}

/* How many warps there are. */
EPF_DEV_FN uint32_t ll_warps(const struct ll_job *j)
{
	return j->blocks * (j->threads / LL_LANES);
}

/* Calls of this half that ran before. */
EPF_DEV_FN uint64_t ll_calls(const struct ll_job *j, uint32_t kind, uint32_t half)
{
	return epf_ld_relaxed_gpu(&ll_state_of(j)->calls[kind][half]);
}

/* Notes what is wrong, and makes epf_ll_check() look. number, want and seen are for a sentence nobody knows a better one for. */
EPF_DEV_COLD void ll_complain(const struct ll_job *j, uint32_t bad, int code, uint32_t what,
			      uint32_t number, uint64_t want, uint64_t seen)
{
	(void)epf_or_gpu(&ll_state_of(j)->bad, bad);
	(void)epf_dev_fail(ll_ctx(j), code, what, number, want, seen);
}

/*
 * Is a rank left out? A plain load, so that it travels together with its neighbours': masks are set between kernels, or by block 0 when a wait ends, and
 * then what that rank still gets from a SEND half of the same kernel does not matter.
 */
EPF_DEV_FN int ll_masked(const struct ll_job *j, uint32_t rank)
{
	return ll_peer_of(j, rank)->masked != 0;
}

/* Rank of an expert, or UINT32_MAX for -1 and for what does not exist. */
EPF_DEV_FN uint32_t ll_rank_of(const struct ll_job *j, int64_t expert)
{
	return expert < 0 || expert >= (int64_t)j->local * j->ranks ? UINT32_MAX
								    : (uint32_t)expert / j->local;
}

/* The number of a signal of this rank, or for sending of a peer's: `from` is who adds to it. */
EPF_DEV_FN uint32_t ll_signal(const struct ll_job *j, uint32_t kind, uint32_t set, uint32_t from)
{
	return j->first_signal + (kind * 2u + set) * j->ranks + from;
}

EPF_DEV_FN uint64_t ll_flag_at(const struct ll_job *j, uint32_t kind, uint32_t set, uint32_t from)
{
	return j->lay.flags + (uint64_t)((kind * 2u + set) * j->ranks + from) * LL_FLAG_BYTES;
}

/* Where src_row has the number of a rank's tokens. */
EPF_DEV_FN uint64_t ll_tokens_at(const struct ll_job *j, uint32_t rank)
{
	return (uint64_t)j->ranks * j->tokens_max * j->topk + rank;
}

/*
 * Do the tokens of this rank fail back as sums of each rank's rows? Every rank that holds rows of it knows from what its dispatch said, and so does the
 * tokens' own: all decide alike.
 */
EPF_DEV_FN int ll_sums_for(const struct ll_job *j, uint32_t rank)
{
	uint64_t tokens = j->tokens;

	if (!(j->flags & EPF_LL_SUM_IF_MANY))
		return 1;
	if (rank != j->rank)
		tokens = LL_AT(const uint32_t, j->src_row)[ll_tokens_at(j, rank)];
	return tokens * j->topk >= EPF_LL_SUMS_FROM(j->ranks);
}

/* Is there a part of this rank in such a step at all? */
EPF_DEV_FN int ll_takes_part(const struct ll_job *j, uint32_t kind, uint32_t rank)
{
	return kind != LL_WEIGHTS || ll_sums_for(j, rank);
}

/* ---- the end of a half ---- */

/*
 * 1 in all threads of the block that ends last, of a half with commands. What every block wrote is visible to those of its threads that make a fence,
 * because each block makes one in front of its count.
 */
EPF_DEV_FN int ll_last_block(const struct ll_job *j, uint32_t kind, uint32_t half)
{
	uint64_t *done = &ll_state_of(j)->done[kind][half];
	int last = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0) {
		epf_fence_gpu();
		last = epf_add_gpu(done, 1) == (uint64_t)j->blocks - 1u;
		if (last)
			epf_st_relaxed_gpu(done, 0);
	}
	return epf_block_result(last);
}

/* Counts the half; one thread of the last block. */
EPF_DEV_FN void ll_count_call(const struct ll_job *j, uint32_t kind, uint32_t half, uint64_t calls)
{
	epf_st_relaxed_gpu(&ll_state_of(j)->calls[kind][half], calls + 1u);
}

/* ---- waiting: block 0 ---- */

struct ll_clock {
	uint64_t start;
	uint64_t
		counted; /* up to here waits are counted: of several ranks that a thread waits for, each as long as it held up the thread */
	uint32_t polls;
	uint32_t polls_counted;
};

EPF_DEV_FN struct ll_clock ll_clock_start(void)
{
	struct ll_clock c;

	c.start = c.counted = epf_timer();
	c.polls = c.polls_counted = 0;
	return c;
}

/* Ticks a wait may take. Ticks a millisecond times nanoseconds: whole milliseconds first, so that nothing overflows. */
EPF_DEV_FN uint64_t ll_clock_limit(const struct ll_job *j)
{
	uint64_t khz = ll_ctx(j)->timer_khz;

	return !j->timeout_ns
		       ? ll_ctx(j)->deadline_ticks
		       : j->timeout_ns / 1000000u * khz + j->timeout_ns % 1000000u * khz / 1000000u;
}

#define LL_NO_RANK UINT32_MAX

/* 0 while a wait may go on. rank: who is waited for, or LL_NO_RANK. */
EPF_DEV_FN int ll_clock_tick(const struct ll_job *j, struct ll_clock *c, uint32_t rank)
{
	epf_relax();
	if (++c->polls % EPF_DEV_CHECK_EVERY)
		return 0;
	if (epf_ld_relaxed_sys(epf_dev_abort(ll_ctx(j))))
		return EPF_GPU_ABORTED;
	if (rank != LL_NO_RANK && epf_dev_is_gone(ll_ctx(j), rank))
		return EPF_GPU_LOST;
	/* Asked for here, so that a wait that is over at once has nothing to read. */
	return epf_timer() - c->start > ll_clock_limit(j) ? EPF_GPU_TIMEOUT : 0;
}

/* What a rank is masked for whose wait ended with this code. */
EPF_DEV_FN uint32_t ll_bad_of(int code)
{
	return code == EPF_GPU_LOST ? LL_BAD_LOST : LL_BAD_LATE;
}

EPF_DEV_FN void ll_mask_late(const struct ll_job *j, uint32_t rank, uint32_t bad, int code,
			     uint32_t number, uint64_t want, uint64_t seen)
{
	struct ll_peer *p = ll_peer_of(j, rank);

	epf_st32_relaxed_gpu(&p->masked, 1u);
	epf_st32_relaxed_gpu(&p->late, bad);
	ll_complain(j, bad, code, EPF_GPU_WAIT, number, want, seen);
}

/* The time that a rank has held up a thread is counted; its rows may have been on their way, but with LL_WEIGHTS it had not begun. */
EPF_DEV_COLD void ll_count_wait(const struct ll_job *j, uint32_t kind, uint32_t rank,
				struct ll_clock *clock)
{
	uint32_t call = kind == LL_DISPATCH  ? EPF_WHY_LL_DISPATCH_RECV
			: kind == LL_COMBINE ? EPF_WHY_LL_COMBINE_RECV
					     : EPF_WHY_LL_COMBINE_SEND;
	uint64_t now = epf_timer();

	tally_waited(tally_peer_of(j->tally, j->ranks, call, rank),
		     kind == LL_WEIGHTS ? EPF_WHY_LATE : EPF_WHY_EITHER, now - clock->counted,
		     ll_ctx(j)->timer_khz, 1);
	clock->counted = now;
	clock->polls_counted = clock->polls;
}

/* A rank has been waited for: counts it if it took long, that is more looks than tally_mask says, and for the caller where he wants to know. */
EPF_DEV_FN void ll_add_wait(const struct ll_job *j, uint32_t kind, uint32_t rank,
			    struct ll_clock *clock)
{
	if (j->tally && clock->polls - clock->polls_counted > j->tally_mask && kind != LL_MEET)
		ll_count_wait(j, kind, rank, clock);
	if (j->wait_stats)
		LL_AT(int64_t, j->wait_stats)
	[rank] += (int64_t)((epf_timer() - clock->start) * 1000u / (ll_ctx(j)->timer_khz / 1000u));
}

/* Waits for one rank's part of a call: its signal, or its flag, moves by one. Returns ll_peer.live. */
EPF_DEV_COLD uint32_t ll_wait_rank(const struct ll_job *j, uint32_t kind, uint32_t set,
				   uint32_t rank, struct ll_clock *clock)
{
	struct ll_peer *p = ll_peer_of(j, rank);
	uint32_t number = ll_signal(j, kind, set, rank);
	const uint64_t *word =
		p->direct ? LL_AT(const uint64_t, j->base + ll_flag_at(j, kind, set, rank))
			  : epf_dev_signal_word(ll_ctx(j), number);
	uint64_t seen = p->seen[kind][set], now;
	int rc = 0;

	p->live[kind] = 0;
	if (ll_masked(j, rank))
		return 0;
	while ((now = epf_ld_acquire_sys(word)) == seen && !rc)
		rc = ll_clock_tick(j, clock, rank);
	ll_add_wait(j, kind, rank, clock);
	p->seen[kind][set] = now;
	if (now == seen)
		ll_mask_late(j, rank, ll_bad_of(rc), rc, number, seen + 1u, now);
	else if (now - seen != 1u && kind != LL_MEET)
		ll_mask_late(j, rank, LL_BAD_STEP, EPF_GPU_LIMIT, number, seen + 1u, now);
	else
		p->live[kind] = 1;
	return p->live[kind];
}

/* Is what this rank sends in the call here? some: what ll_wait() returned. */
EPF_DEV_FN int ll_is_live(const struct ll_job *j, uint32_t kind, uint32_t rank, int some)
{
	return !some || ll_peer_of(j, rank)->live[kind] != 0;
}

/* Own commands of the set's last SEND half: retired, so that the set's memory may be written again. */
EPF_DEV_COLD void ll_wait_own(const struct ll_job *j, uint32_t kind, uint32_t set)
{
	struct ll_clock clock = ll_clock_start();
	struct ll_state *s = ll_state_of(j);
	struct epf_gpu_ring *ring = LL_AT(struct epf_gpu_ring, s->ring[kind][set]);
	struct epf_dev d;
	int rc = 0;

	if (!ring)
		return;
	d.ctx = ll_ctx(j);
	d.ring = ring;
	d.shm = LL_AT(uint8_t, ring->shm);
	d.shared = (uint32_t)s->shared[kind][set];
	while (!rc && !epf_dev_test(&d, s->ticket[kind][set]))
		rc = ll_clock_tick(j, &clock, LL_NO_RANK);
	s->ring[kind][set] = 0;
	if (rc)
		ll_complain(j, LL_BAD_SENT, rc, EPF_GPU_RETIRED, ring->id, s->ticket[kind][set], 0);
}

/* Where a half is counted; 0: it is not. On a GPU one in many is (tally_mask), because counting takes 1 to 2 us of it. */
EPF_DEV_FN uint64_t ll_tally(const struct ll_job *j, uint64_t calls)
{
	return tally_is_sampled(j->tally_mask, calls) ? j->tally : 0;
}

/* Begins to count a half, and ends a phase of it: the first thread. */
EPF_DEV_FN void ll_count_half(uint64_t tally, uint32_t call)
{
	if (tally && epf_block_number() == 0 && epf_thread_in_block() == 0)
		tally_begin(tally, call, 1, 1);
}

EPF_DEV_FN void ll_phase(uint64_t tally, uint32_t call, uint32_t phase)
{
	if (tally && epf_block_number() == 0 && epf_thread_in_block() == 0)
		tally_phase(tally, call, phase);
}

/* Ends a RECV half with commands; all threads of all blocks. The own ones have had the time of the unpacking to retire. */
EPF_DEV_FN void ll_received(const struct ll_job *j, uint32_t kind, uint64_t calls)
{
	if (!ll_last_block(j, kind, LL_RECEIVING) || epf_thread_in_block() != 0)
		return;
	epf_fence_gpu();
	ll_wait_own(j, kind, (uint32_t)(calls & 1u));
	if (kind == LL_COMBINE)
		ll_wait_own(j, LL_WEIGHTS, (uint32_t)(calls & 1u));
	ll_count_call(j, kind, LL_RECEIVING, calls);
}

/* ---- sending: warp 0 of the last block ---- */

/* Is any rank that is not masked reached over the command path? */
EPF_DEV_FN int ll_any_remote(const struct ll_job *j)
{
	int any = 0;

	if (!j->commands)
		return 0;
	for (uint32_t r = epf_lane(); r < j->ranks; r += LL_LANES)
		any |= !ll_peer_of(j, r)->direct && !ll_masked(j, r);
	return epf_lanes_where(any) != 0;
}

/* Notifies the ranks reached by plain stores that everything is written: every lane that stores a flag releases what the warp has seen written. */
EPF_DEV_FN void ll_tell_direct(const struct ll_job *j, uint32_t kind, uint32_t set)
{
	for (uint32_t first = 0; first < j->ranks; first += LL_LANES) {
		uint32_t r = first + epf_lane();
		struct ll_peer *p = ll_peer_of(j, r < j->ranks ? r : j->rank);
		uint64_t to = r < j->ranks && !p->masked ? p->direct : 0;
		uint64_t sent = p->sent[kind][set] + 1u;

		/* Behind what is read above, so that both take their time together. */
		if (first == 0)
			epf_fence_sys();
		if (!to)
			continue;
		p->sent[kind][set] = sent;
		epf_st_relaxed_sys(LL_AT(uint64_t, to + ll_flag_at(j, kind, set, j->rank)), sent);
	}
}

/* Adds 1 to the signal of `rank` behind `puts` grouped puts; all lanes call it, one pushes. */
EPF_DEV_FN int ll_tell(const struct ll_job *j, struct epf_dev *d, uint32_t kind, uint32_t set,
		       uint32_t rank, uint32_t puts)
{
	struct epf_op o =
		epf_dev_transfer(EPF_OP_SIGNAL, rank, 0, 0, 0, 0, 0, puts ? EPF_F_COUNTED : 0u);

	o.signal = ll_signal(j, kind, set, j->rank);
	o.value = 1;
	o.count = puts;
	return epf_warp_push_op(d, &o, epf_lane() == 0);
}

/* Remembers what has to be retired before the set is written again; closes the ring. */
EPF_DEV_FN void ll_sent(const struct ll_job *j, struct epf_dev *d, uint32_t kind, uint32_t set)
{
	struct ll_state *s = ll_state_of(j);

	if (epf_lane() == 0) {
		s->ring[kind][set] = (uint64_t)(uintptr_t)d->ring;
		s->ticket[kind][set] = epf_dev_ticket(d);
		s->shared[kind][set] = d->shared;
	}
	epf_warp_close(d);
}

/* ---- masks: kernels of one block ---- */

EPF_DEV_FN void ll_mask_set(const struct ll_job *j)
{
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		if (r != j->rank && (j->mask_rank == UINT32_MAX || j->mask_rank == r))
			epf_st32_relaxed_gpu(&ll_peer_of(j, r)->masked, j->mask_value);
}

EPF_DEV_FN void ll_mask_get(const struct ll_job *j)
{
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		LL_AT(int32_t, j->out)[r] = (int32_t)ll_masked(j, r);
}

#endif
