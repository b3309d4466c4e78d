/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC's way out: work requests of a lane to its queue pair, by ibv_wr_* where the provider has it, by lists elsewhere. Called
 * by the core's step through epf_nic_ops. It must never allocate, lock, log or make a system call; the provider's own post is what
 * it is (on hardware memory and a doorbell; soft-RoCE enters the kernel).
 */
#include "fabric/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

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
EPF_INLINE uint64_t enter(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
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

/* A write of registered memory, which most of all work requests are: none of the questions below. */
EPF_INLINE int is_plain(const struct epf_verbs *v, const struct epf_wr *wr)
{
	return __builtin_expect(wr->op == EPF_WR_WRITE && !(wr->flags & EPF_WR_INLINE) &&
					wr->len <= v->max_msg_bytes,
				1);
}

static __attribute__((noinline)) void put_ex_other(struct epf_verbs *v, struct epf_verbs_lane *l,
						   uint16_t lane, const struct epf_wr *wr, int last)
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

EPF_INLINE void put_ex(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
		       const struct epf_wr *wr, int last)
{
	struct ibv_qp_ex *qp = l->qpx;

	if (!is_plain(v, wr)) {
		put_ex_other(v, l, lane, wr, last);
		return;
	}
	qp->wr_id = enter(v, l, lane, wr, last, &qp->wr_flags);
	ibv_wr_rdma_write(qp, wr->rkey, wr->raddr);
	ibv_wr_set_sge(qp, wr->lkey, wr->laddr, wr->len);
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

EPF_INLINE void put_list(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
			 const struct epf_wr *wr, int last, unsigned at)
{
	static const uint8_t opcodes[] = {
		[EPF_WR_WRITE] = IBV_WR_RDMA_WRITE,
		[EPF_WR_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
		[EPF_WR_SEND] = IBV_WR_SEND,
		[EPF_WR_READ] = IBV_WR_RDMA_READ,
	};
	struct ibv_send_wr *out = &v->wrs[at];
	unsigned flags;
	int sane, inlined;

	if (is_plain(v, wr)) {
		struct ibv_sge *sge = &v->sges[at];

		sge->addr = wr->laddr;
		sge->length = wr->len;
		sge->lkey = wr->lkey;
		out->wr_id = enter(v, l, lane, wr, last, &out->send_flags);
		out->opcode = IBV_WR_RDMA_WRITE;
		out->num_sge = wr->len != 0;
		out->wr.rdma.remote_addr = wr->raddr;
		out->wr.rdma.rkey = wr->rkey;
		return;
	}
	sane = is_sane(v, wr);
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
		v->counters.bytes_tx += wr[i].len;
	v->counters.messages_tx += (uint32_t)done;
	return done;
}
