/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch and combine of Mixture-of-Experts layers (decode), as kernels on a stream, with plain pointers and sizes. This is
 * what the Python package and C programs call. The kernels are one source for CUDA, HIP and plain C (kernels/ll); for device EPF_LL_CPU
 * the plain C form runs on the calling thread, on host memory, and every pointer below is a host pointer.
 *
 * Library libepf-ll, over libepf. Usable from C, C++ and by ctypes: structs have no bit-fields, unions or implied padding.
 *
 * Words. Rank: of the struct epf. Experts are spread evenly: expert e lives at rank e / (experts / ranks), and its local number is
 * e % (experts / ranks). "N" below is ranks * tokens_max. "Half": one of the two phases of a call, which may be launched apart.
 *
 * The two calls:
 *
 *  dispatch  Token t goes to every expert of topk_idx[t][0..topk). Each local expert gets its rows packed: first those of rank 0 in
 *            ascending token, then those of rank 1, and so on. So the result is the same, bit for bit, whenever it is repeated.
 *  combine   y[e][i], the expert's BF16 output for row i, goes back to where that row came from, and the token's rank adds
 *                acc = +0;  for k = 0 .. topk-1, entries of -1 and of masked ranks left out:  acc = acc + w[k] * float(y)
 *            product and sum rounded to FP32 each, never fused; then bf16(acc), nearest even (kernels/host/README.md).
 *            Or, asked for by EPF_LL_SUM_AT_SENDER, each rank adds so what it holds of a token, and the token's rank adds these sums.
 *
 * Halves. EPF_LL_SEND reads the inputs, and puts the rows on their way; EPF_LL_RECV waits for what comes, and writes the outputs. Both in one
 * call, or SEND now and RECV later in the same stream: nothing of the GPU is held in between. RECV halves of one kind (dispatch or
 * combine) must run in the order of their SEND halves, and all ranks make the same calls with the same shape in the same order.
 * At most two of a kind may be under way; a third may be sent when something was received that every rank sent after it had received the
 * first (calls that alternate, and two batches that overlap as dispatch, dispatch, combine, combine, are so). A call's outputs are the caller's memory: nothing of them is reused.
 *
 * Double buffers and graphs. Which of the two sets of buffers a call uses is counted on the device, by the kernels. So a captured graph may hold any
 * number of calls, be replayed, and be mixed with eager calls.
 *
 * Dead ranks. A RECV half waits for each rank at most timeout_ns, and no longer once the engine knows that the rank is lost or has closed. A rank that did not come gets masked: its rows count as none, the call
 * returns normally, and epf_ll_check() names it. Masked ranks are neither sent to nor waited for, until the mask is cleared.
 *
 * Errors: 0 or a negative errno; epf_ll_error() then holds one line with cause and remedy. One thread at a time for one struct epf_ll.
 */
#ifndef EPF_KERNELS_LL_H
#define EPF_KERNELS_LL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct epf;    /* epf.h */
struct epf_ll; /* one rank's buffers, state and kernels */

#define EPF_LL_CPU         (-1)
#define EPF_LL_RANKS_MAX   4096u
#define EPF_LL_TOKENS_MAX  65536u /* per rank */
#define EPF_LL_TOPK_MAX    16u
#define EPF_LL_HIDDEN_MAX  65536u
#define EPF_LL_EXPERTS_MAX 65536u
#define EPF_LL_BLOCK       128u /* channels that share an FP8 scale */
/*
 * tokens * topk of a rank from which sums at the sender pay. Two H100 and two H200: from 40 to 50 tokens of top-8; four H200: 30. With more ranks fewer of a
 * token's experts share one; nothing has measured how many tokens it takes then.
 */
#define EPF_LL_SUMS_FROM(ranks) ((ranks) > 4u ? 80u * (ranks) : 320u)

/* Which halves of a call are launched. */
enum {
	EPF_LL_SEND = 1,
	EPF_LL_RECV = 2,
	EPF_LL_BOTH = 3,
};

/* Flags of a dispatch. */
enum {
	EPF_LL_FP8 = 1,         /* E4M3 codes with a scale per 128 channels; without: BF16 */
	EPF_LL_ROUND_SCALE = 2, /* scales are powers of two. Needs FP8 */
	EPF_LL_UE8M0 =
		4, /* scales as exponent bytes, four an int32. Needs ROUND_SCALE, hidden % 512 == 0 */
};

/* Flags of a combine. */
enum {
	EPF_LL_ZERO_COPY =
		1,         /* x is the buffer of epf_ll_next_combine_buffer(): nothing is copied */
	EPF_LL_LOGFMT = 2, /* rows travel as LogFMT, 10 bits a channel: not with ZERO_COPY */
	/*
	 * One row a token and rank travels instead of one an expert: see epf_ll_combine(). Needs src_row. Not with LOGFMT.
	 */
	EPF_LL_SUM_AT_SENDER = 4,
	/*
	 * With SUM_AT_SENDER: only for the tokens of ranks where tokens * topk is at least EPF_LL_SUMS_FROM(ranks); those of others travel row by row, and nobody
	 * waits for their weights.
	 */
	EPF_LL_SUM_IF_MANY = 8,
};

/* What all ranks agree on in a call. */
struct epf_ll_shape {
	uint32_t tokens_max; /* most tokens of any rank, 1 .. EPF_LL_TOKENS_MAX */
	uint32_t hidden;     /* channels: a positive multiple of 128 */
	uint32_t experts;    /* of all ranks: a positive multiple of ranks */
	uint32_t topk;       /* 1 .. EPF_LL_TOPK_MAX */
};

struct epf_ll_options {
	size_t size;           /* sizeof(struct epf_ll_options): lets the struct grow */
	int32_t device;        /* EPF_LL_CPU, or the GPU's ordinal as its driver counts */
	uint32_t first_signal; /* 8 * ranks signals from here on are ours (setting `signals`) */
	uint64_t
		bytes; /* of communication memory, at least epf_ll_size_hint() of every shape used */
	/*
	 * NULL: allocated here. Else the communication memory, page-aligned, the caller's until after epf_ll_close() and
	 * epf_close(): host memory (service mode: of epf_memory_alloc), or memory of `device`. What it holds is overwritten.
	 */
	void *memory;
	uint64_t
		timeout_ns; /* a RECV half waits so long for each rank; 0: the setting gpu-timeout */
	uint32_t
		blocks; /* thread blocks (multiprocessors) of a launch, at most 256; 0: chosen. CPU: no effect */
	uint32_t reserved; /* 0 */
	/*
	 * NULL, or [ranks]: where this process, or this GPU, can store to the communication memory of rank r, NULL: it cannot.
	 * Rows then go there by plain stores instead of commands. Used towards r only if r gave a pointer for this rank too.
	 * This rank's own entry is not read.
	 */
	void *const *peers;
	/* CPU: NULL, or called while a kernel waits, instead of epf_progress(): as in struct epf_options. */
	int (*progress)(void *arg);
	void *progress_arg;
};

/* A dispatch. Arrays are dense, row-major; the stream's GPU reads and writes them while the halves run. */
struct epf_ll_dispatch {
	size_t size; /* sizeof(struct epf_ll_dispatch) */
	struct epf_ll_shape shape;
	uint32_t tokens; /* of this rank, 0 .. tokens_max */
	uint32_t flags;  /* EPF_LL_FP8 | EPF_LL_ROUND_SCALE | EPF_LL_UE8M0 */

	/* Inputs, read by SEND. 16-byte aligned; may be NULL if tokens is 0 */
	const void *x;           /* BF16 [tokens][hidden] */
	const int64_t *topk_idx; /* [tokens][topk]: an expert, each at most once a token, or -1 */

	/* Outputs, written by RECV. Rows behind the last received one are not touched */
	void *recv_x; /* [local experts][N][hidden], BF16 or E4M3 codes, 16-byte aligned */
	/*
	 * FP8: [local experts][hidden / 128][N] float, the factor to multiply codes with; with UE8M0 [local experts][hidden / 512][N] int32, byte b
	 * of word j the exponent of block 4j + b. That is the column-major order that TMA wants: seen as [local experts][N][blocks] its
	 * strides are (blocks * N, 1, N). NULL for BF16.
	 */
	void *recv_scales;
	int32_t *recv_count; /* [local experts] rows received */
	int32_t *src_info;   /* [local experts][N] the row's token number at its source */
	int32_t *src_slot;   /* [local experts][N] token * topk + k: for epf_ll_combine() only */
	/*
	 * [local experts][ranks]: which rows came from rank r: the count in the low 32 bits, the first row in the high 32.
	 * A rank without rows has count 0 and the place where they would begin.
	 */
	int64_t *layout_range;

	/* Added to by RECV; NULL: not wanted */
	int32_t *recv_stats; /* [local experts]: rows received */
	int64_t *wait_stats; /* [ranks]: nanoseconds waited for that rank */

	/*
	 * Output, written by RECV; NULL: not wanted. [ranks * tokens_max * topk + ranks]: first [ranks][tokens_max][topk]: where the row of entry k of a token of that rank lies, counted over
	 * [local experts][N], for epf_ll_combine() with EPF_LL_SUM_AT_SENDER only. Only entries of this rank's experts are written. Then [ranks]:
	 * how many tokens each rank has, 0 for masked ones.
	 */
	int32_t *src_row;
};

/* A combine of what a dispatch brought: same shape, and the three arrays that it wrote. */
struct epf_ll_combine {
	size_t size; /* sizeof(struct epf_ll_combine) */
	struct epf_ll_shape shape;
	uint32_t tokens; /* of this rank, as in its dispatch */
	uint32_t
		flags; /* EPF_LL_ZERO_COPY | EPF_LL_LOGFMT | EPF_LL_SUM_AT_SENDER | EPF_LL_SUM_IF_MANY */

	/* Read by SEND */
	const void *
		x; /* BF16 [local experts][N][hidden], 16-byte aligned: the experts' outputs, row for row */
	const int32_t *src_info;     /* not read: src_slot says it all */
	const int32_t *src_slot;     /* [local experts][N] */
	const int64_t *layout_range; /* [local experts][ranks] */

	/* Read by RECV, and with EPF_LL_SUM_AT_SENDER by SEND too */
	const int64_t *topk_idx;   /* [tokens][topk], as in the dispatch */
	const float *topk_weights; /* [tokens][topk] */

	/* Written by RECV */
	void *out; /* BF16 [tokens][hidden], 16-byte aligned; a token without experts gets zeros */
	int64_t *
		wait_stats; /* [ranks]: nanoseconds waited for that rank are added; NULL: not wanted */

	/* Read by SEND with EPF_LL_SUM_AT_SENDER; else NULL is fine */
	const int32_t *src_row; /* as the dispatch wrote it */
};

/* Fills with defaults: zeros, size, device EPF_LL_CPU. */
void epf_ll_options_init(struct epf_ll_options *opts);

/**
 * epf_ll_size_hint() - bytes of communication memory that a shape needs, for any topk up to EPF_LL_TOPK_MAX.
 *
 * A pure function. 0 where no buffer can serve these numbers (epf_ll_error() says why).
 */
uint64_t epf_ll_size_hint(uint32_t tokens_max, uint32_t hidden, uint32_t ranks, uint32_t experts);

/**
 * epf_ll_head_bytes() - how much of the communication memory, from its beginning, is the kernels' alone: there ranks count. A multiple of the page.
 *
 * What lies behind it may be written to while no call is under way at any rank, to begin again with zeros, say. A pure function; 0 for a number of
 * ranks that cannot be.
 */
uint64_t epf_ll_head_bytes(uint32_t ranks);

/**
 * epf_ll_open() - collective over all ranks of the job: memory, its registration and exchange, rings for kernels, the kernels themselves.
 * @ep: joined; stays the caller's and must outlive *out. One struct epf_ll a rank (it takes the rank's struct epf_gpu).
 *
 * For a GPU, call it in the thread whose current device it is. -EINVAL: an option; -ENOSPC: too few signals; -ENODEV: no such GPU; -ENOTSUP: this build has no kernels for it;
 * -EPROTO: ranks disagree, or their kernels are of different builds; errors of epf.h. Which rank fails first decides what the others see: they run into the bootstrap's deadline.
 */
int epf_ll_open(struct epf *ep, const struct epf_ll_options *opts, struct epf_ll **out);

/**
 * epf_ll_close() - when no kernel of it runs any more: waits until what was sent is retired, and forgets it. NULL is fine.
 *
 * Its memory stays registered until epf_close(), because peers may still be on their way. Not collective.
 */
void epf_ll_close(struct epf_ll *ll);

/**
 * epf_ll_dispatch() - launches halves of a dispatch.
 * @d: read before the call returns; the memory it points to is used until the halves have run.
 * @halves: EPF_LL_SEND, EPF_LL_RECV or EPF_LL_BOTH. Give the same @d to both.
 * @stream: cudaStream_t or hipStream_t; NULL: the default stream. CPU: not used, the halves have run when the call returns.
 *
 * What RECV wrote is visible to later work of the stream. SEND's inputs may be reused by later work of the stream.
 * Return: 0; -EINVAL (a value outside its range, a pointer missing), -E2BIG (the shape does not fit into `bytes`); errors of epf.h. What goes
 * wrong in a kernel is reported by epf_ll_check().
 */
int epf_ll_dispatch(struct epf_ll *ll, const struct epf_ll_dispatch *d, unsigned halves,
		    void *stream);

/**
 * epf_ll_combine() - launches halves of a combine. All as for epf_ll_dispatch().
 *
 * With EPF_LL_LOGFMT a sum is of rows that went through LogFMT (kernels/ll/README.md), bit for bit the same everywhere; x must not be the memory of
 * epf_ll_next_combine_buffer(). All ranks give the same flags. With EPF_LL_ZERO_COPY x must be what epf_ll_next_combine_buffer() gives (-EINVAL), and may be written again after the
 * next but one combine's SEND.
 *
 * With EPF_LL_SUM_AT_SENDER a rank r that holds experts of a token makes  part = +0;  for its entries k, ascending:  part = part + w[k] * float(y)
 * and sends bf16(part); the token's rank adds  acc = +0;  for each rank that holds one, in the order of its first entry:  acc = acc + part,  and
 * writes bf16(acc). Roundings as above; so bits differ from the other form's. A SEND half then begins by telling all ranks this rank's weights, and waits for
 * theirs: it ends only when every rank has begun this combine (or is masked: it waits as a RECV half does, and adds to wait_stats), and
 * holds the GPU meanwhile. With ZERO_COPY too, what x holds afterwards is undefined.
 */
int epf_ll_combine(struct epf_ll *ll, const struct epf_ll_combine *c, unsigned halves,
		   void *stream);

/**
 * epf_ll_next_combine_buffer() - the memory that the next combine's SEND half sends from.
 * @addr: BF16 [local experts][N][hidden], dense, in communication memory.
 *
 * Two of them take turns with each SEND half of a combine that is launched. Valid to write from when the dispatch it answers has been received.
 */
int epf_ll_next_combine_buffer(struct epf_ll *ll, const struct epf_ll_shape *shape, void **addr);

/**
 * epf_ll_clean() - collective over the ranks that are not masked: begins again. Every half that was launched must have been received by all ranks or be
 * given up.
 *
 * Waits for @stream, meets the other ranks by a kernel on it, forgets what came late or never. A rank that does not come in time gets masked, as in a RECV
 * half, and epf_ll_check() names it. Needed after masks were cleared and before a change of shape: never otherwise. Masks stay. Not to be captured.
 */
int epf_ll_clean(struct epf_ll *ll, void *stream);

/**
 * epf_ll_mask_update() - masks a rank (@masked not 0) or clears its mask, in stream order.
 *
 * Local: the other ranks do not learn of it. A rank whose mask is cleared counts again after an epf_ll_clean() of all ranks.
 * Masking oneself is -EINVAL.
 */
int epf_ll_mask_update(struct epf_ll *ll, uint32_t rank, int masked, void *stream);

/** epf_ll_mask_query() - writes 1 for masked ranks, else 0, to @out [ranks] (memory of the device), in stream order. */
int epf_ll_mask_query(struct epf_ll *ll, int32_t *out, void *stream);

/** epf_ll_mask_clean() - clears all masks, in stream order. */
int epf_ll_mask_clean(struct epf_ll *ll, void *stream);

/**
 * epf_ll_check() - what kernels reported since the last call, which it clears. Waits for nothing.
 *
 * 0; -ECONNRESET: ranks are lost or have closed and are masked now; -ETIMEDOUT: ranks did not come in time and are masked now (the sentence names them); -EPROTO: a rank is out of step (calls or shapes differ) and is masked now;
 * else as epf_gpu_check().
 */
int epf_ll_check(struct epf_ll *ll);

/** epf_ll_memory() - the communication memory and its bytes: what a peer's `peers` entry for this rank points to. */
void *epf_ll_memory(const struct epf_ll *ll, uint64_t *bytes);

/** epf_ll_error() - the last error of this thread: one line with cause and remedy, or "". Valid until its next failing call. */
const char *epf_ll_error(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
