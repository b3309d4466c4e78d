/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See recorder.h. One thread pushes a ring full of commands, then steps the core until all are retired; only the steps are timed. With
 * one thread no other CPU's misses hide what the recorder costs, and a busy machine spoils few pairs: medians leave those out.
 */
#include "bench/core/recorder.h"

#include "bench/common/bench.h"
#include "fabric/base/clock.h"

#include <stdio.h>
#include <stdlib.h>

enum { PAIRS_MOST = 16384, WARM_UP = 200 };

/* Cycles of the core for one ring full. */
static double step_ring(struct core_load *l, bool on)
{
	struct epf_core *core = epf_bench_core_of(l->bc);
	uint64_t before = l->ring.pushed, begin, cycles;

	epf_bench_core_recorder(l->bc, on);
	core_load_push(l);
	begin = epf_tsc();
	while (epf_ring_retired(&l->ring) != l->ring.pushed)
		(void)epf_core_step(core);
	cycles = epf_tsc() - begin;
	return (double)cycles / (double)(l->ring.pushed - before);
}

uint64_t bench_core_recorder_step(struct epf_bench_core *bc, const struct epf_cmd *table,
				  uint32_t n_table, double seconds, struct core_paired_run *out)
{
	struct core_load l = { .bc = bc, .table = table, .n_table = n_table };
	double *ratio = malloc(PAIRS_MOST * sizeof(*ratio));
	double *without = malloc(PAIRS_MOST * sizeof(*without));
	uint64_t end = epf_now_ns() + (uint64_t)(seconds * 1e9);
	unsigned n = 0;

	epf_ring_producer_init(&l.ring, epf_bench_core_ring(bc, 0), 0);
	bench_pin(0);
	for (int i = 0; i < WARM_UP; i++)
		(void)step_ring(&l, i & 1);
	while (ratio && without && n < PAIRS_MOST && (n == 0 || epf_now_ns() < end)) {
		double cycles[2]; /* without, with; which comes first alternates */

		cycles[n & 1] = step_ring(&l, n & 1);
		cycles[~n & 1] = step_ring(&l, ~n & 1);
		ratio[n] = cycles[1] / cycles[0];
		without[n++] = cycles[0];
	}
	*out = (struct core_paired_run){ .pairs = n };
	if (n) {
		out->ratio = bench_median(ratio, n);
		out->cycles = bench_median(without, n);
	}
	free(ratio);
	free(without);
	return l.ring.pushed;
}
