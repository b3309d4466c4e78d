/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the EFA NIC that are opened again on a separate thread (fabric/nic/efa/reopen.c), and adapters that were removed and come back, over adapters that
 * take their time (efa_rig.h): who asks gets an answer at once, the device is asked by the other thread, traffic flows
 * afterwards, and what is given up half way leaves nothing behind.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/nic/efa/efa.h"
#include "fabric/nic/rails/rails.h"
#include "tests/unit/nic/efa/efa_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define LONGEST_NS UINT64_C(60000000000) /* only what never comes is missed */

static unsigned char addr[2][EPF_NIC_ADDR_BYTES]; /* of the ends */
static size_t addr_len;

static void open_both(void)
{
	efa_open_ends(NULL);
	for (unsigned end = 0; end < 2; end++)
		addr_len = (size_t)ends[end].nic->ops->address(ends[end].nic, addr[end],
							       sizeof(addr[end]));
	ends[1].nic->ops->post_receives(ends[1].nic, 8);
}

static void fail_lane(unsigned end, uint16_t lane)
{
	struct epf_nic *nic = ends[end].nic;

	nic->ops->lane_fence(nic, lane);
	for (unsigned i = 0; i < 100 && !nic->ops->lane_drained(nic, lane); i++)
		efa_run(400);
	assert_int_equal(nic->ops->lane_drained(nic, lane), 1);
}

static void wake(struct epf_nic *nic)
{
	if (nic->ops->wake_pending(nic))
		nic->ops->wake_peers(nic);
	usleep(100);
}

/* As the run loop does, until it is over. */
static int reopened(unsigned end, uint16_t lane, uint64_t *token)
{
	struct epf_nic *nic = ends[end].nic;
	uint64_t until = epf_now_ns() + LONGEST_NS;
	int rc;

	while ((rc = nic->ops->lane_reopen(nic, lane, 16, token)) == -EAGAIN) {
		assert_true(epf_now_ns() < until);
		wake(nic);
	}
	return rc;
}

static int reconnected(unsigned end, uint16_t lane, uint64_t token)
{
	struct epf_nic *nic = ends[end].nic;
	uint64_t until = epf_now_ns() + LONGEST_NS;
	int rc;

	while ((rc = nic->ops->lane_reconnect(nic, lane, addr[!end], addr_len, token)) == -EAGAIN) {
		assert_true(epf_now_ns() < until);
		wake(nic);
	}
	return rc;
}

/* A write and a message from end 0 to end 1 are there, and nothing else. */
static void traffic(uint16_t lane)
{
	struct epf_wr wr = efa_wr(EPF_WR_WRITE_IMM, 1, 64);

	ends[0].n = ends[1].n = 0;
	memset(ends[0].mem, ends[1].mem[0] + 1, 64);
	efa_post(lane, &wr);
	wr = efa_wr(EPF_WR_SEND, 2, 64);
	efa_post(lane, &wr);
	wr = efa_wr(EPF_WR_WRITE_IMM, 3, 0); /* to the peer's sink */
	efa_post(lane, &wr);
	efa_run(20000);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 3);
	assert_int_equal(ends[0].n, 3);
	assert_int_equal(ends[1].n, 3);
	assert_int_equal(ends[1].mem[63], ends[0].mem[63]);
	ends[1].nic->ops->post_receives(ends[1].nic, 3);
}

static void a_lane_comes_back(void **state)
{
	uint64_t tokens[2], fresh[2] = { 0, 0 };
	struct epf_nic *a;
	unsigned ahs;

	open_both();
	a = ends[0].nic;
	efa_lane_pair(0, tokens);
	traffic(0);
	fail_lane(0, 0);
	fail_lane(1, 0);
	ahs = fake_efa.ahs;
	fake_efa.setup_us = 5000;
	/* Nothing happens before the run loop wakes the thread. */
	assert_int_equal(a->ops->lane_reopen(a, 0, 16, &fresh[0]), -EAGAIN);
	assert_int_equal(a->ops->wake_pending(a), 1);
	assert_int_equal(a->ops->lane_link(a, 0), EPF_LANE_IDLE);
	for (unsigned end = 0; end < 2; end++) {
		fake_efa.setup_by = pthread_self();
		assert_int_equal(reopened(end, 0, &fresh[end]), 0);
		assert_false(pthread_equal(fake_efa.setup_by, pthread_self()));
		assert_true(epf_efa_token_is_good(fresh[end]));
		assert_true(fresh[end] != tokens[end]);
		assert_int_equal(ends[end].nic->ops->lane_link(ends[end].nic, 0), EPF_LANE_IDLE);
	}
	/* The old lane's handle went with it; making one is the other thread's. */
	assert_int_equal(a->ops->lane_reconnect(a, 0, addr[1], addr_len, fresh[1]), -EAGAIN);
	assert_int_equal(fake_efa.ahs, ahs);
	for (unsigned end = 0; end < 2; end++) {
		fake_efa.setup_by = pthread_self();
		assert_int_equal(reconnected(end, 0, fresh[!end]), 0);
		assert_false(pthread_equal(fake_efa.setup_by, pthread_self()));
		assert_int_equal(ends[end].nic->ops->lane_link(ends[end].nic, 0), EPF_LANE_READY);
	}
	assert_int_equal(fake_efa.ahs, ahs + 2);
	assert_int_equal(a->ops->wake_pending(a), 0);
	fake_efa.setup_us = 0;
	traffic(0);
	assert_int_equal(fake_efa_receives(efa_qpn(fresh[1])), 8);
	assert_int_equal(epf_efa_of(ends[1].nic)->pool, 0);
	efa_close_ends();
}

/* While another lane holds the peer's handle, connecting asks nobody; the handle stays as long as a lane needs it. */
static void a_handle_is_shared(void **state)
{
	uint64_t tokens[2], fresh[2];
	struct epf_nic *a;

	open_both();
	a = ends[0].nic;
	efa_lane_pair(0, tokens);
	efa_lane_pair(1, tokens);
	assert_int_equal(fake_efa.ahs, 2);
	fail_lane(0, 0);
	fail_lane(1, 0);
	assert_int_equal(reopened(0, 0, &fresh[0]), 0);
	assert_int_equal(reopened(1, 0, &fresh[1]), 0);
	assert_int_equal(a->ops->lane_reconnect(a, 0, addr[1], addr_len, fresh[1]), 0);
	assert_int_equal(reconnected(1, 0, fresh[0]), 0);
	assert_int_equal(fake_efa.ahs, 2);
	a->ops->lane_destroy(a, 1);
	traffic(0);
	efa_close_ends();
}

static void failures_can_be_tried_again(void **state)
{
	static const char *const calls[] = { "efa_create_qp_ex", "modify_qp", "reg_mr" };
	uint64_t tokens[2], fresh[2];
	int things;

	open_both();
	efa_lane_pair(0, tokens);
	fail_lane(0, 0);
	fail_lane(1, 0);
	things = fake_efa.open_things;
	fake_efa.fail_errno = ENOMEM;
	for (unsigned i = 0; i < 3; i++) {
		fake_efa.fail = calls[i];
		assert_int_equal(reopened(0, 0, &fresh[0]), -ENOMEM);
		assert_true(fake_efa.open_things < things); /* the old one is gone */
	}
	fake_efa.fail = NULL;
	assert_int_equal(reopened(0, 0, &fresh[0]), 0);
	assert_int_equal(reopened(1, 0, &fresh[1]), 0);
	fake_efa.fail = "create_ah";
	fake_efa.fail_errno = ETIMEDOUT;
	assert_int_equal(reconnected(0, 0, fresh[1]), -ETIMEDOUT);
	assert_int_equal(ends[0].nic->ops->lane_link(ends[0].nic, 0), EPF_LANE_IDLE);
	fake_efa.fail = NULL;
	assert_int_equal(reconnected(0, 0, fresh[1] | 1ull << 55), -EINVAL);
	assert_int_equal(reconnected(0, 0, fresh[1]), 0);
	assert_int_equal(reconnected(0, 0, fresh[1]), -EBUSY);
	assert_int_equal(reconnected(1, 0, fresh[0]), 0);
	traffic(0);
	efa_close_ends();
}

static void events(unsigned end, enum ibv_event_type type)
{
	fake_efa.event_device = (int)end;
	fake_efa.events[fake_efa.n_events++] = (struct ibv_async_event){ .event_type = type };
	ends[end].nic->ops->watch(ends[end].nic);
}

static void the_port_is_asked_by_the_thread(void **state)
{
	struct epf_nic_counters c;
	uint64_t tokens[2], fresh;

	open_both();
	efa_lane_pair(0, tokens);
	fail_lane(0, 0);
	fake_efa.down_device = 1;
	events(0, IBV_EVENT_PORT_ERR);
	assert_int_equal(reopened(0, 0, &fresh), -ENETDOWN);
	fake_efa.down_device = 0;
	assert_int_equal(reopened(0, 0, &fresh), 0);
	ends[0].nic->ops->counters(ends[0].nic, &c);
	assert_int_equal(c.link_up, 1);
	fake_efa.down_device = 1;
	events(0, IBV_EVENT_PORT_ERR);
	assert_int_equal(reconnected(0, 0, tokens[1]), -ENETDOWN);
	fake_efa.down_device = 0;
	assert_int_equal(reconnected(0, 0, tokens[1]), 0);
	efa_close_ends();
}

/* Given up while the thread is at it: by fencing, by destroying, by closing the NIC; and what nobody has woken it for. */
static void what_is_given_up_leaves_nothing(void **state)
{
	uint64_t tokens[2], fresh[2];
	struct epf_nic *a;

	open_both();
	a = ends[0].nic;
	efa_lane_pair(0, tokens);
	efa_lane_pair(1, tokens);
	for (uint16_t lane = 0; lane < 2; lane++) {
		fail_lane(0, lane);
		fail_lane(1, lane);
	}
	fake_efa.setup_us = 5000;
	assert_int_equal(a->ops->lane_reopen(a, 0, 16, &fresh[0]), -EAGAIN);
	a->ops->wake_peers(a);
	a->ops->lane_fence(a, 0);
	assert_int_equal(a->ops->lane_drained(a, 0), 1);
	/* Another one waits for its turn, and gets it; the first one's queue pair is not kept. */
	assert_int_equal(reopened(0, 1, &fresh[0]), 0);
	assert_int_equal(a->ops->lane_link(a, 0), EPF_LANE_IDLE);
	assert_int_equal(reopened(1, 1, &fresh[1]), 0);
	assert_int_equal(a->ops->lane_reconnect(a, 1, addr[1], addr_len, fresh[1]), -EAGAIN);
	a->ops->wake_peers(a);
	a->ops->lane_fence(a, 1);
	assert_int_equal(a->ops->lane_link(a, 1), EPF_LANE_ERROR);
	fail_lane(0, 1);
	assert_int_equal(reopened(0, 1, &fresh[0]), 0);
	assert_int_equal(a->ops->lane_reconnect(a, 1, addr[1], addr_len, fresh[1]), -EAGAIN);
	a->ops->lane_destroy(a, 1); /* nobody has woken the thread */
	assert_int_equal(a->ops->lane_link(a, 1), EPF_LANE_IDLE);
	fake_efa.setup_us = 0;
	/* Both ways still lead somewhere. */
	assert_int_equal(reopened(0, 0, &fresh[0]), 0);
	assert_int_equal(reopened(1, 0, &fresh[1]), 0);
	assert_int_equal(reconnected(0, 0, fresh[1]), 0);
	assert_int_equal(reconnected(1, 0, fresh[0]), 0);
	traffic(0);
	fail_lane(0, 0);
	fake_efa.setup_us = 5000;
	assert_int_equal(a->ops->lane_reopen(a, 0, 16, &fresh[0]), -EAGAIN);
	a->ops->wake_peers(a);
	assert_int_equal(ends[1].nic->ops->lane_reopen(ends[1].nic, 1, 16, &fresh[1]), -EAGAIN);
	efa_close_ends();
}

/* The adapter goes while its thread makes a handle: nothing is connected to it. */
static void an_adapter_goes_meanwhile(void **state)
{
	uint64_t tokens[2], fresh[2], until = epf_now_ns() + LONGEST_NS;
	struct epf_nic *a;
	unsigned ahs;

	open_both();
	a = ends[0].nic;
	efa_lane_pair(0, tokens);
	fail_lane(0, 0);
	assert_int_equal(reopened(0, 0, &fresh[0]), 0);
	ahs = fake_efa.ahs;
	assert_int_equal(a->ops->lane_reconnect(a, 0, addr[1], addr_len, tokens[1]), -EAGAIN);
	a->ops->wake_peers(a);
	while (__atomic_load_n(&fake_efa.ahs, __ATOMIC_ACQUIRE) == ahs) {
		assert_true(epf_now_ns() < until);
		usleep(100);
	}
	usleep(20000); /* until it has said so: sooner, and the result is the same by another way */
	assert_int_equal(a->ops->is_removed(a), 0);
	events(0, IBV_EVENT_DEVICE_FATAL);
	assert_int_equal(a->ops->is_removed(a), 1);
	assert_int_equal(reconnected(0, 0, tokens[1]), -ENETDOWN);
	assert_int_equal(a->ops->lane_reopen(a, 0, 16, &fresh[0]), -ENETDOWN);
	assert_int_equal(a->ops->lane_create(a, 1, 16, &fresh[0]), -ENODEV);
	efa_close_ends();
}

/* End 0 as a NIC that may be opened again: of one adapter, or the second of two. */
static void open_chosen(unsigned adapters)
{
	char *names[2] = { (char *)"efa0", (char *)"efa2" };
	struct epf_efa_opts opts;
	struct efa_end *e = &ends[0];

	e->nic->ops->close(e->nic);
	epf_efa_opts_defaults(&opts);
	opts.devices = (struct epf_conf_list){ .item = names, .count = adapters };
	assert_int_equal(epf_efa_open_chosen(&fake_efa_lib, &opts, efa_clock, NULL, &e->nic), 0);
	assert_int_equal(e->nic->ops->region_register(e->nic, e->mem, EFA_RIG_BYTES,
						      EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
						      &e->mr),
			 0);
	e->nic->ops->post_receives(e->nic, 8 * adapters);
}

static void removed_and_back(unsigned adapters)
{
	unsigned index = adapters - 1; /* the one that goes, and the lane on it */
	uint64_t tokens[2];
	uint32_t links = 1u << index, old_key, sink_key;
	struct epf_efa_peer peer;
	struct epf_wr wr;
	struct epf_nic *a;
	const void *part;
	size_t len;
	int n;

	fake_efa.n_devices = 3;
	open_both();
	open_chosen(adapters);
	a = ends[0].nic;
	tokens[0] = efa_create(0, (uint16_t)index);
	tokens[1] = efa_create(1, (uint16_t)index);
	assert_int_equal(a->ops->lane_connect(a, (uint16_t)index, addr[1], addr_len, tokens[1]), 0);
	old_key = ends[0].mr.keys[index].lkey;
	sink_key = epf_efa_of(epf_rails_of(a)->child[index])->sink_mr->rkey;
	assert_int_equal(a->ops->revive(a, &links), 0);
	assert_int_equal(links, 0); /* nothing is missing */
	fake_efa_pull(index ? 2 : 0);
	a->ops->watch(a);
	efa_run(1000);
	assert_int_equal(efa_count(0, EPF_WC_LANE_DOWN, EPF_S_LINK_DOWN), 1);
	a->ops->lane_fence(a, (uint16_t)index);
	a->ops->lane_destroy(a, (uint16_t)index);
	links = 1u << index;
	assert_int_equal(a->ops->revive(a, &links), 0);
	assert_int_equal(links, 0); /* it is not back */
	fake_efa.gone_device = 0;
	links = (1u << adapters) - 1;
	assert_int_equal(a->ops->revive(a, &links), 0);
	assert_int_equal(links, 1u << index);
	/* Other keys, also of what peers write to that has no bytes. */
	a->ops->region_keys(a, &ends[0].mr);
	assert_int_not_equal(ends[0].mr.keys[index].lkey, old_key);
	n = a->ops->address(a, addr[0], sizeof(addr[0]));
	assert_int_equal(epf_nic_address_part(addr[0], (size_t)n, index, &part, &len), adapters);
	assert_int_equal(epf_efa_addr_decode(part, len, &peer), 0);
	assert_int_not_equal(peer.sink_rkey, sink_key);
	ends[0].n = ends[1].n = 0;
	tokens[0] = efa_create(0, (uint16_t)index);
	assert_int_equal(fake_efa_receives(efa_qpn(tokens[0])), 8);
	assert_int_equal(a->ops->lane_connect(a, (uint16_t)index, addr[1], addr_len, tokens[1]), 0);
	wr = efa_wr(EPF_WR_WRITE, 1, 64);
	wr.lkey = ends[0].mr.keys[index].lkey;
	memset(ends[0].mem, 0x77, 64);
	efa_post((uint16_t)index, &wr);
	efa_run(20000);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 1);
	assert_int_equal(ends[1].mem[63], 0x77);
	efa_close_ends();
}

static void the_only_adapter_is_opened_anew(void **state)
{
	removed_and_back(1);
}

static void one_of_two_adapters_is_opened_anew(void **state)
{
	removed_and_back(2);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, efa_setup, efa_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_lane_comes_back),
		CASE(a_handle_is_shared),
		CASE(failures_can_be_tried_again),
		CASE(the_port_is_asked_by_the_thread),
		CASE(what_is_given_up_leaves_nothing),
		CASE(an_adapter_goes_meanwhile),
		CASE(the_only_adapter_is_opened_anew),
		CASE(one_of_two_adapters_is_opened_anew),
	};

	return cmocka_run_group_tests_name("lanes of the EFA NIC opened again", tests, NULL, NULL);
}
