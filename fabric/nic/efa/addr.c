/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address of an EFA NIC as peers get it: 48 bytes, little-endian, with a version and a checksum. Called when a core
 * describes itself and when it connects a lane. It must refuse whatever this release did not write.
 *
 *   0 u32 "EPFA"   4 u16 version   6 u8 1: arrivals are unsolicited   7 u8 zero   8 u64 sink address   16 u8[16] GID
 *  32 u32 sink key   36 u32 zero   40 u32 zero  44 u32 FNV-1a of the 44 bytes before
 *
 * The sink is a few bytes of the NIC's own that peers may write: a device may look at the key of a work request without bytes.
 */
#include "fabric/nic/efa/efa.h"

#include "fabric/base/err.h"
#include "fabric/nic/bytes.h"

#include <errno.h>
#include <string.h>

enum { MAGIC = 0x41465045, VERSION = 1, SUM_AT = EPF_EFA_ADDR_BYTES - 4 };

void epf_efa_addr_encode(const struct epf_efa_peer *peer, uint8_t *buf)
{
	memset(buf, 0, EPF_EFA_ADDR_BYTES);
	epf_bytes_put(buf, MAGIC, 4);
	epf_bytes_put(buf + 4, VERSION, 2);
	buf[6] = peer->unsolicited;
	epf_bytes_put(buf + 8, peer->sink_raddr, 8);
	memcpy(buf + 16, peer->gid.raw, 16);
	epf_bytes_put(buf + 32, peer->sink_rkey, 4);
	epf_bytes_put(buf + SUM_AT, epf_bytes_hash(buf, SUM_AT), 4);
}

int epf_efa_addr_decode(const void *addr, size_t len, struct epf_efa_peer *out)
{
	const uint8_t *buf = addr;

	if (len != EPF_EFA_ADDR_BYTES || epf_bytes_get(buf, 4) != MAGIC)
		return epf_fail(EPF_R_NIC_ADDRESS, "efa: not the address of an EFA NIC");
	if (epf_bytes_get(buf + 4, 2) != VERSION)
		return epf_fail(EPF_R_NIC_ADDRESS, "efa: address version %u, this release has %d",
				(unsigned)epf_bytes_get(buf + 4, 2), VERSION);
	if (epf_bytes_get(buf + SUM_AT, 4) != epf_bytes_hash(buf, SUM_AT) || buf[6] > 1 || buf[7] ||
	    epf_bytes_get(buf + 36, 8))
		return epf_fail(EPF_R_NIC_ADDRESS, "efa: a damaged address");
	memcpy(out->gid.raw, buf + 16, 16);
	out->unsolicited = buf[6];
	out->sink_raddr = epf_bytes_get(buf + 8, 8);
	out->sink_rkey = (uint32_t)epf_bytes_get(buf + 32, 4);
	return 0;
}
