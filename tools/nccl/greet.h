/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two processes that NCCL brings together recognise each other on a fresh TCP connection: both prove that they know the secret of the handle that NCCL
 * carried (HMAC over nonces of both, bootstrap/auth.h), and each says who it is. Blocking, with a deadline; called by the threads of link.c.
 */
#ifndef EPF_TOOLS_NCCL_GREET_H
#define EPF_TOOLS_NCCL_GREET_H

#include "tools/nccl/handle.h"

#include <stdint.h>

enum { EPF_NCCL_NAME_BYTES = 60 }; /* longer names are cut */

/* What each end says of itself. */
struct epf_nccl_self {
	uint8_t process[EPF_NCCL_ID_BYTES]; /* random, once a process */
	uint8_t host[EPF_NCCL_ID_BYTES];    /* the same where the software NIC reaches */
	uint32_t pid;
	char name[EPF_NCCL_NAME_BYTES]; /* of its host, for people */
};

/* What the accepting end answers. */
enum epf_nccl_verdict {
	EPF_NCCL_GO = 1,  /* make a link over this connection */
	EPF_NCCL_BUSY = 2 /* there is one, or one is being made: use that */
};

struct epf_nccl_greeting {
	struct epf_nccl_self peer;
	enum epf_nccl_verdict verdict;
	uint16_t port;                   /* of the link's rendezvous at the accepting end */
	uint8_t key[EPF_AUTH_KEY_BYTES]; /* of this connection alone: the link's secret */
};

/* Dials with the secret of a handle. Returns 0; -EACCES, -EPROTO, -ETIMEDOUT or the socket's error with epf_last_error(). */
int epf_nccl_greet_dial(int fd, const uint8_t secret[EPF_NCCL_SECRET_BYTES],
			const struct epf_nccl_self *self, uint64_t deadline_ns,
			struct epf_nccl_greeting *out);

/*
 * The accepting end: when the peer has proven itself and out->peer and out->key are known, `decide` says the verdict and, for GO, the port. Errors as above; those
 * of decide.
 */
int epf_nccl_greet_accept(int fd, const uint8_t secret[EPF_NCCL_SECRET_BYTES],
			  const struct epf_nccl_self *self, uint64_t deadline_ns,
			  int (*decide)(void *arg, struct epf_nccl_greeting *greeting), void *arg,
			  struct epf_nccl_greeting *out);

/* Sends or receives exactly `bytes`. Returns 0, -ETIMEDOUT, -EPIPE when the other end has closed, or the socket's error; no text. */
int epf_nccl_send_all(int fd, const void *buf, size_t bytes, uint64_t deadline_ns);
int epf_nccl_recv_all(int fd, void *buf, size_t bytes, uint64_t deadline_ns);

#endif
