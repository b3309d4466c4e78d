/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of several losses an error names: the table of cases on a separate page, then what engines tell each other of it. Two engines in one
 * thread (core_rig.h).
 */
#include "fabric/base/err.h"
#include "fabric/engine/losses.h"
#include "tests/unit/engine/core_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 6, SELF = 5 };

static union {
	struct epf_peers_shm shm;
	uint8_t bytes[4096];
} page;

static struct epf_peer_detail *details;
static uint8_t masked[WORLD];

/* Rank r lives on node r / 2, so 4 lives with SELF. */
static int reset(void **state)
{
	memset(&page, 0, sizeof(page));
	memset(masked, 0, sizeof(masked));
	epf_peers_format(&page.shm, WORLD);
	details = epf_peers_details(&page.shm, WORLD);
	for (uint32_t r = 0; r < WORLD; r++) {
		page.shm.peers[r].node = r / 2;
		epf_peers_set(&page.shm, r, EPF_PEER_UP, 0, 0);
	}
	return 0;
}

static void lose(uint32_t rank, uint32_t cause)
{
	epf_peers_set(&page.shm, rank, EPF_PEER_DOWN, cause, 0);
}

static void blame(uint32_t rank, uint32_t root)
{
	details[rank].root = root + 1;
	details[rank].root_cause = EPF_R_RANK_DIED;
}

static void expect(uint32_t rank, uint32_t cause, uint32_t after)
{
	struct epf_loss loss;

	assert_true(epf_first_loss(&page.shm, details, WORLD, masked, SELF, false, &loss));
	assert_int_equal(loss.rank, rank);
	assert_int_equal(loss.cause, cause);
	assert_int_equal(loss.after, after);
}

static void nobody_is_lost(void **state)
{
	struct epf_loss loss;

	blame(1, 2); /* it lives */
	assert_false(epf_first_loss(&page.shm, details, WORLD, masked, SELF, false, &loss));
	lose(1, EPF_R_NODE_LOST);
	masked[1] = 1;
	assert_false(epf_first_loss(&page.shm, details, WORLD, masked, SELF, false, &loss));
}

static void the_first_in_time(void **state)
{
	lose(3, EPF_R_NODE_LOST);
	lose(1, EPF_R_NODE_LOST);
	lose(0, EPF_R_NODE_LOST);
	expect(3, EPF_R_NODE_LOST, EPF_NONE);
	masked[3] = 1;
	expect(1, EPF_R_NODE_LOST, EPF_NONE);
	/* A page of an earlier release does not say which was first. */
	details = NULL;
	expect(0, EPF_R_NODE_LOST, EPF_NONE);
}

static void the_own_node_only_where_a_rank_of_it_died(void **state)
{
	lose(4, EPF_R_NODE_LOST);
	lose(0, EPF_R_NODE_LOST);
	expect(0, EPF_R_NODE_LOST, EPF_NONE);
	reset(NULL);
	lose(4, EPF_R_RANK_DIED);
	lose(0, EPF_R_RANK_DIED);
	expect(4, EPF_R_RANK_DIED, EPF_NONE);
}

static void the_end_of_the_chain(void **state)
{
	lose(0, EPF_R_NODE_LOST);
	blame(0, 1);
	expect(1, EPF_R_RANK_DIED, 0); /* this engine has not noticed 1 yet */
	blame(1, 2);
	expect(2, EPF_R_RANK_DIED, 1);
	lose(2, EPF_R_LINK_LOST);
	expect(2, EPF_R_LINK_LOST, 1); /* what it has seen itself counts */
	masked[2] = 1;
	expect(1, EPF_R_RANK_DIED, 0);
}

static void not_this_rank_and_no_circle(void **state)
{
	lose(0, EPF_R_NODE_LOST);
	blame(0, SELF);
	expect(0, EPF_R_NODE_LOST, EPF_NONE);
	blame(0, 1);
	blame(1, 0);
	expect(0, EPF_R_NODE_LOST, EPF_NONE);
	details[0].root = 77;
	expect(0, EPF_R_NODE_LOST, EPF_NONE);
}

static void who_left_for_it(void **state)
{
	struct epf_loss loss;

	epf_peers_set(&page.shm, 1, EPF_PEER_LEFT, 0, 0);
	assert_false(epf_first_loss(&page.shm, details, WORLD, masked, SELF, true, &loss));
	blame(1, 3);
	assert_false(epf_first_loss(&page.shm, details, WORLD, masked, SELF, false, &loss));
	assert_true(epf_first_loss(&page.shm, details, WORLD, masked, SELF, true, &loss));
	assert_int_equal(loss.rank, 3);
	assert_int_equal(loss.after, 1);
}

static void forgiven_when_back(void **state)
{
	lose(3, EPF_R_RANK_DIED);
	blame(1, 3);
	epf_peers_set(&page.shm, 3, EPF_PEER_UP, 0, 1);
	assert_int_equal(details[3].order, 0);
	assert_int_equal(details[1].root, 0);
}

static const struct epf_peer_detail *of(const struct core_rig *rig, uint32_t node, uint32_t rank)
{
	return &epf_peers_details(rig->core[node]->peers_page, CORE_WORLD)[rank];
}

/* Rank 3 dies; rank 0 then ends, because of that or after having masked it. */
static void daemons_pass_it_on(void **state)
{
	for (uint32_t mask = 0; mask < 2; mask++) {
		for (uint32_t cause = 0; cause <= EPF_R_RANK_DIED; cause += EPF_R_RANK_DIED) {
			struct core_rig *rig = core_rig_open(NULL);

			(void)state;
			epf_core_rank_gone(rig->core[1], 1, EPF_R_RANK_DIED);
			assert_true(core_rig_run(rig, NULL, NULL));
			epf_core_mask_peer(rig->core[0], 0, 3, (int)mask);
			epf_core_rank_gone(rig->core[0], 0, cause);
			assert_true(core_rig_run(rig, NULL, NULL));
			assert_int_equal(rig->core[1]->peers_page->peers[0].state,
					 cause ? EPF_PEER_DOWN : EPF_PEER_LEFT);
			for (uint32_t n = 0; n < CORE_NODES; n++) {
				assert_int_equal(of(rig, n, 0)->root, mask ? 0 : 3 + 1);
				assert_int_equal(of(rig, n, 0)->root_cause,
						 mask ? 0 : EPF_R_RANK_DIED);
			}
			core_rig_close(rig);
		}
	}
}

static bool has_left(void *arg)
{
	struct core_rig *rig = arg;

	return epf_core_say_bye(rig->core[0]) == 0 &&
	       rig->core[1]->peers_page->peers[0].state == EPF_PEER_LEFT;
}

static void a_goodbye_says_it(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);

	epf_core_rank_gone(rig->core[1], 1, EPF_R_RANK_DIED);
	assert_true(core_rig_run(rig, NULL, NULL));
	epf_loss_of_rank(rig->core[0], 0);
	assert_true(core_rig_run(rig, has_left, rig));
	assert_int_equal(of(rig, 1, 0)->root, 3 + 1);
	assert_int_equal(of(rig, 1, 0)->root_cause, EPF_R_RANK_DIED);
	core_rig_close(rig);
}

/* An engine of one rank announces the loss beforehand, and withdraws it. */
static void one_rank_tells_beforehand(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);

	rig->core[0]->n_ranks = 1;
	epf_core_rank_gone(rig->core[1], 1, EPF_R_RANK_DIED);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_true(epf_loss_is_notified(rig->core[0]));
	assert_int_equal(of(rig, 1, 0)->root, 3 + 1);
	epf_core_mask_peer(rig->core[0], 0, 3, 1);
	assert_false(epf_loss_is_notified(rig->core[0]));
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_true(epf_loss_is_notified(rig->core[0]));
	assert_int_equal(of(rig, 1, 0)->root, 0);
	rig->core[0]->n_ranks = CORE_PER_NODE;
	core_rig_close(rig);
}

static void what_cannot_be_is_not_taken(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct epf_core *core = rig->core[1];
	struct epf_msg m = { .kind = EPF_MSG_LOST, .rank = 0, .b = 3 + 1, .e = EPF_R_RANK_DIED };
	uint64_t refused;

	epf_loss_message(core, &core->nodes[0], &m);
	assert_int_equal(of(rig, 1, 0)->root, 3 + 1);
	m.b = 0 + 1; /* itself */
	epf_loss_message(core, &core->nodes[0], &m);
	assert_int_equal(of(rig, 1, 0)->root, 0);
	m.b = CORE_WORLD + 1;
	epf_loss_message(core, &core->nodes[0], &m);
	assert_int_equal(of(rig, 1, 0)->root, 0);
	m.b = 3 + 1 + (UINT64_C(1) << 32);
	epf_loss_message(core, &core->nodes[0], &m);
	assert_int_equal(of(rig, 1, 0)->root, 0);
	/* Of a rank of another node, or of none. */
	refused = epf_stat_get(core->stats, EPF_STAT_CORE_ARRIVALS_REFUSED);
	m = (struct epf_msg){ .kind = EPF_MSG_LOST, .rank = 2, .b = 1 };
	epf_loss_message(core, &core->nodes[0], &m);
	m.rank = CORE_WORLD;
	epf_loss_message(core, &core->nodes[0], &m);
	assert_int_equal(of(rig, 1, 2)->root, 0);
	assert_int_equal(epf_stat_get(core->stats, EPF_STAT_CORE_ARRIVALS_REFUSED), refused + 2);
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(nobody_is_lost, reset),
		cmocka_unit_test_setup(the_first_in_time, reset),
		cmocka_unit_test_setup(the_own_node_only_where_a_rank_of_it_died, reset),
		cmocka_unit_test_setup(the_end_of_the_chain, reset),
		cmocka_unit_test_setup(not_this_rank_and_no_circle, reset),
		cmocka_unit_test_setup(who_left_for_it, reset),
		cmocka_unit_test_setup(forgiven_when_back, reset),
		cmocka_unit_test(daemons_pass_it_on),
		cmocka_unit_test(a_goodbye_says_it),
		cmocka_unit_test(one_rank_tells_beforehand),
		cmocka_unit_test(what_cannot_be_is_not_taken),
	};

	return cmocka_run_group_tests_name("losses", tests, NULL, NULL);
}
