/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep-bench core --recorder and --beside-top share: the same core under the same commands with something and without it, alternating,
 * so that both see the same machine.
 */
#ifndef EPF_BENCH_CORE_PAIRED_H
#define EPF_BENCH_CORE_PAIRED_H

#include "fabric/engine/bench_core.h"
#include "queues/epf_ring.h"

#include <stdbool.h>
#include <stddef.h>

/* Commands that one thread pushes again and again. */
struct core_load {
	struct epf_bench_core *bc;
	struct epf_ring_producer ring;
	const struct epf_cmd *table;
	uint32_t n_table, at;
};

/* All pairs of one run. */
struct core_paired_run {
	unsigned pairs;
	double ratio; /* cycles of a command with it over those without: median of the pairs' ratios */
	double cycles;    /* a command, without: median */
	double top_share; /* --beside-top: of one CPU, that ep-top took while it ran */
	double drawn;     /* --beside-top: bytes that it drew while it ran: proof that it did */
};

/* Fills the ring. */
void core_load_push(struct core_load *l);

/* Prints the medians of n runs, 1 at least, or JSON. Returns an exit code: BENCH_WRONG if wrong is not 0 or ep-top drew nothing. */
int bench_core_paired_report(const struct core_paired_run *runs, size_t n, bool top, int wrong,
			     bool json);

#endif
