/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric stats`: prints the numbers of instances, as text or as JSON, from
 * their statistics files alone. Called by the main program of ep-fabric. Everything is printed from
 * the schema in the file: it must never know a number, a class or a label by name, nor touch the
 * instance.
 */
#include "fabric/base/clock.h"
#include "tools/cli/read.h"
#include "tools/cli/tools.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* JSON integers are signed here; what does not fit becomes the nearest floating-point number. */
static json_t *json_u64(uint64_t n)
{
	return n > INT64_MAX ? json_real((double)n) : json_integer((json_int_t)n);
}

static json_t *json_hist(const struct epf_hist *h)
{
	json_t *buckets = json_array();
	uint32_t i;

	for (i = 0; i < EPF_HIST_BUCKETS; i++)
		if (h->bucket[i])
			json_array_append_new(buckets,
					      json_pack("[o,o,o]", json_u64(epf_hist_lower(i)),
							json_u64(epf_hist_upper(i)),
							json_u64(h->bucket[i])));
	return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "count",
			 json_u64(epf_hist_count(h)), "sum", json_u64(h->sum), "min",
			 json_u64(epf_hist_min(h)), "p50", json_u64(epf_hist_quantile(h, 0.5)),
			 "p90", json_u64(epf_hist_quantile(h, 0.9)), "p99",
			 json_u64(epf_hist_quantile(h, 0.99)), "p999",
			 json_u64(epf_hist_quantile(h, 0.999)), "max", json_u64(epf_hist_max(h)),
			 "buckets", buckets);
}

static json_t *json_value(const struct epf_stats_value *v)
{
	if (!v->known)
		return json_null();
	if (v->hist)
		return json_hist(v->hist);
	if (v->type == EPF_STATS_STATE)
		return json_pack("{s:s,s:o}", "state", v->state, "since_ns", json_u64(v->since_ns));
	return json_u64(v->number);
}

static json_t *json_label(const char *text, uint32_t kind)
{
	char *end;
	uint64_t n;

	if (!*text)
		return json_null();
	errno = 0;
	n = strtoull(text, &end, 10);
	if (kind == EPF_STATS_NUM && *text >= '0' && *text <= '9' && !*end && !errno)
		return json_u64(n);
	return json_string(text);
}

static json_t *json_block(const struct epf_stats_reader *r, unsigned b)
{
	const struct epf_stats_entry *e = epf_stats_reader_block(r, b);
	const struct epf_stats_class *cls = epf_stats_reader_class(r, e->class_index);
	json_t *labels = json_object(), *values = json_object();
	struct epf_stats_value v;
	uint32_t i;

	for (i = 0; i < cls->label_count; i++)
		json_object_set_new(labels, cls->label[i],
				    json_label(e->label[i], cls->label_kind[i]));
	for (i = 0; i < cls->row_count; i++) {
		epf_stats_reader_value(r, b, i, &v);
		json_object_set_new(values, epf_stats_reader_row(r, e->class_index, i)->name,
				    json_value(&v));
	}
	return json_pack("{s:s,s:o,s:o}", "class", cls->name, "labels", labels, "values", values);
}

static json_t *json_instance(const struct waits_instance *in)
{
	const struct epf_stats_reader *r = in->reader;
	const struct epf_stats_info *info = epf_stats_reader_info(r);
	json_t *blocks = json_array();

	for (unsigned b = 0; b < info->block_count; b++)
		json_array_append_new(blocks, json_block(r, b));
	return json_pack(
		"{s:s,s:s,s:o,s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "path", in->path, "instance",
		info->instance, "job", *info->job ? json_string(info->job) : json_null(), "writer",
		waits_alive_word(in->alive), "pid", info->pid ? json_u64(info->pid) : json_null(),
		"tsc_hz", info->tsc_hz ? json_u64(info->tsc_hz) : json_null(),
		"created_realtime_ns", json_u64(info->created_realtime_ns), "created_monotonic_ns",
		json_u64(info->created_monotonic_ns), "heartbeat_ns",
		info->heartbeat_ns ? json_u64(info->heartbeat_ns) : json_null(), "blocks", blocks);
}

static void print_value(const struct epf_stats_value *v, const char *unit)
{
	uint64_t now = epf_now_ns();

	if (!v->known)
		printf("-\n");
	else if (v->hist)
		printf("n %" PRIu64 ", p50 %" PRIu64 ", p99 %" PRIu64 ", p99.9 %" PRIu64
		       ", max %" PRIu64 " %s\n",
		       v->number, epf_hist_quantile(v->hist, 0.5), epf_hist_quantile(v->hist, 0.99),
		       epf_hist_quantile(v->hist, 0.999), epf_hist_max(v->hist), unit);
	else if (v->type == EPF_STATS_STATE && v->since_ns <= now)
		printf("%s for %.3f s\n", v->state, (double)(now - v->since_ns) / 1e9);
	else if (v->type == EPF_STATS_STATE)
		printf("%s\n", v->state); /* entered on another machine or before a restart */
	else
		printf("%" PRIu64 " %s\n", v->number, unit);
}

static void print_block(const struct epf_stats_reader *r, unsigned b)
{
	const struct epf_stats_entry *e = epf_stats_reader_block(r, b);
	const struct epf_stats_class *cls = epf_stats_reader_class(r, e->class_index);
	const struct epf_stats_row *row;
	struct epf_stats_value v;
	uint32_t i;

	printf("  %s", cls->name);
	for (i = 0; i < cls->label_count; i++)
		printf(" %s=%s", cls->label[i], *e->label[i] ? e->label[i] : "-");
	printf("\n");
	for (i = 0; i < cls->row_count; i++) {
		row = epf_stats_reader_row(r, e->class_index, i);
		epf_stats_reader_value(r, b, i, &v);
		printf("    %-24s ", row->name);
		print_value(&v, row->unit);
	}
}

static void print_instance(const struct waits_instance *in)
{
	const struct epf_stats_info *info = epf_stats_reader_info(in->reader);

	printf("%s: %s, process %" PRIu64 ", job %s\n  file %s\n", info->instance,
	       waits_alive_word(in->alive), info->pid, *info->job ? info->job : "-", in->path);
	for (unsigned b = 0; b < info->block_count; b++)
		print_block(in->reader, b);
}

static unsigned print(const struct read_request *req)
{
	const struct waits *w = req->w;
	json_t *list = req->json ? json_array() : NULL;
	char text[80];

	for (uint32_t i = 0; i < w->n_instances; i++) {
		const struct waits_instance *in = &w->instance[i];

		if (in->left_out)
			continue;
		if (list && !in->reader)
			json_array_append_new(
				list, json_pack("{s:s,s:s}", "path", in->path, "error", in->error));
		else if (list)
			json_array_append_new(list, json_instance(in));
		else if (in->reader)
			print_instance(in);
	}
	if (w->n_instances == w->n_left_out)
		fprintf(stderr, "%s: %s: %s\n", req->what, req->dir,
			waits_nobody(w->n_left_out, text, sizeof(text)));
	return req->json &&
	       read_print_json(json_pack("{s:s,s:o,s:o}", "schema", "epf.stats/1", "instances",
					 list, "instances_left_out", read_num32(w->n_left_out)),
			       JSON_INDENT(1));
}

int epf_tool_stats(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.stats/1", 0 },
		READ_OPTIONS,
		{ 0 },
	};

	return read_run(
		options,
		"Print the statistics of instances: of all in the statistics directory, or "
		"of those named. A name with a slash is a file. An instance that has exited is "
		"printed if it is named, or with --dead. Numbers only grow: subtract two "
		"readings. - and null mean not known.",
		0, print, argc, argv);
}
