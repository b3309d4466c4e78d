/* SPDX-License-Identifier: Apache-2.0 */
/* What the EFA NIC says of itself. */
#include "fabric/nic/efa/efa.h"

void epf_efa_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	const struct epf_efa *v = epf_efa_of(nic);

	*out = (struct epf_nic_caps){
		.name = "efa",
		.ordered = 0,
		.max_msg_bytes = v->max_msg_bytes,
		.max_lanes = v->max_lanes,
		.links = 1,
		.lane_depth = v->lane_depth < v->completions ? v->lane_depth : v->completions,
		.receives = v->opts.receives,
		.carries_events = 1,
	};
}
