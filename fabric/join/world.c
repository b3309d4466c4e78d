/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From descriptions to connections (world.h). Descriptions come from other processes, perhaps of another release: they are decoded
 * with every length checked (describe.c), held against this engine's own settings here, and only then used.
 */
#include "fabric/join/world.h"

#include "fabric/base/err.h"
#include "fabric/engine/lanes.h"
#include "fabric/engine/reconnect.h"
#include "fabric/join/describe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is published about the engine's NIC: where it is, and the keys of the control writes, one for each of its devices. */
static int describe_nic(struct epf_core *core, struct epf_description *d)
{
	int rc = core->ops->address(core->nic, d->nic_addr, sizeof(d->nic_addr));

	if (rc < 0)
		return rc;
	d->nic_addr_len = (size_t)rc;
	snprintf(d->nic, sizeof(d->nic), "%s", core->ops->name);
	d->keys = core->caps.keys ? core->caps.keys : 1;
	for (uint32_t k = 0; k < d->keys; k++)
		d->ctl_rkeys[k] = core->ctl_mr.keys[k].rkey;
	return 0;
}

static void describe_regions(const struct epf_rank_state *r, struct epf_description *d)
{
	for (uint32_t i = 0; i < d->n_regions; i++) {
		const struct epf_region_local *l = &r->regions[i];

		d->regions[i].raddr = l->mr.raddr;
		for (uint32_t k = 0; k < d->keys; k++)
			d->regions[i].rkeys[k] = l->mr.keys[k].rkey;
		d->regions[i].access = (uint16_t)l->access;
		d->regions[i].bytes = l->state == EPF_REGION_LIVE && l->access ? l->bytes : 0;
	}
}

int epf_world_describe(struct epf_core *core, uint32_t local, const char *place,
		       const uint64_t *tokens, uint8_t **buf, size_t *len)
{
	const struct epf_rank_state *r = &core->ranks[local];
	struct epf_description d = { .rank = r->rank,
				     .n_signals = r->n_signals,
				     .streams = core->limits.streams_per_node,
				     .receives = core->limits.lane_receives,
				     .depth = core->limits.lane_depth,
				     .lanes = core->limits.lanes_per_node,
				     .ordered = core->ordered,
				     .ctl_raddr = core->ctl_mr.raddr,
				     .n_tokens = tokens ? core->n_lanes : 0,
				     .tokens = (uint64_t *)(uintptr_t)tokens,
				     .n_regions = r->n_regions };
	int rc = describe_nic(core, &d);

	if (rc < 0)
		return rc;
	snprintf(d.node, sizeof(d.node), "%s", place);
	d.regions = calloc(d.n_regions ? d.n_regions : 1, sizeof(*d.regions));
	if (!d.regions)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory");
	describe_regions(r, &d);
	rc = epf_description_encode(&d, buf, len);
	free(d.regions);
	return rc;
}

struct grouping {
	int (*compare)(const void *arg, uint32_t a, uint32_t b);
	const void *arg;
};

/* Equal ones stand together, the lowest number first. */
static int by_key(const void *a, const void *b, void *arg)
{
	const struct grouping *g = arg;
	uint32_t p = *(const uint32_t *)a, q = *(const uint32_t *)b;
	int order = g->compare(g->arg, p, q);

	return order ? order : (p > q) - (p < q);
}

int epf_world_group(uint32_t n, int (*compare)(const void *arg, uint32_t a, uint32_t b),
		    const void *arg, uint32_t *group, uint32_t *groups)
{
	struct grouping g = { compare, arg };
	uint32_t *sorted = calloc(n ? n : 1, sizeof(*sorted)), found = 0;

	if (!sorted)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", n);
	for (uint32_t i = 0; i < n; i++)
		sorted[i] = i;
	qsort_r(sorted, n, sizeof(*sorted), by_key, &g);
	/* First the lowest of its kind for each, then numbers in order of those. */
	for (uint32_t i = 0; i < n; i++)
		group[sorted[i]] = i && compare(arg, sorted[i - 1], sorted[i]) == 0
					   ? group[sorted[i - 1]]
					   : sorted[i];
	for (uint32_t i = 0; i < n; i++)
		group[i] = group[i] == i ? found++ : group[group[i]];
	free(sorted);
	*groups = found;
	return 0;
}

static int compare_places(const void *arg, uint32_t a, uint32_t b)
{
	const struct epf_description *all = arg;

	return strcmp(all[a].node, all[b].node);
}

/* Node numbers for people, in order of the lowest rank of each name; fills the peers page. */
static int number_places(struct epf_core *core, const struct epf_description *all)
{
	struct epf_peer_word *words = core->peers_page->peers;
	uint32_t *place = calloc(core->world, sizeof(*place)), n = 0;
	int rc = place ? epf_world_group(core->world, compare_places, all, place, &n)
		       : epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", core->world);

	for (uint32_t r = 0; r < core->world && !rc; r++)
		words[r].node = place[r];
	if (!rc)
		core->peers_page->n_nodes = n;
	free(place);
	return rc;
}

static int check_fit(const struct epf_core *core, const struct epf_description *d, uint32_t rank)
{
	if (d->rank != rank)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: describes itself as rank %u", rank,
				d->rank);
	if (strcmp(d->nic, core->ops->name) != 0 || !d->ordered != !core->ordered)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: uses nic %s (%s), this rank %s (%s)",
				rank, d->nic, d->ordered ? "ordered" : "unordered", core->ops->name,
				core->ordered ? "ordered" : "unordered");
	if (d->lanes != core->limits.lanes_per_node)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: has %u lanes-per-peer, this rank %u",
				rank, d->lanes, core->limits.lanes_per_node);
	/* What a lane has under way may all be ahead of one event that is late. */
	if (!core->ordered && (d->depth > core->limits.window ||
			       d->depth * d->lanes > core->limits.max_pending / core->n_nodes))
		return epf_fail(
			EPF_R_PEER_ANSWER,
			"rank %u: has lane-depth %u, this rank (window %u, lane-depth %u, lane-receives "
			"%u) cannot hold as much",
			rank, d->depth, core->limits.window, core->limits.lane_depth,
			core->limits.lane_receives);
	if (d->n_tokens && d->n_tokens != core->n_lanes)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: describes %u lanes for %u engines",
				rank, d->n_tokens, core->n_nodes);
	return 0;
}

static int cannot_connect(const struct epf_description *d)
{
	return epf_fail(EPF_R_NODE_LOST, "rank %u: its node %s cannot be connected: %.200s",
			d->rank, d->node, epf_last_error());
}

static struct epf_node_info node_info(const struct epf_core *core, const struct epf_description *d)
{
	return (struct epf_node_info){ .nic_addr = d->nic_addr,
				       .nic_addr_len = d->nic_addr_len,
				       .tokens = d->tokens + (size_t)core->self * d->lanes,
				       .ctl_raddr = d->ctl_raddr + core->self * core->ctl_stride,
				       .ctl_rkeys = d->ctl_rkeys,
				       .keys = d->keys,
				       .receives = d->receives,
				       .streams = d->streams,
				       .rank = d->rank };
}

static int connect_node(struct epf_core *core, const struct epf_description *d, uint32_t node)
{
	struct epf_node_info info = node_info(core, d);

	return epf_core_connect(core, node, &info) ? cannot_connect(d) : 0;
}

static int set_peer(struct epf_core *core, const struct epf_description *d, uint32_t node)
{
	struct epf_peer_info peer = { .node = node,
				      .place = core->peers_page->peers[d->rank].node,
				      .n_signals = d->n_signals,
				      .n_regions = d->n_regions,
				      .keys = d->keys,
				      .regions = d->regions };

	return epf_core_set_peer(core, d->rank, &peer);
}

/* Connects each engine by the description of its lowest rank, then makes every rank known. */
static int connect_all(struct epf_core *core, const struct epf_description *all,
		       const uint32_t *node_of)
{
	uint32_t lost = 0;
	int rc = epf_lanes_begin(core);

	for (uint32_t r = 0; r < core->world && !rc; r++) {
		if (node_of[r] >= core->n_nodes)
			return epf_fail(EPF_R_PEER_ANSWER, "rank %u: on node %u of %u", r,
					node_of[r], core->n_nodes);
		if (core->nodes[node_of[r]].state != EPF_NODE_UNKNOWN)
			continue;
		if (!all[r].n_tokens)
			return epf_fail(EPF_R_PEER_ANSWER,
					"rank %u: is the lowest of its node and describes no lanes",
					r);
		rc = connect_node(core, &all[r], node_of[r]);
	}
	if (!rc && epf_lanes_end(core, &lost))
		rc = cannot_connect(&all[lost]);
	for (uint32_t r = 0; r < core->world && !rc; r++)
		rc = set_peer(core, &all[r], node_of[r]);
	return rc;
}

static void free_all(struct epf_description *all, uint32_t world)
{
	for (uint32_t r = 0; r < world; r++)
		epf_description_free(&all[r]);
	free(all);
}

/* may_lack: a rank that says nothing is left out. */
static int decode_all(const struct epf_core *core, const struct epf_blob *blobs, int may_lack,
		      struct epf_description **out)
{
	struct epf_description *all = calloc(core->world, sizeof(*all));
	int rc = 0;

	if (!all)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", core->world);
	for (uint32_t r = 0; r < core->world && !rc; r++) {
		if (may_lack && !blobs[r].len)
			continue;
		rc = epf_description_decode(blobs[r].data, blobs[r].len, &all[r]);
		if (!rc)
			rc = check_fit(core, &all[r], r);
	}
	if (rc) {
		free_all(all, core->world);
		return rc;
	}
	*out = all;
	return 0;
}

int epf_world_connect(struct epf_core *core, const struct epf_blob *blobs, const uint32_t *node_of)
{
	struct epf_description *all;
	int rc = decode_all(core, blobs, 0, &all);

	if (rc)
		return rc;
	rc = number_places(core, all);
	for (uint32_t r = 0; r < core->world; r++)
		if (node_of[r] == core->self)
			core->my_place = (uint16_t)core->peers_page->peers[r].node;
	if (!rc)
		rc = connect_all(core, all, node_of);
	free_all(all, core->world);
	return rc;
}

int epf_world_update(struct epf_core *core, const struct epf_blob *blobs)
{
	struct epf_description *all;
	int rc = decode_all(core, blobs, 1, &all);

	if (rc)
		return rc;
	for (uint32_t r = 0; r < core->world && !rc; r++)
		if (blobs[r].len)
			rc = set_peer(core, &all[r], core->peers[r].node);
	free_all(all, core->world);
	return rc;
}

/* What a node's speaker gave after a step: `each` bytes, or more where at_least. */
static int heard(const struct epf_core *core, const struct epf_blob *blobs, uint32_t node,
		 size_t each, int at_least)
{
	uint32_t rank = core->nodes[node].rank;

	if (blobs[rank].len == each || (at_least && blobs[rank].len > each))
		return 0;
	return epf_fail(EPF_R_RECONNECT, "rank %u: its engine could not take part", rank);
}

/* One byte of every node about this one, and where given, of this one about every node: marks[n_nodes]. */
static int hear_marks(const struct epf_core *core, const struct epf_blob *blobs, int both,
		      uint8_t *marks)
{
	int rc = 0;

	for (uint32_t i = 0; i < core->n_nodes && !rc; i++) {
		rc = heard(core, blobs, i, core->n_nodes, 0);
		if (rc)
			break;
		marks[i] = ((const uint8_t *)blobs[core->nodes[i].rank].data)[core->self];
		if (both)
			marks[i] |= ((const uint8_t *)blobs[core->nodes[core->self].rank].data)[i];
	}
	return rc;
}

/* All local ranks that live, one behind the other: u32 length and bytes each. */
static int describe_node(struct epf_core *core, const char *place, const uint64_t *tokens,
			 uint8_t **buf, size_t *len)
{
	uint8_t *all = NULL;
	size_t at = 0;

	for (uint32_t i = 0; i < core->n_ranks; i++) {
		uint8_t *one = NULL, *more;
		size_t n = 0;
		int rc = 0;

		if (core->ranks[i].life != EPF_RANK_LIVE)
			continue;
		rc = epf_world_describe(core, i, place,
					core->ranks[i].rank == core->nodes[core->self].rank ? tokens
											    : NULL,
					&one, &n);
		more = rc ? NULL : realloc(all, at + 4 + n);
		if (!more) {
			free(one);
			free(all);
			return rc ? rc : epf_fail(EPF_R_NO_MEMORY, "reconnect: no memory");
		}
		all = more;
		for (unsigned k = 0; k < 4; k++)
			all[at + k] = (uint8_t)(n >> 8 * k);
		memcpy(all + at + 4, one, n);
		at += 4 + n;
		free(one);
	}
	*buf = all;
	*len = at;
	return 0;
}

/* One description of a node's: its ranks' regions as they are now, and new lanes to it where it was lost. */
static int take_one(struct epf_core *core, const struct epf_description *d, uint32_t node)
{
	struct epf_node_info info = node_info(core, d);
	int rc = 0;

	if (d->rank >= core->world || core->peers[d->rank].node != node)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: is not on the node of rank %u",
				d->rank, core->nodes[node].rank);
	rc = check_fit(core, d, d->rank);
	if (!rc && d->rank == core->nodes[node].rank) {
		if (!d->n_tokens)
			return epf_fail(EPF_R_PEER_ANSWER, "rank %u: describes no lanes", d->rank);
		/* A device that is back has another address, perhaps, and other keys. */
		if (core->nodes[node].state == EPF_NODE_UP)
			rc = epf_core_node_place(core, &core->nodes[node], &info);
		if (!rc)
			rc = epf_reconnect_node(core, node, &info);
	}
	return rc ? rc : set_peer(core, d, node);
}

static int take_node(struct epf_core *core, const struct epf_blob *blob, uint32_t node)
{
	const uint8_t *at = blob->data;
	size_t left = blob->len;
	int rc = 0;

	while (left && !rc) {
		struct epf_description d;
		size_t n = left < 4 ? SIZE_MAX
				    : (size_t)at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 |
					      (size_t)at[3] << 24;

		if (left < 4 || n > left - 4)
			return epf_fail(EPF_R_PEER_ANSWER, "rank %u: a damaged description",
					core->nodes[node].rank);
		rc = epf_description_decode(at + 4, n, &d);
		if (rc)
			return rc;
		rc = take_one(core, &d, node);
		epf_description_free(&d);
		at += 4 + n;
		left -= 4 + n;
	}
	return rc;
}

static int give_marks(const struct epf_core *core, int rc, uint8_t *marks, uint8_t **buf,
		      size_t *len)
{
	if (rc) {
		free(marks);
		return rc;
	}
	*buf = marks;
	*len = core->n_nodes;
	return 0;
}

static int connect_again(struct epf_core *core, const struct epf_blob *blobs)
{
	int rc = 0;

	for (uint32_t i = 0; i < core->n_nodes && !rc; i++)
		rc = heard(core, blobs, i, 4, 1);
	for (uint32_t i = 0; i < core->n_nodes && !rc; i++)
		rc = take_node(core, &blobs[core->nodes[i].rank], i);
	return rc;
}

int epf_world_reconnect(struct epf_core *core, unsigned step, const char *place,
			const struct epf_blob *blobs, uint8_t **buf, size_t *len)
{
	uint8_t *marks = calloc(core->n_nodes ? core->n_nodes : 1, 1);
	const uint64_t *tokens = NULL;
	int rc = marks ? 0 : epf_fail(EPF_R_NO_MEMORY, "reconnect: no memory");

	*buf = NULL;
	*len = 0;
	if (!rc && step == EPF_RECONNECT_BEGIN)
		return give_marks(core, epf_reconnect_begin(core, marks), marks, buf, len);
	if (!rc && step == EPF_RECONNECT_PROVE)
		return give_marks(core, epf_reconnect_prove(core, marks), marks, buf, len);
	if (!rc && step == EPF_RECONNECT_PREPARE) {
		rc = hear_marks(core, blobs, 1, marks);
		if (!rc)
			rc = epf_reconnect_prepare(core, marks, &tokens);
		if (!rc)
			rc = describe_node(core, place, tokens, buf, len);
	} else if (!rc && step == EPF_RECONNECT_CONNECT) {
		rc = connect_again(core, blobs);
	} else if (!rc && step == EPF_RECONNECT_FINISH) {
		rc = hear_marks(core, blobs, 0, marks);
		if (!rc)
			rc = epf_reconnect_finish(core, marks);
	} else if (!rc) {
		rc = epf_fail(EPF_R_JOIN_ORDER, "reconnect: there is no step %u", step);
	}
	free(marks);
	return rc;
}
