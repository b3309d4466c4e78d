/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of a kernel object: a pure function of its configuration, the same on every rank, so
 * that a sender knows every offset and signal of its peers without asking. Called by
 * epf_moe_open() and by whoever wants sizes beforehand. Must never depend on the rank.
 */
#include "kernels/host/moe_priv.h"

#include "kernels/host/num.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define ALIGN_ROW  16u
#define ALIGN_AREA 4096u
/* Offsets of the wide command end here. */
#define AREA_MAX (UINT64_C(1) << 47)

static uint32_t up(uint32_t v, uint32_t to)
{
	return (v + to - 1) / to * to;
}

static int refuse(char *why, int err, const char *what, uint64_t value, const char *range)
{
	if (why)
		snprintf(why, EPF_MOE_WHY_BYTES, "%s is %llu, must be %s", what,
			 (unsigned long long)value, range);
	return err;
}

static int check_numbers(const struct epf_moe_config *c, char *why)
{
	if (c->mode != EPF_MOE_LL && c->mode != EPF_MOE_HT)
		return refuse(why, -EINVAL, "mode", c->mode, "ll (0) or ht (1)");
	if (c->ranks < 1 || c->ranks > EPF_MOE_RANKS_MAX)
		return refuse(why, -EINVAL, "ranks", c->ranks, "1 to 4096");
	if (c->rank >= c->ranks)
		return refuse(why, -EINVAL, "rank", c->rank, "below ranks");
	if (c->tokens_max > EPF_MOE_TOKENS_MAX)
		return refuse(why, -EINVAL, "tokens", c->tokens_max, "0 to 1048576");
	if (c->hidden < 128 || c->hidden > EPF_MOE_HIDDEN_MAX || c->hidden % 128)
		return refuse(why, -EINVAL, "hidden", c->hidden,
			      "a multiple of 128 from 128 to 65536");
	if (c->topk < 1 || c->topk > EPF_MOE_TOPK_MAX)
		return refuse(why, -EINVAL, "topk", c->topk, "1 to 16");
	if (c->experts < 1 || c->experts > EPF_MOE_EXPERTS_MAX || c->experts % c->ranks)
		return refuse(why, -EINVAL, "experts", c->experts,
			      "a multiple of ranks from 1 to 65536");
	return 0;
}

/* Counts nodes and finds the sizes that all ranks' areas share. */
static int check_nodes(const struct epf_moe_config *c, struct epf_moe_layout *l, char *why)
{
	uint32_t *size = calloc(c->ranks, sizeof(*size));
	int err = 0;

	if (!size)
		return refuse(why, -ENOMEM, "memory for a table of ranks", c->ranks, "available");
	l->nodes = 0;
	for (uint32_t r = 0; r < c->ranks && !err; r++) {
		uint32_t n = c->node_of[r];

		if (n > l->nodes)
			err = refuse(why, -EINVAL, "node number of a rank", n,
				     "numbered by lowest rank without gaps");
		else if (n == l->nodes)
			l->nodes++;
		if (!err)
			size[n]++;
	}
	if (!err)
		l->sources_max = epf_moe_sources_max(size, l->nodes, &l->node_size_max);
	free(size);
	return err;
}

/* Appends an area of a * b * c * d bytes; saturates at AREA_MAX. */
static uint64_t area(uint64_t *end, uint64_t a, uint64_t b, uint64_t rows, uint64_t row_bytes)
{
	uint64_t at = *end;
	__uint128_t bytes = (__uint128_t)(a * b) * rows * row_bytes;

	bytes = (bytes + ALIGN_AREA - 1) / ALIGN_AREA * ALIGN_AREA + at;
	*end = bytes > AREA_MAX ? AREA_MAX : (uint64_t)bytes;
	return at;
}

static uint32_t signals(uint32_t *end, uint32_t count)
{
	uint32_t at = *end;

	*end += count;
	return at;
}

static void place(const struct epf_moe_config *c, struct epf_moe_layout *l)
{
	uint64_t t = c->tokens_max;
	uint64_t out = 0;
	uint64_t in = 0;
	uint32_t sig = 0;
	bool ht = c->mode == EPF_MOE_HT;

	l->stage = area(&out, 1, 1, t, l->row_bytes);
	l->out = area(&out, 1, l->blocks, t, l->out_row_bytes);
	l->sums = area(&out, 1, ht ? l->sources_max : 0, t, l->out_row_bytes);
	l->outbox_bytes = out ? out : ALIGN_AREA;

	l->recv = area(&in, 2, l->blocks, t, l->row_bytes);
	l->forward = area(&in, 2, ht ? l->sources_max : 0, t, l->row_bytes);
	l->partial = area(&in, ht ? l->sources_max : 0, l->node_size_max, t, l->out_row_bytes);
	l->home = area(&in, 1, ht ? l->nodes : c->topk, t, l->out_row_bytes);
	l->inbox_bytes = in ? in : ALIGN_AREA;

	l->sig_recv = signals(&sig, 2 * l->blocks);
	l->sig_forward = signals(&sig, ht ? 2 * l->sources_max : 0);
	l->sig_partial = signals(&sig, ht ? l->sources_max * l->node_size_max : 0);
	l->sig_home = signals(&sig, ht ? l->nodes : c->ranks);
	l->signals = sig;
}

int epf_moe_plan(const struct epf_moe_config *cfg, struct epf_moe_layout *out, char *why)
{
	struct epf_moe_layout l = { 0 };
	int err = check_numbers(cfg, why);

	if (!err)
		err = check_nodes(cfg, &l, why);
	if (err)
		return err;
	l.local_experts = cfg->experts / cfg->ranks;
	l.blocks = cfg->mode == EPF_MOE_LL ? l.local_experts * cfg->ranks : cfg->ranks;
	l.head_bytes = up((uint32_t)sizeof(struct epf_moe_head) + 8u * cfg->topk, ALIGN_ROW);
	l.payload_bytes = (uint32_t)(cfg->fp8 ? epf_num_fp8_bytes(cfg->hidden)
					      : epf_num_bf16_bytes(cfg->hidden));
	l.row_bytes = l.head_bytes + up(l.payload_bytes, ALIGN_ROW);
	l.out_row_bytes = 2 * cfg->hidden;
	place(cfg, &l);
	if (l.inbox_bytes >= AREA_MAX || l.outbox_bytes >= AREA_MAX)
		return refuse(why, -EOVERFLOW, "size of the receive area in bytes", l.inbox_bytes,
			      "below 2^47: fewer tokens, experts or ranks");
	*out = l;
	return 0;
}
