/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several jobs on the same nodes, threads and ports: job 0 decodes, in rounds of small rows with pauses, each timed; the others put as much as their limits
 * allow, all the time. Every row of a round must have landed when its signal says so. See scale.h.
 */
#include "bench/scale/scale.h"

#include "fabric/base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_BYTES = 7168 + 224 + 128, BULK_GROUP = 8, SIG = 0, SIG_BULK = 1 };

struct scale_tenants {
	struct scale *s;
	struct scale_tenants_options o;
	uint32_t *landed;   /* [ranks][ranks]: rows of decode's, by receiver and sender */
	uint64_t *round_ns; /* [ranks][rounds] */
	uint32_t *round;    /* [ranks] */
	uint64_t *begun_ns; /* [ranks] of the round under way; 0: a pause */
	uint64_t *next_ns;  /* [ranks] when the next one begins */
	uint64_t *bytes;    /* [jobs]: of bulk's, landed */
	uint32_t decoding;  /* ranks that have not ended */
};

static struct scale_tenants *of(const struct scale_rank *r)
{
	return r->s->state[r->core->job];
}

/* ---- decode ---- */

static int send_round(struct scale_tenants *t, struct scale_rank *r)
{
	uint32_t ranks = t->s->o.ranks;
	int did = 0;

	while (r->peer < ranks - 1) {
		uint32_t peer = (r->rank + 1 + r->peer) % ranks;
		uint64_t at = (uint64_t)r->rank * t->o.rows + r->at;
		struct epf_op op = scale_transfer(EPF_OP_PUT, peer, at * ROW_BYTES, at * ROW_BYTES,
						  ROW_BYTES, SIG * ranks + r->rank, EPF_F_COUNTED);

		if (scale_is_near(t->s, peer, r->rank)) {
			r->peer++;
			continue;
		}
		if (r->at == t->o.rows)
			op = (struct epf_op){ .op = EPF_OP_SIGNAL,
					      .flags = EPF_F_COUNTED,
					      .rank = peer,
					      .signal = SIG * ranks + r->rank,
					      .value = 1,
					      .count = t->o.rows };
		if (!scale_push(r, &op))
			return did;
		did++;
		r->peer += r->at == t->o.rows;
		r->at = r->at == t->o.rows ? 0 : r->at + 1;
	}
	return did;
}

static int receive_round(struct scale_tenants *t, struct scale_rank *r)
{
	uint32_t ranks = t->s->o.ranks;

	for (; r->waits < ranks; r->waits++) {
		uint32_t from = r->waits;

		if (scale_is_near(t->s, from, r->rank))
			continue;
		if (epf_signal_read(&r->signals[SIG * ranks + from]) <= t->round[r->rank])
			return 0;
		if (t->landed[(size_t)r->rank * ranks + from] < (t->round[r->rank] + 1) * t->o.rows)
			return scale_wrong(t->s, "decode: rank %u: rows of rank %u are not there",
					   r->rank, from);
	}
	return 1;
}

static int decode(struct scale_rank *r)
{
	struct scale_tenants *t = of(r);
	uint64_t now = sim_net_now(t->s->net);
	int did, got;

	if (!t->begun_ns[r->rank]) {
		if (now < t->next_ns[r->rank]) {
			scale_wake_at(r, t->next_ns[r->rank]);
			return 0;
		}
		t->begun_ns[r->rank] = now;
		r->peer = r->at = r->waits = 0;
	}
	did = send_round(t, r);
	if (r->peer < t->s->o.ranks - 1)
		return did;
	got = receive_round(t, r);
	if (got <= 0)
		return got < 0 ? got : did;
	if (t->round[r->rank] >= t->o.warm_up)
		t->round_ns[(size_t)r->rank * (t->o.rounds - t->o.warm_up) + t->round[r->rank] -
			    t->o.warm_up] = now - t->begun_ns[r->rank];
	t->begun_ns[r->rank] = 0;
	/* Pauses differ, so that rounds meet the others at any moment. */
	t->next_ns[r->rank] =
		now + t->o.pause_ns / 2 +
		scale_mix(t->s->o.seed, t->round[r->rank], 5, 0) % (t->o.pause_ns + 1);
	if (++t->round[r->rank] == t->o.rounds) {
		r->done = 1;
		t->decoding--;
	}
	return did + 1;
}

static void decode_landed(struct scale_rank *r, uint64_t offset, uint32_t bytes)
{
	struct scale_tenants *t = of(r);
	uint64_t from = offset / ROW_BYTES / t->o.rows;

	(void)bytes;
	if (from >= t->s->o.ranks)
		scale_wrong(t->s, "decode: rank %u: a row landed elsewhere", r->rank);
	else
		t->landed[(size_t)r->rank * t->s->o.ranks + from]++;
}

/* ---- bulk ---- */

static int bulk(struct scale_rank *r)
{
	struct scale_tenants *t = of(r);
	uint32_t ranks = t->s->o.ranks;
	int did = 0;

	if (!t->decoding) {
		r->done = 1;
		return 0;
	}
	/* To the rank of the same place on each other machine in turn, as a high-throughput dispatch does. */
	for (;;) {
		uint32_t peer = (r->rank + (1 + r->peer) * t->s->o.near) % ranks;
		struct epf_op op = scale_transfer(
			EPF_OP_PUT, peer, 0, (uint64_t)r->at * t->o.bulk_bytes, t->o.bulk_bytes,
			SIG_BULK * ranks + r->rank, EPF_F_COUNTED | EPF_F_BULK);

		if (r->at == BULK_GROUP)
			op = (struct epf_op){ .op = EPF_OP_SIGNAL,
					      .flags = EPF_F_COUNTED,
					      .rank = peer,
					      .signal = SIG_BULK * ranks + r->rank,
					      .value = 1,
					      .count = BULK_GROUP };
		if (!scale_push(r, &op))
			return did;
		did++;
		if (r->at++ < BULK_GROUP)
			continue;
		r->at = 0;
		r->peer = (r->peer + 1) % (ranks / t->s->o.near - 1);
	}
}

static void bulk_landed(struct scale_rank *r, uint64_t offset, uint32_t bytes)
{
	(void)offset;
	of(r)->bytes[r->core->job] += bytes;
}

static const struct scale_program decode_program = { "decode", decode, decode_landed };
static const struct scale_program bulk_program = { "bulk", bulk, bulk_landed };

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void judge(struct scale_tenants *t, uint64_t ns, struct scale_tenants_result *out)
{
	size_t n = (size_t)t->s->o.ranks * (t->o.rounds - t->o.warm_up);
	double seconds = (double)ns / 1e9;

	qsort(t->round_ns, n, sizeof(*t->round_ns), by_value);
	out->median_us = (double)t->round_ns[n / 2] / 1e3;
	out->p99_us = (double)t->round_ns[n * 99 / 100] / 1e3;
	out->most_us = (double)t->round_ns[n - 1] / 1e3;
	for (uint32_t j = 0; j < t->s->o.jobs; j++) {
		const struct scale_core *c = &t->s->cores[(size_t)j * t->s->n_nodes];

		out->bulk_gbytes[j] = (double)t->bytes[j] / 1e9 / seconds;
		out->share[j] = (double)c->busy_ns / (double)ns;
		out->step_us[j] = (double)c->longest_ns / 1e3;
		if (j && c->most_inflight > out->most_inflight)
			out->most_inflight = c->most_inflight;
	}
}

int scale_tenants(const struct scale_options *so, const struct scale_tenants_options *o,
		  struct scale_tenants_result *out)
{
	struct scale *s = scale_open(so);
	struct scale_tenants t = { .s = s, .o = *o, .decoding = so->ranks };
	uint64_t begun;
	int rc = s ? 0 : -1;

	*out = (struct scale_tenants_result){ 0 };
	t.landed = calloc((size_t)so->ranks * so->ranks, sizeof(*t.landed));
	t.round_ns = calloc((size_t)so->ranks * o->rounds, sizeof(*t.round_ns));
	t.round = calloc(so->ranks, sizeof(*t.round));
	t.begun_ns = calloc(so->ranks, sizeof(*t.begun_ns));
	t.next_ns = calloc(so->ranks, sizeof(*t.next_ns));
	t.bytes = calloc(SCALE_JOBS_MAX, sizeof(*t.bytes));
	if (!t.landed || !t.round_ns || !t.round || !t.begun_ns || !t.next_ns || !t.bytes)
		rc = -1;
	for (uint32_t j = 0; !rc && j < so->jobs; j++) {
		s->program[j] = j ? &bulk_program : &decode_program;
		s->state[j] = &t;
	}
	if (!rc) {
		begun = sim_net_now(s->net);
		rc = scale_run(s);
		judge(&t, sim_net_now(s->net) - begun, out);
		snprintf(out->why, sizeof(out->why), "%s", s->why);
	} else {
		snprintf(out->why, sizeof(out->why), "%s", epf_last_error());
	}
	scale_close(s);
	free(t.landed);
	free(t.round_ns);
	free(t.round);
	free(t.begun_ns);
	free(t.next_ns);
	free(t.bytes);
	return rc;
}
