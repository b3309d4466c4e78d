/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuda GPU back-end (gpu.h) over the driver API (cuda_lib.h): devices, pinned memory, and the table. cuda_memory.c allocates,
 * exports and imports device memory; cuda_run.c copies and launches. No call here initialises CUDA in a process that has not asked for it.
 */
#include "fabric/gpu/cuda_priv.h"

#include "fabric/base/err.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int cuda_count(int *n)
{
	const struct epf_cuda_lib *lib;
	const struct epf_cuda_batch *batch;
	int rc = epf_cuda_lib(&lib, &batch);
	int count = 0;

	if (rc)
		return rc;
	if (lib->device_count(&count) || count < 1)
		return epf_fail(EPF_R_GPU_ABSENT, "cuda: the driver knows no device");
	*n = count;
	return 0;
}

/* The primary context, or a new one, which is then no thread's current one. */
static int get_context(struct cuda_dev *d)
{
	void *current;
	int rc;

	if (!d->is_own)
		return epf_cuda_result(d, d->lib->context_retain(&d->context, d->device),
				       "cuDevicePrimaryCtxRetain");
	rc = epf_cuda_result(d, d->lib->context_create(&d->context, 0, d->device), "cuCtxCreate");
	if (!rc)
		(void)d->lib->context_pop(&current);
	return rc;
}

static void put_context(struct cuda_dev *d)
{
	if (d->is_own)
		(void)d->lib->context_destroy(d->context);
	else
		(void)d->lib->context_release(d->device);
}

static int open_device(int index, bool is_own, struct epf_gpu_dev **out)
{
	struct cuda_dev *d = calloc(1, sizeof(*d));
	int current = 0;
	int rc, n;

	if (!d)
		return epf_fail(EPF_R_NO_MEMORY, "cuda: a device");
	rc = cuda_count(&n);
	if (!rc)
		rc = epf_cuda_lib(&d->lib, &d->batch);
	if (rc) {
		free(d);
		return rc;
	}
	if (index < 0 && d->lib->context_device(&current))
		current = 0; /* the thread has no context */
	d->is_own = is_own;
	d->dev.ops = &epf_gpu_cuda_ops;
	d->dev.index = index < 0 ? current : index;
	if (d->dev.index >= n)
		rc = epf_fail(EPF_R_GPU_ABSENT, "cuda device %d: there are %d", d->dev.index, n);
	if (!rc)
		rc = epf_cuda_result(d, d->lib->device_get(&d->device, d->dev.index),
				     "cuDeviceGet");
	if (!rc)
		rc = get_context(d);
	if (!rc) {
		rc = epf_cuda_stream_create(&d->dev, &d->own);
		if (rc)
			put_context(d);
	}
	if (rc) {
		free(d);
		return rc;
	}
	*out = &d->dev;
	return 0;
}

static int cuda_open(int index, struct epf_gpu_dev **out)
{
	return open_device(index, false, out);
}

static int cuda_open_own(int index, struct epf_gpu_dev **out)
{
	return open_device(index, true, out);
}

static void cuda_close(struct epf_gpu_dev *dev)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;

	if (!d)
		return;
	epf_cuda_stream_destroy(dev, d->own);
	put_context(d);
	free(d);
}

static int cuda_describe(struct epf_gpu_dev *dev, struct epf_gpu_props *out)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int order = epf_cuda_attribute(d, EPF_CU_ATTR_WRITES_ORDERING);
	struct epf_gpu_props p = { .numa = -1 };
	int rc = epf_cuda_result(d, d->lib->device_name(p.name, (int)sizeof(p.name), d->device),
				 "cuDeviceGetName");

	if (!rc)
		rc = epf_cuda_result(d, d->lib->device_pci(p.pci, (int)sizeof(p.pci), d->device),
				     "cuDeviceGetPCIBusId");
	if (rc)
		return rc;
	for (char *c = p.pci; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	p.numa = epf_gpu_numa(p.pci);
	p.multiprocessors = (uint32_t)epf_cuda_attribute(d, EPF_CU_ATTR_MULTIPROCESSORS);
	p.warp = (uint32_t)epf_cuda_attribute(d, EPF_CU_ATTR_WARP_SIZE);
	p.major = (uint32_t)epf_cuda_attribute(d, EPF_CU_ATTR_MAJOR);
	p.minor = (uint32_t)epf_cuda_attribute(d, EPF_CU_ATTR_MINOR);
	p.timer_khz = 1000000; /* %globaltimer counts nanoseconds */
	p.has_fd = epf_cuda_attribute(d, EPF_CU_ATTR_VMM) &&
		   epf_cuda_attribute(d, EPF_CU_ATTR_POSIX_FD);
	p.has_dmabuf = epf_cuda_attribute(d, EPF_CU_ATTR_DMA_BUF) != 0;
	p.has_rdma = epf_cuda_attribute(d, EPF_CU_ATTR_RDMA) != 0;
	p.has_flush = epf_cuda_attribute(d, EPF_CU_ATTR_FLUSH_WRITES) & EPF_CU_FLUSH_OPTION_HOST;
	p.write_order = order >= EPF_CU_FLUSH_TO_ALL     ? EPF_GPU_ORDER_ALL
			: order >= EPF_CU_FLUSH_TO_OWNER ? EPF_GPU_ORDER_OWNER
							 : EPF_GPU_ORDER_NONE;
	*out = p;
	return 0;
}

static int cuda_pin(struct epf_gpu_dev *dev, void *addr, uint64_t bytes, unsigned flags,
		    uint64_t *device_addr)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	unsigned how = EPF_CU_REGISTER_PORTABLE | EPF_CU_REGISTER_DEVICEMAP |
		       (flags & EPF_GPU_PIN_READ_ONLY ? EPF_CU_REGISTER_READ_ONLY : 0);
	uint64_t at = 0;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = d->lib->host_register(addr, bytes, how);
	if (rc) {
		const char *name = "?";

		(void)d->lib->error_name(rc, &name);
		rc = epf_fail(EPF_R_GPU_PIN, "cuda device %d: %llu bytes at %p: %s", d->dev.index,
			      (unsigned long long)bytes, addr, name);
	} else {
		rc = epf_cuda_result(d, d->lib->host_pointer(&at, addr, 0),
				     "cuMemHostGetDevicePointer");
		if (rc)
			(void)d->lib->host_unregister(addr);
	}
	epf_cuda_leave(d);
	if (!rc)
		*device_addr = at;
	return rc;
}

static void cuda_unpin(struct epf_gpu_dev *dev, void *addr)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;

	if (!addr || epf_cuda_enter(d))
		return;
	(void)d->lib->host_unregister(addr);
	epf_cuda_leave(d);
}

static int cuda_flush_writes(struct epf_gpu_dev *dev)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(
		d, d->lib->flush_writes(EPF_CU_FLUSH_TARGET_CONTEXT, EPF_CU_FLUSH_TO_OWNER),
		"cuFlushGPUDirectRDMAWrites");
	epf_cuda_leave(d);
	return rc;
}

static int cuda_peer_enable(struct epf_gpu_dev *dev, struct epf_gpu_dev *peer)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = d->lib->peer_enable(((struct cuda_dev *)peer)->context, 0);
	rc = rc == EPF_CU_PEER_ALREADY_ENABLED ? 0
					       : epf_cuda_result(d, rc, "cuCtxEnablePeerAccess");
	epf_cuda_leave(d);
	return rc;
}

static int cuda_enter(struct epf_gpu_dev *dev)
{
	return epf_cuda_enter((struct cuda_dev *)dev);
}

static void cuda_leave(struct epf_gpu_dev *dev)
{
	epf_cuda_leave((struct cuda_dev *)dev);
}

const struct epf_gpu_ops epf_gpu_cuda_ops = {
	.name = "cuda",
	.count = cuda_count,
	.open = cuda_open,
	.open_own = cuda_open_own,
	.close = cuda_close,
	.describe = cuda_describe,
	.pin = cuda_pin,
	.unpin = cuda_unpin,
	.mem_alloc = epf_cuda_mem_alloc,
	.mem_free = epf_cuda_mem_free,
	.mem_export_fd = epf_cuda_mem_export_fd,
	.mem_import_fd = epf_cuda_mem_import_fd,
	.mem_export_ipc = epf_cuda_mem_export_ipc,
	.mem_import_ipc = epf_cuda_mem_import_ipc,
	.mem_export_mapped = epf_cuda_mem_export_mapped,
	.mem_dmabuf = epf_cuda_mem_dmabuf,
	.mem_place = epf_cuda_mem_place,
	.flush_writes = cuda_flush_writes,
	.peer_enable = cuda_peer_enable,
	.copy = epf_cuda_copy,
	.fill = epf_cuda_fill,
	.stream_create = epf_cuda_stream_create,
	.stream_destroy = epf_cuda_stream_destroy,
	.stream_sync = epf_cuda_stream_sync,
	.copy_async = epf_cuda_copy_async,
	.copy_batch = epf_cuda_copy_batch,
	.event_create = epf_cuda_event_create,
	.event_destroy = epf_cuda_event_destroy,
	.event_record = epf_cuda_event_record,
	.event_query = epf_cuda_event_query,
	.stream_wait = epf_cuda_stream_wait,
	.enter = cuda_enter,
	.leave = cuda_leave,
	.module_load = epf_cuda_module_load,
	.module_unload = epf_cuda_module_unload,
	.function = epf_cuda_function,
	.launch = epf_cuda_launch,
};
