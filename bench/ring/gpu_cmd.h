/* SPDX-License-Identifier: Apache-2.0 */
/* ep-bench ring --gpu: its options; called by main.c. */
#ifndef EPF_BENCH_RING_GPU_CMD_H
#define EPF_BENCH_RING_GPU_CMD_H

#include <stdbool.h>
#include <stdint.h>

/* Exit code where there is no GPU, or this build has no kernels: tests take it as a skip. */
enum { BENCH_NO_GPU = 77 };

struct ring_gpu_opts {
	const char *backend; /* as gpu-backend */
	int64_t device;      /* -1: the first */
	uint64_t commands;   /* of the raw tests, all together about twice this */
	uint64_t cores;      /* consumers of the tests with several */
	uint64_t trips;      /* round trips of each measurement */
	const char *
		parts; /* letters: c cost, v every command checked, p paced, t throughput, x what one core can read at all, r round trips, b the same while NVLink is busy, e engine, d deadlines */
	const char *const *settings; /* of the fabric, NULL-terminated */
	bool json;
};

/* Returns an exit code. */
int bench_ring_gpu(const struct ring_gpu_opts *o);

#endif
