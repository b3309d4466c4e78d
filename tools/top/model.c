/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of ep-top (top.h): schema, memory of shots, a shot of living files. Called by ep-top's other parts. It must never keep
 * anything of a reader: all is copied.
 */
#include "tools/top/top.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Under AddressSanitizer each piece stands alone and ends where it ends: it sees who goes beyond one, which within a chunk is nobody's error. */
#if defined(__has_feature)
# if __has_feature(address_sanitizer)
#  define PIECES_ALONE
# endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(PIECES_ALONE)
# define CHUNK_BYTES     ((size_t)0)
# define TAKEN(n, bytes) ((n) * (bytes))
#else
# define CHUNK_BYTES     ((size_t)64 << 10)
# define TAKEN(n, bytes) (((n) * (bytes) + 8) & ~(size_t)7)
#endif

/* Memory of a shot, in pieces that never move. */
struct top_chunk {
	struct top_chunk *next;
	size_t used, size;
	uint64_t bytes[];
};

void *top_take(struct top_shot *shot, size_t n, size_t bytes)
{
	struct top_chunk *c = shot->memory;
	size_t want;
	void *at;

	if (bytes && n > SIZE_MAX / 2 / bytes)
		return NULL;
	want = TAKEN(n, bytes);
	if (!CHUNK_BYTES || !c || c->size - c->used < want) {
		size_t size = want > CHUNK_BYTES ? want : CHUNK_BYTES;

		c = malloc(sizeof(*c) + size);
		if (!c)
			return NULL;
		*c = (struct top_chunk){ .next = shot->memory, .size = size };
		shot->memory = c;
	}
	at = (char *)c->bytes + c->used;
	c->used += want;
	return memset(at, 0, want);
}

struct top_shot *top_shot_new(void)
{
	return calloc(1, sizeof(struct top_shot));
}

void top_shot_free(struct top_shot *shot)
{
	struct top_chunk *next;

	if (!shot)
		return;
	for (struct top_chunk *c = shot->memory; c; c = next) {
		next = c->next;
		free(c);
	}
	free(shot);
}

/* ---- schema ---- */

struct top_schema *top_schema_new(void)
{
	return calloc(1, sizeof(struct top_schema));
}

void top_schema_free(struct top_schema *schema)
{
	if (!schema)
		return;
	for (uint32_t i = 0; i < schema->n_classes; i++)
		free(schema->cls[i].row);
	free(schema);
}

uint32_t top_class_find(const struct top_schema *schema, const char *name)
{
	for (uint32_t i = 0; i < schema->n_classes; i++)
		if (!strcmp(schema->cls[i].name, name))
			return i;
	return TOP_NONE;
}

uint32_t top_row_find(const struct top_class *cls, const char *name)
{
	for (uint32_t i = 0; i < cls->n_rows; i++)
		if (!strcmp(cls->row[i].name, name))
			return i;
	return TOP_NONE;
}

uint32_t top_class_add(struct top_schema *schema, const struct top_class *like)
{
	uint32_t at = top_class_find(schema, like->name);
	struct top_class *cls;

	if (at != TOP_NONE)
		return at;
	if (schema->n_classes == TOP_MAX_CLASSES) {
		schema->n_truncated++;
		return TOP_NONE;
	}
	cls = &schema->cls[schema->n_classes];
	*cls = *like;
	cls->row = NULL;
	cls->n_rows = cls->room = 0;
	schema->version++;
	return schema->n_classes++;
}

uint32_t top_row_add(struct top_schema *schema, uint32_t class_at, const struct top_row *like)
{
	struct top_class *cls = &schema->cls[class_at];
	uint32_t at = top_row_find(cls, like->name);

	if (at != TOP_NONE) {
		/* States are only added at the end: the longer list is the newer one. */
		if (strlen(like->states) > strlen(cls->row[at].states)) {
			memcpy(cls->row[at].states, like->states, sizeof(like->states));
			schema->version++;
		}
		return at;
	}
	if (cls->n_rows == TOP_MAX_ROWS) {
		schema->n_truncated++;
		return TOP_NONE;
	}
	if (cls->n_rows == cls->room) {
		uint32_t room = cls->room ? 2 * cls->room : 32;
		struct top_row *bigger = realloc(cls->row, room * sizeof(*bigger));

		if (!bigger)
			return TOP_NONE;
		cls->row = bigger;
		cls->room = room;
	}
	cls->row[cls->n_rows] = *like;
	schema->version++;
	return cls->n_rows++;
}

void top_text(char *to, size_t bytes, const char *from)
{
	size_t i = 0;

	for (; from && from[i] && i + 1 < bytes; i++)
		to[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
	to[i] = '\0';
}

const char *top_state_name(const struct top_row *row, uint64_t state, char *text, size_t bytes)
{
	const char *at = row->states;

	snprintf(text, bytes, "%llu", (unsigned long long)state);
	for (uint64_t i = 0; at && i < state; i++) {
		at = strchr(at, '|');
		if (at)
			at++;
	}
	if (at && strcspn(at, "|"))
		snprintf(text, bytes, "%.*s", (int)strcspn(at, "|"), at);
	return text;
}

const struct top_value *top_value_of(const struct top_schema *schema, const struct top_block *block,
				     const char *row)
{
	uint32_t at = top_row_find(&schema->cls[block->cls], row);

	return at < block->n_values && block->value[at].known ? &block->value[at] : NULL;
}

const char *top_label_of(const struct top_schema *schema, const struct top_block *block,
			 const char *label)
{
	const struct top_class *cls = &schema->cls[block->cls];

	for (uint32_t i = 0; i < cls->n_labels; i++)
		if (!strcmp(cls->label[i], label))
			return block->label[i];
	return "";
}

bool top_job_has(const struct top_schema *schema, const struct top_job *job,
		 const struct top_block *block)
{
	const struct top_value *id = top_value_of(schema, block, "id");

	if (strcmp(schema->cls[block->cls].name, "job") != 0 || (id ? id->number : 0) != job->id)
		return false;
	return job->id || !strcmp(top_label_of(schema, block, "job"), job->name);
}

const struct top_block *top_block_in(const struct top_shot *shot, const struct top_shot *of,
				     const struct top_block *block)
{
	const struct top_instance *mine = &of->instance[block->instance];

	for (uint32_t i = 0; i < shot->n_instances; i++) {
		const struct top_instance *in = &shot->instance[i];

		if (strcmp(in->path, mine->path) != 0 || in->pid != mine->pid ||
		    in->created_monotonic_ns != mine->created_monotonic_ns)
			continue;
		for (uint32_t b = 0; b < in->n_blocks; b++) {
			/* As a rule it is in the same place. */
			uint32_t at = in->first_block +
				      (uint32_t)((block - of->block) - mine->first_block + b) %
					      in->n_blocks;

			if (shot->block[at].cls == block->cls &&
			    !memcmp(shot->block[at].label, block->label, sizeof(block->label)))
				return &shot->block[at];
		}
		return NULL;
	}
	return NULL;
}

/* ---- a shot of living files ---- */

/* Where the classes and rows of one file are in the schema. */
struct map {
	uint32_t cls[TOP_MAX_CLASSES];
	uint32_t row[TOP_MAX_CLASSES][TOP_MAX_ROWS];
};

static void map_class(struct top_schema *schema, const struct epf_stats_reader *r, uint32_t c,
		      struct map *map)
{
	const struct epf_stats_class *from = epf_stats_reader_class(r, c);
	struct top_class cls = { .n_labels = from->label_count };

	memcpy(cls.name, from->name, sizeof(cls.name));
	memcpy(cls.help, from->help, sizeof(cls.help));
	for (uint32_t i = 0; i < from->label_count; i++) {
		memcpy(cls.label[i], from->label[i], sizeof(cls.label[i]));
		cls.is_number[i] = from->label_kind[i] == EPF_STATS_NUM;
	}
	map->cls[c] = top_class_add(schema, &cls);
	for (uint32_t i = 0; map->cls[c] != TOP_NONE && i < from->row_count; i++) {
		const struct epf_stats_row *row = epf_stats_reader_row(r, c, i);
		struct top_row like = { .type = row->type };

		memcpy(like.name, row->name, sizeof(like.name));
		memcpy(like.unit, row->unit, sizeof(like.unit));
		memcpy(like.states, row->states, sizeof(like.states));
		memcpy(like.help, row->help, sizeof(like.help));
		map->row[c][i] = top_row_add(schema, map->cls[c], &like);
	}
}

static const struct top_hist *take_hist(struct top_shot *shot, const struct epf_hist *h)
{
	struct top_hist *out = top_take(shot, 1, sizeof(*out));

	if (out)
		*out = (struct top_hist){ epf_hist_count(h),
					  h->sum,
					  epf_hist_min(h),
					  epf_hist_max(h),
					  epf_hist_quantile(h, 0.5),
					  epf_hist_quantile(h, 0.9),
					  epf_hist_quantile(h, 0.99),
					  epf_hist_quantile(h, 0.999) };
	return out;
}

static bool take_block(struct top_schema *schema, struct top_shot *shot,
		       const struct epf_stats_reader *r, unsigned b, const struct map *map)
{
	const struct epf_stats_entry *e = epf_stats_reader_block(r, b);
	const struct epf_stats_class *from = epf_stats_reader_class(r, e->class_index);
	struct top_block *block = &shot->block[shot->n_blocks];
	struct epf_stats_value v;

	block->cls = map->cls[e->class_index];
	if (block->cls == TOP_NONE)
		return true; /* counted in n_truncated */
	block->instance = shot->n_instances;
	block->n_values = schema->cls[block->cls].n_rows;
	block->value = top_take(shot, block->n_values, sizeof(*block->value));
	if (!block->value)
		return false;
	for (uint32_t i = 0; i < from->label_count; i++)
		snprintf(block->label[i], sizeof(block->label[i]), "%s", e->label[i]);
	for (uint32_t i = 0; i < from->row_count; i++) {
		uint32_t at = map->row[e->class_index][i];

		if (at == TOP_NONE)
			continue;
		epf_stats_reader_value(r, b, i, &v);
		block->value[at].known = v.known && v.type != EPF_STATS_EVENTS;
		block->value[at].number = v.number;
		block->value[at].since_ns = v.since_ns;
		if (v.hist && !(block->value[at].hist = take_hist(shot, v.hist)))
			return false;
	}
	shot->n_blocks++;
	return true;
}

/* What nobody asked for: an instance that has exited, or closed, so that its file has gone. */
static bool is_left_out(const struct waits_instance *from)
{
	return from->left_out || (!from->reader && !from->named && access(from->path, F_OK) != 0);
}

static bool take_instance(struct top_schema *schema, struct top_shot *shot,
			  const struct waits_instance *from, struct map *map)
{
	struct top_instance *in = &shot->instance[shot->n_instances];
	const struct epf_stats_info *info;

	top_text(in->path, sizeof(in->path), from->path);
	top_text(in->error, sizeof(in->error), from->error);
	in->first_block = shot->n_blocks;
	if (from->reader) {
		info = epf_stats_reader_info(from->reader);
		in->read = true;
		top_text(in->name, sizeof(in->name), info->instance);
		top_text(in->job, sizeof(in->job), info->job);
		in->alive = from->alive;
		in->process = from->process;
		in->pid = info->pid;
		in->tsc_hz = info->tsc_hz;
		in->created_realtime_ns = info->created_realtime_ns;
		in->created_monotonic_ns = info->created_monotonic_ns;
		in->heartbeat_ns = info->heartbeat_ns;
		in->links = from->links;
		in->links_up = from->links_up;
		in->changing = from->changing;
		in->minor = info->version_minor;
		for (uint32_t c = 0; c < info->class_count; c++)
			map_class(schema, from->reader, c, map);
		for (uint32_t b = 0; b < info->block_count; b++)
			if (!take_block(schema, shot, from->reader, b, map))
				return false;
	}
	in->n_blocks = shot->n_blocks - in->first_block;
	shot->n_instances++;
	return true;
}

static void take_wait(struct top_wait *to, const struct waits *w, const struct waits_entry *e,
		      const uint32_t *instance_at, const uint32_t *place)
{
	snprintf(to->who, sizeof(to->who), "%s", waits_who_word(e->who));
	snprintf(to->reason, sizeof(to->reason), "%s", waits_reason_word(e->reason));
	waits_sentence(w, e, to->text, sizeof(to->text));
	to->is_cause = e->is_cause;
	to->kernel = e->kernel;
	to->job = e->job;
	to->instance = instance_at[e->instance];
	to->rank = e->rank;
	to->peer = e->peer;
	to->stream = e->stream;
	to->lane = e->lane;
	to->ring = e->ring;
	to->has_signal = e->who == WAITS_RANK && e->reason == EPF_STATS_WAIT_SIGNAL &&
			 e->signal != EPF_STATS_NO_SIGNAL;
	to->signal = e->signal;
	to->value = e->value;
	to->least = e->least;
	to->deferred = e->deferred;
	to->since_ns = e->since_ns;
	to->age_ns = e->age_ns;
	to->follows = e->follows == WAITS_NONE ? TOP_NONE : place[e->follows];
	to->consequences = e->consequences;
}

static bool take_waits(struct top_shot *shot, const struct waits *w, const uint32_t *instance_at)
{
	uint32_t *place = top_take(shot, w->n_entries, sizeof(*place));

	shot->job = top_take(shot, w->n_jobs, sizeof(*shot->job));
	shot->wait = top_take(shot, w->n_entries, sizeof(*shot->wait));
	if (!place || !shot->job || !shot->wait)
		return false;
	for (uint32_t i = 0; i < w->n_jobs; i++) {
		const struct waits_job *j = &w->job[i];

		shot->job[i] = (struct top_job){ .id = j->id,
						 .waits = j->waits,
						 .hidden = j->hidden,
						 .world = j->world,
						 .nodes = j->nodes,
						 .ranks = j->ranks,
						 .entries = j->entries,
						 .causes = j->causes };
		top_text(shot->job[i].name, sizeof(shot->job[i].name), j->name);
	}
	shot->n_jobs = w->n_jobs;
	for (uint32_t i = 0; i < w->n_entries; i++)
		place[w->order[i]] = i;
	for (uint32_t i = 0; i < w->n_entries; i++)
		take_wait(&shot->wait[i], w, &w->entry[w->order[i]], instance_at, place);
	shot->n_waits = w->n_entries;
	shot->left_out = w->n_left_out;
	return true;
}

struct top_shot *top_shot_take(struct top_schema *schema, const struct waits *w,
			       uint64_t realtime_ns)
{
	struct top_shot *shot = top_shot_new();
	uint32_t blocks = 0, *instance_at = NULL;
	struct map *map = malloc(sizeof(*map));
	bool good;

	for (uint32_t i = 0; i < w->n_instances; i++)
		if (w->instance[i].reader)
			blocks += epf_stats_reader_info(w->instance[i].reader)->block_count;
	good = shot && map;
	if (good) {
		shot->realtime_ns = realtime_ns;
		shot->now_ns = w->now_ns;
		shot->least_ns = w->least_ns;
		if (gethostname(shot->host, sizeof(shot->host) - 1))
			shot->host[0] = '\0';
		top_text(shot->host, sizeof(shot->host), strdupa(shot->host));
		shot->instance = top_take(shot, w->n_instances, sizeof(*shot->instance));
		shot->block = top_take(shot, blocks, sizeof(*shot->block));
		instance_at = top_take(shot, w->n_instances, sizeof(*instance_at));
		good = shot->instance && shot->block && instance_at;
	}
	for (uint32_t i = 0; good && i < w->n_instances; i++) {
		instance_at[i] = TOP_NONE;
		if (is_left_out(&w->instance[i]))
			continue;
		instance_at[i] = shot->n_instances;
		good = take_instance(schema, shot, &w->instance[i], map);
	}
	good = good && take_waits(shot, w, instance_at);
	free(map);
	if (good)
		return shot;
	top_shot_free(shot);
	return NULL;
}
