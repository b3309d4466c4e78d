/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows grouped by expert: entries are numbered by expert; received rows are copied to the places of their entries; on the way back each received row becomes the
 * sum of its entries' rows. The kernels stay on this rank and wait for nobody. A row is read once and written once per entry, and the other way round.
 */
#ifndef EPF_KERNELS_HT_GROUP_CUH
#define EPF_KERNELS_HT_GROUP_CUH

#include "kernels/ht/epf_ht_combine.cuh"

/* ---- places: one block an expert ---- */

/* The entries that a warp of a block looks at: neighbours, so that the order within an expert is that of the rows. */
struct ht_run {
	uint32_t first;
	uint32_t end;
};

EPF_DEV_FN struct ht_run ht_run_of_warp(const struct ht_job *j)
{
	uint32_t n = j->tokens * j->topk, warps = j->threads / LL_LANES;
	uint32_t each = (n + warps - 1u) / warps;
	uint32_t first = epf_thread_in_block() / LL_LANES * each;
	struct ht_run r = { first < n ? first : n, first + each < n ? first + each : n };

	return r;
}

EPF_DEV_FN uint32_t ht_align_up(const struct ht_job *j, uint32_t rows)
{
	return (rows + j->align - 1u) / j->align * j->align;
}

/* Entries of a run from `at` on, HT_AHEAD a lane, whose loads are under way together; -1 behind its end. */
EPF_DEV_FN void ht_load_run(struct ht_run r, uint32_t at, const int64_t *entry, int64_t *e)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_AHEAD; i++) {
		uint32_t a = at + i * LL_LANES + epf_lane();

		e[i] = a < r.end ? entry[a] : -1;
	}
}

/* Counts all entries by expert in `tally`; returns how many of them this warp's run has for one. */
EPF_DEV_FN uint32_t ht_tally_run(const struct ht_job *j, struct ht_run r, uint32_t expert,
				 uint32_t *tally)
{
	const int64_t *entry = HT_AT(const int64_t, j->topk_idx);
	uint32_t mine = 0;

	for (uint32_t at = r.first; at < r.end; at += HT_AHEAD * LL_LANES) {
		int64_t e[HT_AHEAD];

		ht_load_run(r, at, entry, e);
		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++) {
			if (e[i] >= 0 && e[i] < (int64_t)j->local)
				epf_add32_block(&tally[e[i]], 1u);
			mine += epf_lanes_count(epf_lanes_where(e[i] == (int64_t)expert));
		}
	}
	return mine;
}

/* Numbers the entries of an expert from `next` on. The first expert's block also marks those of no expert. */
EPF_DEV_FN void ht_number_run(const struct ht_job *j, struct ht_run r, uint32_t expert,
			      uint32_t next)
{
	const int64_t *entry = HT_AT(const int64_t, j->topk_idx);

	for (uint32_t at = r.first; at < r.end; at += HT_AHEAD * LL_LANES) {
		int64_t e[HT_AHEAD];

		ht_load_run(r, at, entry, e);
		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++) {
			uint32_t a = at + i * LL_LANES + epf_lane();
			int is_mine = a < r.end && e[i] == (int64_t)expert;
			epf_lanes m = epf_lanes_where(is_mine);

			if (is_mine)
				HT_AT(int32_t, j->place)[a] = (int32_t)(next + epf_lanes_before(m));
			else if (expert == 0 && a < r.end &&
				 (e[i] < 0 || e[i] >= (int64_t)j->local))
				HT_AT(int32_t, j->place)[a] = -1;
			next += epf_lanes_count(m);
		}
	}
}

EPF_DEV_FN void ht_places_of(const struct ht_job *j, uint32_t expert)
{
	EPF_DEV_SHARED uint32_t tally[HT_LOCAL_MAX], before[HT_THREADS], begin;
	uint32_t me = epf_thread_in_block(), warp = me / LL_LANES, rows = 0, mine;
	struct ht_run run = ht_run_of_warp(j);

	epf_block_barrier();
	for (uint32_t e = me; e < j->local; e += j->threads)
		tally[e] = 0;
	if (me == 0)
		begin = 0;
	epf_block_barrier();
	mine = ht_tally_run(j, run, expert, tally);
	before[warp] = mine;
	epf_block_barrier();
	for (uint32_t e = me; e < expert; e += j->threads)
		rows += ht_align_up(j, tally[e]);
	if (rows)
		epf_add32_block(&begin, rows);
	epf_block_barrier();
	mine = begin;
	for (uint32_t w = 0; w < warp; w++)
		mine += before[w];
	if (j->place)
		ht_number_run(j, run, expert, mine);
	if (me == 0) {
		HT_AT(uint32_t, j->per_expert)[expert] = tally[expert];
		HT_AT(uint32_t, j->ends[0])[expert] = begin + tally[expert];
		HT_AT(uint32_t, j->ends[1])[expert] = begin + ht_align_up(j, tally[expert]);
	}
}

EPF_DEV_FN void ht_places(const struct ht_job *j)
{
	for (uint32_t e = epf_block_number(); e < j->local; e += j->blocks)
		ht_places_of(j, e);
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
