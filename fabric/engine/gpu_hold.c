/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds arrivals behind additions to GPU memory (gpu_add.c): queues them, in order, until the NIC has completed the additions they
 * may depend on.
 */
#include "fabric/engine/data_path.h"
#include "fabric/engine/lane_hot.h"

#include "fabric/base/clock.h"

#include <errno.h>

static void adding_ends(struct epf_core *core)
{
	core->adds = EPF_ADDS_NONE;
	core->adding_round++;
}

/*
 * Returns 1 if an addition to memory of rank `to` may follow those under way: none for that rank, or all in the same region.
 * number: the region, ignored for signals, which use the rank's signal_region. Returns 0 for what apply() would refuse.
 */
static int goes_behind(const struct epf_core *core, uint32_t to, unsigned kind, uint32_t number)
{
	const struct epf_region_local *region;
	const struct epf_rank_state *rank;

	if (to >= core->world || core->peers[to].local == EPF_NONE)
		return 0;
	rank = &core->ranks[core->peers[to].local];
	if (kind == EPF_MSG_SIGNAL)
		number = rank->signal_region;
	if (number >= rank->n_regions || !rank->regions[number].device)
		return 0;
	region = &rank->regions[number];
	return rank->adding_round != core->adding_round || rank->adding_to == region;
}

/* Returns 1 if the arrival is an addition that may follow those under way. */
static int adds_behind(const struct epf_core *core, const struct epf_wc *wc)
{
	const struct epf_node *node = &core->nodes[core->lanes[wc->lane].node];
	uint32_t handle = wc->imm >> 16 & 0x1fffu;
	struct epf_msg m;

	if (wc->op == EPF_WC_RECV_IMM)
		return wc->imm >> 29 == EPF_IMM_NOTIFY && handle < node->n_notify_in &&
		       node->notify_in[handle].defined &&
		       goes_behind(core, node->notify_in[handle].rank, EPF_MSG_SIGNAL, 0);
	if (wc->op != EPF_WC_RECV || wc->len != sizeof(m))
		return 0;
	__builtin_memcpy(&m, wc->msg, sizeof(m));
	return (m.kind == EPF_MSG_ADD || m.kind == EPF_MSG_SIGNAL) &&
	       goes_behind(core, m.rank, m.kind, m.signal);
}

/* Returns 1 if an arrival must wait. */
static int stops(struct epf_core *core, const struct epf_wc *wc)
{
	if (core->adds == EPF_ADDS_HOLD)
		return 1;
	if (core->adds == EPF_ADDS_NONE || adds_behind(core, wc))
		return 0;
	if (!core->ops->add_pending(core->nic)) {
		adding_ends(core);
		return 0;
	}
	epf_hold_cold(core);
	return 1;
}

int epf_adding_stops_cold(struct epf_core *core, const struct epf_wc *wc)
{
	struct epf_queued_arrival *d;

	if (!stops(core, wc))
		return 0;
	d = &core->queued_arrivals[(core->first_queued_arrival + core->n_queued_arrivals++) %
				   EPF_MAX_QUEUED_ARRIVALS];
	d->wc = *wc;
	if (wc->op == EPF_WC_RECV) {
		__builtin_memcpy(d->msg, wc->msg,
				 wc->len < sizeof(d->msg) ? wc->len : sizeof(d->msg));
		d->wc.msg = d->msg;
	}
	return 1;
}

/* Applies queued arrivals until one must wait. */
static void take_queued(struct epf_core *core)
{
	while (core->n_queued_arrivals &&
	       !stops(core, &core->queued_arrivals[core->first_queued_arrival].wc)) {
		const struct epf_wc *wc = &core->queued_arrivals[core->first_queued_arrival].wc;

		core->first_queued_arrival =
			(core->first_queued_arrival + 1) % EPF_MAX_QUEUED_ARRIVALS;
		core->n_queued_arrivals--;
		EPF_PROBE3(arrive, wc->lane, wc->op, wc->len);
		epf_arrive(core, wc);
	}
}

/* Retries additions that the NIC refused. Returns 1 if it accepted all. */
static int retry_adds(struct epf_core *core)
{
	while (core->adds_refused) {
		const struct epf_gpu_add *add = &core->hold_adds[0];
		int rc = core->ops->add(core->nic, &add->mr, add->offset, add->value);

		if (rc == -EAGAIN) {
			(void)core->ops->add_pending(core->nic); /* lets the NIC make room */
			return 0;
		}
		if (rc)
			EPF_COUNT(core, ARRIVALS_REFUSED, 1);
		core->adds_refused--;
		core->hold_adds[0] = core->hold_adds[EPF_HOLD_ADDS - 1];
	}
	return 1;
}

int epf_hold_over_cold(struct epf_core *core)
{
	if (!retry_adds(core))
		return 0;
	if (core->ops->add_pending(core->nic))
		return 0;
	adding_ends(core);
	epf_hist_add(epf_stat_hist(core->stats, EPF_STAT_CORE_HOLD_NS),
		     epf_tsc_to_ns(epf_tsc() - core->hold_tsc));
	if (core->adds_resume)
		epf_arrive_resume(core); /* may start another addition */
	take_queued(core);
	return core->adds != EPF_ADDS_HOLD;
}
