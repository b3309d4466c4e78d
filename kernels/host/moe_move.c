/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both modes are made of: offsets of rows, the ranks a token goes to, making and moving rows, adding to
 * and taking signals. Called by moe_ll.c and moe_ht_*.c, and by tests for the areas. The only file
 * besides moe_common.c that pushes commands or waits.
 */
#include "kernels/host/moe_priv.h"
#include "kernels/host/num.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Bytes of one transfer of many output rows: a narrow command reaches 1 MiB. */
#define TRANSFER_BYTES (256u << 10)

static void add_rank(struct moe_ranks *out, uint32_t rank)
{
	uint32_t i = out->n;

	for (uint32_t j = 0; j < out->n; j++)
		if (out->rank[j] == rank)
			return;
	while (i > 0 && out->rank[i - 1] > rank) {
		out->rank[i] = out->rank[i - 1];
		i--;
	}
	out->rank[i] = rank;
	out->n++;
}

void epf_moe_targets(const struct epf_moe *m, const int64_t *expert, struct moe_ranks *out)
{
	out->n = 0;
	for (uint32_t i = 0; i < m->cfg.topk; i++)
		if (expert[i] >= 0)
			add_rank(out, (uint32_t)expert[i] / m->lay.local_experts);
}

void epf_moe_row_targets(const struct epf_moe *m, const struct epf_moe_head *row,
			 struct moe_ranks *out)
{
	const int32_t *expert = epf_moe_row_expert(row);

	out->n = 0;
	for (uint32_t i = 0; i < m->cfg.topk; i++)
		if (expert[i] >= 0)
			add_rank(out, (uint32_t)expert[i] / m->lay.local_experts);
}

bool epf_moe_on_node(const struct epf_moe *m, const struct moe_ranks *r, uint32_t node)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (m->topo.node_of[r->rank[i]] == node)
			return true;
	return false;
}

uint64_t epf_moe_forward_at(const struct epf_moe *m, uint32_t set, uint32_t source, uint32_t row)
{
	uint64_t n = ((uint64_t)set * m->lay.sources_max + source) * m->cfg.tokens_max + row;

	return m->lay.forward + n * m->lay.row_bytes;
}

/* On a node of one rank, rows of other nodes stay where they arrive: nobody else wants them. */
static bool is_kept_forward(const struct epf_moe *m, uint32_t block)
{
	return m->cfg.mode == EPF_MOE_HT && m->node_size == 1 && block != m->cfg.rank;
}

uint64_t epf_moe_recv_at(const struct epf_moe *m, uint32_t set, uint32_t block, uint32_t row)
{
	uint64_t n = ((uint64_t)set * m->lay.blocks + block) * m->cfg.tokens_max + row;

	if (is_kept_forward(m, block))
		return epf_moe_forward_at(m, set, m->via[block].source, row);
	return m->lay.recv + n * m->lay.row_bytes;
}

uint64_t epf_moe_partial_at(const struct epf_moe *m, uint32_t source, uint32_t member, uint32_t row)
{
	uint64_t n = ((uint64_t)source * m->lay.node_size_max + member) * m->cfg.tokens_max + row;

	return m->lay.partial + n * m->lay.out_row_bytes;
}

uint64_t epf_moe_home_at(const struct epf_moe *m, uint32_t index, uint32_t row)
{
	uint32_t rows = m->cfg.mode == EPF_MOE_HT ? m->cfg.tokens_max : m->cfg.topk;

	return m->lay.home + ((uint64_t)index * rows + row) * m->lay.out_row_bytes;
}

uint64_t epf_moe_out_at(const struct epf_moe *m, uint32_t block, uint32_t row)
{
	return m->lay.out + ((uint64_t)block * m->cfg.tokens_max + row) * m->lay.out_row_bytes;
}

uint64_t epf_moe_sums_at(const struct epf_moe *m, uint32_t source, uint32_t row)
{
	return m->lay.sums + ((uint64_t)source * m->cfg.tokens_max + row) * m->lay.out_row_bytes;
}

uint64_t epf_moe_own_bytes(const struct epf_moe *m)
{
	return m->own_bytes;
}

uint32_t epf_moe_block_rows(const struct epf_moe *m, uint32_t block)
{
	return m->block_rows[block];
}

const struct epf_moe_head *epf_moe_row(const struct epf_moe *m, uint32_t block, uint32_t row)
{
	return (const void *)(m->inbox + epf_moe_recv_at(m, moe_set(m->round), block, row));
}

uint16_t *epf_moe_out(const struct epf_moe *m, uint32_t block, uint32_t row)
{
	return (void *)(m->outbox + epf_moe_out_at(m, block, row));
}

const int32_t *epf_moe_row_expert(const struct epf_moe_head *row)
{
	return (const void *)(row + 1);
}

const float *epf_moe_row_weight(const struct epf_moe_head *row)
{
	return (const void *)(epf_moe_row_expert(row) + row->topk);
}

const void *epf_moe_row_payload(const struct epf_moe *m, const struct epf_moe_head *row)
{
	return (const uint8_t *)row + m->lay.head_bytes;
}

void epf_moe_stage_row(struct epf_moe *m, const struct epf_moe_tokens *in, uint32_t token)
{
	uint8_t *row = m->outbox + m->lay.stage + (uint64_t)token * m->lay.row_bytes;
	struct epf_moe_head *head = (struct epf_moe_head *)(void *)row;
	int32_t *expert = (int32_t *)(void *)(head + 1);
	uint8_t *payload = row + m->lay.head_bytes;
	const uint16_t *x = in->x + (size_t)token * m->cfg.hidden;
	uint32_t k = m->cfg.topk;

	head->token = token;
	head->source = m->cfg.rank;
	head->round = m->round;
	head->topk = k;
	for (uint32_t i = 0; i < k; i++)
		expert[i] = (int32_t)in->expert[(size_t)token * k + i];
	memcpy(expert + k, in->weight + (size_t)token * k, k * sizeof(float));
	if (m->cfg.fp8) /* cannot fail: hidden was checked by the plan */
		(void)epf_num_quantise(x, m->cfg.hidden, 0, payload,
				       (float *)(void *)(payload + m->cfg.hidden));
	else
		memcpy(payload, x, m->lay.payload_bytes);
}

int epf_moe_put_row(struct epf_moe *m, uint32_t rank, uint32_t region, uint64_t from, uint64_t to,
		    uint32_t bytes, uint32_t signal)
{
	int err;

	if (rank == m->cfg.rank) {
		const uint8_t *base = region == m->inbox_region ? m->inbox : m->outbox;

		if (m->inbox + to != base + from)
			memcpy(m->inbox + to, base + from, bytes);
		m->own_bytes += bytes;
		return 0;
	}
	err = epf_put_group(m->ring, rank, region, from, m->inbox_region, to, bytes,
			    m->cfg.first_signal + signal, m->flags);
	return err ? epf_moe_fail_fabric(m, err, "pushing a row") : 0;
}

/* Output rows of one transfer: many, where a row is small. */
static uint32_t batch_rows(const struct epf_moe *m)
{
	return TRANSFER_BYTES > m->lay.out_row_bytes ? TRANSFER_BYTES / m->lay.out_row_bytes : 1;
}

uint32_t epf_moe_batch_left(const struct epf_moe *m, uint32_t row, uint32_t end)
{
	return end - row < batch_rows(m) ? end - row : batch_rows(m);
}

int epf_moe_put_batch(struct epf_moe *m, uint32_t rank, uint32_t region, uint64_t from, uint64_t to,
		      uint32_t rows, uint32_t signal)
{
	int err = epf_put_group(m->ring, rank, region, from, m->inbox_region, to,
				(uint64_t)rows * m->lay.out_row_bytes, m->cfg.first_signal + signal,
				m->flags);

	return err ? epf_moe_fail_fabric(m, err, "pushing output rows")
		   : epf_moe_signal(m, rank, signal, 1, 1);
}

int epf_moe_put_rows(struct epf_moe *m, uint32_t rank, uint32_t region, uint64_t from, uint64_t to,
		     uint32_t rows, uint32_t signal)
{
	uint64_t row_bytes = m->lay.out_row_bytes;
	int err = 0;

	for (uint32_t i = 0, n; i < rows && !err; i += n) {
		n = epf_moe_batch_left(m, i, rows);
		err = epf_moe_put_batch(m, rank, region, from + i * row_bytes, to + i * row_bytes,
					n, signal);
	}
	return err;
}

int epf_moe_signal(struct epf_moe *m, uint32_t rank, uint32_t signal, uint64_t value,
		   uint32_t count)
{
	uint32_t number = m->cfg.first_signal + signal;
	bool counted = count && rank != m->cfg.rank; /* own rows are in place already */
	int err = counted ? epf_signal_counted(m->ring, rank, number, value, count, m->flags)
			  : epf_signal_send(m->ring, rank, number, value, m->flags);

	return err ? epf_moe_fail_fabric(m, err, "pushing a signal") : 0;
}

/* Waits until a signal has moved by `least` since it was last consumed. */
static int wait_for(struct epf_moe *m, uint32_t whose, uint32_t signal, uint32_t least)
{
	int err = epf_signal_wait(m->ep, m->cfg.first_signal + signal, m->seen[signal] + least,
				  m->cfg.timeout_ns);
	char doing[64];

	if (!err)
		return 0;
	snprintf(doing, sizeof(doing), "waiting for rows of rank %u", whose);
	return epf_moe_fail_fabric(m, err, doing);
}

/* Waits for `least`, and consumes that and what has been added besides, at most `limit`. */
static int take(struct epf_moe *m, uint32_t whose, uint32_t signal, uint32_t least, uint32_t limit,
		uint32_t *extra)
{
	uint32_t number = m->cfg.first_signal + signal;
	int err = wait_for(m, whose, signal, least);
	uint64_t more;

	if (err)
		return err;
	more = epf_signal_value(m->ep, number) - m->seen[signal] - least;
	if (more > limit)
		return epf_moe_fail(
			m, -EBADMSG,
			"rank %u, round %u: signal %u announces %llu rows, at most %u make sense",
			m->cfg.rank, m->round, number, (unsigned long long)more, limit);
	m->seen[signal] += more + least;
	if (extra)
		*extra = (uint32_t)more;
	return 0;
}

int epf_moe_take(struct epf_moe *m, uint32_t whose, uint32_t signal, uint32_t limit,
		 uint32_t *extra)
{
	return take(m, whose, signal, 1, limit, extra);
}

int epf_moe_await_row(struct epf_moe *m, uint32_t whose, uint32_t signal, uint32_t row)
{
	uint32_t least = row / batch_rows(m) + 1;

	if (epf_signal_value(m->ep, m->cfg.first_signal + signal) - m->seen[signal] >= least)
		return 0;
	return wait_for(m, whose, signal, least);
}

int epf_moe_take_rows(struct epf_moe *m, uint32_t whose, uint32_t signal, uint32_t rows)
{
	return rows ? take(m, whose, signal, (rows - 1) / batch_rows(m) + 1, 0, NULL) : 0;
}

int epf_moe_check_row(struct epf_moe *m, const struct epf_moe_head *row, uint32_t source)
{
	const int32_t *expert = epf_moe_row_expert(row);

	if (row->source != source || row->round != m->round || row->topk != m->cfg.topk ||
	    row->token >= m->cfg.tokens_max)
		return epf_moe_fail(
			m, -EBADMSG,
			"rank %u, round %u: a row from rank %u has the head (token %u, source %u, round %u, topk %u)",
			m->cfg.rank, m->round, source, row->token, row->source, row->round,
			row->topk);
	for (uint32_t i = 0; i < m->cfg.topk; i++)
		if (expert[i] < -1 || expert[i] >= (int32_t)m->cfg.experts)
			return epf_moe_fail(m, -EBADMSG,
					    "rank %u, round %u: a row from rank %u names expert %d",
					    m->cfg.rank, m->round, source, expert[i]);
	return 0;
}

static uint32_t home_areas(const struct epf_moe *m)
{
	return m->cfg.mode == EPF_MOE_HT ? m->lay.nodes : m->cfg.tokens_max;
}

/* Areas of served sources other than this rank itself. */
static uint32_t forward_areas(const struct epf_moe *m)
{
	return m->cfg.mode == EPF_MOE_HT ? m->served_count - 1 : 0;
}

static uint32_t partial_areas(const struct epf_moe *m)
{
	return m->cfg.mode == EPF_MOE_HT ? m->served_count * m->node_size : 0;
}

uint32_t epf_moe_areas(const struct epf_moe *m)
{
	return m->lay.blocks + forward_areas(m) + partial_areas(m) + home_areas(m);
}

struct epf_moe_area epf_moe_area(const struct epf_moe *m, uint32_t i, int next)
{
	uint32_t set = moe_set(m->started ? m->round + !!next : 0);
	struct epf_moe_area a = { .rows = m->cfg.tokens_max, .row_bytes = m->lay.row_bytes };

	if (i < m->lay.blocks) {
		a.kind = EPF_MOE_AREA_RECV;
		a.index = i;
		a.base = m->inbox + epf_moe_recv_at(m, set, i, 0);
		return a;
	}
	i -= m->lay.blocks;
	if (i < forward_areas(m)) {
		a.kind = EPF_MOE_AREA_FORWARD;
		a.index = m->served[i + 1];
		a.base = m->inbox + epf_moe_forward_at(m, set, i + 1, 0);
		return a;
	}
	i -= forward_areas(m);
	a.row_bytes = m->lay.out_row_bytes;
	if (i < partial_areas(m)) {
		uint32_t member = i % m->node_size;

		a.kind = EPF_MOE_AREA_PARTIAL;
		a.index = m->served[i / m->node_size];
		a.member = m->topo.members[m->topo.first[m->node] + member];
		a.base = m->inbox + epf_moe_partial_at(m, i / m->node_size, member, 0);
		return a;
	}
	i -= partial_areas(m);
	a.kind = EPF_MOE_AREA_HOME;
	a.index = i;
	a.rows = m->cfg.mode == EPF_MOE_HT ? m->cfg.tokens_max : m->cfg.topk;
	a.base = m->inbox + epf_moe_home_at(m, i, 0);
	return a;
}
