/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publish: notifies producers of what has been retired. Inline parts of step_hot.c.
 */
#ifndef EPF_FABRIC_ENGINE_PUBLISH_HOT_H
#define EPF_FABRIC_ENGINE_PUBLISH_HOT_H

#include "fabric/engine/data_path.h"
#include "fabric/engine/policy_hot.h"

/* One release store per ring that moved. Returns how many did. [R3] */
EPF_INLINE unsigned publish(struct epf_core *core)
{
	unsigned rings = 0;

	if (EPF_UNLIKELY(core->gpu_reads)) { /* what a get brought may lie in GPU memory */
		core->gpu_reads = 0;
		epf_gpu_visible(core);
	}
	for (uint32_t w = 0; w * 64 < core->n_rings; w++) {
		uint64_t moved = core->retired[w];

		core->retired[w] = 0;
		for (; moved; moved &= moved - 1) {
			struct epf_ring_state *ring =
				core->rings[w * 64 + (uint32_t)__builtin_ctzll(moved)];

			if (!ring->live)
				continue;
			ring->retired64 += ring->retired - ring->published;
			EPF_PROBE3(retire, ring->id, ring->retired - ring->published,
				   ring->retired64);
			ring->published = ring->retired;
			EPF_STORE_RELEASE(&ring->done->retired, ring->retired64);
			core->ranks[ring->rank].notify |= EPF_NOTIFY_WORDS;
			core->wakes = 1;
			rings++;
		}
	}
	return rings;
}

/* Records a step in which something retired or arrived. Heartbeats are not recorded: they would evict useful events. */
EPF_INLINE void note_step(struct epf_core *core, uint64_t began, unsigned handled,
			  const unsigned timed)
{
	unsigned clocked = timed | (handled >= LONG_STEP);

	epf_flight_note(core->flight, began, EPF_FLIGHT_STEP, 0, 0, handled, core->received,
			clocked ? epf_tsc() - began : 0);
	core->received = 0;
}

#endif
