/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes, and the memory through which rows cross between them. Slow path, collective. */
#include "kernels/ht/ht.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static uint32_t up(uint64_t bytes, uint32_t unit)
{
	return (uint32_t)((bytes + unit - 1) / unit * unit);
}

struct ht_record ht_record_of(const struct epf_ht_row *row, uint32_t heads)
{
	struct ht_record r = { 0 };

	r.index = row->bytes;
	r.scales = r.index + (heads ? row->topk * 8u : 0);
	r.weights = r.scales + row->scale_words * 4u;
	r.head = r.weights + row->topk * 4u;
	r.bytes = up(r.head + heads * 4u, HT_VEC);
	return r;
}

struct ht_plan ht_plan_of(const struct epf_ht *ht, uint32_t tokens)
{
	uint64_t ranks = ht->ll->ranks, nodes = ht->nodes, max = ht->node_max;
	uint64_t crossing = nodes > 1 ? (uint64_t)tokens * nodes * 4u : 0;
	struct ht_plan p = { .out = HT_VEC };

	p.in = p.out + nodes * sizeof(struct ht_leg);
	p.totals = p.in + ranks * sizeof(struct ht_leg);
	p.parts = p.totals + max * max * 4u;
	p.place = p.parts + ranks * max * 4u;
	p.order = p.place + crossing;
	p.bytes = p.order + crossing;
	return p;
}

uint64_t epf_ht_plan_bytes(const struct epf_ht *ht, uint32_t tokens)
{
	return ht_plan_of(ht, tokens).bytes;
}

uint32_t epf_ht_nodes(const struct epf_ht *ht)
{
	return ht->nodes;
}

uint32_t epf_ht_node_max(const struct epf_ht *ht)
{
	return ht->node_max;
}

/* ---- nodes ---- */

static int reaches(const uint8_t *all, uint32_t ranks, uint32_t from, uint32_t to)
{
	return all[from * ranks + to];
}

/* Ranks of one node reach each other, and the same others. */
static int check_reach(const uint8_t *all, uint32_t ranks)
{
	for (uint32_t a = 0; a < ranks; a++)
		for (uint32_t b = 0; b < ranks; b++) {
			if (reaches(all, ranks, a, b) != reaches(all, ranks, b, a))
				return ll_fail(
					-EINVAL,
					"rank %u stores to the memory of rank %u, and not the other way round: high throughput needs both",
					reaches(all, ranks, a, b) ? a : b,
					reaches(all, ranks, a, b) ? b : a);
			if (reaches(all, ranks, a, b) &&
			    memcmp(all + a * ranks, all + b * ranks, ranks) != 0)
				return ll_fail(
					-EINVAL,
					"ranks %u and %u store to each other's memory, but not to that of the same other ranks: high throughput needs groups of ranks that all do",
					a, b);
		}
	return 0;
}

/* Numbers nodes by their lowest rank. */
static void number_nodes(struct epf_ht *ht, const uint8_t *all, struct ht_node *nodes,
			 uint32_t *members)
{
	uint32_t ranks = ht->ll->ranks, listed = 0;

	for (uint32_t r = 0; r < ranks; r++) {
		struct ht_node *n = &nodes[ht->nodes];
		uint32_t lowest = 0;

		while (!reaches(all, ranks, r, lowest))
			lowest++;
		if (lowest != r)
			continue;
		n->first = listed;
		n->size = 0;
		for (uint32_t m = r; m < ranks; m++)
			if (reaches(all, ranks, r, m)) {
				ht->peers[m].node = ht->nodes;
				ht->peers[m].index = n->size++;
				members[listed++] = m;
			}
		ht->node_max = n->size > ht->node_max ? n->size : ht->node_max;
		ht->nodes++;
	}
	ht->node = ht->peers[ht->ll->rank].node;
}

int ht_check_ranks(uint32_t ranks, uint32_t node_max)
{
	if (ranks > EPF_HT_RANKS_MAX)
		return ll_fail(-EINVAL, "%u ranks: high throughput serves at most %u", ranks,
			       EPF_HT_RANKS_MAX);
	if (node_max > EPF_HT_NODE_MAX)
		return ll_fail(
			-EINVAL,
			"%u ranks reach each other's memory: high throughput serves at most %u of a node",
			node_max, EPF_HT_NODE_MAX);
	return 0;
}

int ht_find_nodes(struct epf_ht *ht, struct ht_node *nodes, uint32_t *members)
{
	uint32_t ranks = ht->ll->ranks;
	uint8_t *mine = calloc(ranks, 1), *all = calloc(ranks, ranks);
	int err = mine && all ? 0 : ll_fail(-ENOMEM, "no memory for %u ranks", ranks);

	for (uint32_t r = 0; r < ranks && !err; r++)
		mine[r] = r == ht->ll->rank || ht->opts.peers[r];
	if (!err) {
		err = epf_allgather(ht->ll->ep, mine, ranks, all);
		if (err)
			err = ll_fail_fabric(err, "finding the nodes");
	}
	if (!err)
		err = check_reach(all, ranks);
	if (!err)
		number_nodes(ht, all, nodes, members);
	if (!err)
		err = ht_check_ranks(ranks, ht->node_max);
	free(mine);
	free(all);
	return err;
}

/* ---- memory ---- */

void ht_area_end(struct epf_ht *ht, struct ht_area *area)
{
	if (area->at)
		ht->ll->dev->free(ht->ll, area->at);
	area->at = NULL;
	area->bytes = 0;
}

static int fabric(int err, const char *doing)
{
	return err ? ll_fail_fabric(err, doing) : 0;
}

int ht_area_make(struct epf_ht *ht, struct ht_area *area, uint64_t bytes)
{
	struct epf_ll *ll = ht->ll;
	int err;

	if (bytes <= area->bytes)
		return 0;
	if (area->at) {
		/* Nothing is on its way to it: the caller says so, and all ranks have come here. */
		err = fabric(epf_barrier(ll->ep), "meeting the other ranks");
		if (!err)
			err = fabric(epf_region_withdraw(ll->ep, area->region, 0),
				     "replacing the memory between nodes");
		if (err)
			return err;
		ht_area_end(ht, area);
	}
	err = ll->dev->alloc(ll, bytes, &area->at);
	if (!err)
		err = ll->dev->expose(ll, area->at, bytes, &area->region);
	if (!err)
		err = fabric(epf_exchange(ll->ep), "publishing the memory between nodes");
	if (!err)
		area->bytes = bytes;
	return err;
}

uint64_t epf_ht_lacks(const struct epf_ht *ht, const struct epf_ht_row *row, uint32_t across)
{
	uint64_t bytes = 2 * (uint64_t)across * ht_record_of(row, ht->node_max).bytes;

	if (ht->nodes == 1 || bytes <= ht->net.bytes)
		return 0;
	/* In steps, so that batches of different sizes do not replace it again and again. */
	return bytes < 2 * ht->net.bytes ? 2 * ht->net.bytes : bytes;
}

int epf_ht_reserve(struct epf_ht *ht, const struct epf_ht_row *row, uint32_t across)
{
	uint64_t words[2];
	int err = ht_area_make(ht, &ht->net, epf_ht_lacks(ht, row, across));

	if (err)
		return err;
	words[0] = (uintptr_t)ht->net.at;
	words[1] = ht->net.region;
	return ht->ll->dev->copy(ht->ll, (uint8_t *)ht->words + offsetof(struct ht_state, net),
				 words, sizeof(words));
}
