/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: any bytes as a recording of ep-top (--replay): every record read, forwards and then from its end, and each shown as all that ep-top makes of
 * one: screens in totals and in rates, details of each line, the header, JSON, metrics. What is printed is JSON again and reads as a record again.
 *
 * A wrong index or count need not harm anybody who is shown it, since those who show look again: so what the loader hands out is also held against what
 * tools/top/top.h says of it, and what it reads of its own JSON against what it had. The seeds are recordings of real jobs, shortened, and ones with indices, counts
 * and texts at each limit and one beyond it.
 */
#include "tools/top/source.h"
#include "tools/top/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SHOTS_MOST = 8 };

static volatile uint64_t sink;
static FILE *nowhere;

static void must(bool good)
{
	if (!good)
		abort();
}

/* Ends within its array, and nothing in it that a terminal would obey. */
static void must_be_text(const char *text, size_t bytes)
{
	size_t n = strnlen(text, bytes);

	must(n < bytes);
	for (size_t i = 0; i < n; i++)
		must(text[i] >= ' ' && text[i] <= '~');
}

#define MUST_BE_TEXT(array) must_be_text(array, sizeof(array))

static void must_be_name(const char *text, size_t bytes)
{
	must_be_text(text, bytes);
	must(*text >= 'a' && *text <= 'z');
	for (; *text; text++)
		must((*text >= 'a' && *text <= 'z') || (*text >= '0' && *text <= '9') ||
		     *text == '_');
}

static void must_be_schema(const struct top_schema *schema)
{
	must(schema->n_classes <= TOP_MAX_CLASSES);
	for (uint32_t c = 0; c < schema->n_classes; c++) {
		const struct top_class *cls = &schema->cls[c];

		must_be_name(cls->name, sizeof(cls->name));
		MUST_BE_TEXT(cls->help);
		must(cls->n_labels <= EPF_STATS_MAX_LABELS && cls->n_rows <= TOP_MAX_ROWS);
		must(top_class_find(schema, cls->name) == c);
		for (uint32_t i = 0; i < cls->n_labels; i++)
			must_be_name(cls->label[i], sizeof(cls->label[i]));
		for (uint32_t i = 0; i < cls->n_rows; i++) {
			must_be_name(cls->row[i].name, sizeof(cls->row[i].name));
			MUST_BE_TEXT(cls->row[i].unit);
			MUST_BE_TEXT(cls->row[i].states);
			MUST_BE_TEXT(cls->row[i].help);
			must(top_row_find(cls, cls->row[i].name) == i);
		}
	}
}

static void must_be_block(const struct top_schema *schema, const struct top_shot *shot,
			  const struct top_block *block)
{
	const struct top_class *cls;

	must(block->cls < schema->n_classes && block->instance < shot->n_instances);
	cls = &schema->cls[block->cls];
	must(block->n_values <= cls->n_rows);
	for (uint32_t i = 0; i < EPF_STATS_MAX_LABELS; i++)
		MUST_BE_TEXT(block->label[i]);
	for (uint32_t i = 0; i < block->n_values; i++) {
		const struct top_value *v = &block->value[i];

		must(v->known || (!v->number && !v->since_ns && !v->hist));
		must(!v->hist || cls->row[i].type == EPF_STATS_HISTOGRAM);
		must(cls->row[i].type != EPF_STATS_STATE || v->number <= 15);
		sink += v->hist ? v->hist->p999 : 0;
	}
}

static bool is_index(uint32_t at, uint32_t n)
{
	return at < n || at == TOP_NONE;
}

static void must_be_shot(const struct top_schema *schema, const struct top_shot *shot)
{
	uint32_t blocks = 0;

	must_be_schema(schema);
	MUST_BE_TEXT(shot->host);
	for (uint32_t i = 0; i < shot->n_instances; i++) {
		const struct top_instance *in = &shot->instance[i];

		MUST_BE_TEXT(in->path);
		MUST_BE_TEXT(in->name);
		MUST_BE_TEXT(in->job);
		MUST_BE_TEXT(in->error);
		must((unsigned)in->alive <= EPF_STATS_ENDED);
		must(!in->process || (in->process >= 'A' && in->process <= 'z'));
		must(in->first_block == blocks && (in->read || !in->n_blocks));
		for (uint32_t b = 0; b < in->n_blocks; b++)
			must(shot->block[blocks++].instance == i);
	}
	must(blocks == shot->n_blocks);
	for (uint32_t b = 0; b < shot->n_blocks; b++)
		must_be_block(schema, shot, &shot->block[b]);
	for (uint32_t i = 0; i < shot->n_jobs; i++)
		MUST_BE_TEXT(shot->job[i].name);
	for (uint32_t i = 0; i < shot->n_waits; i++) {
		const struct top_wait *w = &shot->wait[i];

		MUST_BE_TEXT(w->who);
		MUST_BE_TEXT(w->reason);
		MUST_BE_TEXT(w->text);
		must(is_index(w->job, shot->n_jobs) && is_index(w->instance, shot->n_instances));
		must(is_index(w->follows, shot->n_waits));
	}
}

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
	must_be_shot(other, same);
	must(same->n_instances == shot->n_instances && same->n_blocks == shot->n_blocks);
	must(same->n_jobs == shot->n_jobs && same->n_waits == shot->n_waits);
	for (uint32_t i = 0; i < shot->n_waits; i++) {
		const struct top_wait *a = &shot->wait[i], *b = &same->wait[i];

		must(a->job == b->job && a->instance == b->instance && a->follows == b->follows);
		must(a->rank == b->rank && a->peer == b->peer && a->stream == b->stream);
		must(a->lane == b->lane && a->ring == b->ring);
	}
	top_shot_free(same);
	json_decref(json);
	top_schema_free(other);
}

/* A number of a wait, by its rule; limit: indices below it are ones. */
static void must_be_number(uint32_t got, const json_t *wait, const char *key, uint32_t limit)
{
	const json_t *v = json_object_get(wait, key);
	json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;

	must(got == (n >= 0 && n < (json_int_t)limit ? (uint32_t)n : TOP_NONE));
}

/* The first record once more, by itself: numbers beyond 32 bits must not come back as others that would do. */
static void first_record(const uint8_t *data, size_t size)
{
	json_t *json = json_loadb((const char *)data, size, JSON_DISABLE_EOF_CHECK, NULL), *wait;
	struct top_schema *schema = top_schema_new();
	struct top_shot *shot = NULL;
	char why[128];
	size_t i;

	must(schema != NULL);
	if (json && !top_load(schema, json, &shot, why, sizeof(why))) {
		must_be_shot(schema, shot);
		must(shot->n_waits == json_array_size(json_object_get(json, "waits")));
		json_array_foreach(json_object_get(json, "waits"), i, wait)
		{
			const struct top_wait *w = &shot->wait[i];

			must_be_number(w->rank, wait, "rank", TOP_NONE);
			must_be_number(w->peer, wait, "peer", TOP_NONE);
			must_be_number(w->stream, wait, "stream", TOP_NONE);
			must_be_number(w->lane, wait, "lane", TOP_NONE);
			must_be_number(w->ring, wait, "ring", TOP_NONE);
			must_be_number(w->job, wait, "job_number", shot->n_jobs);
			must_be_number(w->instance, wait, "instance_number", shot->n_instances);
			must_be_number(w->follows, wait, "follows", shot->n_waits);
		}
		top_shot_free(shot);
	}
	json_decref(json);
	top_schema_free(schema);
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
		must_be_shot(schema, now);
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
	first_record(data, size);
	top_schema_free(schema);
	close(fd);
	return 0;
}
