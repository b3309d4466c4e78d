/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench jobs-rank: one rank of the decode job or of a bulk job. Both check what arrives; the decode job times its
 * rounds. Started by ep-bench jobs only; reports through its pipe.
 */
#include "bench/jobs/jobs.h"

#include "bench/common/bench.h"
#include "bench/common/daemons.h"
#include "bench/common/spawn.h"
#include "bench/common/world.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/client/epf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP 32u /* rounds of the decode job that are not timed */
#define SLOTS   8u  /* puts of a lap of the bulk job, each to its own place */

enum { S_GO, S_ROWS, S_LAPS = S_GO };

struct jobs_rank {
	const struct jobs_opts *o;
	struct jobs_shared *shared;
	struct epf *ep;
	struct epf_ring *ring;
	uint32_t rank;
	uint32_t ranks; /* of this job */
	uint32_t region;
	uint8_t *memory;
	struct jobs_result result;
	uint32_t *sample; /* [rounds] */
};

static void sleep_us(uint64_t us)
{
	struct timespec t = { .tv_sec = (time_t)(us / 1000000u),
			      .tv_nsec = (long)(us % 1000000u) * 1000 };

	while (us && nanosleep(&t, &t) && errno == EINTR)
		;
}

/* ---- data ---------------------------------------------------------------------------------- */

static uint32_t first_word(uint32_t a, uint32_t b, uint32_t c)
{
	return a * 2654435761u + b * 40503u + c * 2246822519u;
}

static void fill(uint8_t *at, uint64_t bytes, uint32_t first)
{
	for (uint64_t i = 0; i < bytes / 4; i++) {
		uint32_t w = first + (uint32_t)i * 2654435761u;

		memcpy(at + 4 * i, &w, sizeof(w));
	}
}

/* 1 when any byte is not what fill() made. */
static uint64_t differs(const uint8_t *at, uint64_t bytes, uint32_t first)
{
	uint32_t diff = 0;

	for (uint64_t i = 0; i < bytes / 4; i++) {
		uint32_t w;

		memcpy(&w, at + 4 * i, sizeof(w));
		diff |= w ^ (first + (uint32_t)i * 2654435761u);
	}
	return diff != 0;
}

/* ---- decode -------------------------------------------------------------------------------- */

/* Rows to send, then room for those of every rank. */
static uint64_t decode_bytes(const struct jobs_opts *o)
{
	return o->tokens * JOBS_ROW_BYTES * (1 + o->decode_ranks);
}

/* Returns the rank to which `src` sends row t of a round: any but itself. The same at all ranks. */
static uint32_t target_of(const struct jobs_rank *r, uint64_t round, uint32_t src, uint64_t t)
{
	uint64_t x = 0x9e3779b97f4a7c15ull + round * 0xbf58476d1ce4e5b9ull +
		     src * 0x94d049bb133111ebull + t * 0xd6e8feb86659fd93ull;

	x = (x ^ x >> 31) * 0x7fb5d329728ea185ull;
	return (src + 1 + (uint32_t)((x >> 33) % (r->ranks - 1))) % r->ranks;
}

/* All ranks at once: nobody sends rows of a round before everybody has checked those of the last. */
static int go_together(struct jobs_rank *r, uint64_t round)
{
	int err = 0;

	for (uint32_t p = 0; p < r->ranks && !err; p++)
		if (p != r->rank)
			err = epf_signal_send(r->ring, p, S_GO, 1, 0);
	return err ? err : epf_signal_wait(r->ep, S_GO, (round + 1) * (r->ranks - 1), 0);
}

static uint64_t place_of(const struct jobs_rank *r, uint32_t src, uint64_t t)
{
	return (r->o->tokens * (1 + src) + t) * JOBS_ROW_BYTES;
}

static int send_rows(struct jobs_rank *r, uint64_t round)
{
	int err = 0;

	for (uint64_t t = 0; t < r->o->tokens && !err; t++)
		err = epf_put_signal(r->ring, target_of(r, round, r->rank, t), r->region,
				     t * JOBS_ROW_BYTES, r->region, place_of(r, r->rank, t),
				     JOBS_ROW_BYTES, S_ROWS, 1, 0);
	return err;
}

static uint64_t rows_to_me(const struct jobs_rank *r, uint64_t round)
{
	uint64_t n = 0;

	for (uint32_t src = 0; src < r->ranks; src++)
		for (uint64_t t = 0; t < r->o->tokens; t++)
			n += src != r->rank && target_of(r, round, src, t) == r->rank;
	return n;
}

static void check_rows(struct jobs_rank *r, uint64_t round)
{
	for (uint32_t src = 0; src < r->ranks; src++)
		for (uint64_t t = 0; t < r->o->tokens; t++)
			if (src != r->rank && target_of(r, round, src, t) == r->rank)
				r->result.wrong +=
					differs(r->memory + place_of(r, src, t), JOBS_ROW_BYTES,
						first_word((uint32_t)round, src, (uint32_t)t));
}

static int one_round(struct jobs_rank *r, uint64_t round, uint64_t *rows, uint32_t *ns)
{
	uint64_t start, took;
	int err;

	for (uint64_t t = 0; t < r->o->tokens; t++)
		fill(r->memory + t * JOBS_ROW_BYTES, JOBS_ROW_BYTES,
		     first_word((uint32_t)round, r->rank, (uint32_t)t));
	*rows += rows_to_me(r, round);
	err = go_together(r, round);
	start = epf_now_ns();
	if (!err)
		err = send_rows(r, round);
	if (!err)
		err = epf_signal_wait(r->ep, S_ROWS, *rows, 0);
	took = epf_now_ns() - start;
	*ns = took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
	if (!err) /* the rows are filled again */
		err = epf_wait_retired(r->ring, epf_ring_pushed(r->ring), 0);
	if (err)
		return bench_check(err);
	check_rows(r, round);
	sleep_us(JOBS_PAUSE_US);
	return 0;
}

static int run_decode(struct jobs_rank *r)
{
	uint64_t end = epf_now_ns() + r->o->timeout_s * 1000000000ull;
	uint64_t rows = 0;
	uint64_t start = 0;
	int err = 0;

	while (atomic_load(&r->shared->bulk_moving) < atomic_load(&r->shared->bulk_ranks)) {
		if (epf_now_ns() > end) {
			bench_complain("the bulk job does not begin within --timeout-s");
			return -ETIMEDOUT;
		}
		sleep_us(1000);
	}
	for (uint64_t i = 0; i < WARM_UP + r->o->rounds && !err; i++) {
		uint32_t ns = 0;

		if (i == WARM_UP)
			start = epf_now_ns();
		err = one_round(r, i, &rows, &ns);
		if (i >= WARM_UP)
			r->sample[i - WARM_UP] = ns;
	}
	r->result.ns = epf_now_ns() - start;
	r->result.bytes = r->o->rounds * r->o->tokens * JOBS_ROW_BYTES;
	r->result.samples = r->o->rounds;
	return err;
}

/* ---- bulk ---------------------------------------------------------------------------------- */

/* Two versions of a lap to send, alternating, and room for one that arrives. */
static uint64_t bulk_bytes(const struct jobs_opts *o)
{
	return 3 * SLOTS * JOBS_BULK_BYTES;
}

static uint64_t version_of(const struct jobs_rank *r, uint64_t lap)
{
	return (lap & 1) * SLOTS * JOBS_BULK_BYTES;
}

/* Waits for room by sleeping (the ring's waits do), so that a bulk rank costs its CPU little. */
static int put_lap(struct jobs_rank *r, uint32_t peer, uint64_t lap)
{
	uint64_t from = version_of(r, lap);
	int err = 0;

	for (uint64_t i = 0; i < SLOTS && !err; i++) {
		uint64_t pushed = epf_ring_pushed(r->ring);

		if (pushed >= SLOTS / 2)
			err = epf_wait_retired(r->ring, pushed - SLOTS / 2, 0);
		if (!err)
			err = epf_put(r->ring, peer, r->region, from + i * JOBS_BULK_BYTES,
				      r->region, (2 * SLOTS + i) * JOBS_BULK_BYTES, JOBS_BULK_BYTES,
				      EPF_BULK);
	}
	return err;
}

/* The last lap begins when all before has landed, so that what the target holds afterwards is that lap's. */
static int last_lap(struct jobs_rank *r, uint32_t peer, uint64_t lap)
{
	int err = epf_flush(r->ring, 0, 0);

	if (!err)
		err = put_lap(r, peer, lap);
	if (!err)
		err = epf_flush(r->ring, 0, 0);
	if (!err)
		err = epf_signal_send(r->ring, peer, S_LAPS, lap + 1, 0);
	return err;
}

/* What the sender's last lap left here. */
static int check_laps(struct jobs_rank *r, uint32_t from)
{
	uint64_t lap;
	int err = epf_signal_wait(r->ep, S_LAPS, 1, 0);

	if (err)
		return err;
	lap = epf_signal_value(r->ep, S_LAPS) - 1;
	for (uint32_t i = 0; i < SLOTS; i++)
		r->result.wrong += differs(r->memory + (2 * SLOTS + i) * JOBS_BULK_BYTES,
					   JOBS_BULK_BYTES, first_word((uint32_t)lap & 1, from, i));
	return 0;
}

static int run_bulk(struct jobs_rank *r)
{
	uint32_t shift = r->ranks / 2; /* ranks are in two blocks: the other node's */
	uint32_t peer = (r->rank + shift) % r->ranks;
	uint64_t lap = 0;
	uint64_t start;
	int err;

	for (uint32_t v = 0; v < 2; v++)
		for (uint32_t i = 0; i < SLOTS; i++)
			fill(r->memory + (v * SLOTS + i) * JOBS_BULK_BYTES, JOBS_BULK_BYTES,
			     first_word(v, r->rank, i));
	memset(r->memory + 2 * SLOTS * JOBS_BULK_BYTES, 0x5a, SLOTS * JOBS_BULK_BYTES);
	err = bench_check(
		epf_barrier(r->ep)); /* nobody puts into memory that is still being filled */
	if (err)
		return err;
	start = epf_now_ns();
	do {
		err = put_lap(r, peer, lap++);
		if (lap == 1) {
			atomic_fetch_add(&r->shared->bulk_moving, 1);
			start = epf_now_ns();
		}
	} while (!err && atomic_load(&r->shared->decode_done) < r->o->decode_ranks);
	r->result.ns = epf_now_ns() - start;
	r->result.bytes = (lap - 1) * SLOTS * JOBS_BULK_BYTES;
	if (!err)
		err = last_lap(r, peer, lap);
	if (!err)
		err = check_laps(r, (r->rank + r->ranks - shift) % r->ranks);
	return bench_check(err);
}

/* ---- process ------------------------------------------------------------------------------- */

static int open_shared(struct jobs_rank *r)
{
	int fd = bench_child_share();
	void *at = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			0);

	if (fd < 0 || at == MAP_FAILED) {
		bench_complain("no page shared with the parent: %s", strerror(errno));
		return -EINVAL;
	}
	r->shared = at;
	return 0;
}

static int open_rank(struct jobs_rank *r, uint64_t bytes, struct epf_boot *boot)
{
	const char *list[JOBS_SETTINGS_MAX + 4];
	char service[BENCH_DAEMONS_DIR + 32] = "service=";
	uint32_t node[JOBS_RANKS_MAX];
	struct epf_options opts;
	void *memory = NULL;
	uint32_t n;
	int err;

	bench_nodes(r->ranks, JOBS_NODES, node);
	(void)bench_daemons_setting(node[r->rank], service, sizeof(service));
	n = bench_settings_of(r->o->setting, node[r->rank], list);
	list[n++] = service;
	list[n] = NULL;
	epf_options_init(&opts);
	opts.settings = list;
	err = epf_open(&opts, &r->ep);
	if (!err)
		err = epf_memory_alloc(r->ep, bytes, &memory);
	if (!err)
		err = epf_region_register(r->ep, memory, bytes, EPF_REMOTE_WRITE, &r->region);
	if (!err)
		err = epf_ring_open(r->ep, NULL, &r->ring);
	if (!err)
		err = epf_join(r->ep, boot);
	r->memory = memory;
	return bench_check(err);
}

static void send_result(const struct jobs_rank *r)
{
	char buf[sizeof(r->result) + JOBS_ROUNDS_MAX * sizeof(uint32_t)];
	size_t samples = r->result.samples * sizeof(uint32_t);

	memcpy(buf, &r->result, sizeof(r->result));
	if (samples)
		memcpy(buf + sizeof(r->result), r->sample, samples);
	bench_child_send(BENCH_MSG_RESULT, 0, 0, buf, sizeof(r->result) + samples);
}

static int run(struct jobs_rank *r, struct epf_boot *boot)
{
	bool bulk = bench_child_job() > 0;
	int err = open_shared(r);

	if (!err)
		err = open_rank(r, bulk ? bulk_bytes(r->o) : decode_bytes(r->o), boot);
	if (!err)
		err = bulk ? run_bulk(r) : run_decode(r);
	if (!bulk && r->shared)
		atomic_fetch_add(&r->shared->decode_done, 1);
	if (!err)
		err = bench_check(epf_barrier(r->ep)); /* nobody leaves while others still work */
	if (!err)
		send_result(r);
	epf_ring_close(r->ring);
	epf_close(r->ep);
	return err;
}

int bench_jobs_rank(int argc, char **argv)
{
	struct jobs_opts o;
	struct jobs_rank r = { .o = &o };
	struct epf_boot *boot = NULL;
	int err;

	if (jobs_opts_parse(argc, argv, &o))
		return BENCH_USAGE;
	if (bench_child_start(&r.rank, &r.ranks, bench_rank_limit_ns(o.timeout_s), &boot))
		return BENCH_WRONG;
	r.sample = calloc(o.rounds, sizeof(*r.sample));
	if (!r.sample || r.ranks > JOBS_RANKS_MAX) {
		bench_complain("no memory for %llu samples", (unsigned long long)o.rounds);
		err = -ENOMEM;
	} else {
		err = run(&r, boot);
	}
	epf_boot_close(boot);
	free(r.sample);
	return err ? BENCH_WRONG : BENCH_OK;
}
