/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends control messages on the control stream of a lane (handle = the lane's index): counted, in order and exactly once like
 * any other message. messages.c receives them.
 */
#include "fabric/engine/control_plane.h"
#include "fabric/engine/data_path.h"

int epf_control_send(struct epf_core *core, struct epf_node *node, struct epf_msg *m)
{
	epf_control_open_cold(core, node);
	for (unsigned i = 0; i < node->n_handles && i < node->n_lanes; i++) {
		struct epf_stream *s = &core->streams[node->handles[i]];

		if (core->lanes[s->lane].state == EPF_LANE_UP &&
		    epf_stage_message(core, s, m, epf_wr_core(EPF_WRK_QUIET, 0, 0, 0)))
			return 1;
	}
	return 0;
}
