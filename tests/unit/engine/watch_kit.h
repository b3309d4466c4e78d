/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rig of engine cores that are watched (fabric/engine/watch.h), and readers of what they tell of themselves. Times are made up. Included by the
 * cmocka programs test_watch.c and test_watch_counts.c; it holds their state and must not be included twice in one of them.
 */
#ifndef EPF_TESTS_WATCH_KIT_H
#define EPF_TESTS_WATCH_KIT_H

#include "fabric/base/clock.h"
#include "fabric/engine/watch.h"
#include "tests/unit/engine/core_rig.h"
#include "tests/unit/queues/stats_kit.h"

#define SECOND UINT64_C(1000000000)

enum { SIGNAL = 5, BYTES = 4096 };

static struct epf_stats *watched[CORE_NODES];
static struct epf_stats_reader *reader;

/* A rig whose cores are watched with up to `most` blocks of rings, lanes, peers and ranks; the file has room for in_file. */
static inline struct core_rig *open_short(const char *const *settings, uint32_t most,
					  uint32_t in_file)
{
	struct core_rig *rig = core_rig_open(settings);

	reader = NULL; /* of a test that failed */
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		static const uint64_t id = UINT64_C(1) << 63 | 77; /* whose sign is lost */
		struct epf_stats_opts o = { .size = sizeof(o),
					    .instance = "w",
					    .tsc_hz = epf_tsc_hz() };
		struct epf_watch_config cfg = { .number = n, .most = most, .job = "j", .id = &id };

		o.blocks[EPF_STATS_JOB] = o.blocks[EPF_STATS_FLIGHT] = 1;
		o.blocks[EPF_STATS_RING] = o.blocks[EPF_STATS_LANE] = in_file;
		o.blocks[EPF_STATS_PEER] = o.blocks[EPF_STATS_RANK] = in_file;
		assert_int_equal(epf_stats_create(&o, &watched[n], why, sizeof(why)), 0);
		cfg.stats = watched[n];
		assert_int_equal(epf_watch_open(rig->core[n], &cfg), 0);
		assert_int_equal(epf_watch_world(rig->core[n]), 0);
	}
	return rig;
}

static inline struct core_rig *open_watched(const char *const *settings, uint32_t most)
{
	return open_short(settings, most, most);
}

static inline void close_watched(struct core_rig *rig)
{
	epf_stats_reader_close(reader);
	reader = NULL;
	core_rig_close(rig);
	for (uint32_t n = 0; n < CORE_NODES; n++)
		epf_stats_destroy(watched[n], 0);
}

/* Looks at node 0 at a second of the fake time, and reads what it wrote. */
static inline void look(struct core_rig *rig, double second)
{
	epf_watch_look_at(rig->core[0], (uint64_t)(second * (double)SECOND));
	if (reader)
		refresh(reader);
	else
		reader = open_memory(watched[0]);
}

/* The block of a class with this in one of its labels; -1: none. */
static inline int block(const char *cls, const char *label, const char *text)
{
	const struct epf_stats_entry *e;

	for (unsigned b = 0; (e = epf_stats_reader_block(reader, b)); b++) {
		const struct epf_stats_class *c = epf_stats_reader_class(reader, e->class_index);

		if (strcmp(c->name, cls) != 0)
			continue;
		for (unsigned i = 0; i < c->label_count; i++)
			if (!label || (!strcmp(c->label[i], label) && !strcmp(e->label[i], text)))
				return (int)b;
	}
	return -1;
}

static inline struct epf_stats_value row(const char *cls, const char *label, const char *text,
					 const char *name)
{
	int b = block(cls, label, text);

	if (b < 0)
		fail_msg("no block %s %s=%s", cls, label, text);
	return value_of(reader, (unsigned)b, name);
}

static inline void assert_wait(const char *cls, const char *label, const char *text,
			       const char *reason, double since)
{
	struct epf_stats_value v = row(cls, label, text, "wait");

	assert_true(v.known);
	assert_string_equal(v.state, reason);
	if (strcmp(reason, "none") != 0)
		assert_int_equal(v.since_ns, (uint64_t)(since * (double)SECOND));
}

/* What was set aside for a peer, by reason; of all peers together, what the core counts. */
static inline void assert_stalls(struct core_rig *rig, const char *peer, uint64_t credit,
				 uint64_t queue, uint64_t lane)
{
	static const char *const names[] = { "stalls_no_credit", "stalls_queue_full",
					     "stalls_lane_down" };
	uint64_t all = 0;

	for (unsigned n = 0; n < 3; n++)
		for (uint32_t i = 0; i < rig->core[0]->world; i++) {
			char number[16];
			struct epf_stats_value v;

			snprintf(number, sizeof(number), "%u", i);
			v = row("peer", "peer", number, names[n]);
			assert_true(v.known);
			all += v.number;
		}
	assert_int_equal(row("peer", "peer", peer, names[0]).number, credit);
	assert_int_equal(row("peer", "peer", peer, names[1]).number, queue);
	assert_int_equal(row("peer", "peer", peer, names[2]).number, lane);
	assert_int_equal(all, epf_stat_get(rig->core[0]->stats, EPF_STAT_CORE_CMDS_DEFERRED));
}

/* Steps node 0 alone: the other engine is stalled. */
static inline void step_alone(struct core_rig *rig)
{
	for (unsigned i = 0; i < 1000; i++)
		(void)epf_core_step(rig->core[0]);
}

#endif
