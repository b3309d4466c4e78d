/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for the CUDA kernels where there is no nvcc: a build with nvcc takes the file that kernels/embed.py makes in place of this one.
 */
#include "kernels/ll/ll_image.h"

#include <stddef.h>

const void *const ll_cuda_image = NULL;
