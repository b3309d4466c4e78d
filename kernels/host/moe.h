/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine of a Mixture-of-Experts layer on CPU ranks, written only on the generic
 * commands of epf.h. Called by the bench and the tests, and meant as the readable model of
 * the GPU kernels. Nothing here may look behind epf.h, and nothing here checks what an expert
 * computes: that is the caller's.
 *
 * Two modes with one interface:
 *  ll  a row goes once per selected expert straight into that expert's block at its rank; combine
 *      brings one BF16 row per (token, k) back to slot [token][k], and the token's rank adds
 *      weight * row in top-k order in FP32. The caller's output row is one expert's, unweighted.
 *  ht  a row crosses once per destination node, to a forwarder there (the rank with the source's
 *      index in its node, modulo the size of that node), and goes on to each rank of that node
 *      that holds one of its experts; on its own node the source sends directly. Combine goes the
 *      way back: the forwarder adds the rows of its node's ranks (FP32, ascending rank) and rounds to
 *      BF16, the token's rank adds the nodes (FP32, ascending node). No weights are applied: the
 *      caller's output row is the rank's whole contribution.
 *
 * A round is: dispatch_send, dispatch_forward, dispatch_recv, then, if wanted by all ranks,
 * combine_send, combine_reduce, combine_recv, in this order on every rank. Send, forward and
 * reduce push commands; forward, reduce and recv wait for signals, so one thread can drive many ranks
 * by running one phase for all of them before the next. Rounds may follow each other at once: what
 * rounds share is two sets of dispatch buffers and signals, and no rank can be two rounds ahead,
 * because dispatch_recv hears from every rank. Errors: -errno, text by epf_moe_error().
 */
#ifndef EPF_KERNELS_HOST_MOE_H
#define EPF_KERNELS_HOST_MOE_H

#include "fabric/client/epf.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPF_MOE_TOPK_MAX    16u
#define EPF_MOE_RANKS_MAX   4096u
#define EPF_MOE_TOKENS_MAX  (1u << 20)
#define EPF_MOE_HIDDEN_MAX  65536u
#define EPF_MOE_EXPERTS_MAX 65536u
#define EPF_MOE_WHY_BYTES   512u

enum epf_moe_mode {
	EPF_MOE_LL = 0,
	EPF_MOE_HT = 1,
};

/* What all ranks agree on, but for `rank`. */
struct epf_moe_config {
	enum epf_moe_mode mode;
	int fp8;             /* dispatch rows: E4M3 with a float scale per 128 channels; 0: BF16 */
	uint32_t tokens_max; /* most tokens of any rank in a round, 0..EPF_MOE_TOKENS_MAX */
	uint32_t hidden;     /* channels: a multiple of 128 */
	uint32_t topk;       /* 1..EPF_MOE_TOPK_MAX */
	uint32_t experts;    /* a multiple of ranks; expert e lives at rank e / (experts / ranks) */
	uint32_t ranks;
	uint32_t rank;
	const uint32_t *node_of; /* [ranks]: nodes numbered by their lowest rank, from 0 */
	uint32_t first_signal;   /* signals from here on are the kernel's: layout.signals of them */
	uint32_t ring_slots;     /* 0: configured */
	uint64_t timeout_ns;     /* of each wait; 0: configured */
};

/*
 * The row that travels: this head, then int32 expert[topk] (global numbers, -1: not selected), float
 * weight[topk], zeros up to a multiple of 16; then the payload: FP8 codes and float scales, or
 * BF16, zeros up to a multiple of 16. Little-endian.
 */
struct epf_moe_head {
	uint32_t token;  /* number at its source */
	uint32_t source; /* rank */
	uint32_t round;  /* counted from 0, modulo 2^32 */
	uint32_t topk;
};

/*
 * Where everything lies: the same on every rank, a pure function of the configuration. Offsets in
 * bytes. `outbox` is the region only this rank writes, `inbox` the one that peers write.
 */
struct epf_moe_layout {
	uint32_t local_experts; /* per rank */
	uint32_t nodes;
	uint32_t node_size_max;
	uint32_t sources_max; /* ht: most sources that one forwarder serves, itself included */
	uint32_t blocks;      /* blocks of received rows: ll local_experts * ranks, ht ranks */
	uint32_t head_bytes;
	uint32_t payload_bytes; /* without padding */
	uint32_t row_bytes;     /* head + payload, padded: what dispatch moves per row */
	uint32_t out_row_bytes; /* 2 * hidden: what combine moves per row */
	/* outbox */
	uint64_t stage; /* [tokens] rows to send */
	uint64_t out;   /* [block][tokens] the caller's output rows */
	uint64_t sums;  /* ht: [source][tokens] sums of this node */
	uint64_t outbox_bytes;
	/* inbox */
	uint64_t recv;    /* [2][block][tokens] received rows */
	uint64_t forward; /* ht: [2][source][tokens] rows to forward */
	uint64_t partial; /* ht: [source][index in node][tokens] rows to add here */
	uint64_t home;    /* ll: [tokens][topk], ht: [node][tokens] rows to add for own tokens */
	uint64_t inbox_bytes;
	/* signals, counted from config.first_signal */
	uint32_t sig_recv;    /* [2][block]: adds rows + 1 */
	uint32_t sig_forward; /* ht: [2][source]: adds rows + 1 */
	uint32_t sig_partial; /* ht: [source][index in node]: adds 1 a batch of rows */
	uint32_t sig_home;    /* ll: [rank]: adds 1; ht: [node]: adds 1 a batch of rows */
	uint32_t signals;
};

struct epf_moe;

/**
 * epf_moe_plan() - check a configuration and compute the layout.
 * @why: EPF_MOE_WHY_BYTES for one line that says what is wrong, or NULL.
 *
 * Return: 0; -EINVAL (a value outside its range), -EOVERFLOW (an area too large to address).
 */
int epf_moe_plan(const struct epf_moe_config *cfg, struct epf_moe_layout *out, char *why);

/**
 * epf_moe_open() - allocate and register the two regions, open a ring.
 * @ep: opened; not yet joined, or joined and followed by epf_exchange() on all ranks.
 * @why: as for epf_moe_plan().
 *
 * All ranks register in the same order. @ep and the memory of @cfg->node_of (copied) stay the
 * caller's; one thread at a time.
 *
 * Return: 0; as epf_moe_plan(); -ENOSPC when @ep has too few signals; -ENOMEM; errors of epf.h.
 */
int epf_moe_open(struct epf *ep, const struct epf_moe_config *cfg, struct epf_moe **out, char *why);

/**
 * epf_moe_close() - wait until the ring is retired, close it and forget the object; NULL is fine.
 * The regions stay with @ep until epf_close(): peers may not have read the last of them.
 */
void epf_moe_close(struct epf_moe *m);

/** epf_moe_layout() - the layout, valid as long as @m. */
const struct epf_moe_layout *epf_moe_layout(const struct epf_moe *m);

/** epf_moe_error() - one line on the last call that failed, or "". */
const char *epf_moe_error(const struct epf_moe *m);

/* A rank's tokens of one round. Read by dispatch_send only. */
struct epf_moe_tokens {
	const uint16_t *x;     /* BF16 [tokens][hidden] */
	const int64_t *expert; /* [tokens][topk]: 0..experts-1 once each, or -1 */
	const float *weight;   /* [tokens][topk] */
	uint32_t tokens;
};

/**
 * epf_moe_dispatch_send() - begin a round: build the rows and push them.
 *
 * Waits until the commands of the round before are retired, and for room in the ring. The rows
 * and results of the round before are gone from here on.
 * Return: 0; -EINVAL (a token's experts); -E2BIG (more than tokens_max); errors of epf.h.
 */
int epf_moe_dispatch_send(struct epf_moe *m, const struct epf_moe_tokens *in);

/** epf_moe_dispatch_forward() - ht: pass on the rows of other nodes; ll: nothing. */
int epf_moe_dispatch_forward(struct epf_moe *m);

/**
 * epf_moe_dispatch_recv() - wait until every row for this rank is here.
 * After it the block functions below are valid, until the next dispatch_send.
 */
int epf_moe_dispatch_recv(struct epf_moe *m);

/**
 * Received rows lie in blocks: of source rank b % ranks, and in ll of local expert b / ranks. Rows of a
 * block are in ascending order of token. epf_moe_row() is the received row, epf_moe_out() the
 * place for the caller's BF16 output row of it, to be written before combine_send and kept until combine_recv has returned.
 */
uint32_t epf_moe_block_rows(const struct epf_moe *m, uint32_t block);
const struct epf_moe_head *epf_moe_row(const struct epf_moe *m, uint32_t block, uint32_t row);
uint16_t *epf_moe_out(const struct epf_moe *m, uint32_t block, uint32_t row);

/* Parts of a row. */
const int32_t *epf_moe_row_expert(const struct epf_moe_head *row);
const float *epf_moe_row_weight(const struct epf_moe_head *row);
const void *epf_moe_row_payload(const struct epf_moe *m, const struct epf_moe_head *row);

/** epf_moe_combine_send() - push the output rows of all blocks. */
int epf_moe_combine_send(struct epf_moe *m);

/** epf_moe_combine_reduce() - ht: add this node's rows of other nodes' tokens, push the sums; ll: nothing. */
int epf_moe_combine_reduce(struct epf_moe *m);

/**
 * epf_moe_combine_recv() - wait for the rows of this rank's tokens and add them.
 * @out: BF16 [tokens of this round][hidden].
 */
int epf_moe_combine_recv(struct epf_moe *m, uint16_t *out);

/** epf_moe_own_bytes() - bytes of rows that this rank has kept so far: they are never put, and copied at most. */
uint64_t epf_moe_own_bytes(const struct epf_moe *m);

/** epf_moe_drain() - wait until everything pushed so far is retired: the sources may be reused. */
int epf_moe_drain(struct epf_moe *m);

/*
 * The memory that peers write, for tests that poison it and look at it: a list of arrays of rows.
 */
enum epf_moe_area_kind {
	EPF_MOE_AREA_RECV,    /* index = block */
	EPF_MOE_AREA_FORWARD, /* index = source rank */
	EPF_MOE_AREA_PARTIAL, /* index = source rank, member = rank of this node */
	EPF_MOE_AREA_HOME,    /* ht: index = node; ll: index = token, rows = topk */
};

struct epf_moe_area {
	enum epf_moe_area_kind kind;
	uint32_t index;
	uint32_t member;
	uint32_t rows;
	uint32_t row_bytes;
	uint8_t *base;
};

/**
 * epf_moe_areas() - how many; epf_moe_area() - the i-th, of the round that comes next or of the
 * one that runs or ran last (@next 0, valid after the first dispatch_send).
 */
uint32_t epf_moe_areas(const struct epf_moe *m);
struct epf_moe_area epf_moe_area(const struct epf_moe *m, uint32_t i, int next);

#ifdef __cplusplus
}
#endif
#endif
