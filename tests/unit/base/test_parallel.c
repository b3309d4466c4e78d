/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of waits that is spread over threads: each turn once, as many at once as allowed, the first failure with its words, and
 * no turn after it.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fabric/base/err.h"
#include "fabric/base/parallel.h"

enum { N = 1000, WAIT_MS = 20000 };

struct seen {
	uint32_t times[N];
	uint32_t now, most, all;
	uint32_t fail_at; /* N: never */
	uint32_t
		gather; /* a turn waits until as many have been there at once, WAIT_MS at most; 0: it does not */
	unsigned wait_us;
};

static int turn(void *arg, uint32_t i)
{
	struct seen *s = arg;
	uint32_t now = __atomic_add_fetch(&s->now, 1, __ATOMIC_RELAXED);
	uint32_t most = __atomic_load_n(&s->most, __ATOMIC_RELAXED);

	while (now > most && !__atomic_compare_exchange_n(&s->most, &most, now, 0, __ATOMIC_RELAXED,
							  __ATOMIC_RELAXED))
		;
	__atomic_add_fetch(&s->times[i], 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&s->all, 1, __ATOMIC_RELAXED);
	if (s->wait_us)
		usleep(s->wait_us);
	for (unsigned ms = 0;
	     ms < WAIT_MS && __atomic_load_n(&s->most, __ATOMIC_ACQUIRE) < s->gather; ms++)
		usleep(1000);
	__atomic_sub_fetch(&s->now, 1, __ATOMIC_RELAXED);
	return i >= s->fail_at ? epf_fail(EPF_R_NIC_LANE, "turn %u", i) : 0;
}

static void every_turn_is_taken_once(void **state)
{
	static const unsigned threads[] = { 0, 1, 2, 8, EPF_PARALLEL_MAX, 1000 };

	for (unsigned t = 0; t < sizeof(threads) / sizeof(threads[0]); t++)
		for (uint32_t n = 0; n <= N; n = n * 10 + 1) {
			struct seen s = { .fail_at = N };

			assert_int_equal(epf_parallel(threads[t], n, turn, &s, NULL), 0);
			for (uint32_t i = 0; i < N; i++)
				assert_int_equal(s.times[i], i < n);
			assert_true(s.most <= (threads[t] ? threads[t] : 1));
		}
}

static void turns_overlap_as_far_as_allowed(void **state)
{
	struct seen s = { .fail_at = N, .wait_us = 1000, .gather = 8 };

	assert_int_equal(epf_parallel(8, 64, turn, &s, NULL), 0);
	assert_int_equal(s.most, 8);
	assert_int_equal(s.all, 64);
}

static void a_failure_comes_back_with_its_words(void **state)
{
	struct seen s = { .fail_at = 5, .wait_us = 1000 };
	uint32_t failed = 77;

	epf_clear_error();
	assert_int_equal(epf_parallel(4, N, turn, &s, &failed), -EBUSY);
	assert_int_equal(failed, 5); /* the lowest, though several failed */
	assert_int_equal(epf_last_reason(), EPF_R_NIC_LANE);
	assert_int_equal(strncmp(epf_last_error(), "turn 5:", 7), 0);
	assert_true(s.all <= 5 + 4 + 4); /* what was under way, and nothing after */
	s = (struct seen){ .fail_at = 0 };
	assert_int_equal(epf_parallel(1, N, turn, &s, NULL), -EBUSY);
	assert_int_equal(s.all, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_turn_is_taken_once),
		cmocka_unit_test(turns_overlap_as_far_as_allowed),
		cmocka_unit_test(a_failure_comes_back_with_its_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
