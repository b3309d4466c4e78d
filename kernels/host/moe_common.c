/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a kernel object, and the public calls that lead into the two modes. Called by the bench
 * and the tests. Holds no protocol: that is in moe_ll.c and moe_ht_*.c.
 */
#include "kernels/host/moe.h"

#include "kernels/host/moe_priv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t scratch_entries(const struct epf_moe *m)
{
	uint32_t n = m->lay.blocks > m->cfg.ranks ? m->lay.blocks : m->cfg.ranks;
	uint32_t square = m->cfg.mode == EPF_MOE_HT ? m->lay.node_size_max + m->lay.nodes : 0;

	return n > square ? n : square;
}

static int alloc_state(struct epf_moe *m)
{
	size_t choices = (size_t)m->cfg.tokens_max * m->cfg.topk;

	m->expert = calloc(choices + 1, sizeof(*m->expert));
	m->weight = calloc(choices + 1, sizeof(*m->weight));
	m->own_out = calloc(choices + 1, sizeof(*m->own_out));
	m->block_rows = calloc(m->lay.blocks, sizeof(*m->block_rows));
	m->seen = calloc(m->lay.signals, sizeof(*m->seen));
	m->count = calloc(scratch_entries(m), sizeof(*m->count));
	m->sum = calloc(m->cfg.hidden, sizeof(*m->sum));
	if (!m->expert || !m->weight || !m->own_out || !m->block_rows || !m->seen || !m->count ||
	    !m->sum)
		return epf_moe_fail(m, -ENOMEM,
				    "no memory for the tables of %u tokens and %u blocks",
				    m->cfg.tokens_max, m->lay.blocks);
	if (epf_moe_topo_init(m))
		return epf_moe_fail(m, -ENOMEM, "no memory for the tables of %u ranks",
				    m->cfg.ranks);
	return 0;
}

static int open_fabric(struct epf_moe *m)
{
	struct epf_ring_options ro = { .size = sizeof(ro), .slots = m->cfg.ring_slots };
	int err = epf_memory_alloc(m->ep, m->lay.inbox_bytes, (void **)&m->inbox);

	if (!err)
		err = epf_memory_alloc(m->ep, m->lay.outbox_bytes, (void **)&m->outbox);
	if (!err)
		err = epf_region_register(m->ep, m->inbox, m->lay.inbox_bytes, EPF_REMOTE_WRITE,
					  &m->inbox_region);
	if (!err)
		err = epf_region_register(m->ep, m->outbox, m->lay.outbox_bytes, 0,
					  &m->outbox_region);
	if (!err)
		err = epf_ring_open(m->ep, &ro, &m->ring);
	if (err)
		return epf_moe_fail(m, err, "rank %u, regions of %llu and %llu bytes: %s",
				    m->cfg.rank, (unsigned long long)m->lay.inbox_bytes,
				    (unsigned long long)m->lay.outbox_bytes, epf_last_error());
	for (uint32_t i = 0; i < m->lay.signals; i++)
		m->seen[i] = epf_signal_value(m->ep, m->cfg.first_signal + i);
	return 0;
}

static void free_state(struct epf_moe *m)
{
	epf_moe_topo_free(m);
	free(m->expert);
	free(m->weight);
	free(m->own_out);
	free(m->block_rows);
	free(m->seen);
	free(m->count);
	free(m->sum);
	free(m);
}

int epf_moe_open(struct epf *ep, const struct epf_moe_config *cfg, struct epf_moe **out, char *why)
{
	struct epf_moe_layout lay;
	int err = epf_moe_plan(cfg, &lay, why);
	struct epf_moe *m;

	if (err)
		return err;
	if ((uint64_t)cfg->first_signal + lay.signals > epf_signal_count(ep)) {
		if (why)
			snprintf(
				why, EPF_MOE_WHY_BYTES,
				"%u signals are needed from number %u on, there are %u: raise the option signals",
				lay.signals, cfg->first_signal, epf_signal_count(ep));
		return -ENOSPC;
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->ep = ep;
	m->cfg = *cfg;
	m->lay = lay;
	m->flags = cfg->mode == EPF_MOE_HT ? EPF_BULK : 0;
	err = alloc_state(m);
	if (!err)
		err = open_fabric(m);
	m->cfg.node_of = NULL; /* the caller's; topo has a copy */
	if (err) {
		if (why)
			memcpy(why, m->why, EPF_MOE_WHY_BYTES);
		epf_ring_close(m->ring);
		epf_memory_free(ep, m->inbox);
		epf_memory_free(ep, m->outbox);
		free_state(m);
		return err;
	}
	*out = m;
	return 0;
}

void epf_moe_close(struct epf_moe *m)
{
	if (!m)
		return;
	epf_ring_close(m->ring);
	free_state(m);
}

const struct epf_moe_layout *epf_moe_layout(const struct epf_moe *m)
{
	return &m->lay;
}

const char *epf_moe_error(const struct epf_moe *m)
{
	return m->why;
}

/* The tokens' choice is input from outside: each expert exists and is named once. */
static int check_tokens(struct epf_moe *m, const struct epf_moe_tokens *in)
{
	uint32_t k = m->cfg.topk;

	if (in->tokens > m->cfg.tokens_max)
		return epf_moe_fail(m, -E2BIG, "%u tokens given, tokens_max is %u", in->tokens,
				    m->cfg.tokens_max);
	for (uint32_t t = 0; t < in->tokens; t++) {
		const int64_t *e = in->expert + (size_t)t * k;

		for (uint32_t i = 0; i < k; i++) {
			if (e[i] < -1 || e[i] >= (int64_t)m->cfg.experts)
				return epf_moe_fail(
					m, -EINVAL,
					"token %u, entry %u: expert %lld is not in -1..%u", t, i,
					(long long)e[i], m->cfg.experts - 1);
			for (uint32_t j = 0; j < i; j++)
				if (e[i] >= 0 && e[i] == e[j])
					return epf_moe_fail(m, -EINVAL,
							    "token %u: expert %lld is chosen twice",
							    t, (long long)e[i]);
		}
	}
	return 0;
}

int epf_moe_drain(struct epf_moe *m)
{
	int err = epf_wait_retired(m->ring, epf_ring_pushed(m->ring), m->cfg.timeout_ns);
	struct epf_ring_failure f;

	if (err)
		return epf_moe_fail_fabric(m, err, "waiting until everything is sent");
	if (!epf_ring_error(m->ring, &f))
		return 0;
	return epf_moe_fail(m, -EIO, "rank %u, round %u: %s", m->cfg.rank, m->round,
			    epf_last_error());
}

int epf_moe_dispatch_send(struct epf_moe *m, const struct epf_moe_tokens *in)
{
	size_t choices = (size_t)in->tokens * m->cfg.topk;
	int err = check_tokens(m, in);

	if (err)
		return err;
	err = epf_moe_drain(m); /* the round before may still be read from */
	if (err)
		return err;
	m->round = m->started ? m->round + 1 : 0;
	m->started = true;
	m->tokens = in->tokens;
	memset(m->block_rows, 0, m->lay.blocks * sizeof(*m->block_rows));
	if (choices) {
		memcpy(m->expert, in->expert, choices * sizeof(*m->expert));
		memcpy(m->weight, in->weight, choices * sizeof(*m->weight));
	}
	return m->cfg.mode == EPF_MOE_LL ? epf_moe_ll_send(m, in) : epf_moe_ht_send(m, in);
}

int epf_moe_dispatch_forward(struct epf_moe *m)
{
	return m->cfg.mode == EPF_MOE_LL ? 0 : epf_moe_ht_forward(m);
}

int epf_moe_dispatch_recv(struct epf_moe *m)
{
	uint32_t set = moe_set(m->round);

	for (uint32_t b = 0; b < m->lay.blocks; b++) {
		int err =
			epf_moe_take(m, b % m->cfg.ranks, m->lay.sig_recv + set * m->lay.blocks + b,
				     m->cfg.tokens_max, &m->block_rows[b]);

		if (err)
			return err;
	}
	return 0;
}

int epf_moe_combine_send(struct epf_moe *m)
{
	return m->cfg.mode == EPF_MOE_LL ? epf_moe_ll_combine_push(m) : epf_moe_ht_combine_push(m);
}

int epf_moe_combine_reduce(struct epf_moe *m)
{
	return m->cfg.mode == EPF_MOE_LL ? 0 : epf_moe_ht_combine_reduce(m);
}

int epf_moe_combine_recv(struct epf_moe *m, uint16_t *out)
{
	return m->cfg.mode == EPF_MOE_LL ? epf_moe_ll_combine_sum(m, out)
					 : epf_moe_ht_combine_sum(m, out);
}
