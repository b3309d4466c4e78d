/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench p2p --against rawverbs, the parent: starts the two ranks, collects the pairs of rates and prints medians and ratios.
 * Judges bytes, and speeds only where --gate says so.
 */
#include "bench/common/bench.h"
#include "bench/common/compare.h"
#include "bench/common/json.h"
#include "bench/common/spawn.h"
#include "bench/p2p/p2p.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FABRIC, BARE, RATIO, LIST, FIGURES };

struct size {
	uint64_t bytes;
	double v[FIGURES][BENCH_ROUNDS_MAX];
	double median[FIGURES];
	uint64_t rounds;
};

struct p2p_against {
	const struct p2p_opts *o;
	unsigned sizes;
	struct size size[32];
	uint64_t wrong;
	uint64_t broken;
};

void p2p_against_add(struct p2p_against *run, const struct p2p_pair *pair)
{
	run->broken = pair->broken > run->broken ? pair->broken : run->broken;
	for (unsigned i = 0; i < run->sizes; i++) {
		struct size *s = &run->size[i];

		if (s->bytes != pair->bytes || s->rounds == BENCH_ROUNDS_MAX)
			continue;
		s->v[FABRIC][s->rounds] = pair->fabric_per_second;
		s->v[BARE][s->rounds] = pair->bare_per_second;
		s->v[RATIO][s->rounds] = pair->fabric_per_second / pair->bare_per_second;
		s->v[LIST][s->rounds++] = pair->fabric_list;
	}
}

static void on_message(void *arg, uint32_t rank, const struct bench_message *m, const void *bytes)
{
	struct p2p_against *run = arg;
	struct p2p_pair pair;
	struct p2p_row last;

	if (m->kind == BENCH_MSG_RESULT && m->bytes == sizeof(last)) {
		memcpy(&last, bytes, sizeof(last));
		run->wrong += last.wrong;
	} else if (m->kind == BENCH_MSG_PROGRESS && m->bytes == sizeof(pair)) {
		memcpy(&pair, bytes, sizeof(pair));
		p2p_against_add(run, &pair);
	}
}

static void head(const struct p2p_opts *o)
{
	printf("---------------------------------------------------------------------------------------\n");
	printf("                    ep-bench put against a bare verbs post loop (RDMA_Write), two nodes\n");
	printf(" Device          : %s, %s\n", *o->device[0] ? o->device[0] : "any",
	       *o->device[1] ? o->device[1] : "any");
	printf(" TX depth        : %" PRIu64 "\t\tPost List      : %" PRIu64
	       "\t\tCQ Moderation  : %" PRIu64 "\n",
	       o->raw.depth, o->raw.list, o->raw.list);
	printf(" ibv_wr* API     : %s\t\tProcesses      : 1 each side, the same for both; the fabric's engine in %s\n",
	       o->raw.lists ? "OFF" : "ON",
	       o->threaded ? "a separate thread" : "the thread that puts");
	printf(" medians of %" PRIu64 " pairs, each of %" PRIu64
	       " alternating slices; list: writes of one post of the fabric, mean\n",
	       o->rounds, o->slices);
	printf("---------------------------------------------------------------------------------------\n");
	printf(" #bytes     #iterations    fabric[Mpps]       bare[Mpps]         fabric/bare    list\n");
}

/* Prints, or appends to the list, one size. Return: 1 when it is below the gate. */
static int print_size(const struct p2p_against *run, struct size *s, json_t *list)
{
	const struct p2p_opts *o = run->o;
	uint64_t n = o->iterations ? o->iterations : 1000;

	for (int f = 0; f < FIGURES; f++)
		s->median[f] = bench_median(s->v[f], s->rounds);
	if (list)
		json_array_append_new(
			list, json_pack("{s:I, s:f, s:f, s:f, s:f}", "bytes", (json_int_t)s->bytes,
					"fabric_writes_per_second", s->median[FABRIC],
					"bare_writes_per_second", s->median[BARE], "fabric_to_bare",
					s->median[RATIO], "fabric_list", s->median[LIST]));
	else
		printf(" %-7" PRIu64 "    %-10" PRIu64
		       "     %-10.6f         %-10.6f         %-7.3f        %-5.1f\n",
		       s->bytes, n, s->median[FABRIC] / 1e6, s->median[BARE] / 1e6,
		       s->median[RATIO], s->median[LIST]);
	if (s->median[RATIO] * 100 >= (double)o->gate)
		return 0;
	bench_complain("%" PRIu64 " bytes: %.1f %% of the bare loop's rate, below --gate %" PRIu64,
		       s->bytes, s->median[RATIO] * 100, o->gate);
	return 1;
}

struct p2p_against *p2p_against_new(const struct p2p_opts *o)
{
	struct p2p_against *run = calloc(1, sizeof(*run));
	uint64_t sizes[32];

	if (!run) {
		bench_complain("no memory for the results");
		return NULL;
	}
	run->o = o;
	run->sizes = p2p_sizes(o, sizes);
	for (unsigned i = 0; i < run->sizes; i++)
		run->size[i].bytes = sizes[i];
	return run;
}

int p2p_against_print(struct p2p_against *run, uint64_t wrong)
{
	const struct p2p_opts *o = run->o;
	json_t *list = o->json ? json_array() : NULL;
	int below = 0;

	if (!o->json)
		head(o);
	for (unsigned i = 0; i < run->sizes; i++)
		below += print_size(run, &run->size[i], list);
	if (o->json) {
		json_t *j = json_pack(
			"{s:s, s:s, s:I, s:I, s:s, s:I, s:I, s:b, s:o, s:I, s:I}", "bench", "p2p",
			"against", "rawverbs", "rounds", (json_int_t)o->rounds, "slices",
			(json_int_t)o->slices, "engine", o->threaded ? "thread" : "caller",
			"tx_depth", (json_int_t)o->raw.depth, "post_list", (json_int_t)o->raw.list,
			"use_old_post_send", (int)o->raw.lists, "sizes", list, "bare_failures",
			(json_int_t)run->broken, "wrong", (json_int_t)wrong);

		bench_print_json(j);
	} else {
		printf("---------------------------------------------------------------------------------------\n");
		if (run->broken)
			printf("# the bare loop's connection failed %" PRIu64
			       " times and was made again; those pairs were measured again\n",
			       run->broken);
		printf("# wrong: %" PRIu64 "\n", wrong);
	}
	return below;
}

int bench_p2p_against(const struct p2p_opts *o, int argc, char **argv)
{
	struct p2p_against *run = p2p_against_new(o);
	struct bench_spawn s = { .ranks = 2,
				 .command = "p2p-rank",
				 .argc = argc,
				 .argv = argv,
				 .timeout_ns = o->timeout_s * 1000000000ull,
				 .message = on_message,
				 .arg = run };
	int err;

	if (!run)
		return BENCH_WRONG;
	err = bench_spawn_run(&s);
	if (!err)
		err = p2p_against_print(run, run->wrong);
	if (!err && run->wrong)
		err = 1;
	free(run);
	return err ? BENCH_WRONG : BENCH_OK;
}
