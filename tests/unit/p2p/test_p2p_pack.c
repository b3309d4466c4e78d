/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed transfers over a NIC (argv[1]), between two endpoints of this process or with a target in another one: bit for bit, under the
 * rights and the life of exports, and through the death of the peer. Whether compression saves time is not asked: tests force it both ways.
 */
#include "tests/unit/p2p/pack_kit.h"

#include <signal.h>
#include <unistd.h>

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
			assert_int_equal(pack_about(p.near, p.conn).compress, a < b ? a : b);
			if (a && b)
				pack_force(p.near, p.conn, GAIN_PACKED);
			assert_ok(write_some(&p, BYTES));
			must_match(&p, BYTES);
			assert_int_equal(pack_about(p.near, p.conn).packed_from,
					 a && b ? BYTES : 0);
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
		enum epf_p2p_float type = (enum epf_p2p_float)(1 + round % 3);
		bool is_read = round % 2;
		struct epf_p2p_xfer *x;
		uint8_t *from = is_read ? p.there : p.here, *to = is_read ? p.here : p.there;
		uint8_t *want = malloc(BYTES);

		assert_non_null(want);
		pack_force(p.near, p.conn, round < 6 ? GAIN_PACKED : GAIN_PLAIN);
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
	pack_force(p.near, p.conn, GAIN_PACKED);
	assert_ok(write_some(&p, 0));
	assert_ok(write_some(&p, 4095));
	assert_int_equal(pack_about(p.near, p.conn).packed_from, 0);
	assert_ok(write_some(&p, BYTES - 1));
	memset(p.here, 0, BYTES);
	assert_ok(read_some(&p, BYTES - 1));
	for (uint64_t i = 0; i < BYTES - 1; i++)
		assert_int_equal(p.here[i], i % 2 ? (i % 1024 == 1 ? 0xff : 0x3f) : pattern(i));
	peer = pack_about(p.near, p.conn);
	assert_int_equal(peer.packed_from, 2 * (BYTES - 1));
	assert_true(peer.packed_to < peer.packed_from * 6 / 10);
	assert_ok(epf_p2p_set_float(p.near, p.region, EPF_P2P_NO_FLOAT));
	assert_ok(write_some(&p, BYTES));
	assert_int_equal(pack_about(p.near, p.conn).packed_from, peer.packed_from);
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
	pack_force(p.near, p.conn, GAIN_PACKED);
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
	pack_force(p.near, p.conn, GAIN_PACKED);
	pack_export(&p, EPF_P2P_READ, 0);
	i = epf_p2p_slot_get(&p.near->imports, p.import);
	i->key.rights = EPF_P2P_READ | EPF_P2P_WRITE; /* a peer that does not check itself */
	assert_ok(read_some(&p, BYTES));
	assert_err(write_some(&p, BYTES), EACCES);
	assert_ok(epf_p2p_export(p.far, p.far_region, 0, BYTES, EPF_P2P_WRITE, 0, 0, other));
	memcpy(&k, other, sizeof(k));
	i->key.slot = k.slot;
	i->key.generation = k.generation;
	assert_err(write_some(&p, BYTES), EACCES); /* never imported */
	pack_export(&p, EPF_P2P_WRITE, 0);
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
	pack_force(p.near, p.conn, GAIN_PACKED);
	assert_ok(write_some(&p, BYTES));
	memcpy(&k, p.key, sizeof(k));
	assert_ok(epf_p2p_accept(p.far, 10 * SECOND, &conn));
	back = pack_conn(p.far, conn);
	pthread_mutex_lock(&p.far->lock);
	back->chunk = p.far->export_at[k.slot]; /* as while a chunk is expanded */
	pthread_mutex_unlock(&p.far->lock);
	assert_err(epf_p2p_withdraw(p.far, p.key, 50 * MILLISECOND), ETIMEDOUT);
	assert_non_null(strstr(epf_last_error(), "peer near"));
	epf_p2p_export_unpin(back);
	memset(p.here, 7, BYTES);
	assert_err(write_some(&p, BYTES), EKEYREVOKED);
	assert_err(read_some(&p, BYTES), EKEYREVOKED);
	assert_ok(epf_p2p_withdraw(p.far, p.key, 5 * SECOND));
	assert_err(write_some(&p, BYTES), EKEYREVOKED);
	assert_int_not_equal(p.there[0], 7);
	pack_export(&p, EPF_P2P_READ | EPF_P2P_WRITE, 3600 * SECOND);
	memcpy(&k, p.key, sizeof(k));
	pthread_mutex_lock(&p.far->lock);
	p.far->export_at[k.slot]->expires_ns = 1; /* the thread that looks for it is late */
	pthread_mutex_unlock(&p.far->lock);
	assert_err(write_some(&p, BYTES), EKEYEXPIRED);
	pack_export(&p, EPF_P2P_READ | EPF_P2P_WRITE, 100 * MILLISECOND);
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
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .deadline_ns = 200 * MILLISECOND };
	struct epf_p2p_block block = epf_p2p_block(0, 0, 65536);
	struct epf_p2p_vector v;
	struct epf_p2p_xfer *x, *later;
	struct pair p;

	(void)state;
	pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
	v = (struct epf_p2p_vector){ p.region, p.import, &block, 1 };
	pack_force(p.near, p.conn, GAIN_PACKED);
	assert_ok(write_some(&p, BYTES));
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE, &v, 1, &o, &x));
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE, &v, 1, NULL, &later));
	pthread_mutex_lock(&p.far->lock); /* stalls the thread that expands */
	memset(p.here, 1, 65536);
	assert_ok(epf_p2p_post(x, NULL, 0));
	assert_err(epf_p2p_wait(x, 20 * SECOND), ETIMEDOUT);
	epf_p2p_xfer_free(x);
	assert_int_equal(pack_conn(p.near, p.conn)->pack->stale, 1);
	pack_force(p.near, p.conn, GAIN_PLAIN);
	memset(p.here, 2, 65536);
	assert_ok(epf_p2p_post(later, NULL, 0));
	for (int i = 0; i < 1000; i++)
		assert_int_equal(epf_p2p_test(later), 0);
	assert_int_equal(later->cursor, 0);
	pthread_mutex_unlock(&p.far->lock);
	assert_ok(epf_p2p_wait(later, 20 * SECOND));
	must_match(&p, 65536);
	assert_int_equal(pack_conn(p.near, p.conn)->pack->stale, 0);
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
		pack_force(p.near, p.conn, round % 2 ? GAIN_PACKED : GAIN_PLAIN);
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
			   pack_settings("p2p-compress=split"));
		pack_force(b.ep, b.conn, GAIN_PACKED);
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

/* GPU memory at either end goes as it is. */
static void test_gpu(void **state)
{
	static const enum target_memory from[][2] = { { T_GPU, T_MMAP },
						      { T_MMAP, T_GPU },
						      { T_GPU, T_GPU } };

	(void)state;
	if (!SEES_NICS)
		skip();
	for (unsigned i = 0; i < 3; i++) {
		struct both b;

		both_begin(&b, from[i][0], from[i][1], "near", "far-target",
			   pack_settings("p2p-compress=split gpu-backend=fake"));
		pack_force(b.ep, b.conn, GAIN_PACKED);
		assert_ok(epf_p2p_set_float(b.ep, b.region, EPF_P2P_BF16));
		assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
		assert_int_equal(sum_there(&b), sum_of(b.bytes));
		memset(b.bytes, 0, TARGET_BYTES);
		assert_ok(epf_p2p_read(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
		assert_int_equal(sum_there(&b), sum_of(b.bytes));
		assert_int_equal(pack_about(b.ep, b.conn).packed_from, 0);
		both_end(&b);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_agreement), cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_counts),    cmocka_unit_test(test_note),
		cmocka_unit_test(test_rights),    cmocka_unit_test(test_life),
		cmocka_unit_test(test_deadline),  cmocka_unit_test(test_disconnect),
		cmocka_unit_test(test_threads),   cmocka_unit_test(test_killed),
		cmocka_unit_test(test_gpu),
	};

	pack_nic = argc > 1 ? argv[1] : "tcp";
	if (!epf_p2p_codec_exists())
		return 77; /* a build without libzstd */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
