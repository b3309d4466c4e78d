/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that wait: at the limits of what is in flight and of what is deferred, each at its edge, and in order once they may go. */
#include "tests/unit/engine/null_kit.h"

#include "fabric/engine/lane_hot.h"

enum { PEER = 3 };

#define PUT    .op = EPF_OP_PUT, .rank = PEER
#define SIGNAL .op = EPF_OP_SIGNAL, .rank = PEER, .value = 7

/* Pushes n commands and returns how many entries are staged while the NIC completes nothing. */
static uint32_t staged_of(struct null_rig *rig, const struct epf_op *op, bool wide, unsigned n)
{
	uint32_t before = null_staged(rig);

	null_rig_hold(rig, true);
	for (unsigned i = 0; i < n; i++)
		null_push(&rig->rank[0], op, wide);
	for (unsigned i = 0; i < 4; i++)
		epf_core_step(rig->core);
	return null_staged(rig) - before;
}

/* Then all of it is staged and retired. */
static void let_go(struct null_rig *rig)
{
	null_rig_hold(rig, false);
	null_drain(rig);
	assert_int_equal(rig->core->n_deferred, 0);
	assert_int_equal(rig->rank[0].shm->done.retired, rig->rank[0].ring.pushed);
	assert_int_equal(rig->core->load[0].bytes, 0);
	assert_int_equal(rig->core->load[0].messages, 0);
	assert_int_equal(rig->core->ranks[0].inflight_bytes, 0);
	assert_int_equal(rig->core->ranks[0].inflight_messages, 0);
}

/* Limits of what is in flight: the last entry that fits is staged, the one behind it waits. In both forms. */
static void limits_of_flight_at_their_edges(void **state)
{
	const struct epf_op put = { PUT, .length = 16 },
			    bulk = { PUT, .flags = EPF_F_BULK, .length = 16 };
	const struct epf_op large = { PUT, .length = 64 }, signal = { SIGNAL, .signal = 1 };
	const uint64_t far = UINT64_C(1) << 40;
	struct null_rig rig;
	struct epf_core_limits *l;
	struct epf_lane *lane;
	uint32_t limit;

	null_open(&rig);
	null_warm_up(&rig, PEER);
	l = &rig.core->limits;
	lane = null_lane(&rig, PEER);
	limit = lane->limit;
	for (int wide = 0; wide < 2; wide++) {
		l->nic_inflight_messages = 3;
		assert_int_equal(staged_of(&rig, &put, wide, 5), 3);
		l->nic_inflight_messages = 1 << 20;
		let_go(&rig);
		l->rank_inflight_messages = 3;
		assert_int_equal(staged_of(&rig, &put, wide, 5), 3);
		l->rank_inflight_messages = 1 << 20;
		let_go(&rig);
		l->nic_inflight_bytes = 48;
		assert_int_equal(staged_of(&rig, &put, wide, 5), 3);
		l->nic_inflight_bytes = far;
		let_go(&rig);
		l->rank_inflight_bytes = 48;
		assert_int_equal(staged_of(&rig, &put, wide, 5), 3);
		let_go(&rig);
		/* More than may be in flight: alone. */
		assert_int_equal(staged_of(&rig, &large, wide, 2), 1);
		l->rank_inflight_bytes = far;
		let_go(&rig);
		l->nic_inflight_bytes = 48;
		assert_int_equal(staged_of(&rig, &large, wide, 2), 1);
		l->nic_inflight_bytes = far;
		let_go(&rig);
		lane->limit = 4;
		assert_int_equal(staged_of(&rig, &put, wide, 7), 4);
		let_go(&rig);
		assert_int_equal(staged_of(&rig, &bulk, wide, 7), 3);
		lane->limit = limit;
		let_go(&rig);
		lane->granted = lane->events + 3;
		assert_int_equal(staged_of(&rig, &signal, wide, 5), 3);
		lane->granted += 100;
		let_go(&rig);
	}
	null_rig_close(&rig);
}

/* Commands of many groups wait: no more are dequeued than the pool for them holds, and all go out in the end. */
static void the_pool_of_deferred_commands_is_enough(void **state)
{
	struct epf_op op = { PUT, .flags = EPF_F_COUNTED, .length = 16 };
	uint64_t pushed[NULL_LOCAL] = { 0 };
	struct null_rig rig;

	null_open(&rig);
	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++)
		rig.core->lanes[l].state = EPF_LANE_FENCED;
	for (unsigned i = 0; i < 60; i++) {
		for (unsigned r = 0; r < NULL_LOCAL; r++) {
			op.signal = i % 10;
			pushed[r] +=
				(unsigned)epf_ring_push(&rig.rank[r].ring, epf_op_pack_narrow(&op));
		}
		epf_core_step(rig.core);
		assert_in_range(rig.core->n_deferred, 0, rig.core->limits.max_deferred);
	}
	assert_int_equal(rig.core->n_deferred, rig.core->limits.max_deferred);
	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++)
		rig.core->lanes[l].state = EPF_LANE_UP;
	for (unsigned i = 0; i < 200; i++)
		epf_core_step(rig.core);
	assert_int_equal(rig.core->n_deferred, 0);
	for (unsigned r = 0; r < NULL_LOCAL; r++) {
		assert_int_equal(rig.rank[r].shm->done.retired, pushed[r]);
		assert_int_equal(rig.rank[r].shm->done.failed, 0);
	}
	null_rig_close(&rig);
}

/* A lane that is not up takes nothing; what waits goes out when it is, in order, and later commands do not overtake. */
static void nothing_overtakes_what_waits(void **state)
{
	const struct epf_op first = { PUT, .remote_offset = 16, .length = 16 },
			    second = { PUT, .remote_offset = 32, .length = 16 };
	struct null_rig rig;
	struct epf_lane *lane;

	null_open(&rig);
	null_warm_up(&rig, PEER);
	lane = null_lane(&rig, PEER);
	for (int wide = 0; wide < 4; wide++) {
		lane->state = EPF_LANE_FENCED;
		assert_int_equal(staged_of(&rig, &first, wide & 1, 1), 0);
		assert_int_equal(rig.core->n_deferred, 1);
		lane->state = EPF_LANE_UP;
		null_push(&rig.rank[0], &second, wide >> 1);
		let_go(&rig);
		assert_int_equal(lane->wrs[(lane->head - 2) & lane->mask].raddr,
				 null_rig_raddr(PEER, 0) + 16);
		assert_int_equal(lane->wrs[(lane->head - 1) & lane->mask].raddr,
				 null_rig_raddr(PEER, 0) + 32);
	}
	null_rig_close(&rig);
}

/* A stream that has deferred as much as it may blocks its ring: what follows stays there. */
static void the_limit_of_deferring_at_its_edge(void **state)
{
	const struct epf_op signal = { SIGNAL, .signal = 1 };
	struct null_rig rig;
	struct epf_lane *lane;

	null_open(&rig);
	null_warm_up(&rig, PEER);
	lane = null_lane(&rig, PEER);
	lane->state = EPF_LANE_FENCED;
	for (unsigned i = 0; i < 12; i++) {
		null_push(&rig.rank[0], &signal, false);
		epf_core_step(rig.core);
	}
	assert_int_equal(rig.core->n_deferred, rig.core->limits.defer_limit);
	lane->state = EPF_LANE_UP;
	let_go(&rig);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(limits_of_flight_at_their_edges),
		cmocka_unit_test(nothing_overtakes_what_waits),
		cmocka_unit_test(the_pool_of_deferred_commands_is_enough),
		cmocka_unit_test(the_limit_of_deferring_at_its_edge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
