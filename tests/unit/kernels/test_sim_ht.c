/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The high-throughput commands that the simulation pushes (bench/scale) are those of the kernels: both play the same tokens, once on the emulated NIC
 * with the kernels as plain C, and once simulated. After each dispatch and each combine every rank's engine has counted the same commands, bytes and
 * signals. test_sim_commands does the same for low latency.
 */
#include "bench/scale/scale.h"
#include "fabric/client/epf.h"
#include "tests/unit/kernels/ht_kit.h"

#include "fabric/base/err.h"

#include <stdlib.h>
#include <string.h>

enum {
	ROUNDS = 2,
	COUNTERS = 3,
	LAST_NS = 100000,
	PUT_BYTES = 256 /* ht_kit.c: several puts a slice */
};

struct counts {
	uint64_t of[RANKS][COUNTERS];
};

/* All ranks of the kit are on one machine, those of the simulation on as many as there are nodes. */
static const char *const counter[COUNTERS] = { "cmds_dequeued", "put_bytes_same_node",
					       "signals_applied" };
static const uint32_t stat[COUNTERS] = { EPF_STAT_CORE_CMDS_DEQUEUED,
					 EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE,
					 EPF_STAT_CORE_SIGNALS_APPLIED };

/* The engine of each rank takes all that was pushed before its counters are read; all signals came before a call ended. */
static int settle(struct rank *me)
{
	struct epf_ring *ring = me->ht->ll->ring;

	return epf_flush(ring, EPF_ALL_RINGS, 0);
}

/* As sums since the beginning. What the host pushes so that engines wake is none of the kernels'. */
static void read_kernels(struct rig *g, struct counts *out)
{
	all_right(g, settle);
	for (uint32_t r = 0; r < g->ranks; r++) {
		for (unsigned c = 0; c < COUNTERS; c++)
			assert_int_equal(
				epf_counter(ll_kit_ep(g->kit, r), counter[c], &out->of[r][c]), 0);
		out->of[r][0] -= epf_ring_pushed(g->rank[r].ht->ll->ring);
	}
}

/* What ranks said last is still on its way when all have ended. */
static void read_simulation(const struct scale *s, struct counts *out)
{
	uint64_t until = sim_net_now(s->net) + LAST_NS;

	while (sim_net_now(s->net) < until && sim_net_run(s->net))
		;
	for (uint32_t r = 0; r < s->o.ranks; r++)
		for (unsigned c = 0; c < COUNTERS; c++)
			out->of[r][c] = epf_stat_get(s->cores[r].block, stat[c]);
}

static void assert_same(uint32_t ranks, unsigned phase, const struct counts *kernels,
			const struct counts *simulation)
{
	for (uint32_t r = 0; r < ranks; r++)
		for (unsigned c = 0; c < COUNTERS; c++)
			if (kernels->of[r][c] != simulation->of[r][c])
				fail_msg(
					"%u ranks, phase %u, rank %u: %s: %llu simulated, %llu real",
					ranks, phase, r, counter[c],
					(unsigned long long)simulation->of[r][c],
					(unsigned long long)kernels->of[r][c]);
}

static void route(void *arg, uint32_t rank, uint32_t token, uint32_t to[SCALE_TOPK])
{
	const struct batch *b = arg;

	for (uint32_t k = 0; k < SCALE_TOPK; k++) {
		int64_t e = token < b->tokens[rank] && k < b->topk ? b->idx[rank][token][k] : -1;

		to[k] = e < 0 ? rank : (uint32_t)e / b->local;
	}
}

/* Rows as the kernels make them for this batch: with heads for the receiver's node on the way there, as sums on the way back. */
static struct scale_options options_of(struct batch *b, uint32_t ranks, uint32_t near)
{
	const struct epf_ht_row there = { b->hidden * 2, b->scales, b->topk };
	const struct epf_ht_row back = { b->hidden * 2, 0, b->topk };
	struct scale_options o = scale_defaults();

	o.ranks = ranks;
	o.per_node = 1; /* an engine each, as in the kit */
	o.near = near;
	o.tokens = TOKENS;
	o.row_bytes[0] = ht_record_of(&there, near).bytes;
	o.row_bytes[1] = ht_record_of(&back, 0).bytes;
	o.put_bytes = PUT_BYTES;
	o.local = b->local;
	o.route = route;
	o.route_arg = b;
	o.net.links = 1;
	o.net.lanes = 2;
	return o;
}

static void play(const struct topology *on, uint32_t near, uint64_t seed)
{
	struct batch *b = make_batch(on->ranks, seed);
	struct scale_options o = options_of(b, on->ranks, near);
	struct counts kernels, simulation, before;
	struct rig *g = open_on(on, 0, ORDERED);
	struct scale *s = scale_open(&o);
	struct scale_ht *ht;

	if (!s)
		fail_msg("%s", epf_last_error());
	b->worst = 0;
	set_batch(g, b);
	ht = scale_ht_open(s, 0);
	assert_non_null(ht);
	read_kernels(g, &before);
	for (unsigned phase = 0; phase < 2 * ROUNDS; phase++) {
		if (phase % 2 == 0)
			all_right(g, plan);
		all_right(g, phase % 2 ? collect : move);
		read_kernels(g, &kernels);
		for (uint32_t r = 0; r < on->ranks; r++)
			for (unsigned c = 0; c < COUNTERS; c++)
				kernels.of[r][c] -= before.of[r][c];
		scale_ht_begin(ht, phase / 2, phase % 2);
		if (scale_run(s))
			fail_msg("%s", s->why);
		read_simulation(s, &simulation);
		assert_same(on->ranks, phase, &kernels, &simulation);
	}
	assert_true(simulation.of[0][0] > 0 && simulation.of[0][1] > 0 && simulation.of[0][2] > 0);
	scale_ht_close(ht);
	scale_close(s);
	close_rig(g);
	free(b);
}

static void the_simulation_pushes_what_kernels_push(void **state)
{
	static const struct topology two = { 4, { 0, 0, 1, 1 } }, each = { 4, { 0, 1, 2, 3 } },
				     three = { 9, { 0, 0, 0, 1, 1, 1, 2, 2, 2 } };

	play(&two, 2, 1);
	play(&each, 1, 2);
	play(&three, 3, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(
		the_simulation_pushes_what_kernels_push) };

	return cmocka_run_group_tests_name("sim_ht", tests, NULL, NULL);
}
