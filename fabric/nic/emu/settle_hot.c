/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's messages at their end: a message settles when its last packet has returned, and a failed lane flushes the rest.
 * Hot path: never allocates, locks, logs or makes a system call.
 */
#include "fabric/nic/emu/emu.h"

void epf_emu_free_packet(struct epf_emu *e, uint32_t idx)
{
	struct epf_emu_slot *s = &e->slots[idx];

	if (s->left || (s->flags & (EPF_EMU_WAITS | EPF_EMU_FLIES | EPF_EMU_OUT | EPF_EMU_DONE |
				    EPF_EMU_HOME)))
		return;
	s->link = e->free_head;
	e->free_head = idx + 1;
	e->free_count++;
}

/* Takes a message off its lane's list of outstanding ones. */
static void out_remove(struct epf_emu *e, uint16_t lane, uint32_t idx)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_slot *s = &e->slots[idx];

	if (s->out_prev)
		e->slots[s->out_prev - 1].out_next = s->out_next;
	else
		l->out_head = s->out_next;
	if (s->out_next)
		e->slots[s->out_next - 1].out_prev = s->out_prev;
	else
		l->out_tail = s->out_prev;
	s->flags &= (uint8_t)~EPF_EMU_OUT;
	l->out_count -= s->wrs;
	if (l->out_count)
		return;
	if (l->busy_prev == EPF_EMU_NO_LANE)
		e->busy_head = l->busy_next;
	else
		e->lanes[l->busy_prev].busy_next = l->busy_next;
	if (l->busy_next != EPF_EMU_NO_LANE)
		e->lanes[l->busy_next].busy_prev = l->busy_prev;
}

/* Moves an outstanding message to the completions to hand out; ordered successes of a lane merge. */
static void finish(struct epf_emu *e, uint16_t lane, uint32_t idx, uint8_t status)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_slot *s = &e->slots[idx];

	out_remove(e, lane, idx);
	if (status != EPF_S_OK && status != EPF_S_FLUSHED)
		e->counters.errors++;
	if (l->merge && status == EPF_S_OK) {
		e->slots[l->merge - 1].id = s->id;
		epf_emu_free_packet(e, idx);
		return;
	}
	s->status = status;
	s->flags |= EPF_EMU_DONE;
	s->link = 0;
	if (e->done_tail)
		e->slots[e->done_tail - 1].link = idx + 1;
	else
		e->done_head = idx + 1;
	e->done_tail = idx + 1;
	l->done_count++;
	l->merge = e->opts.ordered && status == EPF_S_OK ? idx + 1 : 0;
}

void epf_emu_fail_lane(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	uint32_t at = l->tx_head;

	l->link = EPF_LANE_ERROR;
	l->tx_head = l->tx_tail = 0;
	while (at) {
		struct epf_emu_slot *s = &e->slots[at - 1];
		uint32_t next = s->link, idx = at - 1;

		s->flags &= (uint8_t)~EPF_EMU_WAITS;
		e->slots[s->lead].left--;
		if (s->lead != idx)
			epf_emu_free_packet(e, idx);
		at = next;
	}
	while (l->out_head)
		finish(e, lane, l->out_head - 1, EPF_S_FLUSHED);
}

void epf_emu_settle(struct epf_emu *e, uint16_t lane, uint32_t idx, uint8_t status)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_slot *s = &e->slots[idx];

	s->status = status;
	s->flags |= EPF_EMU_KNOWN;
	l->progress_ns = e->now_ns;
	if (!e->opts.ordered) {
		finish(e, lane, idx, status);
		if (status != EPF_S_OK)
			epf_emu_fail_lane(e, lane);
		return;
	}
	while (l->out_head) {
		idx = l->out_head - 1;
		if (!(e->slots[idx].flags & EPF_EMU_KNOWN))
			return;
		status = e->slots[idx].status;
		finish(e, lane, idx, status);
		if (status != EPF_S_OK)
			epf_emu_fail_lane(e, lane);
	}
}

void epf_emu_lose_lane(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];

	if (l->out_head)
		epf_emu_settle(e, lane, l->out_head - 1, EPF_S_RETRY_EXCEEDED);
	epf_emu_fail_lane(e, lane);
}

void epf_emu_returned(struct epf_emu *e, uint32_t lane, uint32_t idx, uint8_t status)
{
	struct epf_emu_slot *s = &e->slots[idx];
	struct epf_emu_slot *lead = &e->slots[s->lead];
	uint32_t lead_idx = s->lead;

	if (status != EPF_S_OK && lead->status == EPF_S_OK)
		lead->status = status;
	lead->left--;
	if (idx != lead_idx)
		epf_emu_free_packet(e, idx);
	if (lead->left)
		return;
	if (lead->flags & EPF_EMU_OUT)
		epf_emu_settle(e, (uint16_t)lane, lead_idx, lead->status);
	else
		epf_emu_free_packet(e, lead_idx);
}
