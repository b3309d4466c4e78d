/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traffic while a GPU is busy, for test_gpu_job --hold on real GPUs: kernels fill every SM and wait for data, and driver calls wait for
 * the device.
 */
#ifndef EPF_TESTS_GPU_HOLD_H
#define EPF_TESTS_GPU_HOLD_H

#include "fabric/client/epf.h"

#include <stdint.h>

struct gpu_hold {
	struct epf *ep;
	struct epf_ring *ring;
	const char *backend, *what; /* what: for the lines printed */
	int device;
	uint32_t me, world;
	uint32_t region;   /* of GPU memory, the same number at every rank */
	uint32_t signal;   /* free at every rank */
	uint8_t *gpu;      /* its address */
	uint64_t words;    /* offset of 64 free bytes in it */
	uint64_t from, to; /* offsets of 1 MiB each, for traffic */
};

/* Collective. Returns 0, or -1 after a line on stderr; prints every figure as one line on stdout. */
int gpu_hold(struct gpu_hold *h);

#endif
