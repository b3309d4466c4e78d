/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine: each rank writes its row of a token to the window of the one that adds the token's rows on this node: the token's rank, or its forwarder.
 * Sums are FP32, ranks ascending. On one node the biases come first and the sum is rounded once. With several nodes each node's sum is rounded and
 * crosses; the token's rank adds biases, then nodes ascending, and rounds. Rows that their adder holds itself are read where they are.
 */
#ifndef EPF_KERNELS_HT_COMBINE_CUH
#define EPF_KERNELS_HT_COMBINE_CUH

#include "kernels/ht/epf_ht_dispatch.cuh"

/* Where the rows of a member of this node for a source begin in the window of the rank that adds them. */
EPF_DEV_FN uint32_t ht_part_first(const struct ht_job *j, uint32_t source, uint32_t member)
{
	return HT_AT(const uint32_t, j->plan + j->at.parts)[source * j->node_max + member];
}

/* One piece of row `row` of x, to index `at` of a rank's window. A warp. */
EPF_DEV_FN void ht_return_piece(const struct ht_job *j, uint32_t row, uint32_t rank, uint32_t at,
				uint32_t piece)
{
	uint64_t window = ht_peer_of(j, rank)->window;
	struct ht_piece p;

	ht_load(j, &p, piece, j->x + (uint64_t)row * j->row_bytes);
	ht_store(j, &p, piece, window + j->lay.rows + (uint64_t)at * j->row_bytes);
	if (piece)
		return;
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES)
		HT_AT(uint32_t, window + j->lay.weights)
	[(uint64_t)at * j->topk + k] =
		HT_AT(const uint32_t, j->weights)[(uint64_t)row * j->topk + k];
}

/* Rows of x, to the ranks of this node that add them. */
EPF_DEV_FN void ht_return_rows(const struct ht_job *j)
{
	uint32_t pieces = ht_pieces(j), member = ht_peer_of(j, j->rank)->index;
	uint64_t before = 0;

	for (uint32_t s = 0; s < j->ranks; s++) {
		uint32_t adder = ht_via(j, s, j->node);
		uint32_t first = ht_rows_until(j, s - 1u, j->rank);
		uint32_t to = ht_part_first(j, s, member);
		uint64_t items = (uint64_t)(ht_rows_until(j, s, j->rank) - first) * pieces;

		if (adder == j->rank)
			continue;
		for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j)) {
			uint32_t row = (uint32_t)(i / pieces);

			if (first + row < j->received && to + row < j->room)
				ht_return_piece(j, first + row, adder, to + row,
						(uint32_t)(i % pieces));
		}
		before += items;
	}
}

/*
 * Index in x (this rank's) or in the window (other ranks') of the row of a member of this node that is number `place` of a source's; UINT32_MAX:
 * none.
 */
EPF_DEV_FN uint32_t ht_part_at(const struct ht_job *j, uint32_t source, uint32_t member,
			       int32_t place)
{
	int own = ht_mate(j, member) == j->rank;
	uint32_t first =
		own ? ht_rows_until(j, source - 1u, j->rank) : ht_part_first(j, source, member);
	uint32_t room = own ? j->received : j->room;

	return place < 0 || first + (uint32_t)place >= room ? UINT32_MAX : first + (uint32_t)place;
}

/* A token whose rows this rank adds: its source, and for each member of this node which of that source's rows it is. */
struct ht_sum {
	uint32_t source;
	uint32_t by_rank; /* places are of ranks, not of members */
	const int32_t *place;
};

EPF_DEV_FN struct ht_sum ht_sum_here(const struct ht_job *j, uint32_t token)
{
	struct ht_sum s;

	s.source = j->rank;
	s.by_rank = 1;
	s.place = HT_AT(const int32_t, j->place) + (uint64_t)token * j->ranks;
	return s;
}

EPF_DEV_FN struct ht_sum ht_sum_for(const struct ht_job *j, const struct ht_leg *l, uint32_t row)
{
	struct ht_sum s;

	s.source = (uint32_t)l->rank;
	s.by_rank = 0;
	s.place = HT_AT(const int32_t, j->links) + (uint64_t)(l->mine + row) * j->node_max;
	return s;
}

/* As ht_part_at(), of a member or of none. */
EPF_DEV_FN uint32_t ht_sum_part(const struct ht_job *j, const struct ht_sum *s, uint32_t member)
{
	if (member >= ht_mates(j))
		return UINT32_MAX;
	return ht_part_at(j, s->source, member, s->place[s->by_rank ? ht_mate(j, member) : member]);
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

EPF_DEV_FN void ht_round(struct ht_piece *p, const float *sum)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS * 4u; i++)
		p->v[i / 4u].w[i % 4u] = ll_to_bf16(sum[2u * i]) | ll_to_bf16(sum[2u * i + 1u])
									   << 16;
}

/* Adds one piece of this node's rows of a token. A warp, a lane a member while it looks for the rows. Returns whether there are any. */
EPF_DEV_FN int ht_add_node(const struct ht_job *j, const struct ht_sum *s, uint32_t piece,
			   float *sum)
{
	epf_lanes all = epf_lanes_where(1);
	struct ht_piece p = { 0 };
	int any = 0;

	for (uint32_t first = 0; first < ht_mates(j); first += LL_LANES) {
		uint32_t index = ht_sum_part(j, s, first + epf_lane());
		epf_lanes from = epf_lanes_where(index != UINT32_MAX);

		for (; from; from &= from - 1u) {
			uint32_t rank = ht_mate(j, first + epf_lanes_first(from));
			uint32_t at = (uint32_t)epf_lanes_get(all, index, epf_lanes_first(from));
			uint64_t base = rank == j->rank ? j->x : j->window + j->lay.rows;

			ht_load(j, &p, piece, base + (uint64_t)at * j->row_bytes);
			ht_add(sum, &p);
			any = 1;
		}
	}
	return any;
}

/* The sum of this node's weights of entry k of a token. */
EPF_DEV_FN float ht_add_weights(const struct ht_job *j, const struct ht_sum *s, uint32_t k)
{
	float sum = 0.0f;

	for (uint32_t m = 0; m < ht_mates(j); m++) {
		uint32_t at = ht_sum_part(j, s, m);
		uint64_t base = ht_mate(j, m) == j->rank ? j->weights : j->window + j->lay.weights;

		if (at != UINT32_MAX)
			sum = ll_add(sum, HT_AT(const float, base)[(uint64_t)at * j->topk + k]);
	}
	return sum;
}

/* One piece of the sum of this node's rows of another node's token, to where it is sent from. A warp. */
EPF_DEV_FN void ht_stage_sum(const struct ht_job *j, const struct ht_leg *l, uint32_t row,
			     uint32_t piece)
{
	uint64_t to = ht_sent_row(j, l->mine + row);
	struct ht_sum s = ht_sum_for(j, l, row);
	float sum[HT_VECS * 8u] = { 0 };
	struct ht_piece p = { 0 };

	(void)ht_add_node(j, &s, piece, sum);
	ht_round(&p, sum);
	ht_store(j, &p, piece, to);
	if (piece)
		return;
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES)
		HT_AT(float, to + j->rec.weights)[k] = ht_add_weights(j, &s, k);
}

/* Sums of this node for the sources that this rank forwards for. */
EPF_DEV_FN void ht_return_across(const struct ht_job *j)
{
	const struct ht_leg *legs = ht_legs_in(j);
	uint32_t pieces = ht_pieces(j);

	for (uint32_t k = 0; k < HT_SLICES; k++) {
		uint64_t before = 0;

		for (uint32_t s = 0; s < j->ranks; s++) {
			const struct ht_leg *l = &legs[s];
			uint32_t first = ht_slice(l->rows, k);
			uint64_t items = (uint64_t)(ht_slice(l->rows, k + 1u) - first) * pieces;

			if (l->rank < 0)
				continue;
			for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j)) {
				uint32_t row = first + (uint32_t)(i / pieces);

				if (l->mine + row < j->forwarded)
					ht_stage_sum(j, l, row, (uint32_t)(i % pieces));
			}
			before += items;
		}
		ht_push_slice(j, legs, j->ranks, k);
	}
}

/* Waits for the sums of the other nodes. */
EPF_DEV_FN void ht_wait_sums(const struct ht_job *j, uint64_t call)
{
	const struct ht_leg *legs = ht_legs_out(j);
	uint32_t step = 0;

	for (uint32_t k = 0; k < HT_SLICES; k++)
		for (uint32_t n = 0; n < j->nodes; n++)
			if (legs[n].rank >= 0)
				(void)ht_wait_slice(j, call, step++, (uint32_t)legs[n].rank, k);
}

/* Where the sum of another node for a token lies; 0: that node has none. */
EPF_DEV_FN uint64_t ht_sum_from(const struct ht_job *j, uint32_t token, uint32_t node)
{
	int32_t place =
		HT_AT(const int32_t, j->plan + j->at.place)[(uint64_t)token * j->nodes + node];

	return place < 0 || !ht_net_fits(j)
		       ? 0
		       : ht_got_row(j, ht_legs_out(j)[node].mine + (uint32_t)place);
}

/* Adds one piece of what each node has of a token, each rounded, nodes ascending. A warp. */
EPF_DEV_FN void ht_add_nodes(const struct ht_job *j, const struct ht_sum *s, uint32_t token,
			     uint32_t piece, float *sum)
{
	struct ht_piece p = { 0 };

	for (uint32_t n = 0; n < j->nodes; n++) {
		float part[HT_VECS * 8u] = { 0 };
		uint64_t from = 0;

		if (n != j->node) {
			from = ht_sum_from(j, token, n);
			if (!from)
				continue;
			ht_load(j, &p, piece, from);
		} else {
			if (!ht_add_node(j, s, piece, part))
				continue;
			ht_round(&p, part);
		}
		ht_add(sum, &p);
	}
}

/* One piece of a token's sum. A warp. */
EPF_DEV_FN void ht_sum_piece(const struct ht_job *j, uint32_t token, uint32_t piece)
{
	struct ht_sum s = ht_sum_here(j, token);
	float sum[HT_VECS * 8u] = { 0 };
	struct ht_piece p = { 0 };

	for (uint32_t b = 0; b < 2u; b++) {
		if (!j->bias[b])
			continue;
		ht_load(j, &p, piece, j->bias[b] + (uint64_t)token * j->row_bytes);
		ht_add(sum, &p);
	}
	if (j->nodes == 1)
		(void)ht_add_node(j, &s, piece, sum);
	else
		ht_add_nodes(j, &s, token, piece, sum);
	ht_round(&p, sum);
	ht_store(j, &p, piece, j->out + (uint64_t)token * j->row_bytes);
}

/* Sums of the weights of one token's entries: nodes ascending, in each of them ranks ascending. A lane an entry. */
EPF_DEV_FN void ht_sum_weights(const struct ht_job *j, uint32_t token)
{
	struct ht_sum s = ht_sum_here(j, token);

	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES) {
		float sum = 0.0f;

		for (uint32_t n = 0; n < j->nodes; n++) {
			uint64_t from = n == j->node ? 0 : ht_sum_from(j, token, n);

			if (n == j->node)
				sum = ll_add(sum, ht_add_weights(j, &s, k));
			else if (from)
				sum = ll_add(sum, HT_AT(const float, from + j->rec.weights)[k]);
		}
		HT_AT(float, j->out_weights)[(uint64_t)token * j->topk + k] = sum;
	}
}

EPF_DEV_FN void ht_combine(const struct ht_job *j)
{
	uint64_t call = ht_moved(j);
	uint32_t pieces = ht_pieces(j), mates = ht_mates(j), adds = 0;
	int crosses = ht_crosses(j);
	const uint32_t *totals = HT_AT(const uint32_t, j->plan + j->at.totals);

	if (j->nodes == 1)
		ht_begin(j, call);
	for (uint32_t m = 0; m < mates; m++)
		adds += totals[ht_peer_of(j, j->rank)->index * mates + m];
	ht_check_room(j, adds, j->room);
	ht_return_rows(j);
	ht_exchange(j, call);
	if (crosses) {
		ht_return_across(j);
		ht_wait_sums(j, call);
	}
	for (uint64_t i = ht_warp(j); i < (uint64_t)j->tokens * pieces; i += ht_warps(j)) {
		ht_sum_piece(j, (uint32_t)(i / pieces), (uint32_t)(i % pieces));
		if (i % pieces == 0 && j->out_weights)
			ht_sum_weights(j, (uint32_t)(i / pieces));
	}
	ht_end(j, call);
}

#endif
