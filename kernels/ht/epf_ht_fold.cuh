/* SPDX-License-Identifier: Apache-2.0 */
/* Fold: sums of rows grouped by expert within a rank, beside the combine that returns them. */
#ifndef EPF_KERNELS_HT_FOLD_CUH
#define EPF_KERNELS_HT_FOLD_CUH

#include "kernels/ht/epf_ht_group.cuh"

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

/* The same of at most as many entries as a warp has lanes. */
EPF_DEV_FN void ht_fold_wide(const struct ht_job *j, const struct ht_chunks *c, uint32_t row,
			     uint32_t chunk)
{
	uint32_t slot = epf_lane() < j->topk ? ht_slot(j, row, epf_lane()) : UINT32_MAX;
	epf_lanes from = epf_lanes_where(slot != UINT32_MAX);

	if (from)
		ht_sum_wide(ht_vecs_of(c, chunk), j->x + (uint64_t)slot * j->row_bytes, from,
			    j->out + (uint64_t)row * j->row_bytes);
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

/* A chunk is there: counts it for the combine that waits for its part. A warp. */
EPF_DEV_FN void ht_count_folded(const struct ht_job *j, uint32_t part)
{
	epf_warp_barrier();
	if (epf_lane() == 0) {
		epf_fence_gpu();
		(void)epf_add_gpu(HT_AT(uint64_t, j->folded) + part, 1);
	}
}

/*
 * Chunk number `n` of a part of the rows of rank s, if there is one. The rows that arrived, in the order in which a combine reads them: in parts, in each of which
 * all ranks take turns, this one the last. A warp.
 */
EPF_DEV_FN void ht_fold_of(const struct ht_job *j, const struct ht_chunks *c, uint32_t part,
			   uint32_t s, uint32_t n)
{
	uint32_t first = ht_rows_until(j, s - 1u, j->rank);
	uint32_t rows = ht_rows_until(j, s, j->rank) - first, begin = ht_part(j, rows, part);
	uint32_t row = first + begin + n / c->count, chunk = n % c->count;

	if (n >= (ht_part(j, rows, part + 1u) - begin) * c->count)
		return;
	if (row < j->tokens) {
		if (j->topk <= LL_LANES)
			ht_fold_wide(j, c, row, chunk);
		else
			ht_fold_chunk(j, c, row, chunk);
		if (chunk == 0 && j->out_weights)
			ht_fold_weights(j, row);
	}
	if (j->folded)
		ht_count_folded(j, part);
}

EPF_DEV_FN void ht_fold(const struct ht_job *j)
{
	struct ht_chunks c = ht_chunks(j);
	uint64_t turns = (uint64_t)ht_longest_part(j, 1) * c.count * j->ranks; /* of a part */
	uint64_t all = turns * j->parts;

	for (uint64_t i = ht_warp(j); i < all; i += ht_warps(j)) {
		uint64_t n = i % turns;

		ht_fold_of(j, &c, (uint32_t)(i / turns),
			   (j->rank + 1u + (uint32_t)(n % j->ranks)) % j->ranks,
			   (uint32_t)(n / j->ranks));
	}
}

#endif
