/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options and instances of the subcommands that read statistics files (read.h). It reads files and /proc alone.
 */
#include "tools/cli/read.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, LEAST_MS_MAX = 3600000 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct read_request *req = state->input;
	unsigned long ms;
	char *end;

	switch (key) {
	case 'j':
		req->json = true;
		return 0;
	case READ_OPT_ALL:
		req->all = true;
		return 0;
	case READ_OPT_LEAST:
		ms = strtoul(arg, &end, 10);
		if (end == arg || *end || ms > LEAST_MS_MAX)
			argp_failure(state, EXIT_USAGE, 0, "--least-ms is '%.32s', must be 0 to %d",
				     arg, LEAST_MS_MAX);
		req->least_ns = (uint64_t)ms * 1000000;
		return 0;
	case READ_OPT_DEAD:
		req->w->with_dead = true;
		return 0;
	case READ_OPT_DIR:
		if (epf_conf_set(&req->conf, "stats-dir", arg, EPF_CONF_CLI))
			argp_failure(state, EXIT_USAGE, 0, "%s", epf_last_error());
		return 0;
	case ARGP_KEY_ARGS:
		req->names = state->argv + state->next;
		req->n_names = state->argc - state->next;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

json_t *read_num(uint64_t n)
{
	return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n);
}

json_t *read_num32(uint32_t n)
{
	return n == WAITS_NONE ? json_null() : json_integer(n);
}

unsigned read_print_json(json_t *top, size_t flags)
{
	unsigned rc = !top || json_dumpf(top, stdout, flags) || putchar('\n') == EOF;

	json_decref(top);
	return rc;
}

/* Reads and prints: the number of failures. */
static unsigned run(struct read_request *req, unsigned (*print)(const struct read_request *req))
{
	int rc = waits_add_names(req->w, req->dir, req->names, req->n_names);
	unsigned failed = 0;

	if (rc && rc != -ENOMEM) {
		fprintf(stderr, "%s: %s: %s: set --stats-dir\n", req->what, req->dir,
			strerror(-rc));
		return 1;
	}
	if (!rc)
		rc = waits_refresh(req->w, epf_now_ns(), req->least_ns);
	if (rc) {
		fprintf(stderr, "%s: out of memory\n", req->what);
		return 1;
	}
	for (uint32_t i = 0; i < req->w->n_instances; i++)
		if (!req->w->instance[i].reader) {
			fprintf(stderr, "%s: %s\n", req->what, req->w->instance[i].error);
			failed++;
		}
	failed += print(req);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "%s: cannot write: %s\n", req->what, strerror(errno));
		failed++;
	}
	return failed;
}

int read_run(const struct argp_option *options, const char *doc, uint64_t least_ns,
	     unsigned (*print)(const struct read_request *req), int argc, char **argv)
{
	const struct argp argp = {
		.options = options, .parser = parse, .args_doc = "[INSTANCE|FILE...]", .doc = doc
	};
	struct read_request req = { .what = argv[0], .w = waits_new(), .least_ns = least_ns };
	unsigned failed = 1;

	argp_err_exit_status = EXIT_USAGE;
	if (!req.w || epf_conf_init(&req.conf)) {
		fprintf(stderr, "%s: out of memory\n", req.what);
		waits_free(req.w);
		return EXIT_FAILURE;
	}
	argp_parse(&argp, argc, argv, 0, NULL, &req);
	if (epf_conf_load(&req.conf, NULL) ||
	    epf_conf_stats_dir(&req.conf, req.dir, sizeof(req.dir)))
		fprintf(stderr, "%s: %s\n", req.what, epf_last_error());
	else
		failed = run(&req, print);
	epf_conf_destroy(&req.conf);
	waits_free(req.w);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
