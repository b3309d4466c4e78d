/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the high-throughput calls on the host: the object, and what a launch is. Included by kernels/ht/ht_*.c only. */
#ifndef EPF_KERNELS_HT_HT_H
#define EPF_KERNELS_HT_HT_H

#include "kernels/epf_ht.h"
#include "kernels/ht/job.h"
#include "kernels/ll/ll.h"

/* Kernels, as entry points of a device. */
enum ht_kernel {
	HT_K_LAYOUT,
	HT_K_NOTIFY,
	HT_K_DISPATCH,
	HT_K_COMBINE,
	HT_KERNELS,
};

struct epf_ht {
	struct epf_ll *ll;
	struct epf_ht_options opts;
	void *words;           /* struct ht_state, then struct ht_peer [ranks]: device memory */
	struct ht_peer *peers; /* the same peers, as last written */
	void *window;
	uint64_t window_bytes;
	uint64_t tickets; /* notifications that wrote to host memory */
	uint32_t threads;
	uint32_t blocks; /* at most, of a launch */
	struct epf_gpu_module *code;
	void *kernel[HT_KERNELS];
};

/* Where rows, and what travels with them, lie in a window. */
struct ht_layout ht_layout_of(const struct epf_ht_row *row, uint32_t rows);

/* Runs the blocks of a kernel one after another on the calling thread. */
void ht_cpu_run(struct epf_ht *ht, enum ht_kernel kernel, const struct ht_job *job);

/* The kernels as bytes: a fat binary for CUDA, a bundle for HIP, NULL in builds without their compilers; C functions for the fake back-end. */
extern const void *const ht_cuda_image;
extern const void *const ht_hip_image;
extern const void *const ht_fake_image;

#endif
