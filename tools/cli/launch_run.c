/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher of `ep-fabric launch`: starts an agent on each host through the remote shell, gives them the job when all have answered, prints what the ranks
 * write, line by line, and ends everything when one fails. One thread, one loop. Whatever ends this process, the agents see their standard input end, and
 * end their ranks.
 */
#include "tools/cli/launch_priv.h"

#include "fabric/base/clock.h"
#include "fabric/client/epf.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS 1000000ull
/* After the first failure, how long others may still report a better cause. */
#define GRACE_NS (500 * MS)
/* After the agents were told to end everything: they take LAUNCH_TERM_MS at most. */
#define STOP_NS (LAUNCH_TERM_MS * MS + 3000 * MS)

enum { SECRET_TEXT = 65, LINE_MAX_BYTES = 65536, LAST_BYTES = 240 };

/* Collects the bytes of one rank's stdout or stderr into lines. */
struct line {
	char *text;
	size_t have;
};

struct host {
	const char *target, *name;
	pid_t pid;         /* of the remote shell; 0: reaped or not started */
	int to, from, err; /* pipes; -1: closed */
	struct launch_stream in;
	struct line said;      /* by the remote shell, on stderr or before the agent's first word */
	char last[LAST_BYTES]; /* its last line */
	bool is_local, has_magic, is_ready, is_lost;
	unsigned port;
	uint32_t left; /* ranks that have not ended */
	int status;
};

enum phase { CONNECT, RUN, STOP };

struct launch {
	const struct launch_request *req;
	struct host *host;
	uint32_t hosts,
		ranks;     /* of the whole job, except that hosts is 1 with the remote shell none */
	uint32_t offset;   /* number of host[0] in the job */
	bool is_alone;     /* the remote shell is none: every host has a launcher */
	struct line *line; /* [ranks][2] */
	enum phase phase;
	bool has_begun;
	uint64_t deadline_ns; /* of CONNECT and STOP, and of the grace in RUN; 0: none */
	int signals;
	char why[1000]; /* the failure; "" : none */
	bool is_best_cause; /* why says who was killed: better than who ended with an error, which may follow from it */
};

__attribute__((format(printf, 3, 4))) static void blame(struct launch *l, bool best,
							const char *fmt, ...)
{
	va_list ap;

	if (l->phase == STOP || (l->why[0] && (l->is_best_cause || !best)))
		return;
	va_start(ap, fmt);
	vsnprintf(l->why, sizeof(l->why), fmt, ap);
	va_end(ap);
	l->is_best_cause = best;
	if (l->phase == CONNECT || !l->deadline_ns)
		l->deadline_ns = epf_now_ns() + (l->phase == CONNECT ? 0 : GRACE_NS);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void put_line(FILE *out, const char *prefix, const char *text, size_t len)
{
	/* stdout and stderr may be one file: each line goes out before the next of the other. */
	fprintf(out, "%s%.*s\n", prefix, (int)len, text);
	fflush(out);
}

/* Prints whole lines, and keeps the rest; all of it if @len is 0. Returns where the last printed line is, or NULL. */
static void put_text(struct line *l, FILE *out, const char *prefix, const char *bytes, size_t len)
{
	const char *end;

	if (!len) {
		if (l->have)
			put_line(out, prefix, l->text, l->have);
		l->have = 0;
		return;
	}
	while (len) {
		size_t n, room = LINE_MAX_BYTES - l->have;

		end = memchr(bytes, '\n', len);
		n = end ? (size_t)(end - bytes) : len;
		if (!l->text)
			l->text = malloc(LINE_MAX_BYTES);
		if (!l->text)
			return;
		n = n < room ? n : room;
		memcpy(l->text + l->have, bytes, n);
		l->have += n;
		bytes += n;
		len -= n;
		if (l->have == LINE_MAX_BYTES || (len && *bytes == '\n')) {
			put_line(out, prefix, l->text, l->have);
			l->have = 0;
		}
		if (len && *bytes == '\n') {
			bytes++;
			len--;
		}
	}
}

static void put_rank(struct launch *l, const struct host *h, uint32_t rank, bool is_err,
		     const char *bytes, size_t len)
{
	char prefix[LAUNCH_NAME_MAX + 32];

	snprintf(prefix, sizeof(prefix), "[%s %u] ", h->name, rank);
	put_text(&l->line[2 * (size_t)rank + is_err], is_err ? stderr : stdout, prefix, bytes, len);
}

/* What the remote shell itself says. */
static void put_shell(struct host *h, const char *bytes, size_t len)
{
	char prefix[LAUNCH_NAME_MAX + 8];
	size_t end = len, start;

	while (end && (bytes[end - 1] == '\n' || bytes[end - 1] == '\r'))
		end--;
	for (start = end; start && bytes[start - 1] != '\n';)
		start--;
	if (end > start)
		snprintf(h->last, sizeof(h->last), "%.*s", (int)(end - start), bytes + start);
	snprintf(prefix, sizeof(prefix), "[%s] ", h->name);
	put_text(&h->said, stderr, prefix, bytes, len);
}

/* ---- hosts ----------------------------------------------------------------------------------- */

/* The words of the remote shell, the host, and one word for the shell over there; or the agent itself. NULL: no memory. */
static char **agent_words(const struct launch_request *req, const struct host *h, const char *self)
{
	size_t room = strlen(req->rsh) + 5, n = 0;
	char **w = calloc(room, sizeof(*w));
	char *rsh = strdup(req->rsh), *save = NULL, *remote = NULL;

	if (!w || !rsh)
		goto out;
	if (h->is_local) {
		w[n++] = strdup(self);
		w[n++] = strdup("launch");
		w[n++] = strdup("--agent");
		goto out;
	}
	for (char *one = strtok_r(rsh, " ", &save); one; one = strtok_r(NULL, " ", &save))
		w[n++] = strdup(one);
	w[n++] = strdup(h->target);
	if (asprintf(&remote, "exec '%s' launch --agent", self) < 0)
		remote = NULL;
	w[n++] = remote;
out:
	free(rsh);
	return w;
}

static int start_host(struct launch *l, struct host *h, const char *self)
{
	int in[2], out[2], err[2];
	char **words = agent_words(l->req, h, self);

	if (!words || pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) {
		blame(l, true, "%s: no pipes: %s", h->name, strerror(errno));
		return -EMFILE;
	}
	h->pid = fork();
	if (h->pid == 0) {
		sigset_t none;

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		(void)signal(SIGPIPE, SIG_DFL);
		(void)dup2(in[0], STDIN_FILENO);
		(void)dup2(out[1], STDOUT_FILENO);
		(void)dup2(err[1], STDERR_FILENO);
		execvp(words[0], words);
		dprintf(STDERR_FILENO, "%s: %s\n", words[0], strerror(errno));
		_exit(127);
	}
	for (char **w = words; *w; w++)
		free(*w);
	free(words);
	close(in[0]);
	close(out[1]);
	close(err[1]);
	h->to = in[1];
	h->from = out[0];
	h->err = err[0];
	if (h->pid > 0)
		return 0;
	h->pid = 0;
	blame(l, true, "%s: no process: %s", h->name, strerror(errno));
	return -EAGAIN;
}

static void how_it_ended(char *text, size_t bytes, int status)
{
	if (WIFSIGNALED(status))
		snprintf(text, bytes, "was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(text, bytes, "ended with status %d", WEXITSTATUS(status));
}

static void take_ready(struct launch *l, struct host *h, const struct launch_frame *f)
{
	json_t *ready = json_loadb(f->bytes, f->len, 0, NULL);
	const char *version = json_string_value(json_object_get(ready, "version"));

	h->port = (unsigned)json_integer_value(json_object_get(ready, "port"));
	if (!version || strcmp(version, epf_version()))
		blame(l, true, "%s has release %s, this host %s: install one release on all hosts",
		      h->name, version ? version : "?", epf_version());
	else
		h->is_ready = true;
	json_decref(ready);
}

static void take_ended(struct launch *l, struct host *h, const struct launch_frame *f)
{
	char text[16], how[80];
	int status;

	snprintf(text, sizeof(text), "%.*s", (int)f->len, f->bytes);
	status = atoi(text);
	put_rank(l, h, f->rank, false, "", 0);
	put_rank(l, h, f->rank, true, "", 0);
	h->left -= h->left > 0;
	if (!status)
		return;
	how_it_ended(how, sizeof(how), status);
	blame(l, WIFSIGNALED(status), "rank %u on %s %s", f->rank, h->name, how);
}

static void take_frame(struct launch *l, struct host *h, const struct launch_frame *f)
{
	uint32_t first = (l->offset + (uint32_t)(h - l->host)) * l->req->per_host;

	if (f->kind != LAUNCH_READY && f->kind != LAUNCH_FAILED &&
	    (f->rank < first || f->rank >= first + l->req->per_host))
		return;
	switch (f->kind) {
	case LAUNCH_READY:
		take_ready(l, h, f);
		break;
	case LAUNCH_OUT:
	case LAUNCH_ERR:
		put_rank(l, h, f->rank, f->kind == LAUNCH_ERR, f->bytes, f->len);
		break;
	case LAUNCH_ENDED:
		take_ended(l, h, f);
		break;
	case LAUNCH_FAILED:
		blame(l, true, "%s: %.*s", h->name, (int)f->len, f->bytes);
		break;
	default:
		break;
	}
}

/* Finds the agent's first word in what a login may have printed before it. */
static bool find_magic(struct host *h)
{
	char *at = memmem(h->in.buf + h->in.at, h->in.have - h->in.at, LAUNCH_MAGIC,
			  LAUNCH_MAGIC_BYTES);
	size_t before;

	if (!at)
		return false;
	before = (size_t)(at - (h->in.buf + h->in.at));
	if (before)
		put_shell(h, h->in.buf + h->in.at, before);
	h->in.at += before + LAUNCH_MAGIC_BYTES;
	h->has_magic = true;
	return true;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void read_agent(struct launch *l, struct host *h)
{
	struct launch_frame f;
	long n = launch_receive(&h->in, h->from);
	int rc;

	if (n == -EAGAIN)
		return;
	if (n <= 0)
		close_fd(&h->from);
	if (!h->has_magic && !find_magic(h))
		return;
	while ((rc = launch_next(&h->in, &f)) > 0)
		take_frame(l, h, &f);
	if (rc < 0) {
		blame(l, true, "%s: what it sends is not this program's", h->name);
		close_fd(&h->from);
	}
}

static void read_shell(struct host *h)
{
	char buf[4096];
	ssize_t n = read(h->err, buf, sizeof(buf));

	if (n > 0)
		put_shell(h, buf, (size_t)n);
	else if (n == 0 || (errno != EINTR && errno != EAGAIN))
		close_fd(&h->err);
}

/* A host whose connection has ended before its ranks have. */
static void look_at_ends(struct launch *l)
{
	for (uint32_t i = 0; i < l->hosts; i++) {
		struct host *h = &l->host[i];
		char how[80];

		/* Its last words first. */
		if (h->pid || h->from >= 0 || h->err >= 0 || h->is_lost)
			continue;
		h->is_lost = true;
		put_shell(h, "", 0);
		if (!h->left)
			continue;
		how_it_ended(how, sizeof(how), h->status);
		blame(l, true, "%s: %s %s %s%s%s", h->name, h->is_local ? "its agent" : l->req->rsh,
		      how, l->phase == CONNECT ? "before the job began" : "while ranks ran",
		      h->last[0] ? "; it said: " : "", h->last);
	}
}

/* ---- the job --------------------------------------------------------------------------------- */

static int make_secret(char text[SECRET_TEXT])
{
	unsigned char raw[32];

	if (getrandom(raw, sizeof(raw), 0) != (ssize_t)sizeof(raw))
		return -EIO;
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(text + 2 * i, 3, "%02x", raw[i]);
	explicit_bzero(raw, sizeof(raw));
	return 0;
}

/* This host's EPF_ variables, except what a rank or a secret is named by; then what --export names. */
static json_t *exported(const struct launch_request *req)
{
	static const char *const kept[] = { "EPF_SECRET=", "EPF_SECRET_FILE=", "EPF_SECRET_FD=",
					    "EPF_FABRIC_SECRET_FD=", "EPF_LAUNCH_RSH=" };
	json_t *env = json_object();

	for (char **e = environ; *e; e++) {
		const char *value = strchr(*e, '=');
		bool is_kept = strncmp(*e, "EPF_", 4) || !value;

		for (size_t i = 0; !is_kept && i < sizeof(kept) / sizeof(kept[0]); i++)
			is_kept = !strncmp(*e, kept[i], strlen(kept[i]));
		if (!is_kept)
			json_object_setn_new(env, *e, (size_t)(value - *e), json_string(value + 1));
	}
	for (uint32_t i = 0; i < req->exports; i++) {
		const char *name = req->export_list[i], *value = strchr(name, '=');

		if (value)
			json_object_setn_new(env, name, (size_t)(value - name),
					     json_string(value + 1));
		else if (getenv(name))
			json_object_set_new(env, name, json_string(getenv(name)));
	}
	return env;
}

static void set_number(json_t *env, const char *name, uint32_t value)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", value);
	json_object_set_new(env, name, json_string(text));
}

/* host:port, with brackets around an IPv6 address. */
static void set_rendezvous(const struct launch *l, json_t *env)
{
	const char *name = l->req->hosts == 1 ? "127.0.0.1" : launch_name(l->req->host[0]);
	unsigned port = l->is_alone ? LAUNCH_PORT : l->host[0].port;
	char text[LAUNCH_NAME_MAX + 16];

	snprintf(text, sizeof(text), strchr(name, ':') ? "[%s]:%u" : "%s:%u", name, port);
	json_object_set_new(env, "EPF_RENDEZVOUS",
			    json_string(l->req->rendezvous[0] ? l->req->rendezvous : text));
}

static json_t *job_of(const struct launch *l, uint32_t i, const char *secret, const char *cwd)
{
	const struct launch_request *req = l->req;
	json_t *env = exported(req), *words = json_array();
	json_t *job;

	for (char **w = req->program; *w; w++)
		json_array_append_new(words, json_string(*w));
	set_rendezvous(l, env);
	set_number(env, "EPF_WORLD_SIZE", req->hosts * req->per_host);
	set_number(env, "EPF_LOCAL_WORLD_SIZE", req->per_host);
	set_number(env, "EPF_NODE_ID", i);
	json_object_set_new(env, "EPF_NODE", json_string(launch_name(req->host[i])));
	json_object_set_new(env, "EPF_JOB", json_string(req->job));
	job = json_pack("{s:s, s:o, s:o, s:i, s:i}", "cwd", cwd, "env", env, "program", words,
			"first", (int)(i * req->per_host), "ranks", (int)req->per_host);
	if (secret && json_object_set_new(job, "secret", json_string(secret))) {
		json_decref(job);
		return NULL;
	}
	return job;
}

static void start_job(struct launch *l)
{
	char secret[SECRET_TEXT], cwd[PATH_MAX];
	/* Launchers that do not know each other cannot make one secret: the user gives it to all. */
	int rc = make_secret(secret) || !getcwd(cwd, sizeof(cwd)) ? -EIO : 0;

	if (rc)
		blame(l, true, "no random numbers, or no current folder: %s", strerror(errno));
	l->deadline_ns = 0;
	l->phase = RUN;
	l->has_begun = true;
	for (uint32_t i = 0; i < l->hosts && !rc; i++) {
		struct host *h = &l->host[i];
		json_t *job = job_of(l, l->offset + i, l->is_alone ? NULL : secret, cwd);
		char *text = json_dumps(job, JSON_COMPACT);

		rc = text ? launch_send(h->to, LAUNCH_START, 0, text, strlen(text)) : -EINVAL;
		if (rc == -EINVAL || rc == -E2BIG)
			blame(l, true,
			      "the program's words or exported variables are not UTF-8, or more than %d bytes",
			      LAUNCH_FRAME_MAX);
		rc = rc == -EPIPE ? 0 : rc; /* look_at_ends() says how it ended */
		if (text)
			explicit_bzero(text, strlen(text));
		free(text);
		json_decref(job);
	}
	explicit_bzero(secret, sizeof(secret));
}

static bool all_ready(const struct launch *l)
{
	for (uint32_t i = 0; i < l->hosts; i++)
		if (!l->host[i].is_ready)
			return false;
	return true;
}

static void stop_job(struct launch *l)
{
	l->phase = STOP;
	l->deadline_ns = epf_now_ns() + (l->has_begun ? STOP_NS : GRACE_NS);
	for (uint32_t i = 0; i < l->hosts; i++) {
		struct host *h = &l->host[i];

		/* Without ranks, the end of its input ends the agent. */
		if (h->to >= 0 && h->is_ready)
			(void)launch_send(h->to, LAUNCH_STOP, 0, NULL, 0);
		else
			close_fd(&h->to);
	}
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void read_signals(struct launch *l)
{
	struct signalfd_siginfo s;
	int status;
	pid_t pid;

	while (read(l->signals, &s, sizeof(s)) == sizeof(s))
		if (s.ssi_signo != SIGCHLD)
			blame(l, true, "ended by signal %u (%s)", s.ssi_signo,
			      strsignal((int)s.ssi_signo));
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (uint32_t i = 0; i < l->hosts; i++)
			if (l->host[i].pid == pid) {
				l->host[i].pid = 0;
				l->host[i].status = status;
			}
}

static bool is_over(const struct launch *l)
{
	for (uint32_t i = 0; i < l->hosts; i++)
		if (l->host[i].from >= 0 || l->host[i].pid)
			return false;
	return true;
}

static void poll_once(struct launch *l, struct pollfd *p)
{
	uint64_t now = epf_now_ns();
	int wait_ms = -1;
	size_t n = 0;

	p[n++] = (struct pollfd){ .fd = l->signals, .events = POLLIN };
	for (uint32_t i = 0; i < l->hosts; i++) {
		p[n++] = (struct pollfd){ .fd = l->host[i].from, .events = POLLIN };
		p[n++] = (struct pollfd){ .fd = l->host[i].err, .events = POLLIN };
	}
	if (l->deadline_ns)
		wait_ms = l->deadline_ns > now ? (int)((l->deadline_ns - now) / MS) + 1 : 0;
	(void)poll(p, n, wait_ms);
	for (uint32_t i = 0; i < l->hosts; i++) {
		if (p[1 + 2 * i].revents)
			read_agent(l, &l->host[i]);
		if (p[2 + 2 * i].revents)
			read_shell(&l->host[i]);
	}
	if (p[0].revents)
		read_signals(l);
	look_at_ends(l);
}

/* What the deadline of the phase means when it has passed. Returns true when there is no more to wait for. */
static bool on_deadline(struct launch *l)
{
	char list[200] = "";
	const char *first = NULL;
	size_t len = 0;

	if (l->phase != STOP && l->why[0]) {
		stop_job(l);
		return false;
	}
	if (l->phase == STOP && (!l->why[0] || !l->has_begun))
		return true;
	for (uint32_t i = 0; i < l->hosts && len < sizeof(list) - LAUNCH_NAME_MAX - 3; i++) {
		const struct host *h = &l->host[i];

		if (l->phase == CONNECT ? h->is_ready : h->is_lost)
			continue;
		first = first ? first : h->name;
		len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", len ? ", " : "",
					h->name);
	}
	if (l->phase == CONNECT) {
		blame(l, true,
		      "no answer from %s within %.0f s (bootstrap-timeout): try `%s %s true`", list,
		      (double)l->req->timeout_ns / 1e9, l->req->rsh, first);
		return false;
	}
	len = strlen(l->why);
	snprintf(l->why + len, sizeof(l->why) - len,
		 "; no answer from %s, whose ranks may still run", list);
	return true;
}

static bool all_ended(const struct launch *l)
{
	for (uint32_t i = 0; i < l->hosts; i++)
		if (l->host[i].left)
			return false;
	return true;
}

static void drive(struct launch *l, struct pollfd *p)
{
	while (!is_over(l)) {
		poll_once(l, p);
		/* A remote shell that does not end by itself is ended. */
		if (l->phase == RUN && !l->why[0] && all_ended(l))
			stop_job(l);
		if (l->phase == CONNECT && !l->why[0] && all_ready(l))
			start_job(l);
		if (l->deadline_ns && epf_now_ns() >= l->deadline_ns && on_deadline(l))
			break;
	}
}

static void end_all(struct launch *l)
{
	for (uint32_t i = 0; i < l->hosts; i++) {
		struct host *h = &l->host[i];

		close_fd(&h->to);
		close_fd(&h->from);
		close_fd(&h->err);
		if (h->pid) {
			(void)kill(h->pid, SIGKILL);
			(void)waitpid(h->pid, NULL, 0);
		}
		free(h->in.buf);
		free(h->said.text);
	}
	for (uint32_t i = 0; i < 2 * l->ranks; i++)
		free(l->line[i].text);
}

/* A remote shell has three pipes here. */
static void raise_limit(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r);
	}
}

static int catch_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void open_hosts(struct launch *l)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int rc = n < 0 ? -errno : 0;

	self[n < 0 ? 0 : n] = 0;
	if (rc || strchr(self, '\''))
		blame(l, true, "the path of this program cannot be given to a shell: %s", self);
	l->deadline_ns = epf_now_ns() + l->req->timeout_ns;
	for (uint32_t i = 0; i < l->hosts; i++) {
		struct host *h = &l->host[i];

		*h = (struct host){
			.target = l->req->host[l->offset + i], .to = -1, .from = -1, .err = -1
		};
		h->name = launch_name(h->target);
		h->is_local = launch_is_here(h->target);
		h->left = l->req->per_host;
		if (!l->why[0])
			(void)start_host(l, h, self);
	}
}

int launch_run(const struct launch_request *req)
{
	struct launch l = { .req = req, .ranks = req->hosts * req->per_host };
	struct pollfd *p = calloc(1 + 2 * (size_t)req->hosts, sizeof(*p));
	int status = EXIT_FAILURE;

	l.is_alone = !strcmp(req->rsh, "none");
	while (l.is_alone && l.offset < req->hosts && !launch_is_here(req->host[l.offset]))
		l.offset++;
	if (l.offset == req->hosts) {
		free(p);
		fprintf(stderr,
			"ep-fabric launch: none of --hosts is this host: with launch-rsh none, run the same command on each of them\n");
		return EXIT_FAILURE;
	}
	l.hosts = l.is_alone ? 1 : req->hosts;
	l.host = calloc(l.hosts, sizeof(*l.host));
	l.line = calloc(2 * (size_t)l.ranks, sizeof(*l.line));
	raise_limit();
	l.signals = catch_signals();
	if (!p || !l.host || !l.line || l.signals < 0) {
		fprintf(stderr, "ep-fabric launch: out of memory or descriptors\n");
	} else {
		open_hosts(&l);
		drive(&l, p);
		status = l.why[0] ? EXIT_FAILURE : EXIT_SUCCESS;
		if (l.why[0])
			fprintf(stderr, "ep-fabric launch: %s\n", l.why);
		end_all(&l);
	}
	free(l.host);
	free(l.line);
	free(p);
	return status;
}
