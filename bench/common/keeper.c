/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See keeper.h. In a separate session, so that Ctrl-C reaches ep-bench only; then its pipe ends, and this process ends the rest.
 * Daemons die with it (PR_SET_PDEATHSIG). Must not write to stdout or stderr: both are ep-bench's.
 */
#include "bench/common/keeper.h"

#include "bench/common/bench.h"
#include "fabric/base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_NS    20000000000ull /* a daemon that does not serve by then has failed */
#define END_NS      10000000000ull /* between SIGTERM and SIGKILL */
#define STEP_NS     2000000ull
#define LINE_BYTES  600
#define WARNINGS    3   /* of each daemon, the first ones: what comes later may follow from them */
#define DRAIN_S     "5" /* for ranks that were killed and whose jobs wait for them to rejoin */
#define FIXED_WORDS 9

struct keeper {
	const struct bench_daemons_options *o;
	const char *dir;
	const char *program;
	int control;
	int report;
	char secret[65];
	pid_t pid[BENCH_DAEMONS_MAX]; /* 0: not started, or reaped */
	int ready[BENCH_DAEMONS_MAX]; /* read end; -1: not waited for */
	char wrong[KEEPER_REPORT_MAX - 2];
};

static FILE *open_log(const char *dir, uint32_t n)
{
	char path[BENCH_DAEMONS_DIR + 32];

	snprintf(path, sizeof(path), "%s/node%u.log", dir, n);
	return fopen(path, "re");
}

void bench_keeper_warnings(const char *dir, uint32_t n, void (*each)(uint32_t n, const char *line))
{
	FILE *f = open_log(dir, n);
	char line[LINE_BYTES];
	int shown = 0;

	while (f && shown < WARNINGS && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		if (strstr(line, " warning: ") || strstr(line, " error: ") ||
		    strstr(line, "ERROR: ")) {
			each(n, line);
			shown++;
		}
	}
	if (f)
		fclose(f);
}

/* The last line of what a daemon wrote; "" for nothing. */
static void last_line(const char *dir, uint32_t n, char out[LINE_BYTES])
{
	FILE *f = open_log(dir, n);
	char line[LINE_BYTES];

	out[0] = 0;
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		if (line[0] && strncmp(line, "Try `", 5)) /* argp's hint stands behind the cause */
			memcpy(out, line, sizeof(line));
	}
	if (f)
		fclose(f);
}

/* Notes what went wrong first. */
static void blame(struct keeper *k, uint32_t n, const char *fmt, ...)
{
	char said[LINE_BYTES];
	char text[128];
	va_list ap;

	if (k->wrong[0])
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	last_line(k->dir, n, said);
	snprintf(k->wrong, sizeof(k->wrong), "daemon node%u: %s; it said: %s", n, text,
		 said[0] ? said : "nothing");
}

static void tell(struct keeper *k, const char *text)
{
	char line[KEEPER_REPORT_MAX];
	int n = snprintf(line, sizeof(line), "%c%.*s\n", k->wrong[0] ? KEEPER_BAD : KEEPER_GOOD,
			 KEEPER_REPORT_MAX - 4, k->wrong[0] ? k->wrong : text);

	(void)!write(k->report, line, (size_t)n); /* nobody to hear it: ep-bench is gone */
}

/* A pipe with the secret in it: the daemon reads it by descriptor, and no other process can. */
static int secret_pipe(const struct keeper *k)
{
	int fd[2];

	if (pipe(fd))
		return -1;
	(void)!write(fd[1], k->secret, strlen(k->secret));
	close(fd[1]);
	return fd[0];
}

static char *option(const char *name, const char *value)
{
	char *text = NULL;

	return asprintf(&text, "--%s%s%s", name, value ? "=" : "", value ? value : "") < 0 ? NULL
											   : text;
}

/* In the new process, which has nothing to free. */
static void become_daemon(const struct keeper *k, uint32_t n, int ready)
{
	size_t settings = 0, a = 0;
	const char **of_node;
	char **argv;
	char text[32];
	int secret = secret_pipe(k);

	while (k->o->settings && k->o->settings[settings])
		settings++;
	argv = calloc(settings + FIXED_WORDS, sizeof(*argv));
	of_node = calloc(settings + 1, sizeof(*of_node));
	if (!argv || !of_node || secret < 0)
		_exit(127);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(text, sizeof(text), "%d", secret);
	(void)setenv("EPF_FABRIC_SECRET_FD", text, 1);
	(void)unsetenv("EPF_SERVICE");
	(void)unsetenv("EPF_SECRET");
	(void)fcntl(ready, F_SETFD, 0);
	argv[a++] = strdup("ep-fabric");
	argv[a++] = strdup("run");
	settings = bench_settings_of(k->o->settings, n, of_node);
	for (size_t i = 0; i < settings; i++)
		argv[a++] = option(of_node[i], NULL);
	snprintf(text, sizeof(text), "node%u", n);
	argv[a++] = option("instance", text);
	argv[a++] = option("runtime-dir", k->dir);
	argv[a++] = option("stats-dir", k->dir);
	snprintf(text, sizeof(text), "%d", ready);
	argv[a++] = option("ready-fd", text);
	argv[a++] = option("drain-timeout", DRAIN_S);
	if (k->o->pin)
		bench_pin(n % bench_cpus());
	execv(k->program, argv);
	fprintf(stderr, "%s: %s\n", k->program, strerror(errno));
	_exit(127);
}

static void log_to_file(const struct keeper *k, uint32_t n)
{
	char path[BENCH_DAEMONS_DIR + 32];
	int fd;

	snprintf(path, sizeof(path), "%s/node%u.log", k->dir, n);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0) {
		(void)dup2(fd, STDERR_FILENO);
		(void)dup2(fd, STDOUT_FILENO);
		close(fd);
	}
}

static int start_one(struct keeper *k, uint32_t n)
{
	int fd[2];

	if (pipe2(fd, O_CLOEXEC)) {
		blame(k, n, "no pipe: %s", strerror(errno));
		return -EMFILE;
	}
	k->pid[n] = fork();
	if (k->pid[n] == 0) {
		log_to_file(k, n);
		become_daemon(k, n, fd[1]);
	}
	close(fd[1]);
	k->ready[n] = fd[0];
	if (k->pid[n] > 0)
		return 0;
	k->pid[n] = 0;
	blame(k, n, "no process: %s", strerror(errno));
	return -EAGAIN;
}

static void how_it_ended(char *text, size_t bytes, int status)
{
	if (WIFSIGNALED(status))
		snprintf(text, bytes, "was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(text, bytes, "ended with code %d", WEXITSTATUS(status));
}

/* Waits for daemon n's word: any byte on its ready descriptor; its end without one means that it failed. */
static int wait_ready(struct keeper *k, uint32_t n, uint64_t end_ns)
{
	struct pollfd pfd[2] = { { .fd = k->ready[n], .events = POLLIN },
				 { .fd = k->control, .events = POLLIN } };
	char text[96] = "does not answer";
	char byte;
	int status;

	for (;;) {
		uint64_t now = epf_now_ns();

		if (now >= end_ns) {
			blame(k, n, "does not serve after %llu s", READY_NS / 1000000000ull);
			return -ETIMEDOUT;
		}
		if (poll(pfd, 2, (int)((end_ns - now) / 1000000u) + 1) <= 0)
			continue;
		if (pfd[1].revents) /* ep-bench is gone */
			return -ECANCELED;
		if (pfd[0].revents)
			break;
	}
	if (read(k->ready[n], &byte, 1) == 1)
		return 0;
	if (waitpid(k->pid[n], &status, 0) == k->pid[n]) {
		k->pid[n] = 0;
		how_it_ended(text, sizeof(text), status);
	}
	blame(k, n, "%s before it served", text);
	return -EIO;
}

static int start_all(struct keeper *k)
{
	uint64_t end = epf_now_ns() + READY_NS;
	char list[KEEPER_REPORT_MAX - 2] = "";
	size_t len = 0;
	int err = 0;

	for (uint32_t n = 0; n < k->o->nodes && !err; n++)
		err = start_one(k, n);
	for (uint32_t n = 0; n < k->o->nodes && !err; n++)
		err = wait_ready(k, n, end);
	for (uint32_t n = 0; n < k->o->nodes && !err; n++)
		len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%d", n ? "," : "",
					(int)k->pid[n]);
	if (!k->wrong[0] && err)
		snprintf(k->wrong, sizeof(k->wrong), "the daemons could not be started: %s",
			 strerror(-err));
	tell(k, list);
	return err;
}

/* Reaps who has ended; returns how many are left. early: they had no reason to. */
static uint32_t reap(struct keeper *k, int early)
{
	uint32_t left = 0;

	for (uint32_t n = 0; n < k->o->nodes; n++) {
		char text[96];
		int status;

		if (!k->pid[n])
			continue;
		if (waitpid(k->pid[n], &status, WNOHANG) != k->pid[n]) {
			left++;
			continue;
		}
		k->pid[n] = 0;
		how_it_ended(text, sizeof(text), status);
		if (early || status)
			blame(k, n, "%s%s", text, early ? " while it was needed" : "");
	}
	return left;
}

static void signal_all(const struct keeper *k, int sig)
{
	for (uint32_t n = 0; n < k->o->nodes; n++)
		if (k->pid[n])
			(void)kill(k->pid[n], sig);
}

static void end_all(struct keeper *k)
{
	uint64_t end;

	(void)reap(k, 1);
	signal_all(k, SIGTERM);
	end = epf_now_ns() + END_NS;
	while (reap(k, 0) && epf_now_ns() < end)
		(void)poll(NULL, 0, (int)(STEP_NS / 1000000u));
	for (uint32_t n = 0; n < k->o->nodes; n++)
		if (k->pid[n]) {
			blame(k, n, "did not end within %llu s of SIGTERM", END_NS / 1000000000ull);
			(void)kill(k->pid[n], SIGKILL);
			(void)waitpid(k->pid[n], NULL, 0);
		}
}

static void remove_dir(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	/* cppcheck-suppress readdirCalled ; one thread */
	while (dir && (e = readdir(dir)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			(void)unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
	(void)rmdir(path);
}

/* Who reads ep-bench's output through a pipe must not wait for this process. */
static void to_null(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int i = 0; fd >= 0 && i <= STDERR_FILENO; i++)
		(void)dup2(fd, i);
}

static int make_secret(struct keeper *k)
{
	unsigned char raw[32];

	if (getrandom(raw, sizeof(raw), 0) != (ssize_t)sizeof(raw))
		return -EIO;
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(k->secret + 2 * i, 3, "%02x", raw[i]);
	return 0;
}

void bench_keeper_main(const struct bench_daemons_options *o, const char *dir, const char *program,
		       int control, int report)
{
	static struct keeper k; /* large, and this process has one */
	ssize_t got;
	char byte;

	k.o = o;
	k.dir = dir;
	k.program = program;
	k.control = control;
	k.report = report;
	(void)setsid();
	(void)signal(SIGPIPE, SIG_IGN);
	to_null();
	if (make_secret(&k))
		snprintf(k.wrong, sizeof(k.wrong), "no random bytes for a secret");
	if (!k.wrong[0] && !start_all(&k)) {
		while ((got = read(control, &byte, 1)) < 0 && errno == EINTR)
			;
		if (got <=
		    0) /* ep-bench was killed, and its ranks with it: nobody to be gentle to */
			signal_all(&k, SIGKILL);
		end_all(&k);
		remove_dir(dir);
		tell(&k, "");
	} else {
		end_all(&k);
		remove_dir(dir);
	}
	_exit(0);
}
