/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU back-ends, part 1: choosing one by name, the back-end "none", and the answers of those that cannot do something (none.h).
 * Slow path; called when a GPU context or a NIC with GPU memory is opened. It must never open a driver's library unless its
 * back-end was asked for.
 */
#include "fabric/gpu/none.h"

#include "fabric/base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int unsupported(const struct epf_gpu_dev *dev, const char *what)
{
	return epf_fail(EPF_R_GPU_UNSUPPORTED, "%s: %s", dev ? dev->ops->name : "none", what);
}

int epf_gpu_no_fd(struct epf_gpu_dev *dev, const struct epf_gpu_mem *mem, int *fd)
{
	return unsupported(dev, "memory cannot be exported as a descriptor");
}

int epf_gpu_no_import_fd(struct epf_gpu_dev *dev, int fd, uint64_t bytes, struct epf_gpu_mem *out)
{
	return unsupported(dev, "memory cannot be imported from a descriptor");
}

int epf_gpu_no_mapped(struct epf_gpu_dev *dev, uint64_t addr, int *fd, uint64_t *bytes,
		      uint64_t *offset)
{
	return unsupported(dev, "memory of another library cannot be exported as a descriptor");
}

int epf_gpu_no_dmabuf(struct epf_gpu_dev *dev, uint64_t addr, uint64_t bytes, int *fd,
		      uint64_t *offset)
{
	return unsupported(dev, "memory cannot be exported as a dma-buf");
}

int epf_gpu_no_flush(struct epf_gpu_dev *dev)
{
	return unsupported(dev, "writes of a NIC cannot be flushed");
}

int epf_gpu_no_module(struct epf_gpu_dev *dev, const void *image, void **module)
{
	return unsupported(dev, "no kernels can be loaded");
}

int epf_gpu_no_enter(struct epf_gpu_dev *dev)
{
	return unsupported(dev, "no library of NVIDIA's can use it");
}

void epf_gpu_no_leave(struct epf_gpu_dev *dev)
{
	(void)dev;
}

void epf_gpu_no_unload(struct epf_gpu_dev *dev, void *module)
{
}

int epf_gpu_no_function(struct epf_gpu_dev *dev, void *module, const char *name, void **function)
{
	return unsupported(dev, "no kernels can be loaded");
}

int epf_gpu_no_launch(struct epf_gpu_dev *dev, void *stream, void *function,
		      const struct epf_gpu_launch *launch)
{
	return unsupported(dev, "no kernels can be launched");
}

static int none_count(int *n)
{
	*n = 0;
	return 0;
}

static int none_open(int index, struct epf_gpu_dev **out)
{
	return epf_fail(EPF_R_GPU_ABSENT, "gpu-backend is none");
}

/* Without a device nothing else can be called; the entries are there because no table has holes. */
static void none_close(struct epf_gpu_dev *dev)
{
}

static int none_describe(struct epf_gpu_dev *dev, struct epf_gpu_props *out)
{
	return unsupported(dev, "there is no device");
}

static int none_pin(struct epf_gpu_dev *dev, void *addr, uint64_t bytes, unsigned flags,
		    uint64_t *device_addr)
{
	return unsupported(dev, "there is no device");
}

static void none_unpin(struct epf_gpu_dev *dev, void *addr)
{
}

static int none_alloc(struct epf_gpu_dev *dev, uint64_t bytes, unsigned flags,
		      struct epf_gpu_mem *out)
{
	return unsupported(dev, "there is no device");
}

static void none_free(struct epf_gpu_dev *dev, struct epf_gpu_mem *mem)
{
}

static int none_export_ipc(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_ipc *out)
{
	return unsupported(dev, "there is no device");
}

static int none_import_ipc(struct epf_gpu_dev *dev, const struct epf_gpu_ipc *ipc,
			   struct epf_gpu_mem *out)
{
	return unsupported(dev, "there is no device");
}

static int none_place(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_place *out)
{
	*out = (struct epf_gpu_place){ .where = EPF_GPU_HOST, .device = -1 };
	return 0;
}

static int none_peer(struct epf_gpu_dev *dev, struct epf_gpu_dev *peer)
{
	return unsupported(dev, "there is no device");
}

static int none_copy(struct epf_gpu_dev *dev, uint64_t dst, uint64_t src, uint64_t bytes)
{
	return unsupported(dev, "there is no device");
}

static int none_fill(struct epf_gpu_dev *dev, uint64_t dst, uint8_t value, uint64_t bytes)
{
	return unsupported(dev, "there is no device");
}

static int none_create(struct epf_gpu_dev *dev, void **out)
{
	return unsupported(dev, "there is no device");
}

static void none_destroy(struct epf_gpu_dev *dev, void *object)
{
}

static int none_sync(struct epf_gpu_dev *dev, void *stream)
{
	return unsupported(dev, "there is no device");
}

static int none_copy_async(struct epf_gpu_dev *dev, void *stream, uint64_t dst, uint64_t src,
			   uint64_t bytes)
{
	return unsupported(dev, "there is no device");
}

static int none_copy_batch(struct epf_gpu_dev *dev, void *stream, const struct epf_gpu_copy *copies,
			   unsigned n)
{
	return unsupported(dev, "there is no device");
}

static int none_record(struct epf_gpu_dev *dev, void *stream, void *event)
{
	return unsupported(dev, "there is no device");
}

const struct epf_gpu_ops epf_gpu_none_ops = {
	.name = "none",
	.count = none_count,
	.open = none_open,
	.open_own = none_open,
	.close = none_close,
	.describe = none_describe,
	.pin = none_pin,
	.unpin = none_unpin,
	.mem_alloc = none_alloc,
	.mem_free = none_free,
	.mem_export_fd = epf_gpu_no_fd,
	.mem_import_fd = epf_gpu_no_import_fd,
	.mem_export_ipc = none_export_ipc,
	.mem_import_ipc = none_import_ipc,
	.mem_export_mapped = epf_gpu_no_mapped,
	.mem_dmabuf = epf_gpu_no_dmabuf,
	.mem_place = none_place,
	.flush_writes = epf_gpu_no_flush,
	.peer_enable = none_peer,
	.copy = none_copy,
	.fill = none_fill,
	.stream_create = none_create,
	.stream_destroy = none_destroy,
	.stream_sync = none_sync,
	.copy_async = none_copy_async,
	.copy_batch = none_copy_batch,
	.event_create = none_create,
	.event_destroy = none_destroy,
	.event_record = none_record,
	.event_query = none_sync,
	.stream_wait = none_record,
	.enter = epf_gpu_no_enter,
	.leave = epf_gpu_no_leave,
	.module_load = epf_gpu_no_module,
	.module_unload = epf_gpu_no_unload,
	.function = epf_gpu_no_function,
	.launch = epf_gpu_no_launch,
};

/* The first of the real back-ends that has a device; the reason holds the answers of all. */
static int find_any(const struct epf_gpu_ops **out)
{
	static const struct epf_gpu_ops *const real[] = { &epf_gpu_cuda_ops, &epf_gpu_hip_ops };
	char why[400] = "";

	for (size_t i = 0; i < sizeof(real) / sizeof(real[0]); i++) {
		size_t len = strlen(why);
		int n = 0;

		if (real[i]->count(&n) == 0) {
			*out = real[i];
			return 0;
		}
		snprintf(why + len, sizeof(why) - len, "%s%.180s", i ? "; " : "", epf_last_error());
	}
	return epf_fail(EPF_R_GPU_ABSENT, "gpu-backend auto: %s", why);
}

int epf_gpu_backend(const char *name, const struct epf_gpu_ops **out)
{
	static const struct epf_gpu_ops *const all[] = { &epf_gpu_cuda_ops, &epf_gpu_hip_ops,
							 &epf_gpu_fake_ops, &epf_gpu_none_ops };

	if (strcmp(name, "auto") == 0)
		return find_any(out);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (strcmp(name, all[i]->name) == 0) {
			*out = all[i];
			return 0;
		}
	return epf_fail(EPF_R_GPU_BACKEND, "gpu-backend %s", name);
}

int epf_gpu_numa(const char *pci)
{
	char path[96];
	int node = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", pci);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%d", &node) != 1)
		node = -1;
	fclose(f);
	return node;
}
