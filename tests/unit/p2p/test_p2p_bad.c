/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints when something is wrong: limits with the last valid and the first invalid value, rights, stale numbers, damaged bytes, keys that differ. */
#include "tests/unit/p2p/p2p_kit.h"

#include "fabric/p2p/p2p_priv.h"
#include "fabric/p2p/stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES = 8192 };

struct pair {
	struct epf_p2p *a, *b;
	uint64_t conn, region, theirs;
	uint8_t *mine, *memory;
};

static void begin(struct pair *p)
{
	uint8_t meta[EPF_P2P_METADATA_BYTES];
	int n;

	p->a = endpoint("a");
	p->b = endpoint("b");
	p->mine = calloc(1, BYTES);
	p->memory = calloc(1, BYTES);
	n = epf_p2p_metadata(p->b, meta, sizeof(meta));
	assert_ok(n);
	assert_ok(epf_p2p_connect(p->a, meta, (size_t)n, 5 * SECOND, &p->conn));
	assert_ok(epf_p2p_register(p->a, p->mine, BYTES, EPF_P2P_HOST, &p->region));
	assert_ok(epf_p2p_register(p->b, p->memory, BYTES, EPF_P2P_HOST, &p->theirs));
}

static void end(struct pair *p)
{
	epf_p2p_close(p->a);
	epf_p2p_close(p->b);
	free(p->mine);
	free(p->memory);
}

static int import_key(struct pair *p, const uint8_t *key, uint64_t *import)
{
	return epf_p2p_import(p->a, p->conn, key, 5 * SECOND, import);
}

static int prepare(struct pair *p, uint64_t region, uint64_t import, enum epf_p2p_op op,
		   uint64_t local, uint64_t remote, uint32_t bytes)
{
	struct epf_p2p_block block = epf_p2p_block(local, remote, bytes);
	struct epf_p2p_xfer *x = NULL;
	int rc =
		epf_p2p_prepare(p->a, p->conn, op,
				&(struct epf_p2p_vector){ region, import, &block, 1 }, 1, NULL, &x);

	epf_p2p_xfer_free(x);
	return rc;
}

static void test_bounds(void **state)
{
	uint8_t key[EPF_P2P_KEY_BYTES];
	uint64_t import, bytes, addr;
	unsigned rights;
	struct pair p;

	(void)state;
	begin(&p);
	assert_err(epf_p2p_register(p.a, NULL, 1, EPF_P2P_HOST, &import), EINVAL);
	assert_err(epf_p2p_register(p.a, p.mine, 0, EPF_P2P_HOST, &import), EINVAL);
	assert_err(epf_p2p_register(p.a, p.mine, 1ull << 48, EPF_P2P_HOST, &import), EINVAL);
	assert_err(epf_p2p_register(p.a, (void *)4096, 4096, EPF_P2P_HOST, &import), EINVAL);
	assert_err(epf_p2p_export(p.b, p.theirs, 1, BYTES, EPF_P2P_READ, 0, 0, key), ERANGE);
	assert_err(epf_p2p_export(p.b, p.theirs, BYTES, 1, EPF_P2P_READ, 0, 0, key), ERANGE);
	assert_err(epf_p2p_export(p.b, p.theirs, 0, 0, EPF_P2P_READ, 0, 0, key), EINVAL);
	assert_err(epf_p2p_export(p.b, p.theirs, 0, 1, 0, 0, 0, key), EINVAL);
	assert_err(epf_p2p_export(p.b, p.theirs, 0, 1, 4, 0, 0, key), EINVAL);
	assert_err(epf_p2p_export(p.b, p.theirs + 1, 0, 1, 1, 0, 0, key), ENOENT);
	assert_ok(
		epf_p2p_export(p.b, p.theirs, 100, 1000, EPF_P2P_WRITE | EPF_P2P_READ, 0, 0, key));
	assert_ok(import_key(&p, key, &import));
	assert_ok(epf_p2p_import_info(p.a, import, &addr, &bytes, &rights));
	assert_int_equal(addr, (uint64_t)(uintptr_t)p.memory + 100);
	assert_int_equal(bytes, 1000);
	assert_int_equal(rights, 3);
	for (int op = EPF_P2P_OP_WRITE; op <= EPF_P2P_OP_READ; op++) {
		enum epf_p2p_op o = (enum epf_p2p_op)op;

		assert_ok(prepare(&p, p.region, import, o, BYTES - 1000, 0, 1000));
		assert_err(prepare(&p, p.region, import, o, BYTES - 999, 0, 1000), ERANGE);
		assert_err(prepare(&p, p.region, import, o, 0, 1, 1000), ERANGE);
		assert_err(prepare(&p, p.region, import, o, 0, 0, 1001), ERANGE);
		assert_err(prepare(&p, p.region, import, o, 0, (1ull << 48) - 1, 1), ERANGE);
		assert_err(prepare(&p, p.region, import, o, 0, 0, UINT32_MAX), ERANGE);
		assert_err(prepare(&p, p.region + 1, import, o, 0, 0, 1), ENOENT);
		assert_err(prepare(&p, p.region, import + 1, o, 0, 0, 1), ENOENT);
	}
	assert_err(prepare(&p, p.region, import, (enum epf_p2p_op)3, 0, 0, 1), EINVAL);
	assert_err(epf_p2p_write(p.a, p.conn, p.region, 1ull << 48, import, 0, 1, 0), ERANGE);
	/* The second of two imports of a key keeps it alive. */
	assert_ok(import_key(&p, key, &bytes));
	assert_int_equal(bytes, import);
	epf_p2p_release(p.a, import);
	assert_ok(epf_p2p_write(p.a, p.conn, p.region, 0, import, 0, 1000, 0));
	epf_p2p_release(p.a, import);
	assert_err(epf_p2p_write(p.a, p.conn, p.region, 0, import, 0, 1, 0), ENOENT);
	epf_p2p_release(p.a, import);
	end(&p);
}

static void test_rights(void **state)
{
	uint8_t key[EPF_P2P_KEY_BYTES];
	uint64_t import, back;
	struct pair p;

	(void)state;
	begin(&p);
	assert_ok(epf_p2p_accept(p.b, 5 * SECOND, &back));
	assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_READ, back, 0, key));
	assert_ok(import_key(&p, key, &import));
	assert_ok(prepare(&p, p.region, import, EPF_P2P_OP_READ, 0, 0, 1));
	assert_err(prepare(&p, p.region, import, EPF_P2P_OP_WRITE, 0, 0, 1), EACCES);
	assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_WRITE, 0, 0, key));
	assert_ok(import_key(&p, key, &import));
	assert_err(prepare(&p, p.region, import, EPF_P2P_OP_READ, 0, 0, 1), EACCES);
	/* For another peer only: one that b makes to itself. */
	assert_err(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_READ, back + 1, 0, key), ENOENT);
	{
		uint8_t meta[EPF_P2P_METADATA_BYTES];
		int n = epf_p2p_metadata(p.b, meta, sizeof(meta));
		uint64_t self;

		assert_ok(epf_p2p_connect(p.b, meta, (size_t)n, 5 * SECOND, &self));
		assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_READ, self, 0, key));
		assert_err(import_key(&p, key, &import), EACCES);
	}
	end(&p);
}

static void test_withdraw(void **state)
{
	uint8_t key[EPF_P2P_KEY_BYTES], old[EPF_P2P_KEY_BYTES];
	uint64_t import, again;
	struct pair p;

	(void)state;
	begin(&p);
	assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_WRITE, 0, 0, key));
	assert_ok(import_key(&p, key, &import));
	assert_ok(epf_p2p_write(p.a, p.conn, p.region, 0, import, 0, BYTES, 0));
	assert_ok(epf_p2p_withdraw(p.b, key, SECOND));
	assert_err(epf_p2p_write(p.a, p.conn, p.region, 0, import, 0, 1, 0), EKEYREVOKED);
	assert_err(import_key(&p, key, &again), EKEYREVOKED);
	assert_err(epf_p2p_withdraw(p.b, key, SECOND), ENOENT);
	memcpy(old, key, sizeof(old));
	/* A lifetime that ends: 20 ms. */
	assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_WRITE, 0, 20000000, key));
	assert_memory_not_equal(old, key, sizeof(old));
	if (import_key(&p, key, &import) == 0) {
		int rc = 0;

		for (int i = 0; i < 20000 && !rc; i++) {
			rc = epf_p2p_write(p.a, p.conn, p.region, 0, import, 0, 1, 0);
			poll(NULL, 0, 1);
		}
		assert_err(rc, EKEYEXPIRED);
	}
	assert_err(import_key(&p, key, &again), EKEYEXPIRED);
	assert_ok(epf_p2p_withdraw(p.b, key, SECOND));
	/* Deregistration withdraws all, and the region's number stays unused. */
	assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_WRITE, 0, 0, key));
	assert_ok(import_key(&p, key, &import));
	assert_ok(epf_p2p_deregister(p.b, p.theirs, SECOND));
	assert_err(epf_p2p_deregister(p.b, p.theirs, SECOND), ENOENT);
	assert_err(epf_p2p_write(p.a, p.conn, p.region, 0, import, 0, 1, 0), EKEYREVOKED);
	end(&p);
}

/* A transfer prepared before its region was deregistered. */
/* A call that finds nothing left to wait for does not return before another one that withdraws the same export. */
static void test_withdrawn_twice(void **state)
{
	uint8_t key[EPF_P2P_KEY_BYTES];
	struct export *e;
	struct pair p;

	(void)state;
	begin(&p);
	assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_WRITE, 0, 0, key));
	pthread_mutex_lock(&p.b->lock);
	e = p.b->exports;
	e->pins++; /* as the other call does */
	pthread_mutex_unlock(&p.b->lock);
	assert_err(epf_p2p_withdraw(p.b, key, 50 * MILLISECOND), ETIMEDOUT);
	pthread_mutex_lock(&p.b->lock);
	e->pins--;
	pthread_mutex_unlock(&p.b->lock);
	assert_ok(epf_p2p_withdraw(p.b, key, SECOND));
	end(&p);
}

static void test_deregistered(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, 64);
	uint8_t key[EPF_P2P_KEY_BYTES];
	struct epf_p2p_xfer *x;
	uint64_t import;
	struct pair p;

	(void)state;
	begin(&p);
	assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_WRITE, 0, 0, key));
	assert_ok(import_key(&p, key, &import));
	assert_ok(epf_p2p_prepare(p.a, p.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ p.region, import, &block, 1 }, 1, NULL,
				  &x));
	assert_ok(epf_p2p_deregister(p.a, p.region, SECOND));
	assert_err(epf_p2p_post(x, NULL, 0), ENOENT);
	epf_p2p_xfer_free(x);
	end(&p);
}

/* Memory that was unmapped although it is registered: an error, no crash. */
static void test_unmapped(void **state)
{
	uint8_t *gone =
		mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t key[EPF_P2P_KEY_BYTES];
	uint64_t import, region;
	struct pair p;

	(void)state;
	begin(&p);
	assert_ok(epf_p2p_register(p.b, gone, BYTES, EPF_P2P_HOST, &region));
	assert_ok(epf_p2p_export(p.b, region, 0, BYTES, EPF_P2P_WRITE, 0, 0, key));
	assert_ok(import_key(&p, key, &import));
	munmap(gone, BYTES);
	assert_err(epf_p2p_write(p.a, p.conn, p.region, 0, import, 0, BYTES, 0), EFAULT);
	end(&p);
}

static void test_damaged(void **state)
{
	uint8_t meta[EPF_P2P_METADATA_BYTES], key[EPF_P2P_KEY_BYTES], bad[EPF_P2P_METADATA_BYTES];
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	uint64_t conn, import;
	struct pair p;
	int n;

	(void)state;
	begin(&p);
	n = epf_p2p_metadata(p.b, meta, sizeof(meta));
	assert_err(epf_p2p_metadata(p.b, meta, (size_t)n - 1), EMSGSIZE);
	for (int i = 0; i < n; i++) {
		memcpy(bad, meta, (size_t)n);
		bad[i] ^= 0x41;
		assert_err(epf_p2p_describe(bad, (size_t)n, &peer), EBADMSG);
		assert_err(epf_p2p_connect(p.a, bad, (size_t)n, SECOND, &conn), EBADMSG);
	}
	for (int i = 0; i < n; i++)
		assert_err(epf_p2p_describe(meta, (size_t)i, &peer), EBADMSG);
	assert_ok(epf_p2p_export(p.b, p.theirs, 0, BYTES, EPF_P2P_WRITE, 0, 0, key));
	for (size_t i = 0; i < sizeof(key); i++) {
		int rc;

		memcpy(bad, key, sizeof(key));
		bad[i] ^= 0x41;
		rc = import_key(&p, bad, &import);
		if (rc != -EBADMSG && rc != -EKEYREVOKED)
			fail_msg("byte %zu of a key: %d", i, rc);
		assert_err(epf_p2p_withdraw(p.b, bad, SECOND), ENOENT);
	}
	assert_ok(import_key(&p, key, &import));
	end(&p);
}

/* Strangers send bytes to the endpoint's port: it lives on, and lets nobody in. */
static void test_strangers(void **state)
{
	struct epf_p2p *ep = endpoint("target of strangers");
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	uint8_t meta[EPF_P2P_METADATA_BYTES], junk[512];
	struct sockaddr_in to = { .sin_family = AF_INET };
	uint32_t seed = 1;
	uint64_t conn;
	int n = epf_p2p_metadata(ep, meta, sizeof(meta));

	(void)state;
	assert_ok(epf_p2p_describe(meta, (size_t)n, &peer));
	to.sin_port = htons(peer.port);
	inet_pton(AF_INET, peer.host, &to.sin_addr);
	for (int i = 0; i < 300; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		static const uint8_t head[] = { 0x45, 0x50, 0x50, 0x32 };

		assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
		for (size_t k = 0; k < sizeof(junk); k++)
			junk[k] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
		if (i % 2) { /* a right beginning: type 1 to 11, and a length that may be huge */
			memcpy(junk, head, 4);
			junk[4] = (uint8_t)(i % 12);
			memset(junk + 5, 0, 5);
			junk[11] = i % 4 == 1 ? 0 : junk[11];
			memset(junk + 12, 0, 4);
		}
		(void)!send(fd, junk, sizeof(junk), MSG_NOSIGNAL);
		if (i % 3)
			shutdown(fd, SHUT_WR);
		close(fd);
	}
	assert_err(epf_p2p_accept(ep, EPF_P2P_NOW, &conn), ETIMEDOUT);
	epf_p2p_close(ep);
}

static struct epf_p2p *keyed(const char *key)
{
	struct epf_p2p_options o;
	struct epf_p2p *ep;

	epf_p2p_options_init(&o);
	o.key = key;
	o.key_bytes = strlen(key);
	assert_ok(epf_p2p_open(&o, &ep));
	return ep;
}

static void test_keys(void **state)
{
	struct epf_p2p *a = keyed("the first key of all"), *b = keyed("the first key of all"),
		       *c = keyed("another key of some"), *none = endpoint("no key");
	uint8_t meta[EPF_P2P_METADATA_BYTES];
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	uint64_t conn;
	int n = epf_p2p_metadata(a, meta, sizeof(meta));

	(void)state;
	assert_ok(epf_p2p_connect(b, meta, (size_t)n, 5 * SECOND, &conn));
	assert_err(epf_p2p_connect(c, meta, (size_t)n, 5 * SECOND, &conn), EACCES);
	assert_err(epf_p2p_connect(none, meta, (size_t)n, 5 * SECOND, &conn), EACCES);
	assert_ok(epf_p2p_describe(meta, (size_t)n, &peer));
	assert_err(epf_p2p_connect_to(c, "127.0.0.1", peer.port, 5 * SECOND, &conn), EACCES);
	assert_ok(epf_p2p_connect_to(b, "127.0.0.1", peer.port, 5 * SECOND, &conn));
	epf_p2p_close(a);
	/* Nobody is there any more. */
	assert_err(epf_p2p_connect(c, meta, (size_t)n, 5 * SECOND, &conn), EACCES);
	assert_ok(epf_p2p_disconnect(b, conn, SECOND));
	assert_err(epf_p2p_connect(b, meta, (size_t)n, 5 * SECOND, &conn), ECONNREFUSED);
	epf_p2p_close(b);
	epf_p2p_close(c);
	epf_p2p_close(none);
}

/* Metadata of an endpoint that has a key of its own, which the wrong key does not open. */
static void test_own_key(void **state)
{
	struct epf_p2p *a = endpoint("a"), *b = endpoint("b");
	uint8_t one[EPF_P2P_METADATA_BYTES], two[EPF_P2P_METADATA_BYTES];
	int n = epf_p2p_metadata(a, one, sizeof(one));
	uint64_t conn;

	(void)state;
	assert_ok(epf_p2p_metadata(b, two, sizeof(two)));
	assert_memory_not_equal(one, two, (size_t)n);
	assert_ok(epf_p2p_connect(b, one, (size_t)n, 5 * SECOND, &conn));
	epf_p2p_close(a);
	epf_p2p_close(b);
}

/* A stranger that speaks the protocol, but proves no key: right up to the proof, and refused there. */
static void test_no_proof(void **state)
{
	struct epf_p2p *ep = keyed("a key that strangers lack");
	uint8_t meta[EPF_P2P_METADATA_BYTES];
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	struct sockaddr_in to = { .sin_family = AF_INET };
	int n = epf_p2p_metadata(ep, meta, sizeof(meta)), rc = 0;
	struct msg_hello hello = { 0 };
	struct msg_join join = { 0 };
	struct received m = { 0 };
	struct stream s;
	uint64_t conn;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	(void)state;
	assert_ok(epf_p2p_describe(meta, (size_t)n, &peer));
	to.sin_port = htons(peer.port);
	inet_pton(AF_INET, peer.host, &to.sin_addr);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	epf_p2p_stream_init(&s, fd, false, false);
	memcpy(&hello.meta, meta, sizeof(hello.meta));
	assert_ok(epf_p2p_send(&s, MSG_HELLO, &hello, sizeof(hello), NULL, 0));
	assert_int_equal(epf_p2p_receive_wait(&s, epf_now_ns() + 20 * SECOND, &m), 1);
	assert_int_equal(m.type, MSG_HELLO);
	assert_ok(epf_p2p_send(&s, MSG_JOIN, &join, sizeof(join), NULL, 0));
	rc = epf_p2p_receive_wait(&s, epf_now_ns() + 20 * SECOND, &m);
	assert_true(rc == -EPIPE || rc == -ECONNRESET);
	assert_err(epf_p2p_accept(ep, EPF_P2P_NOW, &conn), ETIMEDOUT);
	epf_p2p_stream_close(&s);
	epf_p2p_close(ep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bounds),       cmocka_unit_test(test_rights),
		cmocka_unit_test(test_withdraw),     cmocka_unit_test(test_withdrawn_twice),
		cmocka_unit_test(test_deregistered), cmocka_unit_test(test_unmapped),
		cmocka_unit_test(test_damaged),      cmocka_unit_test(test_strangers),
		cmocka_unit_test(test_keys),         cmocka_unit_test(test_own_key),
		cmocka_unit_test(test_no_proof),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
