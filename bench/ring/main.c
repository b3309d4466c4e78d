/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench ring: the command ring alone, between two threads, beside a bare rte_ring: commands a
 * second at several burst sizes, and the round trip over two rings. No engine.
 */
#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "bench/common/pair.h"
#include "bench/common/rte.h"
#include "bench/ring/gpu_cmd.h"
#include "fabric/base/clock.h"
#include "queues/epf_ring.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS_MAX    31
#define ROUND_TRIPS 20000u
#define SLOTS       4096u

enum {
	O_RUNS = 256,
	O_MS,
	O_JSON,
	O_GPU,
	O_BACKEND,
	O_DEVICE,
	O_COMMANDS,
	O_CORES,
	O_TRIPS,
	O_PARTS,
	O_SET
};

#define SETTINGS_MAX 16

struct opts {
	uint64_t runs;
	uint64_t ms;
	bool json;
	bool gpu;
	struct ring_gpu_opts g;
	const char *settings[SETTINGS_MAX + 1];
	uint32_t n_settings;
};

static const unsigned bursts[] = { 1, 8, 32, 128 };

#define BURSTS (sizeof(bursts) / sizeof(bursts[0]))

struct line {
	unsigned burst;
	double ours;
	double rte;
	int same;
};

static const struct argp_option options[] = {
	{ "runs", O_RUNS, "N", 0, "runs of each measurement, the median counts (5)", 0 },
	{ "duration-ms", O_MS, "MS", 0, "length of a run (200)", 0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object, see bench/README.md", 0 },
	{ "gpu", O_GPU, NULL, 0,
	  "commands from a GPU's kernels in place of a thread; exit 77 without a GPU", 1 },
	{ "gpu-backend", O_BACKEND, "NAME", 0, "auto, cuda, hip or fake (auto)", 1 },
	{ "gpu-device", O_DEVICE, "N", 0, "number of the GPU (0)", 1 },
	{ "commands", O_COMMANDS, "N", 0,
	  "checked commands from each kind of ring, about (100000000)", 1 },
	{ "cores", O_CORES, "N", 0, "consumers where there are several (4)", 1 },
	{ "trips", O_TRIPS, "N", 0, "round trips of each measurement (20000)", 1 },
	{ "parts", O_PARTS, "LETTERS", 0, "of cvptxrbed, see bench/README.md (all)", 1 },
	{ "set", O_SET, "NAME=VALUE", 0, "a setting of the fabric, for the engine", 1 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct opts *o = state->input;

	switch (key) {
	case O_RUNS:
		return bench_uint("--runs", arg, 1, RUNS_MAX, &o->runs) ? EINVAL : 0;
	case O_MS:
		return bench_uint("--duration-ms", arg, 10, 60000, &o->ms) ? EINVAL : 0;
	case O_JSON:
		o->json = true;
		return 0;
	case O_GPU:
		o->gpu = true;
		return 0;
	case O_BACKEND:
		o->g.backend = arg;
		return 0;
	case O_PARTS:
		o->g.parts = arg;
		return 0;
	case O_DEVICE: {
		uint64_t n;

		if (bench_uint("--gpu-device", arg, 0, 255, &n))
			return EINVAL;
		o->g.device = (int64_t)n;
		return 0;
	}
	case O_COMMANDS:
		return bench_uint("--commands", arg, 1000, UINT64_C(1) << 40, &o->g.commands)
			       ? EINVAL
			       : 0;
	case O_CORES:
		return bench_uint("--cores", arg, 1, 8, &o->g.cores) ? EINVAL : 0;
	case O_TRIPS:
		return bench_uint("--trips", arg, 100, 60000, &o->g.trips) ? EINVAL : 0;
	case O_SET:
		return bench_setting_add(o->settings, &o->n_settings, SETTINGS_MAX, arg) ? EINVAL
											 : 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

struct producer {
	struct epf_ring_shm *shm;
	uint64_t start;
	unsigned burst;
	uint64_t sum;
	uint64_t sent;
};

static struct epf_ring_shm *make_ring(unsigned log2)
{
	size_t bytes = (epf_ring_bytes(log2) + 127) / 128 * 128;
	struct epf_ring_shm *shm = aligned_alloc(128, bytes);

	if (shm) {
		memset(shm, 0, bytes);
		epf_ring_format(shm, log2, 0, 0);
	}
	return shm;
}

static void produce(struct bench_pair *pair, void *arg)
{
	struct producer *p = arg;
	struct epf_ring_producer ring;
	uint64_t n = 0;

	epf_ring_producer_init(&ring, p->shm, 0);
	while (!bench_pair_stopped(pair)) {
		for (unsigned i = 0; i < p->burst; i++) {
			struct epf_cmd c =
				epf_cmd_transfer(EPF_OP_PUT, 0, (uint32_t)n & 63u, 0, 1, 1,
						 n << 4 & 0xffff0, 2, n << 4 & 0xffff0, 1024);

			while (!epf_ring_push(&ring, c)) {
				if (bench_pair_stopped(pair))
					goto out;
				bench_pair_wait(pair);
			}
			p->sum += c.lo ^ c.hi >> 1;
			n++;
		}
	}
out:
	p->sent = n;
}

/* Takes at most `burst` commands and gives their slots back. */
static unsigned consume(struct epf_ring_consumer *ring, unsigned burst, uint64_t *sum)
{
	struct epf_cmd c;
	unsigned k = 0;

	while (k < burst && epf_ring_peek(ring, ring->tail + k, &c)) {
		*sum += (c.lo & ~EPF_CMD_PARITY_BITS) ^ (c.hi & ~EPF_CMD_PARITY_BITS) >> 1;
		k++;
	}
	ring->tail += k;
	epf_ring_release(ring);
	return k;
}

static int transfer(unsigned slots, unsigned burst, double seconds, struct bench_transfer *out)
{
	unsigned log2 = (unsigned)__builtin_ctz(slots);
	struct producer p = { .shm = make_ring(log2), .burst = burst };
	struct epf_ring_consumer ring;
	struct bench_pair pair;
	uint64_t sum = 0;
	uint64_t n = 0;
	uint64_t start;
	uint64_t now;
	unsigned k;

	if (!p.shm)
		return -ENOMEM;
	epf_ring_consumer_init(&ring, p.shm, log2, 0);
	if (bench_pair_start(&pair, produce, &p)) {
		free(p.shm);
		return -EAGAIN;
	}
	start = epf_now_ns();
	do {
		for (int i = 0; i < 1000; i++) {
			k = consume(&ring, burst, &sum);
			if (!k)
				bench_pair_wait(&pair);
			n += k;
		}
		now = epf_now_ns();
	} while ((double)(now - start) < seconds * 1e9 ||
		 !n); /* on a busy machine the producer may not have run yet */
	out->per_second = (double)n / ((double)(now - start) / 1e9);
	bench_pair_stop(&pair);
	while ((k = consume(&ring, burst, &sum)) > 0)
		n += k;
	out->elements = n;
	out->same = n == p.sent && sum == p.sum;
	free(p.shm);
	return 0;
}

struct echo {
	struct epf_ring_shm *there;
	struct epf_ring_shm *back;
	unsigned log2;
};

static void echo(struct bench_pair *pair, void *arg)
{
	struct echo *x = arg;
	struct epf_ring_consumer in;
	struct epf_ring_producer out;
	struct epf_cmd c;

	epf_ring_consumer_init(&in, x->there, x->log2, 0);
	epf_ring_producer_init(&out, x->back, 0);
	while (!bench_pair_stopped(pair)) {
		if (!epf_ring_peek(&in, in.tail, &c)) {
			bench_pair_wait(pair);
			continue;
		}
		in.tail++;
		epf_ring_release(&in);
		(void)epf_ring_push(&out, epf_cmd_flush(0));
	}
}

static int round_trip(unsigned slots, unsigned rounds, double *ns)
{
	unsigned log2 = (unsigned)__builtin_ctz(slots);
	struct echo x = { .there = make_ring(log2), .back = make_ring(log2), .log2 = log2 };
	double *sample = calloc(rounds, sizeof(*sample));
	struct epf_ring_producer out;
	struct epf_ring_consumer in;
	struct bench_pair pair;
	struct epf_cmd c;
	int err = x.there && x.back && sample ? 0 : -ENOMEM;

	if (!err)
		err = bench_pair_start(&pair, echo, &x);
	if (!err) {
		epf_ring_producer_init(&out, x.there, 0);
		epf_ring_consumer_init(&in, x.back, log2, 0);
		for (unsigned i = 0; i < rounds; i++) {
			uint64_t t = epf_tsc();

			(void)epf_ring_push(&out, epf_cmd_flush(0));
			while (!epf_ring_peek(&in, in.tail, &c))
				bench_pair_wait(&pair);
			in.tail++;
			epf_ring_release(&in);
			sample[i] = (double)epf_tsc_to_ns(epf_tsc() - t);
		}
		bench_pair_stop(&pair);
		*ns = bench_median(sample, rounds);
	}
	free(x.there);
	free(x.back);
	free(sample);
	return err;
}

/* Medians of several runs, the two kinds alternating, so that a busy machine is unfair to neither. */
static int measure(const struct opts *o, struct line *l)
{
	double ours[RUNS_MAX];
	double rte[RUNS_MAX];

	l->same = 1;
	for (uint64_t i = 0; i < o->runs; i++) {
		struct bench_transfer a;
		struct bench_transfer b;
		double s = (double)o->ms / 1e3;
		int err = transfer(SLOTS, l->burst, s, &a);

		if (!err)
			err = bench_rte_transfer(SLOTS, l->burst, s, &b);
		if (err) {
			bench_complain("the ring of %u slots cannot be measured: %s", SLOTS,
				       strerror(-err));
			return err;
		}
		ours[i] = a.per_second;
		rte[i] = b.per_second;
		l->same &= a.same && b.same;
	}
	l->ours = bench_median(ours, o->runs);
	l->rte = bench_median(rte, o->runs);
	return 0;
}

static void print_json(const struct opts *o, const struct line *l, double ours_ns, double rte_ns,
		       int wrong)
{
	json_t *list = json_array();
	json_t *j;

	for (size_t i = 0; i < BURSTS; i++)
		json_array_append_new(list,
				      json_pack("{s:i, s:f, s:f, s:f}", "burst", (int)l[i].burst,
						"epf_ring_commands_per_second", l[i].ours,
						"rte_ring_elements_per_second", l[i].rte, "ratio",
						l[i].ours / l[i].rte));
	j = json_pack("{s:s, s:I, s:I, s:I, s:o, s:f, s:f, s:f, s:i}", "bench", "ring", "slots",
		      (json_int_t)SLOTS, "runs", (json_int_t)o->runs, "cpus",
		      (json_int_t)bench_cpus(), "bursts", list, "epf_ring_round_trip_ns", ours_ns,
		      "rte_ring_round_trip_ns", rte_ns, "baseline_rte_ring_elements_per_second",
		      l[2].rte, "wrong", wrong);
	bench_print_json(j);
}

static void print_table(const struct opts *o, const struct line *l, double ours_ns, double rte_ns,
			int wrong)
{
	printf("# ep-bench ring: %u slots, %llu runs of %llu ms (medians), 2 threads on %u CPUs\n",
	       SLOTS, (unsigned long long)o->runs, (unsigned long long)o->ms, bench_cpus());
	printf("#%9s %22s %22s %8s\n", "burst", "epf_ring_Mcommands/s", "rte_ring_Melements/s",
	       "ratio");
	for (size_t i = 0; i < BURSTS; i++)
		printf(" %9u %22.2f %22.2f %8.2f\n", l[i].burst, l[i].ours / 1e6, l[i].rte / 1e6,
		       l[i].ours / l[i].rte);
	printf("# round trip over two rings: epf_ring %.0f ns, rte_ring %.0f ns\n", ours_ns,
	       rte_ns);
	printf("# wrong: %d\n", wrong);
}

int bench_ring(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Throughput and round trip of the command ring beside a bare rte_ring.",
	};
	struct opts o = { .runs = 5,
			  .ms = 200,
			  .g = { .backend = "auto",
				 .device = -1,
				 .commands = 100000000,
				 .cores = 4,
				 .trips = 20000,
				 .parts = "cvptxrbed" } };
	struct line l[BURSTS];
	double ours_ns = 0;
	double rte_ns = 0;
	int wrong = 0;

	if (argp_parse(&argp, argc, argv, 0, NULL, &o))
		return BENCH_USAGE;
	if (o.gpu &&
	    bench_settings_refuse(
		    o.settings, "progress=caller",
		    "must be progress=thread: while a kernel pushes, no caller runs the engine"))
		return BENCH_USAGE;
	if (o.gpu) {
		o.g.json = o.json;
		o.g.settings = o.settings;
		return bench_ring_gpu(&o.g);
	}
	for (size_t i = 0; i < BURSTS; i++) {
		l[i].burst = bursts[i];
		if (measure(&o, &l[i]))
			return BENCH_WRONG;
		wrong += !l[i].same;
	}
	if (round_trip(SLOTS, ROUND_TRIPS, &ours_ns) ||
	    bench_rte_round_trip(SLOTS, ROUND_TRIPS, &rte_ns)) {
		bench_complain("the round trip cannot be measured");
		return BENCH_WRONG;
	}
	if (o.json)
		print_json(&o, l, ours_ns, rte_ns, wrong);
	else
		print_table(&o, l, ours_ns, rte_ns, wrong);
	return wrong ? BENCH_WRONG : BENCH_OK;
}
