/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 64 ranks on 8 nodes of the simulated network (bench/scale): low latency over two calls of dispatch and combine, with nothing wrong, with a port that
 * fails and a node that dies in the middle, and on a NIC without order. Everything is on a virtual clock: a run is the same each time. That
 * everything arrived is judged place by place; the last test takes a write away and must be told.
 */
#include "bench/scale/scale.h"

#include "fabric/base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 64, PER_NODE = 8, NODES = 8, DEAD = 5, TOKENS = 32 };

static struct scale_options options(void)
{
	struct scale_options o = scale_defaults();

	o.ranks = RANKS;
	o.per_node = o.near = PER_NODE;
	o.tokens = o.tokens_max = TOKENS;
	return o;
}

static void on_fault(struct scale *s, uint32_t what)
{
	if (what == 0)
		sim_net_port(s->net, 1, 3, 0);
	else if (what == 1)
		scale_kill_node(s, DEAD);
	else
		sim_net_port(s->net, 1, 3, 1);
}

static struct scale *open_job(const struct scale_options *o)
{
	struct scale *s = scale_open(o);

	if (!s)
		fail_msg("%s", epf_last_error());
	s->fault = on_fault;
	return s;
}

/* Both calls, twice; the faults are those of the second dispatch. */
static void play(struct scale *s, const unsigned *fault_us, unsigned faults)
{
	struct scale_ll *ll = scale_ll_open(s, 0);

	assert_non_null(ll);
	for (uint32_t round = 0; round < 2; round++)
		for (int combine = 0; combine < 2; combine++) {
			scale_ll_begin(ll, round, combine);
			for (unsigned i = 0; i < faults && round && !combine; i++)
				scale_fault_at(s, fault_us[i] * 1000ull, i);
			if (scale_run(s))
				fail_msg("round %u: %s", round, s->why);
			assert_int_equal(scale_ll_missing(ll), 0);
		}
	scale_ll_close(ll);
}

static uint64_t counted(const struct scale *s, uint32_t stat)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->n_nodes; i++)
		sum += epf_stat_get(s->cores[i].block, stat);
	return sum;
}

static uint32_t ended(const struct scale *s)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < RANKS; r++)
		n += s->ranks[r].done == 1;
	return n;
}

static void arrives(void **state)
{
	struct scale_options o = options();
	struct scale *s = open_job(&o);
	struct scale_result r;

	play(s, NULL, 0);
	assert_int_equal(ended(s), RANKS);
	assert_int_equal(counted(s, EPF_STAT_CORE_LANE_ERRORS), 0);
	scale_result(s, 0, &r);
	/* No rank is done before the bytes can have come, nor before its engine has been through them. */
	assert_true(r.time_us >= r.wire_us && r.time_us >= r.cpu_us);
	scale_close(s);
}

/* The same job again takes the same time to the nanosecond; with a slower network a longer one. */
static void is_a_function_of_the_seed(void **state)
{
	struct scale_options o = options();
	uint64_t ns[3];

	for (unsigned i = 0; i < 3; i++) {
		struct scale *s;

		o.net.bytes_per_ns = i < 2 ? 50 : 1;
		s = open_job(&o);
		play(s, NULL, 0);
		ns[i] = sim_net_now(s->net);
		scale_close(s);
	}
	assert_int_equal(ns[0], ns[1]);
	assert_true(ns[2] > ns[0]);
}

/* A port fails and comes back, a node dies: the others get everything that comes from those that live, and nothing twice. */
static void survives(void **state)
{
	static const unsigned fault_us[] = { 20, 30, 900 };
	struct scale_options o = options();
	struct scale *s = open_job(&o);

	play(s, fault_us, 3);
	assert_int_equal(ended(s), RANKS - PER_NODE);
	assert_true(counted(s, EPF_STAT_CORE_LANE_ERRORS) > 0);
	assert_true(counted(s, EPF_STAT_CORE_REPLAYS) > 0);
	for (uint32_t r = 0; r < RANKS; r++)
		for (uint32_t p = 0; p < RANKS; p++)
			if (r / PER_NODE != DEAD)
				assert_int_equal(scale_is_lost(&s->ranks[r], p),
						 p / PER_NODE == DEAD);
	scale_close(s);
}

static void survives_without_order(void **state)
{
	static const unsigned fault_us[] = { 20, 30, 900 };
	struct scale_options o = options();
	struct scale *s;

	o.net.unordered = 1;
	o.net.loss = 0.001;
	o.net.reorder = 0.1;
	o.net.reorder_ns = 10000;
	s = open_job(&o);
	play(s, fault_us, 3);
	assert_int_equal(ended(s), RANKS - PER_NODE);
	assert_true(counted(s, EPF_STAT_CORE_SIGNALS_WAITED) > 0);
	scale_close(s);
}

/* The long form: 256 nodes of 8, with a port that fails and a node that dies in the dispatch. 6 GB. */
static void two_thousand_ranks(void **state)
{
	struct scale_options o = options();
	struct scale *s;
	struct scale_ll *ll;

	if (!getenv("EPF_TEST_LONG")) {
		print_message("# 2,048 ranks run in the long form only\n");
		return;
	}
	o.ranks = 2048;
	o.tokens = o.tokens_max = 128;
	o.net.segment = 16384;
	s = open_job(&o);
	ll = scale_ll_open(s, 0);
	assert_non_null(ll);
	for (int combine = 0; combine < 2; combine++) {
		scale_ll_begin(ll, 0, combine);
		for (unsigned i = 0; i < 2 && !combine; i++)
			scale_fault_at(s, 500000, i);
		if (scale_run(s))
			fail_msg("%s", s->why);
		assert_int_equal(scale_ll_missing(ll), 0);
	}
	assert_true(counted(s, EPF_STAT_CORE_REPLAYS) > 0);
	for (uint32_t r = 0; r < o.ranks; r++)
		assert_int_equal(s->ranks[r].done, r / PER_NODE == DEAD ? 2 : 1);
	scale_ll_close(ll);
	scale_close(s);
}

/* The network confirms a write that it has not made. */
static const struct scale_program *whole;
static unsigned until_gone;

static void loses_one(struct scale_rank *r, uint64_t offset, uint32_t bytes)
{
	if (--until_gone)
		whole->landed(r, offset, bytes);
}

static void a_write_that_is_gone_is_noticed(void **state)
{
	for (int combine = 0; combine < 2; combine++) {
		struct scale_options o = options();
		struct scale *s = open_job(&o);
		struct scale_ll *ll = scale_ll_open(s, 0);
		struct scale_program holed;

		for (int call = 0; call < combine; call++) {
			scale_ll_begin(ll, 0, call);
			assert_int_equal(scale_run(s), 0);
		}
		scale_ll_begin(ll, 0, combine);
		whole = s->program[0];
		holed = *whole;
		holed.landed = loses_one;
		s->program[0] = &holed;
		until_gone = 1000;
		assert_int_not_equal(scale_run(s), 0);
		if (!strstr(s->why, "are not there"))
			fail_msg("it says: %s", s->why);
		scale_ll_close(ll);
		scale_close(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arrives),
		cmocka_unit_test(is_a_function_of_the_seed),
		cmocka_unit_test(survives),
		cmocka_unit_test(survives_without_order),
		cmocka_unit_test(a_write_that_is_gone_is_noticed),
		cmocka_unit_test(two_thousand_ranks),
	};

	return cmocka_run_group_tests_name("sim_scale", tests, NULL, NULL);
}
