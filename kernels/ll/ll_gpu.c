/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency kernels on a GPU: not launched yet.
 */
#include "kernels/ll/ll.h"

#include <errno.h>

static int absent(void)
{
	return ll_fail(
		-ENOTSUP,
		"the low-latency kernels are not launched on GPUs by this build: device -1 is the CPU");
}

static int gpu_open(struct epf_ll *ll)
{
	return absent();
}

static void gpu_close(struct epf_ll *ll)
{
}

static int gpu_alloc(struct epf_ll *ll, uint64_t bytes, void **addr)
{
	return absent();
}

static void gpu_free(struct epf_ll *ll, void *addr)
{
}

static int gpu_expose(struct epf_ll *ll, void *addr, uint64_t bytes, uint32_t *region)
{
	return absent();
}

static int gpu_copy(struct epf_ll *ll, void *dst, const void *src, uint64_t bytes)
{
	return absent();
}

static int gpu_launch(struct epf_ll *ll, enum ll_kernel kernel, const struct ll_job *job,
		      void *stream)
{
	return absent();
}

static int gpu_sync(struct epf_ll *ll, void *stream)
{
	return absent();
}

const struct ll_device ll_gpu = {
	.open = gpu_open,
	.close = gpu_close,
	.alloc = gpu_alloc,
	.free = gpu_free,
	.expose = gpu_expose,
	.copy = gpu_copy,
	.launch = gpu_launch,
	.sync = gpu_sync,
};
