/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of ep-bench p2p --against rawverbs: beside the fabric it has a bare post loop on the same device, over the same memory, to
 * the same peer. Rank 0 puts by the one and writes by the other, alternating, so that both see the same machine; rank 1 looks at every
 * byte. Writes are counted until their completion, on both sides.
 */
#include "bench/common/bench.h"
#include "bench/p2p/p2p.h"
#include "bench/verbs/rawverbs.h"

#include "fabric/base/clock.h"
#include "fabric/client/epf.h"

#include <errno.h>
#include <string.h>

enum { SLICES_MAX = 99, DEFAULT_WRITES = 1000 };

/* The loop repairs nothing: what may happen to it in a run before that is more than bad luck. */
enum { BROKEN_MAX = 20 };

/* What rank 0 measures with. */
struct pairs {
	struct p2p_rank *r;
	struct rawverbs *raw;
	uint64_t broken;
	uint64_t is_broken; /* the loop's connection, now */
};

/* The loop's writes land behind the fabric's. */
#define RAW_TARGET (P2P_SIZE_MAX + P2P_AGAINST_MAX)

/* On both ranks, at the beginning and whenever the connection has failed. */
static int open_loop(struct pairs *p)
{
	struct p2p_rank *r = p->r;
	struct rawverbs_opts o = r->o->raw;
	struct rawverbs_address mine, both[2];
	int err;

	memcpy(o.device, r->o->device[r->rank], sizeof(o.device));
	rawverbs_close(p->raw);
	p->raw = NULL;
	err = rawverbs_open(&o, r->source, 2ull * P2P_SIZE_MAX, &p->raw);
	if (err)
		return err;
	rawverbs_address(p->raw, &mine);
	err = bench_check(epf_allgather(r->ep, &mine, sizeof(mine), both));
	return err ? err : rawverbs_connect(p->raw, &both[r->peer]);
}

static int put_n(struct p2p_rank *r, uint64_t bytes, uint64_t n, double *per_second)
{
	uint64_t start = epf_now_ns();
	int err = 0;

	for (uint64_t i = 0; i < n && !err; i++)
		err = epf_put(r->ring, r->peer, r->region, 0, r->region, P2P_SIZE_MAX, bytes, 0);
	if (!err)
		err = epf_wait_retired(r->ring, epf_ring_pushed(r->ring), 0);
	*per_second = (double)n / ((double)(epf_now_ns() - start) / 1e9);
	return bench_check(err);
}

static int write_n(struct pairs *p, uint64_t bytes, uint64_t n, double *per_second)
{
	struct rawverbs_result res;

	if (p->is_broken || rawverbs_write(p->raw, 0, RAW_TARGET, bytes, n, 0, &res)) {
		p->is_broken = 1;
		return 0;
	}
	*per_second = (double)res.writes / res.seconds;
	return 0;
}

static uint64_t counter(struct p2p_rank *r, const char *name)
{
	uint64_t v = 0;

	return epf_counter(r->ep, name, &v) ? 0 : v;
}

/* Rank 0's part of one size in one round. */
static int measure(struct pairs *p, struct p2p_pair *pair)
{
	struct p2p_rank *r = p->r;
	uint64_t n = r->o->iterations ? r->o->iterations : DEFAULT_WRITES;
	uint64_t posted = counter(r, "wrs_posted"), posts = counter(r, "doorbells");
	double fabric[SLICES_MAX], bare[SLICES_MAX], warm;
	int err = put_n(r, pair->bytes, n / 10 + 1, &warm);

	if (!err)
		err = write_n(p, pair->bytes, n / 10 + 1, &warm);
	for (uint64_t s = 0; s < r->o->slices && !err && !p->is_broken; s++) {
		err = put_n(r, pair->bytes, n, &fabric[s]);
		if (!err)
			err = write_n(p, pair->bytes, n, &bare[s]);
	}
	if (!err)
		err = bench_check(epf_flush(r->ring, 0, 0));
	if (err || p->is_broken)
		return err;
	posted = counter(r, "wrs_posted") - posted;
	posts = counter(r, "doorbells") - posts;
	pair->fabric_per_second = bench_median(fabric, r->o->slices);
	pair->bare_per_second = bench_median(bare, r->o->slices);
	pair->broken = p->broken;
	pair->fabric_list = posts ? (double)posted / (double)posts : 0;
	r->row(r->row_arg, pair, sizeof(*pair));
	return 0;
}

static uint8_t byte_of(uint64_t i, unsigned salt)
{
	return (uint8_t)(i * 41 + (i >> 8) + salt);
}

/* After each try both hear whether the loop's connection stood; if not, it is made again. */
static int agree(struct pairs *p)
{
	struct p2p_rank *r = p->r;
	uint64_t mine = p->is_broken, both[2];
	int err = bench_check(epf_allgather(r->ep, &mine, sizeof(mine), both));

	if (err || !(both[0] | both[1]))
		return err;
	p->is_broken = 1;
	if (++p->broken <= BROKEN_MAX)
		return open_loop(p);
	bench_complain("the loop's connection failed %d times, the last time: %s", BROKEN_MAX + 1,
		       r->rank == 0 ? rawverbs_error(p->raw) : "see rank 0");
	return -EIO;
}

static int try_pair(struct pairs *p, struct p2p_pair *pair, unsigned salt)
{
	struct p2p_rank *r = p->r;
	int err;

	for (uint64_t i = 0; i < pair->bytes; i++) {
		r->source[i] = byte_of(i, salt);
		r->target[i] = r->source[RAW_TARGET + i] = (uint8_t)~byte_of(i, salt);
	}
	p->is_broken = 0;
	err = bench_check(epf_barrier(r->ep));
	if (!err && r->rank == 0)
		err = measure(p, pair);
	if (!err)
		err = agree(p);
	for (uint64_t i = 0; i < pair->bytes && !err && !p->is_broken && r->rank == 1; i++)
		r->wrong += (uint64_t)(r->target[i] != byte_of(i, salt)) +
			    (r->source[RAW_TARGET + i] != byte_of(i, salt));
	return err;
}

int p2p_pairs(struct p2p_rank *r)
{
	struct pairs p = { .r = r };
	uint64_t sizes[32];
	unsigned n = p2p_sizes(r->o, sizes);
	int err = open_loop(&p);

	for (uint64_t round = 0; round < r->o->rounds && !err; round++)
		for (unsigned i = 0; i < n && !err; i++) {
			struct p2p_pair pair = { .bytes = sizes[i], .round = round };

			do
				err = try_pair(&p, &pair,
					       (unsigned)(round * 77 + sizes[i] * 3 + 5));
			while (!err && p.is_broken);
		}
	rawverbs_close(p.raw);
	return err;
}
