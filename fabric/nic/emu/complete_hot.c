/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's completions: returned packets settle messages, completions are handed out, late requests fail. What is posted begins
 * in tx_hot.c. Called by reap_hot.c, tx_hot.c, rx_hot.c and lane.c. It must never allocate, lock, log or
 * make a system call.
 */
#include "fabric/nic/emu/emu.h"

#include <string.h>

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

/* Bytes of a READ that came back in a packet fail back; true: the copier takes them there. */
static bool take_home(struct epf_emu *e, uint32_t lane, uint32_t idx, struct epf_emu_slot *lead)
{
	struct epf_emu_slot *s = &e->slots[idx];
	const struct epf_emu_region *r = epf_emu_covers(e, s->lkey, s->laddr, s->len, 0);

	if (!r) {
		if (s->len)
			lead->status = EPF_S_LOCAL;
		return false;
	}
	if (s->len && (r->mem || s->form == EPF_EMU_BY_REF)) {
		epf_emu_copy_home(e, lane, idx);
		return true;
	}
	memcpy((void *)(uintptr_t)s->laddr, epf_emu_payload(epf_emu_pkt(e->seg, idx)), s->len);
	return false;
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

/* A packet is back: bytes of a READ fail back, the last one of a message settles it. */
static void take_return(struct epf_emu *e, uint32_t lane, uint32_t idx, uint8_t status)
{
	struct epf_emu_slot *s = &e->slots[idx];
	struct epf_emu_slot *lead = &e->slots[s->lead];

	s->flags &= (uint8_t)~EPF_EMU_FLIES;
	if (status == EPF_S_REMOTE_ACCESS && s->form == EPF_EMU_REFS && idx == s->lead) {
		uint32_t good =
			epf_emu_pkt(e->seg, idx)
				->offset; /* as the target says: believed as far as it can be */

		s->good = good < s->wrs ? (uint16_t)good : 0;
	}
	if ((s->flags & EPF_EMU_READ) && (lead->flags & EPF_EMU_OUT) && status == EPF_S_OK &&
	    lead->status == EPF_S_OK && take_home(e, lane, idx, lead))
		return;
	epf_emu_returned(e, lane, idx, status);
}

void epf_emu_take_returns(struct epf_emu *e, uint32_t lane)
{
	struct epf_emu_lane_words *w = &e->seg->lanes[lane];
	uint32_t at, next;

	if (__atomic_load_n(&w->returns, __ATOMIC_RELAXED) == 0)
		return;
	at = (uint32_t)__atomic_exchange_n(&w->returns, 0, __ATOMIC_ACQ_REL); /* M3 */
	while (at) {
		struct epf_emu_packet *p;
		uint8_t status;

		/* Another process wrote the links: believe only what fits the slots. */
		if (at > e->seg->npackets || !(e->slots[at - 1].flags & EPF_EMU_FLIES) ||
		    e->slots[at - 1].lane != lane) {
			e->counters.errors++;
			return;
		}
		p = epf_emu_pkt(e->seg, at - 1);
		status = p->status <= EPF_S_ABORTED ? p->status : EPF_S_REMOTE_ACCESS;
		/* Read the link first: the packet may go back into the pool. */
		next = p->next;
		epf_emu_count(e, EPF_EMU_BACK, 1);
		take_return(e, lane, at - 1, status);
		at = next;
	}
}

/* Hands out the next completion of a message: of writes that share a packet, those before the one that failed, it, and each behind it. True: the last. */
static bool emit_one(struct epf_emu_slot *s, struct epf_wc *wc)
{
	wc->msg = NULL;
	wc->id = s->id;
	wc->imm = 0;
	wc->len = 0;
	wc->lane = s->lane;
	wc->op = EPF_WC_SENT;
	wc->status = s->status;
	if (s->status == EPF_S_OK)
		return true;
	if (s->good) {
		wc->status = EPF_S_OK;
		s->wrs = (uint16_t)(s->wrs - s->good);
		wc->id = s->id - s->wrs;
		s->good = 0;
		return false;
	}
	wc->id = s->id - --s->wrs;
	s->status = EPF_S_FLUSHED;
	return s->wrs == 0;
}

void epf_emu_emit(struct epf_emu *e, struct epf_emu_out *out, unsigned max)
{
	while (e->done_head && out->n < max) {
		uint32_t idx = e->done_head - 1;
		struct epf_emu_slot *s = &e->slots[idx];
		struct epf_emu_lane *l = &e->lanes[s->lane];

		if (!(s->flags & EPF_EMU_MUTE)) {
			if (!emit_one(s, &out->wc[out->n++]))
				continue;
			l->done_count--;
			if (l->merge == idx + 1)
				l->merge = 0;
		}
		e->done_head = s->link;
		if (e->done_head == 0)
			e->done_tail = 0;
		s->flags &= (uint8_t)~EPF_EMU_DONE;
		epf_emu_free_packet(e, idx);
	}
}

void epf_emu_scan_timeouts(struct epf_emu *e)
{
	uint16_t lane = e->busy_head;

	e->next_scan_ns = UINT64_MAX;
	while (lane != EPF_EMU_NO_LANE) {
		struct epf_emu_lane *l = &e->lanes[lane];
		uint16_t next = l->busy_next;
		uint32_t idx = l->out_head - 1;
		uint64_t since = e->slots[idx].posted_ns, due;

		/* On an ordered lane every completion is an answer to the rest. */
		if (e->opts.ordered && since < l->progress_ns)
			since = l->progress_ns;
		due = since + e->opts.retry_timeout_ns;
		if (epf_emu_is_cut(e, lane)) {
			uint64_t cut_ns = e->link_cut_ns[lane % e->opts.links];

			due = (since > cut_ns ? since : cut_ns) + e->opts.link_timeout_ns;
		}
		if (due <= e->now_ns)
			epf_emu_settle(e, lane, idx, EPF_S_RETRY_EXCEEDED);
		else if (due < e->next_scan_ns)
			e->next_scan_ns = due;
		lane = next;
	}
}
