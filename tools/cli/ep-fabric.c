/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-fabric, the tool: a table of subcommands, each in a separate file (tools.h), from which the help is printed. It
 * must know nothing of what a subcommand does. Exit status: 0 done, 1 failed, 2 wrong usage.
 */
#include "tools/cli/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

enum { LONGEST_WORD = 32 };

struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *doc;
};

static const struct command commands[] = {
	{ "bootstrap", epf_tool_bootstrap,
	  "serve the rendezvous of a job, or print what it would do" },
	{ "config", epf_tool_config,
	  "print every setting with its value and where that comes from" },
	{ "doctor", epf_tool_doctor,
	  "check what this node needs; name each fault and the command that fixes it" },
	{ "drain", epf_tool_drain,
	  "let the jobs of a daemon run to their end and refuse new ones" },
	{ "exec", epf_tool_exec, "run a program over the back end that EPF_BACKEND names" },
	{ "launch", epf_tool_launch, "run a program as the ranks of a job on several hosts" },
	{ "link", epf_tool_link, "cut or restore a link of the software NIC, for tests" },
	{ "nics", epf_tool_nics, "print the kinds of NIC, and which device serves which GPU" },
	{ "report", epf_tool_report, "gather what a bug report needs into one JSON object" },
	{ "run", epf_tool_run, "serve the ranks of this node: the daemon" },
	{ "shim", epf_tool_shim,
	  "run a program whose DeepEP was compiled with NVSHMEM over this fabric" },
	{ "stats", epf_tool_stats, "print the statistics of instances" },
	{ "status", epf_tool_status, "print what the daemons of this node do" },
	{ "trace", epf_tool_trace, "print the last events of engine cores for a trace viewer" },
	{ "version", epf_tool_version, "print the versions of this release and its formats" },
	{ "why", epf_tool_why, "say why a job hangs: what waits for what, and the cause" },
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *f)
{
	fprintf(f, "Usage: ep-fabric COMMAND [OPTION...]\n\n");
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].doc);
	fprintf(f,
		"\nep-fabric COMMAND --help lists the options; what reads prints JSON with --json.\n");
}

static unsigned least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Letters to add, drop or change to make one word of the other (Levenshtein); long words are cut. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[LONGEST_WORD + 1];
	size_t na = strnlen(a, LONGEST_WORD), nb = strnlen(b, LONGEST_WORD);

	for (size_t j = 0; j <= nb; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= na; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= nb; j++) {
			unsigned above = row[j];

			row[j] = least(least(above, row[j - 1]) + 1,
				       diagonal + (a[i - 1] != b[j - 1]));
			diagonal = above;
		}
	}
	return row[nb];
}

static const char *nearest(const char *word)
{
	size_t best = 0;

	for (size_t i = 1; i < COMMANDS; i++)
		if (distance(word, commands[i].name) < distance(word, commands[best].name))
			best = i;
	return commands[best].name;
}

static int run(const struct command *c, int argc, char **argv)
{
	char name[64];

	/* What the subcommand's own messages and help call it. */
	snprintf(name, sizeof(name), "ep-fabric %s", c->name);
	argv[0] = name;
	return c->run(argc, argv);
}

int main(int argc, char **argv)
{
	const char *word;

	if (argc < 2) {
		usage(stderr);
		return EXIT_USAGE;
	}
	word = argv[1];
	if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "-?")) {
		usage(stdout);
		return EXIT_SUCCESS;
	}
	if (!strcmp(word, "--version") || !strcmp(word, "-V"))
		word = "version";
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(word, commands[i].name))
			return run(&commands[i], argc - 1, argv + 1);
	if (*word == '-')
		fprintf(stderr,
			"ep-fabric: unexpected option %.64s: the command must come first; see ep-fabric --help\n",
			word);
	else
		fprintf(stderr,
			"ep-fabric: '%.64s' is not a command; did you mean %s? See ep-fabric --help\n",
			word, nearest(word));
	return EXIT_USAGE;
}
