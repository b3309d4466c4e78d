/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric exec`: runs a program over the back end that the setting EPF_BACKEND names, and prints which in one line. The program replaces this process;
 * variables are set for the program only.
 */
#include "fabric/base/conf_cli.h"
#include "fabric/base/err.h"
#include "tools/cli/tools.h"
#include "tools/doctor/backend.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_USAGE 2

enum { OPT_DRY_RUN = 0x10000 };

struct request {
	struct epf_conf conf;
	struct epf_conf_cli cli;
	bool is_dry;
	char **program; /* NULL-terminated */
	int words;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;

	(void)arg;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &req->conf;
		return 0;
	case OPT_DRY_RUN:
		req->is_dry = true;
		return 0;
	case ARGP_KEY_ARGS:
		req->program = state->argv + state->next;
		req->words = state->argc - state->next;
		return 0;
	case ARGP_KEY_NO_ARGS:
		if (!req->is_dry)
			argp_failure(state, EXIT_USAGE, 0, "which program?");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* The shim needs more checks, which its own command makes. */
static int by_the_shim(const struct request *req)
{
	char **argv = calloc((size_t)req->words + 4, sizeof(*argv));
	int n = 0, status;

	if (!argv) {
		fprintf(stderr, "ep-fabric exec: no memory\n");
		return EXIT_FAILURE;
	}
	argv[n++] = (char *)"ep-fabric shim";
	if (req->is_dry)
		argv[n++] = (char *)"--dry-run";
	argv[n++] = (char *)"--";
	for (int i = 0; i < req->words; i++)
		argv[n++] = req->program[i];
	status = epf_tool_shim(n, argv);
	free(argv);
	return status;
}

static int run(const struct request *req)
{
	enum epf_conf_backend backend = req->conf.backend;
	const char *name = backend_name(backend);
	char path[PATH_MAX];
	int err;

	if (backend == EPF_CONF_BACKEND_NVSHMEM)
		return by_the_shim(req);
	if (!backend_find(backend, path)) {
		fprintf(stderr,
			"ep-fabric exec: backend=%s needs %s, which is neither beside this program nor installed with it: ep-fabric doctor says what is usable here\n",
			name, backend_file(backend));
		return EXIT_FAILURE;
	}
	err = backend_set(backend, path);
	if (err == -EINVAL)
		fprintf(stderr,
			"ep-fabric exec: NCCL takes no plug-in whose path has a comma or more than 254 characters: move the folder of %s\n",
			path);
	else if (err)
		fprintf(stderr, "ep-fabric exec: no memory\n");
	if (err)
		return EXIT_FAILURE;
	if (backend != EPF_CONF_BACKEND_NONE)
		fprintf(req->is_dry ? stdout : stderr, "ep-fabric exec: backend=%s, %s in %s\n",
			name, backend_file(backend), path);
	if (req->is_dry)
		return EXIT_SUCCESS;
	execvp(req->program[0], req->program);
	fprintf(stderr, "ep-fabric exec: %s: %s\n", req->program[0], strerror(errno));
	return EXIT_FAILURE;
}

int epf_tool_exec(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "dry-run", OPT_DRY_RUN, NULL, 0, "Check, print, and run nothing", 0 },
		{ 0 },
	};
	static struct request req;
	struct argp_child children[2] = { { 0 } };
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "[--] PROGRAM [ARG...]",
		.children = children,
		.doc = "Run an unmodified program over the back end that EPF_BACKEND, or --backend, names: see docs/guides/choose.md. none leaves the "
		       "program's variables as they are.",
	};
	int status;

	if (epf_conf_init(&req.conf)) {
		fprintf(stderr, "ep-fabric exec: out of memory\n");
		return EXIT_FAILURE;
	}
	epf_conf_cli_init(&req.cli, EPF_CONF_GROUP_BIT(BACKEND), false);
	children[0].argp = &req.cli.argp;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &req);
	if (epf_conf_load(&req.conf, NULL)) {
		fprintf(stderr, "ep-fabric exec: %s\n", epf_last_error());
		status = EXIT_FAILURE;
	} else {
		status = run(&req);
	}
	epf_conf_destroy(&req.conf);
	return status;
}
