/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the CUDA kernels where there is no nvcc: a build with nvcc takes the file that kernels/embed.py makes in place of this one. */
#include <stddef.h>

extern const void *const epf_pack_cuda_image;
const void *const epf_pack_cuda_image = NULL;
