/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A control connection: framed messages with descriptors over a stream socket, never blocking. Sending: any thread. Receiving: one
 * thread at a time, which holds ep->serving.
 */
#ifndef EPF_FABRIC_P2P_STREAM_H
#define EPF_FABRIC_P2P_STREAM_H

#include "fabric/p2p/wire.h"

#include <pthread.h>

enum { STREAM_FDS = 4, STREAM_OUT_MAX = 8 << 20 };

struct out_message;

struct stream {
	int fd;
	bool is_local;  /* a Unix socket: carries descriptors, needs no proofs */
	bool is_sealed; /* every message carries a proof from now on */
	bool accepts;
	uint8_t key[EPF_AUTH_KEY_BYTES];
	/* Receiving. */
	uint8_t *in;
	size_t have, room;
	int fds[STREAM_FDS];
	unsigned n_fds;
	uint32_t in_number;
	bool in_given; /* the first message of the buffer was given to the caller */
	bool given_sealed;
	/* Sending, under the lock. */
	pthread_mutex_t lock;
	struct out_message *first, *last;
	size_t out_bytes;
	uint32_t out_number;
};

/* A received message; data is valid until the next receive. */
struct received {
	enum message type;
	uint32_t bytes;
	const uint8_t *data;
	int fds[STREAM_FDS]; /* the caller's; -1: none */
};

void epf_p2p_stream_init(struct stream *s, int fd, bool is_local, bool accepts);
void epf_p2p_stream_close(struct stream *s);
/* From now on messages of a TCP connection carry proofs. */
void epf_p2p_stream_seal(struct stream *s, const uint8_t key[EPF_AUTH_KEY_BYTES]);
/*
 * Sends a message, or keeps what the socket does not take now. fds: n descriptors, which stay the caller's. -ECONNRESET; -ENOBUFS: the peer
 * does not read.
 */
int epf_p2p_send(struct stream *s, enum message type, const void *data, size_t bytes,
		 const int *fds, unsigned n);
/* Sends what was kept. Returns 1 if something still is, 0, or -errno. */
int epf_p2p_flush(struct stream *s);
/* Gives the next message: 1 with *out, 0: none yet, or -errno: the connection is over (-EPIPE: closed) or broken (-EBADMSG). */
int epf_p2p_receive(struct stream *s, struct received *out);
/* The same, waiting until the deadline (CLOCK_MONOTONIC, ns): for handshakes. -ETIMEDOUT. */
int epf_p2p_receive_wait(struct stream *s, uint64_t deadline_ns, struct received *out);

#endif
