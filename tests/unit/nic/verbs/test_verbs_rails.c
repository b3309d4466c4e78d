/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC over several devices, and what it makes of their ports (fake_verbs.h): which are opened, the keys and work of
 * each, a port that goes down and comes back, a device that is lost.
 */
#include "tests/unit/nic/verbs/fake_verbs.h"

#include "fabric/base/err.h"
#include "fabric/nic/verbs/verbs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int setup(void **state)
{
	fake_reset();
	fake.n_devices = 3;
	return 0;
}

static int teardown(void **state)
{
	assert_int_equal(fake.open_things, 0);
	return 0;
}

static uint64_t no_clock(void *arg)
{
	return 1;
}

/* Opens by names, with commas or one; count: nic-count. */
static int open_named(const char *names, uint32_t count, struct epf_nic **out)
{
	struct epf_verbs_opts opts;
	char text[64], *item[4];
	uint32_t n = 0;
	int rc;

	snprintf(text, sizeof(text), "%s", names);
	for (char *at = strtok(text, ","); at; at = strtok(NULL, ","))
		item[n++] = at;
	epf_verbs_opts_defaults(&opts);
	opts.devices = (struct epf_conf_list){ .item = item, .count = n };
	opts.count = count;
	rc = epf_verbs_open_chosen(&fake_lib, &opts, no_clock, NULL, out);
	return rc;
}

static struct epf_nic_caps caps_of(const struct epf_nic *nic)
{
	struct epf_nic_caps caps;

	nic->ops->describe(nic, &caps);
	return caps;
}

static uint32_t links_up(const struct epf_nic *nic)
{
	struct epf_nic_counters c;

	nic->ops->counters(nic, &c);
	return c.link_up;
}

static void test_which_are_opened(void **state)
{
	static const struct {
		const char *names;
		uint32_t count, links;
		unsigned first; /* device of lane 0 */
	} t[] = {
		{ "", 0, 1, 0 },
		{ "fake1", 0, 1, 1 },
		{ "fake0,fake2", 0, 2, 0 },
		{ "fake", 0, 3, 0 },
		{ "fake", 2, 2, 0 },
		{ "", 2, 2, 0 },
		{ "^fake0", 0, 2, 1 },
		{ "fake1:1", 0, 1, 1 },
		{ "=fake2,fake1", 1, 1, 1 },
		{ "fake0:1,fake1:1", 0, 2, 0 },
	};

	for (unsigned i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct epf_nic *nic = NULL;
		uint64_t token;

		assert_int_equal(open_named(t[i].names, t[i].count, &nic), 0);
		assert_int_equal(caps_of(nic).links, t[i].links);
		assert_int_equal(links_up(nic), t[i].links);
		assert_string_equal(nic->ops->name, "verbs");
		assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), 0);
		assert_string_equal(fake.qps[fake.n_qps - 1]->context->device->name,
				    t[i].first == 0   ? "fake0"
				    : t[i].first == 1 ? "fake1"
						      : "fake2");
		nic->ops->close(nic);
		for (unsigned k = 0; k < FAKE_DEVICES - 1; k++)
			fake.more[k][0].notified = -1;
		fake.sends.notified = -1;
		fake.n_receives = 0;
	}
}

static void test_refusals(void **state)
{
	struct epf_nic *nic = NULL;

	assert_int_equal(open_named("fake", 4, &nic), -ENODEV);
	assert_non_null(strstr(epf_last_error(), "nic-count is 4"));
	assert_int_equal(open_named("mlx5", 0, &nic), -ENODEV);
	for (unsigned i = 0; i < 3; i++)
		fake.is_down[i] = 1;
	assert_int_equal(open_named("fake", 0, &nic), -ENODEV);
	assert_non_null(strstr(epf_last_error(), "all 3 are down"));
	assert_int_equal(open_named("fake1", 0, &nic), -ENODEV);
	assert_non_null(strstr(epf_last_error(), "fake1:1 is down"));
	assert_null(nic);
	/* The second cannot be opened: the first is closed again (teardown counts). */
	fake.is_down[0] = fake.is_down[1] = 0;
	fake.fail = "alloc_pd";
	fake.fail_errno = EIO;
	fake.fail_after = 1;
	assert_int_equal(open_named("fake0,fake1", 0, &nic), -EIO);
	assert_null(nic);
}

/* One port of several may be down: it keeps its place. */
static void test_a_port_is_down_from_the_start(void **state)
{
	struct epf_nic *nic = NULL;
	struct epf_verbs_peer peer = { .link_layer = 2,
				       .mtu = IBV_MTU_2048,
				       .port = 1,
				       .gid_type = IBV_GID_TYPE_ROCE_V2,
				       .gid.raw = { [15] = 9 } };
	uint8_t addr[EPF_VERBS_ADDR_BYTES];
	uint64_t token;

	epf_verbs_addr_encode(&peer, addr);
	fake.is_down[0] = 1;
	assert_int_equal(open_named("fake0,fake1", 0, &nic), 0);
	assert_int_equal(caps_of(nic).links, 2);
	assert_int_equal(links_up(nic), 1);
	for (uint16_t lane = 0; lane < 2; lane++)
		assert_int_equal(nic->ops->lane_create(nic, lane, 8, &token), 0);
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, sizeof(addr), token), -ENETDOWN);
	assert_non_null(strstr(epf_last_error(), "fake0:1 is down"));
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_IDLE);
	assert_int_equal(nic->ops->lane_connect(nic, 1, addr, sizeof(addr), token), 0);
	/* The port is asked when nobody has said that it is up. */
	fake.is_down[0] = 0;
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, sizeof(addr), token), 0);
	assert_int_equal(links_up(nic), 2);
	nic->ops->close(nic);
}

/* ---- two devices with two lanes each to somebody else ---- */

static struct epf_nic *two(void)
{
	struct epf_verbs_peer peer = { .link_layer = 2,
				       .mtu = IBV_MTU_2048,
				       .port = 1,
				       .gid_type = IBV_GID_TYPE_ROCE_V2,
				       .gid.raw = { [15] = 9 } };
	uint8_t addr[EPF_VERBS_ADDR_BYTES];
	struct epf_nic *nic = NULL;
	uint64_t token;

	epf_verbs_addr_encode(&peer, addr);
	assert_int_equal(open_named("fake0,fake1", 0, &nic), 0);
	for (uint16_t lane = 0; lane < 4; lane++) {
		assert_int_equal(nic->ops->lane_create(nic, lane, 8, &token), 0);
		assert_int_equal(nic->ops->lane_connect(nic, lane, addr, sizeof(addr), token), 0);
	}
	return nic;
}

static void post(struct epf_nic *nic, uint16_t lane, uint32_t id)
{
	struct epf_wr wr = { .op = EPF_WR_WRITE, .id = id, .len = 8, .lkey = 1, .rkey = 2 };

	assert_int_equal(nic->ops->post(nic, lane, &wr, 1), 1);
}

static void event(unsigned device, enum ibv_event_type type)
{
	fake.event_device[fake.n_events] = device;
	fake.events[fake.n_events++] =
		(struct ibv_async_event){ .event_type = type, .element.port_num = 1 };
}

static unsigned reap_all(struct epf_nic *nic, struct epf_wc *wc, unsigned max)
{
	unsigned n = 0, idle = 0;

	while (idle < 4) {
		int got = nic->ops->reap(nic, wc + n, max - n);

		idle = got ? 0 : idle + 1;
		n += (unsigned)got;
	}
	return n;
}

static void test_each_device_has_its_keys_and_work(void **state)
{
	struct epf_nic *nic = two();
	struct epf_nic_mr mr;
	struct epf_wc wc[16];
	static char memory[64];
	int things = fake.open_things;

	assert_int_equal(
		nic->ops->region_register(nic, memory, sizeof(memory), EPF_MR_REMOTE_WRITE, &mr),
		0);
	assert_int_equal(fake.open_things, things + 2);
	assert_int_equal(mr.raddr, (uint64_t)(uintptr_t)memory);
	assert_int_not_equal(mr.keys[0].lkey, mr.keys[1].lkey);
	assert_int_not_equal(mr.keys[0].rkey, mr.keys[1].rkey);
	nic->ops->region_deregister(nic, &mr);
	assert_int_equal(fake.open_things, things);
	/* The second registration fails: the first is taken back. */
	fake.fail = "reg_mr";
	fake.fail_errno = ENOMEM;
	fake.fail_after = 1;
	assert_int_equal(nic->ops->region_register(nic, memory, sizeof(memory), 0, &mr), -ENOMEM);
	assert_int_equal(fake.open_things, things);
	for (uint16_t lane = 0; lane < 4; lane++) {
		post(nic, lane, 100 + lane);
		assert_int_equal(fake.wrs[fake.n_wrs - 1].device, lane & 1);
	}
	for (unsigned i = 0; i < 4; i++)
		fake_complete(3 - i, IBV_WC_SUCCESS);
	assert_int_equal(reap_all(nic, wc, 16), 4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(wc[i].id, 100 + wc[i].lane);
	nic->ops->close(nic);
}

/* What runs on a port that goes down ends at once, and only that. */
static void port_goes(enum ibv_event_type type, unsigned status)
{
	struct epf_nic *nic = two();
	unsigned down = 0, sent = 0;
	struct epf_wc wc[16];

	for (uint16_t lane = 0; lane < 4; lane++)
		post(nic, lane, lane);
	event(0, type);
	assert_int_equal(links_up(nic), 2);
	nic->ops->watch(nic);
	assert_int_equal(links_up(nic), 1);
	for (uint16_t lane = 0; lane < 4; lane++)
		assert_int_equal(nic->ops->lane_link(nic, lane),
				 lane & 1 ? EPF_LANE_READY : EPF_LANE_ERROR);
	/* The device flushes what was under way; a dead one says nothing. */
	if (type == IBV_EVENT_PORT_ERR) {
		fake_complete(0, IBV_WC_WR_FLUSH_ERR);
		fake_complete(2, IBV_WC_WR_FLUSH_ERR);
	}
	fake_complete(1, IBV_WC_SUCCESS);
	fake_complete(3, IBV_WC_SUCCESS);
	for (unsigned i = reap_all(nic, wc, 16); i-- > 0;) {
		assert_in_range(wc[i].lane, 0, 3);
		if (wc[i].op == EPF_WC_LANE_DOWN) {
			assert_int_equal(wc[i].status, status);
			assert_false(wc[i].lane & 1);
			down++;
		} else {
			assert_int_equal(wc[i].status == EPF_S_OK, wc[i].lane & 1);
			sent++;
		}
	}
	assert_int_equal(down, 2);
	assert_int_equal(sent, 4);
	nic->ops->close(nic);
}

static void test_port_down(void **state)
{
	port_goes(IBV_EVENT_PORT_ERR, EPF_S_LINK_DOWN);
}

static void test_device_lost(void **state)
{
	port_goes(IBV_EVENT_DEVICE_FATAL, EPF_S_LINK_DOWN);
}

/* A failed lane is opened again when the port is back, not before; a failed attempt can be repeated. */
static void test_a_lane_is_opened_again(void **state)
{
	struct epf_nic *nic = two();
	struct epf_verbs_peer peer = { .link_layer = 2,
				       .mtu = IBV_MTU_2048,
				       .port = 1,
				       .gid_type = IBV_GID_TYPE_ROCE_V2,
				       .gid.raw = { [15] = 9 } };
	uint8_t addr[EPF_VERBS_ADDR_BYTES];
	struct epf_wc wc[16];
	uint64_t token;

	epf_verbs_addr_encode(&peer, addr);
	fake.is_down[0] = 1;
	event(0, IBV_EVENT_PORT_ERR);
	/* Fencing any lane of the device hears of it, so that the engine knows why. */
	nic->ops->lane_fence(nic, 0);
	assert_int_equal(links_up(nic), 1);
	assert_int_equal(nic->ops->lane_link(nic, 2), EPF_LANE_ERROR);
	reap_all(nic, wc, 16);
	nic->ops->lane_destroy(nic, 0);
	assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(nic->ops->lane_connect(nic, 0, addr, sizeof(addr), token),
				 -ENETDOWN);
	fake.is_down[0] = 0;
	event(0, IBV_EVENT_PORT_ACTIVE);
	nic->ops->watch(nic);
	assert_int_equal(links_up(nic), 2);
	/* To RTR fails: reset and ready to be tried again. */
	fake.fail = "modify_qp";
	fake.fail_errno = ETIMEDOUT;
	fake.fail_once = 1;
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, sizeof(addr), token), -ETIMEDOUT);
	assert_int_equal(fake.modifies[fake.n_modifies - 2].attr.qp_state, IBV_QPS_RESET);
	assert_int_equal(fake.modifies[fake.n_modifies - 1].attr.qp_state, IBV_QPS_INIT);
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, sizeof(addr), token), 0);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_READY);
	post(nic, 0, 7);
	nic->ops->close(nic);
}

/* A device that was removed is opened again when it is back: its regions have other keys, its lanes are gone, the other's stay. */
static void removed_and_back(unsigned device)
{
	struct epf_verbs_peer peer = { .link_layer = 2,
				       .mtu = IBV_MTU_2048,
				       .port = 1,
				       .gid_type = IBV_GID_TYPE_ROCE_V2,
				       .gid.raw = { [15] = 9 } };
	uint8_t addr[EPF_VERBS_ADDR_BYTES];
	struct epf_nic *nic = two();
	struct epf_nic_mr mr, before;
	static char memory[64];
	struct epf_wakeup *wakeup = nic->ops->wakeup(nic);
	struct epf_wc wc[16];
	uint32_t links = 3;
	uint64_t token;

	epf_verbs_addr_encode(&peer, addr);
	nic->ops->post_receives(nic, 32);
	assert_int_equal(nic->ops->region_register(nic, memory, sizeof(memory), 0, &mr), 0);
	before = mr;
	assert_int_equal(nic->ops->revive(nic, &links), 0);
	assert_int_equal(links, 0); /* nothing is missing */
	event(device, IBV_EVENT_DEVICE_FATAL);
	nic->ops->watch(nic);
	reap_all(nic, wc, 16);
	fake.fail = "open_device";
	fake.fail_errno = ENODEV;
	links = 3;
	assert_int_equal(nic->ops->revive(nic, &links), 0);
	assert_int_equal(links, 0); /* it is not back */
	assert_int_equal(links_up(nic), 1);
	fake.fail = NULL;
	links = 3u & ~(1u << device);
	assert_int_equal(nic->ops->revive(nic, &links), 0);
	assert_int_equal(links, 0); /* a lane of it is in use */
	links = 3;
	assert_int_equal(nic->ops->revive(nic, &links), 0);
	assert_int_equal(links, 1u << device);
	assert_int_equal(links_up(nic), 2);
	assert_ptr_equal(nic->ops->wakeup(nic), wakeup);
	nic->ops->region_keys(nic, &mr);
	assert_int_not_equal(mr.keys[device].rkey, before.keys[device].rkey);
	assert_int_equal(mr.keys[1 - device].rkey, before.keys[1 - device].rkey);
	assert_int_equal(nic->ops->lane_link(nic, (uint16_t)device), EPF_LANE_IDLE);
	assert_int_equal(nic->ops->lane_link(nic, (uint16_t)(1 - device)), EPF_LANE_READY);
	nic->ops->lane_destroy(nic, (uint16_t)device);
	assert_int_equal(nic->ops->lane_create(nic, (uint16_t)device, 8, &token), 0);
	assert_int_equal(nic->ops->lane_connect(nic, (uint16_t)device, addr, sizeof(addr), token),
			 0);
	post(nic, (uint16_t)device, 7);
	assert_int_equal(fake.wrs[fake.n_wrs - 1].device, device);
	nic->ops->region_deregister(nic, &mr);
	nic->ops->close(nic);
}

static void test_a_removed_device_is_opened_anew(void **state)
{
	removed_and_back(1);
}

static void test_the_first_device_is_opened_anew(void **state)
{
	removed_and_back(0);
}

/* A NIC's only device comes back as one of several does; to peers it is what it would be by itself. */
static void test_the_only_device_is_opened_anew(void **state)
{
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct epf_nic *nic = NULL;
	struct epf_nic_mr mr, before;
	static char memory[64];
	struct epf_wc wc[16];
	uint32_t links = 1;
	uint64_t token;

	assert_int_equal(open_named("fake1", 0, &nic), 0);
	assert_int_equal(caps_of(nic).links, 1);
	assert_int_equal(nic->ops->address(nic, addr, sizeof(addr)), EPF_VERBS_ADDR_BYTES);
	nic->ops->post_receives(nic, 32);
	assert_int_equal(nic->ops->region_register(nic, memory, sizeof(memory), 0, &mr), 0);
	before = mr;
	fake_lane(nic, 0, 8);
	assert_int_equal(nic->ops->revive(nic, &links), 0);
	assert_int_equal(links, 0); /* nothing is missing */
	event(1, IBV_EVENT_DEVICE_FATAL);
	nic->ops->watch(nic);
	reap_all(nic, wc, 16);
	assert_int_equal(links_up(nic), 0);
	nic->ops->lane_fence(nic, 0);
	nic->ops->lane_destroy(nic, 0);
	assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), -ENODEV);
	fake.fail = "open_device";
	fake.fail_errno = ENODEV;
	links = 1;
	assert_int_equal(nic->ops->revive(nic, &links), 0);
	assert_int_equal(links, 0); /* it is not back */
	fake.fail = NULL;
	links = 1;
	assert_int_equal(nic->ops->revive(nic, &links), 0);
	assert_int_equal(links, 1);
	assert_int_equal(links_up(nic), 1);
	nic->ops->region_keys(nic, &mr);
	assert_int_not_equal(mr.keys[0].rkey, before.keys[0].rkey);
	fake_lane(nic, 0, 8);
	post(nic, 0, 7);
	assert_int_equal(fake.wrs[fake.n_wrs - 1].device, 1);
	nic->ops->region_deregister(nic, &mr);
	nic->ops->close(nic);
}

/* A lane to the NIC itself needs no link. */
static void test_a_lane_to_itself_stays(void **state)
{
	struct epf_nic *nic = fake_open(NULL);

	fake_lane(nic, 0, 8);
	event(0, IBV_EVENT_PORT_ERR);
	nic->ops->watch(nic);
	assert_int_equal(links_up(nic), 0);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_READY);
	nic->ops->close(nic);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_which_are_opened, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_port_is_down_from_the_start, setup,
						teardown),
		cmocka_unit_test_setup_teardown(test_each_device_has_its_keys_and_work, setup,
						teardown),
		cmocka_unit_test_setup_teardown(test_port_down, setup, teardown),
		cmocka_unit_test_setup_teardown(test_device_lost, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_lane_is_opened_again, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_removed_device_is_opened_anew, setup,
						teardown),
		cmocka_unit_test_setup_teardown(test_the_first_device_is_opened_anew, setup,
						teardown),
		cmocka_unit_test_setup_teardown(test_the_only_device_is_opened_anew, setup,
						teardown),
		cmocka_unit_test_setup_teardown(test_a_lane_to_itself_stays, setup, teardown),
	};

	return cmocka_run_group_tests_name("verbs over several devices", tests, NULL, NULL);
}
