/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank discovery and addresses: one row for each launcher and for each way it can go wrong, over
 * an environment made of literals. Also the interface choice and the reading of host:port.
 */
#include "bootstrap/net.h"
#include "bootstrap/rank_env.h"
#include "bootstrap/slurm.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct row {
	const char *name;
	const char *env[24]; /* NAME=value */
	int rc;
	const char *error; /* part of the text */
	uint32_t rank, world, local_rank, local_world, node_id;
	const char *rendezvous, *job, *launcher, *rank_origin, *port_origin;
};

#define U EPF_RANK_UNKNOWN

/* clang-format off */
static const struct row rows[] = {
	{ .name = "torchrun",
	  .env = { "RANK=9", "WORLD_SIZE=16", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=8", "GROUP_RANK=1",
		   "MASTER_ADDR=10.0.0.7", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=run1" },
	  .rank = 9, .world = 16, .local_rank = 1, .local_world = 8, .node_id = 1,
	  .rendezvous = "10.0.0.7:29637", .job = "run1", .launcher = "torchrun",
	  .rank_origin = "RANK", .port_origin = "MASTER_PORT + 137" },
	{ .name = "torchrun over IPv6, own offset",
	  .env = { "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=fd00::1", "MASTER_PORT=100", "EPF_PORT_OFFSET=7" },
	  .rank = 0, .world = 2, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "[fd00::1]:107", .job = "", .launcher = "torchrun" },
	{ .name = "torchrun with a port at the end",
	  .env = { "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=65500" },
	  .rank = 0, .world = 2, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "h:65363", .job = "", .port_origin = "MASTER_PORT - 137" },
	{ .name = "torchrun inside a Slurm task",
	  .env = { "RANK=3", "WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=1000",
		   "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_ID=5" },
	  .rank = 3, .world = 4, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "h:1137", .job = "slurm-5", .launcher = "torchrun" },
	{ .name = "ours before torchrun's",
	  .env = { "EPF_RANK=1", "EPF_WORLD_SIZE=3", "EPF_RENDEZVOUS=[::1]:4000", "EPF_JOB=mine",
		   "RANK=9", "WORLD_SIZE=16", "MASTER_ADDR=10.0.0.7", "MASTER_PORT=29500" },
	  .rank = 1, .world = 3, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "[::1]:4000", .job = "mine", .rank_origin = "EPF_RANK",
	  .port_origin = "EPF_RENDEZVOUS" },
	{ .name = "one of ours over torchrun's; auto and empty are not set",
	  .env = { "EPF_RANK=auto", "EPF_WORLD_SIZE=", "EPF_PORT=77", "RANK=1", "WORLD_SIZE=2",
		   "MASTER_ADDR=h", "MASTER_PORT=29500" },
	  .rank = 1, .world = 2, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "h:77", .job = "", .launcher = "torchrun", .port_origin = "EPF_PORT" },
	{ .name = "srun on two nodes",
	  .env = { "SLURM_PROCID=5", "SLURM_NTASKS=7", "SLURM_LOCALID=1", "SLURM_NODEID=1",
		   "SLURM_STEP_NODELIST=gpu[03-04,9]", "SLURM_JOB_NODELIST=other", "SLURM_JOB_ID=4711",
		   "SLURM_STEP_ID=2", "SLURM_STEP_TASKS_PER_NODE=4,3", "SLURMD_NODENAME=gpu04" },
	  .rank = 5, .world = 7, .local_rank = 1, .local_world = 3, .node_id = 1,
	  .rendezvous = "gpu03:31192", .job = "slurm-4711.2", .launcher = "slurm",
	  .rank_origin = "SLURM_PROCID", .port_origin = "made from slurm-4711.2" },
	{ .name = "srun on one node needs no network",
	  .env = { "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_NODEID=0", "SLURM_TASKS_PER_NODE=2",
		   "SLURM_JOB_NODELIST=gpu03", "SLURM_JOB_ID=4711", "SLURM_STEP_ID=2" },
	  .rank = 1, .world = 2, .local_rank = U, .local_world = 2, .node_id = 0,
	  .rendezvous = "127.0.0.1:31192", .job = "slurm-4711.2", .launcher = "slurm" },
	{ .name = "srun with the user's MASTER_ADDR",
	  .env = { "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=gpu03", "SLURM_JOB_ID=1",
		   "SLURM_STEP_ID=0", "MASTER_ADDR=head", "MASTER_PORT=5000" },
	  .rank = 1, .world = 2, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "head:5137", .job = "slurm-1.0", .launcher = "slurm" },
	{ .name = "srun --mpi=pmix: both agree",
	  .env = { "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=a[1-2]", "SLURM_JOB_ID=1",
		   "SLURM_STEP_ID=0", "PMIX_RANK=1", "PMIX_NAMESPACE=ns" },
	  .rank = 1, .world = 2, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "a1:28684", .job = "slurm-1.0", .launcher = "slurm" },
	{ .name = "mpirun inside a batch script: Slurm says rank 0 to everybody",
	  .env = { "SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=a[1-2]", "SLURM_JOB_ID=1",
		   "PMIX_RANK=3", "PMIX_NAMESPACE=prte-77@1", "OMPI_COMM_WORLD_RANK=3",
		   "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
		   "OMPI_COMM_WORLD_LOCAL_SIZE=2" },
	  .rank = 3, .world = 4, .local_rank = 1, .local_world = 2, .node_id = U,
	  .rendezvous = "a1:21202", .job = "prte-77@1", .launcher = "pmix",
	  .rank_origin = "PMIX_RANK" },
	{ .name = "Open MPI on one node",
	  .env = { "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=3",
		   "OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_MCA_ess_base_jobid=123" },
	  .rank = 3, .world = 4, .local_rank = 3, .local_world = 4, .node_id = U,
	  .rendezvous = "127.0.0.1:26011", .job = "123", .launcher = "ompi",
	  .rank_origin = "OMPI_COMM_WORLD_RANK" },
	{ .name = "Open MPI 4 on two hosts, this one not mpirun's",
	  .env = { "PMIX_RANK=2", "PMIX_NAMESPACE=4228448257", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4",
		   "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
		   "OMPI_MCA_orte_hnp_uri=4228448256.0;tcp://10.77.1.1,10.78.1.1:48183;tcp6://[fd77:1::1]:43979",
		   "OMPI_MCA_orte_local_daemon_uri=4228448256.1;tcp://10.77.1.2:42659" },
	  .rank = 2, .world = 4, .local_rank = 0, .local_world = 2, .node_id = U,
	  .rendezvous = "10.77.1.1:20407", .job = "4228448257", .launcher = "pmix" },
	{ .name = "Open MPI 4 on two hosts, rank 0 beside mpirun",
	  .env = { "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "PMIX_NAMESPACE=4228448257",
		   "OMPI_MCA_orte_hnp_uri=4228448256.0;tcp://10.77.1.1:48183",
		   "OMPI_MCA_orte_local_daemon_uri=4228448256.0;tcp://10.77.1.1:48183" },
	  .rank = 0, .world = 4, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "10.77.1.1:20407", .job = "4228448257", .launcher = "ompi" },
	{ .name = "MASTER_ADDR before mpirun's own host",
	  .env = { "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "PMIX_NAMESPACE=4228448257", "MASTER_ADDR=beta",
		   "OMPI_MCA_orte_hnp_uri=4228448256.0;tcp://10.77.1.1:48183",
		   "OMPI_MCA_orte_local_daemon_uri=4228448256.1;tcp://10.77.1.2:42659" },
	  .rank = 0, .world = 4, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "beta:20407", .job = "4228448257", .launcher = "ompi" },
	{ .name = "rank 0 on another host than mpirun",
	  .env = { "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "PMIX_NAMESPACE=4228448257",
		   "OMPI_MCA_orte_hnp_uri=4228448256.0;tcp://10.77.1.1:48183",
		   "OMPI_MCA_orte_local_daemon_uri=4228448256.1;tcp://10.77.1.2:42659" },
	  .rc = -ENOENT, .error = "rank 0 runs on another host than mpirun" },
	{ .name = "mpirun that has IPv6 alone",
	  .env = { "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "PMIX_NAMESPACE=4228448257",
		   "OMPI_MCA_orte_hnp_uri=4228448256.0;tcp6://[fd77:1::1]:43979" },
	  .rc = -ENOENT, .error = "names the host of the rendezvous (mpirun -x MASTER_ADDR=HOST" },
	{ .name = "PMIx with a size from PMI",
	  .env = { "PMIX_RANK=0", "PMI_SIZE=2", "PMIX_NAMESPACE=n", "EPF_RENDEZVOUS=h:1" },
	  .rank = 0, .world = 2, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "h:1", .job = "n", .launcher = "pmix" },
	{ .name = "a world of one",
	  .env = { "EPF_RANK=0", "EPF_WORLD_SIZE=1", "EPF_PORT=9" },
	  .rank = 0, .world = 1, .local_rank = U, .local_world = U, .node_id = U,
	  .rendezvous = "127.0.0.1:9", .job = "" },

	{ .name = "nothing", .env = { "HOME=/" }, .rc = -ENOENT, .error = "no variable names a rank" },
	{ .name = "no world", .env = { "RANK=1" }, .rc = -ENOENT,
	  .error = "RANK is set, but the world size" },
	{ .name = "our rank alone", .env = { "EPF_RANK=1" }, .rc = -ENOENT,
	  .error = "EPF_RANK is set, but no variable names the world size" },
	{ .name = "our world alone", .env = { "EPF_WORLD_SIZE=1" }, .rc = -ENOENT,
	  .error = "EPF_WORLD_SIZE is set, but the rank" },
	{ .name = "no address", .env = { "PMIX_RANK=0", "PMI_SIZE=2", "PMIX_NAMESPACE=n" },
	  .rc = -ENOENT, .error = "names the host of the rendezvous" },
	{ .name = "no port", .env = { "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h" }, .rc = -ENOENT,
	  .error = "names the port of the rendezvous" },
	{ .name = "rank too large", .env = { "RANK=2", "WORLD_SIZE=2" }, .rc = -EINVAL,
	  .error = "RANK is 2, but WORLD_SIZE is 2" },
	{ .name = "no number", .env = { "RANK=one", "WORLD_SIZE=2" }, .rc = -EINVAL,
	  .error = "RANK is 'one'" },
	{ .name = "negative", .env = { "RANK=-1", "WORLD_SIZE=2" }, .rc = -EINVAL, .error = "RANK is '-1'" },
	{ .name = "huge", .env = { "RANK=0", "WORLD_SIZE=4294967295" }, .rc = -EINVAL,
	  .error = "WORLD_SIZE is 4294967295, which is above" },
	{ .name = "world of none", .env = { "RANK=0", "WORLD_SIZE=0" }, .rc = -EINVAL,
	  .error = "WORLD_SIZE is 0" },
	{ .name = "local rank too large",
	  .env = { "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2" }, .rc = -EINVAL,
	  .error = "LOCAL_RANK is 2" },
	{ .name = "bad port", .env = { "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=70000" },
	  .rc = -EINVAL, .error = "MASTER_PORT is 70000" },
	{ .name = "bad list",
	  .env = { "SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=a[1-", "SLURM_JOB_ID=1" },
	  .rc = -EINVAL, .error = "SLURM_JOB_NODELIST is 'a[1-'" },
	{ .name = "bad rendezvous", .env = { "EPF_RANK=0", "EPF_WORLD_SIZE=2", "EPF_RENDEZVOUS=::1:5" },
	  .rc = -EADDRNOTAVAIL, .error = "IPv6 without brackets" },
};

/* clang-format on */

static const char *look_up(const char *name, void *arg)
{
	const struct row *row = arg;
	size_t n = strlen(name);

	for (size_t i = 0; i < sizeof(row->env) / sizeof(row->env[0]) && row->env[i]; i++)
		if (!strncmp(row->env[i], name, n) && row->env[i][n] == '=')
			return row->env[i] + n + 1;
	return NULL;
}

static void check_found(const struct row *r, const struct epf_rank_info *i)
{
	assert_int_equal(i->rank, r->rank);
	assert_int_equal(i->world, r->world);
	assert_int_equal(i->local_rank, r->local_rank);
	assert_int_equal(i->local_world, r->local_world);
	assert_int_equal(i->node_id, r->node_id);
	assert_string_equal(i->rendezvous, r->rendezvous);
	assert_string_equal(i->job, r->job);
	if (r->launcher)
		assert_string_equal(i->launcher, r->launcher);
	if (r->rank_origin)
		assert_string_equal(i->origin[EPF_RANK_F_RANK], r->rank_origin);
	if (r->port_origin)
		assert_string_equal(i->origin[EPF_RANK_F_PORT], r->port_origin);
	/* What is known says where from, what is not known says nothing. */
	assert_int_equal(i->local_rank == U, !i->origin[EPF_RANK_F_LOCAL_RANK][0]);
	assert_int_equal(i->local_world == U, !i->origin[EPF_RANK_F_LOCAL_WORLD][0]);
	assert_int_equal(!i->job[0], !i->origin[EPF_RANK_F_JOB][0]);
	assert_true(i->origin[EPF_RANK_F_HOST][0] && i->origin[EPF_RANK_F_PORT][0]);
}

static void every_launcher_is_found(void **state)
{
	for (size_t n = 0; n < sizeof(rows) / sizeof(rows[0]); n++) {
		struct epf_rank_info info;
		int rc;

		memset(&info, 0x5a, sizeof(info));
		rc = epf_rank_discover_from(look_up, (void *)&rows[n], &info);
		if (rc != rows[n].rc)
			print_error("row '%s': %d %s\n", rows[n].name, rc, epf_last_error());
		assert_int_equal(rc, rows[n].rc);
		if (!rc)
			print_message("row '%s': %s\n", rows[n].name, info.rendezvous);
		if (!rc)
			check_found(&rows[n], &info);
		else if (!strstr(epf_last_error(), rows[n].error))
			fail_msg("row '%s': %s", rows[n].name, epf_last_error());
		else
			assert_int_equal(info.rank, 0x5a5a5a5a);
	}
}

static void doubts_are_noted(void **state)
{
	static const struct row batch = { .env = { "SLURM_PROCID=0", "SLURM_NTASKS=2",
						   "SLURM_JOB_NODELIST=a", "SLURM_JOB_ID=1" } };
	struct epf_rank_info info;

	assert_int_equal(epf_rank_discover_from(look_up, (void *)&batch, &info), 0);
	assert_non_null(strstr(info.note, "SLURM_STEP_ID"));
}

static void slurm_host_lists(void **state)
{
	static const char *const good[][2] = {
		{ "gpu07", "gpu07" }, { "gpu[07-09,12],cpu1", "gpu07" },
		{ "a,b[1-2]", "a" },  { "r[1-2]n[03,05]-ib", "r1n03-ib" },
		{ "n[5]", "n5" },     { "host.domain.org", "host.domain.org" },
	};
	static const char *const bad[] = { "",       ",a",  "n[",  "n[1",    "n[]",   "n[-1]",
					   "n[a-b]", "n1]", "a b", "n[1;2]", "n[[1]]" };
	char out[64], tiny[4], longer[600];

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(epf_slurm_first_host(good[i][0], out, sizeof(out)), 0);
		assert_string_equal(out, good[i][1]);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(epf_slurm_first_host(bad[i], out, sizeof(out)), -EINVAL);
	assert_int_equal(epf_slurm_first_host("node", tiny, sizeof(tiny)), -EINVAL);
	memset(longer, '7', sizeof(longer));
	longer[599] = 0;
	assert_int_equal(epf_slurm_first_host(longer, out, sizeof(out)), -EINVAL);
	longer[0] = '[';
	longer[598] = ']';
	assert_int_equal(epf_slurm_first_host(longer, out, sizeof(out)), -EINVAL);
}

static void slurm_task_lists(void **state)
{
	assert_int_equal(epf_slurm_tasks_on("4(x2),3", 0), 4);
	assert_int_equal(epf_slurm_tasks_on("4(x2),3", 1), 4);
	assert_int_equal(epf_slurm_tasks_on("4(x2),3", 2), 3);
	assert_int_equal(epf_slurm_tasks_on("4(x2),3", 3), U);
	assert_int_equal(epf_slurm_tasks_on("8", 0), 8);
	assert_int_equal(epf_slurm_tasks_on("", 0), U);
	assert_int_equal(epf_slurm_tasks_on("4(x", 0), U);
	assert_int_equal(epf_slurm_tasks_on("4(x2", 0), U);
	assert_int_equal(epf_slurm_tasks_on("4x2", 0), U);
	assert_int_equal(epf_slurm_tasks_on("99999999999999999999", 0), U);
}

static void host_and_port(void **state)
{
	static const struct {
		const char *text, *host;
		int port;
	} list[] = {
		{ "10.0.0.1:29500", "10.0.0.1", 29500 },
		{ "node-1.lan:0", "node-1.lan", 0 },
		{ "[fe80::1%eth0]:65535", "fe80::1%eth0", 65535 },
		{ "", NULL, 0 },
		{ "host", NULL, 0 },
		{ ":1", NULL, 0 },
		{ "[]:1", NULL, 0 },
		{ "host:", NULL, 0 },
		{ "host:65536", NULL, 0 },
		{ "host:123456", NULL, 0 },
		{ "host:1x", NULL, 0 },
		{ "host:-1", NULL, 0 },
		{ "fe80::1:80", NULL, 0 },
		{ "[::1]80", NULL, 0 },
		{ "[::1:80", NULL, 0 },
	};

	char host[EPF_NET_HOST_MAX], text[400];
	uint16_t port;

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		int rc = epf_net_split(list[i].text, host, &port);

		assert_int_equal(rc, list[i].host ? 0 : -EADDRNOTAVAIL);
		if (rc)
			continue;
		assert_string_equal(host, list[i].host);
		assert_int_equal(port, list[i].port);
	}
	memset(text, 'h', sizeof(text));
	strcpy(text + 256, ":1");
	assert_int_equal(epf_net_split(text, host, &port), -EADDRNOTAVAIL);
	strcpy(text + 255, ":1");
	assert_int_equal(epf_net_split(text, host, &port), 0);
	assert_int_equal(epf_net_split(NULL, host, &port), -EADDRNOTAVAIL);
}

static void interface_choices(void **state)
{
	assert_true(epf_net_if_match(NULL, "eth0"));
	assert_true(epf_net_if_match("", "eth0"));
	assert_true(epf_net_if_match("eth", "eth0"));
	assert_true(epf_net_if_match("ib,eth", "eth0"));
	assert_false(epf_net_if_match("ib,en", "eth0"));
	assert_false(epf_net_if_match("=eth", "eth0"));
	assert_true(epf_net_if_match("=ib0,eth0", "eth0"));
	assert_false(epf_net_if_match("^eth", "eth0"));
	assert_true(epf_net_if_match("^docker,lo", "eth0"));
	assert_false(epf_net_if_match("^docker,lo", "lo"));
	assert_true(epf_net_if_match("^=eth", "eth0"));
	assert_false(epf_net_if_match("^=eth0", "eth0"));
	assert_false(epf_net_if_match(",", "eth0"));
}

static void loopback_and_printing(void **state)
{
	static const struct {
		const char *host;
		bool loopback;
		const char *printed;
	} list[] = {
		{ "127.0.0.1", true, "127.0.0.1:80" },
		{ "127.9.9.9", true, "127.9.9.9:80" },
		{ "10.0.0.1", false, "10.0.0.1:80" },
		{ "::1", true, "[::1]:80" },
		{ "fd00::2", false, "[fd00::2]:80" },
		{ "::ffff:127.0.0.1", true, "127.0.0.1:80" },
		{ "::ffff:10.0.0.1", false, "10.0.0.1:80" },
	};
	struct epf_net_addr at[EPF_NET_ADDRS_MAX], any;
	char text[80];
	size_t count;

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		assert_int_equal(epf_net_resolve(list[i].host, 80, at, &count), 0);
		assert_int_equal(epf_net_is_loopback(&at[0]), list[i].loopback);
		epf_net_print(&at[0], text, sizeof(text));
		assert_string_equal(text, list[i].printed);
		assert_true(epf_net_is_literal(list[i].host));
	}
	assert_false(epf_net_is_literal("localhost"));
	assert_int_equal(epf_net_resolve("no such host", 1, at, &count), -EADDRNOTAVAIL);
	any = epf_net_any(AF_INET6, 5);
	assert_int_equal(epf_net_port(&any), 5);
	assert_false(epf_net_is_loopback(&any));
}

static void some_interface_is_usable(void **state)
{
	struct epf_net_addr at;
	char name[IF_NAMESIZE];

	assert_int_equal(epf_net_pick("=lo", AF_INET, &at, name), 0);
	assert_string_equal(name, "lo");
	assert_true(epf_net_is_loopback(&at));
	assert_int_equal(epf_net_pick(NULL, AF_UNSPEC, &at, name), 0);
	assert_int_equal(epf_net_pick("=no-such", AF_INET6, &at, name), -ENODEV);
	assert_non_null(strstr(epf_last_error(), "no-such"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_launcher_is_found),
		cmocka_unit_test(doubts_are_noted),
		cmocka_unit_test(slurm_host_lists),
		cmocka_unit_test(slurm_task_lists),
		cmocka_unit_test(host_and_port),
		cmocka_unit_test(interface_choices),
		cmocka_unit_test(loopback_and_printing),
		cmocka_unit_test(some_interface_is_usable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
