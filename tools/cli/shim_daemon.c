/* SPDX-License-Identifier: Apache-2.0 */
/* See shim_daemon.h. The launcher stays until the program has ended: it must never leave a daemon behind, nor a folder. */
#include "tools/cli/shim_daemon.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READY_MS = 60000, END_STEP_MS = 20, END_STEPS = 500, SIGNALLED = 128 };

static volatile sig_atomic_t program_pid;

/* What asks the launcher to end is for the program. */
static void pass_on(int number)
{
	if (program_pid > 0)
		kill((pid_t)program_pid, number);
}

static int complain(const char *what, const char *call)
{
	fprintf(stderr, "%s: %s: %s\n", what, call, strerror(errno));
	return -1;
}

/* In the daemon's process: ends with the launcher, but not by the terminal's signals, which are for the program. */
static void become_daemon(const char *dir, const char *instance, int ready, pid_t launcher)
{
	char fd[16];

	snprintf(fd, sizeof(fd), "%d", ready);
	setpgid(0, 0);
	unsetenv("EPF_SERVICE");
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == launcher)
		execl("/proc/self/exe", "ep-fabric", "run", "--instance", instance, "--runtime-dir",
		      dir, "--ready-fd", fd, "--drain-timeout", "5", (char *)NULL);
	_exit(EXIT_FAILURE);
}

/* Waits for the byte of --ready-fd. */
static int wait_ready(const char *what, int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char byte;
	int rc = poll(&p, 1, READY_MS);

	if (rc > 0 && read(fd, &byte, 1) == 1)
		return 0;
	fprintf(stderr, "%s: the daemon %s\n", what,
		rc > 0 ? "did not start: its reason is above" : "is not ready after a minute");
	return -1;
}

static pid_t start_daemon(const char *what, const char *dir, const char *instance)
{
	pid_t launcher = getpid(), pid;
	int ends[2];

	if (pipe(ends))
		return complain(what, "pipe");
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(ends[0]);
		become_daemon(dir, instance, ends[1], launcher);
	}
	close(ends[1]);
	if (pid < 0)
		complain(what, "fork");
	else if (wait_ready(what, ends[0])) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		pid = -1;
	}
	close(ends[0]);
	return pid;
}

static void end_daemon(pid_t pid)
{
	struct timespec step = { .tv_nsec = END_STEP_MS * 1000000L };

	kill(pid, SIGTERM);
	for (int i = 0; i < END_STEPS; i++) {
		if (waitpid(pid, NULL, WNOHANG) != 0)
			return;
		nanosleep(&step, NULL);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int run_program(const char *what, const char *socket, const char *preload, char **program)
{
	struct sigaction pass = { .sa_handler = pass_on, .sa_flags = SA_RESTART };
	struct sigaction ignore = { .sa_handler = SIG_IGN };
	sigset_t held, before;
	int status = 0;
	pid_t pid;

	sigemptyset(&held);
	sigaddset(&held, SIGTERM);
	sigaddset(&held, SIGHUP);
	sigprocmask(SIG_BLOCK, &held, &before); /* until their addressee is known */
	pid = fork();
	if (pid == 0) {
		sigprocmask(SIG_SETMASK, &before, NULL);
		if (setenv("EPF_SERVICE", socket, 1) == 0 && setenv("LD_PRELOAD", preload, 1) == 0)
			execvp(program[0], program);
		perror(program[0]);
		_exit(EXIT_FAILURE);
	}
	program_pid = pid;
	sigaction(SIGTERM, &pass, NULL);
	sigaction(SIGHUP, &pass, NULL);
	sigaction(SIGINT, &ignore, NULL); /* the terminal gives it to the program too */
	sigaction(SIGQUIT, &ignore, NULL);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (pid < 0) {
		complain(what, "fork");
		return EXIT_FAILURE;
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	program_pid = 0;
	return WIFSIGNALED(status) ? SIGNALLED + WTERMSIG(status) : WEXITSTATUS(status);
}

int shim_daemon_run(const char *what, const char *preload, char **program)
{
	const char *base = getenv("XDG_RUNTIME_DIR");
	char dir[PATH_MAX / 2], socket[PATH_MAX], instance[32];
	int status = EXIT_FAILURE;
	pid_t pid;

	snprintf(dir, sizeof(dir), "%s/epf-shim-XXXXXX", base && *base ? base : "/tmp");
	if (!mkdtemp(dir)) {
		complain(what, dir);
		return EXIT_FAILURE;
	}
	snprintf(instance, sizeof(instance), "shim-%d", (int)getpid());
	snprintf(socket, sizeof(socket), "%s/%s.sock", dir, instance);
	pid = start_daemon(what, dir, instance);
	if (pid > 0) {
		fprintf(stderr, "%s: daemon %s (process %d) serves it and ends with it\n", what,
			instance, (int)pid);
		status = run_program(what, socket, preload, program);
		end_daemon(pid);
	}
	if (rmdir(dir))
		complain(what, dir);
	return status;
}
