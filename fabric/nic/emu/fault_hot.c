/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault decisions and the heap of what waits: see fault.h. Part of the emulated NIC's hot path, so it
 * must never allocate, lock, log or make a system call.
 */
#include "fabric/nic/emu/fault.h"

#include <string.h>

/* What a random number is for: numbers of different purposes are independent. */
enum purpose {
	FOR_DELAY = 1,
	FOR_REORDER,
	FOR_REORDER_TIME,
	FOR_DROP,
	FOR_AGAIN,
	FOR_AGAIN_TIME,
	FOR_TWICE,
	FOR_TWICE_TIME,
	FOR_ERROR,
	FOR_ERROR_KIND,
};

enum { SECOND_EVENT_NS = 1000000, REORDER_MIN_NS = 50000 };

/* The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators). */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static uint64_t draw(const struct epf_emu *e, const struct epf_emu_lane *l,
		     const struct epf_emu_packet *p, enum purpose purpose)
{
	uint64_t x = mix(e->opts.seed ^ (uint64_t)purpose << 56);

	x = mix(x ^ ((uint64_t)l->peer->nic_number << 32 | e->seg->nic_number));
	x = mix(x ^ l->token);
	return mix(x ^ ((uint64_t)p->seq << 32 | p->offset));
}

/* A uniform number in [0, range]. */
static uint64_t below(uint64_t random, uint64_t range)
{
	return (uint64_t)(((unsigned __int128)random * ((unsigned __int128)range + 1)) >> 64);
}

static bool coin(uint64_t random, uint64_t threshold)
{
	return threshold && random <= threshold;
}

static bool before(const struct epf_emu_held *a, const struct epf_emu_held *b)
{
	if (a->due_ns != b->due_ns)
		return a->due_ns < b->due_ns;
	return (int32_t)(a->order - b->order) < 0;
}

static void sift_down(struct epf_emu *e, uint32_t at)
{
	struct epf_emu_held item = e->held[at];

	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= e->nheld)
			break;
		if (child + 1 < e->nheld && before(&e->held[child + 1], &e->held[child]))
			child++;
		if (!before(&e->held[child], &item))
			break;
		e->held[at] = e->held[child];
		at = child;
	}
	e->held[at] = item;
}

static bool hold(struct epf_emu *e, struct epf_emu_held item)
{
	uint32_t at = e->nheld;

	/* The last places are for lanes, which must be able to wait: one place each is kept. */
	if (at >= EPF_EMU_HELD + (item.kind == EPF_EMU_HOLD_LANE ? e->opts.lanes : 0))
		return false;
	item.order = e->held_order++;
	e->nheld++;
	while (at) {
		uint32_t parent = (at - 1) / 2;

		if (!before(&item, &e->held[parent]))
			break;
		e->held[at] = e->held[parent];
		at = parent;
	}
	e->held[at] = item;
	return true;
}

bool epf_emu_fault_pop(struct epf_emu *e, struct epf_emu_held *out)
{
	if (e->nheld == 0 || e->held[0].due_ns > e->now_ns)
		return false;
	*out = e->held[0];
	e->held[0] = e->held[--e->nheld];
	if (e->nheld)
		sift_down(e, 0);
	return true;
}

/* The fate of a whole message, kept in its lead packet. */
static uint8_t message_fate(struct epf_emu *e, struct epf_emu_lane *l,
			    const struct epf_emu_packet *p)
{
	uint8_t fate = 0;
	uint64_t kind;

	if (!e->opts.ordered && coin(draw(e, l, p, FOR_TWICE), e->p_duplicate))
		fate |= EPF_EMU_FATE_TWICE;
	if (coin(draw(e, l, p, FOR_ERROR), e->p_error)) {
		kind = draw(e, l, p, FOR_ERROR_KIND);
		fate |= kind & 1 ? EPF_EMU_FATE_LOST : EPF_EMU_FATE_UNKNOWN;
		if (kind & 2)
			fate |= EPF_EMU_FATE_LAST;
	}
	return fate;
}

static uint64_t reorder_range(const struct epf_emu *e)
{
	uint64_t range = 4 * e->opts.delay_ns;

	return range > REORDER_MIN_NS ? range : REORDER_MIN_NS;
}

/* Ordered: the lane's list holds back what is behind a late packet, so delays do not add up. */
static bool arrive_ordered(struct epf_emu *e, struct epf_emu_lane *l, struct epf_emu_packet *p,
			   bool lead)
{
	uint64_t due = e->now_ns;

	if (lead && e->opts.delay_ns)
		due += below(draw(e, l, p, FOR_DELAY), e->opts.delay_ns);
	if (coin(draw(e, l, p, FOR_DROP), e->p_drop)) {
		due += e->opts.retransmit_ns;
		e->counters.packets_dropped++;
		e->counters.retransmits++;
	}
	p->due_ns = due;
	return false;
}

bool epf_emu_fault_arrive(struct epf_emu *e, uint16_t lane, uint32_t idx, struct epf_emu_packet *p)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	bool lead = p->lead == idx, reordered, dropped;
	struct epf_emu_held item = {
		.due_ns = e->now_ns,
		.epoch = epf_emu_token_epoch(l->token),
		.value = idx,
		.lane = lane,
		.kind = EPF_EMU_HOLD_PACKET,
	};

	p->fate = lead ? message_fate(e, l, p) : 0;
	if (e->opts.ordered)
		return arrive_ordered(e, l, p, lead);
	if (e->opts.delay_ns)
		item.due_ns += below(draw(e, l, p, FOR_DELAY), e->opts.delay_ns);
	reordered = coin(draw(e, l, p, FOR_REORDER), e->p_reorder);
	if (reordered)
		item.due_ns += 1 + below(draw(e, l, p, FOR_REORDER_TIME), reorder_range(e));
	dropped = coin(draw(e, l, p, FOR_DROP), e->p_drop);
	if (dropped)
		item.due_ns += e->opts.retransmit_ns;
	/* Only what consumes no receive may land twice: the event follows the last landing. */
	if (p->op != EPF_WR_SEND && coin(draw(e, l, p, FOR_AGAIN), e->p_duplicate))
		p->holds = 2;
	if (item.due_ns <= e->now_ns || !hold(e, item))
		return false;
	e->counters.packets_reordered += reordered;
	e->counters.packets_dropped += dropped;
	e->counters.retransmits += dropped;
	return true;
}

bool epf_emu_fault_again(struct epf_emu *e, uint16_t lane, uint32_t idx,
			 const struct epf_emu_packet *p)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_held item = {
		.due_ns = e->now_ns + below(draw(e, l, p, FOR_AGAIN_TIME), reorder_range(e)),
		.epoch = epf_emu_token_epoch(l->token),
		.value = idx,
		.lane = lane,
		.kind = EPF_EMU_HOLD_PACKET,
	};

	if (!hold(e, item))
		return false;
	e->counters.packets_duplicated++;
	return true;
}

void epf_emu_fault_second_event(struct epf_emu *e, uint16_t lane, const struct epf_emu_packet *p,
				const struct epf_wc *wc)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_held item = {
		.due_ns = e->now_ns + below(draw(e, l, p, FOR_TWICE_TIME), SECOND_EVENT_NS),
		.epoch = epf_emu_token_epoch(l->token),
		.value = wc->imm,
		.len = wc->len,
		.lane = lane,
		.kind = EPF_EMU_HOLD_EVENT,
	};
	uint32_t slot = 0;

	if (wc->op == EPF_WC_RECV) {
		if (e->saved_free == 0)
			return;
		slot = (uint32_t)__builtin_ctz(e->saved_free);
		item.value = slot;
		item.kind = EPF_EMU_HOLD_MESSAGE;
	}
	if (!hold(e, item))
		return;
	if (wc->op == EPF_WC_RECV) {
		e->saved_free &= ~(1u << slot);
		memcpy(e->saved[slot], wc->msg, wc->len);
	}
	e->counters.packets_duplicated++;
}

bool epf_emu_fault_hold_lane(struct epf_emu *e, uint16_t lane, uint64_t due_ns)
{
	struct epf_emu_held item = {
		.due_ns = due_ns,
		.epoch = epf_emu_token_epoch(e->lanes[lane].token),
		.lane = lane,
		.kind = EPF_EMU_HOLD_LANE,
	};

	return hold(e, item);
}

void epf_emu_fault_release(struct epf_emu *e, uint16_t lane)
{
	uint32_t i, kept = 0, at;

	for (i = 0; i < e->nheld; i++) {
		struct epf_emu_held *item = &e->held[i];

		if (item->lane != lane) {
			e->held[kept++] = *item;
			continue;
		}
		if (item->kind == EPF_EMU_HOLD_PACKET)
			epf_emu_rx_append(&e->lanes[lane], item->value);
		else if (item->kind == EPF_EMU_HOLD_MESSAGE)
			e->saved_free |= 1u << item->value;
	}
	e->nheld = kept;
	for (at = kept / 2; at > 0; at--)
		sift_down(e, at - 1);
}
