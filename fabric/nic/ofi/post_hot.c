/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ofi NIC's data path, sending side: work requests become operations in the queue of their lane, and operations go to the provider until it has no room
 * (FI_EAGAIN). Called by the core's step through epf_nic_ops. It must never allocate, lock or log; what the provider does in fi_writemsg(3) is its own.
 */
#include "fabric/nic/ofi/ofi.h"

#include <string.h>

/* Payloads that the core gives along, and messages, travel from the operation's own memory: the provider may read it at any time until it is complete. */
static void copy_payload(struct epf_ofi_op *op, const struct epf_wr *wr)
{
	uint8_t *at = op->message + EPF_OFI_HEADER;

	memcpy(at, (const void *)(uintptr_t)wr->laddr, wr->len);
	op->laddr = (uint64_t)(uintptr_t)at;
	op->desc = op->message_desc;
}

/* Fills the operation. 0: the work request is wrong by itself. */
static int fill(struct epf_ofi *v, struct epf_ofi_lane *l, struct epf_ofi_op *op,
		const struct epf_wr *wr)
{
	const struct epf_ofi_region *r;

	op->raddr = wr->raddr;
	op->rkey = wr->rkey;
	op->len = wr->len;
	op->imm = wr->imm;
	op->id = wr->id;
	op->op = wr->op;
	op->is_write = wr->op == EPF_WR_WRITE_IMM && wr->len != 0;
	if (wr->len > EPF_OFI_MSG_BYTES || wr->op < EPF_WR_WRITE || wr->op > EPF_WR_READ)
		return 0;
	if ((wr->flags & EPF_WR_INLINE || wr->op == EPF_WR_SEND) && wr->len > EPF_NIC_MSG_BYTES)
		return 0;
	if (wr->op == EPF_WR_READ && wr->flags & EPF_WR_INLINE)
		return 0;
	if (wr->flags & EPF_WR_INLINE) {
		copy_payload(op, wr);
	} else if (wr->len) {
		r = epf_ofi_covering(v, wr->lkey, wr->laddr, wr->len);
		if (!r)
			return 0;
		op->laddr = wr->laddr;
		op->desc = r->desc;
		if (wr->op == EPF_WR_SEND)
			copy_payload(op, wr);
	}
	return 1;
}

static int submit_message(struct epf_ofi *v, const struct epf_ofi_lane *l, struct epf_ofi_op *op)
{
	struct epf_ofi_header h = { .to = l->remote, .imm = op->imm, .len = op->len };
	struct iovec iov = { .iov_base = op->message, .iov_len = EPF_OFI_HEADER };
	struct fi_msg msg = { .msg_iov = &iov,
			      .desc = &op->message_desc,
			      .iov_count = 1,
			      .addr = l->to,
			      .context = &op->ctx };

	h.kind = op->op == EPF_WR_SEND ? EPF_OFI_MESSAGE : EPF_OFI_NOTIFY;
	if (op->op == EPF_WR_SEND)
		iov.iov_len += op->len;
	epf_ofi_header_encode(&h, op->message);
	return (int)fi_sendmsg(v->ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

static int submit_rma(struct epf_ofi *v, const struct epf_ofi_lane *l, struct epf_ofi_op *op)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)op->laddr, .iov_len = op->len };
	struct fi_rma_iov to = { .addr = op->raddr, .len = op->len, .key = op->rkey };
	struct fi_msg_rma msg = { .msg_iov = &iov,
				  .desc = &op->desc,
				  .iov_count = 1,
				  .addr = l->to,
				  .rma_iov = &to,
				  .rma_iov_count = 1,
				  .context = &op->ctx };
	uint64_t flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;

	/* Of a READ too: without it shm takes bytes from the peer's memory and looks at no key. */
	if (op->op == EPF_WR_READ)
		return (int)fi_readmsg(v->ep, &msg, flags);
	if (op->is_write && v->remote_data) {
		msg.data = epf_ofi_data(&l->remote, op->imm);
		flags |= FI_REMOTE_CQ_DATA;
	}
	return (int)fi_writemsg(v->ep, &msg, flags);
}

/* Gives the first operation of a lane's queue to the provider. Returns 0, or what the call returned. */
static int submit(struct epf_ofi *v, uint16_t lane, struct epf_ofi_op *op)
{
	struct epf_ofi_lane *l = &v->lanes[lane];
	int is_message = op->op == EPF_WR_SEND || (op->op == EPF_WR_WRITE_IMM && !op->is_write);
	int rc = is_message ? submit_message(v, l, op) : submit_rma(v, l, op);

	if (rc)
		return rc;
	epf_ofi_take(&l->queue);
	op->stage = EPF_OFI_POSTED;
	l->in_provider++;
	v->in_provider++;
	return 0;
}

/* Posts a lane's queue as far as possible; 1: something is left, for a later reap. */
static int push(struct epf_ofi *v, uint16_t lane)
{
	struct epf_ofi_lane *l = &v->lanes[lane];
	struct epf_ofi_op *op;
	int rc = 0;

	while ((op = l->queue.first) && l->link == EPF_LANE_READY && !v->is_down) {
		if (v->in_provider == v->max_in_provider)
			return 1;
		/* Nothing to move: the address may be none. */
		if (__builtin_expect(
			    op->len == 0 && (op->op == EPF_WR_WRITE || op->op == EPF_WR_READ), 0)) {
			epf_ofi_take(&l->queue);
			epf_ofi_finish(v, op, EPF_S_OK);
			continue;
		}
		rc = submit(v, lane, op);
		if (rc == -FI_EAGAIN)
			return 1;
		if (__builtin_expect(rc != 0, 0)) {
			epf_ofi_take(&l->queue);
			epf_ofi_fail_cold(v, op, epf_ofi_status_of_cold(-rc));
		}
	}
	return l->queue.first != NULL;
}

/* Each round begins with another lane: the provider may have room for one operation only. */
static void rotate(struct epf_ofi *v)
{
	uint16_t first = v->waiting_head;

	if (first == v->waiting_tail)
		return;
	v->waiting_head = v->lanes[first].next_waiting;
	v->lanes[v->waiting_tail].next_waiting = first;
	v->lanes[first].next_waiting = EPF_OFI_NONE;
	v->waiting_tail = first;
}

/* Called with a lane that waits. */
void epf_ofi_push_waiting(struct epf_ofi *v)
{
	uint16_t last;

	rotate(v);
	last = v->waiting_tail;
	while (v->waiting_head != EPF_OFI_NONE) {
		uint16_t lane = v->waiting_head;
		struct epf_ofi_lane *l = &v->lanes[lane];

		v->waiting_head = l->next_waiting;
		if (v->waiting_head == EPF_OFI_NONE)
			v->waiting_tail = EPF_OFI_NONE;
		l->is_waiting = 0;
		if (l->is_used && push(v, lane))
			epf_ofi_make_waiting(v, lane);
		if (lane == last)
			break;
	}
}

int epf_ofi_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	struct epf_ofi_lane *l = epf_ofi_lane_at(v, lane);
	int was_empty;

	if (!l || l->link != EPF_LANE_READY)
		return -ENOTCONN;
	if (n > l->depth - l->outstanding)
		n = l->depth - l->outstanding;
	if (n == 0)
		return 0;
	if (l->outstanding == 0)
		l->has_moved = 1;
	was_empty = l->queue.first == NULL;
	for (unsigned i = 0; i < n; i++) {
		struct epf_ofi_op *op = v->free_ops;

		/* None: the provider still has those of lanes that are gone. */
		if (__builtin_expect(!op, 0)) {
			n = i;
			break;
		}
		v->free_ops = op->next;
		op->lane = lane;
		op->generation = l->generation;
		l->outstanding++;
		if (__builtin_expect(!fill(v, l, op, &wr[i]), 0)) {
			epf_ofi_fail_cold(v, op, EPF_S_LOCAL);
			n = i + 1;
			break;
		}
		op->stage = EPF_OFI_QUEUED;
		epf_ofi_append(&l->queue, op);
		v->counters.bytes_tx += wr[i].len;
		v->counters.messages_tx++;
	}
	v->counters.doorbells++;
	l->posted += n;
	if (__builtin_expect(v->opts.fail_after != 0, 0) && l->link == EPF_LANE_READY)
		epf_ofi_test_failure_cold(v, lane);
	if (was_empty && push(v, lane))
		epf_ofi_make_waiting(v, lane);
	return (int)n;
}
