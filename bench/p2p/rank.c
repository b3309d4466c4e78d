/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench p2p-rank: one of the two ranks of ep-bench p2p. Rank 0 measures; rank 1 answers, or
 * sends as well with -b. After each size the target's bytes are compared. Reports through its pipe.
 */
#include "bench/common/bench.h"
#include "bench/common/daemons.h"
#include "bench/common/spawn.h"
#include "bench/p2p/p2p.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/client/epf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 1000000u
#define SLICES      10u
#define WARM_UP     16u

static int transfer(struct p2p_rank *r, uint64_t bytes)
{
	unsigned flags = r->o->test == P2P_BW ? EPF_BULK : 0;

	switch (r->o->op) {
	case P2P_GET:
		return epf_get(r->ring, r->peer, r->region, P2P_SIZE_MAX, r->region, 0, bytes,
			       flags);
	case P2P_PUT_SIGNAL:
		return epf_put_signal(r->ring, r->peer, r->region, 0, r->region, P2P_SIZE_MAX,
				      bytes, 0, 1, flags);
	default:
		return epf_put(r->ring, r->peer, r->region, 0, r->region, P2P_SIZE_MAX, bytes,
			       flags);
	}
}

/* Until what was pushed is where it belongs: a put at its target, a get here. */
static int finish(struct p2p_rank *r)
{
	return r->o->op == P2P_GET ? epf_wait_retired(r->ring, epf_ring_pushed(r->ring), 0)
				   : epf_flush(r->ring, 0, 0);
}

/* One latency sample in us: a ping-pong's half, or one transfer until it is visible. */
static int one_latency(struct p2p_rank *r, uint64_t bytes, double *us)
{
	uint64_t start = epf_now_ns();
	int err = transfer(r, bytes);

	if (!err && r->o->op == P2P_PUT_SIGNAL) {
		r->signals++;
		err = epf_signal_wait(r->ep, 0, r->signals, 0);
		*us = (double)(epf_now_ns() - start) / 2e3;
		return err;
	}
	if (!err)
		err = finish(r);
	*us = (double)(epf_now_ns() - start) / 1e3;
	return err;
}

static uint64_t iterations(const struct p2p_opts *o, uint64_t bytes)
{
	uint64_t n = o->iterations ? o->iterations : 1000;

	if (o->all && !o->iterations && bytes > 65536)
		n = 1000 * 65536 / bytes;
	return n < 5 ? 5 : n;
}

/* Whether rank 0 goes on after i transfers, which the answering rank of a ping-pong must hear of. */
static bool more(const struct p2p_opts *o, uint64_t bytes, uint64_t i, uint64_t start)
{
	if (i >= SAMPLES_MAX)
		return false;
	if (o->duration_s)
		return i < 5 || epf_now_ns() - start < o->duration_s * 1000000000ull;
	return i < iterations(o, bytes);
}

/* The other side of a ping-pong: answers until signal 1 says that it is over. With progress=caller nobody else steps this rank's engine. */
static int answer(struct p2p_rank *r, uint64_t bytes, uint64_t sizes_over)
{
	while (epf_signal_value(r->ep, 1) < sizes_over) {
		int err = epf_signal_value(r->ep, 0) > r->signals ? transfer(r, bytes) : 1;

		if (err < 0)
			return bench_check(err);
		r->signals += err == 0;
		epf_progress(r->ep);
	}
	return 0;
}

static int latency(struct p2p_rank *r, uint64_t bytes, struct p2p_row *row)
{
	uint64_t start = epf_now_ns();
	uint64_t n = 0;
	double us;
	int err = 0;

	for (unsigned i = 0; i < WARM_UP && !err; i++)
		err = one_latency(r, bytes, &us);
	while (!err && more(r->o, bytes, n, start))
		err = one_latency(r, bytes, &r->sample[n++]);
	if (err)
		return bench_check(err);
	row->bytes = bytes;
	row->iterations = n;
	p2p_statistics(r->sample, n, row);
	return 0;
}

/*
 * Pushes n transfers, then waits until the sources of the slice before may be reused: a slice is always on its way, so that what is
 * measured is the stream and not the turn from one slice to the next.
 */
static int slice(struct p2p_rank *r, uint64_t bytes, uint64_t n)
{
	uint64_t before = epf_ring_pushed(r->ring);
	int err = 0;

	for (uint64_t i = 0; i < n && !err; i++)
		err = transfer(r, bytes);
	return err ? err : epf_wait_retired(r->ring, before, 0);
}

static int bandwidth(struct p2p_rank *r, uint64_t bytes, struct p2p_row *row)
{
	uint64_t total = iterations(r->o, bytes);
	uint64_t part = r->o->duration_s ? 64 : (total + SLICES - 1) / SLICES;
	uint64_t start = epf_now_ns(), first = epf_ring_done(r->ring), n = 0;
	struct bench_peak peak;
	int err = 0;

	/* Up to one slice is in flight and may retire at once after a stall: a window of four bounds that error to a quarter. */
	bench_peak_start(&peak, 4 * part, start);
	while (!err && (n < total || r->o->duration_s)) {
		uint64_t left = r->o->duration_s ? part : total - n;
		uint64_t before, done, now;

		err = slice(r, bytes, left < part ? left : part);
		n += left < part ? left : part;
		/* Retired, not pushed: a ring takes commands faster than memory moves. */
		before = epf_now_ns();
		done = epf_ring_done(r->ring) - first;
		now = epf_now_ns();
		bench_peak_note(&peak, done, before, now);
		if (r->o->duration_s && now - start >= r->o->duration_s * 1000000000ull)
			break;
	}
	if (!err)
		err = finish(r);
	if (err)
		return bench_check(err);
	row->bytes = bytes;
	row->iterations = n;
	row->rate_mpps = (double)n / ((double)(epf_now_ns() - start) / 1e3);
	row->average_mb_s = row->rate_mpps * 1e6 * (double)bytes / 1048576.0;
	row->peak_mb_s = bench_peak_end(&peak, row->rate_mpps * 1e6) * (double)bytes /
			 1048576.0; /* NAN stays NAN */
	return 0;
}

static void fill(struct p2p_rank *r, uint64_t bytes, uint8_t salt)
{
	for (uint64_t i = 0; i < bytes; i++)
		r->source[i] = (uint8_t)(i * 31 + (i >> 8) + salt);
	memset(r->target, (uint8_t)~salt, bytes);
}

/* The bytes of the other rank's source must be in this rank's target, if it was one. */
static void check(struct p2p_rank *r, uint64_t bytes, uint8_t salt)
{
	bool pong = r->o->test == P2P_LAT && r->o->op == P2P_PUT_SIGNAL;
	bool i_am_target = r->o->op == P2P_GET ? r->rank == 0 : r->rank == 1;

	if (!i_am_target && !pong && !r->o->both)
		return;
	for (uint64_t i = 0; i < bytes; i++)
		r->wrong += r->target[i] != (uint8_t)(i * 31 + (i >> 8) + salt);
}

/*
 * Measures where this rank does; returns when the other rank has measured too. Until then this rank waits for a signal and not at a barrier,
 * which steps the engine of progress=caller only now and then.
 */
static int measure(struct p2p_rank *r, uint64_t bytes, unsigned number, struct p2p_row *row)
{
	bool bw = r->o->test == P2P_BW;
	int err = 0;

	if (r->rank == 0 || (bw && r->o->both)) {
		err = bw ? bandwidth(r, bytes, row) : latency(r, bytes, row);
		if (!err)
			err = bench_check(epf_signal_send(r->ring, r->peer, 1, 1, 0));
	} else if (!bw && r->o->op == P2P_PUT_SIGNAL) {
		return answer(r, bytes, number + 1);
	}
	if (!err && (r->rank == 1 || (bw && r->o->both)))
		err = bench_check(epf_signal_wait(r->ep, 1, number + 1,
						  bench_rank_limit_ns(r->o->timeout_s)));
	return err;
}

static int one_size(struct p2p_rank *r, uint64_t bytes, unsigned number)
{
	struct p2p_row row = { 0 };
	uint8_t salt = (uint8_t)(number * 77 + 5);
	int err;

	fill(r, bytes, salt);
	err = bench_check(epf_barrier(r->ep));
	if (!err)
		err = measure(r, bytes, number, &row);
	if (!err)
		err = bench_check(epf_barrier(r->ep));
	if (err)
		return err;
	check(r, bytes, salt);
	if (r->rank == 0)
		r->row(r->row_arg, &row, sizeof(row));
	return 0;
}

/* The rest of open_rank() where kernels push: no ring for this thread, and no memory. */
static int open_gpu_rank(struct p2p_rank *r, struct epf_boot *boot)
{
	int err = p2p_gpu_memory(r);

	if (!err)
		err = epf_join(r->ep, boot);
	if (!err)
		err = p2p_gpu_open(r);
	return bench_check(err);
}

static int open_rank(struct p2p_rank *r, struct epf_boot *boot)
{
	const char *list[P2P_SETTINGS_MAX + 3];
	struct epf_options opts;
	char service[BENCH_DAEMONS_DIR + 32];
	char node_text[32];
	uint32_t node = r->o->same_node ? 0 : r->rank;
	void *memory = NULL;
	uint32_t n;
	int err;

	n = bench_settings_of(r->o->setting, node, list);
	snprintf(node_text, sizeof(node_text), "node=%u", node);
	list[n++] = node_text;
	if (!bench_daemons_setting(node, service, sizeof(service)))
		list[n++] = service;
	list[n] = NULL;
	if (r->o->stages)
		p2p_stages_want();
	epf_options_init(&opts);
	opts.settings = list;
	err = epf_open(&opts, &r->ep);
	if (!err && r->o->gpu)
		return open_gpu_rank(r, boot);
	if (!err)
		err = epf_memory_alloc(r->ep, 2ull * P2P_SIZE_MAX, &memory);
	if (!err)
		err = epf_region_register(r->ep, memory, 2ull * P2P_SIZE_MAX,
					  EPF_REMOTE_WRITE | EPF_REMOTE_READ, &r->region);
	if (!err)
		err = epf_ring_open(r->ep, NULL, &r->ring);
	if (!err)
		err = epf_join(r->ep, boot);
	r->source = memory;
	r->target = memory ? r->source + P2P_SIZE_MAX : NULL;
	return bench_check(err);
}

static int run(struct p2p_rank *r)
{
	uint64_t sizes[32];
	unsigned n = p2p_sizes(r->o, sizes);
	int err = 0;

	if (r->o->against)
		return p2p_pairs(r);
	for (unsigned i = 0; i < n && !err; i++)
		err = r->o->gpu ? p2p_gpu_size(r, sizes[i], i) : one_size(r, sizes[i], i);
	return err;
}

int p2p_run(struct p2p_rank *r, struct epf_boot *boot)
{
	int err;

	r->peer = 1 - (r->rank & 1);
	r->sample = calloc(SAMPLES_MAX, sizeof(*r->sample));
	if (!r->sample) {
		bench_complain("no memory for %u samples", SAMPLES_MAX);
		return -ENOMEM;
	}
	err = open_rank(r, boot);
	if (!err)
		err = run(r);
	p2p_gpu_close(r);
	epf_ring_close(r->ring);
	epf_close(r->ep);
	free(r->sample);
	return err;
}

static void row_to_parent(void *arg, const void *row, size_t bytes)
{
	bench_child_send(BENCH_MSG_PROGRESS, 0, 0, row, bytes);
}

int bench_p2p_rank(int argc, char **argv)
{
	struct p2p_opts o;
	struct p2p_rank r = { .o = &o, .row = row_to_parent };
	struct p2p_row last = { 0 };
	struct epf_boot *boot = NULL;
	uint32_t ranks;
	int err;

	if (p2p_opts_parse(argc, argv, &o))
		return BENCH_USAGE;
	err = bench_child_start(&r.rank, &ranks, bench_rank_limit_ns(o.timeout_s), &boot);
	if (err)
		return BENCH_WRONG;
	o.both &= o.test == P2P_BW; /* one pair of words for both tests of --service */
	err = p2p_run(&r, boot);
	last.wrong = r.wrong;
	if (!err)
		bench_child_send(BENCH_MSG_RESULT, 0, 0, &last, sizeof(last));
	epf_boot_close(boot);
	return err ? BENCH_WRONG : BENCH_OK;
}
