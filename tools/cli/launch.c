/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric launch`: the ranks of a job on several hosts, by one command. Reads the options; launch_run.c is the launcher, launch_agent.c its agent on each host.
 */
#include "bootstrap/boot.h"
#include "fabric/base/conf_cli.h"
#include "fabric/base/err.h"
#include "tools/cli/launch_priv.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_USAGE 2

enum { OPT_HOSTS = 256, OPT_AGENT, EXPORTS_MAX = 256 };

struct arguments {
	struct epf_conf conf;
	struct epf_conf_cli cli;
	struct launch_request req;
	char *export_list[EXPORTS_MAX];
	char *hosts; /* copy that host[] points into */
	bool is_agent;
};

static void read_hosts(struct argp_state *state, struct arguments *a, const char *text)
{
	char *save = NULL;

	free(a->hosts);
	a->req.hosts = 0;
	a->hosts = strdup(text);
	for (char *one = a->hosts ? strtok_r(a->hosts, ",", &save) : NULL; one;
	     one = strtok_r(NULL, ",", &save)) {
		if (a->req.hosts == LAUNCH_HOSTS_MAX)
			argp_failure(state, EXIT_USAGE, 0, "--hosts: at most %d", LAUNCH_HOSTS_MAX);
		if (*one == '-' || !*launch_name(one) ||
		    strlen(launch_name(one)) > LAUNCH_NAME_MAX || strpbrk(one, " \t"))
			argp_failure(state, EXIT_USAGE, 0,
				     "--hosts: '%s' is no name or address of at most %d characters",
				     one, LAUNCH_NAME_MAX);
		for (uint32_t i = 0; i < a->req.hosts; i++)
			if (!strcmp(launch_name(one), launch_name(a->req.host[i])))
				argp_failure(
					state, EXIT_USAGE, 0,
					"--hosts: %s is there twice: --ranks-per-host says how many ranks a host has",
					launch_name(one));
		a->req.host[a->req.hosts++] = one;
	}
	for (uint32_t i = 0; i < a->req.hosts && a->req.hosts > 1; i++)
		if (!strcmp(launch_name(a->req.host[i]), "localhost"))
			argp_failure(
				state, EXIT_USAGE, 0,
				"--hosts: localhost is another host on every host: write this host's name");
}

static void check(struct argp_state *state, const struct arguments *a)
{
	if (a->is_agent)
		return;
	if (!a->req.hosts)
		argp_failure(state, EXIT_USAGE, 0, "which hosts? For example --hosts alpha,beta");
	if (!a->req.program || !a->req.program[0])
		argp_failure(state, EXIT_USAGE, 0, "which program? It stands last, after --");
	if ((uint64_t)a->req.hosts * a->req.per_host > EPF_BOOT_WORLD_MAX)
		argp_failure(state, EXIT_USAGE, 0,
			     "%u hosts with %u ranks each are more than %u ranks", a->req.hosts,
			     a->req.per_host, EPF_BOOT_WORLD_MAX);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	unsigned long v;
	char *end;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &a->conf;
		return 0;
	case OPT_HOSTS:
		read_hosts(state, a, arg);
		return 0;
	case 'n':
		v = strtoul(arg, &end, 10);
		if (*arg < '0' || *arg > '9' || *end || v < 1 || v > EPF_BOOT_WORLD_MAX)
			argp_failure(state, EXIT_USAGE, 0,
				     "--ranks-per-host is '%s': write a number from 1 to %u", arg,
				     EPF_BOOT_WORLD_MAX);
		a->req.per_host = (uint32_t)v;
		return 0;
	case 'x':
		if (a->req.exports == EXPORTS_MAX)
			argp_failure(state, EXIT_USAGE, 0, "at most %d --export", EXPORTS_MAX);
		a->export_list[a->req.exports++] = arg;
		return 0;
	case OPT_AGENT:
		a->is_agent = true;
		return 0;
	case ARGP_KEY_ARGS:
		a->req.program = state->argv + state->next;
		return 0;
	case ARGP_KEY_END:
		check(state, a);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int launch(struct arguments *a)
{
	char job[64];

	if (epf_conf_load(&a->conf, NULL)) {
		fprintf(stderr, "ep-fabric launch: %s\n", epf_last_error());
		return EXIT_FAILURE;
	}
	/* Hosts with a launcher each must come to the same name. */
	snprintf(job, sizeof(job), "launch-%ld", (long)getpid());
	a->req.job = getenv("EPF_JOB")                    ? getenv("EPF_JOB")
		     : strcmp(a->conf.launch_rsh, "none") ? job
							  : "launch";
	a->req.rsh = a->conf.launch_rsh;
	a->req.rendezvous = a->conf.rendezvous;
	a->req.timeout_ns = a->conf.bootstrap_timeout_ns;
	a->req.export_list = a->export_list;
	return launch_run(&a->req);
}

int epf_tool_launch(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "hosts", OPT_HOSTS, "[USER@]HOST,...", 0,
		  "The hosts, by names or addresses that they reach each other by; rank 0 is on the first",
		  0 },
		{ "ranks-per-host", 'n', "N", 0, "Ranks on each host (1)", 0 },
		{ "export", 'x', "NAME[=VALUE]", 0,
		  "Give this variable to all ranks, besides those that begin with EPF_; may be repeated",
		  0 },
		{ "agent", OPT_AGENT, NULL, OPTION_HIDDEN, "Serve a launcher: started by it alone",
		  0 },
		{ 0 },
	};
	static struct arguments a = { .req = { .per_host = 1 } };
	struct argp_child children[2] = { { 0 } };
	const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "-- PROGRAM [ARGUMENT...]",
		.children = children,
		.doc = "Run a program as the ranks of a job on several hosts, which are reached by a remote shell. All get one fresh secret. Each line that "
		       "a rank writes is printed behind its host and rank. When a rank fails, or this process ends, all ranks are ended, and one line says "
		       "who failed. Exit status 0 only when every rank ended with 0.",
	};
	int status;

	if (epf_conf_init(&a.conf)) {
		fprintf(stderr, "ep-fabric launch: out of memory\n");
		return EXIT_FAILURE;
	}
	epf_conf_cli_init(&a.cli, EPF_CONF_GROUP_BIT(BOOT) | EPF_CONF_GROUP_BIT(LAUNCH), false);
	children[0].argp = &a.cli.argp;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &a);
	status = a.is_agent ? launch_agent() : launch(&a);
	free(a.hosts);
	epf_conf_destroy(&a.conf);
	return status;
}
