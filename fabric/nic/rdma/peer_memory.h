/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peer-memory modules: kernel modules that let an RDMA driver find the pages of GPU memory by its address. They serve only the process
 * that has the memory mapped; a dma-buf serves any process. Slow path.
 */
#ifndef EPF_FABRIC_NIC_RDMA_PEER_MEMORY_H
#define EPF_FABRIC_NIC_RDMA_PEER_MEMORY_H

#include <stdint.h>

/**
 * epf_rdma_peer_memory() - find the loaded peer-memory module for a GPU vendor.
 * @sysfs: "/sys", or a test's tree.
 * @vendor: PCI vendor of the GPU; 0: any.
 * @want: set to the module that would be needed; a static string.
 *
 * Returns the name of the loaded module, a static string, or NULL. Any thread.
 */
const char *epf_rdma_peer_memory(const char *sysfs, uint32_t vendor, const char **want);

#endif
