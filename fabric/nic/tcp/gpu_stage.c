/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from GPU memory: bytes are copied to pinned memory ahead of the socket, in the order of sending. Called by tx.c and effect.c.
 */
#include "fabric/nic/tcp/staging.h"
#include "fabric/nic/tcp/tcp.h"

/* Number of a copy that never started: the memory is gone. */
static const uint64_t NEVER = UINT64_MAX;

/* Returns room for `bytes` in one piece, or NULL if there is none now. */
static uint8_t *take(struct epf_tcp_ring *ring, uint32_t bytes, uint32_t *end)
{
	uint32_t at = ring->head % ring->size;
	uint32_t pad = ring->size - at < bytes ? ring->size - at : 0;

	if (ring->head - ring->tail + pad + bytes > ring->size) {
		ring->was_full = true;
		return NULL;
	}
	ring->head += pad + bytes;
	*end = ring->head;
	return ring->pinned->base + (pad ? 0 : at);
}

/* Starts the copy of a covered range of a region to the ring. Returns false if there is no room now. */
static bool stage(struct epf_tcp *t, struct epf_tcp_lane_gpu *g, struct epf_tcp_ring *ring,
		  uint32_t key, uint64_t addr, uint32_t bytes, struct epf_tcp_staged *s)
{
	struct epf_tcp_job job = { .kind = EPF_TCP_JOB_COPY,
				   .src = epf_tcp_spot_in(&t->regions[key & 0xffff], addr),
				   .bytes = bytes,
				   .pinned = ring->pinned };

	if (!epf_tcp_ring_ready(t, g, ring, bytes, false) || !epf_tcp_copier_room(t->copier))
		return false;
	if (!ring->pinned->base) {
		s->number = NEVER;
		return true;
	}
	s->at = take(ring, bytes, &s->end);
	if (!s->at)
		return false;
	job.dst.at = (uint64_t)(uintptr_t)s->at;
	g->last = s->number = epf_tcp_copier_push(t->copier, &job);
	return true;
}

void epf_tcp_gpu_stage(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct epf_tcp_lane_gpu *g = l->gpu;
	uint32_t end = l->tx.head - l->tx.has_bad;
	uint64_t before = g->last;

	for (; g->next != end; g->next++) {
		const struct epf_wr *wr = &l->tx.wrs[g->next & l->mask];
		struct epf_tcp_staged *s = &g->requests[g->next & l->mask];

		s->number = 0;
		if (!epf_tcp_is_from_gpu(wr))
			continue;
		if (!epf_tcp_covers(t, wr->lkey, wr->laddr, wr->len, 0))
			s->number = NEVER;
		else if (!stage(t, g, &g->tx, wr->lkey, wr->laddr, wr->len, s))
			break;
	}
	if (g->last != before)
		epf_tcp_copier_kick(t->copier);
}

void epf_tcp_gpu_stage_answers(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct epf_tcp_lane_gpu *g = l->gpu;
	uint64_t before = g->last;

	for (; g->owed_next != l->tx.owed_head; g->owed_next++) {
		const struct epf_tcp_owed *o = &l->tx.owed[g->owed_next % EPF_TCP_READS];
		struct epf_tcp_staged *s = &g->owed[g->owed_next % EPF_TCP_READS];

		s->number = 0;
		/* An answer that no region covers is refused when its turn comes. */
		if (o->len && epf_tcp_covers(t, o->rkey, o->raddr, o->len, EPF_MR_REMOTE_READ) &&
		    t->regions[o->rkey & 0xffff].mem &&
		    !stage(t, g, &g->answers, o->rkey, o->raddr, o->len, s))
			break;
	}
	if (g->last != before)
		epf_tcp_copier_kick(t->copier);
}

/* Makes the copy job of a request between two lanes of this NIC. Returns false if no GPU memory takes part, or the request will be refused. */
static bool loop_job(const struct epf_tcp *t, const struct epf_wr *wr, struct epf_tcp_job *job)
{
	bool is_read = wr->op == EPF_WR_READ;
	struct epf_tcp_spot own = { .at = wr->laddr }, peer;

	if (wr->op == EPF_WR_SEND || !wr->len)
		return false;
	if (!epf_tcp_find_spot(t, wr->rkey, wr->raddr, wr->len,
			       is_read ? EPF_MR_REMOTE_READ : EPF_MR_REMOTE_WRITE, &peer))
		return false;
	if (!(wr->flags & EPF_WR_INLINE) &&
	    !epf_tcp_find_spot(t, wr->lkey, wr->laddr, wr->len, 0, &own))
		return false;
	job->dst = is_read ? own : peer;
	job->src = is_read ? peer : own;
	job->bytes = wr->len;
	return own.mem || peer.mem;
}

void epf_tcp_gpu_stage_loop(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct epf_tcp_lane_gpu *g = l->gpu;
	uint32_t end = l->tx.head - l->tx.has_bad;
	uint64_t before = g->last;

	for (; g->next != end && epf_tcp_copier_room(t->copier); g->next++) {
		struct epf_tcp_job job = { .kind = EPF_TCP_JOB_COPY, .pinned = g->tx.pinned };

		g->requests[g->next & l->mask].number = 0;
		if (loop_job(t, &l->tx.wrs[g->next & l->mask], &job))
			g->last = g->requests[g->next & l->mask].number =
				epf_tcp_copier_push(t->copier, &job);
	}
	if (g->last != before)
		epf_tcp_copier_kick(t->copier);
}

static enum epf_tcp_copied state_of(const struct epf_tcp *t, const struct epf_tcp_ring *ring,
				    const struct epf_tcp_staged *s)
{
	uint64_t failed;

	if (s->number == NEVER)
		return EPF_TCP_COPY_FAILED;
	if (s->number > epf_tcp_copier_done(t->copier))
		return EPF_TCP_COPYING;
	failed = __atomic_load_n(&ring->pinned->failed, __ATOMIC_RELAXED);
	return failed && s->number >= failed ? EPF_TCP_COPY_FAILED : EPF_TCP_COPIED;
}

enum epf_tcp_copied epf_tcp_gpu_request(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t number,
					uint64_t *at)
{
	struct epf_tcp_lane_gpu *g = l->gpu;
	const struct epf_tcp_staged *s = &g->requests[number & l->mask];
	enum epf_tcp_copied state;

	if (number == g->next)
		state = EPF_TCP_COPYING;
	else if (!s->number)
		return EPF_TCP_COPIED;
	else
		state = state_of(t, &g->tx, s);
	if (state == EPF_TCP_COPYING)
		g->tx_waits = true;
	if (state == EPF_TCP_COPY_FAILED)
		g->is_bad = g->tx_waits = true;
	if (state == EPF_TCP_COPIED && at) {
		*at = (uint64_t)(uintptr_t)s->at;
		g->tx_end = s->end;
	}
	return state;
}

enum epf_tcp_copied epf_tcp_gpu_answer(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t number,
				       uint64_t *at)
{
	struct epf_tcp_lane_gpu *g = l->gpu;
	const struct epf_tcp_staged *s = &g->owed[number % EPF_TCP_READS];
	enum epf_tcp_copied state = EPF_TCP_COPYING;

	if (number != g->owed_next) {
		if (!s->number)
			return EPF_TCP_COPIED;
		state = state_of(t, &g->answers, s);
	}
	if (state == EPF_TCP_COPIED) {
		*at = (uint64_t)(uintptr_t)s->at;
		g->answers_end = s->end;
	}
	return state;
}

void epf_tcp_gpu_train_sent(struct epf_tcp_lane *l)
{
	l->gpu->tx.tail = l->gpu->tx_end;
	l->gpu->answers.tail = l->gpu->answers_end;
}
