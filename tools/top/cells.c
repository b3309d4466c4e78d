/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cell of a table of ep-top out of one block (columns.h). What is not known is "-". Totals are printed whole, so that they can be
 * compared with --json; rates are rounded.
 */
#include "tools/top/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 12 };

void top_cell_text(struct top_cell *cell, const char *text)
{
	snprintf(cell->text, sizeof(cell->text), "%s", text);
}

void top_cell_number(struct top_cell *cell, uint64_t n)
{
	snprintf(cell->text, sizeof(cell->text), "%" PRIu64, n);
	cell->key = (double)n;
	cell->is_number = true;
}

void top_cell_counter(const struct top_view_from *from, struct top_cell *cell, uint64_t n,
		      bool has_was, uint64_t was, bool bytes)
{
	if (from->look->totals || from->seconds <= 0) {
		top_cell_number(cell, n);
		return;
	}
	if (!has_was) {
		top_cell_text(cell, "-");
		return;
	}
	cell->key = (double)top_growth(n, was) / from->seconds;
	cell->is_number = true;
	top_format_rate(cell->key, bytes, cell->text, sizeof(cell->text));
}

uint64_t top_age(const struct top_shot *now, const struct top_instance *in, uint64_t since_ns)
{
	uint64_t until = now->now_ns;

	if ((in->alive == EPF_STATS_DEAD || in->alive == EPF_STATS_ENDED) && in->heartbeat_ns &&
	    in->heartbeat_ns < until)
		until = in->heartbeat_ns;
	return until > since_ns ? until - since_ns : 0;
}

static const struct top_row *row_of(const struct top_view_from *from, const struct top_block *block,
				    const char *name)
{
	const struct top_class *cls = &from->schema->cls[block->cls];
	uint32_t at = top_row_find(cls, name);

	return at == TOP_NONE ? NULL : &cls->row[at];
}

static void label_cell(const struct top_view_from *from, const struct top_block *block,
		       const char *name, struct top_cell *cell)
{
	const char *text = top_label_of(from->schema, block, name);
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	top_cell_text(cell, *text ? text : "-");
	if (*text && !*end) {
		cell->key = -(double)n; /* ascending */
		cell->is_number = true;
	}
}

static void state_cell(const struct top_view_from *from, const struct top_line *line,
		       const struct top_column_spec *spec, const struct top_value *v,
		       struct top_cell *cell)
{
	const struct top_row *row = row_of(from, line->block, spec->row);
	char name[72], age[24];

	top_state_name(row, v->number, name, sizeof(name));
	if (spec->show == SHOW_WAIT && v->number == EPF_STATS_WAIT_NONE) {
		cell->text[0] = '\0';
		return;
	}
	if (spec->show == SHOW_WAIT) {
		cell->key = (double)top_age(from->now, line->instance, v->since_ns);
		cell->is_number = true;
		snprintf(cell->text, sizeof(cell->text), "%.24s %s", name,
			 top_format_age((uint64_t)cell->key, age, sizeof(age)));
		cell->colour = cell->key >= (double)WAITS_LEAST_NS ? TOP_BAD : TOP_WARN;
		return;
	}
	snprintf(cell->text, sizeof(cell->text), "%.40s", name);
	cell->colour = !strcmp(name, "up")       ? TOP_GOOD
		       : !strcmp(name, "down")   ? TOP_BAD
		       : !strcmp(name, "failed") ? TOP_BAD
						 : TOP_WARN;
}

static void busy_cell(const struct top_view_from *from, const struct top_line *line, bool bar,
		      struct top_cell *cell)
{
	double busy = top_busy(from->schema, from->now, from->before, line->block);

	if (bar) {
		top_format_bar(busy, BAR, cell->text, sizeof(cell->text));
	} else if (busy < 0) {
		top_cell_text(cell, "-");
		return;
	} else {
		snprintf(cell->text, sizeof(cell->text), "%.1f%%", busy * 100);
	}
	cell->key = busy;
	cell->is_number = busy >= 0;
	cell->colour = busy > 0.9 ? TOP_WARN : busy >= 0 ? TOP_GOOD : TOP_PLAIN;
}

static void of_cell(const struct top_view_from *from, const struct top_line *line,
		    const struct top_column_spec *spec, const struct top_value *v,
		    struct top_cell *cell)
{
	const struct top_value *all = top_value_of(from->schema, line->block, spec->other);
	double share = all && all->number ? (double)v->number / (double)all->number : -1;
	bool is_fill = spec->show == SHOW_OF_BAR || strcmp(spec->row, "links_up") != 0;

	if (spec->show == SHOW_OF_BAR)
		top_format_bar(share, BAR, cell->text, sizeof(cell->text));
	else if (all)
		snprintf(cell->text, sizeof(cell->text), "%" PRIu64 "/%" PRIu64, v->number,
			 all->number);
	else
		snprintf(cell->text, sizeof(cell->text), "%" PRIu64, v->number);
	cell->key = share;
	cell->is_number = share >= 0;
	if (is_fill)
		cell->colour = share >= 1 ? TOP_BAD : share > 0.75 ? TOP_WARN : TOP_PLAIN;
	else
		cell->colour = share < 1 ? TOP_BAD : TOP_PLAIN;
}

static void number_cell(const struct top_view_from *from, const struct top_line *line,
			const struct top_column_spec *spec, const struct top_value *v,
			struct top_cell *cell)
{
	const struct top_row *row = row_of(from, line->block, spec->row);
	const struct top_block *was =
		from->before ? top_block_in(from->before, from->now, line->block) : NULL;
	const struct top_value *old = was ? top_value_of(from->schema, was, spec->row) : NULL;

	if (row->type != EPF_STATS_COUNTER) {
		top_cell_number(cell, v->number);
		return;
	}
	top_cell_counter(from, cell, v->number, old != NULL, old ? old->number : 0,
			 !strcmp(row->unit, "bytes"));
}

static void ns_cell(uint64_t ns, struct top_cell *cell)
{
	cell->key = (double)ns;
	cell->is_number = true;
	if (ns < 1000)
		snprintf(cell->text, sizeof(cell->text), "%" PRIu64 "ns", ns);
	else if (ns < 1000000)
		snprintf(cell->text, sizeof(cell->text), "%.1fus", (double)ns / 1e3);
	else if (ns < 1000000000)
		snprintf(cell->text, sizeof(cell->text), "%.1fms", (double)ns / 1e6);
	else
		top_format_age(ns, cell->text, sizeof(cell->text));
}

/* Of a counter of ns: the share of the time since the reading before; without one, or as a total, the time. */
static void share_cell(const struct top_view_from *from, const struct top_line *line,
		       const struct top_column_spec *spec, const struct top_value *v,
		       struct top_cell *cell)
{
	const struct top_block *was =
		from->before ? top_block_in(from->before, from->now, line->block) : NULL;
	const struct top_value *old = was ? top_value_of(from->schema, was, spec->row) : NULL;

	if (!old || from->look->totals || from->seconds <= 0) {
		ns_cell(v->number, cell);
	} else {
		cell->key = (double)top_growth(v->number, old->number) / 1e9 / from->seconds;
		cell->is_number = true;
		snprintf(cell->text, sizeof(cell->text), "%.1f%%", 100 * cell->key);
	}
	cell->colour = cell->key > 0 ? TOP_WARN : TOP_PLAIN;
}

static void value_cell(const struct top_view_from *from, const struct top_line *line,
		       const struct top_column_spec *spec, const struct top_value *v,
		       struct top_cell *cell)
{
	const struct top_value *wait;

	switch (spec->show) {
	case SHOW_NUMBER:
		number_cell(from, line, spec, v, cell);
		break;
	case SHOW_BAD:
		top_cell_number(cell, v->number);
		cell->colour = v->number ? TOP_WARN : TOP_PLAIN;
		break;
	case SHOW_STATE:
	case SHOW_WAIT:
		state_cell(from, line, spec, v, cell);
		break;
	case SHOW_IF_WAITS:
	case SHOW_BY:
		wait = top_value_of(from->schema, line->block, spec->other);
		cell->text[0] = '\0';
		if (!wait || wait->number == EPF_STATS_WAIT_NONE)
			break;
		if (spec->show == SHOW_BY)
			top_cell_text(cell, v->number ? "kernel" : "thread");
		else
			top_cell_number(cell, v->number);
		break;
	case SHOW_OF:
	case SHOW_OF_BAR:
		of_cell(from, line, spec, v, cell);
		break;
	case SHOW_P99:
		if (v->hist && v->hist->count)
			ns_cell(v->hist->p99, cell);
		break;
	case SHOW_NS:
		ns_cell(v->number, cell);
		break;
	case SHOW_SHARE:
		share_cell(from, line, spec, v, cell);
		break;
	case SHOW_AGO:
		ns_cell(top_age(from->now, line->instance, v->number), cell);
		break;
	default:
		top_cell_number(cell, v->number);
		break;
	}
}

void top_cell_make(const struct top_view_from *from, const struct top_line *line,
		   const struct top_column_spec *spec, struct top_cell *cell)
{
	const struct top_value *v;

	if (spec->show == SHOW_INSTANCE) {
		snprintf(cell->text, sizeof(cell->text), "%.46s", line->instance->name);
	} else if (spec->show == SHOW_LABEL) {
		label_cell(from, line->block, spec->row, cell);
	} else if (spec->show == SHOW_BUSY || spec->show == SHOW_BUSY_BAR) {
		busy_cell(from, line, spec->show == SHOW_BUSY_BAR, cell);
	} else {
		v = top_value_of(from->schema, line->block, spec->row);
		top_cell_text(cell, spec->show == SHOW_IF_WAITS ? "" : "-");
		if (v)
			value_cell(from, line, spec, v, cell);
	}
}

struct top_line *top_table_push(struct top_table *table)
{
	struct top_line *bigger;

	if (table->n_lines == table->room) {
		uint32_t room = table->room ? 2 * table->room : 64;

		bigger = realloc(table->line, room * sizeof(*bigger));
		if (!bigger) {
			table->no_memory = true;
			return NULL;
		}
		table->line = bigger;
		table->room = room;
	}
	return memset(&table->line[table->n_lines++], 0, sizeof(*table->line));
}
