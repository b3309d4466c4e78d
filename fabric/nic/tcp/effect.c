/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What takes effect here: arrivals, and the requests of lanes whose both ends are this NIC's, which need no socket. Called by the core's step, through reap().
 */
#include "fabric/nic/tcp/tcp.h"

#include <errno.h>
#include <string.h>

int epf_tcp_arrive(struct epf_tcp *t, struct epf_tcp_lane *l, int is_send, uint32_t imm,
		   uint32_t len, const void *msg, struct epf_tcp_out *out)
{
	struct epf_wc *wc;

	if (epf_tcp_out_is_full(out) || (is_send && t->messages_used == EPF_TCP_MESSAGES) ||
	    !t->receives)
		return -EAGAIN;
	t->receives--;
	wc = &out->wc[out->n++];
	*wc = (struct epf_wc){ .imm = imm,
			       .len = len,
			       .lane = l->number,
			       .op = is_send ? EPF_WC_RECV : EPF_WC_RECV_IMM,
			       .status = EPF_S_OK };
	if (is_send) {
		wc->msg = t->messages[t->messages_used++];
		memcpy((void *)(uintptr_t)wc->msg, msg, len);
	}
	return 0;
}

/* Carries out a request of a lane at its other end, p; copied: its bytes are already there. Returns 0; -EAGAIN: not now; -EACCES: the peer's key or range is wrong; -EINVAL: its own. */
static int carry_out(struct epf_tcp *t, struct epf_tcp_lane *p, const struct epf_wr *wr,
		     bool copied, struct epf_tcp_out *out)
{
	const void *from = (const void *)(uintptr_t)wr->laddr;
	int is_inline = wr->flags & EPF_WR_INLINE;

	if (wr->op != EPF_WR_SEND && wr->len &&
	    !epf_tcp_covers(t, wr->rkey, wr->raddr, wr->len,
			    wr->op == EPF_WR_READ ? EPF_MR_REMOTE_READ : EPF_MR_REMOTE_WRITE))
		return -EACCES;
	if (!is_inline && wr->len && !epf_tcp_covers(t, wr->lkey, wr->laddr, wr->len, 0))
		return -EINVAL;
	if (wr->op == EPF_WR_SEND)
		return epf_tcp_arrive(t, p, 1, 0, wr->len, from, out);
	if (wr->op == EPF_WR_WRITE_IMM &&
	    (epf_tcp_out_is_full(out) || !t->receives)) /* not before its event can follow */
		return -EAGAIN;
	if (copied)
		; /* by the copier */
	else if (wr->op == EPF_WR_READ)
		memmove((void *)(uintptr_t)wr->laddr, (const void *)(uintptr_t)wr->raddr, wr->len);
	else if (wr->len)
		memmove((void *)(uintptr_t)wr->raddr, from, wr->len);
	return wr->op == EPF_WR_WRITE_IMM ? epf_tcp_arrive(t, p, 0, wr->imm, wr->len, NULL, out)
					  : 0;
}

static void begin_wait(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	if (l->rx.waits || t->receives)
		return;
	l->rx.waits = true;
	l->rx.waits_since_ns = t->now(t->now_arg);
	t->n_waits++;
	t->counters.rnr_events++;
}

void epf_tcp_loop(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out)
{
	struct epf_tcp_lane *p = epf_tcp_lane_at(t, l->peer_token & 0xffff);
	struct epf_tcp_tx *tx = &l->tx;
	uint64_t budget = EPF_TCP_TX_BUDGET >> t->nic.pace;

	if (!p || p->token != l->peer_token || p->link == EPF_LANE_ERROR ||
	    (p->link == EPF_LANE_READY && p->peer_token != l->token)) {
		epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, NULL);
		return;
	}
	if (l->gpu) {
		l->gpu->tx_waits = false;
		if (p->link == EPF_LANE_READY)
			epf_tcp_gpu_stage_loop(t, l);
	}
	while (p->link == EPF_LANE_READY && tx->sent != tx->head - tx->has_bad && budget) {
		const struct epf_wr *wr = &tx->wrs[tx->sent & l->mask];
		enum epf_tcp_copied copied =
			l->gpu ? epf_tcp_gpu_request(t, l, tx->sent, NULL) : EPF_TCP_COPIED;
		bool by_gpu = l->gpu && l->gpu->requests[tx->sent & l->mask].number;
		int rc;

		if (copied == EPF_TCP_COPYING)
			return;
		rc = copied == EPF_TCP_COPY_FAILED ? -EINVAL : carry_out(t, p, wr, by_gpu, out);
		if (rc == -EAGAIN) {
			begin_wait(t, l);
			return;
		}
		if (rc) {
			t->counters.errors++;
			epf_tcp_fail(t, l, tx->sent,
				     rc == -EACCES ? EPF_S_REMOTE_ACCESS : EPF_S_LOCAL);
			return;
		}
		t->counters.bytes_rx += wr->len;
		t->counters.messages_rx++;
		budget -= wr->len < budget ? wr->len : budget;
		tx->acked = ++tx->sent;
	}
}
