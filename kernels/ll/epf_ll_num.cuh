/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and copies of the low-latency kernels: BF16, FP8 E4M3 with a scale per 128 channels, rows moved by a warp. The formats and the
 * order of operations are those of kernels/host/README.md, bit for bit; no two operations may be fused into one.
 */
#ifndef EPF_KERNELS_LL_NUM_CUH
#define EPF_KERNELS_LL_NUM_CUH

#include "kernels/epf_device.cuh"
#include "kernels/ll/job.h"

/* 16 bytes: what a lane moves at once. */
struct ll_vec {
	uint32_t w[4];
} __attribute__((aligned(16)));

#if defined(__CUDACC__)

# define LL_LANES      32u
# define LL_GROUP      16u /* lanes that quantise a block of 128 channels together */
# define LL_SPAN       1u  /* 16-byte pieces of each lane in a piece of combine's sum */
# define LL_SPAN_SUMS  2u  /* the same with sums at the sender; not below LL_SPAN */
# define LL_AHEAD      8u  /* rows of that sum whose loads are under way together */
# define LL_AHEAD_SUMS 4u  /* the same with sums at the sender; not above LL_AHEAD */
# define LL_UNROLL     _Pragma("unroll")
# define LL_ROLLED     _Pragma("unroll 1")

EPF_DEV_FN uint32_t ll_bits(float f)
{
	return __float_as_uint(f);
}

EPF_DEV_FN float ll_float(uint32_t u)
{
	return __uint_as_float(u);
}

EPF_DEV_FN float ll_mul(float a, float b)
{
	return __fmul_rn(a, b);
}

EPF_DEV_FN float ll_add(float a, float b)
{
	return __fadd_rn(a, b);
}

EPF_DEV_FN float ll_div(float a, float b)
{
	return __fdiv_rn(a, b);
}

EPF_DEV_FN uint32_t ll_swap(uint32_t v, uint32_t mask)
{
	return __shfl_xor_sync(0xffffffffu, v, (int)mask);
}

#elif defined(__HIP__)

# define LL_LANES      64u
# define LL_GROUP      16u
# define LL_SPAN       1u
# define LL_SPAN_SUMS  2u
# define LL_AHEAD      8u
# define LL_AHEAD_SUMS 4u
# define LL_UNROLL     _Pragma("unroll")
# define LL_ROLLED     _Pragma("unroll 1")

EPF_DEV_FN uint32_t ll_bits(float f)
{
	return __builtin_bit_cast(uint32_t, f);
}

EPF_DEV_FN float ll_float(uint32_t u)
{
	return __builtin_bit_cast(float, u);
}

EPF_DEV_FN float ll_mul(float a, float b)
{
# pragma clang fp contract(off)
	return a * b;
}

EPF_DEV_FN float ll_add(float a, float b)
{
# pragma clang fp contract(off)
	return a + b;
}

EPF_DEV_FN float ll_div(float a, float b)
{
	return a / b;
}

EPF_DEV_FN uint32_t ll_swap(uint32_t v, uint32_t mask)
{
	return (uint32_t)__builtin_amdgcn_ds_bpermute((int)((epf_lane() ^ mask) * 4u), (int)v);
}

#else /* plain C, compiled without contraction */

# define LL_LANES      1u
# define LL_GROUP      1u
# define LL_SPAN       64u
# define LL_SPAN_SUMS  64u
# define LL_AHEAD      1u
# define LL_AHEAD_SUMS 1u
# define LL_UNROLL
# define LL_ROLLED

EPF_DEV_FN uint32_t ll_bits(float f)
{
	uint32_t u;

	__builtin_memcpy(&u, &f, sizeof(u));
	return u;
}

EPF_DEV_FN float ll_float(uint32_t u)
{
	float f;

	__builtin_memcpy(&f, &u, sizeof(f));
	return f;
}

# define ll_mul(a, b)     ((a) * (b))
# define ll_add(a, b)     ((a) + (b))
# define ll_div(a, b)     ((a) / (b))
# define ll_swap(v, mask) (v)

#endif

#define LL_F32_INF           0x7f800000u
#define LL_F32_448           0x43e00000u
#define LL_F32_2_POW_MINUS_6 0x3c800000u /* the smallest normal E4M3 */
#define LL_BF16_NAN          0x7fffu     /* what GPUs make of a NaN */
#define LL_E4M3_NAN          0x7fu
#define LL_AMAX_MIN          1e-4f
#define LL_E4M3_MAX          448.0f

EPF_DEV_FN float ll_from_bf16(uint32_t b)
{
	return ll_float(b << 16);
}

/* Nearest, ties to even; every NaN becomes one pattern. */
EPF_DEV_FN uint32_t ll_to_bf16(float f)
{
	uint32_t bits = ll_bits(f);

	if ((bits & 0x7fffffffu) > LL_F32_INF)
		return LL_BF16_NAN;
	return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

/* Two of them, the first in the low half. */
EPF_DEV_FN uint32_t ll_to_bf16_pair(float first, float second)
{
#if defined(__CUDA_ARCH__)
	uint32_t pair;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
	return pair;
#else
	return ll_to_bf16(first) | ll_to_bf16(second) << 16;
#endif
}

/*
 * The sums of the first and of the second BF16 numbers of two pairs: +0, then both, rounded as an FP32 sum is rounded to BF16. The GPU adds in BF16: FP32 has
 * more than twice as many bits and two more, so that to round to it in between changes nothing.
 */
EPF_DEV_FN uint32_t ll_add_bf16_pairs(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__)
	uint32_t sum;

	/* times one, plus b; the last one makes +0 of -0 */
	asm("{\n\t.reg .b32 both;\n\t"
	    "fma.rn.bf16x2 both, %1, %3, %2;\n\t"
	    "fma.rn.bf16x2 %0, both, %3, %4;\n\t}"
	    : "=r"(sum)
	    : "r"(a), "r"(b), "r"(0x3f803f80u), "r"(0u));
	return sum;
#else
	float first = ll_add(0.0f, ll_from_bf16(a & 0xffffu));
	float second = ll_add(0.0f, ll_float(a & 0xffff0000u));

	return ll_to_bf16_pair(ll_add(first, ll_from_bf16(b & 0xffffu)),
			       ll_add(second, ll_float(b & 0xffff0000u)));
#endif
}

/* Nearest E4M3, ties to even, saturating at 448. */
EPF_DEV_FN uint32_t ll_to_e4m3(float f)
{
	uint32_t bits = ll_bits(f);
	uint32_t sign = (bits >> 24) & 0x80u;
	uint32_t mag = bits & 0x7fffffffu;

	if (mag > LL_F32_INF)
		return LL_E4M3_NAN;
	if (mag >= LL_F32_448)
		return sign | 0x7eu;
	/* Below 2^-6 the steps are 2^-9: adding 2^14 leaves the last bit of a float worth that. */
	if (mag < LL_F32_2_POW_MINUS_6)
		return sign | (ll_bits(ll_add(ll_float(mag), 16384.0f)) - ll_bits(16384.0f));
	/* The bias of float is 127, that of E4M3 is 7. */
	return sign | (((mag + 0x7ffffu + ((mag >> 20) & 1u)) >> 20) - ((127u - 7u) << 3));
}

/* Scale of a block, and what its channels are multiplied with. */
EPF_DEV_FN float ll_scale(uint32_t top, int power_of_two, float *inv)
{
	float amax = ll_from_bf16(top);
	float scale, exact;

	amax = amax > LL_AMAX_MIN ? amax : LL_AMAX_MIN;
	exact = ll_div(amax, LL_E4M3_MAX);
	if (!power_of_two) {
		*inv = ll_div(LL_E4M3_MAX, amax);
		return exact;
	}
	/* Up to the next power of two: one more in the exponent unless the mantissa is empty. */
	scale = ll_float(((ll_bits(exact) + 0x7fffffu) >> 23) << 23);
	*inv = ll_div(1.0f, scale);
	return scale;
}

/* The larger magnitude of two, as BF16 patterns; a NaN counts as 0. */
EPF_DEV_FN uint32_t ll_top(uint32_t top, uint32_t b)
{
	b &= 0x7fffu;
	b = b > 0x7f80u ? 0u : b;
	return b > top ? b : top;
}

/* The largest of the lanes of a group. All lanes of the warp call it. */
EPF_DEV_FN uint32_t ll_group_max(uint32_t v)
{
	for (uint32_t m = 1; m < LL_GROUP; m *= 2u) {
		uint32_t other = ll_swap(v, m);

		v = other > v ? other : v;
	}
	return v;
}

/* Codes of two floats, the first in the low byte. What GPUs that know the format do in one step is ll_to_e4m3() bit for bit: nearest, ties to even, saturating. */
EPF_DEV_FN uint32_t ll_to_e4m3_pair(float first, float second)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
	uint16_t pair;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
	return pair;
#else
	return ll_to_e4m3(first) | ll_to_e4m3(second) << 8;
#endif
}

/* Two 4-byte words of codes from 16 bytes of BF16. */
EPF_DEV_FN uint64_t ll_codes(const struct ll_vec *v, float inv)
{
	uint64_t q = 0;

	for (uint32_t i = 0; i < 4u; i++) {
		float first = ll_mul(ll_from_bf16(v->w[i] & 0xffffu), inv);
		float second = ll_mul(ll_from_bf16(v->w[i] >> 16), inv);

		q |= (uint64_t)ll_to_e4m3_pair(first, second) << (16u * i);
	}
	return q;
}

/*
 * A piece of a row: what a warp moves at once, held in its registers. Piece number i is channels i * LL_PIECE on; the last one of a row
 * may be shorter. Vector v of a lane is the warp's vector v * LL_LANES + lane of the piece, so that neighbouring lanes touch neighbouring memory.
 */
#define LL_STEPS 4u                          /* blocks of 128 channels of a group of lanes */
#define LL_VECS  (LL_STEPS * 16u / LL_GROUP) /* of a lane, while a channel takes 2 bytes */
#define LL_PIECE (LL_STEPS * LL_LANES / LL_GROUP * LL_BLOCK) /* channels */

#define LL_SCALES (2u * LL_PIECE / LL_BLOCK) /* of a piece of codes that are only moved */

struct ll_piece {
	struct ll_vec v[LL_VECS];
	float scale[2u * LL_STEPS]; /* of codes that are only moved a piece has twice as many */
};

EPF_DEV_FN uint32_t ll_pieces(uint32_t hidden)
{
	return (hidden + LL_PIECE - 1u) / LL_PIECE;
}

/* Number of this lane's vector v in the whole row. */
EPF_DEV_FN uint32_t ll_vec_at(uint32_t piece, uint32_t v)
{
	return piece * (LL_PIECE / 8u) + v * LL_LANES + epf_lane();
}

/* Reads a piece; `from`: the row, 16-byte aligned. */
EPF_DEV_FN void ll_piece_load(struct ll_piece *p, uint32_t piece, uint32_t hidden, uint64_t from)
{
	LL_UNROLL
	for (uint32_t v = 0; v < LL_VECS; v++) {
		uint32_t at = ll_vec_at(piece, v);

		if (at < hidden / 8u)
			p->v[v] = ((const struct ll_vec *)(uintptr_t)from)[at];
	}
}

/* Writes it to another row. */
EPF_DEV_FN void ll_piece_store(const struct ll_piece *p, uint32_t piece, uint32_t hidden,
			       uint64_t to)
{
	LL_UNROLL
	for (uint32_t v = 0; v < LL_VECS; v++) {
		uint32_t at = ll_vec_at(piece, v);

		if (at < hidden / 8u)
			((struct ll_vec *)(uintptr_t)to)[at] = p->v[v];
	}
}

/*
 * BF16 in place to FP8: each vector's 8 codes in its first half, and the scales of the blocks. All lanes of the warp call it. A warp comes here once or
 * twice, where short code is quicker than unrolled: so the loop takes what is first in the piece and puts it behind the last.
 */
EPF_DEV_FN void ll_piece_quantise(struct ll_piece *p, uint32_t piece, uint32_t hidden,
				  int power_of_two)
{
	const uint32_t each = LL_VECS / LL_STEPS;

	LL_ROLLED
	for (uint32_t s = 0; s < LL_STEPS; s++) {
		struct ll_vec codes[LL_VECS / LL_STEPS];
		uint32_t top = 0;
		float scale, inv;

		for (uint32_t v = 0; v < each; v++) {
			if (ll_vec_at(piece, s * each + v) >= hidden / 8u)
				p->v[v].w[0] = p->v[v].w[1] = p->v[v].w[2] = p->v[v].w[3] = 0;
			for (uint32_t c = 0; c < 4u; c++)
				top = ll_top(ll_top(top, p->v[v].w[c]), p->v[v].w[c] >> 16);
		}
		top = ll_group_max(top);
		scale = ll_scale(top, power_of_two, &inv);
		for (uint32_t v = 0; v < each; v++) {
			uint64_t q = ll_codes(&p->v[v], inv);

			codes[v] = (struct ll_vec){ { (uint32_t)q, (uint32_t)(q >> 32), 0, 0 } };
		}
		LL_UNROLL
		for (uint32_t v = 0; v < LL_VECS; v++)
			p->v[v] = v + each < LL_VECS ? p->v[v + each] : codes[v + each - LL_VECS];
		LL_UNROLL
		for (uint32_t i = 0; i < LL_STEPS; i++)
			p->scale[i] = i + 1u < LL_STEPS ? p->scale[i + 1u] : scale;
	}
}

/*
 * The scales of a piece that was quantised, as they lie in its row: lane i gets that of block i. Before, the lanes of a group have the scale of their block
 * of each step.
 */
EPF_DEV_FN float ll_piece_scale(const struct ll_piece *p)
{
	float mine = p->scale[0];

	LL_UNROLL
	for (uint32_t s = 0; s < LL_STEPS; s++)
		LL_UNROLL
	for (uint32_t g = 0; g < LL_LANES / LL_GROUP; g++) {
		uint32_t bits = ll_bits(p->scale[s]);

		bits = g ? ll_swap(bits, g * LL_GROUP) : bits;
		mine = epf_lane() == s * (LL_LANES / LL_GROUP) + g ? ll_float(bits) : mine;
	}
	return mine;
}

/* Writes codes [hidden], 8-byte aligned, and float scales [hidden / 128] of a piece that was quantised. scale: ll_piece_scale(). */
EPF_DEV_FN void ll_piece_codes(const struct ll_piece *p, float scale, uint32_t piece,
			       uint32_t hidden, uint64_t codes, uint64_t scales)
{
	uint32_t block = piece * (LL_PIECE / LL_BLOCK) + epf_lane();

	LL_UNROLL
	for (uint32_t v = 0; v < LL_VECS; v++) {
		uint32_t at = ll_vec_at(piece, v);

		if (at < hidden / 8u)
			((uint64_t *)(uintptr_t)codes)[at] =
				(uint64_t)p->v[v].w[1] << 32 | p->v[v].w[0];
	}
	/* Together: each store by itself would cross NVLink by itself. A CPU's only lane has all of them. */
	if (epf_lane() < LL_PIECE / LL_BLOCK && block < hidden / LL_BLOCK)
		((float *)(uintptr_t)scales)[block] = scale;
	for (uint32_t s = LL_LANES; s < LL_PIECE / LL_BLOCK; s++)
		if (block + s < hidden / LL_BLOCK)
			((float *)(uintptr_t)scales)[block + s] = p->scale[s % LL_STEPS];
}

#endif
