/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric bootstrap`: the rendezvous as a tool. `serve` is a rendezvous server on its own,
 * `dry-run` (bootstrap_plan.c) prints what each rank and node would exchange, `rank` prints
 * what the launcher's variables say and which one said it. Called by the main program of
 * ep-fabric. It must never print a secret.
 */
#include "tools/cli/bootstrap_priv.h"

#include "bootstrap/boot.h"
#include "bootstrap/rank_env.h"
#include "fabric/base/err.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2
#define POLL_NS    100000000ull /* how soon a signal ends serve */

static const char *none_if_empty(const char *text)
{
	return text && *text ? text : NULL;
}

/* serve */

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	interrupted = number;
}

static int wait_for_end(struct epf_boot_server *srv)
{
	struct epf_boot_server_stats st;
	int rc;

	do
		rc = epf_boot_server_wait(srv, POLL_NS);
	while (rc == -ETIME && !interrupted);
	epf_boot_server_stats(srv, &st);
	printf("joined %" PRIu64 ", exchanges %" PRIu64 ", refused %" PRIu64 ", received %" PRIu64
	       " bytes, sent %" PRIu64 " bytes\n",
	       st.joined, st.rounds,
	       st.refused_malformed + st.refused_proof + st.refused_join + st.silent + st.evicted,
	       st.received_bytes, st.sent_bytes);
	if (rc == -ETIME) {
		fprintf(stderr, "ep-fabric bootstrap serve: stopped by signal %d\n", interrupted);
		return EXIT_FAILURE;
	}
	return rc ? bootstrap_complain("serve") : bootstrap_end_output("serve");
}

static int serve(struct bootstrap_request *req)
{
	struct epf_boot_server_opts opts = {
		.size = sizeof(opts),
		.world = req->world,
		.listen = req->listen,
		.job = req->job,
		.secret = none_if_empty(req->conf.secret),
		.secret_len = strlen(req->conf.secret),
		.secret_file = none_if_empty(req->conf.secret_file),
		.ifname = none_if_empty(req->conf.socket_ifname),
		.timeout_ns = req->conf.bootstrap_timeout_ns,
	};
	struct sigaction act = { .sa_handler = on_signal };
	struct epf_boot_server *srv;
	int status;

	if (!req->world) {
		fprintf(stderr,
			"ep-fabric bootstrap serve: --world is missing: say how many ranks "
			"will come, 1 to %u\n",
			EPF_BOOT_WORLD_MAX);
		return EXIT_USAGE;
	}
	if (!opts.listen)
		opts.listen = none_if_empty(req->conf.rendezvous);
	if (!opts.listen)
		opts.listen = "127.0.0.1:29555";
	if (epf_boot_server_start(&opts, &srv))
		return bootstrap_complain("serve");
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	printf("listening at %s for %u ranks\n", epf_boot_server_address(srv), req->world);
	fflush(stdout);
	status = wait_for_end(srv);
	epf_boot_server_stop(srv);
	return status;
}

static int tool_serve(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "world", OPT_WORLD, "N", 0, "Ranks of the job", 0 },
		{ "listen", OPT_LISTEN, "ADDRESS:PORT", 0,
		  "Listen here; port 0 picks a free port. Default: --rendezvous, else 127.0.0.1:29555",
		  0 },
		{ "job", OPT_JOB, "NAME", 0, "Name of the job. Default: that of the first rank",
		  0 },
		{ 0 },
	};
	struct bootstrap_request req = { 0 };
	int status;

	if (bootstrap_read_request(
		    &req, options,
		    "Serve the rendezvous of one job; ends when all its ranks have left. "
		    "Exit status 1 when the job's bootstrap failed. Without a secret it "
		    "listens on loopback addresses only.",
		    true, argc, argv))
		return EXIT_FAILURE;
	status = serve(&req);
	epf_conf_destroy(&req.conf);
	return status;
}

/* rank */

static json_t *json_number(uint32_t n)
{
	return n == EPF_RANK_UNKNOWN ? json_null() : json_integer(n);
}

static json_t *rank_value(const struct epf_rank_info *i, enum epf_rank_field field)
{
	switch (field) {
	case EPF_RANK_F_RANK:
		return json_number(i->rank);
	case EPF_RANK_F_WORLD:
		return json_number(i->world);
	case EPF_RANK_F_LOCAL_RANK:
		return json_number(i->local_rank);
	case EPF_RANK_F_LOCAL_WORLD:
		return json_number(i->local_world);
	case EPF_RANK_F_NODE_ID:
		return json_number(i->node_id);
	case EPF_RANK_F_PORT:
		return json_integer(i->port);
	case EPF_RANK_F_HOST:
		return bootstrap_json_text(i->host);
	case EPF_RANK_F_JOB:
		return bootstrap_json_text(i->job);
	case EPF_RANK_F_NODE:
		return bootstrap_json_text(i->node);
	default:
		return json_null();
	}
}

static json_t *rank_json(const struct epf_rank_info *i)
{
	json_t *fields = json_object();

	for (int f = 0; f < EPF_RANK_F_COUNT; f++)
		json_object_set_new(fields, epf_rank_field_text((enum epf_rank_field)f),
				    json_pack("{s:o,s:o}", "value",
					      rank_value(i, (enum epf_rank_field)f), "origin",
					      bootstrap_json_text(i->origin[f])));
	return json_pack("{s:s,s:s,s:s,s:o,s:o}", "schema", "epf.bootstrap_rank/1", "launcher",
			 i->launcher, "rendezvous", i->rendezvous, "note",
			 bootstrap_json_text(i->note), "fields", fields);
}

static void rank_text(const struct epf_rank_info *i)
{
	printf("launcher     %s\nrendezvous   %s\n", i->launcher, i->rendezvous);
	for (int f = 0; f < EPF_RANK_F_COUNT; f++) {
		json_t *v = rank_value(i, (enum epf_rank_field)f);
		char number[24] = "-";

		if (json_is_integer(v))
			snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
				 json_integer_value(v));
		printf("%-12s %-24s %s\n", epf_rank_field_text((enum epf_rank_field)f),
		       json_is_string(v) ? json_string_value(v) : number,
		       i->origin[f][0] ? i->origin[f] : "not known");
		json_decref(v);
	}
	if (i->note[0])
		printf("note         %s\n", i->note);
}

static int tool_rank(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.bootstrap_rank/1", 0 },
		{ 0 },
	};
	struct bootstrap_request req = { 0 };
	struct epf_rank_info info;
	int status;

	if (bootstrap_read_request(
		    &req, options,
		    "Print which rank this process would be, and the variable that each value "
		    "comes from (torchrun, Slurm, PMIx, Open MPI, or EPF_ variables).",
		    false, argc, argv))
		return EXIT_FAILURE;
	if (epf_rank_discover(&info)) {
		status = bootstrap_complain("rank");
	} else if (req.json) {
		status = bootstrap_print_json("rank", rank_json(&info));
	} else {
		rank_text(&info);
		status = bootstrap_end_output("rank");
	}
	epf_conf_destroy(&req.conf);
	return status;
}

int epf_tool_bootstrap(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
		const char *doc;
	} table[] = {
		{ "serve", tool_serve, "serve the rendezvous of one job" },
		{ "dry-run", bootstrap_dry_run, "print what ranks and nodes would exchange" },
		{ "rank", tool_rank, "print which rank this is, and how that is known" },
	};

	bool help = argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-?"));

	for (size_t i = 0; argc > 1 && i < sizeof(table) / sizeof(table[0]); i++)
		if (!strcmp(argv[1], table[i].name))
			return table[i].run(argc - 1, argv + 1);
	if (argc > 1 && !help)
		fprintf(stderr, "ep-fabric bootstrap: '%s' is no command\n", argv[1]);
	fprintf(help ? stdout : stderr, "Usage: ep-fabric bootstrap COMMAND [OPTION...]\n");
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		fprintf(help ? stdout : stderr, "  %-8s  %s\n", table[i].name, table[i].doc);
	return help ? EXIT_SUCCESS : EXIT_USAGE;
}
