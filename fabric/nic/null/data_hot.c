/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The null NIC's data path: post remembers the latest id of a lane, reap reports one completion a lane.
 * Called by the core's step. It must never allocate, lock, log or make a system call, nor read the payload.
 */
#include "fabric/nic/null/null.h"

#include <errno.h>
#include <stddef.h>

int epf_null_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct epf_null *null = (struct epf_null *)nic;
	struct epf_null_lane *l;
	uint64_t bytes = 0;
	unsigned i, room;

	if (lane >= EPF_NULL_LANES)
		return -ENOTCONN;
	l = &null->lanes[lane];
	if (!l->used || l->link != EPF_LANE_READY)
		return -ENOTCONN;
	room = l->depth - l->outstanding;
	if (n > room)
		n = room;
	if (n == 0)
		return 0;
	for (i = 0; i < n; i++)
		bytes += wr[i].len;
	l->last_id = wr[n - 1].id;
	l->outstanding += n;
	null->dirty[lane >> 6] |= 1ull << (lane & 63);
	null->summary |= 1ull << (lane >> 6);
	null->counters.bytes_tx += bytes;
	null->counters.messages_tx += n;
	null->counters.doorbells++;
	return (int)n;
}

int epf_null_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct epf_null *null = (struct epf_null *)nic;
	unsigned done = 0;

	while (null->summary && done < n) {
		uint32_t word = (uint32_t)__builtin_ctzll(null->summary);
		uint32_t lane = word * 64 + (uint32_t)__builtin_ctzll(null->dirty[word]);
		struct epf_null_lane *l = &null->lanes[lane];

		null->dirty[word] &= null->dirty[word] - 1;
		if (null->dirty[word] == 0)
			null->summary &= null->summary - 1;
		if (l->outstanding == 0)
			continue;
		l->outstanding = 0;
		wc[done++] = (struct epf_wc){
			.id = l->last_id,
			.lane = (uint16_t)lane,
			.op = EPF_WC_SENT,
			.status = EPF_S_OK,
		};
	}
	return (int)done;
}

uint64_t epf_null_next_event(const struct epf_nic *nic)
{
	return ((const struct epf_null *)nic)->summary ? 0 : UINT64_MAX;
}
