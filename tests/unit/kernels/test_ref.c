/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference against a vector worked out by hand, and against rules that hold for any job.
 * Where a number format is involved kernels/host/num must agree with the same hand-made bytes.
 * Run by meson; nothing here moves bytes between processes.
 *
 * The hand-made job: ranks 0 and 1 on nodes 0 and 1; experts 0,1 live on rank 0 and 2,3 on rank 1;
 * top-2; 128 channels, so one scale a row. Each rank has two tokens:
 *
 *   token      experts   weights      first channels (all others 0)
 *   r0 t0      0, 2      0.5,  2      448  17  19  2^-10  3*2^-10  -1
 *   r0 t1      3, 1      0.25, 0.75   1  0.5  0.30078125
 *   r1 t0      2, -1     1,    0      3.5  -3.5
 *   r1 t1      -1, -1    0,    0      5
 */
#include "kernels/host/num.h"
#include "tests/ref/ref.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define H 128

/*
 * BF16 is the top half of a float: sign, 8 bits of exponent + 127, 7 bits of mantissa.
 *   448 = 2^8 * 1.75       (135 << 7) | 0x60 = 0x43e0
 *   17  = 2^4 * 1.0625     (131 << 7) | 0x08 = 0x4188
 *   19  = 2^4 * 1.1875     (131 << 7) | 0x18 = 0x4198
 *   2^-10                  (117 << 7)        = 0x3a80
 *   3 * 2^-10 = 2^-9 * 1.5 (118 << 7) | 0x40 = 0x3b40
 *   -1                     0x8000 | (127 << 7) = 0xbf80
 *   0.5                    (126 << 7)        = 0x3f00
 *   0.30078125 = 2^-2 * 1.203125 = 2^-2 * (1 + 26/128)   (125 << 7) | 26 = 0x3e9a
 *   3.5 = 2 * 1.75         (128 << 7) | 0x60 = 0x4060
 *   5   = 4 * 1.25         (129 << 7) | 0x20 = 0x40a0
 */
static const uint16_t x0[2][H] = { { 0x43e0, 0x4188, 0x4198, 0x3a80, 0x3b40, 0xbf80 },
				   { 0x3f80, 0x3f00, 0x3e9a } };
static const uint16_t x1[2][H] = { { 0x4060, 0xc060 }, { 0x40a0 } };

static const int64_t idx0[4] = { 0, 2, 3, 1 }, idx1[4] = { 2, -1, -1, -1 };
static const float w0[4] = { 0.5f, 2.0f, 0.25f, 0.75f }, w1[4] = { 1.0f, 0, 0, 0 };

static const int64_t *const all_idx[2] = { idx0, idx1 };
static const float *const all_w[2] = { w0, w1 };
static const uint16_t *const all_x[2] = { x0[0], x1[0] };
static const int nodes[2] = { 0, 1 }, tokens[2] = { 2, 2 };

static const struct ref_job job = {
	.ranks = 2,
	.experts = 4,
	.topk = 2,
	.hidden = H,
	.node_of_rank = nodes,
	.tokens = tokens,
	.topk_idx = all_idx,
	.weights = all_w,
	.x = all_x,
};

struct fp8_row {
	const uint16_t *x;
	uint32_t scale_bits;
	uint32_t pow2_scale_bits;
	uint8_t q[6];
	uint8_t pow2_q[6];
	uint16_t back[6];
};

/*
 * E4M3 is sign, 4 bits of exponent + 7, 3 bits of mantissa; below 2^-6 steps of 2^-9.
 *
 * r0 t0: amax 448, scale 448/448 = 1 (0x3f800000), inv 1. Power of two: the same.
 *   448 = 2^8 * 1.75     (15 << 3) | 6 = 0x7e
 *   17: between 16 (11 << 3 = 0x58) and 18 (0x59), in the middle: even code 0x58
 *   19: between 18 (0x59) and 20 (0x5a), in the middle: even code 0x5a
 *   2^-10: between 0 and 2^-9 (0x01), in the middle: 0x00
 *   3 * 2^-10: between 2^-9 (0x01) and 2^-8 (0x02), in the middle: 0x02
 *   -1: 0x80 | (7 << 3) = 0xb8
 *   back: 448 16 20 0 2^-8 -1 = 0x43e0 0x4180 0x41a0 0 (119 << 7 = 0x3b80) 0xbf80
 *
 * r0 t1: amax 1, scale 1/448 = 2^-9 * 1.142857..; 0.142857.. * 2^23 = 1198372.57, up: 0x124925;
 *   bits (118 << 23) | 0x124925 = 0x3b124925. inv = 448, exact.
 *   1 * 448: 0x7e.  0.5 * 448 = 224 = 2^7 * 1.75: (14 << 3) | 6 = 0x76.
 *   0.30078125 * 448 = 134.75: between 128 (14 << 3 = 0x70) and 144, nearer to 128: 0x70.
 *   back: 0x924925 = 9586981, so the scale is 9586981 * 2^-32. 448 * 9586981 = 2^32 + 192; float
 *   steps are 512 there, so 1.0 (0x3f80). 224: half of it, 0x3f00. 128 * scale = 2^-2 * 1.142857..
 *   = 0x3e924925; to BF16: the low half 0x4925 is below 0x8000, so 0x3e92.
 *   Power of two: 1/448 lies between 2^-9 and 2^-8: scale 2^-8 (0x3b800000), inv 256.
 *   256 = 2^8: 0x78. 128: 0x70. 77: between 72 = 2^6 * 1.125 (0x69) and 80 (0x6a); 76 is the
 *   middle, so 0x6a.
 *
 * r1 t0: amax 3.5, scale 3.5/448 = 1/128 = 2^-7 (120 << 23 = 0x3c000000), inv 128.
 *   3.5 * 128 = 448: 0x7e, and 0xfe. back: exact. Power of two: the same.
 */
static const struct fp8_row fp8_rows[] = {
	{ x0[0],
	  0x3f800000,
	  0x3f800000,
	  { 0x7e, 0x58, 0x5a, 0x00, 0x02, 0xb8 },
	  { 0x7e, 0x58, 0x5a, 0x00, 0x02, 0xb8 },
	  { 0x43e0, 0x4180, 0x41a0, 0x0000, 0x3b80, 0xbf80 } },
	{ x0[1],
	  0x3b124925,
	  0x3b800000,
	  { 0x7e, 0x76, 0x70 },
	  { 0x78, 0x70, 0x6a },
	  { 0x3f80, 0x3f00, 0x3e92 } },
	{ x1[0], 0x3c000000, 0x3c000000, { 0x7e, 0xfe }, { 0x7e, 0xfe }, { 0x4060, 0xc060 } },
};

static void assert_row(const uint8_t *q, float scale, const uint8_t *want, uint32_t want_bits)
{
	assert_memory_equal(&scale, &want_bits, sizeof(scale));
	assert_memory_equal(q, want, 6);
	for (int c = 6; c < H; c++)
		assert_int_equal(q[c], 0);
}

static void hand_fp8_rows(void **state)
{
	for (size_t i = 0; i < sizeof(fp8_rows) / sizeof(fp8_rows[0]); i++) {
		const struct fp8_row *r = &fp8_rows[i];
		uint16_t back[H], back_num[H];
		uint8_t q[H];
		float scale;

		assert_int_equal(ref_quantise(r->x, H, 1, q, &scale), 0);
		assert_row(q, scale, r->pow2_q, r->pow2_scale_bits);
		assert_int_equal(epf_num_quantise(r->x, H, EPF_NUM_POW2_SCALE, q, &scale), 0);
		assert_row(q, scale, r->pow2_q, r->pow2_scale_bits);
		assert_int_equal(epf_num_quantise(r->x, H, 0, q, &scale), 0);
		assert_row(q, scale, r->q, r->scale_bits);
		assert_int_equal(ref_quantise(r->x, H, 0, q, &scale), 0);
		assert_row(q, scale, r->q, r->scale_bits);
		assert_int_equal(ref_dequantise(q, &scale, H, back), 0);
		assert_int_equal(epf_num_dequantise(q, &scale, H, back_num), 0);
		assert_memory_equal(back, r->back, sizeof(r->back));
		assert_memory_equal(back_num, back, sizeof(back));
	}
}

static void hand_payload(void **state)
{
	uint8_t row[2 * H];
	float scale;

	assert_null(ref_job_error(&job));
	assert_int_equal(ref_row_bytes(H, REF_FP8), H + 4);
	assert_int_equal(ref_row_bytes(H, REF_BF16), 2 * H);
	assert_int_equal(ref_payload(&job, 1, 0, REF_FP8, row), 0);
	memcpy(&scale, row + H, sizeof(scale));
	assert_row(row, scale, fp8_rows[2].q, 0x3c000000);
	assert_int_equal(ref_payload(&job, 0, 1, REF_FP8_POW2, row), 0);
	memcpy(&scale, row + H, sizeof(scale));
	assert_row(row, scale, fp8_rows[1].pow2_q, 0x3b800000);
	assert_int_equal(ref_payload(&job, 1, 1, REF_BF16, row), 0);
	assert_memory_equal(row, x1[1], 2 * H);
	assert_int_equal(ref_payload(&job, 1, 2, REF_BF16, row), -EINVAL);
	assert_int_equal(ref_payload(&job, 2, 0, REF_BF16, row), -EINVAL);
}

static void assert_entry(struct ref_entry e, int src, int token, int k)
{
	assert_int_equal(e.src, src);
	assert_int_equal(e.token, token);
	assert_int_equal(e.k, k);
}

/* Expert 0: r0 t0. Expert 1: r0 t1 as its second. Expert 2: r0 t0 and r1 t0. Expert 3: r0 t1. */
static void hand_ll_lists(void **state)
{
	struct ref_entry e[4];
	int counts[2];

	assert_int_equal(ref_ll_list(&job, 0, 0, e, 4, counts), 1);
	assert_entry(e[0], 0, 0, 0);
	assert_int_equal(ref_ll_list(&job, 0, 1, e, 4, counts), 1);
	assert_entry(e[0], 0, 1, 1);
	assert_int_equal(ref_ll_list(&job, 1, 0, e, 4, counts), 2);
	assert_entry(e[0], 0, 0, 1);
	assert_entry(e[1], 1, 0, 0);
	assert_int_equal(counts[0], 1);
	assert_int_equal(counts[1], 1);
	assert_int_equal(ref_ll_list(&job, 1, 1, NULL, 0, counts), 1);
	assert_int_equal(counts[1], 0);
	assert_int_equal(ref_ll_list(&job, 1, 2, e, 4, counts), -EINVAL);
	assert_int_equal(ref_ll_list(&job, -1, 0, e, 4, counts), -EINVAL);
}

/* Rank 0 gets r0 t0 (expert 0), r0 t1 (expert 1); rank 1 both (experts 2, 3) and r1 t0. */
static void hand_ht_lists(void **state)
{
	static const int64_t want_idx[6] = { -1, 0, 1, -1, 0, -1 };
	static const float want_w[6] = { 0, 2.0f, 0.25f, 0, 1.0f, 0 };
	struct ref_entry e[4];
	int64_t idx[8];
	float w[8];
	int counts[2];

	assert_int_equal(ref_ht_list(&job, 0, e, idx, w, 4, counts), 2);
	assert_entry(e[0], 0, 0, 0);
	assert_entry(e[1], 0, 1, 1);
	assert_int_equal(idx[0], 0);
	assert_int_equal(idx[1], -1);
	assert_int_equal(idx[2], -1);
	assert_int_equal(idx[3], 1);
	assert_true(w[0] == 0.5f && w[1] == 0 && w[2] == 0 && w[3] == 0.75f);
	assert_int_equal(ref_ht_list(&job, 1, e, idx, w, 4, counts), 3);
	assert_entry(e[0], 0, 0, 1);
	assert_entry(e[1], 0, 1, 0);
	assert_entry(e[2], 1, 0, 0);
	assert_memory_equal(idx, want_idx, sizeof(want_idx));
	assert_memory_equal(w, want_w, sizeof(want_w));
	assert_int_equal(counts[0], 2);
	assert_int_equal(counts[1], 1);
	assert_int_equal(ref_ht_list(&job, 2, e, idx, w, 4, counts), -EINVAL);
}

/* Rows of one value in every channel; table[expert or rank]. */
struct rows {
	float value[8];
	uint16_t row[H];
	float weights[8][REF_TOPK_MAX];
	int missing;
};

static const uint16_t *give_row(void *arg, int who, int src, int token)
{
	struct rows *rows = arg;

	if (who == rows->missing)
		return NULL;
	for (int c = 0; c < H; c++)
		rows->row[c] = epf_bf16_encode(rows->value[who]);
	return rows->row;
}

static const float *give_weights(void *arg, int who, int src, int token)
{
	struct rows *rows = arg;

	return who == rows->missing ? NULL : rows->weights[who];
}

static void assert_all(const uint16_t *out, uint16_t want)
{
	for (int c = 0; c < H; c++)
		assert_int_equal(out[c], want);
}

/*
 * r0 t0: 0.5 * e0 + 2 * e2 with e0 = 3, e2 = 128:   1.5 + 256 = 257.5; BF16 steps are 2 from 256
 *        on: between 256 (0x4380) and 258 (0x4381), nearer to 258: 0x4381.
 * r0 t1: 0.25 * e3 + 0.75 * e1 with e3 = -4, e1 = 2: -1 + 1.5 = 0.5 (0x3f00).
 * r1 t0: 1 * e2 = 128 (0x4300).  r1 t1: nothing selected: 0.
 */
static void hand_ll_combine(void **state)
{
	struct rows rows = { .value = { 3, 2, 128, -4 }, .missing = -1 };
	uint16_t out[H];

	assert_int_equal(ref_ll_combine(&job, 0, 0, give_row, &rows, out), 0);
	assert_all(out, 0x4381);
	assert_int_equal(ref_ll_combine(&job, 0, 1, give_row, &rows, out), 0);
	assert_all(out, 0x3f00);
	assert_int_equal(ref_ll_combine(&job, 1, 0, give_row, &rows, out), 0);
	assert_all(out, 0x4300);
	assert_int_equal(ref_ll_combine(&job, 1, 1, give_row, &rows, out), 0);
	assert_all(out, 0);
	rows.missing = 2;
	assert_int_equal(ref_ll_combine(&job, 1, 0, give_row, &rows, out), -ENOENT);
	assert_all(out, 0);
	assert_int_equal(ref_ll_combine(&job, 0, 2, give_row, &rows, out), -EINVAL);
}

/*
 * Tokens that cross: r0 t0 (expert 2) and r0 t1 (expert 3) from node 0 to node 1; r1 sends nothing
 * away. One row each in both modes here.
 */
static void hand_internode_bytes(void **state)
{
	assert_int_equal(ref_ht_internode_bytes(&job, -1, -1, 132), 2 * 132);
	assert_int_equal(ref_ht_internode_bytes(&job, 0, 1, 132), 2 * 132);
	assert_int_equal(ref_ht_internode_bytes(&job, 0, 0, 132), 0);
	assert_int_equal(ref_ht_internode_bytes(&job, 1, -1, 132), 0);
	assert_int_equal(ref_ll_internode_bytes(&job, -1, -1, 256), 2 * 256);
	assert_int_equal(ref_ll_internode_bytes(&job, 1, -1, 256), 0);
}

/*
 * A second job for the order of sums: 5 ranks with one expert each; ranks 0, 1, 3 on node 0, ranks
 * 2, 4 on node 1 (nodes interleaved and of different size). Rank 4 has one token for all.
 */
static const int nodes5[5] = { 0, 0, 1, 0, 1 }, tokens5[5] = { 0, 0, 0, 0, 1 };
static const int64_t idx5[5] = { 4, 0, 3, 2, 1 };
static const float w5[5] = { 1, 1, 1, 1, 1 };
static const int64_t *const all_idx5[5] = { NULL, NULL, NULL, NULL, idx5 };
static const float *const all_w5[5] = { NULL, NULL, NULL, NULL, w5 };

static const struct ref_job job5 = {
	.ranks = 5,
	.experts = 5,
	.topk = 5,
	.hidden = H,
	.node_of_rank = nodes5,
	.tokens = tokens5,
	.topk_idx = all_idx5,
	.weights = all_w5,
};

/* Top-k order is 4, 0, 3, 2, 1. 2^24 + 1 is 2^24 in FP32 (ties to even), so order can be seen. */
static void ll_adds_in_topk_order(void **state)
{
	struct rows rows = { .missing = -1 };
	uint16_t out[H];

	/* 1 + 2^24 - 2^24 + 0 + 0 = 0: the 1 was lost when 2^24 came. */
	memcpy(rows.value, (float[5]){ 0x1p24f, 0, 0, -0x1p24f, 1 }, 5 * sizeof(float));
	assert_null(ref_job_error(&job5));
	assert_int_equal(ref_ll_combine(&job5, 4, 0, give_row, &rows, out), 0);
	assert_all(out, 0);
	/* 2^24 (expert 4) + 0 - 2^24 (expert 3) + 1 (expert 2) + 0 = 1. In rank order: 0. */
	memcpy(rows.value, (float[5]){ 0, 0, 1, -0x1p24f, 0x1p24f }, 5 * sizeof(float));
	assert_int_equal(ref_ll_combine(&job5, 4, 0, give_row, &rows, out), 0);
	assert_all(out, 0x3f80);
}

static void ht_targets_by_node_then_rank(void **state)
{
	static const int want[5] = { 0, 1, 3, 2, 4 };
	int dst[REF_TOPK_MAX];

	assert_int_equal(ref_ht_targets(&job5, 4, 0, dst), 5);
	assert_memory_equal(dst, want, sizeof(want));
	assert_int_equal(ref_ht_internode_bytes(&job5, -1, -1, 1), 1);
	assert_int_equal(ref_ll_internode_bytes(&job5, -1, -1, 1), 3);
}

static void ht_adds_per_node_then_across(void **state)
{
	struct rows rows = { .missing = -1 };
	uint16_t out[H];

	/*
	 * Node 0: 256 + 1 + 0 = 257, as BF16 256 (between 256 and 258, even). Node 1: 1 + 0 = 1.
	 * Across: 257, as BF16 256 (0x4380). All in FP32 it would be 258.
	 */
	memcpy(rows.value, (float[5]){ 256, 1, 1, 0, 0 }, 5 * sizeof(float));
	assert_int_equal(ref_ht_combine(&job5, 4, 0, give_row, &rows, out), 0);
	assert_all(out, 0x4380);
	/* The source's own node (1) is rounded too: 256 + 1 = 257 -> 256; then 1 + 256 -> 256. */
	memcpy(rows.value, (float[5]){ 1, 0, 256, 0, 1 }, 5 * sizeof(float));
	assert_int_equal(ref_ht_combine(&job5, 4, 0, give_row, &rows, out), 0);
	assert_all(out, 0x4380);
	/* Ranks ascend in a node: 2^24 (0) + 1 (1) - 2^24 (3) = 0, and not 1. */
	memcpy(rows.value, (float[5]){ 0x1p24f, 1, 0, -0x1p24f, 0 }, 5 * sizeof(float));
	assert_int_equal(ref_ht_combine(&job5, 4, 0, give_row, &rows, out), 0);
	assert_all(out, 0);
	/* Node before rank: (2^24 + 0 + 1) + (-2^24 + 0) = 0; by rank alone it would be 1. */
	memcpy(rows.value, (float[5]){ 0x1p24f, 0, -0x1p24f, 1, 0 }, 5 * sizeof(float));
	assert_int_equal(ref_ht_combine(&job5, 4, 0, give_row, &rows, out), 0);
	assert_all(out, 0);
	rows.missing = 3;
	assert_int_equal(ref_ht_combine(&job5, 4, 0, give_row, &rows, out), -ENOENT);
}

static void ht_weights_stay_fp32(void **state)
{
	struct rows rows = { .missing = -1 };
	float out[5];

	/* Entry k gets the weight of its owner alone: 1/3 is no BF16. */
	for (int k = 0; k < 5; k++)
		rows.weights[idx5[k]][k] = (float)(k + 1) / 3.0f;
	assert_int_equal(ref_ht_combine_weights(&job5, 4, 0, give_weights, &rows, out), 0);
	for (int k = 0; k < 5; k++)
		assert_true(out[k] == (float)(k + 1) / 3.0f);
	/* Node 0 first, ranks ascending, then node 1: ((2^24 + 1) + 0) - 2^24 = 0. */
	memset(rows.weights, 0, sizeof(rows.weights));
	rows.weights[0][0] = 0x1p24f;
	rows.weights[3][0] = 1;
	rows.weights[2][0] = -0x1p24f;
	assert_int_equal(ref_ht_combine_weights(&job5, 4, 0, give_weights, &rows, out), 0);
	assert_true(out[0] == 0);
	rows.missing = 0;
	assert_int_equal(ref_ht_combine_weights(&job5, 4, 0, give_weights, &rows, out), -ENOENT);
}

/* Both experts of r0 t0 live on rank 1: in high-throughput mode it goes there once. */
static void two_experts_of_one_rank(void **state)
{
	static const int64_t pair[4] = { 3, 2, -1, -1 };
	const int64_t *const idx[2] = { pair, idx1 };
	struct rows rows = { .value = { 0, 3 }, .missing = -1 };
	struct ref_job paired = job;
	struct ref_entry e[4];
	int64_t local[8];
	uint16_t out[H];
	int dst[REF_TOPK_MAX];

	paired.topk_idx = idx;
	assert_null(ref_job_error(&paired));
	assert_int_equal(ref_ht_list(&paired, 0, e, NULL, NULL, 4, NULL), 0);
	assert_int_equal(ref_ht_list(&paired, 1, e, local, NULL, 4, NULL), 2);
	assert_entry(e[0], 0, 0, 0);
	assert_int_equal(local[0], 1);
	assert_int_equal(local[1], 0);
	assert_int_equal(ref_ht_targets(&paired, 0, 0, dst), 1);
	assert_int_equal(ref_ht_internode_bytes(&paired, -1, -1, 132), 132);
	assert_int_equal(ref_ll_internode_bytes(&paired, -1, -1, 132), 2 * 132);
	assert_int_equal(ref_ht_combine(&paired, 0, 0, give_row, &rows, out), 0);
	assert_all(out, 0x4040);
}

static void one_rank_without_tokens(void **state)
{
	static const int node[1] = { 0 }, none[1] = { 0 };
	static const int64_t *const no_idx[1] = { NULL };
	struct ref_job lone = { .ranks = 1, .experts = 16, .topk = 16, .hidden = 256 };
	int counts[1] = { 7 };

	lone.node_of_rank = node;
	lone.tokens = none;
	lone.topk_idx = no_idx;
	assert_null(ref_job_error(&lone));
	assert_int_equal(ref_ll_list(&lone, 0, 15, NULL, 0, counts), 0);
	assert_int_equal(counts[0], 0);
	assert_int_equal(ref_ht_list(&lone, 0, NULL, NULL, NULL, 0, counts), 0);
	assert_int_equal(ref_ht_internode_bytes(&lone, -1, -1, 512), 0);
}

static void jobs_without_sense(void **state)
{
	static const int64_t twice[4] = { 2, 2, 0, 1 }, high[4] = { 4, 0, 0, 1 };
	const int64_t *idx[2] = { twice, idx1 };
	static const int bad_node[2] = { 0, 2 };
	struct ref_job bad = job;

	bad.topk_idx = idx;
	assert_non_null(ref_job_error(&bad));
	idx[0] = high;
	assert_non_null(ref_job_error(&bad));
	bad = job;
	bad.experts = 5;
	assert_non_null(ref_job_error(&bad));
	bad = job;
	bad.topk = 17;
	assert_non_null(ref_job_error(&bad));
	bad = job;
	bad.hidden = 100;
	assert_non_null(ref_job_error(&bad));
	bad = job;
	bad.node_of_rank = bad_node;
	assert_non_null(ref_job_error(&bad));
}

/* A block of narrow range comes back as it was, of a wide one within half a step, of a wider one as BF16; zeros and signs always. */
static void logfmt_by_its_definition(void **state)
{
	uint16_t x[384], y[384];

	for (int i = 0; i < 384; i++) {
		int octaves = i < 128 ? 3 : i < 256 ? 14 : 20;

		x[i] = (uint16_t)(i % 7 == 0 ? 0 : 100 * 128 + i * 37 % (octaves * 128));
		x[i] = (uint16_t)(x[i] | (i % 3 ? 0 : 0x8000));
	}
	memcpy(y, x, sizeof(y));
	assert_int_equal(ref_logfmt(y, 384), 1);
	assert_memory_equal(y, x, 256);
	assert_memory_equal(y + 256, x + 256, 256);
	assert_memory_not_equal(y + 128, x + 128, 256);
	for (int i = 128; i < 256; i++) {
		assert_int_equal(y[i] & 0x8000, x[i] & 0x8000);
		assert_in_range(abs((y[i] & 0x7fff) - (x[i] & 0x7fff)), 0, x[i] & 0x7fff ? 2 : 0);
	}
	memcpy(x, y, sizeof(x));
	y[5] = 0x7fc1; /* one that is no number keeps its block */
	assert_int_equal(ref_logfmt(y, 128), 1);
	assert_int_equal(ref_logfmt(y, 100), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hand_fp8_rows),
		cmocka_unit_test(hand_payload),
		cmocka_unit_test(hand_ll_lists),
		cmocka_unit_test(hand_ht_lists),
		cmocka_unit_test(hand_ll_combine),
		cmocka_unit_test(hand_internode_bytes),
		cmocka_unit_test(ll_adds_in_topk_order),
		cmocka_unit_test(ht_targets_by_node_then_rank),
		cmocka_unit_test(ht_adds_per_node_then_across),
		cmocka_unit_test(logfmt_by_its_definition),
		cmocka_unit_test(ht_weights_stay_fp32),
		cmocka_unit_test(two_experts_of_one_rank),
		cmocka_unit_test(one_rank_without_tokens),
		cmocka_unit_test(jobs_without_sense),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
