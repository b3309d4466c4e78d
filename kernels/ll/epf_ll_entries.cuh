/* SPDX-License-Identifier: Apache-2.0 */
/* Which experts the own tokens name: read once by each block, and kept in its shared memory where they are few. */
#ifndef EPF_KERNELS_LL_ENTRIES_CUH
#define EPF_KERNELS_LL_ENTRIES_CUH

#include "kernels/ll/epf_ll_half.cuh"

/* Entries of the own tokens that a block keeps at hand, by k and then by token, so that lanes with a token each read neighbours. */
EPF_DEV_FN int32_t *ll_at_hand(void)
{
	EPF_DEV_SHARED int32_t entries[LL_ENTRIES];

	return entries;
}

/* Few enough to be at hand? */
EPF_DEV_FN int ll_few(const struct ll_job *j)
{
	return j->tokens * j->topk <= LL_ENTRIES;
}

/*
 * Brings the own tokens' entries to hand: they are looked at again and again, one look behind the other. What names no expert becomes -1. All threads; behind
 * ll_have_entries() they may look.
 */
EPF_DEV_FN void ll_fetch_entries(const struct ll_job *j)
{
	for (uint32_t i = epf_thread_in_block(); i < j->tokens * j->topk && ll_few(j);
	     i += j->threads) {
		int64_t expert = LL_AT(const int64_t, j->topk_idx)[i];

		ll_at_hand()[i % j->topk * j->tokens + i / j->topk] =
			ll_rank_of(j, expert) == UINT32_MAX ? -1 : (int32_t)expert;
	}
}

EPF_DEV_FN void ll_have_entries(void)
{
	epf_block_barrier();
}

/* Entry k of an own token. */
EPF_DEV_FN int64_t ll_entry(const struct ll_job *j, uint32_t token, uint32_t k)
{
	return ll_few(j) ? ll_at_hand()[k * j->tokens + token]
			 : LL_AT(const int64_t, j->topk_idx)[(uint64_t)token * j->topk + k];
}

/* 1 if no entry of this token before k is an expert of rank r. */
EPF_DEV_FN int ll_first_of_rank(const struct ll_job *j, uint32_t token, uint32_t k, uint32_t r)
{
	int64_t begin = (int64_t)r * j->local;
	int first = 1;

	LL_ROLLED
	for (uint32_t i = 0; i < k; i++) {
		int64_t expert = ll_entry(j, token, i);

		first &= expert < begin || expert >= begin + j->local;
	}
	return first;
}

/* Does it name one of those of this rank? */
EPF_DEV_FN int ll_names_rank(const struct ll_job *j, uint32_t token, uint32_t rank)
{
	return !ll_first_of_rank(j, token, j->topk, rank);
}

/* The first entry of a token that names this expert; UINT32_MAX: none does. One thread. */
EPF_DEV_FN uint32_t ll_entry_of(const struct ll_job *j, uint32_t token, int64_t expert)
{
	uint32_t first = UINT32_MAX;

	LL_ROLLED
	for (uint32_t k = j->topk; k > 0; k--)
		first = ll_entry(j, token, k - 1u) == expert ? k - 1u : first;
	return first;
}

#endif
