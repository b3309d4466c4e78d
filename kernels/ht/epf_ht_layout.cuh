/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The routing of a batch: which tokens go to a rank, and how many entries each of its experts has. All blocks that work for a rank look at all entries of some
 * tokens, a chunk each; the last one adds up. ht_layout() is what get_dispatch_layout() calls; ht_notify() looks itself where there was none.
 */
#ifndef EPF_KERNELS_HT_LAYOUT_CUH
#define EPF_KERNELS_HT_LAYOUT_CUH

#include "kernels/ht/epf_ht_shared.cuh"

#define HT_AHEAD 8u /* entries of a thread whose loads are under way together */

/* Of a block: warps at most. */
#define HT_WARPS (HT_THREADS / (LL_LANES > 1u ? LL_LANES : HT_THREADS))

/* A batch: the tokens that a block looks at together. */
EPF_DEV_FN uint32_t ht_batch(const struct ht_job *j)
{
	return HT_STEPS * j->threads;
}

/* An entry of a token: the expert's number among those of the rank, or the entry goes elsewhere. The first rank's blocks also report what is no expert. */
EPF_DEV_FN void ht_look_at_entry(const struct ht_job *j, uint32_t rank, uint32_t token,
				 int64_t expert)
{
	uint64_t local = (uint64_t)expert - (uint64_t)rank * j->local;

	if (local < j->local) {
		ht_seen()[token] = 1;
		epf_add32_block(&ht_entries()[local], 1u);
	} else if (rank == 0 && (expert < -1 || expert >= (int64_t)j->ranks * j->local)) {
		ht_complain(j, HT_BAD_EXPERT, j->ranks * j->local, (uint64_t)expert);
	}
}

/*
 * Looks at the entries of tokens [begin, end), a batch, for a rank: sets the tokens' bytes of ht_seen(), and counts in ht_entries(). A thread looks at the
 * same entry of many tokens, and its neighbours at the entries beside it. All threads of a block.
 */
EPF_DEV_FN void ht_look_at_batch(const struct ht_job *j, uint32_t rank, uint32_t begin,
				 uint32_t end)
{
	const int64_t *entry = HT_AT(const int64_t, j->topk_idx) + (uint64_t)begin * j->topk;
	uint32_t me = epf_thread_in_block(), n = end - begin;
	uint32_t width = j->topk && j->topk <= j->threads ? j->topk : 1u; /* entries at once */
	uint32_t step = j->threads / width;                               /* tokens at once */

	epf_block_barrier();
	for (uint32_t t = me; t < n; t += j->threads)
		ht_seen()[t] = 0;
	epf_block_barrier();
	for (uint32_t k = me % width; k < j->topk && me < step * width; k += width)
		for (uint32_t t = me / width; t < n; t += HT_AHEAD * step) {
			int64_t e[HT_AHEAD];

			LL_UNROLL
			for (uint32_t i = 0; i < HT_AHEAD; i++)
				e[i] = t + i * step < n
					       ? entry[(uint64_t)(t + i * step) * j->topk + k]
					       : -1;
			LL_UNROLL
			for (uint32_t i = 0; i < HT_AHEAD; i++)
				ht_look_at_entry(j, rank, t + i * step, e[i]);
		}
	epf_block_barrier();
}

/* Looks at a chunk of the tokens for a rank: writes in_rank, and counts in ht_entries(). Returns how many go there, in all threads of the block. */
EPF_DEV_FN uint32_t ht_look_at_chunk(const struct ht_job *j, uint32_t rank, uint32_t chunk)
{
	EPF_DEV_SHARED uint32_t tokens;
	uint8_t *in = HT_AT(uint8_t, j->in_rank) + rank;
	uint32_t each = (j->tokens + j->chunks - 1u) / j->chunks, n = 0;
	uint32_t last = (chunk + 1u) * each < j->tokens ? (chunk + 1u) * each : j->tokens;

	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		ht_entries()[e] = 0;
	if (epf_thread_in_block() == 0)
		tokens = 0;
	for (uint32_t first = chunk * each; first < last; first += ht_batch(j)) {
		uint32_t end = first + ht_batch(j) < last ? first + ht_batch(j) : last;

		ht_look_at_batch(j, rank, first, end);
		for (uint32_t t = first + epf_thread_in_block(); t < end; t += j->threads) {
			n += ht_seen()[t - first];
			in[(uint64_t)t * j->ranks] = ht_seen()[t - first];
		}
	}
	epf_block_barrier();
	if (n)
		epf_add32_block(&tokens, n);
	epf_block_barrier();
	return tokens;
}

/* What the block of a chunk leaves for the last one: its tokens, then its entries. */
EPF_DEV_FN uint32_t *ht_part_of_chunk(const struct ht_job *j, uint32_t rank, uint32_t chunk)
{
	return HT_AT(uint32_t, j->scratch + HT_CHUNK_RANKS * sizeof(uint64_t)) +
	       (rank * HT_CHUNKS + chunk) * HT_CHUNK_WORDS;
}

/* The sum over all chunks of a word that they left. */
EPF_DEV_FN uint32_t ht_sum_chunks(const struct ht_job *j, uint32_t rank, uint32_t word)
{
	uint32_t n[HT_CHUNKS], sum = 0;

	LL_UNROLL
	for (uint32_t c = 0; c < HT_CHUNKS; c++)
		n[c] = c < j->chunks ? ht_part_of_chunk(j, rank, c)[word] : 0;
	LL_UNROLL
	for (uint32_t c = 0; c < HT_CHUNKS; c++)
		sum += n[c];
	return sum;
}

/*
 * Looks at a chunk of the tokens for a rank. Returns 1 in all threads of the last of the rank's blocks, which then sees in_rank of all tokens, and has their
 * number in *rows and the entries in ht_entries(); else 0.
 */
EPF_DEV_FN int ht_look_for(const struct ht_job *j, uint32_t rank, uint32_t chunk, uint32_t *rows)
{
	*rows = ht_look_at_chunk(j, rank, chunk);
	if (j->chunks == 1)
		return 1;
	if (epf_thread_in_block() == 0)
		ht_part_of_chunk(j, rank, chunk)[0] = *rows;
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		ht_part_of_chunk(j, rank, chunk)[1u + e] = ht_entries()[e];
	if (!ht_last_of(HT_AT(uint64_t, j->scratch) + rank, j->chunks, 1))
		return 0;
	epf_fence_gpu();
	*rows = ht_sum_chunks(j, rank, 0);
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		ht_entries()[e] = ht_sum_chunks(j, rank, 1u + e);
	epf_block_barrier();
	return 1;
}

/* ---- layout: blocks for each rank, then one for each group of ranks that counts as a node ---- */

EPF_DEV_FN void ht_layout_rank(const struct ht_job *j, uint32_t rank, uint32_t chunk)
{
	uint32_t rows;

	if (!ht_look_for(j, rank, chunk, &rows))
		return;
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		HT_AT(uint32_t, j->per_expert)[rank * j->local + e] = ht_entries()[e];
	if (epf_thread_in_block() == 0)
		HT_AT(uint32_t, j->per_rank)[rank] = rows;
}

/* Whether a token has an entry for an expert in [first, first + count). */
EPF_DEV_FN int ht_names(const struct ht_job *j, uint32_t token, uint32_t first, uint32_t count)
{
	const int64_t *entry = HT_AT(const int64_t, j->topk_idx) + (uint64_t)token * j->topk;
	int any = 0;

	for (uint32_t k = 0; k < j->topk; k++)
		any |= entry[k] >= (int64_t)first && entry[k] < (int64_t)first + count;
	return any;
}

EPF_DEV_FN void ht_layout_node(const struct ht_job *j, uint32_t node)
{
	EPF_DEV_SHARED uint32_t tokens;
	uint32_t n = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		tokens = 0;
	epf_block_barrier();
	for (uint32_t t = epf_thread_in_block(); t < j->tokens; t += j->threads)
		n += (uint32_t)ht_names(j, t, node * HT_NODE * j->local, HT_NODE * j->local);
	epf_add32_block(&tokens, n);
	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		HT_AT(uint32_t, j->per_node)[node] = tokens;
}

EPF_DEV_FN void ht_layout(const struct ht_job *j)
{
	uint32_t block = epf_block_number();

	if (block == 0 && epf_thread_in_block() == 0)
		tally_begin(j->tally, j->call, 1, 1);
	if (block < j->ranks * j->chunks)
		ht_layout_rank(j, block / j->chunks, block % j->chunks);
	else
		ht_layout_node(j, block - j->ranks * j->chunks);
	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_COPY);
}

#endif
