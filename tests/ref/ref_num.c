/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number formats of the reference. Values come from the formulas of the formats, in double; encoding searches for the nearest value.
 * Called by ref_moe.c and the tests. It must never include a header of the project.
 *
 * Quantising a block of 128 channels, each line one float operation:
 *   amax  = the largest |x| that is not NaN, at least 1e-4
 *   scale = amax / 448          inv = 448 / amax
 *   (power of two: scale = smallest 2^n >= amax / 448, inv = 1 / scale)
 *   code  = e4m3(x * inv)
 */
#include "tests/ref/ref.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#define BF16_INF   0x7f80
#define E4M3_CODES 127 /* magnitudes 0 to 126: 0 to 448 */

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Magnitudes of BF16 in double; the entry after the largest finite one is 2^128. */
static double bf16_magnitude[BF16_INF + 1];
static float bf16_value[65536];
static float e4m3_value[256];

/* e4m3_from[c] is the smallest magnitude that rounds to more than code c. */
static double e4m3_from[E4M3_CODES];

static double e4m3_magnitude(int code)
{
	int exponent = code >> 3, mantissa = code & 7;

	return exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa, -9);
}

static void build_bf16(void)
{
	for (int b = 0; b <= BF16_INF; b++) {
		int exponent = b / 128, mantissa = b % 128;

		bf16_magnitude[b] = exponent ? ldexp(1 + mantissa / 128.0, exponent - 127)
					     : ldexp(mantissa, -133);
	}
	for (int b = 0; b < 32768; b++) {
		float f = b < BF16_INF ? (float)bf16_magnitude[b] : b == BF16_INF ? INFINITY : NAN;

		bf16_value[b] = f;
		bf16_value[b + 32768] = -f;
	}
}

static void build(void)
{
	build_bf16();
	for (int c = 0; c < E4M3_CODES - 1; c++) {
		double middle = (e4m3_magnitude(c) + e4m3_magnitude(c + 1)) / 2;

		/* The middle goes to the even code: up from an odd one, and not from an even one. */
		e4m3_from[c] = c % 2 ? middle : nextafter(middle, INFINITY);
	}
	e4m3_from[E4M3_CODES - 1] = NAN; /* nothing rounds to more than 448 */
	for (int c = 0; c < 128; c++) {
		float f = c < E4M3_CODES ? (float)e4m3_magnitude(c) : NAN;

		e4m3_value[c] = f;
		e4m3_value[c + 128] = -f;
	}
}

static void need_tables(void)
{
	pthread_once(&once, build);
}

float ref_bf16_decode(uint16_t b)
{
	need_tables();
	return bf16_value[b];
}

float ref_e4m3_decode(uint8_t code)
{
	need_tables();
	return e4m3_value[code];
}

/* The neighbours are the top half of the float and the pattern after it; the nearer one wins. */
static uint16_t nearest_bf16(float f)
{
	double magnitude = fabs((double)f), below, above;
	uint16_t halves[2], pattern;

	if (isnan(f))
		return 0x7fff;
	if (isinf(f))
		return f < 0 ? 0xff80 : 0x7f80;
	memcpy(halves, &f, sizeof(halves));
	pattern = halves[1] & 0x7fff;
	below = magnitude - bf16_magnitude[pattern];
	above = bf16_magnitude[pattern + 1] - magnitude;
	if (above < below || (above == below && pattern % 2))
		pattern++;
	return signbit(f) ? pattern + 32768 : pattern;
}

static uint8_t nearest_e4m3(float f)
{
	double magnitude = fabs((double)f);
	int code = 0;

	if (isnan(f))
		return 0x7f;
	/* Counts the thresholds reached, by bisection. */
	for (int step = 64; step; step /= 2)
		code += step * (magnitude >= e4m3_from[code + step - 1]);
	return (uint8_t)(signbit(f) ? code + 128 : code);
}

uint16_t ref_bf16_encode(float f)
{
	need_tables();
	return nearest_bf16(f);
}

uint8_t ref_e4m3_encode(float f)
{
	need_tables();
	return nearest_e4m3(f);
}

void ref_bf16_decode_row(float *out, const uint16_t *x, int n)
{
	need_tables();
	for (int c = 0; c < n; c++)
		out[c] = bf16_value[x[c]];
}

void ref_bf16_encode_row(uint16_t *out, const float *x, int n)
{
	need_tables();
	for (int c = 0; c < n; c++)
		out[c] = nearest_bf16(x[c]);
}

static void power_of_two_scale(float exact, float *scale, float *inv)
{
	int n;

	if (isinf(exact)) {
		*scale = INFINITY;
		*inv = 0;
		return;
	}
	/* exact = m * 2^n with m in [1/2, 1): 2^n is above it, 2^(n-1) only if m is 1/2. */
	if (frexp((double)exact, &n) == 0.5)
		n--;
	*scale = (float)ldexp(1, n);
	*inv = (float)ldexp(1, -n);
}

int ref_quantise(const uint16_t *x, int hidden, int pow2_scale, uint8_t *q, float *scales)
{
	if (hidden <= 0 || hidden % REF_BLOCK)
		return -EINVAL;
	need_tables();
	for (int start = 0; start < hidden; start += REF_BLOCK) {
		float amax = 1e-4f, scale, inv;

		for (int c = start; c < start + REF_BLOCK; c++) {
			float magnitude = fabsf(bf16_value[x[c]]);

			if (magnitude > amax)
				amax = magnitude;
		}
		scale = amax / 448.0f;
		inv = 448.0f / amax;
		if (pow2_scale)
			power_of_two_scale(scale, &scale, &inv);
		scales[start / REF_BLOCK] = scale;
		for (int c = start; c < start + REF_BLOCK; c++) {
			float scaled = bf16_value[x[c]] * inv;

			q[c] = nearest_e4m3(scaled);
		}
	}
	return 0;
}

int ref_dequantise(const uint8_t *q, const float *scales, int hidden, uint16_t *out)
{
	if (hidden <= 0 || hidden % REF_BLOCK)
		return -EINVAL;
	need_tables();
	for (int c = 0; c < hidden; c++) {
		float product = e4m3_value[q[c]] * scales[c / REF_BLOCK];

		out[c] = nearest_bf16(product);
	}
	return 0;
}

/* One block: the magnitudes that are not 0 span from low to high; 511 levels, evenly spread over at least 510 of them. */
static int logfmt_block(uint16_t *x)
{
	int low = 0x8000, high = 0;
	double span;

	for (int i = 0; i < 128; i++) {
		int m = x[i] & 0x7fff;

		if (m > high)
			high = m;
		if (m && m < low)
			low = m;
	}
	if (high >= 0x7f80 || (high && high - low > 2040))
		return 1;
	span = high && high - low > 510 ? high - low : 510;
	for (int i = 0; i < 128; i++) {
		int m = x[i] & 0x7fff;
		double level = floor((m - low) * 510.0 / span + 0.5);

		if (m)
			x[i] = (uint16_t)((x[i] & 0x8000) |
					  (low + (int)floor(level * span / 510.0 + 0.5)));
	}
	return 0;
}

int ref_logfmt(uint16_t *x, int hidden)
{
	int plain = 0;

	if (hidden <= 0 || hidden % 128 != 0)
		return -EINVAL;
	for (int at = 0; at < hidden; at += 128)
		plain += logfmt_block(x + at);
	return plain;
}
