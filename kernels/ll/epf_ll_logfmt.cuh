/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LogFMT: BF16 rows in 10 bits a channel, for combine. Definition and error: kernels/ll/README.md. A BF16 pattern without its sign is a logarithm to
 * base 2 already, in steps of 1/128 octave and straight between powers of two; codes divide the range of a block of 128 channels evenly in
 * it. So everything is arithmetic of integers, and the same bits come out everywhere.
 *
 * A row: a word a block (lowest pattern, span << 16; span 0: the block is BF16), padded to 16 bytes; 160 bytes a block; 96 bytes a block more,
 * which only BF16 blocks use. Of a block's 160: low 8 bits of each code, then the upper 2 of four channels a byte.
 */
#ifndef EPF_KERNELS_LL_LOGFMT_CUH
#define EPF_KERNELS_LL_LOGFMT_CUH

#include "kernels/ll/epf_ll_num.cuh"

#define LL_LOG_STEPS  510u  /* between the lowest and the highest code */
#define LL_LOG_WIDEST 2040u /* patterns that a block may span: 16 octaves */
#define LL_LOG_VECS   10u   /* 16-byte vectors of a block that lie in its 160 bytes */

/* How a block is coded. */
struct ll_log {
	uint32_t low;  /* the smallest pattern that is not 0 */
	uint32_t span; /* 0: as BF16 */
	uint32_t
		inverse; /* 2^32 / span, rounded up: (n * inverse) >> 32 is n / span for what is divided here */
};

/* high: the largest pattern; depth: the largest of 0x7fff - pattern of those that are not 0, 0 if there are none. */
EPF_DEV_FN struct ll_log ll_log_of(uint32_t high, uint32_t depth)
{
	struct ll_log l;
	uint32_t range;

	l.low = high ? 0x7fffu - depth : 0;
	range = high - l.low;
	l.span = range < LL_LOG_STEPS ? LL_LOG_STEPS : range;
	l.inverse = 0xffffffffu / l.span + 1u;
	if (high >= 0x7f80u || range > LL_LOG_WIDEST)
		l.span = 0;
	return l;
}

EPF_DEV_FN uint32_t ll_log_encode(const struct ll_log *l, uint32_t b)
{
	uint32_t mag = b & 0x7fffu, sign = (b >> 15 & 1u) << 9;
	uint32_t n = (mag - l->low) * LL_LOG_STEPS + l->span / 2u;

	return mag ? sign | (1u + (uint32_t)((uint64_t)n * l->inverse >> 32)) : sign;
}

EPF_DEV_FN uint32_t ll_log_decode(uint32_t low, uint32_t span, uint32_t code)
{
	uint32_t k = code & 0x1ffu, sign = (code >> 9) << 15;

	return k ? sign | (low + ((k - 1u) * span + LL_LOG_STEPS / 2u) / LL_LOG_STEPS) : sign;
}

EPF_DEV_FN uint64_t ll_log_block_at(uint64_t row, uint32_t hidden, uint32_t block)
{
	return row + ll_log_words(hidden) + (uint64_t)block * LL_LOG_BLOCK;
}

/* Where vector a of a block lies that is BF16. */
EPF_DEV_FN uint64_t ll_log_plain_at(uint64_t row, uint32_t hidden, uint32_t block, uint32_t a)
{
	if (a < LL_LOG_VECS)
		return ll_log_block_at(row, hidden, block) + a * 16u;
	return row + ll_log_short(hidden) + (uint64_t)block * (2u * LL_BLOCK - LL_LOG_BLOCK) +
	       (a - LL_LOG_VECS) * 16u;
}

/* Vector `at` of a row, eight channels, to its place; the first of a block brings the block's word. */
EPF_DEV_FN void ll_log_store(uint64_t row, uint32_t hidden, uint32_t at, const struct ll_vec *v,
			     const struct ll_log *l)
{
	uint32_t block = at / 16u, a = at % 16u, highs = 0;
	uint64_t to = ll_log_block_at(row, hidden, block), lows = 0;

	if (a == 0)
		((uint32_t *)(uintptr_t)row)[block] = l->low | l->span << 16;
	if (!l->span) {
		*(struct ll_vec *)(uintptr_t)ll_log_plain_at(row, hidden, block, a) = *v;
		return;
	}
	for (uint32_t c = 0; c < 8u; c++) {
		uint32_t code = ll_log_encode(l, v->w[c / 2u] >> (c % 2u * 16u) & 0xffffu);

		lows |= (uint64_t)(code & 0xffu) << (8u * c);
		highs |= (code >> 8) << (2u * c);
	}
	((uint64_t *)(uintptr_t)to)[a] = lows;
	((uint16_t *)(uintptr_t)(to + LL_BLOCK))[a] = (uint16_t)highs;
}

/* Eight channels back, as BF16. */
EPF_DEV_FN struct ll_vec ll_log_load(uint64_t row, uint32_t hidden, uint32_t at)
{
	uint32_t block = at / 16u, a = at % 16u;
	uint32_t word = ((const uint32_t *)(uintptr_t)row)[block];
	uint64_t from = ll_log_block_at(row, hidden, block), lows;
	uint32_t highs;
	struct ll_vec v;

	if (!(word >> 16))
		return *(const struct ll_vec *)(uintptr_t)ll_log_plain_at(row, hidden, block, a);
	lows = ((const uint64_t *)(uintptr_t)from)[a];
	highs = ((const uint16_t *)(uintptr_t)(from + LL_BLOCK))[a];
	for (uint32_t c = 0; c < 8u; c += 2u) {
		uint32_t b[2];

		for (uint32_t i = 0; i < 2u; i++)
			b[i] = ll_log_decode(word & 0xffffu, word >> 16,
					     (uint32_t)(lows >> (8u * (c + i)) & 0xffu) |
						     (highs >> (2u * (c + i)) & 3u) << 8);
		v.w[c / 2u] = b[0] | b[1] << 16;
	}
	return v;
}

/* A piece of BF16 to its place in a LogFMT row. All lanes of the warp call it. */
EPF_DEV_FN void ll_piece_log(const struct ll_piece *p, uint32_t piece, uint32_t hidden,
			     uint64_t row)
{
	LL_UNROLL
	for (uint32_t s = 0; s < LL_STEPS; s++) {
		uint32_t high = 0, depth = 0;
		struct ll_log l;

		for (uint32_t i = 0; i < 16u / LL_GROUP; i++) {
			uint32_t v = s * (16u / LL_GROUP) + i;

			if (ll_vec_at(piece, v) >= hidden / 8u)
				continue;
			for (uint32_t c = 0; c < 8u; c++) {
				uint32_t mag = p->v[v].w[c / 2u] >> (c % 2u * 16u) & 0x7fffu;

				high = mag > high ? mag : high;
				depth = mag && 0x7fffu - mag > depth ? 0x7fffu - mag : depth;
			}
		}
		l = ll_log_of(ll_group_max(high), ll_group_max(depth));
		for (uint32_t i = 0; i < 16u / LL_GROUP; i++) {
			uint32_t v = s * (16u / LL_GROUP) + i, at = ll_vec_at(piece, v);

			if (at < hidden / 8u)
				ll_log_store(row, hidden, at, &p->v[v], &l);
		}
	}
}

/* Bytes of a row that have to travel: without the last part if no block is BF16. One thread. */
EPF_DEV_FN uint32_t ll_log_used(uint64_t row, uint32_t hidden)
{
	for (uint32_t b = 0; b < hidden / LL_BLOCK; b++)
		if (!(epf_ld32_relaxed_gpu((const uint32_t *)(uintptr_t)row + b) >> 16))
			return ll_log_bytes(hidden);
	return ll_log_short(hidden);
}

#endif
