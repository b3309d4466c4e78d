/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scheduler: several engine cores on one thread (fabric/engine/scheduler.h). Cores are handed over and taken back, other threads reach them by calls,
 * clients wake the thread by wakeups they could scribble on, and jobs get time by weight.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/limits.h"
#include "fabric/engine/scheduler.h"
#include "tests/unit/engine/core_rig.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int __wrap_sched_yield(void);
int __real_sched_yield(void);

static pthread_t test_thread;
static uint64_t yields; /* of other threads */

int __wrap_sched_yield(void)
{
	if (!pthread_equal(pthread_self(), test_thread))
		__atomic_fetch_add(&yields, 1u, __ATOMIC_RELAXED);
	return __real_sched_yield();
}

static struct epf_scheduler *new_scheduler(uint64_t quantum_ns)
{
	struct epf_scheduler_options o = { .name = "scheduler",
					   .idle = EPF_IDLE_SLEEP,
					   .idle_after_ns = 20000,
					   .quantum_ns = quantum_ns,
					   .now = epf_limits_now };
	struct epf_scheduler *scheduler;

	assert_int_equal(epf_scheduler_create(&o, &scheduler), 0);
	return scheduler;
}

static void await(const uint64_t *word, uint64_t value)
{
	uint64_t deadline = epf_now_ns() + CORE_RIG_LONGEST_NS;

	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value) {
		assert_true(epf_now_ns() < deadline);
		sched_yield();
	}
}

static void cores_run_on_one_thread(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct epf_scheduler *scheduler = new_scheduler(50000);
	uint64_t used;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_int_equal(epf_scheduler_add(scheduler, rig->core[n], 1, NULL, NULL, NULL),
				 0);
	for (uint64_t i = 1; i <= 100; i++) {
		core_rig_put(&rig->rank[0], 2, 4096, 1);
		if (epf_wakeup_is_needed(rig->core[0]->wakeup))
			epf_wakeup_wake(rig->core[0]->wakeup);
		await(&rig->rank[2].signals[1].value, i);
	}
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(epf_scheduler_used(scheduler, rig->core[n], &used), 0);
		assert_true(used > 0);
		epf_scheduler_remove(scheduler, rig->core[n]);
		assert_int_equal(epf_scheduler_used(scheduler, rig->core[n], &used), -ENOENT);
	}
	epf_scheduler_destroy(scheduler);
	/* It is this thread's again. */
	core_rig_put(&rig->rank[0], 2, 4096, 1);
	assert_true(core_rig_run(rig, NULL, NULL));
	core_rig_close(rig);
}

static int double_it(struct epf_core *core, void *arg)
{
	(void)core;
	*(int *)arg *= 2;
	return *(int *)arg;
}

static void calls_reach_a_core(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct epf_scheduler *scheduler = new_scheduler(50000);
	int value = 1;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_int_equal(epf_scheduler_add(scheduler, rig->core[n], 1, NULL, NULL, NULL),
				 0);
	for (int i = 0; i < 20; i++) {
		int before = value;

		usleep((useconds_t)i * 200); /* awake and asleep */
		assert_int_equal(epf_core_call(rig->core[i & 1], double_it, &value), before * 2);
		value = value > 1000 ? 1 : value;
	}
	for (uint32_t n = 0; n < CORE_NODES; n++)
		epf_scheduler_remove(scheduler, rig->core[n]);
	epf_scheduler_destroy(scheduler);
	core_rig_close(rig);
}

static void await_sleep(const struct epf_wakeup *wakeup)
{
	uint64_t deadline = epf_now_ns() + CORE_RIG_LONGEST_NS;

	while (!epf_wakeup_is_needed(wakeup)) {
		assert_true(epf_now_ns() < deadline);
		usleep(100);
	}
	usleep(2000); /* from armed to asleep */
}

static void a_clients_wakeup_wakes_it(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct epf_scheduler *scheduler = new_scheduler(50000);
	struct epf_wakeup wakeup[CORE_NODES] = { 0 };
	uint64_t longest = 0;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_int_equal(
			epf_scheduler_add(scheduler, rig->core[n], 1, &wakeup[n], NULL, NULL), 0);
	for (uint64_t i = 1; i <= 20; i++) {
		uint64_t begin;

		await_sleep(&wakeup[0]);
		begin = epf_now_ns();
		core_rig_put(&rig->rank[0], 3, 64, 2);
		if (epf_wakeup_is_needed(&wakeup[0]))
			epf_wakeup_wake(&wakeup[0]);
		await(&rig->rank[3].signals[2].value, i);
		longest = epf_now_ns() - begin > longest ? epf_now_ns() - begin : longest;
	}
	printf("# asleep, woken by a client's wakeup: at most %.0f us\n", (double)longest / 1e3);
	/* A client that scribbles on it: others are served all the same. */
	for (uint64_t i = 1; i <= 20; i++) {
		for (unsigned j = 0; j < 50; j++) {
			__atomic_store_n(&wakeup[0].sleeping, (uint32_t)rand(), __ATOMIC_RELAXED);
			wakeup[0].rung = (uint32_t)rand();
			usleep(20);
		}
		core_rig_put(&rig->rank[2], 1, 64, 3);
		if (epf_wakeup_is_needed(&wakeup[1]))
			epf_wakeup_wake(&wakeup[1]);
		await(&rig->rank[1].signals[3].value, i);
	}
	for (uint32_t n = 0; n < CORE_NODES; n++)
		epf_scheduler_remove(scheduler, rig->core[n]);
	epf_scheduler_destroy(scheduler);
	core_rig_close(rig);
}

static uint64_t sleeps(const struct epf_core *core)
{
	return epf_stat_get(core->stats, EPF_STAT_CORE_SLEEPS);
}

static void assert_falls_asleep(const struct epf_core *core)
{
	uint64_t before = sleeps(core), deadline = epf_now_ns() + CORE_RIG_LONGEST_NS;

	while (sleeps(core) == before) {
		assert_true(epf_now_ns() < deadline);
		usleep(1000);
	}
}

/* A core whose commands come without a wakeup keeps the thread awake, until it says otherwise or is removed. */
static void one_core_keeps_the_thread_awake(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct epf_scheduler *scheduler = new_scheduler(50000);
	bool on = true, off = false;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_int_equal(epf_scheduler_add(scheduler, rig->core[n], 1, NULL, NULL, NULL),
				 0);
	assert_falls_asleep(rig->core[0]);
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		uint64_t before;

		assert_int_equal(epf_core_call(rig->core[n], epf_core_stay_awake, &on), 0);
		before = sleeps(rig->core[0]);
		usleep(50000); /* more than the longest sleep */
		assert_int_equal(sleeps(rig->core[0]), before);
		if (n == 0)
			assert_int_equal(epf_core_call(rig->core[n], epf_core_stay_awake, &off), 0);
		else
			epf_scheduler_remove(scheduler, rig->core[n]);
		assert_falls_asleep(rig->core[0]);
	}
	epf_scheduler_remove(scheduler, rig->core[0]);
	epf_scheduler_destroy(scheduler);
	core_rig_close(rig);
}

static uint64_t due(const struct epf_nic *nic)
{
	(void)nic;
	return 0;
}

/* Something is due, so the thread does not sleep. Whoever finishes it may need this CPU, so the thread lends it, unless it is pinned. */
static void lends_the_cpu_while_something_is_due(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	const struct epf_nic_ops *real = rig->core[0]->ops;
	struct epf_nic_ops ops = *real;
	uint32_t cpu = (uint32_t)sched_getcpu();
	struct epf_scheduler_options o = {
		.name = "pinned", .idle = EPF_IDLE_SLEEP, .now = epf_limits_now, .cpu = &cpu
	};
	struct epf_scheduler *scheduler;

	ops.next_event = due;
	rig->core[0]->ops = &ops;
	for (o.n_cpus = 0; o.n_cpus < 2; o.n_cpus++) {
		uint64_t before = __atomic_load_n(&yields, __ATOMIC_RELAXED);
		int value = 0;

		assert_int_equal(epf_scheduler_create(&o, &scheduler), 0);
		assert_int_equal(epf_scheduler_add(scheduler, rig->core[0], 1, NULL, NULL, NULL),
				 0);
		if (!o.n_cpus)
			await(&yields, before + 20);
		for (int i = 0; i < 200; i++) /* each after some time without work */
			assert_int_equal(epf_core_call(rig->core[0], double_it, &value), 0);
		epf_scheduler_remove(scheduler, rig->core[0]);
		epf_scheduler_destroy(scheduler);
		if (o.n_cpus)
			assert_int_equal(yields, before);
	}
	rig->core[0]->ops = real;
	core_rig_close(rig);
}

static void no_more_jobs_than_wakeups(void **state)
{
	struct epf_scheduler *scheduler = new_scheduler(50000);
	struct core_rig *rigs[EPF_SCHEDULER_JOBS_MAX / 2 + 1];
	static const char *const small[] = { "lane-depth=16", "emu-packets=16", "lane-receives=8",
					     "streams-per-peer=16", NULL };
	unsigned added = 0;

	for (unsigned i = 0; i <= EPF_SCHEDULER_JOBS_MAX / 2; i++) {
		rigs[i] = core_rig_open(small);
		for (uint32_t n = 0; n < CORE_NODES; n++) {
			int rc =
				epf_scheduler_add(scheduler, rigs[i]->core[n], 1, NULL, NULL, NULL);

			if (added < EPF_SCHEDULER_JOBS_MAX) {
				assert_int_equal(rc, 0);
				added++;
				continue;
			}
			assert_int_equal(rc, -ENOSPC);
			assert_non_null(strstr(epf_last_error(), "60"));
		}
	}
	for (unsigned i = 0; i <= EPF_SCHEDULER_JOBS_MAX / 2; i++) {
		for (uint32_t n = 0; n < CORE_NODES; n++)
			epf_scheduler_remove(scheduler, rigs[i]->core[n]);
		core_rig_close(rigs[i]);
	}
	epf_scheduler_destroy(scheduler);
}

enum { BACKLOG = 120, PUT_BYTES = 61440, TRIES = 20 };

/*
 * Two jobs with the same backlog and weights 1 and 4, which are there before the scheduler is: how much of the light one's is done, in
 * percent, when the heavy one's is.
 */
static unsigned light_done(void)
{
	static const char *const room[] = { "nic-inflight-bytes=1GiB", "rank-inflight-bytes=1GiB",
					    NULL };
	struct core_rig *rig[2] = { core_rig_open(room), core_rig_open(room) };
	struct epf_scheduler *scheduler = new_scheduler(50000);
	unsigned percent;

	for (unsigned j = 0; j < 2; j++)
		for (unsigned i = 0; i < BACKLOG; i++) /* node 0 alone: it puts to itself */
			core_rig_put(&rig[j]->rank[0], 1, PUT_BYTES, 1);
	for (unsigned j = 2; j-- > 0;)
		assert_int_equal(
			epf_scheduler_add(scheduler, rig[j]->core[0], j ? 4 : 1, NULL, NULL, NULL),
			0);
	await(&rig[1]->rank[0].shm->done.retired, BACKLOG);
	percent = (unsigned)(EPF_LOAD_ACQUIRE(&rig[0]->rank[0].shm->done.retired) * 100 / BACKLOG);
	for (unsigned j = 0; j < 2; j++) {
		epf_scheduler_remove(scheduler, rig[j]->core[0]);
		core_rig_close(rig[j]);
	}
	epf_scheduler_destroy(scheduler);
	return percent;
}

/* This thread may look late on a busy machine, so several tries; without weights none of them shows a difference. */
static void time_goes_by_weight(void **state)
{
	unsigned best = 100;

	for (unsigned i = 0; i < TRIES && best > 45; i++) {
		unsigned percent = light_done();

		best = percent < best ? percent : best;
	}
	printf("# weights 1 and 4: when the heavy job is done, the light one has done %u %%\n",
	       best);
	assert_true(best <= 45);
}

static uint32_t pace_of(const struct core_rig *rig)
{
	return EPF_LOAD_RELAXED(&rig->nic[0]->pace);
}

/* Bytes that the CPU moves make long steps: beside another job they get shorter, alone they are as long as they like. */
static void a_shared_thread_shortens_steps(void **state)
{
	static const char *const room[] = { "nic-inflight-bytes=1GiB", "rank-inflight-bytes=1GiB",
					    NULL };
	struct core_rig *rig[2] = { core_rig_open(room), core_rig_open(NULL) };
	struct epf_scheduler *scheduler =
		new_scheduler(1000); /* a microsecond: any step with bytes lasts longer */
	uint32_t highest = 0;
	uint64_t pushed = 0;

	assert_int_equal(epf_scheduler_add(scheduler, rig[0]->core[0], 1, NULL, NULL, NULL), 0);
	for (; pushed < BACKLOG; pushed++)
		core_rig_put(&rig[0]->rank[0], 1, PUT_BYTES, 1);
	await(&rig[0]->rank[0].shm->done.retired, pushed);
	assert_int_equal(pace_of(rig[0]), 0);
	assert_int_equal(epf_scheduler_add(scheduler, rig[1]->core[0], 1, NULL, NULL, NULL), 0);
	for (unsigned i = 0; i < 10 * TRIES && !highest; i++) { /* this thread may look late */
		for (unsigned k = 0; k < BACKLOG; k++, pushed++)
			core_rig_put(&rig[0]->rank[0], 1, PUT_BYTES, 1);
		while (EPF_LOAD_ACQUIRE(&rig[0]->rank[0].shm->done.retired) < pushed)
			highest = pace_of(rig[0]) > highest ? pace_of(rig[0]) : highest;
	}
	assert_true(highest > 0 && highest <= EPF_PACE_MOST);
	assert_int_equal(rig[0]->rank[1].signals[1].value, pushed);
	epf_scheduler_remove(scheduler, rig[1]->core[0]);
	core_rig_put(&rig[0]->rank[0], 1, PUT_BYTES, 1);
	await(&rig[0]->rank[0].shm->done.retired, ++pushed);
	assert_int_equal(pace_of(rig[0]), 0);
	epf_scheduler_remove(scheduler, rig[0]->core[0]);
	epf_scheduler_destroy(scheduler);
	for (unsigned j = 0; j < 2; j++)
		core_rig_close(rig[j]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cores_run_on_one_thread),
		cmocka_unit_test(calls_reach_a_core),
		cmocka_unit_test(a_clients_wakeup_wakes_it),
		cmocka_unit_test(one_core_keeps_the_thread_awake),
		cmocka_unit_test(lends_the_cpu_while_something_is_due),
		cmocka_unit_test(no_more_jobs_than_wakeups),
		cmocka_unit_test(time_goes_by_weight),
		cmocka_unit_test(a_shared_thread_shortens_steps),
	};

	test_thread = pthread_self();
	return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
