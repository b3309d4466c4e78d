/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How connections come and go (net.h). connect() is called again and again, each time with the handle alone, so a connection that is under way is found by
 * the handle's place and contents. The receiver's half is made by the link's thread when the sender's message comes, and waits there for accept().
 */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/net.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "tools/nccl/join.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LAST_FLUSH_NS 5000000000ull

enum {
	RING_SLOTS = 1024
}; /* above 2 commands of 2 slots for each of 256 requests: a push never waits */

static int no_memory(const char *what)
{
	return epf_fail(EPF_R_NO_MEMORY, "nccl: %s", what);
}

static int open_ring(struct epf_comm *c)
{
	struct epf_ring_options o = { .size = sizeof(o), .slots = RING_SLOTS };

	return epf_ring_open(c->link->ep, &o, &c->ring);
}

/* Under the lock. */
static int take_slot(struct epf_link_slot *slots, void *comm, uint32_t *slot)
{
	for (uint32_t i = 0; i < EPF_LINK_SLOTS; i++) {
		if (slots[i].here || slots[i].there)
			continue;
		slots[i] = (struct epf_link_slot){ .comm = comm, .here = true };
		*slot = i;
		return 0;
	}
	return epf_fail(EPF_R_NCCL_LIMIT,
			"nccl: %d connections from one process to another are in use",
			EPF_LINK_SLOTS);
}

int epf_net_listen(void *handle, struct epf_listener **out)
{
	struct epf_listener *l = calloc(1, sizeof(*l));
	struct epf_nccl_handle h = { .kind = EPF_NCCL_HANDLE_NET, .address = epf_plug.address };

	if (!l)
		return no_memory("a listening object");
	TAILQ_INIT(&l->ready);
	memcpy(h.process, epf_plug.self.process, sizeof(h.process));
	memcpy(h.secret, epf_plug.secret, sizeof(h.secret));
	epf_plug_lock();
	l->id = ++epf_plug.listeners_made;
	TAILQ_INSERT_TAIL(&epf_plug.listeners, l, entry);
	epf_plug_unlock();
	h.listener = l->id;
	epf_nccl_handle_write(&h, handle);
	explicit_bzero(&h, sizeof(h));
	*out = l;
	return 0;
}

void epf_net_close_listen(struct epf_listener *listener)
{
	struct epf_recv *r;

	if (!listener)
		return;
	epf_plug_lock();
	TAILQ_REMOVE(&epf_plug.listeners, listener, entry);
	epf_plug_unlock();
	while ((r = TAILQ_FIRST(&listener->ready))) { /* nobody adds any more */
		TAILQ_REMOVE(&listener->ready, r, entry);
		epf_net_close(&r->comm);
	}
	free(listener);
}

int epf_net_accept(struct epf_listener *listener, struct epf_recv **out)
{
	struct epf_recv *r;

	epf_plug_lock();
	r = TAILQ_FIRST(&listener->ready);
	if (r)
		TAILQ_REMOVE(&listener->ready, r, entry);
	epf_plug_unlock();
	*out = r;
	return 0;
}

/* The connection that is under way with this handle, or a new one. Under the lock. */
static struct epf_send *find_send(const void *handle, const struct epf_nccl_handle *h)
{
	struct epf_send *s;

	TAILQ_FOREACH(s, &epf_plug.connecting, entry) {
		if (s->handle_at == handle && s->handle.listener == h->listener &&
		    memcmp(s->handle.process, h->process, sizeof(h->process)) == 0)
			return s;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->comm.kind = EPF_COMM_SEND;
	s->handle_at = handle;
	s->handle = *h;
	s->deadline_ns = epf_now_ns() + epf_plug.conf.bootstrap_timeout_ns;
	TAILQ_INSERT_TAIL(&epf_plug.connecting, s, entry);
	return s;
}

/* The link is up: this end's half, and a message for the other one. */
static int open_send(struct epf_send *s)
{
	struct epf_comm *c = &s->comm;
	int rc = open_ring(c);

	if (rc)
		return rc;
	epf_plug_lock();
	rc = take_slot(c->link->sends, s, &c->slot);
	if (!rc) {
		c->link->sends[c->slot].there = true; /* from now on the other end may use it */
		memset(c->link->control + epf_net_bell_at(c->slot), 0, EPF_NET_BELL_BYTES);
		s->state = c->link->state == EPF_LINK_UP ? EPF_SEND_OPENING : EPF_SEND_AGAIN;
	}
	epf_plug_unlock();
	if (!rc && epf_link_say(c->link, EPF_LINK_OPEN, c->slot, 0, s->handle.listener)) {
		epf_plug_lock();
		s->state = EPF_SEND_AGAIN;
		epf_plug_unlock();
	}
	return rc;
}

/* Frees what a connection holds of its link. */
static void let_go(struct epf_comm *c)
{
	struct epf_link *link;

	epf_ring_close(c->ring);
	c->ring = NULL;
	epf_plug_lock();
	link = c->link;
	c->link = NULL;
	epf_plug_unlock();
	if (link)
		epf_link_unref(link);
}

static enum epf_send_state state_of(const struct epf_send *s)
{
	enum epf_send_state state;

	epf_plug_lock();
	state = s->state;
	epf_plug_unlock();
	return state;
}

static int advance(struct epf_send *s)
{
	enum epf_send_state state = state_of(s);
	int rc = 0;

	if (state == EPF_SEND_AGAIN) {
		let_go(&s->comm);
		state = s->state = EPF_SEND_LINKING; /* it is on no link: nobody else changes it */
	}
	if (state == EPF_SEND_LINKING) {
		rc = epf_link_get(&s->handle, &s->comm.link);
		if (!rc)
			rc = open_send(s);
		if (rc == -EAGAIN)
			rc = 0;
	}
	if (!rc && state == EPF_SEND_FAILED) {
		epf_error_set(&s->why);
		rc = -ECONNRESET;
	}
	if (!rc && state != EPF_SEND_READY && epf_now_ns() > s->deadline_ns)
		rc = epf_fail(EPF_R_NCCL_PEER,
			      "nccl: no connection to the other rank's process within "
			      "bootstrap-timeout");
	return rc;
}

int epf_net_connect(const void *handle, struct epf_send **out)
{
	struct epf_nccl_handle h;
	struct epf_send *s;
	bool over;
	int rc = epf_nccl_handle_read(handle, EPF_NCCL_HANDLE_NET, &h);

	*out = NULL;
	if (rc)
		return rc;
	epf_plug_lock();
	s = find_send(handle, &h);
	epf_plug_unlock();
	explicit_bzero(&h, sizeof(h));
	if (!s)
		return no_memory("a connection");
	rc = advance(s);
	epf_plug_lock();
	over = rc || s->state == EPF_SEND_READY; /* from here on it is this thread's alone */
	if (over)
		TAILQ_REMOVE(&epf_plug.connecting, s, entry);
	epf_plug_unlock();
	if (rc) {
		struct epf_error why;

		epf_error_get(&why);
		epf_net_close(&s->comm);
		epf_error_set(&why);
	} else if (over) {
		*out = s;
	}
	return rc;
}

/* A link that was up may be dialed again; one that could not be made will not be made by trying once more. */
static void link_died(struct epf_link *link)
{
	struct epf_send *s;

	TAILQ_FOREACH(s, &epf_plug.connecting, entry) {
		if (s->comm.link == link && s->state == EPF_SEND_OPENING)
			s->state = EPF_SEND_AGAIN;
		if (link->was_up || !link->dialed || s->state != EPF_SEND_LINKING ||
		    memcmp(s->handle.process, link->peer.process, EPF_NCCL_ID_BYTES) != 0)
			continue;
		s->state = EPF_SEND_FAILED;
		s->why = link->why;
	}
}

static struct epf_listener *find_listener(uint64_t id)
{
	struct epf_listener *l;

	TAILQ_FOREACH(l, &epf_plug.listeners, entry) {
		if (l->id == id)
			return l;
	}
	return NULL;
}

/* The receiver's half. */
static int open_recv(struct epf_link *link, uint32_t peer_slot, struct epf_recv **out)
{
	struct epf_recv *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return no_memory("a connection");
	r->comm = (struct epf_comm){ .kind = EPF_COMM_RECV, .link = link, .peer_slot = peer_slot };
	rc = open_ring(&r->comm);
	epf_plug_lock();
	if (!rc)
		rc = take_slot(link->recvs, r, &r->comm.slot);
	if (!rc) {
		link->recvs[r->comm.slot].there = true;
		epf_link_ref(link);
	}
	epf_plug_unlock();
	if (rc) {
		epf_ring_close(r->comm.ring);
		free(r);
		return rc;
	}
	*out = r;
	return 0;
}

static void opened_by_peer(struct epf_link *link, const struct epf_link_msg *m)
{
	struct epf_listener *l;
	struct epf_recv *r = NULL;
	uint32_t slot;
	int rc = open_recv(link, m->slot, &r);

	if (rc) {
		epf_warn_ratelimited("%s", epf_last_error());
		epf_link_say(link, EPF_LINK_REFUSED, m->slot, 0, 0);
		return;
	}
	slot = r->comm.slot;
	epf_plug_lock();
	l = find_listener(m->value);
	if (l)
		TAILQ_INSERT_TAIL(&l->ready, r, entry);
	else
		link->recvs[slot].there = false;
	epf_plug_unlock();
	if (l) {
		epf_link_say(link, EPF_LINK_OPENED, m->slot, slot, 0);
		return;
	}
	r->comm.peer_slot = EPF_LINK_SLOTS; /* nobody to tell */
	epf_net_close(&r->comm);
	epf_link_say(link, EPF_LINK_REFUSED, m->slot, 0, 0);
}

static void refuse(struct epf_send *s)
{
	epf_link_fail(s->comm.link, "does not listen for this connection any more");
	epf_error_get(&s->why);
	s->state = EPF_SEND_FAILED;
}

static void take_message(struct epf_link *link, const struct epf_link_msg *m)
{
	struct epf_send *s;

	if (m->type == EPF_LINK_OPEN) {
		opened_by_peer(link, m);
		return;
	}
	epf_plug_lock();
	s = link->sends[m->slot].comm;
	switch (m->type) {
	case EPF_LINK_OPENED:
		if (s && s->state == EPF_SEND_OPENING && m->other < EPF_LINK_SLOTS) {
			s->comm.peer_slot = m->other;
			s->state = EPF_SEND_READY;
		}
		break;
	case EPF_LINK_REFUSED:
		link->sends[m->slot].there = false;
		if (s && s->state == EPF_SEND_OPENING)
			refuse(s);
		break;
	case EPF_LINK_RECV_CLOSED:
		link->sends[m->slot].there = false;
		break;
	default: /* EPF_LINK_SEND_CLOSED */
		link->recvs[m->slot].there = false;
		break;
	}
	epf_plug_unlock();
}

const struct epf_link_events epf_net_events = { .message = take_message, .died = link_died };

/* What was pushed is to have its effect before this process may end. */
static void flush(struct epf_comm *c)
{
	int rc = epf_link_is_lost(c->link) ? -ECONNRESET : epf_flush(c->ring, 0, LAST_FLUSH_NS);

	if (rc && rc != -ECONNRESET)
		epf_warn("closing a connection: %s", epf_last_error());
}

void epf_net_close(struct epf_comm *c)
{
	bool is_send;
	bool knows;

	if (!c)
		return;
	is_send = c->kind == EPF_COMM_SEND;
	knows = !is_send || ((struct epf_send *)(void *)c)->state == EPF_SEND_READY;
	if (c->ring && c->link) {
		struct epf_link_slot *slots = is_send ? c->link->sends : c->link->recvs;
		bool mine;

		if (knows)
			flush(c);
		epf_ring_close(c->ring);
		c->ring = NULL;
		epf_plug_lock();
		mine = slots[c->slot].comm == c;
		if (mine)
			slots[c->slot].comm = NULL;
		if (mine)
			slots[c->slot].here = false;
		epf_plug_unlock();
		if (knows && c->peer_slot < EPF_LINK_SLOTS && !epf_link_is_lost(c->link))
			epf_link_say(c->link, is_send ? EPF_LINK_SEND_CLOSED : EPF_LINK_RECV_CLOSED,
				     c->peer_slot, 0, 0);
	}
	let_go(c);
	free(c);
}
