/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash functions of groups and notify handles (fabric/engine/hash_hot.h) spread what kernels use: every peer with the same few signals, numbered by kind and sender.
 */
#include "fabric/engine/hash_hot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KINDS = 4, RANKS_MAX = 256, LOCAL_MAX = 8, HEADS_MAX = 8192, SLACK_PERCENT = 130 };

static struct epf_core core;
static uint32_t chains[HEADS_MAX];

/* As many heads as the engine makes for so many entries. */
static void make_heads(uint32_t entries)
{
	uint32_t heads = EPF_GROW_HASH;

	while (heads < entries)
		heads *= 2;
	assert_true(heads <= HEADS_MAX);
	core.group_mask = heads - 1;
	memset(chains, 0, sizeof(chains));
}

/* An average look-up passes as many entries as chance would make it, or a little more. */
static void assert_spread(uint32_t entries)
{
	uint64_t hops = 0;

	for (uint32_t i = 0; i <= core.group_mask; i++)
		hops += (uint64_t)chains[i] * (chains[i] + 1) / 2;
	assert_true((double)hops / entries <=
		    SLACK_PERCENT / 100.0 * (1 + (double)entries / (core.group_mask + 1) / 2));
}

/* `local` ranks of an engine and the ranks of other nodes: low latency in two sets, dispatch and combine. */
static void groups_of(uint32_t ranks, uint32_t local)
{
	uint32_t entries = KINDS * local * (ranks - local);

	make_heads(entries);
	for (uint32_t from = 0; from < local; from++)
		for (uint32_t to = local; to < ranks; to++)
			for (uint32_t kind = 0; kind < KINDS; kind++)
				chains[group_hash(&core, from, to, kind * ranks + from)]++;
	assert_spread(entries);
}

static void test_groups_spread(void **state)
{
	(void)state;
	for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++)
		for (uint32_t local = 1; local <= LOCAL_MAX && local < ranks; local *= 2)
			groups_of(ranks, local);
}

static void test_notify_handles_spread(void **state)
{
	(void)state;
	for (uint32_t streams = 1; streams <= RANKS_MAX; streams++) {
		make_heads(KINDS * streams);
		for (uint32_t s = 0; s < streams; s++)
			for (uint32_t kind = 0; kind < KINDS; kind++)
				chains[notify_hash(&core, s, kind * streams, 1)]++;
		assert_spread(KINDS * streams);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_groups_spread),
		cmocka_unit_test(test_notify_handles_spread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
