/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection of the rendezvous server; see server_priv.h. A stranger may send a handshake's
 * worth of bytes and nothing more, and learns nothing. Whatever bytes come, the worst that happens
 * is that this one connection is closed.
 */
#include "bootstrap/server_priv.h"

#define EPF_LOG_COMP "boot"
#include "fabric/base/log.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define EARLY_BYTES     (EPF_WIRE_OVERHEAD + EPF_WIRE_EARLY_MAX) /* buffer of a stranger */
#define READS_PER_EVENT 4
#define CLOSING_NS      1000000000ull
#define CUT_OFF_MS      2000u
#define CLOSING_MAX     256u
#define OUT_LOW_BYTES   (EPF_WIRE_FRAME_MAX) /* queue the next part below this */

static bool is_open(const struct srv_conn *c)
{
	return c->state != SRV_DEAD;
}

static struct srv_list *list_of(struct epf_boot_server *srv, enum srv_conn_state state)
{
	switch (state) {
	case SRV_MEMBER:
		return &srv->members;
	case SRV_CLOSING:
		return &srv->closing;
	case SRV_DEAD:
		return &srv->dead;
	default:
		return &srv->strangers;
	}
}

void srv_conn_set_state(struct epf_boot_server *srv, struct srv_conn *c, enum srv_conn_state state)
{
	struct srv_list *from = list_of(srv, c->state), *to = list_of(srv, state);

	c->state = state;
	if (from == to)
		return;
	TAILQ_REMOVE(from, c, link);
	TAILQ_INSERT_TAIL(to, c, link);
	srv->strangers_count -= from == &srv->strangers;
	srv->closing_count -= from == &srv->closing;
	srv->closing_count += to == &srv->closing;
}

void srv_conn_close(struct epf_boot_server *srv, struct srv_conn *c)
{
	if (!is_open(c))
		return;
	close(c->fd);
	c->fd = -1;
	srv_conn_set_state(srv, c, SRV_DEAD);
}

void srv_conn_reap(struct epf_boot_server *srv)
{
	struct srv_conn *c;

	while ((c = TAILQ_FIRST(&srv->dead))) {
		TAILQ_REMOVE(&srv->dead, c, link);
		free(c->in);
		free(c->out);
		free(c->blob);
		c->in = c->out = c->blob = NULL;
		/* A member's seat remembers who sat there, for messages; srv_job_free() frees it. */
		if (!c->seated)
			free(c);
	}
}

static void watch(struct epf_boot_server *srv, struct srv_conn *c, bool write)
{
	struct epoll_event ev = { .events = EPOLLIN | (write ? EPOLLOUT : 0u), .data.ptr = c };

	if (c->want_write == write)
		return;
	c->want_write = write;
	epoll_ctl(srv->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
}

/* The connection broke or was closed by the other side. */
static void ended(struct epf_boot_server *srv, struct srv_conn *c, const char *why)
{
	bool member = c->state == SRV_MEMBER;

	srv_conn_close(srv, c);
	if (member)
		srv->job_calls->lost(srv, c, why);
}

static void flush(struct epf_boot_server *srv, struct srv_conn *c)
{
	while (c->out_at < c->out_len) {
		ssize_t n = send(c->fd, c->out + c->out_at, c->out_len - c->out_at, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0) {
			ended(srv, c, strerror(errno));
			return;
		}
		c->out_at += (size_t)n;
		srv_count(srv, sent_bytes, n);
	}
	if (c->out_at == c->out_len) {
		/* Thousands of idle members must not keep a result's worth of buffers. */
		free(c->out);
		c->out = NULL;
		c->out_at = c->out_len = c->out_cap = 0;
	}
	/* A receiver's next part is made when there is room, so room is watched for until the end. */
	watch(srv, c, c->out_len > 0 || c->receiving);
	if (c->state == SRV_CLOSING && c->out_len == 0)
		shutdown(c->fd, SHUT_WR);
}

/* Room for @need more bytes to send. */
static bool out_reserve(struct srv_conn *c, size_t need)
{
	uint8_t *bigger;
	size_t cap;

	if (c->out_at) {
		memmove(c->out, c->out + c->out_at, c->out_len - c->out_at);
		c->out_len -= c->out_at;
		c->out_at = 0;
	}
	cap = c->out_len + need;
	if (cap <= c->out_cap)
		return true;
	bigger = realloc(c->out, cap);
	if (!bigger)
		return false;
	c->out = bigger;
	c->out_cap = cap;
	return true;
}

void srv_conn_send(struct epf_boot_server *srv, struct srv_conn *c, enum epf_wire_type type,
		   const void *payload, size_t len, const uint8_t *digest)
{
	if (!is_open(c))
		return;
	if (!out_reserve(c, EPF_WIRE_OVERHEAD + len)) {
		ended(srv, c, "the server has no memory for it");
		return;
	}
	c->out_len += epf_wire_seal(&c->session, type, payload, len, digest, c->out + c->out_len);
	flush(srv, c);
}

static void start_closing(struct epf_boot_server *srv, struct srv_conn *c)
{
	if (!is_open(c))
		return;
	if (srv->closing_count >= CLOSING_MAX)
		srv_conn_close(srv, TAILQ_FIRST(&srv->closing));
	srv_conn_set_state(srv, c, SRV_CLOSING);
	c->deadline_ns = epf_boot_deadline(CLOSING_NS);
	flush(srv, c);
}

void srv_conn_refuse(struct epf_boot_server *srv, struct srv_conn *c, enum epf_reason reason,
		     const char *fmt, ...)
{
	struct epf_wire_note note = { .reason = reason, .rank = EPF_WIRE_SERVER };
	uint8_t buf[6 + EPF_WIRE_TEXT_MAX];
	va_list args;

	va_start(args, fmt);
	vsnprintf(note.text, sizeof(note.text), fmt, args);
	va_end(args);
	srv_count(srv, refused_join, 1);
	epf_warn_ratelimited("client %s refused: %s", c->address, note.text);
	srv_conn_send(srv, c, EPF_WIRE_REFUSE, buf, epf_wire_put_note(buf, EPF_WIRE_REFUSE, &note),
		      NULL);
	start_closing(srv, c);
}

/* Bytes that cannot be accepted. A stranger gets a refusal without a reason, a member is lost. */
static void reject(struct epf_boot_server *srv, struct srv_conn *c, enum epf_wire_verdict v)
{
	const char *why = epf_wire_verdict_text(v);
	char text[160];

	if (v == EPF_WIRE_V_PROOF)
		srv_count(srv, refused_proof, 1);
	else
		srv_count(srv, refused_malformed, 1);
	if (c->state == SRV_MEMBER) {
		snprintf(text, sizeof(text), "it sent %s", why);
		ended(srv, c, text);
		return;
	}
	epf_warn_ratelimited("client %s refused: it sent %s", c->address, why);
	if (out_reserve(c, EPF_WIRE_OVERHEAD + 6))
		c->out_len += epf_wire_refuse_stranger(&c->session, c->out + c->out_len);
	start_closing(srv, c);
}

static enum epf_wire_verdict handshake(struct epf_boot_server *srv, struct srv_conn *c,
				       const struct epf_wire_msg *msg)
{
	uint8_t nonce[EPF_AUTH_NONCE_BYTES];

	if (c->state == SRV_HELLO && msg->head.type == EPF_WIRE_HELLO) {
		epf_auth_nonce(nonce);
		c->session.peer = msg->head.sender;
		epf_wire_session_rekey(&c->session, &srv->auth, msg->payload, nonce);
		c->state = SRV_JOIN;
		srv_conn_send(srv, c, EPF_WIRE_CHALLENGE, nonce, sizeof(nonce), NULL);
		return EPF_WIRE_V_OK;
	}
	if (c->state == SRV_JOIN && msg->head.type == EPF_WIRE_JOIN) {
		srv->job_calls->join(srv, c, msg);
		/* Only members hold more than a handshake's bytes. */
		if (c->state == SRV_MEMBER)
			return EPF_WIRE_V_OK;
		if (is_open(c) && c->state != SRV_CLOSING)
			return EPF_WIRE_V_PAYLOAD;
		return EPF_WIRE_V_OK;
	}
	return EPF_WIRE_V_STATE;
}

/* Take every complete frame out of the input. */
static void take_frames(struct epf_boot_server *srv, struct srv_conn *c)
{
	enum epf_wire_verdict v = EPF_WIRE_V_MORE;
	struct epf_wire_msg msg;
	size_t at = 0, frame;

	while (is_open(c) && c->state != SRV_CLOSING && at < c->in_len) {
		uint32_t max = c->state == SRV_MEMBER ? EPF_WIRE_PAYLOAD_MAX : EPF_WIRE_EARLY_MAX;

		v = epf_wire_open(&c->session, c->in + at, c->in_len - at, max, &msg, &frame);
		if (v == EPF_WIRE_V_DUPLICATE) {
			srv_count(srv, dropped_duplicates, 1);
			epf_warn_ratelimited("client %s: dropped %s", c->address,
					     epf_wire_verdict_text(v));
			at += frame;
			continue;
		}
		if (v == EPF_WIRE_V_OK)
			v = c->state == SRV_MEMBER ? srv->job_calls->message(srv, c, &msg)
						   : handshake(srv, c, &msg);
		if (v != EPF_WIRE_V_OK)
			break;
		at += frame;
	}
	if (!is_open(c))
		return;
	if (c->state == SRV_CLOSING) {
		c->in_len = 0;
		return;
	}
	memmove(c->in, c->in + at, c->in_len - at);
	c->in_len -= at;
	if (!c->in_len && c->in_cap > EARLY_BYTES) {
		free(c->in);
		c->in = NULL;
		c->in_cap = 0;
	}
	if (v != EPF_WIRE_V_OK && v != EPF_WIRE_V_MORE && v != EPF_WIRE_V_DUPLICATE)
		reject(srv, c, v);
}

static bool in_reserve(struct srv_conn *c)
{
	/* Parts make the buffer grow; it goes back when it has been emptied. */
	size_t want = c->in_cap ? EPF_WIRE_FRAME_MAX : EARLY_BYTES;
	uint8_t *bigger;

	if (c->in_len < c->in_cap)
		return true;
	if (c->in_cap && c->state != SRV_MEMBER)
		return false;
	bigger = realloc(c->in, want);
	if (!bigger)
		return false;
	c->in = bigger;
	c->in_cap = want;
	return true;
}

static void readable(struct epf_boot_server *srv, struct srv_conn *c)
{
	for (int i = 0; i < READS_PER_EVENT && is_open(c); i++) {
		ssize_t n;

		if (!in_reserve(c)) {
			ended(srv, c, "the server has no memory for it");
			return;
		}
		n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0) {
			ended(srv, c, n ? strerror(errno) : "it closed the connection");
			return;
		}
		srv_count(srv, received_bytes, n);
		c->in_len += (size_t)n;
		take_frames(srv, c);
	}
}

void srv_conn_event(struct epf_boot_server *srv, struct srv_conn *c, uint32_t events)
{
	if (is_open(c) && (events & EPOLLOUT))
		flush(srv, c);
	if (is_open(c) && c->receiving && c->out_len < OUT_LOW_BYTES)
		srv->job_calls->pump(srv, c);
	if (is_open(c) && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		readable(srv, c);
}

/* Sent again and again, and the other system acknowledges nothing: a host that was cut off. */
static bool is_cut_off(const struct srv_conn *c)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	return getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
	       info.tcpi_retransmits && info.tcpi_last_ack_recv > CUT_OFF_MS;
}

bool srv_conn_is_drained(const struct srv_conn *c)
{
	int unsent = 0;

	if (is_cut_off(c))
		return true;
	if (c->out_len || c->receiving)
		return false;
	/* Bytes that the other system has not acknowledged, tcp(7). */
	return ioctl(c->fd, SIOCOUTQ, &unsent) < 0 || unsent == 0;
}

int srv_conn_new(struct epf_boot_server *srv, int fd, const struct epf_net_addr *from)
{
	struct epoll_event ev = { .events = EPOLLIN };
	struct srv_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->fd = fd;
	c->state = SRV_HELLO;
	c->deadline_ns = epf_boot_deadline(srv->handshake_ns);
	epf_net_print(from, c->address, sizeof(c->address));
	epf_wire_session_init(&c->session, &srv->auth, EPF_WIRE_SERVER);
	ev.data.ptr = c;
	if (epoll_ctl(srv->epoll_fd, EPOLL_CTL_ADD, fd, &ev)) {
		free(c);
		return -errno;
	}
	epf_net_tune(fd);
	TAILQ_INSERT_TAIL(&srv->strangers, c, link);
	srv->strangers_count++;
	return 0;
}
