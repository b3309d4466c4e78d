/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening AMD's HIP runtime at run time (hip_lib.h). Called when a hip device is counted or opened, never before. The library is never
 * closed again: it keeps threads.
 */
#include "fabric/gpu/hip_lib.h"

#include "fabric/base/err.h"
#include "fabric/gpu/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

static const struct epf_gpu_symbol symbols[] = {

/* clang-format off */
#define S(symbol, field) { symbol, offsetof(struct epf_hip_lib, field) }
	/* clang-format on */
	S("hipInit", init),
	S("hipGetErrorName", error_name),
	S("hipGetDeviceCount", device_count),
	S("hipGetDevice", device_current),
	S("hipSetDevice", device_set),
	S("hipDeviceGetName", device_name),
	S("hipDeviceGetAttribute", device_attribute),
	S("hipDeviceGetPCIBusId", device_pci),
	S("hipDeviceEnablePeerAccess", peer_enable),
	S("hipHostRegister", host_register),
	S("hipHostUnregister", host_unregister),
	S("hipHostGetDevicePointer", host_pointer),
	S("hipMalloc", mem_alloc),
	S("hipFree", mem_free),
	S("hipMemGetAddressRange", mem_range),
	S("hipPointerGetAttribute", pointer_attribute),
	S("hipIpcGetMemHandle", ipc_get),
	S("hipIpcOpenMemHandle", ipc_open),
	S("hipIpcCloseMemHandle", ipc_close),
	S("hipMemcpyAsync", copy_async),
	S("hipMemsetAsync", fill_async),
	S("hipStreamCreateWithFlags", stream_create),
	S("hipStreamDestroy", stream_destroy),
	S("hipStreamSynchronize", stream_sync),
	S("hipStreamWaitEvent", stream_wait),
	S("hipEventCreateWithFlags", event_create),
	S("hipEventDestroy", event_destroy),
	S("hipEventRecord", event_record),
	S("hipEventQuery", event_query),
	S("hipModuleLoadData", module_load),
	S("hipModuleUnload", module_unload),
	S("hipModuleGetFunction", module_function),
	S("hipModuleLaunchKernel", launch),
#undef S
};

_Static_assert(sizeof(symbols) / sizeof(symbols[0]) == sizeof(struct epf_hip_lib) / sizeof(void *),
	       "every entry of the table has its symbol");

static struct epf_hip_lib table;
static struct epf_hip_extra extras;
static char why[256]; /* empty: the table is filled and the runtime initialised */
static bool no_device;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	/* The newest release that is installed: the name with a number is what a machine without the development files has. */
	static const char *const names[] = { "libamdhip64.so", "libamdhip64.so.7",
					     "libamdhip64.so.6", "libamdhip64.so.5", NULL };
	void *handle = epf_gpu_library(names, true, symbols, sizeof(symbols) / sizeof(symbols[0]),
				       &table, why, sizeof(why));
	int rc;

	if (!handle)
		return;
	epf_gpu_library_find(handle, "hipModuleLaunchCooperativeKernel",
			     &extras.launch_cooperative);
	epf_gpu_library_find(dlopen("libhsa-runtime64.so.1", RTLD_NOW),
			     "hsa_amd_portable_export_dmabuf", &extras.dmabuf);
	rc = table.init(0);
	if (rc) {
		no_device = true;
		snprintf(why, sizeof(why), "hipInit: %s", table.error_name(rc));
	}
}

int epf_hip_lib(const struct epf_hip_lib **out, const struct epf_hip_extra **extra)
{
	pthread_once(&once, load);
	if (why[0])
		return epf_fail(no_device ? EPF_R_GPU_ABSENT : EPF_R_GPU_LIBRARY, "hip: %s", why);
	*out = &table;
	*extra = &extras;
	return 0;
}
