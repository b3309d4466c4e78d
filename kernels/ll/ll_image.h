/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency kernels as bytes: what a back-end loads. Included by kernels/ll/ll_*.c only. */
#ifndef EPF_KERNELS_LL_IMAGE_H
#define EPF_KERNELS_LL_IMAGE_H

/* A fat binary for CUDA, made from ll_kernels.cu; NULL in builds without nvcc. */
extern const void *const ll_cuda_image;

/*
 * Code objects for HIP in clang's offload bundle, made from ll_kernels.cu: hipModuleLoadData takes the one of its device. NULL in builds without clang-19
 * and lld-19.
 */
extern const void *const ll_hip_image;

/* A table of C functions for the fake back-end (ll_cpu.c). */
extern const void *const ll_fake_image;

#endif
