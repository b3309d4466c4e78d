/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a statistics file: every byte of it is foreign. The header and the schema are copied and
 * checked (stats_check.c) once; each refresh copies the directory, the living blocks and the directory again, and
 * keeps the blocks whose entry did not change in between. Called by tools. It must never use an
 * offset, index or string of the file that has not been checked, nor read the file a second time
 * for something already checked.
 */
#include "queues/stats_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_file(struct epf_stats_reader *r, uint64_t offset, uint8_t *to, size_t bytes)
{
	while (bytes) {
		ssize_t n = pread(r->fd, to, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return FAIL(r, -errno, "%s: cannot read: %s", label_of(r), strerror(errno));
		if (n == 0)
			return FAIL(r, -ENODATA, "%s: cut short at byte %llu of %llu", label_of(r),
				    (unsigned long long)offset,
				    (unsigned long long)r->h.total_bytes);
		to += n;
		offset += (uint64_t)n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* offset and bytes are multiples of 8; acquire pairs with the releases of stats_map.c. */
static int read_source(struct epf_stats_reader *r, uint64_t offset, void *to, size_t bytes)
{
	const uint64_t *from;
	uint64_t word;
	size_t i;

	if (r->fd >= 0)
		return read_file(r, offset, to, bytes);
	if (offset > r->source_bytes || bytes > r->source_bytes - offset)
		return FAIL(r, -ENODATA, "%s: cut short at byte %llu", label_of(r),
			    (unsigned long long)r->source_bytes);
	from = (const void *)(r->memory + offset);
	for (i = 0; i < bytes / 8; i++) {
		word = EPF_LOAD_ACQUIRE(&from[i]); /* S1 */
		memcpy((uint8_t *)to + 8 * i, &word, 8);
	}
	return 0;
}

static bool is_live(const struct epf_stats_entry *e)
{
	return (e->state & 0xff) == EPF_STATS_SLOT_LIVE;
}

/* The first copy of the directory: which blocks to read. */
static int list_live(struct epf_stats_reader *r, struct reading *next)
{
	uint64_t bytes = 0;
	uint32_t i;

	for (i = 0; i < r->h.entry_count; i++) {
		const struct epf_stats_entry *e =
			(const void *)(r->raw_entries[0] + (size_t)i * r->h.entry_stride);

		memcpy(&next->entries[i], e, sizeof(*e));
		if (!is_live(e))
			continue;
		next->live[next->live_count++] = i;
		if (!epf_stats_check_entry(r, e))
			continue; /* damaged, or changing right now: drop_changed decides */
		bytes += class_at(r, e->class_index)->block_bytes;
		if (bytes > r->blocks_bytes)
			return FAIL(r, -EBADMSG, "%s: damaged: blocks overlap", label_of(r));
	}
	return 0;
}

/* Read the living blocks, neighbours in one go. */
static int read_blocks(struct epf_stats_reader *r, struct reading *next)
{
	uint64_t start = 0, end = 0;
	uint32_t i;
	int rc;

	for (i = 0; i <= next->live_count; i++) {
		const struct epf_stats_entry *e =
			i < next->live_count ? &next->entries[next->live[i]] : NULL;

		if (e && !epf_stats_check_entry(r, e))
			continue;
		if (e && e->offset == end) {
			end += class_at(r, e->class_index)->block_bytes;
			continue;
		}
		rc = end == start
			     ? 0
			     : read_source(r, start, next->blocks + (start - r->h.blocks_offset),
					   end - start);
		if (rc)
			return rc;
		if (e) {
			start = e->offset;
			end = start + class_at(r, e->class_index)->block_bytes;
		}
	}
	return 0;
}

/* The second copy: a block whose entry changed meanwhile may hold numbers of two owners. */
static int drop_changed(struct epf_stats_reader *r, struct reading *next)
{
	uint32_t i, kept = 0;

	for (i = 0; i < next->live_count; i++) {
		size_t at = (size_t)next->live[i] * r->h.entry_stride;

		if (memcmp(r->raw_entries[0] + at, r->raw_entries[1] + at, r->h.entry_stride)) {
			next->changing++;
			continue;
		}
		if (!epf_stats_check_entry(r, &next->entries[next->live[i]]))
			return FAIL(r, -EBADMSG, "%s: damaged: directory entry %u", label_of(r),
				    next->live[i]);
		next->live[kept++] = next->live[i];
	}
	next->live_count = kept;
	return 0;
}

int epf_stats_reader_refresh(struct epf_stats_reader *reader, char *reason, size_t reason_bytes)
{
	struct epf_stats_reader *r = reader;
	size_t dir_bytes = (size_t)r->h.entry_count * r->h.entry_stride;
	struct reading *next = &r->next, swap;
	uint64_t changing_words[2];
	int rc;

	r->reason = reason;
	r->reason_bytes = reason_bytes;
	next->live_count = 0;
	next->changing = 0;
	rc = read_source(r, offsetof(struct epf_stats_header, phase), changing_words,
			 sizeof(changing_words));
	if (!rc)
		rc = read_source(r, r->h.entries_offset, r->raw_entries[0], dir_bytes);
	if (!rc)
		rc = list_live(r, next);
	if (!rc)
		rc = read_blocks(r, next);
	if (!rc)
		rc = read_source(r, r->h.entries_offset, r->raw_entries[1], dir_bytes);
	if (!rc)
		rc = drop_changed(r, next);
	r->reason_bytes = 0; /* the caller's memory is not ours any more */
	if (rc)
		return rc;
	next->phase = changing_words[0];
	next->heartbeat_ns = changing_words[1];
	swap = r->now;
	r->now = *next;
	*next = swap;
	r->info.heartbeat_ns = r->now.heartbeat_ns;
	r->info.block_count = r->now.live_count;
	r->info.blocks_changing = r->now.changing;
	return 0;
}

static bool alloc_reading(const struct epf_stats_reader *r, struct reading *reading)
{
	reading->blocks = malloc(r->blocks_bytes + 8);
	reading->live = malloc(r->h.entry_count * sizeof(*reading->live) + 8);
	reading->entries = malloc(r->h.entry_count * sizeof(*reading->entries) + 8);
	return reading->blocks && reading->live && reading->entries;
}

static int alloc_all(struct epf_stats_reader *r)
{
	size_t dir_bytes = (size_t)r->h.entry_count * r->h.entry_stride;

	r->blocks_bytes = r->h.total_bytes - r->h.blocks_offset;
	r->classes = malloc((size_t)r->h.class_count * r->h.class_stride + 8);
	r->rows = malloc((size_t)r->h.row_count * r->h.row_stride + 8);
	r->raw_entries[0] = malloc(dir_bytes + 8);
	r->raw_entries[1] = malloc(dir_bytes + 8);
	if (!r->classes || !r->rows || !r->raw_entries[0] || !r->raw_entries[1] ||
	    !alloc_reading(r, &r->now) || !alloc_reading(r, &r->next))
		return FAIL(r, -ENOMEM, "%s: out of memory", label_of(r));
	return 0;
}

static void fill_info(struct epf_stats_reader *r)
{
	struct epf_stats_info *info = &r->info;

	memcpy(info->instance, r->h.instance, sizeof(info->instance));
	memcpy(info->job, r->h.job, sizeof(info->job));
	info->version_major = r->h.version_major;
	info->version_minor = r->h.version_minor;
	info->pid = r->h.writer.pid;
	info->pid_space = r->h.writer.pid_space;
	info->tsc_hz = r->h.tsc_hz;
	info->created_realtime_ns = r->h.created_realtime_ns;
	info->created_monotonic_ns = r->h.created_monotonic_ns;
	info->class_count = r->h.class_count;
}

/* The source is set: check it all. */
static int load(struct epf_stats_reader *r)
{
	char *reason = r->reason;
	size_t reason_bytes = r->reason_bytes;
	int rc;

	if (r->source_bytes < sizeof(r->h))
		return FAIL(r, -ENODATA, "%s: %llu bytes, not even the header of a statistics file",
			    label_of(r), (unsigned long long)r->source_bytes);
	rc = read_source(r, 0, &r->h, sizeof(r->h));
	if (!rc)
		rc = epf_stats_check_header(r);
	if (!rc)
		rc = alloc_all(r);
	if (!rc)
		rc = read_source(r, r->h.classes_offset, r->classes,
				 (size_t)r->h.class_count * r->h.class_stride);
	if (!rc)
		rc = read_source(r, r->h.rows_offset, r->rows,
				 (size_t)r->h.row_count * r->h.row_stride);
	if (!rc)
		rc = epf_stats_check_schema(r);
	if (rc)
		return rc;
	fill_info(r);
	return epf_stats_reader_refresh(r, reason, reason_bytes);
}

static int open_source(struct epf_stats_reader *r, const char *path)
{
	struct stat sb;

	r->path = strdup(path);
	if (!r->path)
		return FAIL(r, -ENOMEM, "%s: out of memory", path);
	/* Not blocking: the name may be that of a FIFO. */
	r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (r->fd < 0 || fstat(r->fd, &sb))
		return FAIL(r, -errno, "%s: cannot open: %s", path, strerror(errno));
	if (!S_ISREG(sb.st_mode))
		return FAIL(r, -EBADMSG, "%s: not a regular file", path);
	r->source_bytes = (uint64_t)sb.st_size;
	return 0;
}

int epf_stats_reader_open(const char *path, struct epf_stats_reader **out, char *reason,
			  size_t reason_bytes)
{
	struct epf_stats_reader *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return epf_stats_say(reason, reason_bytes, -ENOMEM, "%s: out of memory", path);
	r->fd = -1;
	r->reason = reason;
	r->reason_bytes = reason_bytes;
	rc = open_source(r, path);
	if (!rc)
		rc = load(r);
	if (rc)
		epf_stats_reader_close(r);
	else
		*out = r;
	return rc;
}

int epf_stats_reader_memory(const void *base, size_t bytes, struct epf_stats_reader **out,
			    char *reason, size_t reason_bytes)
{
	struct epf_stats_reader *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return epf_stats_say(reason, reason_bytes, -ENOMEM, "statistics: out of memory");
	r->fd = -1;
	r->memory = base;
	r->source_bytes = bytes;
	r->reason = reason;
	r->reason_bytes = reason_bytes;
	rc = load(r);
	if (rc)
		epf_stats_reader_close(r);
	else
		*out = r;
	return rc;
}

void epf_stats_reader_close(struct epf_stats_reader *reader)
{
	if (!reader)
		return;
	if (reader->fd >= 0)
		close(reader->fd);
	free(reader->path);
	free(reader->classes);
	free(reader->rows);
	free(reader->raw_entries[0]);
	free(reader->raw_entries[1]);
	free(reader->now.blocks);
	free(reader->now.live);
	free(reader->now.entries);
	free(reader->next.blocks);
	free(reader->next.live);
	free(reader->next.entries);
	free(reader);
}

const struct epf_stats_info *epf_stats_reader_info(const struct epf_stats_reader *reader)
{
	return &reader->info;
}

enum epf_stats_alive epf_stats_reader_alive(const struct epf_stats_reader *reader, uint64_t now_ns,
					    uint64_t stale_after_ns)
{
	enum epf_stats_alive alive;
	uint64_t beat = reader->now.heartbeat_ns;

	if ((reader->now.phase & 0xff) == EPF_STATS_CLOSED)
		return EPF_STATS_ENDED;
	alive = epf_stats_proc_alive(&reader->h.writer);
	if (alive == EPF_STATS_ALIVE && stale_after_ns && beat && now_ns > beat &&
	    now_ns - beat > stale_after_ns)
		return EPF_STATS_STALE;
	return alive;
}

bool epf_stats_reader_replaced(const struct epf_stats_reader *reader)
{
	struct stat path, own;

	if (reader->fd < 0)
		return false;
	return stat(reader->path, &path) || fstat(reader->fd, &own) || path.st_dev != own.st_dev ||
	       path.st_ino != own.st_ino;
}

const struct epf_stats_class *epf_stats_reader_class(const struct epf_stats_reader *reader,
						     unsigned class_index)
{
	return class_index < reader->h.class_count ? class_at(reader, class_index) : NULL;
}

const struct epf_stats_row *epf_stats_reader_row(const struct epf_stats_reader *reader,
						 unsigned class_index, unsigned row)
{
	const struct epf_stats_class *cls = epf_stats_reader_class(reader, class_index);

	return cls && row < cls->row_count ? row_at(reader, cls->first_row + row) : NULL;
}

const struct epf_stats_entry *epf_stats_reader_block(const struct epf_stats_reader *reader,
						     unsigned block)
{
	return block < reader->now.live_count ? &reader->now.entries[reader->now.live[block]]
					      : NULL;
}

static void state_name(const char *names, uint64_t state, char *out, size_t bytes)
{
	uint64_t i;

	snprintf(out, bytes, "%llu", (unsigned long long)state);
	for (i = 0; i < state; i++) {
		names = strchr(names, '|');
		if (!names)
			return;
		names++;
	}
	if (strcspn(names, "|"))
		snprintf(out, bytes, "%.*s", (int)strcspn(names, "|"), names);
}

void epf_stats_reader_value(const struct epf_stats_reader *reader, unsigned block, unsigned row,
			    struct epf_stats_value *out)
{
	const struct epf_stats_entry *e = epf_stats_reader_block(reader, block);
	const struct epf_stats_row *desc =
		e ? epf_stats_reader_row(reader, e->class_index, row) : NULL;
	const uint64_t *words;

	memset(out, 0, sizeof(*out));
	if (!desc)
		return;
	words = (const void *)(reader->now.blocks + (e->offset - reader->h.blocks_offset));
	out->type = desc->type;
	if (!(words[row / 64] >> row % 64 & 1))
		return;
	out->known = true;
	out->number = words[desc->word];
	switch (desc->type) {
	case EPF_STATS_COUNTER:
	case EPF_STATS_GAUGE:
		break;
	case EPF_STATS_STATE:
		out->since_ns = out->number & EPF_STATS_SINCE_MASK;
		out->number >>= EPF_STATS_STATE_SHIFT;
		state_name(desc->states, out->number, out->state, sizeof(out->state));
		break;
	case EPF_STATS_HISTOGRAM:
		if (desc->shape == EPF_HIST_SUB_BITS) {
			out->hist = (const void *)&words[desc->word];
			out->number = epf_hist_count(out->hist);
			break;
		}
		out->known = false; /* a shape that this program does not know */
		break;
	case EPF_STATS_EVENTS:
		out->known = desc->shape == EPF_FLIGHT_EVENT_WORDS;
		out->number = out->known ? desc->words / EPF_FLIGHT_EVENT_WORDS : 0;
		out->events = out->known ? (const void *)&words[desc->word] : NULL;
		break;
	default:
		out->known = false;
		break;
	}
}
