/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Poison for what peers write: before a round every row that will be written, and the one behind
 * it, is filled with the round's pattern, so that nothing left over can pass for a delivery. After the round,
 * rows behind the last must still hold it. Where the receive areas are small, all of them are
 * filled and looked at. Called between rounds, when no peer writes.
 */
#include "bench/moe/moe.h"

#include <string.h>

/* Rows that the reference's routing puts into an area. */
static uint32_t expected_rows(const struct moe_job *job, uint32_t me, const struct epf_moe_area *a)
{
	const struct moe_data *d = &job->data;
	uint32_t ranks = (uint32_t)job->opts->ranks;

	switch (a->kind) {
	case EPF_MOE_AREA_RECV: {
		uint32_t n = 0;
		uint32_t src = a->index % ranks;
		int64_t expert = (int64_t)me * d->local_experts + a->index / ranks;

		if (job->opts->mode == EPF_MOE_HT)
			return moe_data_count(d, src, me, me + 1);
		for (size_t i = 0; i < (size_t)d->tokens[src] * job->opts->topk; i++)
			n += d->idx[src][i] == expert;
		return n;
	}
	case EPF_MOE_AREA_FORWARD:
		return moe_data_count_node(d, a->index, d->node_of[me]);
	case EPF_MOE_AREA_PARTIAL: /* a rank's own rows are added where they lie */
		return a->member == me ? 0 : moe_data_count(d, a->index, a->member, a->member + 1);
	case EPF_MOE_AREA_HOME:
		if (job->opts->mode == EPF_MOE_HT)
			return a->index == d->node_of[me] ? 0
							  : moe_data_count_node(d, me, a->index);
		/* ll: slots may have gaps; all of them are filled, none is looked at. */
		return a->index < (uint32_t)d->tokens[me] ? a->rows : 0;
	}
	return 0;
}

/* Rows to fill: those expected and one behind, or all. */
static uint32_t filled_rows(const struct moe_job *job, const struct epf_moe_area *a,
			    uint32_t expected)
{
	if (job->poison_all)
		return a->rows;
	if (!expected)
		return 0;
	return expected < a->rows ? expected + 1 : a->rows;
}

void moe_poison(struct moe_job *job, struct moe_rank *r)
{
	uint32_t n = epf_moe_areas(r->moe);

	for (uint32_t i = 0; i < n; i++) {
		struct epf_moe_area a = epf_moe_area(r->moe, i, 1);
		uint32_t rows = filled_rows(job, &a, expected_rows(job, r->rank, &a));

		memset(a.base, job->poison, (size_t)rows * a.row_bytes);
	}
}

static bool all_are(const uint8_t *p, size_t n, uint8_t value)
{
	return n == 0 || (p[0] == value && !memcmp(p, p + 1, n - 1));
}

void moe_check_poison(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph)
{
	static const char *const name[] = { "received rows", "rows to forward", "rows to add",
					    "rows at home" };
	uint32_t n = epf_moe_areas(r->moe);

	for (uint32_t i = 0; i < n; i++) {
		struct epf_moe_area a = epf_moe_area(r->moe, i, 0);
		uint32_t expected = expected_rows(job, r->rank, &a);
		uint32_t rows = filled_rows(job, &a, expected);

		if (rows > expected &&
		    !all_are(a.base + (size_t)expected * a.row_bytes,
			     (size_t)(rows - expected) * a.row_bytes, job->poison))
			moe_wrong(
				job, ph,
				"rank %u: bytes behind the last of the %s (%u, member %u) were written",
				r->rank, name[a.kind], a.index, a.member);
	}
}
