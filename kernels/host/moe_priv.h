/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the host kernels: one rank's state and the helpers that both modes share. Included by
 * kernels/host/moe_*.c only; never by a caller.
 */
#ifndef EPF_KERNELS_HOST_MOE_PRIV_H
#define EPF_KERNELS_HOST_MOE_PRIV_H

#include "kernels/host/moe.h"

#include <stdbool.h>

/* Where ranks are. Everything [ranks] or [nodes]. */
struct moe_topo {
	uint32_t *node_of;
	uint32_t *index_in; /* index of a rank in its node, ascending rank */
	uint32_t *first;    /* [nodes + 1]: members[first[n]..first[n + 1]) are node n's ranks */
	uint32_t *members;
};

/* Who forwards a source's rows on a node, and as which of that forwarder's sources. */
struct moe_via {
	uint32_t rank;
	uint32_t source;
};

struct epf_moe {
	struct epf *ep;
	struct epf_ring *ring;
	struct epf_moe_config cfg;
	struct epf_moe_layout lay;
	struct moe_topo topo;
	uint32_t node; /* this rank's */
	uint32_t node_size;
	uint32_t inbox_region;
	uint32_t outbox_region;
	uint8_t *inbox;
	uint8_t *outbox;
	unsigned flags; /* of every command */

	/* this round */
	uint32_t round;
	uint32_t tokens;
	bool started;    /* dispatch_send was called at least once */
	int64_t *expert; /* [tokens_max][topk]: copy of the round's choice */
	float *weight;
	uint64_t *own_out; /* ll, [tokens_max][topk]: where in outbox the rows of own experts are */
	uint32_t *block_rows; /* [blocks]: rows received */

	/* ht */
	struct moe_via *my_via; /* [nodes]: for this rank's tokens */
	struct moe_via *via;    /* [ranks]: who serves each source on this node */
	uint32_t *served;       /* [served_count]: sources this rank forwards for, itself first */
	uint32_t served_count;
	uint32_t *forward_rows; /* [served_count]: rows received to forward */

	/* last value consumed of every signal of this rank's kernel */
	uint64_t *seen;  /* [lay.signals] */
	uint32_t *count; /* scratch: [blocks], [ranks], [nodes] or [served x node], the largest */
	uint16_t *sum;   /* scratch: [hidden] */
	uint64_t own_bytes; /* copied from this rank to itself, ever */
	char why[EPF_MOE_WHY_BYTES];
};

/* What a token's choice means for where it goes: distinct ranks in ascending order. */
struct moe_ranks {
	uint32_t n;
	uint32_t rank[EPF_MOE_TOPK_MAX];
};

/* Writes the text of epf_moe_error() and returns err. */
int epf_moe_fail(struct epf_moe *m, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The same for a failed call of epf.h: what was being done, then its last error. */
int epf_moe_fail_fabric(struct epf_moe *m, int err, const char *doing);

/* The set (0 or 1) of dispatch buffers and signals of a round. */
static inline uint32_t moe_set(uint32_t round)
{
	return round & 1u;
}

/* Distinct ranks of the experts of one token; `expert` int64 at home, int32 in a row. */
void epf_moe_targets(const struct epf_moe *m, const int64_t *expert, struct moe_ranks *out);
void epf_moe_row_targets(const struct epf_moe *m, const struct epf_moe_head *row,
			 struct moe_ranks *out);

/* Bit i is set when rank first[node] .. holds: does any rank of `r` live on `node`? */
bool epf_moe_on_node(const struct epf_moe *m, const struct moe_ranks *r, uint32_t node);

/* Byte offsets of rows inside the regions. */
uint64_t epf_moe_recv_at(const struct epf_moe *m, uint32_t set, uint32_t block, uint32_t row);
uint64_t epf_moe_forward_at(const struct epf_moe *m, uint32_t set, uint32_t source, uint32_t row);
uint64_t epf_moe_partial_at(const struct epf_moe *m, uint32_t source, uint32_t member,
			    uint32_t row);
uint64_t epf_moe_home_at(const struct epf_moe *m, uint32_t index, uint32_t row);
uint64_t epf_moe_out_at(const struct epf_moe *m, uint32_t block, uint32_t row);
uint64_t epf_moe_sums_at(const struct epf_moe *m, uint32_t source, uint32_t row);

/* Writes the row of a token where it is sent from: row by row just before its puts, so that the engine sends while the next is quantised. */
void epf_moe_stage_row(struct epf_moe *m, const struct epf_moe_tokens *in, uint32_t token);

/*
 * Moves one row of `bytes` to a rank as part of group `signal` (kernel's numbering). A row that stays is copied at once, by the calling thread, beside the engine: push what
 * goes elsewhere first.
 */
int epf_moe_put_row(struct epf_moe *m, uint32_t rank, uint32_t region, uint64_t from, uint64_t to,
		    uint32_t bytes, uint32_t signal);

/*
 * Output rows that lie next to each other at both ends travel in batches, one transfer each, and each adds 1 to the signal: who waits for a row waits for its
 * batch, and may add rows while later ones arrive. The puts of a group come from one ring, so its n-th signal covers the first n.
 */
int epf_moe_put_rows(struct epf_moe *m, uint32_t rank, uint32_t region, uint64_t from, uint64_t to,
		     uint32_t rows, uint32_t signal);

/* One of those batches, of as many rows as epf_moe_batch_left() says for its first row. */
int epf_moe_put_batch(struct epf_moe *m, uint32_t rank, uint32_t region, uint64_t from, uint64_t to,
		      uint32_t rows, uint32_t signal);
uint32_t epf_moe_batch_left(const struct epf_moe *m, uint32_t row, uint32_t end);

/* Waits until a row of such batches is here; until all of so many are, and consumes the signal. */
int epf_moe_await_row(struct epf_moe *m, uint32_t whose, uint32_t signal, uint32_t row);
int epf_moe_take_rows(struct epf_moe *m, uint32_t whose, uint32_t signal, uint32_t rows);

/* Adds `value` to the peer's signal after `count` puts of its group; count may be 0. */
int epf_moe_signal(struct epf_moe *m, uint32_t rank, uint32_t signal, uint64_t value,
		   uint32_t count);

/*
 * Waits until a signal has moved since it was last consumed, and consumes it: the value added since, less
 * one, goes to *extra (0 when extra is NULL must hold). limit: the largest *extra that makes sense. whose: the rank that an error is to
 * name as the one whose rows are missing.
 */
int epf_moe_take(struct epf_moe *m, uint32_t whose, uint32_t signal, uint32_t limit,
		 uint32_t *extra);

/* Checks what the head of an arrived row says before it is believed. */
int epf_moe_check_row(struct epf_moe *m, const struct epf_moe_head *row, uint32_t source);

/* moe_topo.c */
int epf_moe_topo_init(struct epf_moe *m);
void epf_moe_topo_free(struct epf_moe *m);
/* Most sources one forwarder serves, and the largest node: from node sizes alone. */
uint32_t epf_moe_sources_max(const uint32_t *node_size, uint32_t nodes, uint32_t *size_max);

/* The modes. */
int epf_moe_ll_send(struct epf_moe *m, const struct epf_moe_tokens *in);
int epf_moe_ll_combine_push(struct epf_moe *m);
int epf_moe_ll_combine_sum(struct epf_moe *m, uint16_t *out);
int epf_moe_ht_send(struct epf_moe *m, const struct epf_moe_tokens *in);
int epf_moe_ht_forward(struct epf_moe *m);
int epf_moe_ht_combine_push(struct epf_moe *m);
int epf_moe_ht_combine_reduce(struct epf_moe *m);
int epf_moe_ht_combine_sum(struct epf_moe *m, uint16_t *out);

#endif
