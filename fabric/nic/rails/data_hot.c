/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several NICs as one, the data path: each call goes to the child that has the lane, or to all, round-robin. Called by the core's
 * step through epf_nic_ops. It must never allocate, lock, log or make a system call.
 */
#include "fabric/nic/rails/rails.h"

int epf_rails_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_rails *r = epf_rails_of(nic);

	return r->ops->post(r->child[lane % r->n], lane, wr, n);
}

int epf_rails_post_one(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_rails *r = epf_rails_of(nic);

	return r->ops->post(r->child[0], lane, wr, n);
}

/* Each child once, so that messages named by this reap stay valid until the next; another one first each time. */
int epf_rails_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct epf_rails *r = epf_rails_of(nic);
	uint32_t at = r->first;
	unsigned taken = 0;

	r->first = at + 1 == r->n ? 0 : at + 1;
	for (uint32_t i = 0; i < r->n && taken < n; i++) {
		int got = r->ops->reap(r->child[at], wc + taken, n - taken);

		for (int k = 0; k < got; k++)
			r->owed[at] += wc[taken + (unsigned)k].op == EPF_WC_RECV ||
				       wc[taken + (unsigned)k].op == EPF_WC_RECV_IMM;
		taken += got > 0 ? (unsigned)got : 0;
		at = at + 1 == r->n ? 0 : at + 1;
	}
	nic->served = 0;
	for (uint32_t i = 0; i < r->n; i++)
		nic->served += r->child[i]->served;
	return (int)taken;
}

/* To each as many as it has used; what is more than that, a job that begins, to all alike. */
void epf_rails_post_receives(struct epf_nic *nic, unsigned n)
{
	struct epf_rails *r = epf_rails_of(nic);

	for (uint32_t i = 0; i < r->n && n; i++) {
		unsigned give = r->owed[i] < n ? r->owed[i] : n;

		if (!give)
			continue;
		r->owed[i] -= give;
		n -= give;
		r->ops->post_receives(r->child[i], give);
	}
	for (uint32_t i = 0; i < r->n && n; i++) {
		unsigned give = (n + r->n - 1 - i) / (r->n - i);

		n -= give;
		r->receives[i] += give;
		r->ops->post_receives(r->child[i], give);
	}
}

uint64_t epf_rails_next_event(const struct epf_nic *nic)
{
	const struct epf_rails *r = epf_rails_of(nic);
	uint64_t first = UINT64_MAX;

	for (uint32_t i = 0; i < r->n; i++) {
		uint64_t at = r->ops->next_event(r->child[i]);

		if (at < first)
			first = at;
	}
	return first;
}

int epf_rails_wake_pending(const struct epf_nic *nic)
{
	const struct epf_rails *r = epf_rails_of(nic);
	int pending = 0;

	for (uint32_t i = 0; i < r->n; i++)
		pending |= r->ops->wake_pending(r->child[i]);
	return pending;
}
