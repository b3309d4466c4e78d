/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a "module" of the fake GPU back-end is: for tests that launch kernels on a machine without a GPU. Included by fake.c and tests.
 */
#ifndef EPF_FABRIC_GPU_FAKE_H
#define EPF_FABRIC_GPU_FAKE_H

#include "fabric/gpu/gpu.h"

/* An image is a table of these, ended by a NULL name. run() is the whole grid: it is called once a launch, in the calling thread. */
struct epf_gpu_fake_kernel {
	const char *name;
	void (*run)(const struct epf_gpu_launch *launch);
};

#endif
