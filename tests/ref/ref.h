/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference: the results of dispatch and combine in plain, slow C. Called by the tests and by ep-bench's check. It includes no
 * header of the project and shares no code with it: number conversions search for the nearest value, sums are written out in the
 * specified order.
 *
 * Ranks, nodes, experts and tokens are counted from 0. Experts are split evenly: rank r owns the
 * experts/ranks consecutive experts from r * (experts/ranks). Uneven splits are an error, as in
 * DeepEP. Functions return 0 (or a count) or -errno; on an error no output is written.
 */
#ifndef EPF_TESTS_REF_H
#define EPF_TESTS_REF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REF_BLOCK    128
#define REF_TOPK_MAX 16

/* ---- numbers (ref_num.c) ---- */

/* The value of a code or pattern, by the formula of its format. */
float ref_bf16_decode(uint16_t b);
float ref_e4m3_decode(uint8_t code);

/* The nearest pattern, ties to the even one. NaN: 0x7fff and 0x7f. E4M3 saturates at 448. */
uint16_t ref_bf16_encode(float f);
uint8_t ref_e4m3_encode(float f);

/* The same for rows of n. */
void ref_bf16_decode_row(float *out, const uint16_t *x, int n);
void ref_bf16_encode_row(uint16_t *out, const float *x, int n);

/**
 * ref_quantise() - FP8 codes and scales of one BF16 row; see ref_num.c for the order of operations.
 * @pow2_scale: scales are rounded up to a power of two.
 * @q: [hidden]. @scales: [hidden / 128]. Return: 0 or -EINVAL (hidden).
 */
int ref_quantise(const uint16_t *x, int hidden, int pow2_scale, uint8_t *q, float *scales);

/** ref_dequantise() - out[c] = bf16(float(q[c]) * scale of its block). Return: 0 or -EINVAL. */
int ref_dequantise(const uint8_t *q, const float *scales, int hidden, uint16_t *out);

/**
 * ref_logfmt() - a BF16 row after a transfer as LogFMT (kernels/ll/README.md), in place.
 * Return: how many of its blocks of 128 stayed BF16, or -EINVAL (hidden).
 */
int ref_logfmt(uint16_t *x, int hidden);

/* ---- jobs (ref_moe.c) ---- */

/**
 * struct ref_job - all inputs of all ranks. The caller owns every array.
 * @hidden: a positive multiple of 128.
 * @node_of_rank: [ranks], each 0 to ranks-1; nodes may be of any size and need not be contiguous.
 * @tokens: [ranks], 0 allowed.
 * @topk_idx: [ranks] arrays [tokens][topk]: an expert, or -1 for 'not selected'. A token's experts
 *   are distinct.
 * @weights: [ranks] arrays [tokens][topk]. May be NULL for lists.
 * @x: [ranks] arrays [tokens][hidden], BF16. May be NULL without payload.
 */
struct ref_job {
	int ranks;
	int experts;
	int topk;
	int hidden;
	const int *node_of_rank;
	const int *tokens;
	const int64_t *const *topk_idx;
	const float *const *weights;
	const uint16_t *const *x;
};

/** ref_job_error() - NULL if the job is valid, else the reason. Call it once, first. */
const char *ref_job_error(const struct ref_job *job);

/* One arrival: a token of a source rank, by its k-th selection (low latency) or its first here. */
struct ref_entry {
	int src;
	int token;
	int k;
};

enum ref_format {
	REF_BF16,
	REF_FP8,
	REF_FP8_POW2,
};

/** ref_row_bytes() - BF16: 2 * hidden. FP8: hidden codes, then hidden/128 little-endian floats. */
size_t ref_row_bytes(int hidden, enum ref_format format);

/**
 * ref_payload() - the row of a token on the wire, laid out as above.
 * @row: [ref_row_bytes()]. Return: 0, -EINVAL (no x, or src or token out of range), -ENOMEM.
 */
int ref_payload(const struct ref_job *job, int src, int token, enum ref_format format, void *row);

/**
 * ref_ll_list() - rows of local expert @local of rank @dst in low-latency mode.
 * @out: the first @cap entries, ordered by source rank, then token. May be NULL when @cap is 0.
 * @counts: NULL or [ranks]: entries from each source rank.
 * Return: the number of entries in all, or -EINVAL.
 */
long ref_ll_list(const struct ref_job *job, int dst, int local, struct ref_entry *out, long cap,
		 int *counts);

/**
 * ref_expert_row - an expert's BF16 output for one token, [hidden].
 * The row stays valid until the next call. NULL stops the combine with -ENOENT.
 */
typedef const uint16_t *(*ref_expert_row)(void *arg, int expert, int src, int token);

/**
 * ref_ll_combine() - a token's result in low-latency mode, out [hidden].
 * acc = +0; for k ascending, -1 skipped: acc = acc + weight[k] * float(row[c]), each operation
 * rounded to FP32; out[c] = bf16(acc).
 * Return: 0, -EINVAL, -ENOENT (the callback), -ENOMEM.
 */
int ref_ll_combine(const struct ref_job *job, int src, int token, ref_expert_row row, void *arg,
		   uint16_t *out);

/**
 * ref_ll_combine_sums() - the same with sums at the sender: each rank sums its rows of the token first.
 * For each rank with an expert of the token, in the order of its first k:
 * part = +0; for its k ascending: part = part + weight[k] * float(row[c]); acc = acc + float(bf16(part)).
 * out[c] = bf16(acc). An expert may occur twice. Return: as above.
 */
int ref_ll_combine_sums(const struct ref_job *job, int src, int token, ref_expert_row row,
			void *arg, uint16_t *out);

/**
 * ref_ht_list() - rows of rank @dst in high-throughput mode: each token once if any of its experts
 * is there, ordered by source rank, then token.
 * @out: the first @cap entries; k is the token's first selection on this rank.
 * @topk_idx: NULL or [cap][topk]: local expert numbers, -1 for experts elsewhere.
 * @weights: NULL or [cap][topk]: the weights of the local ones, +0 elsewhere.
 * @counts: NULL or [ranks]: entries from each source rank.
 * Return: the number of entries in all, or -EINVAL.
 */
long ref_ht_list(const struct ref_job *job, int dst, struct ref_entry *out, int64_t *topk_idx,
		 float *weights, long cap, int *counts);

/**
 * ref_ht_targets() - the distinct ranks a token goes to, ordered by node, then rank.
 * @dst: [REF_TOPK_MAX]. Return: how many.
 */
int ref_ht_targets(const struct ref_job *job, int src, int token, int *dst);

/** ref_rank_row - the BF16 row [hidden] that rank @dst releases for a token; as above. */
typedef const uint16_t *(*ref_rank_row)(void *arg, int dst, int src, int token);

/**
 * ref_ht_combine() - a token's result in high-throughput mode, out [hidden].
 * For each node that holds a target: part = +0; for its target ranks ascending: part = part +
 * float(row[c]) in FP32; part = bf16(part): every node, the source's own included. Then acc = +0;
 * for nodes ascending: acc = acc + float(part) in FP32; out[c] = bf16(acc).
 * Return: 0, -EINVAL, -ENOENT (the callback), -ENOMEM.
 */
int ref_ht_combine(const struct ref_job *job, int src, int token, ref_rank_row row, void *arg,
		   uint16_t *out);

/** ref_rank_weights - the FP32 weights [topk] that rank @dst releases for a token; as above. */
typedef const float *(*ref_rank_weights)(void *arg, int dst, int src, int token);

/**
 * ref_ht_combine_weights() - the same two sums over weights, all in FP32, nothing rounded to BF16.
 * @out: [topk]. Return: 0, -EINVAL, -ENOENT (the callback).
 */
int ref_ht_combine_weights(const struct ref_job *job, int src, int token, ref_rank_weights row,
			   void *arg, float *out);

/**
 * ref_ht_internode_bytes() - payload that crosses between nodes in high-throughput mode, one way.
 * Tokens x distinct remote nodes x @row_bytes; the way back has the same count of rows.
 * @src: only this rank's tokens, or -1 for all. @node: only towards this node, or -1 for all.
 */
uint64_t ref_ht_internode_bytes(const struct ref_job *job, int src, int node, size_t row_bytes);

/** ref_ll_internode_bytes() - the same for low latency: (token, k) pairs with a remote expert. */
uint64_t ref_ll_internode_bytes(const struct ref_job *job, int src, int node, size_t row_bytes);

#ifdef __cplusplus
}
#endif
#endif
