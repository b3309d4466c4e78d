/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Withdraws regions: asks every node to stop using a region; a node answers when none of its traffic is in flight to it.
 * Runs on the core's thread: no log; allocates only when a withdrawal begins, and for a region of a peer that it does not know yet.
 */
#include "fabric/base/err.h"
#include "fabric/engine/control_plane.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/lane_hot.h"

#include <stdlib.h>
#include <string.h>

/* The withdrawal of a local region, with the state of each node. */
struct epf_revoke {
	struct epf_revoke *next;
	uint32_t local;
	uint32_t region;
	uint32_t missing; /* nodes that have not acknowledged */
	uint32_t *
		ring_seqs; /* per ring: commands dequeued when it began; the region is a source until they are retired */
	uint32_t n_rings;
	uint8_t node_state[]; /* 0: to be notified, 1: notified, 2: done */
};

int epf_core_revoke_begin(struct epf_core *core, uint32_t local, uint32_t region)
{
	struct epf_rank_state *rank = &core->ranks[local];
	struct epf_revoke *r;

	if (region < rank->n_regions && rank->regions[region].state == EPF_REGION_REVOKED)
		return 0; /* under way: a caller whose time was up comes back */
	if (region >= rank->n_regions || rank->regions[region].state != EPF_REGION_LIVE)
		return epf_fail(EPF_R_CMD_LOCAL_REGION, "region %u: not registered", region);
	r = calloc(1, sizeof(*r) + core->n_nodes);
	if (r)
		r->ring_seqs = calloc(core->n_rings ? core->n_rings : 1, sizeof(*r->ring_seqs));
	if (!r || !r->ring_seqs) {
		free(r);
		return epf_fail(EPF_R_NO_MEMORY, "region %u: no memory to withdraw it", region);
	}
	r->local = local;
	r->region = region;
	r->n_rings = core->n_rings;
	for (uint32_t i = 0; i < r->n_rings; i++)
		r->ring_seqs[i] = core->rings[i]->seq;
	for (uint32_t i = 0; i < core->n_nodes; i++)
		r->missing += core->nodes[i].state == EPF_NODE_UP;
	rank->regions[region].state = EPF_REGION_REVOKED;
	rank->regions[region].bytes = 0;
	r->next = core->revokes;
	core->revokes = r;
	core->recheck = 1;
	core->cold_work = 1;
	return 0;
}

void epf_revokes_free(struct epf_core *core)
{
	while (core->revokes) {
		struct epf_revoke *r = core->revokes;

		core->revokes = r->next;
		free(r->ring_seqs);
		free(r);
	}
}

static int sources_drained(const struct epf_core *core, const struct epf_revoke *r)
{
	for (uint32_t i = 0; i < r->n_rings; i++)
		if (core->rings[i]->rank == r->local &&
		    (int32_t)(core->rings[i]->retired - r->ring_seqs[i]) < 0)
			return 0;
	return 1;
}

void epf_revokes_new_ring(struct epf_core *core, uint32_t id)
{
	for (struct epf_revoke *r = core->revokes; r; r = r->next)
		if (id < r->n_rings)
			r->ring_seqs[id] = core->rings[id]->seq;
}

int epf_core_revoke_done(struct epf_core *core, uint32_t local, uint32_t region, uint32_t *missing)
{
	struct epf_revoke **link = &core->revokes;

	for (; *link; link = &(*link)->next) {
		struct epf_revoke *r = *link;
		struct epf_region_local *l = &core->ranks[local].regions[region];

		if (r->local != local || r->region != region)
			continue;
		*missing = EPF_NONE;
		for (uint32_t i = 0; i < core->n_nodes; i++)
			if (core->nodes[i].state == EPF_NODE_UP && r->node_state[i] != 2)
				*missing = core->nodes[i].rank;
		if (*missing != EPF_NONE || !sources_drained(core, r))
			return 0;
		core->ops->region_deregister(core->nic, &l->mr);
		l->state = EPF_REGION_WITHDRAWN;
		*link = r->next;
		free(r->ring_seqs);
		free(r);
		return 1;
	}
	return 1;
}

int epf_core_forget_region(struct epf_core *core, uint32_t rank, uint32_t region)
{
	struct epf_peer *peer = &core->peers[rank];
	struct epf_region_remote *r;

	if (region >= peer->n_regions)
		return 0;
	r = &peer->regions[region];
	if (r->state == EPF_REGION_REVOKED || r->state == EPF_REGION_DRAINING)
		return epf_fail(EPF_R_CMD_REMOTE_REGION,
				"region %u of rank %u: its withdrawal is under way", region, rank);
	*r = (struct epf_region_remote){ .state = EPF_REGION_FREE };
	return 0;
}

int epf_core_free_region(struct epf_core *core, uint32_t local, uint32_t region)
{
	struct epf_rank_state *r = &core->ranks[local];
	int rc;

	if (region >= r->n_regions || r->regions[region].state != EPF_REGION_WITHDRAWN)
		return epf_fail(EPF_R_CMD_LOCAL_REGION, "region %u: not withdrawn", region);
	rc = epf_core_forget_region(core, r->rank, region);
	if (rc)
		return rc;
	r->regions[region] = (struct epf_region_local){ .state = EPF_REGION_FREE };
	r->free_regions++;
	return 0;
}

/* Notifies nodes of local withdrawals. */
static unsigned tell(struct epf_core *core)
{
	unsigned handled = 0;

	for (struct epf_revoke *r = core->revokes; r; r = r->next)
		for (uint32_t i = 0; i < core->n_nodes; i++) {
			struct epf_msg m = { .kind = EPF_MSG_REVOKE,
					     .rank = core->ranks[r->local].rank,
					     .signal = r->region };

			if (r->node_state[i] == 0 && core->nodes[i].state == EPF_NODE_UP &&
			    epf_control_send(core, &core->nodes[i], &m)) {
				r->node_state[i] = 1;
				handled++;
			}
		}
	return handled;
}

/* Returns 1 if all entries staged at the snapshot are complete. */
static int drained(const struct epf_core *core, const struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++)
		if ((int32_t)(core->lanes[node->first_lane + i].tail -
			      core->lanes[node->first_lane + i].drain_head) < 0)
			return 0;
	return 1;
}

void epf_drain_snapshot(struct epf_core *core, struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++)
		core->lanes[node->first_lane + i].drain_head =
			core->lanes[node->first_lane + i].head;
}

/* Acknowledges a peer's withdrawn regions once traffic to them has drained, then begins to drain newer ones. */
static unsigned answer(struct epf_core *core, struct epf_node *node)
{
	unsigned handled = 0;

	if (node->draining && !drained(core, node))
		return 0;
	for (uint32_t rank = 0; rank < core->world; rank++) {
		struct epf_peer *peer = &core->peers[rank];

		for (uint32_t i = 0; &core->nodes[peer->node] == node && i < peer->n_regions; i++) {
			struct epf_msg m = { .kind = EPF_MSG_REVOKED, .rank = rank, .signal = i };

			if (peer->regions[i].state != EPF_REGION_DRAINING)
				continue;
			if (!epf_control_send(core, node, &m))
				return handled;
			peer->regions[i].state = EPF_REGION_WITHDRAWN;
			node->revoked--;
			handled++;
		}
	}
	node->draining = 0;
	if (!node->revoked)
		return handled;
	for (uint32_t rank = 0; rank < core->world; rank++)
		for (uint32_t i = 0; &core->nodes[core->peers[rank].node] == node &&
				     i < core->peers[rank].n_regions;
		     i++)
			if (core->peers[rank].regions[i].state == EPF_REGION_REVOKED)
				core->peers[rank].regions[i].state = EPF_REGION_DRAINING;
	epf_drain_snapshot(core, node);
	node->draining = 1;
	return handled + 1;
}

unsigned epf_revoke_step(struct epf_core *core)
{
	unsigned handled = tell(core), open = core->revokes != NULL;

	for (uint32_t i = 0; i < core->n_nodes; i++) {
		if (core->nodes[i].revoked && core->nodes[i].state == EPF_NODE_UP)
			handled += answer(core, &core->nodes[i]);
		open |= core->nodes[i].revoked != 0 && core->nodes[i].state == EPF_NODE_UP;
	}
	if (!open && !core->recover_poll && !core->telling)
		core->cold_work = 0;
	return handled;
}

/*
 * The region that a peer withdraws. It may be one that it has not published yet: that is as withdrawn, and stays so when an exchange that began
 * before brings it; what lies below it and is not known either has no rights until then.
 */
static struct epf_region_remote *withdrawn_region(struct epf_core *core, struct epf_peer *peer,
						  uint32_t region)
{
	uint32_t n = region + 1;
	struct epf_region_remote *grown;

	if (region < peer->n_regions)
		return &peer->regions[region];
	grown = realloc(peer->regions, n * sizeof(*grown));
	if (!grown)
		return NULL;
	memset(grown + peer->n_regions, 0, (n - peer->n_regions) * sizeof(*grown));
	core->peer_memory_bytes += (n - peer->n_regions) * sizeof(*grown);
	peer->regions = grown;
	peer->n_regions = n;
	return &grown[region];
}

static void on_revoke(struct epf_core *core, struct epf_node *node, const struct epf_msg *m)
{
	struct epf_region_remote *region = NULL;

	if (m->rank < core->world && &core->nodes[core->peers[m->rank].node] == node &&
	    m->signal < EPF_MAX_REGIONS)
		region = withdrawn_region(core, &core->peers[m->rank], m->signal);
	if (!region) {
		EPF_COUNT(core, ARRIVALS_REFUSED, 1);
		return;
	}
	/* A reconnected node repeats its withdrawals: our answer may have been lost. */
	if (region->state == EPF_REGION_REVOKED || region->state == EPF_REGION_DRAINING)
		return;
	region->state = EPF_REGION_REVOKED;
	region->bytes = 0;
	node->revoked++;
	core->recheck = 1;
	core->cold_work = 1;
}

static void on_revoked(struct epf_core *core, struct epf_node *node, const struct epf_msg *m)
{
	for (struct epf_revoke *r = core->revokes; r; r = r->next)
		if (core->ranks[r->local].rank == m->rank && r->region == m->signal)
			r->node_state[node - core->nodes] = 2;
}

void epf_revokes_tell_again(struct epf_core *core, const struct epf_node *node)
{
	for (struct epf_revoke *r = core->revokes; r; r = r->next)
		r->node_state[node - core->nodes] = 0;
}

void epf_revoke_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m)
{
	if (m->kind == EPF_MSG_REVOKE)
		on_revoke(core, node, m);
	else
		on_revoked(core, node, m);
}
