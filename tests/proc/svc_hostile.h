/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attacks on the daemon, for test_svc_hostile.c: each runs in a separate process beside an honest job and checks that it got no further
 * than it should. A failed check prints one line and ends the process with status 1.
 */
#ifndef EPF_TESTS_SVC_HOSTILE_H
#define EPF_TESTS_SVC_HOSTILE_H

#include "tests/proc/svc_job.h"
#include "tests/proc/svc_raw.h"

#include <stdint.h>

enum { HOSTILE_SIGNALS = 64, HOSTILE_BYTES = 65536, HOSTILE_LOG2 = 10 };

struct hostile {
	const char *path[2]; /* sockets of the two daemons */
	const char *honest;  /* name of the honest job */
	uint64_t seed;
	uint64_t count; /* repetitions */
};

#define HOSTILE_CHECK(condition)                                            \
 do {                                                                       \
  if (!(condition)) {                                                       \
   fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
   _exit(1);                                                                \
  }                                                                         \
 } while (0)

/* A job of two ranks, one on each daemon, with regions 0 (all access), 1 (read only), 2 (all) and `rings` rings each. */
void hostile_job(const struct hostile *h, struct raw_rank r[2], const char *name, unsigned rings);
/* Closes both ranks; leave: with LEAVE. */
void hostile_end(struct raw_rank r[2], bool leave);
/* Reads a counter of rank r's engine. */
uint64_t hostile_counter(struct raw_rank *r, const char *name);

/* svc_hostile_cmds.c: commands and ring memory */
void hostile_directed(const struct hostile *h);
void hostile_mutated(const struct hostile *h);
void hostile_scribble(const struct hostile *h);
/* svc_hostile_memory.c: descriptors, regions, and memory that changes under traffic */
void hostile_descriptors(const struct hostile *h);
void hostile_punch(const struct hostile *h);
void hostile_dies(const struct hostile *h);
void hostile_withdraws(const struct hostile *h);
/* svc_hostile_socket.c: the control socket */
void hostile_strangers(const struct hostile *h);
void hostile_garbage(const struct hostile *h);
void hostile_states(const struct hostile *h);
void hostile_names(const struct hostile *h);
void hostile_deaf(const struct hostile *h);

#endif
