/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 5: giving rings, signals and completion counters of a rank to the kernels of a GPU (epf_gpu_open in epf.h), and making sentences of what
 * kernels report. Slow path; one thread at a time for one struct epf_gpu. Works the same with an engine in this process and with a daemon, which hears
 * only whether kernels push: rings and signals are shared memory in both. Back-ends: gpu/gpu.h; the context itself: gpu/context.h.
 */
#define EPF_LOG_COMP "gpu"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/handle.h"
#include "fabric/gpu/context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS_PER_LINE = EPF_CACHELINE / EPF_CMD_BYTES };

struct epf_gpu {
	struct epf *ep;
	struct epf_gpu_dev *dev;
	struct epf_gpu_context *context;
	struct epf_gpu_watch *watch;
	struct epf_ring **rings; /* n_shared, then n_private */
	uint32_t n_shared;
	uint32_t n_private;
	uint32_t opened;
	bool pushes; /* the engine was told to stay awake */
};

static const char *backend_name(const struct epf *ep, const struct epf_gpu_options *o)
{
	static const char *const names[] = { "auto", "cuda", "hip", "fake", "none" };

	return o->backend ? o->backend : names[ep->conf.gpu_backend];
}

/* What the caller left open comes from the configuration. */
static struct epf_gpu_options complete(const struct epf *ep, const struct epf_gpu_options *opts)
{
	struct epf_gpu_options o = { .device = -1 };

	if (opts)
		memcpy(&o, opts, opts->size < sizeof(o) ? opts->size : sizeof(o));
	if (o.device < 0)
		o.device = (int)ep->conf.gpu_device;
	if (!o.private_rings)
		o.private_rings = (uint32_t)ep->conf.gpu_rings;
	if (o.private_rings == EPF_GPU_NO_PRIVATE)
		o.private_rings = 0;
	if (!o.shared_rings)
		o.shared_rings = (uint32_t)ep->conf.gpu_shared_rings;
	if (!o.ring_slots)
		o.ring_slots = (uint32_t)ep->conf.gpu_ring_slots;
	if (!o.shared_slots)
		o.shared_slots = (uint32_t)ep->conf.gpu_shared_slots;
	if (!o.timeout_ns)
		o.timeout_ns = ep->conf.gpu_timeout_ns;
	return o;
}

static int open_rings(struct epf_gpu *gpu, const struct epf_gpu_options *o)
{
	struct epf_ring_options shared = { .size = sizeof(shared), .slots = o->shared_slots };
	struct epf_ring_options private = { .size = sizeof(private), .slots = o->ring_slots };
	uint32_t n = o->shared_rings + o->private_rings;
	int rc = 0;

	gpu->rings = calloc(n, sizeof(struct epf_ring *));
	if (!gpu->rings)
		return epf_fail(EPF_R_NO_MEMORY, "epf_gpu_open: no memory for %u rings", n);
	gpu->n_shared = o->shared_rings;
	gpu->n_private = o->private_rings;
	for (uint32_t i = 0; i < n && !rc; i++) {
		struct epf_ring_options *r = i < o->shared_rings ? &shared : &private;

		/* Rings begin at pages: with the same first slot, all that a core polls would lie in one set of its cache. */
		r->start = (uint64_t)i * SLOTS_PER_LINE;
		rc = epf_ring_open(gpu->ep, r, &gpu->rings[i]);
		if (!rc)
			gpu->opened = i + 1;
	}
	return rc;
}

static int make_context(struct epf_gpu *gpu, const struct epf_gpu_options *o)
{
	struct epf *ep = gpu->ep;
	struct epf_gpu_ring_from *from = calloc(gpu->opened, sizeof(*from));
	struct epf_gpu_parts parts = { .rings = from,
				       .n_shared = gpu->n_shared,
				       .n_private = gpu->n_private,
				       .signals = ep->signals,
				       .n_signals = ep->n_signals,
				       .wakeup = ep->wakeup,
				       .rank = ep->rank,
				       .world = ep->world,
				       .timeout_ns = o->timeout_ns };
	int rc;

	if (!from)
		return epf_fail(EPF_R_NO_MEMORY, "epf_gpu_open: no memory");
	if (ep->gpu_signals)
		parts.device_signals = epf_gpu_signals_for_kernels(ep);
	for (uint32_t i = 0; i < gpu->opened; i++)
		from[i] = (struct epf_gpu_ring_from){ gpu->rings[i]->shm,
						      gpu->rings[i]->producer.head,
						      gpu->rings[i]->producer.pushed };
	rc = epf_gpu_context_create(gpu->dev, &parts, &gpu->context);
	free(from);
	return rc;
}

void epf_gpu_options_init(struct epf_gpu_options *opts)
{
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
	opts->device = -1;
}

/* One context a rank: this thread makes it, or nobody may. */
static int claim(struct epf *ep)
{
	bool busy;

	if (!epf_joined(ep))
		return epf_fail(EPF_R_NOT_JOINED, "epf_gpu_open");
	epf_lock_lists(ep);
	busy = ep->gpus || ep->gpu_opening;
	if (!busy)
		ep->gpu_opening = true;
	epf_unlock_lists(ep);
	return busy ? epf_fail(EPF_R_JOIN_ORDER, "epf_gpu_open: this rank has a GPU context") : 0;
}

/* Ends claim(); gpu: NULL, or the context, which epf_abort finds from now on. */
static void claimed(struct epf *ep, struct epf_gpu *gpu)
{
	epf_lock_lists(ep);
	ep->gpu_opening = false;
	ep->gpus = gpu;
	if (gpu && EPF_LOAD_RELAXED(&ep->aborted))
		epf_gpu_abort(ep);
	epf_unlock_lists(ep);
}

static int open_gpu(struct epf *ep, const struct epf_gpu_options *o, struct epf_gpu **out)
{
	const struct epf_gpu_ops *ops;
	struct epf_gpu *gpu;
	int rc = epf_gpu_backend(backend_name(ep, o), &ops);

	if (rc)
		return rc;
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu)
		return epf_fail(EPF_R_NO_MEMORY, "epf_gpu_open: no memory");
	gpu->ep = ep;
	rc = ops->open(o->device, &gpu->dev);
	if (!rc && ep->gpu_signals && o->device >= 0 && o->device != ep->gpu_signals_device)
		rc = epf_fail(EPF_R_GPU_MEMORY,
			      "epf_gpu_open: GPU %d, but the signals lie in memory of GPU %d",
			      o->device, ep->gpu_signals_device);
	if (!rc)
		rc = open_rings(gpu, o);
	if (!rc)
		rc = make_context(gpu, o);
	if (!rc)
		rc = epf_gpu_watch_open(ep, gpu->context, &gpu->watch);
	if (rc) {
		epf_gpu_close(gpu);
		return rc;
	}
	*out = gpu;
	return 0;
}

int epf_gpu_open(struct epf *ep, const struct epf_gpu_options *opts, struct epf_gpu **out)
{
	struct epf_gpu_options o = complete(ep, opts);
	struct epf_gpu *gpu = NULL;
	int rc = claim(ep);

	if (rc)
		return rc;
	rc = open_gpu(ep, &o, &gpu);
	claimed(ep, gpu);
	if (rc)
		return rc;
	rc = epf_gpu_pushes(gpu, 1);
	if (rc)
		epf_gpu_close(gpu);
	else
		*out = gpu;
	return rc;
}

int epf_gpu_pushes(struct epf_gpu *gpu, int does)
{
	struct epf *ep = gpu->ep;
	int rc;

	epf_lock_calls(ep);
	rc = ep->be->stay_awake(ep, does != 0);
	if (!rc)
		gpu->pushes = does != 0;
	epf_unlock_calls(ep);
	return rc;
}

/* What kernels pushed becomes what this ring has pushed, so that closing it waits for all of it. */
static void take_back(struct epf_gpu *gpu, uint32_t i)
{
	struct epf_ring *ring = gpu->rings[i];
	struct epf_gpu_ring_at at;

	if (gpu->context && epf_gpu_context_ring(gpu->context, i, &at))
		epf_warn("ring %u: where its kernels left it cannot be read: %s", ring->id,
			 epf_last_error());
	else if (gpu->context && !at.leased && !at.broken) {
		ring->producer.head = at.head;
		ring->producer.pushed = at.pushed;
	} else if (gpu->context) {
		epf_warn("ring %u: a kernel ended without closing it", ring->id);
		ring->producer.pushed = epf_ring_retired(&ring->producer);
	}
}

void epf_gpu_close(struct epf_gpu *gpu)
{
	if (!gpu)
		return;
	epf_lock_lists(gpu->ep);
	if (gpu->ep->gpus == gpu)
		gpu->ep->gpus = NULL;
	epf_unlock_lists(gpu->ep);
	epf_gpu_watch_close(gpu->watch);
	for (uint32_t i = 0; i < gpu->opened; i++)
		take_back(gpu, i);
	/* Where nothing will ever be retired any more, closing the rings waits for nothing. */
	if (epf_wait_why(gpu->ep, "GPU context", 0))
		for (uint32_t i = 0; i < gpu->opened; i++)
			gpu->rings[i]->producer.pushed = epf_ring_retired(&gpu->rings[i]->producer);
	epf_gpu_context_destroy(gpu->context);
	for (uint32_t i = 0; i < gpu->opened; i++)
		epf_ring_close(gpu->rings[i]);
	if (gpu->pushes)
		(void)epf_gpu_pushes(gpu, 0);
	if (gpu->dev)
		gpu->dev->ops->close(gpu->dev);
	free(gpu->rings);
	free(gpu);
}

struct epf_gpu_dev *epf_gpu_device(const struct epf_gpu *gpu)
{
	return gpu->dev;
}

const struct epf_gpu_ctx *epf_gpu_context(const struct epf_gpu *gpu)
{
	return (const struct epf_gpu_ctx *)(uintptr_t)epf_gpu_context_addr(gpu->context);
}

static int say_timeout(const struct epf *ep, const struct epf_gpu_status *s)
{
	unsigned long long want = s->want, seen = s->seen;

	switch (s->what) {
	case EPF_GPU_ROOM:
		return epf_fail(
			EPF_R_GPU_TIMEOUT,
			"rank %u: kernel, block %u thread %u: ring %u stayed full: the core has dequeued %llu of the %llu slots that had to go",
			ep->rank, s->block, s->thread, s->number, seen, want);
	case EPF_GPU_RETIRED:
		return epf_fail(
			EPF_R_GPU_TIMEOUT,
			"rank %u: kernel, block %u thread %u: ring %u has retired %llu commands, %llu were waited for",
			ep->rank, s->block, s->thread, s->number, seen, want);
	case EPF_GPU_WORD:
		return epf_fail(
			EPF_R_GPU_TIMEOUT,
			"rank %u: kernel, block %u thread %u: a word of GPU memory is %llu, %llu was waited for",
			ep->rank, s->block, s->thread, seen, want);
	default:
		return epf_fail(
			EPF_R_GPU_TIMEOUT,
			"rank %u: kernel, block %u thread %u: signal %u is %llu, %llu was waited for",
			ep->rank, s->block, s->thread, s->number, seen, want);
	}
}

int epf_gpu_check(struct epf_gpu *gpu)
{
	struct epf *ep = gpu->ep;
	struct epf_gpu_status s;
	int rc;

	if (!epf_gpu_context_failure(gpu->context, &s))
		return 0;
	switch (s.code) {
	case EPF_GPU_TIMEOUT:
	case EPF_GPU_ABORTED:
	case EPF_GPU_BROKEN:
	case EPF_GPU_LOST:
		/* A lost rank or daemon, or an abort, says more than what came of it. */
		rc = epf_wait_why(ep, "kernel", s.block);
		if (rc)
			return rc;
		if (s.code == EPF_GPU_TIMEOUT)
			return say_timeout(ep, &s);
		if (s.code == EPF_GPU_LOST) /* masked, or it has closed */
			return epf_fail(
				EPF_R_PEER_DOWN,
				"rank %u: kernel, block %u thread %u: a rank that it waited for was lost, or has closed",
				ep->rank, s.block, s.thread);
		return epf_fail(s.code == EPF_GPU_ABORTED ? EPF_R_ABORTED : EPF_R_GPU_RING,
				"rank %u: kernel, block %u thread %u, %s %u", ep->rank, s.block,
				s.thread,
				s.what == EPF_GPU_WAIT   ? "signal"
				: s.what == EPF_GPU_WORD ? "word"
							 : "ring",
				s.number);
	case EPF_GPU_FAILED:
		rc = epf_wait_why(ep, "kernel", s.block);
		if (rc)
			return rc;
		return epf_fail(
			EPF_R_CMD_FAILED,
			"rank %u: kernel, block %u thread %u: ring %u: %llu commands failed",
			ep->rank, s.block, s.thread, s.number, (unsigned long long)s.seen);
	case EPF_GPU_SIGNAL:
		return epf_fail(EPF_R_SIGNAL_RANGE,
				"rank %u: kernel, block %u thread %u: signal %u: this rank has %u",
				ep->rank, s.block, s.thread, s.number, ep->n_signals);
	default:
		return epf_fail(
			EPF_R_GPU_COMMAND,
			"rank %u: kernel, block %u thread %u: operation %u, %llu bytes to offset %llu",
			ep->rank, s.block, s.thread, s.number, (unsigned long long)s.want,
			(unsigned long long)s.seen);
	}
}

/* Under locks.lists, so that the context is there. */
void epf_gpu_abort(struct epf *ep)
{
	if (ep->gpus)
		epf_gpu_context_abort(ep->gpus->context, -ECANCELED);
}
