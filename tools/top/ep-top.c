/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top: what all instances of this machine do, live, on a terminal; or once, as text, as JSON, as metrics; recorded and replayed. It reads
 * statistics files and /proc alone: no engine knows of it. This file reads the command line.
 */
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/client/epf.h"
#include "tools/top/run.h"

#include <argp.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_USAGE 2

enum {
	OPT_STATS_DIR = 256,
	OPT_LEAST,
	OPT_ONCE,
	OPT_RECORD,
	OPT_REPLAY,
	OPT_PROMETHEUS,
	OPT_PEER_LABELS,
	OPT_LISTEN,
	OPT_FILTER,
	OPT_DEAD,
	OPT_TOTALS
};

struct request {
	struct top_run run;
	struct epf_conf conf;
	bool batch, dead;
	uint64_t least_ns;
	const char *record, *replay, *sort;
	char **names;
	int n_names;
	char dir[4096];
};

static const struct argp_option options[] = {
	{ NULL, 0, NULL, 0, "Screens:", 1 },
	{ "delay", 'd', "SECONDS", 0, "Time between two readings (default 1)", 1 },
	{ "screen", 'S', "NAME", 0,
	  "Start with this screen: waiting, nics, cores, rings, ranks, peers, lanes, jobs, instances, calls, endpoints",
	  1 },
	{ "sort", 's', "COLUMN", 0,
	  "Sort by the column with this title; a leading - reverses the order", 1 },
	{ "filter", OPT_FILTER, "TEXT", 0, "Show only lines that contain this text", 1 },
	{ "totals", OPT_TOTALS, NULL, 0, "Totals instead of rates", 1 },
	{ "no-color", 'C', NULL, 0, "No colours, as with NO_COLOR set", 1 },
	{ NULL, 0, NULL, 0, "Without a terminal:", 2 },
	{ "once", OPT_ONCE, NULL, 0,
	  "Read once and print totals, of all screens unless one is named", 2 },
	{ "batch", 'b', NULL, 0, "Print each reading as plain text", 2 },
	{ "iterations", 'n', "N", 0, "End after N readings", 2 },
	{ "json", 'j', NULL, 0,
	  "JSON, schema epf.top/1: an object with --once, else an object a line", 2 },
	{ "prometheus", OPT_PROMETHEUS, NULL, 0, "One reading as Prometheus' text format", 2 },
	{ "listen", OPT_LISTEN, "ADDR:PORT", 0,
	  "Serve that as http://ADDR:PORT/metrics, read again for each request", 2 },
	{ "peer-labels", OPT_PEER_LABELS, NULL, 0,
	  "Include metrics of which an instance has more than 1024", 2 },
	{ NULL, 0, NULL, 0, "What to read:", 3 },
	{ "record", OPT_RECORD, "FILE", 0, "Write all readings to this file, too", 3 },
	{ "replay", OPT_REPLAY, "FILE", 0, "Show a recording instead of running instances", 3 },
	{ "dead", OPT_DEAD, NULL, 0, "Include instances that have exited", 3 },
	{ "least-ms", OPT_LEAST, "MS", 0, "Leave out shorter waits (default 500)", 3 },
	{ "stats-dir", OPT_STATS_DIR, "DIR", 0, "Look for instances here", 3 },
	{ 0 },
};

static unsigned long whole(struct argp_state *state, const char *name, const char *arg,
			   unsigned long least, unsigned long most)
{
	unsigned long n;
	char *end;

	errno = 0;
	n = strtoul(arg, &end, 10);
	if (end == arg || *end || *arg == '-' || errno || n < least || n > most)
		argp_failure(state, EXIT_USAGE, 0, "--%s is '%.32s', must be %lu to %lu", name, arg,
			     least, most);
	return n;
}

static void set_delay(struct top_run *run, const char *arg, struct argp_state *state)
{
	char *end;

	run->delay_s = strtod(arg, &end);
	run->has_delay = true;
	if (end == arg || *end || !(run->delay_s >= 0.1 && run->delay_s <= 3600))
		argp_failure(state, EXIT_USAGE, 0,
			     "--delay is '%.32s', must be 0.1 to 3600 seconds", arg);
}

static void set_screen(struct top_run *run, const char *arg, struct argp_state *state)
{
	run->look.screen = top_screen_find(arg);
	if (run->look.screen == TOP_SCREENS)
		argp_failure(state, EXIT_USAGE, 0, "--screen is '%.32s', see --help for the names",
			     arg);
}

static void set_filter(struct top_run *run, const char *arg, struct argp_state *state)
{
	if (strlen(arg) >= sizeof(run->look.filter))
		argp_failure(state, EXIT_USAGE, 0, "--filter is longer than %zu characters",
			     sizeof(run->look.filter) - 1);
	top_text(run->look.filter, sizeof(run->look.filter), arg);
}

/* A column of the screen, once that is known. */
static void set_sort(struct request *req, struct argp_state *state)
{
	const char *name = req->sort;
	struct top_column column[TOP_COLUMNS_MAX];
	uint32_t n;

	if (!name)
		return;
	if (req->run.look.screen == TOP_SCREENS)
		argp_failure(state, EXIT_USAGE, 0, "--sort needs --screen");
	req->run.look.invert = *name == '-';
	name += *name == '-';
	n = top_columns(req->run.look.screen, column);
	for (uint32_t c = 0; c < n; c++)
		if (*name && !strcasecmp(column[c].title, name))
			req->run.look.sort = c;
	if (req->run.look.sort == TOP_NATURAL)
		argp_failure(state, EXIT_USAGE, 0, "--sort: screen %s has no column '%.32s'",
			     top_screen_name(req->run.look.screen), name);
}

static void check_together(struct request *req, struct argp_state *state)
{
	struct top_run *run = &req->run;

	set_sort(req, state);
	if (run->prometheus && (run->json || req->batch))
		argp_failure(state, EXIT_USAGE, 0,
			     "--prometheus goes with neither --json nor --batch");
	if (run->listen &&
	    (run->json || run->prometheus || run->once || req->batch || req->record || req->replay))
		argp_failure(state, EXIT_USAGE, 0,
			     "--listen serves living instances and prints nothing");
	if (req->replay && req->n_names)
		argp_failure(state, EXIT_USAGE, 0, "--replay shows a recording: name no instance");
	if (run->once && (run->iterations || req->batch))
		argp_failure(state, EXIT_USAGE, 0,
			     "--once goes with neither --batch nor --iterations");
}

static error_t parse_output(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;

	switch (key) {
	case OPT_ONCE:
		req->run.once = true;
		return 0;
	case 'b':
		req->batch = true;
		return 0;
	case 'n':
		req->run.iterations = (uint32_t)whole(state, "iterations", arg, 1, UINT32_MAX);
		return 0;
	case 'j':
		req->run.json = true;
		return 0;
	case OPT_PROMETHEUS:
		req->run.prometheus = true;
		return 0;
	case OPT_LISTEN:
		req->run.listen = arg;
		return 0;
	case OPT_PEER_LABELS:
		req->run.peer_labels = true;
		return 0;
	case OPT_RECORD:
		req->record = arg;
		return 0;
	case OPT_REPLAY:
		req->replay = arg;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;

	switch (key) {
	case 'd':
		set_delay(&req->run, arg, state);
		return 0;
	case 'S':
		set_screen(&req->run, arg, state);
		return 0;
	case 's':
		req->sort = arg;
		return 0;
	case OPT_FILTER:
		set_filter(&req->run, arg, state);
		return 0;
	case OPT_TOTALS:
		req->run.look.totals = true;
		return 0;
	case 'C':
		req->run.no_colour = true;
		return 0;
	case OPT_LEAST:
		req->least_ns = whole(state, "least-ms", arg, 0, 3600000) * UINT64_C(1000000);
		return 0;
	case OPT_DEAD:
		req->dead = true;
		return 0;
	case OPT_STATS_DIR:
		if (epf_conf_set(&req->conf, "stats-dir", arg, EPF_CONF_CLI))
			argp_failure(state, EXIT_USAGE, 0, "%s", epf_last_error());
		return 0;
	case ARGP_KEY_ARGS:
		req->names = state->argv + state->next;
		req->n_names = state->argc - state->next;
		return 0;
	case ARGP_KEY_SUCCESS:
		check_together(req, state);
		return 0;
	default:
		return parse_output(key, arg, state);
	}
}

static int open_all(struct request *req, char *reason, size_t bytes)
{
	struct top_run *run = &req->run;
	int rc;

	run->has_names = req->n_names > 0;
	run->schema = top_schema_new();
	if (!run->schema) {
		snprintf(reason, bytes, "out of memory");
		return -ENOMEM;
	}
	if (req->replay)
		rc = top_source_replay(&run->source, run->schema, req->replay, reason, bytes);
	else
		rc = top_source_live(&run->source, run->schema, req->dir, req->names, req->n_names,
				     req->least_ns, req->dead, reason, bytes);
	if (!rc && req->record)
		rc = top_record_open(req->record, &run->record, reason, bytes);
	return rc;
}

/* True if it prints readings instead of showing screens. */
static bool prints(const struct request *req)
{
	const struct top_run *run = &req->run;

	return run->prometheus || run->json || run->once || req->batch;
}

/* Runs before a recording is opened, so that a refusal leaves no empty file. */
static int check_terminal(const struct request *req)
{
	if (req->run.listen || prints(req) || (isatty(STDOUT_FILENO) && isatty(STDIN_FILENO)))
		return 0;
	fprintf(stderr, "ep-top: no terminal: use --once or --batch%s\n",
		req->record ? "; --record goes with both" : "");
	return -ENOTTY;
}

static int run_all(struct request *req)
{
	struct top_run *run = &req->run;

	if (run->listen)
		return top_run_listen(run);
	if (prints(req)) {
		/* JSON of a recording is all of it, and of a live instance one reading unless an option says otherwise. */
		if (run->prometheus ||
		    (run->json && !req->batch && !run->iterations && !req->replay))
			run->once = true;
		if (run->once)
			run->iterations = 1;
		return top_run_batch(run);
	}
	return top_run_screen(run);
}

const char *argp_program_version;

int main(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "[INSTANCE|FILE...]",
		.doc = "Show what the instances of this machine do: NICs, cores, rings, ranks, peers, "
		       "lanes, jobs, calls, and what waits for what. Reads their statistics, or those "
		       "of the instances named; a name with a slash is a file. An instance that has exited "
		       "is shown, with its final snapshot, if it is named, or with --dead. Reading does not disturb the engines. "
		       "Press h or F1 for the keys. "
		       "The setup (F2) is kept in ep-fabric/top.json below XDG_CONFIG_HOME, "
		       "or below ~/.config; options override it, and output without a "
		       "terminal ignores it.",
	};
	struct request req = { .least_ns = WAITS_LEAST_NS,
			       .run = { .delay_s = 1,
					.look = { .screen = TOP_SCREENS, .sort = TOP_NATURAL } } };
	char version[64], reason[512] = "failed";
	int rc = EXIT_FAILURE;

	setlocale(LC_CTYPE, "");
	snprintf(version, sizeof(version), "ep-top %s", epf_version());
	argp_program_version = version;
	argp_err_exit_status = EXIT_USAGE;
	if (epf_conf_init(&req.conf)) {
		fprintf(stderr, "ep-top: out of memory\n");
		return EXIT_FAILURE;
	}
	argp_parse(&argp, argc, argv, 0, NULL, &req);
	if (check_terminal(&req)) {
		epf_conf_destroy(&req.conf);
		return EXIT_FAILURE;
	}
	if (epf_conf_load(&req.conf, NULL) ||
	    epf_conf_stats_dir(&req.conf, req.dir, sizeof(req.dir)))
		fprintf(stderr, "ep-top: %s\n", epf_last_error());
	else if (open_all(&req, reason, sizeof(reason)))
		fprintf(stderr, "ep-top: %s\n", reason);
	else
		rc = run_all(&req);
	if (top_record_close(req.run.record) && rc == EXIT_SUCCESS) {
		fprintf(stderr, "ep-top: %s: cannot write the recording\n", req.record);
		rc = EXIT_FAILURE;
	}
	top_source_close(req.run.source);
	top_schema_free(req.run.schema);
	epf_conf_destroy(&req.conf);
	return rc;
}
