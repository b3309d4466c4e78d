/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench p2p --service: the same transfers between the same two rank processes, engines inside them and in daemons, alternating
 * in one run; medians of the rounds side by side. Judges bytes, never speeds.
 */
#include "bench/p2p/p2p.h"

#include "bench/common/bench.h"
#include "bench/common/compare.h"
#include "bench/common/daemons.h"
#include "bench/common/json.h"
#include "bench/common/spawn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 32, EXTRA_WORDS = 6 };

/* Transfers of the bandwidth test where nothing is asked for: over a gigabyte, so that the beginning does not count. */
#define STREAM "20000"

/* One test: its figure is the typical latency (us) or the average bandwidth (bytes a second). */
struct test {
	const struct p2p_opts *o; /* as the ranks read it */
	int argc;
	char **argv;
	unsigned sizes;
	uint64_t size[SIZES_MAX];
	struct bench_pairs *figure; /* [sizes] */
	/* where the next row goes */
	enum bench_place place;
	uint64_t round;
	unsigned rows;
	uint64_t wrong;
};

static void on_message(void *arg, uint32_t rank, const struct bench_message *m, const void *bytes)
{
	struct test *t = arg;
	struct p2p_row r;

	if (m->bytes != sizeof(r))
		return;
	memcpy(&r, bytes, sizeof(r));
	t->wrong += r.wrong;
	if (rank != 0 || r.bytes == 0 || t->rows >= t->sizes)
		return;
	t->figure[t->rows++].v[t->place][t->round] =
		t->o->test == P2P_LAT ? r.typical_us : r.average_mb_s * 1048576.0;
}

static int one_place(struct test *t, enum bench_place place, uint64_t round)
{
	struct bench_daemons_options d = { .nodes = t->o->same_node ? 1 : 2,
					   .program = t->o->fabric_program,
					   .settings = t->o->setting };
	struct bench_spawn s = { .ranks = 2,
				 .command = "p2p-rank",
				 .argc = t->argc,
				 .argv = t->argv,
				 .timeout_ns = t->o->timeout_s * 1000000000ull,
				 .message = on_message,
				 .arg = t };

	t->place = place;
	t->round = round;
	t->rows = 0;
	return place == BENCH_SERVICE ? bench_daemons_run(&d, &s) : bench_spawn_run(&s);
}

static void print_test(struct test *t, json_t *list)
{
	bool lat = t->o->test == P2P_LAT;

	for (unsigned i = 0; i < t->sizes; i++) {
		double ratio = bench_pairs_ratio(&t->figure[i], t->o->rounds);
		double e = bench_pairs_median(&t->figure[i], BENCH_EMBEDDED, t->o->rounds);
		double s = bench_pairs_median(&t->figure[i], BENCH_SERVICE, t->o->rounds);

		if (list && lat)
			json_array_append_new(list, json_pack("{s:I, s:f, s:f, s:f, s:f}", "bytes",
							      (json_int_t)t->size[i], "embedded_us",
							      e, "service_us", s, "added_us", s - e,
							      "service_to_embedded", ratio));
		else if (list)
			json_array_append_new(list, json_pack("{s:I, s:f, s:f, s:f}", "bytes",
							      (json_int_t)t->size[i],
							      "embedded_bytes_per_second", e,
							      "service_bytes_per_second", s,
							      "service_to_embedded", ratio));
		else if (lat)
			printf(" %9" PRIu64 " lat %14.2f us   %14.2f us   %8.3f %+12.2f us\n",
			       t->size[i], e, s, ratio, s - e);
		else
			printf(" %9" PRIu64 " bw  %14.2f MB/s %14.2f MB/s %8.3f %15s\n", t->size[i],
			       e / 1048576.0, s / 1048576.0, ratio, "-");
	}
}

/* The words of the parent, then those that this test needs: the last of its kind wins. */
static int run_test(const struct p2p_opts *parent, enum p2p_test which, int argc, char **argv,
		    json_t *list, uint64_t *wrong)
{
	char *words[] = { "--test", which == P2P_LAT ? "lat" : "bw", "-s", "65536", "-n", STREAM };
	bool stream = which == P2P_BW && !parent->size_given && !parent->all;
	int extra = !stream ? 2 : parent->iterations || parent->duration_s ? 4 : 6;
	struct p2p_opts o = *parent;
	struct test t = { .o = &o, .argc = argc + extra };
	int err = 0;

	o.test = which;
	if (stream)
		o.size = 65536;
	t.argv = calloc((size_t)argc + EXTRA_WORDS + 1, sizeof(*t.argv));
	t.sizes = p2p_sizes(&o, t.size);
	t.figure = calloc(t.sizes, sizeof(*t.figure));
	if (!t.argv || !t.figure) {
		bench_complain("no memory for %u sizes", t.sizes);
		err = -ENOMEM;
	} else {
		memcpy(t.argv, argv, (size_t)argc * sizeof(*argv));
		memcpy(t.argv + argc, words, (size_t)extra * sizeof(*words));
	}
	for (uint64_t i = 0; i < o.rounds && !err; i++) {
		for (int half = 0; half < BENCH_PLACES && !err; half++)
			err = one_place(&t, (enum bench_place)((i + (uint64_t)half) & 1), i);
	}
	if (!err)
		print_test(&t, list);
	*wrong += t.wrong;
	free(t.argv);
	free(t.figure);
	return err;
}

static void head(const struct p2p_opts *o)
{
	printf("# ep-bench p2p --service: %s between two rank processes on %s, engines in them (embedded) and in daemons (service)\n",
	       p2p_op_name[o->op], o->same_node ? "one node" : "two nodes");
	printf("# medians of %" PRIu64
	       " rounds in each place, alternating, on %u CPUs; lat: typical; bw: average%s; ratio: median of the rounds'\n",
	       o->rounds, bench_cpus(), o->both ? ", both directions at once" : "");
	if (!o->same_node && bench_cpus() > 1)
		printf("# engine of node 0 on CPU %d, of node 1 on CPU %d, in both places (unless --set cpu says otherwise)\n",
		       bench_cpu_number(0), bench_cpu_number(1));
	printf("#\n#%9s test %17s %19s %8s %15s\n", "bytes", "embedded", "service", "ratio",
	       "added");
}

int bench_p2p_service(const struct p2p_opts *o, int argc, char **argv)
{
	json_t *list[2] = { NULL, NULL };
	uint64_t wrong = 0;
	int err = 0;

	(void)unsetenv("EPF_SERVICE"); /* or the embedded half would be no such thing */
	if (!o->json)
		head(o);
	for (int t = P2P_LAT; t <= P2P_BW && !err; t++) {
		list[t] = o->json ? json_array() : NULL;
		if (!o->test_given || (int)o->test == t)
			err = run_test(o, (enum p2p_test)t, argc, argv, list[t], &wrong);
	}
	if (!err && o->json) {
		json_t *j = json_pack("{s:s, s:s, s:b, s:b, s:I, s:O, s:O, s:I}", "bench", "p2p",
				      "op", p2p_op_name[o->op], "bidirectional", (int)o->both,
				      "same_node", (int)o->same_node, "rounds",
				      (json_int_t)o->rounds, "latency", list[P2P_LAT], "bandwidth",
				      list[P2P_BW], "wrong", (json_int_t)wrong);

		bench_print_json(j);
	} else if (!err) {
		printf("# wrong: %" PRIu64 "\n", wrong);
	}
	json_decref(list[P2P_LAT]);
	json_decref(list[P2P_BW]);
	return err || wrong ? BENCH_WRONG : BENCH_OK;
}
