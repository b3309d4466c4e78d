/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates and destroys an engine core and adds local ranks. See rings.c, regions.c, and core_world.c for peers and lanes. Slow path:
 * called before traffic, or between two steps on the core's thread.
 */
#define EPF_LOG_COMP "core"
#include "fabric/engine/core_priv.h"
#include "fabric/gpu/copy.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/engine/lanes_plan.h"
#include "fabric/engine/reconnect.h"
#include "fabric/engine/recovery.h"
#include "fabric/engine/retire_hot.h"
#include "fabric/engine/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CTL_RING_SLOTS = 64 };

static int create_pools(struct epf_core *core)
{
	const struct epf_core_limits *l = &core->limits;

	core->rings = calloc(EPF_MAX_RINGS, sizeof(*core->rings));
	core->polls = calloc(EPF_MAX_RINGS, sizeof(*core->polls));
	core->retired = calloc(EPF_MAX_RINGS / 64, sizeof(*core->retired));
	core->ranks = calloc(core->max_ranks, sizeof(*core->ranks));
	core->deferred = calloc(l->max_deferred, sizeof(*core->deferred));
	if (!core->rings || !core->polls || !core->retired || !core->ranks || !core->deferred)
		return no_memory("rings and deferred commands");
	POOL_CHAIN(core->deferred, l->max_deferred);
	core->deferred_unused = 0;
	core->pending_free = EPF_NONE;
	core->notify_free = EPF_NONE;
	core->ack_nodes = EPF_NONE;
	return 0;
}

/* Gives each link the same number of lanes, so that both ends agree on a lane's link. */
static int fit_lanes(struct epf_core *core)
{
	uint32_t links = core->caps.links ? core->caps.links : 1,
		 asked = core->limits.lanes_per_node;
	uint32_t fit = epf_lanes_per_peer(asked, links);

	if (fit > EPF_MAX_LANES_PER_NODE)
		return epf_fail(
			EPF_R_CONF_RANGE,
			"lanes-per-peer: %u, and the NIC has %u links: a multiple of that up to %d is "
			"possible",
			asked, links, EPF_MAX_LANES_PER_NODE);
	if (fit != asked)
		epf_info(
			"lanes-per-peer: %u raised to %u, so that each of the NIC's %u links has as many",
			asked, fit, links);
	core->caps.links = links;
	core->limits.lanes_per_node = fit;
	return 0;
}

/* Lowers lane-depth to what the NIC holds, keeping a power of two. */
static void fit_depth(struct epf_core *core)
{
	uint32_t depth = core->limits.lane_depth;

	while (depth > core->caps.lane_depth)
		depth >>= 1;
	if (depth != core->limits.lane_depth)
		epf_info("lane-depth: %u lowered to %u: a lane of this NIC holds %u",
			 core->limits.lane_depth, depth, core->caps.lane_depth);
	core->limits.lane_depth = depth;
}

static const struct epf_control_ops control_ops = {
	.message = epf_control_cold,
	.lane_failed = epf_lane_error_cold,
	.tick = epf_core_tick_cold,
};

int epf_core_create(const struct epf_core_config *cfg, struct epf_core **out)
{
	struct epf_core *core = aligned_alloc(EPF_CACHELINE, (sizeof(*core) + 63) / 64 * 64);
	int rc;

	if (!core)
		return no_memory("a core");
	memset(core, 0, sizeof(*core));
	core->nic = cfg->nic;
	core->ops = cfg->nic->ops;
	core->control = &control_ops;
	core->limits = cfg->limits;
	core->tick_ns = (UINT64_C(1000000000) << 32) / epf_tsc_hz();
	core->adding_round = 1; /* no rank has this round yet */
	core->stats = cfg->stats;
	core->now = cfg->now;
	core->now_arg = cfg->now_arg;
	core->max_ranks = cfg->max_ranks;
	core->ops->describe(core->nic, &core->caps);
	core->ordered = core->caps.ordered != 0;
	core->counts_puts = !core->ordered;
	rc = fit_lanes(core);
	if (rc) {
		free(core);
		return rc;
	}
	core->limits.ring_window = epf_pow2_at_least(cfg->limits.ring_window);
	core->limits.lane_depth = epf_pow2_at_least(cfg->limits.lane_depth);
	core->limits.window = epf_pow2_at_least(cfg->limits.window);
	fit_depth(core);
	if (core->limits.window < core->limits.lane_depth || core->limits.window > EPF_MAX_WINDOW) {
		free(core);
		return epf_fail(EPF_R_CONF_RANGE, "window: %u is below lane-depth %u or above %u",
				cfg->limits.window, cfg->limits.lane_depth, EPF_MAX_WINDOW);
	}
	core->rx_mask = core->limits.window - 1;
	core->wakeup = core->ops->wakeup(core->nic);
	if (!core->wakeup)
		core->wakeup = &core->own_wakeup;
	rc = create_pools(core);
	if (!rc)
		rc = epf_queue_create(CTL_RING_SLOTS, &core->calls);
	if (rc) {
		epf_core_destroy(core);
		return rc;
	}
	core->next_tick_ns = core->next_beat_ns =
		core->now(core->now_arg) + core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT;
	core->reopen_ns = UINT64_MAX;
	*out = core;
	return 0;
}

void epf_core_destroy(struct epf_core *core)
{
	if (!core)
		return;
	EPF_PROBE3(job_close, core, core->world, core->self);
	epf_watch_close(core);
	epf_core_forget_peers(core);
	for (uint32_t i = 0; core->rings && i < core->n_rings; i++)
		epf_ring_free(core->rings[i]);
	for (uint32_t i = 0; core->ranks && i < core->n_ranks; i++) {
		struct epf_rank_state *rank = &core->ranks[i];

		for (uint32_t r = 0; r < rank->n_regions; r++)
			if (rank->regions[r].state != EPF_REGION_FREE)
				core->ops->region_deregister(core->nic, &rank->regions[r].mr);
		free(rank->regions);
		free(rank->usable);
		free(rank->carriers);
		free(rank->masked);
		free(rank->notified);
	}
	epf_revokes_free(core);
	epf_reconnect_free(core);
	epf_queue_destroy(core->calls);
	free(core->rings);
	free(core->polls);
	free(core->retired);
	free(core->ranks);
	free(core->deferred);
	free(core);
}

int epf_core_add_rank(struct epf_core *core, uint32_t rank, struct epf_signal *signals,
		      uint32_t n_signals, uint32_t max_regions, struct epf_wakeup *wakeup,
		      uint32_t *local)
{
	struct epf_rank_state *r;

	if (core->n_ranks == core->max_ranks)
		return epf_fail(EPF_R_CONF_RANGE, "engine: more than %u local ranks",
				core->max_ranks);
	if (core->world)
		return epf_fail(EPF_R_JOIN_ORDER, "engine: rank %u comes after the world was set",
				rank);
	if (max_regions > EPF_MAX_REGIONS)
		return epf_fail(EPF_R_CONF_RANGE, "regions: %u of a rank, at most %d are possible",
				max_regions, EPF_MAX_REGIONS);
	r = &core->ranks[core->n_ranks];
	r->regions = calloc(max_regions, sizeof(*r->regions));
	if (!r->regions)
		return no_memory("regions");
	r->rank = rank;
	r->signals = signals;
	r->signal_region = EPF_NONE;
	r->n_signals = n_signals;
	r->max_regions = max_regions;
	r->wakeup = wakeup;
	r->dirty_groups = EPF_NONE;
	*local = core->n_ranks++;
	return 0;
}
