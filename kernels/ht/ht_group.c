/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for rows grouped by expert: checks the arguments and launches a kernel. Allocates nothing. */
#include "kernels/ht/ht.h"

#include <errno.h>

static int check(const struct epf_ht_group *g)
{
	if (g->size != sizeof(*g))
		return ll_fail(-EINVAL, "size of a group is %zu, this library knows %zu", g->size,
			       sizeof(*g));
	if (!g->row_bytes || g->row_bytes % HT_VEC)
		return ll_fail(-EINVAL, "a row has %u bytes: a positive multiple of %u is needed",
			       g->row_bytes, HT_VEC);
	if (g->topk > EPF_HT_TOPK_MAX)
		return ll_fail(-EINVAL, "top-k is %u: at most %u are possible", g->topk,
			       EPF_HT_TOPK_MAX);
	if (g->rows && g->topk && !g->slots)
		return ll_fail(-EINVAL, "slots are missing");
	if ((uintptr_t)g->x % HT_VEC || (uintptr_t)g->out % HT_VEC ||
	    (g->rows && g->grouped && (!g->x || !g->out)))
		return ll_fail(-EINVAL,
			       "x is %p and out %p: addresses that are multiples of %u are needed",
			       g->x, g->out, HT_VEC);
	if (g->scale_words && (!g->scales || !g->out_scales))
		return ll_fail(-EINVAL, "rows have %u scales: scales and out_scales are needed",
			       g->scale_words);
	if (g->weights && !g->out_weights)
		return ll_fail(-EINVAL, "weights are given, and out_weights are missing");
	return 0;
}

static int run(struct epf_ht *ht, enum ht_kernel kernel, const struct epf_ht_group *g, void *stream)
{
	struct ht_job j = { 0 };
	int err = check(g);

	if (err || !g->rows)
		return err;
	j.threads = ht->threads;
	j.blocks = g->blocks && g->blocks < ht->blocks ? g->blocks : ht->blocks;
	j.tokens = g->rows;
	j.received = g->grouped;
	j.topk = g->topk;
	j.row_bytes = g->row_bytes;
	j.scale_words = g->scale_words;
	j.place = (uintptr_t)g->slots;
	j.x = (uintptr_t)g->x;
	j.out = (uintptr_t)g->out;
	j.scales = (uintptr_t)g->scales;
	j.out_scales = (uintptr_t)g->out_scales;
	j.weights = (uintptr_t)g->weights;
	j.out_weights = (uintptr_t)g->out_weights;
	for (int i = 0; i < 2; i++) {
		j.scale_stride[i] = g->scale_stride[i];
		j.out_stride[i] = g->out_stride[i];
	}
	return ht_launch(ht, kernel, &j, stream);
}

static int check_places(const struct epf_ht_places *p)
{
	if (p->size != sizeof(*p))
		return ll_fail(-EINVAL, "size of places is %zu, this library knows %zu", p->size,
			       sizeof(*p));
	if (p->topk > EPF_HT_TOPK_MAX)
		return ll_fail(-EINVAL, "top-k is %u: at most %u are possible", p->topk,
			       EPF_HT_TOPK_MAX);
	if (p->experts > EPF_HT_LOCAL_MAX)
		return ll_fail(-EINVAL, "a rank has %u experts: at most %u are possible",
			       p->experts, EPF_HT_LOCAL_MAX);
	if (p->topk && p->rows > INT32_MAX / p->topk)
		return ll_fail(-EINVAL, "%u rows have more than 2^31 entries: give fewer", p->rows);
	if ((p->rows && p->topk && !p->index) ||
	    (p->experts && (!p->work || !p->counts || !p->ends || !p->aligned)))
		return ll_fail(-EINVAL, "index, work, counts, ends and aligned are needed");
	return 0;
}

/* As many as have an entry for each thread of a block. */
static uint32_t parts_of(uint32_t entries, uint32_t threads)
{
	uint32_t parts = entries / threads + (entries % threads != 0);

	return parts < 1 ? 1 : parts > EPF_HT_PLACE_PARTS ? EPF_HT_PLACE_PARTS : parts;
}

int epf_ht_places(struct epf_ht *ht, const struct epf_ht_places *p, void *stream)
{
	struct ht_job j = { 0 };
	int err = check_places(p);

	if (err || !p->experts)
		return err;
	j.threads = ht->threads;
	j.parts = parts_of(p->rows * p->topk, ht->threads);
	j.blocks = j.parts;
	j.scratch = (uintptr_t)p->work;
	j.tokens = p->rows;
	j.topk = p->topk;
	j.local = p->experts;
	j.align = p->align ? p->align : 1;
	j.topk_idx = (uintptr_t)p->index;
	j.place = (uintptr_t)p->slots;
	j.per_expert = (uintptr_t)p->counts;
	j.ends[0] = (uintptr_t)p->ends;
	j.ends[1] = (uintptr_t)p->aligned;
	err = ht_launch(ht, HT_K_TALLY, &j, stream);
	if (!p->slots)
		j.blocks = 1; /* the first part's block gives all that is asked for */
	return err ? err : ht_launch(ht, HT_K_PLACES, &j, stream);
}

int epf_ht_spread(struct epf_ht *ht, const struct epf_ht_group *g, void *stream)
{
	return run(ht, HT_K_SPREAD, g, stream);
}

int epf_ht_fold(struct epf_ht *ht, const struct epf_ht_group *g, void *stream)
{
	return run(ht, HT_K_FOLD, g, stream);
}
