/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where rows go, before any moves. ht_layout() counts the routing of a batch. ht_notify() exchanges the counts: once every rank knows them, each sender
 * knows the final index of each of its rows at every receiver.
 */
#ifndef EPF_KERNELS_HT_PLAN_CUH
#define EPF_KERNELS_HT_PLAN_CUH

#include "kernels/ht/epf_ht_wait.cuh"

#define HT_THREADS 512u /* at most, of a block */

/* ---- layout: one block a rank, then one a node ---- */

#define HT_AHEAD 8u /* entries of a thread whose loads are under way together */

/*
 * Looks at all entries for experts in [first, first + count): sets the tokens' bytes, and counts each expert in `tally`. The threads of a block look at
 * neighbouring entries.
 */
EPF_DEV_FN void ht_look_at_entries(const struct ht_job *j, uint32_t first, uint32_t count,
				   uint8_t *in, uint32_t stride, uint32_t *tally)
{
	const int64_t *entry = HT_AT(const int64_t, j->topk_idx);
	uint32_t n = j->tokens * j->topk, all = j->ranks * j->local;

	for (uint32_t at = epf_thread_in_block(); at < n; at += HT_AHEAD * j->threads) {
		int64_t e[HT_AHEAD];

		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++)
			e[i] = at + i * j->threads < n ? entry[at + i * j->threads] : -1;
		LL_UNROLL
		for (uint32_t i = 0; i < HT_AHEAD; i++) {
			if (e[i] >= (int64_t)first && e[i] < (int64_t)first + count) {
				in[(uint64_t)((at + i * j->threads) / j->topk) * stride] = 1;
				epf_add32_block(&tally[e[i] - first], 1u);
			} else if (first == 0 && (e[i] < -1 || e[i] >= (int64_t)all)) {
				ht_complain(j, HT_BAD_EXPERT, all, (uint64_t)e[i]);
			}
		}
	}
}

/* Counts the bytes that are set, in all threads of the block; *tokens is shared. */
EPF_DEV_FN void ht_count_tokens(const struct ht_job *j, const uint8_t *in, uint32_t stride,
				uint32_t *tokens)
{
	uint32_t n = 0;

	for (uint32_t t = epf_thread_in_block(); t < j->tokens; t += j->threads)
		n += in[(uint64_t)t * stride];
	if (n)
		epf_add32_block(tokens, n);
}

EPF_DEV_FN void ht_layout_rank(const struct ht_job *j, uint32_t rank)
{
	EPF_DEV_SHARED uint32_t tally[HT_LOCAL_MAX];
	EPF_DEV_SHARED uint32_t tokens;
	uint8_t *in = HT_AT(uint8_t, j->in_rank) + rank;

	epf_block_barrier();
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		tally[e] = 0;
	for (uint32_t t = epf_thread_in_block(); t < j->tokens; t += j->threads)
		in[(uint64_t)t * j->ranks] = 0;
	if (epf_thread_in_block() == 0)
		tokens = 0;
	epf_block_barrier();
	ht_look_at_entries(j, rank * j->local, j->local, in, j->ranks, tally);
	epf_block_barrier();
	ht_count_tokens(j, in, j->ranks, &tokens);
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		HT_AT(uint32_t, j->per_expert)[rank * j->local + e] = tally[e];
	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		HT_AT(uint32_t, j->per_rank)[rank] = tokens;
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
	if (epf_block_number() < j->ranks)
		ht_layout_rank(j, epf_block_number());
	else
		ht_layout_node(j, epf_block_number() - j->ranks);
}

/* ---- notify: one block a rank ---- */

/*
 * Numbers the rows for one rank in ascending token. Each thread takes neighbouring tokens. Returns how many there are, in all threads.
 */
EPF_DEV_FN uint32_t ht_number_rows(const struct ht_job *j, uint32_t rank)
{
	EPF_DEV_SHARED uint32_t sums[HT_THREADS];
	const uint8_t *in = HT_AT(const uint8_t, j->in_rank) + rank;
	int32_t *place = HT_AT(int32_t, j->place) + rank;
	uint32_t me = epf_thread_in_block();
	uint32_t each = (j->tokens + j->threads - 1u) / j->threads;
	uint32_t first = me * each, end = first + each < j->tokens ? first + each : j->tokens;
	uint32_t n = 0, total;

	for (uint32_t t = first; t < end; t++)
		n += in[(uint64_t)t * j->ranks] != 0;
	epf_block_barrier();
	sums[me] = n;
	epf_block_barrier();
	/* Sums over all threads up to this one, doubling the distance each time. */
	for (uint32_t d = 1; d < j->threads; d *= 2u) {
		uint32_t other = me >= d ? sums[me - d] : 0;

		epf_block_barrier();
		sums[me] += other;
		epf_block_barrier();
	}
	total = sums[j->threads - 1u];
	n = sums[me] - n;
	for (uint32_t t = first; t < end; t++)
		place[(uint64_t)t * j->ranks] = in[(uint64_t)t * j->ranks] ? (int32_t)n++ : -1;
	epf_block_barrier();
	return total;
}

/* Writes this rank's counts for `rank`: to every rank the number of rows, to that rank its experts' entries. */
EPF_DEV_FN void ht_send_counts(const struct ht_job *j, uint64_t call, uint32_t rank, uint32_t rows)
{
	uint32_t *theirs = ht_counts_at(j, ht_peer_of(j, rank)->control, call, j->rank);

	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		epf_st32_relaxed_sys(
			ht_counts_at(j, ht_peer_of(j, r)->control, call, j->rank) + rank, rows);
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		epf_st32_relaxed_sys(theirs + j->ranks + e,
				     HT_AT(const uint32_t, j->per_expert)[rank * j->local + e]);
}

/* The counts of all ranks have arrived: the matrix of rows, and what the CPU waits for. One block. */
EPF_DEV_FN void ht_read_counts(const struct ht_job *j, uint64_t call, int late)
{
	uint32_t *matrix = HT_AT(uint32_t, j->matrix);
	uint64_t *host = HT_AT(uint64_t, j->host);
	uint64_t most = 0;

	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads) {
		uint32_t sum = 0;

		for (uint32_t i = 0; i < j->ranks; i++) {
			sum += late ? 0 : ht_counts_at(j, j->control, call, i)[r];
			matrix[i * j->ranks + r] = sum;
		}
	}
	epf_block_barrier();
	if (!host)
		return;
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads) {
		uint64_t sum = 0;

		for (uint32_t i = 0; i < j->ranks && !late; i++)
			sum += ht_counts_at(j, j->control, call, i)[j->ranks + e];
		epf_st_relaxed_sys(&host[3u + e], (sum + j->align - 1u) / j->align * j->align);
	}
	/* The most rows that a rank receives, and that a rank gets back. */
	for (uint32_t r = 0; r < j->ranks; r++) {
		uint64_t sent = 0;

		for (uint32_t d = 0; d < j->ranks; d++)
			sent += ht_rows_until(j, r, d) - ht_rows_until(j, r - 1u, d);
		most = sent > most ? sent : most;
		most = ht_rows_until(j, j->ranks - 1u, r) > most
			       ? ht_rows_until(j, j->ranks - 1u, r)
			       : most;
	}
	if (epf_thread_in_block() == 0) {
		epf_st_relaxed_sys(&host[1],
				   late ? UINT64_MAX : ht_rows_until(j, j->ranks - 1u, j->rank));
		epf_st_relaxed_sys(&host[2], most);
	}
	epf_fence_sys();
	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		epf_st_relaxed_sys(&host[0], j->ticket);
}

EPF_DEV_FN void ht_notify(const struct ht_job *j)
{
	uint64_t call = epf_ld_relaxed_gpu(&ht_state_of(j)->counted);
	uint32_t rank = epf_block_number();

	ht_send_counts(j, call, rank, ht_number_rows(j, rank));
	if (!ht_last_block(j, 0))
		return;
	if (epf_thread_in_block() < LL_LANES)
		ht_set_flags(j, HT_COUNTS, call + 1u);
	ht_read_counts(j, call, ht_wait_flags(j, HT_COUNTS, call + 1u));
	if (epf_thread_in_block() == 0)
		epf_st_relaxed_gpu(&ht_state_of(j)->counted, call + 1u);
}

#endif
