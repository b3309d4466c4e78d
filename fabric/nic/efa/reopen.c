/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the EFA NIC that are opened again after a failure (epf_nic_ops.lane_reopen, lane_reconnect): what the NIC's other thread
 * (nic/rdma/opener.h) does for them, and what the core's thread does between two steps, without a system call. Of the NIC the other thread uses the device,
 * the settings and the random numbers, which have a lock.
 *
 * SRD has no connection, so a queue pair is ready when it is made, and connecting one asks for the peer's address handle at most. The
 * lane itself is in neither order: one that is given up needs to wait for nobody.
 */
#include "fabric/nic/efa/opener_priv.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>

/* ---- the other thread ---- */

static int is_up(struct epf_efa *v)
{
	struct epf_opener *o = &v->opener->o;

	if (!o->link_up)
		o->link_up = epf_efa_ask_port(v) != 0;
	return o->link_up;
}

static int make(struct epf_efa *v, struct epf_efa_opener *r)
{
	int rc;

	epf_efa_lane_free(v, &r->old);
	if (!is_up(v))
		return -ENETDOWN;
	rc = epf_efa_lane_make(v, &r->fresh, r->o.lane, r->depth);
	if (rc)
		epf_efa_lane_free(v, &r->fresh);
	return rc;
}

static int make_handle(struct epf_efa *v, struct epf_efa_opener *r)
{
	if (!is_up(v))
		return -ENETDOWN;
	return epf_efa_ah_make(v, &r->peer.gid, &r->handle);
}

static void carry_out(void *nic)
{
	struct epf_efa *v = nic;
	struct epf_efa_opener *r = v->opener;

	if (r->o.kind == EPF_OPENER_OPEN)
		r->o.rc = make(v, r);
	else if (r->o.kind == EPF_OPENER_CONNECT)
		r->o.rc = make_handle(v, r);
	else
		epf_efa_lane_free(v, &r->fresh);
}

/* ---- the core's thread: when the NIC is opened and closed, and epf_nic_ops.wake_pending, wake_peers ---- */

int epf_efa_reopen_init(struct epf_efa *v)
{
	v->opener = calloc(1, sizeof(*v->opener));
	if (!v->opener)
		return epf_fail(EPF_R_NO_MEMORY, "efa: a NIC");
	epf_opener_init(&v->opener->o, carry_out, v, &v->wakeup);
	return 0;
}

int epf_efa_reopen_pending(const struct epf_nic *nic)
{
	return epf_efa_of(nic)->opener->o.is_waking;
}

void epf_efa_reopen_wake(struct epf_nic *nic)
{
	epf_opener_wake(&epf_efa_of(nic)->opener->o);
}

void epf_efa_reopen_close(struct epf_efa *v)
{
	struct epf_efa_opener *r = v->opener;

	if (!r)
		return;
	epf_opener_stop(&r->o);
	/* What was handed over is the NIC's; the order says what is left. */
	if (epf_opener_state(&r->o) != EPF_OPENER_NONE) {
		if (r->handle)
			epf_efa_ah_free(v, r->handle);
		epf_efa_lane_free(v, &r->old);
		epf_efa_lane_free(v, &r->fresh);
	}
	free(r);
	v->opener = NULL;
}

/* ---- the core's thread, between two steps ---- */

static void ask(struct epf_efa *v, enum epf_opener_kind kind, uint16_t lane)
{
	epf_opener_ask(&v->opener->o, kind, lane, v->counters.link_up && !v->dead);
}

/* What was opened and is no longer needed is closed by the other thread. 1: there is room for an order. */
static int is_free(struct epf_efa *v)
{
	struct epf_efa_opener *r = v->opener;

	if (epf_opener_state(&r->o) == EPF_OPENER_DONE && r->o.is_dropped) {
		if (r->o.kind == EPF_OPENER_CONNECT) /* freed as if a lane had had it */
			r->fresh = (struct epf_efa_lane){ .handle = r->handle };
		r->handle = NULL;
		if (r->o.rc)
			epf_opener_clear(&r->o);
		else
			ask(v, EPF_OPENER_DISCARD, r->o.lane);
	}
	return epf_opener_state(&r->o) == EPF_OPENER_NONE;
}

/* 1: the request for this lane is done, and dequeued. */
static int is_done(struct epf_efa *v, enum epf_opener_kind kind, uint16_t lane)
{
	if (!epf_opener_take(&v->opener->o, kind, lane))
		return 0;
	if (v->opener->o.link_up)
		v->counters.link_up = !v->dead;
	return 1;
}

int epf_efa_lane_reopen(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_opener *r = v->opener;

	if (is_done(v, EPF_OPENER_OPEN, lane)) {
		if (r->o.rc)
			return r->o.rc;
		v->lanes[lane] = r->fresh;
		epf_efa_lane_install(v, lane);
		*token = epf_efa_token(r->fresh.qp->qp_num, r->fresh.qkey);
		return 0;
	}
	if (v->dead)
		return -ENETDOWN;
	if (!is_free(v) || !epf_efa_lane_drained(nic, lane))
		return -EAGAIN;
	r->old = (struct epf_efa_lane){ .qp = NULL };
	if (v->lanes[lane].qp)
		epf_efa_lane_detach(v, lane, &r->old);
	r->fresh = (struct epf_efa_lane){ .generation = v->lanes[lane].generation };
	r->handle = NULL;
	r->depth = depth;
	ask(v, EPF_OPENER_OPEN, lane);
	return -EAGAIN;
}

/* The peer's handle has been made, or has not. */
static int take_handle(struct epf_efa *v, uint16_t lane)
{
	struct epf_efa_opener *r = v->opener;
	struct epf_efa_ah *handle = r->handle;

	r->handle = NULL;
	if (r->o.rc)
		return r->o.rc;
	if (v->dead) {
		r->fresh = (struct epf_efa_lane){ .handle = handle };
		ask(v, EPF_OPENER_DISCARD, lane);
		return -ENETDOWN;
	}
	epf_efa_lane_connected(v, lane, &r->peer, r->token, handle);
	return 0;
}

int epf_efa_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_opener *r = v->opener;
	struct epf_efa_ah *handle;
	struct epf_efa_peer peer;
	int rc;

	if (is_done(v, EPF_OPENER_CONNECT, lane))
		return take_handle(v, lane);
	if (v->dead)
		return -ENETDOWN;
	if (lane >= v->max_lanes || !v->lanes[lane].qp || v->lanes[lane].link != EPF_LANE_IDLE)
		return epf_fail(EPF_R_NIC_LANE, "efa: lane %u is not idle", lane);
	if (!is_free(v))
		return -EAGAIN;
	rc = epf_efa_check_peer(v, lane, addr, addr_len, token, &peer);
	if (rc)
		return rc;
	handle = v->counters.link_up ? epf_efa_ah_find(v, &peer.gid) : NULL;
	if (handle) {
		epf_efa_lane_connected(v, lane, &peer, token, handle);
		return 0;
	}
	r->old = r->fresh = (struct epf_efa_lane){ .qp = NULL };
	r->handle = NULL;
	r->peer = peer;
	r->token = token;
	ask(v, EPF_OPENER_CONNECT, lane);
	return -EAGAIN;
}
