/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the low-latency kernels and the code that launches them agree on: where things lie in communication memory, what a rank keeps in
 * memory of its device, and the argument of a launch. Included as C, CUDA and HIP; by kernels/ll only.
 *
 * Communication memory is one region with the same layout on every rank (struct ll_layout): what peers write, and what is sent. There are
 * two sets of buffers for each kind of call; the kernels alternate between them.
 */
#ifndef EPF_KERNELS_LL_JOB_H
#define EPF_KERNELS_LL_JOB_H

#include "queues/epf_cmd.h"

#include <stddef.h>
#include <stdint.h>

#define LL_LINE  128u
#define LL_WORDS 256u /* at least as many as blocks: epf_ll_words.cuh */
#define LL_TOPK  16u  /* EPF_LL_TOPK_MAX */
#define LL_BLOCK 128u /* EPF_LL_BLOCK */

#define LL_ENTRIES    4096u /* that a block keeps at hand */
#define LL_FLAG_BYTES (LL_WORDS * 2u)

/* Kinds of calls: numbers of signals, flags and counters. */
enum ll_kind {
	LL_DISPATCH = 0,
	LL_COMBINE = 1,
	LL_WEIGHTS = 2, /* no call: the first step of a combine that sums at the sender */
	LL_MEET = 3,    /* no call, the last: the meetings of epf_ll_clean() */
	LL_KINDS = 4,
};

/* Beside EPF_LL_SEND and EPF_LL_RECV in ll_job.halves: sends the other ranks the weights, in front of a SEND half that waits for theirs. */
#define LL_TELL 4u

/* Halves, as indices. */
enum ll_half {
	LL_SENDING = 0,
	LL_RECEIVING = 1,
};

/* What kernels found wrong: bits of ll_state.bad, and values of ll_peer.late. */
enum ll_bad {
	LL_BAD_EXPERT = 1, /* topk_idx names an expert that does not exist: read as -1 */
	LL_BAD_ROW = 2,    /* a slot, or a count, of an arrived row cannot be: left out */
	LL_BAD_LATE = 4,   /* a rank did not come in time */
	LL_BAD_STEP = 8,   /* a rank sent twice where once was due */
	LL_BAD_SENT = 16,  /* own commands of a call before are not retired in time */
	LL_BAD_OWED = 32,  /* a rank counted other rows than it sent */
	LL_BAD_LOST = 64,  /* a rank is lost or has closed */
};

/* The head of a row of dispatch; the payload follows: BF16, or codes and then float scales. */
struct ll_head {
	uint32_t token; /* number at its source */
	uint32_t source;
	uint32_t topk;
	uint32_t reserved;
	int32_t expert[LL_TOPK]; /* global numbers; -1: none */
	/*
	 * Which of its source's rows for that expert this is, in ascending token. Meant for the receiver's own experts only, at the first
	 * entry that names one.
	 */
	uint32_t index[LL_TOPK];
};

EPF_STATIC_ASSERT(sizeof(struct ll_head) == 144, "payload behind the head is 16-byte aligned");

/*
 * A note closes what one rank sends to another in a dispatch: uint32_t rows[local experts of the receiver], then a bitmap of the tokens that
 * go there, uint32_t [ceil(tokens_max / 32)], then uint32_t: how many tokens the rank has, whoever they go to.
 */

/*
 * What a combine's first step sends to a rank that sums: struct ll_terms, then for each token and k its entry. Entries of all ranks' experts, so that one
 * copy serves all ranks.
 */
struct ll_terms {
	uint32_t tokens;
	uint32_t reserved[3];
};

struct ll_entry {
	uint32_t what; /* LL_ENTRY | the expert; 0: none */
	float w;
};

#define LL_ENTRY 0x80000000u

/* Byte offsets in communication memory; a function of shape and ranks (layout.c). */
struct ll_layout {
	uint64_t
		flags; /* [kind][set][rank], LL_FLAG_BYTES each, written by that rank's plain stores: uint16_t [LL_WORDS]; of a meeting uint64_t */
	uint64_t out[2]; /* [local experts][ranks * tokens_max][hidden]: rows that combine sends */
	uint64_t stage[2];  /* [tokens_max] rows that dispatch sends */
	uint64_t notes[2];  /* [rank] notes to that rank */
	uint64_t inbox[2];  /* [rank][tokens_max] rows of that rank */
	uint64_t inotes[2]; /* [rank] notes of that rank */
	uint64_t home[2];   /* [tokens_max * topk] rows of combine */
	uint64_t terms[2];  /* terms that are sent */
	uint64_t iterms[2]; /* [rank] terms of that rank */
	uint64_t bytes;
	uint32_t row_bytes;  /* stride of dispatch rows */
	uint32_t note_bytes; /* stride of notes */
	uint32_t term_bytes; /* stride of terms */
	uint32_t reserved;
};

/* What a rank keeps for each rank, itself included. In device memory. */
struct ll_peer {
	uint64_t
		direct; /* that rank's communication memory as we store to it; 0: reached over the command path */
	uint64_t seen[LL_KINDS]
		     [2]; /* [kind][set]: last value of its signal or flag that was consumed */
	uint64_t sent[LL_KINDS][2]; /* of a meeting: value last stored to our flag there */
	uint64_t owed
		[2]; /* [set]: rows it counted in a dispatch less those that came, 0 when all is through */
	uint32_t live[LL_KINDS]; /* 1: what the call under way brings from it is here */
	uint32_t masked;
	uint32_t late; /* enum ll_bad to report, until the host has reported it */
	uint32_t reserved[2u * LL_LINE / 4u - 9u * LL_KINDS - 8u];
};

EPF_STATIC_ASSERT(sizeof(struct ll_peer) == 2 * LL_LINE, "a rank's words are two lines");

/* What the kernels keep from call to call. In device memory. */
struct ll_state {
	uint64_t calls[LL_KINDS][2]; /* [kind][half]: halves that have run */
	uint64_t done[LL_KINDS][2];  /* blocks of the running half that are through */
	uint64_t go[LL_KINDS];       /* the call whose waits are over */
	uint64_t bad;                /* enum ll_bad */
	/* Where the last commands of each set went: to be retired before its memory is written again. */
	uint64_t ring[LL_KINDS][2]; /* struct epf_gpu_ring; 0: nothing to wait for */
	uint64_t ticket[LL_KINDS][2];
	uint64_t shared[LL_KINDS][2];
	uint64_t reserved[4u * LL_LINE / 8u - 11u * LL_KINDS - 1u];
};

EPF_STATIC_ASSERT(sizeof(struct ll_state) == 4 * LL_LINE, "state is four lines");

/* The argument of every kernel, by value. Addresses are device addresses. */
struct ll_job {
	uint64_t ctx;   /* struct epf_gpu_ctx */
	uint64_t state; /* struct ll_state */
	uint64_t peers; /* struct ll_peer [ranks] */
	uint64_t base;  /* this rank's communication memory */
	uint64_t timeout_ns;
	uint64_t tally; /* kernels/why/tally.h; 0: nothing is counted */
	uint32_t
		tally_mask; /* which halves are counted: tally_is_sampled(); waits of more looks than that in every one */
	uint32_t reserved;
	struct ll_layout lay;
	uint32_t rank;
	uint32_t ranks;
	uint32_t region; /* of communication memory, at every rank */
	uint32_t first_signal;
	uint32_t threads; /* of a block */
	uint32_t blocks;
	/* of the call */
	uint32_t tokens_max;
	uint32_t hidden;
	uint32_t local; /* experts of a rank */
	uint32_t topk;
	uint32_t tokens;
	uint32_t flags;
	uint32_t halves; /* EPF_LL_SEND, EPF_LL_RECV, LL_TELL */
	uint32_t
		commands; /* 1: some rank is reached over the command path; 0: all by plain stores */
	uint64_t x;
	uint64_t out_at; /* combine: offset of the memory it sends from */
	uint64_t topk_idx;
	uint64_t weights;
	uint64_t recv_x;
	uint64_t recv_scales;
	uint64_t recv_count;
	uint64_t src_info;
	uint64_t src_slot;
	uint64_t src_row; /* 0: nothing is kept */
	uint64_t layout_range;
	uint64_t recv_stats;
	uint64_t wait_stats;
	uint64_t out;
	/* of a mask operation */
	uint32_t mask_rank; /* UINT32_MAX: all */
	uint32_t mask_value;
};

/* Bytes of a dispatch row that travel. fp8: 0 or 1. A multiple of 16. */
EPF_CMD_FN uint32_t ll_row_used(uint32_t hidden, uint32_t fp8)
{
	uint32_t payload = fp8 ? hidden + hidden / LL_BLOCK * 4u : 2u * hidden;

	return (uint32_t)sizeof(struct ll_head) + (payload + 15u) / 16u * 16u;
}

#define LL_LOG_BLOCK 160u /* bytes of 128 channels of 10 bits */

/* LogFMT rows (epf_ll_logfmt.cuh): bytes of their words; of a row without BF16 blocks; and at most. */
EPF_CMD_FN uint32_t ll_log_words(uint32_t hidden)
{
	return (hidden / LL_BLOCK * 4u + 15u) / 16u * 16u;
}

EPF_CMD_FN uint32_t ll_log_short(uint32_t hidden)
{
	return ll_log_words(hidden) + hidden / LL_BLOCK * LL_LOG_BLOCK;
}

EPF_CMD_FN uint32_t ll_log_bytes(uint32_t hidden)
{
	return ll_log_words(hidden) + 2u * hidden;
}

EPF_CMD_FN uint32_t ll_bitmap_words(uint32_t tokens_max)
{
	return (tokens_max + 31u) / 32u;
}

/* Bytes of the terms of so many tokens. */
EPF_CMD_FN uint32_t ll_terms_used(uint32_t tokens, uint32_t topk)
{
	return (uint32_t)sizeof(struct ll_terms) +
	       (tokens * topk * (uint32_t)sizeof(struct ll_entry) + 15u) / 16u * 16u;
}

EPF_CMD_FN uint32_t ll_note_used(uint32_t local, uint32_t tokens_max)
{
	return (4u * (local + ll_bitmap_words(tokens_max) + 1u) + 15u) / 16u * 16u;
}

#endif
