/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine: each rank writes its row of a token to the window of the one that adds the token's rows on this node: the token's rank, or its forwarder.
 * Sums are FP32, ranks ascending. On one node the biases come first and the sum is rounded once. With several nodes each node's sum is rounded and
 * crosses; the token's rank adds biases, then nodes ascending, and rounds. Rows that their adder holds itself are read where they are.
 *
 * On one node some warps write rows, in parts, and the others add tokens as soon as the parts that hold their rows have arrived. A warp that
 * writes never waits for another rank, so no order of rows can make ranks wait for each other; it adds tokens, too, when it has written its rows. Where a fold
 * makes the rows meanwhile, all wait for the part that they read.
 */
#ifndef EPF_KERNELS_HT_COMBINE_CUH
#define EPF_KERNELS_HT_COMBINE_CUH

#include "kernels/ht/epf_ht_return.cuh"

/* ---- adding ---- */

/* Vectors of a row that a lane adds at once. */
struct ht_piece {
	struct ll_vec v[HT_VECS];
};

/* Vectors [first, end) of a row, of which this lane has first, first + LL_LANES and so on. */
struct ht_span {
	uint32_t first;
	uint32_t end;
};

EPF_DEV_FN void ht_load_piece(const struct ht_span *a, struct ht_piece *p, uint64_t row)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS; i++)
		if (a->first + i * LL_LANES < a->end)
			p->v[i] = ht_load_vec(row + a->first * (uint64_t)HT_VEC + i * HT_STRIDE);
}

EPF_DEV_FN void ht_store_piece(const struct ht_span *a, const struct ht_piece *p, uint64_t row)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS; i++)
		if (a->first + i * LL_LANES < a->end)
			ht_store_vec(row + a->first * (uint64_t)HT_VEC + i * HT_STRIDE, &p->v[i]);
}

/*
 * Index in x (this rank's) or in the window (other ranks') of the row of a member of this node that is number `place` of a source's; UINT32_MAX:
 * none.
 */
EPF_DEV_FN uint32_t ht_part_at(const struct ht_job *j, uint32_t source, uint32_t member,
			       int32_t place)
{
	int own = ht_mate(j, member) == j->rank;
	uint32_t first =
		own ? ht_rows_until(j, source - 1u, j->rank) : ht_part_first(j, source, member);
	uint32_t room = own ? j->received : j->room;

	return place < 0 || first + (uint32_t)place >= room ? UINT32_MAX : first + (uint32_t)place;
}

/* A token whose rows this rank adds: its source, and for each member of this node which of that source's rows it is. */
struct ht_sum {
	uint32_t source;
	uint32_t by_rank; /* places are of ranks, not of members */
	const int32_t *place;
};

EPF_DEV_FN struct ht_sum ht_sum_here(const struct ht_job *j, uint32_t token)
{
	struct ht_sum s;

	s.source = j->rank;
	s.by_rank = 1;
	s.place = HT_AT(const int32_t, j->place) + (uint64_t)token * j->ranks;
	return s;
}

EPF_DEV_FN struct ht_sum ht_sum_for(const struct ht_job *j, const struct ht_leg *l, uint32_t row)
{
	struct ht_sum s;

	s.source = (uint32_t)l->rank;
	s.by_rank = 0;
	s.place = HT_AT(const int32_t, j->links) + (uint64_t)(l->mine + row) * j->node_max;
	return s;
}

/* As ht_part_at(), of a member or of none. */
EPF_DEV_FN uint32_t ht_sum_part(const struct ht_job *j, const struct ht_sum *s, uint32_t member)
{
	const struct ht_mark *m = &ht_marks()[member < HT_NODE_MAX ? member : 0];
	uint32_t index, room = m->rank == j->rank ? j->received : j->room;
	int32_t place;

	if (member >= ht_mates(j))
		return UINT32_MAX;
	if (!s->by_rank)
		return ht_part_at(j, s->source, member, s->place[member]);
	place = s->place[m->rank];
	index = m->first + (uint32_t)place;
	return place < 0 || index >= room ? UINT32_MAX : index;
}

EPF_DEV_FN void ht_add(float *sum, const struct ht_piece *p)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS * 4u; i++) {
		uint32_t two = p->v[i / 4u].w[i % 4u];

		sum[2u * i] = ll_add(sum[2u * i], ll_from_bf16(two & 0xffffu));
		sum[2u * i + 1u] = ll_add(sum[2u * i + 1u], ll_float(two & 0xffff0000u));
	}
}

EPF_DEV_FN void ht_round(struct ht_piece *p, const float *sum)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS * 4u; i++)
		p->v[i / 4u].w[i % 4u] = ll_to_bf16_pair(sum[2u * i], sum[2u * i + 1u]);
}

/*
 * Adds one piece of this node's rows of a token, two of them on their way at a time. A warp. row: ht_sum_part() of the member with this lane's number.
 * Returns whether there are any.
 */
EPF_DEV_FN int ht_add_node(const struct ht_job *j, const struct ht_sum *s, uint32_t row,
			   const struct ht_span *a, float *sum)
{
	epf_lanes all = epf_lanes_where(1);
	int any = 0;

	for (uint32_t first = 0; first < ht_mates(j); first += LL_LANES) {
		uint32_t index = first ? ht_sum_part(j, s, first + epf_lane()) : row;
		epf_lanes from = epf_lanes_where(index != UINT32_MAX);

		while (from) {
			struct ht_piece p[2] = { 0 };
			uint32_t n = 0;

			LL_UNROLL
			for (uint32_t i = 0; i < 2u; i++) {
				uint32_t lane = from ? epf_lanes_first(from) : 0;
				uint32_t at = (uint32_t)epf_lanes_get(all, index, lane);
				uint64_t base = ht_mate(j, first + lane) == j->rank
							? j->x
							: ht_window(j) + j->lay.rows;

				if (!from)
					continue;
				ht_load_piece(a, &p[i], base + (uint64_t)at * j->row_bytes);
				from &= from - 1u;
				n++;
			}
			ht_add(sum, &p[0]);
			if (n > 1u)
				ht_add(sum, &p[1]);
			any = 1;
		}
	}
	return any;
}

/* The sum of this node's weights of entry k of a token. */
EPF_DEV_FN float ht_add_weights(const struct ht_job *j, const struct ht_sum *s, uint32_t k)
{
	float sum = 0.0f;

	for (uint32_t m = 0; m < ht_mates(j); m++) {
		uint32_t at = ht_sum_part(j, s, m);
		uint64_t base =
			ht_mate(j, m) == j->rank ? j->weights : ht_window(j) + j->lay.weights;

		if (at != UINT32_MAX)
			sum = ll_add(sum, HT_AT(const float, base)[(uint64_t)at * j->topk + k]);
	}
	return sum;
}

/* One chunk of the sum of this node's rows of another node's token, to where it is sent from. A warp. */
EPF_DEV_FN void ht_stage_sum(const struct ht_job *j, const struct ht_chunks *c,
			     const struct ht_leg *l, uint32_t row, uint32_t k)
{
	uint64_t to = ht_sent_row(j, l->mine + row);
	struct ht_sum s = ht_sum_for(j, l, row);
	uint32_t mine = ht_sum_part(j, &s, epf_lane());
	struct ht_span a = { k * c->each + epf_lane(), ht_chunk_end(c, k) };

	for (; a.first - epf_lane() < a.end; a.first += HT_VECS * LL_LANES) {
		float sum[HT_VECS * 8u] = { 0 };
		struct ht_piece p = { 0 };

		(void)ht_add_node(j, &s, mine, &a, sum);
		ht_round(&p, sum);
		ht_store_piece(&a, &p, to);
	}
	if (k)
		return;
	for (uint32_t i = epf_lane(); i < j->topk; i += LL_LANES)
		HT_AT(float, to + j->rec.weights)[i] = ht_add_weights(j, &s, i);
}

/* Sums of this node for the sources that this rank forwards for. */
HT_FAR_FN void ht_return_across(const struct ht_job *j)
{
	const struct ht_leg *legs = ht_legs_in(j);
	struct ht_chunks c = ht_chunks(j);

	for (uint32_t k = 0; k < HT_SLICES; k++) {
		uint64_t before = 0;

		for (uint32_t s = 0; s < j->ranks; s++) {
			const struct ht_leg *l = &legs[s];
			uint32_t first = ht_slice(l->rows, k);
			uint64_t items = (uint64_t)(ht_slice(l->rows, k + 1u) - first) * c.count;

			if (l->rank < 0)
				continue;
			for (uint64_t i = ht_first_item(j, before); i < items; i += ht_warps(j)) {
				uint32_t row = first + (uint32_t)i / c.count;

				if (l->mine + row < j->forwarded)
					ht_stage_sum(j, &c, l, row, (uint32_t)i % c.count);
			}
			before += items;
		}
		ht_push_slice(j, legs, j->ranks, k, 1);
	}
}

/* Waits for the sums of the other nodes. */
HT_FAR_FN void ht_wait_sums(const struct ht_job *j, uint64_t call)
{
	const struct ht_leg *legs = ht_legs_out(j);
	uint32_t step = 0;

	for (uint32_t k = 0; k < HT_SLICES; k++)
		for (uint32_t n = 0; n < j->nodes; n++)
			if (legs[n].rank >= 0)
				(void)ht_wait_slice(j, call, step++, (uint32_t)legs[n].rank, k);
}

/* Where the sum of another node for a token lies; 0: that node has none. */
EPF_DEV_FN uint64_t ht_sum_from(const struct ht_job *j, uint32_t token, uint32_t node)
{
	int32_t place =
		HT_AT(const int32_t, j->plan + j->at.place)[(uint64_t)token * j->nodes + node];

	return place < 0 || !ht_net_fits(j)
		       ? 0
		       : ht_got_row(j, ht_legs_out(j)[node].mine + (uint32_t)place);
}

/* Adds one piece of what each node has of a token, each rounded, nodes ascending. A warp. */
EPF_DEV_FN void ht_add_nodes(const struct ht_job *j, const struct ht_sum *s, uint32_t row,
			     uint32_t token, const struct ht_span *a, float *sum)
{
	for (uint32_t n = 0; n < j->nodes; n++) {
		float part[HT_VECS * 8u] = { 0 };
		struct ht_piece p = { 0 };
		uint64_t from = 0;

		if (n != j->node) {
			from = ht_sum_from(j, token, n);
			if (!from)
				continue;
			ht_load_piece(a, &p, from);
		} else {
			if (!ht_add_node(j, s, row, a, part))
				continue;
			ht_round(&p, part);
		}
		ht_add(sum, &p);
	}
}

/* Begins the sum of a piece: +0, then the biases in order. */
EPF_DEV_FN void ht_begin_sum(const struct ht_job *j, uint32_t token, const struct ht_span *a,
			     float *sum)
{
	struct ht_piece p = { 0 };

	LL_UNROLL
	for (uint32_t i = 0; i < HT_VECS * 8u; i++)
		sum[i] = 0.0f;
	for (uint32_t b = 0; b < 2u; b++) {
		if (!j->bias[b])
			continue;
		ht_load_piece(a, &p, j->bias[b] + (uint64_t)token * j->row_bytes);
		ht_add(sum, &p);
	}
}

#define HT_WIDE \
 7u /* vectors of a lane that the sum below holds of two rows at once: as many as there are registers for */

EPF_DEV_FN void ht_add_vec(float *sum, const struct ll_vec *v)
{
	LL_UNROLL
	for (uint32_t i = 0; i < 4u; i++) {
		sum[2u * i] = ll_add(sum[2u * i], ll_from_bf16(v->w[i] & 0xffffu));
		sum[2u * i + 1u] = ll_add(sum[2u * i + 1u], ll_float(v->w[i] & 0xffff0000u));
	}
}

EPF_DEV_FN void ht_load_wide(const struct ht_vecs *have, struct ll_vec *v, uint64_t row)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_WIDE; i++)
		if (ht_has(have, i))
			v[i] = ht_load_vec(row + have->at + i * HT_STRIDE);
}

EPF_DEV_FN void ht_store_wide(const struct ht_vecs *have, const struct ll_vec *v, uint64_t row)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_WIDE; i++)
		if (ht_has(have, i))
			ht_store_vec(row + have->at + i * HT_STRIDE, &v[i]);
}

EPF_DEV_FN void ht_add_wide(float *sum, const struct ll_vec *v)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_WIDE; i++)
		ht_add_vec(&sum[8u * i], &v[i]);
}

/* The sum of two rows, in place of the first. One that is missing is +0. */
EPF_DEV_FN void ht_add_two(struct ll_vec *v, const struct ll_vec *w)
{
	LL_UNROLL
	for (uint32_t i = 0; i < HT_WIDE * 4u; i++)
		v[i / 4u].w[i % 4u] = ll_add_bf16_pairs(v[i / 4u].w[i % 4u], w[i / 4u].w[i % 4u]);
}

/* Two rows that are there, where each lane has all its vectors: what most tokens of two ranks are, in as few instructions as that takes. */
EPF_DEV_FN void ht_sum_two(uint64_t first, uint64_t second, uint64_t out)
{
	struct ll_vec v[HT_WIDE], w[HT_WIDE];

	LL_UNROLL
	for (uint32_t i = 0; i < HT_WIDE; i++)
		v[i] = ht_load_vec(first + i * HT_STRIDE);
	LL_UNROLL
	for (uint32_t i = 0; i < HT_WIDE; i++)
		w[i] = ht_load_vec(second + i * HT_STRIDE);
	ht_add_two(v, w);
	LL_UNROLL
	for (uint32_t i = 0; i < HT_WIDE; i++)
		ht_store_vec(out + i * HT_STRIDE, &v[i]);
}

/*
 * The sum of two rows that are here and of `more` others, in place of the first. A row that is missing is +0, and so changes nothing: a sum that began with +0
 * is never -0.
 */
EPF_DEV_FN void ht_add_many(const struct ht_vecs *have, struct ll_vec *v, struct ll_vec *w,
			    uint64_t row, epf_lanes more)
{
	float sum[HT_WIDE * 8u] = { 0 };

	ht_add_wide(sum, v);
	ht_add_wide(sum, w);
	for (; more; more &= more - 1u) {
		ht_load_wide(have, v,
			     epf_lanes_get(epf_lanes_where(1), row, epf_lanes_first(more)));
		ht_add_wide(sum, v);
	}
	LL_UNROLL
	for (uint32_t i = 0; i < HT_WIDE * 4u; i++)
		v[i / 4u].w[i % 4u] = ll_to_bf16_pair(sum[2u * i], sum[2u * i + 1u]);
}

/*
 * The sum of rows, from +0 in the order of lanes, rounded once: the loads of two rows are on their way together. A warp. have: which vectors of them; row: the
 * address of this lane's row; from: lanes that have one.
 */
EPF_DEV_FN void ht_sum_wide(struct ht_vecs have, uint64_t row, epf_lanes from, uint64_t out)
{
	epf_lanes all = epf_lanes_where(1), rest = from & (from - 1u), more = rest & (rest - 1u);
	uint64_t first = epf_lanes_get(all, row, from ? epf_lanes_first(from) : 0);
	uint64_t second = epf_lanes_get(all, row, rest ? epf_lanes_first(rest) : 0);

	for (;;) {
		if (rest && !more && ht_all_have(&have, HT_WIDE)) {
			ht_sum_two(first + have.at, second + have.at, out + have.at);
		} else {
			struct ll_vec v[HT_WIDE] = { 0 }, w[HT_WIDE] = { 0 };

			if (from)
				ht_load_wide(&have, v, first);
			if (rest)
				ht_load_wide(&have, w, second);
			if (more)
				ht_add_many(&have, v, w, row, more);
			else
				ht_add_two(v, w);
			ht_store_wide(&have, v, out);
		}
		if (have.count <= HT_WIDE * LL_LANES)
			break;
		have.count -= HT_WIDE * LL_LANES;
		have.at += HT_WIDE * HT_STRIDE;
	}
}

/* One chunk of a token's sum. A warp. */
EPF_DEV_FN void ht_sum_chunk(const struct ht_job *j, const struct ht_chunks *c,
			     const struct ht_sum *s, uint32_t token, uint32_t k)
{
	uint32_t mine = ht_sum_part(j, s, epf_lane());
	struct ht_span a = { k * c->each + epf_lane(), ht_chunk_end(c, k) };

	for (; a.first - epf_lane() < a.end; a.first += HT_VECS * LL_LANES) {
		float sum[HT_VECS * 8u];
		struct ht_piece p = { 0 };

		ht_begin_sum(j, token, &a, sum);
		if (j->nodes == 1)
			(void)ht_add_node(j, s, mine, &a, sum);
		else
			ht_add_nodes(j, s, mine, token, &a, sum);
		ht_round(&p, sum);
		ht_store_piece(&a, &p, j->out + (uint64_t)token * j->row_bytes);
	}
}

/* Sums of the weights of one token's entries: nodes ascending, in each of them ranks ascending. A lane an entry. */
EPF_DEV_FN void ht_sum_weights(const struct ht_job *j, const struct ht_sum *s, uint32_t token)
{
	for (uint32_t k = epf_lane(); k < j->topk; k += LL_LANES) {
		float sum = 0.0f;

		for (uint32_t n = 0; n < j->nodes; n++) {
			uint64_t from = n == j->node ? 0 : ht_sum_from(j, token, n);

			if (n == j->node)
				sum = ll_add(sum, ht_add_weights(j, s, k));
			else if (from)
				sum = ll_add(sum, HT_AT(const float, from + j->rec.weights)[k]);
		}
		HT_AT(float, j->out_weights)[(uint64_t)token * j->topk + k] = sum;
	}
}

/* Waits until a row of a member has arrived; place: which of its rows for this rank it is, or -1. A lane. */
EPF_DEV_FN void ht_wait_row(const struct ht_job *j, uint32_t member, int32_t place)
{
	const struct ht_mark *m = &ht_marks()[member];

	if (place < 0 || (m->rank == j->rank && !j->folded))
		return;
	while (epf_ld32_acquire_block(&m->arrived) <= (uint32_t)place)
		epf_pause();
}

/* Turns of a warp, at least, where tokens are added whole: by the last of them warps end at different times. */
#define HT_TURNS 16u

/* What a warp has taken of the sums: a whole token, or chunk k of one; place as above, of the member with the lane's number. */
struct ht_turn {
	uint32_t token;
	uint32_t k;
	int32_t place;
};

/* So many tokens, the first ones, are added whole, for each turn costs instructions; the others chunk by chunk, so that warps end together. */
EPF_DEV_FN uint32_t ht_whole_tokens(const struct ht_job *j)
{
	return j->tokens / HT_TURNS >= ht_warps(j) ? j->tokens - 2u * ht_warps(j) : 0;
}

EPF_DEV_FN struct ht_turn ht_turn_of(const struct ht_job *j, const struct ht_chunks *c,
				     uint32_t whole, uint32_t number)
{
	struct ht_turn t = { number, 0, -1 };

	if (number >= whole) {
		t.token = whole + (number - whole) / c->count;
		t.k = (number - whole) % c->count;
	}
	if (t.token < j->tokens && epf_lane() < ht_mates(j))
		t.place =
			HT_AT(const int32_t,
			      j->place)[(uint64_t)t.token * j->ranks + ht_marks()[epf_lane()].rank];
	return t;
}

/* On one node, of at most as many ranks as a warp has lanes. */
EPF_DEV_FN void ht_take_turn(const struct ht_job *j, const struct ht_chunks *c, uint32_t whole,
			     const struct ht_turn *t)
{
	const struct ht_mark *m = &ht_marks()[epf_lane() < ht_mates(j) ? epf_lane() : 0];
	struct ht_vecs have = { (uint64_t)epf_lane() * HT_VEC, c->all };
	uint32_t index = m->first + (uint32_t)t->place;
	int own = m->rank == j->rank;
	epf_lanes from = epf_lanes_where(t->place >= 0 && index < (own ? j->received : j->room));

	if (t->token >= whole)
		have = ht_vecs_of(c, t->k);
	ht_wait_row(j, epf_lane(), t->place);
	epf_warp_barrier();
	ht_sum_wide(have,
		    (own ? j->x : ht_window(j) + j->lay.rows) + (uint64_t)index * j->row_bytes,
		    from, j->out + (uint64_t)t->token * j->row_bytes);
}

/* Sums of this rank's tokens. Warps take turns as they come to them: they begin at different times, and some tokens wait for others. */
EPF_DEV_FN void ht_add_tokens(const struct ht_job *j, const struct ht_chunks *c)
{
	uint64_t *next = &ht_state_of(j)->next;
	epf_lanes all = epf_lanes_where(1);
	int wide = j->nodes == 1 && ht_mates(j) <= LL_LANES && !j->bias[0] && !j->bias[1];
	uint32_t whole = wide ? ht_whole_tokens(j) : 0;
	uint64_t mine = epf_lane() == 0 ? epf_add_gpu(next, 1) : 0;
	struct ht_turn turn = ht_turn_of(j, c, whole, (uint32_t)epf_lanes_get(all, mine, 0));

	if (epf_lane() == 0)
		mine = epf_add_gpu(next, 1);
	while (turn.token < j->tokens) {
		struct ht_sum s = ht_sum_here(j, turn.token);
		struct ht_turn now = turn;

		/* What the next turn needs, and the number of the one behind it, are on their way during this one. */
		turn = ht_turn_of(j, c, whole, (uint32_t)epf_lanes_get(all, mine, 0));
		if (epf_lane() == 0)
			mine = epf_add_gpu(next, 1);
		if (wide) {
			ht_take_turn(j, c, whole, &now);
		} else {
			for (uint32_t m = epf_lane(); m < ht_mates(j) && j->nodes == 1;
			     m += LL_LANES)
				ht_wait_row(j, m, s.place[ht_marks()[m].rank]);
			epf_warp_barrier();
			ht_sum_chunk(j, c, &s, now.token, now.k);
		}
		if (now.k == 0 && j->out_weights)
			ht_sum_weights(j, &s, now.token);
	}
	/* Waits for the last number: the counter is reset when all blocks have ended, and an addition that came after that would count in the next call. */
	if (epf_lanes_get(all, mine, 0) == UINT64_MAX)
		epf_pause();
}

/* Do the rows of others that this rank adds fit its window? One thread. */
EPF_DEV_FN void ht_check_adds(const struct ht_job *j)
{
	const uint32_t *totals = HT_AT(const uint32_t, j->plan + j->at.totals) +
				 ht_mate_index(j, j->rank) * ht_mates(j);
	uint32_t adds = 0;

	LL_ROLLED
	for (uint32_t m = 0; m < ht_mates(j); m++)
		adds += totals[m];
	ht_check_room(j, adds, j->room);
}

EPF_DEV_FN void ht_combine(const struct ht_job *j)
{
	uint64_t call = ht_moved(j);
	struct ht_chunks c = ht_chunks(j);
	uint32_t warp = epf_thread_in_block() / LL_LANES;
	int crosses = ht_crosses(j);

	for (uint32_t i = epf_thread_in_block(); i < HT_PARTS; i += j->threads)
		ht_written()[i] = 0;
	ht_meet(j, call, 0);
	ht_mark_targets(j, call, 0);
	if (epf_block_number() == 0 && epf_thread_in_block() + 1u == j->threads)
		ht_check_adds(j);
	if (ht_warp(j) < j->writers)
		ht_return_rows(j, &c);
	if (j->nodes == 1 && warp == j->threads / LL_LANES - 1u)
		ht_keep_parts(j, call);
	if (j->nodes > 1)
		ht_exchange(j, call);
	if (crosses) {
		ht_return_across(j);
		ht_wait_sums(j, call);
		if (epf_thread_in_block() == 0)
			ht_phase(j, EPF_WHY_MOVE);
	}
	ht_add_tokens(j, &c);
	ht_end(j, call, 0);
}

#endif
