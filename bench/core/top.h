/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench core --beside-top: what it costs a core that an ep-top reads its statistics ten times a second. The same core under the same
 * commands beside a running ep-top and beside one that is stopped, alternating. Called by main.c, which makes the commands and checks what came of
 * them. It must never leave an ep-top behind.
 */
#ifndef EPF_BENCH_CORE_TOP_H
#define EPF_BENCH_CORE_TOP_H

#include "bench/core/paired.h"

enum { BENCH_CORE_TOP_DIR = 64 };

/*
 * Starts an ep-top (program; NULL: the one beside this program) on a separate terminal that shows what is in dir; pushes the table again and
 * again and steps the core, on this thread, for so long, one pair of slices at least. *pushed is set in any case: commands that were pushed, all retired. Returns
 * 0, or -errno after a complaint.
 */
int bench_core_top_step(struct epf_bench_core *bc, const struct epf_cmd *table, uint32_t n_table,
			const char *dir, const char *program, double seconds,
			struct core_paired_run *out, uint64_t *pushed);

#endif
