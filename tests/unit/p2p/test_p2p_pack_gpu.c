/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed transfers between memory of the fake GPU, over a NIC (argv[1]), with a stand-in for nvCOMP (tests/unit/gpu/nvcomp_standin.c): bit for bit,
 * under the rights and the life of exports, with damaged chunks, failing GPUs and the death of the peer. argv[2] and argv[3]: a variable of the
 * stand-in's that makes it unfit, so that all goes as it is. (Without any nvCOMP: test_p2p_pack.)
 */
#include "tests/unit/gpu/nvcomp_standin.h"
#include "tests/unit/p2p/pack_kit.h"

#include "fabric/gpu/coder.h"

#include <signal.h>
#include <unistd.h>

static struct nvcomp_standin *const standin = &nvcomp_standin;

/* One chunk: no second thread opens a coder meanwhile, which tries it out. */
enum { PART = 1 << 20 };

static void set(int *word, int value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static void gpu_pair(struct pair *p, const char *near, const char *far)
{
	char a[100], b[100];

	snprintf(a, sizeof(a), "gpu-backend=fake p2p-compress=%s", near);
	snprintf(b, sizeof(b), "gpu-backend=fake p2p-compress=%s", far);
	set(&standin->hold, 0); /* a test that failed may have left them */
	set(&standin->fail, 0);
	set(&standin->damage, 0);
	pair_begin_in(p, a, true, b, true);
	assert_true(pack_conn(p->near, p->conn)->packs_gpu);
	for (int i = 0; i < PACK_GAINS; i++)
		pack_conn(p->near, p->conn)->pack->gain[i].forced = GAIN_PACKED;
}

static uint64_t packed_from(const struct pair *p)
{
	return pack_about(p->near, p->conn).packed_from;
}

/* Everything goes as it is where one end has no nvCOMP, or does not compress; the bytes are right. */
static void test_without(void **state)
{
	struct pair p;

	(void)state;
	pair_begin_in(&p, "gpu-backend=fake p2p-compress=full", true,
		      "gpu-backend=fake p2p-compress=full", true);
	assert_false(pack_conn(p.near, p.conn)->packs_gpu);
	assert_int_equal(pack_about(p.near, p.conn).compress, 2);
	pack_force(p.near, p.conn, GAIN_PACKED);
	assert_ok(write_some(&p, BYTES));
	must_match(&p, BYTES);
	memset(p.here, 0, BYTES);
	assert_ok(read_some(&p, BYTES));
	must_match(&p, BYTES);
	assert_int_equal(packed_from(&p), 0);
	pair_end(&p);
}

/* Memory of a GPU at one end only goes as it is, also where both could compress; a peer whose GPU has none. */
static void test_mixed(void **state)
{
	static const struct {
		const char *far;
		bool near_gpu, far_gpu, agreed;
	} with[] = {
		{ "gpu-backend=fake p2p-compress=full", true, false, true },
		{ "gpu-backend=fake p2p-compress=full", false, true, true },
		{ "gpu-backend=none p2p-compress=full", false, false, false },
		{ "gpu-backend=fake p2p-compress=none", true, true, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(with) / sizeof(with[0]); i++) {
		struct pair p;

		pair_begin_in(&p, "gpu-backend=fake p2p-compress=full", with[i].near_gpu,
			      with[i].far, with[i].far_gpu);
		assert_int_equal(pack_conn(p.near, p.conn)->packs_gpu, with[i].agreed);
		if (pack_conn(p.near, p.conn)->pack)
			pack_force(p.near, p.conn, GAIN_PACKED);
		assert_ok(write_some(&p, BYTES));
		must_match(&p, BYTES);
		memset(p.here, 0, BYTES);
		assert_ok(read_some(&p, BYTES));
		must_match(&p, BYTES);
		assert_int_equal(packed_from(&p),
				 with[i].near_gpu || with[i].far_gpu ? 0 : 2 * BYTES);
		pair_end(&p);
	}
}

/* Odd blocks, apart and shuffled, and a long one, of every type and both ways, compressed and not: what is between the blocks stays. */
static void test_blocks(void **state)
{
	enum { N = 300, STRIDE = 3001 };

	struct epf_p2p_block block[N + 1];
	uint32_t rest = BYTES - (N + 1) * STRIDE;
	struct pair p;

	(void)state;
	gpu_pair(&p, "full", "full");
	for (uint32_t i = 0; i < N; i++)
		block[i] = epf_p2p_block((uint64_t)(N - 1 - i) * STRIDE,
					 (uint64_t)(i * 7 % N) * STRIDE, i * 29 % STRIDE);
	block[N] = epf_p2p_block(N * (uint64_t)STRIDE, N * (uint64_t)STRIDE + 1, rest);
	for (int round = 0; round < 16; round++) {
		enum epf_p2p_float type = (enum epf_p2p_float)(1 + round / 2 % 4);
		bool is_read = round % 2;
		uint8_t *from = is_read ? p.there : p.here, *to = is_read ? p.here : p.there;
		uint8_t *want = malloc(BYTES);
		struct epf_p2p_xfer *x;

		assert_non_null(want);
		for (int i = 0; i < PACK_GAINS; i++)
			pack_conn(p.near, p.conn)->pack->gain[i].forced =
				round < 8 ? GAIN_PACKED : GAIN_PLAIN;
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
	assert_true(standin->expanded > 0);
	pair_end(&p);
}

/* The exponents become half as long, what does not shrink is stored, and short, empty and untyped transfers go as they are. */
static void test_counts(void **state)
{
	struct epf_p2p_peer peer;
	struct pair p;

	(void)state;
	gpu_pair(&p, "split", "full");
	assert_ok(write_some(&p, 0));
	assert_ok(write_some(&p, BYTES - 1));
	must_match(&p, BYTES - 1);
	memset(p.here, 0, BYTES);
	assert_ok(read_some(&p, BYTES - 1));
	must_match(&p, BYTES - 1);
	peer = pack_about(p.near, p.conn);
	assert_int_equal(peer.packed_from, 2 * (BYTES - 1));
	assert_true(peer.packed_to < peer.packed_from * 8 / 10);
	assert_ok(epf_p2p_set_float(p.near, p.region, EPF_P2P_NO_FLOAT));
	assert_ok(write_some(&p, BYTES));
	assert_int_equal(packed_from(&p), peer.packed_from);
	for (uint64_t i = 0; i < BYTES; i++)
		p.here[i] = (uint8_t)(pattern(i) ^ i >> 8);
	assert_ok(epf_p2p_set_float(p.near, p.region, EPF_P2P_FP8));
	assert_ok(write_some(&p, BYTES));
	must_match(&p, BYTES);
	assert_true(pack_about(p.near, p.conn).packed_to >= peer.packed_to + BYTES);
	pair_end(&p);
}

/*
 * Chunks of GPU memory are measured apart from those of the host, and go as they are while compression does not pay. (What pays is
 * test_p2p_gain's.)
 */
static void test_off(void **state)
{
	struct gain *g;
	struct pack *k;
	struct pair p;

	(void)state;
	gpu_pair(&p, "split", "split");
	k = pack_conn(p.near, p.conn)->pack;
	g = &k->gain[2];
	pthread_mutex_lock(&k->lock);
	memset(g, 0, sizeof(*g));
	pthread_mutex_unlock(&k->lock);
	assert_ok(write_some(&p, PART));
	assert_int_equal(g->begun, 1);
	assert_int_equal(k->gain[0].begun + k->gain[1].begun + k->gain[3].begun, 0);
	assert_int_equal(packed_from(&p), PART); /* the first window is compressed */
	pthread_mutex_lock(&k->lock);
	g->way = GAIN_FREE;
	g->rounds = 1000;
	pthread_mutex_unlock(&k->lock);
	assert_ok(write_some(&p, BYTES));
	must_match(&p, BYTES);
	assert_int_equal(packed_from(&p), PART);
	assert_int_equal(epf_p2p_pack_state(pack_conn(p.near, p.conn)), PACK_OFF);
	pair_end(&p);
}

/* A GPU or a library that fails at the sender: all goes as it is. */
static void test_failing(void **state)
{
	struct pair p;

	(void)state;
	gpu_pair(&p, "full", "full");
	set(&standin->fail, 1);
	assert_ok(write_some(&p, BYTES));
	must_match(&p, BYTES);
	assert_int_equal(packed_from(&p), 0);
	assert_true(pack_conn(p.near, p.conn)->pack->gpu_failed);
	assert_ok(write_some(&p, BYTES));
	set(&standin->fail, 0);
	pair_end(&p);
	gpu_pair(&p, "full", "full");
	set(&standin->fail, 1); /* at the peer that is read from */
	assert_err(read_some(&p, BYTES), EIO);
	set(&standin->fail, 0);
	pair_end(&p);
}

/* A chunk that was damaged on its way ends the connection, and memory is as it was. */
static void test_damaged(void **state)
{
	(void)state;
	for (int is_read = 0; is_read < 2; is_read++) {
		uint8_t *to;
		struct pair p;

		gpu_pair(&p, "split", "split");
		to = is_read ? p.here : p.there;
		memset(p.there, 0x3f, BYTES);
		memset(to, 0x11, BYTES);
		set(&standin->damage, 1);
		assert_err(is_read ? read_some(&p, PART) : write_some(&p, PART), ECONNRESET);
		set(&standin->damage, 0);
		for (uint32_t i = 0; i < PART; i++)
			if (to[i] != 0x11)
				fail_msg("byte %u was written by a damaged chunk", i);
		pair_end(&p);
	}
}

static enum pack_state state_of(struct conn *c, const struct pack_slot *s)
{
	enum pack_state state;

	pthread_mutex_lock(&c->pack->lock);
	state = s->state;
	pthread_mutex_unlock(&c->pack->lock);
	return state;
}

static void occupy(struct conn *c, struct pack_slot *s, enum pack_state state)
{
	pthread_mutex_lock(&c->pack->lock);
	s->state = state;
	__atomic_fetch_add(&c->pack->busy, 1u, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&c->pack->lock);
}

/* The checksum of zeros (kernels/pack). */
static uint64_t sum_of_zeros(uint32_t bytes)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < (bytes + 3) / 4; i++)
		sum += 0x9e3779b9ull * ((2 * i + 1) * 0x9e3779b97f4a7c15ull);
	return sum;
}

/* A chunk of 64 zero bytes as bf16, stored, as a head and a message announce it; each case is wrong in one way, but for the first. */
static const struct {
	const char *what;
	struct msg_chunk m; /* is_gpu, and what is not 0 in place of the right one */
	uint32_t length[2], body;
	uint32_t size, parts;
	int lie; /* added to the sum */
	bool lives;
} heads[] = {

#define STORED EPF_PACK_STORED
#define GPU              \
 {                       \
  .is_gpu = 1, .type = 1 \
 }
	{ "a good one", GPU, { 32 | STORED, 32 | STORED }, 64, 2, 2, 0, true },
	{ "a host's chunk for a GPU",
	  { .is_gpu = 0, .type = 1 },
	  { 32 | STORED, 32 | STORED },
	  64,
	  2,
	  2,
	  0,
	  true },
	{ "neither", { .is_gpu = 2, .type = 1 }, { 32 | STORED, 32 | STORED }, 64, 2, 2, 0, false },
	{ "a chunk longer than a slot",
	  { .is_gpu = 1, .type = 1, .packed = EPF_CODER_ROOM + 1 },
	  { 32 | STORED, 32 | STORED },
	  64,
	  2,
	  2,
	  0,
	  false },
	{ "no whole head",
	  { .is_gpu = 1, .type = 1, .packed = 8 },
	  { 32 | STORED, 32 | STORED },
	  64,
	  2,
	  2,
	  0,
	  false },
	{ "another type than announced",
	  { .is_gpu = 1, .type = 3 },
	  { 32 | STORED, 32 | STORED },
	  64,
	  2,
	  2,
	  0,
	  false },
	{ "another sum", GPU, { 32 | STORED, 32 | STORED }, 64, 2, 2, 1, false },
	{ "too many parts", GPU, { 32 | STORED, 32 | STORED }, 64, 2, UINT32_MAX, 0, false },
	{ "a part behind the end", GPU, { 32 | STORED, 1u << 30 }, 64, 2, 2, 0, false },
	{ "an empty part", GPU, { 0, 32 | STORED }, 32, 2, 2, 0, false },
	{ "a stored part that is too long", GPU, { 48 | STORED, 32 | STORED }, 80, 2, 2, 0, false },
	{ "zeros that are no coded bytes", GPU, { 31, 32 | STORED }, 64, 2, 2, 0, false },
	{ "bytes behind the last part", GPU, { 32 | STORED, 32 | STORED }, 80, 2, 2, 0, false },
#undef GPU
#undef STORED
};

/* Puts such a chunk into the peer's slot 0, without announcing it. Returns its length. */
static uint32_t plant(struct conn *c, struct pack_slot *s, size_t i)
{
	struct epf_coder_head head = { .bytes = 64,
				       .size = heads[i].size,
				       .parts = heads[i].parts,
				       .length = { heads[i].length[0], heads[i].length[1] },
				       .sum = sum_of_zeros(64) + (unsigned)heads[i].lie };
	uint8_t *at = epf_p2p_pack_out(c->pack, false, 0);

	memset(at, 0, sizeof(head) + 256);
	memcpy(at, &head, sizeof(head));
	s->packed = sizeof(head) + heads[i].body;
	s->is_packed = true;
	occupy(c, s, SLOT_RESERVED);
	assert_ok(epf_p2p_pack_put(c, s));
	while (state_of(c, s) == SLOT_PUT || state_of(c, s) == SLOT_FLUSHING)
		usleep(1000); /* the endpoint's thread frees it */
	return s->packed;
}

/* Heads that lie, and chunks of the wrong kind of memory: each ends the connection or is refused, and memory is as it was. */
static void test_hostile(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
		struct {
			struct msg_chunk m;
			struct piece piece;
		} raw = { .m = heads[i].m, .piece.bytes = 64 };

		uint32_t packed;
		struct pack_slot *s;
		struct export_key k;
		struct conn *c;
		struct pair p;

		gpu_pair(&p, "full", "full");
		c = pack_conn(p.near, p.conn);
		memcpy(&k, p.key, sizeof(k));
		assert_ok(write_some(&p, 64)); /* then the peer's staging memory is known */
		s = epf_p2p_pack_slot(c->pack, false, false, 0);
		packed = plant(c, s, i);
		memset(p.there, i ? 0x11 : 0, BYTES);
		raw.m.n = 1;
		raw.m.bytes = 64;
		raw.m.export_slot = k.slot;
		raw.m.generation = k.generation;
		if (!raw.m.packed)
			raw.m.packed = packed;
		occupy(c, s, SLOT_ASKED);
		assert_ok(epf_p2p_send(&c->stream, MSG_CHUNK, &raw, sizeof(raw), NULL, 0));
		for (int w = 0;
		     w < 2000 && !pack_about(p.near, p.conn).state && state_of(c, s) == SLOT_ASKED;
		     w++)
			usleep(10000);
		if ((pack_about(p.near, p.conn).state == 0) != heads[i].lives)
			fail_msg("%s: the connection is %s", heads[i].what,
				 heads[i].lives ? "lost" : "alive");
		for (uint32_t j = 0; j < BYTES; j++)
			assert_int_equal(p.there[j], i ? 0x11 : 0);
		pair_end(&p);
	}
}

/* A withdrawal waits for the chunk that is being expanded; the next one is refused. */
static void test_withdrawal(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, PART);
	struct epf_p2p_xfer *x;
	struct pair p;

	(void)state;
	gpu_pair(&p, "split", "split");
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ p.region, p.import, &block, 1 }, 1,
				  NULL, &x));
	set(&standin->held, 0);
	set(&standin->hold, 1);
	assert_ok(epf_p2p_post(x, NULL, 0));
	for (int i = 0; i < 20000 && !__atomic_load_n(&standin->held, __ATOMIC_ACQUIRE); i++) {
		(void)epf_p2p_test(x);
		usleep(1000);
	}
	assert_int_equal(standin->held, 1);
	assert_err(epf_p2p_withdraw(p.far, p.key, 50 * MILLISECOND), ETIMEDOUT);
	assert_non_null(strstr(epf_last_error(), "peer near"));
	set(&standin->hold, 0);
	assert_ok(epf_p2p_withdraw(p.far, p.key, 10 * SECOND));
	assert_ok(epf_p2p_wait(x, 20 * SECOND));
	must_match(&p, PART);
	memset(p.there, 0x11, BYTES); /* its owner may use it again */
	assert_err(write_some(&p, BYTES), EKEYREVOKED);
	for (uint32_t i = 0; i < BYTES; i++)
		assert_int_equal(p.there[i], 0x11);
	epf_p2p_xfer_free(x);
	pair_end(&p);
}

/* A transfer ends at its deadline although the peer's GPU does not; a later one waits, so that it is not overwritten. */
static void test_deadline(void **state)
{
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .deadline_ns = 200 * MILLISECOND };
	struct epf_p2p_block block = epf_p2p_block(0, 0, 65536);
	struct epf_p2p_vector v;
	struct epf_p2p_xfer *x, *later;
	struct pair p;

	(void)state;
	gpu_pair(&p, "split", "split");
	v = (struct epf_p2p_vector){ p.region, p.import, &block, 1 };
	assert_ok(write_some(&p, BYTES));
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE, &v, 1, &o, &x));
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE, &v, 1, NULL, &later));
	set(&standin->hold, 1);
	memset(p.here, 1, 65536);
	assert_ok(epf_p2p_post(x, NULL, 0));
	assert_err(epf_p2p_wait(x, 20 * SECOND), ETIMEDOUT);
	epf_p2p_xfer_free(x);
	memset(p.here, 2, 65536);
	assert_ok(epf_p2p_post(later, NULL, 0));
	for (int i = 0; i < 100; i++)
		assert_int_equal(epf_p2p_test(later), 0);
	set(&standin->hold, 0);
	assert_ok(epf_p2p_wait(later, 20 * SECOND));
	must_match(&p, 65536);
	epf_p2p_xfer_free(later);
	pair_end(&p);
}

/* The peer decides what it lets others do with its GPU's memory. */
static void test_rights(void **state)
{
	struct import *i;
	struct pair p;

	(void)state;
	gpu_pair(&p, "split", "split");
	pack_export(&p, EPF_P2P_READ, 0);
	i = epf_p2p_slot_get(&p.near->imports, p.import);
	i->key.rights = EPF_P2P_READ | EPF_P2P_WRITE; /* a peer that does not check itself */
	assert_ok(read_some(&p, BYTES));
	assert_err(write_some(&p, BYTES), EACCES);
	pack_export(&p, EPF_P2P_WRITE, 0);
	i = epf_p2p_slot_get(&p.near->imports, p.import);
	i->key.bytes = BYTES + 4096;
	assert_err(epf_p2p_write(p.near, p.conn, p.region, 0, p.import, 4096, BYTES, 10 * SECOND),
		   EACCES);
	pack_export(&p, EPF_P2P_READ | EPF_P2P_WRITE, 100 * MILLISECOND);
	usleep(150000);
	assert_err(write_some(&p, BYTES), EKEYEXPIRED);
	pair_end(&p);
}

/* Disconnecting, or closing, in the middle: transfers end, and nothing hangs. */
static void test_disconnect(void **state)
{
	(void)state;
	for (int round = 0; round < 6; round++) {
		struct epf_p2p_block block = epf_p2p_block(0, 0, BYTES);
		struct epf_p2p_xfer *x;
		struct pair p;
		int rc;

		gpu_pair(&p, "full", "full");
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
	enum { QUARTER = BYTES / 4 };
	struct worker *w = arg;
	struct pair *p = w->p;
	uint8_t *want = malloc(QUARTER);

	for (int round = 0; round < 6 && !w->rc; round++) {
		memset(p->here + w->from, round * 8 + (int)(w->from >> 18), QUARTER / 2);
		memcpy(want, p->here + w->from, QUARTER);
		w->rc = epf_p2p_write(p->near, p->conn, p->region, w->from, p->import, w->from,
				      QUARTER, 20 * SECOND);
		memset(p->here + w->from, 0, QUARTER);
		if (!w->rc)
			w->rc = epf_p2p_read(p->near, p->conn, p->region, w->from, p->import,
					     w->from, QUARTER, 20 * SECOND);
		if (!w->rc && memcmp(want, p->here + w->from, QUARTER) != 0)
			w->rc = -EIO;
	}
	free(want);
	return NULL;
}

/* Several threads at once, each with its own part, while the measurement switches as it likes: each has a coder of its own. */
static void test_threads(void **state)
{
	struct worker w[4];
	pthread_t t[4];
	struct pair p;

	(void)state;
	gpu_pair(&p, "split", "full");
	for (int i = 0; i < PACK_GAINS; i++)
		pack_conn(p.near, p.conn)->pack->gain[i].forced = GAIN_WAIT;
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
	(void)state;
	if (!SEES_NICS)
		skip();
	for (int is_read = 0; is_read < 2; is_read++) {
		struct both b;
		int rc = 0;

		both_begin(&b, T_GPU, T_GPU, "near", "far-target",
			   pack_settings("p2p-compress=split gpu-backend=fake"));
		for (int i = 0; i < PACK_GAINS; i++)
			pack_conn(b.ep, b.conn)->pack->gain[i].forced = GAIN_PACKED;
		assert_ok(epf_p2p_set_float(b.ep, b.region, EPF_P2P_BF16));
		assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
		assert_int_equal(sum_there(&b), sum_of(b.bytes));
		assert_int_equal(pack_about(b.ep, b.conn).packed_from, TARGET_BYTES);
		kill(b.t.pid, SIGKILL);
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

int main(int argc, char **argv)
{
	const struct CMUnitTest without[] = { cmocka_unit_test(test_without) };
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed), /* first: its target is forked */
		cmocka_unit_test(test_mixed),      cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_counts),     cmocka_unit_test(test_off),
		cmocka_unit_test(test_failing),    cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_hostile),    cmocka_unit_test(test_withdrawal),
		cmocka_unit_test(test_deadline),   cmocka_unit_test(test_rights),
		cmocka_unit_test(test_disconnect), cmocka_unit_test(test_threads),
	};

	pack_nic = argc > 1 ? argv[1] : "tcp";
	if (!epf_p2p_codec_exists())
		return 77; /* a build without libzstd */
	if (argc > 3 && setenv(argv[2], argv[3], 1) == 0)
		return cmocka_run_group_tests(without, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
