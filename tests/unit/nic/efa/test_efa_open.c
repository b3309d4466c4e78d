/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and watching the EFA NIC over fake adapters (efa_rig.h): which device it takes and what it says of those it cannot, settings
 * out of range, every call that can fail, devices with less, events, counters, waking a sleeping core.
 */
#include "fabric/base/err.h"
#include "fabric/nic/efa/efa.h"
#include "fabric/nic/rails/rails.h"
#include "queues/epf_wakeup.h"
#include "tests/unit/nic/efa/efa_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct epf_efa_opts opts;

static int setup(void **state)
{
	epf_efa_opts_defaults(&opts);
	return efa_setup(state);
}

/* Opening fails with this reason, and the words name what to look at. */
static void refuse(int reason, const char *words)
{
	struct epf_nic *nic = NULL;

	assert_true(epf_efa_open(&fake_efa_lib, &opts, efa_clock, NULL, &nic) < 0);
	assert_null(nic);
	assert_int_equal(epf_last_reason(), reason);
	if (!strstr(epf_last_error(), words))
		fail_msg("'%s' does not say '%s'", epf_last_error(), words);
	assert_int_equal(fake_efa.open_things, 0);
}

static void test_choice(void **state)
{
	char *name = (char *)"efa1";
	struct epf_nic *nic = fake_efa_open(NULL);

	assert_string_equal(epf_efa_of(nic)->device, "efa0"); /* not other0, which comes first */
	nic->ops->close(nic);
	opts.devices = (struct epf_conf_list){ .item = &name, .count = 1 };
	nic = fake_efa_open(&opts);
	assert_string_equal(epf_efa_of(nic)->device, "efa1");
	nic->ops->close(nic);
	name = (char *)"other0";
	refuse(EPF_R_EFA_DEVICE, "nic-device");
	name = (char *)"efa1:2"; /* there is no second port */
	refuse(EPF_R_EFA_DEVICE, "nic-device");
}

static void test_unfit(void **state)
{
	fake_efa.port.state = IBV_PORT_DOWN;
	refuse(EPF_R_EFA_UNFIT, "efa1 is not active");
	fake_efa.port.state = IBV_PORT_ACTIVE;
	fake_efa.attr.device_caps = EPF_EFADV_CAP_RDMA_READ;
	refuse(EPF_R_EFA_UNFIT, "no RDMA write");
	fake_efa.attr.device_caps = 0;
	refuse(EPF_R_EFA_UNFIT, "no RDMA read");
	fake_efa.attr.device_caps = EPF_EFADV_CAP_RDMA_READ | EPF_EFADV_CAP_RDMA_WRITE;
	fake_efa.attr.max_rq_wr = 256;
	refuse(EPF_R_NIC_LIMIT, "lane-receives is 512, but a queue pair of efa0 holds 256");
	fake_efa.n_devices = 0;
	refuse(EPF_R_EFA_DEVICE, "none of this machine's 1 RDMA devices");
}

static void test_ranges(void **state)
{
	const struct epf_efa_opts good = opts;

	opts.service_level = 16;
	refuse(EPF_R_NIC_OPTION, "verbs-service-level is 16");
	opts = good;
	opts.rnr_retries = 8;
	refuse(EPF_R_NIC_OPTION, "verbs-rnr-retries");
	opts = good;
	opts.inline_bytes = 129;
	refuse(EPF_R_NIC_OPTION, "efa-inline");
	opts = good;
	opts.completions = 15;
	refuse(EPF_R_NIC_OPTION, "verbs-completions");
	opts = good;
	opts.receives = 2 << 20;
	refuse(EPF_R_NIC_OPTION, "verbs-receives");
	opts = good;
	opts.lane_receives = 0;
	refuse(EPF_R_NIC_OPTION, "lane-receives");
	opts = good;
	opts.flush_wait_ns = 0;
	refuse(EPF_R_NIC_OPTION, "efa-flush-wait");
}

/* Each call fails once: a reason, and nothing is left open. */
static void test_calls_fail(void **state)
{
	static const struct {
		const char *call;
		int err, reason, after;
	} rows[] = {
		{ "get_device_list", ENOSYS, EPF_R_EFA_DEVICE, 0 },
		{ "get_device_list", EACCES, EPF_R_EFA_DEVICE, 0 },
		{ "open_device", EACCES, EPF_R_EFA_DEVICE, 0 },
		{ "query_device", EIO, EPF_R_EFA_UNFIT, 0 },
		{ "query_port", EIO, EPF_R_EFA_UNFIT, 0 },
		{ "query_gid", EIO, EPF_R_EFA_UNFIT, 0 },
		{ "efa_query_device", EINVAL, EPF_R_EFA_DEVICE, 0 },
		{ "alloc_pd", EIO, EPF_R_VERBS_CALL, 0 },
		{ "create_comp_channel", EIO, EPF_R_VERBS_CALL, 0 },
		{ "efa_create_cq", EIO, EPF_R_VERBS_CALL, 0 },
		{ "efa_create_cq", ENOMEM, EPF_R_VERBS_PIN, 1 },
		{ "efa_create_cq", ENOMEM, EPF_R_VERBS_PIN, 2 },
		{ "efa_cq_of", EIO, EPF_R_VERBS_CALL, 0 },
		{ "reg_mr", ENOMEM, EPF_R_VERBS_PIN, 0 },
		{ "reg_mr", EIO, EPF_R_VERBS_CALL, 1 },
	};

	fake_efa.n_devices = 1;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		fake_efa.fail = rows[i].call;
		fake_efa.fail_errno = rows[i].err;
		fake_efa.fail_after = rows[i].after;
		refuse(rows[i].reason, "efa");
	}
}

/* The only adapter behind a NIC. */
static const char *device_of(const struct epf_nic *nic)
{
	assert_int_equal(epf_rails_of(nic)->n, 1);
	return epf_efa_of(epf_rails_of(nic)->child[0])->device;
}

/* Several as one: all that are named, or so many; one that is down keeps its place, unless all are. */
static void test_several(void **state)
{
	char *names[] = { (char *)"efa" };
	struct epf_nic_counters counters;
	struct epf_nic_caps caps;
	struct epf_nic *nic = NULL;

	fake_efa.n_devices = 3;
	fake_efa.down_device = 2;
	opts.devices = (struct epf_conf_list){ .item = names, .count = 1 };
	assert_int_equal(epf_efa_open_chosen(&fake_efa_lib, &opts, efa_clock, NULL, &nic), 0);
	nic->ops->describe(nic, &caps);
	assert_int_equal(caps.links, 3);
	assert_int_equal(caps.keys, 3);
	nic->ops->counters(nic, &counters);
	assert_int_equal(counters.link_up, 2);
	nic->ops->close(nic);
	opts.count = 2;
	assert_int_equal(epf_efa_open_chosen(&fake_efa_lib, &opts, efa_clock, NULL, &nic), 0);
	nic->ops->describe(nic, &caps);
	assert_int_equal(caps.links, 2);
	nic->ops->close(nic);
	/* One: the first that is up, without a name too. */
	fake_efa.down_device = 1;
	opts.count = 1;
	assert_int_equal(epf_efa_open_chosen(&fake_efa_lib, &opts, efa_clock, NULL, &nic), 0);
	assert_string_equal(device_of(nic), "efa1");
	nic->ops->close(nic);
	opts.count = 0;
	opts.devices.count = 0;
	assert_int_equal(epf_efa_open_chosen(&fake_efa_lib, &opts, efa_clock, NULL, &nic), 0);
	assert_string_equal(device_of(nic), "efa1");
	nic->ops->close(nic);
	opts.count = 4;
	assert_true(epf_efa_open_chosen(&fake_efa_lib, &opts, efa_clock, NULL, &nic) < 0);
	assert_non_null(strstr(epf_last_error(), "nic-count is 4, and only 3 adapters"));
	fake_efa.port.state = IBV_PORT_DOWN;
	opts.count = 2;
	assert_true(epf_efa_open_chosen(&fake_efa_lib, &opts, efa_clock, NULL, &nic) < 0);
	assert_non_null(strstr(epf_last_error(), "all 2 are down"));
	fake_efa.n_devices = 0;
	assert_true(epf_efa_open_chosen(&fake_efa_lib, &opts, efa_clock, NULL, &nic) < 0);
	assert_int_equal(epf_last_reason(), EPF_R_EFA_DEVICE);
}

/* An older provider, a device that cannot notify: the NIC does without. */
static void test_less(void **state)
{
	struct epf_nic_caps caps;
	struct epf_nic *nic;

	fake_efa.has_notify = 0;
	fake_efa.attr.inline_buf_size_ex = 0;
	fake_efa.attr.max_sq_wr = 200;
	fake_efa.attr.max_rdma_size = 65536;
	fake_efa.dev.max_qp = 256;
	fake_efa.dev.max_cqe = 1000;
	opts.inline_bytes = 128;
	nic = fake_efa_open(&opts);
	nic->ops->describe(nic, &caps);
	assert_int_equal(caps.ordered, 0);
	assert_int_equal(caps.lane_depth, 200);
	assert_int_equal(caps.max_msg_bytes, 65536);
	assert_int_equal(caps.max_lanes, 256);
	assert_int_equal(caps.receives, 1000);
	assert_int_equal(epf_efa_of(nic)->opts.inline_bytes, 32);
	assert_int_equal(nic->ops->arm(nic), -EOPNOTSUPP); /* the sleeper looks by itself */
	nic->ops->close(nic);
}

static void test_wake(void **state)
{
	uint64_t tokens[2];
	struct epf_wakeup *wakeup;
	struct epf_wr wr;

	efa_open_ends(NULL);
	efa_lane_pair(0, tokens);
	ends[1].nic->ops->post_receives(ends[1].nic, 4);
	wakeup = ends[1].nic->ops->wakeup(ends[1].nic);
	for (int round = 0; round < 3; round++) {
		epf_wakeup_arm(wakeup);
		assert_int_equal(ends[1].nic->ops->arm(ends[1].nic), 0);
		wr = efa_wr(EPF_WR_WRITE_IMM, 1, 8);
		efa_post(0, &wr);
		clock_ns += 5000;
		efa_reap(0); /* what travels moves when somebody polls */
		epf_wakeup_sleep(wakeup, UINT64_C(20000000000));
		assert_int_equal(wakeup->sleeping, 0);
		efa_reap(1);
		assert_int_equal(ends[1].n, (unsigned)round + 1);
	}
	fake_efa.fail = "req_notify_cq";
	fake_efa.fail_errno = EIO;
	assert_true(ends[0].nic->ops->arm(ends[0].nic) < 0);
	efa_close_ends();
}

static void event(enum ibv_event_type type, struct ibv_qp *qp)
{
	fake_efa.events[fake_efa.n_events++] =
		(struct ibv_async_event){ .event_type = type, .element.qp = qp };
	ends[0].nic->ops->watch(ends[0].nic);
}

static void test_events(void **state)
{
	struct epf_nic_counters counters;
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct epf_nic *a;
	uint64_t tokens[2];
	int n;

	efa_open_ends(NULL);
	a = ends[0].nic;
	efa_lane_pair(0, tokens);
	efa_lane_pair(1, tokens);
	fake_efa.down_device = 1;
	event(IBV_EVENT_PORT_ERR, NULL);
	a->ops->counters(a, &counters);
	assert_int_equal(counters.link_up, 0);
	efa_run(1000);
	assert_int_equal(efa_count(0, EPF_WC_LANE_DOWN, EPF_S_LINK_DOWN), 2);
	/* A lane can be made meanwhile, and connected when the port is back, with or without an event. */
	a->ops->lane_destroy(a, 0);
	tokens[0] = efa_create(0, 0);
	n = ends[1].nic->ops->address(ends[1].nic, addr, sizeof(addr));
	assert_int_equal(a->ops->lane_connect(a, 0, addr, (size_t)n, tokens[1]), -ENETDOWN);
	fake_efa.down_device = 0;
	assert_int_equal(a->ops->lane_connect(a, 0, addr, (size_t)n, tokens[1]), 0);
	event(IBV_EVENT_PORT_ACTIVE, NULL);
	a->ops->counters(a, &counters);
	assert_int_equal(counters.link_up, 1);
	event(IBV_EVENT_GID_CHANGE, NULL);
	a->ops->lane_destroy(a, 1);
	efa_run(1000);
	ends[0].n = 0;
	tokens[0] = efa_create(0, 1);
	efa_connect(0, 1, tokens[1]);
	event(IBV_EVENT_QP_FATAL, fake_efa_qp(efa_qpn(tokens[0])));
	efa_run(1000);
	assert_int_equal(ends[0].n, 1);
	assert_int_equal(ends[0].log[0].op, EPF_WC_LANE_DOWN);
	assert_int_equal(ends[0].log[0].lane, 1);
	assert_int_equal(a->ops->lane_link(a, 0), EPF_LANE_READY);
	event(IBV_EVENT_DEVICE_FATAL, NULL);
	efa_run(1000);
	assert_int_equal(ends[0].n, 2);
	assert_int_equal(ends[0].log[1].lane, 0);
	assert_true(a->ops->set_link(a, 0, 0) < 0);
	efa_close_ends();
}

/*
 * An adapter goes while arrivals that it has acknowledged lie in its queue. Their sender counts them as done and will not send them again, so they
 * are heard, and the lane is not drained before; a queue that cannot be polled has none.
 */
static void test_lost_with_arrivals(void **state)
{
	for (int round = 0; round < 4; round++) {
		int is_broken = round / 2;
		uint64_t tokens[2];
		struct epf_nic *b;
		struct epf_wr wr;

		opts.unsolicited = round % 2;
		efa_open_ends(&opts);
		b = ends[1].nic;
		efa_lane_pair(0, tokens);
		b->ops->post_receives(b, 8);
		memcpy(ends[0].mem, "message", 8);
		wr = efa_wr(EPF_WR_SEND, 1, 8);
		efa_post(0, &wr);
		wr = efa_wr(EPF_WR_WRITE_IMM, 2, 8);
		efa_post(0, &wr);
		for (int i = 0; i < 20; i++, clock_ns += 500)
			efa_reap(0);
		assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 2);
		fake_efa_pull(1);
		b->ops->watch(b);
		assert_int_equal(b->ops->is_removed(b), 1);
		b->ops->lane_fence(b, 0);
		assert_int_equal(b->ops->lane_drained(b, 0), 0);
		fake_efa.fail = is_broken ? "poll" : NULL;
		fake_efa.fail_errno = EIO;
		efa_reap(1);
		efa_reap(1);
		fake_efa.fail = NULL;
		assert_int_equal(efa_count(1, EPF_WC_RECV, EPF_S_OK), !is_broken);
		assert_int_equal(efa_count(1, EPF_WC_RECV_IMM, EPF_S_OK), !is_broken);
		assert_int_equal(ends[1].n, is_broken ? 0 : 2);
		assert_int_equal(ends[1].mem[0], 'm');
		assert_int_equal(b->ops->lane_drained(b, 0), 1);
		fake_efa.gone_device = 0;
		efa_close_ends();
	}
}

static void put_number(const char *dir, const char *name, const char *value)
{
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(value, f);
	fclose(f);
}

/* The driver's counters, from where it keeps them. */
static void test_counters(void **state)
{
	char root[64] = "/tmp/epf-efa-XXXXXX", dir[128], command[200];
	struct epf_nic_counters counters;

	assert_non_null(mkdtemp(root));
	snprintf(fake_efa.sysfs, sizeof(fake_efa.sysfs), "%s", root);
	snprintf(dir, sizeof(dir), "%s/ports/1/hw_counters", root);
	snprintf(command, sizeof(command), "mkdir -p %s", dir);
	assert_int_equal(system(command), 0);
	put_number(dir, "rx_drops", "5\n");
	put_number(dir, "retrans_pkts", "100\n");
	efa_open_ends(NULL);
	put_number(dir, "rx_drops", "7\n");
	put_number(dir, "retrans_pkts", "130\n");
	ends[0].nic->ops->watch(ends[0].nic);
	ends[0].nic->ops->counters(ends[0].nic, &counters);
	assert_int_equal(counters.packets_dropped, 2);
	assert_int_equal(counters.retransmits, 30);
	assert_int_equal(counters.errors, 0);
	efa_close_ends();
	snprintf(command, sizeof(command), "rm -r %s", root);
	assert_int_equal(system(command), 0);
}

/* Settings reach the NIC by their names; a machine without the library or the device says so in words. */
static void test_settings(void **state)
{
	struct epf_nic *nic = NULL;
	struct epf_conf conf;

	assert_int_equal(epf_conf_init(&conf), 0);
	epf_efa_opts_from_conf(&opts, &conf);
	assert_int_equal(opts.inline_bytes, 32);
	assert_int_equal(opts.flush_wait_ns, 200000000);
	assert_int_equal(opts.unsolicited, 1);
	assert_int_equal(epf_conf_set(&conf, "efa-inline", "80", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "efa-unsolicited", "no", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "efa-flush-wait", "1s", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "verbs-completions", "4000", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "verbs-receives", "5000", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "lane-receives", "100", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "verbs-service-level", "2", EPF_CONF_PROGRAM), 0);
	assert_int_equal(epf_conf_set(&conf, "verbs-rnr-retries", "7", EPF_CONF_PROGRAM), 0);
	epf_efa_opts_from_conf(&opts, &conf);
	assert_int_equal(opts.inline_bytes, 80);
	assert_int_equal(opts.unsolicited, 0);
	assert_int_equal(opts.flush_wait_ns, 1000000000);
	assert_int_equal(opts.completions, 4000);
	assert_int_equal(opts.receives, 5000);
	assert_int_equal(opts.lane_receives, 100);
	assert_int_equal(opts.service_level, 2);
	assert_int_equal(opts.rnr_retries, 7);
	assert_int_equal(epf_conf_set(&conf, "nic-device", "=no-such-device", EPF_CONF_PROGRAM), 0);
	assert_true(epf_nic_find("efa")->open(&conf, efa_clock, NULL, &nic) < 0);
	assert_non_null(strstr(epf_last_error(), "efa:"));
	epf_conf_destroy(&conf);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, efa_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_choice),
		CASE(test_unfit),
		CASE(test_ranges),
		CASE(test_calls_fail),
		CASE(test_several),
		CASE(test_less),
		CASE(test_wake),
		CASE(test_events),
		CASE(test_counters),
		CASE(test_settings),
		CASE(test_lost_with_arrivals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
