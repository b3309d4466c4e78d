/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The group-limited gate, routing patterns and token rows. Called by ep-bench and the tests before
 * anything is timed. It must never use the C library's mathematics (results would differ between
 * machines) or keep state between calls.
 */
#include "kernels/host/gate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PPM 1000000u

/* What a hash is for: keeps the streams of one seed apart. */
enum purpose {
	FOR_NOISE = 1,
	FOR_BIAS,
	FOR_SHUFFLE,
	FOR_UNSELECTED,
	FOR_BLOCK,
	FOR_CHANNEL,
};

/* The finaliser of SplitMix64 (Steele, Lea, Flood, 2014): every input bit reaches every output. */
static inline uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

#define GOLDEN 0x9e3779b97f4a7c15ull

/* The start of a stream; its n-th value is mix(start + n * GOLDEN). */
static inline uint64_t stream(uint64_t seed, enum purpose purpose, uint32_t rank, uint32_t token)
{
	uint64_t z = mix(seed + GOLDEN * purpose);

	return mix(z ^ mix(((uint64_t)rank << 32 | token) + GOLDEN));
}

static inline uint64_t draw(uint64_t start, uint64_t n)
{
	return mix(start + n * GOLDEN);
}

/* (0, 1), 52 bits and never an end. */
static inline double unit(uint64_t z)
{
	return ((double)(z >> 12) + 0.5) * 0x1p-52;
}

/* Natural logarithm of a positive normal double: m = 2^k * f, ln f = 2 artanh((f-1)/(f+1)). */
static double ln(double m)
{
	uint64_t bits;
	int64_t k;
	double f, s, s2, sum = 0;

	memcpy(&bits, &m, sizeof(bits));
	/* f in [sqrt(1/2), sqrt(2)): 0x3fe6a09e... is the pattern of sqrt(1/2). */
	k = (int64_t)(bits - 0x3fe6a09e667f3bcdull) >> 52;
	bits -= (uint64_t)k << 52;
	memcpy(&f, &bits, sizeof(f));
	s = (f - 1.0) / (f + 1.0);
	s2 = s * s;
	for (int n = 19; n >= 1; n -= 2)
		sum = sum * s2 + 1.0 / n;
	return (double)k * 0x1.62e42fefa39efp-1 + 2.0 * s * sum;
}

/* e^x for |x| <= 700: x = k ln 2 + r, Taylor to r^13. */
static double exp_of(double x)
{
	static const double inverse_factorial[] = {
		1.0 / 6227020800.0,
		1.0 / 479001600.0,
		1.0 / 39916800.0,
		1.0 / 3628800.0,
		1.0 / 362880.0,
		1.0 / 40320.0,
		1.0 / 5040.0,
		1.0 / 720.0,
		1.0 / 120.0,
		1.0 / 24.0,
		1.0 / 6.0,
		1.0 / 2.0,
		1.0,
		1.0,
	};
	double half = x < 0 ? -0.5 : 0.5;
	int64_t k = (int64_t)(x * 0x1.71547652b82fep+0 + half);
	double r = x - (double)k * 0x1.62e42fefa39efp-1;
	uint64_t bits = (uint64_t)(k + 1023) << 52;
	double power, sum = 0;

	for (size_t i = 0; i < sizeof(inverse_factorial) / sizeof(inverse_factorial[0]); i++)
		sum = sum * r + inverse_factorial[i];
	memcpy(&power, &bits, sizeof(power));
	return sum * power;
}

static float sigmoid(float logit)
{
	double x = logit;

	if (x != x)
		return NAN;
	x = x > 700 ? 700 : x;
	x = x < -700 ? -700 : x;
	return (float)(1.0 / (1.0 + exp_of(-x)));
}

int epf_gate_check(const struct epf_gate *gate)
{
	if (!gate->experts || !gate->topk || !(gate->routed_scale > 0))
		return -EINVAL;
	if (gate->experts > EPF_GATE_EXPERTS_MAX || gate->topk > EPF_GATE_TOPK_MAX ||
	    gate->groups > EPF_GATE_GROUPS_MAX)
		return -ERANGE;
	if (gate->topk > gate->experts || isinf(gate->routed_scale))
		return -EINVAL;
	if (gate->groups > 1 && (!gate->topk_groups || gate->topk_groups > gate->groups))
		return -EINVAL;
	return 0;
}

bool epf_gate_is_grouped(const struct epf_gate *gate)
{
	if (gate->groups < 2 || gate->experts % gate->groups)
		return false;
	return (uint64_t)gate->topk_groups * (gate->experts / gate->groups) >= gate->topk;
}

/*
 * Keeps the best values of a scan, best first. A later equal value goes behind an earlier one, so
 * a scan in ascending index order lets the lower index win. NaN and -INFINITY never enter.
 */
struct best {
	float value[EPF_GATE_TOPK_MAX];
	int64_t index[EPF_GATE_TOPK_MAX];
	uint32_t count;
	uint32_t limit;
};

static inline void best_offer(struct best *best, float value, int64_t index)
{
	uint32_t at;

	if (!(value > -INFINITY))
		return;
	if (best->count == best->limit) {
		if (!(value > best->value[best->limit - 1]))
			return;
		best->count--;
	}
	for (at = best->count; at > 0 && value > best->value[at - 1]; at--) {
		best->value[at] = best->value[at - 1];
		best->index[at] = best->index[at - 1];
	}
	best->value[at] = value;
	best->index[at] = index;
	best->count++;
}

/* Sum of the two largest choices; -INFINITY when the whole group is barred. */
static float group_score(const float *choice, uint32_t size)
{
	struct best two = { .limit = 2 };

	for (uint32_t i = 0; i < size; i++)
		best_offer(&two, choice[i], i);
	if (two.count == 0)
		return -INFINITY;
	return two.count == 1 ? two.value[0] : two.value[0] + two.value[1];
}

/*
 * Bars the experts outside the best groups. A group is in when fewer than topk_groups groups are
 * better; groups may be many, so they are compared in place and not kept in a list.
 */
static void bar_groups(const struct epf_gate *gate, float *choice, float *group_scores)
{
	uint32_t size = gate->experts / gate->groups;

	for (uint32_t g = 0; g < gate->groups; g++)
		group_scores[g] = group_score(choice + g * size, size);
	for (uint32_t g = 0; g < gate->groups; g++) {
		uint32_t better = 0;

		for (uint32_t other = 0; other < gate->groups; other++)
			better += group_scores[other] > group_scores[g] ||
				  (group_scores[other] == group_scores[g] && other < g);
		if (better < gate->topk_groups)
			continue;
		for (uint32_t i = 0; i < size; i++)
			choice[g * size + i] = -INFINITY;
	}
}

void epf_gate_select(const struct epf_gate *gate, const float *logits, const float *bias,
		     float *scratch, int64_t *topk_idx, float *weights)
{
	float *choice = scratch;
	float *group_scores = scratch + gate->experts;
	struct best best = { .limit = gate->topk };
	float score[EPF_GATE_TOPK_MAX];
	float sum = 0;

	for (uint32_t e = 0; e < gate->experts; e++)
		choice[e] = sigmoid(logits[e]) + (bias ? bias[e] : 0.0f);
	if (epf_gate_is_grouped(gate))
		bar_groups(gate, choice, group_scores);
	for (uint32_t e = 0; e < gate->experts; e++)
		best_offer(&best, choice[e], e);
	for (uint32_t k = 0; k < best.count; k++) {
		score[k] = sigmoid(logits[best.index[k]]);
		sum += score[k];
	}
	for (uint32_t k = 0; k < gate->topk; k++) {
		bool taken = k < best.count;

		topk_idx[k] = taken ? best.index[k] : EPF_NOT_SELECTED;
		weights[k] = taken && sum > 0 ? score[k] / sum * gate->routed_scale : 0.0f;
	}
}

static const char *const kind_names[] = {
	[EPF_ROUTING_UNIFORM] = "uniform",
	[EPF_ROUTING_ZIPF] = "zipf",
	[EPF_ROUTING_ONE_EXPERT] = "one-expert",
	[EPF_ROUTING_EMPTY_RANKS] = "empty-ranks",
};

#define NKINDS (sizeof(kind_names) / sizeof(kind_names[0]))

int epf_routing_parse(const char *name, enum epf_routing_kind *kind)
{
	for (size_t i = 0; i < NKINDS; i++) {
		if (!strcmp(name, kind_names[i])) {
			*kind = (enum epf_routing_kind)i;
			return 0;
		}
	}
	return -EINVAL;
}

const char *epf_routing_name(enum epf_routing_kind kind)
{
	return (size_t)kind < NKINDS ? kind_names[kind] : NULL;
}

/*
 * EMPTY_RANKS assigns three parts round-robin, starting where the seed says: a full rank, one without
 * tokens, one that receives none. A job of one rank has no rank to spare and stays full; in a job
 * of two, seeds that would leave no pair that talks do not exist (full/silent, silent/deaf and
 * deaf/full all have one).
 */
static uint32_t part(const struct epf_routing *routing, uint32_t rank)
{
	if (routing->kind != EPF_ROUTING_EMPTY_RANKS || routing->ranks == 1)
		return 0;
	return (uint32_t)((rank + routing->seed % 3) % 3);
}

uint32_t epf_routing_tokens(const struct epf_routing *routing, uint32_t rank)
{
	return part(routing, rank) == 1 ? 0 : routing->tokens;
}

bool epf_routing_receives(const struct epf_routing *routing, uint32_t rank)
{
	return part(routing, rank) != 2;
}

static int routing_check(const struct epf_routing *routing, uint32_t rank)
{
	int rc = epf_gate_check(&routing->gate);

	if (rc)
		return rc;
	if (!routing->ranks || rank >= routing->ranks || routing->gate.experts % routing->ranks)
		return -EINVAL;
	if (!epf_routing_name(routing->kind) || routing->unselected_ppm > PPM)
		return -EINVAL;
	return 0;
}

/*
 * Logit of expert e = location[e] + Gumbel noise: then the plain top-1 is e with probability
 * proportional to exp(location[e]). The common part puts the k-th best logit near zero, the
 * middle of the sigmoid, where weights differ.
 */
static void fill_locations(const struct epf_routing *routing, float *location, uint32_t *order)
{
	uint32_t experts = routing->gate.experts;
	uint64_t shuffle = stream(routing->seed, FOR_SHUFFLE, 0, 0);
	double middle = ln((double)routing->gate.topk / experts);

	for (uint32_t e = 0; e < experts; e++)
		order[e] = e;
	for (uint32_t e = experts - 1; e > 0; e--) {
		uint32_t other = (uint32_t)(draw(shuffle, e) % (e + 1));
		uint32_t moved = order[e];

		order[e] = order[other];
		order[other] = moved;
	}
	for (uint32_t n = 0; n < experts; n++) {
		double popularity = routing->kind == EPF_ROUTING_ZIPF ? -ln(n + 1.0) : 0.0;

		location[order[n]] = (float)(middle + popularity);
	}
}

static void fill_bias(const struct epf_routing *routing, float *bias)
{
	uint32_t per_rank = routing->gate.experts / routing->ranks;
	uint64_t start = stream(routing->seed, FOR_BIAS, 0, 0);

	for (uint32_t e = 0; e < routing->gate.experts; e++) {
		bias[e] = (float)((unit(draw(start, e)) - 0.5) * 0x1p-6);
		if (!epf_routing_receives(routing, e / per_rank))
			bias[e] = -INFINITY;
	}
}

static void select_one_expert(const struct epf_routing *routing, int64_t *topk_idx, float *weights)
{
	for (uint32_t k = 0; k < routing->gate.topk; k++) {
		topk_idx[k] = EPF_NOT_SELECTED;
		weights[k] = 0.0f;
	}
	topk_idx[0] = (int64_t)(routing->seed % routing->gate.experts);
	weights[0] = routing->gate.routed_scale;
}

static void unselect(const struct epf_routing *routing, uint32_t rank, uint32_t token,
		     int64_t *topk_idx, float *weights)
{
	uint64_t start = stream(routing->seed, FOR_UNSELECTED, rank, token);

	for (uint32_t k = 0; k < routing->gate.topk; k++) {
		if (unit(draw(start, k)) * PPM < routing->unselected_ppm) {
			topk_idx[k] = EPF_NOT_SELECTED;
			weights[k] = 0.0f;
		}
	}
}

int epf_routing_make(const struct epf_routing *routing, uint32_t rank, int64_t *topk_idx,
		     float *weights)
{
	const struct epf_gate *gate = &routing->gate;
	uint32_t tokens, experts = gate->experts;
	float *location, *bias, *logits, *scratch;
	int rc = routing_check(routing, rank);

	if (rc)
		return rc;
	/* location, bias, logits, scratch (2); the shuffle borrows scratch. */
	location = calloc(experts, 5 * sizeof(float));
	if (!location)
		return -ENOMEM;
	bias = location + experts;
	logits = bias + experts;
	scratch = logits + experts;
	fill_locations(routing, location, (uint32_t *)scratch);
	fill_bias(routing, bias);
	tokens = epf_routing_tokens(routing, rank);
	for (uint32_t t = 0; t < tokens; t++) {
		uint64_t noise = stream(routing->seed, FOR_NOISE, rank, t);
		int64_t *idx = topk_idx + (size_t)t * gate->topk;
		float *w = weights + (size_t)t * gate->topk;

		if (routing->kind == EPF_ROUTING_ONE_EXPERT) {
			select_one_expert(routing, idx, w);
		} else {
			for (uint32_t e = 0; e < experts; e++)
				logits[e] = location[e] - (float)ln(-ln(unit(draw(noise, e))));
			epf_gate_select(gate, logits, bias, scratch, idx, w);
		}
		unselect(routing, rank, t, idx, w);
	}
	free(location);
	return 0;
}

/*
 * Four channels from one hash, 16 bits each: sign, 7 bits of mantissa, 3 of exponent, and 5 that
 * make one channel in 32 zero and one in 32 small.
 */
static inline uint16_t channel_of(uint64_t hash, uint32_t channel, uint32_t block_exponent)
{
	uint32_t h = (uint32_t)(hash >> (16 * (channel & 3))) & 0xffff;
	uint32_t exponent = block_exponent + ((h >> 7) & 7);
	uint32_t kind = (h >> 10) & 31;

	if (kind == 0 || block_exponent == 0)
		return 0;
	if (kind == 1)
		exponent -= 16;
	return (uint16_t)((h & 0x8000) | exponent << 7 | (h & 0x7f));
}

/* Exponent field of the smallest binade of a block, 2^-9 to 2^-1; 0 for a block of zeros. */
static uint32_t block_exponent_of(uint64_t blocks, uint32_t block)
{
	uint64_t h = draw(blocks, block);

	return h % 64 == 0 ? 0 : 127 - 9 + (uint32_t)(h >> 32) % 9;
}

void epf_input_row(uint64_t seed, uint32_t rank, uint32_t token, uint32_t hidden, uint16_t *row)
{
	uint64_t blocks = stream(seed, FOR_BLOCK, rank, token);
	uint64_t channels = stream(seed, FOR_CHANNEL, rank, token);
	uint32_t exponent = 0;

	for (uint32_t c = 0; c < hidden; c += 4) {
		uint64_t hash = draw(channels, c / 4);

		if (c % 128 == 0)
			exponent = block_exponent_of(blocks, c / 128);
		for (uint32_t i = 0; i < 4; i++)
			row[c + i] = channel_of(hash, i, exponent);
	}
}
