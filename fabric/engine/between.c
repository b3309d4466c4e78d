/* SPDX-License-Identifier: Apache-2.0 */
/* What happens between two steps of a core (between.h): requests of other threads, wakeups, the last look before a sleep. System calls happen here and never in a step. */
#include "fabric/engine/between.h"
#include "fabric/engine/dequeue_hot.h"
#include "fabric/engine/lane_hot.h"

#include <sched.h>
#include <sys/resource.h>

enum {
	BLIND_SLEEP_NS = 20 * 1000 * 1000,
	/* On 2 CPUs at load 10, a write of 4 KiB between two hosts took 5 to 7 ms without this, and 0.07 ms with it. */
	LATE_NS = 500 * 1000,       /* a CPU that was lent for so long is busy */
	BUSY_NS = 20 * 1000 * 1000, /* and is not lent again before */
};

unsigned epf_core_run_calls(struct epf_core *core)
{
	struct epf_queue_item item;
	unsigned handled = 0;

	while (epf_queue_pop(core->calls, &item)) {
		struct epf_call *call = (struct epf_call *)(uintptr_t)item.a;

		call->result = call->fn(core, call->arg);
		/* A call that succeeds does not touch the thread's error: ThreadSanitizer takes the loader's free of it, in a library that was opened, for a race. */
		if (call->result < 0) {
			epf_error_get(&call->error);
			epf_clear_error();
		}
		/* Q2: the result is visible to the caller, which waits with an acquire load. */
		EPF_STORE_RELEASE(&call->done, 1u);
		handled++;
	}
	return handled;
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
 * Returns true if a ring holds a command that may be dequeued; dequeues nothing. A ring that may not go on waits for completions or credit, as its deferred
 * commands do: the NIC wakes the core for those. Counted as work, it made the core spin on a NIC that needed the CPU.
 */
static bool ring_has_work(const struct epf_core *core, const struct epf_ring_state *ring)
{
	uint64_t at = ring->consumer.tail;
	struct epf_cmd c;

	if (!ring->live || !dequeue_budget(core, ring))
		return false;
	/* Commands left in the ring wait for a NIC completion: look behind them, if a step would. */
	if (ring->left) {
		at = ring->alike;
		if (at == alike_end(core, ring))
			return false;
	}
	return epf_ring_peek(&ring->consumer, at, &c);
}

static int rings_have_work(const struct epf_core *core)
{
	for (uint32_t i = 0; i < core->n_rings; i++)
		if (ring_has_work(core, core->rings[i]))
			return 1;
	return 0;
}

int epf_core_has_work(const struct epf_core *core)
{
	return rings_have_work(core) || !epf_queue_is_empty(core->calls);
}

void epf_core_note_sleep(struct epf_core *core)
{
	struct rusage usage;

	EPF_COUNT(core, SLEEPS, 1);
	if (getrusage(RUSAGE_THREAD, &usage) == 0)
		epf_stat_set(core->stats, EPF_STAT_CORE_INVOLUNTARY_SWITCHES,
			     (uint64_t)usage.ru_nivcsw);
}

uint64_t epf_core_due(const struct epf_core *core, uint64_t now)
{
	uint64_t event = core->ops->next_event(core->nic);

	/* A tick that is due comes with one of the next steps; asleep between them, the engine would tick three times too rarely. */
	if (event <= now || core->cold_work)
		return now;
	return event < core->next_tick_ns ? event : core->next_tick_ns;
}

bool epf_core_look_again(struct epf_core *core)
{
	core->is_blind = core->ops->arm(core->nic) != 0;
	return epf_core_has_work(core) || epf_core_step(core) || core->wakes ||
	       core->ops->wake_pending(core->nic);
}

uint64_t epf_core_sleep_ns(const struct epf_core *core, uint64_t ns)
{
	return core->is_blind && ns > BLIND_SLEEP_NS ? BLIND_SLEEP_NS : ns;
}

void epf_core_note_wakeup(struct epf_core *core)
{
	if (rings_have_work(core))
		EPF_COUNT(core, WAKEUPS, 1);
}

void epf_lend_cpu(uint64_t (*now)(void *arg), void *arg, uint64_t *busy_until)
{
	uint64_t before = now(arg), after;

	if (before < *busy_until)
		return;
	sched_yield();
	after = now(arg);
	if (after - before >= LATE_NS)
		*busy_until = after + BUSY_NS;
}
