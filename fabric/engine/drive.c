/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handing a core from its thread to a waiting thread and back (drive.h). The wakeup decides who is rung for work: it is armed while nobody has the
 * core, and driven while a waiter has it. The thread stays asleep on it meanwhile, so no change of hands makes a system call. It comes out when
 * it is rung and when its time is over, and takes the core back (retake).
 */
#include "fabric/engine/drive.h"
#include "fabric/base/clock.h"
#include "fabric/engine/between.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/owner.h"
#include "fabric/engine/watch.h"

enum {
	RECALL_NS = 1000 * 1000,
	LAST_STEPS = 8, /* a waiter that leaves finishes what takes no more */
};

static void wake(struct epf_core *core)
{
	if (core->wakes || core->ops->wake_pending(core->nic))
		epf_core_wake(core);
}

/* After the core was given away: its thread may wait for that. [O3] */
static void wake_thread(struct epf_core *core)
{
	if (epf_wakeup_is_needed(&core->recall))
		epf_wakeup_wake(&core->recall);
}

/* Between two steps of a waiter. Returns false if the core's thread wants the core: it has it now. */
static bool keep(struct epf_core *core)
{
	/* Without a fence: what this look misses, the next step sees, or the end of the drive. */
	if (EPF_LIKELY(!EPF_LOAD_RELAXED(&core->recall.sleeping))) {
		epf_owner_give(&core->owner, EPF_OWNER_WAITER);
		return true;
	}
	epf_owner_give(&core->owner, EPF_OWNER_THREAD);
	wake_thread(core);
	return false;
}

unsigned epf_core_drive(struct epf_core *core, bool *drives)
{
	uint32_t from = *drives ? EPF_OWNER_WAITER : EPF_OWNER_NOBODY;
	unsigned handled;

	if (EPF_LOAD_RELAXED(&core->owner) != from || EPF_LOAD_RELAXED(&core->stop) ||
	    !epf_owner_take(&core->owner, from, EPF_OWNER_STEP)) {
		*drives = false;
		return 0;
	}
	if (!*drives) {
		epf_wakeup_drive(core->wakeup); /* this thread looks for work from now on */
		EPF_COUNT(core, DRIVES, 1);
	}
	handled = epf_core_step(core);
	if (!epf_queue_is_empty(core->calls))
		handled += epf_core_run_calls(core);
	wake(core);
	*drives = keep(core);
	return handled;
}

void epf_core_drive_wish(struct epf_core *core)
{
	if (!EPF_LOAD_RELAXED(&core->drive_wish))
		EPF_STORE_RELAXED(&core->drive_wish, 1u);
}

/* Steps until there is nothing more to do for now, with the wakeup armed. Returns false if there still is after LAST_STEPS steps. */
static bool finish(struct epf_core *core)
{
	for (unsigned i = 0; i < LAST_STEPS; i++) {
		uint64_t now = core->now(core->now_arg), due = epf_core_due(core, now);
		bool was_still;

		/* Armed again if it was rung: then the thread is on its way. */
		if (!epf_wakeup_is_armed(core->wakeup))
			epf_wakeup_arm(core->wakeup);
		was_still = !epf_core_look_again(core);
		wake(core);
		/* What is due before the thread's own sleep ends would be late. */
		if (was_still && due > now && due >= core->asleep_until &&
		    epf_wakeup_is_armed(core->wakeup))
			return true;
	}
	return false;
}

void epf_core_drive_end(struct epf_core *core)
{
	bool is_still;

	if (!epf_owner_take(&core->owner, EPF_OWNER_WAITER, EPF_OWNER_STEP))
		return;
	is_still = finish(core);
	/* As any producer: first the core, then the ring. The arming may have been consumed by a ring; it must not be missing while nobody has the core. */
	if (!epf_wakeup_is_armed(core->wakeup))
		epf_wakeup_arm(core->wakeup);
	epf_owner_give(&core->owner, EPF_OWNER_NOBODY);
	wake_thread(core);
	if (!is_still || EPF_LOAD_RELAXED(&core->stop))
		epf_wakeup_wake(core->wakeup);
}

/*
 * The core's thread is awake and takes the core. From a waiter between two steps at once: it may not come back. One that is in a step is asked, and
 * gives the core away behind it (keep), or leaves; both look at `recall` after they have changed the owner, and this thread looks at the owner after it
 * has armed: one of them sees the other. [O3]
 */
static void retake(struct epf_core *core)
{
	for (;;) {
		epf_wakeup_arm(&core->recall);
		if (epf_owner_is_thread(&core->owner) ||
		    epf_owner_take(&core->owner, EPF_OWNER_NOBODY, EPF_OWNER_THREAD) ||
		    epf_owner_take(&core->owner, EPF_OWNER_WAITER, EPF_OWNER_THREAD))
			break;
		epf_wakeup_sleep(&core->recall, RECALL_NS);
	}
	epf_wakeup_disarm(&core->recall);
}

/*
 * The core's thread is awake, before `end`. If a waiter has the core and looks for work, there is nothing to do for it. Should the waiter leave before this
 * thread sleeps again, the word has another value, and the call returns at once.
 */
static void stay_asleep(struct epf_core *core, uint64_t end)
{
	uint64_t now = epf_now_ns();

	while (EPF_LOAD_RELAXED(&core->owner) >= EPF_OWNER_WAITER &&
	       EPF_LOAD_RELAXED(&core->wakeup->sleeping) == EPF_WAKEUP_DRIVEN &&
	       !EPF_LOAD_RELAXED(&core->stop) && now < end) {
		epf_wakeup_sleep_joined(core->wakeup, EPF_WAKEUP_DRIVEN, end - now);
		now = epf_now_ns();
	}
}

bool epf_core_thread_sleep(struct epf_core *core, uint64_t max_ns)
{
	uint64_t now = core->now(core->now_arg), due = epf_core_due(core, now), end;

	EPF_STORE_RELAXED(&core->drive_wish, 0u);
	if (due <= now)
		return false;
	if (due - now > max_ns)
		due = now + max_ns;
	epf_wakeup_arm(core->wakeup);
	if (!epf_core_look_again(core) && !EPF_LOAD_RELAXED(&core->stop)) {
		due = now + epf_core_sleep_ns(core, due - now);
		epf_core_note_sleep(core);
		core->asleep_until = due;
		end = epf_now_ns() + due - now;
		epf_owner_give(&core->owner, EPF_OWNER_NOBODY);
		epf_wakeup_sleep(core->wakeup, due - now);
		stay_asleep(core, end);
		retake(core);
		epf_core_note_wakeup(core);
	}
	epf_wakeup_disarm(core->wakeup);
	epf_core_wake(core);
	epf_watch_look(core);
	return true;
}
