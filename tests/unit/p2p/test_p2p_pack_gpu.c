/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed transfers between memory of the fake GPU, over a NIC (argv[1]), with a stand-in for nvCOMP (tests/unit/gpu/nvcomp_standin.c): what
 * holds of the host's memory too (pack_cases.h), damaged and lying chunks, failing GPUs. argv[2] and argv[3]: a variable of the stand-in's that
 * makes it unfit, so that all goes as it is. (Without any nvCOMP: test_p2p_pack.)
 */
#include "tests/unit/gpu/nvcomp_standin.h"
#include "tests/unit/p2p/pack_cases.h"

#include "fabric/gpu/coder.h"

#include <unistd.h>

static struct nvcomp_standin *const standin = &nvcomp_standin;

/* One chunk: no second thread opens a coder meanwhile, which tries it out. */
enum { PART = 1 << 20 };

static void set(int *word, int value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static int get(const int *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void gpu_pair(struct pair *p, const char *near, const char *far)
{
	set(&standin->hold, 0); /* a test that failed may have left them */
	set(&standin->hang, 0);
	set(&standin->fail, 0);
	set(&standin->damage, 0);
	pair_begin(p, near, far);
	assert_true(pack_conn(p->near, p->conn)->packs_gpu);
	pack_force(p->near, p->conn, GAIN_PACKED);
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
	pair_begin(&p, "p2p-compress=full", "p2p-compress=full");
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
		{ "p2p-compress=full", true, false, true },
		{ "p2p-compress=full", false, true, true },
		{ "gpu-backend=none p2p-compress=full", false, false, false },
		{ "p2p-compress=none", true, true, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(with) / sizeof(with[0]); i++) {
		struct pair p;

		pair_begin_in(&p, "p2p-compress=full", with[i].near_gpu, with[i].far,
			      with[i].far_gpu);
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

/* The exponents become half as long, what does not shrink is stored, and short, empty and untyped transfers go as they are. */
static void test_counts(void **state)
{
	struct epf_p2p_peer peer;
	struct pair p;

	(void)state;
	gpu_pair(&p, "p2p-compress=split", "p2p-compress=full");
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
	gpu_pair(&p, "p2p-compress=split", "p2p-compress=split");
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
	gpu_pair(&p, "p2p-compress=full", "p2p-compress=full");
	set(&standin->fail, 1);
	assert_ok(write_some(&p, BYTES));
	must_match(&p, BYTES);
	assert_int_equal(packed_from(&p), 0);
	assert_true(pack_conn(p.near, p.conn)->pack->gpu_failed);
	assert_ok(write_some(&p, BYTES));
	set(&standin->fail, 0);
	pair_end(&p);
	gpu_pair(&p, "p2p-compress=full", "p2p-compress=full");
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

		gpu_pair(&p, "p2p-compress=split", "p2p-compress=split");
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

		gpu_pair(&p, "p2p-compress=full", "p2p-compress=full");
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
		for (int w = 0; w < 2000 && heads[i].lives && state_of(c, s) == SLOT_ASKED; w++)
			usleep(10000);
		/* A connection that ends gives up its slots before it says so. */
		if (heads[i].lives ? pack_about(p.near, p.conn).state != 0
				   : !pack_ends(p.near, p.conn))
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
	gpu_pair(&p, "p2p-compress=split", "p2p-compress=split");
	assert_ok(epf_p2p_prepare(p.near, p.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ p.region, p.import, &block, 1 }, 1,
				  NULL, &x));
	set(&standin->held, 0);
	set(&standin->hold, 1);
	assert_ok(epf_p2p_post(x, NULL, 0));
	for (int i = 0; i < 20000 && !get(&standin->held); i++) {
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

/*
 * The GPU that compresses hangs: at this end for a write, at the peer for a read. The transfer ends at its deadline and says so, what is
 * not compressed goes on, also over the same connection, and the late chunk goes nowhere. Memory that the GPU still reads stays registered.
 */
static void test_hang(void **state)
{
	struct epf_p2p_xfer_options o = { .size = sizeof(o) };
	struct epf_p2p_block block = epf_p2p_block(0, 0, PART);

	(void)state;
	for (int is_read = 0; is_read < 2; is_read++) {
		struct epf_p2p_vector v;
		struct epf_p2p_xfer *x;
		struct pair p;

		gpu_pair(&p, "p2p-compress=split", "p2p-compress=split");
		v = (struct epf_p2p_vector){ p.region, p.import, &block, 1 };
		assert_ok(write_some(&p, BYTES));
		memset(is_read ? p.there : p.here, 1, PART);
		set(&standin->held, 0);
		set(&standin->hang, 1);
		/* A busy machine may not bring a chunk to the GPU before its deadline. */
		for (o.deadline_ns = 100 * MILLISECOND; !get(&standin->held); o.deadline_ns *= 2) {
			assert_ok(epf_p2p_prepare(p.near, p.conn,
						  is_read ? EPF_P2P_OP_READ : EPF_P2P_OP_WRITE, &v,
						  1, &o, &x));
			assert_ok(epf_p2p_post(x, NULL, 0));
			assert_err(epf_p2p_wait(x, 200 * SECOND), ETIMEDOUT);
			assert_non_null(strstr(epf_last_error(), "deadline"));
			epf_p2p_xfer_free(x);
		}
		assert_ok(epf_p2p_set_float(p.near, p.region, EPF_P2P_NO_FLOAT));
		memset(p.here, 2, BYTES);
		assert_ok(write_some(&p, BYTES));
		must_match(&p, BYTES);
		assert_ok(epf_p2p_set_float(p.near, p.region, EPF_P2P_BF16));
		if (is_read)
			assert_err(epf_p2p_withdraw(p.far, p.key, 50 * MILLISECOND), ETIMEDOUT);
		else
			assert_err(epf_p2p_deregister(p.near, p.region, 50 * MILLISECOND),
				   ETIMEDOUT);
		set(&standin->hang, 0);
		pack_export(&p, EPF_P2P_READ | EPF_P2P_WRITE, 0);
		assert_ok(epf_p2p_deregister(p.near, p.region, 10 * SECOND));
		assert_ok(epf_p2p_register(p.near, p.here_memory, BYTES, 0, &p.region));
		assert_ok(epf_p2p_set_float(p.near, p.region, EPF_P2P_BF16));
		memset(p.here, 3, BYTES);
		assert_ok(write_some(&p, BYTES));
		must_match(&p, BYTES);
		pair_end(&p);
	}
}

/* An endpoint that is closed while its GPU hangs, beside the tests between these two: closing gives up after some seconds, and frees nothing. */
static struct {
	struct pair p;
	struct epf_p2p_xfer *x;
	pthread_t closing;
} stuck;

static void *close_near(void *arg)
{
	epf_p2p_close(stuck.p.near);
	return arg;
}

static void test_close_begins(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, PART);
	struct epf_p2p_vector v;

	(void)state;
	gpu_pair(&stuck.p, "p2p-compress=split", "p2p-compress=split");
	v = (struct epf_p2p_vector){ stuck.p.region, stuck.p.import, &block, 1 };
	assert_ok(write_some(&stuck.p, PART));
	assert_ok(epf_p2p_prepare(stuck.p.near, stuck.p.conn, EPF_P2P_OP_WRITE, &v, 1, NULL,
				  &stuck.x));
	set(&standin->stick, 1);
	assert_ok(epf_p2p_post(stuck.x, NULL, 0));
	for (int i = 0; i < 20000 && __atomic_load_n(&standin->stick, __ATOMIC_ACQUIRE) == 1; i++) {
		(void)epf_p2p_test(stuck.x);
		usleep(1000);
	}
	assert_int_equal(__atomic_load_n(&standin->stick, __ATOMIC_ACQUIRE), 2);
	assert_int_equal(pthread_create(&stuck.closing, NULL, close_near, NULL), 0);
}

static void test_close_ends(void **state)
{
	(void)state;
	pthread_join(stuck.closing, NULL);
	epf_p2p_close(stuck.p.far);
}

static void stall(struct pair *p, bool on)
{
	(void)p;
	set(&standin->hold, on); /* the peer's GPU */
}

static void test_deadline(void **state)
{
	(void)state;
	pack_case_deadline(stall);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest without[] = { cmocka_unit_test(test_without) };
	const struct CMUnitTest tests[] = {
		PACK_CASES,
		cmocka_unit_test(test_close_begins),
		cmocka_unit_test(test_mixed),
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_off),
		cmocka_unit_test(test_failing),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_withdrawal),
		cmocka_unit_test(test_hang),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_close_ends),
	};

	pack_gpu = true;
	pack_nic = argc > 1 ? argv[1] : "tcp";
	if (!epf_p2p_codec_exists())
		return 77; /* a build without libzstd */
	if (argc > 3 && setenv(argv[2], argv[3], 1) == 0)
		return cmocka_run_group_tests(without, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
