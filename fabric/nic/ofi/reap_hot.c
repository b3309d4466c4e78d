/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ofi NIC's data path, receiving side: completions and arrivals from the completion queue, and receives. Reading the queue is also what lets a provider with
 * manual progress work. Called by the core's step through epf_nic_ops. It must never allocate, lock or log; what the provider does in fi_cq_read(3) is
 * its own.
 */
#include "fabric/nic/ofi/ofi.h"

struct out {
	struct epf_wc *wc;
	unsigned n, max, messages;
};

/* ---- receives ---- */

static int post_slot(struct epf_ofi *v, struct epf_ofi_slot *slot)
{
	struct iovec iov = { .iov_base = slot->message, .iov_len = EPF_OFI_WIRE_BYTES };
	struct fi_msg msg = { .msg_iov = &iov,
			      .desc = &v->slot_desc,
			      .iov_count = 1,
			      .addr = FI_ADDR_UNSPEC,
			      .context = &slot->ctx };

	return (int)fi_recvmsg(v->ep, &msg, FI_COMPLETION);
}

void epf_ofi_refill(struct epf_ofi *v)
{
	uint32_t want = v->given < v->max_posted ? v->given : v->max_posted;

	while (v->posted < want && v->free_slots) {
		struct epf_ofi_slot *slot = v->free_slots;

		v->free_slots = slot->next;
		if (post_slot(v, slot)) { /* the next reap tries again */
			slot->next = v->free_slots;
			v->free_slots = slot;
			return;
		}
		v->posted++;
	}
}

void epf_ofi_post_receives(struct epf_nic *nic, unsigned n)
{
	struct epf_ofi *v = epf_ofi_of(nic);

	v->given += n;
	epf_ofi_refill(v);
}

/* ---- arrivals ---- */

static void emit_arrival(struct epf_ofi *v, struct out *out, const struct epf_ofi_held *h)
{
	int is_message = h->slot != NULL;

	out->wc[out->n++] = (struct epf_wc){
		.msg = is_message ? h->slot->message + EPF_OFI_HEADER : NULL,
		.imm = h->imm,
		.len = h->len,
		.lane = h->lane,
		.op = is_message ? EPF_WC_RECV : EPF_WC_RECV_IMM,
		.status = EPF_S_OK,
	};
	if (is_message) {
		h->slot->next = v->read_slots;
		v->read_slots = h->slot;
		out->messages++;
	}
	v->given -= v->given != 0;
	v->counters.messages_rx++;
	v->counters.bytes_rx += h->len;
}

/*
 * Reports an arrival, or keeps it until its lane is connected, or drops it if it is of an earlier generation. On a lane in error it is reported: the sender may know
 * that it has been delivered, and then nobody sends it again. All such arrivals come before what the sender says after its lane has drained, because one
 * endpoint receives both.
 */
static void arrive(struct epf_ofi *v, struct out *out, const struct epf_ofi_held *h)
{
	struct epf_ofi_lane *l = epf_ofi_lane_at(v, h->lane);

	if (__builtin_expect(!l || l->generation != h->generation, 0))
		epf_ofi_refuse_cold(v, h->slot);
	else if (__builtin_expect(l->link == EPF_LANE_IDLE, 0))
		epf_ofi_hold_cold(v, h);
	else
		emit_arrival(v, out, h);
}

static void take_message(struct epf_ofi *v, struct out *out, struct epf_ofi_slot *slot,
			 size_t bytes)
{
	struct epf_ofi_header header;
	struct epf_ofi_held h;
	const struct epf_ofi_lane *l;

	v->posted--;
	if (__builtin_expect(epf_ofi_header_decode(slot->message, bytes, &header), 0)) {
		epf_ofi_refuse_cold(v, slot);
		return;
	}
	l = epf_ofi_lane_at(v, header.to.lane);
	if (__builtin_expect(!l || l->nonce != header.to.nonce, 0)) {
		epf_ofi_refuse_cold(v, slot);
		return;
	}
	h = (struct epf_ofi_held){ .slot = header.kind == EPF_OFI_MESSAGE ? slot : NULL,
				   .imm = header.imm,
				   .len = header.len,
				   .lane = header.to.lane,
				   .generation = header.to.generation };
	if (!h.slot) {
		slot->next = v->free_slots;
		v->free_slots = slot;
	}
	arrive(v, out, &h);
}

static void take_data(struct epf_ofi *v, struct out *out, const struct fi_cq_data_entry *e)
{
	struct epf_ofi_slot *slot = e->op_context;
	struct epf_ofi_held h = { .imm = (uint32_t)(e->data >> 32),
				  .len = (uint32_t)e->len,
				  .lane = (uint16_t)e->data,
				  .generation = (uint16_t)(e->data >> 16) };

	/* Some providers consume a receive for it (FI_RX_CQ_DATA). */
	if (slot && v->consumes_receives) {
		v->posted--;
		slot->next = v->free_slots;
		v->free_slots = slot;
	}
	arrive(v, out, &h);
}

/* ---- completions ---- */

/* The provider has completed an operation. */
static void take_done(struct epf_ofi *v, struct epf_ofi_op *op)
{
	struct epf_ofi_lane *l = &v->lanes[op->lane];

	v->in_provider--;
	if (__builtin_expect(l->generation != op->generation || !l->is_used, 0)) {
		epf_ofi_op_free(v, op);
		return;
	}
	l->in_provider--;
	l->has_moved = 1;
	if (__builtin_expect(op->stage == EPF_OFI_ORPHANED, 0)) {
		op->stage = EPF_OFI_DONE;
		if (!op->is_listed)
			epf_ofi_op_free(v, op);
		return;
	}
	if (op->is_write && !v->remote_data) {
		/* The bytes are there; now the message that says so. */
		op->is_write = 0;
		if (__builtin_expect(l->link != EPF_LANE_READY, 0)) {
			epf_ofi_finish(v, op, EPF_S_FLUSHED);
			return;
		}
		op->stage = EPF_OFI_QUEUED;
		epf_ofi_append(&l->queue, op);
		epf_ofi_make_waiting(v, op->lane);
		return;
	}
	epf_ofi_finish(v, op, EPF_S_OK);
}

static void take_entry(struct epf_ofi *v, struct out *out, const struct fi_cq_data_entry *e)
{
	if (e->flags & FI_REMOTE_CQ_DATA)
		take_data(v, out, e);
	else if (e->flags & FI_RECV)
		take_message(v, out, e->op_context, e->len);
	else if (e->op_context)
		take_done(v, e->op_context);
}

/* ---- reports ---- */

static void give_done(struct epf_ofi *v, struct out *out)
{
	struct epf_ofi_op *op;

	while (out->n < out->max && (op = epf_ofi_take(&v->done))) {
		out->wc[out->n++] = (struct epf_wc){
			.id = op->id,
			.lane = op->lane,
			.op = EPF_WC_SENT,
			.status = op->status,
		};
		op->is_listed = 0;
		v->lanes[op->lane].outstanding--;
		if (op->stage == EPF_OFI_DONE)
			epf_ofi_op_free(v, op);
	}
}

/* Arrivals that waited for their lanes. */
static void give_held(struct epf_ofi *v, struct out *out)
{
	uint32_t kept = 0, i = 0;

	for (; i < v->n_held && out->n < out->max; i++) {
		struct epf_ofi_held h = v->held[i];
		const struct epf_ofi_lane *l = epf_ofi_lane_at(v, h.lane);

		if (l && l->generation == h.generation && l->link == EPF_LANE_IDLE)
			v->held[kept++] = h;
		else
			arrive(v, out, &h);
	}
	v->is_held_ready = i < v->n_held;
	while (i < v->n_held)
		v->held[kept++] = v->held[i++];
	v->n_held = kept;
}

/* Lanes that are lost, when all that was outstanding on them has been reported. */
static void give_gone(struct epf_ofi *v, struct out *out)
{
	for (uint32_t i = 0; i < v->lanes_end && v->n_gone && out->n < out->max; i++) {
		struct epf_ofi_lane *l = &v->lanes[i];

		if (!l->gone || l->outstanding)
			continue;
		out->wc[out->n++] = (struct epf_wc){
			.lane = (uint16_t)i,
			.op = EPF_WC_LANE_DOWN,
			.status = l->gone,
		};
		l->gone = 0;
		v->n_gone--;
	}
}

static void free_read(struct epf_ofi *v)
{
	while (v->read_slots) {
		struct epf_ofi_slot *slot = v->read_slots;

		v->read_slots = slot->next;
		slot->next = v->free_slots;
		v->free_slots = slot;
	}
	epf_ofi_refill(v);
}

/* Reads the completion queue; each entry gives one completion at most. */
static void read_queue(struct epf_ofi *v, struct out *out)
{
	struct fi_cq_data_entry e[EPF_OFI_BATCH];
	ssize_t n;

	do {
		size_t room = out->max - out->n;

		if (room > EPF_OFI_BATCH)
			room = EPF_OFI_BATCH;
		if (room > EPF_OFI_READ - out->messages)
			room = EPF_OFI_READ - out->messages;
		if (room == 0)
			return;
		n = fi_cq_read(v->cq, e, room);
		for (ssize_t i = 0; i < n; i++)
			take_entry(v, out, &e[i]);
		if (__builtin_expect(n == -FI_EAVAIL, 0))
			n = epf_ofi_take_error_cold(v);
		else if (__builtin_expect(n < 0 && n != -FI_EAGAIN && n != -FI_EINTR, 0))
			epf_ofi_queue_lost_cold(v, (int)-n);
		give_done(v, out);
	} while (n > 0);
}

int epf_ofi_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	struct out out = { .wc = wc, .max = n };

	free_read(v);
	give_done(v, &out);
	if (__builtin_expect(v->is_held_ready != 0, 0))
		give_held(v, &out);
	if (__builtin_expect(!v->is_lost, 1))
		read_queue(v, &out);
	give_done(v, &out);
	if (v->waiting_head != EPF_OFI_NONE) {
		epf_ofi_push_waiting(v);
		give_done(v, &out);
	}
	if (__builtin_expect(v->n_gone != 0, 0))
		give_gone(v, &out);
	return (int)out.n;
}

uint64_t epf_ofi_next_event(const struct epf_nic *nic)
{
	const struct epf_ofi *v = epf_ofi_of(nic);

	if (v->done.first || v->is_held_ready || v->n_gone)
		return 0;
	/*
	 * What FI_EAGAIN waits for may not signal the queue's descriptor. Without a descriptor an idle core looks again too: its peers' writes move only while
	 * it polls, and it cannot tell that there are any.
	 */
	if (v->waiting_head != EPF_OFI_NONE || v->wait_fd < 0)
		return v->now(v->now_arg) + EPF_OFI_RETRY_NS;
	return UINT64_MAX;
}
