/* SPDX-License-Identifier: Apache-2.0 */
/* What the launcher tells the agents: the job, which is words, variables and a secret made here; and to end it. */
#include "tools/cli/launch_run_priv.h"

#include "fabric/base/clock.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* After the agents were told to end everything: they take LAUNCH_TERM_MS at most. */
#define STOP_NS (LAUNCH_TERM_MS * LAUNCH_MS + 3000 * LAUNCH_MS)

enum { SECRET_TEXT = 65 };

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

void launch_start_job(struct launch *l)
{
	char secret[SECRET_TEXT], cwd[PATH_MAX];
	/* Launchers that do not know each other cannot make one secret: the user gives it to all. */
	int rc = make_secret(secret) || !getcwd(cwd, sizeof(cwd)) ? -EIO : 0;

	if (rc)
		launch_blame(l, true, "no random numbers, or no current folder: %s",
			     strerror(errno));
	l->deadline_ns = 0;
	l->phase = PHASE_RUN;
	l->has_begun = true;
	for (uint32_t i = 0; i < l->hosts && !rc; i++) {
		struct launch_host *h = &l->host[i];
		json_t *job = job_of(l, l->offset + i, l->is_alone ? NULL : secret, cwd);
		char *text = json_dumps(job, JSON_COMPACT);

		rc = text ? launch_send(h->to, LAUNCH_START, 0, text, strlen(text)) : -EINVAL;
		if (rc == -EINVAL || rc == -E2BIG)
			launch_blame(
				l, true,
				"the program's words or exported variables are not UTF-8, or more than %d bytes",
				LAUNCH_FRAME_MAX);
		rc = rc == -EPIPE ? 0 : rc; /* launch_look_at_ends() says how it ended */
		if (text)
			explicit_bzero(text, strlen(text));
		free(text);
		json_decref(job);
	}
	explicit_bzero(secret, sizeof(secret));
}

void launch_stop_job(struct launch *l)
{
	l->phase = PHASE_STOP;
	l->deadline_ns = epf_now_ns() + (l->has_begun ? STOP_NS : LAUNCH_GRACE_NS);
	for (uint32_t i = 0; i < l->hosts; i++) {
		struct launch_host *h = &l->host[i];

		/* Without ranks, the end of its input ends the agent. */
		if (h->to >= 0 && h->is_ready)
			(void)launch_send(h->to, LAUNCH_STOP, 0, NULL, 0);
		else
			launch_close_fd(&h->to);
	}
}
