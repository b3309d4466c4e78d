/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the forms of ep-bench that compare an embedded engine with a daemon's share: the two places, alternating in one run, so
 * that both see the same machine. Header only, bench/ only.
 */
#ifndef EPF_BENCH_COMPARE_H
#define EPF_BENCH_COMPARE_H

#include "bench/common/bench.h"

enum bench_place { BENCH_EMBEDDED, BENCH_SERVICE, BENCH_PLACES };

enum { BENCH_ROUNDS_MAX = 31 };

/* A figure of each round in both places; median() sorts them, so the ratio comes first. */
struct bench_pairs {
	double v[BENCH_PLACES][BENCH_ROUNDS_MAX];
};

static inline double bench_pairs_median(struct bench_pairs *p, enum bench_place place, size_t n)
{
	return bench_median(p->v[place], n);
}

/* Median of the rounds' own ratios, service to embedded: a neighbour that slows some rounds slows both halves of them. Unsorted rounds. */
static inline double bench_pairs_ratio(const struct bench_pairs *p, size_t n)
{
	double ratio[BENCH_ROUNDS_MAX];

	for (size_t i = 0; i < n; i++)
		ratio[i] = p->v[BENCH_EMBEDDED][i] > 0
				   ? p->v[BENCH_SERVICE][i] / p->v[BENCH_EMBEDDED][i]
				   : 0;
	return bench_median(ratio, n);
}

static inline double bench_ratio(double embedded, double service)
{
	return embedded > 0 ? service / embedded : 0;
}

#endif
