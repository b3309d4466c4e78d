/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parent's side of spawn.h: rendezvous server, processes, pipes, deadline. One thread besides
 * the server's. A rank that dies or complains ends the run; every process is killed and reaped
 * before it returns.
 */
#include "bench/spawn.h"

#include "bench/bench.h"
#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#define EPF_LOG_COMP "bench"
#include "fabric/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

/* After the first failure, how long others may still say that it was them. */
#define GRACE_NS 300000000ull

struct child {
	pid_t pid;
	int fd; /* -1: closed */
	int result;
	int status;
	int reaped;
	size_t have;
	char *buf; /* one message */
};

struct run {
	const struct bench_spawn *s;
	struct epf_boot_server *server[2]; /* of the job and of the second one */
	struct child *child;
	char secret[2][65];
	char cause[600]; /* of the failure to report */
	int killed;      /* cause is a killed process: better than any complaint */
	int err;
};

static void blame(struct run *run, uint32_t rank, int killed, const char *text)
{
	if (run->err && (run->killed || !killed))
		return;
	run->err = -EIO;
	run->killed = killed;
	snprintf(run->cause, sizeof(run->cause), "rank %u: %s", rank, text);
}

static int make_secret(char text[65])
{
	unsigned char raw[32];

	if (getrandom(raw, sizeof(raw), 0) != (ssize_t)sizeof(raw))
		return -errno;
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(text + 2 * i, 3, "%02x", raw[i]);
	return 0;
}

static uint32_t job_ranks(const struct bench_spawn *s, unsigned job)
{
	return job ? s->second : s->ranks - s->second;
}

static int start_server(struct run *run, unsigned job)
{
	struct epf_boot_server_opts opts = { .size = sizeof(opts),
					     .world = job_ranks(run->s, job),
					     .listen = "127.0.0.1:0",
					     .job = "ep-bench",
					     .secret = run->secret[job],
					     .timeout_ns = run->s->timeout_ns };
	int err = make_secret(run->secret[job]);

	opts.secret_len = strlen(run->secret[job]);
	if (!err)
		err = epf_boot_server_start(&opts, &run->server[job]);
	if (err)
		bench_complain("%s", epf_last_error());
	return err;
}

static void set_env(const char *name, uint64_t value)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	(void)setenv(name, text, 1);
}

/* In the new process. The option words of the parent follow the hidden subcommand's name. */
static void become_rank(const struct run *run, uint32_t rank, int fd)
{
	const struct bench_spawn *s = run->s;
	char **argv = calloc((size_t)s->argc + 2, sizeof(*argv));
	uint32_t first = job_ranks(s, 0);
	unsigned job = rank >= first;
	char name[] = "ep-bench";

	if (!argv)
		_exit(127);
	argv[0] = name;
	argv[1] = strdup(s->command);
	for (int i = 1; i < s->argc; i++)
		argv[i + 1] = s->argv[i];
	set_env("EPF_RANK", job ? rank - first : rank);
	set_env("EPF_WORLD_SIZE", job_ranks(s, job));
	set_env("EP_BENCH_FD", (uint64_t)fd);
	set_env("EP_BENCH_JOB", job);
	if (s->share) {
		set_env("EP_BENCH_SHARE_FD", (uint64_t)s->share);
		(void)fcntl(s->share, F_SETFD, 0);
	}
	(void)setenv("EPF_RENDEZVOUS", epf_boot_server_address(run->server[job]), 1);
	(void)unsetenv("EPF_SECRET_FILE");
	(void)unsetenv("EPF_SECRET_FD");
	(void)setenv("EPF_SECRET", run->secret[job], 1);
	(void)fcntl(fd, F_SETFD, 0);
	execv("/proc/self/exe", argv);
	_exit(127);
}

static int start_child(struct run *run, uint32_t rank)
{
	struct child *c = &run->child[rank];
	int fd[2];

	c->buf = malloc(sizeof(struct bench_message) + BENCH_MSG_MAX);
	if (!c->buf || pipe2(fd, O_CLOEXEC)) {
		bench_complain("rank %u cannot be started: %s", rank, strerror(errno));
		return -ENOMEM;
	}
	c->pid = fork();
	if (c->pid == 0)
		become_rank(run, rank, fd[1]);
	close(fd[1]);
	c->fd = fd[0];
	if (c->pid > 0)
		return 0;
	bench_complain("rank %u cannot be started: %s", rank, strerror(errno));
	return -EAGAIN;
}

static void end_of_pipe(struct run *run, uint32_t rank)
{
	struct child *c = &run->child[rank];
	char text[64];

	close(c->fd);
	c->fd = -1;
	if (waitpid(c->pid, &c->status, 0) == c->pid)
		c->reaped = 1;
	if (WIFSIGNALED(c->status)) {
		snprintf(text, sizeof(text), "killed by signal %d (%s)", WTERMSIG(c->status),
			 strsignal(WTERMSIG(c->status)));
		blame(run, rank, 1, text);
	} else if (WEXITSTATUS(c->status) || !c->result) {
		snprintf(text, sizeof(text), "ended with code %d and without a result",
			 WEXITSTATUS(c->status));
		blame(run, rank, 0, text);
	}
}

static void take_message(struct run *run, uint32_t rank)
{
	struct child *c = &run->child[rank];
	struct bench_message head;
	const char *bytes = c->buf + sizeof(head);

	memcpy(&head, c->buf, sizeof(head));
	if (head.kind == BENCH_MSG_ERROR) {
		char text[512];

		snprintf(text, sizeof(text), "%.*s", (int)head.bytes, bytes);
		blame(run, rank, 0, text);
	} else {
		c->result |= head.kind == BENCH_MSG_RESULT;
		run->s->message(run->s->arg, rank, &head, bytes);
	}
	c->have = 0;
}

/* Reads what is there, at most to the end of one message. */
static void read_child(struct run *run, uint32_t rank)
{
	struct child *c = &run->child[rank];
	struct bench_message head = { 0 };
	size_t want = sizeof(head);
	ssize_t n;

	if (c->have >= sizeof(head)) {
		memcpy(&head, c->buf, sizeof(head));
		want += head.bytes;
	}
	n = read(c->fd, c->buf + c->have, want - c->have);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0) {
		end_of_pipe(run, rank);
		return;
	}
	c->have += (size_t)n;
	if (c->have < sizeof(head))
		return;
	memcpy(&head, c->buf, sizeof(head));
	if (head.bytes > BENCH_MSG_MAX) {
		blame(run, rank, 0, "sent something that is no message");
		end_of_pipe(run, rank);
	} else if (c->have == sizeof(head) + head.bytes) {
		take_message(run, rank);
	}
}

static uint32_t fill_poll(const struct run *run, struct pollfd *pfd, uint32_t *rank)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < run->s->ranks; r++) {
		if (run->child[r].fd < 0)
			continue;
		pfd[n] = (struct pollfd){ .fd = run->child[r].fd, .events = POLLIN };
		rank[n++] = r;
	}
	return n;
}

static void collect(struct run *run, struct pollfd *pfd, uint32_t *rank)
{
	uint64_t end = epf_now_ns() + run->s->timeout_ns;

	for (;;) {
		uint32_t n = fill_poll(run, pfd, rank);
		uint64_t now = epf_now_ns();
		int failed = run->err != 0;

		if (n == 0)
			return;
		if (now >= end) {
			if (!run->err) {
				run->err = -ETIMEDOUT;
				snprintf(
					run->cause, sizeof(run->cause),
					"%u of %u ranks have no result after %llu s, rank %u among them: raise --timeout-s or lower the load",
					n, run->s->ranks,
					(unsigned long long)(run->s->timeout_ns / 1000000000u),
					rank[0]);
			}
			return;
		}
		if (poll(pfd, n, (int)((end - now) / 1000000u) + 1) > 0)
			for (uint32_t i = 0; i < n; i++)
				if (pfd[i].revents)
					read_child(run, rank[i]);
		if (run->err && !failed && epf_now_ns() + GRACE_NS < end)
			end = epf_now_ns() + GRACE_NS;
	}
}

static void end_all(struct run *run)
{
	for (uint32_t r = 0; r < run->s->ranks; r++) {
		struct child *c = &run->child[r];

		if (c->pid > 0 && !c->reaped) {
			(void)kill(c->pid, SIGKILL);
			(void)waitpid(c->pid, &c->status, 0);
		}
		if (c->fd >= 0)
			close(c->fd);
		free(c->buf);
	}
	epf_boot_server_stop(run->server[0]);
	epf_boot_server_stop(run->server[1]);
}

int bench_spawn_run(const struct bench_spawn *s)
{
	struct run run = { .s = s };
	struct pollfd *pfd = calloc(s->ranks, sizeof(*pfd));
	uint32_t *rank = calloc(s->ranks, sizeof(*rank));
	int err = 0;

	/* What the rendezvous server notes of a lost rank is said here in one line, with the cause. */
	if (!getenv("EPF_LOG"))
		(void)epf_log_configure("boot=error");
	run.child = calloc(s->ranks, sizeof(*run.child));
	if (!pfd || !rank || !run.child) {
		bench_complain("no memory for %u processes", s->ranks);
		free(pfd);
		free(rank);
		free(run.child);
		return -ENOMEM;
	}
	for (uint32_t r = 0; r < s->ranks; r++)
		run.child[r].fd = -1;
	for (unsigned job = 0; job < 1 + (s->second > 0) && !err; job++)
		err = start_server(&run, job);
	for (uint32_t r = 0; r < s->ranks && !err; r++)
		err = start_child(&run, r);
	if (!err) {
		collect(&run, pfd, rank);
		err = run.err;
		if (err)
			bench_complain("%s", run.cause);
	}
	end_all(&run);
	free(run.child);
	free(pfd);
	free(rank);
	return err;
}
