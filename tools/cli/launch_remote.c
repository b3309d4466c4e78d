/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher's side of a host: its remote shell with the agent behind it, what the agent says, and how it ended.
 */
#include "tools/cli/launch_run_priv.h"

#include "fabric/client/epf.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The words of the remote shell, the host, and one word for the shell over there; or the agent itself. NULL: no memory. */
static char **agent_words(const struct launch_request *req, const struct launch_host *h,
			  const char *self)
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

int launch_start_host(struct launch *l, struct launch_host *h, const char *self)
{
	int in[2], out[2], err[2];
	char **words = agent_words(l->req, h, self);

	if (!words || pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) {
		launch_blame(l, true, "%s: no pipes: %s", h->name, strerror(errno));
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
	launch_blame(l, true, "%s: no process: %s", h->name, strerror(errno));
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

static void take_ready(struct launch *l, struct launch_host *h, const struct launch_frame *f)
{
	json_t *ready = json_loadb(f->bytes, f->len, 0, NULL);
	const char *version = json_string_value(json_object_get(ready, "version"));

	h->port = (unsigned)json_integer_value(json_object_get(ready, "port"));
	if (!version || strcmp(version, epf_version()))
		launch_blame(l, true,
			     "%s has release %s, this host %s: install one release on all hosts",
			     h->name, version ? version : "?", epf_version());
	else
		h->is_ready = true;
	json_decref(ready);
}

static void take_ended(struct launch *l, struct launch_host *h, const struct launch_frame *f)
{
	char text[16], how[80];
	int status;

	snprintf(text, sizeof(text), "%.*s", (int)f->len, f->bytes);
	status = atoi(text);
	launch_put_rank(l, h, f->rank, false, "", 0);
	launch_put_rank(l, h, f->rank, true, "", 0);
	h->left -= h->left > 0;
	if (!status)
		return;
	how_it_ended(how, sizeof(how), status);
	launch_blame(l, WIFSIGNALED(status), "rank %u on %s %s", f->rank, h->name, how);
}

static void take_frame(struct launch *l, struct launch_host *h, const struct launch_frame *f)
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
		launch_put_rank(l, h, f->rank, f->kind == LAUNCH_ERR, f->bytes, f->len);
		break;
	case LAUNCH_ENDED:
		take_ended(l, h, f);
		break;
	case LAUNCH_FAILED:
		launch_blame(l, true, "%s: %.*s", h->name, (int)f->len, f->bytes);
		break;
	default:
		break;
	}
}

/* Finds the agent's first word in what a login may have printed before it. */
static bool find_magic(struct launch_host *h)
{
	char *at = memmem(h->in.buf + h->in.at, h->in.have - h->in.at, LAUNCH_MAGIC,
			  LAUNCH_MAGIC_BYTES);
	size_t before;

	if (!at)
		return false;
	before = (size_t)(at - (h->in.buf + h->in.at));
	if (before)
		launch_put_shell(h, h->in.buf + h->in.at, before);
	h->in.at += before + LAUNCH_MAGIC_BYTES;
	h->has_magic = true;
	return true;
}

void launch_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void launch_read_agent(struct launch *l, struct launch_host *h)
{
	struct launch_frame f;
	long n = launch_receive(&h->in, h->from);
	int rc;

	if (n == -EAGAIN)
		return;
	if (n <= 0)
		launch_close_fd(&h->from);
	if (!h->has_magic && !find_magic(h))
		return;
	while ((rc = launch_next(&h->in, &f)) > 0)
		take_frame(l, h, &f);
	if (rc < 0) {
		launch_blame(l, true, "%s: what it sends is not this program's", h->name);
		launch_close_fd(&h->from);
	}
}

void launch_read_shell(struct launch_host *h)
{
	char buf[4096];
	ssize_t n = read(h->err, buf, sizeof(buf));

	if (n > 0)
		launch_put_shell(h, buf, (size_t)n);
	else if (n == 0 || (errno != EINTR && errno != EAGAIN))
		launch_close_fd(&h->err);
}

/* A host whose connection has ended before its ranks have. */
void launch_look_at_ends(struct launch *l)
{
	for (uint32_t i = 0; i < l->hosts; i++) {
		struct launch_host *h = &l->host[i];
		char how[80];

		/* Its last output comes first. */
		if (h->pid || h->from >= 0 || h->err >= 0 || h->is_lost)
			continue;
		h->is_lost = true;
		launch_put_shell(h, "", 0);
		if (!h->left)
			continue;
		how_it_ended(how, sizeof(how), h->status);
		launch_blame(l, true, "%s: %s %s %s%s%s", h->name,
			     h->is_local ? "its agent" : l->req->rsh, how,
			     l->phase == PHASE_CONNECT ? "before the job began" : "while ranks ran",
			     h->last[0] ? "; it said: " : "", h->last);
	}
}
