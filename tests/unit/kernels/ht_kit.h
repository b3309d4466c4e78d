/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput in plain C: ranks as threads of this process, on one node or several, with poisoned outputs and windows (ht_kit.c); random batches and the reference
 * that their results are compared with, byte for byte (ht_check.c).
 */
#ifndef EPF_TESTS_HT_KIT_H
#define EPF_TESTS_HT_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/ht/ht.h"
#include "tests/unit/kernels/ll_kit.h"

/* On a CPU a chunk is 112 numbers: rows have one or two. */
enum { RANKS = LL_KIT_RANKS, TOKENS = 40, TOPK = 6, LOCAL = 5, HIDDEN = 192, SCALES = 3 };

/* One batch of all ranks. */
struct batch {
	uint32_t ranks, hidden, topk, local, scales, align, worst;
	uint32_t tokens[RANKS];
	uint16_t x[RANKS][TOKENS][HIDDEN];
	float scale[RANKS][SCALES][TOKENS]; /* column-major */
	int64_t idx[RANKS][TOKENS][TOPK];
	float weight[RANKS][TOKENS][TOPK];
	uint16_t bias[RANKS][2][TOKENS][HIDDEN];
	uint32_t biases;
	int without_layout; /* on one node: the exchange of counts looks at topk_idx itself */
	int by_column;      /* outputs have their scales by column */
	int numbered;       /* rows carry a number: number_of() */
};

static inline uint32_t number_of(uint32_t rank, uint32_t token)
{
	return 1000 * (rank + 1) + token;
}

/* Outputs of what travels with rows. */
struct beside {
	float scales[RANKS * TOKENS][SCALES];
	uint32_t numbers[RANKS * TOKENS];
	int64_t index[RANKS * TOKENS * TOPK];
	float weights[RANKS * TOKENS * TOPK];
};

/* One rank: its object, its memory, and what its calls gave. */
struct rank {
	uint32_t guess;             /* of rows, for outputs; 0: none */
	uint32_t guess_room, spare; /* with it */
	int with_dispatch;          /* that dispatch exchanges the counts */
	int laid_more; /* rows for rank 0 that the layout claims beyond those that there are */
	struct rig *rig;
	uint32_t rank;
	const struct batch *batch;
	const struct batch *const *rounds; /* of rounds_follow_at_once */
	struct epf_ht *ht;
	uint8_t *control, *window, *plan;
	int32_t *links;
	uint8_t in_rank[TOKENS * RANKS];
	int32_t per_rank[RANKS], per_node[(RANKS + 7) / 8], per_expert[RANKS * LOCAL];
	int32_t place[TOKENS * RANKS], matrix[RANKS * RANKS];
	int64_t host[EPF_HT_HOST_WORDS + LOCAL];
	uint16_t rows[RANKS * TOKENS][HIDDEN] __attribute__((aligned(16)));
	struct beside own;
	struct beside *beside; /* `own`, or in the segment */
	uint8_t *
		segment; /* memory of the pool that outputs lie in, at `out` and `beside`; NULL: they are `rows` and `own` */
	uint16_t *out;
	uint16_t y[RANKS * TOKENS][HIDDEN] __attribute__((aligned(16)));
	uint16_t sums[TOKENS * HIDDEN] __attribute__((aligned(16)));
	float sum_weights[TOKENS * TOPK];
	int absent;
	int never_waits; /* for counts */
	int err;
	char why[512];
};

/* Which rank is of which node; numbered by their lowest ranks, as the library does. */
struct topology {
	uint32_t ranks;
	uint32_t node[RANKS];
};

enum { SEVERAL = 6 };

/* Nodes of any sizes; ranks of a node need not be neighbours. */
extern const struct topology several[SEVERAL];

struct rig {
	struct ll_kit *kit;
	const struct topology *on;
	uint32_t ranks;
	uint64_t window_bytes;
	uint64_t timeout_ns;
	struct rank rank[RANKS];
	int (*step)(struct rank *me);
};

enum nic { ORDERED, REORDERS, LATE /* and reorders; packets come up to 20 ms apart */ };

/* Runs a step on every rank, each in a thread of its own; what it returned is in `err`, and why in `why`. */
void all_ranks(struct rig *g, int (*step)(struct rank *me));
/* The same, and it must succeed everywhere. */
void all_right(struct rig *g, int (*step)(struct rank *me));
int set_window(struct rank *me);
/* Opens the ranks of a topology. timeout_ns: of the waits, 0: the default. */
struct rig *open_on(const struct topology *on, uint64_t timeout_ns, enum nic nic);
/* The same on one node. */
struct rig *open_rig(uint32_t ranks, uint64_t timeout_ns);
void close_rig(struct rig *g);
/* For calls that cannot succeed. Others have the default, as no machine may be too slow for them. */
#define SHORT_NS UINT64_C(1000000000)
/* Sets the timeout of all later waits; 0: the default. */
void set_timeout(struct rig *g, uint64_t timeout_ns);
/* True in the long form. */
bool all_of_them(void);

/* A number below n. */
uint32_t any(uint64_t *seed, uint32_t n);
/* A batch of random shape; the caller frees it. */
struct batch *make_batch(uint32_t ranks, uint64_t seed);
uint32_t rows_between(const struct batch *b, uint32_t r, uint32_t d);
/* Steps: layout and exchange of counts; dispatch; combine. */
int plan(struct rank *me);
uint32_t received_of(const struct rank *me);
uint32_t room_of(const struct rank *me);
int move(struct rank *me);
void expert(uint16_t *row, uint32_t hidden, uint32_t r);
int collect(struct rank *me);
/* Compare what a rank has with the reference. */
void check_rows(const struct rank *me);
void check_sums(const struct rank *me);
void check_sum_of_weights(const struct rank *me, uint32_t token);
void set_batch(struct rig *g, const struct batch *b);
/* A batch through all calls; the dispatch twice, as with a cached handle. */
void run_batch(struct rig *g, uint64_t seed);

#endif
