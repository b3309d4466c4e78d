/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shot of ep-top (top.h) as JSON, schema epf.top/1: what --once --json prints and a recording consists of. Works on the model alone; load.c is
 * its reverse. Integers are whole; what is not known is null.
 */
#include "tools/top/top.h"

#include <stdlib.h>
#include <string.h>

/* JSON integers are signed here; what does not fit becomes the nearest floating-point number. */
static json_t *num(uint64_t n)
{
	return n > INT64_MAX ? json_real((double)n) : json_integer((json_int_t)n);
}

static json_t *num32(uint32_t n)
{
	return n == TOP_NONE ? json_null() : json_integer(n);
}

static json_t *some(uint64_t n)
{
	return n ? num(n) : json_null();
}

static json_t *value_json(const struct top_row *row, const struct top_value *v)
{
	char text[72];

	if (!v->known)
		return json_null();
	if (v->hist)
		return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "count", num(v->hist->count),
				 "sum", num(v->hist->sum), "min", num(v->hist->min), "p50",
				 num(v->hist->p50), "p90", num(v->hist->p90), "p99",
				 num(v->hist->p99), "p999", num(v->hist->p999), "max",
				 num(v->hist->max));
	if (row->type == EPF_STATS_STATE)
		return json_pack("{s:s,s:o,s:o}", "state",
				 top_state_name(row, v->number, text, sizeof(text)), "number",
				 num(v->number), "since_ns", num(v->since_ns));
	return num(v->number);
}

static json_t *block_json(const struct top_schema *schema, const struct top_block *block)
{
	const struct top_class *cls = &schema->cls[block->cls];
	json_t *labels = json_object(), *values = json_object();

	for (uint32_t i = 0; i < cls->n_labels; i++) {
		const char *text = block->label[i];
		char *end;
		uint64_t n = strtoull(text, &end, 10);
		bool number = cls->is_number[i] && *text && !*end;

		json_object_set_new(labels, cls->label[i],
				    !*text   ? json_null()
				    : number ? num(n)
					     : json_string(text));
	}
	for (uint32_t i = 0; i < block->n_values; i++)
		if (cls->row[i].type != EPF_STATS_EVENTS) /* ep-fabric trace prints those */
			json_object_set_new(values, cls->row[i].name,
					    value_json(&cls->row[i], &block->value[i]));
	return json_pack("{s:s,s:o,s:o}", "class", cls->name, "labels", labels, "values", values);
}

static json_t *instance_json(const struct top_schema *schema, const struct top_shot *shot,
			     const struct top_instance *in)
{
	char process[2] = { in->process, 0 };
	json_t *blocks;

	if (!in->read)
		return json_pack("{s:s,s:s}", "path", in->path, "error", in->error);
	blocks = json_array();
	for (uint32_t b = 0; b < in->n_blocks; b++)
		json_array_append_new(blocks,
				      block_json(schema, &shot->block[in->first_block + b]));
	return json_pack(
		"{s:s,s:s,s:o,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "path", in->path,
		"instance", in->name, "job", *in->job ? json_string(in->job) : json_null(),
		"writer", waits_alive_word(in->alive), "pid", some(in->pid), "process_state",
		in->process ? json_string(process) : json_null(), "tsc_hz", some(in->tsc_hz),
		"created_realtime_ns", num(in->created_realtime_ns), "created_monotonic_ns",
		num(in->created_monotonic_ns), "heartbeat_ns", some(in->heartbeat_ns), "links",
		num(in->links), "links_up", num(in->links_up), "blocks_changing", num(in->changing),
		"version_minor", num(in->minor), "blocks", blocks);
}

static json_t *wait_json(const struct top_shot *shot, const struct top_wait *e)
{
	return json_pack(
		"{s:s,s:s,s:b,s:b,s:o,s:o,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s}",
		"who", e->who, "reason", e->reason, "cause", e->is_cause, "kernel", e->kernel,
		"job", e->job < shot->n_jobs ? json_string(shot->job[e->job].name) : json_null(),
		"job_number", num32(e->job), "instance",
		e->instance < shot->n_instances ? shot->instance[e->instance].name : "",
		"instance_number", num32(e->instance), "rank", num32(e->rank), "peer",
		num32(e->peer), "stream", num32(e->stream), "lane", num32(e->lane), "ring",
		num32(e->ring), "signal", e->has_signal ? num(e->signal) : json_null(), "value",
		num(e->value), "wanted", num(e->least), "deferred", num(e->deferred), "since_ns",
		some(e->since_ns), "follows", num32(e->follows), "consequences",
		num32(e->consequences), "text", e->text);
}

static json_t *waits_json(const struct top_shot *shot)
{
	json_t *list = json_array(), *one;

	for (uint32_t i = 0; i < shot->n_waits; i++) {
		one = wait_json(shot, &shot->wait[i]);
		if (one)
			json_object_set_new(one, "age_ns", some(shot->wait[i].age_ns));
		json_array_append_new(list, one);
	}
	return list;
}

static json_t *jobs_json(const struct top_shot *shot)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < shot->n_jobs; i++) {
		const struct top_job *j = &shot->job[i];

		json_array_append_new(list, json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}",
						      "job", j->name, "id", some(j->id), "world",
						      num32(j->world), "nodes", num32(j->nodes),
						      "ranks_seen", num(j->ranks), "waits_counted",
						      num(j->waits), "waits_hidden", num(j->hidden),
						      "waits_shown", num(j->entries), "causes",
						      num(j->causes)));
	}
	return list;
}

static json_t *schema_json(const struct top_schema *schema)
{
	json_t *classes = json_array();

	for (uint32_t c = 0; c < schema->n_classes; c++) {
		const struct top_class *cls = &schema->cls[c];
		json_t *rows = json_array(), *labels = json_array();

		for (uint32_t i = 0; i < cls->n_labels; i++)
			json_array_append_new(labels, json_pack("{s:s,s:b}", "name", cls->label[i],
								"number", (int)cls->is_number[i]));
		for (uint32_t i = 0; i < cls->n_rows; i++)
			json_array_append_new(
				rows,
				json_pack("{s:s,s:s,s:i,s:s,s:s}", "name", cls->row[i].name, "unit",
					  cls->row[i].unit, "type", (int)cls->row[i].type, "states",
					  cls->row[i].states, "help", cls->row[i].help));
		json_array_append_new(classes,
				      json_pack("{s:s,s:s,s:o,s:o}", "class", cls->name, "help",
						cls->help, "labels", labels, "rows", rows));
	}
	return classes;
}

json_t *top_json(const struct top_schema *schema, const struct top_shot *shot, bool with_schema)
{
	json_t *instances = json_array(), *top;

	for (uint32_t i = 0; i < shot->n_instances; i++)
		json_array_append_new(instances, instance_json(schema, shot, &shot->instance[i]));
	top = json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", "epf.top/1", "host",
			shot->host, "realtime_ns", num(shot->realtime_ns), "now_ns",
			num(shot->now_ns), "least_ns", num(shot->least_ns), "waits",
			waits_json(shot), "jobs", jobs_json(shot), "instances", instances,
			"instances_left_out", num(shot->left_out));
	if (top && with_schema && json_object_set_new(top, "classes", schema_json(schema))) {
		json_decref(top);
		return NULL;
	}
	return top;
}
