/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of ep-top's model share: one statistics file with a core, a job, two rings and two ranks, a source that reads it, and the
 * cells of its tables by title. Included once by each of them. Test code: it asserts through cmocka.
 */
#ifndef EPF_TESTS_TOP_KIT_H
#define EPF_TESTS_TOP_KIT_H

#include "tests/unit/queues/stats_kit.h"
#include "tools/top/source.h"
#include "tools/top/view.h"

#include <inttypes.h>

#define SECOND UINT64_C(1000000000)

struct rig {
	struct epf_stats *st;
	struct epf_stats_block *core, *ring[2], *rank[2], *peer, *nic;
	struct top_schema *schema;
	struct top_source *source;
	struct top_shot *now, *before;
	struct top_table table;
	struct top_look look;
};

static inline struct epf_stats_block *add(struct epf_stats *st, unsigned cls,
					  const struct epf_stats_label *labels, unsigned n)
{
	struct epf_stats_block *b = NULL;

	assert_int_equal(epf_stats_add_block(st, cls, labels, n, &b), 0);
	return b;
}

static inline void add_ring(struct rig *r, unsigned i)
{
	const struct epf_stats_label ring[] = {
		{ NULL, 0 }, { NULL, i }, EPF_STATS_NO_LABEL, { NULL, i }
	};
	const struct epf_stats_label rank[] = { { NULL, 0 }, { NULL, i } };

	r->ring[i] = add(r->st, EPF_STATS_RING, ring, 4);
	epf_stat_set(r->ring[i], EPF_STAT_RING_SLOTS, 64);
	epf_stat_set(r->ring[i], EPF_STAT_RING_OCCUPANCY, 16 * i);
	epf_stat_add(r->ring[i], EPF_STAT_RING_CMDS_DEQUEUED, 100 + i);
	epf_stat_state(r->ring[i], EPF_STAT_RING_WAIT, EPF_STATS_WAIT_NONE, 1);
	r->rank[i] = add(r->st, EPF_STATS_RANK, rank, 2);
	epf_stat_state(r->rank[i], EPF_STAT_RANK_STATE, EPF_STATS_PEER_UP, 1);
	epf_stat_set(r->rank[i], EPF_STAT_RANK_PID, (uint64_t)getpid());
	epf_stat_state(r->rank[i], EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_NONE, 1);
}

static inline void read_more(struct rig *r)
{
	top_shot_free(r->before);
	r->before = r->now;
	r->now = NULL;
	if (top_source_next(r->source, &r->now, why, sizeof(why)))
		fail_msg("%s", why);
}

static inline struct rig open_rig(void)
{
	static const struct epf_stats_label core[] = { { NULL, 0 }, { NULL, 1 } },
					    job[] = { { NULL, 0 }, { "train", 0 } },
					    nic[] = { { "mlx\"5\\0", 0 },
						      { NULL, 1 },
						      { NULL, 0 } };
	struct epf_stats_opts opts = opts_of(dir, "one");
	struct rig r = { .look = { .sort = TOP_NATURAL } };
	struct epf_stats_block *b;

	opts.tsc_hz = 1000000000;
	opts.blocks[EPF_STATS_JOB] = 1;
	opts.blocks[EPF_STATS_RANK] = 2;
	assert_int_equal(epf_stats_create(&opts, &r.st, why, sizeof(why)), 0);
	r.core = add(r.st, EPF_STATS_CORE, core, 2);
	epf_stat_add(r.core, EPF_STAT_CORE_CMDS_DEQUEUED, 1000);
	epf_stat_add(r.core, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE, UINT64_C(9007199254740993));
	epf_hist_add_n(epf_stat_hist(r.core, EPF_STAT_CORE_STEP_NS), 7, 3);
	b = add(r.st, EPF_STATS_JOB, job, 2);
	epf_stat_set(b, EPF_STAT_JOB_ID, 77);
	epf_stat_set(b, EPF_STAT_JOB_WORLD, 2);
	epf_stat_set(b, EPF_STAT_JOB_NODES, 1);
	epf_stat_set(b, EPF_STAT_JOB_RINGS, 2);
	for (unsigned i = 0; i < 2; i++)
		add_ring(&r, i);
	r.nic = add(r.st, EPF_STATS_NIC, nic, 3);
	epf_stat_state(r.nic, EPF_STAT_NIC_LINK, EPF_STATS_LINK_UP, 1);
	r.schema = top_schema_new();
	assert_non_null(r.schema);
	assert_int_equal(top_source_live(&r.source, r.schema, dir, NULL, 0, WAITS_LEAST_NS, false,
					 why, sizeof(why)),
			 0);
	read_more(&r);
	return r;
}

static inline void close_rig(struct rig *r)
{
	top_table_free(&r->table);
	top_shot_free(r->now);
	top_shot_free(r->before);
	top_source_close(r->source);
	top_schema_free(r->schema);
	epf_stats_destroy(r->st, 0);
}

static inline void table(struct rig *r, enum top_screen_number screen)
{
	r->look.screen = screen;
	assert_int_equal(top_table_make(&r->table, r->schema, r->now, r->before, &r->look), 0);
}

/* The cell under a title. */
static inline const struct top_cell *cell(const struct rig *r, uint32_t line, const char *title)
{
	assert_true(line < r->table.n_lines);
	for (uint32_t c = 0; c < r->table.n_columns; c++)
		if (!strcmp(r->table.column[c].title, title))
			return &r->table.line[line].cell[c];
	fail_msg("no column %s", title);
	return NULL;
}

static inline void is(const struct rig *r, uint32_t line, const char *title, const char *text)
{
	assert_string_equal(cell(r, line, title)->text, text);
}

static inline uint32_t column(const struct rig *r, const char *title)
{
	return (uint32_t)(cell(r, 0, title) - r->table.line[0].cell);
}

struct found {
	const char *name;
	char value[256];
};

static inline void find_detail(void *arg, const char *name, const char *value, const char *help)
{
	struct found *f = arg;

	if (!strcmp(name, f->name) && !*f->value)
		snprintf(f->value, sizeof(f->value), "%s", value);
}

#endif
