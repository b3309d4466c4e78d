/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shot of ep-top (top.h) out of JSON as json.c prints it: for --replay. Every byte of it is foreign: what is missing, of another type
 * or out of range reads as not known, texts are made printable, and indices are checked. It must never trust a count.
 */
#include "tools/top/top.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int say(char *reason, size_t bytes, int rc, const char *text)
{
	if (bytes)
		snprintf(reason, bytes, "%s", text);
	return rc;
}

/* A number as a whole one: 0 below zero, the largest above all. */
static uint64_t whole(const json_t *v)
{
	double d;

	if (json_is_integer(v))
		return json_integer_value(v) < 0 ? 0 : (uint64_t)json_integer_value(v);
	if (!json_is_real(v))
		return 0;
	d = json_real_value(v);
	if (!(d > 0))
		return 0;
	return d >= 18446744073709551615.0 ? UINT64_MAX : (uint64_t)d;
}

static uint64_t num(const json_t *o, const char *key)
{
	return whole(json_object_get(o, key));
}

static uint32_t num32(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < TOP_NONE
		       ? (uint32_t)json_integer_value(v)
		       : TOP_NONE;
}

/* A count: 0 where it is not known. */
static uint32_t count32(const json_t *o, const char *key)
{
	uint32_t n = num32(o, key);

	return n == TOP_NONE ? 0 : n;
}

static void text(char *to, size_t bytes, const json_t *o, const char *key)
{
	top_text(to, bytes, json_string_value(json_object_get(o, key)));
}

/* A name that a metric or a JSON key may be made of. */
static bool is_ident(const char *s)
{
	return s[0] >= 'a' && s[0] <= 'z' &&
	       s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0';
}

static void load_class(struct top_schema *schema, const json_t *from)
{
	const json_t *labels = json_object_get(from, "labels"),
		     *rows = json_object_get(from, "rows");
	struct top_class cls = { 0 };
	uint32_t at;
	size_t i;

	text(cls.name, sizeof(cls.name), from, "class");
	text(cls.help, sizeof(cls.help), from, "help");
	for (i = 0; i < json_array_size(labels) && i < EPF_STATS_MAX_LABELS; i++) {
		const json_t *label = json_array_get(labels, i);

		text(cls.label[i], sizeof(cls.label[i]), label, "name");
		cls.is_number[i] = json_is_true(json_object_get(label, "number"));
		if (!is_ident(cls.label[i]))
			return;
		cls.n_labels++;
	}
	at = is_ident(cls.name) ? top_class_add(schema, &cls) : TOP_NONE;
	for (i = 0; at != TOP_NONE && i < json_array_size(rows); i++) {
		const json_t *r = json_array_get(rows, i);
		struct top_row row = { .type = count32(r, "type") };

		text(row.name, sizeof(row.name), r, "name");
		text(row.unit, sizeof(row.unit), r, "unit");
		text(row.states, sizeof(row.states), r, "states");
		text(row.help, sizeof(row.help), r, "help");
		if (is_ident(row.name))
			top_row_add(schema, at, &row);
	}
}

static bool load_value(struct top_shot *shot, const struct top_row *row, const json_t *from,
		       struct top_value *to)
{
	struct top_hist *h;

	if (row->type == EPF_STATS_HISTOGRAM) {
		if (!json_is_object(from))
			return true;
		h = top_take(shot, 1, sizeof(*h));
		if (!h)
			return false;
		*h = (struct top_hist){ num(from, "count"), num(from, "sum"), num(from, "min"),
					num(from, "max"),   num(from, "p50"), num(from, "p90"),
					num(from, "p99"),   num(from, "p999") };
		*to = (struct top_value){ .number = h->count, .hist = h, .known = true };
	} else if (row->type == EPF_STATS_STATE) {
		if (!json_is_object(from))
			return true;
		*to = (struct top_value){ .number = num(from, "number") & 15,
					  .since_ns = num(from, "since_ns"),
					  .known = true };
	} else if (row->type == EPF_STATS_COUNTER || row->type == EPF_STATS_GAUGE) {
		if (!json_is_number(from))
			return true;
		to->number = whole(from);
		to->known = json_number_value(from) >= 0;
	}
	return true;
}

static bool load_block(const struct top_schema *schema, struct top_shot *shot, const json_t *from)
{
	struct top_block *block = &shot->block[shot->n_blocks];
	const json_t *labels = json_object_get(from, "labels"), *v;
	const json_t *values = json_object_get(from, "values");
	const char *name = json_string_value(json_object_get(from, "class"));
	const struct top_class *cls;

	block->cls = name ? top_class_find(schema, name) : TOP_NONE;
	if (block->cls == TOP_NONE)
		return true;
	cls = &schema->cls[block->cls];
	block->instance = shot->n_instances;
	block->n_values = cls->n_rows;
	block->value = top_take(shot, cls->n_rows, sizeof(*block->value));
	if (!block->value)
		return false;
	for (uint32_t i = 0; i < cls->n_labels; i++) {
		v = json_object_get(labels, cls->label[i]);
		if (json_is_integer(v))
			snprintf(block->label[i], sizeof(block->label[i]), "%lld",
				 (long long)json_integer_value(v));
		else
			top_text(block->label[i], sizeof(block->label[i]), json_string_value(v));
	}
	for (uint32_t i = 0; i < cls->n_rows; i++) {
		v = json_object_get(values, cls->row[i].name);
		if (v && !load_value(shot, &cls->row[i], v, &block->value[i]))
			return false;
	}
	shot->n_blocks++;
	return true;
}

static enum epf_stats_alive alive_of(const char *word)
{
	for (unsigned i = 0; word && i <= EPF_STATS_ENDED; i++)
		if (!strcmp(word, waits_alive_word((enum epf_stats_alive)i)))
			return (enum epf_stats_alive)i;
	return EPF_STATS_UNKNOWN;
}

static bool load_instance(const struct top_schema *schema, struct top_shot *shot,
			  const json_t *from)
{
	struct top_instance *in = &shot->instance[shot->n_instances];
	const json_t *blocks = json_object_get(from, "blocks");
	const char *state = json_string_value(json_object_get(from, "process_state"));

	text(in->path, sizeof(in->path), from, "path");
	text(in->error, sizeof(in->error), from, "error");
	in->read = json_is_array(blocks);
	text(in->name, sizeof(in->name), from, "instance");
	text(in->job, sizeof(in->job), from, "job");
	in->alive = alive_of(json_string_value(json_object_get(from, "writer")));
	in->process = state && *state >= 'A' && *state <= 'z' ? *state : 0;
	in->pid = num(from, "pid");
	in->tsc_hz = num(from, "tsc_hz");
	in->created_realtime_ns = num(from, "created_realtime_ns");
	in->created_monotonic_ns = num(from, "created_monotonic_ns");
	in->heartbeat_ns = num(from, "heartbeat_ns");
	in->links = count32(from, "links");
	in->links_up = count32(from, "links_up");
	in->changing = count32(from, "blocks_changing");
	in->minor = count32(from, "version_minor");
	in->first_block = shot->n_blocks;
	for (size_t b = 0; b < json_array_size(blocks); b++)
		if (!load_block(schema, shot, json_array_get(blocks, b)))
			return false;
	in->n_blocks = shot->n_blocks - in->first_block;
	shot->n_instances++;
	return true;
}

/* An index into a list; TOP_NONE where it is none. */
static uint32_t index_of(const json_t *o, const char *key, size_t n)
{
	uint32_t at = num32(o, key);

	return at < n ? at : TOP_NONE;
}

static void load_wait(const struct top_shot *shot, const json_t *from, size_t n,
		      struct top_wait *to)
{
	text(to->who, sizeof(to->who), from, "who");
	text(to->reason, sizeof(to->reason), from, "reason");
	text(to->text, sizeof(to->text), from, "text");
	to->is_cause = json_is_true(json_object_get(from, "cause"));
	to->kernel = json_is_true(json_object_get(from, "kernel"));
	to->job = index_of(from, "job_number", shot->n_jobs);
	to->instance = index_of(from, "instance_number", shot->n_instances);
	to->rank = num32(from, "rank");
	to->peer = num32(from, "peer");
	to->stream = num32(from, "stream");
	to->lane = num32(from, "lane");
	to->ring = num32(from, "ring");
	to->has_signal = json_is_integer(json_object_get(from, "signal"));
	to->signal = num(from, "signal");
	to->value = num(from, "value");
	to->least = num(from, "wanted");
	to->deferred = num(from, "deferred");
	to->since_ns = num(from, "since_ns");
	to->age_ns = num(from, "age_ns");
	to->follows = index_of(from, "follows", n);
	to->consequences = count32(from, "consequences");
}

static bool load_lists(struct top_shot *shot, const json_t *jobs, const json_t *waits)
{
	size_t n_jobs = json_array_size(jobs), n_waits = json_array_size(waits);

	shot->job = top_take(shot, n_jobs, sizeof(*shot->job));
	shot->wait = top_take(shot, n_waits, sizeof(*shot->wait));
	if (!shot->job || !shot->wait)
		return false;
	for (size_t i = 0; i < n_jobs; i++) {
		const json_t *from = json_array_get(jobs, i);
		struct top_job *to = &shot->job[i];

		text(to->name, sizeof(to->name), from, "job");
		to->id = num(from, "id");
		to->world = num32(from, "world");
		to->nodes = num32(from, "nodes");
		to->ranks = count32(from, "ranks_seen");
		to->waits = num(from, "waits_counted");
		to->hidden = num(from, "waits_hidden");
		to->entries = count32(from, "waits_shown");
		to->causes = count32(from, "causes");
	}
	shot->n_jobs = (uint32_t)n_jobs;
	for (size_t i = 0; i < n_waits; i++)
		load_wait(shot, json_array_get(waits, i), n_waits, &shot->wait[i]);
	shot->n_waits = (uint32_t)n_waits;
	return true;
}

static bool load_shot(struct top_schema *schema, const json_t *top, struct top_shot *shot)
{
	const json_t *instances = json_object_get(top, "instances");
	size_t blocks = 0, n = json_array_size(instances);

	for (size_t i = 0; i < n; i++)
		blocks += json_array_size(json_object_get(json_array_get(instances, i), "blocks"));
	shot->instance = top_take(shot, n, sizeof(*shot->instance));
	shot->block = top_take(shot, blocks, sizeof(*shot->block));
	if (!shot->instance || !shot->block)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!load_instance(schema, shot, json_array_get(instances, i)))
			return false;
	return load_lists(shot, json_object_get(top, "jobs"), json_object_get(top, "waits"));
}

int top_load(struct top_schema *schema, const json_t *top, struct top_shot **out, char *reason,
	     size_t reason_bytes)
{
	const char *version = json_string_value(json_object_get(top, "schema"));
	const json_t *classes = json_object_get(top, "classes");
	struct top_shot *shot;

	if (!version || strcmp(version, "epf.top/1") != 0)
		return say(reason, reason_bytes, -EBADMSG, "not an object of schema epf.top/1");
	for (size_t i = 0; i < json_array_size(classes); i++)
		load_class(schema, json_array_get(classes, i));
	shot = top_shot_new();
	if (!shot)
		return say(reason, reason_bytes, -ENOMEM, "out of memory");
	text(shot->host, sizeof(shot->host), top, "host");
	shot->realtime_ns = num(top, "realtime_ns");
	shot->now_ns = num(top, "now_ns");
	shot->least_ns = num(top, "least_ns");
	shot->left_out = count32(top, "instances_left_out");
	if (!load_shot(schema, top, shot)) {
		top_shot_free(shot);
		return say(reason, reason_bytes, -ENOMEM, "out of memory");
	}
	*out = shot;
	return 0;
}
