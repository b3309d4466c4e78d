/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that forgets a lane, to the own node or to another: it takes posts and then neither completes nor fails them, as one whose wake-up was lost. Once it
 * goes on when something else is posted; once it never does, and the work has to go over another lane. Two engines in one
 * thread (core_rig.h); the NIC's operations are wrapped, so the emulated one hears of posts late or never.
 */
#include "tests/unit/engine/reconnect_kit.h"

#include <stddef.h>

enum { KEPT_MAX = 64, SIGNAL = 3, PUTS = 8 };

/* What the device has taken of one lane and forgotten. */
static struct {
	const struct epf_nic_ops *ops;
	uint16_t lane;
	bool forgets, for_good;
	unsigned posts, n;
	struct epf_wr kept[KEPT_MAX];
} device;

static int forgetful_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	if (lane != device.lane || !device.forgets)
		return device.ops->post(nic, lane, wr, n);
	if (device.n + n > KEPT_MAX)
		return 0;
	memcpy(&device.kept[device.n], wr, n * sizeof(*wr));
	device.n += n;
	/* The puts and the beat behind them are forgotten; a third post wakes it. */
	if (device.posts++ >= 2 && !device.for_good) {
		device.forgets = false;
		assert_int_equal(device.ops->post(nic, lane, device.kept, device.n), device.n);
	}
	return (int)n;
}

/* A new lane is not forgotten. */
static void forgetful_destroy(struct epf_nic *nic, uint16_t lane)
{
	device.forgets &= lane != device.lane;
	device.ops->lane_destroy(nic, lane);
}

static struct core_rig *open_rig(bool for_good, const char *peer_timeout)
{
	const char *settings[] = { peer_timeout, "peer-silence=200ms", "lanes-per-peer=2", NULL };
	static struct epf_nic_ops ops;
	struct core_rig *rig = core_rig_open(settings);
	struct epf_core *core = rig->core[0];

	memset(&device, 0, sizeof(device));
	device.ops = core->ops;
	device.for_good = for_good;
	ops = *core->ops;
	ops.post = forgetful_post;
	ops.lane_destroy = forgetful_destroy;
	core->ops = &ops;
	return rig;
}

static void close_rig(struct core_rig *rig)
{
	rig->core[0]->ops = device.ops;
	core_rig_close(rig);
}

/* The next puts of rank 0 to this rank go over this lane. */
static uint16_t lane_of_puts(struct core_rig *rig, uint32_t to)
{
	const struct epf_core *core = rig->core[0];

	return core->streams[core->rings[rig->rank[0].ring_id]->streams[to]].lane;
}

static bool have_come(const struct core_rig *rig, uint32_t to)
{
	return rig->rank[to].signals[SIGNAL].value >= PUTS;
}

static void both_step(struct core_rig *rig)
{
	epf_core_step(rig->core[0]);
	epf_core_step(rig->core[1]);
}

/* The lane of the node that is not forgotten. */
static struct epf_lane *other_lane(const struct core_rig *rig, uint32_t to)
{
	struct epf_core *core = rig->core[0];
	const struct epf_node *node = &core->nodes[core->peers[to].node];

	assert_int_equal(node->n_lanes, 2);
	return &core->lanes[2 * node->first_lane + 1 - device.lane];
}

static bool other_lane_is_opening(void *rig)
{
	return other_lane(rig, 1)->state == EPF_LANE_OPENING;
}

/*
 * Puts of rank 0 to a rank over a lane that is forgotten from the second one on. alone: the other one has failed and is to be opened again, for which the two ends, here
 * one and the same, talk over the forgotten one.
 */
static void forget_puts(struct core_rig *rig, uint32_t to, bool alone)
{
	uint64_t until = epf_now_ns() + CORE_RIG_LONGEST_NS;

	core_rig_put(&rig->rank[0], to, 64, SIGNAL);
	while (rig->rank[to].signals[SIGNAL].value < 1 && epf_now_ns() < until)
		both_step(rig);
	device.lane = lane_of_puts(rig, to);
	/* Until nothing of this lane is under way. */
	while (rig->core[0]->lanes[device.lane].tail != rig->core[0]->lanes[device.lane].head &&
	       epf_now_ns() < until)
		both_step(rig);
	if (alone) {
		epf_lane_error_cold(rig->core[0], other_lane(rig, to), EPF_S_RETRY_EXCEEDED);
		assert_true(core_rig_run(rig, other_lane_is_opening, rig));
	}
	device.forgets = true;
	for (unsigned i = 1; i < PUTS; i++)
		core_rig_put(&rig->rank[0], to, 64, SIGNAL);
}

static void put_and_wait(bool for_good, uint32_t to)
{
	struct core_rig *rig = open_rig(for_good, "peer-timeout=40ms");
	uint64_t until = epf_now_ns() + CORE_RIG_LONGEST_NS;

	forget_puts(rig, to, false);
	while (!have_come(rig, to) && epf_now_ns() < until)
		both_step(rig);
	assert_true(have_come(rig, to));
	assert_int_equal(rig->rank[to].signals[SIGNAL].value, PUTS);
	assert_true(device.n > 0);
	assert_int_equal(epf_stat_get(rig->core[0]->stats, EPF_STAT_CORE_LANE_ERRORS), for_good);
	/* Nobody was lost for it. */
	for (uint32_t r = 0; r < CORE_WORLD; r++)
		assert_int_equal(rig->core[0]->peers_page->peers[r].state, EPF_PEER_UP);
	close_rig(rig);
}

static void another_post_reminds_it(void **state)
{
	put_and_wait(false, 1);
}

static void a_lane_that_stays_forgotten_fails(void **state)
{
	put_and_wait(true, 1);
}

/* Also one to another node, later than an engine that is silent would be noticed. */
static void a_lane_to_another_node_fails_too(void **state)
{
	put_and_wait(true, 2);
}

static bool puts_are_posted(void *rig)
{
	return device.n >= PUTS - 1 && rig;
}

static bool rank_1_is_lost(void *rig)
{
	return word(rig, 0, 1)->state == EPF_PEER_DOWN;
}

/* Rank 0 puts to a rank of its own node over the node's last lane to itself, which the device has forgotten. */
static struct core_rig *forget_the_last_lane(const char *peer_timeout)
{
	struct core_rig *rig = open_rig(true, peer_timeout);

	forget_puts(rig, 1, true);
	assert_true(core_rig_run(rig, puts_are_posted, rig));
	return rig;
}

static void work_and_close(struct core_rig *rig)
{
	assert_true(core_rig_run(rig, all_up, rig));
	all_to_all(rig);
	close_rig(rig);
}

/* The last lane to this node is forgotten: nobody waits for ever, and a reconnection brings both back. */
static void the_last_lane_fails_too(void **state)
{
	struct core_rig *rig = forget_the_last_lane("peer-timeout=40ms");

	assert_true(core_rig_run(rig, rank_1_is_lost, rig));
	assert_true(core_rig_run(rig, all_retired, rig));
	assert_true(rig->rank[0].shm->done.failed > 0);
	reconnected(rig);
	work_and_close(rig);
}

/* A reconnection does not trust it either, long before it would fail. */
static void a_reconnection_does_not_trust_it(void **state)
{
	struct core_rig *rig = forget_the_last_lane("peer-timeout=4s");

	reconnected(rig);
	assert_int_equal(epf_stat_get(rig->core[0]->stats, EPF_STAT_CORE_LANE_ERRORS), 1);
	assert_true(core_rig_run(rig, all_retired, rig));
	assert_true(rig->rank[0].shm->done.failed > 0);
	work_and_close(rig);
}

/* One whose requests complete meanwhile is, and nothing fails. */
static void a_reconnection_trusts_one_that_moves(void **state)
{
	struct core_rig *rig = forget_the_last_lane("peer-timeout=4s");

	device.forgets = false; /* it goes on */
	assert_int_equal(device.ops->post(rig->core[0]->nic, device.lane, device.kept, device.n),
			 device.n);
	reconnected(rig);
	assert_true(core_rig_run(rig, all_retired, rig));
	assert_int_equal(rig->rank[0].shm->done.failed, 0);
	assert_int_equal(word(rig, 0, 1)->epoch, 0); /* nobody was lost */
	work_and_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_post_reminds_it),
		cmocka_unit_test(a_lane_that_stays_forgotten_fails),
		cmocka_unit_test(a_lane_to_another_node_fails_too),
		cmocka_unit_test(the_last_lane_fails_too),
		cmocka_unit_test(a_reconnection_does_not_trust_it),
		cmocka_unit_test(a_reconnection_trusts_one_that_moves),
	};

	return cmocka_run_group_tests_name("forgotten", tests, NULL, NULL);
}
