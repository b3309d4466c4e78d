/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data of a round of ep-bench moe: every process makes the whole job's routing and any row from
 * the seed, so that it can say alone what must arrive. Must depend on nothing but the options and
 * the number of the round.
 */
#include "bench/common/bench.h"
#include "bench/common/world.h"
#include "bench/moe/moe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int moe_data_init(struct moe_data *d, const struct moe_opts *o)
{
	struct epf_moe_config cfg;
	struct epf_moe_layout lay;
	char why[EPF_MOE_WHY_BYTES];
	size_t h = o->hidden;

	memset(d, 0, sizeof(*d));
	d->opts = o;
	d->node_of = calloc(o->ranks, sizeof(*d->node_of));
	d->node_of_rank = calloc(o->ranks, sizeof(*d->node_of_rank));
	d->tokens = calloc(o->ranks, sizeof(*d->tokens));
	d->idx = calloc(o->ranks, sizeof(*d->idx));
	d->weight = calloc(o->ranks, sizeof(*d->weight));
	d->x = calloc(h, sizeof(*d->x));
	d->deq = calloc(h, sizeof(*d->deq));
	d->y = calloc(h, sizeof(*d->y));
	d->payload = calloc(h, 2);
	d->payload2 = calloc(h, 2);
	d->acc = calloc(h, sizeof(*d->acc));
	d->y2 = calloc(h, sizeof(*d->y2));
	if (!d->node_of || !d->node_of_rank || !d->tokens || !d->idx || !d->weight || !d->x ||
	    !d->deq || !d->y || !d->payload || !d->payload2 || !d->acc || !d->y2) {
		bench_complain("no memory for the tables of %llu ranks",
			       (unsigned long long)o->ranks);
		return -ENOMEM;
	}
	bench_nodes((uint32_t)o->ranks, (uint32_t)o->nodes, d->node_of);
	for (uint32_t r = 0; r < o->ranks; r++)
		d->node_of_rank[r] = (int)d->node_of[r];
	cfg = moe_config(o, 0, d->node_of);
	if (epf_moe_plan(&cfg, &lay, why)) {
		bench_complain("%s", why);
		return -EINVAL;
	}
	d->local_experts = lay.local_experts;
	d->row_bytes = lay.row_bytes;
	d->payload_bytes = lay.payload_bytes;
	return 0;
}

static void free_routing(struct moe_data *d)
{
	for (uint32_t r = 0; d->idx && d->weight && r < d->opts->ranks; r++) {
		free(d->idx[r]);
		free(d->weight[r]);
		d->idx[r] = NULL;
		d->weight[r] = NULL;
	}
}

void moe_data_free(struct moe_data *d)
{
	if (!d->opts)
		return;
	free_routing(d);
	free(d->node_of);
	free(d->node_of_rank);
	free(d->tokens);
	free(d->idx);
	free(d->weight);
	free(d->x);
	free(d->deq);
	free(d->y);
	free(d->payload);
	free(d->payload2);
	free(d->acc);
	free(d->y2);
	memset(d, 0, sizeof(*d));
}

static struct epf_routing routing_of(const struct moe_opts *o, uint64_t seed)
{
	static const enum epf_routing_kind kind[] = {
		[MOE_AUTO] = EPF_ROUTING_UNIFORM,
		[MOE_UNIFORM] = EPF_ROUTING_UNIFORM,
		[MOE_ZIPF] = EPF_ROUTING_ZIPF,
		[MOE_ONE_EXPERT] = EPF_ROUTING_ONE_EXPERT,
		[MOE_EMPTY_RANKS] = EPF_ROUTING_EMPTY_RANKS,
		[MOE_DEEPSEEK] = EPF_ROUTING_UNIFORM,
	};
	struct epf_routing r = {
		.kind = kind[o->routing],
		.ranks = (uint32_t)o->ranks,
		.tokens = (uint32_t)o->tokens,
		.unselected_ppm = (uint32_t)(o->unselected * 1e6),
		.seed = seed,
		.gate = { .experts = (uint32_t)o->experts,
			  .topk = (uint32_t)o->topk,
			  .groups = o->routing == MOE_DEEPSEEK ? 8 : 0,
			  .topk_groups = o->routing == MOE_DEEPSEEK ? 4 : 0,
			  .routed_scale = 2.5f },
	};

	return r;
}

int moe_data_round(struct moe_data *d, uint32_t n)
{
	const struct moe_opts *o = d->opts;
	struct epf_routing routing;
	const char *why;

	d->seed = o->seed * UINT64_C(0x9e3779b97f4a7c15) + n;
	routing = routing_of(o, d->seed);
	free_routing(d);
	for (uint32_t r = 0; r < o->ranks; r++) {
		size_t tokens = epf_routing_tokens(&routing, r);
		int err;

		d->tokens[r] = (int)tokens;
		d->idx[r] = calloc(tokens * o->topk + 1, sizeof(**d->idx));
		d->weight[r] = calloc(tokens * o->topk + 1, sizeof(**d->weight));
		err = d->idx[r] && d->weight[r]
			      ? epf_routing_make(&routing, r, d->idx[r], d->weight[r])
			      : -ENOMEM;
		if (err) {
			bench_complain("the routing of rank %u cannot be made: %s", r,
				       strerror(-err));
			return err;
		}
	}
	d->job = (struct ref_job){ .ranks = (int)o->ranks,
				   .experts = (int)o->experts,
				   .topk = (int)o->topk,
				   .hidden = (int)o->hidden,
				   .node_of_rank = d->node_of_rank,
				   .tokens = d->tokens,
				   .topk_idx = (const int64_t *const *)d->idx,
				   .weights = (const float *const *)d->weight };
	why = ref_job_error(&d->job);
	if (why) {
		bench_complain("the reference refuses the job: %s", why);
		return -EINVAL;
	}
	return 0;
}

const uint16_t *moe_data_x(struct moe_data *d, uint32_t src, uint32_t token)
{
	epf_input_row(d->seed, src, token, (uint32_t)d->opts->hidden, d->x);
	return d->x;
}

void moe_expert(uint32_t expert, const uint16_t *x, uint32_t hidden, uint16_t *y)
{
	for (uint32_t c = 0; c < hidden; c++) {
		uint16_t sign = (uint16_t)(((expert ^ c) & 1u) << 15);
		uint16_t up = (uint16_t)(((expert * 7 + c * 3) & 3u) << 7);

		/* Zero stays zero; the exponents in use are far from both ends. */
		y[c] = (uint16_t)((x[c] & 0x7f80u) ? (x[c] ^ sign) + up : x[c]);
	}
}

/* Has a token an expert on one of the ranks first..end-1? */
static bool wants(const struct moe_data *d, const int64_t *idx, uint32_t first, uint32_t end)
{
	for (uint32_t k = 0; k < d->opts->topk; k++)
		if (idx[k] >= 0 && (uint64_t)idx[k] >= (uint64_t)first * d->local_experts &&
		    (uint64_t)idx[k] < (uint64_t)end * d->local_experts)
			return true;
	return false;
}

uint32_t moe_data_count(const struct moe_data *d, uint32_t src, uint32_t first_rank,
			uint32_t end_rank)
{
	uint32_t n = 0;

	for (int t = 0; t < d->tokens[src]; t++)
		n += wants(d, d->idx[src] + (size_t)t * d->opts->topk, first_rank, end_rank);
	return n;
}

uint32_t moe_data_count_node(const struct moe_data *d, uint32_t src, uint32_t node)
{
	uint32_t first = 0;
	uint32_t end;

	while (d->node_of[first] != node)
		first++;
	end = first;
	while (end < d->opts->ranks && d->node_of[end] == node)
		end++;
	return moe_data_count(d, src, first, end);
}
