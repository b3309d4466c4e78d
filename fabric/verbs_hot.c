/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC's data path: work requests to queue pairs, completions and arrivals back, receives. Called by the core's step
 * through epf_nic_ops. It must never allocate, lock, log or make a system call; the provider's own post and poll are what they are
 * (on hardware memory and a doorbell; soft-RoCE enters the kernel).
 */
#include "fabric/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

/* Entries of one reap. */
struct out {
	struct epf_wc *wc;
	unsigned n, max;
};

/* A work request that no device is asked to refuse: it would not, or it would disturb more than the lane. */
static int is_sane(const struct epf_verbs *v, const struct epf_wr *wr)
{
	if (wr->len > v->max_msg_bytes)
		return 0;
	if ((wr->flags & EPF_WR_INLINE) && wr->len > EPF_NIC_MSG_BYTES)
		return 0;
	switch (wr->op) {
	case EPF_WR_WRITE:
	case EPF_WR_WRITE_IMM:
		return 1;
	case EPF_WR_SEND:
		return wr->len <= EPF_NIC_MSG_BYTES;
	case EPF_WR_READ:
		return !(wr->flags & EPF_WR_INLINE);
	default:
		return 0;
	}
}

/*
 * Local part of a work request: *inlined says that the queue pair takes the bytes at once. One that is not sane gets a place
 * that the device refuses, so that it fails in its turn, as any other with a wrong local key.
 */
static struct ibv_sge local_part(const struct epf_verbs *v, struct epf_verbs_lane *l,
				 const struct epf_wr *wr, int sane, int *inlined)
{
	uint8_t *bounce;

	*inlined = 0;
	if (__builtin_expect(!sane, 0))
		return (struct ibv_sge){ .addr = 1, .length = 1, .lkey = v->bad_lkey };
	if (!(wr->flags & EPF_WR_INLINE))
		return (struct ibv_sge){ .addr = wr->laddr, .length = wr->len, .lkey = wr->lkey };
	if (__builtin_expect(wr->len <= l->inline_bytes, 1)) {
		*inlined = 1;
		return (struct ibv_sge){ .addr = wr->laddr, .length = wr->len };
	}
	bounce = l->bounce + (size_t)(l->head & l->mask) * EPF_NIC_MSG_BYTES;
	memcpy(bounce, (const void *)(uintptr_t)wr->laddr, wr->len);
	return (struct ibv_sge){ .addr = (uintptr_t)bounce,
				 .length = wr->len,
				 .lkey = l->bounce_mr->lkey };
}

/* Enters a work request in its lane; returns its number and whether it asks for a completion. */
static uint64_t enter(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
		      const struct epf_wr *wr, int last, unsigned *flags)
{
	uint64_t wr_id = epf_verbs_wr_id(lane, l->generation, l->head);

	l->ids[l->head++ & l->mask] = wr->id;
	*flags = 0;
	if (last || ++l->quiet >= v->signal_interval) {
		l->quiet = 0;
		*flags = IBV_SEND_SIGNALED;
	}
	return wr_id;
}

static void put_ex(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
		   const struct epf_wr *wr, int last)
{
	struct ibv_qp_ex *qp = l->qpx;
	int sane = is_sane(v, wr), inlined;
	struct ibv_sge sge = local_part(v, l, wr, sane, &inlined);
	unsigned flags;

	qp->wr_id = enter(v, l, lane, wr, last, &flags);
	qp->wr_flags = flags | (inlined ? IBV_SEND_INLINE : 0);
	if (sane && wr->op == EPF_WR_WRITE_IMM)
		ibv_wr_rdma_write_imm(qp, wr->rkey, wr->raddr, htonl(wr->imm));
	else if (sane && wr->op == EPF_WR_SEND)
		ibv_wr_send(qp);
	else if (sane && wr->op == EPF_WR_READ)
		ibv_wr_rdma_read(qp, wr->rkey, wr->raddr);
	else
		ibv_wr_rdma_write(qp, wr->rkey, wr->raddr);
	if (inlined)
		ibv_wr_set_inline_data(qp, (void *)(uintptr_t)sge.addr, sge.length);
	else
		ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
}

static int post_ex(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
		   const struct epf_wr *wr, unsigned n)
{
	uint32_t head = l->head;
	int rc;

	ibv_wr_start(l->qpx);
	for (unsigned i = 0; i < n; i++)
		put_ex(v, l, lane, &wr[i], i + 1 == n);
	rc = ibv_wr_complete(l->qpx);
	v->counters.doorbells++;
	if (__builtin_expect(rc == 0, 1))
		return (int)n;
	l->head = head; /* all or nothing */
	if (rc != ENOMEM)
		epf_verbs_lost_lane_cold(v, lane, rc);
	return 0;
}

static void put_list(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
		     const struct epf_wr *wr, int last, unsigned at)
{
	static const uint8_t opcodes[] = {
		[EPF_WR_WRITE] = IBV_WR_RDMA_WRITE,
		[EPF_WR_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
		[EPF_WR_SEND] = IBV_WR_SEND,
		[EPF_WR_READ] = IBV_WR_RDMA_READ,
	};
	struct ibv_send_wr *out = &v->wrs[at];
	int sane = is_sane(v, wr), inlined;
	unsigned flags;

	v->sges[at] = local_part(v, l, wr, sane, &inlined);
	out->wr_id = enter(v, l, lane, wr, last, &flags);
	out->opcode = sane ? opcodes[wr->op] : IBV_WR_RDMA_WRITE;
	out->num_sge = v->sges[at].length != 0;
	out->send_flags = flags | (inlined ? IBV_SEND_INLINE : 0);
	out->imm_data = htonl(wr->imm);
	out->wr.rdma.remote_addr = wr->raddr;
	out->wr.rdma.rkey = wr->rkey;
}

static int post_list(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
		     const struct epf_wr *wr, unsigned n)
{
	unsigned done = 0;

	while (done < n) {
		unsigned count = n - done < EPF_VERBS_CHAIN ? n - done : EPF_VERBS_CHAIN, taken;
		struct ibv_send_wr *bad = NULL;
		uint32_t head = l->head;
		int rc;

		for (unsigned i = 0; i < count; i++)
			put_list(v, l, lane, &wr[done + i], done + i + 1 == n, i);
		/* count is 1 or more: cppcheck does not follow the loop's condition */
		/* cppcheck-suppress negativeIndex */
		v->wrs[count - 1].next = NULL;
		rc = ibv_post_send(l->qp, v->wrs, &bad);
		if (count < EPF_VERBS_CHAIN)
			/* cppcheck-suppress negativeIndex */
			v->wrs[count - 1].next = &v->wrs[count];
		v->counters.doorbells++;
		if (__builtin_expect(rc == 0, 1)) {
			done += count;
			continue;
		}
		taken = bad >= v->wrs && bad < v->wrs + count ? (unsigned)(bad - v->wrs) : 0;
		l->head = head + taken;
		done += taken;
		/*
		 * The ones taken may be without a completion of their own: a full queue with none under way would never
		 * move. Then the lane cannot go on.
		 */
		if (rc != ENOMEM || (taken && !(v->wrs[taken - 1].send_flags & IBV_SEND_SIGNALED)))
			epf_verbs_lost_lane_cold(v, lane, rc);
		break;
	}
	return (int)done;
}

int epf_verbs_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_lane *l;
	uint32_t room;
	uint64_t bytes = 0;
	int done;

	if (lane >= v->max_lanes)
		return -ENOTCONN;
	l = &v->lanes[lane];
	if (l->link != EPF_LANE_READY)
		return -ENOTCONN;
	room = l->depth - (l->head - l->tail);
	if (room > v->completions - v->outstanding)
		room = v->completions - v->outstanding;
	if (n > room)
		n = room;
	if (n == 0)
		return 0;
	done = l->qpx ? post_ex(v, l, lane, wr, n) : post_list(v, l, lane, wr, n);
	v->outstanding += (uint32_t)done;
	for (int i = 0; i < done; i++)
		bytes += wr[i].len;
	v->counters.bytes_tx += bytes;
	v->counters.messages_tx += (uint32_t)done;
	return done;
}

void epf_verbs_report_lane(struct epf_verbs *v, uint16_t lane)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	if (l->in_report)
		return;
	l->in_report = 1;
	l->next_report = EPF_VERBS_NONE;
	if (v->report_head == EPF_VERBS_NONE)
		v->report_head = lane;
	else
		v->lanes[v->report_tail].next_report = lane;
	v->report_tail = lane;
}

static void emit_sent(struct epf_verbs *v, struct out *out, uint16_t lane, uint32_t position,
		      unsigned status)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	v->outstanding -= position + 1 - l->tail;
	l->tail = position + 1;
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

/* Completions of work requests: up to `max` entries in all. */
static void take_sent(struct epf_verbs *v, struct out *out, unsigned max)
{
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
			if (__builtin_expect(wc->status != IBV_WC_SUCCESS, 0))
				failed(v, lane, position, wc->status);
			else if (!l->has_failed)
				emit_sent(v, out, lane, position, EPF_S_OK);
			if (l->gone)
				epf_verbs_report_lane(v, lane);
		}
		if (n < (int)ask)
			return;
	}
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
	struct epf_verbs_slot *slot = (struct epf_verbs_slot *)(uintptr_t)wc->wr_id;
	uint16_t lane = wc->status == IBV_WC_SUCCESS ? lane_of(v, wc->qp_num) : EPF_VERBS_NONE;
	struct epf_wc *at = &out->wc[out->n];
	int message = wc->opcode == IBV_WC_RECV;

	if (__builtin_expect(!v->srq, 0) &&
	    !epf_verbs_recv_took(v, slot, wc->qp_num, lane != EPF_VERBS_NONE))
		return;
	v->posted_receives--;
	if (__builtin_expect(lane == EPF_VERBS_NONE, 0)) {
		/* Nobody hears of it, so nobody asks for another receive. */
		slot->next = v->free_slots;
		v->free_slots = slot;
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
		slot->next = v->free_slots;
		v->free_slots = slot;
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
			return;
		}
	}
}

/* Posts what is wanted, as far as there are slots. */
static void give_receives(struct epf_verbs *v)
{
	uint32_t most = v->opts.receives - v->posted_receives;
	uint32_t n = v->wanted_receives < most ? v->wanted_receives : most;

	if (v->posted_receives + n + EPF_VERBS_SPARE > v->all_slots)
		epf_verbs_more_slots_cold(v, v->posted_receives + n + EPF_VERBS_SPARE);
	if (__builtin_expect(!v->srq, 0)) {
		epf_verbs_recv_give(v);
		return;
	}
	while (n && v->free_slots) {
		struct epf_verbs_slot *first = v->free_slots, *last = first;
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
			v->free_slots = first;
			epf_verbs_lost_receives_cold(v, 0);
			return;
		}
		v->free_slots = last->next;
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
		struct epf_verbs_slot *slot = v->read_slots;

		v->read_slots = slot->next;
		slot->next = v->free_slots;
		v->free_slots = slot;
	}
	if (__builtin_expect(v->wanted_receives != 0, 0))
		give_receives(v);
	if (__builtin_expect(v->report_head != EPF_VERBS_NONE, 0))
		report(v, &out);
	if (__builtin_expect(!v->dead, 1)) {
		/* Half of the room at first for completions, the rest after the arrivals. */
		take_sent(v, &out, n - n / 2);
		take_arrivals(v, &out);
		take_sent(v, &out, n);
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
