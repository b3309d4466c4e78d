/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows grouped by expert: received rows are copied to the places of their entries; on the way back each received row becomes the sum of its entries' rows. Both
 * kernels stay on this rank and wait for nobody. A row is read once and written once per entry, and the other way round.
 */
#ifndef EPF_KERNELS_HT_GROUP_CUH
#define EPF_KERNELS_HT_GROUP_CUH

#include "kernels/ht/epf_ht_combine.cuh"

/* The grouped row of entry k of a row, or UINT32_MAX. */
EPF_DEV_FN uint32_t ht_slot(const struct ht_job *j, uint32_t row, uint32_t k)
{
	int32_t slot = HT_AT(const int32_t, j->place)[(uint64_t)row * j->topk + k];

	return slot < 0 || (uint32_t)slot >= j->received ? UINT32_MAX : (uint32_t)slot;
}

/* Scales of a row, and the weight of one of its entries, to a grouped row. A warp. */
EPF_DEV_FN void ht_spread_extras(const struct ht_job *j, uint32_t row, uint32_t k, uint32_t slot)
{
	for (uint32_t i = epf_lane(); i < j->scale_words; i += LL_LANES)
		HT_AT(uint32_t, j->out_scales)
	[slot * j->out_stride[0] + i * j->out_stride[1]] =
		HT_AT(const uint32_t, j->scales)[row * j->scale_stride[0] + i * j->scale_stride[1]];
	if (epf_lane() == 0 && j->weights)
		HT_AT(uint32_t, j->out_weights)
	[slot] = HT_AT(const uint32_t, j->weights)[(uint64_t)row * j->topk + k];
}

/* One chunk of a row, to the grouped rows of its entries. A warp. */
EPF_DEV_FN void ht_spread_chunk(const struct ht_job *j, const struct ht_chunks *c, uint32_t row,
				uint32_t chunk)
{
	struct ht_chunk p;
	int is_loaded = 0;

	for (uint32_t k = 0; k < j->topk; k++) {
		uint32_t slot = ht_slot(j, row, k);

		if (slot == UINT32_MAX)
			continue;
		if (!is_loaded)
			ht_load(c, &p, chunk, j->x + (uint64_t)row * j->row_bytes);
		is_loaded = 1;
		ht_store(c, &p, chunk, j->out + (uint64_t)slot * j->row_bytes);
		if (chunk == 0)
			ht_spread_extras(j, row, k, slot);
	}
}

EPF_DEV_FN void ht_spread(const struct ht_job *j)
{
	struct ht_chunks c = ht_chunks(j);
	uint64_t items = (uint64_t)j->tokens * c.count;

	for (uint64_t i = ht_warp(j); i < items; i += ht_warps(j))
		ht_spread_chunk(j, &c, (uint32_t)(i / c.count), (uint32_t)(i % c.count));
}

/* One chunk of the sum of a row's entries: FP32, from +0, in the order of top-k, rounded once. A row without entries is not written. A warp. */
EPF_DEV_FN void ht_fold_chunk(const struct ht_job *j, const struct ht_chunks *c, uint32_t row,
			      uint32_t chunk)
{
	struct ht_span a = { chunk * c->each + epf_lane(), ht_chunk_end(c, chunk) };

	for (; a.first - epf_lane() < a.end; a.first += HT_VECS * LL_LANES) {
		float sum[HT_VECS * 8u] = { 0 };
		struct ht_piece p = { 0 };
		int is_one = 0;

		for (uint32_t k = 0; k < j->topk; k++) {
			uint32_t slot = ht_slot(j, row, k);

			if (slot == UINT32_MAX)
				continue;
			ht_load_piece(&a, &p, j->x + (uint64_t)slot * j->row_bytes);
			ht_add(sum, &p);
			is_one = 1;
		}
		if (!is_one)
			return;
		ht_round(&p, sum);
		ht_store_piece(&a, &p, j->out + (uint64_t)row * j->row_bytes);
	}
}

/* Weights of the entries of a row; 0 where there is none. A warp. */
EPF_DEV_FN void ht_fold_weights(const struct ht_job *j, uint32_t row)
{
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES) {
		uint32_t slot = ht_slot(j, row, k);

		HT_AT(uint32_t, j->out_weights)
		[(uint64_t)row * j->topk + k] =
			slot == UINT32_MAX ? 0u : HT_AT(const uint32_t, j->weights)[slot];
	}
}

EPF_DEV_FN void ht_fold(const struct ht_job *j)
{
	struct ht_chunks c = ht_chunks(j);
	uint64_t items = (uint64_t)j->tokens * c.count;

	for (uint64_t i = ht_warp(j); i < items; i += ht_warps(j)) {
		uint32_t row = (uint32_t)(i / c.count), chunk = (uint32_t)(i % c.count);

		ht_fold_chunk(j, &c, row, chunk);
		if (chunk == 0 && j->out_weights)
			ht_fold_weights(j, row);
	}
}

#endif
