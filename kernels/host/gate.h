/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which experts a token goes to, and what a token contains: DeepSeek-V3's group-limited gate, the
 * routing patterns of the bench and the tests, and a generator of token rows. Called by ep-bench
 * and the tests. Everything is a function of a seed and of coordinates, never of state: any process
 * can recompute any rank's routing and any channel of any token without memory. The arithmetic is
 * ours down to the logarithm, so that two machines with different C libraries agree in every bit.
 * Never used by dispatch and combine themselves: to them routing is plain input.
 */
#ifndef EPF_KERNELS_HOST_GATE_H
#define EPF_KERNELS_HOST_GATE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPF_GATE_TOPK_MAX    16u
#define EPF_GATE_EXPERTS_MAX 65536u
#define EPF_GATE_GROUPS_MAX  1024u

/* topk_idx of an entry that selects no expert; its weight is 0. */
#define EPF_NOT_SELECTED (-1)

/**
 * struct epf_gate - the shape of a gate.
 * @experts: how many experts there are in the job, 1 to EPF_GATE_EXPERTS_MAX.
 * @topk: entries per token, 1 to EPF_GATE_TOPK_MAX and not above @experts.
 * @groups: equal groups of consecutive experts, up to EPF_GATE_GROUPS_MAX; 0 or 1: no groups.
 * @topk_groups: how many groups a token may choose from, 1 to @groups when there are groups.
 * @routed_scale: factor on the normalised weights, finite and above 0.
 */
struct epf_gate {
	uint32_t experts;
	uint32_t topk;
	uint32_t groups;
	uint32_t topk_groups;
	float routed_scale;
};

/* DeepSeek-V3: top-8 of 256 experts, the best 4 of 8 groups, weights sum to 2.5. */
#define EPF_GATE_DEEPSEEK_V3                                                     \
 {                                                                               \
  .experts = 256, .topk = 8, .groups = 8, .topk_groups = 4, .routed_scale = 2.5f \
 }

/** epf_gate_check() - Return: 0, -EINVAL (a zero or no sense), -ERANGE (above a limit). */
int epf_gate_check(const struct epf_gate *gate);

/**
 * epf_gate_is_grouped() - whether groups limit the choice.
 * They do not when there are fewer than two, when they do not divide the experts evenly, or when
 * the allowed groups hold fewer than topk experts; the gate is then the plain top-k of all.
 */
bool epf_gate_is_grouped(const struct epf_gate *gate);

/**
 * epf_gate_select() - the experts and weights of one token.
 * @gate: a shape that epf_gate_check() accepts.
 * @logits: [experts]. @bias: [experts] or NULL for none; -INFINITY bars an expert.
 * @scratch: [2 * experts], overwritten.
 * @topk_idx: [topk] out, best first. @weights: [topk] out.
 *
 * score[e] = 1 / (1 + exp(-logits[e])), in double, rounded to float; choice[e] = score[e] + bias[e]
 * in float. Groups are ranked by the sum of their two largest choices (one if the group has one
 * expert that is not barred); of the experts in the best topk_groups, the topk with the largest
 * choice are selected. Equal values: the lower index wins. The weight is the score without bias,
 * divided by the float sum of the selected scores (added in top-k order), times routed_scale. Where
 * fewer than topk experts can be selected, the last entries are EPF_NOT_SELECTED with weight 0. A NaN
 * logit is never selected.
 *
 * Source: DeepSeek-V3 Technical Report, section 2.1.2 (sigmoid affinity, bias only for the choice,
 * node-limited routing), with the group score of its published inference code.
 */
void epf_gate_select(const struct epf_gate *gate, const float *logits, const float *bias,
		     float *scratch, int64_t *topk_idx, float *weights);

/* How the experts' popularity and the ranks' load are shaped. */
enum epf_routing_kind {
	/* Every expert equally likely, with a small seeded bias as a trained gate has. */
	EPF_ROUTING_UNIFORM,
	/* Popularity of the n-th most popular expert proportional to 1/n; the seed shuffles them. */
	EPF_ROUTING_ZIPF,
	/* Every token goes to expert (seed mod experts), in entry 0; the others are not selected. */
	EPF_ROUTING_ONE_EXPERT,
	/* Uniform, but every third rank has no tokens and every third rank's experts get none. */
	EPF_ROUTING_EMPTY_RANKS,
};

/**
 * struct epf_routing - all that determines who sends what where.
 * @ranks: of the job; divides gate.experts evenly (consecutive experts live on one rank).
 * @tokens: tokens of each rank (ranks that EMPTY_RANKS leaves empty: none).
 * @unselected_ppm: probability in millionths, 0 to 1,000,000, that an entry is made
 *   EPF_NOT_SELECTED after the choice; the other weights of the token stay as they are.
 */
struct epf_routing {
	enum epf_routing_kind kind;
	uint32_t ranks;
	uint32_t tokens;
	uint32_t unselected_ppm;
	uint64_t seed;
	struct epf_gate gate;
};

/** epf_routing_parse() - kind from "uniform", "zipf", "one-expert", "empty-ranks", or -EINVAL. */
int epf_routing_parse(const char *name, enum epf_routing_kind *kind);

/** epf_routing_name() - the name of a kind; NULL for a number that is none. */
const char *epf_routing_name(enum epf_routing_kind kind);

/** epf_routing_tokens() - how many tokens a rank has. */
uint32_t epf_routing_tokens(const struct epf_routing *routing, uint32_t rank);

/** epf_routing_receives() - whether any token may choose an expert of this rank. */
bool epf_routing_receives(const struct epf_routing *routing, uint32_t rank);

/**
 * epf_routing_make() - topk_idx and weights of all tokens of one rank.
 * @topk_idx, @weights: [epf_routing_tokens()][topk], written only on success.
 * Allocates its working memory and frees it. The row of a token depends on the seed, the kind, the
 * gate, the ranks, the rank and the token alone, not on how many tokens there are.
 * Return: 0, -EINVAL or -ERANGE (see epf_gate_check(); ranks, kind, ppm, rank), -ENOMEM.
 */
int epf_routing_make(const struct epf_routing *routing, uint32_t rank, int64_t *topk_idx,
		     float *weights);

/**
 * epf_input_row() - the BF16 channels of one token.
 * @hidden: any multiple of 4. @row: [hidden] out.
 *
 * Magnitudes span 2^-9 to 2^7: eight binades around a centre that moves from block to block, so
 * that scales differ. One channel in 32 is zero, one in 32 is 2^-16 times smaller than the rest (it
 * underflows in FP8), one block of 128 in 64 is all zero. No NaN, no infinity, no subnormal.
 */
void epf_input_row(uint64_t seed, uint32_t rank, uint32_t token, uint32_t hidden, uint16_t *row);

#ifdef __cplusplus
}
#endif
#endif
