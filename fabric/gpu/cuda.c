/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuda GPU back-end (gpu.h) over the driver API (cuda_lib.h): devices, pinned memory, device memory and its exports. Copies,
 * streams and kernels are in cuda_run.c. Each call pushes the device's primary context and pops it again, so the calling
 * thread's current device stays what it was. It must never be the reason that CUDA is initialised in a process that did not ask for it.
 */
#include "fabric/gpu/cuda.h"

#include "fabric/base/err.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum kind {
	KIND_NONE,
	KIND_PLAIN,  /* cuMemAlloc */
	KIND_VMM,    /* cuMemCreate, mapped; handle kept */
	KIND_IMPORT, /* imported descriptor, mapped; handle kept */
	KIND_IPC,    /* handle: base address of the mapping */
};

int epf_cuda_result(const struct cuda_dev *d, int rc, const char *call)
{
	const char *name = "?";

	if (!rc)
		return 0;
	(void)d->lib->error_name(rc, &name);
	return epf_fail(rc == EPF_CU_OUT_OF_MEMORY   ? EPF_R_NO_MEMORY
			: rc == EPF_CU_NOT_SUPPORTED ? EPF_R_GPU_UNSUPPORTED
						     : EPF_R_GPU_CALL,
			"cuda device %d: %s: %s", d->dev.index, call, name);
}

/*
 * While any thread captures a graph, the driver refuses queries and copies of all threads, and spoils that graph, unless they say that they know
 * what they do: our streams and events are never part of one.
 */
static _Thread_local int capture_mode_before, capture_depth;

int epf_cuda_enter(const struct cuda_dev *d)
{
	int rc = epf_cuda_result(d, d->lib->context_push(d->context), "cuCtxPushCurrent");

	if (!rc && capture_depth++ == 0) {
		capture_mode_before = EPF_CU_CAPTURE_RELAXED;
		(void)d->lib->capture_mode(&capture_mode_before);
	}
	return rc;
}

void epf_cuda_leave(const struct cuda_dev *d)
{
	void *context;

	if (--capture_depth == 0)
		(void)d->lib->capture_mode(&capture_mode_before);
	(void)d->lib->context_pop(&context);
}

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

static int cuda_open(int index, struct epf_gpu_dev **out)
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
	d->dev.ops = &epf_gpu_cuda_ops;
	d->dev.index = index < 0 ? current : index;
	if (d->dev.index >= n)
		rc = epf_fail(EPF_R_GPU_ABSENT, "cuda device %d: there are %d", d->dev.index, n);
	if (!rc)
		rc = epf_cuda_result(d, d->lib->device_get(&d->device, d->dev.index),
				     "cuDeviceGet");
	if (!rc)
		rc = epf_cuda_result(d, d->lib->context_retain(&d->context, d->device),
				     "cuDevicePrimaryCtxRetain");
	if (!rc) {
		rc = epf_cuda_stream_create(&d->dev, &d->own);
		if (rc)
			(void)d->lib->context_release(d->device);
	}
	if (rc) {
		free(d);
		return rc;
	}
	*out = &d->dev;
	return 0;
}

static void cuda_close(struct epf_gpu_dev *dev)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;

	if (!d)
		return;
	epf_cuda_stream_destroy(dev, d->own);
	(void)d->lib->context_release(d->device);
	free(d);
}

/* 0 for an attribute that the driver does not know. */
static int attribute(const struct cuda_dev *d, int which)
{
	int value = 0;

	return d->lib->device_attribute(&value, which, d->device) ? 0 : value;
}

static int cuda_describe(struct epf_gpu_dev *dev, struct epf_gpu_props *out)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int order = attribute(d, EPF_CU_ATTR_WRITES_ORDERING);
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
	p.multiprocessors = (uint32_t)attribute(d, EPF_CU_ATTR_MULTIPROCESSORS);
	p.warp = (uint32_t)attribute(d, EPF_CU_ATTR_WARP_SIZE);
	p.major = (uint32_t)attribute(d, EPF_CU_ATTR_MAJOR);
	p.minor = (uint32_t)attribute(d, EPF_CU_ATTR_MINOR);
	p.timer_khz = 1000000; /* %globaltimer counts nanoseconds */
	p.has_fd = attribute(d, EPF_CU_ATTR_VMM) && attribute(d, EPF_CU_ATTR_POSIX_FD);
	p.has_dmabuf = attribute(d, EPF_CU_ATTR_DMA_BUF) != 0;
	p.has_rdma = attribute(d, EPF_CU_ATTR_RDMA) != 0;
	p.has_flush = attribute(d, EPF_CU_ATTR_FLUSH_WRITES) & EPF_CU_FLUSH_OPTION_HOST;
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

/* How memory that can be exported is made. */
static struct epf_cu_allocation allocation_of(const struct cuda_dev *d, unsigned flags)
{
	struct epf_cu_allocation a = { .type = EPF_CU_ALLOCATION_PINNED,
				       .location = { EPF_CU_LOCATION_DEVICE, d->device } };

	if (flags & EPF_GPU_MEM_EXPORT)
		a.handle_types = EPF_CU_HANDLE_POSIX_FD;
	if ((flags & EPF_GPU_MEM_RDMA) && attribute(d, EPF_CU_ATTR_RDMA_VMM))
		a.flags.rdma = 1;
	return a;
}

/* Gives a handle's memory an address that this device may read and write. On failure the handle is the caller's still. */
static int map_handle(struct cuda_dev *d, uint64_t handle, uint64_t bytes, uint64_t *out)
{
	struct epf_cu_access access = { { EPF_CU_LOCATION_DEVICE, d->device },
					EPF_CU_ACCESS_READ_WRITE };
	uint64_t at = 0;
	int rc =
		epf_cuda_result(d, d->lib->mem_reserve(&at, bytes, 0, 0, 0), "cuMemAddressReserve");

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->mem_map(at, bytes, 0, handle, 0), "cuMemMap");
	if (!rc) {
		rc = epf_cuda_result(d, d->lib->mem_set_access(at, bytes, &access, 1),
				     "cuMemSetAccess");
		if (rc)
			(void)d->lib->mem_unmap(at, bytes);
	}
	if (rc) {
		(void)d->lib->mem_unreserve(at, bytes);
		return rc;
	}
	*out = at;
	return 0;
}

static int alloc_vmm(struct cuda_dev *d, uint64_t bytes, unsigned flags, struct epf_gpu_mem *out)
{
	struct epf_cu_allocation how = allocation_of(d, flags);
	struct epf_gpu_mem m = { .kind = KIND_VMM };
	size_t step = 1;
	int rc = epf_cuda_result(d, d->lib->mem_granularity(&step, &how, 0),
				 "cuMemGetAllocationGranularity");

	if (rc)
		return rc;
	m.bytes = (bytes + step - 1) / step * step;
	rc = epf_cuda_result(d, d->lib->mem_create(&m.handle, m.bytes, &how, 0), "cuMemCreate");
	if (rc)
		return rc;
	rc = map_handle(d, m.handle, m.bytes, &m.addr);
	if (rc) {
		(void)d->lib->mem_release(m.handle);
		return rc;
	}
	*out = m;
	return 0;
}

static void cuda_mem_free(struct epf_gpu_dev *dev, struct epf_gpu_mem *mem)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;

	if (!mem || !mem->addr || epf_cuda_enter(d))
		return;
	if (mem->kind == KIND_PLAIN) {
		(void)d->lib->mem_free(mem->addr);
	} else if (mem->kind == KIND_IPC) {
		(void)d->lib->ipc_close(mem->handle);
	} else {
		(void)d->lib->mem_unmap(mem->addr, mem->bytes);
		(void)d->lib->mem_unreserve(mem->addr, mem->bytes);
		(void)d->lib->mem_release(mem->handle);
	}
	epf_cuda_leave(d);
	memset(mem, 0, sizeof(*mem));
}

static int cuda_mem_alloc(struct epf_gpu_dev *dev, uint64_t bytes, unsigned flags,
			  struct epf_gpu_mem *out)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	struct epf_gpu_mem m = { .kind = KIND_PLAIN, .bytes = bytes };
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	if (flags)
		rc = alloc_vmm(d, bytes, flags, &m);
	else
		rc = epf_cuda_result(d, d->lib->mem_alloc(&m.addr, bytes), "cuMemAlloc");
	if (!rc) {
		rc = epf_cuda_fill(dev, m.addr, 0, m.bytes);
		if (rc)
			cuda_mem_free(dev, &m);
	}
	epf_cuda_leave(d);
	if (!rc)
		*out = m;
	return rc;
}

static int cuda_mem_export_fd(struct epf_gpu_dev *dev, const struct epf_gpu_mem *mem, int *fd)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int out = -1;
	int rc;

	if (mem->kind != KIND_VMM)
		return epf_fail(EPF_R_GPU_UNSUPPORTED,
				"cuda device %d: this memory was not allocated for export",
				dev->index);
	rc = epf_cuda_enter(d);
	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->mem_export(&out, mem->handle, EPF_CU_HANDLE_POSIX_FD, 0),
			     "cuMemExportToShareableHandle");
	epf_cuda_leave(d);
	if (!rc)
		*fd = out;
	return rc;
}

static int cuda_mem_import_fd(struct epf_gpu_dev *dev, int fd, uint64_t bytes,
			      struct epf_gpu_mem *out)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	struct epf_gpu_mem m = { .kind = KIND_IMPORT, .bytes = bytes };
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(
		d, d->lib->mem_import(&m.handle, (void *)(uintptr_t)fd, EPF_CU_HANDLE_POSIX_FD),
		"cuMemImportFromShareableHandle");
	if (!rc) {
		rc = map_handle(d, m.handle, bytes, &m.addr);
		if (rc)
			(void)d->lib->mem_release(m.handle);
	}
	epf_cuda_leave(d);
	if (!rc)
		*out = m;
	return rc;
}

static int cuda_mem_export_ipc(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_ipc *out)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	struct epf_cu_ipc handle;
	uint64_t base = 0;
	size_t bytes = 0;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->mem_range(&base, &bytes, addr), "cuMemGetAddressRange");
	if (!rc)
		rc = epf_cuda_result(d, d->lib->ipc_get(&handle, base), "cuIpcGetMemHandle");
	epf_cuda_leave(d);
	if (rc)
		return rc;
	memcpy(out->handle, &handle, sizeof(out->handle));
	out->base_bytes = bytes;
	out->offset = addr - base;
	return 0;
}

static int cuda_mem_import_ipc(struct epf_gpu_dev *dev, const struct epf_gpu_ipc *ipc,
			       struct epf_gpu_mem *out)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	struct epf_gpu_mem m = { .kind = KIND_IPC };
	struct epf_cu_ipc handle;
	int rc;

	if (ipc->offset >= ipc->base_bytes)
		return epf_fail(EPF_R_GPU_CALL, "cuda device %d: a handle with offset %llu of %llu",
				dev->index, (unsigned long long)ipc->offset,
				(unsigned long long)ipc->base_bytes);
	rc = epf_cuda_enter(d);
	if (rc)
		return rc;
	memcpy(&handle, ipc->handle, sizeof(handle));
	rc = epf_cuda_result(d, d->lib->ipc_open(&m.handle, handle, EPF_CU_IPC_LAZY_PEER),
			     "cuIpcOpenMemHandle");
	epf_cuda_leave(d);
	if (rc)
		return rc;
	m.addr = m.handle + ipc->offset;
	m.bytes = ipc->base_bytes - ipc->offset;
	*out = m;
	return 0;
}

static int cuda_mem_dmabuf(struct epf_gpu_dev *dev, uint64_t addr, uint64_t bytes, int *fd,
			   uint64_t *offset)
{
	enum { PAGE = 4096 }; /* the call takes whole pages of the host */
	struct cuda_dev *d = (struct cuda_dev *)dev;
	uint64_t skip = addr % PAGE;
	uint64_t len = (skip + bytes + PAGE - 1) / PAGE * PAGE;
	int out = -1;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(
		d, d->lib->mem_range_handle(&out, addr - skip, len, EPF_CU_RANGE_DMA_BUF, 0),
		"cuMemGetHandleForAddressRange");
	epf_cuda_leave(d);
	if (rc)
		return rc;
	*fd = out;
	*offset = skip;
	return 0;
}

static int cuda_mem_place(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_place *out)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	struct epf_gpu_place p = { .where = EPF_GPU_HOST, .device = -1 };
	unsigned type = 0;
	int device = -1;
	uint64_t base = 0;
	size_t bytes = 0;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	/* An address that the driver has never heard of is ordinary memory. */
	if (!d->lib->pointer_attribute(&type, EPF_CU_POINTER_MEMORY_TYPE, addr) &&
	    type == EPF_CU_MEMORY_DEVICE &&
	    !d->lib->pointer_attribute(&device, EPF_CU_POINTER_DEVICE, addr) &&
	    !d->lib->pointer_attribute(&base, EPF_CU_POINTER_RANGE_START, addr) &&
	    !d->lib->pointer_attribute(&bytes, EPF_CU_POINTER_RANGE_BYTES, addr))
		p = (struct epf_gpu_place){ EPF_GPU_DEVICE, device, base, bytes };
	epf_cuda_leave(d);
	*out = p;
	return 0;
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

const struct epf_gpu_ops epf_gpu_cuda_ops = {
	.name = "cuda",
	.count = cuda_count,
	.open = cuda_open,
	.close = cuda_close,
	.describe = cuda_describe,
	.pin = cuda_pin,
	.unpin = cuda_unpin,
	.mem_alloc = cuda_mem_alloc,
	.mem_free = cuda_mem_free,
	.mem_export_fd = cuda_mem_export_fd,
	.mem_import_fd = cuda_mem_import_fd,
	.mem_export_ipc = cuda_mem_export_ipc,
	.mem_import_ipc = cuda_mem_import_ipc,
	.mem_dmabuf = cuda_mem_dmabuf,
	.mem_place = cuda_mem_place,
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
	.module_load = epf_cuda_module_load,
	.module_unload = epf_cuda_module_unload,
	.function = epf_cuda_function,
	.launch = epf_cuda_launch,
};
