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
#include "fabric/nic/bytes.h"

#include <errno.h>
#include <string.h>

enum { MAGIC = 0x56465045, VERSION = 1 };

void epf_verbs_addr_encode(const struct epf_verbs_peer *peer, uint8_t *buf)
{
	memset(buf, 0, EPF_VERBS_ADDR_BYTES);
	epf_bytes_put(buf, MAGIC, 4);
	epf_bytes_put(buf + 4, VERSION, 2);
	buf[6] = peer->link_layer;
	buf[7] = peer->mtu;
	epf_bytes_put(buf + 8, peer->lid, 2);
	buf[10] = peer->port;
	buf[11] = peer->gid_type;
	memcpy(buf + 16, peer->gid.raw, 16);
	epf_bytes_put(buf + 36, epf_bytes_hash(buf, 36), 4);
}

int epf_verbs_addr_decode(const void *addr, size_t len, struct epf_verbs_peer *out)
{
	const uint8_t *buf = addr;

	if (len != EPF_VERBS_ADDR_BYTES || epf_bytes_get(buf, 4) != MAGIC)
		return epf_fail(EPF_R_NIC_ADDRESS, "verbs: not the address of a verbs NIC");
	if (epf_bytes_get(buf + 4, 2) != VERSION)
		return epf_fail(EPF_R_NIC_ADDRESS, "verbs: address version %u, this release has %d",
				(unsigned)epf_bytes_get(buf + 4, 2), VERSION);
	if (epf_bytes_get(buf + 36, 4) != epf_bytes_hash(buf, 36) || epf_bytes_get(buf + 12, 4) ||
	    epf_bytes_get(buf + 32, 4) || buf[6] < IBV_LINK_LAYER_INFINIBAND ||
	    buf[6] > IBV_LINK_LAYER_ETHERNET || buf[7] < IBV_MTU_256 || buf[7] > IBV_MTU_4096 ||
	    buf[11] > IBV_GID_TYPE_ROCE_V2)
		return epf_fail(EPF_R_NIC_ADDRESS, "verbs: a damaged address");
	out->link_layer = buf[6];
	out->mtu = buf[7];
	out->lid = (uint16_t)epf_bytes_get(buf + 8, 2);
	out->port = buf[10];
	out->gid_type = buf[11];
	memcpy(out->gid.raw, buf + 16, 16);
	return 0;
}
