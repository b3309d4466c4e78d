/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the copies of the software NIC reach by themselves: the figures that rates and times through the NIC are printed next to. Used by ep-bench p2p
 * --gpu, ep-bench copies and test_gpu_job, in a separate process, which opens the driver.
 */
#ifndef EPF_BENCH_GPU_CEILING_H
#define EPF_BENCH_GPU_CEILING_H

#include <stdint.h>

enum { GPU_CEILING_MAX = 16384 }; /* bytes of a copy */

/*
 * Copies of `bytes` (GPU_CEILING_MAX at most) from one device to another in batches as the NIC's copier submits them, four under way, by a bare loop.
 * kernel: by kernels, else by copy engines. 0 with copies a second, copies a batch and how long the CPU was in a submit (ns a copy);
 * -errno with epf_last_error() set.
 */
struct gpu_ceiling {
	double per_second;
	double submit_ns;
	unsigned batch;
};

int gpu_ceiling(const char *gpu, int kernel, int from, int to, uint32_t bytes,
		struct gpu_ceiling *out);

/* Lists of so many copies, and additions behind them, one list after the other. */
struct gpu_lists {
	const char *gpu;
	int kernel, from, to;
	uint32_t bytes; /* of a copy, GPU_CEILING_MAX at most */
	uint32_t copies, adds;
	uint32_t lists;
	void (*ready)(void *arg); /* called once, before the first list that counts */
	void *arg;
};

/*
 * Makes the copies of a list by the calls that the NIC's copier makes, as fast as one loop can submit them, waits until they are there, then the
 * additions, and waits for those. us[lists]: microseconds of each list. 0; -errno with epf_last_error() set.
 */
int gpu_lists(const struct gpu_lists *what, double *us);

#endif
