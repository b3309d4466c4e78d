/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics file of one engine instance: its layout, the inline stores that the engine's loop
 * uses, and the calls that make the file. One mapped file holds a header, a schema (what each
 * number is called, its unit and meaning), a directory of blocks, and the blocks. Each block has a
 * single writing thread; anyone who may read the file reads without asking the engine, also after
 * it died. Readers use epf_stats_read.h. The inlines must never call, allocate or wait.
 *
 *   0              struct epf_stats_header    fixed once published, but for its last 128 bytes
 *   classes_offset struct epf_stats_class []  one a block class
 *   rows_offset    struct epf_stats_row []    one a number, those of a class together
 *   entries_offset struct epf_stats_entry []  one a block that can exist, state first
 *   blocks_offset  blocks, 128-byte aligned   known bitmap (2 words), then the numbers
 *
 * What a reader may believe: every number is a naturally aligned 64-bit word, stored and read whole;
 * numbers of one block may be one loop step apart. What must agree is packed in one word (a state
 * and its time). Counters and histograms only grow, modulo 2^64, and are never reset: the reader
 * subtracts. A number whose known bit is clear has no value, which is not zero.
 *
 * Versions: a reader refuses another version_major. Within one, structs only grow at their end
 * (their sizes are in the header as strides, 0 meaning unknown in what was reserve), and classes,
 * rows and row types may be added: an older reader reads a newer file and shows what it knows.
 *
 * Limits, each reported with its name when passed: EPF_STATS_MAX_* below.
 */
#ifndef EPF_QUEUES_STATS_H
#define EPF_QUEUES_STATS_H

#include "queues/epf_base.h"
#include "queues/epf_flight.h"
#include "queues/epf_hist.h"

#include <stddef.h>
#include <stdint.h>

#define EPF_STATS_MAGIC         0x5354415453465045ull /* "EPFSTATS" in little-endian memory */
#define EPF_STATS_VERSION_MAJOR 1u
#define EPF_STATS_VERSION_MINOR 1u

#define EPF_STATS_MAX_BYTES   ((uint64_t)64 << 20) /* of one file */
#define EPF_STATS_MAX_BLOCKS  65536u               /* of one file, all classes together */
#define EPF_STATS_MAX_CLASSES 64u
#define EPF_STATS_MAX_ROWS    128u /* of one class: the known bitmap has two words */
#define EPF_STATS_MAX_LABELS  4u   /* of one class */
#define EPF_STATS_MAX_STRIDE  4096u
#define EPF_STATS_NAME_BYTES  64u  /* the instance's name, with the final NUL */
#define EPF_STATS_JOB_BYTES   128u /* the job's, with the final NUL */
#define EPF_STATS_LABEL_BYTES 32u  /* a label's value, with the final NUL */

#define EPF_STATS_BLOCK_ALIGN  128u /* the adjacent-line prefetcher fetches pairs of lines */
#define EPF_STATS_HEADER_WORDS 2u   /* of a block: the known bitmap */

enum epf_stats_type { /* of a row; a reader shows an unknown type as unknown */
		      EPF_STATS_COUNTER = 1,
		      EPF_STATS_GAUGE = 2,
		      EPF_STATS_STATE = 3,
		      EPF_STATS_HISTOGRAM = 4,
		      EPF_STATS_EVENTS = 5, /* since 1.1; shape: words of an event */
};

enum epf_stats_kind { /* of a label */
		      EPF_STATS_NUM = 1,
		      EPF_STATS_TEXT = 2,
};

enum epf_stats_phase { /* of the file: the low byte of header.phase */
		       EPF_STATS_OPEN = 1,
		       EPF_STATS_CLOSED = 2,
};

/* Low byte of entry.state; the other 56 bits count its changes, so that a reader sees a reuse. */
enum epf_stats_slot {
	EPF_STATS_SLOT_FREE = 0,
	EPF_STATS_SLOT_LIVE = 1,
	EPF_STATS_SLOT_TAKEN = 2, /* being brought to life */
};

/* Who writes the file, enough to tell whether that very process still runs. 0: not known. */
struct epf_stats_proc {
	uint64_t pid;
	uint64_t start_ticks; /* since boot: proc(5), field 22 of /proc/PID/stat */
	uint64_t pid_space;   /* inode of /proc/self/ns/pid: a pid means nothing outside it */
	uint8_t boot_id[16];  /* /proc/sys/kernel/random/boot_id */
};

struct epf_stats_header {
	uint64_t magic;
	uint32_t version_major;
	uint32_t version_minor;
	uint64_t total_bytes;
	uint32_t header_bytes;
	uint32_t class_stride;
	uint32_t row_stride;
	uint32_t entry_stride;
	uint32_t class_count;
	uint32_t row_count;
	uint32_t entry_count;
	uint32_t reserved0;
	uint64_t classes_offset;
	uint64_t rows_offset;
	uint64_t entries_offset;
	uint64_t blocks_offset;
	struct epf_stats_proc writer;
	uint64_t tsc_hz;               /* of every "cycles" row; 0: not known */
	uint64_t created_realtime_ns;  /* CLOCK_REALTIME */
	uint64_t created_monotonic_ns; /* CLOCK_MONOTONIC, the clock of states and heartbeat */
	char instance[EPF_STATS_NAME_BYTES];
	char job[EPF_STATS_JOB_BYTES]; /* empty: none */
	uint8_t reserved1[552];
	/* The part that changes, in separate cache lines. */
	uint64_t phase;        /* enum epf_stats_phase */
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the last epf_stats_beat; 0: none yet */
	uint8_t reserved2[112];
};

struct epf_stats_class {
	char name[24];
	char help[104];
	char label[EPF_STATS_MAX_LABELS][16]; /* names, the first label_count */
	uint32_t label_kind[EPF_STATS_MAX_LABELS];
	uint32_t label_count;
	uint32_t first_row; /* index into the rows */
	uint32_t row_count;
	uint32_t block_bytes; /* of each block, a multiple of 128 */
	uint8_t reserved[32];
};

struct epf_stats_row {
	char name[40];
	char unit[16];
	char states[72]; /* "a|b|c" where type is EPF_STATS_STATE */
	char help[104];
	uint32_t type;
	uint32_t word;  /* of the block */
	uint32_t words; /* 1, or the histogram's */
	uint32_t shape; /* sub-bucket bits of a histogram, else 0 */
	uint8_t reserved[8];
};

struct epf_stats_entry {
	uint64_t state;
	uint64_t offset; /* of the block in the file */
	uint32_t class_index;
	uint32_t reserved0;
	char label[EPF_STATS_MAX_LABELS][EPF_STATS_LABEL_BYTES]; /* empty: not known */
	uint8_t reserved1[40];
};

EPF_STATIC_ASSERT(sizeof(struct epf_stats_proc) == 40, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_header, total_bytes) == 16, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_header, classes_offset) == 56, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_header, writer) == 88, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_header, tsc_hz) == 128, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_header, instance) == 152, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_header, job) == 216, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_header, phase) == 896, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_header, heartbeat_ns) == 904, "layout");
EPF_STATIC_ASSERT(sizeof(struct epf_stats_header) == 1024, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_class, label) == 128, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_class, label_count) == 208, "layout");
EPF_STATIC_ASSERT(sizeof(struct epf_stats_class) == 256, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_row, type) == 232, "layout");
EPF_STATIC_ASSERT(sizeof(struct epf_stats_row) == 256, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_stats_entry, label) == 24, "layout");
EPF_STATIC_ASSERT(sizeof(struct epf_stats_entry) == 192, "layout");

/* Names of enum epf_stats_wait below, for the table. */
#define EPF_STATS_WAIT_NAMES \
 "none|signal|ring|full|credit|queue|sent|ack|link|silent|gap|taken|puts"

/* Names of enum epf_stats_conn_wait. */
#define EPF_STATS_CONN_NAMES "none|copy|gpu|nic|note|answer|release"

/* Names of enum epf_stats_path. */
#define EPF_STATS_PATH_NAMES "unknown|fine|lossy|full|silent|no-answer|refused|no-route|unconnected"

/* Classes: EPF_STATS_CORE, EPF_STATS_RING ... in the order of the table. */
enum epf_stats_classes {

#define EPF_CLASS(id, name, help, labels) EPF_STATS_##id,
#include "queues/stats_keys.h"
	EPF_STATS_CLASSES
};

/* clang-format off */
/* First the row's index in its class, which is its bit in the known bitmap ... */
#define EPF_CLASS(id, name, help, labels)                enum {
#define EPF_ROW(cls, id, name, unit, type, states, help)     EPF_STATROW_##cls##_##id,
#define EPF_END(cls)                                         EPF_STATROWS_##cls };
#include "queues/stats_keys.h"

#define EPF_STATWORDS_COUNTER   1
#define EPF_STATWORDS_GAUGE     1
#define EPF_STATWORDS_STATE     1
#define EPF_STATWORDS_HISTOGRAM (int)EPF_HIST_WORDS
#define EPF_STATWORDS_EVENTS    (int)EPF_FLIGHT_WORDS

/* ... then its word in the block, one after the last word of the row before ... */
#define EPF_CLASS(id, name, help, labels)                enum { EPF_STATWORD_##id = EPF_STATS_HEADER_WORDS - 1,
#define EPF_ROW(cls, id, name, unit, type, states, help)     EPF_STATWORD_##cls##_##id, \
	EPF_STATLAST_##cls##_##id = EPF_STATWORD_##cls##_##id + EPF_STATWORDS_##type - 1,
#define EPF_END(cls)                                         EPF_STATWORDS_OF_##cls };
#include "queues/stats_keys.h"

/* ... and both in the constant that the engine names: EPF_STAT_CORE_CMDS_DEQUEUED and so on. */
#define EPF_CLASS(id, name, help, labels)                enum {
#define EPF_ROW(cls, id, name, unit, type, states, help)     EPF_STAT_##cls##_##id = \
	EPF_STATROW_##cls##_##id << 16 | EPF_STATWORD_##cls##_##id,
#define EPF_END(cls)                                         EPF_STATEND_##cls };
#include "queues/stats_keys.h"
/* clang-format on */

/* Bytes of a block of each class. */
#define EPF_STATS_BLOCK_BYTES(cls)                                      \
 (((uint32_t)EPF_STATWORDS_OF_##cls * 8u + EPF_STATS_BLOCK_ALIGN - 1) & \
  ~(EPF_STATS_BLOCK_ALIGN - 1))

#define EPF_CLASS(id, name, help, labels) \
 EPF_STATIC_ASSERT(EPF_STATROWS_##id <= EPF_STATS_MAX_ROWS, "too many rows: " name);
#include "queues/stats_keys.h"

/* Values of the state rows, in the order of their names in the table. */
enum epf_stats_lane_state {
	EPF_STATS_LANE_DOWN,
	EPF_STATS_LANE_CONNECTING,
	EPF_STATS_LANE_UP,
	EPF_STATS_LANE_DRAINING,
	EPF_STATS_LANE_FAILED,
};

enum epf_stats_peer_state {
	EPF_STATS_PEER_DOWN,
	EPF_STATS_PEER_CONNECTING,
	EPF_STATS_PEER_UP,
	EPF_STATS_PEER_DRAINING,
	EPF_STATS_PEER_MASKED,
	EPF_STATS_PEER_LEFT,
};

#define EPF_STATS_NO_SIGNAL UINT32_MAX

/* What a NIC knows of the connection of a lane; the names stand in EPF_STATS_PATH_NAMES. */
enum epf_stats_path {
	EPF_STATS_PATH_UNKNOWN,
	EPF_STATS_PATH_FINE,
	EPF_STATS_PATH_LOSSY,       /* packets were sent again within the last second */
	EPF_STATS_PATH_FULL,        /* the peer's receive buffer is full: nobody reads there */
	EPF_STATS_PATH_SILENT,      /* the peer's host acknowledges nothing */
	EPF_STATS_PATH_NO_ANSWER,   /* not connected: attempts are not answered */
	EPF_STATS_PATH_REFUSED,     /* not connected: attempts are refused */
	EPF_STATS_PATH_NO_ROUTE,    /* not connected: this host knows no way there */
	EPF_STATS_PATH_UNCONNECTED, /* not connected, for another reason, or the peer has to */
};

/* What something waits for that should move and does not. The names stand in EPF_STATS_WAIT_NAMES. */
enum epf_stats_wait {
	EPF_STATS_WAIT_NONE,
	EPF_STATS_WAIT_SIGNAL, /* a rank: a signal that has not come; or, numbered EPF_STATS_NO_SIGNAL, stores by kernels of a peer */
	EPF_STATS_WAIT_RING,   /* a rank: commands of its ring to retire, or room in it */
	EPF_STATS_WAIT_FULL,   /* a ring: full, and not dequeued from */
	EPF_STATS_WAIT_CREDIT, /* no receive granted by the peer, or too much is in flight */
	EPF_STATS_WAIT_QUEUE,  /* the send queue of the lane is full */
	EPF_STATS_WAIT_SENT,   /* posted; the NIC does not report that it has arrived */
	EPF_STATS_WAIT_ACK,    /* a FLUSH that the peer's engine does not acknowledge */
	EPF_STATS_WAIT_LINK,   /* the own port or the lane is down */
	EPF_STATS_WAIT_SILENT, /* the peer's engine gives no sign of life */
	EPF_STATS_WAIT_GAP,    /* arrivals of a stream wait for one that is missing */
	EPF_STATS_WAIT_TAKEN,  /* a ring: commands that the core does not take */
	EPF_STATS_WAIT_PUTS,   /* a counted signal: the puts of its group were not pushed */
};

/* What a point-to-point endpoint waits for of a peer. The names stand in EPF_STATS_CONN_NAMES. */
enum epf_stats_conn_wait {
	EPF_STATS_CONN_NONE,
	EPF_STATS_CONN_COPY,    /* transfers on this machine whose blocks nobody copies */
	EPF_STATS_CONN_GPU,     /* copies that a GPU does not end */
	EPF_STATS_CONN_NIC,     /* transfers over the engine that do not move */
	EPF_STATS_CONN_NOTE,    /* the peer takes no notifications */
	EPF_STATS_CONN_ANSWER,  /* the peer's endpoint does not answer an import */
	EPF_STATS_CONN_RELEASE, /* the peer still copies to or from memory that was withdrawn */
};

enum epf_stats_conn_state {
	EPF_STATS_CONN_OPEN,
	EPF_STATS_CONN_LOST,
	EPF_STATS_CONN_CLOSED,
};

enum epf_stats_link_state {
	EPF_STATS_LINK_DOWN,
	EPF_STATS_LINK_UP,
};

/*
 * A block, as its one writing thread sees it. All stat constants given with a block must be of the
 * block's class. Rows of type counter and histogram start known, at zero; gauges and states start
 * unknown, until set.
 */
struct epf_stats_block {
	uint64_t known[EPF_STATS_HEADER_WORDS];
};

EPF_INLINE uint64_t *epf_stat_word(struct epf_stats_block *block, uint32_t stat)
{
	return (uint64_t *)block + (stat & 0xffff);
}

/* Say that a row has a value (as it stands) from now on. */
EPF_INLINE void epf_stat_know(struct epf_stats_block *block, uint32_t stat)
{
	uint64_t *word = &block->known[stat >> 22];
	uint64_t bit = (uint64_t)1 << (stat >> 16 & 63);
	uint64_t old = EPF_LOAD_RELAXED(word);

	/* S1: a reader that sees the bit must see the value; pairs with its acquire loads. */
	if (EPF_UNLIKELY(!(old & bit)))
		EPF_STORE_RELEASE(word, old | bit);
}

/* Say that a row has no value: what the engine cannot count on this device must not read as 0. */
EPF_INLINE void epf_stat_forget(struct epf_stats_block *block, uint32_t stat)
{
	uint64_t *word = &block->known[stat >> 22];

	EPF_STORE_RELAXED(word, EPF_LOAD_RELAXED(word) & ~((uint64_t)1 << (stat >> 16 & 63)));
}

/* Add to a counter. Hot path: one load, one store. */
EPF_INLINE void epf_stat_add(struct epf_stats_block *block, uint32_t stat, uint64_t n)
{
	uint64_t *word = epf_stat_word(block, stat);

	EPF_STORE_RELAXED(word, EPF_LOAD_RELAXED(word) + n);
}

/* Set a gauge, or a counter that the engine keeps elsewhere (then never to less than before). */
EPF_INLINE void epf_stat_set(struct epf_stats_block *block, uint32_t stat, uint64_t value)
{
	EPF_STORE_RELAXED(epf_stat_word(block, stat), value);
	epf_stat_know(block, stat);
}

/* The writer's own view of a counter or gauge. */
EPF_INLINE uint64_t epf_stat_get(struct epf_stats_block *block, uint32_t stat)
{
	return EPF_LOAD_RELAXED(epf_stat_word(block, stat));
}

#define EPF_STATS_STATE_SHIFT 60
#define EPF_STATS_SINCE_MASK  (((uint64_t)1 << EPF_STATS_STATE_SHIFT) - 1)

/*
 * Enter a state: its index (0..15) and the CLOCK_MONOTONIC time of entering it, in one word. The
 * time keeps 60 bits: it wraps 36 years after boot.
 */
EPF_INLINE void epf_stat_state(struct epf_stats_block *block, uint32_t stat, uint32_t state,
			       uint64_t since_ns)
{
	epf_stat_set(block, stat,
		     (uint64_t)(state & 15) << EPF_STATS_STATE_SHIFT |
			     (since_ns & EPF_STATS_SINCE_MASK));
}

/* The histogram of a row, for epf_hist_add. */
EPF_INLINE struct epf_hist *epf_stat_hist(struct epf_stats_block *block, uint32_t stat)
{
	return (struct epf_hist *)epf_stat_word(block, stat);
}

#ifdef __cplusplus
extern "C" {
#endif

/* The writer's side of one file (or of plain memory of the same layout). */
struct epf_stats;

struct epf_stats_opts {
	size_t size;          /* sizeof(struct epf_stats_opts) of the caller */
	const char *dir;      /* runtime directory, best on tmpfs; NULL: memory only */
	const char *instance; /* 1..63 of [A-Za-z0-9._-], not starting with a dot */
	const char *job;      /* up to 127 bytes, not printable ASCII becomes '?'; NULL: none */
	uint64_t tsc_hz;      /* 0: not known */
	uint32_t mode;        /* of the file, exactly (umask does not count); 0: 0640 */
	uint32_t blocks[EPF_STATS_CLASSES]; /* how many blocks of each class can live at once */
};

/* A label's value: text, or where that is NULL the number. EPF_STATS_NO_LABEL: not known. */
struct epf_stats_label {
	const char *text;
	uint64_t number;
};

#define EPF_STATS_NO_LABEL ((struct epf_stats_label){ "", 0 })

/* Silence after which tools doubt a running writer. */
#define EPF_STATS_STALE_NS UINT64_C(5000000000)

/* How long files of writers that have ended are kept, and how many of them. */
#define EPF_STATS_DEAD_NS    (UINT64_C(24) * 3600 * 1000 * 1000 * 1000)
#define EPF_STATS_DEAD_FILES 64u

/* Destroy: leave the file in place, marked closed, as final snapshot. */
#define EPF_STATS_KEEP 1u

/*
 * Make sure that dir is a directory where only we (or root) can make files: made with mode 0755
 * where there is none (its parent must exist). Call it before epf_stats_create where dir may lie in
 * a directory that all may write. Returns 0; -EPERM where it belongs to another user or can be
 * written by others, -ENOTDIR (also for a symbolic link), or what mkdir(2) said; with a reason.
 */
int epf_stats_make_dir(const char *dir, char *reason, size_t reason_bytes);

/*
 * Make the file <dir>/<instance>.stats (complete before it gets its name, replacing an older one) or
 * the same in memory. Space is allocated at once, so a full file system is an error here and not a
 * SIGBUS later. Strings are copied. Old files of writers that have ended go, at most once a second: epf_stats_sweep().
 * Returns 0 and *out; else -errno and one line of cause in reason (if reason_bytes > 0):
 * -EINVAL for options, -E2BIG past a limit, -EBUSY where a living process writes a file of that
 * name, or what open, rename and so on said (-EROFS, -EACCES, -ENOSPC ...). After an error with a
 * directory the caller may go on with dir = NULL and warn.
 */
int epf_stats_create(const struct epf_stats_opts *opts, struct epf_stats **out, char *reason,
		     size_t reason_bytes);

/*
 * Removes the files of dir whose writers have certainly ended: those without a sign of life for EPF_STATS_DEAD_NS, and the oldest
 * beyond EPF_STATS_DEAD_FILES. Files that it cannot read or that are not statistics stay. now_ns is CLOCK_REALTIME. Returns how many
 * are gone.
 */
unsigned epf_stats_sweep(const char *dir, uint64_t now_ns);

/*
 * Unmap. The file is marked closed, and removed unless flags has EPF_STATS_KEEP (or it has been
 * replaced meanwhile, or the caller is a forked child: then it is left alone). Blocks must not be
 * written any more. NULL is fine.
 */
void epf_stats_destroy(struct epf_stats *stats, unsigned flags);

/*
 * Bring a block to life, zeroed. labels has as many values as the class has labels. One thread at a
 * time adds and removes; the block may be handed to another thread, which is then its only writer.
 * Returns 0 and *out; -EINVAL (class, number or text of labels), -ENOSPC where all
 * opts.blocks[class] of that class are in use.
 */
int epf_stats_add_block(struct epf_stats *stats, unsigned class_index,
			const struct epf_stats_label *labels, unsigned label_count,
			struct epf_stats_block **out);

/* End a block: its writer has stopped. Readers no longer see it. NULL is fine. */
void epf_stats_remove_block(struct epf_stats *stats, struct epf_stats_block *block);

/*
 * The slow path's sign of life: now_ns of CLOCK_MONOTONIC. Any one thread, at least once a second:
 * tools call a writer stale after EPF_STATS_STALE_NS.
 */
void epf_stats_beat(struct epf_stats *stats, uint64_t now_ns);

/* Path of the file; NULL in memory. Valid until destroy. */
const char *epf_stats_path(const struct epf_stats *stats);

/* Where the bytes are, for a reader in the same process. Valid until destroy. */
const void *epf_stats_memory(const struct epf_stats *stats, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
