/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench moe --both: the embedded run and the one through daemons in one table, or one JSON object. Called by the parent
 * when both have ended. Judges each run as report.c does, and nothing about their speeds.
 */
#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "bench/moe/moe.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

enum { EMBEDDED, SERVICE, RUNS };

struct row {
	const char *mode;
	const char *phase;
	uint64_t tokens;
};

static double ratio(double embedded, double service)
{
	return embedded > 0 ? service / embedded : 0;
}

static void print_real(const struct row *w, const char *what, const double v[RUNS], int digits)
{
	printf(" %4s %10s %8" PRIu64 "  %-12s %15.*f %15.*f %9.3f\n", w->mode, w->phase, w->tokens,
	       what, digits, v[EMBEDDED], digits, v[SERVICE], ratio(v[EMBEDDED], v[SERVICE]));
}

static void print_count(const struct row *w, const char *what, uint64_t embedded, uint64_t service)
{
	printf(" %4s %10s %8" PRIu64 "  %-12s %15" PRIu64 " %15" PRIu64, w->mode, w->phase,
	       w->tokens, what, embedded, service);
	if (embedded)
		printf(" %9.3f\n", ratio((double)embedded, (double)service));
	else
		printf(" %9s\n", "-");
}

static void print_phase(const struct moe_opts *o, const struct moe_summary s[RUNS], int p)
{
	const struct row w = { .mode = o->mode == EPF_MOE_HT ? "ht" : "ll",
			       .phase = moe_phase_name[p],
			       .tokens = o->tokens };
	const struct moe_phase *e = &s[EMBEDDED].mean[p];
	const struct moe_phase *v = &s[SERVICE].mean[p];
	const double us[RUNS] = { s[EMBEDDED].us[p], s[SERVICE].us[p] };
	const double gb[RUNS] = { moe_gb_per_second(&s[EMBEDDED], p),
				  moe_gb_per_second(&s[SERVICE], p) };

	print_real(&w, "time_us", us, 1);
	print_real(&w, "GB/s", gb, 3);
	print_count(&w, "internode_B", e->bytes_remote_node, v->bytes_remote_node);
	print_count(&w, "intranode_B", e->bytes_same_node, v->bytes_same_node);
	print_count(&w, "commands", e->commands, v->commands);
	print_count(&w, "doorbells", e->doorbells, v->doorbells);
	print_count(&w, "#wrong", s[EMBEDDED].wrong[p], s[SERVICE].wrong[p]);
}

static void print_table(const struct moe_opts *o, const struct moe_result r[RUNS],
			const struct moe_summary s[RUNS], const double seconds[RUNS])
{
	static const char *const name[RUNS] = { "embedded", "service" };

	moe_print_head(o, ", engines embedded and in a daemon a node");
	printf("#\n#%4s %10s %8s  %-12s %15s %15s %9s\n", "mode", "phase", "tokens", "what",
	       name[EMBEDDED], name[SERVICE], "ratio");
	for (int p = 0; p < MOE_PHASES; p++)
		print_phase(o, s, p);
	printf("#\n# rows received and checked: %" PRIu64 " embedded, %" PRIu64 " service\n",
	       r[EMBEDDED].received_rows, r[SERVICE].received_rows);
	printf("# state per peer rank: %" PRIu64 " bytes embedded, %" PRIu64 " bytes service\n",
	       r[EMBEDDED].bytes_per_peer, r[SERVICE].bytes_per_peer);
	printf("# peak memory of all ranks and daemons: %.2f GiB embedded, %.2f GiB service; %.1f s and %.1f s in all\n",
	       (double)r[EMBEDDED].peak_bytes / (1u << 30),
	       (double)r[SERVICE].peak_bytes / (1u << 30), seconds[EMBEDDED], seconds[SERVICE]);
	for (int i = 0; i < RUNS; i++)
		if (s[i].note[0])
			printf("# first wrong, %s: %s\n", name[i], s[i].note);
	printf("# wrong: %" PRIu64 "\n", s[EMBEDDED].wrong_sum + s[SERVICE].wrong_sum);
}

static void print_json(const struct moe_opts *o, const struct moe_result r[RUNS],
		       const struct moe_summary s[RUNS], const double seconds[RUNS])
{
	struct moe_opts embedded = *o, service = *o;

	embedded.service = false;
	service.service = true;
	bench_print_json(
		json_pack("{s:s, s:o, s:o, s:f, s:f, s:I}", "bench", "moe", "embedded",
			  moe_json(&embedded, &r[EMBEDDED], &s[EMBEDDED], seconds[EMBEDDED]),
			  "service", moe_json(&service, &r[SERVICE], &s[SERVICE], seconds[SERVICE]),
			  "dispatch_service_to_embedded",
			  ratio(s[EMBEDDED].us[MOE_DISPATCH], s[SERVICE].us[MOE_DISPATCH]),
			  "combine_service_to_embedded",
			  ratio(s[EMBEDDED].us[MOE_COMBINE], s[SERVICE].us[MOE_COMBINE]), "wrong",
			  (json_int_t)(s[EMBEDDED].wrong_sum + s[SERVICE].wrong_sum)));
}

int moe_report_both(const struct moe_opts *o, const struct moe_result r[RUNS],
		    const double seconds[RUNS])
{
	struct moe_summary s[RUNS];

	for (int i = 0; i < RUNS; i++)
		moe_summarise(o, &r[i], &s[i]);
	if (o->json)
		print_json(o, r, s, seconds);
	else
		print_table(o, r, s, seconds);
	fflush(stdout);
	return s[EMBEDDED].wrong_sum || s[SERVICE].wrong_sum ? BENCH_WRONG : BENCH_OK;
}
