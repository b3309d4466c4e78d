/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent of `ep-fabric launch` on one host: starts the host's ranks as its launcher says, forwards what they write, says how they end, and ends them when told
 * to or when the launcher is gone, which it learns from the end of its standard input. Each rank leads a session of its own; the end of a rank ends what
 * is left of that. A second process, the keeper, ends the ranks when the agent itself is killed. The secret is in a memory file that only this user can
 * open: it is in no argument, no environment and no log.
 */
#include "tools/cli/launch_priv.h"

#include "fabric/base/clock.h"
#include "fabric/client/epf.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Below the ephemeral ports, so that no connection of this host takes the port before rank 0 listens. */
#define PORT_FIRST 20000u
#define PORT_COUNT 12000u
/* For the last output of a rank whose descendants have left its session and keep its pipes open. */
#define DRAIN_NS 1000000000ull

enum { OUT, ERR, PIPES };

struct rank {
	pid_t pid;
	int fd[PIPES]; /* -1: at its end */
	int status;
	bool has_ended, is_reported;
	uint64_t drain_until_ns;
};

struct agent {
	struct launch_stream in;
	struct rank *rank;
	uint32_t ranks, first;
	uint32_t reported;
	int signals; /* signalfd(2) */
	int keeper;  /* pipe of the keeper; -1: none yet */
	pid_t keeper_pid;
	int secret; /* memory file; -1: none */
	bool is_orphan;
	uint64_t kill_at_ns; /* 0: nobody has been told to end */
};

__attribute__((format(printf, 1, 2))) static int fail(const char *fmt, ...)
{
	char text[600];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)launch_send(STDOUT_FILENO, LAUNCH_FAILED, 0, text, strlen(text));
	return -EIO;
}

/* ---- keeper ---------------------------------------------------------------------------------- */

/*
 * Reads the numbers of sessions, negative when one has ended, until the agent is gone, and ends those that are left. A number is given back before
 * the kernel can use it again: the agent reaps its leader afterwards.
 */
static void keep(int fd, uint32_t ranks)
{
	pid_t *alive = calloc(ranks, sizeof(*alive));
	pid_t pid;

	while (alive && read(fd, &pid, sizeof(pid)) == sizeof(pid)) {
		pid_t want = pid > 0 ? 0 : -pid;
		uint32_t i = 0;

		while (i < ranks && alive[i] != want)
			i++;
		if (i < ranks)
			alive[i] = pid > 0 ? pid : 0;
	}
	for (uint32_t i = 0; alive && i < ranks; i++)
		if (alive[i])
			(void)kill(-alive[i], SIGKILL);
}

static int start_keeper(struct agent *a)
{
	int fd[2];
	pid_t pid;

	if (pipe2(fd, O_CLOEXEC))
		return fail("no pipe: %s", strerror(errno));
	pid = fork();
	if (pid < 0)
		return fail("no process: %s", strerror(errno));
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		(void)setsid(); /* out of reach of the terminal's signals */
		(void)signal(SIGHUP, SIG_IGN);
		(void)signal(SIGTERM, SIG_IGN);
		prctl(PR_SET_NAME, "epf-keeper");
		close(fd[1]);
		/* The remote shell must not wait for this process. */
		for (int i = 0; null >= 0 && i <= STDERR_FILENO; i++)
			(void)dup2(null, i);
		keep(fd[0], a->ranks);
		_exit(0);
	}
	close(fd[0]);
	a->keeper = fd[1];
	a->keeper_pid = pid;
	return 0;
}

static void tell_keeper(const struct agent *a, pid_t pid)
{
	(void)!write(a->keeper, &pid,
		     sizeof(pid)); /* it is gone: the ranks die with this process all the same */
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void signal_ranks(const struct agent *a, int sig)
{
	for (uint32_t i = 0; i < a->ranks; i++)
		if (a->rank[i].pid > 0 && !a->rank[i].has_ended)
			(void)kill(-a->rank[i].pid, sig);
}

static void stop_ranks(struct agent *a)
{
	if (a->kill_at_ns)
		return;
	a->kill_at_ns = epf_now_ns() + LAUNCH_TERM_MS * 1000000ull;
	signal_ranks(a, SIGTERM);
	signal_ranks(a, SIGCONT);
}

/* Runs the program, through ep-fabric exec if the launcher's variables choose a back end. Returns only on failure. */
static void become_program(char **argv)
{
	static char *const by[] = { (char *)"ep-fabric", (char *)"exec", (char *)"--" };
	char **words;
	size_t n = 0;

	if (!getenv("EPF_BACKEND")) {
		execvp(argv[0], argv);
		return;
	}
	while (argv[n])
		n++;
	words = calloc(n + 4, sizeof(*words));
	if (!words)
		return;
	memcpy(words, by, sizeof(by));
	memcpy(words + 3, argv, n * sizeof(*words));
	execv("/proc/self/exe", words);
}

/* In the new process. */
static _Noreturn void become_rank(const struct agent *a, uint32_t i, int fd[PIPES], char **argv)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	sigset_t none;
	char text[16];

	(void)setsid();
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	(void)signal(SIGPIPE, SIG_DFL);
	snprintf(text, sizeof(text), "%u", a->first + i);
	(void)setenv("EPF_RANK", text, 1);
	snprintf(text, sizeof(text), "%u", i);
	(void)setenv("EPF_LOCAL_RANK", text, 1);
	(void)dup2(null, STDIN_FILENO);
	(void)dup2(fd[OUT], STDOUT_FILENO);
	(void)dup2(fd[ERR], STDERR_FILENO);
	become_program(argv);
	dprintf(STDERR_FILENO,
		"%s: %s: it must be at this place, or in the PATH of a remote shell, on every host\n",
		argv[0], strerror(errno));
	_exit(127);
}

static int start_rank(struct agent *a, uint32_t i, char **argv)
{
	struct rank *r = &a->rank[i];
	int out[2], err[2];

	if (pipe2(out, O_CLOEXEC))
		return fail("no pipe for rank %u: %s", a->first + i, strerror(errno));
	if (pipe2(err, O_CLOEXEC)) {
		close(out[0]);
		close(out[1]);
		return fail("no pipe for rank %u: %s", a->first + i, strerror(errno));
	}
	r->pid = fork();
	if (r->pid == 0)
		become_rank(a, i, (int[]){ out[1], err[1] }, argv);
	close(out[1]);
	close(err[1]);
	r->fd[OUT] = out[0];
	r->fd[ERR] = err[0];
	if (r->pid < 0)
		return fail("no process for rank %u: %s", a->first + i, strerror(errno));
	tell_keeper(a, r->pid);
	return 0;
}

/* Reads what a rank wrote, once. */
static void forward(struct agent *a, uint32_t i, int which)
{
	static char buf[65536];
	struct rank *r = &a->rank[i];
	ssize_t n = read(r->fd[which], buf, sizeof(buf));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0) {
		close(r->fd[which]);
		r->fd[which] = -1;
	} else if (launch_send(STDOUT_FILENO, which == OUT ? LAUNCH_OUT : LAUNCH_ERR, a->first + i,
			       buf, (size_t)n)) {
		a->is_orphan = true;
	}
}

/* Says how a rank ended, once all that it wrote has gone out. */
static void report_ended(struct agent *a)
{
	for (uint32_t i = 0; i < a->ranks; i++) {
		struct rank *r = &a->rank[i];
		char text[16];

		if (!r->has_ended || r->is_reported)
			continue;
		if ((r->fd[OUT] >= 0 || r->fd[ERR] >= 0) && epf_now_ns() < r->drain_until_ns)
			continue;
		snprintf(text, sizeof(text), "%d", r->status);
		if (launch_send(STDOUT_FILENO, LAUNCH_ENDED, a->first + i, text, strlen(text)))
			a->is_orphan = true;
		r->is_reported = true;
		a->reported++;
	}
}

static void reap(struct agent *a)
{
	siginfo_t info = { 0 };

	/* Not yet reaped, a rank keeps the number of its session. */
	while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid) {
		pid_t pid = info.si_pid;
		int status;

		for (uint32_t i = 0; i < a->ranks; i++)
			if (a->rank[i].pid == pid) {
				(void)kill(-pid, SIGKILL);
				tell_keeper(a, -pid);
			}
		if (waitpid(pid, &status, 0) != pid)
			return;
		for (uint32_t i = 0; i < a->ranks; i++)
			if (a->rank[i].pid == pid && !a->rank[i].has_ended) {
				a->rank[i].status = status;
				a->rank[i].has_ended = true;
				a->rank[i].drain_until_ns = epf_now_ns() + DRAIN_NS;
			}
		info.si_pid = 0;
	}
}

/* ---- the launcher's wishes ------------------------------------------------------------------- */

static int keep_secret(struct agent *a, const char *secret)
{
	char path[64];

	/* By way of /proc, not inherited: many programs close the descriptors of their children. */
	a->secret = memfd_create("ep-fabric-secret", MFD_CLOEXEC);
	if (a->secret < 0 || fchmod(a->secret, 0400) ||
	    write(a->secret, secret, strlen(secret)) != (ssize_t)strlen(secret))
		return fail("the secret cannot be kept: %s", strerror(errno));
	snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)getpid(), a->secret);
	(void)unsetenv("EPF_SECRET");
	(void)unsetenv("EPF_SECRET_FD");
	(void)setenv("EPF_SECRET_FILE", path, 1);
	return 0;
}

/* Variables, folder, secret and size of the job; then the ranks. */
static int start(struct agent *a, const json_t *job)
{
	const json_t *env = json_object_get(job, "env"), *words = json_object_get(job, "program"),
		     *value;
	const char *cwd = json_string_value(json_object_get(job, "cwd"));
	const char *secret = json_string_value(json_object_get(job, "secret"));
	const char *name;
	size_t n = json_array_size(words);
	char **argv = calloc(n + 1, sizeof(*argv));
	int rc = 0;

	a->first = (uint32_t)json_integer_value(json_object_get(job, "first"));
	a->ranks = (uint32_t)json_integer_value(json_object_get(job, "ranks"));
	a->rank = calloc(a->ranks, sizeof(*a->rank));
	if (!argv || !a->rank || !n || !cwd)
		rc = fail("no memory, or the launcher is of another release");
	for (uint32_t i = 0; !rc && i < a->ranks; i++)
		a->rank[i] = (struct rank){ .fd = { -1, -1 } };
	if (!rc && chdir(cwd))
		rc = fail("the folder %s: %s: start from one that every host has", cwd,
			  strerror(errno));
	if (!rc && secret)
		rc = keep_secret(a, secret);
	json_object_foreach((json_t *)(uintptr_t)env, name, value)(void)
		setenv(name, json_string_value(value), 1);
	for (size_t i = 0; i < n && argv; i++)
		argv[i] = (char *)(uintptr_t)json_string_value(json_array_get(words, i));
	if (!rc)
		rc = start_keeper(a);
	for (uint32_t i = 0; !rc && i < a->ranks; i++)
		rc = start_rank(a, i, argv);
	free(argv);
	return rc;
}

static int obey(struct agent *a, const struct launch_frame *f)
{
	json_t *job;
	int rc;

	if (f->kind == LAUNCH_STOP)
		stop_ranks(a);
	if (f->kind != LAUNCH_START || a->rank)
		return 0;
	job = json_loadb(f->bytes, f->len, 0, NULL);
	rc = start(a, job);
	json_decref(job);
	explicit_bzero((char *)(uintptr_t)f->bytes, f->len); /* the secret was in it */
	return rc;
}

static int read_launcher(struct agent *a)
{
	struct launch_frame f;
	long n = launch_receive(&a->in, STDIN_FILENO);
	int rc;

	if (n == -EAGAIN)
		return 0;
	if (n <= 0)
		a->is_orphan = true;
	while ((rc = launch_next(&a->in, &f)) > 0) {
		rc = obey(a, &f);
		if (rc)
			break;
	}
	return rc;
}

static void read_signals(struct agent *a)
{
	struct signalfd_siginfo s;

	while (read(a->signals, &s, sizeof(s)) == sizeof(s))
		if (s.ssi_signo != SIGCHLD)
			a->is_orphan = true; /* whoever ends this process ends the job here */
	reap(a);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static size_t fill_poll(const struct agent *a, struct pollfd *p)
{
	size_t n = 0;

	p[n++] = (struct pollfd){ .fd = a->is_orphan ? -1 : STDIN_FILENO, .events = POLLIN };
	p[n++] = (struct pollfd){ .fd = a->signals, .events = POLLIN };
	for (uint32_t i = 0; a->rank && i < a->ranks; i++)
		for (int w = 0; w < PIPES; w++)
			p[n++] = (struct pollfd){ .fd = a->rank[i].fd[w], .events = POLLIN };
	return n;
}

static bool has_deadline(const struct agent *a)
{
	if (a->kill_at_ns)
		return true;
	for (uint32_t i = 0; a->rank && i < a->ranks; i++)
		if (a->rank[i].has_ended && !a->rank[i].is_reported)
			return true;
	return false;
}

static int serve(struct agent *a)
{
	struct pollfd *p = NULL;
	int rc = 0;

	while (!rc && (!a->rank || a->reported < a->ranks) && (a->rank || !a->is_orphan)) {
		struct pollfd *larger = realloc(p, (2 + (size_t)a->ranks * PIPES) * sizeof(*p));
		size_t n;

		if (!larger) {
			rc = -ENOMEM;
			break;
		}
		p = larger;
		n = fill_poll(a, p);
		(void)poll(p, n, has_deadline(a) ? 100 : -1);
		for (size_t k = 2; k < n; k++)
			if (p[k].revents)
				forward(a, (uint32_t)(k - 2) / PIPES, (int)(k - 2) % PIPES);
		if (p[1].revents)
			read_signals(a);
		if (p[0].revents)
			rc = read_launcher(a);
		if (a->is_orphan)
			stop_ranks(a);
		if (a->kill_at_ns && epf_now_ns() >= a->kill_at_ns)
			signal_ranks(a, SIGKILL);
		if (a->rank)
			report_ended(a);
	}
	free(p);
	return rc;
}

/* A port that nobody listens on, of either family; rank 0 takes it a moment later. */
static unsigned free_port(void)
{
	unsigned turn = 0, at = 0;

	(void)!getrandom(&at, sizeof(at), 0);
	for (; turn < 64; turn++) {
		unsigned port = PORT_FIRST + (at + turn) % PORT_COUNT;
		struct sockaddr_in6 v6 = { .sin6_family = AF_INET6,
					   .sin6_port = htons((uint16_t)port) };
		struct sockaddr_in v4 = { .sin_family = AF_INET,
					  .sin_port = htons((uint16_t)port) };
		int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
		int rc = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&v6, sizeof(v6));

		if (fd < 0 && errno == EAFNOSUPPORT) {
			fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
			rc = bind(fd, (struct sockaddr *)&v4, sizeof(v4));
		}
		if (fd >= 0)
			close(fd);
		if (!rc)
			return port;
	}
	return PORT_FIRST + at % PORT_COUNT;
}

static int say_ready(void)
{
	json_t *ready = json_pack("{s:s, s:i}", "version", epf_version(), "port", (int)free_port());
	char *text = json_dumps(ready, JSON_COMPACT);
	int rc = text && write(STDOUT_FILENO, LAUNCH_MAGIC, LAUNCH_MAGIC_BYTES) ==
					 (ssize_t)LAUNCH_MAGIC_BYTES
			 ? launch_send(STDOUT_FILENO, LAUNCH_READY, 0, text, strlen(text))
			 : -EIO;

	json_decref(ready);
	free(text);
	return rc;
}

int launch_agent(void)
{
	struct agent a = { .keeper = -1, .secret = -1 };
	sigset_t set;
	int rc;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	a.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	rc = a.signals < 0 ? -errno : say_ready();
	if (!rc)
		rc = serve(&a);
	if (rc)
		signal_ranks(&a, SIGKILL);
	if (a.keeper >= 0) {
		close(a.keeper);
		(void)waitpid(a.keeper_pid, NULL, 0);
	}
	free(a.in.buf);
	free(a.rank);
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
