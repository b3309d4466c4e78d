/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of stats_keys.h in memory, and its way into a file that is being made. Called by
 * stats_map.c only. It must never be asked by a reader: readers use the schema in the file.
 */
#include "queues/stats_priv.h"

#include <string.h>

struct class_def {
	const char *name;
	const char *help;
	const char *labels; /* "name=kind name=kind" */
	uint32_t block_bytes;
	uint32_t row_count;
};

struct row_def {
	uint32_t class_index;
	uint32_t type;
	uint32_t word;
	uint32_t words;
	const char *name;
	const char *unit;
	const char *states;
	const char *help;
};

/* clang-format off */
static const struct class_def classes[] = {
#define EPF_CLASS(id, name, help, labels) \
	{ name, help, labels, EPF_STATS_BLOCK_BYTES(id), EPF_STATROWS_##id },
#include "queues/stats_keys.h"
};

static const struct row_def rows[] = {
#define EPF_ROW(cls, id, name, unit, type, states, help) \
	{ EPF_STATS_##cls, EPF_STATS_##type, EPF_STATWORD_##cls##_##id, EPF_STATWORDS_##type, \
	  name, unit, states, help },
#include "queues/stats_keys.h"
};

#define FITS(text, record, member) \
	EPF_STATIC_ASSERT(sizeof(text) <= sizeof(((struct record *)0)->member), "too long: " text);
#define EPF_CLASS(id, cname, chelp, labels) \
	FITS(cname, epf_stats_class, name) FITS(chelp, epf_stats_class, help)
#define EPF_ROW(cls, id, rname, runit, type, rstates, rhelp) \
	FITS(rname, epf_stats_row, name) FITS(runit, epf_stats_row, unit) \
	FITS(rstates, epf_stats_row, states) FITS(rhelp, epf_stats_row, help)
#include "queues/stats_keys.h"
/* clang-format on */

#define ROW_COUNT ((uint32_t)(sizeof(rows) / sizeof(rows[0])))

uint32_t epf_stats_schema_rows(void)
{
	return ROW_COUNT;
}

uint32_t epf_stats_schema_bytes(unsigned class_index)
{
	return classes[class_index].block_bytes;
}

static void fill_labels(struct epf_stats_class *cls, const char *spec)
{
	while (*spec) {
		size_t name = strcspn(spec, "="), kind;

		memcpy(cls->label[cls->label_count], spec, name);
		spec += name + 1;
		kind = strcspn(spec, " ");
		cls->label_kind[cls->label_count] = *spec == 'n' ? EPF_STATS_NUM : EPF_STATS_TEXT;
		cls->label_count++;
		spec += kind + (spec[kind] == ' ');
	}
}

void epf_stats_schema_fill(uint8_t *base)
{
	const struct epf_stats_header *h = (const void *)base;
	struct epf_stats_class *cls = (void *)(base + h->classes_offset);
	struct epf_stats_row *row = (void *)(base + h->rows_offset);
	uint32_t i;

	for (i = 0; i < EPF_STATS_CLASSES; i++) {
		strcpy(cls[i].name, classes[i].name);
		strcpy(cls[i].help, classes[i].help);
		fill_labels(&cls[i], classes[i].labels);
		cls[i].row_count = classes[i].row_count;
		cls[i].block_bytes = classes[i].block_bytes;
		cls[i].first_row = i ? cls[i - 1].first_row + cls[i - 1].row_count : 0;
	}
	for (i = 0; i < ROW_COUNT; i++) {
		strcpy(row[i].name, rows[i].name);
		strcpy(row[i].unit, rows[i].unit);
		strcpy(row[i].states, rows[i].states);
		strcpy(row[i].help, rows[i].help);
		row[i].type = rows[i].type;
		row[i].word = rows[i].word;
		row[i].words = rows[i].words;
		row[i].shape = rows[i].type == EPF_STATS_HISTOGRAM ? EPF_HIST_SUB_BITS
			       : rows[i].type == EPF_STATS_EVENTS  ? EPF_FLIGHT_EVENT_WORDS
								   : 0;
	}
}

void epf_stats_schema_known(unsigned class_index, uint64_t known[EPF_STATS_HEADER_WORDS])
{
	uint32_t i, in_class = 0;

	for (i = 0; i < ROW_COUNT; i++) {
		if (rows[i].class_index != class_index)
			continue;
		if (rows[i].type == EPF_STATS_COUNTER || rows[i].type == EPF_STATS_HISTOGRAM)
			known[in_class / 64] |= (uint64_t)1 << in_class % 64;
		in_class++;
	}
}
