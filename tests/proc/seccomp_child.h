/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What test_seccomp.c (the judge) and seccomp_child.c (the accused) share: kinds of load, kinds of sin, and the memory in
 * which a child leaves what it saw.
 */
#ifndef EPF_TESTS_SECCOMP_CHILD_H
#define EPF_TESTS_SECCOMP_CHILD_H

#include <stdint.h>

enum load { LOAD_ORDERED, LOAD_UNORDERED, LOAD_NULL };

enum sin { SIN_NONE, SIN_SYSCALL, SIN_MALLOC, SIN_LOCK };

/* Memory shared by the parent and one child. */
struct report {
	uint32_t armed;
	uint32_t finished;
	const char *
		trapped; /* what the trap caught: the same address in the parent, which forked the child */
	const char *wrong; /* what the child found wrong itself */
	uint64_t pushed, retired, failed;
	uint64_t dequeued, deferred, stalls, refused, bytes, gets, signals, waited, duplicates,
		flushes;
	uint64_t cuts; /* of a link, and restorations */
	uint64_t lane_errors, recoveries;
};

/* Loads the filter: from now on only exit_group is allowed. 0 or -errno. */
int load_filter(void);

/* Ends the process without anything that exit() would run. */
_Noreturn void leave(void);

/* Runs the load for `ms` milliseconds and ends the process. Called in a child. */
_Noreturn void run_load(struct report *r, enum load load, enum sin sin, uint64_t ms);

#endif
