/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hip GPU back-end (gpu.h) over AMD's HIP runtime (hip_lib.h). Compiled everywhere and never run on AMD hardware. Each call sets
 * the device of the calling thread and puts back what it was. Descriptors for memory are not offered: the layouts of those calls
 * differ between releases of ROCm; IPC handles and dma-bufs are.
 */
#include "fabric/gpu/hip_lib.h"

#include "fabric/base/err.h"
#include "fabric/gpu/none.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_NONE, KIND_PLAIN, KIND_IPC };

struct hip_dev {
	struct epf_gpu_dev dev;
	const struct epf_hip_lib *lib;
	const struct epf_hip_extra *extra;
	void *own; /* a stream for blocking copies: the default one would wait for kernels of the user */
};

static void *pointer(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

static int result(const struct hip_dev *d, int rc, const char *call)
{
	if (!rc)
		return 0;
	return epf_fail(rc == EPF_HIP_OUT_OF_MEMORY   ? EPF_R_NO_MEMORY
			: rc == EPF_HIP_NOT_SUPPORTED ? EPF_R_GPU_UNSUPPORTED
						      : EPF_R_GPU_CALL,
			"hip device %d: %s: %s", d->dev.index, call, d->lib->error_name(rc));
}

/* Makes the device current; *before: what leave() puts back. */
static int enter(const struct hip_dev *d, int *before)
{
	if (d->lib->device_current(before))
		*before = d->dev.index;
	return result(d, d->lib->device_set(d->dev.index), "hipSetDevice");
}

static void leave(const struct hip_dev *d, int before)
{
	(void)d->lib->device_set(before);
}

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

static int hip_stream_create(struct epf_gpu_dev *dev, void **stream)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *out = NULL;
	int before;
	int rc = enter(d, &before);

	if (rc)
		return rc;
	rc = result(d, d->lib->stream_create(&out, EPF_HIP_STREAM_NON_BLOCKING),
		    "hipStreamCreateWithFlags");
	leave(d, before);
	if (!rc)
		*stream = out;
	return rc;
}

static void hip_stream_destroy(struct epf_gpu_dev *dev, void *stream)
{
	struct hip_dev *d = (struct hip_dev *)dev;

	if (stream)
		(void)d->lib->stream_destroy(stream);
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
		rc = hip_stream_create(&d->dev, &d->own);
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
	hip_stream_destroy(dev, d->own);
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
	int rc = result(d, d->lib->device_name(p.name, (int)sizeof(p.name), dev->index),
			"hipDeviceGetName");

	if (!rc)
		rc = result(d, d->lib->device_pci(p.pci, (int)sizeof(p.pci), dev->index),
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
	int rc = enter(d, &before);

	if (rc)
		return rc;
	rc = d->lib->host_register(addr, bytes,
				   EPF_HIP_REGISTER_PORTABLE | EPF_HIP_REGISTER_MAPPED);
	if (rc) {
		rc = epf_fail(EPF_R_GPU_PIN, "hip device %d: %llu bytes at %p: %s", dev->index,
			      (unsigned long long)bytes, addr, d->lib->error_name(rc));
	} else {
		rc = result(d, d->lib->host_pointer(&at, addr, 0), "hipHostGetDevicePointer");
		if (rc)
			(void)d->lib->host_unregister(addr);
	}
	leave(d, before);
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
	int rc = enter(d, &before);

	if (rc)
		return rc;
	rc = result(d, d->lib->fill_async(pointer(dst), value, bytes, d->own), "hipMemsetAsync");
	if (!rc)
		rc = result(d, d->lib->stream_sync(d->own), "hipStreamSynchronize");
	leave(d, before);
	return rc;
}

static void hip_mem_free(struct epf_gpu_dev *dev, struct epf_gpu_mem *mem)
{
	struct hip_dev *d = (struct hip_dev *)dev;

	if (!mem || !mem->addr)
		return;
	if (mem->kind == KIND_IPC)
		(void)d->lib->ipc_close(pointer(mem->handle));
	else
		(void)d->lib->mem_free(pointer(mem->addr));
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
	rc = enter(d, &before);
	if (rc)
		return rc;
	rc = result(d, d->lib->mem_alloc(&at, bytes), "hipMalloc");
	leave(d, before);
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
	int rc =
		result(d, d->lib->mem_range(&base, &bytes, pointer(addr)), "hipMemGetAddressRange");

	if (!rc)
		rc = result(d, d->lib->ipc_get(&handle, base), "hipIpcGetMemHandle");
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
	rc = enter(d, &before);
	if (rc)
		return rc;
	memcpy(&handle, ipc->handle, sizeof(handle));
	rc = result(d, d->lib->ipc_open(&base, handle, EPF_HIP_IPC_LAZY_PEER),
		    "hipIpcOpenMemHandle");
	leave(d, before);
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
	if (d->extra->dmabuf(pointer(addr), bytes, &out, &at))
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
	if (!d->lib->mem_range(&base, &bytes, pointer(addr)) &&
	    (d->lib->pointer_attribute(&host, EPF_HIP_POINTER_HOST, pointer(addr)) || !host) &&
	    !d->lib->pointer_attribute(&device, EPF_HIP_POINTER_DEVICE, pointer(addr)))
		p = (struct epf_gpu_place){ EPF_GPU_DEVICE, device, (uintptr_t)base, bytes };
	*out = p;
	return 0;
}

static int hip_peer_enable(struct epf_gpu_dev *dev, struct epf_gpu_dev *peer)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before;
	int rc = enter(d, &before);

	if (rc)
		return rc;
	rc = d->lib->peer_enable(peer->index, 0);
	rc = rc == EPF_HIP_PEER_ALREADY_ENABLED ? 0 : result(d, rc, "hipDeviceEnablePeerAccess");
	leave(d, before);
	return rc;
}

static int hip_stream_sync(struct epf_gpu_dev *dev, void *stream)
{
	struct hip_dev *d = (struct hip_dev *)dev;

	return result(d, d->lib->stream_sync(stream), "hipStreamSynchronize");
}

static int hip_copy_async(struct epf_gpu_dev *dev, void *stream, uint64_t dst, uint64_t src,
			  uint64_t bytes)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before;
	int rc = enter(d, &before);

	if (rc)
		return rc;
	rc = result(
		d,
		d->lib->copy_async(pointer(dst), pointer(src), bytes, EPF_HIP_COPY_DEFAULT, stream),
		"hipMemcpyAsync");
	leave(d, before);
	return rc;
}

static int hip_copy(struct epf_gpu_dev *dev, uint64_t dst, uint64_t src, uint64_t bytes)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int rc = hip_copy_async(dev, d->own, dst, src, bytes);

	return rc ? rc : hip_stream_sync(dev, d->own);
}

static int hip_copy_batch(struct epf_gpu_dev *dev, void *stream, const struct epf_gpu_copy *c,
			  unsigned n)
{
	int rc = 0;

	for (unsigned i = 0; i < n && !rc; i++)
		rc = hip_copy_async(dev, stream, c[i].dst, c[i].src, c[i].bytes);
	return rc;
}

static int hip_event_create(struct epf_gpu_dev *dev, void **event)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *out = NULL;
	int before;
	int rc = enter(d, &before);

	if (rc)
		return rc;
	rc = result(d, d->lib->event_create(&out, EPF_HIP_EVENT_NO_TIMING),
		    "hipEventCreateWithFlags");
	leave(d, before);
	if (!rc)
		*event = out;
	return rc;
}

static void hip_event_destroy(struct epf_gpu_dev *dev, void *event)
{
	if (event)
		(void)((struct hip_dev *)dev)->lib->event_destroy(event);
}

static int hip_event_record(struct epf_gpu_dev *dev, void *stream, void *event)
{
	struct hip_dev *d = (struct hip_dev *)dev;

	return result(d, d->lib->event_record(event, stream), "hipEventRecord");
}

static int hip_event_query(struct epf_gpu_dev *dev, void *event)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int rc = d->lib->event_query(event);

	if (rc == EPF_HIP_NOT_READY)
		return 0;
	return rc ? result(d, rc, "hipEventQuery") : 1;
}

static int hip_module_load(struct epf_gpu_dev *dev, const void *image, void **module)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *out = NULL;
	int before;
	int rc = enter(d, &before);

	if (rc)
		return rc;
	rc = result(d, d->lib->module_load(&out, image), "hipModuleLoadData");
	leave(d, before);
	if (!rc)
		*module = out;
	return rc;
}

static void hip_module_unload(struct epf_gpu_dev *dev, void *module)
{
	if (module)
		(void)((struct hip_dev *)dev)->lib->module_unload(module);
}

static int hip_function(struct epf_gpu_dev *dev, void *module, const char *name, void **function)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *out = NULL;

	if (d->lib->module_function(&out, module, name))
		return epf_fail(EPF_R_GPU_CALL, "hip device %d: the module has no kernel %s",
				dev->index, name);
	*function = out;
	return 0;
}

static int hip_launch(struct epf_gpu_dev *dev, void *stream, void *function,
		      const struct epf_gpu_launch *l)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before, rc;

	if (l->cooperative && !d->extra->launch_cooperative)
		return epf_gpu_no_launch(dev, stream, function, l);
	rc = enter(d, &before);
	if (rc)
		return rc;
	if (l->cooperative)
		rc = d->extra->launch_cooperative(function, l->grid, 1, 1, l->block, 1, 1,
						  l->shared_bytes, stream, l->args);
	else
		rc = d->lib->launch(function, l->grid, 1, 1, l->block, 1, 1, l->shared_bytes,
				    stream, l->args, NULL);
	rc = result(d, rc, "hipModuleLaunchKernel");
	leave(d, before);
	return rc;
}

const struct epf_gpu_ops epf_gpu_hip_ops = {
	.name = "hip",
	.count = hip_count,
	.open = hip_open,
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
	.mem_dmabuf = hip_mem_dmabuf,
	.mem_place = hip_mem_place,
	.flush_writes = epf_gpu_no_flush,
	.peer_enable = hip_peer_enable,
	.copy = hip_copy,
	.fill = hip_fill,
	.stream_create = hip_stream_create,
	.stream_destroy = hip_stream_destroy,
	.stream_sync = hip_stream_sync,
	.copy_async = hip_copy_async,
	.copy_batch = hip_copy_batch,
	.event_create = hip_event_create,
	.event_destroy = hip_event_destroy,
	.event_record = hip_event_record,
	.event_query = hip_event_query,
	.module_load = hip_module_load,
	.module_unload = hip_module_unload,
	.function = hip_function,
	.launch = hip_launch,
};
