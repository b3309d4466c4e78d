/* SPDX-License-Identifier: Apache-2.0 */
/* Incoming connections until they are proven: the accepting end of the handshake (wire.h), on the endpoint's thread. Slow path. */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/p2p/engine.h"

#include "bootstrap/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { GUESTS_MAX = 1024 };

static const uint64_t handshake_ns = 10000000000ull;

void epf_p2p_guest_free(struct epf_p2p *ep, struct guest *g)
{
	struct guest **at = &ep->guests;

	while (*at && *at != g)
		at = &(*at)->next;
	if (*at) {
		*at = g->next;
		ep->n_guests--;
	}
	epf_p2p_stream_close(&g->stream);
	free(g);
}

static void invite(struct epf_p2p *ep, int fd, bool is_local)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL };
	struct guest *g = calloc(1, sizeof(*g));
	struct ucred who = { 0 };
	socklen_t len = sizeof(who);

	if (!g || epoll_ctl(ep->epoll, EPOLL_CTL_ADD, fd, &e)) {
		free(g);
		close(fd);
		return;
	}
	if (is_local)
		(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len);
	else
		epf_p2p_tune(fd);
	g->pid = who.pid;
	epf_p2p_stream_init(&g->stream, fd, is_local, true);
	g->deadline_ns = epf_now_ns() + handshake_ns;
	g->next = ep->guests;
	ep->guests = g;
	ep->n_guests++;
}

void epf_p2p_guest_new(struct epf_p2p *ep, int listener)
{
	int fd;

	while (ep->n_guests < GUESTS_MAX &&
	       (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		invite(ep, fd, listener == ep->listen_unix);
	if (ep->n_guests < GUESTS_MAX && (errno == EMFILE || errno == ENFILE))
		epf_warn_ratelimited("no descriptor is left for a connection: raise ulimit -n");
}

/* What somebody is told who knows an address only. The key goes to programs of this machine alone. */
static int answer_query(struct epf_p2p *ep, struct guest *g)
{
	struct metadata meta = ep->meta;
	struct epf_net_addr from = { .len = sizeof(from.any) };
	bool is_near = g->stream.is_local;

	if (!is_near && getpeername(g->stream.fd, &from.sa, &from.len) == 0)
		is_near = epf_net_is_loopback(&from);
	if (!is_near && meta.flags & META_HAS_KEY) {
		memset(meta.key, 0, sizeof(meta.key));
		meta.flags &= ~(uint32_t)META_HAS_KEY;
	}
	epf_p2p_meta_seal(&meta);
	return epf_p2p_send(&g->stream, MSG_META, &meta, sizeof(meta), NULL, 0);
}

static int take_hello(struct epf_p2p *ep, struct guest *g, const struct received *m)
{
	uint8_t key[EPF_AUTH_KEY_BYTES];
	struct metadata meta;
	int rc;

	if (m->bytes != sizeof(g->theirs))
		return -EBADMSG;
	memcpy(&g->theirs, m->data, sizeof(g->theirs));
	rc = epf_p2p_meta_read(&g->theirs.meta, sizeof(g->theirs.meta), &meta);
	if (rc || g->theirs.is_local != g->stream.is_local)
		return -EBADMSG;
	epf_p2p_hello_make(ep, g->stream.is_local, &g->ours);
	epf_p2p_session(ep, NULL, &g->theirs, &g->ours, key);
	epf_p2p_proof(key, true, &g->theirs, &g->ours, g->ours.proof);
	explicit_bzero(key, sizeof(key));
	g->has_hello = true;
	return epf_p2p_send(&g->stream, MSG_HELLO, &g->ours, sizeof(g->ours), NULL, 0);
}

static int share(struct epf_p2p *ep, struct guest *g, struct conn *c, const struct received *m,
		 const struct msg_join *join, struct msg_ready *ready)
{
	int rc = epf_p2p_conn_share(c, m->fds[0], m->fds[1], m->fds[2], g->pid);

	if (rc)
		return rc;
	c->bell_index = join->bell_index;
	if (c->bell_index >= P2P_LOCAL_CONNS)
		return -EBADMSG;
	ready->can_copy = (uint32_t)epf_p2p_can_copy(g->pid, &join->probe);
	ready->probe.addr = (uint64_t)(uintptr_t)ep->probe_token;
	memcpy(ready->probe.token, ep->probe_token, sizeof(ready->probe.token));
	return 0;
}

/* The peer has proven itself: makes the connection. */
static int let_in(struct epf_p2p *ep, struct guest *g, const struct received *m, const uint8_t *key)
{
	struct msg_join join;
	struct msg_ready ready = { 0 };
	struct conn *c;
	int rc = epf_p2p_conn_make(ep, &g->theirs.meta, g->stream.is_local, true, &c);

	if (rc)
		return rc;
	memcpy(&join, m->data, sizeof(join));
	epf_p2p_conn_agree(c, &g->theirs, &g->ours);
	if (c->is_local)
		rc = share(ep, g, c, m, &join, &ready);
	else
		epf_p2p_numbers_new(c);
	if (c->compress)
		rc = epf_p2p_pack_new(c);
	pthread_mutex_lock(&ep->lock);
	if (!rc && ep->is_closing)
		rc = -ECONNREFUSED;
	if (!rc && c->is_local)
		rc = epf_p2p_bell_index(ep, c);
	if (!rc)
		rc = epf_p2p_slot_add(&ep->conns, c, &c->number);
	pthread_mutex_unlock(&ep->lock);
	ready.status = rc;
	ready.bell_index = c->own_index;
	epf_p2p_stream_seal(&g->stream, key);
	if (rc) {
		(void)epf_p2p_send(&g->stream, MSG_READY, &ready, sizeof(ready), NULL, 0);
		epf_p2p_conn_discard(c);
		return rc;
	}
	epoll_ctl(ep->epoll, EPOLL_CTL_DEL, g->stream.fd, NULL);
	c->stream = g->stream; /* nobody else uses the lock in it yet */
	pthread_mutex_init(&c->stream.lock, NULL);
	g->stream = (struct stream){ .fd = -1 };
	pthread_mutex_init(&g->stream.lock, NULL);
	/* Before its engine's thread sends the first BOOT. */
	rc = epf_p2p_send(&c->stream, MSG_READY, &ready, sizeof(ready),
			  (int[]){ ep->table_fd, ep->bell_fd }, c->is_local ? 2 : 0);
	if (!c->is_local && epf_p2p_engine_start(c, key)) {
		pthread_mutex_lock(&ep->lock);
		epf_p2p_slot_remove(&ep->conns, c->number);
		pthread_mutex_unlock(&ep->lock);
		epf_p2p_conn_discard(c);
		return -ENOMEM;
	}
	if (!c->is_local)
		EPF_STORE_RELAXED(&ep->has_engines, true);
	pthread_mutex_lock(&ep->lock);
	epf_p2p_conn_publish(c, true);
	pthread_mutex_unlock(&ep->lock);
	if (rc)
		epf_p2p_conn_end(c, CONN_LOST, "it has gone during the handshake");
	return -EALREADY; /* the guest is no guest any more */
}

static int take_join(struct epf_p2p *ep, struct guest *g, const struct received *m)
{
	uint8_t key[EPF_AUTH_KEY_BYTES], proof[EPF_AUTH_HASH_BYTES];
	struct msg_join join;
	int rc;

	if (m->bytes != sizeof(join))
		return -EBADMSG;
	memcpy(&join, m->data, sizeof(join));
	epf_p2p_session(ep, NULL, &g->theirs, &g->ours, key);
	epf_p2p_proof(key, false, &g->theirs, &g->ours, proof);
	if (epf_auth_equal(proof, join.proof)) {
		rc = let_in(ep, g, m, key);
	} else {
		epf_warn_ratelimited("%s does not prove the key and is refused",
				     g->theirs.meta.name);
		rc = -EACCES;
	}
	explicit_bzero(key, sizeof(key));
	return rc;
}

static int serve(struct epf_p2p *ep, struct guest *g)
{
	struct received m;
	int rc;

	while ((rc = epf_p2p_receive(&g->stream, &m)) == 1) {
		if (m.type == MSG_QUERY && !g->has_hello)
			rc = answer_query(ep, g);
		else if (m.type == MSG_HELLO && !g->has_hello)
			rc = take_hello(ep, g, &m);
		else if (m.type == MSG_JOIN && g->has_hello)
			rc = take_join(ep, g, &m);
		else
			rc = -EBADMSG;
		for (unsigned i = 0; i < STREAM_FDS; i++)
			if (m.fds[i] >= 0)
				close(m.fds[i]);
		if (rc)
			return rc;
	}
	if (!rc && epf_now_ns() > g->deadline_ns)
		rc = -ETIMEDOUT;
	return rc ? rc : epf_p2p_flush(&g->stream) < 0 ? -ECONNRESET : 0;
}

void epf_p2p_guests_serve(struct epf_p2p *ep)
{
	struct guest *g = ep->guests;

	while (g) {
		struct guest *next = g->next;

		if (serve(ep, g))
			epf_p2p_guest_free(ep, g);
		g = next;
	}
}
