/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench ring --gpu: what its measuring files share (gpu_main.c, gpu_raw.c): the run, its table, the mailbox.
 */
#ifndef EPF_BENCH_RING_GPU_RIG_H
#define EPF_BENCH_RING_GPU_RIG_H

#include "bench/ring/gpu.h"
#include "bench/ring/gpu_cmd.h"

#include <jansson.h>

#define RING_GPU_PATIENCE_S 120

struct ring_gpu_rig {
	const struct ring_gpu_opts *o;
	struct ring_gpu_shared *s;
	pid_t child;
	uint32_t warp; /* lanes of a warp: 32, 64, or 1 on the fake */
	uint32_t devices;
	uint32_t wide; /* warps of the full grid */
	uint64_t commands;
	uint64_t wrong;
	double flag_ns;
	json_t *rows;
};

/* One line of the table. */
void ring_gpu_row(struct ring_gpu_rig *r, const char *name, double value, const char *unit,
		  const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* A line that says what was wrong; counts. */
void ring_gpu_bad(struct ring_gpu_rig *r, const char *name, const char *why);
/* A request with the run's usual rings: one shared ring, or a private one for each warp of the full grid. */
struct ring_gpu_request ring_gpu_request(const struct ring_gpu_rig *r, enum ring_gpu_op op,
					 bool shared, uint32_t grid, uint32_t block);

/* Asks and waits for the answer: 0, or -1 after a line that says what was wrong. */
int ring_gpu_ask_wait(struct ring_gpu_rig *r, const char *name, const struct ring_gpu_request *q,
		      struct ring_gpu_reply *a);

/* gpu_raw.c: the parts c, v, p, t and x, in that order; each as its letter is in the options. */
void ring_gpu_raw_parts(struct ring_gpu_rig *r);

#endif
