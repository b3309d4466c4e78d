/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of the cuda back-end: allocations, and the ways to name them in other processes (descriptors, IPC handles, dma-bufs).
 */
#include "fabric/base/err.h"
#include "fabric/gpu/cuda_priv.h"

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

/* How memory that can be exported is made. */
static struct epf_cu_allocation allocation_of(const struct cuda_dev *d, unsigned flags)
{
	struct epf_cu_allocation a = { .type = EPF_CU_ALLOCATION_PINNED,
				       .location = { EPF_CU_LOCATION_DEVICE, d->device } };

	if (flags & EPF_GPU_MEM_EXPORT)
		a.handle_types = EPF_CU_HANDLE_POSIX_FD;
	if ((flags & EPF_GPU_MEM_RDMA) && epf_cuda_attribute(d, EPF_CU_ATTR_RDMA_VMM))
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

void epf_cuda_mem_free(struct epf_gpu_dev *dev, struct epf_gpu_mem *mem)
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

int epf_cuda_mem_alloc(struct epf_gpu_dev *dev, uint64_t bytes, unsigned flags,
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
			epf_cuda_mem_free(dev, &m);
	}
	epf_cuda_leave(d);
	if (!rc)
		*out = m;
	return rc;
}

int epf_cuda_mem_export_fd(struct epf_gpu_dev *dev, const struct epf_gpu_mem *mem, int *fd)
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

/* The retained handle is the allocation's own: it is given back at once, the descriptor keeps the memory. */
int epf_cuda_mem_export_mapped(struct epf_gpu_dev *dev, uint64_t addr, int *fd, uint64_t *bytes,
			       uint64_t *offset)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	uint64_t base = 0, handle = 0;
	size_t whole = 0;
	int out = -1;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->mem_range(&base, &whole, addr), "cuMemGetAddressRange");
	if (!rc)
		rc = epf_cuda_result(d, d->lib->mem_retain(&handle, (void *)(uintptr_t)base),
				     "cuMemRetainAllocationHandle");
	if (!rc) {
		rc = epf_cuda_result(d, d->lib->mem_export(&out, handle, EPF_CU_HANDLE_POSIX_FD, 0),
				     "cuMemExportToShareableHandle");
		(void)d->lib->mem_release(handle);
	}
	epf_cuda_leave(d);
	if (rc)
		return rc;
	*fd = out;
	*bytes = whole;
	*offset = addr - base;
	return 0;
}

int epf_cuda_mem_import_fd(struct epf_gpu_dev *dev, int fd, uint64_t bytes, struct epf_gpu_mem *out)
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

int epf_cuda_mem_export_ipc(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_ipc *out)
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

int epf_cuda_mem_import_ipc(struct epf_gpu_dev *dev, const struct epf_gpu_ipc *ipc,
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

int epf_cuda_mem_dmabuf(struct epf_gpu_dev *dev, uint64_t addr, uint64_t bytes, int *fd,
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

int epf_cuda_mem_place(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_place *out)
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
