/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric config`: prints every setting with its value and the place that value comes from, as the library would see it when
 * started here with these options. Called by the main program of ep-fabric. It must never print a secret, which
 * epf_conf_print() sees to.
 */
#include "fabric/base/conf_cli.h"
#include "fabric/base/err.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

struct request {
	struct epf_conf conf;
	unsigned int flags; /* EPF_CONF_PRINT_* */
	bool json;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &req->conf;
		return 0;
	case 'j':
		req->json = true;
		return 0;
	case 'd':
		req->flags |= EPF_CONF_PRINT_DOCS;
		return 0;
	case 'c':
		req->flags |= EPF_CONF_PRINT_CHANGED;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int epf_tool_config(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.config/1", 0 },
		{ "docs", 'd', NULL, 0, "Add meaning, range, default and variable", 0 },
		{ "changed", 'c', NULL, 0, "Only settings that are not at their default", 0 },
		{ 0 },
	};
	static const struct argp_child children[] = { { &epf_conf_argp, 0, NULL, 0 }, { 0 } };
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.children = children,
		.doc = "Print every setting with its value and where that comes from: the options "
		       "given here, the environment, the configuration files, or the default.",
	};
	struct request req = { 0 };
	int rc;

	argp_err_exit_status = EXIT_USAGE;
	if (epf_conf_init(&req.conf)) {
		fprintf(stderr, "ep-fabric config: out of memory\n");
		return EXIT_FAILURE;
	}
	rc = argp_parse(&argp, argc, argv, 0, NULL, &req);
	if (rc) {
		fprintf(stderr, "ep-fabric config: %s\n", strerror(rc));
		goto out;
	}
	rc = epf_conf_load(&req.conf, NULL);
	if (rc) {
		fprintf(stderr, "ep-fabric config: %s\n", epf_last_error());
		goto out;
	}
	rc = epf_conf_print(stdout, &req.conf, req.flags, req.json);
	if (rc)
		fprintf(stderr, "ep-fabric config: cannot print: %s\n", strerror(-rc));
out:
	epf_conf_destroy(&req.conf);
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
