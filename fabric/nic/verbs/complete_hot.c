/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC's way back: completions, arrivals, receives. The way out is post_hot.c. Called by the core's step
 * through epf_nic_ops. It must never allocate, lock, log or make a system call; the provider's own post and poll are what they are
 * (on hardware memory and a doorbell; soft-RoCE enters the kernel).
 */
#include "fabric/nic/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

/* Entries of one reap. */
struct out {
	struct epf_wc *wc;
	unsigned n, max;
};

/* What is posted up to this position is over. */
EPF_INLINE void sent_until(struct epf_verbs *v, struct epf_verbs_lane *l, uint32_t position)
{
	v->outstanding -= position + 1 - l->tail;
	l->tail = position + 1;
}

EPF_INLINE void emit_sent(struct epf_verbs *v, struct out *out, uint16_t lane, uint32_t position,
			  unsigned status)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	sent_until(v, l, position);
	out->wc[out->n++] = (struct epf_wc){
		.id = l->ids[position & l->mask],
		.lane = lane,
		.op = EPF_WC_SENT,
		.status = (uint8_t)status,
	};
}

/* Lanes in error: one entry for each work request, whether or not it asked for a completion. */
static void report(struct epf_verbs *v, struct out *out)
{
	while (v->report_head != EPF_VERBS_NONE && out->n < out->max) {
		uint16_t lane = v->report_head;
		struct epf_verbs_lane *l = &v->lanes[lane];

		if (l->has_failed && l->tail != l->flushed) {
			/* What stands before the first failure has succeeded. */
			if ((int32_t)(l->failed_at - l->tail) > 0)
				emit_sent(v, out, lane, l->failed_at - 1, EPF_S_OK);
			else
				emit_sent(v, out, lane, l->tail,
					  l->tail == l->failed_at ? l->status : EPF_S_FLUSHED);
			continue;
		}
		if (l->gone && l->tail == l->head) {
			out->wc[out->n++] = (struct epf_wc){
				.lane = lane,
				.op = EPF_WC_LANE_DOWN,
				.status = l->gone,
			};
			l->gone = 0;
		}
		l->in_report = 0;
		v->report_head = l->next_report;
		if (v->report_head == EPF_VERBS_NONE)
			v->report_tail = EPF_VERBS_NONE;
	}
}

/* A provider's status as ours. */
static unsigned status_of(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_WR_FLUSH_ERR:
		return EPF_S_FLUSHED;
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return EPF_S_RNR_EXCEEDED;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_OP_ERR:
		return EPF_S_REMOTE_ACCESS;
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
	case IBV_WC_MW_BIND_ERR:
	case IBV_WC_BAD_RESP_ERR:
		return EPF_S_LOCAL;
	default:
		return EPF_S_RETRY_EXCEEDED;
	}
}

static void failed(struct epf_verbs *v, uint16_t lane, uint32_t position, enum ibv_wc_status status)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	l->link = EPF_LANE_ERROR;
	if (!l->has_failed) {
		l->has_failed = 1;
		l->failed_at = l->flushed = position;
		l->status = (uint8_t)status_of(status);
		v->counters.errors += status != IBV_WC_WR_FLUSH_ERR;
		v->counters.rnr_events += status == IBV_WC_RNR_RETRY_EXC_ERR;
	}
	if ((int32_t)(position + 1 - l->flushed) > 0)
		l->flushed = position + 1;
	epf_verbs_report_lane(v, lane);
}

/*
 * Completions of work requests: up to `max` entries in all. Of an ordered lane a later one speaks for those before it, so of
 * several in a row the last is reported.
 */
static int take_sent(struct epf_verbs *v, struct out *out, unsigned max)
{
	struct epf_wc *joins = NULL; /* the entry before, if one of its lane may take its place */

	while (out->n < max) {
		unsigned ask = max - out->n < EPF_VERBS_POLL ? max - out->n : EPF_VERBS_POLL;
		int n = ibv_poll_cq(v->send_cq, (int)ask, v->wcs);

		if (n < 0)
			epf_verbs_lost_receives_cold(v, n);
		for (int i = 0; i < n; i++) {
			const struct ibv_wc *wc = &v->wcs[i];
			uint16_t lane = (uint16_t)(wc->wr_id >> 48);
			struct epf_verbs_lane *l = &v->lanes[lane];
			uint32_t position = (uint32_t)wc->wr_id;

			/* Of a queue pair that was destroyed, or given up before. */
			if (l->generation != (uint16_t)(wc->wr_id >> 32) ||
			    position - l->tail >= l->head - l->tail)
				continue;
			if (__builtin_expect(wc->status != IBV_WC_SUCCESS, 0)) {
				failed(v, lane, position, wc->status);
			} else if (joins && joins->lane == lane && !l->has_failed) {
				sent_until(v, l, position);
				joins->id = l->ids[position & l->mask];
			} else if (!l->has_failed) {
				joins = v->ordered ? &out->wc[out->n] : NULL;
				emit_sent(v, out, lane, position, EPF_S_OK);
			}
			if (l->gone)
				epf_verbs_report_lane(v, lane);
		}
		if (n < (int)ask)
			return 0;
	}
	return 1;
}

/* Lane of a queue pair; EPF_VERBS_NONE for one that is gone. */
static uint16_t lane_of(const struct epf_verbs *v, uint32_t qpn)
{
	uint32_t at;

	if (!v->qps)
		return EPF_VERBS_NONE;
	for (at = epf_verbs_hash(qpn) & v->qps_mask; v->qps[at]; at = (at + 1) & v->qps_mask)
		if (v->qps[at] >> 32 == qpn)
			return epf_verbs_entry_lane(v->qps[at]);
	return EPF_VERBS_NONE;
}

static void arrived(struct epf_verbs *v, struct out *out, const struct ibv_wc *wc)
{
	struct epf_rdma_slot *slot = (struct epf_rdma_slot *)(uintptr_t)wc->wr_id;
	uint16_t lane = wc->status == IBV_WC_SUCCESS ? lane_of(v, wc->qp_num) : EPF_VERBS_NONE;
	struct epf_wc *at = &out->wc[out->n];
	int message = wc->opcode == IBV_WC_RECV;

	if (__builtin_expect(!v->srq, 0) &&
	    !epf_verbs_recv_took(v, slot, wc->qp_num, lane != EPF_VERBS_NONE))
		return;
	v->posted_receives--;
	if (__builtin_expect(lane == EPF_VERBS_NONE, 0)) {
		/* Nobody hears of it, so nobody asks for another receive. */
		slot->next = v->receives.free;
		v->receives.free = slot;
		v->wanted_receives += v->srq != NULL;
		return;
	}
	at->id = 0;
	at->imm = message ? 0 : ntohl(wc->imm_data);
	at->len = wc->byte_len;
	at->lane = lane;
	at->op = message ? EPF_WC_RECV : EPF_WC_RECV_IMM;
	at->status = EPF_S_OK;
	at->msg = NULL;
	if (message) {
		at->msg = (const void *)(uintptr_t)slot->sge.addr;
		slot->next = v->read_slots;
		v->read_slots = slot;
	} else {
		slot->next = v->receives.free;
		v->receives.free = slot;
	}
	out->n++;
	v->counters.messages_rx++;
	v->counters.bytes_rx += wc->byte_len;
}

static void take_arrivals(struct epf_verbs *v, struct out *out)
{
	while (out->n < out->max) {
		unsigned ask = out->max - out->n;
		int n;

		if (ask > EPF_VERBS_POLL)
			ask = EPF_VERBS_POLL;
		n = ibv_poll_cq(v->recv_cq, (int)ask, v->wcs);
		if (n < 0)
			epf_verbs_lost_receives_cold(v, n);
		for (int i = 0; i < n; i++)
			arrived(v, out, &v->wcs[i]);
		if (n < (int)ask) {
			v->empties++;
			if (__builtin_expect(v->dead, 0))
				v->spent = 1;
			return;
		}
	}
}

/* Posts what is wanted, as far as there are slots. */
static void give_receives(struct epf_verbs *v)
{
	uint32_t most = v->opts.receives - v->posted_receives;
	uint32_t n = v->wanted_receives < most ? v->wanted_receives : most;

	if (v->posted_receives + n + EPF_VERBS_SPARE > v->receives.all)
		epf_rdma_more_slots_cold(&v->receives, v->posted_receives + n + EPF_VERBS_SPARE);
	if (__builtin_expect(!v->srq, 0)) {
		epf_verbs_recv_give(v);
		return;
	}
	while (n && v->receives.free) {
		struct epf_rdma_slot *first = v->receives.free, *last = first;
		struct ibv_recv_wr *bad = NULL;
		unsigned count = 1;

		for (; count < n && count < EPF_VERBS_CHAIN && last->next; count++) {
			last->wr.next = &last->next->wr;
			last = last->next;
		}
		last->wr.next = NULL;
		if (__builtin_expect(ibv_post_srq_recv(v->srq, &first->wr, &bad) != 0, 0)) {
			for (; first != last->next && &first->wr != bad; first = first->next) {
				v->posted_receives++;
				v->wanted_receives--;
			}
			v->receives.free = first;
			epf_verbs_lost_receives_cold(v, 0);
			return;
		}
		v->receives.free = last->next;
		v->posted_receives += count;
		v->wanted_receives -= count;
		n -= count;
	}
}

int epf_verbs_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct out out = { .wc = wc, .max = n };

	while (v->read_slots) {
		struct epf_rdma_slot *slot = v->read_slots;

		v->read_slots = slot->next;
		slot->next = v->receives.free;
		v->receives.free = slot;
	}
	if (__builtin_expect(v->wanted_receives != 0, 0))
		give_receives(v);
	if (__builtin_expect(v->report_head != EPF_VERBS_NONE, 0))
		report(v, &out);
	/* Also of a device that is gone: what it said before has been acknowledged to the peer, who will not say it again. */
	if (__builtin_expect(!v->spent, 1)) {
		/* Half of the room at first for completions, the rest after the arrivals. */
		int more = take_sent(v, &out, n - n / 2);

		take_arrivals(v, &out);
		if (__builtin_expect(more, 0))
			(void)take_sent(v, &out, n);
	}
	if (__builtin_expect(v->report_head != EPF_VERBS_NONE, 0))
		report(v, &out);
	return (int)out.n;
}

void epf_verbs_post_receives(struct epf_nic *nic, unsigned n)
{
	struct epf_verbs *v = epf_verbs_of(nic);

	if (__builtin_expect(v->srq != NULL, 1))
		v->wanted_receives += n;
	else if (!v->lane_receives)
		epf_verbs_recv_begin_cold(v, n);
	give_receives(v);
}

uint64_t epf_verbs_next_event(const struct epf_nic *nic)
{
	const struct epf_verbs *v = epf_verbs_of(nic);

	if (v->report_head != EPF_VERBS_NONE || (v->wanted_receives && v->read_slots))
		return 0;
	return UINT64_MAX;
}
