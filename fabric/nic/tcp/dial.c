/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dialing a peer's NIC: its addresses in turn, each with its time, until one leads to the NIC that is meant and both ends have proven the key. On the door's
 * thread only.
 */
#include "fabric/nic/tcp/door_priv.h"

#include "fabric/base/clock.h"

#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* A peer whose door is crowded hangs up on the oldest: the next try is a little later. */
enum { AGAIN_NS = 20 * 1000 * 1000 };

void epf_tcp_dial_close(struct epf_tcp_door *door, struct epf_tcp_caller *c)
{
	epf_tcp_callers_remove(&door->dials, c);
	if (c->fd >= 0)
		close(c->fd);
	free(c->place);
	free(c);
}

/* What somebody who looks for the cause needs to know of an attempt. */
static const char *cause(const struct epf_tcp_caller *c, int rc)
{
	switch (rc) {
	case -ETIMEDOUT:
		if (c->is_connected)
			return "connected, but no answer: the peer's process is stopped, or its CPUs are busy (tcp-timeout)";
		return "no answer: a firewall, a wrong address or interface, or the host is down";
	case -ECONNREFUSED:
		return "connection refused: the peer's process has ended, or a firewall refuses";
	case -EACCES:
		return "the other end does not prove the job's key: another job or another process is there";
	case -EPROTOTYPE:
		return "the setting wire-encryption is not the same at both ends";
	case -EPROTO:
		return "what answers is no EP fabric NIC of this release";
	default:
		return strerror(-rc);
	}
}

static void note_attempt(struct epf_tcp_caller *c, int rc)
{
	char text[64] = "";

	c->rc = rc;
	epf_net_print(&c->place->addrs[c->at], text, sizeof(text));
	snprintf(c->why, sizeof(c->why), "%.50s: %.100s", text, cause(c, rc));
}

/* The number of the interface that has an address; 0: none has. */
static unsigned interface_of(const struct epf_net_addr *addr)
{
	bool is_v6 = addr->sa.sa_family == AF_INET6;
	struct ifaddrs *list;
	unsigned number = 0;

	if (getifaddrs(&list))
		return 0;
	for (const struct ifaddrs *i = list; i && !number; i = i->ifa_next) {
		struct epf_net_addr at = { .len = 0 };

		if (!i->ifa_addr || i->ifa_addr->sa_family != addr->sa.sa_family)
			continue;
		memcpy(&at.any, i->ifa_addr, is_v6 ? sizeof(at.v6) : sizeof(at.v4));
		if (is_v6 ? IN6_ARE_ADDR_EQUAL(&at.v6.sin6_addr, &addr->v6.sin6_addr)
			  : at.v4.sin_addr.s_addr == addr->v4.sin_addr.s_addr)
			number = if_nametoindex(i->ifa_name);
	}
	freeifaddrs(list);
	return number;
}

/* A link-local address means something on one interface only: the one that this NIC uses itself. */
static struct epf_net_addr scoped(const struct epf_tcp_door *door, struct epf_net_addr to)
{
	if (to.sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to.v6.sin6_addr) &&
	    door->n_listen)
		to.v6.sin6_scope_id = interface_of(&door->listen[0]);
	return to;
}

static int open_attempt(struct epf_tcp_door *door, struct epf_tcp_caller *c)
{
	const struct epf_net_addr there = scoped(door, c->place->addrs[c->at]), *to = &there;
	int rc;

	c->is_connected = 0;
	c->fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		return -errno;
	epf_tcp_tune(c->fd);
	(void)epf_tcp_use_congestion(c->fd, door->opts.congestion); /* the listener has it */
	for (uint32_t i = 0; door->opts.links > 1 && i < door->n_listen; i++) {
		struct epf_net_addr from = door->listen[i];

		/* One of several links: by its own interface. */
		if (from.sa.sa_family != to->sa.sa_family)
			continue;
		epf_net_set_port(&from, 0);
		if (bind(c->fd, &from.sa, from.len))
			return -errno;
	}
	if (connect(c->fd, &to->sa, to->len) && errno != EINPROGRESS)
		return -errno;
	epf_tcp_greet_dial(&c->greet, &door->auth, door->id, &c->greet.claim,
			   epf_tcp_opts_mode(&door->opts));
	rc = epf_tcp_caller_watch(door, c, 1);
	c->deadline_ns = epf_now_ns() + door->opts.timeout_ns;
	return rc;
}

static void close_attempt(struct epf_tcp_caller *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

/* Tries the addresses from c->at on. When none is left: later again, or the dial has failed. */
static void try_on(struct epf_tcp_door *door, struct epf_tcp_caller *c)
{
	uint64_t now = epf_now_ns();

	for (; c->at < c->place->count; c->at++) {
		int rc = open_attempt(door, c);

		if (!rc)
			return;
		close_attempt(c);
		note_attempt(c, rc);
	}
	if (c->rc == -ECONNRESET && now < c->give_up_ns) {
		c->at = 0;
		c->deadline_ns = now + AGAIN_NS;
		return;
	}
	epf_tcp_door_give(door, c, -1, c->rc, c->why);
	epf_tcp_dial_close(door, c);
}

static void attempt_failed(struct epf_tcp_door *door, struct epf_tcp_caller *c, int rc)
{
	close_attempt(c);
	note_attempt(c, rc);
	c->at++;
	try_on(door, c);
}

void epf_tcp_dial_begin(struct epf_tcp_door *door, struct epf_tcp_caller *c)
{
	c->give_up_ns = epf_now_ns() + 2 * door->opts.timeout_ns;
	c->rc = -EADDRNOTAVAIL;
	epf_tcp_callers_add(&door->dials, c);
	try_on(door, c);
}

void epf_tcp_dial_event(struct epf_tcp_door *door, struct epf_tcp_caller *c, uint32_t events)
{
	int rc = 0;

	if (!c->is_connected) {
		socklen_t len = sizeof(rc);

		if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &rc, &len))
			rc = errno;
		if (rc) {
			attempt_failed(door, c, -rc);
			return;
		}
		c->is_connected = 1;
	}
	rc = epf_tcp_caller_run(c);
	if (rc == 0)
		rc = epf_tcp_caller_watch(door, c, 0);
	if (rc == -EPIPE) /* hung up while this end was speaking */
		rc = -ECONNRESET;
	if (rc < 0) {
		attempt_failed(door, c, rc);
	} else if (rc > 0) {
		epoll_ctl(door->outer_fd, EPOLL_CTL_DEL, c->fd, NULL);
		epf_tcp_door_give(door, c, c->fd, 0, "");
		c->fd = -1;
		epf_tcp_dial_close(door, c);
	}
}

void epf_tcp_dials_tick(struct epf_tcp_door *door, uint64_t now_ns)
{
	struct epf_tcp_caller *next;

	for (struct epf_tcp_caller *c = door->dials.first; c; c = next) {
		next = c->next;
		if (now_ns < c->deadline_ns)
			continue;
		if (c->fd < 0)
			try_on(door, c);
		else
			attempt_failed(door, c, -ETIMEDOUT);
	}
}
