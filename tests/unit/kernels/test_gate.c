/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate against a plain second implementation (full sorts, the C library's exp), the routing
 * patterns against what their names promise, and the token generator against its documented range.
 * Run by meson.
 */
#include "kernels/host/gate.h"
#include "kernels/host/num.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EXPERTS 256
#define TOKENS  512

/* Of the routing that pinned_routing() makes; the same with gcc and clang, at every -O. */
#define PINNED_DIGEST 0x740482f02eb32ad3ull

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 20;
}

struct ranked {
	float value;
	int index;
};

static int by_value_then_index(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	if (x->value != y->value)
		return x->value < y->value ? 1 : -1;
	return x->index - y->index;
}

/* Sorts everything; bars the experts of the worse groups. n experts in g groups. */
static void plain_choice(const struct epf_gate *gate, struct ranked *all)
{
	int size = (int)(gate->experts / gate->groups);
	struct ranked groups[64], members[EXPERTS];

	for (int g = 0; g < (int)gate->groups; g++) {
		memcpy(members, all + g * size, (size_t)size * sizeof(*members));
		qsort(members, (size_t)size, sizeof(*members), by_value_then_index);
		groups[g] = (struct ranked){ members[0].value + members[1].value, g };
	}
	qsort(groups, gate->groups, sizeof(*groups), by_value_then_index);
	for (uint32_t n = gate->topk_groups; n < gate->groups; n++)
		for (int i = 0; i < size; i++)
			all[groups[n].index * size + i].value = -INFINITY;
}

static void plain_gate(const struct epf_gate *gate, const float *logits, const float *bias,
		       int64_t *idx)
{
	struct ranked all[EXPERTS];

	for (int e = 0; e < (int)gate->experts; e++) {
		float score = (float)(1 / (1 + exp(-(double)logits[e])));

		all[e] = (struct ranked){ score + bias[e], e };
	}
	if (gate->groups > 1)
		plain_choice(gate, all);
	qsort(all, gate->experts, sizeof(*all), by_value_then_index);
	for (uint32_t k = 0; k < gate->topk; k++)
		idx[k] = all[k].index;
}

static void check_select(const struct epf_gate *gate, uint64_t seed)
{
	float logits[EXPERTS], bias[EXPERTS], scratch[2 * EXPERTS], w[16];
	int64_t idx[16], want[16];
	double sum = 0, scores = 0;

	for (uint32_t e = 0; e < gate->experts; e++) {
		logits[e] = (float)(next_random(&seed) % 2000) / 250.0f - 4.0f;
		bias[e] = (float)(next_random(&seed) % 100) / 400.0f;
	}
	epf_gate_select(gate, logits, bias, scratch, idx, w);
	plain_gate(gate, logits, bias, want);
	assert_memory_equal(idx, want, gate->topk * sizeof(*idx));
	for (uint32_t k = 0; k < gate->topk; k++)
		scores += 1 / (1 + exp(-(double)logits[idx[k]]));
	for (uint32_t k = 0; k < gate->topk; k++) {
		double score = 1 / (1 + exp(-(double)logits[idx[k]]));

		assert_true(fabs(w[k] - score / scores * gate->routed_scale) < 1e-5);
		sum += w[k];
	}
	assert_true(fabs(sum - gate->routed_scale) < 1e-5);
}

static void like_full_sorts(void **state)
{
	struct epf_gate v3 = EPF_GATE_DEEPSEEK_V3;
	struct epf_gate flat = { .experts = 60, .topk = 6, .routed_scale = 1.0f };
	struct epf_gate wide = { 128, 16, 16, 3, 1.5f };

	assert_true(epf_gate_is_grouped(&v3));
	assert_true(epf_gate_is_grouped(&wide));
	assert_false(epf_gate_is_grouped(&flat));
	for (uint64_t seed = 1; seed <= 300; seed++) {
		check_select(&v3, seed);
		check_select(&flat, seed);
		check_select(&wide, seed);
	}
}

/*
 * Eight experts, two groups, one allowed, top-2. The best single expert (0) sits in the group with
 * the smaller top-2 sum, so it must lose; the bias chooses but does not weigh.
 */
static void group_limit_by_hand(void **state)
{
	struct epf_gate gate = { 8, 2, 2, 1, 2.0f };
	float logits[8] = { 5, -5, -5, -5, 1, 1, 0, -5 };
	float bias[8] = { 0, 0, 0, 0, 0, 0, 0.5f, 0 };
	float scratch[16], w[2];
	int64_t idx[2];

	epf_gate_select(&gate, logits, bias, scratch, idx, w);
	/* choice: 4 and 5: 0.731, 6: 0.5 + 0.5 = 1.0; of the equal 4 and 5 the lower index. */
	assert_int_equal(idx[0], 6);
	assert_int_equal(idx[1], 4);
	/* 2 * 0.5 / (0.5 + 0.7310586) and the rest of 2. */
	assert_true(fabsf(w[0] - 0.8123094f) < 1e-6f);
	assert_true(fabsf(w[1] - 1.1876906f) < 1e-6f);
	gate.groups = 3; /* does not divide 8: all experts compete */
	assert_false(epf_gate_is_grouped(&gate));
	epf_gate_select(&gate, logits, bias, scratch, idx, w);
	assert_int_equal(idx[0], 6);
	assert_int_equal(idx[1], 0);
}

/* All equal: the lower group, and in it the lower experts. */
static void ties_go_to_the_lower_index(void **state)
{
	struct epf_gate gate = { 12, 3, 3, 1, 1.0f };
	float logits[12] = { 0 }, scratch[24], w[3];
	int64_t idx[3];

	epf_gate_select(&gate, logits, NULL, scratch, idx, w);
	for (int k = 0; k < 3; k++)
		assert_int_equal(idx[k], k);
}

static void fewer_than_topk(void **state)
{
	struct epf_gate gate = { 4, 3, 0, 0, 1.0f };
	float logits[4] = { 0, NAN, 0, 0 };
	float bias[4] = { -INFINITY, 0, 0, -INFINITY };
	float scratch[8], w[3];
	int64_t idx[3];

	epf_gate_select(&gate, logits, bias, scratch, idx, w);
	assert_int_equal(idx[0], 2);
	assert_int_equal(idx[1], EPF_NOT_SELECTED);
	assert_int_equal(idx[2], EPF_NOT_SELECTED);
	assert_true(w[0] == 1.0f && w[1] == 0.0f && w[2] == 0.0f);
	logits[2] = -1e30f; /* a score below the smallest float: zero */
	epf_gate_select(&gate, logits, NULL, scratch, idx, w);
	assert_int_equal(idx[0], 0);
	assert_int_equal(idx[2], 2);
	assert_true(w[0] == 0.5f && w[2] == 0.0f);
}

static void shapes_without_sense(void **state)
{
	struct epf_gate good = EPF_GATE_DEEPSEEK_V3, gate;

	assert_int_equal(epf_gate_check(&good), 0);
	gate = good, gate.experts = 0;
	assert_int_equal(epf_gate_check(&gate), -EINVAL);
	gate = good, gate.topk = 0;
	assert_int_equal(epf_gate_check(&gate), -EINVAL);
	gate = good, gate.topk = 17;
	assert_int_equal(epf_gate_check(&gate), -ERANGE);
	gate = good, gate.experts = 65537;
	assert_int_equal(epf_gate_check(&gate), -ERANGE);
	gate = good, gate.groups = 1025;
	assert_int_equal(epf_gate_check(&gate), -ERANGE);
	gate = good, gate.experts = 4;
	assert_int_equal(epf_gate_check(&gate), -EINVAL);
	gate = good, gate.topk_groups = 9;
	assert_int_equal(epf_gate_check(&gate), -EINVAL);
	gate = good, gate.routed_scale = NAN;
	assert_int_equal(epf_gate_check(&gate), -EINVAL);
	gate = good, gate.routed_scale = INFINITY;
	assert_int_equal(epf_gate_check(&gate), -EINVAL);
}

struct made {
	struct epf_routing routing;
	int64_t idx[TOKENS * 16];
	float w[TOKENS * 16];
};

static struct epf_routing routing_of(enum epf_routing_kind kind, uint64_t seed)
{
	struct epf_routing routing = {
		.kind = kind,
		.ranks = 8,
		.tokens = TOKENS,
		.seed = seed,
		.gate = EPF_GATE_DEEPSEEK_V3,
	};

	return routing;
}

static void make(struct made *made, const struct epf_routing *routing, uint32_t rank)
{
	memset(made, 0xa5, sizeof(*made));
	made->routing = *routing;
	assert_int_equal(epf_routing_make(routing, rank, made->idx, made->w), 0);
}

/* Distinct experts in range; entries that are not selected weigh nothing. Returns selections. */
static uint32_t check_made(const struct made *made, uint32_t rank, uint32_t *per_expert)
{
	uint32_t k = made->routing.gate.topk, selected = 0;

	for (uint32_t t = 0; t < epf_routing_tokens(&made->routing, rank); t++) {
		const int64_t *idx = made->idx + t * k;

		for (uint32_t i = 0; i < k; i++) {
			assert_in_range(idx[i] + 1, 0, made->routing.gate.experts);
			for (uint32_t j = 0; j < i; j++)
				assert_true(idx[i] < 0 || idx[i] != idx[j]);
			if (idx[i] < 0)
				assert_true(made->w[t * k + i] == 0.0f);
			else
				per_expert[idx[i]]++, selected++;
		}
	}
	return selected;
}

static struct made one, two;

static void uniform_is_even_and_grouped(void **state)
{
	struct epf_routing routing = routing_of(EPF_ROUTING_UNIFORM, 42);
	uint32_t per_expert[EXPERTS] = { 0 };

	for (uint32_t rank = 0; rank < 8; rank++) {
		make(&one, &routing, rank);
		assert_int_equal(check_made(&one, rank, per_expert), TOKENS * 8);
		for (uint32_t t = 0; t < TOKENS; t++) {
			uint32_t groups = 0;

			for (uint32_t i = 0; i < 8; i++)
				groups |= 1u << (one.idx[t * 8 + i] / 32);
			assert_true(__builtin_popcount(groups) <= 4);
		}
	}
	/* 128 expected for each. */
	for (int e = 0; e < EXPERTS; e++)
		assert_in_range(per_expert[e], 60, 220);
}

static void zipf_is_skewed(void **state)
{
	struct epf_routing routing = routing_of(EPF_ROUTING_ZIPF, 42);
	uint32_t per_expert[EXPERTS] = { 0 }, top = 0, rare = 0;

	make(&one, &routing, 0);
	check_made(&one, 0, per_expert);
	for (int e = 0; e < EXPERTS; e++) {
		top = per_expert[e] > top ? per_expert[e] : top;
		rare += per_expert[e] < 8;
	}
	assert_true(top > TOKENS / 2);
	assert_true(rare > EXPERTS / 2);
}

static void one_expert_gets_all(void **state)
{
	struct epf_routing routing = routing_of(EPF_ROUTING_ONE_EXPERT, 300);
	uint32_t per_expert[EXPERTS] = { 0 };

	make(&one, &routing, 3);
	assert_int_equal(check_made(&one, 3, per_expert), TOKENS);
	assert_int_equal(per_expert[300 % EXPERTS], TOKENS);
	assert_true(one.w[0] == 2.5f);
}

/* For each start of the pattern and each number of ranks: someone talks to someone. */
static void empty_ranks_are_empty(void **state)
{
	for (uint32_t ranks = 1; ranks <= 8; ranks *= 2) {
		for (uint64_t seed = 0; seed < 3; seed++) {
			struct epf_routing routing = routing_of(EPF_ROUTING_EMPTY_RANKS, seed);
			uint32_t per_expert[EXPERTS] = { 0 };
			uint32_t silent = 0, deaf = 0, selected = 0;

			routing.ranks = ranks;
			for (uint32_t r = 0; r < ranks; r++) {
				make(&one, &routing, r);
				selected += check_made(&one, r, per_expert);
				silent += epf_routing_tokens(&routing, r) == 0;
				deaf += !epf_routing_receives(&routing, r);
			}
			assert_true(selected > 0);
			assert_true(ranks == 1 ? silent + deaf == 0 : silent + deaf > 0);
			assert_true(ranks < 4 || (silent && deaf));
			for (uint32_t e = 0; e < EXPERTS; e++)
				if (!epf_routing_receives(&routing, e / (EXPERTS / ranks)))
					assert_int_equal(per_expert[e], 0);
		}
	}
}

static void unselected_as_often_as_asked(void **state)
{
	struct epf_routing routing = routing_of(EPF_ROUTING_UNIFORM, 9);
	uint32_t per_expert[EXPERTS] = { 0 };

	make(&one, &routing, 2);
	routing.unselected_ppm = 100000;
	make(&two, &routing, 2);
	/* 410 of 4,096 expected. */
	assert_in_range(TOKENS * 8 - check_made(&two, 2, per_expert), 300, 520);
	for (uint32_t i = 0; i < TOKENS * 8; i++) {
		if (two.idx[i] < 0)
			continue;
		assert_int_equal(two.idx[i], one.idx[i]);
		assert_true(two.w[i] == one.w[i]);
	}
	routing.unselected_ppm = 1000000;
	make(&two, &routing, 2);
	assert_int_equal(check_made(&two, 2, per_expert), 0);
}

static void same_seed_same_routing(void **state)
{
	struct epf_routing routing = routing_of(EPF_ROUTING_UNIFORM, 77);

	make(&one, &routing, 5);
	make(&two, &routing, 5);
	assert_memory_equal(&one, &two, sizeof(one));
	/* Fewer tokens: the same first ones. */
	routing.tokens = 10;
	make(&two, &routing, 5);
	assert_memory_equal(one.idx, two.idx, 10 * 8 * sizeof(one.idx[0]));
	make(&two, &routing, 6);
	assert_memory_not_equal(one.idx, two.idx, 10 * 8 * sizeof(one.idx[0]));
	routing.seed = 78;
	make(&two, &routing, 5);
	assert_memory_not_equal(one.idx, two.idx, 10 * 8 * sizeof(one.idx[0]));
}

/* Bits that must never change: two machines of one job must agree. */
static void pinned_routing(void **state)
{
	struct epf_routing routing = routing_of(EPF_ROUTING_ZIPF, 1);
	uint64_t digest = 0;

	make(&one, &routing, 1);
	for (uint32_t i = 0; i < TOKENS * 8; i++) {
		uint32_t bits;

		memcpy(&bits, &one.w[i], sizeof(bits));
		digest = digest * 1000003 + (uint64_t)one.idx[i] * 4294967291u + bits;
	}
	assert_int_equal(digest, PINNED_DIGEST);
}

static void routing_without_sense(void **state)
{
	struct epf_routing routing = routing_of(EPF_ROUTING_UNIFORM, 1);
	int64_t idx = 123;
	float w;

	assert_int_equal(epf_routing_make(&routing, 8, &idx, &w), -EINVAL);
	routing.ranks = 7;
	assert_int_equal(epf_routing_make(&routing, 0, &idx, &w), -EINVAL);
	routing.ranks = 0;
	assert_int_equal(epf_routing_make(&routing, 0, &idx, &w), -EINVAL);
	routing = routing_of((enum epf_routing_kind)4, 1);
	assert_int_equal(epf_routing_make(&routing, 0, &idx, &w), -EINVAL);
	routing = routing_of(EPF_ROUTING_UNIFORM, 1);
	routing.unselected_ppm = 1000001;
	assert_int_equal(epf_routing_make(&routing, 0, &idx, &w), -EINVAL);
	routing.gate.topk = 99;
	assert_int_equal(epf_routing_make(&routing, 0, &idx, &w), -ERANGE);
	assert_int_equal(idx, 123);
}

static void names(void **state)
{
	enum epf_routing_kind kind = EPF_ROUTING_ZIPF;

	assert_int_equal(epf_routing_parse("zip", &kind), -EINVAL);
	assert_int_equal(kind, EPF_ROUTING_ZIPF);
	for (int k = 0; k < 4; k++) {
		assert_int_equal(
			epf_routing_parse(epf_routing_name((enum epf_routing_kind)k), &kind), 0);
		assert_int_equal(kind, k);
	}
	assert_null(epf_routing_name((enum epf_routing_kind)4));
}

static void input_has_the_documented_range(void **state)
{
	uint32_t zeros = 0, tiny = 0, zero_blocks = 0, negative = 0;
	uint16_t row[7168];

	for (uint32_t t = 0; t < 64; t++) {
		epf_input_row(5, 1, t, 7168, row);
		for (uint32_t b = 0; b < 56; b++) {
			uint32_t before = zeros;

			for (uint32_t c = b * 128; c < b * 128 + 128; c++) {
				float value = fabsf(epf_bf16_decode(row[c]));

				assert_true(value < 0x1p7f);
				assert_true(value == 0 || value >= 0x1p-25f);
				zeros += value == 0;
				negative += row[c] >> 15;
				tiny += value != 0 && value < 0x1p-9f;
			}
			zero_blocks += zeros - before == 128;
		}
	}
	/* 3,584 blocks: 56 expected; of 458,752 channels 1/32 + 1/64 zero and 1/32 tiny. */
	assert_in_range(zero_blocks, 30, 90);
	assert_in_range(zeros, 19000, 24000);
	assert_in_range(tiny, 12500, 16000);
	assert_in_range(negative, 210000, 228000);
}

static void input_by_coordinates(void **state)
{
	uint16_t row[640], other[640];

	epf_input_row(9, 7, 4095, 640, row);
	epf_input_row(9, 7, 4095, 128, other);
	assert_memory_equal(row, other, 256);
	epf_input_row(9, 7, 4094, 640, other);
	assert_memory_not_equal(row, other, sizeof(row));
	epf_input_row(9, 6, 4095, 640, other);
	assert_memory_not_equal(row, other, sizeof(row));
	epf_input_row(10, 7, 4095, 640, other);
	assert_memory_not_equal(row, other, sizeof(row));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(like_full_sorts),
		cmocka_unit_test(group_limit_by_hand),
		cmocka_unit_test(ties_go_to_the_lower_index),
		cmocka_unit_test(fewer_than_topk),
		cmocka_unit_test(shapes_without_sense),
		cmocka_unit_test(uniform_is_even_and_grouped),
		cmocka_unit_test(zipf_is_skewed),
		cmocka_unit_test(one_expert_gets_all),
		cmocka_unit_test(empty_ranks_are_empty),
		cmocka_unit_test(unselected_as_often_as_asked),
		cmocka_unit_test(same_seed_same_routing),
		cmocka_unit_test(pinned_routing),
		cmocka_unit_test(routing_without_sense),
		cmocka_unit_test(names),
		cmocka_unit_test(input_has_the_documented_range),
		cmocka_unit_test(input_by_coordinates),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
