/* SPDX-License-Identifier: Apache-2.0 */
/* See handle.h. Little-endian; a checksum tells a damaged handle from a stranger's before anything is believed. */
#include "tools/nccl/handle.h"

#include "fabric/base/err.h"
#include "tools/nccl/abi.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

enum {
	VERSION = 1,
	CHECK_BYTES = 16,
	AT_MAGIC = 0,
	AT_VERSION = 8,
	AT_KIND = 9,
	AT_FAMILY = 10,
	AT_PORT = 12,
	AT_SCOPE = 16,
	AT_LISTENER = 24,
	AT_ADDRESS = 32,
	AT_PROCESS = 48,
	AT_SECRET = 64,
	AT_CHECK = 96,
	AT_END = AT_CHECK + CHECK_BYTES,
};

_Static_assert((int)AT_END <= (int)EPF_NCCL_HANDLE_BYTES, "a handle fits what NCCL carries");

static const uint8_t magic[8] = { 'e', 'p', 'f', '-', 'n', 'c', 'c', 'l' };

static void put16(uint8_t *at, uint16_t v)
{
	v = htole16(v);
	memcpy(at, &v, sizeof(v));
}

static uint16_t get16(const uint8_t *at)
{
	uint16_t v;

	memcpy(&v, at, sizeof(v));
	return le16toh(v);
}

static void check_sum(const uint8_t *b, uint8_t out[EPF_AUTH_HASH_BYTES])
{
	epf_auth_digest(b, AT_CHECK, out);
}

void epf_nccl_handle_write(const struct epf_nccl_handle *h, void *out)
{
	uint8_t *b = out, sum[EPF_AUTH_HASH_BYTES];
	uint32_t scope = 0;
	uint64_t listener = htole64(h->listener);

	memset(b, 0, EPF_NCCL_HANDLE_BYTES);
	memcpy(b + AT_MAGIC, magic, sizeof(magic));
	b[AT_VERSION] = VERSION;
	b[AT_KIND] = (uint8_t)h->kind;
	b[AT_FAMILY] = h->address.sa.sa_family == AF_INET6 ? 6 : 4;
	put16(b + AT_PORT, epf_net_port(&h->address));
	if (b[AT_FAMILY] == 6) {
		memcpy(b + AT_ADDRESS, &h->address.v6.sin6_addr, 16);
		scope = htole32(h->address.v6.sin6_scope_id);
	} else {
		memcpy(b + AT_ADDRESS, &h->address.v4.sin_addr, 4);
	}
	memcpy(b + AT_SCOPE, &scope, sizeof(scope));
	memcpy(b + AT_LISTENER, &listener, sizeof(listener));
	memcpy(b + AT_PROCESS, h->process, sizeof(h->process));
	memcpy(b + AT_SECRET, h->secret, sizeof(h->secret));
	check_sum(b, sum);
	memcpy(b + AT_CHECK, sum, CHECK_BYTES);
}

static int bad(const char *what)
{
	return epf_fail(EPF_R_NCCL_HANDLE, "nccl: a handle %s", what);
}

int epf_nccl_handle_read(const void *in, enum epf_nccl_handle_kind kind,
			 struct epf_nccl_handle *out)
{
	uint8_t b[EPF_NCCL_HANDLE_BYTES], sum[EPF_AUTH_HASH_BYTES];
	struct epf_nccl_handle h = { .kind = kind };
	uint32_t scope;

	memcpy(b, in, sizeof(b)); /* NCCL's memory: read once */
	if (memcmp(b + AT_MAGIC, magic, sizeof(magic)) != 0)
		return bad("is not one of this plug-in: all ranks must load it");
	if (b[AT_VERSION] != VERSION)
		return bad("comes from another release of the plug-in");
	check_sum(b, sum);
	if (memcmp(b + AT_CHECK, sum, CHECK_BYTES) != 0)
		return bad("is damaged");
	if (b[AT_KIND] != (uint8_t)kind)
		return bad("of a connection was given to a group, or the reverse");
	if (b[AT_FAMILY] == 6) {
		h.address.v6.sin6_family = AF_INET6;
		memcpy(&h.address.v6.sin6_addr, b + AT_ADDRESS, 16);
		memcpy(&scope, b + AT_SCOPE, sizeof(scope));
		h.address.v6.sin6_scope_id = le32toh(scope);
		h.address.len = sizeof(h.address.v6);
	} else if (b[AT_FAMILY] == 4) {
		h.address.v4.sin_family = AF_INET;
		memcpy(&h.address.v4.sin_addr, b + AT_ADDRESS, 4);
		h.address.len = sizeof(h.address.v4);
	} else {
		return bad("has an unknown kind of address");
	}
	epf_net_set_port(&h.address, get16(b + AT_PORT));
	memcpy(&h.listener, b + AT_LISTENER, sizeof(h.listener));
	h.listener = le64toh(h.listener);
	memcpy(h.process, b + AT_PROCESS, sizeof(h.process));
	memcpy(h.secret, b + AT_SECRET, sizeof(h.secret));
	*out = h;
	return 0;
}
