/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the bootstrap's tests share: a server on a free loopback port, ranks as threads, and raw
 * connections that speak the wire format by hand, to do what a well-behaved client never does.
 */
#ifndef EPF_TEST_BOOT_KIT_H
#define EPF_TEST_BOOT_KIT_H

#include "bootstrap/boot.h"
#include "bootstrap/net.h"
#include "bootstrap/wire.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SECRET  "a secret of the bootstrap test"
#define MS      1000000ull
#define S       1000000000ull
#define LONG_NS (20 * S)

#define assert_ok(rc)                                                      \
 do {                                                                      \
  int ok_rc = (rc);                                                        \
  if (ok_rc)                                                               \
   fail_msg("%s:%d: %d: %s", __FILE__, __LINE__, ok_rc, epf_last_error()); \
 } while (0)

#define assert_error(rc, want, words)                                               \
 do {                                                                               \
  assert_int_equal(rc, want);                                                       \
  if (!strstr(epf_last_error(), words))                                             \
   fail_msg("%s:%d: '%s' lacks '%s'", __FILE__, __LINE__, epf_last_error(), words); \
 } while (0)

static inline struct epf_boot_server_opts server_opts(uint32_t world)
{
	return (struct epf_boot_server_opts){
		.size = sizeof(struct epf_boot_server_opts),
		.world = world,
		.listen = "127.0.0.1:0",
		.job = "job",
		.secret = SECRET,
		.secret_len = strlen(SECRET),
	};
}

static inline struct epf_boot_server *start(const struct epf_boot_server_opts *opts)
{
	struct epf_boot_server *srv = NULL;

	assert_ok(epf_boot_server_start(opts, &srv));
	return srv;
}

static inline struct epf_boot_server *start_plain(uint32_t world)
{
	struct epf_boot_server_opts opts = server_opts(world);

	return start(&opts);
}

static inline struct epf_boot_opts rank_opts(const char *where, uint32_t rank, uint32_t world)
{
	return (struct epf_boot_opts){
		.size = sizeof(struct epf_boot_opts),
		.rank = rank,
		.world = world,
		.rendezvous = where,
		.job = "job",
		.secret = SECRET,
		.secret_len = strlen(SECRET),
		.timeout_ns = LONG_NS,
		.node = "here",
	};
}

static inline struct epf_boot *join_as(struct epf_boot_server *srv, uint32_t rank, uint32_t world,
				       uint64_t timeout_ns)
{
	struct epf_boot_opts opts = rank_opts(epf_boot_server_address(srv), rank, world);
	struct epf_boot *boot = NULL;

	opts.timeout_ns = timeout_ns;
	assert_ok(epf_boot_tcp_open(&opts, &boot));
	return boot;
}

/* A thread per rank. Threads do not assert: they report, and the main thread judges. */
struct rank_thread {
	pthread_t thread;
	struct epf_boot_opts opts;
	struct epf_boot *boot; /* opened before, or NULL: opens by itself */
	int (*run)(struct epf_boot *boot, void *arg);
	void *arg;
	int rc;
	char error[512];
};

static inline void *rank_main(void *arg)
{
	struct rank_thread *t = arg;

	if (!t->boot)
		t->rc = epf_boot_tcp_open(&t->opts, &t->boot);
	if (!t->rc)
		t->rc = t->run(t->boot, t->arg);
	snprintf(t->error, sizeof(t->error), "%s", t->rc ? epf_last_error() : "");
	epf_boot_close(t->boot);
	return NULL;
}

static inline void spawn(struct rank_thread *t)
{
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 512 << 10);
	assert_int_equal(pthread_create(&t->thread, &attr, rank_main, t), 0);
	pthread_attr_destroy(&attr);
}

static inline int run_barrier(struct epf_boot *boot, void *arg)
{
	return epf_boot_barrier(boot);
}

static inline int run_gather(struct epf_boot *boot, void *arg)
{
	struct epf_blob *all;
	int rc = epf_boot_allgather(boot, "x", 1, &all);

	if (!rc)
		epf_boot_free_blobs(all);
	return rc;
}

/* Every rank alone in its thread does one thing; all must succeed. */
static inline void all_ranks(struct epf_boot_server *srv, uint32_t world,
			     int (*run)(struct epf_boot *, void *))
{
	struct rank_thread *t = calloc(world, sizeof(*t));

	for (uint32_t r = 0; r < world; r++) {
		t[r].opts = rank_opts(epf_boot_server_address(srv), r, world);
		t[r].run = run;
		spawn(&t[r]);
	}
	for (uint32_t r = 0; r < world; r++)
		pthread_join(t[r].thread, NULL);
	for (uint32_t r = 0; r < world; r++)
		if (t[r].rc)
			fail_msg("rank %u: %d: %s", r, t[r].rc, t[r].error);
	free(t);
}

/* A connection by hand. */
struct raw {
	int fd;
	struct epf_auth auth;
	struct epf_wire_session session;
	uint8_t in[4096];
	size_t in_len;
	uint8_t sent[2048]; /* everything that was sent, for replays */
	size_t sent_len;
};

static inline void raw_open(struct raw *r, struct epf_boot_server *srv, uint32_t rank)
{
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	char host[EPF_NET_HOST_MAX];
	struct timeval tv = { .tv_sec = 10 };
	uint16_t port;
	size_t count;

	memset(r, 0, sizeof(*r));
	assert_ok(epf_net_split(epf_boot_server_address(srv), host, &port));
	assert_ok(epf_net_resolve(host, port, at, &count));
	r->fd = socket(at[0].sa.sa_family, SOCK_STREAM, 0);
	assert_true(r->fd >= 0);
	setsockopt(r->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	assert_int_equal(connect(r->fd, &at[0].sa, at[0].len), 0);
	assert_ok(epf_auth_load(SECRET, strlen(SECRET), NULL, NULL, NULL, &r->auth));
	epf_wire_session_init(&r->session, &r->auth, rank);
}

static inline void raw_bytes(struct raw *r, const void *bytes, size_t len)
{
	assert_int_equal(send(r->fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
	if (r->sent_len + len <= sizeof(r->sent)) {
		memcpy(r->sent + r->sent_len, bytes, len);
		r->sent_len += len;
	}
}

static inline void raw_send(struct raw *r, enum epf_wire_type type, const void *payload, size_t len)
{
	uint8_t frame[EPF_WIRE_OVERHEAD + EPF_WIRE_EARLY_MAX];

	raw_bytes(r, frame, epf_wire_seal(&r->session, type, payload, len, NULL, frame));
}

/* The next whole frame's type; 0 at the end of the connection. The frame stays at r->in. */
static inline uint16_t raw_frame(struct raw *r, struct epf_wire_head *head)
{
	enum epf_wire_verdict v;

	r->in_len = 0;
	for (;;) {
		v = epf_wire_head_read(&r->session, r->in, r->in_len, EPF_WIRE_EARLY_MAX, head);
		if (v == EPF_WIRE_V_OK && r->in_len == EPF_WIRE_OVERHEAD + head->length)
			return head->type;
		assert_true(v == EPF_WIRE_V_OK || v == EPF_WIRE_V_MORE);
		if (recv(r->fd, r->in + r->in_len, 1, 0) <= 0)
			return 0;
		r->in_len++;
	}
}

/* Goes as far as JOIN is sent; returns the type of the answer. */
static inline uint16_t raw_join(struct raw *r, const struct epf_wire_join *join)
{
	uint8_t nonce[EPF_AUTH_NONCE_BYTES], payload[EPF_WIRE_EARLY_MAX];
	struct epf_wire_head head;

	epf_auth_nonce(nonce);
	raw_send(r, EPF_WIRE_HELLO, nonce, sizeof(nonce));
	assert_int_equal(raw_frame(r, &head), EPF_WIRE_CHALLENGE);
	epf_wire_session_rekey(&r->session, &r->auth, nonce, r->in + EPF_WIRE_HEAD_BYTES);
	raw_send(r, EPF_WIRE_JOIN, payload, epf_wire_put_join(payload, join));
	return raw_frame(r, &head);
}

static inline void raw_member(struct raw *r, struct epf_boot_server *srv, uint32_t rank,
			      uint32_t world)
{
	struct epf_wire_join join = {
		.rank = rank, .world = world, .timeout_ns = LONG_NS, .job = "job", .node = "raw"
	};

	raw_open(r, srv, rank);
	assert_int_equal(raw_join(r, &join), EPF_WIRE_WELCOME);
}

/* Waits for a counter of the server to reach a value. */
#define wait_for(srv, field, want)                                 \
 do {                                                              \
  struct epf_boot_server_stats st_;                                \
  uint64_t until_ = epf_now_ns() + 60 * S;                         \
  do {                                                             \
   epf_boot_server_stats(srv, &st_);                               \
   if (st_.field < (uint64_t)(want))                               \
    usleep(2000);                                                  \
  } while (st_.field < (uint64_t)(want) && epf_now_ns() < until_); \
  assert_int_equal(st_.field, want);                               \
 } while (0)

/* Bytes that the server has heard. */
static inline uint64_t received(struct epf_boot_server *srv)
{
	struct epf_boot_server_stats st;

	epf_boot_server_stats(srv, &st);
	return st.received_bytes;
}

/* Waits until it has heard more than that: a rank's message is in, however late its thread was run. */
static inline void wait_for_more(struct epf_boot_server *srv, uint64_t heard)
{
	uint64_t until = epf_now_ns() + 10 * S;

	while (received(srv) <= heard && epf_now_ns() < until)
		usleep(1000);
	assert_true(received(srv) > heard);
}

#endif
