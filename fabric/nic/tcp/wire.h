/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels on a connection of the TCP NIC, byte by byte: the four messages of the handshake, then trains in both directions. Pure functions over bytes:
 * greet.c, tx.c and rx.c call them, and tests/fuzz/fuzz_tcp.c. They must never believe a number that they have not checked.
 *
 * All numbers are little-endian. Handshake (D: who dials, A: who accepts):
 *
 *   D  HELLO      0 u32 "EPFT"  4 u16 version  6 u16 mode (EPF_TCP_MODE_*, the same at both ends)  8 nonce[32]
 *   A  CHALLENGE  the same, with a nonce of its own
 *   D  PROOF      0 id of A's NIC[16]  16 id of D's NIC[16]  32 u64 token of A's lane  40 u64 token of D's lane  48 proof[32]
 *   A  ACCEPT     0 proof[32]
 *
 * A proof is an HMAC-SHA-256 by the session's key (bootstrap/auth.h: from the job's key and both nonces) over its direction and all that was said
 * before it, so that none can be replayed, sent back, or used for another lane. In mode SEALED all that follows is in records (seal.h), by keys made in the same way.
 *
 * A train is a header, its descriptors, and then the payloads of these in order: a receiver that knows the descriptors receives each payload
 * straight into the memory that it is for. Header: 0 u32 "EPTR"  4 u16 number of descriptors  6 u16 0  8 u32 acknowledged  12 u32 bytes of all payloads.
 * Descriptor: 0 u8 kind  1 u8 status  2 u16 0  4 u32 length  8 u64 remote address  16 u32 key  20 u32 immediate.
 */
#ifndef EPF_FABRIC_NIC_TCP_WIRE_H
#define EPF_FABRIC_NIC_TCP_WIRE_H

#include <stdint.h>

enum {
	EPF_TCP_VERSION = 2,
	EPF_TCP_NONCE = 32,
	EPF_TCP_ID = 16,
	EPF_TCP_PROOF = 32,
	EPF_TCP_HELLO_BYTES = 8 + EPF_TCP_NONCE,
	EPF_TCP_CLAIM_BYTES = 2 * EPF_TCP_ID + 16, /* PROOF without its proof */
	EPF_TCP_PROOF_BYTES = EPF_TCP_CLAIM_BYTES + EPF_TCP_PROOF,
	EPF_TCP_HEAD_BYTES = 16,
	EPF_TCP_DESC_BYTES = 24,
	EPF_TCP_TRAIN = 128,       /* most descriptors of a train */
	EPF_TCP_TRAIN_SENDS = 16,  /* of them, messages */
	EPF_TCP_MSG_MAX = 1 << 20, /* longest WRITE or READ */
	EPF_TCP_READS = 64,        /* most READs of a lane under way in one direction */
	EPF_TCP_FRONT_BYTES = EPF_TCP_HEAD_BYTES + EPF_TCP_TRAIN * EPF_TCP_DESC_BYTES,
};

enum epf_tcp_mode {
	EPF_TCP_MODE_PLAIN = 0,
	EPF_TCP_MODE_SEALED = 1, /* setting wire-encryption */
};

/* Kinds of descriptors; those up to READ are requests, which are counted and acknowledged. */
enum epf_tcp_kind {
	EPF_TCP_WRITE = 1,
	EPF_TCP_WRITE_IMM = 2,
	EPF_TCP_SEND = 3,
	EPF_TCP_READ = 4,  /* no payload: asks for length bytes */
	EPF_TCP_BYTES = 5, /* the bytes that the oldest READ asked for */
	EPF_TCP_NAK =
		6, /* request number `imm` failed with `status`, those before it did not; nothing after it takes effect */
};

struct epf_tcp_head {
	uint32_t count;
	uint32_t
		ack; /* requests that have taken effect here since the connection was made; wraps */
	uint32_t bytes;
};

struct epf_tcp_desc {
	uint64_t raddr;
	uint32_t len;
	uint32_t rkey;
	uint32_t imm;
	uint8_t kind;
	uint8_t status;
};

struct epf_tcp_hello {
	uint16_t version;
	uint16_t mode; /* EPF_TCP_MODE_* */
	uint8_t nonce[EPF_TCP_NONCE];
};

struct epf_tcp_claim {
	uint8_t to[EPF_TCP_ID], from[EPF_TCP_ID];
	uint64_t to_token, from_token;
};

/* Payload bytes that follow for a descriptor. */
static inline uint32_t epf_tcp_payload(const struct epf_tcp_desc *d)
{
	return d->kind == EPF_TCP_READ || d->kind == EPF_TCP_NAK ? 0 : d->len;
}

void epf_tcp_hello_encode(const struct epf_tcp_hello *h, uint8_t *out);
/* 0, or -EPROTO: no HELLO, or one of another version. */
int epf_tcp_hello_decode(const uint8_t *in, struct epf_tcp_hello *out);
void epf_tcp_claim_encode(const struct epf_tcp_claim *c, uint8_t *out);
void epf_tcp_claim_decode(const uint8_t *in, struct epf_tcp_claim *out);

void epf_tcp_head_encode(const struct epf_tcp_head *h, uint8_t *out);
/* 0, or -EPROTO. */
int epf_tcp_head_decode(const uint8_t *in, struct epf_tcp_head *out);
void epf_tcp_desc_encode(const struct epf_tcp_desc *d, uint8_t *out);
/* All descriptors of a train whose header was decoded: 0, or -EPROTO: an unknown kind, an impossible length, too many messages, another sum. */
int epf_tcp_descs_decode(const struct epf_tcp_head *h, const uint8_t *in, struct epf_tcp_desc *out);

#endif
