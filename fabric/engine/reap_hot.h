/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reap: takes completions and arrivals from the NIC. Inline parts of step_hot.c.
 */
#ifndef EPF_FABRIC_ENGINE_REAP_HOT_H
#define EPF_FABRIC_ENGINE_REAP_HOT_H

#include "fabric/base/err.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/policy_hot.h"
#include "fabric/engine/retire_hot.h"
#include "fabric/engine/sample_hot.h"

/* While arrivals are queued: returns how many the next reap may bring, at most `most`. */
static inline unsigned queued_room(const struct epf_core *core, unsigned most)
{
	unsigned room = EPF_MAX_QUEUED_ARRIVALS - core->n_queued_arrivals;

	return room < most ? room : most;
}

/* Entries [first, n) of core->wcs are to be handled: those held back last time, or what the NIC has now. */
EPF_INLINE int reap_entries(struct epf_core *core, unsigned most, unsigned *first)
{
	int n;

	*first = 0;
	if (EPF_LIKELY(!core->held_n))
		return core->ops->reap(core->nic, core->wcs, most);
	*first = core->held_at;
	n = (int)core->held_n;
	core->held_n = 0;
	return n;
}

/* Fetches the lane entry of a completion that is handled soon. */
EPF_INLINE void prefetch_entry(const struct epf_core *core, const struct epf_wc *wc)
{
	const struct epf_lane *ahead = &core->lanes[wc->lane];

	__builtin_prefetch(&ahead->wrs[ahead->tail & ahead->mask]);
}

/* Hands an arrival on, unless additions to GPU memory hold it back. */
EPF_INLINE void arrive(struct epf_core *core, const struct epf_wc *wc)
{
	if (EPF_UNLIKELY(core->adds) && epf_adding_stops_cold(core, wc))
		return;
	EPF_PROBE3(arrive, wc->lane, wc->op, wc->len);
	epf_arrive(core, wc);
}

/* Handles entries [first, *n); *n is lowered if the rest is held back. Returns how many were arrivals. */
EPF_INLINE unsigned handle_entries(struct epf_core *core, int first, int *n)
{
	unsigned receives = 0;

	for (int i = first; i < *n; i++) {
		const struct epf_wc *wc = &core->wcs[i];

		if (i + PREFETCH_ENTRIES < *n)
			prefetch_entry(core, &wc[PREFETCH_ENTRIES]);
		if (EPF_LIKELY(wc->op == EPF_WC_SENT && wc->status == EPF_S_OK)) {
			EPF_PROBE3(complete, wc->lane, wc->id, wc->status);
			epf_complete(core, &core->lanes[wc->lane], wc->id);
		} else if (EPF_UNLIKELY(wc->op == EPF_WC_SENT || wc->op == EPF_WC_LANE_DOWN)) {
			if (EPF_UNLIKELY(core->adds ==
					 EPF_ADDS_HOLD)) { /* not before what came before it */
				core->held_at = (uint32_t)i;
				core->held_n = (uint32_t)*n;
				*n = i;
				break;
			}
			if (wc->op == EPF_WC_SENT)
				EPF_PROBE3(complete, wc->lane, wc->id, wc->status);
			core->control->lane_failed(core, &core->lanes[wc->lane], wc->status);
		} else {
			receives++;
			arrive(core, wc);
		}
	}
	return receives;
}

/* 1: the NIC has moved something for a peer since the last look, though it reports nothing. */
EPF_INLINE unsigned has_served(struct epf_core *core)
{
	uint32_t before = core->served;

	core->served = core->nic->served;
	return core->served != before;
}

/* Returns how many completions and arrivals were handled; 1 if there were none, and peers were served. */
EPF_INLINE unsigned reap(struct epf_core *core, const unsigned timed)
{
	unsigned receives, first, most = core->limits.reap_batch;
	unsigned resumed = core->n_queued_arrivals; /* queued arrivals that take effect now */
	uint64_t t;
	int n;

	if (EPF_UNLIKELY(core->adds == EPF_ADDS_HOLD) && !epf_hold_over_cold(core)) {
		most = core->held_n ? 0 : queued_room(core, most);
		if (!most)
			return 0;
	}
	resumed -= core->n_queued_arrivals;
	n = reap_entries(core, most, &first);
	if (n <= (int)first)
		return resumed + has_served(core);
	t = clock_if(timed);
	receives = handle_entries(core, (int)first, &n);
	time_stage(core, timed, receives ? EPF_STAT_CORE_ARRIVE_TSC : EPF_STAT_CORE_REAP_TSC, t);
	if (receives) {
		core->received = receives;
		core->ops->post_receives(core->nic, receives);
		EPF_COUNT(core, ARRIVALS, receives);
	}
	EPF_COUNT(core, COMPLETIONS, (unsigned)n - first - receives);
	return (unsigned)n - first + resumed;
}

#endif
