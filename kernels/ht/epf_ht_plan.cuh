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

/*
 * Rows for a rank or node as the layout says; UINT32_MAX: this is not known. All other ranks reckon with that number, so what in_rank has beyond it is left out.
 */
EPF_DEV_FN uint32_t ht_laid(const struct ht_job *j, uint32_t to)
{
	uint32_t rows;

	if (!j->per_rank || j->looks || j->nodes > 1)
		return UINT32_MAX;
	rows = HT_AT(const uint32_t, j->per_rank)[to];
	return rows < j->tokens ? rows : j->tokens;
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

/* What a block numbers of the rows for one rank or node. */
struct ht_share {
	uint32_t begin; /* the first token */
	uint32_t end;   /* one past the last one */
	uint32_t laid;  /* ht_laid() */
};

/*
 * Numbers the rows of a batch that begins at token `first` for one rank or node, from `next` on, in ascending token: a thread has neighbours. Those of lanes before
 * it are counted bit by bit. Returns the number behind the last one, in all threads.
 */
EPF_DEV_FN uint32_t ht_number_batch(const struct ht_job *j, uint32_t to, const struct ht_share *t,
				    uint32_t first, uint32_t next)
{
	EPF_DEV_SHARED uint32_t rows[HT_WARPS];
	uint32_t me = epf_thread_in_block(), warp = me / LL_LANES, warps = j->threads / LL_LANES;
	uint32_t goes = 0, count = 0, sum = 0, place = next;

	LL_ROLLED
	for (uint32_t s = 0; s < HT_STEPS; s++) {
		uint32_t token = first + me * HT_STEPS + s;
		uint32_t is_one = token < t->end && ht_goes(j, token, to);

		goes |= is_one << s;
		count += is_one;
	}
	LL_UNROLL
	for (uint32_t bit = 0; 1u << bit <= HT_STEPS; bit++) {
		epf_lanes some = epf_lanes_where((int)(count >> bit & 1u));

		place += epf_lanes_before(some) << bit;
		sum += epf_lanes_count(some) << bit;
	}
	epf_block_barrier();
	if (epf_lane() == 0)
		rows[warp] = sum;
	epf_block_barrier();
	LL_ROLLED
	for (uint32_t w = 0; w < warps; w++) {
		place += w < warp ? rows[w] : 0;
		next += rows[w];
	}
	LL_ROLLED
	for (uint32_t s = 0; s < HT_STEPS; s++) {
		uint32_t token = first + me * HT_STEPS + s, is_one = goes >> s & 1u;

		if (token >= t->begin && token < t->end)
			ht_note_place(j, token, to,
				      is_one && place < t->laid ? (int32_t)place : -1);
		place += is_one;
	}
	return next;
}

/*
 * Numbers the rows for one rank or node in ascending token. One of `shares` blocks, which all look at the tokens before theirs: to store the numbers takes longer.
 */
EPF_DEV_FN void ht_number_rows(const struct ht_job *j, uint32_t to, uint32_t share, uint32_t shares)
{
	uint32_t each = (j->tokens + shares - 1u) / shares, next = 0;
	struct ht_share t = { share * each, (share + 1u) * each, ht_laid(j, to) };

	t.end = t.end < j->tokens ? t.end : j->tokens;
	for (uint32_t first = 0; first < t.end; first += ht_batch(j))
		next = ht_number_batch(j, to, &t, first, next);
	if (epf_thread_in_block() == 0 && share + 1u == shares && t.laid != UINT32_MAX &&
	    next != t.laid)
		ht_complain(j, HT_BAD_LAYOUT, t.laid, next);
	epf_block_barrier();
}

/* How many rows there are for one rank or node, in all threads of the block. */
EPF_DEV_FN uint32_t ht_rows_for(const struct ht_job *j, uint32_t to)
{
	EPF_DEV_SHARED uint32_t rows;
	uint32_t laid = ht_laid(j, to), mine = 0;

	if (laid != UINT32_MAX)
		return laid;
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

/* The room of the guessed dispatch, and whether it exchanges the counts: all ranks must say the same. */
EPF_DEV_FN uint32_t ht_room_said(const struct ht_job *j)
{
	return j->room ^ j->counting << 31;
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
		ht_send_count(j, call, to, ht_counts_flags(j) + 1u, ht_room_said(j));
	}
	for (uint32_t e = epf_thread_in_block(); e < j->local; e += j->threads)
		ht_send_count(j, call, to, ht_counts_experts(j) + e, entries[e]);
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

/* The thread of a block that decides, for it has nothing else to do. */
EPF_DEV_FN int ht_decides(const struct ht_job *j)
{
	return epf_thread_in_block() + 1u == j->threads;
}

/* Block 0 of a dispatch that exchanges counts waits for the others, which have done then what they do for it. One thread. */
EPF_DEV_FN void ht_wait_met(const struct ht_job *j)
{
	struct ht_state *s = ht_state_of(j);

	while (epf_ld_acquire_gpu(&s->met) != j->blocks)
		epf_relax();
	epf_st_relaxed_gpu(&s->met, 0);
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

/* Of each rank, in shared memory; adds and out of many ranks lie where the sums of entries were (ht_entries()), which the CPU has by then. */
struct ht_sizes {
	uint32_t *
		adds; /* the most rows that its window holds: those received in a dispatch, or those that a combine adds */
	uint32_t *out;   /* the most that cross to or from other nodes */
	uint32_t *flags; /* of ht_flags_of() */
	uint32_t *in;    /* rows that it forwards */
};

EPF_DEV_FN struct ht_sizes ht_sizes(void)
{
	struct ht_counting *c = &ht_shared()->counting;
	struct ht_sizes s = { c->entries, c->entries + HT_RANKS_MAX, c->flags, c->in };

	return s;
}

EPF_DEV_FN struct ht_sizes ht_sizes_of_few(void)
{
	uint32_t *at = ht_shared()->counting.flags;
	struct ht_sizes s = { at, at + HT_FEW, at + 2u * HT_FEW, at + HT_FEW };

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
		   ht_told(j, call, rank, ht_counts_flags(j) + 1u) == ht_room_said(j);

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

/* What all ranks alike make of the counts. */
struct ht_verdict {
	uint32_t room;      /* rows that windows must hold */
	uint32_t need;      /* rows that areas across nodes must hold */
	uint32_t forwarded; /* rows that this rank forwards */
	uint32_t bits;      /* HT_GROWN, HT_FITS */
};

/* Reaches it, and notes whether outputs fit. One thread. */
EPF_DEV_FN struct ht_verdict ht_decide(const struct ht_job *j, int late, struct ht_sizes n)
{
	uint32_t grown = 0, all = late ? 0 : HT_FITS | HT_WAITS;
	struct ht_verdict v = { 0, 0, n.in[j->rank], 0 };

	LL_ROLLED
	for (uint32_t r = 0; r < j->ranks; r++) {
		v.room = n.adds[r] > v.room ? n.adds[r] : v.room;
		v.need = n.out[r] > v.need ? n.out[r] : v.need;
		grown |= n.flags[r] & HT_GROWN;
		all &= n.flags[r];
	}
	v.bits = (v.room <= j->room ? all & HT_FITS : 0) | (all & HT_WAITS ? grown : 0);
	epf_st_relaxed_gpu(&ht_state_of(j)->fits, v.bits & HT_FITS);
	*HT_AT(uint32_t, j->plan + j->at.need) = v.need;
	return v;
}

/* Tells the CPU, which then has all that it waits for. One thread, when the others have stored what they tell it. */
EPF_DEV_FN void ht_say_verdict(const struct ht_job *j, const struct ht_verdict *v)
{
	uint64_t *host = HT_AT(uint64_t, j->host);

	if (!host)
		return;
	epf_st_relaxed_sys(&host[2], v->room);
	epf_st_relaxed_sys(&host[3], v->need);
	epf_st_relaxed_sys(&host[4], v->forwarded);
	epf_st_relaxed_sys(&host[5], v->bits);
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
	if (ht_decides(j)) {
		struct ht_verdict v = ht_decide(j, late, sizes);

		ht_say_verdict(j, &v);
	}
	for (uint32_t n = epf_thread_in_block(); n < j->nodes; n += j->threads)
		ht_legs_out(j)[n] = late ? none : ht_leg_out(j, call, n);
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		ht_legs_in(j)[r] = late ? none : ht_leg_in(j, call, r);
	ht_plan_parts(j);
}

/*
 * The same of few ranks of one node, where each adds its own rows, but for the CPU. The code is short: it has to be fetched while all wait. Returns the verdict in the
 * thread that decides.
 */
EPF_DEV_FN struct ht_verdict ht_read_few(const struct ht_job *j, uint64_t call, int late)
{
	uint32_t *matrix = HT_AT(uint32_t, j->matrix);
	uint32_t *parts = HT_AT(uint32_t, j->plan + j->at.parts);
	uint32_t *totals = HT_AT(uint32_t, j->plan + j->at.totals);
	struct ht_sizes n = ht_sizes_of_few();
	struct ht_verdict v = { 0 };

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
	if (j->counting && epf_thread_in_block() == j->threads / 2u) /* meanwhile */
		ht_wait_met(j);
	epf_block_barrier();
	if (ht_decides(j))
		v = ht_decide(j, late, n);
	return v;
}

/* Lets them go on: the matrix and the verdict are there. All threads. */
EPF_DEV_FN void ht_let_go(const struct ht_job *j, uint64_t call)
{
	epf_block_barrier();
	if (epf_thread_in_block() != 0)
		return;
	epf_fence_gpu();
	epf_st_release_gpu(&ht_state_of(j)->counted, call + 1u);
}

/* Waits for the counts of all ranks, reads them, and tells the CPU. One block. */
EPF_DEV_FN void ht_take_counts(const struct ht_job *j, uint64_t call)
{
	int late = ht_wait_counts(j, call);

	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_WAIT);
	if (j->nodes == 1 && j->ranks <= HT_FEW) {
		struct ht_verdict v = ht_read_few(j, call, late);

		if (j->counting)
			ht_let_go(j, call);
		ht_say_entries(j, late);
		epf_block_barrier();
		if (ht_decides(j))
			ht_say_verdict(j, &v);
	} else {
		ht_say_entries(j, late); /* before their place is used for sizes */
		ht_read_many(j, call, late);
	}
	if (epf_thread_in_block() == 0)
		ht_phase(j, EPF_WHY_COPY);
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
 * Pieces of what a rank does for an exchange without waiting: for each rank, with several nodes then for each node, it counts rows, and in `chunks` pieces it numbers
 * them. Where it looks at topk_idx itself there is one for each chunk of a rank's tokens, and the last of these numbers the rows.
 */
EPF_DEV_FN uint32_t ht_count_pieces(const struct ht_job *j)
{
	return j->looks ? j->ranks * j->chunks : ht_counted(j) * (1u + j->chunks);
}

/* One of them. All threads of a block. */
EPF_DEV_FN void ht_count_piece(const struct ht_job *j, uint64_t call, uint32_t piece)
{
	uint32_t all = ht_counted(j), rows;

	if (j->looks) {
		if (!ht_look_for(j, piece / j->chunks, piece % j->chunks, &rows))
			return;
		ht_send_counts(j, call, piece / j->chunks, rows);
		ht_number_rows(j, piece / j->chunks, 0, 1);
	} else if (piece < all) {
		ht_send_counts(j, call, piece, ht_rows_for(j, piece));
		if (j->nodes > 1)
			ht_send_far_counts(j, call, all);
	} else {
		ht_number_rows(j, (piece - all) / j->chunks, (piece - all) % j->chunks, j->chunks);
	}
}

/* A block for each piece; the last block waits for what other ranks send. */
EPF_DEV_FN void ht_notify(const struct ht_job *j)
{
	uint64_t call = epf_ld_relaxed_gpu(&ht_state_of(j)->counted);

	if (epf_block_number() + 1u < j->blocks) {
		ht_count_piece(j, call, epf_block_number());
		return;
	}
	if (epf_thread_in_block() == 0)
		ht_count_from(j, call, 1);
	ht_take_counts(j, call);
	if (epf_thread_in_block() == 0)
		epf_st_relaxed_gpu(&ht_state_of(j)->counted, call + 1u);
}

#endif
