/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where rows go, before any moves: ht_notify() exchanges the counts of a batch. Once every rank knows them, each sender knows the final index of each of its
 * rows at every receiver, and where rows lie on their way.
 */
#ifndef EPF_KERNELS_HT_PLAN_CUH
#define EPF_KERNELS_HT_PLAN_CUH

#include "kernels/ht/epf_ht_layout.cuh"

/* Does a token go to a node? */
HT_FAR_FN int ht_goes_to_node(const struct ht_job *j, uint32_t token, uint32_t node)
{
	const uint8_t *in = HT_AT(const uint8_t, j->in_rank) + (uint64_t)token * j->ranks;
	int any = 0;

	for (uint32_t i = 0; i < ht_node_of(j, node)->size; i++)
		any |= in[ht_member(j, node, i)] != 0;
	return any;
}

/* Does a token go to a rank, or, from number `ranks` on, to a node? */
EPF_DEV_FN int ht_goes(const struct ht_job *j, uint32_t token, uint32_t to)
{
	if (to >= j->ranks)
		return ht_goes_to_node(j, token, to - j->ranks);
	return HT_AT(const uint8_t, j->in_rank)[(uint64_t)token * j->ranks + to] != 0;
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
 * Numbers the rows of a batch that begins at token `first` for one rank or node, from `next` on, in ascending token: step by step, in each by warp, in each by
 * lane. Returns the number behind the last one, in all threads.
 */
EPF_DEV_FN uint32_t ht_number_batch(const struct ht_job *j, uint32_t to, uint32_t first,
				    uint32_t next)
{
	EPF_DEV_SHARED uint32_t rows[HT_STEPS][HT_WARPS], step[HT_STEPS];
	uint32_t me = epf_thread_in_block(), warp = me / LL_LANES, warps = j->threads / LL_LANES;
	uint32_t goes = 0;

	LL_UNROLL
	for (uint32_t s = 0; s < HT_STEPS; s++) {
		uint32_t at = s * j->threads + me;

		if (first + at < j->tokens && ht_goes(j, first + at, to))
			goes |= 1u << s;
	}
	epf_block_barrier();
	LL_UNROLL
	for (uint32_t s = 0; s < HT_STEPS; s++) {
		uint32_t n = epf_lanes_count(epf_lanes_where(goes >> s & 1u));

		if (epf_lane() == 0)
			rows[s][warp] = n;
	}
	epf_block_barrier();
	for (uint32_t s = me; s < HT_STEPS; s += j->threads) {
		uint32_t sum = 0;

		for (uint32_t w = 0; w < warps; w++) {
			uint32_t n = rows[s][w];

			rows[s][w] = sum;
			sum += n;
		}
		step[s] = sum;
	}
	epf_block_barrier();
	LL_UNROLL
	for (uint32_t s = 0; s < HT_STEPS; s++) {
		uint32_t token = first + s * j->threads + me, is_one = goes >> s & 1u;
		uint32_t place =
			next + rows[s][warp] + epf_lanes_before(epf_lanes_where((int)is_one));

		if (token < j->tokens)
			ht_note_place(j, token, to, is_one ? (int32_t)place : -1);
		next += step[s];
	}
	return next;
}

/* Numbers the rows for one rank or node in ascending token. */
EPF_DEV_FN void ht_number_rows(const struct ht_job *j, uint32_t to)
{
	uint32_t next = 0;

	for (uint32_t first = 0; first < j->tokens; first += ht_batch(j))
		next = ht_number_batch(j, to, first, next);
	epf_block_barrier();
}

/* How many rows there are for one rank or node, in all threads of the block. */
EPF_DEV_FN uint32_t ht_rows_for(const struct ht_job *j, uint32_t to)
{
	EPF_DEV_SHARED uint32_t rows;
	uint32_t mine = 0;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		rows = 0;
	epf_block_barrier();
	for (uint32_t first = 0; first < j->tokens; first += ht_batch(j)) {
		LL_UNROLL
		for (uint32_t s = 0; s < HT_STEPS; s++) {
			uint32_t token = first + s * j->threads + epf_thread_in_block();

			mine += token < j->tokens && ht_goes(j, token, to);
		}
	}
	if (mine)
		epf_add32_block(&rows, mine);
	epf_block_barrier();
	return rows;
}

/* Sends this rank's rows for a rank or node to every rank, and a rank's entries of its experts to that rank. */
EPF_DEV_FN void ht_send_counts(const struct ht_job *j, uint64_t call, uint32_t to, uint32_t rows)
{
	const uint32_t *entries =
		j->looks ? ht_entries() : HT_AT(const uint32_t, j->per_expert) + to * j->local;

	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		ht_send_count(j, call, r, to, rows);
	if (to >= j->ranks)
		return;
	if (epf_thread_in_block() == 0) {
		ht_send_count(j, call, to, ht_counts_flags(j),
			      j->received << 2 | (j->host ? 2u : 0u) | j->grown);
		ht_send_count(j, call, to, ht_counts_flags(j) + 1u, j->room);
	}
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		ht_send_count(j, call, to, ht_counts_experts(j) + e, entries[e]);
}

/* Ranks: what as many send is kept in shared memory. On a CPU fewer, so that tests meet both. */
#define HT_FEW (LL_LANES > 1u ? 32u : 5u)

/* What each of few ranks has sent, but for entries: [ranks][ht_counts_experts()]. In shared memory. */
EPF_DEV_FN uint32_t *ht_kept(void)
{
	EPF_DEV_SHARED uint32_t kept[HT_FEW * (2u * HT_FEW + 2u)];

	return kept;
}

/* Waits for the counts of ranks of other nodes. Returns 1 if one that this thread waits for was late. */
HT_FAR_FN int ht_wait_far_counts(const struct ht_job *j, uint64_t call)
{
	int late = 0;

	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		if (!ht_is_mate(j, r))
			late |= ht_wait_signal(j, HT_SIG_COUNTS, r, call + 1u);
	return late;
}

/*
 * Waits for the counts of all ranks: keeps what few of them sent, and adds up the entries of this rank's experts in ht_entries(). All threads. Returns 1 if a
 * rank was late.
 */
EPF_DEV_FN int ht_wait_counts(const struct ht_job *j, uint64_t call)
{
	EPF_DEV_SHARED int late;
	uint32_t experts = ht_counts_experts(j), words = experts + j->local, n;

	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		late = 0;
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		ht_entries()[e] = 0;
	epf_block_barrier();
	if (j->nodes > 1 && ht_wait_far_counts(j, call))
		late = 1;
	epf_block_barrier();
	for (uint32_t i = epf_thread_in_block(); i < j->ranks * words; i += j->threads) {
		uint32_t r = i / words, w = i % words;

		if (!ht_is_mate(j, r)) {
			n = ht_count(j, call, r, w);
		} else if (ht_wait_count(j, call, r, w, &n)) {
			late = 1;
			break;
		}
		if (w >= experts)
			epf_add32_block(&ht_entries()[w - experts], n);
		else if (j->ranks <= HT_FEW)
			ht_kept()[r * experts + w] = n;
	}
	epf_block_barrier();
	if (late && j->ranks <= HT_FEW)
		for (uint32_t i = epf_thread_in_block(); i < j->ranks * experts; i += j->threads)
			ht_kept()[i] = 0;
	return late;
}

/* A count that a rank has sent, when all are here: rows for a rank, or, from number `ranks` on, for a node; flags; room. */
EPF_DEV_FN uint32_t ht_told(const struct ht_job *j, uint64_t call, uint32_t from, uint32_t word)
{
	return j->ranks <= HT_FEW ? ht_kept()[from * ht_counts_experts(j) + word]
				  : ht_count(j, call, from, word);
}

#define HT_READ 8u /* counts of a thread whose loads are under way together */

/* Rows that a rank receives, and so far from each rank, as words of the matrix. */
EPF_DEV_FN uint32_t ht_sum_rows(const struct ht_job *j, uint64_t call, uint32_t to)
{
	uint32_t *column = HT_AT(uint32_t, j->matrix) + to, sum = 0;

	for (uint32_t first = 0; first < j->ranks; first += HT_READ) {
		uint32_t n[HT_READ];

		LL_UNROLL
		for (uint32_t i = 0; i < HT_READ; i++)
			n[i] = first + i < j->ranks ? ht_told(j, call, first + i, to) : 0;
		LL_UNROLL
		for (uint32_t i = 0; i < HT_READ; i++) {
			sum += n[i];
			if (first + i < j->ranks)
				column[(first + i) * j->ranks] = sum;
		}
	}
	return sum;
}

/* Rows that a rank sends to others. */
EPF_DEV_FN uint32_t ht_sent_by(const struct ht_job *j, uint64_t call, uint32_t rank)
{
	uint32_t sum = 0;

	for (uint32_t first = 0; first < j->ranks; first += HT_READ) {
		uint32_t n[HT_READ];

		LL_UNROLL
		for (uint32_t i = 0; i < HT_READ; i++)
			n[i] = first + i < j->ranks && first + i != rank
				       ? ht_told(j, call, rank, first + i)
				       : 0;
		LL_UNROLL
		for (uint32_t i = 0; i < HT_READ; i++)
			sum += n[i];
	}
	return sum;
}

/* Of each rank, in shared memory; adds and out lie where the sums of entries were (ht_entries()), which the CPU has by then. */
struct ht_sizes {
	uint32_t *
		adds; /* the most rows that its window holds: those received in a dispatch, or those that a combine adds */
	uint32_t *out;   /* the most that cross to or from other nodes */
	uint32_t *flags; /* of ht_flags_of() */
	uint32_t *in;    /* rows that it forwards */
};

EPF_DEV_FN struct ht_sizes ht_sizes(void)
{
	EPF_DEV_SHARED uint32_t flags[HT_RANKS_MAX], in[HT_RANKS_MAX];
	struct ht_sizes s = { ht_entries(), ht_entries() + HT_RANKS_MAX, flags, in };

	return s;
}

/* With several nodes: rows that each rank adds in a combine, for the ranks of its node that have them, and rows that cross. */
EPF_DEV_FN void ht_count_across(const struct ht_job *j, uint64_t call, struct ht_sizes n)
{
	for (uint32_t i = epf_thread_in_block(); i < j->ranks * j->ranks; i += j->threads) {
		uint32_t s = i / j->ranks, r = i % j->ranks;
		uint32_t rows = ht_told(j, call, s, r);
		uint32_t via = ht_via(j, s, ht_peer_of(j, r)->node);

		if (rows && via != r)
			epf_add32_block(&n.adds[via], rows);
	}
	for (uint32_t i = epf_thread_in_block(); i < j->ranks * j->nodes; i += j->threads) {
		uint32_t s = i / j->nodes, node = i % j->nodes;

		if (ht_peer_of(j, s)->node == node)
			continue;
		epf_add32_block(&n.out[s], ht_told(j, call, s, j->ranks + node));
		epf_add32_block(&n.in[ht_via(j, s, node)], ht_told(j, call, s, j->ranks + node));
	}
	epf_block_barrier();
}

/*
 * What a rank sent with its counts, as far as it matters: HT_GROWN; HT_WAITS; HT_FITS, if the outputs that it allocated are long enough for what it receives, and
 * not too long.
 */
EPF_DEV_FN uint32_t ht_flags_of(const struct ht_job *j, uint64_t call, uint32_t rank,
				uint32_t received)
{
	uint32_t flags = ht_told(j, call, rank, ht_counts_flags(j)), has = flags >> 2;
	uint32_t spare = received / 8u > j->spare ? received / 8u : j->spare;
	/* Unsigned: outputs that are too short are far too long, too. */
	int fits = has && has - received <= spare &&
		   ht_told(j, call, rank, ht_counts_flags(j) + 1u) == j->room;

	return (flags & 1u ? HT_GROWN : 0u) | (flags & 2u ? HT_WAITS : 0u) | (fits ? HT_FITS : 0u);
}

/* For the CPU: the entries of the local experts. All threads, after ht_wait_counts(). */
EPF_DEV_FN void ht_say_entries(const struct ht_job *j, int late)
{
	uint64_t *host = HT_AT(uint64_t, j->host);

	for (uint32_t e = epf_thread_in_block(); host && e < j->local; e += j->threads) {
		uint64_t sum = late ? 0 : ht_entries()[e];

		epf_st_relaxed_sys(&host[HT_HOST + e], (sum + j->align - 1u) / j->align * j->align);
	}
}

/* From the counts of all ranks: the matrix of rows, and the sizes of what each rank needs. All threads. */
EPF_DEV_FN void ht_read_rows(const struct ht_job *j, uint64_t call, int late, struct ht_sizes n)
{
	uint32_t *matrix = HT_AT(uint32_t, j->matrix);
	uint64_t *host = HT_AT(uint64_t, j->host);

	epf_block_barrier();
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads) {
		n.adds[r] = j->nodes == 1 && !late ? ht_sent_by(j, call, r) : 0;
		n.out[r] = n.in[r] = 0;
	}
	if (j->nodes > 1) {
		epf_block_barrier();
		if (!late)
			ht_count_across(j, call, n);
	}
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads) {
		uint32_t received = 0;

		if (!late)
			received = ht_sum_rows(j, call, r);
		for (uint32_t i = 0; i < j->ranks && late; i++)
			matrix[i * j->ranks + r] = 0;
		n.flags[r] = late ? 0 : ht_flags_of(j, call, r, received);
		n.adds[r] = received > n.adds[r] ? received : n.adds[r];
		n.out[r] = n.in[r] > n.out[r] ? n.in[r] : n.out[r];
		if (host && r == j->rank)
			epf_st_relaxed_sys(&host[1], late ? UINT64_MAX : received);
	}
	epf_block_barrier();
}

/*
 * What holds for all ranks: the most rows that a window holds, of any rank, and the most that cross between nodes; whether outputs fit, and whether segments are
 * to be mapped. With it the CPU has all that it waits for. One thread.
 */
EPF_DEV_FN void ht_say_sizes(const struct ht_job *j, int late, struct ht_sizes n)
{
	uint64_t *host = HT_AT(uint64_t, j->host);
	uint32_t most = 0, need = 0, grown = 0, all = late ? 0 : HT_FITS | HT_WAITS, fits;

	LL_ROLLED
	for (uint32_t r = 0; r < j->ranks; r++) {
		most = n.adds[r] > most ? n.adds[r] : most;
		need = n.out[r] > need ? n.out[r] : need;
		grown |= n.flags[r] & HT_GROWN;
		all &= n.flags[r];
	}
	fits = most <= j->room ? all & HT_FITS : 0;
	grown = all & HT_WAITS ? grown : 0;
	epf_st_relaxed_gpu(&ht_state_of(j)->fits, fits);
	*HT_AT(uint32_t, j->plan + j->at.need) = need;
	if (!host)
		return;
	epf_st_relaxed_sys(&host[2], most);
	epf_st_relaxed_sys(&host[3], need);
	epf_st_relaxed_sys(&host[4], n.in[j->rank]);
	epf_st_relaxed_sys(&host[5], grown | fits);
	epf_fence_sys();
	epf_st_relaxed_sys(&host[0], j->ticket);
}

/* The leg to a node. */
EPF_DEV_FN struct ht_leg ht_leg_out(const struct ht_job *j, uint64_t call, uint32_t node)
{
	struct ht_leg l = { -1, 0, 0, 0 };
	uint32_t via = ht_via(j, j->rank, node);

	if (node == j->node)
		return l;
	l.rank = (int32_t)via;
	l.rows = ht_told(j, call, j->rank, j->ranks + node);
	for (uint32_t n = 0; n < node; n++)
		if (n != j->node)
			l.mine += ht_told(j, call, j->rank, j->ranks + n);
	for (uint32_t s = 0; s < j->rank; s++)
		if (ht_peer_of(j, s)->node != node && ht_via(j, s, node) == via)
			l.theirs += ht_told(j, call, s, j->ranks + node);
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
	l.rows = ht_told(j, call, source, j->ranks + j->node);
	for (uint32_t s = 0; s < source; s++)
		if (ht_serves(j, s))
			l.mine += ht_told(j, call, s, j->ranks + j->node);
	for (uint32_t n = 0; n < j->node; n++)
		if (n != ht_peer_of(j, source)->node)
			l.theirs += ht_told(j, call, source, j->ranks + n);
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
		uint32_t adder = ht_mate_index(j, ht_via(j, i / size, j->node)), sum = 0;

		for (uint32_t m = 0; m < i % size; m++)
			sum += totals[adder * size + m];
		parts[i / size * j->node_max + i % size] += sum;
	}
}

/* From the counts of all ranks: the matrix of rows, the plan, and what the CPU waits for. All threads of a block. */
HT_FAR_FN void ht_read_many(const struct ht_job *j, uint64_t call, int late)
{
	struct ht_leg none = { -1, 0, 0, 0 };
	struct ht_sizes sizes = ht_sizes();

	ht_read_rows(j, call, late, sizes);
	if (epf_thread_in_block() + 1u == j->threads) /* which has nothing else to do */
		ht_say_sizes(j, late, sizes);
	for (uint32_t n = epf_thread_in_block(); n < j->nodes; n += j->threads)
		ht_legs_out(j)[n] = late ? none : ht_leg_out(j, call, n);
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		ht_legs_in(j)[r] = late ? none : ht_leg_in(j, call, r);
	ht_plan_parts(j);
}

/* The same of few ranks of one node, where each adds its own rows. The code is short: it has to be fetched while all wait. */
EPF_DEV_FN void ht_read_few(const struct ht_job *j, uint64_t call, int late)
{
	uint32_t *matrix = HT_AT(uint32_t, j->matrix);
	uint32_t *parts = HT_AT(uint32_t, j->plan + j->at.parts);
	uint32_t *totals = HT_AT(uint32_t, j->plan + j->at.totals);
	struct ht_sizes n = ht_sizes();

	epf_block_barrier();
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads) {
		uint32_t received = 0, sent = 0;

		LL_ROLLED
		for (uint32_t i = 0; i < j->ranks; i++) {
			uint32_t rows = i == r ? 0 : ht_told(j, call, r, i);

			received += ht_told(j, call, i, r);
			matrix[i * j->ranks + r] = received;
			parts[r * j->ranks + i] = sent;
			totals[r * j->ranks + i] = rows;
			sent += rows;
		}
		n.adds[r] = received > sent ? received : sent;
		n.out[r] = n.in[r] = 0;
		n.flags[r] = ht_flags_of(j, call, r, received);
		if (j->host && r == j->rank)
			epf_st_relaxed_sys(HT_AT(uint64_t, j->host) + 1,
					   late ? UINT64_MAX : received);
	}
	epf_block_barrier();
	if (epf_thread_in_block() == 0)
		ht_say_sizes(j, late, n);
}

/* Waits for the counts of all ranks, and reads them. One block. */
EPF_DEV_FN void ht_take_counts(const struct ht_job *j, uint64_t call)
{
	int late;

	if (epf_thread_in_block() == 0)
		ht_count_from(j, call, 1);
	late = ht_wait_counts(j, call);
	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_WAIT);
	ht_say_entries(j, late);
	if (j->nodes == 1 && j->ranks <= HT_FEW)
		ht_read_few(j, call, late);
	else
		ht_read_many(j, call, late);
	if (epf_thread_in_block() == 0) {
		ht_phase(j, EPF_WHY_COPY);
		epf_st_relaxed_gpu(&ht_state_of(j)->counted, call + 1u);
	}
}

/* This block's counts are written: the last of `all` sends those for ranks of other nodes, and waits until they are on their way. */
HT_FAR_FN void ht_send_far_counts(const struct ht_job *j, uint64_t call, uint32_t all)
{
	if (!ht_last_of(&ht_state_of(j)->done[0], all, 1))
		return;
	if (epf_thread_in_block() < LL_LANES) {
		epf_fence_sys();
		ht_push_counts(j, call);
	}
	if (epf_thread_in_block() == 0)
		ht_wait_sent(j);
}

/*
 * A block for each rank, with several nodes then one for each node, and as many that number rows meanwhile. Where it looks at topk_idx itself there is one for
 * each chunk of a rank's tokens, and the last of these numbers them. The last block of all waits for what other ranks send.
 */
EPF_DEV_FN void ht_notify(const struct ht_job *j)
{
	uint64_t call = epf_ld_relaxed_gpu(&ht_state_of(j)->counted);
	uint32_t all = ht_counted(j), to = epf_block_number() / j->chunks, rows = 0;
	int counts = j->looks || to < all;

	if (epf_block_number() + 1u == j->blocks) {
		ht_take_counts(j, call);
		return;
	}
	if (j->looks) {
		if (!ht_look_for(j, to, epf_block_number() % j->chunks, &rows))
			return;
	} else if (counts) {
		rows = ht_rows_for(j, to);
	}
	if (counts)
		ht_send_counts(j, call, to, rows);
	if (j->looks || !counts)
		ht_number_rows(j, counts ? to : to - all);
	if (counts && j->nodes > 1)
		ht_send_far_counts(j, call, all);
}

#endif
