/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number formats: kernels/host/num against the formulas of the formats and against the reference,
 * which converts by searching for the nearest value. BF16 inputs are tried exhaustively, floats at
 * every rounding boundary and at random. Run by meson; it never tests rows on the wire.
 */
#include "kernels/host/gate.h"
#include "kernels/host/num.h"
#include "tests/ref/ref.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define NFLOATS 4000000u

static float float_from(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint32_t bits_from(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 16;
}

/* Same bits, or both not a number. */
static void assert_same_float(float a, float b)
{
	if (isnan(a) && isnan(b))
		return;
	assert_int_equal(bits_from(a), bits_from(b));
}

static void assert_encodes_like_ref(float f)
{
	if (epf_e4m3_encode(f) != ref_e4m3_encode(f))
		fail_msg("e4m3(%a) = 0x%02x, reference 0x%02x", (double)f, epf_e4m3_encode(f),
			 ref_e4m3_encode(f));
	if (epf_bf16_encode(f) != ref_bf16_encode(f))
		fail_msg("bf16(%a) = 0x%04x, reference 0x%04x", (double)f, epf_bf16_encode(f),
			 ref_bf16_encode(f));
}

/* Value of a code from the specification's formula: sign, 4 bits biased by 7, 3 bits. */
static void e4m3_decode_table(void **state)
{
	for (int code = 0; code < 256; code++) {
		int exponent = (code >> 3) & 15, mantissa = code & 7;
		double value =
			exponent ? (8 + mantissa) * pow(2, exponent - 10) : mantissa * pow(2, -9);
		float want = (float)(code & 0x80 ? -value : value);

		if ((code & 0x7f) == 0x7f)
			want = NAN;
		assert_same_float(epf_e4m3_decode((uint8_t)code), want);
		assert_same_float(ref_e4m3_decode((uint8_t)code), want);
	}
	assert_true(epf_e4m3_decode(0x7e) == 448.0f);
	assert_true(epf_e4m3_decode(0x01) == 0x1p-9f);
	assert_true(epf_e4m3_decode(0x08) == 0x1p-6f);
}

static void e4m3_round_trip(void **state)
{
	for (int code = 0; code < 256; code++) {
		int want = (code & 0x7f) == 0x7f ? 0x7f : code;

		assert_int_equal(epf_e4m3_encode(epf_e4m3_decode((uint8_t)code)), want);
	}
}

static void e4m3_every_bf16(void **state)
{
	for (uint32_t b = 0; b < 65536; b++) {
		float f = epf_bf16_decode((uint16_t)b);

		assert_same_float(f, ref_bf16_decode((uint16_t)b));
		assert_encodes_like_ref(f);
	}
}

/* At and beside each middle between two codes. The middle itself goes to the even code. */
static void e4m3_every_boundary(void **state)
{
	for (int code = 0; code < 0x7e; code++) {
		float low = epf_e4m3_decode((uint8_t)code);
		float high = epf_e4m3_decode((uint8_t)(code + 1));
		float middle = (low + high) / 2;
		int even = code % 2 ? code + 1 : code;

		assert_int_equal(epf_e4m3_encode(middle), even);
		assert_int_equal(epf_e4m3_encode(-middle), even | 0x80);
		assert_int_equal(epf_e4m3_encode(nextafterf(middle, 0)), code);
		assert_int_equal(epf_e4m3_encode(nextafterf(middle, INFINITY)), code + 1);
		assert_encodes_like_ref(middle);
		assert_encodes_like_ref(nextafterf(middle, 0));
		assert_encodes_like_ref(nextafterf(middle, INFINITY));
	}
}

static void e4m3_special(void **state)
{
	assert_int_equal(epf_e4m3_encode(0.0f), 0x00);
	assert_int_equal(epf_e4m3_encode(-0.0f), 0x80);
	assert_int_equal(epf_e4m3_encode(0x1p-149f), 0x00);
	assert_int_equal(epf_e4m3_encode(-0x1p-149f), 0x80);
	assert_int_equal(epf_e4m3_encode(449.0f), 0x7e);
	assert_int_equal(epf_e4m3_encode(464.0f), 0x7e);
	assert_int_equal(epf_e4m3_encode(-1e30f), 0xfe);
	assert_int_equal(epf_e4m3_encode(INFINITY), 0x7e);
	assert_int_equal(epf_e4m3_encode(-INFINITY), 0xfe);
	assert_int_equal(epf_e4m3_encode(NAN), 0x7f);
	assert_int_equal(epf_e4m3_encode(-NAN), 0x7f);
	assert_int_equal(epf_e4m3_encode(float_from(0x7f800001)), 0x7f);
}

static void bf16_special(void **state)
{
	assert_int_equal(epf_bf16_encode(1.0f), 0x3f80);
	assert_int_equal(epf_bf16_encode(-0.0f), 0x8000);
	assert_int_equal(epf_bf16_encode(INFINITY), 0x7f80);
	assert_int_equal(epf_bf16_encode(-INFINITY), 0xff80);
	assert_int_equal(epf_bf16_encode(NAN), 0x7fff);
	assert_int_equal(epf_bf16_encode(float_from(0xffc12345)), 0x7fff);
	assert_int_equal(epf_bf16_encode(float_from(0x7f800001)), 0x7fff);
	/* The largest float is nearer to 2^128 than to the largest BF16. */
	assert_int_equal(epf_bf16_encode(float_from(0x7f7fffff)), 0x7f80);
	assert_int_equal(epf_bf16_encode(float_from(0x7f7f7fff)), 0x7f7f);
}

/* Around each BF16 pattern: exact, just above, both sides of the middle and the middle. */
static void bf16_every_boundary(void **state)
{
	static const uint32_t low[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };

	for (uint32_t b = 0; b < 65536; b++)
		for (size_t i = 0; i < sizeof(low) / sizeof(low[0]); i++)
			assert_encodes_like_ref(float_from(b << 16 | low[i]));
	for (uint32_t b = 0; b < 0x7f80; b++) {
		uint32_t even = b % 2 ? b + 1 : b;

		assert_int_equal(epf_bf16_encode(float_from(b << 16 | 0x7fff)), b);
		assert_int_equal(epf_bf16_encode(float_from(b << 16 | 0x8000)), even);
		assert_int_equal(epf_bf16_encode(float_from(b << 16 | 0x8001)), b + 1);
	}
}

static void random_floats(void **state)
{
	uint64_t random = 1;

	for (uint32_t i = 0; i < NFLOATS; i++) {
		uint32_t bits = (uint32_t)next_random(&random);

		/* Every other one with an exponent where E4M3 rounds. */
		if (i & 1)
			bits = (bits & 0x807fffff) | (113 + bits % 26) << 23;
		assert_encodes_like_ref(float_from(bits));
	}
}

static void ue8m0(void **state)
{
	assert_int_equal(epf_ue8m0_encode(1.0f), 127);
	assert_int_equal(epf_ue8m0_encode(0x1p-22f), 105);
	assert_int_equal(epf_ue8m0_encode(INFINITY), 255);
	for (int e = 0; e < 255; e++)
		assert_true(epf_ue8m0_decode((uint8_t)e) == ldexpf(1, e - 127));
	for (int e = 1; e < 255; e++)
		assert_int_equal(epf_ue8m0_encode(epf_ue8m0_decode((uint8_t)e)), e);
	assert_true(isnan(epf_ue8m0_decode(255)));
}

static void check_row(const uint16_t *x, uint32_t hidden)
{
	uint8_t q[7168], q_ref[7168];
	uint16_t out[7168], out_ref[7168];
	float scales[56], scales_ref[56];

	for (unsigned flags = 0; flags <= EPF_NUM_POW2_SCALE; flags++) {
		int pow2 = flags == EPF_NUM_POW2_SCALE;

		assert_int_equal(epf_num_quantise(x, hidden, flags, q, scales), 0);
		assert_int_equal(ref_quantise(x, (int)hidden, pow2, q_ref, scales_ref), 0);
		assert_memory_equal(q, q_ref, hidden);
		assert_memory_equal(scales, scales_ref, hidden / 128 * sizeof(float));
		assert_int_equal(epf_num_dequantise(q, scales, hidden, out), 0);
		assert_int_equal(ref_dequantise(q, scales, (int)hidden, out_ref), 0);
		assert_memory_equal(out, out_ref, hidden * sizeof(*out));
		for (uint32_t b = 0; pow2 && b < hidden / 128; b++) {
			float back = epf_ue8m0_decode(epf_ue8m0_encode(scales[b]));

			assert_true(back == scales[b] || isinf(scales[b]));
		}
	}
}

static void rows_like_ref(void **state)
{
	static const uint32_t widths[] = { 128, 256, 640, 7168 };
	uint16_t row[7168];

	for (uint32_t t = 0; t < 200; t++) {
		uint32_t hidden = widths[t % 4];

		epf_input_row(11, 3, t, hidden, row);
		check_row(row, hidden);
	}
}

/* Rows of arbitrary patterns: NaN, infinity, subnormals, blocks below the smallest amax. */
static void hostile_rows_like_ref(void **state)
{
	uint64_t random = 5;
	uint16_t row[7168];

	for (uint32_t t = 0; t < 400; t++) {
		uint32_t mask = t % 4 == 0 ? 0xffff : t % 4 == 1 ? 0xbfff : t % 4 == 2 ? 0x80ff : 0;

		for (uint32_t c = 0; c < 7168; c++)
			row[c] = (uint16_t)(next_random(&random) & mask);
		check_row(row, 7168);
	}
}

/* Scale and amax at each power of two: the place where "round up" can be off by one. */
/* Numbers only, of any size: no block with a NaN or an infinity, which is converted in another way. */
static void finite_rows_like_ref(void **state)
{
	uint64_t random = 5;
	uint16_t row[1024];

	for (uint32_t t = 0; t < 300; t++) {
		uint64_t spread = 1 + t % 254; /* of exponents, in a block */

		for (int c = 0; c < 1024; c++) {
			uint64_t r = next_random(&random);

			row[c] = (uint16_t)((r & 0x807f) | (254 - (r >> 20) % spread) << 7);
		}
		check_row(row, 1024);
	}
}

/* With 448 in its block a value is converted as it is: every tie between two codes, and its neighbours on both sides. */
static void ties_like_ref(void **state)
{
	uint16_t row[3 * 128 * 2] = { 0 };
	uint32_t n = 0;

	for (int code = 0; code < 0x7e; code++) {
		float middle =
			(epf_e4m3_decode((uint8_t)code) + epf_e4m3_decode((uint8_t)(code + 1))) / 2;
		uint16_t at = epf_bf16_encode(middle);

		for (int d = -1; d <= 1; d++) {
			if (n % 128 == 0)
				row[n++] = epf_bf16_encode(448);
			row[n++] = (uint16_t)((at + d) | (code % 2 ? 0x8000 : 0));
		}
	}
	assert_true(n <= 512);
	check_row(row, 768);
}

static void pow2_scale_edges(void **state)
{
	uint16_t row[128] = { 0 };
	uint8_t q[128];
	float scale;

	for (int n = -20; n <= 110; n++) {
		row[5] = epf_bf16_encode(ldexpf(448, n));
		assert_int_equal(epf_num_quantise(row, 128, EPF_NUM_POW2_SCALE, q, &scale), 0);
		assert_true(scale == ldexpf(1, n));
		assert_int_equal(q[5], 0x7e);
		row[5]++;
		assert_int_equal(epf_num_quantise(row, 128, EPF_NUM_POW2_SCALE, q, &scale), 0);
		assert_true(scale == ldexpf(1, n + 1));
		check_row(row, 128);
	}
}

static void zero_block(void **state)
{
	uint16_t row[128] = { 0 };
	uint8_t q[128];
	float scale;

	memset(q, 0xff, sizeof(q));
	assert_int_equal(epf_num_quantise(row, 128, 0, q, &scale), 0);
	assert_true(scale == 1e-4f / 448.0f);
	for (int c = 0; c < 128; c++)
		assert_int_equal(q[c], 0);
}

static void bad_arguments(void **state)
{
	uint16_t row[256] = { 0 }, out[256];
	uint8_t q[256] = { 0 };
	float scales[2] = { 9, 9 };

	assert_int_equal(epf_num_quantise(row, 0, 0, q, scales), -EINVAL);
	assert_int_equal(epf_num_quantise(row, 130, 0, q, scales), -EINVAL);
	assert_int_equal(epf_num_quantise(row, 256, 2, q, scales), -EINVAL);
	assert_true(scales[0] == 9);
	assert_int_equal(epf_num_dequantise(q, scales, 64, out), -EINVAL);
	assert_int_equal(epf_num_fp8_bytes(7168), 7168 + 56 * 4);
	assert_int_equal(epf_num_bf16_bytes(7168), 14336);
}

/* Two roundings, product then sum: a fused operation would keep the product's low half. */
static void sums_are_not_fused(void **state)
{
	float w = 0x1.fffffep-1f;
	float y = 1.0f + 0x1p-7f;
	uint16_t row[77];
	float acc[77];
	volatile float product = w * y;

	for (int c = 0; c < 77; c++) {
		row[c] = epf_bf16_encode(y);
		acc[c] = -1.0f;
	}
	assert_true(fmaf(w, y, -1.0f) != product - 1.0f);
	epf_num_add_scaled(acc, row, w, 77);
	for (int c = 0; c < 77; c++)
		assert_true(acc[c] == product - 1.0f);
}

/* Sums of rows as one addition after another gives them, with and without weights, whole chunks of channels and a rest. */
static void sums_of_rows(void **state)
{
	enum { MOST = 9, N = 1111, MADE = 1112 };

	static uint16_t row[MOST][MADE], out[N]; /* rows are made in fours */
	const uint16_t *rows[MOST];
	float w[MOST];

	for (uint32_t i = 0; i < MOST; i++) {
		epf_input_row(7, 1, i, MADE, row[i]);
		rows[i] = row[i];
		w[i] = 0.37f * (float)(i + 1);
	}
	for (unsigned count = 0; count <= MOST; count++) {
		for (int weighted = 0; weighted <= 1; weighted++) {
			epf_num_sum(out, rows, weighted ? w : NULL, count, N);
			for (int c = 0; c < N; c++) {
				volatile float sum = 0;

				for (unsigned i = 0; i < count; i++) {
					volatile float y = ref_bf16_decode(row[i][c]);

					if (weighted)
						y = w[i] * y;
					sum = sum + y;
				}
				assert_int_equal(out[c], ref_bf16_encode(sum));
			}
		}
	}
}

static void rows_convert(void **state)
{
	uint16_t in[777], out[777];
	float f[777];
	uint64_t random = 3;

	for (int i = 0; i < 777; i++)
		in[i] = (uint16_t)next_random(&random);
	for (int i = 0; i < 777; i++)
		f[i] = ref_bf16_decode(in[i]);
	epf_num_to_bf16(out, f, 777);
	for (int i = 0; i < 777; i++)
		assert_int_equal(out[i], isnan(f[i]) ? 0x7fff : in[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(e4m3_decode_table),
		cmocka_unit_test(e4m3_round_trip),
		cmocka_unit_test(e4m3_every_bf16),
		cmocka_unit_test(e4m3_every_boundary),
		cmocka_unit_test(e4m3_special),
		cmocka_unit_test(bf16_special),
		cmocka_unit_test(bf16_every_boundary),
		cmocka_unit_test(random_floats),
		cmocka_unit_test(ue8m0),
	};
	const struct CMUnitTest rows[] = {
		cmocka_unit_test(rows_like_ref),    cmocka_unit_test(hostile_rows_like_ref),
		cmocka_unit_test(pow2_scale_edges), cmocka_unit_test(zero_block),
		cmocka_unit_test(bad_arguments),    cmocka_unit_test(sums_are_not_fused),
		cmocka_unit_test(rows_convert),     cmocka_unit_test(finite_rows_like_ref),
		cmocka_unit_test(ties_like_ref),    cmocka_unit_test(sums_of_rows),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	/* The row functions again for each width of vectors that this processor has. */
	for (int width = EPF_NUM_BASELINE; width <= EPF_NUM_AVX512; width++) {
		if ((int)epf_num_limit((enum epf_num_width)width) != width)
			continue;
		print_message("width %d\n", width);
		failed += cmocka_run_group_tests(rows, NULL, NULL);
	}
	return failed;
}
