/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory as NICs of RDMA devices and the engine know it: an address that only devices use, a dma-buf to register it by, and what the
 * GPU says of the order in which its kernels see what a NIC wrote. Filled by whoever asked the driver (embedded: the rank itself; in a
 * service the client, whose dma-buf travels to the daemon); nothing here calls a driver.
 */
#ifndef EPF_FABRIC_GPU_DEVICE_MEM_H
#define EPF_FABRIC_GPU_DEVICE_MEM_H

#include <stdbool.h>
#include <stdint.h>

/* From where on what a NIC wrote is seen in order without a flush: as the driver's attribute has it. */
enum epf_write_order {
	EPF_ORDER_NONE = 0,  /* readers need a flush first */
	EPF_ORDER_OWNER = 1, /* kernels of the GPU that holds the memory see it in order */
	EPF_ORDER_ALL = 2,   /* kernels of every GPU do */
};

struct epf_device_mem {
	uint64_t addr; /* device address: what work requests of this engine and of peers name */
	uint64_t bytes;
	int dmabuf_fd; /* -1: the driver exports none. Stays the caller's, and may be closed after the registration */
	uint64_t dmabuf_offset; /* where addr lies in it */
	bool is_mapped;         /* addr belongs to this process: a peer-memory module can find it */
	uint32_t vendor;        /* PCI vendor of the GPU: 0x10de NVIDIA, 0x1002 AMD; 0: not known */
	enum epf_write_order order;
	/*
	 * Makes what NICs have written so far visible to kernels; called by the core between reaping and applying signals where order is
	 * NONE. It may wait for the driver, but for no kernel. The same function and argument for all regions of a GPU.
	 */
	void (*flush)(void *arg);
	void *flush_arg; /* must outlive the engine */
};

#endif
