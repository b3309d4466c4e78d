/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of this process that step the engine in place of its sleeping thread (drive.c): waits, and pushes. */
#ifndef EPF_FABRIC_CLIENT_DRIVE_H
#define EPF_FABRIC_CLIENT_DRIVE_H

#include "fabric/client/handle.h"

/*
 * A wait steps an engine whose thread sleeps. *drives as in backend.h; epf_drive_end() does nothing if it is false. Returns what was done.
 */
unsigned epf_drive(struct epf *ep, bool *drives);
void epf_drive_end(struct epf *ep, bool *drives);
/*
 * At the join: returns true if the ranks of this host and their engines are more threads than there are CPUs, by those that this rank's engine may use.
 */
bool epf_drive_is_crowded(const struct epf *ep);
/* A command of so many bytes was pushed, and the engine sleeps. */
void epf_drive_push(struct epf *ep, uint64_t bytes);

/* Gets the core going if it sleeps: after a push of a command that moves so many bytes. */
static inline void epf_kick(struct epf *ep, uint64_t bytes)
{
	struct epf_wakeup *kick = EPF_LOAD_ACQUIRE(&ep->kick); /* the join sets it */

	if (kick && epf_wakeup_is_needed(kick))
		epf_drive_push(ep, bytes);
}

#endif
