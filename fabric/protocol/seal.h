/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed descriptions: how daemons prove to each other who they are. A daemon's description of a rank travels through the job's
 * bootstrap and so through client processes, which must not be able to forge or replay it. The seal is HMAC-SHA-256 (RFC 2104) by the
 * fabric's secret, which only daemons know, over the session (every node's id and fresh nonce), the version, the rank and the bytes.
 *
 * Layout, little-endian: magic u32 "EPFD", u16 major, u16 minor, u32 rank, u32 world, u32 bytes, u32 round (0 at the join, then counted up
 * by each exchange), the bytes, 32 bytes of proof.
 */
#ifndef EPF_FABRIC_PROTOCOL_SEAL_H
#define EPF_FABRIC_PROTOCOL_SEAL_H

#include "bootstrap/auth.h"

#include <stddef.h>
#include <stdint.h>

struct epf_seal_session {
	uint8_t hash[EPF_AUTH_HASH_BYTES]; /* over job id and the table of struct epf_svc_world */
	uint32_t world;
};

void epf_seal_session_init(struct epf_seal_session *s, const uint8_t job_id[16], const void *table,
			   size_t table_bytes, uint32_t world);

/* Seals `bytes` of `rank`; *out is malloced. */
int epf_seal(const struct epf_auth *auth, const struct epf_seal_session *s, uint32_t rank,
	     uint32_t round, const void *bytes, size_t len, uint8_t **out, size_t *out_len);

/*
 * Checks a seal and points *bytes into it. Errors name the rank: EPF_R_SVC_SEAL (wrong secret, tampered, of another session), EPF_R_SVC_VERSION.
 */
int epf_seal_open(const struct epf_auth *auth, const struct epf_seal_session *s, uint32_t rank,
		  uint32_t round, const void *sealed, size_t sealed_len, const void **bytes,
		  size_t *len);

#endif
