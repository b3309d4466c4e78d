/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput in plain C, rows grouped by expert: what a rank has of its groups, calls that fill it in, and what must then be there. */
#ifndef EPF_TESTS_UNIT_KERNELS_HT_GROUPS_KIT_H
#define EPF_TESTS_UNIT_KERNELS_HT_GROUPS_KIT_H

#include "tests/unit/kernels/ht_kit.h"

enum { MOST = RANKS * TOKENS * TOPK + LOCAL * 16, EXPERTS = RANKS * LOCAL };

/* What a rank has of its groups. */
struct groups {
	uint16_t x[TOKENS * HIDDEN] __attribute__((aligned(16)));
	int64_t idx[TOKENS * TOPK];
	float weight[TOKENS * TOPK];
	int32_t numbers[TOKENS * TOPK], work[EPF_HT_NUMBER_PARTS * EXPERTS];
	int32_t starts[EXPERTS], counts[LOCAL], ends[LOCAL], aligned[LOCAL];
	int32_t slots[RANKS * TOKENS * TOPK];
	uint32_t source[RANKS * TOKENS];
	uint16_t out[MOST * HIDDEN] __attribute__((aligned(16)));
	uint32_t scales[MOST * SCALES];
	float weights[MOST];
	uint16_t back[RANKS * TOKENS * HIDDEN] __attribute__((aligned(16)));
	float back_weights[RANKS * TOKENS * TOPK];
};

extern struct groups of_rank[RANKS];

/* Grouped rows of a rank. */
uint32_t grouped_of(const struct batch *b, uint32_t rank);
/* A dispatch and a spread of a rank's batch. flags: EPF_HT_NUMBERED for the first ones of a routing. */
struct epf_ht_dispatch dispatch_of(struct rank *me, uint32_t flags);
struct epf_ht_spread spread_of(struct rank *me, const struct epf_ht_dispatch *d);
/* What is in front of the first dispatch of a routing. where: of its groups, filled in. */
int prepare(struct rank *me, struct epf_ht_groups *where);
/* The first dispatch of a routing. */
int group(struct rank *me);
/* Compares groups with the batch. */
void check_groups(const struct rank *me);

#endif
