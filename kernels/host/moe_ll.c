/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low latency: rows go straight to the block of (expert, source) at the expert's rank, results
 * straight back to slot [token][k] at home. Called by moe_common.c. One counted signal closes each
 * block, also an empty one; it says how many rows there are.
 */
#include "kernels/host/moe_priv.h"
#include "kernels/host/num.h"

#include <errno.h>
#include <string.h>

/* The block of (global expert, source) at the expert's rank. */
static uint32_t block_of(const struct epf_moe *m, uint32_t expert, uint32_t source)
{
	return expert % m->lay.local_experts * m->cfg.ranks + source;
}

/* Makes the rows and sends those for other ranks, or copies those that stay here (`own`), which are made by then. */
static int send_rows(struct epf_moe *m, const struct epf_moe_tokens *in, bool own)
{
	uint32_t set = moe_set(m->round);
	uint32_t *rows = m->count; /* per global expert: blocks = local_experts * ranks = experts */

	for (uint32_t i = 0; i < m->tokens * m->cfg.topk; i++) {
		uint32_t e = (uint32_t)m->expert[i], block, rank;
		int err;

		if (!own && i % m->cfg.topk == 0)
			epf_moe_stage_row(m, in, i / m->cfg.topk);
		if (m->expert[i] < 0)
			continue;
		rank = e / m->lay.local_experts;
		if ((rank == m->cfg.rank) != own)
			continue;
		block = block_of(m, e, m->cfg.rank);
		err = epf_moe_put_row(m, rank, m->outbox_region,
				      m->lay.stage + (uint64_t)(i / m->cfg.topk) * m->lay.row_bytes,
				      epf_moe_recv_at(m, set, block, rows[e]), m->lay.row_bytes,
				      m->lay.sig_recv + set * m->lay.blocks + block);
		if (err)
			return err;
		rows[e]++;
	}
	return 0;
}

/* Closes the blocks of a rank's experts. */
static int close_blocks(struct epf_moe *m, uint32_t rank)
{
	uint32_t base = m->lay.sig_recv + moe_set(m->round) * m->lay.blocks;

	for (uint32_t i = 0; i < m->lay.local_experts; i++) {
		uint32_t e = rank * m->lay.local_experts + i;
		int err = epf_moe_signal(m, rank, base + block_of(m, e, m->cfg.rank),
					 m->count[e] + 1ull, m->count[e]);

		if (err)
			return err;
	}
	return 0;
}

int epf_moe_ll_send(struct epf_moe *m, const struct epf_moe_tokens *in)
{
	int err;

	memset(m->count, 0, m->cfg.experts * sizeof(*m->count));
	err = send_rows(m, in, false);
	/* Starting after this rank, so that not everybody begins with rank 0. */
	for (uint32_t i = 1; i < m->cfg.ranks && !err; i++)
		err = close_blocks(m, (m->cfg.rank + i) % m->cfg.ranks);
	if (!err)
		err = send_rows(m, in, true);
	return err ? err : close_blocks(m, m->cfg.rank);
}

/* Sends one output row home; the slot follows from the row's own list of experts. A row of this rank's own token stays where it is: combine_recv adds it from there. */
static int send_home(struct epf_moe *m, uint32_t block, uint32_t row)
{
	uint32_t source = block % m->cfg.ranks;
	int32_t expert = (int32_t)(m->cfg.rank * m->lay.local_experts + block / m->cfg.ranks);
	const struct epf_moe_head *head = epf_moe_row(m, block, row);
	const int32_t *list = epf_moe_row_expert(head);
	int err = epf_moe_check_row(m, head, source);

	for (uint32_t k = 0; k < m->cfg.topk && !err; k++) {
		if (list[k] != expert)
			continue;
		if (source == m->cfg.rank) {
			m->own_out[(size_t)head->token * m->cfg.topk + k] =
				epf_moe_out_at(m, block, row);
			m->own_bytes += m->lay.out_row_bytes;
			return 0;
		}
		return epf_moe_put_row(m, source, m->outbox_region, epf_moe_out_at(m, block, row),
				       epf_moe_home_at(m, head->token, k), m->lay.out_row_bytes,
				       m->lay.sig_home + m->cfg.rank);
	}
	return err ? err
		   : epf_moe_fail(m, -EBADMSG,
				  "rank %u, round %u: token %u of rank %u did not choose expert %d",
				  m->cfg.rank, m->round, head->token, source, expert);
}

int epf_moe_ll_combine_push(struct epf_moe *m)
{
	for (uint32_t i = 1; i <= m->cfg.ranks; i++) { /* this rank itself last */
		uint32_t source = (m->cfg.rank + i) % m->cfg.ranks;
		uint32_t puts = 0;
		int err = 0;

		for (uint32_t e = 0; e < m->lay.local_experts; e++) {
			uint32_t block = e * m->cfg.ranks + source;

			for (uint32_t row = 0; row < m->block_rows[block] && !err; row++)
				err = send_home(m, block, row);
			puts += m->block_rows[block];
		}
		/* Home knows by its own choice which ranks it hears from. */
		if (!err && puts)
			err = epf_moe_signal(m, source, m->lay.sig_home + m->cfg.rank, 1, puts);
		if (err)
			return err;
	}
	return 0;
}

static int wait_home(struct epf_moe *m)
{
	uint32_t *rows = m->count;

	memset(rows, 0, m->cfg.ranks * sizeof(*rows));
	for (uint32_t i = 0; i < m->tokens * m->cfg.topk; i++)
		if (m->expert[i] >= 0)
			rows[(uint32_t)m->expert[i] / m->lay.local_experts]++;
	for (uint32_t r = 0; r < m->cfg.ranks; r++) {
		int err = rows[r] ? epf_moe_take(m, r, m->lay.sig_home + r, 0, NULL) : 0;

		if (err)
			return err;
	}
	return 0;
}

/* Where the output row of choice i = token * topk + k is: at home, or where this rank has written it. */
static const uint16_t *output_of(const struct epf_moe *m, size_t i)
{
	if ((uint32_t)m->expert[i] / m->lay.local_experts == m->cfg.rank)
		return (const void *)(m->outbox + m->own_out[i]);
	return (const void *)(m->inbox + epf_moe_home_at(m, (uint32_t)(i / m->cfg.topk),
							 (uint32_t)(i % m->cfg.topk)));
}

int epf_moe_ll_combine_sum(struct epf_moe *m, uint16_t *out)
{
	int err = wait_home(m);

	if (err)
		return err;
	for (uint32_t t = 0; t < m->tokens; t++) {
		const uint16_t *rows[EPF_MOE_TOPK_MAX];
		float weights[EPF_MOE_TOPK_MAX];
		unsigned count = 0;

		for (uint32_t k = 0; k < m->cfg.topk; k++) {
			size_t i = (size_t)t * m->cfg.topk + k;

			if (m->expert[i] < 0)
				continue;
			rows[count] = output_of(m, i);
			weights[count++] = m->weight[i];
		}
		epf_num_sum(out + (size_t)t * m->cfg.hidden, rows, weights, count, m->cfg.hidden);
	}
	return 0;
}
