/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes a job's lanes and their memory (lanes_plan.h). A test checks the result to the byte against what core_world.c
 * allocates.
 */
#include "fabric/engine/lanes_plan.h"

#include "fabric/base/err.h"
#include "fabric/engine/core.h"
#include "fabric/engine/grow.h"
#include "fabric/engine/recovery.h"
#include "fabric/engine/watch_priv.h"

enum { LEAST_RECEIVES = 4, LEAST_GROUPS = 64 };

/* A lane number has 16 bits, and limbo (reopen.c) takes one. */
enum { MAX_LANES = 65534 };

uint32_t epf_lanes_per_peer(uint32_t asked, uint32_t links)
{
	return (asked + links - 1) / links * links;
}

/* The setting counts per pair of ranks; a node carries the streams of all its pairs. */
static void plan_streams(const struct epf_lanes_ask *ask, struct epf_lanes_plan *p)
{
	uint64_t per_node = ((uint64_t)ask->world + ask->n_nodes - 1) / ask->n_nodes;
	uint64_t streams = ask->streams_per_peer * per_node * per_node;

	p->streams_wanted = streams < UINT32_MAX ? (uint32_t)streams : UINT32_MAX;
	p->streams_per_node = p->streams_wanted < EPF_MAX_STREAMS_PER_NODE
				      ? p->streams_wanted
				      : EPF_MAX_STREAMS_PER_NODE;
	p->streams = ask->n_nodes * p->streams_per_node;
	p->group_slots = epf_pow2_at_least(p->streams < LEAST_GROUPS ? LEAST_GROUPS : p->streams);
}

static int plan_receives(const struct epf_lanes_ask *ask, struct epf_lanes_plan *p)
{
	p->lane_receives = ask->lane_receives;
	if (ask->nic_lane_receives && p->lane_receives > ask->nic_lane_receives)
		p->lane_receives = ask->nic_lane_receives;
	if (ask->carries_events && (uint64_t)p->lanes * p->lane_receives > ask->receives)
		p->lane_receives = ask->receives / p->lanes;
	if (p->lane_receives < LEAST_RECEIVES && p->lane_receives < ask->lane_receives)
		return epf_fail(EPF_R_RECEIVE_LIMIT, "%s: %u lanes share %u receives", ask->nic,
				p->lanes, ask->receives);
	p->receives = ask->carries_events ? p->lanes * p->lane_receives : 0;
	/*
	 * A message that waits for an earlier one no longer occupies a receive, but still counts as in flight on its lane: as many may
	 * wait as a lane can have in flight.
	 */
	p->max_pending = p->lanes *
			 (p->lane_receives > ask->lane_depth ? p->lane_receives : ask->lane_depth);
	return 0;
}

/* One block, as it is cut. */
static uint64_t one(uint64_t bytes)
{
	return epf_grow_chain(1, 2, 1, bytes);
}

/* The most that one lane grows to: entries and payload slots. */
static uint64_t lane_chain(const struct epf_lanes_ask *ask)
{
	return epf_grow_chain(EPF_GROW_WRS, EPF_GROW_LANE, ask->lane_depth, sizeof(struct epf_wr)) +
	       epf_grow_chain(EPF_GROW_SLOTS, EPF_GROW_LANE, ask->lane_depth,
			      sizeof(struct epf_msg));
}

/* The most that the tables of one node grow to, by handle of its streams and number of its notify handles. */
static uint64_t tables_chain(uint32_t streams)
{
	return epf_grow_chain(EPF_GROW_STREAMS, 2, streams, sizeof(struct epf_rx_stream)) +
	       epf_grow_chain(EPF_GROW_STREAMS, 2, streams, sizeof(struct epf_notify_in)) +
	       epf_grow_chain(EPF_GROW_STREAMS, 2, streams, sizeof(uint32_t)) +
	       epf_grow_chain(EPF_GROW_STREAMS, 2, streams, sizeof(uint16_t));
}

static void plan_memory(const struct epf_lanes_ask *ask, struct epf_lanes_plan *p)
{
	uint64_t lists = 3 * sizeof(uint32_t); /* of lanes that have something to do */
	uint64_t lanes = p->lanes * lane_chain(ask), tables, windows, nodes, fixed, streams, tracks;
	uint64_t hash = 2 * epf_grow_chain(EPF_GROW_HASH, 2, p->group_slots, sizeof(uint32_t));

	p->n_acks = epf_acks_of(ask->world, ask->n_nodes);
	p->ctl_stride = epf_ctl_bytes(p->n_acks);
	p->description_bytes = 8 * (uint64_t)p->lanes;
	/* What the watch keeps of each (watch_sample.c) is made at first use. */
	tracks = ask->world * one(sizeof(struct peer_track));
	p->peers_bytes = ask->world * (uint64_t)sizeof(struct epf_peer) + tracks;
	p->words_bytes = (uint64_t)ask->n_nodes * p->ctl_stride;
	p->pending_bytes = p->max_pending * (uint64_t)sizeof(struct epf_pending);
	nodes = ask->n_nodes *
		(one(EPF_NIC_ADDR_BYTES) + one(epf_recovery_bytes(ask->lanes_per_node)) +
		 one(p->n_acks * sizeof(struct epf_ack)));
	p->nodes_bytes = ask->n_nodes * sizeof(struct epf_node) + nodes;
	/* One more lane, without entries: limbo (reopen.c). */
	fixed = p->lanes * (sizeof(struct epf_lane) + lists) + sizeof(struct epf_lane) +
		sizeof(uint32_t);
	p->lanes_bytes = fixed + lanes;
	tables = ask->n_nodes * tables_chain(p->streams_per_node) + hash;
	streams = p->streams * (sizeof(struct epf_stream) + sizeof(struct epf_notify_out) +
				sizeof(struct epf_group));
	p->streams_bytes = streams + tables;
	windows = ((uint64_t)p->streams + EPF_GROW_WINDOWS) * (ask->window / 8);
	p->windows_bytes = windows;
	p->blocks_bytes = lanes + tables + windows + nodes + tracks;
	p->grow_bytes = p->blocks_bytes + streams + p->pending_bytes;
	p->all_bytes = p->peers_bytes + p->nodes_bytes + p->lanes_bytes + p->streams_bytes +
		       p->windows_bytes + p->words_bytes + p->pending_bytes;
	p->join_bytes = p->all_bytes - p->grow_bytes +
			p->lanes * one(EPF_GROW_WRS * sizeof(struct epf_wr)) +
			2 * one(EPF_GROW_HASH * sizeof(uint32_t)) +
			ask->n_nodes * one(ask->addr_bytes);
}

int epf_lanes_plan(const struct epf_lanes_ask *ask, struct epf_lanes_plan *out)
{
	uint64_t lanes = (uint64_t)ask->n_nodes * ask->lanes_per_node;
	struct epf_lanes_plan p = { .lanes = (uint32_t)lanes };
	int rc;

	if (!ask->n_nodes || ask->world < ask->n_nodes || ask->world > EPF_MAX_WORLD)
		return epf_fail(EPF_R_CONF_RANGE,
				"world-size: %u ranks on %u nodes, the engine takes 1 to %d",
				ask->world, ask->n_nodes, EPF_MAX_WORLD);
	if (lanes > ask->max_lanes || lanes > MAX_LANES)
		return epf_fail(EPF_R_LANE_LIMIT, "%s: %llu lanes needed, the NIC has %u", ask->nic,
				(unsigned long long)lanes,
				ask->max_lanes < MAX_LANES ? ask->max_lanes : MAX_LANES);
	plan_streams(ask, &p);
	rc = plan_receives(ask, &p);
	if (rc)
		return rc;
	plan_memory(ask, &p);
	*out = p;
	return 0;
}
