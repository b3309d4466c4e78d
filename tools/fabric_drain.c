/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric drain`: tells a daemon to refuse new jobs, or to serve them again; --wait stays until the last job has ended. The daemon itself stays:
 * SIGTERM ends it.
 */
#include "fabric/base/err.h"
#include "tools/fabric_client.h"
#include "tools/fabric_tools.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPT_OFF = CLIENT_OPT, OPT_WAIT, POLL_US = 200000 };

static struct {
	bool off, wait;
} given;

static bool take(int key, const char *arg)
{
	(void)arg;
	if (key == OPT_OFF)
		given.off = true;
	else
		given.wait = true;
	return true;
}

/* One request over a connection of its own: while we wait, the daemon may end. */
static int drain(const struct client_request *req, const char *socket, uint32_t *jobs)
{
	struct epf_svc_drain q = { .on = !given.off };
	struct epf_svc_drain_reply reply;
	struct epf_svc_hello_reply hello;
	struct epf_svc_channel *ch;
	int rc = client_open(req, socket, &ch, &hello);

	if (rc)
		return rc;
	rc = epf_svc_call(ch, EPF_SVC_DRAIN, &q, NULL, 0, &reply, NULL, 0, NULL,
			  req->conf.service_timeout_ns);
	epf_svc_channel_close(ch);
	if (!rc)
		*jobs = reply.jobs;
	return rc;
}

static int one(const struct client_request *req, const char *socket, json_t *list)
{
	char name[64];
	uint32_t jobs;

	client_instance(socket, name, sizeof(name));
	if (drain(req, socket, &jobs))
		return client_complain(req, socket);
	while (given.wait && !given.off && jobs) {
		usleep(POLL_US);
		if (drain(req, socket, &jobs) == 0)
			continue;
		if (epf_last_reason() != EPF_R_SVC_ABSENT && epf_last_reason() != EPF_R_SVC_GONE)
			return client_complain(req, socket);
		jobs = 0; /* it was told to end, and has */
	}
	if (list)
		json_array_append_new(list, json_pack("{s:s,s:b,s:I}", "instance", name, "draining",
						      !given.off, "jobs", (json_int_t)jobs));
	else
		printf("%s: %s, %u jobs run\n", name, given.off ? "serving" : "draining", jobs);
	return EXIT_SUCCESS;
}

int epf_tool_drain(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "off", OPT_OFF, NULL, 0, "Serve new jobs again", 0 },
		{ "wait", OPT_WAIT, NULL, 0, "Return when no job is left", 0 },
		{ 0 },
	};
	static const char doc[] =
		"Let the jobs of a daemon run to their end and refuse new ones: of all daemons in --runtime-dir, or the "
		"one that --instance or --service names.";
	struct client_request req;
	json_t *list;
	char **sockets;
	int failed = 0;

	if (client_read_request(&req, options, doc, take, argc, argv))
		return EXIT_FAILURE;
	sockets = client_sockets(&req);
	list = req.json ? json_array() : NULL;
	for (char **s = sockets; s && *s; s++)
		failed |= one(&req, *s, list);
	if (sockets && !*sockets) {
		fprintf(stderr, "%s: no daemon has a socket in %s\n", req.what, req.dir);
		failed = 1;
	}
	if (req.json)
		failed |= client_print_json(
			&req, json_pack("{s:s,s:O}", "schema", "epf.drain/1", "instances", list));
	json_decref(list);
	failed |= !sockets;
	client_free_sockets(sockets);
	epf_conf_destroy(&req.conf);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
