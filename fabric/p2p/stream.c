/* SPDX-License-Identifier: Apache-2.0 */
/* Framed messages on a control connection (stream.h). Slow path. */
#include "fabric/p2p/stream.h"

#include "fabric/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct out_message {
	struct out_message *next;
	size_t bytes, sent;
	int fds[STREAM_FDS];
	unsigned n_fds;
	uint8_t data[];
};

enum { IN_ROOM = 4096, PROOF = EPF_AUTH_HASH_BYTES };

union control {
	struct cmsghdr align;
	char buf[CMSG_SPACE(STREAM_FDS * sizeof(int))];
};

void epf_p2p_stream_init(struct stream *s, int fd, bool is_local, bool accepts)
{
	memset(s, 0, sizeof(*s));
	s->fd = fd;
	s->is_local = is_local;
	s->accepts = accepts;
	pthread_mutex_init(&s->lock, NULL);
}

static void free_message(struct out_message *m)
{
	for (unsigned i = 0; i < m->n_fds; i++)
		close(m->fds[i]);
	free(m);
}

void epf_p2p_stream_close(struct stream *s)
{
	while (s->first) {
		struct out_message *m = s->first;

		s->first = m->next;
		free_message(m);
	}
	for (unsigned i = 0; i < s->n_fds; i++)
		close(s->fds[i]);
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	s->n_fds = 0;
	free(s->in);
	s->in = NULL;
	explicit_bzero(s->key, sizeof(s->key));
	pthread_mutex_destroy(&s->lock);
}

void epf_p2p_stream_seal(struct stream *s, const uint8_t key[EPF_AUTH_KEY_BYTES])
{
	memcpy(s->key, key, EPF_AUTH_KEY_BYTES);
	s->is_sealed = !s->is_local;
}

/* One sendmsg of what is left of a message: 1 all sent, 0 the socket is full, or -errno. */
static int push(struct stream *s, struct out_message *m)
{
	struct iovec iov = { m->data + m->sent, m->bytes - m->sent };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	union control ctl;
	ssize_t n;

	if (m->n_fds) {
		struct cmsghdr *c;

		memset(&ctl, 0, sizeof(ctl));
		msg.msg_control = ctl.buf;
		msg.msg_controllen = CMSG_SPACE(m->n_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(m->n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), m->fds, m->n_fds * sizeof(int));
	}
	n = sendmsg(s->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -ECONNRESET;
	for (unsigned i = 0; i < m->n_fds; i++)
		close(m->fds[i]);
	m->n_fds = 0; /* they went with the first byte */
	m->sent += (size_t)n;
	return m->sent == m->bytes;
}

static int flush_locked(struct stream *s)
{
	while (s->first) {
		struct out_message *m = s->first;
		int rc = push(s, m);

		if (rc < 0)
			return rc;
		if (rc == 0)
			return 1;
		s->first = m->next;
		s->out_bytes -= m->bytes;
		free_message(m);
	}
	s->last = NULL;
	return 0;
}

int epf_p2p_flush(struct stream *s)
{
	int rc;

	pthread_mutex_lock(&s->lock);
	rc = flush_locked(s);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static struct out_message *make(struct stream *s, enum message type, const void *data, size_t bytes,
				const int *fds, unsigned n)
{
	struct msg_head head = { P2P_MAGIC, (uint16_t)type, (uint16_t)n, (uint32_t)bytes,
				 s->out_number++ };
	size_t all = sizeof(head) + bytes + (s->is_sealed ? PROOF : 0);
	struct out_message *m = calloc(1, sizeof(*m) + all);

	if (!m)
		return NULL;
	m->bytes = all;
	memcpy(m->data, &head, sizeof(head));
	if (bytes)
		memcpy(m->data + sizeof(head), data, bytes);
	if (s->is_sealed) {
		uint8_t digest[PROOF];

		epf_auth_digest(data, bytes, digest);
		epf_auth_proof(s->key, s->accepts, m->data, sizeof(head), digest,
			       m->data + sizeof(head) + bytes);
	}
	for (unsigned i = 0; i < n; i++) {
		m->fds[i] = dup(fds[i]);
		if (m->fds[i] < 0) {
			free_message(m);
			return NULL;
		}
		m->n_fds++;
	}
	return m;
}

int epf_p2p_send(struct stream *s, enum message type, const void *data, size_t bytes,
		 const int *fds, unsigned n)
{
	struct out_message *m;
	int rc = -ENOBUFS;

	pthread_mutex_lock(&s->lock);
	m = s->out_bytes + bytes > STREAM_OUT_MAX ? NULL : make(s, type, data, bytes, fds, n);
	if (m) {
		if (s->last)
			s->last->next = m;
		else
			s->first = m;
		s->last = m;
		s->out_bytes += m->bytes;
		rc = flush_locked(s);
	}
	pthread_mutex_unlock(&s->lock);
	return rc < 0 ? rc : 0;
}

/* Reads what the socket has into the buffer: 1 something came, 0 nothing now, or -errno. */
static int fill(struct stream *s, size_t want)
{
	struct iovec iov;
	union control ctl;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (want < IN_ROOM)
		want = IN_ROOM;
	if (s->room < want) {
		uint8_t *more = realloc(s->in, want);

		if (!more)
			return -ENOMEM;
		s->in = more;
		s->room = want;
	}
	iov = (struct iovec){ s->in + s->have, s->room - s->have };
	msg.msg_control = ctl.buf;
	msg.msg_controllen = sizeof(ctl.buf);
	n = recvmsg(s->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n == 0)
		return -EPIPE;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -ECONNRESET;
	s->have += (size_t)n;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		unsigned count = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		int fd;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (unsigned i = 0; i < count; i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (s->n_fds == STREAM_FDS) {
				close(fd);
				return -EBADMSG;
			}
			s->fds[s->n_fds++] = fd;
		}
	}
	return msg.msg_flags & MSG_CTRUNC ? -EBADMSG : 1;
}

/* The first message of the buffer is complete: checks it and takes its descriptors. */
static int take(struct stream *s, const struct msg_head *head, struct received *out)
{
	const uint8_t *data = s->in + sizeof(*head);

	if (head->number != s->in_number)
		return -EBADMSG;
	if (s->is_sealed) {
		uint8_t digest[PROOF], proof[PROOF];

		epf_auth_digest(data, head->bytes, digest);
		epf_auth_proof(s->key, !s->accepts, s->in, sizeof(*head), digest, proof);
		if (!epf_auth_equal(proof, data + head->bytes))
			return -EBADMSG;
	}
	if (head->fds > s->n_fds)
		return -EBADMSG;
	s->in_number++;
	*out = (struct received){ (enum message)head->type, head->bytes, data, { -1, -1, -1, -1 } };
	for (unsigned i = 0; i < head->fds; i++)
		out->fds[i] = s->fds[i];
	s->n_fds -= head->fds;
	memmove(s->fds, s->fds + head->fds, s->n_fds * sizeof(int));
	return 1;
}

/* Removes the message that the last receive has given. */
static void consume(struct stream *s)
{
	struct msg_head head;
	size_t all;

	if (!s->in_given)
		return;
	s->in_given = false;
	memcpy(&head, s->in, sizeof(head));
	all = sizeof(head) + head.bytes + (s->given_sealed ? PROOF : 0);
	s->have -= all;
	memmove(s->in, s->in + all, s->have);
}

int epf_p2p_receive(struct stream *s, struct received *out)
{
	struct msg_head head;
	size_t want = sizeof(head);
	int rc;

	consume(s);
	for (;;) {
		if (s->have >= sizeof(head)) {
			memcpy(&head, s->in, sizeof(head));
			if (head.magic != P2P_MAGIC || head.bytes > P2P_PAYLOAD_MAX ||
			    head.fds > STREAM_FDS)
				return -EBADMSG;
			want = sizeof(head) + head.bytes + (s->is_sealed ? PROOF : 0);
			if (s->have >= want)
				break;
		}
		rc = fill(s, want);
		if (rc <= 0)
			return rc;
	}
	rc = take(s, &head, out);
	s->in_given = rc == 1;
	s->given_sealed = s->is_sealed;
	return rc;
}

int epf_p2p_receive_wait(struct stream *s, uint64_t deadline_ns, struct received *out)
{
	for (;;) {
		struct pollfd p = { s->fd, POLLIN, 0 };
		uint64_t now = epf_now_ns();
		int rc = epf_p2p_receive(s, out);

		if (rc)
			return rc;
		if (now >= deadline_ns)
			return -ETIMEDOUT;
		if (epf_p2p_flush(s) == 1)
			p.events |= POLLOUT;
		poll(&p, 1, (int)((deadline_ns - now) / 1000000 + 1));
	}
}
