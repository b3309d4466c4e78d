/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two TCP NICs with an honest lane between them, for tests of what others do to one of them: its memory, an exported one with pages around it that are not, and
 * how many strangers and errors it has counted.
 */
#ifndef EPF_TESTS_TCP_HOSTILE_KIT_H
#define EPF_TESTS_TCP_HOSTILE_KIT_H

#include "tests/unit/nic/tcp/tcp_kit.h"

enum { BYTES = 1 << 17 };

static uint64_t clock_ns = 1;

struct stage {
	struct epf_nic *nic, *honest; /* lane 0 of each leads to the other */
	uint8_t *mem; /* of nic, exported for writing and reading; a page on both sides is not */
	uint8_t *whole;
	uint8_t *source;
	struct epf_nic_mr mr, source_mr, read_only;
	struct tcp_kit_key key;
	uint32_t sent;
};

static inline struct epf_nic *open_nic(uint32_t strangers, uint64_t timeout_ns)
{
	struct epf_tcp_opts opts;
	struct epf_nic *nic;

	epf_tcp_opts_defaults(&opts);
	opts.strangers = strangers;
	opts.stranger_timeout_ns = timeout_ns;
	assert_int_equal(epf_tcp_open(&opts, kit_now, &clock_ns, &nic), 0);
	return nic;
}

static inline void pair(struct stage *s, uint16_t lane)
{
	uint8_t a[EPF_NIC_ADDR_BYTES], b[EPF_NIC_ADDR_BYTES];
	int na = s->nic->ops->address(s->nic, a, sizeof(a));
	int nb = s->honest->ops->address(s->honest, b, sizeof(b));
	uint64_t ta, tb;

	assert_int_equal(s->nic->ops->lane_create(s->nic, lane, 16, &ta), 0);
	assert_int_equal(s->honest->ops->lane_create(s->honest, lane, 16, &tb), 0);
	assert_int_equal(s->nic->ops->lane_connect(s->nic, lane, b, (size_t)nb, tb), 0);
	assert_int_equal(s->honest->ops->lane_connect(s->honest, lane, a, (size_t)na, ta), 0);
}

static inline struct stage *open_stage(uint32_t strangers, uint64_t timeout_ns)
{
	struct stage *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	kit_key(&s->key);
	s->nic = open_nic(strangers, timeout_ns);
	s->honest = open_nic(strangers, timeout_ns);
	s->whole = malloc(BYTES + 8192);
	s->source = malloc(BYTES);
	assert_true(s->whole && s->source);
	memset(s->whole, 0xcc, BYTES + 8192);
	s->mem = s->whole + 4096;
	assert_int_equal(s->nic->ops->region_register(s->nic, s->mem, BYTES,
						      EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
						      &s->mr),
			 0);
	assert_int_equal(s->nic->ops->region_register(s->nic, s->whole, 4096, EPF_MR_REMOTE_READ,
						      &s->read_only),
			 0);
	assert_int_equal(
		s->honest->ops->region_register(s->honest, s->source, BYTES, 0, &s->source_mr), 0);
	s->nic->ops->post_receives(s->nic, 1000);
	pair(s, 0);
	return s;
}

/* The honest peer writes, and what it writes is there. */
static inline void honest_goes_on(struct stage *s, uint16_t lane)
{
	struct epf_wr wr = { .laddr = (uint64_t)(uintptr_t)s->source,
			     .raddr = s->mr.raddr + 64,
			     .lkey = s->source_mr.lkey,
			     .rkey = s->mr.rkey,
			     .len = 5000,
			     .id = ++s->sent,
			     .op = EPF_WR_WRITE };
	struct epf_wc wc[8];
	int done = 0;

	memset(s->source, (int)s->sent, 5000);
	assert_int_equal(s->honest->ops->post(s->honest, lane, &wr, 1), 1);
	while (!done) {
		int n;

		assert_int_equal(s->nic->ops->reap(s->nic, wc, 8), 0);
		n = s->honest->ops->reap(s->honest, wc, 8);
		for (int i = 0; i < n; i++) {
			assert_int_equal(wc[i].op, EPF_WC_SENT);
			assert_int_equal(wc[i].status, EPF_S_OK);
			done = wc[i].id == s->sent;
		}
		if (!n)
			usleep(100);
	}
	assert_memory_equal(s->mem + 64, s->source, 5000);
}

static inline void close_stage(struct stage *s)
{
	for (int i = 0; i < 4096; i++) {
		assert_int_equal(s->whole[i], 0xcc);
		assert_int_equal(s->mem[BYTES + i], 0xcc);
	}
	s->nic->ops->close(s->nic);
	s->honest->ops->close(s->honest);
	free(s->whole);
	free(s->source);
	free(s);
}

static inline uint64_t strangers_of(struct epf_nic *nic)
{
	struct epf_nic_counters c;

	nic->ops->counters(nic, &c);
	return c.strangers;
}

static inline uint64_t errors_of(struct epf_nic *nic)
{
	struct epf_nic_counters c;

	nic->ops->counters(nic, &c);
	return c.errors;
}

static inline void wait_for_strangers(struct epf_nic *nic, uint64_t least)
{
	while (strangers_of(nic) < least)
		usleep(1000);
}

/* The other end closes. */
static inline void expect_end(int fd)
{
	uint8_t byte[256];
	ssize_t n;

	while ((n = recv(fd, byte, sizeof(byte), 0)) > 0)
		;
	assert_true(n == 0 || errno == ECONNRESET);
	close(fd);
}

#define LONG_NS 3600000000000ull

#endif
