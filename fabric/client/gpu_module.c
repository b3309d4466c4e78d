/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf: device code and events on the GPU of a context (epf_gpu_module_*, epf_gpu_event_* in epf.h), for libraries of kernels that stand on libepf and
 * link no vendor's library. Launches, records and waits are one call of the driver and allocate nothing; the rest is slow path. What kernels do is not known here.
 */
#define EPF_LOG_COMP "gpu"
#include "fabric/base/err.h"
#include "fabric/client/handle.h"
#include "fabric/gpu/gpu.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct epf_gpu_module {
	struct epf_gpu_dev *dev;
	void *module;
};

/* Returns a hash (FNV-1a) of the host's boot and the GPU's PCI address. Containers of one host get the same. */
static uint64_t identity_of(const struct epf_gpu_props *props)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	char text[64 + sizeof(props->pci)];
	ssize_t n = 0;
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		n = read(fd, text, 64);
		close(fd);
	}
	n = n < 0 ? 0 : n;
	memcpy(text + n, props->pci, sizeof(props->pci));
	for (size_t i = 0; i < (size_t)n + sizeof(props->pci); i++)
		hash = (hash ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
	return hash;
}

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
	info.identity = identity_of(&props);
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

int epf_gpu_event_make(struct epf_gpu *gpu, void **event)
{
	struct epf_gpu_dev *dev = epf_gpu_device(gpu);

	return dev->ops->event_create(dev, event);
}

void epf_gpu_event_free(struct epf_gpu *gpu, void *event)
{
	struct epf_gpu_dev *dev = epf_gpu_device(gpu);

	dev->ops->event_destroy(dev, event);
}

int epf_gpu_event_record(struct epf_gpu *gpu, void *event, void *stream)
{
	struct epf_gpu_dev *dev = epf_gpu_device(gpu);

	return dev->ops->event_record(dev, stream, event);
}

int epf_gpu_event_wait(struct epf_gpu *gpu, void *event, void *stream)
{
	struct epf_gpu_dev *dev = epf_gpu_device(gpu);

	return dev->ops->stream_wait(dev, stream, event);
}
