/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a batch, and the exchange of its counts. Allocates nothing. */
#include "kernels/ht/ht.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>

static int job_of_routing(struct epf_ht *ht, const struct epf_ht_routing *r, struct ht_job *j)
{
	uint32_t ranks = ht->ll->ranks;
	int err = ht_check_size("a routing", r->size, sizeof(*r));

	if (err)
		return err;
	if (!r->experts || r->experts % ranks || r->experts / ranks > EPF_HT_LOCAL_MAX)
		return ll_fail(
			-EINVAL,
			"%u experts on %u ranks: a multiple of the ranks is needed, at most %u a rank",
			r->experts, ranks, EPF_HT_LOCAL_MAX);
	if (r->topk > EPF_HT_TOPK_MAX)
		return ll_fail(-EINVAL, "top-k is %u: at most %u are possible", r->topk,
			       EPF_HT_TOPK_MAX);
	*j = ht_job_begin(ht);
	j->scratch = (uintptr_t)ht->scratch;
	j->tokens = r->tokens;
	j->topk = r->topk;
	j->local = r->experts / ranks;
	j->align = r->align ? r->align : 1;
	j->topk_idx = (uintptr_t)r->topk_idx;
	j->in_rank = (uintptr_t)r->in_rank;
	j->per_rank = (uintptr_t)r->per_rank;
	j->per_node = (uintptr_t)r->per_node;
	j->per_expert = (uintptr_t)r->per_expert;
	j->place = (uintptr_t)r->place;
	j->matrix = (uintptr_t)r->matrix;
	j->host = (uintptr_t)r->host;
	return r->tokens ? ht_given(r->in_rank, "in_rank", 1) : 0;
}

/* Blocks that share the routing of a rank: as many as find enough tokens, where there are few ranks. */
static uint32_t chunks_of(const struct epf_ht *ht, uint32_t tokens)
{
	uint32_t chunks = ht->scratch ? tokens / ht->chunk_tokens : 1;

	return chunks < 1 ? 1 : chunks > HT_CHUNKS ? HT_CHUNKS : chunks;
}

int epf_ht_layout(struct epf_ht *ht, const struct epf_ht_routing *r, void *stream)
{
	struct ht_job j;
	int err = job_of_routing(ht, r, &j);

	if (!err)
		err = ht_given(r->per_expert, "per_expert", 4);
	if (!err && r->tokens)
		err = ht_given(r->topk_idx, "topk_idx", 8);
	if (!err)
		err = ht_given(r->per_rank, "per_rank", 4);
	if (err)
		return err;
	j.call = EPF_WHY_HT_LAYOUT;
	j.chunks = chunks_of(ht, r->tokens);
	j.blocks = j.ranks * j.chunks + (r->per_node ? (j.ranks + HT_NODE - 1) / HT_NODE : 0);
	return ht_launch(ht, HT_K_LAYOUT, &j, stream);
}

int epf_ht_notify(struct epf_ht *ht, const struct epf_ht_routing *r, void *stream)
{
	struct ht_job j;
	int err = job_of_routing(ht, r, &j);
	bool looks = !err && r->flags & EPF_HT_NO_LAYOUT;

	if (!err && looks && ht->nodes > 1)
		err = ll_fail(-EINVAL, "EPF_HT_NO_LAYOUT with %u nodes: it is for one", ht->nodes);
	if (!err && r->flags & EPF_HT_WITH_DISPATCH && (ht->nodes > 1 || !r->received))
		err = ll_fail(
			-EINVAL,
			"EPF_HT_WITH_DISPATCH with %u nodes and outputs of %u rows: it is for one node, and a dispatch with EPF_HT_IF_IT_FITS",
			ht->nodes, r->received);
	if (!err && looks && r->tokens)
		err = ht_given(r->topk_idx, "topk_idx", 8);
	if (!err && !looks)
		err = ht_given(r->per_expert, "per_expert", 4);
	if (!err && r->tokens)
		err = ht_given(r->place, "place", 4);
	if (!err)
		err = ht_given(r->matrix, "matrix", 4);
	if (!err)
		err = ht_given(r->plan, "plan", HT_VEC);
	if (err)
		return err;
	j.plan = (uintptr_t)r->plan;
	j.at = ht_plan_of(ht, r->tokens);
	j.call = EPF_WHY_HT_NOTIFY;
	j.looks = looks;
	j.chunks = chunks_of(ht, r->tokens);
	j.blocks = looks ? j.ranks * j.chunks
			 : (1 + j.chunks) * (j.ranks + (ht->nodes > 1 ? ht->nodes : 0));
	j.blocks++; /* which waits for the others' counts */
	ht->due.blocks = 0;
	j.grown = ht->wanted != 0;
	j.received = r->received <= UINT32_MAX >> 2 ? r->received : 0; /* never fits */
	j.room = r->room;
	j.spare = r->spare;
	if (r->host) {
		j.ticket = ++ht->tickets;
		EPF_STORE_RELAXED((uint64_t *)r->host,
				  0); /* it may hold the ticket of another object */
	}
	if (r->flags & EPF_HT_WITH_DISPATCH &&
	    ht->ll->ranks <= (ht->warp > 1 ? HT_FEW_GPU : HT_FEW_CPU)) {
		ht->due = j;
		return 0;
	}
	return ht_launch(ht, HT_K_NOTIFY, &j, stream);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int epf_ht_wait_counts(struct epf_ht *ht, const int64_t *host)
{
	/* The kernel's own deadline comes first and says more; the slack is for work in front of it in the stream. */
	uint64_t limit = ht->opts.timeout_ns ? 2 * ht->opts.timeout_ns + 1000000000u : 0;
	uint64_t start = 0;
	int err;

	for (uint64_t polls = 1; EPF_LOAD_ACQUIRE((const uint64_t *)host) != ht->tickets; polls++) {
		if (polls % 4096)
			continue;
		if (!start)
			start = now_ns();
		(void)sched_yield();
		if (limit && now_ns() - start > limit) {
			err = epf_ht_check(ht);
			return err ? err
				   : ll_fail(-ETIMEDOUT,
					     "rank %u: the exchange of counts did not run within %llu s: is its stream waiting for something?",
					     ht->ll->rank,
					     (unsigned long long)(limit / 1000000000u));
		}
	}
	return host[1] < 0 ? epf_ht_check(ht) : 0;
}
