/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ofi NICs over the fake libfabric, lane 0 of one connected to lane 0 of the other, for the tests of nic/ofi. The clock is the test's.
 */
#ifndef EPF_TESTS_OFI_KIT_H
#define EPF_TESTS_OFI_KIT_H

#include "fabric/base/err.h"
#include "fabric/nic/ofi/opts.h"
#include "fabric/nic/ofi/wire.h"
#include "tests/unit/nic/ofi/fake_ofi.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KIT_BYTES = 8192, KIT_DEPTH = 32 };

struct kit_end {
	struct epf_nic *nic;
	uint8_t mem[KIT_BYTES];
	struct epf_nic_mr mr;
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	size_t addr_len;
	uint64_t token; /* of lane 0 */
};

struct kit {
	struct epf_ofi_opts opts;
	uint64_t now_ns;
	struct kit_end a, b;
	struct epf_wc wc[64];
	int n; /* of wc */
};

static struct kit kit;

static uint64_t kit_now(void *arg)
{
	return kit.now_ns;
}

static inline void kit_open_end(struct kit_end *e)
{
	struct epf_nic *nic;
	int n;

	if (epf_ofi_open(&fake_ofi_lib, &kit.opts, kit_now, NULL, &nic))
		fail_msg("%s", epf_last_error());
	e->nic = nic;
	assert_int_equal(nic->ops->region_register(nic, e->mem, KIT_BYTES,
						   EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
						   &e->mr),
			 0);
	n = nic->ops->address(nic, e->addr, sizeof(e->addr));
	assert_true(n > 0);
	e->addr_len = (size_t)n;
	assert_int_equal(nic->ops->lane_create(nic, 0, KIT_DEPTH, &e->token), 0);
	nic->ops->post_receives(nic, 32);
}

static inline int kit_connect(struct kit_end *e, const struct kit_end *to)
{
	return e->nic->ops->lane_connect(e->nic, 0, to->addr, to->addr_len, to->token);
}

/* After fake_ofi_reset() and changes to fake_ofi and kit.opts. */
static inline void kit_open(void)
{
	kit_open_end(&kit.a);
	kit_open_end(&kit.b);
	assert_int_equal(kit_connect(&kit.a, &kit.b), 0);
	assert_int_equal(kit_connect(&kit.b, &kit.a), 0);
}

static inline int kit_setup(void **state)
{
	fake_ofi_reset();
	memset(&kit, 0, sizeof(kit));
	kit.now_ns = 1000000000;
	epf_ofi_opts_defaults(&kit.opts);
	kit.opts.provider = "fake";
	kit.opts.timeout_ns = 1000000000;
	return 0;
}

/* Nothing of libfabric's is left open. */
static inline int kit_teardown(void **state)
{
	fake_ofi.hold = false;
	if (kit.a.nic)
		kit.a.nic->ops->close(kit.a.nic);
	if (kit.b.nic)
		kit.b.nic->ops->close(kit.b.nic);
	return fake_ofi.live != 0;
}

/* One reap of an end into kit.wc; returns the number. */
static inline int kit_reap(const struct kit_end *e)
{
	kit.n = e->nic->ops->reap(e->nic, kit.wc, 64);
	return kit.n;
}

/* Both ends, until nothing more comes; completions of this kind (and status) at e are counted. */
static inline unsigned kit_run(const struct kit_end *e, int op, int status)
{
	unsigned found = 0, quiet = 0;

	while (quiet < 3) {
		const struct kit_end *other = e == &kit.a ? &kit.b : &kit.a;
		int n = kit_reap(other);

		n += kit_reap(e);
		for (int i = 0; i < kit.n; i++)
			found += kit.wc[i].op == op && kit.wc[i].status == status;
		quiet = n ? 0 : quiet + 1;
	}
	return found;
}

static inline struct epf_wr kit_write(uint32_t id, int op, uint32_t len)
{
	return (struct epf_wr){ .laddr = (uint64_t)(uintptr_t)kit.a.mem,
				.raddr = kit.b.mr.raddr,
				.lkey = kit.a.mr.lkey,
				.rkey = kit.b.mr.rkey,
				.len = len,
				.imm = 1000 + id,
				.id = id,
				.op = (uint8_t)op };
}

static inline int kit_post(uint32_t id, int op, uint32_t len)
{
	struct epf_wr wr = kit_write(id, op, len);

	return kit.a.nic->ops->post(kit.a.nic, 0, &wr, 1);
}

static inline int kit_link(const struct kit_end *e)
{
	return (int)e->nic->ops->lane_link(e->nic, 0);
}

#endif
