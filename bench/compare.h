/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the forms of ep-bench that compare an embedded engine with a daemon's share: the two places, in turn in one run, so
 * that both see the same machine. Header only, bench/ only.
 */
#ifndef EPF_BENCH_COMPARE_H
#define EPF_BENCH_COMPARE_H

#include "bench/bench.h"

enum bench_place { BENCH_EMBEDDED, BENCH_SERVICE, BENCH_PLACES };

enum { BENCH_ROUNDS_MAX = 31 };

/* A figure of each round in both places; median() sorts them. */
struct bench_pairs {
	double v[BENCH_PLACES][BENCH_ROUNDS_MAX];
};

static inline double bench_pairs_median(struct bench_pairs *p, enum bench_place place, size_t n)
{
	return bench_median(p->v[place], n);
}

static inline double bench_ratio(double embedded, double service)
{
	return embedded > 0 ? service / embedded : 0;
}

#endif
