/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registering memory with an RDMA device: host memory, and GPU memory by what there is: a dma-buf first, a peer-memory module second,
 * and an error that names what is missing third. Called by nic.c when a region is registered; slow path.
 */
#ifndef EPF_FABRIC_NIC_VERBS_REGION_H
#define EPF_FABRIC_NIC_VERBS_REGION_H

#include "fabric/gpu/device_mem.h"
#include "fabric/nic/verbs/verbs.h"

/* Host memory; relaxed ordering where the setting and the device take it. NULL with errno set. */
struct ibv_mr *epf_verbs_register_host(struct epf_verbs *v, void *addr, uint64_t len,
				       unsigned flags);

/**
 * epf_verbs_register_gpu() - register GPU memory.
 * @flags: IBV_ACCESS_*.
 * @sysfs: where loaded modules are looked for: "/sys", or a test's tree.
 *
 * Return: 0 and *out; minus errno with epf_last_error() set: what the device said to the dma-buf, and which module is missing.
 */
int epf_verbs_register_gpu(struct epf_verbs *v, const struct epf_device_mem *mem, unsigned flags,
			   const char *sysfs, struct ibv_mr **out);

#endif
