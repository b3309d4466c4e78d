/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The byte layouts of wire.h.
 *
 * Address: 0 u32 "EPFO"  4 u16 version  6 u16 length of libfabric's address  8 u32 kind  12 that address, then u32 FNV-1a of all before.
 */
#include "fabric/nic/ofi/wire.h"

#include "fabric/base/err.h"
#include "fabric/nic/bytes.h"

#include <string.h>

enum { MAGIC = 0x4f465045, VERSION = 1, START = 12 };

uint32_t epf_ofi_kind_of(const char *provider, uint32_t addr_format)
{
	return epf_bytes_hash((const uint8_t *)provider, strlen(provider)) * 31 + addr_format;
}

int epf_ofi_place_encode(const struct epf_ofi_place *place, void *buf, size_t size)
{
	uint8_t *at = buf;
	size_t n = START + place->len;

	if (size < n + 4)
		return epf_fail(EPF_R_NIC_ADDRESS,
				"ofi: a buffer of %zu bytes is too small for an address of %zu",
				size, n + 4);
	epf_bytes_put(at, MAGIC, 4);
	epf_bytes_put(at + 4, VERSION, 2);
	epf_bytes_put(at + 6, place->len, 2);
	epf_bytes_put(at + 8, place->kind, 4);
	memcpy(at + START, place->name, place->len);
	epf_bytes_put(at + n, epf_bytes_hash(at, n), 4);
	return (int)n + 4;
}

int epf_ofi_place_decode(const void *buf, size_t len, struct epf_ofi_place *out)
{
	struct epf_ofi_place place = { 0 };
	const uint8_t *at = buf;

	if (len < START + 4 || epf_bytes_get(at, 4) != MAGIC)
		return epf_fail(EPF_R_NIC_ADDRESS, "ofi: this is not an address of an ofi NIC");
	if (epf_bytes_get(at + 4, 2) != VERSION)
		return epf_fail(EPF_R_NIC_ADDRESS, "ofi: address version %u, this release has %d",
				(unsigned)epf_bytes_get(at + 4, 2), VERSION);
	place.len = (uint32_t)epf_bytes_get(at + 6, 2);
	place.kind = (uint32_t)epf_bytes_get(at + 8, 4);
	if (!place.len || place.len > EPF_OFI_NAME_BYTES || len != START + place.len + 4 ||
	    epf_bytes_get(at + len - 4, 4) != epf_bytes_hash(at, len - 4))
		return epf_fail(EPF_R_NIC_ADDRESS, "ofi: a damaged address");
	memcpy(place.name, at + START, place.len);
	*out = place;
	return 0;
}
