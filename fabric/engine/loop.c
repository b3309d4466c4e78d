/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a core: between steps it serves other threads' requests and wakeups; when idle it spins, pauses or sleeps. System calls
 * happen here and never in a step.
 */
#define EPF_LOG_COMP "core"
#include "fabric/base/log.h"
#include "fabric/engine/between.h"
#include "fabric/engine/drive.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/watch.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>

enum {
	/* A waiting thread that has the core and is stopped between two steps delays the engine until the sleep of its thread ends. */
	DRIVEN_SLEEP_NS = 20 * 1000 * 1000,
	BEAT_NS = 500 * 1000 * 1000,
	LOOPS_PER_LOOK = 15,
};

int epf_core_call(struct epf_core *core, int (*fn)(struct epf_core *core, void *arg), void *arg)
{
	struct epf_call call = { .fn = fn, .arg = arg };
	struct epf_queue_item item = { .a = (uint64_t)(uintptr_t)&call };
	bool drives;

	if (!EPF_LOAD_ACQUIRE(&core->running)) /* Q3 */
		return fn(core, arg);
	while (!epf_queue_push(core->calls, item))
		sched_yield();
	while (!EPF_LOAD_ACQUIRE(&call.done)) { /* Q2 */
		if (!EPF_LOAD_ACQUIRE(
			    &core->running)) /* the core has stopped: serve the call here */
			epf_core_run_calls(core);
		/* A waiter that has the core may be this very thread. */
		drives = true;
		(void)epf_core_drive(core, &drives);
		if (epf_wakeup_is_needed(core->wakeup))
			epf_wakeup_wake(core->wakeup);
		sched_yield();
	}
	if (call.result < 0 && call.error.reason != EPF_R_NONE)
		epf_error_set(&call.error);
	return call.result;
}

int epf_core_stay_awake(struct epf_core *core, void *on)
{
	core->stays_awake = *(const bool *)on;
	/* A waiter may run this while the core's thread sleeps. */
	epf_wakeup_wake_anyway(core->wakeup);
	return 0;
}

void epf_core_sleep(struct epf_core *core, uint64_t max_ns)
{
	uint64_t now = core->now(core->now_arg), due = epf_core_due(core, now);

	if (due <= now) {
		epf_lend_cpu(core->now, core->now_arg, &core->busy_until);
		return;
	}
	epf_wakeup_arm(core->wakeup);
	if (!epf_core_look_again(core)) {
		epf_core_note_sleep(core);
		epf_wakeup_sleep(core->wakeup,
				 epf_core_sleep_ns(core, due - now < max_ns ? due - now : max_ns));
		epf_core_note_wakeup(core);
	}
	epf_wakeup_disarm(core->wakeup);
	epf_core_wake(core);
	epf_watch_look(core);
}

/* Periodic work on the core's thread: statistics heartbeat, liveness of peers. */
static void keep_time(struct epf_core *core, const struct epf_run_options *opts,
		      uint64_t *next_beat, uint64_t *next_watch)
{
	uint64_t now = core->now(core->now_arg);

	if (opts->beat && now >= *next_beat) {
		*next_beat = now + BEAT_NS;
		opts->beat(opts->beat_arg);
	}
	if (now >= *next_watch) {
		*next_watch = now + EPF_WATCH_NS;
		core->ops->watch(core->nic);
	}
}

/* Sleeps until the core is rung, something is due, or the NIC's watch is. *drives: as they were counted after the last sleep. Returns false if something is due already. */
static bool sleep_idle(struct epf_core *core, uint64_t *drives)
{
	uint64_t now = epf_stat_get(core->stats, EPF_STAT_CORE_DRIVES);
	bool is_driven = now != *drives;

	*drives = now;
	return epf_core_thread_sleep(core, is_driven ? DRIVEN_SLEEP_NS : EPF_WATCH_NS);
}

static bool is_time_to_sleep(const struct epf_core *core, const struct epf_run_options *opts,
			     uint64_t quiet_since)
{
	uint64_t now = core->now(core->now_arg);

	return now - quiet_since >= opts->idle_after_ns || now < core->busy_until;
}

void epf_core_run(struct epf_core *core, const struct epf_run_options *opts)
{
	uint64_t quiet_since = 0, next_beat = 0;
	uint64_t next_watch = 0, drives = 0;
	unsigned loops = 0;
	bool lends;

	EPF_STORE_RELEASE(&core->running, 1); /* Q3 */
	while (!EPF_LOAD_RELAXED(&core->stop)) {
		unsigned handled = epf_core_step(core);

		if (!epf_queue_is_empty(core->calls))
			handled += epf_core_run_calls(core);
		if (core->wakes || core->ops->wake_pending(core->nic))
			epf_core_wake(core);
		if ((++loops & LOOPS_PER_LOOK) == 0) {
			keep_time(core, opts, &next_beat, &next_watch);
			epf_watch_look(core);
		}
		if (handled) {
			quiet_since = 0;
			continue;
		}
		if (opts->idle == EPF_IDLE_SPIN)
			continue;
		EPF_CPU_PAUSE();
		if (opts->idle != EPF_IDLE_SLEEP || core->stays_awake)
			continue;
		lends = quiet_since != 0;
		if (EPF_LOAD_RELAXED(&core->drive_wish) ||
		    (quiet_since && is_time_to_sleep(core, opts, quiet_since))) {
			/* What cannot be slept for, as copies of a GPU, may need this CPU. */
			lends = !sleep_idle(core, &drives);
			keep_time(core, opts, &next_beat, &next_watch);
		} else if (!quiet_since) {
			quiet_since = core->now(core->now_arg);
		}
		/* To the thread that has the next command, or to the peer's engine, if CPUs are few. */
		if (lends)
			epf_lend_cpu(core->now, core->now_arg, &core->busy_until);
	}
	epf_core_run_calls(core);
	EPF_STORE_RELEASE(&core->running, 0); /* Q3 */
}

void epf_core_stop(struct epf_core *core)
{
	EPF_STORE_RELAXED(&core->stop, 1);
	__atomic_thread_fence(
		__ATOMIC_SEQ_CST); /* B2: whoever arms the wakeup from now on finds it */
	/* The thread may sleep on a wakeup that a waiter has disarmed. */
	epf_wakeup_wake_anyway(core->wakeup);
}
