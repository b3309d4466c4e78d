/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch: every row is read once and written once to each rank of its node that it goes to, at its final index. It crosses once to each other
 * node, with the indices it has there, and is written from where it arrives. Rows go straight to the outputs where these lie in memory that the ranks
 * of a node map; otherwise those that others write arrive in the window and are copied out. So does what travels with rows.
 */
#ifndef EPF_KERNELS_HT_DISPATCH_CUH
#define EPF_KERNELS_HT_DISPATCH_CUH

#include "kernels/ht/epf_ht_across.cuh"

/* ---- parts: what is known of how far the warps of a block are ---- */

/* How many of the warps that write rows have written a part, of each part. */
EPF_DEV_FN uint32_t *ht_written(void)
{
	EPF_DEV_SHARED uint32_t written[HT_PARTS];

	return written;
}

/* This warp has written what it writes of a part. */
EPF_DEV_FN void ht_pass_part(uint32_t part)
{
	epf_warp_barrier();
	if (epf_lane() == 0)
		epf_add32_release_block(&ht_written()[part], 1u);
}

/* ---- receiving ---- */

#define HT_TAKEN 8u /* words of a thread whose loads are under way together */

/* Scales of rows [first, end) and their numbers, from the window to the outputs; all threads of the grid. */
EPF_DEV_FN void ht_take_words(const struct ht_job *j, uint32_t first, uint32_t end)
{
	const uint32_t *from = HT_AT(const uint32_t, ht_window(j) + j->lay.scales) +
			       (uint64_t)first * j->scale_words;
	struct ht_beside b = ht_beside_of(j, ht_marks() + ht_mate_index(j, j->rank));
	uint32_t n = (end - first) * j->scale_words, step = ht_warps(j) * LL_LANES;

	for (uint32_t at = ht_warp(j) * LL_LANES + epf_lane(); at < n; at += HT_TAKEN * step) {
		uint32_t w[HT_TAKEN];

		LL_UNROLL
		for (uint32_t i = 0; i < HT_TAKEN; i++)
			w[i] = at + i * step < n ? from[at + i * step] : 0;
		LL_UNROLL
		for (uint32_t i = 0; i < HT_TAKEN; i++)
			if (at + i * step < n)
				ht_put_word(j, &b, first + (at + i * step) / j->scale_words,
					    (at + i * step) % j->scale_words, w[i]);
	}
}

/* The same of their entries. */
EPF_DEV_FN void ht_take_entries(const struct ht_job *j, uint32_t first, uint32_t end)
{
	uint64_t step = (uint64_t)ht_warps(j) * LL_LANES, n = (uint64_t)end * j->topk;
	uint64_t at = (uint64_t)first * j->topk + (uint64_t)ht_warp(j) * LL_LANES + epf_lane();
	const uint32_t *weight = HT_AT(const uint32_t, ht_window(j) + j->lay.weights);
	const int32_t *index = HT_AT(const int32_t, ht_window(j) + j->lay.index);

	for (; at < n; at += HT_TAKEN * step) {
		uint32_t w[HT_TAKEN];
		int32_t e[HT_TAKEN];

		LL_UNROLL
		for (uint32_t i = 0; i < HT_TAKEN; i++) {
			e[i] = at + i * step < n ? index[at + i * step] : -1;
			w[i] = j->out_weights && at + i * step < n ? weight[at + i * step] : 0;
		}
		LL_UNROLL
		for (uint32_t i = 0; i < HT_TAKEN; i++) {
			if (at + i * step >= n)
				continue;
			HT_AT(int64_t, j->out_index)[at + i * step] = e[i];
			if (j->out_weights)
				HT_AT(uint32_t, j->out_weights)[at + i * step] = w[i];
		}
	}
}

/* One chunk of an arrived row, from the window to the outputs. A warp. */
EPF_DEV_FN void ht_copy_out(const struct ht_job *j, const struct ht_chunks *c, uint32_t row,
			    uint32_t k)
{
	struct ht_chunk p;

	ht_load(c, &p, k, ht_window(j) + j->lay.rows + (uint64_t)row * j->row_bytes);
	ht_store(c, &p, k, j->out + (uint64_t)row * j->row_bytes);
}

/* Rows that do not fit are left out and reported. One thread. */
EPF_DEV_FN void ht_check_room(const struct ht_job *j, uint64_t rows, uint64_t room)
{
	if (rows <= room)
		return;
	epf_st_relaxed_gpu(&ht_state_of(j)->rows, rows);
	ht_complain(j, HT_BAD_ROOM, room, rows);
}

/* What others have written for this rank and is not in the outputs yet. */
EPF_DEV_FN void ht_receive_rows(const struct ht_job *j)
{
	uint32_t rows = ht_rows_until(j, j->ranks - 1u, j->rank);
	struct ht_chunks c = ht_chunks(j);
	uint64_t before = 0;

	if (epf_block_number() == 0 && epf_thread_in_block() == 0)
		ht_check_room(j, rows, j->received);
	if (j->grouped)
		return;
	for (uint32_t s = 0; s < j->ranks; s++) {
		uint32_t first = ht_rows_until(j, s - 1u, j->rank);
		uint32_t end = ht_rows_until(j, s, j->rank);
		uint64_t items;

		end = end < j->received ? end : j->received;
		if (first >= end || ht_via(j, s, j->node) == j->rank)
			continue;
		if (!j->beside) {
			ht_take_words(j, first, end);
			ht_take_entries(j, first, end);
		}
		if (j->places[HT_PLACE_OUT])
			continue;
		items = (uint64_t)(end - first) * c.count;
		for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j))
			ht_copy_out(j, &c, first + (uint32_t)i / c.count, (uint32_t)i % c.count);
		before += items;
	}
	/* No expert for the rows that are allocated and not received. */
	for (uint64_t i = (uint64_t)rows * j->topk + ht_warp(j) * LL_LANES + epf_lane();
	     i < (uint64_t)j->received * j->topk; i += (uint64_t)ht_warps(j) * LL_LANES)
		HT_AT(int64_t, j->out_index)[i] = -1;
}

/* What a word says of where this rank wants its rows. */
EPF_DEV_FN uint32_t ht_said(const struct ht_job *j, uint32_t word)
{
	uint32_t half = word - HT_READY_PLACES;

	if (word == HT_READY_ROOM)
		return j->received;
	if (word == HT_READY_STRIDE)
		return (uint32_t)j->out_stride[0];
	return (uint32_t)(j->places[half / 2u] >> half % 2u * 32u);
}

/*
 * Tells the ranks of this node that its window may be written, and in a dispatch where it wants its rows. A warp. Behind no fence: what was read of the window was
 * read by kernels before this one.
 */
EPF_DEV_FN void ht_say_begun(const struct ht_job *j, uint64_t call, int dispatch)
{
	uint32_t words = dispatch ? HT_READY_SAID : 1u;
	uint64_t begun = ht_begun(j, call);

	for (uint32_t i = epf_lane(); i < ht_mates(j) * words; i += LL_LANES) {
		uint32_t word = i % words;

		epf_st_relaxed_sys(ht_flag_of(j, HT_READY, ht_mate(j, i / words)) + word,
				   word == HT_READY_FLAG ? begun : begun << 32 | ht_said(j, word));
	}
}

/* Waits until all ranks of this node have told that; all threads of a block. */
EPF_DEV_FN void ht_wait_begun(const struct ht_job *j, uint64_t call, int dispatch)
{
	uint32_t words = dispatch ? HT_READY_SAID : 1u, late = UINT32_MAX;

	for (uint32_t i = epf_thread_in_block(); i < ht_mates(j) * words; i += j->threads)
		if (i / words != late && /* the deadline is the rank's */
		    ht_wait_ready_word(j, call, ht_mate(j, i / words), i % words))
			late = i / words;
	epf_block_barrier();
}

/* Calls that have moved rows. */
EPF_DEV_FN uint64_t ht_moved(const struct ht_job *j)
{
	return epf_ld_relaxed_gpu(&ht_state_of(j)->moved);
}

/* Runs in front of a kernel that moves rows, with several nodes: all memory that it writes to may be written. */
EPF_DEV_FN void ht_ready(const struct ht_job *j)
{
	if (epf_thread_in_block() == 0)
		ht_count_from(j, ht_moved(j), 0);
	if (epf_thread_in_block() < LL_LANES)
		ht_say_begun(j, ht_moved(j), 1);
	ht_wait_begun(j, ht_moved(j), 1);
	ht_wait_ready(j, ht_moved(j));
	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_WAIT);
}

/* Counts rows that each rank receives, and that each has sent to this one. All threads. */
EPF_DEV_FN void ht_count_rows(const struct ht_job *j, uint64_t call)
{
	uint64_t weight = ht_counts_here(j) && j->call == EPF_WHY_HT_DISPATCH
				  ? tally_weight(j->tally_mask, call)
				  : 0;

	for (uint32_t r = epf_thread_in_block(); r < j->ranks && weight; r += j->threads) {
		struct tally_peer *p = tally_peer_of(j->tally, j->ranks, j->call, r);

		(void)epf_add_gpu(&p->rows_to, weight * ht_rows_until(j, j->ranks - 1u, r));
		(void)epf_add_gpu(&p->rows_from, weight * (ht_rows_until(j, r, j->rank) -
							   ht_rows_until(j, r - 1u, j->rank)));
	}
}

/*
 * Waits until the ranks of this node have begun; with several nodes a kernel in front has. Fills in the marks meanwhile, but for what other ranks say. All
 * threads. Rows are counted when the other ranks need not wait.
 */
EPF_DEV_FN void ht_meet(const struct ht_job *j, uint64_t call, int dispatch)
{
	if (epf_thread_in_block() == 0)
		ht_count_from(j, call, 1);
	if (j->nodes == 1 && epf_block_number() == 0 && epf_thread_in_block() < LL_LANES)
		ht_say_begun(j, call, dispatch);
	ht_mark_members(j);
	ht_mark_rows(j, dispatch);
	if (j->nodes == 1) {
		ht_wait_begun(j, call, dispatch);
		if (epf_thread_in_block() == 0)
			ht_phase(j, EPF_WHY_WAIT);
	}
	ht_count_rows(j, call);
}

/* This rank has written all that it writes to ranks of its node: notifies them, and waits for them. */
EPF_DEV_FN void ht_exchange(const struct ht_job *j, uint64_t call)
{
	if (ht_last_block(j, &ht_state_of(j)->done[0], 1) && epf_thread_in_block() < LL_LANES)
		ht_tell_rows(j, call, 0);
	(void)ht_wait_flags(j, HT_ROWS, call + 1u);
	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_MOVE);
}

/* Whoever may still write: a rank that was late; if counts were, any rank, for it may have seen them all. */
EPF_DEV_FN int ht_may_write(const struct ht_job *j, uint32_t rank)
{
	return ht_peer_of(j, rank)->late ||
	       (j->counting && !epf_ld_relaxed_gpu(&ht_state_of(j)->fits));
}

/* Withdraws the consent from them, and gives one that is writing the time to finish. A warp. */
EPF_DEV_COLD void ht_withdraw(const struct ht_job *j, uint64_t call)
{
	const struct epf_gpu_ctx *ctx = ht_ctx(j);
	uint64_t grace = (uint64_t)HT_GRACE_MS * ctx->timer_khz, start = epf_timer();

	for (uint32_t i = epf_lane(); i < ht_mates(j); i += LL_LANES) {
		uint32_t rank = ht_mate(j, i);
		uint64_t *gone = ht_flag_of(j, HT_GONE, rank);

		if (ht_may_write(j, rank))
			epf_st_relaxed_sys(gone, call + 1u);
	}
	for (uint32_t i = epf_lane(); i < ht_mates(j); i += LL_LANES) {
		uint32_t rank = ht_mate(j, i);

		while (ht_may_write(j, rank) && epf_timer() - start < grace &&
		       epf_ld_acquire_sys(ht_word_at(j, j->control, HT_ROWS, rank, j->parts - 1u)) <
			       call + 1u)
			epf_relax();
	}
	epf_warp_barrier();
}

/* Grouped dispatches before this one; before the first barrier, for a spread counts this one when it has seen all blocks of the dispatch tell their rows. */
EPF_DEV_FN uint64_t ht_grouped(const struct ht_job *j)
{
	return epf_ld_relaxed_gpu(&ht_state_of(j)->grouped);
}

/*
 * Ends it: nothing of this call is read any more, but by the spread of a grouped dispatch, number `grouped`. A dispatch that has exchanged counts and moves no rows
 * does not count, unless a rank was late: that one may have seen all counts, and be on its way.
 */
EPF_DEV_FN void ht_end(const struct ht_job *j, uint64_t call, uint64_t grouped)
{
	struct ht_state *s = ht_state_of(j);
	int last = ht_last_block(j, &s->done[1], j->nodes > 1), late;

	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_COPY);
	if (!last || epf_thread_in_block() >= LL_LANES)
		return;
	late = (epf_ld_relaxed_gpu(&s->bad) & HT_BAD_LATE) != 0;
	if (late)
		ht_withdraw(j, call);
	if (j->nodes > 1) {
		ht_say_ready(j);
		if (epf_lane() == 0)
			ht_wait_sent(j);
	}
	if (epf_lane() == 0) {
		epf_st_relaxed_gpu(&s->next, 0);
		epf_st_relaxed_gpu(&s->taken, 0);
		if (late || !j->counting || epf_ld_relaxed_gpu(&s->fits))
			epf_st_relaxed_gpu(&s->moved, call + 1u);
		if (j->grouped)
			epf_st_release_gpu(&s->ended, grouped + 1u);
	}
}

/* Do the rows that cross fit? If not, none cross, at any rank, and it is reported. */
EPF_DEV_FN int ht_crosses(const struct ht_job *j)
{
	if (j->nodes == 1)
		return 0;
	if (epf_block_number() == 0 && epf_thread_in_block() == 0)
		ht_check_room(j, *HT_AT(const uint32_t, j->plan + j->at.need), j->net_room);
	return ht_net_fits(j);
}

#define HT_SCAN 32u /* tokens that are looked at for the next row for a rank */

/* How many of this rank's rows for another are of the tokens before this one; UINT32_MAX: that is not found soon. */
EPF_DEV_FN uint32_t ht_rows_before(const struct ht_job *j, uint32_t token, uint32_t rank)
{
	for (uint32_t i = 0; i < HT_SCAN && token + i < j->tokens; i++) {
		int32_t place =
			HT_AT(const int32_t, j->place)[(uint64_t)(token + i) * j->ranks + rank];

		if (place >= 0)
			return (uint32_t)place;
	}
	if (token + HT_SCAN < j->tokens)
		return UINT32_MAX;
	return ht_rows_until(j, j->rank, rank) - ht_rows_until(j, j->rank - 1u, rank);
}

/* Tells the ranks of this node that the rows of the tokens before this one are in their windows. A warp of the last block that has written some. */
EPF_DEV_FN void ht_tell_so_far(const struct ht_job *j, uint64_t call, uint64_t grouped,
			       uint32_t token)
{
	epf_fence_sys();
	for (uint32_t i = epf_lane(); i < ht_mates(j); i += LL_LANES) {
		uint32_t rank = ht_mate(j, i), rows = ht_rows_before(j, token, rank);
		const struct ht_peer *p = ht_peer_of(j, rank);

		if (rows != UINT32_MAX && epf_ld_relaxed_gpu(&p->skipped) != call + 1u)
			epf_st_relaxed_sys(
				ht_word_at(j, p->control, HT_READY, j->rank, HT_READY_SO_FAR),
				(grouped + 1u) << 32 | rows);
	}
}

/* Is this block the last one that has written a part? A warp, when all warps of the block have written it. */
EPF_DEV_FN int ht_last_of_part(const struct ht_job *j, uint32_t part)
{
	uint64_t *blocks = &ht_state_of(j)->parts[part];
	int last = 0;

	if (epf_lane() == 0) {
		epf_fence_gpu();
		last = epf_add_gpu(blocks, 1) == (uint64_t)j->blocks - 1u;
		if (last)
			epf_st_relaxed_gpu(blocks, 0);
	}
	return epf_warp_result(last);
}

/* Groups of chunks, shared out in parts of neighbours, after each of which the other ranks are told how many rows there are. */
struct ht_telling {
	uint32_t warps; /* of a block, that send */
	uint32_t each;  /* chunks of a group */
	uint32_t groups;
};

EPF_DEV_FN uint32_t ht_told_end(const struct ht_job *j, const struct ht_telling *t, uint32_t part)
{
	return (uint32_t)((uint64_t)t->groups * (part + 1u) / j->told);
}

/* The warp that sends nothing, and tells. Parts of other blocks may be told a little later than their successors: who looks takes the most it has seen. */
EPF_DEV_FN void ht_keep_telling(const struct ht_job *j, const struct ht_chunks *c,
				const struct ht_telling *t, uint64_t call, uint64_t grouped)
{
	for (uint32_t part = 0; part < j->told;) {
		int written =
			epf_lane() == 0 && epf_ld32_acquire_block(&ht_written()[part]) >= t->warps;
		uint32_t token = ht_told_end(j, t, part) * t->each / c->count;

		if (!epf_warp_result(written)) {
			epf_pause();
			continue;
		}
		if (ht_last_of_part(j, part))
			ht_tell_so_far(j, call, grouped,
				       part + 1u < j->told && token < j->tokens ? token
										: j->tokens);
		part++;
	}
}

/* So many chunks of this rank's rows, from this one on, as far as there are any. A warp. */
EPF_DEV_FN void ht_send_group(const struct ht_job *j, const struct ht_chunks *c, uint32_t first,
			      uint32_t chunks)
{
	uint32_t token = first / c->count, k = first % c->count;

	for (; chunks && token < j->tokens; chunks--) {
		ht_send_chunk(j, c, token, k);
		if (++k == c->count) {
			k = 0;
			token++;
		}
	}
}

/* Rows of this rank's tokens, to the ranks of its node. */
EPF_DEV_FN void ht_send_rows(const struct ht_job *j, const struct ht_chunks *c, uint64_t call,
			     uint64_t grouped)
{
	uint32_t items = j->tokens * c->count, part = 0;
	struct ht_telling k = { j->threads / LL_LANES - (j->told != 0), 0, 0 };
	struct ht_taken t;

	k.each = ht_group_chunks(items, k.warps * j->blocks);
	k.groups = (items + k.each - 1u) / k.each;
	if (epf_thread_in_block() / LL_LANES >= k.warps) {
		ht_keep_telling(j, c, &k, call, grouped);
		return;
	}
	for (t = ht_take_first(j, k.warps * j->blocks, k.groups); t.group < t.groups;
	     ht_take_next(&t)) {
		for (; part < j->told && ht_told_end(j, &k, part) <= t.group; part++)
			ht_pass_part(part);
		ht_send_group(j, c, (uint32_t)t.group * k.each, k.each);
	}
	for (; part < j->told; part++)
		ht_pass_part(part);
}

/* Moves the rows of a dispatch. All threads of the grid, when the marks are filled in. */
EPF_DEV_FN void ht_transfer(const struct ht_job *j, uint64_t call, uint64_t grouped, int crosses)
{
	struct ht_chunks c = ht_chunks(j);

	if (crosses)
		ht_send_across(j);
	ht_send_rows(j, &c, call, grouped);
	if (crosses)
		ht_forward(j, call);
	ht_exchange(j, call);
	ht_receive_rows(j);
}

EPF_DEV_FN void ht_dispatch(const struct ht_job *j)
{
	uint64_t call = ht_moved(j), grouped = ht_grouped(j);
	int crosses;

	if (j->if_it_fits && !epf_ld_relaxed_gpu(&ht_state_of(j)->fits))
		return;
	crosses = ht_crosses(j);
	for (uint32_t i = epf_thread_in_block(); i < HT_PARTS; i += j->threads)
		ht_written()[i] = 0;
	ht_meet(j, call, 1);
	ht_mark_targets(j, call, 1);
	ht_transfer(j, call, grouped, crosses);
	ht_end(j, call, grouped);
}

/* The other blocks wait for block 0, which has read the counts. Returns whether rows fit. */
EPF_DEV_FN int ht_wait_verdict(const struct ht_job *j, uint64_t counted)
{
	while (epf_thread_in_block() == 0 &&
	       epf_ld_acquire_gpu(&ht_state_of(j)->counted) == counted)
		epf_relax();
	epf_block_barrier();
	return epf_ld_relaxed_gpu(&ht_state_of(j)->fits) != 0;
}

/*
 * A dispatch that exchanges the counts itself, as ht_notify() does, and moves rows if they fit; few ranks of one node. Block 0 waits for the counts of the other
 * ranks; it is the last one that gets a piece of what is to be done before. Meanwhile the other blocks learn where the ranks want their rows.
 */
EPF_DEV_FN void ht_counted_dispatch(const struct ht_job *j)
{
	struct ht_state *s = ht_state_of(j);
	uint64_t call = ht_moved(j), counted = epf_ld_relaxed_gpu(&s->counted);
	uint32_t pieces = ht_count_pieces(j);
	int fits;

	if (epf_thread_in_block() == 0)
		ht_count_from(j, call, 1);
	for (uint32_t i = j->blocks - 1u - epf_block_number(); i <= pieces; i += j->blocks)
		if (i < pieces)
			ht_count_piece(j, counted, i);
		else if (epf_thread_in_block() < LL_LANES)
			ht_say_begun(j, call, 1);
	epf_block_barrier();
	if (epf_thread_in_block() == 0) {
		epf_fence_gpu();
		(void)epf_add_gpu(&s->met, 1);
	}
	if (epf_block_number() == 0)
		ht_take_counts(j, counted);
	/* Block 0 has waited as long as it may, if counts are late. */
	if (epf_block_number() != 0 || epf_ld_relaxed_gpu(&s->fits)) {
		ht_mark_members(j);
		ht_wait_begun(j, call, 1);
		ht_mark_targets(j, call, 1);
	}
	fits = ht_wait_verdict(j, counted);
	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_WAIT);
	if (fits) {
		ht_mark_rows(j, 1);
		ht_count_rows(j, call);
		epf_block_barrier();
		ht_transfer(j, call, 0, 0);
	}
	ht_end(j, call, 0);
}

#endif
