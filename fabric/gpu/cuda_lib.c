/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening NVIDIA's driver library at run time (cuda_lib.h). Called when a cuda device is counted or opened, never before: a process
 * that forks must do so first. The library is never closed again: it keeps threads.
 */
#include "fabric/gpu/cuda_lib.h"

#include "fabric/base/err.h"
#include "fabric/gpu/library.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

static const struct epf_gpu_symbol symbols[] = {

/* clang-format off */
#define S(symbol, field) { symbol, offsetof(struct epf_cuda_lib, field) }
	/* clang-format on */
	S("cuInit", init),
	S("cuGetErrorName", error_name),
	S("cuDeviceGetCount", device_count),
	S("cuDeviceGet", device_get),
	S("cuDeviceGetName", device_name),
	S("cuDeviceGetAttribute", device_attribute),
	S("cuDeviceGetPCIBusId", device_pci),
	S("cuDevicePrimaryCtxRetain", context_retain),
	S("cuDevicePrimaryCtxRelease_v2", context_release),
	S("cuCtxCreate_v2", context_create),
	S("cuCtxDestroy_v2", context_destroy),
	S("cuCtxPushCurrent_v2", context_push),
	S("cuCtxPopCurrent_v2", context_pop),
	S("cuCtxGetDevice", context_device),
	S("cuThreadExchangeStreamCaptureMode", capture_mode),
	S("cuCtxEnablePeerAccess", peer_enable),
	S("cuMemHostRegister_v2", host_register),
	S("cuMemHostUnregister", host_unregister),
	S("cuMemHostGetDevicePointer_v2", host_pointer),
	S("cuMemAlloc_v2", mem_alloc),
	S("cuMemFree_v2", mem_free),
	S("cuMemCreate", mem_create),
	S("cuMemRelease", mem_release),
	S("cuMemRetainAllocationHandle", mem_retain),
	S("cuMemGetAllocationGranularity", mem_granularity),
	S("cuMemAddressReserve", mem_reserve),
	S("cuMemAddressFree", mem_unreserve),
	S("cuMemMap", mem_map),
	S("cuMemUnmap", mem_unmap),
	S("cuMemSetAccess", mem_set_access),
	S("cuMemExportToShareableHandle", mem_export),
	S("cuMemImportFromShareableHandle", mem_import),
	S("cuMemGetHandleForAddressRange", mem_range_handle),
	S("cuMemGetAddressRange_v2", mem_range),
	S("cuPointerGetAttribute", pointer_attribute),
	S("cuIpcGetMemHandle", ipc_get),
	S("cuIpcOpenMemHandle_v2", ipc_open),
	S("cuIpcCloseMemHandle", ipc_close),
	S("cuFlushGPUDirectRDMAWrites", flush_writes),
	S("cuMemcpyAsync", copy_async),
	S("cuMemsetD8Async", fill_async),
	S("cuCtxGetStreamPriorityRange", stream_priorities),
	S("cuStreamCreateWithPriority", stream_create),
	S("cuStreamDestroy_v2", stream_destroy),
	S("cuStreamSynchronize", stream_sync),
	S("cuStreamWaitEvent", stream_wait),
	S("cuEventCreate", event_create),
	S("cuEventDestroy_v2", event_destroy),
	S("cuEventRecord", event_record),
	S("cuEventQuery", event_query),
	S("cuModuleLoadData", module_load),
	S("cuModuleUnload", module_unload),
	S("cuModuleGetFunction", module_function),
	S("cuLaunchKernel", launch),
	S("cuLaunchCooperativeKernel", launch_cooperative),
#undef S
};

_Static_assert(sizeof(symbols) / sizeof(symbols[0]) == sizeof(struct epf_cuda_lib) / sizeof(void *),
	       "every entry of the table has its symbol");

static struct epf_cuda_lib table;
static struct epf_cuda_batch batches;
static char why[256]; /* empty: the table is filled and the driver initialised */
static bool no_device;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	static const char *const names[] = { "libcuda.so.1", NULL };
	void *handle = epf_gpu_library(names, true, symbols, sizeof(symbols) / sizeof(symbols[0]),
				       &table, why, sizeof(why));
	const char *name = "?";
	int rc;

	if (!handle)
		return;
	epf_gpu_library_find(handle, "cuMemcpyBatchAsync_v2", &batches.v2);
	epf_gpu_library_find(handle, "cuMemcpyBatchAsync", &batches.v1);
	rc = table.init(0);
	if (rc) {
		(void)table.error_name(rc, &name);
		no_device = true;
		snprintf(why, sizeof(why), "cuInit: %s", name);
	}
}

int epf_cuda_lib(const struct epf_cuda_lib **out, const struct epf_cuda_batch **batch)
{
	pthread_once(&once, load);
	if (why[0])
		return epf_fail(no_device ? EPF_R_GPU_ABSENT : EPF_R_GPU_LIBRARY, "cuda: %s", why);
	*out = &table;
	*batch = &batches;
	return 0;
}
