/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the secret and derives keys; see auth.h. Labels in front of each derivation keep the keys
 * of different uses apart. Buffers that held a secret are overwritten before they are given up.
 */
#include "bootstrap/auth.h"

#define EPF_LOG_COMP "boot"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <sodium.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert(crypto_auth_hmacsha256_BYTES == EPF_AUTH_HASH_BYTES, "HMAC-SHA-256 gives 32 bytes");
static_assert(crypto_hash_sha256_BYTES == EPF_AUTH_HASH_BYTES, "SHA-256 gives 32 bytes");

static const char *env_of_process(const char *name, void *arg)
{
	return getenv(name);
}

static void hmac_parts(const void *key, size_t key_len, const char *label, const void *a,
		       size_t a_len, const void *b, size_t b_len, uint8_t out[EPF_AUTH_KEY_BYTES])
{
	crypto_auth_hmacsha256_state st;

	crypto_auth_hmacsha256_init(&st, key, key_len);
	crypto_auth_hmacsha256_update(&st, (const uint8_t *)label, strlen(label));
	crypto_auth_hmacsha256_update(&st, a, a_len);
	crypto_auth_hmacsha256_update(&st, b, b_len);
	crypto_auth_hmacsha256_final(&st, out);
	sodium_memzero(&st, sizeof(st));
}

static int make_master(const void *secret, size_t len, const char *origin, struct epf_auth *out)
{
	static const char salt[] = "EP fabric bootstrap master key";

	if (sodium_init() < 0)
		return epf_fail(EPF_R_BOOT_SECRET, "libsodium finds no source of random numbers");
	if (len && len < EPF_AUTH_SECRET_MIN)
		return epf_fail(EPF_R_BOOT_SECRET,
				"the secret from %s has %zu bytes, fewer than %u can be guessed",
				origin, len, EPF_AUTH_SECRET_MIN);
	if (len > EPF_AUTH_SECRET_MAX)
		return epf_fail(EPF_R_BOOT_SECRET, "the secret from %s is longer than %u bytes",
				origin, EPF_AUTH_SECRET_MAX);
	hmac_parts(salt, sizeof(salt) - 1, "secret", secret ? secret : "", len, "", 0, out->master);
	out->has_secret = len > 0;
	out->origin = origin;
	return 0;
}

/* Reads at most one byte more than the limit, so that too much is noticed. */
static ssize_t read_all(int fd, uint8_t *buf, size_t room)
{
	off_t at = lseek(fd, 0, SEEK_CUR) < 0 ? -1 : 0;
	size_t got = 0;

	while (got < room) {
		ssize_t n = at < 0 ? read(fd, buf + got, room - got)
				   : pread(fd, buf + got, room - got, (off_t)got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

static int load_fd(int fd, const char *origin, struct epf_auth *out)
{
	/* The limit, a line end of two bytes, and one more byte to notice too much. */
	uint8_t buf[EPF_AUTH_SECRET_MAX + 3];
	ssize_t n = read_all(fd, buf, sizeof(buf));
	int rc;

	if (n < 0)
		return epf_fail_sys(EPF_R_BOOT_SECRET, (int)-n, "the secret from %s", origin);
	if (n > 0 && buf[n - 1] == '\n')
		n--;
	if (n > 0 && buf[n - 1] == '\r')
		n--;
	rc = n ? make_master(buf, (size_t)n, origin, out)
	       : epf_fail(EPF_R_BOOT_SECRET, "the secret from %s is empty", origin);
	sodium_memzero(buf, sizeof(buf));
	return rc;
}

static int load_file(const char *path, const char *origin, struct epf_auth *out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	struct stat st;
	int rc;

	if (fd < 0)
		return epf_fail_sys(EPF_R_BOOT_SECRET, errno, "the secret file %s", path);
	if (fstat(fd, &st) == 0 && (st.st_mode & (S_IRGRP | S_IROTH)))
		epf_warn("secret file %s: other users can read it; chmod 600 is safer", path);
	rc = load_fd(fd, origin, out);
	close(fd);
	return rc;
}

static int load_inherited(const char *text, struct epf_auth *out)
{
	char *end;
	long fd;

	errno = 0;
	fd = strtol(text, &end, 10);
	/* The value is not repeated: who mixes the variables up has put the secret here. */
	if (errno || end == text || *end || fd < 0 || fd > 1 << 20)
		return epf_fail(EPF_R_BOOT_SECRET, "EPF_SECRET_FD is not a descriptor number");
	return load_fd((int)fd, "EPF_SECRET_FD", out);
}

int epf_auth_load(const void *secret, size_t len, const char *file, epf_getenv_fn env,
		  void *env_arg, struct epf_auth *out)
{
	struct epf_auth made = { 0 };
	const char *text;
	int rc;

	if (!env)
		env = env_of_process;
	if (secret)
		rc = len ? make_master(secret, len, "option", &made)
			 : epf_fail(EPF_R_BOOT_SECRET, "the secret given is empty");
	else if (file && *file)
		rc = load_file(file, "secret-file", &made);
	else if ((text = env("EPF_SECRET_FD", env_arg)) && *text)
		rc = load_inherited(text, &made);
	else if ((text = env("EPF_SECRET_FILE", env_arg)) && *text)
		rc = load_file(text, "EPF_SECRET_FILE", &made);
	else if ((text = env("EPF_SECRET", env_arg)) && *text)
		rc = make_master(text, strlen(text), "EPF_SECRET", &made);
	else
		rc = make_master(NULL, 0, "none", &made);
	if (rc == 0)
		*out = made;
	sodium_memzero(&made, sizeof(made));
	return rc;
}

void epf_auth_wipe(struct epf_auth *auth)
{
	if (auth)
		sodium_memzero(auth->master, sizeof(auth->master));
}

void epf_auth_hello_key(const struct epf_auth *auth, uint8_t key[EPF_AUTH_KEY_BYTES])
{
	hmac_parts(auth->master, sizeof(auth->master), "hello", "", 0, "", 0, key);
}

void epf_auth_session_key(const struct epf_auth *auth,
			  const uint8_t nonce_client[EPF_AUTH_NONCE_BYTES],
			  const uint8_t nonce_server[EPF_AUTH_NONCE_BYTES],
			  uint8_t key[EPF_AUTH_KEY_BYTES])
{
	hmac_parts(auth->master, sizeof(auth->master), "session", nonce_client,
		   EPF_AUTH_NONCE_BYTES, nonce_server, EPF_AUTH_NONCE_BYTES, key);
}

void epf_auth_job_key(const struct epf_auth *auth, const char *label,
		      uint8_t key[EPF_AUTH_KEY_BYTES])
{
	/* The 0 between the two keeps labels apart that begin alike. */
	hmac_parts(auth->master, sizeof(auth->master), "epf job key", "", 1, label, strlen(label),
		   key);
}

void epf_auth_digest(const void *payload, size_t len, uint8_t digest[EPF_AUTH_HASH_BYTES])
{
	crypto_hash_sha256(digest, payload, len);
}

void epf_auth_proof(const uint8_t key[EPF_AUTH_KEY_BYTES], bool from_server, const uint8_t *head,
		    size_t head_len, const uint8_t digest[EPF_AUTH_HASH_BYTES],
		    uint8_t proof[EPF_AUTH_HASH_BYTES])
{
	hmac_parts(key, EPF_AUTH_KEY_BYTES, from_server ? "S" : "C", head, head_len, digest,
		   EPF_AUTH_HASH_BYTES, proof);
}

bool epf_auth_equal(const uint8_t a[EPF_AUTH_HASH_BYTES], const uint8_t b[EPF_AUTH_HASH_BYTES])
{
	return sodium_memcmp(a, b, EPF_AUTH_HASH_BYTES) == 0;
}

void epf_auth_nonce(uint8_t nonce[EPF_AUTH_NONCE_BYTES])
{
	randombytes_buf(nonce, EPF_AUTH_NONCE_BYTES);
}
