/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank is where, and which rank forwards for which. Called when a kernel object is opened. Pure
 * arithmetic on node sizes: every rank must come to the same answers without a message.
 *
 * On a node of m ranks, the rank with index f serves the sources of every other node whose index is
 * f modulo m, numbered by ascending node, then ascending rank, from 1; number 0 is itself.
 */
#include "kernels/host/moe_priv.h"

#include <errno.h>
#include <stdlib.h>

/* How many of the indices 0..size-1 are f modulo m. */
static uint32_t served_of(uint32_t size, uint32_t f, uint32_t m)
{
	return size > f ? (size - 1 - f) / m + 1 : 0;
}

uint32_t epf_moe_sources_max(const uint32_t *node_size, uint32_t nodes, uint32_t *size_max)
{
	uint32_t most = 1;
	uint32_t largest = 0;

	for (uint32_t d = 0; d < nodes; d++) {
		uint32_t sum = 1;

		for (uint32_t n = 0; n < nodes; n++)
			if (n != d)
				sum += served_of(node_size[n], 0, node_size[d]);
		if (sum > most)
			most = sum;
		if (node_size[d] > largest)
			largest = node_size[d];
	}
	*size_max = largest;
	return most;
}

static uint32_t size_of(const struct moe_topo *t, uint32_t node)
{
	return t->first[node + 1] - t->first[node];
}

/* Who serves `source` on another node, and as which of its sources. */
static struct moe_via via_on(const struct moe_topo *t, uint32_t source, uint32_t node)
{
	uint32_t m = size_of(t, node);
	uint32_t f = t->index_in[source] % m;
	struct moe_via v = { .rank = t->members[t->first[node] + f],
			     .source = 1 + t->index_in[source] / m };

	for (uint32_t n = 0; n < t->node_of[source]; n++)
		if (n != node)
			v.source += served_of(size_of(t, n), f, m);
	return v;
}

static void fill_members(struct moe_topo *t, uint32_t ranks, uint32_t nodes)
{
	for (uint32_t r = 0; r < ranks; r++)
		t->first[t->node_of[r] + 1]++;
	for (uint32_t n = 0; n < nodes; n++)
		t->first[n + 1] += t->first[n];
	for (uint32_t r = 0; r < ranks; r++) {
		uint32_t n = t->node_of[r];
		uint32_t i = 0;

		/* index_in of the rank before on the same node plus one: members are filled in order. */
		for (uint32_t k = t->first[n]; k < t->first[n + 1] && t->members[k] != UINT32_MAX;
		     k++)
			i++;
		t->index_in[r] = i;
		t->members[t->first[n] + i] = r;
	}
}

static void fill_ways(struct epf_moe *m)
{
	const struct moe_topo *t = &m->topo;
	uint32_t nodes = m->lay.nodes;
	uint32_t f = t->index_in[m->cfg.rank];

	m->served[0] = m->cfg.rank;
	m->served_count = 1;
	for (uint32_t n = 0; n < nodes; n++) {
		if (n == m->node)
			continue;
		m->my_via[n] = via_on(t, m->cfg.rank, n);
		for (uint32_t i = f; i < size_of(t, n); i += m->node_size)
			m->served[m->served_count++] = t->members[t->first[n] + i];
	}
	m->my_via[m->node] = (struct moe_via){ .rank = m->cfg.rank, .source = 0 };
	for (uint32_t s = 0; s < m->cfg.ranks; s++)
		m->via[s] = t->node_of[s] == m->node ? (struct moe_via){ .rank = s, .source = 0 }
						     : via_on(t, s, m->node);
}

int epf_moe_topo_init(struct epf_moe *m)
{
	struct moe_topo *t = &m->topo;
	uint32_t ranks = m->cfg.ranks;
	uint32_t nodes = m->lay.nodes;

	t->node_of = calloc(ranks, sizeof(*t->node_of));
	t->index_in = calloc(ranks, sizeof(*t->index_in));
	t->first = calloc(nodes + 1u, sizeof(*t->first));
	t->members = calloc(ranks, sizeof(*t->members));
	m->my_via = calloc(nodes, sizeof(*m->my_via));
	m->via = calloc(ranks, sizeof(*m->via));
	m->served = calloc(ranks, sizeof(*m->served));
	m->forward_rows = calloc(ranks, sizeof(*m->forward_rows));
	if (!t->node_of || !t->index_in || !t->first || !t->members || !m->my_via || !m->via ||
	    !m->served || !m->forward_rows)
		return -ENOMEM; /* the caller frees */
	for (uint32_t r = 0; r < ranks; r++) {
		t->node_of[r] = m->cfg.node_of[r];
		t->members[r] = UINT32_MAX;
	}
	fill_members(t, ranks, nodes);
	m->node = t->node_of[m->cfg.rank];
	m->node_size = size_of(t, m->node);
	fill_ways(m);
	return 0;
}

void epf_moe_topo_free(struct epf_moe *m)
{
	free(m->topo.node_of);
	free(m->topo.index_in);
	free(m->topo.first);
	free(m->topo.members);
	free(m->my_via);
	free(m->via);
	free(m->served);
	free(m->forward_rows);
}
