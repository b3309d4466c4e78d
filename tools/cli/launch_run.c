/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher of `ep-fabric launch`: starts an agent on each host through the remote shell, gives them the job when all have answered, prints what the ranks
 * write, line by line, and ends everything when one fails. One thread, one loop. Whatever ends this process, the agents see their standard input end, and
 * end their ranks.
 */
#include "tools/cli/launch_run_priv.h"

#include "fabric/base/clock.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static void read_signals(struct launch *l)
{
	struct signalfd_siginfo s;
	int status;
	pid_t pid;

	while (read(l->signals, &s, sizeof(s)) == sizeof(s))
		if (s.ssi_signo != SIGCHLD)
			launch_blame(l, true, "ended by signal %u (%s)", s.ssi_signo,
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
		wait_ms = l->deadline_ns > now ? (int)((l->deadline_ns - now) / LAUNCH_MS) + 1 : 0;
	(void)poll(p, n, wait_ms);
	for (uint32_t i = 0; i < l->hosts; i++) {
		if (p[1 + 2 * i].revents)
			launch_read_agent(l, &l->host[i]);
		if (p[2 + 2 * i].revents)
			launch_read_shell(&l->host[i]);
	}
	if (p[0].revents)
		read_signals(l);
	launch_look_at_ends(l);
}

/* What the deadline of the phase means when it has passed. Returns true when there is no more to wait for. */
static bool on_deadline(struct launch *l)
{
	char list[200] = "";
	const char *first = NULL;
	size_t len = 0;

	if (l->phase != PHASE_STOP && l->why[0]) {
		launch_stop_job(l);
		return false;
	}
	if (l->phase == PHASE_STOP && (!l->why[0] || !l->has_begun))
		return true;
	for (uint32_t i = 0; i < l->hosts && len < sizeof(list) - LAUNCH_NAME_MAX - 3; i++) {
		const struct launch_host *h = &l->host[i];

		if (l->phase == PHASE_CONNECT ? h->is_ready : h->is_lost)
			continue;
		first = first ? first : h->name;
		len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", len ? ", " : "",
					h->name);
	}
	if (l->phase == PHASE_CONNECT) {
		launch_blame(
			l, true,
			"no answer from %s within %.0f s (bootstrap-timeout): try `%s %s true`",
			list, (double)l->req->timeout_ns / 1e9, l->req->rsh, first);
		return false;
	}
	len = strlen(l->why);
	snprintf(l->why + len, sizeof(l->why) - len,
		 "; no answer from %s, whose ranks may still run", list);
	return true;
}

static bool all_ready(const struct launch *l)
{
	for (uint32_t i = 0; i < l->hosts; i++)
		if (!l->host[i].is_ready)
			return false;
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
		if (l->phase == PHASE_RUN && !l->why[0] && all_ended(l))
			launch_stop_job(l);
		if (l->phase == PHASE_CONNECT && !l->why[0] && all_ready(l))
			launch_start_job(l);
		if (l->deadline_ns && epf_now_ns() >= l->deadline_ns && on_deadline(l))
			break;
	}
}

static void end_all(struct launch *l)
{
	for (uint32_t i = 0; i < l->hosts; i++) {
		struct launch_host *h = &l->host[i];

		launch_close_fd(&h->to);
		launch_close_fd(&h->from);
		launch_close_fd(&h->err);
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
		launch_blame(l, true, "the path of this program cannot be given to a shell: %s",
			     self);
	l->deadline_ns = epf_now_ns() + l->req->timeout_ns;
	for (uint32_t i = 0; i < l->hosts; i++) {
		struct launch_host *h = &l->host[i];

		*h = (struct launch_host){
			.target = l->req->host[l->offset + i], .to = -1, .from = -1, .err = -1
		};
		h->name = launch_name(h->target);
		h->is_local = launch_is_here(h->target);
		h->left = l->req->per_host;
		if (!l->why[0])
			(void)launch_start_host(l, h, self);
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
