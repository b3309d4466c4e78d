/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The endpoint's one thread: connections that come and go, questions of peers, expiries and deadlines, notifications for who does not poll, and
 * chunks of transfers that nobody else copies. It holds ep->serving unless it sleeps.
 */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/p2p/engine.h"
#include "fabric/p2p/gpu.h"

#include <errno.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum {
	EVENTS = 64,
	LONGEST_NS = 1000 * 1000 * 1000,
	LEASE_NS = 10 * 1000 * 1000, /* how long who has polled for events is taken to go on */
	STALL_NS = 1000 * 1000,      /* how long transfers wait for room in the ring of an engine */
	GPU_REST_NS = 20 * 1000,     /* between two polls of a GPU's copies */
	CHUNKS = 16,                 /* copied between two looks at the sockets */
};

/* An ended connection that the thread has not let go of: of one over NICs the engine is closed first. ep->lock held. */
static struct conn *find_ended(struct epf_p2p *ep)
{
	struct conn *c;

	for (c = ep->all; c; c = c->next)
		if (!c->is_reaped && c->state != CONN_OPEN &&
		    (!c->engine || !c->is_left || epf_p2p_engine_is_closed(c)))
			return c;
	return NULL;
}

/* Fails the transfers of connections that have ended, and lets go of their streams. */
static void reap(struct epf_p2p *ep)
{
	struct conn *c;

	for (;;) {
		pthread_mutex_lock(&ep->lock);
		c = find_ended(ep);
		if (c && c->engine && !c->is_left) {
			c->is_left = true;
			pthread_mutex_unlock(&ep->lock);
			if (c->is_watched)
				epoll_ctl(ep->epoll, EPOLL_CTL_DEL, c->stream.fd, NULL);
			(void)epf_p2p_flush(&c->stream);
			shutdown(c->stream.fd, SHUT_RDWR);
			epf_p2p_engine_leave(c);
			epf_p2p_pack_end(c, false);
			epf_p2p_fail_conn(c, c->error);
			continue;
		}
		if (c) {
			c->is_reaped = true;
			epf_p2p_stats_remove(c);
		}
		pthread_mutex_unlock(&ep->lock);
		if (!c)
			return;
		epf_p2p_pack_end(c, true);
		epf_p2p_fail_conn(c, c->error);
		(void)epf_p2p_flush(&c->stream);
		if (c->is_watched && !c->engine)
			epoll_ctl(ep->epoll, EPOLL_CTL_DEL, c->stream.fd, NULL);
		shutdown(c->stream.fd, SHUT_RDWR);
		epf_p2p_conn_put(c);
	}
}

/*
 * Watches the sockets of new connections. What follows the handshake may have come together with its end: then the socket reports nothing
 * more, so each is looked at once.
 */
static void watch(struct epf_p2p *ep)
{
	for (;;) {
		struct epoll_event e = { .events = EPOLLIN };
		struct conn *c;

		pthread_mutex_lock(&ep->lock);
		for (c = ep->has_new ? ep->all : NULL; c && (c->is_watched || c->is_reaped);
		     c = c->next)
			;
		if (!c)
			ep->has_new = false;
		else
			c->is_watched = true;
		pthread_mutex_unlock(&ep->lock);
		if (!c)
			return;
		e.data.ptr = c;
		if (epoll_ctl(ep->epoll, EPOLL_CTL_ADD, c->stream.fd, &e))
			epf_p2p_conn_end(c, CONN_LOST, "its socket cannot be watched");
		else
			(void)epf_p2p_control(c);
	}
}

static bool serve_sockets(struct epf_p2p *ep, uint64_t wait_ns)
{
	struct epoll_event ev[EVENTS];
	int ms = wait_ns ? (int)((wait_ns + 999999) / 1000000) : 0, n;
	uint64_t count;

	if (ms)
		pthread_mutex_unlock(&ep->serving);
	n = epoll_wait(ep->epoll, ev, EVENTS, ms);
	if (ms)
		pthread_mutex_lock(&ep->serving);
	EPF_STORE_RELAXED(&ep->sleeping, 0u);
	__atomic_store_n(&ep->bell->armed, 0u, __ATOMIC_RELAXED);
	for (int i = 0; i < n; i++) {
		if (ev[i].data.ptr == &ep->kick)
			(void)!read(ep->kick, &count, sizeof(count));
		if (ev[i].data.ptr)
			continue;
		epf_p2p_guest_new(ep, ep->listen_unix);
		epf_p2p_guest_new(ep, ep->listen_tcp);
	}
	epf_p2p_serve_conns(ep, ev, n);
	return n > 0;
}

/* Whether peers must wake this thread for notifications: not while somebody polls for them anyway. */
static bool must_arm(struct epf_p2p *ep)
{
	uint64_t polls = EPF_LOAD_RELAXED(&ep->polls);
	bool is_polled = polls != ep->last_polls;

	ep->last_polls = polls;
	return !is_polled || __atomic_load_n(&ep->events.sleepers, __ATOMIC_SEQ_CST) ||
	       EPF_LOAD_RELAXED(&ep->events.fd) >= 0 || EPF_LOAD_RELAXED(&ep->events.fn);
}

static uint64_t timers(struct epf_p2p *ep, uint64_t now)
{
	uint64_t next = now + LONGEST_NS;

	epf_p2p_export_expire(ep, now, &next);
	epf_p2p_check_deadlines(ep, now, &next);
	epf_p2p_guests_serve(ep);
	epf_p2p_stats_tick(ep, now, &next);
	if (ep->n_guests && next > now + LEASE_NS)
		next = now + LEASE_NS;
	return next;
}

static void sleep_or_serve(struct epf_p2p *ep, uint64_t next, bool is_packing)
{
	uint64_t now = epf_now_ns(), wait = next > now ? next - now : 0;
	bool naps = !must_arm(ep);

	if (!naps)
		__atomic_store_n(&ep->bell->armed, 1u, __ATOMIC_SEQ_CST); /* N1 */
	else if (wait > LEASE_NS)
		wait = LEASE_NS;
	EPF_STORE_RELEASE(&ep->naps, naps);
	__atomic_store_n(&ep->sleeping, 1u, __ATOMIC_SEQ_CST); /* N1 */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if ((EPF_LOAD_RELAXED(&ep->bell->armed) && epf_p2p_is_pending(ep)) ||
	    EPF_LOAD_ACQUIRE(&ep->stop))
		wait = 0;
	/* Posted since the timers were looked at, by a thread that relied on a nap. */
	if (wait > LEASE_NS && EPF_LOAD_RELAXED(&ep->has_engines) &&
	    EPF_LOAD_RELAXED(&ep->run.active))
		wait = LEASE_NS;
	if (epf_p2p_gpu_is_busy(ep) ||
	    is_packing) { /* no descriptor reports a GPU's copies, or what a NIC has put */
		wait = 0;
		pthread_mutex_unlock(&ep->serving);
		nanosleep(&(struct timespec){ 0, GPU_REST_NS }, NULL);
		pthread_mutex_lock(&ep->serving);
	} else if (epf_p2p_has_work(ep))
		wait = ep->run.is_stalled && wait > STALL_NS ? STALL_NS : 0;
	(void)serve_sockets(ep, wait);
}

void *epf_p2p_thread(void *arg)
{
	struct epf_p2p *ep = arg;

	pthread_setname_np(pthread_self(), "epf-p2p");
	pthread_mutex_lock(&ep->serving);
	while (!EPF_LOAD_ACQUIRE(&ep->stop)) {
		uint64_t next;
		unsigned done = 0;
		bool is_packing;

		for (unsigned i = 0; i < CHUNKS && epf_p2p_run_some(ep); i++)
			done++;
		epf_p2p_gpu_poll(ep);
		is_packing = epf_p2p_pack_poll_all(ep);
		next = timers(ep, epf_now_ns());
		watch(ep);
		reap(ep);
		if (done)
			(void)serve_sockets(ep, 0);
		else
			sleep_or_serve(ep, next, is_packing);
		epf_p2p_drain(ep);
		epf_p2p_dispatch(ep);
	}
	reap(ep);
	pthread_mutex_unlock(&ep->serving);
	return NULL;
}
