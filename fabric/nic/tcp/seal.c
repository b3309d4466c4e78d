/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of seal.h. ChaCha20-Poly1305 rather than AES-256-GCM: libsodium has it on every CPU, so that two ends always agree, and its AES is only 1.2 times as fast
 * (1.9 and 1.5 GB/s on one core). Kernel TLS would save a copy, but needs a module that many kernels lack.
 */
#include "fabric/nic/tcp/seal.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

_Static_assert(crypto_aead_chacha20poly1305_ietf_KEYBYTES == EPF_TCP_SEAL_KEY, "a key");
_Static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == EPF_TCP_RECORD_TAG, "a tag");

struct epf_tcp_seal {
	struct epf_tcp_seal_keys keys;
	uint64_t sent, received; /* records */
	/* One record on its way to the socket: [out_at, out_end). */
	uint32_t out_at, out_end;
	/* Ciphertext [in_at, in_end); of the record at its front, [plain_at, plain_end) is decrypted in place and not given out yet. */
	uint32_t in_at, in_end, plain_at, plain_end;
	bool has_drained; /* the last recv() did not fill the buffer */
	uint8_t out[EPF_TCP_RECORD_MAX];
	uint8_t in[EPF_TCP_RECORD_MAX];
};

struct epf_tcp_seal *epf_tcp_seal_open(const struct epf_tcp_seal_keys *keys)
{
	struct epf_tcp_seal *s = calloc(1, sizeof(*s));

	if (s)
		s->keys = *keys;
	return s;
}

void epf_tcp_seal_close(struct epf_tcp_seal *seal)
{
	if (!seal)
		return;
	sodium_memzero(seal, sizeof(*seal));
	free(seal);
}

static void make_nonce(uint64_t number, uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES])
{
	memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
	for (unsigned i = 0; i < 8; i++)
		nonce[4 + i] = (uint8_t)(number >> (8 * i));
}

/* ---- sending ---- */

/* 0 when nothing encrypted is left, or -1 with errno. */
static int flush(struct epf_tcp_seal *s, int fd)
{
	while (s->out_at < s->out_end) {
		ssize_t n = send(fd, s->out + s->out_at, s->out_end - s->out_at,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		s->out_at += (uint32_t)n;
	}
	s->out_at = s->out_end = 0;
	return 0;
}

/* Copies pieces to @to, at most a record. */
static uint32_t gather(uint8_t *to, const struct iovec *iov, size_t n)
{
	uint32_t len = 0;

	for (size_t i = 0; i < n && len < EPF_TCP_RECORD; i++) {
		size_t room = EPF_TCP_RECORD - len;
		size_t part = iov[i].iov_len < room ? iov[i].iov_len : room;

		memcpy(to + len, iov[i].iov_base, part);
		len += (uint32_t)part;
	}
	return len;
}

static uint32_t encrypt(struct epf_tcp_seal *s, const struct iovec *iov, size_t n)
{
	uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
	uint8_t *text = s->out + EPF_TCP_RECORD_HEAD;
	const uint8_t *from = text;
	uint32_t len = EPF_TCP_RECORD;

	if (iov[0].iov_len >= EPF_TCP_RECORD)
		from = iov[0].iov_base;
	else
		len = gather(text, iov, n);
	for (unsigned i = 0; i < EPF_TCP_RECORD_HEAD; i++)
		s->out[i] = (uint8_t)(len >> (8 * i));
	make_nonce(s->sent++, nonce);
	crypto_aead_chacha20poly1305_ietf_encrypt(text, NULL, from, len, s->out,
						  EPF_TCP_RECORD_HEAD, NULL, nonce, s->keys.send);
	s->out_end = EPF_TCP_RECORD_HEAD + len + EPF_TCP_RECORD_TAG;
	return len;
}

ssize_t epf_tcp_seal_send(struct epf_tcp_seal *seal, int fd, const struct iovec *iov, size_t n)
{
	uint32_t len;

	if (flush(seal, fd))
		return -1;
	if (!n)
		return 0;
	len = encrypt(seal, iov, n);
	return flush(seal, fd) && errno != EAGAIN ? -1 : (ssize_t)len;
}

bool epf_tcp_seal_is_sending(const struct epf_tcp_seal *seal)
{
	return seal->out_at < seal->out_end;
}

/* ---- receiving ---- */

/* Plaintext of the record at the front of the buffer: its length once all of the record is there, -1 before, -2 for an impossible one. */
static int64_t whole_record(const struct epf_tcp_seal *s)
{
	const uint8_t *at = s->in + s->in_at;
	uint32_t have = s->in_end - s->in_at, len = 0;

	if (have < EPF_TCP_RECORD_HEAD)
		return -1;
	for (unsigned i = 0; i < EPF_TCP_RECORD_HEAD; i++)
		len |= (uint32_t)at[i] << (8 * i);
	if (!len || len > EPF_TCP_RECORD)
		return -2;
	return have < EPF_TCP_RECORD_HEAD + len + EPF_TCP_RECORD_TAG ? -1 : (int64_t)len;
}

/* One recv(2) into the buffer: as recv(2). */
static ssize_t fill(struct epf_tcp_seal *s, int fd)
{
	size_t room;
	ssize_t n;

	memmove(s->in, s->in + s->in_at, s->in_end - s->in_at);
	s->in_end -= s->in_at;
	s->in_at = 0;
	room = sizeof(s->in) - s->in_end;
	do
		n = recv(fd, s->in + s->in_end, room, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	s->has_drained = n < (ssize_t)room;
	if (n > 0)
		s->in_end += (uint32_t)n;
	return n;
}

/* Decrypts the record at the front: into the piece if it has room for all of it, else in place. Return: bytes that went to the piece, or -1. */
static ssize_t decrypt(struct epf_tcp_seal *s, uint32_t len, const struct iovec *piece)
{
	uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
	const uint8_t *head = s->in + s->in_at;
	bool is_direct = piece->iov_len >= len;
	uint32_t text = s->in_at + EPF_TCP_RECORD_HEAD;

	make_nonce(s->received++, nonce);
	if (crypto_aead_chacha20poly1305_ietf_decrypt(
		    is_direct ? piece->iov_base : s->in + text, NULL, NULL, s->in + text,
		    len + EPF_TCP_RECORD_TAG, head, EPF_TCP_RECORD_HEAD, nonce, s->keys.receive)) {
		errno = EBADMSG;
		return -1;
	}
	s->in_at = text + len + EPF_TCP_RECORD_TAG;
	if (is_direct)
		return (ssize_t)len;
	s->plain_at = text;
	s->plain_end = text + len;
	return 0;
}

/* The bytes that are decrypted already. */
static size_t hand_out(struct epf_tcp_seal *s, struct iovec *piece)
{
	uint32_t left = s->plain_end - s->plain_at;
	size_t n = piece->iov_len < left ? piece->iov_len : left;

	memcpy(piece->iov_base, s->in + s->plain_at, n);
	s->plain_at += (uint32_t)n;
	return n;
}

ssize_t epf_tcp_seal_receive(struct epf_tcp_seal *seal, int fd, const struct iovec *iov, size_t n)
{
	struct iovec piece = iov[0];
	ssize_t got = 0;
	size_t i = 0;

	/* A socket that was drained before may have received more since, and its event may have been consumed. */
	seal->has_drained = false;
	for (;;) {
		int64_t len;
		ssize_t part;

		while (!piece.iov_len) {
			if (++i == n)
				return got;
			piece = iov[i];
		}
		if (seal->plain_at < seal->plain_end) {
			part = (ssize_t)hand_out(seal, &piece);
		} else if ((len = whole_record(seal)) >= 0) {
			part = decrypt(seal, (uint32_t)len, &piece);
		} else if (len == -2) {
			errno = EBADMSG;
			part = -1;
		} else if (got) { /* no system call more than recvmsg() would make */
			return got;
		} else {
			part = fill(seal, fd);
			if (part <= 0)
				return part;
			continue;
		}
		if (part < 0)
			return -1;
		piece.iov_base = (uint8_t *)piece.iov_base + part;
		piece.iov_len -= (size_t)part;
		got += part;
	}
}

bool epf_tcp_seal_has_more(const struct epf_tcp_seal *seal)
{
	return seal->plain_at < seal->plain_end || !seal->has_drained || whole_record(seal) != -1;
}
