/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIC that nic=auto means (client/choose_nic.h): by what launchers say of a job, and by what a machine has.
 */
#include "fabric/client/choose_nic.h"

#include "fabric/base/err.h"
#include "fabric/nic/nic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void hosts_of_a_job(void **state)
{
	assert_int_equal(epf_spans_hosts("", 8, 0), 0);
	assert_int_equal(epf_spans_hosts("127.0.0.1:29500", 8, 0), 0);
	assert_int_equal(epf_spans_hosts("127.0.0.1:29500", 8, 4), 0);
	assert_int_equal(epf_spans_hosts("localhost:29500", 8, 0), 0);
	assert_int_equal(epf_spans_hosts("[::1]:29500", 8, 0), 0);
	assert_int_equal(epf_spans_hosts("10.1.2.3:29500", 1, 0), 0);
	assert_int_equal(epf_spans_hosts("10.1.2.3:29500", 8, 8), 0);
	assert_int_equal(epf_spans_hosts("no address", 8, 4), 0);
	assert_int_equal(epf_spans_hosts("10.1.2.3:29500", 8, 4), 1);
	assert_int_equal(epf_spans_hosts("10.1.2.3:29500", 8, 0), 1);
	assert_int_equal(epf_spans_hosts("[2001:db8::1]:29500", 8, 4), 1);
	assert_int_equal(epf_spans_hosts("node-a:29500", 2, 1), 1);
}

static void rdma_of_a_machine(void **state)
{
	struct epf_place_port port = { .number = 1, .is_up = false };
	struct epf_place_nic nic = { .name = "dev0", .port = &port, .ports = 1 };
	char root[] = "/tmp/epf-test-choose-XXXXXX", path[200];
	struct epf_place_map map = { .root = root };

	assert_non_null(mkdtemp(root));
	assert_null(epf_place_rdma(&map));
	map.nic = &nic;
	map.nics = 1;
	assert_null(epf_place_rdma(&map));
	port.is_up = true;
	assert_string_equal(epf_place_rdma(&map), "verbs");
	for (const char *part =
		     "/class\0/class/infiniband\0/class/infiniband/dev0\0/class/infiniband/dev0/device\0";
	     *part; part += strlen(part) + 1) {
		snprintf(path, sizeof(path), "%s%s", root, part);
		assert_int_equal(mkdir(path, 0700), 0);
	}
	snprintf(path, sizeof(path), "%s/class/infiniband/dev0/device/driver", root);
	assert_int_equal(symlink("../../../bus/pci/drivers/efa", path), 0);
	assert_string_equal(epf_place_rdma(&map), "efa");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("../../../bus/pci/drivers/mlx5_core", path), 0);
	assert_string_equal(epf_place_rdma(&map), "verbs");
	assert_int_equal(unlink(path), 0);
	for (char *end; (end = strrchr(path, '/')) > path + strlen(root) - 1;) {
		*end = 0;
		assert_int_equal(rmdir(path), 0);
	}
}

static void auto_is_resolved_and_nothing_else(void **state)
{
	struct epf_conf conf;

	assert_int_equal(epf_conf_init(&conf), 0);
	assert_int_equal(conf.nic, EPF_CONF_NIC_AUTO);
	assert_string_equal(epf_conf_nic(&conf), "emu");
	assert_int_equal(epf_choose_nic(&conf), 0);
	assert_int_equal(conf.nic, EPF_CONF_NIC_EMU);
	assert_int_equal(epf_conf_set(&conf, "nic", "null", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "rendezvous", "10.1.2.3:29500", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "world-size", "4", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_choose_nic(&conf), 0);
	assert_int_equal(conf.nic, EPF_CONF_NIC_NULL);
	assert_int_equal(epf_conf_set(&conf, "nic", "auto", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_choose_nic(&conf), 0);
	assert_true(conf.nic != EPF_CONF_NIC_EMU && conf.nic != EPF_CONF_NIC_AUTO);
	assert_int_equal(access("/sys/class/infiniband", F_OK) && conf.nic != EPF_CONF_NIC_TCP, 0);
	/* Only one NIC can encrypt. */
	assert_int_equal(epf_conf_set(&conf, "nic", "auto", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "wire-encryption", "yes", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_choose_nic(&conf), 0);
	assert_int_equal(conf.nic, EPF_CONF_NIC_TCP);
	for (const char *const *name = (const char *const[]){ "verbs", "efa", NULL }; *name;
	     name++) {
		struct epf_nic *nic;

		assert_true(epf_nic_find(*name)->open(&conf, NULL, NULL, &nic) < 0);
		assert_true(strstr(epf_last_error(), "wire-encryption") ||
			    strstr(epf_last_error(), "not in this build"));
	}
	epf_conf_destroy(&conf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hosts_of_a_job),
		cmocka_unit_test(rdma_of_a_machine),
		cmocka_unit_test(auto_is_resolved_and_nothing_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
