/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine as kernels: the SEND half brings each output row home, to the slot [token][k] that the row's src_slot says; the RECV half adds them, in
 * top-k order. Entry points: ll_kernels.cu and ll_cpu.c.
 *
 * The sum of a token is: acc = +0; for k ascending, entries without a row left out: acc = acc + w[k] * float(row), product and sum rounded each;
 * then bf16(acc). One lane makes it for its channels, so the order never depends on how work was spread.
 */
#ifndef EPF_KERNELS_LL_COMBINE_CUH
#define EPF_KERNELS_LL_COMBINE_CUH

#include "kernels/ll/epf_ll_dispatch.cuh"

/* ---- SEND ---- */

/* Rows of one local expert that came from one rank: first place and how many. */
struct ll_range {
	uint32_t begin;
	uint32_t count;
};

EPF_DEV_FN struct ll_range ll_range_of(const struct ll_job *j, uint32_t expert, uint32_t rank)
{
	uint64_t v = LL_AT(const uint64_t, j->layout_range)[(uint64_t)expert * j->ranks + rank];
	uint64_t n = (uint64_t)j->ranks * j->tokens_max;
	struct ll_range r;

	r.begin = (uint32_t)(v >> 32);
	r.count = (uint32_t)v;
	/* It comes back from the caller: what cannot be must not lead outside of the buffers. */
	if ((uint64_t)r.begin + r.count > n || r.count > j->tokens_max) {
		ll_complain(j, LL_BAD_ROW, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, r.begin, r.count);
		r.count = 0;
	}
	return r;
}

/* Offset of the slot that row `place` goes to, in its home's memory; 0: it cannot be. */
EPF_DEV_FN uint64_t ll_slot_at(const struct ll_job *j, uint32_t set, uint32_t expert,
			       uint32_t place)
{
	uint64_t n = (uint64_t)j->ranks * j->tokens_max;
	uint32_t slot = (uint32_t)LL_AT(const int32_t, j->src_slot)[expert * n + place];

	if (slot >= j->tokens_max * j->topk)
		return 0;
	return j->lay.home[set] + (uint64_t)slot * j->hidden * 2u;
}

/* Rows of one expert and rank: stored to their home where it is in reach, else to the memory that is sent from; a warp. */
EPF_DEV_FN void ll_return_rows(const struct ll_job *j, uint32_t set, uint32_t expert, uint32_t rank)
{
	struct ll_range range = ll_range_of(j, expert, rank);
	uint64_t list = (uint64_t)expert * j->ranks * j->tokens_max;
	uint64_t direct = ll_peer_of(j, rank)->direct;
	uint32_t bytes = j->hidden * 2u;

	if (ll_masked(j, rank) || (!direct && (j->flags & EPF_LL_ZERO_COPY)))
		return;
	for (uint32_t i = 0; i < range.count; i++) {
		uint64_t row = (list + range.begin + i) * bytes;
		uint64_t slot = ll_slot_at(j, set, expert, range.begin + i);

		if (!slot && epf_lane() == 0)
			ll_complain(j, LL_BAD_ROW, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, expert, i);
		if (slot)
			ll_copy(direct ? direct + slot : j->base + j->out_at + row, j->x + row,
				bytes);
	}
}

/* All rows of a rank that is reached by commands; a warp. */
EPF_DEV_FN int ll_push_home(const struct ll_job *j, struct epf_dev *d, uint32_t set, uint32_t rank)
{
	uint32_t signal = ll_signal(j, LL_COMBINE, set, j->rank);
	uint32_t bytes = j->hidden * 2u, puts = 0;
	int rc = 0;

	for (uint32_t e = 0; e < j->local && !rc; e++) {
		struct ll_range range = ll_range_of(j, e, rank);
		uint64_t list = (uint64_t)e * j->ranks * j->tokens_max;

		for (uint32_t first = 0; first < range.count && !rc; first += LL_LANES) {
			uint32_t i = first + epf_lane();
			uint64_t slot =
				i < range.count ? ll_slot_at(j, set, e, range.begin + i) : 0;

			rc = epf_warp_put_group(d, slot != 0, rank, j->region,
						j->out_at + (list + range.begin + i) * bytes,
						j->region, slot, bytes, signal, 0);
			puts += epf_lanes_count(epf_lanes_where(slot != 0));
		}
	}
	return rc ? rc : ll_tell(j, d, LL_COMBINE, set, rank, puts);
}

EPF_DEV_FN void ll_push_combine(const struct ll_job *j, uint32_t set)
{
	struct epf_dev d;
	int rc = 0;

	ll_tell_direct(j, LL_COMBINE, set);
	if (!ll_any_remote(j))
		return;
	epf_warp_fence();
	epf_warp_open(&d, ll_ctx(j));
	for (uint32_t i = 1; i < j->ranks && !rc; i++) {
		uint32_t r = (j->rank + i) % j->ranks;

		if (!ll_peer_of(j, r)->direct && !ll_masked(j, r))
			rc = ll_push_home(j, &d, set, r);
	}
	ll_sent(j, &d, LL_COMBINE, set);
}

EPF_DEV_FN void ll_combine_send(const struct ll_job *j)
{
	uint64_t calls = ll_calls(j, LL_COMBINE, LL_SENDING);
	uint32_t set = (uint32_t)(calls & 1u);
	uint32_t items = j->local * j->ranks;

	for (uint32_t i = ll_warp(j); i < items; i += ll_warps(j))
		ll_return_rows(j, set, i / j->ranks, i % j->ranks);
	if (!ll_last_block(j, LL_COMBINE, LL_SENDING))
		return;
	if (epf_thread_in_block() < LL_LANES)
		ll_push_combine(j, set);
	if (epf_thread_in_block() == 0)
		ll_count_call(j, LL_COMBINE, LL_SENDING, calls);
}

/* ---- RECV ---- */

/* Which slots of a token count, and with which weight. */
struct ll_terms {
	uint32_t n;
	uint32_t k[LL_TOPK]; /* slot of the row: the first entry that names its expert */
	float w[LL_TOPK];
};

EPF_DEV_FN void ll_terms_of(const struct ll_job *j, uint32_t token, struct ll_terms *out)
{
	const int64_t *experts = LL_AT(const int64_t, j->topk_idx) + (uint64_t)token * j->topk;
	const float *w = LL_AT(const float, j->weights) + (uint64_t)token * j->topk;

	out->n = 0;
	for (uint32_t k = 0; k < j->topk; k++) {
		uint32_t r = ll_rank_of(j, experts[k]), first = 0;

		if (r == UINT32_MAX || !epf_ld32_relaxed_gpu(&ll_peer_of(j, r)->live[LL_COMBINE]))
			continue;
		while (experts[first] != experts[k])
			first++;
		out->k[out->n] = first;
		out->w[out->n++] = w[k];
	}
}

/* Eight channels: 16 bytes at `at` of each row. */
EPF_DEV_FN struct ll_vec ll_sum(const struct ll_terms *t, uint64_t slots, uint64_t row_bytes,
				uint64_t at)
{
	float acc[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
	struct ll_vec out;

	for (uint32_t i = 0; i < t->n; i++) {
		struct ll_vec v = *LL_AT(const struct ll_vec, slots + t->k[i] * row_bytes + at);

		for (uint32_t c = 0; c < 8u; c++) {
			uint32_t b = (v.w[c / 2u] >> (c % 2u * 16u)) & 0xffffu;

			acc[c] = ll_add(acc[c], ll_mul(t->w[i], ll_from_bf16(b)));
		}
	}
	for (uint32_t c = 0; c < 4u; c++)
		out.w[c] = ll_to_bf16(acc[2u * c]) | ll_to_bf16(acc[2u * c + 1u]) << 16;
	return out;
}

EPF_DEV_FN void ll_combine_recv(const struct ll_job *j)
{
	uint64_t calls = ll_calls(j, LL_COMBINE, LL_RECEIVING);
	uint64_t home = j->base + j->lay.home[calls & 1u];
	uint32_t vecs = j->hidden / 8u, span = LL_LANES * LL_SPAN;
	uint32_t pieces = (vecs + span - 1u) / span;
	uint64_t row_bytes = (uint64_t)j->hidden * 2u;
	struct ll_terms terms;

	ll_wait_all(j, LL_COMBINE, calls);
	for (uint32_t i = ll_warp(j); i < j->tokens * pieces; i += ll_warps(j)) {
		uint32_t token = i / pieces;
		uint32_t first = i % pieces * span + epf_lane();
		uint32_t last = (i % pieces + 1u) * span;

		ll_terms_of(j, token, &terms);
		for (uint32_t v = first; v < last && v < vecs; v += LL_LANES)
			LL_AT(struct ll_vec, j->out + token * row_bytes)
		[v] = ll_sum(&terms, home + token * j->topk * row_bytes, row_bytes, v * 16u);
	}
	ll_received(j, LL_COMBINE, calls);
}

/* The halves that are wanted. Both: every block sends its share before any of them waits. */
EPF_DEV_FN void ll_combine(const struct ll_job *j)
{
	if (j->halves & EPF_LL_SEND)
		ll_combine_send(j);
	if (j->halves & EPF_LL_RECV)
		ll_combine_recv(j);
}

#endif
