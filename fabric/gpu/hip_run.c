/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hip back-end's copies, streams, events and kernels. hip.c holds the table.
 */
#include "fabric/base/err.h"
#include "fabric/gpu/hip_priv.h"
#include "fabric/gpu/none.h"

int epf_hip_result(const struct hip_dev *d, int rc, const char *call)
{
	if (!rc)
		return 0;
	return epf_fail(rc == EPF_HIP_OUT_OF_MEMORY   ? EPF_R_NO_MEMORY
			: rc == EPF_HIP_NOT_SUPPORTED ? EPF_R_GPU_UNSUPPORTED
						      : EPF_R_GPU_CALL,
			"hip device %d: %s: %s", d->dev.index, call, d->lib->error_name(rc));
}

/* Makes the device current; *before: what epf_hip_leave() puts back. */
int epf_hip_enter(const struct hip_dev *d, int *before)
{
	if (d->lib->device_current(before))
		*before = d->dev.index;
	return epf_hip_result(d, d->lib->device_set(d->dev.index), "hipSetDevice");
}

void epf_hip_leave(const struct hip_dev *d, int before)
{
	(void)d->lib->device_set(before);
}

int epf_hip_stream_create(struct epf_gpu_dev *dev, void **stream)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *out = NULL;
	int before;
	int rc = epf_hip_enter(d, &before);

	if (rc)
		return rc;
	rc = epf_hip_result(d, d->lib->stream_create(&out, EPF_HIP_STREAM_NON_BLOCKING),
			    "hipStreamCreateWithFlags");
	epf_hip_leave(d, before);
	if (!rc)
		*stream = out;
	return rc;
}

void epf_hip_stream_destroy(struct epf_gpu_dev *dev, void *stream)
{
	struct hip_dev *d = (struct hip_dev *)dev;

	if (stream)
		(void)d->lib->stream_destroy(stream);
}

int epf_hip_stream_sync(struct epf_gpu_dev *dev, void *stream)
{
	struct hip_dev *d = (struct hip_dev *)dev;

	return epf_hip_result(d, d->lib->stream_sync(stream), "hipStreamSynchronize");
}

int epf_hip_copy_async(struct epf_gpu_dev *dev, void *stream, uint64_t dst, uint64_t src,
		       uint64_t bytes)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before;
	int rc = epf_hip_enter(d, &before);

	if (rc)
		return rc;
	rc = epf_hip_result(d,
			    d->lib->copy_async(epf_hip_pointer(dst), epf_hip_pointer(src), bytes,
					       EPF_HIP_COPY_DEFAULT, stream),
			    "hipMemcpyAsync");
	epf_hip_leave(d, before);
	return rc;
}

int epf_hip_copy(struct epf_gpu_dev *dev, uint64_t dst, uint64_t src, uint64_t bytes)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int rc = epf_hip_copy_async(dev, d->own, dst, src, bytes);

	return rc ? rc : epf_hip_stream_sync(dev, d->own);
}

int epf_hip_copy_batch(struct epf_gpu_dev *dev, void *stream, const struct epf_gpu_copy *c,
		       unsigned n)
{
	int rc = 0;

	for (unsigned i = 0; i < n && !rc; i++)
		rc = epf_hip_copy_async(dev, stream, c[i].dst, c[i].src, c[i].bytes);
	return rc;
}

int epf_hip_event_create(struct epf_gpu_dev *dev, void **event)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *out = NULL;
	int before;
	int rc = epf_hip_enter(d, &before);

	if (rc)
		return rc;
	rc = epf_hip_result(d, d->lib->event_create(&out, EPF_HIP_EVENT_NO_TIMING),
			    "hipEventCreateWithFlags");
	epf_hip_leave(d, before);
	if (!rc)
		*event = out;
	return rc;
}

void epf_hip_event_destroy(struct epf_gpu_dev *dev, void *event)
{
	if (event)
		(void)((struct hip_dev *)dev)->lib->event_destroy(event);
}

int epf_hip_event_record(struct epf_gpu_dev *dev, void *stream, void *event)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before;
	int rc = epf_hip_enter(d, &before); /* stream NULL is of the current device */

	if (rc)
		return rc;
	rc = epf_hip_result(d, d->lib->event_record(event, stream), "hipEventRecord");
	epf_hip_leave(d, before);
	return rc;
}

int epf_hip_event_query(struct epf_gpu_dev *dev, void *event)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int rc = d->lib->event_query(event);

	if (rc == EPF_HIP_NOT_READY)
		return 0;
	return rc ? epf_hip_result(d, rc, "hipEventQuery") : 1;
}

int epf_hip_stream_wait(struct epf_gpu_dev *dev, void *stream, void *event)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before;
	int rc = epf_hip_enter(d, &before);

	if (rc)
		return rc;
	rc = epf_hip_result(d, d->lib->stream_wait(stream, event, 0), "hipStreamWaitEvent");
	epf_hip_leave(d, before);
	return rc;
}

int epf_hip_module_load(struct epf_gpu_dev *dev, const void *image, void **module)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *out = NULL;
	int before;
	int rc = epf_hip_enter(d, &before);

	if (rc)
		return rc;
	rc = epf_hip_result(d, d->lib->module_load(&out, image), "hipModuleLoadData");
	epf_hip_leave(d, before);
	if (!rc)
		*module = out;
	return rc;
}

void epf_hip_module_unload(struct epf_gpu_dev *dev, void *module)
{
	if (module)
		(void)((struct hip_dev *)dev)->lib->module_unload(module);
}

int epf_hip_function(struct epf_gpu_dev *dev, void *module, const char *name, void **function)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	void *out = NULL;

	if (d->lib->module_function(&out, module, name))
		return epf_fail(EPF_R_GPU_CALL, "hip device %d: the module has no kernel %s",
				dev->index, name);
	*function = out;
	return 0;
}

int epf_hip_launch(struct epf_gpu_dev *dev, void *stream, void *function,
		   const struct epf_gpu_launch *l)
{
	struct hip_dev *d = (struct hip_dev *)dev;
	int before, rc;

	if (l->cooperative && !d->extra->launch_cooperative)
		return epf_gpu_no_launch(dev, stream, function, l);
	rc = epf_hip_enter(d, &before);
	if (rc)
		return rc;
	if (l->cooperative)
		rc = d->extra->launch_cooperative(function, l->grid, 1, 1, l->block, 1, 1,
						  l->shared_bytes, stream, l->args);
	else
		rc = d->lib->launch(function, l->grid, 1, 1, l->block, 1, 1, l->shared_bytes,
				    stream, l->args, NULL);
	rc = epf_hip_result(d, rc, "hipModuleLaunchKernel");
	epf_hip_leave(d, before);
	return rc;
}
