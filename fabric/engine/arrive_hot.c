/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving side: arrivals are counted in the window of their stream, messages take effect when everything before
 * them is in, exactly once. Called by step_hot.c for each arrival a NIC reports. Arrivals come from another
 * machine: every number in them is checked here. Must never block, allocate, lock, log or make a system call.
 */
#include "fabric/base/err.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/lane_hot.h"

#ifdef EPF_TEST_HOOKS
int epf_hook;
#endif

/* Adds to a signal in GPU memory. Returns 0 if that memory was withdrawn. Waiters on the host read it themselves. */
static int add_to_placed(struct epf_core *core, const struct epf_rank_state *rank,
			 const struct epf_msg *m)
{
	const struct epf_region_local *region = &rank->regions[rank->signal_region];

	if (EPF_UNLIKELY(region->state != EPF_REGION_LIVE))
		return 0;
	epf_gpu_add_cold(core, (uint32_t)(rank - core->ranks), region,
			 (uint64_t)m->signal * sizeof(struct epf_signal), m->value);
	return 1;
}

/* Adds to a signal of a local rank, after the data it covers. [R4] */
static void apply_signal(struct epf_core *core, const struct epf_msg *m)
{
	struct epf_rank_state *rank;

	if (EPF_UNLIKELY(m->rank >= core->world || core->peers[m->rank].local == EPF_NONE))
		goto refuse;
	rank = &core->ranks[core->peers[m->rank].local];
	if (EPF_UNLIKELY(rank->life != EPF_RANK_LIVE)) {
		EPF_COUNT(core, ARRIVALS_FOR_GONE, 1);
		return;
	}
	if (EPF_UNLIKELY(m->signal >= rank->n_signals))
		goto refuse;
	if (EPF_LIKELY(rank->signal_region == EPF_NONE)) {
		EPF_STORE_RELAXED(&rank->signals[m->signal].from, m->c);
		epf_signal_add(&rank->signals[m->signal], m->value);
		rank->notify |= EPF_NOTIFY_WORDS;
		core->wakes = 1;
	} else if (!add_to_placed(core, rank, m)) {
		goto refuse;
	}
	EPF_PROBE3(signal, m->rank, m->signal, m->value);
	if (EPF_LIKELY(m->c - 1 < core->world)) /* 0: it was not said who sends it */
		core->peers[m->c - 1].signals_applied++;
	EPF_COUNT(core, SIGNALS_APPLIED, 1);
	return;
refuse:
	EPF_COUNT(core, ARRIVALS_REFUSED, 1);
}

/* Adds to a word of a local rank's memory. [R4] */
static void apply_add(struct epf_core *core, const struct epf_msg *m)
{
	const struct epf_rank_state *rank;
	const struct epf_region_local *region;

	if (EPF_UNLIKELY(m->rank >= core->world || core->peers[m->rank].local == EPF_NONE))
		goto refuse;
	rank = &core->ranks[core->peers[m->rank].local];
	if (EPF_UNLIKELY(rank->life != EPF_RANK_LIVE)) {
		EPF_COUNT(core, ARRIVALS_FOR_GONE, 1);
		return;
	}
	if (EPF_UNLIKELY(m->signal >= rank->n_regions))
		goto refuse;
	region = &rank->regions[m->signal];
	if (EPF_UNLIKELY(!(region->access & EPF_MR_REMOTE_WRITE) || (m->a & 7u) ||
			 m->a > region->bytes || region->bytes - m->a < 8))
		goto refuse;
	if (EPF_UNLIKELY(region->device)) {
		epf_gpu_add_cold(core, core->peers[m->rank].local, region, m->a, m->value);
		return;
	}
	__atomic_fetch_add((uint64_t *)(uintptr_t)(region->addr + m->a), m->value,
			   __ATOMIC_RELEASE);
	return;
refuse:
	EPF_COUNT(core, ARRIVALS_REFUSED, 1);
}

static void apply(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		  const struct epf_msg *m)
{
	epf_gpu_visible(core);
	switch (m->kind) {
	case EPF_MSG_SIGNAL:
		apply_signal(core, m);
		break;
	case EPF_MSG_ADD:
		apply_add(core, m);
		break;
	case EPF_MSG_FLUSH:
		if (EPF_UNLIKELY(!epf_ack_mark(core, node, m->d, m->handle, m->count)))
			EPF_COUNT(core, ARRIVALS_REFUSED, 1);
		break;
	default:
		core->control->message(core, node, lane, m);
		break;
	}
}

/* Keeps a message until the window has passed it. The pool holds as many as all lanes can have in flight. */
static void pend(struct epf_core *core, struct epf_rx_stream *rx, const struct epf_msg *m)
{
	uint32_t index = core->pending_free;
	struct epf_pending *p;

	if (index == EPF_NONE && core->n_pending < core->limits.max_pending) {
		index = core->n_pending++;
		core->pending[index].next = EPF_NONE;
	}
	if (EPF_UNLIKELY(index == EPF_NONE)) {
		EPF_COUNT(core, ARRIVALS_REFUSED, 1);
		return;
	}
	p = &core->pending[index];
	core->pending_free = p->next;
	p->msg = *m;
	p->next = rx->pending;
	rx->pending = index;
	if (m->kind == EPF_MSG_SIGNAL)
		EPF_COUNT(core, SIGNALS_WAITED, 1);
}

/* Applies the waiting message with this count, if there is one. */
static void unpend(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		   struct epf_rx_stream *rx, uint32_t count)
{
	uint32_t *link = &rx->pending;

	while (*link != EPF_NONE) {
		uint32_t index = *link;
		struct epf_pending *p = &core->pending[index];

		if (p->msg.count == count) {
			struct epf_msg m = p->msg;

			*link = p->next;
			p->next = core->pending_free;
			core->pending_free = index;
			apply(core, node, lane, &m);
			return;
		}
		link = &p->next;
	}
}

#ifdef EPF_TEST_HOOKS
/* The broken variants; each is one mistake that real systems have made. Returns 1 if it has handled the arrival. */
static int hooked(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		  struct epf_rx_stream *rx, const struct epf_msg *m)
{
	if (EPF_HOOKED(EPF_HOOK_COUNT_ONLY)) {
		if (m)
			pend(core, rx, m);
		unpend(core, node, lane, rx, rx->base);
		rx->base++;
		return 1;
	}
	return 0;
}
#endif

/*
 * Moves the window past what has arrived and applies the messages that waited for it; stops behind one that the NIC has to finish. Nothing that a
 * message does may add receiving streams: that moves the table.
 */
static void advance(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		    struct epf_rx_stream *rx)
{
	while (rx->ahead) {
		uint32_t at = rx->base & core->rx_mask;
		uint64_t bit = UINT64_C(1) << (at & 63);

		if (!(rx->bits[at >> 6] & bit))
			return;
		rx->bits[at >> 6] &= ~bit;
		rx->ahead--;
		rx->base++;
		if (rx->pending == EPF_NONE)
			continue;
		unpend(core, node, lane, rx, rx->base - 1);
		if (EPF_UNLIKELY(core->adds)) { /* what comes next may be anything */
			if (core->adds != EPF_ADDS_HOLD)
				epf_hold_cold(core);
			core->adds_resume = 1;
			core->hold_node = (uint32_t)(node - core->nodes);
			core->hold_lane = lane->id;
			core->hold_handle = (uint32_t)(rx - node->rx);
			return;
		}
	}
	window_give(core, rx);
}

/* An arrival window for a stream whose events come out of order. Returns 0 if there is none. */
static int window_take(struct epf_core *core, struct epf_rx_stream *rx)
{
	if (EPF_UNLIKELY(!core->grow.windows) && !epf_windows_grow_cold(core))
		return 0;
	rx->bits = core->grow.windows;
	core->grow.windows = *(void **)core->grow.windows;
	rx->bits[0] = 0;
	return 1;
}

/*
 * An event with count base + ahead_by has arrived (ahead_by already known to be inside the window or behind it).
 * Returns 1 if it is new.
 */
static int accept(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		  struct epf_rx_stream *rx, uint32_t count, const struct epf_msg *m)
{
	uint32_t at = count & core->rx_mask;
	uint64_t bit = UINT64_C(1) << (at & 63);

#ifdef EPF_TEST_HOOKS
	if (hooked(core, node, lane, rx, m))
		return 1;
	if (m && EPF_HOOKED(EPF_HOOK_SIGNAL_ON_ARRIVAL) &&
	    (m->kind == EPF_MSG_SIGNAL || m->kind == EPF_MSG_ADD)) {
		if (!rx->bits || !(rx->bits[at >> 6] & bit))
			apply(core, node, lane, m);
		m = NULL;
	}
#endif
	if (EPF_LIKELY(count == rx->base && !rx->ahead)) {
		rx->base++;
		if (m)
			apply(core, node, lane, m);
		return 1;
	}
	if (!rx->bits && EPF_UNLIKELY(!window_take(core, rx)))
		return 0;
	if (rx->bits[at >> 6] & bit)
		return 0;
	rx->bits[at >> 6] |= bit;
	rx->ahead++;
	/*
	 * Messages between cores take effect at once: each stands for itself, and what is missing before it may wait on
	 * a dead lane for just this message.
	 */
	if (m && EPF_UNLIKELY(m->kind >= EPF_MSG_REVOKE))
		apply(core, node, lane, m);
	else if (m)
		pend(core, rx, m);
	advance(core, node, lane, rx);
	return 1;
}

void epf_arrive_resume(struct epf_core *core)
{
	struct epf_node *node = &core->nodes[core->hold_node];

	core->adds_resume = 0;
	advance(core, node, &core->lanes[core->hold_lane], &node->rx[core->hold_handle]);
}

/* Extends the 16-bit count of an immediate to 32 bits: it is within 32,768 of base on either side. */
static uint32_t widen(uint32_t base, uint32_t count16)
{
	int32_t distance = (int16_t)(uint16_t)(count16 - base);

	return base + (uint32_t)distance;
}

/* Test hooks only: duplicate detection is off. */
EPF_INLINE int keeps_duplicates(void)
{
	return EPF_HOOKED(EPF_HOOK_KEEP_DUPLICATES) || EPF_HOOKED(EPF_HOOK_REPLAY_KEEP);
}

/* Takes in one event of a stream; 1 if it is new. */
static int event(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		 uint32_t handle, uint32_t count, const struct epf_msg *m)
{
	struct epf_rx_stream *rx = &node->rx[handle];
	uint32_t ahead = count - rx->base;
	int fresh;

	if (EPF_UNLIKELY(ahead > core->rx_mask) && !EPF_HOOKED(EPF_HOOK_COUNT_ONLY)) {
		if ((int32_t)ahead >= 0) { /* beyond the window: the sender broke the rules */
			EPF_COUNT(core, ARRIVALS_REFUSED, 1);
			return 0;
		}
		fresh = 0; /* behind: counted before */
		if (keeps_duplicates() && m)
			apply(core, node, lane, m);
	} else {
		fresh = accept(core, node, lane, rx, count, m);
	}
	if (!fresh) {
		EPF_COUNT(core, DUPLICATES_DROPPED, 1);
		return 0;
	}
	lane->arrived++;
	if (lane->arrived + core->limits.lane_receives - lane->given >
	    core->limits.lane_receives / 2)
		epf_grant_mark(core, lane);
	return 1;
}

/* Returns 1 if the peer may use that stream; its first event makes room for it. */
EPF_INLINE int rx_is_there(struct epf_core *core, struct epf_node *node, uint32_t handle)
{
	return EPF_LIKELY(handle < node->n_rx) || epf_rx_grow_cold(core, node, handle);
}

static uint32_t imm_count(const struct epf_core *core, const struct epf_node *node, uint32_t handle,
			  uint32_t imm)
{
	return widen(node->rx[handle].base, imm & 0xffffu);
}

/* A write whose immediate carries a signal: applied on arrival, whatever else is missing. */
static int arrive_notify(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			 uint32_t imm)
{
	uint32_t handle = imm >> 16 & 0x1fffu;
	const struct epf_notify_in *n;
	struct epf_msg m = { .kind = EPF_MSG_SIGNAL };

	if (EPF_UNLIKELY(handle >= node->n_notify_in || !node->notify_in[handle].defined))
		return 0;
	n = &node->notify_in[handle];
	if (EPF_UNLIKELY(!rx_is_there(core, node, n->stream)))
		return 0;
	m.rank = n->rank;
	m.signal = n->signal;
	m.value = n->add;
	m.c = n->from;
	epf_gpu_visible(core);
	if (event(core, node, lane, n->stream, imm_count(core, node, n->stream, imm), NULL) ||
	    keeps_duplicates())
		apply_signal(core, &m);
	return 1;
}

static int arrive_message(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			  const struct epf_wc *wc)
{
	struct epf_msg m;

	if (EPF_UNLIKELY(wc->len != sizeof(m)))
		return 0;
	__builtin_memcpy(&m, wc->msg, sizeof(m));
	if (EPF_UNLIKELY(!rx_is_there(core, node, m.handle)))
		return 0;
	if (EPF_LIKELY(m.kind != EPF_MSG_NOTIFY)) {
		event(core, node, lane, m.handle, m.count, &m);
		return 1;
	}
	if (!epf_notify_defined(core, node, &m))
		return 0;
	event(core, node, lane, m.handle, m.count, NULL);
	return 1;
}

EPF_HOT void epf_arrive(struct epf_core *core, const struct epf_wc *wc)
{
	struct epf_lane *lane = &core->lanes[wc->lane];
	struct epf_node *node = &core->nodes[lane->node];
	uint32_t handle = wc->imm >> 16 & 0x1fffu;
	int good = 0;

	if (wc->op == EPF_WC_RECV) {
		good = arrive_message(core, node, lane, wc);
	} else if (wc->imm >> 29 == EPF_IMM_NOTIFY) {
		good = arrive_notify(core, node, lane, wc->imm);
	} else if (wc->imm >> 29 == EPF_IMM_STREAM && rx_is_there(core, node, handle)) {
		event(core, node, lane, handle, imm_count(core, node, handle, wc->imm), NULL);
		good = 1;
	}
	if (EPF_UNLIKELY(core->unpromised)) /* it may be the first of this node: promise_beats() */
		core->cold_work = 1;
	if (EPF_LIKELY(good))
		node->heard = 1;
	else
		EPF_COUNT(core, ARRIVALS_REFUSED, 1);
}
