/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by test_seccomp.c and seccomp_child.c: kinds of load and of violation, and the memory in which a child leaves its results.
 */
#ifndef EPF_TESTS_SECCOMP_CHILD_H
#define EPF_TESTS_SECCOMP_CHILD_H

#include <stdint.h>

enum load { LOAD_ORDERED, LOAD_UNORDERED, LOAD_NULL };

enum violation { VIOLATION_NONE, VIOLATION_SYSCALL, VIOLATION_MALLOC, VIOLATION_LOCK };

/* Memory shared by the parent and one child. */
struct report {
	uint32_t armed;
	uint32_t finished;
	const char *trapped; /* by a trap; the parent has the text at the same address */
	const char *wrong;   /* by a check of the child */
	uint64_t pushed, retired, failed;
	uint64_t dequeued, deferred, stalls, refused, bytes, gets, signals, waited, duplicates,
		flushes;
	uint64_t cuts; /* of a link, and restorations */
	uint64_t lane_errors, recoveries;
};

/* Loads the filter: from then on only exit_group is allowed. Returns 0 or -errno. */
int load_filter(void);

/* Ends the process without exit handlers. */
_Noreturn void leave(void);

/* Runs the load for `ms` milliseconds and ends the process. Called in a child. */
_Noreturn void run_load(struct report *r, enum load load, enum violation violation, uint64_t ms);

#endif
