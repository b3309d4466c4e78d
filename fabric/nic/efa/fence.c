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

static int to_state(struct epf_efa *v, struct epf_efa_lane *l, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return v->lib->verbs->modify_qp(l->qp, &attr, IBV_QP_STATE);
}

/* Queue pair to error; what is outstanding will come as completions, or be given up with this status. */
static void stop(struct epf_efa *v, uint16_t lane, unsigned status)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	l->link = EPF_LANE_ERROR;
	l->must_stop = 0;
	if (!l->has_failed)
		l->status = (uint8_t)status;
	if (!l->stopping) {
		l->stopping = 1;
		l->flush_by = v->now(v->now_arg) + v->opts.flush_wait_ns;
		/* Where the device does not answer any more, nothing will come of it either. */
		if (v->dead || to_state(v, l, IBV_QPS_ERR))
			l->abandoned = 1;
	} else if (v->dead) {
		l->abandoned = 1;
	}
	epf_efa_report_lane(v, lane);
}

void epf_efa_stop_lane_cold(struct epf_efa *v, uint16_t lane)
{
	stop(v, lane, EPF_S_FLUSHED);
}

void epf_efa_lane_gone_cold(struct epf_efa *v, uint16_t lane, unsigned status)
{
	if (v->lanes[lane].link != EPF_LANE_READY)
		return;
	v->counters.errors++;
	v->lanes[lane].gone = (uint8_t)status;
	stop(v, lane, EPF_S_RETRY_EXCEEDED);
}

void epf_efa_device_lost_cold(struct epf_efa *v)
{
	if (v->dead)
		return;
	v->dead = 1;
	v->counters.errors++;
	v->counters.link_up = 0;
	for (uint32_t lane = 0; lane < v->lanes_end; lane++) {
		struct epf_efa_lane *l = &v->lanes[lane];

		if (!l->qp)
			continue;
		if (l->link == EPF_LANE_READY)
			epf_efa_lane_gone_cold(v, (uint16_t)lane, EPF_S_LINK_DOWN);
		else if (l->n_free != l->depth)
			stop(v, (uint16_t)lane, EPF_S_FLUSHED);
	}
}

void epf_efa_port_lost(struct epf_efa *v)
{
	v->counters.link_up = 0;
	for (uint32_t lane = 0; lane < v->lanes_end; lane++)
		if (v->lanes[lane].qp)
			epf_efa_lane_gone_cold(v, (uint16_t)lane, EPF_S_LINK_DOWN);
}

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
	stop(v, lane, EPF_S_FLUSHED);
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
		to_state(v, l, IBV_QPS_RESET);
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
