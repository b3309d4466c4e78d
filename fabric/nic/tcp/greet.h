/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One end of the handshake of wire.h, without a socket: bytes go in, bytes come out. Called by callers.c, on the door's thread, and by the tests and the fuzzer. It holds
 * a fixed number of bytes, whatever the other end sends.
 */
#ifndef EPF_FABRIC_NIC_TCP_GREET_H
#define EPF_FABRIC_NIC_TCP_GREET_H

#include "bootstrap/auth.h"
#include "fabric/nic/tcp/seal.h"
#include "fabric/nic/tcp/wire.h"

#include <stdbool.h>

enum epf_tcp_greet_state {
	EPF_TCP_GREET_HELLO,     /* A waits for HELLO */
	EPF_TCP_GREET_CHALLENGE, /* D waits for CHALLENGE */
	EPF_TCP_GREET_PROOF,     /* A waits for PROOF */
	EPF_TCP_GREET_ACCEPT,    /* D waits for ACCEPT */
	EPF_TCP_GREET_DONE, /* both have proven themselves; what is in out is still to be sent */
};

struct epf_tcp_greet {
	const struct epf_auth *auth;
	const uint8_t *id;          /* of the own NIC, EPF_TCP_ID bytes */
	struct epf_tcp_claim claim; /* D: given; A: known when DONE */
	uint16_t mode;              /* EPF_TCP_MODE_*, of the own end */
	uint16_t peer_mode;
	uint8_t state;       /* enum epf_tcp_greet_state */
	uint16_t have, want; /* bytes of the message that is waited for */
	uint16_t sent, out_len;
	uint8_t hello[2][EPF_TCP_HELLO_BYTES]; /* HELLO and CHALLENGE as they were sent */
	uint8_t nonce[2][EPF_TCP_NONCE];
	uint8_t in[EPF_TCP_PROOF_BYTES];
	uint8_t out[EPF_TCP_PROOF_BYTES];
};

/* Begins at the end that dials: its HELLO is in out. auth and id stay the caller's, and as they are. @mode: EPF_TCP_MODE_*. */
void epf_tcp_greet_dial(struct epf_tcp_greet *g, const struct epf_auth *auth, const uint8_t *id,
			const struct epf_tcp_claim *claim, uint16_t mode);
/* Begins at the end that accepts. */
void epf_tcp_greet_accept(struct epf_tcp_greet *g, const struct epf_auth *auth, const uint8_t *id,
			  uint16_t mode);

/*
 * The message that was waited for is in `in`, complete. 0: go on (out may hold an answer); -EPROTO: it is none of the handshake; -EACCES: it proves nothing, or
 * is meant for another NIC; -EPROTOTYPE: the two ends are to encrypt differently.
 */
int epf_tcp_greet_step(struct epf_tcp_greet *g);

/* The keys of a connection whose handshake is DONE; @dialed: this end has dialed. The caller overwrites them after use. */
void epf_tcp_greet_keys(const struct epf_tcp_greet *g, bool dialed, struct epf_tcp_seal_keys *out);

#endif
