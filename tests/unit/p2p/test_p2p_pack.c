/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed transfers over a NIC (argv[1]), between two endpoints of this process or with a target in another one: bit for bit, under the
 * rights and the life of exports, and through the death of the peer. Whether compression saves time is not asked: tests force it both ways.
 */
#include "tests/unit/p2p/p2p_kit.h"

#include "fabric/p2p/pack_priv.h"

#include <signal.h>
#include <unistd.h>

/* ThreadSanitizer sees no order through a socket or another process: what a NIC has moved is then not looked at, and nothing is forked. */
#ifdef __SANITIZE_THREAD__
enum { SEES_NICS = 0 };
#else
enum { SEES_NICS = 1 };
#endif

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

static void must_match(const struct pair *p, uint64_t bytes)
{
	if (SEES_NICS)
		assert_memory_equal(p->here, p->there, bytes);
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
			must_match(&p, BYTES);
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
	for (int round = 0; round < (SEES_NICS ? 12 : 6); round++) {
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

/* A notification is seen after the values, which are expanded by another thread than the one that takes it. */
static void test_note(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, BYTES);
	struct epf_p2p_event e = { .kind = 0 };
	struct epf_p2p_xfer *x;
	struct pair p;

	(void)state;
	pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
	force(p.near, p.conn, GAIN_PACKED);
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ p.region, p.import, &block, 1 }, 1,
				  NULL, &x));
	for (int round = 0; round < 10; round++) {
		memset(p.here + BYTES / 2, round + 1, BYTES / 2);
		assert_ok(epf_p2p_post(x, "there",
				       5)); /* nobody waits: the endpoints' threads do it all */
		while (e.kind != EPF_P2P_NOTE) {
			epf_p2p_event_free(&e);
			assert_ok(epf_p2p_wait_event(p.far, 20 * SECOND));
			assert_int_equal(epf_p2p_events(p.far, &e, 1), 1);
		}
		must_match(&p, BYTES);
		epf_p2p_event_free(&e);
		e.kind = 0;
		assert_ok(epf_p2p_wait(x, 0));
	}
	epf_p2p_xfer_free(x);
	pair_end(&p);
}

/* The peer checks rights, range and that this peer has imported the export, whatever it is asked for. */
static void test_rights(void **state)
{
	uint8_t other[EPF_P2P_KEY_BYTES];
	struct export_key k;
	struct import *i;
	struct pair p;

	(void)state;
	pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
	force(p.near, p.conn, GAIN_PACKED);
	export(&p, EPF_P2P_READ, 0);
	i = epf_p2p_slot_get(&p.near->imports, p.import);
	i->key.rights = EPF_P2P_READ | EPF_P2P_WRITE; /* a peer that does not check itself */
	assert_ok(read_some(&p, BYTES));
	assert_err(write_some(&p, BYTES), EACCES);
	assert_ok(epf_p2p_export(p.far, p.far_region, 0, BYTES, EPF_P2P_WRITE, 0, 0, other));
	memcpy(&k, other, sizeof(k));
	i->key.slot = k.slot;
	i->key.generation = k.generation;
	assert_err(write_some(&p, BYTES), EACCES); /* never imported */
	export(&p, EPF_P2P_WRITE, 0);
	i = epf_p2p_slot_get(&p.near->imports, p.import);
	i->key.bytes = BYTES + 4096;
	assert_err(epf_p2p_write(p.near, p.conn, p.region, 0, p.import, 4096, BYTES, 10 * SECOND),
		   EACCES);
	i->key.rights = EPF_P2P_READ | EPF_P2P_WRITE;
	assert_err(read_some(&p, BYTES), EACCES);
	i->key.bytes = BYTES;
	assert_ok(write_some(&p, BYTES));
	must_match(&p, BYTES);
	pair_end(&p);
}

/* Chunks end with an export: by its time, and by its withdrawal, which waits for one that is being expanded and names its peer. */
static void test_life(void **state)
{
	struct conn *back;
	struct export_key k;
	struct pair p;
	uint64_t conn;
	int rc;

	(void)state;
	pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
	force(p.near, p.conn, GAIN_PACKED);
	assert_ok(write_some(&p, BYTES));
	memcpy(&k, p.key, sizeof(k));
	assert_ok(epf_p2p_accept(p.far, 10 * SECOND, &conn));
	back = conn_of(p.far, conn);
	pthread_mutex_lock(&p.far->lock);
	back->chunk = p.far->export_at[k.slot]; /* as while a chunk is expanded */
	pthread_mutex_unlock(&p.far->lock);
	assert_err(epf_p2p_withdraw(p.far, p.key, SECOND / 20), ETIMEDOUT);
	assert_non_null(strstr(epf_last_error(), "peer near"));
	epf_p2p_export_unpin(back);
	memset(p.here, 7, BYTES);
	assert_err(write_some(&p, BYTES), EKEYREVOKED);
	assert_err(read_some(&p, BYTES), EKEYREVOKED);
	assert_ok(epf_p2p_withdraw(p.far, p.key, 5 * SECOND));
	assert_err(write_some(&p, BYTES), EKEYREVOKED);
	assert_int_not_equal(p.there[0], 7);
	export(&p, EPF_P2P_READ | EPF_P2P_WRITE, 3600 * SECOND);
	memcpy(&k, p.key, sizeof(k));
	pthread_mutex_lock(&p.far->lock);
	p.far->export_at[k.slot]->expires_ns = 1; /* the thread that looks for it is late */
	pthread_mutex_unlock(&p.far->lock);
	assert_err(write_some(&p, BYTES), EKEYEXPIRED);
	export(&p, EPF_P2P_READ | EPF_P2P_WRITE, SECOND / 10);
	assert_ok(write_some(&p, 1000));
	usleep(150000);
	assert_err(write_some(&p, BYTES), EKEYEXPIRED);
	assert_err(read_some(&p, BYTES), EKEYEXPIRED);
	/* Plain ones are refused by the engine, once it knows. */
	assert_ok(epf_p2p_set_float(p.near, p.region, EPF_P2P_NO_FLOAT));
	while ((rc = write_some(&p, 1000)) == 0)
		;
	assert_err(rc, EKEYREVOKED);
	assert_err(read_some(&p, 1000), EKEYREVOKED);
	assert_ok(epf_p2p_withdraw(p.far, p.key, 5 * SECOND));
	pair_end(&p);
}

/*
 * A transfer fails at its deadline although the peer does not answer; what it may still write there does not overwrite what a later
 * transfer writes, which therefore waits.
 */
static void test_deadline(void **state)
{
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .deadline_ns = SECOND / 5 };
	struct epf_p2p_block block = epf_p2p_block(0, 0, 65536);
	struct epf_p2p_vector v;
	struct epf_p2p_xfer *x, *later;
	struct pair p;

	(void)state;
	pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
	v = (struct epf_p2p_vector){ p.region, p.import, &block, 1 };
	force(p.near, p.conn, GAIN_PACKED);
	assert_ok(write_some(&p, BYTES));
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE, &v, 1, &o, &x));
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE, &v, 1, NULL, &later));
	pthread_mutex_lock(&p.far->lock); /* stalls the thread that expands */
	memset(p.here, 1, 65536);
	assert_ok(epf_p2p_post(x, NULL, 0));
	assert_err(epf_p2p_wait(x, 20 * SECOND), ETIMEDOUT);
	epf_p2p_xfer_free(x);
	assert_int_equal(conn_of(p.near, p.conn)->pack->stale, 1);
	force(p.near, p.conn, GAIN_PLAIN);
	memset(p.here, 2, 65536);
	assert_ok(epf_p2p_post(later, NULL, 0));
	for (int i = 0; i < 1000; i++)
		assert_int_equal(epf_p2p_test(later), 0);
	assert_int_equal(later->cursor, 0);
	pthread_mutex_unlock(&p.far->lock);
	assert_ok(epf_p2p_wait(later, 20 * SECOND));
	must_match(&p, 65536);
	assert_int_equal(conn_of(p.near, p.conn)->pack->stale, 0);
	epf_p2p_xfer_free(later);
	pair_end(&p);
}

/* Disconnecting, or closing, in the middle: transfers end, nothing hangs, slots do not keep what is freed. */
static void test_disconnect(void **state)
{
	(void)state;
	for (int round = 0; round < 6; round++) {
		struct epf_p2p_block block = epf_p2p_block(0, 0, BYTES);
		struct epf_p2p_xfer *x;
		struct pair p;
		int rc;

		pair_begin(&p, "p2p-compress=full", "p2p-compress=full");
		force(p.near, p.conn, round % 2 ? GAIN_PACKED : GAIN_PLAIN);
		assert_ok(epf_p2p_prepare(
			p.near, p.conn, round < 3 ? EPF_P2P_OP_WRITE : EPF_P2P_OP_READ,
			&(struct epf_p2p_vector){ p.region, p.import, &block, 1 }, 1, NULL, &x));
		assert_ok(epf_p2p_post(x, NULL, 0));
		for (int i = 0; i < round; i++)
			(void)epf_p2p_test(x);
		if (round % 3 == 1)
			epf_p2p_close(p.far);
		else if (round % 3 == 2)
			assert_ok(epf_p2p_disconnect(p.near, p.conn, 10 * SECOND));
		if (round % 3) {
			rc = epf_p2p_wait(x, 20 * SECOND);
			assert_true(rc == 0 || rc == -EPIPE || rc == -ECANCELED ||
				    rc == -ECONNRESET);
			assert_ok(epf_p2p_deregister(p.near, p.region, 10 * SECOND));
		}
		epf_p2p_close(p.near);
		if (round % 3 != 1)
			epf_p2p_close(p.far);
		free(p.here);
		free(p.there);
	}
}

struct worker {
	struct pair *p;
	uint64_t from;
	int rc;
};

static void *work(void *arg)
{
	enum { PART = BYTES / 4 };
	struct worker *w = arg;
	struct pair *p = w->p;
	uint8_t *want = malloc(PART);

	for (int round = 0; round < 12 && !w->rc; round++) {
		memset(p->here + w->from, round * 8 + (int)(w->from >> 18), PART / 2);
		memcpy(want, p->here + w->from, PART);
		w->rc = epf_p2p_write(p->near, p->conn, p->region, w->from, p->import, w->from,
				      PART, 20 * SECOND);
		memset(p->here + w->from, 0, PART);
		if (!w->rc)
			w->rc = epf_p2p_read(p->near, p->conn, p->region, w->from, p->import,
					     w->from, PART, 20 * SECOND);
		if (!w->rc && memcmp(want, p->here + w->from, PART) != 0)
			w->rc = -EIO;
	}
	free(want);
	return NULL;
}

/* Several threads at once, each with its own part, while the measurement switches as it likes. */
static void test_threads(void **state)
{
	struct worker w[4];
	pthread_t t[4];
	struct pair p;

	(void)state;
	pair_begin(&p, "p2p-compress=split", "p2p-compress=full");
	for (uint64_t i = 0; i < 4; i++) {
		w[i] = (struct worker){ .p = &p, .from = i * (BYTES / 4) };
		assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(w[i].rc, 0);
	}
	pair_end(&p);
}

static void test_killed(void **state)
{
	struct both b;
	int rc = 0;

	(void)state;
	if (!SEES_NICS)
		skip();
	for (int is_read = 0; is_read < 2; is_read++) {
		both_begin(&b, T_MMAP, T_MMAP, "near", "far-target",
			   settings("p2p-compress=split"));
		force(b.ep, b.conn, GAIN_PACKED);
		assert_ok(epf_p2p_set_float(b.ep, b.region, EPF_P2P_BF16));
		assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
		assert_int_equal(sum_there(&b), sum_of(b.bytes));
		kill(b.t.pid, SIGKILL);
		rc = 0;
		for (int i = 0; i < 100000 && !rc; i++)
			rc = (is_read ? epf_p2p_read : epf_p2p_write)(
				b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 10 * SECOND);
		target_kill(&b.t);
		assert_err(rc, ECONNRESET);
		assert_non_null(strstr(epf_last_error(), "far-target"));
		assert_ok(epf_p2p_deregister(b.ep, b.region, 5 * SECOND));
		assert_ok(epf_p2p_disconnect(b.ep, b.conn, 5 * SECOND));
		both_end_here(&b);
	}
}

struct raw {
	struct msg_chunk m;
	struct piece piece[CHUNK_PIECES + 1];
};

/* What a peer of this program could never send. The chunk of 64 values that `good` announces is not in the slot. */
static const struct {
	const char *what;
	struct msg_chunk m;
	uint32_t piece, more; /* bytes of each piece; bytes at the end of the message */
} bad[] = {
	{ "a slot beyond the last", { .slot = PACK_SLOTS, .n = 1, .bytes = 64, .type = 1 }, 64, 0 },
	{ "a read of more than its pieces",
	  { .is_read = 1, .n = 1, .bytes = 1u << 30, .type = 1 },
	  64,
	  0 },
	{ "neither a read nor a write", { .is_read = 2, .n = 1, .bytes = 64, .type = 1 }, 64, 0 },
	{ "no pieces", { .n = 0, .bytes = 0, .type = 1 }, 0, 0 },
	{ "more pieces than fit", { .n = CHUNK_PIECES + 1, .bytes = 129, .type = 1 }, 1, 0 },
	{ "2^32 - 1 pieces", { .n = UINT32_MAX, .bytes = 64, .type = 1 }, 64, 0 },
	{ "pieces of another length", { .n = 2, .bytes = 64, .type = 1 }, 64, 0 },
	{ "more than a chunk",
	  { .n = 2, .bytes = CODEC_BYTES + 2, .type = 1 },
	  CODEC_BYTES / 2 + 1,
	  0 },
	{ "a sum that wraps", { .n = 2, .bytes = 0, .type = 1 }, 1u << 31, 0 },
	{ "a chunk longer than a slot",
	  { .n = 1, .bytes = 64, .type = 1, .packed = CODEC_ROOM + 1 },
	  64,
	  0 },
	{ "no type", { .n = 1, .bytes = 64, .type = 0 }, 64, 0 },
	{ "a message that is too long", { .n = 1, .bytes = 64, .type = 1 }, 64, 1 },
	{ "a damaged chunk", { .n = 1, .bytes = 64, .type = 1, .packed = 50 }, 64, 0 },
	{ "an empty chunk", { .n = 1, .bytes = 64, .type = 1, .packed = 0 }, 64, 0 },
};

/* Each ends the connection, and memory is as it was. */
static void test_hostile(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct raw r = { .m = bad[i].m };
		uint32_t n = r.m.n > CHUNK_PIECES + 1 ? 1 : r.m.n;
		struct export_key k;
		struct conn *c;
		struct pair p;

		pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
		c = conn_of(p.near, p.conn);
		memcpy(&k, p.key, sizeof(k));
		r.m.export_slot = k.slot;
		r.m.generation = k.generation;
		for (uint32_t j = 0; j < n; j++)
			r.piece[j].bytes = bad[i].piece;
		assert_ok(epf_p2p_send(&c->stream, MSG_CHUNK, &r,
				       sizeof(r.m) + n * sizeof(r.piece[0]) + bad[i].more, NULL,
				       0));
		for (int w = 0; w < 2000 && !about(p.near, p.conn).state; w++)
			usleep(10000);
		if (!about(p.near, p.conn).state)
			fail_msg("%s: the connection lives", bad[i].what);
		for (uint32_t j = 0; j < BYTES; j++)
			assert_int_equal(p.there[j], 0);
		pair_end(&p);
	}
}

/* Answers that nobody asked for, and the same slot twice. */
static void test_answers(void **state)
{
	(void)state;
	for (int round = 0; round < 4; round++) {
		struct msg_chunk_done d = { .slot = round == 1 ? PACK_SLOTS : 0,
					    .is_read = round == 2 ? 2 : 0,
					    .packed = round == 3 ? CODEC_ROOM + 1 : 0 };
		struct pair p;

		pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
		assert_ok(epf_p2p_send(&conn_of(p.near, p.conn)->stream, MSG_CHUNK_DONE, &d,
				       sizeof(d), NULL, 0));
		for (int w = 0; w < 2000 && !about(p.near, p.conn).state; w++)
			usleep(10000);
		assert_int_not_equal(about(p.near, p.conn).state, 0);
		pair_end(&p);
	}
}

/* A slot that is in use is not used again: a peer cannot make this end keep more than its slots. */
static void test_busy(void **state)
{
	struct raw r = { .m = { .n = 1, .bytes = 64, .type = EPF_P2P_BF16 }, .piece[0].bytes = 64 };
	struct conn *back;
	struct pair p;
	uint64_t conn;

	(void)state;
	pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
	assert_ok(epf_p2p_accept(p.far, 10 * SECOND, &conn));
	back = conn_of(p.far, conn);
	pthread_mutex_lock(&back->pack->lock);
	epf_p2p_pack_slot(back->pack, true, false, 0)->state = SLOT_RESERVED;
	pthread_mutex_unlock(&back->pack->lock);
	assert_ok(epf_p2p_send(&conn_of(p.near, p.conn)->stream, MSG_CHUNK, &r,
			       sizeof(r.m) + sizeof(r.piece[0]), NULL, 0));
	for (int w = 0; w < 2000 && !about(p.far, conn).state; w++)
		usleep(10000);
	assert_err(about(p.far, conn).state, ECONNRESET);
	assert_err(epf_p2p_notify(p.far, conn, "x", 1, SECOND), ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "no message"));
	pair_end(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_agreement), cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_counts),    cmocka_unit_test(test_note),
		cmocka_unit_test(test_rights),    cmocka_unit_test(test_life),
		cmocka_unit_test(test_deadline),  cmocka_unit_test(test_disconnect),
		cmocka_unit_test(test_threads),   cmocka_unit_test(test_killed),
		cmocka_unit_test(test_hostile),   cmocka_unit_test(test_answers),
		cmocka_unit_test(test_busy),
	};

	nic = argc > 1 ? argv[1] : "tcp";
	if (!epf_p2p_codec_exists())
		return 77; /* a build without libzstd */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
