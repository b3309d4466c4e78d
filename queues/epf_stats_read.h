/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading statistics files (layout: epf_stats.h) of any engine of the same major version, by the
 * schema that the file carries. For ep-top, `ep-fabric stats` and tests. The reader copies the file
 * with pread(2) and never maps it, so a file that shrinks or lies yields an error and never a
 * signal; all that these functions return has been checked: strings are terminated, printable
 * ASCII, indices and offsets are inside. It must never write to the file nor talk to its writer.
 *
 * A number is whole because the kernel copies aligned 64-bit words whole (x86-64, arm64).
 * One reader is used by one thread at a time. Pointers it returns live until the next refresh
 * (blocks, histograms) or until close (classes, rows, info).
 */
#ifndef EPF_QUEUES_STATS_READ_H
#define EPF_QUEUES_STATS_READ_H

#include "queues/epf_stats.h"

#include <dirent.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Files of this name are statistics: INSTANCE.stats. */
#define EPF_STATS_SUFFIX ".stats"

struct epf_stats_reader;

enum epf_stats_alive {
	EPF_STATS_UNKNOWN = 0, /* cannot be determined from here, e.g. another container */
	EPF_STATS_ALIVE,
	EPF_STATS_STALE, /* the process runs, but its last sign of life is too old */
	EPF_STATS_DEAD,  /* ended without closing the file: these are final snapshot */
	EPF_STATS_ENDED, /* closed the file in order */
};

struct epf_stats_info {
	char instance[EPF_STATS_NAME_BYTES];
	char job[EPF_STATS_JOB_BYTES]; /* empty: none */
	uint32_t version_major;
	uint32_t version_minor;
	uint64_t pid;                  /* in the writer's pid space; 0: not known */
	uint64_t pid_space;            /* that space (struct epf_stats_proc); 0: not known */
	uint64_t tsc_hz;               /* 0: not known */
	uint64_t created_realtime_ns;  /* CLOCK_REALTIME */
	uint64_t created_monotonic_ns; /* CLOCK_MONOTONIC of the writer's machine */
	uint64_t heartbeat_ns;         /* the same clock, at the last refresh; 0: none yet */
	uint32_t class_count;
	uint32_t block_count;     /* at the last refresh */
	uint32_t blocks_changing; /* left out of the last refresh: added or removed meanwhile */
};

struct epf_stats_value {
	bool known;        /* false: print "-", null or nothing; only type is set then */
	uint32_t type;     /* enum epf_stats_type, or a newer one (then never known) */
	uint64_t number;   /* counter, gauge; state: its index; histogram: values added */
	uint64_t since_ns; /* state: CLOCK_MONOTONIC, 60 bits */
	char state[72];    /* state: its name, or its index in decimal where it has none */
	const struct epf_hist *hist; /* histogram */
	const struct epf_flight_event
		*events; /* flight recorder: `number` places, in their order */
};

/* The statistics files of dir by name, as scandir(3) gives them: how many, or -errno. */
int epf_stats_list(const char *dir, struct dirent ***list);

/*
 * Open a file, check all of it and read it a first time. reason gets one line of cause on error
 * (may be NULL if reason_bytes is 0).
 * Returns 0 and *out; -EBADMSG where it is no statistics file or is damaged, -ENODATA where it is
 * cut short, -EPROTONOSUPPORT for another major version, -EFBIG past a limit, -ENOMEM, or what
 * open(2) or read(2) said.
 */
int epf_stats_reader_open(const char *path, struct epf_stats_reader **out, char *reason,
			  size_t reason_bytes);

/* The same on memory of this process, 8-byte aligned, which must outlive the reader. */
int epf_stats_reader_memory(const void *base, size_t bytes, struct epf_stats_reader **out,
			    char *reason, size_t reason_bytes);

/* Read all numbers again. On error the last good reading stays. Errors as above. */
int epf_stats_reader_refresh(struct epf_stats_reader *reader, char *reason, size_t reason_bytes);

/* NULL is fine. */
void epf_stats_reader_close(struct epf_stats_reader *reader);

/* Never NULL. block_count, heartbeat_ns and blocks_changing follow each refresh. */
const struct epf_stats_info *epf_stats_reader_info(const struct epf_stats_reader *reader);

/*
 * How the writer is, as of the last refresh and this moment. now_ns is CLOCK_MONOTONIC; with
 * stale_after_ns 0, or a writer that never beats, nobody is stale.
 */
enum epf_stats_alive epf_stats_reader_alive(const struct epf_stats_reader *reader, uint64_t now_ns,
					    uint64_t stale_after_ns);

/*
 * State letter of a process as proc(5) has it ('T' stopped, 'Z' ended ...), 0 where it cannot be determined from here: its pid space is
 * another one or not known, /proc is hidden. A process that does not exist gives 'X'.
 */
char epf_stats_process_state(uint64_t pid, uint64_t pid_space);

/* The path now names another file or none (writer restarted or ended): open it again. */
bool epf_stats_reader_replaced(const struct epf_stats_reader *reader);

/* A class, index < info.class_count, and a row of it, row < class->row_count; else NULL. */
const struct epf_stats_class *epf_stats_reader_class(const struct epf_stats_reader *reader,
						     unsigned class_index);
const struct epf_stats_row *epf_stats_reader_row(const struct epf_stats_reader *reader,
						 unsigned class_index, unsigned row);

/* A living block, index < info.block_count, in the file's order; else NULL. */
const struct epf_stats_entry *epf_stats_reader_block(const struct epf_stats_reader *reader,
						     unsigned block);

/* The number of a row in a block. Indices outside give an unknown value of type 0. */
void epf_stats_reader_value(const struct epf_stats_reader *reader, unsigned block, unsigned row,
			    struct epf_stats_value *out);

#ifdef __cplusplus
}
#endif

#endif
