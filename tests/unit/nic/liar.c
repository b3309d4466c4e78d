/* SPDX-License-Identifier: Apache-2.0 */
/* Puts lying operations in the place of a NIC's: see liar.h. It lies about one thing and passes everything else on. */
#include "tests/unit/nic/liar.h"

#include "fabric/nic/nic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FAKES = 256 };

struct liar {
	struct epf_nic_ops ops;
	const struct epf_nic_ops *real;
	const struct epf_nic *nic;
	int end;
	struct epf_wr late[FAKES]; /* to be posted by the next reap */
	uint16_t late_lane[FAKES];
	unsigned n_late;
	struct epf_wc fake[FAKES]; /* to be reported by the next reap */
	unsigned n_fake;
	struct epf_wr held;
	struct epf_wc held_wc;
	unsigned is_held, counted, regions, created;
	int fenced;
	struct epf_nic_mr first;
	uint64_t first_addr, first_len;
};

enum lie liar_lie;
static struct liar liars[2];

static struct liar *liar_of(const struct epf_nic *nic)
{
	return &liars[liars[1].nic == nic];
}

static int at(const struct liar *l, int end, enum lie lie)
{
	return liar_lie == lie && l->end == end;
}

static void report(struct liar *l, struct epf_wc wc)
{
	if (l->n_fake < FAKES)
		l->fake[l->n_fake++] = wc;
}

static void later(struct liar *l, uint16_t lane, const struct epf_wr *wr)
{
	l->late_lane[l->n_late] = lane;
	l->late[l->n_late++] = *wr;
}

/* Changes a write request before it is posted. */
static void twist(struct liar *l, struct epf_wr *wr)
{
	int is_write = wr->op == EPF_WR_WRITE || wr->op == EPF_WR_WRITE_IMM;

	if (at(l, 0, LIE_CUTS_WRITES) && is_write && wr->len)
		wr->len--;
	if (at(l, 0, LIE_WRITES_BEYOND) && is_write && wr->len)
		wr->len++;
	if (at(l, 0, LIE_CUTS_LONG_WRITES) && is_write && wr->len > 65536)
		wr->len = 65536;
	if (at(l, 0, LIE_CUTS_READS) && wr->op == EPF_WR_READ)
		wr->len--;
	if (at(l, 0, LIE_CUTS_MESSAGES) && wr->op == EPF_WR_SEND && wr->len)
		wr->len--;
	if (at(l, 0, LIE_IMM_31_BITS))
		wr->imm &= 0x7fffffff;
	if (at(l, 0, LIE_MENDS_OWN_KEY))
		wr->lkey = l->first.lkey;
	/* b's memory is known to the liar, which has both ends. */
	if (at(l, 0, LIE_MOVES_INTO_BOUNDS) && wr->len <= liars[1].first_len)
		wr->raddr = liars[1].first.raddr;
}

/* Whether the liar deals with it, and nothing is to be posted now. */
static int keeps(struct liar *l, uint16_t lane, const struct epf_wr *wr)
{
	struct epf_wc ok = { .op = EPF_WC_SENT, .id = wr->id, .lane = lane };
	struct epf_wr part = *wr;

	if (at(l, 0, LIE_SENT_EARLY) || at(l, 1, LIE_B_SENDS_NOTHING) ||
	    (at(l, 0, LIE_OTHER_LANES) && lane)) {
		report(l, ok);
		return 1;
	}
	if ((at(l, 0, LIE_LOSES_WRITE) && wr->id == 50) ||
	    (at(l, 0, LIE_LOSES_LAST) && wr->id == 199))
		return 1;
	if (at(l, 0, LIE_INLINE_LATE) && wr->flags & EPF_WR_INLINE) {
		later(l, lane, wr);
		return 1;
	}
	if (at(l, 0, LIE_IMM_FIRST) && wr->op == EPF_WR_WRITE_IMM && wr->len) {
		part.op = EPF_WR_WRITE;
		later(l, lane, &part);
		part.op = EPF_WR_WRITE_IMM;
		part.len = 0;
		l->real->post((struct epf_nic *)(uintptr_t)l->nic, lane, &part, 1);
		return 1;
	}
	if (at(l, 0, LIE_REORDERS_WRITES) && wr->id == 98) {
		l->held = *wr;
		l->is_held = 1;
		return 1;
	}
	return 0;
}

static int post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct liar *l = liar_of(nic);
	unsigned done = 0;

	for (; done < n; done++) {
		struct epf_wr twisted = wr[done];
		int rc;

		if (keeps(l, lane, &twisted))
			continue;
		twist(l, &twisted);
		rc = l->real->post(nic, lane, &twisted, 1);
		if (rc < 1)
			return done ? (int)done : rc;
		if (l->is_held && liar_lie == LIE_REORDERS_WRITES) {
			l->is_held = 0;
			l->real->post(nic, lane, &l->held, 1);
		}
	}
	return (int)done;
}

/* Whether a completion is swallowed; changes others. */
static int twist_sent(struct liar *l, struct epf_wc *wc)
{
	if (wc->status == EPF_S_FLUSHED && at(l, 0, LIE_FLUSHED_IS_OK))
		wc->status = EPF_S_OK;
	if (wc->status == EPF_S_RNR_EXCEEDED && at(l, 0, LIE_RNR_IS_OK))
		wc->status = EPF_S_OK;
	if (at(l, 0, LIE_COMPLETES_TWICE) && !l->counted++)
		report(l, *wc);
	if (at(l, 0, LIE_OVERFLOWS) && wc->id == 127)
		return 1;
	return (wc->status != EPF_S_OK && at(l, 0, LIE_HIDES_ERRORS)) ||
	       (l->fenced && at(l, 0, LIE_LOSES_FLUSHED));
}

static int twist_arrival(struct liar *l, struct epf_wc *wc)
{
	int is_imm = wc->op == EPF_WC_RECV_IMM;

	if (is_imm && at(l, 1, LIE_WRONG_LENGTH))
		wc->len++;
	if (is_imm && at(l, 1, LIE_WRONG_LANE))
		wc->lane ^= 1;
	if (is_imm && at(l, 1, LIE_IMM_LOST) && wc->imm == 16)
		return 1;
	if (!is_imm && at(l, 1, LIE_LOSES_MESSAGE) && l->counted++ == 50)
		return 1;
	if (is_imm && at(l, 1, LIE_REORDERS) && wc->imm == 10) {
		l->held_wc = *wc;
		l->is_held = 1;
		return 1;
	}
	if (is_imm && l->is_held) {
		l->is_held = 0;
		report(l, l->held_wc);
	}
	return 0;
}

static int reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct liar *l = liar_of(nic);
	unsigned kept = 0;
	int got;

	if (l->n_fake && n) {
		wc[0] = l->fake[0];
		memmove(l->fake, l->fake + 1, --l->n_fake * sizeof(*l->fake));
		return 1;
	}
	/* The bytes after an immediate come when that has been seen. */
	if (liar_lie != LIE_IMM_FIRST || l->counted++ > 1000) {
		for (unsigned i = 0; i < l->n_late; i++)
			l->real->post(nic, l->late_lane[i], &l->late[i], 1);
		l->n_late = 0;
	}
	got = l->real->reap(nic, wc, n);
	for (int i = 0; i < got; i++) {
		struct epf_wc one = wc[i];

		if (one.op == EPF_WC_SENT ? twist_sent(l, &one) : twist_arrival(l, &one))
			continue;
		wc[kept++] = one;
	}
	return (int)kept;
}

static int region_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			   struct epf_nic_mr *out)
{
	struct liar *l = liar_of(nic);
	int rc;

	if (at(l, 0, LIE_REGISTERS_ONE) && l->regions)
		return -EINVAL;
	if (at(l, 1, LIE_ALL_RIGHTS))
		access |= EPF_MR_REMOTE_READ | EPF_MR_REMOTE_WRITE;
	rc = l->real->region_register(nic, addr, len, access, out);
	if (rc)
		return rc;
	if (!l->regions++) {
		l->first = *out;
		l->first_addr = (uint64_t)(uintptr_t)addr;
		l->first_len = len;
	} else if (at(l, 1, LIE_ONE_KEY_FOR_ALL)) {
		out->rkey = l->first.rkey;
		out->raddr = l->first.raddr + ((uint64_t)(uintptr_t)addr - l->first_addr);
	}
	return 0;
}

static void region_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	if (liar_lie != LIE_KEEPS_KEYS && liar_lie != LIE_ONE_KEY_FOR_ALL)
		liar_of(nic)->real->region_deregister(nic, mr);
}

static void lane_fence(struct epf_nic *nic, uint16_t lane)
{
	struct liar *l = liar_of(nic);

	l->fenced = 1;
	if (at(l, 1, LIE_NO_FENCE))
		return;
	l->real->lane_fence(nic, lane);
	if (at(l, 0, LIE_FENCES_NEIGHBOUR))
		l->real->lane_fence(nic, lane + 1);
}

static int lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	struct liar *l = liar_of(nic);

	return at(l, 1, LIE_NO_FENCE) || l->real->lane_drained(nic, lane);
}

static enum epf_lane_link lane_link(const struct epf_nic *nic, uint16_t lane)
{
	struct liar *l = liar_of(nic);

	return at(l, 1, LIE_NO_FENCE) && l->fenced ? EPF_LANE_ERROR : l->real->lane_link(nic, lane);
}

static int lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct liar *l = liar_of(nic);

	l->fenced = 0;
	if (at(l, 0, LIE_STALE_COMPLETION) && l->created++)
		report(l, (struct epf_wc){ .op = EPF_WC_SENT, .id = 1, .lane = lane });
	return l->real->lane_create(nic, lane, depth || liar_lie != LIE_TAKES_DEPTH_0 ? depth : 8,
				    token);
}

static void post_receives(struct epf_nic *nic, unsigned n)
{
	liar_of(nic)->real->post_receives(nic, n);
}

static int set_link(struct epf_nic *nic, unsigned link, int up)
{
	struct liar *l = liar_of(nic);

	return liar_lie == LIE_LINK_STAYS_UP ? 0 : l->real->set_link(nic, link, up);
}

static void describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	liar_of(nic)->real->describe(nic, out);
	if (liar_lie == LIE_SMALL_MESSAGES)
		out->max_msg_bytes = 1024;
}

static void watch(struct epf_nic *nic)
{
	struct liar *l = liar_of(nic);

	l->real->watch(nic);
	if (at(l, 0, LIE_LIVE_PEER_DOWN))
		report(l,
		       (struct epf_wc){ .op = EPF_WC_LANE_DOWN, .status = EPF_S_RETRY_EXCEEDED });
}

static void wake_peers(struct epf_nic *nic)
{
	if (liar_lie != LIE_NEVER_WAKES)
		liar_of(nic)->real->wake_peers(nic);
}

static int add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset, uint64_t value)
{
	return liar_of(nic)->real->add(nic, mr, offset, value + (liar_lie == LIE_ADDS_ONE_MORE));
}

void liar_wrap(struct epf_nic **nic, int end)
{
	struct liar *l = &liars[end];

	memset(l, 0, sizeof(*l));
	if (!end)
		liars[1].nic = NULL; /* closed, and its address may be used again */
	l->nic = *nic;
	l->end = end;
	l->real = (*nic)->ops;
	l->ops = *l->real;
	l->ops.post = post;
	l->ops.reap = reap;
	l->ops.region_register = region_register;
	l->ops.region_deregister = region_deregister;
	l->ops.lane_fence = lane_fence;
	l->ops.lane_drained = lane_drained;
	l->ops.lane_link = lane_link;
	l->ops.lane_create = lane_create;
	l->ops.post_receives = post_receives;
	l->ops.set_link = set_link;
	l->ops.describe = describe;
	l->ops.watch = watch;
	l->ops.wake_peers = wake_peers;
	l->ops.add = add;
	(*nic)->ops = &l->ops;
	if (at(l, 1, LIE_OWN_RECEIVES))
		l->real->post_receives(*nic, 64);
}
