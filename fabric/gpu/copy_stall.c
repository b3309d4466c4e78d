/* SPDX-License-Identifier: Apache-2.0 */
/* See copy_stall.h. */
#define EPF_LOG_COMP "gpu"
#include "fabric/gpu/copy_stall.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#define STUCK_NS UINT64_C(1000000000)

void epf_copy_stall_enters(struct epf_copy_stall *stall, const char *call)
{
	if (call) {
		/* A job may arrive after the thread looked for one, and its first call may be the one that does not return. */
		if (!stall->since)
			__atomic_store_n(&stall->since, epf_now_ns(), __ATOMIC_RELAXED);
		__atomic_store_n(&stall->doing_tsc, epf_tsc(), __ATOMIC_RELAXED);
	}
	__atomic_store_n(&stall->doing, call, __ATOMIC_RELEASE);
}

bool epf_copy_stall_is_timed(const struct epf_copy_stall *stall)
{
	return stall->since != 0;
}

void epf_copy_stall_moved(struct epf_copy_stall *stall, bool more)
{
	uint64_t since = stall->since, now = epf_now_ns();

	if (since && since == __atomic_load_n(&stall->said, __ATOMIC_RELAXED))
		epf_note("copies to or from GPU memory go on, after %.1f s",
			 (double)(now - since) / 1e9);
	__atomic_store_n(&stall->since, more ? now : 0, __ATOMIC_RELAXED);
}

void epf_copy_stall_watch(struct epf_copy_stall *stall)
{
	uint64_t since = __atomic_load_n(&stall->since, __ATOMIC_RELAXED), now = epf_now_ns();
	uint64_t said = __atomic_load_n(&stall->said, __ATOMIC_RELAXED);
	const char *doing = __atomic_load_n(&stall->doing, __ATOMIC_ACQUIRE);
	uint64_t call_tsc = __atomic_load_n(&stall->doing_tsc, __ATOMIC_RELAXED);

	if (!since || since == said || now < since + STUCK_NS ||
	    !__atomic_compare_exchange_n(&stall->said, &said, since, 0, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED))
		return;
	/*
	 * A single long call means that the driver waits for a lock; many short ones mean that the device's queue does not advance.
	 */
	if (doing && epf_tsc_to_ns(epf_tsc() - call_tsc) > STUCK_NS / 2)
		(void)epf_fail(
			EPF_R_GPU_STUCK,
			"for %.1f s now: the driver does not return from %s, most likely because of another thread's call that waits for a kernel which waits for these copies",
			(double)(now - since) / 1e9, doing);
	else
		(void)epf_fail(
			EPF_R_GPU_STUCK,
			"for %.1f s now: the driver has accepted them and they do not end, most likely behind something that waits for a kernel which waits for them, or, between ranks of one GPU, because waiting kernels fill its multiprocessors",
			(double)(now - since) / 1e9);
	epf_err("copies to or from GPU memory stall: %s", epf_last_error());
}
