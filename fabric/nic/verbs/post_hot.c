/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC's way out: work requests of a lane to its queue pair, by ibv_wr_* where the provider has it, by lists elsewhere. Called
 * by the core's step through epf_nic_ops. It must never allocate, lock, log or make a system call; the provider's own post is what
 * it is (on hardware memory and a doorbell; soft-RoCE enters the kernel).
 */
#include "fabric/nic/rdma/wr_hot.h"
#include "fabric/nic/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

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
				1) != 0;
}

static __attribute__((noinline)) void put_ex_other(struct epf_verbs *v, struct epf_verbs_lane *l,
						   uint16_t lane, const struct epf_wr *wr, int last)
{
	struct ibv_qp_ex *qp = l->qpx;
	int sane = epf_verbs_wr_is_sane(wr, v->max_msg_bytes), inlined;
	struct ibv_sge sge = local_part(v, l, wr, sane, &inlined);
	unsigned flags;

	qp->wr_id = enter(v, l, lane, wr, last, &flags);
	qp->wr_flags = flags | (inlined ? IBV_SEND_INLINE : 0);
	epf_verbs_wr_add(qp, wr, sane, wr->rkey, wr->raddr, &sge);
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

/* The last `count` of the prepared work requests are a list: nothing behind them, and no link of it has to be written. */
EPF_INLINE unsigned list_at(unsigned count)
{
	return EPF_VERBS_CHAIN - count;
}

/* A plain write as the prepared work request `at`; all of it that is not the same in all. */
EPF_INLINE void fill_plain(struct epf_verbs *v, const struct epf_wr *wr, uint64_t wr_id,
			   unsigned flags, unsigned at)
{
	struct ibv_send_wr *out = &v->wrs[at];
	struct ibv_sge *sge = &v->sges[at];

	sge->addr = wr->laddr;
	sge->length = wr->len;
	sge->lkey = wr->lkey;
	out->wr_id = wr_id;
	out->send_flags = flags;
	out->opcode = IBV_WR_RDMA_WRITE;
	out->num_sge = wr->len != 0;
	out->wr.rdma.remote_addr = wr->raddr;
	out->wr.rdma.rkey = wr->rkey;
}

static __attribute__((noinline)) void put_list_other(struct epf_verbs *v, struct epf_verbs_lane *l,
						     uint16_t lane, const struct epf_wr *wr,
						     int last, unsigned at)
{
	static const uint8_t opcodes[] = {
		[EPF_WR_WRITE] = IBV_WR_RDMA_WRITE,
		[EPF_WR_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
		[EPF_WR_SEND] = IBV_WR_SEND,
		[EPF_WR_READ] = IBV_WR_RDMA_READ,
	};
	struct ibv_send_wr *out = &v->wrs[at];
	int sane = epf_verbs_wr_is_sane(wr, v->max_msg_bytes), inlined;
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

EPF_INLINE void put_list(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
			 const struct epf_wr *wr, int last, unsigned at)
{
	unsigned flags;
	uint64_t wr_id;

	if (!is_plain(v, wr)) {
		put_list_other(v, l, lane, wr, last, at);
		return;
	}
	wr_id = enter(v, l, lane, wr, last, &flags);
	fill_plain(v, wr, wr_id, flags, at);
}

static int post_list(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
		     const struct epf_wr *wr, unsigned n)
{
	unsigned done = 0;

	while (done < n) {
		unsigned count = n - done < EPF_VERBS_CHAIN ? n - done : EPF_VERBS_CHAIN, taken;
		struct ibv_send_wr *first = &v->wrs[list_at(count)], *bad = NULL;
		uint32_t head = l->head;
		int rc;

		for (unsigned i = 0; i < count; i++)
			put_list(v, l, lane, &wr[done + i], done + i + 1 == n, list_at(count) + i);
		rc = ibv_post_send(l->qp, first, &bad);
		v->counters.doorbells++;
		if (__builtin_expect(rc == 0, 1)) {
			done += count;
			continue;
		}
		taken = bad >= first && bad < first + count ? (unsigned)(bad - first) : 0;
		l->head = head + taken;
		done += taken;
		/*
		 * The accepted ones may lack a completion: a full queue with none under way would never
		 * move. Then the lane cannot go on.
		 */
		if (rc != ENOMEM || (taken && !(first[taken - 1].send_flags & IBV_SEND_SIGNALED)))
			epf_verbs_lost_lane_cold(v, lane, rc);
		break;
	}
	return (int)done;
}

/* Several work requests, or one of the rarer kinds; the caller has found room. */
static __attribute__((noinline)) int post_several(struct epf_verbs *v, struct epf_verbs_lane *l,
						  uint16_t lane, const struct epf_wr *wr,
						  unsigned n)
{
	int done = l->qpx ? post_ex(v, l, lane, wr, n) : post_list(v, l, lane, wr, n);
	uint64_t bytes = 0;

	v->outstanding += (uint32_t)done;
	for (int i = 0; i < done; i++)
		bytes += wr[i].len;
	v->counters.bytes_tx += bytes;
	v->counters.messages_tx += (uint32_t)done;
	return done;
}

/* One plain write: what post_several() does for it, without its loops. Where commands come singly, each pays for a whole post. */
EPF_INLINE int post_one(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
			const struct epf_wr *wr)
{
	uint64_t wr_id = epf_verbs_wr_id(lane, l->generation, l->head);
	struct ibv_qp_ex *qp = l->qpx;
	struct ibv_send_wr *bad;
	int rc;

	l->ids[l->head & l->mask] = wr->id;
	l->quiet = 0;
	v->counters.doorbells++;
	if (qp) {
		ibv_wr_start(qp);
		qp->wr_id = wr_id;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qp, wr->rkey, wr->raddr);
		ibv_wr_set_sge(qp, wr->lkey, wr->laddr, wr->len);
		rc = ibv_wr_complete(qp);
	} else {
		fill_plain(v, wr, wr_id, IBV_SEND_SIGNALED, list_at(1));
		rc = ibv_post_send(l->qp, &v->wrs[list_at(1)], &bad);
	}
	if (__builtin_expect(rc != 0, 0)) {
		if (rc != ENOMEM)
			epf_verbs_lost_lane_cold(v, lane, rc);
		return 0;
	}
	l->head++;
	v->outstanding++;
	v->counters.bytes_tx += wr->len;
	v->counters.messages_tx++;
	return 1;
}

int epf_verbs_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_lane *l;
	uint32_t room, left;

	if (lane >= v->max_lanes)
		return -ENOTCONN;
	l = &v->lanes[lane];
	if (l->link != EPF_LANE_READY)
		return -ENOTCONN;
	room = l->depth - (l->head - l->tail);
	left = v->completions - v->outstanding;
	if (!room || !left || !n)
		return 0;
	if (n == 1 && is_plain(v, wr))
		return post_one(v, l, lane, wr);
	if (room > left)
		room = left;
	return post_several(v, l, lane, wr, n < room ? n : room);
}
