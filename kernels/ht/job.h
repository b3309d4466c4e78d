/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the high-throughput kernels and the code that launches them agree on: the control area and the window that peers write, what a rank keeps in
 * memory of its device, and the argument of a launch. Included as C, CUDA and HIP; by kernels/ht only.
 *
 * Every rank has two areas that the other ranks of its node map. The control area has flags and counts and never moves. The window
 * receives rows and may be replaced by a larger one between calls.
 */
#ifndef EPF_KERNELS_HT_JOB_H
#define EPF_KERNELS_HT_JOB_H

#include "queues/epf_cmd.h"

#include <stdint.h>

#define HT_LINE      128u
#define HT_LOCAL_MAX 4096u /* EPF_HT_LOCAL_MAX */
#define HT_VEC       16u   /* bytes that a lane moves at once */
#define HT_VECS      4u    /* of a lane in a piece */
#define HT_NODE      8u    /* ranks that get_dispatch_layout() counts as one node */

/* Flags. Each holds a number of calls and only grows. */
enum ht_flag {
	HT_COUNTS = 0, /* the counts of a call are written */
	HT_READY = 1,  /* the window may be written by this call */
	HT_ROWS = 2,   /* the rows of this call are written */
	HT_FLAGS = 3,
};

/* Bits of ht_state.bad. The first three are 1 << enum ht_flag: a rank did not set that flag in time. */
enum ht_bad {
	HT_BAD_LATE = 7,
	HT_BAD_EXPERT = 8, /* topk_idx names an expert that does not exist: read as -1 */
	HT_BAD_ROOM = 16,  /* more rows than there is room for: the rest was left out */
};

/* What a rank keeps for each rank. In device memory. */
struct ht_peer {
	uint64_t control; /* its control area, as this rank stores to it */
	uint64_t window;  /* its window */
	uint64_t late;    /* 1 + enum ht_flag that it did not set in time; 0: none */
	uint64_t reserved[13];
};

EPF_STATIC_ASSERT(sizeof(struct ht_peer) == HT_LINE, "a rank's words are one line");

/* What the kernels keep from call to call. In device memory. */
struct ht_state {
	uint64_t counted; /* exchanges of counts that have run */
	uint64_t moved;   /* dispatches and combines that have run */
	uint64_t done[2]; /* blocks of the running kernel that have sent; that have ended */
	uint64_t bad;     /* enum ht_bad */
	uint64_t rows;    /* the number of rows that did not fit */
	uint64_t reserved[10];
};

EPF_STATIC_ASSERT(sizeof(struct ht_state) == HT_LINE, "state is one line");

/* Byte offsets in a window: rows, then what travels with each. A function of the call's shape, the same at every rank. */
struct ht_layout {
	uint64_t rows;
	uint64_t scales;
	uint64_t index;   /* int32 [rows][topk], experts as the receiver numbers them */
	uint64_t weights; /* float [rows][topk] */
	uint64_t bytes;
};

/* The argument of every kernel, by value. Addresses are device addresses; 0: not given. */
struct ht_job {
	uint64_t ctx;     /* struct epf_gpu_ctx */
	uint64_t state;   /* struct ht_state, then struct ht_peer [ranks] */
	uint64_t control; /* this rank's */
	uint64_t window;
	uint64_t timeout_ns;
	struct ht_layout lay;
	uint32_t rank;
	uint32_t ranks;
	uint32_t threads; /* of a block */
	uint32_t blocks;
	uint32_t tokens;
	uint32_t topk;
	uint32_t local;           /* experts of a rank */
	uint32_t room;            /* rows that a window holds */
	uint32_t row_bytes;       /* a multiple of HT_VEC */
	uint32_t scale_words;     /* of a row, 4 bytes each */
	uint32_t align;           /* of the counts of experts */
	uint32_t received;        /* dispatch: rows of the outputs; combine: rows of x */
	uint64_t scale_stride[2]; /* words between rows, and between the words of a row */
	/* routing */
	uint64_t topk_idx;   /* int64 [tokens][topk] */
	uint64_t in_rank;    /* uint8 [tokens][ranks] */
	uint64_t per_rank;   /* int32 [ranks] */
	uint64_t per_node;   /* int32 [nodes] */
	uint64_t per_expert; /* int32 [ranks * local] */
	uint64_t place;  /* int32 [tokens][ranks]: which of this rank's rows for that rank, or -1 */
	uint64_t matrix; /* int32 [ranks][ranks]: (i, r) = rows that ranks 0..i send to r */
	uint64_t host;   /* int64 [3 + local] that the CPU waits for */
	uint64_t ticket; /* what is written to its first word last */
	/* rows */
	uint64_t x;
	uint64_t scales;
	uint64_t weights;
	uint64_t out;
	uint64_t out_scales;
	uint64_t out_index; /* int64 */
	uint64_t out_weights;
	uint64_t bias[2];
};

#endif
