/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Post: hands staged entries to the NIC. Inline part of step_hot.c.
 */
#ifndef EPF_FABRIC_ENGINE_POST_HOT_H
#define EPF_FABRIC_ENGINE_POST_HOT_H

#include "fabric/base/err.h"
#include "fabric/engine/lane_hot.h"

/* At most two posts a lane (the ring of entries may wrap), one doorbell each. Returns how many entries the NIC accepted. */
EPF_INLINE unsigned post(struct epf_core *core)
{
	uint32_t n = core->n_dirty, kept = 0;
	unsigned handled = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct epf_lane *lane = &core->lanes[core->dirty_lanes[i]];

		while (lane->posted != lane->head && lane->state == EPF_LANE_UP) {
			uint32_t at = lane->posted & lane->mask;
			uint32_t count = lane->head - lane->posted;
			int rc;

			if (count > lane->mask + 1 - at)
				count = lane->mask + 1 - at;
			rc = core->ops->post(core->nic, lane->id, &lane->wrs[at], count);
			if (EPF_UNLIKELY(rc <= 0)) {
				if (rc < 0)
					core->control->lane_failed(core, lane,
								   EPF_S_RETRY_EXCEEDED);
				break;
			}
			EPF_PROBE3(post, lane->id, rc, lane->posted);
			lane->posted += (uint32_t)rc;
			handled += (unsigned)rc;
			EPF_COUNT(core, DOORBELLS, 1);
			if ((uint32_t)rc <
			    count) /* no room, or paced: the next step posts the rest */
				break;
		}
		if (lane->posted != lane->head && lane->state == EPF_LANE_UP)
			core->dirty_lanes[kept++] = lane->id;
		else
			lane->dirty = 0;
	}
	core->n_dirty = kept;
	EPF_COUNT(core, WRS_POSTED, handled);
	return handled;
}

#endif
