/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See daemon.h. A process has one daemon for each kind of NIC that its groups use. A thread waits for the end of each, so that a lost one is reported even if no
 * request is under way. It must never leave a daemon behind: the daemon itself watches this process (--end-with).
 */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/daemon.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "tools/nccl/plug.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { READY_MS = 60000, READY_FD = 3, END_STEP_US = 20000, END_STEPS = 500, VARIABLES = 4096 };

struct epf_nccl_daemon {
	struct epf_nccl_daemon *next;
	char nic[16], name[EPF_NCCL_DAEMON_NAME];
	unsigned users;
	pid_t pid;
	pthread_t thread;
	uint32_t is_ending; /* its end is asked for */
	uint32_t is_over;   /* it has ended, and is not reaped yet: its number stays its own */
	siginfo_t how;      /* written before is_over [release] */
};

static struct {
	pthread_mutex_t
		lock; /* also held while one is started or ended: rare, and nobody has a use for half a daemon */
	struct epf_nccl_daemon *all;
	unsigned made;
} daemons = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The program beside the plug-in, else by PATH. */
static void find_program(char path[PATH_MAX])
{
	Dl_info self;
	const char *slash;

	snprintf(path, PATH_MAX, "ep-fabric");
	if (!dladdr((const void *)&daemons, &self) || !self.dli_fname)
		return;
	slash = strrchr(self.dli_fname, '/');
	if (slash &&
	    snprintf(path, PATH_MAX, "%.*s/ep-fabric", (int)(slash - self.dli_fname),
		     self.dli_fname) < PATH_MAX &&
	    access(path, X_OK) == 0)
		return;
	snprintf(path, PATH_MAX, "ep-fabric");
}

/* The environment without what is meant for this process: which daemon serves it, and what is preloaded into it. */
static char **environment(void)
{
	static const char *const without[] = { "EPF_SERVICE=", "EPF_INSTANCE=", "LD_PRELOAD=" };
	char **list = calloc(VARIABLES + 1, sizeof(*list));
	unsigned n = 0;

	for (char **e = environ; list && e && *e && n < VARIABLES; e++) {
		bool is_kept = true;

		for (unsigned i = 0; i < sizeof(without) / sizeof(without[0]); i++)
			is_kept &= strncmp(*e, without[i], strlen(without[i])) != 0;
		if (is_kept)
			list[n++] = *e;
	}
	return list;
}

static int run_program(struct epf_nccl_daemon *d, int ready)
{
	char path[PATH_MAX], parent[16], nic[32], regions[32], streams[40], rings[32];
	char *argv[] = { "ep-fabric",       "run",  "--instance", d->name, "--ready-fd", "3",
			 "--end-with",      parent, "--nic",      nic,     regions,      streams,
			 "--drain-timeout", "5",    rings,        NULL };
	char **env = environment();
	posix_spawn_file_actions_t files;
	posix_spawnattr_t how;
	sigset_t none, usual;
	int rc;

	if (!env)
		return epf_fail(EPF_R_NO_MEMORY, "nccl: a daemon");
	find_program(path);
	snprintf(parent, sizeof(parent), "%d", (int)getpid());
	snprintf(nic, sizeof(nic), "%s", d->nic);
	snprintf(rings, sizeof(rings), "--client-rings=%d", EPF_GIN_RINGS);
	snprintf(regions, sizeof(regions), "--regions=%d", EPF_GIN_REGIONS);
	snprintf(streams, sizeof(streams), "--streams-per-peer=%d", EPF_GIN_STREAMS);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, ready, READY_FD);
	/* Descriptors of the program, its GPU's above all, are not to live longer than it. */
	posix_spawn_file_actions_addclosefrom_np(&files, READY_FD + 1);
	/* The terminal's signals are for the program, and what the calling thread blocks or ignores is its own affair. */
	sigemptyset(&none);
	sigfillset(&usual);
	posix_spawnattr_init(&how);
	posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
					       POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setpgroup(&how, 0);
	posix_spawnattr_setsigmask(&how, &none);
	posix_spawnattr_setsigdefault(&how, &usual);
	rc = posix_spawnp(&d->pid, path, &files, &how, argv, env);
	posix_spawnattr_destroy(&how);
	posix_spawn_file_actions_destroy(&files);
	free(env);
	return rc ? epf_fail(EPF_R_NCCL_DAEMON, "nccl: cannot start %s: %s", path, strerror(rc))
		  : 0;
}

/* Waits for the byte of --ready-fd. */
static int wait_ready(const struct epf_nccl_daemon *d, int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char byte;
	int rc;

	do
		rc = poll(&p, 1, READY_MS);
	while (rc < 0 && errno == EINTR);
	if (rc > 0 && read(fd, &byte, 1) == 1)
		return 0;
	return epf_fail(EPF_R_NCCL_DAEMON, "nccl: daemon %s (process %d) %s", d->name, (int)d->pid,
			rc > 0 ? "did not start" : "is not ready after a minute");
}

bool epf_nccl_daemon_is_lost(const struct epf_nccl_daemon *daemon)
{
	return daemon && __atomic_load_n(&daemon->is_over, __ATOMIC_ACQUIRE);
}

int epf_nccl_daemon_lost(const struct epf_nccl_daemon *daemon)
{
	bool is_signal = daemon->how.si_code == CLD_KILLED || daemon->how.si_code == CLD_DUMPED;

	return epf_fail(
		EPF_R_NCCL_DAEMON,
		"nccl: daemon %s (process %d), which carries the one-sided operations of process %d, has ended: %s %d",
		daemon->name, (int)daemon->pid, (int)getpid(), is_signal ? "signal" : "status",
		daemon->how.si_status);
}

static void *watch(void *arg)
{
	struct epf_nccl_daemon *d = arg;

	(void)pthread_setname_np(pthread_self(), "epf-nccl-daemon");
	/* Where a program waits for any child it may be faster, and how the daemon ended is not known. */
	while (waitid(P_PID, (id_t)d->pid, &d->how, WEXITED | WNOWAIT) < 0 && errno == EINTR)
		;
	__atomic_store_n(&d->is_over, 1, __ATOMIC_RELEASE);
	if (!__atomic_load_n(&d->is_ending, __ATOMIC_ACQUIRE))
		(void)epf_plug_result("daemon", epf_nccl_daemon_lost(d));
	return NULL;
}

static void reap(const struct epf_nccl_daemon *d)
{
	while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static int start(struct epf_nccl_daemon *d)
{
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "nccl: a pipe");
	rc = run_program(d, ends[1]);
	close(ends[1]);
	if (!rc) {
		rc = wait_ready(d, ends[0]);
		if (!rc && pthread_create(&d->thread, NULL, watch, d))
			rc = epf_fail(EPF_R_NO_MEMORY, "nccl: no thread for a daemon");
		if (rc) {
			kill(d->pid, SIGKILL);
			reap(d);
		}
	}
	close(ends[0]);
	return rc;
}

static struct epf_nccl_daemon *find(const char *nic)
{
	struct epf_nccl_daemon *d = daemons.all;

	while (d && (strcmp(d->nic, nic) != 0 || epf_nccl_daemon_is_lost(d)))
		d = d->next;
	return d;
}

static int make(const char *nic, struct epf_nccl_daemon **out)
{
	struct epf_nccl_daemon *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return epf_fail(EPF_R_NO_MEMORY, "nccl: a daemon");
	snprintf(d->nic, sizeof(d->nic), "%s", nic);
	snprintf(d->name, sizeof(d->name), "nccl-%d-%u", (int)getpid(), ++daemons.made);
	rc = start(d);
	if (rc) {
		free(d);
		return rc;
	}
	epf_plug_info(
		"daemon %s (process %d) carries the one-sided operations of process %d, nic=%s",
		d->name, (int)d->pid, (int)getpid(), nic);
	d->next = daemons.all;
	daemons.all = d;
	*out = d;
	return 0;
}

int epf_nccl_daemon_get(const char *nic, char name[EPF_NCCL_DAEMON_NAME],
			struct epf_nccl_daemon **out)
{
	struct epf_nccl_daemon *d;
	int rc = 0;

	pthread_mutex_lock(&daemons.lock);
	d = find(nic);
	if (!d)
		rc = make(nic, &d);
	if (!rc) {
		d->users++;
		snprintf(name, EPF_NCCL_DAEMON_NAME, "%s", d->name);
		*out = d;
	}
	pthread_mutex_unlock(&daemons.lock);
	return rc;
}

/* An orderly end leaves nothing in the runtime directory; one that takes too long is none. */
static void end(struct epf_nccl_daemon *d)
{
	__atomic_store_n(&d->is_ending, 1, __ATOMIC_RELEASE);
	kill(d->pid, SIGTERM);
	for (int i = 0; i < END_STEPS && !epf_nccl_daemon_is_lost(d); i++)
		usleep(END_STEP_US);
	if (!epf_nccl_daemon_is_lost(d))
		kill(d->pid, SIGKILL);
	pthread_join(d->thread, NULL);
	reap(d);
	free(d);
}

void epf_nccl_daemon_put(struct epf_nccl_daemon *daemon)
{
	if (!daemon)
		return;
	pthread_mutex_lock(&daemons.lock);
	if (--daemon->users == 0) {
		struct epf_nccl_daemon **at = &daemons.all;

		while (*at != daemon)
			at = &(*at)->next;
		*at = daemon->next;
		end(daemon);
	}
	pthread_mutex_unlock(&daemons.lock);
}
