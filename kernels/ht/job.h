/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the high-throughput kernels and the code that launches them agree on: the memory that peers write, what a rank keeps in memory of its device, the
 * plan of a batch, and the argument of a launch. Included as C, CUDA and HIP; by kernels/ht only.
 *
 * A node is a set of ranks that map each other's memory. Every rank has two areas that the other ranks of its node map: the control area, with flags and
 * counts, which never moves; and the window, which receives rows and may be replaced by a larger one between calls. Ranks of other nodes are
 * reached over the command path, in two regions of communication memory: one for counts, and one for rows, half of which is sent from and half received into.
 *
 * The forwarder of a source at a node is the rank there with the source's index in its own node, modulo the size of that node.
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
#define HT_RANKS_MAX \
 2048u /* EPF_HT_RANKS_MAX: 12 bytes of a block's shared memory each, beside HT_LOCAL_MAX words */
#define HT_NODE_MAX \
 1024u              /* EPF_HT_NODE_MAX: ranks of a node, a struct ht_mark of shared memory each */
#define HT_GROWN 1u /* EPF_HT_GROWN */
#define HT_FITS  2u /* EPF_HT_FITS */
#define HT_WAITS 4u /* the CPU of a rank waits for the counts */
#define HT_HOST  6u /* EPF_HT_HOST_WORDS */
#define HT_SLICES \
 4u /* parts in which rows cross between nodes: a part is forwarded while the next one arrives */
#define HT_PARTS \
 16u /* at most, in which rows of a combine cross a node: a part is added while the next one arrives */
/* The same of a grouped dispatch, whose rows are copied to their groups meanwhile. Each costs four H200 some 4 us of 600, and the last one is copied behind the others. */
#define HT_TOLD 8u
EPF_STATIC_ASSERT(HT_TOLD <= HT_PARTS, "both are counted in the same words");
/* Vectors of a lane in a chunk of a row, at most: what is on its way to a multiprocessor at once, 16 warps * 7 KiB, covers the latency of memory. */
#define HT_CHUNK_VECS 14u
/*
 * Chunks of a batch's tokens, at most, whose routing is looked at side by side, where there are few ranks; and the scratch memory that takes: a counter for
 * each rank, then HT_CHUNK_WORDS for each rank and chunk.
 */
#define HT_CHUNKS      8u
#define HT_CHUNK_RANKS 8u
#define HT_CHUNK_WORDS (1u + HT_LOCAL_MAX)
#define HT_SEGMENTS    256u /* EPF_HT_SEGMENTS_MAX */
#define HT_BESIDE_RANKS \
 64u /* of a node, at most, where what travels with rows goes straight to outputs */
/* Ranks: what as many send with their counts is kept in shared memory. On a CPU fewer, so that tests meet both. */
#define HT_FEW_GPU 32u
#define HT_FEW_CPU 5u
#define HT_LOOKS   63u /* waits of more looks, some 50 us on a GPU, are counted in every call */
#define HT_LOST_MS \
 2000u /* how long a wait for a rank goes on once another one is lost: that rank may have given up because of it */
#define HT_GRACE_MS \
 100u /* how long a rank that gives up lets one that is late finish what it writes */

/* Flags. Each holds a number of calls and only grows. */
enum ht_flag {
	HT_COUNTS = 0, /* the counts of a call are written; each says of which call it is */
	HT_READY = 1,  /* the window may be written by this call */
	HT_ROWS = 2,   /* the rows of this call are written; a word for each part of a combine */
	HT_GONE = 3,   /* the rank waits no longer for this call's rows: they must not be written */
	HT_FLAGS = 4,
};

/* What a dispatch brings, and where a rank wants it: HT_PLACE() of the first row; 0: it arrives in the window. All that travels with rows, or nothing of it. */
enum ht_place {
	HT_PLACE_OUT = 0,
	HT_PLACE_INDEX = 1,
	HT_PLACE_WEIGHTS = 2,
	HT_PLACE_SCALES = 3,
	HT_PLACE_NUMBERS = 4,
	HT_PLACES = 5,
};

/*
 * Words of the line of HT_READY. In a dispatch those behind the flag have the number of the call in their upper half, as counts have, so that there is no fence: they
 * come in any order.
 */
enum ht_ready_word {
	HT_READY_FLAG = 0,
	HT_READY_PLACES = 1, /* of each place the lower half, then the upper one */
	HT_READY_ROOM =
		HT_READY_PLACES + 2 * HT_PLACES, /* rows that fit where the first one goes */
	HT_READY_STRIDE,                         /* of the scales of a row, in words */
	HT_READY_SAID,                           /* words that a dispatch says */
	/*
	 * How many of its rows for this rank are in the window, while a grouped dispatch runs: (1 + its number) << 32 | rows. Behind the other words, and not
	 * a flag: whoever does not see it in time waits for the end of the dispatch.
	 */
	HT_READY_SO_FAR = 15,
};

EPF_STATIC_ASSERT((int)HT_READY_SAID <= (int)HT_READY_SO_FAR &&
			  ((int)HT_READY_SO_FAR + 1) * 8u <= HT_LINE,
		  "the words of a dispatch, and the one behind them, are one line");

/* Bits of ht_state.bad. The first three are 1 << enum ht_flag: a rank did not set that flag in time. */
enum ht_bad {
	HT_BAD_LATE = 7,
	HT_BAD_EXPERT = 8, /* topk_idx names an expert that does not exist: read as -1 */
	HT_BAD_ROOM = 16,  /* more rows than there is room for: the rest was left out */
	HT_BAD_LAYOUT =
		32, /* per_rank and in_rank disagree: what one has more was left out, or not sent */
};

/* Signals by which ranks of other nodes say the same: number first_signal + kind * ranks + who adds. */
enum ht_signal {
	HT_SIG_COUNTS = 0,
	HT_SIG_READY = 1, /* what the call brought across nodes is read: the next one may write */
	HT_SIG_ROWS = 2,  /* and behind it one for each further slice */
	HT_SIGNALS = HT_SIG_ROWS + HT_SLICES,
};

/* What a rank keeps for each rank. In device memory. */
struct ht_peer {
	uint64_t
		control; /* its control area, as this rank stores to it; 0: it is of another node */
	uint64_t
		window; /* its window; a job does not hold it, so that graphs follow it when it grows */
	uint64_t late; /* 1 + enum ht_flag that it did not set in time; 0: none */
	/* Its signals here: where they began to count; for rows, which do not come in every call, what was last awaited. */
	uint64_t base[HT_SIGNALS];
	uint32_t node;
	uint32_t index; /* in its node, ranks ascending */
	uint64_t
		skipped; /* 1 + the last call in which nothing was written to it, because it must not be */
	uint64_t reserved[5];
};

/* A node: its ranks are size entries of the list of members, from the first on. */
struct ht_node {
	uint32_t first;
	uint32_t size;
};

EPF_STATIC_ASSERT(sizeof(struct ht_peer) == HT_LINE, "a rank's words are one line");

/* What the kernels keep from call to call. In device memory. */
struct ht_state {
	uint64_t counted; /* exchanges of counts that have run */
	uint64_t moved;   /* dispatches and combines that have run */
	uint64_t done[2]; /* blocks of the running kernel that have sent; that have ended */
	uint64_t bad;     /* enum ht_bad */
	uint64_t rows;    /* the number of rows that did not fit */
	uint64_t go;      /* what block 0 has waited for across nodes: ht_wait_slice() */
	uint64_t staged[HT_SLICES]; /* blocks of the running kernel that have staged a slice */
	uint64_t parts[HT_PARTS];   /* blocks of the running combine that have written a part */
	uint64_t next;              /* sums of the running combine that a warp has taken */
	uint64_t taken;             /* groups of chunks that warps took, but for their first ones */
	/* Where the commands of each slice went: to be retired before the kernel ends. */
	uint64_t ring[HT_SLICES]; /* struct epf_gpu_ring; 0: none */
	uint64_t ticket[HT_SLICES];
	uint64_t shared[HT_SLICES];
	uint64_t fits; /* of the last exchange of counts: EPF_HT_FITS */
	/* Memory between nodes: rows sent [net_room], then received [net_room]. Here, and not in a job, so that graphs follow it when it grows. */
	uint64_t net;
	uint64_t net_region;
	/* Grouped dispatches, one of which may be under way: whose rows have been copied to their groups; 1 + the last one whose rows have all arrived. */
	uint64_t grouped;
	uint64_t ended;
	uint64_t copied; /* blocks of the running spread that have ended */
	uint64_t
		met; /* blocks of the running dispatch that have done what they do for its exchange of counts */
};

EPF_STATIC_ASSERT(sizeof(struct ht_state) == 3 * HT_LINE, "state is three lines");

/* Rows that cross between this rank and another. Places are rows of the areas that this rank, and that the other one, has for rows across nodes. */
struct ht_leg {
	int32_t rank; /* -1: no leg */
	uint32_t rows;
	uint32_t mine;
	uint32_t theirs;
};

/*
 * The plan of a batch, int32 words that notify writes. Byte offsets; a function of topology and tokens. A dispatch sends along `out` and
 * receives along `in`; a combine goes the other way.
 */
struct ht_plan {
	uint64_t need; /* rows that the areas across nodes must hold, the same at all ranks */
	uint64_t out;  /* struct ht_leg [nodes]: to the forwarders of this rank */
	uint64_t in;   /* struct ht_leg [ranks]: from those that it forwards for */
	uint64_t
		totals; /* [size][size] of this node: rows that go from one member to another in a combine */
	/*
	 * [ranks][size]: where a combine has the rows of a member of this node for a source, in the window of the rank that adds them: the source
	 * itself, or its forwarder.
	 */
	uint64_t parts;
	uint64_t
		place; /* [tokens][nodes]: which of this rank's rows for a node a token is, or -1 */
	uint64_t order; /* [nodes][tokens]: the token that is a row; several nodes only */
	uint64_t bytes;
};

/* Byte offsets in a window: rows, then what travels with each. A function of the call's shape, the same at every rank. */
struct ht_layout {
	uint64_t rows;
	uint64_t scales;
	uint64_t index;   /* int32 [rows][topk], experts as the receiver numbers them */
	uint64_t weights; /* float [rows][topk] */
	uint64_t bytes;
};

/* A row as it crosses between nodes: its bytes, then, at these offsets, what travels with it. Without heads (combine): weights only. */
struct ht_record {
	uint32_t index;   /* int64 [topk] */
	uint32_t scales;  /* [scale_words] */
	uint32_t weights; /* float [topk] */
	uint32_t
		head; /* int32 [size of the receiver's node]: final index at each of its members, or -1 */
	uint32_t bytes; /* a multiple of HT_VEC */
};

/* An address in a rank's memory, as ranks tell it each other: 1 + the number of the segment, and bytes from where it begins. */
#define HT_PLACE(segment, offset) ((uint64_t)(segment) << 48 | (offset))
#define HT_OFFSETS                ((UINT64_C(1) << 48) - 1u)

/* The argument of every kernel, by value. Addresses are device addresses; 0: not given. */
struct ht_job {
	uint64_t ctx;     /* struct epf_gpu_ctx */
	uint64_t state;   /* struct ht_state, then struct ht_peer [ranks] */
	uint64_t control; /* this rank's */
	uint64_t timeout_ns;
	uint64_t tally; /* kernels/why/tally.h; 0: nothing is counted */
	struct ht_layout lay;
	struct ht_plan at;
	struct ht_record rec;
	uint64_t topology; /* struct ht_node [nodes], then uint32 members [ranks] */
	uint64_t
		segments; /* uint64 [ranks][HT_SEGMENTS]: where this rank stores to the segments of each; 0: none */
	uint64_t places
		[HT_PLACES]; /* dispatch: HT_PLACE() of the outputs; of what travels with rows, if all of them are in segments; else 0 */
	uint64_t counts;     /* region of counts: received [2][ranks], then sent [2][ranks] */
	uint64_t plan;       /* struct ht_plan says what is where */
	uint64_t
		links; /* int32 [forwarded rows][node_max]: which of the source's rows for a member a row is, or -1 */
	uint32_t counts_region;
	uint32_t net_room;  /* rows of each half of the memory between nodes */
	uint32_t put_bytes; /* of a command between nodes, at most; a multiple of HT_VEC */
	uint32_t
		parts; /* combine: of this rank's rows, the same at all ranks; fold: likewise; tally, number: of entries */
	uint32_t
		writers; /* combine: warps of all blocks that write rows, those with the lowest numbers: ht_warp() */
	uint32_t call;  /* enum epf_why_call: what is counted under */
	uint32_t grown; /* notify: this rank has memory that the others have not mapped */
	uint32_t spare; /* notify: of struct epf_ht_routing, as received and room */
	uint32_t
		if_it_fits; /* dispatch: moves rows only if the last notify says that they fit; spread: copies only then, and if its outputs are long enough */
	uint32_t
		counting; /* dispatch: exchanges the counts itself, as notify does, and moves rows only if they fit */
	uint32_t grouped; /* dispatch: rows stay in the window, for a spread */
	uint32_t beside;  /* dispatch: 1: what travels with rows goes straight to the outputs */
	uint32_t told;    /* grouped dispatch: how often ranks are told how many rows there are */
	uint32_t zero;    /* spread: rows that no entry has become zeros */
	uint32_t groups;  /* spread and fold: grouped rows */
	uint32_t first_expert; /* tally, number: of the `local` ones whose entries are numbered */
	uint32_t forwarded;    /* rows of links */
	uint32_t first_signal;
	uint32_t nodes;
	uint32_t node;     /* this rank's */
	uint32_t node_max; /* ranks of the largest node */
	uint32_t rank;
	uint32_t ranks;
	uint32_t threads; /* of a block */
	uint32_t blocks;
	uint32_t
		chunks; /* layout, notify: blocks that share a rank's routing, or number its rows */
	uint32_t looks; /* notify: 1: no layout has looked at topk_idx */
	uint32_t tokens;
	uint32_t topk;
	uint32_t local;       /* experts of a rank */
	uint32_t room;        /* rows that a window holds */
	uint32_t row_bytes;   /* a multiple of HT_VEC */
	uint32_t scale_words; /* of a row, 4 bytes each; with its number, if it has one */
	uint32_t
		numbered; /* how many of the last of them are no scales: the row's number, then, in a grouped dispatch, its entries' */
	uint32_t first_number; /* of this rank's first token; the others follow */
	uint32_t align;        /* of the counts of experts */
	uint32_t received;     /* dispatch: rows of the outputs; combine: rows of x */
	uint32_t
		unmet; /* 1: ranks of other nodes may not have begun this call when their rows are awaited */
	uint32_t tally_mask;      /* which calls are counted: tally_weight() */
	uint64_t scale_stride[2]; /* words between rows, and between the words of a row */
	uint64_t out_stride[2];   /* dispatch, spread: the same of out_scales */
	/* routing */
	uint64_t
		scratch; /* of the blocks that share a rank's routing: HT_CHUNKS; tally, number: uint32 [parts][local] */
	uint64_t topk_idx;   /* int64 [tokens][topk] */
	uint64_t in_rank;    /* uint8 [tokens][ranks]; notify: 0: it looks at topk_idx itself */
	uint64_t per_rank;   /* int32 [ranks] */
	uint64_t per_node;   /* int32 [nodes] */
	uint64_t per_expert; /* int32 [ranks * local]; groups: [local] */
	uint64_t ends
		[2]; /* groups, spread: int32 [local], of the entries of each expert, and of its rows */
	uint64_t
		starts; /* groups, spread: int32 [ranks][local]: the grouped row of a rank's first entry of each expert; spread: 0: the slots are known */
	uint64_t place; /* int32 [tokens][ranks]: which of this rank's rows for that rank, or -1; */
	uint64_t
		slots; /* spread, fold: int32 [received][topk]: the grouped row of an entry, or -1 */
	uint64_t
		folded; /* fold, combine: uint64 [HT_PARTS]: chunks of each part of x that a fold beside the combine has made; 0: x is there */
	uint64_t
		numbers; /* int32 [tokens][topk], of entries: the kernel number writes them, a grouped dispatch and its spread read them; 0: they are not needed */
	uint64_t matrix; /* int32 [ranks][ranks]: (i, r) = rows that ranks 0..i send to r */
	uint64_t host;   /* int64 [HT_HOST + local] that the CPU waits for */
	uint64_t ticket; /* what is written to its first word last */
	/* rows */
	uint64_t x;
	uint64_t scales;
	uint64_t weights;
	uint64_t out;
	uint64_t out_scales;
	uint64_t out_numbers; /* int32 [received] */
	uint64_t out_index;   /* int64 */
	uint64_t out_weights;
	uint64_t bias[2];
};

#endif
