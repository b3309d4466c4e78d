/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP NIC against peers that have proven themselves and then break the rules: each loses its lane, none writes memory that was not exported, and a lane to an honest
 * peer goes on through all of it.
 */
#include "tests/unit/nic/tcp/hostile_kit.h"

/* Sends a train of one descriptor, of whose payload only `given` bytes. */
static void send_train(int fd, const struct epf_tcp_desc *d, uint32_t ack, uint32_t given)
{
	struct epf_tcp_head h = { .count = 1, .ack = ack, .bytes = epf_tcp_payload(d) };
	uint8_t buf[EPF_TCP_HEAD_BYTES + EPF_TCP_DESC_BYTES];
	uint8_t *payload = malloc(given ? given : 1);

	assert_non_null(payload);
	memset(payload, 0xaa, given);
	epf_tcp_head_encode(&h, buf);
	epf_tcp_desc_encode(d, buf + EPF_TCP_HEAD_BYTES);
	kit_send(fd, buf, sizeof(buf));
	if (given)
		kit_send(fd, payload, given);
	free(payload);
}

/* The lane is down, said once, and nothing else happened. */
static void expect_down(struct stage *s, uint16_t lane)
{
	struct epf_wc wc[4];

	assert_int_equal(kit_reap(s->nic, wc, 4), 1);
	assert_int_equal(wc[0].op, EPF_WC_LANE_DOWN);
	assert_int_equal(wc[0].lane, lane);
	s->nic->ops->lane_destroy(s->nic, lane);
	honest_goes_on(s, 0);
}

static void broken_trains_cost_their_lane(void **state)
{
	static const struct epf_tcp_desc wrong[] = {
		{ .kind = 0 },
		{ .kind = 9, .len = 4 },
		{ .kind = EPF_TCP_SEND, .len = 129 },
		{ .kind = EPF_TCP_WRITE, .len = (1 << 20) + 1 },
		{ .kind = EPF_TCP_WRITE, .len = 4, .status = 3 },
		{ .kind = EPF_TCP_BYTES, .len = 4 },                             /* nobody asked */
		{ .kind = EPF_TCP_NAK, .status = EPF_S_REMOTE_ACCESS },          /* of nothing */
		{ .kind = EPF_TCP_NAK, .status = EPF_S_REMOTE_ACCESS, .imm = 9 } /* of the future */
	};
	struct stage *s = open_stage(64, LONG_NS);
	uint64_t errors = errors_of(s->nic), token;
	int fd;

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		fd = kit_lane(s->nic, &s->key, 1, &token);
		send_train(fd, &wrong[i], 0, 0);
		expect_down(s, 1);
		expect_end(fd);
		assert_true(errors_of(s->nic) > errors);
		errors = errors_of(s->nic);
	}
	/* Bytes that are none, and an acknowledgement of what was not sent. */
	fd = kit_lane(s->nic, &s->key, 1, &token);
	kit_send(fd, "sixteen bytes...and some more", 29);
	expect_down(s, 1);
	expect_end(fd);
	fd = kit_lane(s->nic, &s->key, 1, &token);
	send_train(fd, &(struct epf_tcp_desc){ .kind = EPF_TCP_WRITE }, 1, 0);
	expect_down(s, 1);
	expect_end(fd);
	/* More reads at once than are allowed: nobody reads the answers. */
	fd = kit_lane(s->nic, &s->key, 1, &token);
	for (int i = 0; i <= 100; i++) {
		struct epf_tcp_desc d = {
			.kind = EPF_TCP_READ, .raddr = s->mr.raddr, .rkey = s->mr.rkey, .len = BYTES
		};
		struct epf_tcp_head h = { .count = 1 };
		uint8_t buf[EPF_TCP_HEAD_BYTES + EPF_TCP_DESC_BYTES];

		epf_tcp_head_encode(&h, buf);
		epf_tcp_desc_encode(&d, buf + EPF_TCP_HEAD_BYTES);
		if (send(fd, buf, sizeof(buf), MSG_NOSIGNAL) < 0)
			break;
	}
	expect_down(s, 1);
	close(fd);
	close_stage(s);
}

/* The refusal that a request of one descriptor gets. */
static void expect_nak(struct stage *s, int fd, unsigned status)
{
	uint8_t buf[EPF_TCP_HEAD_BYTES + EPF_TCP_DESC_BYTES];
	struct epf_tcp_desc d[EPF_TCP_TRAIN];
	struct epf_tcp_head h;
	struct epf_wc wc[4];

	while (recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT) < (ssize_t)sizeof(buf)) {
		assert_int_equal(s->nic->ops->reap(s->nic, wc, 4), 0);
		usleep(100);
	}
	assert_int_equal(kit_receive(fd, buf, sizeof(buf)), 1);
	assert_int_equal(epf_tcp_head_decode(buf, &h), 0);
	assert_int_equal(h.count, 1);
	assert_int_equal(epf_tcp_descs_decode(&h, buf + EPF_TCP_HEAD_BYTES, d), 0);
	assert_int_equal(d[0].kind, EPF_TCP_NAK);
	assert_int_equal(d[0].status, status);
	assert_int_equal(d[0].imm, 0);
	close(fd);
	expect_down(s, 1);
}

static void memory_that_is_not_exported_stays_as_it_is(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	uint64_t base = s->mr.raddr, token;
	const struct epf_tcp_desc wrong[] = {
		{ .kind = EPF_TCP_WRITE, .raddr = base, .rkey = s->mr.rkey ^ 0x10000, .len = 64 },
		{ .kind = EPF_TCP_WRITE, .raddr = base, .rkey = 0, .len = 64 },
		{ .kind = EPF_TCP_WRITE, .raddr = base - 1, .rkey = s->mr.rkey, .len = 64 },
		{ .kind = EPF_TCP_WRITE,
		  .raddr = base + BYTES - 63,
		  .rkey = s->mr.rkey,
		  .len = 64 },
		{ .kind = EPF_TCP_WRITE, .raddr = UINT64_MAX - 10, .rkey = s->mr.rkey, .len = 64 },
		{ .kind = EPF_TCP_WRITE,
		  .raddr = s->read_only.raddr,
		  .rkey = s->read_only.rkey,
		  .len = 64 },
		{ .kind = EPF_TCP_WRITE_IMM, .raddr = base + BYTES, .rkey = s->mr.rkey, .len = 64 },
		{ .kind = EPF_TCP_READ, .raddr = base + BYTES - 63, .rkey = s->mr.rkey, .len = 64 },
		{ .kind = EPF_TCP_READ, .raddr = 4096, .rkey = 0xffff, .len = 64 },
	};

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		int fd = kit_lane(s->nic, &s->key, 1, &token);

		send_train(fd, &wrong[i], 0, epf_tcp_payload(&wrong[i]));
		expect_nak(s, fd, EPF_S_REMOTE_ACCESS);
	}
	close_stage(s);
}

/* The region goes while its bytes come in: what comes afterwards is not written. */
static void a_region_that_goes_is_not_written(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	struct epf_tcp_desc d = { .kind = EPF_TCP_WRITE, .len = 60000 };
	uint8_t *gone = malloc(65536);
	struct epf_nic_mr mr;
	struct epf_wc wc[4];
	uint64_t token;
	int fd;

	assert_non_null(gone);
	memset(gone, 0, 65536);
	assert_int_equal(
		s->nic->ops->region_register(s->nic, gone, 65536, EPF_MR_REMOTE_WRITE, &mr), 0);
	d.raddr = mr.raddr;
	d.rkey = mr.rkey;
	fd = kit_lane(s->nic, &s->key, 1, &token);
	send_train(fd, &d, 0, 30000);
	while (gone[29999] != 0xaa) {
		assert_int_equal(s->nic->ops->reap(s->nic, wc, 4), 0);
		usleep(100);
	}
	s->nic->ops->region_deregister(s->nic, &mr);
	memset(gone, 0, 65536);
	for (int i = 0; i < 3000; i++)
		kit_send(fd, "0123456789", 10);
	expect_nak(s, fd, EPF_S_REMOTE_ACCESS);
	for (int i = 0; i < 65536; i++)
		assert_int_equal(gone[i], 0);
	free(gone);
	close_stage(s);
}

/* A peer that stops in the middle of a train, and one that goes away there. */
static void half_a_train_waits_or_ends(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	struct epf_tcp_desc d = { .kind = EPF_TCP_WRITE_IMM, .len = 1000 };
	uint64_t token;
	int fd;

	d.raddr = s->mr.raddr + 8192;
	d.rkey = s->mr.rkey;
	for (uint32_t given = 0; given < 1000; given += 333) {
		fd = kit_lane(s->nic, &s->key, 1, &token);
		send_train(fd, &d, 0, given);
		honest_goes_on(s, 0);
		close(fd);
		expect_down(s, 1);
	}
	fd = kit_lane(s->nic, &s->key, 1, &token);
	kit_send(fd, "EPTR", 4);
	honest_goes_on(s, 0);
	close(fd);
	expect_down(s, 1);
	close_stage(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(broken_trains_cost_their_lane),
		cmocka_unit_test(memory_that_is_not_exported_stays_as_it_is),
		cmocka_unit_test(a_region_that_goes_is_not_written),
		cmocka_unit_test(half_a_train_waits_or_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
