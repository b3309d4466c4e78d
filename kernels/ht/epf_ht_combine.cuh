/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine: each rank writes its row of a token to the window of the token's rank, which adds them in FP32, biases first, then ranks ascending, and rounds
 * once. Rows that never left this rank are read where they are.
 */
#ifndef EPF_KERNELS_HT_COMBINE_CUH
#define EPF_KERNELS_HT_COMBINE_CUH

#include "kernels/ht/epf_ht_dispatch.cuh"

/* Rows that `rank` gets back from ranks 0..from-1: they lie in its window in this order. Its own rows are not among them. */
EPF_DEV_FN uint32_t ht_home_first(const struct ht_job *j, uint32_t rank, uint32_t from)
{
	uint32_t sum = 0;

	for (uint32_t d = 0; d < from; d++)
		if (d != rank)
			sum += ht_rows_until(j, rank, d) - ht_rows_until(j, rank - 1u, d);
	return sum;
}

/* One piece of row `row` of x, to the rank that it came from. A warp. */
EPF_DEV_FN void ht_return_piece(const struct ht_job *j, uint32_t row, uint32_t piece)
{
	uint32_t rank = 0, at;
	uint64_t window;
	struct ht_piece p;

	while (rank < j->ranks && ht_rows_until(j, rank, j->rank) <= row)
		rank++;
	if (rank >= j->ranks || rank == j->rank)
		return;
	at = ht_home_first(j, rank, j->rank) + row - ht_rows_until(j, rank - 1u, j->rank);
	if (at >= j->room)
		return;
	window = ht_peer_of(j, rank)->window;
	ht_load(j, &p, piece, j->x + (uint64_t)row * j->row_bytes);
	ht_store(j, &p, piece, window + j->lay.rows + (uint64_t)at * j->row_bytes);
	if (piece || !j->weights)
		return;
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES)
		HT_AT(uint32_t, window + j->lay.weights)
	[(uint64_t)at * j->topk + k] =
		HT_AT(const uint32_t, j->weights)[(uint64_t)row * j->topk + k];
}

/* Index in x (this rank's) or in the window (other ranks') of what `rank` gives for a token; UINT32_MAX: nothing. */
EPF_DEV_FN uint32_t ht_part_at(const struct ht_job *j, uint32_t token, uint32_t rank)
{
	int32_t place = HT_AT(const int32_t, j->place)[(uint64_t)token * j->ranks + rank];
	uint32_t first = rank == j->rank ? ht_first_at(j, rank) : ht_home_first(j, j->rank, rank);
	uint32_t room = rank == j->rank ? j->received : j->room;

	return place < 0 || first + (uint32_t)place >= room ? UINT32_MAX : first + (uint32_t)place;
}

EPF_DEV_FN void ht_add(float *sum, const struct ht_piece *p)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS * 4u; i++) {
		uint32_t two = p->v[i / 4u].w[i % 4u];

		sum[2u * i] = ll_add(sum[2u * i], ll_from_bf16(two & 0xffffu));
		sum[2u * i + 1u] = ll_add(sum[2u * i + 1u], ll_from_bf16(two >> 16));
	}
}

/* One piece of a token's sum. A warp, a lane a rank while it looks for the parts. */
EPF_DEV_FN void ht_sum_piece(const struct ht_job *j, uint32_t token, uint32_t piece)
{
	float sum[HT_VECS * 8u] = { 0 };
	epf_lanes all = epf_lanes_where(1);
	struct ht_piece p = { 0 };

	for (uint32_t b = 0; b < 2u; b++) {
		if (!j->bias[b])
			continue;
		ht_load(j, &p, piece, j->bias[b] + (uint64_t)token * j->row_bytes);
		ht_add(sum, &p);
	}
	for (uint32_t first = 0; first < j->ranks; first += LL_LANES) {
		uint32_t r = first + epf_lane();
		uint32_t index = r < j->ranks ? ht_part_at(j, token, r) : UINT32_MAX;
		epf_lanes from = epf_lanes_where(index != UINT32_MAX);

		for (; from; from &= from - 1u) {
			uint32_t rank = first + epf_lanes_first(from);
			uint32_t at = (uint32_t)epf_lanes_get(all, index, epf_lanes_first(from));
			uint64_t base = rank == j->rank ? j->x : j->window + j->lay.rows;

			ht_load(j, &p, piece, base + (uint64_t)at * j->row_bytes);
			ht_add(sum, &p);
		}
	}
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS * 4u; i++)
		p.v[i / 4u].w[i % 4u] = ll_to_bf16(sum[2u * i]) | ll_to_bf16(sum[2u * i + 1u])
									  << 16;
	ht_store(j, &p, piece, j->out + (uint64_t)token * j->row_bytes);
}

/* Sums of the weights of one token's entries, ranks ascending. A lane an entry. */
EPF_DEV_FN void ht_sum_weights(const struct ht_job *j, uint32_t token)
{
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES) {
		float sum = 0.0f;

		for (uint32_t r = 0; r < j->ranks; r++) {
			uint32_t at = ht_part_at(j, token, r);
			uint64_t base = r == j->rank ? j->weights : j->window + j->lay.weights;

			if (at != UINT32_MAX)
				sum = ll_add(sum,
					     HT_AT(const float, base)[(uint64_t)at * j->topk + k]);
		}
		HT_AT(float, j->out_weights)[(uint64_t)token * j->topk + k] = sum;
	}
}

EPF_DEV_FN void ht_combine(const struct ht_job *j)
{
	uint64_t call = ht_begin(j);
	uint32_t pieces = ht_pieces(j), rows = ht_rows_until(j, j->ranks - 1u, j->rank);

	rows = rows < j->received ? rows : j->received;
	for (uint64_t i = ht_warp(j); i < (uint64_t)rows * pieces; i += ht_warps(j))
		ht_return_piece(j, (uint32_t)(i / pieces), (uint32_t)(i % pieces));
	ht_check_room(j, ht_home_first(j, j->rank, j->ranks), j->room);
	ht_exchange(j, call);
	for (uint64_t i = ht_warp(j); i < (uint64_t)j->tokens * pieces; i += ht_warps(j)) {
		ht_sum_piece(j, (uint32_t)(i / pieces), (uint32_t)(i % pieces));
		if (i % pieces == 0 && j->out_weights)
			ht_sum_weights(j, (uint32_t)(i / pieces));
	}
	ht_end(j, call);
}

#endif
