/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shot of ep-top as Prometheus' text format (view.h), from the schema alone: a new row is a new metric. Names follow node_exporter's
 * habits: base units (seconds, bytes), _total for counters, no abbreviations. Works on the model alone.
 */
#include "tools/top/view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "ep_fabric_"

/* Abbreviations of rows, a part at a time. */
static const char *long_part(const char *part)
{
	static const char *const words[][2] = {
		{ "cmds", "commands" },  { "wrs", "work_requests" },
		{ "tx", "transmitted" }, { "rx", "received" },
		{ "tsc", "" },           { "ns", "" },
	};

	for (unsigned i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (!strcmp(words[i][0], part))
			return words[i][1];
	return part;
}

static bool is_time(const struct top_row *row)
{
	return !strcmp(row->unit, "ns") || !strcmp(row->unit, "cycles");
}

/* "core", "cmds_dequeued" -> "ep_fabric_core_commands_dequeued_total" */
static void metric_name(const struct top_class *cls, const struct top_row *row, char *name,
			size_t size)
{
	char copy[40], *rest = copy, *part;
	size_t n = (size_t)snprintf(name, size, PREFIX "%s", cls->name);

	snprintf(copy, sizeof(copy), "%s", row->name);
	/* "ring", "ring_full_seen": the class is named once. */
	if (!strncmp(copy, cls->name, strlen(cls->name)) && copy[strlen(cls->name)] == '_')
		rest += strlen(cls->name) + 1;
	while ((part = strsep(&rest, "_")) && n < size)
		if (*long_part(part))
			n += (size_t)snprintf(name + n, size - n, "_%s", long_part(part));
	if (n < size && is_time(row))
		n += (size_t)snprintf(name + n, size - n, "_seconds");
	/* A gauge must not look like a part of a histogram, nor like a counter. */
	if (n < size && row->type == EPF_STATS_COUNTER)
		snprintf(name + n, size - n, "_total");
}

/* Printable ASCII: only these two need care inside quotes. */
static void put_escaped(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '\\' || *text == '"')
			fputc('\\', out);
		fputc(*text, out);
	}
}

static void put_label(FILE *out, const char *name, const char *value, bool *more)
{
	fprintf(out, "%s%s=\"", *more ? "," : "", name);
	put_escaped(out, value);
	fputc('"', out);
	*more = true;
}

static void put_labels(FILE *out, const struct top_schema *schema, const struct top_shot *shot,
		       const struct top_block *block, const char *extra, const char *value)
{
	const struct top_class *cls = &schema->cls[block->cls];
	bool more = false;

	fputc('{', out);
	put_label(out, "instance", shot->instance[block->instance].name, &more);
	for (uint32_t i = 0; i < cls->n_labels; i++)
		put_label(out, cls->label[i], block->label[i], &more);
	if (extra)
		put_label(out, extra, value, &more);
	fputc('}', out);
}

static double factor_of(const struct top_row *row, const struct top_instance *in)
{
	if (!strcmp(row->unit, "ns"))
		return 1e-9;
	if (!strcmp(row->unit, "cycles"))
		return in->tsc_hz ? 1 / (double)in->tsc_hz : 0;
	return 1;
}

/* 64-bit integers as such; only times are fractions. */
static void put_number(FILE *out, uint64_t n, double factor)
{
	if (factor == 1)
		fprintf(out, " %" PRIu64 "\n", n);
	else
		fprintf(out, " %.9g\n", (double)n * factor);
}

static void put_state(FILE *out, const struct top_schema *schema, const struct top_shot *shot,
		      const struct top_block *block, const char *name, const struct top_row *row,
		      const struct top_value *v)
{
	char word[72];

	for (unsigned s = 0; s < 16; s++) {
		top_state_name(row, s, word, sizeof(word));
		if (*word >= '0' && *word <= '9' && s != v->number)
			continue;
		fprintf(out, "%s", name);
		put_labels(out, schema, shot, block, "state", word);
		fprintf(out, " %d\n", s == v->number);
	}
}

static void put_hist(FILE *out, const struct top_schema *schema, const struct top_shot *shot,
		     const struct top_block *block, const char *name, const struct top_hist *h,
		     double factor)
{
	const struct {
		const char *q;
		uint64_t value;
	} quantile[] = {
		{ "0.5", h->p50 }, { "0.9", h->p90 }, { "0.99", h->p99 }, { "0.999", h->p999 }
	};

	for (unsigned i = 0; i < 4; i++) {
		fprintf(out, "%s", name);
		put_labels(out, schema, shot, block, "quantile", quantile[i].q);
		fprintf(out, " %.9g\n", (double)quantile[i].value * factor);
	}
	fprintf(out, "%s_sum", name);
	put_labels(out, schema, shot, block, NULL, NULL);
	fprintf(out, " %.9g\n%s_count", (double)h->sum * factor, name);
	put_labels(out, schema, shot, block, NULL, NULL);
	fprintf(out, " %" PRIu64 "\n", h->count);
}

static void put_head(FILE *out, const char *name, const char *help, const char *type)
{
	fprintf(out, "# HELP %s ", name);
	for (; *help; help++) { /* here only the backslash needs care */
		if (*help == '\\')
			fputc('\\', out);
		fputc(*help, out);
	}
	fprintf(out, "\n# TYPE %s %s\n", name, type);
}

static uint32_t blocks_of(const struct top_shot *shot, uint32_t instance, uint32_t cls)
{
	const struct top_instance *in = &shot->instance[instance];
	uint32_t n = 0;

	for (uint32_t b = 0; b < in->n_blocks; b++)
		n += shot->block[in->first_block + b].cls == cls;
	return n;
}

static void put_row(FILE *out, const struct top_schema *schema, const struct top_shot *shot,
		    uint32_t c, uint32_t r, const bool *skip)
{
	static const char *const types[] = { [EPF_STATS_COUNTER] = "counter",
					     [EPF_STATS_GAUGE] = "gauge",
					     [EPF_STATS_STATE] = "gauge",
					     [EPF_STATS_HISTOGRAM] = "summary" };
	const struct top_row *row = &schema->cls[c].row[r];
	bool headed = false;
	char name[160];

	if (row->type < EPF_STATS_COUNTER || row->type > EPF_STATS_HISTOGRAM)
		return;
	/* Where a time-stamp counter stands is no time. */
	if (row->type == EPF_STATS_GAUGE && !strcmp(row->unit, "cycles"))
		return;
	metric_name(&schema->cls[c], row, name, sizeof(name));
	for (uint32_t b = 0; b < shot->n_blocks; b++) {
		const struct top_block *block = &shot->block[b];
		const struct top_value *v;
		double factor;

		if (block->cls != c || r >= block->n_values || skip[block->instance])
			continue;
		v = &block->value[r];
		factor = factor_of(row, &shot->instance[block->instance]);
		if (!v->known || factor == 0)
			continue;
		if (!headed)
			put_head(out, name, row->help, types[row->type]);
		headed = true;
		if (row->type == EPF_STATS_STATE) {
			put_state(out, schema, shot, block, name, row, v);
		} else if (v->hist) {
			put_hist(out, schema, shot, block, name, v->hist, factor);
		} else {
			fprintf(out, "%s", name);
			put_labels(out, schema, shot, block, NULL, NULL);
			put_number(out, v->number, factor);
		}
	}
}

/* ---- what is not in a block ---- */

static void put_instances(FILE *out, const struct top_shot *shot)
{
	static const struct {
		const char *name, *help;
	} metric[] = {
		{ PREFIX "up", "Whether the engine runs and gives signs of life." },
		{ PREFIX "heartbeat_age_seconds", "Time since the engine's last sign of life." },
		{ PREFIX "links", "Links of the instance that can go up and down." },
		{ PREFIX "links_up", "Of these, those that are up." },
	};

	for (unsigned m = 0; shot->n_instances && m < sizeof(metric) / sizeof(*metric); m++) {
		put_head(out, metric[m].name, metric[m].help, "gauge");
		for (uint32_t i = 0; i < shot->n_instances; i++) {
			const struct top_instance *in = &shot->instance[i];
			bool up = in->alive == EPF_STATS_ALIVE && in->process != 'T' &&
				  in->process != 't';
			double age = in->heartbeat_ns < shot->now_ns
					     ? (double)(shot->now_ns - in->heartbeat_ns) / 1e9
					     : 0;
			bool more = false;

			if (!in->read || (m == 1 && !in->heartbeat_ns))
				continue;
			fprintf(out, "%s{", metric[m].name);
			put_label(out, "instance", in->name, &more);
			fprintf(out, "} %.9g\n",
				m == 0   ? up
				: m == 1 ? age
				: m == 2 ? (double)in->links
					 : (double)in->links_up);
		}
	}
}

/* Whether two waits are in one sample: a name may be several jobs'. */
static bool are_one(const struct top_shot *shot, const struct top_wait *a, const struct top_wait *b)
{
	const struct top_job none = { 0 };
	const struct top_job *x = a->job < shot->n_jobs ? &shot->job[a->job] : &none;
	const struct top_job *y = b->job < shot->n_jobs ? &shot->job[b->job] : &none;

	return x->id == y->id && !strcmp(x->name, y->name) && !strcmp(a->reason, b->reason);
}

/* Number, or longest age, of the waits or causes of a job with one reason. */
static double wait_sum(const struct top_shot *shot, uint32_t at, unsigned metric)
{
	const struct top_wait *like = &shot->wait[at];
	double sum = 0;

	for (uint32_t i = 0; i < shot->n_waits; i++) {
		const struct top_wait *e = &shot->wait[i];

		if (!are_one(shot, e, like))
			continue;
		if (metric == 0)
			sum++;
		else if (metric == 1)
			sum += e->is_cause;
		else if ((double)e->age_ns / 1e9 > sum)
			sum = (double)e->age_ns / 1e9;
	}
	return sum;
}

static void put_waits(FILE *out, const struct top_shot *shot)
{
	static const struct {
		const char *name, *help;
	} metric[] = {
		{ PREFIX "waits",
		  "Things that wait and do not move, by reason; see ep-fabric why." },
		{ PREFIX "wait_causes", "Of these, those that follow from nothing else." },
		{ PREFIX "wait_longest_seconds", "Age of the oldest of them." },
	};

	for (unsigned m = 0; m < sizeof(metric) / sizeof(*metric); m++) {
		put_head(out, metric[m].name, metric[m].help, "gauge");
		for (uint32_t i = 0; i < shot->n_waits; i++) {
			const struct top_wait *e = &shot->wait[i];
			const struct top_job *job =
				e->job < shot->n_jobs ? &shot->job[e->job] : NULL;
			bool more = false, first = true;
			char id[20] = "";

			for (uint32_t k = 0; k < i; k++)
				first = first && !are_one(shot, &shot->wait[k], e);
			if (!first)
				continue;
			if (job && job->id)
				snprintf(id, sizeof(id), "%016" PRIx64, job->id);
			fprintf(out, "%s{", metric[m].name);
			put_label(out, "job", job ? job->name : "", &more);
			put_label(out, "job_id", id, &more);
			put_label(out, "reason", e->reason, &more);
			fprintf(out, "} %.9g\n", wait_sum(shot, i, m));
		}
	}
}

int top_prometheus(FILE *out, const struct top_schema *schema, const struct top_shot *shot,
		   bool peer_labels)
{
	uint32_t left[TOP_MAX_CLASSES] = { 0 };
	bool *skip = calloc(shot->n_instances + 1, sizeof(*skip));

	if (!skip)
		return -ENOMEM;
	put_instances(out, shot);
	put_waits(out, shot);
	for (uint32_t c = 0; c < schema->n_classes; c++) {
		for (uint32_t i = 0; i < shot->n_instances; i++) {
			uint32_t n = blocks_of(shot, i, c);

			skip[i] = !peer_labels && n > TOP_LABELS_MAX;
			left[c] += skip[i] ? n : 0;
		}
		for (uint32_t r = 0; r < schema->cls[c].n_rows; r++)
			put_row(out, schema, shot, c, r, skip);
	}
	put_head(
		out, PREFIX "blocks_left_out",
		"Blocks without metrics: more than 1024 of a kind in an instance; see --peer-labels.",
		"gauge");
	for (uint32_t c = 0; c < schema->n_classes; c++)
		fprintf(out, PREFIX "blocks_left_out{class=\"%s\"} %" PRIu32 "\n",
			schema->cls[c].name, left[c]);
	free(skip);
	return ferror(out) ? -EIO : 0;
}
