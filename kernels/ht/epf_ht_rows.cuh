/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as warps move them, in chunks, and where they go within the node: what a block knows of the members of its node, and writing to them. */
#ifndef EPF_KERNELS_HT_ROWS_CUH
#define EPF_KERNELS_HT_ROWS_CUH

#include "kernels/ht/epf_ht_plan.cuh"

#define HT_GROUP_CHUNKS 4u  /* at most */
#define HT_GROUPS       16u /* that a warp moves, at least, where a group is more than a chunk */

/* A row moves in chunks of equal size; a warp moves one at a time. */
struct ht_chunks {
	uint32_t count; /* of a row */
	uint32_t each;  /* vectors of a chunk */
	uint32_t all;   /* vectors of a row */
};

EPF_DEV_FN struct ht_chunks ht_chunks(const struct ht_job *j)
{
	struct ht_chunks c;

	c.all = j->row_bytes / HT_VEC;
	c.count = (c.all + HT_CHUNK_VECS * LL_LANES - 1u) / (HT_CHUNK_VECS * LL_LANES);
	c.each = (c.all + c.count - 1u) / c.count;
	return c;
}

/* Vectors of chunk k. */
EPF_DEV_FN uint32_t ht_chunk_end(const struct ht_chunks *c, uint32_t k)
{
	return (k + 1u) * c->each < c->all ? (k + 1u) * c->each : c->all;
}

struct ht_chunk {
	struct ll_vec v[HT_CHUNK_VECS];
};

/* Bytes from one of a lane's vectors to the next: its neighbours have those between. */
#define HT_STRIDE (LL_LANES * (uint64_t)HT_VEC)

/* Rows pass a multiprocessor once: they stay out of its first-level cache, where the small tables are. */
EPF_DEV_FN struct ll_vec ht_load_vec(uint64_t at)
{
#if defined(__CUDA_ARCH__)
	struct ll_vec v;

	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
		     : "l"(at));
	return v;
#else
	return *HT_AT(const struct ll_vec, at);
#endif
}

EPF_DEV_FN void ht_store_vec(uint64_t at, const struct ll_vec *v)
{
	*HT_AT(struct ll_vec, at) = *v;
}

/* What is not read again here leaves the second-level cache first: rows that have just arrived stay there for the spread. 2 to 4 % of a grouped dispatch. */
EPF_DEV_FN void ht_store_vec_once(uint64_t at, const struct ll_vec *v)
{
#if defined(__CUDA_ARCH__)
	asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v->w[0]),
		     "r"(v->w[1]), "r"(v->w[2]), "r"(v->w[3])
		     : "memory");
#else
	ht_store_vec(at, v);
#endif
}

/* A warp's vectors of a chunk: where this lane's first one lies in the row, and how many all lanes have. */
struct ht_vecs {
	uint64_t at; /* bytes */
	uint32_t count;
};

EPF_DEV_FN struct ht_vecs ht_vecs_of(const struct ht_chunks *c, uint32_t k)
{
	struct ht_vecs v = { (uint64_t)(k * c->each + epf_lane()) * HT_VEC,
			     ht_chunk_end(c, k) - k * c->each };

	return v;
}

/* Does each lane have `each` vectors of them, and not fewer? Then it need not ask for each: with few multiprocessors instructions decide how fast rows move. */
EPF_DEV_FN int ht_all_have(const struct ht_vecs *v, uint32_t each)
{
	return v->count >= each * LL_LANES;
}

/* Does this lane have vector i? */
EPF_DEV_FN int ht_has(const struct ht_vecs *v, uint32_t i)
{
	return epf_lane() + i * LL_LANES < v->count;
}

EPF_DEV_FN void ht_load(const struct ht_chunks *c, struct ht_chunk *p, uint32_t k, uint64_t row)
{
	struct ht_vecs v = ht_vecs_of(c, k);
	uint64_t at = row + v.at;

	if (ht_all_have(&v, HT_CHUNK_VECS)) {
		LL_UNROLL
		for (uint32_t i = 0; i < HT_CHUNK_VECS; i++)
			p->v[i] = ht_load_vec(at + i * HT_STRIDE);
		return;
	}
	LL_UNROLL
	for (uint32_t i = 0; i < HT_CHUNK_VECS; i++)
		if (ht_has(&v, i))
			p->v[i] = ht_load_vec(at + i * HT_STRIDE);
}

EPF_DEV_FN void ht_store(const struct ht_chunks *c, const struct ht_chunk *p, uint32_t k,
			 uint64_t row)
{
	struct ht_vecs v = ht_vecs_of(c, k);
	uint64_t at = row + v.at;

	if (ht_all_have(&v, HT_CHUNK_VECS)) {
		LL_UNROLL
		for (uint32_t i = 0; i < HT_CHUNK_VECS; i++)
			ht_store_vec(at + i * HT_STRIDE, &p->v[i]);
		return;
	}
	LL_UNROLL
	for (uint32_t i = 0; i < HT_CHUNK_VECS; i++)
		if (ht_has(&v, i))
			ht_store_vec(at + i * HT_STRIDE, &p->v[i]);
}

EPF_DEV_FN void ht_store_once(const struct ht_chunks *c, const struct ht_chunk *p, uint32_t k,
			      uint64_t row)
{
	struct ht_vecs v = ht_vecs_of(c, k);

	LL_UNROLL
	for (uint32_t i = 0; i < HT_CHUNK_VECS; i++)
		if (ht_has(&v, i))
			ht_store_vec_once(row + v.at + i * HT_STRIDE, &p->v[i]);
}

/*
 * Groups of chunks, shared out among warps. A warp begins with the group that has its number, and takes another when it has moved that: multiprocessors differ
 * in how fast they write, and with fixed shares the slowest one decides. The number of the next group is on its way meanwhile.
 */
struct ht_taken {
	uint64_t *counter; /* NULL: no warp moves more than one group */
	uint64_t group;    /* the one to be moved now; from `groups` on: none */
	uint64_t next;     /* the one behind it; known to the first lane */
	uint64_t groups;
	uint32_t warps;
};

EPF_DEV_FN void ht_take(struct ht_taken *t, uint64_t group)
{
	t->group = group;
	t->next = t->groups;
	if (epf_lane() == 0 && t->counter)
		t->next = t->warps + epf_add_gpu(t->counter, 1);
}

/* The first of `groups` that this warp moves; warps: of the grid, that move some. A warp. */
EPF_DEV_FN struct ht_taken ht_take_first(const struct ht_job *j, uint32_t warps, uint64_t groups)
{
	struct ht_taken t = { 0 };

	t.counter = groups > warps ? &ht_state_of(j)->taken : 0;
	t.groups = groups;
	t.warps = warps;
	ht_take(&t, ht_warp(j));
	return t;
}

EPF_DEV_FN void ht_take_next(struct ht_taken *t)
{
	ht_take(t, epf_lanes_get(epf_lanes_where(1), t->next, 0));
}

/* Chunks of a group: as many as let each of so many warps take several, since each time it waits for a number. */
EPF_DEV_FN uint32_t ht_group_chunks(uint64_t chunks, uint32_t warps)
{
	uint64_t n = chunks / warps / HT_GROUPS;

	return n < 1u ? 1u : n > HT_GROUP_CHUNKS ? HT_GROUP_CHUNKS : (uint32_t)n;
}

/* ---- where rows go ---- */

/* Does what comes for this rank go straight to its outputs? */
EPF_DEV_FN int ht_is_own(const struct ht_job *j, const struct ht_mark *m)
{
	return m->rank == j->rank && !j->grouped;
}

/* This rank's window. */
EPF_DEV_FN uint64_t ht_window(const struct ht_job *j)
{
	return ht_marks()[ht_mate_index(j, j->rank)].window;
}

/* Where a rank wants what a dispatch brings, as this rank maps it; 0: in its window, or, of rows, nowhere that is mapped. */
struct ht_offer {
	uint64_t at[HT_PLACES];
	uint32_t room;
	uint32_t stride;
	int in_window; /* rows */
	int is_there;  /* the rank has said all of it */
};

/* Loads that do not wait for each other: they are in front of the first row. */
EPF_DEV_FN struct ht_offer ht_offer_of(const struct ht_job *j, uint64_t call, uint32_t rank)
{
	const uint64_t *line = ht_flag_at(j, j->control, HT_READY, rank);
	const uint64_t *bases = HT_AT(const uint64_t, j->segments) + (uint64_t)rank * HT_SEGMENTS;
	uint64_t word[HT_READY_SAID], place[HT_PLACES], base[HT_PLACES];
	uint64_t begun = ht_begun(j, call);
	struct ht_offer o;

	LL_UNROLL
	for (uint32_t i = 0; i < HT_READY_SAID; i++)
		word[i] = epf_ld_relaxed_sys(line + i);
	o.is_there = word[HT_READY_FLAG] >= begun;
	LL_UNROLL
	for (uint32_t i = HT_READY_PLACES; i < HT_READY_SAID; i++)
		o.is_there &= (int32_t)((uint32_t)(word[i] >> 32) - (uint32_t)begun) >= 0;
	LL_UNROLL
	for (uint32_t i = 0; i < HT_PLACES; i++) {
		uint32_t low = HT_READY_PLACES + 2u * i, segment;

		place[i] = (uint32_t)word[low] | word[low + 1u] << 32;
		segment = (uint32_t)(place[i] >> 48);
		base[i] =
			j->segments && segment && segment <= HT_SEGMENTS ? bases[segment - 1u] : 0;
	}
	LL_UNROLL
	for (uint32_t i = 0; i < HT_PLACES; i++)
		o.at[i] = base[i] ? base[i] + (place[i] & HT_OFFSETS) : 0;
	o.room = (uint32_t)word[HT_READY_ROOM];
	o.stride = (uint32_t)word[HT_READY_STRIDE];
	o.in_window = !place[HT_PLACE_OUT];
	return o;
}

/* To the window of a member. */
EPF_DEV_FN struct ht_beside ht_beside_in(const struct ht_job *j, const struct ht_mark *m)
{
	struct ht_beside b;

	b.index = m->window + j->lay.index;
	b.weights = m->window + j->lay.weights;
	b.scales = m->window + j->lay.scales;
	b.numbers = 0;
	b.stride[0] = j->scale_words;
	b.stride[1] = 1;
	b.in_window = 1;
	return b;
}

EPF_DEV_FN struct ht_beside ht_beside_of(const struct ht_job *j, const struct ht_mark *m)
{
	if (j->node_max <= HT_BESIDE_RANKS)
		return ht_besides()[m - ht_marks()];
	return ht_is_own(j, m) ? ht_besides()[HT_BESIDE_RANKS] : ht_beside_in(j, m);
}

/* Notes where what travels with rows goes at a member that may be written to. */
EPF_DEV_FN void ht_mark_beside(const struct ht_job *j, const struct ht_mark *m,
			       const struct ht_offer *o)
{
	int few = j->node_max <= HT_BESIDE_RANKS;
	struct ht_beside b = ht_beside_in(j, m);

	if (ht_is_own(j, m)) {
		b.index = j->out_index;
		b.weights = j->out_weights;
		b.scales = j->out_scales;
		b.numbers = j->out_numbers;
		b.stride[0] = (uint32_t)j->out_stride[0];
		b.stride[1] = (uint32_t)j->out_stride[1];
		b.in_window = 0;
	} else if (o->at[HT_PLACE_INDEX] | o->at[HT_PLACE_SCALES] | o->at[HT_PLACE_NUMBERS]) {
		b.index = o->at[HT_PLACE_INDEX];
		b.weights = o->at[HT_PLACE_WEIGHTS];
		b.scales = o->at[HT_PLACE_SCALES];
		b.numbers = o->at[HT_PLACE_NUMBERS];
		b.stride[0] = o->stride;
		b.in_window = 0;
	}
	if (few || ht_is_own(j, m))
		ht_besides()[few ? m - ht_marks() : HT_BESIDE_RANKS] = b;
}

/* Where the rows of a member of this node for a source begin in the window of the rank that adds them. */
EPF_DEV_FN uint32_t ht_part_first(const struct ht_job *j, uint32_t source, uint32_t member)
{
	return HT_AT(const uint32_t, j->plan + j->at.parts)[source * j->node_max + member];
}

/* Fills in the marks, but for rows and what other ranks say. All threads of a block. */
EPF_DEV_FN void ht_mark_members(const struct ht_job *j)
{
	for (uint32_t m = epf_thread_in_block(); m < ht_mates(j); m += j->threads) {
		struct ht_mark *k = &ht_marks()[m];

		k->rank = ht_mate(j, m);
		k->window = ht_peer_of(j, k->rank)->window;
		k->arrived = k->parts = 0;
		if (j->segments) /* of ht_offer_of() */
			epf_prefetch(HT_AT(const uint64_t, j->segments) +
				     (uint64_t)k->rank * HT_SEGMENTS);
	}
}

/* Fills in where in the matrix this rank's rows are, once it is known; the threads that have filled in the members. */
EPF_DEV_FN void ht_mark_rows(const struct ht_job *j, int dispatch)
{
	for (uint32_t m = epf_thread_in_block(); m < ht_mates(j); m += j->threads) {
		struct ht_mark *k = &ht_marks()[m];
		uint32_t before = ht_rows_until(j, j->rank - 1u, k->rank);

		k->rows = ht_rows_until(j, j->rank, k->rank) - before;
		k->first = dispatch || k->rank == j->rank ? before : ht_part_first(j, j->rank, m);
	}
}

/*
 * Fills in where to write; all threads of a block, after the flags HT_READY. A rank that has not set its flag, or that waits no longer for this call, is
 * not written to: its memory may serve something else by now.
 */
EPF_DEV_FN void ht_mark_targets(const struct ht_job *j, uint64_t call, int dispatch)
{
	epf_block_barrier();
	for (uint32_t m = epf_thread_in_block(); m < ht_mates(j); m += j->threads) {
		struct ht_mark *k = &ht_marks()[m];
		struct ht_offer o = { .in_window = 1 };

		k->room = j->room;
		k->at = k->window + j->lay.rows;
		if (ht_is_own(j, k)) {
			k->at = j->out;
			k->room = j->received;
		} else if (k->rank == j->rank) {
			; /* the window, for rows that have crossed */
		} else {
			uint64_t gone =
				epf_ld_relaxed_sys(ht_flag_at(j, j->control, HT_GONE, k->rank));

			if (dispatch)
				o = ht_offer_of(j, call, k->rank);
			else
				o.is_there = epf_ld_acquire_sys(ht_flag_at(j, j->control, HT_READY,
									   k->rank)) >=
					     ht_begun(j, call);
			if (!o.in_window) {
				k->at = o.at[HT_PLACE_OUT];
				k->room = o.room < k->room ? o.room : k->room;
			}
			k->at = o.is_there && gone < call + 1u ? k->at : 0;
		}
		k->room = k->at ? k->room : 0;
		if (dispatch && k->room)
			ht_mark_beside(j, k, &o);
		if (!k->at && k->rank != j->rank)
			epf_st_relaxed_gpu(&ht_peer_of(j, k->rank)->skipped, call + 1u);
	}
	epf_block_barrier();
}

/* Tells the ranks of this node that a part of what goes to them is written, but those that nothing was written to; a warp of the last block. */
EPF_DEV_FN void ht_tell_rows(const struct ht_job *j, uint64_t call, uint32_t part)
{
	epf_fence_sys();
	for (uint32_t i = epf_lane(); i < ht_mates(j); i += LL_LANES) {
		const struct ht_peer *p = ht_peer_of(j, ht_mate(j, i));

		if (epf_ld_relaxed_gpu(&p->skipped) != call + 1u)
			epf_st_relaxed_sys(ht_word_at(j, p->control, HT_ROWS, j->rank, part),
					   call + 1u);
	}
}

/*
 * Final index of a token's row at a member of this node, or UINT32_MAX: there is no such member, or it does not go there, or must not, or need not, for the spread of a grouped dispatch
 * reads this rank's rows where they are.
 */
EPF_DEV_FN uint32_t ht_index_at(const struct ht_job *j, uint32_t token, uint32_t member)
{
	const struct ht_mark *m = &ht_marks()[member < HT_NODE_MAX ? member : 0];
	uint32_t index;
	int32_t place;

	if (member >= ht_mates(j))
		return UINT32_MAX;
	place = HT_AT(const int32_t, j->place)[(uint64_t)token * j->ranks + m->rank];
	index = m->first + (uint32_t)place;
	return place < 0 || index >= m->room || (j->grouped && m->rank == j->rank) ? UINT32_MAX
										   : index;
}

/* What travels with a row, where it lies at the sender. 0: not given. */
struct ht_extras {
	uint64_t scales;
	uint64_t stride; /* words */
	uint64_t index;
	uint64_t weights;
	uint64_t entries; /* numbers of its entries: the words behind the row's */
	uint32_t words;   /* that lie at scales */
	uint32_t number;  /* of the row: the word behind them, if that is not there */
};

/* Of a token of this rank. */
EPF_DEV_FN struct ht_extras ht_extras_of(const struct ht_job *j, uint32_t token)
{
	struct ht_extras e;

	e.scales = j->scales + token * j->scale_stride[0] * 4u;
	e.stride = j->scale_stride[1];
	e.index = j->topk_idx + (uint64_t)token * j->topk * 8u;
	e.weights = j->weights ? j->weights + (uint64_t)token * j->topk * 4u : 0;
	e.entries = j->numbers + (uint64_t)token * j->topk * 4u;
	e.words = j->scale_words - j->numbered;
	e.number = j->first_number + token;
	return e;
}

/* Of a row that has crossed. */
EPF_DEV_FN struct ht_extras ht_extras_in(const struct ht_job *j, uint64_t record)
{
	struct ht_extras e;

	e.scales = record + j->rec.scales;
	e.stride = 1;
	e.index = record + j->rec.index;
	e.weights = record + j->rec.weights;
	e.entries = 0;
	e.words = j->scale_words;
	e.number = 0;
	return e;
}

/* Word i of a row's scales, or of the numbers behind them. */
EPF_DEV_FN uint32_t ht_extra_word(const struct ht_extras *e, uint32_t i)
{
	if (i > e->words)
		return HT_AT(const uint32_t, e->entries)[i - e->words - 1u];
	return i < e->words ? HT_AT(const uint32_t, e->scales)[i * e->stride] : e->number;
}

/* Stores word i of a row's scales, or of the numbers behind them. */
EPF_DEV_FN void ht_put_word(const struct ht_job *j, const struct ht_beside *b, uint32_t row,
			    uint32_t i, uint32_t word)
{
	if (b->numbers && i >= j->scale_words - j->numbered)
		HT_AT(uint32_t, b->numbers)[row] = word;
	else
		HT_AT(uint32_t, b->scales)
	[(uint64_t)row * b->stride[0] + (uint64_t)i * b->stride[1]] = word;
}

/* What of it a lane holds while the row is on its way. */
struct ht_extra {
	int64_t expert;
	uint32_t weight;
	uint32_t scale[2];
};

EPF_DEV_FN struct ht_extra ht_load_extra(const struct ht_job *j, const struct ht_extras *from)
{
	struct ht_extra e = { -1, 0, { 0, 0 } };
	uint32_t lane = epf_lane();

	if (lane < j->topk) {
		e.expert = HT_AT(const int64_t, from->index)[lane];
		e.weight = from->weights ? HT_AT(const uint32_t, from->weights)[lane] : 0u;
	}
	for (uint32_t i = 0; i < 2u; i++)
		if (lane + i * LL_LANES < j->scale_words)
			e.scale[i] = ht_extra_word(from, lane + i * LL_LANES);
	return e;
}

/* Stores a top-k entry of a row as a rank numbers its experts. */
EPF_DEV_FN void ht_put_entry(const struct ht_job *j, const struct ht_beside *b, uint32_t rank,
			     uint64_t at, int64_t expert, uint32_t weight)
{
	int64_t e = expert - (int64_t)rank * j->local;
	int here = e >= 0 && e < (int64_t)j->local;

	if (b->in_window)
		HT_AT(int32_t, b->index)[at] = here ? (int32_t)e : -1;
	else
		HT_AT(int64_t, b->index)[at] = here ? e : -1;
	if (b->weights)
		HT_AT(uint32_t, b->weights)[at] = here ? weight : 0u;
}

/* What travels with a row to one rank: scales, and its experts as that rank numbers them, with their weights. A warp. mine: what it has loaded. */
EPF_DEV_FN void ht_send_extras(const struct ht_job *j, const struct ht_extras *from,
			       const struct ht_extra *mine, const struct ht_mark *m, uint32_t index)
{
	struct ht_beside b = ht_beside_of(j, m);
	uint32_t lane = epf_lane();

	for (uint32_t i = 0; i < 2u; i++)
		if (lane + i * LL_LANES < j->scale_words)
			ht_put_word(j, &b, index, lane + i * LL_LANES, mine->scale[i]);
	for (uint32_t i = lane + 2u * LL_LANES; i < j->scale_words; i += LL_LANES)
		ht_put_word(j, &b, index, i, ht_extra_word(from, i));
	if (lane < j->topk)
		ht_put_entry(j, &b, m->rank, (uint64_t)index * j->topk + lane, mine->expert,
			     mine->weight);
	for (uint32_t k = lane + LL_LANES; k < j->topk; k += LL_LANES)
		ht_put_entry(j, &b, m->rank, (uint64_t)index * j->topk + k,
			     HT_AT(const int64_t, from->index)[k],
			     from->weights ? HT_AT(const uint32_t, from->weights)[k] : 0u);
}

/* What travels with a row, to those members from `first` on that it goes to; index as below. A warp. */
EPF_DEV_FN void ht_give_extras(const struct ht_job *j, const struct ht_extras *from,
			       const struct ht_extra *mine, uint32_t first, uint32_t index)
{
	epf_lanes all = epf_lanes_where(1), to = epf_lanes_where(index != UINT32_MAX);

	for (; to; to &= to - 1u)
		ht_send_extras(j, from, mine, &ht_marks()[first + epf_lanes_first(to)],
			       (uint32_t)epf_lanes_get(all, index, epf_lanes_first(to)));
}

/*
 * One chunk of a row, to the members from `first` on of this node, a lane a member: index is the row's at that rank, or UINT32_MAX. A warp. Each rank begins
 * with itself and those behind it: were all to begin with the same one, its link would bound them.
 */
EPF_DEV_FN void ht_give_chunk(const struct ht_job *j, const struct ht_chunks *c,
			      const struct ht_chunk *p, uint32_t k, uint32_t first, uint32_t index)
{
	int behind = first + epf_lane() >= ht_mate_index(j, j->rank);
	epf_lanes all = epf_lanes_where(1);
	epf_lanes to = epf_lanes_where(index != UINT32_MAX && behind);
	epf_lanes then = epf_lanes_where(index != UINT32_MAX && !behind);

	for (; to | then; to &= to - 1u) {
		if (!to) {
			to = then;
			then = 0;
		}
		ht_store(c, p, k,
			 ht_marks()[first + epf_lanes_first(to)].at +
				 epf_lanes_get(all, index, epf_lanes_first(to)) * j->row_bytes);
	}
}

/* One chunk of a token's row, to all ranks of this node that it goes to. A warp. What travels with the row is sent while the row is on its way to here. */
EPF_DEV_FN void ht_send_chunk(const struct ht_job *j, const struct ht_chunks *c, uint32_t token,
			      uint32_t k)
{
	int with = k == 0 && (j->topk || j->scale_words);
	struct ht_extras extras = ht_extras_of(j, token);
	uint32_t index = ht_index_at(j, token, epf_lane());
	struct ht_extra mine = { 0 };
	struct ht_chunk p;

	if (with)
		mine = ht_load_extra(j, &extras);
	ht_load(c, &p, k, j->x + (uint64_t)token * j->row_bytes);
	for (uint32_t first = 0;;) {
		if (with)
			ht_give_extras(j, &extras, &mine, first, index);
		ht_give_chunk(j, c, &p, k, first, index);
		first += LL_LANES;
		if (first >= ht_mates(j))
			break;
		index = ht_index_at(j, token, first + epf_lane());
	}
}

#endif
