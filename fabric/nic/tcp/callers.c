/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers at the door of a TCP NIC: accepted, heard out as far as the handshake goes, and closed when they are too many, too slow, or prove nothing. On the
 * door's thread only. What a stranger can make this process hold is one struct epf_tcp_caller and one descriptor, for a limited time.
 */
#define EPF_LOG_COMP "tcp"
#include "fabric/nic/tcp/door_priv.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { ACCEPTS_PER_TURN = 64, DEAF_NS = 100 * 1000 * 1000 };

void epf_tcp_tune(int fd)
{
	/* Keepalives make the peer's kernel answer on an idle connection, too: watch.c goes by the age of its last answer. */
	int on = 1, idle_s = 1, interval_s = 1, probes = 60;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

int epf_tcp_use_congestion(int fd, const char *name)
{
	if (!name[0] || !setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)))
		return 0;
	return epf_fail_sys(
		EPF_R_NIC_OPTION, errno,
		"tcp-congestion: '%s' is none that the kernel has and allows (/proc/sys/net/ipv4/tcp_allowed_congestion_control)",
		name);
}

int epf_tcp_caller_watch(struct epf_tcp_door *door, struct epf_tcp_caller *c, int first)
{
	const struct epf_tcp_greet *g = &c->greet;
	int is_sending = g->sent < g->out_len || (c->place && !c->is_connected);
	struct epoll_event ev = { .events = is_sending ? EPOLLOUT : EPOLLIN, .data.ptr = c };

	return epoll_ctl(door->outer_fd, first ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, c->fd, &ev) ? -errno
											    : 0;
}

static int send_some(struct epf_tcp_caller *c)
{
	struct epf_tcp_greet *g = &c->greet;
	ssize_t n = send(c->fd, g->out + g->sent, g->out_len - g->sent, MSG_NOSIGNAL);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	g->sent = (uint16_t)(g->sent + n);
	return n > 0;
}

/* Never more than the message that is waited for: what comes after the handshake is the core's. */
static int receive_some(struct epf_tcp_caller *c)
{
	struct epf_tcp_greet *g = &c->greet;
	ssize_t n = recv(c->fd, g->in + g->have, g->want - g->have, 0);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (n == 0)
		return -ECONNRESET;
	g->have = (uint16_t)(g->have + n);
	return 1;
}

int epf_tcp_caller_run(struct epf_tcp_caller *c)
{
	struct epf_tcp_greet *g = &c->greet;

	for (;;) {
		int rc;

		if (g->sent < g->out_len) {
			rc = send_some(c);
		} else if (g->state == EPF_TCP_GREET_DONE) {
			return 1;
		} else {
			rc = receive_some(c);
			if (rc > 0 && g->have == g->want) {
				rc = epf_tcp_greet_step(g);
				if (!rc)
					continue;
			}
		}
		if (rc <= 0)
			return rc;
	}
}

void epf_tcp_stranger_close(struct epf_tcp_door *door, struct epf_tcp_caller *c)
{
	epf_tcp_callers_remove(&door->strangers, c);
	if (c->fd >= 0)
		close(c->fd);
	free(c);
}

static void say_refused(int fd, const char *why)
{
	struct epf_net_addr from = { .len = sizeof(from.any) };
	char text[EPF_NET_HOST_MAX + 16] = "?";

	if (getpeername(fd, &from.sa, &from.len) == 0)
		epf_net_print(&from, text, sizeof(text));
	epf_warn_ratelimited("connection from %s refused: %s", text, why);
}

void epf_tcp_stranger_event(struct epf_tcp_door *door, struct epf_tcp_caller *c)
{
	int rc = epf_tcp_caller_run(c);

	if (rc == 0)
		rc = epf_tcp_caller_watch(door, c, 0);
	else if (rc == -EPROTO || rc == -EACCES || rc == -EPROTOTYPE) {
		epf_tcp_count(&door->counts.refused);
		say_refused(c->fd, rc == -EPROTO   ? "what it says is no EP fabric handshake"
				   : rc == -EACCES ? "it does not prove the job's key"
						   : "its setting wire-encryption is another");
	} else if (rc < 0) {
		epf_tcp_count(&door->counts.silent);
	}
	if (rc == 0)
		return;
	if (rc > 0) {
		epf_tcp_count(&door->counts.accepted);
		epoll_ctl(door->outer_fd, EPOLL_CTL_DEL, c->fd, NULL);
		epf_tcp_door_give(door, c, c->fd, 0, "");
		c->fd = -1;
	}
	epf_tcp_stranger_close(door, c);
}

void epf_tcp_strangers_tick(struct epf_tcp_door *door, uint64_t now_ns)
{
	/* Oldest first, and all have the same time. */
	while (door->strangers.first && now_ns >= door->strangers.first->deadline_ns) {
		epf_tcp_count(&door->counts.silent);
		epf_tcp_stranger_close(door, door->strangers.first);
	}
}

static void let_in(struct epf_tcp_door *door, int fd)
{
	struct epf_tcp_caller *c;

	/* An honest peer is done within a round trip, and tries again: the oldest is the likeliest to be none. */
	if (door->strangers.count >= door->opts.strangers) {
		epf_tcp_count(&door->counts.evicted);
		epf_tcp_stranger_close(door, door->strangers.first);
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		close(fd);
		return;
	}
	c->fd = fd;
	c->deadline_ns = epf_now_ns() + door->opts.stranger_timeout_ns;
	epf_tcp_greet_accept(&c->greet, &door->auth, door->id, epf_tcp_opts_mode(&door->opts));
	epf_tcp_callers_add(&door->strangers, c);
	epf_tcp_tune(fd);
	if (epf_tcp_caller_watch(door, c, 1))
		epf_tcp_stranger_close(door, c);
}

void epf_tcp_callers_let_in(struct epf_tcp_door *door, uint32_t listener)
{
	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(door->listen_fd[listener], NULL, NULL,
				 SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			let_in(door, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			epf_warn_ratelimited("nobody is let in for a moment: %s",
					     errno == EMFILE ? "no descriptors left, see ulimit -n"
							     : "the system lacks memory");
			door->deaf_until_ns = epf_now_ns() + DEAF_NS;
		}
		if (errno != ECONNABORTED && errno != EINTR)
			return;
	}
}
