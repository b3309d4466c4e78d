/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric trace`: the flight recorders of instances, living or dead, in the JSON format of Chrome's trace viewer and Perfetto. Each
 * instance is a process there and each engine core a thread. It reads files alone; what is in them is foreign: an event counts
 * only if its number fits its place.
 */
#include "tools/cli/read.h"
#include "tools/cli/tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One recorder, copied by the reader. */
struct recorder {
	uint64_t clock_tsc, clock_ns, written, hz;
	uint32_t places;
	const struct epf_flight_event *events;
	uint32_t process; /* in the trace */
	uint64_t core;
};

/* Names of kinds of events, and of their numbers id, sub, x, y, b; NULL: it has none. */
static const struct {
	const char *name, *id, *sub, *x, *y, *b;
} kinds[] = {
	[EPF_FLIGHT_DEQUEUE] = { "take", "ring", NULL, "commands", NULL, "first" },
	[EPF_FLIGHT_STEP] = { "step", NULL, NULL, "handled", "arrived", NULL },
	[EPF_FLIGHT_DEFER] = { "defer", "stream", NULL, "rank", "lane", "number" },
	[EPF_FLIGHT_BLOCK] = { "ring blocked", "ring", NULL, "rank", "stream", "number" },
	[EPF_FLIGHT_FLUSH] = { "flush", "ring", NULL, NULL, NULL, "number" },
	[EPF_FLIGHT_FLUSHED] = { "flush", "ring", NULL, "lost_rank", NULL, "number" },
	[EPF_FLIGHT_LANE_ERROR] = { "lane error", "lane", "status", "rank", "index", NULL },
	[EPF_FLIGHT_LANE_MOVED] = { "lane moved", "lane", NULL, "rank", "index", "pause_ns" },
	[EPF_FLIGHT_LANE_UP] = { "lane up", "lane", NULL, "rank", "index", NULL },
	[EPF_FLIGHT_NODE_DOWN] = { "node down", "rank", "status", "cause", NULL, NULL },
	[EPF_FLIGHT_PEER] = { "peer", "rank", "state", "cause", "epoch", NULL },
	[EPF_FLIGHT_WAIT] = { "wait", "object", NULL, "rank", NULL, "since_ns" },
};

/* Ticks as microseconds, what the format counts in. */
static double ticks_us(const struct recorder *r, int64_t ticks)
{
	return (double)ticks * 1e6 / (double)r->hz;
}

static void give(json_t *args, const char *name, uint64_t n)
{
	if (name && n != UINT32_MAX)
		json_object_set_new(args, name, read_num(n));
}

static json_t *event_json(const struct recorder *r, const struct epf_flight_event *e)
{
	unsigned kind = e->what & 0xff, sub = e->what >> 8 & 0xff;
	uint32_t id = (uint32_t)(e->what >> 32), x = (uint32_t)e->xy, y = (uint32_t)(e->xy >> 32);
	bool known = kind < sizeof(kinds) / sizeof(kinds[0]) && kinds[kind].name;
	double at = (double)r->clock_ns / 1e3 + ticks_us(r, (int64_t)(e->tsc - r->clock_tsc));
	json_t *args = json_object(), *one;
	char name[64];

	if (kind == EPF_FLIGHT_WAIT)
		snprintf(name, sizeof(name), "wait: %s", waits_reason_word(sub));
	else if (known)
		snprintf(name, sizeof(name), "%s", kinds[kind].name);
	else
		snprintf(name, sizeof(name), "event %u", kind);
	if (known) {
		give(args, kinds[kind].id, id);
		give(args, kinds[kind].sub, sub);
		give(args, kinds[kind].x, x);
		give(args, kinds[kind].y, y);
		give(args, kinds[kind].b, e->b);
	}
	one = json_pack("{s:s,s:s,s:f,s:o,s:o,s:o}", "name", name, "ph",
			kind == EPF_FLIGHT_STEP && e->b ? "X"
			: kind == EPF_FLIGHT_FLUSH      ? "b"
			: kind == EPF_FLIGHT_FLUSHED    ? "e"
							: "i",
			"ts", at, "pid", read_num(r->process), "tid", read_num(r->core), "args",
			args);
	if (kind == EPF_FLIGHT_STEP && e->b) {
		json_object_set_new(one, "dur", json_real(ticks_us(r, (int64_t)e->b)));
	} else if (kind == EPF_FLIGHT_FLUSH || kind == EPF_FLIGHT_FLUSHED) {
		snprintf(name, sizeof(name), "%" PRIu32 ".%" PRIu32 ".%" PRIu64, r->process, id,
			 e->b);
		json_object_set_new(one, "id", json_string(name));
		json_object_set_new(one, "cat", json_string("flush"));
	} else {
		json_object_set_new(one, "s", json_string("t"));
	}
	return one;
}

/* The events in their order; those that may be torn are left out. */
static void add_events(json_t *list, const struct recorder *r, bool living)
{
	uint64_t kept = r->written < r->places ? r->written : r->places, from = r->written - kept;

	if (living && kept > r->places - EPF_FLIGHT_MARGIN)
		from = r->written - r->places + EPF_FLIGHT_MARGIN;
	for (uint64_t n = from; n < r->written; n++) {
		const struct epf_flight_event *e = &r->events[n % r->places];

		if ((e->what >> 16 & 0xffff) == (n & 0xffff) && (e->what & 0xff))
			json_array_append_new(list, event_json(r, e));
	}
}

static uint64_t row(const struct epf_stats_reader *reader, unsigned block, const char *name,
		    struct epf_stats_value *v)
{
	const struct epf_stats_entry *e = epf_stats_reader_block(reader, block);
	const struct epf_stats_row *desc;

	memset(v, 0, sizeof(*v));
	for (unsigned i = 0; (desc = epf_stats_reader_row(reader, e->class_index, i)); i++)
		if (!strcmp(desc->name, name)) {
			epf_stats_reader_value(reader, block, i, v);
			break;
		}
	return v->known ? v->number : 0;
}

static void name_it(json_t *list, const char *what, uint64_t process, uint64_t core,
		    const char *name)
{
	json_array_append_new(list, json_pack("{s:s,s:s,s:o,s:o,s:{s:s}}", "name", what, "ph", "M",
					      "pid", read_num(process), "tid", read_num(core),
					      "args", "name", name));
}

/* The recorders of one instance: their number. */
static unsigned add_instance(json_t *list, const struct waits_instance *in, uint32_t process)
{
	const struct epf_stats_reader *reader = in->reader;
	const struct epf_stats_info *info = epf_stats_reader_info(reader);
	struct epf_stats_value v;
	unsigned found = 0;
	char name[128];

	snprintf(name, sizeof(name), "%s, process %" PRIu64, in->name, in->pid);
	name_it(list, "process_name", process, 0, name);
	for (unsigned b = 0; b < info->block_count; b++) {
		const struct epf_stats_entry *e = epf_stats_reader_block(reader, b);
		struct recorder r = { .process = process, .hz = info->tsc_hz };

		if (strcmp(epf_stats_reader_class(reader, e->class_index)->name, "flight") != 0)
			continue;
		r.core = strtoull(e->label[0], NULL, 10);
		r.clock_tsc = row(reader, b, "clock_tsc", &v);
		r.clock_ns = row(reader, b, "clock_ns", &v);
		r.written = row(reader, b, "written", &v);
		r.places = (uint32_t)row(reader, b, "events", &v);
		r.events = v.events;
		if (!r.events || !r.places || !r.hz || r.places <= EPF_FLIGHT_MARGIN)
			continue;
		snprintf(name, sizeof(name), "core %" PRIu64, r.core);
		name_it(list, "thread_name", process, r.core, name);
		add_events(list, &r, in->alive != EPF_STATS_DEAD && in->alive != EPF_STATS_ENDED);
		found++;
	}
	return found;
}

static unsigned print_trace(const struct read_request *req)
{
	json_t *list = json_array();
	unsigned found = 0;
	char text[80];

	for (uint32_t i = 0; i < req->w->n_instances; i++)
		if (req->w->instance[i].reader && !req->w->instance[i].left_out)
			found += add_instance(list, &req->w->instance[i], i + 1);
	if (req->w->n_instances == req->w->n_left_out)
		fprintf(stderr, "%s: %s\n", req->what,
			waits_nobody(req->w->n_left_out, text, sizeof(text)));
	else if (!found)
		fprintf(stderr, "%s: no instance with a flight recorder\n", req->what);
	return !found +
	       read_print_json(json_pack("{s:s,s:o}", "displayTimeUnit", "ns", "traceEvents", list),
			       JSON_COMPACT);
}

int epf_tool_trace(int argc, char **argv)
{
	static const struct argp_option options[] = { READ_OPTIONS, { 0 } };

	return read_run(
		options,
		"Print the flight recorders of instances as JSON for ui.perfetto.dev and "
		"chrome://tracing: the last events of each engine core, of all instances in "
		"the statistics directory or of those named. A name with a slash is a file; "
		"the file of an instance that has exited still has its last events, which "
		"are printed if it is named, or with --dead.",
		0, print_trace, argc, argv);
}
