/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric version`: the version of this release, and of each format that two releases may have to agree on (docs/abi.md,
 * bootstrap/README.md). Called by the main program of ep-fabric. It must take every number from the header that defines it.
 */
#include "bootstrap/wire.h"
#include "fabric/client/epf.h"
#include "fabric/protocol/proto.h"
#include "queues/epf_ring.h"
#include "queues/epf_stats.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

static error_t parse(int key, char *arg, struct argp_state *state)
{
	if (key != 'j')
		return ARGP_ERR_UNKNOWN;
	*(bool *)state->input = true;
	return 0;
}

static int print_json(void)
{
	json_t *top = json_pack(
		"{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "schema", "epf.version/1", "version",
		epf_version(), "ring_version", (int)EPF_RING_VERSION, "bootstrap_version",
		(int)EPF_WIRE_VERSION, "stats_version_major", (int)EPF_STATS_VERSION_MAJOR,
		"stats_version_minor", (int)EPF_STATS_VERSION_MINOR, "service_version_major",
		(int)EPF_SVC_MAJOR, "service_version_minor", (int)EPF_SVC_MINOR);
	int rc = !top || json_dumpf(top, stdout, JSON_INDENT(1)) || putchar('\n') == EOF;

	json_decref(top);
	return rc;
}

int epf_tool_version(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.version/1", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Print the version of this release and of the formats it reads and writes.",
	};
	bool json = false;
	int rc = 0;

	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &json);
	if (json)
		rc = print_json();
	else
		printf("ep-fabric %s\ncommand ring %u, bootstrap protocol %u, statistics file %u.%u, service protocol %u.%u\n",
		       epf_version(), EPF_RING_VERSION, EPF_WIRE_VERSION, EPF_STATS_VERSION_MAJOR,
		       EPF_STATS_VERSION_MINOR, EPF_SVC_MAJOR, EPF_SVC_MINOR);
	if (fflush(stdout) || ferror(stdout))
		rc = -EIO;
	if (rc)
		fprintf(stderr, "ep-fabric version: cannot write\n");
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
