/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a GPU pointer to what RDMA devices and the engine need of it (device_mem.h), asked of the GPU's driver (gpu.h): dma-buf, vendor,
 * order of writes, flush. Called by client/embedded.c when GPU memory is registered with a NIC of devices; slow path.
 */
#ifndef EPF_FABRIC_GPU_RDMA_H
#define EPF_FABRIC_GPU_RDMA_H

#include "fabric/gpu/device_mem.h"
#include "fabric/gpu/gpu.h"

struct epf_device_gpu; /* an opened GPU, once for all regions in it: their flushes name it */

/**
 * epf_device_gpu_mem() - describe [addr, addr + bytes) of this process.
 * @gpus: the GPUs opened so far, NULL at first; it grows. They must live until the engine is destroyed.
 * @out: the caller closes out->dmabuf_fd after the registration; written on success only.
 *
 * Return: 0; -EOPNOTSUPP with epf_last_error() set when that is no memory of one allocation of a GPU; what the driver said.
 */
int epf_device_gpu_mem(struct epf_device_gpu **gpus, const struct epf_gpu_ops *ops, uint64_t addr,
		       uint64_t bytes, struct epf_device_mem *out);

/* Closes the GPUs of a list; NULL is fine. */
void epf_device_gpu_close(struct epf_device_gpu *gpus);

#endif
