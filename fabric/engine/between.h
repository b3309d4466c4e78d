/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What whoever steps a core does between two steps: the run loops (loop.c, scheduler.c), and threads that drive it (drive.c). Not called by
 * other folders, which have engine.h.
 */
#ifndef EPF_FABRIC_ENGINE_BETWEEN_H
#define EPF_FABRIC_ENGINE_BETWEEN_H

#include "fabric/base/err.h"
#include "fabric/engine/engine.h"

#include <stdbool.h>

/* A request of another thread; lives on that thread's stack. */
struct epf_call {
	int (*fn)(struct epf_core *core, void *arg);
	void *arg;
	int result;
	struct epf_error
		error; /* errors are per thread, so that of a failed call travels with it */
	uint32_t done;
};

/* Earliest time at which the core has something to do without being woken; now: at once. */
uint64_t epf_core_due(const struct epf_core *core, uint64_t now);
/* After arming: asks the NIC to ring, and looks for work for the last time, with a step. Returns true if there was any. */
bool epf_core_look_again(struct epf_core *core);
/* How long the core may sleep of ns: less if its NIC could not be asked to ring. After epf_core_look_again(). */
uint64_t epf_core_sleep_ns(const struct epf_core *core, uint64_t ns);
/* Counts a sleep of the calling thread, before it. */
void epf_core_note_sleep(struct epf_core *core);
/* After a sleep: counts it if there is work now. */
void epf_core_note_wakeup(struct epf_core *core);
/*
 * Lends this thread's CPU to whoever waits for it. If it comes back late, others compute there, and it is not lent again for 20 ms: a thread that yields waits
 * for their time slices, and one that is woken does not. *busy_until: when it may be lent again, 0 at first.
 */
void epf_lend_cpu(uint64_t (*now)(void *arg), void *arg, uint64_t *busy_until);

#endif
