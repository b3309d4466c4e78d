/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ofi NICs exchange: addresses, lane tokens, and the header of messages. Pure functions on bytes; all numbers are little-endian. The inline ones are on the data path.
 */
#ifndef EPF_FABRIC_NIC_OFI_WIRE_H
#define EPF_FABRIC_NIC_OFI_WIRE_H

#include "fabric/nic/bytes.h"
#include "fabric/nic/nic.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

enum {
	EPF_OFI_NAME_BYTES = 96, /* longest address of libfabric's */
	EPF_OFI_HEADER = 24,
	EPF_OFI_WIRE_BYTES = EPF_OFI_HEADER + EPF_NIC_MSG_BYTES,
};

/* The address of a NIC: that of its endpoint, and a number for provider and address format, which both ends must share. */
struct epf_ofi_place {
	uint32_t kind;
	uint32_t len;
	uint8_t name[EPF_OFI_NAME_BYTES];
};

/* Names a lane of one generation: bits 0 to 15 number, 16 to 31 generation, 32 to 63 a random number above 0. */
struct epf_ofi_token {
	uint16_t lane, generation;
	uint32_t nonce;
};

enum epf_ofi_kind {
	EPF_OFI_MESSAGE = 1, /* of EPF_WR_SEND: bytes follow the header */
	EPF_OFI_NOTIFY = 2,  /* of EPF_WR_WRITE_IMM: len bytes have been written */
};

/* Of a message: 0 lane token  8 u8 kind  12 u32 immediate data  16 u32 length  20 u32 zero. */
struct epf_ofi_header {
	struct epf_ofi_token to;
	uint32_t imm, len;
	uint8_t kind;
};

/* Returns a number for a provider's name and address format. */
uint32_t epf_ofi_kind_of(const char *provider, uint32_t addr_format);

/* Returns the address's length, or -EINVAL with epf_last_error() set if buf is too small. */
int epf_ofi_place_encode(const struct epf_ofi_place *place, void *buf, size_t size);
/* Returns 0 and *out, or -EINVAL with epf_last_error() set. */
int epf_ofi_place_decode(const void *buf, size_t len, struct epf_ofi_place *out);

static inline uint64_t epf_ofi_token_encode(const struct epf_ofi_token *token)
{
	return (uint64_t)token->nonce << 32 | (uint32_t)token->generation << 16 | token->lane;
}

/* Returns 0 and *out, or -EINVAL for what no NIC gives. */
static inline int epf_ofi_token_decode(uint64_t token, struct epf_ofi_token *out)
{
	struct epf_ofi_token t = { .lane = (uint16_t)token,
				   .generation = (uint16_t)(token >> 16),
				   .nonce = (uint32_t)(token >> 32) };

	if (!t.generation || !t.nonce)
		return -EINVAL;
	*out = t;
	return 0;
}

static inline void epf_ofi_header_encode(const struct epf_ofi_header *header, uint8_t *at)
{
	epf_bytes_put(at, epf_ofi_token_encode(&header->to), 8);
	epf_bytes_put(at + 8, header->kind, 4);
	epf_bytes_put(at + 12, header->imm, 4);
	epf_bytes_put(at + 16, header->len, 4);
	epf_bytes_put(at + 20, 0, 4);
}

/* Returns 0 and *out, or -EINVAL if these are not the bytes of a message. */
static inline int epf_ofi_header_decode(const uint8_t *at, size_t bytes, struct epf_ofi_header *out)
{
	struct epf_ofi_header h;

	if (bytes < EPF_OFI_HEADER || bytes > EPF_OFI_WIRE_BYTES ||
	    epf_ofi_token_decode(epf_bytes_get(at, 8), &h.to))
		return -EINVAL;
	h.kind = at[8];
	h.imm = (uint32_t)epf_bytes_get(at + 12, 4);
	h.len = (uint32_t)epf_bytes_get(at + 16, 4);
	if (epf_bytes_get(at + 9, 3) || epf_bytes_get(at + 20, 4))
		return -EINVAL;
	if (h.kind == EPF_OFI_MESSAGE ? bytes != (size_t)EPF_OFI_HEADER + h.len
				      : h.kind != EPF_OFI_NOTIFY || bytes != EPF_OFI_HEADER)
		return -EINVAL;
	*out = h;
	return 0;
}

/* The 8 bytes of remote CQ data. */
static inline uint64_t epf_ofi_data(const struct epf_ofi_token *to, uint32_t imm)
{
	return (uint64_t)imm << 32 | (uint32_t)to->generation << 16 | to->lane;
}

#endif
