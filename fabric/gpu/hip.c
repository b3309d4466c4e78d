/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hip GPU back-end (gpu.h) over AMD's HIP runtime (hip_lib.h): devices, memory and the table. Compiled everywhere, never run on AMD
 * hardware. Each call sets the calling thread's device and restores it. It offers IPC handles and dma-bufs, but no descriptors: the
 * layouts of those calls differ between ROCm releases.
 */
#include "fabric/gpu/hip_priv.h"

#include "fabric/base/err.h"
#include "fabric/gpu/none.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_NONE, KIND_PLAIN, KIND_IPC };

static int hip_count(int *n)
{
	const struct epf_hip_lib *lib;
	const struct epf_hip_extra *extra;
	int rc = epf_hip_lib(&lib, &extra);
	int count = 0;

	if (rc)
		return rc;
	if (lib->device_count(&count) || count < 1)
		return epf_fail(EPF_R_GPU_ABSENT, "hip: the runtime knows no device");
	*n = count;
	return 0;
}

static int hip_open(int index, struct epf_gpu_dev **out)
{
	struct hip_dev *d = calloc(1, sizeof(*d));
	int current = 0;
	int rc, n;

	if (!d)
		return epf_fail(EPF_R_NO_MEMORY, "hip: a device");
	rc = hip_count(&n);
	if (!rc)
		rc = epf_hip_lib(&d->lib, &d->extra);
	if (!rc) {
		if (index < 0 && d->lib->device_current(&current))
			current = 0;
		d->dev.ops = &epf_gpu_hip_ops;
		d->dev.index = index < 0 ? current : index;
		if (d->dev.index >= n)
			rc = epf_fail(EPF_R_GPU_ABSENT, "hip device %d: there are %d", d->dev.index,
				      n);
	}
	if (!rc)
		rc = epf_hip_stream_create(&d->dev, &d->own);
	if (rc) {
		free(d);
		return rc;
	}
	*out = &d->dev;
	return 0;
}

static void hip_close(struct epf_gpu_dev *dev)
{
	struct hip_dev *d = (struct hip_dev *)dev;

	if (!d)
		return;
	epf_hip_stream_destroy(dev, d->own);
	free(d);
}

static int attribute(const struct hip_dev *d, int which)
{
	int value = 0;

	return d->lib->device_attribute(&value, which, d->dev.index) ? 0 : value;
}

static int hip_describe(struct epf_gpu_dev *dev, struct epf_gpu_props *out)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	struct epf_gpu_props p = { .numa = -1 };
	int rc = epf_hip_result(d, d->lib->device_name(p.name, (int)sizeof(p.name), dev->index),
				"hipDeviceGetName");

	if (!rc)
		rc = epf_hip_result(d, d->lib->device_pci(p.pci, (int)sizeof(p.pci), dev->index),
				    "hipDeviceGetPCIBusId");
	if (rc)
		return rc;
	for (char *c = p.pci; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	p.numa = epf_gpu_numa(p.pci);
	p.multiprocessors = (uint32_t)attribute(d, EPF_HIP_ATTR_MULTIPROCESSORS);
	p.warp = (uint32_t)attribute(d, EPF_HIP_ATTR_WARP_SIZE);
	p.major = (uint32_t)attribute(d, EPF_HIP_ATTR_MAJOR);
	p.minor = (uint32_t)attribute(d, EPF_HIP_ATTR_MINOR);
	p.timer_khz = 100000; /* s_memrealtime of CDNA counts at 100 MHz */
	p.has_dmabuf = d->extra->dmabuf != NULL;
	p.has_rdma = p.has_dmabuf;
	p.write_order = EPF_GPU_ORDER_NONE;
	*out = p;
	return 0;
}

static int hip_pin(struct epf_gpu_dev *dev, void *addr, uint64_t bytes, unsigned flags,
		   uint64_t *device_addr)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *at = NULL;
	int before;
	int rc = epf_hip_enter(d, &before);

	if (rc)
		return rc;
	rc = d->lib->host_register(addr, bytes,
				   EPF_HIP_REGISTER_PORTABLE | EPF_HIP_REGISTER_MAPPED);
	if (rc) {
		rc = epf_fail(EPF_R_GPU_PIN, "hip device %d: %llu bytes at %p: %s", dev->index,
			      (unsigned long long)bytes, addr, d->lib->error_name(rc));
	} else {
		rc = epf_hip_result(d, d->lib->host_pointer(&at, addr, 0),
				    "hipHostGetDevicePointer");
		if (rc)
			(void)d->lib->host_unregister(addr);
	}
	epf_hip_leave(d, before);
	if (!rc)
		*device_addr = (uintptr_t)at;
	return rc;
}

static void hip_unpin(struct epf_gpu_dev *dev, void *addr)
{
	if (addr)
		(void)((struct hip_dev *)dev)->lib->host_unregister(addr);
}

static int hip_fill(struct epf_gpu_dev *dev, uint64_t dst, uint8_t value, uint64_t bytes)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before;
	int rc = epf_hip_enter(d, &before);

	if (rc)
		return rc;
	rc = epf_hip_result(d, d->lib->fill_async(epf_hip_pointer(dst), value, bytes, d->own),
			    "hipMemsetAsync");
	if (!rc)
		rc = epf_hip_result(d, d->lib->stream_sync(d->own), "hipStreamSynchronize");
	epf_hip_leave(d, before);
	return rc;
}

static void hip_mem_free(struct epf_gpu_dev *dev, struct epf_gpu_mem *mem)
{
	struct hip_dev *d = (struct hip_dev *)dev;

	if (!mem || !mem->addr)
		return;
	if (mem->kind == KIND_IPC)
		(void)d->lib->ipc_close(epf_hip_pointer(mem->handle));
	else
		(void)d->lib->mem_free(epf_hip_pointer(mem->addr));
	memset(mem, 0, sizeof(*mem));
}

static int hip_mem_alloc(struct epf_gpu_dev *dev, uint64_t bytes, unsigned flags,
			 struct epf_gpu_mem *out)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	struct epf_gpu_mem m = { .bytes = bytes, .kind = KIND_PLAIN };
	void *at = NULL;
	int before, rc;

	if (flags & EPF_GPU_MEM_EXPORT)
		return epf_gpu_no_fd(dev, NULL, NULL);
	rc = epf_hip_enter(d, &before);
	if (rc)
		return rc;
	rc = epf_hip_result(d, d->lib->mem_alloc(&at, bytes), "hipMalloc");
	epf_hip_leave(d, before);
	if (rc)
		return rc;
	m.addr = (uintptr_t)at;
	rc = hip_fill(dev, m.addr, 0, bytes);
	if (rc) {
		hip_mem_free(dev, &m);
		return rc;
	}
	*out = m;
	return 0;
}

static int hip_mem_export_ipc(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_ipc *out)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	struct epf_hip_ipc handle;
	void *base = NULL;
	size_t bytes = 0;
	int rc = epf_hip_result(d, d->lib->mem_range(&base, &bytes, epf_hip_pointer(addr)),
				"hipMemGetAddressRange");

	if (!rc)
		rc = epf_hip_result(d, d->lib->ipc_get(&handle, base), "hipIpcGetMemHandle");
	if (rc)
		return rc;
	memcpy(out->handle, &handle, sizeof(out->handle));
	out->base_bytes = bytes;
	out->offset = addr - (uintptr_t)base;
	return 0;
}

static int hip_mem_import_ipc(struct epf_gpu_dev *dev, const struct epf_gpu_ipc *ipc,
			      struct epf_gpu_mem *out)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	struct epf_hip_ipc handle;
	void *base = NULL;
	int before, rc;

	if (ipc->offset >= ipc->base_bytes)
		return epf_fail(EPF_R_GPU_CALL, "hip device %d: a handle with offset %llu of %llu",
				dev->index, (unsigned long long)ipc->offset,
				(unsigned long long)ipc->base_bytes);
	rc = epf_hip_enter(d, &before);
	if (rc)
		return rc;
	memcpy(&handle, ipc->handle, sizeof(handle));
	rc = epf_hip_result(d, d->lib->ipc_open(&base, handle, EPF_HIP_IPC_LAZY_PEER),
			    "hipIpcOpenMemHandle");
	epf_hip_leave(d, before);
	if (rc)
		return rc;
	*out = (struct epf_gpu_mem){ .addr = (uintptr_t)base + ipc->offset,
				     .bytes = ipc->base_bytes - ipc->offset,
				     .handle = (uintptr_t)base,
				     .kind = KIND_IPC };
	return 0;
}

static int hip_mem_dmabuf(struct epf_gpu_dev *dev, uint64_t addr, uint64_t bytes, int *fd,
			  uint64_t *offset)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	uint64_t at = 0;
	int out = -1;

	if (!d->extra->dmabuf)
		return epf_gpu_no_dmabuf(dev, addr, bytes, fd, offset);
	if (d->extra->dmabuf(epf_hip_pointer(addr), bytes, &out, &at))
		return epf_fail(EPF_R_GPU_CALL,
				"hip device %d: hsa_amd_portable_export_dmabuf failed", dev->index);
	*fd = out;
	*offset = at;
	return 0;
}

static int hip_mem_place(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_place *out)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	struct epf_gpu_place p = { .where = EPF_GPU_HOST, .device = -1 };
	void *host = NULL, *base = NULL;
	size_t bytes = 0;
	int device = -1;

	/* Memory that has no address on the host is a device's; what the runtime does not know is ordinary memory. */
	if (!d->lib->mem_range(&base, &bytes, epf_hip_pointer(addr)) &&
	    (d->lib->pointer_attribute(&host, EPF_HIP_POINTER_HOST, epf_hip_pointer(addr)) ||
	     !host) &&
	    !d->lib->pointer_attribute(&device, EPF_HIP_POINTER_DEVICE, epf_hip_pointer(addr)))
		p = (struct epf_gpu_place){ EPF_GPU_DEVICE, device, (uintptr_t)base, bytes };
	*out = p;
	return 0;
}

static int hip_peer_enable(struct epf_gpu_dev *dev, struct epf_gpu_dev *peer)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before;
	int rc = epf_hip_enter(d, &before);

	if (rc)
		return rc;
	rc = d->lib->peer_enable(peer->index, 0);
	rc = rc == EPF_HIP_PEER_ALREADY_ENABLED
		     ? 0
		     : epf_hip_result(d, rc, "hipDeviceEnablePeerAccess");
	epf_hip_leave(d, before);
	return rc;
}

const struct epf_gpu_ops epf_gpu_hip_ops = {
	.name = "hip",
	.count = hip_count,
	.open = hip_open,
	.open_own = hip_open,
	.close = hip_close,
	.describe = hip_describe,
	.pin = hip_pin,
	.unpin = hip_unpin,
	.mem_alloc = hip_mem_alloc,
	.mem_free = hip_mem_free,
	.mem_export_fd = epf_gpu_no_fd,
	.mem_import_fd = epf_gpu_no_import_fd,
	.mem_export_ipc = hip_mem_export_ipc,
	.mem_import_ipc = hip_mem_import_ipc,
	.mem_export_mapped = epf_gpu_no_mapped,
	.mem_dmabuf = hip_mem_dmabuf,
	.mem_place = hip_mem_place,
	.flush_writes = epf_gpu_no_flush,
	.peer_enable = hip_peer_enable,
	.copy = epf_hip_copy,
	.fill = hip_fill,
	.stream_create = epf_hip_stream_create,
	.stream_destroy = epf_hip_stream_destroy,
	.stream_sync = epf_hip_stream_sync,
	.copy_async = epf_hip_copy_async,
	.copy_batch = epf_hip_copy_batch,
	.event_create = epf_hip_event_create,
	.event_destroy = epf_hip_event_destroy,
	.event_record = epf_hip_event_record,
	.event_query = epf_hip_event_query,
	.stream_wait = epf_hip_stream_wait,
	.enter = epf_gpu_no_enter,
	.leave = epf_gpu_no_leave,
	.module_load = epf_hip_module_load,
	.module_unload = epf_hip_module_unload,
	.function = epf_hip_function,
	.launch = epf_hip_launch,
};
