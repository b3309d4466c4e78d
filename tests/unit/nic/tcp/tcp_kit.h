/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer of the TCP NIC that does as the test says, at the end of a socket of its own: it speaks the handshake of fabric/nic/tcp/wire.h with whatever key, and then sends whatever
 * bytes. For tests/unit/nic/tcp only.
 */
#ifndef EPF_TESTS_TCP_KIT_H
#define EPF_TESTS_TCP_KIT_H

#include "fabric/nic/tcp/greet.h"
#include "fabric/nic/tcp/tcp.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct tcp_kit_key {
	struct epf_auth auth;
	uint8_t id[EPF_TCP_ID]; /* the NIC that this peer pretends to be */
	uint16_t mode;
};

static inline const char *kit_no_env(const char *name, void *arg)
{
	return NULL;
}

/* The key that NICs have before a job gives them another. */
static inline void kit_key(struct tcp_kit_key *k)
{
	memset(k, 0, sizeof(*k));
	assert_int_equal(epf_auth_load(NULL, 0, NULL, kit_no_env, NULL, &k->auth), 0);
	memset(k->id, 0, sizeof(k->id)); /* the lowest of all: it dials */
}

static inline uint64_t kit_now(void *arg)
{
	return *(uint64_t *)arg;
}

/* Where a NIC listens. */
static inline void kit_place(struct epf_nic *nic, struct epf_tcp_place *out)
{
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	int n = nic->ops->address(nic, addr, sizeof(addr));

	assert_true(n > 0);
	assert_int_equal(epf_tcp_addr_decode(addr, (size_t)n, out), 0);
}

/* A connection to a NIC, blocking. */
static inline int kit_connect(struct epf_nic *nic)
{
	struct epf_tcp_place place;
	int fd;

	kit_place(nic, &place);
	fd = socket(place.addrs[0].sa.sa_family, SOCK_STREAM, 0);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, &place.addrs[0].sa, place.addrs[0].len), 0);
	return fd;
}

static inline void kit_send(int fd, const void *bytes, size_t n)
{
	assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* Receives exactly n bytes; 0: the other end closed before. */
static inline int kit_receive(int fd, void *bytes, size_t n)
{
	ssize_t got = n ? recv(fd, bytes, n, MSG_WAITALL) : 0;

	return got == (ssize_t)n;
}

/* The whole handshake as the end that dials. 1: accepted; 0: refused. */
static inline int kit_greet(int fd, const struct tcp_kit_key *key,
			    const struct epf_tcp_claim *claim)
{
	struct epf_tcp_greet g;

	epf_tcp_greet_dial(&g, &key->auth, key->id, claim, key->mode);
	for (;;) {
		if (g.sent < g.out_len) {
			kit_send(fd, g.out + g.sent, g.out_len - g.sent);
			g.sent = g.out_len;
		}
		if (g.state == EPF_TCP_GREET_DONE)
			return 1;
		if (!kit_receive(fd, g.in, g.want))
			return 0;
		g.have = g.want;
		if (epf_tcp_greet_step(&g))
			return 0;
	}
}

/* Connects lane `lane` of a NIC to this peer, whose lane has this token; returns the socket. */
static inline int kit_lane(struct epf_nic *nic, const struct tcp_kit_key *key, uint16_t lane,
			   uint64_t *token)
{
	struct epf_tcp_claim claim = { .from_token = 1ull << 32 };
	struct epf_tcp_place place, mine = { .count = 1 };
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	struct epf_wc wc[4];
	int n, fd = kit_connect(nic);

	kit_place(nic, &place);
	assert_int_equal(nic->ops->lane_create(nic, lane, 16, token), 0);
	memcpy(mine.id, key->id, EPF_TCP_ID);
	mine.addrs[0] = place.addrs[0];
	n = epf_tcp_addr_encode(&mine, addr, sizeof(addr));
	assert_true(n > 0);
	assert_int_equal(nic->ops->lane_connect(nic, lane, addr, (size_t)n, claim.from_token), 0);
	memcpy(claim.to, place.id, EPF_TCP_ID);
	memcpy(claim.from, key->id, EPF_TCP_ID);
	claim.to_token = *token;
	assert_int_equal(kit_greet(fd, key, &claim), 1);
	/* The door gives it to the lane a moment later. */
	while (epf_tcp_lane_at(epf_tcp_of(nic), lane)->fd < 0) {
		assert_int_equal(nic->ops->reap(nic, wc, 4), 0);
		usleep(100);
	}
	return fd;
}

/* Reaps until something is reported; returns the number. */
static inline int kit_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	int got = 0;

	while ((got = nic->ops->reap(nic, wc, n)) == 0)
		usleep(100);
	return got;
}

#endif
