/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch: every row is read once and written once to each rank that it goes to, at its final index. Rows of this rank go straight to the outputs; rows
 * of other ranks arrive in the window and are copied out.
 */
#ifndef EPF_KERNELS_HT_DISPATCH_CUH
#define EPF_KERNELS_HT_DISPATCH_CUH

#include "kernels/ht/epf_ht_plan.cuh"

#define HT_PIECE (HT_VECS * LL_LANES) /* vectors that a warp moves at once */

EPF_DEV_FN uint32_t ht_pieces(const struct ht_job *j)
{
	return (j->row_bytes / HT_VEC + HT_PIECE - 1u) / HT_PIECE;
}

struct ht_piece {
	struct ll_vec v[HT_VECS];
};

EPF_DEV_FN void ht_load(const struct ht_job *j, struct ht_piece *p, uint32_t piece, uint64_t row)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS; i++) {
		uint32_t at = piece * HT_PIECE + i * LL_LANES + epf_lane();

		if (at < j->row_bytes / HT_VEC)
			p->v[i] = HT_AT(const struct ll_vec, row)[at];
	}
}

EPF_DEV_FN void ht_store(const struct ht_job *j, const struct ht_piece *p, uint32_t piece,
			 uint64_t row)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS; i++) {
		uint32_t at = piece * HT_PIECE + i * LL_LANES + epf_lane();

		if (at < j->row_bytes / HT_VEC)
			HT_AT(struct ll_vec, row)[at] = p->v[i];
	}
}

/* The first index of this rank's rows at a rank. */
EPF_DEV_FN uint32_t ht_first_at(const struct ht_job *j, uint32_t rank)
{
	return ht_rows_until(j, j->rank - 1u, rank);
}

/* Final index of a token's row at a rank, or UINT32_MAX: it does not go there, or there is no room. */
EPF_DEV_FN uint32_t ht_index_at(const struct ht_job *j, uint32_t token, uint32_t rank)
{
	int32_t place = HT_AT(const int32_t, j->place)[(uint64_t)token * j->ranks + rank];
	uint32_t room = rank == j->rank ? j->received : j->room;
	uint32_t index = ht_first_at(j, rank) + (uint32_t)place;

	return place < 0 || index >= room ? UINT32_MAX : index;
}

/* What travels with a row to one rank: scales, and its experts as that rank numbers them, with their weights. A warp. */
EPF_DEV_FN void ht_send_extras(const struct ht_job *j, uint32_t token, uint32_t rank,
			       uint32_t index)
{
	int own = rank == j->rank;
	uint64_t window = ht_peer_of(j, rank)->window;
	uint64_t scales = own ? j->out_scales : window + j->lay.scales;
	uint64_t weights = own ? j->out_weights : window + j->lay.weights;
	const uint32_t *from = HT_AT(const uint32_t, j->scales) + token * j->scale_stride[0];

	for (uint32_t i = epf_lane(); i < j->scale_words; i += LL_LANES)
		HT_AT(uint32_t, scales)
	[(uint64_t)index * j->scale_words + i] = from[i * j->scale_stride[1]];
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES) {
		uint64_t at = (uint64_t)index * j->topk + k;
		int64_t e = HT_AT(const int64_t, j->topk_idx)[(uint64_t)token * j->topk + k] -
			    (int64_t)rank * j->local;
		int here = e >= 0 && e < (int64_t)j->local;

		if (own)
			HT_AT(int64_t, j->out_index)[at] = here ? e : -1;
		else
			HT_AT(int32_t, window + j->lay.index)[at] = here ? (int32_t)e : -1;
		if (j->weights)
			HT_AT(uint32_t, weights)
		[at] = here ? HT_AT(const uint32_t, j->weights)[(uint64_t)token * j->topk + k] : 0u;
	}
}

/* One piece of a token's row, to all ranks it goes to; a warp, a lane a rank. */
EPF_DEV_FN void ht_send_piece(const struct ht_job *j, uint32_t token, uint32_t piece)
{
	epf_lanes all = epf_lanes_where(1);
	struct ht_piece p;

	ht_load(j, &p, piece, j->x + (uint64_t)token * j->row_bytes);
	for (uint32_t first = 0; first < j->ranks; first += LL_LANES) {
		uint32_t r = first + epf_lane();
		uint32_t index = r < j->ranks ? ht_index_at(j, token, r) : UINT32_MAX;
		epf_lanes to = epf_lanes_where(index != UINT32_MAX);

		for (; to; to &= to - 1u) {
			uint32_t rank = first + epf_lanes_first(to);
			uint32_t at = (uint32_t)epf_lanes_get(all, index, epf_lanes_first(to));
			uint64_t base = rank == j->rank ? j->out
							: ht_peer_of(j, rank)->window + j->lay.rows;

			ht_store(j, &p, piece, base + (uint64_t)at * j->row_bytes);
			if (piece == 0 && (j->topk || j->scale_words))
				ht_send_extras(j, token, rank, at);
		}
	}
}

/* One piece of an arrived row, from the window to the outputs. A warp. */
EPF_DEV_FN void ht_copy_out(const struct ht_job *j, uint32_t row, uint32_t piece)
{
	struct ht_piece p;

	ht_load(j, &p, piece, j->window + j->lay.rows + (uint64_t)row * j->row_bytes);
	ht_store(j, &p, piece, j->out + (uint64_t)row * j->row_bytes);
	if (piece)
		return;
	for (uint32_t i = epf_lane(); i < j->scale_words; i += LL_LANES) {
		uint64_t at = (uint64_t)row * j->scale_words + i;

		HT_AT(uint32_t, j->out_scales)
		[at] = HT_AT(const uint32_t, j->window + j->lay.scales)[at];
	}
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES) {
		uint64_t at = (uint64_t)row * j->topk + k;

		HT_AT(int64_t, j->out_index)
		[at] = HT_AT(const int32_t, j->window + j->lay.index)[at];
		if (j->out_weights)
			HT_AT(uint32_t, j->out_weights)
		[at] = HT_AT(const uint32_t, j->window + j->lay.weights)[at];
	}
}

/* Rows that do not fit are left out and reported. */
EPF_DEV_FN void ht_check_room(const struct ht_job *j, uint64_t rows, uint64_t room)
{
	if (epf_block_number() != 0 || epf_thread_in_block() != 0 || rows <= room)
		return;
	epf_st_relaxed_gpu(&ht_state_of(j)->rows, rows);
	ht_complain(j, HT_BAD_ROOM, room, rows);
}

EPF_DEV_FN void ht_receive_rows(const struct ht_job *j)
{
	uint32_t own = ht_first_at(j, j->rank);
	uint32_t own_end = ht_rows_until(j, j->rank, j->rank);
	uint32_t rows = ht_rows_until(j, j->ranks - 1u, j->rank);
	uint32_t others = rows - (own_end - own), pieces = ht_pieces(j);

	ht_check_room(j, rows, j->received);
	for (uint64_t i = ht_warp(j); i < (uint64_t)others * pieces; i += ht_warps(j)) {
		uint32_t row = (uint32_t)(i / pieces);

		row += row >= own ? own_end - own : 0;
		if (row < j->received)
			ht_copy_out(j, row, (uint32_t)(i % pieces));
	}
	/* No expert for the rows that are allocated and not received. */
	for (uint64_t i = (uint64_t)rows * j->topk + ht_warp(j) * LL_LANES + epf_lane();
	     i < (uint64_t)j->received * j->topk; i += (uint64_t)ht_warps(j) * LL_LANES)
		HT_AT(int64_t, j->out_index)[i] = -1;
}

/* Begins a kernel that moves rows: this rank's window may be written, and so may those of the others. Returns the call's number. */
EPF_DEV_FN uint64_t ht_begin(const struct ht_job *j)
{
	uint64_t call = epf_ld_relaxed_gpu(&ht_state_of(j)->moved);

	if (epf_block_number() == 0 && epf_thread_in_block() < LL_LANES)
		ht_set_flags(j, HT_READY, call + 1u);
	(void)ht_wait_flags(j, HT_READY, call + 1u);
	return call;
}

/* All rows of this rank are written: tells the others, and waits for theirs. */
EPF_DEV_FN void ht_exchange(const struct ht_job *j, uint64_t call)
{
	if (ht_last_block(j, 0) && epf_thread_in_block() < LL_LANES)
		ht_set_flags(j, HT_ROWS, call + 1u);
	(void)ht_wait_flags(j, HT_ROWS, call + 1u);
}

EPF_DEV_FN void ht_end(const struct ht_job *j, uint64_t call)
{
	if (ht_last_block(j, 1) && epf_thread_in_block() == 0)
		epf_st_relaxed_gpu(&ht_state_of(j)->moved, call + 1u);
}

/* The halves of a dispatch; side by side blocks run both in one launch. */
EPF_DEV_FN void ht_dispatch_send(const struct ht_job *j)
{
	uint32_t pieces = ht_pieces(j);

	for (uint64_t i = ht_warp(j); i < (uint64_t)j->tokens * pieces; i += ht_warps(j))
		ht_send_piece(j, (uint32_t)(i / pieces), (uint32_t)(i % pieces));
}

EPF_DEV_FN void ht_dispatch(const struct ht_job *j)
{
	uint64_t call = ht_begin(j);

	ht_dispatch_send(j);
	ht_exchange(j, call);
	ht_receive_rows(j);
	ht_end(j, call);
}

#endif
