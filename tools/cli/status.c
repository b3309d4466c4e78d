/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric status`: what the daemons of this node do, as they say it themselves. The text is made from their JSON, so both show the
 * same; what a newer daemon adds is in the JSON only.
 */
#include "fabric/base/err.h"
#include "tools/cli/client.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_DEAD = CLIENT_OPT };

static bool with_dead;

static long long num(const json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "-";
}

/* The daemon's JSON; NULL with epf_last_error(). gone: nobody listens there any more. */
static json_t *ask(const struct client_request *req, const char *socket, bool *gone)
{
	struct epf_svc_hello_reply hello;
	struct epf_svc_status q = { .flags = 0 };
	struct epf_svc_status_reply reply;
	struct epf_svc_channel *ch;
	json_t *top = NULL;
	int rc = client_open(req, socket, &ch, &hello);

	*gone = rc == -ECONNREFUSED || rc == -ENOENT;
	if (rc)
		return NULL;
	if (epf_svc_call(ch, EPF_SVC_STATUS, &q, NULL, 0, &reply, NULL, 0, NULL,
			 req->conf.service_timeout_ns) == 0) {
		top = json_loadb(reply.json.data, reply.json.len, 0, NULL);
		if (!top)
			epf_fail(EPF_R_SVC_MESSAGE, "status: the daemon's answer is no JSON");
	}
	epf_svc_channel_close(ch);
	return top;
}

static void print_rank(const json_t *r)
{
	printf("    rank %-5lld %-5s process %lld, %lld rings, %lld regions, %lld bytes",
	       num(r, "rank"), text(r, "state"), num(r, "pid"), num(r, "rings"), num(r, "regions"),
	       num(r, "bytes"));
	if (num(r, "epoch"))
		printf(", rejoined %lld times", num(r, "epoch"));
	if (json_is_true(json_object_get(r, "kernels_push")))
		printf(", kernels push commands");
	printf("\n");
}

static void print_job(const json_t *j)
{
	const json_t *r;
	size_t i;

	printf("  job %s, number %lld, id %s: %s, user %lld, %lld ranks", text(j, "name"),
	       num(j, "number"), text(j, "id"), text(j, "state"), num(j, "uid"), num(j, "world"));
	if (json_is_integer(json_object_get(j, "node")))
		printf(", node %lld of %lld", num(j, "node"), num(j, "nodes"));
	if (json_is_integer(json_object_get(j, "core")))
		printf(", core %lld used %.3f s, weight %lld", num(j, "core"),
		       (double)num(j, "used_ns") / 1e9, num(j, "weight"));
	if (json_is_true(json_object_get(j, "stays_awake")))
		printf(", stays awake for kernels");
	if (num(j, "commands_refused"))
		printf(", %lld commands refused", num(j, "commands_refused"));
	if (json_is_string(json_object_get(j, "cause")))
		printf(": %s", text(j, "cause"));
	printf("\n");
	json_array_foreach(json_object_get(j, "ranks"), i, r) print_rank(r);
}

static void print_user(const json_t *u)
{
	const char *key;
	json_t *use;

	printf("  user %lld:", num(u, "uid"));
	json_object_foreach((json_t *)u, key, use) if (json_is_object(use))
		printf(" %s %lld of %lld", key, num(use, "used"), num(use, "limit"));
	printf("\n");
}

static void print_daemon(const json_t *d)
{
	const char *key;
	json_t *one;
	size_t i;

	printf("%s: process %lld, version %s, protocol %s, up %.1f s, %s\n", text(d, "instance"),
	       num(d, "pid"), text(d, "version"), text(d, "protocol"),
	       json_real_value(json_object_get(d, "uptime_s")),
	       json_is_true(json_object_get(d, "draining")) ? "draining" : "serving");
	printf("  socket %s\n  clients %lld, strangers %lld, jobs %zu (%lld begun), ranks lost %lld\n",
	       text(d, "socket"), num(d, "clients"), num(d, "strangers"),
	       json_array_size(json_object_get(d, "jobs")), num(d, "jobs_begun"),
	       num(d, "ranks_lost"));
	json_object_foreach(json_object_get(d, "refusals"), key, one)
		printf("  refused %lld times for %s\n", (long long)json_integer_value(one), key);
	json_array_foreach(json_object_get(d, "users"), i, one) print_user(one);
	json_array_foreach(json_object_get(d, "jobs"), i, one) print_job(one);
}

/* Asks one daemon; list: NULL, or where its JSON goes. *exited counts those that are left out. */
static int show(const struct client_request *req, const char *socket, json_t *list,
		unsigned *exited)
{
	bool gone;
	json_t *d = ask(req, socket, &gone);
	char name[64];

	if (gone && !req->one && !with_dead) {
		(*exited)++;
		return EXIT_SUCCESS;
	}
	if (!d) {
		client_instance(socket, name, sizeof(name));
		if (list)
			json_array_append_new(list, json_pack("{s:s,s:s}", "instance", name,
							      "error", epf_last_error()));
		return client_complain(req, socket);
	}
	if (list)
		json_array_append(list, d);
	else
		print_daemon(d);
	json_decref(d);
	return EXIT_SUCCESS;
}

static bool take(int key, const char *arg)
{
	(void)arg;
	with_dead = key == OPT_DEAD;
	return with_dead;
}

/* Where no daemon is shown, and how many were left out. */
static void say_exited(const struct client_request *req, bool none, unsigned exited)
{
	if (none && !exited)
		printf("no daemon has a socket in %s\n", req->dir);
	else if (exited)
		printf("%s%u %s exited: see --dead\n",
		       none ? "no daemon is alive, " : "daemons: ", exited,
		       exited == 1 ? "has" : "have");
}

int epf_tool_status(int argc, char **argv)
{
	static const char doc[] =
		"Print what the daemons of this node do: all in --runtime-dir, or the one that "
		"--instance or --service names. With one of those --json prints the daemon's own object, "
		"schema epf.service/1, else one with all of them, schema epf.status/1. A daemon that has "
		"exited is reported if it is named, or with --dead. A job \"stays awake for kernels\" "
		"(stays_awake) while kernels of a rank push commands (kernels_push): its core does not "
		"sleep, because they cannot wake it.";
	static const struct argp_option options[] = {
		{ "dead", OPT_DEAD, NULL, 0, "Include daemons that have exited", 0 },
		{ 0 },
	};
	struct client_request req;
	json_t *list;
	char **sockets;
	unsigned exited = 0, n = 0;
	int rc = 0, failed = 0;

	if (client_read_request(&req, options, doc, take, argc, argv))
		return EXIT_FAILURE;
	sockets = client_sockets(&req);
	list = req.json ? json_array() : NULL;
	for (char **s = sockets; s && *s; s++, n++)
		failed |= show(&req, *s, list, &exited);
	if (sockets && !req.json)
		say_exited(&req, n == exited, exited);
	if (req.json && sockets && req.one && !failed)
		rc = client_print_json(&req, json_incref(json_array_get(list, 0)));
	else if (req.json && sockets && !req.one)
		rc = client_print_json(&req, json_pack("{s:s,s:s,s:O,s:i}", "schema",
						       "epf.status/1", "dir", req.dir, "instances",
						       list, "instances_left_out", (int)exited));
	else if (fflush(stdout))
		rc = EXIT_FAILURE;
	json_decref(list);
	failed |= !sockets || rc;
	client_free_sockets(sockets);
	epf_conf_destroy(&req.conf);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
