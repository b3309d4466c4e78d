/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path of the ofi NIC, and how its lanes fail, over a fake libfabric: what the providers of a machine cannot be made to do. What every NIC must do
 * is in the conformance suite.
 */
#include "tests/unit/nic/ofi/ofi_kit.h"

#include <rdma/fi_errno.h>

/* With 4 bytes of remote CQ data a notification is a message, and leaves when the write has completed. */
static void notifications_as_messages(void **state)
{
	fake_ofi.cq_data_size = 4;
	kit_open();
	fake_ofi.hold = true;
	kit.a.mem[5] = 77;
	assert_int_equal(kit_post(1, EPF_WR_WRITE_IMM, 100), 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(kit_reap(&kit.a) + kit_reap(&kit.b), 0);
	assert_int_equal(kit.b.mem[5], 77);
	assert_int_equal(fake_ofi.messages, 0);
	fake_ofi.hold = false;
	kit_reap(&kit.a);
	assert_int_equal(fake_ofi.messages, 1);
	assert_int_equal(fake_ofi.data_writes, 0);
	assert_int_equal(kit_reap(&kit.b), 1);
	assert_int_equal(kit.wc[0].op, EPF_WC_RECV_IMM);
	assert_int_equal(kit.wc[0].imm, 1001);
	assert_int_equal(kit.wc[0].len, 100);
	assert_int_equal(kit_run(&kit.a, EPF_WC_SENT, EPF_S_OK), 1);
}

static void notifications_as_data(void **state)
{
	kit_open();
	assert_int_equal(kit_post(1, EPF_WR_WRITE_IMM, 100), 1);
	assert_int_equal(kit_run(&kit.b, EPF_WC_RECV_IMM, EPF_S_OK), 1);
	assert_int_equal(fake_ofi.data_writes, 1);
	assert_int_equal(fake_ofi.messages, 0);
}

/* A lane takes its depth while the provider has no room, and everything goes through later. */
static void no_room_in_the_provider(void **state)
{
	struct epf_nic_ops const *ops;

	kit_open();
	ops = kit.a.nic->ops;
	fake_ofi.again = -1;
	for (uint32_t i = 0; i < KIT_DEPTH; i++)
		assert_int_equal(kit_post(i, EPF_WR_WRITE, 8), 1);
	assert_int_equal(kit_post(99, EPF_WR_WRITE, 8), 0);
	assert_int_equal(kit_reap(&kit.a), 0);
	assert_int_equal(fake_ofi.posts, 0);
	/* A core that sleeps looks again by itself. */
	assert_true(ops->next_event(kit.a.nic) > kit.now_ns);
	assert_true(ops->next_event(kit.a.nic) < kit.now_ns + 10000000);
	fake_ofi.again = 1;
	assert_int_equal(kit_run(&kit.a, EPF_WC_SENT, EPF_S_OK), KIT_DEPTH);
	/* An idle core too, because the fake has no descriptor: what peers write may move only while this end polls. */
	assert_true(ops->next_event(kit.a.nic) < kit.now_ns + 10000000);
}

/* No more than the provider's queue holds is with it at a time. */
static void bounded_in_the_provider(void **state)
{
	fake_ofi.tx_size = 4;
	kit_open();
	fake_ofi.hold = true;
	for (uint32_t i = 0; i < KIT_DEPTH; i++)
		assert_int_equal(kit_post(i, EPF_WR_WRITE, 8), 1);
	kit_reap(&kit.a);
	assert_int_equal(fake_ofi.posts, 4);
	fake_ofi.hold = false;
	assert_int_equal(kit_run(&kit.a, EPF_WC_SENT, EPF_S_OK), KIT_DEPTH);
}

/* The provider has room for one operation. Lanes that wait get it in turn, however much one of them posts. */
static void lanes_take_turns(void **state)
{
	enum { LANES = 3, EACH = 8 };

	const struct epf_nic_ops *ops;
	uint64_t token[LANES];
	unsigned sent[LANES] = { 0 };

	fake_ofi.tx_size = 1;
	kit_open();
	ops = kit.a.nic->ops;
	for (uint16_t l = 1; l < LANES; l++) {
		uint64_t back;

		assert_int_equal(ops->lane_create(kit.b.nic, l, KIT_DEPTH, &token[l]), 0);
		assert_int_equal(ops->lane_create(kit.a.nic, l, KIT_DEPTH, &back), 0);
		assert_int_equal(
			ops->lane_connect(kit.a.nic, l, kit.b.addr, kit.b.addr_len, token[l]), 0);
	}
	for (uint32_t i = 0; i < KIT_DEPTH; i++)
		assert_int_equal(kit_post(i, EPF_WR_WRITE, 8), 1);
	for (uint16_t l = 1; l < LANES; l++)
		for (uint32_t i = 0; i < EACH; i++) {
			struct epf_wr wr = kit_write(i, EPF_WR_WRITE, 8);

			assert_int_equal(ops->post(kit.a.nic, l, &wr, 1), 1);
		}
	for (unsigned n = 1; n <= LANES * EACH; n++) {
		assert_int_equal(kit_reap(&kit.a), 1);
		sent[kit.wc[0].lane]++;
		if (kit.wc[0].lane == 0)
			assert_int_equal(kit_post(n, EPF_WR_WRITE, 8), 1);
		for (unsigned l = 0; l < LANES; l++)
			assert_in_range(sent[l], n / LANES - (n >= LANES), n / LANES + 1);
	}
	for (unsigned l = 0; l < LANES; l++)
		assert_in_range(sent[l], EACH - 1, EACH + 1);
}

/* Posts three; the second fails like this. */
static void expect_status(int err, unsigned status)
{
	kit_open();
	assert_int_equal(kit_post(1, EPF_WR_WRITE, 8), 1);
	fake_ofi.fail = err;
	assert_int_equal(kit_post(2, EPF_WR_WRITE, 8), 1);
	assert_int_equal(kit_reap(&kit.a), 2);
	assert_int_equal(kit.wc[0].status, EPF_S_OK);
	assert_int_equal(kit.wc[1].status, status);
	assert_int_equal(kit.wc[1].id, 2);
	assert_int_equal(kit_link(&kit.a), EPF_LANE_ERROR);
	assert_int_equal(kit_post(3, EPF_WR_WRITE, 8), -ENOTCONN);
	assert_int_equal(kit.a.nic->ops->lane_drained(kit.a.nic, 0), 1);
}

#define ERROR_CASE(name, err, status) \
 static void name(void **state)       \
 {                                    \
  expect_status(err, status);         \
 }

ERROR_CASE(error_access, FI_EACCES, EPF_S_REMOTE_ACCESS)
ERROR_CASE(error_key, FI_EKEYREJECTED, EPF_S_REMOTE_ACCESS)
ERROR_CASE(error_canceled, FI_ECANCELED, EPF_S_RETRY_EXCEEDED)
ERROR_CASE(error_reset, FI_ECONNRESET, EPF_S_RETRY_EXCEEDED)
ERROR_CASE(error_no_receive, FI_ENORX, EPF_S_RNR_EXCEEDED)
ERROR_CASE(error_size, FI_EMSGSIZE, EPF_S_LOCAL)

/* A call that refuses at once fails its lane, and what waited behind it is flushed. */
static void refused_by_the_call(void **state)
{
	kit_open();
	fake_ofi.again = 1;
	assert_int_equal(kit_post(1, EPF_WR_WRITE, 8), 1);
	assert_int_equal(kit_post(2, EPF_WR_WRITE, 8), 1);
	fake_ofi.fail_post = FI_EHOSTUNREACH;
	assert_int_equal(kit_reap(&kit.a), 2);
	assert_int_equal(kit.wc[0].status, EPF_S_RETRY_EXCEEDED);
	assert_int_equal(kit.wc[1].status, EPF_S_FLUSHED);
}

/*
 * A fenced lane drains when the provider has reported what it has; and an arrival that is in the queue by then is reported, since its sender may know that it
 * was delivered.
 */
static void fence(void **state)
{
	const struct epf_nic_ops *ops;

	kit_open();
	ops = kit.a.nic->ops;
	fake_ofi.hold = true;
	assert_int_equal(kit_post(1, EPF_WR_WRITE_IMM, 8), 1);
	fake_ofi.again = -1;
	assert_int_equal(kit_post(2, EPF_WR_WRITE_IMM, 8), 1);
	kit.b.nic->ops->lane_fence(kit.b.nic, 0);
	ops->lane_fence(kit.a.nic, 0);
	assert_int_equal(kit_reap(&kit.a), 1);
	assert_int_equal(kit.wc[0].id, 2);
	assert_int_equal(kit.wc[0].status, EPF_S_FLUSHED);
	assert_int_equal(ops->lane_drained(kit.a.nic, 0), 0);
	assert_int_equal(kit_reap(&kit.b), 1);
	assert_int_equal(kit.wc[0].op, EPF_WC_RECV_IMM);
	assert_int_equal(kit.wc[0].imm, 1001);
	fake_ofi.hold = false;
	assert_int_equal(kit_reap(&kit.a), 1);
	assert_int_equal(kit.wc[0].status, EPF_S_OK);
	assert_int_equal(ops->lane_drained(kit.a.nic, 0), 1);
}

/* The write of a notification that travels as a message completes behind the fence: no message follows, and nobody thinks so. */
static void fence_between_write_and_message(void **state)
{
	fake_ofi.cq_data_size = 0;
	kit_open();
	fake_ofi.hold = true;
	assert_int_equal(kit_post(1, EPF_WR_WRITE_IMM, 8), 1);
	kit.a.nic->ops->lane_fence(kit.a.nic, 0);
	fake_ofi.hold = false;
	assert_int_equal(kit_reap(&kit.a), 1);
	assert_int_equal(kit.wc[0].status, EPF_S_FLUSHED);
	assert_int_equal(fake_ofi.messages, 0);
	assert_int_equal(kit_reap(&kit.b), 0);
}

/* Without progress a lane is lost: all is reported, then LANE_DOWN; drained only when the provider has let go. */
static void no_progress(void **state)
{
	const struct epf_nic_ops *ops;

	kit_open();
	ops = kit.a.nic->ops;
	fake_ofi.hold = true;
	assert_int_equal(kit_post(1, EPF_WR_WRITE, 8), 1);
	assert_int_equal(kit_post(2, EPF_WR_WRITE, 8), 1);
	ops->watch(kit.a.nic);
	kit.now_ns += kit.opts.timeout_ns;
	ops->watch(kit.a.nic);
	assert_int_equal(kit_reap(&kit.a), 0);
	kit.now_ns += 1;
	ops->watch(kit.a.nic);
	assert_int_equal(kit_reap(&kit.a), 3);
	assert_int_equal(kit.wc[0].status + kit.wc[1].status, EPF_S_RETRY_EXCEEDED + EPF_S_FLUSHED);
	assert_int_equal(kit.wc[2].op, EPF_WC_LANE_DOWN);
	assert_int_equal(kit.wc[2].status, EPF_S_RETRY_EXCEEDED);
	assert_int_equal(ops->lane_drained(kit.a.nic, 0), 0);
	fake_ofi.hold = false;
	assert_int_equal(kit_reap(&kit.a), 0);
	assert_int_equal(ops->lane_drained(kit.a.nic, 0), 1);
}

/* Progress, and having nothing to do, are no silence. */
static void progress(void **state)
{
	const struct epf_nic_ops *ops;

	kit_open();
	ops = kit.a.nic->ops;
	for (uint32_t i = 0; i < 5; i++) {
		ops->watch(kit.a.nic);
		assert_int_equal(kit_post(i, EPF_WR_WRITE, 8), 1);
		kit.now_ns += kit.opts.timeout_ns * 2;
		ops->watch(kit.a.nic);
		assert_int_equal(kit_reap(&kit.a), 1);
		kit.now_ns += kit.opts.timeout_ns * 2;
	}
	assert_int_equal(kit_link(&kit.a), EPF_LANE_READY);
}

/* What the provider reports of a lane that is gone concerns nobody, and its memory serves again. */
static void completions_of_a_lane_that_is_gone(void **state)
{
	const struct epf_nic_ops *ops;
	uint64_t token;

	kit_open();
	ops = kit.a.nic->ops;
	fake_ofi.hold = true;
	for (uint32_t i = 0; i < KIT_DEPTH; i++)
		assert_int_equal(kit_post(i, EPF_WR_WRITE, 8), 1);
	ops->lane_destroy(kit.a.nic, 0);
	assert_int_equal(ops->lane_create(kit.a.nic, 0, KIT_DEPTH, &token), 0);
	assert_int_not_equal(token, kit.a.token);
	assert_int_equal(kit_connect(&kit.a, &kit.b), 0);
	for (uint32_t i = 0; i < KIT_DEPTH; i++)
		assert_int_equal(kit_post(100 + i, EPF_WR_WRITE, 8), 1);
	fake_ofi.hold = false;
	for (int left = KIT_DEPTH; left;) {
		int n = kit_reap(&kit.a);

		assert_true(n > 0);
		for (int i = 0; i < n; i++)
			assert_true(kit.wc[i].id >= 100);
		left -= n;
	}
	assert_int_equal(kit_reap(&kit.a), 0);
}

/* An arrival waits for its lane to be connected; one of an earlier generation never gets there. */
static void early_and_late_arrivals(void **state)
{
	struct epf_nic_counters c;
	uint64_t old;

	kit_open_end(&kit.a);
	kit_open_end(&kit.b);
	assert_int_equal(kit_connect(&kit.a, &kit.b), 0);
	assert_int_equal(kit_post(1, EPF_WR_WRITE_IMM, 8), 1);
	assert_int_equal(kit_post(2, EPF_WR_SEND, 16), 1);
	assert_int_equal(kit_reap(&kit.b), 0);
	assert_int_equal(kit_connect(&kit.b, &kit.a), 0);
	assert_int_equal(kit_reap(&kit.b), 2);
	assert_int_equal(kit.wc[0].imm, 1001);
	assert_int_equal(kit.wc[1].op, EPF_WC_RECV);
	assert_int_equal(kit.wc[1].len, 16);
	old = kit.b.token;
	kit.b.nic->ops->lane_destroy(kit.b.nic, 0);
	assert_int_equal(kit.b.nic->ops->lane_create(kit.b.nic, 0, 8, &kit.b.token), 0);
	assert_int_not_equal((uint16_t)(old >> 16), (uint16_t)(kit.b.token >> 16));
	assert_int_equal(kit_connect(&kit.b, &kit.a), 0);
	assert_int_equal(kit_post(3, EPF_WR_WRITE_IMM, 8), 1);
	assert_int_equal(kit_post(4, EPF_WR_SEND, 8), 1);
	assert_int_equal(kit_reap(&kit.b), 0);
	kit.b.nic->ops->counters(kit.b.nic, &c);
	assert_int_equal(c.packets_dropped, 2);
}

/* Bytes from somebody who knows neither token nor layout raise no event, and cost no receive. */
static void strangers(void **state)
{
	uint8_t message[EPF_OFI_WIRE_BYTES] = { 0 };
	struct epf_ofi_header h = { .imm = 1, .len = 4, .kind = EPF_OFI_MESSAGE };
	const uint8_t *name;

	kit_open();
	name = kit.b.addr + 12; /* wire.c */
	assert_int_equal(epf_ofi_token_decode(kit.b.token, &h.to), 0);
	epf_ofi_header_encode(&h, message);
	for (size_t len = 0; len <= sizeof(message); len++)
		if (len != EPF_OFI_HEADER + 4)
			fake_ofi_message(name, message, len);
	h.to.nonce ^= 2;
	epf_ofi_header_encode(&h, message);
	fake_ofi_message(name, message, EPF_OFI_HEADER + 4);
	h.to.nonce ^= 2;
	h.to.lane = 7;
	epf_ofi_header_encode(&h, message);
	fake_ofi_message(name, message, EPF_OFI_HEADER + 4);
	fake_ofi_data(name, 0x1234567812340000);
	fake_ofi_data(name, ~0ull);
	for (int i = 0; i < 10; i++)
		assert_int_equal(kit_reap(&kit.b), 0);
	h.to.lane = 0;
	epf_ofi_header_encode(&h, message);
	fake_ofi_message(name, message, EPF_OFI_HEADER + 4);
	assert_int_equal(kit_reap(&kit.b), 1);
	assert_int_equal(kit.wc[0].op, EPF_WC_RECV);
	assert_int_equal(kit_post(1, EPF_WR_SEND, 8), 1);
	assert_int_equal(kit_run(&kit.b, EPF_WC_RECV, EPF_S_OK), 1);
}

/* Where remote CQ data consumes receives (FI_RX_CQ_DATA), as many are posted again. */
static void data_that_consumes_receives(void **state)
{
	fake_ofi.mode = FI_RX_CQ_DATA;
	kit_open();
	for (uint32_t i = 0; i < 500; i++) {
		assert_int_equal(kit_post(i, i % 3 ? EPF_WR_WRITE_IMM : EPF_WR_SEND, 8), 1);
		assert_int_equal(kit_reap(&kit.b), 1);
		kit.b.nic->ops->post_receives(kit.b.nic, 1);
		assert_int_equal(kit_reap(&kit.a), 1);
	}
}

static void link_down(void **state)
{
	const struct epf_nic_ops *ops;
	struct epf_nic_counters c;

	kit_open();
	ops = kit.a.nic->ops;
	assert_int_equal(ops->set_link(kit.a.nic, 0, 0), 0);
	ops->counters(kit.a.nic, &c);
	assert_int_equal(c.link_up, 0);
	assert_int_equal(ops->link_ready(kit.a.nic, 0), 0);
	assert_int_equal(kit_post(1, EPF_WR_WRITE, 8), 1);
	assert_int_equal(kit_reap(&kit.a), 0);
	ops->watch(kit.a.nic);
	assert_int_equal(ops->set_link(kit.a.nic, 0, 1), 0);
	assert_int_equal(kit_run(&kit.a, EPF_WC_SENT, EPF_S_OK), 1);
	assert_int_equal(ops->set_link(kit.a.nic, 0, 0), 0);
	assert_int_equal(kit_post(2, EPF_WR_WRITE, 8), 1);
	kit.now_ns += kit.opts.timeout_ns + 1;
	ops->watch(kit.a.nic);
	assert_int_equal(kit_reap(&kit.a), 2);
	assert_int_equal(kit.wc[0].status, EPF_S_RETRY_EXCEEDED);
	assert_int_equal(kit.wc[1].op, EPF_WC_LANE_DOWN);
}

static void queue_lost(void **state)
{
	kit_open();
	fake_ofi.hold = true;
	assert_int_equal(kit_post(1, EPF_WR_WRITE, 8), 1);
	fake_ofi.is_lost = true;
	assert_int_equal(kit_run(&kit.a, EPF_WC_LANE_DOWN, EPF_S_LINK_DOWN), 1);
	assert_int_equal(kit_link(&kit.a), EPF_LANE_ERROR);
	assert_int_equal(kit.a.nic->ops->link_ready(kit.a.nic, 0), 0);
	fake_ofi.is_lost = false;
}

/* Even lanes fail after so many work requests, for tests of failover. */
static void fail_after(void **state)
{
	kit.opts.fail_after = 5;
	kit_open();
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(kit_post(i, EPF_WR_WRITE, 8), 1);
	assert_int_equal(kit_run(&kit.a, EPF_WC_SENT, EPF_S_OK), 4);
	assert_int_equal(kit_post(5, EPF_WR_WRITE, 8), 1);
	assert_int_equal(kit_run(&kit.a, EPF_WC_LANE_DOWN, EPF_S_RETRY_EXCEEDED), 1);
}

/* Addresses: what is damaged is refused, wherever the damage is. */
static void addresses(void **state)
{
	struct epf_ofi_place place, same;
	uint8_t bytes[EPF_NIC_ADDR_BYTES];
	int n;

	kit_open();
	assert_int_equal(epf_ofi_place_decode(kit.a.addr, kit.a.addr_len, &place), 0);
	assert_int_equal(place.len, 4);
	n = epf_ofi_place_encode(&place, bytes, sizeof(bytes));
	assert_int_equal(n, kit.a.addr_len);
	assert_memory_equal(bytes, kit.a.addr, kit.a.addr_len);
	for (int i = 0; i < n; i++) {
		assert_true(epf_ofi_place_decode(bytes, (size_t)i, &same) < 0);
		assert_true(epf_ofi_place_encode(&place, bytes + 256, (size_t)i) < 0);
		bytes[i] ^= 4;
		assert_true(epf_ofi_place_decode(bytes, (size_t)n, &same) < 0);
		bytes[i] ^= 4;
	}
	assert_int_equal(epf_ofi_place_decode(bytes, (size_t)n, &same), 0);
	assert_memory_equal(&place, &same, sizeof(same));
}

/* Peers that use another provider cannot be connected to, and the message says what to set. */
static void another_provider(void **state)
{
	uint64_t token;

	kit_open_end(&kit.a);
	fake_ofi.infos[0].provider = "other";
	kit.opts.provider = "other";
	kit_open_end(&kit.b);
	assert_true(kit_connect(&kit.a, &kit.b) < 0);
	assert_int_equal(epf_last_reason(), EPF_R_NIC_PEER_MODE);
	assert_non_null(strstr(epf_last_error(), "ofi-provider"));
	assert_int_equal(kit.a.nic->ops->lane_create(kit.a.nic, 1, 8, &token), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, kit_setup, kit_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(notifications_as_messages),
		CASE(notifications_as_data),
		CASE(no_room_in_the_provider),
		CASE(bounded_in_the_provider),
		CASE(lanes_take_turns),
		CASE(error_access),
		CASE(error_key),
		CASE(error_canceled),
		CASE(error_reset),
		CASE(error_no_receive),
		CASE(error_size),
		CASE(refused_by_the_call),
		CASE(fence),
		CASE(fence_between_write_and_message),
		CASE(no_progress),
		CASE(progress),
		CASE(completions_of_a_lane_that_is_gone),
		CASE(early_and_late_arrivals),
		CASE(strangers),
		CASE(data_that_consumes_receives),
		CASE(link_down),
		CASE(queue_lost),
		CASE(fail_after),
		CASE(addresses),
		CASE(another_provider),
	};

	return cmocka_run_group_tests_name("ofi", tests, NULL, NULL);
}
