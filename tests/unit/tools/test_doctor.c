/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric doctor` as its users meet it, on recorded machines (tests/place/) with something wrong in each. Started with the arguments of
 * place_rig.h and the program's path.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/unit/place/place_rig.h"

static const char *program;
static char out[262144];

/* Runs the doctor on a rig's tree, which is both its /sys and its /proc (below "proc"), with its messages among the output. */
static int run(const struct place_rig *rig, const char *options)
{
	char line[1024];
	size_t n;
	FILE *f;

	snprintf(line, sizeof(line), "'%s' doctor '--sysfs=%s' '--procfs=%s/proc' %s 2>&1", program,
		 rig->dir, rig->dir, options);
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

/* A machine of InfiniBand NICs and NVIDIA GPUs, with all that the doctor looks for in order. */
static void healthy(struct place_rig *rig)
{
	place_rig_init(rig, "hgx");
	place_rig_add(
		rig,
		"class/infiniband_verbs/uverbs0/dev = 231:192\n"
		"module/nvidia_peermem/refcnt = 0\n"
		"proc/sys/kernel/osrelease = 6.1.0-18-amd64\n"
		"proc/sys/kernel/numa_balancing = 0\n"
		"devices/system/clocksource/clocksource0/current_clocksource = tsc\n"
		"devices/system/cpu/cpu0/cpufreq/scaling_governor = performance\n"
		"kernel/mm/transparent_hugepage/enabled = always [madvise] never\n"
		"class/infiniband/mlx5_1/ports/1/gids/0 = fe80:0000:0000:0000:0202:c9ff:fe00:0001\n"
		"class/infiniband/mlx5_1/ports/1/gid_attrs/types/0 = RoCE v2\n"
		"class/infiniband/mlx5_1/ports/1/gids/1 = 0000:0000:0000:0000:0000:ffff:0a00:0001\n"
		"class/infiniband/mlx5_1/ports/1/gid_attrs/types/1 = RoCE v2\n"
		"class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0 = eth7\n"
		"class/net/eth7/mtu = 9000\n");
}

static void a_machine_in_order_passes(void **state)
{
	struct place_rig rig;

	healthy(&rig);
	assert_int_equal(run(&rig, ""), 0);
	assert_has("ok    devices      mlx5_0 at PCI 0000:18:00.0, 1 ports\n");
	assert_has("ok    links        mlx5_0:1 ACTIVE, InfiniBand, 400 Gbit/s\n");
	assert_has("ok    gid          mlx5_1:1 GID 1 is RoCE v2 and routable\n");
	assert_has("ok    mtu          mlx5_1: MTU 9000 of eth7\n");
	assert_has("ok    gpu-memory   GPU memory can be registered by peer memory");
	assert_has("ok    clock ");
	assert_has(", 0 failures\n");
	/* The second port of the management NIC is down: a warning, which --strict counts. */
	assert_has("warn  links        mlx5_2:1 is DOWN");
	assert_int_equal(run(&rig, "--strict"), 1);
	place_rig_destroy(&rig);
}

static void what_is_wrong_is_named_with_its_remedy(void **state)
{
	struct place_rig rig;

	healthy(&rig);
	place_rig_put(&rig, "class/net/eth7/mtu", "1500\n");
	place_rig_link(&rig, "module/nvidia_peermem", NULL);
	place_rig_put(&rig, "proc/sys/kernel/numa_balancing", "1\n");
	place_rig_put(&rig, "devices/system/clocksource/clocksource0/current_clocksource",
		      "hpet\n");
	place_rig_put(&rig, "devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
	place_rig_put(&rig, "kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
	place_rig_put(&rig, "class/infiniband/mlx5_0/ports/1/state", "2: INIT\n");
	assert_int_equal(run(&rig, ""), 1);
	assert_has("RDMA packets carry at most 1024 bytes\n");
	assert_has("to mend it: ip link set dev eth7 mtu 9000");
	assert_has("FAIL  gpu-memory ");
	assert_has("modprobe nvidia-peermem");
	assert_has("sysctl kernel.numa_balancing=0");
	assert_has("warn  clock        clock hpet");
	assert_has("cpupower frequency-set -g performance");
	assert_has("warn  huge-pages ");
	assert_has("warn  links        mlx5_0:1 is INIT");
	assert_has("opensm");
	/* dma-buf does in place of the module. */
	place_rig_add(
		&rig,
		"proc/driver/nvidia/version = NVRM version: NVIDIA UNIX Open Kernel Module\n");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("registered by dma-buf");
	place_rig_put(&rig, "proc/sys/kernel/osrelease", "5.11.0\n");
	assert_int_equal(run(&rig, ""), 1);
	place_rig_destroy(&rig);
}

/* Buffers that cannot grow, and segments that were sent again, in a recorded machine. */
static void a_network_that_loses_is_seen(void **state)
{
	struct place_rig rig;

	healthy(&rig);
	assert_int_equal(run(&rig, ""), 0);
	assert_has("skip  buffers ");
	assert_has("skip  congestion ");
	assert_has("skip  loss ");
	place_rig_add(&rig, "proc/sys/net/ipv4/tcp_rmem = 4096\t131072\t6291456\n"
			    "proc/net/snmp = nothing\n"
			    "proc/sys/net/ipv4/tcp_congestion_control = bbr\n"
			    "proc/sys/net/ipv4/tcp_wmem = 4096\t16384\t65536\n");
	place_rig_put(&rig, "proc/net/snmp",
		      "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
		      "Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs InErrs\n"
		      "Tcp: 1 -1 90000 200000 5000 0\n");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("warn  buffers      at most 6144 KiB to receive and 64 KiB to send");
	assert_has("net.ipv4.tcp_wmem=");
	assert_has("warn  congestion   bbr holds back");
	assert_has("tcp-congestion=cubic, or sysctl -w net.ipv4.tcp_congestion_control=cubic");
	assert_has("warn  loss         2.5 % of TCP's segments were sent again");
	assert_has("ip -s link");
	assert_int_equal(run(&rig, "--tcp-congestion=reno"), 0);
	assert_has("ok    congestion   reno (tcp-congestion; the system: bbr)");
	place_rig_put(&rig, "proc/sys/net/ipv4/tcp_available_congestion_control",
		      "renown cubic reno\n");
	assert_int_equal(run(&rig, "--tcp-congestion=reno"), 0);
	assert_has("ok    congestion   reno (");
	assert_int_equal(run(&rig, "--tcp-congestion=ren"), 1);
	assert_has("FAIL  congestion   tcp-congestion is ren, which the kernel has not");
	place_rig_put(&rig, "proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n");
	place_rig_put(&rig, "proc/sys/net/ipv4/tcp_congestion_control", "cubic\n");
	place_rig_put(&rig, "proc/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 200000 100\n");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("ok    buffers ");
	assert_has("ok    congestion   cubic");
	assert_has("ok    loss         0.05 % of");
	/* Too little to say, and a file without the columns. */
	place_rig_put(&rig, "proc/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 9999 9000\n");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("skip  loss ");
	place_rig_put(&rig, "proc/net/snmp", "Tcp: OutSegs\nTcp:");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("skip  loss ");
	place_rig_destroy(&rig);
}

static void gids_are_judged_by_version_and_reach(void **state)
{
	struct place_rig rig;

	healthy(&rig);
	place_rig_put(&rig, "class/infiniband/mlx5_1/ports/1/gid_attrs/types/1", "IB/RoCE v1\n");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("warn  gid          mlx5_1:1 has RoCE v2 only with a link-local GID (0)");
	place_rig_put(&rig, "class/infiniband/mlx5_1/ports/1/gid_attrs/types/0", "IB/RoCE v1\n");
	assert_int_equal(run(&rig, ""), 1);
	assert_has("FAIL  gid          mlx5_1:1 has no RoCE v2 GID");
	place_rig_destroy(&rig);
}

/* Configuration space of a bridge with an ACS capability behind another one, or of a device with device control. */
static void put_config(const struct place_rig *rig, const char *pci, unsigned int acs,
		       unsigned int control, size_t bytes)
{
	unsigned char config[4096] = { 0 };
	char path[256];
	FILE *f;

	config[0x34] = 0x40;
	config[0x40] = 0x05; /* MSI, then PCI Express */
	config[0x41] = 0x60;
	config[0x60] = 0x10;
	config[0x68] = (unsigned char)control;
	config[0x100] = 0x01; /* error reporting, then ACS at 0x148 */
	config[0x102] = 0x81;
	config[0x103] = 0x14;
	config[0x148] = 0x0d;
	config[0x14a] = 0x01;
	config[0x14e] = (unsigned char)acs;
	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/config", rig->dir, pci);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(config, 1, bytes, f), bytes);
	assert_int_equal(fclose(f), 0);
}

static void pci_registers_are_read(void **state)
{
	struct place_rig rig;

	healthy(&rig);
	assert_int_equal(run(&rig, ""), 0);
	assert_has(
		"skip  acs          this user cannot read the PCI registers of 16 of 16 bridges");
	assert_has("skip  relaxed      this user cannot read the PCI registers of mlx5_0");
	/* Of a switch with NIC and GPU, the port that leads to the NIC; the one above both does no harm. */
	put_config(&rig, "0000:16:00.0", 0x1d, 0, 4096);
	put_config(&rig, "0000:17:00.0", 0x1d, 0, 4096);
	put_config(&rig, "0000:17:01.0", 0x11, 0, 4096);
	put_config(&rig, "0000:18:00.0", 0, 0x10, 256);
	put_config(&rig, "0000:3a:00.0", 0, 0x00, 256);
	put_config(&rig, "0000:4b:00.0", 0, 0x10, 64);
	place_rig_add(&rig, "bus/pci/devices/0000:18:00.0/iommu_group/type = identity\n"
			    "bus/pci/devices/0000:3a:00.0/iommu_group/type = DMA-FQ\n");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("warn  acs          1 of 16 bridges ");
	assert_has("for b in 0000:17:00.0 ; do setpci");
	assert_has("ok    relaxed      mlx5_0 may ");
	assert_has("warn  relaxed      mlx5_3 may not ");
	assert_has("setpci -s 0000:3a:00.0 CAP_EXP+8.w=0010:0010");
	assert_has("skip  relaxed      this user cannot read the PCI registers of mlx5_4");
	assert_has("ok    iommu        mlx5_0: ");
	assert_has("warn  iommu        mlx5_3: ");
	assert_has("iommu=pt");
	assert_int_equal(run(&rig, "--verbs-relaxed-ordering=no"), 0);
	assert_has(
		"ok    relaxed      mlx5_3 may not use relaxed ordering, and verbs-relaxed-ordering is no");
	place_rig_destroy(&rig);
}

static void json_says_the_same(void **state)
{
	unsigned int failures = 0;
	struct place_rig rig;
	json_t *top, *one;
	size_t i;

	healthy(&rig);
	place_rig_link(&rig, "module/nvidia_peermem", NULL);
	assert_int_equal(run(&rig, "--json"), 1);
	top = json_loads(out, 0, NULL);
	assert_non_null(top);
	assert_string_equal(json_string_value(json_object_get(top, "schema")), "epf.doctor/1");
	assert_true(json_is_false(json_object_get(top, "healthy")));
	json_array_foreach(json_object_get(top, "findings"), i, one)
	{
		if (strcmp(json_string_value(json_object_get(one, "state")), "fail"))
			continue;
		failures++;
		assert_string_equal(json_string_value(json_object_get(one, "check")), "gpu-memory");
		assert_true(json_is_string(json_object_get(one, "fix")));
	}
	assert_int_equal(failures, 1);
	assert_int_equal(json_integer_value(json_object_get(top, "failures")), 1);
	json_decref(top);
	place_rig_destroy(&rig);
}

static void verbs_without_devices_is_a_failure(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "no_nic");
	assert_int_equal(run(&rig, ""), 0);
	assert_has("skip  devices ");
	assert_int_equal(run(&rig, "--nic=verbs"), 1);
	assert_has("FAIL  devices ");
	assert_has("lspci shows whether the NIC is seen");
	place_rig_destroy(&rig);
}

static void secrets_are_judged_and_never_shown(void **state)
{
	char path[160], options[256];
	struct place_rig rig;
	FILE *f;

	place_rig_init(&rig, "no_nic");
	snprintf(path, sizeof(path), "%s/secret", rig.dir);
	snprintf(options, sizeof(options), "--fabric-secret-file=%s", path);
	assert_int_equal(run(&rig, options), 1);
	assert_has("FAIL  secrets ");
	f = fopen(path, "w");
	assert_non_null(f);
	fputs("correct horse battery staple\n", f);
	fclose(f);
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(run(&rig, options), 0);
	assert_has("warn  secrets ");
	assert_has("chmod 600 ");
	assert_null(strstr(out, "horse"));
	assert_int_equal(chmod(path, 0600), 0);
	assert_int_equal(run(&rig, options), 0);
	assert_has("ok    secrets ");
	place_rig_destroy(&rig);
}

static void wrong_settings_are_the_only_finding(void **state)
{
	struct place_rig rig;

	place_rig_init(&rig, "no_nic");
	assert_int_equal(run(&rig, "--config=/nonexistent"), 1);
	assert_has("FAIL  settings ");
	assert_has("0 ok, 0 skipped, 0 warnings, 1 failures\n");
	assert_int_equal(run(&rig, "--nonsense"), 2);
	place_rig_destroy(&rig);
}

static void the_live_machine_can_be_examined(void **state)
{
	char line[1024];
	size_t n;
	FILE *f;

	snprintf(line, sizeof(line), "'%s' doctor --nic=emu 2>&1", program);
	f = popen(line, "r");
	assert_non_null(f);
	n = fread(out, 1, sizeof(out) - 1, f);
	out[n] = '\0';
	assert_true(WIFEXITED(pclose(f)));
	assert_has("nic emu opens: ordered");
	assert_has(" failures\n");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_machine_in_order_passes),
		cmocka_unit_test(what_is_wrong_is_named_with_its_remedy),
		cmocka_unit_test(a_network_that_loses_is_seen),
		cmocka_unit_test(gids_are_judged_by_version_and_reach),
		cmocka_unit_test(pci_registers_are_read),
		cmocka_unit_test(json_says_the_same),
		cmocka_unit_test(verbs_without_devices_is_a_failure),
		cmocka_unit_test(secrets_are_judged_and_never_shown),
		cmocka_unit_test(wrong_settings_are_the_only_finding),
		cmocka_unit_test(the_live_machine_can_be_examined),
	};

	if (argc != 5 || !place_rig_args(4, argv))
		return 2;
	program = argv[4];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
