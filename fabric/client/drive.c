/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of this process that step the engine in place of its sleeping thread (engine/drive.h): those that wait, and after a wait those that
 * push little. With fewer CPUs than threads, each change from one to the other costs some 10 us, and a step 0.1 us.
 *
 * A wait steps whenever it finds the engine asleep: it would only spin. Where CPUs are few (is_crowded) it also asks the engine's thread to sleep as soon
 * as that is idle, and the pushes that follow step too instead of waking the thread. But only a few of them, and small ones: a program that pushes much
 * between two waits has more of an engine that works beside it.
 */
#include "fabric/client/drive.h"

#include <sched.h>

enum {
	PUSHES = 8,        /* between two waits */
	SMALL = 16 * 1024, /* bytes that a push may have copied by the calling thread */
};

bool epf_drive_is_crowded(const struct epf *ep)
{
	size_t cpus = ep->bind.count;
	cpu_set_t set;

	/* Where there are more CPUs than fit into the set, this fails, and there are enough. */
	if (!cpus && sched_getaffinity(0, sizeof(set), &set) == 0)
		cpus = (size_t)CPU_COUNT(&set);
	return cpus && 2 * (size_t)epf_who_here(ep) > cpus;
}

unsigned epf_drive(struct epf *ep, bool *drives)
{
	unsigned handled = ep->be->drive(ep, drives);

	if (*drives && ep->is_crowded)
		EPF_STORE_RELAXED(&ep->pushes, (uint32_t)PUSHES);
	return handled;
}

void epf_drive_end(struct epf *ep, bool *drives)
{
	if (*drives)
		ep->be->undrive(ep);
	*drives = false;
}

void epf_drive_push(struct epf *ep, uint64_t bytes)
{
	uint32_t left = EPF_LOAD_RELAXED(&ep->pushes);
	bool drives = false;

	if (left && bytes <= SMALL) {
		EPF_STORE_RELAXED(&ep->pushes, left - 1);
		(void)ep->be->drive(ep, &drives);
		if (drives) {
			ep->be->undrive(ep);
			return;
		}
	}
	epf_wakeup_wake(ep->kick);
}

int epf_progress(struct epf *ep)
{
	bool drives = false;
	unsigned handled;

	if (!epf_joined(ep))
		return 0;
	if (!ep->threaded)
		return (int)ep->be->progress(ep);
	handled = epf_drive(ep, &drives);
	epf_drive_end(ep, &drives);
	return (int)handled;
}
