/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench core --recorder: what the flight recorder costs. The same core under the same commands with and without it, a ring full in turn,
 * so that both see the same machine. Called by main.c, which makes the commands and checks what came of them.
 */
#ifndef EPF_BENCH_CORE_RECORDER_H
#define EPF_BENCH_CORE_RECORDER_H

#include "fabric/engine/bench_core.h"

#include <stdbool.h>

/* Of all pairs of one run: cycles of the core with the recorder over those without it. */
struct core_recorder_run {
	unsigned pairs;
	double ratio;  /* median of the pairs' ratios */
	double cycles; /* a command, without: median */
};

/*
 * Pushes the table again and again and steps the core, on this thread, for so long. *out is set in any case. Returns how many commands
 * were pushed; all are retired.
 */
uint64_t bench_core_recorder_step(struct epf_bench_core *bc, const struct epf_cmd *table,
				  uint32_t n_table, double seconds, struct core_recorder_run *out);

/* Prints the medians of n runs, 1 at least, or JSON. Returns an exit code: BENCH_WRONG where wrong is not 0. */
int bench_core_recorder_report(const struct core_recorder_run *runs, size_t n, int wrong,
			       bool json);

#endif
