/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arriving trains: opens them, checks them, and lets them take effect in order (rx.c receives their bytes). Called by the core's step, through reap(); never blocks, allocates nothing.
 *
 * A train whose payload has arrived but is still being copied to GPU memory is held, so that the next one can be received meanwhile. Its descriptors take effect when their copies
 * are complete, and before those of later trains.
 */
#include "fabric/nic/tcp/trains.h"
#include "fabric/nic/tcp/tcp.h"

#define EPF_LOG_COMP "tcp"
#include "fabric/base/log.h"

#include <errno.h>
#include <string.h>

/* Refuses the next request of the peer: neither it nor any later one takes effect. */
static void refuse(struct epf_tcp *t, struct epf_tcp_lane *l, unsigned status, const char *why)
{
	l->tx.nak = (uint8_t)status;
	l->tx.nak_number = l->rx.taken;
	l->rx.is_dead = true;
	t->counters.errors++;
	epf_warn_ratelimited("lane %u: a request of the peer was refused: %s", l->number, why);
}

/* Assigns each message and each answer its slot, and sums up lengths. */
static int assign(struct epf_tcp_lane *l)
{
	struct epf_tcp_rx *rx = &l->rx;
	const struct epf_tcp_tx *tx = &l->tx;
	uint32_t end = 0, read = tx->reads_tail + (l->gpu ? l->gpu->held_reads : 0);
	uint8_t sends = 0;

	for (uint32_t i = 0; i < rx->count; i++) {
		const struct epf_tcp_desc *d = &rx->descs[i];

		if (d->kind == EPF_TCP_SEND)
			rx->slots[i] = sends++;
		if (d->kind == EPF_TCP_BYTES) {
			if (read == tx->reads_head ||
			    tx->wrs[tx->reads[read % EPF_TCP_READS] & l->mask].len != d->len)
				return -EPROTO;
			rx->slots[i] = (uint8_t)(read++ % EPF_TCP_READS);
		}
		end += epf_tcp_payload(d);
		rx->ends[i] = end;
	}
	return 0;
}

int epf_tcp_open_train(struct epf_tcp_lane *l)
{
	struct epf_tcp_rx *rx = &l->rx;
	uint32_t have = rx->end - rx->at;
	struct epf_tcp_head head;

	if (have < EPF_TCP_HEAD_BYTES)
		return 0;
	if (epf_tcp_head_decode(rx->stage + rx->at, &head))
		return -EPROTO;
	if (have < EPF_TCP_HEAD_BYTES + head.count * EPF_TCP_DESC_BYTES)
		return 0;
	if (epf_tcp_descs_decode(&head, rx->stage + rx->at + EPF_TCP_HEAD_BYTES, rx->descs))
		return -EPROTO;
	if ((int32_t)(head.ack - l->tx.acked) < 0 || (int32_t)(l->tx.sent - head.ack) < 0)
		return -EPROTO;
	l->tx.acked = head.ack;
	rx->at += EPF_TCP_HEAD_BYTES + head.count * EPF_TCP_DESC_BYTES;
	rx->count = head.count;
	rx->done = rx->bytes = rx->current = 0;
	if (l->gpu && l->gpu->has_copied) {
		memset(l->gpu->copied, 0, sizeof(l->gpu->copied));
		l->gpu->has_copied = false;
	}
	return assign(l) ? -EPROTO : 1;
}

bool epf_tcp_place_of(const struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t i,
		      struct epf_tcp_spot *out)
{
	const struct epf_tcp_desc *d = &l->rx.descs[i];
	const struct epf_wr *wr;

	switch (d->kind) {
	case EPF_TCP_WRITE:
	case EPF_TCP_WRITE_IMM:
		return epf_tcp_find_spot(t, d->rkey, d->raddr, d->len, EPF_MR_REMOTE_WRITE, out);
	case EPF_TCP_SEND:
		*out = (struct epf_tcp_spot){
			.at = (uint64_t)(uintptr_t)l->rx.messages[l->rx.slots[i]]
		};
		return true;
	default:
		wr = &l->tx.wrs[l->tx.reads[l->rx.slots[i]] & l->mask];
		return epf_tcp_find_spot(t, wr->lkey, wr->laddr, wr->len, 0, out);
	}
}

static void take_read(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_desc *d)
{
	struct epf_tcp_tx *tx = &l->tx;

	if (tx->owed_head - tx->owed_tail == EPF_TCP_READS) {
		epf_tcp_broken(t, l, "more reads at once than are allowed");
		return;
	}
	tx->owed[tx->owed_head++ % EPF_TCP_READS] = (struct epf_tcp_owed){
		.raddr = d->raddr, .rkey = d->rkey, .len = d->len, .number = l->rx.taken
	};
}

static void take_nak(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_desc *d)
{
	if ((int32_t)(d->imm - epf_tcp_complete(l)) < 0 || (int32_t)(d->imm - l->tx.sent) >= 0)
		epf_tcp_broken(t, l, "it refuses what was not asked");
	else
		epf_tcp_fail(t, l, d->imm, d->status);
}

/* Lets a descriptor whose payload is in place take effect. Returns 0 or -EAGAIN. */
static int take_effect(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_desc *d,
		       uint8_t slot, struct epf_tcp_out *out)
{
	int rc = 0;

	switch (d->kind) {
	case EPF_TCP_WRITE_IMM:
		rc = epf_tcp_arrive(t, l, 0, d->imm, d->len, NULL, out);
		break;
	case EPF_TCP_SEND:
		rc = epf_tcp_arrive(t, l, 1, 0, d->len, l->rx.messages[slot], out);
		break;
	case EPF_TCP_READ:
		take_read(t, l, d);
		break;
	case EPF_TCP_BYTES:
		l->tx.reads_tail++;
		t->counters.bytes_rx += d->len;
		return 0;
	case EPF_TCP_NAK:
		take_nak(t, l, d);
		return 0;
	default:
		break;
	}
	if (rc)
		return rc;
	l->rx.taken++;
	l->rx.told_bytes += d->len;
	t->counters.messages_rx++;
	t->counters.bytes_rx += epf_tcp_payload(d);
	return 0;
}

/* Ends the lane: the first descriptor that has not taken effect cannot. */
static void refuse_desc(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_desc *d,
			uint8_t slot, const char *why)
{
	if (d->kind == EPF_TCP_BYTES)
		epf_tcp_fail(t, l, l->tx.reads[slot], EPF_S_LOCAL);
	else
		refuse(t, l, EPF_S_REMOTE_ACCESS, why);
}

void epf_tcp_refuse_place(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t i, const char *why)
{
	const struct epf_tcp_rx *rx = &l->rx;

	if (i == rx->done && i < rx->count && !epf_tcp_is_holding(l))
		refuse_desc(t, l, &rx->descs[i], rx->slots[i], why);
}

/* Lets the oldest received descriptor take effect. Returns 1; 0 while its payload is being copied, or if that failed; -EAGAIN if it waits for something else. */
static int settle_one(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_desc *d,
		      uint8_t slot, uint64_t copy, struct epf_tcp_out *out)
{
	struct epf_tcp_rx *rx = &l->rx;
	enum epf_tcp_copied copied = copy ? epf_tcp_gpu_landed(t, l, copy) : EPF_TCP_COPIED;

	if (copied == EPF_TCP_COPY_FAILED)
		refuse_desc(t, l, d, slot, "its bytes could not be copied to GPU memory");
	if (copied != EPF_TCP_COPIED)
		return 0;
	if (!take_effect(t, l, d, slot, out))
		return 1;
	if (!t->receives && !rx->waits) {
		rx->waits = true;
		rx->waits_since_ns = t->now(t->now_arg);
		t->n_waits++;
		t->counters.rnr_events++;
	}
	return -EAGAIN;
}

/* Lets held trains take effect, as far as possible. Returns as settle_one(); 1: none is left. */
static int settle_held(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out)
{
	struct epf_tcp_lane_gpu *g = l->gpu;

	for (; epf_tcp_is_holding(l) && !l->rx.is_dead; g->held_first++) {
		const struct epf_tcp_held *h = &g->held[g->held_first % EPF_TCP_HELD];
		int rc = settle_one(t, l, &h->desc, h->slot, h->copied, out);

		if (rc <= 0)
			return rc;
		g->held_reads -= h->desc.kind == EPF_TCP_BYTES;
	}
	return !l->rx.is_dead;
}

int epf_tcp_settle(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out)
{
	struct epf_tcp_rx *rx = &l->rx;
	int rc = l->gpu ? settle_held(t, l, out) : 1;

	while (rc > 0 && rx->done < rx->count && rx->ends[rx->done] <= rx->bytes && !rx->is_dead) {
		rc = settle_one(t, l, &rx->descs[rx->done], rx->slots[rx->done],
				l->gpu ? l->gpu->copied[rx->done] : 0, out);
		rx->done += rc > 0;
	}
	if (rc < 0)
		return 0;
	if (rc == 0 && !rx->is_dead && rx->count && rx->bytes == rx->ends[rx->count - 1])
		epf_tcp_gpu_hold(l);
	if (rx->done == rx->count)
		rx->count = rx->done = rx->bytes = rx->current = 0;
	return 1;
}
