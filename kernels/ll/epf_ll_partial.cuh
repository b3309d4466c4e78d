/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums at the sender, a form of combine's SEND half (EPF_LL_SUM_AT_SENDER). A rank that holds experts of a token adds their weighted rows, k
 * ascending, and brings home one BF16 row, to the slot of the first entry that names one of them.
 *
 * The weights are where the token came from. So block 0 begins by telling each rank the own tokens' entries and weights (struct ll_terms), and waits for theirs, as
 * a RECV half waits for rows. Meanwhile the other blocks sum for the own tokens, whose weights are here.
 *
 * Rows of the caller are read only; sums that are sent by commands are staged where their token's first row lies in the memory that is sent from. With
 * EPF_LL_ZERO_COPY that is the row itself: each piece of a row is read by the one warp that then writes there.
 */
#ifndef EPF_KERNELS_LL_PARTIAL_CUH
#define EPF_KERNELS_LL_PARTIAL_CUH

#include "kernels/ll/epf_ll_add.cuh"
#include "kernels/ll/epf_ll_dispatch.cuh"

/* ---- entries and weights, told ---- */

/* Entry k of an own token. */
EPF_DEV_FN struct ll_entry ll_own_entry(const struct ll_job *j, uint32_t token, uint32_t k)
{
	uint64_t at = (uint64_t)token * j->topk + k;
	int64_t expert = LL_AT(const int64_t, j->topk_idx)[at];
	struct ll_entry e = { 0, LL_AT(const float, j->weights)[at] };

	if (ll_rank_of(j, expert) != UINT32_MAX)
		e.what = LL_ENTRY | ll_entry_of(j, token, expert) << 16 | (uint32_t)expert;
	return e;
}

/* Terms of a rank as they came. */
EPF_DEV_FN uint64_t ll_iterms(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	return j->base + j->lay.iterms[set] + (uint64_t)rank * j->lay.term_bytes;
}

/* Writes one word of 8 bytes of the own terms to everybody who is reached by stores, and where they are sent from. at: behind the terms' beginning. */
EPF_DEV_FN void ll_tell_word(const struct ll_job *j, uint32_t set, uint32_t at, uint64_t word)
{
	for (uint32_t r = 0; r < j->ranks; r++) {
		uint64_t to = ll_peer_of(j, r)->direct;

		if (to && r != j->rank && !ll_masked(j, r))
			LL_AT(uint64_t,
			      to + j->lay.iterms[set] + (uint64_t)j->rank * j->lay.term_bytes + at)
		[0] = word;
	}
	if (j->commands)
		LL_AT(uint64_t, j->base + j->lay.terms[set] + at)
	[0] = word;
}

/* The own terms to all who are reached by commands; a warp. */
EPF_DEV_FN void ll_push_terms(const struct ll_job *j, uint32_t set)
{
	uint64_t to = j->lay.iterms[set] + (uint64_t)j->rank * j->lay.term_bytes;
	uint32_t signal = ll_signal(j, LL_WEIGHTS, set, j->rank);
	struct epf_dev d;
	int rc = 0;

	epf_warp_fence();
	epf_warp_open(&d, ll_ctx(j));
	for (uint32_t first = 0; first < j->ranks && !rc; first += LL_LANES) {
		uint32_t r = first + epf_lane();
		int yes = r < j->ranks && !ll_peer_of(j, r)->direct && !ll_masked(j, r);

		rc = epf_warp_put_signal(&d, yes, r, j->region, j->lay.terms[set], j->region, to,
					 ll_terms_used(j->tokens, j->topk), signal, 1, 0);
	}
	ll_sent(j, &d, LL_WEIGHTS, set);
}

/* Block 0 tells them. */
EPF_DEV_FN void ll_tell_terms(const struct ll_job *j)
{
	uint32_t set = (uint32_t)(ll_calls(j, LL_COMBINE, LL_SENDING) & 1u);
	uint32_t entries = j->tokens * j->topk;

	if (epf_block_number() != 0)
		return;
	if (epf_thread_in_block() == 0)
		ll_tell_word(j, set, 0, j->tokens);
	for (uint32_t i = epf_thread_in_block(); i < entries; i += j->threads) {
		struct ll_entry e = ll_own_entry(j, i / j->topk, i % j->topk);

		ll_tell_word(j, set, (uint32_t)(sizeof(struct ll_terms) + i * sizeof(e)),
			     (uint64_t)ll_bits(e.w) << 32 | e.what);
	}
	epf_block_barrier();
	if (epf_thread_in_block() >= LL_LANES)
		return;
	ll_tell_direct(j, LL_WEIGHTS, set);
	if (ll_any_remote(j))
		ll_push_terms(j, set);
}

/* ---- sums, made ---- */

/* Entry k of a token of a rank whose terms are here, or of this rank. */
EPF_DEV_FN struct ll_entry ll_entry_of_rank(const struct ll_job *j, uint32_t set, uint32_t rank,
					    uint32_t token, uint32_t k)
{
	uint64_t entries = ll_iterms(j, set, rank) + sizeof(struct ll_terms);

	return rank == j->rank
		       ? ll_own_entry(j, token, k)
		       : LL_AT(const struct ll_entry, entries)[(uint64_t)token * j->topk + k];
}

/* Does it name an expert of this rank? */
EPF_DEV_FN int ll_is_mine(const struct ll_job *j, struct ll_entry e)
{
	return (e.what & LL_ENTRY) && (e.what & 0xffffu) - j->rank * j->local < j->local;
}

/*
 * What entry k of a token adds here, as a row of x. The row of entry k itself is looked up before it is known whether another one names its expert first: that
 * is rare, and both loads are under way together.
 */
EPF_DEV_FN struct ll_term ll_term_here(const struct ll_job *j, uint32_t set, uint32_t rank,
				       uint32_t token, uint32_t k, int *mine)
{
	struct ll_term t = { UINT32_MAX, 0.0f };
	struct ll_entry e;
	uint32_t named;

	*mine = 0;
	if (k >= j->topk)
		return t;
	e = ll_entry_of_rank(j, set, rank, token, k);
	t.slot = ll_kept_row(j, rank, token, k);
	t.w = e.w;
	named = e.what >> 16 & (LL_TOPK - 1u);
	*mine = ll_is_mine(j, e);
	if (*mine && named < k)
		t.slot = ll_kept_row(j, rank, token, named);
	if (!*mine)
		t.slot = UINT32_MAX;
	return t;
}

/* Where a sum goes: to its home where that is in reach, else where its first row lies in the memory that is sent from. 0: nowhere. */
EPF_DEV_FN uint64_t ll_sum_to(const struct ll_job *j, uint32_t set, uint32_t rank, uint32_t token,
			      uint32_t k, uint32_t row)
{
	uint64_t direct = ll_peer_of(j, rank)->direct, row_bytes = (uint64_t)j->hidden * 2u;

	if (direct)
		return direct + j->lay.home[set] + ((uint64_t)token * j->topk + k) * row_bytes;
	return row == UINT32_MAX ? 0 : j->base + j->out_at + row * row_bytes;
}

/* One piece of the sum for a token of a rank, if it has experts here; a warp. */
EPF_DEV_FN void ll_sum_here(const struct ll_job *j, uint32_t set, uint32_t rank, uint32_t token,
			    uint32_t piece)
{
	uint32_t at = piece * LL_LANES * LL_SPAN + epf_lane();
	epf_lanes all = epf_lanes_where(1);
	uint64_t to = 0;
	int any = 0;
	struct ll_sum s;

	ll_sum_begin(&s);
	for (uint32_t first = 0; first < j->topk; first += LL_LANES) {
		int mine;
		struct ll_term t = ll_term_here(j, set, rank, token, first + epf_lane(), &mine);
		epf_lanes here = epf_lanes_where(mine);

		if (here && !any) {
			uint32_t lane = epf_lanes_first(here);

			any = 1;
			to = ll_sum_to(j, set, rank, token, first + lane,
				       (uint32_t)epf_lanes_get(all, t.slot, lane));
		}
		if (mine && t.slot == UINT32_MAX && piece == 0)
			ll_complain(j, LL_BAD_ROW, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, token,
				    first + epf_lane());
		ll_sum_rows(j, &s, epf_lanes_where(t.slot != UINT32_MAX), t, j->x, at, 0);
	}
	if (to)
		ll_sum_store(j, &s, to, at);
}

/* Tokens of a rank, as its terms say. */
EPF_DEV_FN uint32_t ll_tokens_of(const struct ll_job *j, uint32_t set, uint32_t rank, int some)
{
	uint32_t n = LL_AT(const struct ll_terms, ll_iterms(j, set, rank))->tokens;

	return n <= j->tokens_max && ll_is_live(j, LL_WEIGHTS, rank, some) ? n : 0;
}

/* The most tokens of any other rank: the same in all lanes. */
EPF_DEV_FN uint32_t ll_tokens_most(const struct ll_job *j, uint32_t set, int some)
{
	uint32_t most = 0;

	for (uint32_t first = 0; first < j->ranks; first += LL_LANES) {
		uint32_t r = first + epf_lane();
		uint32_t n = r < j->ranks && r != j->rank ? ll_tokens_of(j, set, r, some) : 0;

		most = n > most ? n : most;
	}
	for (uint32_t m = 1; m < LL_LANES; m *= 2u) {
		uint32_t other = ll_swap(most, m);

		most = other > most ? other : most;
	}
	return most;
}

/* Sums for the own tokens, by all blocks but the one that waits for the other ranks: first the weights that are here. */
EPF_DEV_FN void ll_sum_own(const struct ll_job *j, uint32_t set)
{
	uint32_t skip = j->blocks > 1u, blocks = j->blocks - skip, pieces = ll_sum_pieces(j);
	uint64_t warps = (uint64_t)blocks * (j->threads / LL_LANES);
	uint64_t items = (uint64_t)j->tokens * pieces, share = (items + warps - 1u) / warps;
	uint64_t i =
		(epf_thread_in_block() / LL_LANES * blocks + epf_block_number() - skip) * share;

	if (epf_block_number() < skip)
		return;
	for (uint64_t end = i + share < items ? i + share : items; i < end; i++)
		ll_sum_here(j, set, j->rank, (uint32_t)(i / pieces), (uint32_t)(i % pieces));
}

/* Sums for the other ranks' tokens. Each warp takes neighbouring pieces, whose entries it has just read; it begins behind this rank. */
EPF_DEV_FN void ll_sum_others(const struct ll_job *j, uint32_t set, int some)
{
	uint32_t pieces = ll_sum_pieces(j), most = ll_tokens_most(j, set, some);
	uint64_t items = (uint64_t)(j->ranks - 1u) * most * pieces;
	uint64_t share = (items + ll_warps(j) - 1u) / ll_warps(j), i = ll_warp(j) * share;

	for (uint64_t end = i + share < items ? i + share : items; i < end; i++) {
		uint64_t row = i / pieces;
		uint32_t rank = (j->rank + 1u + (uint32_t)(row / most)) % j->ranks;
		uint32_t token = (uint32_t)(row % most);

		if (token < ll_tokens_of(j, set, rank, some))
			ll_sum_here(j, set, rank, token, (uint32_t)(i % pieces));
	}
}

/* The SEND half up to its last block: all threads of all blocks. */
EPF_DEV_FN void ll_sum_and_return(const struct ll_job *j, uint64_t calls)
{
	uint32_t set = (uint32_t)(calls & 1u);

	ll_sum_own(j, set);
	ll_sum_others(j, set, ll_wait_all(j, LL_WEIGHTS, calls));
}

/* All sums for a rank that is reached by commands, a lane a token; a warp. */
EPF_DEV_FN int ll_push_sums(const struct ll_job *j, struct epf_dev *d, uint32_t set, uint32_t rank)
{
	uint32_t signal = ll_signal(j, LL_COMBINE, set, j->rank), puts = 0;
	uint32_t tokens = ll_tokens_of(j, set, rank, 0), row_bytes = j->hidden * 2u;
	int rc = 0;

	for (uint32_t first = 0; first < tokens && !rc; first += LL_LANES) {
		uint32_t token = first + epf_lane(), row = UINT32_MAX, k = 0;
		int mine = 0, yes;

		for (; token < tokens && !mine && k < j->topk; k += !mine)
			row = ll_term_here(j, set, rank, token, k, &mine).slot;
		yes = mine && row != UINT32_MAX;
		rc = epf_warp_put_group(
			d, yes, rank, j->region, j->out_at + (uint64_t)row * row_bytes, j->region,
			j->lay.home[set] + ((uint64_t)token * j->topk + k) * row_bytes, row_bytes,
			signal, 0);
		puts += epf_lanes_count(epf_lanes_where(yes));
	}
	return rc ? rc : ll_tell(j, d, LL_COMBINE, set, rank, puts);
}

#endif
