/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beginning again, as a kernel of one block: the ranks that are not masked meet, each forgets what has come, and they meet again, so that nobody sends into
 * what another still forgets. A rank that does not come in time is masked, as in any call, and the others go on without it.
 *
 * Meetings have separate flags and signals, which are never forgotten. One that moved by more than one, because its rank came to a meeting that this one
 * was not at, counts as come: the second meeting then waits for it.
 */
#ifndef EPF_KERNELS_LL_MEET_CUH
#define EPF_KERNELS_LL_MEET_CUH

#include "kernels/ll/epf_ll_half.cuh"

/* Notifies all ranks that this one is here; a warp. */
EPF_DEV_FN void ll_say_here(const struct ll_job *j, uint32_t meeting)
{
	struct epf_dev d;

	ll_tell_direct(j, LL_MEET, meeting);
	if (!ll_any_remote(j))
		return;
	epf_warp_fence();
	epf_warp_open(&d, ll_ctx(j));
	for (uint32_t r = 0; r < j->ranks; r++)
		if (!ll_peer_of(j, r)->direct && !ll_masked(j, r))
			(void)ll_tell(j, &d, LL_MEET, meeting, r, 0);
	epf_warp_close(&d);
}

/* One meeting; all threads. */
EPF_DEV_FN void ll_meet(const struct ll_job *j, uint32_t meeting)
{
	struct ll_clock clock = ll_clock_start();

	epf_block_barrier();
	if (epf_thread_in_block() < LL_LANES)
		ll_say_here(j, meeting);
	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads)
		(void)ll_wait_rank(j, LL_MEET, meeting, r, &clock);
	epf_block_barrier();
}

/*
 * What has come so far counts as seen; words, which lie in front of the flags of meetings, hold no call; all kinds begin with set 0 and nothing owed.
 */
EPF_DEV_FN void ll_forget(const struct ll_job *j)
{
	struct ll_state *s = ll_state_of(j);

	for (uint32_t r = epf_thread_in_block(); r < j->ranks; r += j->threads) {
		struct ll_peer *p = ll_peer_of(j, r);

		p->owed[0] = p->owed[1] = 0;
		for (uint32_t i = 0; i < LL_MEET * 2u && !p->direct; i++)
			p->seen[i / 2u][i % 2u] = epf_ld_acquire_sys(
				epf_dev_signal_word(ll_ctx(j), ll_signal(j, i / 2u, i % 2u, r)));
	}
	for (uint32_t i = epf_thread_in_block(); i < ll_flag_at(j, LL_MEET, 0, 0) / 8u;
	     i += j->threads)
		epf_st_relaxed_gpu(LL_AT(uint64_t, j->base) + i, 0);
	if (epf_thread_in_block() != 0)
		return;
	for (uint32_t i = 0; i < LL_MEET * 2u; i++) {
		s->calls[i / 2u][i % 2u] = 0;
		s->done[i / 2u][i % 2u] = 0;
		s->ring[i / 2u][i % 2u] = 0;
		s->go[i / 2u] = 0;
	}
}

EPF_DEV_FN void ll_reset(const struct ll_job *j)
{
	ll_meet(j, 0);
	ll_forget(j);
	ll_meet(j, 1);
}

#endif
