/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the writer and the reader of statistics files share: one-line reasons, telling
 * whether the process that wrote a file still runs, and the schema as the table has it. For queues/stats_*.c only. It must never log.
 */
#ifndef EPF_QUEUES_STATS_PRIV_H
#define EPF_QUEUES_STATS_PRIV_H

#include "queues/epf_stats.h"
#include "queues/epf_stats_read.h"

/* Format a reason (cut to fit, always terminated; nothing if bytes is 0) and return rc. */
int epf_stats_say(char *reason, size_t bytes, int rc, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Describe the calling process. What the system does not tell stays 0. */
void epf_stats_proc_self(struct epf_stats_proc *out);

/*
 * Does that process still run? DEAD also where its pid now belongs to another process or the
 * machine has been restarted; UNKNOWN where this process may not know (other pid space, hidden
 * /proc). Any bytes are safe as input.
 */
enum epf_stats_alive epf_stats_proc_alive(const struct epf_stats_proc *writer);

/* The table of stats_keys.h: rows of all classes, and bytes of one block of a class. */
uint32_t epf_stats_schema_rows(void);
uint32_t epf_stats_schema_bytes(unsigned class_index);

/* Write classes and rows where the header at base says; their bytes are zero. */
void epf_stats_schema_fill(uint8_t *base);

/* Set the bits of the rows that are known from the start: counters and histograms. */
void epf_stats_schema_known(unsigned class_index, uint64_t known[EPF_STATS_HEADER_WORDS]);

#endif
