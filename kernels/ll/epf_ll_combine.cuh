/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine as kernels: the SEND half brings each output row home, to the slot [token][k] that the row's src_slot says; the RECV half adds them
 * (epf_ll_add.cuh), k ascending, entries without a row left out. Or the SEND half brings sums (epf_ll_partial.cuh). Entry points: ll_kernels.cu
 * and ll_cpu.c.
 */
#ifndef EPF_KERNELS_LL_COMBINE_CUH
#define EPF_KERNELS_LL_COMBINE_CUH

#include "kernels/ll/epf_ll_add.cuh"
#include "kernels/ll/epf_ll_dispatch.cuh"
#include "kernels/ll/epf_ll_partial.cuh"

/* ---- SEND ---- */

/* Rows of one local expert that came from one rank: first place and how many. */
struct ll_range {
	uint32_t begin;
	uint32_t count;
};

EPF_DEV_FN struct ll_range ll_range_of(const struct ll_job *j, uint32_t expert, uint32_t rank)
{
	uint64_t v = LL_AT(const uint64_t, j->layout_range)[(uint64_t)expert * j->ranks + rank];
	uint64_t n = (uint64_t)j->ranks * j->tokens_max;
	struct ll_range r;

	r.begin = (uint32_t)(v >> 32);
	r.count = (uint32_t)v;
	/* The caller returns it: an impossible value must not lead outside the buffers. */
	if ((uint64_t)r.begin + r.count > n || r.count > j->tokens_max) {
		ll_complain(j, LL_BAD_ROW, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, r.begin, r.count);
		r.count = 0;
	}
	return r;
}

/* Offset of the slot that a row goes to, in its home's memory; 0: it cannot be. */
EPF_DEV_FN uint64_t ll_slot_at(const struct ll_job *j, uint32_t set, uint64_t row)
{
	uint32_t slot = (uint32_t)LL_AT(const int32_t, j->src_slot)[row];

	if (slot >= j->tokens_max * j->topk)
		return 0;
	return j->lay.home[set] + (uint64_t)slot * ll_stride(j);
}

/* Rows of one expert and rank, a piece of each: stored to their home where it is in reach, else to the memory that is sent from; a warp. */
EPF_DEV_FN void ll_return_rows(const struct ll_job *j, uint32_t set, uint32_t expert, uint32_t rank,
			       uint32_t piece, struct ll_range range)
{
	uint64_t list = (uint64_t)expert * j->ranks * j->tokens_max;
	uint64_t direct = ll_peer_of(j, rank)->direct;
	epf_lanes all = epf_lanes_where(1);

	if (ll_masked(j, rank) || (!direct && (j->flags & EPF_LL_ZERO_COPY)))
		return;
	for (uint32_t first = 0; first < range.count; first += LL_LANES) {
		uint32_t i = first + epf_lane();
		uint64_t mine = i < range.count ? ll_slot_at(j, set, list + range.begin + i) : 0;

		if (i < range.count && !mine)
			ll_complain(j, LL_BAD_ROW, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, expert, i);
		for (i = 0; i < LL_LANES && first + i < range.count; i++) {
			uint64_t row = list + range.begin + first + i;
			uint64_t slot = epf_lanes_get(all, mine, i);
			uint64_t to =
				direct ? direct + slot : j->base + j->out_at + row * ll_stride(j);
			struct ll_piece p;

			if (!slot)
				continue;
			ll_piece_load(&p, piece, j->hidden, j->x + row * j->hidden * 2u);
			if (ll_log(j))
				ll_piece_log(&p, piece, j->hidden, to);
			else
				ll_piece_store(&p, piece, j->hidden, to);
		}
	}
}

/* Rows of a rank in as many lists as there are lanes, seen as one: each lane's own list and how many rows the lanes before it have. */
struct ll_lists {
	struct ll_range range;
	uint32_t expert;
	uint32_t before;
	uint32_t rows; /* of all lanes */
};

/* first: the lists of local experts from this one on; a warp. */
EPF_DEV_FN struct ll_lists ll_lists_of(const struct ll_job *j, uint32_t rank, uint32_t first)
{
	epf_lanes all = epf_lanes_where(1);
	struct ll_lists l = { { 0, 0 }, first + epf_lane(), 0, 0 };

	if (l.expert < j->local)
		l.range = ll_range_of(j, l.expert, rank);
	for (uint32_t i = 0; i < LL_LANES; i++) {
		if (i == epf_lane())
			l.before = l.rows;
		l.rows += (uint32_t)epf_lanes_get(all, l.range.count, i);
	}
	return l;
}

/* Row i of them: its number among all rows of this rank; each lane asks for its own i, below l->rows or not. */
EPF_DEV_FN uint64_t ll_row_of(const struct ll_job *j, const struct ll_lists *l, uint32_t i)
{
	epf_lanes all = epf_lanes_where(1);
	uint32_t lane = 0, expert, place;

	/* The last lane with no more than i rows before it: those before it with as many have none themselves. */
	for (uint32_t step = LL_LANES / 2u; step; step /= 2u)
		if ((uint32_t)epf_lanes_get(all, l->before, lane + step) <= i)
			lane += step;
	expert = (uint32_t)epf_lanes_get(all, l->expert, lane);
	place = (uint32_t)epf_lanes_get(all, l->range.begin, lane) + i -
		(uint32_t)epf_lanes_get(all, l->before, lane);
	return (uint64_t)expert * j->ranks * j->tokens_max + place;
}

/* All rows of a rank reached over the command path, one lane per row whatever its expert; a warp. */
EPF_DEV_FN int ll_push_home(const struct ll_job *j, struct epf_dev *d, uint32_t set, uint32_t rank)
{
	uint32_t signal = ll_signal(j, LL_COMBINE, set, j->rank);
	uint32_t puts = 0;
	int rc = 0;

	for (uint32_t e = 0; e < j->local && !rc; e += LL_LANES) {
		struct ll_lists lists = ll_lists_of(j, rank, e);

		for (uint32_t first = 0; first < lists.rows && !rc; first += LL_LANES) {
			uint32_t i = first + epf_lane();
			uint64_t row = ll_row_of(j, &lists, i);
			uint64_t slot = i < lists.rows ? ll_slot_at(j, set, row) : 0;
			uint64_t from = j->out_at + row * ll_stride(j);
			uint32_t bytes = slot && ll_log(j) ? ll_log_used(j->base + from, j->hidden)
							   : ll_stride(j);

			rc = epf_warp_put_group(d, slot != 0, rank, j->region, from, j->region,
						slot, bytes, signal, 0);
			puts += epf_lanes_count(epf_lanes_where(slot != 0));
		}
	}
	return rc ? rc : ll_tell(j, d, LL_COMBINE, set, rank, puts);
}

EPF_DEV_FN void ll_push_combine(const struct ll_job *j, uint64_t calls, int partial)
{
	uint32_t set = (uint32_t)(calls & 1u);
	struct epf_dev d;
	int rc = 0;

	ll_tell_all(j, LL_COMBINE, calls, 0, j->ranks);
	if (!ll_any_remote(j))
		return;
	epf_warp_fence();
	epf_warp_open(&d, ll_ctx(j));
	for (uint32_t i = 1; i < j->ranks && !rc; i++) {
		uint32_t r = (j->rank + i) % j->ranks;

		if (!ll_peer_of(j, r)->direct && !ll_masked(j, r))
			rc = partial && ll_sums_for(j, r) ? ll_push_sums(j, &d, set, r)
							  : ll_push_home(j, &d, set, r);
	}
	ll_sent(j, &d, LL_COMBINE, set);
}

/* Every row by itself; partial: those that are no part of a sum. */
EPF_DEV_FN void ll_return_all(const struct ll_job *j, uint32_t set, int partial)
{
	uint32_t pieces = ll_pieces(j->hidden);
	uint32_t items = j->local * j->ranks * pieces;

	for (uint32_t i = ll_warp(j); i < items; i += ll_warps(j)) {
		uint32_t expert = i / pieces / j->ranks, rank = i / pieces % j->ranks;
		int sums = partial && ll_sums_for(j, rank); /* read together with the range */
		struct ll_range range = ll_range_of(j, expert, rank);

		if (!sums)
			ll_return_rows(j, set, expert, rank, i % pieces, range);
	}
}

EPF_DEV_FN void ll_combine_send(const struct ll_job *j, int partial)
{
	uint64_t calls = ll_calls(j, LL_COMBINE, LL_SENDING);
	uint32_t set = (uint32_t)(calls & 1u);
	uint64_t tally = ll_tally(j, calls);
	uint32_t forms;
	int likely;

	ll_count_half(tally, EPF_WHY_LL_COMBINE_SEND);
	/* Where the own tokens are few, most likely all ranks' are: rows leave before that is known. */
	likely = partial && !ll_sums_for(j, j->rank);
	forms = partial && !likely ? ll_forms(j) : LL_AS_ROWS;
	if (forms & LL_AS_ROWS)
		ll_return_all(j, set, partial);
	if (likely)
		forms = ll_forms(j);
	if (forms & LL_AS_SUMS)
		ll_sum_and_return(j, calls);
	ll_phase(tally, EPF_WHY_LL_COMBINE_SEND, EPF_WHY_MOVE);
	if (!j->commands) {
		ll_tell_each(j, LL_COMBINE, calls);
		return;
	}
	if (!ll_last_block(j, LL_COMBINE, LL_SENDING))
		return;
	if (epf_thread_in_block() < LL_LANES)
		ll_push_combine(j, calls, partial);
	if (epf_thread_in_block() == 0)
		ll_count_call(j, LL_COMBINE, LL_SENDING, calls);
}

/* ---- RECV ---- */

EPF_DEV_FN struct ll_term ll_term_of(const struct ll_job *j, uint32_t token, uint32_t k, int some)
{
	int64_t expert = k < j->topk ? ll_entry(j, token, k) : -1;
	struct ll_term t = { UINT32_MAX, 0.0f };
	uint32_t r = ll_rank_of(j, expert);

	if (r == UINT32_MAX || !ll_is_live(j, LL_COMBINE, r, some))
		return t;
	t.w = LL_AT(const float, j->weights)[(uint64_t)token * j->topk + k];
	t.slot = ll_entry_of(j, token, expert);
	return t;
}

/* The same where ranks sent sums: the first entry of each rank stands for all of it. */
EPF_DEV_FN struct ll_term ll_term_of_rank(const struct ll_job *j, uint32_t token, uint32_t k,
					  int some)
{
	struct ll_term t = { UINT32_MAX, 1.0f };
	uint32_t r = k < j->topk ? ll_rank_of(j, ll_entry(j, token, k)) : UINT32_MAX;

	if (r != UINT32_MAX && ll_is_live(j, LL_COMBINE, r, some) &&
	    ll_first_of_rank(j, token, k, r))
		t.slot = k;
	return t;
}

/* What is added for a token. partial: what ranks sent are sums. some: of ll_wait(). */
EPF_DEV_FN void ll_terms_home(const struct ll_job *j, uint32_t token, int partial, int some,
			      struct ll_token *t)
{
	LL_UNROLL
	for (uint32_t i = 0; i < LL_PASSES; i++) {
		uint32_t k = i * LL_LANES + epf_lane();

		t->term[i] = token >= j->tokens ? (struct ll_term){ UINT32_MAX, 0.0f }
			     : partial          ? ll_term_of_rank(j, token, k, some)
						: ll_term_of(j, token, k, some);
	}
}

/*
 * Waits, and makes all sums. log and partial are known when this is compiled, so that the other forms cost nothing. What the first item adds is found
 * before the wait. Returns 1 in the thread that has to count the call.
 */
EPF_DEV_FN int ll_sum_all(const struct ll_job *j, uint64_t calls, int log, int partial)
{
	uint32_t span = partial ? LL_SPAN_SUMS : LL_SPAN, pieces = ll_sum_pieces(j, span);
	uint64_t home = j->base + j->lay.home[calls & 1u];
	struct ll_token t;
	int some, last;

	ll_terms_home(j, ll_warp(j) / pieces, partial, 0, &t);
	some = ll_wait(j, LL_COMBINE, calls);
	last = ll_arrive(j, LL_COMBINE);
	ll_phase(ll_tally(j, calls), EPF_WHY_LL_COMBINE_RECV, EPF_WHY_WAIT);
	LL_ROLLED
	for (uint32_t i = ll_warp(j); i < j->tokens * pieces; i += ll_warps(j)) {
		uint32_t token = i / pieces, at = i % pieces * LL_LANES * span + epf_lane();
		uint64_t rows = home + (uint64_t)token * j->topk * ll_stride(j);
		uint64_t to = j->out + (uint64_t)token * j->hidden * 2u;

		if (some || i != ll_warp(j))
			ll_terms_home(j, token, partial, some, &t);
		if (partial)
			ll_sum_of(t, rows, j->hidden, at, to);
		else
			ll_sum_token(&t, span, rows, ll_stride(j), j->hidden, at, log, to);
	}
	return last;
}

EPF_DEV_FN void ll_combine_recv(const struct ll_job *j, int partial)
{
	uint64_t calls = ll_calls(j, LL_COMBINE, LL_RECEIVING);
	uint64_t tally = ll_tally(j, calls);
	int last;

	ll_count_half(tally, EPF_WHY_LL_COMBINE_RECV);
	ll_fetch_entries(j);
	ll_have_entries();
	if (partial && ll_sums_for(j, j->rank))
		last = ll_sum_all(j, calls, 0, 1);
	else if (!partial && ll_log(j))
		last = ll_sum_all(j, calls, 1, 0);
	else
		last = ll_sum_all(j, calls, 0, 0);
	ll_phase(tally, EPF_WHY_LL_COMBINE_RECV, EPF_WHY_COPY);
	ll_arrived(j, LL_COMBINE, calls, last);
}

/* The halves that are wanted. Both: every block sends its share before any of them waits. */
EPF_DEV_FN void ll_combine(const struct ll_job *j)
{
	if (j->halves & EPF_LL_SEND)
		ll_combine_send(j, 0);
	if (j->halves & EPF_LL_RECV)
		ll_combine_recv(j, 0);
}

/* The same with sums at the sender: a separate kernel, so that neither takes registers from the other. */
EPF_DEV_FN void ll_combine_sums(const struct ll_job *j)
{
	if (j->halves & LL_TELL)
		ll_tell_terms(j);
	if (j->halves & EPF_LL_SEND)
		ll_combine_send(j, 1);
	if (j->halves & EPF_LL_RECV)
		ll_combine_recv(j, 1);
}

#endif
