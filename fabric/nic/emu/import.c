/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where GPU memory is, for the copier's thread: regions of this process, regions of peers (mapped here when they are first read), and
 * the packets of wire segments. Called by copier_thread.c on its thread, which owns the lists but those of this process's regions: these
 * are under the copier's lock, over which no driver is called. It must never write to a peer's memory, and never believe a peer's region table beyond that peer's own memory.
 */
#define EPF_LOG_COMP "emu"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/nic/emu/copier_priv.h"
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/copy_queue.h"
#include "fabric/nic/emu/emu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
# define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
# define SYS_pidfd_getfd 438 /* linux 5.6, the same on all architectures */
#endif

/* Memory that nothing new is copied from, while copies begun before still read it. */
struct leaving {
	bool is_leaving;
	uint64_t last; /* number of the batch begun last */
};

/* A region of a peer that is mapped here. */
struct import {
	struct import *next;
	struct epf_emu_seg *seg;
	const struct epf_copy_ops *ops;
	uint32_t key;
	int want;   /* whose copies it was mapped for; -1: any device's */
	int device; /* which makes them: another one's only of what was not made for sharing */
	uint64_t base, len, at;
	struct epf_copy_handle handle;
	struct leaving leaving; /* its owner has withdrawn it */
};

/* A segment whose packets are registered with the GPU. */
struct host {
	struct host *next;
	const struct epf_emu_seg *seg;
	const struct epf_copy_ops *ops; /* NULL: it could not be, copies are slower */
};

/* A region of a NIC of this process. */
struct own {
	struct own *next;
	uint64_t nonce;
	uint32_t key;
	bool tried; /* to map it */
	struct epf_copy_mem *mem;
	struct leaving leaving; /* of one that has gone */
};

static struct import *imports;
static uint32_t generation; /* of what is mapped */
static struct host *hosts;
static struct own *owns, *gone; /* gone: withdrawn, still to be unmapped */
static pthread_mutex_t own_lock =
	PTHREAD_MUTEX_INITIALIZER; /* of these two lists; held for moments, never over a driver call */

/* True once no copy reads it any more. Asked again and again, from when it leaves. */
static bool has_left(struct leaving *l)
{
	if (!l->is_leaving)
		*l = (struct leaving){ true, epf_emu_queues_newest() };
	return epf_emu_queues_are_past(l->last);
}

int epf_emu_import_own(struct epf_copy_mem *mem)
{
	int rc;

	if (mem->state == 1)
		return 0;
	if (mem->state == 2)
		return epf_fail(EPF_R_GPU_MEMORY, "GPU region: it could not be mapped before");
	mem->device = mem->ops->mem_device(&mem->handle);
	rc = mem->ops->mem_import(&mem->handle, mem->device, &mem->device_addr);
	__atomic_store_n(&mem->state, rc ? 2u : 1u, __ATOMIC_RELEASE); /* C5 */
	return rc;
}

int epf_emu_import_add_own(uint64_t nonce, uint32_t key, struct epf_copy_mem *mem)
{
	struct own *o = malloc(sizeof(*o));

	if (!o)
		return epf_fail(EPF_R_NO_MEMORY, "GPU region: no memory");
	epf_copy_mem_get(mem);
	pthread_mutex_lock(&own_lock);
	*o = (struct own){ .next = owns, .nonce = nonce, .key = key, .mem = mem };
	owns = o;
	pthread_mutex_unlock(&own_lock);
	return 0;
}

void epf_emu_import_remove_own(uint64_t nonce, uint32_t key)
{
	struct own **at = &owns, *o;

	pthread_mutex_lock(&own_lock);
	while (*at && ((*at)->nonce != nonce || (*at)->key != key))
		at = &(*at)->next;
	o = *at;
	if (o) {
		*at = o->next;
		o->next = gone;
		gone = o;
	}
	pthread_mutex_unlock(&own_lock);
}

bool epf_emu_import_is_read(uint64_t nonce, uint32_t key)
{
	struct own *o;

	pthread_mutex_lock(&own_lock);
	for (o = gone; o && (o->nonce != nonce || o->key != key); o = o->next)
		;
	pthread_mutex_unlock(&own_lock);
	return o;
}

/* Takes one of those that have gone, and that no copy reads, off their list. own_lock held. */
static struct own *take_gone(void)
{
	struct own **at = &gone, *o;

	while (*at && !has_left(&(*at)->leaving))
		at = &(*at)->next;
	o = *at;
	if (o)
		*at = o->next;
	return o;
}

/* One that has not been tried yet, or has gone; its memory is used by the caller (epf_copy_mem_put). NULL: none. */
static struct epf_copy_mem *next_own(bool *has_gone)
{
	struct epf_copy_mem *mem = NULL;
	struct own *o;

	pthread_mutex_lock(&own_lock);
	for (o = owns; o && o->tried; o = o->next)
		;
	*has_gone = !o;
	if (o) {
		o->tried = true;
		mem = o->mem;
		epf_copy_mem_get(mem);
	} else {
		o = take_gone();
		mem = o ? o->mem : NULL; /* with its use */
		free(o);
	}
	pthread_mutex_unlock(&own_lock);
	return mem;
}

bool epf_emu_import_owns(void (*ready)(const struct epf_copy_mem *mem))
{
	struct epf_copy_mem *mem;
	bool has_gone, is_read;

	while ((mem = next_own(&has_gone))) {
		if (!has_gone && epf_emu_import_own(mem))
			epf_warn_ratelimited("GPU region: %s", epf_last_error());
		else if (!has_gone)
			ready(mem);
		/* No NIC copies to it any more: whoever has the last use need not call the driver. */
		if (has_gone && mem->reserved && mem->state == 1) {
			mem->ops->mem_unimport(&mem->handle, mem->device_addr);
			mem->state = 2;
		}
		epf_copy_mem_put(mem);
	}
	pthread_mutex_lock(&own_lock);
	is_read = gone;
	pthread_mutex_unlock(&own_lock);
	return is_read;
}

/* Takes over a descriptor of another process. */
static int fetch_fd(const struct epf_emu_seg *seg, int fd_there)
{
	int pidfd = (int)syscall(SYS_pidfd_open, seg->pid, 0), fd, err;

	if (pidfd < 0)
		return epf_fail_sys(EPF_R_NIC_PEER_GONE, errno, "GPU region: process %d",
				    (int)seg->pid);
	fd = (int)syscall(SYS_pidfd_getfd, pidfd, fd_there, 0);
	err = errno;
	close(pidfd);
	if (fd >= 0)
		return fd;
	if (err == EPERM)
		return epf_fail(
			EPF_R_GPU_PEER,
			"GPU region: descriptor %d of process %d may not be taken over (pidfd_getfd)",
			fd_there, (int)seg->pid);
	return epf_fail_sys(EPF_R_SYSTEM, err, "GPU region: descriptor %d of process %d", fd_there,
			    (int)seg->pid);
}

/* Copies an entry of a peer's table; -ESTALE when it is not (any more) that region's. [C3] */
static int read_entry(const struct epf_emu_seg *seg, uint32_t key, struct epf_emu_gpu_region *out)
{
	const struct epf_emu_gpu_region *at;
	const uint32_t *from;
	uint32_t *to = (uint32_t *)out + 1;

	if (!key || (key & 0xffff) >= EPF_EMU_GPU_REGIONS)
		return -ESTALE;
	at = &seg->gpu[key & 0xffff];
	if (__atomic_load_n(&at->key, __ATOMIC_ACQUIRE) != key) /* C3 */
		return -ESTALE;
	out->key = key;
	from = (const uint32_t *)at + 1;
	for (unsigned i = 0; i < EPF_EMU_GPU_WORDS; i++) /* its owner may be writing another one */
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&at->key, __ATOMIC_RELAXED) == key ? 0 : -ESTALE;
}

/*
 * A region of this process, known already; mapped once more for the copies of another device. Copy engines take what was not made for sharing as it is;
 * kernels cannot.
 */
static int find_own(const struct epf_copy_ops *ops, const struct epf_emu_seg *seg, uint32_t key,
		    int device, bool kernels, struct import *im)
{
	struct epf_copy_mem *mem = NULL;
	int rc;

	pthread_mutex_lock(&own_lock);
	for (struct own *o = owns; o && !mem; o = o->next)
		if (o->nonce == seg->nonce && o->key == key)
			mem = o->mem;
	if (mem)
		epf_copy_mem_get(mem);
	pthread_mutex_unlock(&own_lock);
	if (!mem)
		return epf_fail(EPF_R_NIC_PEER_GONE, "GPU region %#x of this process is no more",
				key);
	rc = epf_emu_import_own(mem);
	if (!rc && device >= 0 && device != mem->device &&
	    (kernels || mem->handle.kind != EPF_COPY_LOCAL)) {
		im->handle = mem->handle;
		rc = ops->mem_import(&im->handle, device, &im->at);
		im->handle.fd = -1;
	} else if (!rc) {
		im->at = mem->device_addr;
		im->device = mem->device;
		im->ops = NULL; /* nothing to unmap */
	}
	epf_copy_mem_put(mem);
	return rc;
}

/* Maps a peer's region. The process that owns it may be this one: its memory is known here then. */
static int map_region(const struct epf_copy_ops *ops, struct epf_emu_seg *seg, uint32_t key,
		      int device, bool kernels, struct import *im)
{
	struct epf_emu_gpu_region g;
	int rc = read_entry(seg, key, &g);

	if (rc)
		return epf_fail(EPF_R_NIC_PEER_GONE, "GPU region %#x of process %d is no more", key,
				(int)seg->pid);
	*im = (struct import){ .seg = seg,
			       .ops = ops,
			       .key = key,
			       .want = device,
			       .device = device,
			       .base = g.base,
			       .len = g.len,
			       .handle = { .kind = g.kind } };
	if (seg->own)
		return find_own(ops, seg, key, device, kernels, im);
	im->handle.bytes = g.bytes;
	im->handle.offset = g.offset;
	im->handle.fd = -1;
	memcpy(im->handle.ipc, g.ipc, sizeof(g.ipc));
	memcpy(im->handle.pci, g.pci, sizeof(g.pci) - 1);
	if (device < 0)
		im->device = ops->mem_device(&im->handle);
	if (g.offset > g.bytes || g.len > g.bytes - g.offset)
		return epf_fail(EPF_R_GPU_PEER, "GPU region %#x of process %d makes no sense", key,
				(int)seg->pid);
	if (g.kind == EPF_COPY_LOCAL)
		return epf_fail(EPF_R_GPU_PEER,
				"GPU region %#x of process %d: its allocator did not make it for "
				"sharing, so it can only be a target",
				key, (int)seg->pid);
	if (g.kind == EPF_COPY_FD) {
		rc = fetch_fd(seg, g.fd);
		if (rc < 0)
			return rc;
		im->handle.fd = rc;
	}
	/* The descriptor was that region's only if the region is still there. */
	rc = read_entry(seg, key, &g) ? epf_fail(EPF_R_GPU_PEER, "GPU region %#x has gone", key)
				      : ops->mem_import(&im->handle, im->device, &im->at);
	if (im->handle.fd >= 0)
		close(im->handle.fd);
	im->handle.fd = -1;
	return rc;
}

int epf_emu_import_peer(const struct epf_copy_ops *ops, struct epf_emu_seg *seg, uint32_t key,
			int device, bool kernels, struct epf_emu_window *out)
{
	struct import *im, fresh;
	int rc;

	for (im = imports; im; im = im->next)
		if (im->key == key && im->seg == seg &&
		    (device < 0 || device == im->want || device == im->device))
			break;
	if (im && !epf_emu_is_gpu_key(seg, key))
		return epf_fail(EPF_R_NIC_PEER_GONE, "GPU region %#x of process %d was withdrawn",
				key, (int)seg->pid);
	if (!im) {
		epf_emu_import_sweep();
		rc = map_region(ops, seg, key, device, kernels, &fresh);
		if (rc)
			return rc;
		im = malloc(sizeof(*im));
		if (!im) {
			if (fresh.ops)
				ops->mem_unimport(&fresh.handle, fresh.at);
			return epf_fail(EPF_R_NO_MEMORY, "GPU region: no memory");
		}
		*im = fresh;
		im->next = imports;
		imports = im;
	}
	*out = (struct epf_emu_window){ .seg = seg,
					.key = key,
					.generation = generation,
					.want = device,
					.device = im->device,
					.base = im->base,
					.len = im->len,
					.at = im->at };
	return 0;
}

uint32_t epf_emu_import_generation(void)
{
	return generation;
}

static void unmap_import(struct import **at)
{
	struct import *im = *at;

	*at = im->next;
	generation++;
	if (im->ops)
		im->ops->mem_unimport(&im->handle, im->at);
	free(im);
}

void epf_emu_import_sweep(void)
{
	for (struct import **at = &imports; *at;) {
		struct import *im = *at;

		if (__atomic_load_n(&im->seg->gpu[im->key & 0xffff].key, __ATOMIC_ACQUIRE) !=
			    im->key && /* C3 */
		    has_left(&im->leaving))
			unmap_import(at);
		else
			at = &im->next;
	}
}

void epf_emu_import_host(const struct epf_copy_ops *ops, struct epf_emu_seg *seg)
{
	struct host *h;

	for (h = hosts; h; h = h->next)
		if (h->seg == seg)
			return;
	h = malloc(sizeof(*h));
	if (!h)
		return; /* asked again with the next copy */
	*h = (struct host){ hosts, seg, ops };
	hosts = h;
	if (ops->host_register(seg->hdr, seg->bytes)) {
		epf_note("copies out of the packets of process %d are slower: %s", (int)seg->pid,
			 epf_last_error());
		h->ops = NULL;
	}
}

void epf_emu_import_drop(const struct epf_emu_seg *seg)
{
	for (struct import **at = &imports; *at;)
		if (!seg || (*at)->seg == seg)
			unmap_import(at);
		else
			at = &(*at)->next;
	for (struct host **at = &hosts; *at;) {
		struct host *h = *at;

		if (seg && h->seg != seg) {
			at = &h->next;
			continue;
		}
		*at = h->next;
		if (h->ops)
			h->ops->host_unregister(h->seg->hdr);
		free(h);
	}
}
