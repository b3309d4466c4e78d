/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission: may a lane take one more entry? Credits are the lane's entries, the receives of the peer, and the limits of what is in flight on
 * the NIC's link and for the local rank. Inline parts of stage_hot.c and message_hot.c.
 */
#ifndef EPF_FABRIC_ENGINE_ADMIT_HOT_H
#define EPF_FABRIC_ENGINE_ADMIT_HOT_H

#include "fabric/engine/data_path.h"
#include "fabric/engine/lane_hot.h"

/* Returns 1 if the lane has room for one more entry and, if the entry raises an event at the peer, a receive there. */
EPF_INLINE int admit_lane(struct epf_core *core, struct epf_lane *lane, unsigned bulk,
			  unsigned event)
{
	if (EPF_UNLIKELY(lane->state != EPF_LANE_UP))
		return 0;
	if (EPF_UNLIKELY(!lane_make_room(core, lane, bulk)) ||
	    EPF_UNLIKELY(!lane_make_slot(core, lane))) {
		EPF_COUNT(core, QUEUE_FULL_STALLS, 1);
		return 0;
	}
	if (event && EPF_UNLIKELY(!lane_has_event_credit(core, lane))) {
		EPF_COUNT(core, CREDIT_STALLS, 1);
		return 0;
	}
	return 1;
}

/*
 * Returns 1 if a lane may take one more entry of `bytes` bytes of this rank. Messages pass the byte limits: only they
 * let the bytes before them be acknowledged.
 */
EPF_INLINE int admit(struct epf_core *core, const struct epf_rank_state *rank,
		     struct epf_lane *lane, unsigned bulk, unsigned event, uint32_t bytes)
{
	const struct epf_link_load *load = &core->load[lane->link];

	if (!admit_lane(core, lane, bulk, event))
		return 0;
	/* A transfer larger than a limit may go alone, or it would never go. */
	if (bytes && EPF_UNLIKELY(load->bytes + bytes > core->limits.nic_inflight_bytes) &&
	    load->bytes)
		goto no_bytes;
	if (bytes &&
	    EPF_UNLIKELY(rank->inflight_bytes + bytes > core->limits.rank_inflight_bytes) &&
	    rank->inflight_bytes)
		goto no_bytes;
	if (EPF_UNLIKELY(load->messages >= core->limits.nic_inflight_messages ||
			 rank->inflight_messages >= core->limits.rank_inflight_messages))
		goto no_bytes;
	return 1;
no_bytes:
	EPF_COUNT(core, CREDIT_STALLS, 1);
	return 0;
}

#endif
