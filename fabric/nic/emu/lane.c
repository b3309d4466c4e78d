/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the emulated NIC: create, connect, fence, drain, destroy, and waking the peers. Called through
 * epf_nic_ops by the engine's slow paths; the fence is called between two steps, so it makes no system
 * call. A lane's token holds a new epoch each time it is created: what still travels under an old one is
 * released without effect.
 */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/fault.h"
#include "fabric/nic/emu/peers.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <string.h>

#ifdef EPF_TEST_HOOKS
int epf_hook_no_fence;
#endif

static struct epf_emu_lane *used_lane(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_emu *e = epf_emu_of(nic);

	if (lane >= e->opts.lanes || !(e->lanes[lane].flags & EPF_EMU_USED))
		return NULL;
	return &e->lanes[lane];
}

/* The peer's segment of which the lane has a use, connected or to be connected again; NULL: none. */
static struct epf_emu_seg *segment_of(const struct epf_emu_lane *l)
{
	return l->peer ? l->peer : l->kept;
}

int epf_emu_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_lane *l;

	if (lane >= e->opts.lanes)
		return epf_fail(EPF_R_NIC_LIMIT, "emu: lane %u, but this NIC has lanes 0 to %u",
				lane, e->opts.lanes - 1);
	if (depth == 0 || depth > e->opts.lane_depth)
		return epf_fail(EPF_R_NIC_LIMIT, "emu: lane depth %u is not in 1 to %u", depth,
				e->opts.lane_depth);
	l = &e->lanes[lane];
	if (l->flags & EPF_EMU_USED)
		return epf_fail(EPF_R_NIC_LANE, "emu: lane %u exists already", lane);
	memset(l, 0, sizeof(*l));
	if (++e->epoch == 0)
		e->epoch = 1;
	if (lane >= e->lanes_end)
		e->lanes_end = lane + 1u;
	l->depth = depth;
	l->flags = EPF_EMU_USED;
	l->token = (uint64_t)e->epoch << 32 | lane;
	__atomic_store_n(&e->seg->lanes[lane].inbox, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->seg->lanes[lane].state, (uint64_t)e->epoch << 32 | EPF_EMU_LANE_OPEN,
			 __ATOMIC_RELEASE); /* M5 */
	*token = l->token;
	return 0;
}

/* Connects to a segment, of which a use goes to the lane; 0, or it is the caller's still. */
static int connect_to(struct epf_emu *e, uint16_t lane, struct epf_emu_seg *peer, uint64_t token)
{
	struct epf_emu_lane *l = &e->lanes[lane];

	if (peer->ordered != e->seg->ordered)
		return epf_fail(EPF_R_NIC_PEER_MODE, "emu: this NIC is %s, its peer is not",
				e->seg->ordered ? "ordered" : "unordered");
	if (token >> 32 == 0 || (token & 0xffff0000) || epf_emu_token_lane(token) >= peer->nlanes)
		return epf_fail(EPF_R_NIC_ADDRESS, "emu: lane %u got an impossible token", lane);
	l->peer = peer;
	l->peer_token = token;
	l->link = EPF_LANE_READY;
	__atomic_store_n(&e->seg->lanes[lane].state,
			 l->token >> 32 << 32 | EPF_EMU_LANE_OPEN | EPF_EMU_LANE_CONNECTED,
			 __ATOMIC_SEQ_CST); /* M5 */
	/* The other end may already hold packets for us: let it look again. */
	epf_emu_mark(peer->hdr, epf_emu_token_lane(token));
	epf_emu_note_wake(e, lane);
	return 0;
}

int epf_emu_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_lane *l = used_lane(nic, lane);
	struct epf_emu_seg *peer, *kept;
	int rc;

	if (!l || l->link != EPF_LANE_IDLE)
		return epf_fail(EPF_R_NIC_LANE, "emu: lane %u is not idle", lane);
	rc = epf_emu_seg_attach(addr, addr_len, &peer);
	if (rc)
		return rc;
	kept = l->kept;
	rc = connect_to(e, lane, peer, token);
	epf_emu_seg_put(rc ? peer : kept);
	if (!rc)
		epf_emu_wake_peers(nic); /* nobody may step this core soon */
	return rc;
}

/* The use of the peer's segment that the lane's predecessor had goes on: looking for it would take a lock. Another one is looked for. */
int epf_emu_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_lane *l = used_lane(nic, lane);

	if (!l || l->link != EPF_LANE_IDLE || !l->kept ||
	    !epf_emu_seg_is_at(l->kept, addr, addr_len))
		return epf_emu_lane_connect(nic, lane, addr, addr_len, token);
	return connect_to(e, lane, l->kept, token);
}

/* The lane will not be reported as one whose peer is dead. */
static void forget_gone(struct epf_emu *e, struct epf_emu_lane *l)
{
	if (l->flags & EPF_EMU_GONE)
		e->gone_lanes--;
	l->flags &= (uint8_t)~EPF_EMU_GONE;
}

static void list_remove(struct epf_emu *e, struct epf_emu_list *list, uint16_t lane)
{
	struct epf_emu_list old = *list;
	uint16_t at;

	list->head = EPF_EMU_NO_LANE;
	while ((at = epf_emu_list_take(e, &old)) != EPF_EMU_NO_LANE)
		if (at != lane)
			epf_emu_list_add(e, list, at);
}

/* Nothing a lane holds waits any longer: everything is to be landed (as flushed) now. */
static void release_held(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];

	epf_emu_fault_release(e, lane);
	if (l->rx_state == EPF_EMU_RX_RNR)
		list_remove(e, &e->rnr, lane);
	if (l->rx_state != EPF_EMU_RX_READY)
		l->rx_state = EPF_EMU_RX_IDLE;
	epf_emu_make_ready(e, lane);
}

void epf_emu_lane_fence(struct epf_nic *nic, uint16_t lane)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_lane *l = used_lane(nic, lane);

	if (!l)
		return;
	if (!epf_emu_is_cut(e, lane))
		epf_emu_take_returns(e, lane);
	epf_emu_fail_lane(e, lane);
	forget_gone(e, l);
#ifdef EPF_TEST_HOOKS
	if (epf_hook_no_fence)
		return;
#endif
	if (l->flags & EPF_EMU_FENCED)
		return;
	l->flags |= EPF_EMU_FENCED;
	release_held(e, lane);
}

int epf_emu_lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_emu_lane *l = used_lane(nic, lane);

	return !l || (l->link != EPF_LANE_READY && l->out_count == 0 && l->done_count == 0 &&
		      l->copies == 0 && !(l->flags & EPF_EMU_GONE));
}

enum epf_lane_link epf_emu_lane_link(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_emu_lane *l = used_lane(nic, lane);

	return l ? (enum epf_lane_link)l->link : EPF_LANE_IDLE;
}

/* Withdraws what the peer has not dequeued yet, and, from a peer that is gone, everything. */
static void reclaim(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_lane_words *w = &l->peer->lanes[epf_emu_token_lane(l->peer_token)];
	uint32_t epoch = epf_emu_token_epoch(l->peer_token), count = 0, at = 0;
	uint64_t word;
	bool gone;

	if (e->free_count == e->seg->npackets)
		return;
	word = __atomic_load_n(&w->inbox, __ATOMIC_ACQUIRE);
	gone = epf_emu_seg_is_dead(l->peer);
	if (__atomic_load_n(&w->state, __ATOMIC_ACQUIRE) >> 32 != epoch)
		gone = true; /* its lane_destroy released all it had before it said so [M5] */
	if (word >> 32 == epoch &&
	    __atomic_compare_exchange_n(&w->inbox, &word, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		at = (uint32_t)word;
	for (; at && at <= e->seg->npackets && count++ < e->seg->npackets;
	     at = epf_emu_pkt(e->seg, at - 1)->next)
		if (e->slots[at - 1].lane == lane && (e->slots[at - 1].flags & EPF_EMU_FLIES)) {
			e->slots[at - 1].flags |= EPF_EMU_WAITS;
			e->slots[at - 1].flags &= (uint8_t)~EPF_EMU_FLIES;
		}
	epf_emu_take_returns(e, lane);
	for (at = 0; at < e->seg->npackets; at++) {
		struct epf_emu_slot *s = &e->slots[at];

		if (s->lane != lane || s->epoch != epf_emu_token_epoch(l->token) ||
		    !(s->flags & (EPF_EMU_FLIES | EPF_EMU_WAITS)))
			continue;
		if ((s->flags & EPF_EMU_FLIES) && !gone)
			continue;
		s->flags &= (uint8_t) ~(EPF_EMU_FLIES | EPF_EMU_WAITS);
		e->slots[s->lead].left--;
		if (s->lead != at)
			epf_emu_free_packet(e, at);
		if (e->slots[s->lead].left == 0)
			epf_emu_free_packet(e, s->lead);
	}
}

static void forget_wake(struct epf_emu *e, uint16_t lane)
{
	uint16_t *at = &e->wake_head;

	while (*at != EPF_EMU_NO_LANE && *at != lane)
		at = &e->lanes[*at].wake_next;
	if (*at == lane)
		*at = e->lanes[lane].wake_next;
}

/* The end of a lane but for its use of the peer's segment. */
static void end_lane(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	uint32_t at;

	epf_emu_fail_lane(e, lane);
	forget_gone(e, l);
	l->flags |= EPF_EMU_FENCED;
	(void)epf_emu_copies_quiesce(e, lane);
	epf_emu_copies_drop(e, lane);
	for (at = e->done_head; at; at = e->slots[at - 1].link)
		if (e->slots[at - 1].lane == lane)
			e->slots[at - 1].flags |= EPF_EMU_MUTE;
	if (l->peer) {
		release_held(e, lane);
		epf_emu_take_inbox(e, lane);
		epf_emu_rx_flush(e, lane);
		epf_emu_flush_returns(e);
		if (l->rx_state == EPF_EMU_RX_READY)
			list_remove(e, &e->work, lane);
	}
	__atomic_store_n(&e->seg->lanes[lane].state, 0, __ATOMIC_RELEASE); /* M5 */
	if (l->peer)
		reclaim(e, lane);
}

void epf_emu_lane_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_lane *l = used_lane(nic, lane);

	if (!l)
		return;
	end_lane(e, lane);
	if (l->flags & EPF_EMU_IN_WAKE) {
		epf_wakeup_wake(&segment_of(l)->hdr->wakeup);
		forget_wake(e, lane);
	}
	epf_emu_seg_put(segment_of(l));
	memset(l, 0, sizeof(*l));
}

int epf_emu_lane_reopen(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_lane *l = used_lane(nic, lane);
	struct epf_emu_seg *peer;
	uint16_t next;
	uint8_t waking;
	int rc;

	if (!nic->ops->link_ready(nic, lane))
		return -ENETDOWN;
	if (!l)
		return nic->ops->lane_create(nic, lane, depth, token);
	/* Copies that a GPU still makes would have to be waited for. */
	if (l->copies)
		return -EAGAIN;
	end_lane(e, lane);
	peer = segment_of(l);
	waking =
		l->flags & EPF_EMU_IN_WAKE; /* it is on a list, and its peer has still to be rung */
	next = l->wake_next;
	memset(l, 0, sizeof(*l));
	rc = nic->ops->lane_create(nic, lane, depth, token);
	if (rc) { /* it was as deep before, so this does not happen */
		l->flags |= waking;
		forget_wake(e, lane);
		epf_emu_seg_put(peer);
		memset(l, 0, sizeof(*l));
		return rc;
	}
	l->kept = peer;
	l->flags |= waking;
	l->wake_next = next;
	return 0;
}

void epf_emu_wake_peers(struct epf_nic *nic)
{
	struct epf_emu *e = epf_emu_of(nic);

	if (e->copier_state == EPF_EMU_COPIER_WANTED)
		epf_emu_copier_attach(e);
	if (e->copies_pushed) {
		e->copies_pushed = false;
		if (epf_emu_copier_sleeps())
			epf_emu_copier_ring();
	}
	while (e->wake_head != EPF_EMU_NO_LANE) {
		struct epf_emu_lane *l = &e->lanes[e->wake_head];

		e->wake_head = l->wake_next;
		l->flags &= (uint8_t)~EPF_EMU_IN_WAKE;
		epf_wakeup_wake(&segment_of(l)->hdr->wakeup);
	}
}
