/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric stats`: prints the numbers of running and ended instances, as text or as JSON, from
 * their statistics files alone. Called by the main program of ep-fabric. Everything is printed from
 * the schema in the file: it must never know a number, a class or a label by name, nor touch the
 * instance.
 */
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "queues/epf_stats_read.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUFFIX     ".stats"
#define EXIT_USAGE 2

enum { OPT_STATS_DIR = 256 };

struct request {
	struct epf_conf conf;
	bool json;
	char **names; /* instances or files, in argv */
	int name_count;
	char dir[4096];
	json_t *instances; /* NULL: text */
	unsigned shown;
	unsigned failed;
};

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static const char *alive_word(const struct epf_stats_reader *r)
{
	static const char *const words[] = {
		[EPF_STATS_UNKNOWN] = "unknown", [EPF_STATS_ALIVE] = "alive",
		[EPF_STATS_STALE] = "stale",     [EPF_STATS_DEAD] = "dead",
		[EPF_STATS_ENDED] = "ended",
	};

	return words[epf_stats_reader_alive(r, clock_ns(), EPF_STATS_STALE_NS)];
}

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

static json_t *json_instance(const struct epf_stats_reader *r, const char *path)
{
	const struct epf_stats_info *info = epf_stats_reader_info(r);
	json_t *blocks = json_array();
	unsigned b;

	for (b = 0; b < info->block_count; b++)
		json_array_append_new(blocks, json_block(r, b));
	return json_pack(
		"{s:s,s:s,s:o,s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "path", path, "instance",
		info->instance, "job", *info->job ? json_string(info->job) : json_null(), "writer",
		alive_word(r), "pid", info->pid ? json_u64(info->pid) : json_null(), "tsc_hz",
		info->tsc_hz ? json_u64(info->tsc_hz) : json_null(), "created_realtime_ns",
		json_u64(info->created_realtime_ns), "created_monotonic_ns",
		json_u64(info->created_monotonic_ns), "heartbeat_ns",
		info->heartbeat_ns ? json_u64(info->heartbeat_ns) : json_null(), "blocks", blocks);
}

static void print_value(const struct epf_stats_value *v, const char *unit)
{
	uint64_t now = clock_ns();

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

static void print_instance(const struct epf_stats_reader *r, const char *path)
{
	const struct epf_stats_info *info = epf_stats_reader_info(r);
	unsigned b;

	printf("%s: %s, process %" PRIu64 ", job %s\n  file %s\n", info->instance, alive_word(r),
	       info->pid, *info->job ? info->job : "-", path);
	for (b = 0; b < info->block_count; b++)
		print_block(r, b);
}

static void show(struct request *req, const char *path)
{
	struct epf_stats_reader *r;
	char why[512];

	if (epf_stats_reader_open(path, &r, why, sizeof(why))) {
		req->failed++;
		fprintf(stderr, "ep-fabric stats: %s\n", why);
		if (req->instances)
			json_array_append_new(req->instances,
					      json_pack("{s:s,s:s}", "path", path, "error", why));
		return;
	}
	if (req->instances)
		json_array_append_new(req->instances, json_instance(r, path));
	else
		print_instance(r, path);
	req->shown++;
	epf_stats_reader_close(r);
}

/* A name with a slash is a file's, any other an instance's. */
static void show_named(struct request *req, const char *name)
{
	char *path;

	if (strchr(name, '/')) {
		show(req, name);
		return;
	}
	if (asprintf(&path, "%s/%s" SUFFIX, req->dir, name) < 0) {
		req->failed++;
		fprintf(stderr, "ep-fabric stats: out of memory\n");
		return;
	}
	show(req, path);
	free(path);
}

static int is_stats(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);

	return entry->d_name[0] != '.' && n > strlen(SUFFIX) &&
	       !strcmp(entry->d_name + n - strlen(SUFFIX), SUFFIX);
}

static void show_all(struct request *req)
{
	struct dirent **list;
	int i, n;

	n = scandir(req->dir, &list, is_stats, alphasort);
	if (n < 0 && errno != ENOENT) {
		req->failed++;
		fprintf(stderr, "ep-fabric stats: %s: %s: set --stats-dir\n", req->dir,
			strerror(errno));
		return;
	}
	if (n <= 0)
		fprintf(stderr, "ep-fabric stats: no instances in %s\n", req->dir);
	for (i = 0; i < n; i++) {
		list[i]->d_name[strlen(list[i]->d_name) - strlen(SUFFIX)] = '\0';
		show_named(req, list[i]->d_name);
		free(list[i]);
	}
	if (n >= 0)
		free(list);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;

	switch (key) {
	case 'j':
		req->json = true;
		return 0;
	case OPT_STATS_DIR:
		if (epf_conf_set(&req->conf, "stats-dir", arg, EPF_CONF_CLI))
			argp_failure(state, EXIT_USAGE, 0, "%s", epf_last_error());
		return 0;
	case ARGP_KEY_ARGS:
		req->names = state->argv + state->next;
		req->name_count = state->argc - state->next;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int print_all(struct request *req)
{
	json_t *top;
	int i;

	if (req->json) {
		req->instances = json_array();
		if (!req->instances)
			return EXIT_FAILURE;
	}
	for (i = 0; i < req->name_count; i++)
		show_named(req, req->names[i]);
	if (req->name_count == 0)
		show_all(req);
	if (req->json) {
		top = json_pack("{s:s,s:o}", "schema", "epf.stats/1", "instances", req->instances);
		if (!top || json_dumpf(top, stdout, JSON_INDENT(1)) || putchar('\n') == EOF)
			req->failed++;
		json_decref(top);
	}
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ep-fabric stats: cannot write: %s\n", strerror(errno));
		req->failed++;
	}
	return req->failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

int epf_tool_stats(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.stats/1", 0 },
		{ "stats-dir", OPT_STATS_DIR, "DIR", 0, "Look for instances here", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "[INSTANCE|FILE...]",
		.doc = "Print the statistics of instances: of all in the statistics directory, or "
		       "of those named. A name with a slash is a file. Numbers only grow: "
		       "subtract two readings. - and null mean not known.",
	};
	struct request req = { 0 };
	int rc = EXIT_FAILURE;

	argp_err_exit_status = EXIT_USAGE;
	if (epf_conf_init(&req.conf)) {
		fprintf(stderr, "ep-fabric stats: out of memory\n");
		return EXIT_FAILURE;
	}
	argp_parse(&argp, argc, argv, 0, NULL, &req);
	if (epf_conf_load(&req.conf, NULL) ||
	    epf_conf_stats_dir(&req.conf, req.dir, sizeof(req.dir)))
		fprintf(stderr, "ep-fabric stats: %s\n", epf_last_error());
	else
		rc = print_all(&req);
	epf_conf_destroy(&req.conf);
	return rc;
}
