/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Service daemons for tests and benches: starts `ep-fabric run` processes in a runtime directory of their own, several
 * of them playing several nodes of one machine, and ends them. Daemons die with the process that started them. Fork-safe beside
 * sanitizers only before the caller has threads: start daemons first.
 *
 * Clients reach daemon i with the settings in daemons_client(d, i), or with "service=PATH", PATH = daemons_socket(d, i).
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
	int option_of[DAEMONS_SETTINGS_MAX];    /* of this daemon alone; -1: of all */
	char socket[DAEMONS_MAX][108];          /* path of "nodeI.sock" */
	char client[DAEMONS_MAX][2][128];       /* see daemons_client() */
	const char *client_list[DAEMONS_MAX][3];
	char log[DAEMONS_MAX]
		[96]; /* file that daemon i writes its log to; appended over restarts */
	unsigned n_options;
};

/*
 * Makes the directory and starts n daemons "node0", "node1" ...; settings: NULL, or "name=value" texts ending with NULL, given to each of
 * them, or "N:name=value" for daemon N alone. The directory is made in TMPDIR, else /tmp. Returns when all are ready: 0, or -1 after a message to stderr (then nothing is left behind).
 * The program is $FABRIC_PROGRAM, else tools/ep-fabric above the directory of the running program.
 */
int daemons_start(struct daemons *d, unsigned n, const char *const *settings);

/* SIGTERM to all, waits, removes the directory. Number of daemons that did not exit with 0 (killed ones do not count). */
int daemons_stop(struct daemons *d);

/* SIGKILL to daemon i, waits for its end. */
void daemons_kill(struct daemons *d, unsigned i);

/* Ends daemon i by `signo` and waits up to timeout_ms: its wait status, or -1 when it lives on. */
int daemons_end(struct daemons *d, unsigned i, int signo, unsigned timeout_ms);

/* Starts daemon i again under the same name, after it ended: 0 when it is ready, -1 after a message. */
int daemons_restart(struct daemons *d, unsigned i);

/* The settings with which a client of daemon i runs, NULL-terminated: {"service=PATH", "stats-dir=DIR"}. */
const char *const *daemons_client(const struct daemons *d, unsigned i);
const char *daemons_socket(const struct daemons *d, unsigned i);

/* Text of daemon i's log so far, or of any command's output: malloced; NULL when there is none. */
char *daemons_log(const struct daemons *d, unsigned i);

/* The status JSON of daemon i (ep-fabric status --json), malloced; NULL when it does not answer. */
char *daemons_status(const struct daemons *d, unsigned i);

/*
 * Runs "ep-fabric ARGV..." (argv[0] is the subcommand, NULL-terminated) with the runtime directory of d and waits: its exit status, -1 when it
 * was killed. out: NULL, or set to what it wrote to stdout and stderr, malloced.
 */
int daemons_command(const struct daemons *d, const char *const *argv, char **out);

/* The same for what reads statistics files: with the statistics directory of d, or without any where d is NULL. */
int daemons_reader(const struct daemons *d, const char *const *argv, char **out);

#endif
