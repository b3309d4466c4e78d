/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores the address of a node's NIC and connects or reconnects lanes to it. Slow path.
 */
#include "fabric/engine/engine.h"

#include <string.h>

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

void epf_core_node_place(struct epf_node *node, const struct epf_node_info *info)
{
	node->ctl_raddr = info->ctl_raddr;
	node->nic_addr_len = (uint16_t)info->nic_addr_len;
	memcpy(node->nic_addr, info->nic_addr, info->nic_addr_len);
	node->keys = (uint8_t)(info->keys ? info->keys : 1);
	for (unsigned l = 0; l < EPF_NIC_LINKS && info->ctl_rkeys; l++)
		node->ctl_rkeys[l] = info->ctl_rkeys[l % node->keys];
	node->receives = info->receives;
}
