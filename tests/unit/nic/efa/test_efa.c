/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The EFA NIC's data path over fake adapters (efa_rig.h): what becomes of each kind of work request, each of the device's
 * errors, arrivals with and without a receive, receives spread over lanes, strangers, a device that breaks.
 */
#include "fabric/base/err.h"
#include "fabric/gpu/device_mem.h"
#include "fabric/nic/efa/efa.h"
#include "tests/unit/nic/efa/efa_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static struct epf_efa_opts opts;

static int setup(void **state)
{
	epf_efa_opts_defaults(&opts);
	return efa_setup(state);
}

static void test_places(void **state)
{
	const struct epf_efa *v;
	uint64_t tokens[2];
	unsigned char local[100];
	struct epf_wr wr;

	efa_open_ends(NULL);
	v = epf_efa_of(ends[1].nic);
	efa_lane_pair(0, tokens);
	ends[1].nic->ops->post_receives(ends[1].nic, 8);
	wr = efa_wr(EPF_WR_WRITE, 1, 3000);
	efa_post(0, &wr);
	assert_int_equal(fake_efa.last_sge.addr, wr.laddr);
	assert_int_equal(fake_efa.last_sge.lkey, wr.lkey);
	assert_int_equal(fake_efa.last_sge.length, 3000);
	assert_int_equal(fake_efa.last_flags,
			 IBV_SEND_SIGNALED); /* each one: the provider insists */
	/* Without bytes: keys that are good at both ends, whatever the caller gave. */
	wr = efa_wr(EPF_WR_WRITE_IMM, 2, 0);
	wr.rkey = wr.lkey = 0;
	wr.raddr = wr.laddr = 0;
	efa_post(0, &wr);
	assert_int_equal(fake_efa.last_rkey, v->sink_mr->rkey);
	assert_int_equal(fake_efa.last_raddr, (uintptr_t)v->sink);
	/* Inline: a short message goes with its work request, a write and a long message by way of the bounce slots. */
	memset(local, 0x42, sizeof(local));
	wr = efa_wr(EPF_WR_SEND, 3, 32);
	wr.flags = EPF_WR_INLINE;
	wr.laddr = (uintptr_t)local;
	efa_post(0, &wr);
	assert_int_equal(fake_efa.inlined, 1);
	wr.len = 33;
	efa_post(0, &wr);
	wr.op = EPF_WR_WRITE;
	wr.len = 8;
	wr.raddr += 4096;
	efa_post(0, &wr);
	assert_int_equal(fake_efa.inlined, 1);
	assert_int_not_equal(fake_efa.last_sge.addr, wr.laddr);
	memset(local, 0, sizeof(local));
	efa_run(10000);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 5);
	assert_int_equal(efa_count(1, EPF_WC_RECV, EPF_S_OK), 2);
	assert_int_equal(efa_count(1, EPF_WC_RECV_IMM, EPF_S_OK), 1);
	assert_int_equal(ends[1].mem[4096], 0x42);
	efa_close_ends();
}

/* More inline bytes than 32: writes carry theirs too, and a lane holds half as many. */
static void test_inline_writes(void **state)
{
	struct epf_nic_caps caps;
	uint64_t tokens[2];
	uint64_t value = 0x1122334455667788;
	struct epf_wr wr;

	opts.inline_bytes = 128; /* the device has 80 */
	efa_open_ends(&opts);
	ends[0].nic->ops->describe(ends[0].nic, &caps);
	assert_int_equal(caps.lane_depth, 2048);
	efa_lane_pair(0, tokens);
	assert_int_equal(fake_efa.init.cap.max_inline_data, 80);
	assert_true(fake_efa.init_efa.flags & EPF_EFADV_QP_INLINE_WRITE);
	wr = efa_wr(EPF_WR_WRITE, 1, 8);
	wr.flags = EPF_WR_INLINE;
	wr.laddr = (uintptr_t)&value;
	efa_post(0, &wr);
	assert_int_equal(fake_efa.inlined, 1);
	value = 0;
	efa_run(10000);
	memcpy(&value, ends[1].mem, 8);
	assert_true(value == 0x1122334455667788);
	efa_close_ends();
}

static void test_errors(void **state)
{
	static const struct {
		unsigned vendor, status;
	} rows[] = {
		{ EPF_EFA_FLUSHED, EPF_S_FLUSHED },
		{ EPF_EFA_LOCAL_QP_ERROR, EPF_S_LOCAL },
		{ EPF_EFA_LOCAL_UNSUPPORTED_OP, EPF_S_LOCAL },
		{ EPF_EFA_LOCAL_INVALID_AH, EPF_S_LOCAL },
		{ EPF_EFA_LOCAL_INVALID_LKEY, EPF_S_LOCAL },
		{ EPF_EFA_LOCAL_BAD_LENGTH, EPF_S_LOCAL },
		{ EPF_EFA_REMOTE_BAD_ADDRESS, EPF_S_REMOTE_ACCESS },
		{ EPF_EFA_REMOTE_ABORT, EPF_S_RETRY_EXCEEDED },
		{ EPF_EFA_REMOTE_BAD_DEST_QPN, EPF_S_RETRY_EXCEEDED },
		{ EPF_EFA_REMOTE_RNR, EPF_S_RNR_EXCEEDED },
		{ EPF_EFA_REMOTE_BAD_LENGTH, EPF_S_REMOTE_ACCESS },
		{ EPF_EFA_REMOTE_BAD_STATUS, EPF_S_RETRY_EXCEEDED },
		{ EPF_EFA_UNRESPONSIVE_REMOTE, EPF_S_RETRY_EXCEEDED },
		{ EPF_EFA_REMOTE_UNKNOWN_PEER, EPF_S_RETRY_EXCEEDED },
		{ EPF_EFA_UNREACHABLE_REMOTE, EPF_S_RETRY_EXCEEDED },
		{ EPF_EFA_REMOTE_FEATURE_MISMATCH, EPF_S_REMOTE_ACCESS },
		{ 99, EPF_S_RETRY_EXCEEDED }, /* of a device that comes after us */
	};
	struct epf_nic_counters counters;
	uint64_t tokens[2];
	struct epf_wr wr;

	efa_open_ends(NULL);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct epf_nic *a = ends[0].nic;

		ends[0].n = 0;
		efa_lane_pair(0, tokens);
		wr = efa_wr(EPF_WR_WRITE, i, 8);
		fake_efa.break_next = 1;
		fake_efa.break_status = rows[i].vendor;
		efa_post(0, &wr);
		efa_run(10000);
		assert_int_equal(ends[0].n, 1);
		assert_int_equal(ends[0].log[0].status, rows[i].status);
		assert_int_equal(a->ops->lane_link(a, 0), EPF_LANE_ERROR);
		assert_int_equal(fake_efa_qp(efa_qpn(tokens[0]))->state, IBV_QPS_ERR);
		assert_int_equal(a->ops->post(a, 0, &wr, 1), -ENOTCONN);
		a->ops->lane_destroy(a, 0);
		ends[1].nic->ops->lane_destroy(ends[1].nic, 0);
	}
	ends[0].nic->ops->counters(ends[0].nic, &counters);
	assert_int_equal(counters.errors, sizeof(rows) / sizeof(rows[0]) - 1);
	assert_int_equal(counters.rnr_events, 1);
	efa_close_ends();
}

/* The provider takes none: nothing is lost of the lane's room, and the lane lives or not by the reason. */
static void test_post_fails(void **state)
{
	struct epf_nic *a;
	uint64_t tokens[2];
	struct epf_wr wr[16];

	efa_open_ends(NULL);
	a = ends[0].nic;
	efa_lane_pair(0, tokens);
	for (uint32_t i = 0; i < 16; i++)
		wr[i] = efa_wr(EPF_WR_WRITE, i, 8);
	fake_efa.fail = "wr_complete";
	fake_efa.fail_errno = ENOMEM;
	assert_int_equal(a->ops->post(a, 0, wr, 16), 0);
	assert_int_equal(a->ops->lane_link(a, 0), EPF_LANE_READY);
	fake_efa.fail = NULL;
	assert_int_equal(a->ops->post(a, 0, wr, 16), 16);
	assert_int_equal(a->ops->post(a, 0, wr, 1), 0); /* full */
	efa_run(10000);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 16);
	fake_efa.fail = "wr_complete";
	fake_efa.fail_errno = EIO;
	assert_int_equal(a->ops->post(a, 0, wr, 4), 0);
	fake_efa.fail = NULL;
	assert_int_equal(a->ops->post(a, 0, wr, 4), -ENOTCONN);
	efa_run(10000);
	assert_int_equal(efa_count(0, EPF_WC_LANE_DOWN, EPF_S_RETRY_EXCEEDED), 1);
	assert_int_equal(ends[0].n, 17);
	efa_close_ends();
}

/* No more work requests outstanding than the completion queue holds, over all lanes. */
static void test_completions(void **state)
{
	uint64_t tokens[2];
	struct epf_wr wr[16];
	struct epf_nic *a;

	opts.completions = 20;
	efa_open_ends(&opts);
	a = ends[0].nic;
	for (uint16_t lane = 0; lane < 2; lane++)
		efa_lane_pair(lane, tokens);
	for (uint32_t i = 0; i < 16; i++)
		wr[i] = efa_wr(EPF_WR_WRITE, i, 8);
	assert_int_equal(a->ops->post(a, 0, wr, 16), 16);
	assert_int_equal(a->ops->post(a, 1, wr, 16), 4);
	assert_int_equal(a->ops->post(a, 1, wr, 16), 0);
	efa_run(10000);
	assert_int_equal(a->ops->post(a, 1, wr, 16), 16);
	efa_run(10000);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_OK), 36);
	efa_close_ends();
}

/* Each lane gets its share, keeps it, and leaves it to the next of its number. */
static void test_receives(void **state)
{
	uint64_t tokens[3][2];
	struct epf_nic *b;
	struct epf_wr wr;

	opts.unsolicited = 0;
	efa_open_ends(&opts);
	b = ends[1].nic;
	for (uint16_t lane = 0; lane < 3; lane++)
		efa_lane_pair(lane, tokens[lane]);
	b->ops->post_receives(b, 30);
	for (unsigned lane = 0; lane < 3; lane++)
		assert_int_equal(fake_efa_receives(efa_qpn(tokens[lane][1])), 10);
	for (uint32_t i = 0; i < 7; i++) {
		wr = efa_wr(i % 2 ? EPF_WR_SEND : EPF_WR_WRITE_IMM, i, 8);
		efa_post(1, &wr);
	}
	efa_run(10000);
	assert_int_equal(efa_count(1, EPF_WC_RECV, -1) + efa_count(1, EPF_WC_RECV_IMM, -1), 7);
	assert_int_equal(fake_efa_receives(efa_qpn(tokens[1][1])), 3);
	b->ops->post_receives(b, 7);
	assert_int_equal(fake_efa_receives(efa_qpn(tokens[1][1])), 10);
	/* The lane is made again, while receives of the others come and go. */
	b->ops->lane_destroy(b, 1);
	b->ops->post_receives(b, 0);
	assert_int_equal(fake_efa_receives(efa_qpn(tokens[0][1])), 10);
	tokens[1][1] = efa_create(1, 1);
	assert_int_equal(fake_efa_receives(efa_qpn(tokens[1][1])), 10);
	assert_int_equal(fake_efa.rnrs, 0);
	efa_close_ends();
}

/* Arrivals that consume no receive: what the core gives for them is not posted, or the queues would run over. */
static void test_unsolicited(void **state)
{
	uint64_t tokens[2];
	struct epf_nic *b;
	struct epf_wr wr;

	opts.lane_receives = 16;
	efa_open_ends(&opts);
	b = ends[1].nic;
	efa_lane_pair(0, tokens);
	b->ops->post_receives(b, 10);
	for (uint32_t i = 0; i < 100; i++) {
		wr = efa_wr(i % 4 ? EPF_WR_WRITE_IMM : EPF_WR_SEND, i, 8);
		efa_post(0, &wr);
		efa_run(3000);
		b->ops->post_receives(b, 1);
		assert_int_equal(fake_efa_receives(efa_qpn(tokens[1])), 10);
	}
	assert_int_equal(fake_efa.unsolicited, 75);
	assert_int_equal(efa_count(1, EPF_WC_RECV_IMM, -1), 75);
	assert_int_equal(efa_count(1, EPF_WC_RECV, -1), 25);
	assert_int_equal(epf_efa_of(b)->pool, 0);
	assert_int_equal(epf_efa_of(b)->surplus, 0);
	efa_close_ends();
}

/* Whoever is not the lane's peer is not heard, and costs nobody a receive. */
static void test_strangers(void **state)
{
	struct epf_nic_counters counters;
	uint64_t tokens[2];
	struct epf_nic *b;

	for (int round = 0; round < 2; round++) {
		opts.unsolicited = round;
		efa_open_ends(&opts);
		b = ends[1].nic;
		efa_lane_pair(0, tokens);
		b->ops->post_receives(b, 4);
		fake_efa_intrude(efa_qpn(tokens[1]), 777, "hello", 5, 0);
		fake_efa_intrude(efa_qpn(tokens[1]), 777, NULL, 0, 0xdead);
		efa_run(2000);
		assert_int_equal(ends[1].n, 0);
		assert_int_equal(fake_efa_receives(efa_qpn(tokens[1])), 4);
		fake_efa_intrude(efa_qpn(tokens[1]), efa_qpn(tokens[0]), NULL, 0, 0xbeef);
		efa_run(2000);
		assert_int_equal(ends[1].n, 1);
		assert_int_equal(ends[1].log[0].imm, 0xbeef);
		b->ops->counters(b, &counters);
		assert_int_equal(counters.errors, 2);
		assert_int_equal(epf_efa_of(b)->receives.all, 1024);
		efa_close_ends();
	}
}

/* A receive that the provider does not take is tried again. */
static void test_receive_fails(void **state)
{
	uint64_t tokens[2];
	struct epf_nic *b;

	efa_open_ends(NULL);
	b = ends[1].nic;
	efa_lane_pair(0, tokens);
	fake_efa.fail = "post_recv";
	fake_efa.fail_errno = ENOMEM;
	fake_efa.fail_after = 3;
	b->ops->post_receives(b, 8);
	assert_int_equal(fake_efa_receives(efa_qpn(tokens[1])), 3);
	fake_efa.fail = NULL;
	efa_run(1000);
	assert_int_equal(fake_efa_receives(efa_qpn(tokens[1])), 8);
	efa_close_ends();
}

/* A queue that cannot be polled: every lane is down, what was outstanding is over, once each. */
static void test_broken(void **state)
{
	struct epf_nic_counters counters;
	uint64_t tokens[2];
	struct epf_wr wr;

	efa_open_ends(NULL);
	for (uint16_t lane = 0; lane < 3; lane++)
		efa_lane_pair(lane, tokens);
	for (uint32_t i = 0; i < 5; i++) {
		wr = efa_wr(EPF_WR_WRITE, i, 8);
		efa_post(1, &wr);
	}
	fake_efa.fail = "poll";
	fake_efa.fail_errno = EIO;
	for (int i = 0; i < 4; i++)
		efa_reap(0);
	assert_int_equal(efa_count(0, EPF_WC_LANE_DOWN, -1), 3);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_RETRY_EXCEEDED), 1);
	assert_int_equal(efa_count(0, EPF_WC_SENT, EPF_S_FLUSHED), 4);
	assert_int_equal(ends[0].n, 8);
	ends[0].nic->ops->counters(ends[0].nic, &counters);
	assert_int_equal(counters.link_up, 0);
	for (uint16_t lane = 0; lane < 3; lane++) {
		ends[0].nic->ops->lane_fence(ends[0].nic, lane);
		efa_reap(0);
		assert_int_equal(ends[0].nic->ops->lane_drained(ends[0].nic, lane), 1);
	}
	efa_close_ends();
}

/* GPU memory: by its dma-buf, by a module, or in words what is missing; writes reach it either way. */
static void test_gpu(void **state)
{
	static unsigned char gpu[4096];
	struct epf_device_mem mem = { .addr = (uintptr_t)gpu,
				      .bytes = sizeof(gpu),
				      .dmabuf_fd = 42,
				      .dmabuf_offset = 0x3000,
				      .vendor = 0x10de,
				      .order = EPF_ORDER_OWNER };
	char root[] = "/tmp/epf-efa-XXXXXX", command[100];
	struct epf_nic_mr mr;
	uint64_t tokens[2];
	struct epf_nic *b;
	struct epf_wr wr;

	assert_non_null(mkdtemp(root));
	efa_open_ends(NULL);
	b = ends[1].nic;
	efa_lane_pair(0, tokens);
	for (int by_module = 0; by_module < 2; by_module++) {
		memset(gpu, 0, sizeof(gpu));
		assert_int_equal(epf_efa_register_gpu(b, &mem, EPF_MR_REMOTE_WRITE, root, &mr), 0);
		assert_int_equal(mr.raddr, mem.addr);
		wr = efa_wr(EPF_WR_WRITE, 1, 64);
		memset(ends[0].mem, 0x99, 64);
		wr.raddr = mr.raddr;
		wr.rkey = mr.rkey;
		efa_post(0, &wr);
		efa_run(5000);
		assert_int_equal(gpu[63], 0x99);
		b->ops->region_deregister(b, &mr);
		/* The next round: no dma-buf, and then its module. */
		mem.dmabuf_fd = -1;
		mem.is_mapped = true;
		assert_true(epf_efa_register_gpu(b, &mem, EPF_MR_REMOTE_WRITE, root, &mr) < 0 ||
			    by_module);
		if (!by_module)
			assert_non_null(strstr(epf_last_error(),
					       "exports no dma-buf; by a module: efa_nv_peermem or "
					       "nvidia-peermem is not loaded"));
		else
			b->ops->region_deregister(b, &mr);
		snprintf(command, sizeof(command), "mkdir -p %s/module/efa_nv_peermem", root);
		assert_int_equal(system(command), 0);
	}
	mem.is_mapped = false;
	assert_int_equal(epf_efa_register_gpu(b, &mem, 0, root, &mr), -EOPNOTSUPP);
	assert_non_null(strstr(epf_last_error(), "not in a daemon"));
	mem.dmabuf_fd = 42;
	mem.is_mapped = true;
	fake_efa.fail = "reg_dmabuf_mr";
	fake_efa.fail_errno = EBUSY;
	assert_int_equal(epf_efa_register_gpu(b, &mem, 0, root, &mr), 0);
	efa_close_ends();
	snprintf(command, sizeof(command), "rm -r %s", root);
	assert_int_equal(system(command), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, efa_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_places),      CASE(test_inline_writes), CASE(test_errors),
		CASE(test_post_fails),  CASE(test_completions),   CASE(test_receives),
		CASE(test_unsolicited), CASE(test_strangers),     CASE(test_receive_fails),
		CASE(test_broken),      CASE(test_gpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
