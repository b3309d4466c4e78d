/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a command: completions reclaim lane entries, entries retire commands, done words move in ring order.
 * Inline parts of core_hot.c, arrive_hot.c and recover.c.
 */
#ifndef EPF_FABRIC_RETIRE_HOT_H
#define EPF_FABRIC_RETIRE_HOT_H

#include "fabric/core.h"

/* One work request of command `seq` is over; the last one retires it. Done words never jump: order is the ring's. */
EPF_INLINE void epf_retire(struct epf_ring_state *ring, uint32_t seq)
{
	if (--ring->pend[seq & ring->pend_mask] != 0 || seq != ring->retired)
		return;
	do {
		ring->retired++;
	} while (ring->retired != ring->seq && ring->pend[ring->retired & ring->pend_mask] == 0);
	*ring->retired_word |= ring->retired_bit;
}

/* After the ring's tail has moved: what the next poll looks at. */
EPF_INLINE void epf_ring_poll_next(struct epf_core *core, const struct epf_ring_state *ring)
{
	const struct epf_ring_consumer *c = &ring->consumer;

	core->polls[ring->id] = (struct epf_ring_poll){ &c->slots[c->tail & c->mask],
							epf_cmd_parity(c->tail, c->log2) };
}

/* Reclaims one completed lane entry. */
EPF_INLINE void epf_reclaim(struct epf_core *core, struct epf_lane *lane, struct epf_wr *wr)
{
	unsigned kind = (unsigned)(wr->core >> 60);

	if (EPF_LIKELY(kind == EPF_WRK_DATA)) {
		struct epf_ring_state *ring = core->rings[wr->core >> 32 & 0xffffu];
		struct epf_rank_state *rank = &core->ranks[ring->rank];

		if (wr->op != EPF_WR_SEND) {
			core->load[lane->link].bytes -= wr->len;
			rank->inflight_bytes -= wr->len;
			if (EPF_UNLIKELY(wr->op == EPF_WR_READ))
				core->gpu_reads = 1;
		}
		core->load[lane->link].messages--;
		rank->inflight_messages--;
		epf_retire(ring, (uint32_t)wr->core);
	} else {
		epf_reclaim_word(core, lane, wr);
	}
}

/* Completion of entry `id` (ordered NIC: and all before it). A number outside the lane is the NIC's error: ignored. */
EPF_INLINE void epf_complete(struct epf_core *core, struct epf_lane *lane, uint32_t id)
{
	if (EPF_UNLIKELY(id - lane->tail >= lane->posted - lane->tail))
		return;
	if (core->ordered) {
		do {
			epf_reclaim(core, lane, &lane->wrs[lane->tail & lane->mask]);
		} while (lane->tail++ != id);
		return;
	}
	lane->wrs[id & lane->mask].core |= EPF_WRC_DONE;
	while (lane->tail != lane->posted &&
	       (lane->wrs[lane->tail & lane->mask].core & EPF_WRC_DONE)) {
		epf_reclaim(core, lane, &lane->wrs[lane->tail & lane->mask]);
		lane->tail++;
	}
}

#endif
