/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of ep-bench moe, against the plain C reference of tests/ref, without samples: every
 * received row byte for byte, every output row bit for bit.
 *
 * What a row must contain is computed twice in the job: its source compares its own quantisation
 * of every token with the reference's, every receiver compares what arrived with the same
 * quantisation of the same generated token. So each arrived byte is compared with the reference, and the
 * slow one runs once a token.
 */
#include "bench/moe/moe.h"

#include "kernels/host/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void moe_wrong(struct moe_job *job, struct moe_phase *ph, const char *fmt, ...)
{
	va_list ap;

	ph->wrong++;
	if (job->result.first_wrong[0])
		return;
	va_start(ap, fmt);
	vsnprintf(job->result.first_wrong, sizeof(job->result.first_wrong), fmt, ap);
	va_end(ap);
}

static void payload_fast(const struct moe_data *d, const uint16_t *x, uint8_t *out)
{
	size_t h = d->opts->hidden;

	if (d->opts->fp8)
		(void)epf_num_quantise(x, h, 0, out, (float *)(void *)(out + h));
	else
		memcpy(out, x, 2 * h);
}

/* The reference's payload of d->x. */
static void payload_ref(const struct moe_data *d, const uint16_t *x, uint8_t *out)
{
	size_t h = d->opts->hidden;

	if (d->opts->fp8)
		(void)ref_quantise(x, (int)h, 0, out, (float *)(void *)(out + h));
	else
		memcpy(out, x, 2 * h);
}

void moe_check_input(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph)
{
	struct moe_data *d = &job->data;

	for (int t = 0; t < d->tokens[r->rank]; t++) {
		const uint16_t *x = r->x + (size_t)t * job->opts->hidden;

		payload_fast(d, x, d->payload);
		payload_ref(d, x, d->payload2);
		if (memcmp(d->payload, d->payload2, d->payload_bytes))
			moe_wrong(job, ph,
				  "rank %u, token %d: the quantised row differs from the reference",
				  r->rank, t);
	}
}

/* One received row against the reference's list entry. local and w: [topk], ht only. */
static void check_row(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph,
		      const struct epf_moe_head *row, const struct ref_entry *want,
		      const int64_t *local, const float *w)
{
	struct moe_data *d = &job->data;
	const int32_t *expert = epf_moe_row_expert(row);
	int64_t first = (int64_t)r->rank * d->local_experts;

	if ((int)row->source != want->src || (int)row->token != want->token ||
	    row->topk != job->opts->topk) {
		moe_wrong(job, ph, "rank %u: got token %u of rank %u for token %d of rank %d",
			  r->rank, row->token, row->source, want->token, want->src);
		return;
	}
	for (uint32_t k = 0; local && k < row->topk; k++) {
		bool mine = expert[k] >= first && expert[k] < first + d->local_experts;
		float weight = mine ? epf_moe_row_weight(row)[k] : 0.0f;

		if ((mine ? expert[k] - first : -1) != local[k] ||
		    memcmp(&weight, &w[k], sizeof(weight)))
			moe_wrong(job, ph,
				  "rank %u, token %u of rank %u: wrong expert or weight %u",
				  r->rank, row->token, row->source, k);
	}
	payload_fast(d, moe_data_x(d, row->source, row->token), d->payload);
	if (memcmp(d->payload, epf_moe_row_payload(r->moe, row), d->payload_bytes))
		moe_wrong(job, ph, "rank %u, token %u of rank %u: wrong bytes", r->rank, row->token,
			  row->source);
}

/* Blocks first_block.. of all sources against one list of the reference. */
static void check_list(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph,
		       uint32_t first_block, const struct ref_entry *list, const int *counts,
		       const int64_t *local, const float *w)
{
	size_t i = 0;
	size_t topk = job->opts->topk;

	for (uint32_t s = 0; s < job->opts->ranks; s++) {
		uint32_t rows = epf_moe_block_rows(r->moe, first_block + s);

		if (rows != (uint32_t)counts[s]) {
			moe_wrong(job, ph, "rank %u, block %u: %u rows from rank %u, must be %d",
				  r->rank, first_block / (uint32_t)job->opts->ranks, rows, s,
				  counts[s]);
			i += (size_t)counts[s];
			continue;
		}
		for (uint32_t row = 0; row < rows; row++, i++)
			check_row(job, r, ph, epf_moe_row(r->moe, first_block + s, row), &list[i],
				  local ? local + i * topk : NULL, w ? w + i * topk : NULL);
		job->result.received_rows += rows;
	}
}

static void check_ht(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph, int *counts)
{
	const struct ref_job *ref = &job->data.job;
	long n = ref_ht_list(ref, (int)r->rank, NULL, NULL, NULL, 0, counts);
	size_t cap = n > 0 ? (size_t)n : 1;
	struct ref_entry *list = calloc(cap, sizeof(*list));
	int64_t *local = calloc(cap * job->opts->topk, sizeof(*local));
	float *w = calloc(cap * job->opts->topk, sizeof(*w));

	if (n < 0 || !list || !local || !w ||
	    ref_ht_list(ref, (int)r->rank, list, local, w, n, counts) != n)
		moe_wrong(job, ph, "rank %u: the reference cannot list its rows", r->rank);
	else
		check_list(job, r, ph, 0, list, counts, local, w);
	free(list);
	free(local);
	free(w);
}

static void check_ll(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph, int *counts)
{
	const struct ref_job *ref = &job->data.job;

	for (uint32_t e = 0; e < job->data.local_experts; e++) {
		long n = ref_ll_list(ref, (int)r->rank, (int)e, NULL, 0, counts);
		struct ref_entry *list = calloc(n > 0 ? (size_t)n : 1, sizeof(*list));

		if (n < 0 || !list || ref_ll_list(ref, (int)r->rank, (int)e, list, n, counts) != n)
			moe_wrong(job, ph, "rank %u: the reference cannot list its rows", r->rank);
		else
			check_list(job, r, ph, e * (uint32_t)job->opts->ranks, list, counts, NULL,
				   NULL);
		free(list);
	}
}

void moe_check_dispatch(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph)
{
	int *counts = calloc(job->opts->ranks, sizeof(*counts));

	if (!counts)
		moe_wrong(job, ph, "rank %u: no memory for the check", r->rank);
	else if (job->opts->mode == EPF_MOE_HT)
		check_ht(job, r, ph, counts);
	else
		check_ll(job, r, ph, counts);
	free(counts);
}

/* ---- the caller's part ---- */

static void dequantise(const struct moe_data *d, const uint8_t *payload, uint16_t *out)
{
	size_t h = d->opts->hidden;

	if (d->opts->fp8)
		(void)epf_num_dequantise(payload, (const float *)(const void *)(payload + h), h,
					 out);
	else
		memcpy(out, payload, 2 * h);
}

/*
 * ht: what a rank makes of the token in d->deq: the weighted sum of its experts in top-k order,
 * into out. The caller's arithmetic, so the same function stands on both sides of the comparison.
 */
static void sum_experts(struct moe_data *d, uint32_t rank, uint32_t src, uint32_t token,
			uint16_t *out)
{
	uint32_t h = (uint32_t)d->opts->hidden;
	size_t first = (size_t)token * d->opts->topk;

	memset(d->acc, 0, h * sizeof(*d->acc));
	for (uint32_t k = 0; k < d->opts->topk; k++) {
		int64_t expert = d->idx[src][first + k];

		if (expert < 0 || (uint32_t)expert / d->local_experts != rank)
			continue;
		moe_expert((uint32_t)expert, d->deq, h, d->y);
		epf_num_add_scaled(d->acc, d->y, d->weight[src][first + k], h);
	}
	epf_num_to_bf16(out, d->acc, h);
}

/* A row with another head has been counted as wrong; it gets no sum. */
static bool head_is_sane(const struct moe_data *d, const struct epf_moe_head *row)
{
	return row->source < d->opts->ranks && row->token < (uint32_t)d->tokens[row->source];
}

void moe_compute(struct moe_job *job, struct moe_rank *r)
{
	struct moe_data *d = &job->data;
	uint32_t ranks = (uint32_t)job->opts->ranks;
	uint32_t blocks = epf_moe_layout(r->moe)->blocks;

	for (uint32_t b = 0; b < blocks; b++) {
		for (uint32_t i = 0; i < epf_moe_block_rows(r->moe, b); i++) {
			const struct epf_moe_head *row = epf_moe_row(r->moe, b, i);
			uint16_t *out = epf_moe_out(r->moe, b, i);

			dequantise(d, epf_moe_row_payload(r->moe, row), d->deq);
			if (job->opts->mode == EPF_MOE_HT && head_is_sane(d, row))
				sum_experts(d, r->rank, row->source, row->token, out);
			else
				moe_expert(r->rank * d->local_experts + b / ranks, d->deq,
					   (uint32_t)job->opts->hidden, out);
		}
	}
}

/* ---- what combine must give ---- */

/* ll: the reference asks for an expert's row of the token in d->deq. */
static const uint16_t *expert_row(void *arg, int expert, int src, int token)
{
	struct moe_data *d = arg;

	moe_expert((uint32_t)expert, d->deq, (uint32_t)d->opts->hidden, d->y);
	return d->y;
}

/* ht: a rank's row of the token in d->deq. */
static const uint16_t *rank_row(void *arg, int dst, int src, int token)
{
	struct moe_data *d = arg;

	sum_experts(d, (uint32_t)dst, (uint32_t)src, (uint32_t)token, d->y2);
	return d->y2;
}

void moe_check_combine(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph)
{
	struct moe_data *d = &job->data;
	size_t h = job->opts->hidden;
	uint16_t *want = malloc(2 * h);

	for (int t = 0; t < d->tokens[r->rank] && want; t++) {
		int err;

		/* moe_check_input() has compared this row with the reference's. */
		payload_fast(d, r->x + (size_t)t * h, d->payload);
		dequantise(d, d->payload, d->deq);
		err = job->opts->mode == EPF_MOE_HT
			      ? ref_ht_combine(&d->job, (int)r->rank, t, rank_row, d, want)
			      : ref_ll_combine(&d->job, (int)r->rank, t, expert_row, d, want);
		if (err || memcmp(want, r->out + (size_t)t * h, 2 * h))
			moe_wrong(job, ph, "rank %u, token %d: wrong result of combine", r->rank,
				  t);
	}
	if (!want)
		moe_wrong(job, ph, "rank %u: no memory for the check", r->rank);
	free(want);
}
