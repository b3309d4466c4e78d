/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu_ceiling.h. It never waits but for copies, which end by themselves. */
#include "bench/p2p/gpu_ceiling.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/gpu/copy.h"

enum { PLACE = GPU_CEILING_MAX, BATCHES = 1000, UNDER_WAY = 4, WARM = 5 };

#define REGION_BYTES ((uint64_t)EPF_COPY_BATCH * PLACE)

/* Submits BATCHES batches after value `from`; 0 or -errno. */
static int run(const struct epf_copy_ops *ops, struct epf_copy_queue *q,
	       const struct epf_copy_span *spans, unsigned batch, uint64_t value, uint64_t *inside)
{
	uint64_t end = value + BATCHES;
	int rc = 0;

	*inside = 0;
	while (value < end && !rc) {
		if (ops->reached(q) + UNDER_WAY <= value)
			continue;
		*inside -= epf_now_ns();
		rc = ops->submit(q, spans, batch, ++value);
		*inside += epf_now_ns();
	}
	while (!rc && ops->reached(q) < end)
		;
	return rc;
}

/* Memory on both devices, and queues on that of the destination. */
struct place {
	const struct epf_copy_ops *ops;
	struct epf_copy_queue *q, *adds;
	void *dst;
	struct epf_copy_span spans[EPF_COPY_BATCH];
};

static int place_open(struct place *p, const char *gpu, int kernel, int from, int to,
		      uint32_t bytes)
{
	struct epf_copy_handle h;
	uint64_t src_at = 0;
	void *src = NULL;
	int rc = epf_copy_ops_find(gpu, &p->ops);

	if (!rc)
		rc = p->ops->load();
	if (!rc)
		rc = p->ops->mem_alloc(from, REGION_BYTES, &src);
	if (!rc)
		rc = p->ops->mem_alloc(to, REGION_BYTES, &p->dst);
	if (!rc)
		rc = p->ops->mem_export(src, REGION_BYTES, &h);
	if (!rc)
		rc = p->ops->mem_import(&h, to, &src_at);
	if (!rc)
		rc = p->ops->queue_open(to, kernel ? EPF_COPY_KERNEL : EPF_COPY_ENGINES, &p->q);
	if (!rc)
		rc = p->ops->queue_open(to, EPF_COPY_ADDITIONS, &p->adds);
	for (uint32_t i = 0; i < EPF_COPY_BATCH; i++)
		p->spans[i] =
			(struct epf_copy_span){ (uint64_t)(uintptr_t)p->dst + i * (uint64_t)PLACE,
						src_at + i * (uint64_t)PLACE, bytes, 0 };
	return rc;
}

int gpu_ceiling(const char *gpu, int kernel, int from, int to, uint32_t bytes,
		struct gpu_ceiling *out)
{
	struct place p = { 0 };
	uint64_t t, inside;
	unsigned batch;
	int rc = place_open(&p, gpu, kernel, from, to, bytes);

	if (rc)
		return rc;
	batch = p.ops->queue_batch(p.q);
	rc = run(p.ops, p.q, p.spans, batch, 0, &inside);
	t = epf_now_ns();
	if (!rc)
		rc = run(p.ops, p.q, p.spans, batch, BATCHES, &inside);
	t = epf_now_ns() - t;
	p.ops->queue_close(p.q);
	p.ops->queue_close(p.adds);
	if (rc)
		return rc;
	out->per_second = BATCHES * (double)batch * 1e9 / (double)t;
	out->submit_ns = (double)inside / BATCHES / batch;
	out->batch = batch;
	return 0;
}

/* Waits; a device that fails says UINT64_MAX, which is beyond all. */
static void reach(const struct place *p, struct epf_copy_queue *q, uint64_t to)
{
	while (p->ops->reached(q) < to)
		;
}

static int one_list(const struct place *p, const struct gpu_lists *what, uint64_t *value)
{
	struct epf_copy_add adds[EPF_COPY_ADDS];
	unsigned batch = p->ops->queue_batch(p->q), n;
	int rc = 0;

	for (uint32_t at = 0; at < what->copies && !rc; at += n) {
		uint32_t first = at % EPF_COPY_BATCH;

		n = what->copies - at < batch ? what->copies - at : batch;
		n = n < EPF_COPY_BATCH - first ? n : EPF_COPY_BATCH - first;
		if (*value >= EPF_COPY_FLIGHTS)
			reach(p, p->q, *value - EPF_COPY_FLIGHTS + 1);
		rc = p->ops->submit(p->q, &p->spans[first], n, ++*value);
	}
	if (!rc)
		reach(p, p->q, *value);
	for (unsigned i = 0; i < EPF_COPY_ADDS; i++)
		adds[i] = (struct epf_copy_add){ (uint64_t)(uintptr_t)p->dst + i * 8, 1 };
	for (uint32_t at = 0; at < what->adds && !rc; at += n) {
		n = what->adds - at < EPF_COPY_ADDS ? what->adds - at : EPF_COPY_ADDS;
		if (*value >= EPF_COPY_FLIGHTS)
			reach(p, p->adds, *value - EPF_COPY_FLIGHTS + 1);
		rc = p->ops->add(p->adds, adds, n, ++*value);
	}
	if (!rc)
		reach(p, p->adds, *value);
	return rc;
}

int gpu_lists(const struct gpu_lists *what, double *us)
{
	struct place p = { 0 };
	uint64_t value = 0;
	int rc = place_open(&p, what->gpu, what->kernel, what->from, what->to, what->bytes);

	if (rc)
		return rc;
	for (unsigned i = 0; i < WARM && !rc; i++)
		rc = one_list(&p, what, &value);
	if (!rc && what->ready)
		what->ready(what->arg);
	for (uint32_t i = 0; i < what->lists && !rc; i++) {
		uint64_t t = epf_now_ns();

		rc = one_list(&p, what, &value);
		us[i] = (double)(epf_now_ns() - t) / 1e3;
	}
	p.ops->queue_close(p.q);
	p.ops->queue_close(p.adds);
	return rc;
}
