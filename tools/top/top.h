/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep-top knows at one moment: all instances with all numbers of their statistics files, and the graph of waits (waits/waits.h). For
 * tools/top/ep-top.c and tools/top_*.c: read from live files or from a recording, printed as JSON, tables, metrics or screens. It must never
 * touch an engine, nor keep a pointer into a reader: a shot stays whole when its files are gone.
 *
 * Names of classes, rows and labels stand in a schema that all shots share and that only grows; a value is found by class and row. All texts
 * are printable ASCII. One thread at a time.
 */
#ifndef EPF_TOOLS_TOP_TOP_H
#define EPF_TOOLS_TOP_TOP_H

#include "queues/epf_stats.h"
#include "tools/waits/waits.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define TOP_NONE UINT32_MAX /* no such row, class, number */

/* Classes and rows of all files of a session together; each as one file's limits are. */
#define TOP_MAX_CLASSES EPF_STATS_MAX_CLASSES
#define TOP_MAX_ROWS    EPF_STATS_MAX_ROWS

struct top_row {
	char name[40];
	char unit[16];
	char states[72]; /* "a|b|c" */
	char help[104];
	uint32_t type; /* enum epf_stats_type */
};

struct top_class {
	char name[24];
	char help[104];
	char label[EPF_STATS_MAX_LABELS][16];
	bool is_number[EPF_STATS_MAX_LABELS]; /* label */
	uint32_t n_labels, n_rows, room;
	struct top_row *row;
};

struct top_schema {
	struct top_class cls[TOP_MAX_CLASSES];
	uint32_t n_classes;
	uint32_t version; /* grows with every change */
	uint32_t
		n_truncated; /* classes and rows that had no room: EPF_STATS_MAX_CLASSES, EPF_STATS_MAX_ROWS */
};

struct top_hist {
	uint64_t count, sum, min, max, p50, p90, p99, p999;
};

struct top_value {
	uint64_t number;   /* counter, gauge, index of a state, count of a histogram */
	uint64_t since_ns; /* state */
	const struct top_hist *hist;
	bool known;
};

struct top_block {
	uint32_t instance, cls;
	char label[EPF_STATS_MAX_LABELS][EPF_STATS_LABEL_BYTES];
	struct top_value *value; /* [n_values] by row of the class */
	uint32_t n_values;
};

struct top_instance {
	char path[256], name[EPF_STATS_NAME_BYTES], job[EPF_STATS_JOB_BYTES], error[256];
	bool read; /* false: error says why not */
	enum epf_stats_alive alive;
	char process; /* state letter, 0: not known */
	uint64_t pid, tsc_hz, created_realtime_ns, created_monotonic_ns, heartbeat_ns;
	uint32_t links, links_up, changing, minor;
	uint32_t first_block, n_blocks;
};

struct top_job {
	char name[EPF_STATS_LABEL_BYTES];
	uint64_t id, waits, hidden;
	uint32_t world, nodes, ranks, entries, causes;
};

/* One wait or cause, stuck first; numbers that do not apply are TOP_NONE. */
struct top_wait {
	char who[8], reason[32], text[512];
	bool is_cause;
	bool kernel;            /* a rank's: a kernel of a GPU waits, not a thread */
	uint32_t job, instance; /* job: TOP_NONE, not known */
	uint32_t rank, peer, stream, lane, ring;
	uint64_t signal, value, least, deferred;
	bool has_signal;
	uint64_t since_ns, age_ns; /* 0: not known */
	uint32_t follows, consequences;
};

struct top_shot {
	uint64_t realtime_ns, now_ns; /* CLOCK_REALTIME, CLOCK_MONOTONIC of the reading */
	uint64_t least_ns;            /* waits that are shorter are left out */
	char host[65];
	struct top_instance *instance;
	uint32_t n_instances;
	struct top_block *block; /* those of an instance together */
	uint32_t n_blocks;
	struct top_job *job;
	uint32_t n_jobs;
	struct top_wait *wait;
	uint32_t n_waits;
	uint32_t left_out; /* instances that have exited and are not among these */
	struct top_chunk *memory;
};

/* ---- memory of a shot (model.c) ---- */

/* Zeroed, lives with the shot; NULL without memory. */
void *top_take(struct top_shot *shot, size_t n, size_t bytes);
struct top_shot *top_shot_new(void);
void top_shot_free(struct top_shot *shot); /* NULL is fine */

struct top_schema *top_schema_new(void);
void top_schema_free(struct top_schema *schema); /* NULL is fine */
/* The place of a class, row; TOP_NONE: not there. */
uint32_t top_class_find(const struct top_schema *schema, const char *name);
uint32_t top_row_find(const struct top_class *cls, const char *name);
/* The same, added where it is missing (and states added that are new); TOP_NONE without room or memory. */
uint32_t top_class_add(struct top_schema *schema, const struct top_class *like);
uint32_t top_row_add(struct top_schema *schema, uint32_t cls, const struct top_row *like);

/* Copies what fits, terminated, with '?' for what is not printable ASCII. */
void top_text(char *to, size_t bytes, const char *from);

/* Name of a state; "-" where it has none. Returns text. */
const char *top_state_name(const struct top_row *row, uint64_t state, char *text, size_t bytes);

/* A value of a block by its row's name; NULL: not there or not known. */
const struct top_value *top_value_of(const struct top_schema *schema, const struct top_block *block,
				     const char *row);
/* A label by its name; "" where there is none. */
const char *top_label_of(const struct top_schema *schema, const struct top_block *block,
			 const char *label);

/* Whether a block of class job is of this job: by its number, or by its name where it has no number. */
bool top_job_has(const struct top_schema *schema, const struct top_job *job,
		 const struct top_block *block);

/* The same block in another shot: instance, class and labels are the same and the instance is the same run; NULL: none. */
const struct top_block *top_block_in(const struct top_shot *shot, const struct top_shot *of,
				     const struct top_block *block);

/* ---- sources ---- */

/* Everything as `w`, just refreshed, has it. NULL without memory. */
struct top_shot *top_shot_take(struct top_schema *schema, const struct waits *w,
			       uint64_t realtime_ns);

/* ---- JSON (json.c, load.c) ---- */

/* One object, schema epf.top/1; with_schema: its classes too. NULL without memory. */
json_t *top_json(const struct top_schema *schema, const struct top_shot *shot, bool with_schema);
/* What top_json made, or anything else; classes that it has are added. 0 and *out, or -EBADMSG, -ENOMEM with a reason. */
int top_load(struct top_schema *schema, const json_t *top, struct top_shot **out, char *reason,
	     size_t reason_bytes);

/* ---- sums ---- */

struct top_sums {
	uint32_t instances, living, stale, dead, unreadable, jobs, ranks, nics, cores, links,
		links_up;
	uint32_t waits, causes;
	bool has_rates;
	double busy;     /* 0..1 of all living cores; below zero: not known */
	double seconds;  /* between the two shots */
	double commands; /* per second, dequeued by cores */
	double bytes;    /* per second, puts and gets */
	uint64_t total_commands, total_bytes;
};

/* before: NULL, or an earlier shot. */
void top_sum(const struct top_schema *schema, const struct top_shot *now,
	     const struct top_shot *before, struct top_sums *out);
/* Share of time that a core was busy; below zero: not known. */
double top_busy(const struct top_schema *schema, const struct top_shot *now,
		const struct top_shot *before, const struct top_block *core);
/* How much a counter has grown; one that is smaller than it was began again (a ring that was closed and opened). */
uint64_t top_growth(uint64_t now, uint64_t was);
/* How far apart two shots are, in seconds; 0: not known. */
double top_seconds(const struct top_shot *now, const struct top_shot *before);

#endif
