/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of statistics files share: making one in a separate directory or in memory,
 * opening a reader, and finding values by name. Included once by each tests/unit/test_stats*.c.
 * It must never be used outside the tests' own thread: it fails the running test.
 */
#ifndef EPF_TESTS_STATS_KIT_H
#define EPF_TESTS_STATS_KIT_H

#include "queues/epf_stats_read.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];
static char why[256];

static inline int make_dir(void **state)
{
	strcpy(dir, "/tmp/epf-stats-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static inline int remove_dir(void **state)
{
	return rmdir(dir); /* fails, and so does the test, where anything is left behind */
}

static inline struct epf_stats_opts opts_of(const char *where, const char *instance)
{
	return (struct epf_stats_opts){
		.size = sizeof(struct epf_stats_opts),
		.dir = where,
		.instance = instance,
		.job = "job-7",
		.tsc_hz = 2100000000u,
		.blocks = { [EPF_STATS_CORE] = 1,
			    [EPF_STATS_RING] = 2,
			    [EPF_STATS_LANE] = 1,
			    [EPF_STATS_PEER] = 3,
			    [EPF_STATS_NIC] = 1 },
	};
}

static inline struct epf_stats *make(const char *where, const char *instance)
{
	struct epf_stats_opts opts = opts_of(where, instance);
	struct epf_stats *st = NULL;
	int rc = epf_stats_create(&opts, &st, why, sizeof(why));

	if (rc)
		fail_msg("create: %d %s", rc, why);
	return st;
}

static inline struct epf_stats_reader *open_memory(const struct epf_stats *st)
{
	struct epf_stats_reader *r = NULL;
	const void *base;
	size_t bytes;
	int rc;

	base = epf_stats_memory(st, &bytes);
	rc = epf_stats_reader_memory(base, bytes, &r, why, sizeof(why));
	if (rc)
		fail_msg("reader: %d %s", rc, why);
	return r;
}

static inline struct epf_stats_reader *open_path(const char *path)
{
	struct epf_stats_reader *r = NULL;
	int rc = epf_stats_reader_open(path, &r, why, sizeof(why));

	if (rc)
		fail_msg("reader: %d %s", rc, why);
	return r;
}

static inline void refresh(struct epf_stats_reader *r)
{
	if (epf_stats_reader_refresh(r, why, sizeof(why)))
		fail_msg("refresh: %s", why);
}

static inline struct epf_stats_block *add_peer(struct epf_stats *st, uint64_t core, uint64_t peer)
{
	const struct epf_stats_label labels[] = { { NULL, core }, { NULL, peer } };
	struct epf_stats_block *b = NULL;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_PEER, labels, 2, &b), 0);
	return b;
}

/* A value by its row's name: how every tool finds it. */
static inline struct epf_stats_value value_of(struct epf_stats_reader *r, unsigned block,
					      const char *name)
{
	const struct epf_stats_entry *e = epf_stats_reader_block(r, block);
	const struct epf_stats_row *row;
	struct epf_stats_value v = { 0 };
	unsigned i;

	assert_non_null(e);
	for (i = 0; (row = epf_stats_reader_row(r, e->class_index, i)); i++) {
		if (strcmp(row->name, name) != 0)
			continue;
		epf_stats_reader_value(r, block, i, &v);
		return v;
	}
	fail_msg("no row %s", name);
	return v;
}

#define IN_DIR(fn) cmocka_unit_test_setup_teardown(fn, make_dir, remove_dir)

#endif
