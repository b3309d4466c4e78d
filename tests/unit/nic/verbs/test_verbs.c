/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path of the verbs NIC over a scripted provider (fake_verbs.h): what is posted and how, which work requests ask for a
 * completion, what completions and failures become, receives and the life of their memory, full queues. Every case runs over
 * ibv_wr_ functions and over lists.
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

static int lists;
static struct epf_verbs_opts opts;

static int setup(void **state)
{
	fake_reset();
	epf_verbs_opts_defaults(&opts);
	opts.lists = lists;
	return 0;
}

static int teardown(void **state)
{
	assert_int_equal(fake.open_things, 0);
	return 0;
}

static struct epf_wr write_of(uint32_t id, uint32_t len)
{
	return (struct epf_wr){ .op = EPF_WR_WRITE,
				.id = id,
				.len = len,
				.laddr = 0x1000 + id,
				.lkey = 3,
				.raddr = 0x2000 + id,
				.rkey = 4 };
}

static void post_n(struct epf_nic *nic, uint16_t lane, uint32_t first, unsigned n)
{
	struct epf_wr wr[512];

	for (unsigned i = 0; i < n; i++)
		wr[i] = write_of(first + i, 8);
	assert_int_equal(nic->ops->post(nic, lane, wr, n), n);
}

static void test_forms(void **state)
{
	static const int opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
				       IBV_WR_RDMA_READ };
	struct epf_nic *nic = fake_open(&opts);
	struct epf_nic_counters c;
	struct epf_wr wr[4];

	fake_lane(nic, 0, 64);
	for (uint32_t i = 0; i < 4; i++) {
		wr[i] = write_of(i, 100);
		wr[i].op = (uint8_t)(EPF_WR_WRITE + i);
	}
	wr[1].imm = 0xdeadbeef;
	wr[1].len = 0;
	assert_int_equal(nic->ops->post(nic, 0, wr, 4), 4);
	assert_int_equal(fake.posts, 1);
	for (uint32_t i = 0; i < 4; i++) {
		const struct fake_wr *w = &fake.wrs[i];

		assert_int_equal(w->op, opcodes[i]);
		assert_int_equal(w->len, wr[i].len);
		assert_false(w->is_inline);
		if (w->len)
			assert_true(w->laddr == wr[i].laddr && w->lkey == 3);
		if (i != 2)
			assert_true(w->raddr == wr[i].raddr && w->rkey == 4);
	}
	assert_int_equal(fake.wrs[1].imm, 0xdeadbeef);
	nic->ops->counters(nic, &c);
	assert_int_equal(c.doorbells, 1);
	assert_int_equal(c.messages_tx, 4);
	assert_int_equal(c.bytes_tx, 300);
	nic->ops->close(nic);
}

static void test_inline(void **state)
{
	unsigned char bytes[EPF_NIC_MSG_BYTES];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i + 5);
	/* 512: as asked; 64: half of it after a refusal; 0: none at all. */
	for (uint32_t most = 512;; most = most == 512 ? 64 : 0) {
		struct epf_nic *nic;
		struct epf_wr wr = write_of(1, 64);
		struct fake_wr *w;

		fake_reset();
		fake.max_inline = most;
		nic = fake_open(&opts);
		fake_lane(nic, 0, 8);
		wr.flags = EPF_WR_INLINE;
		wr.laddr = (uint64_t)(uintptr_t)bytes;
		for (int round = 0; round < 2; round++) {
			wr.len = round ? 128 : 64;
			wr.op = round ? EPF_WR_SEND : EPF_WR_WRITE;
			w = &fake.wrs[fake.n_wrs];
			assert_int_equal(nic->ops->post(nic, 0, &wr, 1), 1);
			assert_int_equal(w->len, wr.len);
			assert_int_equal(w->is_inline, wr.len <= most);
			if (w->is_inline)
				assert_memory_equal(w->bytes, bytes, wr.len);
			else
				assert_memory_equal((void *)(uintptr_t)w->laddr, bytes, wr.len);
		}
		/* Copies of different work requests do not share their place. */
		assert_true(most || fake.wrs[0].laddr != fake.wrs[1].laddr);
		nic->ops->close(nic);
		if (!most)
			break;
	}
}

/* What no device is asked for: it goes out as something that fails in its turn. */
static void test_refused(void **state)
{
	struct epf_nic *nic = fake_open(&opts);
	struct epf_wr wr[6];

	fake_lane(nic, 0, 64);
	for (uint32_t i = 0; i < 6; i++)
		wr[i] = write_of(i, 8);
	wr[0].op = 0;
	wr[1].op = 77;
	wr[2].op = EPF_WR_SEND;
	wr[2].len = EPF_NIC_MSG_BYTES + 1;
	wr[3].len = (1 << 20) + 1;
	wr[4].op = EPF_WR_READ;
	wr[4].flags = EPF_WR_INLINE;
	wr[5].flags = EPF_WR_INLINE;
	wr[5].len = EPF_NIC_MSG_BYTES + 1;
	assert_int_equal(nic->ops->post(nic, 0, wr, 6), 6);
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(fake.wrs[i].op, IBV_WR_RDMA_WRITE);
		assert_int_equal(fake.wrs[i].laddr, 1);
		assert_int_equal(fake.wrs[i].len, 1);
		assert_int_equal(fake.wrs[i].lkey, epf_verbs_of(nic)->receives.chunks[0].mr->lkey);
	}
	nic->ops->close(nic);
}

static void test_signals(void **state)
{
	struct epf_nic *nic;
	unsigned asked = 0;

	opts.signal_interval = 32;
	nic = fake_open(&opts);
	fake_lane(nic, 0, 256);
	fake_lane(nic, 1, 256);
	post_n(nic, 0, 0, 100);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(fake.wrs[i].is_signaled, i % 32 == 31 || i == 99);
	/* A chain is cut in pieces of 64; the interval goes on over them. */
	assert_int_equal(fake.posts, lists ? 2 : 1);
	post_n(nic, 1, 0, 1);
	post_n(nic, 1, 1, 1);
	assert_true(fake.wrs[100].is_signaled && fake.wrs[101].is_signaled);
	nic->ops->close(nic);
	/* Without order each speaks for itself. */
	fake_reset();
	opts.ordered = 0;
	nic = fake_open(&opts);
	fake_lane(nic, 0, 256);
	post_n(nic, 0, 0, 100);
	for (unsigned i = 0; i < 100; i++)
		asked += (unsigned)fake.wrs[i].is_signaled;
	assert_int_equal(asked, 100);
	nic->ops->close(nic);
}

/* One completion frees all before it; the lane takes as many again; many times round. */
static void test_depth(void **state)
{
	struct epf_nic *nic = fake_open(&opts);
	struct epf_wr wr[64];
	struct epf_wc wc[4];
	uint32_t id = 0xfffffff0u;

	fake_lane(nic, 0, 48); /* not a power of two */
	for (int round = 0; round < 20; round++) {
		fake.n_wrs = 0;
		for (uint32_t i = 0; i < 64; i++)
			wr[i] = write_of(id + i, 8);
		assert_int_equal(nic->ops->post(nic, 0, wr, 64), 48);
		assert_int_equal(nic->ops->post(nic, 0, wr, 1), 0);
		fake_complete(15, IBV_WC_SUCCESS);
		assert_int_equal(nic->ops->reap(nic, wc, 4), 1);
		assert_int_equal(wc[0].id, id + 15);
		assert_int_equal(nic->ops->post(nic, 0, wr + 48, 16), 16);
		fake_complete(63, IBV_WC_SUCCESS);
		assert_int_equal(nic->ops->reap(nic, wc, 4), 1);
		assert_int_equal(wc[0].id, id + 63);
		id += 64;
	}
	nic->ops->close(nic);
}

/* The completion queue never overruns: all lanes together post no more than it holds. */
static void test_completions(void **state)
{
	struct epf_nic *nic;
	struct epf_wr wr[64];
	struct epf_wc wc[4];

	opts.completions = 100;
	nic = fake_open(&opts);
	fake_lane(nic, 0, 64);
	fake_lane(nic, 1, 64);
	for (uint32_t i = 0; i < 64; i++)
		wr[i] = write_of(i, 8);
	assert_int_equal(nic->ops->post(nic, 0, wr, 64), 64);
	assert_int_equal(nic->ops->post(nic, 1, wr, 64), 36);
	assert_int_equal(nic->ops->post(nic, 1, wr, 64), 0);
	fake_complete(63, IBV_WC_SUCCESS);
	assert_int_equal(nic->ops->reap(nic, wc, 4), 1);
	assert_int_equal(nic->ops->post(nic, 1, wr, 64), 28);
	/* A lane that goes takes its share along. */
	nic->ops->lane_destroy(nic, 1);
	fake_lane(nic, 1, 64);
	assert_int_equal(nic->ops->post(nic, 1, wr, 64), 64);
	assert_int_equal(nic->ops->post(nic, 0, wr, 64), 36);
	nic->ops->close(nic);
}

static void test_statuses(void **state)
{
	static const struct {
		enum ibv_wc_status in;
		enum epf_status out;
	} map[] = {
		{ IBV_WC_LOC_LEN_ERR, EPF_S_LOCAL },
		{ IBV_WC_LOC_QP_OP_ERR, EPF_S_LOCAL },
		{ IBV_WC_LOC_PROT_ERR, EPF_S_LOCAL },
		{ IBV_WC_WR_FLUSH_ERR, EPF_S_FLUSHED },
		{ IBV_WC_REM_INV_REQ_ERR, EPF_S_REMOTE_ACCESS },
		{ IBV_WC_REM_ACCESS_ERR, EPF_S_REMOTE_ACCESS },
		{ IBV_WC_REM_OP_ERR, EPF_S_REMOTE_ACCESS },
		{ IBV_WC_RETRY_EXC_ERR, EPF_S_RETRY_EXCEEDED },
		{ IBV_WC_RNR_RETRY_EXC_ERR, EPF_S_RNR_EXCEEDED },
		{ IBV_WC_FATAL_ERR, EPF_S_RETRY_EXCEEDED },
		{ IBV_WC_GENERAL_ERR, EPF_S_RETRY_EXCEEDED },
	};
	struct epf_nic *nic = fake_open(&opts);
	struct epf_wc wc[4];

	for (unsigned i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
		fake_lane(nic, 2, 8);
		post_n(nic, 2, i, 1);
		fake_complete(fake.n_wrs - 1, map[i].in);
		assert_int_equal(nic->ops->reap(nic, wc, 4), 1);
		assert_int_equal(wc[0].op, EPF_WC_SENT);
		assert_int_equal(wc[0].lane, 2);
		assert_int_equal(wc[0].id, i);
		assert_int_equal(wc[0].status, map[i].out);
		assert_int_equal(nic->ops->lane_link(nic, 2), EPF_LANE_ERROR);
		nic->ops->lane_destroy(nic, 2);
	}
	nic->ops->close(nic);
}

/* A failure in the middle of a batch that asked for few completions, reaped by one entry at a time. */
static void test_failure(void **state)
{
	for (unsigned room = 1; room <= 64; room *= 4) {
		struct epf_nic *nic;
		struct epf_wc wc[64];
		unsigned got = 0;
		int n;

		fake_reset();
		nic = fake_open(&opts);
		fake_lane(nic, 0, 64);
		post_n(nic, 0, 100, 20);
		fake_complete(5, IBV_WC_REM_ACCESS_ERR);
		for (unsigned i = 6; i < 20; i++) /* as devices do it: each of them */
			fake_complete(i, IBV_WC_WR_FLUSH_ERR);
		for (int idle = 0; idle < 3; idle = n ? 0 : idle + 1) {
			n = nic->ops->reap(nic, wc + got, room < 64 - got ? room : 64 - got);
			assert_in_range(n, 0, room);
			if (got + (unsigned)n < 16)
				assert_false(nic->ops->lane_drained(nic, 0));
			got += (unsigned)n;
		}
		assert_int_equal(got, 16);
		assert_int_equal(wc[0].id, 104); /* it and all before it have succeeded */
		assert_int_equal(wc[0].status, EPF_S_OK);
		assert_int_equal(wc[1].id, 105);
		assert_int_equal(wc[1].status, EPF_S_REMOTE_ACCESS);
		for (unsigned i = 2; i < 16; i++) {
			assert_int_equal(wc[i].id, 104 + i);
			assert_int_equal(wc[i].status, EPF_S_FLUSHED);
		}
		assert_true(nic->ops->lane_drained(nic, 0));
		nic->ops->close(nic);
	}
}

/* Some providers flush only those that asked: the others are reported all the same. */
static void test_sparse_flush(void **state)
{
	struct epf_nic *nic = fake_open(&opts);
	struct epf_wc wc[64];

	fake_lane(nic, 0, 64);
	post_n(nic, 0, 0, 10);
	fake_complete(0, IBV_WC_RETRY_EXC_ERR);
	fake_complete(9, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(nic->ops->reap(nic, wc, 64), 10);
	for (uint32_t i = 0; i < 10; i++) {
		assert_int_equal(wc[i].id, i);
		assert_int_equal(wc[i].status, i ? EPF_S_FLUSHED : EPF_S_RETRY_EXCEEDED);
	}
	nic->ops->close(nic);
}

/* The slots that the last reap named are neither posted nor changed until the next. */
static void test_slots(void **state)
{
	struct epf_nic *nic = fake_open(&opts);
	struct epf_wc wc[64];
	char text[32];

	fake_lane(nic, 0, 8);
	nic->ops->post_receives(nic, 40);
	assert_int_equal(fake.n_receives, 40);
	assert_int_equal(fake.srq_posts, 1); /* one call for all */
	for (int round = 0; round < 200; round++) {
		for (unsigned i = 0; i < 40; i++) {
			uint64_t slot = fake.receives[0];
			struct epf_rdma_slot *s = (void *)(uintptr_t)slot;

			snprintf(text, sizeof(text), "%d %u", round, i);
			if (i % 3)
				memcpy((void *)(uintptr_t)s->sge.addr, text, sizeof(text));
			fake_arrive(fake_qpn(0), i % 3 ? text : NULL, i % 3 ? sizeof(text) : 9, i);
		}
		assert_int_equal(nic->ops->reap(nic, wc, 64), 40);
		nic->ops->post_receives(nic, 40);
		assert_int_equal(fake.n_receives, 40);
		for (unsigned i = 0; i < 40; i++) {
			snprintf(text, sizeof(text), "%d %u", round, i);
			assert_int_equal(wc[i].lane, 0);
			assert_int_equal(wc[i].op, i % 3 ? EPF_WC_RECV : EPF_WC_RECV_IMM);
			if (i % 3 == 0) {
				assert_int_equal(wc[i].imm, i);
				assert_int_equal(wc[i].len, 9);
				continue;
			}
			assert_string_equal((const char *)wc[i].msg, text);
			for (unsigned k = 0; k < fake.n_receives; k++)
				assert_true(((struct epf_rdma_slot *)(uintptr_t)fake.receives[k])
						    ->sge.addr != (uintptr_t)wc[i].msg);
		}
	}
	nic->ops->close(nic);
}

/* More receives than were ever posted; never more than the queue holds; what does not fit comes later. */
static void test_receives(void **state)
{
	struct epf_nic *nic;
	struct epf_wc wc[8];

	opts.receives = 3000;
	nic = fake_open(&opts);
	fake_lane(nic, 0, 8);
	nic->ops->post_receives(nic, 2500);
	assert_int_equal(fake.n_receives, 2500);
	nic->ops->post_receives(nic, 1000);
	assert_int_equal(fake.n_receives, 3000);
	for (int i = 0; i < 8; i++)
		fake_arrive(fake_qpn(0), NULL, 0, 1);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 8);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	assert_int_equal(fake.n_receives, 3000);
	nic->ops->close(nic);
	/* Registration fails: what there are slots for is posted, and nothing crashes. */
	fake_reset();
	nic = fake_open(&opts);
	fake.fail = "reg_mr";
	fake.fail_errno = ENOMEM;
	nic->ops->post_receives(nic, 2500);
	assert_int_equal(fake.n_receives, 1024);
	fake.fail = "post_srq_recv";
	fake.fail_after = 1;
	nic->ops->reap(nic, wc, 8);
	fake.fail = NULL;
	nic->ops->reap(nic, wc, 8);
	assert_int_equal(fake.n_receives, 2500);
	nic->ops->close(nic);
}

/* Arrivals of queue pairs that are gone, and receives that failed, are released by themselves. */
static void test_strangers(void **state)
{
	struct epf_nic *nic = fake_open(&opts);
	struct epf_wc wc[8];

	fake_lane(nic, 0, 8);
	fake_lane(nic, 1, 8);
	nic->ops->post_receives(nic, 10);
	fake_arrive(0x7777, "x", 1, 0);
	fake_arrive(fake_qpn(1), "y", 1, 0);
	fake_arrive(fake_qpn(0), "z", 1, 0);
	fake.recvs.wc[1].status = IBV_WC_WR_FLUSH_ERR;
	assert_int_equal(nic->ops->reap(nic, wc, 8), 1);
	assert_int_equal(wc[0].lane, 0);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	assert_int_equal(fake.n_receives, 9);
	/* And completions of a lane whose number is used again. */
	post_n(nic, 0, 5, 1);
	nic->ops->lane_destroy(nic, 0);
	fake_lane(nic, 0, 8);
	post_n(nic, 0, 6, 1);
	fake_complete(0, IBV_WC_SUCCESS);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 0);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_READY);
	nic->ops->close(nic);
}

/* The provider's queue is full for a moment, or broken. */
static void test_post_fails(void **state)
{
	struct epf_nic *nic = fake_open(&opts);
	struct epf_wr wr[8];
	struct epf_wc wc[8];
	int taken;

	fake_lane(nic, 0, 64);
	for (uint32_t i = 0; i < 8; i++)
		wr[i] = write_of(i, 8);
	fake.fail = lists ? "post_send" : "wr_complete";
	fake.fail_errno = ENOMEM;
	assert_int_equal(nic->ops->post(nic, 0, wr, 8), 0);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_READY);
	fake.fail = NULL;
	assert_int_equal(nic->ops->post(nic, 0, wr, 8), 8);
	fake_complete(7, IBV_WC_SUCCESS);
	assert_int_equal(nic->ops->reap(nic, wc, 8), 1);
	assert_int_equal(wc[0].id, 7);
	/* Broken: the lane is given up and reported, after what it had taken. */
	fake.fail = lists ? "post_send" : "wr_complete";
	fake.fail_errno = EIO;
	fake.fail_after = lists ? 3 : 0;
	taken = nic->ops->post(nic, 0, wr, 8);
	assert_int_equal(taken, lists ? 3 : 0);
	fake.fail = NULL;
	assert_int_equal(nic->ops->post(nic, 0, wr, 1), -ENOTCONN);
	for (int i = 0; i < taken; i++)
		fake_complete(fake.n_wrs - (unsigned)taken + (unsigned)i, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(nic->ops->reap(nic, wc, 8), taken + 1);
	assert_int_equal(wc[taken].op, EPF_WC_LANE_DOWN);
	nic->ops->close(nic);
}

/* Posts of one write each: what the provider gets, what is counted, and that one that is refused leaves no trace. */
static void test_singles(void **state)
{
	struct epf_nic *nic = fake_open(&opts);
	struct epf_nic_counters c;
	struct epf_wr wr = write_of(7, 100);
	struct epf_wc wc[4];

	fake_lane(nic, 0, 2);
	fake.fail = lists ? "post_send" : "wr_complete";
	fake.fail_errno = ENOMEM;
	assert_int_equal(nic->ops->post(nic, 0, &wr, 1), 0);
	fake.fail = NULL;
	fake.n_wrs = 0;
	for (uint32_t i = 0; i < 2; i++) {
		const struct fake_wr *w = &fake.wrs[i];

		wr.len = i ? 0 : 100; /* after one with bytes, none are left behind */
		wr.id = 7 + i;
		assert_int_equal(nic->ops->post(nic, 0, &wr, 1), 1);
		assert_int_equal(w->op, IBV_WR_RDMA_WRITE);
		assert_true(w->is_signaled && !w->is_inline);
		assert_true(w->raddr == wr.raddr && w->rkey == wr.rkey && w->len == wr.len);
	}
	assert_true(fake.wrs[0].laddr == wr.laddr && fake.wrs[0].lkey == wr.lkey);
	assert_int_equal(nic->ops->post(nic, 0, &wr, 1), 0); /* full */
	nic->ops->counters(nic, &c);
	assert_int_equal(c.messages_tx, 2);
	assert_int_equal(c.bytes_tx, 100);
	fake_complete(0, IBV_WC_SUCCESS);
	assert_int_equal(nic->ops->reap(nic, wc, 4), 1);
	assert_int_equal(wc[0].id, 7);
	fake.fail = lists ? "post_send" : "wr_complete";
	fake.fail_errno = EIO;
	assert_int_equal(nic->ops->post(nic, 0, &wr, 1), 0);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_ERROR);
	nic->ops->close(nic);
}

/* Of completions in a row the last speaks for the lane; another lane's, a failure, or a NIC without order come between. */
static void test_joined(void **state)
{
	for (unsigned ordered = 0; ordered < 2; ordered++) {
		struct epf_verbs_opts own = opts;
		struct epf_nic *nic;
		struct epf_wc wc[16];

		own.ordered = ordered != 0;
		fake_reset();
		nic = fake_open(&own);
		fake_lane(nic, 0, 8);
		fake_lane(nic, 1, 8);
		for (uint32_t i = 0; i < 8; i++)
			post_n(nic, i >= 3 && i < 5, i, 1);
		for (unsigned i = 0; i < 7; i++)
			fake_complete(i, IBV_WC_SUCCESS);
		fake_complete(7, IBV_WC_REM_ACCESS_ERR);
		assert_int_equal(nic->ops->reap(nic, wc, 16), ordered ? 4 : 8);
		for (unsigned i = 0; i < 4 && ordered; i++) {
			static const uint32_t ids[] = { 2, 4, 6, 7 };

			assert_int_equal(wc[i].id, ids[i]);
			assert_int_equal(wc[i].lane, i == 1);
			assert_int_equal(wc[i].status, i == 3 ? EPF_S_REMOTE_ACCESS : EPF_S_OK);
		}
		for (unsigned i = 0; i < 8 && !ordered; i++)
			assert_int_equal(wc[i].id, i);
		assert_true(nic->ops->lane_link(nic, 1) == EPF_LANE_READY);
		/* All of them count as over: the lane takes as many again. */
		fake.n_wrs = 0;
		post_n(nic, 1, 0, 8);
		nic->ops->close(nic);
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_forms),      CASE(test_inline),   CASE(test_refused),
		CASE(test_signals),    CASE(test_depth),    CASE(test_completions),
		CASE(test_statuses),   CASE(test_failure),  CASE(test_sparse_flush),
		CASE(test_slots),      CASE(test_receives), CASE(test_strangers),
		CASE(test_post_fails), CASE(test_singles),  CASE(test_joined),
	};
	int failed = cmocka_run_group_tests_name("ibv_wr_", tests, NULL, NULL);

	lists = 1;
	failed += cmocka_run_group_tests_name("lists", tests, NULL, NULL);
	return failed != 0;
}
