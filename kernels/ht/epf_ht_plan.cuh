/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where rows go, before any moves. ht_layout() counts the routing of a batch. ht_notify() exchanges the counts: once every rank knows them, each sender
 * knows the final index of each of its rows at every receiver, and where rows lie on their way.
 */
#ifndef EPF_KERNELS_HT_PLAN_CUH
#define EPF_KERNELS_HT_PLAN_CUH

#include "kernels/ht/epf_ht_net.cuh"

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
	if (epf_block_number() == 0 && epf_thread_in_block() == 0)
		tally_begin(j->tally, j->call, 1, 1);
	if (epf_block_number() < j->ranks)
		ht_layout_rank(j, epf_block_number());
	else
		ht_layout_node(j, epf_block_number() - j->ranks);
	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_COPY);
}

/* ---- notify: one block a rank, then with several nodes one a node ---- */

/* Does a token go to a rank, or, from number `ranks` on, to a node? */
EPF_DEV_FN int ht_goes(const struct ht_job *j, uint32_t token, uint32_t to)
{
	const uint8_t *in = HT_AT(const uint8_t, j->in_rank) + (uint64_t)token * j->ranks;
	int any = 0;

	if (to < j->ranks)
		return in[to] != 0;
	for (uint32_t i = 0; i < ht_node_of(j, to - j->ranks)->size; i++)
		any |= in[ht_member(j, to - j->ranks, i)] != 0;
	return any;
}

/* Notes which of this rank's rows for a rank or node a token is; -1: none. */
EPF_DEV_FN void ht_note_place(const struct ht_job *j, uint32_t token, uint32_t to, int32_t place)
{
	uint32_t node = to - j->ranks;

	if (to < j->ranks) {
		HT_AT(int32_t, j->place)[(uint64_t)token * j->ranks + to] = place;
		return;
	}
	HT_AT(int32_t, j->plan + j->at.place)[(uint64_t)token * j->nodes + node] = place;
	if (place >= 0)
		HT_AT(uint32_t, j->plan + j->at.order)
	[(uint64_t)node * j->tokens + (uint32_t) place] = token;
}

/*
 * Numbers the rows for one rank or node in ascending token. Each thread takes neighbouring tokens. Returns how many there are, in all threads.
 */
EPF_DEV_FN uint32_t ht_number_rows(const struct ht_job *j, uint32_t to)
{
	EPF_DEV_SHARED uint32_t sums[HT_THREADS];
	uint32_t me = epf_thread_in_block();
	uint32_t each = (j->tokens + j->threads - 1u) / j->threads;
	uint32_t first = me * each, end = first + each < j->tokens ? first + each : j->tokens;
	uint32_t n = 0, total;

	for (uint32_t t = first; t < end; t++)
		n += (uint32_t)ht_goes(j, t, to);
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
		ht_note_place(j, t, to, ht_goes(j, t, to) ? (int32_t)n++ : -1);
	epf_block_barrier();
	return total;
}

/* Writes this rank's rows for a rank or node, for every rank, and a rank's entries of its experts, for that rank. */
EPF_DEV_FN void ht_send_counts(const struct ht_job *j, uint64_t call, uint32_t to, uint32_t rows)
{
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		epf_st32_relaxed_sys(ht_counts_for(j, call, r) + to, rows);
	if (to >= j->ranks)
		return;
	if (epf_thread_in_block() == 0)
		epf_st32_relaxed_sys(ht_counts_for(j, call, to) + ht_counts_flags(j),
				     j->guess << 1 | j->grown);
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		epf_st32_relaxed_sys(ht_counts_for(j, call, to) + ht_counts_experts(j) + e,
				     HT_AT(const uint32_t, j->per_expert)[to * j->local + e]);
}

/* Rows that a rank sends to another, or, from number `ranks` on, to a node. */
EPF_DEV_FN uint32_t ht_count(const struct ht_job *j, uint64_t call, uint32_t from, uint32_t to)
{
	return ht_counts_of(j, call, from)[to];
}

/* What the CPU waits for, but for the numbers of ht_say_sizes(). */
EPF_DEV_FN void ht_say_counts(const struct ht_job *j, uint64_t call, int late)
{
	uint64_t *host = HT_AT(uint64_t, j->host);

	for (uint32_t e = epf_thread_in_block(); host && e < j->local; e += j->threads) {
		uint64_t sum = 0;

		for (uint32_t i = 0; i < j->ranks && !late; i++)
			sum += ht_counts_of(j, call, i)[ht_counts_experts(j) + e];
		epf_st_relaxed_sys(&host[HT_HOST + e], (sum + j->align - 1u) / j->align * j->align);
	}
}

/* The most rows that a window holds, of any rank: those received in a dispatch, and those that a combine adds. And the most that cross between nodes. */
EPF_DEV_FN void ht_say_sizes(const struct ht_job *j, uint64_t call, int late)
{
	EPF_DEV_SHARED uint32_t adds[HT_RANKS_MAX], out[HT_RANKS_MAX], in[HT_RANKS_MAX];
	uint64_t *host = HT_AT(uint64_t, j->host);
	uint32_t most = 0, need = 0, grown = 0, alike = j->guess != 0 && !late, fits;

	epf_block_barrier();
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		adds[r] = out[r] = in[r] = 0;
	epf_block_barrier();
	for (uint32_t i = epf_thread_in_block(); i < j->ranks * j->ranks; i += j->threads) {
		uint32_t s = i / j->ranks, r = i % j->ranks;
		uint32_t rows = ht_rows_until(j, s, r) - ht_rows_until(j, s - 1u, r);
		uint32_t via = ht_via(j, s, ht_peer_of(j, r)->node);

		if (rows && via != r)
			epf_add32_block(&adds[via], rows);
	}
	for (uint32_t i = epf_thread_in_block(); i < j->ranks * j->nodes && !late;
	     i += j->threads) {
		uint32_t s = i / j->nodes, n = i % j->nodes;

		if (ht_peer_of(j, s)->node == n)
			continue;
		epf_add32_block(&out[s], ht_count(j, call, s, j->ranks + n));
		epf_add32_block(&in[ht_via(j, s, n)], ht_count(j, call, s, j->ranks + n));
	}
	epf_block_barrier();
	if (epf_thread_in_block() != 0)
		return;
	for (uint32_t r = 0; r < j->ranks; r++) {
		uint32_t received = ht_rows_until(j, j->ranks - 1u, r);

		most = adds[r] > most ? adds[r] : most;
		most = received > most ? received : most;
		need = out[r] > need ? out[r] : need;
		need = in[r] > need ? in[r] : need;
		if (!late) {
			uint32_t flags = ht_counts_of(j, call, r)[ht_counts_flags(j)];

			grown |= flags & 1u;
			alike &= flags >> 1 == j->guess;
		}
	}
	fits = alike && most <= j->guess;
	epf_st_relaxed_gpu(&ht_state_of(j)->fits, fits);
	*HT_AT(uint32_t, j->plan + j->at.need) = need;
	if (!host)
		return;
	epf_st_relaxed_sys(&host[1], late ? UINT64_MAX : ht_rows_until(j, j->ranks - 1u, j->rank));
	epf_st_relaxed_sys(&host[2], most);
	epf_st_relaxed_sys(&host[3], need);
	epf_st_relaxed_sys(&host[4], in[j->rank]);
	epf_st_relaxed_sys(&host[5], (grown ? HT_GROWN : 0) | (fits ? HT_FITS : 0));
}

/* The leg to a node. */
EPF_DEV_FN struct ht_leg ht_leg_out(const struct ht_job *j, uint64_t call, uint32_t node)
{
	struct ht_leg l = { -1, 0, 0, 0 };
	uint32_t via = ht_via(j, j->rank, node);

	if (node == j->node)
		return l;
	l.rank = (int32_t)via;
	l.rows = ht_count(j, call, j->rank, j->ranks + node);
	for (uint32_t n = 0; n < node; n++)
		if (n != j->node)
			l.mine += ht_count(j, call, j->rank, j->ranks + n);
	for (uint32_t s = 0; s < j->rank; s++)
		if (ht_peer_of(j, s)->node != node && ht_via(j, s, node) == via)
			l.theirs += ht_count(j, call, s, j->ranks + node);
	return l;
}

/* Does this rank forward what that one of another node sends? */
EPF_DEV_FN int ht_serves(const struct ht_job *j, uint32_t source)
{
	return !ht_is_mate(j, source) && ht_via(j, source, j->node) == j->rank;
}

/* The leg from a source. */
EPF_DEV_FN struct ht_leg ht_leg_in(const struct ht_job *j, uint64_t call, uint32_t source)
{
	struct ht_leg l = { -1, 0, 0, 0 };

	if (!ht_serves(j, source))
		return l;
	l.rank = (int32_t)source;
	l.rows = ht_count(j, call, source, j->ranks + j->node);
	for (uint32_t s = 0; s < source; s++)
		if (ht_serves(j, s))
			l.mine += ht_count(j, call, s, j->ranks + j->node);
	for (uint32_t n = 0; n < j->node; n++)
		if (n != ht_peer_of(j, source)->node)
			l.theirs += ht_count(j, call, source, j->ranks + n);
	return l;
}

/* Where a combine has the rows of this node's members, in the windows of those that add them: member by member, sources ascending. */
EPF_DEV_FN void ht_plan_parts(const struct ht_job *j)
{
	uint32_t size = ht_mates(j);
	uint32_t *parts = HT_AT(uint32_t, j->plan + j->at.parts);
	uint32_t *totals = HT_AT(uint32_t, j->plan + j->at.totals);

	for (uint32_t i = epf_thread_in_block(); i < size * size; i += j->threads) {
		uint32_t adder = ht_mate(j, i / size), member = ht_mate(j, i % size), sum = 0;

		for (uint32_t s = 0; s < j->ranks; s++) {
			if (ht_via(j, s, j->node) != adder)
				continue;
			parts[s * j->node_max + i % size] = sum;
			if (adder != member)
				sum += ht_rows_until(j, s, member) -
				       ht_rows_until(j, s - 1u, member);
		}
		totals[i] = sum;
	}
	epf_block_barrier();
	for (uint32_t i = epf_thread_in_block(); i < j->ranks * size; i += j->threads) {
		uint32_t adder = ht_peer_of(j, ht_via(j, i / size, j->node))->index, sum = 0;

		for (uint32_t m = 0; m < i % size; m++)
			sum += totals[adder * size + m];
		parts[i / size * j->node_max + i % size] += sum;
	}
}

/* The counts of all ranks have arrived: the matrix of rows, the plan, and what the CPU waits for. One block. */
EPF_DEV_FN void ht_read_counts(const struct ht_job *j, uint64_t call, int late)
{
	uint32_t *matrix = HT_AT(uint32_t, j->matrix);
	struct ht_leg none = { -1, 0, 0, 0 };

	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads) {
		uint32_t sum = 0;

		for (uint32_t i = 0; i < j->ranks; i++) {
			sum += late ? 0 : ht_count(j, call, i, r);
			matrix[i * j->ranks + r] = sum;
		}
	}
	epf_block_barrier();
	ht_say_counts(j, call, late);
	ht_say_sizes(j, call, late);
	epf_fence_sys();
	epf_block_barrier();
	if (j->host && epf_thread_in_block() == 0)
		epf_st_relaxed_sys(HT_AT(uint64_t, j->host), j->ticket);
	for (uint32_t n = epf_thread_in_block(); n < j->nodes; n += j->threads)
		ht_legs_out(j)[n] = late ? none : ht_leg_out(j, call, n);
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		ht_legs_in(j)[r] = late ? none : ht_leg_in(j, call, r);
	ht_plan_parts(j);
}

EPF_DEV_FN void ht_notify(const struct ht_job *j)
{
	uint64_t call = epf_ld_relaxed_gpu(&ht_state_of(j)->counted);
	uint32_t to = epf_block_number();
	int late;

	ht_send_counts(j, call, to, ht_number_rows(j, to));
	if (!ht_last_block(j, &ht_state_of(j)->done[0], 1))
		return;
	if (epf_thread_in_block() == 0)
		ht_count_from(j, call, 1);
	if (epf_thread_in_block() < LL_LANES) {
		ht_set_flags(j, HT_COUNTS, call + 1u);
		ht_push_counts(j, call);
	}
	late = ht_wait_ranks(j, HT_COUNTS, call + 1u, 1);
	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_WAIT);
	ht_read_counts(j, call, late);
	if (epf_thread_in_block() == 0) {
		ht_phase(j, EPF_WHY_COPY);
		ht_wait_sent(j);
		epf_st_relaxed_gpu(&ht_state_of(j)->counted, call + 1u);
	}
}

#endif
