/* SPDX-License-Identifier: Apache-2.0 */
/* See slow.h. */
#include "tools/waits/slow.h"

#include <stdlib.h>
#include <string.h>

enum {
	WORLD_MAX = 4096,
	REPORTS_MAX = 4096
}; /* more are no ranks of libepf-ll: EPF_LL_RANKS_MAX */

/* A block that is being read. */
struct at {
	const struct epf_stats_reader *r;
	const struct epf_stats_entry *e;
	const struct epf_stats_class *cls;
	unsigned block;
};

static uint64_t number(const struct at *at, const char *row)
{
	struct epf_stats_value v;

	for (unsigned i = 0; i < at->cls->row_count; i++) {
		if (strcmp(epf_stats_reader_row(at->r, at->e->class_index, i)->name, row) != 0)
			continue;
		epf_stats_reader_value(at->r, at->block, i, &v);
		return v.known ? v.number : 0;
	}
	return 0;
}

static const char *label(const struct at *at, const char *name)
{
	for (unsigned i = 0; i < at->cls->label_count; i++)
		if (!strcmp(at->cls->label[i], name))
			return at->e->label[i];
	return "";
}

/* A number below `end`, or `end`. */
static uint32_t label_below(const struct at *at, const char *name, uint32_t end)
{
	const char *text = label(at, name);
	char *rest;
	unsigned long n = strtoul(text, &rest, 10);

	return *text && !*rest && n < end ? (uint32_t)n : end;
}

/* EPF_WHY_CALLS: a kind that this program does not know. */
static uint32_t call_of(const struct at *at)
{
	const char *name = label(at, "call");
	uint32_t c = 0;

	while (c < EPF_WHY_CALLS && strcmp(name, epf_why_call_name(c)) != 0)
		c++;
	return c;
}

static struct slow_job *job_of(struct slow *s, const char *name, uint64_t id, uint32_t world)
{
	struct slow_job *grown;

	for (uint32_t i = 0; i < s->n_jobs; i++)
		if (s->job[i].id == id && s->job[i].world == world && !strcmp(s->job[i].name, name))
			return &s->job[i];
	grown = realloc(s->job, (s->n_jobs + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	s->job = grown;
	grown = &s->job[s->n_jobs++];
	memset(grown, 0, sizeof(*grown));
	strcpy(grown->name, name); /* both have EPF_STATS_JOB_BYTES */
	grown->id = id;
	grown->world = world;
	return grown;
}

static struct epf_why_report *report_of(struct slow_job *j, uint32_t rank)
{
	struct epf_why_report **grown, *r;

	for (uint32_t i = 0; i < j->n; i++)
		if (j->reports[i]->rank == rank)
			return j->reports[i];
	if (j->n == REPORTS_MAX)
		return NULL;
	grown = realloc(j->reports, (j->n + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	j->reports = grown;
	r = calloc(1, epf_why_report_bytes(j->world));
	if (!r)
		return NULL;
	r->bytes = (uint32_t)epf_why_report_bytes(j->world);
	r->rank = rank;
	r->ranks = j->world;
	j->reports[j->n++] = r;
	return r;
}

static void read_call(const struct at *at, struct epf_why_report *r)
{
	uint32_t c = call_of(at);

	if (c == EPF_WHY_CALLS)
		return;
	r->call[c].calls += number(at, "calls");
	r->call[c].ns[EPF_WHY_WAIT] += number(at, "wait_ns");
	r->call[c].ns[EPF_WHY_MOVE] += number(at, "move_ns");
	r->call[c].ns[EPF_WHY_COPY] += number(at, "copy_ns");
}

static void read_wait(const struct at *at, struct epf_why_report *r)
{
	static const struct {
		const char *ns, *times, *most;
	} rows[EPF_WHY_REASONS] = {
		[EPF_WHY_LATE] = { "late_ns", "late", "late_max_ns" },
		[EPF_WHY_SLOW] = { "slow_ns", "slow", "slow_max_ns" },
		[EPF_WHY_EITHER] = { "either_ns", "either", "either_max_ns" },
	};

	uint32_t c = call_of(at), peer = label_below(at, "peer", r->ranks);
	struct epf_why_peer *p;

	if (c == EPF_WHY_CALLS || peer == r->ranks)
		return;
	p = &r->peer[(uint64_t)c * r->ranks + peer];
	for (unsigned w = 0; w < EPF_WHY_REASONS; w++) {
		uint64_t most = number(at, rows[w].most);

		p->wait[w].ns += number(at, rows[w].ns);
		p->wait[w].times += number(at, rows[w].times);
		if (most > p->wait[w].most_ns)
			p->wait[w].most_ns = most;
	}
	p->rows_to += number(at, "rows_to");
	p->rows_from += number(at, "rows_from");
}

/* One file: of one Buffer, so of one rank of one job. 0, or -1 without memory. */
static int read_file(struct slow *s, const struct epf_stats_reader *reader)
{
	const struct epf_stats_info *info = epf_stats_reader_info(reader);
	struct epf_why_report *r = NULL;

	for (int pass = 0; pass < 2;
	     pass++) { /* of the job and the rank blocks of class call know */
		struct at at = { .r = reader };

		for (at.block = 0; at.block < info->block_count; at.block++) {
			at.e = epf_stats_reader_block(reader, at.block);
			at.cls = epf_stats_reader_class(reader, at.e->class_index);
			if (pass == 0 && !strcmp(at.cls->name, "call")) {
				uint64_t world = number(&at, "world");
				uint32_t rank = label_below(&at, "rank", WORLD_MAX);
				struct slow_job *j;

				if (!world || world > WORLD_MAX || rank >= world)
					continue;
				j = job_of(s, info->job, number(&at, "job"), (uint32_t)world);
				r = j ? report_of(j, rank) : NULL;
				if (!r)
					return -1;
				read_call(&at, r);
			} else if (pass == 1 && r && !strcmp(at.cls->name, "wait")) {
				read_wait(&at, r);
			}
		}
	}
	return 0;
}

struct slow *slow_read(const struct waits *w)
{
	struct slow *s = calloc(1, sizeof(*s));

	for (uint32_t i = 0; i < w->n_instances && s; i++) {
		const struct waits_instance *in = &w->instance[i];

		if (!in->reader || in->left_out || !read_file(s, in->reader))
			continue;
		slow_free(s);
		s = NULL;
	}
	return s;
}

void slow_free(struct slow *s)
{
	if (!s)
		return;
	for (uint32_t j = 0; j < s->n_jobs; j++) {
		for (uint32_t i = 0; i < s->job[j].n; i++)
			free(s->job[j].reports[i]);
		free(s->job[j].reports);
	}
	free(s->job);
	free(s);
}
