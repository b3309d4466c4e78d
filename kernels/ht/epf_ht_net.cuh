/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps between nodes: counts and rows travel as commands of the fabric, covered by signals. Rows of a leg cross in slices. A slice is staged by
 * all blocks; the one that ends it pushes the puts and a signal that counts them. The receiver waits for one slice after the other, in order,
 * while later ones are on their way.
 *
 * A rank writes to the rows' area of another only when that one has said that it has read what the call before brought (HT_SIG_READY). A kernel of one
 * block waits for that before the one that moves rows, so that a late rank holds up one multiprocessor and not all that a call may use.
 */
#ifndef EPF_KERNELS_HT_NET_CUH
#define EPF_KERNELS_HT_NET_CUH

#include "kernels/ht/epf_ht_wait.cuh"

EPF_DEV_FN const struct epf_gpu_ctx *ht_ctx(const struct ht_job *j)
{
	return HT_AT(const struct epf_gpu_ctx, j->ctx);
}

EPF_DEV_FN struct ht_leg *ht_legs_out(const struct ht_job *j)
{
	return HT_AT(struct ht_leg, j->plan + j->at.out);
}

EPF_DEV_FN struct ht_leg *ht_legs_in(const struct ht_job *j)
{
	return HT_AT(struct ht_leg, j->plan + j->at.in);
}

/* A signal of another rank that this one adds to. */
EPF_DEV_FN uint32_t ht_signal_there(const struct ht_job *j, uint32_t kind)
{
	return j->first_signal + kind * j->ranks + j->rank;
}

/* A row of the half that is sent from, and of the half that is received into. */
EPF_DEV_FN uint64_t ht_sent_row(const struct ht_job *j, uint64_t row)
{
	return ht_state_of(j)->net + row * j->rec.bytes;
}

EPF_DEV_FN uint64_t ht_got_row(const struct ht_job *j, uint64_t row)
{
	return ht_sent_row(j, j->net_room + row);
}

/* Where slice k of so many rows begins. */
EPF_DEV_FN uint32_t ht_slice(uint32_t rows, uint32_t k)
{
	return (uint32_t)((uint64_t)rows * k / HT_SLICES);
}

/* Do the rows between nodes fit? All ranks come to the same answer. */
EPF_DEV_FN int ht_net_fits(const struct ht_job *j)
{
	return j->nodes == 1 || *HT_AT(const uint32_t, j->plan + j->at.need) <= j->net_room;
}

/* ---- sending ---- */

/* Where this rank's counts for a rank of another node are sent from. */
EPF_DEV_FN uint32_t *ht_counts_sent(const struct ht_job *j, uint64_t call, uint32_t rank)
{
	return ht_counts_far(j, j->counts + 2ull * j->ranks * ht_counts_words(j) * 4u, call, rank);
}

/* Sends a count to a rank, or, to one of another node, leaves it to be sent. */
EPF_DEV_FN void ht_send_count(const struct ht_job *j, uint64_t call, uint32_t rank, uint32_t word,
			      uint32_t count)
{
	if (ht_is_mate(j, rank))
		epf_st_relaxed_sys(ht_counts_at(j, ht_peer_of(j, rank)->control, call, j->rank) +
					   word,
				   ht_count_of_call(call) | count);
	else
		epf_st32_relaxed_sys(ht_counts_sent(j, call, rank) + word, count);
}

/* Closes a ring; what went there has to be retired before the kernel ends. A warp. */
EPF_DEV_FN void ht_sent(const struct ht_job *j, struct epf_dev *d, uint32_t slice)
{
	struct ht_state *s = ht_state_of(j);

	if (epf_lane() == 0) {
		s->ticket[slice] = epf_dev_ticket(d);
		s->shared[slice] = d->shared;
		s->ring[slice] = (uint64_t)(uintptr_t)d->ring;
	}
	epf_warp_close(d);
}

/* Waits until what this kernel pushed is retired, so that its memory may be written again. One thread. */
EPF_DEV_COLD void ht_wait_sent(const struct ht_job *j)
{
	struct ht_state *s = ht_state_of(j);

	for (uint32_t k = 0; k < HT_SLICES && j->nodes > 1; k++) {
		if (s->ring[k])
			(void)epf_dev_wait_retired(ht_ctx(j),
						   HT_AT(struct epf_gpu_ring, s->ring[k]),
						   (uint32_t)s->shared[k], s->ticket[k]);
		s->ring[k] = 0;
	}
}

/* Sends this rank's counts to the ranks of other nodes. A warp. */
EPF_DEV_FN void ht_push_counts(const struct ht_job *j, uint64_t call)
{
	uint64_t bytes = (ht_counts_experts(j) + j->local + 3u) / 4u * 16u;
	uint64_t to = ((call & 1u) * j->ranks + j->rank) * (uint64_t)ht_counts_words(j) * 4u;
	struct epf_dev d;

	if (j->nodes == 1)
		return;
	epf_warp_fence();
	epf_warp_open(&d, ht_ctx(j));
	for (uint32_t first = 0; first < j->ranks; first += LL_LANES) {
		uint32_t r = first + epf_lane() < j->ranks ? first + epf_lane() : j->rank;
		uint64_t from = (uint64_t)(uintptr_t)ht_counts_sent(j, call, r) - j->counts;

		(void)epf_warp_put_signal(&d, !ht_is_mate(j, r), r, j->counts_region, from,
					  j->counts_region, to, bytes,
					  ht_signal_there(j, HT_SIG_COUNTS), 1, 0);
	}
	ht_sent(j, &d, 0);
}

/* The puts of a slice of one leg, and the signal that counts them. A warp. */
EPF_DEV_FN void ht_push_leg(const struct ht_job *j, struct epf_dev *d, const struct ht_leg *l,
			    uint32_t k)
{
	uint32_t first = ht_slice(l->rows, k), rank = (uint32_t)l->rank;
	uint64_t bytes = (uint64_t)(ht_slice(l->rows, k + 1u) - first) * j->rec.bytes;
	uint64_t from = (uint64_t)(l->mine + first) * j->rec.bytes;
	uint64_t to = ((uint64_t)j->net_room + l->theirs + first) * j->rec.bytes;
	uint32_t region = (uint32_t)ht_state_of(j)->net_region;
	uint32_t signal = ht_signal_there(j, HT_SIG_ROWS + k);
	uint32_t puts = (uint32_t)((bytes + j->put_bytes - 1u) / j->put_bytes);
	struct epf_op o =
		epf_dev_transfer(EPF_OP_SIGNAL, rank, 0, 0, 0, 0, 0, puts ? EPF_F_COUNTED : 0u);

	for (uint32_t i = 0; i < puts; i += LL_LANES) {
		uint64_t at = (uint64_t)(i + epf_lane()) * j->put_bytes;
		int active = at < bytes;
		uint64_t left = active ? bytes - at : 16u;

		(void)epf_warp_put_group(d, active, rank, region, from + at, region, to + at,
					 left < j->put_bytes ? left : j->put_bytes, signal,
					 EPF_F_BULK);
	}
	o.signal = signal;
	o.value = 1;
	o.count = puts;
	(void)epf_warp_push_op(d, &o, epf_lane() == 0);
}

/*
 * Slice k of all legs is staged by this block; the last one sends it, unless it staged sums and a rank is late: sums without that rank's rows would be taken
 * for good ones. All threads.
 */
EPF_DEV_FN void ht_push_slice(const struct ht_job *j, const struct ht_leg *legs, uint32_t count,
			      uint32_t k, int sums)
{
	/*
	 * Each rank begins with another receiver: legs are one a node in a dispatch, one a rank in a combine. Ranks of one index, which share their
	 * receivers, would all begin with the same node if the rank decided.
	 */
	uint32_t start = sums ? j->rank : j->node;
	struct epf_dev d;

	if (!ht_last_block(j, &ht_state_of(j)->staged[k], 1) || epf_thread_in_block() >= LL_LANES)
		return;
	if (sums && (epf_ld_relaxed_gpu(&ht_state_of(j)->bad) & HT_BAD_LATE))
		return;
	epf_warp_fence();
	epf_warp_open(&d, ht_ctx(j));
	for (uint32_t i = 0; i < count; i++) {
		const struct ht_leg *l = &legs[(start + i) % count];

		/* A rank that did not consent may still be reading. */
		if (l->rank >= 0 && !ht_peer_of(j, (uint32_t)l->rank)->late)
			ht_push_leg(j, &d, l, k);
	}
	ht_sent(j, &d, k);
}

/* Do rows cross between this rank and that one, in one direction or the other? */
EPF_DEV_FN int ht_meets(const struct ht_job *j, uint32_t rank)
{
	return !ht_is_mate(j, rank) && (ht_via(j, rank, j->node) == j->rank ||
					ht_via(j, j->rank, ht_peer_of(j, rank)->node) == rank);
}

/* Waits until those that rows cross to have read what the call before brought. One block. */
EPF_DEV_FN void ht_wait_ready(const struct ht_job *j, uint64_t call)
{
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		if (ht_meets(j, r))
			(void)ht_wait_signal(j, HT_SIG_READY, r, call);
}

/* Ends a call: what it brought is read, so those that write here may do so again. A warp. */
HT_FAR_FN void ht_say_ready(const struct ht_job *j)
{
	struct epf_dev d;

	epf_warp_open(&d, ht_ctx(j));
	for (uint32_t first = 0; first < j->ranks; first += LL_LANES) {
		uint32_t r = first + epf_lane() < j->ranks ? first + epf_lane() : j->rank;

		(void)epf_warp_signal(&d, ht_meets(j, r), r, ht_signal_there(j, HT_SIG_READY), 1,
				      0);
	}
	epf_warp_close(&d);
}

/* ---- receiving ---- */

/*
 * Waits for slice k of what a rank sends in this call. All threads of all blocks, each step once and in the same order: block 0 waits, the others look at
 * a word of device memory. Returns 1 if it, or an earlier one of the call, is late.
 */
EPF_DEV_FN int ht_wait_slice(const struct ht_job *j, uint64_t call, uint32_t step, uint32_t rank,
			     uint32_t k)
{
	uint64_t *go = &ht_state_of(j)->go;
	uint64_t mark = (call + 1u) << 24 | (step + 1u), seen = 0;

	if (epf_thread_in_block() == 0 && epf_block_number() == 0) {
		seen = epf_ld_relaxed_gpu(go);
		seen = seen >> 25 == call + 1u ? seen & 1u : 0u;
		if (!seen)
			seen = (uint64_t)ht_wait_signal(j, HT_SIG_ROWS + k, rank, 1u);
		ht_peer_of(j, rank)->base[HT_SIG_ROWS + k]++;
		epf_st_release_gpu(go, mark << 1 | seen);
	} else if (epf_thread_in_block() == 0) {
		while ((int64_t)((seen = epf_ld_acquire_gpu(go)) >> 1) - (int64_t)mark < 0)
			epf_pause();
	}
	return epf_block_result((int)(seen & 1u));
}

#endif
