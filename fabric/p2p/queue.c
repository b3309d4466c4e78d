/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of transfers that the endpoint's thread copies, taking turns, the most urgent first; and what is done with all transfers: failures and deadlines. */
#include "fabric/p2p/engine.h"

#include <errno.h>

enum {
	LOOK_NS = 50 * 1000 * 1000,
	DRAIN_NS = 1000 * 1000,
	TURNS = 64, /* transfers of a priority that one call tries */
};

/* What next to copy: the most urgent first. */
static const enum epf_p2p_priority order[P2P_PRIORITIES] = { EPF_P2P_URGENT, EPF_P2P_NORMAL,
							     EPF_P2P_BACKGROUND };

struct failure {
	const struct conn *conn;
	int status;
};

/* Takes a transfer out of the queue. run.lock held. */
void epf_p2p_dequeue(struct epf_p2p_xfer *x)
{
	struct epf_p2p *ep = x->ep;
	struct epf_p2p_xfer **first = &ep->run.first[x->priority];

	if (!x->is_queued)
		return;
	if (x->next == x) {
		*first = NULL;
	} else {
		x->next->prev = x->prev;
		x->prev->next = x->next;
		if (*first == x)
			*first = x->next;
	}
	x->is_queued = false;
	__atomic_fetch_sub(&ep->run.queued[x->priority], 1u, __ATOMIC_RELAXED);
}

void epf_p2p_enqueue(struct epf_p2p_xfer *x)
{
	struct epf_p2p *ep = x->ep;
	struct epf_p2p_xfer **first = &ep->run.first[x->priority];

	pthread_mutex_lock(&ep->run.lock);
	if (!x->is_queued) {
		x->next = *first ? *first : x;
		x->prev = *first ? (*first)->prev : x;
		x->next->prev = x->prev->next = x;
		*first = *first ? *first : x;
		x->is_queued = true;
		__atomic_fetch_add(&ep->run.queued[x->priority], 1u, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_unlock(&ep->run.lock);
	if (__atomic_load_n(&ep->sleeping, __ATOMIC_SEQ_CST))
		epf_p2p_kick(ep);
}

bool epf_p2p_has_work(struct epf_p2p *ep)
{
	for (unsigned i = 0; i < P2P_PRIORITIES; i++)
		if (__atomic_load_n(&ep->run.queued[order[i]], __ATOMIC_SEQ_CST))
			return true;
	return false;
}

/* Gives up a pin. run.lock held. */
static void unpin(struct epf_p2p *ep, struct epf_p2p_xfer *x)
{
	if (--x->pins == 0)
		pthread_cond_broadcast(&ep->run.idle);
}

/* Whether the queue need not keep a transfer. It may have been posted again since the last look: then its cursor was put back before. */
static bool is_exhausted(const struct epf_p2p_xfer *x)
{
	return __atomic_load_n(&x->state, __ATOMIC_SEQ_CST) != XFER_RUNNING ||
	       EPF_LOAD_ACQUIRE(&x->status) || EPF_LOAD_ACQUIRE(&x->cursor) >> 32 >= x->n_blocks;
}

/* The next transfer of a priority, pinned; they take turns. NULL: none. */
static struct epf_p2p_xfer *take_turn(struct epf_p2p *ep, enum epf_p2p_priority priority)
{
	struct epf_p2p_xfer *x;

	pthread_mutex_lock(&ep->run.lock);
	x = ep->run.first[priority];
	if (x) {
		ep->run.first[priority] = x->next;
		x->pins++;
	}
	pthread_mutex_unlock(&ep->run.lock);
	return x;
}

/* Copies one chunk of a transfer that take_turn() returned. False: it has to wait for room. */
static bool run_one(struct epf_p2p *ep, struct epf_p2p_xfer *x)
{
	bool has = epf_p2p_step(x);

	pthread_mutex_lock(&ep->run.lock);
	if (!has && is_exhausted(x)) {
		epf_p2p_dequeue(x);
		has = true;
	}
	unpin(ep, x);
	pthread_mutex_unlock(&ep->run.lock);
	return has;
}

/* A transfer that waits for room, of a peer that is stopped, say, keeps no other from being copied. */
unsigned epf_p2p_run_some(struct epf_p2p *ep)
{
	bool has = false;

	if (!epf_p2p_has_work(ep))
		return 0;
	for (unsigned i = 0; i < P2P_PRIORITIES && !has; i++) {
		uint32_t n = EPF_LOAD_RELAXED(&ep->run.queued[order[i]]);
		struct epf_p2p_xfer *x;

		for (uint32_t k = 0; k < n && k < TURNS && !has; k++) {
			x = take_turn(ep, order[i]);
			has = x && run_one(ep, x);
		}
	}
	ep->run.is_stalled = !has;
	return has;
}

/* Calls fn for each transfer that `which` selects, each pinned. */
static void for_each(struct epf_p2p *ep, bool (*which)(const struct epf_p2p_xfer *x, void *arg),
		     void (*fn)(struct epf_p2p_xfer *x, void *arg), void *arg)
{
	struct epf_p2p_xfer *x;

	pthread_mutex_lock(&ep->run.lock);
	for (x = ep->run.all; x;) {
		if (which(x, arg)) {
			x->pins++;
			pthread_mutex_unlock(&ep->run.lock);
			fn(x, arg);
			pthread_mutex_lock(&ep->run.lock);
			unpin(ep, x);
		}
		x = x->after;
	}
	pthread_mutex_unlock(&ep->run.lock);
}

static bool is_of_conn(const struct epf_p2p_xfer *x, void *arg)
{
	return x->conn == ((struct failure *)arg)->conn;
}

static void fail_one(struct epf_p2p_xfer *x, void *arg)
{
	epf_p2p_xfer_fail(x, ((struct failure *)arg)->status);
}

void epf_p2p_fail_conn(struct conn *c, int status)
{
	struct failure f = { c, status };

	for_each(c->ep, is_of_conn, fail_one, &f);
}

static bool is_under_way(const struct epf_p2p_xfer *x, void *arg)
{
	uint32_t state = EPF_LOAD_ACQUIRE(&x->state);

	(void)arg;
	return state == XFER_RUNNING || state == XFER_NOTING || state == XFER_DRAINING;
}

static void look_after(struct epf_p2p_xfer *x, void *arg)
{
	if (*(uint64_t *)arg > EPF_LOAD_RELAXED(&x->deadline_ns))
		epf_p2p_xfer_fail(x, -ETIMEDOUT);
	else
		epf_p2p_try_end(x);
}

void epf_p2p_check_deadlines(struct epf_p2p *ep, uint64_t now, uint64_t *next)
{
	if (!EPF_LOAD_RELAXED(&ep->run.active))
		return;
	if (now >= ep->run.next_check_ns) {
		for_each(ep, is_under_way, look_after, &now);
		ep->run.next_check_ns =
			now + (EPF_LOAD_RELAXED(&ep->has_engines) ? DRAIN_NS : LOOK_NS);
	}
	if (ep->run.next_check_ns < *next)
		*next = ep->run.next_check_ns;
}
