/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encryption of a connection (setting wire-encryption): the stream of trains is cut into records, each encrypted and authenticated with ChaCha20-Poly1305 (RFC 8439)
 * by libsodium. Sits between tx.c, rx.c and the socket: its send and receive have the contracts of sendmsg(2) and recvmsg(2).
 *
 * Record: 0 u32 length of the plaintext, little-endian, authenticated  4 ciphertext  then a tag of 16 bytes. The nonce is the number of the record, from 0; each direction of each
 * connection has its own key (epf_tcp_greet_keys), so no nonce repeats, and a record that is repeated, left out or moved does not verify.
 *
 * One thread uses a seal. Makes system calls, never blocks; allocates only in epf_tcp_seal_open().
 */
#ifndef EPF_FABRIC_NIC_TCP_SEAL_H
#define EPF_FABRIC_NIC_TCP_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum {
	EPF_TCP_SEAL_KEY = 32,
	EPF_TCP_RECORD = 32 << 10, /* most plaintext of a record */
	EPF_TCP_RECORD_HEAD = 4,
	EPF_TCP_RECORD_TAG = 16,
	EPF_TCP_RECORD_MAX = EPF_TCP_RECORD_HEAD + EPF_TCP_RECORD + EPF_TCP_RECORD_TAG,
};

/* Keys of a connection, as one end sees them. */
struct epf_tcp_seal_keys {
	uint8_t send[EPF_TCP_SEAL_KEY], receive[EPF_TCP_SEAL_KEY];
};

struct epf_tcp_seal;

/* Returns a seal whose record numbers begin at 0, or NULL without memory. @keys is copied. The caller closes it. */
struct epf_tcp_seal *epf_tcp_seal_open(const struct epf_tcp_seal_keys *keys);
/* Overwrites the keys and the last plaintext, and frees; accepts NULL. */
void epf_tcp_seal_close(struct epf_tcp_seal *seal);

/**
 * epf_tcp_seal_send() - encrypts up to one record of the pieces and sends what the socket accepts.
 * @n: pieces; 0 sends only what an earlier call has encrypted.
 *
 * Return: the bytes encrypted, which are the seal's from then on (epf_tcp_seal_is_sending); -1 with errno as of sendmsg(2), EAGAIN also when nothing was encrypted because
 * the socket did not accept all of the record before.
 */
ssize_t epf_tcp_seal_send(struct epf_tcp_seal *seal, int fd, const struct iovec *iov, size_t n);
/* True while encrypted bytes have not been given to the socket. */
bool epf_tcp_seal_is_sending(const struct epf_tcp_seal *seal);

/**
 * epf_tcp_seal_receive() - receives, verifies and decrypts into the pieces.
 *
 * Bytes reach a piece only from a record that has verified. (libsodium zeroes the output of one that has not: a piece may hold zeros then.)
 *
 * Return: bytes of plaintext; 0 at the end of the stream; -1 with errno as of recvmsg(2), or EBADMSG: the record was not encrypted by the peer for this place in
 * the stream, after which the seal is of no use.
 */
ssize_t epf_tcp_seal_receive(struct epf_tcp_seal *seal, int fd, const struct iovec *iov, size_t n);
/* True if another call may return bytes without a new event of the socket. */
bool epf_tcp_seal_has_more(const struct epf_tcp_seal *seal);

#endif
