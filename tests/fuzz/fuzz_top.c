/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: any bytes as a recording of ep-top (--replay): every record read, forwards and then from its end, and each shown as all that ep-top makes of
 * one: screens in totals and in rates, details of each line, the header, JSON, metrics. What is printed is JSON again and reads as a record again. The
 * seeds are recordings of real jobs, shortened.
 */
#include "tools/top_source.h"
#include "tools/top_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SHOTS_MOST = 8 };

static volatile uint64_t sink;
static FILE *nowhere;

static void detail(void *arg, const char *name, const char *value, const char *help)
{
	(void)arg;
	sink += strlen(name) + strlen(value) + strlen(help);
}

static void screens(const struct top_schema *schema, const struct top_shot *now,
		    const struct top_shot *before)
{
	char lines[TOP_HEADER_LINES][TOP_HEADER_BYTES];
	struct top_table table = { 0 };
	enum top_colour health;

	top_format_header(schema, now, before, lines, &health);
	for (unsigned i = 0; i < 2u * TOP_SCREENS; i++) {
		struct top_look look = { .screen = i / 2, .totals = i & 1, .sort = i % 5 };

		if (top_table_make(&table, schema, now, before, &look))
			abort();
		for (uint32_t l = 0; l < table.n_lines && l < SHOTS_MOST; l++)
			sink += top_details(schema, now, before, &table.line[l], detail, NULL);
	}
	top_table_free(&table);
	if (top_print(nowhere, schema, now, before,
		      &(struct top_look){ .screen = TOP_SCREENS, .sort = TOP_NATURAL }) ||
	    top_prometheus(nowhere, schema, now, false))
		abort();
}

/* What was read is written, and read by who knows nothing of it. */
static void again(const struct top_schema *schema, const struct top_shot *shot)
{
	struct top_schema *other = top_schema_new();
	json_t *json = top_json(schema, shot, true);
	struct top_shot *same = NULL;
	char why[128];

	if (!other || !json || top_load(other, json, &same, why, sizeof(why)))
		abort();
	if (same->n_instances != shot->n_instances)
		abort();
	top_shot_free(same);
	json_decref(json);
	top_schema_free(other);
}

static void replay(struct top_source *source, const struct top_schema *schema)
{
	struct top_shot *now = NULL, *before = NULL;
	char why[256];

	for (unsigned i = 0; i < SHOTS_MOST; i++) {
		top_shot_free(before);
		before = now;
		now = NULL;
		if (top_source_next(source, &now, why, sizeof(why)))
			break;
		screens(schema, now, before);
		again(schema, now);
	}
	top_shot_free(now);
	top_shot_free(before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct top_schema *schema = top_schema_new();
	struct top_source *source;
	char path[64], why[256];
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	nowhere = nowhere ? nowhere : fopen("/dev/null", "w");
	if (!schema || !nowhere || fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (!top_source_replay(&source, schema, path, why, sizeof(why))) {
		replay(source, schema);
		top_source_seek(source, top_source_records(source));
		replay(source, schema);
		sink += top_source_damaged(source) + top_source_at(source);
		top_source_close(source);
	}
	top_schema_free(schema);
	close(fd);
	return 0;
}
