/* SPDX-License-Identifier: Apache-2.0 */
/* Taking events: by who polls, which also serves connections, and by who waits. */
#include "fabric/base/clock.h"
#include "fabric/p2p/p2p_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

enum {
	SOCKETS = 64,
	SPIN_NS = 20 * 1000, /* how long a wait polls before it sleeps */
	LOOKS = 8,           /* polls of a wait between two looks at the sockets */
};

void epf_p2p_serve_conns(struct epf_p2p *ep, const struct epoll_event *ev, int n)
{
	for (int i = 0; i < n; i++) {
		struct conn *c = ev[i].data.ptr;

		if (!c || ev[i].data.ptr == &ep->kick)
			continue;
		(void)epf_p2p_flush(&c->stream);
		(void)epf_p2p_control(c);
	}
}

/*
 * Takes what connections over NICs have sent, if the endpoint's thread sleeps: that would be woken for it, and then wake the caller. On one machine
 * notifications come through memory.
 */
static void serve(struct epf_p2p *ep)
{
	struct epoll_event ev[SOCKETS];

	if (!EPF_LOAD_RELAXED(&ep->has_engines) || pthread_mutex_trylock(&ep->serving))
		return;
	epf_p2p_serve_conns(ep, ev, epoll_wait(ep->epoll, ev, SOCKETS, 0));
	pthread_mutex_unlock(&ep->serving);
}

int epf_p2p_events(struct epf_p2p *ep, struct epf_p2p_event *events, size_t max)
{
	size_t n = 0;
	bool was_full;

	__atomic_fetch_add(&ep->polls, 1u, __ATOMIC_RELAXED);
	epf_p2p_drain(ep);
	if (!EPF_LOAD_ACQUIRE(&ep->events.count))
		serve(ep);
	if (!EPF_LOAD_ACQUIRE(&ep->events.count))
		return 0;
	pthread_mutex_lock(&ep->events.lock);
	was_full = ep->events.notes >= EPF_P2P_UNREAD;
	while (n < max && n < INT32_MAX) {
		struct event *ev = epf_p2p_pop(ep);

		if (!ev)
			break;
		events[n++] = ev->e;
		free(ev);
	}
	pthread_mutex_unlock(&ep->events.lock);
	if (was_full)
		epf_p2p_kick(ep);
	return (int)n;
}

static int wait_event(struct epf_p2p *ep, uint64_t timeout_ns)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns), start = epf_now_ns();
	struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	int rc = 0;

	for (unsigned i = 0;; i++) {
		if (EPF_LOAD_ACQUIRE(&ep->events.count))
			return 0;
		__atomic_fetch_add(&ep->polls, 1u, __ATOMIC_RELAXED);
		epf_p2p_drain(ep);
		if (i % LOOKS == 0)
			serve(ep);
		if (EPF_LOAD_ACQUIRE(&ep->events.count))
			return 0;
		if (i % 64 == 63 && epf_now_ns() - start > SPIN_NS)
			break;
		EPF_CPU_PAUSE();
	}
	/* From here on peers must wake the endpoint's thread, which wakes this one. */
	__atomic_fetch_add(&ep->events.sleepers, 1u, __ATOMIC_SEQ_CST);
	__atomic_store_n(&ep->bell->armed, 1u, __ATOMIC_SEQ_CST); /* N1 */
	if (epf_p2p_is_pending(ep))
		epf_p2p_drain(ep);
	pthread_mutex_lock(&ep->events.lock);
	while (!ep->events.first && !rc)
		rc = EPF_LOAD_ACQUIRE(&ep->is_closing)
			     ? ECANCELED
			     : pthread_cond_timedwait(&ep->events.arrived, &ep->events.lock,
						      &until);
	if (ep->events.first)
		rc = 0;
	pthread_mutex_unlock(&ep->events.lock);
	__atomic_fetch_sub(&ep->events.sleepers, 1u, __ATOMIC_RELAXED);
	if (rc && EPF_LOAD_ACQUIRE(&ep->is_closing))
		return epf_fail(EPF_R_P2P_CANCELLED, "wait: the endpoint was closed");
	return rc ? epf_fail(EPF_R_P2P_TIMEOUT, "wait: no event") : 0;
}

int epf_p2p_wait_event(struct epf_p2p *ep, uint64_t timeout_ns)
{
	int rc;

	epf_p2p_enter(ep);
	rc = wait_event(ep, timeout_ns);
	epf_p2p_leave(ep);
	return rc;
}
