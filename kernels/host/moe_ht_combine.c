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

/* Finds this node's rows of one token. Returns how many. */
static unsigned node_rows(const struct epf_moe *m, uint32_t i, const struct moe_ranks *to,
			  uint32_t *rows, const uint16_t *of[EPF_MOE_TOPK_MAX])
{
	unsigned count = 0;

	for (uint32_t k = 0; k < to->n; k++)
		if (m->topo.node_of[to->rank[k]] == m->node)
			of[count++] = next_row(m, i, to->rank[k], rows);
	return count;
}

/* Waits for the rows of those ranks of this node that have any: rows[] by index in the node. */
static int wait_partial(struct epf_moe *m, uint32_t i, const uint32_t *rows)
{
	for (uint32_t k = 0; k < m->node_size; k++) {
		uint32_t rank = m->topo.members[m->topo.first[m->node] + k];
		int err;

		if (rank == m->cfg.rank || rows[k] == 0)
			continue;
		err = epf_moe_take_rows(m, rank, m->lay.sig_partial + i * m->lay.node_size_max + k,
					rows[k]);
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

/* Adds the rows of a source and sends the sums home, some while the next are added. */
static int send_sums(struct epf_moe *m, uint32_t i)
{
	uint32_t end = m->forward_rows[i], row = 0;
	struct moe_ranks to;
	int err = 0;

	memset(m->count, 0, m->node_size * sizeof(*m->count));
	for (uint32_t first = 0, n; first < end && !err; first += n) {
		n = epf_moe_batch_left(m, first, end);
		for (; row < first + n; row++) {
			const uint16_t *of[EPF_MOE_TOPK_MAX];
			unsigned count;

			epf_moe_row_targets(m, forwarded(m, i, row), &to);
			count = node_rows(m, i, &to, m->count, of);
			epf_num_sum((void *)(m->outbox + epf_moe_sums_at(m, i, row)), of, NULL,
				    count, m->cfg.hidden);
		}
		err = epf_moe_put_batch(
			m, m->served[i], m->outbox_region, epf_moe_sums_at(m, i, first),
			epf_moe_home_at(m, m->node, first), n, m->lay.sig_home + m->node);
	}
	return err;
}

/*
 * A node of one rank has nothing to add, and its rows go home as they are. They differ from sums of one row in the sign of zeros and the pattern of NaNs, which home makes the same by adding them to
 * +0.
 */
static int send_rows(struct epf_moe *m, uint32_t i)
{
	return epf_moe_put_rows(m, m->served[i], m->outbox_region,
				epf_moe_out_at(m, m->served[i], 0), epf_moe_home_at(m, m->node, 0),
				m->forward_rows[i], m->lay.sig_home + m->node);
}

static int reduce_source(struct epf_moe *m, uint32_t i)
{
	uint32_t *rows = m->count;
	struct moe_ranks to;
	int err;

	if (m->node_size == 1)
		return send_rows(m, i);
	memset(rows, 0, m->node_size * sizeof(*rows));
	for (uint32_t row = 0; row < m->forward_rows[i]; row++) {
		epf_moe_row_targets(m, forwarded(m, i, row), &to);
		count_members(m, &to, rows);
	}
	err = wait_partial(m, i, rows);
	return err ? err : send_sums(m, i);
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

/* Waits for the rows of this rank's tokens that come from its own node. */
static int wait_here(struct epf_moe *m)
{
	struct moe_ranks to;

	memset(m->count, 0, m->node_size * sizeof(*m->count));
	for (uint32_t t = 0; t < m->tokens; t++) {
		epf_moe_targets(m, m->expert + (size_t)t * m->cfg.topk, &to);
		count_members(m, &to, m->count);
	}
	return wait_partial(m, 0, m->count);
}

/* Adds the nodes of one token as soon as they are here: counters run on from token to token. */
static int add_token(struct epf_moe *m, const struct moe_ranks *to, uint32_t *across,
		     uint32_t *here, uint16_t *out)
{
	const uint16_t *of[EPF_MOE_TOPK_MAX], *here_of[EPF_MOE_TOPK_MAX];
	unsigned count = 0, n_here;

	for (uint32_t n = 0; n < m->lay.nodes; n++) {
		if (!epf_moe_on_node(m, to, n))
			continue;
		if (n != m->node) {
			int err = epf_moe_await_row(m, m->my_via[n].rank, m->lay.sig_home + n,
						    across[n]);

			if (err)
				return err;
			of[count++] = (const void *)(m->inbox + epf_moe_home_at(m, n, across[n]++));
			continue;
		}
		n_here = node_rows(m, 0, to, here, here_of);
		if (n_here > 1) /* the sum is rounded; a single row is as in send_rows() */
			epf_num_sum(m->sum, here_of, NULL, n_here, m->cfg.hidden);
		of[count++] = n_here > 1 ? m->sum : here_of[0];
	}
	epf_num_sum(out, of, NULL, count, m->cfg.hidden);
	return 0;
}

int epf_moe_ht_combine_sum(struct epf_moe *m, uint16_t *out)
{
	uint32_t *across = m->count;
	uint32_t *here = m->count + m->lay.nodes;
	struct moe_ranks to;
	int err = wait_here(m);

	memset(m->count, 0, (m->lay.nodes + m->node_size) * sizeof(*m->count));
	for (uint32_t t = 0; t < m->tokens && !err; t++) {
		epf_moe_targets(m, m->expert + (size_t)t * m->cfg.topk, &to);
		err = add_token(m, &to, across, here, out + (size_t)t * m->cfg.hidden);
	}
	for (uint32_t n = 0; n < m->lay.nodes && !err; n++)
		if (n != m->node)
			err = epf_moe_take_rows(m, m->my_via[n].rank, m->lay.sig_home + n,
						across[n]);
	return err;
}
