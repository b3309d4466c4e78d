/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the launcher itself share: its hosts and its state. launch_run.c (the loop) calls launch_remote.c (a host's remote shell and agent),
 * and launch_job.c (what agents are told); all call launch_output.c (what is printed, and why the job fails). Included by them only.
 */
#ifndef EPF_TOOLS_CLI_LAUNCH_RUN_PRIV_H
#define EPF_TOOLS_CLI_LAUNCH_RUN_PRIV_H

#include "tools/cli/launch_priv.h"

#include <sys/types.h>

#define LAUNCH_MS 1000000ull
/* After the first failure, how long others may still report a better cause. */
#define LAUNCH_GRACE_NS (500 * LAUNCH_MS)

enum { LAUNCH_LAST_BYTES = 240 };

/* Collects the bytes of one rank's stdout or stderr into lines. */
struct launch_line {
	char *text;
	size_t have;
};

struct launch_host {
	const char *target, *name;
	pid_t pid;         /* of the remote shell; 0: reaped or not started */
	int to, from, err; /* pipes; -1: closed */
	struct launch_stream in;
	struct launch_line
		said; /* by the remote shell, on stderr or before the agent's first word */
	char last[LAUNCH_LAST_BYTES]; /* its last line */
	bool is_local, has_magic, is_ready, is_lost;
	unsigned port;
	uint32_t left; /* ranks that have not ended */
	int status;
};

enum launch_phase { PHASE_CONNECT, PHASE_RUN, PHASE_STOP };

struct launch {
	const struct launch_request *req;
	struct launch_host *host;
	uint32_t hosts,
		ranks;   /* of the whole job, except that hosts is 1 with the remote shell none */
	uint32_t offset; /* number of host[0] in the job */
	bool is_alone;   /* the remote shell is none: every host has a launcher */
	struct launch_line *line; /* [ranks][2] */
	enum launch_phase phase;
	bool has_begun;
	uint64_t deadline_ns; /* of the phase; in PHASE_RUN: of the grace; 0: none */
	int signals;
	char why[1000]; /* the failure; "" : none */
	bool is_best_cause; /* why says who was killed: better than who ended with an error, which may follow from it */
};

/* launch_output.c: print what a rank, or the remote shell itself, writes, line by line; no bytes: what is left of a line. */
void launch_put_rank(struct launch *l, const struct launch_host *h, uint32_t rank, bool is_err,
		     const char *bytes, size_t len);
void launch_put_shell(struct launch_host *h, const char *bytes, size_t len);

/* launch_output.c: notes why the job fails. A cause marked as best replaces one that is not, and none is noted while everything ends. */
__attribute__((format(printf, 3, 4))) void launch_blame(struct launch *l, bool best,
							const char *fmt, ...);

/*
 * launch_remote.c: starts the agent of a host, @self being this program's path; returns 0 or -errno, blamed. Reads what the agent, or its remote shell, has sent.
 * Blames hosts whose connection has ended before their ranks have. Closes a descriptor once, and marks it so.
 */
int launch_start_host(struct launch *l, struct launch_host *h, const char *self);
void launch_read_agent(struct launch *l, struct launch_host *h);
void launch_read_shell(struct launch_host *h);
void launch_look_at_ends(struct launch *l);
void launch_close_fd(int *fd);

/* launch_job.c: gives all agents the job; tells them to end it. */
void launch_start_job(struct launch *l);
void launch_stop_job(struct launch *l);

#endif
