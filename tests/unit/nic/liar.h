/* SPDX-License-Identifier: Apache-2.0 */
/* A NIC that breaks one assumption of the engine on purpose: to see each check of tools/prove fail. For test_prove.c. */
#ifndef EPF_TESTS_LIAR_H
#define EPF_TESTS_LIAR_H

struct epf_nic;

enum lie {
	LIE_NONE,
	LIE_CUTS_WRITES,   /* the last byte is missing */
	LIE_WRITES_BEYOND, /* one byte more is written */
	LIE_CUTS_READS,
	LIE_INLINE_LATE,  /* inline payload is read after post() has returned */
	LIE_IMM_31_BITS,  /* the highest bit of immediates is lost */
	LIE_IMM_LOST,     /* one immediate is never reported */
	LIE_WRONG_LENGTH, /* arrivals report one byte more */
	LIE_CUTS_MESSAGES,
	LIE_LOSES_MESSAGE,   /* the fiftieth */
	LIE_IMM_FIRST,       /* the immediate comes before the bytes */
	LIE_SENT_EARLY,      /* completes and writes nothing */
	LIE_B_SENDS_NOTHING, /* the same at b */
	LIE_OTHER_LANES,     /* the same on lanes other than 0 */
	LIE_REORDERS,        /* two notifications are swapped */
	LIE_REORDERS_WRITES, /* two writes are swapped */
	LIE_COMPLETES_TWICE,
	LIE_LOSES_WRITE, /* takes one, and does nothing */
	LIE_LOSES_LAST,  /* the same with number 199 */
	LIE_WRONG_LANE,
	LIE_REGISTERS_ONE, /* refuses to register more than one region */
	LIE_ADDS_ONE_MORE,
	LIE_MOVES_INTO_BOUNDS, /* what lies beyond a region is written into it */
	LIE_ALL_RIGHTS,
	LIE_KEEPS_KEYS, /* of withdrawn regions */
	LIE_MENDS_OWN_KEY,
	LIE_FLUSHED_IS_OK,
	LIE_FENCES_NEIGHBOUR,
	LIE_OWN_RECEIVES,
	LIE_RNR_IS_OK,
	LIE_NO_FENCE,
	LIE_LOSES_FLUSHED,
	LIE_STALE_COMPLETION, /* of a lane that is no more */
	LIE_HIDES_ERRORS,
	LIE_LINK_STAYS_UP,
	LIE_SMALL_MESSAGES, /* of itself: 1 KiB at most */
	LIE_LIVE_PEER_DOWN,
	LIE_NEVER_WAKES,
	LIE_TAKES_DEPTH_0,
	LIE_CUTS_LONG_WRITES,
	LIE_OVERFLOWS, /* completions of the 128th of a lane are lost */
	LIE_ONE_KEY_FOR_ALL,
	LIES,
};

/* What the next liar_wrap()s do. */
extern enum lie liar_lie;

/* As prove_opts.wrap. */
void liar_wrap(struct epf_nic **nic, int end);

#endif
