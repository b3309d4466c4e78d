/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of ep-bench p2p --against rawverbs: beside the fabric it has a bare post loop on the same device, over the same memory, to
 * the same peer. Rank 0 puts by the one and writes by the other in turn, so that both see the same machine; rank 1 looks at every
 * byte. Writes are counted until their completion, on both sides.
 */
#include "bench/bench.h"
#include "bench/p2p.h"
#include "bench/rawverbs.h"

#include "fabric/base/clock.h"
#include "fabric/epf.h"

#include <errno.h>
#include <string.h>

enum { SLICES_MAX = 99, DEFAULT_WRITES = 1000 };

/* The loop's writes land behind the fabric's. */
#define RAW_TARGET (P2P_SIZE_MAX + P2P_AGAINST_MAX)

static int complain(int err)
{
	if (err)
		bench_complain("%s", epf_last_error());
	return err;
}

static int open_loop(struct p2p_rank *r, struct rawverbs **out)
{
	struct rawverbs_opts o = r->o->raw;
	struct rawverbs_address mine, both[2];
	int err;

	memcpy(o.device, r->o->device[r->rank], sizeof(o.device));
	err = rawverbs_open(&o, r->source, 2ull * P2P_SIZE_MAX, out);
	if (err)
		return err;
	rawverbs_address(*out, &mine);
	err = complain(epf_allgather(r->ep, &mine, sizeof(mine), both));
	return err ? err : rawverbs_connect(*out, &both[r->peer]);
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
	return complain(err);
}

static int write_n(struct rawverbs *raw, uint64_t bytes, uint64_t n, double *per_second)
{
	struct rawverbs_result res;
	int err = rawverbs_write(raw, 0, RAW_TARGET, bytes, n, 0, &res);

	if (!err)
		*per_second = (double)res.writes / res.seconds;
	return err;
}

static uint64_t counter(struct p2p_rank *r, const char *name)
{
	uint64_t v = 0;

	return epf_counter(r->ep, name, &v) ? 0 : v;
}

/* Rank 0's part of one size in one round. */
static int measure(struct p2p_rank *r, struct rawverbs *raw, struct p2p_pair *pair)
{
	uint64_t n = r->o->iterations ? r->o->iterations : DEFAULT_WRITES;
	uint64_t posted = counter(r, "wrs_posted"), posts = counter(r, "doorbells");
	double fabric[SLICES_MAX], bare[SLICES_MAX], warm;
	int err = put_n(r, pair->bytes, n / 10 + 1, &warm);

	if (!err)
		err = write_n(raw, pair->bytes, n / 10 + 1, &warm);
	for (uint64_t s = 0; s < r->o->slices && !err; s++) {
		err = put_n(r, pair->bytes, n, &fabric[s]);
		if (!err)
			err = write_n(raw, pair->bytes, n, &bare[s]);
	}
	if (!err)
		err = complain(epf_flush(r->ring, 0, 0));
	if (err)
		return err;
	posted = counter(r, "wrs_posted") - posted;
	posts = counter(r, "doorbells") - posts;
	pair->fabric_per_second = bench_median(fabric, r->o->slices);
	pair->bare_per_second = bench_median(bare, r->o->slices);
	pair->fabric_list = posts ? (double)posted / (double)posts : 0;
	r->row(r->row_arg, pair, sizeof(*pair));
	return 0;
}

static uint8_t byte_of(uint64_t i, unsigned salt)
{
	return (uint8_t)(i * 41 + (i >> 8) + salt);
}

static int one_pair(struct p2p_rank *r, struct rawverbs *raw, uint64_t bytes, uint64_t round)
{
	struct p2p_pair pair = { .bytes = bytes, .round = round };
	unsigned salt = (unsigned)(round * 77 + bytes * 3 + 5);
	int err;

	for (uint64_t i = 0; i < bytes; i++) {
		r->source[i] = byte_of(i, salt);
		r->target[i] = r->source[RAW_TARGET + i] = (uint8_t)~byte_of(i, salt);
	}
	err = complain(epf_barrier(r->ep));
	if (!err && r->rank == 0)
		err = measure(r, raw, &pair);
	if (!err)
		err = complain(epf_barrier(r->ep));
	for (uint64_t i = 0; i < bytes && !err && r->rank == 1; i++)
		r->wrong += (uint64_t)(r->target[i] != byte_of(i, salt)) +
			    (r->source[RAW_TARGET + i] != byte_of(i, salt));
	return err;
}

int p2p_pairs(struct p2p_rank *r)
{
	struct rawverbs *raw = NULL;
	uint64_t sizes[32];
	unsigned n = p2p_sizes(r->o, sizes);
	int err = open_loop(r, &raw);

	for (uint64_t round = 0; round < r->o->rounds && !err; round++)
		for (unsigned i = 0; i < n && !err; i++)
			err = one_pair(r, raw, sizes[i], round);
	rawverbs_close(raw);
	return err;
}
