/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency kit from inside: what its ranks (ll_kit.c) and its inputs and checks (ll_kit_data.c) share. */
#ifndef EPF_TESTS_LL_KIT_IMPL_H
#define EPF_TESTS_LL_KIT_IMPL_H

#include "tests/ref/ref.h"
#include "tests/unit/kernels/ll_kit.h"

#include <stdint.h>

struct epf_boot;
struct epf_boot_group;

enum { POISON = 0xa5, STATS_BEFORE = 1000 };

/* Memory of one rank and one case. */
struct tensors {
	uint16_t *x, *y, *out;
	int64_t *topk, *range, *waits;
	float *weights;
	uint8_t *recv;
	uint32_t *scales;
	int32_t *count, *info, *slot, *stats, *row;
};

struct batch {
	struct ll_kit_case c;
	struct tensors t[LL_KIT_RANKS];
	struct ref_job ref;
	const int64_t *ref_topk[LL_KIT_RANKS];
	const float *ref_weights[LL_KIT_RANKS];
	const uint16_t *ref_x[LL_KIT_RANKS];
	int64_t *ref_own[LL_KIT_RANKS]; /* topk without what absent ranks would hold */
	int ref_tokens[LL_KIT_RANKS];
	uint16_t *row; /* scratch of expert_row */
};

struct ll_kit {
	struct ll_kit_options o;
	struct epf_boot_group *group;
	struct epf_boot *boot[LL_KIT_RANKS];
	struct epf *ep[LL_KIT_RANKS];
	void *memory[LL_KIT_RANKS];
	struct epf_ll *ll[LL_KIT_RANKS];
	struct batch batch[2];

	struct ll_kit_turns {
		struct epf *ep;
		uint64_t count;
	} turns[LL_KIT_RANKS];

	uint64_t hash;
};

/* Inputs of all ranks, the reference's job, and what the experts put out. b->c is set, all else zero. */
void ll_kit_make(struct ll_kit *k, struct batch *b);
void ll_kit_free(struct ll_kit *k, struct batch *b);

/* What a dispatch, or a combine, of all ranks gave, byte for byte; adds it to k->hash. */
void ll_kit_check_received(struct ll_kit *k, struct batch *b);
void ll_kit_check_combined(struct ll_kit *k, struct batch *b);

#endif
