/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of an engine core: creation with all its memory, ranks, rings, regions; its peers and lanes are core_world.c's. Slow path: called by
 * lib.c (and simulations) before traffic, or between two steps on the core's own thread.
 */
#define EPF_LOG_COMP "core"
#include "fabric/engine/core_priv.h"
#include "fabric/gpu/copy.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/engine/lanes_plan.h"
#include "fabric/engine/reconnect.h"
#include "fabric/engine/recover.h"
#include "fabric/engine/retire_hot.h"
#include "fabric/engine/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One number less than 16 bits have is left for limbo. */
enum { CTL_RING_SLOTS = 64 };

static uint32_t pow2_at_least(uint32_t x)
{
	uint32_t p = 1;

	while (p < x)
		p <<= 1;
	return p;
}

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

/* Each link gets as many lanes of a node: both ends then agree which link a lane travels on. */
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

/* What the NIC holds may be less than the setting asks for; entries of a lane are counted modulo a power of two. */
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

int epf_core_create(const struct epf_core_config *cfg, struct epf_core **out)
{
	struct epf_core *core = aligned_alloc(EPF_CACHELINE, (sizeof(*core) + 63) / 64 * 64);
	int rc;

	if (!core)
		return no_memory("a core");
	memset(core, 0, sizeof(*core));
	core->nic = cfg->nic;
	core->ops = cfg->nic->ops;
	core->limits = cfg->limits;
	core->tick_ns = (UINT64_C(1000000000) << 32) / epf_tsc_hz();
	core->adding_round = 1; /* no rank has been in it */
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
	core->limits.ring_window = pow2_at_least(cfg->limits.ring_window);
	core->limits.lane_depth = pow2_at_least(cfg->limits.lane_depth);
	core->limits.window = pow2_at_least(cfg->limits.window);
	fit_depth(core);
	if (core->limits.window < core->limits.lane_depth || core->limits.window > EPF_MAX_WINDOW) {
		free(core);
		return epf_fail(EPF_R_CONF_RANGE, "window: %u is below lane-depth %u or above %u",
				cfg->limits.window, cfg->limits.lane_depth, EPF_MAX_WINDOW);
	}
	core->rx_mask = core->limits.window - 1;
	core->rx_stride = (uint32_t)(sizeof(struct epf_rx_stream) + core->limits.window / 8);
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

static void destroy_ring(struct epf_ring_state *ring)
{
	if (!ring)
		return;
	free(ring->streams);
	free(ring->pend);
	free(ring);
}

void epf_core_destroy(struct epf_core *core)
{
	if (!core)
		return;
	EPF_PROBE3(job_close, core, core->world, core->self);
	epf_watch_close(core);
	epf_core_forget_peers(core);
	for (uint32_t i = 0; core->rings && i < core->n_rings; i++)
		destroy_ring(core->rings[i]);
	for (uint32_t i = 0; core->ranks && i < core->n_ranks; i++) {
		struct epf_rank_state *rank = &core->ranks[i];

		for (uint32_t r = 0; r < rank->n_regions; r++)
			if (rank->regions[r].state != EPF_REGION_FREE)
				core->ops->region_deregister(core->nic, &rank->regions[r].mr);
		free(rank->regions);
		free(rank->usable);
		free(rank->masked);
		free(rank->told);
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

/* A region's keys as many as a node has lanes, so that a lane finds its own by its index. */
int epf_core_register(struct epf_core *core, void *addr, struct epf_copy_mem *gpu, uint64_t bytes,
		      unsigned access, struct epf_nic_mr *mr)
{
	uint32_t keys = core->caps.keys ? core->caps.keys : 1;
	int rc = gpu ? core->ops->region_register_gpu(core->nic, gpu, access, mr)
		     : core->ops->region_register(core->nic, addr, bytes, access, mr);

	for (uint32_t i = keys; !rc && i < EPF_NIC_LINKS; i++)
		mr->keys[i] = mr->keys[i % keys];
	return rc;
}

/* May the signals of a rank lie in this region? */
static int check_signals(const struct epf_rank_state *r, const struct epf_copy_mem *gpu,
			 uint64_t bytes)
{
	if (!gpu || r->signal_region != EPF_NONE ||
	    bytes / sizeof(struct epf_signal) < r->n_signals)
		return epf_fail(EPF_R_REGION_BAD,
				"region: %llu bytes of %s memory for %u signals of rank %u%s",
				(unsigned long long)bytes, gpu ? "GPU" : "host", r->n_signals,
				r->rank,
				r->signal_region != EPF_NONE ? ", which have a place" : "");
	return 0;
}

/* A region of host memory at addr, or of GPU memory. */
static int add_region(struct epf_core *core, uint32_t local, void *addr, struct epf_copy_mem *gpu,
		      uint64_t bytes, unsigned access, uint32_t *region)
{
	struct epf_rank_state *r = &core->ranks[local];
	struct epf_region_local *l;
	int rc;

	if (r->life != EPF_RANK_LIVE)
		return epf_fail(EPF_R_RANK_DIED, "rank %u: has gone", r->rank);
	if (r->n_regions == r->max_regions)
		return epf_fail(EPF_R_REGION_LIMIT, "regions: all %u are in use", r->max_regions);
	if (!addr || !bytes || bytes > EPF_WIDE_REGION_BYTES)
		return epf_fail(EPF_R_REGION_BAD, "region: address %p, %llu bytes", addr,
				(unsigned long long)bytes);
	rc = access & EPF_MR_SIGNALS ? check_signals(r, gpu, bytes) : 0;
	if (rc)
		return rc;
	l = &r->regions[r->n_regions];
	rc = epf_core_register(core, addr, gpu, bytes, access & ~(unsigned)EPF_MR_SIGNALS, &l->mr);
	if (rc)
		return rc;
	if (access & EPF_MR_SIGNALS)
		r->signal_region = r->n_regions;
	l->addr = (uint64_t)(uintptr_t)addr;
	l->bytes = bytes;
	l->access = access & ~(unsigned)EPF_MR_SIGNALS;
	l->device = gpu != NULL;
	l->state = EPF_REGION_LIVE;
	*region = r->n_regions++;
	return 0;
}

int epf_core_add_region(struct epf_core *core, uint32_t local, void *addr, uint64_t bytes,
			unsigned access, uint32_t *region)
{
	return add_region(core, local, addr, NULL, bytes, access, region);
}

int epf_core_add_gpu_region(struct epf_core *core, uint32_t local, struct epf_copy_mem *mem,
			    unsigned access, uint32_t *region)
{
	return add_region(core, local, (void *)(uintptr_t)mem->addr, mem, mem->bytes, access,
			  region);
}

static struct epf_ring_state *ring_alloc(struct epf_core *core, uint32_t window)
{
	struct epf_ring_state *ring = calloc(1, sizeof(*ring));

	if (!ring)
		return NULL;
	ring->pend = calloc(window, sizeof(*ring->pend));
	ring->streams = malloc((core->world ? core->world : 1) * sizeof(*ring->streams));
	if (!ring->pend || !ring->streams) {
		destroy_ring(ring);
		return NULL;
	}
	memset(ring->streams, 0xff, core->world * sizeof(*ring->streams));
	return ring;
}

/* A closed ring of the same rank whose place can be used again: its streams go on with their counts. */
static struct epf_ring_state *ring_again(struct epf_core *core, uint32_t local)
{
	for (uint32_t i = 0; i < core->n_rings; i++)
		if (core->rings[i]->spare && core->rings[i]->rank == local)
			return core->rings[i];
	return NULL;
}

int epf_core_add_ring(struct epf_core *core, uint32_t local, struct epf_ring_shm *shm,
		      unsigned log2, unsigned weight, uint64_t start, uint32_t *id)
{
	struct epf_ring_state *ring = ring_again(core, local);

	if (!ring) {
		if (core->n_rings == EPF_MAX_RINGS)
			return epf_fail(EPF_R_RING_LIMIT, "rings: all %u of the core are in use",
					EPF_MAX_RINGS);
		ring = ring_alloc(core, core->limits.ring_window);
		if (!ring)
			return no_memory("a ring");
		ring->id = (uint16_t)core->n_rings;
		ring->dirty = EPF_NONE;
		ring->rank = local;
		core->rings[core->n_rings++] = ring;
	}
	epf_ring_consumer_init(&ring->consumer, shm, log2, start);
	ring->pend_mask = core->limits.ring_window - 1;
	ring->seq = ring->retired = ring->published = (uint32_t)start;
	ring->retired64 = start;
	ring->failed = 0;
	ring->deficit = 0;
	ring->left = 0;
	ring->alike = 0;
	ring->flush_list = EPF_NONE;
	ring->blocked = EPF_NONE;
	ring->weight = (uint8_t)weight;
	ring->last_step = core->steps - 1;
	ring->retired_word = &core->retired[ring->id / 64];
	ring->retired_bit = UINT64_C(1) << ring->id % 64;
	epf_ring_poll_next(core, ring);
	ring->done = &shm->done;
	ring->spare = 0;
	ring->live = 1;
	epf_revokes_new_ring(core, ring->id);
	*id = ring->id;
	return 0;
}

void epf_core_close_ring(struct epf_core *core, uint32_t id)
{
	core->rings[id]->live = 0;
	if (core->seen.ring == id + 1)
		core->seen.ring = 0;
	core->polls[id] = (struct epf_ring_poll){ &core->never, 1 };
}

int epf_core_ring_drained(struct epf_core *core, uint32_t id)
{
	struct epf_ring_state *ring = core->rings[id];

	if (!ring->spare && !ring->live && ring->retired == ring->seq && !ring->deferred &&
	    ring->flush_phase == EPF_FLUSH_NONE)
		ring->spare = 1;
	return ring->spare;
}
