/* SPDX-License-Identifier: Apache-2.0 */
/* Connections as users see them: accepting, disconnecting, describing. Slow path. */
#include "fabric/base/clock.h"
#include "fabric/p2p/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { NAP_NS = 50 * 1000 };

static int accept_one(struct epf_p2p *ep, uint64_t timeout_ns, uint64_t *conn)
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

int epf_p2p_accept(struct epf_p2p *ep, uint64_t timeout_ns, uint64_t *conn)
{
	int rc;

	epf_p2p_enter(ep);
	rc = accept_one(ep, timeout_ns, conn);
	epf_p2p_leave(ep);
	return rc;
}

/* Whether the peer copies to or from an export of this endpoint over this connection. */
static bool is_touching(struct conn *c)
{
	struct epf_p2p *ep = c->ep;
	bool is = false;

	if (c->engine)
		return !epf_p2p_engine_is_closed(c);
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
	epf_p2p_kick(ep);
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
	if (c->is_local)
		snprintf(full.path, sizeof(full.path), "local");
	else
		epf_p2p_engine_name(c, full.path, sizeof(full.path));
	full.pid = c->is_local ? c->pid : 0;
	full.state = EPF_LOAD_ACQUIRE(&c->state) == CONN_OPEN ? 0 : c->error;
	full.bytes_read = EPF_LOAD_RELAXED(&c->bytes_read);
	full.bytes_written = EPF_LOAD_RELAXED(&c->bytes_written);
	full.transfers = EPF_LOAD_RELAXED(&c->transfers);
	full.under_way = EPF_LOAD_RELAXED(&c->under_way);
	full.compress = (int32_t)c->compress;
	full.packed_from = EPF_LOAD_RELAXED(&c->packed_from);
	full.packed_to = EPF_LOAD_RELAXED(&c->packed_to);
	memcpy(out, &full, size);
	epf_p2p_conn_put(c);
	return 0;
}
