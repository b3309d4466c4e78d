/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that share nodes, engine threads and ports, on the simulated network (bench/scale/tenants.c) and its virtual clock, so that times may be judged: what a
 * decode job's slowest percent of rounds takes beside bulk jobs, what weights come to, and that a job's limits hold.
 */
#include "bench/scale/scale.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char *const short_turns[] = { "service-quantum=5us", NULL };

static struct scale_options options(uint32_t jobs)
{
	struct scale_options o = scale_defaults();

	o.ranks = 16;
	o.per_node = o.near = 8;
	o.jobs = jobs;
	o.tokens = o.tokens_max = 16;
	return o;
}

static struct scale_tenants_result play(const struct scale_options *o, uint32_t bulk_bytes)
{
	struct scale_tenants_options to = {
		.rounds = 100, .rows = 4, .warm_up = 10, .pause_ns = 50000, .bulk_bytes = bulk_bytes
	};
	struct scale_tenants_result r;

	if (scale_tenants(o, &to, &r))
		fail_msg("%u jobs: %s", o->jobs, r.why);
	return r;
}

/* With a traffic class that goes first; with a weight, too, it never waits for a turn of others that were charged as little. */
static void decode_is_hardly_slower(void **state)
{
	static const struct {
		uint32_t jobs, weight;
		double most;
	} row[] = { { 1, 1, 1 }, { 2, 64, 1.5 }, { 4, 64, 1.5 }, { 8, 64, 1.5 }, { 8, 1, 1.6 } };

	double alone = 0;

	for (unsigned i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct scale_options o = options(row[i].jobs);
		struct scale_tenants_result r;

		o.weight[0] = row[i].weight;
		o.net.first_jobs = 1;
		r = play(&o, 256 << 10);
		alone = i ? alone : r.p99_us;
		printf("# weight %u, beside %u bulk jobs: p99 %.1f us, %.2f times what it is alone\n",
		       row[i].weight, row[i].jobs - 1, r.p99_us, r.p99_us / alone);
		assert_true(r.p99_us <= row[i].most * alone);
		/* Nor do the others starve: all ports together carry 800 GB/s. */
		for (uint32_t j = 1; j < row[i].jobs; j++)
			assert_true(r.bulk_gbytes[j] > 400.0 / (row[i].jobs - 1));
	}
}

/* Nothing is set: the decode job sends less than the others, so its commands go first. What stays is the wire, of which each job has the same part. */
static void decode_goes_first_by_default(void **state)
{
	static const struct {
		uint32_t jobs;
		double most;
	} row[] = { { 1, 1 }, { 2, 1.6 }, { 4, 2.5 }, { 8, 4.5 } };

	double alone = 0;

	for (unsigned i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct scale_options o = options(row[i].jobs);
		struct scale_tenants_result r;

		r = play(&o, 256 << 10);
		alone = i ? alone : r.p99_us;
		printf("# nothing set, beside %u bulk jobs: p99 %.1f us, %.2f times what it is alone\n",
		       row[i].jobs - 1, r.p99_us, r.p99_us / alone);
		assert_true(r.p99_us <= row[i].most * alone);
		for (uint32_t j = 1; j < row[i].jobs; j++)
			assert_true(r.bulk_gbytes[j] > 400.0 / (row[i].jobs - 1));
	}
}

/* A weight does not replace the class, nor do short turns, with which the decode job's credit is less than a round: so the test above can fail. */
static void without_a_class_it_is_slower(void **state)
{
	struct scale_options o = options(1);
	double alone = play(&o, 256 << 10).p99_us;

	o = options(8);
	o.weight[0] = 64;
	assert_true(play(&o, 256 << 10).p99_us > 1.5 * alone);
	o.net.first_jobs = 1;
	o.weight[0] = 1;
	o.settings = short_turns;
	assert_true(play(&o, 256 << 10).p99_us > 1.5 * alone);
}

/* Small puts fill the thread: it is shared by weight. */
static void weights_share_the_thread(void **state)
{
	struct scale_options o = options(3);
	struct scale_tenants_result r;

	o.weight[1] = 1;
	o.weight[2] = 3;
	o.weight[0] = 8;
	r = play(&o, 64);
	printf("# weights 1 and 3: %.3f and %.3f of the thread\n", r.share[1], r.share[2]);
	assert_true(r.share[2] > 2.5 * r.share[1] && r.share[2] < 3.5 * r.share[1]);
	assert_true(r.bulk_gbytes[2] > 2.5 * r.bulk_gbytes[1]);
}

/* A job has no more under way than it may. */
static void limits_hold(void **state)
{
	static const char *const limited[] = { "nic-inflight-bytes=1MiB", NULL };
	struct scale_options o = options(2);
	struct scale_tenants_result most, least;

	most = play(&o, 256 << 10);
	o.settings = limited;
	least = play(&o, 256 << 10);
	/* Its puts are 256 KiB, and one may begin below the limit. */
	assert_true(least.most_inflight <= (1 << 20) + (256 << 10));
	assert_true(most.most_inflight > (1 << 20) + (256 << 10));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(decode_is_hardly_slower),
		cmocka_unit_test(decode_goes_first_by_default),
		cmocka_unit_test(without_a_class_it_is_slower),
		cmocka_unit_test(weights_share_the_thread),
		cmocka_unit_test(limits_hold),
	};

	return cmocka_run_group_tests_name("sim_tenants", tests, NULL, NULL);
}
