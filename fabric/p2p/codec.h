/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of compressed chunks: floating-point values as planes, one of exponents and the rest, each compressed by zstd or stored. Values are
 * never interpreted: every bit survives, whatever the bytes are. Knows nothing of endpoints; the decoder trusts no length.
 *
 *   head | plane 0 (exponents: one byte a value) | other planes (sign and mantissa) | tail (bytes that are no whole value)
 */
#ifndef EPF_FABRIC_P2P_CODEC_H
#define EPF_FABRIC_P2P_CODEC_H

#include "fabric/p2p/epf_p2p.h"

#include <stdbool.h>

enum {
	CODEC_BYTES = 256 * 1024, /* most bytes of a chunk: P2P_CHUNK */
	CODEC_PLANES = 4,
	CODEC_STORED = 1u << 31, /* in the length of a plane: not compressed */
};

/* How much is compressed; the weaker of two ends counts. Travels in the handshake. */
enum codec_strategy {
	CODEC_NONE = 0,
	CODEC_SPLIT = 1, /* the exponents */
	CODEC_FULL = 2,  /* the other planes too */
};

struct codec_head {
	uint32_t type;  /* enum epf_p2p_float */
	uint32_t bytes; /* of the chunk */
	uint32_t plane[CODEC_PLANES];
};

/* Most bytes of an encoded chunk: all of it stored. */
enum { CODEC_ROOM = CODEC_BYTES + (int)sizeof(struct codec_head) };

/* Contexts and scratch memory of one thread at a time. */
struct codec;

/* Whether this build has the library. */
bool epf_p2p_codec_exists(void);
/* Returns 0, -ENOMEM, or -ENOTSUP without the library. */
int epf_p2p_codec_new(struct codec **out);
void epf_p2p_codec_free(struct codec *c);
/* Encodes a chunk of at most CODEC_BYTES into CODEC_ROOM bytes, and returns how many it has become: never more than the head added. */
uint32_t epf_p2p_encode(struct codec *c, enum codec_strategy strategy, enum epf_p2p_float type,
			const uint8_t *from, uint32_t bytes, uint8_t *to);
/*
 * Decodes to exactly `bytes` bytes. -EBADMSG: it is not the encoding of so many; `to` is then unchanged. `from` must not change meanwhile: copy
 * what a peer can write.
 */
int epf_p2p_decode(struct codec *c, const uint8_t *from, uint32_t from_bytes, uint8_t *to,
		   uint32_t bytes);

/* Bytes of a value; 0: no such type. */
uint32_t epf_p2p_float_bytes(uint32_t type);

#endif
