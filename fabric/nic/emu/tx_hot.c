/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's sending side: post fills packets and pushes them. Bytes of host memory travel in packets; of writes out of GPU memory
 * one packet names as many as it holds. Called by the core's step through epf_nic_ops, and by lane.c and reap_hot.c for what
 * had to wait. It must never allocate, lock, log or make a system call.
 */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/emu.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

enum { REFS_A_LINE = 64 / sizeof(struct epf_emu_ref) };

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
	s->good = 0;
	s->left = 0;
	return idx;
}

/* The lane's list of outstanding messages, oldest first; wrs: work requests that this one stands for. */
static void out_append(struct epf_emu *e, uint16_t lane, uint32_t idx, uint16_t wrs)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_slot *s = &e->slots[idx];

	s->wrs = wrs;
	s->out_next = 0;
	s->out_prev = l->out_tail;
	if (l->out_tail)
		e->slots[l->out_tail - 1].out_next = idx + 1;
	else
		l->out_head = idx + 1;
	l->out_tail = idx + 1;
	s->flags |= EPF_EMU_OUT;
	l->out_count += wrs;
	if (l->out_count != wrs)
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

/* Puts a filled packet on the lane's tx list. */
static void tx_append(struct epf_emu *e, struct epf_emu_lane *l, uint32_t idx)
{
	struct epf_emu_slot *s = &e->slots[idx];

	s->flags |= EPF_EMU_WAITS;
	s->link = 0;
	if (l->tx_tail)
		e->slots[l->tx_tail - 1].link = idx + 1;
	else
		l->tx_head = idx + 1;
	l->tx_tail = idx + 1;
}

/* The header of packet idx of a message: all but offset, len, msg_len, raddr, rkey, imm and form. */
static struct epf_emu_packet *begin_packet(struct epf_emu *e, const struct epf_emu_lane *l,
					   uint32_t idx, uint32_t lead, uint8_t op)
{
	struct epf_emu_packet *p = epf_emu_pkt(e->seg, idx);

	p->lead = lead;
	p->token = l->peer_token;
	p->seq = l->seq;
	p->op = op;
	p->status = EPF_S_OK;
	p->holds = 1;
	p->landed = 0;
	p->fate = 0;
	e->slots[idx].lead = lead;
	return p;
}

/* Fills packet idx of a message with the bytes at offset (READ by reference: with the name of all) and puts it on the lane's tx list. */
static void fill(struct epf_emu *e, struct epf_emu_lane *l, const struct epf_wr *wr, uint32_t idx,
		 uint32_t lead, uint32_t offset, bool by_ref)
{
	struct epf_emu_packet *p = begin_packet(e, l, idx, lead, wr->op);
	struct epf_emu_slot *s = &e->slots[idx];
	uint32_t len = wr->len - offset;

	if (len > e->opts.mtu && !by_ref)
		len = e->opts.mtu;
	p->raddr = wr->raddr;
	p->rkey = wr->rkey;
	p->offset = offset;
	p->len = len;
	p->msg_len = wr->len;
	p->imm = wr->imm;
	p->form = by_ref ? EPF_EMU_BY_REF : EPF_EMU_IN_PACKET;
	s->form = p->form;
	if (wr->op == EPF_WR_READ) {
		s->flags |= EPF_EMU_READ;
		s->laddr = wr->laddr + offset;
		s->lkey = wr->lkey;
		s->len = len;
	} else {
		memcpy(epf_emu_payload(p), (const unsigned char *)(uintptr_t)wr->laddr + offset,
		       len);
	}
	tx_append(e, l, idx);
}

/* The record of a message whose first packet this is. */
static void begin_message(struct epf_emu *e, uint16_t lane, uint32_t lead, uint32_t id,
			  uint16_t wrs, uint64_t now_ns)
{
	e->slots[lead].id = id;
	e->slots[lead].posted_ns = now_ns;
	e->slots[lead].lead = lead;
	out_append(e, lane, lead, wrs);
	e->counters.messages_tx += wrs;
}

/* Takes one work request; returns its number of packets, 0 when the pool has too few. */
static unsigned stage(struct epf_emu *e, uint16_t lane, const struct epf_wr *wr, uint64_t now_ns)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	uint8_t status = l->flags & EPF_EMU_TX_STOP ? EPF_S_FLUSHED : check_local(e, wr);
	uint32_t packets = 1, lead, offset, idx;
	bool by_ref = status == EPF_S_OK && wr->op == EPF_WR_READ && wr->len &&
		      epf_emu_is_gpu_key(l->peer, wr->rkey);

	if (status == EPF_S_OK && wr->len > e->opts.mtu && !by_ref)
		packets = (wr->len + e->opts.mtu - 1) / e->opts.mtu;
	if (packets > e->free_count)
		return 0;
	lead = idx = take_packet(e, lane);
	begin_message(e, lane, lead, wr->id, 1, now_ns);
	if (status != EPF_S_OK) {
		l->flags |= EPF_EMU_TX_STOP;
		epf_emu_settle(e, lane, lead, status);
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

/*
 * True for a write whose bytes are in GPU memory here, and rightly so: they do not travel. *last: the region found last, NULL at first;
 * writes behind each other mostly lie in one.
 */
static inline bool is_gpu_write(const struct epf_emu *e, const struct epf_wr *wr,
				const struct epf_emu_region **last)
{
	const struct epf_emu_region *r = *last;

	if (EPF_UNLIKELY(!r || r->key != wr->lkey)) {
		if (wr->op == EPF_WR_SEND || (wr->flags & EPF_WR_INLINE) ||
		    (wr->lkey & 0xffff) >= e->nregions)
			return false;
		r = &e->regions[wr->lkey & 0xffff];
		if (!r->mem || r->key != wr->lkey || !wr->lkey)
			return false;
		*last = r;
	}
	return (wr->op == EPF_WR_WRITE || wr->op == EPF_WR_WRITE_IMM) &&
	       !(wr->flags & EPF_WR_INLINE) && wr->len && wr->len <= e->max_msg_bytes &&
	       wr->laddr >= r->base && wr->len <= r->len && wr->laddr - r->base <= r->len - wr->len;
}

/* How many writes may share a packet and its outcome. Where outcomes are single ones, or made by faults: one. */
static unsigned most_refs(const struct epf_emu *e, const struct epf_emu_lane *l)
{
	unsigned most = e->opts.mtu / (unsigned)sizeof(struct epf_emu_ref);

	if (!e->opts.ordered || e->faulty)
		return 1;
	if (most > EPF_EMU_REFS_MOST)
		most = EPF_EMU_REFS_MOST;
	return most < l->depth - l->out_count ? most : l->depth - l->out_count;
}

/* Takes the writes out of GPU memory at the head of wr[0..n), one packet for all; returns how many, 0 when there is no packet. */
static unsigned stage_refs(struct epf_emu *e, uint16_t lane, const struct epf_wr *wr, unsigned n,
			   const struct epf_emu_region **last, uint64_t now_ns)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	unsigned most = most_refs(e, l), k = 0;
	struct epf_emu_packet *p;
	struct epf_emu_ref *ref;
	uint64_t bytes = 0, events = 0;
	const unsigned char *next;
	uint32_t lead;

	if (!e->free_count)
		return 0;
	lead = take_packet(e, lane);
	/* While this packet is filled, the lines of the one that is filled next come from the peer that had it. */
	next = e->free_count ? (const unsigned char *)epf_emu_pkt(e->seg, e->free_head - 1) : NULL;
	if (next)
		EPF_PREFETCH_WRITE(next);
	p = begin_packet(e, l, lead, lead, EPF_WR_WRITE);
	ref = (struct epf_emu_ref *)(void *)epf_emu_payload(p);
	do {
		if (next && k % REFS_A_LINE == 0)
			EPF_PREFETCH_WRITE(next + EPF_EMU_PACKET_HEADER + k * sizeof(*ref));
		ref[k] = (struct epf_emu_ref){ .src = wr[k].laddr,
					       .dst = wr[k].raddr,
					       .src_key = wr[k].lkey,
					       .dst_key = wr[k].rkey,
					       .bytes = wr[k].len,
					       .imm = wr[k].imm };
		bytes += wr[k].len;
		events |= (uint64_t)(wr[k].op == EPF_WR_WRITE_IMM) << k;
		k++;
	} while (k < n && k < most && wr[k].id == wr[0].id + k && is_gpu_write(e, &wr[k], last) &&
		 bytes + wr[k].len <= UINT32_MAX);
	p->raddr = events;
	p->rkey = 0;
	p->offset = k;
	p->len = (uint32_t)bytes;
	p->msg_len = (uint32_t)bytes;
	p->imm = 0;
	p->form = EPF_EMU_REFS;
	p->remaining = 1;
	e->slots[lead].form = EPF_EMU_REFS;
	e->slots[lead].left = 1;
	begin_message(e, lane, lead, wr[k - 1].id, (uint16_t)k, now_ns);
	tx_append(e, l, lead);
	l->seq++;
	e->counters.bytes_tx += bytes;
	return k;
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
	unsigned i = 0, packets, staged = 0, filled = 0;
	unsigned most = nic->pace ? (unsigned)EPF_EMU_PACED >> nic->pace : UINT_MAX;
	const struct epf_emu_region *last = NULL;
	uint64_t now_ns;

	if (lane >= e->opts.lanes || l->link != EPF_LANE_READY)
		return -ENOTCONN;
	epf_emu_turn_begin(e);
	now_ns = e->now(e->now_arg);
	while (i < n && l->link == EPF_LANE_READY && l->out_count < l->depth && filled < most) {
		unsigned taken = 1;

		if (!(l->flags & EPF_EMU_TX_STOP) && is_gpu_write(e, &wr[i], &last)) {
			taken = stage_refs(e, lane, &wr[i], n - i, &last, now_ns);
			packets = taken != 0;
		} else {
			packets = stage(e, lane, &wr[i], now_ns);
		}
		if (packets == 0)
			break;
		i += taken;
		staged += packets;
		filled += packets;
		if (staged >= EPF_EMU_CHUNK) {
			epf_emu_stage_end(e, EPF_EMU_FILL);
			epf_emu_push(e, lane);
			epf_emu_stage_end(e, EPF_EMU_PUSH);
			staged = 0;
		}
	}
	epf_emu_stage_end(e, EPF_EMU_FILL);
	if (i) {
		epf_emu_push(e, lane);
		epf_emu_note_wake(e, lane);
		e->counters.doorbells++;
		epf_emu_stage_end(e, EPF_EMU_PUSH);
		epf_emu_count(e, EPF_EMU_POSTS, 1);
		epf_emu_count(e, EPF_EMU_PACKETS, filled);
	}
	epf_emu_turn_end(e);
	return (int)i;
}
