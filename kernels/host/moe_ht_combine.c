/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, the way back: each rank pushes its output rows to the one that serves their
 * source on this node; that one adds them in ascending order of rank, rounds, and pushes the sums
 * home; home adds the nodes in ascending order. Called by moe_common.c.
 *
 * Rows of a (source, rank) pair lie next to each other at both ends, so they travel many to a
 * command. A rank's own rows are added where they lie.
 */
#include "kernels/host/moe_priv.h"
#include "kernels/host/num.h"

#include <string.h>

int epf_moe_ht_combine_push(struct epf_moe *m)
{
	uint32_t member = m->topo.index_in[m->cfg.rank];

	for (uint32_t i = 0; i < m->cfg.ranks; i++) {
		uint32_t source = (m->cfg.rank + i) % m->cfg.ranks;
		const struct moe_via *via = &m->via[source];
		int err;

		if (via->rank == m->cfg.rank)
			continue;
		err = epf_moe_put_rows(
			m, via->rank, m->outbox_region, epf_moe_out_at(m, source, 0),
			epf_moe_partial_at(m, via->source, member, 0), m->block_rows[source],
			m->lay.sig_partial + via->source * m->lay.node_size_max + member);
		if (err)
			return err;
	}
	return 0;
}

/* The next row of a rank of this node for the i-th served source, wherever it lies. */
static const uint16_t *next_row(const struct epf_moe *m, uint32_t i, uint32_t rank, uint32_t *rows)
{
	uint32_t member = m->topo.index_in[rank];
	uint32_t row = rows[member]++;

	if (rank == m->cfg.rank)
		return epf_moe_out(m, m->served[i], row);
	return (const void *)(m->inbox + epf_moe_partial_at(m, i, member, row));
}

/* Adds this node's rows of one token into BF16 `sum`. */
static void add_node(struct epf_moe *m, uint32_t i, const struct moe_ranks *to, uint32_t *rows,
		     uint16_t *sum)
{
	const uint16_t *of[EPF_MOE_TOPK_MAX];
	unsigned count = 0;

	for (uint32_t k = 0; k < to->n; k++)
		if (m->topo.node_of[to->rank[k]] == m->node)
			of[count++] = next_row(m, i, to->rank[k], rows);
	epf_num_sum(sum, of, NULL, count, m->cfg.hidden);
}

/* Waits for the rows of those ranks of this node that have any: rows[] by index in the node. */
static int wait_partial(struct epf_moe *m, uint32_t i, const uint32_t *rows)
{
	for (uint32_t k = 0; k < m->node_size; k++) {
		uint32_t rank = m->topo.members[m->topo.first[m->node] + k];
		int err;

		if (rank == m->cfg.rank || rows[k] == 0)
			continue;
		err = epf_moe_take(m, rank, m->lay.sig_partial + i * m->lay.node_size_max + k, 0,
				   NULL);
		if (err)
			return err;
	}
	return 0;
}

static void count_members(const struct epf_moe *m, const struct moe_ranks *to, uint32_t *rows)
{
	for (uint32_t k = 0; k < to->n; k++)
		if (m->topo.node_of[to->rank[k]] == m->node)
			rows[m->topo.index_in[to->rank[k]]]++;
}

static const struct epf_moe_head *forwarded(const struct epf_moe *m, uint32_t i, uint32_t row)
{
	return (const void *)(m->inbox + epf_moe_forward_at(m, moe_set(m->round), i, row));
}

static int reduce_source(struct epf_moe *m, uint32_t i)
{
	uint32_t *rows = m->count;
	uint32_t source = m->served[i];
	struct moe_ranks to;
	int err;

	memset(rows, 0, m->node_size * sizeof(*rows));
	for (uint32_t row = 0; row < m->forward_rows[i]; row++) {
		epf_moe_row_targets(m, forwarded(m, i, row), &to);
		count_members(m, &to, rows);
	}
	err = wait_partial(m, i, rows);
	if (err)
		return err;
	memset(rows, 0, m->node_size * sizeof(*rows));
	for (uint32_t row = 0; row < m->forward_rows[i]; row++) {
		epf_moe_row_targets(m, forwarded(m, i, row), &to);
		add_node(m, i, &to, rows, (void *)(m->outbox + epf_moe_sums_at(m, i, row)));
	}
	return epf_moe_put_rows(m, source, m->outbox_region, epf_moe_sums_at(m, i, 0),
				epf_moe_home_at(m, m->node, 0), m->forward_rows[i],
				m->lay.sig_home + m->node);
}

int epf_moe_ht_combine_reduce(struct epf_moe *m)
{
	for (uint32_t i = 1; i < m->served_count; i++) {
		int err = reduce_source(m, i);

		if (err)
			return err;
	}
	return 0;
}

/* Waits for everything that belongs to this rank's tokens. */
static int wait_home(struct epf_moe *m)
{
	uint32_t *across = m->count;
	uint32_t *here = m->count + m->lay.nodes;
	struct moe_ranks to;
	int err;

	memset(m->count, 0, (m->lay.nodes + m->node_size) * sizeof(*m->count));
	for (uint32_t t = 0; t < m->tokens; t++) {
		epf_moe_targets(m, m->expert + (size_t)t * m->cfg.topk, &to);
		count_members(m, &to, here);
		for (uint32_t n = 0; n < m->lay.nodes; n++)
			across[n] += epf_moe_on_node(m, &to, n);
	}
	err = wait_partial(m, 0, here);
	for (uint32_t n = 0; n < m->lay.nodes && !err; n++)
		if (n != m->node && across[n])
			err = epf_moe_take(m, m->my_via[n].rank, m->lay.sig_home + n, 0, NULL);
	return err;
}

/* Adds the nodes of one token: counters run on from token to token. */
static void add_token(struct epf_moe *m, const struct moe_ranks *to, uint32_t *across,
		      uint32_t *here, uint16_t *out)
{
	const uint16_t *of[EPF_MOE_TOPK_MAX]; /* no more nodes than ranks, nor ranks than experts */
	unsigned count = 0;

	for (uint32_t n = 0; n < m->lay.nodes; n++) {
		if (!epf_moe_on_node(m, to, n))
			continue;
		if (n == m->node) {
			add_node(m, 0, to, here, m->sum);
			of[count++] = m->sum;
		} else {
			of[count++] = (const void *)(m->inbox + epf_moe_home_at(m, n, across[n]++));
		}
	}
	epf_num_sum(out, of, NULL, count, m->cfg.hidden);
}

int epf_moe_ht_combine_sum(struct epf_moe *m, uint16_t *out)
{
	uint32_t *across = m->count;
	uint32_t *here = m->count + m->lay.nodes;
	struct moe_ranks to;
	int err = wait_home(m);

	if (err)
		return err;
	memset(m->count, 0, (m->lay.nodes + m->node_size) * sizeof(*m->count));
	for (uint32_t t = 0; t < m->tokens; t++) {
		epf_moe_targets(m, m->expert + (size_t)t * m->cfg.topk, &to);
		add_token(m, &to, across, here, out + (size_t)t * m->cfg.hidden);
	}
	return 0;
}
