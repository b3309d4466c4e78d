/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two system calls of the wakeup (epf_wakeup.h): waking its sleepers and sleeping on it, by futex(2) without
 * the private flag, so that both ends may be in different processes. Called by run loops and slow paths; it
 * must never be called from a _hot file.
 */
#include "queues/epf_wakeup.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void epf_wakeup_wake(struct epf_wakeup *wakeup)
{
	/* Only the ringer that finds the sleeper armed pays for the call. */
	if (__atomic_exchange_n(&wakeup->sleeping, 0u, __ATOMIC_SEQ_CST) == 0)
		return;
	__atomic_fetch_add(&wakeup->rung, 1u, __ATOMIC_RELAXED);
	syscall(SYS_futex, &wakeup->sleeping, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void epf_wakeup_wake_anyway(struct epf_wakeup *wakeup)
{
	__atomic_exchange_n(&wakeup->sleeping, 0u, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&wakeup->rung, 1u, __ATOMIC_RELAXED);
	syscall(SYS_futex, &wakeup->sleeping, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void epf_wakeup_sleep_joined(struct epf_wakeup *wakeup, uint32_t ticket, uint64_t timeout_ns)
{
	struct timespec ts = {
		.tv_sec = (time_t)(timeout_ns / 1000000000u),
		.tv_nsec = (long)(timeout_ns % 1000000000u),
	};

	if (timeout_ns == 0)
		return;
	syscall(SYS_futex, &wakeup->sleeping, FUTEX_WAIT, ticket, &ts, NULL, 0);
}

void epf_wakeup_sleep(struct epf_wakeup *wakeup, uint64_t timeout_ns)
{
	epf_wakeup_sleep_joined(wakeup, 1u, timeout_ns);
}
