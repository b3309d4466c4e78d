/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares a node lost: fails everything to it and sets its ranks DOWN. On the core's thread; only fencing its lanes makes system calls.
 */
#include "fabric/engine/engine.h"
#include "fabric/engine/fail.h"
#include "fabric/engine/recovery.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

/* Returns why a node cannot be reached: this node's own ports, memory at either end, or something behind the ports. */
static unsigned why_down(const struct epf_core *core, unsigned status)
{
	struct epf_nic_counters nic;

	core->ops->counters(core->nic, &nic);
	if (status == EPF_S_LINK_DOWN || (core->caps.carries_events && !nic.link_up))
		return EPF_R_LINK_LOST;
	return status == EPF_S_REMOTE_ACCESS || status == EPF_S_LOCAL ? EPF_R_NODE_MEMORY
								      : EPF_R_NODE_LOST;
}

void epf_node_down(struct epf_core *core, struct epf_node *node, unsigned status)
{
	unsigned cause = why_down(core, status);

	if (node->state == EPF_NODE_DOWN)
		return;
	/* A node that has left in order is not lost, but work in flight to it ends. */
	if (node->state != EPF_NODE_LEFT)
		EPF_STORE_RELAXED(&node->state, EPF_NODE_DOWN);
	EPF_PROBE3(node_down, node->rank, status, cause);
	epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_NODE_DOWN, status, node->rank, cause, 0,
			0);
	epf_recover_forget(core, node);
	for (uint32_t r = 0; r < core->world; r++)
		if (&core->nodes[core->peers[r].node] == node)
			epf_peer_changed(core, r,
					 node->state == EPF_NODE_DOWN ? EPF_PEER_DOWN
								      : EPF_PEER_LEFT,
					 node->state == EPF_NODE_DOWN ? cause : 0,
					 core->peers_page->peers[r].epoch);
	for (unsigned i = 0; i < node->n_lanes; i++)
		if (core->lanes[node->first_lane + i].state != EPF_LANE_DOWN)
			epf_fail_lane_cold(core, &core->lanes[node->first_lane + i], status);
	for (uint32_t h = 0; h < node->n_handles; h++)
		epf_fail_stream_cold(core, &core->streams[node->handles[h]], status);
	core->cold_work = 1; /* withdrawals and rank messages no longer wait for it */
}
