/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and proofs of what endpoints say (wire.h). Slow path. */
#include "fabric/p2p/wire.h"

#include "fabric/base/err.h"

#include <string.h>

static const uint8_t meta_magic[8] = "EPF-P2P";

static void checksum(const struct metadata *meta, uint8_t check[8])
{
	uint8_t digest[EPF_AUTH_HASH_BYTES];

	epf_auth_digest(meta, offsetof(struct metadata, check), digest);
	memcpy(check, digest, 8);
}

void epf_p2p_meta_seal(struct metadata *meta)
{
	memcpy(meta->magic, meta_magic, sizeof(meta->magic));
	meta->version = P2P_VERSION;
	meta->end = 0;
	checksum(meta, meta->check);
}

int epf_p2p_meta_read(const void *bytes, size_t len, struct metadata *out)
{
	struct metadata meta;
	uint8_t check[8];

	if (!bytes || len != sizeof(meta))
		return epf_fail(EPF_R_P2P_METADATA, "metadata has %zu bytes where %zu belong", len,
				sizeof(meta));
	memcpy(&meta, bytes, sizeof(meta));
	if (memcmp(meta.magic, meta_magic, sizeof(meta.magic)) != 0)
		return epf_fail(EPF_R_P2P_METADATA, "metadata does not begin like an endpoint's");
	if (meta.version != P2P_VERSION)
		return epf_fail(EPF_R_P2P_METADATA, "metadata is of version %u, this is version %u",
				meta.version, P2P_VERSION);
	checksum(&meta, check);
	if (memcmp(check, meta.check, sizeof(check)) != 0 || meta.end)
		return epf_fail(EPF_R_P2P_METADATA, "metadata has a wrong checksum");
	meta.name[sizeof(meta.name) - 1] = 0;
	meta.host[sizeof(meta.host) - 1] = 0;
	*out = meta;
	return 0;
}

void epf_p2p_proof(const uint8_t key[EPF_AUTH_KEY_BYTES], bool accepts,
		   const struct msg_hello *first, const struct msg_hello *second,
		   uint8_t proof[EPF_AUTH_HASH_BYTES])
{
	struct msg_hello plain = *second;
	uint8_t digest[EPF_AUTH_HASH_BYTES];

	memset(plain.proof, 0, sizeof(plain.proof));
	epf_auth_digest(&plain, sizeof(plain), digest);
	epf_auth_proof(key, accepts, (const uint8_t *)first, sizeof(*first), digest, proof);
}

bool epf_p2p_same_key(const struct export_key *a, const struct export_key *b)
{
	const uint8_t *x = (const uint8_t *)a, *y = (const uint8_t *)b;
	unsigned differs = 0;

	for (size_t i = 0; i < sizeof(*a); i++) /* in constant time: the secret is in it */
		differs |= x[i] ^ y[i];
	return !differs;
}
