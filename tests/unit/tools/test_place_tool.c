/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric nics --sysfs` as its users meet it, on recorded machines (tests/place/). Started with the arguments of place_rig.h and
 * the program's path.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/unit/place/place_rig.h"

static const char *program;
static char out[65536];

/* Runs `ep-fabric nics` on a rig's tree, with its messages among the output. */
static int run(const struct place_rig *rig, const char *options)
{
	char line[1024];
	size_t n;
	FILE *f;

	snprintf(line, sizeof(line), "'%s' nics --nic=null '--sysfs=%s' %s 2>&1", program, rig->dir,
		 options);
	f = popen(line, "r");
	assert_non_null(f);
	n = fread(out, 1, sizeof(out) - 1, f);
	out[n] = '\0';
	return WEXITSTATUS(pclose(f));
}

static void assert_has(const char *text)
{
	if (!strstr(out, text))
		fail_msg("no '%s' in:\n%s", text, out);
}

static void the_choice_and_the_reason_are_shown(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "p5en");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("\n*null ");
	assert_has("# RDMA devices below ");
	assert_has(
		"\n    2 rdmap87s0:1        0000:57:00.0     0 ACTIVE   Unknown       200.0    3  usable\n");
	assert_has("\n# GPUs: 8\n");
	assert_has("\n     1   1 rdmap87s0:1,rdmap88s0:1      3    0 same PCIe switch as GPU 1, "
		   "0000:45:00.0; 4 rails so near for 2 GPUs; CPU 3 of node 0\n");
	place_rig_put(&rig, "class/infiniband/rdmap88s0/ports/1/state", "?\n");
	assert_int_equal(run(&rig, "--ranks=1"), 0);
	assert_has("# note: rdmap88s0:1: state is '?', which makes no sense: taken as down\n");
	assert_null(strstr(out, "\n     1   1 "));
	place_rig_destroy(&rig);
}

static void json_says_the_same(void **state)
{
	json_t *top, *choice, *device;
	struct place_rig rig;
	const char *reason;

	place_rig_init(&rig, "single");
	assert_int_equal(run(&rig, "--json"), 0);
	top = json_loads(strchr(out, '{'), JSON_DISABLE_EOF_CHECK, NULL);
	assert_non_null(top);
	assert_int_equal(json_array_size(json_object_get(top, "choices")), 1);
	choice = json_array_get(json_object_get(top, "choices"), 0);
	reason = json_string_value(json_object_get(choice, "reason"));
	assert_non_null(reason);
	assert_non_null(strstr(reason, "none is nearer"));
	assert_string_equal(json_string_value(json_object_get(choice, "distance")), "far");
	assert_int_equal(json_integer_value(json_object_get(choice, "cpu")), 2);
	assert_int_equal(json_array_size(json_object_get(choice, "spares")), 0);
	device = json_array_get(json_object_get(choice, "rails"), 0);
	assert_string_equal(json_string_value(json_object_get(device, "device")), "mlx5_0");
	device = json_array_get(json_object_get(top, "devices"), 0);
	assert_string_equal(json_string_value(json_object_get(device, "use")), "usable");
	assert_int_equal(json_integer_value(json_object_get(device, "rate_mbit_s")), 100000);
	assert_int_equal(json_array_size(json_object_get(top, "notes")), 0);
	json_decref(top);
	place_rig_destroy(&rig);
}

static void nccl_s_variable_selects(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	assert_int_equal(setenv("NCCL_IB_HCA", "^=mlx5_0", 1), 0);
	assert_int_equal(run(&rig, ""), 0);
	assert_has(" not selected\n");
	assert_has("\n     0   0 mlx5_3:1");
	/* A choice that leaves nothing fails, and the devices there are can be seen. */
	assert_int_equal(setenv("NCCL_IB_HCA", "bnxt", 1), 0);
	assert_int_equal(run(&rig, ""), 1);
	assert_has("nic-device leaves none of the 10 ports");
	assert_has("\n    0 mlx5_0:1 ");
	assert_null(strstr(out, "# Placement"));
	unsetenv("NCCL_IB_HCA");
	assert_int_equal(run(&rig, "--nic-device=mlx5_0:x"), 1);
	assert_has("EPF-441");
	place_rig_destroy(&rig);
}

static void no_device_is_no_failure(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "no_nic");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("# RDMA devices below ");
	assert_has(": 0\n");
	assert_has("no RDMA device; CPU 1 of node 0\n");
	place_rig_destroy(&rig);
}

static json_int_t planned(json_t *top, const char *mode, const char *what)
{
	json_t *value = json_object_get(json_object_get(top, mode), what);

	if (!json_is_integer(value))
		fail_msg("no %s of %s", what, mode);
	return json_integer_value(value);
}

/* Queue pairs on a NIC grow with nodes; without daemons with ranks. */
static void a_job_of_two_thousand_ranks_is_planned(void **state)
{
	struct place_rig rig;
	json_t *top;

	place_rig_init(&rig, "hgx");
	assert_int_equal(run(&rig, "--plan --json"), 0);
	top = json_loads(out, 0, NULL);
	assert_non_null(top);
	assert_string_equal(json_string_value(json_object_get(top, "schema")), "epf.nics-plan/1");
	assert_int_equal(json_integer_value(json_object_get(top, "ranks")), 2048);
	assert_int_equal(json_integer_value(json_object_get(top, "devices_per_node")), 8);
	assert_int_equal(planned(top, "service", "lanes_per_peer"), 8);
	assert_int_equal(planned(top, "service", "queue_pairs_per_nic"), 256);
	assert_int_equal(planned(top, "embedded", "queue_pairs_per_nic"), 2 * 2048);
	/* 256 work requests of three blocks, made a power of two: 64 KiB for each queue pair. */
	assert_int_equal(planned(top, "service", "nic_send_queue_bytes"), 256 * 65536);
	assert_true(planned(top, "service", "engine_join_bytes") <
		    planned(top, "service", "node_engine_bytes") / 20);
	assert_int_equal(planned(top, "embedded", "node_join_bytes"),
			 8 * planned(top, "embedded", "engine_join_bytes"));
	assert_true(planned(top, "service", "node_engine_bytes") <
		    planned(top, "embedded", "node_engine_bytes"));
	json_decref(top);
	assert_int_equal(run(&rig, "--plan --devices=1 --nodes=64 --lanes-per-peer=1"), 0);
	assert_has("# Plan: 512 ranks on 64 nodes of 8, 1 RDMA devices a node.");
	assert_has("\nqueue pairs on a NIC                                     64         4096\n");
	place_rig_destroy(&rig);
}

static void what_cannot_be_planned_is_said(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "no_nic");
	assert_int_equal(run(&rig, "--plan --nodes=4096 --ranks-per-node=1 --lanes-per-peer=8"), 1);
	assert_has("32768 lanes share 32767 receives");
	assert_int_equal(run(&rig, "--plan --nodes=513"), 2);
	assert_has("a job has at most 4096 ranks");
	assert_int_equal(run(&rig, "--nodes=4"), 2);
	assert_has("belong to --plan");
	assert_int_equal(run(&rig, "--plan --devices=0"), 2);
	assert_has("--devices is '0'");
	place_rig_destroy(&rig);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_choice_and_the_reason_are_shown),
		cmocka_unit_test(json_says_the_same),
		cmocka_unit_test(nccl_s_variable_selects),
		cmocka_unit_test(no_device_is_no_failure),
		cmocka_unit_test(a_job_of_two_thousand_ranks_is_planned),
		cmocka_unit_test(what_cannot_be_planned_is_said),
	};

	if (argc != 5 || !place_rig_args(argc - 1, argv))
		return 1;
	program = argv[4];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
