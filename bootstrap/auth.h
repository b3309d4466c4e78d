/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's secret and the keys made from it. Called by the wire code for proofs, and by server and
 * client for loading the secret. HMAC-SHA-256 (RFC 2104, FIPS 180-4), random numbers and comparing
 * in constant time are libsodium's. The secret itself is forgotten as soon as the master key is
 * made; neither is ever printed, logged or put into an error text.
 */
#ifndef EPF_BOOTSTRAP_AUTH_H
#define EPF_BOOTSTRAP_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EPF_AUTH_KEY_BYTES   32u
#define EPF_AUTH_NONCE_BYTES 32u
#define EPF_AUTH_HASH_BYTES  32u
#define EPF_AUTH_SECRET_MIN  16u
#define EPF_AUTH_SECRET_MAX  4096u

/* Looks up an environment variable; NULL when it is not set. getenv(3) wrapped, or a test's table. */
typedef const char *(*epf_getenv_fn)(const char *name, void *arg);

/* The master key of a job. */
struct epf_auth {
	uint8_t master[EPF_AUTH_KEY_BYTES];
	bool has_secret; /* false: loopback only */
	const char
		*origin; /* where the secret came from: "option", "EPF_SECRET_FILE", ..., "none" */
};

/**
 * epf_auth_load() - find the secret and make the master key.
 * @secret, @len: the secret itself, or NULL.
 * @file: a file with the secret, or NULL; used when @secret is NULL.
 * @env: where EPF_SECRET_FD, EPF_SECRET_FILE and EPF_SECRET are looked up, in this order, when
 *       neither is given; NULL means getenv(3).
 *
 * A file's or descriptor's last newline does not count. A descriptor that can seek is read from
 * its start and can be used again, a pipe is read to its end once. None of the three set means no
 * secret: @out is made from the empty secret and has_secret is false.
 *
 * Return: 0; -EACCES and others with EPF_R_BOOT_SECRET, the text never holds the secret.
 */
int epf_auth_load(const void *secret, size_t len, const char *file, epf_getenv_fn env,
		  void *env_arg, struct epf_auth *out);

/* epf_auth_wipe() - overwrite the keys; NULL is fine. */
void epf_auth_wipe(struct epf_auth *auth);

/* epf_auth_hello_key() - the key for HELLO, from the master key alone. */
void epf_auth_hello_key(const struct epf_auth *auth, uint8_t key[EPF_AUTH_KEY_BYTES]);

/* epf_auth_session_key() - the key of one connection, from the master key and both nonces. */
void epf_auth_session_key(const struct epf_auth *auth,
			  const uint8_t nonce_client[EPF_AUTH_NONCE_BYTES],
			  const uint8_t nonce_server[EPF_AUTH_NONCE_BYTES],
			  uint8_t key[EPF_AUTH_KEY_BYTES]);

/* epf_auth_job_key() - a key that every rank of the job can make, for the use that @label names. */
void epf_auth_job_key(const struct epf_auth *auth, const char *label,
		      uint8_t key[EPF_AUTH_KEY_BYTES]);

/* epf_auth_digest() - SHA-256 of a payload. */
void epf_auth_digest(const void *payload, size_t len, uint8_t digest[EPF_AUTH_HASH_BYTES]);

/**
 * epf_auth_proof() - HMAC-SHA-256 over direction, header and payload digest.
 * @from_server: the direction; makes a message useless when it is sent back.
 */
void epf_auth_proof(const uint8_t key[EPF_AUTH_KEY_BYTES], bool from_server, const uint8_t *head,
		    size_t head_len, const uint8_t digest[EPF_AUTH_HASH_BYTES],
		    uint8_t proof[EPF_AUTH_HASH_BYTES]);

/* epf_auth_equal() - compare two proofs in constant time. */
bool epf_auth_equal(const uint8_t a[EPF_AUTH_HASH_BYTES], const uint8_t b[EPF_AUTH_HASH_BYTES]);

/* epf_auth_nonce() - 32 random bytes. */
void epf_auth_nonce(uint8_t nonce[EPF_AUTH_NONCE_BYTES]);

#endif
