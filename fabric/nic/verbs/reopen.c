/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the verbs NIC that are opened again after a failure (epf_nic_ops.lane_reopen, lane_reconnect): what the NIC's other thread
 * (nic/rdma/opener.h) does for them, and what the core's thread does between two steps, without a system call. Of the NIC the other thread uses the device,
 * the settings and the random numbers, which have a lock.
 */
#include "fabric/nic/verbs/opener_priv.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the other thread ---- */

static int is_up(struct epf_verbs *v)
{
	struct epf_opener *o = &v->opener->o;

	if (!o->link_up)
		o->link_up = epf_verbs_ask_port(v) != 0;
	return o->link_up;
}

static int make(struct epf_verbs *v, struct epf_verbs_opener *r)
{
	int rc;

	if (r->old.qp)
		epf_verbs_lane_free(v, &r->old);
	if (!is_up(v))
		return -ENETDOWN;
	rc = epf_verbs_lane_make(v, &r->fresh, r->o.lane, r->depth);
	if (rc)
		epf_verbs_lane_free(v, &r->fresh);
	return rc;
}

static void carry_out(void *nic)
{
	struct epf_verbs *v = nic;
	struct epf_verbs_opener *r = v->opener;

	if (r->o.kind == EPF_OPENER_OPEN)
		r->o.rc = make(v, r);
	else if (r->o.kind == EPF_OPENER_CONNECT)
		r->o.rc = epf_verbs_lane_join(v, &r->fresh, r->o.lane, r->addr, r->addr_len,
					      r->token, is_up);
	else
		epf_verbs_lane_free(v, &r->fresh);
}

/* ---- the core's thread: when the NIC is opened and closed, and epf_nic_ops.wake_pending, wake_peers ---- */

int epf_verbs_reopen_init(struct epf_verbs *v)
{
	v->opener = calloc(1, sizeof(*v->opener));
	if (!v->opener)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: a NIC");
	epf_opener_init(&v->opener->o, carry_out, v, &v->wakeup);
	return 0;
}

int epf_verbs_reopen_pending(const struct epf_nic *nic)
{
	return epf_verbs_of(nic)->opener->o.is_waking;
}

void epf_verbs_reopen_wake(struct epf_nic *nic)
{
	epf_opener_wake(&epf_verbs_of(nic)->opener->o);
}

void epf_verbs_reopen_close(struct epf_verbs *v)
{
	struct epf_verbs_opener *r = v->opener;
	unsigned state, kind;

	if (!r)
		return;
	epf_opener_stop(&r->o);
	state = epf_opener_state(&r->o);
	kind = r->o.kind;
	if (state == EPF_OPENER_ASKED && kind == EPF_OPENER_OPEN)
		epf_verbs_lane_free(v, &r->old);
	if ((state == EPF_OPENER_DONE && kind == EPF_OPENER_OPEN && !r->o.rc) ||
	    (state == EPF_OPENER_ASKED && kind == EPF_OPENER_DISCARD))
		epf_verbs_lane_free(v, &r->fresh);
	free(r);
	v->opener = NULL;
}

/* ---- the core's thread, between two steps ---- */

static void ask(struct epf_verbs *v, enum epf_opener_kind kind, uint16_t lane)
{
	epf_opener_ask(&v->opener->o, kind, lane, v->counters.link_up && !v->dead);
}

/* What was opened and is no longer needed is closed: a queue pair by the other thread. 1: there is room for an order. */
static int is_free(struct epf_verbs *v)
{
	struct epf_opener *o = &v->opener->o;

	if (epf_opener_state(o) == EPF_OPENER_DONE && o->is_dropped) {
		if (o->kind == EPF_OPENER_CONNECT)
			v->lanes[o->lane].has_let_go = 1;
		if (o->kind == EPF_OPENER_OPEN && !o->rc)
			ask(v, EPF_OPENER_DISCARD, o->lane);
		else
			epf_opener_clear(o);
	}
	return epf_opener_state(o) == EPF_OPENER_NONE;
}

/* 1: the request for this lane is done, and dequeued. */
static int is_done(struct epf_verbs *v, enum epf_opener_kind kind, uint16_t lane)
{
	if (!epf_opener_take(&v->opener->o, kind, lane))
		return 0;
	if (v->opener->o.link_up)
		v->counters.link_up = !v->dead;
	return 1;
}

int epf_verbs_lane_reopen(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_opener *r = v->opener;
	int rc;

	if (is_done(v, EPF_OPENER_OPEN, lane)) {
		if (r->o.rc)
			return r->o.rc;
		v->lanes[lane] = r->fresh;
		rc = epf_verbs_lane_install(v, lane);
		if (rc) { /* not for as many lanes as there were */
			v->lanes[lane] =
				(struct epf_verbs_lane){ .generation = r->fresh.generation };
			ask(v, EPF_OPENER_DISCARD, lane);
			return rc;
		}
		*token = epf_verbs_token(r->fresh.qp->qp_num, r->fresh.psn);
		return 0;
	}
	if (v->dead)
		return -ENETDOWN;
	if (!is_free(v) || !epf_verbs_lane_drained(nic, lane))
		return -EAGAIN;
	r->old = (struct epf_verbs_lane){ .qp = NULL };
	if (v->lanes[lane].qp)
		epf_verbs_lane_detach(v, lane, &r->old);
	r->fresh = (struct epf_verbs_lane){ .generation = v->lanes[lane].generation };
	r->depth = depth;
	ask(v, EPF_OPENER_OPEN, lane);
	return -EAGAIN;
}

int epf_verbs_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			     uint64_t token)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_opener *r = v->opener;
	struct epf_verbs_lane *l = &v->lanes[lane];

	if (is_done(v, EPF_OPENER_CONNECT, lane)) {
		l->is_loop = r->fresh.is_loop;
		if (!r->o.rc)
			l->link = EPF_LANE_READY;
		return r->o.rc;
	}
	if (v->dead)
		return -ENETDOWN;
	if (lane >= v->max_lanes || !l->qp || l->link != EPF_LANE_IDLE ||
	    addr_len > sizeof(r->addr))
		return epf_fail(EPF_R_NIC_LANE, "verbs: lane %u is not idle", lane);
	if (!is_free(v))
		return -EAGAIN;
	r->fresh = *l;
	r->token = token;
	r->addr_len = addr_len;
	memcpy(r->addr, addr, addr_len);
	ask(v, EPF_OPENER_CONNECT, lane);
	return -EAGAIN;
}
