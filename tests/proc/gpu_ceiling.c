/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the batched copies of the software NIC reach by themselves, without a NIC: the line that test_gpu_job --rate prints its own rates
 * next to. Runs in a process of its own, which opens the driver.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/emu_gpu.h"
#include "tests/proc/gpu_hold.h"

#include <stdio.h>
#include <string.h>

enum { RATE_BYTES = EPF_COPY_BATCH * 16384 };

int gpu_ceiling(const char *gpu, const char *copy, int from, int to, uint32_t bytes)
{
	enum { BATCHES = 1000 };

	unsigned batch;
	struct epf_copy_span spans[EPF_COPY_BATCH];
	const struct epf_copy_ops *ops;
	struct epf_copy_handle h;
	struct epf_copy_queue *q;
	uint64_t t0, t1, src_at;
	void *src, *dst;

	if (epf_copy_ops_find(gpu, &ops) || ops->load() || ops->mem_alloc(from, RATE_BYTES, &src) ||
	    ops->mem_alloc(to, RATE_BYTES, &dst) || ops->mem_export(src, RATE_BYTES, &h) ||
	    ops->mem_import(&h, to, &src_at) ||
	    ops->queue_open(to, strcmp(copy, "kernel") == 0, &q)) {
		fprintf(stderr, "ceiling: %s\n", epf_last_error());
		return -1;
	}
	batch = ops->queue_batch(q);
	for (uint32_t i = 0; i < EPF_COPY_BATCH; i++)
		spans[i] = (struct epf_copy_span){ (uint64_t)(uintptr_t)dst + i * 16384ull,
						   src_at + i * 16384ull, bytes, 0 };
	for (int warm = 1; warm >= 0; warm--) {
		uint64_t value = warm ? 0 : BATCHES, end = value + BATCHES;

		t0 = epf_now_ns();
		while (value < end) {
			if (ops->reached(q) + 4 <= value)
				continue;
			if (ops->submit(q, spans, batch, ++value)) {
				fprintf(stderr, "ceiling: %s\n", epf_last_error());
				return -1;
			}
		}
		while (ops->reached(q) < end)
			;
	}
	t1 = epf_now_ns() - t0;
	printf("gpu_job ceiling, %s %s: %u bytes in batches of %d: %.3f M/s, %.2f GB/s\n", gpu,
	       copy, bytes, (int)batch, BATCHES * (double)batch * 1e3 / (double)t1,
	       BATCHES * (double)batch * bytes / (double)t1);
	return 0;
}
