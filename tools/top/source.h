/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where ep-top's shots (top.h) come from: living statistics files, or a recording; and where they are recorded. A recording is JSON, one
 * shot a line, with the schema in the first line, when it changes, and now and then. Its lines are foreign: one that is damaged or cut short
 * is left out and counted. One thread at a time.
 */
#ifndef EPF_TOOLS_TOP_SOURCE_H
#define EPF_TOOLS_TOP_SOURCE_H

#include "tools/top/top.h"

/* Longest line of a recording. */
#define TOP_LINE_MAX ((size_t)256 << 20)

struct top_source;
struct top_record;

/* Instances of dir, those that come later too; or n names (waits_add_names). with_dead: also those that have exited. 0 and *out, or -errno with a reason. */
int top_source_live(struct top_source **out, struct top_schema *schema, const char *dir,
		    char *const *names, int n, uint64_t least_ns, bool with_dead, char *reason,
		    size_t reason_bytes);
/* A recording; -EBADMSG where no line of it is one. */
int top_source_replay(struct top_source **out, struct top_schema *schema, const char *path,
		      char *reason, size_t reason_bytes);
void top_source_close(struct top_source *source); /* NULL is fine */

/* The next shot, which the caller frees. 0; -ENODATA: the recording has ended; -ENOMEM, or another error with a reason. */
int top_source_next(struct top_source *source, struct top_shot **out, char *reason,
		    size_t reason_bytes);

/* Of a recording: records in all (0: it is live), number of the last one given (from 1), damaged lines left out so far. */
uint32_t top_source_records(const struct top_source *source);
uint32_t top_source_at(const struct top_source *source);
uint32_t top_source_damaged(const struct top_source *source);
/* Makes `record` (from 1) the one that comes next. */
void top_source_seek(struct top_source *source, uint32_t record);

/* Begins a recording, or goes on with one; refuses a file that is something else. 0 and *out, or -errno with a reason. */
int top_record_open(const char *path, struct top_record **out, char *reason, size_t reason_bytes);
/* Adds a shot. 0 or -errno with a reason. */
int top_record_add(struct top_record *record, const struct top_schema *schema,
		   const struct top_shot *shot, char *reason, size_t reason_bytes);
/* 0, or -errno of what could not be written. NULL is fine. */
int top_record_close(struct top_record *record);

#endif
