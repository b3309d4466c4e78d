/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weighted sums of rows, a piece at a time, by a warp: at a token's home, and at a rank that sums before it sends. acc = +0; for each row in its turn
 * acc = acc + w * float(row), product and sum rounded each; then bf16(acc). One lane makes it for its channels, so the order never depends
 * on how work was spread.
 */
#ifndef EPF_KERNELS_LL_ADD_CUH
#define EPF_KERNELS_LL_ADD_CUH

#include "kernels/epf_ll.h"
#include "kernels/ll/epf_ll_half.cuh"
#include "kernels/ll/epf_ll_logfmt.cuh"

EPF_DEV_FN int ll_log(const struct ll_job *j)
{
	return (j->flags & EPF_LL_LOGFMT) != 0;
}

/* From row to row as they travel. */
EPF_DEV_FN uint32_t ll_stride(const struct ll_job *j)
{
	return ll_log(j) ? ll_log_bytes(j->hidden) : j->hidden * 2u;
}

/* What is added: a row, by its number, times a weight. */
struct ll_term {
	uint32_t slot; /* UINT32_MAX: nothing is added */
	float w;
};

/* The terms of a token: each lane has those of entries lane, lane + LL_LANES, ... */
#define LL_PASSES ((LL_TOPK + LL_LANES - 1u) / LL_LANES)

struct ll_token {
	struct ll_term term[LL_PASSES];
};

/* A piece of a token's sum: `span` vectors of eight channels a lane, a number that is known when this is compiled. */
struct ll_sum {
	float acc[LL_SPAN_SUMS][8];
};

EPF_DEV_FN void ll_sum_add(struct ll_sum *s, uint32_t i, const struct ll_vec *v, float w)
{
	for (uint32_t c = 0; c < 8u; c++) {
		uint32_t b = (v->w[c / 2u] >> (c % 2u * 16u)) & 0xffffu;

		s->acc[i][c] = ll_add(s->acc[i][c], ll_mul(w, ll_from_bf16(b)));
	}
}

/*
 * Adds rows in ascending entry: those of the lanes in `where`, of whose terms mine is this lane's. Up to LL_AHEAD rows are read before the first is
 * added. rows: where row 0 is, of so many bytes each. at: this lane's first vector of a row.
 */
EPF_DEV_FN void ll_sum_rows(struct ll_sum *s, uint32_t span, epf_lanes where, struct ll_term mine,
			    uint64_t rows, uint32_t stride, uint32_t hidden, uint32_t at, int log)
{
	uint32_t ahead = span == LL_SPAN ? LL_AHEAD : LL_AHEAD_SUMS;
	epf_lanes all = epf_lanes_where(1);

	while (where) {
		struct ll_vec v[LL_AHEAD][LL_SPAN_SUMS];
		float w[LL_AHEAD];
		uint32_t n = 0;

		LL_UNROLL
		for (uint32_t a = 0; a < ahead; a++) {
			uint32_t from = where ? epf_lanes_first(where) : 0;
			uint64_t row = rows + epf_lanes_get(all, mine.slot, from) * stride;

			w[a] = ll_float((uint32_t)epf_lanes_get(all, ll_bits(mine.w), from));
			LL_UNROLL
			for (uint32_t i = 0; i < LL_SPAN_SUMS; i++)
				if (i < span && where && at + i * LL_LANES < hidden / 8u)
					v[a][i] = log ? ll_log_load(row, hidden, at + i * LL_LANES)
						      : LL_AT(const struct ll_vec,
							      row)[at + i * LL_LANES];
			n += where != 0;
			where &= where - 1u;
		}
		LL_UNROLL
		for (uint32_t a = 0; a < ahead; a++)
			LL_UNROLL
		for (uint32_t i = 0; i < LL_SPAN_SUMS; i++)
			if (i < span && a < n && at + i * LL_LANES < hidden / 8u)
				ll_sum_add(s, i, &v[a][i], w[a]);
	}
}

EPF_DEV_FN void ll_sum_begin(struct ll_sum *s, uint32_t span)
{
	LL_UNROLL
	for (uint32_t i = 0; i < span * 8u; i++)
		s->acc[i / 8u][i % 8u] = 0.0f;
}

/* The sum into a row. at: as above. */
EPF_DEV_FN void ll_sum_store(const struct ll_sum *s, uint32_t span, uint64_t to, uint32_t hidden,
			     uint32_t at)
{
	struct ll_vec *out = LL_AT(struct ll_vec, to);

	LL_UNROLL
	for (uint32_t i = 0; i < LL_SPAN_SUMS; i++) {
		struct ll_vec v;

		/* One store of 16 bytes: four of 4 cross NVLink as four packets. */
		if (i >= span || at + i * LL_LANES >= hidden / 8u)
			continue;
		for (uint32_t c = 0; c < 4u; c++)
			v.w[c] = ll_to_bf16_pair(s->acc[i][2u * c], s->acc[i][2u * c + 1u]);
		out[at + i * LL_LANES] = v;
	}
}

/* One piece of a token's sum, into a row; a warp. span, log: known when this is compiled. */
EPF_DEV_FN void ll_sum_token(const struct ll_token *t, uint32_t span, uint64_t rows,
			     uint32_t stride, uint32_t hidden, uint32_t at, int log, uint64_t to)
{
	struct ll_sum s;

	ll_sum_begin(&s, span);
	LL_UNROLL
	for (uint32_t i = 0; i < LL_PASSES; i++)
		ll_sum_rows(&s, span, epf_lanes_where(t->term[i].slot != UINT32_MAX), t->term[i],
			    rows, stride, hidden, at, log);
	ll_sum_store(&s, span, to, hidden, at);
}

/*
 * The same of BF16 rows where sums are made at the sender. Not inlined: a combine needs it at the sender and at the token's home, and most of what a warp
 * does it does once, so that code which has been fetched already is worth something.
 */
EPF_DEV_COLD void ll_sum_of(struct ll_token t, uint64_t rows, uint32_t hidden, uint32_t at,
			    uint64_t to)
{
	ll_sum_token(&t, LL_SPAN_SUMS, rows, hidden * 2u, hidden, at, 0, to);
}

/* Pieces of a row of sums. */
EPF_DEV_FN uint32_t ll_sum_pieces(const struct ll_job *j, uint32_t span)
{
	uint32_t piece = LL_LANES * span * 8u;

	return (j->hidden + piece - 1u) / piece;
}

#endif
