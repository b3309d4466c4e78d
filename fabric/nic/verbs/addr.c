/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address of a verbs NIC as peers get it: 40 bytes, little-endian, with a version and a checksum. Called when a core
 * describes itself and when it connects a lane. It must refuse whatever this release did not write.
 *
 *   0 u32 "EPFV"   4 u16 version   6 u8 link layer (1 InfiniBand, 2 Ethernet)   7 u8 MTU (128 << n bytes)
 *   8 u16 LID     10 u8 port      11 u8 GID type (0 IB, 1 RoCE v1, 2 RoCE v2)  12 u32 zero
 *  16 u8[16] GID  32 u32 zero     36 u32 FNV-1a of the 36 bytes before
 */
#include "fabric/nic/verbs/verbs.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <string.h>

enum { MAGIC = 0x56465045, VERSION = 1 };

static void put(uint8_t *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t get(const uint8_t *at, unsigned bytes)
{
	uint32_t value = 0;

	for (unsigned i = 0; i < bytes; i++)
		value |= (uint32_t)at[i] << (8 * i);
	return value;
}

static uint32_t checksum(const uint8_t *at)
{
	uint32_t hash = 0x811c9dc5u;

	for (unsigned i = 0; i < 36; i++)
		hash = (hash ^ at[i]) * 0x01000193u;
	return hash;
}

void epf_verbs_addr_encode(const struct epf_verbs_peer *peer, uint8_t *buf)
{
	memset(buf, 0, EPF_VERBS_ADDR_BYTES);
	put(buf, MAGIC, 4);
	put(buf + 4, VERSION, 2);
	buf[6] = peer->link_layer;
	buf[7] = peer->mtu;
	put(buf + 8, peer->lid, 2);
	buf[10] = peer->port;
	buf[11] = peer->gid_type;
	memcpy(buf + 16, peer->gid.raw, 16);
	put(buf + 36, checksum(buf), 4);
}

int epf_verbs_addr_decode(const void *addr, size_t len, struct epf_verbs_peer *out)
{
	const uint8_t *buf = addr;

	if (len != EPF_VERBS_ADDR_BYTES || get(buf, 4) != MAGIC)
		return epf_fail(EPF_R_NIC_ADDRESS, "verbs: not the address of a verbs NIC");
	if (get(buf + 4, 2) != VERSION)
		return epf_fail(EPF_R_NIC_ADDRESS, "verbs: address version %u, this release has %d",
				get(buf + 4, 2), VERSION);
	if (get(buf + 36, 4) != checksum(buf) || get(buf + 12, 4) || get(buf + 32, 4) ||
	    buf[6] < IBV_LINK_LAYER_INFINIBAND || buf[6] > IBV_LINK_LAYER_ETHERNET ||
	    buf[7] < IBV_MTU_256 || buf[7] > IBV_MTU_4096 || buf[11] > IBV_GID_TYPE_ROCE_V2)
		return epf_fail(EPF_R_NIC_ADDRESS, "verbs: a damaged address");
	out->link_layer = buf[6];
	out->mtu = buf[7];
	out->lid = (uint16_t)get(buf + 8, 2);
	out->port = buf[10];
	out->gid_type = buf[11];
	memcpy(out->gid.raw, buf + 16, 16);
	return 0;
}
