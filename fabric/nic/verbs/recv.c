/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow half of receives without a shared receive queue (recv_hot.c): how many a lane gets, and taking slots back from a queue
 * pair that is destroyed. Called when lanes are set up and when they end.
 */
#include "fabric/nic/verbs/verbs.h"

uint32_t epf_verbs_lane_receives(const struct epf_verbs *v)
{
	uint32_t most = v->dev_attr.max_qp_wr > 0 ? (uint32_t)v->dev_attr.max_qp_wr : 0;

	return v->opts.lane_receives < most ? v->opts.lane_receives : most;
}

void epf_verbs_recv_begin_cold(struct epf_verbs *v, uint32_t n)
{
	uint32_t lanes = v->qps_used, at = 0;

	if (!lanes)
		return;
	/* The engine asks for as many for each lane, once, when all are made; what a lane gives up later it gets back. */
	v->lane_receives = (n + lanes - 1) / lanes;
	for (uint32_t lane = 0; lane < v->max_lanes && at < lanes; lane++) {
		uint32_t share = n / lanes + (at < n % lanes);

		if (!v->lanes[lane].qp)
			continue;
		at++;
		if (share)
			epf_verbs_recv_owe(v, (uint16_t)lane, share);
	}
}

void epf_verbs_recv_again(struct epf_verbs *v, uint16_t lane)
{
	if (v->srq || !v->lane_receives)
		return;
	epf_verbs_recv_owe(v, lane, v->lane_receives);
	if (v->posted_receives + v->wanted_receives + EPF_VERBS_SPARE > v->receives.all)
		epf_rdma_more_slots_cold(&v->receives,
					 v->posted_receives + v->wanted_receives + EPF_VERBS_SPARE);
	epf_verbs_recv_give(v);
}

void epf_verbs_recv_forget(struct epf_verbs *v, uint16_t lane)
{
	struct epf_verbs_lane *l = &v->lanes[lane];
	uint32_t kept = 0;

	if (v->srq)
		return;
	v->wanted_receives -= l->owed;
	l->owed = 0;
	l->is_owed = 0;
	for (uint32_t i = 0; i < v->n_owed; i++)
		if (v->owed_lanes[i] != lane)
			v->owed_lanes[kept++] = v->owed_lanes[i];
	v->n_owed = kept;
	for (uint32_t c = 0; c < v->receives.n_chunks; c++)
		for (uint32_t i = 0; i < v->receives.chunks[c].count; i++) {
			struct epf_rdma_slot *s = &v->receives.chunks[c].slots[i];

			if (!s->qpn || s->qpn != l->qp->qp_num)
				continue;
			s->qpn = 0;
			s->next = v->receives.free;
			v->receives.free = s;
			v->posted_receives--;
		}
}
