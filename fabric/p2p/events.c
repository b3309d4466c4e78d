/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of events: appending, the descriptor, the callback. */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/log.h"
#include "fabric/p2p/p2p_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Appends to the queue; the notification's bytes become the event's. events.lock not held. */
void epf_p2p_append(struct epf_p2p *ep, struct event *ev)
{
	uint64_t one = 1;

	pthread_mutex_lock(&ep->events.lock);
	ev->next = NULL;
	if (ep->events.last)
		ep->events.last->next = ev;
	else
		ep->events.first = ev;
	ep->events.last = ev;
	EPF_STORE_RELAXED(&ep->events.notes, ep->events.notes + (ev->e.kind == EPF_P2P_NOTE));
	EPF_STORE_RELEASE(&ep->events.count, ep->events.count + 1);
	if (ep->events.fd >= 0 && !ep->events.fd_is_set) {
		ep->events.fd_is_set = true;
		(void)!write(ep->events.fd, &one, sizeof(one));
	}
	pthread_cond_broadcast(&ep->events.arrived);
	pthread_mutex_unlock(&ep->events.lock);
	if (EPF_LOAD_RELAXED(&ep->events.fn) && !pthread_equal(pthread_self(), ep->thread))
		epf_p2p_kick(ep);
}

void epf_p2p_event(struct epf_p2p *ep, const struct epf_p2p_event *e, const void *data)
{
	struct event *ev = calloc(1, sizeof(*ev));

	if (ev)
		ev->e = *e;
	if (ev && e->bytes) {
		ev->e.data = malloc(e->bytes);
		if (ev->e.data)
			memcpy(ev->e.data, data, e->bytes);
	}
	if (!ev || (e->bytes && !ev->e.data)) {
		free(ev);
		epf_warn_ratelimited("an event is lost: no memory");
		return;
	}
	epf_p2p_append(ep, ev);
}

/* Takes the oldest event. events.lock held. */
struct event *epf_p2p_pop(struct epf_p2p *ep)
{
	struct event *ev = ep->events.first;
	uint64_t count;

	if (!ev)
		return NULL;
	ep->events.first = ev->next;
	if (!ev->next)
		ep->events.last = NULL;
	EPF_STORE_RELAXED(&ep->events.notes, ep->events.notes - (ev->e.kind == EPF_P2P_NOTE));
	EPF_STORE_RELEASE(&ep->events.count, ep->events.count - 1);
	if (!ev->next && ep->events.fd_is_set) {
		ep->events.fd_is_set = false;
		(void)!read(ep->events.fd, &count, sizeof(count));
	}
	return ev;
}

void epf_p2p_event_free(struct epf_p2p_event *event)
{
	free(event->data);
	event->data = NULL;
	event->bytes = 0;
}

int epf_p2p_fd(struct epf_p2p *ep)
{
	uint64_t one = 1;
	int fd;

	pthread_mutex_lock(&ep->events.lock);
	if (ep->events.fd < 0)
		ep->events.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fd = ep->events.fd;
	if (fd >= 0 && ep->events.first && !ep->events.fd_is_set) {
		ep->events.fd_is_set = true;
		(void)!write(fd, &one, sizeof(one));
	}
	pthread_mutex_unlock(&ep->events.lock);
	epf_p2p_kick(ep);
	return fd >= 0 ? fd : epf_fail_sys(EPF_R_SYSTEM, errno, "p2p: eventfd");
}

int epf_p2p_on_event(struct epf_p2p *ep, void (*fn)(void *arg, const struct epf_p2p_event *event),
		     void *arg)
{
	pthread_mutex_lock(&ep->events.lock);
	EPF_STORE_RELAXED(&ep->events.fn, fn);
	ep->events.arg = arg;
	while (ep->events.in_fn && !pthread_equal(pthread_self(), ep->thread))
		pthread_cond_wait(&ep->events.arrived, &ep->events.lock);
	pthread_mutex_unlock(&ep->events.lock);
	epf_p2p_kick(ep);
	return 0;
}

void epf_p2p_dispatch(struct epf_p2p *ep)
{
	if (!EPF_LOAD_RELAXED(&ep->events.fn))
		return;
	pthread_mutex_lock(&ep->events.lock);
	while (ep->events.fn && ep->events.first) {
		void (*fn)(void *arg, const struct epf_p2p_event *event) = ep->events.fn;
		void *fn_arg = ep->events.arg;
		struct event *ev = epf_p2p_pop(ep);

		ep->events.in_fn = true;
		pthread_mutex_unlock(&ep->events.lock);
		fn(fn_arg, &ev->e);
		epf_p2p_event_free(&ev->e);
		free(ev);
		pthread_mutex_lock(&ep->events.lock);
		ep->events.in_fn = false;
		pthread_cond_broadcast(&ep->events.arrived);
	}
	pthread_mutex_unlock(&ep->events.lock);
}
