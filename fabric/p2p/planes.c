/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planes of values (planes.h). A value is rotated left by one bit, which moves its sign behind the mantissa: the highest byte then is the
 * exponent of bf16 and fp32, and the exponent with three bits of mantissa of fp16.
 */
#include "fabric/p2p/planes.h"

#include <string.h>

#ifndef __clang__ /* which vectorizes at -O2 */
# pragma GCC optimize("O3")
#endif

static void split2(const uint8_t *from, uint32_t n, uint8_t *restrict high, uint8_t *restrict low)
{
	for (uint32_t i = 0; i < n; i++) {
		uint16_t v;

		memcpy(&v, from + 2 * (size_t)i, sizeof(v));
		high[i] = (uint8_t)(v >> 7);
		low[i] = (uint8_t)((v & 0x7f) | (v >> 8 & 0x80));
	}
}

static void split4(const uint8_t *from, uint32_t n, uint8_t *restrict high, uint8_t *restrict b,
		   uint8_t *restrict c, uint8_t *restrict low)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t v;

		memcpy(&v, from + 4 * (size_t)i, sizeof(v));
		v = v << 1 | v >> 31;
		high[i] = (uint8_t)(v >> 24);
		b[i] = (uint8_t)(v >> 16);
		c[i] = (uint8_t)(v >> 8);
		low[i] = (uint8_t)v;
	}
}

static void merge2(const uint8_t *high, const uint8_t *low, uint32_t n, uint8_t *restrict to)
{
	for (uint32_t i = 0; i < n; i++) {
		uint16_t v = (uint16_t)(high[i] << 7 | (low[i] & 0x7f) | (low[i] & 0x80) << 8);

		memcpy(to + 2 * (size_t)i, &v, sizeof(v));
	}
}

static void merge4(const uint8_t *const *p, uint32_t n, uint8_t *restrict to)
{
	const uint8_t *a = p[0], *b = p[1], *c = p[2], *d = p[3];

	for (uint32_t i = 0; i < n; i++) {
		uint32_t v =
			(uint32_t)a[i] << 24 | (uint32_t)b[i] << 16 | (uint32_t)c[i] << 8 | d[i];

		v = v >> 1 | v << 31;
		memcpy(to + 4 * (size_t)i, &v, sizeof(v));
	}
}

void epf_p2p_planes_split(uint32_t size, const uint8_t *from, uint32_t n, uint8_t *planes)
{
	if (size == 1)
		memcpy(planes, from, n);
	else if (size == 2)
		split2(from, n, planes, planes + n);
	else
		split4(from, n, planes, planes + n, planes + 2 * (size_t)n, planes + 3 * (size_t)n);
}

void epf_p2p_planes_merge(uint32_t size, const uint8_t *const *plane, uint32_t n, uint8_t *to)
{
	if (size == 1)
		memcpy(to, plane[0], n);
	else if (size == 2)
		merge2(plane[0], plane[1], n, to);
	else
		merge4(plane, n, to);
}
