/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When an engine's step looks at its NIC (fabric/engine/step_hot.c): commands that come one at a time may go out a few at a time before it
 * does, but never more, and at once when the rings have nothing more. On the null NIC, whose completions are there at the next look.
 */
#include "fabric/engine/bench_core.h"
#include "queues/epf_ring.h"
#include "queues/epf_stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { FEW = 16, MANY = 1600 }; /* REAP_COMMANDS of fabric/engine/policy_hot.h */

struct rig {
	struct epf_bench_core *bc;
	struct epf_core *core;
	struct epf_ring_shm *shm;
	struct epf_ring_producer ring;
};

static void open_rig(struct rig *r, uint32_t lane_depth)
{
	struct epf_bench_core_options o = { .nic = "null",
					    .peers = 2,
					    .regions = 1,
					    .region_bytes = 4096,
					    .signals = 1,
					    .ring_slots = 256,
					    .batch = 64,
					    .lane_depth = lane_depth };

	assert_int_equal(epf_bench_core_create(&o, &r->bc), 0);
	r->core = epf_bench_core_of(r->bc);
	r->shm = epf_bench_core_ring(r->bc, 0);
	epf_ring_producer_init(&r->ring, r->shm, 0);
	while (epf_core_step(r->core)) /* the first control writes */
		;
}

static void push(struct rig *r, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		assert_true(epf_ring_push(
			&r->ring, epf_cmd_transfer(EPF_OP_PUT, 0, 1, 0, 1, 0, 0, 0, 0, 16)));
}

static uint64_t counter(const struct rig *r, uint32_t stat)
{
	return epf_bench_core_counter(r->bc, stat);
}

static void a_command_alone_is_over_when_the_ring_is_empty(void **state)
{
	struct rig r;

	open_rig(&r, 64);
	push(&r, 1);
	assert_true(epf_core_step(r.core) > 0);
	assert_int_equal(counter(&r, EPF_STAT_CORE_WRS_POSTED), 1); /* it went out at once */
	assert_true(epf_core_step(r.core) > 0);
	assert_int_equal(r.shm->done.retired, 1);
	assert_int_equal(epf_core_step(r.core), 0);
	epf_bench_core_destroy(r.bc);
}

static void one_at_a_time_lags_by_a_few_and_no_more(void **state)
{
	uint64_t most = 0, looks = 0, before = 0;
	struct rig r;

	open_rig(&r, 64);
	for (unsigned i = 1; i <= MANY; i++) {
		push(&r, 1);
		(void)epf_core_step(r.core);
		if (i - r.shm->done.retired > most)
			most = i - r.shm->done.retired;
		looks += r.shm->done.retired != before;
		before = r.shm->done.retired;
	}
	assert_in_range(most, 1, FEW); /* the null NIC completes at the next look at the latest */
	assert_in_range(looks, MANY / FEW, MANY / FEW + 1);
	epf_bench_core_destroy(r.bc);
}

static void a_batch_is_looked_after_in_its_own_step(void **state)
{
	uint64_t retired;
	struct rig r;

	open_rig(&r, 64);
	for (unsigned i = 0; i < 20; i++) {
		retired = r.shm->done.retired;
		push(&r, FEW);
		(void)epf_core_step(r.core);
		assert_true(r.shm->done.retired > retired);
	}
	epf_bench_core_destroy(r.bc);
}

static void a_full_lane_is_looked_after_at_once(void **state)
{
	struct rig r;

	open_rig(&r, 4); /* two of its entries are for data */
	push(&r, 3);
	(void)epf_core_step(r.core);
	assert_true(counter(&r, EPF_STAT_CORE_CMDS_DEFERRED) > 0);
	assert_true(counter(&r, EPF_STAT_CORE_COMPLETIONS) > 0);
	for (unsigned i = 0; i < 8; i++)
		(void)epf_core_step(r.core);
	assert_int_equal(r.shm->done.retired, 3);
	epf_bench_core_destroy(r.bc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_command_alone_is_over_when_the_ring_is_empty),
		cmocka_unit_test(one_at_a_time_lags_by_a_few_and_no_more),
		cmocka_unit_test(a_batch_is_looked_after_in_its_own_step),
		cmocka_unit_test(a_full_lane_is_looked_after_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
