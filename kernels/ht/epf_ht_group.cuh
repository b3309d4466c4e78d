/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows grouped by expert: entries are numbered by expert; received rows are copied to the places of their entries; on the way back each received row becomes the
 * sum of its entries' rows. The kernels stay on this rank and wait for nobody. A row is read once and written once per entry, and the other way round.
 */
#ifndef EPF_KERNELS_HT_GROUP_CUH
#define EPF_KERNELS_HT_GROUP_CUH

#include "kernels/ht/epf_ht_combine.cuh"

/* ---- places: entries are shared out among blocks in parts of neighbours; a kernel that counts, and one that numbers ---- */

struct ht_run {
	uint32_t first;
	uint32_t end;
};

EPF_DEV_FN struct ht_run ht_entries_of_part(const struct ht_job *j, uint32_t part)
{
	uint32_t n = j->tokens * j->topk, each = (n + j->parts - 1u) / j->parts;
	uint32_t first = part * each;
	struct ht_run r = { first < n ? first : n, first + each < n ? first + each : n };

	return r;
}

/* The expert of an entry, or j->local: none. */
EPF_DEV_FN uint32_t ht_expert_of(const struct ht_job *j, struct ht_run r, uint32_t at)
{
	uint64_t e = at < r.end ? (uint64_t)HT_AT(const int64_t, j->topk_idx)[at] : UINT64_MAX;

	return e < j->local ? (uint32_t)e : j->local;
}

/* Entries of each expert in a part: [local]. */
EPF_DEV_FN uint32_t *ht_tally_of(const struct ht_job *j, uint32_t part)
{
	return HT_AT(uint32_t, j->scratch) + (uint64_t)part * j->local;
}

/* Counts the entries of each expert in each part. A block for each part. */
EPF_DEV_FN void ht_tally(const struct ht_job *j)
{
	struct ht_run r = ht_entries_of_part(j, epf_block_number());
	uint32_t *tally = ht_entries();

	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		tally[e] = 0;
	epf_block_barrier();
	for (uint32_t at = r.first; at < r.end; at += HT_AHEAD * j->threads) {
		uint32_t e[HT_AHEAD];

		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++)
			e[i] = ht_expert_of(j, r, at + i * j->threads + epf_thread_in_block());
		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++)
			if (e[i] < j->local)
				epf_add32_block(&tally[e[i]], 1u);
	}
	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		ht_tally_of(j, epf_block_number())[e] = tally[e];
}

EPF_DEV_FN uint32_t ht_align_up(const struct ht_job *j, uint32_t rows)
{
	return (rows + j->align - 1u) / j->align * j->align;
}

/* Entries of an expert; in *before those in the parts in front of one. */
EPF_DEV_FN uint32_t ht_sum_tally(const struct ht_job *j, uint32_t expert, uint32_t part,
				 uint32_t *before)
{
	uint32_t sum = 0;

	*before = 0;
	for (uint32_t first = 0; first < j->parts; first += HT_AHEAD) {
		uint32_t n[HT_AHEAD];

		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++)
			n[i] = first + i < j->parts ? ht_tally_of(j, first + i)[expert] : 0;
		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++) {
			*before += first + i < part ? n[i] : 0;
			sum += n[i];
		}
	}
	return sum;
}

/* The grouped row of the first entry that a part has of each expert, in next[local]. The first part's block gives the numbers of the groups. */
EPF_DEV_FN void ht_begin_part(const struct ht_job *j, uint32_t part, uint32_t *next)
{
	uint32_t *rows = ht_entries();

	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads) {
		uint32_t all = ht_sum_tally(j, e, part, &next[e]);

		rows[e] = ht_align_up(j, all);
		if (part == 0)
			HT_AT(uint32_t, j->per_expert)[e] = all;
	}
	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads) {
		uint32_t begin = 0;

		for (uint32_t i = 0; i < e; i++)
			begin += rows[i];
		next[e] += begin;
		if (part != 0)
			continue;
		HT_AT(uint32_t, j->ends[0])[e] = begin + HT_AT(uint32_t, j->per_expert)[e];
		HT_AT(uint32_t, j->ends[1])[e] = begin + rows[e];
	}
	epf_block_barrier();
}

/* The lanes whose entries are of the same expert as this one's. */
EPF_DEV_FN epf_lanes ht_alike(uint32_t expert)
{
	epf_lanes all = epf_lanes_where(1), mine = 0;

	for (uint32_t i = 0; i < LL_LANES; i++) {
		epf_lanes m = epf_lanes_where((uint32_t)epf_lanes_get(all, expert, i) == expert);

		mine = i == epf_lane() ? m : mine;
	}
	return mine;
}

/* Numbers the entries of a part, in their order: warps take turns. */
EPF_DEV_FN void ht_number_part(const struct ht_job *j, struct ht_run r, uint32_t *next)
{
	uint32_t warp = epf_thread_in_block() / LL_LANES, warps = j->threads / LL_LANES;

	for (uint32_t first = r.first; first < r.end; first += j->threads) {
		uint32_t at = first + epf_thread_in_block(), e = ht_expert_of(j, r, at), slot = 0;
		epf_lanes alike = ht_alike(e);

		for (uint32_t w = 0; w < warps; w++) {
			if (w == warp && e < j->local)
				slot = next[e] + epf_lanes_before(alike);
			epf_warp_barrier();
			if (w == warp && e < j->local && epf_lanes_before(alike) == 0)
				next[e] += epf_lanes_count(alike);
			epf_block_barrier();
		}
		if (at < r.end)
			HT_AT(int32_t, j->place)[at] = e < j->local ? (int32_t)slot : -1;
	}
}

EPF_DEV_FN void ht_places(const struct ht_job *j)
{
	EPF_DEV_SHARED uint32_t next[HT_LOCAL_MAX];
	uint32_t part = epf_block_number();

	ht_begin_part(j, part, next);
	if (j->place)
		ht_number_part(j, ht_entries_of_part(j, part), next);
}

/* ---- spread and fold ---- */

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
