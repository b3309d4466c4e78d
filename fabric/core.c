/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of an engine core: creation with all its memory, ranks, rings, regions, peers and lanes. Slow path: called by
 * lib.c (and simulations) before traffic, or between two steps on the core's own thread.
 */
#define EPF_LOG_COMP "core"
#include "fabric/emu_gpu.h"
#include "fabric/engine.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/lanes.h"
#include "fabric/lanes_plan.h"
#include "fabric/recover.h"
#include "fabric/retire_hot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One number less than 16 bits have is left for limbo. */
enum { CTL_RING_SLOTS = 64 };

/* calloc that counts what peers cost, and keeps to peer_memory_most. */
static void *peer_alloc(struct epf_core *core, size_t n, size_t size)
{
	uint64_t bytes = core->peer_memory_bytes + n * size;

	if (core->peer_memory_most && bytes > core->peer_memory_most) {
		core->peer_memory_wanted = bytes;
		return NULL;
	}
	core->peer_memory_bytes = bytes;
	return calloc(n ? n : 1, size);
}

static int no_memory(const char *what)
{
	return epf_fail(EPF_R_NO_MEMORY, "engine: no memory for %s", what);
}

static uint32_t pow2_at_least(uint32_t x)
{
	uint32_t p = 1;

	while (p < x)
		p <<= 1;
	return p;
}

/* Chains a pool's free list through member `next`. */
#define POOL_CHAIN(pool, n)               \
 for (uint32_t at_ = 0; at_ < (n); at_++) \
 (pool)[at_].next = at_ + 1 < (n) ? at_ + 1 : EPF_NONE

static int create_pools(struct epf_core *core)
{
	const struct epf_core_limits *l = &core->limits;

	core->rings = calloc(EPF_MAX_RINGS, sizeof(*core->rings));
	core->polls = calloc(EPF_MAX_RINGS, sizeof(*core->polls));
	core->retired = calloc(EPF_MAX_RINGS / 64, sizeof(*core->retired));
	core->ranks = calloc(core->max_ranks, sizeof(*core->ranks));
	core->parked = calloc(l->max_parked, sizeof(*core->parked));
	if (!core->rings || !core->polls || !core->retired || !core->ranks || !core->parked)
		return no_memory("rings and parked commands");
	POOL_CHAIN(core->parked, l->max_parked);
	core->parked_free = 0;
	core->pending_free = EPF_NONE;
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
	core->bell = core->ops->bell(core->nic);
	if (!core->bell)
		core->bell = &core->own_bell;
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

static void destroy_peers(struct epf_core *core)
{
	for (uint32_t i = 0; core->peers && i < core->world; i++)
		free(core->peers[i].regions);
	for (uint32_t i = 0; core->nodes && i < core->n_nodes; i++) {
		free(core->nodes[i].handles);
		free(core->nodes[i].notify_streams);
		free(core->nodes[i].notify_in);
		free(core->nodes[i].rx);
		free(core->nodes[i].recovery);
	}
	if (core->ctl_memory) {
		core->ops->region_deregister(core->nic, &core->ctl_mr);
		free(core->ctl_memory);
	}
	if (core->own_peers_page)
		free(core->peers_page);
	epf_lanes_forget(core);
	free(core->lane_wrs);
	free(core->lane_msgs);
	free(core->peers);
	free(core->nodes);
	free(core->lanes);
	free(core->streams);
	free(core->group_table);
	free(core->notify_table);
	free(core->notifies);
	free(core->pending);
	free(core->dirty_lanes);
	free(core->wait_lanes);
	free(core->grant_lanes);
}

void epf_core_destroy(struct epf_core *core)
{
	if (!core)
		return;
	destroy_peers(core);
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
	epf_queue_destroy(core->calls);
	free(core->rings);
	free(core->polls);
	free(core->retired);
	free(core->ranks);
	free(core->parked);
	free(core);
}

/* Words of a local rank about every rank and node; when the world is known. */
static int rank_words(struct epf_core *core, struct epf_rank_state *r)
{
	r->usable = calloc(core->world, sizeof(*r->usable));
	r->masked = calloc(core->world, sizeof(*r->masked));
	r->told = calloc(core->n_nodes, sizeof(*r->told));
	return r->usable && r->masked && r->told ? 0 : no_memory("a local rank");
}

int epf_core_add_rank(struct epf_core *core, uint32_t rank, struct epf_signal *signals,
		      uint32_t n_signals, uint32_t max_regions, struct epf_bell *bell,
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
	r->n_signals = n_signals;
	r->max_regions = max_regions;
	r->bell = bell;
	r->dirty_groups = EPF_NONE;
	*local = core->n_ranks++;
	return 0;
}

/* A region's keys as many as a node has lanes, so that a lane finds its own by its index. */
static int register_region(struct epf_core *core, void *addr, struct epf_copy_mem *gpu,
			   uint64_t bytes, unsigned access, struct epf_nic_mr *mr)
{
	uint32_t keys = core->caps.keys ? core->caps.keys : 1;
	int rc = gpu ? core->ops->region_register_gpu(core->nic, gpu, access, mr)
		     : core->ops->region_register(core->nic, addr, bytes, access, mr);

	for (uint32_t i = keys; !rc && i < EPF_NIC_LINKS; i++)
		mr->keys[i] = mr->keys[i % keys];
	return rc;
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
	l = &r->regions[r->n_regions];
	rc = register_region(core, addr, gpu, bytes, access, &l->mr);
	if (rc)
		return rc;
	l->addr = (uint64_t)(uintptr_t)addr;
	l->bytes = bytes;
	l->access = access;
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
	core->polls[id] = (struct epf_ring_poll){ &core->never, 1 };
}

int epf_core_ring_drained(struct epf_core *core, uint32_t id)
{
	struct epf_ring_state *ring = core->rings[id];

	if (!ring->spare && !ring->live && ring->retired == ring->seq && !ring->parked &&
	    ring->flush_phase == EPF_FLUSH_NONE)
		ring->spare = 1;
	return ring->spare;
}

static int alloc_world(struct epf_core *core, const struct epf_lanes_plan *plan)
{
	const struct epf_core_limits *l = &core->limits;
	uint32_t nodes = core->n_nodes, lanes = core->n_lanes;

	core->peers = peer_alloc(core, core->world, sizeof(*core->peers));
	core->nodes = peer_alloc(core, nodes, sizeof(*core->nodes));
	core->lanes = peer_alloc(core, lanes + 1, sizeof(*core->lanes)); /* and limbo */
	core->lane_wrs = peer_alloc(core, (size_t)lanes * l->lane_depth, sizeof(struct epf_wr));
	core->lane_msgs = peer_alloc(core, (size_t)lanes * l->lane_depth, sizeof(struct epf_msg));
	core->streams = peer_alloc(core, plan->streams, sizeof(*core->streams));
	core->dirty_lanes = peer_alloc(core, lanes, sizeof(uint32_t));
	core->wait_lanes = peer_alloc(core, lanes + 1, sizeof(uint32_t));
	core->grant_lanes = peer_alloc(core, lanes, sizeof(uint32_t));
	core->group_mask = plan->group_slots - 1;
	core->group_table = peer_alloc(core, plan->group_slots, sizeof(uint32_t));
	core->notify_table = peer_alloc(core, plan->group_slots, sizeof(uint32_t));
	core->notifies = peer_alloc(core, plan->streams, sizeof(*core->notifies));
	core->pending = peer_alloc(core, plan->max_pending, sizeof(*core->pending));
	core->ctl_stride = plan->ctl_stride;
	core->ctl_memory = peer_alloc(core, nodes, core->ctl_stride);
	if (!core->peers || !core->nodes || !core->lanes || !core->lane_wrs || !core->lane_msgs ||
	    !core->streams || !core->dirty_lanes || !core->wait_lanes || !core->grant_lanes ||
	    !core->group_table || !core->notify_table || !core->notifies || !core->pending ||
	    !core->ctl_memory)
		return no_memory("the peers of the job");
	memset(core->group_table, 0xff, plan->group_slots * sizeof(uint32_t));
	memset(core->notify_table, 0xff, plan->group_slots * sizeof(uint32_t));
	POOL_CHAIN(core->pending, core->limits.max_pending);
	core->pending_free = core->limits.max_pending ? 0 : EPF_NONE;
	core->max_streams = plan->streams;
	return 0;
}

static int init_node(struct epf_core *core, uint32_t i)
{
	const struct epf_core_limits *l = &core->limits;
	struct epf_node *node = &core->nodes[i];

	node->n_lanes = (uint8_t)l->lanes_per_node;
	node->first_lane = (uint16_t)(i * l->lanes_per_node);
	node->rx_streams = (uint16_t)l->streams_per_node;
	node->rx = peer_alloc(core, node->rx_streams, core->rx_stride);
	node->notify_in = peer_alloc(core, node->rx_streams, sizeof(*node->notify_in));
	node->ack_head = 0xffff;
	node->recovery =
		node->n_lanes > 1 ? peer_alloc(core, 1, sizeof(struct epf_recovery)) : NULL;
	node->ctl = (struct epf_ctl *)(void *)((uint8_t *)core->ctl_memory + i * core->ctl_stride);
	node->rank = i;
	if (!node->rx || !node->notify_in || (node->n_lanes > 1 && !node->recovery))
		return no_memory("receiving streams");
	for (uint32_t h = 0; h < node->rx_streams; h++) {
		struct epf_rx_stream *rx = epf_rx(core, node, h);

		rx->base = l->start_count;
		rx->pending = EPF_NONE;
	}
	return 0;
}

static void init_lane(struct epf_core *core, uint32_t i)
{
	const struct epf_core_limits *l = &core->limits;
	struct epf_lane *lane = &core->lanes[i];

	lane->wrs = core->lane_wrs + (size_t)i * l->lane_depth;
	lane->msgs = core->lane_msgs + (size_t)i * l->lane_depth;
	lane->mask = l->lane_depth - 1;
	lane->limit = l->lane_depth - EPF_LANE_RESERVE;
	lane->id = (uint16_t)i;
	lane->node = (uint16_t)(i / l->lanes_per_node);
	lane->index = (uint8_t)(i % l->lanes_per_node);
	lane->link = (uint8_t)(lane->index % core->caps.links);
	lane->head = lane->posted = lane->tail = l->start_count;
	lane->events = lane->granted = lane->arrived = l->start_count;
	lane->given = lane->arrived + l->lane_receives;
	lane->waiting_head = lane->waiting_tail = EPF_NONE;
}

/* A lane that is never up: on it streams wait that change lanes (reopen.c). Its entries are only looked at, never used. */
static void init_limbo(struct epf_core *core)
{
	struct epf_lane *lane = &core->lanes[core->n_lanes];

	lane->id = (uint16_t)core->n_lanes;
	lane->wrs = core->lane_wrs;
	lane->msgs = core->lane_msgs;
	lane->waiting_head = lane->waiting_tail = EPF_NONE;
}

/* The peers page, its own where the caller has none to share. */
static int take_peers_page(struct epf_core *core, struct epf_peers_shm *peers)
{
	core->peers_page = peers;
	if (peers)
		return 0;
	core->peers_page = peer_alloc(core, 1, epf_peers_bytes(core->world));
	core->own_peers_page = 1;
	if (!core->peers_page)
		return no_memory("the peers page");
	epf_peers_format(core->peers_page, core->world);
	return 0;
}

static int ring_streams(struct epf_core *core, struct epf_ring_state *ring)
{
	uint32_t *streams = realloc(ring->streams, core->world * sizeof(*streams));

	if (!streams)
		return no_memory("streams of a ring");
	memset(streams, 0xff, core->world * sizeof(*streams));
	ring->streams = streams;
	return 0;
}

/* Settings and NIC to numbers; what was lowered is said. */
static int plan_world(struct epf_core *core, uint32_t world, uint32_t n_nodes,
		      struct epf_lanes_plan *plan)
{
	struct epf_core_limits *l = &core->limits;
	struct epf_lanes_ask ask = { .world = world,
				     .n_nodes = n_nodes,
				     .lanes_per_node = l->lanes_per_node,
				     .streams_per_peer = l->streams_per_node,
				     .window = l->window,
				     .lane_depth = l->lane_depth,
				     .lane_receives = l->lane_receives,
				     .max_lanes = core->caps.max_lanes,
				     .receives = core->caps.receives,
				     .nic_lane_receives = core->caps.lane_receives,
				     .carries_events = core->caps.carries_events,
				     .nic = core->caps.name };
	int rc = epf_lanes_plan(&ask, plan);

	if (rc)
		return rc;
	if (plan->lane_receives != l->lane_receives)
		epf_info("lane-receives: %u lowered to %u: %u lanes share the NIC's %u",
			 l->lane_receives, plan->lane_receives, plan->lanes, core->caps.receives);
	if (plan->streams_per_node != plan->streams_wanted)
		epf_info(
			"streams-per-peer: %u of each pair of ranks would be %u between two nodes: %u "
			"are possible",
			l->streams_per_node, plan->streams_wanted, plan->streams_per_node);
	l->lane_receives = plan->lane_receives;
	l->streams_per_node = plan->streams_per_node;
	l->max_pending = plan->max_pending;
	return 0;
}

int epf_core_set_world(struct epf_core *core, uint32_t world, uint32_t n_nodes, uint32_t self,
		       struct epf_peers_shm *peers, uint64_t *tokens)
{
	struct epf_lanes_plan plan;
	int rc = plan_world(core, world, n_nodes, &plan);

	if (rc)
		return rc;
	core->world = world;
	core->n_nodes = n_nodes;
	core->self = self;
	core->n_lanes = plan.lanes;
	rc = take_peers_page(core, peers);
	if (!rc)
		rc = alloc_world(core, &plan);
	for (uint32_t i = 0; !rc && i < core->n_ranks; i++)
		rc = rank_words(core, &core->ranks[i]);
	for (uint32_t i = 0; !rc && i < core->n_nodes; i++)
		rc = init_node(core, i);
	for (uint32_t i = 0; !rc && i < core->n_lanes; i++)
		init_lane(core, i);
	if (!rc)
		rc = epf_lanes_create(core, tokens);
	if (!rc)
		init_limbo(core);
	if (!rc)
		rc = register_region(core, core->ctl_memory, NULL, core->n_nodes * core->ctl_stride,
				     EPF_MR_REMOTE_WRITE, &core->ctl_mr);
	for (uint32_t i = 0; !rc && i < core->n_rings; i++)
		rc = ring_streams(core, core->rings[i]);
	if (!rc && core->caps.carries_events)
		core->ops->post_receives(core->nic, plan.receives);
	return rc;
}

/* The control stream of each lane: handles 0 .. n_lanes - 1 of the node. */
static void open_control(struct epf_core *core, struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++) {
		uint32_t index = epf_stream_open_cold(core, EPF_STREAM_CONTROL, NULL,
						      (uint32_t)(node - core->nodes), 0, 0);

		core->streams[index].lane = (uint16_t)(node->first_lane + i);
	}
}

int epf_core_connect_lane(struct epf_core *core, const struct epf_node *node,
			  const struct epf_lane *lane, uint64_t token)
{
	const void *addr = NULL;
	size_t len = 0;
	int rc = epf_nic_address_part(node->nic_addr, node->nic_addr_len, lane->index, &addr, &len);

	return rc < 0 ? rc : core->ops->lane_connect(core->nic, lane->id, addr, len, token);
}

int epf_core_connect(struct epf_core *core, uint32_t i, const struct epf_node_info *info)
{
	struct epf_node *node = &core->nodes[i];

	node->rank = info->rank;
	node->max_handles = (uint16_t)(info->streams < core->limits.streams_per_node
					       ? info->streams
					       : core->limits.streams_per_node);
	if (node->max_handles <= node->n_lanes)
		return epf_fail(EPF_R_PEER_ANSWER,
				"rank %u: accepts %u streams, below lanes-per-peer", info->rank,
				info->streams);
	node->handles = peer_alloc(core, node->max_handles, sizeof(uint32_t));
	node->notify_streams = peer_alloc(core, node->max_handles, sizeof(uint16_t));
	if (!node->handles || !node->notify_streams)
		return no_memory("stream handles");
	node->ctl_raddr = info->ctl_raddr;
	node->nic_addr_len = (uint16_t)info->nic_addr_len;
	memcpy(node->nic_addr, info->nic_addr, info->nic_addr_len);
	node->keys = (uint8_t)(info->keys ? info->keys : 1);
	for (unsigned l = 0; l < EPF_NIC_LINKS && info->ctl_rkeys; l++)
		node->ctl_rkeys[l] = info->ctl_rkeys[l % node->keys];
	node->receives = info->receives;
	for (unsigned l = 0; l < node->n_lanes; l++) {
		struct epf_lane *lane = &core->lanes[node->first_lane + l];
		int rc;

		lane->granted = lane->events + info->receives;
		lane->state = EPF_LANE_UP;
		rc = epf_lanes_connect(core, node, lane, info->tokens[l]);
		if (rc)
			return rc;
	}
	node->state = EPF_NODE_UP;
	open_control(core, node);
	return 0;
}

int epf_core_set_peer(struct epf_core *core, uint32_t rank, const struct epf_peer_info *info)
{
	struct epf_peer *peer = &core->peers[rank];
	struct epf_region_remote *regions = peer_alloc(core, info->n_regions, sizeof(*regions));

	if (!regions)
		return no_memory("a peer's regions");
	for (uint32_t i = 0; i < info->n_regions; i++) {
		regions[i] = info->regions[i];
		epf_spread_keys(&regions[i], info->keys);
	}
	/* A withdrawn region stays withdrawn. */
	for (uint32_t i = 0; i < peer->n_regions && i < info->n_regions; i++)
		if (peer->regions[i].state > EPF_REGION_LIVE)
			regions[i] = peer->regions[i];
	free(peer->regions);
	peer->regions = regions;
	peer->n_regions = info->n_regions;
	peer->n_signals = info->n_signals;
	peer->node = info->node;
	peer->place = (uint16_t)info->place;
	peer->local = EPF_NONE;
	for (uint32_t i = 0; i < core->n_ranks; i++)
		if (core->ranks[i].rank == rank)
			peer->local = i;
	core->peers_page->peers[rank].node = info->place;
	if (core->peers_page->peers[rank].state == EPF_PEER_UNKNOWN)
		epf_peer_changed(core, rank, EPF_PEER_UP, 0, 0);
	return 0;
}
