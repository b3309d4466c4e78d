/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores the address of a node's NIC and connects or reconnects lanes to it. Slow path.
 */
#include "fabric/engine/engine.h"
#include "fabric/engine/grow.h"

int epf_core_connect_lane(struct epf_core *core, const struct epf_node *node,
			  const struct epf_lane *lane, uint64_t token)
{
	const void *addr = NULL;
	size_t len = 0;
	int rc = epf_nic_address_part(node->nic_addr, node->nic_addr_len, lane->index, &addr, &len);

	return rc < 0 ? rc : core->ops->lane_connect(core->nic, lane->id, addr, len, token);
}

int epf_core_reconnect_lane(struct epf_core *core, const struct epf_node *node,
			    const struct epf_lane *lane, uint64_t token)
{
	const void *addr = NULL;
	size_t len = 0;
	int rc = epf_nic_address_part(node->nic_addr, node->nic_addr_len, lane->index, &addr, &len);

	return rc < 0 ? rc : core->ops->lane_reconnect(core->nic, lane->id, addr, len, token);
}

int epf_core_node_place(struct epf_core *core, struct epf_node *node,
			const struct epf_node_info *info)
{
	int rc = epf_node_address_keep(core, node, info->nic_addr, info->nic_addr_len);

	if (rc)
		return rc;
	node->ctl_raddr = info->ctl_raddr;
	node->keys = (uint8_t)(info->keys ? info->keys : 1);
	for (unsigned l = 0; l < EPF_NIC_LINKS && info->ctl_rkeys; l++)
		node->ctl_rkeys[l] = info->ctl_rkeys[l % node->keys];
	node->receives = info->receives;
	return 0;
}
