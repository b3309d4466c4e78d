/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatches arriving control messages, and sends and receives goodbyes. Runs on the core's thread: no system call, no log.
 */
#include "fabric/engine/engine.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/losses.h"
#include "fabric/engine/recovery.h"

int epf_core_say_bye(struct epf_core *core)
{
	int left = 0;

	for (uint32_t i = 0; i < core->n_nodes; i++) {
		struct epf_node *node = &core->nodes[i];
		struct epf_msg m = { .kind = EPF_MSG_BYE };

		if (node->state != EPF_NODE_UP || i == core->self || node->said_bye)
			continue;
		if (core->n_ranks)
			epf_loss_put(core, core->ranks[0].rank, &m);
		node->said_bye = epf_control_send(core, node, &m) != 0;
		left += !node->said_bye;
	}
	return left;
}

int epf_core_is_quiet(const struct epf_core *core)
{
	/* A node that is lost or has left answers nothing; another lane replays what a failed lane holds. */
	for (uint32_t i = 0; i < core->n_lanes; i++)
		if (core->lanes[i].tail != core->lanes[i].head &&
		    core->lanes[i].state != EPF_LANE_DOWN &&
		    core->nodes[core->lanes[i].node].state == EPF_NODE_UP)
			return 0;
	return 1;
}

static void on_bye(struct epf_core *core, struct epf_node *node, const struct epf_msg *m)
{
	if (node->state != EPF_NODE_UP)
		return;
	EPF_STORE_RELAXED(&node->state, EPF_NODE_LEFT);
	for (uint32_t r = 0; r < core->world; r++) {
		if (&core->nodes[core->peers[r].node] != node)
			continue;
		if (m->b && core->peers[r].up)
			epf_loss_take(core, r, m);
		epf_peer_changed(core, r, EPF_PEER_LEFT, 0, core->peers_page->peers[r].epoch);
	}
}

void epf_control_cold(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		      const struct epf_msg *m)
{
	switch (m->kind) {
	case EPF_MSG_REVOKE:
	case EPF_MSG_REVOKED:
		epf_revoke_message(core, node, m);
		break;
	case EPF_MSG_BYE:
		on_bye(core, node, m);
		break;
	case EPF_MSG_LOST:
		epf_loss_message(core, node, m);
		break;
	case EPF_MSG_RANK:
	case EPF_MSG_REGION:
	case EPF_MSG_KEYS:
		epf_rank_message(core, node, m);
		break;
	default:
		epf_recover_message(core, node, lane, m);
		break;
	}
}
