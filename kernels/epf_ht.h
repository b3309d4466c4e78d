/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High-throughput dispatch and combine of Mixture-of-Experts layers (prefill, training), as kernels on a stream, with plain pointers and sizes. The
 * Python package and C programs call this. One source for CUDA, HIP and plain C (kernels/ht); with device EPF_LL_CPU the plain C form runs on
 * the calling thread, on host memory.
 *
 * Part of libepf-ll, and stands on a struct epf_ll: same ranks, same device. Ranks make the same calls in the same order.
 *
 * Nodes. Ranks that reach each other's memory by plain stores are a node; nodes are numbered by their lowest rank and may differ in size. Between nodes
 * a row crosses once, to the rank there with the source's index in its own node (modulo the size of that node), which passes it on.
 *
 * A batch: epf_ht_notify() exchanges counts, epf_ht_dispatch() moves rows to the ranks that hold their experts, epf_ht_combine() brings one row of each
 * rank back and adds them. What notify and dispatch wrote (place, matrix, plan, links) serves any number of dispatches and combines of the same routing,
 * in any order.
 *
 *  dispatch  Receives one row for each token and rank, however many of the rank's experts the token has. Order: source rank ascending, then token
 *            ascending. Rows are bytes: any type whose row is a multiple of 16 bytes.
 *  combine   acc = +0; acc += bias[0]; acc += bias[1]; for each rank that has a row of the token, ascending: acc = acc + float(row). FP32, rounded to
 *            nearest even after each addition; then bf16(acc). With several nodes, for each node that has rows of the token, ascending:
 *            acc = acc + float(bf16(sum of its ranks' rows, ascending, from +0)), the token's own node likewise.
 *
 * Windows. Rows of other ranks arrive in a window of communication memory that every rank provides and all map; epf_ht_window_bytes() says how large it
 * must be for a call. Rows that do not leave a rank never touch it. A window may be replaced by a larger one between calls, at all ranks; a
 * CUDA graph that was captured before uses the new one.
 * Segments. Where the outputs of a dispatch lie in memory that the ranks of the node map, other ranks write rows straight to them: epf_ht_map().
 * Rows between nodes pass through memory of the library: epf_ht_reserve().
 *
 * Kernels wait for other ranks, each for at most timeout_ns, for a rank that is lost or has closed no longer, and for the others 2 s once one is lost; then they end with undefined outputs, and epf_ht_check() names who was missing.
 *
 * Errors: 0 or a negative errno; epf_ll_error() then holds one line with cause and remedy. One thread at a time for one object.
 */
#ifndef EPF_KERNELS_HT_H
#define EPF_KERNELS_HT_H

#include "kernels/epf_ll.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct epf_ht;

#define EPF_HT_RANKS_MAX 2048u
#define EPF_HT_NODE_MAX  1024u /* ranks of a node */
#define EPF_HT_TOPK_MAX  32u
#define EPF_HT_LOCAL_MAX 4096u /* experts of a rank */

#define EPF_HT_SIGNALS_PER_RANK 6u
#define EPF_HT_HOST_WORDS       6u
#define EPF_HT_SEGMENTS_MAX     256u

struct epf_ht_options {
	size_t size; /* sizeof(struct epf_ht_options) */
	void *control; /* epf_ht_control_bytes(), zeroed, of the device; the caller's until epf_ht_close() */
	void *const *
		peers; /* [ranks]: where this device stores to the control memory of each rank; NULL: a rank of another node. The own entry is not read */
	uint64_t timeout_ns; /* of each wait for another rank; 0: the setting gpu-timeout */
	uint32_t
		first_signal; /* several nodes: EPF_HT_SIGNALS_PER_RANK * ranks signals from here on are ours */
	uint32_t reserved;
};

/* What a row consists of. */
struct epf_ht_row {
	uint32_t bytes;       /* a positive multiple of 16 */
	uint32_t scale_words; /* scales, 4 bytes each; 0: none */
	uint32_t topk;        /* entries that travel along; 0: none */
};

/* Routing of a batch. Arrays are dense. */
struct epf_ht_routing {
	size_t size;     /* sizeof(struct epf_ht_routing) */
	uint32_t tokens; /* of this rank */
	uint32_t topk;
	uint32_t experts; /* of all ranks; a multiple of ranks */
	uint32_t align;   /* counts of experts are rounded up to a multiple of it; 0 is 1 */
	/* notify: of a dispatch that is launched with EPF_HT_IF_IT_FITS before the counts are known */
	uint32_t
		received; /* rows of its outputs; 0: there is no such dispatch; from 2^30 on it never fits */
	uint32_t room;           /* its `room`, the same at all ranks */
	uint32_t spare;          /* rows that outputs may be too long by; the same at all ranks */
	uint32_t flags;          /* notify: EPF_HT_NO_LAYOUT, EPF_HT_WITH_DISPATCH */
	const int64_t *topk_idx; /* [tokens][topk]; notify: with EPF_HT_NO_LAYOUT */
	uint8_t *in_rank;        /* [tokens][ranks]; layout writes it, notify reads it */
	int32_t *
		per_rank; /* [ranks] tokens for each rank; layout writes it, notify reads it on one node, or, with NULL, counts itself */
	int32_t *per_node; /* layout: [ceil(ranks / 8)] tokens for each group of 8 ranks, or NULL */
	int32_t *per_expert; /* [experts]; layout writes it, notify reads it */
	int32_t *
		place; /* notify: [tokens][ranks], which of this rank's rows for a rank a token is, or -1 */
	int32_t *matrix; /* notify: [ranks][ranks], (i, r) = rows that ranks 0..i send to r */
	void *plan; /* notify: epf_ht_plan_bytes(), 16-byte aligned: where rows lie on their way */
	/*
	 * notify: int64 [EPF_HT_HOST_WORDS + experts / ranks] of host memory that the device reaches, or NULL. [1]: rows this rank receives; [2]: `room`
	 * and [3]: `across` of the calls, the same at all ranks; [4]: `forwarded`; [5]: EPF_HT_GROWN and EPF_HT_FITS; [EPF_HT_HOST_WORDS + e]: entries of local expert e, rounded up. See
	 * epf_ht_wait_counts(). One notify at a time may use an array.
	 */
	int64_t *host;
};

/* There was no layout in front: notify looks at topk_idx itself, writes in_rank, and does not read per_expert. On one node only. */
#define EPF_HT_NO_LAYOUT 1u

/*
 * The dispatch with EPF_HT_IF_IT_FITS that follows, on the same stream, makes the exchange itself, and this launches nothing, unless there are more than 32 ranks:
 * epf_ht_wait_counts() comes behind the dispatch in any case. It saves a launch and a meeting of all ranks. Ranks that differ in it move no rows. On one node only, and
 * not with EPF_HT_GROUPED.
 */
#define EPF_HT_WITH_DISPATCH 2u

/* Bits of a notify's word [5], the same at all ranks. */
#define EPF_HT_GROWN 1 /* a rank wants segments to be mapped, and all ranks have a `host` */
#define EPF_HT_FITS  2 /* the dispatch launched before the counts are known moves the rows */

/*
 * A dispatch that is launched right behind its notify, with outputs of a guessed size: it moves rows if the notify says EPF_HT_FITS, else nothing, at all
 * ranks alike, and then another dispatch follows. It fits if every rank has given its size, each rank's outputs are long enough and too long by at most `spare`
 * rows or an eighth of what arrives, and `room` is what all ranks said and enough. On one node only.
 */
#define EPF_HT_IF_IT_FITS 1u

/* Rows stay in the window, which one rank alone needs, too, and epf_ht_spread() copies them to their groups: there are no outputs. */
#define EPF_HT_GROUPED 2u

/*
 * Rows bring the number that their rank has given them and, with EPF_HT_GROUPED, those of their entries. At all ranks or at none. Rows then need windows, and
 * memory between nodes, of one scale more, or 1 + row.topk. Without it a grouped dispatch is one whose grouped rows are known from a dispatch before.
 */
#define EPF_HT_NUMBERED 4u

/* A dispatch. */
struct epf_ht_dispatch {
	size_t size; /* sizeof(struct epf_ht_dispatch) */
	struct epf_ht_row row;
	uint32_t tokens;
	uint32_t local;    /* experts of a rank; only read if row.topk is not 0 */
	uint32_t received; /* rows of the outputs */
	uint32_t room;     /* rows that a window must hold, the same at all ranks */
	uint32_t blocks;   /* multiprocessors to use at most; 0: chosen */
	uint32_t
		across; /* rows that cross between nodes, of the rank that has most; the same at all ranks */
	uint32_t forwarded;    /* rows of links */
	uint32_t flags;        /* EPF_HT_IF_IT_FITS, EPF_HT_GROUPED, EPF_HT_NUMBERED */
	uint32_t first_number; /* EPF_HT_NUMBERED: of this rank's first token; the others follow */
	const int32_t *place;
	const int32_t *matrix;
	const void *plan;
	int32_t *
		links; /* [forwarded][epf_ht_node_max()]: written, for combines; NULL with 0 rows: not wanted */
	const void *x; /* [tokens][row.bytes], 16-byte aligned */
	const void *
		scales; /* word w of a token's scales at [token * scale_stride[0] + w * scale_stride[1]] */
	uint64_t scale_stride[2]; /* in words */
	const int64_t *topk_idx;  /* [tokens][row.topk] */
	const float *weights;     /* [tokens][row.topk], or NULL */
	const int32_t *
		numbers; /* EPF_HT_NUMBERED | EPF_HT_GROUPED: [tokens][row.topk], of epf_ht_number() */
	/* Outputs. Rows behind the last one that arrives are not written, but for out_index: -1 */
	void *out;        /* [received][row.bytes], 16-byte aligned */
	void *out_scales; /* word w of a row's scales at [row * out_stride[0] + w * out_stride[1]] */
	uint64_t out_stride[2]; /* in words, below 2^32 */
	uint32_t *
		out_numbers; /* EPF_HT_NUMBERED: [received]: the number that its rank has given each row */
	int64_t *out_index; /* [received][row.topk]: experts as this rank numbers them, or -1 */
	float *out_weights; /* [received][row.topk]: 0 where out_index is -1 */
};

/* A combine of BF16 rows. */
struct epf_ht_combine {
	size_t size; /* sizeof(struct epf_ht_combine) */
	uint32_t row_bytes;
	uint32_t topk;     /* of weights; 0: none */
	uint32_t tokens;   /* of this rank */
	uint32_t received; /* rows of x */
	uint32_t room;
	uint32_t blocks;
	uint32_t across;
	uint32_t forwarded;
	const int32_t *place;
	const int32_t *matrix;
	const void *plan;
	const int32_t *links; /* [forwarded][epf_ht_node_max()], as the dispatch wrote it */
	const void *
		x; /* [received][row_bytes], 16-byte aligned: in the order in which dispatch gave them */
	const float *weights; /* [received][topk], or NULL */
	const uint64_t *
		folded; /* of the epf_ht_fold() beside this call that makes x and weights; NULL: they are there */
	const void *bias[2]; /* [tokens][row_bytes], or NULL */
	void *out;           /* [tokens][row_bytes] */
	float *out_weights; /* [tokens][topk]: sums over ranks, ascending, in FP32; with several nodes of each, and then over nodes */
};

/*
 * Rows grouped by expert, one for each entry, groups in ascending expert, in each the order of the rows: epf_ht_number() and epf_ht_notify(), an
 * epf_ht_dispatch() with EPF_HT_GROUPED, epf_ht_groups() and epf_ht_spread(). A spread runs beside its dispatch: launch it behind it, on another stream that has
 * waited for what is in front of the dispatch, and let nothing follow that has not waited for both. Both, and what other ranks' kernels wait for on this device,
 * must find room there at once: where that is not sure, launch the spread behind the dispatch on its stream. Every grouped dispatch that moves rows needs one.
 */

/* Parts that entries are shared out in, at most. */
#define EPF_HT_NUMBER_PARTS 128u

/* Numbers of the entries of this rank's tokens: how many entries of the same expert come before, in the order of tokens and top-k. */
struct epf_ht_number {
	size_t size; /* sizeof(struct epf_ht_number) */
	uint32_t tokens;
	uint32_t topk;
	uint32_t experts; /* of all ranks */
	uint32_t reserved;
	const int64_t *topk_idx; /* [tokens][topk]: an expert; others, as -1: none */
	int32_t *
		work; /* [EPF_HT_NUMBER_PARTS][experts, at most EPF_HT_LOCAL_MAX] of device memory */
	int32_t *numbers; /* [tokens][topk]: written where there is an expert */
};

/* Where the groups lie, from what the last epf_ht_notify() exchanged. */
struct epf_ht_groups {
	size_t size;      /* sizeof(struct epf_ht_groups) */
	uint32_t experts; /* of this rank */
	uint32_t align;   /* each group begins at a multiple of it; 0: 1 */
	/* Outputs. */
	int32_t *
		starts; /* [ranks][experts]: the grouped row of a rank's first entry of an expert */
	int32_t *counts;  /* [experts]: entries */
	int32_t *ends;    /* [experts]: one past the last entry of a group */
	int32_t *aligned; /* [experts]: one past the last row of a group: a multiple of align */
};

/*
 * Flags of a spread: EPF_HT_IF_IT_FITS, for one that is launched with its dispatch before the counts are known: it copies only if the dispatch moves rows, and slots and
 * outputs are long enough. Otherwise it does nothing, and another one must follow.
 */
#define EPF_HT_ZERO \
 8u /* grouped rows that no entry has are zeros; otherwise only their weights are */

struct epf_ht_spread {
	size_t size; /* sizeof(struct epf_ht_spread) */
	struct epf_ht_row
		row; /* as the dispatch, with all that follows down to `numbers`, but rows, grouped, blocks and flags */
	uint32_t local;
	uint32_t room;
	uint32_t tokens;
	uint32_t rows;    /* of slots and out_numbers: those that can arrive, at least */
	uint32_t grouped; /* of the outputs */
	uint32_t blocks;  /* multiprocessors to use at most; 0: two thirds of them */
	uint32_t flags;   /* EPF_HT_ZERO, EPF_HT_IF_IT_FITS */
	uint32_t first_number;
	uint32_t reserved;
	const int32_t *place;
	const int32_t *matrix;
	const void *x;
	const void *scales;
	uint64_t scale_stride[2];
	const int64_t *topk_idx;
	const float *weights;
	const int32_t *numbers;
	const int32_t *
		starts; /* of epf_ht_groups(), as the next two; NULL: slots are known, and the dispatch was without EPF_HT_NUMBERED */
	const int32_t *ends;
	const int32_t *aligned;
	int32_t *
		slots; /* [rows][row.topk]: the grouped row of each entry, or -1. With starts they are written */
	/* Outputs. */
	void *out;        /* [grouped][row.bytes], 16-byte aligned */
	void *out_scales; /* word w of a row's scales at [row * out_stride[0] + w * out_stride[1]] */
	uint64_t out_stride[2]; /* in words */
	uint32_t *out_numbers;  /* with starts: [rows]: as of a dispatch; or NULL */
	float *out_weights;     /* [grouped], or NULL */
};

/* Parts that a fold counts, at most. */
#define EPF_HT_FOLD_PARTS 16u

/*
 * Back: a row of BF16 for each received one, the sum of its entries' rows. A grouped row belongs to at most one entry. With `folded`, and on one node, the combine of
 * these rows runs beside it: launch the fold first, and the combine on a stream that does not wait for it.
 */
struct epf_ht_fold {
	size_t size; /* sizeof(struct epf_ht_fold) */
	uint32_t row_bytes;
	uint32_t topk;
	uint32_t rows;
	uint32_t grouped;      /* number of grouped rows */
	uint32_t blocks;       /* multiprocessors to use at most; 0: all */
	uint32_t room;         /* as the combine */
	const int32_t *matrix; /* as the combine */
	const int32_t *
		slots; /* [rows][topk]: the grouped row of each entry; negative, or not below grouped: none */
	const void *x;        /* [grouped][row_bytes], 16-byte aligned */
	const float *weights; /* [grouped], or NULL */
	/* Outputs. */
	uint64_t *
		folded; /* [EPF_HT_FOLD_PARTS], zeros: what is there is counted, for the combine; or NULL */
	void *out; /* [rows][row_bytes], 16-byte aligned; rows without an entry are left unwritten */
	float *out_weights; /* [rows][topk]: 0 for an entry without a grouped row */
};

/* Returns the bytes of control memory. A pure function. */
uint64_t epf_ht_control_bytes(uint32_t ranks);

/* Returns the bytes that a window needs for so many rows. A pure function. */
uint64_t epf_ht_window_bytes(const struct epf_ht_row *row, uint32_t rows);

/* Returns the bytes of a plan. */
uint64_t epf_ht_plan_bytes(const struct epf_ht *ht, uint32_t tokens);

/* Returns the number of nodes, and of the ranks of the largest one. */
uint32_t epf_ht_nodes(const struct epf_ht *ht);
uint32_t epf_ht_node_max(const struct epf_ht *ht);

/*
 * Returns the bytes of memory between nodes that epf_ht_reserve() would make for `across` rows of this shape; 0: there is enough, as always on one node.
 */
uint64_t epf_ht_lacks(const struct epf_ht *ht, const struct epf_ht_row *row, uint32_t across);

/*
 * Collective: makes that memory; all ranks give the same numbers. Call it when no kernel of any rank runs that moves rows. -ENOMEM, errors of epf.h.
 */
int epf_ht_reserve(struct epf_ht *ht, const struct epf_ht_row *row, uint32_t across);

/*
 * Collective: kernels and the words they keep. ll: joined, of the same ranks; stays the caller's and must outlive *out. -EINVAL: an option;
 * -ENOTSUP: this build has no kernels for the device; errors of epf.h.
 */
int epf_ht_open(struct epf_ll *ll, const struct epf_ht_options *opts, struct epf_ht **out);

/* Call it when no kernel of it runs any more. NULL is fine. */
void epf_ht_close(struct epf_ht *ht);

/*
 * Sets this rank's window and where it stores to those of the others. Call it at all ranks, when no kernel of any rank uses a window, and go on
 * when all have called it.
 */
int epf_ht_set_window(struct epf_ht *ht, void *window, uint64_t bytes, void *const *peers);

/*
 * Memory for outputs, in segments, as an allocator of PyTorch calls it: device memory of the current context, of at least `bytes`; host memory in a
 * process that has loaded no GPU driver. Returns NULL if there is none. A freed segment that is mapped stays until the objects that map it are closed. Any thread.
 */
void *epf_ht_pool_alloc(size_t bytes, int device, void *stream);
void epf_ht_pool_free(void *base, size_t bytes, int device, void *stream);

/* Asks for the segment that holds `at` to be mapped, as a dispatch does whose outputs lie in one that is not. */
void epf_ht_want(struct epf_ht *ht, const void *at);

/* Returns how many segments this rank has asked for, and number i of them. */
uint32_t epf_ht_wanted(const struct epf_ht *ht, uint32_t i, void **base, uint64_t *bytes);

/*
 * Collective within the node: all ranks map one segment more, each of its own or none. base, bytes: the first that this rank has asked for, or NULL.
 * peers[r]: where this device stores to the segment of rank r; NULL: that rank gives none. Kernels may run meanwhile. -ENOSPC: there are
 * EPF_HT_SEGMENTS_MAX.
 */
int epf_ht_map(struct epf_ht *ht, void *base, uint64_t bytes, void *const *peers);

/*
 * Counts the routing of a batch: in_rank, per_rank, per_node, per_expert. Not collective. Kernels of one object share memory and must not run beside each other:
 * whoever puts calls into several streams orders them (epf_ht_order).
 */
int epf_ht_layout(struct epf_ht *ht, const struct epf_ht_routing *r, void *stream);

/* Exchanges counts: place, matrix, host. */
int epf_ht_notify(struct epf_ht *ht, const struct epf_ht_routing *r, void *stream);

/*
 * Waits on the CPU for the last epf_ht_notify() with this host array. Returns 0, or -ETIMEDOUT with who was missing. Holds no lock, so that an
 * interpreter may let other threads run.
 */
int epf_ht_wait_counts(struct epf_ht *ht, const int64_t *host);

/* Each returns 0 or a negative errno. */
int epf_ht_dispatch(struct epf_ht *ht, const struct epf_ht_dispatch *d, void *stream);
int epf_ht_combine(struct epf_ht *ht, const struct epf_ht_combine *c, void *stream);

/* Each returns 0, or -EINVAL for an invalid argument, and waits for no rank; a spread waits for what its dispatch waits for. */
int epf_ht_number(struct epf_ht *ht, const struct epf_ht_number *n, void *stream);
int epf_ht_groups(struct epf_ht *ht, const struct epf_ht_groups *g, void *stream);
int epf_ht_spread(struct epf_ht *ht, const struct epf_ht_spread *s, void *stream);

/* row = bf16(acc), acc = +0; for each entry in the order of top-k: acc = acc + float(grouped row), FP32. */
int epf_ht_fold(struct epf_ht *ht, const struct epf_ht_fold *f, void *stream);

/*
 * Streams in order, for programs that put calls into several. Each returns 0 or an error of epf.h; the caller waits for nothing. On a CPU, where calls have
 * run when they return, they do nothing.
 *
 *  order   What is put into `to` from now on waits for what `from` has to do so far.
 *  event   Makes an event for record and wait; NULL on a CPU. It belongs to ht and ends with it. Beside calls of other threads, but for this one.
 *  record  Lets an event mean what the stream has to do so far. Streams that wait for an earlier record of it still wait for that one. Any thread.
 *  wait    What is put into the stream from now on waits for the event's last record. Any thread.
 */
int epf_ht_order(struct epf_ht *ht, void *from, void *to);
int epf_ht_event(struct epf_ht *ht, void **event);
int epf_ht_record(struct epf_ht *ht, void *event, void *stream);
int epf_ht_wait(struct epf_ht *ht, void *event, void *stream);

/*
 * Returns what kernels reported since the last call, which it clears. Waits for nothing. -ETIMEDOUT: a rank did not come in time; -ECONNRESET: one is lost or has closed; -ENOSPC: rows
 * did not fit; -EINVAL: an expert that does not exist; else as epf_gpu_check().
 */
int epf_ht_check(struct epf_ht *ht);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
