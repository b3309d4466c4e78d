/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process and a directory hold, for tests that nothing is left behind: descriptors, mappings of memfds, files. Reads
 * /proc; never changes anything.
 */
#ifndef EPF_TESTS_SVC_PROC_H
#define EPF_TESTS_SVC_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct proc_holds {
	unsigned fds;      /* open descriptors */
	unsigned mappings; /* of memfds */
};

/* Zeros for a process that is not there. */
struct proc_holds proc_look(pid_t pid);
/* Waits until the process holds no more than it did: 0; -1 after timeout_ms, with a message that lists its descriptors. */
int proc_settle(pid_t pid, struct proc_holds base, unsigned timeout_ms);
/* Files in a directory whose names begin so; the names, separated by spaces, into text. */
unsigned proc_files(const char *dir, const char *prefix, char *text, size_t size);

#endif
