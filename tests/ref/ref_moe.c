/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine of the reference: lists of rows in order, and sums. Called by the tests and ep-bench's check. It must never
 * include a header of the project.
 */
#include "tests/ref/ref.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int experts_per_rank(const struct ref_job *job)
{
	return job->experts / job->ranks;
}

static int owner(const struct ref_job *job, int64_t expert)
{
	return (int)(expert / experts_per_rank(job));
}

static const int64_t *idx_of(const struct ref_job *job, int src, int token)
{
	return job->topk_idx[src] + (size_t)token * (size_t)job->topk;
}

static const float *weights_of(const struct ref_job *job, int src, int token)
{
	return job->weights[src] + (size_t)token * (size_t)job->topk;
}

static int is_token(const struct ref_job *job, int src, int token)
{
	return src >= 0 && src < job->ranks && token >= 0 && token < job->tokens[src];
}

static const char *token_error(const struct ref_job *job, const int64_t *idx)
{
	for (int k = 0; k < job->topk; k++) {
		if (idx[k] < -1 || idx[k] >= job->experts)
			return "an expert in topk_idx is neither -1 nor in 0 to experts-1";
		for (int other = 0; other < k; other++)
			if (idx[k] >= 0 && idx[k] == idx[other])
				return "a token selects the same expert twice";
	}
	return NULL;
}

const char *ref_job_error(const struct ref_job *job)
{
	if (job->ranks < 1)
		return "ranks must be at least 1";
	if (job->experts < job->ranks || job->experts % job->ranks)
		return "experts must be a positive multiple of ranks";
	if (job->topk < 1 || job->topk > REF_TOPK_MAX || job->topk > job->experts)
		return "topk must be 1 to 16 and not above experts";
	if (job->hidden < REF_BLOCK || job->hidden % REF_BLOCK)
		return "hidden must be a positive multiple of 128";
	for (int r = 0; r < job->ranks; r++) {
		if (job->node_of_rank[r] < 0 || job->node_of_rank[r] >= job->ranks)
			return "a node number is not in 0 to ranks-1";
		if (job->tokens[r] < 0)
			return "a rank has a negative number of tokens";
		for (int t = 0; t < job->tokens[r]; t++) {
			const char *why = token_error(job, idx_of(job, r, t));

			if (why)
				return why;
		}
	}
	return NULL;
}

size_t ref_row_bytes(int hidden, enum ref_format format)
{
	size_t channels = (size_t)hidden;

	return format == REF_BF16 ? 2 * channels : channels + channels / REF_BLOCK * 4;
}

int ref_payload(const struct ref_job *job, int src, int token, enum ref_format format, void *row)
{
	size_t hidden = (size_t)job->hidden;
	const uint16_t *x;
	float *scales;
	int rc;

	if (!job->x || !is_token(job, src, token))
		return -EINVAL;
	x = job->x[src] + (size_t)token * hidden;
	if (format == REF_BF16) {
		memcpy(row, x, 2 * hidden);
		return 0;
	}
	scales = malloc(hidden / REF_BLOCK * sizeof(*scales));
	if (!scales)
		return -ENOMEM;
	rc = ref_quantise(x, job->hidden, format == REF_FP8_POW2, row, scales);
	if (!rc)
		memcpy((uint8_t *)row + hidden, scales, hidden / REF_BLOCK * sizeof(*scales));
	free(scales);
	return rc;
}

long ref_ll_list(const struct ref_job *job, int dst, int local, struct ref_entry *out, long cap,
		 int *counts)
{
	int64_t expert = (int64_t)dst * experts_per_rank(job) + local;
	long n = 0;

	if (dst < 0 || dst >= job->ranks || local < 0 || local >= experts_per_rank(job))
		return -EINVAL;
	for (int src = 0; src < job->ranks; src++) {
		long before = n;

		for (int t = 0; t < job->tokens[src]; t++) {
			const int64_t *idx = idx_of(job, src, t);

			for (int k = 0; k < job->topk; k++) {
				if (idx[k] != expert)
					continue;
				if (n < cap)
					out[n] = (struct ref_entry){ src, t, k };
				n++;
				break; /* an expert selected twice gets the row once */
			}
		}
		if (counts)
			counts[src] = (int)(n - before);
	}
	return n;
}

/* Adds a token's weighted rows of one rank (-1: of all) to sum; sum and scratch are [hidden]. Returns 0 or -ENOENT. */
static int ll_sum(const struct ref_job *job, int src, int token, int rank, ref_expert_row row,
		  void *arg, float *sum, float *scratch)
{
	const int64_t *idx = idx_of(job, src, token);
	const float *weights = weights_of(job, src, token);

	for (int k = 0; k < job->topk; k++) {
		const uint16_t *y;

		if (idx[k] < 0 || (rank >= 0 && owner(job, idx[k]) != rank))
			continue;
		y = row(arg, (int)idx[k], src, token);
		if (!y)
			return -ENOENT;
		ref_bf16_decode_row(scratch, y, job->hidden);
		for (int c = 0; c < job->hidden; c++) {
			float product = weights[k] * scratch[c];

			sum[c] = sum[c] + product;
		}
	}
	return 0;
}

int ref_ll_combine(const struct ref_job *job, int src, int token, ref_expert_row row, void *arg,
		   uint16_t *out)
{
	float *acc;
	int err;

	if (!job->weights || !is_token(job, src, token))
		return -EINVAL;
	acc = calloc(2 * (size_t)job->hidden, sizeof(*acc));
	if (!acc)
		return -ENOMEM;
	err = ll_sum(job, src, token, -1, row, arg, acc, acc + job->hidden);
	if (!err)
		ref_bf16_encode_row(out, acc, job->hidden);
	free(acc);
	return err;
}

int ref_ll_combine_sums(const struct ref_job *job, int src, int token, ref_expert_row row,
			void *arg, uint16_t *out)
{
	const int64_t *idx;
	float *acc, *part;
	int err = 0;

	if (!job->weights || !is_token(job, src, token))
		return -EINVAL;
	idx = idx_of(job, src, token);
	acc = calloc(3 * (size_t)job->hidden, sizeof(*acc));
	if (!acc)
		return -ENOMEM;
	part = acc + job->hidden;
	for (int k = 0; k < job->topk && !err; k++) {
		int seen = idx[k] < 0;

		for (int i = 0; i < k && !seen; i++)
			seen = idx[i] >= 0 && owner(job, idx[i]) == owner(job, idx[k]);
		if (seen)
			continue;
		memset(part, 0, (size_t)job->hidden * sizeof(*part));
		err = ll_sum(job, src, token, owner(job, idx[k]), row, arg, part,
			     part + job->hidden);
		for (int c = 0; c < job->hidden; c++)
			acc[c] = acc[c] + ref_bf16_decode(ref_bf16_encode(part[c]));
	}
	if (!err)
		ref_bf16_encode_row(out, acc, job->hidden);
	free(acc);
	return err;
}

long ref_ht_list(const struct ref_job *job, int dst, struct ref_entry *out, int64_t *topk_idx,
		 float *weights, long cap, int *counts)
{
	long n = 0;

	if (dst < 0 || dst >= job->ranks || (weights && !job->weights))
		return -EINVAL;
	for (int src = 0; src < job->ranks; src++) {
		long before = n;

		for (int t = 0; t < job->tokens[src]; t++) {
			const int64_t *idx = idx_of(job, src, t);
			int first = -1;

			for (int k = job->topk - 1; k >= 0; k--)
				if (idx[k] >= 0 && owner(job, idx[k]) == dst)
					first = k;
			if (first < 0)
				continue;
			if (n < cap)
				out[n] = (struct ref_entry){ src, t, first };
			for (int k = 0; k < job->topk && n < cap; k++) {
				int here = idx[k] >= 0 && owner(job, idx[k]) == dst;
				size_t at = (size_t)n * (size_t)job->topk + (size_t)k;

				if (topk_idx)
					topk_idx[at] = here ? idx[k] % experts_per_rank(job) : -1;
				if (weights)
					weights[at] = here ? weights_of(job, src, t)[k] : 0;
			}
			n++;
		}
		if (counts)
			counts[src] = (int)(n - before);
	}
	return n;
}

int ref_ht_targets(const struct ref_job *job, int src, int token, int *dst)
{
	const int64_t *idx = idx_of(job, src, token);
	const int *node = job->node_of_rank;
	int n = 0;

	for (int k = 0; k < job->topk; k++) {
		int rank, at, known = 0;

		if (idx[k] < 0)
			continue;
		rank = owner(job, idx[k]);
		for (int i = 0; i < n; i++)
			known |= dst[i] == rank;
		if (known)
			continue;
		for (at = n; at > 0; at--) {
			int before = dst[at - 1];

			if (node[before] < node[rank] ||
			    (node[before] == node[rank] && before < rank))
				break;
			dst[at] = before;
		}
		dst[at] = rank;
		n++;
	}
	return n;
}

static void add_rows(float *sum, const float *values, int n)
{
	for (int c = 0; c < n; c++)
		sum[c] = sum[c] + values[c];
}

int ref_ht_combine(const struct ref_job *job, int src, int token, ref_rank_row row, void *arg,
		   uint16_t *out)
{
	size_t hidden = (size_t)job->hidden;
	int dst[REF_TOPK_MAX], n, rc = -ENOENT;
	float *part, *acc, *values;
	uint16_t *wire;

	if (!is_token(job, src, token))
		return -EINVAL;
	acc = calloc(4 * hidden, sizeof(*acc));
	if (!acc)
		return -ENOMEM;
	part = acc + hidden;
	values = part + hidden;
	wire = (uint16_t *)(values + hidden);
	n = ref_ht_targets(job, src, token, dst);
	for (int i = 0; i < n; i++) {
		int node = job->node_of_rank[dst[i]];
		const uint16_t *y = row(arg, dst[i], src, token);

		if (!y)
			goto err_free;
		ref_bf16_decode_row(values, y, job->hidden);
		add_rows(part, values, job->hidden);
		if (i + 1 < n && job->node_of_rank[dst[i + 1]] == node)
			continue;
		/* The node is complete: its sum is sent as BF16. */
		ref_bf16_encode_row(wire, part, job->hidden);
		ref_bf16_decode_row(values, wire, job->hidden);
		add_rows(acc, values, job->hidden);
		memset(part, 0, hidden * sizeof(*part));
	}
	ref_bf16_encode_row(out, acc, job->hidden);
	rc = 0;
err_free:
	free(acc);
	return rc;
}

int ref_ht_combine_weights(const struct ref_job *job, int src, int token, ref_rank_weights row,
			   void *arg, float *out)
{
	float part[REF_TOPK_MAX] = { 0 }, acc[REF_TOPK_MAX] = { 0 };
	int dst[REF_TOPK_MAX], n;

	if (!is_token(job, src, token))
		return -EINVAL;
	n = ref_ht_targets(job, src, token, dst);
	for (int i = 0; i < n; i++) {
		int node = job->node_of_rank[dst[i]];
		const float *w = row(arg, dst[i], src, token);

		if (!w)
			return -ENOENT;
		for (int k = 0; k < job->topk; k++)
			part[k] = part[k] + w[k];
		if (i + 1 < n && job->node_of_rank[dst[i + 1]] == node)
			continue;
		for (int k = 0; k < job->topk; k++) {
			acc[k] = acc[k] + part[k];
			part[k] = 0;
		}
	}
	memcpy(out, acc, (size_t)job->topk * sizeof(*out));
	return 0;
}

static int counts_node(const struct ref_job *job, int src, int to, int only)
{
	return to != job->node_of_rank[src] && (only < 0 || only == to);
}

uint64_t ref_ht_internode_bytes(const struct ref_job *job, int src, int node, size_t row_bytes)
{
	uint64_t rows = 0;

	for (int r = 0; r < job->ranks; r++) {
		if (src >= 0 && src != r)
			continue;
		for (int t = 0; t < job->tokens[r]; t++) {
			int dst[REF_TOPK_MAX];
			int n = ref_ht_targets(job, r, t, dst);

			/* Targets are ordered by node: counts the first of each node. */
			for (int i = 0; i < n; i++) {
				int to = job->node_of_rank[dst[i]];

				if (i == 0 || job->node_of_rank[dst[i - 1]] != to)
					rows += (uint64_t)counts_node(job, r, to, node);
			}
		}
	}
	return rows * row_bytes;
}

uint64_t ref_ll_internode_bytes(const struct ref_job *job, int src, int node, size_t row_bytes)
{
	uint64_t rows = 0;

	for (int r = 0; r < job->ranks; r++) {
		if (src >= 0 && src != r)
			continue;
		for (int t = 0; t < job->tokens[r]; t++) {
			const int64_t *idx = idx_of(job, r, t);

			for (int k = 0; k < job->topk; k++) {
				if (idx[k] < 0)
					continue;
				rows += (uint64_t)counts_node(
					job, r, job->node_of_rank[owner(job, idx[k])], node);
			}
		}
	}
	return rows * row_bytes;
}
