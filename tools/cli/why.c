/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric why`: why does a job hang? Prints the graph of waits (waits/waits.h) of the instances of this machine as sentences, causes first,
 * or as JSON. It reads files and /proc alone: it must never talk to an engine nor change anything.
 */
#include "tools/cli/read.h"
#include "tools/cli/tools.h"
#include "tools/waits/endpoints.h"
#include "tools/waits/slow.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE = 512, LINES = 20 };

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

static void print_job(const struct read_request *req, uint32_t j)
{
	const struct waits *w = req->w;
	const struct waits_job *job = &w->job[j];
	char text[SENTENCE];
	uint32_t lines = 0, left = 0;

	printf("job %s", job->name);
	if (job->id) /* as on ep-top's screen of jobs */
		printf(" (%016" PRIx64 ")", job->id);
	printf(": %" PRIu32 " ranks, %" PRIu32 " of them seen here, %" PRIu32
	       " wait%s of %.1f s and more\n",
	       job->world, job->ranks, job->entries, plural(job->entries),
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

/* Jobs whose calls are held up by a rank: the split of their time and the causes, out of what kernels count. */
static void print_slow(const struct waits *w)
{
	struct slow *s = slow_read(w);

	for (uint32_t j = 0; s && j < s->n_jobs; j++) {
		const struct slow_job *job = &s->job[j];
		const struct epf_why_report *const *reports =
			(const struct epf_why_report *const *)job->reports;
		struct epf_why_cause cause;
		char text[8192], *line, *rest = text;

		if (!epf_why_explain(reports, job->n, &cause, 1))
			continue;
		(void)epf_why_text(reports, job->n, text, sizeof(text));
		printf("calls of job %s:\n", *job->name ? job->name : "-");
		while ((line = strsep(&rest, "\n")) && *line)
			printf("  %s\n", line);
	}
	slow_free(s);
}

/* Prints the endpoints that wait for peers, those with a stopped peer first. Returns how many endpoints there are. */
static uint32_t print_endpoints(const struct read_request *req)
{
	struct endpoints *e = endpoints_read(req->w);
	uint32_t seen = e ? e->endpoints : 0, n = e ? e->n : 0;
	char text[SENTENCE];

	if (seen)
		printf("endpoints: %" PRIu32 ", %" PRIu32 " connections, %" PRIu32
		       " of them waiting for %.1f s and more, %" PRIu32 " lost so far\n",
		       seen, e->connections, n, (double)req->w->least_ns / 1e9, e->lost);
	if (seen && e->compressing)
		printf("  %" PRIu32 " connections compress: %" PRIu64 " bytes became %" PRIu64
		       "; %" PRIu32 " of them gain nothing by it and do not\n",
		       e->compressing, e->packed_from, e->packed_to, e->compress_off);
	for (uint32_t i = 0; i < n && (req->all || i < LINES); i++) {
		const struct endpoint_wait *wait = &e->wait[i];

		printf("  %s%s", i == 0 ? "CAUSE " : "",
		       endpoint_sentence(wait, text, sizeof(text)));
		if (i == 0 && wait->others > 1)
			printf(" (%" PRIu32 " connections wait for it)", wait->others);
		printf("\n");
	}
	if (n > LINES && !req->all)
		printf("  and %" PRIu32 " more, shorter ones: --all prints them\n", n - LINES);
	endpoints_free(e);
	return seen;
}

static void print_text(const struct read_request *req)
{
	const struct waits *w = req->w;
	uint32_t hanging = 0, endpoints;
	char text[80];

	for (uint32_t j = 0; j < w->n_jobs; j++)
		if (w->job[j].entries || w->job[j].causes) {
			print_job(req, j);
			hanging++;
		}
	endpoints = print_endpoints(req);
	if (!hanging && w->n_jobs)
		printf("nothing waits for %.1f s or more: %" PRIu32 " job%s, %" PRIu32
		       " rank%s seen\n",
		       (double)w->least_ns / 1e9, w->n_jobs, plural(w->n_jobs), w->n_ranks,
		       plural(w->n_ranks));
	else if (w->n_instances == w->n_left_out)
		printf("%s\n", waits_nobody(w->n_left_out, text, sizeof(text)));
	else if (!hanging && !endpoints)
		printf("no job is seen\n");
	print_slow(w);
	if (w->n_left_out && w->n_instances != w->n_left_out)
		printf("%" PRIu32 " instance%s exited: see --dead\n", w->n_left_out,
		       w->n_left_out == 1 ? " has" : "s have");
}

/* ---- JSON ---- */

static json_t *entry_json(const struct waits *w, uint32_t at, const uint32_t *place)
{
	const struct waits_entry *e = &w->entry[at];
	bool signal = e->who == WAITS_RANK && e->reason == EPF_STATS_WAIT_SIGNAL &&
		      e->signal != EPF_STATS_NO_SIGNAL;
	char text[SENTENCE];

	return json_pack(
		"{s:s,s:s,s:b,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s}",
		"who", waits_who_word(e->who), "reason", waits_reason_word(e->reason), "cause",
		e->is_cause, "kernel", e->kernel, "instance",
		json_string(w->instance[e->instance].name), "rank", read_num32(e->rank), "peer",
		read_num32(e->peer), "stream", read_num32(e->stream), "lane", read_num32(e->lane),
		"ring", read_num32(e->ring), "signal", signal ? read_num(e->signal) : json_null(),
		"value", e->who == WAITS_RANK ? read_num(e->value) : json_null(), "wanted",
		e->who == WAITS_RANK ? read_num(e->least) : json_null(), "deferred",
		read_num(e->deferred), "since_ns",
		e->since_ns ? read_num(e->since_ns) : json_null(), "age_ns",
		e->since_ns ? read_num(e->age_ns) : json_null(), "follows",
		e->follows == WAITS_NONE ? json_null() : read_num32(place[e->follows]),
		"consequences", read_num32(e->consequences), "text",
		waits_sentence(w, e, text, sizeof(text)));
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
	char process[2] = { in->process, 0 };

	if (!in->reader)
		return json_pack("{s:s,s:s}", "path", in->path, "error", in->error);
	return json_pack("{s:s,s:s,s:o,s:s,s:o,s:o,s:o}", "path", in->path, "instance", in->name,
			 "pid", read_num(in->pid), "writer", waits_alive_word(in->alive),
			 "process_state", in->process ? json_string(process) : json_null(), "links",
			 read_num32(in->links), "links_up", read_num32(in->links_up));
}

static json_t *cause_json(const struct epf_why_cause *c)
{
	return json_pack("{s:s,s:o,s:o,s:o,s:o,s:f,s:f,s:f,s:s}", "kind",
			 epf_why_kind_name(c->kind), "rank", read_num32(c->rank), "ns",
			 read_num(c->ns), "times", read_num(c->times), "most_ns",
			 read_num(c->most_ns), "share", c->share, "received", c->received, "sent",
			 c->sent, "call", epf_why_call_name(c->call));
}

/* Kinds of calls with their time, of all ranks that are seen together. */
static json_t *calls_json(const struct slow_job *job)
{
	json_t *calls = json_object();

	for (uint32_t k = 0; k < EPF_WHY_CALLS; k++) {
		struct epf_why_calls sum = { 0 };

		for (uint32_t i = 0; i < job->n; i++) {
			sum.calls += job->reports[i]->call[k].calls;
			for (unsigned p = 0; p < EPF_WHY_PHASES; p++)
				sum.ns[p] += job->reports[i]->call[k].ns[p];
		}
		if (sum.calls)
			json_object_set_new(calls, epf_why_call_name(k),
					    json_pack("{s:o,s:o,s:o,s:o}", "calls",
						      read_num(sum.calls), "wait_ns",
						      read_num(sum.ns[EPF_WHY_WAIT]), "move_ns",
						      read_num(sum.ns[EPF_WHY_MOVE]), "copy_ns",
						      read_num(sum.ns[EPF_WHY_COPY])));
	}
	return calls;
}

/* All jobs that make calls, with the causes that hold them up, if any. */
static json_t *slow_json(const struct waits *w)
{
	struct slow *s = slow_read(w);
	json_t *list = json_array();

	for (uint32_t j = 0; s && j < s->n_jobs; j++) {
		const struct slow_job *job = &s->job[j];
		uint32_t most = 3 * job->world, n;
		struct epf_why_cause *c = calloc(most, sizeof(*c));
		json_t *causes = json_array();

		n = c ? epf_why_explain((const struct epf_why_report *const *)job->reports, job->n,
					c, most)
		      : 0;
		for (uint32_t i = 0; i < n; i++)
			json_array_append_new(causes, cause_json(&c[i]));
		free(c);
		json_array_append_new(
			list, json_pack("{s:s,s:o,s:o,s:o,s:o,s:o}", "job", job->name, "id",
					job->id ? read_num(job->id) : json_null(), "world",
					read_num32(job->world), "ranks_seen", read_num32(job->n),
					"calls", calls_json(job), "causes", causes));
	}
	slow_free(s);
	return list;
}

static json_t *endpoints_json(const struct waits *w)
{
	struct endpoints *e = endpoints_read(w);
	json_t *waits = json_array(), *top;
	char text[SENTENCE];

	for (uint32_t i = 0; e && i < e->n; i++) {
		const struct endpoint_wait *wait = &e->wait[i];
		char process[2] = { wait->process, 0 };

		json_array_append_new(
			waits,
			json_pack("{s:s,s:o,s:s,s:o,s:s,s:o,s:s,s:o,s:o,s:o,s:o,s:s}", "endpoint",
				  wait->endpoint, "endpoint_pid", read_num(wait->own_pid), "peer",
				  wait->peer, "pid", wait->pid ? read_num(wait->pid) : json_null(),
				  "host", wait->host, "process_state",
				  wait->process ? json_string(process) : json_null(), "reason",
				  endpoint_wait_word(wait->kind), "age_ns", read_num(wait->age_ns),
				  "transfers", read_num(wait->under_way), "bytes_left",
				  read_num(wait->bytes_left), "waits_for_peer",
				  read_num32(wait->others), "text",
				  endpoint_sentence(wait, text, sizeof(text))));
	}
	top = json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "compressing",
			read_num32(e ? e->compressing : 0), "compress_off",
			read_num32(e ? e->compress_off : 0), "packed_from",
			read_num(e ? e->packed_from : 0), "packed_to",
			read_num(e ? e->packed_to : 0), "seen", read_num32(e ? e->endpoints : 0),
			"connections", read_num32(e ? e->connections : 0), "lost",
			read_num32(e ? e->lost : 0), "waits", waits);
	endpoints_free(e);
	return top;
}

static unsigned print_json(const struct read_request *req)
{
	const struct waits *w = req->w;
	json_t *jobs = json_array(), *instances = json_array();

	for (uint32_t i = 0; i < w->n_instances; i++)
		if (!w->instance[i].left_out)
			json_array_append_new(instances, instance_json(&w->instance[i]));
	for (uint32_t j = 0; j < w->n_jobs; j++)
		json_array_append_new(
			jobs, json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "job", w->job[j].name,
					"id", w->job[j].id ? read_num(w->job[j].id) : json_null(),
					"world", read_num32(w->job[j].world), "ranks_seen",
					read_num32(w->job[j].ranks), "waits_counted",
					read_num(w->job[j].waits), "waits_hidden",
					read_num(w->job[j].hidden), "waits", entries_json(w, j)));
	return read_print_json(json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", "epf.why/1",
					 "now_ns", read_num(w->now_ns), "least_ns",
					 read_num(w->least_ns), "instances", instances, "jobs",
					 jobs, "slow", slow_json(w), "endpoints", endpoints_json(w),
					 "instances_left_out", read_num32(w->n_left_out)),
			       JSON_INDENT(1));
}

static unsigned print(const struct read_request *req)
{
	if (req->json)
		return print_json(req);
	print_text(req);
	return 0;
}

int epf_tool_why(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.why/1", 0 },
		{ "all", READ_OPT_ALL, NULL, 0, "Print every wait, not only the first 20 of a job",
		  0 },
		{ "least-ms", READ_OPT_LEAST, "MS", 0, "Leave out shorter waits (default 500)", 0 },
		READ_OPTIONS,
		{ 0 },
	};

	return read_run(
		options,
		"Say why a job hangs: which rank waits for which peer, stream and signal, "
		"since when and for what reason, causes first; and what slows down its dispatch and combine calls. Reads the statistics of the "
		"instances of this machine, or of those named; a name with a slash is a "
		"file. An instance that has exited is read if it is named, or with --dead: "
		"its final snapshot.",
		WAITS_LEAST_NS, print, argc, argv);
}
