/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments and output of the subcommands of `ep-fabric bootstrap`.
 */
#include "tools/cli/bootstrap_priv.h"

#include "bootstrap/boot.h"
#include "fabric/base/err.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

int bootstrap_complain(const char *what)
{
	fprintf(stderr, "ep-fabric bootstrap %s: %s\n", what, epf_last_error());
	return EXIT_FAILURE;
}

int bootstrap_end_output(const char *what)
{
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ep-fabric bootstrap %s: cannot write: %s\n", what,
			strerror(errno));
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}

int bootstrap_print_json(const char *what, json_t *top)
{
	if (!top || json_dumpf(top, stdout, JSON_INDENT(1)) || putchar('\n') == EOF) {
		fprintf(stderr, "ep-fabric bootstrap %s: cannot write JSON\n", what);
		json_decref(top);
		return EXIT_FAILURE;
	}
	json_decref(top);
	return bootstrap_end_output(what);
}

static uint32_t read_number(struct argp_state *state, const char *name, const char *arg,
			    uint32_t min, uint32_t max)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(arg, &end, 10);
	if (errno || *arg < '0' || *arg > '9' || *end || v < min || v > max)
		argp_failure(state, EXIT_USAGE, 0, "--%s is '%s': write a number from %u to %u",
			     name, arg, min, max);
	return (uint32_t)v;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct bootstrap_request *req = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		if (req->settings)
			state->child_inputs[0] = &req->conf;
		return 0;
	case 'j':
		req->json = true;
		return 0;
	case OPT_WORLD:
		req->world = read_number(state, "world", arg, 1, EPF_BOOT_WORLD_MAX);
		return 0;
	case OPT_RANKS:
		req->world = read_number(state, "ranks", arg, 1, EPF_BOOT_WORLD_MAX);
		return 0;
	case OPT_NODES:
		req->nodes = read_number(state, "nodes", arg, 1, EPF_BOOT_WORLD_MAX);
		return 0;
	case OPT_BLOB_BYTES:
		req->blob_bytes = read_number(state, "blob-bytes", arg, 0, EPF_BOOT_BLOB_MAX);
		return 0;
	case OPT_LISTEN:
		req->listen = arg;
		return 0;
	case OPT_JOB:
		req->job = arg;
		return 0;
	case ARGP_KEY_ARG:
		argp_failure(state, EXIT_USAGE, 0, "'%s' is no option", arg);
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int bootstrap_read_request(struct bootstrap_request *req, const struct argp_option *options,
			   const char *doc, bool settings, int argc, char **argv)
{
	struct argp_child children[2] = { { 0 } };
	static char name[64]; /* argp(3) keeps it for --help */
	struct argp argp = { .options = options, .parser = parse, .doc = doc };

	if (epf_conf_init(&req->conf)) {
		fprintf(stderr, "ep-fabric bootstrap: out of memory\n");
		return -ENOMEM;
	}
	epf_conf_cli_init(&req->cli, EPF_CONF_GROUP_BIT(BOOT), false);
	children[0].argp = &req->cli.argp;
	req->settings = settings;
	if (settings)
		argp.children = children;
	snprintf(name, sizeof(name), "ep-fabric bootstrap %s", argv[0]);
	argv[0] = name;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, req);
	if (settings && epf_conf_load(&req->conf, NULL)) {
		bootstrap_complain(name + strlen("ep-fabric bootstrap "));
		epf_conf_destroy(&req->conf);
		return -EINVAL;
	}
	return 0;
}

json_t *bootstrap_json_text(const char *text)
{
	return *text ? json_string(text) : json_null();
}
