/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory for the emulated NIC over a real driver (fabric/gpu/gpu.h): fills copy.h. Called by the copier's thread, and by programs
 * that allocate or register GPU memory. One queue is one stream; completion is an event after each batch. It must never wait for a
 * stream but in queue_close and copy, and never give a kernel an address that it has not checked to be of a GPU.
 */
#define EPF_LOG_COMP "emu"
#include "fabric/gpu/copy.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/gpu/copy_ptx.h"
#include "fabric/gpu/gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	DEVICES = 16,
	COPY_THREADS = 512,
	FEW = 64, /* spans of the smaller kernel */
	/* The driver's call takes half a microsecond a copy, however many: short batches keep the pipeline full. */
	ENGINE_BATCH = 64,
};

/* Memory allocated or imported by this file. */
struct piece {
	struct piece *next;
	struct epf_gpu_mem mem;
	uint64_t base; /* of the allocation, as it is mapped */
	int device;
	bool imported, ipc;
	unsigned refs;
	uint8_t handle[64]; /* IPC: an allocation may be imported once only */
};

struct epf_copy_queue {
	struct epf_gpu_dev *dev;
	void *stream;
	void *events[EPF_COPY_FLIGHTS];
	uint64_t values[EPF_COPY_FLIGHTS];
	unsigned first, count;
	uint64_t reached;
	bool kernel;
	void *add_module, *add;
	void *copy_module, *copy_few, *copy_many;
	struct epf_gpu_copy
		copies[EPF_COPY_BATCH]; /* what is being submitted: the kernels' parameters */
	struct epf_copy_add adds[EPF_COPY_ADDS];
};

static struct {
	pthread_mutex_t lock;
	const char *name;
	const struct epf_gpu_ops *ops;
	int count;
	struct epf_gpu_dev *devs[DEVICES];
	char pci[DEVICES][16];
	struct piece *pieces;
} driver = { .lock = PTHREAD_MUTEX_INITIALIZER, .name = "auto" };

_Static_assert(sizeof(struct epf_gpu_copy) == 24, "as the kernels know it");
_Static_assert(sizeof(struct epf_copy_add) * EPF_COPY_ADDS == 1024, "as the kernel knows it");

void epf_copy_driver_choose(const char *name)
{
	pthread_mutex_lock(&driver.lock);
	if (!driver.ops)
		driver.name = name;
	pthread_mutex_unlock(&driver.lock);
}

static int driver_load(void)
{
	const struct epf_gpu_ops *ops;
	int count = 0, rc = 0;

	pthread_mutex_lock(&driver.lock);
	if (!driver.ops) {
		rc = epf_gpu_backend(driver.name, &ops);
		if (!rc)
			rc = ops->count(&count);
		if (!rc) {
			driver.count = count < DEVICES ? count : DEVICES;
			driver.ops = ops;
		}
	}
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

/* A device by its number, opened when it is first needed and kept. */
static int device_get(int index, struct epf_gpu_dev **out)
{
	struct epf_gpu_props props;
	int rc = driver_load();

	if (rc)
		return rc;
	if (index < 0 || index >= driver.count)
		return epf_fail(EPF_R_GPU_ABSENT, "GPU memory: device %d, but there are %d", index,
				driver.count);
	pthread_mutex_lock(&driver.lock);
	if (!driver.devs[index]) {
		rc = driver.ops->open(index, &driver.devs[index]);
		if (!rc && driver.ops->describe(driver.devs[index], &props) == 0)
			memcpy(driver.pci[index], props.pci, sizeof(driver.pci[index]));
	}
	*out = driver.devs[index];
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

static int keep(struct piece fresh)
{
	struct piece *p = malloc(sizeof(*p));

	if (!p)
		return epf_fail(EPF_R_NO_MEMORY, "GPU memory: no memory");
	*p = fresh;
	p->refs = 1;
	pthread_mutex_lock(&driver.lock);
	p->next = driver.pieces;
	driver.pieces = p;
	pthread_mutex_unlock(&driver.lock);
	return 0;
}

static int driver_alloc(int device, uint64_t bytes, void **addr)
{
	struct piece p = { .device = device };
	struct epf_gpu_dev *dev;
	int rc = device_get(device, &dev);

	if (!rc)
		rc = dev->ops->mem_alloc(dev, bytes, EPF_GPU_MEM_EXPORT, &p.mem);
	if (rc)
		return rc;
	p.base = p.mem.addr;
	rc = keep(p);
	if (rc)
		dev->ops->mem_free(dev, &p.mem);
	else
		*addr = (void *)(uintptr_t)p.base;
	return rc;
}

/* Ends one use of the piece that begins at base. */
static void drop(uint64_t base, bool imported)
{
	struct piece **at = &driver.pieces, *p;

	pthread_mutex_lock(&driver.lock);
	while (*at && ((*at)->base != base || (*at)->imported != imported))
		at = &(*at)->next;
	p = *at;
	if (p && --p->refs)
		p = NULL;
	if (p)
		*at = p->next;
	pthread_mutex_unlock(&driver.lock);
	if (!p)
		return;
	driver.ops->mem_free(driver.devs[p->device], &p->mem);
	free(p);
}

static void driver_free(void *addr)
{
	if (addr)
		drop((uint64_t)(uintptr_t)addr, false);
}

static int export_ipc(uint64_t addr, uint64_t bytes, struct epf_copy_handle *h, int *device)
{
	struct epf_gpu_place place = { .where = EPF_GPU_HOST };
	struct epf_gpu_ipc ipc;
	struct epf_gpu_dev *dev;
	int rc = device_get(0, &dev);

	if (!rc)
		rc = dev->ops->mem_place(dev, addr, &place);
	if (!rc && place.where != EPF_GPU_DEVICE)
		rc = epf_fail(EPF_R_GPU_MEMORY, "GPU memory: %#llx is no address of a GPU",
			      (unsigned long long)addr);
	if (!rc)
		rc = device_get(place.device, &dev);
	if (!rc)
		rc = dev->ops->mem_export_ipc(dev, addr, &ipc);
	if (rc)
		return rc;
	if (ipc.offset > ipc.base_bytes || bytes > ipc.base_bytes - ipc.offset)
		return epf_fail(EPF_R_GPU_MEMORY,
				"GPU memory: %llu bytes at %#llx go beyond their allocation",
				(unsigned long long)bytes, (unsigned long long)addr);
	*h = (struct epf_copy_handle){
		.kind = EPF_COPY_IPC, .fd = -1, .bytes = ipc.base_bytes, .offset = ipc.offset
	};
	memcpy(h->ipc, ipc.handle, sizeof(h->ipc));
	*device = place.device;
	return 0;
}

static int driver_export(const void *addr, uint64_t bytes, struct epf_copy_handle *out)
{
	uint64_t at = (uint64_t)(uintptr_t)addr;
	struct epf_copy_handle h = { .kind = EPF_COPY_FD, .fd = -1 };
	struct epf_gpu_mem mem = { 0 };
	int rc, device = 0;

	pthread_mutex_lock(&driver.lock);
	for (const struct piece *p = driver.pieces; p; p = p->next)
		if (!p->imported && at >= p->base && at - p->base < p->mem.bytes) {
			mem = p->mem;
			device = p->device;
		}
	pthread_mutex_unlock(&driver.lock);
	if (mem.addr && bytes > mem.bytes - (at - mem.addr))
		return epf_fail(EPF_R_GPU_MEMORY,
				"GPU memory: %llu bytes at %p go beyond their allocation",
				(unsigned long long)bytes, addr);
	if (mem.addr) {
		h.bytes = mem.bytes;
		h.offset = at - mem.addr;
		rc = driver.ops->mem_export_fd(driver.devs[device], &mem, &h.fd);
	} else {
		rc = export_ipc(at, bytes, &h, &device);
	}
	if (rc)
		return rc;
	memcpy(h.pci, driver.pci[device], sizeof(h.pci));
	*out = h;
	return 0;
}

static int driver_device(const struct epf_copy_handle *h)
{
	struct epf_gpu_dev *dev;

	if (!h->pci[0] || driver_load())
		return 0;
	for (int i = 0; i < driver.count; i++)
		if (device_get(i, &dev) == 0 && strncmp(driver.pci[i], h->pci, sizeof(h->pci)) == 0)
			return i;
	return 0;
}

static int import_ipc(struct epf_gpu_dev *dev, const struct epf_copy_handle *h, struct piece *p)
{
	struct epf_gpu_ipc ipc = { .base_bytes = h->bytes };
	int rc;

	memcpy(ipc.handle, h->ipc, sizeof(ipc.handle));
	memcpy(p->handle, h->ipc, sizeof(p->handle));
	p->ipc = true;
	rc = dev->ops->mem_import_ipc(dev, &ipc, &p->mem);
	p->base = p->mem.addr;
	return rc;
}

/* An allocation that is mapped for one device already: kernels of another one may use it from now on, if the machine lets them. */
static void let_reach(struct epf_gpu_dev *dev, int device, int holder)
{
	struct epf_gpu_dev *other;

	if (device == holder || device_get(holder, &other))
		return;
	if (dev->ops->peer_enable(dev, other))
		epf_note("GPU %d cannot use memory that is mapped for GPU %d: %s", device, holder,
			 epf_last_error());
}

static int driver_import(const struct epf_copy_handle *h, int device, uint64_t *addr)
{
	int holder = device;
	struct piece p = { .device = device, .imported = true };
	struct epf_gpu_dev *dev;
	int rc = device_get(device, &dev);

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	for (struct piece *k = driver.pieces; k && h->kind == EPF_COPY_IPC; k = k->next)
		if (k->ipc && memcmp(k->handle, h->ipc, sizeof(k->handle)) == 0) {
			k->refs++;
			p.base = k->base;
			holder = k->device;
			break;
		}
	pthread_mutex_unlock(&driver.lock);
	if (p.base) {
		let_reach(dev, device, holder);
		*addr = p.base + h->offset;
		return 0;
	}
	if (h->kind == EPF_COPY_IPC)
		rc = import_ipc(dev, h, &p);
	else
		rc = dev->ops->mem_import_fd(dev, h->fd, h->bytes, &p.mem);
	if (rc)
		return rc;
	p.base = p.mem.addr;
	rc = keep(p);
	if (rc)
		dev->ops->mem_free(dev, &p.mem);
	else
		*addr = p.base + h->offset;
	return rc;
}

static void driver_unimport(const struct epf_copy_handle *h, uint64_t addr)
{
	drop(addr - h->offset, true);
}

static uint64_t driver_for_kernels(const void *addr, uint64_t bytes)
{
	(void)bytes;
	return (uint64_t)(uintptr_t)addr;
}

static int driver_copy(void *dst, const void *src, uint64_t bytes)
{
	const uint64_t ends[2] = { (uint64_t)(uintptr_t)dst, (uint64_t)(uintptr_t)src };
	struct epf_gpu_place place;
	struct epf_gpu_dev *dev;
	int rc = device_get(0, &dev);

	for (int i = 0; i < 2 && !rc; i++) {
		rc = dev->ops->mem_place(dev, ends[i], &place);
		if (!rc && place.where == EPF_GPU_DEVICE) {
			rc = device_get(place.device, &dev);
			break;
		}
	}
	return rc ? rc : dev->ops->copy(dev, ends[0], ends[1], bytes);
}

static int driver_register(void *addr, uint64_t bytes)
{
	struct epf_gpu_dev *dev;
	uint64_t at;
	int rc = device_get(0, &dev);

	return rc ? rc : dev->ops->pin(dev, addr, bytes, 0, &at);
}

static void driver_unregister(void *addr)
{
	driver.ops->unpin(driver.devs[0], addr);
}

static void driver_queue_close(struct epf_copy_queue *q)
{
	if (!q)
		return;
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
static int warm(struct epf_copy_queue *q, void *function, void **args)
{
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
	uint64_t none = 0;
	void *adds[2] = { q->adds, &none }, *copies[1] = { q->copies };
	int rc = dev->ops->module_load(dev, emu_gpu_add_ptx, &q->add_module);

	if (!rc)
		rc = dev->ops->function(dev, q->add_module, "epf_add", &q->add);
	if (!rc)
		rc = warm(q, q->add, adds);
	if (rc || !q->kernel)
		return rc;
	rc = dev->ops->module_load(dev, emu_gpu_copy_ptx, &q->copy_module);
	if (!rc)
		rc = dev->ops->function(dev, q->copy_module, "epf_copy_64", &q->copy_few);
	if (!rc)
		rc = dev->ops->function(dev, q->copy_module, "epf_copy_512", &q->copy_many);
	if (!rc)
		rc = warm(q, q->copy_few, copies);
	return rc ? rc : warm(q, q->copy_many, copies);
}

static int driver_queue_open(int device, int kernel, struct epf_copy_queue **out)
{
	struct epf_copy_queue *q = calloc(1, sizeof(*q));
	int rc;

	if (!q)
		return epf_fail(EPF_R_NO_MEMORY, "GPU copies: no memory");
	rc = device_get(device, &q->dev);
	if (rc) {
		free(q);
		return rc;
	}
	q->kernel = kernel != 0;
	rc = q->dev->ops->stream_create(q->dev, &q->stream);
	for (unsigned i = 0; i < EPF_COPY_FLIGHTS && !rc; i++)
		rc = q->dev->ops->event_create(q->dev, &q->events[i]);
	if (!rc)
		rc = load_kernels(q);
	if (!rc)
		rc = q->dev->ops->stream_sync(q->dev, q->stream);
	if (rc) {
		driver_queue_close(q);
		return rc;
	}
	*out = q;
	return 0;
}

static unsigned driver_queue_batch(const struct epf_copy_queue *q)
{
	return q->kernel ? EPF_COPY_BATCH : ENGINE_BATCH;
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

/* Both halves go into one stream, so that the order of submits holds for both. */
static int driver_submit(struct epf_copy_queue *q, const struct epf_copy_span *spans, unsigned n,
			 uint64_t value)
{
	unsigned k = 0;
	int rc = 0;

	for (unsigned i = 0; i < n; i++)
		if (q->kernel && !spans[i].host)
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
		if (!q->kernel || spans[i].host)
			q->copies[k++] =
				(struct epf_gpu_copy){ spans[i].dst, spans[i].src, spans[i].bytes };
	if (k)
		rc = q->dev->ops->copy_batch(q->dev, q->stream, q->copies, k);
	return rc ? rc : mark(q, value);
}

static int driver_add(struct epf_copy_queue *q, const struct epf_copy_add *adds, unsigned n,
		      uint64_t value)
{
	uint64_t count = n;
	void *args[2] = { q->adds, &count };
	struct epf_gpu_launch how = { .grid = 1, .block = 1, .args = args };
	struct epf_gpu_dev *dev = q->dev;
	int rc;

	memcpy(q->adds, adds, n * sizeof(*adds));
	rc = dev->ops->launch(dev, q->stream, q->add, &how);
	return rc ? rc : mark(q, value);
}

/* Has the event of a submit come? The number behind the oldest. */
static int has_come(struct epf_copy_queue *q, unsigned behind)
{
	return q->dev->ops->event_query(q->dev, q->events[(q->first + behind) % EPF_COPY_FLIGHTS]);
}

static uint64_t driver_reached(struct epf_copy_queue *q)
{
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

const struct epf_copy_ops epf_copy_driver = {
	.name = "driver",
	.load = driver_load,
	.mem_alloc = driver_alloc,
	.mem_free = driver_free,
	.mem_export = driver_export,
	.mem_device = driver_device,
	.mem_import = driver_import,
	.mem_unimport = driver_unimport,
	.mem_for_kernels = driver_for_kernels,
	.copy = driver_copy,
	.host_register = driver_register,
	.host_unregister = driver_unregister,
	.queue_open = driver_queue_open,
	.queue_batch = driver_queue_batch,
	.queue_close = driver_queue_close,
	.submit = driver_submit,
	.add = driver_add,
	.reached = driver_reached,
};
