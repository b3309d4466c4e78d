/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rendezvous messages: bytes on the wire, round trips, and refusals. The layout is checked against
 * literal bytes, so that it cannot change unnoticed, and a proof against libsodium directly.
 */
#include "bootstrap/wire.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SECRET "a secret of the unit test"

struct pair {
	struct epf_auth auth;
	struct epf_wire_session client, server;
	uint8_t buf[EPF_WIRE_FRAME_MAX];
};

static void load(const char *secret, struct epf_auth *auth)
{
	assert_int_equal(epf_auth_load(secret, strlen(secret), NULL, NULL, NULL, auth), 0);
	assert_true(auth->has_secret);
}

/* Two ends that have the same session key and rank 7 as client. */
static void setup_pair(struct pair *p)
{
	uint8_t nc[EPF_AUTH_NONCE_BYTES], ns[EPF_AUTH_NONCE_BYTES];

	load(SECRET, &p->auth);
	epf_auth_nonce(nc);
	epf_auth_nonce(ns);
	assert_memory_not_equal(nc, ns, sizeof(nc));
	epf_wire_session_init(&p->client, &p->auth, 7);
	epf_wire_session_init(&p->server, &p->auth, EPF_WIRE_SERVER);
	epf_wire_session_rekey(&p->client, &p->auth, nc, ns);
	epf_wire_session_rekey(&p->server, &p->auth, nc, ns);
	p->server.peer = 7;
}

static enum epf_wire_verdict open_frame(struct epf_wire_session *s, const uint8_t *buf, size_t len)
{
	struct epf_wire_msg msg;
	size_t frame;

	return epf_wire_open(s, buf, len, EPF_WIRE_PAYLOAD_MAX, &msg, &frame);
}

static void header_bytes_are_as_documented(void **state)
{
	static const uint8_t want[] = { 'E', 'P', 'F',  'B',  2,    0,    7,    0,    8,    0,   0,
					0,   7,   0,    0,    0,    5,    0,    0,    0,    0,   0,
					0,   0,   0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11 };
	uint8_t payload[8], digest[32], proof[32];
	crypto_auth_hmacsha256_state st;
	struct pair p;

	setup_pair(&p);
	p.client.tx_sequence = 5;
	epf_wire_put_u64(payload, 0x1122334455667788ull);
	assert_int_equal(epf_wire_seal(&p.client, EPF_WIRE_BARRIER, payload, 8, NULL, p.buf), 64);
	assert_memory_equal(p.buf, want, sizeof(want));
	assert_int_equal(p.client.tx_sequence, 6);

	/* HMAC-SHA-256(key, 'C' | header | SHA-256(payload)), by the library alone. */
	crypto_hash_sha256(digest, payload, 8);
	crypto_auth_hmacsha256_init(&st, p.client.key, 32);
	crypto_auth_hmacsha256_update(&st, (const uint8_t *)"C", 1);
	crypto_auth_hmacsha256_update(&st, p.buf, 24);
	crypto_auth_hmacsha256_update(&st, digest, 32);
	crypto_auth_hmacsha256_final(&st, proof);
	assert_memory_equal(p.buf + 32, proof, 32);
}

static void session_key_is_as_documented(void **state)
{
	static const char salt[] = "EP fabric bootstrap master key";
	uint8_t nc[32], ns[32], master[32], key[32];
	crypto_auth_hmacsha256_state st;
	struct epf_wire_session s;
	struct epf_auth auth;

	memset(nc, 0x11, sizeof(nc));
	memset(ns, 0x22, sizeof(ns));
	load(SECRET, &auth);
	crypto_auth_hmacsha256_init(&st, (const uint8_t *)salt, strlen(salt));
	crypto_auth_hmacsha256_update(&st, (const uint8_t *)"secret", 6);
	crypto_auth_hmacsha256_update(&st, (const uint8_t *)SECRET, strlen(SECRET));
	crypto_auth_hmacsha256_final(&st, master);
	assert_memory_equal(auth.master, master, 32);
	crypto_auth_hmacsha256_init(&st, master, 32);
	crypto_auth_hmacsha256_update(&st, (const uint8_t *)"session", 7);
	crypto_auth_hmacsha256_update(&st, nc, 32);
	crypto_auth_hmacsha256_update(&st, ns, 32);
	crypto_auth_hmacsha256_final(&st, key);
	epf_wire_session_init(&s, &auth, 0);
	epf_wire_session_rekey(&s, &auth, nc, ns);
	assert_memory_equal(s.key, key, 32);
}

static void join_round_trip(void **state)
{
	struct epf_wire_join in = { .rank = 7, .world = 4096, .timeout_ns = 1ull << 40 }, out;
	uint8_t payload[EPF_WIRE_EARLY_MAX];
	struct epf_wire_msg msg;
	struct pair p;
	size_t n, frame;

	setup_pair(&p);
	memset(in.job, 'j', EPF_WIRE_NAME_MAX);
	strcpy(in.node, "node-1");
	n = epf_wire_put_join(payload, &in);
	n = epf_wire_seal(&p.client, EPF_WIRE_JOIN, payload, n, NULL, p.buf);
	assert_int_equal(epf_wire_open(&p.server, p.buf, n, EPF_WIRE_EARLY_MAX, &msg, &frame),
			 EPF_WIRE_V_OK);
	assert_int_equal(frame, n);
	assert_int_equal(epf_wire_get_join(&msg, &out), EPF_WIRE_V_OK);
	assert_memory_equal(&in, &out, sizeof(in));
}

static void note_round_trip(void **state)
{
	static const enum epf_wire_type types[] = { EPF_WIRE_REFUSE, EPF_WIRE_FAIL };

	uint8_t payload[EPF_WIRE_EARLY_MAX];

	for (int i = 0; i < 2; i++) {
		struct epf_wire_note in = { .reason = 210, .rank = 9 }, out;
		struct epf_wire_msg msg;
		struct pair p;
		size_t n, frame;

		setup_pair(&p);
		memset(in.text, 't', EPF_WIRE_TEXT_MAX);
		n = epf_wire_put_note(payload, types[i], &in);
		n = epf_wire_seal(&p.server, types[i], payload, n, NULL, p.buf);
		assert_int_equal(
			epf_wire_open(&p.client, p.buf, n, EPF_WIRE_EARLY_MAX, &msg, &frame),
			EPF_WIRE_V_OK);
		assert_int_equal(epf_wire_get_note(&msg, &out), EPF_WIRE_V_OK);
		assert_int_equal(out.reason, 210);
		assert_int_equal(out.rank, types[i] == EPF_WIRE_FAIL ? 9 : EPF_WIRE_SERVER);
		assert_string_equal(out.text, in.text);
	}
}

static void part_round_trip(void **state)
{
	static uint8_t payload[EPF_WIRE_PAYLOAD_MAX];
	uint8_t digest[32];
	struct epf_wire_part part;
	struct epf_wire_msg msg;
	struct pair p;
	size_t n, frame;

	setup_pair(&p);
	for (size_t i = 0; i < EPF_WIRE_PART_BYTES; i++)
		payload[EPF_WIRE_PART_HEAD + i] = (uint8_t)(i * 7);
	epf_wire_put_part(payload, 3, 200000, 65536);
	epf_auth_digest(payload, sizeof(payload), digest);
	n = epf_wire_seal(&p.server, EPF_WIRE_PART, payload, sizeof(payload), digest, p.buf);
	assert_int_equal(n, EPF_WIRE_FRAME_MAX);
	assert_int_equal(epf_wire_open(&p.client, p.buf, n, EPF_WIRE_PAYLOAD_MAX, &msg, &frame),
			 EPF_WIRE_V_OK);
	assert_int_equal(epf_wire_get_part(&msg, &part), EPF_WIRE_V_OK);
	assert_int_equal(part.round, 3);
	assert_int_equal(part.total, 200000);
	assert_int_equal(part.offset, 65536);
	assert_int_equal(part.bytes, EPF_WIRE_PART_BYTES);
	assert_memory_equal(part.data, payload + EPF_WIRE_PART_HEAD, part.bytes);
}

/* A payload that is proven can still contradict itself. */
static enum epf_wire_verdict read_part(uint64_t total, uint64_t offset, uint32_t bytes)
{
	uint8_t payload[EPF_WIRE_PART_HEAD + 64] = { 0 };
	struct epf_wire_msg msg = { .head = { .type = EPF_WIRE_PART,
					      .length = EPF_WIRE_PART_HEAD + bytes },
				    .payload = payload };
	struct epf_wire_part part;

	epf_wire_put_part(payload, 0, total, offset);
	return epf_wire_get_part(&msg, &part);
}

static void contradicting_payloads_are_refused(void **state)
{
	uint8_t p[EPF_WIRE_EARLY_MAX] = { 0 };
	struct epf_wire_join join = { .job = "job", .node = "n" };
	struct epf_wire_note note = { .text = "text" };
	struct epf_wire_msg msg = { .payload = p };

	assert_int_equal(read_part(64, 0, 64), EPF_WIRE_V_OK);
	assert_int_equal(read_part(0, 0, 0), EPF_WIRE_V_OK);
	assert_int_equal(read_part(63, 0, 64), EPF_WIRE_V_PAYLOAD);
	assert_int_equal(read_part(64, 1, 64), EPF_WIRE_V_PAYLOAD);
	assert_int_equal(read_part(64, UINT64_MAX, 64), EPF_WIRE_V_PAYLOAD);
	assert_int_equal(read_part(64, 0, 0), EPF_WIRE_V_PAYLOAD);

	msg.head = (struct epf_wire_head){ .type = EPF_WIRE_JOIN };
	msg.head.length = (uint32_t)epf_wire_put_join(p, &join) + 1;
	assert_int_equal(epf_wire_get_join(&msg, &join), EPF_WIRE_V_PAYLOAD);
	msg.head.length--;
	assert_int_equal(epf_wire_get_join(&msg, &join), EPF_WIRE_V_OK);
	p[21] = 0; /* a 0 inside the job's name */
	assert_int_equal(epf_wire_get_join(&msg, &join), EPF_WIRE_V_PAYLOAD);
	/* A name above its limit whose sum of lengths still fits. */
	memset(p, 'x', sizeof(p));
	memcpy(p + 16, "\x81\0\0\0", 4);
	msg.head.length = 20 + 0x81;
	assert_int_equal(epf_wire_get_join(&msg, &join), EPF_WIRE_V_PAYLOAD);

	msg.head = (struct epf_wire_head){ .type = EPF_WIRE_FAIL };
	msg.head.length = (uint32_t)epf_wire_put_note(p, EPF_WIRE_FAIL, &note) - 1;
	assert_int_equal(epf_wire_get_note(&msg, &note), EPF_WIRE_V_PAYLOAD);
}

static void wrong_bytes_are_refused_early(void **state)
{
	struct epf_wire_head head;
	struct pair p;
	uint8_t b[64];
	size_t n;

	setup_pair(&p);
	n = epf_wire_seal(&p.client, EPF_WIRE_LEAVE, NULL, 0, NULL, p.buf);
	for (size_t len = 0; len < n; len++)
		assert_int_equal(open_frame(&p.server, p.buf, len), EPF_WIRE_V_MORE);
	assert_int_equal(epf_wire_head_read(&p.server, (const uint8_t *)"GET / HTTP/1.1", 1,
					    EPF_WIRE_EARLY_MAX, &head),
			 EPF_WIRE_V_MAGIC);
#define CHANGED(at, value, verdict)                                    \
 do {                                                                  \
  memcpy(b, p.buf, n);                                                 \
  b[at] = (value);                                                     \
  assert_int_equal(open_frame(&p.server, b, n), EPF_WIRE_V_##verdict); \
 } while (0)
	CHANGED(0, 'e', MAGIC);
	CHANGED(4, 1, VERSION);
	CHANGED(4, 3, VERSION);
	CHANGED(6, EPF_WIRE_FAIL, TYPE);
	CHANGED(6, 99, TYPE);
	CHANGED(8, 9, LENGTH);
	CHANGED(11, 0xff, LENGTH);
	CHANGED(12, 8, SENDER);
	CHANGED(16, 1, PROOF);
#undef CHANGED
	assert_int_equal(open_frame(&p.server, p.buf, n), EPF_WIRE_V_OK);
}

/* Every byte of a proven frame, with every bit flipped, one at a time: nothing is ever accepted. */
static void every_mutation_is_refused(void **state)
{
	uint8_t payload[EPF_WIRE_PART_HEAD + 40], b[256];
	struct pair p;
	size_t n;

	setup_pair(&p);
	memset(payload, 0x5a, sizeof(payload));
	epf_wire_put_part(payload, 1, 40, 0);
	n = epf_wire_seal(&p.client, EPF_WIRE_PART, payload, sizeof(payload), NULL, p.buf);
	for (size_t at = 0; at < n; at++)
		for (unsigned int value = 0; value < 256; value++) {
			enum epf_wire_verdict v;

			memset(b, 0xa5, sizeof(b));
			memcpy(b, p.buf, n);
			if (b[at] == value)
				continue;
			b[at] = (uint8_t)value;
			v = open_frame(&p.server, b, n);
			/* A longer length waits for more: give it more. */
			if (v == EPF_WIRE_V_MORE && at == 8)
				v = open_frame(&p.server, b, sizeof(b));
			if (v == EPF_WIRE_V_MORE)
				assert_true(at >= 8 && at < 12);
			assert_int_not_equal(v, EPF_WIRE_V_OK);
			assert_int_not_equal(v, EPF_WIRE_V_DUPLICATE);
			assert_int_equal(p.server.rx_sequence, 0);
		}
	assert_int_equal(open_frame(&p.server, p.buf, n), EPF_WIRE_V_OK);
}

static void reflected_replayed_and_reordered_are_refused(void **state)
{
	uint8_t second[EPF_WIRE_OVERHEAD], payload[EPF_WIRE_PART_HEAD] = { 0 }, digest[32];
	struct pair p, q;
	size_t n;

	setup_pair(&p);
	setup_pair(&q);
	/* RELEASE sent back to the server, and a PART with the sender changed to look like ours. */
	n = epf_wire_seal(&p.server, EPF_WIRE_RELEASE, payload, 8, NULL, p.buf);
	assert_int_equal(open_frame(&p.server, p.buf, n), EPF_WIRE_V_SENDER);
	n = epf_wire_seal(&p.server, EPF_WIRE_PART,
			  "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", EPF_WIRE_PART_HEAD,
			  NULL, p.buf);
	assert_int_equal(open_frame(&p.server, p.buf, n), EPF_WIRE_V_SENDER);
	p.buf[12] = 7;
	p.buf[13] = p.buf[14] = p.buf[15] = 0;
	assert_int_equal(open_frame(&p.server, p.buf, n), EPF_WIRE_V_PROOF);
	/* The direction is proven even where every byte of the header is the same. */
	n = epf_wire_seal(&p.client, EPF_WIRE_LEAVE, NULL, 0, NULL, p.buf);
	epf_auth_digest(NULL, 0, digest);
	memcpy(second, p.buf, n);
	epf_auth_proof(p.client.key, true, second, EPF_WIRE_HEAD_BYTES, digest,
		       second + EPF_WIRE_HEAD_BYTES);
	assert_int_equal(open_frame(&p.server, second, n), EPF_WIRE_V_PROOF);
	assert_int_equal(open_frame(&p.server, p.buf, n), EPF_WIRE_V_OK);

	/* Twice on one connection: dropped, and the connection goes on. On another: no proof. */
	assert_int_equal(open_frame(&p.server, p.buf, n), EPF_WIRE_V_DUPLICATE);
	assert_int_equal(open_frame(&q.server, p.buf, n), EPF_WIRE_V_PROOF);
	/* One lost in between. */
	n = epf_wire_seal(&q.client, EPF_WIRE_LEAVE, NULL, 0, NULL, q.buf);
	epf_wire_seal(&q.client, EPF_WIRE_LEAVE, NULL, 0, NULL, second);
	assert_int_equal(open_frame(&q.server, second, n), EPF_WIRE_V_GAP);
	assert_int_equal(open_frame(&q.server, q.buf, n), EPF_WIRE_V_OK);
	assert_int_equal(open_frame(&q.server, second, n), EPF_WIRE_V_OK);
}

static void a_stranger_learns_nothing(void **state)
{
	uint8_t nonce[EPF_AUTH_NONCE_BYTES] = { 1 };
	struct epf_wire_session wrong, server;
	struct epf_auth mine, other;
	struct pair p;
	size_t n;

	setup_pair(&p);
	load(SECRET, &mine);
	load(SECRET "!", &other);
	epf_wire_session_init(&wrong, &other, 7);
	epf_wire_session_init(&server, &mine, EPF_WIRE_SERVER);
	n = epf_wire_seal(&wrong, EPF_WIRE_HELLO, nonce, sizeof(nonce), NULL, p.buf);
	assert_int_equal(open_frame(&server, p.buf, n), EPF_WIRE_V_PROOF);
	n = epf_wire_refuse_stranger(&server, p.buf);
	assert_int_equal(n, EPF_WIRE_OVERHEAD + 6);
	for (size_t i = EPF_WIRE_HEAD_BYTES; i < n; i++)
		assert_int_equal(p.buf[i], 0);
}

/* The handshake of another version is readable, so that it can be refused by name. */
static void other_versions_can_shake_hands(void **state)
{
	static const struct {
		enum epf_wire_type type;
		size_t len;
		enum epf_wire_verdict verdict;
	} rows[] = {
		{ EPF_WIRE_HELLO, 32, EPF_WIRE_V_OK },
		{ EPF_WIRE_JOIN, 20, EPF_WIRE_V_OK },
		{ EPF_WIRE_LEAVE, 0, EPF_WIRE_V_VERSION },
		{ EPF_WIRE_BARRIER, 8, EPF_WIRE_V_VERSION },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t payload[64] = { 0 }, digest[32];
		struct pair p;
		size_t n;

		setup_pair(&p);
		n = epf_wire_seal(&p.client, rows[i].type, payload, rows[i].len, NULL, p.buf);
		p.buf[4] = 9;
		epf_auth_digest(payload, rows[i].len, digest);
		epf_auth_proof(p.client.key, false, p.buf, EPF_WIRE_HEAD_BYTES, digest,
			       p.buf + n - 32);
		assert_int_equal(open_frame(&p.server, p.buf, n), rows[i].verdict);
	}
}

static void every_verdict_and_type_has_words(void **state)
{
	for (int v = 0; v < EPF_WIRE_V_COUNT; v++)
		assert_true(strlen(epf_wire_verdict_text((enum epf_wire_verdict)v)) > 5);
	assert_string_equal(epf_wire_verdict_text(EPF_WIRE_V_COUNT), "unknown");
	assert_string_equal(epf_wire_type_text(EPF_WIRE_PART), "PART");
	assert_string_equal(epf_wire_type_text(0), "unknown");
}

/* Secrets: sources, order, limits; and no text ever shows one. */
static const char *secret_env(const char *name, void *arg)
{
	const char *const *pairs = arg;

	for (; *pairs; pairs += 2)
		if (!strcmp(pairs[0], name))
			return pairs[1];
	return NULL;
}

static void write_secret(char path[32], const char *text, size_t len)
{
	int fd;

	strcpy(path, "/tmp/epf-secret-XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, len), (ssize_t)len);
	close(fd);
}

static void secrets_come_from_file_fd_and_environment(void **state)
{
	const char *env[] = { "EPF_SECRET", SECRET, NULL, NULL, NULL, NULL, NULL };
	struct epf_auth want, got;
	char path[32], number[16];
	int fds[2];

	load(SECRET, &want);
	assert_int_equal(epf_auth_load(NULL, 0, NULL, secret_env, env, &got), 0);
	assert_string_equal(got.origin, "EPF_SECRET");
	assert_memory_equal(got.master, want.master, 32);
	/* A file with a line end is the same secret. */
	write_secret(path, SECRET "\r\n", strlen(SECRET) + 2);
	env[1] = "another secret, 24 bytes";
	env[2] = "EPF_SECRET_FILE";
	env[3] = path;
	assert_int_equal(epf_auth_load(NULL, 0, NULL, secret_env, env, &got), 0);
	assert_string_equal(got.origin, "EPF_SECRET_FILE");
	assert_memory_equal(got.master, want.master, 32);
	unlink(path);
	/* A pipe comes before the file, which is gone. */
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(write(fds[1], SECRET "\n", strlen(SECRET) + 1), strlen(SECRET) + 1);
	close(fds[1]);
	snprintf(number, sizeof(number), "%d", fds[0]);
	env[4] = "EPF_SECRET_FD";
	env[5] = number;
	assert_int_equal(epf_auth_load(NULL, 0, NULL, secret_env, env, &got), 0);
	assert_string_equal(got.origin, "EPF_SECRET_FD");
	assert_memory_equal(got.master, want.master, 32);
	close(fds[0]);
	env[0] = env[2] = env[4] = "X";
	assert_int_equal(epf_auth_load(NULL, 0, NULL, secret_env, env, &got), 0);
	assert_false(got.has_secret);
	epf_auth_wipe(&got);
	epf_auth_wipe(NULL);
}

static void unusable_secrets_are_refused_without_showing_them(void **state)
{
	const char *env[] = { "EPF_SECRET_FD", "hunter2-hunter2-hunter2", NULL };
	static char big[EPF_AUTH_SECRET_MAX + 1];
	struct epf_auth got;
	char path[32];

	assert_int_equal(epf_auth_load("short", 5, NULL, NULL, NULL, &got), -EACCES);
	assert_null(strstr(epf_last_error(), "short"));
	memset(big, 'b', sizeof(big));
	assert_int_equal(epf_auth_load(big, sizeof(big), NULL, NULL, NULL, &got), -EACCES);
	assert_int_equal(epf_auth_load(big, sizeof(big) - 1, NULL, NULL, NULL, &got), 0);
	assert_int_equal(epf_auth_load("", 0, NULL, NULL, NULL, &got), -EACCES);
	assert_int_equal(epf_auth_load(NULL, 0, "/nonexistent", NULL, NULL, &got), -ENOENT);
	assert_non_null(strstr(epf_last_error(), "/nonexistent"));
	assert_true(epf_auth_load(NULL, 0, "/", NULL, NULL, &got) <
		    0); /* opens, and cannot be read */
	assert_int_equal(epf_auth_load(NULL, 0, NULL, secret_env, env, &got), -EACCES);
	assert_null(strstr(epf_last_error(), "hunter2"));
	write_secret(path, "\n", 1);
	assert_int_equal(epf_auth_load(NULL, 0, path, NULL, NULL, &got), -EACCES);
	unlink(path);
	write_secret(path, big, sizeof(big));
	assert_int_equal(epf_auth_load(NULL, 0, path, NULL, NULL, &got), -EACCES);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_bytes_are_as_documented),
		cmocka_unit_test(session_key_is_as_documented),
		cmocka_unit_test(join_round_trip),
		cmocka_unit_test(note_round_trip),
		cmocka_unit_test(part_round_trip),
		cmocka_unit_test(contradicting_payloads_are_refused),
		cmocka_unit_test(wrong_bytes_are_refused_early),
		cmocka_unit_test(every_mutation_is_refused),
		cmocka_unit_test(reflected_replayed_and_reordered_are_refused),
		cmocka_unit_test(a_stranger_learns_nothing),
		cmocka_unit_test(other_versions_can_shake_hands),
		cmocka_unit_test(every_verdict_and_type_has_words),
		cmocka_unit_test(secrets_come_from_file_fd_and_environment),
		cmocka_unit_test(unusable_secrets_are_refused_without_showing_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
