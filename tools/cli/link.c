/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric link`: cuts or restores a link of the NICs that a daemon has opened for a job. A test's and an operator's hook: only the software
 * NIC has links that can be cut.
 */
#include "fabric/base/err.h"
#include "tools/cli/client.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

enum { OPT_JOB = CLIENT_OPT, OPT_LINK, OPT_UP, OPT_DOWN };

static struct {
	char job[EPF_SVC_JOB_NAME];
	long link;
	bool up, down;
} given;

static bool take(int key, const char *arg)
{
	char *end = NULL;

	switch (key) {
	case OPT_JOB:
		return snprintf(given.job, sizeof(given.job), "%s", arg) < (int)sizeof(given.job);
	case OPT_LINK:
		given.link = strtol(arg, &end, 10);
		return end != arg && !*end && given.link >= 0 && given.link < 64;
	case OPT_UP:
		given.up = true;
		return true;
	default:
		given.down = true;
		return true;
	}
}

static int one(const struct client_request *req, const char *socket, json_t *list)
{
	struct epf_svc_link q = { .link = (uint32_t)given.link, .up = given.up };
	struct epf_svc_link_reply reply;
	char name[64];

	memcpy(q.job, given.job, sizeof(q.job));
	if (client_ask(req, socket, EPF_SVC_LINK, &q, &reply))
		return client_complain(req, socket);
	client_instance(socket, name, sizeof(name));
	if (list)
		json_array_append_new(list, json_pack("{s:s,s:I,s:b,s:I}", "instance", name, "link",
						      (json_int_t)given.link, "up", given.up,
						      "nics", (json_int_t)reply.nics));
	else
		printf("%s: link %ld %s on %u NICs\n", name, given.link, given.up ? "up" : "down",
		       reply.nics);
	return EXIT_SUCCESS;
}

int epf_tool_link(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "of-job", OPT_JOB, "NAME", 0,
		  "Only NICs of the jobs of this name (default: of all jobs)", 0 },
		{ "link", OPT_LINK, "N", 0, "Number of the link, from 0 (default 0)", 0 },
		{ "up", OPT_UP, NULL, 0, "Restore it", 0 },
		{ "down", OPT_DOWN, NULL, 0, "Cut it", 0 },
		{ 0 },
	};
	static const char doc[] =
		"Cut or restore a link of the software NICs of a daemon's jobs: of all daemons in --runtime-dir, or the "
		"one that --instance or --service names.";
	struct client_request req;

	if (client_read_request(&req, options, doc, take, argc, argv))
		return EXIT_FAILURE;
	if (given.up == given.down) {
		fprintf(stderr, "%s: say either --up or --down\n", req.what);
		epf_conf_destroy(&req.conf);
		return EXIT_USAGE;
	}
	return client_each(&req, one, "epf.link/1");
}
