/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed transfers over a NIC (argv[1]), between two endpoints of this process or with a target in another one: bit for bit, under the
 * rights and the life of exports, and through the death of the peer. Whether compression saves time is not asked: tests force it both ways.
 */
#include "tests/unit/p2p/p2p_kit.h"

#include "fabric/p2p/pack_priv.h"

#include <signal.h>
#include <sys/mman.h>

static const char *nic;

static const char *settings(const char *more)
{
	static char text[200];

	snprintf(text, sizeof(text), "nic=%s p2p-local=no p2p-compress-min=1 %s", nic, more);
	return text;
}

/* The connection behind a number. */
static struct conn *conn_of(struct epf_p2p *ep, uint64_t number)
{
	struct conn *c = epf_p2p_conn_get(ep, number);

	assert_non_null(c);
	epf_p2p_conn_put(c);
	return c;
}

static void force(struct epf_p2p *ep, uint64_t conn, enum gain_way way)
{
	struct pack *p = conn_of(ep, conn)->pack;

	assert_non_null(p);
	pthread_mutex_lock(&p->lock);
	p->gain[0].forced = p->gain[1].forced = way;
	pthread_mutex_unlock(&p->lock);
}

static struct epf_p2p_peer about(struct epf_p2p *ep, uint64_t conn)
{
	struct epf_p2p_peer peer = { .size = sizeof(peer) };

	assert_ok(epf_p2p_peer(ep, conn, &peer));
	return peer;
}

/* Two endpoints of this process, each with BYTES bytes; `near` has imported an export of `far`. */
enum { BYTES = 3 << 20 };

struct pair {
	struct epf_p2p *near, *far;
	uint64_t conn, region, far_region, import;
	uint8_t *here, *there;
	uint8_t key[EPF_P2P_KEY_BYTES];
};

static void export(struct pair *p, unsigned rights, uint64_t lifetime_ns)
{
	assert_ok(epf_p2p_export(p->far, p->far_region, 0, BYTES, rights, 0, lifetime_ns, p->key));
	assert_ok(epf_p2p_import(p->near, p->conn, p->key, 10 * SECOND, &p->import));
}

static void pair_begin(struct pair *p, const char *near, const char *far)
{
	uint8_t meta[EPF_P2P_METADATA_BYTES];
	int n;

	p->near = endpoint_with("near", settings(near));
	p->far = endpoint_with("far-away", settings(far));
	n = epf_p2p_metadata(p->far, meta, sizeof(meta));
	assert_ok(n);
	assert_ok(epf_p2p_connect(p->near, meta, (size_t)n, 10 * SECOND, &p->conn));
	p->here = malloc(BYTES);
	p->there = malloc(BYTES);
	assert_true(p->here && p->there);
	memset(p->there, 0, BYTES);
	for (uint64_t i = 0; i < BYTES; i++) /* values of bf16 near 1, with some NaNs */
		p->here[i] = i % 2 ? (i % 1024 == 1 ? 0xff : 0x3f) : pattern(i);
	assert_ok(epf_p2p_register(p->near, p->here, BYTES, EPF_P2P_HOST, &p->region));
	assert_ok(epf_p2p_register(p->far, p->there, BYTES, EPF_P2P_HOST, &p->far_region));
	assert_ok(epf_p2p_set_float(p->near, p->region, EPF_P2P_BF16));
	export(p, EPF_P2P_READ | EPF_P2P_WRITE, 0);
}

static void pair_end(struct pair *p)
{
	epf_p2p_close(p->near);
	epf_p2p_close(p->far);
	free(p->here);
	free(p->there);
}

static int write_some(struct pair *p, uint64_t bytes)
{
	return epf_p2p_write(p->near, p->conn, p->region, 0, p->import, 0, bytes, 10 * SECOND);
}

static int read_some(struct pair *p, uint64_t bytes)
{
	return epf_p2p_read(p->near, p->conn, p->region, 0, p->import, 0, bytes, 10 * SECOND);
}

/* What two settings agree on. */
static void test_agreement(void **state)
{
	static const char *name[] = { "p2p-compress=none", "p2p-compress=split",
				      "p2p-compress=full" };

	(void)state;
	for (int a = 0; a < 3; a++)
		for (int b = 0; b < 3; b++) {
			struct pair p;

			pair_begin(&p, name[a], name[b]);
			assert_int_equal(about(p.near, p.conn).compress, a < b ? a : b);
			if (a && b)
				force(p.near, p.conn, GAIN_PACKED);
			assert_ok(write_some(&p, BYTES));
			assert_memory_equal(p.here, p.there, BYTES);
			assert_int_equal(about(p.near, p.conn).packed_from, a && b ? BYTES : 0);
			pair_end(&p);
		}
}

/* A write and a read of odd blocks, apart and shuffled, of every type and both ways: what is between the blocks stays. */
static void test_blocks(void **state)
{
	enum { N = 300, STRIDE = 9001, LONG = 300000 };

	struct epf_p2p_block block[N + 1];
	struct pair p;

	(void)state;
	pair_begin(&p, "p2p-compress=full", "p2p-compress=full");
	for (uint32_t i = 0; i < N; i++)
		block[i] = epf_p2p_block((uint64_t)(N - 1 - i) * STRIDE,
					 (uint64_t)(i * 7 % N) * STRIDE, i * 29 % STRIDE);
	block[N] = epf_p2p_block(N * (uint64_t)STRIDE, N * (uint64_t)STRIDE + 1, LONG);
	for (int round = 0; round < 12; round++) {
		enum epf_p2p_float type = 1 + round % 3;
		bool is_read = round % 2;
		struct epf_p2p_xfer *x;
		uint8_t *from = is_read ? p.there : p.here, *to = is_read ? p.here : p.there;
		uint8_t *want = malloc(BYTES);

		assert_non_null(want);
		force(p.near, p.conn, round < 6 ? GAIN_PACKED : GAIN_PLAIN);
		assert_ok(epf_p2p_set_float(p.near, p.region, type));
		for (uint64_t i = 0; i < BYTES; i++) {
			from[i] = (uint8_t)(pattern(i) + round);
			to[i] = 0x77;
		}
		memset(want, 0x77, BYTES);
		for (uint32_t i = 0; i <= N; i++) {
			uint64_t l = block[i].lo & 0xffffffffffffull,
				 r = block[i].hi & 0xffffffffffffull;

			memcpy(want + (is_read ? l : r), from + (is_read ? r : l),
			       block[i].lo >> 48 | block[i].hi >> 48 << 16);
		}
		assert_ok(epf_p2p_prepare(
			p.near, p.conn, is_read ? EPF_P2P_OP_READ : EPF_P2P_OP_WRITE,
			&(struct epf_p2p_vector){ p.region, p.import, block, N + 1 }, 1, NULL, &x));
		assert_ok(epf_p2p_post(x, NULL, 0));
		assert_ok(epf_p2p_wait(x, 20 * SECOND));
		epf_p2p_xfer_free(x);
		assert_memory_equal(to, want, BYTES);
		free(want);
	}
	pair_end(&p);
}

/* Values get shorter; what is below the size, of no type or empty goes as it is. */
static void test_counts(void **state)
{
	struct epf_p2p_peer peer;
	struct pair p;

	(void)state;
	pair_begin(&p, "p2p-compress=split p2p-compress-min=4096", "p2p-compress=full");
	force(p.near, p.conn, GAIN_PACKED);
	assert_ok(write_some(&p, 0));
	assert_ok(write_some(&p, 4095));
	assert_int_equal(about(p.near, p.conn).packed_from, 0);
	assert_ok(write_some(&p, BYTES - 1));
	memset(p.here, 0, BYTES);
	assert_ok(read_some(&p, BYTES - 1));
	for (uint64_t i = 0; i < BYTES - 1; i++)
		assert_int_equal(p.here[i], i % 2 ? (i % 1024 == 1 ? 0xff : 0x3f) : pattern(i));
	peer = about(p.near, p.conn);
	assert_int_equal(peer.packed_from, 2 * (BYTES - 1));
	assert_true(peer.packed_to < peer.packed_from * 6 / 10);
	assert_ok(epf_p2p_set_float(p.near, p.region, EPF_P2P_NO_FLOAT));
	assert_ok(write_some(&p, BYTES));
	assert_int_equal(about(p.near, p.conn).packed_from, peer.packed_from);
	assert_err(epf_p2p_set_float(p.near, p.region, 9), EINVAL);
	assert_err(epf_p2p_set_float(p.near, p.region + 1, EPF_P2P_BF16), ENOENT);
	pair_end(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_agreement),
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_counts),
	};

	nic = argc > 1 ? argv[1] : "tcp";
	if (!epf_p2p_codec_exists())
		return 77; /* a build without libzstd */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
