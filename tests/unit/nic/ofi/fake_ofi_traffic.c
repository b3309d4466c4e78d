/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic of the fake libfabric: completion queues, endpoints and what goes between them. */
#include "tests/unit/nic/ofi/fake_ofi_impl.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EPS = 64, ENTRIES = 16384, RECVS = 4096 };

struct entry {
	struct fi_cq_data_entry e;
	int err;
};

struct fake_cq {
	struct fid_cq cq;
	struct entry entries[ENTRIES];
	unsigned head, tail;
	struct entry held[ENTRIES];
	unsigned n_held;
};

struct recv_slot {
	void *buf, *context;
	size_t len;
};

struct fake_ep {
	struct fid_ep ep;
	void *domain;
	struct fake_cq *cq;
	uint32_t id;
	struct recv_slot recvs[RECVS];
	unsigned recv_head, recv_tail;

	struct {
		uint8_t bytes[256];
		size_t len;
	} early[256];

	unsigned n_early;
};

static struct fake_ep *eps[EPS];
static uint32_t next_id = 1;

/* ---- completion queues ---- */

static void push(struct fake_cq *cq, struct entry e)
{
	assert_true(cq->tail - cq->head < ENTRIES);
	cq->entries[cq->tail++ % ENTRIES] = e;
}

/* Of an operation. */
static void complete(struct fake_cq *cq, struct entry e)
{
	if (fake_ofi.hold) {
		assert_true(cq->n_held < ENTRIES);
		cq->held[cq->n_held++] = e;
	} else {
		push(cq, e);
	}
}

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t count)
{
	struct fake_cq *cq = (struct fake_cq *)fid;
	struct fi_cq_data_entry *out = buf;
	size_t n = 0;

	if (fake_ofi.is_lost)
		return -FI_EIO;
	if (!fake_ofi.hold) {
		for (unsigned i = 0; i < cq->n_held; i++)
			push(cq, cq->held[i]);
		cq->n_held = 0;
	}
	for (; n < count && cq->head != cq->tail; cq->head++) {
		struct entry *e = &cq->entries[cq->head % ENTRIES];

		if (e->err)
			return n ? (ssize_t)n : -FI_EAVAIL;
		out[n++] = e->e;
	}
	return n ? (ssize_t)n : -FI_EAGAIN;
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *out, uint64_t flags)
{
	struct fake_cq *cq = (struct fake_cq *)fid;
	struct entry *e = &cq->entries[cq->head % ENTRIES];

	if (cq->head == cq->tail || !e->err)
		return -FI_EAGAIN;
	*out = (struct fi_cq_err_entry){ .op_context = e->e.op_context,
					 .flags = e->e.flags,
					 .err = e->err };
	cq->head++;
	return 1;
}

static int no_control(struct fid *fid, int command, void *arg)
{
	return -FI_ENOSYS;
}

int fake_ofi_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out,
		     void *context)
{
	static struct fi_ops ops = { .close = fake_ofi_free, .control = no_control };
	static struct fi_ops_cq cq_ops = { .read = cq_read, .readerr = cq_readerr };
	struct fake_cq *cq;

	if (attr->wait_obj != FI_WAIT_NONE)
		return -FI_ENOSYS;
	cq = fake_ofi_fails("cq") ? NULL : calloc(1, sizeof(*cq));
	if (!cq)
		return -FI_EIO;
	cq->cq.fid.ops = &ops;
	cq->cq.ops = &cq_ops;
	fake_ofi.live++;
	*out = &cq->cq;
	return 0;
}

/* ---- endpoints ---- */

static struct fake_ep *ep_of(fi_addr_t addr)
{
	for (unsigned i = 0; i < EPS; i++)
		if (eps[i] && eps[i]->id == addr)
			return eps[i];
	return NULL;
}

static int post(void)
{
	int rc = fake_ofi.fail_post;

	if (fake_ofi.again) {
		fake_ofi.again -= fake_ofi.again > 0;
		return -FI_EAGAIN;
	}
	fake_ofi.fail_post = 0;
	fake_ofi.posts++;
	return -rc;
}

static void deliver(struct fake_ep *to, const void *bytes, size_t len)
{
	struct recv_slot *r = &to->recvs[to->recv_head % RECVS];

	assert_true(r->len >= len);
	to->recv_head++;
	memcpy(r->buf, bytes, len);
	push(to->cq,
	     (struct entry){
		     .e = { .op_context = r->context, .flags = FI_RECV | FI_MSG, .len = len } });
}

static void arrive(struct fake_ep *to, const void *bytes, size_t len)
{
	if (to->recv_head != to->recv_tail) {
		deliver(to, bytes, len);
		return;
	}
	assert_true(to->n_early < 256 && len <= 256);
	memcpy(to->early[to->n_early].bytes, bytes, len);
	to->early[to->n_early++].len = len;
}

static ssize_t recvmsg_(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	struct fake_ep *ep = (struct fake_ep *)fid;

	if (ep->recv_tail - ep->recv_head == fake_ofi.rx_size)
		return -FI_EAGAIN;
	fake_ofi_check_local(msg->desc[0], msg->msg_iov, FI_RECV);
	ep->recvs[ep->recv_tail++ % RECVS] = (struct recv_slot){ .buf = msg->msg_iov->iov_base,
								 .len = msg->msg_iov->iov_len,
								 .context = msg->context };
	if (ep->n_early) {
		deliver(ep, ep->early[0].bytes, ep->early[0].len);
		memmove(&ep->early[0], &ep->early[1], --ep->n_early * sizeof(ep->early[0]));
	}
	return 0;
}

static ssize_t sendmsg_(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	struct fake_ep *ep = (struct fake_ep *)fid, *to = ep_of(msg->addr);
	struct entry e = { .e = { .op_context = msg->context, .flags = FI_SEND | FI_MSG },
			   .err = fake_ofi.fail };
	ssize_t rc = post();

	if (rc)
		return rc;
	assert_true((flags & (FI_DELIVERY_COMPLETE | FI_COMPLETION)) ==
		    (FI_DELIVERY_COMPLETE | FI_COMPLETION));
	fake_ofi_check_local(msg->desc[0], msg->msg_iov, FI_SEND);
	fake_ofi.messages++;
	fake_ofi.fail = 0;
	if (!to)
		e.err = e.err ? e.err : FI_EHOSTUNREACH;
	if (!e.err)
		arrive(to, msg->msg_iov->iov_base, msg->msg_iov->iov_len);
	complete(ep->cq, e);
	return 0;
}

/* The place that a peer's request names, or NULL. */
static uint8_t *place_of(const struct fake_ep *to, const struct fi_rma_iov *iov, uint64_t access)
{
	const struct fake_mr *m = to ? fake_ofi_find(to->domain, iov->key) : NULL;
	uint64_t base, at;

	if (!m || !m->is_enabled || !(m->access & access))
		return NULL;
	base = fake_ofi.mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)m->base : 0;
	at = iov->addr - base;
	return iov->addr >= base && iov->len <= m->len && at <= m->len - iov->len ? m->base + at
										  : NULL;
}

static ssize_t rma(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags, bool is_read)
{
	struct fake_ep *ep = (struct fake_ep *)fid, *to = ep_of(msg->addr);
	uint64_t access = is_read ? FI_REMOTE_READ : FI_REMOTE_WRITE;
	uint8_t *at = place_of(to, msg->rma_iov, access);
	struct entry e = { .e = { .op_context = msg->context, .flags = FI_RMA },
			   .err = fake_ofi.fail };
	ssize_t rc = post();

	if (rc)
		return rc;
	assert_true(flags & FI_DELIVERY_COMPLETE);
	fake_ofi_check_local(msg->desc[0], msg->msg_iov, is_read ? FI_READ : FI_WRITE);
	fake_ofi.fail = 0;
	if (!e.err && !at)
		e.err = FI_EACCES;
	if (!e.err && is_read)
		memcpy(msg->msg_iov->iov_base, at, msg->rma_iov->len);
	if (!e.err && !is_read)
		memcpy(at, msg->msg_iov->iov_base, msg->rma_iov->len);
	if (!e.err && flags & FI_REMOTE_CQ_DATA) {
		struct entry arrival = { .e = { .flags = FI_RMA | FI_REMOTE_WRITE |
							 FI_REMOTE_CQ_DATA,
						.len = msg->rma_iov->len,
						.data = msg->data } };

		assert_true(fake_ofi.cq_data_size >= 8);
		fake_ofi.data_writes++;
		if (fake_ofi.mode & FI_RX_CQ_DATA) {
			assert_true(to->recv_head != to->recv_tail);
			arrival.e.op_context = to->recvs[to->recv_head++ % RECVS].context;
		}
		push(to->cq, arrival);
	}
	complete(ep->cq, e);
	return 0;
}

static ssize_t writemsg_(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	return rma(fid, msg, flags, false);
}

static ssize_t readmsg_(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	return rma(fid, msg, flags, true);
}

static int ep_bind(struct fid *fid, struct fid *with, uint64_t flags)
{
	if (flags)
		((struct fake_ep *)fid)->cq = (struct fake_cq *)with;
	return 0;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
	return command == FI_ENABLE ? fake_ofi_fails("enable") : -FI_ENOSYS;
}

static int ep_close(struct fid *fid)
{
	for (unsigned i = 0; i < EPS; i++)
		if (eps[i] && &eps[i]->ep.fid == fid)
			eps[i] = NULL;
	return fake_ofi_free(fid);
}

static int getname_(fid_t fid, void *name, size_t *len)
{
	memcpy(name, &((struct fake_ep *)fid)->id, 4);
	*len = 4;
	return 0;
}

int fake_ofi_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out,
		      void *context)
{
	static struct fi_ops ops = { .close = ep_close, .bind = ep_bind, .control = ep_control };
	static struct fi_ops_cm cm = { .getname = getname_ };
	static struct fi_ops_msg msg = { .recvmsg = recvmsg_, .sendmsg = sendmsg_ };
	static struct fi_ops_rma rma_ops = { .readmsg = readmsg_, .writemsg = writemsg_ };
	struct fake_ep *ep = fake_ofi_fails("endpoint") ? NULL : calloc(1, sizeof(*ep));
	unsigned i = 0;

	if (!ep)
		return -FI_EIO;
	while (i < EPS && eps[i])
		i++;
	assert_true(i < EPS);
	ep->ep.fid.ops = &ops;
	ep->ep.cm = &cm;
	ep->ep.msg = &msg;
	ep->ep.rma = &rma_ops;
	ep->domain = domain;
	ep->id = next_id++;
	eps[i] = ep;
	fake_ofi.live++;
	*out = &ep->ep;
	return 0;
}

void fake_ofi_message(const void *name, const void *bytes, size_t len)
{
	uint32_t id;

	memcpy(&id, name, 4);
	arrive(ep_of(id), bytes, len);
}

void fake_ofi_data(const void *name, uint64_t data)
{
	uint32_t id;

	memcpy(&id, name, 4);
	push(ep_of(id)->cq,
	     (struct entry){ .e = { .flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
				    .data = data } });
}
