/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ending lanes of the EFA NIC: fences, lanes whose peer or device has gone, and lanes one of whose work requests failed. Called
 * by the engine when a lane has failed, and (the _cold functions) by the data path, once for each failure. Nothing here is
 * called by a step that does not fail.
 *
 * SRD goes on after a work request has failed; the contract of lanes does not. So the queue pair is put in error, and what
 * is outstanding is flushed. Should a device not report it then, it is given up after efa-flush-wait: its outcome is unknown
 * either way. A queue pair in error refuses what arrives.
 */
#include "fabric/nic/efa/efa.h"

#include <errno.h>
#include <string.h>

void epf_efa_lane_fence(struct epf_nic *nic, uint16_t lane)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_lane *l;

	epf_efa_reopen_end(v, lane);
	if (lane >= v->max_lanes || !v->lanes[lane].qp)
		return;
	l = &v->lanes[lane];
	if (l->drain != EPF_EFA_OPEN)
		return;
	l->gone = 0;
	l->drain = EPF_EFA_FENCED;
	epf_efa_lane_stop(v, lane, EPF_S_FLUSHED);
}

/*
 * In error a queue pair takes nothing more, but a packet that the device has in hand may still land, and its arrival come out a
 * moment later; reset means that the device has let go of it. So: error, take what comes until there is none, reset, look
 * once more.
 */
static void drain_on(struct epf_efa *v, struct epf_efa_lane *l)
{
	switch (l->drain) {
	case EPF_EFA_FENCED:
		l->drain = EPF_EFA_QUIET;
		break;
	case EPF_EFA_QUIET:
		if (v->empties == l->empty_mark)
			return;
		/* Refused by a broken device only, which lands nothing. */
		epf_efa_lane_to(v, l, IBV_QPS_RESET);
		l->drain = EPF_EFA_RESET;
		break;
	case EPF_EFA_RESET:
		if (v->empties != l->empty_mark)
			l->drain = EPF_EFA_DRAINED;
		return;
	default:
		return;
	}
	l->empty_mark = v->empties;
}

int epf_efa_lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_lane *l;

	if (lane >= v->max_lanes || !v->lanes[lane].qp)
		return 1;
	l = &v->lanes[lane];
	if (l->link == EPF_LANE_READY || l->n_free != l->depth || l->in_report)
		return 0;
	if (v->dead)
		return v->spent;
	drain_on(v, l);
	return l->drain == EPF_EFA_OPEN || l->drain == EPF_EFA_DRAINED;
}
