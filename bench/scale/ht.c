/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of high-throughput dispatch and combine between nodes as kernels/ht pushes them (epf_ht_net.cuh): counts to every rank of another node,
 * then rows, in four slices, to one rank of each other node, with a signal that counts a slice's puts; combine sends as much back. Stores within a node take no
 * time here. Where rows land is laid out more loosely than by the kernels, so that each place names its sender.
 */
#include "bench/scale/scale.h"

#include <stdlib.h>
#include <string.h>

enum {
	SLICES = 4,
	PUT_BYTES = 256 << 10, /* kernels/ht/ht_open.c */
	PIECES = 64,
	SIG_COUNTS = 0,
	SIG_READY = 1,
	SIG_ROWS = 2,
	COUNTS_EACH = 1 << 16,
};

#define COUNTS_AT (SCALE_REGION_BYTES / 2)

/* Where a call is. */
enum stage { PUSH_COUNTS, WAIT_COUNTS, WAIT_READY, PUSH_ROWS, WAIT_ROWS, SAY_READY, OVER };

struct scale_ht {
	struct scale *s;
	uint32_t job, nodes, row_bytes, put_bytes;
	int combine;
	uint64_t dispatches, calls; /* before this one */
	uint16_t *rows;  /* [ranks][nodes]: of a rank's tokens, those that a node needs */
	uint64_t *got;   /* [ranks][nodes][SLICES]: pieces that have landed */
	uint8_t *counts; /* [ranks][ranks] */
};

static struct scale_ht *ht_of(const struct scale_rank *r)
{
	return r->s->state[r->core->job];
}

static uint32_t machine_of(const struct scale *s, uint32_t rank)
{
	return rank / s->o.near;
}

/* The rank of a machine that this one exchanges rows with. */
static uint32_t via(const struct scale_rank *r, uint32_t machine)
{
	return machine * r->s->o.near + r->rank % r->s->o.near;
}

static uint32_t signal_of(const struct scale_ht *ht, unsigned what, uint32_t from)
{
	return what * ht->s->o.ranks + from;
}

/* Bytes of slice k of what a rank sends to a machine. */
static uint64_t slice_bytes(const struct scale_ht *ht, uint32_t from, uint32_t machine, uint32_t k)
{
	/* Combine: as much as came from there. */
	uint64_t rows =
		ht->combine ? ht->rows[(size_t)(machine * ht->s->o.near + from % ht->s->o.near) *
					       ht->nodes +
				       machine_of(ht->s, from)]
			    : ht->rows[(size_t)from * ht->nodes + machine];

	return (rows * (k + 1) / SLICES - rows * k / SLICES) * ht->row_bytes;
}

static uint32_t pieces(const struct scale_ht *ht, uint64_t bytes)
{
	return (uint32_t)((bytes + ht->put_bytes - 1) / ht->put_bytes);
}

/* Where a piece from a machine lies. */
static uint64_t piece_at(uint32_t machine, uint32_t k, uint32_t piece)
{
	return (((uint64_t)machine * SLICES + k) * PIECES + piece) * PUT_BYTES;
}

/* ---- the steps of a call ---- */

static int push_counts(struct scale_ht *ht, struct scale_rank *r)
{
	uint32_t ranks = ht->s->o.ranks, experts = ranks > SCALE_EXPERTS ? ranks : SCALE_EXPERTS;
	uint32_t local = ht->s->o.local ? ht->s->o.local : experts / ranks;
	uint32_t machines = ranks / ht->s->o.near;
	uint32_t bytes = (ranks + (machines > 1 ? machines : 0) + 2 + local + 3) / 4 * 16;
	int did = 0;

	for (; r->peer < ranks; r->peer++) {
		struct epf_op op = scale_transfer(EPF_OP_PUT_SIGNAL, r->peer, 0,
						  COUNTS_AT + (uint64_t)r->rank * COUNTS_EACH,
						  bytes, signal_of(ht, SIG_COUNTS, r->rank), 0);

		if (scale_is_near(ht->s, r->peer, r->rank) || scale_is_lost(r, r->peer))
			continue;
		if (!scale_push(r, &op))
			return did;
		did++;
	}
	r->part = WAIT_COUNTS;
	r->peer = 0;
	return did + 1;
}

static uint64_t signal_at(const struct scale_ht *ht, const struct scale_rank *r, unsigned what,
			  uint32_t from)
{
	return epf_signal_read(&r->signals[signal_of(ht, what, from)]);
}

static int wait_counts(struct scale_ht *ht, struct scale_rank *r)
{
	for (; r->peer < ht->s->o.ranks; r->peer++) {
		uint32_t from = r->peer;

		if (scale_is_near(ht->s, from, r->rank) || scale_is_lost(r, from))
			continue;
		if (signal_at(ht, r, SIG_COUNTS, from) <= ht->dispatches)
			return 0;
		if (!ht->counts[(size_t)r->rank * ht->s->o.ranks + from])
			return scale_wrong(ht->s, "rank %u: the counts of rank %u are not there",
					   r->rank, from);
	}
	r->part = WAIT_READY;
	r->peer = 0;
	return 1;
}

static int wait_ready(struct scale_ht *ht, struct scale_rank *r)
{
	for (; r->peer < ht->nodes; r->peer++) {
		uint32_t from = via(r, r->peer);

		if (from != r->rank && !scale_is_lost(r, from) &&
		    signal_at(ht, r, SIG_READY, from) < ht->calls)
			return 0;
	}
	r->part = PUSH_ROWS;
	r->at = r->waits = 0;
	return 1;
}

/* The machine that leg number r->at leads to: ranks of one index begin with different ones, else all would fill one port after another. */
static uint32_t leg(const struct scale_ht *ht, const struct scale_rank *r)
{
	return (machine_of(ht->s, r->rank) + r->at) % ht->nodes;
}

/* at: slice * machines + leg; waits: piece. */
static int push_rows(struct scale_ht *ht, struct scale_rank *r)
{
	int did = 0;

	while (r->at < SLICES * ht->nodes) {
		uint32_t k = r->at / ht->nodes;
		uint32_t machine = leg(ht, r), to = via(r, machine);
		uint64_t bytes = slice_bytes(ht, r->rank, machine, k);
		uint64_t left = bytes - (uint64_t)r->waits * ht->put_bytes;
		uint32_t signal = signal_of(ht, SIG_ROWS + k, r->rank);
		struct epf_op op = { .op = EPF_OP_SIGNAL,
				     .flags = bytes ? EPF_F_COUNTED : 0,
				     .rank = to,
				     .signal = signal,
				     .value = 1,
				     .count = pieces(ht, bytes) };

		if (to == r->rank || scale_is_lost(r, to)) {
			r->at++;
			r->waits = 0;
			continue;
		}
		if (r->waits < pieces(ht, bytes))
			op = scale_transfer(EPF_OP_PUT, to, 0,
					    piece_at(machine_of(ht->s, r->rank), k, r->waits),
					    (uint32_t)(left < ht->put_bytes ? left : ht->put_bytes),
					    signal, EPF_F_COUNTED | EPF_F_BULK);
		if (!scale_push(r, &op))
			return did;
		did++;
		if (op.op == EPF_OP_PUT) {
			r->waits++;
			continue;
		}
		r->at++;
		r->waits = 0;
	}
	r->part = WAIT_ROWS;
	r->at = 0;
	return did + 1;
}

/* Pieces of a slice that are not there. */
static uint32_t missing(const struct scale_ht *ht, uint32_t rank, uint32_t machine, uint32_t k)
{
	uint32_t from = machine * ht->s->o.near + rank % ht->s->o.near;
	uint32_t n = pieces(ht, slice_bytes(ht, from, machine_of(ht->s, rank), k));
	uint64_t want = n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX;

	return (uint32_t)__builtin_popcountll(
		want & ~ht->got[((size_t)rank * ht->nodes + machine) * SLICES + k]);
}

static int wait_rows(struct scale_ht *ht, struct scale_rank *r)
{
	for (; r->at < SLICES * ht->nodes; r->at++) {
		uint32_t k = r->at / ht->nodes, machine = leg(ht, r);
		uint32_t from = via(r, machine);

		if (from == r->rank || scale_is_lost(r, from))
			continue;
		if (signal_at(ht, r, SIG_ROWS + k, from) <= ht->calls)
			return 0;
		if (missing(ht, r->rank, machine, k))
			return scale_wrong(ht->s,
					   "rank %u: rows of rank %u are not there when it says so",
					   r->rank, from);
	}
	r->part = SAY_READY;
	r->peer = 0;
	return 1;
}

static int say_ready(struct scale_ht *ht, struct scale_rank *r)
{
	int did = 0;

	for (; r->peer < ht->nodes; r->peer++) {
		struct epf_op op = { .op = EPF_OP_SIGNAL,
				     .rank = via(r, r->peer),
				     .signal = signal_of(ht, SIG_READY, r->rank),
				     .value = 1 };

		if (op.rank == r->rank || scale_is_lost(r, op.rank))
			continue;
		if (!scale_push(r, &op))
			return did;
		did++;
	}
	r->part = OVER;
	r->done = 1;
	return did + 1;
}

static int poll(struct scale_rank *r)
{
	static int (*const step[])(struct scale_ht * ht,
				   struct scale_rank * r) = { push_counts, wait_counts, wait_ready,
							      push_rows,   wait_rows,   say_ready };
	struct scale_ht *ht = ht_of(r);
	int did = 0, rc = 1;

	if (ht->combine && r->part == PUSH_COUNTS)
		r->part = WAIT_READY;
	while (r->part < OVER) {
		unsigned part = r->part;

		rc = step[part](ht, r);
		if (rc < 0)
			return rc;
		did += rc;
		if (r->part == part)
			break;
	}
	return did;
}

static void landed(struct scale_rank *r, uint64_t offset, uint32_t bytes)
{
	struct scale_ht *ht = ht_of(r);
	uint64_t piece = offset / PUT_BYTES, place = piece / PIECES;

	(void)bytes;
	if (offset >= COUNTS_AT && (offset - COUNTS_AT) / COUNTS_EACH < ht->s->o.ranks)
		ht->counts[(size_t)r->rank * ht->s->o.ranks + (offset - COUNTS_AT) / COUNTS_EACH] =
			1;
	else if (place < (uint64_t)ht->nodes * SLICES)
		ht->got[(size_t)r->rank * ht->nodes * SLICES + place] |= UINT64_C(1)
									 << piece % PIECES;
	else
		scale_wrong(r->s, "rank %u: rows landed outside their places", r->rank);
}

static const struct scale_program program = { "ht", poll, landed };

/* ---- a job ---- */

/* Counts a token for each other machine that the caller's choice sends it to. */
static void route_as_told(struct scale_ht *ht, uint32_t rank, uint32_t token)
{
	uint32_t to[SCALE_TOPK], mine = machine_of(ht->s, rank);

	ht->s->o.route(ht->s->o.route_arg, rank, token, to);
	for (uint32_t k = 0; k < SCALE_TOPK; k++) {
		uint32_t machine = machine_of(ht->s, to[k]), i = 0;

		while (i < k && machine_of(ht->s, to[i]) != machine)
			i++;
		if (i == k && machine != mine)
			ht->rows[(size_t)rank * ht->nodes + machine]++;
	}
}

/* How many of a rank's tokens each machine needs: at most 4 machines a token, as DeepSeek-V3 routes in training. */
static void route(struct scale_ht *ht, uint32_t round)
{
	const struct scale_options *o = &ht->s->o;

	memset(ht->rows, 0, (size_t)o->ranks * ht->nodes * sizeof(*ht->rows));
	for (uint32_t r = 0; r < o->ranks; r++)
		for (uint32_t t = 0; t < o->tokens; t++) {
			uint64_t seed = scale_mix(o->seed, round, r, t), n = 0;
			uint32_t of[SCALE_LIMIT], limit = 0, used = 0;

			if (o->route) {
				route_as_told(ht, r, t);
				continue;
			}
			while (limit < SCALE_LIMIT && limit < ht->nodes) {
				uint32_t draw = (uint32_t)(scale_mix(seed, n++, 3, 0) % ht->nodes),
					 i = 0;

				while (i < limit && of[i] != draw)
					i++;
				if (i == limit)
					of[limit++] = draw;
			}
			for (uint32_t k = 0; k < SCALE_TOPK; k++)
				used |= 1u << scale_mix(seed, k, 4, 0) % limit;
			for (uint32_t i = 0; i < limit; i++)
				if (used >> i & 1u && of[i] != machine_of(ht->s, r))
					ht->rows[(size_t)r * ht->nodes + of[i]]++;
		}
}

uint64_t scale_ht_missing(const struct scale_ht *ht)
{
	const struct scale *s = ht->s;
	const struct scale_rank *ranks = &s->ranks[(size_t)ht->job * s->o.ranks];
	uint64_t n = 0;

	for (uint32_t r = 0; r < s->o.ranks; r++)
		for (uint32_t m = 0; m < ht->nodes; m++)
			for (uint32_t k = 0; k < SLICES; k++)
				if (m != machine_of(s, r) && ranks[r].done == 1 &&
				    ranks[via(&ranks[r], m)].done == 1)
					n += missing(ht, r, m, k);
	return n;
}

int scale_ht_begin(struct scale_ht *ht, uint32_t round, int combine)
{
	const struct scale_options *o = &ht->s->o;

	ht->combine = combine;
	ht->dispatches = round;
	ht->calls = 2ull * round + (combine != 0);
	ht->row_bytes = combine ? 2 * o->hidden + 4 * SCALE_TOPK /* BF16, weights */
				: o->hidden + o->hidden / 128 * 4 + 12 * SCALE_TOPK +
					  4 * o->near; /* FP8, scales, experts, weights, places */
	ht->row_bytes = (ht->row_bytes + 15) / 16 * 16;
	if (o->row_bytes[combine])
		ht->row_bytes = o->row_bytes[combine];
	ht->put_bytes = o->put_bytes ? o->put_bytes : PUT_BYTES;
	ht->s->program[ht->job] = &program;
	ht->s->state[ht->job] = ht;
	memset(ht->got, 0, (size_t)o->ranks * ht->nodes * SLICES * sizeof(*ht->got));
	memset(ht->counts, 0, (size_t)o->ranks * o->ranks);
	if (!combine)
		route(ht, round);
	return 0;
}

struct scale_ht *scale_ht_open(struct scale *s, uint32_t job)
{
	struct scale_ht *ht = calloc(1, sizeof(*ht));
	uint32_t ranks = s->o.ranks;

	if (!ht)
		return NULL;
	ht->s = s;
	ht->job = job;
	ht->nodes = ranks / s->o.near;
	ht->rows = calloc((size_t)ranks * ht->nodes, sizeof(*ht->rows));
	ht->got = calloc((size_t)ranks * ht->nodes * SLICES, sizeof(*ht->got));
	ht->counts = calloc(ranks, ranks);
	if (ht->rows && ht->got && ht->counts)
		return ht;
	scale_ht_close(ht);
	return NULL;
}

void scale_ht_close(struct scale_ht *ht)
{
	if (!ht)
		return;
	free(ht->rows);
	free(ht->got);
	free(ht->counts);
	free(ht);
}
