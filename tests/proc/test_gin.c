/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's one-sided interface without NCCL and without a GPU: each table of the plug-in, by the calls of NCCL's proxy thread, and kernels that do without, on NICs
 * that are in order, reorder, repeat, lose and fail (gin_play.c). argv[1]: the plug-in.
 */
#include "tests/proc/gin_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const struct game usual = {
	.ranks = 3, .contexts = 3, .messages = 60, .bytes = 2048, .killed = -1
};

static void every_version(void **state)
{
	struct game g = usual;

	(void)state;
	for (g.version = 11; g.version <= GPI; g.version++)
		run(g, 0);
}

static void eight_ranks(void **state)
{
	struct game g = usual;

	(void)state;
	g.version = 13;
	g.ranks = 8;
	g.messages = 20;
	run(g, 0);
}

static void on_a_nic_that_reorders(void **state)
{
	static const char *const env[] = { "EPF_EMU_ORDER=unordered", "EPF_EMU_REORDER=0.3",
					   "EPF_EMU_DUPLICATE=0.2",   "EPF_EMU_DROP=0.05",
					   "EPF_EMU_DELAY=200us",     NULL };
	struct game g = usual;

	(void)state;
	g.env = env;
	/* The oldest and the newest; in the long form all. */
	for (g.version = 11; g.version <= 14; g.version += getenv("EPF_TEST_LONG") ? 1 : 3)
		run(g, 0);
	g.version = GPI;
	run(g, 0);
}

static void with_lanes_that_fail(void **state)
{
	static const char *const env[] = { "EPF_EMU_ORDER=unordered", "EPF_EMU_ERROR=0.001",
					   "EPF_EMU_REORDER=0.2", "EPF_LANES_PER_PEER=8", NULL };
	struct game g = usual;

	(void)state;
	g.env = env;
	for (g.version = 14; g.version <= GPI; g.version++)
		run(g, 0);
}

static void over_tcp(void **state)
{
	static const char *const env[] = { "EPF_NIC=tcp", NULL };
	struct game g = usual;

	(void)state;
	g.env = env;
	g.version = 13;
	run(g, 0);
}

static void a_killed_rank_is_noticed(void **state)
{
	struct game g = usual;

	(void)state;
	g.killed = 1;
	for (g.version = 14; g.version <= GPI; g.version++)
		run(g, ERROR_SEEN);
}

/* A module with the name of DeepEP V2's, whose kernels would read another word than they mean: contexts are refused. */
static void a_program_for_the_proxy_is_refused(void **state)
{
	struct game g = usual;

	(void)state;
	if (access(plugin, R_OK) != 0)
		skip(); /* it is inside this program */
	g.version = GPI;
	g.like_v2 = true;
	run(g, REFUSED);
}

/* Kernels from before there was this way, and those of an NCCL to come. */
static void other_kernels_are_refused(void **state)
{
	struct game g = usual;

	(void)state;
	g.version = GPI;
	for (g.newer = -1; g.newer <= 1; g.newer += 2)
		run(g, REFUSED);
}

static void bad_requests_of_kernels(void **state)
{
	struct game g = usual;

	(void)state;
	g.version = GPI;
	g.messages = 4;
	g.refused = true;
	run(g, 0);
}

/*
 * Kernels that wait for signals while their process loads another one: the driver lets nothing of the process through until they end, but for calls of another
 * context. So copies in a context of their own go on: on an ordered NIC, on one that reorders, over TCP.
 */
static void a_process_that_loads_kernels(void **state)
{
	static const char *const nics[][6] = {
		{ "EPF_GPU_OWN_CONTEXT=yes", NULL },
		{ "EPF_GPU_OWN_CONTEXT=yes", "EPF_EMU_ORDER=unordered", "EPF_EMU_REORDER=0.3",
		  "EPF_EMU_DUPLICATE=0.2", "EPF_EMU_DELAY=200us", NULL },
		{ "EPF_GPU_OWN_CONTEXT=yes", "EPF_NIC=tcp", NULL },
	};
	struct game g = usual;

	(void)state;
	g.loads = true;
	g.messages = 20;
	for (unsigned i = 0; i < sizeof(nics) / sizeof(nics[0]); i++) {
		g.env = nics[i];
		g.version = i == 0 ? 14 : i == 1 ? 13 : GPI;
		run(g, 0);
	}
}

/* Without that the same is impossible: what the test before must find. */
static void otherwise_a_load_stops_them(void **state)
{
	static const char *const nics[][2] = { { NULL }, { "EPF_NIC=tcp", NULL } };
	struct game g = usual;

	(void)state;
	g.loads = true;
	g.version = 13;
	for (unsigned i = 0; i < sizeof(nics) / sizeof(nics[0]); i++) {
		g.env = nics[i];
		run(g, 1);
	}
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_version),
		cmocka_unit_test(eight_ranks),
		cmocka_unit_test(on_a_nic_that_reorders),
		cmocka_unit_test(with_lanes_that_fail),
		cmocka_unit_test(over_tcp),
		cmocka_unit_test(a_killed_rank_is_noticed),
		cmocka_unit_test(bad_requests_of_kernels),
		cmocka_unit_test(a_program_for_the_proxy_is_refused),
		cmocka_unit_test(other_kernels_are_refused),
		/* Of GPU memory. */
		cmocka_unit_test(a_process_that_loads_kernels),
		cmocka_unit_test(otherwise_a_load_stops_them),
	};
	bool is_gpu = PLAY_KIND == EPF_NCCL_CUDA;

	if (argc < 2) {
		printf("usage: test_gin libnccl-net-epf.so\n");
		return 1;
	}
	plugin = argv[1];
	if (is_gpu) {
		setenv("EPF_NIC", "emu", 1);
		setenv("EPF_GPU_BACKEND", "fake", 1);
	}
	if (getenv("EPF_SEED"))
		seed = strtoull(getenv("EPF_SEED"), NULL, 0);
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	return _cmocka_run_group_tests("tests", tests, is_gpu ? 11 : 9, NULL, NULL);
}
