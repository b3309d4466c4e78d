/* SPDX-License-Identifier: Apache-2.0 */
/* A combine's rows on their way to those that add them: writing them in parts, and which parts have arrived. */
#ifndef EPF_KERNELS_HT_RETURN_CUH
#define EPF_KERNELS_HT_RETURN_CUH

#include "kernels/ht/epf_ht_dispatch.cuh"

/* Where part k of so many rows begins. */
EPF_DEV_FN uint32_t ht_part(const struct ht_job *j, uint32_t rows, uint32_t k)
{
	return (uint32_t)((uint64_t)rows * k / j->parts);
}

/* Chunks of part k of x: of the rows of all ranks, this one's with them. */
EPF_DEV_FN uint64_t ht_part_chunks(const struct ht_job *j, uint32_t k)
{
	uint32_t before = 0, rows = 0;

	for (uint32_t s = 0; s < j->ranks; s++) {
		uint32_t until = ht_rows_until(j, s, j->rank);

		rows += ht_part(j, until - before, k + 1u) - ht_part(j, until - before, k);
		before = until;
	}
	return (uint64_t)rows * ht_chunks(j).count;
}

/* Has the fold beside this combine made part k of x? A lane. */
EPF_DEV_FN int ht_is_folded(const struct ht_job *j, uint32_t k)
{
	const uint64_t *chunks = HT_AT(const uint64_t, j->folded) + k;

	if (epf_ld_relaxed_gpu(chunks) < ht_part_chunks(j, k))
		return 0;
	(void)epf_ld_acquire_gpu(chunks);
	return 1;
}

/* Waits for it: a fold waits for nobody, so this ends. A warp. */
EPF_DEV_FN void ht_wait_folded(const struct ht_job *j, uint32_t k)
{
	while (epf_lane() == 0 && !ht_is_folded(j, k))
		epf_pause();
	epf_warp_barrier();
}

/* One chunk of row `row` of x, to index `at` of a member's window. A warp. */
EPF_DEV_FN void ht_return_chunk(const struct ht_job *j, const struct ht_chunks *c, uint32_t row,
				uint32_t member, uint32_t at, uint32_t k)
{
	const struct ht_mark *m = &ht_marks()[member];
	uint64_t from = j->weights + (uint64_t)row * j->topk * 4u;
	uint64_t to = m->window + j->lay.weights + (uint64_t)at * j->topk * 4u;
	uint32_t lane = epf_lane(), weight = 0;
	struct ht_chunk p;

	if (k == 0 && lane < j->topk)
		weight = HT_AT(const uint32_t, from)[lane];
	ht_load(c, &p, k, j->x + (uint64_t)row * j->row_bytes);
	ht_store(c, &p, k, m->at + (uint64_t)at * j->row_bytes);
	if (k)
		return;
	if (lane < j->topk)
		HT_AT(uint32_t, to)[lane] = weight;
	for (uint32_t i = lane + LL_LANES; i < j->topk; i += LL_LANES)
		HT_AT(uint32_t, to)[i] = HT_AT(const uint32_t, from)[i];
}

/* How the rows of x are written: each part as rounds, each round as a group of chunks for each rank that has rows here. */
struct ht_rounds {
	uint32_t each;   /* chunks of a group */
	uint32_t ranks;  /* of a round */
	uint64_t groups; /* of a part */
};

/* Rows of x in the longest part of a rank: of any, or of those alone whose rows another rank adds. A warp. */
EPF_DEV_FN uint32_t ht_longest_part(const struct ht_job *j, int any)
{
	uint32_t most = 0, all = 0;

	for (uint32_t s = epf_lane(); s < j->ranks; s += LL_LANES) {
		uint32_t n = ht_rows_until(j, s, j->rank) - ht_rows_until(j, s - 1u, j->rank);

		most = n > most && (any || ht_via(j, s, j->node) != j->rank) ? n : most;
	}
	for (uint32_t i = 0; i < LL_LANES; i++) {
		uint32_t n = (uint32_t)epf_lanes_get(epf_lanes_where(1), most, i);

		all = n > all ? n : all;
	}
	return (all + j->parts - 1u) / j->parts;
}

/* All parts are as long as the longest one. A warp. */
EPF_DEV_FN struct ht_rounds ht_rounds_of(const struct ht_job *j, const struct ht_chunks *c)
{
	uint64_t chunks = (uint64_t)ht_longest_part(j, 0) * c->count;
	struct ht_rounds r;

	r.each = ht_group_chunks((uint64_t)j->received * c->count, j->writers);
	r.ranks = j->nodes == 1 && j->ranks > 1u ? j->ranks - 1u : j->ranks; /* not itself */
	r.groups = (chunks + r.each - 1u) / r.each * r.ranks;
	return r;
}

/* One group of chunks of a part, number `group` in it. The rows of some ranks end before those of others: their groups are empty. A warp. */
EPF_DEV_FN void ht_return_group(const struct ht_job *j, const struct ht_chunks *c,
				const struct ht_rounds *r, uint32_t part, uint32_t group)
{
	uint32_t round = group / r->ranks, s = (j->rank + 1u + group % r->ranks) % j->ranks;
	uint32_t adder = ht_via(j, s, j->node), member = ht_mate_index(j, adder);
	uint32_t first = ht_rows_until(j, s - 1u, j->rank);
	uint32_t rows = ht_rows_until(j, s, j->rank) - first, begin = ht_part(j, rows, part);
	uint32_t to = ht_part_first(j, s, ht_mate_index(j, j->rank)) + begin;
	uint32_t i = round * r->each, end = i + r->each, row = i / c->count, k = i % c->count;
	uint32_t items = (ht_part(j, rows, part + 1u) - begin) * c->count;

	first += begin;
	for (; i < items && i < end && adder != j->rank; i++) {
		if (first + row < j->received && to + row < ht_marks()[member].room)
			ht_return_chunk(j, c, first + row, member, to + row, k);
		if (++k == c->count) {
			k = 0;
			row++;
		}
	}
}

/*
 * Rows of x, to the ranks of this node that add them. The writing warps. They write to all ranks in turn, and each rank begins behind itself: were all to write
 * to the same rank at once, its link would bound them.
 */
EPF_DEV_FN void ht_return_rows(const struct ht_job *j, const struct ht_chunks *c)
{
	struct ht_rounds r = ht_rounds_of(j, c);
	struct ht_taken t = ht_take_first(j, j->writers, r.groups * j->parts);
	uint32_t part = 0, there = 0;
	uint64_t begin = 0; /* the part's first group */

	for (; t.group < t.groups; ht_take_next(&t)) {
		for (; t.group - begin >= r.groups; begin += r.groups)
			ht_pass_part(part++);
		if (j->folded && there <= part) {
			ht_wait_folded(j, part);
			there = part + 1u;
		}
		ht_return_group(j, c, &r, part, (uint32_t)(t.group - begin));
	}
	for (; part < j->parts; part++)
		ht_pass_part(part);
}

/* Part `part` of this block's rows is written: counts it, and the last block tells the ranks of this node. A warp. */
EPF_DEV_FN void ht_announce(const struct ht_job *j, uint64_t call, uint32_t part)
{
	if (ht_last_of_part(j, part))
		ht_tell_rows(j, call, part);
}

/*
 * Notes that so many parts of the rows of a member have arrived: the warps that add them see it. After the last one nobody waits, whatever place a handle names. A
 * lane of the clerk.
 */
EPF_DEV_FN void ht_note_arrived(const struct ht_job *j, struct ht_mark *m, uint32_t parts)
{
	m->parts = parts;
	epf_st32_release_block(&m->arrived,
			       parts < j->parts ? ht_part(j, m->rows, parts) : UINT32_MAX);
}

/* Notes what has arrived of the rows of a member, for this block. wait: until all has, or the deadline ends. */
EPF_DEV_FN void ht_note_parts(const struct ht_job *j, uint64_t call, uint32_t member, int wait)
{
	struct ht_mark *m = &ht_marks()[member];

	for (uint32_t part = m->parts; part < j->parts; part++) {
		const uint64_t *word = ht_word_at(j, j->control, HT_ROWS, m->rank, part);

		if (wait) {
			if (ht_wait_part(j, HT_ROWS, m->rank, part, call + 1u))
				part = j->parts - 1u; /* it is late: nobody waits for the rest */
		} else {
			if (epf_ld_relaxed_sys(word) < call + 1u)
				break;
			/* Only now: acquiring empties the first-level cache, where the small tables are. */
			(void)epf_ld_acquire_sys(word);
		}
		ht_note_arrived(j, m, part + 1u);
	}
}

/* The same of this rank's own rows, where a fold beside this combine makes them. */
EPF_DEV_FN void ht_note_folded(const struct ht_job *j, uint32_t member, int wait)
{
	struct ht_mark *m = &ht_marks()[member];

	for (uint32_t part = m->parts; part < j->parts; part++) {
		while (!ht_is_folded(j, part)) {
			if (!wait)
				return;
			epf_pause();
		}
		ht_note_arrived(j, m, part + 1u);
	}
}

EPF_DEV_FN void ht_note(const struct ht_job *j, uint64_t call, int wait)
{
	for (uint32_t m = epf_lane(); m < ht_mates(j); m += LL_LANES)
		if (j->folded && ht_marks()[m].rank == j->rank)
			ht_note_folded(j, m, wait);
		else
			ht_note_parts(j, call, m, wait);
	epf_warp_barrier();
}

/*
 * The clerk of a block: tells the ranks of this node which parts are written, and the warps that add which have arrived. One warp, so that a single
 * one polls.
 */
EPF_DEV_FN void ht_keep_parts(const struct ht_job *j, uint64_t call)
{
	uint32_t writers = (j->writers + j->blocks - 1u - epf_block_number()) / j->blocks;

	for (uint32_t part = 0; part < j->parts;) {
		int written =
			epf_lane() == 0 && epf_ld32_acquire_block(&ht_written()[part]) >= writers;

		if (epf_warp_result(written))
			ht_announce(j, call, part++);
		else
			epf_pause();
		ht_note(j, call, 0);
	}
	ht_note(j, call, 1);
	if (epf_lane() == 0)
		ht_phase(j, EPF_WHY_MOVE);
}

#endif
