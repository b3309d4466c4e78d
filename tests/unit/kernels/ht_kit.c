/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of ht_kit.h. */
#include "tests/unit/kernels/ht_kit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct topology several[SEVERAL] = {
	{ 2, { 0, 1 } },          { 3, { 0, 1, 1 } },          { 4, { 0, 0, 1, 1 } },
	{ 5, { 0, 1, 0, 1, 0 } }, { 6, { 0, 0, 0, 0, 1, 2 } }, { 9, { 0, 0, 0, 1, 2, 2, 3, 4, 4 } },
};

static void *run_rank(void *arg)
{
	struct rank *me = arg;

	me->err = me->rig->step(me);
	if (me->err)
		snprintf(me->why, sizeof(me->why), "%s", epf_ll_error());
	return NULL;
}

/* Runs one step on all ranks that are not absent, a thread each. */
void all_ranks(struct rig *g, int (*step)(struct rank *me))
{
	pthread_t threads[RANKS];

	g->step = step;
	for (uint32_t r = 0; r < g->ranks; r++)
		if (!g->rank[r].absent)
			assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &g->rank[r]),
					 0);
	for (uint32_t r = 0; r < g->ranks; r++)
		if (!g->rank[r].absent)
			pthread_join(threads[r], NULL);
}

void all_right(struct rig *g, int (*step)(struct rank *me))
{
	int failed = 0;

	all_ranks(g, step);
	for (uint32_t r = 0; r < g->ranks; r++)
		if (g->rank[r].err && !g->rank[r].absent) {
			printf("# rank %u: %d, %s\n", r, g->rank[r].err, g->rank[r].why);
			failed = 1;
		}
	assert_false(failed);
}

int set_window(struct rank *me)
{
	struct rig *g = me->rig;
	void *window[RANKS];

	for (uint32_t r = 0; r < g->ranks; r++)
		window[r] = g->on->node[r] == g->on->node[me->rank] ? g->rank[r].window : NULL;
	return epf_ht_set_window(me->ht, me->window, g->window_bytes, window);
}

static int open_rank(struct rank *me)
{
	struct rig *g = me->rig;
	void *control[RANKS];
	struct epf_ht_options o = { .size = sizeof(o),
				    .control = me->control,
				    .peers = control,
				    .timeout_ns = g->timeout_ns,
				    .first_signal = 3 + 8 * RANKS };
	int err;

	for (uint32_t r = 0; r < g->ranks; r++) {
		int mate = g->on->node[r] == g->on->node[me->rank];

		control[r] = mate ? g->rank[r].control : NULL;
	}
	err = epf_ht_open(ll_kit_ll(g->kit, me->rank), &o, &me->ht);
	if (!err) {
		me->ht->put_bytes = 256;  /* several puts a slice */
		me->ht->part_rows = 8;    /* several parts */
		me->ht->chunk_tokens = 6; /* several blocks for a rank's routing */
	}
	return err ? err : set_window(me);
}

struct rig *open_on(const struct topology *on, uint64_t timeout_ns, enum nic nic)
{
	uint32_t ranks = on->ranks;
	struct ll_kit_options o = { .ranks = ranks,
				    .direct = LL_KIT_ALL,
				    .unordered = nic != ORDERED,
				    .late = nic == LATE,
				    .bytes = 1u << 20,
				    .timeout_ns = timeout_ns };
	struct epf_ht_row row = { .bytes = HIDDEN * 2,
				  .scale_words = SCALES + 1 + TOPK,
				  .topk = TOPK };
	struct rig *g = aligned_alloc(16, (sizeof(*g) + 15) / 16 * 16);

	assert_non_null(g);
	memset(g, 0, sizeof(*g));
	g->ranks = ranks;
	g->on = on;
	g->timeout_ns = timeout_ns;
	g->kit = ll_kit_open(&o);
	g->window_bytes = epf_ht_window_bytes(&row, ranks * TOKENS);
	for (uint32_t r = 0; r < ranks; r++) {
		size_t control = (epf_ht_control_bytes(ranks) + 127) / 128 * 128;

		g->rank[r].rig = g;
		g->rank[r].rank = r;
		g->rank[r].beside = &g->rank[r].own;
		g->rank[r].control = aligned_alloc(128, control);
		g->rank[r].window = aligned_alloc(128, g->window_bytes);
		assert_non_null(g->rank[r].control);
		assert_non_null(g->rank[r].window);
		memset(g->rank[r].control, 0, control);
		memset(g->rank[r].window, 0xa5, g->window_bytes);
	}
	all_right(g, open_rank);
	for (uint32_t r = 0; r < ranks; r++) {
		g->rank[r].plan = aligned_alloc(
			16, (epf_ht_plan_bytes(g->rank[r].ht, TOKENS) + 15) / 16 * 16);
		g->rank[r].links =
			malloc(sizeof(int32_t[RANKS * TOKENS]) * epf_ht_node_max(g->rank[r].ht));
	}
	return g;
}

struct rig *open_rig(uint32_t ranks, uint64_t timeout_ns)
{
	static const struct topology one[RANKS + 1] = { { 0 }, { 1 }, { 2 }, { 3 },
							{ 4 }, { 5 }, { 6 } };

	assert_true(one[ranks].ranks == ranks);
	return open_on(&one[ranks], timeout_ns, ORDERED);
}

void close_rig(struct rig *g)
{
	for (uint32_t r = 0; r < g->ranks; r++) {
		epf_ht_close(g->rank[r].ht);
		free(g->rank[r].control);
		free(g->rank[r].window);
		free(g->rank[r].plan);
		free(g->rank[r].links);
	}
	ll_kit_close(g->kit);
	free(g);
}

void set_timeout(struct rig *g, uint64_t timeout_ns)
{
	for (uint32_t r = 0; r < g->ranks; r++)
		g->rank[r].ht->opts.timeout_ns = timeout_ns;
}

bool all_of_them(void)
{
	return getenv("EPF_TEST_LONG") != NULL;
}
