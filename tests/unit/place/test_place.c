/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement on recorded machines (tests/place/): who gets which NIC, CPU and node, and why; when ports are down, with selections,
 * and with other numbers of GPUs, NICs and local indices.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fabric/base/err.h"
#include "tests/unit/place/place_rig.h"

#define assert_own(rig, index, text)    assert_string_equal(place_rig_own(rig, index), text)
#define assert_spares(rig, index, text) assert_string_equal(place_rig_spares(rig, index), text)
#define why(rig, index)                 ((rig)->plan.choice[index].why)

/* One own rail per GPU, by name, all on the same switch as the GPU; CPU and node beside it. */
static void assert_one_each(const struct place_rig *rig, const char *const *names, const int *cpus)
{
	assert_int_equal(rig->map.gpus, 8);
	assert_int_equal(rig->plan.choices, 8);
	for (uint32_t i = 0; i < 8; i++) {
		const struct epf_place_choice *c = &rig->plan.choice[i];
		char own[64];

		snprintf(own, sizeof(own), "%s:1", names[i]);
		assert_own(rig, i, own);
		assert_int_equal(c->near, EPF_PLACE_SWITCH);
		assert_int_equal(c->gpu_index, i);
		assert_int_equal(c->node, i / 4);
		assert_int_equal(c->cpu, cpus[i]);
		assert_int_equal(c->rails, 8);
		assert_int_equal(rig->plan.rail[c->rail[0]].number, i);
	}
	assert_int_equal(rig->map.notes + rig->plan.notes, 0);
}

static void p5en_gives_two_of_sixteen_to_each(void **state)
{
	static const char *const own[] = {
		"rdmap85s0:1,rdmap86s0:1",   "rdmap87s0:1,rdmap88s0:1",
		"rdmap110s0:1,rdmap111s0:1", "rdmap112s0:1,rdmap113s0:1",
		"rdmap135s0:1,rdmap136s0:1", "rdmap137s0:1,rdmap138s0:1",
		"rdmap160s0:1,rdmap161s0:1", "rdmap162s0:1,rdmap163s0:1"
	};
	struct place_rig rig;

	place_rig_init(&rig, "p5en");
	place_rig_replan(&rig);
	assert_int_equal(rig.map.nics, 16);
	assert_int_equal(rig.map.gpus, 8); /* the switches of NVIDIA are none */
	assert_int_equal(rig.plan.choices, 8);
	for (uint32_t i = 0; i < 8; i++) {
		assert_own(&rig, i, own[i]);
		assert_int_equal(rig.plan.choice[i].near, EPF_PLACE_SWITCH);
		assert_int_equal(rig.plan.choice[i].node, i / 4);
		assert_int_equal(rig.plan.choice[i].cpu, i / 4 * 48 + i % 4 * 2 + 1);
	}
	assert_string_equal(why(&rig, 0),
			    "same PCIe switch as GPU 0, 0000:45:00.0; 4 rails so near "
			    "for 2 GPUs; CPU 1 of node 0");
	assert_spares(&rig, 0,
		      "rdmap87s0:1,rdmap88s0:1,rdmap110s0:1,rdmap111s0:1,rdmap112s0:1,"
		      "rdmap113s0:1,rdmap135s0:1,rdmap136s0:1,rdmap137s0:1,rdmap138s0:1,"
		      "rdmap160s0:1,rdmap161s0:1,rdmap162s0:1,rdmap163s0:1");
	assert_int_equal(
		strncmp(place_rig_spares(&rig, 7), "rdmap160s0:1,rdmap161s0:1,rdmap135s0:1,", 39),
		0);
	place_rig_destroy(&rig);
}

static void more_ranks_take_turns(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "p5en");
	rig.indices = 16;
	place_rig_replan(&rig);
	assert_own(&rig, 7, "rdmap162s0:1,rdmap163s0:1");
	assert_own(&rig, 8, "rdmap86s0:1,rdmap85s0:1");
	assert_own(&rig, 15, "rdmap163s0:1,rdmap162s0:1");
	assert_int_equal(rig.plan.choice[15].gpu_index, 7);
	rig.indices = 3; /* fewer change nothing for those there are */
	place_rig_replan(&rig);
	assert_int_equal(rig.plan.choices, 3);
	assert_own(&rig, 1, "rdmap87s0:1,rdmap88s0:1");
	place_rig_destroy(&rig);
}

static void a_port_that_is_down_moves_nobody_else(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "p5en");
	place_rig_put(&rig, "class/infiniband/rdmap88s0/ports/1/state", "1: DOWN\n");
	place_rig_replan(&rig);
	assert_own(&rig, 0, "rdmap85s0:1,rdmap86s0:1");
	assert_own(&rig, 1, "rdmap87s0:1");
	assert_own(&rig, 7, "rdmap162s0:1,rdmap163s0:1");
	assert_null(strstr(place_rig_spares(&rig, 0), "rdmap88s0"));
	assert_non_null(strstr(why(&rig, 1), "; its rail rdmap88s0:1 is down;"));
	assert_int_equal(place_rig_rail(&rig, "rdmap110s0")->number, 4);
	place_rig_put(&rig, "class/infiniband/rdmap87s0/ports/1/state", "2: INIT\n");
	place_rig_replan(&rig);
	assert_own(&rig, 0, "rdmap85s0:1,rdmap86s0:1");
	assert_own(&rig, 1, "rdmap85s0:1"); /* a neighbour's on the same switch */
	assert_string_equal(why(&rig, 1),
			    "same PCIe switch as GPU 1, 0000:45:00.0; used by 2 GPUs; "
			    "its rail rdmap87s0:1 is down; CPU 1 of node 0");
	place_rig_destroy(&rig);
}

static void hgx_gives_one_each_and_leaves_management_out(void **state)
{
	static const char *const own[] = { "mlx5_0", "mlx5_3", "mlx5_4",  "mlx5_5",
					   "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11" };
	static const int cpus[] = { 1, 2, 3, 4, 57, 58, 59, 60 };
	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	place_rig_replan(&rig);
	assert_one_each(&rig, own, cpus);
	assert_int_equal(rig.map.nics, 10);
	assert_int_equal(place_rig_rail(&rig, "mlx5_1")->use, EPF_PLACE_OTHER_LINK);
	assert_int_equal(place_rig_rail(&rig, "mlx5_2")->use, EPF_PLACE_OTHER_LINK);
	assert_int_equal(place_rig_rail(&rig, "mlx5_1")->number, EPF_PLACE_NONE);
	assert_string_equal(why(&rig, 5),
			    "same PCIe switch as GPU 5, 0000:b8:00.0; CPU 58 of node 1");
	/* Of the same link layer it is still too slow. */
	place_rig_put(&rig, "class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand\n");
	place_rig_replan(&rig);
	assert_one_each(&rig, own, cpus);
	assert_int_equal(place_rig_rail(&rig, "mlx5_1")->use, EPF_PLACE_SLOW);
	place_rig_destroy(&rig);
}

static void hgx_falls_back_step_by_step(void **state)
{
	static const char *const main_nics[] = { "mlx5_0", "mlx5_3", "mlx5_4",  "mlx5_5",
						 "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11" };
	struct place_rig rig;
	char path[128];

	place_rig_init(&rig, "hgx");
	place_rig_put(&rig, "class/infiniband/mlx5_9/ports/1/state", "1: DOWN\n");
	place_rig_replan(&rig);
	assert_own(&rig, 5, "mlx5_6:1"); /* same node, least used, first */
	assert_int_equal(rig.plan.choice[5].near, EPF_PLACE_NODE);
	assert_int_equal(place_rig_rail(&rig, "mlx5_6")->users, 2);
	assert_own(&rig, 6, "mlx5_10:1");
	place_rig_put(&rig, "class/infiniband/mlx5_10/ports/1/state", "1: DOWN\n");
	place_rig_replan(&rig);
	assert_own(&rig, 5, "mlx5_6:1");
	assert_own(&rig, 6, "mlx5_11:1"); /* that one has a second user already */
	/* Every InfiniBand port down: the Ethernet one that is up, with a word about it. */
	for (int i = 0; i < 8; i++) {
		snprintf(path, sizeof(path), "class/infiniband/%s/ports/1/state", main_nics[i]);
		place_rig_put(&rig, path, "1: DOWN\n");
	}
	place_rig_replan(&rig);
	for (uint32_t i = 0; i < 8; i++) {
		assert_own(&rig, i, "mlx5_1:1");
		assert_non_null(strstr(why(&rig, i),
				       "; it is of another link layer, and nothing else is up;"));
	}
	/* Nothing up at all: each its own again. */
	place_rig_put(&rig, "class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
	place_rig_replan(&rig);
	for (uint32_t i = 0; i < 8; i++) {
		snprintf(path, sizeof(path), "%s:1", main_nics[i]);
		assert_own(&rig, i, path);
		assert_non_null(strstr(why(&rig, i), "; it is down, and nothing else is left;"));
	}
	place_rig_destroy(&rig);
}

static void mi300x_gives_one_each(void **state)
{
	static const char *const own[] = { "bnxt_re0", "bnxt_re1", "bnxt_re2", "bnxt_re3",
					   "bnxt_re4", "bnxt_re5", "bnxt_re6", "bnxt_re7" };
	static const int cpus[] = { 1, 2, 3, 4, 97, 98, 99, 100 };
	struct place_rig rig;

	place_rig_init(&rig, "mi300x");
	place_rig_replan(&rig);
	assert_one_each(&rig, own, cpus);
	assert_int_equal(rig.map.gpu[0].vendor, 0x1002);
	assert_string_equal(why(&rig, 1),
			    "same PCIe switch as GPU 1, 0000:19:00.0; CPU 2 of node 0");
	place_rig_destroy(&rig);
}

static void a_single_nic_serves_all(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "single");
	place_rig_replan(&rig);
	assert_int_equal(rig.map.gpus, 1); /* its sound function is none */
	assert_own(&rig, 0, "mlx5_0:1");
	/* CPU 0 is left alone, 1 is its second thread; memory goes with the NIC. */
	assert_string_equal(why(&rig, 0),
			    "on NUMA node 0, GPU 0 on 1: none is nearer; CPU 2 of node 0");
	assert_int_equal(rig.plan.choice[0].near, EPF_PLACE_FAR);
	rig.indices = 3;
	place_rig_replan(&rig);
	assert_own(&rig, 2, "mlx5_0:1");
	place_rig_put(&rig, "devices/system/node/has_memory", "1\n");
	place_rig_replan(&rig);
	assert_non_null(strstr(why(&rig, 0), "CPU 2 of node 0, which has no memory"));
	place_rig_destroy(&rig);
}

static void the_cpu_setting_is_kept_to(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "single");
	place_rig_set(&rig, "cpu", "3,9-11");
	place_rig_replan(&rig);
	assert_int_equal(rig.plan.choice[0].cpu,
			 3); /* a second thread, since no other is allowed near */
	place_rig_set(&rig, "cpu", "10-11");
	place_rig_replan(&rig);
	assert_non_null(strstr(why(&rig, 0), "; CPU 10 is allowed, but not near"));
	place_rig_set(&rig, "cpu", "99");
	place_rig_replan(&rig);
	assert_int_equal(rig.plan.choice[0].cpu, -1);
	assert_non_null(strstr(why(&rig, 0), "; no CPU to recommend"));
	place_rig_destroy(&rig);
}

static void no_nic_is_said(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "no_nic");
	place_rig_replan(&rig);
	assert_int_equal(rig.map.nics, 0);
	assert_int_equal(rig.plan.choices, 2);
	assert_int_equal(rig.plan.choice[1].own, 0);
	assert_string_equal(why(&rig, 1), "no RDMA device; CPU 2 of node 0");
	place_rig_set(&rig, "nic-device",
		      "mlx5_0"); /* nothing to choose from is no error of the choice */
	place_rig_replan(&rig);
	place_rig_assert_note(&rig, "nic-device: no device fits 'mlx5_0'");
	place_rig_destroy(&rig);
}

static void host_ranks_share_in_order(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, NULL);
	place_rig_add(&rig, "devices/system/cpu/online = 0-1\n"
			    "rdma rxe10 - link=Ethernet rate=\"2.5 Gb/sec (1X SDR)\"\n"
			    "rdma rxe9 - link=Ethernet rate=\"2.5 Gb/sec (1X SDR)\"\n"
			    "devices/virtual/infiniband/rxe9/parent = veth0\n"
			    "devices/virtual/infiniband/rxe10/parent = veth1\n");
	place_rig_replan(&rig);
	assert_int_equal(rig.plan.choices, 2); /* one for each rail */
	assert_int_equal(place_rig_rail(&rig, "rxe9")->port->rate_mbps, 2500);
	rig.indices = 4;
	place_rig_replan(&rig);
	assert_own(&rig, 0, "rxe9:1");
	assert_own(&rig, 1, "rxe9:1");
	assert_own(&rig, 2, "rxe10:1");
	assert_own(&rig, 3, "rxe10:1");
	assert_spares(&rig, 3, "rxe9:1");
	assert_string_equal(why(&rig, 0),
			    "no GPU: rails alternate; 2 rails so near for 4 local indices; "
			    "used by 2 local indices; CPU 1, NUMA node not known");
	rig.indices = 1;
	place_rig_replan(&rig);
	assert_own(&rig, 0, "rxe9:1,rxe10:1");
	place_rig_destroy(&rig);
}

static void a_software_device_is_where_its_interface_is(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "no_nic");
	place_rig_add(&rig, "rdma rxe0 - link=Ethernet\n"
			    "devices/virtual/infiniband/rxe0/parent = eth0\n"
			    "class/net/eth0/device -> ../../../devices/pci0000:00/0000:00:1f.6\n");
	place_rig_replan(&rig);
	assert_string_equal(epf_place_pci(&rig.map.nic[0].spot), "0000:00:1f.6");
	assert_int_equal(rig.plan.choice[0].near, EPF_PLACE_ROOT);
	assert_non_null(strstr(why(&rig, 0), "same root complex as GPU 0, pci0000:00"));
	place_rig_destroy(&rig);
}

/* A virtual machine: everything on one bus, nothing known of NUMA; names run against the addresses. */
static void a_flat_bus_is_dealt_in_order(void **state)
{
	char lines[8192], own[32], *at = lines;
	struct place_rig rig;

	place_rig_init(&rig, NULL);
	for (int i = 0; i < 8; i++)
		at += sprintf(
			at,
			"pci pci0000:00/00:%02x.0 class=0x030200 vendor=0x10de device=0x2330\n"
			"pci pci0000:00/00:%02x.0 class=0x020700 vendor=0x15b3 device=0x101e\n"
			"rdma mlx5_%d 0000:00:%02x.0\n",
			i + 4, i + 16, 7 - i, i + 16);
	place_rig_add(&rig, lines);
	place_rig_replan(&rig);
	for (uint32_t i = 0; i < 8; i++) {
		snprintf(own, sizeof(own), "mlx5_%u:1", 7 - i);
		assert_own(&rig, i, own);
		assert_int_equal(rig.plan.choice[i].near, EPF_PLACE_ROOT);
	}
	place_rig_destroy(&rig);
}

/* Without a word on NUMA nothing is said to be on one node. */
static void an_unknown_place_is_said(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, NULL);
	place_rig_add(&rig,
		      "pci pci0000:10/10:00.0/11:00.0 class=0x030200 vendor=0x10de device=0x1\n"
		      "pci pci0000:20/20:00.0/21:00.0 class=0x020700 vendor=0x15b3 device=0x2\n"
		      "rdma a 0000:21:00.0\n");
	place_rig_replan(&rig);
	assert_int_equal(rig.plan.choice[0].near, EPF_PLACE_UNKNOWN);
	assert_int_equal(strncmp(why(&rig, 0), "distance to GPU 0 not known: rails alternate;", 43),
			 0);
	place_rig_destroy(&rig);
}

/* Switches below a switch: fewer links are nearer. A port without a switch, which devices share, is as good as one. */
static void the_inner_switch_is_nearer(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, NULL);
	place_rig_add(
		&rig,
		"pci pci0000:10/10:00.0/11:00.0/12:00.0/13:00.0/14:00.0/15:00.0 class=0x020700 vendor=0x15b3 device=0x2\n"
		"pci pci0000:10/10:00.0/11:00.0/12:00.0/13:00.0/14:01.0/16:00.0 class=0x030200 vendor=0x10de device=0x1\n"
		"pci pci0000:10/10:00.0/11:00.0/12:01.0/17:00.0/18:00.0/19:00.0 class=0x020700 vendor=0x15b3 device=0x2\n"
		"pci pci0000:10/10:00.0/11:00.0/12:01.0/17:00.0/18:01.0/1a:00.0 class=0x030200 vendor=0x10de device=0x1\n"
		"pci pci0000:10/10:00.0/11:00.0/12:01.0/17:00.0/18:02.0/1b:00.0 class=0x030200 vendor=0x10de device=0x1\n"
		"pci pci0000:20/20:00.0/21:00.0 class=0x030200 vendor=0x10de device=0x1\n"
		"pci pci0000:20/20:00.0/21:00.1 class=0x020700 vendor=0x15b3 device=0x2\n"
		"rdma b 0000:15:00.0\nrdma a 0000:19:00.0\nrdma c 0000:21:00.1\n");
	place_rig_replan(&rig);
	assert_own(&rig, 0, "b:1");
	assert_own(&rig, 1, "a:1");
	assert_own(&rig, 2, "a:1");
	assert_non_null(strstr(why(&rig, 1), "same PCIe switch as GPU 1, 0000:17:00.0;"));
	assert_spares(&rig, 1, "b:1,c:1");
	assert_own(&rig, 3, "c:1");
	assert_int_equal(rig.plan.choice[3].near, EPF_PLACE_SWITCH);
	place_rig_destroy(&rig);
}

/* Two switches: 2 GPUs and 1 NIC behind the first, 1 GPU and 2 NICs behind the second; and a GPU behind none. */
static void uneven_machines_leave_no_rail_idle(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, NULL);
	place_rig_add(
		&rig,
		"pci pci0000:10/10:00.0/11:00.0/12:00.0/13:00.0 class=0x030200 vendor=0x10de device=0x1 node=0\n"
		"pci pci0000:10/10:00.0/11:00.0/12:01.0/14:00.0 class=0x030200 vendor=0x10de device=0x1 node=0\n"
		"pci pci0000:10/10:00.0/11:00.0/12:02.0/15:00.0 class=0x020700 vendor=0x15b3 device=0x2 node=0\n"
		"pci pci0000:20/20:00.0/21:00.0/22:00.0/23:00.0 class=0x030200 vendor=0x10de device=0x1 node=0\n"
		"pci pci0000:20/20:00.0/21:00.0/22:01.0/24:00.0 class=0x020700 vendor=0x15b3 device=0x2 node=0\n"
		"pci pci0000:20/20:00.0/21:00.0/22:02.0/25:00.0 class=0x020700 vendor=0x15b3 device=0x2 node=0\n"
		"pci pci0000:30/30:00.0/31:00.0 class=0x030200 vendor=0x10de device=0x1 node=0\n"
		"rdma a 0000:15:00.0\nrdma b 0000:24:00.0\nrdma c 0000:25:00.0\n");
	place_rig_replan(&rig);
	assert_own(&rig, 0, "a:1"); /* two GPUs, one NIC */
	assert_own(&rig, 1, "a:1");
	assert_own(&rig, 2, "b:1"); /* its share is 1 of 3 rails for 4 GPUs */
	assert_own(&rig, 3, "c:1"); /* none behind a separate switch: what is left */
	assert_int_equal(rig.plan.choice[3].near, EPF_PLACE_NODE);
	assert_non_null(strstr(why(&rig, 0), "; used by 2 GPUs;"));
	place_rig_destroy(&rig);
}

static void gpus_may_be_named(void **state)
{
	static const char *const gpus[] = { "0000:a5:00.0", "0000:5A:00.0" };
	static const char *const wrong[] = { "0000:a5:00.0", "0000:00:00.0" };
	struct place_rig rig;

	place_rig_init(&rig, "p5en");
	rig.indices = 2;
	rig.gpu_pci = gpus;
	place_rig_replan(&rig);
	assert_own(&rig, 0, "rdmap162s0:1,rdmap163s0:1");
	assert_own(&rig, 1, "rdmap87s0:1,rdmap88s0:1");
	rig.gpu_pci = wrong;
	assert_int_equal(place_rig_plan(&rig), -ENODEV);
	assert_int_equal(epf_last_reason(), EPF_R_PLACE_GPU);
	assert_non_null(strstr(epf_last_error(), "local index 1: '0000:00:00.0'"));
	place_rig_destroy(&rig);
}

/* Which devices of the HGX box a selection lets through, as one text. */
static void assert_selects(struct place_rig *rig, const char *select, const char *names)
{
	char text[512] = "", *at = text;

	place_rig_set(rig, "nic-device", select);
	place_rig_replan(rig);
	for (uint32_t r = 0; r < rig->plan.rails; r++)
		if (rig->plan.rail[r].use != EPF_PLACE_NOT_CHOSEN)
			at += sprintf(at, "%s ", rig->plan.rail[r].nic->name);
	assert_string_equal(text, names);
}

static void selections_are_as_nccl_has_them(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	assert_selects(&rig, "mlx5_1", "mlx5_1 mlx5_10 mlx5_11 ");
	place_rig_assert_note(&rig, "mlx5_1 also means mlx5_11; '=' in front");
	assert_int_equal(place_rig_rail(&rig, "mlx5_1")->use, EPF_PLACE_USABLE);
	assert_selects(&rig, "=mlx5_1", "mlx5_1 ");
	assert_int_equal(rig.plan.notes, 0);
	assert_selects(&rig, "=mlx5_0:1,mlx5_3:2,mlx5_4", "mlx5_0 mlx5_4 ");
	place_rig_assert_note(&rig, "no device fits 'mlx5_3'");
	assert_selects(&rig, " =mlx5_0 , mlx5_4:1 ", "mlx5_0 mlx5_4 ");
	assert_selects(&rig, "^mlx5_1", "mlx5_0 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 ");
	assert_selects(&rig, "^=mlx5_1,mlx5_0",
		       "mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_10 mlx5_11 ");
	assert_int_equal(place_rig_rail(&rig, "mlx5_2")->use, EPF_PLACE_OTHER_LINK);
	assert_own(&rig, 0, "mlx5_3:1");
	place_rig_set(&rig, "nic-device", "bnxt,mlx5_0:2");
	assert_int_equal(place_rig_plan(&rig), -ENODEV);
	assert_int_equal(epf_last_reason(), EPF_R_PLACE_NO_MATCH);
	place_rig_destroy(&rig);
}

static void malformed_selections_are_refused(void **state)
{
	static const char *const bad[] = { ":1", "mlx5_0:",   "mlx5_0:x", "mlx5_0:0",          "^",
					   "=",  "mlx5_0:-1", "a:1:2",    "mlx5_0,^mlx5_1:256" };
	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		place_rig_set(&rig, "nic-device", bad[i]);
		if (place_rig_plan(&rig) != -EINVAL || epf_last_reason() != EPF_R_PLACE_SELECT)
			fail_msg("'%s' was taken: %s", bad[i], epf_last_error());
	}
	place_rig_destroy(&rig);
}

static void a_recording_gives_the_same_plan(void **state)
{
	static const char *const trees[] = { "p5en", "single" };

	for (size_t t = 0; t < sizeof(trees) / sizeof(trees[0]); t++) {
		struct place_rig first, copy;

		place_rig_init(&first, trees[t]);
		place_rig_init(&copy, NULL);
		place_rig_copy(&first, &copy);
		place_rig_replan(&first);
		place_rig_replan(&copy);
		assert_int_equal(copy.plan.choices, first.plan.choices);
		assert_int_equal(copy.map.notes, 0);
		for (uint32_t i = 0; i < first.plan.choices; i++) {
			assert_string_equal(why(&copy, i), why(&first, i));
			assert_own(&copy, i, place_rig_own(&first, i));
			assert_spares(&copy, i, place_rig_spares(&first, i));
		}
		place_rig_destroy(&first);
		place_rig_destroy(&copy);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(p5en_gives_two_of_sixteen_to_each),
		cmocka_unit_test(more_ranks_take_turns),
		cmocka_unit_test(a_port_that_is_down_moves_nobody_else),
		cmocka_unit_test(hgx_gives_one_each_and_leaves_management_out),
		cmocka_unit_test(hgx_falls_back_step_by_step),
		cmocka_unit_test(mi300x_gives_one_each),
		cmocka_unit_test(a_single_nic_serves_all),
		cmocka_unit_test(the_cpu_setting_is_kept_to),
		cmocka_unit_test(no_nic_is_said),
		cmocka_unit_test(host_ranks_share_in_order),
		cmocka_unit_test(a_software_device_is_where_its_interface_is),
		cmocka_unit_test(a_flat_bus_is_dealt_in_order),
		cmocka_unit_test(an_unknown_place_is_said),
		cmocka_unit_test(the_inner_switch_is_nearer),
		cmocka_unit_test(uneven_machines_leave_no_rail_idle),
		cmocka_unit_test(gpus_may_be_named),
		cmocka_unit_test(selections_are_as_nccl_has_them),
		cmocka_unit_test(malformed_selections_are_refused),
		cmocka_unit_test(a_recording_gives_the_same_plan),
	};

	return place_rig_args(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
