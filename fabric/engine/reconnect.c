/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See reconnect.h. Everything the two engines of a pair know of each other's traffic is as it was at the join when `prepare` is over: counts
 * of streams, windows, grants, acknowledgements, notify handles, generations of recoveries. What stays: streams and their handles, regions,
 * signals and their values.
 */
#include "fabric/engine/reconnect.h"
#include "fabric/engine/data_path.h"

#include "fabric/base/err.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/recovery.h"
#include "fabric/engine/retire_hot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum phase {
	NOT_LOST = 0,
	DRAINING = 1,  /* its old lanes still have something to give */
	FORGOTTEN = 2, /* nothing is left of what was */
	FRESH = 3,     /* with new lanes */
	CONNECTED = 4, /* those of `connected` are */
};

struct again {
	uint8_t phase;
	uint8_t connected, posted, proven; /* bit l: its lane of index l */
};

struct epf_reconnect {
	uint64_t deadline_ns; /* of the proof; 0: it has not begun */
	uint64_t
		doubt_ns; /* when doubts about the lanes to this node itself began; 0: there are none */
	uint32_t doubt_tails; /* the sum of their tails then */
	uint64_t *tokens;
	struct again nodes[]; /* n_nodes */
};

void epf_reconnect_free(struct epf_core *core)
{
	if (core->reconnect)
		free(core->reconnect->tokens);
	free(core->reconnect);
	core->reconnect = NULL;
}

/* This node itself counts as lost only after a while (recover.c): here it is enough that no lane is left. */
static int is_lost(struct epf_core *core, const struct epf_node *node)
{
	return node->state == EPF_NODE_DOWN ||
	       (node->state == EPF_NODE_UP && !epf_other_lane(core, node));
}

int epf_reconnect_begin(struct epf_core *core, uint8_t *lost)
{
	struct epf_reconnect *r = calloc(1, sizeof(*r) + core->n_nodes * sizeof(r->nodes[0]));

	if (r)
		r->tokens = calloc(core->n_lanes, sizeof(*r->tokens));
	if (!r || !r->tokens) {
		free(r);
		return epf_fail(EPF_R_NO_MEMORY, "reconnect: no memory for %u lanes",
				core->n_lanes);
	}
	epf_reconnect_free(core);
	core->reconnect = r;
	for (uint32_t i = 0; i < core->n_nodes; i++) {
		core->nodes[i].is_back = 0;
		lost[i] = is_lost(core, &core->nodes[i]) != 0;
	}
	return 0;
}

/* Streams to the node start over, each on its own lane. What was deferred in them has already failed. */
static void forget_sending(struct epf_core *core, struct epf_node *node)
{
	struct epf_lane *limbo = &core->lanes[core->n_lanes];
	uint32_t at = limbo->waiting_head;

	for (uint32_t h = 0; h < node->n_handles; h++) {
		struct epf_stream *s = &core->streams[node->handles[h]];

		s->count = core->limits.start_count;
		s->lane =
			s->kind == EPF_STREAM_CONTROL ? (uint16_t)(node->first_lane + h) : s->home;
		s->waiting = 0;
	}
	for (uint32_t i = 0; i < core->n_groups; i++)
		if (&core->nodes[core->streams[core->groups[i].stream].node] == node)
			core->groups[i].spare = 0;
	/* Streams of other nodes keep waiting in limbo (reopen.c). */
	limbo->waiting_head = limbo->waiting_tail = EPF_NONE;
	while (at != EPF_NONE) {
		struct epf_stream *s = &core->streams[at];

		at = s->next_waiting;
		if (&core->nodes[s->node] == node)
			continue;
		s->waiting = 0;
		stream_wait(core, s);
	}
}

/* Frees the notify handles that were defined there. */
static void forget_notifies(struct epf_core *core, struct epf_node *node)
{
	for (uint32_t i = 0; i <= core->group_mask; i++) {
		uint32_t *link = &core->notify_table[i];

		while (*link != EPF_NONE) {
			struct epf_notify_out *n = &core->notifies[*link];
			uint32_t index = *link;

			if (&core->nodes[core->streams[n->stream].node] != node) {
				link = &n->next;
				continue;
			}
			*link = n->next;
			n->next = core->notify_free;
			core->notify_free = index;
		}
	}
	node->n_notifies = 0;
	if (node->n_notify_in)
		memset(node->notify_in, 0, node->n_notify_in * sizeof(*node->notify_in));
}

static void forget_receiving(struct epf_core *core, struct epf_node *node)
{
	for (uint32_t h = 0; h < node->n_rx; h++) {
		struct epf_rx_stream *rx = &node->rx[h];

		while (rx->pending != EPF_NONE) {
			struct epf_pending *p = &core->pending[rx->pending];
			uint32_t index = rx->pending;

			rx->pending = p->next;
			p->next = core->pending_free;
			core->pending_free = index;
		}
		if (rx->bits)
			memset(rx->bits, 0, core->limits.window / 8);
		*rx = (struct epf_rx_stream){ .base = core->limits.start_count,
					      .pending = EPF_NONE,
					      .bits = rx->bits };
		window_give(core, rx);
	}
	node->ack_head = 0xffff;
	node->acks_busy = node->acks_left = 0;
	if (node->acks)
		memset(node->acks, 0, core->n_acks * sizeof(*node->acks));
	memset(node->ctl, 0, core->ctl_stride);
}

static void forget_lane(const struct epf_core *core, struct epf_lane *lane)
{
	const struct epf_core_limits *l = &core->limits;

	lane->events = lane->granted = lane->arrived = l->start_count;
	lane->given = lane->arrived + l->lane_receives;
	lane->grant_state = EPF_WORD_CLEAN;
	lane->waiting_head = lane->waiting_tail = EPF_NONE;
	lane->state = EPF_LANE_DOWN;
}

static void forget(struct epf_core *core, struct epf_node *node)
{
	forget_sending(core, node);
	forget_notifies(core, node);
	forget_receiving(core, node);
	for (unsigned i = 0; i < node->n_lanes; i++)
		forget_lane(core, &core->lanes[node->first_lane + i]);
	if (node->recovery)
		memset(node->recovery, 0, epf_recovery_bytes(node->n_lanes));
	/* Withdrawals that it may not have heard of, or whose answers were lost, are sent again; what it withdrew has drained. */
	epf_revokes_tell_again(core, node);
	node->draining = 0;
	node->beats_seen = 0;
	node->silent_ticks = 0;
	node->heard = 1;
}

/* One that cannot be made, since its device is still away, leads nowhere yet: its token is none, and recovery makes it later. */
static void make_lanes(struct epf_core *core, struct epf_node *node)
{
	for (unsigned i = 0; i < node->n_lanes; i++) {
		uint16_t id = (uint16_t)(node->first_lane + i);

		core->ops->lane_destroy(core->nic, id);
		if (core->ops->lane_create(core->nic, id, core->limits.lane_depth,
					   &core->reconnect->tokens[id]))
			core->reconnect->tokens[id] = 0;
	}
}

/* The pair is lost at both ends from now on, whoever noticed it. What is left of an earlier attempt ends too. */
static void let_go(struct epf_core *core, struct epf_node *node)
{
	if (node == &core->nodes[core->self])
		core->self_lost_ns = 0;
	epf_node_down(core, node, EPF_S_RETRY_EXCEEDED);
	for (unsigned i = 0; i < node->n_lanes; i++) {
		struct epf_lane *lane = &core->lanes[node->first_lane + i];

		core->ops->lane_fence(core->nic, lane->id);
		for (; lane->tail != lane->head; lane->tail++)
			epf_fail_entry_cold(core, lane, &lane->wrs[lane->tail & lane->mask],
					    EPF_S_FLUSHED, EPF_R_PEER_DOWN);
		lane->posted = lane->head;
	}
}

static int all_drained(struct epf_core *core, const struct epf_node *node)
{
	int drained = 1;

	for (unsigned i = 0; i < node->n_lanes; i++)
		drained &=
			core->ops->lane_drained(core->nic, (uint16_t)(node->first_lane + i)) != 0;
	return drained;
}

/* Renews a region's keys on a device that was opened again, as many as a node has lanes. */
static void renew_keys(const struct epf_core *core, struct epf_nic_mr *mr)
{
	uint32_t keys = core->caps.keys ? core->caps.keys : 1;

	core->ops->region_keys(core->nic, mr);
	for (uint32_t i = keys; i < EPF_NIC_LINKS; i++)
		mr->keys[i] = mr->keys[i % keys];
}

/*
 * Devices that were removed and are back are opened again. Not those of which a lane is still being recovered: what it holds is found by the old keys
 * (replay.c). Their lanes wait until everybody knows the new ones.
 */
static int revive(struct epf_core *core)
{
	uint32_t links = (1u << core->caps.links) - 1;
	int rc;

	for (uint32_t i = 0; i < core->n_lanes; i++)
		if (core->lanes[i].state == EPF_LANE_UP || core->lanes[i].state == EPF_LANE_FENCED)
			links &= ~(1u << core->lanes[i].link);
	rc = core->ops->revive(core->nic, &links);
	if (rc || !links)
		return rc;
	core->links_untold |= links;
	/* One that was about to be connected when its device went has failed, for both ends. */
	for (uint32_t i = 0; i < core->n_lanes; i++) {
		struct epf_lane *lane = &core->lanes[i];

		if ((links >> lane->link & 1) && lane->state == EPF_LANE_OPENING &&
		    core->nodes[lane->node].recovery->lanes[lane->index].phase > EPF_REC_CLOSED)
			epf_lane_error_cold(core, lane, EPF_S_LINK_DOWN);
	}
	renew_keys(core, &core->ctl_mr);
	for (uint32_t i = 0; i < core->n_ranks; i++)
		for (uint32_t r = 0; r < core->ranks[i].n_regions; r++) {
			struct epf_region_local *l = &core->ranks[i].regions[r];

			if (l->state == EPF_REGION_LIVE || l->state == EPF_REGION_REVOKED)
				renew_keys(core, &l->mr);
		}
	return 0;
}

/*
 * Is this node lost to itself although a lane to it is UP? A lane may have failed with the links while the device has forgotten another one, as Soft-RoCE does
 * (tick.c): what is in flight there never completes, and the first one is recovered over it. So a lane is not trusted that has requests in flight beside a failed one and
 * moves none of them for a tick. Returns 1: lost; -EAGAIN: not known yet; 0: not lost.
 */
static int is_lost_to_itself(struct epf_core *core)
{
	const struct epf_node *self = &core->nodes[core->self];
	struct epf_reconnect *r = core->reconnect;
	uint64_t now = core->now(core->now_arg);
	uint32_t tails = 0;
	int failed = 0, busy = 0;

	for (unsigned i = 0; i < self->n_lanes; i++) {
		const struct epf_lane *lane = &core->lanes[self->first_lane + i];
		int is_up = lane->state == EPF_LANE_UP;

		failed |= !is_up;
		busy |= is_up && lane->tail != lane->posted;
		tails += lane->tail;
	}
	if (!failed || !busy || (r->doubt_ns && tails != r->doubt_tails))
		return 0;
	if (!r->doubt_ns) {
		r->doubt_ns = now;
		r->doubt_tails = tails;
	}
	return now - r->doubt_ns > core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT ? 1
											: -EAGAIN;
}

int epf_reconnect_prepare(struct epf_core *core, const uint8_t *lost, const uint64_t **tokens)
{
	int rc = 0, pending = 0;

	if (!core->reconnect)
		return epf_fail(EPF_R_JOIN_ORDER, "reconnect: it has not begun");
	for (uint32_t i = 0; i < core->n_nodes && !rc; i++) {
		struct epf_node *node = &core->nodes[i];
		struct again *a = &core->reconnect->nodes[i];
		int is_lost = lost[i] || a->phase != NOT_LOST;

		if (!is_lost && i == core->self)
			is_lost = is_lost_to_itself(core);
		pending |= is_lost < 0;
		if (is_lost <= 0 || a->phase >= FORGOTTEN)
			continue;
		if (node->state == EPF_NODE_LEFT)
			return epf_fail(EPF_R_NODE_LOST, "rank %u: its engine has closed",
					node->rank);
		if (a->phase == NOT_LOST)
			let_go(core, node);
		a->phase = DRAINING;
		if (!all_drained(core, node)) {
			pending = 1;
			continue;
		}
		forget(core, node);
		a->phase = FORGOTTEN;
	}
	if (!rc && !pending)
		rc = revive(core);
	for (uint32_t i = 0; i < core->n_nodes && !rc && !pending; i++)
		if (core->reconnect->nodes[i].phase == FORGOTTEN) {
			make_lanes(core, &core->nodes[i]);
			core->reconnect->nodes[i].phase = FRESH;
		}
	if (rc || pending)
		return rc ? rc : -EAGAIN;
	*tokens = core->reconnect->tokens;
	return 0;
}

int epf_reconnect_node(struct epf_core *core, uint32_t i, const struct epf_node_info *info)
{
	struct epf_node *node = &core->nodes[i];
	struct again *a = core->reconnect ? &core->reconnect->nodes[i] : NULL;
	int rc;

	if (!a || a->phase != FRESH)
		return 0;
	rc = epf_core_node_place(core, node, info);
	if (rc)
		return rc;
	for (unsigned l = 0; l < node->n_lanes; l++) {
		struct epf_lane *lane = &core->lanes[node->first_lane + l];

		lane->granted = lane->events + info->receives;
		if (core->ops->link_ready(core->nic, lane->id) &&
		    epf_core_connect_lane(core, node, lane, info->tokens[l]) == 0)
			a->connected |= (uint8_t)(1u << l);
	}
	node->is_back = 1;
	a->phase = CONNECTED;
	return 0;
}

/* Returns 1 if the outcome of the lane's proof is known. */
static int prove_lane(struct epf_core *core, struct again *a, struct epf_lane *lane)
{
	uint8_t bit = (uint8_t)(1u << lane->index);

	if (!(a->connected & bit) || (a->proven & bit) ||
	    core->ops->lane_link(core->nic, lane->id) == EPF_LANE_ERROR)
		return 1;
	if (!(a->posted & bit) && epf_probe_post(core, lane))
		a->posted |= bit;
	if ((a->posted & bit) && lane->tail == lane->head)
		a->proven |= bit;
	return (a->proven & bit) != 0;
}

int epf_reconnect_prove(struct epf_core *core, uint8_t *proven)
{
	struct epf_reconnect *r = core->reconnect;
	uint64_t now = core->now(core->now_arg);
	int known = 1;

	if (!r)
		return epf_fail(EPF_R_JOIN_ORDER, "reconnect: it has not begun");
	if (!r->deadline_ns)
		r->deadline_ns = now + core->limits.peer_timeout_ns;
	for (uint32_t i = 0; i < core->n_nodes; i++) {
		struct again *a = &r->nodes[i];

		for (unsigned l = 0; a->phase == CONNECTED && l < core->nodes[i].n_lanes; l++)
			known &= prove_lane(core, a, &core->lanes[core->nodes[i].first_lane + l]);
		proven[i] = a->proven;
	}
	return known || now >= r->deadline_ns ? 0 : -EAGAIN;
}

/* A lane that leads nowhere yet: as after a failure whose work has moved, so recovery opens it when it can be (reopen.c). */
static void open_later(struct epf_core *core, struct epf_node *node, struct epf_lane *lane)
{
	struct epf_lane_recovery *r = &epf_recovery_of(core, node)->lanes[lane->index];

	core->ops->lane_fence(core->nic, lane->id);
	for (; lane->tail != lane->head; lane->tail++)
		epf_fail_entry_cold(core, lane, &lane->wrs[lane->tail & lane->mask], EPF_S_FLUSHED,
				    EPF_R_PEER_DOWN);
	lane->posted = lane->head;
	lane->state = EPF_LANE_OPENING;
	r->phase = EPF_REC_CLOSED;
	r->is_moved = 1;
	r->failed_ns = r->since_ns = r->retry_ns = core->now(core->now_arg);
	epf_outage_begin(core, lane);
}

static void use_lanes(struct epf_core *core, struct epf_node *node, uint8_t good)
{
	const struct epf_lane *other;

	for (unsigned l = 0; l < node->n_lanes; l++) {
		struct epf_lane *lane = &core->lanes[node->first_lane + l];

		if (good >> l & 1) {
			lane->state = EPF_LANE_UP;
			epf_grant_mark(core, lane);
		} else {
			open_later(core, node, lane);
		}
	}
	other = epf_other_lane(core, node);
	for (uint32_t h = 0; h < node->n_handles; h++) {
		struct epf_stream *s = &core->streams[node->handles[h]];

		if (core->lanes[s->lane].state != EPF_LANE_UP)
			s->lane = other->id;
	}
}

/* Was a rank lost with its node? One that died is lost for good, or until it rejoins. */
static bool may_return(const struct epf_peer_word *w)
{
	return w->state == EPF_PEER_DOWN &&
	       (w->cause == EPF_R_NODE_LOST || w->cause == EPF_R_LINK_LOST ||
		w->cause == EPF_R_NODE_MEMORY);
}

static void ranks_are_back(struct epf_core *core, const struct epf_node *node)
{
	for (uint32_t r = 0; r < core->world; r++) {
		const struct epf_peer_word *w = &core->peers_page->peers[r];

		if (&core->nodes[core->peers[r].node] != node || !may_return(w))
			continue;
		core->peers[r].returns++;
		epf_peer_changed(core, r, EPF_PEER_UP, 0, w->epoch + 1);
	}
}

int epf_reconnect_finish(struct epf_core *core, const uint8_t *proven)
{
	const struct epf_node *lost = NULL;

	for (uint32_t i = 0; core->reconnect && i < core->n_nodes; i++) {
		struct epf_node *node = &core->nodes[i];
		const struct again *a = &core->reconnect->nodes[i];
		uint8_t good = a->proven & proven[i];

		if (a->phase == NOT_LOST)
			continue;
		node->is_back = 0;
		if (!good) {
			lost = node;
			continue;
		}
		EPF_STORE_RELAXED(&node->state, EPF_NODE_UP);
		use_lanes(core, node, good);
		ranks_are_back(core, node);
	}
	core->cold_work = 1;
	core->links_untold = 0;
	epf_reconnect_free(core);
	return lost ? epf_fail(EPF_R_RECONNECT, "rank %u: no link to its node works yet",
			       lost->rank)
		    : 0;
}
