/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may step a core: its own thread or, while that sleeps, one thread that waits for the core's work (drive.h).
 * One word says so. Everything in struct epf_core is handed over with it: who changes the word from a value that gives the core away acquires what
 * the last owner released. Labels in queues/README.md: O1, O2.
 *
 *   THREAD  the core's thread runs it
 *   NOBODY  the thread sleeps on the core's wakeup, which is armed: work wakes it
 *   WAITER  a waiter steps the core and is between two steps; the wakeup is not armed
 *   STEP    a waiter is in a step
 */
#ifndef EPF_FABRIC_ENGINE_OWNER_H
#define EPF_FABRIC_ENGINE_OWNER_H

#include "queues/epf_base.h"

#include <stdbool.h>
#include <stdint.h>

enum epf_owner {
	EPF_OWNER_THREAD = 0,
	EPF_OWNER_NOBODY = 1,
	EPF_OWNER_WAITER = 2,
	EPF_OWNER_STEP = 3,
};

/* Takes the core if the word is `from`. Returns false, with nothing changed, if it is not. [O2] */
EPF_INLINE bool epf_owner_take(uint32_t *owner, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n(owner, &from, to, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Gives the core away, by whoever has it. [O1] */
EPF_INLINE void epf_owner_give(uint32_t *owner, uint32_t to)
{
	__atomic_store_n(owner, to, __ATOMIC_RELEASE);
}

/* Returns true if the core was given back to its thread, which has asked for it. [O2] */
EPF_INLINE bool epf_owner_is_thread(const uint32_t *owner)
{
	return __atomic_load_n(owner, __ATOMIC_ACQUIRE) == EPF_OWNER_THREAD;
}

#endif
