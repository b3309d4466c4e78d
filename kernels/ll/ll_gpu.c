/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency kernels on a GPU: the image that this library carries is brought there by the driver, which libepf opens at run time, and
 * launched on the caller's stream. For the back-end "fake", a GPU that tests play on CPUs, the image is the plain C form.
 */
#include "kernels/ll/ll.h"
#include "kernels/ll/ll_image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_THREADS = 512 }; /* what ll_kernels.cu promises the compiler */

struct ll_gpu {
	struct epf_gpu_module *code;
	void *kernel[LL_KERNELS];
};

/* As C++ names them: profilers then show ep_fabric::dispatch, and tools that look for "::dispatch" find it. */
static const char *const names[LL_KERNELS] = {
	[LL_K_DISPATCH] = "_ZN9ep_fabric8dispatchE6ll_job",
	[LL_K_COMBINE] = "_ZN9ep_fabric7combineE6ll_job",
	[LL_K_COMBINE_SUMS] = "_ZN9ep_fabric12combine_sumsE6ll_job",
	[LL_K_MASK_SET] = "_ZN9ep_fabric8mask_setE6ll_job",
	[LL_K_MASK_GET] = "_ZN9ep_fabric8mask_getE6ll_job",
	[LL_K_RESET] = "_ZN9ep_fabric5resetE6ll_job",
};

static int fabric(int err, const char *doing)
{
	return err ? ll_fail_fabric(err, doing) : 0;
}

/* The kernels for what this GPU is; NULL with the text set: there are none. */
static const void *image_for(const struct epf_gpu_info *info)
{
	if (strcmp(info->backend, "fake") == 0)
		return ll_fake_image;
	if (strcmp(info->backend, "cuda") == 0 && ll_cuda_image)
		return ll_cuda_image;
	if (strcmp(info->backend, "hip") == 0 && ll_hip_image)
		return ll_hip_image;
	(void)ll_fail(
		-ENOTSUP,
		"this build has no low-latency kernels for %s: build where nvcc is for CUDA, where clang-19 and lld-19 are for HIP",
		info->backend);
	return NULL;
}

static int gpu_launch(struct epf_ll *ll, enum ll_kernel kernel, const struct ll_job *job,
		      void *stream)
{
	struct ll_job copy = *job;
	void *args[1] = { &copy };

	return fabric(epf_gpu_module_launch(ll->more->code, ll->more->kernel[kernel], stream,
					    job->blocks, ll->threads, args),
		      "low-latency kernel");
}

static int gpu_sync(struct epf_ll *ll, void *stream)
{
	return fabric(epf_gpu_stream_sync(ll->gpu, stream), "low-latency stream");
}

/*
 * Each kernel once, for no rank and no half, so that it does nothing: a driver that loads code at its first launch would do it while a graph is
 * captured, or wait for kernels that wait for other ranks.
 */
static int warm_up(struct epf_ll *ll)
{
	struct ll_job j = ll_job_begin(ll);
	int err = 0;

	j.ranks = 0;
	for (int i = 0; i < LL_KERNELS && !err; i++)
		err = gpu_launch(ll, (enum ll_kernel)i, &j, NULL);
	return err ? err : gpu_sync(ll, NULL);
}

static int gpu_open(struct epf_ll *ll)
{
	struct epf_gpu_info info = { .size = sizeof(info) };
	int err = fabric(epf_gpu_describe(ll->gpu, &info), "low-latency kernels");
	const void *image;

	if (err)
		return err;
	image = image_for(&info);
	if (!image)
		return -ENOTSUP;
	ll->more = calloc(1, sizeof(*ll->more));
	if (!ll->more)
		return ll_fail(-ENOMEM, "no memory for kernels");
	err = epf_gpu_module_load(ll->gpu, image, &ll->more->code);
	for (int i = 0; i < LL_KERNELS && !err; i++)
		err = epf_gpu_module_kernel(ll->more->code, names[i], &ll->more->kernel[i]);
	ll->threads = info.warp > 1 ? BLOCK_THREADS : 1;
	ll->side_by_side = info.warp > 1;
	ll->blocks = ll->opts.blocks ? ll->opts.blocks
				     : ll_blocks_for(info.multiprocessors, ll->sharing);
	if (err)
		return fabric(err, "low-latency kernels");
	return ll->side_by_side ? warm_up(ll) : 0; /* the fake loads nothing */
}

static void gpu_close(struct epf_ll *ll)
{
	if (ll->more)
		epf_gpu_module_unload(ll->more->code);
	free(ll->more);
	ll->more = NULL;
}

static int gpu_alloc(struct epf_ll *ll, uint64_t bytes, void **addr)
{
	return fabric(epf_gpu_alloc(ll->ep, ll->opts.device, bytes, addr),
		      "low-latency memory on the GPU");
}

static void gpu_free(struct epf_ll *ll, void *addr)
{
	epf_gpu_free(ll->ep, addr);
}

static int gpu_expose(struct epf_ll *ll, void *addr, uint64_t bytes, uint32_t *region)
{
	return fabric(epf_region_register_gpu(ll->ep, addr, bytes, EPF_REMOTE_WRITE, region),
		      "low-latency memory on the GPU");
}

static int gpu_copy(struct epf_ll *ll, void *dst, const void *src, uint64_t bytes)
{
	return fabric(epf_gpu_copy(ll->ep, dst, src, bytes), "low-latency state");
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
