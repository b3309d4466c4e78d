/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the verbs NIC over a scripted provider (fake_verbs.h): creation and its limits, what a connection asks of a queue
 * pair, fencing and draining step by step, many lanes and numbers used again.
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
	return 0;
}

static int teardown(void **state)
{
	assert_int_equal(fake.open_things, 0);
	return 0;
}

static void test_create(void **state)
{
	static const char *const calls[] = { "create_qp", "modify_qp" };
	struct epf_nic *nic;
	uint64_t token = 9;
	int things;

	fake.attr.max_qp = 10;
	nic = fake_open(NULL);
	assert_int_equal(nic->ops->lane_create(nic, 10, 8, &token), -ENOSPC);
	assert_non_null(strstr(epf_last_error(), "lanes 0 to 9"));
	assert_int_equal(nic->ops->lane_create(nic, 0, 0, &token), -ENOSPC);
	assert_int_equal(nic->ops->lane_create(nic, 0, 4097, &token), -ENOSPC);
	assert_non_null(strstr(epf_last_error(), "lane-depth"));
	things = fake.open_things;
	for (unsigned i = 0; i < 2; i++) {
		fake.fail = calls[i];
		fake.fail_errno = ENOMEM;
		assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), -ENOMEM);
		assert_int_equal(epf_last_reason(), EPF_R_VERBS_PIN);
		assert_int_equal(fake.open_things, things);
		assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_IDLE);
	}
	fake.fail = NULL;
	assert_int_equal(token, 9);
	assert_int_equal(nic->ops->lane_create(nic, 0, 4096, &token), 0);
	assert_true(epf_verbs_token_is_good(token));
	assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), -EBUSY);
	nic->ops->close(nic);
}

static void connect_modes(struct epf_nic *nic, const unsigned char *addr)
{
	struct epf_verbs_peer peer;
	uint8_t other[EPF_VERBS_ADDR_BYTES];

	assert_int_equal(epf_verbs_addr_decode(addr, EPF_VERBS_ADDR_BYTES, &peer), 0);
	peer.gid_type = IBV_GID_TYPE_ROCE_V1;
	epf_verbs_addr_encode(&peer, other);
	assert_int_equal(
		nic->ops->lane_connect(nic, 0, other, sizeof(other), epf_verbs_token(5, 6)),
		-EPROTO);
	assert_non_null(strstr(epf_last_error(), "gid-index"));
	peer.link_layer = IBV_LINK_LAYER_INFINIBAND;
	epf_verbs_addr_encode(&peer, other);
	assert_int_equal(
		nic->ops->lane_connect(nic, 0, other, sizeof(other), epf_verbs_token(5, 6)),
		-EPROTO);
	assert_non_null(strstr(epf_last_error(), "InfiniBand"));
}

/* Each attribute of a connection has its source. */
static void test_connect(void **state)
{
	struct epf_verbs_opts opts;
	struct epf_verbs_peer peer = { .link_layer = IBV_LINK_LAYER_ETHERNET,
				       .mtu = IBV_MTU_512,
				       .gid_type = IBV_GID_TYPE_ROCE_V2 };
	uint8_t addr[EPF_VERBS_ADDR_BYTES];
	const struct fake_modify *m;
	struct epf_nic *nic;
	uint64_t token;

	epf_verbs_opts_defaults(&opts);
	opts.service_level = 3;
	opts.traffic_class = 106;
	opts.timeout = 17;
	opts.retries = 5;
	opts.rnr_retries = 4;
	opts.rnr_timer = 11;
	opts.mtu = 1024;
	fake.gids[0].gid_index = 3;
	nic = fake_open(&opts);
	assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), 0);
	m = &fake.modifies[0];
	assert_int_equal(m->attr.qp_state, IBV_QPS_INIT);
	assert_int_equal(m->attr.port_num, 1);
	assert_int_equal(m->attr.qp_access_flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	peer.gid.raw[15] = 9;
	epf_verbs_addr_encode(&peer, addr);
	connect_modes(nic, addr);
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, sizeof(addr), 77), -EINVAL);
	assert_int_equal(fake.n_modifies, 1);
	assert_int_equal(
		nic->ops->lane_connect(nic, 0, addr, sizeof(addr), epf_verbs_token(0x123, 0x456)),
		0);
	m = &fake.modifies[1];
	assert_int_equal(m->attr.qp_state, IBV_QPS_RTR);
	assert_int_equal(m->attr.path_mtu, IBV_MTU_512); /* the smaller of the two */
	assert_int_equal(m->attr.dest_qp_num, 0x123);
	assert_int_equal(m->attr.rq_psn, 0x456);
	assert_int_equal(m->attr.min_rnr_timer, 11);
	assert_int_equal(m->attr.max_dest_rd_atomic, 16);
	assert_int_equal(m->attr.ah_attr.is_global, 1);
	assert_int_equal(m->attr.ah_attr.sl, 3);
	assert_int_equal(m->attr.ah_attr.grh.sgid_index, 3);
	assert_int_equal(m->attr.ah_attr.grh.traffic_class, 106);
	assert_int_equal(m->attr.ah_attr.grh.dgid.raw[15], 9);
	m = &fake.modifies[2];
	assert_int_equal(m->attr.qp_state, IBV_QPS_RTS);
	assert_int_equal(m->attr.sq_psn, token >> 32 & 0xffffff);
	assert_int_equal(m->attr.timeout, 17);
	assert_int_equal(m->attr.retry_cnt, 5);
	assert_int_equal(m->attr.rnr_retry, 4);
	assert_int_equal(m->attr.max_rd_atomic, 16);
	assert_int_equal(fake.n_modifies, 3);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_READY);
	nic->ops->close(nic);
}

/* The kernel refuses: the lane stays idle and the words say what to look at. */
static void test_connect_fails(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	int n = nic->ops->address(nic, addr, sizeof(addr));
	uint64_t token;

	assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), 0);
	fake.fail = "modify_qp";
	fake.fail_errno = ETIMEDOUT;
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, (size_t)n, token), -ETIMEDOUT);
	assert_non_null(strstr(epf_last_error(), "RTR"));
	fake.fail_after = 1;
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, (size_t)n, token), -ETIMEDOUT);
	assert_non_null(strstr(epf_last_error(), "RTS"));
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_IDLE);
	nic->ops->close(nic);
}

static enum ibv_qp_state last_state(void)
{
	return fake.modifies[fake.n_modifies - 1].attr.qp_state;
}

static void test_fence(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_wr wr = { .op = EPF_WR_WRITE, .len = 8, .id = 4 };
	struct epf_wc wc[8];
	unsigned before;

	fake_lane(nic, 0, 8);
	nic->ops->post_receives(nic, 4);
	assert_int_equal(nic->ops->post(nic, 0, &wr, 1), 1);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 0);
	nic->ops->lane_fence(nic, 0);
	assert_int_equal(last_state(), IBV_QPS_ERR);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_ERROR);
	assert_int_equal(nic->ops->post(nic, 0, &wr, 1), -ENOTCONN);
	before = fake.n_modifies;
	nic->ops->lane_fence(nic, 0); /* once is enough */
	assert_int_equal(fake.n_modifies, before);
	/* Not before its work is over ... */
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 0);
	fake_complete(0, IBV_WC_WR_FLUSH_ERR);
	fake_arrive(fake_qpn(0), NULL, 1, 2); /* it had come in before */
	assert_int_equal(nic->ops->reap(nic, wc, 8), 2);
	assert_int_equal(wc[0].op, EPF_WC_RECV_IMM);
	assert_int_equal(wc[1].status, EPF_S_FLUSHED);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 0);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 0);
	assert_int_equal(last_state(), IBV_QPS_ERR);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	/* ... then the device must let go of it, then the last arrivals must be out. */
	assert_int_equal(nic->ops->lane_drained(nic, 0), 0);
	assert_int_equal(last_state(), IBV_QPS_RESET);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 0);
	fake_arrive(fake_qpn(0), NULL, 1, 3);
	assert_int_equal(nic->ops->reap(nic, wc, 1), 1);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 0);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 1);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 1);
	nic->ops->lane_destroy(nic, 0);
	assert_int_equal(nic->ops->lane_drained(nic, 0), 1);
	nic->ops->close(nic);
}

/* A fenced lane that has nothing drains all the same; where the kernel refuses, what is outstanding is given up. */
static void test_fence_refused(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_wr wr = { .op = EPF_WR_WRITE, .len = 8, .id = 4 };
	struct epf_wc wc[8];

	fake_lane(nic, 0, 8);
	fake_lane(nic, 1, 8);
	nic->ops->lane_fence(nic, 1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(nic->ops->lane_drained(nic, 1), 0);
		assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	}
	assert_int_equal(nic->ops->lane_drained(nic, 1), 1);
	assert_int_equal(nic->ops->post(nic, 0, &wr, 1), 1);
	fake.fail = "modify_qp";
	fake.fail_errno = EIO;
	nic->ops->lane_fence(nic, 0);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 1);
	assert_int_equal(wc[0].id, 4);
	assert_int_equal(wc[0].status, EPF_S_FLUSHED);
	fake_complete(0, IBV_WC_WR_FLUSH_ERR); /* it comes after all */
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	fake.fail = NULL;
	nic->ops->close(nic);
}

/* Numbers and queue pairs come and go; each arrival finds its lane. Queue pair numbers collide in the table on purpose. */
static void test_many(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	uint32_t qpn[200] = { 0 };
	uint64_t seed = 1, token;
	struct epf_wc wc[4];

	nic->ops->post_receives(nic, 8);
	for (int round = 0; round < 3000; round++) {
		uint16_t lane;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		lane = (uint16_t)((seed >> 33) % 200);
		if (qpn[lane] && (seed >> 60) < 5) {
			nic->ops->lane_destroy(nic, lane);
			qpn[lane] = 0;
		} else if (!qpn[lane]) {
			fake.n_qps = fake.n_modifies = 0;
			if (round % 7 == 0)
				fake.next_qpn += 128 * 1024;
			assert_int_equal(nic->ops->lane_create(nic, lane, 4, &token), 0);
			qpn[lane] = token & 0xffffff;
		}
		for (unsigned i = 0; i < 200; i += 13) {
			if (!qpn[i])
				continue;
			fake_arrive(qpn[i], NULL, 0, 1);
			assert_int_equal(nic->ops->reap(nic, wc, 4), 1);
			assert_int_equal(wc[0].lane, i);
			nic->ops->post_receives(nic, 1);
		}
	}
	nic->ops->close(nic);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_create), CASE(test_connect),       CASE(test_connect_fails),
		CASE(test_fence),  CASE(test_fence_refused), CASE(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
