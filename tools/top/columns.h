/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of ep-top's tables, for view.c, cells.c and lists.c only: what a column shows, and how a cell is made of a block.
 */
#ifndef EPF_TOOLS_TOP_COLUMNS_H
#define EPF_TOOLS_TOP_COLUMNS_H

#include "tools/top/view.h"

enum top_show {
	SHOW_TEXT,     /* made by lists.c */
	SHOW_COUNT,    /* the same, a number */
	SHOW_INSTANCE, /* name of the instance */
	SHOW_LABEL,    /* label `row` */
	SHOW_NUMBER,   /* row: a counter as total or rate, a gauge as it is */
	SHOW_PLAIN,    /* row: as it is */
	SHOW_BAD,      /* row: a counter's total, coloured above zero */
	SHOW_STATE,    /* row */
	SHOW_WAIT,     /* row: a state and for how long; empty where it is "none" */
	SHOW_IF_WAITS, /* row, while state `other` is not "none" */
	SHOW_BY,     /* the same, of a row that says whether a kernel waits: "kernel" or "thread" */
	SHOW_OF,     /* row / other */
	SHOW_OF_BAR, /* the same as a bar */
	SHOW_BUSY,   /* of a core */
	SHOW_BUSY_BAR,
	SHOW_P99, /* of a histogram in ns */
	SHOW_NS,  /* row: a time */
	SHOW_SHARE, /* row, a counter of ns: its share of the time between two readings; as a total the time */
	SHOW_AGO, /* row: CLOCK_MONOTONIC */
};

struct top_column_spec {
	const char *title, *row, *other;
	enum top_show show;
};

struct top_view_from {
	const struct top_schema *schema;
	const struct top_shot *now, *before; /* before: may be NULL */
	const struct top_look *look;
	double seconds; /* between the two; 0: no rates */
};

extern const struct top_column_spec top_wait_columns[], top_job_columns[], top_instance_columns[];

/* cells.c: a new line, zeroed; NULL without memory. */
struct top_line *top_table_push(struct top_table *table);
/* One cell of a line that has a block. */
void top_cell_make(const struct top_view_from *from, const struct top_line *line,
		   const struct top_column_spec *spec, struct top_cell *cell);
void top_cell_number(struct top_cell *cell, uint64_t n);
void top_cell_text(struct top_cell *cell, const char *text);
/* A counter: its total, or its growth per second since `was`. has_was false: only a total is known. */
void top_cell_counter(const struct top_view_from *from, struct top_cell *cell, uint64_t n,
		      bool has_was, uint64_t was, bool bytes);
/* Time from `since` until the shot, or until the last sign of life of one who has ended. */
uint64_t top_age(const struct top_shot *now, const struct top_instance *in, uint64_t since_ns);

/* lists.c */
void top_wait_lines(struct top_table *table, const struct top_view_from *from);
void top_job_lines(struct top_table *table, const struct top_view_from *from);
void top_instance_lines(struct top_table *table, const struct top_view_from *from);

#endif
