/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, the way out: the source pushes a row once to each node that wants it, the
 * forwarder there pushes it on to each of its node's ranks that want it. Called by moe_common.c.
 *
 * Rows of a (source, rank) pair keep ascending token order whichever way they go, so both ends
 * count to the same row number without a message. Every rank hears once a round about every
 * source: from the source itself on its own node, from the forwarder on others.
 */
#include "kernels/host/moe_priv.h"

#include <string.h>

/* Pushes a row to every rank of this node that wants it; counts per index in the node. */
static int fan_out(struct epf_moe *m, const struct moe_ranks *to, uint32_t source, uint32_t region,
		   uint64_t from, uint32_t *rows)
{
	uint32_t set = moe_set(m->round);

	for (uint32_t i = 0; i < to->n; i++) {
		uint32_t rank = to->rank[i];
		uint32_t index = m->topo.index_in[rank];
		int err;

		if (m->topo.node_of[rank] != m->node)
			continue;
		err = epf_moe_put_row(
			m, rank, region, from, epf_moe_recv_at(m, set, source, rows[index]),
			m->lay.row_bytes, m->lay.sig_recv + set * m->lay.blocks + source);
		if (err)
			return err;
		rows[index]++;
	}
	return 0;
}

/* Notifies every rank of this node how many rows of `source` it received. */
static int close_blocks(struct epf_moe *m, uint32_t source, const uint32_t *rows)
{
	uint32_t set = moe_set(m->round);

	for (uint32_t i = 0; i < m->node_size; i++) {
		int err = epf_moe_signal(m, m->topo.members[m->topo.first[m->node] + i],
					 m->lay.sig_recv + set * m->lay.blocks + source,
					 rows[i] + 1ull, rows[i]);

		if (err)
			return err;
	}
	return 0;
}

/* One token to the forwarder of every other node that wants it. */
static int send_across(struct epf_moe *m, const struct moe_ranks *to, uint64_t from, uint32_t *rows)
{
	uint32_t set = moe_set(m->round);

	for (uint32_t n = 0; n < m->lay.nodes; n++) {
		const struct moe_via *via = &m->my_via[n];
		int err;

		if (n == m->node || !epf_moe_on_node(m, to, n))
			continue;
		err = epf_moe_put_row(m, via->rank, m->outbox_region, from,
				      epf_moe_forward_at(m, set, via->source, rows[n]),
				      m->lay.row_bytes,
				      m->lay.sig_forward + set * m->lay.sources_max + via->source);
		if (err)
			return err;
		rows[n]++;
	}
	return 0;
}

static uint64_t stage_at(const struct epf_moe *m, uint32_t token)
{
	return m->lay.stage + (uint64_t)token * m->lay.row_bytes;
}

int epf_moe_ht_send(struct epf_moe *m, const struct epf_moe_tokens *in)
{
	uint32_t set = moe_set(m->round);
	uint32_t *across = m->count;              /* per node */
	uint32_t *here = m->count + m->lay.nodes; /* per index in this node */
	struct moe_ranks to;
	int err = 0;

	memset(m->count, 0, (m->lay.nodes + m->node_size) * sizeof(*m->count));
	for (uint32_t t = 0; t < m->tokens && !err; t++) {
		epf_moe_stage_row(m, in, t);
		epf_moe_targets(m, m->expert + (size_t)t * m->cfg.topk, &to);
		err = send_across(m, &to, stage_at(m, t), across);
	}
	for (uint32_t n = 0; n < m->lay.nodes && !err; n++) {
		const struct moe_via *via = &m->my_via[n];

		if (n != m->node)
			err = epf_moe_signal(m, via->rank,
					     m->lay.sig_forward + set * m->lay.sources_max +
						     via->source,
					     across[n] + 1ull, across[n]);
	}
	/* The way between nodes is the longer one: what stays on this one comes behind. */
	for (uint32_t t = 0; t < m->tokens && !err; t++) {
		epf_moe_targets(m, m->expert + (size_t)t * m->cfg.topk, &to);
		err = fan_out(m, &to, m->cfg.rank, m->outbox_region, stage_at(m, t), here);
	}
	return err ? err : close_blocks(m, m->cfg.rank, here);
}

static int forward_source(struct epf_moe *m, uint32_t i)
{
	uint32_t set = moe_set(m->round);
	uint32_t source = m->served[i];
	struct moe_ranks to;
	int err;

	memset(m->count, 0, m->node_size * sizeof(*m->count));
	for (uint32_t row = 0; row < m->forward_rows[i]; row++) {
		uint64_t from = epf_moe_forward_at(m, set, i, row);
		const struct epf_moe_head *head = (const void *)(m->inbox + from);

		err = epf_moe_check_row(m, head, source);
		if (err)
			return err;
		epf_moe_row_targets(m, head, &to);
		err = fan_out(m, &to, source, m->inbox_region, from, m->count);
		if (err)
			return err;
	}
	return close_blocks(m, source, m->count);
}

int epf_moe_ht_forward(struct epf_moe *m)
{
	uint32_t set = moe_set(m->round);

	for (uint32_t i = 1; i < m->served_count; i++) {
		int err = epf_moe_take(m, m->served[i],
				       m->lay.sig_forward + set * m->lay.sources_max + i,
				       m->cfg.tokens_max, &m->forward_rows[i]);

		if (!err)
			err = forward_source(m, i);
		if (err)
			return err;
	}
	return 0;
}
