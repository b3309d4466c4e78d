/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the high-throughput kernels as plain C, without a rig: which tokens go to which node, where there are more ranks than one node has; what
 * is added to what.
 */
#include "kernels/ht/epf_ht_combine.cuh"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LOCAL = 3, NODE = HT_NODE * LOCAL, TOPK = 2 };

/* Tokens whose only expert is the last of a node, the first of the next one, or both. */
static void tokens_go_to_the_node_of_their_experts(void **state)
{
	static const int64_t idx[][TOPK] = {
		{ NODE - 1, -1 }, { NODE, -1 }, { NODE, NODE },       { NODE - 1, NODE },
		{ -1, -1 },       { 0, 1 },     { 2 * NODE - 1, -1 },
	};
	uint32_t per_node[2] = { 77, 77 };
	struct ht_job j = { .tokens = sizeof(idx) / sizeof(idx[0]),
			    .topk = TOPK,
			    .ranks = 2 * HT_NODE,
			    .local = LOCAL,
			    .threads = 1,
			    .topk_idx = (uint64_t)(uintptr_t)idx,
			    .per_node = (uint64_t)(uintptr_t)per_node };

	ht_layout_node(&j, 0);
	ht_layout_node(&j, 1);
	assert_int_equal(per_node[0], 3);
	assert_int_equal(per_node[1], 4);
}

/* All of one piece is added, and nothing of the next. */
static void a_piece_is_added_and_no_more(void **state)
{
	enum { FLOATS = HT_VECS * 8, ONE = 0x3f80 }; /* 1.0 in bf16 */

	float sum[FLOATS + 2] = { 0 };
	struct ht_piece p[2];

	for (unsigned i = 0; i < 2 * HT_VECS * 4u; i++)
		p[i / (HT_VECS * 4u)].v[i / 4u % HT_VECS].w[i % 4u] = ONE | (uint32_t)ONE << 16;
	ht_add(sum, &p[0]);
	for (unsigned i = 0; i < FLOATS; i++)
		assert_true(sum[i] == 1.0f);
	assert_true(sum[FLOATS] == 0.0f && sum[FLOATS + 1] == 0.0f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokens_go_to_the_node_of_their_experts),
		cmocka_unit_test(a_piece_is_added_and_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
