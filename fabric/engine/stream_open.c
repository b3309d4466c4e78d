/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a stream or a group at its first command, on a lane of its node. Called by the hot files; grow.h has the memory.
 */
#include "fabric/engine/data_path.h"
#include "fabric/engine/grow.h"
#include "fabric/engine/hash_hot.h"

struct epf_lane *epf_other_lane(struct epf_core *core, const struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++)
		if (core->lanes[node->first_lane + i].state == EPF_LANE_UP)
			return &core->lanes[node->first_lane + i];
	return NULL;
}

/*
 * Returns the lane that a new stream belongs to: round robin over those on its rank's links (0: all). *lane: the lane that carries it, another one if
 * that is down.
 */
static uint16_t choose_lane(struct epf_core *core, struct epf_node *node, unsigned links,
			    uint16_t *lane)
{
	uint16_t home = (uint16_t)(node->first_lane + (node->next_lane++ % node->n_lanes));
	const struct epf_lane *other;

	for (unsigned i = 1; links && i < node->n_lanes; i++) {
		if (links >> core->lanes[home].link & 1)
			break;
		home = (uint16_t)(node->first_lane + (node->next_lane++ % node->n_lanes));
	}
	*lane = home;
	if (core->lanes[home].state == EPF_LANE_UP)
		return home;
	other = epf_other_lane(core, node);
	if (other)
		*lane = other->id;
	return home;
}

uint32_t epf_stream_open_cold(struct epf_core *core, unsigned kind, struct epf_ring_state *ring,
			      uint32_t rank)
{
	struct epf_node *node;
	struct epf_stream *s;
	uint32_t index;

	/* A control stream is opened before ranks are known: its `rank` is the node's number. */
	node = &core->nodes[kind == EPF_STREAM_CONTROL ? rank : core->peers[rank].node];
	if (kind != EPF_STREAM_CONTROL)
		epf_control_open_cold(core, node);
	if (node->n_handles >= node->max_handles || core->n_streams >= core->max_streams)
		return EPF_NONE;
	if (node->n_handles == node->handles_room && !epf_handles_grow_cold(core, node))
		return EPF_NONE;
	index = core->n_streams++;
	s = &core->streams[index];
	s->count = core->limits.start_count;
	s->peer = kind == EPF_STREAM_CONTROL ? node->rank : rank;
	s->ring = ring ? ring->id : 0;
	s->rank = ring ? (uint16_t)ring->rank : 0;
	s->node = (uint16_t)(node - core->nodes);
	s->home = choose_lane(core, node, ring ? core->ranks[ring->rank].links : 0, &s->lane);
	s->handle = node->n_handles;
	s->kind = (uint8_t)kind;
	s->ack = EPF_NO_ACK;
	s->deferred_head = s->deferred_tail = EPF_NONE;
	s->ready = EPF_NONE;
	node->handles[node->n_handles++] = index;
	if (kind == EPF_STREAM_RING)
		ring->streams[rank] = index;
	return index;
}

/*
 * Returns a stream for a new group of the ring's rank to `rank`: one more while there are fewer than lanes, each on the lane behind the one before;
 * then they take turns. EPF_NONE if there is none and none can be opened.
 */
static uint32_t carrier(struct epf_core *core, struct epf_ring_state *ring, uint32_t rank)
{
	struct epf_node *node = &core->nodes[core->peers[rank].node];
	uint32_t *newest = &core->ranks[ring->rank].carriers[rank], last = *newest;
	uint32_t index, n = 0;

	for (uint32_t at = last; at != EPF_NONE && (at != last || !n); n++)
		at = core->streams[at].next_carrier;
	if (n) {
		*newest = core->streams[last].next_carrier;
		if (n >= node->n_lanes)
			return *newest;
		node->next_lane = (uint16_t)(core->streams[last].home - node->first_lane + 1);
	}
	index = epf_stream_open_cold(core, EPF_STREAM_GROUP, ring, rank);
	if (index == EPF_NONE)
		return *newest;
	core->streams[index].next_carrier = n ? *newest : index;
	if (n)
		core->streams[last].next_carrier = index;
	return *newest = index;
}

struct epf_group *epf_group_open_cold(struct epf_core *core, struct epf_ring_state *ring,
				      uint32_t rank, uint32_t signal)
{
	struct epf_node *node = &core->nodes[core->peers[rank].node];
	struct epf_group *g = &core->groups[core->n_groups];
	uint32_t *head, stream;

	if (node->n_groups >= core->limits.streams_per_node)
		return NULL;
	stream = carrier(core, ring, rank);
	if (stream == EPF_NONE)
		return NULL;
	node->n_groups++;
	core->streams[stream].groups++;
	if (core->n_groups > core->group_mask)
		epf_hash_grow_cold(core);
	head = &core->group_table[group_hash(core, ring->rank, rank, signal)];
	*g = (struct epf_group){ .signal = signal,
				 .stream = stream,
				 .next_hash = *head,
				 .next_ready = EPF_NONE,
				 .signals_head = EPF_NONE,
				 .signals_tail = EPF_NONE };
	*head = core->n_groups++;
	return g;
}

void epf_control_open_cold(struct epf_core *core, struct epf_node *node)
{
	/* Handles 0 .. n_lanes - 1 of the node. */
	while (node->n_handles < node->n_lanes) {
		uint16_t lane = node->first_lane + node->n_handles;
		uint32_t index = epf_stream_open_cold(core, EPF_STREAM_CONTROL, NULL,
						      (uint32_t)(node - core->nodes));

		if (index == EPF_NONE)
			return;
		core->streams[index].lane = lane;
	}
}
