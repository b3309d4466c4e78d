/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bell: how a sleeper (an engine core in its sleeping mode, a CPU thread waiting for a signal) is
 * woken by a producer in another thread or process. Two words in shared memory; futex(2) on one of them.
 *
 * Sleeper:  epf_bell_arm(); look for work once more; if none: epf_bell_sleep(); epf_bell_disarm().
 * Producer: publish the work; epf_bell_must_ring(); if it says so: epf_bell_ring().
 * Arm and must_ring each put a full fence between their store and their load, so at least one of the two
 * sees the other (Dekker): either the producer rings or the sleeper finds the work. Labels in queues/README.md: B1, B2.
 *
 * epf_bell_ring and epf_bell_sleep make a system call: never call them from a *_hot file.
 */
#ifndef EPF_QUEUES_BELL_H
#define EPF_QUEUES_BELL_H

#include "queues/epf_base.h"

#include <stddef.h>
#include <stdint.h>

/* epf_bell.wish: what the one sleeper waits for. It may be rung for other things too, but need not be. */
enum epf_bell_wish {
	EPF_WISH_ANY = 0,     /* anything: the value of who knows no wishes */
	EPF_WISH_SIGNAL = 1,  /* signal number `wish_index` has reached `wish_least` */
	EPF_WISH_RETIRED = 2, /* the ring with ring_id `wish_index` has retired `wish_least` */
};

struct epf_bell {
	uint32_t sleeping; /* 1: the sleeper is or is about to be asleep; also the futex word */
	uint32_t rung;     /* times rung: wake-ups counted, written by ringers with relaxed adds */
	uint32_t waiters;  /* threads that sleep or are about to: the wish holds while it is one */
	uint32_t wish;     /* enum epf_bell_wish */
	uint64_t wish_least; /* compared by difference: counters may wrap */
	uint32_t wish_index;
	uint32_t reserved0;
	uint64_t reserved[4];
	/* A line of the rank's kernels: what one of them has waited for, for long. For people; nobody is rung for it. */
	uint32_t kernel_wish; /* as wish, stored after the others; 0: none waits so long */
	uint32_t kernel_index;
	uint64_t kernel_least;
	uint64_t kernel_seen; /* the value that it saw then */
	uint64_t kernel_reserved[5];
};

EPF_STATIC_ASSERT(sizeof(struct epf_bell) == 128, "a bell has its own pair of cache lines");
EPF_STATIC_ASSERT(offsetof(struct epf_bell, kernel_wish) == 64,
		  "kernels write a line of their own");

/* Sleeper: announces the wish to sleep. The caller looks for work once more afterwards. [B1] */
EPF_INLINE void epf_bell_arm(struct epf_bell *bell)
{
	__atomic_store_n(&bell->sleeping, 1u, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* B1: pairs with B2 */
}

EPF_INLINE void epf_bell_disarm(struct epf_bell *bell)
{
	__atomic_store_n(&bell->sleeping, 0u, __ATOMIC_RELAXED);
}

/* Producer, after publishing work: 1 if the sleeper must be rung. No system call. [B2] */
EPF_INLINE int epf_bell_must_ring(const struct epf_bell *bell)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* B2: pairs with B1 */
	return __atomic_load_n(&bell->sleeping, __ATOMIC_RELAXED) != 0;
}

/*
 * Sleeper: says before it arms what it waits for, so that it is not woken for less. Several threads may sleep on one bell: the wish holds
 * while there is one. Ends with epf_bell_unwish(). Relaxed: the arming that follows publishes it. [B1]
 */
EPF_INLINE void epf_bell_wish(struct epf_bell *bell, uint32_t wish, uint32_t index, uint64_t least)
{
	__atomic_fetch_add(&bell->waiters, 1u, __ATOMIC_RELAXED);
	__atomic_store_n(&bell->wish_index, index, __ATOMIC_RELAXED);
	__atomic_store_n(&bell->wish_least, least, __ATOMIC_RELAXED);
	__atomic_store_n(&bell->wish, wish, __ATOMIC_RELAXED);
}

/* Sleeper, awake again: whoever still sleeps is rung for anything. */
EPF_INLINE void epf_bell_unwish(struct epf_bell *bell)
{
	__atomic_store_n(&bell->wish, (uint32_t)EPF_WISH_ANY, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&bell->waiters, 1u, __ATOMIC_RELEASE);
}

/* Producer: wakes the sleeper (futex wake, works across processes). */
void epf_bell_ring(struct epf_bell *bell);

/* Sleeper: sleeps until rung or for timeout_ns at most; returns at once if no longer armed. */
void epf_bell_sleep(struct epf_bell *bell, uint64_t timeout_ns);

#endif
