/* SPDX-License-Identifier: Apache-2.0 */
/* The figures that ep-bench reports: a peak over a meaningful window or none, a percentile with enough samples beyond it or none. */
#include "bench/common/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { START = 1000, LEAST = 100 };

static void a_burst_is_no_peak(void **state)
{
	struct bench_peak p;

	bench_peak_start(&p, LEAST, START);
	bench_peak_note(&p, 50 * LEAST, START + 900,
			START + 1000); /* pushed into an empty ring: 5 million a second */
	assert_true(isnan(p.per_second));
	bench_peak_note(&p, 60 * LEAST, START + BENCH_WINDOW_NS, START + BENCH_WINDOW_NS);
	assert_true(fabs(p.per_second - 60 * LEAST / (BENCH_WINDOW_NS / 1e9)) < 1);
}

static void a_pause_with_few_events_is_no_window(void **state)
{
	struct bench_peak p;

	bench_peak_start(&p, LEAST, START);
	bench_peak_note(&p, LEAST - 1, START + 5ull * BENCH_WINDOW_NS,
			START + 5ull * BENCH_WINDOW_NS);
	assert_true(isnan(p.per_second));
	assert_true(isnan(bench_peak_end(&p, 1)));
}

static void the_best_window_counts(void **state)
{
	static const unsigned events[] = { 2 * LEAST, 4 * LEAST, LEAST };
	uint64_t count = 0, now = START;
	struct bench_peak p;

	bench_peak_start(&p, LEAST, now);
	for (unsigned i = 0; i < 3; i++) {
		now += BENCH_WINDOW_NS;
		bench_peak_note(&p, count += events[i], now, now);
	}
	assert_true(fabs(p.per_second - 4 * LEAST / (BENCH_WINDOW_NS / 1e9)) < 1);
	assert_true(bench_peak_end(&p, 1) == p.per_second);
	assert_true(bench_peak_end(&p, 1e9) == 1e9);
}

/* One event a microsecond. The caller is preempted for 9 ms between the count and the clock, at the border of two windows. */
static void a_preempted_caller_is_no_peak(void **state)
{
	struct bench_peak p;

	bench_peak_start(&p, LEAST, 0);
	bench_peak_note(&p, 10000, 10000000, 19000000);
	bench_peak_note(&p, 30000, 30000000, 30000000);
	assert_true(p.per_second < 1000001);
}

static void a_percentile_needs_samples_beyond_it(void **state)
{
	static double v[1000];
	char text[32];

	for (unsigned i = 0; i < 1000; i++)
		v[i] = i + 1;
	assert_true(bench_percentile(v, 1000, 990) == 990);
	assert_true(isnan(bench_percentile(v, 999, 990)));
	assert_true(isnan(bench_percentile(v, 1000, 999)));
	assert_string_equal(bench_figure(NAN, text), "n/a");
	assert_string_equal(bench_figure(1.5, text), "1.50");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_burst_is_no_peak),
		cmocka_unit_test(a_pause_with_few_events_is_no_window),
		cmocka_unit_test(the_best_window_counts),
		cmocka_unit_test(a_preempted_caller_is_no_peak),
		cmocka_unit_test(a_percentile_needs_samples_beyond_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
