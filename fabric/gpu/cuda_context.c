/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's primary context, pushed around each call and popped again, so that the calling thread's current device stays what it was.
 */
#include "fabric/base/err.h"
#include "fabric/gpu/cuda_priv.h"

int epf_cuda_result(const struct cuda_dev *d, int rc, const char *call)
{
	const char *name = "?";

	if (!rc)
		return 0;
	(void)d->lib->error_name(rc, &name);
	return epf_fail(rc == EPF_CU_OUT_OF_MEMORY   ? EPF_R_NO_MEMORY
			: rc == EPF_CU_NOT_SUPPORTED ? EPF_R_GPU_UNSUPPORTED
						     : EPF_R_GPU_CALL,
			"cuda device %d: %s: %s", d->dev.index, call, name);
}

/*
 * While any thread captures a graph, the driver refuses queries and copies of all threads, and spoils that graph, unless they say that they know
 * what they do: our streams and events are never part of one.
 */
static _Thread_local int capture_mode_before, capture_depth;

int epf_cuda_enter(const struct cuda_dev *d)
{
	int rc = epf_cuda_result(d, d->lib->context_push(d->context), "cuCtxPushCurrent");

	if (!rc && capture_depth++ == 0) {
		capture_mode_before = EPF_CU_CAPTURE_RELAXED;
		(void)d->lib->capture_mode(&capture_mode_before);
	}
	return rc;
}

void epf_cuda_leave(const struct cuda_dev *d)
{
	void *context;

	if (--capture_depth == 0)
		(void)d->lib->capture_mode(&capture_mode_before);
	(void)d->lib->context_pop(&context);
}

int epf_cuda_attribute(const struct cuda_dev *d, int which)
{
	int value = 0;

	return d->lib->device_attribute(&value, which, d->device) ? 0 : value;
}
