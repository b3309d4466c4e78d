/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a block keeps in its multiprocessor's shared memory: while counts are exchanged, and while rows move. There is no room for both side by side, so they lie in
 * the same memory, but for what few ranks need of both: the marks come first, and what else such ranks use ends where the marks of many do.
 */
#ifndef EPF_KERNELS_HT_SHARED_CUH
#define EPF_KERNELS_HT_SHARED_CUH

#include "kernels/ht/epf_ht_net.cuh"

#define HT_THREADS 512u /* at most, of a block */
#define HT_STEPS   8u   /* tokens of a thread in a batch */

#define HT_FEW (LL_LANES > 1u ? HT_FEW_GPU : HT_FEW_CPU)

/* What a block knows of each member of its node. */
struct ht_mark {
	uint64_t at;     /* where it stores rows for that rank: address of row 0; 0: it must not */
	uint64_t window; /* of that rank, as it is mapped here */
	uint32_t room;   /* rows that fit there */
	uint32_t rank;
	uint32_t
		first; /* dispatch: index there of this rank's first row; combine: of the first of its rows for this rank, here */
	uint32_t rows; /* combine: of these */
	uint32_t arrived; /* combine: so many of them have, the first ones; UINT32_MAX: all */
	uint32_t parts;   /* combine: the same in parts; the clerk's */
};

/* Where what travels with rows goes at a member: to its outputs, or to its window. */
struct ht_beside {
	uint64_t index; /* int64; in the window int32 */
	uint64_t weights;
	uint64_t scales;
	uint64_t numbers;   /* 0: they lie behind the scales */
	uint32_t stride[2]; /* of scales: as out_stride */
	uint32_t in_window;
};

/* While counts are exchanged. */
struct ht_counting {
	struct ht_mark marks[HT_FEW]; /* of few ranks */

	union {
		uint8_t seen[HT_STEPS * HT_THREADS]; /* until this rank's counts are sent */
		uint32_t kept[HT_FEW * (2u * HT_FEW + 2u)];
	} u;

	uint32_t entries[HT_LOCAL_MAX];
	uint32_t flags[HT_RANKS_MAX], in[HT_RANKS_MAX]; /* of many ranks */
};

/* While rows move. */
struct ht_moving {
	struct ht_mark marks[HT_NODE_MAX];
	struct ht_beside beside[HT_BESIDE_RANKS +
				1u]; /* the last one is this rank's outputs, in larger nodes */
};

union ht_shared {
	struct ht_counting counting;
	struct ht_moving moving;
};

EPF_STATIC_ASSERT(sizeof(struct ht_counting) <= sizeof(struct ht_moving),
		  "a kernel that only moves rows needs no more than these");
EPF_STATIC_ASSERT(offsetof(struct ht_counting, flags) + 3u * HT_FEW * sizeof(uint32_t) <=
			  offsetof(struct ht_moving, beside),
		  "few ranks may have both");

EPF_DEV_FN union ht_shared *ht_shared(void)
{
	EPF_DEV_SHARED union ht_shared shared;

	return &shared;
}

/* Whether each token of a batch goes to the rank, a byte a token. */
EPF_DEV_FN uint8_t *ht_seen(void)
{
	return ht_shared()->counting.u.seen;
}

EPF_STATIC_ASSERT(2 * HT_RANKS_MAX <= HT_LOCAL_MAX,
		  "ht_sizes() keeps two words a rank in ht_entries()");

/* Entries of each expert of the rank. */
EPF_DEV_FN uint32_t *ht_entries(void)
{
	return ht_shared()->counting.entries;
}

/* What each of few ranks has sent, but for entries: [ranks][ht_counts_experts()]. */
EPF_DEV_FN uint32_t *ht_kept(void)
{
	return ht_shared()->counting.u.kept;
}

EPF_DEV_FN struct ht_mark *ht_marks(void)
{
	return ht_shared()->moving.marks;
}

/* Of the members of a small node, then of this rank in a larger one; the last is none. */
EPF_DEV_FN struct ht_beside *ht_besides(void)
{
	return ht_shared()->moving.beside;
}

#endif
