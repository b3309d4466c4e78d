/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address of several NICs as one: a list of theirs (nic/nic.h: epf_nic_address_part). Slow path. Must never believe a length in it.
 *
 * Little-endian: 0 u32 "EPFR"  4 u16 version  6 u16 number of parts, then for each part u16 length and its bytes.
 */
#include "fabric/nic/rails/rails.h"

#include "fabric/base/err.h"
#include "fabric/nic/bytes.h"

enum { MAGIC = 0x52465045, VERSION = 1, HEADER = 8 };

static int damaged(void)
{
	return epf_fail(EPF_R_NIC_ADDRESS, "NIC: a damaged list of addresses");
}

int epf_nic_address_part(const void *addr, size_t len, unsigned index, const void **part,
			 size_t *part_len)
{
	const uint8_t *bytes = addr;
	size_t at = HEADER, n = 0;
	unsigned parts;

	if (len < HEADER || epf_bytes_get(bytes, 4) != MAGIC) {
		*part = addr;
		*part_len = len;
		return 1;
	}
	if (epf_bytes_get(bytes + 4, 2) != VERSION)
		return epf_fail(EPF_R_NIC_ADDRESS,
				"NIC: list of addresses version %u, this release has %d",
				(unsigned)epf_bytes_get(bytes + 4, 2), VERSION);
	parts = (unsigned)epf_bytes_get(bytes + 6, 2);
	if (parts < 2 || parts > EPF_NIC_LINKS)
		return damaged();
	for (unsigned i = 0; i < parts; i++) {
		if (len - at < 2)
			return damaged();
		n = epf_bytes_get(bytes + at, 2);
		at += 2;
		if (len - at < n)
			return damaged();
		if (i == index % parts) {
			*part = bytes + at;
			*part_len = n;
		}
		at += n;
	}
	return at == len ? (int)parts : damaged();
}

int epf_rails_address(const struct epf_nic *nic, void *buf, size_t size)
{
	const struct epf_rails *r = epf_rails_of(nic);
	uint8_t *bytes = buf;
	size_t at = HEADER;

	if (r->n == 1) /* as if it were by itself */
		return r->ops->address(r->child[0], buf, size);
	for (uint32_t i = 0; i < r->n; i++) {
		int rc =
			size < at + 2
				? epf_fail(
					  EPF_R_NIC_ADDRESS,
					  "NIC: a buffer of %zu bytes is too small for %u addresses",
					  size, r->n)
				: r->ops->address(r->child[i], bytes + at + 2, size - at - 2);

		if (rc < 0)
			return rc;
		epf_bytes_put(bytes + at, (uint32_t)rc, 2);
		at += 2 + (size_t)rc;
	}
	epf_bytes_put(bytes, MAGIC, 4);
	epf_bytes_put(bytes + 4, VERSION, 2);
	epf_bytes_put(bytes + 6, r->n, 2);
	return (int)at;
}
