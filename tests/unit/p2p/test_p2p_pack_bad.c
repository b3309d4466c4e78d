/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed chunks that no peer of this program sends (fabric/p2p/pack_peer.c): each ends the connection, and memory is as it was. */
#include "tests/unit/p2p/pack_kit.h"

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
		c = pack_conn(p.near, p.conn);
		memcpy(&k, p.key, sizeof(k));
		r.m.export_slot = k.slot;
		r.m.generation = k.generation;
		for (uint32_t j = 0; j < n; j++)
			r.piece[j].bytes = bad[i].piece;
		assert_ok(epf_p2p_send(&c->stream, MSG_CHUNK, &r,
				       sizeof(r.m) + n * sizeof(r.piece[0]) + bad[i].more, NULL,
				       0));
		if (!pack_ends(p.near, p.conn))
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
		assert_ok(epf_p2p_send(&pack_conn(p.near, p.conn)->stream, MSG_CHUNK_DONE, &d,
				       sizeof(d), NULL, 0));
		assert_true(pack_ends(p.near, p.conn));
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
	back = pack_conn(p.far, conn);
	pthread_mutex_lock(&back->pack->lock);
	epf_p2p_pack_slot(back->pack, true, false, 0)->state = SLOT_RESERVED;
	pthread_mutex_unlock(&back->pack->lock);
	assert_ok(epf_p2p_send(&pack_conn(p.near, p.conn)->stream, MSG_CHUNK, &r,
			       sizeof(r.m) + sizeof(r.piece[0]), NULL, 0));
	assert_true(pack_ends(p.far, conn));
	assert_err(pack_about(p.far, conn).state, ECONNRESET);
	assert_err(epf_p2p_notify(p.far, conn, "x", 1, SECOND), ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "no message"));
	pair_end(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_busy),
	};

	pack_nic = "emu";
	if (!epf_p2p_codec_exists())
		return 77; /* a build without libzstd */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
