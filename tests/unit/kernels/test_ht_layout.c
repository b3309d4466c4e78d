/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a batch for more ranks than one node has: which tokens go to which node. The kernel as plain C, without a rig. */
#include "kernels/ht/epf_ht_plan.cuh"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokens_go_to_the_node_of_their_experts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
