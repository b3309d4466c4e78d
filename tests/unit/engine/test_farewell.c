/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nobody is taken for lost who is only slow: the goodbye of an engine that closes reaches a peer that has no room for it now, also over a lane
 * that fails meanwhile; nor does it hide a loss; a core that was not run in the middle of a recovery does not call its peer lost for that. Two engines in one
 * thread (core_rig.h).
 */
#include "fabric/base/err.h"
#include "fabric/engine/recovery.h"
#include "tests/unit/engine/core_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

static unsigned state_of(const struct core_rig *rig, uint32_t node, uint32_t rank)
{
	return rig->core[node]->peers_page->peers[rank].state;
}

/* Node 0 closes; node 1 looks whether it lives, and steps. */
static void close_west(struct core_rig *rig)
{
	epf_core_destroy(rig->core[0]);
	rig->nic[0]->ops->close(rig->nic[0]);
	rig->core[0] = NULL;
	rig->nic[0] = NULL;
	for (int i = 0; i < 100; i++) {
		rig->nic[1]->ops->watch(rig->nic[1]);
		epf_core_step(rig->core[1]);
	}
}

/* As the run loops do it: says goodbye until all have been notified and have answered. */
static bool has_parted(void *arg)
{
	struct core_rig *rig = arg;

	return epf_core_say_bye(rig->core[0]) == 0 && epf_core_is_quiet(rig->core[0]);
}

static void end(struct core_rig *rig)
{
	assert_int_equal(state_of(rig, 1, 0), EPF_PEER_LEFT);
	assert_int_equal(state_of(rig, 1, 1), EPF_PEER_LEFT);
	close_west(rig);
	assert_int_equal(state_of(rig, 1, 0), EPF_PEER_LEFT);
	core_rig_close(rig);
}

static void a_goodbye_waits_for_room(void **state)
{
	static const char *const settings[] = { "lane-receives=4", "lane-depth=16", NULL };
	struct core_rig *rig = core_rig_open(settings);

	for (int i = 0; i < 40; i++)
		core_rig_put(&rig->rank[0], 2 + (i & 1), 64, 1);
	for (int i = 0; i < 50; i++)
		epf_core_step(rig->core[0]);
	/* Node 1 has taken nothing: there is no credit, on neither lane. */
	assert_int_equal(epf_core_say_bye(rig->core[0]), 1);
	assert_false(epf_core_is_quiet(rig->core[0]));
	assert_true(core_rig_run(rig, has_parted, rig));
	assert_int_equal(epf_core_say_bye(rig->core[0]), 0);
	end(rig);
}

static bool fails(void *arg)
{
	return ((const struct core_rig *)arg)->core[0]->recovering != 0;
}

static void a_goodbye_survives_its_lane(void **state)
{
	static const char *const settings[] = { "lanes-per-peer=2", "emu-links=2",
						"emu-link-timeout=5ms", NULL };
	struct core_rig *rig = core_rig_open(settings);
	const struct epf_core *core = rig->core[0];

	assert_true(core_rig_run(rig, NULL, NULL));
	for (unsigned link = 0; link < 2; link++)
		assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], link, 0), 0);
	assert_int_equal(epf_core_say_bye(rig->core[0]), 0);
	epf_core_step(rig->core[0]);
	/* Only the lane that carries it fails. */
	for (uint32_t i = 0; i < core->n_lanes; i++)
		if (core->nodes[core->lanes[i].node].state == EPF_NODE_UP &&
		    core->lanes[i].node != 0 && core->lanes[i].tail == core->lanes[i].head)
			rig->nic[0]->ops->set_link(rig->nic[0], core->lanes[i].id % 2, 1);
	assert_true(core_rig_run(rig, fails, rig));
	assert_false(epf_core_is_quiet(rig->core[0]));
	assert_true(core_rig_run(rig, has_parted, rig));
	end(rig);
}

static bool is_well(void *arg)
{
	const struct core_rig *rig = arg;

	return !rig->core[0]->recovering && !rig->core[1]->recovering;
}

static void a_rest_is_no_silence(void **state)
{
	static const char *const settings[] = { "lanes-per-peer=2", "emu-links=2",
						"emu-link-timeout=5ms", "peer-timeout=200ms",
						NULL };
	struct core_rig *rig = core_rig_open(settings);

	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 0), 0);
	for (int i = 0; i < 8; i++)
		core_rig_put(&rig->rank[i & 1], 2 + (i & 1), 64, 1);
	assert_true(core_rig_run(rig, fails, rig));
	/* Nobody runs them for longer than peer-timeout. */
	usleep(400 * 1000);
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 1), 0);
	assert_true(core_rig_run(rig, is_well, rig));
	for (uint32_t rank = 0; rank < CORE_WORLD; rank++)
		assert_int_equal(state_of(rig, 1 - rank / 2, rank), EPF_PEER_UP);
	core_rig_close(rig);
}

static bool has_gone(void *arg)
{
	const struct core_rig *rig = arg;

	return !rig->core[0]->telling;
}

/* A rank is lost, the other one of its node leaves because of that, and the node says goodbye at once: the lost one is lost for all, in whatever order that comes. */
static void a_loss_before_a_goodbye_is_heard(void **state)
{
	for (int seed = 1; seed <= 40; seed++) {
		char text[32];
		const char *const settings[] = { "emu-order=unordered",
						 "emu-reorder=0.5",
						 "emu-delay=20us",
						 "lanes-per-peer=2",
						 text,
						 NULL };
		struct core_rig *rig;

		snprintf(text, sizeof(text), "emu-seed=%d", seed);
		rig = core_rig_open(settings);
		epf_core_rank_gone(rig->core[0], 0, EPF_R_RANK_DIED);
		epf_core_rank_gone(rig->core[0], 1, 0);
		assert_true(core_rig_run(rig, has_gone, rig));
		assert_true(core_rig_run(rig, has_parted, rig));
		assert_true(core_rig_run(rig, NULL, NULL));
		close_west(rig);
		assert_int_equal(state_of(rig, 1, 0), EPF_PEER_DOWN);
		assert_int_equal(state_of(rig, 1, 1), EPF_PEER_LEFT);
		core_rig_close(rig);
	}
}

static bool is_fencing(void *arg)
{
	const struct core_rig *rig = arg;

	epf_core_step(rig->core[0]);
	return rig->core[0]->recovering != 0;
}

/* The news of a loss is on a lane that fails; the goodbye comes on the other one, while the failure of the first is being dealt with. */
static void a_loss_on_a_failed_lane_is_heard(void **state)
{
	static const char *const settings[] = { "lanes-per-peer=2", "emu-links=2",
						"emu-link-timeout=5ms", NULL };
	struct core_rig *rig = core_rig_open(settings);

	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 0), 0);
	epf_core_rank_gone(rig->core[0], 0, EPF_R_RANK_DIED);
	epf_core_rank_gone(rig->core[0], 1, 0);
	while (!is_fencing(rig) || !has_gone(rig))
		;
	assert_int_equal(epf_core_say_bye(rig->core[0]), 0);
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 1), 0);
	assert_true(core_rig_run(rig, has_parted, rig));
	assert_int_equal(state_of(rig, 1, 0), EPF_PEER_DOWN);
	assert_int_equal(state_of(rig, 1, 1), EPF_PEER_LEFT);
	/* When its engine is gone, what it was to be told is told to nobody, and costs no time. */
	rig->core[1]->nodes[0].recovery->lanes[0].tell_opened = 1;
	rig->core[1]->nodes[0].recovery->lanes[1].answer = 1;
	epf_node_down(rig->core[1], &rig->core[1]->nodes[0], EPF_S_RETRY_EXCEEDED);
	close_west(rig);
	assert_int_equal(rig->core[1]->recover_poll, 0);
	assert_int_equal(state_of(rig, 1, 0), EPF_PEER_DOWN);
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_goodbye_waits_for_room),
		cmocka_unit_test(a_goodbye_survives_its_lane),
		cmocka_unit_test(a_rest_is_no_silence),
		cmocka_unit_test(a_loss_before_a_goodbye_is_heard),
		cmocka_unit_test(a_loss_on_a_failed_lane_is_heard),
	};

	return cmocka_run_group_tests_name("farewell", tests, NULL, NULL);
}
