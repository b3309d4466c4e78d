/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number formats of the host kernels: BF16, FP8 E4M3 ("fn": no infinity, largest value 448), UE8M0,
 * and FP8 rows with one scale per block of 128 channels. Called by the MoE kernels, the bench and
 * the tests. Every function but epf_num_limit() is pure: no allocation, any thread. Never to be compiled with
 * -ffast-math or contraction: the order of float operations written here is a contract, which the
 * reference under tests/ref follows without sharing code.
 *
 * "float" below is IEEE binary32 in the default environment: round to nearest even, no flush to
 * zero. Wherever a result is not a number the format's one canonical pattern is stored, so that
 * no byte depends on which operand's payload a processor happens to keep.
 */
#ifndef EPF_KERNELS_HOST_NUM_H
#define EPF_KERNELS_HOST_NUM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Channels that share one scale. */
#define EPF_NUM_BLOCK 128u

/* Smallest amax of a block: keeps the scale of an all-zero block finite. */
#define EPF_NUM_AMAX_MIN 1e-4f

/* Flag of epf_num_quantise(): every scale is a power of two (so that UE8M0 holds it exactly). */
#define EPF_NUM_POW2_SCALE 1u

#define EPF_BF16_NAN 0x7fffu
#define EPF_E4M3_NAN 0x7fu
#define EPF_E4M3_MAX 448.0f

/**
 * epf_bf16_encode() - nearest BF16, ties to the even pattern.
 * Overflow gives infinity; every NaN gives EPF_BF16_NAN; the sign of zero is kept.
 */
uint16_t epf_bf16_encode(float f);

/** epf_bf16_decode() - exact. */
float epf_bf16_decode(uint16_t b);

/**
 * epf_e4m3_encode() - nearest E4M3, ties to the even code, saturating.
 * Magnitudes from 448 up, infinity included, give 448 with the sign; every NaN gives EPF_E4M3_NAN
 * (no sign); a value that underflows keeps its sign. (OCP 8-bit Floating Point Specification 1.0,
 * section 5, with its saturating conversion.)
 */
uint8_t epf_e4m3_encode(float f);

/** epf_e4m3_decode() - exact; codes 0x7f and 0xff give a NaN. */
float epf_e4m3_decode(uint8_t code);

/**
 * epf_ue8m0_encode() - the exponent byte of a scale made with EPF_NUM_POW2_SCALE.
 * @scale: a positive power of two, 2^-126 to 2^127, or infinity (byte 0xff, which means NaN).
 */
uint8_t epf_ue8m0_encode(float scale);

/** epf_ue8m0_decode() - 2^(byte - 127); 0 gives 2^-127, 0xff gives a NaN. */
float epf_ue8m0_decode(uint8_t e);

/**
 * epf_num_quantise() - one BF16 row to E4M3 codes and a float scale for each block.
 * @x: BF16 [hidden]. @hidden: a positive multiple of EPF_NUM_BLOCK.
 * @flags: 0 or EPF_NUM_POW2_SCALE. @q: codes [hidden]. @scales: [hidden / EPF_NUM_BLOCK].
 *
 * For each block, in this order, every line one float operation rounded once:
 *   amax  = the largest |x[c]| that is not NaN, and at least EPF_NUM_AMAX_MIN
 *   scale = amax / 448
 *   inv   = 448 / amax
 *   with EPF_NUM_POW2_SCALE instead: scale = the smallest power of two >= (amax / 448),
 *           inv = 1 / scale (exact)
 *   q[c]  = e4m3(x[c] * inv)
 * An infinite x makes its block's scale infinite and inv 0: its code is NaN and the rest are zero.
 *
 * Arrays must not overlap. Return: 0, or -EINVAL (hidden or flags) with nothing written.
 */
int epf_num_quantise(const uint16_t *x, size_t hidden, unsigned flags, uint8_t *q, float *scales);

/**
 * epf_num_dequantise() - out[c] = bf16(float(q[c]) * scales[c / 128]).
 * Arrays must not overlap. Return: 0, or -EINVAL (hidden) with nothing written.
 */
int epf_num_dequantise(const uint8_t *q, const float *scales, size_t hidden, uint16_t *out);

/**
 * epf_num_add_scaled() - acc[c] = acc[c] + w * float(y[c]).
 * Two roundings a channel, the product's and the sum's: never fused.
 */
void epf_num_add_scaled(float *acc, const uint16_t *y, float w, size_t n);

/**
 * epf_num_sum() - out[c] = bf16(sum of w[i] * float(rows[i][c])), added in the order of i, from +0.
 * @rows: [count] BF16 rows of n channels; none overlaps out. @w: [count], or NULL: the rows themselves are added.
 * Roundings as in epf_num_add_scaled(), and one to BF16.
 */
void epf_num_sum(uint16_t *out, const uint16_t *const *rows, const float *w, unsigned count,
		 size_t n);

/** epf_num_to_bf16() - out[c] = bf16(acc[c]). */
void epf_num_to_bf16(uint16_t *out, const float *acc, size_t n);

/* Vector width of the row functions. */
enum epf_num_width {
	EPF_NUM_BASELINE = 0, /* what the build assumes of every processor */
	EPF_NUM_AVX2 = 1,
	EPF_NUM_AVX512 = 2,
};

/**
 * epf_num_limit() - for tests: limits the vector width of the row functions. The default is no limit: the widest that this processor has.
 * Not to be called while another thread is in a row function. Returns the width that is used from now on.
 */
enum epf_num_width epf_num_limit(enum epf_num_width most);

/** Bytes of a BF16 row: channels as little-endian 16-bit words. */
static inline size_t epf_num_bf16_bytes(size_t hidden)
{
	return 2 * hidden;
}

/** Bytes of an FP8 row: one code a channel, then one little-endian float scale a block. */
static inline size_t epf_num_fp8_bytes(size_t hidden)
{
	return hidden + hidden / EPF_NUM_BLOCK * sizeof(float);
}

#ifdef __cplusplus
}
#endif
#endif
