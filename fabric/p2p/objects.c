/* SPDX-License-Identifier: Apache-2.0 */
/* Regions, imports and connections: references to them, and the end of a connection. Slow path. */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/p2p/gpu.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SEEN_NS = 1000 * 1000 };

void epf_p2p_keys_free(struct engine_key *keys)
{
	while (keys) {
		struct engine_key *k = keys;

		keys = k->next;
		free(k);
	}
}

void epf_p2p_region_put(struct region *r)
{
	if (__atomic_fetch_sub(&r->refs, 1u, __ATOMIC_ACQ_REL) != 1)
		return;
	epf_p2p_keys_free(r->keys);
	epf_p2p_gpu_forget(r->ep, r);
	free(r);
}

void epf_p2p_import_put(struct import *i)
{
	if (__atomic_fetch_sub(&i->refs, 1u, __ATOMIC_ACQ_REL) != 1)
		return;
	if (i->conn && i->conn->import_end)
		i->conn->import_end(i->conn, &i->key);
	epf_p2p_gpu_release(i);
	if (i->map_base)
		munmap(i->map_base, i->map_bytes);
	free(i);
}

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
	if (c->engine)
		c->engine_stop(c);
	if (c->pack)
		c->pack_free(c);
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
		ep->stats.lost += state == CONN_LOST;
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
	e.status = c->error;
	if (!EPF_LOAD_ACQUIRE(&ep->is_closing))
		epf_p2p_event(ep, &e, NULL);
	epf_p2p_kick(ep); /* the thread fails its transfers and lets go of the stream */
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
		EPF_STORE_RELEASE(&c->is_dead, true);
		epf_p2p_conn_end(c, CONN_LOST, "the process has ended");
		return false;
	}
	EPF_STORE_RELAXED(&c->seen_ns, now);
	return true;
}
