/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parent's side of spawn.h: rendezvous server, processes, pipes, deadline. One thread besides
 * the server's. A rank that dies or complains ends the run; every process is killed and reaped
 * before it returns.
 */
#include "bench/common/spawn.h"

#include "bench/common/bench.h"
#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#define EPF_LOG_COMP "bench"
#include "fabric/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
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
	struct epf_boot_server *server[1 + BENCH_OTHERS_MAX]; /* of the job and of the others */
	struct child *child;
	char secret[1 + BENCH_OTHERS_MAX][65];
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

static unsigned others(const struct bench_spawn *s)
{
	return !s->second ? 0 : s->others ? s->others : 1;
}

static uint32_t job_ranks(const struct bench_spawn *s, unsigned job)
{
	return job ? s->second / others(s) : s->ranks - s->second;
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

/* What the parent says to a rank by its environment; values of these names that the parent itself was given do not reach it. */
enum { W_RANK, W_WORLD, W_FD, W_JOB, W_RENDEZVOUS, W_SECRET, W_SHARE, WORDS };

static const char *const word_name[WORDS] = { "EPF_RANK",         "EPF_WORLD_SIZE", "EP_BENCH_FD",
					      "EP_BENCH_JOB",     "EPF_RENDEZVOUS", "EPF_SECRET",
					      "EP_BENCH_SHARE_FD" };

/* Words and environment of a rank, made before its process exists. */
struct launch {
	char word[WORDS][EPF_BOOT_ADDRESS_MAX + 80];
	char **argv; /* the option words are the parent's own */
	char **envp; /* the rest of the environment too */
};

static bool is_replaced(const char *entry)
{
	static const char *const dropped[] = { "EPF_SECRET_FILE", "EPF_SECRET_FD" };
	size_t len = strcspn(entry, "=");

	for (size_t i = 0; i < WORDS; i++)
		if (strlen(word_name[i]) == len && !strncmp(word_name[i], entry, len))
			return true;
	for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++)
		if (strlen(dropped[i]) == len && !strncmp(dropped[i], entry, len))
			return true;
	return false;
}

static void say(struct launch *l, size_t *n, int word, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static void say(struct launch *l, size_t *n, int word, const char *fmt, ...)
{
	char *text = l->word[word];
	size_t room = sizeof(l->word[word]);
	size_t len = (size_t)snprintf(text, room, "%s=", word_name[word]);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text + len, room - len, fmt, ap);
	va_end(ap);
	l->envp[(*n)++] = text;
}

/* The option words of the parent follow the hidden subcommand's name. fd: the rank's end of its pipe. */
static int prepare(const struct run *run, uint32_t rank, int fd, struct launch *l)
{
	static char name[] = "ep-bench";
	const struct bench_spawn *s = run->s;
	uint32_t first = job_ranks(s, 0);
	unsigned job = rank < first ? 0 : 1 + (rank - first) / job_ranks(s, 1);
	size_t n = 0;

	while (environ[n])
		n++;
	l->envp = calloc(n + WORDS + 1, sizeof(*l->envp));
	l->argv = calloc((size_t)s->argc + 2, sizeof(*l->argv));
	if (!l->envp || !l->argv)
		return -ENOMEM;
	l->argv[0] = name;
	l->argv[1] = (char *)(uintptr_t)s->command; /* nobody writes to it */
	for (int i = 1; i < s->argc; i++)
		l->argv[i + 1] = s->argv[i];
	n = 0;
	for (char **e = environ; *e; e++)
		if (!is_replaced(*e))
			l->envp[n++] = *e;
	say(l, &n, W_RANK, "%u", job ? (rank - first) % job_ranks(s, 1) : rank);
	say(l, &n, W_WORLD, "%u", job_ranks(s, job));
	say(l, &n, W_FD, "%d", fd);
	say(l, &n, W_JOB, "%u", job);
	say(l, &n, W_RENDEZVOUS, "%s", epf_boot_server_address(run->server[job]));
	say(l, &n, W_SECRET, "%s", run->secret[job]);
	if (s->share)
		say(l, &n, W_SHARE, "%d", s->share);
	return 0;
}

/*
 * The server's thread runs while ranks are started. A copy of this process (fork) would have the locks that thread held and nobody to open
 * them: so nothing of this program runs between here and the rank's own beginning. A descriptor duplicated onto itself stays open there.
 */
static int launch(const struct launch *l, int fd, int share, pid_t *pid)
{
	posix_spawn_file_actions_t act;
	int err = posix_spawn_file_actions_init(&act);

	if (err)
		return err;
	err = posix_spawn_file_actions_adddup2(&act, fd, fd);
	if (!err && share)
		err = posix_spawn_file_actions_adddup2(&act, share, share);
	if (!err)
		err = posix_spawn(pid, "/proc/self/exe", &act, NULL, l->argv, l->envp);
	(void)posix_spawn_file_actions_destroy(&act);
	return err;
}

static int start_child(struct run *run, uint32_t rank)
{
	struct child *c = &run->child[rank];
	struct launch l = { 0 };
	int fd[2];
	int err;

	c->buf = malloc(sizeof(struct bench_message) + BENCH_MSG_MAX);
	if (!c->buf || pipe2(fd, O_CLOEXEC)) {
		bench_complain("rank %u cannot be started: %s", rank, strerror(errno));
		return -ENOMEM;
	}
	err = -prepare(run, rank, fd[1], &l);
	if (!err)
		err = launch(&l, fd[1], run->s->share, &c->pid);
	free(l.argv);
	free(l.envp);
	close(fd[1]);
	c->fd = fd[0];
	if (!err)
		return 0;
	c->pid = 0;
	bench_complain("rank %u cannot be started: %s", rank, strerror(err));
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
	for (unsigned job = 0; job <= others(run->s); job++)
		epf_boot_server_stop(run->server[job]);
}

int bench_spawn_run(const struct bench_spawn *s)
{
	struct run run = { .s = s };
	struct pollfd *pfd = calloc(s->ranks, sizeof(*pfd));
	uint32_t *rank = calloc(s->ranks, sizeof(*rank));
	int err = 0;

	/* Reports in one line, with the cause, which rank the rendezvous server found lost. */
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
	for (unsigned job = 0; job <= others(s) && !err; job++)
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
