/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC over a device without shared receive queues (fake_verbs.h): each lane has receives of its own, gets back what was taken
 * from it and no other's, and a lane that ends gives its slots back, whatever the device says of them later.
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

#include <cmocka.h>

enum { LANES = 4, EACH = 8 };

static struct epf_nic *nic;

static int setup(void **state)
{
	struct epf_verbs_opts opts;

	fake_reset();
	fake.attr.max_srq = fake.attr.max_srq_wr = 0;
	epf_verbs_opts_defaults(&opts);
	opts.lane_receives = 32;
	nic = fake_open(&opts);
	for (uint16_t lane = 0; lane < LANES; lane++)
		fake_lane(nic, lane, 8);
	return 0;
}

static int teardown(void **state)
{
	nic->ops->close(nic);
	assert_int_equal(fake.open_things, 0);
	return 0;
}

static unsigned reap(struct epf_wc *wc, unsigned n)
{
	int got = nic->ops->reap(nic, wc, n);

	assert_true(got >= 0);
	return (unsigned)got;
}

static void each_lane_has_its_own(void **state)
{
	struct epf_nic_caps caps;

	nic->ops->describe(nic, &caps);
	assert_int_equal(caps.lane_receives, 32);
	assert_int_equal(caps.receives, 32767);
	nic->ops->post_receives(nic, LANES * EACH);
	for (unsigned i = 0; i < LANES; i++) {
		assert_int_equal(fake.rqs[i].most, 32);
		assert_int_equal(fake.rqs[i].n, EACH);
	}
	assert_int_equal(fake.n_receives, 0); /* none shared */
}

static void what_is_taken_goes_back_to_the_same_lane(void **state)
{
	struct epf_wc wc[64];
	unsigned taken = 0;

	nic->ops->post_receives(nic, LANES * EACH);
	for (unsigned round = 0; round < 50; round++) {
		for (unsigned i = 0; i < EACH;
		     i++) { /* all of lane 2, one of lane 0, as messages and immediates */
			char text[16] = "hello";

			fake_arrive(fake_qpn(2), i & 1 ? text : NULL, sizeof(text), i);
		}
		fake_arrive(fake_qpn(0), NULL, 4, 77);
		assert_int_equal(fake.rqs[2].n, 0);
		taken = reap(wc, 64);
		assert_int_equal(taken, EACH + 1);
		assert_int_equal(wc[0].lane, 2);
		assert_int_equal(wc[EACH].lane, 0);
		nic->ops->post_receives(nic, taken);
		for (unsigned i = 0; i < LANES; i++)
			assert_int_equal(fake.rqs[i].n, EACH);
	}
}

/* Slots that the user still reads come back a reap later; none is lost and none posted twice (the provider looks). */
static void messages_are_kept_until_the_next_reap(void **state)
{
	struct epf_wc wc[64];
	char text[32];

	nic->ops->post_receives(nic, LANES * EACH);
	for (unsigned round = 0; round < 200; round++) {
		snprintf(text, sizeof(text), "message %u", round);
		memcpy((void *)(uintptr_t)((struct epf_rdma_slot *)(uintptr_t)fake
						   .rqs[round % LANES]
						   .slots[0])
			       ->sge.addr,
		       text, sizeof(text));
		fake_arrive(fake_qpn(round % LANES), text, sizeof(text), 0);
		assert_int_equal(reap(wc, 64), 1);
		assert_string_equal(wc[0].msg, text);
		nic->ops->post_receives(nic, 1);
		assert_string_equal(wc[0].msg, text); /* not given to the device again */
	}
	for (unsigned i = 0; i < LANES; i++)
		assert_int_equal(fake.rqs[i].n, EACH);
}

static void a_lane_that_ends_gives_its_slots_back(void **state)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct ibv_wc late = { .opcode = IBV_WC_RECV, .byte_len = 4 };
	int n = nic->ops->address(nic, addr, sizeof(addr));
	struct epf_wc wc[64];
	uint64_t token;

	nic->ops->post_receives(nic, LANES * EACH);
	assert_int_equal(v->posted_receives, LANES * EACH);
	for (unsigned round = 0; round < 20; round++) {
		uint32_t old = fake.qps[fake.n_qps - (round ? 1 : 3)]->qp_num;

		/* In error: some receives are flushed, an arrival is still in the queue, the rest never say anything. */
		nic->ops->lane_fence(nic, 1);
		fake_flush(old, IBV_WC_WR_FLUSH_ERR, NULL);
		late.qp_num = old;
		late.wr_id = fake_flush(old, IBV_WC_WR_FLUSH_ERR, NULL);
		assert_int_equal(reap(wc, 64), 0);
		assert_int_equal(v->posted_receives, LANES * EACH - 2);
		nic->ops->lane_destroy(nic, 1);
		assert_int_equal(v->posted_receives, (LANES - 1) * EACH);
		assert_int_equal(nic->ops->lane_create(nic, 1, 8, &token), 0);
		assert_int_equal(fake.rqs[fake.n_qps - 1].n,
				 EACH); /* it has its receives before the peer can send */
		assert_int_equal(nic->ops->lane_connect(nic, 1, addr, (size_t)n, token), 0);
		/* A completion of the old queue pair comes out now: nobody's slot moves. */
		fake.recvs.wc[fake.recvs.head++ % FAKE_WCS] = late;
		assert_int_equal(reap(wc, 64), 0);
		assert_int_equal(v->posted_receives, LANES * EACH);
		assert_int_equal(v->wanted_receives, 0);
	}
	fake_arrive(fake_qpn(fake.n_qps - 1), NULL, 4, 5);
	assert_int_equal(reap(wc, 64), 1);
	assert_int_equal(wc[0].lane, 1);
}

static void a_lane_whose_receives_cannot_be_posted_is_lost_alone(void **state)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_wc wc[64];

	nic->ops->post_receives(nic, LANES * EACH);
	fake_arrive(fake_qpn(3), NULL, 4, 1);
	fake_arrive(fake_qpn(3), NULL, 4, 2);
	assert_int_equal(reap(wc, 64), 2);
	fake.fail = "post_recv";
	fake.fail_errno = EIO;
	fake.fail_after = 1; /* one is taken, the second not */
	nic->ops->post_receives(nic, 2);
	fake.fail = NULL;
	fake_arrive(fake_qpn(0), NULL, 4, 3);
	assert_int_equal(reap(wc, 64), 2); /* that lane is down, and the arrival */
	assert_int_equal(wc[0].op, EPF_WC_LANE_DOWN);
	assert_int_equal(wc[0].lane, 3);
	assert_int_equal(wc[1].lane, 0);
	nic->ops->post_receives(nic, 1);
	assert_int_equal(nic->ops->lane_link(nic, 3), EPF_LANE_ERROR);
	assert_int_equal(nic->ops->lane_link(nic, 0), EPF_LANE_READY);
	assert_int_equal(fake.rqs[0].n, EACH);
	assert_int_equal(v->wanted_receives, 0);
	assert_int_equal(v->posted_receives, LANES * EACH - 1);
	nic->ops->lane_destroy(nic, 3);
	assert_int_equal(v->posted_receives, (LANES - 1) * EACH);
}

/* A device that only says so when it is asked for one. */
static void a_late_no_is_understood(void **state)
{
	struct epf_nic *other;
	struct epf_nic_caps caps;

	nic->ops->close(nic);
	fake_reset();
	fake.fail = "create_srq";
	fake.fail_errno = EOPNOTSUPP;
	other = fake_open(NULL);
	other->ops->describe(other, &caps);
	assert_int_equal(caps.lane_receives, 512);
	other->ops->close(other);
	fake_reset();
	nic = fake_open(NULL);
	nic->ops->describe(nic, &caps);
	assert_int_equal(caps.lane_receives, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_lane_has_its_own, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_taken_goes_back_to_the_same_lane, setup,
						teardown),
		cmocka_unit_test_setup_teardown(messages_are_kept_until_the_next_reap, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_lane_that_ends_gives_its_slots_back, setup,
						teardown),
		cmocka_unit_test_setup_teardown(
			a_lane_whose_receives_cannot_be_posted_is_lost_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(a_late_no_is_understood, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
