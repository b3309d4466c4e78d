/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number formats of the host kernels. Called by the MoE kernels once per row, so the row loops have
 * no branches and gcc vectorises them: for the build's baseline (SSE2 or NEON), and on x86-64 for AVX2
 * and AVX-512, too; the widest that the processor has is used. Every variant gives the same bits. It must
 * never be compiled with -ffast-math or contraction, nor allocate; its only state is the limit for tests.
 */
#include "kernels/host/num.h"

#include <errno.h>
#include <string.h>

/* Part of a row loop: compiled into each of its variants. */
#define ROW_INLINE inline __attribute__((always_inline))

/* Bit patterns of floats. All magnitudes are below 2^31, so signed compares are safe; SSE2 has no
 * unsigned ones. */
#define F32_INF           0x7f800000
#define BF16_INF          0x7f80
#define F32_448           0x43e00000
#define F32_2_POW_MINUS_6 0x3c800000 /* the smallest normal E4M3 */

/* The exponent bias of float is 127 and that of E4M3 is 7; three mantissa bits stay below it. */
#define E4M3_BIAS_GAP ((127u - 7u) << 3)

/* Adding 2^14 leaves the last mantissa bit worth 2^-9, the spacing of E4M3 subnormals. */
#define E4M3_SUB_MAGIC 16384.0f
#define E4M3_SUB_UNIT  0x1p-9f

enum { SUM_CHANNELS = 256 };

static ROW_INLINE uint32_t to_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static ROW_INLINE float from_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/*
 * A choice by mask: with "?:" the compiler may move the float operation of one side into a branch,
 * and then the loop is no longer vector code.
 */
static ROW_INLINE uint32_t pick(int cond, uint32_t yes, uint32_t no)
{
	uint32_t mask = 0u - (uint32_t)cond;

	return (yes & mask) | (no & ~mask);
}

static ROW_INLINE uint16_t bf16_of(float f)
{
	uint32_t bits = to_bits(f);
	uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
	int32_t mag = (int32_t)(bits & 0x7fffffffu);

	return (uint16_t)pick(mag > F32_INF, EPF_BF16_NAN, rounded);
}

static ROW_INLINE float float_of_bf16(uint16_t b)
{
	return from_bits((uint32_t)b << 16);
}

static ROW_INLINE uint8_t e4m3_of(float f)
{
	uint32_t bits = to_bits(f);
	uint32_t sign = (bits >> 24) & 0x80u;
	uint32_t mag = bits & 0x7fffffffu;
	int32_t smag = (int32_t)mag;
	uint32_t normal = ((mag + 0x7ffffu + ((mag >> 20) & 1)) >> 20) - E4M3_BIAS_GAP;
	uint32_t small = to_bits(from_bits(mag) + E4M3_SUB_MAGIC) - to_bits(E4M3_SUB_MAGIC);
	uint32_t code = pick(smag < F32_2_POW_MINUS_6, small, normal);

	/* 448 is code 0x7e; what follows it would be 480, the NaN code. */
	code = pick(smag >= F32_448, 0x7eu, code);
	code |= sign;
	code = pick(smag > F32_INF, EPF_E4M3_NAN, code);
	return (uint8_t)code;
}

static ROW_INLINE float float_of_e4m3(uint8_t code)
{
	uint32_t sign = (uint32_t)(code & 0x80u) << 24;
	int32_t mag = code & 0x7f;
	uint32_t small = to_bits((float)mag * E4M3_SUB_UNIT);
	uint32_t normal = (uint32_t)(mag << 20) + (E4M3_BIAS_GAP << 20);
	uint32_t bits = pick(mag < 8, small, normal);

	bits = pick(mag == 0x7f, 0x7fc00000u, bits);
	return from_bits(bits | sign);
}

uint16_t epf_bf16_encode(float f)
{
	return bf16_of(f);
}

float epf_bf16_decode(uint16_t b)
{
	return float_of_bf16(b);
}

uint8_t epf_e4m3_encode(float f)
{
	return e4m3_of(f);
}

float epf_e4m3_decode(uint8_t code)
{
	return float_of_e4m3(code);
}

uint8_t epf_ue8m0_encode(float scale)
{
	return (uint8_t)(to_bits(scale) >> 23);
}

float epf_ue8m0_decode(uint8_t e)
{
	if (e == 0)
		return 0x1p-127f;
	return from_bits(e == 0xff ? 0x7fc00000u : (uint32_t)e << 23);
}

/* The largest pattern of a block without its sign: above 0x7f80 it is of a NaN. */
static ROW_INLINE int16_t block_top(const uint16_t *x)
{
	int16_t top = 0;

	for (unsigned c = 0; c < EPF_NUM_BLOCK; c++) {
		int16_t mag = (int16_t)(x[c] & 0x7fff);

		top = mag > top ? mag : top;
	}
	return top;
}

/* The same among those that are numbers. */
static ROW_INLINE int16_t block_top_number(const uint16_t *x)
{
	int16_t top = 0;

	for (unsigned c = 0; c < EPF_NUM_BLOCK; c++) {
		int16_t mag = (int16_t)(x[c] & 0x7fff);

		mag = mag > BF16_INF ? 0 : mag;
		top = mag > top ? mag : top;
	}
	return top;
}

/* top: pattern of the largest magnitude. Magnitudes of BF16 compare like their patterns. */
static ROW_INLINE void block_scale(int16_t top, unsigned flags, float *scale, float *inv)
{
	float largest = float_of_bf16((uint16_t)top);
	float amax = largest > EPF_NUM_AMAX_MIN ? largest : EPF_NUM_AMAX_MIN;
	float exact = amax / EPF_E4M3_MAX;
	uint32_t exponent;

	if (!(flags & EPF_NUM_POW2_SCALE)) {
		*scale = exact;
		*inv = EPF_E4M3_MAX / amax;
		return;
	}
	/* Up to the next power of two: one more in the exponent unless the mantissa is empty. */
	exponent = (to_bits(exact) + 0x7fffffu) >> 23;
	*scale = from_bits(exponent << 23);
	*inv = 1.0f / *scale;
}

/*
 * E4M3 of a number that rounds to 448 at most. Added to a float 2^20 times its own power of two, or that of the smallest normal E4M3, it is rounded to
 * what E4M3 has of its mantissa; the difference of the patterns is that mantissa, as an integer, with the leading one of a normal.
 */
static ROW_INLINE uint32_t e4m3_of_number(float f)
{
	uint32_t bits = to_bits(f);
	int32_t power = (int32_t)(bits & F32_INF);
	uint32_t floor, mantissa;

	power = power < F32_2_POW_MINUS_6 ? F32_2_POW_MINUS_6 : power;
	floor = (uint32_t)power + (20u << 23);
	mantissa = to_bits(from_bits(bits & 0x7fffffffu) + from_bits(floor)) - floor;
	return (((uint32_t)(power - F32_2_POW_MINUS_6) >> 20) + mantissa) | ((bits >> 24) & 0x80u);
}

/* Codes are made in words and then narrowed: in one loop gcc mixes the widths, at twice the time. */
static ROW_INLINE void narrow_block(const uint32_t *restrict code, uint8_t *restrict q)
{
	for (unsigned c = 0; c < EPF_NUM_BLOCK; c++)
		q[c] = (uint8_t)code[c];
}

static ROW_INLINE void quantise_block(const uint16_t *restrict x, float inv, uint8_t *restrict q)
{
	uint32_t code[EPF_NUM_BLOCK];

	for (unsigned c = 0; c < EPF_NUM_BLOCK; c++)
		code[c] = e4m3_of_number(float_of_bf16(x[c]) * inv);
	narrow_block(code, q);
}

/* The same for a block with an infinity or a NaN. */
static ROW_INLINE void quantise_special(const uint16_t *restrict x, float inv, uint8_t *restrict q)
{
	for (unsigned c = 0; c < EPF_NUM_BLOCK; c++)
		q[c] = e4m3_of(float_of_bf16(x[c]) * inv);
}

static ROW_INLINE void dequantise_block(const uint8_t *restrict q, float scale,
					uint16_t *restrict out)
{
	for (unsigned c = 0; c < EPF_NUM_BLOCK; c++)
		out[c] = bf16_of(float_of_e4m3(q[c]) * scale);
}

/* ---- rows ---- */

static ROW_INLINE void quantise(const uint16_t *x, size_t hidden, unsigned flags, uint8_t *q,
				float *scales)
{
	for (size_t b = 0; b < hidden / EPF_NUM_BLOCK; b++) {
		size_t at = b * EPF_NUM_BLOCK;
		int16_t top = block_top(x + at);
		float inv;

		if (__builtin_expect(top < BF16_INF, 1)) {
			block_scale(top, flags, &scales[b], &inv);
			quantise_block(x + at, inv, q + at);
		} else {
			block_scale(block_top_number(x + at), flags, &scales[b], &inv);
			quantise_special(x + at, inv, q + at);
		}
	}
}

static ROW_INLINE void dequantise(const uint8_t *q, const float *scales, size_t hidden,
				  uint16_t *out)
{
	for (size_t b = 0; b < hidden / EPF_NUM_BLOCK; b++) {
		size_t at = b * EPF_NUM_BLOCK;

		dequantise_block(q + at, scales[b], out + at);
	}
}

static ROW_INLINE void add_scaled(float *restrict acc, const uint16_t *restrict y, float w,
				  size_t n)
{
	for (size_t c = 0; c < n; c++) {
		float product = w * float_of_bf16(y[c]);

		acc[c] = acc[c] + product;
	}
}

static ROW_INLINE void add(float *restrict acc, const uint16_t *restrict y, size_t n)
{
	for (size_t c = 0; c < n; c++)
		acc[c] = acc[c] + float_of_bf16(y[c]);
}

static ROW_INLINE void to_bf16(uint16_t *restrict out, const float *restrict acc, size_t n)
{
	for (size_t c = 0; c < n; c++)
		out[c] = bf16_of(acc[c]);
}

/* Some channels at a time, whose sums stay in registers or the nearest cache. */
static ROW_INLINE void sum(uint16_t *restrict out, const uint16_t *const *rows, const float *w,
			   unsigned count, size_t n)
{
	float acc[SUM_CHANNELS];

	for (size_t at = 0; at < n; at += SUM_CHANNELS) {
		size_t some = n - at < SUM_CHANNELS ? n - at : SUM_CHANNELS;

		memset(acc, 0, sizeof(acc));
		for (unsigned i = 0; i < count; i++) {
			if (w)
				add_scaled(acc, rows[i] + at, w[i], some);
			else
				add(acc, rows[i] + at, some);
		}
		to_bf16(out + at, acc, some);
	}
}

struct row_loops {
	void (*quantise)(const uint16_t *x, size_t hidden, unsigned flags, uint8_t *q,
			 float *scales);
	void (*dequantise)(const uint8_t *q, const float *scales, size_t hidden, uint16_t *out);
	void (*add_scaled)(float *acc, const uint16_t *y, float w, size_t n);
	void (*sum)(uint16_t *out, const uint16_t *const *rows, const float *w, unsigned count,
		    size_t n);
	void (*to_bf16)(uint16_t *out, const float *acc, size_t n);
};

/* The loops above for one instruction set: functions, and the table `row_loops_NAME` of them. */
#define ROW_LOOPS(name, target)                                                                   \
 target static void quantise_##name(const uint16_t *x, size_t hidden, unsigned flags, uint8_t *q, \
				    float *scales)                                                \
 {                                                                                                \
  quantise(x, hidden, flags, q, scales);                                                          \
 }                                                                                                \
 target static void dequantise_##name(const uint8_t *q, const float *scales, size_t hidden,       \
				      uint16_t *out)                                              \
 {                                                                                                \
  dequantise(q, scales, hidden, out);                                                             \
 }                                                                                                \
 target static void add_scaled_##name(float *acc, const uint16_t *y, float w, size_t n)           \
 {                                                                                                \
  add_scaled(acc, y, w, n);                                                                       \
 }                                                                                                \
 target static void sum_##name(uint16_t *out, const uint16_t *const *rows, const float *w,        \
			       unsigned count, size_t n)                                          \
 {                                                                                                \
  sum(out, rows, w, count, n);                                                                    \
 }                                                                                                \
 target static void to_bf16_##name(uint16_t *out, const float *acc, size_t n)                     \
 {                                                                                                \
  to_bf16(out, acc, n);                                                                           \
 }                                                                                                \
 static const struct row_loops row_loops_##name = { quantise_##name, dequantise_##name,           \
						    add_scaled_##name, sum_##name,                \
						    to_bf16_##name }

ROW_LOOPS(baseline, );
#ifdef __x86_64__
ROW_LOOPS(avx2, __attribute__((target("avx2"))));
ROW_LOOPS(avx512, __attribute__((target("avx512f,avx512bw,avx512vl"))));
#endif

static const struct row_loops *const row_loops[] = {
	[EPF_NUM_BASELINE] = &row_loops_baseline,
#ifdef __x86_64__
	[EPF_NUM_AVX2] = &row_loops_avx2,
	[EPF_NUM_AVX512] = &row_loops_avx512,
#endif
};

static enum epf_num_width limit = EPF_NUM_AVX512;

/* The widest vectors of this processor within the limit: a few tests of a word, once a row. */
static enum epf_num_width width(void)
{
#ifdef __x86_64__
	if (limit >= EPF_NUM_AVX512 && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl"))
		return EPF_NUM_AVX512;
	if (limit >= EPF_NUM_AVX2 && __builtin_cpu_supports("avx2"))
		return EPF_NUM_AVX2;
#endif
	return EPF_NUM_BASELINE;
}

enum epf_num_width epf_num_limit(enum epf_num_width most)
{
	limit = most;
	return width();
}

static const struct row_loops *loops(void)
{
	return row_loops[width()];
}

int epf_num_quantise(const uint16_t *x, size_t hidden, unsigned flags, uint8_t *q, float *scales)
{
	if (!hidden || hidden % EPF_NUM_BLOCK || (flags & ~EPF_NUM_POW2_SCALE))
		return -EINVAL;
	loops()->quantise(x, hidden, flags, q, scales);
	return 0;
}

int epf_num_dequantise(const uint8_t *q, const float *scales, size_t hidden, uint16_t *out)
{
	if (!hidden || hidden % EPF_NUM_BLOCK)
		return -EINVAL;
	loops()->dequantise(q, scales, hidden, out);
	return 0;
}

void epf_num_add_scaled(float *acc, const uint16_t *y, float w, size_t n)
{
	loops()->add_scaled(acc, y, w, n);
}

void epf_num_sum(uint16_t *out, const uint16_t *const *rows, const float *w, unsigned count,
		 size_t n)
{
	loops()->sum(out, rows, w, count, n);
}

void epf_num_to_bf16(uint16_t *out, const float *acc, size_t n)
{
	loops()->to_bf16(out, acc, n);
}
