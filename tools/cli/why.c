/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric why`: why does a job hang? Prints the graph of waits (waits/waits.h) of the instances of this machine as sentences, causes first,
 * or as JSON. It reads files and /proc alone: it must never talk to an engine nor change anything.
 */
#include "fabric/base/clock.h"
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "tools/cli/tools.h"
#include "tools/waits/waits.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

enum { OPT_STATS_DIR = 256, OPT_LEAST, OPT_ALL, SENTENCE = 512, LINES = 20 };

struct request {
	struct epf_conf conf;
	struct waits *w;
	bool json, all;
	uint64_t least_ns;
	char **names;
	int n_names;
	char dir[4096];
};

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/* ---- text ---- */

static void print_cause(const struct waits *w, const struct waits_entry *e)
{
	char text[SENTENCE];

	printf("  CAUSE %s", waits_sentence(w, e, text, sizeof(text)));
	if (e->who == WAITS_FACT && e->consequences)
		printf(" (%" PRIu32 " wait%s follow%s from it, the oldest of %.1f s)",
		       e->consequences, plural(e->consequences), e->consequences == 1 ? "s" : "",
		       (double)e->age_ns / 1e9);
	else if (e->consequences)
		printf(" (%" PRIu32 " wait%s follow%s from it)", e->consequences,
		       plural(e->consequences), e->consequences == 1 ? "s" : "");
	printf("\n");
}

static void print_job(const struct request *req, uint32_t j)
{
	const struct waits *w = req->w;
	const struct waits_job *job = &w->job[j];
	char text[SENTENCE];
	uint32_t lines = 0, left = 0;

	printf("job %s: %" PRIu32 " ranks, %" PRIu32 " of them seen here, %" PRIu32
	       " wait%s of %.1f s and more\n",
	       job->name, job->world, job->ranks, job->entries, plural(job->entries),
	       (double)w->least_ns / 1e9);
	for (uint32_t i = 0; i < w->n_entries; i++) {
		const struct waits_entry *e = &w->entry[w->order[i]];

		if (e->job != j)
			continue;
		if (!req->all && lines >= LINES) {
			left++;
			continue;
		}
		lines++;
		if (e->is_cause)
			print_cause(w, e);
		else
			printf("  %s\n", waits_sentence(w, e, text, sizeof(text)));
	}
	if (left)
		printf("  and %" PRIu32 " more, shorter ones: --all prints them\n", left);
	if (job->hidden)
		printf("  %" PRIu64
		       " waits are counted and not shown: the statistics files have no room, see the setting stats-blocks\n",
		       job->hidden);
}

static int print_text(const struct request *req)
{
	const struct waits *w = req->w;
	uint32_t hanging = 0;

	for (uint32_t j = 0; j < w->n_jobs; j++)
		if (w->job[j].entries || w->job[j].causes) {
			print_job(req, j);
			hanging++;
		}
	if (!hanging && w->n_jobs)
		printf("nothing waits for %.1f s or more: %" PRIu32 " job%s, %" PRIu32
		       " rank%s seen\n",
		       (double)w->least_ns / 1e9, w->n_jobs, plural(w->n_jobs), w->n_ranks,
		       plural(w->n_ranks));
	else if (!hanging)
		printf("no job is seen\n");
	if (w->dead)
		printf("%" PRIu32
		       " instance%s of other jobs left final snapshot: name %s to see them\n",
		       w->dead, plural(w->dead), w->dead == 1 ? "it" : "one");
	return EXIT_SUCCESS;
}

/* ---- JSON ---- */

/* JSON integers are signed here. */
static json_t *num(uint64_t n)
{
	return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n);
}

static json_t *num32(uint32_t n)
{
	return n == WAITS_NONE ? json_null() : json_integer(n);
}

static json_t *entry_json(const struct waits *w, uint32_t at, const uint32_t *place)
{
	const struct waits_entry *e = &w->entry[at];
	bool signal = e->who == WAITS_RANK && e->reason == EPF_STATS_WAIT_SIGNAL;
	char text[SENTENCE];

	return json_pack(
		"{s:s,s:s,s:b,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s}",
		"who", waits_who_word(e->who), "reason", waits_reason_word(e->reason), "cause",
		e->is_cause, "kernel", e->kernel, "instance",
		json_string(w->instance[e->instance].name), "rank", num32(e->rank), "peer",
		num32(e->peer), "stream", num32(e->stream), "lane", num32(e->lane), "ring",
		num32(e->ring), "signal", signal ? num(e->signal) : json_null(), "value",
		e->who == WAITS_RANK ? num(e->value) : json_null(), "wanted",
		e->who == WAITS_RANK ? num(e->least) : json_null(), "deferred", num(e->deferred),
		"since_ns", e->since_ns ? num(e->since_ns) : json_null(), "age_ns",
		e->since_ns ? num(e->age_ns) : json_null(), "follows",
		e->follows == WAITS_NONE ? json_null() : num32(place[e->follows]), "consequences",
		num32(e->consequences), "text", waits_sentence(w, e, text, sizeof(text)));
}

/* Entries of one job in their order; `follows` is an index into that list. */
static json_t *entries_json(const struct waits *w, uint32_t j)
{
	uint32_t *place = malloc((w->n_entries + 1) * sizeof(*place)), n = 0;
	json_t *list = json_array();

	for (uint32_t i = 0; place && i < w->n_entries; i++)
		if (w->entry[w->order[i]].job == j)
			place[w->order[i]] = n++;
	for (uint32_t i = 0; place && i < w->n_entries; i++)
		if (w->entry[w->order[i]].job == j)
			json_array_append_new(list, entry_json(w, w->order[i], place));
	free(place);
	return list;
}

static json_t *instance_json(const struct waits_instance *in)
{
	static const char *const words[] = {
		[EPF_STATS_UNKNOWN] = "unknown", [EPF_STATS_ALIVE] = "alive",
		[EPF_STATS_STALE] = "stale",     [EPF_STATS_DEAD] = "dead",
		[EPF_STATS_ENDED] = "ended",
	};
	char process[2] = { in->process, 0 };

	if (!in->reader)
		return json_pack("{s:s,s:s}", "path", in->path, "error", in->error);
	return json_pack("{s:s,s:s,s:o,s:s,s:o,s:o,s:o}", "path", in->path, "instance", in->name,
			 "pid", num(in->pid), "writer", words[in->alive], "process_state",
			 in->process ? json_string(process) : json_null(), "links",
			 num32(in->links), "links_up", num32(in->links_up));
}

static int print_json(const struct request *req)
{
	const struct waits *w = req->w;
	json_t *jobs = json_array(), *instances = json_array(), *top;
	int rc;

	for (uint32_t i = 0; i < w->n_instances; i++)
		json_array_append_new(instances, instance_json(&w->instance[i]));
	for (uint32_t j = 0; j < w->n_jobs; j++)
		json_array_append_new(
			jobs,
			json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "job", w->job[j].name, "id",
				  w->job[j].id ? num(w->job[j].id) : json_null(), "world",
				  num32(w->job[j].world), "ranks_seen", num32(w->job[j].ranks),
				  "waits_counted", num(w->job[j].waits), "waits_hidden",
				  num(w->job[j].hidden), "waits", entries_json(w, j)));
	top = json_pack("{s:s,s:o,s:o,s:o,s:o,s:o}", "schema", "epf.why/1", "now_ns",
			num(w->now_ns), "least_ns", num(w->least_ns), "instances", instances,
			"jobs", jobs, "instances_left_out", num32(w->dead));
	rc = !top || json_dumpf(top, stdout, JSON_INDENT(1)) || putchar('\n') == EOF;
	json_decref(top);
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- the command ---- */

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;
	unsigned long ms;
	char *end;

	switch (key) {
	case 'j':
		req->json = true;
		return 0;
	case OPT_ALL:
		req->all = true;
		return 0;
	case OPT_LEAST:
		ms = strtoul(arg, &end, 10);
		if (end == arg || *end || ms > 3600000)
			argp_failure(state, EXIT_USAGE, 0,
				     "--least-ms is '%.32s', must be 0 to 3600000", arg);
		req->least_ns = (uint64_t)ms * 1000000;
		return 0;
	case OPT_STATS_DIR:
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

static int run(struct request *req)
{
	int rc = waits_add_names(req->w, req->dir, req->names, req->n_names), failed = 0;

	if (rc && rc != -ENOMEM) {
		fprintf(stderr, "ep-fabric why: %s: %s: set --stats-dir\n", req->dir,
			strerror(-rc));
		return EXIT_FAILURE;
	}
	if (!rc)
		rc = waits_refresh(req->w, epf_now_ns(), req->least_ns);
	if (rc) {
		fprintf(stderr, "ep-fabric why: out of memory\n");
		return EXIT_FAILURE;
	}
	for (uint32_t i = 0; i < req->w->n_instances; i++)
		if (!req->w->instance[i].reader) {
			fprintf(stderr, "ep-fabric why: %s\n", req->w->instance[i].error);
			failed++;
		}
	rc = req->json ? print_json(req) : print_text(req);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ep-fabric why: cannot write: %s\n", strerror(errno));
		return EXIT_FAILURE;
	}
	return failed ? EXIT_FAILURE : rc;
}

int epf_tool_why(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.why/1", 0 },
		{ "all", OPT_ALL, NULL, 0, "Print every wait, not only the first 20 of a job", 0 },
		{ "least-ms", OPT_LEAST, "MS", 0, "Shorter waits are left out (default 500)", 0 },
		{ "stats-dir", OPT_STATS_DIR, "DIR", 0, "Look for instances here", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "[INSTANCE|FILE...]",
		.doc = "Say why a job hangs: which rank waits for which peer, stream and signal, "
		       "since when and for what reason, causes first. Reads the statistics of the "
		       "instances of this machine, or of those named; a name with a slash is a "
		       "file. An instance that has died is read, too: its final snapshot.",
	};
	struct request req = { .least_ns = WAITS_LEAST_NS };
	int rc = EXIT_FAILURE;

	argp_err_exit_status = EXIT_USAGE;
	req.w = waits_new();
	if (!req.w || epf_conf_init(&req.conf)) {
		fprintf(stderr, "ep-fabric why: out of memory\n");
		waits_free(req.w);
		return EXIT_FAILURE;
	}
	argp_parse(&argp, argc, argv, 0, NULL, &req);
	if (epf_conf_load(&req.conf, NULL) ||
	    epf_conf_stats_dir(&req.conf, req.dir, sizeof(req.dir)))
		fprintf(stderr, "ep-fabric why: %s\n", epf_last_error());
	else
		rc = run(&req);
	epf_conf_destroy(&req.conf);
	waits_free(req.w);
	return rc;
}
