/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of GPU memory: submitting chunks, ending flights, and copies through memory of this process (gpu.h). */
#define EPF_LOG_COMP "p2p"
#include "fabric/p2p/gpu.h"

#include "fabric/base/clock.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <sched.h>

bool epf_p2p_gpu_reserve(struct gpu_lane *l)
{
	uint32_t taken = EPF_LOAD_RELAXED(&l->taken);

	do {
		if (taken == GPU_FLIGHTS)
			return false;
	} while (!__atomic_compare_exchange_n(&l->taken, &taken, taken + 1, false, __ATOMIC_SEQ_CST,
					      __ATOMIC_RELAXED));
	return true;
}

void epf_p2p_gpu_unreserve(struct gpu_lane *l)
{
	__atomic_fetch_sub(&l->taken, 1u, __ATOMIC_SEQ_CST);
}

static uint32_t length(const struct epf_p2p_block *b)
{
	return (uint32_t)(b->lo >> 48 | b->hi >> 48 << 16);
}

/* Logs the driver's reason, of which the transfer reports only the errno. */
static int fail(const struct gpu_lane *l)
{
	epf_warn_ratelimited("copies by GPU %d: %s", l->device, epf_last_error());
	return -EIO;
}

/* Fills in the copies of a chunk. */
static void fill(struct epf_copy_span *s, const struct epf_p2p_xfer *x, const struct vector *v,
		 const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes)
{
	uint64_t here = (uint64_t)(uintptr_t)v->region->addr + skip, there = v->there + skip;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t h = here + (b[i].lo & 0xffffffffffffull);
		uint64_t t = there + (b[i].hi & 0xffffffffffffull);

		s[i].dst = x->op == EPF_P2P_OP_WRITE ? t : h;
		s[i].src = x->op == EPF_P2P_OP_WRITE ? h : t;
		s[i].bytes = n == 1 ? bytes : length(&b[i]);
		s[i].host = v->import->kind != MEMORY_GPU || v->region->device < 0;
	}
}

static void hold(struct epf_p2p_xfer *x)
{
	pthread_mutex_lock(&x->ep->run.lock);
	x->flights++;
	pthread_mutex_unlock(&x->ep->run.lock);
}

int epf_p2p_gpu_copy(struct epf_p2p_xfer *x, const struct vector *v, const struct epf_p2p_block *b,
		     uint32_t n, uint64_t skip, uint64_t bytes, uint32_t *inuse)
{
	struct gpu_lane *l = v->lane;
	bool by_kernel = v->by_kernel && l->kernels.q && n >= GPU_MANY && bytes / n < GPU_SMALL;
	struct gpu_queue *q = by_kernel ? &l->kernels : &l->engines;
	int rc;

	pthread_mutex_lock(&l->lock);
	fill(l->spans, x, v, b, n, skip, bytes);
	rc = l->ops->submit(q->q, l->spans, n, q->last + 1);
	if (!rc) {
		hold(x);
		q->flights[(q->first + q->count) % GPU_FLIGHTS] =
			(struct gpu_flight){ x, inuse, bytes, ++q->last };
		q->count++;
	}
	pthread_mutex_unlock(&l->lock);
	return rc ? fail(l) : P2P_LATER;
}

/* Takes flights that have ended out of a queue. Returns how many, with the status of all in *status. lane->lock held. */
static unsigned take(struct gpu_lane *l, struct gpu_queue *q, struct gpu_flight *out, int *status)
{
	uint64_t reached;
	unsigned n = 0;

	if (!q->count)
		return 0;
	reached = l->ops->reached(q->q);
	*status = reached == UINT64_MAX ? fail(l) : 0;
	while (q->count && q->flights[q->first].value <= reached) {
		out[n++] = q->flights[q->first];
		q->first = (q->first + 1) % GPU_FLIGHTS;
		q->count--;
	}
	return n;
}

unsigned epf_p2p_gpu_over(struct gpu_lane *l, struct gpu_flight *out, int *status)
{
	unsigned n;

	if (!EPF_LOAD_RELAXED(&l->taken) || pthread_mutex_trylock(&l->lock))
		return 0;
	n = take(l, &l->engines, out, status);
	if (!n)
		n = take(l, &l->kernels, out, status);
	pthread_mutex_unlock(&l->lock);
	for (unsigned i = 0; i < n; i++) {
		__atomic_fetch_sub(out[i].inuse, 1u, __ATOMIC_SEQ_CST);
		epf_p2p_gpu_unreserve(l);
	}
	return n;
}

bool epf_p2p_gpu_is_busy(struct epf_p2p *ep)
{
	for (struct gpu_lane *l = EPF_LOAD_ACQUIRE(&ep->gpu.lanes); l; l = l->next)
		if (__atomic_load_n(&l->taken, __ATOMIC_SEQ_CST))
			return true;
	return false;
}

bool epf_p2p_gpu_is_quiet(struct epf_p2p *ep)
{
	for (struct gpu_lane *l = ep->gpu.lanes; l; l = l->next)
		if (l->stage.q && l->ops->reached(l->stage.q) < l->stage.last)
			return false;
	return !epf_p2p_gpu_is_busy(ep);
}

int epf_p2p_gpu_await_stage(struct epf_p2p_xfer *x, struct gpu_lane *l)
{
	const struct gpu_stage *s = &l->stage;
	uint64_t reached;

	if (s->is_broken)
		return -EIO;
	while ((reached = l->ops->reached(s->q)) < s->last) {
		if (epf_now_ns() > EPF_LOAD_RELAXED(&x->deadline_ns))
			return -ETIMEDOUT;
		sched_yield();
	}
	return reached == UINT64_MAX ? fail(l) : 0;
}

int epf_p2p_gpu_stage(struct epf_p2p_xfer *x, const struct vector *v, const struct epf_p2p_block *b,
		      uint32_t n, uint64_t skip, uint64_t bytes)
{
	struct gpu_lane *l = v->lane;
	struct gpu_stage *s = &l->stage;
	struct epf_copy_span spans[P2P_CHUNK_BLOCKS];
	uint64_t at = (uint64_t)(uintptr_t)s->memory;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t here =
			(uint64_t)(uintptr_t)v->region->addr + skip + (b[i].lo & 0xffffffffffffull);

		spans[i].dst = x->op == EPF_P2P_OP_WRITE ? at : here;
		spans[i].src = x->op == EPF_P2P_OP_WRITE ? here : at;
		spans[i].bytes = n == 1 ? bytes : length(&b[i]);
		spans[i].host = 1;
		at += spans[i].bytes;
	}
	if (l->ops->submit(s->q, spans, n, s->last + 1)) {
		s->is_broken = true;
		return fail(l);
	}
	s->last++;
	return epf_p2p_gpu_await_stage(x, l);
}
