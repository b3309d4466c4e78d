/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an idle core does on its thread (fabric/engine/loop.c): it lends its CPU for a while and then sleeps, or sleeps at once while others keep the CPU. One
 * thread and, but for sleeps in earnest, no real time: the linker gives this test the core's sched_yield(), which says how long the CPU was away, and the core tries to sleep where it
 * arms the NIC.
 */
#include "tests/unit/engine/null_rig.h"

#include <errno.h>
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
	uint64_t took_ns;            /* the run */
	unsigned yields, sleeps, watches;
	unsigned stop_yields, stop_sleeps, stop_watches; /* after so many the core stops */
	bool sleeps_truly, is_deaf;                      /* no commands; the NIC cannot ring */
	uint64_t drive_before; /* a wait drives before the last but so many sleeps */
	uint64_t slept_ns[4];  /* how long the core meant to sleep */
} t;

int __wrap_sched_yield(void)
{
	t.rig.now_ns += t.away_ns;
	if (++t.yields == t.stop_yields)
		epf_core_stop(t.rig.core);
	return 0;
}

static void watch(struct epf_nic *nic)
{
	if (++t.watches == t.stop_watches)
		epf_core_stop(t.rig.core);
	t.real->watch(nic);
}

/* Instead of a sleep there is a command, but where sleeps are asked for. */
static int arm(struct epf_nic *nic)
{
	struct epf_core *core = t.rig.core;

	if (t.sleeps_truly) {
		t.slept_ns[t.sleeps] = core->asleep_until - t.rig.now_ns;
		epf_stat_add(core->stats, EPF_STAT_CORE_DRIVES, t.sleeps == t.drive_before);
	} else {
		assert_true(epf_ring_push(&t.rig.rank[0].ring, (struct epf_cmd){ 0, 0 })); /* NOP */
	}
	t.rig.now_ns += t.asleep_ns;
	if (++t.sleeps == t.stop_sleeps)
		epf_core_stop(t.rig.core);
	return t.is_deaf ? -EOPNOTSUPP : t.real->arm(nic);
}

static void begin(void)
{
	memset(&t, 0, sizeof(t));
	null_rig_open(&t.rig, false);
	t.real = t.rig.core->ops;
	t.ops = *t.real;
	t.ops.arm = arm;
	t.ops.watch = watch;
	t.rig.core->ops = &t.ops;
	t.rig.core->next_tick_ns = t.rig.core->next_beat_ns = 2 * LONG_NS;
}

/* Runs the core until the one or the other number is reached. */
static void run(uint64_t away_ns, uint64_t asleep_ns, unsigned yields, unsigned sleeps)
{
	struct epf_run_options o = { .idle = EPF_IDLE_SLEEP, .idle_after_ns = AFTER_NS };

	begin();
	t.away_ns = away_ns;
	t.asleep_ns = asleep_ns;
	t.stop_yields = yields;
	t.stop_sleeps = sleeps;
	t.took_ns = t.rig.now_ns;
	epf_core_run(t.rig.core, &o);
	t.took_ns = t.rig.now_ns - t.took_ns;
	null_rig_close(&t.rig);
}

static void lends_the_cpu_and_then_sleeps(void **state)
{
	run(AFTER_NS / 10, 0, 0, 1);
	assert_in_range(t.yields, 2, 10);
}

/* The CPU came back late once: no more lending, however often the core is idle, and it sleeps at once. */
static void does_not_lend_a_busy_cpu(void **state)
{
	run(LATE_NS, 0, 2, 100);
	assert_int_equal(t.yields, 1);
	assert_int_equal(t.sleeps, 100);
	assert_true(t.took_ns < LATE_NS + 100 * AFTER_NS);
}

static void lends_it_again_later(void **state)
{
	run(LATE_NS, LONG_NS / 1000, 2, 100);
	assert_int_equal(t.yields, 2);
}

static uint64_t due(const struct epf_nic *nic)
{
	(void)nic;
	return 0;
}

/* Runs the core while its NIC has something due that a step does not finish. */
static void run_with_something_due(uint64_t away_ns)
{
	struct epf_run_options o = { .idle = EPF_IDLE_SLEEP, .idle_after_ns = AFTER_NS };

	begin();
	t.ops.next_event = due;
	t.away_ns = away_ns;
	t.stop_watches = 3;
	epf_core_run(t.rig.core, &o);
	null_rig_close(&t.rig);
	assert_int_equal(t.sleeps, 0);
}

/* The core does not sleep, but lends its CPU: whoever finishes what is due may need it. */
static void lends_it_while_something_is_due(void **state)
{
	run_with_something_due(AFTER_NS / 10);
	assert_true(t.yields > EPF_WATCH_NS / AFTER_NS);
}

/* A caller that sleeps as the engine lends it, too. */
static void a_caller_lends_it(void **state)
{
	begin();
	t.ops.next_event = due;
	epf_core_sleep(t.rig.core, LONG_NS);
	assert_int_equal(t.yields, 1);
	assert_int_equal(t.sleeps, 0);
	null_rig_close(&t.rig);
}

/* Once in 20 ms where others keep it. */
static void lends_it_rarely_if_others_keep_it(void **state)
{
	run_with_something_due(LATE_NS);
	assert_in_range(t.yields, 2, 20);
}

/* A step does not look at the NIC's events. */
static void watches_after_each_sleep(void **state)
{
	run(AFTER_NS / 10, EPF_WATCH_NS, 0, 50);
	assert_in_range(t.watches, 49, 52);
}

/* Sleeps four times in earnest; arm() sees each time how long the one before was meant to be. */
static void sleep_four_times(void)
{
	struct epf_run_options o = { .idle = EPF_IDLE_SLEEP };

	t.sleeps_truly = true;
	t.away_ns = AFTER_NS / 10;
	t.stop_sleeps = 4;
	epf_core_run(t.rig.core, &o);
	null_rig_close(&t.rig);
}

/* Time also passes where the core asks for it. */
static bool is_long(uint64_t ns)
{
	return ns > EPF_WATCH_NS / 2;
}

static void sleeps_until_the_watch_is_due(void **state)
{
	begin();
	t.drive_before = UINT64_MAX;
	sleep_four_times();
	assert_true(is_long(t.slept_ns[1]));
	assert_true(is_long(t.slept_ns[2]));
}

/* A waiting thread that has the core may stop: its next sleep is short. */
static void sleeps_shortly_after_a_drive(void **state)
{
	begin();
	t.drive_before = 0;
	sleep_four_times();
	assert_true(is_long(t.slept_ns[1]));
	assert_false(is_long(t.slept_ns[2]));
	assert_true(is_long(t.slept_ns[3]));
}

static void sleeps_shortly_if_nothing_rings(void **state)
{
	begin();
	t.is_deaf = true;
	t.drive_before = UINT64_MAX;
	sleep_four_times();
	assert_false(is_long(t.slept_ns[1]));
	assert_false(is_long(t.slept_ns[2]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lends_the_cpu_and_then_sleeps),
		cmocka_unit_test(does_not_lend_a_busy_cpu),
		cmocka_unit_test(lends_it_again_later),
		cmocka_unit_test(lends_it_while_something_is_due),
		cmocka_unit_test(a_caller_lends_it),
		cmocka_unit_test(lends_it_rarely_if_others_keep_it),
		cmocka_unit_test(watches_after_each_sleep),
		cmocka_unit_test(sleeps_until_the_watch_is_due),
		cmocka_unit_test(sleeps_shortly_after_a_drive),
		cmocka_unit_test(sleeps_shortly_if_nothing_rings),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
