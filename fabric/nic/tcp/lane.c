/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the TCP NIC: create, connect, fence, drain, destroy. Of two NICs the one with the lower id dials for all lanes between them; the other waits to be called. A
 * lane's token holds a number that no other lane of this NIC has had, so a connection that is meant for an earlier one finds none.
 *
 * Lanes that are opened again (lane_reopen, lane_reconnect) are opened here, too, between two steps: closing and making a socket takes a few system calls, and what takes long,
 * connecting, is the door's.
 */
#include "fabric/nic/tcp/tcp.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* ---- create ---- */

static struct epf_tcp_lane *lane_alloc(uint32_t depth)
{
	struct epf_tcp_lane *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->fd = l->parked = -1;
	l->depth = depth;
	l->mask = 1;
	while (l->mask < depth)
		l->mask <<= 1;
	l->mask--;
	l->tx.wrs = calloc(l->mask + 1u, sizeof(*l->tx.wrs));
	l->tx.inlines = calloc(l->mask + 1u, EPF_NIC_MSG_BYTES);
	l->rx.stage = malloc(EPF_TCP_STAGE);
	if (!l->tx.wrs || !l->tx.inlines || !l->rx.stage) {
		epf_tcp_lane_free(l);
		return NULL;
	}
	return l;
}

int epf_tcp_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_tcp_lane *l;

	if (lane >= EPF_TCP_MAX_LANES)
		return epf_fail(EPF_R_NIC_LIMIT, "tcp: lane %u, but this NIC has lanes 0 to %d",
				lane, EPF_TCP_MAX_LANES - 1);
	if (depth == 0 || depth > EPF_TCP_MAX_DEPTH)
		return epf_fail(EPF_R_NIC_LIMIT, "tcp: lane depth %u is not in 1 to %d", depth,
				EPF_TCP_MAX_DEPTH);
	if (t->lanes[lane])
		return epf_fail(EPF_R_NIC_LANE, "tcp: lane %u exists already", lane);
	l = lane_alloc(depth);
	if (!l)
		return epf_fail(EPF_R_NO_MEMORY, "tcp: lane %u", lane);
	l->number = lane;
	if (epf_tcp_gpu_lane(t, l)) {
		epf_tcp_lane_free(l);
		return -ENOMEM;
	}
	if (++t->epoch == 0)
		t->epoch = 1;
	l->token = (uint64_t)t->epoch << 32 | lane;
	t->lanes[lane] = l;
	if (lane >= t->lanes_end)
		t->lanes_end = lane + 1u;
	*token = l->token;
	return 0;
}

/* ---- connect ---- */

static int check_peer(const struct epf_tcp *t, struct epf_tcp_lane *l, uint16_t lane,
		      const void *addr, size_t addr_len, uint64_t token,
		      struct epf_tcp_place *place)
{
	int rc;

	if (!l || l->link != EPF_LANE_IDLE)
		return epf_fail(EPF_R_NIC_LANE, "tcp: lane %u is not idle", lane);
	rc = epf_tcp_addr_decode(addr, addr_len, place);
	if (rc)
		return rc;
	if (token >> 32 == 0 || token & 0xffff0000u)
		return epf_fail(EPF_R_NIC_ADDRESS, "tcp: lane %u got an impossible token", lane);
	l->peer_token = token;
	memcpy(l->peer, place->id, EPF_TCP_ID);
	l->is_loop = memcmp(t->id, place->id, EPF_TCP_ID) == 0;
	return 0;
}

/* Takes a connection that came early, if it is from this peer. */
static void take_parked(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	if (l->parked >= 0 && l->parked_token == l->peer_token &&
	    memcmp(l->parked_peer, l->peer, EPF_TCP_ID) == 0) {
		epf_tcp_attach(t, l, l->parked, l->parked_seal);
		l->parked = -1;
		l->parked_seal = NULL;
	}
	epf_tcp_unpark(l);
}

/* 1: there is a connection, or one will be made by the peer; 0: this end has begun to dial; -errno. */
static int begin(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_place *place)
{
	struct epf_tcp_claim claim = { .to_token = l->peer_token, .from_token = l->token };
	int rc;

	if (l->is_loop)
		return 1;
	if (memcmp(t->id, l->peer, EPF_TCP_ID) > 0) {
		take_parked(t, l);
		return 1;
	}
	rc = epf_tcp_open_door(t);
	if (rc)
		return rc;
	memcpy(claim.to, l->peer, EPF_TCP_ID);
	memcpy(claim.from, t->id, EPF_TCP_ID);
	rc = epf_tcp_door_dial(t->door, place, &claim);
	l->dials = rc == 0;
	l->dial_rc = 0;
	return rc;
}

/* The end of a dial: 0, -EAGAIN while it goes on. */
static int dialed(const struct epf_tcp_lane *l)
{
	if (l->dials)
		return -EAGAIN;
	if (l->fd < 0)
		return epf_fail(EPF_R_NIC_CONNECT, "tcp: lane %u: %s", l->number, l->why);
	return 0;
}

static void connected(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	l->link = EPF_LANE_READY;
	epf_tcp_make_ready(t, l);
	epf_tcp_tell_other(t, l); /* which may have work that waits for this */
}

int epf_tcp_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_tcp_lane *l = epf_tcp_lane_at(t, lane);
	struct epf_tcp_place place;
	uint64_t deadline;
	int rc = check_peer(t, l, lane, addr, addr_len, token, &place);

	if (rc)
		return rc;
	rc = begin(t, l, &place);
	deadline = epf_now_ns() + t->opts.timeout_ns * (2 + place.count);
	while (rc == 0 && l->dials) {
		uint64_t now = epf_now_ns();

		if (now >= deadline)
			return epf_fail(EPF_R_NIC_CONNECT, "tcp: lane %u: no outcome", lane);
		epf_tcp_door_wait(t->door, deadline - now);
		epf_tcp_take_given(t);
	}
	if (rc == 0)
		rc = dialed(l);
	if (rc < 0)
		return rc;
	connected(t, l);
	return 0;
}

int epf_tcp_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_tcp_lane *l = epf_tcp_lane_at(t, lane);
	struct epf_tcp_place place;
	int rc;

	if (l && l->link == EPF_LANE_IDLE && l->peer_token) { /* asked before */
		rc = dialed(l);
		if (rc)
			return rc;
		connected(t, l);
		return 0;
	}
	rc = check_peer(t, l, lane, addr, addr_len, token, &place);
	if (!rc)
		rc = begin(t, l, &place);
	if (rc < 0)
		return rc;
	if (rc == 0)
		return -EAGAIN;
	connected(t, l);
	return 0;
}

/* ---- the end of a lane ---- */

void epf_tcp_lane_fence(struct epf_nic *nic, uint16_t lane)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_tcp_lane *l = epf_tcp_lane_at(t, lane);

	if (!l)
		return;
	if (l->link == EPF_LANE_READY)
		epf_tcp_fail(t, l, epf_tcp_complete(l), EPF_S_FLUSHED);
	l->link = EPF_LANE_ERROR;
	l->is_gone = false;
	l->rx.is_dead = true;
	epf_tcp_close_fd(l);
	if (l->dials)
		epf_tcp_door_forget(t->door, l->token);
	l->dials = false;
}

int epf_tcp_lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	const struct epf_tcp_lane *l = epf_tcp_lane_at(epf_tcp_of(nic), lane);

	return !l || (l->link != EPF_LANE_READY && l->tx.tail == l->tx.head && !l->is_gone &&
		      epf_tcp_gpu_is_quiet(epf_tcp_of(nic), l));
}

static void leave_list(struct epf_tcp *t, const struct epf_tcp_lane *gone)
{
	uint16_t at = t->ready_head;

	if (!gone->is_ready)
		return;
	t->ready_head = EPF_TCP_NO_LANE;
	while (at != EPF_TCP_NO_LANE) {
		struct epf_tcp_lane *l = t->lanes[at];

		at = l->ready_next;
		l->is_ready = false;
		if (l != gone)
			epf_tcp_make_ready(t, l);
	}
}

void epf_tcp_lane_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_tcp_lane *l = epf_tcp_lane_at(t, lane);

	if (!l)
		return;
	epf_tcp_lane_fence(nic, lane);
	leave_list(t, l);
	t->lanes[lane] = NULL;
	epf_tcp_tell_other(t, l);
	epf_tcp_gpu_lane_free(t, l);
	epf_tcp_lane_free(l);
}

enum epf_lane_link epf_tcp_lane_link(const struct epf_nic *nic, uint16_t lane)
{
	const struct epf_tcp_lane *l = epf_tcp_lane_at(epf_tcp_of(nic), lane);

	return l ? (enum epf_lane_link)l->link : EPF_LANE_IDLE;
}
