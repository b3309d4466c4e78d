/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuda GPU back-end, part 2: copies, streams, events, kernels. Called through the table in cuda.c. Copies of a batch go to the driver
 * in one call where it has one (12.8 and later), else one by one.
 */
#include "fabric/gpu/cuda_priv.h"

#include "fabric/base/err.h"

enum { BATCH_MAX = 256 };

int epf_cuda_copy(struct epf_gpu_dev *dev, uint64_t dst, uint64_t src, uint64_t bytes)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->copy_async(dst, src, bytes, d->own), "cuMemcpyAsync");
	if (!rc)
		rc = epf_cuda_result(d, d->lib->stream_sync(d->own), "cuStreamSynchronize");
	epf_cuda_leave(d);
	return rc;
}

int epf_cuda_fill(struct epf_gpu_dev *dev, uint64_t dst, uint8_t value, uint64_t bytes)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->fill_async(dst, value, bytes, d->own), "cuMemsetD8Async");
	if (!rc)
		rc = epf_cuda_result(d, d->lib->stream_sync(d->own), "cuStreamSynchronize");
	epf_cuda_leave(d);
	return rc;
}

/*
 * Of the greatest priority: what we put into streams is short, and a program's kernels may wait for it. The driver has few queues to the
 * device and deals streams of one priority to them; behind a stream of the program's that waits for such a kernel, a copy of ours would wait too.
 */
int epf_cuda_stream_create(struct epf_gpu_dev *dev, void **stream)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int least = 0, greatest = 0;
	void *out = NULL;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->stream_priorities(&least, &greatest),
			     "cuCtxGetStreamPriorityRange");
	if (!rc)
		rc = epf_cuda_result(
			d, d->lib->stream_create(&out, EPF_CU_STREAM_NON_BLOCKING, greatest),
			"cuStreamCreateWithPriority");
	epf_cuda_leave(d);
	if (!rc)
		*stream = out;
	return rc;
}

void epf_cuda_stream_destroy(struct epf_gpu_dev *dev, void *stream)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;

	if (!stream || epf_cuda_enter(d))
		return;
	(void)d->lib->stream_destroy(stream);
	epf_cuda_leave(d);
}

int epf_cuda_stream_sync(struct epf_gpu_dev *dev, void *stream)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->stream_sync(stream), "cuStreamSynchronize");
	epf_cuda_leave(d);
	return rc;
}

int epf_cuda_copy_async(struct epf_gpu_dev *dev, void *stream, uint64_t dst, uint64_t src,
			uint64_t bytes)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->copy_async(dst, src, bytes, stream), "cuMemcpyAsync");
	epf_cuda_leave(d);
	return rc;
}

/* One call of the driver for at most BATCH_MAX copies. */
static int batch_call(struct cuda_dev *d, void *stream, const struct epf_gpu_copy *c, unsigned n)
{
	struct epf_cu_copy_attributes how = { .src_order = EPF_CU_SRC_ORDER_STREAM };
	uint64_t dst[BATCH_MAX], src[BATCH_MAX];
	size_t bytes[BATCH_MAX];
	size_t first = 0, failed = 0;

	for (unsigned i = 0; i < n; i++) {
		dst[i] = c[i].dst;
		src[i] = c[i].src;
		bytes[i] = c[i].bytes;
	}
	if (d->batch->v2)
		return d->batch->v2(dst, src, bytes, n, &how, &first, 1, stream);
	return d->batch->v1(dst, src, bytes, n, &how, &first, 1, &failed, stream);
}

int epf_cuda_copy_batch(struct epf_gpu_dev *dev, void *stream, const struct epf_gpu_copy *copies,
			unsigned n)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	bool whole = d->batch->v2 || d->batch->v1;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	for (unsigned i = 0; i < n && !rc;) {
		unsigned k = !whole ? 1 : n - i < BATCH_MAX ? n - i : BATCH_MAX;

		/* The driver takes no batch for the default stream; one copy starts sooner by itself. */
		if (whole && stream && k > 1)
			rc = batch_call(d, stream, &copies[i], k);
		else
			for (unsigned j = 0; j < k && !rc; j++)
				rc = d->lib->copy_async(copies[i + j].dst, copies[i + j].src,
							copies[i + j].bytes, stream);
		i += k;
	}
	rc = epf_cuda_result(d, rc, "cuMemcpyBatchAsync");
	epf_cuda_leave(d);
	return rc;
}

int epf_cuda_event_create(struct epf_gpu_dev *dev, void **event)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	void *out = NULL;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->event_create(&out, EPF_CU_EVENT_NO_TIMING),
			     "cuEventCreate");
	epf_cuda_leave(d);
	if (!rc)
		*event = out;
	return rc;
}

void epf_cuda_event_destroy(struct epf_gpu_dev *dev, void *event)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;

	if (!event || epf_cuda_enter(d))
		return;
	(void)d->lib->event_destroy(event);
	epf_cuda_leave(d);
}

int epf_cuda_event_record(struct epf_gpu_dev *dev, void *stream, void *event)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->event_record(event, stream), "cuEventRecord");
	epf_cuda_leave(d);
	return rc;
}

int epf_cuda_event_query(struct epf_gpu_dev *dev, void *event)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = d->lib->event_query(event);
	epf_cuda_leave(d);
	if (rc == EPF_CU_NOT_READY)
		return 0;
	return rc ? epf_cuda_result(d, rc, "cuEventQuery") : 1;
}

int epf_cuda_stream_wait(struct epf_gpu_dev *dev, void *stream, void *event)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->stream_wait(stream, event, 0), "cuStreamWaitEvent");
	epf_cuda_leave(d);
	return rc;
}

int epf_cuda_module_load(struct epf_gpu_dev *dev, const void *image, void **module)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	void *out = NULL;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = epf_cuda_result(d, d->lib->module_load(&out, image), "cuModuleLoadData");
	epf_cuda_leave(d);
	if (!rc)
		*module = out;
	return rc;
}

void epf_cuda_module_unload(struct epf_gpu_dev *dev, void *module)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;

	if (!module || epf_cuda_enter(d))
		return;
	(void)d->lib->module_unload(module);
	epf_cuda_leave(d);
}

int epf_cuda_function(struct epf_gpu_dev *dev, void *module, const char *name, void **function)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	void *out = NULL;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	rc = d->lib->module_function(&out, module, name);
	if (rc)
		rc = epf_fail(EPF_R_GPU_CALL, "cuda device %d: the module has no kernel %s",
			      dev->index, name);
	epf_cuda_leave(d);
	if (!rc)
		*function = out;
	return rc;
}

int epf_cuda_launch(struct epf_gpu_dev *dev, void *stream, void *function,
		    const struct epf_gpu_launch *l)
{
	struct cuda_dev *d = (struct cuda_dev *)dev;
	int rc = epf_cuda_enter(d);

	if (rc)
		return rc;
	if (l->cooperative)
		rc = d->lib->launch_cooperative(function, l->grid, 1, 1, l->block, 1, 1,
						l->shared_bytes, stream, l->args);
	else
		rc = d->lib->launch(function, l->grid, 1, 1, l->block, 1, 1, l->shared_bytes,
				    stream, l->args, NULL);
	rc = epf_cuda_result(d, rc, "cuLaunchKernel");
	epf_cuda_leave(d);
	return rc;
}
