/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the CUDA kernels where there is no nvcc. */
#include "kernels/ht/ht.h"

#include <stddef.h>

const void *const ht_cuda_image = NULL;
