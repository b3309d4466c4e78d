/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to a lane: it gets its connection, it fails, its peer is lost. Called by the data path and by lane.c, on the core's thread.
 */
#include "fabric/nic/tcp/tcp.h"

#define EPF_LOG_COMP "tcp"
#include "fabric/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

void epf_tcp_close_fd(struct epf_tcp_lane *l)
{
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
	epf_tcp_seal_close(l->seal);
	l->seal = NULL;
	l->rx.is_readable = l->tx.is_writable = false;
	l->tx.n_iov = l->tx.at_iov = 0;
}

void epf_tcp_tell_other(struct epf_tcp *t, const struct epf_tcp_lane *l)
{
	struct epf_tcp_lane *p = epf_tcp_lane_at(t, l->peer_token & 0xffff);

	if (l->is_loop && p)
		epf_tcp_make_ready(t, p);
}

void epf_tcp_fail(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t at, unsigned status)
{
	if (l->link != EPF_LANE_READY)
		return;
	/* A READ before it whose bytes have not come is the one that fails. */
	l->tx.acked = at;
	l->tx.acked = epf_tcp_complete(l);
	l->tx.reads_tail = l->tx.reads_head;
	l->link = EPF_LANE_ERROR;
	l->status = (uint8_t)status;
	l->has_failed = true;
	l->rx.is_dead = true;
	if (l->rx.waits) {
		l->rx.waits = false;
		t->n_waits--;
	}
	epf_tcp_make_ready(t, l);
	epf_tcp_tell_other(t, l);
}

void epf_tcp_lose(struct epf_tcp *t, struct epf_tcp_lane *l, unsigned status, const char *why)
{
	epf_tcp_close_fd(l);
	if (l->link != EPF_LANE_READY)
		return;
	t->counters.errors++;
	if (why)
		epf_info("lane %u: connection lost: %s", l->number, why);
	epf_tcp_fail(t, l, epf_tcp_complete(l), status);
	l->is_gone = true;
	l->gone_status = (uint8_t)status;
}

void epf_tcp_broken(struct epf_tcp *t, struct epf_tcp_lane *l, const char *what)
{
	epf_warn_ratelimited("lane %u: the peer breaks the protocol: %s", l->number, what);
	epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, NULL);
}

/* For lane_path: a lane that cannot be connected is made again and again, so it is kept by number. */
static void note_try(struct epf_tcp *t, const struct epf_tcp_lane *l, int rc)
{
	uint8_t *path = &t->tries[l->number].path;

	switch (rc) {
	case 0:
		*path = EPF_STATS_PATH_UNKNOWN;
		break;
	case -ETIMEDOUT:
		*path = EPF_STATS_PATH_NO_ANSWER;
		break;
	case -ECONNREFUSED:
		*path = EPF_STATS_PATH_REFUSED;
		break;
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -EADDRNOTAVAIL:
		*path = EPF_STATS_PATH_NO_ROUTE;
		break;
	default:
		*path = EPF_STATS_PATH_UNCONNECTED;
	}
}

void epf_tcp_attach(struct epf_tcp *t, struct epf_tcp_lane *l, int fd, struct epf_tcp_seal *seal)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
				  .data.u32 = l->number };

	l->fd = fd;
	l->seal = seal;
	l->since_ns = 0;
	l->dials = false;
	l->rx.is_readable = l->tx.is_writable = true;
	note_try(t, l, 0);
	if (epoll_ctl(t->inner_fd, EPOLL_CTL_ADD, fd, &ev))
		epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, strerror(errno));
	epf_tcp_make_ready(t, l);
}

void epf_tcp_unpark(struct epf_tcp_lane *l)
{
	if (l->parked >= 0)
		close(l->parked);
	epf_tcp_seal_close(l->parked_seal);
	l->parked = -1;
	l->parked_seal = NULL;
}

/* A connection for a lane that is not connected yet waits for lane_connect; of two the later one. */
static void park(struct epf_tcp_lane *l, struct epf_tcp_given *g)
{
	epf_tcp_unpark(l);
	l->parked = g->fd;
	l->parked_seal = g->seal;
	l->parked_token = g->peer_token;
	memcpy(l->parked_peer, g->peer, EPF_TCP_ID);
	g->fd = -1;
	g->seal = NULL;
}

static void dial_failed(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_given *g)
{
	if (!l->dials)
		return;
	l->dials = false;
	l->dial_rc = g->rc ? g->rc : -ECONNRESET;
	note_try(t, l, l->dial_rc);
	snprintf(l->why, sizeof(l->why), "%s", g->why);
	if (l->link != EPF_LANE_READY) /* lane_connect waits for it, and says so */
		return;
	epf_warn_ratelimited("lane %u: %s", l->number, g->why);
	epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, NULL);
}

static void take(struct epf_tcp *t, struct epf_tcp_given *g)
{
	struct epf_tcp_lane *l = epf_tcp_lane_at(t, g->token & 0xffff);
	bool is_mine;

	if (!l || l->token != g->token || l->is_loop)
		return;
	if (g->fd < 0) {
		dial_failed(t, l, g);
		return;
	}
	if (!g->dialed && l->link == EPF_LANE_IDLE && !l->dials) {
		park(l, g);
		return;
	}
	is_mine = l->peer_token == g->peer_token && memcmp(l->peer, g->peer, EPF_TCP_ID) == 0;
	if (!is_mine || l->fd >= 0 || (l->link != EPF_LANE_READY && !l->dials))
		return;
	epf_tcp_attach(t, l, g->fd, g->seal);
	g->fd = -1;
	g->seal = NULL;
}

void epf_tcp_take_given(struct epf_tcp *t)
{
	struct epf_tcp_given *next;

	for (struct epf_tcp_given *g = epf_tcp_door_take(t->door); g; g = next) {
		next = g->next;
		take(t, g);
		epf_tcp_given_free(g);
	}
}

void epf_tcp_lane_free(struct epf_tcp_lane *l)
{
	if (!l)
		return;
	epf_tcp_close_fd(l);
	epf_tcp_unpark(l);
	free(l->tx.wrs);
	free(l->tx.inlines);
	free(l->rx.stage);
	free(l);
}
