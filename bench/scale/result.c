/* SPDX-License-Identifier: Apache-2.0 */
/* What a phase came to, and what the engines hold; see scale.h. */
#include "bench/scale/scale.h"

#include "fabric/engine/grow.h"
#include "kernels/epf_ll.h"

#include <stdlib.h>

static int by_time(const void *a, const void *b)
{
	const struct scale_rank *x = *(struct scale_rank *const *)a,
				*y = *(struct scale_rank *const *)b;

	return (x->done_ns > y->done_ns) - (x->done_ns < y->done_ns);
}

static uint64_t after(uint64_t t, uint64_t before)
{
	return t > before ? t - before : 0;
}

/* The way of the last message that a slow rank took, cut where it waited; the longest part is the cause. */
static void blame(const struct scale *s, const struct scale_rank *r, struct scale_result *out)
{
	const struct sim_times *t = &r->last;
	uint64_t part[5] = { after(t->posted, r->begun_ns), after(t->sent, t->posted),
			     s->o.net.delay_ns, after(t->landed, t->arrived),
			     after(r->done_ns, t->landed) };
	uint32_t *who[5] = { &out->slow_sender, &out->slow_out, &out->slow_way, &out->slow_in,
			     &out->slow_receiver };
	unsigned most = 0;

	for (unsigned i = 1; i < 5; i++)
		if (part[i] > part[most])
			most = i;
	++*who[most];
	out->slow++;
}

static void result_wire(const struct scale *s, struct scale_result *out)
{
	uint64_t most = 0, queued = 0;

	for (uint32_t n = 0; n < s->n_nodes; n++)
		for (uint32_t l = 0; l < s->o.net.links; l++) {
			struct sim_port_stats p;

			sim_net_port_stats(s->net, n, l, &p);
			most = p.bytes_tx > most ? p.bytes_tx : most;
			most = p.bytes_rx > most ? p.bytes_rx : most;
			queued = p.most_queued_ns > queued ? p.most_queued_ns : queued;
		}
	out->wire_us = ((double)most / s->o.net.bytes_per_ns + s->o.net.delay_ns) / 1e3;
	out->queued_us = (double)queued / 1e3;
}

void scale_result(struct scale *s, uint32_t job, struct scale_result *out)
{
	struct scale_rank **all = calloc(s->o.ranks, sizeof(struct scale_rank *));
	uint32_t n = 0;

	*out = (struct scale_result){ 0 };
	if (!all)
		return;
	for (uint32_t r = 0; r < s->o.ranks; r++) {
		struct scale_rank *rank = &s->ranks[(size_t)job * s->o.ranks + r];

		if (rank->done != 1)
			continue;
		all[n++] = rank;
		out->commands += (double)rank->commands;
	}
	out->ranks = n;
	if (n) {
		qsort(all, n, sizeof(struct scale_rank *), by_time);
		out->time_us = (double)(all[n - 1]->done_ns - all[n - 1]->begun_ns) / 1e3;
		out->median_us = (double)(all[n / 2]->done_ns - all[n / 2]->begun_ns) / 1e3;
		out->p99_us =
			(double)(all[(n * 99ull + 99) / 100 - 1]->done_ns - all[0]->begun_ns) / 1e3;
		out->commands /= n;
		for (uint32_t i = n - (n + 99) / 100; i < n; i++)
			blame(s, all[i], out);
	}
	free(all);
	result_wire(s, out);
	for (uint32_t i = 0; i < s->n_nodes; i++) {
		struct scale_core *c = &s->cores[(size_t)job * s->n_nodes + i];
		struct epf_nic_counters k;
		double us = (double)c->busy_ns / 1e3;

		c->nic->ops->counters(c->nic, &k);
		out->messages += (double)(k.messages_tx - c->messages_before) / s->o.ranks;
		out->bytes += (double)(k.bytes_tx - c->bytes_before) / s->o.ranks;
		c->messages_before = k.messages_tx;
		c->bytes_before = k.bytes_tx;
		out->cpu_us = us > out->cpu_us ? us : out->cpu_us;
	}
}

void scale_memory(const struct scale *s, struct scale_memory *out)
{
	*out = (struct scale_memory){ .queue_pairs = (uint64_t)s->n_nodes * s->o.net.lanes };
	for (uint32_t n = 0; n < s->n_nodes * s->o.jobs; n++) {
		const struct epf_core *core = s->cores[n].core;
		uint64_t bytes = core->peer_memory_bytes - core->grow_most + epf_grow_bytes(core);

		out->engine_bytes = bytes > out->engine_bytes ? bytes : out->engine_bytes;
		out->engine_most = core->peer_memory_bytes;
	}
	out->peer_pair_bytes = out->engine_bytes / ((uint64_t)s->o.per_node * s->o.ranks);
	out->signal_bytes = 8ull * s->o.ranks * sizeof(struct epf_signal);
	out->ll_bytes = epf_ll_size_hint(s->o.tokens_max, s->o.hidden, s->o.ranks,
					 s->o.ranks > SCALE_EXPERTS ? s->o.ranks : SCALE_EXPERTS);
}
