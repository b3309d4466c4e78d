/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is what a statistics file says about itself sound? Called by stats_read.c on its private copies,
 * so that a checked byte cannot change afterwards. It must never read the file, nor pass anything
 * that could lead the reader outside its copies, or steer a terminal.
 */
#include "queues/stats_reader.h"

#include <errno.h>
#include <string.h>

/* A terminated string of printable ASCII: nothing that could steer a terminal. */
static bool is_text(const char *s, size_t bytes)
{
	size_t i;

	for (i = 0; i < bytes; i++) {
		if (s[i] == '\0')
			return true;
		if (s[i] < ' ' || s[i] > '~')
			return false;
	}
	return false;
}

/* A terminated identifier: what JSON keys and metric names may be made of. */
static bool is_ident(const char *s, size_t bytes)
{
	return is_text(s, bytes) && s[0] >= 'a' && s[0] <= 'z' &&
	       s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0';
}

/* Is [offset, offset + count * stride) inside the file, behind the header, on words? */
static bool is_inside(const struct epf_stats_header *h, uint64_t offset, uint64_t count,
		      uint64_t stride)
{
	return offset % 8 == 0 && offset >= h->header_bytes && offset <= h->total_bytes &&
	       count * stride <= h->total_bytes - offset;
}

static bool is_stride(uint32_t stride, size_t least)
{
	return stride >= least && stride <= EPF_STATS_MAX_STRIDE && stride % 8 == 0;
}

static int check_limits(struct epf_stats_reader *r, const struct epf_stats_header *h)
{
	if (h->total_bytes > EPF_STATS_MAX_BYTES)
		return FAIL(r, -EFBIG, "%s: %llu bytes, EPF_STATS_MAX_BYTES is %llu", label_of(r),
			    (unsigned long long)h->total_bytes,
			    (unsigned long long)EPF_STATS_MAX_BYTES);
	if (h->class_count > EPF_STATS_MAX_CLASSES)
		return FAIL(r, -EFBIG, "%s: %u classes, EPF_STATS_MAX_CLASSES is %u", label_of(r),
			    h->class_count, EPF_STATS_MAX_CLASSES);
	if (h->row_count > EPF_STATS_MAX_CLASSES * EPF_STATS_MAX_ROWS)
		return FAIL(r, -EFBIG, "%s: %u rows, EPF_STATS_MAX_ROWS is %u a class", label_of(r),
			    h->row_count, EPF_STATS_MAX_ROWS);
	if (h->entry_count > EPF_STATS_MAX_BLOCKS)
		return FAIL(r, -EFBIG, "%s: %u blocks, EPF_STATS_MAX_BLOCKS is %u", label_of(r),
			    h->entry_count, EPF_STATS_MAX_BLOCKS);
	return 0;
}

int epf_stats_check_header(struct epf_stats_reader *r)
{
	const struct epf_stats_header *h = &r->h;
	int rc;

	if (h->magic != EPF_STATS_MAGIC)
		return FAIL(r, -EBADMSG, "%s: not a statistics file", label_of(r));
	if (h->version_major != EPF_STATS_VERSION_MAJOR)
		return FAIL(r, -EPROTONOSUPPORT,
			    "%s: layout version %u, this program reads %u: use the one that came "
			    "with the engine",
			    label_of(r), h->version_major, EPF_STATS_VERSION_MAJOR);
	rc = check_limits(r, h);
	if (rc)
		return rc;
	if (h->total_bytes > r->source_bytes)
		return FAIL(r, -ENODATA, "%s: cut short: %llu of %llu bytes", label_of(r),
			    (unsigned long long)r->source_bytes,
			    (unsigned long long)h->total_bytes);
	if (!is_stride(h->header_bytes, sizeof(*h)) ||
	    !is_stride(h->class_stride, sizeof(struct epf_stats_class)) ||
	    !is_stride(h->row_stride, sizeof(struct epf_stats_row)) ||
	    !is_stride(h->entry_stride, sizeof(struct epf_stats_entry)))
		return FAIL(r, -EBADMSG, "%s: damaged: sizes of records", label_of(r));
	if (!is_inside(h, h->classes_offset, h->class_count, h->class_stride) ||
	    !is_inside(h, h->rows_offset, h->row_count, h->row_stride) ||
	    !is_inside(h, h->entries_offset, h->entry_count, h->entry_stride) ||
	    !is_inside(h, h->blocks_offset, 0, 0))
		return FAIL(r, -EBADMSG, "%s: damaged: sections outside the file", label_of(r));
	if (!is_text(h->instance, sizeof(h->instance)) || !is_text(h->job, sizeof(h->job)))
		return FAIL(r, -EBADMSG, "%s: damaged: instance or job name", label_of(r));
	return 0;
}

static bool class_is_good(const struct epf_stats_reader *r, const struct epf_stats_class *cls)
{
	uint32_t i;

	if (!is_ident(cls->name, sizeof(cls->name)) || !is_text(cls->help, sizeof(cls->help)) ||
	    cls->label_count > EPF_STATS_MAX_LABELS || cls->row_count > EPF_STATS_MAX_ROWS ||
	    cls->first_row > r->h.row_count || cls->row_count > r->h.row_count - cls->first_row ||
	    cls->block_bytes % EPF_STATS_BLOCK_ALIGN != 0 || cls->block_bytes == 0 ||
	    cls->block_bytes > EPF_STATS_MAX_BYTES)
		return false;
	for (i = 0; i < cls->label_count; i++)
		if (!is_ident(cls->label[i], sizeof(cls->label[i])))
			return false;
	return true;
}

static bool row_is_good(const struct epf_stats_class *cls, const struct epf_stats_row *row)
{
	uint32_t words = cls->block_bytes / 8;

	if (!is_ident(row->name, sizeof(row->name)) || !is_text(row->unit, sizeof(row->unit)) ||
	    !is_text(row->states, sizeof(row->states)) || !is_text(row->help, sizeof(row->help)))
		return false;
	if (row->word < EPF_STATS_HEADER_WORDS || row->word >= words || row->words == 0 ||
	    row->words > words - row->word)
		return false;
	return row->type != EPF_STATS_HISTOGRAM || row->shape != EPF_HIST_SUB_BITS ||
	       row->words == EPF_HIST_WORDS;
}

int epf_stats_check_schema(struct epf_stats_reader *r)
{
	uint32_t c, i;

	for (c = 0; c < r->h.class_count; c++) {
		const struct epf_stats_class *cls = class_at(r, c);

		if (!class_is_good(r, cls))
			return FAIL(r, -EBADMSG, "%s: damaged: class %u", label_of(r), c);
		for (i = 0; i < cls->row_count; i++)
			if (!row_is_good(cls, row_at(r, cls->first_row + i)))
				return FAIL(r, -EBADMSG, "%s: damaged: row %u of class %s",
					    label_of(r), i, cls->name);
	}
	return 0;
}

/* Check a living entry; its block lies inside the blocks' part of the file. */
bool epf_stats_check_entry(const struct epf_stats_reader *r, const struct epf_stats_entry *e)
{
	const struct epf_stats_class *cls;
	uint32_t i;

	if (e->class_index >= r->h.class_count)
		return false;
	cls = class_at(r, e->class_index);
	if (e->offset % 8 != 0 || e->offset < r->h.blocks_offset || e->offset > r->h.total_bytes ||
	    cls->block_bytes > r->h.total_bytes - e->offset)
		return false;
	for (i = 0; i < cls->label_count; i++)
		if (!is_text(e->label[i], sizeof(e->label[i])))
			return false;
	return true;
}
