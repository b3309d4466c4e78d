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

#include <stdint.h>

struct epf_bell {
	uint32_t sleeping; /* 1: the sleeper is or is about to be asleep; also the futex word */
	uint32_t rung;     /* times rung: wake-ups counted, written by ringers with relaxed adds */
	uint64_t reserved[15];
};

EPF_STATIC_ASSERT(sizeof(struct epf_bell) == 128, "a bell has its own pair of cache lines");

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

/* Producer: wakes the sleeper (futex wake, works across processes). */
void epf_bell_ring(struct epf_bell *bell);

/* Sleeper: sleeps until rung or for timeout_ns at most; returns at once if no longer armed. */
void epf_bell_sleep(struct epf_bell *bell, uint64_t timeout_ns);

#endif
