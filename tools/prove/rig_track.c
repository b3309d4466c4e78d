/* SPDX-License-Identifier: Apache-2.0 */
/* What a NIC on the real clock has not reported yet: see rig_track.h. */
#include "tools/prove/rig_track.h"

#include <stdlib.h>
#include <string.h>

/*
 * On the real clock: what has been posted and not reported, so that a run knows how long to wait. The rig puts these in the
 * places of post, reap and lane_destroy.
 */
enum { TRACKED_LANES = 512, TRACKED = 256 };

struct rig_track {
	struct epf_nic_ops ops;
	const struct epf_nic_ops *real;
	int ordered;
	unsigned outstanding;

	struct {
		unsigned n;
		uint32_t id[TRACKED];
	} lanes[TRACKED_LANES];
};

static struct rig_track *track_of(const struct epf_nic *nic)
{
	return (struct rig_track *)(uintptr_t)nic->ops; /* its first member */
}

static int tracked_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct rig_track *t = track_of(nic);
	int done = t->real->post(nic, lane, wr, n);

	for (int i = 0; i < done; i++) {
		REQUIRE(lane < TRACKED_LANES && t->lanes[lane].n < TRACKED);
		t->lanes[lane].id[t->lanes[lane].n++] = wr[i].id;
		t->outstanding++;
	}
	return done;
}

static void tracked_sent(struct rig_track *t, const struct epf_wc *wc)
{
	unsigned n = t->lanes[wc->lane].n, at = n, from, gone;
	uint32_t *id = t->lanes[wc->lane].id;

	while (at && id[at - 1] != wc->id)
		at--;
	if (!at)
		return;
	from = t->ordered && wc->status == EPF_S_OK ? 0 : at - 1;
	gone = at - from;
	memmove(id + from, id + at, (n - at) * sizeof(*id));
	t->lanes[wc->lane].n -= gone;
	t->outstanding -= gone;
}

static int tracked_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct rig_track *t = track_of(nic);
	int done = t->real->reap(nic, wc, n);

	for (int i = 0; i < done; i++)
		if (wc[i].op == EPF_WC_SENT)
			tracked_sent(t, &wc[i]);
	return done;
}

static void tracked_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct rig_track *t = track_of(nic);

	t->outstanding -= t->lanes[lane].n;
	t->lanes[lane].n = 0;
	t->real->lane_destroy(nic, lane);
}

void rig_track(struct rig_end *end, int ordered)
{
	struct rig_track *t = calloc(1, sizeof(*t));

	REQUIRE(t);
	t->real = end->nic->ops;
	t->ordered = ordered;
	t->ops = *end->nic->ops;
	t->ops.post = tracked_post;
	t->ops.reap = tracked_reap;
	t->ops.lane_destroy = tracked_destroy;
	end->nic->ops = &t->ops;
	end->track = t;
}

unsigned rig_outstanding(const struct rig_end *end)
{
	return end->track ? end->track->outstanding : 0;
}
