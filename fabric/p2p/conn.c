/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: finding, ending, describing, and what arrives on their streams. Slow path. */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/p2p/p2p_priv.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SEEN_NS = 1000 * 1000, NAP_NS = 50 * 1000 };

struct conn *epf_p2p_conn_get(struct epf_p2p *ep, uint64_t number)
{
	struct conn *c;

	pthread_mutex_lock(&ep->lock);
	c = epf_p2p_slot_get(&ep->conns, number);
	if (c)
		epf_p2p_conn_ref(c);
	pthread_mutex_unlock(&ep->lock);
	if (!c)
		epf_fail(EPF_R_P2P_STALE, "connection %#llx does not exist",
			 (unsigned long long)number);
	return c;
}

void epf_p2p_conn_ref(struct conn *c)
{
	__atomic_fetch_add(&c->refs, 1u, __ATOMIC_RELAXED);
}

static void unmap(struct conn *c)
{
	if (c->segment)
		munmap(c->segment, sizeof(*c->segment));
	if (c->table)
		munmap((void *)(uintptr_t)c->table, sizeof(*c->table));
	if (c->bell)
		munmap(c->bell, sizeof(*c->bell));
	if (c->pidfd >= 0)
		close(c->pidfd);
}

static void unlink_conn(struct conn *c)
{
	struct epf_p2p *ep = c->ep;
	struct conn **at = &ep->all;

	pthread_mutex_lock(&ep->lock);
	while (*at && *at != c)
		at = &(*at)->next;
	if (*at)
		*at = c->next;
	if (c->is_local && ep->by_bell[c->own_index] == c)
		ep->by_bell[c->own_index] = NULL;
	pthread_mutex_unlock(&ep->lock);
}

void epf_p2p_conn_put(struct conn *c)
{
	if (__atomic_fetch_sub(&c->refs, 1u, __ATOMIC_ACQ_REL) != 1)
		return;
	unlink_conn(c);
	for (unsigned b = 0; b < P2P_BUCKETS; b++)
		while (c->imports[b]) {
			struct import *i = c->imports[b];

			c->imports[b] = i->next;
			epf_p2p_import_put(i);
		}
	epf_p2p_stream_close(&c->stream);
	unmap(c);
	pthread_mutex_destroy(&c->note_lock);
	pthread_mutex_destroy(&c->take_lock);
	free(c);
}

int epf_p2p_conn_error(const struct conn *c)
{
	if (c->error == -ECANCELED)
		return epf_fail(EPF_R_P2P_CANCELLED, "%s: %s", c->label, c->why);
	if (EPF_LOAD_ACQUIRE(&c->state) == CONN_CLOSED)
		return epf_fail(EPF_R_P2P_CLOSED, "%s: %s", c->label, c->why);
	return epf_fail(EPF_R_P2P_LOST, "%s: %s", c->label, c->why);
}

void epf_p2p_conn_end(struct conn *c, enum conn_state state, const char *why)
{
	struct epf_p2p *ep = c->ep;
	struct epf_p2p_event e = { .kind = EPF_P2P_LOST, .conn = c->number };
	bool is_first, is_unowned = false;

	pthread_mutex_lock(&ep->lock);
	is_first = c->state == CONN_OPEN;
	if (is_first) {
		c->error = state == CONN_CLOSED ? -EPIPE : -ECONNRESET;
		snprintf(c->why, sizeof(c->why), "%s", why);
		EPF_STORE_RELEASE(&c->state, (uint32_t)state);
		is_unowned = c->is_passive && !c->was_accepted &&
			     epf_p2p_slot_get(&ep->conns, c->number);
		if (is_unowned)
			epf_p2p_slot_remove(&ep->conns, c->number);
		pthread_cond_broadcast(&ep->changed);
	}
	pthread_mutex_unlock(&ep->lock);
	if (!is_first)
		return;
	epf_info("%s: %s", c->label, why);
	epf_p2p_fail_conn(c, c->error);
	e.status = c->error;
	if (!ep->is_closing)
		epf_p2p_event(ep, &e, NULL);
	epf_p2p_kick(ep); /* the thread lets go of the stream */
	if (is_unowned)
		epf_p2p_conn_put(c);
}

bool epf_p2p_conn_is_alive(struct conn *c)
{
	struct pollfd p = { c->pidfd, POLLIN, 0 };
	uint64_t now;

	if (c->pidfd < 0)
		return true;
	now = epf_now_ns();
	if (now - EPF_LOAD_RELAXED(&c->seen_ns) < SEEN_NS)
		return true;
	if (poll(&p, 1, 0) != 0) {
		epf_p2p_conn_end(c, CONN_LOST, "the process has ended");
		return false;
	}
	EPF_STORE_RELAXED(&c->seen_ns, now);
	return true;
}

static int handle(struct conn *c, const struct received *m)
{
	if (m->type == MSG_IMPORT && m->bytes == sizeof(struct msg_import)) {
		struct msg_import q;

		memcpy(&q, m->data, sizeof(q));
		epf_p2p_answer_import(c, &q);
		return 0;
	}
	if (m->type == MSG_IMPORTED && m->bytes == sizeof(struct msg_imported)) {
		struct msg_imported a;

		memcpy(&a, m->data, sizeof(a));
		epf_p2p_take_answer(c, &a, m->fds[0]);
		return 0;
	}
	if (m->type == MSG_WAKE && m->bytes == 0)
		return 0;
	if (m->type == MSG_BYE && m->bytes == 0)
		return -EPIPE;
	return -EBADMSG;
}

int epf_p2p_control(struct conn *c)
{
	struct received m;
	bool said_bye = false;
	int rc = 0;

	while (!rc && (rc = epf_p2p_receive(&c->stream, &m)) == 1) {
		rc = handle(c, &m);
		said_bye = rc == -EPIPE;
		for (unsigned i = 0; i < STREAM_FDS; i++)
			if (m.fds[i] >= 0 && !(m.type == MSG_IMPORTED && i == 0))
				close(m.fds[i]);
	}
	if (rc >= 0)
		return 0;
	if (said_bye)
		epf_p2p_conn_end(c, CONN_CLOSED, "it has disconnected");
	else if (rc == -EPIPE || rc == -ECONNRESET)
		epf_p2p_conn_end(c, CONN_LOST, "its process or its machine has gone");
	else
		epf_p2p_conn_end(c, CONN_LOST, "it sent something that is no message");
	return rc;
}

int epf_p2p_accept(struct epf_p2p *ep, uint64_t timeout_ns, uint64_t *conn)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns);
	struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	struct conn *c;
	int rc = 0;

	pthread_mutex_lock(&ep->lock);
	for (;;) {
		/* The oldest is last. */
		struct conn *found = NULL;

		for (c = ep->all; c; c = c->next)
			if (c->is_passive && !c->was_accepted && c->state == CONN_OPEN && c->number)
				found = c;
		if (found) {
			found->was_accepted = true;
			*conn = found->number;
			break;
		}
		if (ep->is_closing)
			rc = epf_fail(EPF_R_P2P_CANCELLED, "accept: the endpoint was closed");
		else if (rc == ETIMEDOUT || timeout_ns == EPF_P2P_NOW)
			rc = epf_fail(EPF_R_P2P_TIMEOUT, "accept: no peer has connected");
		if (rc < 0)
			break;
		rc = pthread_cond_timedwait(&ep->changed, &ep->lock, &until);
	}
	pthread_mutex_unlock(&ep->lock);
	return rc < 0 ? rc : 0;
}

/* Whether the peer copies to or from an export of this endpoint over this connection. */
static bool is_touching(struct conn *c)
{
	struct epf_p2p *ep = c->ep;
	bool is = false;

	if (!c->is_local || !epf_p2p_conn_is_alive(c))
		return false;
	pthread_mutex_lock(&ep->lock);
	for (const struct export *e = ep->exports; e && !is; e = e->next)
		is = __atomic_load_n(&c->theirs->inuse[e->key.slot], __ATOMIC_SEQ_CST) !=
		     0; /* W1 */
	pthread_mutex_unlock(&ep->lock);
	return is;
}

static void drop_imports(struct epf_p2p *ep, struct conn *c)
{
	for (unsigned b = 0; b < P2P_BUCKETS; b++)
		for (struct import *i = c->imports[b]; i; i = i->next)
			epf_p2p_slot_remove(&ep->imports, i->number);
}

int epf_p2p_disconnect(struct epf_p2p *ep, uint64_t conn, uint64_t timeout_ns)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns);
	struct timespec nap = { 0, NAP_NS };
	struct conn *c;
	int rc = 0;
	bool was_open;

	pthread_mutex_lock(&ep->lock);
	c = epf_p2p_slot_get(&ep->conns, conn);
	if (!c) {
		pthread_mutex_unlock(&ep->lock);
		return epf_fail(EPF_R_P2P_STALE, "connection %#llx does not exist",
				(unsigned long long)conn);
	}
	epf_p2p_slot_remove(&ep->conns, conn);
	drop_imports(ep, c);
	was_open = c->state == CONN_OPEN;
	if (was_open) {
		c->error = -ECANCELED;
		snprintf(c->why, sizeof(c->why), "this endpoint has disconnected");
		EPF_STORE_RELEASE(&c->state, (uint32_t)CONN_CLOSED);
		if (c->is_local)
			__atomic_store_n(&c->mine->closed, 1u, __ATOMIC_SEQ_CST); /* W1 */
	}
	pthread_cond_broadcast(&ep->changed);
	pthread_mutex_unlock(&ep->lock);
	if (was_open) {
		epf_p2p_fail_conn(c, -ECANCELED);
		(void)epf_p2p_send(&c->stream, MSG_BYE, NULL, 0, NULL, 0);
	}
	while (is_touching(c) && !rc) {
		if (epf_now_ns() >= end)
			rc = epf_fail(
				EPF_R_P2P_TIMEOUT,
				"disconnect: %s still copies to or from memory of this endpoint",
				c->label);
		nanosleep(&nap, NULL);
	}
	epf_p2p_kick(ep);
	epf_p2p_conn_put(c);
	return rc;
}

int epf_p2p_peer(struct epf_p2p *ep, uint64_t conn, struct epf_p2p_peer *out)
{
	struct epf_p2p_peer full = { .size = out->size };
	size_t size = out->size < sizeof(full) ? out->size : sizeof(full);
	struct conn *c = epf_p2p_conn_get(ep, conn);

	if (!c)
		return -ENOENT;
	epf_p2p_meta_show(&c->peer, &full);
	snprintf(full.path, sizeof(full.path), "%s", c->is_local ? "local" : "engine");
	full.pid = c->is_local ? c->pid : 0;
	full.state = EPF_LOAD_ACQUIRE(&c->state) == CONN_OPEN ? 0 : c->error;
	full.bytes_read = EPF_LOAD_RELAXED(&c->bytes_read);
	full.bytes_written = EPF_LOAD_RELAXED(&c->bytes_written);
	full.transfers = EPF_LOAD_RELAXED(&c->transfers);
	full.inflight = EPF_LOAD_RELAXED(&c->inflight);
	memcpy(out, &full, size);
	epf_p2p_conn_put(c);
	return 0;
}
