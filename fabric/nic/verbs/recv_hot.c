/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives of devices without shared receive queues: each lane has a separate queue. The slots are the same as with a shared queue; a
 * slot remembers the queue pair it is posted to, and what was dequeued from a lane is released to that lane. Called by
 * complete_hot.c; must never allocate, lock, log or make a system call.
 */
#include "fabric/nic/verbs/verbs.h"

#include <errno.h>

void epf_verbs_recv_owe(struct epf_verbs *v, uint16_t lane, uint32_t n)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	l->owed += n;
	v->wanted_receives += n;
	if (l->is_owed)
		return;
	l->is_owed = 1;
	v->owed_lanes[v->n_owed++] = lane;
}

int epf_verbs_recv_took(struct epf_verbs *v, struct epf_rdma_slot *slot, uint32_t qpn, int arrived)
{
	struct epf_verbs_lane *l = &v->lanes[slot->lane];

	/* The queue pair is gone, and so its slots were reclaimed then: this one may be posted elsewhere by now. */
	if (slot->qpn != qpn)
		return 0;
	slot->qpn = 0;
	if (arrived && l->qp && l->qp->qp_num == qpn)
		epf_verbs_recv_owe(v, slot->lane, 1);
	return 1;
}

/* Posts up to n free slots to a lane; returns how many, or -errno of the provider with the slots back on the list. */
static int post(struct epf_verbs *v, uint16_t lane, uint32_t n)
{
	struct epf_verbs_lane *l = &v->lanes[lane];
	struct epf_rdma_slot *first = v->receives.free, *last = first, *s;
	struct ibv_recv_wr *bad = NULL;
	int count = 1, rc;

	for (; count < EPF_VERBS_CHAIN && (uint32_t)count < n && last->next; count++) {
		last->wr.next = &last->next->wr;
		last = last->next;
	}
	last->wr.next = NULL;
	v->receives.free = last->next;
	for (s = first; s != v->receives.free; s = s->next) {
		s->lane = lane;
		s->qpn = l->qp->qp_num;
	}
	rc = ibv_post_recv(l->qp, &first->wr, &bad);
	if (__builtin_expect(rc == 0, 1))
		return count;
	/* The lane is lost; those that were dequeued return with it (epf_verbs_recv_forget). */
	for (s = first; s != v->receives.free && &s->wr != bad; s = s->next)
		v->posted_receives++;
	for (struct epf_rdma_slot *back = s; back != v->receives.free; back = back->next)
		back->qpn = 0;
	v->receives.free = s;
	return rc > 0 ? -rc : -EIO;
}

void epf_verbs_recv_give(struct epf_verbs *v)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < v->n_owed; i++) {
		uint16_t lane = v->owed_lanes[i];
		struct epf_verbs_lane *l = &v->lanes[lane];

		while (l->owed && v->receives.free) {
			int n = post(v, lane, l->owed);

			if (__builtin_expect(n < 0, 0)) {
				epf_verbs_lost_lane_cold(v, lane, -n);
				n = (int)l->owed;
			} else {
				v->posted_receives += (uint32_t)n;
			}
			l->owed -= (uint32_t)n;
			v->wanted_receives -= (uint32_t)n;
		}
		if (l->owed)
			v->owed_lanes[kept++] = lane;
		else
			l->is_owed = 0;
	}
	v->n_owed = kept;
}
