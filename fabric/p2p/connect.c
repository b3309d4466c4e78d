/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting to a peer: the connecting end of the handshake (wire.h), on the caller's thread. Slow path. */
#include "fabric/base/clock.h"
#include "fabric/p2p/engine.h"

#include "bootstrap/net.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Waits until a socket that connects has; 0 or the errno. */
static int wait_connected(int fd, uint64_t end)
{
	struct pollfd p = { fd, POLLOUT, 0 };
	uint64_t now = epf_now_ns();
	socklen_t len = sizeof(int);
	int err = 0;

	while (now < end && poll(&p, 1, (int)((end - now) / 1000000 + 1)) == 0)
		now = epf_now_ns();
	if (!(p.revents & (POLLOUT | POLLERR | POLLHUP)))
		return ETIMEDOUT;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) ? errno : err;
}

static int dial(const struct sockaddr *a, socklen_t len, uint64_t end, int *out)
{
	int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int err = fd < 0 ? errno : 0;

	while (!err && connect(fd, a, len)) {
		struct timespec nap = { 0, 1000000 };

		err = errno == EINPROGRESS ? wait_connected(fd, end) : errno;
		if (err != EAGAIN || epf_now_ns() >= end)
			break;
		err = 0; /* a Unix socket whose queue is full: many connect at once */
		nanosleep(&nap, NULL);
	}
	if (err) {
		if (fd >= 0)
			close(fd);
		return -err;
	}
	*out = fd;
	return 0;
}

static int dial_tcp(const char *host, uint16_t port, uint64_t end, int *out)
{
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	size_t count;
	int rc = epf_net_resolve(host, port, at, &count);

	if (rc)
		return rc;
	for (size_t i = 0; i < count; i++) {
		rc = dial(&at[i].sa, at[i].len, end, out);
		if (!rc) {
			epf_p2p_tune(*out);
			return 0;
		}
	}
	if (rc == -ETIMEDOUT)
		return epf_fail(EPF_R_P2P_TIMEOUT, "connect: no answer from %s port %u", host,
				port);
	return epf_fail_sys(EPF_R_P2P_CONNECT, -rc, "connect: %s port %u", host, port);
}

/* The next message of the handshake must be that one. */
static int expect(const struct conn *c, struct stream *s, uint64_t end, enum message type,
		  size_t bytes, struct received *out)
{
	int rc = epf_p2p_receive_wait(s, end, out);

	if (rc == 1 && out->type == type && out->bytes == bytes)
		return 0;
	if (rc == -ETIMEDOUT)
		return epf_fail(EPF_R_P2P_TIMEOUT, "connect: %s did not answer in time", c->label);
	if (rc == -EPIPE || rc == -ECONNRESET)
		return epf_fail(
			c->is_proven ? EPF_R_P2P_KEY : EPF_R_P2P_CONNECT,
			c->is_proven
				? "connect: %s has refused this endpoint's key"
				: "connect: %s has ended the connection in the handshake: it is closing, or has too many",
			c->label);
	return epf_fail(EPF_R_P2P_METADATA, "connect: %s sent something else than the handshake",
			c->label);
}

static int greet(struct epf_p2p *ep, struct conn *c, uint64_t end, const struct metadata *meta,
		 struct msg_join *join, uint8_t key[EPF_AUTH_KEY_BYTES])
{
	struct msg_hello ours, theirs;
	struct received m = { 0 };
	uint8_t proof[EPF_AUTH_HASH_BYTES];
	int rc;

	epf_p2p_hello_make(ep, c->is_local, &ours);
	if (epf_p2p_send(&c->stream, MSG_HELLO, &ours, sizeof(ours), NULL, 0))
		return epf_fail(EPF_R_P2P_CONNECT, "connect: %s has gone", c->label);
	rc = expect(c, &c->stream, end, MSG_HELLO, sizeof(theirs), &m);
	if (rc)
		return rc;
	memcpy(&theirs, m.data, sizeof(theirs));
	if (memcmp(theirs.meta.id, meta->id, sizeof(meta->id)) != 0)
		return epf_fail(EPF_R_P2P_CONNECT,
				"connect: another endpoint answers there than %s", c->label);
	epf_p2p_session(ep, meta, &ours, &theirs, key);
	epf_p2p_proof(key, true, &ours, &theirs, proof);
	if (!epf_auth_equal(proof, theirs.proof))
		return epf_fail(EPF_R_P2P_KEY, "connect: %s does not prove the key", c->label);
	epf_p2p_proof(key, false, &ours, &theirs, join->proof);
	c->is_proven = true;
	epf_p2p_conn_agree(c, &ours, &theirs);
	return 0;
}

/* Joins: on one machine with the descriptors of what both share. */
static int join_peer(struct epf_p2p *ep, struct conn *c, uint64_t end, struct msg_join *join,
		     const uint8_t *key, struct msg_ready *ready)
{
	int fds[3] = { -1, ep->table_fd, ep->bell_fd };
	struct ucred who = { 0 };
	socklen_t len = sizeof(who);
	struct received m = { 0 };
	int rc = 0;

	if (c->is_local) {
		join->probe.addr = (uint64_t)(uintptr_t)ep->probe_token;
		memcpy(join->probe.token, ep->probe_token, sizeof(join->probe.token));
		join->bell_index = c->own_index;
		rc = epf_p2p_new_memfd("epf-p2p-connection", sizeof(struct segment), &fds[0]);
		if (!rc && getsockopt(c->stream.fd, SOL_SOCKET, SO_PEERCRED, &who, &len))
			rc = epf_fail_sys(EPF_R_SYSTEM, errno, "connect: SO_PEERCRED");
	}
	if (!rc &&
	    epf_p2p_send(&c->stream, MSG_JOIN, join, sizeof(*join), fds, c->is_local ? 3 : 0))
		rc = epf_fail(EPF_R_P2P_CONNECT, "connect: %s has gone", c->label);
	epf_p2p_stream_seal(&c->stream, key);
	if (!rc)
		rc = expect(c, &c->stream, end, MSG_READY, sizeof(*ready), &m);
	if (!rc) {
		memcpy(ready, m.data, sizeof(*ready));
		if (ready->status)
			rc = epf_fail_sys(EPF_R_P2P_CONNECT, -ready->status, "connect: %s refuses",
					  c->label);
		else if (c->is_local)
			rc = epf_p2p_conn_share(c, fds[0], m.fds[0], m.fds[1], who.pid);
		c->bell_index = ready->bell_index;
		if (!rc && c->bell_index >= P2P_LOCAL_CONNS)
			rc = epf_fail(EPF_R_P2P_METADATA, "connect: %s sent nonsense", c->label);
		for (unsigned i = 0; i < STREAM_FDS; i++)
			if (m.fds[i] >= 0)
				close(m.fds[i]);
	}
	if (fds[0] >= 0)
		close(fds[0]);
	if (!rc && c->is_local && !(ready->can_copy && epf_p2p_can_copy(who.pid, &ready->probe)))
		rc = epf_fail(
			EPF_R_P2P_FORBIDDEN,
			"connect: %s is on this machine, and the kernel forbids copies between the two",
			c->label);
	return rc;
}

/* The whole handshake over a connected socket. */
static int meet(struct epf_p2p *ep, const struct metadata *meta, int fd, bool is_local,
		uint64_t end, struct conn **out)
{
	struct msg_join join = { .can_copy = 2 };
	struct msg_ready ready = { 0 };
	uint8_t key[EPF_AUTH_KEY_BYTES] = { 0 };
	struct conn *c;
	int rc = epf_p2p_conn_make(ep, meta, is_local, false, &c);

	if (rc) {
		close(fd);
		return rc;
	}
	epf_p2p_stream_init(&c->stream, fd, is_local, false);
	if (is_local) {
		pthread_mutex_lock(&ep->lock);
		rc = epf_p2p_bell_index(ep, c);
		pthread_mutex_unlock(&ep->lock);
	}
	if (!rc)
		rc = greet(ep, c, end, meta, &join, key);
	if (!rc)
		rc = join_peer(ep, c, end, &join, key, &ready);
	if (!rc && c->compress)
		rc = epf_p2p_pack_new(c);
	if (!rc && !is_local) {
		epf_p2p_numbers_new(c);
		rc = epf_p2p_engine_start(c, key);
	}
	if (!is_local)
		EPF_STORE_RELAXED(&ep->has_engines, true);
	explicit_bzero(key, sizeof(key));
	if (rc) {
		epf_p2p_conn_discard(c);
		return rc;
	}
	*out = c;
	return 0;
}

/* The connection to an endpoint that is there already, accepted by this. */
static uint64_t find(struct epf_p2p *ep, const uint8_t id[16])
{
	for (struct conn *c = ep->all; c; c = c->next)
		if (c->state == CONN_OPEN && memcmp(c->peer.id, id, 16) == 0 &&
		    epf_p2p_slot_get(&ep->conns, c->number) == c) {
			c->was_accepted = true;
			return c->number;
		}
	return 0;
}

static int check_keys(const struct epf_p2p *ep, const struct metadata *meta)
{
	if (meta->flags & META_HAS_KEY)
		return 0;
	if (!ep->auth.has_secret)
		return epf_fail(meta->flags & META_HAS_SECRET ? EPF_R_P2P_KEY : EPF_R_P2P_NO_KEY,
				"connect: endpoint %s has a key that this one lacks", meta->name);
	if (memcmp(meta->fingerprint, ep->meta.fingerprint, sizeof(meta->fingerprint)) != 0)
		return epf_fail(EPF_R_P2P_KEY, "connect: endpoint %s has another key", meta->name);
	return 0;
}

static int connect_new(struct epf_p2p *ep, const struct metadata *meta, uint64_t end,
		       struct conn **out)
{
	struct sockaddr_un near;
	socklen_t len;
	int fd, rc;

	if (ep->conf.p2p_local &&
	    memcmp(meta->machine, ep->meta.machine, sizeof(meta->machine)) == 0) {
		epf_p2p_unix_name(meta->id, &near, &len);
		rc = dial((struct sockaddr *)&near, len, end, &fd);
		if (!rc)
			return meet(ep, meta, fd, true, end, out);
		if (rc == -ETIMEDOUT || rc == -EAGAIN)
			return epf_fail(EPF_R_P2P_TIMEOUT,
					"connect: endpoint %s (pid %u) does not answer", meta->name,
					meta->pid);
		/* Another network namespace, or it has closed: its port says which. */
	}
	rc = dial_tcp(meta->host, meta->port, end, &fd);
	return rc ? rc : meet(ep, meta, fd, false, end, out);
}

static int connect_meta(struct epf_p2p *ep, const struct metadata *meta, uint64_t end,
			uint64_t *conn)
{
	uint64_t known;
	struct conn *c;
	int rc = check_keys(ep, meta);

	if (rc)
		return rc;
	pthread_mutex_lock(&ep->lock);
	known = find(ep, meta->id);
	pthread_mutex_unlock(&ep->lock);
	if (known) {
		*conn = known;
		return 0;
	}
	rc = connect_new(ep, meta, end, &c);
	if (rc)
		return rc;
	pthread_mutex_lock(&ep->lock);
	rc = ep->is_closing ? epf_fail(EPF_R_P2P_CANCELLED, "connect: the endpoint was closed")
			    : epf_p2p_slot_add(&ep->conns, c, &c->number);
	if (!rc) {
		epf_p2p_conn_publish(c, false);
		*conn = c->number;
	}
	pthread_mutex_unlock(&ep->lock);
	if (rc) {
		epf_p2p_conn_discard(c);
		return rc;
	}
	epf_p2p_kick(ep);
	if (c->engine) {
		rc = epf_p2p_engine_wait(c, end);
		if (rc) {
			struct epf_error why;

			epf_error_get(&why);
			(void)epf_p2p_disconnect(ep, *conn, EPF_P2P_NOW);
			epf_error_set(&why);
		}
	}
	return rc;
}

int epf_p2p_connect(struct epf_p2p *ep, const void *metadata, size_t bytes, uint64_t timeout_ns,
		    uint64_t *conn)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns);
	struct metadata meta = { 0 };
	int rc = epf_p2p_meta_read(metadata, bytes, &meta);

	return rc ? rc : connect_meta(ep, &meta, end, conn);
}

int epf_p2p_connect_to(struct epf_p2p *ep, const char *host, uint16_t port, uint64_t timeout_ns,
		       uint64_t *conn)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns);
	struct metadata meta = { 0 };
	struct stream s;
	struct received m = { 0 };
	int fd, rc = dial_tcp(host, port, end, &fd);

	if (rc)
		return rc;
	epf_p2p_stream_init(&s, fd, false, false);
	rc = epf_p2p_send(&s, MSG_QUERY, NULL, 0, NULL, 0);
	if (!rc)
		rc = epf_p2p_receive_wait(&s, end, &m);
	if (rc == 1 && m.type == MSG_META)
		rc = epf_p2p_meta_read(m.data, m.bytes, &meta);
	else if (rc == -ETIMEDOUT)
		rc = epf_fail(EPF_R_P2P_TIMEOUT, "connect: %s port %u does not answer", host, port);
	else
		rc = epf_fail(EPF_R_P2P_METADATA, "connect: no endpoint is at %s port %u", host,
			      port);
	epf_p2p_stream_close(&s);
	return rc ? rc : connect_meta(ep, &meta, end, conn);
}
