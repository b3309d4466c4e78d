/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving into GPU memory: payload arrives in pinned memory and is copied to its place while more arrives. Called by rx.c and trains.c.
 */
#include "fabric/nic/tcp/staging.h"
#include "fabric/nic/tcp/tcp.h"

/* Releases the room of completed copies. */
static void release(struct epf_tcp_ring *ring, uint64_t done)
{
	while (ring->first != ring->last && ring->parts[ring->first % EPF_TCP_PARTS].number <= done)
		ring->tail = ring->parts[ring->first++ % EPF_TCP_PARTS].end;
}

void epf_tcp_gpu_pause(struct epf_tcp_lane *l)
{
	if (l->gpu)
		l->gpu->rx_waits = true;
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
	/* Reserved bytes lie in the present memory, so no other is requested. */
	if (!epf_tcp_ring_ready(t, g, ring, ahead ? 0 : *bytes, true) || !ring->pinned->base ||
	    ring->last - ring->first + EPF_TCP_PIECES > EPF_TCP_PARTS ||
	    epf_tcp_copier_room(t->copier) < EPF_TCP_PIECES)
		return false;
	head = ring->head + ahead;
	room = ring->size - (head - ring->tail);
	if (room < *bytes)
		ring->was_full = true;
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

bool epf_tcp_gpu_has_first(const struct epf_tcp *t, const struct epf_tcp_lane *l)
{
	const struct epf_tcp_held *first = &l->gpu->held[l->gpu->held_first % EPF_TCP_HELD];

	return epf_tcp_gpu_landed(t, l, first->copied) != EPF_TCP_COPYING;
}

int epf_tcp_gpu_gather(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_spot dst,
		       uint32_t i, uint32_t left, uint32_t *reserved, struct iovec *v,
		       struct epf_tcp_piece *pieces, int n)
{
	int from = n;

	while (left && n < EPF_TCP_PIECES) {
		uint32_t bytes = left;
		uint8_t *at;

		if (!epf_tcp_gpu_room(t, l, *reserved, &at, &bytes))
			break;
		pieces[n] = (struct epf_tcp_piece){ dst, i };
		v[n++] = (struct iovec){ at, bytes };
		*reserved += bytes;
		dst.at += bytes;
		left -= bytes;
	}
	return n - from;
}

void epf_tcp_gpu_land_pieces(struct epf_tcp *t, struct epf_tcp_lane *l, const struct iovec *v,
			     const struct epf_tcp_piece *pieces, size_t bytes)
{
	for (unsigned k = 0; bytes; k++) {
		uint32_t n = bytes < v[k].iov_len ? (uint32_t)bytes : (uint32_t)v[k].iov_len;

		if (pieces[k].dst.mem)
			epf_tcp_gpu_land(t, l, &pieces[k].dst, n, pieces[k].desc);
		bytes -= n;
	}
}

void epf_tcp_gpu_hold(struct epf_tcp_lane *l)
{
	struct epf_tcp_rx *rx = &l->rx;
	struct epf_tcp_lane_gpu *g = l->gpu;

	if (g->held_last - g->held_first + rx->count - rx->done > EPF_TCP_HELD)
		return;
	for (uint32_t i = rx->done; i < rx->count; i++)
		if (rx->descs[i].kind == EPF_TCP_SEND)
			return;
	for (; rx->done < rx->count; rx->done++) {
		g->held[g->held_last++ % EPF_TCP_HELD] =
			(struct epf_tcp_held){ .desc = rx->descs[rx->done],
					       .slot = rx->slots[rx->done],
					       .copied = g->copied[rx->done] };
		g->held_reads += rx->descs[rx->done].kind == EPF_TCP_BYTES;
	}
}
