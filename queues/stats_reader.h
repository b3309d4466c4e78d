/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a reader of statistics files, for stats_read.c and stats_check.c only. Nothing in a
 * reader's copies may be used before the check named beside it.
 */
#ifndef EPF_QUEUES_STATS_READER_H
#define EPF_QUEUES_STATS_READER_H

#include "queues/stats_priv.h"

struct reading { /* one consistent set of numbers */
	uint8_t *blocks;
	uint32_t *live;                  /* entry of each block */
	struct epf_stats_entry *entries; /* epf_stats_check_entry */
	uint32_t live_count;
	uint32_t changing;
	uint64_t heartbeat_ns;
	uint64_t phase;
};

struct epf_stats_reader {
	int fd; /* -1: memory */
	const uint8_t *memory;
	uint64_t source_bytes;
	char *path;
	char *reason;
	size_t reason_bytes;
	struct epf_stats_header h; /* epf_stats_check_header */
	struct epf_stats_info info;
	uint8_t *classes; /* with the file's strides: epf_stats_check_schema */
	uint8_t *rows;
	uint8_t *raw_entries[2]; /* before and after the blocks */
	uint64_t blocks_bytes;
	struct reading now, next;
};

#define FAIL(r, rc, ...) epf_stats_say((r)->reason, (r)->reason_bytes, rc, __VA_ARGS__)

static inline const char *label_of(const struct epf_stats_reader *r)
{
	return r->path ? r->path : "statistics memory";
}

static inline const struct epf_stats_class *class_at(const struct epf_stats_reader *r, uint32_t i)
{
	return (const void *)(r->classes + (size_t)i * r->h.class_stride);
}

static inline const struct epf_stats_row *row_at(const struct epf_stats_reader *r, uint32_t i)
{
	return (const void *)(r->rows + (size_t)i * r->h.row_stride);
}

/* 0, or -errno with a reason: is this a header we can read, and are its sections in the file? */
int epf_stats_check_header(struct epf_stats_reader *r);

/* 0, or -errno with a reason: are all strings, types' sizes and words of the schema sound? */
int epf_stats_check_schema(struct epf_stats_reader *r);

/* Is a living entry's block inside the file, and are its labels text? Needs a checked schema. */
bool epf_stats_check_entry(const struct epf_stats_reader *r, const struct epf_stats_entry *e);

#endif
