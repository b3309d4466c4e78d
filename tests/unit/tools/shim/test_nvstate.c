/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device code finds: the structures are read back by plain byte offsets, as a kernel compiled elsewhere reads them; and which releases
 * are served.
 */
#include "tools/shim/nvstate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static uint64_t u64(const void *p, size_t at)
{
	uint64_t v;

	memcpy(&v, (const uint8_t *)p + at, 8);
	return v;
}

static uint32_t u32(const void *p, size_t at)
{
	uint32_t v;

	memcpy(&v, (const uint8_t *)p + at, 4);
	return v;
}

static const struct epf_nv_job job = { .rank = 2,
				       .world = 4,
				       .node_rank = 0,
				       .node_world = 2,
				       .rings_per_pe = 72,
				       .layout = EPF_NV_3_4_5 };

static void test_states(void **state)
{
	const struct epf_nv_places at = { .heap = 0x7f0000000000,
					  .heap_bytes = 1 << 20,
					  .p2p = 0x1000,
					  .remote = 0x2000,
					  .teams = 0x3000,
					  .psync = 0x4000,
					  .sync_counter = 0x5000,
					  .channel = 0x6000,
					  .channel_words = 0x7000,
					  .device_words = 0x8000,
					  .rcs = 0x9000,
					  .cqs = 0xa000,
					  .more_rkeys = 0xb000 };
	static struct epf_nv_host_state h;
	static struct epf_nv_ibgda_state g;

	epf_nv_fill(&job, &at, &h, &g);
	assert_int_equal(u32(&h, 0), 1 << 16 | 776);
	assert_int_equal(u32(&h, 4), 2);
	assert_int_equal(u32(&h, 8), 4);
	assert_int_equal(u32(&h, 16), 2);
	assert_int_equal(u32(&h, 24), 2); /* the proxy serves everything */
	assert_int_equal(u32(&h, 32), 8); /* barriers do not use loads and stores */
	assert_true(u64(&h, 40) == at.heap && u64(&h, 48) == at.heap_bytes);
	assert_true(u64(&h, 56) == at.p2p && u64(&h, 64) == at.remote);
	assert_true(u64(&h, 96) == at.teams && u64(&h, 104) == at.psync &&
		    u64(&h, 112) == at.sync_counter);
	assert_true(u32(&h, 124) >= 2 && u32(&h, 128) >= 2);
	/* Device code scales the synchronisation words by these; epf_nv_psync_words() counts with 0. */
	assert_true(u64(&h, 152) == 0 && u64(&h, 168) == 0 && u64(&h, 200) == 0);
	assert_int_equal(u64(&h, 632), at.channel);
	assert_int_equal(u64(&h, 736), 1 << 22);
	assert_int_equal(u32(&h, 744), 22);
	assert_int_equal(((const uint8_t *)&h)[768], 0);
	/* What the host writes and what the GPU writes lie in lines of their own. */
	for (size_t a = 688; a <= 728; a += 8)
		for (size_t b = a + 8; b <= 728; b += 8)
			assert_true(u64(&h, a) / 64 != u64(&h, b) / 64);

	assert_int_equal(u32(&g, 0), 1 << 16 | 8384);
	assert_int_equal(u32(&g, 28), 72);
	assert_int_equal(u64(&g, 40), 40);
	assert_int_equal(u32(&g, 48), 1);
	assert_int_equal(((const uint8_t *)&g)[55], 0);
	assert_int_equal(u32(&g, 56), __builtin_bswap32(0xef50beef));
	assert_int_equal(u64(&g, 64), at.heap + at.heap_bytes);
	for (unsigned pe = 0; pe < 64; pe++) {
		assert_int_equal(u32(&g, 1080 + 16 * pe), __builtin_bswap32(0xef50a000 | pe));
		assert_int_equal(u64(&g, 1088 + 16 * pe), at.heap_bytes);
	}
	assert_true(u64(&g, 8272) == at.rcs && u64(&g, 8304) == at.more_rkeys);
	for (enum epf_nv_layout l = EPF_NV_3_4_5; l <= EPF_NV_3_8_0; l++) {
		struct epf_nv_job later = job;

		later.layout = l;
		epf_nv_fill(&later, &at, &h, &g);
		assert_int_equal(u32(&h, 0), 1 << 16 | (l == EPF_NV_3_8_0 ? 848
							: l == EPF_NV_3_7 ? 816
									  : 776));
	}
}

static void test_ring(void **state)
{
	const struct epf_nv_ring_places at = { .slots = 0x1000,
					       .wakeup = 0x2000,
					       .cqe = 0x3000,
					       .dbrec = 0x4000,
					       .cq = 0x5000,
					       .cons_idx = 0x6000,
					       .number = 7,
					       .depth = 32768 };
	struct epf_nv_qp qp;
	struct epf_nv_cq cq;

	epf_nv_fill_ring(&at, &qp, &cq);
	assert_int_equal(u32(&qp, 8), 7);
	assert_int_equal(u64(&qp, 24), UINT64_C(1) << 45);
	assert_int_equal(u32(&qp, 32), __builtin_bswap32(0xef50bead));
	assert_int_equal(u32(&qp, 40) & 0xffff, 32768);
	assert_true(u64(&qp, 48) == 0x1000 && u64(&qp, 56) == 0x4000 && u64(&qp, 64) == 0x2000 &&
		    u64(&qp, 72) == 0x5000);
	for (size_t i = 92; i < 184; i += 4)
		assert_int_equal(u32(&qp, i), 0); /* the kernels' own counters and lock */
	assert_true(u64(&cq, 16) == 0x3000 && u64(&cq, 32) == 0x6000);
	assert_int_equal(u32(&cq, 60), 32768);
}

static void test_teams(void **state)
{
	struct epf_nv_job j = job;
	struct epf_nv_team t;
	int32_t map[8];

	epf_nv_fill_team(&j, 6, 0, 2, 2, 0xabc0, &t, map);
	assert_int_equal(u32(&t, 0), 2 << 16 | 792);
	assert_int_equal(u32(&t, 4), 1); /* rank 2 is its member 1 */
	assert_true(u32(&t, 8) == 0 && u32(&t, 12) == 2 && u32(&t, 16) == 2 && u32(&t, 20) == 6);
	assert_int_equal(u64(&t, 784), 0xabc0);
	assert_true(map[0] == 0 && map[1] == 2);
	assert_true(map[2] == 0 && map[3] == -1 && map[4] == 1 && map[5] == -1);
	j.layout = epf_nv_layout((struct epf_nv_version){ 3, 5, 19 }, NULL, 0);
	epf_nv_fill_team(&j, 6, 1, 2, 2, 0xabc0, &t, map);
	assert_int_equal(u32(&t, 0), 2 << 16 | 800);
	assert_int_equal(u32(&t, 4), (uint32_t)-1);
	assert_true(u64(&t, 784) == 0 && u64(&t, 792) == 0xabc0);
	/* The two last fields changed places. */
	j.layout = epf_nv_layout((struct epf_nv_version){ 3, 5, 21 }, NULL, 0);
	epf_nv_fill_team(&j, 6, 1, 2, 2, 0xabc0, &t, map);
	assert_int_equal(u32(&t, 0), 2 << 16 | 800);
	assert_true(u64(&t, 784) == 0xabc0 && u64(&t, 792) == 0);
	j.layout = epf_nv_layout((struct epf_nv_version){ 3, 6, 5 }, NULL, 0);
	epf_nv_fill_team(&j, 6, 1, 2, 2, 0xabc0, &t, map);
	assert_int_equal(u32(&t, 0), 2 << 16 | 800);
	j.layout = epf_nv_layout((struct epf_nv_version){ 3, 7, 2 }, NULL, 0);
	epf_nv_fill_team(&j, 6, 1, 2, 2, 0xabc0, &t, map);
	assert_int_equal(u32(&t, 0), 2 << 16 | 808);
	j.layout = epf_nv_layout((struct epf_nv_version){ 3, 8, 0 }, NULL, 0);
	epf_nv_fill_team(&j, 6, 1, 2, 2, 0xabc0, &t, map);
	assert_int_equal(u32(&t, 0), 2 << 16 | 816);
	assert_true(u64(&t, 784) == 0xabc0 && u64(&t, 792) == 0);
}

static void test_versions(void **state)
{
	static const struct epf_nv_version refused[] = {
		{ 3, 4, 4 },  { 3, 3, 9 }, { 3, 5, 0 },  { 3, 5, 18 }, { 3, 5, 20 },
		{ 3, 5, 22 }, { 3, 6, 0 }, { 3, 6, 4 },  { 3, 7, 3 },  { 3, 8, 1 },
		{ 2, 11, 0 }, { 4, 0, 0 }, { -1, 0, 7 },
	};
	char text[240];

	assert_int_equal(epf_nv_layout((struct epf_nv_version){ 3, 4, 5 }, NULL, 0), EPF_NV_3_4_5);
	assert_int_equal(epf_nv_layout((struct epf_nv_version){ 3, 5, 1 }, NULL, 0), EPF_NV_3_5_1);
	assert_int_equal(epf_nv_layout((struct epf_nv_version){ 3, 5, 19 }, NULL, 0),
			 EPF_NV_3_5_19);
	assert_int_equal(epf_nv_layout((struct epf_nv_version){ 3, 5, 21 }, NULL, 0),
			 EPF_NV_3_5_21);
	assert_int_equal(epf_nv_layout((struct epf_nv_version){ 3, 6, 5 }, NULL, 0), EPF_NV_3_6_5);
	for (int patch = 0; patch < 3; patch++)
		assert_int_equal(epf_nv_layout((struct epf_nv_version){ 3, 7, patch }, NULL, 0),
				 EPF_NV_3_7);
	assert_int_equal(epf_nv_layout((struct epf_nv_version){ 3, 8, 0 }, NULL, 0), EPF_NV_3_8_0);
	/* Words between two teams, as the releases' device code counts them. */
	assert_int_equal(epf_nv_psync_words(EPF_NV_3_4_5, 16), 16 * 27648);
	assert_int_equal(epf_nv_psync_words(EPF_NV_3_5_1, 16), 16 * 27648 + 16);
	assert_int_equal(epf_nv_psync_words(EPF_NV_3_5_19, 16), 20 * 27648 + 16);
	assert_int_equal(epf_nv_psync_words(EPF_NV_3_5_21, 4096), 20 * 27648 + 4096);
	assert_int_equal(epf_nv_psync_words(EPF_NV_3_5_21, 3), 20 * 27648 + 3);
	assert_int_equal(epf_nv_psync_words(EPF_NV_3_6_5, 3), 20 * 27648 + 4);
	assert_int_equal(epf_nv_psync_words(EPF_NV_3_8_0, 4), 20 * 27648 + 4);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		char number[40];

		assert_int_equal(epf_nv_layout(refused[i], text, sizeof(text)), EPF_NV_NONE);
		snprintf(number, sizeof(number), "%d.%d.%d", refused[i].major, refused[i].minor,
			 refused[i].patch);
		assert_non_null(strstr(text, number));
		assert_non_null(strstr(text, "3.4.5, 3.5.1"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_states),
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_teams),
		cmocka_unit_test(test_versions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
