/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch and combine, the kernels as plain C on CPU ranks: every output compared bit for bit with the reference, over commands and
 * over plain stores, on an ordered and on an unordered NIC, whole and in halves, overlapped, repeated. The seed of random cases is printed;
 * LL_SEED sets it, LL_CASES their number, LL_TEST chooses tests by name.
 */
#include "fabric/client/epf.h"
#include "kernels/epf_ll.h"
#include "kernels/ll/ll.h"
#include "tests/unit/kernels/ll_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

enum { FP8 = EPF_LL_FP8, ROUND = FP8 | EPF_LL_ROUND_SCALE, UE8M0 = ROUND | EPF_LL_UE8M0 };

#define LONG_WAIT UINT64_C(60000000000)

/*
 * Cases with more values in a rank's rows run over commands in order and over stores, and elsewhere in the long form and at random; and where each step
 * costs more, up to a hundred times, nowhere.
 */
#ifdef __SANITIZE_THREAD__
enum { VALUES_FEW = 8000, VALUES_MOST = 8000, RANDOM_CASES = 6, HIDDEN_KINDS = 2, SEEDS_STEP = 2 };
#elif defined(__SANITIZE_ADDRESS__)
enum {
	VALUES_FEW = 40000,
	VALUES_MOST = 40000,
	RANDOM_CASES = 12,
	HIDDEN_KINDS = 5,
	SEEDS_STEP = 1
};
#else
enum {
	VALUES_FEW = 40000,
	VALUES_MOST = 1 << 30,
	RANDOM_CASES = 24,
	HIDDEN_KINDS = 5,
	SEEDS_STEP = 1
};
#endif

static uint64_t bytes_of(uint32_t ranks, const struct ll_kit_case *c, unsigned n)
{
	uint64_t most = 0;

	for (unsigned i = 0; i < n; i++) {
		uint64_t b = epf_ll_size_hint(c[i].tokens_max, c[i].hidden, ranks, c[i].experts);

		assert_true(b > 0);
		most = b > most ? b : most;
	}
	return most;
}

static const struct ll_kit_case one[] = {
	{ .experts = 3, .topk = 2, .hidden = 128, .tokens_max = 7, .tokens = { 7 } },
	{ .experts = 5,
	  .topk = 5,
	  .hidden = 2048,
	  .tokens_max = 128,
	  .tokens = { 128 },
	  .flags = FP8 },
};

static const struct ll_kit_case two[] = {
	{ .experts = 2, .topk = 1, .hidden = 128, .tokens_max = 1, .tokens = { 1, 0 } },
	{ .experts = 6,
	  .topk = 4,
	  .hidden = 2560,
	  .tokens_max = 8,
	  .tokens = { 7, 8 },
	  .flags = ROUND },
	{ .experts = 10,
	  .topk = 8,
	  .hidden = 7168,
	  .tokens_max = 16,
	  .tokens = { 1, 16 },
	  .flags = FP8 },
	/* Entries that a block has at hand, and one token more than that. */
	{ .experts = 18, .topk = 16, .hidden = 128, .tokens_max = 257, .tokens = { 257, 256 } },
};

static const struct ll_kit_case three[] = {
	{ .experts = 9,
	  .topk = 3,
	  .hidden = 512,
	  .tokens_max = 40,
	  .tokens = { 0, 7, 40 },
	  .flags = UE8M0 },
	{ .experts = 24,
	  .topk = 6,
	  .hidden = 4096,
	  .tokens_max = 9,
	  .tokens = { 9, 9, 1 },
	  .zero_copy = true },
	{ .experts = 3,
	  .topk = 3,
	  .hidden = 256,
	  .tokens_max = 65,
	  .tokens = { 65, 64, 33 },
	  .flags = FP8,
	  .stats = true },
	/* Sums where there are many: 20 tokens of top-16 are as many as it takes. */
	{ .experts = 48, .topk = 16, .hidden = 256, .tokens_max = 40, .tokens = { 19, 20, 40 } },
};

static const struct ll_kit_case four[] = {
	{ .experts = 8, .topk = 2, .hidden = 128, .tokens_max = 7, .tokens = { 0, 1, 7, 5 } },
	{ .experts = 20,
	  .topk = 8,
	  .hidden = 2048,
	  .tokens_max = 128,
	  .tokens = { 128, 7, 1, 0 },
	  .flags = FP8,
	  .stats = true },
	{ .experts = 12,
	  .topk = 8,
	  .hidden = 3584,
	  .tokens_max = 20,
	  .tokens = { 20, 20, 20, 20 },
	  .flags = UE8M0,
	  .zero_copy = true },
	{ .experts = 4,
	  .topk = 4,
	  .hidden = 8192,
	  .tokens_max = 3,
	  .tokens = { 3, 2, 1, 0 },
	  .unselected = 30,
	  .halves = true },
	{ .experts = 288,
	  .topk = 8,
	  .hidden = 128,
	  .tokens_max = 32,
	  .tokens = { 32, 31, 30, 29 },
	  .flags = FP8,
	  .unselected = 10 },
	{ .experts = 16,
	  .topk = 4,
	  .hidden = 128,
	  .tokens_max = 4,
	  .tokens = { 4, 4, 4, 4 },
	  .unselected = 100 },
	{ .experts = 8, .topk = 3, .hidden = 128, .tokens_max = 5, .tokens = { 0, 0, 0, 0 } },
};

static const struct {
	uint32_t ranks;
	const struct ll_kit_case *c;
	unsigned n;
} shapes[] = {
	{ 1, one, sizeof(one) / sizeof(one[0]) },
	{ 2, two, sizeof(two) / sizeof(two[0]) },
	{ 3, three, sizeof(three) / sizeof(three[0]) },
	{ 4, four, sizeof(four) / sizeof(four[0]) },
};

/*
 * Every shape, twice each, twice with LogFMT, twice with sums at the sender and twice where there are many, so that both sets of buffers are used, with a clean in between. On a fake GPU, whose rings
 * keep the engines' cores awake, and under ThreadSanitizer, once each; where both hold, rows as they are and sums only.
 */
static void each_shape(struct ll_kit_options o)
{
	bool whole = o.direct == LL_KIT_ALL || (!o.direct && !o.unordered && !o.gpu) ||
		     getenv("EPF_TEST_LONG");
	uint32_t step = SEEDS_STEP * (o.gpu ? 2 : 1);

	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
		struct ll_kit *k;

		o.ranks = shapes[s].ranks;
		o.bytes = bytes_of(o.ranks, shapes[s].c, shapes[s].n);
		o.timeout_ns = LONG_WAIT;
		k = ll_kit_open(&o);
		for (unsigned i = 0; i < shapes[s].n; i++) {
			struct ll_kit_case c = shapes[s].c[i];

			if (c.hidden * c.tokens_max > (whole ? VALUES_MOST : VALUES_FEW))
				continue;
			for (c.seed = step > 1 ? 2 : 1; c.seed <= 8; c.seed += step) {
				c.logfmt = c.seed == 3 || c.seed == 4;
				c.sums = c.seed > 4;
				c.twice = c.seed == 6;
				c.many = c.seed > 6;
				c.zero_copy = shapes[s].c[i].zero_copy && !c.logfmt;
				ll_kit_run(k, &c, 1);
			}
			ll_kit_clean(k, 0);
		}
		for (uint32_t r = 0; r < o.ranks; r++)
			assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), 0);
		ll_kit_close(k);
	}
}

static void shapes_ordered(void **state)
{
	each_shape((struct ll_kit_options){ .seed = 1 });
}

static void shapes_unordered(void **state)
{
	each_shape((struct ll_kit_options){ .unordered = true, .seed = 2, .blocks = 3 });
}

static void shapes_by_stores(void **state)
{
	each_shape((struct ll_kit_options){ .direct = LL_KIT_ALL, .blocks = 2 });
}

/* Nobody pushes a command, so the engines take no CPU. */
static void engines_sleep_beside_stores(void **state)
{
	const struct timespec nap = { 0, 1000000 };
	struct ll_kit_options o = {
		.ranks = 2, .direct = LL_KIT_ALL, .bytes = 1 << 20, .timeout_ns = LONG_WAIT
	};
	struct ll_kit *k = ll_kit_open(&o);
	uint64_t before, now;

	for (uint32_t r = 0; r < o.ranks; r++) {
		assert_return_code(epf_counter(ll_kit_ep(k, r), "sleeps", &before), 0);
		do {
			nanosleep(&nap, NULL);
			assert_return_code(epf_counter(ll_kit_ep(k, r), "sleeps", &now), 0);
		} while (now == before);
	}
	ll_kit_close(k);
}

static void shapes_mixed(void **state)
{
	each_shape((struct ll_kit_options){ .direct = LL_KIT_PAIRS, .unordered = true, .seed = 3 });
}

/* Rows that come late must hold their signal back: small calls with long delays, where one rank has nothing else to wait for. */
static void late_rows_are_waited_for(void **state)
{
	struct ll_kit_case c = {
		.experts = 4, .topk = 3, .hidden = 2048, .tokens_max = 6, .tokens = { 6, 5 }
	};
	struct ll_kit_options o = {
		.ranks = 2, .unordered = true, .late = true, .timeout_ns = LONG_WAIT
	};
	struct ll_kit *k;

	o.bytes = bytes_of(2, &c, 1);
	k = ll_kit_open(&o);
	for (c.seed = 0; c.seed < 16; c.seed++) {
		c.sums = c.seed % 4 == 3;
		ll_kit_run(k, &c, 1);
	}
	ll_kit_close(k);
}

/* The way to a GPU: memory of a device, kernels as a module, launches by the back-end; the fake one plays the GPU. */
static void shapes_on_a_fake_gpu(void **state)
{
	each_shape((struct ll_kit_options){ .gpu = true, .blocks = 2 });
}

static void every_topk(void **state)
{
	struct ll_kit_case c = { .experts = 20,
				 .hidden = 256,
				 .tokens_max = 6,
				 .tokens = { 6, 5, 0, 4 },
				 .flags = FP8,
				 .unselected = 5 };
	struct ll_kit_options o = { .ranks = 4, .blocks = 2, .timeout_ns = LONG_WAIT };
	struct ll_kit *k;

	o.bytes = bytes_of(4, &c, 1);
	k = ll_kit_open(&o);
	/* The layout does not depend on topk, so no clean is needed. */
	for (c.topk = 1; c.topk <= 16; c.topk++) {
		c.seed = c.topk;
		c.sums = c.twice = c.topk % 3 == 0;
		ll_kit_run(k, &c, 1);
		c.sums = !c.sums;
		ll_kit_run(k, &c, 1);
	}
	ll_kit_close(k);
}

/* Two batches under way at once: dispatch, dispatch, and then their second halves; combine the same. */
static void batches_overlap(void **state)
{
	struct ll_kit_case c[2] = {
		{ .experts = 8,
		  .topk = 4,
		  .hidden = 384,
		  .tokens_max = 24,
		  .tokens = { 24, 3, 0, 17 },
		  .flags = FP8,
		  .halves = true },
		{ .experts = 8,
		  .topk = 4,
		  .hidden = 384,
		  .tokens_max = 24,
		  .tokens = { 1, 24, 24, 2 },
		  .halves = true,
		  .zero_copy = true },
	};
	struct ll_kit_options o = { .ranks = 4, .unordered = true, .timeout_ns = LONG_WAIT };
	struct ll_kit *k;

	o.bytes = bytes_of(4, c, 2);
	k = ll_kit_open(&o);
	for (uint64_t i = 0; i < 6; i++) {
		c[0].seed = 2 * i;
		c[1].seed = 2 * i + 1;
		c[0].sums = i / 2 % 2;
		c[1].sums = i > 2;
		ll_kit_run(k, c, 2);
		/* An odd number of calls in between: the sets change places. */
		if (i % 2)
			ll_kit_run(k, &c[1], 1);
	}
	ll_kit_close(k);
}

/* The words by which calls are announced have 16 bits: calls just in front of where they begin again, and behind. */
static void words_wrap_around(void **state)
{
	const uint64_t calls = 2 * UINT64_C(0xffff) - 4;
	struct ll_kit_case c = { .experts = 6,
				 .topk = 3,
				 .hidden = 256,
				 .tokens_max = 30,
				 .tokens = { 30, 29, 0 },
				 .flags = FP8 };
	struct ll_kit_options o = {
		.ranks = 3, .blocks = 2, .direct = LL_KIT_ALL, .timeout_ns = LONG_WAIT
	};
	struct ll_kit *k;

	o.bytes = bytes_of(3, &c, 1);
	k = ll_kit_open(&o);
	for (uint32_t r = 0; r < o.ranks; r++) {
		struct epf_ll *ll = ll_kit_ll(k, r);
		struct ll_state *s = ll->words;
		uint16_t *words = ll->memory;

		for (uint32_t i = 0; i < LL_MEET * 2u; i++)
			s->calls[i / 2u][i % 2u] = calls;
		for (uint32_t i = 0; i < LL_MEET * 2u * o.ranks * LL_WORDS; i++)
			words[i] = (uint16_t)(calls / 2);
	}
	for (c.seed = 1; c.seed <= 16; c.seed++) {
		c.sums = c.seed % 4 < 2;
		ll_kit_run(k, &c, 1);
	}
	for (uint32_t r = 0; r < o.ranks; r++)
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), 0);
	ll_kit_close(k);
}

/* The same inputs give the same bits, whichever way the rows went and in whichever order they came. */
static void results_repeat(void **state)
{
	struct ll_kit_case c = { .experts = 12,
				 .topk = 6,
				 .hidden = 1024,
				 .tokens_max = 33,
				 .tokens = { 33, 20, 0, 9 },
				 .flags = FP8,
				 .seed = 77 };
	uint64_t first[2] = { 0 };

	for (int i = 0; i < 4; i++) {
		struct ll_kit_options o = { .ranks = 4,
					    .unordered = i % 2,
					    .direct = i == 3 ? LL_KIT_ALL : LL_KIT_NONE,
					    .seed = (uint64_t)i,
					    .timeout_ns = LONG_WAIT };
		struct ll_kit *k;

		o.bytes = bytes_of(4, &c, 1);
		k = ll_kit_open(&o);
		for (int n = 0; n < 4; n++) {
			c.sums = n / 2;
			ll_kit_run(k, &c, 1);
			first[c.sums] = first[c.sums] ? first[c.sums] : ll_kit_hash(k);
			assert_true(ll_kit_hash(k) == first[c.sums]);
		}
		ll_kit_close(k);
	}
}

static uint32_t any(uint64_t *seed, uint32_t n)
{
	return (uint32_t)(ll_kit_random(seed) % n);
}

static struct ll_kit_case random_case(uint32_t ranks, uint64_t *seed)
{
	static const uint32_t flags[] = { 0, FP8, ROUND, UE8M0 };
	static const uint32_t hidden[] = { 512, 1024, 2048, 2560, 7168 };
	struct ll_kit_case c = { .experts = ranks * (1 + any(seed, 9)),
				 .topk = 1 + any(seed, 12),
				 .hidden = hidden[any(seed, HIDDEN_KINDS)],
				 .tokens_max = 1 + any(seed, 24),
				 .flags = flags[any(seed, 4)],
				 .unselected = any(seed, 3) ? 0 : any(seed, 60),
				 .seed = ll_kit_random(seed) >> 20,
				 .zero_copy = any(seed, 2),
				 .halves = any(seed, 2),
				 .stats = any(seed, 2),
				 .sums = any(seed, 2),
				 .many = any(seed, 2),
				 .twice = any(seed, 4) == 0 };

	for (uint32_t r = 0; r < ranks; r++)
		c.tokens[r] = any(seed, c.tokens_max + 1);
	return c;
}

static void random_cases(void **state)
{
	const char *given = getenv("LL_SEED"), *count = getenv("LL_CASES");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	unsigned cases = count ? (unsigned)strtoul(count, NULL, 0) : RANDOM_CASES;

	print_message("LL_SEED=%llu\n", (unsigned long long)seed);
	for (unsigned i = 0; i < cases; i += 12) {
		struct ll_kit_options o = { .ranks = 1 + any(&seed, 4),
					    .direct = any(&seed, 3),
					    .unordered = any(&seed, 2),
					    .blocks = 1 + any(&seed, 4),
					    .seed = seed,
					    .timeout_ns = LONG_WAIT };
		struct ll_kit_case c[12];
		struct ll_kit *k;

		for (unsigned n = 0; n < 12; n++)
			c[n] = random_case(o.ranks, &seed);
		o.bytes = bytes_of(o.ranks, c, 12);
		k = ll_kit_open(&o);
		for (unsigned n = 0; n < 12; n++) {
			ll_kit_run(k, &c[n], 1);
			ll_kit_clean(k, 0);
		}
		ll_kit_close(k);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shapes_ordered),
		cmocka_unit_test(shapes_unordered),
		cmocka_unit_test(shapes_by_stores),
		cmocka_unit_test(engines_sleep_beside_stores),
		cmocka_unit_test(shapes_mixed),
		cmocka_unit_test(late_rows_are_waited_for),
		cmocka_unit_test(shapes_on_a_fake_gpu),
		cmocka_unit_test(every_topk),
		cmocka_unit_test(batches_overlap),
		cmocka_unit_test(words_wrap_around),
		cmocka_unit_test(results_repeat),
		cmocka_unit_test(random_cases),
	};

	cmocka_set_test_filter(getenv("LL_TEST"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
