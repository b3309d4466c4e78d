/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ports a NIC opens, and in which order, on recorded machines: for one rank, for a daemon that serves all, with selections in
 * the syntax of NCCL_IB_HCA, with ports that are down, and where sysfs says nothing.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fabric/base/err.h"
#include "fabric/place/pick.h"
#include "tests/unit/place/place_rig.h"

enum { MOST = 64 };

/* What the device library would list: every port of the rig's map, or the names given. */
struct listed {
	struct epf_place_candidate port[MOST];
	uint32_t count;
};

static void list_rig(const struct place_rig *rig, struct listed *out)
{
	out->count = 0;
	for (uint32_t i = 0; i < rig->map.nics; i++)
		for (uint32_t k = 0; k < rig->map.nic[i].ports; k++)
			out->port[out->count++] = (struct epf_place_candidate){
				.device = rig->map.nic[i].name,
				.port = rig->map.nic[i].port[k].number,
				.is_active = rig->map.nic[i].port[k].is_up,
			};
}

static const char *names(const struct listed *l, const struct epf_place_pick *pick, uint32_t first,
			 uint32_t end)
{
	static char text[2048];
	size_t at = 0;

	text[0] = 0;
	for (uint32_t i = first; i < end; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s:%u", at ? "," : "",
				       l->port[pick->order[i]].device,
				       l->port[pick->order[i]].port);
	return text;
}

static int pick_for(struct place_rig *rig, const struct listed *l, int64_t local, uint32_t port,
		    struct epf_place_pick *out)
{
	struct epf_place_pick_opts o = { .select = &rig->conf.nic_device,
					 .cpus = &rig->conf.cpu,
					 .sysfs = rig->dir,
					 .port = port,
					 .local = local };

	epf_clear_error();
	return epf_place_pick(&o, l->port, l->count, out);
}

static void expect(struct place_rig *rig, int64_t local, const char *own, const char *spares)
{
	struct epf_place_pick pick;
	struct listed l;

	place_rig_replan(rig);
	list_rig(rig, &l);
	assert_int_equal(pick_for(rig, &l, local, 0, &pick), 0);
	assert_string_equal(names(&l, &pick, 0, pick.own), own);
	if (spares)
		assert_string_equal(names(&l, &pick, pick.own, pick.count), spares);
	epf_place_pick_destroy(&pick);
}

static void a_rank_gets_its_own_and_the_rest_stand_by(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	expect(&rig, 0, "mlx5_0:1",
	       "mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1");
	expect(&rig, 7, "mlx5_11:1", NULL);
	expect(&rig, 8, "mlx5_0:1", NULL); /* more ranks than GPUs take turns */
	place_rig_destroy(&rig);
	place_rig_init(&rig, "p5en");
	expect(&rig, 1, "rdmap87s0:1,rdmap88s0:1", NULL);
	place_rig_destroy(&rig);
}

static void a_daemon_gets_all_rails_in_order(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "hgx"); /* not the management NICs */
	expect(&rig, -1,
	       "mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1", "");
	place_rig_destroy(&rig);
}

static void a_port_that_is_down_keeps_its_place_for_a_daemon(void **state)
{
	struct epf_place_pick pick;
	struct place_rig rig;
	struct listed l;

	place_rig_init(&rig, "hgx");
	place_rig_put(&rig, "class/infiniband/mlx5_3/ports/1/state", "1: DOWN");
	expect(&rig, -1,
	       "mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1", "");
	place_rig_replan(&rig);
	list_rig(&rig, &l);
	assert_int_equal(pick_for(&rig, &l, -1, 0, &pick), 0);
	assert_non_null(strstr(pick.why, "mlx5_3:1 (down)"));
	epf_place_pick_destroy(&pick);
	assert_int_equal(pick_for(&rig, &l, 1, 0, &pick), 0);
	assert_non_null(strstr(pick.why, "its rail mlx5_3:1 is down"));
	assert_false(l.port[pick.order[0]].is_active == false);
	epf_place_pick_destroy(&pick);
	place_rig_destroy(&rig);
}

/* The syntax of NCCL_IB_HCA: prefixes, "=", "^", ports, by the variable itself. */
static void selections_are_read_as_nccl_reads_them(void **state)
{
	static const struct {
		const char *text, *own;
	} rows[] = {
		{ "mlx5_1",
		  "mlx5_10:1,mlx5_11:1" }, /* mlx5_1 itself, the management NIC: see below */
		{ "=mlx5_3,mlx5_10", "mlx5_3:1,mlx5_10:1" },
		{ "=mlx5_3:1", "mlx5_3:1" },
		{ "^mlx5_0,mlx5_3", "mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1" },
		{ "^=mlx5_1", "mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,"
			      "mlx5_11:1" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct place_rig rig;
		struct listed l;
		struct epf_place_pick pick;

		assert_int_equal(setenv("NCCL_IB_HCA", rows[i].text, 1), 0);
		place_rig_init(&rig, "hgx");
		assert_int_equal(epf_conf_load(&rig.conf, NULL), 0);
		place_rig_replan(&rig);
		list_rig(&rig, &l);
		assert_int_equal(pick_for(&rig, &l, -1, 0, &pick), 0);
		if (i == 0) /* a prefix: the management NIC's two ports too, as the user named it */
			assert_non_null(strstr(names(&l, &pick, 0, pick.own), rows[i].own));
		else
			assert_string_equal(names(&l, &pick, 0, pick.own), rows[i].own);
		epf_place_pick_destroy(&pick);
		place_rig_destroy(&rig);
	}
	assert_int_equal(unsetenv("NCCL_IB_HCA"), 0);
}

static void a_port_of_no_device_fits_nothing(void **state)
{
	struct epf_place_pick pick;
	struct place_rig rig;
	struct listed l;

	place_rig_init(&rig, "hgx");
	place_rig_replan(&rig);
	list_rig(&rig, &l);
	assert_int_equal(pick_for(&rig, &l, 0, 7, &pick), 0);
	assert_int_equal(pick.count, 0);
	assert_non_null(strstr(pick.why, "none"));
	epf_place_pick_destroy(&pick);
	place_rig_set(&rig, "nic-device", "mlx5_0:0");
	memset(&pick, 0x5a, sizeof(pick));
	assert_int_equal(pick_for(&rig, &l, 0, 0, &pick), -EINVAL);
	assert_int_equal(epf_last_reason(), EPF_R_PLACE_SELECT);
	assert_int_equal(pick.count, 0x5a5a5a5a); /* outputs on success only */
	place_rig_destroy(&rig);
}

static void devices_that_sysfs_does_not_know_come_last_in_their_order(void **state)
{
	struct listed l = { .port = { { "zz1", 1, true },
				      { "mlx5_4", 1, true },
				      { "zz0", 1, true },
				      { "mlx5_0", 1, true } },
			    .count = 4 };
	struct epf_place_pick pick;
	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	assert_int_equal(pick_for(&rig, &l, -1, 0, &pick), 0);
	assert_string_equal(names(&l, &pick, 0, pick.count), "mlx5_0:1,mlx5_4:1,zz1:1,zz0:1");
	epf_place_pick_destroy(&pick);
	place_rig_set(&rig, "nic-device", "zz"); /* nothing of the tree */
	assert_int_equal(pick_for(&rig, &l, 3, 0, &pick), 0);
	assert_string_equal(names(&l, &pick, 0, pick.own), "zz1:1,zz0:1");
	assert_int_equal(pick.node, -1);
	assert_int_equal(pick.cpu, -1);
	assert_int_equal(pick.near->count, 0);
	epf_place_pick_destroy(&pick);
	place_rig_destroy(&rig);
}

static void without_sysfs_the_library_s_order_counts(void **state)
{
	struct listed l = { .port = { { "b", 1, true }, { "a", 1, false } }, .count = 2 };
	struct epf_place_pick_opts o = { .sysfs = "/nowhere/at/all", .local = 0 };
	struct epf_place_pick pick;

	assert_int_equal(epf_place_pick(&o, l.port, l.count, &pick), 0);
	assert_string_equal(names(&l, &pick, 0, pick.own), "b:1,a:1");
	assert_non_null(strstr(pick.why, "sysfs cannot be read"));
	epf_place_pick_destroy(&pick);
	assert_int_equal(epf_place_pick(&o, l.port, 0, &pick), 0);
	assert_int_equal(pick.count, 0);
	epf_place_pick_destroy(&pick);
	epf_place_pick_destroy(NULL);
}

/* Ports that the plan sets aside are better than none. */
static void slow_ones_are_taken_when_nothing_else_is_listed(void **state)
{
	struct listed l = { .port = { { "mlx5_1", 1, true } }, .count = 1 };
	struct epf_place_pick pick;
	struct place_rig rig;

	place_rig_init(&rig, "hgx");
	assert_int_equal(pick_for(&rig, &l, 0, 0, &pick), 0);
	assert_string_equal(names(&l, &pick, 0, pick.count), "mlx5_1:1");
	epf_place_pick_destroy(&pick);
	place_rig_destroy(&rig);
}

static void cpus_near_the_first_port_are_those_allowed(void **state)
{
	struct epf_place_pick pick;
	struct place_rig rig;
	struct listed l;

	place_rig_init(&rig, "hgx");
	place_rig_replan(&rig);
	list_rig(&rig, &l);
	assert_int_equal(pick_for(&rig, &l, 4, 0, &pick), 0);
	assert_int_equal(pick.node, 1);
	assert_int_equal(pick.near->count, 112);
	assert_int_equal(pick.near->cpu[0], 56);
	assert_int_equal(pick.near->cpu[111], 223);
	assert_int_equal(pick.cpu, rig.plan.choice[4].cpu);
	epf_place_pick_destroy(&pick);
	place_rig_set(&rig, "cpu", "3,60-61");
	assert_int_equal(pick_for(&rig, &l, 4, 0, &pick), 0);
	assert_int_equal(pick.near->count, 2);
	assert_int_equal(pick.near->cpu[0], 60);
	epf_place_pick_destroy(&pick);
	place_rig_destroy(&rig);
}

static void without_gpus_ranks_take_turns_with_the_rails(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "single");
	expect(&rig, 0, "mlx5_0:1", "");
	expect(&rig, 5, "mlx5_0:1", "");
	place_rig_destroy(&rig);
	place_rig_init(&rig, "no_nic");
	expect(&rig, 5, "", "");
	expect(&rig, -1, "", "");
	place_rig_destroy(&rig);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rank_gets_its_own_and_the_rest_stand_by),
		cmocka_unit_test(a_daemon_gets_all_rails_in_order),
		cmocka_unit_test(a_port_that_is_down_keeps_its_place_for_a_daemon),
		cmocka_unit_test(selections_are_read_as_nccl_reads_them),
		cmocka_unit_test(a_port_of_no_device_fits_nothing),
		cmocka_unit_test(devices_that_sysfs_does_not_know_come_last_in_their_order),
		cmocka_unit_test(without_sysfs_the_library_s_order_counts),
		cmocka_unit_test(slow_ones_are_taken_when_nothing_else_is_listed),
		cmocka_unit_test(cpus_near_the_first_port_are_those_allowed),
		cmocka_unit_test(without_gpus_ranks_take_turns_with_the_rails),
	};

	if (!place_rig_args(argc, argv))
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
