/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's completions: takes returned packets, hands out completions, fails late requests. Messages begin in tx_hot.c and are settled
 * in settle_hot.c. Hot path: never allocates, locks, logs or makes a system call.
 */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/emu.h"

#include <string.h>

/* Copies out the bytes of a READ that arrived in a packet; true: the copier does it. */
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
