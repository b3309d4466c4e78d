/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of libepf's service mode share: two ranks of one job, driven by one thread, both with the same fake daemon (fake_svc.h), which
 * listens in a directory of the test's own.
 */
#ifndef EPF_TESTS_REMOTE_KIT_H
#define EPF_TESTS_REMOTE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fabric/client/handle.h"
#include "tests/unit/client/fake_svc.h"

enum { RANKS = 2, BYTES = 8192 };

/* How long a rank waits for its daemon: long, so that a stalled machine causes no error, except where a test waits for the timeout. */
#define PATIENT   "service-timeout=20s"
#define IMPATIENT "service-timeout=300ms"

extern const char *patience;
extern char dir[64], socket_setting[128];

struct pair {
	pid_t daemon;
	struct epf_boot_group *group;
	struct epf_boot *boot[RANKS];
	struct epf *ep[RANKS];
	struct epf_ring *ring[RANKS];
	void *mem[RANKS];
	uint32_t region[RANKS];
};

/* Opens a rank with the settings of these tests. Returns what epf_open returns. */
int pair_rank_open(struct epf **ep);
/* Opens rank i, with memory, a region and a ring. Returns the first error. */
int pair_rank_set_up(struct pair *p, int i);
/* Starts a daemon with this plan, sets up both ranks and joins them. Returns the first error; pair_tear_down is due in any case. */
int pair_set_up(struct pair *p, const struct fake_plan *plan);
void pair_tear_down(struct pair *p);
/* Runs a whole job on a correct daemon, with every call's result checked. */
void pair_serves_a_job(void);

/* Reads a counter of the fake daemon, which is its remote control. */
uint64_t ask(struct epf *ep, const char *what);
/* Fails unless the last error contains this text. */
void says(const char *text);

/* Setup and teardown of a group: make and remove the directory. */
int pair_make_dir(void **state);
int pair_remove_dir(void **state);

#endif
