/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the daemon without libepf: the connection (svc_raw_rank.c: ranks and jobs). It sends anything, and trusts the lengths in the
 * headers it receives: the daemon is under test, not the client.
 */
#include "tests/proc/svc_raw.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RAW_MANY = 16 };

int raw_open(struct raw *c, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	memset(c, 0, sizeof(*c));
	for (unsigned i = 0; i < EPF_SVC_FDS_MAX; i++)
		c->fds[i] = -1;
	c->minor = EPF_SVC_MINOR;
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		return -errno;
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	if (connect(c->fd, (const struct sockaddr *)&a, sizeof(a)) == 0)
		return 0;
	int rc = -errno;

	close(c->fd);
	c->fd = -1;
	return rc;
}

static void drop_answer(struct raw *c)
{
	for (unsigned i = 0; i < EPF_SVC_FDS_MAX; i++) {
		if (c->fds[i] >= 0)
			close(c->fds[i]);
		c->fds[i] = -1;
	}
	c->n_fds = 0;
	free(c->body);
	c->body = NULL;
	c->text[0] = 0;
}

void raw_close(struct raw *c)
{
	drop_answer(c);
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

int raw_send(struct raw *c, const void *bytes, size_t len, const int *fds, unsigned n_fds)
{
	union {
		char room[CMSG_SPACE(RAW_MANY * sizeof(int))];
		struct cmsghdr align;
	} control;

	size_t sent = 0;

	memset(&control, 0, sizeof(control));
	while (sent < len) {
		struct iovec iov = { (char *)(uintptr_t)bytes + sent, len - sent };
		struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
		ssize_t n;

		if (n_fds && sent == 0) {
			struct cmsghdr *h;

			m.msg_control = control.room;
			m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
			h = CMSG_FIRSTHDR(&m);
			h->cmsg_level = SOL_SOCKET;
			h->cmsg_type = SCM_RIGHTS;
			h->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
			memcpy(CMSG_DATA(h), fds, n_fds * sizeof(int));
		}
		n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		sent += (size_t)n;
	}
	return (int)sent;
}

int raw_frame(struct raw *c, const struct epf_svc_head *head, const void *body, size_t len,
	      const int *fds, unsigned n_fds)
{
	uint8_t *all = malloc(EPF_SVC_HEAD_BYTES + len);
	int rc;

	if (!all)
		return -ENOMEM;
	epf_svc_head_encode(head, all);
	if (len)
		memcpy(all + EPF_SVC_HEAD_BYTES, body, len);
	rc = raw_send(c, all, EPF_SVC_HEAD_BYTES + len, fds, n_fds);
	free(all);
	return rc < 0 ? rc : 0;
}

/* Receives exactly len bytes, and the descriptors with them. */
static int receive(struct raw *c, void *out, size_t len, uint64_t deadline)
{
	size_t got = 0;

	while (got < len) {
		union {
			char room[CMSG_SPACE(RAW_MANY * sizeof(int))];
			struct cmsghdr align;
		} control;
		struct iovec iov = { (char *)out + got, len - got };
		struct msghdr m = { .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control.room,
				    .msg_controllen = sizeof(control.room) };
		struct pollfd p = { .fd = c->fd, .events = POLLIN };
		uint64_t now = epf_now_ns();
		ssize_t n;

		if (now >= deadline)
			return -ETIMEDOUT;
		if (poll(&p, 1, (int)((deadline - now) / 1000000 + 1)) <= 0)
			continue;
		n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n == 0 || errno == ECONNRESET || errno == EPIPE ? -ECONNRESET
									       : -errno;
		for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
			if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
				continue;
			for (size_t i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
				int fd;

				memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
				if (c->n_fds < EPF_SVC_FDS_MAX)
					c->fds[c->n_fds++] = fd;
				else
					close(fd);
			}
		}
		got += (size_t)n;
	}
	return 0;
}

int raw_recv(struct raw *c, unsigned timeout_ms)
{
	uint64_t deadline = epf_now_ns() + (uint64_t)timeout_ms * 1000000;
	uint8_t head[EPF_SVC_HEAD_BYTES];
	int rc;

	drop_answer(c);
	rc = receive(c, head, sizeof(head), deadline);
	if (!rc)
		rc = epf_svc_head_decode(head, &c->head);
	if (rc)
		return rc;
	c->body = calloc(1, (size_t)c->head.bytes + 1);
	if (!c->body)
		return -ENOMEM;
	rc = receive(c, c->body, c->head.bytes, deadline);
	if (!rc && c->head.status < 0)
		snprintf(c->text, sizeof(c->text), "%s", (const char *)c->body);
	return rc;
}

bool raw_is_closed(struct raw *c, unsigned timeout_ms)
{
	uint64_t deadline = epf_now_ns() + (uint64_t)timeout_ms * 1000000;
	char junk[4096];
	int rc;

	drop_answer(c);
	do
		rc = receive(c, junk, 1, deadline);
	while (rc == 0);
	drop_answer(c);
	return rc != -ETIMEDOUT;
}

int raw_call(struct raw *c, unsigned type, const void *msg, const int *fds, unsigned n_fds,
	     void *reply)
{
	struct epf_svc_head head = { .type = (uint16_t)type,
				     .fds = (uint16_t)n_fds,
				     .seq = ++c->seq };
	uint8_t *body = NULL, *longer;
	size_t len = 0;
	int rc = epf_svc_encode(type, false, c->minor, msg, &body, &len);

	if (rc)
		return rc;
	if (c->tail) {
		longer = realloc(body, len + c->tail);
		if (!longer) {
			free(body);
			return -ENOMEM;
		}
		body = longer;
		memset(body + len, 0x5a, c->tail);
		len += c->tail;
	}
	head.bytes = (uint32_t)len;
	rc = raw_frame(c, &head, body, len, fds, n_fds);
	free(body);
	if (!rc)
		rc = raw_recv(c, RAW_TIMEOUT_MS);
	if (rc)
		return rc;
	if (c->head.type != (type | EPF_SVC_ANSWER) || c->head.seq != c->seq)
		return -EBADMSG;
	if (c->head.status < 0 || !reply)
		return c->head.status;
	return epf_svc_decode(type, true, c->minor, c->body, c->head.bytes, reply);
}

int raw_hello(struct raw *c, unsigned major, unsigned minor, uint32_t flags)
{
	struct epf_svc_hello h = { .major = (uint16_t)major,
				   .minor = (uint16_t)minor,
				   .flags = flags };
	struct epf_svc_hello_reply r;

	snprintf(h.program, sizeof(h.program), "test");
	c->minor = minor;
	return raw_call(c, EPF_SVC_HELLO, &h, NULL, 0, &r);
}

int raw_connect(struct raw *c, const char *path, uint32_t flags)
{
	int rc = raw_open(c, path);

	return rc ? rc : raw_hello(c, EPF_SVC_MAJOR, EPF_SVC_MINOR, flags);
}

char *raw_status(const char *path)
{
	struct epf_svc_status s = { 0 };
	struct epf_svc_status_reply reply;
	char *text = NULL;
	struct raw c;

	if (raw_connect(&c, path, 1) == 0 && raw_call(&c, EPF_SVC_STATUS, &s, NULL, 0, &reply) == 0)
		text = strndup(reply.json.data, reply.json.len);
	raw_close(&c);
	return text;
}

int raw_link(const char *path, const char *job, uint32_t link, bool up)
{
	struct epf_svc_link l = { .link = link, .up = up };
	struct epf_svc_link_reply reply;
	struct raw c;
	int rc = raw_connect(&c, path, 1);

	snprintf(l.job, sizeof(l.job), "%s", job);
	if (!rc)
		rc = raw_call(&c, EPF_SVC_LINK, &l, NULL, 0, &reply);
	if (rc)
		fprintf(stderr, "link: %s: %d %s\n", path, rc, c.text);
	raw_close(&c);
	return rc ? rc : (int)reply.nics;
}
