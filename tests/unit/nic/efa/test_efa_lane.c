/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the EFA NIC over fake adapters (efa_rig.h): creation and its limits, what a queue pair and an address handle are asked for,
 * what comes before a lane is connected, fences at both ends, numbers used again, completions of queue pairs that are no more.
 */
#include "fabric/base/err.h"
#include "fabric/nic/efa/efa.h"
#include "tests/unit/nic/efa/efa_rig.h"

#include <errno.h>
#include <stdlib.h>

static struct epf_efa_opts opts;

static int setup(void **state)
{
	epf_efa_opts_defaults(&opts);
	return efa_setup(state);
}

static void test_create(void **state)
{
	static const char *const calls[] = { "efa_create_qp_ex", "qp_to_qp_ex", "modify_qp",
					     "reg_mr" };
	struct epf_nic *nic;
	uint64_t token = 9;
	int things;

	fake_efa.dev.max_qp = 10;
	nic = fake_efa_open(NULL);
	assert_int_equal(nic->ops->lane_create(nic, 10, 8, &token), -ENOSPC);
	assert_non_null(strstr(epf_last_error(), "lanes 0 to 9"));
	assert_int_equal(nic->ops->lane_create(nic, 0, 0, &token), -ENOSPC);
	assert_int_equal(nic->ops->lane_create(nic, 0, 4097, &token), -ENOSPC);
	assert_non_null(strstr(epf_last_error(), "lane-depth"));
	things = fake_efa.open_things;
	for (unsigned i = 0; i < 4; i++)
		for (int after = 0; after < (i == 2 ? 3 : 1); after++) {
			fake_efa.fail = calls[i];
			fake_efa.fail_errno = ENOMEM;
			fake_efa.fail_after = after;
			assert_true(nic->ops->lane_create(nic, 0, 8, &token) < 0);
			assert_int_equal(fake_efa.open_things, things);
			assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_IDLE);
		}
	fake_efa.fail = NULL;
	assert_int_equal(token, 9);
	assert_int_equal(nic->ops->lane_create(nic, 0, 4096, &token), 0);
	assert_true(epf_efa_token_is_good(token));
	assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), -EBUSY);
	nic->ops->close(nic);
}

/* Each attribute of a queue pair has its source. */
static void test_attributes(void **state)
{
	struct epf_nic *nic;
	uint64_t token;

	opts.service_level = 3;
	opts.rnr_retries = 5;
	opts.lane_receives = 77;
	nic = fake_efa_open(&opts);
	assert_int_equal(nic->ops->lane_create(nic, 0, 100, &token), 0);
	assert_int_equal(fake_efa.init.qp_type, IBV_QPT_DRIVER);
	assert_int_equal(fake_efa.init.cap.max_send_wr, 100);
	assert_int_equal(fake_efa.init.cap.max_recv_wr, 77);
	assert_int_equal(fake_efa.init.cap.max_inline_data, 32);
	assert_int_equal(fake_efa.init_efa.sl, 3);
	assert_int_equal(fake_efa.init_efa.flags, EPF_EFADV_QP_UNSOLICITED_WRITE_RECV);
	assert_true(fake_efa.rts_mask & IBV_QP_RNR_RETRY);
	assert_int_equal(fake_efa.rts.rnr_retry, 5);
	assert_int_equal(fake_efa_qp(efa_qpn(token))->state, IBV_QPS_RTS);
	nic->ops->close(nic);
	/* A device without the newer things is not asked for them. */
	fake_efa.attr.device_caps = EPF_EFADV_CAP_RDMA_READ | EPF_EFADV_CAP_RDMA_WRITE;
	nic = fake_efa_open(&opts);
	assert_int_equal(nic->ops->lane_create(nic, 0, 100, &token), 0);
	assert_int_equal(fake_efa.init_efa.flags, 0);
	assert_false(fake_efa.rts_mask & IBV_QP_RNR_RETRY);
	nic->ops->close(nic);
}

static void test_connect_refuses(void **state)
{
	struct epf_nic *nic = fake_efa_open(NULL);
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	int n = nic->ops->address(nic, addr, sizeof(addr));
	uint8_t other[EPF_EFA_ADDR_BYTES];
	struct epf_efa_peer peer;
	uint64_t token;
	int things;

	assert_int_equal(nic->ops->lane_create(nic, 0, 8, &token), 0);
	for (int at = 0; at < n; at++) {
		addr[at] ^= 0x10;
		assert_int_equal(nic->ops->lane_connect(nic, 0, addr, (size_t)n, token), -EINVAL);
		addr[at] ^= 0x10;
	}
	assert_int_equal(epf_efa_addr_decode(addr, (size_t)n, &peer), 0);
	assert_int_equal(peer.sink_rkey, epf_efa_of(nic)->sink_mr->rkey);
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, (size_t)n, token | 1ull << 55),
			 -EINVAL);
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, (size_t)n, token | 1ull << 20),
			 -EINVAL);
	peer.unsolicited = 0;
	epf_efa_addr_encode(&peer, other);
	assert_int_equal(nic->ops->lane_connect(nic, 0, other, sizeof(other), token), -EPROTO);
	assert_non_null(strstr(epf_last_error(), "efa-unsolicited=no on both"));
	things = fake_efa.open_things;
	fake_efa.fail = "create_ah";
	fake_efa.fail_errno = EINVAL;
	assert_true(nic->ops->lane_connect(nic, 0, addr, (size_t)n, token) < 0);
	assert_non_null(strstr(epf_last_error(), "security group"));
	assert_int_equal(fake_efa.open_things, things);
	fake_efa.fail = NULL;
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, (size_t)n, token), 0);
	assert_int_equal(nic->ops->lane_connect(nic, 0, addr, (size_t)n, token), -EBUSY);
	nic->ops->close(nic);
}

/* One address handle for all lanes to a peer, as long as there is one. */
static void test_handles(void **state)
{
	uint64_t tokens[2];
	int things;

	efa_open_ends(NULL);
	things = fake_efa.open_things;
	for (uint16_t lane = 0; lane < 20; lane++)
		efa_lane_pair(lane, tokens);
	assert_int_equal(fake_efa.ahs, 2);
	for (unsigned end = 0; end < 2; end++)
		for (uint16_t lane = 0; lane < 20; lane++)
			ends[end].nic->ops->lane_destroy(ends[end].nic, lane);
	assert_int_equal(fake_efa.open_things, things);
	efa_lane_pair(3, tokens);
	assert_int_equal(fake_efa.ahs, 4);
	efa_close_ends();
}

/* Arrivals before this end is connected are kept for it, messages with their bytes, and count as any other. */
static void test_early(void **state)
{
	uint64_t tokens[2];
	struct epf_nic *b;
	struct epf_wr wr;

	for (int round = 0; round < 2; round++) {
		opts.unsolicited = round;
		efa_open_ends(&opts);
		b = ends[1].nic;
		tokens[0] = efa_create(0, 0);
		tokens[1] = efa_create(1, 0);
		b->ops->post_receives(b, 10);
		efa_connect(0, 0, tokens[1]);
		memcpy(ends[0].mem, "message", 8);
		for (uint32_t i = 0; i < 8; i++) {
			wr = efa_wr(i % 2 ? EPF_WR_SEND : EPF_WR_WRITE_IMM, i, 8);
			efa_post(0, &wr);
		}
		fake_efa_intrude(efa_qpn(tokens[1]), 777, NULL, 0, 0xdead);
		efa_run(10000);
		assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 8);
		assert_int_equal(ends[1].n, 0);
		efa_connect(1, 0, tokens[0]);
		assert_int_equal(b->ops->next_event(b), 0);
		efa_reap(1);
		assert_int_equal(ends[1].n, 8);
		for (unsigned i = 0; i < 8; i++)
			if (ends[1].log[i].op == EPF_WC_RECV)
				assert_memory_equal(ends[1].log[i].msg, "message", 8);
			else
				assert_in_range(ends[1].log[i].imm, 0x1000, 0x1007);
		b->ops->post_receives(b, 8);
		efa_run(1000);
		assert_int_equal(fake_efa_receives(efa_qpn(tokens[1])), 10);
		efa_close_ends();
	}
}

/* A lane that is destroyed with arrivals that nobody heard leaves its receives to the next. */
static void test_early_dropped(void **state)
{
	uint64_t tokens[2];
	struct epf_nic *b;
	struct epf_wr wr = { 0 };

	for (int round = 0; round < 2; round++) {
		opts.unsolicited = round;
		efa_open_ends(&opts);
		b = ends[1].nic;
		tokens[0] = efa_create(0, 0);
		tokens[1] = efa_create(1, 0);
		b->ops->post_receives(b, 10);
		efa_connect(0, 0, tokens[1]);
		for (uint32_t i = 0; i < 8; i++) {
			wr = efa_wr(i % 2 ? EPF_WR_SEND : EPF_WR_WRITE_IMM, i, 8);
			efa_post(0, &wr);
		}
		efa_run(10000);
		b->ops->lane_destroy(b, 0);
		tokens[1] = efa_create(1, 0);
		assert_int_equal(fake_efa_receives(efa_qpn(tokens[1])), 10);
		assert_int_equal(epf_efa_of(b)->pool, 0);
		assert_int_equal(epf_efa_of(b)->surplus, 0);
		efa_close_ends();
	}
}

/* At the target: nothing lands any more, and once drained nothing can. */
static void test_fence_target(void **state)
{
	uint64_t tokens[2];
	struct epf_nic *b;
	struct epf_wr wr;
	unsigned before;

	efa_open_ends(NULL);
	b = ends[1].nic;
	efa_lane_pair(0, tokens);
	b->ops->post_receives(b, 8);
	memset(ends[0].mem, 0x11, 64);
	wr = efa_wr(EPF_WR_WRITE_IMM, 1, 64);
	efa_post(0, &wr);
	wr = efa_wr(EPF_WR_SEND, 2, 64);
	efa_post(0, &wr);
	b->ops->lane_fence(b, 0);
	b->ops->lane_fence(b, 0); /* twice is once */
	assert_int_equal(fake_efa_qp(efa_qpn(tokens[1]))->state, IBV_QPS_ERR);
	assert_int_equal(b->ops->lane_link(b, 0), EPF_LANE_ERROR);
	efa_run(10000);
	assert_int_equal(ends[1].n, 0);
	assert_int_equal(ends[1].mem[0], 0);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_RETRY_EXCEEDED), 1);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_FLUSHED), 1);
	/* Error, a look that finds nothing, reset, another look. */
	before = 0;
	while (!b->ops->lane_drained(b, 0)) {
		assert_true(before++ < 10);
		efa_run(400);
	}
	assert_int_equal(fake_efa_qp(efa_qpn(tokens[1]))->state, IBV_QPS_RESET);
	b->ops->lane_destroy(b, 0);
	assert_int_equal(b->ops->lane_drained(b, 0), 1);
	efa_close_ends();
}

/* At the sender: all that is outstanding is over, and nothing of it lands after the lane is drained. */
static void test_fence_sender(void **state)
{
	uint64_t tokens[2];
	struct epf_nic *a;
	struct epf_wr wr;

	efa_open_ends(NULL);
	a = ends[0].nic;
	for (uint32_t round = 0; round < 30; round++) {
		fake_efa.seed = round + 1;
		ends[0].n = ends[1].n = 0;
		efa_lane_pair(0, tokens);
		for (uint32_t i = 0; i < 10; i++) {
			wr = efa_wr(i % 3 ? EPF_WR_WRITE : EPF_WR_READ, i, 64);
			wr.laddr += 1024 * (uint64_t)(i % 3 == 0);
			efa_post(0, &wr);
		}
		efa_run(round * 40);
		a->ops->lane_fence(a, 0);
		for (unsigned i = 0; !a->ops->lane_drained(a, 0); i++) {
			assert_true(i < 10);
			efa_run(400);
		}
		assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK) +
					 efa_count(0, EPF_WC_SENT, EPF_S_FLUSHED),
				 10);
		assert_int_equal(ends[0].n, 10);
		memset(ends[1].mem, 0x22, 64);
		memset(ends[0].mem + 1024, 0x33, 64);
		efa_run(5000);
		assert_int_equal(ends[0].n, 10);
		for (unsigned i = 0; i < 64; i++) {
			assert_int_equal(ends[1].mem[i], 0x22);
			assert_int_equal(ends[0].mem[1024 + i], 0x33);
		}
		a->ops->lane_destroy(a, 0);
		ends[1].nic->ops->lane_destroy(ends[1].nic, 0);
	}
	assert_true(fake_efa.flushes > 0);
	efa_close_ends();
}

/* A device that does not say that it has flushed: the lane is given up after a time, not before. */
static void test_no_flush(void **state)
{
	uint64_t tokens[2], fenced_at;
	struct epf_nic *a;
	struct epf_wr wr;

	opts.flush_wait_ns = 100000;
	efa_open_ends(&opts);
	a = ends[0].nic;
	efa_lane_pair(0, tokens);
	fake_efa.no_flush = 1;
	fake_efa.is_cut = 1;
	for (uint32_t i = 0; i < 10; i++) {
		wr = efa_wr(EPF_WR_WRITE, i, 64);
		efa_post(0, &wr);
	}
	a->ops->lane_fence(a, 0);
	fenced_at = clock_ns;
	efa_reap(0);
	assert_int_equal(a->ops->next_event(a), fenced_at + 100000);
	efa_run(90000);
	assert_int_equal(ends[0].n, 0);
	assert_int_equal(a->ops->lane_drained(a, 0), 0);
	efa_run(20000);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_FLUSHED), 10);
	assert_int_equal(ends[0].n, 10);
	assert_int_equal(a->ops->next_event(a), UINT64_MAX);
	for (unsigned i = 0; !a->ops->lane_drained(a, 0); i++) {
		assert_true(i < 10);
		efa_run(400);
	}
	efa_close_ends();
}

/* Lanes destroyed in the middle of everything: completions of queue pairs that are no more are passed over, numbers are used again. */
static void test_numbers_again(void **state)
{
	uint64_t tokens[2];
	struct epf_nic *a, *b;
	struct epf_wr wr;

	efa_open_ends(NULL);
	a = ends[0].nic;
	b = ends[1].nic;
	efa_lane_pair(1, tokens); /* another lane, to see that nobody else is disturbed */
	efa_lane_pair(0, tokens);
	b->ops->post_receives(b, 40);
	for (uint32_t round = 0; round < 40; round++) {
		uint64_t old = tokens[1];

		fake_efa.seed = round + 1;
		fake_efa.reports_stale = round % 4 / 2;
		ends[0].n = ends[1].n = 0;
		memset(ends[1].mem, 0, 64);
		memset(ends[0].mem, 0x40 + (int)round, 64);
		for (uint32_t i = 0; i < 8; i++) {
			wr = efa_wr(i % 2 ? EPF_WR_WRITE_IMM : EPF_WR_SEND, i, 64);
			efa_post(0, &wr);
		}
		clock_ns += round * 50;
		efa_reap(round & 1); /* the other one's completions stay where they are */
		a->ops->lane_destroy(a, 0);
		b->ops->lane_destroy(b, 0);
		memset(ends[1].mem, 0, 64);
		ends[0].n = ends[1].n = 0;
		efa_lane_pair(0, tokens);
		assert_int_equal(efa_qpn(old), efa_qpn(tokens[1]));
		assert_true(old != tokens[1]);
		efa_run(5000);
		assert_int_equal(ends[0].n + ends[1].n, 0);
		assert_int_equal(ends[1].mem[0], 0);
		wr = efa_wr(EPF_WR_WRITE, 99, 64);
		efa_post(0, &wr);
		efa_post(1, &wr);
		efa_run(5000);
		assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 2);
		assert_int_equal(ends[1].mem[0], 0x40 + (int)round);
	}
	assert_true(fake_efa.stale > 0);
	assert_int_equal(epf_efa_of(a)->outstanding, 0);
	efa_close_ends();
}

/* Completions of a lane that is no more between those of one that lives: these all come. */
static void test_stale_between(void **state)
{
	uint64_t tokens[2];
	struct epf_wr wr;

	efa_open_ends(NULL);
	efa_lane_pair(1, tokens);
	efa_lane_pair(0, tokens);
	for (uint32_t i = 0; i < 16; i++) {
		wr = efa_wr(EPF_WR_WRITE, i, 64);
		efa_post(1, &wr);
		efa_post(0, &wr);
	}
	for (int i = 0; i < 20; i++, clock_ns += 500)
		efa_reap(1);
	ends[0].nic->ops->lane_destroy(ends[0].nic, 0);
	efa_run(5000);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 16);
	assert_int_equal(ends[0].n, 16);
	assert_int_equal(fake_efa.stale, 16);
	efa_close_ends();
}

/* Someone who guesses a queue pair's number does not have its key. */
static void test_wrong_key(void **state)
{
	uint64_t tokens[2];
	struct epf_wr wr;

	efa_open_ends(NULL);
	tokens[0] = efa_create(0, 0);
	tokens[1] = efa_create(1, 0);
	efa_connect(0, 0, tokens[1] ^ 1ull << 30);
	wr = efa_wr(EPF_WR_WRITE, 1, 64);
	memset(ends[0].mem, 0x11, 64);
	efa_post(0, &wr);
	efa_run(10000);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_RETRY_EXCEEDED), 1);
	assert_int_equal(ends[1].mem[0], 0);
	efa_close_ends();
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, efa_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_create),        CASE(test_attributes),    CASE(test_connect_refuses),
		CASE(test_handles),       CASE(test_early),         CASE(test_early_dropped),
		CASE(test_fence_target),  CASE(test_fence_sender),  CASE(test_no_flush),
		CASE(test_numbers_again), CASE(test_stale_between), CASE(test_wrong_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
