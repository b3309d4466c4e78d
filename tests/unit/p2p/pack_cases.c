/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed transfers between memory of the host and between memory of the fake GPU (pack_cases.h). */
#include "tests/unit/p2p/pack_cases.h"

#include <signal.h>
#include <unistd.h>

void pack_case_blocks(void **state)
{
	enum { N = 300, STRIDE = 3001, TYPES = 4 };

	struct epf_p2p_block block[N + 1];
	uint32_t rest = BYTES - (N + 1) * STRIDE;
	struct pair p;

	(void)state;
	pair_begin(&p, "p2p-compress=full", "p2p-compress=full");
	for (uint32_t i = 0; i < N; i++)
		block[i] = epf_p2p_block((uint64_t)(N - 1 - i) * STRIDE,
					 (uint64_t)(i * 7 % N) * STRIDE, i * 29 % STRIDE);
	block[N] = epf_p2p_block(N * (uint64_t)STRIDE, N * (uint64_t)STRIDE + 1, rest);
	for (int round = 0; round < (SEES_NICS ? 4 : 2) * TYPES; round++) {
		enum epf_p2p_float type = (enum epf_p2p_float)(1 + round / 2 % TYPES);
		bool is_read = round % 2;
		uint8_t *from = is_read ? p.there : p.here, *to = is_read ? p.here : p.there;
		uint8_t *want = malloc(BYTES);
		struct epf_p2p_xfer *x;

		assert_non_null(want);
		pack_force(p.near, p.conn, round < 2 * TYPES ? GAIN_PACKED : GAIN_PLAIN);
		assert_ok(epf_p2p_set_float(p.near, p.region, type));
		for (uint64_t i = 0; i < BYTES; i++) {
			from[i] = (uint8_t)(i > BYTES / 2 ? i % 8 + (unsigned)round
							  : pattern(i) + (unsigned)round);
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
		if (SEES_NICS)
			assert_memory_equal(to, want, BYTES);
		free(want);
	}
	assert_true(pack_about(p.near, p.conn).packed_from > 0);
	pair_end(&p);
}

void pack_case_rights(void **state)
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

/* True if a write ends before the key expires, which lives so long. */
static bool is_written_in(struct pair *p, uint64_t life_ns)
{
	int rc;

	assert_ok(epf_p2p_export(p->far, p->far_region, 0, BYTES, EPF_P2P_READ | EPF_P2P_WRITE, 0,
				 life_ns, p->key));
	rc = epf_p2p_import(p->near, p->conn, p->key, 10 * SECOND, &p->import);
	if (!rc)
		rc = write_some(p, 1000);
	if (rc)
		assert_true(rc == -EKEYEXPIRED || rc == -EKEYREVOKED);
	return !rc;
}

void pack_case_life(void **state)
{
	uint64_t life_ns = 100 * MILLISECOND;
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
	/* A busy machine may not write before the key expires: then again, with twice the time. */
	while (!is_written_in(&p, life_ns))
		life_ns *= 2;
	usleep((useconds_t)(life_ns / 1000 * 3 / 2));
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

void pack_case_deadline(void (*stall)(struct pair *p, bool on))
{
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .deadline_ns = 200 * MILLISECOND };
	struct epf_p2p_block block = epf_p2p_block(0, 0, 65536);
	struct epf_p2p_vector v;
	struct epf_p2p_xfer *x, *later;
	struct pair p;

	pair_begin(&p, "p2p-compress=split", "p2p-compress=split");
	v = (struct epf_p2p_vector){ p.region, p.import, &block, 1 };
	pack_force(p.near, p.conn, GAIN_PACKED);
	assert_ok(write_some(&p, BYTES));
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE, &v, 1, NULL, &later));
	stall(&p, true);
	memset(p.here, 1, 65536);
	/* A busy machine may not ask the peer before the deadline: then again, with twice the time. */
	for (o.deadline_ns = 200 * MILLISECOND; !pack_conn(p.near, p.conn)->pack->stale;
	     o.deadline_ns *= 2) {
		assert_true(o.deadline_ns < 200 * SECOND);
		assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE, &v, 1, &o, &x));
		assert_ok(epf_p2p_post(x, NULL, 0));
		assert_err(epf_p2p_wait(x, 400 * SECOND), ETIMEDOUT);
		epf_p2p_xfer_free(x);
	}
	assert_int_equal(pack_conn(p.near, p.conn)->pack->stale, 1);
	pack_force(p.near, p.conn, GAIN_PLAIN);
	memset(p.here, 2, 65536);
	assert_ok(epf_p2p_post(later, NULL, 0));
	for (int i = 0; i < 1000; i++)
		assert_int_equal(epf_p2p_test(later), 0);
	assert_int_equal(later->cursor, 0);
	stall(&p, false);
	assert_ok(epf_p2p_wait(later, 20 * SECOND));
	must_match(&p, 65536);
	assert_int_equal(pack_conn(p.near, p.conn)->pack->stale, 0);
	epf_p2p_xfer_free(later);
	pair_end(&p);
}

void pack_case_disconnect(void **state)
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
		if (round % 3 == 1)
			p.far = NULL;
		pair_end(&p);
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

void pack_case_threads(void **state)
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

void pack_case_killed(void **state)
{
	const enum target_memory memory = pack_gpu ? T_GPU : T_MMAP;
	struct both b;
	int rc = 0;

	(void)state;
	if (!SEES_NICS)
		skip();
	for (int is_read = 0; is_read < 2; is_read++) {
		both_begin(&b, memory, memory, "near", "far-target",
			   pack_settings("p2p-compress=split"));
		pack_force(b.ep, b.conn, GAIN_PACKED);
		assert_ok(epf_p2p_set_float(b.ep, b.region, EPF_P2P_BF16));
		assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
		assert_int_equal(sum_there(&b), sum_of(b.bytes));
		assert_int_equal(pack_about(b.ep, b.conn).packed_from, TARGET_BYTES);
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
