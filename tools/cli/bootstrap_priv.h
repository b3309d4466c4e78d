/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of `ep-fabric bootstrap` share: the arguments that were given, and output.
 * Included by them only.
 */
#ifndef EPF_TOOLS_CLI_BOOTSTRAP_PRIV_H
#define EPF_TOOLS_CLI_BOOTSTRAP_PRIV_H

#include "fabric/base/conf_cli.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Keys of the options; an option that a command does not list is not accepted there. */
enum { OPT_WORLD = 256, OPT_LISTEN, OPT_JOB, OPT_RANKS, OPT_NODES, OPT_BLOB_BYTES };

struct bootstrap_request {
	struct epf_conf conf;
	struct epf_conf_cli cli;
	bool settings; /* conf was loaded */
	bool json;
	uint32_t world; /* 0: not given */
	uint32_t nodes; /* 0: not given */
	uint32_t blob_bytes;
	const char *listen;
	const char *job;
};

/**
 * bootstrap_read_request() - parse a command's arguments; wrong usage ends the program.
 * @settings: take and load the rendezvous' configuration too.
 *
 * Return: 0, the caller destroys @req->conf; or -errno after a message.
 */
int bootstrap_read_request(struct bootstrap_request *req, const struct argp_option *options,
			   const char *doc, bool settings, int argc, char **argv);

/* bootstrap_complain() - the last error to stderr; returns the exit status. */
int bootstrap_complain(const char *what);

/* bootstrap_end_output() - whether all went out to stdout; returns the exit status. */
int bootstrap_end_output(const char *what);

/* bootstrap_print_json() - @top to stdout, and give it back; returns the exit status. */
int bootstrap_print_json(const char *what, json_t *top);

/* bootstrap_json_text() - a text, null when empty. */
json_t *bootstrap_json_text(const char *text);

/* bootstrap_dry_run() - the command. */
int bootstrap_dry_run(int argc, char **argv);

#endif
