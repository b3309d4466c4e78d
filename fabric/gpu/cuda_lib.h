/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cuda.c needs of NVIDIA's driver API: the functions it calls, opened at run time, and the few types and numbers that
 * go with them, declared here so that building needs no CUDA toolkit. The driver's ABI is stable for versioned names (cuXxx_v2); where a
 * toolkit is installed, tests/gpu/compile.sh compares every number and layout below with its cuda.h.
 * Source: CUDA Driver API reference manual. Used by cuda.c and cuda_lib.c only.
 */
#ifndef EPF_FABRIC_GPU_CUDA_LIB_H
#define EPF_FABRIC_GPU_CUDA_LIB_H

#include <stddef.h>
#include <stdint.h>

/* Results: 0 is success. */
enum {
	EPF_CU_INVALID_VALUE = 1,
	EPF_CU_OUT_OF_MEMORY = 2,
	EPF_CU_NO_DEVICE = 100,
	EPF_CU_INVALID_CONTEXT = 201,
	EPF_CU_NOT_READY = 600,
	EPF_CU_PEER_ALREADY_ENABLED = 704,
	EPF_CU_NOT_SUPPORTED = 801,
};

/* Attributes of a device. */
enum {
	EPF_CU_ATTR_WARP_SIZE = 10,
	EPF_CU_ATTR_MULTIPROCESSORS = 16,
	EPF_CU_ATTR_MAJOR = 75,
	EPF_CU_ATTR_MINOR = 76,
	EPF_CU_ATTR_HOST_REGISTER = 99,
	EPF_CU_ATTR_VMM = 102,
	EPF_CU_ATTR_POSIX_FD = 103,
	EPF_CU_ATTR_RDMA_VMM = 110,
	EPF_CU_ATTR_RDMA = 116,
	EPF_CU_ATTR_FLUSH_WRITES = 117,
	EPF_CU_ATTR_WRITES_ORDERING = 118,
	EPF_CU_ATTR_DMA_BUF = 124,
};

/* Flags and kinds, each with the prefix of the call that takes it. */
enum {
	EPF_CU_REGISTER_PORTABLE = 1,
	EPF_CU_REGISTER_DEVICEMAP = 2,
	EPF_CU_REGISTER_READ_ONLY = 8,
	EPF_CU_IPC_LAZY_PEER = 1,
	EPF_CU_STREAM_NON_BLOCKING = 1,
	EPF_CU_CAPTURE_RELAXED = 2,
	EPF_CU_EVENT_NO_TIMING = 2,
	EPF_CU_ALLOCATION_PINNED = 1,
	EPF_CU_HANDLE_POSIX_FD = 1,
	EPF_CU_LOCATION_DEVICE = 1,
	EPF_CU_ACCESS_READ_WRITE = 3,
	EPF_CU_RANGE_DMA_BUF = 1,
	EPF_CU_POINTER_MEMORY_TYPE = 2,
	EPF_CU_POINTER_DEVICE = 9,
	EPF_CU_POINTER_RANGE_START = 11,
	EPF_CU_POINTER_RANGE_BYTES = 12,
	EPF_CU_MEMORY_DEVICE = 2,
	EPF_CU_FLUSH_TARGET_CONTEXT = 0,
	EPF_CU_FLUSH_TO_OWNER = 100,
	EPF_CU_FLUSH_TO_ALL = 200,
	EPF_CU_FLUSH_OPTION_HOST = 1,
	EPF_CU_SRC_ORDER_STREAM = 1,
};

struct epf_cu_location {
	int type;
	int id;
};

struct epf_cu_allocation {
	int type;
	int handle_types;
	struct epf_cu_location location;
	void *win32;

	struct {
		uint8_t compression;
		uint8_t rdma;
		uint16_t usage;
		uint8_t reserved[4];
	} flags;
};

struct epf_cu_access {
	struct epf_cu_location location;
	int flags;
};

struct epf_cu_copy_attributes {
	int src_order;
	struct epf_cu_location src_hint;
	struct epf_cu_location dst_hint;
	unsigned flags;
};

struct epf_cu_ipc {
	char bytes[64];
};

/* The functions, in the order of the table in cuda_lib.c. Contexts, streams and so on are opaque pointers. */
struct epf_cuda_lib {
	int (*init)(unsigned flags);
	int (*error_name)(int result, const char **name);
	int (*device_count)(int *n);
	int (*device_get)(int *device, int ordinal);
	int (*device_name)(char *name, int len, int device);
	int (*device_attribute)(int *value, int attribute, int device);
	int (*device_pci)(char *text, int len, int device);
	int (*context_retain)(void **context, int device);
	int (*context_release)(int device);
	int (*context_create)(void **context, unsigned flags, int device);
	int (*context_destroy)(void *context);
	int (*context_push)(void *context);
	int (*context_pop)(void **context);
	int (*context_device)(int *device);
	int (*capture_mode)(int *mode); /* this thread's, exchanged */
	int (*peer_enable)(void *context, unsigned flags);
	int (*host_register)(void *addr, size_t bytes, unsigned flags);
	int (*host_unregister)(void *addr);
	int (*host_pointer)(uint64_t *device_addr, void *addr, unsigned flags);
	int (*mem_alloc)(uint64_t *addr, size_t bytes);
	int (*mem_free)(uint64_t addr);
	int (*mem_create)(uint64_t *handle, size_t bytes, const struct epf_cu_allocation *prop,
			  unsigned long long flags);
	int (*mem_release)(uint64_t handle);
	int (*mem_retain)(uint64_t *handle, void *addr);
	int (*mem_granularity)(size_t *bytes, const struct epf_cu_allocation *prop, int option);
	int (*mem_reserve)(uint64_t *addr, size_t bytes, size_t align, uint64_t at,
			   unsigned long long flags);
	int (*mem_unreserve)(uint64_t addr, size_t bytes);
	int (*mem_map)(uint64_t addr, size_t bytes, size_t offset, uint64_t handle,
		       unsigned long long flags);
	int (*mem_unmap)(uint64_t addr, size_t bytes);
	int (*mem_set_access)(uint64_t addr, size_t bytes, const struct epf_cu_access *access,
			      size_t n);
	int (*mem_export)(void *out, uint64_t handle, int type, unsigned long long flags);
	int (*mem_import)(uint64_t *handle, void *in, int type);
	int (*mem_range_handle)(void *out, uint64_t addr, size_t bytes, int type,
				unsigned long long flags);
	int (*mem_range)(uint64_t *base, size_t *bytes, uint64_t addr);
	int (*pointer_attribute)(void *out, int attribute, uint64_t addr);
	int (*ipc_get)(struct epf_cu_ipc *out, uint64_t addr);
	int (*ipc_open)(uint64_t *addr, struct epf_cu_ipc handle, unsigned flags);
	int (*ipc_close)(uint64_t addr);
	int (*flush_writes)(int target, int scope);
	int (*copy_async)(uint64_t dst, uint64_t src, size_t bytes, void *stream);
	int (*fill_async)(uint64_t addr, unsigned char value, size_t bytes, void *stream);
	int (*stream_priorities)(int *least, int *greatest);
	int (*stream_create)(void **stream, unsigned flags, int priority);
	int (*stream_destroy)(void *stream);
	int (*stream_sync)(void *stream);
	int (*stream_wait)(void *stream, void *event, unsigned flags);
	int (*event_create)(void **event, unsigned flags);
	int (*event_destroy)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_query)(void *event);
	int (*module_load)(void **module, const void *image);
	int (*module_unload)(void *module);
	int (*module_function)(void **function, void *module, const char *name);
	int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
		      unsigned by, unsigned bz, unsigned shared, void *stream, void **args,
		      void **extra);
	int (*launch_cooperative)(void *function, unsigned gx, unsigned gy, unsigned gz,
				  unsigned bx, unsigned by, unsigned bz, unsigned shared,
				  void *stream, void **args);
};

/* Copies in one call: by CUDA 13's form, CUDA 12.8's, or NULL in drivers before it. */
struct epf_cuda_batch {
	int (*v2)(uint64_t *dst, uint64_t *src, size_t *bytes, size_t n,
		  struct epf_cu_copy_attributes *attributes, size_t *first, size_t n_attributes,
		  void *stream);
	int (*v1)(uint64_t *dst, uint64_t *src, size_t *bytes, size_t n,
		  struct epf_cu_copy_attributes *attributes, size_t *first, size_t n_attributes,
		  size_t *failed, void *stream);
};

/* Opens and initialises the driver once a process. -ENOENT (no library, or too old), -ENODEV (no device). */
int epf_cuda_lib(const struct epf_cuda_lib **out, const struct epf_cuda_batch **batch);

#endif
