/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU back-ends: what the library, the emulated NIC and the benchmarks need of a GPU's driver, as a table of operations. Kinds: cuda and
 * hip (the driver's library is opened at run time), fake (host memory that plays a GPU, for tests on machines without one) and none.
 * Slow path, but for copy_batch, event_record, event_query and stream_wait, which may be called at rate. Called from any thread; each
 * call leaves the calling thread's current device as it was. The daemon needs none of this for rings and real NICs.
 *
 * Conventions: 0 or -errno with a reason (epf_last_error()); outputs only written on success; device addresses are uint64_t and are valid
 * in kernels of the process, whichever API launches them (the primary context of the device is used). destroy, free and close accept NULL.
 * No entry of a table is NULL: what a back-end cannot do answers -EOPNOTSUPP, and its reason says what is missing.
 */
#ifndef EPF_FABRIC_GPU_GPU_H
#define EPF_FABRIC_GPU_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct epf_gpu_ops;

/* One opened device. A back-end's own struct begins with it. */
struct epf_gpu_dev {
	const struct epf_gpu_ops *ops;
	int index;
};

/* From where on writes of a NIC into GPU memory are in order for a reader without a flush. */
enum epf_gpu_write_order {
	EPF_GPU_ORDER_NONE = 0,  /* readers need flush_writes() first */
	EPF_GPU_ORDER_OWNER = 1, /* kernels of the GPU that holds the memory see them in order */
	EPF_GPU_ORDER_ALL = 2,   /* kernels of every GPU do */
};

struct epf_gpu_props {
	char name[96];
	char pci[16]; /* "0000:3b:00.0", lower case: as in sysfs */
	int32_t numa; /* -1: not known */
	uint32_t multiprocessors;
	uint32_t warp;      /* 32 or 64 */
	uint32_t major;     /* compute capability, or gfx number / 100 */
	uint32_t minor;     /* or gfx number % 100 */
	uint32_t timer_khz; /* of the timer that device code reads (kernels/epf_arch.cuh) */
	bool has_fd;        /* mem_export_fd works */
	bool has_dmabuf;
	bool has_rdma;  /* a NIC may be given this GPU's memory */
	bool has_flush; /* flush_writes works */
	enum epf_gpu_write_order write_order;
};

/* Memory of a device. Owned by who allocated or imported it, until mem_free(). */
struct epf_gpu_mem {
	uint64_t addr;   /* device address */
	uint64_t bytes;  /* rounded up to what the device maps */
	uint64_t handle; /* the back-end's own */
	uint32_t kind;   /* the back-end's own */
	uint32_t reserved;
};

/* An address of another process, to be carried by any means; valid on the same host and for the same release of the driver. */
struct epf_gpu_ipc {
	uint8_t handle[64];
	uint64_t base_bytes; /* of the allocation that holds the address */
	uint64_t offset;     /* of the address in it */
};

/* One copy of a batch. Addresses are device addresses of any GPU the device can reach, or pinned host memory. */
struct epf_gpu_copy {
	uint64_t dst;
	uint64_t src;
	uint64_t bytes;
};

enum {
	EPF_GPU_MEM_EXPORT = 1, /* mem_export_fd() is possible */
	EPF_GPU_MEM_RDMA = 2,   /* meant for a NIC: dma-buf or a peer-memory module */
};

enum {
	EPF_GPU_PIN_READ_ONLY = 1, /* the mapping is read-only, and so is the GPU's access */
};

/* What an address is. */
enum epf_gpu_where {
	EPF_GPU_HOST = 0,   /* ordinary memory, or pinned: the CPU can load and store */
	EPF_GPU_DEVICE = 1, /* memory of a GPU */
};

struct epf_gpu_place {
	enum epf_gpu_where where;
	int device;     /* index of the GPU; -1: ordinary memory */
	uint64_t base;  /* of the allocation; 0 for ordinary memory */
	uint64_t bytes; /* of the allocation */
};

/* A kernel launch. args: pointers to the values, one for each parameter. */
struct epf_gpu_launch {
	uint32_t grid;
	uint32_t block;
	uint32_t shared_bytes;
	bool cooperative; /* all blocks resident at once, or it fails */
	void **args;
};

struct epf_gpu_ops {
	const char *name; /* "cuda", "hip", "fake", "none" */

	/* How many devices there are, at least 1 (none: 0). -ENODEV, -ENOENT: the driver is not there or has none. */
	int (*count)(int *n);
	/* Opens a device; -1: the calling thread's current one, else the first. Several opens of one device are fine. */
	int (*open)(int index, struct epf_gpu_dev **out);
	/*
	 * The same with a context of its own, where the driver has contexts: its calls do not wait for a load in the process's usual one, except calls on memory that
	 * was allocated there (cudaMalloc). Its kernels take turns with those of other contexts. index: not -1.
	 */
	int (*open_own)(int index, struct epf_gpu_dev **out);
	void (*close)(struct epf_gpu_dev *dev);
	int (*describe)(struct epf_gpu_dev *dev, struct epf_gpu_props *out);

	/*
	 * Makes [addr, addr + bytes) of this process, any shared or anonymous mapping (a memfd too), known to the GPU and keeps it in
	 * memory: kernels use *device_addr. addr and bytes are multiples of 4096. The pages stay pinned until unpin(addr).
	 */
	int (*pin)(struct epf_gpu_dev *dev, void *addr, uint64_t bytes, unsigned flags,
		   uint64_t *device_addr);
	void (*unpin)(struct epf_gpu_dev *dev, void *addr);

	/* Zeroed memory of the device. flags: EPF_GPU_MEM_*. */
	int (*mem_alloc)(struct epf_gpu_dev *dev, uint64_t bytes, unsigned flags,
			 struct epf_gpu_mem *out);
	/* Frees what mem_alloc gave, and unmaps what an import gave. Clears *mem. */
	void (*mem_free)(struct epf_gpu_dev *dev, struct epf_gpu_mem *mem);
	/* A descriptor another process can import (SCM_RIGHTS); only of memory with EPF_GPU_MEM_EXPORT. The caller closes it. */
	int (*mem_export_fd)(struct epf_gpu_dev *dev, const struct epf_gpu_mem *mem, int *fd);
	/* Maps it here, for reading and writing. fd stays the caller's. bytes: epf_gpu_mem.bytes at the exporter. */
	int (*mem_import_fd)(struct epf_gpu_dev *dev, int fd, uint64_t bytes,
			     struct epf_gpu_mem *out);
	/* The same by a 64-byte handle, for memory of the vendor's own allocators (cudaMalloc). Fails for memory that cannot. */
	int (*mem_export_ipc)(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_ipc *out);
	/* Maps the allocation: out->addr is the exported address (base + offset). One import of an allocation a process at a time. */
	int (*mem_import_ipc)(struct epf_gpu_dev *dev, const struct epf_gpu_ipc *ipc,
			      struct epf_gpu_mem *out);
	/*
	 * A descriptor of the allocation that holds addr, where another library mapped it and made it for sharing (CUDA: cuMemCreate with a POSIX
	 * descriptor); *bytes: of the allocation, *offset: of addr in it. mem_import_fd() takes it. The caller closes *fd. Fails for other memory.
	 */
	int (*mem_export_mapped)(struct epf_gpu_dev *dev, uint64_t addr, int *fd, uint64_t *bytes,
				 uint64_t *offset);
	/* A dma-buf of [addr, addr + bytes) for ibv_reg_dmabuf_mr(3): the caller closes *fd; *offset is where addr lies in it. */
	int (*mem_dmabuf)(struct epf_gpu_dev *dev, uint64_t addr, uint64_t bytes, int *fd,
			  uint64_t *offset);
	/* What an address is and which allocation holds it. An address nobody knows is EPF_GPU_HOST. */
	int (*mem_place)(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_place *out);

	/* Makes writes that a NIC has done to this GPU's memory visible to its kernels (props.write_order says when it is needed). */
	int (*flush_writes)(struct epf_gpu_dev *dev);
	/* Lets kernels and copies of dev use memory of peer (NVLink, xGMI or PCIe). Already enabled is fine. */
	int (*peer_enable)(struct epf_gpu_dev *dev, struct epf_gpu_dev *peer);

	/* Blocking copy and fill; dst and src may each be host (any memory) or device addresses. */
	int (*copy)(struct epf_gpu_dev *dev, uint64_t dst, uint64_t src, uint64_t bytes);
	int (*fill)(struct epf_gpu_dev *dev, uint64_t dst, uint8_t value, uint64_t bytes);

	/* A stream that waits for no other, the default one included. */
	int (*stream_create)(struct epf_gpu_dev *dev, void **stream);
	void (*stream_destroy)(struct epf_gpu_dev *dev, void *stream);
	/* Waits for all of it. An error of a kernel shows here. */
	int (*stream_sync)(struct epf_gpu_dev *dev, void *stream);
	int (*copy_async)(struct epf_gpu_dev *dev, void *stream, uint64_t dst, uint64_t src,
			  uint64_t bytes);
	/* n copies as one unit of the stream, in any order among themselves. One driver call where the driver has one for it. */
	int (*copy_batch)(struct epf_gpu_dev *dev, void *stream, const struct epf_gpu_copy *copies,
			  unsigned n);
	int (*event_create)(struct epf_gpu_dev *dev, void **event);
	void (*event_destroy)(struct epf_gpu_dev *dev, void *event);
	int (*event_record)(struct epf_gpu_dev *dev, void *stream, void *event);
	/* 1: everything before the record is done; 0: not yet; negative: it failed. */
	int (*event_query)(struct epf_gpu_dev *dev, void *event);
	/*
	 * Work put into the stream from now on waits for the event's last record; the caller does not wait. A later record of the event does not change
	 * what the stream waits for. The event may be of another device.
	 */
	int (*stream_wait)(struct epf_gpu_dev *dev, void *stream, void *event);

	/*
	 * Around calls of the vendor's own libraries (nvCOMP): makes the device current on this thread for the driver's runtime. Each success needs
	 * one leave() on the same thread.
	 */
	int (*enter)(struct epf_gpu_dev *dev);
	void (*leave)(struct epf_gpu_dev *dev);

	/* Device code: image is a fat binary, cubin or PTX text (cuda), a code object (hip). */
	int (*module_load)(struct epf_gpu_dev *dev, const void *image, void **module);
	void (*module_unload)(struct epf_gpu_dev *dev, void *module);
	int (*function)(struct epf_gpu_dev *dev, void *module, const char *name, void **function);
	int (*launch)(struct epf_gpu_dev *dev, void *stream, void *function,
		      const struct epf_gpu_launch *launch);
};

/**
 * epf_gpu_backend() - a back-end by its name.
 * @name: "cuda", "hip", "fake", "none", or "auto": cuda where it has a device, else hip where that has one.
 *
 * The table is static. -ENODEV: auto finds no device (the reason names both libraries' answers); -EINVAL: no such name.
 */
int epf_gpu_backend(const char *name, const struct epf_gpu_ops **out);

/* epf_gpu_numa() - the NUMA node of a PCI device by sysfs; -1 when it says none. pci: as in epf_gpu_props. */
int epf_gpu_numa(const char *pci);

/* The tables themselves; epf_gpu_backend() chooses among them. */
extern const struct epf_gpu_ops epf_gpu_cuda_ops;
extern const struct epf_gpu_ops epf_gpu_hip_ops;
extern const struct epf_gpu_ops epf_gpu_fake_ops;
extern const struct epf_gpu_ops epf_gpu_none_ops;

#endif
