/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options and connections of the subcommands that ask a running daemon (client.h). Nothing here waits longer than
 * service-timeout, and nothing removes a socket: a dead daemon's is only reported.
 */
#include "tools/cli/client.h"

#include "fabric/base/err.h"

#include <argp.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2
#define SUFFIX     ".sock"

enum { OPTIONS_MAX = 16 };

struct parsing {
	struct client_request *req;
	bool (*take)(int key, const char *arg);
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct parsing *p = state->input;

	if (key == ARGP_KEY_INIT) {
		state->child_inputs[0] = &p->req->conf;
		return 0;
	}
	if (key == 'j') {
		p->req->json = true;
		return 0;
	}
	if (key < CLIENT_OPT || key >= CLIENT_OPT + OPTIONS_MAX)
		return ARGP_ERR_UNKNOWN;
	if (!p->take(key, arg))
		argp_error(state, "%s: not a value for this option", arg ? arg : "");
	return 0;
}

int client_read_request(struct client_request *req, const struct argp_option *options,
			const char *doc, bool (*take)(int key, const char *arg), int argc,
			char **argv)
{
	struct argp_option all[OPTIONS_MAX + 2] = {
		{ "json", 'j', NULL, 0, "Print one JSON object", 0 },
	};
	const struct argp_child children[] = { { &epf_conf_argp, 0, NULL, 0 }, { 0 } };
	const struct argp argp = {
		.options = all, .parser = parse, .children = children, .doc = doc
	};
	struct parsing p = { .req = req, .take = take };
	int rc;

	memset(req, 0, sizeof(*req));
	for (int i = 0; options && options[i].name && i < OPTIONS_MAX; i++)
		all[i + 1] = options[i];
	req->what = argv[0];
	argp_err_exit_status = EXIT_USAGE;
	if (epf_conf_init(&req->conf)) {
		fprintf(stderr, "%s: out of memory\n", req->what);
		return -ENOMEM;
	}
	rc = -argp_parse(&argp, argc, argv, 0, NULL, &p);
	if (!rc)
		rc = epf_conf_load(&req->conf, NULL);
	if (!rc && *req->conf.runtime_dir)
		snprintf(req->dir, sizeof(req->dir), "%s", req->conf.runtime_dir);
	else if (!rc)
		rc = epf_conf_stats_dir(&req->conf, req->dir, sizeof(req->dir));
	req->one = *req->conf.instance || *req->conf.service;
	if (rc) {
		fprintf(stderr, "%s: %s\n", req->what, epf_last_error());
		epf_conf_destroy(&req->conf);
	}
	return rc;
}

static int is_socket(const struct dirent *e)
{
	size_t n = strlen(e->d_name), s = strlen(SUFFIX);

	return n > s && strcmp(e->d_name + n - s, SUFFIX) == 0;
}

static char *path_of(const char *dir, const char *name, const char *suffix)
{
	char *path;

	return asprintf(&path, "%s/%s%s", dir, name, suffix) < 0 ? NULL : path;
}

char **client_sockets(const struct client_request *req)
{
	const char *name = *req->conf.service ? req->conf.service : req->conf.instance;
	struct dirent **found = NULL;
	int n = req->one ? 1 : scandir(req->dir, &found, is_socket, alphasort);
	char **all = calloc(n > 0 ? (size_t)n + 1 : 1, sizeof(*all));

	if (n < 0 && errno != ENOENT) {
		fprintf(stderr, "%s: %s: %s: set --runtime-dir\n", req->what, req->dir,
			strerror(errno));
		free(all);
		return NULL;
	}
	for (int i = 0; i < n && all; i++) {
		if (!req->one)
			all[i] = path_of(req->dir, found[i]->d_name, "");
		else if (strchr(name, '/'))
			all[i] = strdup(name);
		else
			all[i] = path_of(req->dir, name, SUFFIX);
		if (found)
			free(found[i]);
	}
	free(found);
	if (!all)
		fprintf(stderr, "%s: out of memory\n", req->what);
	return all;
}

void client_free_sockets(char **sockets)
{
	for (char **s = sockets; s && *s; s++)
		free(*s);
	free(sockets);
}

void client_instance(const char *socket, char *buf, size_t size)
{
	const char *slash = strrchr(socket, '/');
	char *dot;

	snprintf(buf, size, "%s", slash ? slash + 1 : socket);
	dot = strrchr(buf, '.');
	if (dot && strcmp(dot, SUFFIX) == 0)
		*dot = 0;
}

int client_open(const struct client_request *req, const char *socket, struct epf_svc_channel **out,
		struct epf_svc_hello_reply *hello)
{
	struct epf_svc_channel *ch;
	int rc = epf_svc_channel_open(socket, 0, &ch);

	if (rc)
		return rc;
	rc = epf_svc_hello(ch, 1, req->what, hello, req->conf.service_timeout_ns);
	if (rc)
		epf_svc_channel_close(ch);
	else
		*out = ch;
	return rc;
}

int client_ask(const struct client_request *req, const char *socket, unsigned type, const void *msg,
	       void *reply)
{
	struct epf_svc_hello_reply hello;
	struct epf_svc_channel *ch;
	int rc = client_open(req, socket, &ch, &hello);

	if (rc)
		return rc;
	rc = epf_svc_call(ch, type, msg, NULL, 0, reply, NULL, 0, NULL,
			  req->conf.service_timeout_ns);
	epf_svc_channel_close(ch);
	return rc;
}

int client_each(struct client_request *req,
		int (*one)(const struct client_request *req, const char *socket, json_t *list),
		const char *schema)
{
	char **sockets = client_sockets(req);
	json_t *list = req->json ? json_array() : NULL;
	int failed = !sockets;

	for (char **s = sockets; s && *s; s++)
		failed |= one(req, *s, list);
	if (sockets && !*sockets) {
		fprintf(stderr, "%s: no daemon has a socket in %s\n", req->what, req->dir);
		failed = 1;
	}
	if (req->json)
		failed |= client_print_json(
			req, json_pack("{s:s,s:O}", "schema", schema, "instances", list));
	json_decref(list);
	client_free_sockets(sockets);
	epf_conf_destroy(&req->conf);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

int client_complain(const struct client_request *req, const char *socket)
{
	char name[64];

	client_instance(socket, name, sizeof(name));
	fprintf(stderr, "%s: %s: %s\n", req->what, name, epf_last_error());
	return EXIT_FAILURE;
}

int client_print_json(const struct client_request *req, json_t *top)
{
	int rc = !top || json_dumpf(top, stdout, JSON_INDENT(1)) || putchar('\n') == EOF ||
		 fflush(stdout);

	json_decref(top);
	if (rc)
		fprintf(stderr, "%s: cannot print: %s\n", req->what, strerror(errno));
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
