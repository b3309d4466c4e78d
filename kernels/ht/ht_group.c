/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for rows grouped by expert: checks the arguments and launches a kernel. Allocates nothing. */
#include "kernels/ht/ht.h"

#include <errno.h>

static int check_entries(uint32_t rows, uint32_t topk)
{
	if (topk > EPF_HT_TOPK_MAX)
		return ll_fail(-EINVAL, "top-k is %u: at most %u are possible", topk,
			       EPF_HT_TOPK_MAX);
	if (topk && rows > INT32_MAX / topk)
		return ll_fail(-EINVAL, "%u rows have more than 2^31 entries: give fewer", rows);
	return 0;
}

static int check_rows(const char *name, const void *at, uint32_t rows)
{
	return (at || !rows) && (uintptr_t)at % HT_VEC == 0
		       ? 0
		       : ll_fail(-EINVAL, "%s is %p: an address is needed, a multiple of %u", name,
				 at, HT_VEC);
}

/* ---- numbers ---- */

/* As many as have an entry for each thread of a block. */
static uint32_t parts_of(uint32_t entries, uint32_t threads)
{
	uint32_t parts = entries / threads + (entries % threads != 0);

	return parts < 1 ? 1 : parts > EPF_HT_NUMBER_PARTS ? EPF_HT_NUMBER_PARTS : parts;
}

int epf_ht_number(struct epf_ht *ht, const struct epf_ht_number *n, void *stream)
{
	struct ht_job j = { .threads = ht->threads };
	int err = ht_check_size("numbers", n->size, sizeof(*n));

	if (!err)
		err = check_entries(n->tokens, n->topk);
	if (!err && n->tokens && n->topk && (!n->topk_idx || !n->work || !n->numbers))
		err = ll_fail(-EINVAL, "topk_idx, work and numbers are needed");
	if (err || !n->tokens || !n->topk)
		return err;
	j.parts = parts_of(n->tokens * n->topk, ht->threads);
	j.blocks = j.parts;
	j.scratch = (uintptr_t)n->work;
	j.tokens = n->tokens;
	j.topk = n->topk;
	j.topk_idx = (uintptr_t)n->topk_idx;
	j.numbers = (uintptr_t)n->numbers;
	/* As many experts at a time as a block has counters for. */
	for (uint32_t first = 0; first < n->experts && !err; first += EPF_HT_LOCAL_MAX) {
		uint32_t left = n->experts - first;

		j.first_expert = first;
		j.local = left < EPF_HT_LOCAL_MAX ? left : EPF_HT_LOCAL_MAX;
		err = ht_launch(ht, HT_K_TALLY, &j, stream);
		if (!err)
			err = ht_launch(ht, HT_K_NUMBER, &j, stream);
	}
	return err;
}

/* ---- groups, spread and fold ---- */

static int check_local(uint32_t experts)
{
	return experts && experts <= EPF_HT_LOCAL_MAX
		       ? 0
		       : ll_fail(-EINVAL, "a rank has %u experts: 1 to %u are possible", experts,
				 EPF_HT_LOCAL_MAX);
}

int epf_ht_groups(struct epf_ht *ht, const struct epf_ht_groups *g, void *stream)
{
	struct ht_job j = ht_job_begin(ht);
	int err = ht_check_size("groups", g->size, sizeof(*g));

	if (!err)
		err = check_local(g->experts);
	if (!err && (!g->starts || !g->counts || !g->ends || !g->aligned))
		err = ll_fail(-EINVAL, "starts, counts, ends and aligned are needed");
	if (err)
		return err;
	j.blocks = 1;
	j.local = g->experts;
	j.align = g->align ? g->align : 1;
	j.starts = (uintptr_t)g->starts;
	j.per_expert = (uintptr_t)g->counts;
	j.ends[0] = (uintptr_t)g->ends;
	j.ends[1] = (uintptr_t)g->aligned;
	return ht_launch(ht, HT_K_GROUPS, &j, stream);
}

static int check_spread(const struct epf_ht_spread *s)
{
	int err = ht_check_size("a spread", s->size, sizeof(*s));

	if (!err)
		err = ht_check_row(s->row.bytes);
	if (!err)
		err = check_entries(s->rows, s->row.topk);
	if (!err)
		err = check_local(s->local);
	if (!err && (!s->matrix || !s->ends || !s->aligned))
		err = ll_fail(-EINVAL, "matrix, ends and aligned are needed");
	if (!err && s->tokens && s->row.topk && (!s->place || !s->topk_idx))
		err = ll_fail(-EINVAL, "place and topk_idx are needed");
	if (!err && s->tokens && s->row.topk && s->starts && !s->numbers)
		err = ll_fail(-EINVAL, "starts are given, and numbers are missing");
	if (!err)
		err = check_rows("x", s->x, s->tokens);
	if (!err && s->tokens && s->row.scale_words && !s->scales)
		err = ll_fail(-EINVAL, "rows have %u scales, and scales are missing",
			      s->row.scale_words);
	if (!err && s->tokens && s->out_weights && !s->weights)
		err = ll_fail(-EINVAL, "out_weights are given, and weights are missing");
	if (!err && s->rows && s->row.topk && !s->slots)
		err = ll_fail(-EINVAL, "slots are missing");
	if (!err)
		err = check_rows("out", s->out, s->grouped);
	if (!err && s->grouped && s->row.scale_words && !s->out_scales)
		err = ll_fail(-EINVAL, "rows have %u scales, and out_scales are missing",
			      s->row.scale_words);
	return err;
}

int epf_ht_spread(struct epf_ht *ht, const struct epf_ht_spread *s, void *stream)
{
	struct ht_job j = ht_job_begin(ht);
	struct epf_ht_row row = s->row;
	int err = check_spread(s);

	if (err)
		return err;
	j.numbered = s->starts ? 1 + row.topk : 0;
	row.scale_words += j.numbered;
	/* The rest is for the dispatch, which a spread beside it must not keep from running. */
	j.blocks = s->blocks ? s->blocks : (2 * ht->blocks + 2) / 3;
	j.blocks = j.blocks < ht->blocks ? j.blocks : ht->blocks;
	j.lay = ht_layout_of(&row, s->room);
	j.tokens = s->tokens;
	j.received = s->rows;
	j.groups = s->grouped;
	j.first_number = s->first_number;
	j.room = s->room;
	j.local = s->local;
	j.topk = row.topk;
	j.row_bytes = row.bytes;
	j.scale_words = row.scale_words;
	j.zero = s->flags & EPF_HT_ZERO;
	j.if_it_fits = s->flags & EPF_HT_IF_IT_FITS;
	j.matrix = (uintptr_t)s->matrix;
	j.starts = (uintptr_t)s->starts;
	j.ends[0] = (uintptr_t)s->ends;
	j.ends[1] = (uintptr_t)s->aligned;
	j.slots = (uintptr_t)s->slots;
	j.place = (uintptr_t)s->place;
	j.x = (uintptr_t)s->x;
	j.scales = (uintptr_t)s->scales;
	j.scale_stride[0] = s->scale_stride[0];
	j.scale_stride[1] = s->scale_stride[1];
	j.topk_idx = (uintptr_t)s->topk_idx;
	j.weights = (uintptr_t)s->weights;
	j.numbers = (uintptr_t)s->numbers;
	j.out = (uintptr_t)s->out;
	j.out_scales = (uintptr_t)s->out_scales;
	j.out_stride[0] = s->out_stride[0];
	j.out_stride[1] = s->out_stride[1];
	j.out_numbers = s->starts ? (uintptr_t)s->out_numbers : 0;
	j.out_weights = (uintptr_t)s->out_weights;
	ht->spread_due = 0;
	return ht_launch(ht, HT_K_SPREAD, &j, stream);
}

int epf_ht_fold(struct epf_ht *ht, const struct epf_ht_fold *f, void *stream)
{
	struct ht_job j = ht_job_begin(ht);
	int err = ht_check_size("a fold", f->size, sizeof(*f));

	if (!err)
		err = ht_check_row(f->row_bytes);
	if (!err)
		err = check_entries(f->rows, f->topk);
	if (!err && f->rows && f->topk && !f->slots)
		err = ll_fail(-EINVAL, "slots are missing");
	if (!err)
		err = check_rows("x", f->x, f->rows ? f->grouped : 0);
	if (!err)
		err = check_rows("out", f->out, f->rows);
	if (!err && f->weights && !f->out_weights)
		err = ll_fail(-EINVAL, "weights are given, and out_weights are missing");
	if (!err && !f->matrix)
		err = ll_fail(-EINVAL, "matrix is missing");
	if (err || !f->rows)
		return err;
	j.blocks = f->blocks && f->blocks < ht->blocks ? f->blocks : ht->blocks;
	j.parts = f->folded ? ht_parts_of(ht, f->room) : 1;
	j.folded = (uintptr_t)f->folded;
	j.matrix = (uintptr_t)f->matrix;
	j.tokens = f->rows;
	j.groups = f->grouped;
	j.topk = f->topk;
	j.row_bytes = f->row_bytes;
	j.slots = (uintptr_t)f->slots;
	j.x = (uintptr_t)f->x;
	j.out = (uintptr_t)f->out;
	j.weights = (uintptr_t)f->weights;
	j.out_weights = (uintptr_t)f->out_weights;
	return ht_launch(ht, HT_K_FOLD, &j, stream);
}
