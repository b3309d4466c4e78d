/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link with many lanes comes back: they are opened again one a step, so that nothing else on the core's thread waits for all of the
 * system calls that takes.
 */
#include "tests/unit/engine/core_rig.h"

#include "fabric/engine/recovery.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What each core asks of its NIC, by the step in which it does. */
static struct {
	const struct epf_nic_ops *real;
	struct epf_nic_ops ops;
	struct core_rig *rig;
	uint32_t step[CORE_NODES];
	unsigned in_step[CORE_NODES], most, creates, connects;
} seen;

static void count(const struct epf_nic *nic, unsigned *all)
{
	unsigned n = nic == seen.rig->nic[1];

	if (seen.step[n] != seen.rig->core[n]->steps)
		seen.in_step[n] = 0;
	seen.step[n] = seen.rig->core[n]->steps;
	if (++seen.in_step[n] > seen.most)
		seen.most = seen.in_step[n];
	*all += 1;
}

static int counted_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	count(nic, &seen.creates);
	return seen.real->lane_create(nic, lane, depth, token);
}

static int counted_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token)
{
	count(nic, &seen.connects);
	return seen.real->lane_reconnect(nic, lane, addr, addr_len, token);
}

static unsigned lanes_down(const struct core_rig *rig)
{
	unsigned down = 0;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		for (uint32_t l = 0; l < rig->core[n]->n_lanes; l++)
			down += rig->core[n]->lanes[l].state != EPF_LANE_UP;
	return down;
}

static bool all_up(void *arg)
{
	return lanes_down(arg) == 0;
}

static bool some_down(void *arg)
{
	return lanes_down(arg) >= 4;
}

/* A put of each of 16 groups: their streams are on all lanes in turn. */
static void put_on_all_lanes(struct core_rank *r, uint32_t to)
{
	for (uint32_t i = 0; i < CORE_SIGNALS; i++) {
		struct epf_op op = { .op = EPF_OP_PUT,
				     .flags = EPF_F_COUNTED,
				     .rank = to,
				     .signal = i,
				     .length = 64 };

		assert_true(epf_ring_room(&r->ring, 2) >= 2);
		epf_ring_push(&r->ring, epf_op_pack_narrow(&op));
	}
}

static void lanes_are_opened_again_one_a_step(void **state)
{
	static const char *const settings[] = { "lanes-per-peer=8",
						"emu-links=2",
						"emu-link-timeout=5ms",
						"lane-depth=16",
						"lane-receives=16",
						"window=64",
						NULL };
	struct core_rig *rig = core_rig_open(settings);

	memset(&seen, 0, sizeof(seen));
	seen.rig = rig;
	seen.real = rig->core[0]->ops;
	seen.ops = *seen.real;
	seen.ops.lane_create = counted_create;
	seen.ops.lane_reconnect = counted_connect;
	for (uint32_t n = 0; n < CORE_NODES; n++)
		rig->core[n]->ops = rig->nic[n]->ops = &seen.ops;
	assert_true(all_up(rig));
	assert_int_equal(seen.real->set_link(rig->nic[0], 0, 0), 0);
	put_on_all_lanes(&rig->rank[0], 2);
	assert_true(core_rig_run(rig, some_down, rig));
	assert_int_equal(seen.real->set_link(rig->nic[0], 0, 1), 0);
	assert_true(core_rig_run(rig, all_up, rig));
	assert_true(seen.creates >= 4 && seen.connects >= 4);
	assert_int_equal(seen.most, 1);
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lanes_are_opened_again_one_a_step),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
