/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top's screens as tables of texts: what a shot (top.h) looks like, sorted and filtered, in totals or in rates. For the terminal
 * (screen.c), for plain text (text.c) and for tests; it knows no terminal and must never print.
 */
#ifndef EPF_TOOLS_TOP_VIEW_H
#define EPF_TOOLS_TOP_VIEW_H

#include "tools/top/top.h"

#include <stdio.h>

enum top_screen_number {
	TOP_WAITING,
	TOP_NICS,
	TOP_CORES,
	TOP_RINGS,
	TOP_RANKS,
	TOP_PEERS,
	TOP_LANES,
	TOP_JOBS,
	TOP_INSTANCES,
	TOP_CALLS,
	TOP_ENDPOINTS,
	TOP_SCREENS
};

enum top_colour {
	TOP_PLAIN,
	TOP_GOOD,
	TOP_WARN,
	TOP_BAD,
	TOP_DIM,
	TOP_HEAD,
	TOP_TITLE,
	TOP_COLOURS
};

#define TOP_COLUMNS_MAX 20
#define TOP_CELL_BYTES  48
#define TOP_ID_BYTES    400
#define TOP_FILTER      64
#define TOP_NATURAL     UINT32_MAX /* sort: the order in which things are */

struct top_cell {
	char text[TOP_CELL_BYTES];
	double key; /* to sort by, where is_number */
	bool is_number;
	enum top_colour colour;
};

struct top_line {
	char id[TOP_ID_BYTES];         /* the same thing has the same id in the next shot */
	const struct top_block *block; /* what the line is about: one of these */
	const struct top_wait *wait;
	const struct top_instance *instance;
	const struct top_job *job;
	const char *tail; /* behind the cells; NULL: none */
	enum top_colour colour;
	struct top_cell cell[TOP_COLUMNS_MAX];
};

/* How somebody wants to see a screen. */
struct top_look {
	enum top_screen_number screen;
	bool totals; /* else rates, where there are two shots */
	bool invert;
	uint32_t sort;   /* column, TOP_NATURAL */
	uint32_t hidden; /* bit for each column that is not shown */
	char filter[TOP_FILTER];
};

struct top_column {
	char title[16];
	bool left; /* aligned */
	int width; /* of its widest cell and the title */
};

struct top_table {
	struct top_column column[TOP_COLUMNS_MAX];
	uint32_t n_columns;
	struct top_line *line;
	uint32_t n_lines, room;
	uint32_t n_all; /* before the filter */
	bool has_rates;
	bool no_memory;
};

/* "waiting", "nics" ...; and its number, TOP_SCREENS where there is none of that name. */
const char *top_screen_name(enum top_screen_number screen);
enum top_screen_number top_screen_find(const char *name);

/* Makes the table again (its memory is used again); lines point into `now`. before: NULL, or an earlier shot. 0 or -ENOMEM. */
int top_table_make(struct top_table *table, const struct top_schema *schema,
		   const struct top_shot *now, const struct top_shot *before,
		   const struct top_look *look);
void top_table_free(struct top_table *table);

/* Does a line have this text in it, in any case? "" is in all. */
bool top_line_has(const struct top_table *table, const struct top_line *line, const char *text);

/* Columns of a screen, before there is a table. */
uint32_t top_columns(enum top_screen_number screen, struct top_column *column);

/* Details of a line: name, value and meaning. Calls back for each; returns how many. */
typedef void top_detail_fn(void *arg, const char *name, const char *value, const char *help);
uint32_t top_details(const struct top_schema *schema, const struct top_shot *now,
		     const struct top_shot *before, const struct top_line *line,
		     top_detail_fn *each, void *arg);

/* ---- texts (format.c); each returns text ---- */

const char *top_format_rate(double per_second, bool bytes, char *text, size_t size);
const char *top_format_age(uint64_t ns, char *text, size_t size);
/* "[|||||     ]" of that many characters in all; share 0..1, below zero: not known. */
const char *top_format_bar(double share, int width, char *text, size_t size);
/* Header lines, most important first: 3 of them. */
#define TOP_HEADER_LINES 3
#define TOP_HEADER_BYTES 700
void top_format_header(const struct top_schema *schema, const struct top_shot *now,
		       const struct top_shot *before,
		       char lines[TOP_HEADER_LINES][TOP_HEADER_BYTES], enum top_colour *health);

/* ---- plain text, metrics ---- */

/* One screen (or all, TOP_SCREENS) as text, with the header. 0 or -ENOMEM. */
int top_print(FILE *out, const struct top_schema *schema, const struct top_shot *now,
	      const struct top_shot *before, const struct top_look *look);

/* Prometheus' text format. peer_labels: also where an instance has more than TOP_LABELS_MAX of a kind. 0, -EIO or -ENOMEM. */
#define TOP_LABELS_MAX 1024u
int top_prometheus(FILE *out, const struct top_schema *schema, const struct top_shot *shot,
		   bool peer_labels);

#endif
