/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement on broken trees: every fault leaves a note that says what it costs, costs no more than that, and never crashes. At the end
 * each file and link of a machine is spoiled, one at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fabric/base/err.h"
#include "tests/unit/place/place_rig.h"

#define NIC  "class/infiniband/mlx5_3"
#define PORT NIC "/ports/1"
#define DEV  NIC "/device"
#define GPU  "bus/pci/devices/0000:3b:00.0"

/* Plans, finds the note, and sees that the neighbours of GPU 1 are not touched. */
static void assert_costs_only(struct place_rig *rig, const char *note)
{
	place_rig_replan(rig);
	place_rig_assert_note(rig, note);
	assert_string_equal(place_rig_own(rig, 0), "mlx5_0:1");
	assert_string_equal(place_rig_own(rig, rig->map.gpus - 1), "mlx5_11:1");
}

/* Puts the thing at path aside, or back in place of what is there now. */
static void put_aside(const struct place_rig *rig, const char *path, bool back)
{
	char full[256], aside[256];

	snprintf(full, sizeof(full), "%s/%s", rig->dir, path);
	snprintf(aside, sizeof(aside), "%s/aside", rig->dir);
	if (back) {
		remove(full);
		assert_int_equal(rename(aside, full), 0);
	} else {
		assert_int_equal(rename(full, aside), 0);
	}
}

static void files_with_nonsense(void **state)
{
	static const struct {
		const char *path, *text, *note;
	} faults[] = {
		{ PORT "/state", "ACTIVE\n",
		  "mlx5_3:1: state is 'ACTIVE', which makes no sense: taken as down" },
		{ PORT "/state", "", "mlx5_3:1: state is ''" },
		{ PORT "/state", "99999999999999999999: ACTIVE\n", "taken as down" },
		{ PORT "/rate", "fast\n",
		  "mlx5_3:1: rate is 'fast', which makes no sense: its rate is not known" },
		{ PORT "/rate", "400\n", "rate is '400'" },
		{ PORT "/rate", "-400 Gb/sec\n", "rate is '-400 Gb/sec'" },
		{ DEV "/numa_node", "two\n",
		  "mlx5_3: numa_node is 'two', which makes no sense: its NUMA node is not known" },
		{ DEV "/numa_node", "99999999999999999999999\n",
		  "numa_node is '99999999999999999999999'" },
		{ DEV "/numa_node", "-2\n", "numa_node is '-2'" },
		{ DEV "/numa_node", "7\n",
		  "mlx5_3: numa_node is 7, and the machine has no such node" },
		{ DEV "/local_cpulist", "0-\n",
		  "local_cpulist is '0-', which makes no sense: the CPUs near it are not known" },
		{ DEV "/local_cpulist", "9-3\n", "local_cpulist is '9-3'" },
		{ DEV "/local_cpulist", "0-4294967295\n", "local_cpulist is '0-4294967295'" },
		{ DEV "/local_cpulist", "1,,2\n", "local_cpulist is '1,,2'" },
		{ DEV "/local_cpulist", "1,\n", "local_cpulist is '1,'" },
		{ GPU "/class", "0xGPU\n",
		  "0000:3b:00.0: class is '0xGPU', which makes no sense: not taken for a GPU" },
		{ GPU "/vendor", "\x01\x02 evil\n", "0000:3b:00.0: vendor is '?? evil'" },
		{ GPU "/numa_node", "\n", "0000:3b:00.0: numa_node is ''" },
		{ "devices/system/cpu/online", "all\n", "devices/system/cpu: online is 'all'" },
		{ "devices/system/node/node1/cpulist", "x\n", "node1: cpulist is 'x'" },
		{ "devices/system/node/has_memory", "both\n",
		  "devices/system/node: has_memory is 'both'" },
	};

	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		put_aside(&rig, faults[i].path, false);
		place_rig_put(&rig, faults[i].path, faults[i].text);
		assert_costs_only(&rig, faults[i].note);
		put_aside(&rig, faults[i].path, true);
	}
	place_rig_replan(&rig);
	assert_int_equal(rig.map.notes, 0);
	place_rig_destroy(&rig);
}

static void a_spoilt_place_costs_only_nearness(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	place_rig_put(&rig, DEV "/numa_node", "two\n");
	place_rig_replan(&rig);
	assert_string_equal(place_rig_own(&rig, 1), "mlx5_3:1"); /* the switch is still known */
	assert_int_equal(rig.plan.choice[1].node, -1);
	assert_true(rig.plan.choice[1].cpu >= 0);
	place_rig_link(&rig, DEV, NULL);
	place_rig_replan(&rig);
	place_rig_assert_note(&rig, "mlx5_3: it has no device link: its place is not known");
	assert_string_equal(place_rig_own(&rig, 0), "mlx5_0:1");
	place_rig_destroy(&rig);
}

static void links_and_kinds_that_are_wrong(void **state)
{
	static const struct {
		const char *path, *target, *note;
	} faults[] = {
		{ NIC, "mlx5_3",
		  "mlx5_3: class/infiniband/mlx5_3/device cannot be followed (Too many levels of symbolic links)" },
		{ NIC, "nowhere", "mlx5_3: it has no port: it cannot be used" },
		{ DEV, "device", "mlx5_3/device cannot be followed (Too many levels" },
		{ DEV, "/etc",
		  "cannot be followed (it leads out of the tree): its place is not known" },
		{ DEV, "..",
		  "mlx5_3: numa_node cannot be read (No such file or directory): its NUMA node is not known" },
		{ PORT, "1",
		  "mlx5_3:1: state cannot be read (Too many levels of symbolic links): taken as down" },
		{ NIC "/ports", "ports",
		  "class/infiniband/mlx5_3/ports cannot be read (Too many levels" },
		{ PORT "/state", "..",
		  "mlx5_3:1: state cannot be read (Is a directory): taken as down" },
		{ PORT "/rate", NULL, "mlx5_3:1: rate cannot be read (No such file or directory)" },
		{ PORT "/link_layer", NULL,
		  "mlx5_3:1: link_layer cannot be read (No such file or directory): taken as Unknown" },
		{ PORT "/state", "/dev/zero", "mlx5_3:1: state cannot be read (File too large)" },
		{ PORT "/rate", "/dev/null", "rate is ''" },
		{ GPU, "0000:3b:00.0",
		  "0000:3b:00.0: vendor cannot be read (Too many levels of symbolic links): not taken for a GPU" },
		{ GPU "/class", NULL,
		  "0000:3b:00.0: class cannot be read (No such file or directory)" },
		{ GPU "/local_cpulist", NULL, "0000:3b:00.0: local_cpulist cannot be read" },
		{ "devices/system/node", NULL,
		  "devices/system/node cannot be read (No such file or directory)" },
		{ "devices/system/cpu", NULL,
		  "devices/system/cpu cannot be read (No such file or directory)" },
	};

	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		put_aside(&rig, faults[i].path, false);
		if (faults[i].target)
			place_rig_link(&rig, faults[i].path, faults[i].target);
		assert_costs_only(&rig, faults[i].note);
		put_aside(&rig, faults[i].path, true);
	}
	place_rig_replan(&rig);
	assert_int_equal(rig.map.notes, 0);
	place_rig_destroy(&rig);
}

static void names_that_are_none(void **state)
{
	struct place_rig rig;
	char path[256];

	place_rig_init(&rig, "hgx");
	place_rig_link(&rig, NIC "/ports/x", "1");
	place_rig_link(&rig, NIC "/ports/0", "1");
	place_rig_link(&rig, NIC "/ports/256", "1");
	place_rig_link(&rig, "bus/pci/devices/0000:99", "0000:3b:00.0");
	place_rig_link(&rig, "class/infiniband/a\nb", "mlx5_3");
	assert_costs_only(&rig, "mlx5_3: 'x' is no port number: left out");
	place_rig_assert_note(&rig, "mlx5_3: '0' is no port number: left out");
	place_rig_assert_note(&rig, "mlx5_3: '256' is no port number: left out");
	place_rig_assert_note(&rig, "'0000:99' is no PCI address: left out");
	place_rig_assert_note(&rig, "class/infiniband: 'a?b' is no name of a device: left out");
	assert_int_equal(rig.plan.rails, 10);
	/* A pipe without a writer must not make anybody wait. */
	place_rig_link(&rig, PORT "/state", NULL);
	snprintf(path, sizeof(path), "%s/" PORT "/state", rig.dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_costs_only(&rig, "mlx5_3:1: state is '', which makes no sense: taken as down");
	place_rig_destroy(&rig);
}

static void roots_that_are_none(void **state)
{
	struct epf_place_map map = { .nics = 7 };
	struct place_rig rig;
	char path[128];

	place_rig_init(&rig, NULL);
	place_rig_replan(&rig); /* an empty folder is a machine of which nothing is known */
	place_rig_assert_note(&rig, "class/infiniband cannot be read (No such file or directory)");
	place_rig_assert_note(&rig, "bus/pci/devices cannot be read");
	assert_int_equal(rig.plan.choices, 1);
	assert_string_equal(rig.plan.choice[0].why, "no RDMA device; no CPU to recommend");
	snprintf(path, sizeof(path), "%s/absent", rig.dir);
	assert_int_equal(epf_place_read(path, &map), -ENOENT);
	assert_int_equal(epf_last_reason(), EPF_R_PLACE_TREE);
	assert_non_null(strstr(epf_last_error(), path));
	place_rig_put(&rig, "file", "");
	snprintf(path, sizeof(path), "%s/file", rig.dir);
	assert_int_equal(epf_place_read(path, &map), -ENOTDIR);
	assert_int_equal(map.nics, 7); /* not written */
	place_rig_destroy(&rig);
}

/* As another user where root runs this. */
static void what_may_not_be_read(void **state)
{
	bool is_root = geteuid() == 0;
	struct place_rig rig;
	char path[256];

	place_rig_init(&rig, "hgx");
	snprintf(path, sizeof(path), "%s/" PORT "/state", rig.dir);
	assert_int_equal(chmod(rig.dir, 0755), 0);
	assert_int_equal(chmod(path, 0), 0);
	if (is_root)
		assert_int_equal(seteuid(65534), 0);
	snprintf(path, sizeof(path), "%s/class", rig.dir);
	if (!faccessat(AT_FDCWD, path, R_OK | X_OK, AT_EACCESS)) {
		assert_costs_only(
			&rig, "mlx5_3:1: state cannot be read (Permission denied): taken as down");
	} else {
		print_message("# not tried: another user cannot reach %s\n", rig.dir);
	}
	if (is_root)
		assert_int_equal(seteuid(0), 0);
	place_rig_destroy(&rig);
}

/* ---- every file and link, one at a time ------------------------------------------------------------- */

static char *found[8192];
static size_t n_found;

static int remember(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	if ((kind == FTW_F || kind == FTW_SL) && n_found < 8192)
		found[n_found++] = strdup(path);
	return 0;
}

static void spoil(struct place_rig *rig, const char *path, const char *text, const char *target)
{
	assert_int_equal(unlink(path), 0);
	if (target) {
		assert_int_equal(symlink(target, path), 0);
	} else if (text) {
		FILE *f = fopen(path, "w");

		assert_non_null(f);
		fputs(text, f);
		fclose(f);
	}
	place_rig_replan(rig);
	/* What is left is whole: rails exist, choices point at them. */
	for (uint32_t i = 0; i < rig->plan.choices; i++)
		for (uint32_t r = 0; r < rig->plan.choice[i].rails; r++)
			assert_true(rig->plan.choice[i].rail[r] < rig->plan.rails);
}

static void each_thing_spoilt_in_turn(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "single");
	n_found = 0;
	assert_int_equal(nftw(rig.dir, remember, 16, FTW_PHYS), 0);
	assert_true(n_found > 40);
	for (size_t i = 0; i < n_found; i++) {
		char keep[256] = "", target[512];
		ssize_t n = readlink(found[i], target, sizeof(target) - 1);
		FILE *f = n < 0 ? fopen(found[i], "r") : NULL;

		if (f) {
			if (!fgets(keep, sizeof(keep), f))
				keep[0] = '\0';
			fclose(f);
		}
		target[n < 0 ? 0 : n] = '\0';
		spoil(&rig, found[i], NULL, NULL);
		assert_int_equal(symlink("x", found[i]), 0);
		spoil(&rig, found[i], NULL, strrchr(found[i], '/') + 1); /* to itself */
		spoil(&rig, found[i], "99999999999999999999,-,\x7f\n", NULL);
		spoil(&rig, found[i], NULL, "..");
		spoil(&rig, found[i], n < 0 ? keep : NULL, n < 0 ? NULL : target); /* as it was */
		assert_int_equal(rig.map.notes, 0);
		free(found[i]);
	}
	place_rig_destroy(&rig);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_with_nonsense),
		cmocka_unit_test(a_spoilt_place_costs_only_nearness),
		cmocka_unit_test(links_and_kinds_that_are_wrong),
		cmocka_unit_test(names_that_are_none),
		cmocka_unit_test(roots_that_are_none),
		cmocka_unit_test(what_may_not_be_read),
		cmocka_unit_test(each_thing_spoilt_in_turn),
	};

	return place_rig_args(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
