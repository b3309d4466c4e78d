/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions reclaim lane entries, entries retire commands, completion counters move in ring order.
 * Inline; shared by the data path and the control plane.
 */
#ifndef EPF_FABRIC_ENGINE_RETIRE_HOT_H
#define EPF_FABRIC_ENGINE_RETIRE_HOT_H

#include "fabric/engine/core.h"
#include "fabric/engine/policy_hot.h"
#include "fabric/engine/words_hot.h"

/* Ends one work request of command `seq`; the last one retires the command. Completion counters move in ring order. */
EPF_INLINE void epf_retire(struct epf_ring_state *ring, uint32_t seq)
{
	if (--ring->pend[seq & ring->pend_mask] != 0 || seq != ring->retired)
		return;
	do {
		ring->retired++;
	} while (ring->retired != ring->seq && ring->pend[ring->retired & ring->pend_mask] == 0);
	*ring->retired_word |= ring->retired_bit;
}

/* Sets what the next poll reads, after the ring's tail has moved. */
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

	lane->slot_tail += wr->flags / EPF_WR_SLOT;
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

/* Retires the commands of a ring that have completed, in ring order. */
EPF_INLINE void epf_retire_over(struct epf_ring_state *ring)
{
	uint32_t at = ring->retired;

	while (at != ring->seq && ring->pend[at & ring->pend_mask] == 0)
		at++;
	if (at == ring->retired)
		return;
	ring->retired = at;
	*ring->retired_word |= ring->retired_bit;
}

/* Returns 1 for the entry of a plain put of the ring whose entries have `high` in the upper half of their core word. */
EPF_INLINE int epf_is_put_of(const struct epf_wr *wr, uint64_t high)
{
	return wr->core >> 32 == high && wr->op == EPF_WR_WRITE;
}

/*
 * Reclaims the entries of plain puts of one ring from the lane's tail on, as far as they go and not beyond entry `id`, and counts them
 * once for all. The first one is such an entry.
 */
EPF_INLINE void epf_reclaim_run(struct epf_core *core, struct epf_lane *lane, uint32_t id)
{
	const struct epf_wr *wr = &lane->wrs[lane->tail & lane->mask];
	uint64_t high = wr->core >> 32, bytes = 0;
	struct epf_ring_state *ring = core->rings[high];
	struct epf_rank_state *rank = &core->ranks[ring->rank];
	struct epf_link_load *load = &core->load[lane->link];
	uint32_t at = lane->tail, slots = 0, n;

	do {
		ring->pend[(uint32_t)wr->core & ring->pend_mask]--;
		bytes += wr->len;
		slots += wr->flags / EPF_WR_SLOT;
		wr = &lane->wrs[++at & lane->mask];
	} while (at != id + 1 && epf_is_put_of(wr, high));
	n = at - lane->tail;
	lane->tail = at;
	lane->slot_tail += slots;
	load->bytes -= bytes;
	load->messages -= n;
	rank->inflight_bytes -= bytes;
	rank->inflight_messages -= n;
	epf_retire_over(ring);
}

/* Reclaims all entries from the lane's tail to entry `id`. */
static __attribute__((noinline, unused)) void epf_reclaim_many(struct epf_core *core,
							       struct epf_lane *lane, uint32_t id)
{
	do {
		struct epf_wr *wr = &lane->wrs[lane->tail & lane->mask];

		if (EPF_LIKELY(epf_is_put_of(wr, wr->core >> 32 & 0xffffu))) {
			epf_reclaim_run(core, lane, id);
		} else {
			epf_reclaim(core, lane, wr);
			lane->tail++;
		}
	} while (lane->tail != id + 1);
}

/* Completes entry `id` (ordered NIC: and all before it). A number outside the lane is the NIC's error and is ignored. */
EPF_INLINE void epf_complete(struct epf_core *core, struct epf_lane *lane, uint32_t id)
{
	if (EPF_UNLIKELY(id - lane->tail >= lane->posted - lane->tail))
		return;
	if (core->ordered) {
		if (reclaims_runs(id - lane->tail)) {
			epf_reclaim_many(core, lane, id);
			return;
		}
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
