/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that waits for a core's work steps the core itself while the core's thread sleeps. Where threads share CPUs that saves the switches
 * between them, which cost more than the work. For threads of the core's process only: libepf's waits. Called by fabric/client; the
 * other half, called by the core's thread, is for loop.c.
 *
 * The thread takes the core back when a waiter leaves work behind, and every 20 ms for what a step does not do (statistics, the NIC's watch). So a
 * waiter that stops between two steps delays the core by that much at most.
 */
#ifndef EPF_FABRIC_ENGINE_DRIVE_H
#define EPF_FABRIC_ENGINE_DRIVE_H

#include "fabric/engine/core.h"

#include <stdbool.h>

/*
 * Steps the core once, runs requests of other threads and rings who is to be woken. *drives: false: if its thread sleeps and nobody has the core; true: if
 * a waiter has it and is between two steps, this thread or another one. It becomes true if the core was stepped and is left to this thread, which then
 * goes on or calls epf_core_drive_end(); false if the core's thread has it. Returns how much was done. Makes no system call unless somebody
 * sleeps that must be woken.
 */
unsigned epf_core_drive(struct epf_core *core, bool *drives);

/* Leaves the core to whoever is next: what is left to do wakes its thread. */
void epf_core_drive_end(struct epf_core *core);

/* Asks the core's thread to sleep as soon as a step finds nothing, without core-idle-after. A hint: it may come too late, and costs one early sleep. */
void epf_core_drive_wish(struct epf_core *core);

/*
 * The core's thread: sleeps on the core's wakeup for at most max_ns, with the core given to whoever drives it, and has it again on return. Returns at once
 * if there is work, and false if something is due now, which only steps finish.
 */
bool epf_core_thread_sleep(struct epf_core *core, uint64_t max_ns);

#endif
