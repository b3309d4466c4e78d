/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an idle core does on its thread (fabric/engine/loop.c): it lends its CPU for a while and then sleeps, or sleeps at once while others keep the CPU. One
 * thread and no real time: the linker gives this test the core's sched_yield(), which says how long the CPU was away, and the core tries to sleep where it
 * arms the NIC.
 */
#include "tests/unit/engine/null_rig.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define AFTER_NS UINT64_C(50000)
#define LATE_NS  UINT64_C(1000000)
#define LONG_NS  (UINT64_C(3600) * 1000 * 1000 * 1000)

int __wrap_sched_yield(void);

static struct {
	struct null_rig rig;
	struct epf_nic_ops ops;
	const struct epf_nic_ops *real;
	uint64_t away_ns, asleep_ns; /* how long a yield takes, and a sleep */
	unsigned yields, sleeps;
	unsigned stop_yields, stop_sleeps; /* after so many the core stops */
} t;

int __wrap_sched_yield(void)
{
	t.rig.now_ns += t.away_ns;
	if (++t.yields == t.stop_yields)
		epf_core_stop(t.rig.core);
	return 0;
}

/* Instead of a sleep there is a command. */
static int arm(struct epf_nic *nic)
{
	assert_true(epf_ring_push(&t.rig.rank[0].ring, (struct epf_cmd){ 0, 0 })); /* NOP */
	t.rig.now_ns += t.asleep_ns;
	if (++t.sleeps == t.stop_sleeps)
		epf_core_stop(t.rig.core);
	return t.real->arm(nic);
}

/* Runs the core until the one or the other number is reached. */
static void run(uint64_t away_ns, uint64_t asleep_ns, unsigned yields, unsigned sleeps)
{
	struct epf_run_options o = { .idle = EPF_IDLE_SLEEP, .idle_after_ns = AFTER_NS };

	memset(&t, 0, sizeof(t));
	null_rig_open(&t.rig, false);
	t.real = t.rig.core->ops;
	t.ops = *t.real;
	t.ops.arm = arm;
	t.rig.core->ops = &t.ops;
	t.rig.core->next_tick_ns = t.rig.core->next_beat_ns = 2 * LONG_NS;
	t.away_ns = away_ns;
	t.asleep_ns = asleep_ns;
	t.stop_yields = yields;
	t.stop_sleeps = sleeps;
	epf_core_run(t.rig.core, &o);
	null_rig_close(&t.rig);
}

static void lends_the_cpu_and_then_sleeps(void **state)
{
	run(AFTER_NS / 10, 0, 0, 1);
	assert_in_range(t.yields, 2, 10);
}

/* The CPU came back late once: no more lending, however often the core is idle. */
static void does_not_lend_a_busy_cpu(void **state)
{
	run(LATE_NS, 0, 2, 100);
	assert_int_equal(t.yields, 1);
	assert_int_equal(t.sleeps, 100);
}

static void lends_it_again_later(void **state)
{
	run(LATE_NS, LONG_NS / 1000, 2, 100);
	assert_int_equal(t.yields, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lends_the_cpu_and_then_sleeps),
		cmocka_unit_test(does_not_lend_a_busy_cpu),
		cmocka_unit_test(lends_it_again_later),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
