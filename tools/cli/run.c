/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric run`: the daemon in the foreground, and a second process that only waits for its end: killed, the daemon leaves a socket and a lock,
 * and where no client is connected nobody else would remove them before the next start. Reads the configuration, turns signals into requests to stop, says when it is ready. Everything
 * else is fabric/service/service.h.
 */
#include "fabric/base/conf_cli.h"
#include "fabric/base/err.h"
#include "fabric/base/sweep.h"
#include "fabric/client/epf.h"
#include "fabric/service/service.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXIT_USAGE 2

#ifndef SYS_pidfd_open
# define SYS_pidfd_open 434 /* linux 5.3, the same on all architectures */
#endif

enum { OPT_READY_FD = 0x10000, OPT_DRAIN_TIMEOUT };

struct request {
	struct epf_conf conf;
	int ready_fd;
	double drain_s; /* 0: no limit */
};

/* For the signal handler alone; set before it is installed. */
static struct epf_svc *running;

static void on_signal(int signo)
{
	(void)signo;
	epf_svc_stop(running);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;
	char *end = NULL;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &req->conf;
		return 0;
	case OPT_READY_FD:
		req->ready_fd = (int)strtol(arg, &end, 10);
		if (*end || end == arg || req->ready_fd < 0)
			argp_error(state, "--ready-fd: \"%s\" is not a file descriptor number",
				   arg);
		return 0;
	case OPT_DRAIN_TIMEOUT:
		req->drain_s = strtod(arg, &end);
		if (*end || end == arg || !(req->drain_s >= 0 && req->drain_s < 1e9))
			argp_error(state, "--drain-timeout: \"%s\" is no number of seconds", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void catch_signals(struct epf_svc *svc)
{
	struct sigaction stop = { .sa_handler = on_signal }, ignore = { .sa_handler = SIG_IGN };

	running = svc;
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

/*
 * Until that process is gone whole. The end of the pipe comes earlier: the kernel closes the descriptors of a dying process one after the other, on a
 * busy machine its lock perhaps much later, and who holds that counts as living. -1: not to be known.
 */
static void wait_for_end(int pidfd)
{
	struct pollfd gone = { .fd = pidfd, .events = POLLIN };

	if (pidfd < 0)
		return;
	while (poll(&gone, 1, -1) < 0 && errno == EINTR)
		;
}

/* Reads the path of the socket, then the end of the pipe: the daemon ends; after an orderly end nothing is there to sweep. */
static void sweep_after(int fd, int pidfd)
{
	char path[256];
	size_t have = 0;
	char *slash, *dot;

	while (have < sizeof(path) - 1) {
		ssize_t n = read(fd, path + have, sizeof(path) - 1 - have);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	path[have] = 0;
	slash = strrchr(path, '/');
	dot = strrchr(path, '.');
	if (!slash || !dot || dot < slash)
		return;
	*slash = *dot = 0;
	wait_for_end(pidfd);
	(void)epf_svc_sweep(path, slash + 1);
}

static void close_all_from(int first)
{
	long end = sysconf(_SC_OPEN_MAX);

	if (syscall(SYS_close_range, first, ~0u, 0) == 0)
		return;
	for (int fd = first; fd < (end < 0 || end > 65536 ? 65536 : end); fd++)
		close(fd);
}

/*
 * Forks the sweeper before the daemon has any thread: the descriptor to tell it the socket by, or -1 where there can be none, and then
 * the next start sweeps. It keeps none of the daemon's descriptors but its standard ones, and lives no longer than the daemon.
 */
static int start_sweeper(void)
{
	int ends[2], pidfd;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	fflush(NULL);
	/* Made here: a child that looks for its parent may find another one. */
	pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	pid = fork();
	if (pid != 0) {
		if (pidfd >= 0)
			close(pidfd);
		close(ends[0]);
		if (pid < 0)
			close(ends[1]);
		return pid < 0 ? -1 : ends[1];
	}
	/* Ctrl-C and a terminal that goes are for the daemon to take, in order. */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	prctl(PR_SET_NAME, "epf-sweeper");
	close(ends[1]);
	if (dup2(ends[0], STDIN_FILENO) == STDIN_FILENO) {
		if (pidfd >= 0)
			pidfd = dup2(pidfd, STDERR_FILENO + 1);
		close_all_from(STDERR_FILENO + 1 + (pidfd >= 0));
		sweep_after(STDIN_FILENO, pidfd);
	}
	_exit(0);
}

static int say_ready(int fd)
{
	ssize_t n = fd < 0 ? 1 : write(fd, "r", 1);

	if (fd >= 0)
		close(fd);
	return n == 1 ? 0 : -1;
}

static int serve(const struct request *req)
{
	sigset_t stops, before;
	int rc, sweeper = start_sweeper();
	struct epf_svc *svc;

	/* A signal that comes while the daemon is made waits until there is something to stop. */
	sigemptyset(&stops);
	sigaddset(&stops, SIGTERM);
	sigaddset(&stops, SIGINT);
	sigprocmask(SIG_BLOCK, &stops, &before);
	rc = epf_svc_create(&req->conf, epf_version(), &svc);
	if (rc)
		return rc;
	catch_signals(svc);
	/* It fits the pipe; a sweeper that is gone already is not missed. */
	if (sweeper >= 0 && write(sweeper, epf_svc_socket(svc), strlen(epf_svc_socket(svc))) < 0)
		close(sweeper);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (say_ready(req->ready_fd))
		fprintf(stderr, "ep-fabric run: --ready-fd: cannot write to descriptor %d\n",
			req->ready_fd);
	rc = epf_svc_run(svc, (uint64_t)(req->drain_s * 1e9));
	/* From here on a signal may end the process: all that is left is to tidy up. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	epf_svc_destroy(svc);
	return rc;
}

int epf_tool_run(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "ready-fd", OPT_READY_FD, "FD", 0,
		  "Write one byte to this descriptor, and close it, when clients can connect", 0 },
		{ "drain-timeout", OPT_DRAIN_TIMEOUT, "SECONDS", 0,
		  "Longest time that jobs may continue after SIGTERM (default 0: no limit)", 0 },
		{ 0 },
	};
	static const struct argp_child children[] = { { &epf_conf_argp, 0, NULL, 0 }, { 0 } };
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.children = children,
		.doc = "Serve the ranks of this node in the foreground. SIGTERM or SIGINT: refuse new jobs and end "
		       "after the last one; a second one ends the jobs too. Log lines go to stderr, see EPF_LOG.",
	};
	struct request req = { .ready_fd = -1 };
	int rc;

	argp_err_exit_status = EXIT_USAGE;
	if (epf_conf_init(&req.conf)) {
		fprintf(stderr, "ep-fabric run: out of memory\n");
		return EXIT_FAILURE;
	}
	rc = argp_parse(&argp, argc, argv, 0, NULL, &req);
	if (rc) {
		fprintf(stderr, "ep-fabric run: %s\n", strerror(rc));
	} else {
		rc = epf_conf_load(&req.conf, NULL);
		if (!rc)
			rc = serve(&req);
		if (rc)
			fprintf(stderr, "ep-fabric run: %s\n", epf_last_error());
	}
	epf_conf_destroy(&req.conf);
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
