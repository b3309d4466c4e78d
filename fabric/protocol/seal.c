/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals and opens descriptions; see seal.h. Called by the daemon, once a rank and exchange. The key is made from the fabric's master key with
 * a separate label, so that no proof of the bootstrap is one of ours. It must never hand out bytes whose proof was not checked, or
 * compare a proof in a time that depends on where it differs.
 */
#include "fabric/protocol/seal.h"

#include "fabric/base/err.h"
#include "fabric/protocol/proto.h"

#include <sodium.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEAL_MAGIC 0x44465045u /* "EPFD" in memory order */

enum {
	HEAD_BYTES = 24,
	AT_MAJOR = 4,
	AT_MINOR = 6,
	AT_RANK = 8,
	AT_WORLD = 12,
	AT_BYTES = 16,
	AT_ROUND = 20,
};

static_assert(AT_ROUND + 4 == HEAD_BYTES, "layout of the seal");

static void put_u16(uint8_t *p, uint32_t value)
{
	p[0] = (uint8_t)value;
	p[1] = (uint8_t)(value >> 8);
}

static void put_u32(uint8_t *p, uint32_t value)
{
	put_u16(p, value);
	put_u16(p + 2, value >> 16);
}

static uint32_t get_u16(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t get_u32(const uint8_t *p)
{
	return get_u16(p) | get_u16(p + 2) << 16;
}

void epf_seal_session_init(struct epf_seal_session *s, const uint8_t job_id[16], const void *table,
			   size_t table_bytes, uint32_t world)
{
	static const char label[] = "EP fabric session"; /* hashed with its 0 */
	crypto_hash_sha256_state st;
	uint8_t number[4];

	put_u32(number, world);
	crypto_hash_sha256_init(&st);
	crypto_hash_sha256_update(&st, (const uint8_t *)label, sizeof(label));
	crypto_hash_sha256_update(&st, job_id, 16);
	crypto_hash_sha256_update(&st, number, sizeof(number));
	crypto_hash_sha256_update(&st, table, table_bytes);
	crypto_hash_sha256_final(&st, s->hash);
	s->world = world;
}

static void prove(const struct epf_auth *auth, const struct epf_seal_session *s,
		  const uint8_t *sealed, size_t len, uint8_t proof[EPF_AUTH_HASH_BYTES])
{
	static const char label[] = "EP fabric description seal";
	uint8_t key[EPF_AUTH_KEY_BYTES];
	crypto_auth_hmacsha256_state st;

	crypto_auth_hmacsha256_init(&st, auth->master, sizeof(auth->master));
	crypto_auth_hmacsha256_update(&st, (const uint8_t *)label, sizeof(label));
	crypto_auth_hmacsha256_final(&st, key);
	crypto_auth_hmacsha256_init(&st, key, sizeof(key));
	crypto_auth_hmacsha256_update(&st, s->hash, sizeof(s->hash));
	crypto_auth_hmacsha256_update(&st, sealed, len);
	crypto_auth_hmacsha256_final(&st, proof);
	sodium_memzero(key, sizeof(key));
	sodium_memzero(&st, sizeof(st));
}

int epf_seal(const struct epf_auth *auth, const struct epf_seal_session *s, uint32_t rank,
	     uint32_t round, const void *bytes, size_t len, uint8_t **out, size_t *out_len)
{
	uint8_t *buf;

	if (len > EPF_SVC_BODY_MAX)
		return epf_fail(EPF_R_SVC_LIMIT,
				"rank %u: a description of %zu bytes, the most is %d", rank, len,
				EPF_SVC_BODY_MAX);
	buf = malloc(HEAD_BYTES + len + EPF_AUTH_HASH_BYTES);
	if (!buf)
		return epf_fail(EPF_R_NO_MEMORY, "rank %u: a description of %zu bytes", rank, len);
	put_u32(buf, SEAL_MAGIC);
	put_u16(buf + AT_MAJOR, EPF_SVC_MAJOR);
	put_u16(buf + AT_MINOR, EPF_SVC_MINOR);
	put_u32(buf + AT_RANK, rank);
	put_u32(buf + AT_WORLD, s->world);
	put_u32(buf + AT_BYTES, (uint32_t)len);
	put_u32(buf + AT_ROUND, round);
	if (len)
		memcpy(buf + HEAD_BYTES, bytes, len);
	prove(auth, s, buf, HEAD_BYTES + len, buf + HEAD_BYTES + len);
	*out = buf;
	*out_len = HEAD_BYTES + len + EPF_AUTH_HASH_BYTES;
	return 0;
}

/* What the header claims against what is expected; nothing of it is believed before the proof. */
static int check_claims(const struct epf_seal_session *s, uint32_t rank, uint32_t round,
			const uint8_t *p)
{
	if (get_u32(p + AT_RANK) != rank)
		return epf_fail(EPF_R_SVC_SEAL, "rank %u: its description is that of rank %u", rank,
				get_u32(p + AT_RANK));
	if (get_u32(p + AT_WORLD) != s->world)
		return epf_fail(EPF_R_SVC_SEAL,
				"rank %u: its description is for %u ranks, the job has %u", rank,
				get_u32(p + AT_WORLD), s->world);
	if (get_u32(p + AT_ROUND) != round)
		return epf_fail(EPF_R_SVC_SEAL,
				"rank %u: its description is of exchange %u, this is exchange %u",
				rank, get_u32(p + AT_ROUND), round);
	return 0;
}

int epf_seal_open(const struct epf_auth *auth, const struct epf_seal_session *s, uint32_t rank,
		  uint32_t round, const void *sealed, size_t sealed_len, const void **bytes,
		  size_t *len)
{
	const uint8_t *p = sealed;
	uint8_t proof[EPF_AUTH_HASH_BYTES];
	uint32_t major, minor;
	char who[64];
	int rc;

	if (sealed_len < HEAD_BYTES + EPF_AUTH_HASH_BYTES || get_u32(p) != SEAL_MAGIC)
		return epf_fail(EPF_R_SVC_SEAL, "rank %u: %zu bytes that are no description", rank,
				sealed_len);
	major = get_u16(p + AT_MAJOR);
	minor = get_u16(p + AT_MINOR);
	snprintf(who, sizeof(who), "the daemon of rank %u", rank);
	/* Behind the version another major may look different: say so in place of a wrong proof. */
	rc = epf_svc_version_check(who, major, minor);
	if (rc)
		return rc;
	if (get_u32(p + AT_BYTES) != sealed_len - HEAD_BYTES - EPF_AUTH_HASH_BYTES)
		return epf_fail(EPF_R_SVC_SEAL, "rank %u: its description of %u bytes comes in %zu",
				rank, get_u32(p + AT_BYTES), sealed_len);
	prove(auth, s, p, sealed_len - EPF_AUTH_HASH_BYTES, proof);
	if (!epf_auth_equal(proof, p + sealed_len - EPF_AUTH_HASH_BYTES))
		return epf_fail(
			EPF_R_SVC_SEAL,
			"rank %u: its description has a wrong proof: another secret, changed bytes, or another run of the job",
			rank);
	rc = check_claims(s, rank, round, p);
	if (rc)
		return rc;
	*bytes = p + HEAD_BYTES;
	*len = sealed_len - HEAD_BYTES - EPF_AUTH_HASH_BYTES;
	return 0;
}
