/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of an encrypted connection (fabric/nic/tcp/seal.h) between two ends of a socket pair: the bytes that were sent arrive however sender, socket and receiver cut them; nothing that was
 * changed, repeated, moved or encrypted by somebody else arrives; and no plaintext is on the wire.
 */
#include "fabric/nic/tcp/seal.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 300000 };

static const struct epf_tcp_seal_keys keys_a = { .send = { 1 }, .receive = { 2 } };
static const struct epf_tcp_seal_keys keys_b = { .send = { 2 }, .receive = { 1 } };

struct ends {
	struct epf_tcp_seal *a, *b;
	int fd[2];
	uint8_t *sent, *got;
	uint32_t seed;
};

static uint32_t pick(struct ends *e, uint32_t below)
{
	e->seed = e->seed * 1664525u + 1013904223u;
	return (e->seed >> 8) % below;
}

static struct ends open_ends(int type, uint32_t seed)
{
	struct ends e = { .a = epf_tcp_seal_open(&keys_a),
			  .b = epf_tcp_seal_open(&keys_b),
			  .sent = malloc(BYTES),
			  .got = calloc(1, BYTES),
			  .seed = seed };
	int room = 9000;

	assert_true(e.a && e.b && e.sent && e.got);
	for (uint32_t i = 0; i < BYTES; i++)
		e.sent[i] = (uint8_t)pick(&e, 256);
	assert_int_equal(socketpair(AF_UNIX, type, 0, e.fd), 0);
	setsockopt(e.fd[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	return e;
}

static void close_ends(struct ends *e)
{
	epf_tcp_seal_close(e->a);
	epf_tcp_seal_close(e->b);
	close(e->fd[0]);
	close(e->fd[1]);
	free(e->sent);
	free(e->got);
}

/* [at, at + len) in up to five pieces. */
static size_t cut(struct ends *e, uint8_t *at, size_t len, struct iovec *v)
{
	size_t n = 0;

	while (len && n < 5) {
		size_t part = n == 4 ? len : 1 + pick(e, (uint32_t)len);

		v[n++] = (struct iovec){ at, part };
		at += part;
		len -= part;
	}
	return n;
}

static void what_is_sent_arrives(void **state)
{
	for (uint32_t seed = 1; seed <= 20; seed++) {
		struct ends e = open_ends(SOCK_STREAM, seed);
		size_t sent = 0, got = 0;
		struct iovec v[5];

		while (got < BYTES) {
			size_t most = pick(&e, 3) ? 1 + pick(&e, 500) : 1 + pick(&e, 120000);
			ssize_t n;

			if (sent < BYTES || epf_tcp_seal_is_sending(e.a)) {
				most = most < BYTES - sent ? most : BYTES - sent;
				n = epf_tcp_seal_send(e.a, e.fd[0], v,
						      cut(&e, e.sent + sent, most, v));
				assert_true(n >= 0 || errno == EAGAIN);
				sent += n > 0 ? (size_t)n : 0;
			}
			most = 1 + pick(&e, 100000);
			most = most < BYTES - got ? most : BYTES - got;
			n = epf_tcp_seal_receive(e.b, e.fd[1], v, cut(&e, e.got + got, most, v));
			assert_true(n > 0 || (n < 0 && errno == EAGAIN));
			if (n < 0)
				assert_false(epf_tcp_seal_has_more(e.b));
			got += n > 0 ? (size_t)n : 0;
		}
		assert_memory_equal(e.sent, e.got, BYTES);
		close(e.fd[0]);
		e.fd[0] = -1;
		assert_int_equal(epf_tcp_seal_receive(e.b, e.fd[1], v, cut(&e, e.got, 9, v)), 0);
		close_ends(&e);
	}
}

/* Records of 100 bytes each, as they are on the wire. */
static size_t record(struct ends *e, uint8_t *wire, uint32_t number)
{
	struct iovec v = { e->sent + 100u * number, 100 };
	ssize_t n;

	assert_int_equal(epf_tcp_seal_send(e->a, e->fd[0], &v, 1), 100);
	n = recv(e->fd[1], wire, 1000, 0);
	assert_int_equal(n, EPF_TCP_RECORD_HEAD + 100 + EPF_TCP_RECORD_TAG);
	return (size_t)n;
}

static ssize_t give(struct ends *e, const uint8_t *wire, size_t n)
{
	struct iovec v = { e->got, 1000 };

	assert_int_equal(send(e->fd[0], wire, n, 0), (ssize_t)n);
	return epf_tcp_seal_receive(e->b, e->fd[1], &v, 1);
}

static void refused(struct ends *e, const uint8_t *wire, size_t n)
{
	static const uint8_t zeros[1000];

	assert_int_equal(give(e, wire, n), -1);
	assert_int_equal(errno, EBADMSG);
	assert_memory_equal(e->got, zeros, sizeof(zeros));
	close_ends(e);
}

static ssize_t receive_at_most(struct ends *e, size_t most)
{
	struct iovec v = { e->got, most };

	return epf_tcp_seal_receive(e->b, e->fd[1], &v, 1);
}

/* Bytes that reach the socket while older ones are still buffered are not forgotten, although their event has been consumed. */
static void what_comes_meanwhile_is_asked_for(void **state)
{
	struct ends e = open_ends(SOCK_STREAM, 1);
	struct iovec v = { e.sent, 100 };

	assert_int_equal(epf_tcp_seal_send(e.a, e.fd[0], &v, 1), 100);
	assert_int_equal(epf_tcp_seal_send(e.a, e.fd[0], &v, 1), 100);
	assert_int_equal(receive_at_most(&e, 50), 50);
	assert_int_equal(epf_tcp_seal_send(e.a, e.fd[0], &v, 1), 100);
	assert_int_equal(receive_at_most(&e, 1000), 150);
	assert_true(epf_tcp_seal_has_more(e.b));
	assert_int_equal(receive_at_most(&e, 1000), 100);
	assert_false(epf_tcp_seal_has_more(e.b));
	close_ends(&e);
}

static void no_plaintext_is_on_the_wire(void **state)
{
	struct ends e = open_ends(SOCK_STREAM, 1);
	uint8_t wire[1000];
	size_t n = record(&e, wire, 0);

	for (size_t i = 0; i + 8 <= n; i++)
		assert_null(memmem(e.sent, 100, wire + i, 8));
	assert_int_equal(give(&e, wire, n), 100);
	assert_memory_equal(e.got, e.sent, 100);
	/* The same plaintext again is another record. */
	assert_int_equal(record(&e, wire + 500, 0), n);
	assert_memory_not_equal(wire + EPF_TCP_RECORD_HEAD, wire + 500 + EPF_TCP_RECORD_HEAD, 100);
	close_ends(&e);
}

static void changed_records_are_refused(void **state)
{
	for (unsigned i = 0; i < EPF_TCP_RECORD_HEAD + 100 + EPF_TCP_RECORD_TAG; i++) {
		struct ends e = open_ends(SOCK_STREAM, 1);
		uint8_t wire[1000];
		size_t n = record(&e, wire, 0);

		wire[i] ^= 4;
		if (i >= 1 &&
		    i < EPF_TCP_RECORD_HEAD) { /* longer than it is: the rest is waited for */
			ssize_t rc = give(&e, wire, n);

			assert_true(rc == -1 && (errno == EAGAIN || errno == EBADMSG));
			close_ends(&e);
		} else {
			/* A shorter record's tag is not where it was; a longer one takes the next one's bytes. */
			if (i == 0)
				n += record(&e, wire + n, 1);
			refused(&e, wire, n);
		}
	}
}

static void repeated_moved_and_foreign_records_are_refused(void **state)
{
	static const struct epf_tcp_seal_keys other = { .send = { 1, 1 }, .receive = { 2 } };
	struct ends e = open_ends(SOCK_STREAM, 1);
	uint8_t wire[2000];
	size_t n = record(&e, wire, 0);

	/* Repeated. */
	assert_int_equal(give(&e, wire, n), 100);
	memset(e.got, 0, 1000);
	refused(&e, wire, n);
	/* The second before the first. */
	e = open_ends(SOCK_STREAM, 1);
	n = record(&e, wire, 0);
	n = record(&e, wire, 1);
	refused(&e, wire, n);
	/* Sent back to its sender's other direction. */
	e = open_ends(SOCK_STREAM, 1);
	n = record(&e, wire, 0);
	epf_tcp_seal_close(e.b);
	e.b = epf_tcp_seal_open(&keys_a);
	refused(&e, wire, n);
	/* By another connection's key. */
	e = open_ends(SOCK_STREAM, 1);
	epf_tcp_seal_close(e.a);
	e.a = epf_tcp_seal_open(&other);
	n = record(&e, wire, 0);
	refused(&e, wire, n);
	/* Impossible lengths. */
	e = open_ends(SOCK_STREAM, 1);
	refused(&e, (const uint8_t[]){ 0, 0, 0, 0, 9 }, 5);
	e = open_ends(SOCK_STREAM, 1);
	refused(&e, (const uint8_t[]){ 1, 0x80, 0, 0 }, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_sent_arrives),
		cmocka_unit_test(what_comes_meanwhile_is_asked_for),
		cmocka_unit_test(no_plaintext_is_on_the_wire),
		cmocka_unit_test(changed_records_are_refused),
		cmocka_unit_test(repeated_moved_and_foreign_records_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
