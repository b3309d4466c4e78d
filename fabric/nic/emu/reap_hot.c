/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's reap: handles mail, lets lanes land their packets round-robin, raises what the faults
 * held back, hands out completions. Called by the core's step through epf_nic_ops. It must never
 * allocate, lock, log or make a system call.
 */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/fault.h"

#include <string.h>

/* Lands packets of the lanes that have some, each its share. */
static void serve(struct epf_emu *e, struct epf_emu_out *out)
{
	unsigned budget = EPF_EMU_BUDGET >> e->nic.pace, done;

	while (e->work.head != EPF_EMU_NO_LANE && out->n < out->max && budget) {
		done = epf_emu_serve_lane(e, epf_emu_list_take(e, &e->work), out);
		budget -= done < budget ? done : budget;
	}
}

/* Lanes that waited for a receive: to work when there are receives, to failure when it took too long. */
static void serve_rnr(struct epf_emu *e)
{
	struct epf_emu_list list = e->rnr;
	uint16_t lane;

	if (e->receives == 0 && e->now_ns < e->next_rnr_ns)
		return;
	e->rnr.head = EPF_EMU_NO_LANE;
	e->next_rnr_ns = UINT64_MAX;
	while ((lane = epf_emu_list_take(e, &list)) != EPF_EMU_NO_LANE) {
		struct epf_emu_lane *l = &e->lanes[lane];

		if (e->receives == 0 && l->rx_head &&
		    e->now_ns < l->rnr_since_ns + e->opts.rnr_timeout_ns) {
			epf_emu_wait_receive(e, lane);
			continue;
		}
		if (e->receives == 0 && l->rx_head)
			epf_emu_pkt(l->peer, l->rx_head - 1)->status = EPF_S_RNR_EXCEEDED;
		l->rx_state = EPF_EMU_RX_IDLE;
		epf_emu_make_ready(e, lane);
	}
}

static void second_event(struct epf_emu *e, const struct epf_emu_held *item,
			 struct epf_emu_out *out)
{
	struct epf_wc *wc = &out->wc[out->n];
	bool message = item->kind == EPF_EMU_HOLD_MESSAGE;

	if (message)
		e->saved_free |= 1u << item->value;
	if (e->receives == 0 || epf_emu_is_stopped(&e->lanes[item->lane]))
		return;
	if (epf_emu_is_cut(e, item->lane)) /* this duplicate never comes */
		return;
	if (message && e->messages_used == EPF_EMU_MESSAGES)
		return;
	e->receives--;
	out->n++;
	wc->id = 0;
	wc->imm = message ? 0 : item->value;
	wc->len = item->len;
	wc->lane = item->lane;
	wc->op = message ? EPF_WC_RECV : EPF_WC_RECV_IMM;
	wc->status = EPF_S_OK;
	wc->msg = NULL;
	if (message) {
		wc->msg = e->messages[e->messages_used];
		memcpy(e->messages[e->messages_used++], e->saved[item->value], item->len);
	}
}

/* What the faults held and what is due now. */
static void serve_held(struct epf_emu *e, struct epf_emu_out *out)
{
	struct epf_emu_held item;
	unsigned budget = 4 * EPF_EMU_BUDGET;

	while (out->n < out->max && budget-- && epf_emu_fault_pop(e, &item)) {
		struct epf_emu_lane *l = &e->lanes[item.lane];

		if (item.epoch != epf_emu_token_epoch(l->token))
			continue;
		if (item.kind == EPF_EMU_HOLD_PACKET) {
			if (l->flags & EPF_EMU_BROKEN)
				continue;
			epf_emu_rx_append(l, item.value);
			epf_emu_make_ready(e, item.lane);
		} else if (item.kind == EPF_EMU_HOLD_LANE) {
			if (l->rx_state == EPF_EMU_RX_DUE) {
				l->rx_state = EPF_EMU_RX_IDLE;
				epf_emu_make_ready(e, item.lane);
			}
		} else {
			second_event(e, &item, out);
		}
	}
}

/* What waited for the peer's end goes out; the peer may sleep. */
static void push_again(struct epf_emu *e, uint16_t lane)
{
	if (!e->lanes[lane].tx_head)
		return;
	epf_emu_push(e, lane);
	if (!e->lanes[lane].tx_head)
		epf_emu_note_wake(e, lane);
}

/* Empties the mail bitmap [M2, M4]: returned packets, new arrivals, lanes that may push again. */
static void take_mail(struct epf_emu *e)
{
	struct epf_emu_segment *hdr = e->seg->hdr;
	uint64_t words, bits;

	if (__atomic_load_n(&hdr->summary, __ATOMIC_RELAXED) == 0)
		return;
	words = __atomic_exchange_n(&hdr->summary, 0, __ATOMIC_SEQ_CST);
	for (; words; words &= words - 1) {
		uint32_t word = (uint32_t)__builtin_ctzll(words);

		bits = __atomic_exchange_n(&hdr->mail[word], 0, __ATOMIC_SEQ_CST);
		for (; bits; bits &= bits - 1) {
			uint32_t lane = word * 64 + (uint32_t)__builtin_ctzll(bits);

			if (lane >= e->opts.lanes)
				break;
			if (epf_emu_is_cut(e, lane)) /* set_link marks it again */
				continue;
			epf_emu_take_returns(e, lane);
			epf_emu_take_inbox(e, (uint16_t)lane);
			push_again(e, (uint16_t)lane);
		}
	}
}

/*
 * Lanes whose peer the watch found dead: once what had arrived is in, what is outstanding fails, and when that is handed out
 * the lane itself is reported.
 */
static void report_gone(struct epf_emu *e, struct epf_emu_out *out, unsigned max)
{
	for (uint32_t lane = 0; lane < e->lanes_end; lane++) {
		struct epf_emu_lane *l = &e->lanes[lane];

		if ((l->flags & EPF_EMU_GONE) && l->link == EPF_LANE_READY &&
		    l->rx_state != EPF_EMU_RX_READY)
			epf_emu_lose_lane(e, (uint16_t)lane);
	}
	epf_emu_emit(e, out, max); /* all of it, or there is no room below */
	for (uint32_t lane = 0; lane < e->lanes_end && out->n < max; lane++) {
		struct epf_emu_lane *l = &e->lanes[lane];

		if (!(l->flags & EPF_EMU_GONE) || l->link == EPF_LANE_READY)
			continue;
		l->flags &= (uint8_t)~EPF_EMU_GONE;
		e->gone_lanes--;
		out->wc[out->n++] = (struct epf_wc){
			.lane = (uint16_t)lane,
			.op = EPF_WC_LANE_DOWN,
			.status = EPF_S_RETRY_EXCEEDED,
		};
	}
}

int epf_emu_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_out out = { .wc = wc, .max = n };

	epf_emu_turn_begin(e);
	e->now_ns = e->now(e->now_arg);
	e->messages_used = 0;
	take_mail(e);
	epf_emu_stage_end(e, EPF_EMU_MAIL);
	if (e->copies_count || e->home_head)
		epf_emu_copies_reap(e);
	epf_emu_stage_end(e, EPF_EMU_OUTCOMES);
	/* Behind the mail: after a time in which this process was not run, answers are there that nobody has looked at. */
	if (e->now_ns >= e->next_scan_ns) {
		epf_emu_forgive_stalls(e);
		epf_emu_scan_timeouts(e);
	}
	/* Half of the room at first for own completions, the rest after the arrivals. */
	epf_emu_emit(e, &out, n - n / 2);
	epf_emu_stage_end(e, EPF_EMU_EMIT);
	if (e->nheld)
		serve_held(e, &out);
	if (e->rnr.head != EPF_EMU_NO_LANE)
		serve_rnr(e);
	serve(e, &out);
	epf_emu_stage_end(e, EPF_EMU_LAND);
	epf_emu_flush_returns(e);
	epf_emu_stage_end(e, EPF_EMU_RETURN);
	if (e->gone_lanes)
		report_gone(e, &out, n);
	epf_emu_emit(e, &out, n);
	epf_emu_stage_end(e, EPF_EMU_EMIT);
	epf_emu_turn_end(e);
	if (e->work.head == EPF_EMU_NO_LANE)
		__atomic_store_n(&e->seg->hdr->pulse, ++e->pulse, __ATOMIC_RELEASE); /* M6 */
	return (int)out.n;
}

void epf_emu_post_receives(struct epf_nic *nic, unsigned n)
{
	epf_emu_of(nic)->receives += n;
}

uint64_t epf_emu_next_event(const struct epf_nic *nic)
{
	const struct epf_emu *e = epf_emu_of(nic);
	uint64_t at = e->next_scan_ns;

	if (e->done_head || e->gone_lanes || e->copier_state == EPF_EMU_COPIER_WANTED)
		return e->now_ns;
	if (e->copies_count || e->home_head) /* they take microseconds: not worth a sleep */
		return e->now_ns;
	if (e->work.head != EPF_EMU_NO_LANE ||
	    __atomic_load_n(&e->seg->hdr->summary, __ATOMIC_RELAXED) ||
	    (e->receives && e->rnr.head != EPF_EMU_NO_LANE))
		return e->now_ns;
	if (e->nheld && e->held[0].due_ns < at)
		at = e->held[0].due_ns;
	return e->next_rnr_ns < at ? e->next_rnr_ns : at;
}

int epf_emu_wake_pending(const struct epf_nic *nic)
{
	const struct epf_emu *e = epf_emu_of(nic);

	return e->wake_head != EPF_EMU_NO_LANE || e->copies_pushed ||
	       e->copier_state == EPF_EMU_COPIER_WANTED;
}
