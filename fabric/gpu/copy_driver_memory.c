/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and GPU memory of the copy driver (copy.h over gpu.h). Called by the copier's thread and by programs that allocate or register
 * GPU memory. Only the blocking copy waits for a stream. A kernel is never given an address that has not been checked to be a GPU's.
 */
#define EPF_LOG_COMP "emu"
#include "fabric/gpu/copy_driver_priv.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/gpu/gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	DEVICES = 16,
};

/* Memory allocated or imported by this file. */
struct piece {
	struct piece *next;
	struct epf_gpu_mem mem;
	uint64_t base; /* of the allocation, as it is mapped */
	int device;
	struct epf_gpu_dev *dev;    /* by which it was made */
	bool imported, ipc, is_own; /* is_own: dev has a context of its own */
	unsigned refs;
	uint8_t handle[64]; /* IPC: an allocation may be mapped once for a device */
};

static struct {
	pthread_mutex_t lock;    /* after load() never held over a call of the driver */
	pthread_mutex_t opening; /* held while a device is opened */
	const char *name;
	const struct epf_gpu_ops *ops;
	int count;
	struct epf_gpu_dev *devs[DEVICES],
		*own[DEVICES]; /* own: with contexts of their own; both [release, when opened] */
	char pci[DEVICES][16];
	struct piece *pieces;
	struct epf_gpu_dev
		*pinner[2]; /* registers host memory, for all devices; 1: by a context of its own */
} driver = { .lock = PTHREAD_MUTEX_INITIALIZER,
	     .opening = PTHREAD_MUTEX_INITIALIZER,
	     .name = "auto" };

void epf_copy_driver_choose(const char *name)
{
	pthread_mutex_lock(&driver.lock);
	if (!driver.ops)
		driver.name = name;
	pthread_mutex_unlock(&driver.lock);
}

int epf_copy_driver_load(void)
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

/* Opens a device when it is first needed, and keeps it. Under `opening`. */
static int open_once(int index, bool is_own, struct epf_gpu_dev **at)
{
	struct epf_gpu_props props;
	struct epf_gpu_dev *dev;
	int rc;

	if (*at)
		return 0;
	rc = is_own ? driver.ops->open_own(index, &dev) : driver.ops->open(index, &dev);
	if (rc)
		return rc;
	if (!is_own && driver.ops->describe(dev, &props) == 0)
		memcpy(driver.pci[index], props.pci, sizeof(driver.pci[index]));
	__atomic_store_n(at, dev, __ATOMIC_RELEASE);
	return 0;
}

static int get(int index, bool is_own, struct epf_gpu_dev **out)
{
	struct epf_gpu_dev **at;
	int rc = epf_copy_driver_load();

	if (rc)
		return rc;
	if (index < 0 || index >= driver.count)
		return epf_fail(EPF_R_GPU_ABSENT, "GPU memory: device %d, but there are %d", index,
				driver.count);
	at = is_own ? &driver.own[index] : &driver.devs[index];
	*out = __atomic_load_n(at, __ATOMIC_ACQUIRE);
	if (*out) /* waits for nobody who opens another one */
		return 0;
	pthread_mutex_lock(&driver.opening);
	rc = open_once(index, is_own, at);
	*out = *at;
	pthread_mutex_unlock(&driver.opening);
	return rc;
}

int epf_copy_driver_get(int index, struct epf_gpu_dev **out)
{
	return get(index, false, out);
}

int epf_copy_driver_get_own(int index, struct epf_gpu_dev **out)
{
	return get(index, true, out);
}

/* A device for calls that concern no particular one: one that is open, else the thread's current one. */
static int any_device(struct epf_gpu_dev **out)
{
	struct epf_gpu_dev *dev = NULL;
	int index, rc = epf_copy_driver_load();

	if (rc)
		return rc;
	for (int i = 0; i < driver.count && !dev; i++)
		dev = __atomic_load_n(&driver.devs[i], __ATOMIC_ACQUIRE);
	if (dev) {
		*out = dev;
		return 0;
	}
	rc = driver.ops->open(-1, &dev);
	if (rc)
		return rc;
	index = dev->index;
	driver.ops->close(dev);
	return epf_copy_driver_get(index, out);
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

int epf_copy_driver_mem_alloc(int device, uint64_t bytes, void **addr)
{
	struct piece p = { .device = device };
	struct epf_gpu_dev *dev;
	int rc = epf_copy_driver_get(device, &dev);

	if (!rc)
		rc = dev->ops->mem_alloc(dev, bytes, EPF_GPU_MEM_EXPORT, &p.mem);
	if (rc)
		return rc;
	p.base = p.mem.addr;
	p.dev = dev;
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
	driver.ops->mem_free(p->dev, &p->mem);
	free(p);
}

void epf_copy_driver_mem_free(void *addr)
{
	if (addr)
		drop((uint64_t)(uintptr_t)addr, false);
}

int epf_copy_driver_mem_place(const void *addr, uint64_t bytes, int *device)
{
	uint64_t at = (uint64_t)(uintptr_t)addr;
	struct epf_gpu_place place = { .where = EPF_GPU_HOST };
	struct epf_gpu_dev *dev;
	int rc = any_device(&dev);

	if (!rc)
		rc = dev->ops->mem_place(dev, at, &place);
	if (rc || place.where != EPF_GPU_DEVICE)
		return rc;
	if (at < place.base || bytes > place.bytes || at - place.base > place.bytes - bytes)
		return epf_fail(EPF_R_GPU_MEMORY,
				"GPU memory: %llu bytes at %p leave their allocation of %llu bytes",
				(unsigned long long)bytes, addr, (unsigned long long)place.bytes);
	*device = place.device;
	return 1;
}

static int export_ipc(struct epf_gpu_dev *dev, uint64_t addr, struct epf_copy_handle *h)
{
	struct epf_gpu_ipc ipc;
	int rc = dev->ops->mem_export_ipc(dev, addr, &ipc);

	if (rc)
		return rc;
	*h = (struct epf_copy_handle){
		.kind = EPF_COPY_IPC, .fd = -1, .bytes = ipc.base_bytes, .offset = ipc.offset
	};
	memcpy(h->ipc, ipc.handle, sizeof(h->ipc));
	return 0;
}

/* Memory that this file did not allocate: by a handle, else by a descriptor (NCCL's windows), else not at all (its signals). */
static int export_foreign(uint64_t addr, uint64_t bytes, struct epf_copy_handle *h, int *device)
{
	struct epf_gpu_place place = { .where = EPF_GPU_HOST };
	struct epf_gpu_dev *dev;
	int rc = any_device(&dev);

	if (!rc)
		rc = dev->ops->mem_place(dev, addr, &place);
	if (!rc && place.where != EPF_GPU_DEVICE)
		rc = epf_fail(EPF_R_GPU_MEMORY, "GPU memory: %#llx is no address of a GPU",
			      (unsigned long long)addr);
	if (!rc)
		rc = epf_copy_driver_get(place.device, &dev);
	if (rc)
		return rc;
	if (export_ipc(dev, addr, h)) {
		*h = (struct epf_copy_handle){ .kind = EPF_COPY_FD, .fd = -1 };
		if (dev->ops->mem_export_mapped(dev, addr, &h->fd, &h->bytes, &h->offset)) {
			epf_dbg("GPU memory at %#llx has no name for other processes: %s",
				(unsigned long long)addr, epf_last_error());
			*h = (struct epf_copy_handle){ .kind = EPF_COPY_LOCAL,
						       .fd = -1,
						       .bytes = place.bytes,
						       .offset = addr - place.base };
		}
	}
	*device = place.device;
	if (h->offset <= h->bytes && bytes <= h->bytes - h->offset)
		return 0;
	if (h->fd >= 0)
		close(h->fd);
	return epf_fail(EPF_R_GPU_MEMORY,
			"GPU memory: %llu bytes at %#llx go beyond their allocation",
			(unsigned long long)bytes, (unsigned long long)addr);
}

int epf_copy_driver_mem_export(const void *addr, uint64_t bytes, struct epf_copy_handle *out)
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
		rc = export_foreign(at, bytes, &h, &device);
	}
	if (rc)
		return rc;
	memcpy(h.pci, driver.pci[device], sizeof(h.pci));
	*out = h;
	return 0;
}

int epf_copy_driver_mem_device(const struct epf_copy_handle *h)
{
	struct epf_gpu_dev *dev;

	if (!h->pci[0] || epf_copy_driver_load())
		return 0;
	for (int i = 0; i < driver.count; i++)
		if (epf_copy_driver_get(i, &dev) == 0 &&
		    strncmp(driver.pci[i], h->pci, sizeof(h->pci)) == 0)
			return i;
	return 0;
}

/* One more use of an allocation with an IPC handle, if it is mapped: for this device, or with device -1 for any. Returns where, or 0, and for which. */
static uint64_t use_mapped(const struct epf_copy_handle *h, int device, int *holder)
{
	uint64_t base = 0;

	pthread_mutex_lock(&driver.lock);
	for (struct piece *k = driver.pieces; k && !base; k = k->next)
		if (k->ipc && (device < 0 || k->device == device) &&
		    memcmp(k->handle, h->ipc, sizeof(k->handle)) == 0) {
			k->refs++;
			base = k->base;
			*holder = k->device;
		}
	pthread_mutex_unlock(&driver.lock);
	return base;
}

/*
 * Maps an allocation with an IPC handle for a device. What is mapped for another device is slow for copy engines and out of reach for kernels, peer access or
 * not. Where the driver refuses a second mapping, the device uses the other one's, with peer access.
 */
static int import_ipc(struct epf_gpu_dev *dev, int device, const struct epf_copy_handle *h,
		      struct piece *p)
{
	struct epf_gpu_ipc ipc = { .base_bytes = h->bytes };
	struct epf_gpu_dev *other;
	int rc, holder;

	memcpy(ipc.handle, h->ipc, sizeof(ipc.handle));
	memcpy(p->handle, h->ipc, sizeof(p->handle));
	p->ipc = true;
	rc = dev->ops->mem_import_ipc(dev, &ipc, &p->mem);
	if (!rc)
		return 0;
	p->base = use_mapped(h, -1, &holder);
	if (!p->base)
		return rc;
	epf_dbg("GPU %d maps no memory that GPU %d has mapped: %s", device, holder,
		epf_last_error());
	if (!epf_copy_driver_get(holder, &other) && dev->ops->peer_enable(dev, other))
		epf_note("GPU %d cannot use memory that is mapped for GPU %d: %s", device, holder,
			 epf_last_error());
	return 0;
}

/* is_own: of memory with a descriptor; an allocation with an IPC handle is mapped for the program's context. */
static int import(const struct epf_copy_handle *h, int device, bool is_own, uint64_t *addr)
{
	struct piece p = { .device = device, .imported = true };
	struct epf_gpu_dev *dev;
	int rc = get(device, is_own && h->kind == EPF_COPY_FD, &dev), holder;

	if (!rc && h->kind == EPF_COPY_LOCAL)
		rc = epf_fail(EPF_R_GPU_MEMORY,
			      "GPU memory: its allocator did not make it for sharing");
	if (rc)
		return rc;
	if (h->kind == EPF_COPY_IPC) {
		p.base = use_mapped(h, device, &holder);
		rc = p.base ? 0 : import_ipc(dev, device, h, &p);
	} else {
		rc = dev->ops->mem_import_fd(dev, h->fd, h->bytes, &p.mem);
	}
	if (rc)
		return rc;
	if (p.base) {
		*addr = p.base + h->offset;
		return 0;
	}
	p.base = p.mem.addr;
	p.dev = dev;
	p.is_own = is_own && h->kind == EPF_COPY_FD;
	rc = keep(p);
	if (rc)
		dev->ops->mem_free(dev, &p.mem);
	else
		*addr = p.base + h->offset;
	return rc;
}

bool epf_copy_driver_is_usual(uint64_t addr)
{
	bool is_own = false;

	pthread_mutex_lock(&driver.lock);
	for (const struct piece *p = driver.pieces; p; p = p->next)
		is_own |= p->is_own && addr >= p->base && addr - p->base < p->mem.bytes;
	pthread_mutex_unlock(&driver.lock);
	return !is_own;
}

int epf_copy_driver_mem_import(const struct epf_copy_handle *h, int device, uint64_t *addr)
{
	return import(h, device, false, addr);
}

int epf_copy_driver_mem_import_own(const struct epf_copy_handle *h, int device, uint64_t *addr)
{
	return import(h, device, true, addr);
}

void epf_copy_driver_mem_unimport(const struct epf_copy_handle *h, uint64_t addr)
{
	drop(addr - h->offset, true);
}

uint64_t epf_copy_driver_mem_for_kernels(const void *addr, uint64_t bytes)
{
	(void)bytes;
	return (uint64_t)(uintptr_t)addr;
}

int epf_copy_driver_copy(void *dst, const void *src, uint64_t bytes)
{
	const uint64_t ends[2] = { (uint64_t)(uintptr_t)dst, (uint64_t)(uintptr_t)src };
	struct epf_gpu_place place;
	struct epf_gpu_dev *dev;
	int rc = epf_copy_driver_get(0, &dev);

	for (int i = 0; i < 2 && !rc; i++) {
		rc = dev->ops->mem_place(dev, ends[i], &place);
		if (!rc && place.where == EPF_GPU_DEVICE) {
			rc = epf_copy_driver_get(place.device, &dev);
			break;
		}
	}
	return rc ? rc : dev->ops->copy(dev, ends[0], ends[1], bytes);
}

static int pin(void *addr, uint64_t bytes, bool is_own)
{
	struct epf_gpu_dev *dev;
	uint64_t at;
	int rc = any_device(&dev);

	if (!rc && is_own)
		rc = get(dev->index, true, &dev);
	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	if (!driver.pinner
		     [is_own]) /* the same for all: the device that registers must unregister */
		driver.pinner[is_own] = dev;
	dev = driver.pinner[is_own];
	pthread_mutex_unlock(&driver.lock);
	return dev->ops->pin(dev, addr, bytes, 0, &at);
}

int epf_copy_driver_register(void *addr, uint64_t bytes)
{
	return pin(addr, bytes, false);
}

void epf_copy_driver_unregister(void *addr)
{
	driver.ops->unpin(driver.pinner[0], addr);
}

int epf_copy_driver_register_own(void *addr, uint64_t bytes)
{
	return pin(addr, bytes, true);
}

void epf_copy_driver_unregister_own(void *addr)
{
	driver.ops->unpin(driver.pinner[1], addr);
}
