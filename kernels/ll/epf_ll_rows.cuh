/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which row an entry of a token went to, kept by a dispatch for a combine that sums at the sender: src_row[rank][token][k], the row's number among
 * all of the list [local experts][N]. Written for entries that name an expert of this rank; others are never used. Behind them: how many
 * tokens each rank has (ll_sums_for).
 */
#ifndef EPF_KERNELS_LL_ROWS_CUH
#define EPF_KERNELS_LL_ROWS_CUH

#include "kernels/epf_ll.h"
#include "kernels/ll/epf_ll_half.cuh"

EPF_DEV_FN uint64_t ll_entry_at(const struct ll_job *j, uint32_t rank, uint32_t token, uint32_t k)
{
	return ((uint64_t)rank * j->tokens_max + token) * j->topk + k;
}

/*
 * The row of a token whose head this is, for entry k, the first that names this local expert, and for those behind it that name it again. place: in the
 * expert's list; UINT32_MAX: it was left out.
 */
EPF_DEV_FN void ll_keep_row(const struct ll_job *j, const struct ll_head *head, uint32_t rank,
			    uint32_t token, uint32_t k, uint32_t expert, uint32_t place)
{
	uint32_t row = place == UINT32_MAX ? UINT32_MAX : expert * j->ranks * j->tokens_max + place;
	uint32_t *rows;

	if (!j->src_row)
		return;
	rows = LL_AT(uint32_t, j->src_row) + ll_entry_at(j, rank, token, 0);
	rows[k] = row;
	for (uint32_t i = k + 1u; i < j->topk; i++)
		if (head->expert[i] == head->expert[k])
			rows[i] = row;
}

/* The row of an entry; UINT32_MAX: none. The caller returns it, so it must not lead outside the list. */
EPF_DEV_FN uint32_t ll_kept_row(const struct ll_job *j, uint32_t rank, uint32_t token, uint32_t k)
{
	uint32_t row = LL_AT(const uint32_t, j->src_row)[ll_entry_at(j, rank, token, k)];

	return row < (uint64_t)j->local * j->ranks * j->tokens_max ? row : UINT32_MAX;
}

EPF_DEV_FN void ll_keep_tokens(const struct ll_job *j, uint32_t rank, uint32_t tokens)
{
	if (j->src_row)
		LL_AT(uint32_t, j->src_row)
	[ll_tokens_at(j, rank)] = tokens;
}

#endif
