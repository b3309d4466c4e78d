/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For what a sleeping rank is woken (queues/epf_wakeup.h, fabric/engine/loop.c): by what it wished for and by the loss of a rank, not by every
 * step of a long wait; by anything, when its condition is none that the core can judge.
 */
#include "fabric/base/err.h"
#include "tests/unit/engine/core_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SIGNAL = 3, BYTES = 4096 };

/* Arms the wakeup as fabric/client/wait.c does. */
static void sleep_for(struct core_rank *r, uint32_t condition, uint32_t index, uint64_t least)
{
	epf_wakeup_set_condition(&r->wakeup, condition, index, least);
	epf_wakeup_arm(&r->wakeup);
}

/* 1 if it was rung meanwhile; it is awake then, and afterwards. */
static unsigned was_rung(struct core_rig *rig, struct core_rank *r)
{
	uint32_t before = r->wakeup.rung;

	assert_true(core_rig_run(rig, NULL, NULL));
	for (uint32_t n = 0; n < CORE_NODES; n++)
		epf_core_wake(rig->core[n]);
	return r->wakeup.rung - before;
}

/* The arrival of the world is also a pending notification, from before. */
static struct core_rig *open_quiet(void)
{
	struct core_rig *rig = core_rig_open(NULL);

	(void)was_rung(rig, &rig->rank[0]);
	return rig;
}

static void awake(struct core_rank *r)
{
	epf_wakeup_disarm(&r->wakeup);
	epf_wakeup_clear_condition(&r->wakeup);
	assert_int_equal(r->wakeup.waiters, 0);
	assert_int_equal(r->wakeup.condition, EPF_WAKE_ON_ANY);
}

static void a_signal_is_waited_for(void **state)
{
	struct core_rig *rig = open_quiet();
	struct core_rank *to = &rig->rank[2];

	sleep_for(to, EPF_WAKE_ON_SIGNAL, SIGNAL, 3);
	core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
	assert_int_equal(was_rung(rig, to), 0);
	core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL + 1); /* not this one */
	assert_int_equal(was_rung(rig, to), 0);
	core_rig_put(&rig->rank[1], 2, BYTES, SIGNAL);
	assert_int_equal(was_rung(rig, to), 0);
	core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
	assert_int_equal(was_rung(rig, to), 1);
	awake(to);
	/* Past its value: at once. */
	sleep_for(to, EPF_WAKE_ON_SIGNAL, SIGNAL, 2);
	core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL + 1);
	assert_int_equal(was_rung(rig, to), 1);
	awake(to);
	core_rig_close(rig);
}

static void retired_commands_are_waited_for(void **state)
{
	struct core_rig *rig = open_quiet();
	struct core_rank *from = &rig->rank[0];

	sleep_for(from, EPF_WAKE_ON_RETIRED, from->shm->ring_id, 2);
	core_rig_put(from, 2, BYTES, SIGNAL);
	assert_int_equal(was_rung(rig, from), 0);
	core_rig_put(from, 2, BYTES, SIGNAL);
	assert_int_equal(was_rung(rig, from), 1);
	awake(from);
	/* A wakeup armed by who knows no conditions is woken for anything. */
	epf_wakeup_arm(&from->wakeup);
	core_rig_put(from, 2, BYTES, SIGNAL);
	assert_int_equal(was_rung(rig, from), 1);
	epf_wakeup_disarm(&from->wakeup);
	core_rig_close(rig);
}

static void two_sleepers_are_woken_by_anything(void **state)
{
	struct core_rig *rig = open_quiet();
	struct core_rank *to = &rig->rank[2];

	sleep_for(to, EPF_WAKE_ON_SIGNAL, SIGNAL, 100);
	sleep_for(to, EPF_WAKE_ON_SIGNAL, SIGNAL + 1, 100);
	core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
	assert_int_equal(was_rung(rig, to), 1);
	/* One of them goes: what is left in the wakeup is the condition of neither. */
	epf_wakeup_clear_condition(&to->wakeup);
	epf_wakeup_arm(&to->wakeup);
	core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
	assert_int_equal(was_rung(rig, to), 1);
	awake(to);
	core_rig_close(rig);
}

static void nonsense_wakes(void **state)
{
	static const struct {
		uint32_t condition, index;
	} bad[] = { { EPF_WAKE_ON_SIGNAL, CORE_SIGNALS },
		    { EPF_WAKE_ON_SIGNAL, UINT32_MAX },
		    { EPF_WAKE_ON_RETIRED, 77 },
		    { 4711, 0 } };
	struct core_rig *rig = open_quiet();
	struct core_rank *to = &rig->rank[2];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		sleep_for(to, bad[i].condition, bad[i].index, 100);
		core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
		assert_int_equal(was_rung(rig, to), 1);
		awake(to);
	}
	core_rig_close(rig);
}

static void a_loss_wakes_whatever_is_wished(void **state)
{
	struct core_rig *rig = open_quiet();
	struct core_rank *to = &rig->rank[2];

	sleep_for(to, EPF_WAKE_ON_SIGNAL, SIGNAL, 100);
	epf_core_rank_gone(rig->core[0], rig->rank[1].local, EPF_R_RANK_DIED);
	assert_int_equal(was_rung(rig, to), 1);
	awake(to);
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_signal_is_waited_for),
		cmocka_unit_test(retired_commands_are_waited_for),
		cmocka_unit_test(two_sleepers_are_woken_by_anything),
		cmocka_unit_test(nonsense_wakes),
		cmocka_unit_test(a_loss_wakes_whatever_is_wished),
	};

	return cmocka_run_group_tests_name("wake", tests, NULL, NULL);
}
