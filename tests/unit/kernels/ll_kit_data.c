/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs of a case from its seed, the same job for the reference, and every output byte against that. No rank does anything here. */
#include "tests/unit/kernels/ll_kit_impl.h"

#include "kernels/epf_ll.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t local_experts(const struct ll_kit *k, const struct ll_kit_case *c)
{
	return c->experts / k->o.ranks;
}

static size_t places(const struct ll_kit *k, const struct ll_kit_case *c)
{
	return (size_t)k->o.ranks * c->tokens_max;
}

static bool is_absent(const struct ll_kit_case *c, uint32_t rank)
{
	return c->absent >> rank & 1;
}

uint64_t ll_kit_random(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* ---- inputs ---- */

static void *poisoned(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);

	assert_non_null(p);
	memset(p, POISON, (bytes + 64 + 63) / 64 * 64);
	return p;
}

/* Mostly ordinary numbers of very different size; now and then zero, the smallest, the largest, infinity or a NaN. */
enum { OCTAVES = 24 };

static uint16_t channel(uint64_t *seed, uint32_t octaves)
{
	static const uint16_t odd[] = { 0, 0x8000, 1, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc1 };
	uint64_t v = ll_kit_random(seed);

	if ((v >> 32) % 4000 == 0)
		return odd[v % 8];
	/* sign, exponent from 112 on, 7 bits of mantissa */
	return (uint16_t)((v & 0x8000) | (112 + (v >> 16) % octaves) << 7 | (v & 0x7f));
}

static void choose(int64_t *topk, const struct ll_kit_case *c, uint64_t *seed)
{
	for (uint32_t i = 0; i < c->topk; i++) {
		bool again = true;

		while (again) {
			topk[i] = (int64_t)(ll_kit_random(seed) % c->experts);
			again = false;
			for (uint32_t j = 0; j < i; j++)
				again |= topk[j] == topk[i];
			/* More entries than experts are filled up with -1; so are some others. */
			if (i >= c->experts || ll_kit_random(seed) % 100 < c->unselected) {
				topk[i] = -1;
				again = false;
			} else if (i && c->twice && ll_kit_random(seed) % 4 == 0) {
				topk[i] = topk[ll_kit_random(seed) % i];
				again = false;
			}
		}
	}
}

static void make_inputs(struct ll_kit *k, struct batch *b, uint32_t r)
{
	const struct ll_kit_case *c = &b->c;
	uint64_t seed = c->seed * 1000 + r;
	struct tensors *t = &b->t[r];
	size_t rows = places(k, c) * local_experts(k, c);

	*t = (struct tensors){ .x = poisoned((size_t)c->tokens[r] * c->hidden * 2),
			       .y = poisoned(rows * c->hidden * 2),
			       .out = poisoned((size_t)c->tokens[r] * c->hidden * 2),
			       .topk = poisoned((size_t)c->tokens[r] * c->topk * 8),
			       .range = poisoned((size_t)local_experts(k, c) * k->o.ranks * 8),
			       .waits = poisoned((size_t)k->o.ranks * 8),
			       .weights = poisoned((size_t)c->tokens[r] * c->topk * 4),
			       .recv = poisoned(rows * c->hidden * 2),
			       .scales = poisoned(rows * (c->hidden / 128) * 4),
			       .count = poisoned((size_t)local_experts(k, c) * 4),
			       .info = poisoned(rows * 4),
			       .slot = poisoned(rows * 4),
			       .stats = poisoned((size_t)local_experts(k, c) * 4),
			       .row = poisoned((places(k, c) * c->topk + k->o.ranks) * 4) };
	for (size_t i = 0; i < (size_t)c->tokens[r] * c->hidden; i++)
		t->x[i] = channel(&seed, OCTAVES);
	for (uint32_t i = 0; i < c->tokens[r]; i++)
		choose(t->topk + (size_t)i * c->topk, c, &seed);
	for (size_t i = 0; i < (size_t)c->tokens[r] * c->topk; i++)
		t->weights[i] = (float)(ll_kit_random(&seed) % 20000) / 7919.0f - 1.0f;
	for (uint32_t e = 0; e < local_experts(k, c); e++)
		t->stats[e] = STATS_BEFORE;
	for (uint32_t i = 0; i < k->o.ranks; i++)
		t->waits[i] = STATS_BEFORE;
}

void ll_kit_free(struct ll_kit *k, struct batch *b)
{
	for (uint32_t r = 0; r < k->o.ranks; r++) {
		struct tensors *t = &b->t[r];
		void *all[] = { t->x,     t->y,       t->out,   t->topk,   t->range,
				t->waits, t->weights, t->recv,  t->scales, t->count,
				t->info,  t->slot,    t->stats, t->row };

		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
			free(all[i]);
		free(b->ref_own[r]);
	}
	free(b->row);
}

/* The same job for the reference, without absent ranks. */
static void make_ref(struct ll_kit *k, struct batch *b)
{
	static const int nodes[LL_KIT_RANKS];
	const struct ll_kit_case *c = &b->c;

	for (uint32_t r = 0; r < k->o.ranks; r++) {
		size_t n = (size_t)c->tokens[r] * c->topk;

		b->ref_own[r] = calloc(n + 1, sizeof(int64_t));
		assert_non_null(b->ref_own[r]);
		for (size_t i = 0; i < n; i++) {
			int64_t e = b->t[r].topk[i];
			bool lost = e >= 0 && is_absent(c, (uint32_t)e / local_experts(k, c));

			b->ref_own[r][i] = lost ? -1 : e;
		}
		b->ref_tokens[r] = is_absent(c, r) ? 0 : (int)c->tokens[r];
		b->ref_topk[r] = b->ref_own[r];
		b->ref_weights[r] = b->t[r].weights;
		b->ref_x[r] = b->t[r].x;
	}
	b->row = poisoned((size_t)c->hidden * 2);
	b->ref = (struct ref_job){ .ranks = (int)k->o.ranks,
				   .experts = (int)c->experts,
				   .topk = (int)c->topk,
				   .hidden = (int)c->hidden,
				   .node_of_rank = nodes,
				   .tokens = b->ref_tokens,
				   .topk_idx = b->ref_topk,
				   .weights = b->ref_weights,
				   .x = b->ref_x };
	if (c->topk <= c->experts && !c->twice && ref_job_error(&b->ref))
		fail_msg("%s", ref_job_error(&b->ref));
}

/* ---- the experts' turn ---- */

/* An expert's output: a function of who, what and the seed. For LogFMT blocks of 1 to 20 octaves: more than 16 stay BF16. */
static const uint16_t *expert_row(void *arg, int expert, int src, int token)
{
	struct batch *b = arg;
	uint64_t seed =
		b->c.seed ^ ((uint64_t)expert << 40 | (uint64_t)src << 20 | (uint64_t)token);
	uint32_t narrow = (uint32_t)(expert + token);

	for (uint32_t i = 0; i < b->c.hidden; i++)
		b->row[i] = channel(&seed, b->c.logfmt ? 1u + (narrow + i / 128u) % 20u : OCTAVES);
	return b->row;
}

/* The same as it arrives. */
static const uint16_t *arrived_row(void *arg, int expert, int src, int token)
{
	struct batch *b = arg;

	(void)expert_row(arg, expert, src, token);
	if (b->c.logfmt)
		assert_true(ref_logfmt(b->row, (int)b->c.hidden) >= 0);
	return b->row;
}

/* The experts' turn: rows that were not received stay poison. */
static void compute(struct ll_kit *k, struct batch *b)
{
	size_t n = places(k, &b->c), row = (size_t)b->c.hidden;
	struct ref_entry *list = calloc(n + 1, sizeof(*list));

	for (uint32_t r = 0; r < k->o.ranks; r++)
		for (uint32_t e = 0; e < local_experts(k, &b->c); e++) {
			long rows = ref_ll_list(&b->ref, (int)r, (int)e, list, (long)n, NULL);

			for (long i = 0; i < rows; i++)
				memcpy(b->t[r].y + (e * n + (size_t)i) * row,
				       expert_row(b, (int)(r * local_experts(k, &b->c) + e),
						  list[i].src, list[i].token),
				       row * 2);
		}
	free(list);
}

void ll_kit_make(struct ll_kit *k, struct batch *b)
{
	for (uint32_t r = 0; r < k->o.ranks; r++)
		make_inputs(k, b, r);
	make_ref(k, b);
	compute(k, b);
}

/* ---- checks ---- */

static bool is_poison(const void *p, size_t bytes)
{
	const uint8_t *u = p;

	return !bytes || (u[0] == POISON && memcmp(u, u + 1, bytes - 1) == 0);
}

static enum ref_format format_of(const struct ll_kit_case *c)
{
	if (!(c->flags & EPF_LL_FP8))
		return REF_BF16;
	return c->flags & EPF_LL_ROUND_SCALE ? REF_FP8_POW2 : REF_FP8;
}

/* Scales of one place against the row's; transposed, as floats or as packed exponents. */
static void check_scales(const struct ll_kit *k, const struct batch *b, uint32_t rank,
			 uint32_t expert, size_t place, const uint8_t *payload)
{
	const struct ll_kit_case *c = &b->c;
	uint32_t blocks = c->hidden / 128;
	size_t n = places(k, c);

	for (uint32_t i = 0; i < blocks; i++) {
		uint32_t want, got;

		memcpy(&want, payload + c->hidden + 4 * i, 4);
		if (c->flags & EPF_LL_UE8M0) {
			got = b->t[rank]
				      .scales[((size_t)expert * (blocks / 4) + i / 4) * n + place];
			assert_int_equal(got >> (8 * (i % 4)) & 0xff, want >> 23);
		} else {
			got = b->t[rank].scales[((size_t)expert * blocks + i) * n + place];
			assert_int_equal(got, want);
		}
	}
}

static void check_expert(struct ll_kit *k, struct batch *b, uint32_t rank, uint32_t expert)
{
	const struct ll_kit_case *c = &b->c;
	const struct tensors *t = &b->t[rank];
	size_t n = places(k, c), at = expert * n;
	size_t row_bytes = (size_t)c->hidden * (c->flags & EPF_LL_FP8 ? 1 : 2);
	struct ref_entry *list = calloc(n + 1, sizeof(*list));
	uint8_t *payload = poisoned(ref_row_bytes((int)c->hidden, format_of(c)));
	int counts[LL_KIT_RANKS];
	long rows = ref_ll_list(&b->ref, (int)rank, (int)expert, list, (long)n, counts);
	uint32_t begin = 0;

	assert_in_range(rows, 0, (long)n);
	assert_int_equal(t->count[expert], rows);
	assert_int_equal(t->stats[expert], c->stats ? STATS_BEFORE + rows : STATS_BEFORE);
	for (uint32_t r = 0; r < k->o.ranks; begin += (uint32_t)counts[r], r++)
		assert_int_equal(t->range[expert * k->o.ranks + r],
				 (int64_t)((uint64_t)begin << 32 | (uint32_t)counts[r]));
	for (long i = 0; i < rows; i++) {
		size_t place = at + (size_t)i;

		assert_int_equal(t->info[place], list[i].token);
		assert_int_equal(t->slot[place], list[i].token * (int)c->topk + list[i].k);
		assert_int_equal(
			ref_payload(&b->ref, list[i].src, list[i].token, format_of(c), payload), 0);
		if (memcmp(t->recv + place * row_bytes, payload, row_bytes) != 0)
			fail_msg("rank %u, local expert %u, row %ld: wrong bytes", rank, expert, i);
		if (c->flags & EPF_LL_FP8)
			check_scales(k, b, rank, expert, (size_t)i, payload);
	}
	assert_true(is_poison(t->recv + (at + (size_t)rows) * row_bytes,
			      (n - (size_t)rows) * row_bytes));
	assert_true(is_poison(t->info + at + rows, (n - (size_t)rows) * 4));
	assert_true(is_poison(t->slot + at + rows, (n - (size_t)rows) * 4));
	free(payload);
	free(list);
}

static void hash(struct ll_kit *k, const void *p, size_t bytes)
{
	const uint8_t *u = p;

	/* Words: outputs are large, and a sanitizer looks at each load. */
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = 0;

		memcpy(&word, u + i, bytes - i < 8 ? bytes - i : 8);
		k->hash = (k->hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		k->hash ^= k->hash >> 32;
	}
}

void ll_kit_check_received(struct ll_kit *k, struct batch *b)
{
	for (uint32_t r = 0; r < k->o.ranks; r++) {
		if (is_absent(&b->c, r))
			continue;
		for (uint32_t e = 0; e < local_experts(k, &b->c); e++)
			check_expert(k, b, r, e);
		hash(k, b->t[r].recv, places(k, &b->c) * local_experts(k, &b->c) * b->c.hidden * 2);
		for (uint32_t i = 0; i < k->o.ranks; i++)
			assert_in_range(b->t[r].waits[i], STATS_BEFORE,
					b->c.stats ? INT64_MAX : STATS_BEFORE);
	}
}

/* What is at ranks that make no combine does not count in sums. */
static void leave_lost_out(struct ll_kit *k, struct batch *b)
{
	for (uint32_t r = 0; r < k->o.ranks; r++)
		for (size_t i = 0; i < (size_t)b->c.tokens[r] * b->c.topk; i++) {
			int64_t e = b->ref_own[r][i];

			if (e >= 0 && b->c.lost >> ((uint32_t)e / local_experts(k, &b->c)) & 1)
				b->ref_own[r][i] = -1;
		}
}

void ll_kit_check_combined(struct ll_kit *k, struct batch *b)
{
	size_t bytes = (size_t)b->c.hidden * 2;
	uint16_t *want = poisoned(bytes);

	leave_lost_out(k, b);
	for (uint32_t r = 0; r < k->o.ranks; r++) {
		uint32_t tokens = b->c.tokens[r];
		bool sums = b->c.sums &&
			    (!b->c.many || tokens * b->c.topk >= EPF_LL_SUMS_FROM(k->o.ranks));

		if (is_absent(&b->c, r) || b->c.lost >> r & 1)
			continue;
		for (uint32_t t = 0; t < tokens; t++) {
			assert_int_equal((sums ? ref_ll_combine_sums : ref_ll_combine)(
						 &b->ref, (int)r, (int)t, arrived_row, b, want),
					 0);
			if (memcmp(want, b->t[r].out + (size_t)t * b->c.hidden, bytes) != 0)
				fail_msg("rank %u, token %u: wrong sum", r, t);
		}
		assert_true(is_poison(b->t[r].out + (size_t)tokens * b->c.hidden, 64));
		hash(k, b->t[r].out, tokens * bytes);
	}
	free(want);
}
