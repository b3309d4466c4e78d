/* SPDX-License-Identifier: Apache-2.0 */
/* A run of ep-bench ring --gpu: its table, its usual request, and how it waits for an answer. */
#include "bench/ring/gpu_rig.h"

#include "fabric/base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

enum { PRIVATE_LOG2 = 8, SHARED_LOG2 = 12 };

void ring_gpu_row(struct ring_gpu_rig *r, const char *name, double value, const char *unit,
		  const char *fmt, ...)
{
	char note[RING_GPU_TEXT + 128];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(note, sizeof(note), fmt, ap);
	va_end(ap);
	if (!r->o->json)
		printf("%-46s %12.3f %-12s %s\n", name, value, unit, note);
	fflush(stdout);
	json_array_append_new(r->rows, json_pack("{s:s, s:f, s:s, s:s}", "name", name, "value",
						 value, "unit", unit, "note", note));
}

void ring_gpu_bad(struct ring_gpu_rig *r, const char *name, const char *why)
{
	r->wrong++;
	ring_gpu_row(r, name, -1, "WRONG", "%s", why);
}

struct ring_gpu_request ring_gpu_request(const struct ring_gpu_rig *r, enum ring_gpu_op op,
					 bool shared, uint32_t grid, uint32_t block)
{
	struct ring_gpu_request q = { .op = op,
				      .n_shared = 1,
				      .n_private = shared ? 0 : r->wide,
				      .shared_log2 = SHARED_LOG2,
				      .private_log2 = PRIVATE_LOG2,
				      .grid = grid,
				      .block = block,
				      .timeout_ns = UINT64_C(20000000000) };

	q.args.shared = shared;
	q.args.lanes = 1;
	q.args.batch = 1;
	q.args.bytes = 64;
	return q;
}

int ring_gpu_ask_wait(struct ring_gpu_rig *r, const char *name, const struct ring_gpu_request *q,
		      struct ring_gpu_reply *a)
{
	uint64_t end = epf_now_ns() + RING_GPU_PATIENCE_S * UINT64_C(1000000000);
	int rc = 0;

	ring_gpu_ask(r->s, q);
	while (!rc && epf_now_ns() < end) {
		struct timespec nap = { 0, 200000 };

		rc = ring_gpu_answer(r->s, r->child, a);
		if (!rc)
			nanosleep(&nap, NULL);
	}
	if (rc == 1 && a->rc == 0)
		return 0;
	ring_gpu_bad(r, name,
		     rc == 1 ? a->text
		     : rc    ? "the process with the GPU has ended"
			     : "no answer");
	return -1;
}
