/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reap: asks the kernel which connections have something, lets each have its turn, and reports. Called by the core's step; makes system calls (one epoll_wait(2),
 * then what the lanes need), never blocks, allocates nothing but for connections that are new.
 */
#include "fabric/nic/tcp/tcp.h"

#include <sys/epoll.h>

static void ask_kernel(struct epf_tcp *t)
{
	struct epoll_event ev[EPF_TCP_EVENTS];
	int n = epoll_wait(t->inner_fd, ev, EPF_TCP_EVENTS, 0);

	for (int i = 0; i < n; i++) {
		struct epf_tcp_lane *l = epf_tcp_lane_at(t, ev[i].data.u32);

		if (!l || l->fd < 0)
			continue;
		if (ev[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			l->rx.is_readable = true;
		if (ev[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			l->rx.has_hung_up = true;
		if (ev[i].events & EPOLLOUT)
			l->tx.is_writable = true;
		epf_tcp_make_ready(t, l);
	}
}

/* Lanes that have waited too long for a receive. */
static void look_at_waits(struct epf_tcp *t)
{
	uint64_t now = t->now(t->now_arg);

	for (uint32_t i = 0; i < t->lanes_end; i++) {
		struct epf_tcp_lane *l = t->lanes[i];

		if (!l || !l->rx.waits || now - l->rx.waits_since_ns < t->opts.rnr_timeout_ns)
			continue;
		l->rx.waits = false;
		t->n_waits--;
		t->counters.errors++;
		if (l->is_loop) {
			epf_tcp_fail(t, l, l->tx.sent, EPF_S_RNR_EXCEEDED);
		} else {
			l->tx.nak = EPF_S_RNR_EXCEEDED;
			l->tx.nak_number = l->rx.taken;
			l->rx.is_dead = true;
		}
		epf_tcp_make_ready(t, l);
	}
}

static void give(struct epf_tcp_out *out, const struct epf_tcp_lane *l, uint32_t id, unsigned op,
		 unsigned status)
{
	out->wc[out->n++] = (struct epf_wc){
		.id = id, .lane = l->number, .op = (uint8_t)op, .status = (uint8_t)status
	};
}

/* What failed, what was flushed, and that the peer is gone. */
static void report_error(struct epf_tcp_lane *l, struct epf_tcp_out *out)
{
	struct epf_tcp_tx *tx = &l->tx;

	while (tx->tail != tx->head && !epf_tcp_out_is_full(out)) {
		give(out, l, tx->wrs[tx->tail++ & l->mask].id, EPF_WC_SENT,
		     l->has_failed ? l->status : EPF_S_FLUSHED);
		l->has_failed = false;
	}
	if (l->is_gone && tx->tail == tx->head && !epf_tcp_out_is_full(out)) {
		l->is_gone = false;
		give(out, l, 0, EPF_WC_LANE_DOWN, l->gone_status);
	}
}

/* Completions of a lane: one for all that are well. */
static void report(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out)
{
	struct epf_tcp_tx *tx = &l->tx;
	uint32_t done = epf_tcp_complete(l);

	if (tx->has_bad && done == tx->head - 1 && l->link == EPF_LANE_READY)
		epf_tcp_fail(t, l, done, EPF_S_LOCAL);
	if (l->gpu && l->gpu->is_bad && done == tx->sent && l->link == EPF_LANE_READY) {
		t->counters.errors++;
		epf_tcp_fail(t, l, done, EPF_S_LOCAL);
	}
	if ((int32_t)(done - tx->tail) > 0 && !epf_tcp_out_is_full(out)) {
		give(out, l, tx->wrs[(done - 1) & l->mask].id, EPF_WC_SENT, EPF_S_OK);
		tx->tail = done;
	}
	if (l->link == EPF_LANE_ERROR && (int32_t)(done - tx->tail) <= 0)
		report_error(l, out);
}

/* 1: a request can be sent, or an answer. */
static int can_send(const struct epf_tcp_lane *l)
{
	const struct epf_tcp_tx *tx = &l->tx;

	if (!tx->is_writable || tx->is_nak_sent)
		return tx->is_writable && epf_tcp_is_sending(l);
	if (epf_tcp_is_sending(l) || epf_tcp_owes_ack(l))
		return 1;
	if (l->gpu && l->gpu->tx_waits)
		return 0;
	if (tx->owed_tail != tx->owed_head || tx->nak)
		return 1;
	return l->link == EPF_LANE_READY && tx->sent != tx->head - tx->has_bad &&
	       (tx->wrs[tx->sent & l->mask].op != EPF_WR_READ ||
		tx->reads_head - tx->reads_tail < EPF_TCP_READS);
}

static int loop_can_go_on(const struct epf_tcp *t, const struct epf_tcp_lane *l)
{
	const struct epf_tcp_lane *p = epf_tcp_lane_at(t, l->peer_token & 0xffff);

	if (l->link != EPF_LANE_READY || l->rx.waits || (l->gpu && l->gpu->tx_waits))
		return 0;
	return !p || p->link == EPF_LANE_ERROR ||
	       (p->link == EPF_LANE_READY && l->tx.sent != l->tx.head - l->tx.has_bad);
}

/* 1: the lane wants the next reap, too. */
static int has_more(const struct epf_tcp *t, const struct epf_tcp_lane *l)
{
	const struct epf_tcp_tx *tx = &l->tx;

	if (l->link == EPF_LANE_ERROR)
		return tx->tail != tx->head || l->is_gone ||
		       (l->fd >= 0 && l->rx.is_readable && !t->is_down);
	if (epf_tcp_complete(l) != tx->tail)
		return 1;
	if (l->is_loop)
		return loop_can_go_on(t, l);
	if (l->fd < 0 || t->is_down)
		return 0;
	return can_send(l) || (!l->rx.waits && !(l->gpu && l->gpu->rx_waits) &&
			       (l->rx.is_readable || epf_tcp_can_advance(t, l)));
}

static void serve(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out)
{
	if (l->is_loop) {
		if (l->link == EPF_LANE_READY && !l->rx.waits)
			epf_tcp_loop(t, l, out);
	} else if (l->fd >= 0 && l->link != EPF_LANE_IDLE) {
		uint32_t taken = l->rx.taken;

		if (!l->rx.waits)
			epf_tcp_receive(t, l, out);
		if (epf_tcp_owes_ack(l))
			l->rx.ack_age = l->rx.taken == taken ? l->rx.ack_age + 1 : 1;
		epf_tcp_send(t, l);
	}
	report(t, l, out);
	if (has_more(t, l))
		epf_tcp_make_ready(t, l);
}

int epf_tcp_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_tcp_out out = { .wc = wc, .max = n };
	uint16_t last;

	t->messages_used = 0;
	if (t->door && epf_tcp_door_has_given(t->door))
		epf_tcp_take_given(t);
	ask_kernel(t);
	if (t->copier)
		epf_tcp_gpu_reap(t);
	if (t->n_waits)
		look_at_waits(t);
	/* Each lane of the list once; those that want more stand behind the last one. */
	last = t->ready_tail;
	while (t->ready_head != EPF_TCP_NO_LANE && !epf_tcp_out_is_full(&out)) {
		struct epf_tcp_lane *l = t->lanes[t->ready_head];

		t->ready_head = l->ready_next;
		l->is_ready = false;
		serve(t, l, &out);
		if (l->number == last)
			break;
	}
	return (int)out.n;
}

uint64_t epf_tcp_next_event(const struct epf_nic *nic)
{
	const struct epf_tcp *t = epf_tcp_of(nic);
	uint64_t first = UINT64_MAX;

	if (t->ready_head != EPF_TCP_NO_LANE || (t->door && epf_tcp_door_has_given(t->door)) ||
	    (t->copier && epf_tcp_gpu_has_completed(t)))
		return 0;
	for (uint32_t i = 0; t->n_waits && i < t->lanes_end; i++) {
		const struct epf_tcp_lane *l = t->lanes[i];

		if (l && l->rx.waits && l->rx.waits_since_ns + t->opts.rnr_timeout_ns < first)
			first = l->rx.waits_since_ns + t->opts.rnr_timeout_ns;
	}
	return first;
}

void epf_tcp_post_receives(struct epf_nic *nic, unsigned n)
{
	struct epf_tcp *t = epf_tcp_of(nic);

	t->receives += n;
	for (uint32_t i = 0; t->n_waits && i < t->lanes_end; i++) {
		struct epf_tcp_lane *l = t->lanes[i];

		if (!l || !l->rx.waits)
			continue;
		l->rx.waits = false;
		t->n_waits--;
		epf_tcp_make_ready(t, l);
	}
}
