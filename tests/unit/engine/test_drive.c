/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core changes hands between its thread and threads that wait (fabric/engine/drive.h): one of them steps it at any time, and no work is forgotten on
 * the way. One core on the null NIC; its clock and the statistics are plain memory, so ThreadSanitizer sees each step that two threads make at
 * once. The NIC's calls are this test's: they push commands, or stop, where it matters. Where a wakeup must not be lost, the thread sleeps without
 * an end of its own: a lost one is a test that hangs. Nothing here judges how long something took.
 */
#include "tests/unit/engine/null_rig.h"

#include "fabric/base/err.h"
#include "fabric/engine/drive.h"
#include "fabric/engine/owner.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROUNDS = 300, WAITERS = 4, COMMANDS = 2000 };

#define NEVER_NS (UINT64_C(3600) * 1000 * 1000 * 1000)

static struct {
	struct null_rig rig;
	struct epf_nic_ops ops;
	const struct epf_nic_ops *real;
	struct epf_run_options run;
	pthread_t thread, test;
	pid_t tid; /* of the core's thread; 0: it wakes by itself */
	uint64_t pushed;
	uint32_t inside; /* threads in a step; TWICE: there were two */
	uint32_t
		push_at; /* so many looks of the test's thread after an arming push a command each */
	uint32_t stop_at;   /* 1: the next step stops in the NIC until it is 0 */
	uint32_t is_inside; /* it has */
	uint32_t is_over;
	uint32_t is_ready;
} t;

#define TWICE 1000u

static void push(void)
{
	assert_true(epf_ring_push(&t.rig.rank[0].ring, (struct epf_cmd){ 0, 0 })); /* NOP */
	t.pushed++;
}

static uint64_t retired(void)
{
	return epf_ring_retired(&t.rig.rank[0].ring);
}

/* As a client does after a push. Returns true if the core sleeps. */
static bool kick(void)
{
	if (!epf_wakeup_is_needed(t.rig.core->wakeup))
		return false;
	epf_wakeup_wake(t.rig.core->wakeup);
	return true;
}

static uint32_t owner(void)
{
	return EPF_LOAD_RELAXED(&t.rig.core->owner);
}

static void until_owner(uint32_t who)
{
	while (owner() != who)
		sched_yield();
}

static void until_retired(uint64_t n)
{
	while (retired() < n)
		sched_yield();
}

static int reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	int got;

	if (__atomic_fetch_add(&t.inside, 1u, __ATOMIC_RELAXED))
		__atomic_fetch_add(&t.inside, TWICE, __ATOMIC_RELAXED);
	if (EPF_LOAD_RELAXED(&t.stop_at)) {
		EPF_STORE_RELEASE(&t.is_inside, 1u);
		while (EPF_LOAD_RELAXED(&t.stop_at))
			sched_yield();
	}
	got = t.real->reap(nic, wc, n);
	__atomic_fetch_sub(&t.inside, 1u, __ATOMIC_RELAXED);
	return got;
}

/* Between the arming and the last look. */
static int arm(struct epf_nic *nic)
{
	if (pthread_equal(pthread_self(), t.test) && t.push_at) {
		t.push_at--;
		push();
	}
	return t.real->arm(nic);
}

static void *run_core(void *arg)
{
	epf_core_run(t.rig.core, &t.run);
	return NULL;
}

/* The same with a sleep that only a ring ends. */
static void *run_until_rung(void *arg)
{
	struct epf_core *core = t.rig.core;

	t.tid = gettid();
	EPF_STORE_RELEASE(&core->running, 1);
	while (!EPF_LOAD_RELAXED(&core->stop)) {
		unsigned handled = epf_core_step(core) + epf_core_run_calls(core);

		epf_core_wake(core);
		if (!handled)
			epf_core_thread_sleep(core, NEVER_NS);
	}
	EPF_STORE_RELEASE(&core->running, 0);
	return NULL;
}

static void begin(void *(*thread)(void *arg), uint64_t idle_after_ns)
{
	memset(&t, 0, sizeof(t));
	null_rig_open(&t.rig, false);
	t.test = pthread_self();
	t.real = t.rig.core->ops;
	t.ops = *t.real;
	t.ops.reap = reap;
	t.ops.arm = arm;
	t.rig.core->ops = &t.ops;
	t.rig.core->next_tick_ns = t.rig.core->next_beat_ns = 2 * NEVER_NS;
	t.run = (struct epf_run_options){ .idle = EPF_IDLE_SLEEP, .idle_after_ns = idle_after_ns };
	assert_int_equal(pthread_create(&t.thread, NULL, thread, NULL), 0);
	while (!EPF_LOAD_ACQUIRE(&t.rig.core->running))
		sched_yield();
}

static void end(void)
{
	epf_core_stop(t.rig.core);
	pthread_join(t.thread, NULL);
	assert_int_equal(owner(), EPF_OWNER_THREAD);
	assert_int_equal(t.inside, 0);
	null_rig_close(&t.rig);
}

/* Returns the state of the core's thread as the kernel sees it: 'S' asleep. */
static char thread_state(void)
{
	char path[64], text[256] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)t.tid);
	f = fopen(path, "r");
	if (f) {
		(void)!fgets(text, sizeof(text), f);
		fclose(f);
	}
	return strrchr(text, ')') ? strrchr(text, ')')[2] : '?';
}

/* The thread has given the core away, and is asleep: from here on only a ring brings it back. */
static void until_asleep(void)
{
	until_owner(EPF_OWNER_NOBODY);
	while (t.tid && thread_state() != 'S')
		sched_yield();
}

/* Takes the core from its sleeping thread, which may be awake for a moment where it wakes by itself. */
static void take(bool *drives)
{
	*drives = false;
	while (!*drives) {
		until_asleep();
		(void)epf_core_drive(t.rig.core, drives);
	}
}

/* Steps until what was pushed is retired. The thread may take the core back meanwhile, and does it then. */
static void drive_all(bool *drives)
{
	while (retired() < t.pushed)
		(void)epf_core_drive(t.rig.core, drives);
}

static void hands_over_in_both_directions(void **state)
{
	bool drives;

	begin(run_until_rung, 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		take(&drives);
		push();
		assert_false(kick()); /* who has it looks */
		assert_int_equal(retired(), t.pushed - 1);
		drive_all(&drives);
		assert_true(drives);
		epf_core_drive_end(t.rig.core);
		assert_int_equal(owner(), EPF_OWNER_NOBODY);
		push();
		assert_true(kick());
		until_retired(t.pushed);
	}
	assert_int_equal(null_rig_count(&t.rig, EPF_STAT_CORE_DRIVES), ROUNDS);
	end();
}

/* What comes between the arming and the last look, without a ring: the look finds it. */
static void what_comes_at_the_end_is_found(void **state)
{
	bool drives;

	begin(run_until_rung, 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		take(&drives);
		t.push_at = 1;
		epf_core_drive_end(t.rig.core);
		assert_int_equal(t.push_at, 0);
		until_retired(t.pushed);
	}
	end();
}

/* A waiter does not stay for work that does not end, and wakes the thread for what it leaves. */
static void work_that_is_left_wakes_the_thread(void **state)
{
	begin(run_until_rung, 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		uint32_t before;
		bool drives;

		take(&drives);
		before = EPF_LOAD_RELAXED(&t.rig.core->wakeup->rung);
		t.push_at = 8; /* each of its last steps finds a command */
		epf_core_drive_end(t.rig.core);
		assert_int_equal(t.push_at, 0);
		assert_int_equal(EPF_LOAD_RELAXED(&t.rig.core->wakeup->rung), before + 1);
	}
	end();
}

static uint64_t soon(const struct epf_nic *nic)
{
	return t.rig.now_ns + 2 * 1000 * 1000;
}

/* Its sleep would end too late for it. */
static void a_timer_that_is_earlier_wakes_the_thread(void **state)
{
	uint32_t before;
	bool drives;

	begin(run_until_rung, 0);
	take(&drives);
	before = EPF_LOAD_RELAXED(&t.rig.core->wakeup->rung);
	t.ops.next_event = soon;
	epf_core_drive_end(t.rig.core);
	assert_int_equal(EPF_LOAD_RELAXED(&t.rig.core->wakeup->rung), before + 1);
	end();
}

static void *wait_here(void *arg)
{
	bool drives = false;

	while (!EPF_LOAD_RELAXED(&t.is_over)) {
		for (unsigned i = 0; i < 20; i++)
			(void)epf_core_drive(t.rig.core, &drives);
		if (drives)
			epf_core_drive_end(t.rig.core);
		drives = false;
		sched_yield();
	}
	return NULL;
}

static void one_of_several_waiters_steps(void **state)
{
	pthread_t waiter[WAITERS];

	begin(run_until_rung, 0);
	for (unsigned i = 0; i < WAITERS; i++)
		assert_int_equal(pthread_create(&waiter[i], NULL, wait_here, NULL), 0);
	for (unsigned i = 0; i < COMMANDS; i++) {
		push();
		(void)kick();
		until_retired(t.pushed);
	}
	EPF_STORE_RELAXED(&t.is_over, 1u);
	for (unsigned i = 0; i < WAITERS; i++)
		pthread_join(waiter[i], NULL);
	assert_true(owner() == EPF_OWNER_NOBODY || owner() == EPF_OWNER_THREAD);
	end();
}

/* A number of the core's thread from the kernel: how often it has gone to sleep. */
static unsigned long sleeps(void)
{
	char path[64], line[128];
	unsigned long n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)t.tid);
	f = fopen(path, "r");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		(void)sscanf(line, "voluntary_ctxt_switches: %lu", &n);
	fclose(f);
	return n;
}

/* A ring that came late, say: the waiter has the core, and the thread sleeps on, to be woken by the next ring all the same. */
static void a_thread_woken_for_nothing_sleeps_on(void **state)
{
	begin(run_until_rung, 0);
	for (unsigned i = 0; i < ROUNDS / 10; i++) {
		unsigned long before;
		bool drives;

		take(&drives);
		before = sleeps();
		syscall(SYS_futex, &t.rig.core->wakeup->sleeping, FUTEX_WAKE, 1, NULL, NULL, 0);
		while (sleeps() == before || thread_state() != 'S')
			sched_yield();
		assert_int_equal(owner(), EPF_OWNER_WAITER);
		epf_core_drive_end(t.rig.core);
		assert_int_equal(owner(), EPF_OWNER_NOBODY);
		push();
		assert_true(kick());
		until_retired(t.pushed);
	}
	end();
}

/* It is between two steps, and does not come back. */
static void a_waiter_that_stops_loses_the_core(void **state)
{
	bool drives;

	begin(run_core, 0);
	take(&drives);
	push();
	until_retired(t.pushed); /* by the thread, at the end of its sleep */
	/* What it finds: the core is not its own any more. */
	while (owner() == EPF_OWNER_WAITER || owner() == EPF_OWNER_STEP)
		sched_yield();
	epf_core_drive_end(t.rig.core);
	assert_true(owner() == EPF_OWNER_NOBODY || owner() == EPF_OWNER_THREAD);
	end();
}

static void *stop_inside(void *arg)
{
	bool drives;

	take(&drives);
	EPF_STORE_RELAXED(&t.stop_at, 1u);
	if (epf_core_drive(t.rig.core, &drives), drives)
		epf_core_drive_end(t.rig.core);
	return NULL;
}

/* The thread wants the core while a waiter is in the middle of a step: it gets it behind the step, and not before. */
static void a_step_is_not_interrupted(void **state)
{
	pthread_t waiter;

	begin(run_core, 0);
	assert_int_equal(pthread_create(&waiter, NULL, stop_inside, NULL), 0);
	while (!EPF_LOAD_ACQUIRE(&t.is_inside))
		sched_yield();
	if (owner() == EPF_OWNER_STEP) { /* else the thread had been faster, and stopped itself */
		while (!EPF_LOAD_RELAXED(&t.rig.core->recall.sleeping))
			sched_yield();
		assert_int_equal(owner(), EPF_OWNER_STEP);
	}
	EPF_STORE_RELAXED(&t.stop_at, 0u);
	push();
	(void)kick();
	until_retired(t.pushed);
	pthread_join(waiter, NULL);
	end();
}

static void *drive_on(void *arg)
{
	bool drives;

	take(&drives);
	EPF_STORE_RELEASE(&t.is_ready, 1u);
	while (!EPF_LOAD_RELAXED(&t.is_over))
		(void)epf_core_drive(t.rig.core, &drives);
	(void)epf_core_drive(t.rig.core, &drives); /* behind the end */
	return (void *)(uintptr_t)drives;
}

static void the_thread_ends_while_a_waiter_drives(void **state)
{
	for (unsigned i = 0; i < ROUNDS / 10; i++) {
		pthread_t waiter;
		void *drives;

		begin(run_until_rung, 0);
		assert_int_equal(pthread_create(&waiter, NULL, drive_on, NULL), 0);
		while (!EPF_LOAD_ACQUIRE(&t.is_ready))
			sched_yield();
		epf_core_stop(t.rig.core);
		pthread_join(t.thread, NULL);
		assert_int_equal(owner(), EPF_OWNER_THREAD);
		EPF_STORE_RELAXED(&t.is_over, 1u);
		pthread_join(waiter, &drives);
		assert_null(drives);
		null_rig_close(&t.rig);
	}
}

static int here(struct epf_core *core, void *arg)
{
	*(pthread_t *)arg = pthread_self();
	return 7;
}

/* A wait whose condition asks the engine would else wait for itself. */
static void a_waiter_may_call_the_core(void **state)
{
	bool drives;

	begin(run_until_rung, 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		pthread_t by = t.thread;

		take(&drives);
		assert_int_equal(epf_core_call(t.rig.core, here, &by), 7);
		assert_true(pthread_equal(by, pthread_self()));
		epf_core_drive_end(t.rig.core);
	}
	end();
}

static void a_wish_ends_the_quiet_time(void **state)
{
	bool drives = false;

	begin(run_core, NEVER_NS);
	push();
	until_retired(1);
	assert_int_equal(epf_core_drive(t.rig.core, &drives), 0); /* its thread is awake */
	assert_false(drives);
	epf_core_drive_wish(t.rig.core);
	until_owner(EPF_OWNER_NOBODY);
	take(&drives);
	epf_core_drive_end(t.rig.core);
	end();
}

/* The child has neither the thread nor the waiter; what it does not touch stays as it is for its parent. */
static void a_fork_changes_nothing(void **state)
{
	bool drives;
	int status;
	pid_t child;

	begin(run_until_rung, 0);
	take(&drives);
	child = fork();
	if (child == 0)
		_exit(0);
	assert_true(child > 0);
	push();
	drive_all(&drives);
	epf_core_drive_end(t.rig.core);
	assert_int_equal(waitpid(child, &status, 0), child);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hands_over_in_both_directions),
		cmocka_unit_test(what_comes_at_the_end_is_found),
		cmocka_unit_test(work_that_is_left_wakes_the_thread),
		cmocka_unit_test(a_timer_that_is_earlier_wakes_the_thread),
		cmocka_unit_test(one_of_several_waiters_steps),
		cmocka_unit_test(a_thread_woken_for_nothing_sleeps_on),
		cmocka_unit_test(a_waiter_that_stops_loses_the_core),
		cmocka_unit_test(a_step_is_not_interrupted),
		cmocka_unit_test(the_thread_ends_while_a_waiter_drives),
		cmocka_unit_test(a_waiter_may_call_the_core),
		cmocka_unit_test(a_wish_ends_the_quiet_time),
		cmocka_unit_test(a_fork_changes_nothing),
	};

	return cmocka_run_group_tests_name("drive", tests, NULL, NULL);
}
