/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels between the adapters of fake_efa.h, and what is polled of it. Test code: it asserts through cmocka. Payload is
 * read when it arrives, not when it is posted, as a device may read it at any time before the completion.
 */
#include "tests/unit/nic/efa/fake_efa_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RNR_WAIT_NS = 50000, RETRY_WAIT_NS = 100000 };

static struct fake_flight *flights;
static size_t n_flights, room;
static uint64_t sequence;

void fake_wire_reset(void)
{
	free(flights);
	flights = NULL;
	n_flights = room = 0;
	sequence = 0;
}

static uint64_t now_ns(void)
{
	return fake_efa.now(fake_efa.now_arg);
}

/* A number below limit from the seed and who asks. */
static uint64_t chance(uint64_t who, uint64_t limit)
{
	uint64_t x = fake_efa.seed * 0x9e3779b97f4a7c15ull + who * 0xbf58476d1ce4e5b9ull;

	x ^= x >> 31;
	x *= 0x94d049bb133111ebull;
	x ^= x >> 29;
	return limit ? x % limit : 0;
}

static void add_flight(const struct fake_flight *f)
{
	if (n_flights == room) {
		room = room ? 2 * room : 256;
		flights = realloc(flights, room * sizeof(*flights));
		assert_non_null(flights);
	}
	flights[n_flights++] = *f;
}

static struct fake_cq *cq_of(struct ibv_cq *cq)
{
	return (struct fake_cq *)(void *)cq;
}

static void push(struct fake_cq *cq, const struct fake_cqe *e)
{
	assert_true(cq->head - cq->tail < cq->size); /* an overrun would be the end of the queue */
	cq->ring[cq->head++ % cq->size] = *e;
	if (cq->is_armed && cq->channel) {
		struct ibv_cq *at = (struct ibv_cq *)(void *)cq;

		cq->is_armed = 0;
		assert_int_equal(write(cq->channel->wake_fd, &at, sizeof(at)), sizeof(at));
	}
}

/* The queue pair that a work request came from, if it is still that one. */
static struct fake_qp *sender_of(const struct fake_flight *f)
{
	struct fake_qp *qp = fake_qp_find(f->qpn);

	return qp && qp->serial == f->serial ? qp : NULL;
}

static void complete(struct fake_qp *qp, const struct fake_flight *f, unsigned vendor)
{
	qp->in_flight--;
	push(cq_of(qp->ex.qp_base.send_cq), &(struct fake_cqe){ .wr_id = f->wr_id,
								.vendor = vendor,
								.qpn = f->qpn,
								.serial = f->serial,
								.opcode = IBV_WC_RDMA_WRITE });
}

/* Sends the outcome back. */
static void answer(struct fake_flight f, unsigned status, uint64_t now)
{
	if (f.is_orphan)
		return;
	if (status == EPF_EFA_OK && fake_efa.lose_acks) {
		fake_efa.lose_acks--;
		return;
	}
	f.is_ack = 1;
	f.status = status;
	f.seq = ++sequence;
	f.due = now + chance(f.seq, fake_efa.delay_ns + 1);
	add_flight(&f);
}

/* Again later, or an error when patience is over. */
static void wait_for(struct fake_flight f, uint64_t step, uint64_t patience, unsigned status,
		     uint64_t now)
{
	if (now - f.posted_ns >= patience) {
		answer(f, status, now);
		return;
	}
	f.due = now + step;
	if (f.due > f.posted_ns + patience)
		f.due = f.posted_ns + patience;
	add_flight(&f);
}

static void arrive(struct fake_qp *to, const struct fake_flight *f, const struct fake_rwr *r)
{
	push(cq_of(to->ex.qp_base.recv_cq),
	     &(struct fake_cqe){ .wr_id = r ? r->wr_id : 0,
				 .len = f->len,
				 .imm = f->imm,
				 .qpn = to->ex.qp_base.qp_num,
				 .src_qpn = f->qpn,
				 .serial = to->serial,
				 .opcode = f->op == IBV_WR_SEND ? IBV_WC_RECV
								: IBV_WC_RECV_RDMA_WITH_IMM,
				 .unsolicited = !r });
}

static const void *payload(const struct fake_flight *f)
{
	return f->is_inline ? f->bytes : (const void *)(uintptr_t)f->laddr;
}

/* What a request finds at its target; EPF_EFA_OK: it has taken effect there. *wait: nothing yet, for want of a receive. */
static unsigned take_effect(struct fake_qp *to, const struct fake_flight *f, int *wait)
{
	int is_send = f->op == IBV_WR_SEND, is_read = f->op == IBV_WR_RDMA_READ;
	int raises = is_send || f->op == IBV_WR_RDMA_WRITE_WITH_IMM;
	int unsolicited = !is_send && (to->flags & EPF_EFADV_QP_UNSOLICITED_WRITE_RECV);
	struct fake_rwr *r = NULL;

	if (!is_send && !fake_mr_allows(to->ex.qp_base.pd, f->rkey, f->raddr, f->len,
					is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE))
		return EPF_EFA_REMOTE_BAD_ADDRESS;
	/* The two ends of a write with immediate must be of one kind. */
	if (f->op == IBV_WR_RDMA_WRITE_WITH_IMM &&
	    ((to->flags ^ fake_qp_find(f->qpn)->flags) & EPF_EFADV_QP_UNSOLICITED_WRITE_RECV))
		return EPF_EFA_REMOTE_FEATURE_MISMATCH;
	if (raises && !unsolicited) {
		if (to->rq_head == to->rq_tail) {
			*wait = 1;
			return EPF_EFA_OK;
		}
		r = &to->receives[to->rq_tail++ % to->rq_size];
	}
	if (is_send && f->len > r->sge.length)
		return EPF_EFA_REMOTE_BAD_LENGTH;
	if (is_send) {
		assert_true(fake_mr_allows(to->ex.qp_base.pd, r->sge.lkey, r->sge.addr,
					   r->sge.length, IBV_ACCESS_LOCAL_WRITE));
		memcpy((void *)(uintptr_t)r->sge.addr, payload(f), f->len);
	} else if (!is_read && f->len) {
		memcpy((void *)(uintptr_t)f->raddr, payload(f), f->len);
	}
	if (raises)
		arrive(to, f, r);
	fake_efa.unsolicited += raises && unsolicited;
	return EPF_EFA_OK;
}

static int is_receiving(const struct fake_qp *qp)
{
	return qp && (qp->ex.qp_base.state == IBV_QPS_RTR || qp->ex.qp_base.state == IBV_QPS_RTS);
}

static void request(struct fake_flight f, uint64_t now)
{
	struct fake_qp *from = sender_of(&f), *to = fake_qp_find(f.dest_qpn);
	unsigned status;
	int wait = 0;

	if (!from || from->is_gone)
		return;
	if (f.len > fake_efa.attr.max_rdma_size)
		answer(f, EPF_EFA_LOCAL_BAD_LENGTH, now);
	else if (!f.is_inline &&
		 !fake_mr_allows(from->ex.qp_base.pd, f.lkey, f.laddr, f.len,
				 f.op == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0))
		answer(f, EPF_EFA_LOCAL_INVALID_LKEY, now);
	else if (fake_efa.is_cut || fake_efa.down_device == from->device + 1 ||
		 fake_efa.down_device == f.device + 1 || (to && to->is_gone))
		wait_for(f, RETRY_WAIT_NS, fake_efa.retry_timeout_ns, EPF_EFA_UNRESPONSIVE_REMOTE,
			 now);
	else if (!is_receiving(to) || to->device != f.device || to->qkey != f.qkey)
		answer(f, EPF_EFA_REMOTE_BAD_DEST_QPN, now);
	else {
		if (fake_efa.break_next == 1) {
			fake_efa.break_next = 0;
			answer(f, fake_efa.break_status, now);
			return;
		}
		status = take_effect(to, &f, &wait);
		if (fake_efa.break_next && !wait) {
			fake_efa.break_next = 0;
			status = fake_efa.break_status;
		}
		fake_efa.rnrs += (unsigned)wait;
		if (wait && from->rnr_retry == 7)
			wait_for(f, RNR_WAIT_NS, UINT64_MAX, 0, now);
		else if (wait)
			wait_for(f, RNR_WAIT_NS, fake_efa.rnr_timeout_ns, EPF_EFA_REMOTE_RNR, now);
		else
			answer(f, status, now);
	}
}

/* The outcome is back: bytes of a read land, and the completion is there. */
static void finish(const struct fake_flight *f)
{
	struct fake_qp *qp = sender_of(f), *to = fake_qp_find(f->dest_qpn);
	unsigned status = f->status;

	if (!qp || qp->is_gone || qp->ex.qp_base.state != IBV_QPS_RTS)
		return;
	if (status == EPF_EFA_OK && f->op == IBV_WR_RDMA_READ) {
		if (!is_receiving(to))
			status = EPF_EFA_REMOTE_BAD_DEST_QPN;
		else if (!fake_mr_allows(qp->ex.qp_base.pd, f->lkey, f->laddr, f->len,
					 IBV_ACCESS_LOCAL_WRITE))
			status = EPF_EFA_LOCAL_INVALID_LKEY;
		else
			memcpy((void *)(uintptr_t)f->laddr, (const void *)(uintptr_t)f->raddr,
			       f->len);
	}
	complete(qp, f, status);
}

static size_t earliest(void)
{
	size_t best = 0;

	for (size_t i = 1; i < n_flights; i++)
		if (flights[i].due < flights[best].due ||
		    (flights[i].due == flights[best].due && flights[i].seq < flights[best].seq))
			best = i;
	return best;
}

/* Everything that is due. */
void fake_wire_progress(void)
{
	uint64_t now = now_ns(), last = 0;

	while (n_flights) {
		size_t at = earliest();
		struct fake_flight f = flights[at];

		if (f.due > now)
			return;
		flights[at] = flights[--n_flights];
		if (f.is_ack) {
			finish(&f);
			continue;
		}
		fake_efa.overtaken += f.seq < last;
		last = f.seq > last ? f.seq : last;
		request(f, now);
	}
}

uint64_t fake_efa_next(void)
{
	return n_flights ? flights[earliest()].due : UINT64_MAX;
}

void fake_wire_qp_ended(struct fake_qp *qp, int gone)
{
	size_t kept = 0;

	for (size_t i = 0; i < n_flights; i++) {
		struct fake_flight *f = &flights[i];

		if (f->qpn == qp->ex.qp_base.qp_num && f->serial == qp->serial && !f->is_orphan) {
			if (!gone && !fake_efa.no_flush) {
				complete(qp, f, EPF_EFA_FLUSHED);
				fake_efa.flushes++;
			}
			/* What the device has in hand may still land, until it lets go. */
			f->is_orphan = 1;
			if (gone || f->is_ack || chance(f->seq, 2))
				continue;
		} else if (f->qpn == qp->ex.qp_base.qp_num && f->serial == qp->serial && gone) {
			continue;
		}
		flights[kept++] = *f;
	}
	n_flights = kept;
	for (; !gone && !fake_efa.no_flush && qp->rq_tail != qp->rq_head; qp->rq_tail++)
		push(cq_of(qp->ex.qp_base.recv_cq),
		     &(struct fake_cqe){ .wr_id = qp->receives[qp->rq_tail % qp->rq_size].wr_id,
					 .vendor = EPF_EFA_FLUSHED,
					 .qpn = qp->ex.qp_base.qp_num,
					 .serial = qp->serial,
					 .opcode = IBV_WC_RECV });
}

int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)(void *)base;
	FAKE_LOCKED;

	fake_efa.recv_posts++;
	for (; wr; wr = wr->next) {
		*bad = wr;
		if (fake_fails("post_recv"))
			return fake_efa.fail_errno;
		if (base->state == IBV_QPS_RESET || base->state == IBV_QPS_ERR)
			return EINVAL;
		if (qp->rq_head - qp->rq_tail == qp->rq_size)
			return ENOMEM;
		assert_int_equal(wr->num_sge, 1);
		assert_true(wr->wr_id != 0);
		qp->receives[qp->rq_head++ % qp->rq_size] =
			(struct fake_rwr){ .wr_id = wr->wr_id, .sge = *wr->sg_list };
	}
	return 0;
}

unsigned fake_efa_receives(uint32_t qpn)
{
	const struct fake_qp *qp = fake_qp_find(qpn);

	return qp->rq_head - qp->rq_tail;
}

void fake_efa_intrude(uint32_t qpn, uint32_t src_qpn, const void *bytes, uint32_t len, uint32_t imm)
{
	struct fake_qp *to = fake_qp_find(qpn);
	struct fake_flight f = { .op = bytes ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM,
				 .len = len,
				 .imm = imm,
				 .qpn = src_qpn };
	struct fake_rwr *r = NULL;

	if (bytes || !(to->flags & EPF_EFADV_QP_UNSOLICITED_WRITE_RECV))
		r = &to->receives[to->rq_tail++ % to->rq_size];
	if (bytes)
		memcpy((void *)(uintptr_t)r->sge.addr, bytes, len);
	arrive(to, &f, r);
}

void fake_wire_send(struct fake_flight *f)
{
	f->seq = ++sequence;
	f->posted_ns = now_ns();
	f->due = f->posted_ns + chance(f->seq, fake_efa.delay_ns + 1);
	add_flight(f);
}
