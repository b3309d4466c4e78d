/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy driver (copy.h over gpu.h): queues of copies on a GPU; copy_driver_memory.c has its memory, copy_driver_add.c its additions. A queue is one stream, and an event after each batch marks its end. Called by the copier's thread.
 * Only driver_queue_close() waits for the stream.
 */
#include "fabric/base/err.h"
#include "fabric/gpu/copy_driver_priv.h"
#include "fabric/gpu/copy_ptx.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	COPY_THREADS = 512,
	FEW = 64, /* spans of the smaller kernel */
	/* The driver's call takes half a microsecond a copy, however many: short batches keep the pipeline full. */
	ENGINE_BATCH = 64,
};

struct epf_copy_queue {
	struct epf_gpu_dev *dev;
	void *stream;
	void *events[EPF_COPY_FLIGHTS];
	uint64_t values[EPF_COPY_FLIGHTS];
	unsigned first, count;
	uint64_t reached;
	enum epf_copy_kind kind;
	struct epf_adder *adder; /* additions in a context of our own: nothing else of it is used */
	void *add_module, *add;
	void *copy_module, *copy_few, *copy_many;
	struct epf_gpu_copy
		copies[EPF_COPY_BATCH]; /* what is being submitted: the kernels' parameters */
	struct epf_adder_batch adds;
};

_Static_assert(sizeof(struct epf_gpu_copy) == 24, "as the kernels know it");

static void driver_queue_close(struct epf_copy_queue *q)
{
	if (!q)
		return;
	if (q->adder) {
		epf_adder_close(q->adder);
		free(q);
		return;
	}
	if (q->stream) {
		(void)q->dev->ops->stream_sync(q->dev, q->stream);
		q->dev->ops->stream_destroy(q->dev, q->stream);
	}
	for (unsigned i = 0; i < EPF_COPY_FLIGHTS; i++)
		q->dev->ops->event_destroy(q->dev, q->events[i]);
	if (q->add_module)
		q->dev->ops->module_unload(q->dev, q->add_module);
	if (q->copy_module)
		q->dev->ops->module_unload(q->dev, q->copy_module);
	free(q);
}

/* Launches a kernel that has nothing to do: the driver brings a kernel to the device with its first launch. */
static int warm(struct epf_copy_queue *q, void *function)
{
	void *args[1] = { q->copies };
	struct epf_gpu_launch how = { .grid = 1, .block = 1, .args = args };

	return q->dev->ops->launch(q->dev, q->stream, function, &how);
}

/*
 * Kernels are brought to the device before the first copy: the driver may wait for the application's kernels to do so, and these may
 * wait for a copy.
 */
static int load_kernels(struct epf_copy_queue *q)
{
	struct epf_gpu_dev *dev = q->dev;
	int rc;

	if (q->kind == EPF_COPY_ENGINES)
		return 0;
	if (q->kind == EPF_COPY_ADDITIONS) {
		rc = epf_copy_driver_add_load(dev, &q->add_module, &q->add);
		return rc ? rc : epf_copy_driver_add_launch(dev, q->stream, q->add, &q->adds, 0);
	}
	rc = dev->ops->module_load(dev, emu_gpu_copy_ptx, &q->copy_module);
	if (!rc)
		rc = dev->ops->function(dev, q->copy_module, "epf_copy_64", &q->copy_few);
	if (!rc)
		rc = dev->ops->function(dev, q->copy_module, "epf_copy_512", &q->copy_many);
	if (!rc)
		rc = warm(q, q->copy_few);
	return rc ? rc : warm(q, q->copy_many);
}

/* A stream and its events in q->dev's context. */
static int open_stream(struct epf_copy_queue *q)
{
	int rc = q->dev->ops->stream_create(q->dev, &q->stream);

	for (unsigned i = 0; i < EPF_COPY_FLIGHTS && !rc; i++)
		rc = q->dev->ops->event_create(q->dev, &q->events[i]);
	if (!rc)
		rc = load_kernels(q);
	return rc ? rc : q->dev->ops->stream_sync(q->dev, q->stream);
}

static int open_queue(int device, bool is_own, enum epf_copy_kind kind, struct epf_copy_queue **out)
{
	struct epf_copy_queue *q = calloc(1, sizeof(*q));
	int rc;

	if (!q)
		return epf_fail(EPF_R_NO_MEMORY, "GPU copies: no memory");
	q->kind = kind;
	rc = is_own ? epf_copy_driver_get_own(device, &q->dev)
		    : epf_copy_driver_get(device, &q->dev);
	if (!rc && is_own && kind == EPF_COPY_ADDITIONS)
		rc = epf_adder_open(&epf_copy_driver_adder, device, &q->adder);
	else if (!rc)
		rc = open_stream(q);
	if (!rc)
		*out = q;
	else if (q->dev)
		driver_queue_close(q);
	else
		free(q);
	return rc;
}

static int driver_queue_open(int device, enum epf_copy_kind kind, struct epf_copy_queue **out)
{
	return open_queue(device, false, kind, out);
}

static int driver_queue_open_own(int device, enum epf_copy_kind kind, struct epf_copy_queue **out)
{
	return open_queue(device, true, kind, out);
}

static unsigned driver_queue_batch(const struct epf_copy_queue *q)
{
	return q->kind == EPF_COPY_KERNEL ? EPF_COPY_BATCH : ENGINE_BATCH;
}

/* An event after what was put into the stream last. */
static int mark(struct epf_copy_queue *q, uint64_t value)
{
	unsigned at = (q->first + q->count) % EPF_COPY_FLIGHTS;
	int rc = q->dev->ops->event_record(q->dev, q->stream, q->events[at]);

	if (rc)
		return rc;
	q->values[at] = value;
	q->count++;
	return 0;
}

/* Copies by a kernel, a block for each. */
static int launch(struct epf_copy_queue *q, unsigned n)
{
	void *args[1] = { q->copies };
	struct epf_gpu_launch how = { .grid = n, .block = COPY_THREADS, .args = args };

	return q->dev->ops->launch(q->dev, q->stream, n <= FEW ? q->copy_few : q->copy_many, &how);
}

static bool is_by_kernel(const struct epf_copy_queue *q, const struct epf_copy_span *span)
{
	return q->kind == EPF_COPY_KERNEL && !span->host;
}

/* Both halves go into one stream, so that the order of submits holds for both. */
static int driver_submit(struct epf_copy_queue *q, const struct epf_copy_span *spans, unsigned n,
			 uint64_t value)
{
	unsigned k = 0;
	int rc = 0;

	if (q->kind == EPF_COPY_ADDITIONS)
		return epf_fail(EPF_R_GPU_UNSUPPORTED, "GPU copies: this queue only adds");
	for (unsigned i = 0; i < n; i++)
		if (is_by_kernel(q, &spans[i]))
			q->copies[k++] =
				(struct epf_gpu_copy){ spans[i].dst, spans[i].src, spans[i].bytes };
	if (k)
		rc = launch(q, k);
	if (rc)
		return rc;
	if (k == n)
		return mark(q, value);
	k = 0;
	for (unsigned i = 0; i < n; i++)
		if (!is_by_kernel(q, &spans[i]))
			q->copies[k++] =
				(struct epf_gpu_copy){ spans[i].dst, spans[i].src, spans[i].bytes };
	if (k)
		rc = q->dev->ops->copy_batch(q->dev, q->stream, q->copies, k);
	return rc ? rc : mark(q, value);
}

static int driver_add(struct epf_copy_queue *q, const struct epf_copy_add *adds, unsigned n,
		      uint64_t value)
{
	int rc;

	if (q->kind != EPF_COPY_ADDITIONS)
		return epf_fail(EPF_R_GPU_UNSUPPORTED, "GPU copies: this queue only copies");
	if (q->adder)
		return epf_adder_add(q->adder, adds, n, value);
	q->adds.n = n;
	memcpy(q->adds.adds, adds, n * sizeof(*adds));
	rc = epf_copy_driver_add_launch(q->dev, q->stream, q->add, &q->adds, 0);
	return rc ? rc : mark(q, value);
}

/* Has the event of a submit come? The number behind the oldest. */
static int has_come(struct epf_copy_queue *q, unsigned behind)
{
	return q->dev->ops->event_query(q->dev, q->events[(q->first + behind) % EPF_COPY_FLIGHTS]);
}

static uint64_t driver_reached(struct epf_copy_queue *q)
{
	if (q->adder)
		return epf_adder_reached(q->adder);
	/* Each question takes the driver a microsecond or more: when the device waits for us, one answers for all. */
	if (q->count > 1 && q->reached != UINT64_MAX && has_come(q, q->count - 1) > 0) {
		q->reached = q->values[(q->first + q->count - 1) % EPF_COPY_FLIGHTS];
		q->first = (q->first + q->count) % EPF_COPY_FLIGHTS;
		q->count = 0;
	}
	while (q->count && q->reached != UINT64_MAX) {
		int rc = has_come(q, 0);

		if (rc == 0)
			break;
		q->reached = rc > 0 ? q->values[q->first] : UINT64_MAX;
		q->first = (q->first + 1) % EPF_COPY_FLIGHTS;
		q->count--;
	}
	return q->reached;
}

#define EITHER                                                                                     \
 .load = epf_copy_driver_load, .mem_alloc = epf_copy_driver_mem_alloc,                             \
 .mem_free = epf_copy_driver_mem_free, .mem_export = epf_copy_driver_mem_export,                   \
 .mem_place = epf_copy_driver_mem_place, .mem_device = epf_copy_driver_mem_device,                 \
 .mem_unimport = epf_copy_driver_mem_unimport, .mem_for_kernels = epf_copy_driver_mem_for_kernels, \
 .copy = epf_copy_driver_copy, .queue_batch = driver_queue_batch,                                  \
 .queue_close = driver_queue_close, .submit = driver_submit, .add = driver_add,                    \
 .reached = driver_reached

const struct epf_copy_ops epf_copy_driver = {
	.name = "driver",
	EITHER,
	.mem_import = epf_copy_driver_mem_import,
	.host_register = epf_copy_driver_register,
	.host_unregister = epf_copy_driver_unregister,
	.queue_open = driver_queue_open,
};

const struct epf_copy_ops epf_copy_driver_own = {
	.name = "driver, own context",
	EITHER,
	.mem_import = epf_copy_driver_mem_import_own,
	.host_register = epf_copy_driver_register_own,
	.host_unregister = epf_copy_driver_unregister_own,
	.queue_open = driver_queue_open_own,
};
