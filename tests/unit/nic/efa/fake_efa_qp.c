/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs of the adapters of fake_efa.h: making them, their states, and what is posted on them. Test code: it asserts through
 * cmocka.
 */
#include "tests/unit/nic/efa/fake_efa_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t serial;

static struct fake_qp *qp_of(struct ibv_qp_ex *ex)
{
	return (struct fake_qp *)(void *)ex;
}

static void wr_start(struct ibv_qp_ex *ex)
{
	assert_int_equal(qp_of(ex)->n_session, 0);
	qp_of(ex)->session_err = 0;
	fake_efa.posts++;
}

static struct fake_flight *current(struct ibv_qp_ex *ex)
{
	struct fake_qp *qp = qp_of(ex);

	assert_true(qp->session_err || qp->n_session > 0);
	return qp->session_err ? NULL : &qp->session[qp->n_session - 1];
}

static void begin(struct ibv_qp_ex *ex, int op, uint32_t rkey, uint64_t raddr, uint32_t imm)
{
	struct fake_qp *qp = qp_of(ex);

	if (qp->session_err)
		return;
	if (ex->qp_base.state != IBV_QPS_RTS ||
	    ex->wr_flags & ~(unsigned)(IBV_SEND_SIGNALED | IBV_SEND_INLINE) ||
	    !(ex->wr_flags & IBV_SEND_SIGNALED))
		qp->session_err = EINVAL;
	else if (qp->in_flight + qp->n_session == qp->depth)
		qp->session_err = ENOMEM;
	if (qp->session_err)
		return;
	qp->session[qp->n_session++] = (struct fake_flight){ .wr_id = ex->wr_id,
							     .op = op,
							     .rkey = rkey,
							     .raddr = raddr,
							     .imm = ntohl(imm),
							     .qpn = ex->qp_base.qp_num,
							     .serial = qp->serial };
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
	begin(ex, IBV_WR_RDMA_WRITE, rkey, raddr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, __be32 imm)
{
	begin(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, raddr, imm);
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
	begin(ex, IBV_WR_RDMA_READ, rkey, raddr, 0);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin(ex, IBV_WR_SEND, 0, 0, 0);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct fake_flight *f = current(ex);

	assert_false(ex->wr_flags & IBV_SEND_INLINE);
	if (!f)
		return;
	f->laddr = addr;
	f->lkey = lkey;
	f->len = length;
	f->has_place = 1;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct fake_flight *f = current(ex);
	struct fake_qp *qp = qp_of(ex);

	if (!f)
		return;
	if (length > qp->inline_bytes || f->op == IBV_WR_RDMA_READ ||
	    (f->op != IBV_WR_SEND && !(qp->flags & EPF_EFADV_QP_INLINE_WRITE))) {
		qp->session_err = EINVAL;
		return;
	}
	memcpy(f->bytes, addr, length);
	f->len = (uint32_t)length;
	f->is_inline = f->has_place = 1;
	fake_efa.inlined++;
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct fake_flight *f = current(ex);

	if (!f)
		return;
	f->device = ((struct fake_ah *)(void *)ah)->device;
	f->dest_qpn = qpn;
	f->qkey = qkey;
	f->has_addr = 1;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct fake_qp *qp = qp_of(ex);
	uint32_t n = qp->n_session;
	FAKE_LOCKED;

	qp->n_session = 0;
	if (fake_fails("wr_complete"))
		return fake_efa.fail_errno;
	if (qp->session_err)
		return qp->session_err;
	for (uint32_t i = 0; i < n; i++) {
		struct fake_flight *f = &qp->session[i];

		assert_true(f->has_place && f->has_addr);
		fake_wire_send(f);
		fake_efa.last_sge =
			(struct ibv_sge){ .addr = f->laddr, .length = f->len, .lkey = f->lkey };
		fake_efa.last_raddr = f->raddr;
		fake_efa.last_rkey = f->rkey;
		fake_efa.last_flags = ex->wr_flags;
	}
	qp->in_flight += n;
	fake_efa.wrs += n;
	return 0;
}

static void set_ops(struct fake_qp *qp)
{
	qp->ex.wr_start = wr_start;
	qp->ex.wr_complete = wr_complete;
	qp->ex.wr_rdma_write = wr_rdma_write;
	qp->ex.wr_rdma_write_imm = wr_rdma_write_imm;
	qp->ex.wr_rdma_read = wr_rdma_read;
	qp->ex.wr_send = wr_send;
	qp->ex.wr_set_sge = wr_set_sge;
	qp->ex.wr_set_inline_data = wr_set_inline_data;
	qp->ex.wr_set_ud_addr = wr_set_ud_addr;
}

/* What the real provider refuses, and what only a newer one knows. */
static int check_qp(const struct ibv_qp_init_attr_ex *attr, const struct epf_efadv_qp_attr *efa)
{
	const struct epf_efadv_device_attr *d = &fake_efa.attr;
	uint32_t inline_most = d->inline_buf_size_ex > d->inline_buf_size ? d->inline_buf_size_ex
									  : d->inline_buf_size;
	uint32_t sq_most = d->max_sq_wr;

	if ((efa->flags & EPF_EFADV_QP_INLINE_WRITE) || attr->cap.max_inline_data > 32)
		sq_most /= 2;
	if (attr->qp_type != IBV_QPT_DRIVER || efa->comp_mask || efa->reserved ||
	    efa->driver_qp_type != EPF_EFADV_QP_TYPE_SRD || !attr->send_cq || !attr->recv_cq ||
	    attr->srq || !(attr->comp_mask & IBV_QP_INIT_ATTR_PD) ||
	    attr->cap.max_send_wr > sq_most || attr->cap.max_recv_wr > d->max_rq_wr ||
	    attr->cap.max_send_sge > d->max_sq_sge || attr->cap.max_recv_sge > d->max_rq_sge ||
	    attr->cap.max_inline_data > inline_most)
		return EINVAL;
	if (((efa->flags & EPF_EFADV_QP_UNSOLICITED_WRITE_RECV) &&
	     !(d->device_caps & EPF_EFADV_CAP_UNSOLICITED_WRITE_RECV)) ||
	    ((efa->flags & EPF_EFADV_QP_INLINE_WRITE) &&
	     !(d->device_caps & EPF_EFADV_CAP_RDMA_WRITE)))
		return EOPNOTSUPP;
	return 0;
}

struct ibv_qp *fake_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr,
				 struct epf_efadv_qp_attr *efa, uint32_t size)
{
	uint32_t qpn = 0;
	struct fake_qp *qp;

	fake_setup();
	FAKE_LOCKED;
	assert_int_equal(size, sizeof(*efa));
	errno = check_qp(attr, efa);
	if (errno)
		return NULL;
	fake_efa.init = *attr;
	fake_efa.init_efa = *efa;
	qp = fake_make("efa_create_qp_ex", sizeof(*qp));
	if (!qp)
		return NULL;
	while (qpn < FAKE_EFA_QPNS && fake_qps[qpn]) /* numbers are used again at once */
		qpn++;
	assert_true(qpn < FAKE_EFA_QPNS);
	fake_qps[qpn] = qp;
	qp->ex.qp_base.context = ctx;
	qp->ex.qp_base.qp_num = qpn;
	qp->ex.qp_base.pd = attr->pd;
	qp->ex.qp_base.send_cq = attr->send_cq;
	qp->ex.qp_base.recv_cq = attr->recv_cq;
	qp->ex.qp_base.state = IBV_QPS_RESET;
	qp->device = fake_number_of(ctx);
	qp->serial = ++serial;
	qp->flags = efa->flags;
	qp->inline_bytes = attr->cap.max_inline_data;
	qp->depth = attr->cap.max_send_wr;
	qp->session = calloc(qp->depth, sizeof(*qp->session));
	qp->rq_size = attr->cap.max_recv_wr;
	qp->receives = calloc(qp->rq_size, sizeof(*qp->receives));
	assert_true(qp->session && qp->receives);
	set_ops(qp);
	return &qp->ex.qp_base;
}

struct ibv_qp_ex *fake_qp_to_qp_ex(struct ibv_qp *qp)
{
	return fake_fails("qp_to_qp_ex") ? NULL : (struct ibv_qp_ex *)(void *)qp;
}

/* The way up goes by its steps, each with what it needs; error and reset can be reached from everywhere. */
int fake_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *qp = (struct fake_qp *)(void *)base;
	int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	int rts = IBV_QP_STATE | IBV_QP_SQ_PSN;

	fake_setup();
	FAKE_LOCKED;
	assert_true(mask & IBV_QP_STATE);
	if (fake_fails("modify_qp"))
		return fake_efa.fail_errno;
	if (qp->is_gone)
		return EIO;
	if (fake_efa.attr.device_caps & EPF_EFADV_CAP_RNR_RETRY)
		rts |= IBV_QP_RNR_RETRY;
	if (attr->qp_state == IBV_QPS_INIT) {
		if (base->state != IBV_QPS_RESET || mask != init || attr->port_num != 1)
			return EINVAL;
		qp->qkey = attr->qkey;
	} else if (attr->qp_state == IBV_QPS_RTR) {
		if (base->state != IBV_QPS_INIT || mask != IBV_QP_STATE)
			return EINVAL;
	} else if (attr->qp_state == IBV_QPS_RTS) {
		if (base->state != IBV_QPS_RTR || mask != rts)
			return EINVAL;
		qp->rnr_retry = attr->rnr_retry;
		fake_efa.rts = *attr;
		fake_efa.rts_mask = mask;
	} else {
		fake_wire_qp_ended(qp, attr->qp_state == IBV_QPS_RESET);
	}
	base->state = attr->qp_state;
	return 0;
}

int fake_destroy_qp(struct ibv_qp *base)
{
	struct fake_qp *qp = (struct fake_qp *)(void *)base;

	fake_setup();
	FAKE_LOCKED;
	fake_wire_qp_ended(qp, 1);
	fake_qps[base->qp_num] = NULL;
	free(qp->session);
	free(qp->receives);
	fake_unmake(qp);
	return 0;
}
