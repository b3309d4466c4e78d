/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Service daemons for tests: starts and ends `ep-fabric run` processes in a separate runtime directory. Several daemons stand for several
 * nodes. They die with the process that started them. Under a sanitizer, start daemons before the caller has threads (fork).
 *
 * Clients reach daemon i with the settings daemons_client(d, i), or with "service=PATH", PATH = daemons_socket(d, i).
 */
#ifndef EPF_TESTS_DAEMONS_H
#define EPF_TESTS_DAEMONS_H

#include <stdint.h>
#include <sys/types.h>

enum { DAEMONS_MAX = 16, DAEMONS_SETTINGS_MAX = 32 };

struct daemons {
	char dir[64]; /* runtime and statistics directory */
	unsigned n;
	pid_t pid[DAEMONS_MAX];                 /* 0: not running */
	char option[DAEMONS_SETTINGS_MAX][192]; /* "--name=value" of each setting */
	int option_of[DAEMONS_SETTINGS_MAX];    /* the daemon it is for; -1: all */
	char socket[DAEMONS_MAX][108];          /* path of "nodeI.sock" */
	char client[DAEMONS_MAX][2][128];       /* see daemons_client() */
	const char *client_list[DAEMONS_MAX][3];
	char log[DAEMONS_MAX][96]; /* log file of daemon i; restarts append to it */
	unsigned n_options;
};

/*
 * Makes a directory in TMPDIR, else /tmp, and starts n daemons "node0", "node1" ... settings: NULL, or "name=value" for all daemons and
 * "N:name=value" for daemon N, NULL-terminated. Returns 0 when all are ready, or -1 after a message to stderr, with nothing left behind.
 * The program is $FABRIC_PROGRAM, else tools/ep-fabric above the directory of the running program.
 */
int daemons_start(struct daemons *d, unsigned n, const char *const *settings);

/* Sends SIGTERM to all, waits, removes the directory. Returns how many did not exit with 0 (killed ones do not count). */
int daemons_stop(struct daemons *d);

/* Sends SIGKILL to daemon i and reaps it. */
void daemons_kill(struct daemons *d, unsigned i);

/* Sends `signo` (0: nothing) to daemon i and waits up to timeout_ms. Returns its wait status, or -1 if it is still alive. */
int daemons_end(struct daemons *d, unsigned i, int signo, unsigned timeout_ms);

/* Starts daemon i again under the same name. Returns 0 when it is ready, -1 after a message. */
int daemons_restart(struct daemons *d, unsigned i);

/* The settings of a client of daemon i, NULL-terminated: {"service=PATH", "stats-dir=DIR"}. */
const char *const *daemons_client(const struct daemons *d, unsigned i);
const char *daemons_socket(const struct daemons *d, unsigned i);

/* Returns daemon i's log so far, malloced; NULL if there is none. */
char *daemons_log(const struct daemons *d, unsigned i);

/* Prints the logs of all daemons to stderr. */
void daemons_print_logs(const struct daemons *d);

/* Returns the status of daemon i (ep-fabric status --json), malloced; NULL if it does not answer. */
char *daemons_status(const struct daemons *d, unsigned i);

/*
 * Runs "ep-fabric ARGV..." (argv[0] is the subcommand, NULL-terminated) with the runtime directory of d. Returns its exit status, or -1
 * if it was killed. out: NULL, or receives its stdout and stderr, malloced.
 */
int daemons_command(const struct daemons *d, const char *const *argv, char **out);

/* The same for commands that read statistics files: with the statistics directory of d, or without one if d is NULL. */
int daemons_reader(const struct daemons *d, const char *const *argv, char **out);

#endif
