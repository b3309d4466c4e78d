/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for the kernels of ep-bench ring --gpu where there is no nvcc: a build with nvcc takes the file that kernels/embed.py makes in
 * place of this one.
 */
#include "bench/ring/gpu.h"

const void *const ring_gpu_image = NULL;
