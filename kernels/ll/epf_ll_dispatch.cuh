/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch as kernels: the SEND half makes a row and sends it once to each rank that holds one of its experts; the RECV half unpacks what came
 * into one packed list per local expert. Entry points: ll_kernels.cu and ll_cpu.c.
 *
 * On the way are, for each pair of ranks: a row per token (struct ll_head and payload) at the place of its token number, and one note, which says
 * how many rows each local expert gets and which tokens there are. A receiver reads no row that a note does not name, so what was in
 * the memory before does not matter. The place of a row in the packed list follows from the counts of the notes and the row's own number in its head.
 */
#ifndef EPF_KERNELS_LL_DISPATCH_CUH
#define EPF_KERNELS_LL_DISPATCH_CUH

#include "kernels/epf_ll.h"
#include "kernels/ll/epf_ll_entries.cuh"
#include "kernels/ll/epf_ll_rows.cuh"
#include "kernels/ll/epf_ll_words.cuh"

EPF_DEV_FN uint32_t ll_fp8(const struct ll_job *j)
{
	return j->flags & EPF_LL_FP8 ? 1u : 0u;
}

/* Pairs of bytes of a row's payload without its scales: what is only moved is cut by them. */
EPF_DEV_FN uint32_t ll_pairs(const struct ll_job *j)
{
	return ll_fp8(j) ? j->hidden / 2u : j->hidden;
}

/* ---- SEND ---- */

/*
 * Work is cut so that all warps of the grid have some even when tokens are few: an item is a piece of a token's row, or what one expert or one rank
 * has to be announced. No two items write the same place, so their order does not matter.
 */

/* Where the rows of this rank begin for a rank: in its memory, or in the memory that is sent from. 0: nowhere, it is masked. */
EPF_DEV_FN uint64_t ll_rows_to(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	uint64_t to = ll_peer_of(j, rank)->direct;

	if (ll_masked(j, rank))
		return 0;
	return to ? to + j->lay.inbox[set] + (uint64_t)j->rank * j->tokens_max * j->lay.row_bytes
		  : j->base + j->lay.stage[set];
}

/* Where a token's row goes for its entry k; 0: nowhere, or where an entry before it goes. */
EPF_DEV_FN uint64_t ll_row_to(const struct ll_job *j, uint32_t set, uint32_t token, uint32_t k)
{
	uint32_t r = k < j->topk ? ll_rank_of(j, ll_entry(j, token, k)) : UINT32_MAX;
	uint64_t to;

	if (r == UINT32_MAX || !ll_first_of_rank(j, token, k, r))
		return 0;
	to = ll_rows_to(j, set, r);
	return to ? to + (uint64_t)token * j->lay.row_bytes : 0;
}

/* The head of a row but for its index[], which experts fill in; lanes of a warp. */
EPF_DEV_FN void ll_write_head(const struct ll_job *j, uint64_t row, uint32_t token)
{
	struct ll_head *head = LL_AT(struct ll_head, row);

	LL_ROLLED
	for (uint32_t k = epf_lane(); k < LL_TOPK; k += LL_LANES) {
		int64_t expert = k < j->topk ? ll_entry(j, token, k) : -1;

		head->expert[k] = ll_rank_of(j, expert) != UINT32_MAX ? (int32_t)expert : -1;
	}
	if (epf_lane() == 0) {
		head->token = token;
		head->source = j->rank;
		head->topk = j->topk;
		head->reserved = 0;
	}
}

/* Reports entries that name no expert; lanes of a warp. */
EPF_DEV_FN void ll_check_entries(const struct ll_job *j, uint32_t token)
{
	const int64_t *experts = LL_AT(const int64_t, j->topk_idx) + (uint64_t)token * j->topk;

	LL_ROLLED
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES)
		if (experts[k] != -1 && ll_rank_of(j, experts[k]) == UINT32_MAX)
			ll_complain(j, LL_BAD_EXPERT, EPF_GPU_LIMIT, EPF_GPU_COMMAND, token,
				    (uint64_t)experts[k], k);
}

/* A piece of a row as it travels, in the registers of a warp, to one place. */
EPF_DEV_FN void ll_write_piece(const struct ll_job *j, const struct ll_piece *p, float scale,
			       uint32_t piece, uint64_t row, uint32_t token)
{
	uint64_t payload = row + sizeof(struct ll_head);

	if (piece == 0)
		ll_write_head(j, row, token);
	if (ll_fp8(j))
		ll_piece_codes(p, scale, piece, j->hidden, payload, payload + j->hidden);
	else
		ll_piece_store(p, piece, j->hidden, payload);
}

/*
 * One piece of a token's row, read before, made once and written to every rank that holds one of the token's experts; a warp. Those that are reached over
 * the command path share the row that is sent.
 */
EPF_DEV_FN void ll_send_piece(const struct ll_job *j, uint32_t set, uint32_t token, uint32_t piece,
			      struct ll_piece *p)
{
	uint64_t staged = j->base + j->lay.stage[set] + (uint64_t)token * j->lay.row_bytes;
	uint64_t row = ll_row_to(j, set, token, epf_lane()); /* found while the row is on its way */
	epf_lanes all = epf_lanes_where(1), to;
	float scale = 0.0f;
	int stage = 0;

	if (ll_fp8(j)) {
		ll_piece_quantise(p, piece, j->hidden, (j->flags & EPF_LL_ROUND_SCALE) != 0);
		scale = ll_piece_scale(p);
	}
	for (uint32_t first = 0; first < j->topk; first += LL_LANES) {
		if (first)
			row = ll_row_to(j, set, token, first + epf_lane());
		stage |= row == staged;
		to = epf_lanes_where(row && row != staged);
		for (; to; to &= to - 1u)
			ll_write_piece(j, p, scale, piece,
				       epf_lanes_get(all, row, epf_lanes_first(to)), token);
	}
	if (epf_lanes_where(stage))
		ll_write_piece(j, p, scale, piece, staged, token);
	if (piece == 0)
		ll_check_entries(j, token);
}

EPF_DEV_FN uint64_t ll_note_at(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	return j->base + j->lay.notes[set] + (uint64_t)rank * j->lay.note_bytes;
}

/* Where the note to a rank is written: in its memory, or in the memory that is sent from. 0: it is masked. */
EPF_DEV_FN uint64_t ll_note_to(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	uint64_t to = ll_peer_of(j, rank)->direct;

	if (ll_masked(j, rank))
		return 0;
	return to ? to + j->lay.inotes[set] + (uint64_t)j->rank * j->lay.note_bytes
		  : ll_note_at(j, set, rank);
}

/*
 * Everything about one expert: how many rows it gets, into the note, and the number of each row among them, into the row's head. A warp, whose lanes
 * look at neighbouring tokens.
 */
EPF_DEV_FN void ll_tell_expert(const struct ll_job *j, uint32_t set, uint32_t expert,
			       uint64_t tally)
{
	uint32_t rank = expert / j->local, rows = 0, t = epf_lane();
	uint32_t entry = t < j->tokens ? ll_entry_of(j, t, expert) : UINT32_MAX;
	uint64_t note = ll_note_to(j, set, rank), to = ll_rows_to(j, set, rank);

	/* The first entries were read in front of what is read of the rank: both take their time together. */
	if (!note)
		return;
	for (uint32_t first = 0; first < j->tokens; first += LL_LANES) {
		epf_lanes where;

		if (first) {
			t = first + epf_lane();
			entry = t < j->tokens ? ll_entry_of(j, t, expert) : UINT32_MAX;
		}
		where = epf_lanes_where(entry != UINT32_MAX);
		if (entry != UINT32_MAX)
			LL_AT(struct ll_head, to + (uint64_t)t * j->lay.row_bytes)->index[entry] =
				rows + epf_lanes_before(where);
		rows += epf_lanes_count(where);
	}
	if (epf_lane() == 0)
		LL_AT(uint32_t, note)[expert % j->local] = rows;
	if (epf_lane() == 0 && tally && rows)
		(void)epf_add_gpu(
			&tally_peer_of(tally, j->ranks, EPF_WHY_LL_DISPATCH_SEND, rank)->rows_to,
			rows);
}

/* One word of the bitmap in the note to a rank: which of 32 tokens go there; a warp. */
EPF_DEV_FN void ll_tell_tokens(const struct ll_job *j, uint32_t set, uint32_t rank, uint32_t word)
{
	uint64_t note = ll_note_to(j, set, rank);
	uint32_t bits = 0;

	if (!note)
		return;
	for (uint32_t i = 0; i < 32u; i += LL_LANES) {
		uint32_t at = i + epf_lane(), t = word * 32u + at;

		bits |= (uint32_t)epf_lanes_where(at < 32u && t < j->tokens &&
						  ll_names_rank(j, t, rank))
			<< i;
	}
	if (epf_lane() == 0)
		(LL_AT(uint32_t, note) + j->local)[word] = bits;
	if (epf_lane() == 0 && word == 0)
		(LL_AT(uint32_t, note) + j->local)[ll_bitmap_words(j->tokens_max)] = j->tokens;
}

/* Rows and note to a rank reached over the command path; a warp. */
EPF_DEV_FN int ll_push_rows(const struct ll_job *j, struct epf_dev *d, uint32_t set, uint32_t rank)
{
	uint64_t note = ll_note_at(j, set, rank);
	const uint32_t *bitmap = LL_AT(const uint32_t, note) + j->local;
	uint32_t signal = ll_signal(j, LL_DISPATCH, set, j->rank);
	uint32_t bytes = ll_row_used(j->hidden, ll_fp8(j));
	uint32_t puts = 1;
	int rc = 0;

	for (uint32_t first = 0; first < j->tokens && !rc; first += LL_LANES) {
		uint32_t t = first + epf_lane();
		int yes = t < j->tokens &&
			  (epf_ld32_relaxed_gpu(&bitmap[t / 32u]) >> (t % 32u) & 1u) != 0;

		rc = epf_warp_put_group(d, yes, rank, j->region,
					j->lay.stage[set] + (uint64_t)t * j->lay.row_bytes,
					j->region,
					j->lay.inbox[set] + ((uint64_t)j->rank * j->tokens_max +
							     t) * j->lay.row_bytes,
					bytes, signal, 0);
		puts += epf_lanes_count(epf_lanes_where(yes));
	}
	if (!rc)
		rc = epf_warp_put_group(d, epf_lane() == 0, rank, j->region, note - j->base,
					j->region,
					j->lay.inotes[set] + (uint64_t)j->rank * j->lay.note_bytes,
					ll_note_used(j->local, j->tokens_max), signal, 0);
	return rc ? rc : ll_tell(j, d, LL_DISPATCH, set, rank, puts);
}

/* Everything is staged: warp 0 of the last block sends it. Starts behind this rank, so that not all begin with rank 0. */
EPF_DEV_FN void ll_push_dispatch(const struct ll_job *j, uint64_t calls)
{
	uint32_t set = (uint32_t)(calls & 1u);
	struct epf_dev d;
	int rc = 0;

	ll_tell_all(j, LL_DISPATCH, calls, 0, j->ranks);
	if (!ll_any_remote(j))
		return;
	epf_warp_fence();
	epf_warp_open(&d, ll_ctx(j));
	for (uint32_t i = 1; i < j->ranks && !rc; i++) {
		uint32_t r = (j->rank + i) % j->ranks;

		if (!ll_peer_of(j, r)->direct && !ll_masked(j, r))
			rc = ll_push_rows(j, &d, set, r);
	}
	ll_sent(j, &d, LL_DISPATCH, set);
}

/* Items in front of those that are pieces: what is announced. */
EPF_DEV_FN uint32_t ll_told(const struct ll_job *j)
{
	return (j->local + ll_bitmap_words(j->tokens_max)) * j->ranks;
}

/* Reads what an item needs of x; a warp. */
EPF_DEV_FN void ll_load_item(const struct ll_job *j, uint32_t i, struct ll_piece *p)
{
	uint32_t pieces = ll_pieces(j->hidden), at = i - ll_told(j);

	if (i >= ll_told(j) && at < j->tokens * pieces)
		ll_piece_load(p, at % pieces, j->hidden,
			      j->x + (uint64_t)(at / pieces) * j->hidden * 2u);
}

/* The share of this warp in what has to be written. p: of its first item. */
EPF_DEV_FN void ll_send_items(const struct ll_job *j, uint32_t set, struct ll_piece *p,
			      uint64_t tally)
{
	uint32_t experts = j->local * j->ranks, words = ll_bitmap_words(j->tokens_max);
	uint32_t pieces = ll_pieces(j->hidden), told = ll_told(j);

	/* What takes longest begins first. */
	LL_ROLLED
	for (uint32_t i = ll_warp(j); i < told + j->tokens * pieces; i += ll_warps(j)) {
		if (i != ll_warp(j))
			ll_load_item(j, i, p);
		if (i < experts)
			ll_tell_expert(j, set, i, tally);
		else if (i < told)
			ll_tell_tokens(j, set, (i - experts) / words, (i - experts) % words);
		else
			ll_send_piece(j, set, (i - told) / pieces, (i - told) % pieces, p);
	}
}

EPF_DEV_FN void ll_tell_dispatch(const struct ll_job *j, uint64_t calls)
{
	if (!j->commands) {
		ll_tell_each(j, LL_DISPATCH, calls);
		return;
	}
	if (!ll_last_block(j, LL_DISPATCH, LL_SENDING))
		return;
	if (epf_thread_in_block() < LL_LANES)
		ll_push_dispatch(j, calls);
	if (epf_thread_in_block() == 0)
		ll_count_call(j, LL_DISPATCH, LL_SENDING, calls);
}

EPF_DEV_FN void ll_dispatch_send(const struct ll_job *j)
{
	uint64_t calls = ll_calls(j, LL_DISPATCH, LL_SENDING), tally;
	struct ll_piece p;

	/* What is read first is on its way together. */
	ll_load_item(j, ll_warp(j), &p);
	ll_fetch_entries(j);
	tally = ll_tally(j, calls);
	ll_count_half(tally, EPF_WHY_LL_DISPATCH_SEND);
	ll_have_entries();
	ll_send_items(j, (uint32_t)(calls & 1u), &p, tally);
	ll_tell_dispatch(j, calls);
	ll_phase(tally, EPF_WHY_LL_DISPATCH_SEND, EPF_WHY_MOVE);
}

/* ---- RECV ---- */

EPF_DEV_FN const uint32_t *ll_inote(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	return LL_AT(const uint32_t,
		     j->base + j->lay.inotes[set] + (uint64_t)rank * j->lay.note_bytes);
}

/* Rows of a rank for a local expert; one that is masked has none. A count no sender can mean counts as none too. some: of ll_wait(). */
EPF_DEV_FN uint32_t ll_rows_from(const struct ll_job *j, uint32_t set, uint32_t rank,
				 uint32_t expert, int some)
{
	uint32_t n = ll_inote(j, set, rank)[expert];

	return n <= j->tokens_max && ll_is_live(j, LL_DISPATCH, rank, some) ? n : 0;
}

/* Rows of one local expert: how many of each rank and where they begin; a warp, a lane a rank. */
EPF_DEV_FN void ll_place_expert(const struct ll_job *j, uint32_t set, uint32_t expert, int some,
				uint64_t tally)
{
	epf_lanes all = epf_lanes_where(1);
	uint32_t begin = 0;

	for (uint32_t first = 0; first < j->ranks; first += LL_LANES) {
		uint32_t r = first + epf_lane(), before = 0, sum = 0;
		uint32_t count = r < j->ranks ? ll_rows_from(j, set, r, expert, some) : 0;

		LL_ROLLED
		for (uint32_t i = 0; i < LL_LANES && first + i < j->ranks; i++) {
			if (i == epf_lane())
				before = sum;
			sum += (uint32_t)epf_lanes_get(all, count, i);
		}
		if (r < j->ranks)
			LL_AT(uint64_t, j->layout_range)
		[(uint64_t)expert * j->ranks + r] = (uint64_t)(begin + before) << 32 | count;
		if (r < j->ranks && expert == 0)
			ll_keep_tokens(j, r,
				       ll_is_live(j, LL_DISPATCH, r, some)
					       ? (ll_inote(j, set, r) +
						  j->local)[ll_bitmap_words(j->tokens_max)]
					       : 0);
		if (count)
			(void)epf_add_gpu(&ll_peer_of(j, r)->owed[set], count);
		if (count && tally)
			(void)epf_add_gpu(
				&tally_peer_of(tally, j->ranks, EPF_WHY_LL_DISPATCH_RECV, r)
					 ->rows_from,
				count);
		begin += sum;
	}
	if (epf_lane() != 0)
		return;
	LL_AT(int32_t, j->recv_count)[expert] = (int32_t)begin;
	if (j->recv_stats)
		LL_AT(int32_t, j->recv_stats)
	[expert] += (int32_t)begin;
}

/*
 * A piece of an FP8 row's scales as a list holds them: one a block, or with UE8M0 one for four. What a lane has of them is read together with its codes and
 * kept in ll_piece.scale.
 */
struct ll_scales {
	uint32_t first; /* of the piece, among those of the row */
	uint32_t count;
	uint32_t row; /* of a row */
};

EPF_DEV_FN struct ll_scales ll_scales_of(const struct ll_job *j, uint32_t piece)
{
	uint32_t of = j->flags & EPF_LL_UE8M0 ? 4u : 1u;
	struct ll_scales s;

	s.row = j->hidden / LL_BLOCK / of;
	s.first = piece * LL_SCALES / of;
	s.count = LL_SCALES / of;
	s.count = s.first + s.count < s.row ? s.count : s.row - s.first;
	return s;
}

EPF_DEV_FN void ll_scales_load(const struct ll_job *j, struct ll_piece *p, struct ll_scales s,
			       uint64_t scales)
{
	LL_UNROLL
	for (uint32_t i = 0; i * LL_LANES < LL_SCALES; i++) {
		uint32_t at = i * LL_LANES + epf_lane();
		uint32_t packed = 0;

		if (at >= s.count)
			continue;
		if (!(j->flags & EPF_LL_UE8M0)) {
			p->scale[i] = LL_AT(const float, scales)[s.first + at];
			continue;
		}
		for (uint32_t b = 0; b < 4u; b++)
			packed |= (LL_AT(const struct ll_vec, scales)[s.first + at].w[b] >> 23 &
				   0xffu)
				  << (8u * b);
		p->scale[i] = ll_float(packed);
	}
}

EPF_DEV_FN void ll_scales_store(const struct ll_job *j, const struct ll_piece *p,
				struct ll_scales s, uint64_t list, uint32_t place)
{
	uint64_t n = (uint64_t)j->ranks * j->tokens_max;

	LL_UNROLL
	for (uint32_t i = 0; i * LL_LANES < LL_SCALES; i++) {
		uint32_t at = i * LL_LANES + epf_lane();

		if (at < s.count)
			LL_AT(uint32_t, j->recv_scales)
		[(list * s.row + s.first + at) * n + place] = ll_bits(p->scale[i]);
	}
}

/*
 * Place of an arrived row in the list of local expert `expert`, which its entry k names first with this index; UINT32_MAX: it cannot be. The counts of
 * different ranks are read together.
 */
EPF_DEV_FN uint32_t ll_place_of(const struct ll_job *j, uint32_t set, uint32_t rank,
				uint32_t expert, uint32_t index, int some)
{
	uint32_t begin = 0;

	for (uint32_t r = 0; r < rank; r++)
		begin += ll_rows_from(j, set, r, expert, some);
	if (index >= ll_rows_from(j, set, rank, expert, some)) {
		ll_complain(j, LL_BAD_ROW, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, expert, index);
		return UINT32_MAX;
	}
	return begin + index;
}

/* The local expert that entry k names and no entry before it does; UINT32_MAX: none. */
EPF_DEV_FN uint32_t ll_expert_of(const struct ll_job *j, const struct ll_head *head, uint32_t k)
{
	int32_t e = k < j->topk ? head->expert[k] : -1;
	uint32_t expert = (uint32_t)e - j->rank * j->local;
	int before = e < 0 || expert >= j->local;

	LL_ROLLED
	for (uint32_t i = 0; i < k && !before; i++)
		before = head->expert[i] == e;
	return before ? UINT32_MAX : expert;
}

/* Is this token of that rank here? */
EPF_DEV_FN int ll_has_come(const struct ll_job *j, uint32_t set, uint32_t rank, uint32_t token,
			   int some)
{
	const uint32_t *bitmap = ll_inote(j, set, rank) + j->local;

	return (bitmap[token / 32u] >> (token % 32u) & 1u) &&
	       ll_is_live(j, LL_DISPATCH, rank, some);
}

/*
 * One piece of a row, if it has arrived, into the lists of this rank's experts that it names; a warp, a lane an entry. The head is read before it is known
 * whether there is one, with `early` the payload, too: that costs less than to wait for the note first.
 */
EPF_DEV_FN void ll_unpack(const struct ll_job *j, uint32_t set, uint32_t rank, uint32_t token,
			  uint32_t piece, int some, int early)
{
	uint64_t row = j->base + j->lay.inbox[set] +
		       ((uint64_t)rank * j->tokens_max + token) * j->lay.row_bytes;
	const struct ll_head *head = LL_AT(const struct ll_head, row);
	uint64_t payload = row + sizeof(*head), n = (uint64_t)j->ranks * j->tokens_max;
	uint32_t index = head->index[epf_lane() % LL_TOPK], fp8 = ll_fp8(j), pairs = ll_pairs(j);
	struct ll_scales scales = ll_scales_of(j, piece);
	epf_lanes all = epf_lanes_where(1), to;
	int here = ll_has_come(j, set, rank, token, some);
	struct ll_piece p;
	uint32_t expert;

	if (early)
		ll_piece_load(&p, piece, pairs, payload);
	expert = ll_expert_of(j, head, epf_lane());
	if (!here)
		return;
	if (!early)
		ll_piece_load(&p, piece, pairs, payload);
	for (uint32_t i = 0; i < 2u * LL_STEPS;
	     i++) /* gcc does not see that only what was loaded is stored */
		p.scale[i] = 0.0f;
	if (fp8)
		ll_scales_load(j, &p, scales, payload + j->hidden);
	for (uint32_t first = 0; first < j->topk; first += LL_LANES) {
		uint32_t k = first + epf_lane(), place = UINT32_MAX;

		if (first) {
			expert = ll_expert_of(j, head, k);
			index = head->index[k % LL_TOPK];
		}
		if (expert != UINT32_MAX)
			place = ll_place_of(j, set, rank, expert, index, some);
		if (expert != UINT32_MAX && piece == 0)
			ll_keep_row(j, head, rank, token, k, expert, place);
		if (place != UINT32_MAX && piece == 0) {
			LL_AT(int32_t, j->src_info)[expert * n + place] = (int32_t)token;
			LL_AT(int32_t, j->src_slot)
			[expert * n + place] = (int32_t)(token * j->topk + k);
		}
		to = epf_lanes_where(place != UINT32_MAX);
		if (piece == 0 && to && epf_lane() == 0)
			(void)epf_add_gpu(&ll_peer_of(j, rank)->owed[set],
					  0 - (uint64_t)epf_lanes_count(to));
		for (; to; to &= to - 1u) {
			uint32_t list = (uint32_t)epf_lanes_get(all, expert, epf_lanes_first(to));
			uint32_t at = (uint32_t)epf_lanes_get(all, place, epf_lanes_first(to));

			ll_piece_store(&p, piece, pairs, j->recv_x + (list * n + at) * pairs * 2u);
			if (fp8)
				ll_scales_store(j, &p, scales, list, at);
		}
	}
}

EPF_DEV_FN void ll_dispatch_recv(const struct ll_job *j)
{
	uint64_t calls = ll_calls(j, LL_DISPATCH, LL_RECEIVING), tally = ll_tally(j, calls);
	uint32_t set = (uint32_t)(calls & 1u), pieces = ll_pieces(ll_pairs(j));
	uint32_t items = j->local + j->ranks * j->tokens_max * pieces;
	uint32_t row = (ll_warp(j) - j->local) / pieces, rank = row / j->tokens_max;
	int some, last;

	ll_count_half(tally, EPF_WHY_LL_DISPATCH_RECV);
	some = ll_wait(j, LL_DISPATCH, calls);
	last = ll_arrive(j, LL_DISPATCH);
	ll_phase(tally, EPF_WHY_LL_DISPATCH_RECV, EPF_WHY_WAIT);
	/* What the first item is was found before the wait. */
	LL_ROLLED
	for (uint32_t i = ll_warp(j); i < items; i += ll_warps(j)) {
		if (i != ll_warp(j)) {
			row = (i - j->local) / pieces;
			rank = row / j->tokens_max;
		}
		if (i < j->local)
			ll_place_expert(j, set, i, some, tally);
		else
			ll_unpack(j, set, rank, row - rank * j->tokens_max,
				  i - j->local - row * pieces, some, i == ll_warp(j));
	}
	ll_arrived(j, LL_DISPATCH, calls, last);
	ll_phase(tally, EPF_WHY_LL_DISPATCH_RECV, EPF_WHY_COPY);
}

/* The halves that are wanted. Both: every block sends its share before any of them waits. */
EPF_DEV_FN void ll_dispatch(const struct ll_job *j)
{
	if (j->halves & EPF_LL_SEND)
		ll_dispatch_send(j);
	if (j->halves & EPF_LL_RECV)
		ll_dispatch_recv(j);
}

#endif
