/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: accepting, reading, writing, deadlines, closing. A client that sends nothing, half a message, too much, or does not read its
 * answers costs one connection and a bounded buffer, never the control thread's time.
 */
#define EPF_LOG_COMP "svc"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static uint64_t deadline(const struct epf_svc *s)
{
	return epf_now_ns() + s->conf->service_stranger_timeout_ns;
}

static void watch(struct epf_svc *s, struct svc_session *c, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = c };

	if (c->events == events)
		return;
	c->events = events;
	epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
}

/* Strangers and operators, who have no separate limits, share one budget; the oldest makes room. */
static void limit_strangers(struct epf_svc *s)
{
	struct svc_session *c = s->first;

	if (s->n_strangers < s->conf->service_strangers)
		return;
	while (c && (c->dead || c->state > SVC_OPERATOR))
		c = c->next;
	if (!c)
		return;
	epf_fail(EPF_R_SVC_LIMIT,
		 "service: %u connections have not said HELLO, service-strangers is %llu",
		 s->n_strangers, (unsigned long long)s->conf->service_strangers);
	svc_refused(s, c, "the oldest stranger");
	svc_session_close(s, c, NULL);
}

static int session_open(struct epf_svc *s, int fd)
{
	struct svc_session *c = calloc(1, sizeof(*c));
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = c };
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (!c)
		return -ENOMEM;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) ||
	    epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e)) {
		free(c);
		return -errno;
	}
	c->fd = fd;
	c->filling.fd = -1;
	c->uid = cred.uid;
	c->pid = cred.pid;
	c->events = EPOLLIN;
	c->deadline_ns = deadline(s);
	epf_svc_input_init(&c->in, EPF_SVC_HELLO_MAX);
	c->prev = s->last;
	*(s->last ? &s->last->next : &s->first) = c;
	s->last = c;
	s->n_strangers++;
	return 0;
}

void svc_accept(struct epf_svc *s)
{
	int fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0 && (errno == EMFILE || errno == ENFILE) && s->spare_fd >= 0) {
		/* No descriptor is left: take the connection out of the queue with the spare one, and turn it away. */
		close(s->spare_fd);
		fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			close(fd);
		s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		epf_fail(EPF_R_SVC_LIMIT, "service: no descriptor is left, see ulimit -n");
		svc_refused(s, NULL, "a connection");
		return;
	}
	if (fd < 0)
		return;
	limit_strangers(s);
	if (session_open(s, fd)) {
		close(fd);
		epf_warn_ratelimited("client: no memory for a connection");
	}
}

void svc_session_close(struct epf_svc *s, struct svc_session *c, const char *why)
{
	bool client = c->state > SVC_OPERATOR;

	if (c->dead)
		return;
	c->dead = true;
	if (client)
		epf_info("client %s: process %d, user %u: out%s%s", c->program, (int)c->pid,
			 (unsigned)c->uid, why ? ": " : "", why ? why : "");
	if (c->filling.fd >= 0) {
		svc_user_give(c->user, SVC_REGIONS, 1);
		svc_user_give(c->user, SVC_BYTES, c->filling.bytes);
		svc_member_stop_filling(s, c);
	}
	/* When the daemon itself ends, nobody's process has died. */
	svc_rank_gone(s, c, s->ending ? EPF_R_NODE_LOST : EPF_R_RANK_DIED);
	*(client ? &s->n_clients : &s->n_strangers) -= 1;
	if (c->user) {
		svc_user_give(c->user, SVC_CLIENTS, 1);
		svc_user_put(s, c->user);
	}
	epf_svc_input_destroy(&c->in);
	epf_svc_output_destroy(&c->out);
	close(c->fd); /* leaves the epoll set too: nobody else has this description */
	*(c->prev ? &c->prev->next : &s->first) = c->next;
	*(c->next ? &c->next->prev : &s->last) = c->prev;
	/* An event that was fetched already may still point here: freed at the end of the turn. */
	c->next = s->graveyard;
	s->graveyard = c;
}

void svc_sessions_bury(struct epf_svc *s)
{
	while (s->graveyard) {
		struct svc_session *c = s->graveyard;

		s->graveyard = c->next;
		free(c);
	}
}

/* Writes what waits, and decides what to wait for. The next request is read when the last answer is out. */
static void settle(struct epf_svc *s, struct svc_session *c)
{
	int rc;

	if (c->dead)
		return;
	rc = epf_svc_output_write(&c->out, c->fd);
	if (rc < 0 || (rc && c->ending)) {
		svc_session_close(s, c, rc < 0 ? "it does not take its answer" : NULL);
		return;
	}
	if (!rc) {
		if (c->events != EPOLLOUT && c->state > SVC_OPERATOR)
			c->deadline_ns = deadline(s);
		watch(s, c, EPOLLOUT);
		return;
	}
	watch(s, c, c->filling.fd < 0 ? (uint32_t)EPOLLIN : 0);
	if (c->state <= SVC_OPERATOR)
		return; /* its deadline is for all it does */
	if (!c->in.raw_got)
		c->deadline_ns = 0;
	else if (!c->deadline_ns)
		c->deadline_ns = deadline(s);
}

void svc_session_event(struct epf_svc *s, struct svc_session *c, uint32_t events)
{
	int rc;

	if (c->dead)
		return;
	if (!(events & EPOLLIN) && events & (EPOLLHUP | EPOLLERR)) {
		svc_session_close(s, c, "its process ended");
		return;
	}
	if (events & EPOLLIN && c->events & EPOLLIN) {
		rc = epf_svc_input_read(&c->in, c->fd);
		if (rc == 1) {
			svc_request(s, c);
		} else if (rc == -ECONNRESET) {
			svc_session_close(s, c, "its process ended");
		} else if (rc < 0) {
			struct epf_svc_head none = { .type = 0 };

			svc_refused(s, c, "a message");
			epf_svc_output_failure(&c->out, &none, rc);
			c->ending = true;
		}
	}
	settle(s, c);
}

void svc_sessions_fill(struct epf_svc *s)
{
	for (struct svc_session *c = s->first, *next; c && s->n_filling; c = next) {
		struct epf_svc_region_reply reply;
		struct epf_svc_head head = c->filling.head;
		int rc;

		next = c->next;
		if (c->filling.fd < 0)
			continue;
		rc = svc_member_fill(s, c, &reply.region);
		if (!rc)
			continue;
		svc_request_finish(s, c, &head, rc < 0 ? rc : 0, &reply);
		settle(s, c);
	}
}

static void too_late(struct epf_svc *s, struct svc_session *c)
{
	unsigned long long ms = s->conf->service_stranger_timeout_ns / SVC_MS;

	if (c->state == SVC_OPERATOR) {
		svc_session_close(s, c, NULL);
		return;
	}
	epf_fail(EPF_R_SVC_TIMEOUT, "client: %s within %llu ms, service-stranger-timeout",
		 c->state == SVC_STRANGER ? "no HELLO came"
		 : c->out.frames          ? "it did not take its answer"
					  : "the rest of a message did not come",
		 ms);
	svc_refused(s, c, "a client");
	svc_session_close(s, c, "it was too slow");
}

void svc_sessions_deadlines(struct epf_svc *s, uint64_t now)
{
	for (struct svc_session *c = s->first, *next; c; c = next) {
		next = c->next;
		if (c->deadline_ns && now >= c->deadline_ns)
			too_late(s, c);
	}
}
