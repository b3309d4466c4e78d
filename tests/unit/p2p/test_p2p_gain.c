/* SPDX-License-Identifier: Apache-2.0 */
/* Whether compression is used (fabric/p2p/gain.h), on a clock that the test moves: chunks of both ways take as long as it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fabric/p2p/gain.h"

enum { CHUNK = 1000, DEPTH = 8, IDLE_NS = 1000000 };

struct run {
	struct gain g;
	uint64_t now, packed, plain, unmeasured, waits;
};

/* Sends n chunks, DEPTH at a time, then nothing for a while; each takes as long as its way. */
static void send_chunks(struct run *r, uint32_t n, uint64_t packed_ns, uint64_t plain_ns)
{
	while (n) {
		enum gain_way way[DEPTH];
		uint32_t k = 0;

		for (; k < DEPTH && k < n; k++) {
			way[k] = epf_p2p_gain_begin(&r->g, r->now);
			if (way[k] == GAIN_WAIT) {
				r->waits++;
				break;
			}
		}
		n -= k;
		for (uint32_t i = 0; i < k; i++) {
			assert_true(way[i] == way[0] || way[i] == GAIN_FREE);
			if (way[i] == GAIN_FREE) {
				r->unmeasured++;
				continue;
			}
			r->now += way[i] == GAIN_PACKED ? packed_ns : plain_ns;
			r->packed += way[i] == GAIN_PACKED;
			r->plain += way[i] == GAIN_PLAIN;
			epf_p2p_gain_end(&r->g, r->now, CHUNK);
		}
		if (n % 64 == 0)
			r->now += IDLE_NS; /* between transfers nothing is under way */
	}
}

static void test_gains(void **state)
{
	struct run r = { .now = 5 };

	(void)state;
	send_chunks(&r, 100 * GAIN_WINDOW, 60, 100);
	assert_true(r.g.is_on);
	assert_int_equal(r.unmeasured, 0);
	assert_true(r.plain >= 3 * GAIN_WINDOW &&
		    r.plain <= 5 * GAIN_WINDOW); /* the other way, now and then */
	assert_true(r.packed == 100 * GAIN_WINDOW - r.plain);
}

static void test_loses(void **state)
{
	struct run r = { .now = 5 };

	(void)state;
	send_chunks(&r, 1000 * GAIN_WINDOW, 99, 100); /* within the margin: it costs CPU time */
	assert_false(r.g.is_on);
	assert_true(r.packed + r.plain < 35 * GAIN_WINDOW);
	assert_true(r.packed >= 4 * GAIN_WINDOW); /* it is tried again, ever more rarely */
}

static void test_changes(void **state)
{
	struct run r = { .now = 5 };

	(void)state;
	send_chunks(&r, 10 * GAIN_WINDOW, 150, 100);
	assert_false(r.g.is_on);
	send_chunks(&r, 200 * GAIN_WINDOW, 50, 100); /* the network has become slow */
	assert_true(r.g.is_on);
	r.unmeasured = 0;
	send_chunks(&r, 200 * GAIN_WINDOW, 50, 20); /* and fast again */
	assert_false(r.g.is_on);
	assert_true(r.unmeasured > 100 * GAIN_WINDOW);
}

/* One window that other work disturbs decides nothing. */
static void test_noise(void **state)
{
	struct run r = { .now = 5 };

	(void)state;
	send_chunks(&r, GAIN_WINDOW, 60, 0);
	for (int i = 0; i < GAIN_TRIALS; i++) {
		send_chunks(&r, GAIN_WINDOW, 0, 100);
		send_chunks(&r, GAIN_WINDOW, i ? 130 : 60, 0);
	}
	send_chunks(&r, GAIN_WINDOW, 130, 0);
	assert_true(r.g.is_on);
	send_chunks(&r, (GAIN_ROUNDS - 2) * GAIN_WINDOW, 60, 0);
	send_chunks(&r, GAIN_WINDOW, 130, 0);
	send_chunks(&r, GAIN_WINDOW, 0, 100);
	send_chunks(&r, GAIN_WINDOW, 60, 0);
	assert_true(r.g.is_on);
}

/* Chunks of one way end before the other begins: no window times both. */
static void test_waits(void **state)
{
	struct gain g = { 0 };

	(void)state;
	for (int i = 0; i < GAIN_WINDOW; i++)
		assert_int_equal(epf_p2p_gain_begin(&g, 1), GAIN_PACKED);
	for (int i = 0; i < GAIN_WINDOW; i++) {
		assert_int_equal(epf_p2p_gain_begin(&g, 2), GAIN_WAIT);
		epf_p2p_gain_end(&g, 3, CHUNK);
	}
	assert_int_equal(epf_p2p_gain_begin(&g, 4), GAIN_PLAIN);
}

static void test_forced(void **state)
{
	struct run r = { .now = 5, .g.forced = GAIN_PACKED };

	(void)state;
	send_chunks(&r, 1000, 900, 1);
	assert_int_equal(r.packed, 1000);
	r = (struct run){ .now = 5, .g.forced = GAIN_PLAIN };
	send_chunks(&r, 1000, 1, 900);
	assert_int_equal(r.plain, 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gains),   cmocka_unit_test(test_loses),
		cmocka_unit_test(test_changes), cmocka_unit_test(test_noise),
		cmocka_unit_test(test_waits),   cmocka_unit_test(test_forced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
