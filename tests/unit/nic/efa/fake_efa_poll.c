/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended completion queues of the adapters of fake_efa.h: the functions behind ibv_start_poll(3) and its relatives. An entry
 * whose queue pair has been destroyed is taken off the queue and answered with EINVAL, as the real provider does. Test code: it
 * asserts through cmocka.
 */
#include "tests/unit/nic/efa/fake_efa_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct fake_cq *of(struct ibv_cq_ex *ex)
{
	return (struct fake_cq *)(void *)ex;
}

/* The real provider's classes, some of which hide what the device said. */
static enum ibv_wc_status status_of(unsigned vendor)
{
	switch (vendor) {
	case EPF_EFA_OK:
		return IBV_WC_SUCCESS;
	case EPF_EFA_FLUSHED:
		return IBV_WC_WR_FLUSH_ERR;
	case EPF_EFA_REMOTE_RNR:
		return IBV_WC_RNR_RETRY_EXC_ERR;
	case EPF_EFA_REMOTE_BAD_ADDRESS:
		return IBV_WC_REM_ACCESS_ERR;
	default:
		return IBV_WC_GENERAL_ERR;
	}
}

static int next(struct fake_cq *cq)
{
	struct fake_qp *qp;

	if (fake_fails("poll"))
		return fake_efa.fail_errno;
	if (cq->tail == cq->head)
		return ENOENT;
	cq->at = cq->ring[cq->tail++ % cq->size];
	qp = fake_qp_find(cq->at.qpn);
	if (!qp || qp->serial != cq->at.serial) {
		fake_efa.stale++;
		if (!fake_efa.reports_stale || cq->at.opcode != IBV_WC_RDMA_WRITE)
			return EINVAL;
	}
	cq->ex.wr_id = cq->at.wr_id;
	cq->ex.status = status_of(cq->at.vendor);
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	FAKE_LOCKED;
	int rc;

	assert_int_equal(attr->comp_mask, 0);
	assert_false(of(ex)->in_poll);
	fake_wire_progress();
	rc = next(of(ex));
	of(ex)->in_poll = rc == 0;
	return rc;
}

/* Older releases of the real provider spoil another queue pair's books when this meets an entry of one that is no more. */
static int next_poll(struct ibv_cq_ex *ex)
{
	FAKE_LOCKED;
	int rc;

	assert_true(of(ex)->in_poll);
	rc = next(of(ex));
	assert_true(rc != EINVAL);
	return rc;
}

static void end_poll(struct ibv_cq_ex *ex)
{
	assert_true(of(ex)->in_poll);
	of(ex)->in_poll = 0;
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return of(ex)->at.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
	return of(ex)->at.vendor;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return of(ex)->at.len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
	return htonl(of(ex)->at.imm);
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return of(ex)->at.qpn;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
	return of(ex)->at.src_qpn;
}

static bool is_unsolicited(struct epf_efadv_cq *dv)
{
	struct fake_cq *cq = (struct fake_cq *)(void *)((char *)dv - offsetof(struct fake_cq, dv));

	assert_true(cq->wants_unsolicited);
	return cq->at.unsolicited;
}

void fake_cq_set_ops(struct fake_cq *cq)
{
	cq->ex.start_poll = start_poll;
	cq->ex.next_poll = next_poll;
	cq->ex.end_poll = end_poll;
	cq->ex.read_opcode = read_opcode;
	cq->ex.read_vendor_err = read_vendor_err;
	cq->ex.read_byte_len = read_byte_len;
	cq->ex.read_imm_data = read_imm_data;
	cq->ex.read_qp_num = read_qp_num;
	cq->ex.read_src_qp = read_src_qp;
	if (cq->wants_unsolicited)
		cq->dv.wc_is_unsolicited = is_unsolicited;
}
