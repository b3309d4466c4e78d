/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu_ceiling.h. It never waits but for copies, which end by themselves. */
#include "bench/gpu_ceiling.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/emu_gpu.h"

enum { PLACE = GPU_CEILING_MAX, BATCHES = 1000, UNDER_WAY = 4 };

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

int gpu_ceiling(const char *gpu, int kernel, int from, int to, uint32_t bytes,
		struct gpu_ceiling *out)
{
	struct epf_copy_span spans[EPF_COPY_BATCH];
	const struct epf_copy_ops *ops;
	struct epf_copy_queue *q = NULL;
	struct epf_copy_handle h;
	uint64_t t, inside, src_at;
	void *src = NULL, *dst = NULL;
	unsigned batch;
	int rc = epf_copy_ops_find(gpu, &ops);

	if (!rc)
		rc = ops->load();
	if (rc)
		return rc;
	rc = ops->mem_alloc(from, REGION_BYTES, &src);
	if (!rc)
		rc = ops->mem_alloc(to, REGION_BYTES, &dst);
	if (!rc)
		rc = ops->mem_export(src, REGION_BYTES, &h);
	if (!rc)
		rc = ops->mem_import(&h, to, &src_at);
	if (!rc)
		rc = ops->queue_open(to, kernel, &q);
	if (rc)
		return rc;
	batch = ops->queue_batch(q);
	for (uint32_t i = 0; i < EPF_COPY_BATCH; i++)
		spans[i] = (struct epf_copy_span){ (uint64_t)(uintptr_t)dst + i * (uint64_t)PLACE,
						   src_at + i * (uint64_t)PLACE, bytes, 0 };
	rc = run(ops, q, spans, batch, 0, &inside);
	t = epf_now_ns();
	if (!rc)
		rc = run(ops, q, spans, batch, BATCHES, &inside);
	t = epf_now_ns() - t;
	ops->queue_close(q);
	if (rc)
		return rc;
	out->per_second = BATCHES * (double)batch * 1e9 / (double)t;
	out->submit_ns = (double)inside / BATCHES / batch;
	out->batch = batch;
	return 0;
}
