/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wakeup: how a sleeper (an engine core in its sleeping mode, a CPU thread waiting for a signal) is
 * woken by a producer in another thread or process. Two words in shared memory; futex(2) on one of them.
 *
 * Sleeper:  epf_wakeup_arm(); look for work once more; if none: epf_wakeup_sleep(); epf_wakeup_disarm().
 * Producer: publish the work; epf_wakeup_is_needed(); if it says so: epf_wakeup_wake().
 * Several threads of a process may sleep on one wakeup: each calls epf_wakeup_join(), epf_wakeup_sleep_joined(), epf_wakeup_leave() instead.
 * Arm and must_ring each put a full fence between their store and their load, so at least one of the two
 * sees the other (Dekker): either the producer rings or the sleeper finds the work. Labels in queues/README.md: B1, B2.
 *
 * epf_wakeup_wake and epf_wakeup_sleep make a system call: never call them from a *_hot file.
 */
#ifndef EPF_QUEUES_WAKEUP_H
#define EPF_QUEUES_WAKEUP_H

#include "queues/epf_base.h"

#include <stddef.h>
#include <stdint.h>

/* epf_wakeup.condition: what the one sleeper waits for. It may be woken for other things too, but need not be. */
enum epf_wakeup_condition {
	EPF_WAKE_ON_ANY = 0,    /* anything: the value of who knows no conditions */
	EPF_WAKE_ON_SIGNAL = 1, /* signal number `condition_index` has reached `condition_least` */
	EPF_WAKE_ON_RETIRED =
		2, /* the ring with ring_id `condition_index` has retired `condition_least` */
	EPF_WAKE_ON_STORE =
		3, /* kernels only: rank `condition_index` has stored `condition_least` to this GPU's memory */
};

struct epf_wakeup {
	uint32_t
		sleeping; /* odd: a sleeper is or is about to be asleep and wants to be rung; also the futex word */
	uint32_t rung; /* times rung: wake-ups counted, written by ringers with relaxed adds */
	uint32_t
		waiters; /* threads that sleep or are about to: the condition holds while it is one */
	uint32_t condition;       /* enum epf_wakeup_condition */
	uint64_t condition_least; /* compared by difference: counters may wrap */
	uint32_t condition_index;
	uint32_t tickets; /* given to sleepers that joined, two apart */
	uint64_t reserved[4];
	/* A line of the rank's kernels: what one of them has waited for, for long. For people; nobody is woken for it. */
	uint32_t
		kernel_condition; /* as condition, stored after the others; 0: none waits so long */
	uint32_t kernel_index;
	uint64_t kernel_least;
	uint64_t kernel_seen; /* the value that it saw then */
	uint64_t kernel_reserved[5];
};

EPF_STATIC_ASSERT(sizeof(struct epf_wakeup) == 128, "a wakeup has its own pair of cache lines");
EPF_STATIC_ASSERT(offsetof(struct epf_wakeup, kernel_condition) == 64,
		  "kernels write a line of their own");

/* Sleeper: announces the condition to sleep. The caller looks for work once more afterwards. [B1] */
EPF_INLINE void epf_wakeup_arm(struct epf_wakeup *wakeup)
{
	__atomic_store_n(&wakeup->sleeping, 1u, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* B1: pairs with B2 */
}

EPF_INLINE void epf_wakeup_disarm(struct epf_wakeup *wakeup)
{
	__atomic_store_n(&wakeup->sleeping, 0u, __ATOMIC_RELAXED);
}

/* Value of `sleeping` while another thread looks for work in place of a sleeper that stays asleep: nobody rings. */
enum { EPF_WAKEUP_DRIVEN = 2 };

/* Who looks for work in place of the sleeper. Its wakeup is armed again when that ends. */
EPF_INLINE void epf_wakeup_drive(struct epf_wakeup *wakeup)
{
	__atomic_store_n(&wakeup->sleeping, (uint32_t)EPF_WAKEUP_DRIVEN, __ATOMIC_RELAXED);
}

EPF_INLINE int epf_wakeup_is_armed(const struct epf_wakeup *wakeup)
{
	return __atomic_load_n(&wakeup->sleeping, __ATOMIC_RELAXED) & 1u;
}

/* Producer, after publishing work: 1 if the sleeper must be rung. No system call. [B2] */
EPF_INLINE int epf_wakeup_is_needed(const struct epf_wakeup *wakeup)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* B2: pairs with B1 */
	return epf_wakeup_is_armed(wakeup);
}

/*
 * Announces a sleeper and what it waits for, so that it is not woken for less. The condition holds while there is one sleeper: only who finds
 * none writes it, so its three words always belong together. Ends with epf_wakeup_clear_condition(). Relaxed: the arming that follows publishes it. [B1]
 */
EPF_INLINE void epf_wakeup_set_condition(struct epf_wakeup *wakeup, uint32_t condition,
					 uint32_t index, uint64_t least)
{
	if (__atomic_fetch_add(&wakeup->waiters, 1u, __ATOMIC_ACQUIRE) != 0) {
		__atomic_store_n(&wakeup->condition, (uint32_t)EPF_WAKE_ON_ANY, __ATOMIC_RELAXED);
		return;
	}
	__atomic_store_n(&wakeup->condition_index, index, __ATOMIC_RELAXED);
	__atomic_store_n(&wakeup->condition_least, least, __ATOMIC_RELAXED);
	__atomic_store_n(&wakeup->condition, condition, __ATOMIC_RELAXED);
}

/* Ends epf_wakeup_set_condition(). Threads that still sleep are woken for anything. */
EPF_INLINE void epf_wakeup_clear_condition(struct epf_wakeup *wakeup)
{
	__atomic_store_n(&wakeup->condition, (uint32_t)EPF_WAKE_ON_ANY, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&wakeup->waiters, 1u, __ATOMIC_RELEASE);
}

/*
 * Arms a wakeup on which other threads may sleep too, with a condition as of epf_wakeup_set_condition(). Returns the ticket of this sleep: a value of
 * `sleeping` that no other sleeper stores, so that nobody disarms the wakeup under another, or sleeps through a ring that another one's
 * arming has hidden. [B1]
 */
EPF_INLINE uint32_t epf_wakeup_join(struct epf_wakeup *wakeup, uint32_t condition, uint32_t index,
				    uint64_t least)
{
	uint32_t ticket = __atomic_fetch_add(&wakeup->tickets, 2u, __ATOMIC_RELAXED) | 1u;

	epf_wakeup_set_condition(wakeup, condition, index, least);
	__atomic_exchange_n(&wakeup->sleeping, ticket, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* B1: pairs with B2 */
	return ticket;
}

/*
 * Ends epf_wakeup_join(). Disarms the wakeup unless others may sleep: either they have joined already and are counted, or their arming has
 * replaced the ticket. A wakeup that the last two leave armed costs one ring that wakes nobody.
 */
EPF_INLINE void epf_wakeup_leave(struct epf_wakeup *wakeup, uint32_t ticket)
{
	if (__atomic_load_n(&wakeup->waiters, __ATOMIC_RELAXED) == 1)
		__atomic_compare_exchange_n(&wakeup->sleeping, &ticket, 0u, 0, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	epf_wakeup_clear_condition(wakeup);
}

/* Producer: wakes all sleepers (futex wake, works across processes). */
void epf_wakeup_wake(struct epf_wakeup *wakeup);

/* The same, also if another thread has disarmed the wakeup under a sleeper. */
void epf_wakeup_wake_anyway(struct epf_wakeup *wakeup);

/* Sleeper: sleeps until rung or for timeout_ns at most; returns at once if no longer armed. */
void epf_wakeup_sleep(struct epf_wakeup *wakeup, uint64_t timeout_ns);

/* The same for a sleeper that joined. Returns at once too if another one has armed the wakeup since: look for work and join again. */
void epf_wakeup_sleep_joined(struct epf_wakeup *wakeup, uint32_t ticket, uint64_t timeout_ns);

#endif
