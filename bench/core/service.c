/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench core --service: one rank, one ring, one client thread on one CPU that pushes puts through libepf as fast as it
 * can, the engine on another CPU on the null NIC; the engine is a thread of this process, then a daemon's, alternating. Two figures:
 * commands retired a second, and the time from the push of one command until the client sees it retired. Unlike plain
 * `ep-bench core` the client is part of it: wakeup, room in the ring and completion counters are the real ones.
 */
#include "bench/core/service.h"

#include "bench/common/bench.h"
#include "bench/common/compare.h"
#include "bench/common/daemons.h"
#include "bench/common/json.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/client/epf.h"
#include "queues/epf_cmd.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define REGION_BYTES (UINT64_C(64) << 20)
#define TABLE        4096u
#define BAD_AT       2048u /* one of the table names a region that does not exist */
#define WARM_UP      100000u
#define TRIPS        20000u
#define TRIPS_NS     1000000000u
#define TEXT         64

struct rig {
	const struct core_service_opts *o;
	struct bench_daemons *daemons;
	struct epf_boot_group *group;
	struct epf_boot *boot;
	struct epf *ep;
	struct epf_ring *ring;
	struct epf_cmd *table; /* [TABLE] */
	uint64_t trips;        /* commands pushed one by one, behind those of the table */
};

struct figures {
	struct bench_pairs rate;
	struct bench_pairs trip_ns;
	uint64_t commands;
	uint64_t wrong;
};

/* Three of four put, one gets; 16 bytes to 8 KiB inside the one region of the one rank. */
static void make_table(struct epf_cmd *table)
{
	for (uint32_t i = 0; i < TABLE; i++) {
		uint64_t from = (uint64_t)(i * 2654435761u) % (REGION_BYTES / 2) & ~15ull;
		uint64_t to = REGION_BYTES / 2 + ((uint64_t)(i * 40503u) << 4) % (REGION_BYTES / 4);
		uint32_t region = i == BAD_AT ? 9 : 0;

		table[i] = epf_cmd_transfer(i % 4 ? EPF_OP_PUT : EPF_OP_GET, 0, 0, 0, 1, region,
					    from, 0, to, (i % 512 + 1) * 16);
	}
}

/*
 * The engine of either place spins on the first CPU; this thread pushes on the second. Daemons are pinned as they start, so
 * `cpu` is only for the thread of this process.
 */
static int open_rank(struct rig *r)
{
	char batch[TEXT], cpu[TEXT];
	char service[BENCH_DAEMONS_DIR + 32];
	const char *list[] = { "nic=null",
			       "core-idle=spin",
			       "wait-timeout=20s",
			       "ring-slots=4096",
			       batch,
			       "progress=thread",
			       cpu,
			       NULL };
	struct epf_options opts;
	void *memory;
	uint32_t region;
	int err;

	snprintf(batch, TEXT, "core-batch=%llu", (unsigned long long)r->o->batch);
	snprintf(cpu, TEXT, "cpu=%d", bench_cpu_number(0));
	if (!bench_daemons_setting(0, service, sizeof(service)))
		list[6] = service;
	else if (bench_cpus() < 2)
		list[6] = NULL;
	epf_options_init(&opts);
	opts.settings = list;
	err = epf_open(&opts, &r->ep);
	if (!err)
		err = epf_memory_alloc(r->ep, REGION_BYTES, &memory);
	if (!err)
		err = epf_region_register(r->ep, memory, REGION_BYTES,
					  EPF_REMOTE_READ | EPF_REMOTE_WRITE, &region);
	if (!err)
		err = epf_ring_open(r->ep, NULL, &r->ring);
	if (!err)
		err = epf_boot_local_create(1, &r->group);
	if (!err)
		err = epf_boot_local_open(r->group, 0, &r->boot);
	if (!err)
		err = epf_join(r->ep, r->boot);
	return bench_check(err);
}

static void close_rank(struct rig *r)
{
	epf_ring_close(r->ring);
	epf_close(r->ep);
	epf_boot_close(r->boot);
	epf_boot_local_destroy(r->group);
	r->ring = NULL;
	r->ep = NULL;
	r->boot = NULL;
	r->group = NULL;
}

/* Pushes n commands of the table, and on from where it was. */
static int push(struct rig *r, uint64_t n)
{
	uint64_t at = epf_ring_pushed(r->ring);
	int err = 0;

	for (uint64_t i = 0; i < n && !err; i++, at++)
		err = epf_ring_push_raw(r->ring, r->table[at % TABLE].lo, r->table[at % TABLE].hi);
	return err;
}

static int measure_rate(struct rig *r, double *per_second)
{
	uint64_t first, start, now;
	int err = push(r, WARM_UP);

	start = epf_now_ns();
	first = epf_ring_done(r->ring);
	do {
		if (!err)
			err = push(r, 2048);
		now = epf_now_ns();
	} while (!err && now - start < r->o->ms * 1000000u);
	*per_second = (double)(epf_ring_done(r->ring) - first) / ((double)(now - start) / 1e9);
	if (!err)
		err = epf_wait_retired(r->ring, epf_ring_pushed(r->ring), 0);
	return bench_check(err);
}

/* Median of push-until-retired with nothing else in the ring; fewer of them where two threads share a CPU. */
static int measure_trip(struct rig *r, double *ns)
{
	double *sample = calloc(TRIPS, sizeof(*sample));
	int crowded = bench_cpus() < 2;
	uint64_t end = epf_now_ns() + TRIPS_NS;
	int err = sample ? 0 : -ENOMEM;

	r->trips = 0;
	while (r->trips < TRIPS && !err && (r->trips < 10 || epf_now_ns() < end)) {
		uint64_t start = epf_tsc();

		err = epf_ring_push_raw(r->ring, r->table[1].lo, r->table[1].hi);
		while (!err && epf_ring_done(r->ring) != epf_ring_pushed(r->ring))
			if (crowded)
				sched_yield();
		sample[r->trips++] = (double)epf_tsc_to_ns(epf_tsc() - start);
	}
	if (!err)
		*ns = bench_median(sample, r->trips);
	free(sample);
	return bench_check(err);
}

/* What the engine counted against what was pushed. */
static int check(struct rig *r, struct figures *f)
{
	static const char *const name[] = { "cmds_dequeued", "cmds_refused" };
	uint64_t table_pushed = epf_ring_pushed(r->ring) - r->trips;
	uint64_t expected[] = { epf_ring_pushed(r->ring),
				(table_pushed + TABLE - 1 - BAD_AT) / TABLE };
	struct epf_ring_failure failure = { 0 };
	int err = 0;

	for (int i = 0; i < 2 && !err; i++) {
		uint64_t v;

		err = bench_check(epf_counter(r->ep, name[i], &v));
		if (!err && v != expected[i]) {
			bench_complain("%s is %llu, must be %llu", name[i], (unsigned long long)v,
				       (unsigned long long)expected[i]);
			f->wrong++;
		}
	}
	(void)epf_ring_error(r->ring, &failure);
	f->wrong += failure.failed != expected[1];
	f->commands += expected[0];
	return err;
}

static int one(struct rig *r, enum bench_place place, uint64_t round, struct figures *f)
{
	char batch[TEXT];
	const char *settings[] = { "nic=null", "core-idle=spin", "ring-slots=4096", batch, NULL };
	struct bench_daemons_options d = {
		.nodes = 1, .program = r->o->fabric_program, .settings = settings, .pin = 1
	};
	int err = 0, end_err;

	snprintf(batch, TEXT, "core-batch=%llu", (unsigned long long)r->o->batch);
	if (place == BENCH_SERVICE)
		err = bench_daemons_start(&d, &r->daemons);
	if (!err)
		err = open_rank(r);
	if (!err)
		err = measure_rate(r, &f->rate.v[place][round]);
	if (!err)
		err = measure_trip(r, &f->trip_ns.v[place][round]);
	if (!err)
		err = check(r, f);
	close_rank(r);
	if (err && r->daemons)
		bench_daemons_complain(r->daemons);
	end_err = bench_daemons_stop(r->daemons);
	r->daemons = NULL;
	return err ? err : end_err;
}

static void report(const struct core_service_opts *o, struct figures *f)
{
	double ratio = bench_pairs_ratio(&f->rate, o->rounds);
	double rate[BENCH_PLACES], trip[BENCH_PLACES];

	for (enum bench_place p = 0; p < BENCH_PLACES; p++) {
		rate[p] = bench_pairs_median(&f->rate, p, o->rounds);
		trip[p] = bench_pairs_median(&f->trip_ns, p, o->rounds);
	}
	if (o->json) {
		json_t *j = json_pack(
			"{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I}",
			"bench", "core", "nic", "null", "embedded_commands_per_second",
			rate[BENCH_EMBEDDED], "service_commands_per_second", rate[BENCH_SERVICE],
			"service_to_embedded", ratio, "embedded_round_trip_ns",
			trip[BENCH_EMBEDDED], "service_round_trip_ns", trip[BENCH_SERVICE],
			"added_round_trip_ns", trip[BENCH_SERVICE] - trip[BENCH_EMBEDDED],
			"commands", (json_int_t)f->commands, "rounds", (json_int_t)o->rounds,
			"duration_ms", (json_int_t)o->ms, "cpus", (json_int_t)bench_cpus(), "wrong",
			(json_int_t)f->wrong);

		bench_print_json(j);
		return;
	}
	printf("# ep-bench core --service: null NIC, one rank, one client thread, engine in this process and in a daemon\n");
	printf("# median of %llu rounds of %llu ms in each place, alternating, on %u CPUs; the ratio is the median of the rounds'\n",
	       (unsigned long long)o->rounds, (unsigned long long)o->ms, bench_cpus());
	printf("#\n#%-31s %15s %15s %10s\n", " what", "embedded", "service", "");
	printf(" %-31s %15.0f %15.0f %10.3f service/embedded\n", "commands_retired_per_second",
	       rate[BENCH_EMBEDDED], rate[BENCH_SERVICE], ratio);
	printf(" %-31s %15.0f %15.0f %+10.0f ns added\n", "push_to_retired_ns",
	       trip[BENCH_EMBEDDED], trip[BENCH_SERVICE],
	       trip[BENCH_SERVICE] - trip[BENCH_EMBEDDED]);
	printf("# commands %llu, one of %u refused, as it must be\n",
	       (unsigned long long)f->commands, TABLE);
	printf("# wrong: %llu\n", (unsigned long long)f->wrong);
}

int bench_core_service(const struct core_service_opts *o)
{
	struct rig r = { .o = o, .table = calloc(TABLE, sizeof(struct epf_cmd)) };
	struct figures f = { 0 };
	int err = r.table ? 0 : -ENOMEM;

	if (!err)
		make_table(r.table);
	(void)unsetenv("EPF_SERVICE"); /* or the embedded half would be no such thing */
	bench_pin(1);
	for (uint64_t i = 0; i < o->rounds && !err; i++) {
		for (int half = 0; half < BENCH_PLACES && !err; half++)
			err = one(&r, (enum bench_place)((i + (uint64_t)half) & 1), i, &f);
	}
	free(r.table);
	if (err)
		return BENCH_WRONG;
	report(o, &f);
	return f.wrong ? BENCH_WRONG : BENCH_OK;
}
