/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a lane of the verbs NIC: how it fails, and what a failed one reports. Slow path, on the core's thread. */
#include "fabric/nic/verbs/verbs.h"

struct epf_verbs_lane *epf_verbs_lane_used(const struct epf_nic *nic, uint16_t lane)
{
	const struct epf_verbs *v = epf_verbs_of(nic);

	return lane < v->max_lanes && v->lanes[lane].qp ? &v->lanes[lane] : NULL;
}

int epf_verbs_lane_to(struct epf_verbs *v, const struct epf_verbs_lane *l, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return v->lib->modify_qp(l->qp, &attr, IBV_QP_STATE);
}

void epf_verbs_lane_abandon(struct epf_verbs *v, uint16_t lane, unsigned status)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	l->link = EPF_LANE_ERROR;
	if (!l->has_failed) {
		l->has_failed = 1;
		l->failed_at = l->tail;
		l->status = (uint8_t)status;
	}
	l->flushed = l->head;
	if (l->tail != l->head || l->gone)
		epf_verbs_report_lane(v, lane);
}

void epf_verbs_lane_gone(struct epf_verbs *v, uint16_t lane, unsigned status)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	if (l->link != EPF_LANE_READY)
		return;
	l->link = EPF_LANE_ERROR;
	l->gone = (uint8_t)status;
	if (v->dead || epf_verbs_lane_to(v, l, IBV_QPS_ERR))
		epf_verbs_lane_abandon(v, lane, EPF_S_RETRY_EXCEEDED);
	epf_verbs_report_lane(v, lane);
}
