/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums at the sender, a form of combine's SEND half (EPF_LL_SUM_AT_SENDER). A rank that holds experts of a token adds their weighted rows, k
 * ascending, and brings home one BF16 row, to the slot of the first entry that names one of them.
 *
 * The weights are where the token came from. So a block for each rank begins by telling it the own tokens' entries and weights (struct ll_terms). All blocks
 * sum for the own tokens, whose weights are here, and then wait for the other ranks' as a RECV half waits for rows.
 *
 * Rows of the caller are read only; sums that are sent over the command path are staged where their token's first row lies in the memory that is sent from. With
 * EPF_LL_ZERO_COPY that is the row itself: each piece of a row is read by the one warp that then writes there.
 */
#ifndef EPF_KERNELS_LL_PARTIAL_CUH
#define EPF_KERNELS_LL_PARTIAL_CUH

#include "kernels/ll/epf_ll_add.cuh"
#include "kernels/ll/epf_ll_dispatch.cuh"

/* In which forms rows fail back in a call that may sum. */
enum ll_form {
	LL_AS_ROWS = 1,
	LL_AS_SUMS = 2,
};

/* Bits of enum ll_form: of any rank; the same in all warps. */
EPF_DEV_FN uint32_t ll_forms(const struct ll_job *j)
{
	uint32_t forms = 0;

	if (!(j->flags & EPF_LL_SUM_IF_MANY))
		return LL_AS_SUMS;
	for (uint32_t first = 0; first < j->ranks; first += LL_LANES) {
		uint32_t r = first + epf_lane();
		int sums = r < j->ranks && ll_sums_for(j, r);

		forms |= epf_lanes_where(sums) ? LL_AS_SUMS : 0u;
		forms |= epf_lanes_where(r < j->ranks && !sums) ? LL_AS_ROWS : 0u;
	}
	return forms;
}

/* ---- entries and weights, announced ---- */

/* An own token's entry, by its number token * topk + k. */
EPF_DEV_FN struct ll_entry ll_own_entry(const struct ll_job *j, uint64_t at)
{
	int64_t expert = LL_AT(const int64_t, j->topk_idx)[at];
	struct ll_entry e = { 0, LL_AT(const float, j->weights)[at] };

	if (ll_rank_of(j, expert) != UINT32_MAX)
		e.what = LL_ENTRY | (uint32_t)expert;
	return e;
}

/* Terms of a rank as they came. */
EPF_DEV_FN uint64_t ll_iterms(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	return j->base + j->lay.iterms[set] + (uint64_t)rank * j->lay.term_bytes;
}

/* Where the own terms are stored to at a rank; 0: nowhere, or not by stores. */
EPF_DEV_FN uint64_t ll_terms_to(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	uint64_t to = ll_peer_of(j, rank)->direct;

	return to && rank != j->rank && !ll_masked(j, rank)
		       ? to + j->lay.iterms[set] + (uint64_t)j->rank * j->lay.term_bytes
		       : 0;
}

/* This rank's terms to all ranks reached over the command path; a warp. */
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

/* Writes them there, each thread two entries at once; 16 bytes at a time. */
EPF_DEV_FN void ll_write_terms(const struct ll_job *j, uint64_t to)
{
	uint32_t entries = j->tokens * j->topk;

	if (epf_thread_in_block() == 0)
		*LL_AT(struct ll_vec, to) = (struct ll_vec){ { j->tokens, 0, 0, 0 } };
	LL_ROLLED
	for (uint32_t i = epf_thread_in_block(); i < (entries + 1u) / 2u; i += j->threads) {
		struct ll_entry e[2] = { ll_own_entry(j, 2ull * i), { 0, 0.0f } };

		if (2u * i + 1u < entries)
			e[1] = ll_own_entry(j, 2ull * i + 1u);
		LL_AT(struct ll_vec, to + sizeof(struct ll_terms))
		[i] = (struct ll_vec){ { e[0].what, ll_bits(e[0].w), e[1].what, ll_bits(e[1].w) } };
	}
}

/* Announces them: a block for each rank, of which the own one's sends what goes over the command path. */
EPF_DEV_FN void ll_tell_terms(const struct ll_job *j)
{
	uint64_t calls = ll_calls(j, LL_COMBINE, LL_SENDING);
	uint32_t set = (uint32_t)(calls & 1u);

	if (!ll_sums_for(j, j->rank))
		return;
	LL_ROLLED
	for (uint32_t i = epf_block_number(); i < j->ranks; i += j->blocks) {
		uint32_t rank = (j->rank + i) % j->ranks;
		uint64_t to = ll_terms_to(j, set, rank);

		if (rank == j->rank && j->commands)
			to = j->base + j->lay.terms[set];
		if (to)
			ll_write_terms(j, to);
		epf_block_barrier();
		if (epf_thread_in_block() >= LL_LANES)
			continue;
		ll_tell_all(j, LL_WEIGHTS, calls, rank, 1);
		if (rank == j->rank && ll_any_remote(j))
			ll_push_terms(j, set);
	}
}

/* ---- sums, made ---- */

/* Entry k of a token of a rank whose terms are here, or of this rank. */
EPF_DEV_FN struct ll_entry ll_entry_of_rank(const struct ll_job *j, uint32_t set, uint32_t rank,
					    uint32_t token, uint32_t k)
{
	uint64_t entries = ll_iterms(j, set, rank) + sizeof(struct ll_terms);

	return rank == j->rank
		       ? ll_own_entry(j, (uint64_t)token * j->topk + k)
		       : LL_AT(const struct ll_entry, entries)[(uint64_t)token * j->topk + k];
}

/*
 * What entry k of a token adds here, as a row of x: slot is UINT32_MAX for none. What is known of the entry and where its row is are read together, before it
 * is clear whether there is one. mine: it names an expert of this rank.
 */
EPF_DEV_FN struct ll_term ll_term_here(const struct ll_job *j, uint32_t set, uint32_t rank,
				       uint32_t token, uint32_t k, int *mine)
{
	struct ll_term t = { UINT32_MAX, 0.0f };
	struct ll_entry e;

	*mine = 0;
	if (k >= j->topk)
		return t;
	e = ll_entry_of_rank(j, set, rank, token, k);
	t.slot = ll_kept_row(j, rank, token, k);
	t.w = e.w;
	*mine = (e.what & LL_ENTRY) && (e.what & ~LL_ENTRY) - j->rank * j->local < j->local;
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

/* Tokens of a rank, as its terms say; some: of ll_wait(). */
EPF_DEV_FN uint32_t ll_tokens_of(const struct ll_job *j, uint32_t set, uint32_t rank, int some)
{
	uint32_t n;

	if (rank == j->rank)
		return j->tokens;
	n = LL_AT(const struct ll_terms, ll_iterms(j, set, rank))->tokens;
	return n <= j->tokens_max && ll_is_live(j, LL_WEIGHTS, rank, some) ? n : 0;
}

/* One piece of the sum for a token of a rank, if there is such a token and it has experts here; a warp. */
EPF_DEV_FN void ll_sum_here(const struct ll_job *j, uint32_t set, uint32_t rank, uint32_t token,
			    uint32_t piece, int some)
{
	uint32_t at = piece * LL_LANES * LL_SPAN_SUMS + epf_lane();
	uint32_t tokens = ll_tokens_of(j, set, rank, some);
	epf_lanes all = epf_lanes_where(1);
	struct ll_token t;
	uint64_t to = 0;
	int any = 0;

	LL_UNROLL
	for (uint32_t i = 0; i < LL_PASSES; i++) {
		uint32_t k = i * LL_LANES + epf_lane();
		epf_lanes here;
		int mine;

		t.term[i] = ll_term_here(j, set, rank, token, k, &mine);
		here = epf_lanes_where(mine);
		if (here && !any) {
			uint32_t lane = epf_lanes_first(here);

			any = 1;
			to = ll_sum_to(j, set, rank, token, i * LL_LANES + lane,
				       (uint32_t)epf_lanes_get(all, t.term[i].slot, lane));
		}
		if (mine && t.term[i].slot == UINT32_MAX && piece == 0 && token < tokens)
			ll_complain(j, LL_BAD_ROW, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, token, k);
	}
	if (to && token < tokens)
		ll_sum_of(t, j->x, j->hidden, at, to);
}

/*
 * The SEND half up to its announcement: all threads of all blocks. First sums for the own tokens, whose weights are here, then, beginning behind this rank,
 * for those of the others; one loop, so that its instructions are there the second time. Items fit into 32 bits, as their rows do into memory.
 */
EPF_DEV_FN void ll_sum_and_return(const struct ll_job *j, uint64_t calls)
{
	uint32_t set = (uint32_t)(calls & 1u), pieces = ll_sum_pieces(j, LL_SPAN_SUMS);
	uint32_t rows = j->tokens, first = j->rank;
	int some = 0;

	LL_ROLLED
	for (uint32_t others = 0; others < 2u; others++) {
		if (others) {
			some = ll_wait(j, LL_WEIGHTS, calls);
			first = j->rank + 1u;
			rows = (j->ranks - 1u) * j->tokens_max;
		}
		LL_ROLLED
		for (uint32_t i = ll_warp(j); i < rows * pieces; i += ll_warps(j)) {
			uint32_t row = i / pieces;
			uint32_t rank = (first + row / j->tokens_max) % j->ranks;

			if (ll_sums_for(j, rank))
				ll_sum_here(j, set, rank, row % j->tokens_max, i % pieces, some);
		}
	}
}

/* All sums for a rank reached over the command path, one lane per token; a warp. */
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
