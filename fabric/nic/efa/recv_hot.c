/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The EFA NIC's data path, receiving side: arrivals, and receives spread over the lanes. Called by the core's step through
 * epf_nic_ops and by post_hot.c. It must never allocate, lock, log or make a system call.
 *
 * The core gives receives to the NIC, not to a lane, and gives one for each arrival. So the sum of what is given by the number
 * of lanes is what each lane should hold (`level`), and a lane that holds less is hungry and gets its receives back round-robin. A
 * lane's share goes back into the pool with its queue pair, and the one made in its place takes it from there.
 */
#include "fabric/nic/efa/efa.h"

#include <arpa/inet.h>
#include <errno.h>

/* Posts up to n receives on a lane with one call; returns how many. */
static uint32_t feed_lane(struct epf_efa *v, uint16_t lane, uint32_t n)
{
	struct epf_rdma_slot *first = v->receives.free, *at = first, *last = NULL;
	struct ibv_recv_wr *bad = NULL;
	uint32_t count = 0;

	for (; at && count < n && count < EPF_EFA_CHAIN; at = at->next, count++) {
		if (last)
			last->wr.next = &at->wr;
		at->lane = lane;
		last = at;
	}
	if (!last)
		return 0;
	last->wr.next = NULL;
	if (__builtin_expect(ibv_post_recv(v->lanes[lane].qp, &first->wr, &bad) != 0, 0)) {
		/* Those before the bad one are posted. */
		count = 0;
		for (at = first; at && &at->wr != bad; at = at->next)
			count++;
		for (struct epf_rdma_slot *s = at; s && s != last->next; s = s->next)
			s->lane = EPF_EFA_NONE;
		v->counters.errors++;
	}
	v->receives.free = at;
	v->lanes[lane].receives += count;
	v->posted += count;
	v->pool -= count;
	return count;
}

void epf_efa_feed(struct epf_efa *v)
{
	while (v->pool && v->hungry_head != EPF_EFA_NONE) {
		uint16_t lane = v->hungry_head;
		struct epf_efa_lane *l = &v->lanes[lane];
		uint32_t most = v->level < v->lane_receives ? v->level : v->lane_receives;
		uint32_t want = most > l->receives ? most - l->receives : 0;

		v->hungry_head = l->next_hungry;
		if (v->hungry_head == EPF_EFA_NONE)
			v->hungry_tail = EPF_EFA_NONE;
		l->in_hungry = 0;
		if (want > v->pool)
			want = v->pool;
		if (!want || l->link == EPF_LANE_ERROR)
			continue;
		if (v->posted + want + EPF_EFA_SPARE > v->receives.all)
			epf_rdma_more_slots_cold(&v->receives, v->posted + want + EPF_EFA_SPARE);
		if (!feed_lane(v, lane, want)) {
			/* No slot, or refused: tried again with the next reap. */
			epf_efa_make_hungry(v, lane);
			return;
		}
		if (l->receives < most)
			epf_efa_make_hungry(v, lane);
	}
}

void epf_efa_post_receives(struct epf_nic *nic, unsigned n)
{
	struct epf_efa *v = epf_efa_of(nic);
	uint32_t unused = n < v->surplus ? n : v->surplus;
	uint32_t sum;

	v->surplus -= unused;
	v->pool += n - unused;
	sum = v->pool + v->posted;
	if (__builtin_expect(sum > v->most_receives, 0)) {
		v->most_receives = sum;
		epf_efa_all_hungry_cold(v);
	}
	epf_efa_feed(v);
}

void epf_efa_free_read(struct epf_efa *v)
{
	while (v->read_slots) {
		struct epf_rdma_slot *slot = v->read_slots;

		v->read_slots = slot->next;
		slot->next = v->receives.free;
		v->receives.free = slot;
	}
}

static void emit_arrival(struct epf_efa *v, struct epf_efa_out *out, uint16_t lane,
			 const struct epf_efa_early *e)
{
	out->wc[out->n++] = (struct epf_wc){
		.msg = e->slot ? (const void *)(uintptr_t)e->slot->sge.addr : NULL,
		.imm = e->slot ? 0 : e->imm,
		.len = e->len,
		.lane = lane,
		.op = e->slot ? EPF_WC_RECV : EPF_WC_RECV_IMM,
		.status = EPF_S_OK,
	};
	if (e->slot) {
		e->slot->next = v->read_slots;
		v->read_slots = e->slot;
	}
	v->counters.messages_rx++;
	v->counters.bytes_rx += e->len;
}

void epf_efa_drop(struct epf_efa *v, const struct epf_efa_early *e)
{
	if (e->slot) {
		e->slot->next = v->receives.free;
		v->receives.free = e->slot;
	}
	if (e->unsolicited)
		v->surplus--;
	else
		v->pool++;
}

/* From a stranger, or more than anybody was granted. */
static void refuse(struct epf_efa *v, const struct epf_efa_early *e)
{
	v->counters.errors++;
	epf_efa_drop(v, e);
}

int epf_efa_give_early(struct epf_efa *v, uint16_t lane, struct epf_efa_out *out)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	for (; l->early_out < l->n_early; l->early_out++) {
		const struct epf_efa_early *e = &l->early[l->early_out];

		if (out->n == out->max)
			return 0;
		if (e->src_qpn == l->remote_qpn)
			emit_arrival(v, out, lane, e);
		else
			refuse(v, e);
	}
	l->n_early = l->early_out = 0;
	return 1;
}

/* The receive of a completion, off its lane; NULL for an arrival that consumed none. */
static struct epf_rdma_slot *take_slot(struct epf_efa *v)
{
	struct epf_rdma_slot *slot = (struct epf_rdma_slot *)(uintptr_t)v->recv_cq->wr_id;

	if (v->recv_dv && v->recv_dv->wc_is_unsolicited(v->recv_dv))
		return NULL;
	if (!slot || slot->lane == EPF_EFA_NONE)
		return NULL;
	v->posted--;
	v->lanes[slot->lane].receives--;
	epf_efa_make_hungry(v, slot->lane);
	slot->lane = EPF_EFA_NONE;
	return slot;
}

static void arrived(struct epf_efa *v, struct epf_efa_out *out)
{
	struct ibv_cq_ex *cq = v->recv_cq;
	struct epf_rdma_slot *slot = take_slot(v);
	uint32_t qpn = ibv_wc_read_qp_num(cq);
	uint16_t lane = qpn < EPF_EFA_QPNS ? v->lane_of[qpn] : EPF_EFA_NONE;
	struct epf_efa_early e = { .slot = slot, .unsolicited = !slot };
	struct epf_efa_lane *l;

	v->surplus += !slot;
	if (__builtin_expect(cq->status != IBV_WC_SUCCESS || lane == EPF_EFA_NONE, 0)) {
		epf_efa_drop(v, &e);
		return;
	}
	l = &v->lanes[lane];
	e.len = ibv_wc_read_byte_len(cq);
	e.src_qpn = ibv_wc_read_src_qp(cq);
	if (ibv_wc_read_opcode(cq) != IBV_WC_RECV) {
		e.imm = ntohl(ibv_wc_read_imm_data(cq));
		e.slot = NULL;
		if (slot) {
			slot->next = v->receives.free;
			v->receives.free = slot;
		}
	}
	if (__builtin_expect(l->link != EPF_LANE_IDLE, 1)) {
		if (__builtin_expect(e.src_qpn == l->remote_qpn, 1))
			emit_arrival(v, out, lane, &e);
		else
			refuse(v, &e);
		return;
	}
	/* The lane's other end may send before this end is connected. */
	if (l->n_early < v->lane_receives)
		l->early[l->n_early++] = e;
	else
		refuse(v, &e);
}

int epf_efa_take_arrivals(struct epf_efa *v, struct epf_efa_out *out)
{
	int is_open = 0, rc = 0;

	for (unsigned left = out->max - out->n; left; left--) {
		rc = epf_efa_poll(v->recv_cq, &is_open, &v->stale_recvs);
		if (rc == 0)
			arrived(v, out);
		else if (rc != EINVAL)
			break;
	}
	if (is_open)
		ibv_end_poll(v->recv_cq);
	if (__builtin_expect(rc && rc != ENOENT && rc != EINVAL, 0))
		epf_efa_device_lost_cold(v);
	return rc && rc != EINVAL;
}
