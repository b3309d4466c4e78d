/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of calls: two of them give what happened between, the setting that turns them off, and when a report, made up here, names no cause. */
#include "kernels/ll/ll.h"
#include "kernels/why/epf_tally.cuh"
#include "tests/unit/kernels/why_kit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ll_kit *open_ll(void)
{
	return ll_kit_open(&(struct ll_kit_options){ .ranks = WHY_RANKS,
						     .direct = LL_KIT_ALL,
						     .bytes = 8u << 20,
						     .timeout_ns = 3600000000000 });
}

/* What one rank's calls gave is forgotten by epf_why_since(). */
static void difference(void **state)
{
	struct ll_kit *kit = open_ll();
	struct ll_kit_case c = why_ll_case();
	struct epf_why_report *before, *after;

	(void)state;
	ll_kit_run(kit, &c, 1);
	before = why_report(ll_kit_ll(kit, 0), WHY_RANKS);
	ll_kit_run(kit, &c, 1);
	after = why_report(ll_kit_ll(kit, 0), WHY_RANKS);
	for (unsigned k = EPF_WHY_LL_DISPATCH_SEND; k < EPF_WHY_CALLS; k++) {
		assert_int_equal(before->call[k].calls, 1);
		assert_int_equal(after->call[k].calls, 2);
	}
	epf_why_since(after, before);
	for (unsigned k = EPF_WHY_LL_DISPATCH_SEND; k < EPF_WHY_CALLS; k++)
		assert_int_equal(after->call[k].calls, 1);
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		assert_int_equal(why_peer(after, EPF_WHY_LL_DISPATCH_RECV, r)->rows_from,
				 why_peer(before, EPF_WHY_LL_DISPATCH_RECV, r)->rows_from);
	free(before);
	free(after);
	ll_kit_close(kit);
}

/* The setting call-stats turns it off: nothing is counted, and the error says why. */
static void turned_off(void **state)
{
	struct epf_why_report *r = malloc(epf_why_report_bytes(WHY_RANKS));
	struct ll_kit_case c = why_ll_case();
	struct ll_kit *kit;

	(void)state;
	setenv("EPF_CALL_STATS", "no", 1);
	kit = open_ll();
	unsetenv("EPF_CALL_STATS");
	ll_kit_run(kit, &c, 1);
	assert_int_equal(epf_why_read(ll_kit_ll(kit, 0), r), -ENODATA);
	assert_non_null(strstr(epf_ll_error(), "EPF_CALL_STATS"));
	free(r);
	ll_kit_close(kit);
}

/* Nothing stands out, and no report, give no cause; ranks of different jobs are not mixed; a short buffer gets the length of the whole text. */
static void no_cause(void **state)
{
	struct epf_why_report *a = calloc(1, epf_why_report_bytes(2));
	struct epf_why_report *b = calloc(1, epf_why_report_bytes(3));
	const struct epf_why_report *const both[] = { a, b };
	struct epf_why_cause c[4];
	char text[512], start[8];
	size_t whole;

	(void)state;
	a->ranks = 2;
	b->ranks = 3;
	a->call[EPF_WHY_HT_DISPATCH] =
		(struct epf_why_calls){ 10, { 10000000, 80000000, 10000000 } };
	a->peer[EPF_WHY_HT_DISPATCH * 2 + 1].wait[EPF_WHY_LATE] =
		(struct epf_why_wait){ 4900000, 10, 1000000 }; /* 4.9 percent */
	assert_int_equal(epf_why_explain(both, 0, c, 4), 0);
	assert_int_equal(epf_why_explain(both, 1, c, 4), 0);
	a->peer[EPF_WHY_HT_DISPATCH * 2 + 1].wait[EPF_WHY_LATE].ns = 5100000;
	assert_int_equal(epf_why_explain(both, 1, c, 4), 1);
	assert_int_equal(c[0].rank, 1);
	assert_int_equal(epf_why_explain(both, 2, c, 4), 0);
	whole = epf_why_text(both, 1, text, sizeof(text));
	assert_int_equal(whole, strlen(text));
	assert_non_null(strstr(text, "rank 1 begins its calls late"));
	assert_non_null(strstr(text, "10 % waiting for ranks, 80 % moving rows, 10 % copying"));
	assert_int_equal(epf_why_text(both, 1, start, sizeof(start)), whole);
	assert_int_equal(strlen(start), sizeof(start) - 1);
	free(a);
	free(b);
}

/* A program repeats its calls, layer by layer: each layer's get into the sample, and about as often as they should. */
static void a_sample_leaves_no_layer_out(void **state)
{
	enum { EVERY = 64, ROUNDS = 1024 };

	(void)state;
	for (uint64_t layers = 1; layers <= 128; layers++)
		for (uint64_t layer = 0; layer < layers; layer++) {
			unsigned n = 0;

			for (uint64_t i = 0; i < ROUNDS; i++)
				n += tally_is_sampled(EVERY - 1, i * layers + layer) != 0;
			if (n < ROUNDS / EVERY / 4 || n > ROUNDS / EVERY * 4)
				fail_msg("layer %u of %u: %u in the sample of %u calls",
					 (unsigned)layer, (unsigned)layers, n, ROUNDS);
		}
	for (uint64_t i = 0; i < 100; i++)
		assert_true(tally_is_sampled(0, i * 123456789u));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sample_leaves_no_layer_out),
		cmocka_unit_test(difference),
		cmocka_unit_test(turned_off),
		cmocka_unit_test(no_cause),
	};

	why_wait_for_links();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
