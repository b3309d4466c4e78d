/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric drain`: makes a daemon refuse new jobs, or to serve them again; --wait stays until the last job has ended. The daemon itself stays:
 * SIGTERM ends it.
 */
#include "fabric/base/err.h"
#include "tools/cli/client.h"
#include "tools/cli/tools.h"

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

/* One request over a separate connection: while we wait, the daemon may end. */
static int drain(const struct client_request *req, const char *socket, uint32_t *jobs)
{
	struct epf_svc_drain q = { .on = !given.off };
	struct epf_svc_drain_reply reply;
	int rc = client_ask(req, socket, EPF_SVC_DRAIN, &q, &reply);

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
		jobs = 0; /* it was asked to end, and has */
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

	if (client_read_request(&req, options, doc, take, argc, argv))
		return EXIT_FAILURE;
	return client_each(&req, one, "epf.drain/1");
}
