/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An EFA adapter that is removed in the middle of a job and comes back with a reconnection (fabric/nic/nic.h: revive): two engines over adapters that
 * reorder (fake_efa.h), of which a node loses one of two, or its only one.
 */
#include "fabric/base/clock.h"
#include "tests/unit/engine/reconnect_kit.h"
#include "tests/unit/nic/efa/fake_efa.h"

/* Node 0 has efa0 and efa1, node 1 efa2 and efa3; or the first of them each. */
static unsigned adapters;

static int open_nic(const struct epf_conf *conf, uint32_t node, struct epf_nic **out)
{
	struct epf_efa_opts opts;
	char *names[2] = { (char *)(node ? "efa2" : "efa0"), (char *)(node ? "efa3" : "efa1") };

	epf_efa_opts_from_conf(&opts, conf);
	opts.devices = (struct epf_conf_list){ .item = names, .count = adapters };
	opts.flush_wait_ns = 5000000;
	return epf_efa_open_chosen(&fake_efa_lib, &opts, epf_limits_now, NULL, out);
}

static struct core_rig *open_rig(unsigned n)
{
	static const char *const settings[] = { "lane-depth=64",   "lane-receives=64",
						"window=256",      "lanes-per-peer=2",
						"peer-timeout=4s", NULL };

	adapters = n;
	fake_efa_reset();
	fake_efa.n_devices = 4;
	fake_efa.now = epf_limits_now;
	fake_efa.delay_ns = 20000;
	fake_efa.retry_timeout_ns = 20000000;
	return core_rig_open_over(settings, open_nic);
}

static void close_rig(struct core_rig *rig)
{
	core_rig_close(rig);
	assert_int_equal(fake_efa.open_things, 0);
}

/* Node 0 loses its last adapter, with work under way. */
static void remove_adapter(struct core_rig *rig)
{
	for (unsigned i = 0; i < 4; i++)
		notify(&rig->rank[i], (i + 2) % 4, 0, 5);
	for (unsigned i = 0; i < 3; i++)
		core_rig_step(rig, i & 1);
	fake_efa_pull((int)adapters - 1);
	rig->nic[0]->ops->watch(rig->nic[0]);
}

static bool link_1_is_closed(void *arg)
{
	const struct core_rig *rig = arg;
	unsigned closed = 0;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		for (uint32_t l = 0; l < rig->core[n]->n_lanes; l++)
			closed += rig->core[n]->lanes[l].link == 1 &&
				  rig->core[n]->lanes[l].state == EPF_LANE_OPENING;
	return closed >= 3;
}

static uint64_t sent_by_child(const struct core_rig *rig, unsigned child)
{
	const struct epf_rails *r = epf_rails_of(rig->nic[0]);
	struct epf_nic_counters c;

	r->ops->counters(r->child[child], &c);
	return c.messages_tx;
}

static void one_of_two_comes_back(void **state)
{
	struct core_rig *rig = open_rig(2);
	uint32_t old_key = rig->rank[0].core->ranks[0].regions[0].mr.keys[1].rkey;
	uint64_t sent;

	all_to_all(rig);
	remove_adapter(rig);
	assert_true(core_rig_run(rig, link_1_is_closed, rig));
	all_to_all(rig); /* over the other one */
	reconnected(rig);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_false(all_up(rig)); /* it is not back */
	fake_efa.gone_device = 0;
	reconnected(rig);
	assert_int_not_equal(rig->rank[0].core->ranks[0].regions[0].mr.keys[1].rkey, old_key);
	assert_int_equal(rig->core[1]->peers[0].regions[0].rkeys[1],
			 rig->core[0]->ranks[0].regions[0].mr.keys[1].rkey);
	assert_int_equal(word(rig, 1, 0)->epoch, 0); /* nobody was lost */
	assert_true(core_rig_run(rig, all_up, rig));
	sent = sent_by_child(rig, 1);
	for (unsigned i = 0; i < 4; i++)
		all_to_all(rig);
	assert_true(sent_by_child(rig, 1) > sent);
	check_clean(rig);
	close_rig(rig);
}

static bool node_1_has_completed(void *arg)
{
	const struct core_rig *rig = arg;

	for (uint32_t l = 0; l < rig->core[1]->n_lanes; l++)
		if (rig->core[1]->lanes[l].tail != rig->core[1]->lanes[l].head)
			return false;
	return true;
}

/*
 * What the adapter has acknowledged before it went, and its engine had not looked at yet: for the senders that is done, so nobody sends it again,
 * and all of it must count.
 */
static void what_it_had_acknowledged_counts(void **state)
{
	struct core_rig *rig = open_rig(2);
	uint64_t before[2], until;

	all_to_all(rig);
	for (unsigned i = 0; i < 2; i++)
		before[i] = signal_of(&rig->rank[i], 0);
	for (unsigned i = 0; i < 8; i++) {
		notify(&rig->rank[2], 0, 0, 0);
		notify(&rig->rank[3], 1, 0, 0);
	}
	/* The adapters move what travels when any of them is polled; node 0 does not look at its own meanwhile. */
	core_rig_step(rig, 1);
	until = epf_now_ns() + CORE_RIG_LONGEST_NS;
	while (!node_1_has_completed(rig)) {
		assert_true(epf_now_ns() < until);
		core_rig_step(rig, 1);
	}
	fake_efa_pull(1);
	rig->nic[0]->ops->watch(rig->nic[0]);
	assert_true(core_rig_run(rig, link_1_is_closed, rig));
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(signal_of(&rig->rank[i], 0), before[i] + 8);
	all_to_all(rig);
	check_clean(rig);
	fake_efa.gone_device = 0;
	close_rig(rig);
}

static void the_only_one_comes_back(void **state)
{
	struct core_rig *rig = open_rig(1);
	int rc[CORE_NODES];

	all_to_all(rig);
	remove_adapter(rig);
	assert_true(core_rig_run(rig, both_lost, rig));
	reconnect(rig, rc);
	assert_int_equal(rc[0], -ENETUNREACH); /* it is not back */
	assert_int_equal(rc[1], -ENETUNREACH);
	fake_efa.gone_device = 0;
	reconnected(rig);
	assert_true(core_rig_run(rig, all_up, rig));
	assert_int_equal(word(rig, 0, 2)->state, EPF_PEER_UP);
	assert_int_equal(word(rig, 1, 0)->epoch, 1);
	all_to_all(rig);
	check_clean(rig);
	close_rig(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_of_two_comes_back),
		cmocka_unit_test(what_it_had_acknowledged_counts),
		cmocka_unit_test(the_only_one_comes_back),
	};

	return cmocka_run_group_tests_name("an EFA adapter removed and back", tests, NULL, NULL);
}
