/* SPDX-License-Identifier: Apache-2.0 */
/* One size of ep-bench p2p: the figures of its samples, and its line in the table and in the JSON. */
#include "bench/p2p/p2p.h"

#include "bench/common/bench.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

void p2p_statistics(double *v, uint64_t n, struct p2p_row *row)
{
	double sum = 0;
	double squares = 0;

	row->typical_us = bench_median(v, n); /* sorts */
	for (uint64_t i = 0; i < n; i++)
		sum += v[i];
	row->average_us = sum / (double)n;
	for (uint64_t i = 0; i < n; i++)
		squares += (v[i] - row->average_us) * (v[i] - row->average_us);
	row->stdev_us = sqrt(squares / (double)n);
	row->min_us = v[0];
	row->max_us = v[n - 1];
	row->p99_us = bench_percentile(v, n, 990);
	row->p999_us = bench_percentile(v, n, 999);
}

void p2p_print_head(const struct p2p_opts *o)
{
	printf("---------------------------------------------------------------------------------------\n");
	printf("                    ep-bench %s %s Test, %s\n", p2p_op_name[o->op],
	       o->test == P2P_LAT ? "Latency"
	       : o->both          ? "Bidirectional BW"
				  : "BW",
	       o->gpu         ? "GPU memory, two nodes"
	       : o->same_node ? "one node"
			      : "two nodes");
	printf("---------------------------------------------------------------------------------------\n");
	if (o->test == P2P_LAT)
		printf(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%% percentile[usec]   99.9%% percentile[usec]\n");
	else
		printf(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n");
}

void p2p_print_row(const struct p2p_opts *o, const struct p2p_row *r)
{
	char a[32], b[32];

	if (o->test == P2P_LAT)
		printf(" %-7" PRIu64 " %-10" PRIu64
		       "     %-7.2f        %-7.2f      %-7.2f          %-7.2f        %-7.2f         %-7s                %-7s\n",
		       r->bytes, r->iterations, r->min_us, r->max_us, r->typical_us, r->average_us,
		       r->stdev_us, bench_figure(r->p99_us, a), bench_figure(r->p999_us, b));
	else
		printf(" %-7" PRIu64 "    %-10" PRIu64
		       "       %-7s            %-7.2f\t\t     %-7.6f\n",
		       r->bytes, r->iterations, bench_figure(r->peak_mb_s, a), r->average_mb_s,
		       r->rate_mpps);
	fflush(stdout);
}

/* null: not reported. */
static json_t *figure(double v)
{
	return isnan(v) ? json_null() : json_real(v);
}

json_t *p2p_row_json(const struct p2p_opts *o, const struct p2p_row *r)
{
	const double mb = 1048576.0;

	if (o->test == P2P_LAT)
		return json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "bytes",
				 (json_int_t)r->bytes, "iterations", (json_int_t)r->iterations,
				 "min_us", r->min_us, "max_us", r->max_us, "typical_us",
				 r->typical_us, "average_us", r->average_us, "stdev_us",
				 r->stdev_us, "p99_us", figure(r->p99_us), "p999_us",
				 figure(r->p999_us));
	return json_pack("{s:I, s:I, s:o, s:f, s:f}", "bytes", (json_int_t)r->bytes, "iterations",
			 (json_int_t)r->iterations, "peak_bytes_per_second",
			 figure(r->peak_mb_s * mb), "average_bytes_per_second",
			 r->average_mb_s * mb, "messages_per_second", r->rate_mpps * 1e6);
}
