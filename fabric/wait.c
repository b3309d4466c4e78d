/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 4: waits. Every wait has a deadline and ends early when a rank of the job is lost; the error says who. A
 * waiting thread spins a little, then sleeps on the rank's bell (progress=thread) or lets the engine work (caller).
 */
#include "fabric/base/err.h"
#include "fabric/lib.h"

#include <errno.h>
#include <stdio.h>

enum {
	SPINS = 2000,
	SLEEP_NS = 10 * 1000 * 1000,
	CALLER_SPINS = 64,
	CALLER_SLEEP_NS = 1000 * 1000
};

unsigned epf_progress_once(struct epf *ep)
{
	unsigned handled;

	if (ep->threaded)
		return 0;
	if (ep->opts.progress)
		return (unsigned)ep->opts.progress(ep->opts.progress_arg);
	handled = epf_core_step(ep->core);
	epf_core_wake(ep->core);
	return handled;
}

int epf_progress(struct epf *ep)
{
	unsigned handled = 0;

	if (!ep->threaded && ep->join_phase == EPF_JOIN_DONE) {
		handled = epf_core_step(ep->core);
		epf_core_wake(ep->core);
	}
	return (int)handled;
}

/* 0, or -ECONNRESET naming a rank that is lost and not masked. */
static int check_lost(struct epf *ep)
{
	const struct epf_core *core = ep->core;

	if (EPF_LIKELY(EPF_LOAD_RELAXED(&core->lost_nodes) == ep->lost_ignored))
		return 0;
	for (uint32_t r = 0; r < ep->world; r++)
		if (EPF_LOAD_RELAXED(&core->nodes[r].state) == EPF_NODE_DOWN &&
		    !EPF_LOAD_RELAXED(&core->peers[r].masked))
			return epf_fail(EPF_R_PEER_DOWN, "rank %u on node %u is lost", r,
					ep->places[r]);
	return 0;
}

/* One quiet moment: without a thread of its own the engine sleeps here, else this thread does, until rung. */
static void idle(struct epf *ep, unsigned *quiet, bool (*ready)(const void *arg), const void *arg)
{
	if (!ep->threaded) {
		if (++*quiet > CALLER_SPINS && !ep->opts.progress) {
			epf_core_sleep(ep->core, CALLER_SLEEP_NS);
			*quiet = 0;
		}
		return;
	}
	if (++*quiet < SPINS) {
		EPF_CPU_PAUSE();
		return;
	}
	epf_bell_arm(ep->bell);
	if (!ready(arg))
		epf_bell_sleep(ep->bell, SLEEP_NS);
	epf_bell_disarm(ep->bell);
	*quiet = SPINS / 2;
}

static int aborted(const struct epf *ep, const char *what, uint64_t number)
{
	return epf_fail(EPF_R_ABORTED, "rank %u: %s %llu: the wait was aborted", ep->rank, what,
			(unsigned long long)number);
}

void epf_abort(struct epf *ep)
{
	EPF_STORE_RELAXED(&ep->aborted, true);
	for (struct epf_ring *ring = ep->rings; ring; ring = ring->next)
		EPF_STORE_RELEASE(&ring->shm->abort, -ECANCELED);
	epf_bell_ring(ep->bell);
}

/* The text of a timeout. Commands of this rank that failed are the likeliest cause: they are named too. */
static int timed_out(const struct epf *ep, uint64_t timeout_ns, const char *what, uint64_t number)
{
	char also[160] = "";

	for (const struct epf_ring *ring = ep->rings; ring; ring = ring->next) {
		const struct epf_done *done = &ring->shm->done;
		const struct epf_reason_info *info =
			epf_reason_info((enum epf_reason)done->error_reason);

		if (!EPF_LOAD_ACQUIRE(&done->failed))
			continue;
		snprintf(also, sizeof(also),
			 "; %llu commands of ring %u failed, first number %llu to rank %u: %s",
			 (unsigned long long)done->failed, ring->id,
			 (unsigned long long)(done->error_index - 1), done->error_rank,
			 info ? info->cause : "unknown");
		break;
	}
	return epf_fail(EPF_R_WAIT_TIMEOUT, "rank %u: %s %llu: not there after %llu ms%s", ep->rank,
			what, (unsigned long long)number,
			(unsigned long long)(timeout_ns / 1000000), also);
}

int epf_wait(struct epf *ep, bool (*ready)(const void *arg), const void *arg, uint64_t timeout_ns,
	     const char *what, uint64_t number)
{
	uint64_t deadline;
	unsigned quiet = 0;

	if (ready(arg))
		return 0;
	if (!timeout_ns)
		timeout_ns = ep->conf.wait_timeout_ns;
	deadline = ep->core->now(ep->core->now_arg) + timeout_ns;
	while (!ready(arg)) {
		int rc =
			EPF_LOAD_RELAXED(&ep->aborted) ? aborted(ep, what, number) : check_lost(ep);

		if (rc)
			return rc;
		if (ep->core->now(ep->core->now_arg) >= deadline)
			return timed_out(ep, timeout_ns, what, number);
		if (epf_progress_once(ep))
			quiet = 0;
		else
			idle(ep, &quiet, ready, arg);
	}
	return 0;
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

	return epf_wait(ring->ep, is_retired, &a, timeout_ns, "command", pushed - 1);
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

uint64_t epf_signal_value(const struct epf *ep, uint32_t signal)
{
	return signal < ep->n_signals ? epf_signal_read(&ep->signals[signal]) : 0;
}

int epf_signal_wait(struct epf *ep, uint32_t signal, uint64_t at_least, uint64_t timeout_ns)
{
	struct signal_arg a = { .at_least = at_least };

	if (signal >= ep->n_signals)
		return epf_fail(EPF_R_SIGNAL_RANGE, "signal %u: this rank has %u", signal,
				ep->n_signals);
	a.signal = &ep->signals[signal];
	return epf_wait(ep, is_signalled, &a, timeout_ns, "signal", signal);
}

uint32_t epf_signal_count(const struct epf *ep)
{
	return ep->n_signals;
}

int epf_peer_state(const struct epf *ep, uint32_t rank)
{
	uint8_t state;

	if (rank >= ep->world || ep->join_phase != EPF_JOIN_DONE)
		return epf_fail(EPF_R_PEER_RANGE, "rank %u: the job has %u ranks", rank, ep->world);
	state = EPF_LOAD_RELAXED(&ep->core->nodes[rank].state);
	if (state == EPF_NODE_UP)
		return 1;
	return state == EPF_NODE_DOWN ? -ECONNRESET : state == EPF_NODE_LEFT ? -EPIPE : 0;
}

static int mask_peer(struct epf_core *core, void *arg)
{
	epf_core_mask_peer(core, *(uint32_t *)arg);
	return 0;
}

int epf_peer_mask(struct epf *ep, uint32_t rank)
{
	if (rank >= ep->world || ep->join_phase != EPF_JOIN_DONE)
		return epf_fail(EPF_R_PEER_RANGE, "rank %u: the job has %u ranks", rank, ep->world);
	return epf_core_call(ep->core, mask_peer, &rank);
}

struct withdraw_args {
	struct epf *ep;
	uint32_t region;
	uint32_t missing;
	bool done;
};

static int withdraw_begin(struct epf_core *core, void *arg)
{
	return epf_core_revoke_begin(core, 0, ((struct withdraw_args *)arg)->region);
}

static int withdraw_poll(struct epf_core *core, void *arg)
{
	struct withdraw_args *a = arg;

	a->done = epf_core_revoke_done(core, 0, a->region, &a->missing) == 1;
	return 0;
}

static bool is_withdrawn(const void *arg)
{
	struct withdraw_args *a = (struct withdraw_args *)(uintptr_t)arg;

	epf_core_call(a->ep->core, withdraw_poll, a);
	return a->done;
}

int epf_region_withdraw(struct epf *ep, uint32_t region, uint64_t timeout_ns)
{
	struct withdraw_args a = { .ep = ep, .region = region, .missing = EPF_NONE };
	int rc = epf_core_call(ep->core, withdraw_begin, &a);

	if (rc)
		return rc;
	rc = epf_wait(ep, is_withdrawn, &a, timeout_ns, "withdrawal of region", region);
	if (rc == -ETIMEDOUT && a.missing != EPF_NONE)
		return epf_fail(EPF_R_REGION_DRAIN,
				"region %u: rank %u has not acknowledged its withdrawal", region,
				a.missing);
	return rc;
}
