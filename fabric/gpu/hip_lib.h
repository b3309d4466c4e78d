/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What hip.c needs of AMD's HIP runtime (libamdhip64): the functions it calls, opened at run time, and their numbers, declared here so
 * that building needs no ROCm. Only calls and numbers that are the same in ROCm 5 and 6 are used; where a toolkit is installed,
 * tests/gpu/compile.sh compares them with its header. Source: HIP runtime API reference. Used by hip.c and hip_lib.c only.
 */
#ifndef EPF_FABRIC_GPU_HIP_LIB_H
#define EPF_FABRIC_GPU_HIP_LIB_H

#include <stddef.h>
#include <stdint.h>

enum {
	EPF_HIP_OUT_OF_MEMORY = 2,
	EPF_HIP_NOT_READY = 600,
	EPF_HIP_PEER_ALREADY_ENABLED = 704,
	EPF_HIP_NOT_SUPPORTED = 801,
	EPF_HIP_ATTR_MAJOR = 23,
	EPF_HIP_ATTR_MINOR = 61,
	EPF_HIP_ATTR_MULTIPROCESSORS = 63,
	EPF_HIP_ATTR_WARP_SIZE = 87,
	EPF_HIP_REGISTER_PORTABLE = 1,
	EPF_HIP_REGISTER_MAPPED = 2,
	EPF_HIP_STREAM_NON_BLOCKING = 1,
	EPF_HIP_EVENT_NO_TIMING = 2,
	EPF_HIP_COPY_DEFAULT = 4,
	EPF_HIP_POINTER_HOST = 4,
	EPF_HIP_POINTER_DEVICE = 9,
	EPF_HIP_IPC_LAZY_PEER = 0,
};

struct epf_hip_ipc {
	char bytes[64];
};

/* The functions, in the order of the table in hip_lib.c. */
struct epf_hip_lib {
	int (*init)(unsigned flags);
	const char *(*error_name)(int result);
	int (*device_count)(int *n);
	int (*device_current)(int *device);
	int (*device_set)(int device);
	int (*device_name)(char *name, int len, int device);
	int (*device_attribute)(int *value, int attribute, int device);
	int (*device_pci)(char *text, int len, int device);
	int (*peer_enable)(int device, unsigned flags);
	int (*host_register)(void *addr, size_t bytes, unsigned flags);
	int (*host_unregister)(void *addr);
	int (*host_pointer)(void **device_addr, void *addr, unsigned flags);
	int (*mem_alloc)(void **addr, size_t bytes);
	int (*mem_free)(void *addr);
	int (*mem_range)(void **base, size_t *bytes, void *addr);
	int (*pointer_attribute)(void *out, int attribute, void *addr);
	int (*ipc_get)(struct epf_hip_ipc *out, void *addr);
	int (*ipc_open)(void **addr, struct epf_hip_ipc handle, unsigned flags);
	int (*ipc_close)(void *addr);
	int (*copy_async)(void *dst, const void *src, size_t bytes, int kind, void *stream);
	int (*fill_async)(void *addr, int value, size_t bytes, void *stream);
	int (*stream_create)(void **stream, unsigned flags);
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
};

/* Calls that not every release has: NULL where it is missing. */
struct epf_hip_extra {
	int (*launch_cooperative)(void *function, unsigned gx, unsigned gy, unsigned gz,
				  unsigned bx, unsigned by, unsigned bz, unsigned shared,
				  void *stream, void **args);
	int (*dmabuf)(const void *addr, size_t bytes, int *fd,
		      uint64_t *offset); /* libhsa-runtime64 */
};

/* Opens and initialises the runtime once a process. -ENOENT (no library, or too old), -ENODEV (no device). */
int epf_hip_lib(const struct epf_hip_lib **out, const struct epf_hip_extra **extra);

#endif
