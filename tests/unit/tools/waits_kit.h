/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics files that tests of the graph of waits make: instances with a job of 8 ranks, what ranks and rings of them wait for, and the graph of it. */
#ifndef EPF_TESTS_WAITS_KIT_H
#define EPF_TESTS_WAITS_KIT_H

#include "tests/unit/queues/stats_kit.h"
#include "tools/waits/waits.h"

#include <time.h>

#define SECOND UINT64_C(1000000000)

static struct epf_stats *files[4];
static uint64_t now_ns;

static inline uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

/* An instance with one job of 8 ranks, alive just now. id 0: it has not joined. */
static inline struct epf_stats *instance_of(unsigned at, const char *name, const char *job,
					    uint64_t id)
{
	const struct epf_stats_label labels[] = { { NULL, 1 }, { job, 0 } };
	struct epf_stats_opts o = { .size = sizeof(o), .dir = dir, .instance = name };
	struct epf_stats_block *b;

	o.blocks[EPF_STATS_JOB] = o.blocks[EPF_STATS_NIC] = 1;
	o.blocks[EPF_STATS_RANK] = o.blocks[EPF_STATS_RING] = 8;
	o.blocks[EPF_STATS_LANE] = o.blocks[EPF_STATS_PEER] = 8;
	assert_int_equal(epf_stats_create(&o, &files[at], why, sizeof(why)), 0);
	assert_int_equal(epf_stats_add_block(files[at], EPF_STATS_JOB, labels, 2, &b), 0);
	now_ns = clock_ns();
	epf_stats_beat(files[at], now_ns);
	if (id)
		epf_stat_set(b, EPF_STAT_JOB_ID, id);
	epf_stat_set(b, EPF_STAT_JOB_WORLD, 8);
	epf_stat_set(b, EPF_STAT_JOB_LOOK_NS, now_ns);
	epf_stat_set(b, EPF_STAT_JOB_WAITS, 5);
	epf_stat_set(b, EPF_STAT_JOB_WAITS_HIDDEN, 2);
	return files[at];
}

static inline struct epf_stats *instance(unsigned at, const char *name)
{
	return instance_of(at, name, "j", 99);
}

static inline void nic(struct epf_stats *st, uint64_t links, uint64_t up)
{
	const struct epf_stats_label labels[] = { { "emu", 0 }, { NULL, 1 }, { NULL, 1 } };
	struct epf_stats_block *b;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_NIC, labels, 3, &b), 0);
	epf_stat_set(b, EPF_STAT_NIC_LINKS, links);
	epf_stat_set(b, EPF_STAT_NIC_LINKS_UP, up);
}

/* A rank that waits for a signal of `from` for so many seconds; from UINT32_MAX: of nobody known; age 0: it does not wait. */
static inline struct epf_stats_block *rank(struct epf_stats *st, uint32_t number, uint32_t from,
					   double age, uint64_t pid)
{
	const struct epf_stats_label labels[] = { { NULL, 1 }, { NULL, number } };
	struct epf_stats_block *b;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_RANK, labels, 2, &b), 0);
	epf_stat_state(b, EPF_STAT_RANK_STATE, EPF_STATS_PEER_UP, 1);
	epf_stat_set(b, EPF_STAT_RANK_PID, pid);
	epf_stat_set(b, EPF_STAT_RANK_ACTIVE_NS, now_ns - SECOND);
	epf_stat_state(b, EPF_STAT_RANK_WAIT, age > 0 ? EPF_STATS_WAIT_SIGNAL : EPF_STATS_WAIT_NONE,
		       now_ns - (uint64_t)(age * (double)SECOND));
	epf_stat_set(b, EPF_STAT_RANK_WAIT_NUMBER, 10 + number);
	epf_stat_set(b, EPF_STAT_RANK_WAIT_VALUE, 4);
	epf_stat_set(b, EPF_STAT_RANK_WAIT_LEAST, 5);
	if (from != UINT32_MAX)
		epf_stat_set(b, EPF_STAT_RANK_WAIT_RANK, from);
	return b;
}

static inline struct epf_stats_block *ring(struct epf_stats *st, uint32_t of, uint32_t to,
					   unsigned reason, double age)
{
	const struct epf_stats_label labels[] = {
		{ NULL, 1 }, { NULL, 0 }, EPF_STATS_NO_LABEL, { NULL, of }
	};
	struct epf_stats_block *b;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_RING, labels, 4, &b), 0);
	epf_stat_state(b, EPF_STAT_RING_WAIT, reason, now_ns - (uint64_t)(age * (double)SECOND));
	epf_stat_set(b, EPF_STAT_RING_WAIT_RANK, to);
	epf_stat_set(b, EPF_STAT_RING_WAIT_STREAM, 3);
	epf_stat_set(b, EPF_STAT_RING_DEFERRED, 7);
	epf_stat_set(b, EPF_STAT_RING_OCCUPANCY, 256);
	epf_stat_set(b, EPF_STAT_RING_SLOTS, 256);
	return b;
}

static inline struct waits *graph(void)
{
	struct waits *w = waits_new();

	assert_non_null(w);
	assert_true(waits_add_dir(w, dir) >= 0);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	return w;
}

/* The entry at a place of the order. */
static inline const struct waits_entry *nth(const struct waits *w, uint32_t place)
{
	assert_true(place < w->n_entries);
	return &w->entry[w->order[place]];
}

static inline const struct waits_entry *entry(const struct waits *w, enum waits_who who,
					      uint32_t of)
{
	for (uint32_t i = 0; i < w->n_entries; i++)
		if (w->entry[i].who == who && w->entry[i].rank == of)
			return &w->entry[i];
	fail_msg("no entry of rank %u", of);
	return NULL;
}

static inline const struct waits_entry *cause_of(const struct waits *w, const struct waits_entry *e)
{
	while (e->follows != WAITS_NONE)
		e = &w->entry[e->follows];
	return e;
}

static inline void end_all(void)
{
	for (unsigned i = 0; i < 4; i++) {
		epf_stats_destroy(files[i], 0);
		files[i] = NULL;
	}
}

static inline const char *text(const struct waits *w, const struct waits_entry *e)
{
	static char line[512];

	return waits_sentence(w, e, line, sizeof(line));
}

#endif
