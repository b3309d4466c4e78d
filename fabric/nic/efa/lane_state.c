/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a lane of the EFA NIC fails. SRD goes on after a work request has failed; the contract of lanes does not. So the queue pair is put in error,
 * and what is outstanding is flushed. Once for each failure, on the core's thread.
 */
#include "fabric/nic/efa/efa.h"

int epf_efa_lane_to(struct epf_efa *v, struct epf_efa_lane *l, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return v->lib->verbs->modify_qp(l->qp, &attr, IBV_QP_STATE);
}

/* Queue pair to error; what is outstanding will come as completions, or be given up with this status. */
void epf_efa_lane_stop(struct epf_efa *v, uint16_t lane, unsigned status)
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
		if (v->dead || epf_efa_lane_to(v, l, IBV_QPS_ERR))
			l->abandoned = 1;
	} else if (v->dead) {
		l->abandoned = 1;
	}
	epf_efa_report_lane(v, lane);
}

void epf_efa_stop_lane_cold(struct epf_efa *v, uint16_t lane)
{
	epf_efa_lane_stop(v, lane, EPF_S_FLUSHED);
}

void epf_efa_lane_gone_cold(struct epf_efa *v, uint16_t lane, unsigned status)
{
	if (v->lanes[lane].link != EPF_LANE_READY)
		return;
	v->counters.errors++;
	v->lanes[lane].gone = (uint8_t)status;
	epf_efa_lane_stop(v, lane, EPF_S_RETRY_EXCEEDED);
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
			epf_efa_lane_stop(v, (uint16_t)lane, EPF_S_FLUSHED);
	}
}

void epf_efa_port_lost(struct epf_efa *v)
{
	v->counters.link_up = 0;
	for (uint32_t lane = 0; lane < v->lanes_end; lane++)
		if (v->lanes[lane].qp)
			epf_efa_lane_gone_cold(v, (uint16_t)lane, EPF_S_LINK_DOWN);
}

void epf_efa_all_hungry_cold(struct epf_efa *v)
{
	v->level = v->most_lanes ? (v->most_receives + v->most_lanes - 1) / v->most_lanes : 0;
	for (uint32_t lane = 0; lane < v->lanes_end; lane++)
		epf_efa_make_hungry(v, (uint16_t)lane);
}
