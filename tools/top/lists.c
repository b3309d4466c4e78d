/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of ep-top that are not one line a block (columns.h): waits, the stuck first; jobs, summed over their engines; instances,
 * the dead with their final snapshot. Works on the model alone.
 */
#include "tools/top/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const struct top_column_spec top_wait_columns[] = {
	{ "WHAT", NULL, NULL, SHOW_TEXT },     { "WHO", NULL, NULL, SHOW_TEXT },
	{ "RANK", NULL, NULL, SHOW_COUNT },    { "PEER", NULL, NULL, SHOW_COUNT },
	{ "STREAM", NULL, NULL, SHOW_COUNT },  { "LANE", NULL, NULL, SHOW_COUNT },
	{ "RING", NULL, NULL, SHOW_COUNT },    { "REASON", NULL, NULL, SHOW_TEXT },
	{ "SINCE", NULL, NULL, SHOW_COUNT },   { "BEHIND", NULL, NULL, SHOW_COUNT },
	{ "INSTANCE", NULL, NULL, SHOW_TEXT }, { "JOB", NULL, NULL, SHOW_TEXT },
	{ NULL, NULL, NULL, SHOW_TEXT },
};

const struct top_column_spec top_job_columns[] = {
	{ "JOB", NULL, NULL, SHOW_TEXT },     { "WORLD", NULL, NULL, SHOW_COUNT },
	{ "NODES", NULL, NULL, SHOW_COUNT },  { "SEEN", NULL, NULL, SHOW_COUNT },
	{ "LOST", NULL, NULL, SHOW_COUNT },   { "RINGS", NULL, NULL, SHOW_COUNT },
	{ "LANES", NULL, NULL, SHOW_COUNT },  { "COMMANDS", NULL, NULL, SHOW_COUNT },
	{ "BYTES", NULL, NULL, SHOW_COUNT },  { "WAITS", NULL, NULL, SHOW_COUNT },
	{ "CAUSES", NULL, NULL, SHOW_COUNT }, { "HIDDEN", NULL, NULL, SHOW_COUNT },
	{ "ID", NULL, NULL, SHOW_TEXT },      { NULL, NULL, NULL, SHOW_TEXT },
};

const struct top_column_spec top_instance_columns[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "WRITER", NULL, NULL, SHOW_TEXT },
	{ "PID", NULL, NULL, SHOW_COUNT },         { "PROC", NULL, NULL, SHOW_TEXT },
	{ "BEAT", NULL, NULL, SHOW_TEXT },         { "UPTIME", NULL, NULL, SHOW_TEXT },
	{ "LINKS", NULL, NULL, SHOW_TEXT },        { "BLOCKS", NULL, NULL, SHOW_COUNT },
	{ "VERSION", NULL, NULL, SHOW_TEXT },      { "FILE", NULL, NULL, SHOW_TEXT },
	{ NULL, NULL, NULL, SHOW_TEXT },
};

static void maybe(struct top_cell *cell, uint32_t n)
{
	if (n == TOP_NONE) {
		top_cell_text(cell, "-");
		return;
	}
	top_cell_number(cell, n);
}

static void wait_line(struct top_line *line, const struct top_shot *now, const struct top_wait *e,
		      uint32_t at)
{
	struct top_cell *cell = line->cell;

	line->wait = e;
	line->tail = e->text;
	line->colour = e->is_cause ? TOP_BAD : TOP_PLAIN;
	if (e->instance < now->n_instances)
		line->instance = &now->instance[e->instance];
	/* The first character groups causes when sorted by it. */
	top_cell_text(&cell[0], e->is_cause              ? "CAUSE"
				: e->follows != TOP_NONE ? "follows"
							 : "waits");
	top_cell_text(&cell[1], e->kernel ? "kernel" : e->who);
	maybe(&cell[2], e->rank);
	maybe(&cell[3], e->peer);
	maybe(&cell[4], e->stream);
	maybe(&cell[5], e->lane);
	maybe(&cell[6], e->ring);
	top_cell_text(&cell[7], e->reason);
	if (e->age_ns) {
		top_format_age(e->age_ns, cell[8].text, sizeof(cell[8].text));
		cell[8].key = (double)e->age_ns;
		cell[8].is_number = true;
	} else {
		top_cell_text(&cell[8], "-");
	}
	top_cell_number(&cell[9], e->consequences);
	if (line->instance)
		snprintf(cell[10].text, sizeof(cell[10].text), "%.46s", line->instance->name);
	if (e->job < now->n_jobs)
		top_cell_text(&cell[11], now->job[e->job].name);
	snprintf(line->id, sizeof(line->id), "%s/%s/%s/%s/%s/%s/%s/%s/%" PRIu32, e->who,
		 cell[2].text, cell[3].text, cell[4].text, cell[5].text, cell[6].text, e->reason,
		 cell[10].text, e->since_ns ? 0 : at);
}

void top_wait_lines(struct top_table *table, const struct top_view_from *from)
{
	for (uint32_t i = 0; i < from->now->n_waits; i++) {
		struct top_line *line = top_table_push(table);

		if (line)
			wait_line(line, from->now, &from->now->wait[i], i);
	}
}

/* ---- jobs ---- */

struct job_sum {
	uint64_t rings, lanes, lost, hidden, commands, bytes;
	bool known; /* an engine of it is there */
};

static uint64_t number(const struct top_schema *schema, const struct top_block *block,
		       const char *row)
{
	const struct top_value *v = top_value_of(schema, block, row);

	return v ? v->number : 0;
}

/* The core with this number in the instance of a job's block. */
static void add_core(const struct top_schema *schema, const struct top_shot *shot,
		     const struct top_block *of, uint32_t core, struct job_sum *sum)
{
	const struct top_instance *in = &shot->instance[of->instance];

	for (uint32_t b = 0; b < in->n_blocks; b++) {
		const struct top_block *block = &shot->block[in->first_block + b];

		if (block->cls != core || strcmp(top_label_of(schema, block, "core"),
						 top_label_of(schema, of, "core")) != 0)
			continue;
		sum->commands += number(schema, block, "cmds_dequeued");
		sum->bytes += number(schema, block, "put_bytes_remote_node") +
			      number(schema, block, "put_bytes_same_node") +
			      number(schema, block, "get_bytes");
	}
}

static struct job_sum sum_job(const struct top_schema *schema, const struct top_shot *shot,
			      const struct top_job *job)
{
	uint32_t core = top_class_find(schema, "core");
	struct job_sum sum = { 0 };

	for (uint32_t b = 0; shot && b < shot->n_blocks; b++) {
		const struct top_block *block = &shot->block[b];
		uint64_t lost;

		if (!top_job_has(schema, job, block))
			continue;
		sum.known = true;
		sum.rings += number(schema, block, "rings");
		sum.lanes += number(schema, block, "lanes");
		sum.hidden += number(schema, block, "ranks_hidden") +
			      number(schema, block, "rings_hidden") +
			      number(schema, block, "lanes_hidden") +
			      number(schema, block, "peers_hidden");
		lost = number(schema, block, "ranks_lost"); /* all engines lose the same ones */
		sum.lost = lost > sum.lost ? lost : sum.lost;
		add_core(schema, shot, block, core, &sum);
	}
	return sum;
}

static void job_line(struct top_line *line, const struct top_view_from *from,
		     const struct top_job *job)
{
	struct job_sum sum = sum_job(from->schema, from->now, job);
	struct job_sum was = sum_job(from->schema, from->before, job);
	struct top_cell *cell = line->cell;

	line->job = job;
	snprintf(line->id, sizeof(line->id), "%s/%" PRIu64, job->name, job->id);
	top_cell_text(&cell[0], job->name);
	maybe(&cell[1], job->world);
	maybe(&cell[2], job->nodes);
	top_cell_number(&cell[3], job->ranks);
	top_cell_number(&cell[4], sum.lost);
	cell[4].colour = sum.lost ? TOP_BAD : TOP_PLAIN;
	top_cell_number(&cell[5], sum.rings);
	top_cell_number(&cell[6], sum.lanes);
	top_cell_counter(from, &cell[7], sum.commands, was.known, was.commands, false);
	top_cell_counter(from, &cell[8], sum.bytes, was.known, was.bytes, true);
	top_cell_number(&cell[9], job->entries);
	cell[9].colour = job->entries ? TOP_WARN : TOP_PLAIN;
	top_cell_number(&cell[10], job->causes);
	cell[10].colour = job->causes ? TOP_BAD : TOP_PLAIN;
	top_cell_number(&cell[11], sum.hidden + job->hidden);
	snprintf(cell[12].text, sizeof(cell[12].text), "%016" PRIx64, job->id);
}

void top_job_lines(struct top_table *table, const struct top_view_from *from)
{
	for (uint32_t i = 0; i < from->now->n_jobs; i++) {
		struct top_line *line = top_table_push(table);

		if (line)
			job_line(line, from, &from->now->job[i]);
	}
}

/* ---- instances ---- */

static void instance_line(struct top_line *line, const struct top_shot *now,
			  const struct top_instance *in)
{
	bool over = in->alive == EPF_STATS_DEAD || in->alive == EPF_STATS_ENDED;
	struct top_cell *cell = line->cell;

	line->instance = in;
	snprintf(line->id, sizeof(line->id), "%.190s", in->path);
	line->tail = in->read ? NULL : in->error;
	for (unsigned c = 0; c < 9; c++)
		top_cell_text(&cell[c], "-");
	snprintf(cell[9].text, sizeof(cell[9].text), "%.46s",
		 strrchr(in->path, '/') ? strrchr(in->path, '/') + 1 : in->path);
	if (!in->read) {
		top_cell_text(&cell[1], "unreadable");
		line->colour = TOP_BAD;
		return;
	}
	line->colour = over ? TOP_DIM : TOP_PLAIN;
	snprintf(cell[0].text, sizeof(cell[0].text), "%.46s", in->name);
	top_cell_text(&cell[1], waits_alive_word(in->alive));
	cell[1].colour = in->alive == EPF_STATS_ALIVE ? TOP_GOOD : over ? TOP_DIM : TOP_WARN;
	if (in->pid)
		top_cell_number(&cell[2], in->pid);
	if (in->process)
		snprintf(cell[3].text, sizeof(cell[3].text), "%c", in->process);
	if (in->process == 'T' || in->process == 't')
		cell[3].colour = TOP_BAD;
	if (in->heartbeat_ns && in->heartbeat_ns <= now->now_ns)
		top_format_age(now->now_ns - in->heartbeat_ns, cell[4].text, sizeof(cell[4].text));
	if (in->created_monotonic_ns)
		top_format_age(top_age(now, in, in->created_monotonic_ns), cell[5].text,
			       sizeof(cell[5].text));
	snprintf(cell[6].text, sizeof(cell[6].text), "%" PRIu32 "/%" PRIu32, in->links_up,
		 in->links);
	cell[6].colour = in->links_up < in->links ? TOP_BAD : TOP_PLAIN;
	top_cell_number(&cell[7], in->n_blocks);
	snprintf(cell[8].text, sizeof(cell[8].text), "%u.%" PRIu32, EPF_STATS_VERSION_MAJOR,
		 in->minor);
}

void top_instance_lines(struct top_table *table, const struct top_view_from *from)
{
	for (uint32_t i = 0; i < from->now->n_instances; i++) {
		struct top_line *line = top_table_push(table);

		if (line)
			instance_line(line, from->now, &from->now->instance[i]);
	}
}
