/* SPDX-License-Identifier: Apache-2.0 */
/* A dispatch's rows between nodes: to their forwarders, and from there to the ranks of the node. */
#ifndef EPF_KERNELS_HT_ACROSS_CUH
#define EPF_KERNELS_HT_ACROSS_CUH

#include "kernels/ht/epf_ht_rows.cuh"

/* One chunk of a token's row, to where it is sent to a node from; with the first, all that travels with it. A warp. */
EPF_DEV_FN void ht_stage_chunk(const struct ht_job *j, const struct ht_chunks *c, uint32_t token,
			       uint32_t node, uint64_t to, uint32_t k)
{
	struct ht_extras e = ht_extras_of(j, token);
	const int32_t *place = HT_AT(const int32_t, j->place) + (uint64_t)token * j->ranks;
	struct ht_chunk p;

	ht_load(c, &p, k, j->x + (uint64_t)token * j->row_bytes);
	ht_store(c, &p, k, to);
	if (k)
		return;
	for (uint32_t i = epf_lane(); i < j->scale_words; i += LL_LANES)
		HT_AT(uint32_t, to + j->rec.scales)[i] = ht_extra_word(&e, i);
	for (uint32_t i = epf_lane(); i < j->topk; i += LL_LANES) {
		HT_AT(int64_t, to + j->rec.index)[i] = HT_AT(const int64_t, e.index)[i];
		HT_AT(uint32_t, to + j->rec.weights)
		[i] = e.weights ? HT_AT(const uint32_t, e.weights)[i] : 0u;
	}
	for (uint32_t i = epf_lane(); i < ht_node_of(j, node)->size; i += LL_LANES) {
		uint32_t rank = ht_member(j, node, i);

		HT_AT(int32_t, to + j->rec.head)
		[i] = place[rank] < 0 ? -1
				      : (int32_t)ht_rows_until(j, j->rank - 1u, rank) + place[rank];
	}
}

/* Rows of this rank's tokens, to their forwarders. */
HT_FAR_FN void ht_send_across(const struct ht_job *j)
{
	const struct ht_leg *legs = ht_legs_out(j);
	struct ht_chunks c = ht_chunks(j);

	for (uint32_t k = 0; k < HT_SLICES; k++) {
		uint64_t before = 0;

		for (uint32_t n = 0; n < j->nodes; n++) {
			uint32_t first = ht_slice(legs[n].rows, k);
			uint64_t items =
				(uint64_t)(ht_slice(legs[n].rows, k + 1u) - first) * c.count;
			const uint32_t *order = HT_AT(const uint32_t, j->plan + j->at.order) +
						(uint64_t)n * j->tokens;

			if (legs[n].rank < 0)
				continue;
			for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j)) {
				uint32_t row = first + (uint32_t)i / c.count;

				ht_stage_chunk(j, &c, order[row], n,
					       ht_sent_row(j, legs[n].mine + row),
					       (uint32_t)i % c.count);
			}
			before += items;
		}
		ht_push_slice(j, legs, j->nodes, k, 0);
	}
}

/* The final index at a member of this node of a row that has crossed, or UINT32_MAX: there is none, or the row does not go there, or cannot. */
EPF_DEV_FN uint32_t ht_index_in(const struct ht_job *j, uint64_t record, uint32_t source,
				uint32_t member)
{
	uint32_t rank, index;

	if (member >= ht_mates(j))
		return UINT32_MAX;
	rank = ht_mate(j, member);
	index = HT_AT(const uint32_t, record + j->rec.head)[member];
	return index >= ht_rows_until(j, source - 1u, rank) &&
			       index < ht_rows_until(j, source, rank) &&
			       index < ht_marks()[member].room
		       ? index
		       : UINT32_MAX;
}

/* One chunk of a row that has crossed, to all ranks of this node that it goes to; notes which, for combines. A warp. */
EPF_DEV_FN void ht_forward_chunk(const struct ht_job *j, const struct ht_chunks *c,
				 const struct ht_leg *l, uint32_t row, uint32_t k)
{
	uint32_t source = (uint32_t)l->rank, at = l->mine + row;
	uint64_t record = ht_got_row(j, at);
	int with = k == 0 && (j->topk || j->scale_words);
	struct ht_extras extras = ht_extras_in(j, record);
	struct ht_extra mine = { 0 };
	struct ht_chunk p;

	if (with)
		mine = ht_load_extra(j, &extras);
	ht_load(c, &p, k, record);
	for (uint32_t first = 0; first < ht_mates(j); first += LL_LANES) {
		uint32_t i = first + epf_lane(), index = ht_index_in(j, record, source, i);

		if (k == 0 && i < ht_mates(j) && at < j->forwarded)
			HT_AT(int32_t, j->links)
		[(uint64_t)at * j->node_max + i] =
			index == UINT32_MAX
				? -1
				: (int32_t)(index - ht_rows_until(j, source - 1u, ht_mate(j, i)));
		if (with)
			ht_give_extras(j, &extras, &mine, first, index);
		ht_give_chunk(j, c, &p, k, first, index);
	}
}

/* Rows did not come that this rank forwards: no rank of this node is told that all is written, so none takes the call for a good one. Block 0. */
EPF_DEV_COLD void ht_fail_forward(const struct ht_job *j, uint64_t call)
{
	if (epf_block_number() != 0)
		return;
	for (uint32_t m = epf_thread_in_block(); m < ht_mates(j); m += j->threads)
		if (ht_mate(j, m) != j->rank)
			epf_st_relaxed_gpu(&ht_peer_of(j, ht_mate(j, m))->skipped, call + 1u);
}

/* Rows of other nodes that pass through this rank. */
HT_FAR_FN void ht_forward(const struct ht_job *j, uint64_t call)
{
	const struct ht_leg *legs = ht_legs_in(j);
	struct ht_chunks c = ht_chunks(j);
	uint32_t step = 0;

	for (uint32_t k = 0; k < HT_SLICES; k++) {
		uint64_t before = 0;

		for (uint32_t s = 0; s < j->ranks; s++) {
			const struct ht_leg *l = &legs[s];
			uint32_t first = ht_slice(l->rows, k);
			uint64_t items = (uint64_t)(ht_slice(l->rows, k + 1u) - first) * c.count;

			if (l->rank < 0)
				continue;
			if (ht_wait_slice(j, call, step++, s, k)) {
				ht_fail_forward(j, call);
				continue;
			}
			ht_mark_targets(j, call, 1); /* the wait may have been long */
			for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j))
				ht_forward_chunk(j, &c, l, first + (uint32_t)i / c.count,
						 (uint32_t)i % c.count);
			before += items;
		}
	}
}

#endif
