/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A work request as libibverbs' ibv_wr_* functions take it: the same for reliable connections and for SRD. Inline parts of nic/verbs/post_hot.c and
 * nic/efa/post_hot.c. They must never allocate, lock, log or make a system call; the provider's own post is what it is.
 */
#ifndef EPF_FABRIC_NIC_RDMA_WR_HOT_H
#define EPF_FABRIC_NIC_RDMA_WR_HOT_H

#include "fabric/nic/nic.h"
#include "queues/epf_base.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>

/* 0: one that no device is asked to refuse: it would not, or it would disturb more than the lane. */
EPF_INLINE int epf_verbs_wr_is_sane(const struct epf_wr *wr, uint32_t max_msg_bytes)
{
	if (wr->len > max_msg_bytes)
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
 * Adds it to a session of qp, whose wr_id and wr_flags are set; one that is not sane as a write, with a place that the device refuses. *sge: the
 * local place; of an inline one (IBV_SEND_INLINE) the bytes are copied at once.
 */
EPF_INLINE void epf_verbs_wr_add(struct ibv_qp_ex *qp, const struct epf_wr *wr, int sane,
				 uint32_t rkey, uint64_t raddr, const struct ibv_sge *sge)
{
	if (sane && wr->op == EPF_WR_WRITE_IMM)
		ibv_wr_rdma_write_imm(qp, rkey, raddr, htonl(wr->imm));
	else if (sane && wr->op == EPF_WR_SEND)
		ibv_wr_send(qp);
	else if (sane && wr->op == EPF_WR_READ)
		ibv_wr_rdma_read(qp, rkey, raddr);
	else
		ibv_wr_rdma_write(qp, rkey, raddr);
	if (qp->wr_flags & IBV_SEND_INLINE)
		ibv_wr_set_inline_data(qp, (void *)(uintptr_t)sge->addr, sge->length);
	else
		ibv_wr_set_sge(qp, sge->lkey, sge->addr, sge->length);
}

#endif
