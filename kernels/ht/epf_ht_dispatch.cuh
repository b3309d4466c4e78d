/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch: every row is read once and written once to each rank of its node that it goes to, at its final index. It crosses once to each other
 * node, with the indices it has there, and is written from where it arrives. Rows that a rank writes for itself go straight to the outputs; those that
 * others write arrive in the window and are copied out.
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

/* What travels with a row, where it lies at the sender. 0: not given. */
struct ht_extras {
	uint64_t scales;
	uint64_t stride; /* words */
	uint64_t index;
	uint64_t weights;
};

/* Of a token of this rank. */
EPF_DEV_FN struct ht_extras ht_extras_of(const struct ht_job *j, uint32_t token)
{
	struct ht_extras e;

	e.scales = j->scales + token * j->scale_stride[0] * 4u;
	e.stride = j->scale_stride[1];
	e.index = j->topk_idx + (uint64_t)token * j->topk * 8u;
	e.weights = j->weights ? j->weights + (uint64_t)token * j->topk * 4u : 0;
	return e;
}

/* Of a row that has crossed. */
EPF_DEV_FN struct ht_extras ht_extras_in(const struct ht_job *j, uint64_t record)
{
	struct ht_extras e;

	e.scales = record + j->rec.scales;
	e.stride = 1;
	e.index = record + j->rec.index;
	e.weights = record + j->rec.weights;
	return e;
}

/* What travels with a row to one rank: scales, and its experts as that rank numbers them, with their weights. A warp. */
EPF_DEV_FN void ht_send_extras(const struct ht_job *j, const struct ht_extras *from, uint32_t rank,
			       uint32_t index)
{
	int own = rank == j->rank;
	uint64_t window = ht_peer_of(j, rank)->window;
	uint64_t scales = own ? j->out_scales : window + j->lay.scales;
	uint64_t weights = own ? j->out_weights : window + j->lay.weights;

	for (uint32_t i = epf_lane(); i < j->scale_words; i += LL_LANES)
		HT_AT(uint32_t, scales)
	[(uint64_t)index * j->scale_words + i] =
		HT_AT(const uint32_t, from->scales)[i * from->stride];
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES) {
		uint64_t at = (uint64_t)index * j->topk + k;
		int64_t e = HT_AT(const int64_t, from->index)[k] - (int64_t)rank * j->local;
		int here = e >= 0 && e < (int64_t)j->local;

		if (own)
			HT_AT(int64_t, j->out_index)[at] = here ? e : -1;
		else
			HT_AT(int32_t, window + j->lay.index)[at] = here ? (int32_t)e : -1;
		if (weights)
			HT_AT(uint32_t, weights)
		[at] = here && from->weights ? HT_AT(const uint32_t, from->weights)[k] : 0u;
	}
}

/* One piece of a row, to the members from `first` on of this node, a lane a member: index is the row's at that rank, or UINT32_MAX. A warp. */
EPF_DEV_FN void ht_give_piece(const struct ht_job *j, const struct ht_piece *p, uint32_t piece,
			      uint32_t first, uint32_t index, const struct ht_extras *extras)
{
	epf_lanes all = epf_lanes_where(1);
	epf_lanes to = epf_lanes_where(index != UINT32_MAX);

	for (; to; to &= to - 1u) {
		uint32_t rank = ht_mate(j, first + epf_lanes_first(to));
		uint32_t at = (uint32_t)epf_lanes_get(all, index, epf_lanes_first(to));
		uint64_t base =
			rank == j->rank ? j->out : ht_peer_of(j, rank)->window + j->lay.rows;

		ht_store(j, p, piece, base + (uint64_t)at * j->row_bytes);
		if (piece == 0 && (j->topk || j->scale_words))
			ht_send_extras(j, extras, rank, at);
	}
}

/* One piece of a token's row, to all ranks of this node that it goes to. A warp. */
EPF_DEV_FN void ht_send_piece(const struct ht_job *j, uint32_t token, uint32_t piece)
{
	struct ht_extras extras = ht_extras_of(j, token);
	struct ht_piece p;

	ht_load(j, &p, piece, j->x + (uint64_t)token * j->row_bytes);
	for (uint32_t first = 0; first < ht_mates(j); first += LL_LANES) {
		uint32_t i = first + epf_lane();
		uint32_t index =
			i < ht_mates(j) ? ht_index_at(j, token, ht_mate(j, i)) : UINT32_MAX;

		ht_give_piece(j, &p, piece, first, index, &extras);
	}
}

/* ---- rows between nodes ---- */

/* One piece of a token's row, to where it is sent to a node from; with the first, all that travels with it. A warp. */
EPF_DEV_FN void ht_stage_piece(const struct ht_job *j, uint32_t token, uint32_t node, uint64_t to,
			       uint32_t piece)
{
	struct ht_extras e = ht_extras_of(j, token);
	const int32_t *place = HT_AT(const int32_t, j->place) + (uint64_t)token * j->ranks;
	struct ht_piece p;

	ht_load(j, &p, piece, j->x + (uint64_t)token * j->row_bytes);
	ht_store(j, &p, piece, to);
	if (piece)
		return;
	for (uint32_t i = epf_lane(); i < j->scale_words; i += LL_LANES)
		HT_AT(uint32_t, to + j->rec.scales)
	[i] = HT_AT(const uint32_t, e.scales)[i * e.stride];
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES) {
		HT_AT(int64_t, to + j->rec.index)[k] = HT_AT(const int64_t, e.index)[k];
		HT_AT(uint32_t, to + j->rec.weights)
		[k] = e.weights ? HT_AT(const uint32_t, e.weights)[k] : 0u;
	}
	for (uint32_t i = epf_lane(); i < ht_node_of(j, node)->size; i += LL_LANES) {
		uint32_t rank = ht_member(j, node, i);

		HT_AT(int32_t, to + j->rec.head)
		[i] = place[rank] < 0 ? -1 : (int32_t)ht_first_at(j, rank) + place[rank];
	}
}

/* Rows of this rank's tokens, to their forwarders. */
EPF_DEV_FN void ht_send_across(const struct ht_job *j)
{
	const struct ht_leg *legs = ht_legs_out(j);
	uint32_t pieces = ht_pieces(j);

	for (uint32_t k = 0; k < HT_SLICES; k++) {
		uint64_t before = 0;

		for (uint32_t n = 0; n < j->nodes; n++) {
			uint32_t first = ht_slice(legs[n].rows, k);
			uint64_t items =
				(uint64_t)(ht_slice(legs[n].rows, k + 1u) - first) * pieces;
			const uint32_t *order = HT_AT(const uint32_t, j->plan + j->at.order) +
						(uint64_t)n * j->tokens;

			if (legs[n].rank < 0)
				continue;
			for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j)) {
				uint32_t row = first + (uint32_t)(i / pieces);

				ht_stage_piece(j, order[row], n, ht_sent_row(j, legs[n].mine + row),
					       (uint32_t)(i % pieces));
			}
			before += items;
		}
		ht_push_slice(j, legs, j->nodes, k);
	}
}

/* The final index at a member of this node of a row that has crossed, or UINT32_MAX: it does not go there, or cannot. */
EPF_DEV_FN uint32_t ht_index_in(const struct ht_job *j, uint64_t record, uint32_t source,
				uint32_t member)
{
	uint32_t rank = ht_mate(j, member);
	uint32_t index = HT_AT(const uint32_t, record + j->rec.head)[member];
	uint32_t room = rank == j->rank ? j->received : j->room;

	return index >= ht_rows_until(j, source - 1u, rank) &&
			       index < ht_rows_until(j, source, rank) && index < room
		       ? index
		       : UINT32_MAX;
}

/* One piece of a row that has crossed, to all ranks of this node that it goes to; notes which, for combines. A warp. */
EPF_DEV_FN void ht_forward_piece(const struct ht_job *j, const struct ht_leg *l, uint32_t row,
				 uint32_t piece)
{
	uint32_t source = (uint32_t)l->rank, at = l->mine + row;
	uint64_t record = ht_got_row(j, at);
	struct ht_extras extras = ht_extras_in(j, record);
	struct ht_piece p;

	ht_load(j, &p, piece, record);
	for (uint32_t first = 0; first < ht_mates(j); first += LL_LANES) {
		uint32_t i = first + epf_lane();
		uint32_t index = i < ht_mates(j) ? ht_index_in(j, record, source, i) : UINT32_MAX;

		if (piece == 0 && i < ht_mates(j) && at < j->forwarded)
			HT_AT(int32_t, j->links)
		[(uint64_t)at * j->node_max + i] =
			index == UINT32_MAX
				? -1
				: (int32_t)(index - ht_rows_until(j, source - 1u, ht_mate(j, i)));
		ht_give_piece(j, &p, piece, first, index, &extras);
	}
}

/* Rows of other nodes that pass through this rank. */
EPF_DEV_FN void ht_forward(const struct ht_job *j, uint64_t call)
{
	const struct ht_leg *legs = ht_legs_in(j);
	uint32_t pieces = ht_pieces(j), step = 0;

	for (uint32_t k = 0; k < HT_SLICES; k++) {
		uint64_t before = 0;

		for (uint32_t s = 0; s < j->ranks; s++) {
			const struct ht_leg *l = &legs[s];
			uint32_t first = ht_slice(l->rows, k);
			uint64_t items = (uint64_t)(ht_slice(l->rows, k + 1u) - first) * pieces;

			if (l->rank < 0 || ht_wait_slice(j, call, step++, s, k))
				continue;
			for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j))
				ht_forward_piece(j, l, first + (uint32_t)(i / pieces),
						 (uint32_t)(i % pieces));
			before += items;
		}
	}
}

/* ---- receiving ---- */

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

/* Rows that others have written for this rank, from the window to the outputs. */
EPF_DEV_FN void ht_receive_rows(const struct ht_job *j)
{
	uint32_t rows = ht_rows_until(j, j->ranks - 1u, j->rank), pieces = ht_pieces(j);
	uint64_t before = 0;

	ht_check_room(j, rows, j->received);
	for (uint32_t s = 0; s < j->ranks; s++) {
		uint32_t first = ht_rows_until(j, s - 1u, j->rank);
		uint64_t items = (uint64_t)(ht_rows_until(j, s, j->rank) - first) * pieces;

		if (!items || ht_via(j, s, j->node) == j->rank)
			continue;
		for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j)) {
			uint32_t row = first + (uint32_t)(i / pieces);

			if (row < j->received)
				ht_copy_out(j, row, (uint32_t)(i % pieces));
		}
		before += items;
	}
	/* No expert for the rows that are allocated and not received. */
	for (uint64_t i = (uint64_t)rows * j->topk + ht_warp(j) * LL_LANES + epf_lane();
	     i < (uint64_t)j->received * j->topk; i += (uint64_t)ht_warps(j) * LL_LANES)
		HT_AT(int64_t, j->out_index)[i] = -1;
}

/* This rank's window may be written; waits until those of its node may be, too. */
EPF_DEV_FN void ht_begin(const struct ht_job *j, uint64_t call)
{
	if (epf_block_number() == 0 && epf_thread_in_block() < LL_LANES)
		ht_set_flags(j, HT_READY, call + 1u);
	(void)ht_wait_flags(j, HT_READY, call + 1u);
}

/* Calls that have moved rows. */
EPF_DEV_FN uint64_t ht_moved(const struct ht_job *j)
{
	return epf_ld_relaxed_gpu(&ht_state_of(j)->moved);
}

/* Runs in front of a kernel that moves rows, with several nodes: all memory that it writes to may be written. */
EPF_DEV_FN void ht_ready(const struct ht_job *j)
{
	ht_begin(j, ht_moved(j));
	ht_wait_ready(j, ht_moved(j));
}

/* This rank has written all that it writes to windows: notifies its node, and waits for the others. */
EPF_DEV_FN void ht_exchange(const struct ht_job *j, uint64_t call)
{
	if (ht_last_block(j, &ht_state_of(j)->done[0]) && epf_thread_in_block() < LL_LANES)
		ht_set_flags(j, HT_ROWS, call + 1u);
	(void)ht_wait_flags(j, HT_ROWS, call + 1u);
}

/* Ends it: nothing of this call is read any more. */
EPF_DEV_FN void ht_end(const struct ht_job *j, uint64_t call)
{
	if (!ht_last_block(j, &ht_state_of(j)->done[1]) || epf_thread_in_block() >= LL_LANES)
		return;
	ht_say_ready(j);
	if (epf_lane() == 0) {
		ht_wait_sent(j);
		epf_st_relaxed_gpu(&ht_state_of(j)->moved, call + 1u);
	}
}

/* Do the rows that cross fit? If not, none cross, at any rank, and it is reported. */
EPF_DEV_FN int ht_crosses(const struct ht_job *j)
{
	if (j->nodes == 1)
		return 0;
	ht_check_room(j, *HT_AT(const uint32_t, j->plan + j->at.need), j->net_room);
	return ht_net_fits(j);
}

EPF_DEV_FN void ht_dispatch(const struct ht_job *j)
{
	uint64_t call = ht_moved(j);
	uint32_t pieces = ht_pieces(j);
	int crosses = ht_crosses(j);

	if (j->nodes == 1)
		ht_begin(j, call);
	if (crosses)
		ht_send_across(j);
	for (uint64_t i = ht_warp(j); i < (uint64_t)j->tokens * pieces; i += ht_warps(j))
		ht_send_piece(j, (uint32_t)(i / pieces), (uint32_t)(i % pieces));
	if (crosses)
		ht_forward(j, call);
	ht_exchange(j, call);
	ht_receive_rows(j);
	ht_end(j, call);
}

#endif
