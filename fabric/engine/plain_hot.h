/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain puts as they stand in a ring: narrow, without a signal or a count. Inline parts of put_hot.c and policy_hot.h.
 */
#ifndef EPF_FABRIC_ENGINE_PLAIN_HOT_H
#define EPF_FABRIC_ENGINE_PLAIN_HOT_H

#include "queues/epf_cmd.h"

#include <stdint.h>

/* Bits of a narrow slot: which operation, what a plain put lacks, and what makes two puts differ in more than offsets and length. */
#define PLAIN_OP_BITS     (UINT64_C(7) << 1)
#define PLAIN_OP_PUT      ((uint64_t)EPF_OP_PUT << 1)
#define PLAIN_HAS_NOT     ((uint64_t)EPF_F_COUNTED << 1 | UINT64_C(15) << 4)
#define PLAIN_RANK_BITS   (UINT64_C(0xfff) << 4)
#define PLAIN_BULK_BIT    ((uint64_t)EPF_F_BULK << 1)
#define PLAIN_REGION_BITS (UINT64_C(0xff) << 8)

/* A narrow put is plain unless it has more. Two questions: asked in one function they cost a put 1.3 % more instructions. */
EPF_INLINE int plain_is_put(struct epf_cmd c)
{
	return (c.lo & PLAIN_OP_BITS) == PLAIN_OP_PUT;
}

EPF_INLINE int plain_has_more(struct epf_cmd c)
{
	return (c.hi & PLAIN_HAS_NOT) != 0;
}

/* The target rank. */
EPF_INLINE uint32_t plain_rank(struct epf_cmd c)
{
	return (uint32_t)(c.lo & PLAIN_RANK_BITS) >> 4;
}

/* Rank, regions and class of traffic, side by side: puts with one key differ in offsets and length only. */
EPF_INLINE uint64_t plain_key(struct epf_cmd c)
{
	return (c.lo & PLAIN_RANK_BITS) | (c.hi & (PLAIN_BULK_BIT | PLAIN_REGION_BITS)) << 16;
}

EPF_INLINE uint32_t plain_bytes(struct epf_cmd c)
{
	return (((uint32_t)(c.hi >> 16) & 0xffffu) + 1u) << 4;
}

/* Offsets in the local and in the remote region. */
EPF_INLINE uint64_t plain_from(struct epf_cmd c)
{
	return (c.lo >> 32) << 4;
}

EPF_INLINE uint64_t plain_to(struct epf_cmd c)
{
	return (c.hi >> 32) << 4;
}

/* Why a run of plain puts ended although the ring holds another one. */
enum epf_put_full {
	EPF_PUT_CREDIT = 1, /* no room in its lane, or no credit */
	EPF_PUT_LEAVE =
		2, /* the same, and the ring's commands stay where they are (policy_hot.h: LEAVE_DEFERRED) */
};

struct epf_put_run {
	uint32_t lane;  /* of the last put; EPF_NONE: not known */
	uint32_t empty; /* 1: the ring is empty */
	uint32_t full;  /* enum epf_put_full, 0: the next command is no plain put */
};

#endif
