/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs NIC says of itself. */
#include "fabric/nic/verbs/verbs.h"

void epf_verbs_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	const struct epf_verbs *v = epf_verbs_of(nic);
	uint32_t depth = v->dev_attr.max_qp_wr < EPF_VERBS_MAX_DEPTH
				 ? (uint32_t)v->dev_attr.max_qp_wr
				 : EPF_VERBS_MAX_DEPTH;

	*out = (struct epf_nic_caps){
		.name = "verbs",
		.ordered = v->ordered,
		.max_msg_bytes = v->max_msg_bytes,
		.max_lanes = v->max_lanes,
		.links = 1,
		.lane_depth = depth < v->completions ? depth : v->completions,
		.receives = v->opts.receives,
		.carries_events = 1,
		.parallel_setup = 1,
		.lane_receives = v->srq ? 0 : epf_verbs_lane_receives(v),
	};
}
