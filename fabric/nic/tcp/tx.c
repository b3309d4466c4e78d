/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending: work requests and answers become trains, and go to the socket from the memory that they name. Called by the core's step, through post() and reap();
 * makes system calls, never blocks, allocates nothing.
 */
#include "fabric/nic/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* As sendmsg(2), of what is left of the open train. */
static ssize_t send_some(struct epf_tcp_lane *l)
{
	struct epf_tcp_tx *tx = &l->tx;
	struct msghdr msg = { .msg_iov = &tx->iov[tx->at_iov],
			      .msg_iovlen = tx->n_iov - tx->at_iov };

	if (l->seal)
		return epf_tcp_seal_send(l->seal, l->fd, msg.msg_iov, msg.msg_iovlen);
	return sendmsg(l->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The socket takes what it can of the open train. 1: all of it. */
static int push(struct epf_tcp *t, struct epf_tcp_lane *l, uint64_t *budget)
{
	struct epf_tcp_tx *tx = &l->tx;

	while (epf_tcp_is_sending(l)) {
		ssize_t n = send_some(l);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			if (errno == EAGAIN)
				tx->is_writable = false;
			else
				epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, strerror(errno));
			return 0;
		}
		t->counters.doorbells++;
		t->nic.served++;
		*budget -= (uint64_t)n < *budget ? (uint64_t)n : *budget;
		while (n && (size_t)n >= tx->iov[tx->at_iov].iov_len)
			n -= (ssize_t)tx->iov[tx->at_iov++].iov_len;
		if (n) {
			struct iovec *v = &tx->iov[tx->at_iov];

			v->iov_base = (uint8_t *)v->iov_base + n;
			v->iov_len -= (size_t)n;
		}
	}
	if (l->gpu)
		epf_tcp_gpu_train_sent(l);
	return 1;
}

/* A train that is being built. */
struct train {
	struct epf_tcp_head head;
	uint32_t sends;
	uint32_t short_bytes; /* of the payloads copied to tx->shorts */
	struct iovec *shorts; /* where the next short payload is added; NULL: a new entry */
	uint8_t *at;
};

static int has_room(const struct train *train)
{
	return train->head.count < EPF_TCP_TRAIN && train->head.bytes < EPF_TCP_TRAIN_BYTES;
}

/* Copies a short payload. Consecutive ones share an entry of the list. */
static void add_short(struct epf_tcp_tx *tx, struct train *train, uint64_t payload, uint32_t bytes)
{
	uint8_t *at = tx->shorts + train->short_bytes;

	if (!train->shorts) {
		train->shorts = &tx->iov[tx->n_iov++];
		*train->shorts = (struct iovec){ at, 0 };
	}
	memcpy(at, (const void *)(uintptr_t)payload, bytes);
	train->shorts->iov_len += bytes;
	train->short_bytes += bytes;
}

static void add(struct epf_tcp_tx *tx, struct train *train, const struct epf_tcp_desc *d,
		uint64_t payload)
{
	uint32_t bytes = epf_tcp_payload(d);

	epf_tcp_desc_encode(d, train->at);
	train->at += EPF_TCP_DESC_BYTES;
	train->head.count++;
	train->head.bytes += bytes;
	if (!bytes)
		return;
	if (bytes <= EPF_TCP_SHORT && train->short_bytes + bytes <= EPF_TCP_SHORT_BYTES) {
		add_short(tx, train, payload, bytes);
		return;
	}
	tx->iov[tx->n_iov++] = (struct iovec){ (void *)(uintptr_t)payload, bytes };
	train->shorts = NULL;
}

/* Answers to READs come before everything else; so those to requests before one that is refused are sent before its refusal. */
static void add_answers(struct epf_tcp *t, struct epf_tcp_lane *l, struct train *train)
{
	struct epf_tcp_tx *tx = &l->tx;

	for (; tx->owed_tail != tx->owed_head && has_room(train); tx->owed_tail++) {
		const struct epf_tcp_owed *o = &tx->owed[tx->owed_tail % EPF_TCP_READS];
		struct epf_tcp_desc d = { .kind = EPF_TCP_BYTES, .len = o->len };
		enum epf_tcp_copied copied = EPF_TCP_COPIED;
		uint64_t at = o->raddr;

		if (l->gpu)
			copied = epf_tcp_gpu_answer(t, l, tx->owed_tail, &at);
		if (copied == EPF_TCP_COPYING)
			return;
		/* The region may have gone since it was asked for. */
		if (copied == EPF_TCP_COPY_FAILED ||
		    !epf_tcp_covers(t, o->rkey, o->raddr, o->len, EPF_MR_REMOTE_READ)) {
			tx->nak = EPF_S_REMOTE_ACCESS;
			tx->nak_number = o->number;
			tx->owed_tail = tx->owed_head;
			l->rx.is_dead = true;
			t->counters.errors++;
			break;
		}
		add(tx, train, &d, at);
	}
	if (tx->nak && !tx->is_nak_sent && tx->owed_tail == tx->owed_head && has_room(train)) {
		struct epf_tcp_desc d = { .kind = EPF_TCP_NAK,
					  .status = tx->nak,
					  .imm = tx->nak_number };

		add(tx, train, &d, 0);
		tx->is_nak_sent = true;
	}
}

static void add_requests(struct epf_tcp *t, struct epf_tcp_lane *l, struct train *train)
{
	struct epf_tcp_tx *tx = &l->tx;
	uint32_t end = tx->head - tx->has_bad;

	for (; tx->sent != end && has_room(train); tx->sent++) {
		const struct epf_wr *wr = &tx->wrs[tx->sent & l->mask];
		struct epf_tcp_desc d = { .kind = wr->op == EPF_WR_WRITE       ? EPF_TCP_WRITE
						  : wr->op == EPF_WR_WRITE_IMM ? EPF_TCP_WRITE_IMM
						  : wr->op == EPF_WR_SEND      ? EPF_TCP_SEND
									       : EPF_TCP_READ,
					  .len = wr->len,
					  .raddr = wr->raddr,
					  .rkey = wr->rkey,
					  .imm = wr->imm };
		uint64_t at = wr->laddr;

		if (d.kind == EPF_TCP_SEND && train->sends++ == EPF_TCP_TRAIN_SENDS)
			break;
		if (l->gpu && epf_tcp_gpu_request(t, l, tx->sent, &at) != EPF_TCP_COPIED)
			break;
		if (d.kind == EPF_TCP_READ) {
			if (tx->reads_head - tx->reads_tail == EPF_TCP_READS)
				break;
			tx->reads[tx->reads_head++ % EPF_TCP_READS] = tx->sent;
		}
		add(tx, train, &d, at);
	}
}

static bool is_ack_due(const struct epf_tcp_lane *l)
{
	const struct epf_tcp_rx *rx = &l->rx;

	return rx->taken != rx->told && (rx->ack_age > EPF_TCP_ACK_AGE ||
					 rx->taken - rx->told >= l->depth / EPF_TCP_ACK_SHARE ||
					 rx->told_bytes >= EPF_TCP_ACK_BYTES);
}

/* The next train, if there is anything to send. */
static int build(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct epf_tcp_tx *tx = &l->tx;
	struct train train = { .at = tx->front + EPF_TCP_HEAD_BYTES };

	tx->n_iov = 1;
	tx->at_iov = 0;
	if (l->gpu) {
		epf_tcp_gpu_stage_answers(t, l);
		epf_tcp_gpu_stage(t, l);
	}
	add_answers(t, l, &train);
	if (!tx->nak && l->link == EPF_LANE_READY)
		add_requests(t, l, &train);
	if (!train.head.count && !is_ack_due(l)) {
		tx->n_iov = 0;
		return 0;
	}
	train.head.ack = l->rx.taken;
	epf_tcp_head_encode(&train.head, tx->front);
	tx->iov[0] = (struct iovec){ tx->front, (size_t)(train.at - tx->front) };
	l->rx.told = l->rx.taken;
	l->rx.told_bytes = 0;
	l->rx.ack_age = 0;
	return 1;
}

void epf_tcp_send(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	uint64_t budget = EPF_TCP_TX_BUDGET >> t->nic.pace;

	if (l->gpu)
		l->gpu->tx_waits = false;
	while (l->fd >= 0 && !t->is_down && l->tx.is_writable && push(t, l, &budget) && budget &&
	       !l->tx.is_nak_sent && build(t, l))
		;
}

/* 1: it can be sent as it is. */
static int is_sane(const struct epf_tcp *t, const struct epf_wr *wr)
{
	if (wr->len > EPF_TCP_MSG_MAX)
		return 0;
	if (wr->op < EPF_WR_WRITE || wr->op > EPF_WR_READ)
		return 0;
	if (wr->op == EPF_WR_SEND && wr->len > EPF_NIC_MSG_BYTES)
		return 0;
	if (wr->flags & EPF_WR_INLINE)
		return wr->op != EPF_WR_READ && wr->len <= EPF_NIC_MSG_BYTES;
	return !wr->len || epf_tcp_covers(t, wr->lkey, wr->laddr, wr->len, 0);
}

/* Enters one work request; 0: it is wrong by itself, and fails when its turn has come. */
static int enter(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_wr *wr)
{
	struct epf_tcp_tx *tx = &l->tx;
	uint32_t at = tx->head++ & l->mask;
	struct epf_wr *copy = &tx->wrs[at];

	*copy = *wr;
	if (!is_sane(t, wr)) {
		tx->has_bad = true;
		t->counters.errors++;
		return 0;
	}
	if (wr->flags & EPF_WR_INLINE) {
		uint8_t *place = tx->inlines + (size_t)at * EPF_NIC_MSG_BYTES;

		if (wr->len)
			memcpy(place, (const void *)(uintptr_t)wr->laddr, wr->len);
		copy->laddr = (uint64_t)(uintptr_t)place;
	}
	copy->reserved = wr->op != EPF_WR_READ && !(wr->flags & EPF_WR_INLINE) && wr->len &&
			 t->regions[wr->lkey & 0xffff].mem;
	t->counters.bytes_tx += wr->len;
	t->counters.messages_tx++;
	return 1;
}

/* For tests: ends the connection in the middle of things, as a network would. */
static void reset_if_due(struct epf_tcp *t, struct epf_tcp_lane *l, unsigned n)
{
	struct linger abort = { .l_onoff = 1 };
	uint64_t before = l->posted;

	l->posted += n;
	/* Lanes with even numbers: the others hold the job. */
	if (l->number % 2 || before >= t->opts.reset_after || l->posted < t->opts.reset_after ||
	    l->fd < 0)
		return;
	setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
	epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, "reset by tcp-reset-after");
}

int epf_tcp_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_tcp_lane *l = epf_tcp_lane_at(t, lane);
	unsigned room, done = 0;

	if (!l || l->link != EPF_LANE_READY)
		return -ENOTCONN;
	room = l->depth - (l->tx.head - l->tx.tail);
	if (l->tx.has_bad)
		room = 0;
	while (done < n && done < room)
		if (!enter(t, l, &wr[done++]))
			break;
	if (!done)
		return 0;
	if (l->fd < 0 && !l->is_loop && !l->since_ns)
		l->since_ns = t->now(t->now_arg);
	if (l->gpu && !l->is_loop)
		epf_tcp_gpu_stage(t, l);
	/*
	 * While something is under way, what comes singly waits for the next reap and leaves with what has come by then: a call of the kernel costs more
	 * than many messages.
	 */
	if (l->tx.sent == l->tx.acked || l->tx.head - l->tx.sent >= EPF_TCP_POST_NOW)
		epf_tcp_send(t, l);
	epf_tcp_make_ready(t, l);
	if (t->opts.reset_after)
		reset_if_due(t, l, done);
	return (int)done;
}
