/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Step 4 of a recovery (recover.c): what a failed lane still holds moves to another lane with its old counts, and its streams
 * continue there. Called on the core's thread between two steps; without log, allocation or system call, and a bounded number of entries
 * at a time, so that other traffic continues.
 */
#include "fabric/base/err.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/recovery.h"
#include "fabric/engine/retire_hot.h"

enum { SLICE = 256 };

/* Finds a region of a local rank by its key on lanes of index `from`. Returns 1 with its key on those of index `to`, 0 if there is none. */
static int local_key(const struct epf_rank_state *rank, unsigned from, unsigned to, uint32_t *key)
{
	for (uint32_t i = 0; i < rank->n_regions; i++) {
		const struct epf_region_local *l = &rank->regions[i];

		if ((l->state == EPF_REGION_LIVE || l->state == EPF_REGION_REVOKED) &&
		    l->mr.keys[from].lkey == *key) {
			*key = l->mr.keys[to].lkey;
			return 1;
		}
	}
	return 0;
}

/* Likewise for the regions of a node's ranks. */
static int remote_key(const struct epf_core *core, const struct epf_node *node, unsigned from,
		      unsigned to, uint32_t *key)
{
	for (uint32_t rank = 0; rank < core->world; rank++) {
		const struct epf_peer *peer = &core->peers[rank];

		for (uint32_t i = 0; &core->nodes[peer->node] == node && i < peer->n_regions; i++) {
			const struct epf_region_remote *r = &peer->regions[i];

			if (r->state != EPF_REGION_FREE && r->state != EPF_REGION_WITHDRAWN &&
			    r->rkeys[from] == *key) {
				*key = r->rkeys[to];
				return 1;
			}
		}
	}
	return 0;
}

/*
 * Each device has its own keys: an entry that moves to another device gets that one's. Regions are found by the old keys, because an entry does not
 * keep which regions it names: rare work, and a field less on the hot path. Returns 0 if a region no longer exists.
 */
static int exchange_keys(const struct epf_core *core, const struct epf_lane *from,
			 const struct epf_lane *to, struct epf_wr *wr)
{
	const struct epf_node *node = &core->nodes[from->node];
	unsigned kind = (unsigned)(wr->core >> 60);

	if ((core->caps.keys <= 1 && node->keys <= 1) || wr->op == EPF_WR_SEND)
		return 1;
	if (kind != EPF_WRK_DATA) {
		wr->rkey = node->ctl_rkeys[to->index];
		return 1;
	}
	if (!(wr->flags & EPF_WR_INLINE) &&
	    !local_key(&core->ranks[core->rings[wr->core >> 32 & 0xffffu]->rank], from->index,
		       to->index, &wr->lkey))
		return 0;
	return remote_key(core, node, from->index, to->index, &wr->rkey);
}

/* Copies an entry to another lane, payload slot included. */
static void move_entry(struct epf_core *core, struct epf_lane *from, struct epf_wr *wr,
		       struct epf_lane *to)
{
	struct epf_wr *copy = lane_entry(core, to);
	uint32_t id = copy->id;

	if (wr->core >> 60 == EPF_WRK_DATA) {
		uint32_t bytes = wr->op == EPF_WR_SEND ? 0 : wr->len;

		core->load[from->link].bytes -= bytes;
		core->load[from->link].messages--;
		core->load[to->link].bytes += bytes;
		core->load[to->link].messages++;
	}
	*copy = *wr;
	copy->id = id;
	if (wr->flags & EPF_WR_SLOT) {
		struct epf_msg *old = &from->msgs[from->slot_tail++ & (from->n_slots - 1)],
			       *slot = lane_slot(to);

		*slot = *old;
		copy->laddr = (uint64_t)(uintptr_t)slot + (wr->laddr - (uint64_t)(uintptr_t)old);
	}
	if (wr->core & EPF_WRC_EVENT)
		to->events++;
	EPF_COUNT(core, REPLAYS, 1);
	from->replays++;
}

/* Binds a dead lane's streams to another lane; those with deferred commands wait there. */
static void rebind(struct epf_core *core, struct epf_node *node, struct epf_lane *from,
		   struct epf_lane *to)
{
	for (uint32_t h = 0; h < node->n_handles; h++) {
		struct epf_stream *s = &core->streams[node->handles[h]];

		if (s->lane != from->id)
			continue;
		s->lane = to->id;
		s->waiting = 0;
		if (s->deferred_head != EPF_NONE || s->held)
			stream_wait(core, s);
	}
	from->waiting_head = from->waiting_tail = EPF_NONE;
	if (node->draining)
		epf_drain_snapshot(core, node);
}

/*
 * Returns the lane that takes over: chosen once, because on an ordered NIC a put and the signal behind it must not be separated. If
 * it fails meanwhile, what was moved to it moves on, and the rest follows; NULL until then.
 */
static struct epf_lane *takes_over(struct epf_core *core, struct epf_node *node,
				   struct epf_lane_recovery *r)
{
	struct epf_lane *other;

	for (unsigned i = 0; i < EPF_MAX_LANES_PER_NODE && r->to; i++) {
		struct epf_lane *to = &core->lanes[node->first_lane + r->to - 1];

		if (to->state == EPF_LANE_UP)
			return to;
		if (to->state == EPF_LANE_FENCED)
			return NULL;
		r->to = node->recovery->lanes[to->index].to;
	}
	other = epf_other_lane(core, node);
	r->to = other ? (uint8_t)(other->index + 1) : 0;
	return other;
}

int epf_replay(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
	       struct epf_lane_recovery *r)
{
	struct epf_lane *to = takes_over(core, node, r);

	for (unsigned n = 0; to && lane->tail != lane->head; n++) {
		struct epf_wr *wr = &lane->wrs[lane->tail & lane->mask];
		unsigned kind = (unsigned)(wr->core >> 60);

		if (n == SLICE)
			return 0;
		if ((wr->core & EPF_WRC_DONE) || kind == EPF_WRK_GRANT) {
			epf_reclaim(core, lane, wr);
		} else {
			if (!lane_make_entry(core, to) || !lane_make_slot(core, to) ||
			    ((wr->core & EPF_WRC_EVENT) && !lane_has_event_credit(core, to)))
				return 0;
			if (exchange_keys(core, lane, to, wr))
				move_entry(core, lane, wr, to);
			else
				epf_fail_entry_cold(core, lane, wr, EPF_S_REVOKED,
						    EPF_R_CMD_REVOKED);
		}
		lane->tail++;
	}
	if (!to)
		return 0;
	lane->posted = lane->head;
	rebind(core, node, lane, to);
	node->recovery->is_late = 1;
	return 1;
}
