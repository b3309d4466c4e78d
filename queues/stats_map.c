/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer's side of a statistics file: making it (or the same bytes in memory), bringing blocks
 * to life and ending them, and taking leave. Called by the engine's slow path; its loop only uses
 * the inlines of epf_stats.h on the blocks handed out here. It must never leave a half-made file
 * under its final name, nor replace the file of an engine that still runs.
 */
#include "queues/stats_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SWEEP_EVERY_NS UINT64_C(1000000000)

struct epf_stats {
	uint8_t *base;
	size_t bytes;
	bool is_file;
	pid_t owner; /* a forked child shares the mapping but not the duty to close */
	dev_t dev;
	ino_t ino;
	char *path;
	struct epf_stats_header *header;
	struct epf_stats_entry *entries;

	struct {
		uint32_t first; /* entry */
		uint32_t count;
		uint32_t next; /* where to look for a free one */
	} slots[EPF_STATS_CLASSES];
};

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static bool is_name(const char *s)
{
	size_t n = strlen(s);

	return n > 0 && n < EPF_STATS_NAME_BYTES && s[0] != '.' &&
	       strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static bool is_text(const char *s, size_t bytes)
{
	size_t i;

	for (i = 0; s[i]; i++)
		if (i + 1 >= bytes || s[i] < ' ' || s[i] > '~')
			return false;
	return true;
}

/* Copy what the caller's struct has, and say what is wrong with it. */
static int take_opts(const struct epf_stats_opts *opts, struct epf_stats_opts *own, char *reason,
		     size_t reason_bytes)
{
	size_t least = offsetof(struct epf_stats_opts, blocks);

	memset(own, 0, sizeof(*own));
	if (opts->size < least)
		return epf_stats_say(reason, reason_bytes, -EINVAL,
				     "statistics options: size is %zu, want at least %zu: set "
				     ".size = sizeof(opts)",
				     opts->size, least);
	memcpy(own, opts, opts->size < sizeof(*own) ? opts->size : sizeof(*own));
	if (!own->instance || !is_name(own->instance))
		return epf_stats_say(reason, reason_bytes, -EINVAL,
				     "statistics: instance name must be 1..%u of A-Z a-z 0-9 . _ - "
				     "and not start with a dot",
				     EPF_STATS_NAME_BYTES - 1);
	if (!own->job)
		own->job = "";
	if (strlen(own->job) >= EPF_STATS_JOB_BYTES)
		return epf_stats_say(reason, reason_bytes, -EINVAL,
				     "statistics: job name of %zu bytes, EPF_STATS_JOB_BYTES "
				     "allows %u",
				     strlen(own->job), EPF_STATS_JOB_BYTES - 1);
	if (!own->mode)
		own->mode = 0640;
	return 0;
}

/* Where everything lies; blocks of a class lie together, in the order of their entries. */
static int plan_layout(const struct epf_stats_opts *opts, struct epf_stats *st,
		       struct epf_stats_header *h, char *reason, size_t reason_bytes)
{
	uint64_t entry_count = 0, end;
	unsigned c;

	for (c = 0; c < EPF_STATS_CLASSES; c++) {
		st->slots[c].first = (uint32_t)entry_count;
		st->slots[c].count = opts->blocks[c];
		entry_count += opts->blocks[c];
		if (entry_count > EPF_STATS_MAX_BLOCKS)
			return epf_stats_say(reason, reason_bytes, -E2BIG,
					     "statistics: more than EPF_STATS_MAX_BLOCKS (%u) "
					     "blocks asked for",
					     EPF_STATS_MAX_BLOCKS);
	}
	h->header_bytes = sizeof(struct epf_stats_header);
	h->class_stride = sizeof(struct epf_stats_class);
	h->row_stride = sizeof(struct epf_stats_row);
	h->entry_stride = sizeof(struct epf_stats_entry);
	h->class_count = EPF_STATS_CLASSES;
	h->row_count = epf_stats_schema_rows();
	h->entry_count = (uint32_t)entry_count;
	h->classes_offset = h->header_bytes;
	h->rows_offset = h->classes_offset + (uint64_t)h->class_count * h->class_stride;
	h->entries_offset = h->rows_offset + (uint64_t)h->row_count * h->row_stride;
	end = h->entries_offset + entry_count * h->entry_stride;
	h->blocks_offset = end = align_up(end, EPF_STATS_BLOCK_ALIGN);
	for (c = 0; c < EPF_STATS_CLASSES; c++)
		end += (uint64_t)opts->blocks[c] * epf_stats_schema_bytes(c);
	if (end > EPF_STATS_MAX_BYTES)
		return epf_stats_say(reason, reason_bytes, -E2BIG,
				     "statistics: blocks need %llu bytes, EPF_STATS_MAX_BYTES is "
				     "%llu",
				     (unsigned long long)end,
				     (unsigned long long)EPF_STATS_MAX_BYTES);
	h->total_bytes = end;
	return 0;
}

/* Fill new, zeroed bytes that nobody else can see yet. */
static void fill(struct epf_stats *st, const struct epf_stats_opts *opts,
		 const struct epf_stats_header *plan)
{
	struct epf_stats_header *h = (void *)st->base;
	uint64_t offset = plan->blocks_offset;
	uint32_t c, i;

	*h = *plan;
	h->magic = EPF_STATS_MAGIC;
	h->version_major = EPF_STATS_VERSION_MAJOR;
	h->version_minor = EPF_STATS_VERSION_MINOR;
	epf_stats_proc_self(&h->writer);
	h->tsc_hz = opts->tsc_hz;
	h->created_realtime_ns = clock_ns(CLOCK_REALTIME);
	h->created_monotonic_ns = clock_ns(CLOCK_MONOTONIC);
	strcpy(h->instance, opts->instance);
	for (i = 0; opts->job[i]; i++)
		h->job[i] = opts->job[i] < ' ' || opts->job[i] > '~' ? '?' : opts->job[i];
	h->phase = EPF_STATS_OPEN;

	st->header = h;
	st->entries = (void *)(st->base + h->entries_offset);
	for (c = 0; c < EPF_STATS_CLASSES; c++) {
		for (i = 0; i < st->slots[c].count; i++) {
			st->entries[st->slots[c].first + i].class_index = c;
			st->entries[st->slots[c].first + i].offset = offset;
			offset += epf_stats_schema_bytes(c);
		}
	}
	epf_stats_schema_fill(st->base);
}

int epf_stats_make_dir(const char *dir, char *reason, size_t reason_bytes)
{
	struct stat sb;

	if (mkdir(dir, 0755) && errno != EEXIST)
		return epf_stats_say(reason, reason_bytes, -errno,
				     "%s: cannot make the statistics directory: %s", dir,
				     strerror(errno));
	/* Not followed: a link could lead our files to where somebody else wants them. */
	if (lstat(dir, &sb))
		return epf_stats_say(reason, reason_bytes, -errno, "%s: %s", dir, strerror(errno));
	if (!S_ISDIR(sb.st_mode))
		return epf_stats_say(reason, reason_bytes, -ENOTDIR,
				     "%s: not a directory: remove it or set stats-dir", dir);
	if ((sb.st_uid != geteuid() && sb.st_uid != 0) || (sb.st_mode & (S_IWGRP | S_IWOTH)))
		return epf_stats_say(reason, reason_bytes, -EPERM,
				     "%s: belongs to uid %u with mode %03o, others could change "
				     "files in it: set stats-dir",
				     dir, (unsigned)sb.st_uid, (unsigned)sb.st_mode & 0777);
	return 0;
}

/* A file of the same name may be replaced, unless its writer still runs. */
static int check_old(const char *path, char *reason, size_t reason_bytes)
{
	struct epf_stats_reader *old;
	enum epf_stats_alive alive;
	uint64_t pid;

	if (epf_stats_reader_open(path, &old, NULL, 0))
		return 0; /* none, or none of ours: rename() will say what cannot be replaced */
	alive = epf_stats_reader_alive(old, 0, 0);
	pid = epf_stats_reader_info(old)->pid;
	epf_stats_reader_close(old);
	if (alive != EPF_STATS_ALIVE)
		return 0;
	return epf_stats_say(reason, reason_bytes, -EBUSY,
			     "%s: written by process %llu, which is running: stop it or choose "
			     "another instance name",
			     path, (unsigned long long)pid);
}

/* Make the file under a temporary name, with its space allocated, and map it. */
static int map_temp(const struct epf_stats_opts *opts, struct epf_stats *st, char *temp,
		    char *reason, size_t reason_bytes)
{
	struct stat sb;
	int fd, rc;

	fd = mkostemp(temp, O_CLOEXEC);
	if (fd < 0)
		return epf_stats_say(reason, reason_bytes, -errno, "%s: cannot create: %s", temp,
				     strerror(errno));
	do
		rc = -posix_fallocate(fd, 0, (off_t)st->bytes);
	while (rc == -EINTR);
	if (rc)
		goto err_unlink;
	if (fchmod(fd, (mode_t)opts->mode & 07777) || fstat(fd, &sb)) {
		rc = -errno;
		goto err_unlink;
	}
	st->dev = sb.st_dev;
	st->ino = sb.st_ino;
	st->base = mmap(NULL, st->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (st->base == MAP_FAILED) {
		st->base = NULL;
		rc = -errno;
		goto err_unlink;
	}
	st->is_file = true;
	close(fd);
	return 0;

err_unlink:
	epf_stats_say(reason, reason_bytes, rc, "%s: cannot set up %zu bytes: %s", temp, st->bytes,
		      strerror(-rc));
	close(fd);
	unlink(temp);
	return rc;
}

/* Once a second: a process that opens hundreds of files one after another would look at all of them each time. */
static void sweep(const char *dir)
{
	static uint64_t next_ns;
	uint64_t now = clock_ns(CLOCK_MONOTONIC), due = EPF_LOAD_RELAXED(&next_ns);

	if (now >= due && __atomic_compare_exchange_n(&next_ns, &due, now + SWEEP_EVERY_NS, false,
						      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		epf_stats_sweep(dir, clock_ns(CLOCK_REALTIME));
}

static int make_file(const struct epf_stats_opts *opts, struct epf_stats *st,
		     const struct epf_stats_header *plan, char *reason, size_t reason_bytes)
{
	char *temp;
	int rc = -ENOMEM;

	if (asprintf(&st->path, "%s/%s" EPF_STATS_SUFFIX, opts->dir, opts->instance) < 0) {
		st->path = NULL;
		return epf_stats_say(reason, reason_bytes, rc, "statistics: out of memory");
	}
	if (asprintf(&temp, "%s/.%s.XXXXXX", opts->dir, opts->instance) < 0)
		return epf_stats_say(reason, reason_bytes, rc, "statistics: out of memory");
	rc = check_old(st->path, reason, reason_bytes);
	if (rc)
		goto out_free;
	rc = map_temp(opts, st, temp, reason, reason_bytes);
	if (rc)
		goto out_free;
	fill(st, opts, plan);
	if (rename(temp, st->path)) {
		rc = epf_stats_say(reason, reason_bytes, -errno, "%s: cannot put in place: %s",
				   st->path, strerror(errno));
		unlink(temp);
	} else {
		sweep(opts->dir);
	}
out_free:
	free(temp);
	return rc;
}

static int make_memory(const struct epf_stats_opts *opts, struct epf_stats *st,
		       const struct epf_stats_header *plan, char *reason, size_t reason_bytes)
{
	void *base;

	if (posix_memalign(&base, EPF_STATS_BLOCK_ALIGN, st->bytes))
		return epf_stats_say(reason, reason_bytes, -ENOMEM,
				     "statistics: out of memory (%zu bytes)", st->bytes);
	memset(base, 0, st->bytes);
	st->base = base;
	fill(st, opts, plan);
	return 0;
}

static void release(struct epf_stats *st)
{
	if (st->is_file)
		munmap(st->base, st->bytes);
	else
		free(st->base);
	free(st->path);
	free(st);
}

int epf_stats_create(const struct epf_stats_opts *opts, struct epf_stats **out, char *reason,
		     size_t reason_bytes)
{
	struct epf_stats_header plan = { 0 };
	struct epf_stats_opts own;
	struct epf_stats *st;
	int rc;

	rc = take_opts(opts, &own, reason, reason_bytes);
	if (rc)
		return rc;
	st = calloc(1, sizeof(*st));
	if (!st)
		return epf_stats_say(reason, reason_bytes, -ENOMEM, "statistics: out of memory");
	st->owner = getpid();
	rc = plan_layout(&own, st, &plan, reason, reason_bytes);
	if (rc)
		goto err_release;
	st->bytes = plan.total_bytes;
	rc = own.dir ? make_file(&own, st, &plan, reason, reason_bytes)
		     : make_memory(&own, st, &plan, reason, reason_bytes);
	if (rc)
		goto err_release;
	*out = st;
	return 0;

err_release:
	release(st);
	return rc;
}

void epf_stats_destroy(struct epf_stats *stats, unsigned flags)
{
	struct stat sb;

	if (!stats)
		return;
	if (stats->owner == getpid()) {
		EPF_STORE_RELEASE(&stats->header->phase, (uint64_t)EPF_STATS_CLOSED);
		if (stats->is_file && !(flags & EPF_STATS_KEEP) && !stat(stats->path, &sb) &&
		    sb.st_dev == stats->dev && sb.st_ino == stats->ino)
			unlink(stats->path);
	}
	release(stats);
}

/*
 * Words of a slot that is being used again. The entry's state said "free" before: a reader that
 * loads (acquire) any word stored here sees that, too, and leaves the block out. [S1]
 */
static void store_words(void *to, const void *from, size_t bytes)
{
	uint64_t *dst = to, word = 0;
	size_t i;

	for (i = 0; i < bytes / 8; i++) {
		if (from)
			memcpy(&word, (const uint8_t *)from + 8 * i, 8);
		EPF_STORE_RELEASE(&dst[i], word);
	}
}

static int label_text(const struct epf_stats_label *label, uint32_t kind,
		      char out[EPF_STATS_LABEL_BYTES])
{
	if (!label->text) {
		snprintf(out, EPF_STATS_LABEL_BYTES, "%llu", (unsigned long long)label->number);
		return 0;
	}
	if (!is_text(label->text, EPF_STATS_LABEL_BYTES))
		return -EINVAL;
	if (kind == EPF_STATS_NUM && label->text[0])
		return -EINVAL;
	strcpy(out, label->text);
	return 0;
}

/*
 * A free entry, dequeued: the one freed longest ago, so that a reader in the middle of it is unlikely. Several threads may come at once: each
 * engine core brings its own blocks to life.
 */
static struct epf_stats_entry *take_slot(struct epf_stats *st, unsigned class_index)
{
	uint32_t i, at, next = EPF_LOAD_RELAXED(&st->slots[class_index].next);
	struct epf_stats_entry *entry;
	uint64_t state;

	for (i = 0; i < st->slots[class_index].count; i++) {
		at = (next + i) % st->slots[class_index].count;
		entry = &st->entries[st->slots[class_index].first + at];
		state = EPF_LOAD_RELAXED(&entry->state);
		if ((state & 0xff) == EPF_STATS_SLOT_FREE &&
		    __atomic_compare_exchange_n(&entry->state, &state,
						(state & ~(uint64_t)0xff) | EPF_STATS_SLOT_TAKEN,
						false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
			EPF_STORE_RELAXED(&st->slots[class_index].next, at + 1);
			return entry;
		}
	}
	return NULL;
}

int epf_stats_add_block(struct epf_stats *stats, unsigned class_index,
			const struct epf_stats_label *labels, unsigned label_count,
			struct epf_stats_block **out)
{
	char text[EPF_STATS_MAX_LABELS][EPF_STATS_LABEL_BYTES] = { { 0 } };
	uint64_t known[EPF_STATS_HEADER_WORDS] = { 0 };
	const struct epf_stats_class *cls;
	struct epf_stats_entry *entry;
	struct epf_stats_block *block;
	uint32_t i;

	if (class_index >= EPF_STATS_CLASSES)
		return -EINVAL;
	cls = (const void *)(stats->base + stats->header->classes_offset);
	cls += class_index;
	if (label_count != cls->label_count)
		return -EINVAL;
	for (i = 0; i < label_count; i++)
		if (label_text(&labels[i], cls->label_kind[i], text[i]))
			return -EINVAL;

	entry = take_slot(stats, class_index);
	if (!entry)
		return -ENOSPC;
	block = (void *)(stats->base + entry->offset);
	store_words(entry->label, text, sizeof(text));
	store_words(block, NULL, cls->block_bytes);
	epf_stats_schema_known(class_index, known);
	store_words(block->known, known, sizeof(known));
	/* A reader that sees "live" sees all of the above: pairs with its acquire loads. */
	EPF_STORE_RELEASE(&entry->state, ((entry->state >> 8) + 1) << 8 | EPF_STATS_SLOT_LIVE);
	*out = block;
	return 0;
}

void epf_stats_remove_block(struct epf_stats *stats, struct epf_stats_block *block)
{
	uint64_t offset;
	uint32_t i;

	if (!block)
		return;
	offset = (uint64_t)((uint8_t *)block - stats->base);
	for (i = 0; i < stats->header->entry_count; i++) {
		struct epf_stats_entry *entry = &stats->entries[i];

		if (entry->offset != offset)
			continue;
		if ((entry->state & 0xff) == EPF_STATS_SLOT_LIVE)
			EPF_STORE_RELEASE(&entry->state,
					  ((entry->state >> 8) + 1) << 8 | EPF_STATS_SLOT_FREE);
		return;
	}
}

void epf_stats_beat(struct epf_stats *stats, uint64_t now_ns)
{
	EPF_STORE_RELAXED(&stats->header->heartbeat_ns, now_ns);
}

const char *epf_stats_path(const struct epf_stats *stats)
{
	return stats->path;
}

const void *epf_stats_memory(const struct epf_stats *stats, size_t *bytes)
{
	*bytes = stats->bytes;
	return stats->base;
}
