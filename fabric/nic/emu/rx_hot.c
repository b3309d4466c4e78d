/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's target side: takes inboxes, lands packets in registered memory, consumes receives,
 * raises arrival events and gives packets back. Called by reap_hot.c and lane.c. It must never
 * allocate, lock, log or make a system call, and never believe a field of a packet that it has not
 * checked: another process wrote it.
 */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/fault.h"

#include <string.h>

enum landing { LANDED, NO_RECEIVE, NO_MESSAGE_ROOM, NONSENSE, COPYING, NO_COPY_ROOM };

/* epf_emu_packet.landed */
enum { IS_COMPLETE = 1, WAITS_FOR_RECEIVE = 2 };

/* The peer's packets make no sense: nothing of this lane is looked at until it is created again. */
static void give_up(struct epf_emu *e, struct epf_emu_lane *l)
{
	e->counters.errors++;
	l->flags |= EPF_EMU_BROKEN | EPF_EMU_RX_DEAD;
	l->rx_head = l->rx_tail = l->ahead = 0;
}

static void give_back(struct epf_emu *e, uint16_t lane, uint32_t idx, struct epf_emu_packet *p)
{
	struct epf_emu_lane *l = &e->lanes[lane];

	p->next = l->ret_top;
	l->ret_top = idx + 1;
	if (l->ret_bottom == 0)
		l->ret_bottom = idx + 1;
	if (l->flags & EPF_EMU_IN_RET)
		return;
	l->flags |= EPF_EMU_IN_RET;
	l->ret_next = e->ret_head;
	e->ret_head = lane;
}

void epf_emu_flush_returns(struct epf_emu *e)
{
	while (e->ret_head != EPF_EMU_NO_LANE) {
		uint16_t lane = e->ret_head;
		struct epf_emu_lane *l = &e->lanes[lane];
		uint32_t peer_lane = epf_emu_token_lane(l->peer_token);
		struct epf_emu_lane_words *w = &l->peer->lanes[peer_lane];
		struct epf_emu_packet *bottom = epf_emu_pkt(l->peer, l->ret_bottom - 1);
		uint64_t old = __atomic_load_n(&w->returns, __ATOMIC_RELAXED);

		e->ret_head = l->ret_next;
		l->flags &= (uint8_t)~EPF_EMU_IN_RET;
		do {
			bottom->next = (uint32_t)old;
		} while (!__atomic_compare_exchange_n(&w->returns, &old, l->ret_top, 0,
						      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)); /* M3 */
		if (old == 0)
			epf_emu_mark(l->peer->hdr, peer_lane); /* M4 */
		l->ret_top = l->ret_bottom = 0;
		epf_emu_note_wake(e, lane);
	}
}

/* Puts the bytes of a packet where they belong, or fills it with those a READ asked for; or begins the copy that will. */
static uint8_t move_bytes(struct epf_emu *e, uint16_t lane, uint32_t idx,
			  const struct epf_emu_packet *h, struct epf_emu_packet *p)
{
	const struct epf_emu_region *region;
	uint8_t status = epf_emu_check_packet(e, &e->lanes[lane], h, &region);
	unsigned char *at = (unsigned char *)(uintptr_t)h->raddr + h->offset;

	if (status != EPF_S_OK)
		return status;
	if (EPF_UNLIKELY(epf_emu_needs_copier(h, region)))
		return epf_emu_copy_land(e, lane, idx, h, p, region);
	if (!region)
		return EPF_S_OK;
	if (h->op != EPF_WR_READ)
		memcpy(at, epf_emu_payload(p), h->len);
	else if (!region->mem)
		memcpy(epf_emu_payload(p), at, h->len);
	return EPF_S_OK;
}

/* Raises the arrival event of a complete message. The caller has made sure of room and a receive. */
static void raise_event(struct epf_emu *e, uint16_t lane, struct epf_emu_packet *p, uint8_t op,
			struct epf_emu_out *out)
{
	struct epf_wc *wc = &out->wc[out->n++];

	e->receives--;
	wc->id = 0;
	wc->lane = lane;
	wc->status = EPF_S_OK;
	wc->len = p->msg_len;
	if (op == EPF_WR_SEND) {
		unsigned char *msg = e->messages[e->messages_used++];

		if (wc->len > EPF_NIC_MSG_BYTES)
			wc->len = EPF_NIC_MSG_BYTES;
		memcpy(msg, epf_emu_payload(p), wc->len);
		wc->msg = msg;
		wc->imm = 0;
		wc->op = EPF_WC_RECV;
	} else {
		wc->msg = NULL;
		wc->imm = p->imm;
		wc->op = EPF_WC_RECV_IMM;
	}
	if (e->faulty && (p->fate & EPF_EMU_FATE_TWICE))
		epf_emu_fault_second_event(e, lane, p, wc);
}

/*
 * Raises the events of the writes of a packet, in order; what is left of them stays noted in the packet. LANDED when there is none. The
 * packet may be changed by its sender at any time: then its own events make no sense.
 */
static enum landing raise_refs(struct epf_emu *e, uint16_t lane, struct epf_emu_packet *p,
			       struct epf_emu_out *out)
{
	const struct epf_emu_seg *peer = e->lanes[lane].peer;
	enum landing how = LANDED;
	uint64_t left = p->raddr;
	unsigned raised = 0;

	for (; left; left &= left - 1, raised++) {
		unsigned k = (unsigned)__builtin_ctzll(left);
		struct epf_wc *wc = &out->wc[out->n];
		struct epf_emu_ref ref;

		if ((k + 1) * sizeof(ref) > peer->mtu)
			break;
		if (e->receives == 0 || out->n >= out->max) {
			how = e->receives ? NO_MESSAGE_ROOM : NO_RECEIVE;
			break;
		}
		memcpy(&ref, epf_emu_payload(p) + k * sizeof(ref), sizeof(ref));
		out->n++;
		e->receives--;
		*wc = (struct epf_wc){ .imm = ref.imm,
				       .len = ref.bytes,
				       .lane = lane,
				       .op = EPF_WC_RECV_IMM,
				       .status = EPF_S_OK };
		if (e->faulty && (p->fate & EPF_EMU_FATE_TWICE))
			epf_emu_fault_second_event(e, lane, p, wc);
	}
	p->raddr = how == LANDED ? 0 : left;
	if (raised) /* what it waits for now, it waits for since now */
		p->landed = IS_COMPLETE;
	return how;
}

/* All packets of a message have landed: event, outcome, and the lead packet goes back. */
static enum landing complete(struct epf_emu *e, uint16_t lane, uint32_t lead,
			     struct epf_emu_packet *p, struct epf_emu_out *out)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	uint8_t op = p->op, fate = e->faulty ? p->fate : 0, status = p->status;

	if (status == EPF_S_OK && epf_emu_is_stopped(l))
		status = EPF_S_FLUSHED;
	if (status == EPF_S_OK && (op == EPF_WR_WRITE_IMM || op == EPF_WR_SEND)) {
		if (e->receives == 0)
			return NO_RECEIVE;
		if (op == EPF_WR_SEND && e->messages_used == EPF_EMU_MESSAGES)
			return NO_MESSAGE_ROOM;
		raise_event(e, lane, p, op, out);
	} else if (status == EPF_S_OK && p->form == EPF_EMU_REFS) {
		enum landing how = raise_refs(e, lane, p, out);

		if (how != LANDED)
			return how;
	}
	if (status == EPF_S_OK) {
		e->counters.messages_rx += p->form == EPF_EMU_REFS ? p->offset : 1;
		if (op != EPF_WR_READ)
			e->counters.bytes_rx += p->form == EPF_EMU_REFS ? p->len : p->msg_len;
		if (fate & EPF_EMU_FATE_UNKNOWN) {
			status = EPF_S_RETRY_EXCEEDED;
			if (e->opts.ordered && (fate & EPF_EMU_FATE_LAST))
				l->flags |= EPF_EMU_RX_DEAD;
		}
	} else if (e->opts.ordered) {
		l->flags |= EPF_EMU_RX_DEAD;
	}
	p->status = status;
	give_back(e, lane, lead, p);
	return LANDED;
}

/* Lands one packet. On NO_* *wait is the packet that must be tried again. */
static enum landing land(struct epf_emu *e, uint16_t lane, uint32_t idx, struct epf_emu_out *out,
			 uint32_t *wait)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_packet *p = epf_emu_pkt(l->peer, idx), *lp;
	const struct epf_emu_copy *c = l->copy_head ? epf_emu_copy_of(e, l, idx) : NULL;
	struct epf_emu_packet h = c ? c->h : *p; /* checked and used from this copy only */
	uint8_t status = EPF_S_FLUSHED;

	if (h.lead >= l->peer->npackets)
		return NONSENSE;
	*wait = idx;
	if (c && !c->done)
		return COPYING;
	lp = epf_emu_pkt(l->peer, h.lead);
	if (!c && h.landed && h.lead == idx)
		return complete(e, lane, idx, lp, out);
	if (e->faulty && (lp->fate & EPF_EMU_FATE_LOST))
		status = EPF_S_RETRY_EXCEEDED;
	else if (!epf_emu_is_stopped(l) && h.token == l->token)
		status = lp->status ? lp->status : c ? c->status : move_bytes(e, lane, idx, &h, p);
	if (EPF_UNLIKELY(status >= EPF_EMU_MOVE_LATER))
		return status == EPF_EMU_MOVE_LATER ? COPYING : NO_COPY_ROOM;
	if (status != EPF_S_OK &&
	    h.form == EPF_EMU_REFS) /* reports to the sender which of them failed */
		p->offset = c && !epf_emu_is_stopped(l) ? c->good : 0;
	if (c)
		epf_emu_copy_landed(e, l);
	*wait = h.lead;
	if (status != EPF_S_OK && lp->status == EPF_S_OK)
		lp->status = status;
	if (e->faulty && h.holds > 1) {
		p->holds = 1;
		if (!epf_emu_is_stopped(l) && epf_emu_fault_again(e, lane, idx, p))
			return LANDED;
	}
	if (lp->remaining == 0)
		return NONSENSE;
	if (idx != h.lead)
		give_back(e, lane, idx, p);
	if (--lp->remaining)
		return LANDED;
	lp->landed = IS_COMPLETE;
	return complete(e, lane, h.lead, lp, out);
}

/* Turns a chain round in place: oldest first. Returns the oldest, 0 for a chain that leads nowhere. */
static uint32_t turn_round(const struct epf_emu_seg *peer, uint32_t top, uint32_t *count)
{
	uint32_t prev = 0;

	*count = 0;
	while (top) {
		struct epf_emu_packet *p;
		uint32_t next;

		if (top > peer->npackets || (*count)++ == peer->npackets)
			return 0;
		p = epf_emu_pkt(peer, top - 1);
		next = p->next;
		p->next = prev;
		prev = top;
		top = next;
	}
	return prev;
}

/* The lane waits for a copy; it gets its turns meanwhile while there are copies to begin. Returns what that counts of a turn. */
static unsigned await_copy(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];

	l->rx_state = EPF_EMU_RX_COPY;
	if (!epf_emu_look_ahead(e, lane))
		return 1;
	l->rx_state = EPF_EMU_RX_IDLE;
	epf_emu_make_ready(e, lane);
	return EPF_EMU_QUOTA;
}

void epf_emu_take_inbox(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane_words *w = &e->seg->lanes[lane];
	struct epf_emu_lane *l = &e->lanes[lane];
	uint32_t at, next, count;
	uint64_t word;

	if (__atomic_load_n(&w->inbox, __ATOMIC_RELAXED) == 0)
		return;
	word = __atomic_exchange_n(&w->inbox, 0, __ATOMIC_ACQ_REL); /* M1 */
	epf_emu_count(e, EPF_EMU_INBOXES, 1);
	if (!l->peer || word >> 32 != epf_emu_token_epoch(l->token) || (l->flags & EPF_EMU_BROKEN))
		return;
	at = turn_round(l->peer, (uint32_t)word, &count);
	if (at == 0) {
		give_up(e, l);
		return;
	}
	if (!e->faulty) {
		if (l->rx_tail)
			epf_emu_pkt(l->peer, l->rx_tail - 1)->next = at;
		else
			l->rx_head = at;
		l->rx_tail = (uint32_t)word;
		at = 0;
	}
	for (; at && at <= l->peer->npackets && count; at = next, count--) {
		struct epf_emu_packet *p = epf_emu_pkt(l->peer, at - 1);

		next = p->next;
		if (epf_emu_is_stopped(l) || !epf_emu_fault_arrive(e, lane, at - 1, p))
			epf_emu_rx_append(l, at - 1);
	}
	epf_emu_make_ready(e, lane);
	if (l->rx_state == EPF_EMU_RX_COPY)
		await_copy(e, lane);
}

/* Puts the packet that must wait at the head, in place of the one that completed its message. */
static void put_first(struct epf_emu_lane *l, uint32_t idx, uint32_t next)
{
	epf_emu_pkt(l->peer, idx)->next = next;
	l->rx_head = idx + 1;
	if (next == 0)
		l->rx_tail = idx + 1;
}

void epf_emu_wait_receive(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_packet *p = epf_emu_pkt(l->peer, l->rx_head - 1);

	if (p->landed != WAITS_FOR_RECEIVE) {
		p->landed = WAITS_FOR_RECEIVE;
		e->counters.rnr_events++;
		l->rnr_since_ns = e->now_ns;
	}
	l->rx_state = EPF_EMU_RX_RNR;
	epf_emu_list_add(e, &e->rnr, lane);
	if (l->rnr_since_ns + e->opts.rnr_timeout_ns < e->next_rnr_ns)
		e->next_rnr_ns = l->rnr_since_ns + e->opts.rnr_timeout_ns;
}

unsigned epf_emu_serve_lane(struct epf_emu *e, uint16_t lane, struct epf_emu_out *out)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	unsigned done = 0;

	if (epf_emu_is_cut(e, lane)) {
		l->rx_state = EPF_EMU_RX_CUT;
		return 0;
	}
	l->rx_state = EPF_EMU_RX_IDLE;
	while (l->rx_head && done < EPF_EMU_QUOTA && out->n < out->max) {
		uint32_t idx = l->rx_head - 1, next, wait = 0;
		struct epf_emu_packet *p;
		enum landing how;

		if (idx >= l->peer->npackets) {
			give_up(e, l);
			break;
		}
		p = epf_emu_pkt(l->peer, idx);
		if (e->faulty && e->opts.ordered && p->due_ns > e->now_ns &&
		    !epf_emu_is_stopped(l) && epf_emu_fault_hold_lane(e, lane, p->due_ns)) {
			l->rx_state = EPF_EMU_RX_DUE;
			return done;
		}
		next = p->next;
		how = land(e, lane, idx, out, &wait);
		done++;
		if (EPF_UNLIKELY(how == COPYING)) {
			return done + await_copy(e, lane);
		}
		if (l->ahead == idx + 1 && how != NO_COPY_ROOM)
			l->ahead = 0;
		if (how == LANDED) {
			l->rx_head = next;
			if (next == 0)
				l->rx_tail = 0;
			continue;
		}
		if (how == NO_COPY_ROOM)
			break;
		if (how == NONSENSE) {
			give_up(e, l);
			break;
		}
		put_first(l, wait, next);
		if (how == NO_RECEIVE)
			epf_emu_wait_receive(e, lane);
		else
			out->max = out->n;
		break;
	}
	epf_emu_make_ready(e, lane);
	return done;
}

void epf_emu_rx_flush(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_out out = { 0 };
	uint32_t idx, next, wait, count = 0;

	while (l->rx_head && l->rx_head <= l->peer->npackets && count++ < l->peer->npackets) {
		idx = l->rx_head - 1;
		next = epf_emu_pkt(l->peer, idx)->next;
		if (land(e, lane, idx, &out, &wait) == NONSENSE)
			give_up(e, l);
		else
			l->rx_head = next;
	}
	l->rx_head = l->rx_tail = l->ahead = 0;
}
