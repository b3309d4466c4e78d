/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several devices as one NIC (fabric/nic/rails/nic.c) under two engines in one thread (core_rig.h): addresses, keys of each device, limits for
 * each device, and what happens when the link of one goes down and comes back, or that of all.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/limits.h"
#include "fabric/engine/recovery.h"
#include "tests/unit/engine/core_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const quick[] = { "emu-link-timeout=20ms", "emu-retry-timeout=500ms",
				     "peer-timeout=4s", "lanes-per-peer=2", NULL };

static uint64_t stat(const struct core_rig *rig, uint32_t node, uint32_t id)
{
	return epf_stat_get(rig->core[node]->stats, id);
}

static uint64_t sent_by(const struct core_rig *rig, uint32_t node, unsigned device)
{
	const struct epf_nic *nic = rig->device[node][device];
	struct epf_nic_counters c;

	nic->ops->counters(nic, &c);
	return c.messages_tx;
}

static void set_link(const struct core_rig *rig, uint32_t node, unsigned link, int up)
{
	assert_int_equal(rig->nic[node]->ops->set_link(rig->nic[node], link, up), 0);
}

/* ---- puts of every rank to every other, waited for with the clock: a lost link takes time to notice ---- */

struct wave {
	struct core_rig *rig;
	uint64_t signals; /* each rank has as many from each other one */
};

static bool has_come(void *arg)
{
	const struct wave *w = arg;

	for (uint32_t to = 0; to < CORE_WORLD; to++)
		for (uint32_t from = 0; from < CORE_WORLD; from++)
			if (epf_signal_read(&w->rig->rank[to].signals[from]) < w->signals)
				return false;
	return true;
}

static void push_wave(struct wave *w)
{
	w->signals++;
	for (uint32_t from = 0; from < CORE_WORLD; from++)
		for (uint32_t to = 0; to < CORE_WORLD; to++)
			core_rig_put(&w->rig->rank[from], to, 4096, from);
}

static void wait_wave(struct wave *w)
{
	assert_true(core_rig_run(w->rig, has_come, w));
	for (uint32_t to = 0; to < CORE_WORLD; to++)
		for (uint32_t from = 0; from < CORE_WORLD; from++)
			assert_int_equal(epf_signal_read(&w->rig->rank[to].signals[from]),
					 w->signals);
}

static bool is_homing(const struct epf_core *core, uint32_t node)
{
	return core->nodes[node].recovery && core->nodes[node].recovery->homing;
}

static bool is_whole(void *arg)
{
	const struct core_rig *rig = arg;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		for (uint32_t i = 0; i < rig->core[n]->n_lanes; i++)
			if (rig->core[n]->lanes[i].state != EPF_LANE_UP ||
			    rig->core[n]->recovering ||
			    is_homing(rig->core[n], i / rig->core[n]->limits.lanes_per_node))
				return false;
	return true;
}

/* ---- addresses ---- */

static void an_address_is_a_list_of_parts(void **state)
{
	struct core_rig *rig = core_rig_open_devices(quick, 3);
	unsigned char list[EPF_NIC_ADDR_BYTES], one[EPF_NIC_ADDR_BYTES];
	const struct epf_nic *nic = rig->nic[0];
	int len = nic->ops->address(nic, list, sizeof(list));
	const void *part = NULL;
	size_t part_len = 0;

	assert_true(len > 0);
	for (unsigned i = 0; i < 8; i++) {
		const struct epf_nic *child = rig->device[0][i % 3];
		int n = child->ops->address(child, one, sizeof(one));

		assert_int_equal(epf_nic_address_part(list, (size_t)len, i, &part, &part_len), 3);
		assert_int_equal(part_len, n);
		assert_memory_equal(part, one, part_len);
	}
	/* A plain one is its own part. */
	assert_int_equal(epf_nic_address_part(part, part_len, 5, &part, &part_len), 1);
	for (int cut = 8; cut < len; cut++)
		assert_int_equal(epf_nic_address_part(list, (size_t)cut, 0, &part, &part_len),
				 -EINVAL);
	list[6] = 9; /* parts */
	assert_int_equal(epf_nic_address_part(list, (size_t)len, 0, &part, &part_len), -EINVAL);
	list[4] = 2; /* version */
	assert_int_equal(epf_nic_address_part(list, (size_t)len, 0, &part, &part_len), -EINVAL);
	assert_non_null(strstr(epf_last_error(), "version 2"));
	assert_int_equal(nic->ops->address(nic, one, 20), -EINVAL);
	core_rig_close(rig);
}

/* What any device moves for peers is work of the engine, although nothing is reported. */
static void an_engine_that_serves_peers_is_not_idle(void **state)
{
	struct core_rig *rig = core_rig_open_devices(quick, 2);
	unsigned idle = 0;

	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		while (idle < 1000) /* what the start has left, and ticks */
			idle = core_rig_step(rig, 0) ? 0 : idle + 1;
		rig->device[0][i % 2]->served++;
		assert_int_not_equal(core_rig_step(rig, 0), 0);
		idle = 0;
	}
	core_rig_close(rig);
}

static void devices_that_do_not_fit_are_refused(void **state)
{
	struct epf_nic *nics[3] = { NULL }, *out = NULL;
	struct epf_conf conf;

	assert_int_equal(epf_conf_init(&conf), 0);
	for (unsigned i = 0; i < 3; i++) {
		if (i == 2)
			epf_conf_set(&conf, "emu-order", "unordered", EPF_CONF_PROGRAM);
		assert_int_equal(epf_nic_find("emu")->open(&conf, epf_limits_now, NULL, &nics[i]),
				 0);
	}
	assert_int_equal(epf_nic_rails_open(nics, 0, &out), -ENOSPC);
	assert_int_equal(epf_nic_rails_open(nics, 9, &out), -ENOSPC);
	assert_int_equal(epf_nic_rails_open(nics + 1, 2, &out), -EINVAL);
	assert_null(out);
	for (unsigned i = 0; i < 3; i++)
		nics[i]->ops->close(nics[i]);
	epf_conf_destroy(&conf);
}

/* ---- keys, lanes ---- */

static void lanes_are_dealt_to_devices_with_their_keys(void **state)
{
	static const char *const settings[] = { "lanes-per-peer=3", NULL };
	struct core_rig *rig = core_rig_open_devices(settings, 2);
	const struct epf_nic_mr *mr = &rig->core[0]->ranks[0].regions[0].mr;
	struct wave w = { .rig = rig };

	assert_int_equal(rig->core[0]->limits.lanes_per_node, 4); /* of 3: two links */
	assert_int_not_equal(mr->keys[0].rkey, mr->keys[1].rkey);
	for (unsigned i = 2; i < EPF_NIC_LINKS; i++)
		assert_int_equal(mr->keys[i].rkey, mr->keys[i % 2].rkey);
	for (unsigned i = 0; i < 20; i++) {
		push_wave(&w);
		wait_wave(&w);
	}
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_true(sent_by(rig, n, 0) > 100);
		assert_true(sent_by(rig, n, 1) > 100);
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_LANE_ERRORS), 0);
	}
	core_rig_close(rig);
}

static void too_many_lanes_are_refused(void **state)
{
	struct core_rig *rig = core_rig_open_devices(quick, 3);
	struct epf_core_config cfg = { .nic = rig->nic[0], .limits = rig->core[0]->limits };
	struct epf_core *core = NULL;

	assert_int_equal(rig->core[0]->limits.lanes_per_node, 3);
	cfg.limits.lanes_per_node = 7;
	assert_true(epf_core_create(&cfg, &core) < 0);
	assert_non_null(strstr(epf_last_error(), "lanes-per-peer: 7"));
	assert_non_null(strstr(epf_last_error(), "3 links"));
	core_rig_close(rig);
}

/* ---- one link lost and found ---- */

static void flap(const char *const *settings, unsigned end, unsigned link)
{
	struct core_rig *rig = core_rig_open_devices(settings, 2);
	struct wave w = { .rig = rig };
	uint64_t before[CORE_NODES];

	push_wave(&w);
	wait_wave(&w);
	set_link(rig, end, link, 0);
	/* What these have on the lost link is sent again on the other one, under that one's keys. */
	for (unsigned i = 0; i < 5; i++)
		push_wave(&w);
	wait_wave(&w);
	for (unsigned i = 0; i < 50; i++) {
		push_wave(&w);
		wait_wave(&w);
	}
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_FAILOVERS), 1);
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_RECOVERIES), 0);
		assert_true(stat(rig, n, EPF_STAT_CORE_FAILOVER_NS) > 0);
		assert_true(stat(rig, n, EPF_STAT_CORE_FAILOVER_MAX_NS) >=
			    stat(rig, n, EPF_STAT_CORE_FAILOVER_NS));
	}
	assert_true(stat(rig, 0, EPF_STAT_CORE_REPLAYS) + stat(rig, 1, EPF_STAT_CORE_REPLAYS) > 0);
	set_link(rig, end, link, 1);
	assert_true(core_rig_run(rig, is_whole, rig));
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_FAILOVERS), 1);
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_RECOVERIES), 1);
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_ARRIVALS_REFUSED), 0);
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_CMDS_FAILED), 0);
		before[n] = sent_by(rig, n, link);
	}
	for (uint32_t n = 0; n < CORE_NODES; n++)
		for (uint32_t i = 0; i < rig->core[n]->n_streams; i++)
			assert_int_equal(rig->core[n]->streams[i].lane,
					 rig->core[n]->streams[i].home);
	/* And so is what they carry. */
	for (unsigned i = 0; i < 20; i++) {
		push_wave(&w);
		wait_wave(&w);
	}
	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_true(sent_by(rig, n, link) - before[n] > 60);
	core_rig_close(rig);
}

static void a_link_goes_down_and_comes_back(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		flap(quick, i & 1, i >> 1);
}

static void the_same_without_order(void **state)
{
	static const char *const settings[] = { "emu-link-timeout=20ms", "peer-timeout=4s",
						"emu-order=unordered",   "emu-delay=20us",
						"emu-reorder=0.05",      "emu-duplicate=0.02",
						"emu-drop=0.01",         NULL };

	flap(settings, 0, 1);
	flap(settings, 1, 0);
}

/* Each of two ranks has a separate NIC: its bytes go by that, by the other one while that is down, and by its own again. */
static void a_rank_goes_by_its_own_card(void **state)
{
	struct core_rig *rig = core_rig_open_devices(quick, 2);
	uint64_t before[2];

	for (unsigned r = 0; r < 2; r++) {
		for (unsigned d = 0; d < 2; d++)
			before[d] = sent_by(rig, 0, d);
		for (unsigned i = 0; i < 20; i++) {
			core_rig_put(&rig->rank[r], 2 + i % 2, 4096, 0);
			assert_true(core_rig_run(rig, NULL, NULL));
		}
		assert_true(sent_by(rig, 0, r) - before[r] >= 40);
		assert_true(sent_by(rig, 0, 1 - r) - before[1 - r] < 20);
	}
	for (uint32_t i = 0; i < rig->core[0]->n_streams; i++) {
		const struct epf_stream *s = &rig->core[0]->streams[i];

		if (s->kind == EPF_STREAM_RING)
			assert_int_equal(rig->core[0]->lanes[s->home].link,
					 rig->core[0]->ranks[s->rank].rank);
	}
	core_rig_close(rig);
}

/* A lost link keeps what it has in flight against its own limit, not against that of the other device. */
static void limits_are_each_devices_own(void **state)
{
	static const char *const settings[] = { "emu-link-timeout=60s", "emu-retry-timeout=60s",
						"peer-timeout=120s", "nic-inflight-messages=4",
						NULL };
	struct core_rig *rig = core_rig_open_devices(settings, 2);
	struct core_rank *r[2] = { &rig->rank[0], &rig->rank[1] };
	uint64_t until = epf_now_ns() + CORE_RIG_LONGEST_NS;
	unsigned cut;

	for (unsigned i = 0; i < 2; i++)
		core_rig_put(r[i], 2, 64, i);
	assert_true(core_rig_run(rig, NULL, NULL));
	cut = rig->core[0]
		      ->lanes[rig->core[0]->streams[rig->core[0]->rings[0]->streams[2]].lane]
		      .link;
	assert_int_not_equal(
		cut, rig->core[0]
			     ->lanes[rig->core[0]->streams[rig->core[0]->rings[1]->streams[2]].lane]
			     .link);
	set_link(rig, 0, cut, 0);
	for (unsigned i = 0; i < 8; i++)
		core_rig_put(r[0], 2, 64, 0);
	while (epf_now_ns() < until && rig->core[0]->load[cut].messages < 4)
		epf_core_step(rig->core[0]);
	assert_int_equal(rig->core[0]->load[cut].messages, 4);
	for (unsigned i = 0; i < 8; i++)
		core_rig_put(r[1], 2, 64, 1);
	while (epf_now_ns() < until && epf_signal_read(&rig->rank[2].signals[1]) < 9)
		for (uint32_t n = 0; n < CORE_NODES; n++)
			epf_core_step(rig->core[n]);
	assert_int_equal(epf_signal_read(&rig->rank[2].signals[1]), 9);
	assert_int_equal(epf_signal_read(&rig->rank[2].signals[0]), 1);
	assert_int_equal(stat(rig, 0, EPF_STAT_CORE_LANE_ERRORS), 0);
	core_rig_close(rig);
}

/* ---- all links lost ---- */

static bool peers_are_down(void *arg)
{
	const struct core_rig *rig = arg;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		for (uint32_t r = 0; r < CORE_WORLD; r++)
			if (r / CORE_PER_NODE != n &&
			    rig->core[n]->peers_page->peers[r].state != EPF_PEER_DOWN)
				return false;
	return true;
}

static void without_a_link_the_other_node_is_lost_and_the_own_is_not(void **state)
{
	struct core_rig *rig = core_rig_open_devices(quick, 2);
	const struct epf_peer_word *words[CORE_NODES] = { rig->core[0]->peers_page->peers,
							  rig->core[1]->peers_page->peers };
	struct wave w = { .rig = rig };

	push_wave(&w);
	wait_wave(&w);
	for (unsigned link = 0; link < 2; link++)
		set_link(rig, 0, link, 0);
	push_wave(&w);
	assert_true(core_rig_run(rig, peers_are_down, rig));
	/* The end whose ports are down knows why; the other one sees a peer that does not answer. */
	for (uint32_t r = 0; r < CORE_WORLD; r++)
		for (uint32_t n = 0; n < CORE_NODES; n++) {
			if (r / CORE_PER_NODE == n)
				assert_int_equal(words[n][r].state, EPF_PEER_UP);
			else
				assert_int_equal(words[n][r].cause,
						 n == 0 ? EPF_R_LINK_LOST : EPF_R_NODE_LOST);
		}
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(rig->core[n]->recovering, 0);
		assert_true(stat(rig, n, EPF_STAT_CORE_CMDS_FAILED) > 0);
	}
	core_rig_close(rig);
}

/* ---- a rank that rejoins publishes the keys of all devices ---- */

static bool is_drained(void *arg)
{
	struct core_rank *r = arg;

	return epf_core_rank_drained(r->core, r->local) == 1;
}

static void a_rank_that_comes_back_has_keys_of_every_device(void **state)
{
	struct core_rig *rig = core_rig_open_devices(quick, 2);
	struct core_rank *r = &rig->rank[3];
	struct wave w = { .rig = rig };
	const struct epf_region_remote *region;
	uint32_t number;

	push_wave(&w);
	wait_wave(&w);
	epf_core_rank_gone(r->core, r->local, EPF_R_RANK_DIED);
	assert_true(core_rig_run(rig, is_drained, r));
	core_rig_forget(r);
	core_rig_memory(r);
	assert_int_equal(
		epf_core_rank_back(r->core, r->local, r->signals, CORE_SIGNALS, &r->wakeup), 0);
	assert_int_equal(epf_core_add_region(r->core, r->local, r->memory, CORE_BYTES,
					     EPF_MR_REMOTE_WRITE, &number),
			 0);
	core_rig_ring(r);
	assert_int_equal(epf_core_rank_announce(r->core, r->local), 0);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(rig->core[0]->peers_page->peers[3].state, EPF_PEER_UP);
	region = &rig->core[0]->peers[3].regions[0];
	for (unsigned i = 0; i < EPF_NIC_LINKS; i++)
		assert_int_equal(region->rkeys[i],
				 r->core->ranks[r->local].regions[0].mr.keys[i].rkey);
	for (uint32_t from = 0; from < 3; from++)
		core_rig_put(&rig->rank[from], 3, 4096, from);
	assert_true(core_rig_run(rig, NULL, NULL));
	for (uint32_t from = 0; from < 3; from++)
		assert_int_equal(epf_signal_read(&r->signals[from]), 1);
	assert_int_equal(stat(rig, 0, EPF_STAT_CORE_LANE_ERRORS), 0);
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_address_is_a_list_of_parts),
		cmocka_unit_test(an_engine_that_serves_peers_is_not_idle),
		cmocka_unit_test(devices_that_do_not_fit_are_refused),
		cmocka_unit_test(lanes_are_dealt_to_devices_with_their_keys),
		cmocka_unit_test(too_many_lanes_are_refused),
		cmocka_unit_test(a_link_goes_down_and_comes_back),
		cmocka_unit_test(the_same_without_order),
		cmocka_unit_test(a_rank_goes_by_its_own_card),
		cmocka_unit_test(limits_are_each_devices_own),
		cmocka_unit_test(without_a_link_the_other_node_is_lost_and_the_own_is_not),
		cmocka_unit_test(a_rank_that_comes_back_has_keys_of_every_device),
	};

	return cmocka_run_group_tests_name("several devices as one NIC", tests, NULL, NULL);
}
