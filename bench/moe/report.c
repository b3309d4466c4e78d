/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep-bench moe prints: a table with '#' lines around it, or one JSON object (fields in
 * bench/README.md). Adds up the results of the processes. Decides nothing but the exit code.
 */
#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "bench/moe/moe.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* The first of several rounds pays for untouched memory: it is checked, but not part of the times. */
static uint32_t first_timed(const struct moe_opts *o)
{
	return o->rounds > 1 ? 1 : 0;
}

static double phase_us(const struct moe_opts *o, const struct moe_result *r, int p)
{
	double us[MOE_ROUNDS_MAX];
	size_t n = 0;

	for (uint32_t i = first_timed(o); i < o->rounds; i++)
		us[n++] = (double)r->phase[i][p].ns / 1e3;
	return bench_median(us, n);
}

/* Sums over the timed rounds, for the means of a round. */
static struct moe_phase timed_mean(const struct moe_opts *o, const struct moe_result *r, int p)
{
	struct moe_phase m = { 0 };
	uint64_t n = o->rounds - first_timed(o);

	for (uint32_t i = first_timed(o); i < o->rounds; i++) {
		const struct moe_phase *ph = &r->phase[i][p];

		m.kernel_ns += ph->kernel_ns;
		m.cpu_ns += ph->cpu_ns;
		m.bytes_remote_node += ph->bytes_remote_node;
		m.bytes_same_node += ph->bytes_same_node;
		m.commands += ph->commands;
		m.doorbells += ph->doorbells;
	}
	m.kernel_ns /= n;
	m.cpu_ns /= n;
	m.bytes_remote_node /= n;
	m.bytes_same_node /= n;
	m.commands /= n;
	m.doorbells /= n;
	return m;
}

void moe_summarise(const struct moe_opts *o, const struct moe_result *r, struct moe_summary *s)
{
	memset(s, 0, sizeof(*s));
	snprintf(s->note, sizeof(s->note), "%s", r->first_wrong);
	for (int p = 0; p < MOE_PHASES; p++) {
		s->us[p] = phase_us(o, r, p);
		s->mean[p] = timed_mean(o, r, p);
		s->wrong[p] = moe_phase_wrong(o, r, p, s->note, sizeof(s->note));
		s->wrong_sum += s->wrong[p];
		s->moved += s->mean[p].bytes_remote_node + s->mean[p].bytes_same_node;
	}
	/* Rows that the reference counted, wherever they went: none moved would be wrong. */
	if (r->received_rows > 0 && s->moved == 0) {
		s->wrong_sum++;
		if (!s->note[0])
			snprintf(s->note, sizeof(s->note), "the engines counted no bytes");
	}
}

double moe_gb_per_second(const struct moe_summary *s, int p)
{
	double bytes = (double)(s->mean[p].bytes_remote_node + s->mean[p].bytes_same_node);

	return s->us[p] > 0 ? bytes / s->us[p] / 1e3 : 0;
}

static void print_faults(const struct moe_result *r)
{
	printf("#\n#");
	for (int f = 0; f < MOE_F_failovers; f++)
		if (r->fault[f].known)
			printf(" %s %" PRIu64, moe_fault_name[f], r->fault[f].count);
	printf("\n");
	/* Each end of a link counts for itself. */
	if (r->fault[MOE_F_failovers].count || r->fault[MOE_F_recoveries].count)
		printf("# failovers %" PRIu64 " recoveries %" PRIu64 " replays %" PRIu64
		       ", longest pause %.1f ms\n",
		       r->fault[MOE_F_failovers].count, r->fault[MOE_F_recoveries].count,
		       r->fault[MOE_F_replays].count,
		       (double)r->fault[MOE_F_failover_max_ns].count / 1e6);
}

void moe_print_head(const struct moe_opts *o, const char *how)
{
	printf("# ep-bench moe: %" PRIu64 " ranks on %" PRIu64
	       " nodes%s, %s, %s dispatch, bf16 combine\n",
	       o->ranks, o->nodes, how, o->mode == EPF_MOE_HT ? "high throughput" : "low latency",
	       o->fp8 ? "fp8" : "bf16");
	printf("# tokens/rank %" PRIu64 ", hidden %" PRIu64 ", top-%" PRIu64 " of %" PRIu64
	       " experts, routing %s, %s, seed %" PRIu64 ", rounds %" PRIu64 "%s\n",
	       o->tokens, o->hidden, o->topk, o->experts, moe_routing_name(o->routing),
	       o->unordered ? "unordered" : "ordered", o->seed, o->rounds,
	       o->rounds > 1 ? " (the first is checked, not timed)" : "");
}

static void print_table(const struct moe_opts *o, const struct moe_result *r,
			const struct moe_summary *s, double seconds)
{
	moe_print_head(o, o->service ? ", one daemon a node" : "");
	printf("#\n#%4s %10s %8s %13s %15s %15s %9s %10s %10s %7s\n", "mode", "phase", "tokens",
	       "time_us", "internode_B", "intranode_B", "GB/s", "commands", "doorbells", "#wrong");
	for (int p = 0; p < MOE_PHASES; p++)
		printf(" %4s %10s %8" PRIu64 " %13.1f %15" PRIu64 " %15" PRIu64 " %9.3f %10" PRIu64
		       " %10" PRIu64 " %7" PRIu64 "\n",
		       o->mode == EPF_MOE_HT ? "ht" : "ll", moe_phase_name[p], o->tokens, s->us[p],
		       s->mean[p].bytes_remote_node, s->mean[p].bytes_same_node,
		       moe_gb_per_second(s, p), s->mean[p].commands, s->mean[p].doorbells,
		       s->wrong[p]);
	if (!o->local)
		printf("# CPU time of a round: the ranks' own threads %.1f us in dispatch and %.1f us in combine; their processes%s %.1f us and %.1f us\n",
		       (double)s->mean[MOE_DISPATCH].kernel_ns / 1e3,
		       (double)s->mean[MOE_COMBINE].kernel_ns / 1e3,
		       o->service ? ", without the daemons," : "",
		       (double)s->mean[MOE_DISPATCH].cpu_ns / 1e3,
		       (double)s->mean[MOE_COMBINE].cpu_ns / 1e3);
	print_faults(r);
	printf("# rows received and checked: %" PRIu64 "; state per peer rank: %" PRIu64 " bytes\n",
	       r->received_rows, r->bytes_per_peer);
	printf("# peak memory of all ranks%s: %.2f GiB; %.1f s in all\n",
	       o->service ? " and daemons" : "", (double)r->peak_bytes / (1u << 30), seconds);
	if (s->note[0])
		printf("# first wrong: %s\n", s->note);
	printf("# wrong: %" PRIu64 "\n", s->wrong_sum);
}

static json_t *phase_json(const struct moe_summary *s, const struct moe_result *r,
			  const struct moe_opts *o, int p)
{
	uint64_t expected = 0;

	for (uint32_t i = first_timed(o); i < o->rounds; i++)
		expected += r->phase[i][p].expected_remote_node;
	expected /= o->rounds - first_timed(o);
	return json_pack("{s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:I, s:I, s:I}", "time_us", s->us[p],
			 "kernel_cpu_us", (double)s->mean[p].kernel_ns / 1e3, "cpu_us",
			 (double)s->mean[p].cpu_ns / 1e3, "internode_bytes",
			 (json_int_t)s->mean[p].bytes_remote_node, "internode_expected_bytes",
			 (json_int_t)expected, "intranode_bytes",
			 (json_int_t)s->mean[p].bytes_same_node, "gigabytes_per_second",
			 moe_gb_per_second(s, p), "commands", (json_int_t)s->mean[p].commands,
			 "doorbells", (json_int_t)s->mean[p].doorbells, "wrong",
			 (json_int_t)s->wrong[p]);
}

static json_t *shape_json(const struct moe_opts *o)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:I, s:I, s:b, s:b}",
			 "ranks", (json_int_t)o->ranks, "nodes", (json_int_t)o->nodes,
			 "tokens_per_rank", (json_int_t)o->tokens, "hidden", (json_int_t)o->hidden,
			 "topk", (json_int_t)o->topk, "experts", (json_int_t)o->experts, "dispatch",
			 o->fp8 ? "fp8" : "bf16", "mode", o->mode == EPF_MOE_HT ? "ht" : "ll",
			 "order", o->unordered ? "unordered" : "ordered", "routing",
			 moe_routing_name(o->routing), "seed", (json_int_t)o->seed, "rounds",
			 (json_int_t)o->rounds, "local", (int)o->local, "service", (int)o->service);
}

json_t *moe_json(const struct moe_opts *o, const struct moe_result *r, const struct moe_summary *s,
		 double seconds)
{
	json_t *j = json_pack(
		"{s:s, s:o, s:o, s:o, s:I, s:f, s:f, s:I, s:I, s:I, s:f, s:s}", "bench", "moe",
		"shape", shape_json(o), "dispatch", phase_json(s, r, o, MOE_DISPATCH), "combine",
		phase_json(s, r, o, MOE_COMBINE), "wrong", (json_int_t)s->wrong_sum, "dispatch_us",
		s->us[MOE_DISPATCH], "combine_us", s->us[MOE_COMBINE], "peak_memory_bytes",
		(json_int_t)r->peak_bytes, "bytes_per_peer", (json_int_t)r->bytes_per_peer,
		"rows_checked", (json_int_t)r->received_rows, "total_s", seconds, "first_wrong",
		s->note);

	for (int f = 0; j && f < MOE_FAULT_COUNT; f++)
		json_object_set_new(j, moe_fault_name[f],
				    r->fault[f].known ? json_integer((json_int_t)r->fault[f].count)
						      : json_null());
	return j;
}

int moe_report(const struct moe_opts *o, const struct moe_result *r, double seconds)
{
	struct moe_summary s;

	moe_summarise(o, r, &s);
	if (o->json)
		bench_print_json(moe_json(o, r, &s, seconds));
	else
		print_table(o, r, &s, seconds);
	fflush(stdout);
	return s.wrong_sum ? BENCH_WRONG : BENCH_OK;
}
