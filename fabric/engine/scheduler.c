/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread, several engine cores (scheduler.h). It is the service's counterpart of epf_core_run() (loop.c): gives each job its
 * turn, serves other threads' requests between steps, wakes and sleeps. System calls happen here and never in a step.
 *
 * Sleeping on many wakeups at once is futex_waitv(2), Linux 5.16; without it the thread polls every millisecond.
 */
#define EPF_LOG_COMP "core"
#include "fabric/engine/scheduler.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/engine/between.h"
#include "fabric/engine/fair.h"
#include "fabric/engine/watch.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	REQUESTS = 64,
	MAX_SLEEP_NS = 20 * 1000 * 1000,
	BLIND_SLEEP_NS = 1000 * 1000,
	BEAT_NS = 500 * 1000 * 1000,
	LOOPS_PER_LOOK = 15,
	UNFAIR_TURN_NS = 10 * 1000 * 1000, /* even without fairness no job starves */
	WAITV_SIZE_32 = 2, /* FUTEX2_SIZE_U32: linux/futex.h of Debian 12 calls it FUTEX_32 */
	SHORT_STEPS = 64,  /* consecutive short steps, after which they may be longer again */
	MAX_WAKEUPS = 2 * EPF_SCHEDULER_JOBS_MAX + 1,
};

_Static_assert((int)EPF_SCHEDULER_JOBS_MAX <= (int)EPF_FAIR_SEATS, "a seat each");
_Static_assert(MAX_WAKEUPS <= 128, "futex_waitv(2) takes 128");

/* The layout that futex_waitv(2) expects. */
struct waiter {
	uint64_t value;
	uint64_t address;
	uint32_t flags;
	uint32_t reserved;
};

struct seat {
	struct epf_core *core;
	struct epf_wakeup *client;
	void (*beat)(void *arg);
	void *beat_arg;
	uint64_t used_tsc;    /* written by the scheduler's thread, read by others */
	unsigned short_steps; /* since one that was not */
};

enum what { ADD, REMOVE, STOP };

/* A request of another thread; lives on that thread's stack. */
struct request {
	enum what what;
	struct seat seat;
	uint32_t share;
	int result;
	uint32_t done;
};

struct epf_scheduler {
	struct epf_scheduler_options opts;
	pthread_t thread;
	struct epf_queue *requests;
	struct epf_wakeup wakeup;
	uint64_t quantum_tsc;
	uint64_t next_beat_ns, next_watch_ns;
	uint64_t busy_until; /* of its CPU, which is not lent until then */
	uint32_t n_seats;
	int blind; /* no futex_waitv */
	int stop;
	struct epf_fair fair; /* its seats have the same order */
	struct seat seats[EPF_SCHEDULER_JOBS_MAX];
};

static int find(const struct epf_scheduler *scheduler, const struct epf_core *core)
{
	for (uint32_t i = 0; i < scheduler->n_seats; i++)
		if (scheduler->seats[i].core == core)
			return (int)i;
	return -ENOENT;
}

static int serve(struct epf_scheduler *scheduler, struct request *r)
{
	int at = find(scheduler, r->seat.core);

	switch (r->what) {
	case ADD:
		if (scheduler->n_seats == EPF_SCHEDULER_JOBS_MAX)
			return -ENOSPC;
		scheduler->seats[scheduler->n_seats++] = r->seat;
		epf_fair_add(&scheduler->fair, r->share);
		EPF_STORE_RELEASE(&r->seat.core->running, 1); /* Q3 */
		return 0;
	case REMOVE:
		if (at < 0)
			return at;
		epf_core_run_calls(r->seat.core);
		scheduler->seats[at] = scheduler->seats[--scheduler->n_seats];
		epf_fair_remove(&scheduler->fair, (uint32_t)at);
		EPF_STORE_RELEASE(&r->seat.core->running, 0); /* Q3 */
		return 0;
	case STOP:
		scheduler->stop = 1;
		return 0;
	}
	return -EINVAL;
}

static unsigned serve_requests(struct epf_scheduler *scheduler)
{
	struct epf_queue_item item;
	unsigned handled = 0;

	while (epf_queue_pop(scheduler->requests, &item)) {
		struct request *r = (struct request *)(uintptr_t)item.a;

		r->result = serve(scheduler, r);
		EPF_STORE_RELEASE(&r->done, 1u); /* Q2 */
		handled++;
	}
	return handled;
}

static int ask(struct epf_scheduler *scheduler, struct request *r)
{
	struct epf_queue_item item = { .a = (uint64_t)(uintptr_t)r };

	while (!epf_queue_push(scheduler->requests, item))
		sched_yield();
	while (!EPF_LOAD_ACQUIRE(&r->done)) { /* Q2 */
		if (epf_wakeup_is_needed(&scheduler->wakeup))
			epf_wakeup_wake(&scheduler->wakeup);
		sched_yield();
	}
	return r->result;
}

/*
 * Shortens the steps of a job that shares the thread until one lasts about a turn: others wait, as nothing interrupts a step.
 * With a hardware NIC steps are short anyway and nothing changes.
 */
static void set_pace(const struct epf_scheduler *scheduler, struct seat *s, uint64_t used,
		     unsigned n)
{
	struct epf_nic *nic = s->core->nic;

	s->short_steps = used < scheduler->quantum_tsc / 2 ? s->short_steps + (n > 0) : 0;

	if (scheduler->n_seats < 2 || !scheduler->opts.quantum_ns)
		EPF_STORE_RELAXED(&nic->pace, 0);
	else if (used > 2 * scheduler->quantum_tsc && nic->pace < EPF_PACE_MOST)
		EPF_STORE_RELAXED(&nic->pace, nic->pace + 1);
	else if (s->short_steps >= SHORT_STEPS && nic->pace > 0) {
		EPF_STORE_RELAXED(&nic->pace, nic->pace - 1);
		s->short_steps = 0;
	}
}

/* What a core has put on the wire or asked for so far. */
static uint64_t bytes_of(const struct epf_core *core)
{
	return epf_stat_get(core->stats, EPF_STAT_CORE_PUT_BYTES_SAME_NODE) +
	       epf_stat_get(core->stats, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE) +
	       epf_stat_get(core->stats, EPF_STAT_CORE_GET_BYTES);
}

/* Runs one step of seat `at` with its calls and wakeups. Adds the number of ranks woken to *woken. Returns how much was handled. */
static unsigned step(struct epf_scheduler *scheduler, uint32_t at, unsigned *woken)
{
	struct seat *s = &scheduler->seats[at];
	struct epf_core *core = s->core;
	unsigned shares = scheduler->n_seats > 1, n;
	uint64_t begin = epf_tsc(), used, bytes = shares ? bytes_of(core) : 0;

	n = epf_core_step(core);

	if (!epf_queue_is_empty(core->calls))
		n += epf_core_run_calls(core);
	if (core->wakes || core->ops->wake_pending(core->nic))
		*woken += epf_core_wake(core);
	used = epf_tsc() - begin;
	set_pace(scheduler, s, used, n);
	bytes = shares ? bytes_of(core) - bytes : 0;
	epf_fair_step(&scheduler->fair, at, used, bytes, n != 0);
	EPF_STORE_RELAXED(&s->used_tsc, s->used_tsc + (n ? used : 0));
	return n;
}

/* Runs a job's turn, if it has one: steps while work and time remain. */
static unsigned turn(struct epf_scheduler *scheduler, uint32_t at)
{
	unsigned handled = 0, woken = 0, n;
	uint64_t until;

	if (!epf_fair_turn(&scheduler->fair, at, &until))
		return 0;
	do {
		n = step(scheduler, at, &woken);
		handled += n;
	} while (n && (int64_t)(until - scheduler->fair.seat[at].time) > 0);
	/* Without a dedicated CPU this thread may block the rank it woke until the kernel's next tick. */
	if (woken && !scheduler->opts.n_cpus && scheduler->n_seats > 1)
		sched_yield();
	return handled;
}

/* Periodic work: heartbeats, liveness of peers. */
static void look(struct epf_scheduler *scheduler)
{
	uint64_t now = scheduler->opts.now(scheduler->opts.now_arg);
	int beat = now >= scheduler->next_beat_ns, watch = now >= scheduler->next_watch_ns;

	if (beat)
		scheduler->next_beat_ns = now + BEAT_NS;
	if (watch)
		scheduler->next_watch_ns = now + EPF_WATCH_NS;
	for (uint32_t i = 0; (beat || watch) && i < scheduler->n_seats; i++) {
		struct seat *s = &scheduler->seats[i];

		if (beat && s->beat)
			s->beat(s->beat_arg);
		if (watch)
			s->core->ops->watch(s->core->nic);
	}
	for (uint32_t i = 0; i < scheduler->n_seats; i++)
		epf_watch_look(scheduler->seats[i].core);
}

/* Returns how long the thread may sleep, in ns: 0 if something is due. */
static uint64_t quiet_ns(const struct epf_scheduler *scheduler, uint64_t now)
{
	uint64_t until = now + MAX_SLEEP_NS;

	for (uint32_t i = 0; i < scheduler->n_seats; i++) {
		const struct epf_core *core = scheduler->seats[i].core;
		uint64_t event = core->ops->next_event(core->nic);

		if (core->cold_work)
			return 0;
		if (event < until)
			until = event;
		if (core->next_tick_ns < until)
			until = core->next_tick_ns;
	}
	return until > now ? until - now : 0;
}

static unsigned list_wakeups(struct epf_scheduler *scheduler, struct epf_wakeup **wakeups)
{
	unsigned n = 0;

	wakeups[n++] = &scheduler->wakeup;
	for (uint32_t i = 0; i < scheduler->n_seats; i++) {
		wakeups[n++] = scheduler->seats[i].core->wakeup;
		if (scheduler->seats[i].client)
			wakeups[n++] = scheduler->seats[i].client;
	}
	return n;
}

static void wait_for_any(struct epf_scheduler *scheduler, struct epf_wakeup **wakeups, unsigned n,
			 uint64_t ns)
{
	struct waiter waiters[MAX_WAKEUPS];
	struct timespec until;

	if (scheduler->blind) {
		epf_wakeup_sleep(&scheduler->wakeup, ns < BLIND_SLEEP_NS ? ns : BLIND_SLEEP_NS);
		return;
	}
	for (unsigned i = 0; i < n; i++)
		waiters[i] = (struct waiter){ .value = 1,
					      .address = (uint64_t)(uintptr_t)&wakeups[i]->sleeping,
					      .flags = WAITV_SIZE_32 };
	clock_gettime(CLOCK_MONOTONIC, &until);
	ns += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(ns / 1000000000u);
	until.tv_nsec = (long)(ns % 1000000000u);
	if (syscall(SYS_futex_waitv, waiters, n, 0, &until, CLOCK_MONOTONIC) < 0 &&
	    (errno == ENOSYS || errno == EPERM)) {
		scheduler->blind = 1;
		epf_warn(
			"scheduler %s: futex_waitv: not possible here, an idle core looks every millisecond",
			scheduler->opts.name);
	}
}

static int any_work(struct epf_scheduler *scheduler)
{
	int work = !epf_queue_is_empty(scheduler->requests);

	for (uint32_t i = 0; i < scheduler->n_seats && !work; i++)
		work = epf_core_has_work(scheduler->seats[i].core);
	/* Only a step finds arrivals; it also sends what was left. */
	for (uint32_t i = 0; i < scheduler->n_seats && !work; i++) {
		struct epf_core *core = scheduler->seats[i].core;

		/* Even an idle step may leave a rank to wake. */
		work = epf_core_step(core) != 0 || core->wakes ||
		       core->ops->wake_pending(core->nic);
	}
	return work;
}

static void doze(struct epf_scheduler *scheduler)
{
	uint64_t ns = quiet_ns(scheduler, scheduler->opts.now(scheduler->opts.now_arg));
	struct epf_wakeup *wakeups[MAX_WAKEUPS];
	unsigned n;

	if (!ns) {
		/* What is due, as the end of a GPU's copies, may need this CPU. */
		if (!scheduler->opts.n_cpus)
			epf_lend_cpu(scheduler->opts.now, scheduler->opts.now_arg,
				     &scheduler->busy_until);
		return;
	}
	n = list_wakeups(scheduler, wakeups);
	for (unsigned i = 0; i < n; i++)
		epf_wakeup_arm(wakeups[i]); /* B1 */
	for (uint32_t i = 0; i < scheduler->n_seats; i++)
		scheduler->seats[i].core->ops->arm(scheduler->seats[i].core->nic);
	if (!any_work(scheduler)) {
		for (uint32_t i = 0; i < scheduler->n_seats; i++)
			epf_stat_add(scheduler->seats[i].core->stats, EPF_STAT_CORE_SLEEPS, 1);
		wait_for_any(scheduler, wakeups, n, ns);
	}
	for (unsigned i = 0; i < n; i++)
		epf_wakeup_disarm(wakeups[i]);
	for (uint32_t i = 0; i < scheduler->n_seats; i++)
		epf_core_wake(scheduler->seats[i].core);
	look(scheduler);
}

static bool may_sleep(const struct epf_scheduler *scheduler)
{
	bool may = scheduler->opts.idle == EPF_IDLE_SLEEP;

	for (uint32_t i = 0; i < scheduler->n_seats && may; i++)
		may = !scheduler->seats[i].core->stays_awake;
	return may;
}

static void *scheduler_thread(void *arg)
{
	struct epf_scheduler *scheduler = arg;
	uint64_t quiet_since = 0;
	unsigned loops = 0;
	uint32_t at = 0;

	pthread_setname_np(pthread_self(), scheduler->opts.name);
	while (!scheduler->stop) {
		unsigned handled = 0;

		for (uint32_t i = 0; i < scheduler->n_seats; i++) {
			at = epf_fair_next(&scheduler->fair, at);
			handled += turn(scheduler, at);
		}
		if (!epf_queue_is_empty(scheduler->requests))
			handled += serve_requests(scheduler);
		if ((++loops & LOOPS_PER_LOOK) == 0)
			look(scheduler);
		if (handled) {
			quiet_since = 0;
			continue;
		}
		if (scheduler->opts.idle == EPF_IDLE_SPIN)
			continue;
		EPF_CPU_PAUSE();
		if (!may_sleep(scheduler))
			continue;
		if (!quiet_since)
			quiet_since = scheduler->opts.now(scheduler->opts.now_arg);
		else if (scheduler->opts.now(scheduler->opts.now_arg) - quiet_since >=
			 scheduler->opts.idle_after_ns)
			doze(scheduler);
	}
	return NULL;
}

static int pin(const struct epf_scheduler_options *opts, pthread_attr_t *attr)
{
	size_t bytes = CPU_ALLOC_SIZE(4096);
	cpu_set_t *set = CPU_ALLOC(4096);
	int rc;

	if (!set)
		return epf_fail(EPF_R_NO_MEMORY, "cpu: no memory");
	CPU_ZERO_S(bytes, set);
	for (size_t i = 0; i < opts->n_cpus; i++)
		CPU_SET_S(opts->cpu[i], bytes, set);
	rc = opts->n_cpus ? pthread_attr_setaffinity_np(attr, bytes, set) : 0;
	CPU_FREE(set);
	return rc ? epf_fail_sys(EPF_R_SYSTEM, rc, "cpu: cannot pin an engine core") : 0;
}

int epf_scheduler_create(const struct epf_scheduler_options *opts, struct epf_scheduler **out)
{
	struct epf_scheduler *scheduler =
		aligned_alloc(EPF_CACHELINE, (sizeof(*scheduler) + 63) / 64 * 64);
	pthread_attr_t attr;
	int rc;

	if (!scheduler)
		return epf_fail(EPF_R_NO_MEMORY, "scheduler: no memory");
	*scheduler = (struct epf_scheduler){ .opts = *opts };
	scheduler->quantum_tsc =
		(uint64_t)((double)(opts->quantum_ns ? opts->quantum_ns : UNFAIR_TURN_NS) *
			   ((double)epf_tsc_hz() / 1e9));
	epf_fair_init(&scheduler->fair, scheduler->quantum_tsc, opts->quantum_ns != 0,
		      (uint64_t)(EPF_FAIR_64K_NS * ((double)epf_tsc_hz() / 1e9)));
	rc = epf_queue_create(REQUESTS, &scheduler->requests);
	pthread_attr_init(&attr);
	if (!rc)
		rc = pin(opts, &attr);
	if (!rc) {
		rc = pthread_create(&scheduler->thread, &attr, scheduler_thread, scheduler);
		if (rc)
			rc = epf_fail_sys(EPF_R_SYSTEM, rc,
					  "scheduler: cannot start an engine thread");
	}
	pthread_attr_destroy(&attr);
	if (rc) {
		epf_queue_destroy(scheduler->requests);
		free(scheduler);
		return rc;
	}
	*out = scheduler;
	return 0;
}

void epf_scheduler_destroy(struct epf_scheduler *scheduler)
{
	struct request r = { .what = STOP };

	if (!scheduler)
		return;
	ask(scheduler, &r);
	pthread_join(scheduler->thread, NULL);
	epf_queue_destroy(scheduler->requests);
	free(scheduler);
}

int epf_scheduler_add(struct epf_scheduler *scheduler, struct epf_core *core, unsigned weight,
		      struct epf_wakeup *client, void (*beat)(void *arg), void *beat_arg)
{
	unsigned share = scheduler->opts.quantum_ns ? weight : 1;
	struct request r = {
		.what = ADD,
		.share = share ? share : 1,
		.seat = { .core = core, .client = client, .beat = beat, .beat_arg = beat_arg }
	};

	if (ask(scheduler, &r))
		return epf_fail(EPF_R_SVC_LIMIT,
				"core %s: it serves %d jobs, and no more are possible",
				scheduler->opts.name, EPF_SCHEDULER_JOBS_MAX);
	return 0;
}

void epf_scheduler_remove(struct epf_scheduler *scheduler, struct epf_core *core)
{
	struct request r = { .what = REMOVE, .seat = { .core = core } };

	ask(scheduler, &r);
}

int epf_scheduler_used(struct epf_scheduler *scheduler, const struct epf_core *core, uint64_t *ns)
{
	/* Seats move only while one of add and remove runs, and those have the same caller. */
	int at = find(scheduler, core);

	if (at < 0)
		return at;
	*ns = (uint64_t)((double)EPF_LOAD_RELAXED(&scheduler->seats[at].used_tsc) * 1e9 /
			 (double)epf_tsc_hz());
	return 0;
}
