/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that lost each other because all links were down are reconnected within the job (fabric/engine/reconnect.h): what was under way failed and never
 * takes effect, new commands flow, signals count exactly. Two engines in one thread (core_rig.h); the steps' bytes go from one to the
 * other here, as the ranks carry them.
 */
#include "tests/unit/engine/reconnect_kit.h"

#define COMMON                                                                        \
 "emu-links=2", "lanes-per-peer=2", "emu-link-timeout=5ms", "emu-retry-timeout=50ms", \
	 "peer-timeout=400ms", "lane-depth=64", "window=64"

static const char *const ordered[] = { COMMON, NULL };
static const char *const unordered[] = { COMMON, "emu-order=unordered", "emu-reorder=0.1",
					 "emu-duplicate=0.1", NULL };

static void cut_and_reconnect(const char *const *settings)
{
	struct core_rig *rig = core_rig_open(settings);
	int rc[CORE_NODES];

	all_to_all(rig);
	for (uint32_t times = 1; times <= 5; times++) {
		uint64_t before, failed;

		lose(rig, both_lost);
		assert_true(core_rig_run(rig, all_retired, rig));
		/* New ones fail at once, and others go on. */
		failed = rig->rank[0].shm->done.failed;
		assert_true(failed > 0);
		core_rig_put(&rig->rank[0], 3, 64, 0);
		core_rig_put(&rig->rank[2], 3, 64, 4);
		before = signal_of(&rig->rank[3], 4);
		assert_true(core_rig_run(rig, all_retired, rig));
		assert_int_equal(rig->rank[0].shm->done.failed, failed + 1);
		assert_true(core_rig_run(rig, NULL, NULL));
		assert_int_equal(signal_of(&rig->rank[3], 4), before + 1);
		/* Links still down: an error at both ends, and it may be tried again. */
		reconnect(rig, rc);
		for (uint32_t n = 0; n < CORE_NODES; n++)
			assert_int_equal(rc[n], -ENETUNREACH);
		assert_true(both_lost(rig));
		set_links(rig, 1);
		reconnected(rig);
		assert_int_equal(word(rig, 0, 2)->state, EPF_PEER_UP);
		assert_int_equal(word(rig, 1, 1)->state, EPF_PEER_UP);
		assert_int_equal(word(rig, 0, 2)->epoch, times);
		assert_int_equal(word(rig, 1, 1)->epoch, times);
		assert_int_equal(word(rig, 0, 1)->epoch, 0);
		/* Nothing of what failed comes late. */
		before = signal_of(&rig->rank[2], 2) + signal_of(&rig->rank[1], 2);
		memset(rig->rank[2].memory + LOST, 0xee, BYTES);
		memset(rig->rank[1].memory + LOST, 0xee, BYTES);
		all_to_all(rig);
		assert_true(core_rig_run(rig, all_up, rig));
		assert_int_equal(signal_of(&rig->rank[2], 2) + signal_of(&rig->rank[1], 2), before);
		for (unsigned i = 0; i < BYTES; i++) {
			assert_int_equal(rig->rank[2].memory[LOST + i], 0xee);
			assert_int_equal(rig->rank[1].memory[LOST + i], 0xee);
		}
		/* The signal whose handle was being defined when the links went. */
		assert_int_equal(signal_of(&rig->rank[2], 6), 3 * (times - 1));
		for (unsigned i = 1; i <= 3; i++) {
			struct awaited a = { &rig->rank[2], 6, 3 * (times - 1) + i };

			notify(&rig->rank[0], 2, LOST, 6);
			assert_true(core_rig_run(rig, has_signal, &a));
		}
		assert_true(core_rig_run(rig, NULL, NULL));
		assert_int_equal(signal_of(&rig->rank[2], 6), 3 * times);
		check_clean(rig);
	}
	core_rig_close(rig);
}

static void lost_nodes_come_back(void **state)
{
	cut_and_reconnect(ordered);
}

static void lost_nodes_come_back_unordered(void **state)
{
	cut_and_reconnect(unordered);
}

/* Only one end has noticed: the other hears of it with the first step. */
static void one_end_has_noticed(void **state)
{
	struct core_rig *rig = core_rig_open(ordered);

	epf_node_down(rig->core[0], &rig->core[0]->nodes[1], EPF_S_RETRY_EXCEEDED);
	assert_true(node_0_lost(rig));
	assert_int_equal(word(rig, 1, 0)->state, EPF_PEER_UP);
	reconnected(rig);
	assert_int_equal(word(rig, 0, 2)->epoch, 1);
	assert_int_equal(word(rig, 1, 0)->epoch, 1);
	all_to_all(rig);
	check_clean(rig);
	core_rig_close(rig);
}

/* Nothing is lost: nothing changes. */
static void nothing_was_lost(void **state)
{
	struct core_rig *rig = core_rig_open(ordered);

	all_to_all(rig);
	reconnected(rig);
	assert_int_equal(word(rig, 0, 2)->epoch, 0);
	all_to_all(rig);
	check_clean(rig);
	core_rig_close(rig);
}

/* One of two links is back: it is enough, and the other one's lane follows when its link does. */
static void one_link_is_enough(void **state)
{
	struct core_rig *rig = core_rig_open(ordered);

	lose(rig, both_lost);
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 1, 1), 0);
	reconnected(rig);
	assert_false(all_up(rig));
	all_to_all(rig);
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 1), 0);
	assert_true(core_rig_run(rig, all_up, rig));
	all_to_all(rig);
	check_clean(rig);
	core_rig_close(rig);
}

/* One lane to a node: no failover, but it comes back. */
static void a_single_lane_comes_back(void **state)
{
	static const char *const single[] = { "lanes-per-peer=1", "emu-link-timeout=5ms",
					      "emu-retry-timeout=20ms", "peer-timeout=200ms",
					      NULL };
	struct core_rig *rig = core_rig_open(single);

	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 0), 0);
	notify(&rig->rank[0], 2, LOST, 2);
	notify(&rig->rank[3], 1, LOST, 2);
	assert_true(core_rig_run(rig, both_lost, rig));
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 1), 0);
	reconnected(rig);
	all_to_all(rig);
	check_clean(rig);
	core_rig_close(rig);
}

struct withdrawal {
	struct core_rank *r;
	uint32_t missing;
};

static bool is_withdrawn(void *arg)
{
	struct withdrawal *w = arg;

	return epf_core_revoke_done(w->r->core, w->r->local, 0, &w->missing) == 1;
}

/* What was withdrawn while a node was lost is known there when it is back; what is being withdrawn then ends. */
static void withdrawals_are_told(void **state)
{
	struct core_rig *rig = core_rig_open(ordered);
	struct withdrawal w = { .r = &rig->rank[2] }, late = { .r = &rig->rank[3] },
			  unanswered = { .r = &rig->rank[1] };
	uint64_t errors;

	set_links(rig, 0);
	assert_int_equal(epf_core_revoke_begin(unanswered.r->core, unanswered.r->local, 0), 0);
	lose(rig, both_lost);
	assert_true(core_rig_run(rig, all_retired, rig));
	assert_int_equal(epf_core_revoke_begin(w.r->core, w.r->local, 0), 0);
	assert_true(core_rig_run(rig, is_withdrawn, &w));
	assert_int_equal(epf_core_revoke_begin(late.r->core, late.r->local, 0), 0);
	set_links(rig, 1);
	reconnected(rig);
	errors = epf_stat_get(rig->core[0]->stats, EPF_STAT_CORE_LANE_ERRORS);
	core_rig_put(&rig->rank[0], 2, 64, 0);
	core_rig_put(&rig->rank[1], 3, 64, 0);
	assert_true(core_rig_run(rig, is_withdrawn, &late));
	assert_true(core_rig_run(rig, is_withdrawn, &unanswered));
	assert_true(core_rig_run(rig, all_retired, rig));
	assert_int_equal(epf_stat_get(rig->core[0]->stats, EPF_STAT_CORE_LANE_ERRORS), errors);
	assert_int_equal(word(rig, 0, 2)->state, EPF_PEER_UP);
	assert_true(core_rig_run(rig, all_up, rig));
	core_rig_close(rig);
}

/* A put whose counted signal never came covers none that is sent afterwards. */
static void counted_signals_begin_anew(void **state)
{
	struct epf_op put = { .op = EPF_OP_PUT,
			      .rank = 2,
			      .length = 64,
			      .signal = 3,
			      .flags = EPF_F_COUNTED },
		      signal = { .op = EPF_OP_SIGNAL,
				 .rank = 2,
				 .signal = 3,
				 .value = 1,
				 .count = 1,
				 .flags = EPF_F_COUNTED };
	struct core_rig *rig = core_rig_open(ordered);

	push(&rig->rank[0], &put);
	lose(rig, both_lost);
	set_links(rig, 1);
	reconnected(rig);
	push(&rig->rank[0], &signal);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(signal_of(&rig->rank[2], 3), 0);
	push(&rig->rank[0], &put);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(signal_of(&rig->rank[2], 3), 1);
	core_rig_close(rig);
}

/* An engine that has nothing to say ends the attempt of the others with an error, and nothing is used. */
static void an_engine_is_missing(void **state)
{
	struct core_rig *rig = core_rig_open(ordered);
	struct epf_blob none[CORE_WORLD] = { { NULL, 0 } };
	uint8_t *buf;
	size_t len;

	lose(rig, both_lost);
	set_links(rig, 1);
	assert_int_equal(epf_world_reconnect(rig->core[0], 0, "here", NULL, &buf, &len), 0);
	assert_int_equal(len, CORE_NODES);
	assert_int_equal(buf[1], 1);
	free(buf);
	for (unsigned step = 1; step < EPF_RECONNECT_STEPS; step++) {
		int rc = epf_world_reconnect(rig->core[0], step, "here", none, &buf, &len);

		assert_true(step == EPF_RECONNECT_PROVE || rc == -ENETUNREACH);
		free(buf);
	}
	assert_int_equal(word(rig, 0, 2)->state, EPF_PEER_DOWN);
	reconnected(rig);
	all_to_all(rig);
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lost_nodes_come_back),
		cmocka_unit_test(lost_nodes_come_back_unordered),
		cmocka_unit_test(one_end_has_noticed),
		cmocka_unit_test(nothing_was_lost),
		cmocka_unit_test(one_link_is_enough),
		cmocka_unit_test(a_single_lane_comes_back),
		cmocka_unit_test(withdrawals_are_told),
		cmocka_unit_test(counted_signals_begin_anew),
		cmocka_unit_test(an_engine_is_missing),
	};

	return cmocka_run_group_tests_name("reconnecting", tests, NULL, NULL);
}
