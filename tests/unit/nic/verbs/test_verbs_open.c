/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the verbs NIC over a scripted provider (fake_verbs.h): settings, devices that cannot be used, every call that may
 * fail, regions, asynchronous events, and the waker of a core that sleeps.
 */
#include "tests/unit/nic/verbs/fake_verbs.h"

#include "fabric/base/err.h"
#include "fabric/nic/verbs/verbs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int setup(void **state)
{
	fake_reset();
	return 0;
}

/* Whatever happened, nothing is left open. */
static int teardown(void **state)
{
	assert_int_equal(fake.open_things, 0);
	return 0;
}

static uint64_t clock_ns(void *arg)
{
	return 1;
}

static int try_open(const struct epf_verbs_opts *opts, struct epf_nic **nic)
{
	struct epf_verbs_opts defaults;

	epf_verbs_opts_defaults(&defaults);
	epf_clear_error();
	return epf_verbs_open(&fake_lib, opts ? opts : &defaults, clock_ns, NULL, nic);
}

static void expect(enum epf_reason reason, const char *words)
{
	struct epf_nic *nic = (void *)1;
	struct epf_verbs_opts opts;

	epf_verbs_opts_defaults(&opts);
	assert_true(try_open(&opts, &nic) < 0);
	assert_ptr_equal(nic, (void *)1); /* outputs only on success */
	assert_int_equal(epf_last_reason(), reason);
	if (!strstr(epf_last_error(), words))
		fail_msg("'%s' does not say '%s'", epf_last_error(), words);
	assert_int_equal(fake.open_things, 0);
}

static void test_defaults_agree(void **state)
{
	struct epf_verbs_opts a, b;
	struct epf_conf conf;

	assert_int_equal(epf_conf_init(&conf), 0);
	epf_verbs_opts_defaults(&a);
	epf_verbs_opts_from_conf(&b, &conf);
	assert_int_equal(b.devices.count, 0);
	b.devices = a.devices;
	assert_memory_equal(&a, &b, sizeof(a));
	epf_conf_destroy(&conf);
}

/* Of a job that weighs more than others, if it is set. */
static void test_priority_class(void **state)
{
	static const struct {
		const char *priority, *weight;
		uint32_t want;
	} row[] = {
		{ "auto", "1", 32 }, { "auto", "255", 32 }, { "104", "1", 32 },
		{ "104", "2", 104 }, { "0", "2", 0 },
	};

	for (unsigned i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct epf_verbs_opts opts;
		struct epf_conf conf;

		assert_int_equal(epf_conf_init(&conf), 0);
		assert_int_equal(epf_conf_set(&conf, "verbs-traffic-class", "32", EPF_CONF_PROGRAM),
				 0);
		assert_int_equal(epf_conf_set(&conf, "verbs-priority-class", row[i].priority,
					      EPF_CONF_PROGRAM),
				 0);
		assert_int_equal(epf_conf_set(&conf, "job-weight", row[i].weight, EPF_CONF_PROGRAM),
				 0);
		epf_verbs_opts_from_conf(&opts, &conf);
		assert_int_equal(opts.traffic_class, row[i].want);
		epf_conf_destroy(&conf);
	}
}

static void test_settings(void **state)
{
	static const struct {
		size_t at;
		uint32_t value;
		const char *name;
	} bad[] = {

#define AT(field) offsetof(struct epf_verbs_opts, field)
		{ AT(service_level), 16, "verbs-service-level" },
		{ AT(traffic_class), 256, "verbs-traffic-class" },
		{ AT(timeout), 0, "verbs-timeout" },
		{ AT(timeout), 32, "verbs-timeout" },
		{ AT(retries), 8, "verbs-retries" },
		{ AT(rnr_retries), 8, "verbs-rnr-retries" },
		{ AT(signal_interval), 0, "verbs-signal-interval" },
		{ AT(completions), 1, "verbs-completions" },
		{ AT(receives), 1, "verbs-receives" },
		{ AT(mtu), 1500, "verbs-mtu" },
		{ AT(mtu), 8192, "verbs-mtu" },
	};
	struct epf_verbs_opts opts;
	struct epf_nic *nic;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		epf_verbs_opts_defaults(&opts);
		memcpy((char *)&opts + bad[i].at, &bad[i].value, sizeof(uint32_t));
		assert_int_equal(try_open(&opts, &nic), -EINVAL);
		assert_int_equal(epf_last_reason(), EPF_R_NIC_OPTION);
		assert_non_null(strstr(epf_last_error(), bad[i].name));
	}
}

static void test_devices(void **state)
{
	struct epf_verbs_opts opts;
	char *name = "fake1";
	struct epf_nic *nic;

	fake.n_devices = 0;
	expect(EPF_R_VERBS_DEVICE, "no RDMA device");
	fake_reset();
	fake.port[1].state = IBV_PORT_DOWN;
	expect(EPF_R_VERBS_DEVICE, "fake0:");
	fake_reset();
	fake.port[1].state = IBV_PORT_INIT;
	fake.port[2].state = IBV_PORT_INIT;
	expect(EPF_R_VERBS_DEVICE, "subnet manager");
	fake_reset();
	epf_verbs_opts_defaults(&opts);
	opts.devices = (struct epf_conf_list){ .item = &name, .count = 1 };
	assert_int_equal(try_open(&opts, &nic), -ENODEV);
	assert_non_null(strstr(epf_last_error(), "none of 1 devices fits"));
	name = "fake0:2";
	fake_reset();
	assert_int_equal(try_open(&opts, &nic), -ENODEV);
	assert_non_null(strstr(epf_last_error(), "fake0:2 is down"));
	name = "fake0:x";
	assert_int_equal(try_open(&opts, &nic), -EINVAL);
	assert_non_null(strstr(epf_last_error(), "nic-device"));
	name = "^fake0";
	assert_int_equal(try_open(&opts, &nic), -ENODEV);
	name = "^=fake";
	assert_int_equal(try_open(&opts, &nic), 0);
	nic->ops->close(nic);
	name = "fake0:2";
	/* The second port when it is up; its GIDs are its own. */
	fake_reset();
	fake.port[2].state = IBV_PORT_ACTIVE;
	assert_int_equal(try_open(&opts, &nic), -EADDRNOTAVAIL);
	assert_int_equal(epf_last_reason(), EPF_R_VERBS_GID);
	fake_reset();
	fake.port[2].state = IBV_PORT_ACTIVE;
	fake.gids[0].port_num = 2;
	assert_int_equal(try_open(&opts, &nic), 0);
	nic->ops->close(nic);
}

static void test_calls_that_fail(void **state)
{
	static const struct {
		const char *call;
		int err, after;
		enum epf_reason reason;
		const char *words;
	} calls[] = {
		{ "get_device_list", ENOSYS, 0, EPF_R_VERBS_DEVICE, "ib_uverbs" },
		{ "get_device_list", ENOMEM, 0, EPF_R_VERBS_DEVICE, "ibv_get_device_list" },
		{ "open_device", EACCES, 0, EPF_R_VERBS_DEVICE, "Permission denied" },
		{ "query_device", EIO, 0, EPF_R_VERBS_DEVICE, "cannot be asked" },
		{ "query_gid_table", EIO, 0, EPF_R_VERBS_GID, "Input/output" },
		{ "alloc_pd", ENOMEM, 0, EPF_R_VERBS_PIN, "ibv_alloc_pd" },
		{ "create_comp_channel", EMFILE, 0, EPF_R_FILES, "channel" },
		{ "create_cq", ENOMEM, 0, EPF_R_VERBS_PIN, "verbs-completions" },
		{ "create_cq", EINVAL, 1, EPF_R_VERBS_CALL, "verbs-receives" },
		{ "create_srq", EINVAL, 0, EPF_R_VERBS_CALL, "verbs-receives" },
		{ "reg_mr", ENOMEM, 0, EPF_R_VERBS_PIN, "ulimit -l" },
	};

	for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		fake_reset();
		fake.fail = calls[i].call;
		fake.fail_errno = calls[i].err;
		fake.fail_after = calls[i].after;
		expect(calls[i].reason, calls[i].words);
	}
}

static void test_limits(void **state)
{
	struct epf_verbs_opts opts;
	struct epf_nic_caps caps;
	struct epf_nic *nic;

	nic = fake_open(NULL);
	nic->ops->describe(nic, &caps);
	assert_string_equal(caps.name, "verbs");
	assert_int_equal(caps.ordered, 1);
	assert_int_equal(caps.max_lanes, 1000);
	assert_int_equal(caps.lane_depth, 4096);
	assert_int_equal(caps.receives, 4000); /* max_srq_wr, below the setting */
	assert_int_equal(caps.max_msg_bytes, 1 << 20);
	nic->ops->close(nic);
	fake_reset();
	fake.attr.max_cqe = 300;
	fake.port[1].max_msg_sz = 65536;
	epf_verbs_opts_defaults(&opts);
	opts.ordered = 0;
	nic = fake_open(&opts);
	nic->ops->describe(nic, &caps);
	assert_int_equal(caps.ordered, 0);
	assert_int_equal(caps.lane_depth, 300);
	assert_int_equal(caps.receives, 300);
	assert_int_equal(caps.max_msg_bytes, 65536);
	nic->ops->close(nic);
}

static void test_regions(void **state)
{
	static unsigned char memory[64];
	struct epf_nic *nic = fake_open(NULL);
	struct epf_nic_mr mr = { .rkey = 5 }, all[3];

	assert_int_equal(nic->ops->region_register(nic, memory, 64, EPF_MR_REMOTE_WRITE, &mr), 0);
	assert_int_equal(fake.last_access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
						   IBV_ACCESS_RELAXED_ORDERING);
	assert_true(mr.raddr == (uint64_t)(uintptr_t)memory);
	nic->ops->region_deregister(nic, &mr);
	nic->ops->region_deregister(nic, &mr); /* once is enough */
	nic->ops->region_deregister(nic, NULL);
	/* A device that does not take relaxed ordering. */
	fake.fail = "reg_mr relaxed";
	fake.fail_errno = EINVAL;
	assert_int_equal(nic->ops->region_register(nic, memory, 64, EPF_MR_REMOTE_READ, &mr), 0);
	assert_int_equal(fake.last_access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	nic->ops->region_deregister(nic, &mr);
	fake.fail = "reg_mr";
	fake.fail_errno = ENOMEM;
	mr.rkey = 77;
	assert_int_equal(nic->ops->region_register(nic, memory, 64, 0, &mr), -ENOMEM);
	assert_int_equal(mr.rkey, 77);
	assert_int_equal(epf_last_reason(), EPF_R_VERBS_PIN);
	fake.fail_errno = EFAULT;
	assert_int_equal(nic->ops->region_register(nic, memory, 64, 0, &mr), -EFAULT);
	assert_int_equal(epf_last_reason(), EPF_R_NIC_REGION);
	fake.fail = NULL;
	/* Three are left open, in the middle of which one goes: close takes them along. */
	for (int i = 0; i < 3; i++)
		assert_int_equal(nic->ops->region_register(nic, memory + i, 8, 0, &all[i]), 0);
	nic->ops->region_deregister(nic, &all[1]);
	nic->ops->close(nic);
}

static void event(enum ibv_event_type type, struct ibv_qp *qp, int port)
{
	struct ibv_async_event *e = &fake.events[fake.n_events++];

	*e = (struct ibv_async_event){ .event_type = type };
	if (qp)
		e->element.qp = qp;
	else
		e->element.port_num = port;
}

static void test_ports_go_down(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_nic_counters c;

	nic->ops->watch(nic);
	nic->ops->counters(nic, &c);
	assert_int_equal(c.link_up, 1);
	event(IBV_EVENT_PORT_ERR, NULL, 2); /* somebody else's */
	nic->ops->watch(nic);
	nic->ops->counters(nic, &c);
	assert_int_equal(c.link_up, 1);
	event(IBV_EVENT_PORT_ERR, NULL, 1);
	event(IBV_EVENT_GID_CHANGE, NULL, 1);
	nic->ops->watch(nic);
	nic->ops->counters(nic, &c);
	assert_int_equal(c.link_up, 0);
	event(IBV_EVENT_PORT_ACTIVE, NULL, 1);
	nic->ops->watch(nic);
	nic->ops->counters(nic, &c);
	assert_int_equal(c.link_up, 1);
	assert_int_equal(fake.n_events, 0);
	nic->ops->close(nic);
}

static struct epf_wr small_write(uint32_t id)
{
	return (struct epf_wr){ .op = EPF_WR_WRITE, .len = 8, .id = id, .lkey = 1, .rkey = 1 };
}

/* A queue pair breaks: its work comes back, then the lane is reported, once; a fenced lane is not. */
static void test_queue_pair_breaks(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_wr wr[2] = { small_write(7), small_write(8) };
	struct epf_wc wc[8];

	fake_lane(nic, 0, 16);
	fake_lane(nic, 1, 16);
	fake_lane(nic, 2, 16);
	fake_lane(nic, 3, 16);
	assert_int_equal(nic->ops->post(nic, 0, wr, 2), 2);
	nic->ops->lane_fence(nic, 2);
	event(IBV_EVENT_QP_FATAL, fake.qps[3], 0);
	nic->ops->watch(nic);
	nic->ops->lane_fence(nic, 3); /* before anybody heard of it */
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	event(IBV_EVENT_QP_FATAL, fake.qps[0], 0);
	event(IBV_EVENT_QP_FATAL, fake.qps[0], 0);
	event(IBV_EVENT_QP_ACCESS_ERR, fake.qps[1], 0);
	event(IBV_EVENT_QP_FATAL, fake.qps[2], 0);
	nic->ops->watch(nic);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_ERROR);
	assert_int_equal(fake.modifies[fake.n_modifies - 1].attr.qp_state, IBV_QPS_ERR);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 1); /* the idle one at once */
	assert_int_equal(wc[0].op, EPF_WC_LANE_DOWN);
	assert_int_equal(wc[0].lane, 1);
	assert_int_equal(wc[0].status, EPF_S_RETRY_EXCEEDED);
	assert_int_equal(nic->ops->post(nic, 0, wr, 1), -ENOTCONN);
	fake_complete(0, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 1);
	assert_int_equal(wc[0].op, EPF_WC_SENT);
	fake_complete(1, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 2);
	assert_int_equal(wc[0].id, 8);
	assert_int_equal(wc[1].op, EPF_WC_LANE_DOWN);
	assert_int_equal(wc[1].lane, 0);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	nic->ops->close(nic);
}

/* The device goes: no completion will come any more, and all that was outstanding is reported all the same. */
static void test_device_lost(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_wr wr[3] = { small_write(1), small_write(2), small_write(3) };
	struct epf_nic_counters c;
	struct epf_wc wc[8];
	uint64_t token;

	fake_lane(nic, 0, 16);
	fake_lane(nic, 3, 16);
	assert_int_equal(nic->ops->lane_create(nic, 5, 16, &token), 0);
	assert_int_equal(nic->ops->post(nic, 3, wr, 3), 3);
	nic->ops->lane_fence(nic, 0);
	event(IBV_EVENT_DEVICE_FATAL, NULL, 0);
	nic->ops->watch(nic);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 4);
	assert_int_equal(wc[0].status, EPF_S_RETRY_EXCEEDED);
	assert_int_equal(wc[0].id, 1);
	assert_int_equal(wc[1].status, EPF_S_FLUSHED);
	assert_int_equal(wc[2].status, EPF_S_FLUSHED);
	assert_int_equal(wc[3].op, EPF_WC_LANE_DOWN);
	assert_int_equal(wc[3].lane, 3);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 1);
	nic->ops->counters(nic, &c);
	assert_int_equal(c.link_up, 0);
	assert_int_equal(c.errors, 1);
	nic->ops->lane_fence(nic, 3);
	assert_int_equal(nic->ops->lane_drained(nic, 3), 1);
	nic->ops->close(nic);
}

/*
 * The device goes while an arrival that it has acknowledged lies in its queue. Its sender counts it as done and will not send it again, so it is
 * heard, and the lane is not drained before; a queue that cannot be polled has none.
 */
static void test_lost_with_arrivals(void **state)
{
	for (int is_broken = 0; is_broken < 2; is_broken++) {
		struct epf_nic *nic;
		struct epf_wc wc[8];

		fake_reset();
		nic = fake_open(NULL);
		fake_lane(nic, 0, 16);
		nic->ops->post_receives(nic, 8);
		fake_arrive(fake.qps[fake.n_qps - 1]->qp_num, "message", 8, 0);
		event(IBV_EVENT_DEVICE_FATAL, NULL, 0);
		nic->ops->watch(nic);
		assert_int_equal(nic->ops->is_removed(nic), 1);
		nic->ops->lane_fence(nic, 0);
		assert_int_equal(nic->ops->lane_drained(nic, 0), 0);
		fake.fail = is_broken ? "poll_cq" : NULL;
		fake.fail_errno = EIO;
		assert_int_equal(nic->ops->reap(nic, wc, 8), !is_broken);
		if (!is_broken) {
			assert_int_equal(wc[0].op, EPF_WC_RECV);
			assert_int_equal(wc[0].len, 8);
		}
		assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
		fake.fail = NULL;
		assert_int_equal(nic->ops->lane_drained(nic, 0), 1);
		nic->ops->close(nic);
	}
}

/* A completion queue that cannot be polled is a lost device. */
static void test_poll_fails(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_wc wc[4];

	fake_lane(nic, 0, 16);
	fake.fail = "poll_cq";
	fake.fail_errno = EIO;
	assert_int_equal(nic->ops->reap(nic, wc, 4), 1);
	assert_int_equal(wc[0].op, EPF_WC_LANE_DOWN);
	assert_int_equal(nic->ops->reap(nic, wc, 4), 0);
	nic->ops->close(nic);
}

static void write_counter(const char *dir, const char *name, unsigned long value)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/ports/1/hw_counters/%s", dir, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "%lu\n", value);
	fclose(file);
}

static struct epf_nic_counters look(struct epf_nic *nic)
{
	struct epf_nic_counters c;

	for (int i = 0; i < 10; i++)
		nic->ops->watch(nic);
	nic->ops->counters(nic, &c);
	return c;
}

/* What the driver counts in sysfs, from the NIC's opening on; names add up; files come and go back to 0. */
static void test_hardware_counters(void **state)
{
	char dir[] = "/tmp/epf-verbs-XXXXXX", command[128];
	struct epf_nic_counters c;
	struct epf_nic *nic;

	assert_non_null(mkdtemp(dir));
	snprintf(fake.sysfs, sizeof(fake.sysfs), "%s", dir);
	snprintf(command, sizeof(command), "mkdir -p %s/ports/1/hw_counters", dir);
	assert_int_equal(system(command), 0);
	write_counter(dir, "duplicate_request", 1000);
	write_counter(dir, "local_ack_timeout_err", 5);
	write_counter(dir, "packet_seq_err", 6);
	nic = fake_open(NULL);
	c = look(nic);
	assert_true(c.packets_duplicated == 0 && c.retransmits == 0 && c.rnr_events == 0);
	write_counter(dir, "duplicate_request", 1007);
	write_counter(dir, "local_ack_timeout_err", 7);
	write_counter(dir, "packet_seq_err", 9);
	c = look(nic);
	assert_int_equal(c.packets_duplicated, 7);
	assert_int_equal(c.retransmits, 5);
	write_counter(dir, "duplicate_request", 3);
	c = look(nic);
	assert_int_equal(c.packets_duplicated, 10);
	nic->ops->close(nic);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
}

static void test_set_link(void **state)
{
	struct epf_nic *nic = fake_open(NULL);

	assert_int_equal(nic->ops->set_link(nic, 0, 0), -EOPNOTSUPP);
	assert_non_null(strstr(epf_last_error(), "ip link"));
	nic->ops->close(nic);
}

static void test_arm(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_wakeup *wakeup = nic->ops->wakeup(nic);
	struct epf_verbs *v = epf_verbs_of(nic);
	uint64_t one = 1;

	epf_wakeup_arm(wakeup);
	assert_int_equal(nic->ops->arm(nic), 0);
	assert_int_equal(nic->ops->arm(nic), 0); /* asked for once */
	assert_int_equal(fake.sends.notified, 1);
	assert_int_equal(fake.recvs.notified, 1);
	assert_int_equal(write(v->channel->fd, &one, 8), 8);
	epf_wakeup_sleep(wakeup, 5000000000ull);
	assert_int_equal(wakeup->sleeping, 0);
	assert_int_equal(wakeup->rung, 1);
	/* The event was that of the receives: they are asked for again. */
	epf_wakeup_arm(wakeup);
	assert_int_equal(nic->ops->arm(nic), 0);
	assert_int_equal(fake.sends.notified, 1);
	assert_int_equal(fake.recvs.notified, 2);
	nic->ops->close(nic);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_defaults_agree),
		CASE(test_priority_class),
		CASE(test_settings),
		CASE(test_devices),
		CASE(test_calls_that_fail),
		CASE(test_limits),
		CASE(test_regions),
		CASE(test_ports_go_down),
		CASE(test_queue_pair_breaks),
		CASE(test_device_lost),
		CASE(test_lost_with_arrivals),
		CASE(test_poll_fails),
		CASE(test_arm),
		CASE(test_hardware_counters),
		CASE(test_set_link),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
