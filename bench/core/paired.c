/* SPDX-License-Identifier: Apache-2.0 */
/* See paired.h. */
#include "bench/core/paired.h"

#include "bench/common/bench.h"
#include "bench/common/compare.h"
#include "bench/common/json.h"

#include <stdio.h>

void core_load_push(struct core_load *l)
{
	while (epf_ring_push(&l->ring, l->table[l->at]))
		if (++l->at == l->n_table)
			l->at = 0;
}

int bench_core_paired_report(const struct core_paired_run *runs, size_t n, bool top, int wrong,
			     bool json)
{
	double ratio[BENCH_ROUNDS_MAX], cycles[BENCH_ROUNDS_MAX], share[BENCH_ROUNDS_MAX];
	double median, without;
	unsigned pairs = 0;

	for (size_t i = 0; i < n; i++) {
		ratio[i] = runs[i].ratio;
		cycles[i] = runs[i].cycles;
		share[i] = runs[i].top_share;
		pairs += runs[i].pairs;
		wrong += top && runs[i].drawn <= 0;
	}
	median = bench_median(ratio, n); /* sorts */
	without = bench_median(cycles, n);
	if (json) {
		json_t *j = json_pack("{s:s,s:i,s:i,s:f,s:f,s:f,s:f,s:i}", "schema",
				      top ? "epf.bench.beside-top/1" : "epf.bench.recorder/1",
				      "runs", (int)n, "pairs", (int)pairs, "ratio", median,
				      "ratio_least", ratio[0], "ratio_most", ratio[n - 1],
				      "cycles_per_command_without", without, "wrong", wrong);

		if (top) {
			json_object_set_new(j, "top_cpu_share", json_real(bench_median(share, n)));
			json_object_set_new(j, "cpus", json_integer(bench_cpus()));
		}
		bench_print_json(j);
		return wrong ? BENCH_WRONG : BENCH_OK;
	}
	if (top)
		printf("# ep-bench core --beside-top: CPU time of the core beside an ep-top that reads every 100 ms over that beside none, alternating: %u pairs in %zu runs on %u CPUs\n",
		       pairs, n, bench_cpus());
	else
		printf("# ep-bench core --recorder: cycles of the core with the flight recorder over those without it, alternating: %u pairs in %zu runs\n",
		       pairs, n);
	printf("%-40s %.4f (%.4f to %.4f in single runs)\n",
	       top ? "beside_top_ratio" : "recorder_ratio", median, ratio[0], ratio[n - 1]);
	printf("cycles_per_command_without               %.2f\n", without);
	if (top)
		printf("top_cpu_share                            %.4f\n", bench_median(share, n));
	printf("# wrong: %d\n", wrong);
	return wrong ? BENCH_WRONG : BENCH_OK;
}
