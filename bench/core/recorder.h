/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench core --recorder: what the flight recorder costs. The same core under the same commands with and without it, alternating per full ring,
 * so that both see the same machine. Called by main.c, which makes the commands and checks what came of them.
 */
#ifndef EPF_BENCH_CORE_RECORDER_H
#define EPF_BENCH_CORE_RECORDER_H

#include "bench/core/paired.h"

/*
 * Pushes the table again and again and steps the core, on this thread, for so long. *out is set in any case. Returns how many commands
 * were pushed; all are retired.
 */
uint64_t bench_core_recorder_step(struct epf_bench_core *bc, const struct epf_cmd *table,
				  uint32_t n_table, double seconds, struct core_paired_run *out);

#endif
