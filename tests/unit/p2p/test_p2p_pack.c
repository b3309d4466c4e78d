/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed transfers over a NIC (argv[1]), between two endpoints of this process or with a target in another one: bit for bit, under the
 * rights and the life of exports, and through the death of the peer. Whether compression saves time is not asked: tests force it both ways.
 */
#include "tests/unit/p2p/pack_cases.h"

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

static void stall(struct pair *p, bool on)
{
	(on ? pthread_mutex_lock
	    : pthread_mutex_unlock)(&p->far->lock); /* of the thread that expands */
}

static void test_deadline(void **state)
{
	(void)state;
	pack_case_deadline(stall);
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
		PACK_CASES,
		cmocka_unit_test(test_agreement),
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_note),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_gpu),
	};

	pack_nic = argc > 1 ? argv[1] : "tcp";
	if (!epf_p2p_codec_exists())
		return 77; /* a build without libzstd */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
