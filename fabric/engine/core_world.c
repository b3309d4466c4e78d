/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers, nodes, lanes and streams of a core, from the size of the job to connections. Slow path: called by
 * join/world.c and simulations before traffic, or between two steps on the core's own thread. All memory that a step may need is allocated here.
 */
#define EPF_LOG_COMP "core"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/engine/core_priv.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/grow.h"

#include "fabric/base/log.h"
#include "fabric/engine/lanes.h"
#include "fabric/engine/lanes_plan.h"
#include "fabric/engine/recovery.h"
#include "fabric/engine/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* calloc() that counts the memory of peers and keeps it below peer_memory_most. */
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

/* Allocates a local rank's arrays indexed by rank and node, once the world is known. */
static int rank_words(struct epf_core *core, struct epf_rank_state *r)
{
	r->usable = calloc(core->world, sizeof(*r->usable));
	r->masked = calloc(core->world, sizeof(*r->masked));
	r->notified = calloc(core->n_nodes, sizeof(*r->notified));
	r->carriers = malloc(core->world * sizeof(*r->carriers));
	if (!r->usable || !r->masked || !r->notified || !r->carriers)
		return no_memory("a local rank");
	memset(r->carriers, 0xff, core->world * sizeof(*r->carriers));
	return 0;
}

void epf_core_forget_peers(struct epf_core *core)
{
	/* Arrivals that wait are theirs. */
	core->adds = EPF_ADDS_NONE;
	core->adds_refused = core->adds_resume = 0;
	core->n_queued_arrivals = core->held_n = 0;
	core->adding_round++;
	for (uint32_t i = 0; core->peers && i < core->world; i++)
		free(core->peers[i].regions);
	if (core->ctl_memory) {
		core->ops->region_deregister(core->nic, &core->ctl_mr);
		free(core->ctl_memory);
	}
	if (core->own_peers_page)
		free(core->peers_page);
	epf_lanes_forget(core);
	free(core->peers);
	free(core->nodes);
	free(core->lanes);
	free(core->dirty_lanes);
	free(core->wait_lanes);
	free(core->grant_lanes);
	epf_grow_release(core);
}

/* Counts what the peers may grow to before they do, so that it is never refused later. */
static int may_grow(struct epf_core *core, const struct epf_lanes_plan *plan)
{
	uint64_t bytes = core->peer_memory_bytes + plan->grow_bytes;

	if (core->peer_memory_most && bytes > core->peer_memory_most) {
		core->peer_memory_wanted = bytes;
		return 0;
	}
	core->peer_memory_bytes = bytes;
	core->grow_most = plan->grow_bytes;
	return 1;
}

static int alloc_world(struct epf_core *core, const struct epf_lanes_plan *plan)
{
	uint32_t nodes = core->n_nodes, lanes = core->n_lanes;
	int rc;

	core->peers = peer_alloc(core, core->world, sizeof(*core->peers));
	core->nodes = peer_alloc(core, nodes, sizeof(*core->nodes));
	core->lanes = peer_alloc(core, lanes + 1, sizeof(*core->lanes)); /* and limbo */
	core->dirty_lanes = peer_alloc(core, lanes, sizeof(uint32_t));
	core->wait_lanes = peer_alloc(core, lanes + 1, sizeof(uint32_t));
	core->grant_lanes = peer_alloc(core, lanes, sizeof(uint32_t));
	core->n_acks = plan->n_acks;
	core->ctl_stride = plan->ctl_stride;
	core->ctl_memory = peer_alloc(core, nodes, core->ctl_stride);
	if (!core->peers || !core->nodes || !core->lanes || !core->dirty_lanes ||
	    !core->wait_lanes || !core->grant_lanes || !core->ctl_memory || !may_grow(core, plan))
		return no_memory("the peers of the job");
	core->max_streams = plan->streams;
	core->hash_most = plan->group_slots;
	rc = epf_grow_reserve(core, plan->streams, plan->max_pending, plan->blocks_bytes);
	if (!rc && !epf_hash_grow_cold(core))
		rc = no_memory("streams");
	return rc;
}

static void init_node(struct epf_core *core, uint32_t i)
{
	const struct epf_core_limits *l = &core->limits;
	struct epf_node *node = &core->nodes[i];

	node->n_lanes = (uint8_t)l->lanes_per_node;
	node->first_lane = (uint16_t)(i * l->lanes_per_node);
	node->rx_streams = (uint16_t)l->streams_per_node;
	node->ack_head = 0xffff;
	node->ctl = (struct epf_ctl *)(void *)((uint8_t *)core->ctl_memory + i * core->ctl_stride);
	node->rank = i;
}

static int init_lane(struct epf_core *core, uint32_t i)
{
	const struct epf_core_limits *l = &core->limits;
	struct epf_lane *lane = &core->lanes[i];

	lane->id = (uint16_t)i;
	lane->node = (uint16_t)(i / l->lanes_per_node);
	lane->index = (uint8_t)(i % l->lanes_per_node);
	lane->link = (uint8_t)(lane->index % core->caps.links);
	lane->head = lane->posted = lane->tail = l->start_count;
	lane->events = lane->granted = lane->arrived = l->start_count;
	lane->given = lane->arrived + l->lane_receives;
	lane->waiting_head = lane->waiting_tail = EPF_NONE;
	return epf_lane_grow_cold(core, lane) ? 0 : no_memory("a lane");
}

/* Limbo is a lane that is never up: streams that change lanes wait on it (reopen.c). Its entry is read, never used. */
static void init_limbo(struct epf_core *core)
{
	struct epf_lane *lane = &core->lanes[core->n_lanes];

	lane->id = (uint16_t)core->n_lanes;
	lane->wrs = core->lanes[0].wrs;
	lane->waiting_head = lane->waiting_tail = EPF_NONE;
}

/* Sets the peers page; allocates one if the caller shares none. */
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

/* Computes the plan from settings and NIC; logs values it lowered. */
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

/*
 * NICs are dealt to the ranks of this node in order of both, as placement deals them to GPUs: with more NICs than ranks each rank has
 * several, with fewer several ranks share one. The others carry its streams only while its own are down.
 */
static void deal_links(struct epf_core *core)
{
	uint32_t links = core->caps.links, n = core->n_ranks;

	for (uint32_t i = 0; i < n && links > 1; i++) {
		struct epf_rank_state *r = &core->ranks[i];
		uint32_t place = 0, first, last;

		for (uint32_t k = 0; k < n; k++)
			place += core->ranks[k].rank < r->rank;
		first = place * links / n;
		last = (place + 1) * links / n;
		if (last == first)
			last++;
		r->links = (uint8_t)((1u << last) - (1u << first));
	}
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
		init_node(core, i);
	for (uint32_t i = 0; !rc && i < core->n_lanes; i++)
		rc = init_lane(core, i);
	deal_links(core);
	if (!rc)
		rc = epf_lanes_create(core, tokens);
	if (!rc)
		init_limbo(core);
	if (!rc)
		rc = epf_core_register(core, core->ctl_memory, NULL,
				       core->n_nodes * core->ctl_stride, EPF_MR_REMOTE_WRITE,
				       &core->ctl_mr);
	for (uint32_t i = 0; !rc && i < core->n_rings; i++)
		rc = ring_streams(core, core->rings[i]);
	if (!rc)
		rc = epf_watch_world(core);
	if (!rc && core->caps.carries_events)
		core->ops->post_receives(core->nic, plan.receives);
	if (!rc)
		EPF_PROBE4(job_open, core, world, n_nodes, self);
	return rc;
}

int epf_core_connect(struct epf_core *core, uint32_t i, const struct epf_node_info *info)
{
	struct epf_node *node = &core->nodes[i];
	int rc;

	node->rank = info->rank;
	node->max_handles = (uint16_t)(info->streams < core->limits.streams_per_node
					       ? info->streams
					       : core->limits.streams_per_node);
	if (node->max_handles <= node->n_lanes)
		return epf_fail(EPF_R_PEER_ANSWER,
				"rank %u: accepts %u streams, below lanes-per-peer", info->rank,
				info->streams);
	rc = epf_core_node_place(core, node, info);
	if (rc)
		return rc;
	for (unsigned l = 0; l < node->n_lanes; l++) {
		struct epf_lane *lane = &core->lanes[node->first_lane + l];

		lane->granted = lane->events + info->receives;
		lane->state = EPF_LANE_UP;
		rc = epf_lanes_connect(core, node, lane, info->tokens[l]);
		if (rc)
			return rc;
	}
	node->state = EPF_NODE_UP;
	/* Not yet: nobody sends before everybody is connected. */
	node->promised = 0;
	core->unpromised = core->limits.beats && core->caps.carries_events;
	core->next_tick_ns = 0;
	return 0;
}

int epf_core_set_peer(struct epf_core *core, uint32_t rank, const struct epf_peer_info *info)
{
	struct epf_peer *peer = &core->peers[rank];
	uint32_t n = info->n_regions > peer->n_regions ? info->n_regions : peer->n_regions;
	struct epf_region_remote *regions = peer_alloc(core, n, sizeof(*regions));

	if (!regions)
		return no_memory("a peer's regions");
	core->peer_memory_bytes -= peer->n_regions * sizeof(*regions);
	for (uint32_t i = 0; i < info->n_regions; i++) {
		regions[i] = info->regions[i];
		epf_spread_keys(&regions[i], info->keys);
	}
	/* A withdrawn region stays withdrawn, also one that was registered after this description was made: its owner waits for the answer. */
	for (uint32_t i = 0; i < peer->n_regions; i++)
		if (peer->regions[i].state > EPF_REGION_LIVE)
			regions[i] = peer->regions[i];
	free(peer->regions);
	peer->regions = regions;
	peer->n_regions = n;
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
