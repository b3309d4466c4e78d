/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two EFA NICs over fake adapters (fake_efa.h), with memory, on a clock that the test moves: for test_efa.c, test_efa_lane.c and
 * test_efa_open.c. Everything is static: a test includes this once. It must never look at the inside of a NIC.
 */
#ifndef EPF_TESTS_EFA_RIG_H
#define EPF_TESTS_EFA_RIG_H

#include "tests/unit/nic/efa/fake_efa.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { EFA_RIG_BYTES = 8192, EFA_RIG_LOG = 1024 };

struct efa_end {
	struct epf_nic *nic;
	unsigned char mem[EFA_RIG_BYTES];
	struct epf_nic_mr mr;
	struct epf_wc log[EFA_RIG_LOG];
	unsigned n;
};

static struct efa_end ends[2];
static uint64_t clock_ns;

static inline uint64_t efa_clock(void *arg)
{
	return clock_ns;
}

static inline int efa_setup(void **state)
{
	fake_efa_reset();
	fake_efa.n_devices = 2;
	fake_efa.now = efa_clock;
	fake_efa.delay_ns = 1000;
	clock_ns = 1000000;
	return 0;
}

static inline int efa_teardown(void **state)
{
	assert_int_equal(fake_efa.open_things, 0);
	return 0;
}

static inline void efa_open_ends(const struct epf_efa_opts *tune)
{
	for (unsigned i = 0; i < 2; i++) {
		struct epf_efa_opts opts;
		char *name = (char *)(i ? "efa1" : "efa0");

		if (tune)
			opts = *tune;
		else
			epf_efa_opts_defaults(&opts);
		opts.devices = (struct epf_conf_list){ .item = &name, .count = 1 };
		ends[i].nic = fake_efa_open(&opts);
		ends[i].n = 0;
		memset(ends[i].mem, 0, EFA_RIG_BYTES);
		assert_int_equal(ends[i].nic->ops->region_register(
					 ends[i].nic, ends[i].mem, EFA_RIG_BYTES,
					 EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &ends[i].mr),
				 0);
	}
}

static inline void efa_close_ends(void)
{
	ends[0].nic->ops->close(ends[0].nic);
	ends[1].nic->ops->close(ends[1].nic);
}

static inline uint64_t efa_create(unsigned end, uint16_t lane)
{
	uint64_t token;

	assert_int_equal(ends[end].nic->ops->lane_create(ends[end].nic, lane, 16, &token), 0);
	return token;
}

/* Connects a lane of one end to what `token` names at the other. */
static inline void efa_connect(unsigned end, uint16_t lane, uint64_t token)
{
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct epf_nic *other = ends[!end].nic;
	int n = other->ops->address(other, addr, sizeof(addr));

	assert_int_equal(
		ends[end].nic->ops->lane_connect(ends[end].nic, lane, addr, (size_t)n, token), 0);
}

static inline uint32_t efa_qpn(uint64_t token)
{
	return token & 0xffffff;
}

/* A pair of lanes; *tokens of both ends. */
static inline void efa_lane_pair(uint16_t lane, uint64_t tokens[2])
{
	tokens[0] = efa_create(0, lane);
	tokens[1] = efa_create(1, lane);
	efa_connect(0, lane, tokens[1]);
	efa_connect(1, lane, tokens[0]);
}

static inline void efa_reap(unsigned end)
{
	struct efa_end *e = &ends[end];
	int n = e->nic->ops->reap(e->nic, e->log + e->n, 64);

	assert_in_range(n, 0, 64);
	e->n += (unsigned)n;
	assert_true(e->n + 64 < EFA_RIG_LOG);
}

/* Moves the clock by span_ns in small steps, reaping both ends. */
static inline void efa_run(uint64_t span_ns)
{
	for (uint64_t end = clock_ns + span_ns; clock_ns < end; clock_ns += 200) {
		efa_reap(0);
		efa_reap(1);
	}
}

static inline unsigned efa_count(unsigned end, int op, int status)
{
	unsigned n = 0;

	for (unsigned i = 0; i < ends[end].n; i++)
		n += ends[end].log[i].op == op && (status < 0 || ends[end].log[i].status == status);
	return n;
}

/* A work request from end 0's memory to end 1's. */
static inline struct epf_wr efa_wr(uint8_t op, uint32_t id, uint32_t len)
{
	return (struct epf_wr){ .laddr = (uintptr_t)ends[0].mem,
				.raddr = ends[1].mr.raddr,
				.lkey = ends[0].mr.lkey,
				.rkey = ends[1].mr.rkey,
				.len = len,
				.imm = 0x1000 + id,
				.id = id,
				.op = op };
}

static inline void efa_post(uint16_t lane, const struct epf_wr *wr)
{
	assert_int_equal(ends[0].nic->ops->post(ends[0].nic, lane, wr, 1), 1);
}

#endif
