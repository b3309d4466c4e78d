/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake GPU back-end (gpu.h): host memory that plays the memory of FAKE_DEVICES GPUs, so that tests run on machines without one. Copies
 * are made by the calling thread at once; descriptors are memfds; a "module" is a table of C functions (struct epf_gpu_fake_kernel) and a
 * launch calls one. It never opens a driver's library. Chosen by name only, never by auto.
 */
#include "fabric/gpu/fake.h"

#include "fabric/base/err.h"
#include "fabric/gpu/none.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FAKE_DEVICES = 4, PAGE = 4096 };

struct fake_dev {
	struct epf_gpu_dev dev;
};

/* Memory of the fake devices of this process, to distinguish its addresses from ordinary memory. */
struct fake_mem {
	struct fake_mem *next;
	uint8_t *at;
	uint64_t bytes;
	int fd;
	int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_mem *all;

struct fake_ipc {
	int32_t pid;
	int32_t fd;
};

static struct fake_mem *find(uint64_t addr)
{
	struct fake_mem *m = all;

	while (m && (addr < (uintptr_t)m->at || addr - (uintptr_t)m->at >= m->bytes))
		m = m->next;
	return m;
}

static int fake_count(int *n)
{
	*n = FAKE_DEVICES;
	return 0;
}

static int fake_open(int index, struct epf_gpu_dev **out)
{
	struct fake_dev *d;

	if (index >= FAKE_DEVICES)
		return epf_fail(EPF_R_GPU_ABSENT, "fake device %d: there are %d", index,
				FAKE_DEVICES);
	d = calloc(1, sizeof(*d));
	if (!d)
		return epf_fail(EPF_R_NO_MEMORY, "fake: a device");
	d->dev = (struct epf_gpu_dev){ &epf_gpu_fake_ops, index < 0 ? 0 : index };
	*out = &d->dev;
	return 0;
}

static void fake_close(struct epf_gpu_dev *dev)
{
	free(dev);
}

static int fake_describe(struct epf_gpu_dev *dev, struct epf_gpu_props *out)
{
	*out = (struct epf_gpu_props){ .name = "fake",
				       .numa = -1,
				       .multiprocessors = 4,
				       .warp = 1,
				       .timer_khz = 1000000,
				       .has_fd = true,
				       .has_dmabuf = true,
				       .has_flush = true,
				       .write_order = EPF_GPU_ORDER_ALL };
	snprintf(out->pci, sizeof(out->pci), "ffff:00:%02x.0", (unsigned)dev->index);
	return 0;
}

static int fake_pin(struct epf_gpu_dev *dev, void *addr, uint64_t bytes, unsigned flags,
		    uint64_t *device_addr)
{
	if (!addr || !bytes || (uintptr_t)addr % PAGE || bytes % PAGE)
		return epf_fail(EPF_R_GPU_PIN, "fake device %d: %llu bytes at %p: not whole pages",
				dev->index, (unsigned long long)bytes, addr);
	*device_addr = (uintptr_t)addr;
	return 0;
}

static void fake_unpin(struct epf_gpu_dev *dev, void *addr)
{
}

/* Maps fd, which it owns from here on, and notes it. */
static int add(struct epf_gpu_dev *dev, int fd, uint64_t bytes, struct epf_gpu_mem *out)
{
	struct fake_mem *m = calloc(1, sizeof(*m));
	void *at = m ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

	if (at == MAP_FAILED) {
		free(m);
		close(fd);
		return epf_fail(EPF_R_NO_MEMORY, "fake device %d: %llu bytes", dev->index,
				(unsigned long long)bytes);
	}
	*m = (struct fake_mem){ NULL, at, bytes, fd, dev->index };
	pthread_mutex_lock(&lock);
	m->next = all;
	all = m;
	pthread_mutex_unlock(&lock);
	*out = (struct epf_gpu_mem){ .addr = (uintptr_t)at,
				     .bytes = bytes,
				     .handle = (uint64_t)fd };
	return 0;
}

static int fake_mem_alloc(struct epf_gpu_dev *dev, uint64_t bytes, unsigned flags,
			  struct epf_gpu_mem *out)
{
	uint64_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
	int fd = memfd_create("epf-fake-gpu", MFD_CLOEXEC);

	if (!bytes || fd < 0 || ftruncate(fd, (off_t)whole)) {
		if (fd >= 0)
			close(fd);
		return epf_fail(EPF_R_NO_MEMORY, "fake device %d: %llu bytes", dev->index,
				(unsigned long long)bytes);
	}
	return add(dev, fd, whole, out);
}

static void fake_mem_free(struct epf_gpu_dev *dev, struct epf_gpu_mem *mem)
{
	struct fake_mem *m = NULL;

	if (!mem || !mem->addr)
		return;
	pthread_mutex_lock(&lock);
	for (struct fake_mem **link = &all; *link; link = &(*link)->next)
		if ((uint64_t)(*link)->fd == mem->handle) {
			m = *link;
			*link = m->next;
			break;
		}
	pthread_mutex_unlock(&lock);
	if (m) {
		munmap(m->at, m->bytes);
		close(m->fd);
		free(m);
	}
	memset(mem, 0, sizeof(*mem));
}

static int duplicate(struct epf_gpu_dev *dev, int fd, int *out)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (copy < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "fake device %d: a descriptor",
				    dev->index);
	*out = copy;
	return 0;
}

static int fake_mem_export_fd(struct epf_gpu_dev *dev, const struct epf_gpu_mem *mem, int *fd)
{
	return duplicate(dev, (int)mem->handle, fd);
}

static int fake_mem_import_fd(struct epf_gpu_dev *dev, int fd, uint64_t bytes,
			      struct epf_gpu_mem *out)
{
	int copy = -1;
	int rc = duplicate(dev, fd, &copy);

	return rc ? rc : add(dev, copy, bytes, out);
}

static int not_ours(const struct epf_gpu_dev *dev, uint64_t addr)
{
	return epf_fail(EPF_R_GPU_CALL, "fake device %d: %#llx is not memory of a device",
			dev->index, (unsigned long long)addr);
}

static int fake_mem_export_ipc(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_ipc *out)
{
	struct fake_ipc self = { .pid = (int32_t)getpid() };
	const struct fake_mem *m;

	pthread_mutex_lock(&lock);
	m = find(addr);
	pthread_mutex_unlock(&lock);
	if (!m)
		return not_ours(dev, addr);
	self.fd = m->fd;
	memset(out, 0, sizeof(*out));
	memcpy(out->handle, &self, sizeof(self));
	out->base_bytes = m->bytes;
	out->offset = addr - (uintptr_t)m->at;
	return 0;
}

static int fake_mem_import_ipc(struct epf_gpu_dev *dev, const struct epf_gpu_ipc *ipc,
			       struct epf_gpu_mem *out)
{
	struct epf_gpu_mem m;
	struct fake_ipc peer;
	char path[64];
	int fd, rc;

	memcpy(&peer, ipc->handle, sizeof(peer));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", peer.pid, peer.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || ipc->offset >= ipc->base_bytes) {
		if (fd >= 0)
			close(fd);
		return epf_fail(EPF_R_GPU_CALL, "fake device %d: process %d has no such memory",
				dev->index, peer.pid);
	}
	rc = add(dev, fd, ipc->base_bytes, &m);
	if (rc)
		return rc;
	m.addr += ipc->offset;
	m.bytes -= ipc->offset;
	*out = m;
	return 0;
}

static int fake_mem_dmabuf(struct epf_gpu_dev *dev, uint64_t addr, uint64_t bytes, int *fd,
			   uint64_t *offset)
{
	const struct fake_mem *m;
	int rc;

	pthread_mutex_lock(&lock);
	m = find(addr);
	pthread_mutex_unlock(&lock);
	if (!m || bytes > m->bytes - (addr - (uintptr_t)m->at))
		return not_ours(dev, addr);
	rc = duplicate(dev, m->fd, fd);
	if (!rc)
		*offset = addr - (uintptr_t)m->at;
	return rc;
}

static int fake_mem_place(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_place *out)
{
	const struct fake_mem *m;

	*out = (struct epf_gpu_place){ .where = EPF_GPU_HOST, .device = -1 };
	pthread_mutex_lock(&lock);
	m = find(addr);
	if (m)
		*out = (struct epf_gpu_place){ EPF_GPU_DEVICE, m->device, (uintptr_t)m->at,
					       m->bytes };
	pthread_mutex_unlock(&lock);
	return 0;
}

static int fake_flush_writes(struct epf_gpu_dev *dev)
{
	return 0;
}

static int fake_peer_enable(struct epf_gpu_dev *dev, struct epf_gpu_dev *peer)
{
	return 0;
}

static int fake_copy(struct epf_gpu_dev *dev, uint64_t dst, uint64_t src, uint64_t bytes)
{
	memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
	return 0;
}

static int fake_fill(struct epf_gpu_dev *dev, uint64_t dst, uint8_t value, uint64_t bytes)
{
	memset((void *)(uintptr_t)dst, value, bytes);
	return 0;
}

/* Streams and events hold nothing: everything is done when its call returns. */
static int fake_create(struct epf_gpu_dev *dev, void **out)
{
	void *object = malloc(1);

	if (!object)
		return epf_fail(EPF_R_NO_MEMORY, "fake device %d: a stream or an event",
				dev->index);
	*out = object;
	return 0;
}

static void fake_destroy(struct epf_gpu_dev *dev, void *object)
{
	free(object);
}

static int fake_sync(struct epf_gpu_dev *dev, void *stream)
{
	return 0;
}

static int fake_copy_async(struct epf_gpu_dev *dev, void *stream, uint64_t dst, uint64_t src,
			   uint64_t bytes)
{
	return fake_copy(dev, dst, src, bytes);
}

static int fake_copy_batch(struct epf_gpu_dev *dev, void *stream, const struct epf_gpu_copy *copies,
			   unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		(void)fake_copy(dev, copies[i].dst, copies[i].src, copies[i].bytes);
	return 0;
}

/* Also the wait of a stream: what was recorded is done. */
static int fake_record(struct epf_gpu_dev *dev, void *stream, void *event)
{
	return 0;
}

static int fake_query(struct epf_gpu_dev *dev, void *event)
{
	return 1;
}

static int fake_enter(struct epf_gpu_dev *dev)
{
	return 0;
}

static void fake_leave(struct epf_gpu_dev *dev)
{
}

static int fake_module_load(struct epf_gpu_dev *dev, const void *image, void **module)
{
	*module = (void *)(uintptr_t)image;
	return 0;
}

static int fake_function(struct epf_gpu_dev *dev, void *module, const char *name, void **function)
{
	for (const struct epf_gpu_fake_kernel *k = module; k->name; k++)
		if (strcmp(k->name, name) == 0) {
			*function = (void *)(uintptr_t)k;
			return 0;
		}
	return epf_fail(EPF_R_GPU_CALL, "fake device %d: the module has no kernel %s", dev->index,
			name);
}

static int fake_launch(struct epf_gpu_dev *dev, void *stream, void *function,
		       const struct epf_gpu_launch *launch)
{
	const struct epf_gpu_fake_kernel *k = function;

	k->run(launch);
	return 0;
}

const struct epf_gpu_ops epf_gpu_fake_ops = {
	.name = "fake",
	.count = fake_count,
	.open = fake_open,
	.open_own = fake_open,
	.close = fake_close,
	.describe = fake_describe,
	.pin = fake_pin,
	.unpin = fake_unpin,
	.mem_alloc = fake_mem_alloc,
	.mem_free = fake_mem_free,
	.mem_export_fd = fake_mem_export_fd,
	.mem_import_fd = fake_mem_import_fd,
	.mem_export_ipc = fake_mem_export_ipc,
	.mem_import_ipc = fake_mem_import_ipc,
	.mem_export_mapped = epf_gpu_no_mapped,
	.mem_dmabuf = fake_mem_dmabuf,
	.mem_place = fake_mem_place,
	.flush_writes = fake_flush_writes,
	.peer_enable = fake_peer_enable,
	.copy = fake_copy,
	.fill = fake_fill,
	.stream_create = fake_create,
	.stream_destroy = fake_destroy,
	.stream_sync = fake_sync,
	.copy_async = fake_copy_async,
	.copy_batch = fake_copy_batch,
	.event_create = fake_create,
	.event_destroy = fake_destroy,
	.event_record = fake_record,
	.event_query = fake_query,
	.stream_wait = fake_record,
	.enter = fake_enter,
	.leave = fake_leave,
	.module_load = fake_module_load,
	.module_unload = epf_gpu_no_unload,
	.function = fake_function,
	.launch = fake_launch,
};
