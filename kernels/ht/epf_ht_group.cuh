/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows grouped by expert. The sender numbers the entries of its tokens by expert, and the numbers travel with the rows, which a grouped dispatch leaves in the
 * window. A spread, which runs beside it on other multiprocessors, copies each row to the places of its entries as soon as the row is there: place = where the
 * entries of that sender and expert begin + the entry's number. A row is read once and written once per entry; on the way back, where each received row becomes
 * the sum of its entries' rows, the other way round. What a spread waits for is set by the dispatch, whose waits end by their deadlines.
 */
#ifndef EPF_KERNELS_HT_GROUP_CUH
#define EPF_KERNELS_HT_GROUP_CUH

#include "kernels/ht/epf_ht_combine.cuh"

/* ---- numbers: entries are shared out among blocks in parts of neighbours; a kernel that counts, and one that numbers ---- */

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

/* Which of the experts an entry is of, or j->local: none. */
EPF_DEV_FN uint32_t ht_expert_of(const struct ht_job *j, struct ht_run r, uint32_t at)
{
	uint64_t e = at < r.end ? (uint64_t)HT_AT(const int64_t, j->topk_idx)[at] : UINT64_MAX;

	e -= j->first_expert;
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

/* Entries of an expert in the parts in front of one. */
EPF_DEV_FN uint32_t ht_sum_tally(const struct ht_job *j, uint32_t expert, uint32_t part)
{
	uint32_t before = 0;

	for (uint32_t first = 0; first < part; first += HT_AHEAD) {
		uint32_t n[HT_AHEAD];

		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++)
			n[i] = first + i < part ? ht_tally_of(j, first + i)[expert] : 0;
		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++)
			before += n[i];
	}
	return before;
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
		if (e < j->local)
			HT_AT(uint32_t, j->numbers)[at] = slot;
	}
}

EPF_DEV_FN void ht_number(const struct ht_job *j)
{
	uint32_t *next = ht_entries(), part = epf_block_number();

	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		next[e] = ht_sum_tally(j, e, part);
	epf_block_barrier();
	ht_number_part(j, ht_entries_of_part(j, part), next);
}

/* ---- groups: where they lie, from what the last exchange of counts has brought ---- */

EPF_DEV_FN uint32_t ht_align_up(const struct ht_job *j, uint32_t rows)
{
	return (rows + j->align - 1u) / j->align * j->align;
}

/* One block. */
EPF_DEV_FN void ht_groups(const struct ht_job *j)
{
	uint64_t call = epf_ld_relaxed_gpu(&ht_state_of(j)->counted) - 1u;
	uint32_t *starts = HT_AT(uint32_t, j->starts), *entries = ht_entries();

	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads) {
		uint32_t sum = 0;

		for (uint32_t s = 0; s < j->ranks; s++) {
			starts[s * j->local + e] = sum;
			sum += ht_count(j, call, s, ht_counts_experts(j) + e);
		}
		entries[e] = sum;
	}
	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads) {
		uint32_t begin = 0;

		for (uint32_t i = 0; i < e; i++)
			begin += ht_align_up(j, entries[i]);
		for (uint32_t s = 0; s < j->ranks; s++)
			starts[s * j->local + e] += begin;
		HT_AT(uint32_t, j->per_expert)[e] = entries[e];
		HT_AT(uint32_t, j->ends[0])[e] = begin + entries[e];
		HT_AT(uint32_t, j->ends[1])[e] = begin + ht_align_up(j, entries[e]);
	}
}

/* ---- spread: what has arrived ---- */

#define HT_STRIPES \
 16u /* in which the rows of all ranks are copied, so that those of one are not waited for while others are there */
#define HT_STRIPE_RANKS 64u /* more of them are copied one after the other */

/* Rows of each member of this node that are in the window; behind them, those of ranks of other nodes. Until then 0, when all are there UINT32_MAX. */
EPF_DEV_FN uint32_t *ht_arrived(void)
{
	EPF_DEV_SHARED uint32_t arrived[HT_NODE_MAX + 1u];

	return arrived;
}

/* Looks for rows of a member that have arrived. Returns whether it may send more. */
EPF_DEV_FN int ht_look_for_rows(const struct ht_job *j, uint64_t grouped, uint32_t member)
{
	uint32_t rank = ht_mate(j, member), *arrived = &ht_arrived()[member];
	const uint64_t *word = ht_word_at(j, j->control, HT_READY, rank, HT_READY_SO_FAR);
	uint64_t seen = epf_ld_relaxed_sys(word);
	uint32_t all = ht_rows_until(j, rank, j->rank) - ht_rows_until(j, rank - 1u, j->rank);

	if (seen >> 32 != grouped + 1u)
		return 1;
	if ((uint32_t)seen > *arrived) {
		(void)epf_ld_acquire_sys(word);
		epf_st32_release_block(arrived, (uint32_t)seen);
	}
	return (uint32_t)seen < all;
}

/* Says what has arrived, until all has or the dispatch has ended. The warp of a block that copies nothing until then. */
EPF_DEV_FN void ht_watch(const struct ht_job *j, uint64_t grouped)
{
	const uint64_t *ended = &ht_state_of(j)->ended;
	int is_over = 0;

	while (!is_over) {
		int more = j->nodes > 1;

		/* As above: acquiring empties the first-level cache. */
		is_over = epf_warp_result(epf_lane() == 0 &&
					  epf_ld_relaxed_gpu(ended) >= grouped + 1u &&
					  epf_ld_acquire_gpu(ended) >= grouped + 1u);
		for (uint32_t m = epf_lane(); m < ht_mates(j); m += LL_LANES)
			more |= ht_look_for_rows(j, grouped, m);
		if (!epf_lanes_where(more))
			break;
		epf_pause();
	}
	epf_warp_barrier();
	for (uint32_t m = epf_lane(); m < ht_mates(j) + 1u; m += LL_LANES)
		if (is_over || m < ht_mates(j))
			epf_st32_release_block(&ht_arrived()[m], UINT32_MAX);
}

/* Waits until row number `row` of a rank has arrived. A warp. */
EPF_DEV_FN void ht_wait_arrived(const struct ht_job *j, uint32_t rank, uint32_t row)
{
	uint32_t at = ht_is_mate(j, rank) ? ht_mate_index(j, rank) : ht_mates(j);

	while (epf_ld32_acquire_block(&ht_arrived()[at]) <= row)
		epf_pause();
}

/* ---- spread: copying it ---- */

/* The grouped row of entry k of a row, or UINT32_MAX. */
EPF_DEV_FN uint32_t ht_slot(const struct ht_job *j, uint32_t row, uint32_t k)
{
	int32_t slot = HT_AT(const int32_t, j->slots)[(uint64_t)row * j->topk + k];

	return slot < 0 || (uint32_t)slot >= j->groups ? UINT32_MAX : (uint32_t)slot;
}

/* A row that is copied: where it lies, with what belongs to it. */
struct ht_given {
	uint64_t at;
	struct ht_extras
		e; /* index: of this rank's tokens int64, of all experts; in the window int32, of this rank's */
	uint32_t row; /* its number among those received */
	uint32_t source;
};

/* Of a token of this rank. */
EPF_DEV_FN struct ht_given ht_given_own(const struct ht_job *j, uint32_t token, uint32_t row)
{
	struct ht_given g;

	g.at = j->x + (uint64_t)token * j->row_bytes;
	g.e = ht_extras_of(j, token);
	g.row = row;
	g.source = j->rank;
	return g;
}

/* In the window. */
EPF_DEV_FN struct ht_given ht_given_in(const struct ht_job *j, uint32_t source, uint32_t row)
{
	uint64_t window = ht_window(j);
	struct ht_given g;

	g.at = window + j->lay.rows + (uint64_t)row * j->row_bytes;
	g.e.scales = window + j->lay.scales + (uint64_t)row * j->scale_words * 4u;
	g.e.stride = 1;
	g.e.index = window + j->lay.index + (uint64_t)row * j->topk * 4u;
	g.e.weights = window + j->lay.weights + (uint64_t)row * j->topk * 4u;
	g.e.words = j->scale_words - j->numbered;
	g.e.entries = g.e.scales + (g.e.words + 1u) * 4u;
	g.e.number = j->numbered ? HT_AT(const uint32_t, g.e.scales)[g.e.words] : 0;
	g.row = row;
	g.source = source;
	return g;
}

/* Where entry k goes, or UINT32_MAX; notes it, if it was not known. */
EPF_DEV_FN uint32_t ht_slot_of(const struct ht_job *j, const struct ht_given *g, uint32_t k,
			       int note)
{
	uint32_t slot = UINT32_MAX;
	int64_t expert;

	if (!j->starts)
		return ht_slot(j, g->row, k);
	expert = g->source == j->rank
			 ? HT_AT(const int64_t, g->e.index)[k] - (int64_t)j->rank * j->local
			 : HT_AT(const int32_t, g->e.index)[k];
	if (expert >= 0 && expert < (int64_t)j->local)
		slot = HT_AT(const uint32_t, j->starts)[g->source * j->local + (uint32_t)expert] +
		       HT_AT(const uint32_t, g->e.entries)[k];
	if (slot >= j->groups)
		slot = UINT32_MAX;
	if (note)
		HT_AT(uint32_t, j->slots)[(uint64_t)g->row * j->topk + k] = slot;
	return slot;
}

/* Words of a row's scales that a lane reads once for all its grouped rows. */
#define HT_HELD 2u

/* Scales, and the weight of its entry, to a grouped row. A warp. */
EPF_DEV_FN void ht_spread_extras(const struct ht_job *j, const struct ht_given *g,
				 const uint32_t held[HT_HELD], uint32_t weight, uint32_t slot)
{
	LL_UNROLL
	for (uint32_t n = 0; n < HT_HELD; n++) {
		uint32_t i = n * LL_LANES + epf_lane();

		if (i < g->e.words)
			HT_AT(uint32_t, j->out_scales)
		[slot * j->out_stride[0] + i * j->out_stride[1]] = held[n];
	}
	for (uint32_t i = HT_HELD * LL_LANES + epf_lane(); i < g->e.words; i += LL_LANES)
		HT_AT(uint32_t, j->out_scales)
	[slot * j->out_stride[0] + i * j->out_stride[1]] = ht_extra_word(&g->e, i);
	if (epf_lane() == 0 && j->out_weights)
		HT_AT(uint32_t, j->out_weights)[slot] = weight;
}

/* One chunk of a row, to the grouped rows of its entries. A warp. */
EPF_DEV_FN void ht_spread_chunk(const struct ht_job *j, const struct ht_chunks *c,
				const struct ht_given *g, uint32_t chunk)
{
	uint32_t held[HT_HELD] = { 0 };
	epf_lanes all = epf_lanes_where(1), to;
	struct ht_chunk p;

	ht_load(c, &p, chunk, g->at);
	LL_UNROLL
	for (uint32_t n = 0; n < HT_HELD; n++)
		if (chunk == 0 && n * LL_LANES + epf_lane() < g->e.words)
			held[n] = ht_extra_word(&g->e, n * LL_LANES + epf_lane());
	for (uint32_t first = 0; first < j->topk; first += LL_LANES) {
		uint32_t k = first + epf_lane(), weight = 0;
		uint32_t slot = k < j->topk ? ht_slot_of(j, g, k, chunk == 0) : UINT32_MAX;

		if (chunk == 0 && j->out_weights && k < j->topk)
			weight = HT_AT(const uint32_t, g->e.weights)[k];
		for (to = epf_lanes_where(slot != UINT32_MAX); to; to &= to - 1u) {
			uint32_t lane = epf_lanes_first(to);
			uint32_t at = (uint32_t)epf_lanes_get(all, slot, lane);

			ht_store_once(c, &p, chunk, j->out + (uint64_t)at * j->row_bytes);
			if (chunk == 0)
				ht_spread_extras(j, g, held,
						 (uint32_t)epf_lanes_get(all, weight, lane), at);
		}
	}
	if (chunk == 0 && epf_lane() == 0 && j->out_numbers)
		HT_AT(uint32_t, j->out_numbers)[g->row] = g->e.number;
}

/* Received rows of a source. */
struct ht_source {
	uint32_t first;
	uint32_t rows;
};

/* Of the first HT_STRIPE_RANKS sources, in shared memory: a warp looks at them many times, and acquiring empties the cache that the matrix would be in. */
EPF_DEV_FN struct ht_source *ht_sources(void)
{
	EPF_DEV_SHARED struct ht_source sources[HT_STRIPE_RANKS];

	return sources;
}

EPF_DEV_FN struct ht_source ht_source_in(const struct ht_job *j, uint32_t source)
{
	struct ht_source r = { ht_rows_until(j, source - 1u, j->rank), 0 };

	r.rows = ht_rows_until(j, source, j->rank) - r.first;
	return r;
}

EPF_DEV_FN struct ht_source ht_source_of(const struct ht_job *j, uint32_t source)
{
	return source < HT_STRIPE_RANKS ? ht_sources()[source] : ht_source_in(j, source);
}

/* Number `n` of a source whose rows begin at `first`, of this rank's tokens one that may have no row. Waits until it is there. A warp. */
EPF_DEV_FN void ht_spread_number(const struct ht_job *j, const struct ht_chunks *c, uint32_t source,
				 uint32_t first, uint32_t n, uint32_t chunk)
{
	struct ht_given g;

	if (source == j->rank) {
		int32_t place = HT_AT(const int32_t, j->place)[(uint64_t)n * j->ranks + source];

		if (place < 0 || first + (uint32_t)place >= j->received)
			return;
		g = ht_given_own(j, n, first + (uint32_t)place);
	} else {
		if (first + n >= j->received || first + n >= j->room)
			return;
		ht_wait_arrived(j, source, n);
		g = ht_given_in(j, source, first + n);
	}
	ht_spread_chunk(j, c, &g, chunk);
}

/* Rows that are copied, shared out among so many warps as if all were one list. */
struct ht_spreading {
	struct ht_chunks c;
	uint32_t warps;
	uint32_t next; /* the item of the rows that follow which is this warp's first one */
};

/* Numbers [begin, end) of a source. A warp. */
EPF_DEV_FN void ht_spread_source(const struct ht_job *j, struct ht_spreading *w, uint32_t source,
				 uint32_t first, uint32_t begin, uint32_t end)
{
	uint64_t items = (uint64_t)(end - begin) * w->c.count, n = w->next;

	for (; n < items; n += w->warps)
		ht_spread_number(j, &w->c, source, first, begin + (uint32_t)(n / w->c.count),
				 (uint32_t)(n % w->c.count));
	w->next = (uint32_t)(n - items);
}

/* The warps that copy: the first `warps` of each block. This rank's rows come first, while the first ones of the others are on their way. */
EPF_DEV_FN void ht_spread_rows(const struct ht_job *j, uint32_t warps)
{
	struct ht_spreading w = { ht_chunks(j), warps * j->blocks, ht_warp(j) };
	uint32_t stripes = j->ranks > HT_STRIPE_RANKS ? 1u : HT_STRIPES;

	ht_spread_source(j, &w, j->rank, ht_source_of(j, j->rank).first, 0, j->tokens);
	for (uint32_t stripe = 0; stripe < stripes; stripe++)
		for (uint32_t i = 1; i < j->ranks; i++) {
			uint32_t s = (j->rank + i) % j->ranks;
			struct ht_source r = ht_source_of(j, s);

			ht_spread_source(j, &w, s, r.first,
					 (uint32_t)((uint64_t)r.rows * stripe / stripes),
					 (uint32_t)((uint64_t)r.rows * (stripe + 1u) / stripes));
		}
}

/* A grouped row that no entry has. A warp. */
EPF_DEV_FN void ht_clear_row(const struct ht_job *j, uint64_t slot)
{
	struct ll_vec none = { { 0, 0, 0, 0 } };

	if (epf_lane() == 0 && j->out_weights)
		HT_AT(uint32_t, j->out_weights)[slot] = 0;
	for (uint32_t i = epf_lane(); j->zero && i < j->row_bytes / HT_VEC; i += LL_LANES)
		HT_AT(struct ll_vec, j->out + slot * j->row_bytes)[i] = none;
	for (uint32_t i = epf_lane(); j->zero && i < j->scale_words - j->numbered; i += LL_LANES)
		HT_AT(uint32_t, j->out_scales)
	[slot * j->out_stride[0] + i * j->out_stride[1]] = 0;
}

/* What no row comes to: grouped rows between groups, and received rows behind the last one, which have no places. */
EPF_DEV_FN void ht_spread_nothing(const struct ht_job *j)
{
	uint32_t rows = ht_rows_until(j, j->ranks - 1u, j->rank);

	for (uint32_t e = ht_warp(j); e < j->local; e += ht_warps(j)) {
		uint32_t end = HT_AT(const uint32_t, j->ends[1])[e];

		for (uint32_t i = HT_AT(const uint32_t, j->ends[0])[e]; i < end && i < j->groups;
		     i++)
			ht_clear_row(j, i);
	}
	for (uint64_t i = HT_AT(const uint32_t, j->ends[1])[j->local - 1u] + (uint64_t)ht_warp(j);
	     i < j->groups; i += ht_warps(j))
		ht_clear_row(j, i);
	for (uint64_t i = (uint64_t)rows * j->topk + ht_warp(j) * LL_LANES + epf_lane();
	     j->starts && i < (uint64_t)j->received * j->topk;
	     i += (uint64_t)ht_warps(j) * LL_LANES)
		HT_AT(int32_t, j->slots)[i] = -1;
}

/* Do the rows of a dispatch move that was launched before their number was known, and are the outputs long enough that this rank has guessed? */
EPF_DEV_FN int ht_spread_fits(const struct ht_job *j)
{
	return epf_ld_relaxed_gpu(&ht_state_of(j)->fits) &&
	       ht_rows_until(j, j->ranks - 1u, j->rank) <= j->received &&
	       HT_AT(const uint32_t, j->ends[1])[j->local - 1u] <= j->groups;
}

EPF_DEV_FN void ht_spread(const struct ht_job *j)
{
	uint32_t warps = j->threads / LL_LANES, warp = epf_thread_in_block() / LL_LANES;
	uint64_t grouped = ht_grouped(j);

	if (j->if_it_fits && !ht_spread_fits(j))
		return;
	for (uint32_t m = epf_thread_in_block(); m < ht_mates(j) + 1u; m += j->threads)
		ht_arrived()[m] = 0;
	if (epf_thread_in_block() == 0)
		ht_marks()[ht_mate_index(j, j->rank)].window = ht_peer_of(j, j->rank)->window;
	for (uint32_t s = epf_thread_in_block(); s < j->ranks && s < HT_STRIPE_RANKS;
	     s += j->threads)
		ht_sources()[s] = ht_source_in(j, s);
	epf_block_barrier();
	ht_spread_nothing(j); /* while the first rows are on their way */
	if (warp == warps - 1u)
		ht_watch(j, grouped);
	warps -= warps > 1u;
	if (warp < warps)
		ht_spread_rows(j, warps);
	if (ht_last_of(&ht_state_of(j)->copied, j->blocks, 0) && epf_thread_in_block() == 0)
		epf_st_relaxed_gpu(&ht_state_of(j)->grouped, grouped + 1u);
}

#endif
