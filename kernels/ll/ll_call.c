/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of libepf-ll: arguments are checked, made a job for the kernels, and launched. Called once a layer and step, so it allocates
 * nothing. What happens on the device: epf_ll_*.cuh.
 */
#include "kernels/ll/ll.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct ll_job ll_job_begin(const struct epf_ll *ll)
{
	struct ll_job j = {
		.ctx = (uintptr_t)epf_gpu_context(ll->gpu),
		.state = (uintptr_t)ll->words,
		.peers = (uintptr_t)ll->words + sizeof(struct ll_state),
		.base = (uintptr_t)ll->memory,
		.timeout_ns = ll->opts.timeout_ns,
		.tally = ll_tally_at(ll),
		.tally_mask = ll_tally_every(ll) - 1u,
		.rank = ll->rank,
		.ranks = ll->ranks,
		.region = ll->region,
		.first_signal = ll->opts.first_signal,
		.threads = ll->threads,
		.blocks = 1,
		.commands = ll->commands,
	};

	return j;
}

/* The job of a call of this shape. */
static int job_of(const struct epf_ll *ll, const struct epf_ll_shape *s, uint32_t tokens,
		  unsigned halves, struct ll_job *j)
{
	int err;

	*j = ll_job_begin(ll);
	err = ll_layout_make(s, ll->ranks, &j->lay);
	if (err)
		return err;
	if (j->lay.bytes > ll->opts.bytes)
		return ll_fail(
			-E2BIG,
			"%u tokens of %u channels for %u experts need %llu bytes, there are %llu: open with epf_ll_size_hint()",
			s->tokens_max, s->hidden, s->experts, (unsigned long long)j->lay.bytes,
			(unsigned long long)ll->opts.bytes);
	if (tokens > s->tokens_max)
		return ll_fail(-EINVAL, "%u tokens given, tokens_max is %u", tokens, s->tokens_max);
	if (!halves || (halves & ~(unsigned)EPF_LL_BOTH))
		return ll_fail(-EINVAL, "halves are %#x: EPF_LL_SEND, EPF_LL_RECV or both", halves);
	j->blocks = ll->blocks;
	j->tokens_max = s->tokens_max;
	j->hidden = s->hidden;
	j->local = s->experts / ll->ranks;
	j->topk = s->topk;
	j->tokens = tokens;
	return 0;
}

static int given(const void *p, const char *name, uint32_t align)
{
	if (p && (uintptr_t)p % align == 0)
		return 0;
	return ll_fail(-EINVAL, "%s is %p: an address is needed, a multiple of %u", name, p, align);
}

static int check_flags(const struct epf_ll_dispatch *d)
{
	unsigned all = EPF_LL_FP8 | EPF_LL_ROUND_SCALE | EPF_LL_UE8M0;

	if (d->flags & ~all)
		return ll_fail(-EINVAL, "flags of a dispatch are %#x: nobody knows %#x", d->flags,
			       d->flags & ~all);
	if ((d->flags & EPF_LL_ROUND_SCALE) && !(d->flags & EPF_LL_FP8))
		return ll_fail(-EINVAL, "EPF_LL_ROUND_SCALE needs EPF_LL_FP8: BF16 has no scales");
	if ((d->flags & EPF_LL_UE8M0) && !(d->flags & EPF_LL_ROUND_SCALE))
		return ll_fail(
			-EINVAL,
			"EPF_LL_UE8M0 needs EPF_LL_ROUND_SCALE: an exponent alone says only powers of two");
	if ((d->flags & EPF_LL_UE8M0) && d->shape.hidden % (4 * EPF_LL_BLOCK))
		return ll_fail(
			-EINVAL,
			"EPF_LL_UE8M0 with hidden %u: four scales share a word, so a multiple of %u is needed",
			d->shape.hidden, 4 * EPF_LL_BLOCK);
	return 0;
}

static int check_dispatch(const struct epf_ll_dispatch *d, unsigned halves)
{
	int err = check_flags(d);

	if (!err && (halves & EPF_LL_SEND) && d->tokens)
		err = given(d->x, "x", 16);
	if (!err && (halves & EPF_LL_SEND) && d->tokens)
		err = given(d->topk_idx, "topk_idx", 8);
	if (err || !(halves & EPF_LL_RECV))
		return err;
	err = given(d->recv_x, "recv_x", 16);
	if (!err && (d->flags & EPF_LL_FP8))
		err = given(d->recv_scales, "recv_scales", 4);
	if (!err)
		err = given(d->recv_count, "recv_count", 4);
	if (!err)
		err = given(d->src_info, "src_info", 4);
	if (!err)
		err = given(d->src_slot, "src_slot", 4);
	return err ? err : given(d->layout_range, "layout_range", 8);
}

/*
 * All in one launch where its blocks run side by side: a block that has sent waits for blocks of the same launch. Elsewhere one after the other, so that
 * after each the engine's doorbell word is written.
 */
static int launch(struct epf_ll *ll, enum ll_kernel kernel, struct ll_job *j, unsigned halves,
		  void *stream)
{
	static const unsigned order[] = { LL_TELL, EPF_LL_SEND, EPF_LL_RECV };
	int err = 0;

	if (ll->side_by_side) {
		j->halves = halves;
		return ll->dev->launch(ll, kernel, j, stream);
	}
	for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]) && !err; i++) {
		j->halves = halves & order[i];
		if (j->halves)
			err = ll->dev->launch(ll, kernel, j, stream);
	}
	return err;
}

/* Is this the size of a struct of today, or of one that ends in front of its last member? That is NULL then. */
static int check_size(const char *what, size_t size, size_t before, size_t today)
{
	if (size == before || size == today)
		return 0;
	return ll_fail(-EINVAL, "size of a %s is %zu, this library knows %zu", what, size, today);
}

int epf_ll_dispatch(struct epf_ll *ll, const struct epf_ll_dispatch *d, unsigned halves,
		    void *stream)
{
	struct ll_job j;
	int err = check_size("dispatch", d->size, offsetof(struct epf_ll_dispatch, src_row),
			     sizeof(*d));

	if (!err)
		err = job_of(ll, &d->shape, d->tokens, halves, &j);
	if (!err)
		err = check_dispatch(d, halves);
	if (err)
		return err;
	j.flags = d->flags;
	j.x = (uintptr_t)d->x;
	j.topk_idx = (uintptr_t)d->topk_idx;
	j.recv_x = (uintptr_t)d->recv_x;
	j.recv_scales = (uintptr_t)d->recv_scales;
	j.recv_count = (uintptr_t)d->recv_count;
	j.src_info = (uintptr_t)d->src_info;
	j.src_slot = (uintptr_t)d->src_slot;
	j.src_row = d->size == sizeof(*d) ? (uintptr_t)d->src_row : 0;
	j.layout_range = (uintptr_t)d->layout_range;
	j.recv_stats = (uintptr_t)d->recv_stats;
	j.wait_stats = (uintptr_t)d->wait_stats;
	return launch(ll, LL_K_DISPATCH, &j, halves, stream);
}

static int check_combine(const struct epf_ll *ll, const struct epf_ll_combine *c, unsigned halves,
			 const struct ll_job *j)
{
	const unsigned all =
		EPF_LL_ZERO_COPY | EPF_LL_LOGFMT | EPF_LL_SUM_AT_SENDER | EPF_LL_SUM_IF_MANY;
	uintptr_t next = (uintptr_t)(j->base + j->lay.out[ll->combines & 1]);
	int partial = (c->flags & EPF_LL_SUM_AT_SENDER) != 0;
	int err = 0;

	if (c->flags & ~all)
		return ll_fail(-EINVAL, "flags of a combine are %#x: nobody knows %#x", c->flags,
			       c->flags & ~all);
	if (!partial && (c->flags & EPF_LL_SUM_IF_MANY))
		return ll_fail(-EINVAL, "EPF_LL_SUM_IF_MANY needs EPF_LL_SUM_AT_SENDER");
	if (partial && (c->flags & EPF_LL_LOGFMT))
		return ll_fail(
			-EINVAL,
			"EPF_LL_SUM_AT_SENDER with EPF_LL_LOGFMT: sums travel in BF16; leave one of them out");
	if ((c->flags & EPF_LL_LOGFMT) &&
	    ((c->flags & EPF_LL_ZERO_COPY) || (uintptr_t)c->x == next))
		return ll_fail(
			-EINVAL,
			"EPF_LL_LOGFMT makes rows again, in the memory of epf_ll_next_combine_buffer(): no EPF_LL_ZERO_COPY, and x elsewhere");
	if (halves & EPF_LL_SEND) {
		err = given(c->x, "x", 16);
		if (!err && (c->flags & EPF_LL_ZERO_COPY) && (uintptr_t)c->x != next)
			err = ll_fail(
				-EINVAL,
				"x is %p, with EPF_LL_ZERO_COPY it must be what epf_ll_next_combine_buffer() gives, %p",
				c->x, (void *)next);
		if (!err)
			err = given(c->src_slot, "src_slot", 4);
		if (!err)
			err = given(c->layout_range, "layout_range", 8);
		if (!err && partial)
			err = given((const void *)(uintptr_t)j->src_row, "src_row", 4);
	}
	if (err || (!(halves & EPF_LL_RECV) && !partial) || !c->tokens)
		return err;
	err = given(c->topk_idx, "topk_idx", 8);
	if (!err)
		err = given(c->topk_weights, "topk_weights", 4);
	return err || !(halves & EPF_LL_RECV) ? err : given(c->out, "out", 16);
}

int epf_ll_combine(struct epf_ll *ll, const struct epf_ll_combine *c, unsigned halves, void *stream)
{
	struct ll_job j;
	int err = check_size("combine", c->size, offsetof(struct epf_ll_combine, src_row),
			     sizeof(*c));

	if (!err)
		err = job_of(ll, &c->shape, c->tokens, halves, &j);
	if (err)
		return err;
	j.src_row = c->size == sizeof(*c) ? (uintptr_t)c->src_row : 0;
	err = check_combine(ll, c, halves, &j);
	if (err)
		return err;
	j.flags = c->flags;
	j.x = (uintptr_t)c->x;
	j.out_at = j.lay.out[ll->combines & 1];
	j.src_slot = (uintptr_t)c->src_slot;
	j.layout_range = (uintptr_t)c->layout_range;
	j.topk_idx = (uintptr_t)c->topk_idx;
	j.weights = (uintptr_t)c->topk_weights;
	j.out = (uintptr_t)c->out;
	j.wait_stats = (uintptr_t)c->wait_stats;
	if (!(c->flags & EPF_LL_SUM_AT_SENDER))
		err = launch(ll, LL_K_COMBINE, &j, halves, stream);
	else
		err = launch(ll, LL_K_COMBINE_SUMS, &j,
			     halves & EPF_LL_SEND ? halves | LL_TELL : halves, stream);
	if (!err && (halves & EPF_LL_SEND))
		ll->combines++;
	return err;
}

int epf_ll_next_combine_buffer(struct epf_ll *ll, const struct epf_ll_shape *shape, void **addr)
{
	struct ll_job j;
	int err = job_of(ll, shape, 0, EPF_LL_BOTH, &j);

	if (!err)
		*addr = (void *)(uintptr_t)(j.base + j.lay.out[ll->combines & 1]);
	return err;
}

int epf_ll_clean(struct epf_ll *ll, void *stream)
{
	struct ll_job j = ll_job_begin(ll);
	int err = ll->dev->sync(ll, stream);

	if (err)
		return err;
	/* What was sent has arrived, so that it is forgotten and not mistaken for a new call. Failures do not matter here. */
	(void)epf_flush(ll->ring, EPF_ALL_RINGS, ll->opts.timeout_ns);
	j.halves = EPF_LL_SEND; /* it notifies other ranks, also over the command path */
	err = ll->dev->launch(ll, LL_K_RESET, &j, stream);
	return err ? err : ll->dev->sync(ll, stream);
}

int epf_ll_mask_update(struct epf_ll *ll, uint32_t rank, int masked, void *stream)
{
	struct ll_job j = ll_job_begin(ll);

	if (rank >= ll->ranks || rank == ll->rank)
		return ll_fail(-EINVAL,
			       "rank %u cannot be masked: there are %u ranks, and this is rank %u",
			       rank, ll->ranks, ll->rank);
	j.mask_rank = rank;
	j.mask_value = masked != 0;
	return ll->dev->launch(ll, LL_K_MASK_SET, &j, stream);
}

int epf_ll_mask_query(struct epf_ll *ll, int32_t *out, void *stream)
{
	struct ll_job j = ll_job_begin(ll);
	int err = given(out, "out", 4);

	j.out = (uintptr_t)out;
	return err ? err : ll->dev->launch(ll, LL_K_MASK_GET, &j, stream);
}

int epf_ll_mask_clean(struct epf_ll *ll, void *stream)
{
	struct ll_job j = ll_job_begin(ll);

	j.mask_rank = UINT32_MAX;
	return ll->dev->launch(ll, LL_K_MASK_SET, &j, stream);
}

/* Appends the ranks that were masked for this reason, and forgets the reason. 1 if there was one. */
static int name_ranks(struct epf_ll *ll, uint32_t reason, char *text, size_t size)
{
	uint8_t *peers = (uint8_t *)ll->words + sizeof(struct ll_state);
	size_t used = strlen(text);
	int any = 0;

	for (uint32_t r = 0; r < ll->ranks; r++) {
		uint8_t *at = peers + r * sizeof(struct ll_peer) + offsetof(struct ll_peer, late);
		uint32_t late = 0, none = 0;

		if (ll->dev->copy(ll, &late, at, sizeof(late)) || late != reason ||
		    ll->dev->copy(ll, at, &none, sizeof(none)))
			continue;
		if (used + 1 < size)
			used += (size_t)snprintf(text + used, size - used, "%s %u", any ? "," : "",
						 r);
		any = 1;
	}
	return any;
}

int epf_ll_check(struct epf_ll *ll)
{
	uint8_t *at = (uint8_t *)ll->words + offsetof(struct ll_state, bad);
	uint64_t bad = 0, none = 0;
	char ranks[256] = "";
	int rc = epf_gpu_check(ll->gpu);

	if (!rc)
		return 0;
	if (ll->dev->copy(ll, &bad, at, sizeof(bad)) || ll->dev->copy(ll, at, &none, sizeof(none)))
		return rc;
	if ((bad & LL_BAD_LOST) && name_ranks(ll, LL_BAD_LOST, ranks, sizeof(ranks)))
		return ll_fail(
			-ECONNRESET,
			"rank %u: lost or closed, and masked now: rank%s (%s). Others go on; clear masks when it is back",
			ll->rank, ranks, epf_last_error());
	if ((bad & LL_BAD_LATE) && name_ranks(ll, LL_BAD_LATE, ranks, sizeof(ranks)))
		return ll_fail(
			-ETIMEDOUT,
			"rank %u: did not come in time and is masked now: rank%s (%s). Others go on; clear masks when it is back",
			ll->rank, ranks, epf_last_error());
	if ((bad & LL_BAD_STEP) && name_ranks(ll, LL_BAD_STEP, ranks, sizeof(ranks)))
		return ll_fail(
			-EPROTO,
			"rank %u: out of step and masked now: rank%s: all ranks must make the same calls in the same order",
			ll->rank, ranks);
	if ((bad & LL_BAD_OWED) && name_ranks(ll, LL_BAD_OWED, ranks, sizeof(ranks)))
		return ll_fail(
			-EPROTO,
			"rank %u: counted other rows than it sent, in a dispatch before the last: rank%s. Places that were counted and not filled hold what was there before. Do all ranks use the same build and the same shape?",
			ll->rank, ranks);
	if (bad & LL_BAD_EXPERT)
		return ll_fail(
			-EINVAL,
			"rank %u: topk_idx names an expert that does not exist; it was read as -1",
			ll->rank);
	if (bad & LL_BAD_ROW)
		return ll_fail(
			-EPROTO,
			"rank %u: rows do not fit their counts, or src_slot and layout_range are not of the dispatch: rows were left out. Do all ranks use the same shape?",
			ll->rank);
	return ll_fail_fabric(rc, "low-latency kernel");
}
