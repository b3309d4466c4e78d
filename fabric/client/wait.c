/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 4: waits. Every wait has a deadline and ends early when a rank of the job, or this rank's daemon, is lost; the error says
 * who. A waiting thread spins a little, then sleeps on the rank's wakeup, or lets the engine work (progress=caller). Who is lost is
 * read from the peers page; of the engine this file knows nothing but backend.h.
 */
#include "fabric/base/err.h"
#include "fabric/client/drive.h"
#include "fabric/client/handle.h"
#include "fabric/client/reuse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	SPINS_MOST = 2000, /* some 100 us */
	SPINS_LEAST = 100,
	SPINS_TRY = 4,  /* times what was learnt: */
	TRY_EVERY = 16, /* in one of so many waits */
	SLEEP_NS = 10 * 1000 * 1000,
	CALLER_SPINS = 64,
	CALLER_SLEEP_NS = 1000 * 1000,
	DRIVER_SLEEP_NS = 50 * 1000, /* a daemon works, but this thread drives other ranks too */
};

/* 0, or -ECONNRESET naming a rank that is lost and not masked. [P2] */
static int check_lost(struct epf *ep)
{
	const struct epf_peers_shm *peers = EPF_LOAD_ACQUIRE(&ep->peers); /* the join sets it */
	uint32_t seen;
	int rc;

	if (EPF_UNLIKELY(!peers))
		return 0;
	/* Both parts only grow, so the sum is new when one of them has moved. */
	seen = EPF_LOAD_ACQUIRE(&peers->changes) + EPF_LOAD_ACQUIRE(&ep->mask_changes);
	if (EPF_LIKELY(seen == EPF_LOAD_RELAXED(&ep->peers_seen)))
		return 0;
	rc = epf_wait_lost(ep, false);
	if (rc)
		return rc;
	EPF_STORE_RELAXED(&ep->has_notified, false);
	EPF_STORE_RELAXED(&ep->peers_seen, seen);
	return 0;
}

/*
 * Sleeps on the rank's wakeup, at most max_ns. The core rings for what is wished, so that a long wait is not woken at every step of it; of
 * several sleepers each is woken by any ring.
 */
static void sleep_on_wakeup(struct epf *ep, uint64_t max_ns, bool (*ready)(const void *arg),
			    const void *arg, const struct epf_condition *condition)
{
	uint32_t ticket =
		epf_wakeup_join(ep->wakeup, condition->what, condition->index, condition->least);

	if (!ready(arg))
		epf_wakeup_sleep_joined(ep->wakeup, ticket, max_ns);
	epf_wakeup_leave(ep->wakeup, ticket);
}

/* Spinning of one wait. */
struct spin {
	unsigned limit; /* before it sleeps */
	unsigned quiet; /* spins since it began, woke, or the engine worked for it */
	bool slept;
	bool drives; /* it steps the engine in place of its thread */
};

/*
 * How long a wait spins is learnt. A rank that spins may hold the very CPU that the engine it waits for needs, and where there are few CPUs
 * all its spinning is wasted: each time it was, half as much is left. What did help is kept, with as much again, and slowly given up when
 * less would do. Now and then a wait tries longer. Racy between the threads of a rank, and harmless: any value works.
 */
static struct spin spin_begin(struct epf *ep)
{
	uint32_t limit = EPF_LOAD_RELAXED(&ep->spins), waits = EPF_LOAD_RELAXED(&ep->waits) + 1;

	EPF_STORE_RELAXED(&ep->waits, waits);
	if (waits % TRY_EVERY == 0)
		limit *= SPINS_TRY;
	return (struct spin){ .limit = limit && limit < SPINS_MOST ? limit : SPINS_MOST };
}

/* It sleeps for the first time (spins were wasted), or ends without having slept. */
static void spin_learn(struct epf *ep, const struct spin *spin, bool in_vain)
{
	uint32_t had = EPF_LOAD_RELAXED(&ep->spins), want = 2 * spin->quiet;

	if (!had)
		had = SPINS_MOST;
	if (in_vain)
		want = spin->limit > had ? had : had / 2; /* who tried longer learnt nothing */
	else if (want < had)
		want = had - (had - want) / 16;
	if (want < SPINS_LEAST)
		want = SPINS_LEAST;
	EPF_STORE_RELAXED(&ep->spins, want < SPINS_MOST ? want : SPINS_MOST);
}

/* progress=caller: sleeps as the engine, or beside the thread that does. */
static void sleep_as_engine(struct epf *ep, bool (*ready)(const void *arg), const void *arg,
			    const struct epf_condition *condition)
{
	bool slept;

	/* Nobody rings this thread; the watch reads it. */
	epf_wakeup_set_condition(ep->wakeup, condition->what, condition->index, condition->least);
	slept = ep->be->sleep(ep, CALLER_SLEEP_NS);
	epf_wakeup_clear_condition(ep->wakeup);
	if (!slept)
		sleep_on_wakeup(ep, CALLER_SLEEP_NS, ready, arg, condition);
}

/* One quiet moment: without a separate thread the engine sleeps here, else this thread does, until rung. */
static void idle(struct epf *ep, struct spin *spin, bool (*ready)(const void *arg), const void *arg,
		 const struct epf_condition *condition)
{
	if (!ep->threaded) {
		if (++spin->quiet > CALLER_SPINS && !ep->call_progress) {
			sleep_as_engine(ep, ready, arg, condition);
			spin->quiet = 0;
		}
		return;
	}
	if (++spin->quiet < spin->limit) {
		EPF_CPU_PAUSE();
		return;
	}
	if (!spin->slept)
		spin_learn(ep, spin, true);
	spin->slept = true;
	epf_drive_end(ep, &spin->drives);
	sleep_on_wakeup(ep,
			condition->sleep_ns ? condition->sleep_ns
			: ep->call_progress ? DRIVER_SLEEP_NS
					    : SLEEP_NS,
			ready, arg, condition);
	spin->quiet = spin->limit - spin->limit / 4;
}

static int aborted(const struct epf *ep, const char *what, uint64_t number)
{
	return epf_fail(EPF_R_ABORTED, "rank %u: %s %llu: the wait was aborted", epf_rank(ep), what,
			(unsigned long long)number);
}

/* Names the first failed commands of any ring of the rank; leaves text alone if there are none. */
static void say_failed(const struct epf *ep, char *text, size_t size)
{
	epf_lock_lists(ep);
	for (const struct epf_ring *ring = ep->rings; ring; ring = ring->next) {
		const struct epf_done *done = &ring->shm->done;
		uint64_t failed = EPF_LOAD_ACQUIRE(&done->failed); /* A3 */
		const struct epf_reason_info *info;

		if (!failed)
			continue;
		info = epf_reason_info((enum epf_reason)done->error_reason);
		snprintf(text, size,
			 "; %llu commands of ring %u failed, first number %llu to rank %u: %s",
			 (unsigned long long)failed, ring->id,
			 (unsigned long long)(done->error_index - 1), done->error_rank,
			 info ? info->cause : "unknown");
		break;
	}
	epf_unlock_lists(ep);
}

/* The text of a timeout. Commands of this rank that failed are the likeliest cause: they are named too. */
static int timed_out(const struct epf *ep, uint64_t timeout_ns, const char *what, uint64_t number)
{
	char also[160] = "";
	int rc = 0;

	say_failed(ep, also, sizeof(also));
	if (!also[0])
		rc = epf_wait_silent(ep, timeout_ns, what, number);
	if (rc)
		return rc;
	return epf_fail(EPF_R_WAIT_TIMEOUT, "rank %u: %s %llu: not there after %llu ms%s",
			epf_rank(ep), what, (unsigned long long)number,
			(unsigned long long)(timeout_ns / 1000000), also);
}

int epf_wait_why(struct epf *ep, const char *what, uint64_t number)
{
	int rc;

	if (EPF_LOAD_RELAXED(&ep->aborted))
		return aborted(ep, what, number);
	rc = check_lost(ep);
	return rc ? rc : ep->be->check(ep);
}

/* One moment of a wait: lets the engine work where it has no thread or a sleeping one, else waits a little. */
static void advance(struct epf *ep, struct spin *spin, bool (*ready)(const void *arg),
		    const void *arg, const struct epf_condition *condition)
{
	static const struct epf_condition any = { .what = EPF_WAKE_ON_ANY };
	unsigned handled = epf_progress_once(ep);

	if (ep->threaded)
		handled += epf_drive(ep, &spin->drives);
	if (handled)
		spin->quiet = 0;
	else
		idle(ep, spin, ready, arg, condition ? condition : &any);
}

int epf_wait(struct epf *ep, bool (*ready)(const void *arg), const void *arg,
	     const struct epf_condition *condition, uint64_t timeout_ns, const char *what,
	     uint64_t number)
{
	uint64_t deadline;
	struct spin spin;
	int rc = 0;

	if (ready(arg))
		return 0;
	spin = spin_begin(ep);
	if (!timeout_ns)
		timeout_ns = ep->conf.wait_timeout_ns;
	deadline = ep->now(ep->now_arg) + timeout_ns;
	while (!ready(arg)) {
		rc = epf_wait_why(ep, what, number);
		if (!rc && ep->now(ep->now_arg) >= deadline)
			rc = timed_out(ep, timeout_ns, what, number);
		if (rc)
			break;
		advance(ep, &spin, ready, arg, condition);
	}
	epf_drive_end(ep, &spin.drives);
	if (!rc && ep->threaded && !spin.slept)
		spin_learn(ep, &spin, false);
	return rc;
}

struct retired_arg {
	const struct epf_ring *ring;
	uint64_t pushed;
};

static bool is_retired(const void *arg)
{
	const struct retired_arg *a = arg;

	return (int64_t)(epf_ring_retired(&a->ring->producer) - a->pushed) >= 0;
}

int epf_wait_retired(struct epf_ring *ring, uint64_t pushed, uint64_t timeout_ns)
{
	struct retired_arg a = { ring, pushed };
	struct epf_condition condition = { EPF_WAKE_ON_RETIRED, ring->shm->ring_id, pushed, 0 };

	return epf_wait(ring->ep, is_retired, &a, &condition, timeout_ns, "command", pushed - 1);
}

struct signal_arg {
	const struct epf_signal *signal;
	uint64_t at_least;
};

static bool is_signalled(const void *arg)
{
	const struct signal_arg *a = arg;

	return (int64_t)(epf_signal_read(a->signal) - a->at_least) >= 0;
}

/* The same of one in GPU memory. */
struct gpu_signal_arg {
	struct epf *ep;
	uint32_t signal;
	uint64_t at_least;
};

static bool is_gpu_signalled(const void *arg)
{
	const struct gpu_signal_arg *a = arg;

	return (int64_t)(epf_gpu_signal_value(a->ep, a->signal) - a->at_least) >= 0;
}

uint64_t epf_signal_value(const struct epf *ep, uint32_t signal)
{
	if (signal >= ep->n_signals)
		return 0;
	if (EPF_UNLIKELY(EPF_LOAD_ACQUIRE(&ep->gpu_signals) != NULL))
		return epf_gpu_signal_value((struct epf *)(uintptr_t)ep, signal);
	return epf_signal_read(&ep->signals[signal]);
}

int epf_signal_wait(struct epf *ep, uint32_t signal, uint64_t at_least, uint64_t timeout_ns)
{
	struct signal_arg a = { .at_least = at_least };
	struct epf_condition condition = { EPF_WAKE_ON_SIGNAL, signal, at_least, 0 };

	if (signal >= ep->n_signals)
		return epf_fail(EPF_R_SIGNAL_RANGE, "signal %u: this rank has %u", signal,
				ep->n_signals);
	if (EPF_UNLIKELY(EPF_LOAD_ACQUIRE(&ep->gpu_signals) != NULL)) {
		struct gpu_signal_arg g = { ep, signal, at_least };

		/* The core cannot read it, and nobody rings when an addition is done. */
		condition = (struct epf_condition){ .what = EPF_WAKE_ON_ANY,
						    .sleep_ns = DRIVER_SLEEP_NS };
		return epf_wait(ep, is_gpu_signalled, &g, &condition, timeout_ns, "signal", signal);
	}
	a.signal = &ep->signals[signal];
	return epf_wait(ep, is_signalled, &a, &condition, timeout_ns, "signal", signal);
}

uint32_t epf_signal_count(const struct epf *ep)
{
	return ep->n_signals;
}

/* 0 when the rank is of the job and the job has been joined. */
static int check_rank(const struct epf *ep, uint32_t rank)
{
	if (epf_joined(ep) && rank < ep->world)
		return 0;
	return epf_fail(EPF_R_PEER_RANGE, "rank %u: the job has %u ranks", rank, epf_world(ep));
}

int epf_peer_state(const struct epf *ep, uint32_t rank)
{
	int rc = check_rank(ep, rank);

	if (rc)
		return rc;
	switch (EPF_LOAD_ACQUIRE(&ep->peers->peers[rank].state)) {
	case EPF_PEER_UP:
		return 1;
	case EPF_PEER_DOWN:
		return -ECONNRESET;
	case EPF_PEER_LEFT:
		return -EPIPE;
	default:
		return 0;
	}
}

uint32_t epf_peer_epoch(const struct epf *ep, uint32_t rank)
{
	if (check_rank(ep, rank))
		return UINT32_MAX;
	(void)EPF_LOAD_ACQUIRE(&ep->peers->peers[rank].state); /* P2: the epoch that came with it */
	return EPF_LOAD_RELAXED(&ep->peers->peers[rank].epoch);
}

static int set_mask(struct epf *ep, uint32_t rank, bool masked)
{
	int rc = check_rank(ep, rank);

	if (rc)
		return rc;
	epf_lock_calls(ep);
	rc = ep->be->peer_mask(ep, rank, masked);
	if (!rc) {
		EPF_STORE_RELAXED(&ep->masked[rank], masked);
		EPF_STORE_RELEASE(&ep->mask_changes, ep->mask_changes + 1);
	}
	epf_unlock_calls(ep);
	return rc;
}

int epf_peer_mask(struct epf *ep, uint32_t rank)
{
	return set_mask(ep, rank, true);
}

int epf_peer_unmask(struct epf *ep, uint32_t rank)
{
	return set_mask(ep, rank, false);
}

struct withdraw_args {
	struct epf *ep;
	uint32_t region;
	uint32_t missing;
	int rc; /* 1: done, negative: it never will be */
};

static bool is_withdrawn(const void *arg)
{
	struct withdraw_args *a = (struct withdraw_args *)(uintptr_t)arg;

	if (!a->rc) {
		epf_lock_calls(a->ep);
		a->rc = a->ep->be->region_withdrawn(a->ep, a->region, &a->missing);
		epf_unlock_calls(a->ep);
	}
	return a->rc != 0;
}

int epf_region_withdraw(struct epf *ep, uint32_t region, uint64_t timeout_ns)
{
	struct withdraw_args a = { .ep = ep, .region = region, .missing = EPF_NONE };
	int rc;

	epf_lock_calls(ep);
	rc = ep->be->region_withdraw(ep, region);
	epf_unlock_calls(ep);
	if (rc)
		return rc;
	rc = epf_wait(ep, is_withdrawn, &a, NULL, timeout_ns, "withdrawal of region", region);
	if (rc == -ETIMEDOUT && a.missing != EPF_NONE)
		return epf_fail(EPF_R_REGION_DRAIN,
				"region %u: rank %u has not acknowledged its withdrawal", region,
				a.missing);
	return rc ? rc : a.rc < 0 ? a.rc : 0;
}

int epf_region_reuse(struct epf *ep, uint32_t rank, uint32_t region)
{
	int rc;

	if (!ep->be->region_reuse)
		return epf_fail(EPF_R_SVC_UNSUPPORTED,
				"region %u: a daemon gives no number out again", region);
	epf_lock_calls(ep);
	rc = ep->be->region_reuse(ep, rank, region);
	epf_unlock_calls(ep);
	return rc;
}
