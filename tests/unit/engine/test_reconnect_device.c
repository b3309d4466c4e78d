/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that was removed and is back is opened again by a reconnection (fabric/nic/nic.h: revive): one of several of a node, and its only one. Emulated
 * devices, cut for good, and others that take their places with keys of their own.
 */
#include "tests/unit/engine/reconnect_kit.h"

/* ---- a device that is removed and comes back: one of two emulated NICs of node 0, cut for good, and one that takes its place ---- */

static struct {
	struct epf_nic_ops ops; /* of the children of both nodes */
	struct core_rig *rig;
	const struct epf_nic *removed;
	int is_back;
} device;

static int is_removed(const struct epf_nic *nic)
{
	return nic == device.removed;
}

/* Distinct keys: it begins with regions that nobody uses. */
static int open_device(void *arg, unsigned index, struct epf_nic **out)
{
	static uint64_t unused;
	struct epf_nic_mr mr;

	if (!device.is_back)
		return -ENODEV;
	assert_int_equal(index, 1);
	assert_int_equal(epf_nic_find("emu")->open(&device.rig->conf, epf_limits_now, NULL, out),
			 0);
	for (unsigned i = 0; i < 700; i++)
		assert_int_equal((*out)->ops->region_register(*out, &unused, 8, 0, &mr), 0);
	(*out)->ops = &device.ops;
	device.removed = NULL;
	return 0;
}

static struct core_rig *open_with_devices(const char *const *settings)
{
	static const struct epf_rails_again again = { .open = open_device };
	struct core_rig *rig = core_rig_open_devices(settings, 2);

	memset(&device, 0, sizeof(device));
	device.rig = rig;
	device.ops = *epf_nic_find("emu");
	device.ops.is_removed = is_removed;
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		epf_rails_of(rig->nic[n])->ops = &device.ops;
		for (unsigned i = 0; i < 2; i++)
			rig->device[n][i]->ops = &device.ops;
	}
	epf_nic_rails_revivable(rig->nic[0], &again);
	return rig;
}

/* Its lane to the own node, which needs no link, ends with it too. */
static void remove_device(struct core_rig *rig)
{
	struct epf_core *core = rig->core[0];

	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 1, 0), 0);
	device.removed = rig->device[0][1];
	epf_lane_error_cold(core, &core->lanes[core->nodes[0].first_lane + 1], EPF_S_LINK_DOWN);
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

static uint64_t sent_by_the_new_one(const struct core_rig *rig)
{
	struct epf_nic_counters c;

	device.ops.counters(epf_rails_of(rig->nic[0])->child[1], &c);
	return c.messages_tx;
}

static void a_removed_device_comes_back(void **state)
{
	static const char *const settings[] = { "lanes-per-peer=2", "emu-link-timeout=5ms",
						"emu-retry-timeout=50ms", "peer-timeout=4s", NULL };
	struct core_rig *rig = open_with_devices(settings);
	uint32_t old_key = rig->rank[0].core->ranks[0].regions[0].mr.keys[1].rkey;
	uint64_t sent;

	all_to_all(rig);
	remove_device(rig);
	for (unsigned i = 0; i < 4; i++)
		notify(&rig->rank[i], (i + 2) % 4, 0, 5);
	assert_true(core_rig_run(rig, link_1_is_closed, rig));
	all_to_all(rig); /* over the other one */
	reconnected(rig);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_false(all_up(rig)); /* it is not back */
	device.is_back = 1;
	reconnected(rig);
	assert_int_not_equal(rig->rank[0].core->ranks[0].regions[0].mr.keys[1].rkey, old_key);
	assert_int_equal(rig->core[1]->peers[0].regions[0].rkeys[1],
			 rig->core[0]->ranks[0].regions[0].mr.keys[1].rkey);
	assert_int_equal(word(rig, 1, 0)->epoch, 0); /* nobody was lost */
	assert_true(core_rig_run(rig, all_up, rig));
	sent = sent_by_the_new_one(rig);
	for (unsigned i = 0; i < 4; i++)
		all_to_all(rig);
	assert_true(sent_by_the_new_one(rig) > sent);
	check_clean(rig);
	assert_true(all_up(rig));
	core_rig_close(rig);
}

/* The device is back, but the attempt broke off before everybody knew its keys: it is not used before they do. */
static void new_keys_are_not_used_before_they_are_known(void **state)
{
	static const char *const settings[] = { "lanes-per-peer=2", "emu-link-timeout=5ms",
						"emu-retry-timeout=50ms", "peer-timeout=4s", NULL };
	struct core_rig *rig = open_with_devices(settings);
	struct epf_blob heard[CORE_WORLD] = { { NULL, 0 } };
	uint64_t until;
	uint8_t *buf;
	size_t len;

	remove_device(rig);
	for (unsigned i = 0; i < 4; i++)
		notify(&rig->rank[i], (i + 2) % 4, 0, 5);
	assert_true(core_rig_run(rig, link_1_is_closed, rig));
	device.is_back = 1;
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(epf_world_reconnect(rig->core[n], EPF_RECONNECT_BEGIN, "here",
						     NULL, &buf, &heard[2 * n].len),
				 0);
		heard[2 * n].data = buf;
	}
	assert_int_equal(
		epf_world_reconnect(rig->core[0], EPF_RECONNECT_PREPARE, "here", heard, &buf, &len),
		0);
	free(buf);
	for (uint32_t n = 0; n < CORE_NODES; n++)
		free((void *)(uintptr_t)heard[2 * n].data);
	until = epf_limits_now(NULL) + UINT64_C(500000000);
	while (epf_limits_now(NULL) < until) {
		epf_core_step(rig->core[0]);
		epf_core_step(rig->core[1]);
	}
	assert_true(link_1_is_closed(rig));
	assert_int_equal(rig->core[0]->nodes[1].recovery->lanes[1].phase, EPF_REC_CLOSED);
	all_to_all(rig);
	reconnected(rig);
	assert_true(core_rig_run(rig, all_up, rig));
	all_to_all(rig);
	check_clean(rig);
	core_rig_close(rig);
}

/* All links of a node were down, and when they are back one device is another: both in one call. */
static void a_device_comes_back_with_its_node(void **state)
{
	static const char *const settings[] = { "lanes-per-peer=2", "emu-link-timeout=5ms",
						"emu-retry-timeout=50ms", "peer-timeout=400ms",
						NULL };
	struct core_rig *rig = open_with_devices(settings);

	all_to_all(rig);
	lose(rig, both_lost);
	remove_device(rig);
	assert_true(core_rig_run(rig, NULL, NULL));
	device.is_back = 1;
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 1), 0);
	reconnected(rig);
	assert_int_equal(word(rig, 1, 0)->epoch, 1);
	all_to_all(rig);
	assert_true(core_rig_run(rig, all_up, rig));
	all_to_all(rig);
	check_clean(rig);
	core_rig_close(rig);
}

/* ---- the same with the only device of a node ---- */

static int open_only(void *arg, unsigned index, struct epf_nic **out)
{
	const struct epf_conf *conf = arg;

	if (!device.is_back)
		return -ENODEV;
	assert_int_equal(index, 0);
	assert_int_equal(epf_nic_find("emu")->open(conf, epf_limits_now, NULL, out), 0);
	(*out)->ops = &device.ops;
	device.removed = NULL;
	return 0;
}

/* What is removed makes no lanes. */
static int make_lane(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	return nic == device.removed ? -ENETDOWN
				     : epf_nic_find("emu")->lane_create(nic, lane, depth, token);
}

static int open_one_device(const struct epf_conf *conf, uint32_t node, struct epf_nic **out)
{
	struct epf_rails_again again = { .open = open_only, .arg = (void *)(uintptr_t)conf };
	struct epf_nic *child = NULL;
	int rc = epf_nic_find("emu")->open(conf, epf_limits_now, NULL, &child);

	(void)node;
	if (rc)
		return rc;
	device.ops = *epf_nic_find("emu");
	device.ops.is_removed = is_removed;
	device.ops.lane_create = make_lane;
	child->ops = &device.ops;
	assert_int_equal(epf_nic_rails_open(&child, 1, out), 0);
	epf_nic_rails_revivable(*out, &again);
	return 0;
}

static void a_nodes_only_device_comes_back(void **state)
{
	static const char *const settings[] = { "emu-link-timeout=5ms", "emu-retry-timeout=50ms",
						"peer-timeout=400ms", NULL };
	unsigned char alone[EPF_NIC_ADDR_BYTES], mine[EPF_NIC_ADDR_BYTES];
	struct core_rig *rig;
	const struct epf_nic *old;
	int rc[CORE_NODES], len;

	memset(&device, 0, sizeof(device));
	rig = core_rig_open_over(settings, open_one_device);
	old = epf_rails_of(rig->nic[0])->child[0];
	len = old->ops->address(old, alone, sizeof(alone));
	/* To its peers it is what it would be by itself. */
	assert_int_equal(rig->nic[0]->ops->address(rig->nic[0], mine, sizeof(mine)), len);
	assert_memory_equal(mine, alone, (size_t)len);
	all_to_all(rig);
	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 0), 0);
	device.removed = old;
	/* Its lanes to the own node, which need no link, end with it too. */
	for (unsigned i = 0; i < rig->core[0]->nodes[0].n_lanes; i++)
		epf_lane_error_cold(rig->core[0],
				    &rig->core[0]->lanes[rig->core[0]->nodes[0].first_lane + i],
				    EPF_S_LINK_DOWN);
	for (unsigned i = 0; i < 4; i++)
		notify(&rig->rank[i], (i + 2) % 4, LOST, 6);
	assert_true(core_rig_run(rig, both_lost, rig));
	reconnect(rig, rc); /* it is not back: said so, and may be asked again */
	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_int_equal(rc[n], -ENETUNREACH);
	device.is_back = 1;
	reconnected(rig);
	assert_ptr_not_equal(epf_rails_of(rig->nic[0])->child[0], old);
	assert_int_equal(word(rig, 1, 0)->epoch, 1);
	assert_int_equal(word(rig, 0, 2)->epoch, 1);
	assert_true(core_rig_run(rig, all_up, rig));
	for (unsigned i = 0; i < 4; i++)
		all_to_all(rig);
	check_clean(rig);
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(new_keys_are_not_used_before_they_are_known),
		cmocka_unit_test(a_removed_device_comes_back),
		cmocka_unit_test(a_device_comes_back_with_its_node),
		cmocka_unit_test(a_nodes_only_device_comes_back),
	};

	return cmocka_run_group_tests_name("devices that come back", tests, NULL, NULL);
}
