/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the C programs of the rxe guest share (faults.c, soak.c): daemons on the guest's RDMA devices, the job that a fault hits and the
 * one beside it that must not notice, cutting links, and time limits on an emulated machine. RXE_NIC=emu runs them
 * on the software NIC and on any host, as far as they need no device; RXE_SETTINGS="NAME=VALUE ..."
 * goes to the daemons as well, last. Never used outside tests; a failed RIG_CHECK ends the program.
 */
#ifndef EPF_TESTS_RXE_RIG_H
#define EPF_TESTS_RXE_RIG_H

#include "tests/proc/daemons.h"
#include "tests/proc/svc_job.h"

#include <stdbool.h>
#include <stdint.h>

enum { RIG_WORLD = 4, RIG_SETTINGS = 24, RIG_ALARM_S = 570 };

/* Words of a job's page (page->words[0] is job_play's). */
enum { RIG_ALL_TOLD = 1, RIG_MASK = 2 };

/* Counters of a report that rig_until_told() leaves: a bit for each rank it saw lost, rounds played after that, its own lane errors. */
enum { RIG_C_LOST = 4, RIG_C_AFTER = 5 };

/* A fault of the test: one line, daemons' logs, and the program ends with 1. */
#define RIG_CHECK(condition)                                      \
 do {                                                             \
  if (!(condition))                                               \
   rig_die("%s:%d: %s is false", __FILE__, __LINE__, #condition); \
 } while (0)

struct rig {
	struct daemons daemons;
	const char *nic; /* "verbs" or "emu" */
	char secret[128];
	char text[RIG_SETTINGS][160];
	const char *settings[RIG_SETTINGS + 1];
	unsigned n_settings;
	unsigned alarm_s;  /* a job is over after that; 0: RIG_ALARM_S */
	struct job job;    /* the one that the fault hits */
	struct job beside; /* the other one; page NULL: there is none */
	char said[256];
};

extern struct rig rig;

/* Settings of clients of daemons on a machine that may keep a guest waiting for long. */
extern const char *const rig_patience[];

void rig_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* True on RDMA devices. */
bool rig_is_verbs(void);

/*
 * Daemons node0 .. node(n-1); devices[i] is nic-device of daemon i. more: NULL, or settings of all (of one: "N:name=value"), NULL-terminated. Ends the
 * program when they do not start.
 */
void rig_start(unsigned n, const char *const *devices, const char *const *more);

/* A job of RIG_WORLD ranks, rank r on daemon nodes[r]; returns when each has played some rounds. */
void rig_job(struct job *job, const char *name, const unsigned *nodes,
	     void (*body)(struct job_rank *r));

/*
 * A body: joins, plays until it comes back with an error, reports that, closes. If RIG_MASK of the page is set, it masks who is lost and plays
 * on with the others until the test says RIG_ALL_TOLD; else it waits for that.
 */
void rig_until_told(struct job_rank *r);
/* The middle of it. */
void rig_play_until_told(struct job_rank *r);

/*
 * Waits until rank `rank` has an error and checks it: it saw exactly the ranks of `lost` (bits) lost, and the text has
 * one of the words (NULL: not looked at). Prints it, and how long after since_ns it came.
 */
void rig_told(const struct job *job, unsigned rank, uint64_t since_ns, unsigned lost,
	      const char *const *words);

/* All ranks of the job go and none found a fault. killed: a bit for each rank that was killed. */
void rig_end_told(struct job *job, unsigned killed);

/* The job beside plays on: some more rounds of checked bytes. */
void rig_beside_goes_on(void);
/* It ends well: nothing was wrong, no lane of it failed, no arrival was refused. */
void rig_beside_ends(void);

/* Adds to the text of the case that runs. */
void rig_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A new job on these daemons ends well. */
void rig_next_job(const unsigned *nodes);

/* Ends the daemons; all must have lived and end well (daemons_kill'ed ones do not count). */
void rig_stop(void);

/* Runs a shell line, which must succeed. */
void rig_shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A link of the guest, 'A' or 'B', down or up, with its neighbours (devices.sh). */
void rig_link(char pair, bool up);

#endif
