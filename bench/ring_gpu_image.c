/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of ep-bench ring --gpu inside the program: the fat binary that nvcc made at build time, or nothing. Nothing is executed here.
 */
#include "bench/ring_gpu.h"

#ifdef EPF_GPU_IMAGE
/* clang-format off */
__asm__(".section .rodata\n"
	".balign 64\n"
	"ring_gpu_image_bytes:\n"
	".incbin \"" EPF_GPU_IMAGE "\"\n"
	".byte 0\n"
	".previous\n");
/* clang-format on */
extern const char ring_gpu_image_bytes[] __attribute__((visibility("hidden")));
const void *const ring_gpu_image = ring_gpu_image_bytes;
#else
const void *const ring_gpu_image = NULL;
#endif
