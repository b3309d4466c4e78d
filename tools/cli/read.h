/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands that read statistics files share (stats, trace, why): their options, which instances are meant, what is reported where
 * there is none. Included by them only.
 */
#ifndef EPF_TOOLS_CLI_READ_H
#define EPF_TOOLS_CLI_READ_H

#include "fabric/base/conf.h"
#include "tools/waits/waits.h"

#include <argp.h>
#include <jansson.h>

enum { READ_OPT_DEAD = 0x10000, READ_OPT_DIR, READ_OPT_ALL, READ_OPT_LEAST };

/* Options of all of them. */
#define READ_OPTIONS                                                          \
 { "dead", READ_OPT_DEAD, NULL, 0, "Include instances that have exited", 0 }, \
 {                                                                            \
  "stats-dir", READ_OPT_DIR, "DIR", 0, "Look for instances here", 0           \
 }

struct read_request {
	const char *what; /* argv[0]: "ep-fabric why" */
	struct epf_conf conf;
	struct waits *w;
	uint64_t least_ns;
	bool json, all; /* --json, --all of those that have it */
	char **names;
	int n_names;
	char dir[4096];
};

/**
 * read_run() - parses arguments (wrong usage ends the program), reads the instances, prints.
 * @least_ns: waits that are shorter are left out.
 * @print: is called with all that was read; the number of failures.
 *
 * A file that cannot be read is a line on stderr and a failure.
 *
 * Return: the exit status.
 */
int read_run(const struct argp_option *options, const char *doc, uint64_t least_ns,
	     unsigned (*print)(const struct read_request *req), int argc, char **argv);

/* Prints @top, which it takes: 0, or 1 where that fails or @top is NULL. */
unsigned read_print_json(json_t *top, size_t flags);

/* JSON of what readers show: integers are signed there, and WAITS_NONE is null. */
json_t *read_num(uint64_t n);
json_t *read_num32(uint32_t n);

#endif
