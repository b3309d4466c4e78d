/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two system calls of the bell (epf_bell.h): waking its sleeper and sleeping on it, by futex(2) without
 * the private flag, so that both ends may be in different processes. Called by run loops and slow paths; it
 * must never be called from a _hot file.
 */
#include "queues/epf_bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void epf_bell_ring(struct epf_bell *bell)
{
	/* Only the ringer that finds the sleeper armed pays for the call. */
	if (__atomic_exchange_n(&bell->sleeping, 0u, __ATOMIC_SEQ_CST) == 0)
		return;
	__atomic_fetch_add(&bell->rung, 1u, __ATOMIC_RELAXED);
	syscall(SYS_futex, &bell->sleeping, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void epf_bell_sleep(struct epf_bell *bell, uint64_t timeout_ns)
{
	struct timespec ts = {
		.tv_sec = (time_t)(timeout_ns / 1000000000u),
		.tv_nsec = (long)(timeout_ns % 1000000000u),
	};

	if (timeout_ns == 0)
		return;
	syscall(SYS_futex, &bell->sleeping, FUTEX_WAIT, 1u, &ts, NULL, 0);
}
