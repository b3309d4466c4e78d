/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's sending side: post fills packets and pushes them, returned packets become
 * completions, completions are handed out. Called by the core's step through epf_nic_ops and by
 * emu_rx_hot.c and emu_lane.c. It must never allocate, lock, log or make a system call.
 */
#include "fabric/emu.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

static uint32_t take_packet(struct epf_emu *e, uint16_t lane)
{
	uint32_t idx = e->free_head - 1;
	struct epf_emu_slot *s = &e->slots[idx];

	e->free_head = s->link;
	e->free_count--;
	s->link = 0;
	s->lane = lane;
	s->epoch = epf_emu_token_epoch(e->lanes[lane].token);
	s->flags = 0;
	s->status = EPF_S_OK;
	s->left = 0;
	return idx;
}

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

/* The lane's list of outstanding messages, oldest first. */
static void out_append(struct epf_emu *e, uint16_t lane, uint32_t idx)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_slot *s = &e->slots[idx];

	s->out_next = 0;
	s->out_prev = l->out_tail;
	if (l->out_tail)
		e->slots[l->out_tail - 1].out_next = idx + 1;
	else
		l->out_head = idx + 1;
	l->out_tail = idx + 1;
	s->flags |= EPF_EMU_OUT;
	if (l->out_count++)
		return;
	l->progress_ns = s->posted_ns;
	l->busy_prev = EPF_EMU_NO_LANE;
	l->busy_next = e->busy_head;
	if (e->busy_head != EPF_EMU_NO_LANE)
		e->lanes[e->busy_head].busy_prev = lane;
	e->busy_head = lane;
	if (e->next_scan_ns == UINT64_MAX)
		e->next_scan_ns = s->posted_ns + e->opts.retry_timeout_ns;
	if (e->links_down && e->next_scan_ns > s->posted_ns + e->opts.link_timeout_ns)
		e->next_scan_ns = s->posted_ns + e->opts.link_timeout_ns;
}

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
	if (--l->out_count)
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

/* The outcome of a message is known: complete it, on an ordered NIC when all before it are. */
static void settle(struct epf_emu *e, uint16_t lane, uint32_t idx, uint8_t status)
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
		settle(e, lane, l->out_head - 1, EPF_S_RETRY_EXCEEDED);
	epf_emu_fail_lane(e, lane);
}

/* What is wrong with a work request on this side: EPF_S_OK or EPF_S_LOCAL. */
static uint8_t check_local(const struct epf_emu *e, const struct epf_wr *wr)
{
	if (wr->op < EPF_WR_WRITE || wr->op > EPF_WR_READ || wr->len > e->max_msg_bytes)
		return EPF_S_LOCAL;
	if (wr->op == EPF_WR_SEND && wr->len > EPF_NIC_MSG_BYTES)
		return EPF_S_LOCAL;
	if (wr->flags & EPF_WR_INLINE)
		return wr->op == EPF_WR_READ ? EPF_S_LOCAL : EPF_S_OK;
	if (wr->len && !epf_emu_covers(e, wr->lkey, wr->laddr, wr->len, 0))
		return EPF_S_LOCAL;
	/* A message's bytes travel with it. */
	if (wr->op == EPF_WR_SEND && wr->len && e->regions[wr->lkey & 0xffff].mem)
		return EPF_S_LOCAL;
	return EPF_S_OK;
}

/* True when the bytes of a request (checked) are in GPU memory at the end that has them: they do not travel in packets. */
static bool goes_by_ref(const struct epf_emu *e, const struct epf_emu_lane *l,
			const struct epf_wr *wr)
{
	if (wr->len == 0 || (wr->flags & EPF_WR_INLINE))
		return false;
	if (wr->op == EPF_WR_READ)
		return epf_emu_is_gpu_key(l->peer, wr->rkey);
	return e->regions[wr->lkey & 0xffff].mem != NULL;
}

/* Fills packet idx of a message with the bytes at offset (by_ref: with the name of all) and puts it on the lane's tx list. */
static void fill(struct epf_emu *e, struct epf_emu_lane *l, const struct epf_wr *wr, uint32_t idx,
		 uint32_t lead, uint32_t offset, bool by_ref)
{
	struct epf_emu_packet *p = epf_emu_pkt(e->seg, idx);
	struct epf_emu_slot *s = &e->slots[idx];
	uint32_t len = wr->len - offset;

	if (len > e->opts.mtu && !by_ref)
		len = e->opts.mtu;
	p->lead = lead;
	p->token = l->peer_token;
	p->raddr = wr->raddr;
	p->rkey = wr->rkey;
	p->offset = offset;
	p->len = len;
	p->msg_len = wr->len;
	p->imm = wr->imm;
	p->seq = l->seq;
	p->op = wr->op;
	p->status = EPF_S_OK;
	p->holds = 1;
	p->landed = 0;
	p->fate = 0;
	p->form = by_ref ? EPF_EMU_BY_REF : EPF_EMU_IN_PACKET;
	s->form = p->form;
	s->lead = lead;
	s->flags |= EPF_EMU_WAITS;
	if (wr->op == EPF_WR_READ) {
		s->flags |= EPF_EMU_READ;
		s->laddr = wr->laddr + offset;
		s->lkey = wr->lkey;
		s->len = len;
	} else if (by_ref) {
		struct epf_emu_ref ref = { .addr = wr->laddr, .key = wr->lkey };

		memcpy(epf_emu_payload(p), &ref, sizeof(ref));
	} else {
		memcpy(epf_emu_payload(p), (const unsigned char *)(uintptr_t)wr->laddr + offset,
		       len);
	}
	s->link = 0;
	if (l->tx_tail)
		e->slots[l->tx_tail - 1].link = idx + 1;
	else
		l->tx_head = idx + 1;
	l->tx_tail = idx + 1;
}

/* Takes one work request; returns its number of packets, 0 when the pool has too few. */
static unsigned stage(struct epf_emu *e, uint16_t lane, const struct epf_wr *wr, uint64_t now_ns)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	uint8_t status = l->flags & EPF_EMU_TX_STOP ? EPF_S_FLUSHED : check_local(e, wr);
	uint32_t packets = 1, lead, offset, idx;
	bool by_ref = status == EPF_S_OK && goes_by_ref(e, l, wr);

	if (status == EPF_S_OK && wr->len > e->opts.mtu && !by_ref)
		packets = (wr->len + e->opts.mtu - 1) / e->opts.mtu;
	if (packets > e->free_count)
		return 0;
	lead = idx = take_packet(e, lane);
	e->slots[lead].id = wr->id;
	e->slots[lead].posted_ns = now_ns;
	e->slots[lead].lead = lead;
	out_append(e, lane, lead);
	e->counters.messages_tx++;
	if (status != EPF_S_OK) {
		l->flags |= EPF_EMU_TX_STOP;
		settle(e, lane, lead, status);
		return packets;
	}
	e->slots[lead].left = (uint16_t)packets;
	epf_emu_pkt(e->seg, lead)->remaining = (uint16_t)packets;
	for (offset = 0;;) {
		fill(e, l, wr, idx, lead, offset, by_ref);
		offset += e->opts.mtu;
		if (offset >= wr->len || by_ref)
			break;
		idx = take_packet(e, lane);
	}
	l->seq++;
	if (wr->op != EPF_WR_READ)
		e->counters.bytes_tx += wr->len;
	return packets;
}

void epf_emu_push(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	uint32_t epoch = epf_emu_token_epoch(l->peer_token), top = 0, at;
	uint64_t want = (uint64_t)epoch << 32 | EPF_EMU_LANE_OPEN | EPF_EMU_LANE_CONNECTED;
	struct epf_emu_lane_words *w;
	struct epf_emu_packet *bottom;
	uint64_t old;

	if (l->tx_head == 0 || epf_emu_is_cut(e, lane))
		return;
	w = &l->peer->lanes[epf_emu_token_lane(l->peer_token)];
	if (__atomic_load_n(&w->state, __ATOMIC_ACQUIRE) != want) /* M5 */
		return;
	bottom = epf_emu_pkt(e->seg, l->tx_head - 1);
	for (at = l->tx_head; at; at = e->slots[at - 1].link) {
		struct epf_emu_slot *s = &e->slots[at - 1];

		epf_emu_pkt(e->seg, at - 1)->next = top;
		s->flags = (uint8_t)((s->flags & ~EPF_EMU_WAITS) | EPF_EMU_FLIES);
		top = at;
	}
	l->tx_head = l->tx_tail = 0;
	old = __atomic_load_n(&w->inbox, __ATOMIC_RELAXED);
	do {
		bottom->next = old >> 32 == epoch ? (uint32_t)old : 0;
	} while (!__atomic_compare_exchange_n(&w->inbox, &old, (uint64_t)epoch << 32 | top, 0,
					      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)); /* M1 */
	if (old == 0 || old >> 32 != epoch)
		epf_emu_mark(l->peer->hdr, epf_emu_token_lane(l->peer_token)); /* M2 */
}

int epf_emu_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_lane *l = &e->lanes[lane];
	unsigned i, packets, staged = 0, filled = 0;
	unsigned most = nic->pace ? (unsigned)EPF_EMU_PACED >> nic->pace : UINT_MAX;
	uint64_t now_ns;

	if (lane >= e->opts.lanes || l->link != EPF_LANE_READY)
		return -ENOTCONN;
	now_ns = e->now(e->now_arg);
	for (i = 0; i < n && l->link == EPF_LANE_READY && l->out_count < l->depth && filled < most;
	     i++) {
		packets = stage(e, lane, &wr[i], now_ns);
		if (packets == 0)
			break;
		staged += packets;
		filled += packets;
		if (staged >= EPF_EMU_CHUNK) {
			epf_emu_push(e, lane);
			staged = 0;
		}
	}
	if (i) {
		epf_emu_push(e, lane);
		epf_emu_note_wake(e, lane);
		e->counters.doorbells++;
	}
	return (int)i;
}

/* Bytes of a READ that came back in a packet go home; true: the copier takes them there. */
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
		settle(e, (uint16_t)lane, lead_idx, lead->status);
	else
		epf_emu_free_packet(e, lead_idx);
}

/* A packet is back: bytes of a READ go home, the last one of a message settles it. */
static void take_return(struct epf_emu *e, uint32_t lane, uint32_t idx, uint8_t status)
{
	struct epf_emu_slot *s = &e->slots[idx];
	struct epf_emu_slot *lead = &e->slots[s->lead];

	s->flags &= (uint8_t)~EPF_EMU_FLIES;
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
		take_return(e, lane, at - 1, status);
		at = next;
	}
}

void epf_emu_emit(struct epf_emu *e, struct epf_emu_out *out, unsigned max)
{
	while (e->done_head && out->n < max) {
		uint32_t idx = e->done_head - 1;
		struct epf_emu_slot *s = &e->slots[idx];
		struct epf_emu_lane *l = &e->lanes[s->lane];

		e->done_head = s->link;
		if (e->done_head == 0)
			e->done_tail = 0;
		if (!(s->flags & EPF_EMU_MUTE)) {
			struct epf_wc *wc = &out->wc[out->n++];

			wc->msg = NULL;
			wc->id = s->id;
			wc->imm = 0;
			wc->len = 0;
			wc->lane = s->lane;
			wc->op = EPF_WC_SENT;
			wc->status = s->status;
			l->done_count--;
			if (l->merge == idx + 1)
				l->merge = 0;
		}
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
			settle(e, lane, idx, EPF_S_RETRY_EXCEEDED);
		else if (due < e->next_scan_ns)
			e->next_scan_ns = due;
		lane = next;
	}
}
