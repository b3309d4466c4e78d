/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench core --beside-top: what it costs a core that an ep-top reads its statistics ten times a second. The same core under the same
 * commands beside a running ep-top and beside one that is stopped, in turn. Called by main.c, which makes the commands and checks what came of
 * them. It must never leave an ep-top behind.
 */
#ifndef EPF_BENCH_CORE_TOP_H
#define EPF_BENCH_CORE_TOP_H

#include "fabric/engine/bench_core.h"

#include <stdbool.h>

enum { BENCH_CORE_TOP_DIR = 64 };

/* Of all pairs of slices of one run. */
struct core_top_run {
	unsigned pairs;
	double ratio;  /* cycles per command beside ep-top over those without: median */
	double cycles; /* a command, without: median; CPU time in ticks of the time-stamp counter */
	double top_share; /* of one CPU, that ep-top took while it ran */
	double drawn;     /* bytes that it drew while it ran: proof that it did */
};

/*
 * Starts an ep-top (program; NULL: the one beside this program) on a terminal of its own that shows what is in dir; pushes the table again and
 * again and steps the core, on this thread, for so long, one pair of slices at least. *pushed is set in any case: commands that were pushed, all retired. Returns
 * 0, or -errno after a complaint.
 */
int bench_core_top_step(struct epf_bench_core *bc, const struct epf_cmd *table, uint32_t n_table,
			const char *dir, const char *program, double seconds,
			struct core_top_run *out, uint64_t *pushed);

/* Prints the medians of n runs, 1 at least, or JSON. Returns an exit code: BENCH_WRONG where wrong is not 0 or ep-top drew nothing. */
int bench_core_top_report(const struct core_top_run *runs, size_t n, int wrong, bool json);

#endif
