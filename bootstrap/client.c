/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's end of the TCP rendezvous: the calls of boot.h over one connection to the server. The
 * connection itself is made by connect.c. All waits are poll(2) with a deadline; the server's
 * verdict on a late rank names it, so this side gives the server a little longer than itself.
 */
#include "bootstrap/client_priv.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define VERDICT_NS 3000000000ull /* what the server may need to say who is missing */
#define LEAVE_NS   1000000000ull

static struct tcp_boot *tcp_of(struct epf_boot *b)
{
	return (struct tcp_boot *)b;
}

/* Keeps the first failure: every later call repeats it. */
static int broken(struct tcp_boot *t)
{
	if (!t->failed) {
		t->failed = epf_last_reason();
		/* Without the remedy and number that epf_fail() will add again. */
		snprintf(t->why, sizeof(t->why), "%s", t->detail);
	}
	return epf_fail(t->failed, "%s", t->why);
}

int tcp_fail(struct tcp_boot *t, enum epf_reason reason, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(t->detail, sizeof(t->detail), fmt, args);
	va_end(args);
	return epf_fail(reason, "%s", t->detail);
}

int tcp_wait(struct tcp_boot *t, short events, uint64_t deadline_ns)
{
	for (;;) {
		struct pollfd p = { .fd = t->fd, .events = events };
		uint64_t now = epf_now_ns();
		int n, ms;

		if (now >= deadline_ns)
			return -ETIMEDOUT;
		if (t->base.why && t->base.why(t->base.why_arg))
			return -EINTR;
		ms = deadline_ns - now > 1000000000000ull
			     ? 1000000
			     : (int)((deadline_ns - now) / 1000000) + 1;
		n = poll(&p, 1, t->base.why && ms > EPF_BOOT_ASK_MS ? EPF_BOOT_ASK_MS : ms);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

static int server_lost(struct tcp_boot *t, const char *why)
{
	return tcp_fail(t, EPF_R_BOOT_SERVER_LOST,
			"rank %u: the rendezvous server at %s ended the connection (%s)",
			t->base.rank, t->where, why);
}

static int server_silent(struct tcp_boot *t, uint64_t waited_ns)
{
	char time[32];

	epf_boot_time_text(waited_ns, time, sizeof(time));
	return tcp_fail(t, EPF_R_BOOT_SERVER_LOST,
			"rank %u: the rendezvous server at %s said nothing for %s", t->base.rank,
			t->where, time);
}

/* A wait has ended too early: by its deadline, or because the caller says so. */
static int wait_failed(struct tcp_boot *t, int rc, uint64_t waited_ns)
{
	if (rc != -EINTR)
		return server_silent(t, waited_ns);
	epf_last_detail(t->detail, sizeof(t->detail));
	return epf_fail(epf_last_reason(), "%s", t->detail);
}

/* What is in the input is a verdict of the server: make it this call's error. */
static int verdict(struct tcp_boot *t, const struct epf_wire_msg *msg)
{
	struct epf_wire_note note;

	if (epf_wire_get_note(msg, &note) != EPF_WIRE_V_OK ||
	    !epf_reason_info((enum epf_reason)note.reason) || !note.reason)
		return tcp_fail(t, EPF_R_BOOT_WIRE, "rank %u: the server at %s sent a bad %s",
				t->base.rank, t->where, epf_wire_type_text(msg->head.type));
	return tcp_fail(t, (enum epf_reason)note.reason, "%s", note.text);
}

int tcp_fill(struct tcp_boot *t)
{
	ssize_t n;

	if (t->in_at) {
		memmove(t->in, t->in + t->in_at, t->in_len - t->in_at);
		t->in_len -= t->in_at;
		t->in_at = 0;
	}
	do
		n = recv(t->fd, t->in + t->in_len, t->in_cap - t->in_len, 0);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return -EAGAIN;
	if (n < 0)
		return server_lost(t, strerror(errno));
	if (n == 0)
		return server_lost(t, "closed");
	t->in_len += (size_t)n;
	return 0;
}

/* The next message that is complete in the input. 0, -EAGAIN, or an error with its text. */
static int next_message(struct tcp_boot *t, struct epf_wire_msg *msg)
{
	enum epf_wire_verdict v;
	size_t frame;

	do {
		v = epf_wire_open(&t->session, t->in + t->in_at, t->in_len - t->in_at,
				  EPF_WIRE_PAYLOAD_MAX, msg, &frame);
		if (v == EPF_WIRE_V_OK || v == EPF_WIRE_V_DUPLICATE)
			t->in_at += frame;
	} while (v == EPF_WIRE_V_DUPLICATE);
	if (v == EPF_WIRE_V_MORE)
		return -EAGAIN;
	if (v == EPF_WIRE_V_OK)
		return 0;
	return tcp_fail(t, EPF_R_BOOT_WIRE, "rank %u: the server at %s sent %s", t->base.rank,
			t->where, epf_wire_verdict_text(v));
}

int tcp_receive(struct tcp_boot *t, uint64_t wait_ns, struct epf_wire_msg *msg)
{
	uint64_t deadline_ns = epf_boot_deadline(wait_ns);
	int rc;

	while ((rc = next_message(t, msg)) == -EAGAIN) {
		rc = tcp_fill(t);
		if (rc == -EAGAIN) {
			rc = tcp_wait(t, POLLIN, deadline_ns);
			if (rc)
				return wait_failed(t, rc, wait_ns);
		}
		if (rc)
			return rc;
	}
	if (rc)
		return rc;
	if (msg->head.type == EPF_WIRE_FAIL || msg->head.type == EPF_WIRE_REFUSE)
		return verdict(t, msg);
	return 0;
}

/* The connection does not take bytes: what the server said before is a better cause. */
static int send_failed(struct tcp_boot *t, int err)
{
	struct epf_wire_msg msg;
	int rc;

	while ((rc = tcp_receive(t, 0, &msg)) == 0)
		;
	return epf_last_reason() == EPF_R_BOOT_SERVER_LOST ? server_lost(t, strerror(err)) : rc;
}

int tcp_send(struct tcp_boot *t, enum epf_wire_type type, const void *payload, size_t len,
	     uint64_t wait_ns)
{
	size_t at = 0, frame = epf_wire_seal(&t->session, type, payload, len, NULL, t->out);
	uint64_t deadline_ns = epf_boot_deadline(wait_ns);
	int rc;

	while (at < frame) {
		ssize_t n = send(t->fd, t->out + at, frame - at, MSG_NOSIGNAL);

		if (n >= 0) {
			at += (size_t)n;
			deadline_ns = epf_boot_deadline(wait_ns);
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			return send_failed(t, errno);
		rc = tcp_wait(t, POLLOUT, deadline_ns);
		if (rc)
			return wait_failed(t, rc, wait_ns);
	}
	return 0;
}

static int unexpected(struct tcp_boot *t, const struct epf_wire_msg *msg)
{
	return tcp_fail(t, EPF_R_BOOT_WIRE, "rank %u: the server at %s sent %s out of turn",
			t->base.rank, t->where, epf_wire_type_text(msg->head.type));
}

/* Between exchanges the server has nothing to say but that the job has failed. */
static int verdict_or_unexpected(struct tcp_boot *t, const struct epf_wire_msg *msg)
{
	if (msg->head.type == EPF_WIRE_FAIL || msg->head.type == EPF_WIRE_REFUSE)
		return verdict(t, msg);
	return unexpected(t, msg);
}

static int send_blob(struct tcp_boot *t, const uint8_t *mine, size_t len)
{
	uint8_t *payload = t->out + EPF_WIRE_HEAD_BYTES;
	size_t at = 0;
	int rc;

	do {
		size_t bytes = len - at < EPF_WIRE_PART_BYTES ? len - at : EPF_WIRE_PART_BYTES;

		epf_wire_put_part(payload, t->round, len, at);
		if (bytes)
			memcpy(payload + EPF_WIRE_PART_HEAD, mine + at, bytes);
		rc = tcp_send(t, EPF_WIRE_PART, payload, EPF_WIRE_PART_HEAD + bytes, t->timeout_ns);
		at += bytes;
	} while (!rc && at < len);
	return rc;
}

/* One part of the result; the first one makes the room. */
static int take_part(struct tcp_boot *t, const struct epf_wire_msg *msg, struct gathered *g)
{
	struct epf_wire_part part;

	if (msg->head.type != EPF_WIRE_PART || epf_wire_get_part(msg, &part) != EPF_WIRE_V_OK ||
	    part.round != t->round || part.offset != g->got || (g->all && part.total != g->total) ||
	    part.total > epf_boot_stream_max(t->base.world) || !part.bytes)
		return unexpected(t, msg);
	if (!g->all) {
		g->total = part.total;
		g->all = epf_boot_stream_new(t->base.world, part.total, 1, &g->stream);
	}
	if (!g->all)
		return tcp_fail(t, EPF_R_NO_MEMORY, "rank %u: an allgather result of %zu bytes",
				t->base.rank, g->total);
	memcpy(g->stream + g->got, part.data, part.bytes);
	g->got += part.bytes;
	return 0;
}

static int receive_result(struct tcp_boot *t, struct epf_blob **all)
{
	uint64_t wait_ns = t->timeout_ns + VERDICT_NS;
	struct gathered g = { 0 };
	struct epf_wire_msg msg;
	int rc;

	do {
		rc = tcp_receive(t, wait_ns, &msg);
		if (!rc)
			rc = take_part(t, &msg, &g);
	} while (!rc && g.got < g.total);
	if (!rc && epf_boot_stream_index(t->base.world, g.stream, g.total, g.all))
		rc = tcp_fail(t, EPF_R_BOOT_WIRE,
			      "rank %u: the server at %s sent a result that contradicts itself",
			      t->base.rank, t->where);
	if (rc) {
		epf_boot_free_blobs(g.all);
		return rc;
	}
	*all = g.all;
	return 0;
}

static int tcp_allgather(struct epf_boot *b, const void *mine, size_t len, struct epf_blob **all)
{
	struct tcp_boot *t = tcp_of(b);
	int rc;

	if (t->failed)
		return broken(t);
	rc = send_blob(t, mine, len);
	if (!rc)
		rc = receive_result(t, all);
	if (rc)
		return broken(t);
	t->round++;
	return 0;
}

static int tcp_barrier(struct epf_boot *b)
{
	struct tcp_boot *t = tcp_of(b);
	struct epf_wire_msg msg;
	uint8_t round[8];
	int rc;

	if (t->failed)
		return broken(t);
	epf_wire_put_u64(round, t->round);
	rc = tcp_send(t, EPF_WIRE_BARRIER, round, sizeof(round), t->timeout_ns);
	if (!rc)
		rc = tcp_receive(t, t->timeout_ns + VERDICT_NS, &msg);
	if (!rc && (msg.head.type != EPF_WIRE_RELEASE || epf_wire_get_u64(msg.payload) != t->round))
		rc = unexpected(t, &msg);
	if (rc)
		return broken(t);
	t->round++;
	return 0;
}

static int tcp_check(struct epf_boot *b)
{
	struct tcp_boot *t = tcp_of(b);
	struct epf_wire_msg msg;
	int rc;

	if (t->failed)
		return broken(t);
	rc = next_message(t, &msg);
	if (rc == -EAGAIN)
		rc = tcp_fill(t);
	else if (!rc)
		rc = verdict_or_unexpected(t, &msg);
	/* Bytes came in: perhaps a whole message. */
	if (!rc) {
		rc = next_message(t, &msg);
		if (!rc)
			rc = verdict_or_unexpected(t, &msg);
	}
	return rc == -EAGAIN ? 0 : broken(t);
}

static int tcp_no_post(struct epf_boot *b, const void *mine, size_t len)
{
	epf_fail(EPF_R_BOOT_OPTION, "rank %u: post is for the in-process rendezvous", b->rank);
	return -EOPNOTSUPP;
}

static int tcp_no_collect(struct epf_boot *b, struct epf_blob **all)
{
	epf_fail(EPF_R_BOOT_OPTION, "rank %u: collect is for the in-process rendezvous", b->rank);
	return -EOPNOTSUPP;
}

static_assert(EPF_BOOT_KEY_BYTES == EPF_AUTH_KEY_BYTES, "a job key is a key");

static int tcp_job_key(struct epf_boot *b, const char *label, uint8_t key[EPF_BOOT_KEY_BYTES])
{
	epf_auth_job_key(&tcp_of(b)->auth, label, key);
	return 0;
}

void tcp_free(struct tcp_boot *t)
{
	if (t->fd >= 0)
		close(t->fd);
	epf_boot_server_stop(t->server);
	epf_auth_wipe(&t->auth);
	free(t->in);
	free(t->out);
	free(t);
}

static void tcp_close(struct epf_boot *b)
{
	struct tcp_boot *t = tcp_of(b);

	struct epf_wire_leave leave = { b->lost_reason, b->lost_rank };
	uint8_t buf[8];

	/* Best effort: a server that is gone needs no farewell. */
	if (!t->failed)
		tcp_send(t, EPF_WIRE_LEAVE, buf,
			 b->lost_reason ? epf_wire_put_leave(buf, &leave) : 0, LEAVE_NS);
	tcp_free(t);
}

const struct epf_boot_ops tcp_ops = {
	.allgather = tcp_allgather,
	.barrier = tcp_barrier,
	.check = tcp_check,
	.close = tcp_close,
	.collect = tcp_no_collect,
	.job_key = tcp_job_key,
	.post = tcp_no_post,
	.route = tcp_route,
};
