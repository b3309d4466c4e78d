/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame of the high-throughput kernels: addresses, flags between ranks, and waits that end by their deadline. Knows nothing of rows.
 *
 * A flag is a count that one rank stores into the control area of another. It only grows, so nothing is cleared between calls, and graphs may be
 * replayed in any mixture with eager calls. A wait that meets its deadline names the rank and the flag for epf_ht_check(), and the kernel goes on:
 * it ends, with outputs that are undefined.
 */
#ifndef EPF_KERNELS_HT_WAIT_CUH
#define EPF_KERNELS_HT_WAIT_CUH

#include "kernels/epf_device.cuh"
#include "kernels/ht/job.h"
#include "kernels/ll/epf_ll_num.cuh"
#include "kernels/why/epf_tally.cuh"

#define HT_AT(type, addr) ((type *)(uintptr_t)(addr))

/*
 * Of calls with several nodes: out of line. The instructions of a call have often left the caches since the last one, so what a single node needs is kept together:
 * each piece that has to be fetched takes up to a microsecond. HIP's compilers give kernels that call functions the shared memory of all kernels, more than
 * there is.
 */
#if defined(__HIP__)
# define HT_FAR_FN EPF_DEV_FN
#else
# define HT_FAR_FN EPF_DEV_COLD
#endif

EPF_DEV_FN struct ht_state *ht_state_of(const struct ht_job *j)
{
	return HT_AT(struct ht_state, j->state);
}

EPF_DEV_FN struct ht_peer *ht_peer_of(const struct ht_job *j, uint32_t rank)
{
	return HT_AT(struct ht_peer, j->state + sizeof(struct ht_state)) + rank;
}

/* This warp's number in the grid: neighbours are in different blocks, so that little work is spread over all of them. */
EPF_DEV_FN uint32_t ht_warp(const struct ht_job *j)
{
	return epf_thread_in_block() / LL_LANES * j->blocks + epf_block_number();
}

EPF_DEV_FN uint32_t ht_warps(const struct ht_job *j)
{
	return j->blocks * (j->threads / LL_LANES);
}

/* This warp's first item of a list that follows `before` items of others: lists are shared out as if they were one. */
EPF_DEV_FN uint64_t ht_first_item(const struct ht_job *j, uint64_t before)
{
	uint32_t warps = ht_warps(j);

	return (ht_warp(j) + warps - (uint32_t)(before % warps)) % warps;
}

EPF_DEV_FN uint64_t *ht_flag_at(const struct ht_job *j, uint64_t control, uint32_t flag,
				uint32_t from)
{
	return HT_AT(uint64_t, control + (uint64_t)(flag * j->ranks + from) * HT_LINE);
}

/* A word of the line that comes with a flag. */
EPF_DEV_FN uint64_t *ht_word_at(const struct ht_job *j, uint64_t control, uint32_t flag,
				uint32_t from, uint32_t word)
{
	return ht_flag_at(j, control, flag, from) + word;
}

EPF_DEV_FN const struct ht_node *ht_node_of(const struct ht_job *j, uint32_t node)
{
	return HT_AT(const struct ht_node, j->topology) + node;
}

/*
 * Ranks of this node. With a single node, this and the functions below read no table: it has usually left the cache since the last call.
 */
EPF_DEV_FN uint32_t ht_mates(const struct ht_job *j)
{
	return j->nodes == 1 ? j->ranks : ht_node_of(j, j->node)->size;
}

EPF_DEV_FN uint32_t ht_member(const struct ht_job *j, uint32_t node, uint32_t index)
{
	const uint32_t *members =
		HT_AT(const uint32_t, j->topology + j->nodes * sizeof(struct ht_node));

	return members[ht_node_of(j, node)->first + index];
}

EPF_DEV_FN uint32_t ht_mate(const struct ht_job *j, uint32_t index)
{
	return j->nodes == 1 ? index : ht_member(j, j->node, index);
}

EPF_DEV_FN int ht_is_mate(const struct ht_job *j, uint32_t rank)
{
	return j->nodes == 1 || ht_peer_of(j, rank)->node == j->node;
}

/* The number in its node of a rank of this node. */
EPF_DEV_FN uint32_t ht_mate_index(const struct ht_job *j, uint32_t rank)
{
	return j->nodes == 1 ? rank : ht_peer_of(j, rank)->index;
}

/* Where the rows of a source pass through a node: its forwarder there; on its own node the source itself. */
EPF_DEV_FN uint32_t ht_via(const struct ht_job *j, uint32_t source, uint32_t node)
{
	return j->nodes == 1 ? source
			     : ht_member(j, node,
					 ht_peer_of(j, source)->index % ht_node_of(j, node)->size);
}

/*
 * The counts that rank `from` sends: rows for each rank, rows for each node where there are several, flags, room, then entries for each of the receiver's experts.
 * Two sets of them, one for each rank. Within a node a count is a word of 64 bits, whose upper half says which call it is of, so that it can be read as soon as
 * it is there, in front of no fence and behind no flag; between nodes a signal covers words of 32 bits.
 */
EPF_DEV_FN uint32_t ht_counts_words(const struct ht_job *j)
{
	return (2u * j->ranks + 2u + HT_LOCAL_MAX + 3u) / 4u * 4u;
}

/* Ranks, and nodes where there are several, that rows are counted for. */
EPF_DEV_FN uint32_t ht_counted(const struct ht_job *j)
{
	return j->ranks + (j->nodes > 1 ? j->nodes : 0);
}

/* Bit 0: it has memory to be mapped; bit 1: its CPU waits; from bit 2 on the rows of its outputs, if they are allocated. Behind it the room that they were allocated with. */
EPF_DEV_FN uint32_t ht_counts_flags(const struct ht_job *j)
{
	return ht_counted(j);
}

/* The first of the entries of experts. */
EPF_DEV_FN uint32_t ht_counts_experts(const struct ht_job *j)
{
	return ht_counted(j) + 2u;
}

/* The counts of rank `from` in the control area of a rank of this node. */
EPF_DEV_FN uint64_t *ht_counts_at(const struct ht_job *j, uint64_t control, uint64_t call,
				  uint32_t from)
{
	return HT_AT(uint64_t, control + (uint64_t)HT_FLAGS * j->ranks * HT_LINE) +
	       ((call & 1u) * j->ranks + from) * (uint64_t)ht_counts_words(j);
}

/* In one of the two halves of the region of counts, received or sent: those from or for a rank of another node. */
EPF_DEV_FN uint32_t *ht_counts_far(const struct ht_job *j, uint64_t half, uint64_t call,
				   uint32_t rank)
{
	return HT_AT(uint32_t, half) +
	       ((call & 1u) * j->ranks + rank) * (uint64_t)ht_counts_words(j);
}

/* What a count within a node has reached when it is of this call. */
EPF_DEV_FN uint64_t ht_count_of_call(uint64_t call)
{
	return (call + 1u) << 32;
}

/* A word that `from` has sent to this rank, and that is here. */
EPF_DEV_FN uint32_t ht_count(const struct ht_job *j, uint64_t call, uint32_t from, uint32_t word)
{
	return ht_is_mate(j, from) ? (uint32_t)epf_ld_relaxed_sys(
					     ht_counts_at(j, j->control, call, from) + word)
				   : ht_counts_far(j, j->counts, call, from)[word];
}

/* Rows that ranks 0..i send to r; 0 for i = -1. */
EPF_DEV_FN uint32_t ht_rows_until(const struct ht_job *j, uint32_t i, uint32_t r)
{
	return i == UINT32_MAX ? 0u : HT_AT(const uint32_t, j->matrix)[i * j->ranks + r];
}

/*
 * Counts this block as having reached a point of its kernel; `blocks` blocks reach it. Returns 1 in all threads of the last one. With `writes` what the others wrote
 * before is visible to those of its threads that make a fence; one of the system then passes it on to other ranks, too.
 */
EPF_DEV_FN int ht_last_of(uint64_t *done, uint32_t blocks, int writes)
{
	int last = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0) {
		if (writes)
			epf_fence_gpu();
		last = epf_add_gpu(done, 1) == (uint64_t)blocks - 1u;
		if (last)
			epf_st_relaxed_gpu(done, 0);
	}
	return epf_block_result(last);
}

EPF_DEV_FN int ht_last_block(const struct ht_job *j, uint64_t *done, int writes)
{
	return ht_last_of(done, j->blocks, writes);
}

/* A flag of this rank at a rank of this node. */
EPF_DEV_FN uint64_t *ht_flag_of(const struct ht_job *j, uint32_t flag, uint32_t rank)
{
	return ht_flag_at(j, ht_peer_of(j, rank)->control, flag, j->rank);
}

EPF_DEV_FN uint64_t ht_limit(const struct ht_job *j)
{
	const struct epf_gpu_ctx *ctx = HT_AT(const struct epf_gpu_ctx, j->ctx);

	return !j->timeout_ns ? ctx->deadline_ticks
			      : j->timeout_ns / 1000000u * ctx->timer_khz +
					j->timeout_ns % 1000000u * ctx->timer_khz / 1000000u;
}

EPF_DEV_COLD void ht_late(const struct ht_job *j, uint32_t flag, uint32_t rank, int code,
			  uint64_t want, uint64_t seen)
{
	epf_st_relaxed_gpu(&ht_peer_of(j, rank)->late, flag + 1u);
	(void)epf_or_gpu(&ht_state_of(j)->bad, UINT64_C(1) << flag);
	(void)epf_dev_fail(HT_AT(const struct epf_gpu_ctx, j->ctx), code, EPF_GPU_WAIT, rank, want,
			   seen);
}

/* Reports bad input; the kernel goes on. */
EPF_DEV_COLD void ht_complain(const struct ht_job *j, uint32_t bad, uint64_t want, uint64_t seen)
{
	(void)epf_or_gpu(&ht_state_of(j)->bad, bad);
	(void)epf_dev_fail(HT_AT(const struct epf_gpu_ctx, j->ctx), EPF_GPU_LIMIT, EPF_GPU_COMMAND,
			   j->rank, want, seen);
}

/* Does this block count? Of a kernel whose blocks all wait for the same, the first one does. */
EPF_DEV_FN int ht_counts_here(const struct ht_job *j)
{
	return j->tally && (epf_block_number() == 0 || j->call == EPF_WHY_HT_NOTIFY);
}

/*
 * Counts a wait for a rank: until it had begun the call, or until its rows were here. A long one is counted in every call, a short one with the call, so that
 * a wait that is over at once costs other calls nothing.
 */
EPF_DEV_COLD void ht_count_wait(const struct ht_job *j, uint32_t flag, uint32_t rank,
				const struct epf_dev_clock *clock)
{
	uint32_t reason = flag != HT_ROWS                    ? EPF_WHY_LATE
			  : j->unmet && !ht_is_mate(j, rank) ? EPF_WHY_EITHER
							     : EPF_WHY_SLOW;

	uint32_t weight = !ht_counts_here(j)        ? 0
			  : clock->polls > HT_LOOKS ? 1u
						    : tally_now()->weight;

	if (weight)
		tally_waited(tally_peer_of(j->tally, j->ranks, j->call, rank), reason,
			     epf_timer() - clock->start,
			     HT_AT(const struct epf_gpu_ctx, j->ctx)->timer_khz, weight);
}

/* Begins to count call `number`, or a part of it; one thread. */
EPF_DEV_FN void ht_count_from(const struct ht_job *j, uint64_t number, uint32_t calls)
{
	if (ht_counts_here(j))
		tally_begin(j->tally, j->call, calls, tally_weight(j->tally_mask, number));
}

/* Ends a phase of the call; one thread of a block that counts. */
EPF_DEV_FN void ht_phase(const struct ht_job *j, uint32_t phase)
{
	if (ht_counts_here(j))
		tally_phase(j->tally, j->call, phase);
}

/*
 * What the loss of a rank says of a wait for another one: 0: it may go on. No call can succeed without a lost rank, and those that noticed it make no more calls; but what
 * they did before may still arrive. since: when this wait saw the loss, or 0.
 */
EPF_DEV_COLD int ht_lost(const struct ht_job *j, uint64_t *since)
{
	const struct epf_gpu_ctx *ctx = HT_AT(const struct epf_gpu_ctx, j->ctx);

	if (!*since)
		*since = epf_timer();
	return epf_timer() - *since > (uint64_t)HT_LOST_MS * ctx->timer_khz ? EPF_GPU_LOST : 0;
}

/* What is waited for. */
struct ht_awaited {
	const uint64_t *word;
	uint64_t value; /* that the word is to reach, from bit `shift` on */
	uint32_t shift;
	uint32_t flag; /* enum ht_flag: what the rank has not done until then, for the host */
	uint32_t rank; /* who is to do it */
	uint32_t why;  /* enum epf_wakeup_condition, and its number: for who watches */
	uint32_t number;
	uint64_t seen; /* the word, when the wait is over */
};

/* Values may wrap around. */
EPF_DEV_FN int ht_reached(const struct ht_awaited *w)
{
	return (int64_t)(((w->seen >> w->shift) - w->value) << w->shift) >= 0;
}

/* Waits. Returns 0, or 1 if it was not done in time. clock: how long that took. */
EPF_DEV_FN int ht_wait_until(const struct ht_job *j, struct ht_awaited *w,
			     struct epf_dev_clock *clock)
{
	const struct epf_gpu_ctx *ctx = HT_AT(const struct epf_gpu_ctx, j->ctx);
	uint64_t since = 0;
	int code = 0;

	for (;;) {
		w->seen = epf_ld_acquire_sys(w->word);
		if (ht_reached(w) || code)
			break;
		epf_relax();
		if (clock->polls == 0)
			clock->start = epf_timer();
		if (++clock->polls % EPF_DEV_CHECK_EVERY)
			continue;
		if (epf_ld_relaxed_sys(epf_dev_abort(ctx)))
			code = EPF_GPU_ABORTED;
		else if (epf_timer() - clock->start > ht_limit(j))
			code = EPF_GPU_TIMEOUT;
		else if (epf_dev_is_gone(ctx, w->rank))
			code = EPF_GPU_LOST;
		else if (epf_dev_losses(ctx))
			code = ht_lost(j, &since);
		epf_dev_lasts(ctx, clock, w->why, w->number, w->value, w->seen >> w->shift);
	}
	epf_dev_report_end(ctx, clock);
	if (ht_reached(w))
		return 0;
	ht_late(j, w->flag, w->rank, code, w->value, w->seen >> w->shift);
	return 1;
}

/* The same, one copy for all waits of a kernel; counted: who asks why calls take long sees the wait. */
EPF_DEV_COLD int ht_wait_word(const struct ht_job *j, struct ht_awaited *w, int counted)
{
	struct epf_dev_clock clock = { 0, 0, 0 };
	int late = ht_wait_until(j, w, &clock);

	if (clock.polls && counted)
		ht_count_wait(j, w->flag, w->rank, &clock);
	return late;
}

/* Waits until a word of the flag of a rank of this node has reached `value`. */
EPF_DEV_FN int ht_wait_part(const struct ht_job *j, uint32_t flag, uint32_t rank, uint32_t word,
			    uint64_t value)
{
	struct ht_awaited w = { ht_word_at(j, j->control, flag, rank, word),
				value,
				0,
				flag,
				rank,
				EPF_WAKE_ON_STORE,
				rank,
				0 };

	return ht_wait_word(j, &w, 1);
}

/*
 * Waits until a rank of this node has sent a count of a call. Returns 0, or 1 if it was late. They come together, so the wait for the first one is counted.
 */
EPF_DEV_FN int ht_wait_count(const struct ht_job *j, uint64_t call, uint32_t rank, uint32_t word,
			     uint32_t *count)
{
	struct ht_awaited w = { ht_counts_at(j, j->control, call, rank) + word,
				(uint32_t)(call + 1u),
				32,
				HT_COUNTS,
				rank,
				EPF_WAKE_ON_STORE,
				rank,
				0 };
	int late = ht_wait_word(j, &w, word == 0);

	*count = (uint32_t)w.seen;
	return late;
}

/* What HT_READY has reached when a rank has begun a call. A dispatch that has exchanged counts and moves no rows is followed by one of the same number. */
EPF_DEV_FN uint64_t ht_begun(const struct ht_job *j, uint64_t call)
{
	return 2u * call + (j->counting ? 1u : 2u);
}

/* The same of a word of HT_READY; of the flag, which comes with the others, the wait is counted. */
EPF_DEV_FN int ht_wait_ready_word(const struct ht_job *j, uint64_t call, uint32_t rank,
				  uint32_t word)
{
	uint64_t begun = ht_begun(j, call);
	struct ht_awaited w = { ht_word_at(j, j->control, HT_READY, rank, word),
				word == HT_READY_FLAG ? begun : (uint32_t)begun,
				word == HT_READY_FLAG ? 0u : 32u,
				HT_READY,
				rank,
				EPF_WAKE_ON_STORE,
				rank,
				0 };

	return ht_wait_word(j, &w, word == HT_READY_FLAG);
}

/* Waits until a rank of another node has added to its signal here so many times. */
EPF_DEV_FN int ht_wait_signal(const struct ht_job *j, uint32_t kind, uint32_t rank, uint64_t times)
{
	uint32_t number = j->first_signal + kind * j->ranks + rank;
	struct ht_awaited w = { epf_dev_signal_word(HT_AT(const struct epf_gpu_ctx, j->ctx),
						    number),
				ht_peer_of(j, rank)->base[kind] + times,
				0,
				kind < HT_SIG_ROWS ? kind : HT_ROWS,
				rank,
				EPF_WAKE_ON_SIGNAL,
				number,
				0 };

	return ht_wait_word(j, &w, 1);
}

/*
 * Waits for a flag of every rank of this node; all threads of the block, which then see what those ranks had written. Returns 1 if one was late.
 */
EPF_DEV_FN int ht_wait_flags(const struct ht_job *j, uint32_t flag, uint64_t value)
{
	EPF_DEV_SHARED int late;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		late = 0;
	epf_block_barrier();
	for (uint32_t m = epf_thread_in_block(); m < ht_mates(j); m += j->threads)
		if (ht_wait_part(j, flag, ht_mate(j, m), 0, value))
			late = 1;
	epf_block_barrier();
	return late;
}

#endif
