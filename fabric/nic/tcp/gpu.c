/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory and the TCP NIC: regions, memory of lanes, and completed copies. Called through epf_nic_ops, by lane.c and by reap.c.
 */
#define EPF_LOG_COMP "tcp"
#include "fabric/nic/tcp/staging.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/nic/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- lanes ---- */

static void lane_drop(struct epf_tcp_lane *l)
{
	struct epf_tcp_lane_gpu *g = l->gpu;

	free(g->tx.pinned);
	free(g->answers.pinned);
	free(g->rx.pinned);
	free(g->requests);
	free(g);
	l->gpu = NULL;
}

int epf_tcp_gpu_lane(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct epf_tcp_lane_gpu *g;

	if (!t->copier || l->gpu)
		return 0;
	g = l->gpu = calloc(1, sizeof(*g));
	if (!g)
		return epf_fail(EPF_R_NO_MEMORY, "tcp: lane %u", l->number);
	g->tx.pinned = calloc(1, sizeof(*g->tx.pinned));
	g->answers.pinned = calloc(1, sizeof(*g->tx.pinned));
	g->rx.pinned = calloc(1, sizeof(*g->tx.pinned));
	g->requests = calloc(l->mask + 1u, sizeof(*g->requests));
	if (!g->tx.pinned || !g->answers.pinned || !g->rx.pinned || !g->requests) {
		lane_drop(l);
		return epf_fail(EPF_R_NO_MEMORY, "tcp: lane %u", l->number);
	}
	/* Requests posted before send host memory. */
	g->next = l->tx.head;
	g->owed_next = l->tx.owed_head;
	return 0;
}

/* Pushes a job. Returns false if there is no room, because the GPU does not end its copies. */
static bool push_slowly(struct epf_tcp *t, const struct epf_tcp_job *job)
{
	if (!epf_tcp_copier_room(t->copier) && !epf_tcp_copier_quiesce(t->copier))
		return false;
	epf_tcp_copier_push(t->copier, job);
	epf_tcp_copier_kick(t->copier);
	return true;
}

/* Frees pinned memory once the jobs that may use it are complete; keeps it if they never are. */
static void drop_pinned(struct epf_tcp *t, struct epf_tcp_pinned **p)
{
	struct epf_tcp_job job = { .kind = EPF_TCP_JOB_UNPIN, .pinned = *p };

	if (*p && !push_slowly(t, &job))
		epf_warn("the GPU does not finish its copies; memory of a connection is kept");
	*p = NULL;
}

void epf_tcp_gpu_lane_free(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct epf_tcp_lane_gpu *g = l->gpu;

	if (!g)
		return;
	if (!epf_tcp_gpu_is_quiet(t, l))
		(void)epf_tcp_copier_quiesce(t->copier);
	drop_pinned(t, &g->tx.pinned);
	drop_pinned(t, &g->answers.pinned);
	drop_pinned(t, &g->rx.pinned);
	lane_drop(l);
}

/* ---- regions ---- */

static int open_copier(struct epf_tcp *t)
{
	const struct epf_copy_ops *ops;
	int rc;

	if (t->copier)
		return 0;
	if (t->copier_of != t) {
		rc = open_copier(t->copier_of);
		t->copier = t->copier_of->copier;
		t->adds = t->copier_of->adds;
		return rc;
	}
	rc = epf_copy_ops_find(t->opts.gpu ? t->opts.gpu : "none", &ops);
	if (!rc && !t->adds)
		t->adds = calloc(1, sizeof(*t->adds));
	if (!rc && !t->adds)
		rc = epf_fail(EPF_R_NO_MEMORY, "tcp: GPU copies");
	return rc ? rc : epf_tcp_copier_open(ops, t->wakeup, &t->copier);
}

/* Lets the copier prepare for memory before kernels wait for copies of it. */
static int prepare(struct epf_tcp *t, struct epf_copy_mem *mem)
{
	struct epf_tcp_job job = { .kind = EPF_TCP_JOB_PREPARE, .dst.mem = mem };

	epf_copy_mem_get(mem);
	if (!push_slowly(t, &job)) {
		epf_copy_mem_put(mem);
		return epf_fail(EPF_R_GPU_MEMORY, "tcp: the GPU does not finish its copies");
	}
	if (!epf_tcp_copier_quiesce(t->copier))
		return epf_fail(
			EPF_R_GPU_MEMORY,
			"tcp: the GPU does not get ready for copies within 5 s, "
			"perhaps because kernels run that wait for them: register memory before such kernels start");
	if (__atomic_load_n(&mem->state, __ATOMIC_ACQUIRE) != 1) /* C5 */
		return epf_fail(EPF_R_GPU_MEMORY,
				"tcp: memory of GPU %d cannot be mapped: see the log", mem->device);
	return 0;
}

int epf_tcp_register_gpu(struct epf_nic *nic, struct epf_copy_mem *mem, unsigned access,
			 struct epf_nic_mr *out)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	int rc = open_copier(t);

	if (rc)
		return rc;
	if (mem->ops != epf_tcp_copier_ops(t->copier))
		return epf_fail(EPF_R_GPU_MEMORY, "tcp: memory of %s, but gpu-backend is %s",
				mem->ops->name, epf_tcp_copier_ops(t->copier)->name);
	rc = prepare(t, mem);
	for (uint32_t i = 0; i < t->lanes_end && !rc; i++)
		if (t->lanes[i])
			rc = epf_tcp_gpu_lane(t, t->lanes[i]);
	if (!rc)
		rc = nic->ops->region_register(nic, (void *)(uintptr_t)mem->addr, mem->bytes,
					       access, out);
	if (rc)
		return rc;
	epf_copy_mem_get(mem);
	t->regions[out->rkey & 0xffff].mem = mem;
	return 0;
}

void epf_tcp_gpu_forget(struct epf_tcp *t, struct epf_copy_mem *mem)
{
	struct epf_tcp_job job = { .kind = EPF_TCP_JOB_FORGET, .dst.mem = mem };

	if (!epf_tcp_copier_quiesce(t->copier) || !push_slowly(t, &job) ||
	    !epf_tcp_copier_quiesce(t->copier))
		epf_warn("the GPU does not finish its copies; a region of it is kept");
}

void epf_tcp_gpu_close(struct epf_tcp *t)
{
	if (!t->copier)
		return;
	for (uint32_t i = 0; i < t->nregions; i++)
		if (t->regions[i].mem)
			epf_tcp_gpu_forget(t, t->regions[i].mem);
	if (t->copier_of == t) {
		drop_pinned(t, &t->adds);
		epf_tcp_copier_close(t->copier);
	}
	t->copier = NULL;
}

/* ---- rings ---- */

int epf_tcp_ring_ready(struct epf_tcp *t, struct epf_tcp_lane_gpu *g, struct epf_tcp_ring *ring,
		       uint32_t bytes, bool less)
{
	struct epf_tcp_job job = { .kind = EPF_TCP_JOB_PIN, .pinned = ring->pinned };
	uint32_t size = bytes && ring->was_full ? EPF_TCP_RING_BUSY : EPF_TCP_RING_LEAST;
	bool is_there = ring->made && ring->made <= epf_tcp_copier_done(t->copier);

	while (size < EPF_TCP_RING_MOST && size / 2 < bytes)
		size *= 2;
	if (ring->size >= size)
		return is_there;
	if (ring->head != ring->tail || (ring->made && !is_there) ||
	    !epf_tcp_copier_room(t->copier))
		return is_there && less;
	ring->size = size;
	job.bytes = size;
	g->last = ring->made = epf_tcp_copier_push(t->copier, &job);
	epf_tcp_copier_kick(t->copier);
	return 0;
}

/* ---- completed copies ---- */

int epf_tcp_gpu_has_completed(const struct epf_tcp *t)
{
	return epf_tcp_copier_done(t->copier) != t->copies_done;
}

void epf_tcp_gpu_reap(struct epf_tcp *t)
{
	uint64_t before = t->copies_done, done = epf_tcp_copier_done(t->copier);

	if (done == before)
		return;
	t->copies_done = done;
	for (uint32_t i = 0; i < t->lanes_end; i++) {
		struct epf_tcp_lane *l = t->lanes[i];

		/* A lane that waits may wait for room that another lane's copies took. */
		if (l && l->gpu && (l->gpu->last > before || l->gpu->tx_waits || l->gpu->rx_waits))
			epf_tcp_make_ready(t, l);
	}
}

int epf_tcp_gpu_is_quiet(const struct epf_tcp *t, const struct epf_tcp_lane *l)
{
	return !l->gpu || l->gpu->last <= epf_tcp_copier_done(t->copier);
}

/* ---- additions ---- */

int epf_tcp_add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset, uint64_t value)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	const struct epf_tcp_region *r = &t->regions[mr->rkey & 0xffff];
	struct epf_tcp_job job = { .kind = EPF_TCP_JOB_ADD, .bytes = value, .pinned = t->adds };

	if (!t->copier || r->key != mr->rkey || !r->mem)
		return -EINVAL;
	if (!epf_tcp_copier_room(t->copier))
		return -EAGAIN;
	job.dst = (struct epf_tcp_spot){ r->mem, offset };
	t->last_add = epf_tcp_copier_push(t->copier, &job);
	epf_tcp_copier_kick(t->copier);
	return 0;
}

int epf_tcp_add_pending(struct epf_nic *nic)
{
	const struct epf_tcp *t = epf_tcp_of(nic);

	return t->copier && t->last_add > epf_tcp_copier_done(t->copier);
}
