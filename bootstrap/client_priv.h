/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the TCP client, for its two files: connect.c (find, reach and prove oneself to the
 * server) and client.c (the calls afterwards). One thread at a time uses a handle.
 */
#ifndef EPF_BOOTSTRAP_CLIENT_PRIV_H
#define EPF_BOOTSTRAP_CLIENT_PRIV_H

#include "bootstrap/auth.h"
#include "bootstrap/boot_priv.h"
#include "bootstrap/net.h"
#include "bootstrap/wire.h"

#include <stdarg.h>

struct tcp_boot {
	struct epf_boot base;
	struct epf_auth auth;
	struct epf_wire_session session;
	struct epf_boot_server *server; /* the one this rank hosts, or NULL */
	int fd;
	uint64_t timeout_ns;
	uint64_t round;    /* exchanges completed */
	uint8_t *in, *out; /* one frame each */
	size_t in_at, in_len, in_cap;
	char where[EPF_BOOT_ADDRESS_MAX]; /* the rendezvous, for messages */
	enum epf_reason failed;           /* the first failure; later calls repeat it */
	char why[400];
	char detail[400]; /* of the error that is being returned */
};

/* A result while it comes in. */
struct gathered {
	struct epf_blob *all;
	uint8_t *stream;
	size_t total, got;
};

extern const struct epf_boot_ops tcp_ops;

/* tcp_fail() - epf_fail() that also keeps the detail for repeating it. */
int tcp_fail(struct tcp_boot *t, enum epf_reason reason, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* tcp_wait() - until the socket is ready; -ETIMEDOUT at the deadline, -EINTR when the caller interrupts (its error stays), no error text. */
int tcp_wait(struct tcp_boot *t, short events, uint64_t deadline_ns);

/* tcp_fill() - more bytes into the input: 0, -EAGAIN, or an error with its text. */
int tcp_fill(struct tcp_boot *t);

/* tcp_receive() - the next message; FAIL and REFUSE become this call's error. */
int tcp_receive(struct tcp_boot *t, uint64_t wait_ns, struct epf_wire_msg *msg);

/* tcp_send() - one message; @wait_ns without progress is an error. */
int tcp_send(struct tcp_boot *t, enum epf_wire_type type, const void *payload, size_t len,
	     uint64_t wait_ns);

/* tcp_route() - epf_boot_route() of a rank that came by TCP. */
int tcp_route(struct epf_boot *b, char *host, size_t size, bool *is_secret);

/* tcp_free() - close and free, with the server that this rank hosts; no farewell. */
void tcp_free(struct tcp_boot *t);

#endif
