/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening AMD's HIP runtime at run time (gpu_hip_lib.h). Called when a hip device is counted or opened, never before. The library is never
 * closed again: it keeps threads.
 */
#include "fabric/gpu_hip_lib.h"

#include "fabric/base/err.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	size_t at;
} symbols[] = {

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

static void find(void *handle, const char *name, void *to)
{
	void *at = handle ? dlsym(handle, name) : NULL;

	memcpy(to, &at, sizeof(at));
}

/* The newest release that is installed: the name with a number is what a machine without the development files has. */
static void *open_runtime(void)
{
	static const char *const names[] = { "libamdhip64.so", "libamdhip64.so.7",
					     "libamdhip64.so.6", "libamdhip64.so.5" };
	void *handle = NULL;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !handle; i++)
		handle = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
	return handle;
}

static void load(void)
{
	void *handle = open_runtime();
	int rc;

	if (!handle) {
		snprintf(why, sizeof(why), "%s", dlerror());
		return;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *at = dlsym(handle, symbols[i].name);

		if (!at) {
			snprintf(why, sizeof(why), "libamdhip64 is too old: it has no %s",
				 symbols[i].name);
			return;
		}
		memcpy((char *)&table + symbols[i].at, &at, sizeof(at));
	}
	find(handle, "hipModuleLaunchCooperativeKernel", &extras.launch_cooperative);
	find(dlopen("libhsa-runtime64.so.1", RTLD_NOW), "hsa_amd_portable_export_dmabuf",
	     &extras.dmabuf);
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
