/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of regions that are given out again, and what an exchange may bring for a number that was withdrawn. */
#include "tests/unit/engine/arrivals_kit.h"

#include "fabric/base/err.h"

#include <errno.h>

static const struct epf_msg revoke = { .kind = EPF_MSG_REVOKE, .rank = 2, .signal = REGIONS };

static void step(struct null_rig *rig)
{
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig->core);
}

/* What rank 2 describes in an exchange. */
static void publish(struct null_rig *rig, uint32_t n)
{
	struct epf_region_remote published[NULL_REGIONS];
	struct epf_peer_info info = { .node = rig->core->peers[2].node,
				      .n_regions = n,
				      .regions = published,
				      .keys = 1,
				      .n_signals = SIGNALS };

	for (uint32_t i = 0; i < n; i++)
		published[i] = (struct epf_region_remote){ .bytes = 64,
							   .state = EPF_REGION_LIVE,
							   .access = EPF_MR_REMOTE_WRITE };
	assert_int_equal(epf_core_set_peer(rig->core, 2, &info), 0);
}

/* The lowest free number goes first, and only that of a region whose withdrawal is over is free. */
static void a_free_number_goes_first(void **state)
{
	struct epf_rank_state *rank;
	struct null_rig rig;
	static uint8_t memory[64];
	uint32_t region = 99;

	(void)state;
	open_rig(&rig);
	rank = &rig.core->ranks[0];
	rank->max_regions = REGIONS;
	assert_int_equal(epf_core_add_region(rig.core, 0, memory, 64, 0, &region), -ENOSPC);
	assert_int_equal(epf_core_free_region(rig.core, 0, 1), -ENOENT);
	assert_int_equal(epf_core_free_region(rig.core, 0, REGIONS), -ENOENT);
	assert_int_equal(epf_core_revoke_begin(rig.core, 0, 1), 0);
	assert_int_equal(epf_core_free_region(rig.core, 0, 1), -ENOENT);
	rank->regions[1].state = EPF_REGION_WITHDRAWN;
	rank->regions[2].state = EPF_REGION_WITHDRAWN;
	rig.core->peers[0].regions[2].state = EPF_REGION_WITHDRAWN;
	assert_int_equal(epf_core_free_region(rig.core, 0, 2), 0);
	assert_int_equal(rig.core->peers[0].regions[2].state, EPF_REGION_FREE);
	assert_int_equal(epf_core_free_region(rig.core, 0, 2), -ENOENT); /* once */
	assert_int_equal(epf_core_free_region(rig.core, 0, 1), 0);
	for (uint32_t want = 1; want <= 2; want++) {
		assert_int_equal(epf_core_add_region(rig.core, 0, memory, 64, 0, &region), 0);
		assert_int_equal(region, want);
		assert_int_equal(rank->regions[want].state, EPF_REGION_LIVE);
	}
	assert_int_equal(rank->n_regions, REGIONS);
	assert_int_equal(epf_core_add_region(rig.core, 0, memory, 64, 0, &region), -ENOSPC);
	null_rig_close(&rig);
}

/* A peer's withdrawn region stays withdrawn through exchanges until it is forgotten, which is not before its answer is on its way. */
static void a_forgotten_region_may_come_again(void **state)
{
	struct epf_msg m = revoke;
	struct null_rig rig;

	(void)state;
	open_rig(&rig);
	m.signal = 1;
	assert_false(send(&rig, m));
	assert_int_equal(epf_core_forget_region(rig.core, 2, 1), -ENOENT);
	step(&rig);
	publish(&rig, REGIONS);
	assert_int_equal(rig.core->peers[2].regions[1].state, EPF_REGION_WITHDRAWN);
	assert_int_equal(epf_core_forget_region(rig.core, 2, 1), 0);
	assert_int_equal(rig.core->peers[2].regions[1].bytes, 0);
	assert_int_equal(epf_core_forget_region(rig.core, 2, REGIONS), 0); /* never known */
	publish(&rig, REGIONS);
	assert_int_equal(rig.core->peers[2].regions[1].state, EPF_REGION_LIVE);
	assert_int_equal(rig.core->peers[2].regions[1].bytes, 64);
	null_rig_close(&rig);
}

/*
 * A region is registered and withdrawn while an exchange is under way that does not have it yet. Its owner gets its answer all the same, and would wait for
 * ever without.
 */
static void an_exchange_forgets_no_withdrawal(void **state)
{
	struct null_rig rig;

	(void)state;
	open_rig(&rig);
	assert_false(send(&rig, revoke));
	assert_int_equal(peer_node(&rig)->revoked, 1);
	publish(&rig, REGIONS);
	step(&rig);
	assert_int_equal(peer_node(&rig)->revoked, 0);
	publish(&rig, REGIONS + 1);
	assert_int_equal(rig.core->peers[2].regions[REGIONS].state, EPF_REGION_WITHDRAWN);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_free_number_goes_first),
		cmocka_unit_test(a_forgotten_region_may_come_again),
		cmocka_unit_test(an_exchange_forgets_no_withdrawal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
