/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The EFA NIC's data path, sending side: work requests to queue pairs, completions back, and what failed lanes report. Called by
 * the core's step through epf_nic_ops. It must never allocate, lock, log or make a system call; the provider's own post and
 * poll write and read memory of the device. Arrivals and receives are in recv_hot.c.
 */
#include "fabric/nic/efa/efa.h"
#include "fabric/nic/rdma/wr_hot.h"

#include <errno.h>
#include <string.h>

/* Where a work request's bytes lie here and there. */
struct place {
	uint64_t laddr, raddr;
	uint32_t lkey, rkey, len;
	int is_inline;
};

/*
 * One that is not sane gets a place that the device refuses, so that it fails in its turn, as any other with a wrong local
 * key. One without bytes gets places whose keys are good at both ends: a device may look at them.
 */
static struct place place_of(const struct epf_efa_lane *l, const struct epf_wr *wr, int sane,
			     uint32_t slot)
{
	uint8_t *bounce = l->bounce + (size_t)slot * EPF_NIC_MSG_BYTES;
	struct place p = { .laddr = wr->laddr,
			   .raddr = wr->raddr,
			   .lkey = wr->lkey,
			   .rkey = wr->rkey,
			   .len = wr->len };

	if (__builtin_expect(!sane, 0)) {
		p.laddr = p.len = 1;
		p.lkey = l->bounce_mr->lkey;
		return p;
	}
	if (wr->len == 0) {
		p.laddr = (uintptr_t)bounce;
		p.lkey = l->bounce_mr->lkey;
		p.raddr = l->sink_raddr;
		p.rkey = l->sink_rkey;
		return p;
	}
	if (!(wr->flags & EPF_WR_INLINE))
		return p;
	if (wr->len <= (wr->op == EPF_WR_SEND ? l->inline_bytes : l->write_inline)) {
		p.is_inline = 1;
		return p;
	}
	memcpy(bounce, (const void *)(uintptr_t)wr->laddr, wr->len);
	p.laddr = (uintptr_t)bounce;
	p.lkey = l->bounce_mr->lkey;
	return p;
}

static void put(struct epf_efa *v, struct epf_efa_lane *l, uint16_t lane, const struct epf_wr *wr)
{
	struct ibv_qp_ex *qp = l->qpx;
	uint32_t slot = l->free[--l->n_free];
	int sane = epf_verbs_wr_is_sane(wr, v->max_msg_bytes);
	struct place p = place_of(l, wr, sane, slot);
	struct ibv_sge sge = { .addr = p.laddr, .length = p.len, .lkey = p.lkey };

	l->ids[slot] = wr->id;
	l->busy[slot] = 1;
	qp->wr_id = epf_efa_wr_id(lane, l->generation, slot);
	qp->wr_flags = IBV_SEND_SIGNALED | (p.is_inline ? IBV_SEND_INLINE : 0);
	epf_verbs_wr_add(qp, wr, sane, p.rkey, p.raddr, &sge);
	ibv_wr_set_ud_addr(qp, l->ah, l->remote_qpn, l->remote_qkey);
}

int epf_efa_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_lane *l;
	uint64_t bytes = 0;
	int rc;

	if (lane >= v->max_lanes)
		return -ENOTCONN;
	l = &v->lanes[lane];
	if (l->link != EPF_LANE_READY)
		return -ENOTCONN;
	if (n > l->n_free)
		n = l->n_free;
	if (n > v->completions - v->outstanding)
		n = v->completions - v->outstanding;
	if (n == 0)
		return 0;
	ibv_wr_start(l->qpx);
	for (unsigned i = 0; i < n; i++) {
		put(v, l, lane, &wr[i]);
		bytes += wr[i].len;
	}
	rc = ibv_wr_complete(l->qpx);
	v->counters.doorbells++;
	if (__builtin_expect(rc != 0, 0)) {
		/* All or nothing. The stack still holds the slots that were popped from it. */
		for (unsigned i = 0; i < n; i++)
			l->busy[l->free[l->n_free++]] = 0;
		if (rc != ENOMEM)
			epf_efa_lane_gone_cold(v, lane, EPF_S_RETRY_EXCEEDED);
		return 0;
	}
	v->outstanding += n;
	v->counters.bytes_tx += bytes;
	v->counters.messages_tx += n;
	return (int)n;
}

/* The work request in a slot is over. The first of a lane that is not OK gives the lane its status, later ones are flushed. */
static void emit_sent(struct epf_efa *v, struct epf_efa_out *out, uint16_t lane, uint32_t slot,
		      unsigned status)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	if (__builtin_expect(status != EPF_S_OK, 0)) {
		if (l->has_failed)
			status = EPF_S_FLUSHED;
		else if (l->gone && status == EPF_S_FLUSHED)
			status = EPF_S_RETRY_EXCEEDED;
		l->has_failed = 1;
	}
	l->busy[slot] = 0;
	l->free[l->n_free++] = (uint16_t)slot;
	v->outstanding--;
	out->wc[out->n++] = (struct epf_wc){
		.id = l->ids[slot],
		.lane = lane,
		.op = EPF_WC_SENT,
		.status = (uint8_t)status,
	};
}

/* What a lane has to report, as far as there is room; 1 when it must stay in the list. */
static int serve(struct epf_efa *v, struct epf_efa_out *out, uint16_t lane)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	if (l->must_stop) {
		l->must_stop = 0;
		epf_efa_stop_lane_cold(v, lane);
	}
	if (l->n_early && l->link != EPF_LANE_IDLE && !epf_efa_give_early(v, lane, out))
		return 1;
	if (l->stopping && !l->abandoned && l->n_free != l->depth) {
		if (v->now(v->now_arg) < l->flush_by)
			return 1;
		l->abandoned = 1;
		l->scan = 0;
	}
	if (l->abandoned && l->n_free != l->depth) {
		for (; l->scan < l->depth && out->n < out->max; l->scan++)
			if (l->busy[l->scan])
				emit_sent(v, out, lane, l->scan, l->status);
		if (l->n_free != l->depth)
			return 1;
	}
	if (l->gone) {
		if (out->n == out->max)
			return 1;
		out->wc[out->n++] = (struct epf_wc){
			.lane = lane,
			.op = EPF_WC_LANE_DOWN,
			.status = l->gone,
		};
		l->gone = 0;
	}
	return 0;
}

/* Lanes that have something to say that no completion says. */
static void report(struct epf_efa *v, struct epf_efa_out *out)
{
	for (uint32_t n = v->reports; n && out->n < out->max; n--) {
		uint16_t lane = v->report_head;
		struct epf_efa_lane *l = &v->lanes[lane];

		v->report_head = l->next_report;
		if (v->report_head == EPF_EFA_NONE)
			v->report_tail = EPF_EFA_NONE;
		l->in_report = 0;
		v->reports--;
		if (serve(v, out, lane))
			epf_efa_report_lane(v, lane);
	}
}

/*
 * A device's status as ours. A queue pair that is no more or in error at the other end means that the peer has gone or has
 * fenced the lane: for the sender that is a peer that does not answer.
 */
static unsigned status_of(uint32_t vendor, enum ibv_wc_status status)
{
	switch (vendor) {
	case EPF_EFA_FLUSHED:
		return EPF_S_FLUSHED;
	case EPF_EFA_LOCAL_QP_ERROR:
	case EPF_EFA_LOCAL_UNSUPPORTED_OP:
	case EPF_EFA_LOCAL_INVALID_AH:
	case EPF_EFA_LOCAL_INVALID_LKEY:
	case EPF_EFA_LOCAL_BAD_LENGTH:
		return EPF_S_LOCAL;
	case EPF_EFA_REMOTE_BAD_ADDRESS:
	case EPF_EFA_REMOTE_BAD_LENGTH:
	case EPF_EFA_REMOTE_FEATURE_MISMATCH:
		return EPF_S_REMOTE_ACCESS;
	case EPF_EFA_REMOTE_RNR:
		return EPF_S_RNR_EXCEEDED;
	case EPF_EFA_REMOTE_ABORT:
	case EPF_EFA_REMOTE_BAD_DEST_QPN:
	case EPF_EFA_REMOTE_BAD_STATUS:
	case EPF_EFA_UNRESPONSIVE_REMOTE:
	case EPF_EFA_REMOTE_UNKNOWN_PEER:
	case EPF_EFA_UNREACHABLE_REMOTE:
		return EPF_S_RETRY_EXCEEDED;
	default: /* a status of a later device: by what the provider makes of it */
		return status == IBV_WC_WR_FLUSH_ERR        ? EPF_S_FLUSHED
		       : status == IBV_WC_RNR_RETRY_EXC_ERR ? EPF_S_RNR_EXCEEDED
		       : status == IBV_WC_REM_ACCESS_ERR    ? EPF_S_REMOTE_ACCESS
							    : EPF_S_RETRY_EXCEEDED;
	}
}

/* SRD fails a work request, not its queue pair; the contract ends the lane with it. */
static unsigned failed(struct epf_efa *v, uint16_t lane)
{
	struct epf_efa_lane *l = &v->lanes[lane];
	unsigned status = status_of(ibv_wc_read_vendor_err(v->send_cq), v->send_cq->status);

	l->link = EPF_LANE_ERROR;
	if (!l->has_failed) {
		l->status = (uint8_t)status;
		v->counters.errors += status != EPF_S_FLUSHED;
		v->counters.rnr_events += status == EPF_S_RNR_EXCEEDED;
	}
	if (!l->stopping)
		l->must_stop = 1;
	epf_efa_report_lane(v, lane);
	return status;
}

static void take_one(struct epf_efa *v, struct epf_efa_out *out)
{
	uint64_t id = v->send_cq->wr_id;
	uint16_t lane = (uint16_t)(id >> 48);
	uint32_t slot = (uint32_t)id - 1;
	struct epf_efa_lane *l = &v->lanes[lane];

	/* Of a queue pair that was destroyed, or given up before. */
	if (lane >= v->max_lanes || l->generation != (uint16_t)(id >> 32) || slot >= l->depth ||
	    !l->busy[slot])
		return;
	if (__builtin_expect(v->send_cq->status == IBV_WC_SUCCESS, 1))
		emit_sent(v, out, lane, slot, EPF_S_OK);
	else
		emit_sent(v, out, lane, slot, failed(v, lane));
	if (l->gone)
		epf_efa_report_lane(v, lane);
}

/* Completions of work requests: up to `max` entries in all. 1 when there were no more, or the queue is broken. */
static int take_sent(struct epf_efa *v, struct epf_efa_out *out, unsigned max)
{
	int is_open = 0, rc = 0;

	for (unsigned left = max - out->n; left; left--) {
		rc = epf_efa_poll(v->send_cq, &is_open, &v->stale_sends);
		if (rc == 0)
			take_one(v, out);
		else if (rc != EINVAL)
			break;
	}
	if (is_open)
		ibv_end_poll(v->send_cq);
	if (__builtin_expect(rc && rc != ENOENT && rc != EINVAL, 0))
		epf_efa_device_lost_cold(v);
	return rc && rc != EINVAL;
}

int epf_efa_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_out out = { .wc = wc, .max = n };

	epf_efa_free_read(v);
	if (__builtin_expect(v->pool != 0 && v->hungry_head != EPF_EFA_NONE, 0))
		epf_efa_feed(v);
	if (__builtin_expect(v->reports != 0, 0))
		report(v, &out);
	/* Also of a device that is gone: what it said before has been acknowledged to the peer, who will not say it again. */
	if (__builtin_expect(!v->spent, 1)) {
		/* Half of the room at first for completions, the rest after the arrivals. */
		int none = take_sent(v, &out, n - n / 2);

		none &= epf_efa_take_arrivals(v, &out);
		v->empties += (unsigned)none;
		if (!none)
			take_sent(v, &out, n);
		else if (__builtin_expect(v->dead, 0))
			v->spent = 1;
	}
	if (__builtin_expect(v->reports != 0, 0))
		report(v, &out);
	return (int)out.n;
}

uint64_t epf_efa_next_event(const struct epf_nic *nic)
{
	const struct epf_efa *v = epf_efa_of(nic);
	uint64_t at = UINT64_MAX;

	for (uint16_t lane = v->report_head; lane != EPF_EFA_NONE;
	     lane = v->lanes[lane].next_report) {
		const struct epf_efa_lane *l = &v->lanes[lane];

		/* Only the wait for a failed lane's completions has a time. */
		if (l->must_stop || !l->stopping || l->abandoned || l->n_free == l->depth)
			return 0;
		if (l->flush_by < at)
			at = l->flush_by;
	}
	return at;
}
