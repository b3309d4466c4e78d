/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log-linear histogram: its buckets tile all 64-bit values, and its quantiles keep the promised
 * error against a sorted list of the same values. Seeded: EPF_SEED=<n> replays a run.
 */
#include "queues/epf_hist.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static void buckets_tile_everything(void **state)
{
	uint64_t expect = 0;
	uint32_t i;

	for (i = 0; i < EPF_HIST_BUCKETS; i++) {
		assert_int_equal(epf_hist_lower(i), expect);
		assert_true(epf_hist_upper(i) >= epf_hist_lower(i));
		assert_int_equal(epf_hist_index(epf_hist_lower(i)), i);
		assert_int_equal(epf_hist_index(epf_hist_upper(i)), i);
		expect = epf_hist_upper(i) + 1;
	}
	assert_int_equal(expect, 0); /* one past UINT64_MAX */
}

static void small_values_are_exact(void **state)
{
	static struct epf_hist h;
	uint64_t v;

	for (v = 0; v < 32; v++) {
		memset(&h, 0, sizeof(h));
		epf_hist_add(&h, v);
		assert_int_equal(epf_hist_min(&h), v);
		assert_int_equal(epf_hist_max(&h), v);
		assert_int_equal(epf_hist_quantile(&h, 0.5), v);
	}
}

static void empty_is_zero(void **state)
{
	static const struct epf_hist h;

	assert_int_equal(epf_hist_count(&h), 0);
	assert_int_equal(epf_hist_min(&h), 0);
	assert_int_equal(epf_hist_max(&h), 0);
	assert_int_equal(epf_hist_quantile(&h, 0.99), 0);
}

static void extremes(void **state)
{
	static struct epf_hist h;

	epf_hist_add_n(&h, UINT64_MAX, 3);
	epf_hist_add(&h, 0);
	assert_int_equal(epf_hist_count(&h), 4);
	assert_int_equal(epf_hist_min(&h), 0);
	assert_true(epf_hist_max(&h) == UINT64_MAX);
	assert_int_equal(epf_hist_quantile(&h, 0.0), 0);
	assert_int_equal(epf_hist_quantile(&h, -1.0), 0);
	assert_int_equal(epf_hist_quantile(&h, 0.25), 0);
	assert_true(epf_hist_quantile(&h, 0.26) >= UINT64_MAX - (UINT64_MAX >> 5));
	assert_true(epf_hist_quantile(&h, 7.0) >= UINT64_MAX - (UINT64_MAX >> 5));
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void check_quantiles(const struct epf_hist *h, const uint64_t *sorted, size_t n)
{
	static const double qs[] = { 0.001, 0.01, 0.1, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0 };
	size_t i;

	for (i = 0; i < sizeof(qs) / sizeof(qs[0]); i++) {
		double want = qs[i] * (double)n;
		size_t rank = (size_t)want + ((double)(size_t)want < want);
		uint64_t truth = sorted[rank ? rank - 1 : 0];
		uint64_t got = epf_hist_quantile(h, qs[i]);
		uint64_t error = got > truth ? got - truth : truth - got;

		if (error > truth / 32)
			fail_msg("seed %" PRIu64 ": q %g of %zu: got %" PRIu64 ", true %" PRIu64,
				 seed, qs[i], n, got, truth);
	}
	assert_true(epf_hist_min(h) <= sorted[0]);
	assert_true(sorted[0] - epf_hist_min(h) <= sorted[0] / 16);
	assert_true(epf_hist_max(h) >= sorted[n - 1]);
	assert_true(epf_hist_max(h) - sorted[n - 1] <= sorted[n - 1] / 16);
}

/* Values of all magnitudes, sizes 1..4000. */
static void quantiles_keep_their_bound(void **state)
{
	static uint64_t values[4000];
	static struct epf_hist h;
	uint64_t rng = seed, sum;
	unsigned round;
	size_t i, n;

	for (round = 0; round < 200; round++) {
		n = 1 + next_random(&rng) % 4000;
		sum = 0;
		memset(&h, 0, sizeof(h));
		for (i = 0; i < n; i++) {
			values[i] = next_random(&rng) >> next_random(&rng) % 64;
			sum += values[i];
			epf_hist_add(&h, values[i]);
		}
		qsort(values, n, sizeof(values[0]), by_value);
		assert_int_equal(epf_hist_count(&h), n);
		assert_true(h.sum == sum);
		check_quantiles(&h, values, n);
	}
}

static void merge_and_subtract_undo_each_other(void **state)
{
	static struct epf_hist a, b, both;
	uint64_t rng = seed, v;
	int i;

	for (i = 0; i < 5000; i++) {
		v = next_random(&rng) >> 20;
		epf_hist_add(i % 3 ? &a : &b, v);
		epf_hist_add(&both, v);
	}
	epf_hist_merge(&a, &b);
	assert_memory_equal(&a, &both, sizeof(a));
	epf_hist_subtract(&both, &b);
	epf_hist_merge(&both, &b);
	assert_memory_equal(&a, &both, sizeof(a));
	epf_hist_subtract(&a, &both);
	assert_int_equal(epf_hist_count(&a), 0);
	assert_int_equal(a.sum, 0);
}

int main(void)
{
	const char *env = getenv("EPF_SEED");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buckets_tile_everything),
		cmocka_unit_test(small_values_are_exact),
		cmocka_unit_test(empty_is_zero),
		cmocka_unit_test(extremes),
		cmocka_unit_test(quantiles_keep_their_bound),
		cmocka_unit_test(merge_and_subtract_undo_each_other),
	};

	seed = env ? strtoull(env, NULL, 0) : 20;
	printf("EPF_SEED=%" PRIu64 "\n", seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
