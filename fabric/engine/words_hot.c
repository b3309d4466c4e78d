/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control writes. A control write (receive grants of a lane, the acknowledgement of a stream) is cumulative and goes by a plain RDMA write into
 * the peer's control memory: it needs no credit, no receive and no client. At most one write per word is in flight, because on an unordered
 * NIC an older one could land last. Must never block, allocate, lock, log or make a system call.
 */
#include "fabric/engine/words_hot.h"

#include "fabric/engine/lane_hot.h"

#include <stddef.h>

void epf_grant_mark(struct epf_core *core, struct epf_lane *lane)
{
	if (lane->grant_state == EPF_WORD_INFLIGHT ||
	    lane->grant_state == EPF_WORD_INFLIGHT_DIRTY) {
		lane->grant_state = EPF_WORD_INFLIGHT_DIRTY;
		return;
	}
	lane->grant_state = EPF_WORD_DIRTY;
	if (!lane->in_grant_list) {
		lane->in_grant_list = 1;
		core->grant_lanes[core->n_grants++] = lane->id;
	}
	core->words_dirty = 1;
}

static void ack_again(struct epf_core *core, struct epf_node *node, uint32_t word)
{
	struct epf_ack *ack = &node->acks[word];

	if (ack->state == EPF_WORD_DIRTY || ack->state == EPF_WORD_INFLIGHT_DIRTY)
		return;
	if (ack->state == EPF_WORD_INFLIGHT) {
		ack->state = EPF_WORD_INFLIGHT_DIRTY;
		return;
	}
	ack->state = EPF_WORD_DIRTY;
	ack->next = node->ack_head;
	node->ack_head = (uint16_t)word;
	if (!node->in_ack_list) {
		node->in_ack_list = 1;
		node->next_ack_node = core->ack_nodes;
		core->ack_nodes = (uint32_t)(node - core->nodes);
	}
	core->words_dirty = 1;
}

int epf_ack_mark(struct epf_core *core, struct epf_node *node, uint32_t word, uint32_t handle,
		 uint32_t count)
{
	if (EPF_UNLIKELY(word >= core->n_acks))
		return 0;
	if (EPF_UNLIKELY(!node->acks) && !epf_acks_grow_cold(core, node))
		return 0;
	node->acks[word].value = epf_ack_word(handle, count);
	ack_again(core, node, word);
	return 1;
}

/* Stages one control write of the 8 bytes at `value`. */
static struct epf_wr *put_word(struct epf_core *core, struct epf_lane *lane, const uint64_t *value,
			       uint64_t offset, uint64_t wr_core)
{
	const struct epf_node *node = &core->nodes[lane->node];
	struct epf_wr *wr = lane_entry(core, lane);

	wr->laddr = (uint64_t)(uintptr_t)value;
	wr->raddr = node->ctl_raddr + offset;
	wr->lkey = 0;
	wr->rkey = node->ctl_rkeys[lane->index];
	wr->len = 8;
	wr->imm = 0;
	wr->op = EPF_WR_WRITE;
	wr->flags = EPF_WR_INLINE;
	wr->core = wr_core;
	return wr;
}

/*
 * Stages the lane's own grant. Its value needs no slot: it is never replayed, and where two are staged, the newer value may go twice.
 */
static void put_grant(struct epf_core *core, struct epf_lane *lane, uint32_t given)
{
	lane->word = (uint64_t)given | UINT64_C(1) << 32 | core->beats << 33;
	put_word(core, lane, &lane->word, offsetof(struct epf_ctl, grants) + 8u * lane->index,
		 epf_wr_core(EPF_WRK_GRANT, 0, lane->id, 0));
}

/* The same. Returns 0 if the lane is full or not up. */
static int grant_entry(struct epf_core *core, struct epf_lane *lane, uint32_t given)
{
	if (lane->state != EPF_LANE_UP || !lane_make_entry(core, lane))
		return 0;
	put_grant(core, lane, given);
	return 1;
}

int epf_probe_post(struct epf_core *core, struct epf_lane *lane)
{
	uint32_t head = lane->head;

	put_grant(core, lane, lane->given);
	if (core->ops->post(core->nic, lane->id, &lane->wrs[head & lane->mask], 1) != 1) {
		lane->head = head;
		return 0;
	}
	lane->posted = lane->head;
	lane->grant_state = EPF_WORD_INFLIGHT;
	return 1;
}

int epf_nudge(struct epf_core *core, struct epf_lane *lane)
{
	return grant_entry(core, lane, lane->given);
}

static unsigned write_grants(struct epf_core *core)
{
	uint32_t kept = 0;
	unsigned handled = 0;

	for (uint32_t i = 0; i < core->n_grants; i++) {
		struct epf_lane *lane = &core->lanes[core->grant_lanes[i]];
		uint32_t given = lane->arrived + core->limits.lane_receives;

		if (lane->state != EPF_LANE_UP) { /* its successor starts with new grants */
			lane->grant_state = EPF_WORD_CLEAN;
			lane->in_grant_list = 0;
		} else if (grant_entry(core, lane, given)) {
			lane->given = given;
			lane->grant_state = EPF_WORD_INFLIGHT;
			lane->in_grant_list = 0;
			handled++;
		} else {
			core->grant_lanes[kept++] = lane->id;
		}
	}
	core->n_grants = kept;
	return handled;
}

/* Any lane of the node may carry an acknowledgement. */
static int write_ack(struct epf_core *core, struct epf_node *node, uint32_t word)
{
	struct epf_ack *ack = &node->acks[word];

	for (unsigned i = 0; i < node->n_lanes; i++) {
		struct epf_lane *lane = &core->lanes[node->first_lane + i];
		struct epf_msg *slot;

		if (lane->state != EPF_LANE_UP || !lane_make_entry(core, lane) ||
		    !lane_make_slot(core, lane))
			continue;
		slot = lane_slot(lane);
		slot->value = ack->value;
		put_word(core, lane, &slot->value, offsetof(struct epf_ctl, acks) + 8u * word,
			 epf_wr_core(EPF_WRK_ACK, 0, word, 0))
			->flags |= EPF_WR_SLOT;
		ack->state = EPF_WORD_INFLIGHT;
		return 1;
	}
	return 0;
}

static unsigned write_acks(struct epf_core *core)
{
	uint32_t *link = &core->ack_nodes;
	unsigned handled = 0;

	while (*link != EPF_NONE) {
		struct epf_node *node = &core->nodes[*link];

		while (node->ack_head != 0xffff) {
			uint32_t word = node->ack_head;

			if ((node->state == EPF_NODE_UP || node->is_back) &&
			    !write_ack(core, node, word))
				break;
			node->ack_head = node->acks[word].next;
			handled++;
		}
		if (node->ack_head == 0xffff) {
			node->in_ack_list = 0;
			*link = node->next_ack_node;
		} else {
			link = &node->next_ack_node;
		}
	}
	return handled;
}

EPF_HOT unsigned epf_words_step(struct epf_core *core)
{
	unsigned handled = write_grants(core);

	handled += write_acks(core);
	core->words_dirty = core->n_grants != 0 || core->ack_nodes != EPF_NONE;
	return handled;
}

/* A control write has landed at the peer: if it has changed since, it is written once more. */
void epf_reclaim_word(struct epf_core *core, struct epf_lane *lane, const struct epf_wr *wr)
{
	unsigned kind = (unsigned)(wr->core >> 60);

	if (kind == EPF_WRK_GRANT) {
		struct epf_lane *of = &core->lanes[(uint32_t)wr->core];
		unsigned again = of->grant_state == EPF_WORD_INFLIGHT_DIRTY;

		of->grant_state = EPF_WORD_CLEAN;
		if (again)
			epf_grant_mark(core, of);
	} else if (kind == EPF_WRK_NOTIFY) {
		core->notifies[(uint32_t)wr->core].ready = 1;
	} else if (kind == EPF_WRK_ACK) {
		struct epf_node *node = &core->nodes[lane->node];
		struct epf_ack *ack = &node->acks[(uint32_t)wr->core];
		unsigned again = ack->state == EPF_WORD_INFLIGHT_DIRTY;

		ack->state = EPF_WORD_CLEAN;
		if (again)
			ack_again(core, node, (uint32_t)wr->core);
	}
}
