/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch as kernels: the SEND half makes a row and sends it once to each rank that holds one of its experts; the RECV half unpacks what came
 * into one packed list per local expert. Entry points: ll_kernels.cu and ll_cpu.c.
 *
 * On the way are, for each pair of ranks: a row per token (struct ll_head and payload) at the place of its token number, and one note, which says
 * how many rows each local expert gets and which tokens there are. A receiver reads no row that a note does not name, so what was in
 * the memory before does not matter. The place of a row in the packed list follows from the notes alone, in ascending rank and token.
 */
#ifndef EPF_KERNELS_LL_DISPATCH_CUH
#define EPF_KERNELS_LL_DISPATCH_CUH

#include "kernels/epf_ll.h"
#include "kernels/ll/epf_ll_half.cuh"

EPF_DEV_FN uint32_t ll_fp8(const struct ll_job *j)
{
	return j->flags & EPF_LL_FP8 ? 1u : 0u;
}

/* 1 if no entry of this token before k names the same expert. */
EPF_DEV_FN int ll_first_of_expert(const int64_t *experts, uint32_t k)
{
	for (uint32_t i = 0; i < k; i++)
		if (experts[i] == experts[k])
			return 0;
	return 1;
}

EPF_DEV_FN int ll_first_of_rank(const struct ll_job *j, const int64_t *experts, uint32_t k)
{
	for (uint32_t i = 0; i < k; i++)
		if (ll_rank_of(j, experts[i]) == ll_rank_of(j, experts[k]))
			return 0;
	return 1;
}

/* ---- SEND ---- */

/* The row of a token, in the stage; a warp. */
EPF_DEV_FN void ll_stage_row(const struct ll_job *j, uint64_t row, uint32_t token)
{
	const int64_t *experts = LL_AT(const int64_t, j->topk_idx) + (uint64_t)token * j->topk;
	struct ll_head *head = LL_AT(struct ll_head, row);
	uint64_t payload = row + sizeof(struct ll_head);
	uint64_t x = j->x + (uint64_t)token * j->hidden * 2u;

	for (uint32_t k = epf_lane(); k < LL_TOPK; k += LL_LANES) {
		int none = k >= j->topk || ll_rank_of(j, experts[k]) == UINT32_MAX;

		head->expert[k] = none ? -1 : (int32_t)experts[k];
		if (none && k < j->topk && experts[k] != -1)
			ll_complain(j, LL_BAD_EXPERT, EPF_GPU_LIMIT, EPF_GPU_COMMAND, token,
				    (uint64_t)experts[k], k);
	}
	if (epf_lane() == 0) {
		head->token = token;
		head->source = j->rank;
		head->topk = j->topk;
		head->reserved = 0;
	}
	if (ll_fp8(j))
		ll_quantise(LL_AT(const uint8_t, x), j->hidden,
			    (j->flags & EPF_LL_ROUND_SCALE) != 0, LL_AT(uint8_t, payload),
			    LL_AT(float, payload + j->hidden));
	else
		ll_copy(payload, x, j->hidden * 2u);
}

/* A staged row to the ranks that are reached by plain stores; this rank is one of them. */
EPF_DEV_FN void ll_store_row(const struct ll_job *j, uint32_t set, uint64_t row, uint32_t token)
{
	const int64_t *experts = LL_AT(const int64_t, j->topk_idx) + (uint64_t)token * j->topk;

	for (uint32_t k = 0; k < j->topk; k++) {
		uint32_t r = ll_rank_of(j, experts[k]);
		uint64_t to;

		if (r == UINT32_MAX || !ll_first_of_rank(j, experts, k))
			continue;
		to = ll_peer_of(j, r)->direct;
		if (to && !ll_masked(j, r))
			ll_copy(to + j->lay.inbox[set] +
					((uint64_t)j->rank * j->tokens_max + token) *
						j->lay.row_bytes,
				row, ll_row_used(j->hidden, ll_fp8(j)));
	}
}

EPF_DEV_FN uint64_t ll_note_at(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	return j->base + j->lay.notes[set] + (uint64_t)rank * j->lay.note_bytes;
}

/* The note to one rank; a warp. Words are added to in device memory, and so read back from there. */
EPF_DEV_FN void ll_write_note(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	const int64_t *experts = LL_AT(const int64_t, j->topk_idx);
	uint32_t *rows = LL_AT(uint32_t, ll_note_at(j, set, rank));
	uint32_t words = ll_note_used(j->local, j->tokens_max) / 4u;
	uint32_t *bitmap = rows + j->local;
	uint64_t to = ll_peer_of(j, rank)->direct;

	for (uint32_t i = epf_lane(); i < words; i += LL_LANES)
		epf_st32_relaxed_gpu(&rows[i], 0);
	epf_fence_gpu();
	epf_warp_barrier();
	for (uint32_t i = epf_lane(); i < j->tokens * j->topk; i += LL_LANES) {
		uint32_t t = i / j->topk, k = i % j->topk;

		if (ll_rank_of(j, experts[i]) != rank || !ll_first_of_expert(experts + i - k, k))
			continue;
		ll_add32(&rows[(uint32_t)experts[i] % j->local], 1u);
		ll_or32(&bitmap[t / 32u], 1u << (t % 32u));
	}
	epf_fence_gpu();
	epf_warp_barrier();
	if (!to || ll_masked(j, rank))
		return;
	to += j->lay.inotes[set] + (uint64_t)j->rank * j->lay.note_bytes;
	for (uint32_t i = epf_lane(); i < words; i += LL_LANES)
		LL_AT(uint32_t, to)[i] = epf_ld32_relaxed_gpu(&rows[i]);
}

/* Rows and note to a rank that is reached by commands; a warp. */
EPF_DEV_FN int ll_push_rows(const struct ll_job *j, struct epf_dev *d, uint32_t set, uint32_t rank)
{
	uint64_t note = ll_note_at(j, set, rank);
	const uint32_t *bitmap = LL_AT(const uint32_t, note) + j->local;
	uint32_t signal = ll_signal(j, LL_DISPATCH, set, j->rank);
	uint32_t bytes = ll_row_used(j->hidden, ll_fp8(j));
	uint32_t puts = 1;
	int rc = 0;

	for (uint32_t first = 0; first < j->tokens && !rc; first += LL_LANES) {
		uint32_t t = first + epf_lane();
		int yes = t < j->tokens &&
			  (epf_ld32_relaxed_gpu(&bitmap[t / 32u]) >> (t % 32u) & 1u) != 0;

		rc = epf_warp_put_group(d, yes, rank, j->region,
					j->lay.stage[set] + (uint64_t)t * j->lay.row_bytes,
					j->region,
					j->lay.inbox[set] + ((uint64_t)j->rank * j->tokens_max +
							     t) * j->lay.row_bytes,
					bytes, signal, 0);
		puts += epf_lanes_count(epf_lanes_where(yes));
	}
	if (!rc)
		rc = epf_warp_put_group(d, epf_lane() == 0, rank, j->region, note - j->base,
					j->region,
					j->lay.inotes[set] + (uint64_t)j->rank * j->lay.note_bytes,
					ll_note_used(j->local, j->tokens_max), signal, 0);
	return rc ? rc : ll_tell(j, d, LL_DISPATCH, set, rank, puts);
}

/* Everything is staged: warp 0 of the last block sends it. Starts behind this rank, so that not all begin with rank 0. */
EPF_DEV_FN void ll_push_dispatch(const struct ll_job *j, uint32_t set)
{
	struct epf_dev d;
	int rc = 0;

	ll_tell_direct(j, LL_DISPATCH, set);
	if (!ll_any_remote(j))
		return;
	epf_warp_fence();
	epf_warp_open(&d, ll_ctx(j));
	for (uint32_t i = 1; i < j->ranks && !rc; i++) {
		uint32_t r = (j->rank + i) % j->ranks;

		if (!ll_peer_of(j, r)->direct && !ll_masked(j, r))
			rc = ll_push_rows(j, &d, set, r);
	}
	ll_sent(j, &d, LL_DISPATCH, set);
}

EPF_DEV_FN void ll_dispatch_send(const struct ll_job *j)
{
	uint64_t calls = ll_calls(j, LL_DISPATCH, LL_SENDING);
	uint32_t set = (uint32_t)(calls & 1u);

	for (uint32_t t = ll_warp(j); t < j->tokens; t += ll_warps(j)) {
		uint64_t row = j->base + j->lay.stage[set] + (uint64_t)t * j->lay.row_bytes;

		ll_stage_row(j, row, t);
		epf_warp_barrier();
		ll_store_row(j, set, row, t);
	}
	for (uint32_t r = ll_warp(j); r < j->ranks; r += ll_warps(j))
		ll_write_note(j, set, r);
	if (!ll_last_block(j, LL_DISPATCH, LL_SENDING))
		return;
	if (epf_thread_in_block() < LL_LANES)
		ll_push_dispatch(j, set);
	if (epf_thread_in_block() == 0)
		ll_count_call(j, LL_DISPATCH, LL_SENDING, calls);
}

/* ---- RECV ---- */

EPF_DEV_FN const uint32_t *ll_inote(const struct ll_job *j, uint32_t set, uint32_t rank)
{
	return LL_AT(const uint32_t,
		     j->base + j->lay.inotes[set] + (uint64_t)rank * j->lay.note_bytes);
}

/* Rows of a rank for a local expert; one that is masked has none. A count no sender can mean counts as none too. */
EPF_DEV_FN uint32_t ll_rows_from(const struct ll_job *j, uint32_t set, uint32_t rank,
				 uint32_t expert)
{
	uint32_t n;

	if (!epf_ld32_relaxed_gpu(&ll_peer_of(j, rank)->live[LL_DISPATCH]))
		return 0;
	n = ll_inote(j, set, rank)[expert];
	return n <= j->tokens_max ? n : 0;
}

/* The sum over the lanes of a warp, in all of them. */
EPF_DEV_FN uint32_t ll_warp_sum(uint32_t v)
{
	epf_lanes all = epf_lanes_where(1);
	uint32_t sum = 0;

	for (uint32_t i = 0; i < LL_LANES; i++)
		sum += (uint32_t)epf_lanes_get(all, v, i);
	return sum;
}

/* One row into its place of the packed list; a warp. */
EPF_DEV_FN void ll_unpack_row(const struct ll_job *j, uint64_t row, uint64_t list, uint32_t place)
{
	uint64_t payload = row + sizeof(struct ll_head);
	uint64_t n = (uint64_t)j->ranks * j->tokens_max;
	uint32_t blocks = j->hidden / LL_BLOCK;
	uint64_t at = list * n + place;

	if (!ll_fp8(j)) {
		ll_copy(j->recv_x + at * j->hidden * 2u, payload, j->hidden * 2u);
		return;
	}
	ll_copy(j->recv_x + at * j->hidden, payload, j->hidden);
	payload += j->hidden;
	if (j->flags & EPF_LL_UE8M0) {
		for (uint32_t w = epf_lane(); w < blocks / 4u; w += LL_LANES) {
			uint32_t packed = 0;

			for (uint32_t b = 0; b < 4u; b++)
				packed |= (ll_bits(LL_AT(const float, payload)[w * 4u + b]) >> 23 &
					   0xffu)
					  << (8u * b);
			LL_AT(uint32_t, j->recv_scales)
			[(list * (blocks / 4u) + w) * n + place] = packed;
		}
		return;
	}
	for (uint32_t b = epf_lane(); b < blocks; b += LL_LANES)
		LL_AT(float, j->recv_scales)
	[(list * blocks + b) * n + place] = LL_AT(const float, payload)[b];
}

/* The k under which a row names an expert, or UINT32_MAX. */
EPF_DEV_FN uint32_t ll_names(const struct ll_job *j, const struct ll_head *head, uint32_t expert)
{
	for (uint32_t k = 0; k < j->topk; k++)
		if (head->expert[k] == (int32_t)expert)
			return k;
	return UINT32_MAX;
}

/* Rows of one rank for one local expert, from place `begin` on, `count` of them; a warp. */
EPF_DEV_FN void ll_unpack(const struct ll_job *j, uint32_t set, uint32_t expert, uint32_t rank,
			  uint32_t begin, uint32_t count)
{
	const uint32_t *bitmap = ll_inote(j, set, rank) + j->local;
	uint64_t rows =
		j->base + j->lay.inbox[set] + (uint64_t)rank * j->tokens_max * j->lay.row_bytes;
	uint64_t list = (uint64_t)expert * j->ranks * j->tokens_max;
	uint32_t found = 0;

	for (uint32_t first = 0; first < j->tokens_max && found < count; first += LL_LANES) {
		uint32_t t = first + epf_lane(), k = UINT32_MAX, place;
		epf_lanes here;

		if (t < j->tokens_max && (bitmap[t / 32u] >> (t % 32u) & 1u))
			k = ll_names(
				j,
				LL_AT(const struct ll_head, rows + (uint64_t)t * j->lay.row_bytes),
				j->rank * j->local + expert);
		here = epf_lanes_where(k != UINT32_MAX);
		place = begin + found + epf_lanes_before(here);
		if (k != UINT32_MAX && place < begin + count) {
			LL_AT(int32_t, j->src_info)[list + place] = (int32_t)t;
			LL_AT(int32_t, j->src_slot)[list + place] = (int32_t)(t * j->topk + k);
		}
		for (; here && found < count; here &= here - 1u, found++)
			ll_unpack_row(j,
				      rows + (uint64_t)(first + epf_lanes_first(here)) *
						      j->lay.row_bytes,
				      expert, begin + found);
	}
	if (found != count && epf_lane() == 0)
		ll_complain(j, LL_BAD_ROW, EPF_GPU_LIMIT, EPF_GPU_COMMAND, rank, count, found);
}

/* One local expert and one rank: counts, places, rows; a warp. */
EPF_DEV_FN void ll_receive(const struct ll_job *j, uint32_t set, uint32_t expert, uint32_t rank)
{
	uint32_t count = ll_rows_from(j, set, rank, expert), begin = 0;

	for (uint32_t r = epf_lane(); r < rank; r += LL_LANES)
		begin += ll_rows_from(j, set, r, expert);
	begin = ll_warp_sum(begin);
	if (epf_lane() == 0) {
		LL_AT(uint64_t, j->layout_range)
		[(uint64_t)expert * j->ranks + rank] = (uint64_t)begin << 32 | count;
		if (rank == j->ranks - 1u) {
			LL_AT(int32_t, j->recv_count)[expert] = (int32_t)(begin + count);
			if (j->recv_stats)
				LL_AT(int32_t, j->recv_stats)
			[expert] += (int32_t)(begin + count);
		}
	}
	ll_unpack(j, set, expert, rank, begin, count);
}

EPF_DEV_FN void ll_dispatch_recv(const struct ll_job *j)
{
	uint64_t calls = ll_calls(j, LL_DISPATCH, LL_RECEIVING);
	uint32_t items = j->local * j->ranks;

	ll_wait_all(j, LL_DISPATCH, calls);
	for (uint32_t i = ll_warp(j); i < items; i += ll_warps(j))
		ll_receive(j, (uint32_t)(calls & 1u), i / j->ranks, i % j->ranks);
	ll_received(j, LL_DISPATCH, calls);
}

/* The halves that are wanted. Both: every block sends its share before any of them waits. */
EPF_DEV_FN void ll_dispatch(const struct ll_job *j)
{
	if (j->halves & EPF_LL_SEND)
		ll_dispatch_send(j);
	if (j->halves & EPF_LL_RECV)
		ll_dispatch_recv(j);
}

#endif
