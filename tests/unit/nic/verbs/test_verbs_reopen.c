/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the verbs NIC that are opened again on a separate thread (fabric/nic/verbs/reopen.c), over a scripted provider that takes its time: who
 * asks gets an answer at once, the device is asked by the other thread, and what is given up half way leaves nothing behind.
 */
#include "tests/unit/nic/verbs/fake_verbs.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/nic/verbs/verbs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LONGEST_NS UINT64_C(60000000000) /* only what never comes is missed */

static uint8_t addr[EPF_VERBS_ADDR_BYTES];

static int setup(void **state)
{
	struct epf_verbs_peer peer = { .link_layer = 2,
				       .mtu = IBV_MTU_2048,
				       .port = 1,
				       .gid_type = IBV_GID_TYPE_ROCE_V2,
				       .gid.raw = { [15] = 9 } };

	fake_reset();
	epf_verbs_addr_encode(&peer, addr);
	return 0;
}

static int teardown(void **state)
{
	assert_int_equal(fake.open_things, 0);
	return 0;
}

static void reap_all(struct epf_nic *nic)
{
	struct epf_wc wc[16];

	for (unsigned i = 0; i < 4; i++)
		nic->ops->reap(nic, wc, 16);
}

/* A lane that was in use, fenced and drained. */
static void failed_lane(struct epf_nic *nic, uint16_t lane)
{
	fake_lane(nic, lane, 8);
	nic->ops->lane_fence(nic, lane);
	for (unsigned i = 0; i < 10 && !nic->ops->lane_drained(nic, lane); i++)
		reap_all(nic);
	assert_int_equal(nic->ops->lane_drained(nic, lane), 1);
}

/* As the run loop does, until it is over; the device is asked by another thread. */
static int reopened(struct epf_nic *nic, uint16_t lane, uint64_t *token)
{
	uint64_t end = epf_now_ns() + LONGEST_NS;
	int rc;

	__atomic_store_n(&fake.setup_by, pthread_self(), __ATOMIC_RELAXED);
	while ((rc = nic->ops->lane_reopen(nic, lane, 8, token)) == -EAGAIN) {
		assert_true(epf_now_ns() < end);
		if (nic->ops->wake_pending(nic))
			nic->ops->wake_peers(nic);
		usleep(100);
	}
	return rc;
}

static int reconnected(struct epf_nic *nic, uint16_t lane, uint64_t token)
{
	uint64_t end = epf_now_ns() + LONGEST_NS;
	int rc;

	while ((rc = nic->ops->lane_reconnect(nic, lane, addr, sizeof(addr), token)) == -EAGAIN) {
		assert_true(epf_now_ns() < end);
		if (nic->ops->wake_pending(nic))
			nic->ops->wake_peers(nic);
		usleep(100);
	}
	return rc;
}

static void a_lane_comes_back(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_wr wr = { .op = EPF_WR_WRITE, .len = 8, .lkey = 1, .rkey = 2 };
	uint32_t qpn;
	uint64_t token = 0;

	failed_lane(nic, 0);
	nic->ops->post_receives(nic, 8);
	qpn = epf_verbs_of(nic)->lanes[0].qp->qp_num;
	fake.setup_us = 20000;
	/* Nothing happens before the run loop wakes the thread. */
	assert_int_equal(nic->ops->lane_reopen(nic, 0, 8, &token), -EAGAIN);
	assert_int_equal(nic->ops->wake_pending(nic), 1);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_IDLE);
	assert_int_equal(reopened(nic, 0, &token), 0);
	assert_false(pthread_equal(fake.setup_by, pthread_self()));
	assert_true(epf_verbs_token_is_good(token));
	assert_int_not_equal((uint32_t)token & 0xffffffu, qpn);
	assert_int_equal(nic->ops->post(nic, 0, &wr, 1), -ENOTCONN);
	__atomic_store_n(&fake.setup_by, pthread_self(), __ATOMIC_RELAXED);
	assert_int_equal(reconnected(nic, 0, token), 0);
	assert_false(pthread_equal(fake.setup_by, pthread_self()));
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_READY);
	assert_int_equal(nic->ops->wake_pending(nic), 0);
	assert_int_equal(nic->ops->post(nic, 0, &wr, 1), 1);
	fake_arrive((uint32_t)token & 0xffffffu, NULL, 0, 1);
	nic->ops->close(nic);
}

static void failures_can_be_tried_again(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	uint64_t token = 0;
	int things;

	failed_lane(nic, 0);
	things = fake.open_things;
	fake.fail = "create_qp";
	fake.fail_errno = ENOMEM;
	assert_int_equal(reopened(nic, 0, &token), -ENOMEM);
	assert_true(fake.open_things < things); /* the old one is gone */
	fake.fail = NULL;
	assert_int_equal(reopened(nic, 0, &token), 0);
	fake.fail = "modify_qp";
	fake.fail_errno = ETIMEDOUT;
	fake.fail_once = 1;
	assert_int_equal(reconnected(nic, 0, token), -ETIMEDOUT);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_IDLE);
	assert_int_equal(reconnected(nic, 0, token), 0);
	nic->ops->close(nic);
}

static void the_port_is_asked_by_the_thread(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_nic_counters c;
	uint64_t token = 0;

	failed_lane(nic, 0);
	fake.is_down[0] = 1;
	fake.events[fake.n_events++] =
		(struct ibv_async_event){ .event_type = IBV_EVENT_PORT_ERR, .element.port_num = 1 };
	nic->ops->watch(nic);
	assert_int_equal(reopened(nic, 0, &token), -ENETDOWN);
	fake.is_down[0] = 0;
	assert_int_equal(reopened(nic, 0, &token), 0);
	nic->ops->counters(nic, &c);
	assert_int_equal(c.link_up, 1);
	assert_int_equal(reconnected(nic, 0, token), 0);
	nic->ops->close(nic);
}

/* Given up while the thread is at it: by fencing, by destroying, by closing the NIC. */
static void what_is_given_up_leaves_nothing(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	uint64_t token = 0;

	failed_lane(nic, 0);
	failed_lane(nic, 1);
	fake.setup_us = 20000;
	assert_int_equal(nic->ops->lane_reopen(nic, 0, 8, &token), -EAGAIN);
	nic->ops->wake_peers(nic);
	nic->ops->lane_fence(nic, 0);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 1);
	/* Another one waits for its turn, and gets it; the first one's queue pair is not kept. */
	assert_int_equal(reopened(nic, 1, &token), 0);
	assert_int_equal(nic->ops->lane_reconnect(nic, 1, addr, sizeof(addr), token), -EAGAIN);
	nic->ops->wake_peers(nic);
	nic->ops->lane_fence(nic, 1);
	assert_int_equal(nic->ops->lane_link(nic, 1), EPF_LANE_ERROR);
	for (uint64_t end = epf_now_ns() + LONGEST_NS; !nic->ops->lane_drained(nic, 1);) {
		reap_all(nic);
		assert_true(epf_now_ns() < end);
	}
	/* Error, then reset, behind whatever the thread did. */
	assert_int_equal(fake.modifies[fake.n_modifies - 2].attr.qp_state, IBV_QPS_ERR);
	assert_int_equal(fake.modifies[fake.n_modifies - 1].attr.qp_state, IBV_QPS_RESET);
	assert_int_equal(reopened(nic, 1, &token), 0);
	assert_int_equal(nic->ops->lane_reconnect(nic, 1, addr, sizeof(addr), token), -EAGAIN);
	nic->ops->lane_destroy(nic, 1); /* waits for the thread, which nobody has woken */
	assert_int_equal(nic->ops->lane_link(nic, 1), EPF_LANE_IDLE);
	fake_lane(nic, 1, 8);
	assert_int_equal(nic->ops->lane_reopen(nic, 0, 8, &token), -EAGAIN);
	nic->ops->wake_peers(nic);
	nic->ops->close(nic);
}

/* Nobody wakes the thread of a NIC that is closed. */
static void an_order_that_was_not_begun(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	uint64_t token = 0;

	failed_lane(nic, 0);
	assert_int_equal(nic->ops->lane_reopen(nic, 0, 8, &token), -EAGAIN);
	nic->ops->close(nic);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_lane_comes_back),
		CASE(failures_can_be_tried_again),
		CASE(the_port_is_asked_by_the_thread),
		CASE(what_is_given_up_leaves_nothing),
		CASE(an_order_that_was_not_begun),
	};

	return cmocka_run_group_tests_name("lanes of the verbs NIC opened again", tests, NULL,
					   NULL);
}
