/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grows all that grows on demand to its limit, for tests that inspect tables or set limits of lanes.
 */
#ifndef EPF_TESTS_UNIT_ENGINE_GROW_ALL_H
#define EPF_TESTS_UNIT_ENGINE_GROW_ALL_H

#include "fabric/engine/data_path.h"
#include "fabric/engine/grow.h"
#include "fabric/engine/recovery.h"

static inline void grow_all(struct epf_core *core)
{
	for (uint32_t l = 0; l < core->n_lanes; l++) {
		while (epf_lane_grow_cold(core, &core->lanes[l]))
			;
		while (epf_slots_grow_cold(core, &core->lanes[l]))
			;
	}
	for (uint32_t n = 0; n < core->n_nodes; n++) {
		struct epf_node *node = &core->nodes[n];

		(void)epf_rx_grow_cold(core, node, node->rx_streams - 1u);
		(void)epf_notify_in_grow_cold(core, node, node->rx_streams - 1u);
		(void)epf_recovery_of(core, node);
		if (node->max_handles)
			epf_control_open_cold(core, node);
	}
}

/* Lowers the number of streams that a node may use. Tables keep their size, so what lies behind the last one can be looked at. */
static inline void limit_streams(struct epf_node *node, uint16_t n)
{
	node->rx_streams = node->n_rx = node->n_notify_in = n;
}

#endif
