/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf: device code on the GPU of a context (epf_gpu_module_* in epf.h), for libraries of kernels that stand on libepf and link no vendor's
 * library. Launches are one call of the driver and allocate nothing; the rest is slow path. What kernels do is not known here.
 */
#define EPF_LOG_COMP "gpu"
#include "fabric/base/err.h"
#include "fabric/client/handle.h"
#include "fabric/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

struct epf_gpu_module {
	struct epf_gpu_dev *dev;
	void *module;
};

int epf_gpu_describe(const struct epf_gpu *gpu, struct epf_gpu_info *out)
{
	struct epf_gpu_dev *dev = epf_gpu_device(gpu);
	struct epf_gpu_props props;
	struct epf_gpu_info info = { 0 };
	size_t size = out->size < sizeof(info) ? out->size : sizeof(info);
	int rc = dev->ops->describe(dev, &props);

	if (rc)
		return rc;
	info.size = out->size;
	info.backend = dev->ops->name;
	info.device = dev->index;
	info.multiprocessors = props.multiprocessors;
	info.warp = props.warp;
	memcpy(out, &info, size);
	return 0;
}

int epf_gpu_module_load(struct epf_gpu *gpu, const void *image, struct epf_gpu_module **out)
{
	struct epf_gpu_module *code = calloc(1, sizeof(*code));
	int rc;

	if (!code)
		return epf_fail(EPF_R_NO_MEMORY, "epf_gpu_module_load: no memory");
	code->dev = epf_gpu_device(gpu);
	rc = code->dev->ops->module_load(code->dev, image, &code->module);
	if (rc)
		free(code);
	else
		*out = code;
	return rc;
}

void epf_gpu_module_unload(struct epf_gpu_module *code)
{
	if (!code)
		return;
	code->dev->ops->module_unload(code->dev, code->module);
	free(code);
}

int epf_gpu_module_kernel(struct epf_gpu_module *code, const char *name, void **kernel)
{
	return code->dev->ops->function(code->dev, code->module, name, kernel);
}

int epf_gpu_module_launch(struct epf_gpu_module *code, void *kernel, void *stream, uint32_t grid,
			  uint32_t block, void **args)
{
	struct epf_gpu_launch how = { .grid = grid, .block = block, .args = args };

	return code->dev->ops->launch(code->dev, stream, kernel, &how);
}

int epf_gpu_stream_sync(struct epf_gpu *gpu, void *stream)
{
	struct epf_gpu_dev *dev = epf_gpu_device(gpu);

	return dev->ops->stream_sync(dev, stream);
}
