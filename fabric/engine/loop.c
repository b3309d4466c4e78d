/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a core: between steps it serves other threads' requests and wakeups; when idle it spins, pauses or sleeps. System calls
 * happen here and never in a step.
 */
#define EPF_LOG_COMP "core"
#include "fabric/base/log.h"
#include "fabric/engine/dequeue_hot.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/watch.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/resource.h>

enum { MAX_SLEEP_NS = 20 * 1000 * 1000, BEAT_NS = 500 * 1000 * 1000, LOOPS_PER_LOOK = 15 };

/* A request of another thread; lives on that thread's stack. */
struct call {
	int (*fn)(struct epf_core *core, void *arg);
	void *arg;
	int result;
	uint32_t done;
};

unsigned epf_core_run_calls(struct epf_core *core)
{
	struct epf_queue_item item;
	unsigned handled = 0;

	while (epf_queue_pop(core->calls, &item)) {
		struct call *call = (struct call *)(uintptr_t)item.a;

		call->result = call->fn(core, call->arg);
		/* Q2: the result is visible to the caller, which waits with an acquire load. */
		EPF_STORE_RELEASE(&call->done, 1u);
		handled++;
	}
	return handled;
}

int epf_core_call(struct epf_core *core, int (*fn)(struct epf_core *core, void *arg), void *arg)
{
	struct call call = { .fn = fn, .arg = arg };
	struct epf_queue_item item = { .a = (uint64_t)(uintptr_t)&call };

	if (!EPF_LOAD_ACQUIRE(&core->running)) /* Q3 */
		return fn(core, arg);
	while (!epf_queue_push(core->calls, item))
		sched_yield();
	while (!EPF_LOAD_ACQUIRE(&call.done)) { /* Q2 */
		if (!EPF_LOAD_ACQUIRE(
			    &core->running)) /* the core has stopped: serve the call here */
			epf_core_run_calls(core);
		if (epf_wakeup_is_needed(core->wakeup))
			epf_wakeup_wake(core->wakeup);
		sched_yield();
	}
	return call.result;
}

/*
 * Returns true if the wait condition of the rank's sleeper may hold. The client writes the condition and only harms itself with a
 * wrong one: it sleeps until its deadline. Called after the fence of epf_wakeup_is_needed(), so the sleeper finds the counts read here.
 */
static bool condition_holds(const struct epf_core *core, uint32_t local)
{
	const struct epf_rank_state *rank = &core->ranks[local];
	const struct epf_wakeup *wakeup = rank->wakeup;
	uint32_t condition, index;
	uint64_t least;

	/* B1: the condition was written before the wakeup was armed. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	condition = EPF_LOAD_RELAXED(&wakeup->condition);
	index = EPF_LOAD_RELAXED(&wakeup->condition_index);
	least = EPF_LOAD_RELAXED(&wakeup->condition_least);
	if (EPF_LOAD_RELAXED(&wakeup->waiters) != 1)
		return true;
	if (condition == EPF_WAKE_ON_SIGNAL && index < rank->n_signals)
		return (int64_t)(epf_signal_read(&rank->signals[index]) - least) >= 0;
	if (condition != EPF_WAKE_ON_RETIRED)
		return true;
	for (uint32_t i = 0; i < core->n_rings; i++) {
		const struct epf_ring_state *ring = core->rings[i];

		if (ring->live && ring->rank == local &&
		    EPF_LOAD_RELAXED(&ring->consumer.shm->ring_id) == index)
			return (int64_t)(EPF_LOAD_RELAXED(&ring->done->retired) - least) >= 0;
	}
	return true;
}

unsigned epf_core_wake(struct epf_core *core)
{
	unsigned rung = 0;

	if (core->wakes) {
		core->wakes = 0;
		for (uint32_t i = 0; i < core->n_ranks; i++) {
			struct epf_rank_state *rank = &core->ranks[i];
			uint8_t notify = rank->notify;

			if (!notify)
				continue;
			rank->notify = EPF_NOTIFY_NONE;
			if (rank->wakeup && epf_wakeup_is_needed(rank->wakeup) &&
			    (notify >= EPF_NOTIFY_PEERS || condition_holds(core, i))) {
				epf_wakeup_wake(rank->wakeup);
				rung++;
			}
		}
	}
	if (core->ops->wake_pending(core->nic))
		core->ops->wake_peers(core->nic);
	return rung;
}

/*
 * Returns 1 if a ring holds a command that may be dequeued; dequeues nothing. A ring that may not go on waits for completions or credit, as its deferred
 * commands do: the NIC wakes the core for those. Counted as work, it made the core spin on a NIC that needed the CPU.
 */
static int rings_have_work(const struct epf_core *core)
{
	for (uint32_t i = 0; i < core->n_rings; i++) {
		const struct epf_ring_state *ring = core->rings[i];
		struct epf_cmd c;

		/* Commands left in the ring wait for a NIC completion: look behind them. */
		if (ring->live && dequeue_budget(core, ring) &&
		    epf_ring_peek(&ring->consumer, ring->left ? ring->alike : ring->consumer.tail,
				  &c))
			return 1;
	}
	return 0;
}

int epf_core_has_work(const struct epf_core *core)
{
	return rings_have_work(core) || !epf_queue_is_empty(core->calls);
}

static void note_switches(struct epf_core *core)
{
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage) == 0)
		epf_stat_set(core->stats, EPF_STAT_CORE_INVOLUNTARY_SWITCHES,
			     (uint64_t)usage.ru_nivcsw);
}

void epf_core_sleep(struct epf_core *core, uint64_t max_ns)
{
	uint64_t now = core->now(core->now_arg), event = core->ops->next_event(core->nic);
	uint64_t wait = max_ns;

	/* A tick that is due comes with one of the next steps; asleep between them, the engine would tick three times too rarely. */
	if (event <= now || core->cold_work || core->next_tick_ns <= now)
		return;
	if (event - now < wait)
		wait = event - now;
	if (core->next_tick_ns - now < wait)
		wait = core->next_tick_ns - now;
	epf_wakeup_arm(core->wakeup);
	core->ops->arm(core->nic); /* if it fails, the sleep is short enough */
	if (!epf_core_has_work(core) && !epf_core_step(core) && !core->wakes &&
	    !core->ops->wake_pending(core->nic)) {
		EPF_COUNT(core, SLEEPS, 1);
		note_switches(core);
		epf_wakeup_sleep(core->wakeup, wait);
		if (rings_have_work(core))
			EPF_COUNT(core, WAKEUPS, 1);
	}
	epf_wakeup_disarm(core->wakeup);
	epf_core_wake(core);
	epf_watch_look(core);
}

/* Periodic work on the core's thread: statistics heartbeat, liveness of peers. */
static void look(struct epf_core *core, const struct epf_run_options *opts, uint64_t *next_beat,
		 uint64_t *next_watch)
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
	epf_watch_look(core);
}

void epf_core_run(struct epf_core *core, const struct epf_run_options *opts)
{
	uint64_t quiet_since = 0, next_beat = 0;
	uint64_t next_watch = 0;
	unsigned loops = 0;

	EPF_STORE_RELEASE(&core->running, 1); /* Q3 */
	while (!EPF_LOAD_RELAXED(&core->stop)) {
		unsigned handled = epf_core_step(core);

		if (!epf_queue_is_empty(core->calls))
			handled += epf_core_run_calls(core);
		if (core->wakes || core->ops->wake_pending(core->nic))
			epf_core_wake(core);
		if ((++loops & LOOPS_PER_LOOK) == 0)
			look(core, opts, &next_beat, &next_watch);
		if (handled) {
			quiet_since = 0;
			continue;
		}
		if (opts->idle == EPF_IDLE_SPIN)
			continue;
		EPF_CPU_PAUSE();
		if (opts->idle != EPF_IDLE_SLEEP)
			continue;
		if (!quiet_since) {
			quiet_since = core->now(core->now_arg);
		} else if (core->now(core->now_arg) - quiet_since >= opts->idle_after_ns) {
			epf_core_sleep(core, MAX_SLEEP_NS);
		}
	}
	epf_core_run_calls(core);
	EPF_STORE_RELEASE(&core->running, 0); /* Q3 */
}

void epf_core_stop(struct epf_core *core)
{
	EPF_STORE_RELAXED(&core->stop, 1);
	if (epf_wakeup_is_needed(core->wakeup))
		epf_wakeup_wake(core->wakeup);
}
