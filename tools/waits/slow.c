/* SPDX-License-Identifier: Apache-2.0 */
/* See slow.h. */
#include "tools/waits/slow.h"
#include "tools/waits/waits_priv.h"

#include <stdlib.h>
#include <string.h>

enum {
	WORLD_MAX = 4096,
	REPORTS_MAX = 4096
}; /* more are no ranks of libepf-ll: EPF_LL_RANKS_MAX */

/* EPF_WHY_CALLS: a kind that this program does not know. */
static uint32_t call_of(const struct waits_block *at)
{
	const char *name = waits_label(at, "call");
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

static void read_call(const struct waits_block *at, struct epf_why_report *r)
{
	uint32_t c = call_of(at);

	if (c == EPF_WHY_CALLS)
		return;
	r->call[c].calls += waits_number(at, "calls", 0);
	r->call[c].ns[EPF_WHY_WAIT] += waits_number(at, "wait_ns", 0);
	r->call[c].ns[EPF_WHY_MOVE] += waits_number(at, "move_ns", 0);
	r->call[c].ns[EPF_WHY_COPY] += waits_number(at, "copy_ns", 0);
}

static void read_wait(const struct waits_block *at, struct epf_why_report *r)
{
	static const struct {
		const char *ns, *times, *most;
	} rows[EPF_WHY_REASONS] = {
		[EPF_WHY_LATE] = { "late_ns", "late", "late_max_ns" },
		[EPF_WHY_SLOW] = { "slow_ns", "slow", "slow_max_ns" },
		[EPF_WHY_EITHER] = { "either_ns", "either", "either_max_ns" },
	};

	uint32_t c = call_of(at), peer = waits_label_below(at, "peer", r->ranks);
	struct epf_why_peer *p;

	if (c == EPF_WHY_CALLS || peer == r->ranks)
		return;
	p = &r->peer[(uint64_t)c * r->ranks + peer];
	for (unsigned w = 0; w < EPF_WHY_REASONS; w++) {
		uint64_t most = waits_number(at, rows[w].most, 0);

		p->wait[w].ns += waits_number(at, rows[w].ns, 0);
		p->wait[w].times += waits_number(at, rows[w].times, 0);
		if (most > p->wait[w].most_ns)
			p->wait[w].most_ns = most;
	}
	p->rows_to += waits_number(at, "rows_to", 0);
	p->rows_from += waits_number(at, "rows_from", 0);
}

/* One file: of one Buffer, so of one rank of one job. 0, or -1 without memory. */
static int read_file(struct slow *s, const struct epf_stats_reader *reader)
{
	const struct epf_stats_info *info = epf_stats_reader_info(reader);
	struct epf_why_report *r = NULL;

	/* First the blocks of class call, which know the job and the rank. */
	for (int pass = 0; pass < 2; pass++) {
		for (unsigned i = 0; i < info->block_count; i++) {
			const struct waits_block at = waits_block(reader, i);

			if (pass == 0 && !strcmp(at.cls->name, "call")) {
				uint64_t world = waits_number(&at, "world", 0);
				uint32_t rank = waits_label_below(&at, "rank", WORLD_MAX);
				struct slow_job *j;

				if (!world || world > WORLD_MAX || rank >= world)
					continue;
				j = job_of(s, info->job, waits_number(&at, "job", 0),
					   (uint32_t)world);
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
