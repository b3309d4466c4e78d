/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance suite of epf_nic_ops, part 3: capabilities, set-up of lanes and regions, limits, and the
 * stand-ins in tables of operations. Runs every case over every kind of NIC in nic_rig_kinds(); cases that
 * need arrivals are skipped for kinds that carry none.
 */
#include "tests/unit/nic/nic_rig.h"

#include "fabric/nic/fill.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

static const struct nic_kind *kind;

static int setup(void **state)
{
	*state = rig_open(kind, NULL);
	return 0;
}

static int teardown(void **state)
{
	rig_close(*state);
	return 0;
}

static void needs_arrivals(void)
{
	if (!kind->carries)
		skip();
}

static void test_caps(void **state)
{
	struct rig *rig = *state;
	struct epf_nic_counters counters;
	struct epf_nic_caps caps;

	rig->a.nic->ops->describe(rig->a.nic, &caps);
	assert_non_null(caps.name);
	assert_int_equal(caps.ordered, kind->ordered);
	assert_int_equal(caps.carries_events, kind->carries);
	assert_true(caps.max_lanes >= 300);
	assert_true(caps.lane_depth >= 128);
	assert_true(caps.max_msg_bytes >= 4096);
	assert_true(caps.receives > 0);
	assert_in_range(caps.links, 1, 64);
	assert_true(rig->a.nic->ops->set_link(rig->a.nic, caps.links, 0) < 0);
	rig->a.nic->ops->counters(rig->a.nic, &counters);
	assert_int_equal(counters.link_up, caps.links);
}

/* A watch over peers that live reports nothing and harms nothing. */
static void test_watch(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 3, 0, 0, 100);
	int status;

	for (int i = 0; i < 3; i++) {
		rig->a.nic->ops->watch(rig->a.nic);
		rig->b.nic->ops->watch(rig->b.nic);
		rig_run(rig, MS);
	}
	assert_int_equal(rig->a.n + rig->b.n, 0);
	rig_post(rig, &wr);
	rig->a.nic->ops->watch(rig->a.nic);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 3, &status));
	assert_int_equal(status, EPF_S_OK);
	assert_int_equal(rig->a.n, 1);
}

/*
 * A lane may be posted to before the other end is connected: the work waits for it. Where nothing is connected, a write lands
 * and what it says waits (test_efa_lane.c).
 */
static void test_connect_late(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	unsigned char addr_a[EPF_NIC_ADDR_BYTES], addr_b[EPF_NIC_ADDR_BYTES];
	int na = a->ops->address(a, addr_a, sizeof(addr_a));
	int nb = b->ops->address(b, addr_b, sizeof(addr_b));
	struct epf_wr wr = rig_write(rig, 4, 0, 0, 3000);
	uint64_t ta, tb;

	needs_arrivals();
	rig_fill(rig->a.mem, 3000, 2);
	assert_int_equal(a->ops->lane_create(a, 5, 16, &ta), 0);
	assert_int_equal(b->ops->lane_create(b, 5, 16, &tb), 0);
	assert_int_equal(a->ops->post(a, 5, &wr, 1), -ENOTCONN);
	assert_int_equal(a->ops->lane_connect(a, 5, addr_b, (size_t)nb, tb), 0);
	assert_int_equal(a->ops->post(a, 5, &wr, 1), 1);
	rig_run(rig, MS);
	if (!kind->eager) {
		assert_int_equal(rig->a.n, 0);
		assert_int_equal(rig->b.mem[5], 0);
	}
	assert_int_equal(b->ops->lane_connect(b, 5, addr_a, (size_t)na, ta), 0);
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	assert_true(rig_matches(rig->b.mem, 3000, 2));
}

static void test_limits(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic;
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct epf_nic_caps caps;
	struct epf_nic_mr mr;
	uint64_t token = 99;
	int n = a->ops->address(a, addr, sizeof(addr));

	a->ops->describe(a, &caps);
	assert_true(a->ops->address(a, addr, 3) < 0);
	assert_true(a->ops->lane_create(a, (uint16_t)caps.max_lanes, 8, &token) < 0);
	assert_true(a->ops->lane_create(a, 0, 8, &token) < 0);
	assert_true(a->ops->lane_create(a, 1, 0, &token) < 0);
	assert_true(a->ops->lane_create(a, 1, caps.lane_depth + 1, &token) < 0);
	assert_int_equal(token, 99); /* outputs only on success */
	assert_int_equal(a->ops->lane_create(a, 1, 8, &token), 0);
	assert_true(a->ops->lane_connect(a, 2, addr, (size_t)n, token) < 0);
	assert_true(a->ops->lane_connect(a, 1, addr, (size_t)n - 1, token) < 0);
	assert_true(a->ops->lane_connect(a, 1, addr, (size_t)n, 0) < 0);
	assert_true(a->ops->lane_connect(a, 1, addr, (size_t)n, (uint64_t)1 << 20) < 0);
	addr[n / 4] ^= 1;
	assert_true(a->ops->lane_connect(a, 1, addr, (size_t)n, token) < 0);
	addr[n / 4] ^= 1;
	assert_int_equal(a->ops->lane_connect(a, 1, addr, (size_t)n, token), 0);
	assert_true(a->ops->lane_connect(a, 1, addr, (size_t)n, token) < 0);
	a->ops->lane_destroy(a, 7); /* never created: nothing happens */
	a->ops->lane_fence(a, 7);
	assert_true(a->ops->region_register(a, NULL, 8, 0, &mr) < 0);
	assert_true(a->ops->region_register(a, addr, 0, 0, &mr) < 0);
	assert_true(a->ops->region_register(a, addr, UINT64_MAX, 0, &mr) < 0);
	assert_true(a->ops->region_register(a, addr, 8, 0x80, &mr) < 0);
	a->ops->close(NULL);
}

/* Many regions: the table grows, keys stay apart. */
static void test_regions(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *b = rig->b.nic;
	struct epf_nic_mr mr[300];

	needs_arrivals();
	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(b->ops->region_register(b, rig->b.mem + i * 64, 64,
							 EPF_MR_REMOTE_WRITE, &mr[i]),
				 0);
	/* Each refusal there costs a connection. */
	for (unsigned i = 0; i < 300; i += kind->refusal == NIC_REFUSAL_LOST ? 49 : 7) {
		struct epf_wr wr = rig_write(rig, i, i, i * 64, 64);

		rig_fill(rig->a.mem + i, 64, i);
		wr.raddr = mr[i].raddr;
		wr.rkey = mr[i].rkey;
		rig_post(rig, &wr);
		rig_run(rig, MS);
		assert_true(rig_matches(rig->b.mem + i * 64, 64, i));
		/* Where regions are addressed from 0, that place exists in the other one too. */
		if (mr[i].raddr == mr[(i + 1) % 300].raddr)
			wr.raddr += 64;
		wr.rkey = mr[(i + 1) % 300].rkey;
		if (kind->refusal == NIC_REFUSAL_SILENT)
			continue;
		rig_post(rig, &wr);
		rig_run(rig, MS);
		assert_int_equal(rig->a.log[rig->a.n - 1].status, kind->refusal == NIC_REFUSAL_LOST
									  ? EPF_S_RETRY_EXCEEDED
									  : EPF_S_REMOTE_ACCESS);
		rig_reconnect(rig);
	}
	for (unsigned i = 0; i < 300; i++)
		b->ops->region_deregister(b, &mr[i]);
}

static void test_stand_ins(void **state)
{
	struct epf_nic_ops ops = { 0 };
	struct epf_nic_counters counters;
	const char *const *names = epf_nic_names();
	void *const *at = (void *const *)&ops;
	uint64_t token;

	epf_nic_ops_fill(&ops);
	for (size_t i = 0; i < sizeof(ops) / sizeof(*at); i++)
		assert_non_null(at[i]);
	assert_int_equal(ops.post(NULL, 0, NULL, 1), -EOPNOTSUPP);
	assert_int_equal(ops.lane_create(NULL, 0, 1, &token), -EOPNOTSUPP);
	assert_int_equal(ops.set_link(NULL, 0, 0), -EOPNOTSUPP);
	assert_int_equal(ops.reap(NULL, NULL, 1), 0);
	ops.watch(NULL);
	assert_true(ops.next_event(NULL) == UINT64_MAX);
	ops.counters(NULL, &counters);
	assert_int_equal(counters.doorbells, 0);
	for (; *names; names++) {
		const struct epf_nic_ops *found = epf_nic_find(*names);

		assert_non_null(found);
		at = (void *const *)found;
		for (size_t i = 0; i < sizeof(ops) / sizeof(*at); i++)
			assert_non_null(at[i]);
	}
	assert_null(epf_nic_find("no such NIC"));
	assert_null(epf_nic_find(NULL));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_caps),   CASE(test_watch),   CASE(test_connect_late),
		CASE(test_limits), CASE(test_regions),
	};
	const struct CMUnitTest tables[] = {
		cmocka_unit_test(test_stand_ins),
	};
	size_t count;
	int failed = cmocka_run_group_tests_name("tables", tables, NULL, NULL);

	kind = nic_rig_kinds(&count);
	for (; count; count--, kind++)
		failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
	return failed != 0;
}
