/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench jobs: how much a bulk job disturbs a decode-like job on the same two daemons. Three forms, alternating, several times: the decode job
 * alone, beside the bulk job, and beside it with the daemons' fairness between jobs switched off. This file: options, parent,
 * output. It judges data, never times.
 */
#include "bench/jobs/jobs.h"

#include "bench/common/bench.h"
#include "bench/common/compare.h"
#include "bench/common/daemons.h"
#include "bench/common/json.h"
#include "bench/common/spawn.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	O_DECODE = 256,
	O_BULK,
	O_BULK_JOBS,
	O_TOKENS,
	O_ROUNDS,
	O_REPEAT,
	O_TIMEOUT,
	O_JSON,
	O_SET,
	O_PROGRAM
};

static const char *const form_name[JOBS_FORMS] = { "alone", "fair", "unfair" };

static const struct argp_option options[] = {
	{ "decode-ranks", O_DECODE, "R", 0, "ranks of the decode job, on 2 nodes (2)", 0 },
	{ "bulk-ranks", O_BULK, "R", 0, "ranks of the bulk job, on the same 2 nodes (2)", 0 },
	{ "bulk-jobs", O_BULK_JOBS, "N", 0, "bulk jobs of so many ranks each (1)", 0 },
	{ "tokens", O_TOKENS, "T", 0, "rows that a decode rank sends in a round (16)", 0 },
	{ "rounds", O_ROUNDS, "N", 0,
	  "rounds of the decode job that are timed; there is a p99 from 1000 on (1000)", 0 },
	{ "repeat", O_REPEAT, "N", 0, "how often each form runs, alternating; medians count (5)",
	  0 },
	{ "timeout-s", O_TIMEOUT, "S", 0, "deadline of one form (60)", 0 },
	{ "set", O_SET, "[NODE:]NAME=VALUE", 0,
	  "any option of the fabric, of all nodes or one; may be repeated", 0 },
	{ "fabric-program", O_PROGRAM, "PATH", 0,
	  "ep-fabric of the daemons (the one beside ep-bench)", 0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object, see bench/README.md", 0 },
	{ 0 },
};

static int parse_number(int key, char *arg, struct jobs_opts *o)
{
	switch (key) {
	case O_DECODE:
		return bench_uint("--decode-ranks", arg, 2, JOBS_RANKS_MAX, &o->decode_ranks);
	case O_BULK:
		return bench_uint("--bulk-ranks", arg, 2, JOBS_RANKS_MAX, &o->bulk_ranks);
	case O_BULK_JOBS:
		return bench_uint("--bulk-jobs", arg, 1, BENCH_OTHERS_MAX, &o->bulk_jobs);
	case O_TOKENS:
		return bench_uint("--tokens", arg, 1, 1024, &o->tokens);
	case O_ROUNDS:
		return bench_uint("--rounds", arg, 1, JOBS_ROUNDS_MAX, &o->rounds);
	case O_REPEAT:
		return bench_uint("--repeat", arg, 1, BENCH_ROUNDS_MAX, &o->repeat);
	case O_TIMEOUT:
		return bench_uint("--timeout-s", arg, 1, 86400, &o->timeout_s);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct jobs_opts *o = state->input;
	int err;

	switch (key) {
	case O_JSON:
		o->json = true;
		return 0;
	case O_SET:
		return bench_setting_add(o->setting, &o->settings, JOBS_SETTINGS_MAX, arg) ? EINVAL
											   : 0;
	case O_PROGRAM:
		o->fabric_program = arg;
		return 0;
	case ARGP_KEY_ARG:
		bench_complain("%s is not an option; see ep-bench jobs --help", arg);
		return EINVAL;
	default:
		err = parse_number(key, arg, o);
		return err == ARGP_ERR_UNKNOWN ? ARGP_ERR_UNKNOWN : err ? EINVAL : 0;
	}
}

int jobs_opts_parse(int argc, char **argv, struct jobs_opts *o)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "A decode-like job (small rounds with pauses, timed) alone, beside a job of large puts on the same two "
		       "daemons, and beside it without fairness between jobs. Every byte of both jobs is checked.",
	};

	*o = (struct jobs_opts){ .decode_ranks = 2,
				 .bulk_ranks = 2,
				 .bulk_jobs = 1,
				 .tokens = 16,
				 .rounds = JOBS_P99_ROUNDS,
				 .repeat = 5,
				 .timeout_s = 60 };
	o->setting[o->settings++] = o->timeout_text; /* the user's come later and win */
	if (argp_parse(&argp, argc, argv, 0, NULL, o) ||
	    bench_settings_check(o->setting, JOBS_NODES))
		return BENCH_USAGE;
	if (o->json && o->rounds < JOBS_P99_ROUNDS) {
		bench_complain("--json has a p99, which needs --rounds %d or more",
			       JOBS_P99_ROUNDS);
		return BENCH_USAGE;
	}
	snprintf(o->timeout_text, sizeof(o->timeout_text), "wait-timeout=%" PRIu64 "ms",
		 bench_rank_limit_ns(o->timeout_s) / 1000000u);
	return 0;
}

/* What one form gave, run by run. */
struct form {
	double p50_us[BENCH_ROUNDS_MAX];
	double p99_us[BENCH_ROUNDS_MAX];
	double bulk_rate[BENCH_ROUNDS_MAX]; /* bytes a second, all bulk ranks */
	double decode_p50_us, decode_p99_us, bulk_bytes_per_second;
};

struct parent {
	const struct jobs_opts *o;
	struct jobs_shared *shared;
	int share_fd;
	struct form form[JOBS_FORMS];
	uint64_t wrong;
	/* of the run under way */
	double slowest[JOBS_ROUNDS_MAX]; /* us of each round's slowest rank */
	double bulk_rate;
};

static void on_message(void *arg, uint32_t rank, const struct bench_message *m, const void *bytes)
{
	struct parent *p = arg;
	struct jobs_result r;
	const char *samples = (const char *)bytes + sizeof(r);

	if (m->kind != BENCH_MSG_RESULT || m->bytes < sizeof(r))
		return;
	memcpy(&r, bytes, sizeof(r));
	p->wrong += r.wrong;
	if (rank >= p->o->decode_ranks) {
		p->bulk_rate += r.ns ? (double)r.bytes / ((double)r.ns / 1e9) : 0;
		return;
	}
	if (r.samples != p->o->rounds || m->bytes != sizeof(r) + r.samples * sizeof(uint32_t)) {
		p->wrong++;
		return;
	}
	for (uint64_t i = 0; i < r.samples; i++) {
		uint32_t ns;

		memcpy(&ns, samples + i * sizeof(ns), sizeof(ns));
		p->slowest[i] = ns / 1e3 > p->slowest[i] ? ns / 1e3 : p->slowest[i];
	}
}

static void take_run(struct parent *p, enum jobs_form form, uint64_t run)
{
	uint64_t n = p->o->rounds;
	struct form *f = &p->form[form];

	f->p50_us[run] = bench_median(p->slowest, n); /* sorts */
	f->p99_us[run] = bench_percentile(p->slowest, n, 990);
	f->bulk_rate[run] = p->bulk_rate;
}

static int run_form(struct parent *p, enum jobs_form form, uint64_t run, int argc, char **argv)
{
	const char *settings[JOBS_SETTINGS_MAX + 2];
	struct bench_daemons_options d = {
		.nodes = JOBS_NODES, .program = p->o->fabric_program, .settings = settings, .pin = 1
	};
	uint32_t bulk = form == JOBS_ALONE ? 0 : (uint32_t)(p->o->bulk_ranks * p->o->bulk_jobs);
	struct bench_spawn s = { .ranks = (uint32_t)p->o->decode_ranks + bulk,
				 .second = bulk,
				 .others = (uint32_t)p->o->bulk_jobs,
				 .share = p->share_fd,
				 .command = "jobs-rank",
				 .argc = argc,
				 .argv = argv,
				 .timeout_ns = p->o->timeout_s * 1000000000ull,
				 .message = on_message,
				 .arg = p };
	int err;

	memcpy(settings, p->o->setting, sizeof(settings));
	settings[p->o->settings] = form == JOBS_UNFAIR ? "service-fair=no" : NULL;
	memset(p->slowest, 0, sizeof(p->slowest));
	p->bulk_rate = 0;
	atomic_store(&p->shared->bulk_ranks, bulk);
	atomic_store(&p->shared->bulk_moving, 0);
	atomic_store(&p->shared->decode_done, 0);
	err = bench_daemons_run(&d, &s);
	if (!err)
		take_run(p, form, run);
	return err;
}

static json_t *form_json(const struct parent *p, enum jobs_form form)
{
	const struct form *f = &p->form[form];
	const struct form *alone = &p->form[JOBS_ALONE];
	json_t *j = json_pack("{s:f, s:f}", "p50_us", f->decode_p50_us, "p99_us", f->decode_p99_us);

	if (form == JOBS_ALONE)
		return j;
	json_object_set_new(j, "p50_to_alone",
			    json_real(bench_ratio(alone->decode_p50_us, f->decode_p50_us)));
	json_object_set_new(j, "p99_to_alone",
			    json_real(bench_ratio(alone->decode_p99_us, f->decode_p99_us)));
	json_object_set_new(j, "bulk_bytes_per_second", json_real(f->bulk_bytes_per_second));
	return j;
}

static void print_json(const struct parent *p)
{
	const struct jobs_opts *o = p->o;
	json_t *j = json_pack(
		"{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I}",
		"bench", "jobs", "decode_ranks", (json_int_t)o->decode_ranks, "bulk_ranks",
		(json_int_t)o->bulk_ranks, "bulk_jobs", (json_int_t)o->bulk_jobs, "tokens",
		(json_int_t)o->tokens, "row_bytes", (json_int_t)JOBS_ROW_BYTES, "rounds",
		(json_int_t)o->rounds, "pause_us", (json_int_t)JOBS_PAUSE_US, "bulk_bytes",
		(json_int_t)JOBS_BULK_BYTES, "repeat", (json_int_t)o->repeat, "cpus",
		(json_int_t)bench_cpus(), form_name[JOBS_ALONE], form_json(p, JOBS_ALONE),
		form_name[JOBS_FAIR], form_json(p, JOBS_FAIR), form_name[JOBS_UNFAIR],
		form_json(p, JOBS_UNFAIR), "wrong", (json_int_t)p->wrong);

	bench_print_json(j);
}

static void print_table(const struct parent *p)
{
	const struct jobs_opts *o = p->o;

	printf("# ep-bench jobs: %" PRIu64 " decode ranks and %" PRIu64 " ranks of each of %" PRIu64
	       " bulk jobs on the same %d daemons, %u CPUs\n",
	       o->decode_ranks, o->bulk_ranks, o->bulk_jobs, JOBS_NODES, bench_cpus());
	printf("# decode: rounds of %" PRIu64 " rows of %" PRIu64 " bytes a rank, %" PRIu64
	       " us of pause, %" PRIu64 " rounds; bulk: puts of %" PRIu64
	       " bytes; medians of %" PRIu64 " runs\n",
	       o->tokens, JOBS_ROW_BYTES, JOBS_PAUSE_US, o->rounds, JOBS_BULK_BYTES, o->repeat);
	printf("#\n#%-40s %10s %10s %12s %12s %12s\n", " decode job", "p50_us", "p99_us",
	       "p50/alone", "p99/alone", "bulk GB/s");
	for (int i = 0; i < JOBS_FORMS; i++) {
		static const char *const text[JOBS_FORMS] = { "alone", "beside bulk",
							      "beside bulk, service-fair=no" };
		const struct form *f = &p->form[i];
		const struct form *a = &p->form[JOBS_ALONE];

		printf(" %-40s %10.1f %10.1f %12.2f %12.2f %12.3f\n", text[i], f->decode_p50_us,
		       f->decode_p99_us, bench_ratio(a->decode_p50_us, f->decode_p50_us),
		       bench_ratio(a->decode_p99_us, f->decode_p99_us),
		       f->bulk_bytes_per_second / 1e9);
	}
	printf("# wrong: %" PRIu64 "\n", p->wrong);
}

static int open_shared(struct parent *p)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	void *at;

	p->share_fd = memfd_create("ep-bench", MFD_CLOEXEC);
	if (p->share_fd <= 0 || ftruncate(p->share_fd, (off_t)bytes))
		return -errno;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->share_fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	p->shared = at;
	return 0;
}

static void medians(struct form *f, size_t n)
{
	f->decode_p50_us = bench_median(f->p50_us, n);
	f->decode_p99_us = bench_median(f->p99_us, n);
	f->bulk_bytes_per_second = bench_median(f->bulk_rate, n);
}

int bench_jobs(int argc, char **argv)
{
	static struct parent p; /* large, and there is one */
	struct jobs_opts o;
	int err;

	if (jobs_opts_parse(argc, argv, &o))
		return BENCH_USAGE;
	p.o = &o;
	err = open_shared(&p);
	if (err)
		bench_complain("no page for the ranks to share: %s", strerror(-err));
	for (uint64_t run = 0; run < o.repeat && !err; run++)
		for (int form = 0; form < JOBS_FORMS && !err; form++)
			err = run_form(&p, (enum jobs_form)form, run, argc, argv);
	if (err)
		return BENCH_WRONG;
	for (int form = 0; form < JOBS_FORMS; form++)
		medians(&p.form[form], o.repeat);
	if (o.json)
		print_json(&p);
	else
		print_table(&p);
	return p.wrong ? BENCH_WRONG : BENCH_OK;
}
