/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals: 64-bit counters of a rank that peers add to and that the rank waits on. One kind of writer for life:
 * receiving cores, by atomic adds. The owner reads, and may subtract what it has consumed only by remembering it.
 *
 * One signal occupies a separate 32-byte sector: a GPU that polls words closer together serialises on them.
 * R4 (the add is a release: everything the signal covers was written before) pairs with A4 (the waiter's acquire load).
 */
#ifndef EPF_QUEUES_SIGNAL_H
#define EPF_QUEUES_SIGNAL_H

#include "queues/epf_base.h"

#include <stddef.h>
#include <stdint.h>

struct epf_signal {
	uint64_t value;
	uint64_t
		from; /* 1 + the rank that raised it last, 0: not known. For people (ep-fabric why): never believed */
	uint64_t reserved[2];
};

EPF_STATIC_ASSERT(sizeof(struct epf_signal) == 32, "a signal has its own sector");

/* Receiving core: adds to a signal after the data it covers. [R4] */
EPF_INLINE void epf_signal_add(struct epf_signal *s, uint64_t value)
{
	__atomic_fetch_add(&s->value, value, __ATOMIC_RELEASE);
}

/* Owner: reads a signal; data covered by what was read is visible afterwards. [A4] */
EPF_INLINE uint64_t epf_signal_read(const struct epf_signal *s)
{
	return EPF_LOAD_ACQUIRE(&s->value);
}

#endif
