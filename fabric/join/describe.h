/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank says of itself when it joins: byte-exact, versioned, little-endian (docs/abi.md). Where several ranks share an engine
 * only the lowest of them gives lanes (n_tokens); the engine's other numbers are in every description. Made and read by
 * world.c; must never believe a length.
 */
#ifndef EPF_FABRIC_JOIN_DESCRIBE_H
#define EPF_FABRIC_JOIN_DESCRIBE_H

#include "fabric/engine/core.h"

#define EPF_DESCRIBE_VERSION 3u

struct epf_description {
	uint32_t rank;
	uint32_t n_signals;
	uint32_t streams;
	uint32_t receives;
	uint32_t depth; /* of its lanes */
	uint32_t lanes;
	uint32_t ordered;
	uint32_t keys; /* of a region: 1, or the devices of its NIC; 0 means 1 */

	union {
		uint32_t ctl_rkey;
		uint32_t ctl_rkeys[EPF_NIC_LINKS];
	};

	uint64_t ctl_raddr;
	char node[64];
	char nic[16];
	size_t nic_addr_len;
	uint8_t nic_addr[EPF_NIC_ADDR_BYTES];
	uint32_t n_tokens;
	uint64_t *tokens; /* malloced by decode */
	uint32_t n_regions;
	struct epf_region_remote *regions; /* malloced by decode */
};

/* Encodes into a malloced buffer. */
int epf_description_encode(const struct epf_description *d, uint8_t **out, size_t *len);
/* Decodes; every length is checked. -EPROTO with a reason. Free with epf_description_free. */
int epf_description_decode(const uint8_t *buf, size_t len, struct epf_description *d);
void epf_description_free(struct epf_description *d);

#endif
