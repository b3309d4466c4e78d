/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where engine cores run and have their memory: on recorded machines whose CPUs are set to those that this process may use, and
 * the preferred memory node over a scripted kernel.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fabric/base/err.h"
#include "fabric/place/bind.h"
#include "fabric/place/numa.h"
#include "tests/unit/place/place_rig.h"

/* The lowest CPU that this process may use: every machine of a test has it somewhere. */
static uint32_t mine;

static int find_mine(void **state)
{
	cpu_set_t set;

	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	for (mine = 0; !CPU_ISSET(mine, &set); mine++)
		;
	return 0;
}

/* A machine of two NICs, each next to other CPUs: the first next to `near`, on node 0, the second next to none of ours, on node 1. */
static void two_nics(struct place_rig *rig, const char *near)
{
	char lines[1024];

	place_rig_init(rig, NULL);
	snprintf(
		lines, sizeof(lines),
		"devices/system/node/has_memory = 0-1\n"
		"devices/system/node/node0/cpulist = %s\n"
		"devices/system/node/node1/cpulist = 4000-4003\n"
		"devices/system/cpu/online = %s,4000-4003\n"
		"pci pci0000:15/15:01.0/16:00.0 class=0x020700 vendor=0x15b3 device=0x1021 node=0 cpus=%s\n"
		"rdma mlx5_0 0000:16:00.0\n"
		"pci pci0000:97/97:01.0/98:00.0 class=0x020700 vendor=0x15b3 device=0x1021 node=1 cpus=4000-4003\n"
		"rdma mlx5_1 0000:98:00.0\n",
		near, near, near);
	place_rig_add(rig, lines);
	place_rig_set(rig, "nic", "verbs");
}

static void bind_as(struct place_rig *rig, int64_t local, uint32_t core, uint32_t cores,
		    struct epf_place_bind *out)
{
	assert_int_equal(epf_place_bind(&rig->conf, rig->dir, local, core, cores, out), 0);
}

static void a_core_runs_near_its_device(void **state)
{
	struct epf_place_bind bind;
	struct place_rig rig;
	char near[32], words[64];

	snprintf(near, sizeof(near), "%u", mine);
	snprintf(words, sizeof(words), "1 CPUs from %u on, near mlx5_0:1, memory of NUMA node 0",
		 mine);
	two_nics(&rig, near);
	bind_as(&rig, 0, 0, 1, &bind);
	assert_int_equal(bind.count, 1);
	assert_int_equal(bind.cpu[0], mine);
	assert_int_equal(bind.node, 0);
	assert_string_equal(bind.why, words);
	epf_place_bind_destroy(&bind);
	bind_as(&rig, 1, 0, 1, &bind); /* its device is where this process may not run */
	assert_int_equal(bind.count, 0);
	assert_int_equal(bind.node, -1);
	assert_non_null(strstr(bind.why, "none of the CPUs near mlx5_1"));
	epf_place_bind_destroy(&bind);
	bind_as(&rig, -1, 0, 2, &bind); /* the cores of a daemon alternate between the rails */
	assert_int_equal(bind.node, 0);
	epf_place_bind_destroy(&bind);
	bind_as(&rig, -1, 1, 2, &bind);
	assert_non_null(strstr(bind.why, "mlx5_1"));
	epf_place_bind_destroy(&bind);
	place_rig_destroy(&rig);
}

/* A core that spins occupies a whole CPU: it gets one exclusively, or any near one where others would be bound to the same. */
static void a_core_that_spins_gets_a_cpu_of_its_own(void **state)
{
	struct epf_place_bind bind;
	struct place_rig rig;
	cpu_set_t set;
	char near[32];
	uint32_t last = mine, n = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	for (uint32_t cpu = mine; cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set); cpu++, n++)
		last = cpu;
	if (n < 2)
		skip();
	snprintf(near, sizeof(near), "%u-%u", mine, last);
	two_nics(&rig, near);
	bind_as(&rig, -1, 0, 2, &bind);
	assert_int_equal(bind.count, n);
	epf_place_bind_destroy(&bind);
	place_rig_set(&rig, "core-idle", "spin");
	bind_as(&rig, -1, 0, 2, &bind);
	assert_int_equal(bind.count, 1);
	epf_place_bind_destroy(&bind);
	bind_as(&rig, -1, 0, 3, &bind); /* three cores for two rails */
	assert_int_equal(bind.count, n);
	epf_place_bind_destroy(&bind);
	bind_as(&rig, 0, 0, 1,
		&bind); /* ranks of a machine without GPUs: how many there are is not known */
	assert_int_equal(bind.count, n);
	epf_place_bind_destroy(&bind);
	place_rig_destroy(&rig);
}

/* Soft-RoCE and the like: not on PCI. */
static void a_device_that_is_nowhere_binds_nothing(void **state)
{
	struct epf_place_bind bind;
	struct place_rig rig;
	char near[32];

	snprintf(near, sizeof(near), "%u", mine);
	two_nics(&rig, near);
	place_rig_link(&rig, "class/infiniband/mlx5_0/device", NULL);
	place_rig_link(&rig, "class/infiniband/mlx5_1/device", NULL);
	bind_as(&rig, 0, 0, 1, &bind);
	assert_int_equal(bind.count, 0);
	assert_int_equal(bind.node, -1);
	epf_place_bind_destroy(&bind);
	place_rig_destroy(&rig);
}

static void settings_overrule_the_plan(void **state)
{
	struct epf_place_bind bind;
	struct place_rig rig;
	char near[32];

	snprintf(near, sizeof(near), "%u", mine);
	two_nics(&rig, near);
	place_rig_set(&rig, "core-bind", "any");
	bind_as(&rig, 0, 0, 1, &bind);
	assert_int_equal(bind.count, 0);
	assert_int_equal(bind.node, -1);
	assert_string_equal(bind.why, "");
	epf_place_bind_destroy(&bind);
	place_rig_set(&rig, "core-bind", "near");
	place_rig_set(&rig, "nic", "emu"); /* no device, no place */
	bind_as(&rig, 0, 0, 1, &bind);
	assert_int_equal(bind.count, 0);
	epf_place_bind_destroy(&bind);
	place_rig_set(&rig, "cpu", "7,9,11");
	bind_as(&rig, 0, 0, 1, &bind);
	assert_int_equal(bind.count, 3);
	assert_int_equal(bind.cpu[2], 11);
	epf_place_bind_destroy(&bind);
	bind_as(&rig, -1, 1, 3, &bind); /* enough for one each */
	assert_int_equal(bind.count, 1);
	assert_int_equal(bind.cpu[0], 9);
	epf_place_bind_destroy(&bind);
	bind_as(&rig, -1, 1, 4, &bind);
	assert_int_equal(bind.count, 3);
	epf_place_bind_destroy(&bind);
	place_rig_destroy(&rig);
}

static void what_is_not_known_leaves_the_core_free(void **state)
{
	struct epf_place_bind bind;
	struct place_rig rig;

	place_rig_init(&rig, "no_nic");
	place_rig_set(&rig, "nic", "verbs");
	bind_as(&rig, 0, 0, 1, &bind);
	assert_int_equal(bind.count, 0);
	epf_place_bind_destroy(&bind);
	assert_int_equal(epf_place_bind(&rig.conf, "/nowhere/at/all", 0, 0, 1, &bind), 0);
	assert_int_equal(bind.count, 0);
	epf_place_bind_destroy(&bind);
	place_rig_set(&rig, "nic-device", "other"); /* only its library knows it */
	bind_as(&rig, 0, 0, 1, &bind);
	assert_int_equal(bind.count, 0);
	epf_place_bind_destroy(&bind);
	place_rig_set(&rig, "nic-device", "x:0");
	assert_int_equal(epf_place_bind(&rig.conf, rig.dir, 0, 0, 1, &bind), -EINVAL);
	epf_place_bind_destroy(NULL);
	place_rig_destroy(&rig);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct {
	int mode, sets, refuse;
	unsigned long mask;
} kernel;

static long fake_get(int *mode, unsigned long *mask, unsigned long max_node, void *addr,
		     unsigned long flags)
{
	*mode = kernel.mode;
	mask[0] = kernel.mask;
	return 0;
}

static long fake_set(int mode, const unsigned long *mask, unsigned long max_node)
{
	if (kernel.refuse) {
		errno = kernel.refuse;
		return -1;
	}
	kernel.sets++;
	kernel.mode = mode;
	kernel.mask = mask[0];
	return 0;
}

static const struct epf_numa_lib fake_numa = { fake_get, fake_set };

static void memory_is_preferred_and_put_back(void **state)
{
	struct epf_numa before;

	kernel.mode = 3;
	kernel.mask = 0x30;
	assert_int_equal(epf_numa_begin(&fake_numa, 1, &before), 0);
	assert_int_equal(kernel.mode, 1);
	assert_int_equal(kernel.mask, 2);
	epf_numa_end(&fake_numa, &before);
	assert_int_equal(kernel.mode, 3);
	assert_int_equal(kernel.mask, 0x30);
	kernel.sets = 0;
	assert_int_equal(epf_numa_begin(&fake_numa, -1, &before), 0);
	epf_numa_end(&fake_numa, &before);
	assert_int_equal(epf_numa_begin(NULL, 1, &before), 0);
	epf_numa_end(NULL, &before);
	assert_int_equal(epf_numa_begin(&fake_numa, EPF_NUMA_NODES, &before), -EINVAL);
	kernel.refuse = EPERM; /* a sandbox */
	assert_int_equal(epf_numa_begin(&fake_numa, 1, &before), -EPERM);
	kernel.refuse = 0;
	epf_numa_end(&fake_numa, &before);
	assert_int_equal(kernel.sets, 0);
}

/* The machine's own, if it has libnuma: node 0 is everywhere. A sandbox may forbid it. */
static void the_machine_s_libnuma_is_found(void **state)
{
	const struct epf_numa_lib *lib = epf_numa_lib();
	struct epf_numa before;
	unsigned long mask[EPF_NUMA_NODES / 64] = { 0 };
	int mode = -1;

	if (!lib)
		skip();
	if (epf_numa_begin(lib, 0, &before))
		skip();
	assert_int_equal(lib->get(&mode, mask, EPF_NUMA_NODES, NULL, 0), 0);
	assert_int_equal(mode, 1);
	assert_int_equal(mask[0], 1);
	epf_numa_end(lib, &before);
	assert_int_equal(lib->get(&mode, mask, EPF_NUMA_NODES, NULL, 0), 0);
	assert_int_equal(mode, before.mode);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_core_runs_near_its_device),
		cmocka_unit_test(a_core_that_spins_gets_a_cpu_of_its_own),
		cmocka_unit_test(a_device_that_is_nowhere_binds_nothing),
		cmocka_unit_test(settings_overrule_the_plan),
		cmocka_unit_test(what_is_not_known_leaves_the_core_free),
		cmocka_unit_test(memory_is_preferred_and_put_back),
		cmocka_unit_test(the_machine_s_libnuma_is_found),
	};

	if (!place_rig_args(argc, argv))
		return 77;
	return cmocka_run_group_tests(tests, find_mine, NULL);
}
