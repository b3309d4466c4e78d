/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving into GPU memory: payload is received into pinned memory and copied to its place while more is received. Called by rx.c.
 */
#include "fabric/nic/tcp/staging.h"
#include "fabric/nic/tcp/tcp.h"

/* Releases what has been copied. */
static void release(struct epf_tcp_ring *ring, uint64_t done)
{
	while (ring->first != ring->last && ring->parts[ring->first % EPF_TCP_PARTS].number <= done)
		ring->tail = ring->parts[ring->first++ % EPF_TCP_PARTS].end;
}

bool epf_tcp_gpu_can_land(const struct epf_tcp *t, const struct epf_tcp_lane *l)
{
	const struct epf_tcp_ring *ring = &l->gpu->rx;

	return !ring->made || ring->made > epf_tcp_copier_done(t->copier) || ring->pinned->base;
}

bool epf_tcp_gpu_room(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t ahead, uint8_t **at,
		      uint32_t *bytes)
{
	struct epf_tcp_lane_gpu *g = l->gpu;
	struct epf_tcp_ring *ring = &g->rx;
	uint32_t head, room;

	release(ring, epf_tcp_copier_done(t->copier));
	/* What is spoken for lies in the memory that is there. */
	if (!epf_tcp_ring_ready(t, g, ring, ahead ? 0 : *bytes, true) || !ring->pinned->base ||
	    ring->last - ring->first + EPF_TCP_PIECES > EPF_TCP_PARTS ||
	    epf_tcp_copier_room(t->copier) < EPF_TCP_PIECES)
		return false;
	head = ring->head + ahead;
	room = ring->size - (head - ring->tail);
	if (room > ring->size - head % ring->size)
		room = ring->size - head % ring->size;
	if (*bytes > room)
		*bytes = room;
	*at = ring->pinned->base + head % ring->size;
	return room != 0;
}

void epf_tcp_gpu_land(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_spot *dst,
		      uint32_t bytes, uint32_t desc)
{
	struct epf_tcp_lane_gpu *g = l->gpu;
	struct epf_tcp_ring *ring = &g->rx;
	struct epf_tcp_job job = {
		.kind = EPF_TCP_JOB_COPY, .dst = *dst, .bytes = bytes, .pinned = ring->pinned
	};

	job.src.at = (uint64_t)(uintptr_t)(ring->pinned->base + ring->head % ring->size);
	g->last = g->copied[desc] = epf_tcp_copier_push(t->copier, &job);
	g->has_copied = true;
	ring->head += bytes;
	ring->parts[ring->last % EPF_TCP_PARTS].number = g->last;
	ring->parts[ring->last++ % EPF_TCP_PARTS].end = ring->head;
	epf_tcp_copier_kick(t->copier);
}

enum epf_tcp_copied epf_tcp_gpu_landed(const struct epf_tcp *t, const struct epf_tcp_lane *l,
				       uint64_t number)
{
	uint64_t failed;

	if (!number)
		return EPF_TCP_COPIED;
	if (number > epf_tcp_copier_done(t->copier))
		return EPF_TCP_COPYING;
	failed = __atomic_load_n(&l->gpu->rx.pinned->failed, __ATOMIC_RELAXED);
	return failed && number >= failed ? EPF_TCP_COPY_FAILED : EPF_TCP_COPIED;
}
