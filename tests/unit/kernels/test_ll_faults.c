/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch and combine when something is wrong: ranks that do not come, that die, that are masked, that are out of step; arguments
 * that cannot be. What is left must be right bit for bit, calls must return in time, and each sentence must name the culprit.
 */
#include "bootstrap/boot.h"
#include "fabric/client/epf.h"
#include "kernels/epf_ll.h"
#include "kernels/ll/ll.h"
#include "tests/unit/kernels/ll_kit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MS UINT64_C(1000000)

static const struct ll_kit_case small = { .experts = 6,
					  .topk = 3,
					  .hidden = 256,
					  .tokens_max = 9,
					  .tokens = { 9, 4, 7 },
					  .flags = EPF_LL_FP8 };

/* After which an absent rank is masked: one that has only to wait for a CPU must come before, also beside busy loops (`tools/quickstart test --busy`). */
static uint64_t absent_ms(void)
{
	const char *times = getenv("LIMIT_TIMES");

	return 3000 * (times ? strtoull(times, NULL, 10) : 1);
}

/* Else, so that none is masked which the machine has stopped for a while. */
static uint64_t long_wait(void)
{
	return 5 * absent_ms() * MS;
}

/* Ranks wait long for each other: patience() is for the step in which one is absent. */
static struct ll_kit *open_small(enum ll_kit_direct direct)
{
	struct ll_kit_options o = { .ranks = 3,
				    .direct = direct,
				    .blocks = 2,
				    .bytes = epf_ll_size_hint(9, 256, 3, 6),
				    .timeout_ns = long_wait() };

	return ll_kit_open(&o);
}

static void run(struct ll_kit *k, uint32_t absent, uint64_t seed)
{
	struct ll_kit_case c = small;

	c.absent = absent;
	c.seed = seed;
	c.halves = seed % 2;
	c.sums = seed % 4 < 2;
	ll_kit_run(k, &c, 1);
}

/* Sets how long ranks wait for each other; none is in a call. */
static void patience(struct ll_kit *k, uint64_t ns)
{
	for (uint32_t r = 0; r < 3; r++)
		ll_kit_ll(k, r)->opts.timeout_ns = ns;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void expect_masks(struct ll_kit *k, uint32_t rank, uint32_t bits)
{
	int32_t mask[3] = { 7, 7, 7 };

	assert_int_equal(epf_ll_mask_query(ll_kit_ll(k, rank), mask, NULL), 0);
	for (uint32_t r = 0; r < 3; r++)
		assert_int_equal(mask[r], bits >> r & 1);
}

/* A rank that makes no call: masked after the timeout, named once, not waited for again, and welcome when it is back. */
static void absence(enum ll_kit_direct direct)
{
	struct ll_kit *k = open_small(direct);
	uint64_t start;

	run(k, 0, 1);
	patience(k, absent_ms() * MS);
	start = now_ms();
	run(k, 1u << 2, 2);
	assert_true(now_ms() - start >= absent_ms());
	patience(k, long_wait());
	for (uint32_t r = 0; r < 2; r++) {
		expect_masks(k, r, 1u << 2);
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), -ETIMEDOUT);
		assert_non_null(strstr(epf_ll_error(), "masked now: rank 2"));
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), 0);
	}
	run(k, 1u << 2, 3);
	run(k, 1u << 2, 4);
	for (uint32_t r = 0; r < 2; r++) {
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), 0);
		assert_int_equal(epf_ll_mask_clean(ll_kit_ll(k, r), NULL), 0);
		expect_masks(k, r, 0);
	}
	ll_kit_clean(k, 0);
	for (uint64_t seed = 5; seed < 9; seed++)
		run(k, 0, seed);
	for (uint32_t r = 0; r < 3; r++)
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), 0);
	ll_kit_close(k);
}

static void a_rank_does_not_come(void **state)
{
	absence(LL_KIT_NONE);
}

static void a_rank_reached_by_stores_does_not_come(void **state)
{
	absence(LL_KIT_ALL);
}

/* Sums at the sender wait for weights: a rank that does not begin its combine is masked in the SEND half, in time, and the others' sums are right. */
static void no_weights_come(enum ll_kit_direct direct)
{
	struct ll_kit *k = open_small(direct);
	struct ll_kit_case c = small;
	uint64_t start;

	c.sums = c.halves = c.stats = true;
	for (c.seed = 1; c.seed < 4; c.seed++)
		ll_kit_run(k, &c, 1);
	c.lost = 1u << 2;
	patience(k, absent_ms() * MS);
	start = now_ms();
	ll_kit_run(k, &c, 1);
	assert_true(now_ms() - start >= absent_ms());
	patience(k, long_wait());
	for (uint32_t r = 0; r < 2; r++) {
		expect_masks(k, r, 1u << 2);
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), -ETIMEDOUT);
		assert_non_null(strstr(epf_ll_error(), "masked now: rank 2"));
	}
	run(k, 1u << 2, 4);
	run(k, 1u << 2, 5);
	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(epf_ll_mask_clean(ll_kit_ll(k, r), NULL), 0);
	ll_kit_clean(k, 0);
	c.lost = 0;
	for (c.seed = 6; c.seed < 10; c.seed++)
		ll_kit_run(k, &c, 1);
	for (uint32_t r = 0; r < 3; r++)
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), 0);
	ll_kit_close(k);
}

static void weights_do_not_come(void **state)
{
	no_weights_come(LL_KIT_NONE);
}

static void weights_by_stores_do_not_come(void **state)
{
	no_weights_come(LL_KIT_ALL);
}

static void a_rank_dies(void **state)
{
	struct ll_kit *k = open_small(LL_KIT_NONE);

	run(k, 0, 1);
	run(k, 0, 2);
	ll_kit_kill(k, 1);
	for (uint64_t seed = 3; seed < 7; seed++)
		run(k, 1u << 1, seed);
	assert_int_equal(epf_ll_check(ll_kit_ll(k, 0)), -ECONNRESET);
	assert_non_null(strstr(epf_ll_error(), "masked now: rank 1"));
	expect_masks(k, 2, 1u << 1);
	ll_kit_close(k);
}

static void masked_ranks_are_left_out(void **state)
{
	struct ll_kit *k = open_small(LL_KIT_PAIRS);

	for (uint32_t r = 1; r < 3; r++) {
		assert_int_equal(epf_ll_mask_update(ll_kit_ll(k, r), 0, 1, NULL), 0);
		expect_masks(k, r, 1);
	}
	run(k, 1, 1);
	run(k, 1, 2);
	assert_int_equal(epf_ll_check(ll_kit_ll(k, 1)), 0);
	for (uint32_t r = 1; r < 3; r++) {
		assert_int_equal(epf_ll_mask_update(ll_kit_ll(k, r), 0, 0, NULL), 0);
		expect_masks(k, r, 0);
	}
	assert_int_equal(epf_ll_mask_update(ll_kit_ll(k, 1), 1, 1, NULL), -EINVAL);
	assert_int_equal(epf_ll_mask_update(ll_kit_ll(k, 1), 3, 1, NULL), -EINVAL);
	assert_int_equal(epf_ll_mask_query(ll_kit_ll(k, 1), NULL, NULL), -EINVAL);
	ll_kit_clean(k, 0);
	run(k, 0, 3);
	ll_kit_close(k);
}

/*
 * A rank does not come when the others begin again: masked after the timeout and named; the others go on, and begin again again without waiting for it. When it
 * is back, its masks cleared, all meet again.
 */
static void absence_from_clean(enum ll_kit_direct direct)
{
	struct ll_kit *k = open_small(direct);
	uint64_t start;

	run(k, 0, 1);
	patience(k, absent_ms() * MS);
	start = now_ms();
	ll_kit_clean(k, 1u << 1);
	assert_true(now_ms() - start >= absent_ms());
	patience(k, long_wait());
	for (uint32_t r = 0; r < 3; r += 2) {
		expect_masks(k, r, 1u << 1);
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), -ETIMEDOUT);
		assert_non_null(strstr(epf_ll_error(), "masked now: rank 1"));
	}
	run(k, 1u << 1, 2);
	run(k, 1u << 1, 3);
	ll_kit_clean(k, 1u << 1);
	for (uint32_t r = 0; r < 3; r += 2) /* nobody waited for it until a timeout */
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), 0);
	run(k, 1u << 1, 4);
	for (uint32_t r = 0; r < 3; r++)
		assert_int_equal(epf_ll_mask_clean(ll_kit_ll(k, r), NULL), 0);
	for (uint64_t seed = 5; seed < 9; seed++) {
		ll_kit_clean(k, 0);
		run(k, 0, seed);
	}
	for (uint32_t r = 0; r < 3; r++) {
		assert_int_equal(epf_ll_check(ll_kit_ll(k, r)), 0);
		expect_masks(k, r, 0);
	}
	ll_kit_close(k);
}

static void a_rank_does_not_come_to_clean(void **state)
{
	absence_from_clean(LL_KIT_NONE);
}

static void a_rank_reached_by_stores_does_not_come_to_clean(void **state)
{
	absence_from_clean(LL_KIT_ALL);
}

/* ---- one rank, calls by hand ---- */

enum { TOKENS = 4, HIDDEN = 512, EXPERTS = 4, TOPK = 2, ROWS = EXPERTS * TOKENS };

struct calls {
	struct epf_ll_dispatch d;
	struct epf_ll_combine c;
	_Alignas(16) uint16_t x[TOKENS * HIDDEN];
	_Alignas(16) uint16_t y[ROWS * HIDDEN];
	_Alignas(16) uint16_t out[TOKENS * HIDDEN];
	int64_t topk[TOKENS * TOPK];
	float weights[TOKENS * TOPK];
	float scales[ROWS * HIDDEN / 128];
	int32_t count[EXPERTS], info[ROWS], slot[ROWS], row[TOKENS * TOPK + 1];
	int64_t range[EXPERTS];
};

static struct calls *calls_make(void)
{
	struct calls *a = aligned_alloc(64, (sizeof(*a) + 63) / 64 * 64);
	struct epf_ll_shape shape = { TOKENS, HIDDEN, EXPERTS, TOPK };

	assert_non_null(a);
	memset(a, 0, sizeof(*a));
	for (int i = 0; i < TOKENS * TOPK; i++) {
		a->topk[i] = i % EXPERTS;
		a->weights[i] = 1;
	}
	a->d = (struct epf_ll_dispatch){ sizeof(a->d), shape,   TOKENS,  0,
					 a->x,         a->topk, a->y,    a->scales,
					 a->count,     a->info, a->slot, a->range };
	a->c = (struct epf_ll_combine){ sizeof(a->c), shape,    TOKENS,  0,          a->y,  a->info,
					a->slot,      a->range, a->topk, a->weights, a->out };
	return a;
}

static struct ll_kit *open_one(void)
{
	struct ll_kit_options o = { .ranks = 1,
				    .bytes = epf_ll_size_hint(TOKENS, HIDDEN, 1, EXPERTS),
				    .timeout_ns = 200 * MS };

	return ll_kit_open(&o);
}

static void expect_dispatch(struct epf_ll *ll, struct calls *a, struct epf_ll_dispatch d, int err,
			    const char *word)
{
	assert_int_equal(epf_ll_dispatch(ll, &d, EPF_LL_BOTH, NULL), err);
	if (err && !strstr(epf_ll_error(), word))
		fail_msg("'%s' does not say %s", epf_ll_error(), word);
}

#define DISPATCH(change, err, word)     \
 do {                                   \
  struct epf_ll_dispatch d = a->d;      \
  d.change;                             \
  expect_dispatch(ll, a, d, err, word); \
 } while (0)

#define COMBINE(change, err, word)                                  \
 do {                                                               \
  struct epf_ll_combine c = a->c;                                   \
  c.change;                                                         \
  assert_int_equal(epf_ll_combine(ll, &c, EPF_LL_BOTH, NULL), err); \
  assert_non_null(strstr(epf_ll_error(), word));                    \
 } while (0)

static void arguments_are_checked(void **state)
{
	struct ll_kit *k = open_one();
	struct epf_ll *ll = ll_kit_ll(k, 0);
	struct calls *a = calls_make();

	DISPATCH(size = 8, -EINVAL, "size");
	DISPATCH(shape.tokens_max = 0, -EINVAL, "tokens_max");
	DISPATCH(shape.tokens_max = 5, -E2BIG, "epf_ll_size_hint");
	DISPATCH(shape.hidden = 500, -EINVAL, "hidden");
	DISPATCH(shape.experts = 0, -EINVAL, "experts");
	DISPATCH(shape.topk = 17, -EINVAL, "topk");
	DISPATCH(tokens = TOKENS + 1, -EINVAL, "tokens");
	DISPATCH(flags = EPF_LL_ROUND_SCALE, -EINVAL, "EPF_LL_FP8");
	DISPATCH(flags = EPF_LL_FP8 | EPF_LL_UE8M0, -EINVAL, "EPF_LL_ROUND_SCALE");
	DISPATCH(flags = 64, -EINVAL, "0x40");
	DISPATCH(x = NULL, -EINVAL, "x is");
	DISPATCH(x = a->x + 1, -EINVAL, "multiple of 16");
	DISPATCH(topk_idx = NULL, -EINVAL, "topk_idx");
	DISPATCH(recv_x = NULL, -EINVAL, "recv_x");
	DISPATCH(recv_count = NULL, -EINVAL, "recv_count");
	DISPATCH(src_info = NULL, -EINVAL, "src_info");
	DISPATCH(src_slot = NULL, -EINVAL, "src_slot");
	DISPATCH(layout_range = NULL, -EINVAL, "layout_range");
	assert_int_equal(epf_ll_dispatch(ll, &a->d, 0, NULL), -EINVAL);
	assert_int_equal(epf_ll_dispatch(ll, &a->d, 4, NULL), -EINVAL);
	DISPATCH(flags = 0, 0, "");
	a->d.recv_scales = NULL;
	DISPATCH(flags = EPF_LL_FP8, -EINVAL, "recv_scales");
	COMBINE(size = 0, -EINVAL, "size");
	COMBINE(flags = EPF_LL_LOGFMT | EPF_LL_ZERO_COPY, -EINVAL, "EPF_LL_LOGFMT");
	COMBINE(flags = EPF_LL_ZERO_COPY, -EINVAL, "epf_ll_next_combine_buffer");
	COMBINE(flags = EPF_LL_LOGFMT | EPF_LL_SUM_AT_SENDER, -EINVAL, "EPF_LL_SUM_AT_SENDER");
	COMBINE(flags = EPF_LL_SUM_AT_SENDER, -EINVAL, "src_row");
	COMBINE(flags = EPF_LL_SUM_IF_MANY, -EINVAL, "EPF_LL_SUM_AT_SENDER");
	COMBINE(flags = 16, -EINVAL, "0x10");
	COMBINE(x = NULL, -EINVAL, "x is");
	COMBINE(out = NULL, -EINVAL, "out");
	COMBINE(topk_weights = NULL, -EINVAL, "topk_weights");
	COMBINE(src_slot = NULL, -EINVAL, "src_slot");
	assert_int_equal(epf_ll_combine(ll, &a->c, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(epf_ll_check(ll), 0);
	assert_int_equal(epf_ll_size_hint(0, 128, 1, 1), 0);
	/* Four kinds of flags, two sets of each, 512 bytes a rank. */
	assert_int_equal(epf_ll_head_bytes(0), 0);
	assert_int_equal(epf_ll_head_bytes(EPF_LL_RANKS_MAX + 1), 0);
	assert_int_equal(epf_ll_head_bytes(1), 4096);
	assert_int_equal(epf_ll_head_bytes(9), 36864);
	assert_int_equal(epf_ll_size_hint(1, 128, 3, 4), 0);
	free(a);
	ll_kit_close(k);
}

/* What a kernel finds wrong is reported by epf_ll_check, and leads nowhere outside of the buffers. */
static void what_kernels_find_is_told(void **state)
{
	struct ll_kit *k = open_one();
	struct epf_ll *ll = ll_kit_ll(k, 0);
	struct calls *a = calls_make();

	a->topk[3] = EXPERTS;
	a->topk[5] = -2;
	assert_int_equal(epf_ll_dispatch(ll, &a->d, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(epf_ll_check(ll), -EINVAL);
	assert_non_null(strstr(epf_ll_error(), "expert"));
	assert_int_equal(a->count[0] + a->count[1] + a->count[2] + a->count[3], 6);
	a->slot[0] = TOKENS * TOPK;
	assert_int_equal(epf_ll_combine(ll, &a->c, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(epf_ll_check(ll), -EPROTO);
	a->range[1] = (int64_t)(TOKENS - 1) << 32 | 2;
	assert_int_equal(epf_ll_combine(ll, &a->c, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(epf_ll_check(ll), -EPROTO);
	assert_int_equal(epf_ll_check(ll), 0);
	a->c.flags = EPF_LL_SUM_AT_SENDER;
	a->c.src_row = a->row;
	for (int i = 0; i < TOKENS * TOPK; i++)
		a->row[i] = i == 2 ? ROWS : 0;
	assert_int_equal(epf_ll_combine(ll, &a->c, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(epf_ll_check(ll), -EPROTO);
	free(a);
	ll_kit_close(k);
}

/* An expert named twice gets the row once, and counts with both weights. */
static void an_expert_named_twice_gets_one_row(void **state)
{
	struct ll_kit *k = open_one();
	struct epf_ll *ll = ll_kit_ll(k, 0);
	struct calls *a = calls_make();

	a->topk[0] = a->topk[1] = 2;
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		a->x[i] = 0x3f80; /* 1.0 */
	assert_int_equal(epf_ll_dispatch(ll, &a->d, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(a->count[2], 3);
	assert_int_equal(epf_ll_combine(ll, &a->c, EPF_LL_BOTH, NULL), 0);
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		assert_int_equal(a->out[i], 0x4000); /* 2.0 */
	/* The same summed at the sender. */
	memset(a->row, 0xa5, sizeof(a->row));
	memset(a->out, 0xa5, sizeof(a->out));
	a->d.src_row = a->row;
	a->c.src_row = a->row;
	a->c.flags = EPF_LL_SUM_AT_SENDER;
	assert_int_equal(epf_ll_dispatch(ll, &a->d, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(epf_ll_combine(ll, &a->c, EPF_LL_BOTH, NULL), 0);
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		assert_int_equal(a->out[i], 0x4000);
	/* Callers that know nothing of it give structs without its last member. */
	a->c.flags = 0;
	a->d.size = offsetof(struct epf_ll_dispatch, src_row);
	a->c.size = offsetof(struct epf_ll_combine, src_row);
	assert_int_equal(epf_ll_dispatch(ll, &a->d, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(epf_ll_combine(ll, &a->c, EPF_LL_BOTH, NULL), 0);
	assert_int_equal(epf_ll_check(ll), 0);
	free(a);
	ll_kit_close(k);
}

/* Three SEND halves where one was due: the receiver sees two in one set. */
static void out_of_step_is_seen(void **state)
{
	struct ll_kit *k = open_one();
	struct epf_ll *ll = ll_kit_ll(k, 0);
	struct calls *a = calls_make();

	for (int i = 0; i < 3; i++)
		assert_int_equal(epf_ll_dispatch(ll, &a->d, EPF_LL_SEND, NULL), 0);
	assert_int_equal(epf_ll_dispatch(ll, &a->d, EPF_LL_RECV, NULL), 0);
	assert_int_equal(epf_ll_check(ll), -EPROTO);
	assert_non_null(strstr(epf_ll_error(), "same calls"));
	assert_int_equal(epf_ll_mask_clean(ll, NULL), 0);
	free(a);
	ll_kit_close(k);
}

/* A source that counts a row more than it sends, or less: reported in the next dispatch, with its name; rows that came are right. */
static void rows_that_are_counted_and_not_sent_are_noticed(void **state)
{
	struct ll_kit *k = open_one();
	struct epf_ll *ll = ll_kit_ll(k, 0);
	struct calls *a = calls_make();
	struct ll_layout lay;
	uint32_t *rows[2];

	assert_int_equal(ll_layout_make(&a->d.shape, 1, &lay), 0);
	for (int set = 0; set < 2; set++)
		rows[set] = (void *)((uint8_t *)epf_ll_memory(ll, NULL) + lay.inotes[set]);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(epf_ll_dispatch(ll, &a->d, EPF_LL_SEND, NULL), 0);
		assert_int_equal(rows[i % 2][1], 2);
		rows[i % 2][1] += i == 1;
		assert_int_equal(epf_ll_dispatch(ll, &a->d, EPF_LL_RECV, NULL), 0);
		assert_int_equal(a->count[1], 2 + (i == 1));
		assert_int_equal(epf_ll_check(ll), i == 2 ? -EPROTO : 0);
		if (i == 2)
			assert_non_null(strstr(epf_ll_error(), "than it sent"));
		if (i == 2)
			assert_non_null(strstr(epf_ll_error(), "rank 0."));
	}
	free(a);
	ll_kit_close(k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rank_does_not_come),
		cmocka_unit_test(a_rank_reached_by_stores_does_not_come),
		cmocka_unit_test(weights_do_not_come),
		cmocka_unit_test(weights_by_stores_do_not_come),
		cmocka_unit_test(a_rank_does_not_come_to_clean),
		cmocka_unit_test(a_rank_reached_by_stores_does_not_come_to_clean),
		cmocka_unit_test(a_rank_dies),
		cmocka_unit_test(masked_ranks_are_left_out),
		cmocka_unit_test(arguments_are_checked),
		cmocka_unit_test(what_kernels_find_is_told),
		cmocka_unit_test(an_expert_named_twice_gets_one_row),
		cmocka_unit_test(out_of_step_is_seen),
		cmocka_unit_test(rows_that_are_counted_and_not_sent_are_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
